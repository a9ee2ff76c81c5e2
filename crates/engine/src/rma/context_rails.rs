//! The rails of one context: its links are created, posted to, polled and destroyed here. Called by the context and by its
//! members. It knows no operation, and never decides on posting, nor the meaning of a failure.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use trunkline_fabric::{Completion, LinkAddress, LinkError, LinkId, Op, OpSource, PostError, Rail};
use trunkline_proto::rma::PathId;
use trunkline_proto::wire::rma::RmaMessage;

use crate::rma::error::RmaError;
use crate::rma::peer::{OutboundLink, RemoteMember};
use crate::rma::receives::LinkReceives;
use crate::rma::service::{arm_rails, count_pending_rails};

/// `wr_id` of messages, of which only failures are reported.
pub(super) const MESSAGE: u64 = u64::MAX;

/// The peer of a context that a link leads to, and the path to it that the link is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct LinkOwner {
    pub(super) peer: u32,
    pub(super) path: PathId,
}

/// The rails of one context, the owners of the links on them, and the deferred work of the rails: doorbells and receives. Its
/// context owns it; the context and its members call it. It never waits, and never changes an operation or a path.
///
/// Invariants: `owners` has one table per rail. A link has an owner there from its dial to its destruction. `unrung` is set
/// whenever a posted operation has not been given to the network. `starves` is set whenever a link lacks receives.
pub(super) struct ContextRails<R: Rail> {
    all: Vec<R>,
    /// By rail, then by the link's number.
    owners: Vec<Vec<Option<LinkOwner>>>,
    /// Receives of each link, for replies and acknowledgements.
    answers: u32,
    /// A completed operation has arrived at its target.
    arrives: bool,
    /// Writes can prove their own arrival, where completions do not.
    places: bool,
    /// Some link has receives that found no room.
    starves: bool,
    /// How often a rail requested another poll at once.
    stirred: u64,
    /// More operations follow at once: a posted one waits for the last one's doorbell.
    batches: bool,
    /// A posted operation waits for a doorbell.
    unrung: bool,
}

impl<R: Rail> ContextRails<R> {
    /// Takes over these rails, whose links get `answers` receives each. `arrives`: on all of them, a completed write has arrived.
    pub(super) fn new(all: Vec<R>, answers: u32, arrives: bool) -> Self {
        let places = !arrives && all.iter().all(|rail| rail.caps().placed_writes);
        let owners = all.iter().map(|_| Vec::new()).collect();
        Self {
            all,
            owners,
            answers,
            arrives,
            places,
            starves: false,
            stirred: 0,
            batches: false,
            unrung: false,
        }
    }

    /// The rails.
    pub(super) fn all_rails(&self) -> &[R] {
        &self.all
    }

    /// How many rails there are.
    #[inline]
    pub(super) fn rail_count(&self) -> usize {
        self.all.len()
    }

    /// How many receives each link has.
    #[inline]
    pub(super) const fn answer_depth(&self) -> u32 {
        self.answers
    }

    /// Whether a completed operation has arrived at its target.
    #[inline]
    pub(super) const fn completes_on_arrival(&self) -> bool {
        self.arrives
    }

    /// Whether a write can prove its own arrival, where completions do not.
    #[inline]
    pub(super) const fn can_place_writes(&self) -> bool {
        self.places
    }

    /// Whether the network keeps the order of all that is posted: one rail, whose completions mean arrival.
    pub(super) fn is_in_order(&self) -> bool {
        self.arrives && self.all.len() == 1 && self.all[0].caps().link_order
    }

    /// Creates one end of a link on a rail, and returns it with its address.
    ///
    /// # Errors
    /// The rail has no link left, or no memory for its receives; then nothing is left of it.
    pub(super) fn create_link(&mut self, rail: usize) -> Result<(OutboundLink, LinkAddress), RmaError> {
        let on = &mut self.all[rail];
        let link = on.create_link()?;
        let made = LinkReceives::new(on, self.answers).map_err(RmaError::from);
        let made = made.and_then(|receives| Ok((receives, on.link_address(link)?)));
        let (receives, address) = made.inspect_err(|_| on.destroy_link(link))?;
        self.starves = true;
        Ok((OutboundLink::new(rail, link, receives), address))
    }

    /// Sets the owner of a link that is dialled; completions on the link are the owner's from now on.
    pub(super) fn set_owner(&mut self, link: &OutboundLink, owner: Option<LinkOwner>) {
        let owners = &mut self.owners[link.rail];
        owners.resize(owners.len().max(link.link.0 as usize + 1), None);
        owners[link.link.0 as usize] = owner;
    }

    /// The owner of a link; `None` if it was destroyed.
    #[inline]
    pub(super) fn owner_of(&self, rail: usize, link: LinkId) -> Option<LinkOwner> {
        self.owners[rail].get(link.0 as usize).copied().flatten()
    }

    /// Connects a link to the other end, whose address has arrived.
    ///
    /// # Errors
    /// [`LinkError`]; the link can then only be destroyed.
    pub(super) fn connect_link(
        &mut self,
        link: &OutboundLink,
        address: LinkAddress,
    ) -> Result<(), LinkError> {
        self.all[link.rail].connect(link.link, address)
    }

    /// Destroys a link that was never dialled.
    pub(super) fn discard_link(&mut self, link: &OutboundLink) {
        self.all[link.rail].destroy_link(link.link);
    }

    /// Puts a link into error; it is destroyed later.
    pub(super) fn fail_link(&mut self, link: &OutboundLink) {
        self.all[link.rail].fail_link(link.link);
    }

    /// Ends a link at this side: no completion on it is reported any more, and nothing lands. Does nothing if the link was destroyed before.
    pub(super) fn destroy_link(&mut self, link: &mut OutboundLink) {
        if !std::mem::replace(&mut link.exists, false) {
            return;
        }
        // In error first, because nothing may land while the link is being destroyed.
        self.all[link.rail].fail_link(link.link);
        self.all[link.rail].destroy_link(link.link);
        if let Some(owner) = self.owners[link.rail].get_mut(link.link.0 as usize) {
            *owner = None;
        }
        // Otherwise, a later link at the same place would inherit the counts.
        link.clear_pending();
    }

    /// Whether a link that was connected is up.
    ///
    /// # Errors
    /// [`LinkError`] if the member cannot be reached over it.
    pub(super) fn poll_link_up(&mut self, link: &OutboundLink) -> Result<bool, LinkError> {
        self.all[link.rail].poll_link_up(link.link)
    }

    /// Whether a link in error has reported all its completions.
    pub(super) fn poll_link_quiet(&mut self, link: &OutboundLink) -> bool {
        self.all[link.rail].poll_link_quiet(link.link)
    }

    /// Checks whether the network still carries a link.
    ///
    /// # Errors
    /// [`LinkError`] if it does not.
    pub(super) fn check_link(&mut self, link: &OutboundLink) -> Result<(), LinkError> {
        self.all[link.rail].check_link(link.link)
    }

    /// How many operations can be posted on a link.
    #[inline]
    pub(super) fn post_credits(&self, link: &OutboundLink) -> u32 {
        self.all[link.rail].post_credits(link.link)
    }

    /// Posts a signalled operation on a link. The caller rings or flushes the rail of the link.
    ///
    /// # Errors
    /// As [`Rail::post`].
    #[inline]
    pub(super) fn post_op(&mut self, link: &OutboundLink, wr_id: u64, op: Op<'_>) -> Result<(), PostError> {
        self.all[link.rail].post(link.link, wr_id, op, true)
    }

    /// Sends a message over a link that has room.
    pub(super) fn send_message(&mut self, link: &OutboundLink, message: &RmaMessage) {
        let (bytes, len) = message.to_bytes();
        let op = Op::Send { head: &bytes[..len], body: OpSource::Inline(&[]), imm: None };
        // A link that takes none has ended, which its completions report.
        let _ = self.all[link.rail].post(link.link, MESSAGE, op, false);
        self.ring_rail(link.rail);
    }

    /// Gives the operations posted on a rail to the network.
    #[inline]
    pub(super) fn flush_rail(&mut self, rail: usize) {
        self.all[rail].flush();
    }

    /// Gives the operations posted on a rail to the network, unless more of a batch follows.
    #[inline]
    pub(super) fn ring_rail(&mut self, rail: usize) {
        if self.batches {
            self.unrung = true;
        } else if self.unrung {
            // A flush after the end of a batch covers all rails of the batch.
            self.ring_all();
        } else {
            self.all[rail].flush();
        }
    }

    /// Gives the operations that wait for the end of a batch to the network, on all rails.
    #[inline]
    pub(super) fn ring_all(&mut self) {
        if std::mem::take(&mut self.unrung) {
            self.all.iter_mut().for_each(Rail::flush);
        }
    }

    /// Sets whether more operations follow at once, so that one doorbell is enough for all of them.
    pub(super) fn set_batching(&mut self, batches: bool) {
        self.batches = batches;
    }

    /// Polls a rail for up to `batch.len()` completions. Returns their number.
    #[inline]
    pub(super) fn poll(&mut self, rail: usize, batch: &mut [Completion]) -> usize {
        self.all[rail].poll(batch)
    }

    /// Whether some link has receives that found no room.
    #[inline]
    pub(super) const fn has_due_receives(&self) -> bool {
        self.starves
    }

    /// Posts the receives of a link that are not posted, as far as there is room.
    #[inline]
    pub(super) fn post_receives(&mut self, link: &mut OutboundLink) {
        self.starves |= !link.receives.post_due(&mut self.all[link.rail], link.link);
    }

    /// Posts receives that found no room before.
    #[cold]
    pub(super) fn post_due_receives(&mut self, peers: &mut [RemoteMember]) {
        self.starves = false;
        let links = peers.iter_mut().flat_map(|peer| &mut peer.links);
        for link in links.filter(|link| link.exists) {
            self.post_receives(link);
        }
    }

    /// Returns how often a rail requested another poll at once, over all calls of this function.
    pub(super) fn sample_progress(&mut self) -> u64 {
        self.stirred += count_pending_rails(&mut self.all);
        self.stirred
    }

    /// Prepares a wait for events of the rails and adds the descriptors to wait for. False if a rail has to be polled.
    pub(super) fn arm_events(&mut self, descriptors: &mut Vec<Arc<OwnedFd>>) -> bool {
        arm_rails(&mut self.all, descriptors)
    }
}
