//! When a driver of an executor continues, and when it stops. `tests/model.rs` tries the orders of events.

use super::turns::ExecutorLock;

#[test]
fn who_waits_keeps_nobody_at_it_and_who_leaves_something_does() {
    let turns = ExecutorLock::new(0_u32);
    turns.drive_passes(3, |made| {
        *made += 1;
        assert!(*made < 100, "it never ends");
        // As another thread that polls again and again.
        turns.drive_if_free(3, |_| unreachable!("this one has it"));
        true
    });
    assert_eq!(*turns.lock(), 3);
    let mut left = false;
    turns.drive_passes(3, |made| {
        *made += 1;
        if *made == 6 && !std::mem::replace(&mut left, true) {
            turns.drive_passes(3, |_| unreachable!("this one has it"));
        }
        true
    });
    assert_eq!(*turns.lock(), 7, "what came last has a turn of its own");
}
