//! What goes over the fabric: everything between PEs that do not share memory. Puts, gets, atomics and signals of a lane, by the engine's
//! one-sided job; long waits are by the one policy of front ends. Used by `pe`; knows nothing of teams or of C.

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use trunkline_engine::HelperThread;
use trunkline_engine::rma::{ContextId, HeapRange, PutSource};
use trunkline_mem::MemoryRange;
use trunkline_proto::rma::atomic::{AtomicAction, AtomicType, TypedAtomic};
use trunkline_proto::wire::rma::signal::SignalUpdate;
use trunkline_proto::wire::rma::word::SymmetricWord;
use trunkline_runtime::FabricJob;

use crate::error::{Result, ShmemError};
use crate::symmetric_segments::SymmetricPlace;

/// Contexts of the engine; those of OpenSHMEM that are more share them. A process takes so many of each member.
pub(crate) const LANES: usize = 4;
/// Bytes of registered memory of a lane, through which it moves what is not registered.
pub(crate) const STAGE: u64 = 1 << 20;
/// A put of so many bytes that are registered is not copied.
const DIRECT: u64 = 64 << 10;
/// Most bytes that are staged at once, so that copying and sending overlap.
const PIECE: u64 = 64 << 10;
/// Most bytes that any engine copies at once.
const INLINE_MAX: usize = 1024;

/// This process's part in the one-sided job.
pub(crate) struct FabricTransport {
    job: FabricJob,
    unseen: bool,
    lanes: [OnceLock<FabricContext>; LANES],
    making: Mutex<()>,
    /// This process's inner memory, and where the stages begin in it.
    inner: MemoryRange,
    stages: u64,
    helper: Mutex<Option<HelperThread>>,
}

/// A context of the engine.
#[derive(Debug)]
struct FabricContext {
    id: ContextId,
    inline_max: usize,
    stage: Mutex<StageUsage>,
}

/// What of a lane's stage is in use.
#[derive(Debug, Default)]
struct StageUsage {
    used: u64,
    /// Calls that are at work on it.
    busy: u32,
}

impl FabricTransport {
    /// Over a job whose heaps are added; `stages` is where in the inner memory [`LANES`] stages have room.
    ///
    /// # Errors
    /// The engine has no room for a context, or the system none for a thread.
    pub(crate) fn new(job: FabricJob, inner: MemoryRange, stages: u64, passive: bool) -> Result<Self> {
        let helper = if passive { Some(job.serve_beside().map_err(ShmemError::Thread)?) } else { None };
        let unseen = job.works_unseen();
        let lanes = std::array::from_fn(|_| OnceLock::new());
        let far =
            Self { job, unseen, lanes, making: Mutex::new(()), inner, stages, helper: Mutex::new(helper) };
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
            let id = self.job.create_context()?;
            let inline_max = (self.job.inline_max(id)? as usize).min(INLINE_MAX);
            let _ = self.lanes[lane].set(FabricContext { id, inline_max, stage: Mutex::default() });
        }
        Ok(())
    }

    fn fabric_context(&self, lane: usize) -> Result<&FabricContext> {
        self.lanes[lane].get().ok_or(ShmemError::Handle("context"))
    }

    fn wait_until<T>(
        &self,
        lane: &FabricContext,
        mut attempt: impl FnMut() -> Result<Option<T>>,
    ) -> Result<T> {
        self.job.wait_until(lane.id, self.unseen, |_| attempt())
    }

    /// Goes on with everything. Whether anything moved.
    pub(crate) fn progress(&self) -> Result<bool> {
        Ok(self.job.progress(self.fabric_context(0)?.id)?)
    }

    /// A number that has grown if something has moved since it was last asked for: then more is likely to.
    pub(crate) fn sample_progress(&self) -> Option<u64> {
        self.job.sample_progress(self.fabric_context(0).ok()?.id)
    }

    /// Whether waiting is work: nobody else goes on with what others do here.
    pub(crate) fn is_unseen(&self) -> bool {
        self.unseen
    }

    /// Fails if a PE is known to be lost.
    pub(crate) fn check_pe(&self, pe: usize) -> Result<()> {
        Ok(self.job.connect_member(self.fabric_context(0)?.id, pe as u32).map(drop)?)
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
        let len = from.len() as u64;
        let on = self.fabric_context(lane)?;
        match own {
            _ if from.len() <= on.inline_max => self.put_inline(on, pe, to, from),
            Some(own) if len >= DIRECT => {
                self.put_registered(on, pe, to, own, len)?;
                self.wait_until(on, || Ok(self.job.quiet_member(on.id, pe as u32)?.then_some(())))
            }
            _ => self.put_staged(lane, on, pe, to, from),
        }
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
        let on = self.fabric_context(lane)?;
        match own {
            Some(own) if from.len() > on.inline_max => {
                self.put_registered(on, pe, to, own, from.len() as u64)
            }
            _ => self.put(lane, pe, to, from, None),
        }
    }

    fn put_inline(
        &self,
        on: &FabricContext,
        pe: usize,
        to: SymmetricPlace,
        from: &MemoryRange,
    ) -> Result<()> {
        let mut bytes = [0; INLINE_MAX];
        let bytes = &mut bytes[..from.len()];
        read_bytes(from, 0, bytes)?;
        let segment = to.segment as u8;
        let offset = to.offset;
        let put = || Ok(self.job.put(on.id, pe as u32, segment, offset, PutSource::Bytes(bytes))?);
        self.wait_until(on, put).map(drop)
    }

    /// Puts a few bytes, which are copied.
    pub(crate) fn put_bytes(&self, lane: usize, pe: usize, to: SymmetricPlace, bytes: &[u8]) -> Result<()> {
        let on = self.fabric_context(lane)?;
        let segment = to.segment as u8;
        let offset = to.offset;
        let put = || Ok(self.job.put(on.id, pe as u32, segment, offset, PutSource::Bytes(bytes))?);
        self.wait_until(on, put).map(drop)
    }

    /// The same, if there is room for it now. Whether it began.
    pub(crate) fn try_put_bytes(
        &self,
        lane: usize,
        pe: usize,
        to: SymmetricPlace,
        bytes: &[u8],
    ) -> Result<bool> {
        let on = self.fabric_context(lane)?;
        let source = PutSource::Bytes(bytes);
        Ok(self.job.put(on.id, pe as u32, to.segment as u8, to.offset, source)?.is_some())
    }

    /// Tells a PE by its control stream that the program ends: a word of its inner memory that is 0 becomes that value. It needs no link, which
    /// over some networks takes longer to make than others wait for a reason. Whether it could be said now.
    pub(crate) fn send_exit(&self, pe: usize, offset: u64, value: u64) -> Result<bool> {
        let at = SymmetricPlace::in_inner(offset);
        let said = self.job.send_error_word(pe as u32, at.segment as u8, at.offset, value)?;
        // What was said before goes out, and who answers is heard.
        self.progress()?;
        Ok(said)
    }

    fn put_registered(
        &self,
        on: &FabricContext,
        pe: usize,
        mut to: SymmetricPlace,
        own: SymmetricPlace,
        len: u64,
    ) -> Result<()> {
        let mut from = HeapRange { heap: own.segment as u8, offset: own.offset, len };
        while from.len > 0 {
            let segment = to.segment as u8;
            let offset = to.offset;
            let put = || Ok(self.job.put(on.id, pe as u32, segment, offset, PutSource::Heap(from))?);
            let taken = self.wait_until(on, put)?;
            (to.offset, from.offset, from.len) = (to.offset + taken, from.offset + taken, from.len - taken);
        }
        Ok(())
    }

    fn put_staged(
        &self,
        lane: usize,
        on: &FabricContext,
        pe: usize,
        to: SymmetricPlace,
        from: &MemoryRange,
    ) -> Result<()> {
        let mut at = 0;
        while at < from.len() as u64 {
            let len = PIECE.min(from.len() as u64 - at);
            let staged = self.reserve_stage(lane, on, len)?;
            let own = SymmetricPlace::in_inner(staged);
            let put = copy_bytes(&self.inner, staged, from, at, len)
                .and_then(|()| self.put_registered(on, pe, to.offset_by(at as i64), own, len));
            self.release_stage(on, None);
            put?;
            at += len;
        }
        Ok(())
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
        let on = self.fabric_context(lane)?;
        let quiet = || self.wait_until(on, || Ok(self.job.quiet_member(on.id, pe as u32)?.then_some(())));
        if let Some(own) = own {
            self.get_registered(on, pe, from, own, into.len() as u64)?;
            return quiet();
        }
        let mut at = 0;
        while at < into.len() as u64 {
            let len = (STAGE / 2).min(into.len() as u64 - at);
            let staged = self.reserve_stage(lane, on, len)?;
            let got = self
                .get_registered(on, pe, from.offset_by(at as i64), SymmetricPlace::in_inner(staged), len)
                .and_then(|()| quiet())
                .and_then(|()| copy_bytes(into, at, &self.inner, staged, len));
            self.release_stage(on, Some((staged, len)));
            got?;
            at += len;
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
        match own {
            Some(own) => self.get_registered(self.fabric_context(lane)?, pe, from, own, into.len() as u64),
            None => self.get(lane, pe, from, into, None),
        }
    }

    fn get_registered(
        &self,
        on: &FabricContext,
        pe: usize,
        mut from: SymmetricPlace,
        own: SymmetricPlace,
        len: u64,
    ) -> Result<()> {
        let mut into = HeapRange { heap: own.segment as u8, offset: own.offset, len };
        while into.len > 0 {
            let segment = from.segment as u8;
            let offset = from.offset;
            let get = || Ok(self.job.get(on.id, pe as u32, segment, offset, into)?);
            let taken = self.wait_until(on, get)?;
            (from.offset, into.offset, into.len) =
                (from.offset + taken, into.offset + taken, into.len - taken);
        }
        Ok(())
    }

    /// Bytes of a lane's stage that nothing else uses; to be given back.
    fn reserve_stage(&self, lane: usize, on: &FabricContext, len: u64) -> Result<u64> {
        let len = len.next_multiple_of(64);
        let base = self.stages + lane as u64 * STAGE;
        self.wait_until(on, || {
            let mut stage = on.stage.lock().unwrap_or_else(PoisonError::into_inner);
            if stage.used + len > STAGE && !self.reset_idle_stage(on, &mut stage)? {
                return Ok(None);
            }
            let at = stage.used;
            (stage.used, stage.busy) = (at + len, stage.busy + 1);
            Ok(Some(base + at))
        })
    }

    /// Whether nothing in a stage is under way any more.
    fn reset_idle_stage(&self, on: &FabricContext, stage: &mut MutexGuard<'_, StageUsage>) -> Result<bool> {
        let empty = stage.busy == 0 && self.job.quiet(on.id)?;
        if empty {
            stage.used = 0;
        }
        Ok(empty)
    }

    /// A call is no more at work on the stage; and if it says so, on what it took nobody is.
    fn release_stage(&self, on: &FabricContext, done: Option<(u64, u64)>) {
        let mut stage = on.stage.lock().unwrap_or_else(PoisonError::into_inner);
        stage.busy -= 1;
        if let Some((at, len)) = done {
            let at = (at - self.stages) % STAGE;
            if at + len.next_multiple_of(64) == stage.used {
                stage.used = at;
            }
        }
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
        let on = self.fabric_context(lane)?;
        let atomic =
            TypedAtomic::new(kind, action, true).ok_or(ShmemError::Argument("there is no such atomic"))?;
        let fetch = self.wait_until(on, || Ok(self.job.post_atomic(on.id, pe as u32, word, atomic)?))?;
        self.wait_until(on, || Ok(self.job.collect_fetch(on.id, fetch)?))
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
        let on = self.fabric_context(lane)?;
        let atomic =
            TypedAtomic::new(kind, action, false).ok_or(ShmemError::Argument("there is no such atomic"))?;
        self.wait_until(on, || Ok(self.job.post_atomic(on.id, pe as u32, word, atomic)?)).map(drop)
    }

    /// Puts bytes, then changes a word.
    pub(crate) fn put_signal(
        &self,
        lane: usize,
        pe: usize,
        to: SymmetricPlace,
        from: &MemoryRange,
        own: Option<SymmetricPlace>,
        update: SignalUpdate,
    ) -> Result<()> {
        let on = self.fabric_context(lane)?;
        if from.is_empty() {
            return self.wait_until(on, || Ok(self.job.send_signal(on.id, pe as u32, update)?.then_some(())));
        }
        if from.len() <= on.inline_max {
            let mut bytes = [0; INLINE_MAX];
            let bytes = &mut bytes[..from.len()];
            read_bytes(from, 0, bytes)?;
            let segment = to.segment as u8;
            let offset = to.offset;
            let source = PutSource::Bytes(bytes);
            let put = || self.job.put_signal(on.id, pe as u32, segment, offset, source, update);
            return self.wait_until(on, || Ok(put()?.then_some(())));
        }
        // A signal comes after what was put before it.
        self.put_nbi(lane, pe, to, from, own)?;
        self.wait_until(on, || Ok(self.job.send_signal(on.id, pe as u32, update)?.then_some(())))
    }

    /// Waits until all that a lane has begun is complete.
    pub(crate) fn quiet(&self, lane: usize) -> Result<()> {
        let on = self.fabric_context(lane)?;
        self.wait_until(on, || Ok(self.job.quiet(on.id)?.then_some(())))?;
        let mut stage = on.stage.lock().unwrap_or_else(PoisonError::into_inner);
        if stage.used > 0 {
            self.reset_idle_stage(on, &mut stage)?;
        }
        Ok(())
    }

    /// What a lane begins from now on comes after what it has begun.
    pub(crate) fn fence(&self, lane: usize) -> Result<()> {
        Ok(self.job.fence(self.fabric_context(lane)?.id)?)
    }

    /// Waits for all lanes.
    pub(crate) fn quiet_all(&self) -> Result<()> {
        (0..LANES).filter(|&lane| self.lanes[lane].get().is_some()).try_for_each(|lane| self.quiet(lane))
    }

    /// Whether all lanes are.
    pub(crate) fn is_quiet(&self) -> Result<bool> {
        let mut quiet = true;
        for lane in self.lanes.iter().filter_map(OnceLock::get) {
            quiet &= self.job.quiet(lane.id)?;
        }
        Ok(quiet)
    }

    /// Serves nobody any more beside the calls of this process.
    pub(crate) fn stop_helper(&self) {
        drop(self.helper.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}

fn read_bytes(from: &MemoryRange, at: u64, out: &mut [u8]) -> Result<()> {
    from.read(at, out).map_err(|_| ShmemError::Argument("outside of the memory"))
}

/// Copies what was checked before.
fn copy_bytes(to: &MemoryRange, at: u64, from: &MemoryRange, from_at: u64, len: u64) -> Result<()> {
    to.copy_from(at, from, from_at, len).map_err(|_| ShmemError::Argument("outside of the memory"))
}
