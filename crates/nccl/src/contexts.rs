//! NCCL's communicators, for versions of the interface that pass a context for each: their traffic hints. Used by
//! init, finalize, setNetAttr and connect; never by a message.

use std::sync::{Mutex, MutexGuard, PoisonError};

use trunkline_engine::{EngineError, TrafficHint};
use trunkline_proto::reserve::OutOfMemory;
use trunkline_proto::slots::{SlotId, SlotTable};

use crate::abi::NetAttr;
use crate::status::NetCallError;

/// Communicators that a process may have at a time.
const CONTEXTS_MAX: usize = 65_536;

/// The communicators of this process.
pub(crate) struct NetContexts(Mutex<SlotTable<TrafficHint>>);

impl NetContexts {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(SlotTable::new(CONTEXTS_MAX)))
    }

    fn lock_slots(&self) -> MutexGuard<'_, SlotTable<TrafficHint>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a context with its traffic class. Its number is never 0, and never that of another open context.
    pub(crate) fn open_context(&self, class: Option<u8>) -> Result<u64, NetCallError> {
        let mut all = self.lock_slots();
        let opened = all.insert(TrafficHint { class, ..TrafficHint::default() });
        opened.map(SlotId::to_bits).map_err(|_| match all.used_places() {
            CONTEXTS_MAX.. => {
                NetCallError::Argument("this process has too many communicators; finalize one first")
            }
            few => EngineError::Memory(OutOfMemory { bytes: (few + 1) * size_of::<TrafficHint>() }).into(),
        })
    }

    /// Closes a context; returns `false` if the number is unknown.
    pub(crate) fn close_context(&self, context: u64) -> bool {
        self.lock_slots().remove(SlotId::from_bits(context)).is_some()
    }

    /// Sets the traffic hint of a context; an unknown context has no effect.
    pub(crate) fn set_traffic(&self, context: u64, attr: &NetAttr) {
        if let Some(traffic) = self.lock_slots().get_mut(SlotId::from_bits(context)) {
            // A negative number means unknown.
            let known = |number: i32| u32::try_from(number).unwrap_or(0);
            let sends = attr.send_comm_attr;
            (traffic.peers, traffic.flows) =
                (known(sends.max_concurrent_peers), known(sends.max_flows_per_peer));
        }
    }

    /// Returns the last traffic hint of a context.
    pub(crate) fn last_traffic(&self, context: u64) -> TrafficHint {
        self.lock_slots().get(SlotId::from_bits(context)).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use trunkline_sys::nccl_net::CommAttr;

    use super::*;

    #[test]
    fn each_communicator_has_its_own_hints_until_it_ends() {
        let contexts = NetContexts::new();
        let [one, other] = [contexts.open_context(Some(7)).unwrap(), contexts.open_context(None).unwrap()];
        assert!(one != 0 && other != 0 && one != other);
        let sends = CommAttr { max_concurrent_peers: 3, max_flows_per_peer: 16, ..CommAttr::UNDEF };
        contexts.set_traffic(one, &NetAttr { send_comm_attr: sends, ..NetAttr::UNDEF });
        contexts.set_traffic(77, &NetAttr { send_comm_attr: sends, ..NetAttr::UNDEF });
        assert_eq!(contexts.last_traffic(one), TrafficHint { peers: 3, flows: 16, class: Some(7) });
        assert_eq!([contexts.last_traffic(other), contexts.last_traffic(77)], [TrafficHint::default(); 2]);
        contexts.set_traffic(one, &NetAttr::UNDEF);
        assert_eq!(contexts.last_traffic(one), TrafficHint { class: Some(7), ..TrafficHint::default() });
        assert!(contexts.close_context(one) && !contexts.close_context(one));
        assert_ne!(contexts.open_context(None).unwrap(), one, "a number is not used twice");
    }
}
