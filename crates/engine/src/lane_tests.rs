//! Lanes over the real lock; `tests/model.rs` tries every order over another.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::lane::OwnerLock;

#[test]
fn a_lane_has_one_owner_and_who_waits_comes_first() {
    let (lane, served) = (OwnerLock::new(0_u32), AtomicBool::new(false));
    for round in 0..200 {
        served.store(false, Ordering::Relaxed);
        let guard = lane.lock();
        assert!(lane.try_lock().is_none(), "it is in use");
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
            assert!(!overtaken, "the one that waits was overtaken");
        });
        assert!(served.load(Ordering::Acquire));
        assert_eq!((lane.waiting(), lane.try_lock().map(|guard| *guard)), (0, Some(round + 1)));
    }
}
