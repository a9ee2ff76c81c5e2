//! A link: two queue pairs towards one peer, what is posted on them, and the receives that wait.
//!
//! Sends go over one and meet the user's receives there; everything else goes over the other, whose receives are spare
//! ones without memory, which writes with immediate take. So such a write never takes a receive of the user, and a send
//! without one waits, as the contract has it.

use std::collections::VecDeque;

use trunkline_fabric::{Ctrl, LinkId, Mr, Status};
use trunkline_sys::verbs::Sge;

use crate::error::Planted;
use crate::ladder;
use crate::qp::Qp;
use crate::queue::Queue;
use crate::stage::Chain;

/// Where a link is in its life.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum State {
    /// Takes receives.
    New,
    /// Full service.
    Up,
    /// Everything posted comes back flushed.
    Error,
}

/// Which of the two queue pairs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Which {
    /// For all that needs no receive of the user.
    Data,
    /// For sends.
    Message,
}

/// What a completion is of, as its number says: the kind, the place of the link, and a position.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Kind {
    /// Work on one of the queue pairs.
    Work(Which),
    /// A receive of the user.
    Receive,
    /// A spare receive.
    Spare,
}

/// Bits of a link's place in a number.
const PLACE_BITS: u32 = 24;
/// Most links of a rail.
pub(crate) const LINKS_MAX: u32 = 1 << PLACE_BITS;

impl Kind {
    /// The number of a request.
    #[inline]
    pub(crate) fn id(self, place: u32, position: u32) -> u64 {
        let kind = match self {
            Self::Work(Which::Data) => 1,
            Self::Work(Which::Message) => 2,
            Self::Receive => 3,
            Self::Spare => 4,
        };
        kind << 56 | u64::from(place) << 32 | u64::from(position)
    }

    /// What a number says: the kind, the place of the link, and the position.
    #[inline]
    pub(crate) fn of(id: u64) -> Option<(Self, u32, u32)> {
        let kind = match id >> 56 {
            1 => Self::Work(Which::Data),
            2 => Self::Work(Which::Message),
            3 => Self::Receive,
            4 => Self::Spare,
            _ => return None,
        };
        Some((kind, (id >> 32) as u32 & (LINKS_MAX - 1), id as u32))
    }
}

/// One of the queue pairs, with what is posted on it.
pub(crate) struct Side {
    pub(crate) qp: Qp,
    pub(crate) queue: Queue,
    /// What waits to be given to the device.
    pub(crate) chain: Chain,
    /// First packet number.
    pub(crate) psn: u32,
}

/// Memory for the first bytes of sends whose rest is registered, a place for each operation.
pub(crate) struct Heads {
    pub(crate) region: Mr<Ctrl>,
    /// As the device names it.
    pub(crate) base: Sge,
}

/// Receives without memory, for writes with immediate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spares {
    /// How many there are to be.
    pub(crate) all: u32,
    /// How many the device has.
    pub(crate) posted: u32,
}

impl Spares {
    /// Whether enough were taken to post them again.
    #[inline]
    pub(crate) fn are_few(&self) -> bool {
        self.posted <= self.all / 2
    }
}

/// A link.
pub(crate) struct Link {
    pub(crate) id: LinkId,
    pub(crate) data: Side,
    pub(crate) message: Side,
    pub(crate) state: State,
    /// Most operations at once, of both queue pairs and the flushes.
    pub(crate) depth: u32,
    /// Flushes that have not completed.
    pub(crate) flushes: u32,
    /// Numbers of the receives that the device has, or is about to get, oldest first.
    pub(crate) receives: VecDeque<u64>,
    /// Most of them.
    pub(crate) receives_max: usize,
    /// Receives that wait to be given to the device.
    pub(crate) receive_chain: Chain,
    pub(crate) spares: Spares,
    /// Where the last operation went, and a no-operation goes.
    pub(crate) last: Which,
    /// Told apart from earlier links of the same place.
    pub(crate) life: u64,
    /// Why the device was not given something or did not take it, until the first of that is given back.
    pub(crate) refusal: Option<Status>,
    /// Receives that the device did not take; they are given back last.
    pub(crate) untaken: u32,
    pub(crate) keeps_other_pair: Planted,
    // After the queue pairs, which may still read it.
    pub(crate) heads: Heads,
}

impl Link {
    #[inline]
    pub(crate) fn side(&mut self, which: Which) -> &mut Side {
        match which {
            Which::Data => &mut self.data,
            Which::Message => &mut self.message,
        }
    }

    /// Operations that have not ended.
    #[inline]
    pub(crate) fn used(&self) -> u32 {
        self.data.queue.len() + self.message.queue.len() + self.flushes
    }

    /// Operations that can be posted.
    #[inline]
    pub(crate) fn credits(&self) -> u32 {
        match self.state {
            State::Up => self.depth.saturating_sub(self.used()),
            State::New | State::Error => 0,
        }
    }

    /// Whether nothing is owed.
    pub(crate) fn is_empty(&self) -> bool {
        self.used() == 0 && self.receives.is_empty() && self.spares.posted == 0
    }

    /// Puts both queue pairs into error; what the device has comes back as flushed.
    pub(crate) fn break_down(&mut self) {
        self.break_after(None);
    }

    /// The same after a completion in error on one of them. That one goes into error by itself, and may still have to tell
    /// its peer why: moved from here, soft-RoCE would leave that out.
    pub(crate) fn break_after(&mut self, failed: Option<Which>) {
        if self.state == State::Error {
            return;
        }
        self.state = State::Error;
        let (attr, mask) = ladder::error();
        for (which, qp) in [(Which::Data, &self.data.qp), (Which::Message, &self.message.qp)] {
            if failed == Some(which) || (failed.is_some() && self.keeps_other_pair.is_on()) {
                continue;
            }
            // A device that is lost refuses it.
            let _ = qp.modify(&attr, mask);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_say_what_they_are_of() {
        let kinds = [Kind::Work(Which::Data), Kind::Work(Which::Message), Kind::Receive, Kind::Spare];
        for kind in kinds {
            for (place, position) in [(0, 0), (LINKS_MAX - 1, u32::MAX), (5, 7)] {
                assert_eq!(Kind::of(kind.id(place, position)), Some((kind, place, position)));
            }
        }
        assert_eq!(Kind::of(0), None);
        assert_eq!(Kind::of(6 << 56), None);
    }
}
