//! Tells a deregistering thread when no rail is inside a copy any more. A rail enters its guard before it looks a key
//! up and leaves it after the copy; that costs two plain stores, because the rare side, [`Guards::wait`], makes every
//! thread of the process pass a full barrier (`membarrier`) before it looks at the guards.

use std::sync::atomic::{AtomicU64, Ordering, compiler_fence, fence};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::thread::{MembarrierCommand, membarrier, membarrier_query};

/// One rail's guard: odd while the rail is inside.
#[repr(align(128))]
pub(crate) struct Guard {
    turn: AtomicU64,
    cheap: bool,
}

impl Guard {
    /// From here on, what the rail finds in a table stays usable until [`Guard::leave`].
    #[inline]
    pub(crate) fn enter(&self) {
        // Also right after a panic left it odd.
        let turn = (self.turn.load(Ordering::Relaxed) + 2) | 1;
        self.turn.store(turn, Ordering::Relaxed);
        if self.cheap {
            compiler_fence(Ordering::SeqCst);
        } else {
            fence(Ordering::SeqCst);
        }
    }

    /// What was found may not be used any more.
    #[inline]
    pub(crate) fn leave(&self) {
        let turn = self.turn.load(Ordering::Relaxed);
        self.turn.store((turn | 1) + 1, Ordering::Release);
    }
}

/// The guards of all rails of a fabric.
pub(crate) struct Guards {
    all: Mutex<Vec<Arc<Guard>>>,
    cheap: bool,
}

impl Guards {
    /// Asks the kernel whether barriers for a whole process can be had.
    pub(crate) fn new() -> Self {
        let cheap = membarrier_query().contains_command(MembarrierCommand::PrivateExpedited)
            && membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok();
        Self { all: Mutex::new(Vec::new()), cheap }
    }

    /// A guard for a new rail.
    pub(crate) fn add(&self) -> Arc<Guard> {
        let guard = Arc::new(Guard { turn: AtomicU64::new(0), cheap: self.cheap });
        self.all.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&guard));
        guard
    }

    /// Forgets the guard of a rail that is gone.
    pub(crate) fn remove(&self, guard: &Arc<Guard>) {
        self.all.lock().unwrap_or_else(PoisonError::into_inner).retain(|one| !Arc::ptr_eq(one, guard));
    }

    /// The rails but `own` that may have seen what the caller just changed, and have not left their guards since.
    pub(crate) fn inside(&self, own: &Guard) -> Inside {
        if self.cheap {
            // Registered in `new`; cannot fail afterwards.
            let _ = membarrier(MembarrierCommand::PrivateExpedited);
        }
        fence(Ordering::SeqCst);
        let all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let turns = all.iter().map(|guard| (Arc::clone(guard), guard.turn.load(Ordering::Acquire)));
        Inside(
            turns.filter(|(guard, turn)| turn % 2 == 1 && !std::ptr::eq(&raw const **guard, own)).collect(),
        )
    }

    /// Waits until every rail that could have seen what the caller just took out of a table has left its guard.
    /// Returns whether that came true in time.
    pub(crate) fn wait(&self, limit: Duration) -> bool {
        // Whoever calls is a rail's owner, and not inside.
        let nobody = Guard { turn: AtomicU64::new(0), cheap: self.cheap };
        let inside = self.inside(&nobody);
        let (mut started, mut spins) = (None, 0_u32);
        while !inside.all_left() {
            spins = spins.wrapping_add(1);
            if spins.is_multiple_of(64) {
                if started.get_or_insert_with(Instant::now).elapsed() > limit {
                    return false;
                }
                std::thread::yield_now();
            }
            std::hint::spin_loop();
        }
        true
    }
}

/// Rails that were inside their guards, and in which turn.
pub(crate) struct Inside(Vec<(Arc<Guard>, u64)>);

impl Inside {
    /// Whether none of them is inside any more.
    pub(crate) fn all_left(&self) -> bool {
        self.0.iter().all(|(guard, turn)| guard.turn.load(Ordering::Acquire) != *turn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_was_inside_has_left_once_its_turn_is_over() {
        let guards = Guards::new();
        let (own, other) = (guards.add(), guards.add());
        own.enter();
        assert!(guards.inside(&own).all_left(), "nobody waits for himself");
        other.enter();
        let inside = guards.inside(&own);
        assert!(!inside.all_left() && !guards.wait(Duration::ZERO));
        other.leave();
        // It sees what was changed before.
        other.enter();
        assert!(inside.all_left());
        own.leave();
        other.leave();
        assert!(guards.wait(Duration::ZERO));
    }
}
