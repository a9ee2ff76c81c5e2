//! What one of the two roles has begun: puts, gets, atomics and signals, in order behind each other where NVSHMEM orders them. Calls wait only for room, and
//! a quiet for what it is asked for; while one waits, values that come are brought where they go.

use std::sync::{Mutex, PoisonError};

use trunkline_engine::rma::{ContextId, Local, Source};
use trunkline_mem::Memory;
use trunkline_proto::rma::atomic::{Action, Atomic, Type};
use trunkline_proto::wire::rma::signal::{SignalOp, Update};
use trunkline_proto::wire::rma::word::{Width, Word};
use trunkline_runtime::Running;

use crate::error::{CallError, Result};
use crate::fetches::{Awaited, Fetches};
use crate::memory::{Place, STAGE};

/// Most bytes that any engine copies at once.
const COPIED_MAX: usize = 1024;

/// Bytes on this side.
#[derive(Clone, Debug)]
pub(crate) enum Near {
    /// Of registered memory.
    Registered(Local),
    /// Of memory that is not: they are copied.
    Elsewhere(Memory),
}

/// What is to be done with a word.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Change {
    /// An atomic, and whether what was there is asked for.
    Atomic(Type, Action, bool),
    /// A signal.
    Signal(SignalOp, u64),
}

/// A lane.
pub(crate) struct Lane {
    id: ContextId,
    copied_max: usize,
    /// Waiting is work, as nobody else goes on with what others do here.
    unseen: bool,
    fetches: Fetches,
    /// Registered memory for what comes to memory that is not, and where it is in that.
    stage: Mutex<(Memory, Local)>,
}

impl Lane {
    /// A lane of its own in the engine.
    ///
    /// # Errors
    /// The engine has no room.
    pub(crate) fn new(job: &Running, unseen: bool, stage: (Memory, Local)) -> Result<Self> {
        let id = job.context()?;
        let copied_max = (job.inline_max(id)? as usize).min(COPIED_MAX);
        Ok(Self { id, copied_max, unseen, fetches: Fetches::default(), stage: Mutex::new(stage) })
    }

    /// Tries until it works; meanwhile goes on with everything.
    fn until<T>(&self, job: &Running, mut attempt: impl FnMut() -> Result<Option<T>>) -> Result<T> {
        job.until(self.id, self.unseen, |_| {
            if let Some(done) = attempt()? {
                return Ok(Some(done));
            }
            // A place for one more is there when a value has been collected.
            self.fetches.deliver(job, self.id)?;
            Ok(None)
        })
    }

    /// Goes on, and brings values where they go.
    ///
    /// # Errors
    /// As [`Fetches::deliver`].
    pub(crate) fn progress(&self, job: &Running) -> Result<()> {
        job.progress(self.id)?;
        self.fetches.deliver(job, self.id)?;
        Ok(())
    }

    /// Puts bytes, which stay as they are until a quiet if they are registered.
    ///
    /// # Errors
    /// The engine says no.
    pub(crate) fn put(&self, job: &Running, pe: u32, to: (u8, u64), from: &Near) -> Result<()> {
        match from {
            Near::Registered(local) => self.put_registered(job, pe, to, *local),
            Near::Elsewhere(memory) => self.put_copied(job, pe, to, memory),
        }
    }

    fn put_registered(
        &self,
        job: &Running,
        pe: u32,
        (heap, mut offset): (u8, u64),
        mut from: Local,
    ) -> Result<()> {
        while from.len > 0 {
            let put = || Ok(job.put(self.id, pe, (heap, offset), Source::Heap(from))?);
            let taken = self.until(job, put)?;
            (offset, from.offset, from.len) = (offset + taken, from.offset + taken, from.len - taken);
        }
        Ok(())
    }

    fn put_copied(&self, job: &Running, pe: u32, (heap, offset): (u8, u64), from: &Memory) -> Result<()> {
        let mut at = 0;
        while at < from.len() {
            let len = (from.len() - at).min(self.copied_max);
            let mut bytes = [0; COPIED_MAX];
            let bytes = &mut bytes[..len];
            read(from, at as u64, bytes)?;
            let there = (heap, offset + at as u64);
            self.until(job, || Ok(job.put(self.id, pe, there, Source::Bytes(bytes))?))?;
            at += len;
        }
        Ok(())
    }

    /// Gets bytes, which are there after a quiet.
    ///
    /// # Errors
    /// The engine says no.
    pub(crate) fn get(&self, job: &Running, pe: u32, from: (u8, u64), into: &Near) -> Result<()> {
        match into {
            Near::Registered(local) => self.get_registered(job, pe, from, *local),
            Near::Elsewhere(memory) => self.get_staged(job, pe, from, memory),
        }
    }

    fn get_registered(
        &self,
        job: &Running,
        pe: u32,
        (heap, mut offset): (u8, u64),
        mut into: Local,
    ) -> Result<()> {
        while into.len > 0 {
            let taken = self.until(job, || Ok(job.get(self.id, pe, (heap, offset), into)?))?;
            (offset, into.offset, into.len) = (offset + taken, into.offset + taken, into.len - taken);
        }
        Ok(())
    }

    /// Waits for the bytes: nobody else would copy them.
    fn get_staged(&self, job: &Running, pe: u32, (heap, offset): (u8, u64), into: &Memory) -> Result<()> {
        let stage = self.stage.lock().unwrap_or_else(PoisonError::into_inner);
        let (memory, place) = &*stage;
        let mut at = 0;
        while at < into.len() as u64 {
            let len = STAGE.min(into.len() as u64 - at);
            self.get_registered(job, pe, (heap, offset + at), Local { len, ..*place })?;
            self.quiet(job, pe)?;
            let copied = into.copy_from(at, memory, place.offset, len);
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
    pub(crate) fn change(
        &self,
        job: &Running,
        pe: u32,
        word: Word,
        change: Change,
        result: Option<(Place, u64)>,
    ) -> Result<()> {
        match change {
            Change::Signal(op, value) => {
                let update = update(op, word, value)?;
                self.until(job, || Ok(job.signal(self.id, pe, update)?.then_some(())))
            }
            Change::Atomic(kind, action, fetches) => {
                let no = CallError::Argument("there is no such atomic");
                let atomic = Atomic::new(kind, action, fetches).ok_or(no)?;
                if fetches {
                    // Before the atomic begins: its value needs a place.
                    self.fetches.reserve_place()?;
                }
                let fetch = self.until(job, || Ok(job.atomic(self.id, pe, word, atomic)?))?;
                match result.filter(|_| fetches) {
                    Some((to, flag)) => {
                        if let Err(lack) = self.fetches.push(Awaited { pe, fetch, to, flag }) {
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

    /// Puts bytes from several places to several, each of which `puts` gives by its number, then changes a word. Nothing is put if one of them cannot be.
    ///
    /// # Errors
    /// As [`Lane::put`] and [`Lane::change`].
    pub(crate) fn put_signal(
        &self,
        job: &Running,
        pe: u32,
        (count, puts): (usize, impl Fn(usize) -> Result<((u8, u64), Near)>),
        (word, op, value): (Word, SignalOp, u64),
    ) -> Result<()> {
        let update = update(op, word, value)?;
        for at in 0..count {
            puts(at)?;
        }
        if crate::planted("nvshmem-signals-first") {
            self.until(job, || Ok(job.signal(self.id, pe, update)?.then_some(())))?;
        }
        if count == 1
            && let (to, Near::Registered(local)) = puts(0)?
            && local.len > 0
        {
            let put = || Ok(job.put_signal(self.id, pe, to, Source::Heap(local), update)?.then_some(()));
            return self.until(job, put);
        }
        for at in 0..count {
            let (to, from) = puts(at)?;
            self.put(job, pe, to, &from)?;
        }
        self.until(job, || Ok(job.signal(self.id, pe, update)?.then_some(())))
    }

    /// Says whether more operations follow the next one at once: they share a doorbell.
    ///
    /// # Errors
    /// The engine says no.
    pub(crate) fn batch(&self, job: &Running, more: bool) -> Result<()> {
        Ok(job.batch(self.id, more)?)
    }

    /// What comes after is behind what came before.
    ///
    /// # Errors
    /// The engine says no.
    pub(crate) fn fence(&self, job: &Running) -> Result<()> {
        if crate::planted("nvshmem-fences-nothing") {
            return Ok(());
        }
        Ok(job.fence(self.id)?)
    }

    /// Waits until all that was begun towards a PE is complete, and what it was asked for has been brought where it goes.
    ///
    /// # Errors
    /// Something has failed: told once.
    pub(crate) fn quiet(&self, job: &Running, pe: u32) -> Result<()> {
        if crate::planted("nvshmem-quiets-nothing") {
            return Ok(());
        }
        self.until(job, || Ok(job.quiet_member(self.id, pe)?.then_some(())))?;
        if crate::planted("nvshmem-quiets-the-first") {
            while self.fetches.deliver(job, self.id)? {}
            return Ok(());
        }
        // What others have not answered yet may be before it.
        self.until(job, || Ok(self.fetches.deliver_all_of(job, self.id, pe)?.then_some(())))
    }
}

fn update(op: SignalOp, word: Word, value: u64) -> Result<Update> {
    Update::new(op, word, value).ok_or(CallError::Argument("the signal is wider than its word"))
}

fn read(from: &Memory, at: u64, out: &mut [u8]) -> Result<()> {
    from.read(at, out).map_err(|_| CallError::Argument("bytes that are put cannot be read"))
}

/// The word of so many bytes at a place of a PE.
///
/// # Errors
/// It is neither 4 nor 8 bytes, or not aligned.
pub(crate) fn word((heap, offset): (u8, u64), bytes: i32) -> Result<Word> {
    let width = match bytes {
        4 => Width::Four,
        8 => Width::Eight,
        _ => return Err(CallError::Argument("a word of an atomic has 4 or 8 bytes")),
    };
    Ok(Word::new(heap, offset, width)?)
}
