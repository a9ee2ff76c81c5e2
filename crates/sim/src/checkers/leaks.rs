//! Checks that everything that was opened is closed: links, regions, streams and listeners are as before.

use crate::checkers::{PropertyResult, PropertyViolation};
use crate::{HeldResources, SimPid, SimWorld};

/// Compares the resources of a process with those before its first call.
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
    let text = format!("{process} holds {now:?} {when}, but held {before:?} at first");
    Err(PropertyViolation { checker: "leaks", text })
}
