//! Detects for a deregistering thread when no rail is inside a copy any more. A rail enters its guard before it finds a key
//! and leaves it after the copy. That costs two plain stores, because the rare side, [`RailGuards::wait_until_left`], makes every
//! thread of the process pass a full barrier (membarrier(2)) before it reads the guards.
//!
//! The kernel may lack that call, or refuse it later (a seccomp filter that was installed meanwhile). Rails then pass a barrier themselves
//! each time they enter.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, compiler_fence, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::thread::{MembarrierCommand, membarrier, membarrier_query};

/// Longest time until a rail's store becomes visible to another processor. Processors need microseconds, and a thread that is switched out or
/// interrupted passes a barrier. It is waited for once, when the kernel begins to refuse barriers.
const STORE_VISIBLE: Duration = Duration::from_millis(20);

/// One rail's guard: odd while the rail is inside.
#[repr(align(128))]
pub(crate) struct RailGuard {
    turn: AtomicU64,
    /// The rail passes a barrier whenever it enters, because no other thread makes it pass one.
    fenced: AtomicBool,
}

impl RailGuard {
    /// Enters the guard: places that the rail finds in a table stay usable until [`RailGuard::leave`].
    #[inline]
    pub(crate) fn enter(&self) {
        // `| 1`, because a panic inside the guard may have left it odd.
        let turn = (self.turn.load(Ordering::Relaxed) + 2) | 1;
        self.turn.store(turn, Ordering::Relaxed);
        // This barrier, or that of `membarrier`, orders the store of the turn before the reads of keys.
        if self.fenced.load(Ordering::Relaxed) {
            fence(Ordering::SeqCst);
        } else {
            compiler_fence(Ordering::SeqCst);
        }
    }

    /// Leaves the guard: places that were found may not be used any more.
    #[inline]
    pub(crate) fn leave(&self) {
        let turn = self.turn.load(Ordering::Relaxed);
        // Release, so that a thread that sees the new turn also sees that the copies have ended.
        self.turn.store((turn | 1) + 1, Ordering::Release);
    }
}

/// The guards, and whether they and new ones are fenced.
struct GuardList {
    guards: Vec<Arc<RailGuard>>,
    fenced: bool,
}

/// The guards of all rails of a fabric.
pub(crate) struct RailGuards {
    list: Mutex<GuardList>,
    /// All guards are fenced, and earlier stores of rails have become visible.
    fenced: AtomicBool,
}

impl RailGuards {
    /// Registers the process for `membarrier`, or marks all guards as fenced if the kernel does not support it.
    pub(crate) fn new() -> Self {
        let has_barriers = membarrier_query().contains_command(MembarrierCommand::PrivateExpedited)
            && membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok();
        let list = Mutex::new(GuardList { guards: Vec::new(), fenced: !has_barriers });
        Self { list, fenced: AtomicBool::new(!has_barriers) }
    }

    /// Adds a guard for a new rail.
    pub(crate) fn add_guard(&self) -> Arc<RailGuard> {
        let mut list = self.lock_list();
        let guard = Arc::new(RailGuard { turn: AtomicU64::new(0), fenced: AtomicBool::new(list.fenced) });
        list.guards.push(Arc::clone(&guard));
        guard
    }

    /// Removes the guard of a rail that is closed.
    pub(crate) fn remove(&self, guard: &Arc<RailGuard>) {
        self.lock_list().guards.retain(|one| !Arc::ptr_eq(one, guard));
    }

    fn lock_list(&self) -> MutexGuard<'_, GuardList> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the rails but `own` that may have seen the state before the caller's change, and have not left their guards since.
    pub(crate) fn rails_inside(&self, own: &RailGuard) -> GuardSnapshot {
        if !self.fenced.load(Ordering::Acquire) && membarrier(MembarrierCommand::PrivateExpedited).is_err() {
            self.fence_all();
        }
        // Pairs with the barrier of `enter` where rails pass it themselves.
        fence(Ordering::SeqCst);
        let list = self.lock_list();
        let turns = list.guards.iter().map(|guard| (Arc::clone(guard), guard.turn.load(Ordering::Acquire)));
        GuardSnapshot(
            turns.filter(|(guard, turn)| turn % 2 == 1 && !std::ptr::eq(&raw const **guard, own)).collect(),
        )
    }

    /// Makes rails pass barriers themselves, because the kernel refuses barriers that it granted before. A rail that entered without one may not
    /// have been seen inside until its store becomes visible.
    #[cold]
    fn fence_all(&self) {
        let mut list = self.lock_list();
        list.fenced = true;
        for guard in &list.guards {
            guard.fenced.store(true, Ordering::SeqCst);
        }
        drop(list);
        fence(Ordering::SeqCst);
        std::thread::sleep(STORE_VISIBLE);
        // Set only after the sleep, because other threads that read it do not sleep.
        self.fenced.store(true, Ordering::Release);
    }

    /// Waits until every rail that could have seen the table as it was before the caller's change has left its guard.
    /// Returns whether that happened in time.
    pub(crate) fn wait_until_left(&self, limit: Duration) -> bool {
        // A guard of no rail, so that none is left out: a caller that owns a rail is not inside its guard.
        let nobody = RailGuard { turn: AtomicU64::new(0), fenced: AtomicBool::new(true) };
        let inside = self.rails_inside(&nobody);
        let mut started = None;
        let mut spins = 0_u32;
        while !inside.all_left() {
            spins = spins.wrapping_add(1);
            // The clock is read rarely, because most copies end within a few spins.
            if spins.is_multiple_of(64) {
                if started.get_or_insert_with(Instant::now).elapsed() > limit {
                    return false;
                }
                // The rail's thread may need this processor to leave its guard.
                std::thread::yield_now();
            }
            std::hint::spin_loop();
        }
        true
    }
}

/// Rails that were inside their guards, and the turn of each.
pub(crate) struct GuardSnapshot(Vec<(Arc<RailGuard>, u64)>);

impl GuardSnapshot {
    /// Whether none of them is inside any more.
    pub(crate) fn all_left(&self) -> bool {
        // The turn is compared and not its parity, because a rail that left and entered again has seen the change.
        self.0.iter().all(|(guard, turn)| guard.turn.load(Ordering::Acquire) != *turn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes the kernel refuse `membarrier` to this thread, as a sandbox that is entered late does.
    fn refuse_barriers() {
        let statement = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
        let mut program = [
            // The number of the call is the first word of a filter's input.
            statement((libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16, 0, 0, 0),
            statement(
                (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16,
                0,
                1,
                libc::SYS_membarrier as u32,
            ),
            statement(
                (libc::BPF_RET | libc::BPF_K) as u16,
                0,
                0,
                libc::SECCOMP_RET_ERRNO | libc::EPERM as u32,
            ),
            statement((libc::BPF_RET | libc::BPF_K) as u16, 0, 0, libc::SECCOMP_RET_ALLOW),
        ];
        let filter = libc::sock_fprog { len: 4, filter: program.as_mut_ptr() };
        // SAFETY: the call takes only numbers, and only keeps this thread from gaining privileges by execve(2).
        let code = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
        assert_eq!(code, 0);
        // SAFETY: a program of four statements that lives during the call.
        let code = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter) };
        assert_eq!(code, 0, "{}", std::io::Error::last_os_error());
    }

    #[test]
    fn rails_pass_barriers_once_the_kernel_refuses_them() {
        let guards = RailGuards::new();
        if guards.fenced.load(Ordering::Relaxed) {
            println!(
                "SKIPPED rails_pass_barriers_once_the_kernel_refuses_them: this kernel has no membarrier"
            );
            return;
        }
        let own = guards.add_guard();
        let other = guards.add_guard();
        other.enter();
        // A filter stays with its thread.
        std::thread::scope(|scope| {
            scope.spawn(|| {
                refuse_barriers();
                assert!(!guards.rails_inside(&own).all_left());
            });
        });
        assert!(own.fenced.load(Ordering::Relaxed) && other.fenced.load(Ordering::Relaxed));
        other.leave();
        let late = guards.add_guard();
        assert!(late.fenced.load(Ordering::Relaxed), "later rails pass them, too");
        late.enter();
        assert!(!guards.wait_until_left(Duration::ZERO));
        late.leave();
        assert!(guards.wait_until_left(Duration::ZERO));
    }

    #[test]
    fn rail_has_left_once_its_turn_changes() {
        let guards = RailGuards::new();
        let own = guards.add_guard();
        let other = guards.add_guard();
        own.enter();
        assert!(guards.rails_inside(&own).all_left(), "a rail waits for itself");
        other.enter();
        let inside = guards.rails_inside(&own);
        assert!(!inside.all_left() && !guards.wait_until_left(Duration::ZERO));
        other.leave();
        // A rail that enters later sees the change, so it is not waited for.
        other.enter();
        assert!(inside.all_left());
        own.leave();
        other.leave();
        assert!(guards.wait_until_left(Duration::ZERO));
    }
}
