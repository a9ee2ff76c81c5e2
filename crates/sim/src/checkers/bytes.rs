//! Every received byte is the sent one; nothing outside the message is touched, and nothing after its end.

use trunkline_mem::MemoryRange;

use crate::checkers::{PropertyResult, PropertyViolation};
use crate::pattern;

/// Bytes after the room of a receive that nobody may touch.
pub(crate) const GUARD: u64 = 16;

fn bytes_violation(text: String) -> PropertyViolation {
    PropertyViolation { checker: "bytes", text }
}

/// A receive buffer: what it was filled with before it was posted.
#[derive(Clone, Debug)]
pub(crate) struct GuardedBuffer {
    pub(crate) memory: MemoryRange,
    pub(crate) offset: u64,
    pub(crate) len: u64,
    /// The pattern that lies in it and in its guard.
    pub(crate) background: u64,
}

impl GuardedBuffer {
    /// Puts the background into a new buffer.
    pub(crate) fn fill_background(&self) {
        pattern::fill(&self.memory, self.offset, self.len + GUARD, self.background);
    }

    /// `size` bytes of a message are here, and behind them the background.
    pub(crate) fn check_message(&self, what: &str, message: u64, size: u64) -> PropertyResult {
        if let Some((at, found, wanted)) = pattern::first_mismatch(&self.memory, self.offset, size, message) {
            return Err(bytes_violation(format!(
                "{what}: byte {at} of {size} is {found:#04x}, sent was {wanted:#04x}"
            )));
        }
        let all = self.len + GUARD;
        let background = self.background;
        if let Some((at, found, _)) =
            pattern::mismatch_after(&self.memory, self.offset, size, all, background)
        {
            return Err(bytes_violation(format!(
                "{what}: byte {at}, past the message's {size}, was overwritten with {found:#04x}"
            )));
        }
        Ok(())
    }

    /// Nothing was written behind the room, whatever became of the message.
    pub(crate) fn check_guard(&self, what: &str) -> PropertyResult {
        let all = self.len + GUARD;
        let background = self.background;
        match pattern::mismatch_after(&self.memory, self.offset, self.len, all, background) {
            None => Ok(()),
            Some((at, found, _)) => {
                let room = self.len;
                Err(bytes_violation(format!(
                    "{what}: byte {at}, past the room of {room}, was overwritten with {found:#04x}"
                )))
            }
        }
    }

    /// Whether `size` bytes of that message lie here.
    pub(crate) fn holds_message(&self, message: u64, size: u64) -> bool {
        pattern::first_mismatch(&self.memory, self.offset, size, message).is_none()
    }
}

/// Memory that its owner uses for something else by now: no message may touch it.
#[derive(Clone, Debug)]
pub(crate) struct ReclaimedMemory {
    memory: MemoryRange,
    offset: u64,
    len: u64,
    seed: u64,
    what: String,
}

impl ReclaimedMemory {
    /// Overwrites a range that no message uses any more.
    pub(crate) fn overwrite_range(
        memory: &MemoryRange,
        offset: u64,
        len: u64,
        seed: u64,
        what: String,
    ) -> Self {
        pattern::fill(memory, offset, len, seed);
        Self { memory: memory.clone(), offset, len, seed, what }
    }

    /// Nobody wrote into it since.
    pub(crate) fn check_untouched(&self) -> PropertyResult {
        match pattern::first_mismatch(&self.memory, self.offset, self.len, self.seed) {
            None => Ok(()),
            Some((at, found, _)) => Err(bytes_violation(format!(
                "{}: byte {at} was overwritten with {found:#04x} after its end",
                self.what
            ))),
        }
    }
}
