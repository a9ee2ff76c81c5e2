//! What one of the two roles has begun: puts, gets, atomics and signals, in order behind each other where NVSHMEM orders them. Calls wait only for room, and
//! a quiet for what it is asked for; while one waits, values that come are brought where they go.

use std::sync::{Mutex, PoisonError};

use trunkline_engine::rma::{ContextId, HeapRange, PutSource};
use trunkline_mem::MemoryRange;
use trunkline_proto::rma::atomic::{AtomicAction, AtomicType, TypedAtomic};
use trunkline_proto::wire::rma::signal::{SignalUpdate, UpdateOp};
use trunkline_proto::wire::rma::word::{SymmetricWord, WordWidth};
use trunkline_runtime::FabricJob;

use crate::error::{CallError, Result};
use crate::fetches::{AwaitedFetch, FetchQueue};
use crate::memory::{ContextStage, RegisteredPlace, STAGE};

/// Most bytes that any engine copies at once.
const COPIED_MAX: usize = 1024;

/// Bytes on this side.
#[derive(Clone, Debug)]
pub(crate) enum LocalBytes {
    /// Of registered memory.
    Registered(HeapRange),
    /// Of memory that is not: they are copied.
    Elsewhere(MemoryRange),
}

/// Where bytes of a PE begin.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeOffset {
    /// The number of the PE's heap that contains them.
    pub(crate) heap: u8,
    /// Their offset in that heap, in bytes.
    pub(crate) offset: u64,
}

/// What is to be done with a word.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum WordChange {
    /// An atomic, and whether what was there is asked for.
    Atomic(AtomicType, AtomicAction, bool),
    /// A signal.
    Signal(UpdateOp, u64),
}

/// A lane.
pub(crate) struct RoleContext {
    id: ContextId,
    copied_max: usize,
    /// Waiting is work, as nobody else goes on with what others do here.
    unseen: bool,
    fetches: FetchQueue,
    /// Registered memory for bytes that are got into memory that is not registered.
    stage: Mutex<ContextStage>,
}

impl RoleContext {
    /// A lane of its own in the engine.
    ///
    /// # Errors
    /// The engine has no room.
    pub(crate) fn new(job: &FabricJob, unseen: bool, stage: ContextStage) -> Result<Self> {
        let id = job.create_context()?;
        let copied_max = (job.inline_max(id)? as usize).min(COPIED_MAX);
        Ok(Self { id, copied_max, unseen, fetches: FetchQueue::default(), stage: Mutex::new(stage) })
    }

    /// Tries until it works; meanwhile goes on with everything.
    fn wait_until<T>(&self, job: &FabricJob, mut attempt: impl FnMut() -> Result<Option<T>>) -> Result<T> {
        job.wait_until(self.id, self.unseen, |_| {
            if let Some(done) = attempt()? {
                return Ok(Some(done));
            }
            // A place for one more is there when a value has been collected.
            self.fetches.deliver_values(job, self.id)?;
            Ok(None)
        })
    }

    /// Goes on, and brings values where they go.
    ///
    /// # Errors
    /// As [`FetchQueue::deliver_values`].
    pub(crate) fn progress(&self, job: &FabricJob) -> Result<()> {
        job.progress(self.id)?;
        self.fetches.deliver_values(job, self.id)?;
        Ok(())
    }

    /// Puts bytes, which stay as they are until a quiet if they are registered.
    ///
    /// # Errors
    /// The engine says no.
    pub(crate) fn put(&self, job: &FabricJob, pe: u32, to: PeOffset, from: &LocalBytes) -> Result<()> {
        match from {
            LocalBytes::Registered(local) => self.put_registered(job, pe, to, *local),
            LocalBytes::Elsewhere(memory) => self.put_copied(job, pe, to, memory),
        }
    }

    fn put_registered(&self, job: &FabricJob, pe: u32, mut to: PeOffset, mut from: HeapRange) -> Result<()> {
        while from.len > 0 {
            let put = || Ok(job.put(self.id, pe, to.heap, to.offset, PutSource::Heap(from))?);
            let taken = self.wait_until(job, put)?;
            (to.offset, from.offset, from.len) = (to.offset + taken, from.offset + taken, from.len - taken);
        }
        Ok(())
    }

    fn put_copied(&self, job: &FabricJob, pe: u32, to: PeOffset, from: &MemoryRange) -> Result<()> {
        let mut at = 0;
        while at < from.len() {
            let len = (from.len() - at).min(self.copied_max);
            let mut bytes = [0; COPIED_MAX];
            let bytes = &mut bytes[..len];
            read_bytes(from, at as u64, bytes)?;
            let offset = to.offset + at as u64;
            self.wait_until(job, || Ok(job.put(self.id, pe, to.heap, offset, PutSource::Bytes(bytes))?))?;
            at += len;
        }
        Ok(())
    }

    /// Gets bytes, which are there after a quiet.
    ///
    /// # Errors
    /// The engine says no.
    pub(crate) fn get(&self, job: &FabricJob, pe: u32, from: PeOffset, into: &LocalBytes) -> Result<()> {
        match into {
            LocalBytes::Registered(local) => self.get_registered(job, pe, from, *local),
            LocalBytes::Elsewhere(memory) => self.get_staged(job, pe, from, memory),
        }
    }

    fn get_registered(
        &self,
        job: &FabricJob,
        pe: u32,
        mut from: PeOffset,
        mut into: HeapRange,
    ) -> Result<()> {
        while into.len > 0 {
            let get = || Ok(job.get(self.id, pe, from.heap, from.offset, into)?);
            let taken = self.wait_until(job, get)?;
            (from.offset, into.offset, into.len) =
                (from.offset + taken, into.offset + taken, into.len - taken);
        }
        Ok(())
    }

    /// Waits for the bytes: nobody else would copy them.
    fn get_staged(&self, job: &FabricJob, pe: u32, from: PeOffset, into: &MemoryRange) -> Result<()> {
        let stage = self.stage.lock().unwrap_or_else(PoisonError::into_inner);
        let ContextStage { memory, range } = &*stage;
        let mut at = 0;
        while at < into.len() as u64 {
            let len = STAGE.min(into.len() as u64 - at);
            let piece = PeOffset { offset: from.offset + at, ..from };
            self.get_registered(job, pe, piece, HeapRange { len, ..*range })?;
            self.quiet(job, pe)?;
            let copied = into.copy_from(at, memory, range.offset, len);
            copied
                .map_err(|_| CallError::Argument("bytes that are got go to memory that cannot be written"))?;
            at += len;
        }
        Ok(())
    }

    /// Changes a word; what it was goes to a place, with a flag behind it.
    ///
    /// # Errors
    /// There is no such atomic, or the engine says no.
    pub(crate) fn change_word(
        &self,
        job: &FabricJob,
        pe: u32,
        word: SymmetricWord,
        change: WordChange,
        result: Option<(RegisteredPlace, u64)>,
    ) -> Result<()> {
        match change {
            WordChange::Signal(op, value) => {
                let update = signal_update(op, word, value)?;
                self.wait_until(job, || Ok(job.send_signal(self.id, pe, update)?.then_some(())))
            }
            WordChange::Atomic(kind, action, fetches) => {
                let no = CallError::Argument("there is no such atomic");
                let atomic = TypedAtomic::new(kind, action, fetches).ok_or(no)?;
                if fetches {
                    // Before the atomic begins: its value needs a place.
                    self.fetches.reserve_place()?;
                }
                let fetch = self.wait_until(job, || Ok(job.post_atomic(self.id, pe, word, atomic)?))?;
                match result.filter(|_| fetches) {
                    Some((to, flag)) => {
                        if let Err(lack) = self.fetches.push(AwaitedFetch { pe, fetch, to, flag }) {
                            job.give_up(self.id, fetch)?;
                            return Err(lack);
                        }
                    }
                    None if fetches => job.give_up(self.id, fetch)?,
                    None => {}
                }
                Ok(())
            }
        }
    }

    /// Makes `count` puts, then changes a word by `update`. `puts` returns the target and the source of each put by its number. If one of
    /// them is invalid, none is made.
    ///
    /// # Errors
    /// As [`RoleContext::put`] and [`RoleContext::change_word`].
    pub(crate) fn put_signal(
        &self,
        job: &FabricJob,
        pe: u32,
        count: usize,
        puts: impl Fn(usize) -> Result<(PeOffset, LocalBytes)>,
        update: SignalUpdate,
    ) -> Result<()> {
        for at in 0..count {
            puts(at)?;
        }
        if count == 1
            && let (to, LocalBytes::Registered(local)) = puts(0)?
            && local.len > 0
        {
            let source = PutSource::Heap(local);
            let put = || job.put_signal(self.id, pe, to.heap, to.offset, source, update);
            return self.wait_until(job, || Ok(put()?.then_some(())));
        }
        for at in 0..count {
            let (to, from) = puts(at)?;
            self.put(job, pe, to, &from)?;
        }
        self.wait_until(job, || Ok(job.send_signal(self.id, pe, update)?.then_some(())))
    }

    /// Says whether more operations follow the next one at once: they share a doorbell.
    ///
    /// # Errors
    /// The engine says no.
    pub(crate) fn set_batching(&self, job: &FabricJob, more: bool) -> Result<()> {
        Ok(job.set_batching(self.id, more)?)
    }

    /// What comes after is behind what came before.
    ///
    /// # Errors
    /// The engine says no.
    pub(crate) fn fence(&self, job: &FabricJob) -> Result<()> {
        Ok(job.fence(self.id)?)
    }

    /// Waits until all that was begun towards a PE is complete, and what it was asked for has been brought where it goes.
    ///
    /// # Errors
    /// Something has failed: told once.
    pub(crate) fn quiet(&self, job: &FabricJob, pe: u32) -> Result<()> {
        self.wait_until(job, || Ok(job.quiet_member(self.id, pe)?.then_some(())))?;
        // What others have not answered yet may be before it.
        self.wait_until(job, || Ok(self.fetches.deliver_all_of(job, self.id, pe)?.then_some(())))
    }
}

/// The change of a word by a signal.
///
/// # Errors
/// The value is wider than the word.
pub(crate) fn signal_update(op: UpdateOp, word: SymmetricWord, value: u64) -> Result<SignalUpdate> {
    SignalUpdate::new(op, word, value).ok_or(CallError::Argument("the signal is wider than its word"))
}

fn read_bytes(from: &MemoryRange, at: u64, out: &mut [u8]) -> Result<()> {
    from.read(at, out).map_err(|_| CallError::Argument("bytes that are put cannot be read"))
}

/// The word of so many bytes at a place of a PE.
///
/// # Errors
/// It is neither 4 nor 8 bytes, or not aligned.
pub(crate) fn word_at(place: PeOffset, bytes: i32) -> Result<SymmetricWord> {
    let width = match bytes {
        4 => WordWidth::Four,
        8 => WordWidth::Eight,
        _ => return Err(CallError::Argument("a word of an atomic has 4 or 8 bytes")),
    };
    Ok(SymmetricWord::new(place.heap, place.offset, width)?)
}
