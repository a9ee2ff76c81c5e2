//! The one PE of a process: C's calls carry nothing by which it would be found. Made once; a call that cannot do what it is asked ends
//! the program, because OpenSHMEM's calls return no errors.

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
/// Which thread ends the program without the other PEs, and with which status. What runs in its exit (handlers, destructors) may call this
/// library.
static ENDING: OnceLock<(Pid, i32)> = OnceLock::new();

/// Starts, unless it has. Whether this call did.
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

/// The PE, if it runs.
#[inline]
pub(crate) fn running_pe() -> Result<&'static Pe> {
    match WORLD.get() {
        Some(pe) if !pe.left.load(Ordering::Relaxed) => Ok(pe),
        _ => Err(ShmemError::NotRunning),
    }
}

/// The same, for who asks elsewhere if there is none.
#[inline(always)]
pub(crate) fn current_pe() -> Option<&'static Pe> {
    WORLD.get().filter(|pe| !pe.left.load(Ordering::Relaxed))
}

/// What a call of C does, by its name.
#[inline]
pub(crate) fn with_pe<T>(call: &str, what: impl FnOnce(&'static Pe) -> Result<T>) -> T {
    match running_pe().and_then(what) {
        Ok(done) => done,
        Err(error) => end_program(call, &error),
    }
}

/// What a call does that only gives something back: nothing is to be done where the program ends by itself.
pub(crate) fn with_pe_unless_ending(call: &str, what: impl FnOnce(&'static Pe) -> Result<()>) {
    match ENDING.get() {
        Some((thread, _)) if *thread == gettid() => {}
        _ => with_pe(call, what),
    }
}

/// Makes it known that this thread ends the program. Nobody waits for the other PEs from now on, and other threads that call come no further;
/// what runs in an exit that has begun, and calls, ends it at once.
pub(crate) fn begin_end(status: i32) {
    ends_already();
    if ENDING.set((gettid(), status)).is_err() {
        ends_already();
    }
    if let Some(pe) = WORLD.get() {
        pe.left.store(true, Ordering::Release);
    }
}

/// Comes back unless the program ends.
fn ends_already() {
    let Some(&(thread, status)) = ENDING.get() else { return };
    if thread == gettid() {
        leave_at_once(status);
    }
    loop {
        std::thread::park();
    }
}

/// How long the streams of C may take to be written when a process ends: one from which another thread reads is that thread's.
const FLUSHES_WITHIN: Duration = Duration::from_millis(500);

/// Ends the process, with nothing of the program's run any more but what it printed.
fn leave_at_once(status: i32) -> ! {
    let (done, flushed) = std::sync::mpsc::channel();
    let flush = move || {
        flush_all();
        let _ = done.send(());
    };
    if std::thread::Builder::new().spawn(flush).is_ok() {
        let _ = flushed.recv_timeout(FLUSHES_WITHIN);
    }
    // SAFETY: ends the process; what its threads do is cut off, as was asked for.
    unsafe { libc::_exit(status) }
}

unsafe extern "C" {
    #[link_name = "stdout"]
    static STDOUT: *mut libc::FILE;
}

/// Writes what C's streams hold, the one for output first.
fn flush_all() {
    // SAFETY: C's variable, which is set before any program runs.
    let stdout = unsafe { STDOUT };
    // SAFETY: the stream for output, or all of them if the program has none any more.
    unsafe { libc::fflush(stdout) };
    // SAFETY: a null pointer asks for all streams of C.
    unsafe { libc::fflush(std::ptr::null_mut()) };
}

/// Says what is wrong, and ends the program.
#[cold]
pub(crate) fn end_program(call: &str, error: &ShmemError) -> ! {
    ends_already();
    if let Some(pe) = WORLD.get() {
        // Who is gone may be so because another PE ended the program, and has not come to tell this one.
        let lost = error.lost_pe();
        if let Some(lost) = lost {
            // Neighbours that waited for this PE name that one.
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
        None => eprintln!("trunkline: {call}: {error}"),
    }
    // The launcher ends the others.
    std::process::exit(1)
}

/// How soon all PEs hear of it when one ends the program, which may have to reach each of them first: over `ofi_rxm` that takes some 0.2 s each.
pub(crate) const ENDS_WITHIN: Duration = Duration::from_secs(2);
/// How soon a PE ends when another says so.
const WATCHES: Duration = Duration::from_millis(20);

/// Ends the program when another PE says so, whatever its own threads do.
fn watch_exit(pe: &Pe) {
    while !pe.left.load(Ordering::Relaxed) {
        end_if_told(pe);
        std::thread::sleep(WATCHES);
    }
}

/// Ends this process if another PE says so.
fn end_if_told(pe: &Pe) {
    let word = pe.symmetric_memory().own_segments().0[INNER].load(EXIT).unwrap_or(0);
    if word & ENDS != 0 {
        leave_at_once(word as u32 as i32);
    }
}
