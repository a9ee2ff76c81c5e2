//! The receiving lane of a comm with several links: writes records, repeats records that were lost with a link, flushes every
//! link that may have delivered bytes, and reports the arrived messages. A record is repeated only if it was last written over a
//! link that both ends have left, so that no record is ever in flight twice.

use std::collections::VecDeque;

use trunkline_fabric::{
    Caps, LinkAddress, LinkError, Op, OpSource, OpStatus, PostError, Rail, RemoteLocation,
};
use trunkline_proto::comm::receiver::RecvId;
use trunkline_proto::limits::{
    EAGER_CREDITS_MAX, LINKS_MAX, MAILBOX_SLOTS, RECV_BUFFERS_MAX, RECVS_MAX, SENDS_MAX,
};
use trunkline_proto::reserve::{OutOfMemory, try_filled};
use trunkline_proto::wire::cts::{self, CtsRecord, CtsSecondLine, RecordLines};
use trunkline_proto::wire::delivery_report::DeliveryReport;
use trunkline_proto::wire::frame::RemoteRegion;
use trunkline_proto::wire::imm::BufferToken;

use crate::comm::recv::{FLUSH, LAST, MrOffset, RECORD, REPEATED, RecvLane};
use crate::comm::request::{RequestTable, RequestTicket};
use crate::link::path::{LinkPath, NO_LINK};
use crate::link::rails::GroupRails;
use crate::{CommFault, MrId, RecvBuf};

/// The fields of a receive that the sender may still need after it is done, because its eager messages are paired by
/// them.
#[derive(Clone, Copy)]
struct PastReceive {
    count: u8,
    /// The path over which its records were written last.
    path: u8,
    tags: [u32; RECV_BUFFERS_MAX],
}

/// The memory that a flush makes visible.
#[derive(Clone, Copy)]
pub(crate) enum FlushTarget {
    /// Memory of the host, to the CPU.
    Host,
    /// Memory of a device, to the device: a byte of it.
    Device(MrOffset),
}

/// A flush that is not posted over all links yet.
#[derive(Clone, Copy)]
pub(crate) struct DueFlush {
    /// Its request.
    slot: u16,
    what: FlushTarget,
    /// With several paths: those on which it is still to be posted. `None`: not chosen yet.
    due: Option<[bool; LINKS_MAX]>,
    /// It was posted on at least one of them.
    is_begun: bool,
}

/// The additional state of a receiving lane with several paths.
pub(crate) struct RecordBacklog {
    /// Requests of flushes that read memory of a device, and the region they read.
    reads: Vec<(u16, MrId)>,
    /// By request: flushes of it that have not completed.
    flushes_left: Box<[u8]>,
    /// Receives whose records are still to be written, oldest first; true if the records are repeated because a link was lost.
    unannounced: VecDeque<(u32, bool)>,
    /// The receives whose records the sender may not have read, by number.
    past: Box<[PastReceive]>,
    /// Records written again over each path that have not completed.
    repeated: [u32; LINKS_MAX],
    /// The record slot of the oldest receive with repeated records, as [`RecvLane::first_record_slot`] counts.
    oldest: u32,
    /// Uncompleted records over each path, of a member whose NIC lets operations overtake each other.
    landing: [u32; LINKS_MAX],
}

impl RecordBacklog {
    /// Creates the backlog; empty tables for one path.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub(crate) fn new(many: bool) -> Result<Self, OutOfMemory> {
        let times = usize::from(many);
        let none = PastReceive { count: 0, path: 0, tags: [0; RECV_BUFFERS_MAX] };
        Ok(Self {
            reads: Vec::new(),
            flushes_left: try_filled(0, SENDS_MAX * times)?,
            unannounced: VecDeque::new(),
            past: try_filled(none, MAILBOX_SLOTS * times)?,
            repeated: [0; LINKS_MAX],
            oldest: 0,
            landing: [0; LINKS_MAX],
        })
    }

    /// Returns whether records wait to be written.
    #[inline]
    pub(crate) fn has_unannounced(&self) -> bool {
        !self.unannounced.is_empty()
    }
}

// Each line of a record is posted inline.
const _: () = assert!(cts::BYTES <= Caps::INLINE_MIN as usize);

impl RecvLane {
    /// Returns the target of a flush for these buffers, if the data needs one: a device buffer, or host memory.
    pub(crate) fn flush_target(&self, buffers: impl Iterator<Item = RecvBuf>) -> Option<FlushTarget> {
        // All buffers of a receive are on one device, and a read of one of them completes after earlier writes to all of them.
        let of_device =
            buffers.filter(|buffer| buffer.len > 0 && self.regions.is_of_device(buffer.mr)).last();
        match of_device {
            Some(RecvBuf { mr, offset, .. }) if self.plan.devices.needs_flush => {
                Some(FlushTarget::Device(MrOffset { mr, offset }))
            }
            _ => self.plan.needs_flush.then_some(FlushTarget::Host),
        }
    }

    /// Starts a flush.
    pub(crate) fn start_flush(
        &mut self,
        rails: &mut GroupRails<impl Rail>,
        requests: &RequestTable,
        what: FlushTarget,
    ) -> Result<Option<RequestTicket>, CommFault> {
        // Cannot fail, because flushes share the requests of receives, and there are four requests per receive.
        let Some(ticket) = requests.reserve_slot(&mut self.cursor) else {
            return Err(CommFault::Link(OpStatus::Other(0)));
        };
        if let FlushTarget::Device(MrOffset { mr, .. }) = what {
            // The flush reads the region, so the region must stay registered until it completes.
            self.regions.hold_region(mr);
            self.records.reads.push((ticket.slot_index(), mr));
        }
        self.flushes.push_back(DueFlush { slot: ticket.slot_index(), what, due: None, is_begun: false });
        self.post_due(rails, requests)?;
        Ok(Some(ticket))
    }

    /// Returns the operation that makes bytes visible that arrived over a path; `None` if its rail does not know the region.
    fn flush_over(&self, path: usize, what: FlushTarget) -> Option<Op<'static>> {
        let FlushTarget::Device(MrOffset { mr, offset }) = what else { return Some(Op::Flush) };
        let RemoteRegion { key, addr } = self.place_on(path, mr, offset)?;
        Some(Op::FlushAt { at: RemoteLocation::for_data(key, addr) })
    }

    /// Returns the flush for the bytes of a path that is being left; `None` where bytes are never hidden.
    pub(crate) fn last_flush(&self, path: usize) -> Option<Op<'static>> {
        // Any region of the device will do, because a flush orders all earlier writes to it.
        let of_device = || self.plan.devices.needs_flush.then(|| self.regions.any_of_device()).flatten();
        let what = match of_device() {
            Some(mr) => FlushTarget::Device(MrOffset { mr, offset: 0 }),
            None if self.plan.needs_flush => FlushTarget::Host,
            None => return None,
        };
        self.flush_over(path, what)
    }

    /// Whether a flush that may read memory of a device has not completed.
    pub(crate) fn flushes_device(&self) -> bool {
        let last = self
            .paths
            .iter()
            .any(|path| path.leaving.as_ref().is_some_and(|leaving| leaving.flushing && !leaving.flushed));
        !self.records.reads.is_empty() || last
    }

    /// Returns whether a flush has not completed.
    pub(crate) fn is_flush_pending(&self) -> bool {
        self.flushing > 0 || !self.flushes.is_empty()
    }

    /// Posts a flush over each link that may have delivered bytes. False if it has to be called again: a link has no room, or no
    /// link is left.
    pub(crate) fn post_flush(
        &mut self,
        rails: &mut GroupRails<impl Rail>,
        requests: &RequestTable,
        flush: &mut DueFlush,
    ) -> Result<bool, CommFault> {
        let slot = usize::from(flush.slot);
        let wr_id = self.part.tag | FLUSH | u64::from(flush.slot);
        // One path: no table of paths is needed, and the flush is one operation.
        if !self.paths.are_many() {
            if self.paths.lead_credits(rails) == 0 {
                return Ok(false);
            }
            let op = self.flush_over(0, flush.what).ok_or(CommFault::Revoked)?;
            self.post_op(rails, 0, FLUSH | u64::from(flush.slot), op, true)?;
            self.flushing += 1;
            return Ok(true);
        }
        // Chosen once per flush, because a path that is up later carries only later bytes.
        let mut due = flush.due.unwrap_or_else(|| {
            let chosen = self.paths_to_flush();
            self.records.flushes_left[slot] = chosen.iter().filter(|&&is_due| is_due).count() as u8;
            chosen
        });
        for (at, is_due) in due.iter_mut().enumerate().take(self.paths.len()).filter(|(_, is_due)| **is_due) {
            let op = self.flush_over(at, flush.what).ok_or(CommFault::Revoked)?;
            let &LinkPath { rail, link, .. } = self.paths.get(at);
            match rails.get_mut(rail).post(link, wr_id, op, true) {
                Ok(()) => {
                    (*is_due, flush.is_begun) = (false, true);
                    self.flushing += 1;
                }
                // Tried again later for this path; other paths may have room now.
                Err(PostError::Busy) => {}
                // The link has ended: its last flush makes its bytes visible.
                Err(PostError::Refused(_)) => {
                    *is_due = false;
                    self.records.flushes_left[slot] -= 1;
                }
            }
        }
        flush.due = Some(due);
        let is_posted = due.iter().all(|is_due| !is_due);
        if is_posted && self.records.flushes_left[slot] == 0 {
            if !flush.is_begun {
                // Without any link, it waits for the next one.
                flush.due = None;
                return Ok(false);
            }
            self.end_flush(requests, flush.slot);
        }
        Ok(is_posted)
    }

    /// Returns the paths that may have delivered bytes that are still hidden.
    fn paths_to_flush(&self) -> [bool; LINKS_MAX] {
        let none_left = !self.paths.any_carries();
        let mut chosen = [false; LINKS_MAX];
        for (at, is_chosen) in chosen.iter_mut().enumerate().take(self.paths.len()) {
            let path = self.paths.get(at);
            // The peer may use a link before this end knows that it is up. A link that is being left may have delivered bytes
            // before.
            *is_chosen = path.life.is_up() || path.life.is_joining() || path.leaving.is_some();
            *is_chosen |= at == self.paths.lead_index() && none_left;
        }
        chosen
    }

    /// Handles the completion of an operation of this lane.
    pub(crate) fn on_posted(&mut self, requests: &RequestTable, path: usize, wr_id: u64) {
        // The kinds share the `wr_id` space, one bit each.
        if wr_id & LAST != 0 {
            self.on_end(wr_id);
        } else if wr_id & (REPEATED | RECORD) != 0 {
            let again = wr_id & REPEATED != 0;
            let counted = wr_id & RECORD != 0;
            let RecordBacklog { repeated, landing, .. } = &mut self.records;
            // Saturating, because the counts are reset when a path is left, and old completions may follow.
            repeated[path] = repeated[path].saturating_sub(u32::from(again));
            landing[path] = landing[path].saturating_sub(u32::from(counted));
        } else if wr_id & FLUSH != 0 {
            self.flushing = self.flushing.saturating_sub(1);
            let slot = wr_id as u16;
            // With one path, there is one flush.
            let left = self.records.flushes_left.get_mut(usize::from(slot)).map_or(0, |left| {
                *left = left.saturating_sub(1);
                *left
            });
            if left == 0 {
                self.end_flush(requests, slot);
            }
        }
    }

    /// Completes the request of a flush on all paths.
    fn end_flush(&mut self, requests: &RequestTable, slot: u16) {
        // The region is released before the request is visible as done, so the caller can
        // deregister it at once.
        self.has_read(slot);
        requests.complete_request(slot, &[]);
    }

    /// Releases the region that a flush has read, if any.
    fn has_read(&mut self, slot: u16) {
        if let Some(at) = self.records.reads.iter().position(|&(flush, _)| flush == slot) {
            let (_, mr) = self.records.reads.swap_remove(at);
            self.regions.release_region(mr);
        }
    }

    /// Starts to drain an unusable path: no new operation is posted on it, and its outstanding completions are awaited.
    pub(crate) fn drain_path(&mut self, rails: &mut GroupRails<impl Rail>, path: usize) {
        self.paths.start_drain(rails, path, None);
    }

    /// Rewrites records after both ends of a path are in error, because those from receive `next` on may have been lost
    /// with it.
    pub(crate) fn rewrite_lost_records(
        &mut self,
        rails: &mut GroupRails<impl Rail>,
        requests: &RequestTable,
        path: usize,
        next: u32,
    ) -> Result<(), CommFault> {
        // Both ends have left the link, so none of its records can land any more.
        (self.records.repeated[path], self.records.landing[path]) = (0, 0);
        let end = self.receiver.next_number();
        // The peer's number may be old: by now it has read all records but the latest, because each unread one holds a receive or
        // an eager message.
        let behind = end.wrapping_sub(next).min((RECVS_MAX + EAGER_CREDITS_MAX) as u32);
        for number in (1..=behind).map(|at| end.wrapping_sub(at)) {
            let lost = usize::from(self.records.past[number as usize % MAILBOX_SLOTS].path) == path;
            let waits = self.records.unannounced.iter().any(|&(known, _)| known == number);
            // If another receive uses its slot of the ring, the peer has read its record.
            let own = self.receiver.cts_ring().is_none_or(|ring| ring.holds_receive(number));
            if lost && own && !waits {
                self.records.unannounced.push_front((number, true));
            }
        }
        let age = |number: u32| end.wrapping_sub(number);
        // Sorted by age, because the sender reads records in order.
        self.records
            .unannounced
            .make_contiguous()
            .sort_unstable_by_key(|&(number, _)| std::cmp::Reverse(age(number)));
        self.post_due(rails, requests)
    }

    /// Queues the records of a receive.
    pub(crate) fn announce_later(&mut self, id: RecvId, buffers: &[RecvBuf]) {
        let number = self.receiver.cts_fields(id, 0).0;
        let mut tags = [0; RECV_BUFFERS_MAX];
        for (to, buffer) in tags.iter_mut().zip(buffers) {
            *to = buffer.tag;
        }
        // Path 0 until the record is written, because a record that was not written is not lost with any path.
        self.records.past[number as usize % MAILBOX_SLOTS] =
            PastReceive { count: buffers.len() as u8, path: 0, tags };
        self.records.unannounced.push_back((number, false));
    }

    /// Writes the queued records. For several links.
    pub(crate) fn announce_due(&mut self, rails: &mut GroupRails<impl Rail>) -> Result<(), CommFault> {
        while let Some(&(number, again)) = self.records.unannounced.front() {
            let lead = self.paths.lead_index();
            let slot = number as usize % MAILBOX_SLOTS;
            let count = self.records.past[slot].count;
            let waits = self.is_ahead(number);
            // A repeated record needs a proof on some networks, because its completion does not show that
            // it can no longer land on a newer record.
            let proves = again && !self.gone && !self.plan.arrives;
            let needed = self.ops_per_record() * u32::from(count) + u32::from(proves);
            if !self.gone && (waits || self.paths.path_credits(rails, lead) < needed) {
                return Ok(());
            }
            self.records.unannounced.pop_front();
            // The first repeated record: later ones are newer, so this slot bounds the ring.
            if again && self.records.repeated == [0; LINKS_MAX] {
                self.records.oldest = self.first_record_slot(number);
            }
            self.records.past[slot].path = lead as u8;
            for index in 0..if self.gone { 0 } else { count } {
                self.announce_by_number(rails, lead, number, index, again)?;
                self.records.repeated[lead] += u32::from(again) * self.ops_per_record();
            }
            if proves {
                self.post_op(rails, lead, REPEATED, Op::Nop, true)?;
                self.records.repeated[lead] += 1;
            }
        }
        Ok(())
    }

    /// Writes one record. Of a receive that is done, only the fields that pair eager messages matter, because the
    /// sender has used no buffer of a receive whose record it has not read.
    fn announce_by_number(
        &mut self,
        rails: &mut GroupRails<impl Rail>,
        path: usize,
        number: u32,
        index: u8,
        again: bool,
    ) -> Result<(), CommFault> {
        let wr_id = if again { REPEATED } else { 0 };
        if let Some(id) = self.receiver.outstanding_receive(number) {
            // An outstanding receive has its buffers, so the record is complete.
            return self.announce_one(rails, path, id, usize::from(index), wr_id, again);
        }
        let PastReceive { count, tags, .. } = self.records.past[number as usize % MAILBOX_SLOTS];
        let tag = tags[usize::from(index)];
        let token = BufferToken::new(0, 0);
        let record = CtsRecord { number, index, count, addr: 0, len: 0, tag, token, key: 0 };
        let nowhere = RemoteRegion { key: 0, addr: 0 };
        let others = CtsSecondLine { number, index, places: [nowhere; LINKS_MAX - 1] };
        self.write_record(rails, path, &record, &others, wr_id, again)
    }

    /// Returns the operations per record: its two lines are one operation where the NIC copies both.
    fn ops_per_record(&self) -> u32 {
        if self.plan.inline_max < 2 * cts::BYTES as u64 { 2 } else { 1 }
    }

    /// Writes both lines of a record into the sender's mailbox.
    pub(crate) fn write_record(
        &mut self,
        rails: &mut GroupRails<impl Rail>,
        path: usize,
        record: &CtsRecord,
        others: &CtsSecondLine,
        wr_id: u64,
        signalled: bool,
    ) -> Result<(), CommFault> {
        let at = self.record_at(record.number, record.index.into(), RecordLines::Two);
        let to = self.record_to(self.mailboxes[path], at);
        let first = record.to_bytes();
        let second = others.to_bytes();
        // The second line first, because the sender regards a record as complete once its first line is valid.
        if self.ops_per_record() == 2 {
            let behind = RemoteLocation { addr: to.addr.wrapping_add(cts::BYTES as u64), ..to };
            let op = Op::Write { from: OpSource::Inline(&second), to: behind, imm: None };
            self.post_record(rails, path, wr_id, op, signalled)?;
            let op = Op::Write { from: OpSource::Inline(&first), to, imm: None };
            return self.post_record(rails, path, wr_id, op, signalled);
        }
        let mut bytes = [0; 2 * cts::BYTES];
        bytes[..cts::BYTES].copy_from_slice(&first);
        bytes[cts::BYTES..].copy_from_slice(&second);
        let op = Op::Write { from: OpSource::Inline(&bytes), to, imm: None };
        self.post_record(rails, path, wr_id, op, signalled)
    }

    /// Posts a record, or a line of one. Where operations overtake each other, a final operation proves nothing about
    /// earlier ones. So records of a member are counted there, because another member may use its mailbox afterwards.
    #[inline(always)]
    pub(crate) fn post_record(
        &mut self,
        rails: &mut GroupRails<impl Rail>,
        path: usize,
        wr_id: u64,
        op: Op<'_>,
        signalled: bool,
    ) -> Result<(), CommFault> {
        // Where order proves nothing, each record of a member has a completion of its own.
        if self.plan.signal_all && self.part.range.is_some() {
            self.records.landing[path] += 1;
            return self.post_op(rails, path, wr_id | RECORD, op, true);
        }
        self.post_op(rails, path, wr_id, op, signalled)
    }

    /// Returns whether records may still land, over paths that are up.
    pub(crate) fn records_land(&self) -> bool {
        (0..self.paths.len()).any(|at| self.records.landing[at] > 0 && self.paths.get(at).is_carrying())
    }

    /// Returns the offset of a buffer's record in the sender's mailbox, in bytes.
    #[inline]
    pub(crate) fn record_at(&self, number: u32, index: usize, lines: RecordLines) -> u64 {
        match self.receiver.cts_ring() {
            None => cts::record_offset(number, index, lines),
            Some(ring) => ring.record_offset(number, index),
        }
    }

    /// Returns that location in terms of the sender's NIC.
    #[inline]
    pub(crate) fn record_to(&self, mailbox: RemoteRegion, at: u64) -> RemoteLocation {
        let key = mailbox.key;
        let addr = mailbox.addr.wrapping_add(at);
        RemoteLocation::for_records(key, addr)
    }

    /// Returns how many record slots of the mailbox were used before a receive: for a member one per buffer, else one per
    /// receive.
    fn first_record_slot(&self, number: u32) -> u32 {
        self.receiver.cts_ring().map_or(number, |ring| ring.buffers_before(number))
    }

    /// Returns whether a record of a receive shares its slot with a repeated record that may still be in flight.
    fn is_ahead(&self, number: u32) -> bool {
        if self.records.repeated == [0; LINKS_MAX] {
            return false;
        }
        let count = self.records.past[number as usize % MAILBOX_SLOTS].count;
        let (taken, places) = match self.receiver.cts_ring() {
            None => (1, MAILBOX_SLOTS as u32),
            Some(ring) => (u32::from(count), ring.record_capacity()),
        };
        // Wrapping, because receive numbers wrap.
        let end = self.first_record_slot(number).wrapping_add(taken);
        end.wrapping_sub(self.records.oldest) > places
    }

    /// Makes a new link for a path, and connects it.
    pub(crate) fn make_link(
        &mut self,
        rails: &mut GroupRails<impl Rail>,
        path: usize,
        peer: LinkAddress,
    ) -> Result<(), LinkError> {
        let LinkPath { rail, link, .. } = self.paths.get_mut(path);
        let rail = *rail;
        // Released first, because its NIC may have no room for two links.
        rails.release_link(rail, std::mem::replace(link, NO_LINK));
        let others = rails.shared.as_mut().and_then(|shared| shared.join_connected(path, &peer.bytes));
        if let Some(made) = others {
            // Another member has made it already; the group shares it.
            *link = made;
            return Ok(());
        }
        let made = rails.make_new(path, rail)?;
        *link = made;
        // A link that accepts no receives is lost already, which its completions report.
        let _ = self.post_bounces(rails, path);
        rails.connect_link(rail, made, peer)
    }

    /// Returns the delivery report for the sender.
    pub(crate) fn delivery_report(&self) -> DeliveryReport {
        let mut standing = self.receiver.delivery_report();
        for waiting in &mut standing.waiting {
            waiting.token = self.part.to_wire_token(waiting.token);
        }
        standing
    }
}
