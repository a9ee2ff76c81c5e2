//! What an exporter knows of one importing process: which exports it was told of, and what it is still to be told.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::limits::IPC_PASSED_OVER_MAX;
use crate::reserve::{OutOfMemory, try_deque, try_filled, try_grow};
use crate::slots::SlotId;

/// An importing process, from its coming to its death or its BYE. A process that comes again is another one.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct ImportingPeerId(pub(in crate::ipc) SlotId);

impl ImportingPeerId {
    /// The place in which the caller may keep what belongs to it.
    #[must_use]
    pub const fn slot(self) -> u32 {
        self.0.slot
    }
}

/// How a peer stands to an export.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub(super) enum HoldPhase {
    /// It has not heard of it, or has let it go.
    #[default]
    No,
    /// It was told of it.
    Announced,
    /// As that; it is to let it go once no message uses it.
    Draining,
    /// It is to be told to let it go.
    Due,
    /// It was told to let it go.
    Told,
}

/// A peer and an export.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub(super) struct PeerExport {
    pub(super) held: HoldPhase,
    /// How often it could not map it, one after another.
    failures: u8,
    /// So many messages more go another way.
    passed_over: u16,
    /// Messages to that peer that use it.
    pub(super) pins: u32,
}

/// A peer.
#[derive(Clone, Debug, Hash)]
pub(super) struct ImportingPeer {
    /// By the exports' slots.
    pub(super) toward: Vec<PeerExport>,
    /// Slots of exports that it is to be told to let go.
    pub(super) due: VecDeque<u32>,
}

impl PeerExport {
    /// Whether one more message is to go another way, as the peer could not map this.
    pub(super) const fn is_passed_over(&mut self) -> bool {
        if self.passed_over == 0 {
            return false;
        }
        self.passed_over -= 1;
        true
    }

    /// It could not map it.
    pub(super) fn on_map_failed(&mut self) {
        self.failures = self.failures.saturating_add(1);
        let run = 1_u16.checked_shl(self.failures.into()).unwrap_or(u16::MAX);
        self.passed_over = run.min(IPC_PASSED_OVER_MAX);
    }

    /// It has mapped it.
    pub(super) const fn on_map_succeeded(&mut self) {
        self.failures = 0;
    }
}

impl ImportingPeer {
    /// One that knows nothing, with room for so many exports.
    pub(super) fn new(exports: usize) -> Result<Self, OutOfMemory> {
        Ok(Self { toward: try_filled(PeerExport::default(), exports)?.into_vec(), due: try_deque(exports)? })
    }

    /// There may be so many exports now.
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

    /// It is to let an export go that no message to it uses.
    pub(super) fn queue_retire(&mut self, slot: u32) {
        if let Some(toward) = self.toward.get_mut(slot as usize) {
            toward.held = HoldPhase::Due;
            self.due.push_back(slot);
        }
    }
}
