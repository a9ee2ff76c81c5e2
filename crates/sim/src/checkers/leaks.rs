//! What was opened is closed: links, regions, streams and listeners are back where they were.

use crate::checkers::{PropertyResult, PropertyViolation};
use crate::{HeldResources, SimPid, SimWorld};

/// Compares what a process holds with what it held before it did anything.
pub(crate) fn check_process(
    world: &SimWorld,
    process: SimPid,
    before: HeldResources,
    when: &str,
) -> PropertyResult {
    let now = world.held_resources(process);
    if now == before {
        return Ok(());
    }
    let text = format!("{process} holds {now:?} {when}, and held {before:?} at first");
    Err(PropertyViolation { checker: "leaks", text })
}
