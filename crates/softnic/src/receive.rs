//! The responder: executes the peer's records against this side's memory, after checking everything they name. Called
//! by `poll`, inside the rail's guard; it never trusts a word of the peer.

use trunkline_fabric::{CompletionKind, OpStatus};

use crate::error::NakReason;
use crate::hold::HeldTarget;
use crate::job::{OwedReply, ReplyBytes};
use crate::matched::ReceiveGrant;
use crate::qp::{AnswerWait, CompletionSink, LinkWire, RailContext, SoftQp};
use crate::receive_queue::PostedRecv;
use crate::record::{INLINE, RecordPayload, RecordVerb, RingRecord, WORDS};
use crate::register::{CheckedPlace, right};
use crate::ring::side;

/// Progress of a record.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum RecordProgress {
    /// All of it was executed.
    Done,
    /// The initiator is still copying a part; the record must be executed again later.
    Waits,
}

/// Why a record was not executed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum RecordRefusal {
    /// A reason that is sent to the peer; both ends are in error afterwards.
    Nak(NakReason),
    /// The peer has died.
    Dead,
    /// The receive that the bytes were for failed with this status.
    Receive { wr_id: u64, status: OpStatus, nak: NakReason },
}

impl From<NakReason> for RecordRefusal {
    fn from(nak: NakReason) -> Self {
        Self::Nak(nak)
    }
}

/// Adds the bytes of a record to those of its operation. Where the operation's region was retired, no region bounds either.
#[inline(always)]
fn add_written_bytes(written: u64, len: u64) -> Result<u64, NakReason> {
    written.checked_add(len).ok_or(NakReason::Garbled)
}

impl SoftQp {
    /// Executes one record. It produces at most one completion, for which the sink has room.
    #[inline]
    pub(crate) fn execute_words(
        &mut self,
        env: &RailContext<'_>,
        words: &[u64; WORDS],
        inline: *const u8,
        sink: &mut CompletionSink<'_>,
    ) -> Result<RecordProgress, RecordRefusal> {
        // Small writes are the most frequent records, so they skip the general parser.
        if let Some((record, key, addr)) = RingRecord::small_write(words) {
            return self.execute_write(env, inline, &record, key, addr, sink);
        }
        let record = RingRecord::parse(words).ok_or(NakReason::Garbled)?;
        self.execute_record(env, &record, inline, sink)
    }

    /// Executes a parsed record. Bytes that arrived with it are at `here`.
    #[inline]
    pub(crate) fn execute_record(
        &mut self,
        env: &RailContext<'_>,
        record: &RingRecord,
        here: *const u8,
        sink: &mut CompletionSink<'_>,
    ) -> Result<RecordProgress, RecordRefusal> {
        match record.verb {
            RecordVerb::Write { key, addr } => {
                return self.execute_write(env, here, record, key, addr, sink);
            }
            RecordVerb::Send { offset } => self.execute_send(env, here, record, offset, sink),
            RecordVerb::Reply { id, offset } => self.execute_reply(env, here, record, id, offset),
            RecordVerb::Matched { grant, offset } => {
                self.execute_matched(env, here, record, grant, offset, sink)
            }
            RecordVerb::Read { key, addr, len, id } => self.execute_read(env, key, addr, len, id),
            RecordVerb::Add { key, addr, add, id } => {
                self.execute_atomic(env, key, addr, id, |old| Some(old.wrapping_add(add)))
            }
            RecordVerb::Swap { key, addr, expect, swap, id } => {
                self.execute_atomic(env, key, addr, id, |old| (old == expect).then_some(swap))
            }
            RecordVerb::Grant { key, len, id } => self.execute_grant(env, ReceiveGrant { key, len, id }),
            RecordVerb::Revoke { key: _, id } => {
                self.matcher.revoke_grant(id);
                Ok(())
            }
            RecordVerb::Decline { grant } => self.execute_decline(grant, sink),
        }?;
        Ok(RecordProgress::Done)
    }

    #[inline]
    fn execute_write(
        &mut self,
        env: &RailContext<'_>,
        here: *const u8,
        record: &RingRecord,
        key: u64,
        addr: u64,
        sink: &mut CompletionSink<'_>,
    ) -> Result<RecordProgress, RecordRefusal> {
        let len = record.payload.len();
        let written = add_written_bytes(self.written, len)?;
        // As on a hardware NIC, the key of a write of no bytes is not checked (InfiniBand Architecture Specification, volume 1, C9-88:
        // a responder does not check the R_Key of a zero-length request).
        if len > 0 {
            let target = HeldTarget::Remote { key, addr };
            match env.region_table().find_remote(key, addr, len, right::WRITE) {
                Some(place) => {
                    if self.place_payload(env, here, &record.payload, place, target)? == RecordProgress::Waits
                    {
                        return Ok(RecordProgress::Waits);
                    }
                }
                // A retired region accepts and drops writes, because its peers need not know of the retirement (`Caps::retires`).
                None if env.region_table().goes_nowhere(key) => self.leave_out(&record.payload),
                None => return Err(NakReason::Access.into()),
            }
        }
        // Counted only once the record is done: a record that waits is executed again, and must not count twice.
        self.written = written;
        if record.last {
            if record.imm.is_some() {
                let mut completion =
                    self.make_completion(0, CompletionKind::Written, OpStatus::Ok, self.written);
                completion.imm = record.imm;
                sink.push(completion);
            }
            self.written = 0;
        }
        Ok(RecordProgress::Done)
    }

    fn execute_send(
        &mut self,
        env: &RailContext<'_>,
        here: *const u8,
        record: &RingRecord,
        offset: u64,
        sink: &mut CompletionSink<'_>,
    ) -> Result<(), RecordRefusal> {
        let (receive, got) = match self.receives.take_arriving() {
            Some(arriving) => arriving,
            // The peer knows the number of receives, so a send without one violates the protocol.
            None => (self.receives.take_receive().ok_or(NakReason::Protocol)?, 0),
        };
        let len = record.payload.len();
        let taken = self.take_bytes(env, here, &record.payload, receive, got, offset);
        if let Err(refusal) = taken {
            // A refusal for another reason leaves the receive arriving, so that it is flushed with the link.
            if !matches!(refusal, RecordRefusal::Receive { .. }) {
                self.receives.keep_arriving(receive, got);
            }
            return Err(refusal);
        }
        if record.last {
            self.owed -= 1;
            let mut completion =
                self.make_completion(receive.wr_id, CompletionKind::Received, OpStatus::Ok, got + len);
            completion.imm = record.imm;
            sink.push(completion);
        } else {
            self.receives.keep_arriving(receive, got + len);
        }
        Ok(())
    }

    /// Places bytes into a receive that already has `got` of them.
    #[inline]
    fn take_bytes(
        &mut self,
        env: &RailContext<'_>,
        here: *const u8,
        payload: &RecordPayload,
        receive: PostedRecv,
        got: u64,
        offset: u64,
    ) -> Result<(), RecordRefusal> {
        let len = payload.len();
        // The records of a send follow one another without gaps, so any other offset is a violation.
        if offset != got {
            return Err(NakReason::Protocol.into());
        }
        let PostedRecv { wr_id, into } = receive;
        if got.checked_add(len).is_none_or(|end| end > into.len) {
            return Err(RecordRefusal::Receive { wr_id, status: OpStatus::TooLong, nak: NakReason::TooLong });
        }
        if len == 0 {
            return Ok(());
        }
        let at = into.offset + got;
        let place = env.region_table().find_local(into.key.0, at, len).ok_or(RecordRefusal::Receive {
            wr_id,
            status: OpStatus::LocalProtection,
            nak: NakReason::Target,
        })?;
        self.place_payload(env, here, payload, place, HeldTarget::Local { key: into.key.0, offset: at })?;
        Ok(())
    }

    fn execute_reply(
        &mut self,
        env: &RailContext<'_>,
        here: *const u8,
        record: &RingRecord,
        id: u64,
        offset: u64,
    ) -> Result<(), RecordRefusal> {
        let len = record.payload.len();
        // Replies arrive in the order of the requests, so only the oldest request can match. An unsolicited reply is a violation.
        let Some(wanted) = self.wanted.front().copied() else { return Err(NakReason::Protocol.into()) };
        let got = wanted.got.saturating_add(len);
        let fits = wanted.flight == id && wanted.got == offset && got <= wanted.into.len;
        // The last record must fill the request exactly, or the operation would complete with bytes missing.
        if !fits || (record.last && got != wanted.into.len) {
            return Err(NakReason::Protocol.into());
        }
        if len > 0 {
            let at = wanted.into.offset + wanted.got;
            let place = env.region_table().find_local(wanted.into.key.0, at, len).ok_or(NakReason::Target)?;
            self.move_bytes(env, here, &record.payload, place)?;
        }
        if record.last {
            self.wanted.pop();
            if let Some(flight) = self.flights.get_mut(id) {
                flight.answer = AnswerWait::Had;
            }
        } else if let Some(wanted) = self.wanted.front_mut() {
            wanted.got = got;
        }
        Ok(())
    }

    fn execute_matched(
        &mut self,
        env: &RailContext<'_>,
        here: *const u8,
        record: &RingRecord,
        grant: u64,
        offset: u64,
        sink: &mut CompletionSink<'_>,
    ) -> Result<(), RecordRefusal> {
        let Some(found) = self.matcher.find_receive(grant).copied() else {
            // The peer may have sent before it received the revocation, so bytes for a cancelled receive are dropped.
            if self.matcher.was_taken_back(grant) {
                self.leave_out(&record.payload);
                return Ok(());
            }
            return Err(NakReason::Protocol.into());
        };
        let receive = PostedRecv { wr_id: found.wr_id, into: found.into };
        let taken = self.take_bytes(env, here, &record.payload, receive, found.got, offset);
        if let Err(refusal) = taken {
            if matches!(refusal, RecordRefusal::Receive { .. }) {
                self.matcher.finish_receive(grant);
            }
            return Err(refusal);
        }
        let got = found.got + record.payload.len();
        if record.last {
            self.matcher.finish_receive(grant);
            self.owed -= 1;
            sink.push(self.make_completion(found.wr_id, CompletionKind::Received, OpStatus::Ok, got));
        } else if let Some(receive) = self.matcher.find_receive(grant) {
            receive.got = got;
        }
        Ok(())
    }

    fn execute_read(
        &mut self,
        env: &RailContext<'_>,
        key: u64,
        addr: u64,
        len: u64,
        id: u64,
    ) -> Result<(), RecordRefusal> {
        // Earlier writes must be visible to the read, even if their visibility is delayed.
        self.held.land_all(env.region_table());
        if len > 0 {
            // Checked here so that an invalid request is refused at its own record; checked again when the reply is sent.
            env.region_table().find_remote(key, addr, len, right::READ).ok_or(NakReason::Access)?;
        }
        let reply = self.owe_reply(id, ReplyBytes::Region { key, addr, len });
        if self.replies.push(reply) { Ok(()) } else { Err(NakReason::Protocol.into()) }
    }

    fn execute_atomic(
        &mut self,
        env: &RailContext<'_>,
        key: u64,
        addr: u64,
        id: u64,
        new: impl Fn(u64) -> Option<u64>,
    ) -> Result<(), RecordRefusal> {
        // As for a read: the atomic must see earlier writes.
        self.held.land_all(env.region_table());
        // Checked before the word is changed, because an atomic without room for its reply could not be undone.
        if self.replies.is_full() {
            return Err(NakReason::Protocol.into());
        }
        let place = env.region_table().find_remote(key, addr, 8, right::ATOMIC).ok_or(NakReason::Access)?;
        // Processors guarantee atomicity only for aligned words; InfiniBand requires alignment too (volume 1, section 9.4.5).
        if !place.at.addr().is_multiple_of(8) {
            return Err(NakReason::Access.into());
        }
        // SAFETY: `find_remote` checked that the eight bytes are registered, inside the guard, and they are aligned.
        let old = unsafe { env.region_table().update_word(place, new) };
        let reply = self.owe_reply(id, ReplyBytes::Word(old));
        self.replies.push(reply);
        Ok(())
    }

    /// Creates the reply to the request whose record is executed now.
    fn owe_reply(&self, id: u64, bytes: ReplyBytes) -> OwedReply {
        OwedReply { id, at: self.record_position(), bytes, sent: 0 }
    }

    /// Executes a decline: the send for a granted receive is longer than it.
    #[cold]
    fn execute_decline(&mut self, grant: u64, sink: &mut CompletionSink<'_>) -> Result<(), RecordRefusal> {
        if self.matcher.find_receive(grant).is_some_and(|receive| receive.got > 0) {
            return Err(NakReason::Protocol.into());
        }
        match self.matcher.finish_receive(grant) {
            Some(receive) => {
                self.owed -= 1;
                self.push_failed(
                    sink,
                    self.make_completion(receive.wr_id, CompletionKind::Received, OpStatus::TooLong, 0),
                );
                Ok(())
            }
            None if self.matcher.was_taken_back(grant) => Ok(()),
            None => Err(NakReason::Protocol.into()),
        }
    }

    fn execute_grant(&mut self, env: &RailContext<'_>, grant: ReceiveGrant) -> Result<(), RecordRefusal> {
        if let Some(send) = self.matcher.accept_grant(grant)? {
            self.release_matched(env, send, grant);
        }
        Ok(())
    }

    /// Ends the current record although its bytes were not copied and never will be: its region was retired.
    #[cold]
    fn leave_out(&mut self, payload: &RecordPayload) {
        if let (RecordPayload::Pulled { shared: true, .. }, Some(direct)) = (payload, &mut self.direct) {
            direct.end_shared(self.rx.next());
        }
    }

    /// Returns the destination of the rest of a record's payload, if that is known and allowed. A destination that is not is found again, and
    /// refused, when the bytes have arrived.
    #[inline]
    pub(crate) fn landing_place(
        &mut self,
        env: &RailContext<'_>,
        record: &RingRecord,
    ) -> Option<CheckedPlace> {
        let left = record.payload.len();
        if env.shared.config.delayed_visibility {
            return None;
        }
        match record.verb {
            RecordVerb::Write { key, addr } => env.region_table().find_remote(key, addr, left, right::WRITE),
            RecordVerb::Send { offset } => {
                let (receive, got) = self.receives.find_arriving()?;
                let room = receive.into.len.checked_sub(got)?;
                let fits = got == offset && left <= room;
                fits.then(|| {
                    env.region_table().find_local(receive.into.key.0, receive.into.offset + got, left)
                })?
            }
            RecordVerb::Reply { id, offset } => {
                let wanted = self.wanted.front()?;
                let room = wanted.into.len.checked_sub(wanted.got)?;
                let fits = wanted.flight == id && wanted.got == offset && left <= room;
                fits.then(|| {
                    env.region_table().find_local(wanted.into.key.0, wanted.into.offset + wanted.got, left)
                })?
            }
            RecordVerb::Matched { grant, offset } => {
                let receive = self.matcher.find_receive(grant)?;
                let room = receive.into.len.checked_sub(receive.got)?;
                let into = receive.into;
                let at = into.offset + receive.got;
                let fits = receive.got == offset && left <= room;
                fits.then(|| env.region_table().find_local(into.key.0, at, left))?
            }
            _ => None,
        }
    }

    /// Counts a record of a stream that was executed. Returns the position after it.
    #[inline]
    pub(crate) fn end_streamed_record(&mut self) -> u64 {
        self.arrived = self.arrived.wrapping_add(1);
        self.draining = self.draining.saturating_sub(1);
        self.arrived
    }

    /// Places the bytes of a record, or holds them back where visibility is delayed. Only a write waits.
    #[inline(always)]
    fn place_payload(
        &mut self,
        env: &RailContext<'_>,
        here: *const u8,
        payload: &RecordPayload,
        place: CheckedPlace,
        target: HeldTarget,
    ) -> Result<RecordProgress, RecordRefusal> {
        if env.shared.config.delayed_visibility && place.rights & right::RELAXED != 0 {
            let from = self.find_payload(env, here, payload)?;
            // SAFETY: `find_payload` checked that `payload.len()` bytes are readable, inside the guard.
            unsafe { self.held.push(env.region_table(), target, from, payload.len() as usize) };
            return Ok(RecordProgress::Done);
        }
        if let RecordPayload::Pulled { .. } = payload {
            let key = if let HeldTarget::Remote { key, .. } = target { Some(key) } else { None };
            let Some(direct) = &mut self.direct else { return Err(NakReason::Protocol.into()) };
            return direct.pull_current(&self.rx, env, place, *payload, key, self.state);
        }
        self.move_bytes(env, here, payload, place)?;
        Ok(RecordProgress::Done)
    }

    /// Copies the bytes of a record that are in this address space.
    #[inline(always)]
    fn move_bytes(
        &mut self,
        env: &RailContext<'_>,
        here: *const u8,
        payload: &RecordPayload,
        place: CheckedPlace,
    ) -> Result<(), RecordRefusal> {
        if let RecordPayload::Streamed { landed: true, .. } = payload {
            return Ok(());
        }
        let from = self.find_payload(env, here, payload)?;
        let len = payload.len() as usize;
        let apart = matches!(payload, RecordPayload::Inline { .. } | RecordPayload::Streamed { .. });
        // SAFETY: the source has `len` bytes: they lie in a slot or an inbox, or `find_payload` checked them. The caller checked the target, inside
        // the guard.
        unsafe { env.region_table().copy_in(place, from, len, apart && len <= INLINE) };
        Ok(())
    }

    /// Returns the address of a record's bytes in this address space.
    #[inline(always)]
    fn find_payload(
        &self,
        env: &RailContext<'_>,
        here: *const u8,
        payload: &RecordPayload,
    ) -> Result<*const u8, RecordRefusal> {
        match *payload {
            RecordPayload::Inline { .. } | RecordPayload::Streamed { .. } => Ok(here),
            RecordPayload::Staged { offset, len } => {
                let at = self.rx.segment().payload_range(offset, len).ok_or(NakReason::Garbled)?;
                Ok(at.as_ptr().cast_const())
            }
            RecordPayload::Placed { nic, key, offset, len } if self.wire == LinkWire::Mem => {
                // The initiator failed the link: its owner has the memory back, or will have it once this rail has left its guard.
                if self.rx.peer_state() == side::ERROR {
                    return Err(NakReason::Source.into());
                }
                let nic = env.shared.nics.get(nic as usize).ok_or(NakReason::Garbled)?;
                let place = nic.table.find_local(key, offset, len).ok_or(NakReason::Source)?;
                Ok(place.at.cast_const())
            }
            RecordPayload::Placed { .. } | RecordPayload::Pulled { .. } => Err(NakReason::Garbled.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{NakReason, add_written_bytes};

    #[test]
    fn an_operation_longer_than_its_count_is_refused() {
        assert_eq!(add_written_bytes(u64::MAX - 5, 5), Ok(u64::MAX));
        assert_eq!(add_written_bytes(u64::MAX - 5, 6), Err(NakReason::Garbled));
    }
}
