//! The process's handlers of signals, kept while a library is opened: what libfabric may be linked with (a library of older
//! InfiniPath cards is) installs its own for faults and for the end, from a constructor.

use std::ffi::c_int;

/// Signals that such libraries handle.
const SIGNALS: [c_int; 7] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGABRT, libc::SIGINT, libc::SIGTERM];

/// Does something, after which the handlers are as before. A handler that another thread installs meanwhile is lost.
pub(crate) fn with_handlers_kept<T>(what: impl FnOnce() -> T) -> T {
    let before = SIGNALS.map(|signal| (signal, get(signal)));
    let done = what();
    for (signal, handler) in before {
        let Some(handler) = handler else { continue };
        // SAFETY: the handler is the one that was there.
        unsafe { libc::sigaction(signal, &raw const handler, std::ptr::null_mut()) };
    }
    done
}

/// The handler of a signal.
fn get(signal: c_int) -> Option<libc::sigaction> {
    // SAFETY: all zeros are such a handler.
    let mut handler: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: nothing is changed, and there is a place for the answer.
    let code = unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut handler) };
    (code == 0).then_some(handler)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handlers_are_as_before() {
        let handlers = || SIGNALS.map(|signal| get(signal).unwrap().sa_sigaction);
        let before = handlers();
        with_handlers_kept(|| {
            for signal in [libc::SIGINT, libc::SIGTERM] {
                // SAFETY: to ignore a signal for a moment harms nobody.
                unsafe { libc::signal(signal, libc::SIG_IGN) };
            }
            assert_ne!(handlers(), before);
        });
        assert_eq!(handlers(), before);
    }
}
