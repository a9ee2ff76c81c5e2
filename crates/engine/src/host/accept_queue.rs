//! The queue of accepted strands, by stream. A thread that accepts a strand of an existing stream leaves the strand here, and the
//! stream fetches it. Shared by the listener's streams; holds no more than a few strands for each.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use trunkline_proto::wire::strand::{STRANDS_MAX, StreamName};

use super::control_connection::ControlConnection;

/// A strand, with the number of frames of its stream that the other end has received.
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

    /// Queues a strand for the stream of a name; returns it if there is no such stream. A strand beyond the limit replaces the
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

    /// Adds a stream.
    pub(super) fn add_stream(&self, name: StreamName) {
        self.lock_streams().insert(name, Vec::new());
    }

    /// Removes and returns the strands for a stream.
    pub(super) fn take_connections(&self, name: &StreamName) -> Vec<PendingConnection> {
        self.lock_streams().get_mut(name).map(std::mem::take).unwrap_or_default()
    }

    /// Removes a stream that has ended.
    pub(super) fn remove_stream(&self, name: &StreamName) {
        self.lock_streams().remove(name);
    }
}
