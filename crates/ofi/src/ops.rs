//! The operations of a link in flight, each in a slot of the rail's queue; their maximum number, and the order in which they are returned when
//! the link fails. Nothing here calls libfabric.

use trunkline_fabric::{CompletionKind, LocalKey};
use trunkline_mem::OutOfMemory;
use trunkline_proto::reserve::{try_collect, try_filled};

/// The kind of an operation.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum LinkOpKind {
    /// Sends, writes and reads.
    Work,
    /// A proof that earlier operations have arrived, with the number of its parts in flight.
    Proof(u8),
    /// The first operation to the peer, whose completion shows that the link is up.
    Hello,
    /// A receive.
    Receive,
    /// A receive that is matched by its tag.
    Paired,
}

impl LinkOpKind {
    /// Returns whether it is a receive.
    pub(crate) fn is_receive(self) -> bool {
        matches!(self, Self::Receive | Self::Paired)
    }
}

/// An operation in flight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LinkOpEntry {
    pub(crate) wr_id: u64,
    pub(crate) kind: LinkOpKind,
    /// Whether its owner requested a completion for success.
    pub(crate) told: bool,
    /// The region that it uses, or [`NO_REGION`].
    pub(crate) region: LocalKey,
    /// Its sequence number among all operations of its link.
    seq: u64,
    live: bool,
}

/// The key of operations that use no region.
pub(crate) const NO_REGION: LocalKey = LocalKey(0);

const FREE: LinkOpEntry =
    LinkOpEntry { wr_id: 0, kind: LinkOpKind::Work, told: false, region: NO_REGION, seq: 0, live: false };

/// Slots of a link in addition to those of its owner: for the hello, and the second part of a proof.
const OWN: u32 = 1;

/// The operations of one link.
pub(crate) struct LinkOps {
    all: Box<[LinkOpEntry]>,
    /// Free places for work, then for receives.
    free: [Vec<u32>; 2],
    /// Number of places for work.
    works: u32,
    seq: u64,
}

impl LinkOps {
    /// Returns the number of slots that a link uses.
    pub(crate) const fn slot_span(depth: u32, receives: u32) -> u32 {
        depth + OWN + receives
    }

    /// Allocates places for that much work and that many receives.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub(crate) fn new(depth: u32, receives: u32) -> Result<Self, OutOfMemory> {
        let works = depth + OWN;
        let free = [try_collect((0..works).rev())?, try_collect((works..works + receives).rev())?];
        let all = try_filled(FREE, Self::slot_span(depth, receives) as usize)?;
        Ok(Self { all, free, works, seq: 0 })
    }

    /// Returns how much work can be posted.
    #[inline]
    pub(crate) fn free_credits(&self) -> u32 {
        // The owner must leave a place for the operations of the link itself.
        (self.free[0].len() as u32).saturating_sub(OWN)
    }

    /// Returns how much work is in flight.
    #[inline]
    pub(crate) fn outstanding_work(&self) -> u32 {
        self.works - self.free[0].len() as u32
    }

    /// Returns how many receives can be posted.
    pub(crate) fn receive_credits(&self) -> u32 {
        self.free[1].len() as u32
    }

    /// Begins an operation; returns its place.
    #[inline]
    pub(crate) fn begin_op(
        &mut self,
        wr_id: u64,
        kind: LinkOpKind,
        told: bool,
        region: LocalKey,
    ) -> Option<u32> {
        // Work and receives have separate places, so that receives cannot use up the room for sends.
        let place = self.free[usize::from(kind.is_receive())].pop()?;
        self.seq += 1;
        self.all[place as usize] = LinkOpEntry { wr_id, kind, told, region, seq: self.seq, live: true };
        Some(place)
    }

    /// Returns an operation in flight.
    #[inline]
    pub(crate) fn get_mut(&mut self, place: u32) -> Option<&mut LinkOpEntry> {
        self.all.get_mut(place as usize).filter(|op| op.live)
    }

    /// Ends an operation and returns it.
    #[inline]
    pub(crate) fn end_op(&mut self, place: u32) -> Option<LinkOpEntry> {
        let op = self.all.get_mut(place as usize).filter(|op| op.live)?;
        op.live = false;
        let ended = *op;
        self.free[usize::from(ended.kind.is_receive())].push(place);
        Some(ended)
    }

    /// Returns the place of a matched receive with that id.
    pub(crate) fn find_paired(&self, wr_id: u64) -> Option<u32> {
        let fits = |op: &LinkOpEntry| op.live && op.kind == LinkOpKind::Paired && op.wr_id == wr_id;
        self.all.iter().position(fits).map(|place| place as u32)
    }

    /// Returns whether no work in flight is older than the work at that place.
    pub(crate) fn is_oldest_work(&self, place: u32) -> bool {
        let Some(op) = self.all.get(place as usize).filter(|op| op.live) else { return false };
        !self.all.iter().any(|other| other.live && !other.kind.is_receive() && other.seq < op.seq)
    }

    /// Returns all operations in flight, by place.
    pub(crate) fn live_ops(&self) -> impl Iterator<Item = (u32, &LinkOpEntry)> {
        self.all.iter().enumerate().filter(|(_, op)| op.live).map(|(place, op)| (place as u32, op))
    }

    /// Ends all operations, in the order in which they were begun.
    pub(crate) fn end_all(&mut self) -> Vec<LinkOpEntry> {
        let mut live: Vec<u32> =
            (0..self.all.len() as u32).filter(|&at| self.all[at as usize].live).collect();
        // Places are reused in any order, so only the sequence number shows the order of posting, which the contract requires.
        live.sort_by_key(|&at| self.all[at as usize].seq);
        live.into_iter().filter_map(|at| self.end_op(at)).collect()
    }
}

impl LinkOpEntry {
    /// Returns the kind of its completion, if its owner receives one.
    pub(crate) fn completion_kind(&self) -> Option<CompletionKind> {
        match self.kind {
            LinkOpKind::Work | LinkOpKind::Proof(_) => Some(CompletionKind::Posted),
            LinkOpKind::Receive | LinkOpKind::Paired => Some(CompletionKind::Received),
            LinkOpKind::Hello => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_assigned_and_freed() {
        let mut ops = LinkOps::new(2, 1).unwrap();
        assert_eq!((ops.free_credits(), ops.receive_credits(), LinkOps::slot_span(2, 1)), (2, 1, 4));
        let one = ops.begin_op(1, LinkOpKind::Work, true, NO_REGION).unwrap();
        let two = ops.begin_op(2, LinkOpKind::Work, true, NO_REGION).unwrap();
        let receive = ops.begin_op(3, LinkOpKind::Receive, true, NO_REGION).unwrap();
        assert_eq!((ops.free_credits(), ops.receive_credits()), (0, 0));
        assert_eq!(ops.begin_op(4, LinkOpKind::Receive, true, NO_REGION), None);
        assert!(one != two && receive == 3);
        assert_eq!(ops.end_op(one).unwrap().wr_id, 1);
        assert!(ops.end_op(one).is_none() && ops.get_mut(one).is_none());
        assert_eq!(ops.free_credits(), 1);
    }

    #[test]
    fn operations_end_in_the_order_of_posting() {
        let mut ops = LinkOps::new(4, 4).unwrap();
        let begun: Vec<_> =
            (0..8).map(|at| (at, if at % 2 == 0 { LinkOpKind::Work } else { LinkOpKind::Paired })).collect();
        for &(wr_id, kind) in &begun {
            ops.begin_op(wr_id, kind, true, NO_REGION).unwrap();
        }
        let place = ops.find_paired(3).unwrap();
        assert!(ops.find_paired(2).is_none());
        ops.end_op(place).unwrap();
        ops.begin_op(9, LinkOpKind::Receive, true, NO_REGION).unwrap();
        let back: Vec<_> = ops.end_all().iter().map(|op| op.wr_id).collect();
        assert_eq!(back, [0, 1, 2, 4, 5, 6, 7, 9]);
        assert_eq!((ops.free_credits(), ops.receive_credits()), (4, 4));
    }
}
