//! A link: one queue pair towards one peer, its posted operations, and its posted receives. The rail calls it.
//!
//! Writes with immediate consume receives as sends do. A receive that such a write consumed is posted again in the poll that returns the
//! write's completion (`poll.rs`), without a completion for the user.

use std::time::{Duration, Instant};

use trunkline_fabric::{ControlRole, LinkId, OpStatus, RegisteredRegion};
use trunkline_sys::verbs::{Ece, SEND_SIGNALED, SendWr, Sge, wr_opcode};

use crate::device::PortAddress;
use crate::qp::VerbsQp;
use crate::qp_state;
use crate::queue::WorkQueue;
use crate::receives::PostedReceives;
use crate::stage::RequestChain;

/// State of a link.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum VerbsLinkStage {
    /// Not connected: accepts only receives.
    New,
    /// Connected.
    Up,
    /// In error: all posted operations complete as flushed.
    Error,
}

/// The kind of request that a completion belongs to. A request's number contains the kind, the place of the link, and a position.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum WrIdKind {
    /// Work of the user, by its position in the queue.
    Work,
    /// A receive of the user, by its slot.
    Receive,
    /// The request that is posted last on a queue pair in error.
    Mark,
}

/// Time within which a queue pair that failed by itself has sent its peer the reason (a NAK).
const PEER_IS_TOLD: Duration = Duration::from_millis(100);
/// Bits of a link's place in a request's number.
const PLACE_BITS: u32 = 24;
/// Most links of a rail, as its place has that many bits.
pub(crate) const LINKS_MAX: u32 = 1 << PLACE_BITS;

impl WrIdKind {
    /// Encodes the number of a request.
    #[inline]
    pub(crate) fn to_wr_id(self, place: u32, position: u32) -> u64 {
        let kind = match self {
            Self::Work => 1,
            Self::Receive => 2,
            Self::Mark => 3,
        };
        kind << 56 | u64::from(place) << 32 | u64::from(position)
    }

    /// Decodes a request's number into the kind, the place of the link, and the position.
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

/// Registered memory of a link for payload that must be copied and that the device does not take inline: the first bytes of
/// sends whose rest is registered, and payload beyond the device's inline room. It has a place for each operation in the queue, which
/// is free again once that operation has ended.
pub(crate) struct InlineStaging {
    pub(crate) region: RegisteredRegion<ControlRole>,
    /// Its address and key for the device.
    pub(crate) base: Sge,
    /// Bytes of a place.
    pub(crate) stride: u64,
}

impl InlineStaging {
    /// Copies payload to place number `place`; returns its address for the device.
    #[inline]
    pub(crate) fn copy_payload(&self, place: u32, one: &[u8], two: &[u8]) -> Sge {
        let at = u64::from(place) * self.stride;
        let memory = self.region.memory();
        // Cannot fail: there is a place for each operation, and no payload is longer than a place.
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
    /// Requests that are not submitted yet.
    pub(crate) chain: RequestChain,
    /// Its pipeline.
    pub(crate) pipeline: u32,
    /// Number of the first packet it sends.
    pub(crate) psn: u32,
    /// The extensions (ECE) that its device offers; once connected, those that it has agreed to.
    pub(crate) ece: Option<Ece>,
    pub(crate) state: VerbsLinkStage,
    /// Most operations at once, including flushes.
    pub(crate) depth: u32,
    /// The status for the next immediate, if the bytes of its write have failed.
    pub(crate) half: Option<OpStatus>,
    /// Flushes that have not completed.
    pub(crate) flushes: u32,
    /// Receives that the device has, will get, or has refused.
    pub(crate) receives: PostedReceives,
    /// Receives that are not submitted yet.
    pub(crate) receive_chain: RequestChain,
    /// Time when it failed by itself, until this side puts it into error, too.
    pub(crate) broken: Option<Instant>,
    /// Distinguishes it from earlier links of the same place.
    pub(crate) life: u64,
    /// Why the device was not given a request or refused it; reported with the first such request.
    pub(crate) refusal: Option<OpStatus>,
    /// The address at which the peer reaches this side's port.
    pub(crate) at: PortAddress,
    /// Most bytes of a request that the device copies (inline data).
    pub(crate) inline: usize,
    // Dropped after the queue pair, which may still read it.
    pub(crate) staging: InlineStaging,
}

impl VerbsLink {
    /// Returns the number of operations that have not ended.
    #[inline]
    pub(crate) fn outstanding_ops(&self) -> u32 {
        self.queue.operation_count() + self.flushes
    }

    /// Returns the number of operations that can be posted.
    #[inline]
    pub(crate) fn free_credits(&self) -> u32 {
        match self.state {
            VerbsLinkStage::Up => self.depth.saturating_sub(self.outstanding_ops()),
            VerbsLinkStage::New | VerbsLinkStage::Error => 0,
        }
    }

    /// Whether no completion is owed.
    pub(crate) fn is_empty(&self) -> bool {
        self.outstanding_ops() == 0 && self.receives.len() == 0
    }

    /// Puts the queue pair into error; the device flushes its requests.
    pub(crate) fn break_down(&mut self) {
        if self.state == VerbsLinkStage::Error {
            return;
        }
        self.tell_device();
        self.enter_error();
    }

    /// Records that a completion was in error: the device has put the queue pair into error by itself, and may still have to send the peer the reason.
    /// Soft-RoCE drops that NAK if this side also moves the queue pair to ERR.
    pub(crate) fn has_broken(&mut self) {
        if self.state != VerbsLinkStage::Error {
            self.broken = Some(Instant::now());
            self.enter_error();
        }
    }

    /// Enters the error state and posts a mark behind all requests. In error a device completes every request as flushed, but not those that it
    /// executed unsignalled before; the mark's completion ends them.
    fn enter_error(&mut self) {
        let was_up = std::mem::replace(&mut self.state, VerbsLinkStage::Error) == VerbsLinkStage::Up;
        if !was_up {
            return;
        }
        let mut work = SendWr::ZERO;
        work.wr_id = WrIdKind::Mark.to_wr_id(self.id.0, self.queue.submitted_end());
        (work.opcode, work.send_flags) = (wr_opcode::RDMA_WRITE, SEND_SIGNALED);
        // Ignored: only a lost device refuses it.
        let _ = self.qp.post_send(&raw mut work);
    }

    /// Whether it is in error and owes no completion. A request that was posted between the error and its completion may never be
    /// flushed by the device, so after [`PEER_IS_TOLD`] this side puts the queue pair into error.
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
        // Ignored: only a lost device refuses it.
        let _ = self.qp.modify(&attr, mask);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_numbers_round_trip() {
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
