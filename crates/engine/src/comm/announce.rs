//! Announcing receives: which records are delayed, and how records are written. Part of the receiving lane; the part that is
//! peculiar to several links is in [`crate::comm::striped_recv`].

use trunkline_fabric::{Op, OpSource, Rail};
use trunkline_proto::comm::receiver::RecvId;
use trunkline_proto::comm::table;
use trunkline_proto::limits::EAGER_CREDITS_MAX;
use trunkline_proto::wire::cts::{CtsRecord, CtsSecondLine, RecordLines};
use trunkline_proto::wire::frame::RemoteRegion;
use trunkline_proto::wire::imm::BufferToken;

use crate::CommFault;
use crate::comm::record_run::RecordRun;
use crate::comm::recv::{MrOffset, RecvLane};
use crate::comm::request::RequestTable;
use crate::link::rails::GroupRails;

/// Polls after which the records of small receives are written in any case, because the sender waits for the credits in
/// them.
const PATIENCE: u32 = 64;

impl RecvLane {
    /// Writes the records that are due with this poll, and posts operations that waited for credit.
    #[inline]
    pub(crate) fn announce_and_post(
        &mut self,
        rails: &mut GroupRails<impl Rail>,
        requests: &RequestTable,
    ) -> Result<(), CommFault> {
        if self.count_announce_poll() {
            self.write_pending_records(rails)?;
            rails.flush();
        }
        self.post_due(rails, requests)
    }

    /// Returns whether delayed records are due with this poll. That is long before the sender runs out of eager credits, because
    /// the records return the credits.
    #[inline]
    fn count_announce_poll(&mut self) -> bool {
        if self.unannounced == 0 {
            return false;
        }
        self.waited = self.waited.saturating_add(1);
        // Members of a group share eager credits, so their records are not delayed, because another member may
        // need the credit.
        self.withholds_enough() || self.waited >= PATIENCE || self.part.range.is_some()
    }

    /// Returns whether the delayed records must be written now, because their number is large and the caller may poll seldom.
    #[inline]
    pub(crate) fn withholds_enough(&self) -> bool {
        self.unannounced * 4 >= self.plan.eager_credits
    }

    /// Writes the delayed clear-to-send records, as far as there is credit. For one link.
    #[inline]
    pub(crate) fn write_pending_records(
        &mut self,
        rails: &mut GroupRails<impl Rail>,
    ) -> Result<(), CommFault> {
        if self.unannounced == 1 {
            return self.announce_only(rails);
        }
        let mut run = RecordRun::new();
        while self.unannounced > 0 {
            let number = self.receiver.next_number().wrapping_sub(self.unannounced);
            let id = self.receiver.outstanding_receive(number);
            let count = id.map_or(1, |id| self.receiver.cts_fields(id, 0).2);
            let writes = u32::from(count) + u32::from(!run.is_empty());
            if !self.gone && self.paths.lead_credits(rails) < writes {
                break;
            }
            self.unannounced -= 1;
            match id {
                _ if self.gone => {}
                Some(id) => {
                    for index in 0..usize::from(count) {
                        let record = self.record_of(id, index)?;
                        self.add_record(rails, &mut run, &record)?;
                    }
                }
                None => {
                    let record = self.record_of_done(number);
                    self.add_record(rails, &mut run, &record)?;
                }
            }
        }
        self.write_run(rails, &run)?;
        self.waited = if self.unannounced > 0 { PATIENCE } else { 0 };
        Ok(())
    }

    /// As [`Self::write_pending_records`], for exactly one receive, which is the common case.
    #[inline]
    fn announce_only(&mut self, rails: &mut GroupRails<impl Rail>) -> Result<(), CommFault> {
        let number = self.receiver.next_number().wrapping_sub(1);
        let id = self.receiver.outstanding_receive(number);
        let count = id.map_or(1, |id| self.receiver.cts_fields(id, 0).2);
        if !self.gone && self.paths.lead_credits(rails) < u32::from(count) {
            self.waited = PATIENCE;
            return Ok(());
        }
        (self.unannounced, self.waited) = (0, 0);
        match id {
            _ if self.gone => Ok(()),
            Some(id) => (0..usize::from(count)).try_for_each(|index| {
                let record = self.record_of(id, index)?;
                self.write_first(rails, &record)
            }),
            None => {
                let record = self.record_of_done(number);
                self.write_first(rails, &record)
            }
        }
    }

    /// Writes a record into the sender's mailbox. For one link.
    #[inline]
    fn write_first(
        &mut self,
        rails: &mut GroupRails<impl Rail>,
        record: &CtsRecord,
    ) -> Result<(), CommFault> {
        let at = self.record_at(record.number, usize::from(record.index), RecordLines::One);
        self.write_records(rails, at, &record.to_bytes())
    }

    #[inline]
    fn write_records(
        &mut self,
        rails: &mut GroupRails<impl Rail>,
        at: u64,
        bytes: &[u8],
    ) -> Result<(), CommFault> {
        let to = self.record_to(self.mailboxes[0], at);
        let op = Op::Write { from: OpSource::Inline(bytes), to, imm: None };
        self.post_record(rails, 0, 0, op, false)
    }

    /// Returns the record of a receive that an eager message has completed. The sender pairs the two by this record. Its buffer
    /// fields are empty, because the sender uses no buffer of a receive whose record it has not read.
    fn record_of_done(&self, number: u32) -> CtsRecord {
        let tag = self.waiting[number as usize % EAGER_CREDITS_MAX];
        let token = BufferToken::new(0, 0);
        CtsRecord { number, index: 0, count: 1, addr: 0, len: 0, tag, token, key: 0 }
    }

    /// Returns the record of a buffer.
    #[inline]
    fn record_of(&self, id: RecvId, index: usize) -> Result<CtsRecord, CommFault> {
        let (number, token, count) = self.receiver.cts_fields(id, index);
        let slot = table::slot_of_buffer(id.0, index);
        let MrOffset { mr, offset } = self.places[slot];
        let (tag, len) = self.receiver.tag_and_room(slot);
        let Some(RemoteRegion { key, addr }) = self.place_on(0, mr, offset) else {
            return Err(CommFault::Revoked);
        };
        let token = self.part.to_wire_token(token);
        Ok(CtsRecord { number, index: index as u8, count, addr, len, tag, token, key })
    }

    /// Writes a record. For several links.
    #[inline]
    pub(crate) fn announce_one(
        &mut self,
        rails: &mut GroupRails<impl Rail>,
        path: usize,
        id: RecvId,
        index: usize,
        wr_id: u64,
        signalled: bool,
    ) -> Result<(), CommFault> {
        let record = self.record_of(id, index)?;
        let MrOffset { mr, offset } = self.places[table::slot_of_buffer(id.0, index)];
        let place = |path| self.place_on(path, mr, offset).unwrap_or(RemoteRegion { key: 0, addr: 0 });
        let others = CtsSecondLine {
            number: record.number,
            index: record.index,
            places: [place(1), place(2), place(3)],
        };
        self.write_record(rails, path, &record, &others, wr_id, signalled)
    }

    /// Adds a record to a run; writes the run first if the record does not fit.
    #[inline]
    fn add_record(
        &mut self,
        rails: &mut GroupRails<impl Rail>,
        run: &mut RecordRun,
        record: &CtsRecord,
    ) -> Result<(), CommFault> {
        let at = self.record_at(record.number, usize::from(record.index), RecordLines::One);
        let bytes = record.to_bytes();
        let most = self.plan.inline_max;
        if !run.append_record(at, &bytes, most) {
            self.write_run(rails, run)?;
            run.clear();
            run.append_record(at, &bytes, most);
        }
        Ok(())
    }

    /// Writes a run of records into the sender's mailbox. For one link.
    #[inline]
    fn write_run(&mut self, rails: &mut GroupRails<impl Rail>, run: &RecordRun) -> Result<(), CommFault> {
        if run.is_empty() {
            return Ok(());
        }
        let (at, bytes) = run.start_and_bytes();
        self.write_records(rails, at, bytes)
    }
}
