//! The calls of a PE: some of each category of OpenSHMEM that allocates or may allocate.

use std::ffi::{c_int, c_long, c_void};
use std::ptr;

/// The variable with the largest number of allocations and locks: with several PEs, each takes longer.
pub(crate) const MOST: &str = "TRUNKLINE_REFUSALS_MOST";

/// Allocations of the program, so many that their table and that of the gaps between them are large.
const ALLOCATIONS: usize = 640;
/// Locks that a PE holds at a time.
const LOCKS: usize = 160;
/// Bytes of a long put, get, broadcast and collection.
const LONG: usize = 100_000;
/// Words of a long reduction.
const WORDS: usize = 4000;
/// `SHMEM_THREAD_MULTIPLE`, `SHMEM_TEAM_WORLD`, `SHMEM_SIGNAL_SET`, `SHMEM_CMP_EQ`.
const MULTIPLE: c_int = 3;
const WORLD: usize = 1;
const SET: c_int = 0;
const EQUAL: c_int = 1;

unsafe extern "C" {
    fn shmem_init_thread(requested: c_int, provided: *mut c_int) -> c_int;
    safe fn shmem_finalize();
    safe fn shmem_my_pe() -> c_int;
    safe fn shmem_n_pes() -> c_int;
    safe fn shmem_malloc(bytes: usize) -> *mut c_void;
    safe fn shmem_calloc(count: usize, element: usize) -> *mut c_void;
    safe fn shmem_align(alignment: usize, bytes: usize) -> *mut c_void;
    fn shmem_realloc(at: *mut c_void, bytes: usize) -> *mut c_void;
    fn shmem_free(at: *mut c_void);
    safe fn shmem_barrier_all();
    safe fn shmem_quiet();
    safe fn shmem_fence();
    fn shmem_putmem(dest: *mut c_void, source: *const c_void, bytes: usize, pe: c_int);
    fn shmem_putmem_nbi(dest: *mut c_void, source: *const c_void, bytes: usize, pe: c_int);
    fn shmem_getmem(dest: *mut c_void, source: *const c_void, bytes: usize, pe: c_int);
    fn shmem_long_iput(
        dest: *mut c_long,
        source: *const c_long,
        to: isize,
        from: isize,
        count: usize,
        pe: c_int,
    );
    fn shmem_putmem_signal(
        dest: *mut c_void,
        source: *const c_void,
        bytes: usize,
        signal: *mut u64,
        value: u64,
        op: c_int,
        pe: c_int,
    );
    fn shmem_signal_wait_until(signal: *mut u64, cmp: c_int, value: u64) -> u64;
    fn shmem_long_atomic_fetch_add(dest: *mut c_long, value: c_long, pe: c_int) -> c_long;
    fn shmem_long_atomic_add(dest: *mut c_long, value: c_long, pe: c_int);
    fn shmem_set_lock(lock: *mut c_long);
    fn shmem_clear_lock(lock: *mut c_long);
    fn shmem_ctx_create(options: c_long, ctx: *mut usize) -> c_int;
    fn shmem_ctx_putmem(ctx: usize, dest: *mut c_void, source: *const c_void, bytes: usize, pe: c_int);
    safe fn shmem_ctx_quiet(ctx: usize);
    safe fn shmem_ctx_destroy(ctx: usize);
    fn shmem_team_split_strided(
        parent: usize,
        start: c_int,
        stride: c_int,
        size: c_int,
        config: *const c_void,
        mask: c_long,
        team: *mut usize,
    ) -> c_int;
    safe fn shmem_team_destroy(team: usize);
    safe fn shmem_team_sync(team: usize) -> c_int;
    fn shmem_broadcastmem(
        team: usize,
        dest: *mut c_void,
        source: *const c_void,
        count: usize,
        root: c_int,
    ) -> c_int;
    fn shmem_collectmem(team: usize, dest: *mut c_void, source: *const c_void, count: usize) -> c_int;
    fn shmem_alltoallmem(team: usize, dest: *mut c_void, source: *const c_void, count: usize) -> c_int;
    fn shmem_long_sum_reduce(team: usize, dest: *mut c_long, source: *const c_long, count: usize) -> c_int;
}

/// Calls a C function.
macro_rules! call {
    ($name:ident($($arg:expr),* $(,)?)) => {
        // SAFETY: all pointers are to memory that lives for the call: symmetric memory that is not freed, or memory of
        // this function. Each has the length that OpenSHMEM requires.
        unsafe { $name($($arg),*) }
    };
}

/// The calls that returned an error.
type Failed = Vec<&'static str>;

/// Starts OpenSHMEM, as a program does.
pub(crate) fn start() {
    let mut provided = -1;
    assert_eq!(call!(shmem_init_thread(MULTIPLE, &raw mut provided)), 0);
    assert_eq!(provided, MULTIPLE);
}

/// Finalizes OpenSHMEM, as a program does.
pub(crate) fn finalize() {
    shmem_finalize();
}

/// Returns memory of a call that may fail for lack of memory; the call then succeeds when all PEs repeat it.
fn allocated(name: &'static str, failed: &mut Failed, allocate: impl Fn() -> *mut c_void) -> *mut c_void {
    let mut at = allocate();
    if at.is_null() {
        failed.push(name);
        at = allocate();
    }
    assert!(!at.is_null(), "{name} failed again for lack of memory");
    at
}

/// One round of calls, which frees all that it allocates. Calls `next_phase` before each category.
pub(crate) fn all(mut next_phase: impl FnMut()) -> Failed {
    let mut failed = Vec::with_capacity(8);
    next_phase();
    heap(&mut failed);
    next_phase();
    let words = allocated("shmem_calloc", &mut failed, || shmem_calloc(2 * LONG, 1));
    let target = allocated("shmem_align", &mut failed, || shmem_align(4096, 2 * LONG));
    moves(words, target);
    next_phase();
    contexts(&mut failed, words, target);
    next_phase();
    teams(words, target);
    next_phase();
    locks(&mut failed);
    next_phase();
    shmem_barrier_all();
    call!(shmem_free(target));
    call!(shmem_free(words));
    failed
}

/// Returns a count, limited to the largest number that is set.
fn as_many(count: usize) -> usize {
    let most = std::env::var(MOST).ok().and_then(|most| most.parse().ok());
    most.map_or(count, |most: usize| count.min(most))
}

/// Fills the tables of the heap: many allocations, with a gap after every second one.
fn heap(failed: &mut Failed) {
    let mut all = [ptr::null_mut(); ALLOCATIONS];
    let all = &mut all[..as_many(ALLOCATIONS)];
    for at in &mut *all {
        *at = allocated("shmem_malloc", failed, || shmem_malloc(8));
    }
    for at in all.iter().step_by(2) {
        call!(shmem_free(*at));
    }
    for at in all.iter().skip(1).step_by(2) {
        call!(shmem_free(*at));
    }
    let first = allocated("shmem_malloc", failed, || shmem_malloc(5000));
    let behind = allocated("shmem_malloc", failed, || shmem_malloc(5000));
    let moved = allocated("shmem_realloc", failed, || call!(shmem_realloc(first, 50_000)));
    let less = allocated("shmem_realloc", failed, || call!(shmem_realloc(moved, 100)));
    call!(shmem_free(behind));
    call!(shmem_free(less));
}

/// Returns the next PE.
fn next() -> c_int {
    (shmem_my_pe() + 1) % shmem_n_pes()
}

/// Puts, gets, strides, atomics and signals.
fn moves(words: *mut c_void, target: *mut c_void) {
    let own = trunkline_proto::reserve::try_filled(7_u8, LONG);
    // The refused allocation may be this test's own.
    let Ok(mut own) = own.or_else(|_| trunkline_proto::reserve::try_filled(7_u8, LONG)) else { return };
    let (pe, bytes) = (next(), own.as_mut_ptr().cast::<c_void>());
    shmem_barrier_all();
    call!(shmem_putmem(target, bytes, LONG, pe));
    call!(shmem_putmem_nbi(target, words, LONG, pe));
    call!(shmem_long_iput(target.cast(), words.cast(), 2, 1, 100, pe));
    shmem_fence();
    call!(shmem_getmem(bytes, target, LONG, pe));
    call!(shmem_getmem(words, target, LONG, pe));
    call!(shmem_long_atomic_add(target.cast(), 1, pe));
    call!(shmem_long_atomic_fetch_add(target.cast(), 1, pe));
    shmem_quiet();
    shmem_barrier_all();
    let signal = words.cast::<u64>();
    // SAFETY: aligned symmetric memory, which no other PE accesses before the barrier.
    unsafe { signal.write(0) };
    shmem_barrier_all();
    call!(shmem_putmem_signal(target, bytes, LONG, signal, 5, SET, pe));
    assert_eq!(call!(shmem_signal_wait_until(signal, EQUAL, 5)), 5);
}

/// More contexts than lanes.
fn contexts(failed: &mut Failed, words: *mut c_void, target: *mut c_void) {
    let mut all = [0; 5];
    for ctx in &mut all {
        if call!(shmem_ctx_create(0, &raw mut *ctx)) != 0 {
            failed.push("shmem_ctx_create");
            assert_eq!(
                call!(shmem_ctx_create(0, &raw mut *ctx)),
                0,
                "shmem_ctx_create failed again for lack of memory"
            );
        }
        call!(shmem_ctx_putmem(*ctx, target, words, LONG, next()));
    }
    for ctx in all {
        shmem_ctx_quiet(ctx);
        shmem_ctx_destroy(ctx);
    }
}

/// Teams, and collectives among their PEs.
fn teams(words: *mut c_void, target: *mut c_void) {
    let (size, mut team) = (shmem_n_pes(), 0);
    assert_eq!(call!(shmem_team_split_strided(WORLD, 0, 1, size, ptr::null(), 0, &raw mut team)), 0);
    assert_eq!(call!(shmem_broadcastmem(team, target, words, LONG, 0)), 0);
    assert_eq!(call!(shmem_collectmem(team, target, words, LONG / 2)), 0);
    assert_eq!(call!(shmem_alltoallmem(team, target, words, LONG / 2)), 0);
    assert_eq!(call!(shmem_long_sum_reduce(team, target.cast(), words.cast(), 3)), 0);
    assert_eq!(call!(shmem_long_sum_reduce(team, target.cast(), words.cast(), WORDS)), 0);
    assert_eq!(shmem_team_sync(team), 0);
    shmem_team_destroy(team);
}

/// Locks, all of which one PE after another holds at a time.
fn locks(failed: &mut Failed) {
    let locks = allocated("shmem_calloc", failed, || shmem_calloc(LOCKS, 8)).cast::<c_long>();
    let of = |at| locks.wrapping_add(at);
    (0..as_many(LOCKS)).for_each(|at| call!(shmem_set_lock(of(at))));
    (0..as_many(LOCKS)).for_each(|at| call!(shmem_clear_lock(of(at))));
    call!(shmem_free(locks.cast()));
}
