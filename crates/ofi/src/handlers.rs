//! Keeps the process's signal handlers while a library is opened. Dependencies of libfabric (such as the library for older InfiniPath cards)
//! install handlers for faults and termination in their constructors.

use std::ffi::c_int;

/// Signals that such libraries handle.
const SIGNALS: [c_int; 7] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGABRT, libc::SIGINT, libc::SIGTERM];

/// Runs `what`, then restores the handlers. A handler that another thread installs during the call is lost.
pub(crate) fn with_handlers_kept<T>(what: impl FnOnce() -> T) -> T {
    let before = SIGNALS.map(|signal| (signal, get(signal)));
    let done = what();
    for (signal, handler) in before {
        // The action could not be read, so it cannot be restored.
        let Some(handler) = handler else { continue };
        // SAFETY: `handler` is the action that sigaction(2) returned for this signal before.
        unsafe { libc::sigaction(signal, &raw const handler, std::ptr::null_mut()) };
    }
    done
}

/// Returns the action of a signal.
fn get(signal: c_int) -> Option<libc::sigaction> {
    // SAFETY: all zeros are a valid action.
    let mut handler: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: a null action changes nothing; the call fills a local variable.
    let code = unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut handler) };
    (code == 0).then_some(handler)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signal_handlers_are_restored() {
        let handlers = || SIGNALS.map(|signal| get(signal).unwrap().sa_sigaction);
        let before = handlers();
        with_handlers_kept(|| {
            for signal in [libc::SIGINT, libc::SIGTERM] {
                // SAFETY: ignoring a signal for a moment is harmless.
                unsafe { libc::signal(signal, libc::SIG_IGN) };
            }
            assert_ne!(handlers(), before);
        });
        assert_eq!(handlers(), before);
    }
}
