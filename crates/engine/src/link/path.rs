//! The links that a comm uses at this end, each on a rail of its group: one, or up to four over which messages are
//! spread. Held by the comm's lane; knows which links carry and which are being left, and nothing of messages.

use trunkline_fabric::{LinkId, Rail};
use trunkline_proto::link::LinkLife;
use trunkline_proto::wire::member::MemberId;
use trunkline_proto::wire::standing::Standing;

use crate::link::rails::Rails;

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
pub(crate) enum Proof {
    /// Nothing was sent over it.
    None,
    /// Something is under way.
    Posted,
    /// It has arrived.
    Done,
}

/// A link, and the rail it is on.
pub(crate) struct Path {
    /// Which of the group's.
    pub(crate) rail: usize,
    pub(crate) link: LinkId,
    /// Number of the NIC.
    pub(crate) nic: usize,
    /// How the link stands between the two ends; of a comm with one link only whether it is up.
    pub(crate) life: LinkLife,
    /// The link is in error, and what it still has to tell is awaited.
    pub(crate) leaving: Option<Leaving>,
    /// Of a link that is being made.
    pub(crate) proof: Proof,
}

/// A link on its way out.
#[derive(Debug)]
pub(crate) struct Leaving {
    /// The last flush was posted.
    pub(crate) flushing: bool,
    /// That flush has completed, or there is none.
    pub(crate) flushed: bool,
    /// What the peer said of it meanwhile.
    pub(crate) told: Option<Told>,
}

/// The peer's LINK_DOWN.
#[derive(Debug)]
pub(crate) struct Told {
    pub(crate) epoch: u32,
    pub(crate) next: u32,
    pub(crate) standing: Option<Standing>,
}

impl Path {
    /// Whether work may be posted.
    #[inline]
    pub(crate) fn carries(&self) -> bool {
        self.life.is_up() && self.leaving.is_none()
    }
}

/// All links of a comm at this end. The first is here and not behind a pointer, because most comms have only that one.
pub(crate) struct Paths {
    first: Path,
    more: Vec<Path>,
    /// The one for what is small: the first that carries.
    lead: usize,
}

impl Paths {
    /// These, of which the first has a link.
    pub(crate) fn new(first: Path, more: Vec<Path>) -> Self {
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
    pub(crate) fn lead(&self) -> usize {
        self.lead
    }

    /// The path for what is small.
    #[inline]
    pub(crate) fn leader(&self) -> &Path {
        self.get(self.lead)
    }

    /// One path. There are as many as [`Paths::len`] says.
    #[inline]
    pub(crate) fn get(&self, at: usize) -> &Path {
        if at == 0 { &self.first } else { &self.more[at - 1] }
    }

    /// The same, to use.
    #[inline]
    pub(crate) fn get_mut(&mut self, at: usize) -> &mut Path {
        if at == 0 { &mut self.first } else { &mut self.more[at - 1] }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Path> {
        std::iter::once(&self.first).chain(&self.more)
    }

    /// The path of a link.
    #[inline]
    pub(crate) fn of_link(&self, rail: usize, link: LinkId) -> Option<usize> {
        self.iter().position(|path| path.rail == rail && path.link == link)
    }

    /// Operations that can be posted on a path now.
    #[inline]
    pub(crate) fn credits(&self, rails: &Rails<impl Rail>, at: usize) -> u32 {
        let path = self.get(at);
        if path.carries() { rails.get(path.rail).credits(path.link) } else { 0 }
    }

    /// Operations that can be posted on the leading path now.
    #[inline]
    pub(crate) fn lead_credits(&self, rails: &Rails<impl Rail>) -> u32 {
        let path = self.leader();
        if self.are_many() && !path.carries() { 0 } else { rails.get(path.rail).credits(path.link) }
    }

    /// Which paths carry: bit 0 the first.
    pub(crate) fn carrying(&self) -> u8 {
        self.iter().enumerate().fold(0, |bits, (at, path)| bits | u8::from(path.carries()) << at)
    }

    /// Whether any path carries.
    pub(crate) fn any_carries(&self) -> bool {
        self.iter().any(Path::carries)
    }

    /// Whether all paths carry.
    #[inline]
    pub(crate) fn all_carry(&self) -> bool {
        self.iter().all(Path::carries)
    }

    /// Puts every link into error, for good.
    pub(crate) fn fail(&self, rails: &mut Rails<impl Rail>) {
        self.iter().for_each(|path| rails.fail(path.rail, path.link));
    }

    /// Lets every link rest; whether the memory of all posted receives may be emptied.
    pub(crate) fn rest(&self, rails: &mut Rails<impl Rail>) -> bool {
        let mut all = true;
        self.iter().for_each(|path| all &= rails.get_mut(path.rail).rest(path.link));
        all
    }

    /// Ends every link.
    pub(crate) fn destroy(&self, rails: &mut Rails<impl Rail>) {
        self.iter().for_each(|path| rails.quit(path.rail, path.link));
    }

    /// Begins to leave a path; false if that has begun before. `fences` is false for a planted bug.
    pub(crate) fn leave(
        &mut self,
        rails: &mut Rails<impl Rail>,
        at: usize,
        told: Option<Told>,
        fences: bool,
    ) -> bool {
        let path = self.get_mut(at);
        if path.leaving.is_some() {
            return false;
        }
        if fences {
            rails.fail(path.rail, path.link);
        }
        path.leaving = Some(Leaving { flushing: false, flushed: false, told });
        self.choose_lead();
        true
    }

    /// The first path that carries leads; without any, the one that did.
    pub(crate) fn choose_lead(&mut self) {
        let carries = self.iter().position(Path::carries);
        self.lead = carries.unwrap_or(self.lead);
    }
}
