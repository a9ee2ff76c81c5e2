//! What the engine counts. One struct, read by whoever asks; never reset.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// A snapshot of the engine's counters.
        #[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
        pub struct Counters {
            $($(#[$doc])* pub $name: u64,)*
        }

        #[derive(Debug, Default)]
        pub(crate) struct Cells {
            $(pub(crate) $name: AtomicU64,)*
        }

        impl Cells {
            pub(crate) fn snapshot(&self) -> Counters {
                Counters { $($name: self.$name.load(Ordering::Relaxed),)* }
            }
        }
    };
}

counters! {
    /// Comms connected or accepted.
    comms_opened,
    /// Comms closed.
    comms_closed,
    /// Requests that ended in an error.
    requests_failed,
    /// Completions that named nothing that waits, and were dropped.
    completions_dropped,
    /// Control streams refused: strangers, wrong versions, garbage.
    streams_refused,
    /// Connections refused: unknown listener or wrong nonce.
    opens_refused,
    /// Connection attempts given up, because connect was not called for them any more.
    attempts_abandoned,
}

pub(crate) fn add(cell: &AtomicU64, n: u64) {
    cell.fetch_add(n, Ordering::Relaxed);
}
