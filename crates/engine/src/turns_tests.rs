//! When a driver of an executor continues, and when it stops. `tests/model.rs` tries all orders of concurrent drivers.

use super::turns::ExecutorLock;

#[test]
fn only_left_work_extends_a_drive() {
    let turns = ExecutorLock::new(0_u32);
    turns.drive_passes(3, |made| {
        *made += 1;
        assert!(*made < 100, "the drive does not end");
        // As another thread does that polls repeatedly.
        turns.drive_if_free(3, |_| unreachable!("the lock is held by this drive"));
        true
    });
    assert_eq!(*turns.lock(), 3);
    let mut left = false;
    turns.drive_passes(3, |made| {
        *made += 1;
        if *made == 6 && !std::mem::replace(&mut left, true) {
            turns.drive_passes(3, |_| unreachable!("the lock is held by this drive"));
        }
        true
    });
    assert_eq!(*turns.lock(), 7, "the skipped drive got one more pass");
}
