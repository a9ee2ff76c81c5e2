//! Checks which threads are in which calls at the same time, against `FI_THREAD_DOMAIN` and the other threading
//! models. Most providers rely on the application instead.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::thread::ThreadId;

use trunkline_sys::ofi::threading;

/// The object of a call.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) enum CallScope {
    Domain,
    Endpoint(u32),
    Queue(u32),
}

#[derive(Default)]
struct ActiveCalls {
    holders: BTreeMap<CallScope, ThreadId>,
    queues_of: BTreeMap<u32, Vec<u32>>,
}

/// The threads that are in calls of a domain.
pub(crate) struct ThreadGates {
    model: u32,
    inside: Mutex<ActiveCalls>,
}

/// A call in progress.
#[derive(Debug)]
pub(crate) struct CallPass {
    taken: Vec<CallScope>,
    /// Whether another thread was already in a call that must not overlap.
    pub(crate) is_crowded: bool,
}

impl ThreadGates {
    pub(crate) fn new(model: u32) -> Self {
        Self { model, inside: Mutex::default() }
    }

    fn with_active<R>(&self, act: impl FnOnce(&mut ActiveCalls) -> R) -> R {
        act(&mut self.inside.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Records that an endpoint completes to a queue.
    pub(crate) fn join_queue(&self, endpoint: u32, queue: u32) {
        self.with_active(|inside| inside.queues_of.entry(endpoint).or_default().push(queue));
    }

    /// Begins a call on an object.
    pub(crate) fn enter_call(&self, whose: CallScope) -> CallPass {
        if matches!(self.model, threading::SAFE | threading::UNSPEC) {
            return CallPass { taken: Vec::new(), is_crowded: false };
        }
        let me = std::thread::current().id();
        self.with_active(|inside| {
            let mut pass = CallPass { taken: Vec::new(), is_crowded: false };
            for key in exclusive_scopes(self.model, whose, &inside.queues_of) {
                match inside.holders.get(&key) {
                    None => {
                        inside.holders.insert(key, me);
                        pass.taken.push(key);
                    }
                    Some(holder) => pass.is_crowded |= *holder != me,
                }
            }
            pass
        })
    }

    /// Ends a call.
    pub(crate) fn leave_call(&self, pass: &CallPass) {
        if !pass.taken.is_empty() {
            self.with_active(|inside| inside.holders.retain(|key, _| !pass.taken.contains(key)));
        }
    }
}

/// The scopes of a call that only one thread may be in at a time.
fn exclusive_scopes(model: u32, whose: CallScope, queues_of: &BTreeMap<u32, Vec<u32>>) -> Vec<CallScope> {
    match (model, whose) {
        (threading::DOMAIN, _) => vec![CallScope::Domain],
        (threading::COMPLETION, CallScope::Endpoint(endpoint)) => {
            let mut queues = queues_of.get(&endpoint).cloned().unwrap_or_default();
            queues.sort_unstable();
            queues.dedup();
            queues.into_iter().map(CallScope::Queue).collect()
        }
        (threading::COMPLETION | threading::ENDPOINT, CallScope::Domain) => Vec::new(),
        (_, whose) => vec![whose],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether the gates report a second thread that enters `second` while a first thread is in `first`.
    fn is_noticed(model: u32, first: CallScope, second: CallScope) -> bool {
        let gates = ThreadGates::new(model);
        gates.join_queue(1, 10);
        gates.join_queue(1, 11);
        gates.join_queue(2, 11);
        let pass = gates.enter_call(first);
        assert!(!pass.is_crowded);
        let noticed =
            std::thread::scope(|scope| scope.spawn(|| gates.enter_call(second).is_crowded).join().unwrap());
        gates.leave_call(&pass);
        assert!(!gates.enter_call(first).is_crowded);
        noticed
    }

    #[test]
    fn each_threading_model_reports_its_own_conflicts() {
        use CallScope::{Domain, Endpoint, Queue};
        let cases = [
            (threading::SAFE, Endpoint(1), Endpoint(1), false),
            (threading::DOMAIN, Endpoint(1), Queue(12), true),
            (threading::COMPLETION, Endpoint(1), Endpoint(2), true),
            (threading::COMPLETION, Endpoint(1), Queue(10), true),
            (threading::COMPLETION, Endpoint(2), Queue(10), false),
            (threading::COMPLETION, Domain, Domain, false),
            (threading::ENDPOINT, Endpoint(1), Endpoint(2), false),
            (threading::ENDPOINT, Endpoint(1), Endpoint(1), true),
            (threading::FID, Queue(10), Queue(10), true),
            (threading::FID, Domain, Domain, true),
        ];
        for (model, first, second, noticed) in cases {
            assert_eq!(is_noticed(model, first, second), noticed, "{model}: {first:?}, {second:?}");
        }
    }

    #[test]
    fn calls_of_one_thread_may_nest() {
        let gates = ThreadGates::new(threading::DOMAIN);
        let first = gates.enter_call(CallScope::Domain);
        let second = gates.enter_call(CallScope::Queue(1));
        assert!(!second.is_crowded);
        gates.leave_call(&second);
        gates.leave_call(&first);
        assert!(!gates.enter_call(CallScope::Domain).is_crowded);
    }
}
