//! The registered memory of a context through which it moves bytes that are not registered. [`ContextCalls`](super::ContextCalls) reserves
//! parts of it. Nothing here waits, and no lock is held during a wait.

use std::sync::{Mutex, MutexGuard, PoisonError};

use trunkline_engine::rma::{HeapRange, RmaError};
use trunkline_mem::MemoryRange;

/// The alignment of the parts of a stage in bytes: a part shares no cache line with another, and no element is torn.
const ALIGNMENT: u64 = 64;

/// Where the stage of a context is, and in which pieces it is used.
#[derive(Clone, Debug)]
pub struct StageLayout {
    /// The memory of the heap that the stage is in.
    pub memory: MemoryRange,
    /// The bytes of the stage in that heap. They begin at a multiple of 64.
    pub range: HeapRange,
    /// Most bytes of a put that are staged at once. Less than the stage lets copying and sending overlap.
    pub put_piece: u64,
    /// Most bytes of a get that are staged at once.
    pub get_piece: u64,
}

/// The stage of a context. Several threads may use it.
///
/// - Parts are reserved from the lowest offset up. They become free together, when nothing is under way any more, or one by one, if the
///   last one is returned first.
/// - `usage.busy` counts the calls that are copying to or from a part: the stage is not reset under them.
#[derive(Debug)]
pub(super) struct BounceStage {
    layout: StageLayout,
    usage: Mutex<StageUsage>,
}

/// How much of a stage is in use.
#[derive(Debug, Default)]
struct StageUsage {
    used: u64,
    busy: u32,
}

impl BounceStage {
    /// A stage of which nothing is in use.
    ///
    /// # Errors
    /// [`RmaError::Argument`] if a piece is empty or longer than the stage.
    pub(super) fn new(layout: StageLayout) -> Result<Self, RmaError> {
        let fits = |piece: u64| (1..=layout.range.len).contains(&piece);
        if !fits(layout.put_piece) || !fits(layout.get_piece) || !layout.range.len.is_multiple_of(ALIGNMENT) {
            return Err(RmaError::Argument("no piece of a stage is longer than it, and none is empty"));
        }
        Ok(Self { layout, usage: Mutex::default() })
    }

    /// The memory of the heap that the stage is in.
    pub(super) fn heap_memory(&self) -> &MemoryRange {
        &self.layout.memory
    }

    /// Most bytes of a put that are staged at once.
    pub(super) fn put_piece(&self) -> u64 {
        self.layout.put_piece
    }

    /// Most bytes of a get that are staged at once.
    pub(super) fn get_piece(&self) -> u64 {
        self.layout.get_piece
    }

    /// Reserves `len` bytes, at most a piece. `None` if it has no room now. It has room again when `poll_quiet` returns true: no operation
    /// uses it then.
    ///
    /// # Errors
    /// As `poll_quiet`.
    pub(super) fn try_reserve(
        &self,
        len: u64,
        poll_quiet: impl FnOnce() -> Result<bool, RmaError>,
    ) -> Result<Option<HeapRange>, RmaError> {
        let whole = self.layout.range;
        let taken = len.next_multiple_of(ALIGNMENT);
        let mut usage = self.lock_usage();
        if usage.used + taken > whole.len {
            if usage.busy > 0 || !poll_quiet()? {
                return Ok(None);
            }
            usage.used = 0;
        }
        let offset = whole.offset + usage.used;
        usage.used += taken;
        usage.busy += 1;
        Ok(Some(HeapRange { heap: whole.heap, offset, len }))
    }

    /// Ends the work of a call on a part that the network may still read.
    pub(super) fn finish_use(&self) {
        self.lock_usage().busy -= 1;
    }

    /// Ends the work of a call on a part that nothing uses any more.
    pub(super) fn return_part(&self, part: HeapRange) {
        let mut usage = self.lock_usage();
        usage.busy -= 1;
        let begin = part.offset - self.layout.range.offset;
        if begin + part.len.next_multiple_of(ALIGNMENT) == usage.used {
            usage.used = begin;
        }
    }

    /// Frees all parts, if no call is at work on one and `poll_quiet` returns true: no operation uses them then.
    ///
    /// # Errors
    /// As `poll_quiet`.
    pub(super) fn reset_idle(
        &self,
        poll_quiet: impl FnOnce() -> Result<bool, RmaError>,
    ) -> Result<(), RmaError> {
        let mut usage = self.lock_usage();
        if usage.used > 0 && usage.busy == 0 && poll_quiet()? {
            usage.used = 0;
        }
        Ok(())
    }

    fn lock_usage(&self) -> MutexGuard<'_, StageUsage> {
        self.usage.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
