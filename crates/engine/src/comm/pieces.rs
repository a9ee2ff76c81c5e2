//! Messages that take more than one operation: pieces of the NIC's largest size, or slices for members of a group. The number of
//! slices in flight in a whole group is bounded, so that the other members wait for a bounded time. Part of the sending lane.

use trunkline_fabric::{Op, OpSource, Rail, RemoteLocation};
use trunkline_proto::wire::cts::CtsRecord;
use trunkline_proto::wire::fin::{self, FinRecord};
use trunkline_proto::wire::imm::WriteImmediate;

use crate::CommFault;
use crate::comm::outgoing::{FinDue, PendingSend, SendMessage};
use crate::comm::request::RequestTable;
use crate::comm::send::SendLane;
use crate::link::rails::GroupRails;

/// Marks the `wr_id` of a slice, in addition to its request.
pub(crate) const SLICE: u64 = 1 << 32;

impl SendLane {
    /// Sends a long message in slices. The number of slices in flight in the whole group is bounded, so other members wait for a
    /// bounded time.
    pub(crate) fn send_sliced(
        &mut self,
        rails: &mut GroupRails<impl Rail>,
        requests: &RequestTable,
        slot: u16,
        message: SendMessage,
        cts: &CtsRecord,
        whole: Option<WriteImmediate>,
    ) -> Result<(), CommFault> {
        self.track_message(slot, message);
        let outgoing = &mut self.outgoing[slot as usize];
        let to = RemoteLocation::for_data(cts.key, cts.addr);
        (outgoing.to, outgoing.token) = (to, cts.token);
        let slices = message.len.div_ceil(self.plan.slice_max());
        // The last slice announces the message if it is the only one, or completes a full buffer after all others on an ordered
        // link.
        let last = whole
            .filter(|imm| slices == 1 || matches!(imm, WriteImmediate::Full(_)) && !self.plan.signal_all);
        outgoing.last = last.map(WriteImmediate::to_bits);
        // Marks the request for `post_more`, which then posts slices with group credits.
        outgoing.sliced = true;
        // An announcing slice replaces the fin record.
        outgoing.fin = if last.is_some() { FinDue::No } else { self.plan.fin_due(slices) };
        self.unposted.push_back(slot);
        self.post_more(rails, requests)
    }

    /// Posts the next slice of a message. The caller has checked the credit.
    pub(crate) fn post_slice(
        &mut self,
        rails: &mut GroupRails<impl Rail>,
        slot: u16,
    ) -> Result<(), CommFault> {
        let outgoing = self.outgoing[slot as usize];
        let PendingSend { mr, offset, to, given, len, last, token, .. } = outgoing;
        let slice = self.plan.slice_max();
        let piece = (len - given).min(slice);
        // The region may have been deregistered since the message started.
        let Some((_, extent)) = self.regions.find_extent(mr, 0, offset + given, piece) else {
            return Err(CommFault::Revoked);
        };
        self.outgoing[slot as usize].left += 1;
        self.outgoing[slot as usize].given += piece;
        let to = RemoteLocation { addr: to.addr.wrapping_add(given), ..to };
        let imm = match outgoing.is_striped() {
            // The index fits the immediate, because striped messages have at most sixteen slices.
            true => Some(WriteImmediate::Stripe(token, (given / slice) as u8).to_bits()),
            false => last.filter(|_| given + piece == len),
        };
        let op = Op::Write { from: OpSource::Region(extent), to, imm };
        self.post_op(rails, SLICE | u64::from(slot), op, true)
    }

    pub(crate) fn post_piece(
        &mut self,
        rails: &mut GroupRails<impl Rail>,
        slot: u16,
        at: u64,
        len: u64,
        imm: Option<WriteImmediate>,
    ) -> Result<(), CommFault> {
        let PendingSend { mr, offset, to, .. } = self.outgoing[slot as usize];
        let Some((_, extent)) = self.regions.find_extent(mr, 0, offset + at, len) else {
            return Err(CommFault::Revoked);
        };
        self.outgoing[slot as usize].left += 1;
        let to = RemoteLocation { addr: to.addr.wrapping_add(at), ..to };
        let op = Op::Write { from: OpSource::Region(extent), to, imm: imm.map(WriteImmediate::to_bits) };
        self.post_op(rails, u64::from(slot), op, true)
    }

    /// Posts the operation whose completion proves that all pieces of a message have arrived.
    fn post_proof(&mut self, rails: &mut GroupRails<impl Rail>, slot: u16) -> Result<(), CommFault> {
        let outgoing = &mut self.outgoing[slot as usize];
        // Signalled, and counted as a part of the message, because its completion then triggers the fin record.
        outgoing.fin = FinDue::Placed;
        outgoing.left += 1;
        self.post_op(rails, u64::from(slot), Op::Nop, true)
    }

    fn post_fin(
        &mut self,
        rails: &mut GroupRails<impl Rail>,
        slot: u16,
        stripes: u8,
    ) -> Result<(), CommFault> {
        let outgoing = &mut self.outgoing[slot as usize];
        outgoing.fin = FinDue::No;
        // The request is done only when its fin record has completed, because the record's
        // operation names it.
        outgoing.left += 1;
        let record = FinRecord { len: outgoing.len, stripes, token: outgoing.token };
        if !self.plan.write_data {
            let op = Op::Send { head: &record.to_message(), body: OpSource::Inline(&[]), imm: None };
            return self.post_op(rails, u64::from(slot), op, true);
        }
        // The slot is derived from the token, as at the receiver.
        let at = ((outgoing.token.slot() & self.part.fin_mask) * fin::BYTES) as u64;
        let to = RemoteLocation::for_records(self.fins.key, self.fins.addr.wrapping_add(at));
        let imm = Some(WriteImmediate::Fin(outgoing.token).to_bits());
        let op = Op::Write { from: OpSource::Inline(&record.to_bytes()), to, imm };
        self.post_op(rails, u64::from(slot), op, true)
    }

    /// Posts further operations of long messages, as far as there is credit.
    pub(crate) fn post_more(
        &mut self,
        rails: &mut GroupRails<impl Rail>,
        requests: &RequestTable,
    ) -> Result<(), CommFault> {
        while let Some(&slot) = self.unposted.front() {
            if !self.post_message_pieces(rails, slot)? {
                return Ok(());
            }
            // Removed only when all its operations are posted, because messages of one comm stay in order.
            self.unposted.pop_front();
            self.finish_if_done(requests, slot);
        }
        Ok(())
    }

    /// Posts the pieces of one message that can be posted now; false when credit ran out.
    fn post_message_pieces(
        &mut self,
        rails: &mut GroupRails<impl Rail>,
        slot: u16,
    ) -> Result<bool, CommFault> {
        loop {
            let outgoing = self.outgoing[slot as usize];
            let PendingSend { given, len, fin, token, left, sliced, .. } = outgoing;
            let striped = outgoing.is_striped();
            // An empty message still needs one stripe, because the receiver counts stripes.
            let empty = striped && left == 0 && len == 0;
            let more = given < len || empty;
            let waits = !more && left > 0 && fin == FinDue::Placed;
            if waits {
                // The completion that proves the placement queues the request again.
                return Ok(true);
            }
            if (more || fin != FinDue::No) && self.paths.lead_credits(rails) == 0 {
                return Ok(false);
            }
            if more && sliced {
                if !rails.slices.try_take(self.part.slices) {
                    return Ok(false);
                }
                // The group's slices are credits: each is returned by its completion.
                self.part.slices += 1;
                self.post_slice(rails, slot)?;
                continue;
            }
            if more {
                let piece = (len - given).min(self.plan.message_max);
                let index = (given / self.plan.message_max) as u8;
                self.outgoing[slot as usize].given += piece;
                self.post_piece(
                    rails,
                    slot,
                    given,
                    piece,
                    // A stripe's immediate numbers it, because stripes may arrive in any order.
                    striped.then_some(WriteImmediate::Stripe(token, index)),
                )?;
                continue;
            }
            match fin {
                FinDue::No => return Ok(true),
                FinDue::Now(stripes) => self.post_fin(rails, slot, stripes)?,
                FinDue::Placed => self.post_fin(rails, slot, 0)?,
                FinDue::Proven => self.post_proof(rails, slot)?,
            }
        }
    }
}
