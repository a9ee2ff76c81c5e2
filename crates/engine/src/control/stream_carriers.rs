//! The carriers of the control streams: a socket of this host, or network connections, which may be lost and replaced.

use std::sync::atomic::Ordering;

use trunkline_fabric::{Host, OobStream as _, Rail};
use trunkline_proto::slots::SlotId;
use trunkline_proto::wire::status::ControlStreams;

use super::ControlPlane;

impl<H: Host, R: Rail> ControlPlane<H, R> {
    /// Returns whether a stream leads to a process of this host.
    pub(crate) fn is_local(&self, stream: SlotId) -> bool {
        self.streams.get(stream).is_some_and(|stream| stream.io.is_local())
    }

    /// Returns the number of streams.
    pub(crate) fn stream_count(&self) -> usize {
        self.streams.len()
    }

    /// Counts the connections of a stream, and notifies its comms of a further one, because links over its path may
    /// work again.
    pub(super) fn count_connections(&mut self, id: SlotId, carried: &mut ControlStreams) {
        let Some(stream) = self.streams.get_mut(id) else { return };
        let Some((connections, peer)) = stream.io.connection_counts().zip(stream.peer.as_ref()) else {
            return;
        };
        carried.add_stream(connections.now);
        if std::mem::replace(&mut stream.joins, connections.ever) != connections.ever {
            peer.joins.fetch_add(1, Ordering::Relaxed);
        }
    }
}
