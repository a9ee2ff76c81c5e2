//! Where strands meet their streams: whoever accepts one that belongs to a stream of this process leaves it here, and the
//! stream fetches it. Shared by the listener's streams; holds no more than a few strands for each.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use trunkline_proto::wire::strand::{STRANDS_MAX, StreamName};

use super::control_connection::ControlConnection;

/// A strand that says how many frames of its stream the other end has taken.
#[derive(Debug)]
pub(super) struct PendingConnection {
    pub(super) strand: ControlConnection,
    pub(super) received: u64,
}

/// Streams by name, with the strands that wait for each.
#[derive(Debug, Default)]
pub(super) struct StreamAcceptQueue(Mutex<HashMap<StreamName, Vec<PendingConnection>>>);

impl StreamAcceptQueue {
    fn lock_streams(&self) -> MutexGuard<'_, HashMap<StreamName, Vec<PendingConnection>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Leaves a strand for the stream of that name; gives it back if there is none. One too many takes the place of the
    /// oldest.
    pub(super) fn enqueue_connection(
        &self,
        name: &StreamName,
        guest: PendingConnection,
    ) -> Option<PendingConnection> {
        let mut streams = self.lock_streams();
        let Some(guests) = streams.get_mut(name) else { return Some(guest) };
        if guests.len() == STRANDS_MAX {
            guests.remove(0);
        }
        guests.push(guest);
        None
    }

    /// A stream begins.
    pub(super) fn add_stream(&self, name: StreamName) {
        self.lock_streams().insert(name, Vec::new());
    }

    /// The strands that came for a stream.
    pub(super) fn take_connections(&self, name: &StreamName) -> Vec<PendingConnection> {
        self.lock_streams().get_mut(name).map(std::mem::take).unwrap_or_default()
    }

    /// A stream is over.
    pub(super) fn remove_stream(&self, name: &StreamName) {
        self.lock_streams().remove(name);
    }
}
