//! The NICs of a group, opened for it: completion queues, and the links on them. Protected by the group's lock and lent to the
//! member that is being polled; knows nothing of messages or of members.

use trunkline_fabric::{Completion, LinkAddress, LinkError, LinkId, Rail};
use trunkline_proto::limits::SLICES_MAX;
use trunkline_proto::pool::credits::GroupCredits;
use trunkline_proto::wire::status::group::CreditUsage;

use crate::link::links::SharedLinks;
use crate::link::path::LinkPath;

/// One rail per NIC of the group's links. The first is stored inline and not behind a pointer, because most groups have only one.
pub(crate) struct GroupRails<R: Rail> {
    first: R,
    more: Vec<R>,
    /// The maximum number of operations in flight on a link of the first rail.
    depth: u32,
    /// Operations posted so far by sending ends, for one link.
    pub(crate) posts: u64,
    /// A message was flushed since the last poll.
    pub(crate) burst: bool,
    /// Credits for eager messages at the other end, of all members of a sending group.
    pub(crate) eager: Option<GroupCredits>,
    /// Credits for slices of long messages, of all members.
    pub(crate) slices: GroupCredits,
    /// The links and their users, where several members may use a link.
    pub(crate) shared: Option<SharedLinks>,
    /// The pipeline of the first link, where its NIC has several.
    pub(crate) pipeline: Option<u32>,
    /// Some of those links have ended, and not all members have processed that.
    pub(crate) has_ended: bool,
}

impl<R: Rail> GroupRails<R> {
    /// Creates the rails, in the order of their NICs; `depth` operations may be in flight on each link of the first.
    pub(crate) fn new(first: R, more: Vec<R>, depth: u32) -> Self {
        let slices = GroupCredits::new(SLICES_MAX);
        let shared = None;
        let pipeline = None;
        let has_ended = false;
        Self { first, more, depth, posts: 0, burst: false, eager: None, slices, shared, pipeline, has_ended }
    }

    /// Returns the number of rails.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        1 + self.more.len()
    }

    /// Returns whether there are several.
    #[inline]
    pub(crate) fn are_many(&self) -> bool {
        !self.more.is_empty()
    }

    /// Returns a rail; `at` is below [`GroupRails::len`].
    #[inline]
    pub(crate) fn get(&self, at: usize) -> &R {
        if at == 0 { &self.first } else { &self.more[at - 1] }
    }

    /// Returns a rail for changes.
    #[inline]
    pub(crate) fn get_mut(&mut self, at: usize) -> &mut R {
        if at == 0 { &mut self.first } else { &mut self.more[at - 1] }
    }

    /// Iterates over the rails.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &R> {
        std::iter::once(&self.first).chain(&self.more)
    }

    /// Returns a link for slot `slot` of a member: one that another member has made, or a new one.
    ///
    /// # Errors
    /// As [`LinkControl::create_link`](trunkline_fabric::LinkControl::create_link).
    pub(crate) fn make_link(&mut self, slot: usize, rail: usize) -> Result<LinkId, LinkError> {
        match self.shared.as_mut().and_then(|shared| shared.join_link(slot)) {
            Some(link) => Ok(link),
            None => self.make_new(slot, rail),
        }
    }

    /// Creates a link for slot `slot`, on a pipeline of its own if the NIC has one with room: links then work in parallel.
    ///
    /// # Errors
    /// As [`LinkControl::create_link`](trunkline_fabric::LinkControl::create_link).
    pub(crate) fn create_link(&mut self, slot: usize, rail: usize) -> Result<LinkId, LinkError> {
        let first = self.pipeline;
        let rail = self.get_mut(rail);
        // At most four slots, so the sum is small.
        let pipeline = first.map(|first| (first + slot as u32) % rail.caps().pipelines.max(1));
        // A full pipeline is no error: the link then shares one with others.
        match rail.create_link_on(pipeline) {
            Err(LinkError::PipelineExhausted { .. }) => rail.create_link(),
            made => made,
        }
    }

    /// Creates a link for slot `slot` of a member, and shares it.
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
        // Another member may have connected the link with the same address.
        let first = self.shared.as_mut().is_none_or(|shared| shared.mark_connected(rail, link, &peer.bytes));
        if first { self.get_mut(rail).connect(link, peer) } else { Ok(()) }
    }

    /// Marks that a path has transferred something for a member.
    pub(crate) fn mark_carrying(&mut self, path: &LinkPath) {
        if let Some(shared) = &mut self.shared {
            shared.mark_carrying(path.rail, path.link);
        }
    }

    /// Returns whether a link works for other members.
    pub(crate) fn carries_for_others(&self, rail: usize, link: LinkId) -> bool {
        self.shared.as_ref().is_some_and(|shared| shared.is_carrying(rail, link))
    }

    /// Returns whether more than one member uses a link.
    pub(crate) fn serves_others(&self, rail: usize, link: LinkId) -> bool {
        self.shared.as_ref().is_some_and(|shared| shared.serves_several(rail, link))
    }

    /// Removes a member from a link; the link is destroyed with its last user.
    pub(crate) fn release_link(&mut self, rail: usize, link: LinkId) {
        if self.shared.as_mut().is_none_or(|shared| shared.release_link(rail, link)) {
            self.get_mut(rail).destroy_link(link);
        }
    }

    /// Puts a link into error, for all members that use it.
    pub(crate) fn fail_link(&mut self, rail: usize, link: LinkId) {
        // The link is failed for all members, which then leave it at the same time.
        self.get_mut(rail).fail_link(link);
        self.mark_ended(rail, link);
    }

    /// Marks a link that flushes its posted operations: it is in error.
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

    /// Returns the use of the queue of a group's first link.
    pub(crate) fn queue_usage(&self) -> CreditUsage {
        let first = self.shared.iter().flat_map(SharedLinks::iter).find(|(rail, _)| *rail == 0);
        let used = first.map_or(0, |(_, link)| self.depth.saturating_sub(self.first.post_credits(link)));
        CreditUsage { used, total: self.depth }
    }

    /// Returns whether every link of a group is in error and has reported all completions.
    pub(crate) fn all_quiet(&mut self) -> bool {
        let ended = self.shared.as_ref().is_none_or(SharedLinks::all_ended);
        ended && self.all_shared().into_iter().all(|(rail, link)| self.get_mut(rail).poll_link_quiet(link))
    }

    /// Destroys every link of a group.
    pub(crate) fn destroy_all(&mut self) {
        for (rail, link) in self.all_shared() {
            self.get_mut(rail).destroy_link(link);
        }
    }

    fn all_shared(&self) -> Vec<(usize, LinkId)> {
        self.shared.iter().flat_map(SharedLinks::iter).collect()
    }

    /// Flushes posted operations to the network.
    #[inline]
    pub(crate) fn flush(&mut self) {
        self.first.flush();
        self.more.iter_mut().for_each(Rail::flush);
    }

    /// Polls one rail for completions.
    #[inline]
    pub(crate) fn poll(&mut self, at: usize, batch: &mut [Completion]) -> usize {
        self.get_mut(at).poll(batch)
    }
}
