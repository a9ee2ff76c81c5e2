//! What the executor asks of whatever carries bytes between members: puts, gets and atomics whose ends are told one by one.
//! [`RmaNetwork`] is the engine's one-sided part, over any fabric.

use std::ops::Deref;

use trunkline_fabric::{Fabric, Host, OpStatus as Ending};
use trunkline_proto::rma::atomic::{AtomicAction, AtomicType, TypedAtomic};
use trunkline_proto::wire::device_queue::EntryStatus;
use trunkline_proto::wire::rma::word::{SymmetricWord, WordWidth};

use trunkline_engine::rma::{
    ContextId, HeapAddress, HeapRange, LossCause, MemberRank, PutSource, RmaError, RmaJob, RmaRequest,
};

/// Why something failed: as a completion says it, and a number for people.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct EntryFailure {
    /// The status of the entry.
    pub status: EntryStatus,
    /// The reason in the error page.
    pub reason: u32,
}

impl EntryFailure {
    /// One without a number.
    #[must_use]
    pub const fn from_status(status: EntryStatus) -> Self {
        Self { status, reason: 0 }
    }
}

/// What became of the attempt to begin something.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum BeginOutcome {
    /// For so many of its bytes it has begun, whose end is told. The rest is to be begun by another call.
    Begun(u64),
    /// Not now.
    Busy,
    /// It cannot be.
    Failed(EntryFailure),
}

/// How something ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct NetworkCompletion {
    /// The number it was begun with.
    pub cookie: u64,
    /// The value before, of an atomic that fetches.
    pub how: Result<u64, EntryFailure>,
}

/// Carries bytes between members. Used by one thread at a time.
pub trait MemberNetwork: Send {
    /// The number of this member.
    fn own_rank(&self) -> MemberRank;

    /// Whether this process may change words of its own heaps by itself, beside what others ask for.
    fn can_execute_locally(&self) -> bool;

    /// Begins to put the first of these bytes; what is told of their end is that they are placed.
    fn put(&mut self, cookie: u64, to: HeapAddress, from: PutSource<'_>) -> BeginOutcome;

    /// Begins to get the first of these bytes.
    fn get(&mut self, cookie: u64, from: HeapAddress, into: HeapRange) -> BeginOutcome;

    /// Begins an atomic on a word of 8 bytes.
    fn post_atomic(
        &mut self,
        cookie: u64,
        at: HeapAddress,
        action: AtomicAction,
        fetches: bool,
    ) -> BeginOutcome;

    /// Goes on with everything, also with what this process does for others, and tells what has ended. Whether anything moved.
    fn make_progress(&mut self, ended: &mut Vec<NetworkCompletion>) -> bool;

    /// Tells a member beside all links that an error word of it is to say this, if it says nothing. Whether that was said.
    fn send_error_word(&mut self, at: HeapAddress, value: u64) -> bool;

    /// Hears what comes beside links, which is asked for seldom as it takes system calls: who is gone, and which words are spoiled.
    fn poll_control_streams(&mut self) {}

    /// Whether nothing of a member comes any more, as far as was heard.
    fn is_gone(&mut self, member: MemberRank) -> bool;

    /// Gives back what it has of the job, whatever is under way. Nothing is asked of it afterwards but by mistake, and that fails.
    fn detach_job(&mut self) {}
}

/// A one-sided job, by a context of the executor's own, which is the job's again when this is dropped.
#[derive(Debug)]
pub struct RmaNetwork<J> {
    job: J,
    id: ContextId,
    /// Gives it back. Whoever drops this knows nothing of the job.
    give_back: fn(&J, ContextId),
    me: MemberRank,
    ended: Vec<trunkline_engine::rma::OpOutcome>,
    /// How much has moved without completing anything: what others put here.
    stirs: Option<u64>,
}

impl<F: Fabric, H: Host, J: Deref<Target = RmaJob<F, H>>> RmaNetwork<J> {
    /// Of a job whose members have met.
    ///
    /// # Errors
    /// As [`RmaJob::create_reporting_context`](trunkline_engine::rma::RmaJob::create_reporting_context).
    pub fn new(job: J) -> Result<Self, RmaError> {
        let id = job.create_reporting_context()?;
        let me = job.rank_and_size().map_or(MemberRank::MAX, |(me, _)| me);
        Ok(Self { job, id, give_back: Self::give_back, me, ended: Vec::with_capacity(64), stirs: None })
    }

    fn give_back(job: &J, id: ContextId) {
        // Given back before, it is another's.
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
        // That links to it are lost says nothing of it: it may still reach this process.
        matches!(
            self.job.connect_member(self.id, member),
            Err(RmaError::Lost { lost: LossCause::Dead(_), .. })
        )
    }

    fn detach_job(&mut self) {
        (self.give_back)(&self.job, self.id);
    }
}

/// How a completion calls what the network says.
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
