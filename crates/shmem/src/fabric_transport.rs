//! One-sided work of this PE over the fabric, for PEs whose memory is not mapped here. Called by `memory` and `pe`; it knows neither teams
//! nor C, and the waits are in the runtime.

use std::sync::{Mutex, OnceLock, PoisonError};

use trunkline_engine::HelperThread;
use trunkline_engine::rma::{HeapAddress, HeapRange};
use trunkline_mem::MemoryRange;
use trunkline_proto::rma::atomic::{AtomicAction, AtomicType, TypedAtomic};
use trunkline_proto::wire::rma::signal::SignalUpdate;
use trunkline_proto::wire::rma::word::SymmetricWord;
use trunkline_runtime::{ContextCalls, CopyFrom, CopyInto, OneSided, OneSidedContext, StageLayout};

use crate::error::{Result, ShmemError};
use crate::symmetric_segments::{INNER, SymmetricPlace};

/// Contexts of the engine; those of OpenSHMEM that are more share them. A process takes so many of each member.
pub(crate) const LANES: usize = 4;
/// Bytes of registered memory of a lane, through which it moves bytes that are not registered.
pub(crate) const STAGE: u64 = 1 << 20;
/// From this length on, a put of registered bytes is not copied.
const DIRECT: u64 = 64 << 10;
/// Most bytes of a put that are staged at once, so that copying and sending overlap.
const PUT_PIECE: u64 = 64 << 10;

/// This process's part in the one-sided work of the job.
///
/// - `lanes` are contexts that are made when they are first needed; lane 0 is made at the start.
/// - The stage of lane `n` begins at `stages + n * STAGE` of the inner memory.
pub(crate) struct FabricTransport {
    network: OneSided,
    lanes: [OnceLock<OneSidedContext>; LANES],
    making: Mutex<()>,
    inner: MemoryRange,
    stages: u64,
    helper: Mutex<Option<HelperThread>>,
}

impl FabricTransport {
    /// Over a job whose heaps are added; `stages` is where in the inner memory [`LANES`] stages have room.
    ///
    /// # Errors
    /// The engine has no room for a context, or the system none for a thread.
    pub(crate) fn new(network: OneSided, inner: MemoryRange, stages: u64, passive: bool) -> Result<Self> {
        let helper = if passive { Some(network.serve_beside().map_err(ShmemError::Thread)?) } else { None };
        let lanes = std::array::from_fn(|_| OnceLock::new());
        let far = Self { network, lanes, making: Mutex::new(()), inner, stages, helper: Mutex::new(helper) };
        far.create_context(0)?;
        Ok(far)
    }

    /// Makes a lane, unless there is one.
    ///
    /// # Errors
    /// The engine has no room.
    pub(crate) fn create_context(&self, lane: usize) -> Result<()> {
        let _making = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        if self.lanes[lane].get().is_none() {
            let offset = self.stages + lane as u64 * STAGE;
            let layout = StageLayout {
                memory: self.inner.clone(),
                range: HeapRange { heap: INNER as u8, offset, len: STAGE },
                put_piece: PUT_PIECE,
                // Half, so that another thread's fits beside it.
                get_piece: STAGE / 2,
            };
            let _ = self.lanes[lane].set(self.network.create_context(layout)?);
        }
        Ok(())
    }

    /// The calls on a lane.
    ///
    /// # Errors
    /// [`ShmemError::Handle`]: it was not made.
    pub(crate) fn fabric_calls(&self, lane: usize) -> Result<ContextCalls<'_, ()>> {
        let context = self.lanes[lane].get().ok_or(ShmemError::Handle("context"))?;
        Ok(self.network.calls_on(context, &()))
    }

    /// Drives the fabric. Whether anything moved.
    pub(crate) fn progress(&self) -> Result<bool> {
        Ok(self.fabric_calls(0)?.make_progress()?)
    }

    /// Fails if a PE is known to be lost.
    pub(crate) fn check_pe(&self, pe: usize) -> Result<()> {
        Ok(self.fabric_calls(0)?.check_member(pe as u32)?)
    }

    /// Puts bytes, which may be changed afterwards. `own` is where they are, if they are symmetric.
    pub(crate) fn put(
        &self,
        lane: usize,
        pe: usize,
        to: SymmetricPlace,
        from: &MemoryRange,
        own: Option<SymmetricPlace>,
    ) -> Result<()> {
        let calls = self.fabric_calls(lane)?;
        let len = from.len() as u64;
        match own.filter(|_| len >= DIRECT) {
            Some(own) => {
                calls.put_registered(to.heap_address(pe), own.heap_range(len))?;
                calls.quiet_member(pe as u32)?;
            }
            None => calls.put_copied(to.heap_address(pe), CopyFrom::Memory(from))?,
        }
        Ok(())
    }

    /// The same, where they stay as they are until a quiet.
    pub(crate) fn put_nbi(
        &self,
        lane: usize,
        pe: usize,
        to: SymmetricPlace,
        from: &MemoryRange,
        own: Option<SymmetricPlace>,
    ) -> Result<()> {
        let calls = self.fabric_calls(lane)?;
        let to = to.heap_address(pe);
        match own.filter(|_| from.len() > self.inline_max(lane)) {
            Some(own) => calls.put_registered(to, own.heap_range(from.len() as u64))?,
            None => calls.put_copied(to, CopyFrom::Memory(from))?,
        }
        Ok(())
    }

    /// Most bytes of an inline put.
    fn inline_max(&self, lane: usize) -> usize {
        self.lanes[lane].get().map_or(0, OneSidedContext::inline_max)
    }

    /// Puts a few bytes, which are copied.
    pub(crate) fn put_bytes(&self, lane: usize, pe: usize, to: SymmetricPlace, bytes: &[u8]) -> Result<()> {
        Ok(self.fabric_calls(lane)?.put_copied(to.heap_address(pe), CopyFrom::Slice(bytes))?)
    }

    /// The same, if there is room for it now. Whether it began.
    pub(crate) fn try_put_bytes(
        &self,
        lane: usize,
        pe: usize,
        to: SymmetricPlace,
        bytes: &[u8],
    ) -> Result<bool> {
        Ok(self.fabric_calls(lane)?.try_put_bytes(to.heap_address(pe), bytes)?)
    }

    /// Tells a PE by its control stream that the program ends: a word of its inner memory that is 0 becomes that value. It needs no link, which
    /// over some networks takes longer to make than others wait for a reason. Whether it could be said now.
    pub(crate) fn send_exit(&self, pe: usize, offset: u64, value: u64) -> Result<bool> {
        let said = self.network.send_error_word(pe as u32, INNER as u8, offset, value)?;
        // What was said before goes out, and who answers is heard.
        self.progress()?;
        Ok(said)
    }

    /// Gets bytes. `own` is where they go, if that is symmetric.
    pub(crate) fn get(
        &self,
        lane: usize,
        pe: usize,
        from: SymmetricPlace,
        into: &MemoryRange,
        own: Option<SymmetricPlace>,
    ) -> Result<()> {
        let calls = self.fabric_calls(lane)?;
        match own {
            Some(own) => {
                calls.get_registered(from.heap_address(pe), own.heap_range(into.len() as u64))?;
                calls.quiet_member(pe as u32)?;
            }
            None => calls.get_copied(from.heap_address(pe), CopyInto::Memory(into))?,
        }
        Ok(())
    }

    /// The same; they are there after a quiet.
    pub(crate) fn get_nbi(
        &self,
        lane: usize,
        pe: usize,
        from: SymmetricPlace,
        into: &MemoryRange,
        own: Option<SymmetricPlace>,
    ) -> Result<()> {
        let calls = self.fabric_calls(lane)?;
        match own {
            Some(own) => calls.get_registered(from.heap_address(pe), own.heap_range(into.len() as u64))?,
            None => calls.get_copied(from.heap_address(pe), CopyInto::Memory(into))?,
        }
        Ok(())
    }

    /// Has an atomic executed; what the word was.
    pub(crate) fn fetch_atomic(
        &self,
        lane: usize,
        pe: usize,
        word: SymmetricWord,
        kind: AtomicType,
        action: AtomicAction,
    ) -> Result<u64> {
        let atomic = typed_atomic(kind, action, true)?;
        Ok(self.fabric_calls(lane)?.fetch_atomic(pe as u32, word, atomic)?)
    }

    /// The same, which is complete after a quiet.
    pub(crate) fn post_atomic(
        &self,
        lane: usize,
        pe: usize,
        word: SymmetricWord,
        kind: AtomicType,
        action: AtomicAction,
    ) -> Result<()> {
        let atomic = typed_atomic(kind, action, false)?;
        let _no_value = self.fabric_calls(lane)?.post_atomic(pe as u32, word, atomic)?;
        Ok(())
    }

    /// Puts bytes, then changes a word. `own` is where the bytes are, if they are symmetric: they stay as they are until a quiet then.
    pub(crate) fn put_signal(
        &self,
        lane: usize,
        pe: usize,
        to: SymmetricPlace,
        from: &MemoryRange,
        own: Option<SymmetricPlace>,
        update: SignalUpdate,
    ) -> Result<()> {
        let calls = self.fabric_calls(lane)?;
        let to = to.heap_address(pe);
        match own.filter(|_| from.len() > self.inline_max(lane)) {
            Some(own) => calls.put_signal_registered(to, own.heap_range(from.len() as u64), update)?,
            None => calls.put_signal_copied(to, CopyFrom::Memory(from), update)?,
        }
        Ok(())
    }

    /// Waits until all that a lane has begun is complete.
    pub(crate) fn quiet(&self, lane: usize) -> Result<()> {
        Ok(self.fabric_calls(lane)?.quiet()?)
    }

    /// What a lane begins from now on comes after what it has begun.
    pub(crate) fn fence(&self, lane: usize) -> Result<()> {
        Ok(self.fabric_calls(lane)?.fence()?)
    }

    /// Waits for all lanes.
    pub(crate) fn quiet_all(&self) -> Result<()> {
        (0..LANES).filter(|&lane| self.lanes[lane].get().is_some()).try_for_each(|lane| self.quiet(lane))
    }

    /// Whether all lanes are.
    pub(crate) fn is_quiet(&self) -> Result<bool> {
        let mut quiet = true;
        for lane in self.lanes.iter().filter_map(OnceLock::get) {
            quiet &= self.network.calls_on(lane, &()).poll_quiet()?;
        }
        Ok(quiet)
    }

    /// Serves nobody any more beside the calls of this process.
    pub(crate) fn stop_helper(&self) {
        drop(self.helper.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}

impl SymmetricPlace {
    /// The place in the memory of a PE, as the fabric names it.
    const fn heap_address(self, pe: usize) -> HeapAddress {
        HeapAddress { member: pe as u32, heap: self.segment as u8, offset: self.offset }
    }

    /// `len` bytes from the place on in the memory of this PE.
    const fn heap_range(self, len: u64) -> HeapRange {
        HeapRange { heap: self.segment as u8, offset: self.offset, len }
    }
}

fn typed_atomic(kind: AtomicType, action: AtomicAction, fetches: bool) -> Result<TypedAtomic> {
    TypedAtomic::new(kind, action, fetches).ok_or(ShmemError::Argument("there is no such atomic"))
}
