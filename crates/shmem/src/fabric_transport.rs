//! One-sided operations over the fabric, for PEs whose memory is not mapped here. Called by `memory` and `pe`. It
//! knows neither teams nor C's handles; the waits are in the runtime.
//!
//! Its calls are not inlined, because calls on memory that is mapped, which need some ten instructions, must not pay
//! for their registers.

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

/// Contexts of the engine, called lanes; further contexts of OpenSHMEM share them. Every process accepts that many
/// contexts of each other one.
pub(crate) const LANES: usize = 4;
/// Bytes of the registered stage per lane, through which unregistered bytes are moved.
pub(crate) const STAGE: u64 = 1 << 20;
/// From this length on, a put of registered bytes is sent without a copy.
const DIRECT: u64 = 64 << 10;
/// The largest part of a put that is staged at a time, so that copying and sending overlap.
const PUT_PIECE: u64 = 64 << 10;

/// This process's part in the one-sided operations of the job.
///
/// - `lanes` are contexts, created on first use; lane 0 is created at the start.
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
    /// Opens the fabric of a job whose heaps are registered. The inner memory has room for [`LANES`] stages from
    /// `stages` on.
    ///
    /// # Errors
    /// The engine has no room for a context, or the thread for passive progress cannot be started.
    pub(crate) fn new(network: OneSided, inner: MemoryRange, stages: u64, passive: bool) -> Result<Self> {
        let helper = if passive { Some(network.serve_beside().map_err(ShmemError::Thread)?) } else { None };
        let lanes = std::array::from_fn(|_| OnceLock::new());
        let far = Self { network, lanes, making: Mutex::new(()), inner, stages, helper: Mutex::new(helper) };
        far.create_context(0)?;
        Ok(far)
    }

    /// Creates a lane, unless it exists.
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
                // Half of the stage, so that a get of another thread fits beside it.
                get_piece: STAGE / 2,
            };
            let _ = self.lanes[lane].set(self.network.create_context(layout)?);
        }
        Ok(())
    }

    /// Returns the calls on a lane.
    ///
    /// # Errors
    /// [`ShmemError::Handle`] if the lane was not created.
    pub(crate) fn fabric_calls(&self, lane: usize) -> Result<ContextCalls<'_, ()>> {
        let context = self.lanes[lane].get().ok_or(ShmemError::Handle("context"))?;
        Ok(self.network.calls_on(context, &()))
    }

    /// Drives the fabric. Returns whether anything moved.
    pub(crate) fn progress(&self) -> Result<bool> {
        Ok(self.fabric_calls(0)?.make_progress()?)
    }

    /// Fails if a PE is known to be lost.
    pub(crate) fn check_pe(&self, pe: usize) -> Result<()> {
        Ok(self.fabric_calls(0)?.check_member(pe as u32)?)
    }

    /// Puts bytes, which may be changed when the call returns. `own` is their place, if they are symmetric.
    #[inline(never)]
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

    /// Puts bytes, which must not change until a quiet if they are symmetric.
    #[inline(never)]
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

    /// Returns the largest length of an inline put.
    fn inline_max(&self, lane: usize) -> usize {
        self.lanes[lane].get().map_or(0, OneSidedContext::inline_max)
    }

    /// Puts a few bytes, which are copied.
    #[inline(never)]
    pub(crate) fn put_bytes(&self, lane: usize, pe: usize, to: SymmetricPlace, bytes: &[u8]) -> Result<()> {
        Ok(self.fabric_calls(lane)?.put_copied(to.heap_address(pe), CopyFrom::Slice(bytes))?)
    }

    /// Puts a few bytes if there is room now. Returns whether the put began.
    #[inline(never)]
    pub(crate) fn try_put_bytes(
        &self,
        lane: usize,
        pe: usize,
        to: SymmetricPlace,
        bytes: &[u8],
    ) -> Result<bool> {
        Ok(self.fabric_calls(lane)?.try_put_bytes(to.heap_address(pe), bytes)?)
    }

    /// Sends a PE the end of the program over its control stream: a word of its inner memory is set to `value` if it
    /// is 0. No link is needed; over some networks making one takes longer than PEs wait for a reason. Returns
    /// whether the message could be sent now.
    pub(crate) fn send_exit(&self, pe: usize, offset: u64, value: u64) -> Result<bool> {
        let said = self.network.send_error_word(pe as u32, INNER as u8, offset, value)?;
        // Progress sends queued messages, and processes replies.
        self.progress()?;
        Ok(said)
    }

    /// Gets bytes. `own` is their place, if the destination is symmetric.
    #[inline(never)]
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

    /// Gets bytes, which have arrived after a quiet.
    #[inline(never)]
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

    /// Executes an atomic, and returns the former value of the word.
    #[inline(never)]
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

    /// Posts an atomic, which is complete after a quiet.
    #[inline(never)]
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

    /// Puts bytes, then changes a word. `own` is the place of the bytes, if they are symmetric: then they must not
    /// change until a quiet.
    #[inline(never)]
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

    /// Waits until all operations of a lane are complete.
    #[inline(never)]
    pub(crate) fn quiet(&self, lane: usize) -> Result<()> {
        Ok(self.fabric_calls(lane)?.quiet()?)
    }

    /// Orders later operations of a lane after its earlier ones.
    #[inline(never)]
    pub(crate) fn fence(&self, lane: usize) -> Result<()> {
        Ok(self.fabric_calls(lane)?.fence()?)
    }

    /// Waits until all operations of all lanes are complete.
    pub(crate) fn quiet_all(&self) -> Result<()> {
        (0..LANES).filter(|&lane| self.lanes[lane].get().is_some()).try_for_each(|lane| self.quiet(lane))
    }

    /// Returns whether all operations of all lanes are complete.
    pub(crate) fn is_quiet(&self) -> Result<bool> {
        let mut quiet = true;
        for lane in self.lanes.iter().filter_map(OnceLock::get) {
            quiet &= self.network.calls_on(lane, &()).poll_quiet()?;
        }
        Ok(quiet)
    }

    /// Stops the thread for passive progress.
    pub(crate) fn stop_helper(&self) {
        drop(self.helper.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}

impl SymmetricPlace {
    /// Returns the address of the place in the memory of a PE.
    const fn heap_address(self, pe: usize) -> HeapAddress {
        HeapAddress { member: pe as u32, heap: self.segment as u8, offset: self.offset }
    }

    /// Returns the range of `len` bytes from the place on in the memory of this PE.
    const fn heap_range(self, len: u64) -> HeapRange {
        HeapRange { heap: self.segment as u8, offset: self.offset, len }
    }
}

fn typed_atomic(kind: AtomicType, action: AtomicAction, fetches: bool) -> Result<TypedAtomic> {
    TypedAtomic::new(kind, action, fetches)
        .ok_or(ShmemError::Argument("the atomic does not exist for this type"))
}
