//! What a queue's consumer gives to its executor, and what it hears back. Values alone; used by `consumer`, `drain` and whoever executes.

use trunkline_proto::wire::devq::{Entry, Poison, Remote, Status};

/// Work for the executor.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Job {
    /// An entry: a WRITE, READ, atomic, SHOW or NOTIFY.
    Execute(Entry),
    /// The word that an entry was to change does not change: its poison word is to be set, or the error word that its window has for it.
    Poison {
        /// The word that does not change.
        at: Remote,
        /// Whether a poison word stands behind it.
        poisoned: bool,
        /// What goes there.
        poison: Poison,
    },
}

/// How a job ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Outcome {
    /// Well, with the value before, where the entry brings one.
    Done(u64),
    /// It failed.
    Failed {
        /// How; [`Status::Done`] stands for [`Status::Network`].
        status: Status,
        /// The executor's own reason.
        reason: u32,
    },
}
