//! What was opened is closed: links, regions, streams and listeners are back where they were.

use crate::checkers::{Check, Violation};
use crate::{Counts, Pid, World};

/// Compares what a process holds with what it held before it did anything.
pub(crate) fn check(world: &World, process: Pid, before: Counts, when: &str) -> Check {
    let now = world.counts(process);
    if now == before {
        return Ok(());
    }
    let text = format!("{process} holds {now:?} {when}, and held {before:?} at first");
    Err(Violation { checker: "leaks", text })
}
