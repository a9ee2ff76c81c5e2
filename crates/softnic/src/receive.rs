//! The responder: executes the peer's records against this side's memory, after checking everything they name. Called
//! by `poll`, inside the rail's guard.

use trunkline_fabric::{Done, Status};

use crate::error::{Nak, Planted};
use crate::hold::Target;
use crate::job::{OwedReply, ReplyBytes};
use crate::matched::Grant;
use crate::qp::{Answer, Env, Qp, Receive, Sink, Wire};
use crate::record::{INLINE, Payload, Record, Verb, WORDS};
use crate::register::{Place, right};
use crate::ring::side;

/// How far a record came.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Executed {
    /// All of it was executed.
    Done,
    /// The initiator is still copying a part; the record is to be looked at again.
    Waits,
}

/// Why a record was not executed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Refusal {
    /// Told to the peer; both ends go into error.
    Nak(Nak),
    /// The peer died.
    Dead,
    /// The receive that was to take the bytes failed with this.
    Receive { wr_id: u64, status: Status, nak: Nak },
}

impl From<Nak> for Refusal {
    fn from(nak: Nak) -> Self {
        Self::Nak(nak)
    }
}

/// Adds the bytes of a record to those of its operation. Where the operation's region was retired, no region bounds either.
#[inline(always)]
fn add_written_bytes(written: u64, len: u64) -> Result<u64, Nak> {
    match written.checked_add(len) {
        Some(sum) => Ok(sum),
        None if Planted::named("soft-written-bytes-wrap").is_on() => Ok(written.wrapping_add(len)),
        None => Err(Nak::Garbled),
    }
}

impl Qp {
    /// Executes one record; at most one completion comes of it, and the sink has room for that.
    #[inline]
    pub(crate) fn execute(
        &mut self,
        env: &Env<'_>,
        words: &[u64; WORDS],
        inline: *const u8,
        sink: &mut Sink<'_>,
    ) -> Result<Executed, Refusal> {
        if let Some((record, key, addr)) = Record::small_write(words) {
            return self.execute_write(env, inline, &record, key, addr, sink);
        }
        let record = Record::parse(words).ok_or(Nak::Garbled)?;
        self.perform(env, &record, inline, sink)
    }

    /// Executes a parsed record, whose bytes, if they came with it, are `here`.
    #[inline]
    pub(crate) fn perform(
        &mut self,
        env: &Env<'_>,
        record: &Record,
        here: *const u8,
        sink: &mut Sink<'_>,
    ) -> Result<Executed, Refusal> {
        match record.verb {
            Verb::Write { key, addr } => {
                return self.execute_write(env, here, record, key, addr, sink);
            }
            Verb::Send { offset } => self.execute_send(env, here, record, offset, sink),
            Verb::Reply { id, offset } => self.execute_reply(env, here, record, id, offset),
            Verb::Matched { grant, offset } => self.execute_matched(env, here, record, grant, offset, sink),
            Verb::Read { key, addr, len, id } => self.execute_read(env, key, addr, len, id),
            Verb::Add { key, addr, add, id } => {
                self.execute_atomic(env, key, addr, id, |old| Some(old.wrapping_add(add)))
            }
            Verb::Swap { key, addr, expect, swap, id } => {
                self.execute_atomic(env, key, addr, id, |old| (old == expect).then_some(swap))
            }
            Verb::Grant { key, len, id } => self.execute_grant(env, Grant { key, len, id }),
            Verb::Revoke { key: _, id } => {
                self.matcher.revoke(id);
                Ok(())
            }
            Verb::Decline { grant } => self.execute_decline(grant, sink),
        }?;
        Ok(Executed::Done)
    }

    #[inline]
    fn execute_write(
        &mut self,
        env: &Env<'_>,
        here: *const u8,
        record: &Record,
        key: u64,
        addr: u64,
        sink: &mut Sink<'_>,
    ) -> Result<Executed, Refusal> {
        let len = record.payload.len();
        let written = add_written_bytes(self.written, len)?;
        // As on a real NIC, the key of a write of no bytes is not looked at.
        if len > 0 {
            let target = Target::Remote { key, addr };
            match env.table().remote(key, addr, len, right::WRITE) {
                Some(place) => {
                    if self.place(env, here, &record.payload, place, target)? == Executed::Waits {
                        return Ok(Executed::Waits);
                    }
                }
                None if env.table().goes_nowhere(key) => self.leave_out(&record.payload),
                None => return Err(Nak::Access.into()),
            }
        }
        self.written = written;
        if record.last {
            if record.imm.is_some() {
                let mut completion = self.completion(0, Done::Written, Status::Ok, self.written);
                completion.imm = record.imm;
                sink.push(completion);
            }
            self.written = 0;
        }
        Ok(Executed::Done)
    }

    fn execute_send(
        &mut self,
        env: &Env<'_>,
        here: *const u8,
        record: &Record,
        offset: u64,
        sink: &mut Sink<'_>,
    ) -> Result<(), Refusal> {
        let (receive, got) = match self.arriving.take() {
            Some(arriving) => arriving,
            // The peer knows how many receives there are.
            None => (self.take_receive().ok_or(Nak::Protocol)?, 0),
        };
        let len = record.payload.len();
        let taken = self.take_bytes(env, here, &record.payload, receive, got, offset);
        if let Err(refusal) = taken {
            if !matches!(refusal, Refusal::Receive { .. }) {
                self.arriving = Some((receive, got));
            }
            return Err(refusal);
        }
        if record.last {
            self.owed -= 1;
            let mut completion = self.completion(receive.wr_id, Done::Received, Status::Ok, got + len);
            completion.imm = record.imm;
            sink.push(completion);
        } else {
            self.arriving = Some((receive, got + len));
        }
        Ok(())
    }

    /// Places bytes into a receive that has got `got` of them so far.
    #[inline]
    fn take_bytes(
        &mut self,
        env: &Env<'_>,
        here: *const u8,
        payload: &Payload,
        receive: Receive,
        got: u64,
        offset: u64,
    ) -> Result<(), Refusal> {
        let len = payload.len();
        if offset != got {
            return Err(Nak::Protocol.into());
        }
        let Receive { wr_id, into } = receive;
        if got.checked_add(len).is_none_or(|end| end > into.len) {
            return Err(Refusal::Receive { wr_id, status: Status::TooLong, nak: Nak::TooLong });
        }
        if len == 0 {
            return Ok(());
        }
        let at = into.offset + got;
        let place = env.table().local(into.key.0, at, len).ok_or(Refusal::Receive {
            wr_id,
            status: Status::LocalProtection,
            nak: Nak::Target,
        })?;
        self.place(env, here, payload, place, Target::Local { key: into.key.0, offset: at })?;
        Ok(())
    }

    fn execute_reply(
        &mut self,
        env: &Env<'_>,
        here: *const u8,
        record: &Record,
        id: u64,
        offset: u64,
    ) -> Result<(), Refusal> {
        let len = record.payload.len();
        let Some(wanted) = self.wanted.front().copied() else { return Err(Nak::Protocol.into()) };
        let got = wanted.got.saturating_add(len);
        let fits = wanted.flight == id && wanted.got == offset && got <= wanted.into.len;
        if !fits || (record.last && got != wanted.into.len) {
            return Err(Nak::Protocol.into());
        }
        if len > 0 {
            let at = wanted.into.offset + wanted.got;
            let place = env.table().local(wanted.into.key.0, at, len).ok_or(Nak::Target)?;
            self.move_bytes(env, here, &record.payload, place)?;
        }
        if record.last {
            self.wanted.pop();
            if let Some(flight) = self.flights.get_mut(id) {
                flight.answer = Answer::Had;
            }
        } else if let Some(wanted) = self.wanted.front_mut() {
            wanted.got = got;
        }
        Ok(())
    }

    fn execute_matched(
        &mut self,
        env: &Env<'_>,
        here: *const u8,
        record: &Record,
        grant: u64,
        offset: u64,
        sink: &mut Sink<'_>,
    ) -> Result<(), Refusal> {
        let Some(found) = self.matcher.receive(grant).copied() else {
            if self.matcher.was_taken_back(grant) {
                self.leave_out(&record.payload);
                return Ok(());
            }
            return Err(Nak::Protocol.into());
        };
        let receive = Receive { wr_id: found.wr_id, into: found.into };
        let taken = self.take_bytes(env, here, &record.payload, receive, found.got, offset);
        if let Err(refusal) = taken {
            if matches!(refusal, Refusal::Receive { .. }) {
                self.matcher.finish(grant);
            }
            return Err(refusal);
        }
        let got = found.got + record.payload.len();
        if record.last {
            self.matcher.finish(grant);
            self.owed -= 1;
            sink.push(self.completion(found.wr_id, Done::Received, Status::Ok, got));
        } else if let Some(receive) = self.matcher.receive(grant) {
            receive.got = got;
        }
        Ok(())
    }

    fn execute_read(&mut self, env: &Env<'_>, key: u64, addr: u64, len: u64, id: u64) -> Result<(), Refusal> {
        self.held.land(env.table());
        if len > 0 {
            env.table().remote(key, addr, len, right::READ).ok_or(Nak::Access)?;
        }
        let reply = self.owe_reply(id, ReplyBytes::Region { key, addr, len });
        if self.replies.push(reply) { Ok(()) } else { Err(Nak::Protocol.into()) }
    }

    fn execute_atomic(
        &mut self,
        env: &Env<'_>,
        key: u64,
        addr: u64,
        id: u64,
        new: impl Fn(u64) -> Option<u64>,
    ) -> Result<(), Refusal> {
        self.held.land(env.table());
        if self.replies.is_full() {
            return Err(Nak::Protocol.into());
        }
        let place = env.table().remote(key, addr, 8, right::ATOMIC).ok_or(Nak::Access)?;
        if !place.at.addr().is_multiple_of(8) {
            return Err(Nak::Access.into());
        }
        // SAFETY: eight registered, aligned bytes, looked up inside the guard.
        let old = unsafe { env.table().update(place, new) };
        let reply = self.owe_reply(id, ReplyBytes::Word(old));
        self.replies.push(reply);
        Ok(())
    }

    /// The answer to the request whose record is executed now.
    fn owe_reply(&self, id: u64, bytes: ReplyBytes) -> OwedReply {
        OwedReply { id, at: self.position(), bytes, sent: 0 }
    }

    /// The send that came for a receive is longer than it.
    #[cold]
    fn execute_decline(&mut self, grant: u64, sink: &mut Sink<'_>) -> Result<(), Refusal> {
        if self.matcher.receive(grant).is_some_and(|receive| receive.got > 0) {
            return Err(Nak::Protocol.into());
        }
        match self.matcher.finish(grant) {
            Some(receive) => {
                self.owed -= 1;
                self.push_failed(sink, self.completion(receive.wr_id, Done::Received, Status::TooLong, 0));
                Ok(())
            }
            None if self.matcher.was_taken_back(grant) => Ok(()),
            None => Err(Nak::Protocol.into()),
        }
    }

    fn execute_grant(&mut self, env: &Env<'_>, grant: Grant) -> Result<(), Refusal> {
        if let Some(send) = self.matcher.grant(grant)? {
            self.release_matched(env, send, grant);
        }
        Ok(())
    }

    /// Places the bytes of a record, or holds them back where visibility is delayed. Only a write waits.
    #[inline(always)]
    fn place(
        &mut self,
        env: &Env<'_>,
        here: *const u8,
        payload: &Payload,
        place: Place,
        target: Target,
    ) -> Result<Executed, Refusal> {
        if env.shared.config.delayed_visibility && place.rights & right::RELAXED != 0 {
            let from = self.find(env, here, payload)?;
            // SAFETY: `find` checked the bytes, inside the guard.
            unsafe { self.held.push(env.table(), target, from, payload.len() as usize) };
            return Ok(Executed::Done);
        }
        if let Payload::Pulled { .. } = payload {
            let key = if let Target::Remote { key, .. } = target { Some(key) } else { None };
            return self.pull(env, place, *payload, key);
        }
        self.move_bytes(env, here, payload, place)?;
        Ok(Executed::Done)
    }

    /// Copies the bytes of a record that are in this address space.
    #[inline(always)]
    fn move_bytes(
        &mut self,
        env: &Env<'_>,
        here: *const u8,
        payload: &Payload,
        place: Place,
    ) -> Result<(), Refusal> {
        if let Payload::Streamed { landed: true, .. } = payload {
            return Ok(());
        }
        let from = self.find(env, here, payload)?;
        let len = payload.len() as usize;
        let apart = matches!(payload, Payload::Inline { .. } | Payload::Streamed { .. });
        // SAFETY: bytes of a slot or an inbox, as many as the record says, or `find` checked the source; the caller looked the target up inside
        // the guard.
        unsafe { env.table().copy_in(place, from, len, apart && len <= INLINE) };
        Ok(())
    }

    /// Where the bytes of a record are in this address space.
    #[inline(always)]
    fn find(&self, env: &Env<'_>, here: *const u8, payload: &Payload) -> Result<*const u8, Refusal> {
        match *payload {
            Payload::Inline { .. } | Payload::Streamed { .. } => Ok(here),
            Payload::Staged { offset, len } => {
                let at = self.rx.segment().payload(offset, len).ok_or(Nak::Garbled)?;
                Ok(at.as_ptr().cast_const())
            }
            Payload::Placed { nic, key, offset, len } if self.wire == Wire::Mem => {
                // Its owner has it back, or will have it once this rail has left its guard.
                if self.rx.peer_state() == side::ERROR && !env.shared.reads_after_errors.is_on() {
                    return Err(Nak::Source.into());
                }
                let nic = env.shared.nics.get(nic as usize).ok_or(Nak::Garbled)?;
                let place = nic.table.local(key, offset, len).ok_or(Nak::Source)?;
                Ok(place.at.cast_const())
            }
            Payload::Placed { .. } | Payload::Pulled { .. } => Err(Nak::Garbled.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Nak, add_written_bytes};

    #[test]
    fn an_operation_longer_than_its_count_is_refused() {
        assert_eq!(add_written_bytes(u64::MAX - 5, 5), Ok(u64::MAX));
        assert_eq!(add_written_bytes(u64::MAX - 5, 6), Err(Nak::Garbled));
    }
}
