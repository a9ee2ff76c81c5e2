//! A link: one queue pair towards one peer, what is posted on it, and the receives that wait.
//!
//! Writes with immediate take receives as sends do. One that such a write took is posted again where its completion is
//! told, in the same poll (`poll.rs`), and the user does not hear of it.

use std::time::{Duration, Instant};

use trunkline_fabric::{ControlRole, LinkId, OpStatus, RegisteredRegion};
use trunkline_sys::verbs::{Ece, SEND_SIGNALED, SendWr, Sge, wr_opcode};

use crate::device::PortAddress;
use crate::qp::VerbsQp;
use crate::qp_state;
use crate::queue::WorkQueue;
use crate::receives::PostedReceives;
use crate::stage::RequestChain;

/// Where a link is in its life.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum VerbsLinkStage {
    /// Takes receives.
    New,
    /// Full service.
    Up,
    /// Everything posted comes back flushed.
    Error,
}

/// What a completion is of, as its number says: the kind, the place of the link, and a position.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum WrIdKind {
    /// Work of the user, by its position in the queue.
    Work,
    /// A receive of the user, by its slot.
    Receive,
    /// What is posted last on a queue pair in error.
    Mark,
}

/// By then a queue pair that broke has told its peer why.
const PEER_IS_TOLD: Duration = Duration::from_millis(100);
/// Bits of a link's place in a number.
const PLACE_BITS: u32 = 24;
/// Most links of a rail.
pub(crate) const LINKS_MAX: u32 = 1 << PLACE_BITS;

impl WrIdKind {
    /// The number of a request.
    #[inline]
    pub(crate) fn to_wr_id(self, place: u32, position: u32) -> u64 {
        let kind = match self {
            Self::Work => 1,
            Self::Receive => 2,
            Self::Mark => 3,
        };
        kind << 56 | u64::from(place) << 32 | u64::from(position)
    }

    /// What a number says: the kind, the place of the link, and the position.
    #[inline]
    pub(crate) fn from_wr_id(id: u64) -> Option<(Self, u32, u32)> {
        let kind = match id >> 56 {
            1 => Self::Work,
            2 => Self::Receive,
            3 => Self::Mark,
            _ => return None,
        };
        Some((kind, (id >> 32) as u32 & (LINKS_MAX - 1), id as u32))
    }
}

/// Registered memory of a link for payload that the caller wants copied and the device does not take inline: the first bytes of
/// sends whose rest is registered, and payload beyond the device's inline room. It has a place for each operation in the queue, which
/// is free again once that has ended.
pub(crate) struct InlineStaging {
    pub(crate) region: RegisteredRegion<ControlRole>,
    /// As the device names it.
    pub(crate) base: Sge,
    /// Bytes of a place.
    pub(crate) stride: u64,
}

impl InlineStaging {
    /// Copies payload to place number `place`; where the device finds it.
    #[inline]
    pub(crate) fn copy_payload(&self, place: u32, one: &[u8], two: &[u8]) -> Sge {
        let at = u64::from(place) * self.stride;
        let memory = self.region.memory();
        // There is a place for each operation, and no payload is longer than one.
        let _ = memory.write(at, one);
        let _ = memory.write(at + one.len() as u64, two);
        Sge { addr: self.base.addr + at, length: (one.len() + two.len()) as u32, lkey: self.base.lkey }
    }
}

/// A link.
pub(crate) struct VerbsLink {
    pub(crate) id: LinkId,
    pub(crate) qp: VerbsQp,
    pub(crate) queue: WorkQueue,
    /// What waits to be given to the device.
    pub(crate) chain: RequestChain,
    /// The pipeline that it is on.
    pub(crate) pipeline: u32,
    /// First packet number.
    pub(crate) psn: u32,
    /// What its device may add to the standard; once it is connected, what it has agreed to.
    pub(crate) ece: Option<Ece>,
    pub(crate) state: VerbsLinkStage,
    /// Most operations at once, the flushes included.
    pub(crate) depth: u32,
    /// What an immediate will end as whose bytes have failed.
    pub(crate) half: Option<OpStatus>,
    /// Flushes that have not completed.
    pub(crate) flushes: u32,
    /// Those that the device has, or is about to get, or did not take.
    pub(crate) receives: PostedReceives,
    /// Receives that wait to be given to the device.
    pub(crate) receive_chain: RequestChain,
    /// When it broke by itself, until it is put into error from here too.
    pub(crate) broken: Option<Instant>,
    /// Told apart from earlier links of the same place.
    pub(crate) life: u64,
    /// Why the device was not given something or did not take it, until the first of that is given back.
    pub(crate) refusal: Option<OpStatus>,
    /// The address by which the peer reaches our port.
    pub(crate) at: PortAddress,
    /// Most bytes of a request that the device copies.
    pub(crate) inline: usize,
    // After the queue pair, which may still read it.
    pub(crate) staging: InlineStaging,
}

impl VerbsLink {
    /// Operations that have not ended.
    #[inline]
    pub(crate) fn outstanding_ops(&self) -> u32 {
        self.queue.operation_count() + self.flushes
    }

    /// Operations that can be posted.
    #[inline]
    pub(crate) fn free_credits(&self) -> u32 {
        match self.state {
            VerbsLinkStage::Up => self.depth.saturating_sub(self.outstanding_ops()),
            VerbsLinkStage::New | VerbsLinkStage::Error => 0,
        }
    }

    /// Whether nothing is owed.
    pub(crate) fn is_empty(&self) -> bool {
        self.outstanding_ops() == 0 && self.receives.len() == 0
    }

    /// Puts the queue pair into error; what the device has comes back as flushed.
    pub(crate) fn break_down(&mut self) {
        if self.state == VerbsLinkStage::Error {
            return;
        }
        self.tell_device();
        self.enter_error();
    }

    /// The same after a completion in error: the device has done it by itself, and may still have to tell the peer why. Moved
    /// from here, soft-RoCE would leave that out.
    pub(crate) fn has_broken(&mut self) {
        if self.state != VerbsLinkStage::Error {
            self.broken = Some(Instant::now());
            self.enter_error();
        }
    }

    /// Some of what the device has done was not to be told, and in error it tells nothing of that any more: one operation behind
    /// all others does.
    fn enter_error(&mut self) {
        let was_up = std::mem::replace(&mut self.state, VerbsLinkStage::Error) == VerbsLinkStage::Up;
        if !was_up {
            return;
        }
        let mut work = SendWr::ZERO;
        work.wr_id = WrIdKind::Mark.to_wr_id(self.id.0, self.queue.submitted_end());
        (work.opcode, work.send_flags) = (wr_opcode::RDMA_WRITE, SEND_SIGNALED);
        // A device that is lost refuses it.
        let _ = self.qp.post_send(&raw mut work);
    }

    /// Whether it is in error and nothing is owed any more. What was posted between the error and the word of it may not come
    /// back by itself, so after a while the queue pair is put into error from here.
    pub(crate) fn is_quiet(&mut self) -> bool {
        let told = self.broken.is_some_and(|since| since.elapsed() > PEER_IS_TOLD);
        if told && !self.is_empty() {
            self.tell_device();
        }
        self.state == VerbsLinkStage::Error && self.is_empty()
    }

    fn tell_device(&mut self) {
        self.broken = None;
        let (attr, mask) = qp_state::error_attrs();
        // A device that is lost refuses it.
        let _ = self.qp.modify(&attr, mask);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_say_what_they_are_of() {
        for kind in [WrIdKind::Work, WrIdKind::Receive, WrIdKind::Mark] {
            for (place, position) in [(0, 0), (LINKS_MAX - 1, u32::MAX), (5, 7)] {
                assert_eq!(
                    WrIdKind::from_wr_id(kind.to_wr_id(place, position)),
                    Some((kind, place, position))
                );
            }
        }
        assert_eq!(WrIdKind::from_wr_id(0), None);
        assert_eq!(WrIdKind::from_wr_id(4 << 56), None);
    }
}
