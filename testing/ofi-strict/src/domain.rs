//! Fabrics and domains, shared by their objects.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, TryLockError, Weak};

use crate::config::{FailureStep, StrictConfig};
use crate::gate::{CallScope, ThreadGates};
use crate::report::ViolationReport;
use crate::state::DomainContents;

/// An open fabric.
pub(crate) struct StrictFabric {
    pub(crate) config: StrictConfig,
    pub(crate) report: ViolationReport,
    calls: Mutex<BTreeMap<FailureStep, u32>>,
    domains: Mutex<Vec<Weak<StrictDomain>>>,
}

impl StrictFabric {
    pub(crate) fn new(config: StrictConfig) -> Self {
        let report = ViolationReport::new(&config);
        Self { config, report, calls: Mutex::default(), domains: Mutex::default() }
    }

    /// Counts a call, and returns whether `FI_STRICT_FAIL` makes it fail.
    pub(crate) fn count_call(&self, step: FailureStep) -> bool {
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        let count = calls.entry(step).or_default();
        *count += 1;
        self.config.fail.contains(&(step, *count))
    }

    /// Returns the number of open domains.
    pub(crate) fn open_domains(&self) -> usize {
        let mut domains = self.domains.lock().unwrap_or_else(PoisonError::into_inner);
        domains.retain(|domain| domain.strong_count() > 0);
        domains.len()
    }

    /// Opens a domain.
    pub(crate) fn open_domain(self: &Arc<Self>, nic: u32, threading: u32) -> Arc<StrictDomain> {
        let domain = Arc::new(StrictDomain {
            shared: Arc::clone(self),
            name: format!("strict{nic}"),
            state: Mutex::new(DomainContents::new(self.config.clone(), nic)),
            gates: ThreadGates::new(threading),
        });
        let mut domains = self.domains.lock().unwrap_or_else(PoisonError::into_inner);
        domains.push(Arc::downgrade(&domain));
        domain
    }

    /// Writes the accounts of all open domains, when the process exits.
    pub(crate) fn account_at_exit(&self) {
        let domains = self.domains.lock().unwrap_or_else(PoisonError::into_inner);
        for domain in domains.iter().filter_map(Weak::upgrade) {
            domain.write_account("exit");
        }
    }
}

/// An open domain.
pub(crate) struct StrictDomain {
    pub(crate) shared: Arc<StrictFabric>,
    name: String,
    state: Mutex<DomainContents>,
    gates: ThreadGates,
}

impl StrictDomain {
    /// Runs a call on the domain or on one of its objects.
    pub(crate) fn run_call<R>(&self, whose: CallScope, act: impl FnOnce(&mut DomainContents) -> R) -> R {
        let pass = self.gates.enter_call(whose);
        let result = {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            if pass.is_crowded {
                state.report_violation(
                    "two threads at once are in calls that must not overlap in this threading model",
                );
            }
            state.progress_unasked();
            act(&mut state)
        };
        self.gates.leave_call(&pass);
        result
    }

    /// Records that an endpoint completes to a queue.
    pub(crate) fn join_queue(&self, endpoint: u32, queue: u32) {
        self.gates.join_queue(endpoint, queue);
    }

    /// Writes the account, unless the lock is held: at exit, its thread may have ended inside a call.
    pub(crate) fn write_account(&self, at: &str) {
        let state = match self.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        self.shared.report.append_line(&state.account_line(&self.name, at));
    }
}
