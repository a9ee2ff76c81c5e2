//! NCCL's communicators, as far as versions of the interface that have a context for each let us know them: what each has
//! said of its traffic. Called for init, finalize, setNetAttr and connect; never for a message.

use std::sync::{Mutex, MutexGuard, PoisonError};

use trunkline_engine::{Error, Traffic};
use trunkline_proto::reserve::OutOfMemory;
use trunkline_proto::slots::{SlotId, Slots};

use crate::abi::NetAttr;
use crate::status::CallError;

/// Communicators that a process may have at a time.
const CONTEXTS_MAX: usize = 65_536;

/// The communicators of this process.
pub(crate) struct Contexts(Mutex<Slots<Traffic>>);

impl Contexts {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(Slots::new(CONTEXTS_MAX)))
    }

    fn all(&self) -> MutexGuard<'_, Slots<Traffic>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One begins, with its traffic class; its number is never 0, and not that of another that is there.
    pub(crate) fn open(&self, class: Option<u8>) -> Result<u64, CallError> {
        let mut all = self.all();
        let opened = all.insert(Traffic { class, ..Traffic::default() });
        opened.map(SlotId::to_bits).map_err(|_| match all.places() {
            CONTEXTS_MAX.. => CallError::Argument("too many communicators"),
            few => Error::Memory(OutOfMemory { bytes: (few + 1) * size_of::<Traffic>() }).into(),
        })
    }

    /// One ends; false if there is none with that number.
    pub(crate) fn close(&self, context: u64) -> bool {
        self.all().remove(SlotId::from_bits(context)).is_some()
    }

    /// What it says of its traffic from now on; a hint from nobody is none.
    pub(crate) fn set(&self, context: u64, attr: &NetAttr) {
        if let Some(traffic) = self.all().get_mut(SlotId::from_bits(context)) {
            // Below zero nothing is known.
            let known = |number: i32| u32::try_from(number).unwrap_or(0);
            let sends = attr.send_comm_attr;
            (traffic.peers, traffic.flows) =
                (known(sends.max_concurrent_peers), known(sends.max_flows_per_peer));
        }
    }

    /// What it said last.
    pub(crate) fn traffic(&self, context: u64) -> Traffic {
        self.all().get(SlotId::from_bits(context)).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use trunkline_sys::nccl_net::CommAttr;

    use super::*;

    #[test]
    fn each_communicator_has_its_own_hints_until_it_ends() {
        let contexts = Contexts::new();
        let [one, other] = [contexts.open(Some(7)).unwrap(), contexts.open(None).unwrap()];
        assert!(one != 0 && other != 0 && one != other);
        let sends = CommAttr { max_concurrent_peers: 3, max_flows_per_peer: 16, ..CommAttr::UNDEF };
        contexts.set(one, &NetAttr { send_comm_attr: sends, ..NetAttr::UNDEF });
        contexts.set(77, &NetAttr { send_comm_attr: sends, ..NetAttr::UNDEF });
        assert_eq!(contexts.traffic(one), Traffic { peers: 3, flows: 16, class: Some(7) });
        assert_eq!([contexts.traffic(other), contexts.traffic(77)], [Traffic::default(); 2]);
        contexts.set(one, &NetAttr::UNDEF);
        assert_eq!(contexts.traffic(one), Traffic { class: Some(7), ..Traffic::default() });
        assert!(contexts.close(one) && !contexts.close(one));
        assert_ne!(contexts.open(None).unwrap(), one, "a name that was used means nothing");
    }
}
