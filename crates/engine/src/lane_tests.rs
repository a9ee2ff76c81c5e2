//! Lanes over the real lock; `tests/model.rs` tries every order with loom's lock.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::lane::OwnerLock;

#[test]
fn lane_prefers_waiters_over_try_lock() {
    let (lane, served) = (OwnerLock::new(0_u32), AtomicBool::new(false));
    for round in 0..200 {
        served.store(false, Ordering::Relaxed);
        let guard = lane.lock();
        assert!(lane.try_lock().is_none(), "the lane is in use");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                *lane.lock() += 1;
                served.store(true, Ordering::Release);
            });
            while lane.waiting() == 0 {
                std::thread::yield_now();
            }
            drop(guard);
            let overtaken = lane.try_lock().is_some_and(|guard| *guard != round + 1);
            assert!(!overtaken, "try_lock succeeded before the waiting thread");
        });
        assert!(served.load(Ordering::Acquire));
        assert_eq!((lane.waiting(), lane.try_lock().map(|guard| *guard)), (0, Some(round + 1)));
    }
}
