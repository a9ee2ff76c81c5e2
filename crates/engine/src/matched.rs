//! Messages that the NIC pairs by itself (clear-to-send offload): no records, no tokens on the wire. Part of both lanes.

use trunkline_fabric::{Match, Op, PostError, Rail, Source};
use trunkline_proto::xfer::Fault;
use trunkline_proto::xfer::receiver::RecvId;

use crate::CommFault;
use crate::outgoing::Message;
use crate::rails::Rails;
use crate::recv::{MATCHED, Place, RecvLane};
use crate::send::SendLane;

impl SendLane {
    pub(crate) fn send_matched(
        &mut self,
        rails: &mut Rails<impl Rail>,
        slot: u16,
        message: Message,
    ) -> Result<(), CommFault> {
        if message.len > self.plan.message_max {
            return Err(Fault::TooLong { len: message.len, room: self.plan.message_max }.into());
        }
        let Some((_, extent)) = self.regions.find(message.mr, 0, message.offset, message.len) else {
            return Err(CommFault::Revoked);
        };
        self.track(slot, message);
        self.outgoing[slot as usize].left = 1;
        let op = Op::MatchedSend { from: Source::Region(extent), key: self.part.key(message.tag) };
        self.post(rails, u64::from(slot), op, true)?;
        rails.flush();
        Ok(())
    }
}

impl RecvLane {
    pub(crate) fn post_matched(
        &mut self,
        rails: &mut Rails<impl Rail>,
        id: RecvId,
        count: usize,
    ) -> Result<(), CommFault> {
        for index in 0..count {
            self.matched_due.push_back(self.receiver.announcement(id, index).1);
        }
        self.post_matched_due(rails)
    }

    /// Posts matched receives in order, as far as the NIC takes them.
    pub(crate) fn post_matched_due(&mut self, rails: &mut Rails<impl Rail>) -> Result<(), CommFault> {
        while let Some(&token) = self.matched_due.front() {
            let Place { mr, offset } = self.places[token.slot()];
            let (tag, len) = self.receiver.tag_and_room(token.slot());
            let into = self.extent(mr, offset, len)?;
            let op = Op::MatchedRecv { into, key: Match(u64::from(tag) | u64::from(self.part.member) << 32) };
            let path = self.paths.leader();
            match rails.get_mut(path.rail).post(
                path.link,
                self.part.tag | MATCHED | u64::from(token.to_bits()),
                op,
                true,
            ) {
                Ok(()) => self.matched_due.pop_front(),
                Err(PostError::Busy) => return Ok(()),
                Err(PostError::Refused(_)) if self.gone => return Ok(()),
                Err(PostError::Refused(status)) => return Err(CommFault::Link(status)),
            };
        }
        Ok(())
    }
}
