//! A put with signal, of any size: taken by one call, it goes on by itself, in as many writes over as many paths as it takes. All of them,
//! and what else is put meanwhile, are of the epoch that its signal ends.

use trunkline_fabric::Rail;
use trunkline_proto::rma::PathId;
use trunkline_proto::rma::outgoing::StreamBusy;
use trunkline_proto::wire::rma::RmaMessage;
use trunkline_proto::wire::rma::signal::SignalUpdate;

use crate::rma::context::{HeapRange, PutSource, RmaContext};
use crate::rma::error::RmaError;
use crate::rma::job::MemberRank;
use crate::rma::peer::{OutboundLink, PendingPutSignal, RemoteMember};

impl<R: Rail> RmaContext<R> {
    /// Puts bytes and signals behind them. False if there is no room now.
    pub(super) fn put_signal(
        &mut self,
        member: MemberRank,
        heap: u8,
        offset: u64,
        from: PutSource<'_>,
        update: SignalUpdate,
    ) -> Result<bool, RmaError> {
        self.check_source(from)?;
        let len = from.byte_len();
        let Some(at) = self.prepare_member(member) else { return Ok(false) };
        self.check_target(at, heap, offset, len)?;
        if self.peers[at as usize].sending.is_some() {
            return Ok(false);
        }
        let has_room = self.select_route(at, len).is_some();
        let batch = match self.peers[at as usize].outgoing.begin_signal() {
            Ok(batch) if has_room => batch,
            Ok(batch) => {
                self.peers[at as usize].outgoing.abandon_signal(batch);
                return Ok(false);
            }
            Err(_) => return Ok(false),
        };
        let mut sending =
            PendingPutSignal { batch, heap, offset, rest: HeapRange { heap: 0, offset: 0, len: 0 }, update };
        match from {
            PutSource::Heap(local) => sending.rest = local,
            // They are copied before the call returns.
            PutSource::Bytes(_) if len > 0 => {
                let put = self.put_piece(at, Some(&sending.batch), heap, offset, from);
                if !matches!(put, Ok(Some(_))) {
                    self.peers[at as usize].outgoing.abandon_signal(sending.batch);
                    return put.map(|_| false);
                }
            }
            PutSource::Bytes(_) => {}
        }
        // There is such a peer. A quiet waits from now on until the signal was applied.
        let _ = self.ledger.begin_signal(at);
        self.peers[at as usize].sending = Some(sending);
        self.mark_busy(at);
        self.progress_put_signal(at);
        Ok(true)
    }

    /// Goes on with the put with signal towards a peer, if there is one. Whether anything moved.
    pub(super) fn progress_put_signal(&mut self, at: u32) -> bool {
        let mut moved = false;
        while let Some(mut sending) = self.peers[at as usize].sending.take() {
            if sending.rest.len > 0 {
                let from = PutSource::Heap(sending.rest);
                let taken = self.put_piece(at, Some(&sending.batch), sending.heap, sending.offset, from);
                let taken = taken.ok().flatten();
                let is_lost = self.peers[at as usize].lost.is_some();
                if is_lost {
                    return true;
                }
                let bytes = taken.unwrap_or(0);
                sending.offset += bytes;
                sending.rest.offset += bytes;
                sending.rest.len -= bytes;
                self.peers[at as usize].sending = Some(sending);
                if taken.is_none() {
                    return moved;
                }
                moved = true;
            } else {
                self.send_batch_signal(at, sending);
                return moved | self.peers[at as usize].sending.is_none();
            }
        }
        moved
    }

    /// Sends the signal, if there is room and it may go.
    fn send_batch_signal(&mut self, at: u32, sending: PendingPutSignal) {
        let peer = &mut self.peers[at as usize];
        let rails = &self.rails;
        let Some(path) = signal_path(peer, |link| rails[link.rail].post_credits(link.link)) else {
            peer.sending = Some(sending);
            self.request_room(at);
            return;
        };
        let number = peer.outgoing.next_number();
        match peer.outgoing.end_signal(sending.batch, sending.update, false) {
            Ok(signal) => {
                peer.outgoing.sent_over(number, path);
                self.send_message(at, path, &RmaMessage::Signal(signal));
            }
            Err((batch, busy)) => {
                peer.sending = Some(PendingPutSignal { batch, ..sending });
                if busy == StreamBusy::Plain {
                    self.post_proofs(at);
                }
            }
        }
    }
}

/// A path that a signal can go over, whose target has a receive for it.
pub(super) fn signal_path(peer: &RemoteMember, credits: impl Fn(&OutboundLink) -> u32) -> Option<PathId> {
    let out = u64::from(peer.asked.calls.len()) + peer.outgoing.unacknowledged_signals();
    peer.select_path(|link| out + 1 < u64::from(link.credit) && credits(link) > 0).map(|(path, _)| path)
}
