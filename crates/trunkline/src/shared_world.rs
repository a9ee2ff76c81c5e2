//! What a world and its contexts hold together: the engine, the memory, and which contexts are free.

use std::sync::{Arc, Mutex, PoisonError};

use trunkline_engine::rma::ContextId;
use trunkline_mem::MemoryRange;
use trunkline_proto::wire::rma::word::WordWidth;
use trunkline_runtime::FabricJob;

use crate::context::Context;
use crate::error::Error;

/// The heap of symmetric objects.
pub(crate) const HEAP: u8 = 0;
/// The heap of what this crate needs itself: words of barriers, then a stage for each context.
pub(crate) const INNER: u8 = 1;
/// Bytes for words of barriers.
pub(crate) const WORDS: u64 = 4096;
/// Bytes of registered memory through which a context moves those that are not registered.
pub(crate) const STAGE: u64 = 256 << 10;
/// Contexts of a world.
pub(crate) const CONTEXTS: usize = 16;
/// Bytes of the inner heap.
pub(crate) const INNER_BYTES: u64 = WORDS + CONTEXTS as u64 * STAGE;

/// The engine, the memory, and which contexts are free.
pub(crate) struct SharedWorld {
    pub(crate) job: FabricJob,
    pub(crate) rank: usize,
    pub(crate) size: usize,
    pub(crate) heap: MemoryRange,
    pub(crate) inner: MemoryRange,
    /// What others do to this rank's memory goes on in its calls only, which do not hear of it.
    pub(crate) unseen: bool,
    /// This rank may change its own words of 8 bytes beside what others ask for.
    pub(crate) executes: bool,
    places: Mutex<ContextPool>,
}

/// The engine's contexts stay for ever, so they are used again.
#[derive(Default)]
struct ContextPool {
    made: usize,
    /// With the bytes of their stages that may still be in use.
    free: Vec<(ContextId, usize, u64)>,
}

impl SharedWorld {
    pub(crate) fn new(
        job: FabricJob,
        rank: usize,
        size: usize,
        heap: MemoryRange,
        inner: MemoryRange,
    ) -> Arc<Self> {
        let unseen = job.works_unseen();
        let executes = job.can_execute_locally(WordWidth::Eight);
        Arc::new(Self { job, rank, size, heap, inner, unseen, executes, places: Mutex::default() })
    }

    /// A context that nobody has.
    pub(crate) fn acquire_context(self: &Arc<Self>) -> Result<Context, Error> {
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        let (id, place, staged) = match places.free.pop() {
            Some(free) => free,
            None if places.made == CONTEXTS => {
                return Err(Error::Argument("a world has 16 contexts at most; drop one that is not used"));
            }
            None => {
                let id = self.job.create_context()?;
                places.made += 1;
                (id, places.made - 1, 0)
            }
        };
        drop(places);
        Context::new(Arc::clone(self), id, place, staged)
    }

    pub(crate) fn release_context(&self, id: ContextId, place: usize, staged: u64) {
        self.places.lock().unwrap_or_else(PoisonError::into_inner).free.push((id, place, staged));
    }

    /// Where the stage of a context begins, in the inner heap.
    pub(crate) fn stage_offset(&self, place: usize) -> u64 {
        WORDS + place as u64 * STAGE
    }
}
