//! Which threads may be inside of which calls at once: `FI_THREAD_DOMAIN` and the others, which most providers trust and
//! this one checks.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::thread::ThreadId;

use trunkline_sys::ofi::threading;

/// What a call is about.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) enum Whose {
    Domain,
    Endpoint(u32),
    Queue(u32),
}

#[derive(Default)]
struct Inside {
    holders: BTreeMap<Whose, ThreadId>,
    queues_of: BTreeMap<u32, Vec<u32>>,
}

/// Who is inside.
pub(crate) struct Gates {
    model: u32,
    inside: Mutex<Inside>,
}

/// A call that is under way.
#[derive(Debug)]
pub(crate) struct Pass {
    taken: Vec<Whose>,
    /// Whether another thread was inside already.
    pub(crate) is_crowded: bool,
}

impl Gates {
    pub(crate) fn new(model: u32) -> Self {
        Self { model, inside: Mutex::default() }
    }

    fn with<R>(&self, act: impl FnOnce(&mut Inside) -> R) -> R {
        act(&mut self.inside.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// An endpoint completes to a queue.
    pub(crate) fn join(&self, endpoint: u32, queue: u32) {
        self.with(|inside| inside.queues_of.entry(endpoint).or_default().push(queue));
    }

    /// A call begins.
    pub(crate) fn enter(&self, whose: Whose) -> Pass {
        if matches!(self.model, threading::SAFE | threading::UNSPEC) {
            return Pass { taken: Vec::new(), is_crowded: false };
        }
        let me = std::thread::current().id();
        self.with(|inside| {
            let mut pass = Pass { taken: Vec::new(), is_crowded: false };
            for key in keys(self.model, whose, &inside.queues_of) {
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

    /// A call ends.
    pub(crate) fn leave(&self, pass: &Pass) {
        if !pass.taken.is_empty() {
            self.with(|inside| inside.holders.retain(|key, _| !pass.taken.contains(key)));
        }
    }
}

/// What one thread at a time may be in.
fn keys(model: u32, whose: Whose, queues_of: &BTreeMap<u32, Vec<u32>>) -> Vec<Whose> {
    match (model, whose) {
        (threading::DOMAIN, _) => vec![Whose::Domain],
        (threading::COMPLETION, Whose::Endpoint(endpoint)) => {
            let mut queues = queues_of.get(&endpoint).cloned().unwrap_or_default();
            queues.sort_unstable();
            queues.dedup();
            queues.into_iter().map(Whose::Queue).collect()
        }
        (threading::COMPLETION | threading::ENDPOINT, Whose::Domain) => Vec::new(),
        (_, whose) => vec![whose],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether a second thread that enters `second` while a first is in `first` is noticed.
    fn is_noticed(model: u32, first: Whose, second: Whose) -> bool {
        let gates = Gates::new(model);
        gates.join(1, 10);
        gates.join(1, 11);
        gates.join(2, 11);
        let pass = gates.enter(first);
        assert!(!pass.is_crowded);
        let noticed =
            std::thread::scope(|scope| scope.spawn(|| gates.enter(second).is_crowded).join().unwrap());
        gates.leave(&pass);
        assert!(!gates.enter(first).is_crowded);
        noticed
    }

    #[test]
    fn each_model_has_its_own_crowds() {
        use Whose::{Domain, Endpoint, Queue};
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
    fn a_thread_may_be_inside_twice() {
        let gates = Gates::new(threading::DOMAIN);
        let first = gates.enter(Whose::Domain);
        let second = gates.enter(Whose::Queue(1));
        assert!(!second.is_crowded);
        gates.leave(&second);
        gates.leave(&first);
        assert!(!gates.enter(Whose::Domain).is_crowded);
    }
}
