//! The links that a comm uses at this end, each on a rail of its group: one, or up to four over which messages are
//! spread. Held by the comm's lane; knows which links carry and which are being left, and nothing of messages.

use trunkline_fabric::{LinkId, Rail};
use trunkline_proto::link::LinkLife;
use trunkline_proto::wire::delivery_report::DeliveryReport;
use trunkline_proto::wire::member::MemberId;

use crate::link::rails::GroupRails;

/// No link: what a rail has until its first one is made.
pub(crate) const NO_LINK: LinkId = LinkId(u32::MAX);

/// The bits of a `wr_id` below those that name a member.
pub(crate) const LOW_MASK: u64 = (1 << MemberId::LOW_BITS) - 1;

/// `wr_id` of the flush that ends a link which is left.
pub(crate) const LAST_FLUSH: u64 = LOW_MASK - 1;

/// `wr_id` of the operation that proves that a new link carries.
pub(crate) const PROBE: u64 = LOW_MASK - 2;

/// Whether a new link is proven to carry: that it is up tells that on some networks only.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum LinkProbe {
    /// Nothing was sent over it.
    None,
    /// Something is under way.
    Posted,
    /// It has arrived.
    Done,
}

/// A link, and the rail it is on.
pub(crate) struct LinkPath {
    /// Which of the group's.
    pub(crate) rail: usize,
    pub(crate) link: LinkId,
    /// Number of the NIC.
    pub(crate) nic: usize,
    /// How the link stands between the two ends; of a comm with one link only whether it is up.
    pub(crate) life: LinkLife,
    /// The link is in error, and what it still has to tell is awaited.
    pub(crate) leaving: Option<PathDrain>,
    /// Of a link that is being made.
    pub(crate) proof: LinkProbe,
}

/// A link on its way out.
#[derive(Debug)]
pub(crate) struct PathDrain {
    /// The last flush was posted.
    pub(crate) flushing: bool,
    /// That flush has completed, or there is none.
    pub(crate) flushed: bool,
    /// What the peer said of it meanwhile.
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
    /// Whether work may be posted.
    #[inline]
    pub(crate) fn is_carrying(&self) -> bool {
        self.life.is_up() && self.leaving.is_none()
    }
}

/// All links of a comm at this end. The first is here and not behind a pointer, because most comms have only that one.
pub(crate) struct CommPaths {
    first: LinkPath,
    more: Vec<LinkPath>,
    /// The one for what is small: the first that carries.
    lead: usize,
}

impl CommPaths {
    /// These, of which the first has a link.
    pub(crate) fn new(first: LinkPath, more: Vec<LinkPath>) -> Self {
        Self { first, more, lead: 0 }
    }

    /// How many.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        1 + self.more.len()
    }

    /// Whether messages are spread.
    #[inline]
    pub(crate) fn are_many(&self) -> bool {
        !self.more.is_empty()
    }

    /// The number of the path for what is small.
    #[inline]
    pub(crate) fn lead_index(&self) -> usize {
        self.lead
    }

    /// The path for what is small.
    #[inline]
    pub(crate) fn lead_path(&self) -> &LinkPath {
        self.get(self.lead)
    }

    /// One path. There are as many as [`CommPaths::len`] says.
    #[inline]
    pub(crate) fn get(&self, at: usize) -> &LinkPath {
        if at == 0 { &self.first } else { &self.more[at - 1] }
    }

    /// The same, to use.
    #[inline]
    pub(crate) fn get_mut(&mut self, at: usize) -> &mut LinkPath {
        if at == 0 { &mut self.first } else { &mut self.more[at - 1] }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &LinkPath> {
        std::iter::once(&self.first).chain(&self.more)
    }

    /// The path of a link.
    #[inline]
    pub(crate) fn of_link(&self, rail: usize, link: LinkId) -> Option<usize> {
        self.iter().position(|path| path.rail == rail && path.link == link)
    }

    /// Operations that can be posted on a path now.
    #[inline]
    pub(crate) fn path_credits(&self, rails: &GroupRails<impl Rail>, at: usize) -> u32 {
        let path = self.get(at);
        if path.is_carrying() { rails.get(path.rail).post_credits(path.link) } else { 0 }
    }

    /// Operations that can be posted on the leading path now.
    #[inline]
    pub(crate) fn lead_credits(&self, rails: &GroupRails<impl Rail>) -> u32 {
        let path = self.lead_path();
        if self.are_many() && !path.is_carrying() { 0 } else { rails.get(path.rail).post_credits(path.link) }
    }

    /// Which paths carry: bit 0 the first.
    pub(crate) fn carrying_mask(&self) -> u8 {
        self.iter().enumerate().fold(0, |bits, (at, path)| bits | u8::from(path.is_carrying()) << at)
    }

    /// Whether any path carries.
    pub(crate) fn any_carries(&self) -> bool {
        self.iter().any(LinkPath::is_carrying)
    }

    /// Whether all paths carry.
    #[inline]
    pub(crate) fn all_carry(&self) -> bool {
        self.iter().all(LinkPath::is_carrying)
    }

    /// Puts every link into error, for good.
    pub(crate) fn fail_links(&self, rails: &mut GroupRails<impl Rail>) {
        self.iter().for_each(|path| rails.fail_link(path.rail, path.link));
    }

    /// Lets every link rest; whether the memory of all posted receives may be emptied.
    pub(crate) fn trim_idle_memory(&self, rails: &mut GroupRails<impl Rail>) -> bool {
        let mut all = true;
        self.iter().for_each(|path| all &= rails.get_mut(path.rail).trim_idle_memory(path.link));
        all
    }

    /// Ends every link.
    pub(crate) fn release_links(&self, rails: &mut GroupRails<impl Rail>) {
        self.iter().for_each(|path| rails.release_link(path.rail, path.link));
    }

    /// Begins to leave a path; false if that has begun before.
    pub(crate) fn start_drain(
        &mut self,
        rails: &mut GroupRails<impl Rail>,
        at: usize,
        told: Option<LinkDownReport>,
    ) -> bool {
        let path = self.get_mut(at);
        if path.leaving.is_some() {
            return false;
        }
        rails.fail_link(path.rail, path.link);
        path.leaving = Some(PathDrain { flushing: false, flushed: false, told });
        self.choose_lead();
        true
    }

    /// The first path that carries leads; without any, the one that did.
    pub(crate) fn choose_lead(&mut self) {
        let carries = self.iter().position(LinkPath::is_carrying);
        self.lead = carries.unwrap_or(self.lead);
    }
}
