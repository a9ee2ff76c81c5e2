//! Every request ends exactly once, and only requests that were made end.

use std::collections::BTreeSet;

use crate::checkers::{PropertyResult, PropertyViolation};

/// The requests of one process that have not ended.
#[derive(Debug, Default)]
pub(crate) struct OnceChecker {
    open: BTreeSet<u64>,
    /// Requests that ended so far.
    pub(crate) ended: u64,
}

impl OnceChecker {
    /// The engine made a request; its name must be free.
    pub(crate) fn record_created(&mut self, what: &str, request: u64) -> PropertyResult {
        if self.open.insert(request) {
            return Ok(());
        }
        let text = format!("{what}: request {request:#x} is the name of another one that has not ended");
        Err(PropertyViolation { checker: "once", text })
    }

    /// The engine said that a request is done, or failed.
    pub(crate) fn record_ended(&mut self, what: &str, request: u64) -> PropertyResult {
        self.ended += 1;
        if self.open.remove(&request) {
            return Ok(());
        }
        let text = format!("{what}: request {request:#x} ended, but none of that name was under way");
        Err(PropertyViolation { checker: "once", text })
    }

    /// A comm was closed: its requests will never end.
    pub(crate) fn record_dropped(&mut self, request: u64) {
        self.open.remove(&request);
    }
}
