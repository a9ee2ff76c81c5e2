//! What the executor asks of whatever carries bytes between members: puts, gets and atomics whose ends are told one by one.
//! [`Rma`] is the engine's one-sided part, over any fabric.

use std::ops::Deref;

use trunkline_fabric::{Fabric, Host, Status as Ending};
use trunkline_proto::rma::atomic::{Action, Atomic, Type};
use trunkline_proto::wire::device_queue::Status;
use trunkline_proto::wire::rma::word::{Width, Word};

use trunkline_engine::rma::{Begin, ContextId, Job, Local, Lost, Member, RmaError, Source};

/// Bytes of a member's heap, from there on.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Place {
    /// Whose.
    pub member: Member,
    /// Which heap.
    pub heap: u8,
    /// Where in it.
    pub offset: u64,
}

/// Why something failed: as a completion says it, and a number for people.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Failure {
    /// The status of the entry.
    pub status: Status,
    /// The reason in the error page.
    pub reason: u32,
}

impl Failure {
    /// One without a number.
    #[must_use]
    pub const fn of(status: Status) -> Self {
        Self { status, reason: 0 }
    }
}

/// What became of the attempt to begin something.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Carried {
    /// For so many of its bytes it has begun, whose end is told. The rest is to be begun by another call.
    Begun(u64),
    /// Not now.
    Busy,
    /// It cannot be.
    Failed(Failure),
}

/// How something ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Ended {
    /// The number it was begun with.
    pub cookie: u64,
    /// The value before, of an atomic that fetches.
    pub how: Result<u64, Failure>,
}

/// Carries bytes between members. Used by one thread at a time.
pub trait Network: Send {
    /// The number of this member.
    fn me(&self) -> Member;

    /// Whether this process may change words of its own heaps by itself, beside what others ask for.
    fn executes(&self) -> bool;

    /// Begins to put the first of these bytes; what is told of their end is that they are placed.
    fn put(&mut self, cookie: u64, to: Place, from: Source<'_>) -> Carried;

    /// Begins to get the first of these bytes.
    fn get(&mut self, cookie: u64, from: Place, into: Local) -> Carried;

    /// Begins an atomic on a word of 8 bytes.
    fn atomic(&mut self, cookie: u64, at: Place, action: Action, fetches: bool) -> Carried;

    /// Goes on with everything, also with what this process does for others, and tells what has ended. Whether anything moved.
    fn go_on(&mut self, ended: &mut Vec<Ended>) -> bool;

    /// Tells a member beside all links that an error word of it is to say this, if it says nothing. Whether that was said.
    fn spoil(&mut self, at: Place, value: u64) -> bool;

    /// Hears what comes beside links, which is asked for seldom as it takes system calls: who is gone, and which words are spoiled.
    fn hear(&mut self) {}

    /// Whether nothing of a member comes any more, as far as was heard.
    fn is_gone(&mut self, member: Member) -> bool;

    /// Gives back what it has of the job, whatever is under way. Nothing is asked of it afterwards but by mistake, and that fails.
    fn leave(&mut self) {}
}

/// A one-sided job, by a context of the executor's own, which is the job's again when this is dropped.
#[derive(Debug)]
pub struct Rma<J> {
    job: J,
    id: ContextId,
    /// Gives it back. Whoever drops this knows nothing of the job.
    give_back: fn(&J, ContextId),
    me: Member,
    ended: Vec<trunkline_engine::rma::Ended>,
    /// How much has moved without completing anything: what others put here.
    stirs: Option<u64>,
}

impl<F: Fabric, H: Host, J: Deref<Target = Job<F, H>>> Rma<J> {
    /// Of a job whose members have met.
    ///
    /// # Errors
    /// As [`Job::context`].
    pub fn new(job: J) -> Result<Self, RmaError> {
        let id = job.telling_context()?;
        let me = job.me().map_or(Member::MAX, |(me, _)| me);
        Ok(Self { job, id, give_back: Self::give_back, me, ended: Vec::with_capacity(64), stirs: None })
    }

    fn give_back(job: &J, id: ContextId) {
        if !job.mutant().is("dev-keeps-its-context") {
            // Given back before, it is another's.
            let _ = job.abandon_context(id);
        }
    }

    fn begin(&self, cookie: u64, member: Member, what: Begin<'_>) -> Carried {
        match self.job.begin(self.id, cookie, member, what) {
            Ok(Some(bytes)) => Carried::Begun(bytes),
            Ok(None) => Carried::Busy,
            Err(RmaError::Lost { .. }) if self.job.mutant().is("dev-waits-for-lost-links") => Carried::Busy,
            Err(error) => Carried::Failed(failure(&error)),
        }
    }
}

impl<J> Drop for Rma<J> {
    fn drop(&mut self) {
        (self.give_back)(&self.job, self.id);
    }
}

impl<F: Fabric, H: Host, J: Deref<Target = Job<F, H>> + Send> Network for Rma<J> {
    fn me(&self) -> Member {
        self.me
    }

    fn executes(&self) -> bool {
        self.job.executes(Width::Eight)
    }

    fn put(&mut self, cookie: u64, to: Place, from: Source<'_>) -> Carried {
        self.begin(cookie, to.member, Begin::Put { heap: to.heap, offset: to.offset, from })
    }

    fn get(&mut self, cookie: u64, from: Place, into: Local) -> Carried {
        self.begin(cookie, from.member, Begin::Get { heap: from.heap, offset: from.offset, into })
    }

    fn atomic(&mut self, cookie: u64, at: Place, action: Action, fetches: bool) -> Carried {
        let word = Word::new(at.heap, at.offset, Width::Eight);
        match (word, Atomic::new(Type::U64, action, fetches)) {
            (Ok(word), Some(atomic)) => self.begin(cookie, at.member, Begin::Atomic { word, atomic }),
            _ => Carried::Failed(Failure::of(Status::Access)),
        }
    }

    fn go_on(&mut self, ended: &mut Vec<Ended>) -> bool {
        let moved = self.job.ends(self.id, &mut self.ended).unwrap_or(false);
        let told =
            |one: trunkline_engine::rma::Ended| Ended { cookie: one.cookie, how: one.how.map_err(ending) };
        ended.extend(self.ended.drain(..).map(told));
        let stirs = self.job.stirs(Some(self.id));
        moved | (std::mem::replace(&mut self.stirs, stirs) != stirs)
    }

    fn spoil(&mut self, at: Place, value: u64) -> bool {
        self.job.spoil(at.member, at.heap, at.offset, value).unwrap_or(false)
    }

    fn hear(&mut self) {
        let _moved = self.job.serve();
    }

    fn is_gone(&mut self, member: Member) -> bool {
        // That links to it are lost says nothing of it: it may still reach this process.
        matches!(self.job.reaches(self.id, member), Err(RmaError::Lost { lost: Lost::Dead(_), .. }))
    }

    fn leave(&mut self) {
        (self.give_back)(&self.job, self.id);
    }
}

/// How a completion calls what the network says.
fn ending(ending: Ending) -> Failure {
    let (status, reason) = match ending {
        Ending::LocalProtection | Ending::RemoteAccess => (Status::Access, 0),
        Ending::PeerDead => (Status::PeerDead, 0),
        Ending::Other(number) | Ending::Unflushed(number) => (Status::Network, number),
        _ => (Status::Network, 0),
    };
    Failure { status, reason }
}

fn failure(error: &RmaError) -> Failure {
    match error {
        RmaError::Lost { lost: Lost::Dead(_), .. } => Failure::of(Status::PeerDead),
        RmaError::Lost { lost: Lost::Rails { status, .. }, .. } | RmaError::Failed { status, .. } => {
            ending(*status)
        }
        RmaError::Argument(_) | RmaError::NoWord(_) => Failure::of(Status::Access),
        _ => Failure::of(Status::Network),
    }
}
