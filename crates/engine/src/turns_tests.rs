//! What keeps who drives an executor at it, and what does not. The orders of events are tried by `tests/model.rs`.

use super::turns::ExecutorLock;

#[test]
fn who_waits_keeps_nobody_at_it_and_who_leaves_something_does() {
    let turns = ExecutorLock::new(0_u32);
    turns.drive_passes(3, |made| {
        *made += 1;
        assert!(*made < 100, "it never ends");
        // Another thread that waits, looks again and again.
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
