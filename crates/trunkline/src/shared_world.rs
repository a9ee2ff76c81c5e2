//! The state that a world and its contexts share: the engine, the heaps, and the pool of contexts. Internal to this
//! crate; it posts no operations.

use std::sync::{Arc, Mutex, PoisonError};

use trunkline_engine::rma::{HeapAddress, HeapRange};
use trunkline_mem::MemoryRange;
use trunkline_proto::wire::rma::word::WordWidth;
use trunkline_runtime::{OneSided, OneSidedContext, StageLayout};

use crate::context::Context;
use crate::error::Error;

/// The number of the heap with symmetric objects.
pub(crate) const HEAP: u8 = 0;
/// The number of the heap for this crate's own use: words of barriers, then a stage per context.
pub(crate) const INNER: u8 = 1;
/// Bytes for the words of barriers.
pub(crate) const WORDS: u64 = 4096;
/// Bytes of the registered stage per context, through which private memory is put and got.
pub(crate) const STAGE: u64 = 256 << 10;
/// The largest number of contexts of a world.
pub(crate) const CONTEXTS: usize = 16;
/// Bytes of the inner heap.
pub(crate) const INNER_BYTES: u64 = WORDS + CONTEXTS as u64 * STAGE;

/// The state that a world and its contexts share.
pub(crate) struct SharedWorld {
    pub(crate) network: OneSided,
    pub(crate) rank: usize,
    pub(crate) size: usize,
    pub(crate) heap: MemoryRange,
    pub(crate) inner: MemoryRange,
    /// Whether this rank may change its own 8-byte words by itself while other ranks use atomics on them. False if a
    /// NIC executes those.
    pub(crate) executes: bool,
    places: Mutex<ContextPool>,
}

/// The contexts of a world. The engine never destroys a context, so the pool lends released ones again.
#[derive(Default)]
struct ContextPool {
    made: Vec<Arc<OneSidedContext>>,
    /// Indices of contexts in `made` that are not in use.
    free: Vec<usize>,
}

impl SharedWorld {
    pub(crate) fn new(
        network: OneSided,
        rank: usize,
        size: usize,
        heap: MemoryRange,
        inner: MemoryRange,
    ) -> Arc<Self> {
        let executes = network.can_execute_locally(WordWidth::Eight);
        Arc::new(Self { network, rank, size, heap, inner, executes, places: Mutex::default() })
    }

    /// Returns an unused context, or creates one.
    pub(crate) fn acquire_context(self: &Arc<Self>) -> Result<Context, Error> {
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        let number = match places.free.pop() {
            Some(free) => free,
            None => self.make_context(&mut places)?,
        };
        let context = Arc::clone(&places.made[number]);
        drop(places);
        Ok(Context::new(Arc::clone(self), number, context))
    }

    /// Creates a context, and returns its index.
    fn make_context(&self, places: &mut ContextPool) -> Result<usize, Error> {
        let number = places.made.len();
        if number == CONTEXTS {
            return Err(Error::Argument(
                "the world has 16 contexts, the most at a time; drop an unused one first",
            ));
        }
        let layout = StageLayout {
            memory: self.inner.clone(),
            range: HeapRange { heap: INNER, offset: WORDS + number as u64 * STAGE, len: STAGE },
            put_piece: STAGE,
            get_piece: STAGE,
        };
        places.made.push(Arc::new(self.network.create_context(layout)?));
        Ok(number)
    }

    pub(crate) fn release_context(&self, number: usize) {
        self.places.lock().unwrap_or_else(PoisonError::into_inner).free.push(number);
    }
}

/// Returns the address of an offset of a member's symmetric heap.
#[inline]
pub(crate) const fn heap_address(member: u32, offset: u64) -> HeapAddress {
    HeapAddress { member, heap: HEAP, offset }
}
