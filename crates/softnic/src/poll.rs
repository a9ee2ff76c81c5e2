//! Progress of a link: what came in, what goes out, what is finished, and whether the peer is still there. Called by
//! the rail for each of its links, inside its guard; every call is bounded.

use trunkline_fabric::{Done, Status};

use crate::ladder::State;
use crate::qp::{Env, Qp, Sink, Wire};
use crate::receive::{Executed, Refusal};
use crate::record::Record;
use crate::ring::side;

/// Most records taken from one link in a call.
const RECORDS: u32 = 64;
/// Most payload bytes moved for one link in a call, each way; the last record may exceed it.
const BYTES: u64 = 64 << 10;
/// Records after which the peer is told how far this side is.
const PUBLISH: u64 = 16;
/// Polls without news after which the peer's state is looked at.
const LOOK: u32 = 64;

impl Qp {
    /// Makes progress; stops early when the sink is full.
    #[inline]
    pub(crate) fn progress(&mut self, env: &Env<'_>, sink: &mut Sink<'_>) {
        if self.state == State::Error {
            if !self.flushes.is_empty() {
                self.complete_flushes(env, sink);
            }
            return self.flush_out(env, sink);
        }
        if self.wire == Wire::Tcp {
            return self.progress_stream(env, sink);
        }
        let came = self.state.executes() && self.take_in(env, sink);
        sink.moved |= came;
        if !self.flushes.is_empty() {
            self.complete_flushes(env, sink);
        }
        if self.has_work() {
            sink.moved |= self.pump(env, BYTES);
        }
        if self.signalled > 0 || self.flights.len() * 2 > self.depth {
            self.complete(env, sink);
        } else if came && self.state != State::Drain {
            self.idle = 0;
        } else {
            self.idle += 1;
            if self.idle >= LOOK || self.state == State::Drain {
                self.complete(env, sink);
            }
        }
        if self.failure.is_some() {
            self.flush_out(env, sink);
        } else if sink.count == 0 && self.pushes() {
            // Not before news: the caller may have more to post then.
            self.push(env);
        }
    }

    #[inline]
    pub(crate) fn has_work(&self) -> bool {
        !self.pending.is_empty() || !self.replies.is_empty() || self.matcher.has_news()
    }

    /// Executes what has arrived; whether anything had.
    #[inline]
    fn take_in(&mut self, env: &Env<'_>, sink: &mut Sink<'_>) -> bool {
        let mut records = 0;
        let mut bytes = 0u64;
        while !sink.is_full() && self.rx.ready() {
            let words = self.rx.take();
            match self.execute(env, &words, self.rx.inline(), sink) {
                Ok(Executed::Done) => {}
                Ok(Executed::Waits) => {
                    self.draining = self.draining.saturating_sub(1);
                    break;
                }
                Err(refusal) => {
                    self.refuse(refusal, sink);
                    return true;
                }
            }
            self.rx.advance();
            records += 1;
            // Anything but a small inline record: its sender waits for the room.
            let large = (words[1] >> 16) & 0xff != 0;
            bytes = bytes.saturating_add(if large { Record::bytes(&words) } else { 128 });
            if large || Record::awaits(&words) || self.rx.unpublished() >= PUBLISH {
                self.rx.publish();
            }
            if self.draining > 0 {
                self.draining -= 1;
            }
            if records >= RECORDS || bytes >= BYTES {
                break;
            }
        }
        if records == 0 && self.rx.unpublished() > 0 {
            self.rx.publish();
        }
        records > 0
    }

    #[cold]
    pub(crate) fn refuse(&mut self, refusal: Refusal, sink: &mut Sink<'_>) {
        match refusal {
            Refusal::Nak(nak) => {
                self.turn_down(nak, self.position());
                let status = crate::error::Nak::status(nak.code());
                // What the peer did wrong is its failure; nonsense concerns this side too.
                let own = if matches!(status, Status::Other(_)) { status } else { Status::Flushed };
                self.fail_with(own, false, None);
            }
            Refusal::Dead => self.fail_with(Status::PeerDead, false, None),
            Refusal::Receive { wr_id, status, nak } => {
                self.turn_down(nak, self.position());
                self.owed -= 1;
                self.push_failed(sink, self.completion(wr_id, Done::Received, status, 0));
                self.fail_with(Status::Flushed, true, None);
            }
        }
    }

    pub(crate) fn complete_flushes(&mut self, env: &Env<'_>, sink: &mut Sink<'_>) {
        if env.shared.config.delayed_visibility {
            self.held.land(env.table());
        }
        while let Some(&(wr_id, signalled)) = self.flushes.front() {
            if signalled {
                if sink.is_full() {
                    return;
                }
                self.owed -= 1;
                sink.push(self.completion(wr_id, Done::Posted, Status::Ok, 0));
            }
            self.flushes.pop();
        }
    }

    /// Sees how far the peer is, and whether it is still there.
    fn complete(&mut self, env: &Env<'_>, sink: &mut Sink<'_>) {
        self.idle = 0;
        let Some(tx) = &mut self.tx else { return };
        if let Some((code, at)) = tx.nak() {
            return self.fail_with(crate::error::Nak::status(code), false, Some(at));
        }
        // Looked at before the rest, so that everything the peer did before it ended is seen.
        let peer = tx.peer_state().max(self.rx.peer_state());
        if tx.refresh().is_err() {
            return self.fail_with(Status::Other(crate::error::UNKNOWN), false, None);
        }
        let executed = tx.acked();
        self.retire(env, executed, sink);
        let drained = self.draining == 0 || !self.rx.ready();
        if self.state == State::Drain {
            if drained {
                self.fail_with(Status::PeerDead, false, None);
            }
        } else if peer != side::OPEN && !self.rx.ready() && !sink.is_full() {
            // A refusal is published before the state.
            let nak = self.tx.as_ref().and_then(crate::ring::Producer::nak);
            match nak {
                Some((code, at)) => self.fail_with(crate::error::Nak::status(code), false, Some(at)),
                None => self.fail_with(Status::Flushed, false, None),
            }
        }
    }

    /// Ends the link after what has already arrived is executed.
    pub(crate) fn drain(&mut self) {
        match self.state.step(State::Drain) {
            Some(state) => {
                self.state = state;
                self.draining = u64::from(self.rx.segment().geometry().slots());
            }
            None => self.fail_with(Status::PeerDead, false, None),
        }
    }
}
