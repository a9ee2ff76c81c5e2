//! The operations that the executor needs of a network between members: puts, gets and atomics with one completion each. [`RmaNetwork`]
//! provides them with the engine's one-sided part, over any fabric. Called by `entry_ops`, `proxy` and `flushed`; never blocks.

use std::ops::Deref;

use trunkline_fabric::{Fabric, Host, OpStatus as Ending};
use trunkline_proto::rma::atomic::{AtomicAction, AtomicType, TypedAtomic};
use trunkline_proto::wire::device_queue::EntryStatus;
use trunkline_proto::wire::rma::word::{SymmetricWord, WordWidth};

use trunkline_engine::rma::{
    ContextId, HeapAddress, HeapRange, LossCause, MemberRank, PutSource, RmaError, RmaJob, RmaRequest,
};

/// Why an operation failed: the status for its completion, and a number for diagnostics.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct EntryFailure {
    /// The status of the entry.
    pub status: EntryStatus,
    /// The reason for the error page.
    pub reason: u32,
}

impl EntryFailure {
    /// Creates a failure without a reason.
    #[must_use]
    pub const fn from_status(status: EntryStatus) -> Self {
        Self { status, reason: 0 }
    }
}

/// The result of an attempt to begin an operation.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum BeginOutcome {
    /// This many of its bytes have begun, and will have one completion. The caller begins the rest by another call.
    Begun(u64),
    /// There is no room now. The caller may retry.
    Busy,
    /// The operation is impossible.
    Failed(EntryFailure),
}

/// The completion of an operation.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct NetworkCompletion {
    /// The number that the caller gave when it began the operation.
    pub cookie: u64,
    /// The old value of a fetching atomic, or the failure.
    pub how: Result<u64, EntryFailure>,
}

/// A network between members. Used by one thread at a time.
pub trait MemberNetwork: Send {
    /// Returns the rank of this member.
    fn own_rank(&self) -> MemberRank;

    /// Returns whether this process may change words of its own heaps by CPU atomics, concurrently with atomics that other members request.
    fn can_execute_locally(&self) -> bool;

    /// Begins to put a first part of these bytes. Its completion means that they are placed at the target.
    fn put(&mut self, cookie: u64, to: HeapAddress, from: PutSource<'_>) -> BeginOutcome;

    /// Begins to get a first part of these bytes.
    fn get(&mut self, cookie: u64, from: HeapAddress, into: HeapRange) -> BeginOutcome;

    /// Begins an atomic on a word of 8 bytes.
    fn post_atomic(
        &mut self,
        cookie: u64,
        at: HeapAddress,
        action: AtomicAction,
        fetches: bool,
    ) -> BeginOutcome;

    /// Progresses all operations, including requests of other members, and appends completions to `ended`. Returns whether anything
    /// advanced.
    fn make_progress(&mut self, ended: &mut Vec<NetworkCompletion>) -> bool;

    /// Sets an error word of a member by the control stream, if the word is 0. Returns whether the message was sent.
    fn send_error_word(&mut self, at: HeapAddress, value: u64) -> bool;

    /// Polls the control streams: for members that have died, and for error words. Called rarely, as it needs system
    /// calls.
    fn poll_control_streams(&mut self) {}

    /// Returns whether a member is known to be dead, so that nothing more arrives from it.
    fn is_gone(&mut self, member: MemberRank) -> bool;

    /// Releases the resources of the job, whatever is in progress. Later operations fail.
    fn detach_job(&mut self) {}
}

/// A one-sided job, through a context of the executor's own. The context returns to the job on drop.
#[derive(Debug)]
pub struct RmaNetwork<J> {
    job: J,
    id: ContextId,
    /// Returns the context. A function pointer, because `Drop` has no bounds on the type of the job.
    give_back: fn(&J, ContextId),
    me: MemberRank,
    ended: Vec<trunkline_engine::rma::OpOutcome>,
    /// The last value of the job's progress counter. It changes also when other members put bytes here, which completes nothing.
    stirs: Option<u64>,
}

impl<F: Fabric, H: Host, J: Deref<Target = RmaJob<F, H>>> RmaNetwork<J> {
    /// Creates a context of a job whose members have met.
    ///
    /// # Errors
    /// As [`RmaJob::create_reporting_context`](trunkline_engine::rma::RmaJob::create_reporting_context).
    pub fn new(job: J) -> Result<Self, RmaError> {
        let id = job.create_reporting_context()?;
        let me = job.rank_and_size().map_or(MemberRank::MAX, |(me, _)| me);
        Ok(Self { job, id, give_back: Self::give_back, me, ended: Vec::with_capacity(64), stirs: None })
    }

    fn give_back(job: &J, id: ContextId) {
        // An error means that the context was returned before, and may belong to another user.
        let _ = job.abandon_context(id);
    }

    fn begin_request(&self, cookie: u64, member: MemberRank, what: RmaRequest<'_>) -> BeginOutcome {
        match self.job.begin_op(self.id, cookie, member, what) {
            Ok(Some(bytes)) => BeginOutcome::Begun(bytes),
            Ok(None) => BeginOutcome::Busy,
            Err(error) => BeginOutcome::Failed(failure_of_error(&error)),
        }
    }
}

impl<J> Drop for RmaNetwork<J> {
    fn drop(&mut self) {
        (self.give_back)(&self.job, self.id);
    }
}

impl<F: Fabric, H: Host, J: Deref<Target = RmaJob<F, H>> + Send> MemberNetwork for RmaNetwork<J> {
    fn own_rank(&self) -> MemberRank {
        self.me
    }

    fn can_execute_locally(&self) -> bool {
        self.job.can_execute_locally(WordWidth::Eight)
    }

    fn put(&mut self, cookie: u64, to: HeapAddress, from: PutSource<'_>) -> BeginOutcome {
        self.begin_request(cookie, to.member, RmaRequest::Put { heap: to.heap, offset: to.offset, from })
    }

    fn get(&mut self, cookie: u64, from: HeapAddress, into: HeapRange) -> BeginOutcome {
        self.begin_request(
            cookie,
            from.member,
            RmaRequest::Get { heap: from.heap, offset: from.offset, into },
        )
    }

    fn post_atomic(
        &mut self,
        cookie: u64,
        at: HeapAddress,
        action: AtomicAction,
        fetches: bool,
    ) -> BeginOutcome {
        let word = SymmetricWord::new(at.heap, at.offset, WordWidth::Eight);
        match (word, TypedAtomic::new(AtomicType::U64, action, fetches)) {
            (Ok(word), Some(atomic)) => {
                self.begin_request(cookie, at.member, RmaRequest::Atomic { word, atomic })
            }
            _ => BeginOutcome::Failed(EntryFailure::from_status(EntryStatus::Access)),
        }
    }

    fn make_progress(&mut self, ended: &mut Vec<NetworkCompletion>) -> bool {
        let moved = self.job.collect_outcomes(self.id, &mut self.ended).unwrap_or(false);
        let told = |one: trunkline_engine::rma::OpOutcome| NetworkCompletion {
            cookie: one.cookie,
            how: one.how.map_err(failure_of_status),
        };
        ended.extend(self.ended.drain(..).map(told));
        // Puts of other members complete nothing here, but a signal among them may end a wait. So they count as progress, and keep the
        // thread awake.
        let stirs = self.job.sample_progress(Some(self.id));
        moved | (std::mem::replace(&mut self.stirs, stirs) != stirs)
    }

    fn send_error_word(&mut self, at: HeapAddress, value: u64) -> bool {
        self.job.send_error_word(at.member, at.heap, at.offset, value).unwrap_or(false)
    }

    fn poll_control_streams(&mut self) {
        let _moved = self.job.serve_members();
    }

    fn is_gone(&mut self, member: MemberRank) -> bool {
        // Lost links do not prove that the member is dead: it may still reach this process.
        matches!(
            self.job.connect_member(self.id, member),
            Err(RmaError::Lost { lost: LossCause::Dead(_), .. })
        )
    }

    fn detach_job(&mut self) {
        (self.give_back)(&self.job, self.id);
    }
}

/// Converts the status of a network operation to that of an entry.
fn failure_of_status(ending: Ending) -> EntryFailure {
    let (status, reason) = match ending {
        Ending::LocalProtection | Ending::RemoteAccess => (EntryStatus::Access, 0),
        Ending::PeerDead => (EntryStatus::PeerDead, 0),
        Ending::Other(number) | Ending::Unflushed(number) => (EntryStatus::Network, number),
        _ => (EntryStatus::Network, 0),
    };
    EntryFailure { status, reason }
}

fn failure_of_error(error: &RmaError) -> EntryFailure {
    match error {
        RmaError::Lost { lost: LossCause::Dead(_), .. } => EntryFailure::from_status(EntryStatus::PeerDead),
        RmaError::Lost { lost: LossCause::Rails { status, .. }, .. } | RmaError::Failed { status, .. } => {
            failure_of_status(*status)
        }
        RmaError::Argument(_) | RmaError::NoWord(_) => EntryFailure::from_status(EntryStatus::Access),
        _ => EntryFailure::from_status(EntryStatus::Network),
    }
}
