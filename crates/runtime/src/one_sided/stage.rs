//! The registered memory of a context, through which it moves unregistered bytes. [`ContextCalls`](super::ContextCalls)
//! reserves parts of it. Nothing here waits, and no lock is held during a wait.

use std::sync::{Mutex, MutexGuard, PoisonError};

use trunkline_engine::rma::{HeapRange, RmaError};
use trunkline_mem::MemoryRange;

/// The alignment of the parts of a stage in bytes, so that parts share no cache line, and no element is torn.
const ALIGNMENT: u64 = 64;

/// The location of a context's stage, and the lengths of its pieces.
#[derive(Clone, Debug)]
pub struct StageLayout {
    /// The memory of the heap that contains the stage.
    pub memory: MemoryRange,
    /// The range of the stage in that heap. It begins at a multiple of 64.
    pub range: HeapRange,
    /// The largest number of bytes of a put that are staged at a time. Less than the stage lets copying and sending
    /// overlap.
    pub put_piece: u64,
    /// The largest number of bytes of a get that are staged at a time.
    pub get_piece: u64,
}

/// The stage of a context. Several threads may use it.
///
/// - Parts are reserved from the lowest offset up. They become free together, when no operation is in flight any more,
///   or one by one, if the last one is returned first.
/// - `usage.busy` counts the calls that are copying to or from a part, because the stage must not be reset meanwhile.
#[derive(Debug)]
pub(super) struct BounceStage {
    layout: StageLayout,
    usage: Mutex<StageUsage>,
}

/// The use of a stage.
#[derive(Debug, Default)]
struct StageUsage {
    used: u64,
    busy: u32,
}

impl BounceStage {
    /// Returns an unused stage.
    ///
    /// # Errors
    /// [`RmaError::Argument`] if a piece is empty or longer than the stage.
    pub(super) fn new(layout: StageLayout) -> Result<Self, RmaError> {
        let fits = |piece: u64| (1..=layout.range.len).contains(&piece);
        if !fits(layout.put_piece) || !fits(layout.get_piece) || !layout.range.len.is_multiple_of(ALIGNMENT) {
            return Err(RmaError::Argument("a piece of a stage must not be empty or longer than the stage"));
        }
        Ok(Self { layout, usage: Mutex::default() })
    }

    /// The memory of the heap that contains the stage.
    pub(super) fn heap_memory(&self) -> &MemoryRange {
        &self.layout.memory
    }

    /// The largest number of bytes of a put that are staged at a time.
    pub(super) fn put_piece(&self) -> u64 {
        self.layout.put_piece
    }

    /// The largest number of bytes of a get that are staged at a time.
    pub(super) fn get_piece(&self) -> u64 {
        self.layout.get_piece
    }

    /// Reserves `len` bytes, at most a piece. Returns `None` if the stage has no room now. It has room again when
    /// `poll_quiet` returns true, because no operation uses it then.
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

    /// Ends the use of a part by a call, while the network may still read the part.
    pub(super) fn finish_use(&self) {
        self.lock_usage().busy -= 1;
    }

    /// Ends the use of a part by a call, after the network has ended its own.
    pub(super) fn return_part(&self, part: HeapRange) {
        let mut usage = self.lock_usage();
        usage.busy -= 1;
        let begin = part.offset - self.layout.range.offset;
        if begin + part.len.next_multiple_of(ALIGNMENT) == usage.used {
            usage.used = begin;
        }
    }

    /// Frees all parts, if no call uses one and `poll_quiet` returns true, so that no operation uses them either.
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
