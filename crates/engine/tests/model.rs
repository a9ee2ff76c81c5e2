//! Lanes and requests under every order of events that a machine may choose: the same source files, compiled over
//! loom's atomics instead of the real ones.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on stops")]
#![allow(dead_code, unreachable_pub, reason = "the files are the engine's; this uses a part of them")]

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

/// What `src/sync.rs` is in the product.
mod sync {
    use std::ops::{Deref, DerefMut};

    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
    pub(crate) use loom::thread::yield_now;

    /// Tries of a lock that may see what was so a while ago; with more of them whoever waits for it would see that for ever.
    const STALE: usize = 3;

    /// A lock that is only ever tried. Who finds it taken may have seen what was so a while ago: a real lock promises no more.
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

/// Counters, which are looked at elsewhere.
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

/// Tries the orders that loom tells apart. It finds more of them if each party is a thread of its own: the one that
/// makes the others only waits for them.
fn model(body: impl Fn() + Sync + Send + 'static) {
    model_of(loom::model::Builder::new(), body);
}

/// The same, of orders in which a thread is interrupted so often at most. Two that hand work to each other could go on for ever.
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
fn who_sees_that_a_request_is_done_sees_its_sizes() {
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
        assert_eq!(take(&requests, ticket).0, RequestOutcome::Unknown, "it was taken");
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
        assert_eq!(holder.join().unwrap(), 1, "what was done stays done");
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
fn a_slot_that_is_used_again_keeps_its_requests_apart() {
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
fn a_test_that_a_close_overtakes_harms_nobody() {
    model(|| {
        let (requests, comm) = (requests(1), lane(Some(1)));
        let first = requests.reserve_slot(&mut 0).unwrap();
        requests.complete_request(first.slot_index(), &[5]);
        let (tested, tested_comm) = (requests.clone(), comm.clone());
        let tester = thread::spawn(move || {
            let outcome = take(&tested, first).0;
            // As `Engine::test` does: a lane in use is no reason to wait.
            let open = tested_comm.try_lock().map(|lane| *lane);
            (outcome, open)
        });
        let closer = thread::spawn(move || {
            // The comm is closed, and its place used for another one.
            let mut open = comm.lock();
            requests.clear();
            assert_eq!(open.take(), Some(1));
            drop(open);
            let mut open = comm.lock();
            *open = Some(2);
            let second = requests.reserve_slot(&mut 0).expect("a closed comm has no requests");
            drop(open);
            requests.complete_request(second.slot_index(), &[9]);
            assert_eq!(
                take(&requests, second),
                (RequestOutcome::Done(1), 9),
                "the next comm has lost a request"
            );
        });
        let (outcome, _) = tester.join().unwrap();
        closer.join().unwrap();
        assert!(matches!(outcome, RequestOutcome::Done(1) | RequestOutcome::Unknown), "{outcome:?}");
    });
}

#[test]
fn one_thread_at_a_time_has_a_lane_and_the_loser_goes_away() {
    model(|| {
        let counter = lane(0_u32);
        let others = [counter.clone(), counter.clone()].map(|lane| {
            thread::spawn(move || match lane.try_lock() {
                Some(mut guard) => {
                    let before = *guard;
                    thread::yield_now();
                    assert_eq!(*guard, before, "somebody else was here");
                    *guard += 1;
                    1
                }
                None => 0,
            })
        });
        let counted: u32 = others.map(|other| other.join().unwrap()).into_iter().sum();
        assert!(counted > 0, "one of two gets it");
        assert_eq!(counter.try_lock().map(|guard| *guard), Some(counted));
    });
}

#[test]
fn who_waits_for_a_lane_gets_it() {
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
fn who_waits_comes_before_who_tries() {
    model(|| {
        let served = lane(false);
        let waiter = served.clone();
        let guard = served.lock();
        let waiter = thread::spawn(move || *waiter.lock() = true);
        // It has found the lane in use.
        while served.waiting() == 0 {
            thread::yield_now();
        }
        drop(guard);
        let other = thread::spawn(move || {
            if let Some(guard) = served.try_lock() {
                assert!(*guard, "the one that waits was overtaken");
            }
        });
        waiter.join().unwrap();
        other.join().unwrap();
    });
}

/// What several threads ring for, and as many as whoever took turns has seen.
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
        // The first turn is the last that it takes of its own.
        self.turns.drive_passes(1, |seen| self.turn(seen));
    }
}

#[test]
fn what_is_left_to_whoever_drives_is_driven() {
    model_of_few(|| {
        let driven = Driven::new();
        let others = [driven.clone(), driven.clone()].map(|other| thread::spawn(move || other.ring()));
        others.into_iter().for_each(|other| other.join().unwrap());
        assert_eq!(*driven.turns.lock(), 2, "somebody's is left");
    });
}

#[test]
fn what_is_left_to_who_sets_up_is_driven() {
    model_of_few(|| {
        let driven = Driven::new();
        let (rings, sets_up) = (driven.clone(), driven.clone());
        let rings = thread::spawn(move || rings.ring());
        let sets_up = thread::spawn(move || sets_up.turns.with_setup(|_| (), 1, |seen| sets_up.turn(seen)));
        rings.join().unwrap();
        sets_up.join().unwrap();
        assert_eq!(*driven.turns.lock(), 1, "it is left");
    });
}
