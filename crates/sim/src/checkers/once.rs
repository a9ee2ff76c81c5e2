//! Checks that every request ends exactly once, and that only existing requests end.

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
    /// Records a new request; its name must be unused.
    pub(crate) fn record_created(&mut self, what: &str, request: u64) -> PropertyResult {
        if self.open.insert(request) {
            return Ok(());
        }
        let text = format!("{what}: request id {request:#x} belongs to another request that has not ended");
        Err(PropertyViolation { checker: "once", text })
    }

    /// Records that the engine reported a request as done, or failed.
    pub(crate) fn record_ended(&mut self, what: &str, request: u64) -> PropertyResult {
        self.ended += 1;
        if self.open.remove(&request) {
            return Ok(());
        }
        let text = format!("{what}: request {request:#x} ended, but no request with that id was pending");
        Err(PropertyViolation { checker: "once", text })
    }

    /// Drops a request of a closed comm, which never ends.
    pub(crate) fn record_dropped(&mut self, request: u64) {
        self.open.remove(&request);
    }
}
