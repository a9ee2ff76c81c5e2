//! Closes neighbours that leave, die or violate the protocol, and the node itself.

use trunkline_fabric::OobStream;
use trunkline_mem::ipc::IpcMemory;
use trunkline_proto::slots::SlotId;
use trunkline_proto::time::Instant;
use trunkline_proto::wire::ipc::{CopyOutcome, IpcMessage};

use super::arrival::ArrivalRecord;
use super::{
    ArrivalId, IpcNode, LeaveReason, NeighbourId, NodeEvent, OperationId, ReceiveOutcome, SendOutcome,
};

impl<M: IpcMemory, S: OobStream> IpcNode<M, S> {
    /// Stops sharing: requests all exports back, unmaps imports, and notifies neighbours. Continues in
    /// [`IpcNode::progress`] until [`IpcNode::is_closed`], for at most
    /// [`NodeConfig::leaving`](super::NodeConfig::leaving).
    pub fn close(&mut self, now: Instant) {
        if self.until.is_some() {
            return;
        }
        self.until = Some(now + self.config.leaving);
        self.exporter.close();
        for place in 0..self.peers.slot_count() {
            if let Some(neighbour) = self.peers.neighbour_at(place) {
                self.end_imports(neighbour);
            }
        }
    }

    /// Whether the node has no neighbours, no exports and no mappings left.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        let is_unmapped = self.mapping_work.is_done();
        self.until.is_some() && self.peers.is_empty() && self.exporter.is_gone() && is_unmapped
    }

    /// Ends the imports of a neighbour: refuses arrivals without a buffer, lets copies in progress complete, and
    /// unmaps the rest.
    fn end_imports(&mut self, neighbour: NeighbourId) {
        self.importer.end_source(neighbour.0);
        let Some(peer) = self.peers.get(neighbour) else { return };
        let waits = |arrival: &ArrivalRecord| arrival.job.is_none() && arrival.batch.is_none();
        let waiting = peer.arrivals.iter().filter(|(_, arrival)| waits(arrival));
        for id in waiting.map(|(id, _)| id).collect::<Vec<SlotId>>() {
            self.answer_arrival(ArrivalId { from: neighbour, id }, CopyOutcome::Ended);
        }
    }

    /// Handles a neighbour's BYE: it holds no memory of this process any more, and receives no further messages.
    pub(super) fn on_bye(&mut self, from: NeighbourId, now: Instant) {
        let Some(peer) = self.peers.get_mut(from) else { return };
        peer.heard_bye = true;
        self.exporter.remove_peer(peer.exporting, now);
        self.end_imports(from);
        self.fail_sends(from);
    }

    fn fail_sends(&mut self, to: NeighbourId) {
        let Some(peer) = self.peers.get_mut(to) else { return };
        for id in peer.sent.iter().map(|(id, _)| id).collect::<Vec<SlotId>>() {
            // The exporter has released the pin.
            peer.sent.remove(id);
            let operation = OperationId { to, id };
            self.notices.push_back(NodeEvent::Sent { operation, delivery: SendOutcome::Lost });
        }
    }

    /// Ends a neighbour that is dead or is treated as dead: copying from it stops, and it loses all exports. A driver
    /// cannot cancel copies in progress; until the last of them has ended, their source stays mapped and their
    /// receive does not complete.
    pub(super) fn lose_neighbour(&mut self, neighbour: NeighbourId, why: LeaveReason, now: Instant) {
        let Some(peer) = self.peers.get_mut(neighbour).filter(|peer| peer.stream.is_some()) else { return };
        if peer.is_copied() {
            peer.lost.get_or_insert(why);
            return;
        }
        let why = peer.lost.take().unwrap_or(why);
        peer.stream = None;
        self.counts.broken += u64::from(matches!(why, LeaveReason::Broken(_)));
        self.exporter.remove_peer(peer.exporting, now);
        self.importer.end_source(neighbour.0);
        for id in peer.arrivals.iter().map(|(id, _)| id).collect::<Vec<SlotId>>() {
            let Some(arrival) = peer.arrivals.remove(id) else { continue };
            self.importer.release_pin(arrival.used);
            if arrival.job.is_some() {
                self.counts.not_received += 1;
                let arrival = ArrivalId { from: neighbour, id };
                self.notices.push_back(NodeEvent::Received { arrival, receipt: ReceiveOutcome::Lost });
            }
        }
        self.fail_sends(neighbour);
        self.notices.push_back(NodeEvent::Left { neighbour, why });
    }

    /// Ends broken neighbours and those that have not left in time, and removes ended neighbours; returns whether
    /// there were any.
    pub(super) fn close_departed(&mut self, now: Instant) -> bool {
        let mut seen = false;
        for place in 0..self.peers.slot_count() {
            let Some(neighbour) = self.peers.neighbour_at(place) else { continue };
            seen |= self.close_if_departed(neighbour, now);
        }
        seen
    }

    fn close_if_departed(&mut self, neighbour: NeighbourId, now: Instant) -> bool {
        let late = self.until.is_some_and(|until| until <= now);
        let Some(peer) = self.peers.get_mut(neighbour) else { return false };
        if let Some(broken) = peer.broken.take() {
            self.lose_neighbour(neighbour, LeaveReason::Broken(broken), now);
            return true;
        }
        if !peer.is_copied()
            && let Some(why) = peer.lost.take()
        {
            self.lose_neighbour(neighbour, why, now);
            return true;
        }
        let unmapped = self.importer.is_gone(neighbour.0);
        let alive = peer.stream.is_some();
        if unmapped && alive && !peer.said_bye {
            peer.send_message(&IpcMessage::Bye, None);
            peer.said_bye = true;
        }
        if unmapped && (!alive || peer.heard_bye) {
            if alive {
                self.fail_sends(neighbour);
                self.notices.push_back(NodeEvent::Left { neighbour, why: LeaveReason::Bye });
            }
            self.peers.remove(neighbour);
            return true;
        }
        if late && alive {
            self.lose_neighbour(neighbour, LeaveReason::Silent, now);
            return true;
        }
        false
    }
}
