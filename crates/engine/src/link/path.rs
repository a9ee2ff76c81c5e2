//! The links that a comm uses at this end, each on a rail of its group: one, or up to four over which messages are spread. Held
//! by the comm's lane; knows which links are up and which are being left, and nothing of messages.

use trunkline_fabric::{LinkId, Rail};
use trunkline_proto::link::LinkLife;
use trunkline_proto::wire::delivery_report::DeliveryReport;
use trunkline_proto::wire::member::MemberId;

use crate::link::rails::GroupRails;

/// No link: the value before the first link of a rail is made.
pub(crate) const NO_LINK: LinkId = LinkId(u32::MAX);

/// The bits of a `wr_id` below those that name a member.
pub(crate) const LOW_MASK: u64 = (1 << MemberId::LOW_BITS) - 1;

/// `wr_id` of the flush that ends a link which is left. It is the largest value but one, because requests count from 0.
pub(crate) const LAST_FLUSH: u64 = LOW_MASK - 1;

/// `wr_id` of the operation that proves that a new link carries.
pub(crate) const PROBE: u64 = LOW_MASK - 2;

/// Whether a new link is proven to work. On some networks, the state "up" proves that; on others only an arrived operation does.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum LinkProbe {
    /// Nothing was sent over it.
    None,
    /// A probe is in flight.
    Posted,
    /// The probe has arrived.
    Done,
}

/// A link, and the rail it is on.
pub(crate) struct LinkPath {
    /// The index in the group.
    pub(crate) rail: usize,
    pub(crate) link: LinkId,
    /// Number of the NIC.
    pub(crate) nic: usize,
    /// The state of the link between the two ends; for a comm with one link only whether it is up.
    pub(crate) life: LinkLife,
    /// The link is in error, and its outstanding completions are awaited.
    pub(crate) leaving: Option<PathDrain>,
    /// The probe of a link that is being made.
    pub(crate) proof: LinkProbe,
}

/// A link that is being left.
#[derive(Debug)]
pub(crate) struct PathDrain {
    /// The last flush was posted.
    pub(crate) flushing: bool,
    /// That flush has completed, or there is none.
    pub(crate) flushed: bool,
    /// The peer's report of it that has arrived meanwhile.
    pub(crate) told: Option<LinkDownReport>,
}

/// The peer's LINK_DOWN.
#[derive(Debug)]
pub(crate) struct LinkDownReport {
    pub(crate) epoch: u32,
    pub(crate) next: u32,
    pub(crate) standing: Option<DeliveryReport>,
}

impl LinkPath {
    /// Returns whether operations may be posted.
    #[inline]
    pub(crate) fn is_carrying(&self) -> bool {
        self.life.is_up() && self.leaving.is_none()
    }
}

/// All links of a comm at this end. The first is here and not behind a pointer, because most comms have only that one.
pub(crate) struct CommPaths {
    first: LinkPath,
    more: Vec<LinkPath>,
    /// The path for small messages and records: the first that is up.
    lead: usize,
}

impl CommPaths {
    /// Creates the paths; the first has a link.
    pub(crate) fn new(first: LinkPath, more: Vec<LinkPath>) -> Self {
        Self { first, more, lead: 0 }
    }

    /// Returns the number of paths.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        1 + self.more.len()
    }

    /// Returns whether messages are spread over several paths.
    #[inline]
    pub(crate) fn are_many(&self) -> bool {
        !self.more.is_empty()
    }

    /// Returns the index of the path for small messages and records.
    #[inline]
    pub(crate) fn lead_index(&self) -> usize {
        self.lead
    }

    /// Returns the path for small messages and records.
    #[inline]
    pub(crate) fn lead_path(&self) -> &LinkPath {
        self.get(self.lead)
    }

    /// Returns a path; `at` is below [`CommPaths::len`].
    #[inline]
    pub(crate) fn get(&self, at: usize) -> &LinkPath {
        if at == 0 { &self.first } else { &self.more[at - 1] }
    }

    /// Returns a path for changes.
    #[inline]
    pub(crate) fn get_mut(&mut self, at: usize) -> &mut LinkPath {
        if at == 0 { &mut self.first } else { &mut self.more[at - 1] }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &LinkPath> {
        std::iter::once(&self.first).chain(&self.more)
    }

    /// Returns the path of a link.
    #[inline]
    pub(crate) fn of_link(&self, rail: usize, link: LinkId) -> Option<usize> {
        self.iter().position(|path| path.rail == rail && path.link == link)
    }

    /// Returns the number of operations that can be posted on a path now.
    #[inline]
    pub(crate) fn path_credits(&self, rails: &GroupRails<impl Rail>, at: usize) -> u32 {
        let path = self.get(at);
        // A path that is down has no credit, so callers need no extra check.
        if path.is_carrying() { rails.get(path.rail).post_credits(path.link) } else { 0 }
    }

    /// Returns the number of operations that can be posted on the leading path now.
    #[inline]
    pub(crate) fn lead_credits(&self, rails: &GroupRails<impl Rail>) -> u32 {
        let path = self.lead_path();
        // With one path, the rail's own credit counts, because it is also used before the link is
        // up.
        if self.are_many() && !path.is_carrying() { 0 } else { rails.get(path.rail).post_credits(path.link) }
    }

    /// Returns the set of paths that are up, as bits: bit 0 is the first.
    pub(crate) fn carrying_mask(&self) -> u8 {
        self.iter().enumerate().fold(0, |bits, (at, path)| bits | u8::from(path.is_carrying()) << at)
    }

    /// Returns whether any path is up.
    pub(crate) fn any_carries(&self) -> bool {
        self.iter().any(LinkPath::is_carrying)
    }

    /// Returns whether all paths are up.
    #[inline]
    pub(crate) fn all_carry(&self) -> bool {
        self.iter().all(LinkPath::is_carrying)
    }

    /// Puts every link into error, permanently.
    pub(crate) fn fail_links(&self, rails: &mut GroupRails<impl Rail>) {
        // All links, because a comm that is failed must not receive on any of them.
        self.iter().for_each(|path| rails.fail_link(path.rail, path.link));
    }

    /// Trims the idle memory of every link. Returns whether the memory of all posted receives may be released.
    pub(crate) fn trim_idle_memory(&self, rails: &mut GroupRails<impl Rail>) -> bool {
        let mut all = true;
        self.iter().for_each(|path| all &= rails.get_mut(path.rail).trim_idle_memory(path.link));
        all
    }

    /// Releases every link.
    pub(crate) fn release_links(&self, rails: &mut GroupRails<impl Rail>) {
        self.iter().for_each(|path| rails.release_link(path.rail, path.link));
    }

    /// Starts to leave a path; false if that was started before.
    pub(crate) fn start_drain(
        &mut self,
        rails: &mut GroupRails<impl Rail>,
        at: usize,
        told: Option<LinkDownReport>,
    ) -> bool {
        let path = self.get_mut(at);
        // Both ends may leave a path at the same time, and a second call must not reset the first.
        if path.leaving.is_some() {
            return false;
        }
        // In error first, because nothing may land while the state of the path is being compared.
        rails.fail_link(path.rail, path.link);
        path.leaving = Some(PathDrain { flushing: false, flushed: false, told });
        // The lead is chosen again at once, since records must not use this path any more.
        self.choose_lead();
        true
    }

    /// Makes the first path that is up the lead; without any, keeps the old one.
    pub(crate) fn choose_lead(&mut self) {
        let carries = self.iter().position(LinkPath::is_carrying);
        self.lead = carries.unwrap_or(self.lead);
    }
}
