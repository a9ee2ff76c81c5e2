//! What one of the two roles has begun: puts, gets, atomics and signals, in order behind each other where NVSHMEM orders them. Calls wait only for room, and
//! a quiet for what it is asked for; while one waits, values that come are brought where they go.

use trunkline_engine::rma::{HeapAddress, HeapRange};
use trunkline_mem::MemoryRange;
use trunkline_proto::rma::atomic::{AtomicAction, AtomicType, TypedAtomic};
use trunkline_proto::wire::rma::signal::{SignalUpdate, UpdateOp};
use trunkline_proto::wire::rma::word::{SymmetricWord, WordWidth};
use trunkline_runtime::{ContextCalls, CopyFrom, CopyInto, OneSided, OneSidedContext, StageLayout};

use crate::error::{CallError, Result};
use crate::fetches::{AwaitedFetch, FetchQueue};
use crate::memory::RegisteredPlace;

/// Bytes on this side.
#[derive(Clone, Debug)]
pub(crate) enum LocalBytes {
    /// Of registered memory.
    Registered(HeapRange),
    /// Of memory that is not: they are copied.
    Elsewhere(MemoryRange),
}

/// What is to be done with a word.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum WordChange {
    /// An atomic, and whether what was there is asked for.
    Atomic(AtomicType, AtomicAction, bool),
    /// A signal.
    Signal(UpdateOp, u64),
}

/// A context of a role, and the values that its atomics fetch.
pub(crate) struct RoleContext {
    context: OneSidedContext,
    fetches: FetchQueue,
}

impl RoleContext {
    /// A context of its own in the engine, with that stage.
    ///
    /// # Errors
    /// The engine has no room.
    pub(crate) fn new(network: &OneSided, stage: StageLayout) -> Result<Self> {
        Ok(Self { context: network.create_context(stage)?, fetches: FetchQueue::default() })
    }

    #[inline]
    fn fabric_calls<'a>(&'a self, network: &'a OneSided) -> ContextCalls<'a, FetchQueue> {
        network.calls_on(&self.context, &self.fetches)
    }

    /// Goes on, and brings values where they go.
    ///
    /// # Errors
    /// As [`FetchQueue::deliver_values`].
    pub(crate) fn progress(&self, network: &OneSided) -> Result<()> {
        let calls = self.fabric_calls(network);
        calls.make_progress()?;
        self.fetches.deliver_values(&calls)?;
        Ok(())
    }

    /// Puts bytes, which stay as they are until a quiet if they are registered.
    ///
    /// # Errors
    /// The engine says no.
    pub(crate) fn put(&self, network: &OneSided, to: HeapAddress, from: &LocalBytes) -> Result<()> {
        let calls = self.fabric_calls(network);
        match from {
            LocalBytes::Registered(local) => calls.put_registered(to, *local)?,
            LocalBytes::Elsewhere(memory) => calls.put_copied(to, CopyFrom::Memory(memory))?,
        }
        Ok(())
    }

    /// Gets bytes, which are there after a quiet.
    ///
    /// # Errors
    /// The engine says no.
    pub(crate) fn get(&self, network: &OneSided, from: HeapAddress, into: &LocalBytes) -> Result<()> {
        let calls = self.fabric_calls(network);
        match into {
            LocalBytes::Registered(local) => calls.get_registered(from, *local)?,
            // Nobody else would copy them.
            LocalBytes::Elsewhere(memory) => calls.get_copied(from, CopyInto::Memory(memory))?,
        }
        Ok(())
    }

    /// Changes a word; what it was goes to a place, with a flag behind it.
    ///
    /// # Errors
    /// There is no such atomic, or the engine says no.
    pub(crate) fn change_word(
        &self,
        network: &OneSided,
        pe: u32,
        word: SymmetricWord,
        change: WordChange,
        result: Option<(RegisteredPlace, u64)>,
    ) -> Result<()> {
        let calls = self.fabric_calls(network);
        match change {
            WordChange::Signal(op, value) => Ok(calls.send_signal(pe, signal_update(op, word, value)?)?),
            WordChange::Atomic(kind, action, fetches) => {
                let no = CallError::Argument("there is no such atomic");
                let atomic = TypedAtomic::new(kind, action, fetches).ok_or(no)?;
                if fetches {
                    // Before the atomic begins: its value needs a place.
                    self.fetches.reserve_place()?;
                }
                let fetch = calls.post_atomic(pe, word, atomic)?;
                match result.filter(|_| fetches) {
                    Some((to, flag)) => {
                        if let Err(lack) = self.fetches.push(AwaitedFetch { pe, fetch, to, flag }) {
                            calls.give_up(fetch)?;
                            return Err(lack);
                        }
                    }
                    None if fetches => calls.give_up(fetch)?,
                    None => {}
                }
                Ok(())
            }
        }
    }

    /// Makes `count` puts towards a PE, then changes a word of it by `update`. `puts` returns the target and the source of each put by its
    /// number. If one of them is invalid, none is made.
    ///
    /// # Errors
    /// As [`RoleContext::put`] and [`RoleContext::change_word`].
    pub(crate) fn put_signal(
        &self,
        network: &OneSided,
        pe: u32,
        count: usize,
        puts: impl Fn(usize) -> Result<(HeapAddress, LocalBytes)>,
        update: SignalUpdate,
    ) -> Result<()> {
        for at in 0..count {
            puts(at)?;
        }
        let calls = self.fabric_calls(network);
        if count == 1
            && let (to, LocalBytes::Registered(local)) = puts(0)?
            && local.len > 0
        {
            return Ok(calls.put_signal_registered(to, local, update)?);
        }
        for at in 0..count {
            let (to, from) = puts(at)?;
            self.put(network, to, &from)?;
        }
        Ok(calls.send_signal(pe, update)?)
    }

    /// Says whether more operations follow the next one at once: they share a doorbell.
    ///
    /// # Errors
    /// The engine says no.
    pub(crate) fn set_batching(&self, network: &OneSided, more: bool) -> Result<()> {
        Ok(self.fabric_calls(network).set_batching(more)?)
    }

    /// What comes after is behind what came before.
    ///
    /// # Errors
    /// The engine says no.
    pub(crate) fn fence(&self, network: &OneSided) -> Result<()> {
        Ok(self.fabric_calls(network).fence()?)
    }

    /// Waits until all that was begun towards a PE is complete, and what it was asked for has been brought where it goes.
    ///
    /// # Errors
    /// Something has failed: told once.
    pub(crate) fn quiet(&self, network: &OneSided, pe: u32) -> Result<()> {
        let calls = self.fabric_calls(network);
        calls.quiet_member(pe)?;
        // What others have not answered yet may be before it.
        calls.wait_until(|| Ok(self.fetches.deliver_all_of(&calls, pe)?.then_some(())))
    }
}

/// The change of a word by a signal.
///
/// # Errors
/// The value is wider than the word.
pub(crate) fn signal_update(op: UpdateOp, word: SymmetricWord, value: u64) -> Result<SignalUpdate> {
    SignalUpdate::new(op, word, value).ok_or(CallError::Argument("the signal is wider than its word"))
}

/// The word of so many bytes at a place of a PE.
///
/// # Errors
/// It is neither 4 nor 8 bytes, or not aligned.
pub(crate) fn word_at(place: HeapAddress, bytes: i32) -> Result<SymmetricWord> {
    let width = match bytes {
        4 => WordWidth::Four,
        8 => WordWidth::Eight,
        _ => return Err(CallError::Argument("a word of an atomic has 4 or 8 bytes")),
    };
    Ok(SymmetricWord::new(place.heap, place.offset, width)?)
}
