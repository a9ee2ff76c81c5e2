//! The one PE of a process, because C's calls pass no object by which it could be found. It is created once. A call
//! that fails ends the program, because OpenSHMEM's calls return no errors.

use std::sync::OnceLock;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::process::Pid;
use rustix::thread::gettid;

use crate::error::{Result, ShmemError};
use crate::layout::{ENDS, EXIT, LEFT, OF_ANOTHER};
use crate::pe::Pe;
use crate::symmetric_segments::INNER;

static WORLD: OnceLock<Pe> = OnceLock::new();
/// The thread that ends the program without the other PEs, and its exit status. Exit handlers and destructors may
/// call this library again.
static ENDING: OnceLock<(Pid, i32)> = OnceLock::new();

/// Starts the PE, unless it was started. Returns whether this call did.
///
/// # Errors
/// As [`Pe::start`].
pub(crate) fn start_pe() -> Result<bool> {
    let starts = WORLD.get().is_none();
    if starts {
        let pe = WORLD.get_or_init({
            let pe = Pe::start()?;
            || pe
        });
        std::thread::Builder::new()
            .name("trunkline-exit".into())
            .spawn(|| watch_exit(pe))
            .map_err(ShmemError::Thread)?;
    }
    Ok(starts)
}

/// Returns the PE if it runs.
#[inline]
pub(crate) fn running_pe() -> Result<&'static Pe> {
    match WORLD.get() {
        Some(pe) if !pe.left.load(Ordering::Relaxed) => Ok(pe),
        _ => Err(ShmemError::NotRunning),
    }
}

/// Returns the PE if it runs, for callers with a slower path for the other case.
#[inline(always)]
pub(crate) fn current_pe() -> Option<&'static Pe> {
    WORLD.get().filter(|pe| !pe.left.load(Ordering::Relaxed))
}

/// Runs the body of a C call, whose name errors report. Ends the program if it fails.
#[inline]
pub(crate) fn with_pe<T>(call: &str, what: impl FnOnce(&'static Pe) -> Result<T>) -> T {
    match running_pe().and_then(what) {
        Ok(done) => done,
        Err(error) => end_program(call, &error),
    }
}

/// Runs the body of a C call that only releases resources. Does nothing in the thread that ends the program.
pub(crate) fn with_pe_unless_ending(call: &str, what: impl FnOnce(&'static Pe) -> Result<()>) {
    match ENDING.get() {
        Some((thread, _)) if *thread == gettid() => {}
        _ => with_pe(call, what),
    }
}

/// Marks this thread as the one that ends the program. From now on no call waits for other PEs, and other threads
/// block in their next call. A call from an exit handler of this thread ends the process at once.
pub(crate) fn begin_end(status: i32) {
    ends_already();
    if ENDING.set((gettid(), status)).is_err() {
        ends_already();
    }
    if let Some(pe) = WORLD.get() {
        pe.left.store(true, Ordering::Release);
    }
}

/// Returns if the program is not ending. Else it blocks, or ends the process if this thread is ending it.
fn ends_already() {
    let Some(&(thread, status)) = ENDING.get() else { return };
    if thread == gettid() {
        leave_at_once(status);
    }
    loop {
        std::thread::park();
    }
}

/// The limit for flushing C's streams when a process ends: a stream that another thread reads from stays locked by
/// that thread.
const FLUSHES_WITHIN: Duration = Duration::from_millis(500);

/// Ends the process without exit handlers. Only C's output streams are flushed.
fn leave_at_once(status: i32) -> ! {
    let (done, flushed) = std::sync::mpsc::channel();
    let flush = move || {
        flush_all();
        let _ = done.send(());
    };
    if std::thread::Builder::new().spawn(flush).is_ok() {
        let _ = flushed.recv_timeout(FLUSHES_WITHIN);
    }
    // SAFETY: `_exit` has no preconditions. It ends all threads, as the program requested.
    unsafe { libc::_exit(status) }
}

unsafe extern "C" {
    #[link_name = "stdout"]
    static STDOUT: *mut libc::FILE;
}

/// Flushes C's output streams, standard output first.
fn flush_all() {
    // SAFETY: C's library initializes this variable before any code of the program runs.
    let stdout = unsafe { STDOUT };
    // SAFETY: the pointer is a valid stream, or null if the program has closed it, which flushes all streams.
    unsafe { libc::fflush(stdout) };
    // SAFETY: a null pointer flushes all open output streams.
    unsafe { libc::fflush(std::ptr::null_mut()) };
}

/// Prints the error, and ends the program.
#[cold]
pub(crate) fn end_program(call: &str, error: &ShmemError) -> ! {
    ends_already();
    if let Some(pe) = WORLD.get() {
        // The lost PE may have ended because another PE ended the program, whose word has not arrived here yet.
        let lost = error.lost_pe();
        if let Some(lost) = lost {
            // PEs of this host that wait for this PE report that one.
            let _ = pe.symmetric_memory().own_segments().0[INNER].store(LEFT, lost as u64 + OF_ANOTHER);
        }
        let told_by = Instant::now() + if lost.is_some() { ENDS_WITHIN } else { Duration::ZERO };
        end_if_told(pe);
        while Instant::now() < told_by {
            let moved =
                pe.symmetric_memory().find_fabric().is_some_and(|far| far.progress().unwrap_or(false));
            end_if_told(pe);
            if !moved {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
    begin_end(1);
    match WORLD.get() {
        Some(pe) => {
            let memory = pe.symmetric_memory();
            eprintln!("trunkline: PE {} of {}: {call}: {error}", memory.own_pe(), memory.pe_count());
        }
        None if error.is_printed() => {}
        None => eprintln!("trunkline: {call}: {error}"),
    }
    // The launcher ends the other PEs.
    std::process::exit(1)
}

/// The time within which all PEs end after one ends the program. A link to each of them may have to be made first,
/// which takes 0.2 s over `ofi_rxm`.
pub(crate) const ENDS_WITHIN: Duration = Duration::from_secs(2);
/// The interval at which a PE checks whether another one has ended the program.
const WATCHES: Duration = Duration::from_millis(20);

/// Ends the program when another PE has ended it, whatever its own threads do.
fn watch_exit(pe: &Pe) {
    while !pe.left.load(Ordering::Relaxed) {
        end_if_told(pe);
        std::thread::sleep(WATCHES);
    }
}

/// Ends this process if another PE has ended the program.
fn end_if_told(pe: &Pe) {
    let word = pe.symmetric_memory().own_segments().0[INNER].load(EXIT).unwrap_or(0);
    if word & ENDS != 0 {
        leave_at_once(word as u32 as i32);
    }
}
