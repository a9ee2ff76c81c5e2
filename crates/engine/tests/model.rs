//! Lanes and requests under every interleaving that the memory model permits: the engine's own source files, compiled
//! with loom's atomics in place of the real ones.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on stops")]
#![allow(
    dead_code,
    unreachable_pub,
    reason = "the test includes whole source files of the engine and uses a part of each"
)]

#[path = "../src/lane.rs"]
mod lane;
#[path = "../src/comm/request.rs"]
mod request;
#[path = "../src/turns.rs"]
mod turns;

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use loom::sync::Arc;
use loom::thread;
use turns::ExecutorLock;

use lane::OwnerLock;
use request::{RequestOutcome, RequestTable};

/// Takes the place of `src/sync.rs`.
mod sync {
    use std::ops::{Deref, DerefMut};

    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
    pub(crate) use loom::thread::yield_now;

    /// Tries of a lock that may read a stale state. The number is limited because a waiter could otherwise read it for
    /// ever.
    const STALE: usize = 3;

    /// A lock that is only ever tried. A failed try may have read a stale state, because a real lock promises no more.
    #[derive(Debug)]
    pub(crate) struct Lock<T> {
        taken: AtomicBool,
        tries: std::sync::atomic::AtomicUsize,
        state: loom::sync::Mutex<T>,
    }

    pub(crate) struct Guard<'a, T> {
        taken: &'a AtomicBool,
        state: Option<loom::sync::MutexGuard<'a, T>>,
    }

    impl<T> Lock<T> {
        pub(crate) fn new(state: T) -> Self {
            let (taken, tries) = (AtomicBool::new(false), std::sync::atomic::AtomicUsize::new(0));
            Self { taken, tries, state: loom::sync::Mutex::new(state) }
        }

        pub(crate) fn try_lock(&self) -> Option<Guard<'_, T>> {
            let may_be_stale = self.tries.fetch_add(1, Ordering::Relaxed) < STALE;
            let is_taken = may_be_stale && self.taken.load(Ordering::Relaxed)
                || self.taken.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_err();
            (!is_taken).then(|| Guard { taken: &self.taken, state: self.state.lock().ok() })
        }
    }

    impl<T> Deref for Guard<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            self.state.as_ref().unwrap()
        }
    }

    impl<T> DerefMut for Guard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            self.state.as_mut().unwrap()
        }
    }

    impl<T> Drop for Guard<'_, T> {
        fn drop(&mut self) {
            drop(self.state.take());
            self.taken.store(false, Ordering::Release);
        }
    }
}

/// Takes the place of the counters, which have tests of their own.
mod status {
    #[derive(Debug)]
    pub(crate) struct CommStatusRow;

    impl CommStatusRow {
        pub(crate) fn count_sent(&self, _bytes: u64) {}

        pub(crate) fn count_received(&self, _sizes: &[u64]) {}

        pub(crate) fn give_up(&self) {}
    }
}

fn requests(slots: usize) -> Arc<RequestTable> {
    Arc::new(RequestTable::with_slots(slots, status::CommStatusRow).unwrap())
}

fn lane<T>(state: T) -> Arc<OwnerLock<T>> {
    Arc::new(OwnerLock::new(state))
}

/// Runs the body in every order that loom distinguishes. It finds more orders if each actor has its own thread, so the
/// thread that spawns them only joins them.
fn model(body: impl Fn() + Sync + Send + 'static) {
    model_of(loom::model::Builder::new(), body);
}

/// Runs the body in the orders with at most four preemptions. Without a bound, two threads that pass work to each other
/// could run for ever.
fn model_of_few(body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(4);
    model_of(builder, body);
}

fn model_of(builder: loom::model::Builder, body: impl Fn() + Sync + Send + 'static) {
    let orders = std::sync::Arc::new(AtomicUsize::new(0));
    let counted = orders.clone();
    builder.check(move || {
        counted.fetch_add(1, Relaxed);
        body();
    });
    let orders = orders.load(Relaxed);
    println!("{orders} orders");
    assert!(orders > 5, "only {orders} orders");
}

fn take(requests: &RequestTable, ticket: request::RequestTicket) -> (RequestOutcome, u64) {
    let mut sizes = [0; 8];
    (requests.take_outcome(ticket, &mut sizes), sizes[0])
}

#[test]
fn done_request_shows_its_sizes() {
    model(|| {
        let requests = requests(1);
        let ticket = requests.reserve_slot(&mut 0).unwrap();
        let holder = requests.clone();
        let holder = thread::spawn(move || holder.complete_request(ticket.slot_index(), &[77]));
        let tester = requests.clone();
        let tester = thread::spawn(move || take(&tester, ticket));
        let seen = tester.join().unwrap();
        holder.join().unwrap();
        match seen {
            (RequestOutcome::Pending, _) => {
                assert_eq!(take(&requests, ticket), (RequestOutcome::Done(1), 77))
            }
            other => assert_eq!(other, (RequestOutcome::Done(1), 77)),
        }
        assert_eq!(take(&requests, ticket).0, RequestOutcome::Unknown, "the outcome was taken before");
    });
}

#[test]
fn a_failure_ends_a_request_once() {
    model(|| {
        let requests = requests(2);
        let mut cursor = 0;
        let tickets =
            [requests.reserve_slot(&mut cursor).unwrap(), requests.reserve_slot(&mut cursor).unwrap()];
        requests.complete_request(tickets[0].slot_index(), &[5]);
        let holder = requests.clone();
        let holder = thread::spawn(move || holder.fail_all());
        let tester = requests.clone();
        let tester = thread::spawn(move || tickets.map(|ticket| take(&tester, ticket).0));
        let early = tester.join().unwrap();
        assert_eq!(holder.join().unwrap(), 1, "a completed request does not fail");
        assert_eq!(early[0], RequestOutcome::Done(1));
        let late = take(&requests, tickets[1]).0;
        assert!(matches!(
            (early[1], late),
            (RequestOutcome::Pending, RequestOutcome::Failed)
                | (RequestOutcome::Failed, RequestOutcome::Unknown)
        ));
    });
}

#[test]
fn reused_slot_distinguishes_old_and_new_requests() {
    model(|| {
        let requests = requests(1);
        let first = requests.reserve_slot(&mut 0).unwrap();
        requests.complete_request(first.slot_index(), &[5]);
        let holder = requests.clone();
        let holder = thread::spawn(move || {
            let second = holder.reserve_slot(&mut 0)?;
            holder.complete_request(second.slot_index(), &[9]);
            Some(second)
        });
        let tester = requests.clone();
        let tester = thread::spawn(move || {
            assert_eq!(take(&tester, first), (RequestOutcome::Done(1), 5));
            assert_eq!(take(&tester, first).0, RequestOutcome::Unknown);
        });
        tester.join().unwrap();
        if let Some(second) = holder.join().unwrap() {
            assert_ne!(second, first);
            assert_eq!(take(&requests, first).0, RequestOutcome::Unknown);
            assert_eq!(take(&requests, second), (RequestOutcome::Done(1), 9));
        }
    });
}

#[test]
fn test_during_a_close_affects_no_later_request() {
    model(|| {
        let (requests, comm) = (requests(1), lane(Some(1)));
        let first = requests.reserve_slot(&mut 0).unwrap();
        requests.complete_request(first.slot_index(), &[5]);
        let (tested, tested_comm) = (requests.clone(), comm.clone());
        let tester = thread::spawn(move || {
            let outcome = take(&tested, first).0;
            // As in `Engine::test`: a lane in use is no reason to wait.
            let open = tested_comm.try_lock().map(|lane| *lane);
            (outcome, open)
        });
        let closer = thread::spawn(move || {
            // The comm is closed, and its slot is used by another comm.
            let mut open = comm.lock();
            requests.clear();
            assert_eq!(open.take(), Some(1));
            drop(open);
            let mut open = comm.lock();
            *open = Some(2);
            let second = requests.reserve_slot(&mut 0).expect("a closed comm has no requests");
            drop(open);
            requests.complete_request(second.slot_index(), &[9]);
            assert_eq!(take(&requests, second), (RequestOutcome::Done(1), 9), "the next comm lost a request");
        });
        let (outcome, _) = tester.join().unwrap();
        closer.join().unwrap();
        assert!(matches!(outcome, RequestOutcome::Done(1) | RequestOutcome::Unknown), "{outcome:?}");
    });
}

#[test]
fn try_lock_gives_a_lane_to_one_thread() {
    model(|| {
        let counter = lane(0_u32);
        let others = [counter.clone(), counter.clone()].map(|lane| {
            thread::spawn(move || match lane.try_lock() {
                Some(mut guard) => {
                    let before = *guard;
                    thread::yield_now();
                    assert_eq!(*guard, before, "another thread changed the value under the lane");
                    *guard += 1;
                    1
                }
                None => 0,
            })
        });
        let counted: u32 = others.map(|other| other.join().unwrap()).into_iter().sum();
        assert!(counted > 0, "neither thread got the lane");
        assert_eq!(counter.try_lock().map(|guard| *guard), Some(counted));
    });
}

#[test]
fn lock_gives_the_lane_to_every_waiter() {
    model(|| {
        let counter = lane(0_u32);
        let others = [counter.clone(), counter.clone()].map(|lane| thread::spawn(move || *lane.lock() += 1));
        for other in others {
            other.join().unwrap();
        }
        assert_eq!(counter.waiting(), 0);
        assert_eq!(counter.try_lock().map(|guard| *guard), Some(2));
    });
}

#[test]
fn waiter_gets_the_lane_before_try_lock() {
    model(|| {
        let served = lane(false);
        let waiter = served.clone();
        let guard = served.lock();
        let waiter = thread::spawn(move || *waiter.lock() = true);
        // The waiter has found the lane in use.
        while served.waiting() == 0 {
            thread::yield_now();
        }
        drop(guard);
        let other = thread::spawn(move || {
            if let Some(guard) = served.try_lock() {
                assert!(*guard, "try_lock succeeded before the waiting thread");
            }
        });
        waiter.join().unwrap();
        other.join().unwrap();
    });
}

/// A counter that several threads increment, and the value that the driving thread has seen.
struct Driven {
    turns: ExecutorLock<u64>,
    rung: sync::AtomicU64,
}

impl Driven {
    fn new() -> Arc<Self> {
        Arc::new(Self { turns: ExecutorLock::new(0), rung: sync::AtomicU64::new(0) })
    }

    fn turn(&self, seen: &mut u64) -> bool {
        *seen = self.rung.load(sync::Ordering::Acquire);
        false
    }

    fn ring(&self) {
        self.rung.fetch_add(1, sync::Ordering::Release);
        // The limit is one turn of its own, so any further work is left to the thread that drives.
        self.turns.drive_passes(1, |seen| self.turn(seen));
    }
}

#[test]
fn left_work_is_driven_by_the_driver() {
    model_of_few(|| {
        let driven = Driven::new();
        let others = [driven.clone(), driven.clone()].map(|other| thread::spawn(move || other.ring()));
        others.into_iter().for_each(|other| other.join().unwrap());
        assert_eq!(*driven.turns.lock(), 2, "an increment was not driven");
    });
}

#[test]
fn left_work_is_driven_by_setup() {
    model_of_few(|| {
        let driven = Driven::new();
        let (rings, sets_up) = (driven.clone(), driven.clone());
        let rings = thread::spawn(move || rings.ring());
        let sets_up = thread::spawn(move || sets_up.turns.with_setup(|_| (), 1, |seen| sets_up.turn(seen)));
        rings.join().unwrap();
        sets_up.join().unwrap();
        assert_eq!(*driven.turns.lock(), 1, "the increment was not driven");
    });
}
