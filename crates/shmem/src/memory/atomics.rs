//! Atomics and signals. A word is changed by CPUs only: by that of a PE that has the memory mapped, else by that of
//! its owner. So all atomics are atomic among each other.

use std::sync::atomic::Ordering;

use trunkline_mem::MemoryRange;
use trunkline_proto::rma::atomic::{AtomicAction, AtomicType};
use trunkline_proto::wire::rma::signal::{SignalUpdate, UpdateOp};
use trunkline_proto::wire::rma::word::{SymmetricWord, WordWidth};

use crate::error::{Result, ShmemError};
use crate::symmetric_segments::SymmetricPlace;

use super::SymmetricMemory;
use super::rma::{ReturnPoint, map_bounds_error};

/// An update of a signal, a word of 8 bytes in a PE's symmetric memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SymmetricSignal {
    pub(crate) op: UpdateOp,
    pub(crate) place: SymmetricPlace,
    pub(crate) value: u64,
}

impl SymmetricMemory {
    /// Executes an atomic on a word of a PE, and returns its former value.
    #[inline]
    pub(crate) fn fetch_atomic(
        &self,
        lane: usize,
        pe: usize,
        at: SymmetricPlace,
        kind: AtomicType,
        action: AtomicAction,
    ) -> Result<u64> {
        match self.mapped_memory(pe, at.segment) {
            Some(memory) => execute_atomic(memory, at.offset, kind.word_width(), action),
            None => self.fabric_transport()?.fetch_atomic(
                lane,
                pe,
                engine_word(at, kind.word_width())?,
                kind,
                action,
            ),
        }
    }

    /// Posts an atomic, which is complete after a quiet.
    #[inline]
    pub(crate) fn post_atomic(
        &self,
        lane: usize,
        pe: usize,
        at: SymmetricPlace,
        kind: AtomicType,
        action: AtomicAction,
    ) -> Result<()> {
        match self.mapped_memory(pe, at.segment) {
            Some(memory) => execute_atomic(memory, at.offset, kind.word_width(), action).map(drop),
            None => self.fabric_transport()?.post_atomic(
                lane,
                pe,
                engine_word(at, kind.word_width())?,
                kind,
                action,
            ),
        }
    }

    /// Puts bytes, then applies `signal`.
    pub(crate) fn put_signal(
        &self,
        lane: usize,
        pe: usize,
        to: SymmetricPlace,
        from: &MemoryRange,
        signal: SymmetricSignal,
        when: ReturnPoint,
    ) -> Result<()> {
        let SymmetricSignal { op, place: at, value } = signal;
        let segments = (self.mapped_memory(pe, to.segment), self.mapped_memory(pe, at.segment));
        if let (None, None) = segments {
            let own = self.segments.find_place(from.addr(), from.len());
            let far = self.fabric_transport()?;
            let word = engine_word(at, WordWidth::Eight)?;
            let update = SignalUpdate::new(op, word, value)
                .ok_or(ShmemError::Argument("the signal's value is wider than its word"))?;
            far.put_signal(lane, pe, to, from, own, update)?;
            // Registered bytes were sent without a copy, so a local return needs a quiet.
            return if when == ReturnPoint::Local && own.is_some() { far.quiet(lane) } else { Ok(()) };
        }
        if !from.is_empty() {
            self.put(lane, pe, to, from, when)?;
        }
        if segments.0.is_none() && !from.is_empty() {
            self.fabric_transport()?.quiet(lane)?;
        }
        let action = if op == UpdateOp::Add { AtomicAction::Add(value) } else { AtomicAction::Set(value) };
        self.post_atomic(lane, pe, at, AtomicType::U64, action)
    }
}

/// Converts a place to the engine's name of the word.
fn engine_word(at: SymmetricPlace, width: WordWidth) -> Result<SymmetricWord> {
    SymmetricWord::new(at.segment as u8, at.offset, width)
        .map_err(|_| ShmemError::Unaligned(at.offset as usize))
}

/// Changes a word of mapped memory, and returns its former value.
#[inline]
pub(crate) fn execute_atomic(
    memory: &MemoryRange,
    offset: u64,
    width: WordWidth,
    action: AtomicAction,
) -> Result<u64> {
    let unaligned = |_| ShmemError::Unaligned(memory.addr() + offset as usize);
    // Sequentially consistent: a PE that reads another PE's write also reads earlier writes of that PE.
    const ORDER: Ordering = Ordering::SeqCst;
    macro_rules! on {
        ($word:expr, $int:ty) => {{
            let word = $word;
            u64::from(match action {
                AtomicAction::Fetch => word.load(ORDER),
                AtomicAction::Set(value) => word.swap(value as $int, ORDER),
                AtomicAction::Add(value) => word.fetch_add(value as $int, ORDER),
                AtomicAction::And(value) => word.fetch_and(value as $int, ORDER),
                AtomicAction::Or(value) => word.fetch_or(value as $int, ORDER),
                AtomicAction::Xor(value) => word.fetch_xor(value as $int, ORDER),
                AtomicAction::CompareSwap { expect, swap } => {
                    let done = word.compare_exchange(expect as $int, swap as $int, ORDER, ORDER);
                    done.unwrap_or_else(|old| old)
                }
            })
        }};
    }
    Ok(match width {
        WordWidth::Eight => on!(memory.atomic_word(offset).map_err(unaligned)?, u64),
        WordWidth::Four => on!(memory.atomic_half_word(offset).map_err(unaligned)?, u32),
    })
}

impl SymmetricMemory {
    /// Returns the value of a word of this PE.
    #[inline]
    pub(crate) fn look_at(&self, at: SymmetricPlace, width: WordWidth) -> Result<u64> {
        execute_atomic(&self.segments.0[at.segment], at.offset, width, AtomicAction::Fetch)
    }

    /// Writes 8 bytes of a PE's inner memory, whole, before all later writes.
    pub(crate) fn put_word(&self, pe: usize, offset: u64, value: u64) -> Result<()> {
        let to = SymmetricPlace::in_inner(offset);
        match self.mapped_memory(pe, to.segment) {
            Some(memory) => map_bounds_error(memory.store(offset, value)),
            None => self.fabric_transport()?.put_bytes(0, pe, to, &value.to_le_bytes()),
        }
    }

    /// Writes 8 bytes of a PE's inner memory if the write can begin now. Returns whether it did.
    pub(crate) fn try_put_word(&self, pe: usize, offset: u64, value: u64) -> Result<bool> {
        let to = SymmetricPlace::in_inner(offset);
        match self.mapped_memory(pe, to.segment) {
            Some(memory) => map_bounds_error(memory.store(offset, value)).map(|()| true),
            None => self.fabric_transport()?.try_put_bytes(0, pe, to, &value.to_le_bytes()),
        }
    }
}
