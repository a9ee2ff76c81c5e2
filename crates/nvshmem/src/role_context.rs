//! The operations of one of the two roles: puts, gets, atomics and signals, in the order that NVSHMEM defines. Calls
//! wait only for resources, and a quiet for its operations. Each wait delivers fetched values that have arrived.

use trunkline_engine::rma::{HeapAddress, HeapRange};
use trunkline_mem::MemoryRange;
use trunkline_proto::rma::atomic::{AtomicAction, AtomicType, TypedAtomic};
use trunkline_proto::wire::rma::signal::{SignalUpdate, UpdateOp};
use trunkline_proto::wire::rma::word::{SymmetricWord, WordWidth};
use trunkline_runtime::{ContextCalls, CopyFrom, CopyInto, OneSided, OneSidedContext, StageLayout};

use crate::error::{CallError, Result};
use crate::fetches::{AwaitedFetch, FetchQueue};
use crate::memory::RegisteredPlace;

/// The local bytes of an operation.
#[derive(Clone, Debug)]
pub(crate) enum LocalBytes {
    /// Bytes of registered memory.
    Registered(HeapRange),
    /// Bytes of other memory, which are copied.
    Elsewhere(MemoryRange),
}

/// A change of a word.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum WordChange {
    /// An atomic, and whether the former value is fetched.
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
    /// Creates a context of the engine with the stage of the role.
    ///
    /// # Errors
    /// The engine has no room for a context.
    pub(crate) fn new(network: &OneSided, stage: StageLayout) -> Result<Self> {
        Ok(Self { context: network.create_context(stage)?, fetches: FetchQueue::default() })
    }

    #[inline]
    fn fabric_calls<'a>(&'a self, network: &'a OneSided) -> ContextCalls<'a, FetchQueue> {
        network.calls_on(&self.context, &self.fetches)
    }

    /// Drives the fabric, and delivers fetched values.
    ///
    /// # Errors
    /// As [`FetchQueue::deliver_values`].
    pub(crate) fn progress(&self, network: &OneSided) -> Result<()> {
        let calls = self.fabric_calls(network);
        calls.make_progress()?;
        self.fetches.deliver_values(&calls)?;
        Ok(())
    }

    /// Puts bytes. Registered bytes must not change until a quiet.
    ///
    /// # Errors
    /// The engine rejects the put.
    pub(crate) fn put(&self, network: &OneSided, to: HeapAddress, from: &LocalBytes) -> Result<()> {
        let calls = self.fabric_calls(network);
        match from {
            LocalBytes::Registered(local) => calls.put_registered(to, *local)?,
            LocalBytes::Elsewhere(memory) => calls.put_copied(to, CopyFrom::Memory(memory))?,
        }
        Ok(())
    }

    /// Gets bytes. Registered destinations contain them after a quiet.
    ///
    /// # Errors
    /// The engine rejects the get.
    pub(crate) fn get(&self, network: &OneSided, from: HeapAddress, into: &LocalBytes) -> Result<()> {
        let calls = self.fabric_calls(network);
        match into {
            LocalBytes::Registered(local) => calls.get_registered(from, *local)?,
            // Unregistered destinations are filled by a copy out of the stage, which only this call can make.
            LocalBytes::Elsewhere(memory) => calls.get_copied(from, CopyInto::Memory(memory))?,
        }
        Ok(())
    }

    /// Changes a word. The former value is written to a place, then a flag.
    ///
    /// # Errors
    /// The atomic is not defined for the type, or the engine rejects it.
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
                let no = CallError::Argument("the atomic does not exist for this type");
                let atomic = TypedAtomic::new(kind, action, fetches).ok_or(no)?;
                if fetches {
                    // The entry is reserved before the atomic begins, because its value must not be lost.
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

    /// Makes `count` puts towards a PE, then changes a word of it by `update`. `puts` returns the target and the source
    /// of each put by its number. If one of them is invalid, none is made.
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

    /// Sets whether more operations follow at once, which then share a doorbell.
    ///
    /// # Errors
    /// The engine rejects the call.
    pub(crate) fn set_batching(&self, network: &OneSided, more: bool) -> Result<()> {
        Ok(self.fabric_calls(network).set_batching(more)?)
    }

    /// Orders later operations after earlier ones.
    ///
    /// # Errors
    /// The engine rejects the call.
    pub(crate) fn fence(&self, network: &OneSided) -> Result<()> {
        Ok(self.fabric_calls(network).fence()?)
    }

    /// Waits until all operations towards a PE are complete, and their fetched values are delivered.
    ///
    /// # Errors
    /// An operation has failed. Each failure is returned once.
    pub(crate) fn quiet(&self, network: &OneSided, pe: u32) -> Result<()> {
        let calls = self.fabric_calls(network);
        calls.quiet_member(pe)?;
        // Replies of other PEs may still be outstanding.
        calls.wait_until(|| Ok(self.fetches.deliver_all_of(&calls, pe)?.then_some(())))
    }
}

/// Returns the change that a signal makes to a word.
///
/// # Errors
/// The value is wider than the word.
pub(crate) fn signal_update(op: UpdateOp, word: SymmetricWord, value: u64) -> Result<SignalUpdate> {
    SignalUpdate::new(op, word, value).ok_or(CallError::Argument("the signal's value is wider than its word"))
}

/// Returns the word of `bytes` bytes at a place of a PE.
///
/// # Errors
/// The word has neither 4 nor 8 bytes, or is not aligned.
pub(crate) fn word_at(place: HeapAddress, bytes: i32) -> Result<SymmetricWord> {
    let width = match bytes {
        4 => WordWidth::Four,
        8 => WordWidth::Eight,
        _ => return Err(CallError::Argument("the word of an atomic must have 4 or 8 bytes")),
    };
    Ok(SymmetricWord::new(place.heap, place.offset, width)?)
}
