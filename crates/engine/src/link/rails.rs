//! The NICs of a group, opened for it: completion queues, and the links on them. Held by the group's lane and lent to the
//! member whose turn it is; knows nothing of messages or of members.

use trunkline_fabric::{Completion, LinkAddress, LinkError, LinkId, Rail};
use trunkline_proto::limits::SLICES_MAX;
use trunkline_proto::pool::credits::GroupCredits;
use trunkline_proto::wire::status::group::CreditUsage;

use crate::link::links::SharedLinks;
use crate::link::path::LinkPath;

/// One rail for each NIC that the links of a group are on. The first is here and not behind a pointer, because most
/// groups have only that one.
pub(crate) struct GroupRails<R: Rail> {
    first: R,
    more: Vec<R>,
    /// Operations that may be under way on a link of the first.
    depth: u32,
    /// Operations posted so far by sending ends, where there is one link.
    pub(crate) posts: u64,
    /// A message was given to the network since the last poll.
    pub(crate) burst: bool,
    /// Eager messages that the other end has room for, of all members of a group that sends.
    pub(crate) eager: Option<GroupCredits>,
    /// Slices of long messages that all members may have under way.
    pub(crate) slices: GroupCredits,
    /// Which members use which links, where several may.
    pub(crate) shared: Option<SharedLinks>,
    /// Where its NIC has several pipelines, the one that the first link is on.
    pub(crate) pipeline: Option<u32>,
    /// Some of those links have ended, and not all members were told.
    pub(crate) has_ended: bool,
}

impl<R: Rail> GroupRails<R> {
    /// These, in the order of their NICs; on the links of the first so many operations may be under way.
    pub(crate) fn new(first: R, more: Vec<R>, depth: u32) -> Self {
        let slices = GroupCredits::new(SLICES_MAX);
        let shared = None;
        let pipeline = None;
        let has_ended = false;
        Self { first, more, depth, posts: 0, burst: false, eager: None, slices, shared, pipeline, has_ended }
    }

    /// How many.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        1 + self.more.len()
    }

    /// Whether there are others than the first.
    #[inline]
    pub(crate) fn are_many(&self) -> bool {
        !self.more.is_empty()
    }

    /// One rail. There are as many as [`GroupRails::len`] says.
    #[inline]
    pub(crate) fn get(&self, at: usize) -> &R {
        if at == 0 { &self.first } else { &self.more[at - 1] }
    }

    /// The same, to use.
    #[inline]
    pub(crate) fn get_mut(&mut self, at: usize) -> &mut R {
        if at == 0 { &mut self.first } else { &mut self.more[at - 1] }
    }

    /// All of them.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &R> {
        std::iter::once(&self.first).chain(&self.more)
    }

    /// A link for slot `slot` of a member: one that others have made, or a new one.
    ///
    /// # Errors
    /// As [`LinkControl::create_link`](trunkline_fabric::LinkControl::create_link).
    pub(crate) fn make_link(&mut self, slot: usize, rail: usize) -> Result<LinkId, LinkError> {
        match self.shared.as_mut().and_then(|shared| shared.join_link(slot)) {
            Some(link) => Ok(link),
            None => self.make_new(slot, rail),
        }
    }

    /// A new link for slot `slot`: on a pipeline of its own, as far as there are so many with room.
    ///
    /// # Errors
    /// As [`LinkControl::create_link`](trunkline_fabric::LinkControl::create_link).
    pub(crate) fn create_link(&mut self, slot: usize, rail: usize) -> Result<LinkId, LinkError> {
        let first = self.pipeline;
        let rail = self.get_mut(rail);
        // At most four.
        let pipeline = first.map(|first| (first + slot as u32) % rail.caps().pipelines.max(1));
        match rail.create_link_on(pipeline) {
            Err(LinkError::PipelineExhausted { .. }) => rail.create_link(),
            made => made,
        }
    }

    /// A new link for slot `slot` of a member.
    ///
    /// # Errors
    /// As [`LinkControl::create_link`](trunkline_fabric::LinkControl::create_link).
    pub(crate) fn make_new(&mut self, slot: usize, rail: usize) -> Result<LinkId, LinkError> {
        let link = self.create_link(slot, rail)?;
        if let Some(shared) = &mut self.shared {
            shared.add_link(slot, rail, link);
        }
        Ok(link)
    }

    /// Connects a link, unless another member has.
    ///
    /// # Errors
    /// As [`LinkControl::connect`](trunkline_fabric::LinkControl::connect).
    pub(crate) fn connect_link(
        &mut self,
        rail: usize,
        link: LinkId,
        peer: LinkAddress,
    ) -> Result<(), LinkError> {
        let first = self.shared.as_mut().is_none_or(|shared| shared.mark_connected(rail, link, &peer.bytes));
        if first { self.get_mut(rail).connect(link, peer) } else { Ok(()) }
    }

    /// A path has carried something for a member.
    pub(crate) fn mark_carrying(&mut self, path: &LinkPath) {
        if let Some(shared) = &mut self.shared {
            shared.mark_carrying(path.rail, path.link);
        }
    }

    /// Whether a link carries for other members.
    pub(crate) fn carries_for_others(&self, rail: usize, link: LinkId) -> bool {
        self.shared.as_ref().is_some_and(|shared| shared.is_carrying(rail, link))
    }

    /// Whether other members use a link besides one.
    pub(crate) fn serves_others(&self, rail: usize, link: LinkId) -> bool {
        self.shared.as_ref().is_some_and(|shared| shared.serves_several(rail, link))
    }

    /// A member uses a link no more, which ends it with the last one.
    pub(crate) fn release_link(&mut self, rail: usize, link: LinkId) {
        if self.shared.as_mut().is_none_or(|shared| shared.release_link(rail, link)) {
            self.get_mut(rail).destroy_link(link);
        }
    }

    /// Puts a link into error, for all who use it.
    pub(crate) fn fail_link(&mut self, rail: usize, link: LinkId) {
        self.get_mut(rail).fail_link(link);
        self.mark_ended(rail, link);
    }

    /// A link gives back what was posted: it is in error.
    pub(crate) fn mark_ended(&mut self, rail: usize, link: LinkId) {
        if let Some(shared) = &mut self.shared {
            shared.mark_ended(rail, link);
            self.has_ended = true;
        }
    }

    /// Puts every link of a group into error.
    pub(crate) fn fail_all(&mut self) {
        for (rail, link) in self.all_shared() {
            self.fail_link(rail, link);
        }
    }

    /// How much of the queue of a group's first link is in use.
    pub(crate) fn queue_usage(&self) -> CreditUsage {
        let first = self.shared.iter().flat_map(SharedLinks::iter).find(|(rail, _)| *rail == 0);
        let used = first.map_or(0, |(_, link)| self.depth.saturating_sub(self.first.post_credits(link)));
        CreditUsage { used, total: self.depth }
    }

    /// Whether every link of a group is in error and has told all.
    pub(crate) fn all_quiet(&mut self) -> bool {
        let ended = self.shared.as_ref().is_none_or(SharedLinks::all_ended);
        ended && self.all_shared().into_iter().all(|(rail, link)| self.get_mut(rail).poll_link_quiet(link))
    }

    /// Ends every link of a group.
    pub(crate) fn destroy_all(&mut self) {
        for (rail, link) in self.all_shared() {
            self.get_mut(rail).destroy_link(link);
        }
    }

    fn all_shared(&self) -> Vec<(usize, LinkId)> {
        self.shared.iter().flat_map(SharedLinks::iter).collect()
    }

    /// Gives what is posted to the network.
    #[inline]
    pub(crate) fn flush(&mut self) {
        self.first.flush();
        self.more.iter_mut().for_each(Rail::flush);
    }

    /// Takes what one rail has finished.
    #[inline]
    pub(crate) fn poll(&mut self, at: usize, batch: &mut [Completion]) -> usize {
        self.get_mut(at).poll(batch)
    }
}
