//! The exporter's state of one importing process: the exports announced to it, and the names that it has to retire.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::limits::IPC_PASSED_OVER_MAX;
use crate::reserve::{OutOfMemory, try_deque, try_filled, try_grow};
use crate::slots::SlotId;

/// An importing process, from its arrival to its death or its BYE. A process that returns gets a new id.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct ImportingPeerId(pub(in crate::ipc) SlotId);

impl ImportingPeerId {
    /// Returns the slot by which the caller may store its own data.
    #[must_use]
    pub const fn slot(self) -> u32 {
        self.0.slot
    }
}

/// The state of an export at a peer.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub(super) enum HoldPhase {
    /// It was not announced, or has been released.
    #[default]
    No,
    /// It was announced.
    Announced,
    /// It was announced, and is to be retired once no message uses it.
    Draining,
    /// It is to be retired, and the RETIRE is not sent yet.
    Due,
    /// The RETIRE was sent.
    Told,
}

/// An export at a peer.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub(super) struct PeerExport {
    pub(super) held: HoldPhase,
    /// Consecutive failures of the peer to map it.
    failures: u8,
    /// How many further messages are sent another way.
    passed_over: u16,
    /// Messages to that peer that use it.
    pub(super) pins: u32,
}

/// A peer.
#[derive(Clone, Debug, Hash)]
pub(super) struct ImportingPeer {
    /// Its exports, by slot.
    pub(super) toward: Vec<PeerExport>,
    /// Slots of exports that it has to be requested to retire.
    pub(super) due: VecDeque<u32>,
}

impl PeerExport {
    /// Returns whether the next message is sent another way because the peer could not map this; counts that message.
    pub(super) const fn is_passed_over(&mut self) -> bool {
        if self.passed_over == 0 {
            return false;
        }
        self.passed_over -= 1;
        true
    }

    /// Records that the peer could not map it.
    pub(super) fn on_map_failed(&mut self) {
        self.failures = self.failures.saturating_add(1);
        let run = 1_u16.checked_shl(self.failures.into()).unwrap_or(u16::MAX);
        self.passed_over = run.min(IPC_PASSED_OVER_MAX);
    }

    /// Records that the peer has mapped it.
    pub(super) const fn on_map_succeeded(&mut self) {
        self.failures = 0;
    }
}

impl ImportingPeer {
    /// Creates a peer without announcements, with room for `exports` exports.
    pub(super) fn new(exports: usize) -> Result<Self, OutOfMemory> {
        Ok(Self { toward: try_filled(PeerExport::default(), exports)?.into_vec(), due: try_deque(exports)? })
    }

    /// Grows its tables to `exports` exports.
    pub(super) fn grow_exports(&mut self, exports: usize) -> Result<(), OutOfMemory> {
        if exports > self.toward.len() {
            let bytes = exports.saturating_mul(size_of::<u32>());
            let more = exports.saturating_sub(self.due.len());
            self.due.try_reserve(more).map_err(|_| OutOfMemory { bytes })?;
            let more = exports - self.toward.len();
            try_grow(&mut self.toward, more)?;
            self.toward.resize(exports, PeerExport::default());
        }
        Ok(())
    }

    /// Queues the retirement of an export that no message to this peer uses.
    pub(super) fn queue_retire(&mut self, slot: u32) {
        if let Some(toward) = self.toward.get_mut(slot as usize) {
            toward.held = HoldPhase::Due;
            self.due.push_back(slot);
        }
    }
}
