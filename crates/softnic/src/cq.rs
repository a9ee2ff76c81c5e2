//! Completion queues as a WAIT sees them: how many completions each rail has produced, and from which on an error was
//! among them. A rail's `poll` counts, with one store; the links of other rails look, without a lock. Nothing here
//! holds a completion.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use trunkline_fabric::{PostError, Status};

use crate::error::Planted;
use crate::job::Kind;
use crate::qp::{Env, Qp};

/// What one rail has produced. Only the owner of the rail writes.
#[repr(align(128))]
pub(crate) struct Cq {
    /// Names it within the fabric.
    pub(crate) id: u64,
    nic: usize,
    /// Index of the next completion, modulo 2^64.
    produced: AtomicU64,
    failed: AtomicBool,
    /// Index of the first completion in error; of no meaning before `failed`.
    failed_at: AtomicU64,
    closed: AtomicBool,
    bugs: Bugs,
}

/// Planted bugs.
#[derive(Clone, Copy)]
struct Bugs {
    /// A wait ends one completion early.
    early: Planted,
    /// A wait does not look for errors.
    deaf: Planted,
    /// A wait for the failed completion itself succeeds.
    blurred: Planted,
    /// A wait does not see that the rail is gone.
    faithful: Planted,
    /// A wait that fails does not let end what was before it.
    hasty: Planted,
    /// A destroyed link's completions are not missed.
    trusting: Planted,
}

/// What a wait can expect.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Outlook {
    /// It is over.
    Reached,
    /// The completion is still to come.
    NotYet,
    /// It never comes, or came in error.
    Lost,
}

impl Cq {
    /// Index of the next completion.
    #[inline]
    pub(crate) fn next(&self) -> u64 {
        self.produced.load(Ordering::Relaxed)
    }

    /// Counts `count` completions.
    #[inline]
    pub(crate) fn produce(&self, count: usize) {
        // Whoever sees it sees what the completions stand for.
        self.produced.store(self.next().wrapping_add(count as u64), Ordering::Release);
    }

    /// A link was destroyed that still owed completions: those of others will take their numbers.
    pub(crate) fn forgo(&self) {
        if !self.bugs.trusting.is_on() {
            self.fail(0);
        }
    }

    /// The completion that comes after `skipped` others, not yet counted, is in error; from there on nothing can be
    /// relied on.
    pub(crate) fn fail(&self, skipped: usize) {
        if !self.failed.load(Ordering::Relaxed) {
            self.failed_at.store(self.next().wrapping_add(skipped as u64), Ordering::Relaxed);
            self.failed.store(true, Ordering::Release);
        }
    }

    /// What can be expected of completion number `index`.
    #[inline]
    fn outlook(&self, index: u64) -> Outlook {
        // Looked at before the error, which is told first.
        let produced = self.produced.load(Ordering::Acquire);
        if self.closed.load(Ordering::Acquire) && !self.bugs.faithful.is_on() {
            return Outlook::Lost;
        }
        if self.failed.load(Ordering::Acquire) && !self.bugs.deaf.is_on() {
            let behind = index.wrapping_sub(self.failed_at.load(Ordering::Relaxed)) as i64;
            if behind >= i64::from(self.bugs.blurred.is_on()) {
                return Outlook::Lost;
            }
        }
        let ahead = produced.wrapping_sub(index) as i64;
        if ahead > 0 || (ahead == 0 && self.bugs.early.is_on()) { Outlook::Reached } else { Outlook::NotYet }
    }
}

/// The completion queues of a fabric's open rails.
pub(crate) struct Cqs {
    open: Mutex<HashMap<u64, Arc<Cq>>>,
    next: AtomicU64,
}

impl Cqs {
    /// None yet; the first gets number `first`, which is best a random one: then another fabric's numbers name nothing.
    pub(crate) fn new(first: u64) -> Self {
        Self { open: Mutex::new(HashMap::new()), next: AtomicU64::new(first) }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Arc<Cq>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One for a new rail of a NIC, whose first completion has number `start`.
    pub(crate) fn add(&self, nic: usize, start: u64) -> Arc<Cq> {
        let cq = Arc::new(Cq {
            id: self.next.fetch_add(1, Ordering::Relaxed),
            nic,
            produced: AtomicU64::new(start),
            failed: AtomicBool::new(false),
            failed_at: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            bugs: Bugs {
                early: Planted::named("soft-wait-one-early"),
                deaf: Planted::named("soft-wait-ignores-errors"),
                blurred: Planted::named("soft-wait-forgives-its-own"),
                faithful: Planted::named("soft-wait-outlives-rails"),
                hasty: Planted::named("soft-wait-flushes-what-was-before"),
                trusting: Planted::named("soft-wait-trusts-destroyed-links"),
            },
        });
        self.lock().insert(cq.id, Arc::clone(&cq));
        cq
    }

    /// Ends that of a rail that is gone.
    pub(crate) fn close(&self, cq: &Cq) {
        self.lock().remove(&cq.id);
        cq.closed.store(true, Ordering::Release);
    }

    /// An open one of a NIC.
    fn find(&self, nic: usize, id: u64) -> Option<Arc<Cq>> {
        self.lock().get(&id).filter(|cq| cq.nic == nic).map(Arc::clone)
    }
}

impl Qp {
    /// Refuses a wait for what is no completion queue of this NIC. Takes a lock only if the last wait was for another.
    pub(crate) fn check_wait(&mut self, env: &Env<'_>, id: u64) -> Result<(), PostError> {
        let known = self.awaited.as_ref().is_some_and(|cq| cq.id == id && !cq.closed.load(Ordering::Acquire));
        if known || env.shared.cqs.find(env.nic, id).is_some() {
            return Ok(());
        }
        Err(PostError::Refused(Status::LocalProtection))
    }

    /// Whether the wait in front of all that is pending is over; then it is a job that does nothing. If it cannot
    /// succeed any more, the link ends, once everything before it has ended in its own way.
    // Not inlined, so that it costs other operations nothing.
    #[inline(never)]
    pub(crate) fn end_wait(&mut self, env: &Env<'_>, id: u64, index: u64) -> bool {
        let outlook = self.outlook(env, id, index);
        let hasty = self.awaited.as_ref().is_some_and(|cq| cq.bugs.hasty.is_on());
        let oldest = self.flights.first();
        match (outlook, self.pending.front_mut()) {
            (Outlook::Reached, Some(job)) => job.kind = Kind::Nop,
            (Outlook::Lost, Some(job)) if job.flight == oldest || hasty => {
                self.fail_with(Status::Flushed, false, None);
            }
            _ => {}
        }
        outlook == Outlook::Reached
    }

    fn outlook(&mut self, env: &Env<'_>, id: u64, index: u64) -> Outlook {
        if let Some(cq) = &self.awaited
            && cq.id == id
        {
            return cq.outlook(index);
        }
        let Some(cq) = env.shared.cqs.find(env.nic, id) else { return Outlook::Lost };
        self.awaited.insert(cq).outlook(index)
    }
}

#[cfg(test)]
mod tests {
    use super::{Cqs, Outlook};

    #[test]
    fn indices_wrap() {
        let cqs = Cqs::new(1);
        let cq = cqs.add(0, u64::MAX - 1);
        assert_eq!(cq.outlook(u64::MAX - 2), Outlook::Reached);
        for index in [u64::MAX - 1, u64::MAX, 0, 1, 2] {
            assert_eq!((cq.next(), cq.outlook(index)), (index, Outlook::NotYet));
            cq.produce(1);
            assert_eq!(cq.outlook(index), Outlook::Reached);
        }
        assert_eq!(cq.outlook(u64::MAX - 1), Outlook::Reached, "what is over stays over");
    }

    #[test]
    fn the_first_error_counts_also_across_the_wrap() {
        let cqs = Cqs::new(1);
        let cq = cqs.add(0, u64::MAX - 2);
        cq.fail(3);
        cq.fail(4);
        cq.produce(5);
        cq.fail(0);
        cq.produce(2);
        assert_eq!(cq.next(), 4);
        let outlook = [u64::MAX - 2, u64::MAX - 1, u64::MAX, 0, 1, 100].map(|index| cq.outlook(index));
        let reached = Outlook::Reached;
        let lost = Outlook::Lost;
        assert_eq!(outlook, [reached, reached, reached, lost, lost, lost]);
    }

    #[test]
    fn only_open_queues_of_the_nic_are_found() {
        let cqs = Cqs::new(u64::MAX);
        let one = cqs.add(0, 0);
        let two = cqs.add(1, 0);
        assert_eq!((one.id, two.id), (u64::MAX, 0));
        assert!(cqs.find(0, one.id).is_some() && cqs.find(1, two.id).is_some());
        assert!(cqs.find(1, one.id).is_none() && cqs.find(0, 1).is_none());
        cqs.close(&one);
        assert!(cqs.find(0, one.id).is_none());
        assert_eq!(one.outlook(0), Outlook::Lost);
    }
}
