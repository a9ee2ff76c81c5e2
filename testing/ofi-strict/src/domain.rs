//! A fabric and its domains, as all their objects share them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, TryLockError, Weak};

use crate::config::{Config, Step};
use crate::gate::{Gates, Whose};
use crate::report::Report;
use crate::state::State;

/// An open fabric.
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) report: Report,
    calls: Mutex<BTreeMap<Step, u32>>,
    domains: Mutex<Vec<Weak<Domain>>>,
}

impl Shared {
    pub(crate) fn new(config: Config) -> Self {
        let report = Report::new(&config);
        Self { config, report, calls: Mutex::default(), domains: Mutex::default() }
    }

    /// Whether this call was chosen to fail.
    pub(crate) fn fails(&self, step: Step) -> bool {
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        let count = calls.entry(step).or_default();
        *count += 1;
        self.config.fail.contains(&(step, *count))
    }

    /// Domains that are open.
    pub(crate) fn open_domains(&self) -> usize {
        let mut domains = self.domains.lock().unwrap_or_else(PoisonError::into_inner);
        domains.retain(|domain| domain.strong_count() > 0);
        domains.len()
    }

    /// Opens a domain.
    pub(crate) fn open(self: &Arc<Self>, nic: u32, threading: u32) -> Arc<Domain> {
        let domain = Arc::new(Domain {
            shared: Arc::clone(self),
            name: format!("strict{nic}"),
            state: Mutex::new(State::new(self.config.clone(), nic)),
            gates: Gates::new(threading),
        });
        let mut domains = self.domains.lock().unwrap_or_else(PoisonError::into_inner);
        domains.push(Arc::downgrade(&domain));
        domain
    }

    /// The process ends: accounts of what is still open.
    pub(crate) fn account_at_exit(&self) {
        let domains = self.domains.lock().unwrap_or_else(PoisonError::into_inner);
        for domain in domains.iter().filter_map(Weak::upgrade) {
            domain.account("exit");
        }
    }
}

/// An open domain.
pub(crate) struct Domain {
    pub(crate) shared: Arc<Shared>,
    name: String,
    state: Mutex<State>,
    gates: Gates,
}

impl Domain {
    /// A call on the domain or something of it.
    pub(crate) fn call<R>(&self, whose: Whose, act: impl FnOnce(&mut State) -> R) -> R {
        let pass = self.gates.enter(whose);
        let result = {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            if pass.is_crowded {
                state.violation("two threads at once are in calls that the threading model keeps apart");
            }
            state.progress_unasked();
            act(&mut state)
        };
        self.gates.leave(&pass);
        result
    }

    /// An endpoint completes to a queue.
    pub(crate) fn join(&self, endpoint: u32, queue: u32) {
        self.gates.join(endpoint, queue);
    }

    /// Writes the account, unless a thread that is no more is inside.
    pub(crate) fn account(&self, at: &str) {
        let state = match self.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        self.shared.report.append(&state.account(&self.name, at));
    }
}
