//! Tells a deregistering thread when no rail is inside a copy any more. A rail enters its guard before it looks a key
//! up and leaves it after the copy; that costs two plain stores, because the rare side, [`RailGuards::wait_until_left`], makes every
//! thread of the process pass a full barrier (`membarrier`) before it looks at the guards. Where the kernel has no such call, or refuses it
//! later (a seccomp filter that was installed meanwhile), rails pass a barrier themselves each time they enter.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, compiler_fence, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::thread::{MembarrierCommand, membarrier, membarrier_query};

/// How long a rail's store may take to be seen by another processor. Processors need microseconds, and a thread that is switched out or
/// interrupted passes a barrier; waited for once, when the kernel begins to refuse barriers.
const STORE_VISIBLE: Duration = Duration::from_millis(20);

/// One rail's guard: odd while the rail is inside.
#[repr(align(128))]
pub(crate) struct RailGuard {
    turn: AtomicU64,
    /// The rail passes a barrier whenever it enters, as no other thread makes it pass one.
    fenced: AtomicBool,
}

impl RailGuard {
    /// From here on, what the rail finds in a table stays usable until [`RailGuard::leave`].
    #[inline]
    pub(crate) fn enter(&self) {
        // Also right after a panic left it odd.
        let turn = (self.turn.load(Ordering::Relaxed) + 2) | 1;
        self.turn.store(turn, Ordering::Relaxed);
        if self.fenced.load(Ordering::Relaxed) {
            fence(Ordering::SeqCst);
        } else {
            compiler_fence(Ordering::SeqCst);
        }
    }

    /// What was found may not be used any more.
    #[inline]
    pub(crate) fn leave(&self) {
        let turn = self.turn.load(Ordering::Relaxed);
        self.turn.store((turn | 1) + 1, Ordering::Release);
    }
}

/// Guards, and whether those to come are fenced, as those in it are then.
struct GuardList {
    guards: Vec<Arc<RailGuard>>,
    fenced: bool,
}

/// The guards of all rails of a fabric.
pub(crate) struct RailGuards {
    list: Mutex<GuardList>,
    /// All guards are fenced, and stores of rails before that have been seen.
    fenced: AtomicBool,
}

impl RailGuards {
    /// Asks the kernel whether barriers for a whole process can be had.
    pub(crate) fn new() -> Self {
        let has_barriers = membarrier_query().contains_command(MembarrierCommand::PrivateExpedited)
            && membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok();
        let list = Mutex::new(GuardList { guards: Vec::new(), fenced: !has_barriers });
        Self { list, fenced: AtomicBool::new(!has_barriers) }
    }

    /// A guard for a new rail.
    pub(crate) fn add_guard(&self) -> Arc<RailGuard> {
        let mut list = self.lock_list();
        let guard = Arc::new(RailGuard { turn: AtomicU64::new(0), fenced: AtomicBool::new(list.fenced) });
        list.guards.push(Arc::clone(&guard));
        guard
    }

    /// Forgets the guard of a rail that is gone.
    pub(crate) fn remove(&self, guard: &Arc<RailGuard>) {
        self.lock_list().guards.retain(|one| !Arc::ptr_eq(one, guard));
    }

    fn lock_list(&self) -> MutexGuard<'_, GuardList> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The rails but `own` that may have seen what the caller just changed, and have not left their guards since.
    pub(crate) fn rails_inside(&self, own: &RailGuard) -> GuardSnapshot {
        if !self.fenced.load(Ordering::Acquire) && membarrier(MembarrierCommand::PrivateExpedited).is_err() {
            self.fence_all();
        }
        fence(Ordering::SeqCst);
        let list = self.lock_list();
        let turns = list.guards.iter().map(|guard| (Arc::clone(guard), guard.turn.load(Ordering::Acquire)));
        GuardSnapshot(
            turns.filter(|(guard, turn)| turn % 2 == 1 && !std::ptr::eq(&raw const **guard, own)).collect(),
        )
    }

    /// The kernel refuses barriers that it granted before: from now on rails pass them. A rail that entered without one has not been seen
    /// inside, perhaps, until its store has become visible.
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
        // Only now, as other threads that see it wait for nothing.
        self.fenced.store(true, Ordering::Release);
    }

    /// Waits until every rail that could have seen what the caller just took out of a table has left its guard.
    /// Returns whether that came true in time.
    pub(crate) fn wait_until_left(&self, limit: Duration) -> bool {
        // Whoever calls is a rail's owner, and not inside.
        let nobody = RailGuard { turn: AtomicU64::new(0), fenced: AtomicBool::new(true) };
        let inside = self.rails_inside(&nobody);
        let mut started = None;
        let mut spins = 0_u32;
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
pub(crate) struct GuardSnapshot(Vec<(Arc<RailGuard>, u64)>);

impl GuardSnapshot {
    /// Whether none of them is inside any more.
    pub(crate) fn all_left(&self) -> bool {
        self.0.iter().all(|(guard, turn)| guard.turn.load(Ordering::Acquire) != *turn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From now on the kernel refuses this thread `membarrier`, as a sandbox does that is entered late.
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
        // SAFETY: takes numbers, and changes the privileges that this thread may gain by executing programs.
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
    fn who_was_inside_has_left_once_its_turn_is_over() {
        let guards = RailGuards::new();
        let own = guards.add_guard();
        let other = guards.add_guard();
        own.enter();
        assert!(guards.rails_inside(&own).all_left(), "nobody waits for himself");
        other.enter();
        let inside = guards.rails_inside(&own);
        assert!(!inside.all_left() && !guards.wait_until_left(Duration::ZERO));
        other.leave();
        // It sees what was changed before.
        other.enter();
        assert!(inside.all_left());
        own.leave();
        other.leave();
        assert!(guards.wait_until_left(Duration::ZERO));
    }
}
