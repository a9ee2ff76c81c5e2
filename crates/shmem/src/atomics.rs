//! Atomics and signals. A word has one executor: the CPU of whoever has its memory mapped, and for others that of its owner, which are
//! atomic among each other.

use std::sync::atomic::Ordering;

use trunkline_mem::Memory;
use trunkline_proto::rma::atomic::{Action, Type};
use trunkline_proto::wire::rma::signal::SignalOp;
use trunkline_proto::wire::rma::word::{Width, Word};

use crate::error::{Error, Result};
use crate::pe::Pe;
use crate::place::Place;
use crate::rma::{When, inside};

impl Pe {
    /// Executes an atomic on a word of a PE; what the word was.
    #[inline]
    pub(crate) fn fetch(&self, lane: usize, pe: usize, at: Place, kind: Type, action: Action) -> Result<u64> {
        match self.mapped(pe, at.segment) {
            Some(memory) => execute(memory, at.offset, kind.width(), action),
            None => self.far()?.fetch(lane, pe, word(at, kind.width())?, kind, action),
        }
    }

    /// The same, which is complete after a quiet.
    #[inline]
    pub(crate) fn change(&self, lane: usize, pe: usize, at: Place, kind: Type, action: Action) -> Result<()> {
        match self.mapped(pe, at.segment) {
            Some(memory) => execute(memory, at.offset, kind.width(), action).map(drop),
            None => self.far()?.change(lane, pe, word(at, kind.width())?, kind, action),
        }
    }

    /// Puts bytes, then sets a word of 8 bytes or adds to it.
    pub(crate) fn put_signal(
        &self,
        lane: usize,
        pe: usize,
        (to, from): (Place, &Memory),
        (op, at, value): (SignalOp, Place, u64),
        when: When,
    ) -> Result<()> {
        let segments = (self.mapped(pe, to.segment), self.mapped(pe, at.segment));
        if crate::planted("shmem-signals-first") {
            self.change(
                lane,
                pe,
                at,
                Type::U64,
                if op == SignalOp::Add { Action::Add(value) } else { Action::Set(value) },
            )?;
            return if from.is_empty() { Ok(()) } else { self.put(lane, pe, to, from, when) };
        }
        if let (None, None) = segments {
            let own = self.segments.find(from.addr(), from.len());
            let far = self.far()?;
            let word = word(at, Width::Eight)?;
            far.put_signal(lane, pe, (to, from, own), (op, word, value))?;
            // What is registered was not copied.
            return if when == When::Local && own.is_some() { far.quiet(lane) } else { Ok(()) };
        }
        if !from.is_empty() {
            self.put(lane, pe, to, from, when)?;
        }
        if segments.0.is_none() && !from.is_empty() {
            self.far()?.quiet(lane)?;
        }
        let action = if op == SignalOp::Add { Action::Add(value) } else { Action::Set(value) };
        self.change(lane, pe, at, Type::U64, action)
    }
}

/// Names a word to the engine.
fn word(at: Place, width: Width) -> Result<Word> {
    Word::new(at.segment as u8, at.offset, width).map_err(|_| Error::Unaligned(at.offset as usize))
}

/// Changes a word that is mapped here; what it was.
#[inline]
pub(crate) fn execute(memory: &Memory, offset: u64, width: Width, action: Action) -> Result<u64> {
    let unaligned = |_| Error::Unaligned(memory.addr() + offset as usize);
    // All of these: who reads what another wrote sees what that wrote before.
    const ORDER: Ordering = Ordering::SeqCst;
    macro_rules! on {
        ($word:expr, $int:ty) => {{
            let word = $word;
            u64::from(match action {
                Action::Fetch => word.load(ORDER),
                Action::Set(value) => word.swap(value as $int, ORDER),
                Action::Add(value) => word.fetch_add(value as $int, ORDER),
                Action::And(value) => word.fetch_and(value as $int, ORDER),
                Action::Or(value) => word.fetch_or(value as $int, ORDER),
                Action::Xor(value) => word.fetch_xor(value as $int, ORDER),
                Action::CompareSwap { expect, swap } => {
                    let done = word.compare_exchange(expect as $int, swap as $int, ORDER, ORDER);
                    done.unwrap_or_else(|old| old)
                }
            })
        }};
    }
    Ok(match width {
        Width::Eight => on!(memory.word(offset).map_err(unaligned)?, u64),
        Width::Four => on!(memory.half(offset).map_err(unaligned)?, u32),
    })
}

impl Pe {
    /// The present value of a word of this PE.
    #[inline]
    pub(crate) fn look_at(&self, at: Place, width: Width) -> Result<u64> {
        execute(&self.segments.0[at.segment], at.offset, width, Action::Fetch)
    }

    /// Writes 8 bytes of a PE's inner memory, whole, before anything that comes after.
    pub(crate) fn tell(&self, pe: usize, offset: u64, value: u64) -> Result<()> {
        let to = Place::inner(offset);
        match self.mapped(pe, to.segment) {
            Some(memory) => inside(memory.store(offset, value)),
            None => self.far()?.put_bytes(0, pe, to, &value.to_le_bytes()),
        }
    }

    /// The same, if it can be begun now. Whether it was.
    pub(crate) fn try_tell(&self, pe: usize, offset: u64, value: u64) -> Result<bool> {
        let to = Place::inner(offset);
        match self.mapped(pe, to.segment) {
            Some(memory) => inside(memory.store(offset, value)).map(|()| true),
            None => self.far()?.try_put_bytes(0, pe, to, &value.to_le_bytes()),
        }
    }
}
