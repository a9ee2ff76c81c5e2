//! A put with signal, of any size: taken by one call, it goes on by itself, in as many writes over as many paths as it takes. All of them,
//! and what else is put meanwhile, are of the epoch that its signal ends.

use trunkline_fabric::Rail;
use trunkline_proto::rma::Path;
use trunkline_proto::rma::outgoing::Busy;
use trunkline_proto::wire::rma::Message;
use trunkline_proto::wire::rma::signal::Update;

use crate::rma::context::{Context, Local, Source};
use crate::rma::error::RmaError;
use crate::rma::job::Member;
use crate::rma::peer::{Link, Peer, Sending};

impl<R: Rail> Context<R> {
    /// Puts bytes and signals behind them. False if there is no room now.
    pub(super) fn put_signal(
        &mut self,
        member: Member,
        heap: u8,
        offset: u64,
        from: Source<'_>,
        update: Update,
    ) -> Result<bool, RmaError> {
        self.source(from)?;
        let len = from.byte_len();
        let Some(at) = self.ready(member) else { return Ok(false) };
        self.check(at, heap, offset, len)?;
        if self.peers[at as usize].sending.is_some() {
            return Ok(false);
        }
        let has_room = self.route(at, len).is_some();
        let batch = match self.peers[at as usize].outgoing.begin() {
            Ok(batch) if has_room => batch,
            Ok(batch) => {
                self.peers[at as usize].outgoing.abandon(batch);
                return Ok(false);
            }
            Err(_) => return Ok(false),
        };
        let mut sending = Sending { batch, heap, offset, rest: Local { heap: 0, offset: 0, len: 0 }, update };
        match from {
            Source::Heap(local) => sending.rest = local,
            // They are copied before the call returns.
            Source::Bytes(_) if len > 0 => {
                let put = self.put_piece(at, Some(&sending.batch), heap, offset, from);
                if !matches!(put, Ok(Some(_))) {
                    self.peers[at as usize].outgoing.abandon(sending.batch);
                    return put.map(|_| false);
                }
            }
            Source::Bytes(_) => {}
        }
        // There is such a peer. A quiet waits from now on until the signal was applied.
        let _ = self.ledger.signalled(at);
        self.peers[at as usize].sending = Some(sending);
        self.attend(at);
        self.go_on_sending(at);
        Ok(true)
    }

    /// Goes on with the put with signal towards a peer, if there is one. Whether anything moved.
    pub(super) fn go_on_sending(&mut self, at: u32) -> bool {
        let mut moved = false;
        while let Some(mut sending) = self.peers[at as usize].sending.take() {
            if sending.rest.len > 0 {
                let from = Source::Heap(sending.rest);
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
                self.seal(at, sending);
                return moved | self.peers[at as usize].sending.is_none();
            }
        }
        moved
    }

    /// Sends the signal, if there is room and it may go.
    fn seal(&mut self, at: u32, sending: Sending) {
        let peer = &mut self.peers[at as usize];
        let rails = &self.rails;
        let Some(path) = signal_path(peer, |link| rails[link.rail].credits(link.link)) else {
            peer.sending = Some(sending);
            self.ask_for_room(at);
            return;
        };
        let number = peer.outgoing.next_number();
        match peer.outgoing.end(sending.batch, sending.update, false) {
            Ok(signal) => {
                peer.outgoing.sent_over(number, path);
                self.send(at, path, &Message::Signal(signal));
            }
            Err((batch, busy)) => {
                peer.sending = Some(Sending { batch, ..sending });
                if busy == Busy::Plain {
                    self.prove(at);
                }
            }
        }
    }
}

/// A path that a signal can go over, whose target has a receive for it.
pub(super) fn signal_path(peer: &Peer, credits: impl Fn(&Link) -> u32) -> Option<Path> {
    let out = u64::from(peer.asked.calls.len()) + peer.outgoing.unacknowledged();
    peer.path(|link| out + 1 < u64::from(link.credit) && credits(link) > 0).map(|(path, _)| path)
}
