//! Checks that every received byte is correct, and that no byte outside the message changes, or after the message has
//! ended.

use trunkline_mem::MemoryRange;

use crate::checkers::{PropertyResult, PropertyViolation};
use crate::pattern;

/// Bytes behind the room of a receive that no message may change.
pub(crate) const GUARD: u64 = 16;

fn bytes_violation(text: String) -> PropertyViolation {
    PropertyViolation { checker: "bytes", text }
}

/// A receive buffer, with the pattern that filled it before it was posted.
#[derive(Clone, Debug)]
pub(crate) struct GuardedBuffer {
    pub(crate) memory: MemoryRange,
    pub(crate) offset: u64,
    pub(crate) len: u64,
    /// The pattern in the buffer and its guard.
    pub(crate) background: u64,
}

impl GuardedBuffer {
    /// Fills a new buffer with the background.
    pub(crate) fn fill_background(&self) {
        pattern::fill(&self.memory, self.offset, self.len + GUARD, self.background);
    }

    /// Checks that `size` bytes of a message have arrived, with the background behind them.
    pub(crate) fn check_message(&self, what: &str, message: u64, size: u64) -> PropertyResult {
        if let Some((at, found, wanted)) = pattern::first_mismatch(&self.memory, self.offset, size, message) {
            return Err(bytes_violation(format!(
                "{what}: byte {at} of {size} is {found:#04x}, but {wanted:#04x} was sent"
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

    /// Checks that nothing was written behind the room, whatever the result of the message.
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

    /// Whether the buffer contains `size` bytes of that message.
    pub(crate) fn holds_message(&self, message: u64, size: u64) -> bool {
        pattern::first_mismatch(&self.memory, self.offset, size, message).is_none()
    }
}

/// Memory that its owner has reused: no message may change it.
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

    /// Checks that the range was not written since.
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
