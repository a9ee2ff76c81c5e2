//! Messages that the NIC pairs by itself (clear-to-send offload): no records, no tokens on the wire. Part of both lanes.

use trunkline_fabric::{Completion, CompletionKind, MatchKey, Op, OpSource, PostError, Rail};
use trunkline_proto::comm::MessageFault;
use trunkline_proto::comm::receiver::RecvId;
use trunkline_proto::limits::{RECVS_MAX, SENDS_MAX};
use trunkline_proto::wire::imm::BufferToken;

use crate::CommFault;
use crate::comm::outgoing::SendMessage;
use crate::comm::recv::{MATCHED, MrOffset, RecvLane};
use crate::comm::send::SendLane;
use crate::link::rails::GroupRails;
use crate::memory::regions::NO_MR;

impl SendLane {
    pub(crate) fn send_matched(
        &mut self,
        rails: &mut GroupRails<impl Rail>,
        slot: u16,
        message: SendMessage,
    ) -> Result<(), CommFault> {
        // The NIC cannot pair the pieces of a split message.
        if message.len > self.plan.message_max {
            return Err(MessageFault::TooLong { len: message.len, room: self.plan.message_max }.into());
        }
        let Some((_, extent)) = self.regions.find_extent(message.mr, 0, message.offset, message.len) else {
            return Err(CommFault::Revoked);
        };
        self.track_message(slot, message);
        self.outgoing[slot as usize].left = 1;
        let op = Op::MatchedSend {
            from: OpSource::Region(extent),
            key: self.part.match_key(message.tag, self.plan.match_mask),
        };
        // Signalled, because only the completion shows that the NIC has read the memory.
        self.post_op(rails, u64::from(slot), op, true)?;
        rails.flush();
        Ok(())
    }

    /// Handles a failed operation. If the NIC pairs messages, the link may be intact, because the message was longer
    /// than its receive.
    #[cold]
    pub(crate) fn on_failed(&mut self, completion: &Completion) -> CommFault {
        let fault = CommFault::Link(completion.status);
        if !self.plan.matched {
            return fault;
        }
        self.posted = self.posted.saturating_sub(1);
        if let Some(outgoing) = self.outgoing.get_mut(usize::from(completion.wr_id as u16)) {
            outgoing.left = 0;
            self.regions.release_region(std::mem::replace(&mut outgoing.mr, NO_MR));
        }
        fault
    }

    /// Returns whether one more send may wait in the NIC for its receive.
    #[inline]
    pub(crate) fn has_matched_part(&self) -> bool {
        self.part.remote.is_none() || self.posted < self.plan.matched_part
    }

    /// Revokes the sends that wait for their receive, after the comm has failed or is closed, because the peer must not
    /// wait for them.
    pub(crate) fn take_matched_back(&mut self, rails: &mut GroupRails<impl Rail>) {
        if !self.plan.matched {
            return;
        }
        let path = self.paths.lead_path();
        let rail = rails.get_mut(path.rail);
        let link = path.link;
        // All requests, because the comm does not record which of them wait in the NIC.
        for slot in 0..SENDS_MAX as u16 {
            let outgoing = &mut self.outgoing[usize::from(slot)];
            if outgoing.left > 0 && rail.take_back(link, self.part.tag | u64::from(slot)) {
                self.posted = self.posted.saturating_sub(1);
                // The message was never sent, so CLOSE must not count it.
                self.sent -= 1;
                outgoing.left = 0;
                self.regions.release_region(std::mem::replace(&mut outgoing.mr, NO_MR));
            }
        }
    }
}

impl RecvLane {
    pub(crate) fn post_matched(
        &mut self,
        rails: &mut GroupRails<impl Rail>,
        id: RecvId,
        count: usize,
    ) -> Result<(), CommFault> {
        for index in 0..count {
            self.matched_due.push_back(self.receiver.cts_fields(id, index).1);
        }
        self.post_matched_due(rails)
    }

    /// Posts matched receives in order, as far as the NIC accepts them.
    pub(crate) fn post_matched_due(&mut self, rails: &mut GroupRails<impl Rail>) -> Result<(), CommFault> {
        while let Some(&token) = self.matched_due.front() {
            // The member's share of the NIC's queue is in use; a completion makes room.
            if self.part.range.is_some() && self.matched_posted >= self.plan.matched_part {
                return Ok(());
            }
            let MrOffset { mr, offset } = self.places[token.slot()];
            let (tag, len) = self.receiver.tag_and_room(token.slot());
            let into = self.buffer_extent(mr, offset, len)?;
            let member = self.part.member & self.plan.match_mask;
            let op = Op::MatchedRecv { into, key: MatchKey(u64::from(tag) | u64::from(member) << 32) };
            let path = self.paths.lead_path();
            match rails.get_mut(path.rail).post(
                path.link,
                self.part.tag | MATCHED | u64::from(token.to_bits()),
                op,
                true,
            ) {
                Ok(()) => self.matched_posted += 1,
                // The token stays in the queue, and a later poll tries again.
                Err(PostError::Busy) => return Ok(()),
                // Expected after the peer's end: the receive will be failed, not posted.
                Err(PostError::Refused(_)) if self.gone => return Ok(()),
                Err(PostError::Refused(status)) => return Err(CommFault::Link(status)),
            }
            self.matched_due.pop_front();
        }
        Ok(())
    }

    /// As the sending lane's `on_failed`, for a receive.
    #[cold]
    pub(crate) fn on_failed(&mut self, completion: &Completion) -> CommFault {
        let fault = CommFault::Link(completion.status);
        if completion.done != CompletionKind::Received || completion.wr_id & MATCHED == 0 {
            return fault;
        }
        self.matched_one();
        // It arrived, although too long: the peer's count in CLOSE includes it.
        self.arrived += 1;
        let place = &mut self.places[BufferToken::from_bits(completion.wr_id as u32).slot()];
        self.regions.release_region(std::mem::replace(&mut place.mr, NO_MR));
        fault
    }

    /// A matched receive has completed.
    #[inline]
    pub(crate) fn matched_one(&mut self) {
        self.matched_posted = self.matched_posted.saturating_sub(1);
    }

    /// Revokes the receives that wait for their send, after the comm has failed or is closed.
    pub(crate) fn take_matched_back(&mut self, rails: &mut GroupRails<impl Rail>) {
        if !self.plan.matched {
            return;
        }
        // Receives that are not posted yet need no revocation.
        self.matched_due.clear();
        let path = self.paths.lead_path();
        let rail = rails.get_mut(path.rail);
        let link = path.link;
        let end = self.receiver.next_number();
        let outstanding =
            (1..=RECVS_MAX as u32).filter_map(|at| self.receiver.outstanding_receive(end.wrapping_sub(at)));
        for id in outstanding {
            for index in 0..usize::from(self.receiver.cts_fields(id, 0).2) {
                let token = self.receiver.cts_fields(id, index).1;
                if rail.take_back(link, self.part.tag | MATCHED | u64::from(token.to_bits())) {
                    self.matched_posted = self.matched_posted.saturating_sub(1);
                    let place = &mut self.places[token.slot()];
                    self.regions.release_region(std::mem::replace(&mut place.mr, NO_MR));
                }
            }
        }
    }
}
