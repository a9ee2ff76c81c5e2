//! Announcing receives: which records wait, and how they are written. Part of the receiving lane; what is peculiar to several
//! links is in [`crate::comm::records`].

use trunkline_fabric::{Op, Rail, Source};
use trunkline_proto::comm::receiver::RecvId;
use trunkline_proto::comm::table;
use trunkline_proto::limits::EAGER_CREDITS_MAX;
use trunkline_proto::wire::cts::{Cts, Lines, Others};
use trunkline_proto::wire::frame::Region;
use trunkline_proto::wire::imm::Token;

use crate::CommFault;
use crate::comm::recv::{Place, RecvLane};
use crate::comm::request::Requests;
use crate::comm::run::Run;
use crate::link::rails::Rails;

/// Polls after which records of small receives wait no longer.
const PATIENCE: u32 = 64;

impl RecvLane {
    /// Writes records that are due with this poll, and posts what waited for credit.
    #[inline]
    pub(crate) fn go_on(
        &mut self,
        rails: &mut Rails<impl Rail>,
        requests: &Requests,
    ) -> Result<(), CommFault> {
        if self.announces() {
            self.announce_rest(rails)?;
            rails.flush();
        }
        self.post_due(rails, requests)
    }

    /// Whether records that wait are due with this poll: long before the sender is out of eager credits, which come back
    /// with them.
    #[inline]
    fn announces(&mut self) -> bool {
        if self.unannounced == 0 {
            return false;
        }
        self.waited = self.waited.saturating_add(1);
        // Others may need the credit that comes back with them.
        self.withholds_enough() || self.waited >= PATIENCE || self.part.range.is_some()
    }

    /// Whether no more records may wait, however seldom the caller polls.
    #[inline]
    pub(crate) fn withholds_enough(&self) -> bool {
        self.unannounced * 4 >= self.plan.eager_credits
    }

    /// Writes the clear-to-send records that wait, as far as credit goes, where there is one link.
    #[inline]
    pub(crate) fn announce_rest(&mut self, rails: &mut Rails<impl Rail>) -> Result<(), CommFault> {
        if self.unannounced == 1 {
            return self.announce_only(rails);
        }
        let mut run = Run::new();
        while self.unannounced > 0 {
            let number = self.receiver.next_number().wrapping_sub(self.unannounced);
            let id = self.receiver.outstanding(number);
            let count = id.map_or(1, |id| self.receiver.announcement(id, 0).2);
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
                    if let Some(record) = self.record_of_done(number) {
                        self.add_record(rails, &mut run, &record)?;
                    }
                }
            }
        }
        self.write_run(rails, &run)?;
        self.waited = if self.unannounced > 0 { PATIENCE } else { 0 };
        Ok(())
    }

    /// The same of one receive, which is what there is as a rule.
    #[inline]
    fn announce_only(&mut self, rails: &mut Rails<impl Rail>) -> Result<(), CommFault> {
        let number = self.receiver.next_number().wrapping_sub(1);
        let id = self.receiver.outstanding(number);
        let count = id.map_or(1, |id| self.receiver.announcement(id, 0).2);
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
            None => self.record_of_done(number).map_or(Ok(()), |record| self.write_first(rails, &record)),
        }
    }

    /// Writes a record into the sender's mailbox, where there is one link.
    #[inline]
    fn write_first(&mut self, rails: &mut Rails<impl Rail>, record: &Cts) -> Result<(), CommFault> {
        let at = self.record_at(record.number, usize::from(record.index), Lines::One);
        self.write_records(rails, at, &record.to_bytes())
    }

    #[inline]
    fn write_records(
        &mut self,
        rails: &mut Rails<impl Rail>,
        at: u64,
        bytes: &[u8],
    ) -> Result<(), CommFault> {
        let to = self.record_to(self.mailboxes[0], at);
        let op = Op::Write { from: Source::Inline(bytes), to, imm: None };
        self.post_record(rails, 0, 0, op, false)
    }

    /// The record of a receive that an eager message has ended: its sender pairs the two by it, and has used no buffer of a
    /// receive whose record it has not read.
    fn record_of_done(&self, number: u32) -> Option<Cts> {
        if self.plan.mutant.is("engine-forgets-early-ends") {
            return None;
        }
        let tag = self.waiting[number as usize % EAGER_CREDITS_MAX];
        let token = Token::new(0, 0);
        Some(Cts { number, index: 0, count: 1, addr: 0, len: 0, tag, token, key: 0 })
    }

    /// The record of a buffer.
    #[inline]
    fn record_of(&self, id: RecvId, index: usize) -> Result<Cts, CommFault> {
        let (number, token, count) = self.receiver.announcement(id, index);
        let slot = table::slot(id.0, index);
        let Place { mr, offset } = self.places[slot];
        let (tag, len) = self.receiver.tag_and_room(slot);
        let narrow = self.plan.mutant.is("engine-narrow-offsets");
        let offset = if narrow { u64::from(offset as u32) } else { offset };
        let Some(Region { key, addr }) = self.place_on(0, mr, offset) else { return Err(CommFault::Revoked) };
        let token = self.part.told(token);
        Ok(Cts { number, index: index as u8, count, addr, len, tag, token, key })
    }

    /// Writes a record, where there are several links.
    #[inline]
    pub(crate) fn announce_one(
        &mut self,
        rails: &mut Rails<impl Rail>,
        path: usize,
        id: RecvId,
        index: usize,
        wr_id: u64,
        signalled: bool,
    ) -> Result<(), CommFault> {
        let record = self.record_of(id, index)?;
        let Place { mr, offset } = self.places[table::slot(id.0, index)];
        let place = |path| self.place_on(path, mr, offset).unwrap_or(Region { key: 0, addr: 0 });
        let others =
            Others { number: record.number, index: record.index, places: [place(1), place(2), place(3)] };
        self.write_record(rails, path, &record, &others, wr_id, signalled)
    }

    /// Adds a record to a run, which is written before if it cannot take it.
    #[inline]
    fn add_record(
        &mut self,
        rails: &mut Rails<impl Rail>,
        run: &mut Run,
        record: &Cts,
    ) -> Result<(), CommFault> {
        let at = self.record_at(record.number, usize::from(record.index), Lines::One);
        let bytes = record.to_bytes();
        let most = self.plan.inline_max;
        let mutant = self.plan.mutant;
        if !run.take(at, &bytes, most, mutant) {
            self.write_run(rails, run)?;
            run.clear();
            run.take(at, &bytes, most, mutant);
        }
        Ok(())
    }

    /// Writes records into the sender's mailbox, where there is one link.
    #[inline]
    fn write_run(&mut self, rails: &mut Rails<impl Rail>, run: &Run) -> Result<(), CommFault> {
        if run.is_empty() {
            return Ok(());
        }
        let (at, bytes) = run.whole();
        self.write_records(rails, at, bytes)
    }
}
