//! A context of a job, and calls on it: atomics, signals, quiets and fences. Puts and gets are in `transfer`, waits in
//! `wait`. Front ends call it; calls that begin an operation may wait for room.

use trunkline_engine::rma::{ContextId, FetchHandle, MemberRank, RmaError};
use trunkline_proto::rma::atomic::TypedAtomic;
use trunkline_proto::wire::rma::signal::SignalUpdate;
use trunkline_proto::wire::rma::word::SymmetricWord;

use super::OneSided;
use super::stage::{BounceStage, StageLayout};
use super::transfer::INLINE_MAX;
use crate::fabric_job::FabricJob;

/// A context: a stream of operations with its own order and completion. Several threads may use one.
#[derive(Debug)]
pub struct OneSidedContext {
    id: ContextId,
    inline_max: usize,
    pub(super) stage: BounceStage,
}

impl OneSidedContext {
    /// The largest number of bytes that a put copies into the request, without a stage.
    #[inline]
    #[must_use]
    pub fn inline_max(&self) -> usize {
        self.inline_max
    }
}

/// The receiver of values of atomics whose handles a front end keeps. `()` is for front ends that keep none.
pub trait FetchSink: Sized {
    /// Collects the values that have arrived ([`ContextCalls::poll_ready_fetch`]), so that the engine has room for
    /// further atomics. Every wait calls it after each fruitless try.
    ///
    /// # Errors
    /// An error ends the wait.
    fn deliver_fetches(&self, calls: &ContextCalls<'_, Self>) -> Result<(), RmaError>;
}

impl FetchSink for () {
    #[inline]
    fn deliver_fetches(&self, _calls: &ContextCalls<'_, Self>) -> Result<(), RmaError> {
        Ok(())
    }
}

/// The calls on a context. Those that begin an operation wait until there is room for it.
#[derive(Clone, Copy)]
pub struct ContextCalls<'a, S> {
    pub(super) network: &'a OneSided,
    pub(super) context: &'a OneSidedContext,
    pub(super) sink: &'a S,
}

impl OneSided {
    /// Creates a context, whose stage is a part of a heap of this process.
    ///
    /// # Errors
    /// The engine has no room for a context, or the pieces of the stage do not fit it.
    pub fn create_context(&self, layout: StageLayout) -> Result<OneSidedContext, RmaError> {
        let stage = BounceStage::new(layout)?;
        let id = self.job.create_context()?;
        let inline_max = (self.job.inline_max(id)? as usize).min(INLINE_MAX);
        Ok(OneSidedContext { id, inline_max, stage })
    }

    /// Returns the calls on a context of this job. While they wait, they deliver values of atomics to `sink`.
    #[inline]
    #[must_use]
    pub fn calls_on<'a, S: FetchSink>(
        &'a self,
        context: &'a OneSidedContext,
        sink: &'a S,
    ) -> ContextCalls<'a, S> {
        ContextCalls { network: self, context, sink }
    }
}

impl<S: FetchSink> ContextCalls<'_, S> {
    #[inline]
    pub(super) fn fabric_job(&self) -> &FabricJob {
        &self.network.job
    }

    #[inline]
    pub(super) fn context_id(&self) -> ContextId {
        self.context.id
    }

    /// Posts an atomic. If it does not fetch, it is complete after a quiet. If it fetches, its handle is for
    /// [`wait_fetch`](Self::wait_fetch), [`poll_fetch`](Self::poll_fetch), [`poll_ready_fetch`](Self::poll_ready_fetch)
    /// or [`give_up`](Self::give_up).
    ///
    /// # Errors
    /// [`RmaError::Lost`]; [`RmaError::Argument`] if the word is not as wide as the type.
    pub fn post_atomic(
        &self,
        member: MemberRank,
        word: SymmetricWord,
        atomic: TypedAtomic,
    ) -> Result<FetchHandle, RmaError> {
        self.wait_until(|| self.fabric_job().post_atomic(self.context_id(), member, word, atomic))
    }

    /// Executes an atomic, and returns the former value of the word.
    ///
    /// # Errors
    /// As [`post_atomic`](Self::post_atomic); [`RmaError::NoWord`].
    pub fn fetch_atomic(
        &self,
        member: MemberRank,
        word: SymmetricWord,
        atomic: TypedAtomic,
    ) -> Result<u64, RmaError> {
        let fetch = self.post_atomic(member, word, atomic)?;
        self.wait_fetch(fetch)
    }

    /// Waits for the value of an atomic, and ends its handle.
    ///
    /// # Errors
    /// [`RmaError::NoWord`], [`RmaError::Lost`]: its handle has ended, too.
    pub fn wait_fetch(&self, fetch: FetchHandle) -> Result<u64, RmaError> {
        let waited = self.wait_until(|| self.poll_fetch(fetch));
        if waited.is_err() {
            // The caller receives the first error, which this one could only repeat.
            let _ = self.give_up(fetch);
        }
        waited
    }

    /// Returns the value of an atomic if it has arrived, and then ends the handle. Drives the fabric.
    ///
    /// # Errors
    /// [`RmaError::NoWord`], which ends the handle, and [`RmaError::Lost`].
    #[inline]
    pub fn poll_fetch(&self, fetch: FetchHandle) -> Result<Option<u64>, RmaError> {
        self.fabric_job().collect_fetch(self.context_id(), fetch)
    }

    /// Does the same without driving the fabric.
    ///
    /// # Errors
    /// As [`poll_fetch`](Self::poll_fetch).
    #[inline]
    pub fn poll_ready_fetch(&self, fetch: FetchHandle) -> Result<Option<u64>, RmaError> {
        self.fabric_job().collect_ready_fetch(self.context_id(), fetch)
    }

    /// Ends the handle of an atomic whose value is not needed.
    ///
    /// # Errors
    /// The context does not exist.
    pub fn give_up(&self, fetch: FetchHandle) -> Result<(), RmaError> {
        self.fabric_job().give_up(self.context_id(), fetch)
    }

    /// Changes a word of a member, after all earlier puts of this context to that member.
    ///
    /// # Errors
    /// [`RmaError::Lost`], [`RmaError::Argument`].
    pub fn send_signal(&self, member: MemberRank, update: SignalUpdate) -> Result<(), RmaError> {
        self.wait_until(|| {
            Ok(self.fabric_job().send_signal(self.context_id(), member, update)?.then_some(()))
        })
    }

    /// Waits until all operations of this context are complete. Then its stage is free.
    ///
    /// # Errors
    /// [`RmaError::Failed`], once per member: an operation is not complete, and never will be.
    pub fn quiet(&self) -> Result<(), RmaError> {
        self.wait_until(|| self.poll_quiet().map(|is_quiet| is_quiet.then_some(())))?;
        self.context.stage.reset_idle(|| self.poll_quiet())
    }

    /// Waits until all operations of this context towards a member are complete.
    ///
    /// # Errors
    /// As [`quiet`](Self::quiet).
    pub fn quiet_member(&self, member: MemberRank) -> Result<(), RmaError> {
        self.wait_until(|| Ok(self.fabric_job().quiet_member(self.context_id(), member)?.then_some(())))
    }

    /// Drives the fabric, and returns whether all operations of this context are complete.
    ///
    /// # Errors
    /// As [`quiet`](Self::quiet).
    #[inline]
    pub fn poll_quiet(&self) -> Result<bool, RmaError> {
        self.fabric_job().quiet(self.context_id())
    }

    /// Orders all further operations of this context towards a member after all earlier ones.
    ///
    /// # Errors
    /// The context does not exist.
    #[inline]
    pub fn fence(&self) -> Result<(), RmaError> {
        self.fabric_job().fence(self.context_id())
    }

    /// Begins or ends a batch: operations of one batch share a doorbell.
    ///
    /// # Errors
    /// The context does not exist.
    #[inline]
    pub fn set_batching(&self, more: bool) -> Result<(), RmaError> {
        self.fabric_job().set_batching(self.context_id(), more)
    }

    /// Drives the requests of other members, and the operations of this context. Returns whether anything moved.
    ///
    /// # Errors
    /// The context does not exist.
    #[inline]
    pub fn make_progress(&self) -> Result<bool, RmaError> {
        self.fabric_job().progress(self.context_id())
    }

    /// Begins to create the link to a member, if none exists.
    ///
    /// # Errors
    /// [`RmaError::Lost`]: the member has ended, or refuses links.
    pub fn check_member(&self, member: MemberRank) -> Result<(), RmaError> {
        self.fabric_job().connect_member(self.context_id(), member).map(drop)
    }
}
