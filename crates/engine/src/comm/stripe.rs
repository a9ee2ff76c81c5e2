//! The sending lane of a comm with several links. Every operation is recorded until it has completed, and is posted on the link
//! that will complete it first. If its link is lost before it arrived, it is posted on another. A request is done when all its
//! operations have completed, because until then its bytes may be needed again.

use std::collections::VecDeque;

use trunkline_fabric::{Op, OpSource, OpStatus, PostError, Rail, RemoteLocation};
use trunkline_proto::comm::MessageFault;
use trunkline_proto::comm::link_balancer::LinkBalancer;
use trunkline_proto::comm::sender::SendDecision;
use trunkline_proto::limits::{LINKS_MAX, SENDS_MAX, SLICE_MAX, SMALL_MAX, STRIPES_MAX};
use trunkline_proto::reserve::{OutOfMemory, try_filled};
use trunkline_proto::time::Instant;
use trunkline_proto::wire::cts::CtsRecord;
use trunkline_proto::wire::delivery_report::{DeliveryReport, MessagePart};
use trunkline_proto::wire::fin::{self, FinRecord};
use trunkline_proto::wire::frame::RemoteRegion;
use trunkline_proto::wire::imm::WriteImmediate;

use crate::CommFault;
use crate::comm::in_flight::{InFlightOps, MessageOp, OpPayload, PostedOp};
use crate::comm::outgoing::{FinDue, SendMessage};
use crate::comm::plan::INLINE_MAX;
use crate::comm::request::RequestTable;
use crate::comm::send::SendLane;
use crate::link::path::LinkPath;
use crate::link::proofs::{ArrivalProofs, PROOF};
use crate::link::rails::GroupRails;
use crate::memory::mailbox::MailboxView;

/// The additional state of a sending lane with several links.
pub(crate) struct MultiLink {
    pub(crate) spread: LinkBalancer,
    pub(crate) flights: InFlightOps,
    /// Operations without a link, for lack of credit or because their link was lost. Posted before anything else.
    again: VecDeque<MessageOp>,
    /// By request.
    aims: Box<[StripeTarget]>,
    /// The regions for fin records, by path.
    pub(crate) fins: [RemoteRegion; LINKS_MAX],
    /// The proofs of arrival, where completions do not show it.
    pub(crate) proofs: ArrivalProofs,
    /// The time, as of the current call's last read of the clock.
    pub(crate) now: Instant,
}

/// The target of a message.
#[derive(Clone, Copy)]
struct StripeTarget {
    /// The number of its receive.
    receive: u32,
    /// Its buffer, by path.
    places: [RemoteRegion; LINKS_MAX],
    /// Bytes of a piece.
    piece: u64,
    /// Pieces still to post; an empty message has one.
    pieces: u64,
}

/// The result of an attempt to post.
enum PostAttempt {
    Posted,
    /// The link is unusable.
    Lost,
}

const NOWHERE: RemoteRegion = RemoteRegion { key: 0, addr: 0 };

impl MultiLink {
    pub(crate) fn new() -> Result<Self, OutOfMemory> {
        let aim = StripeTarget { receive: 0, places: [NOWHERE; LINKS_MAX], piece: 0, pieces: 0 };
        Ok(Self {
            spread: LinkBalancer::new(),
            flights: InFlightOps::default(),
            again: VecDeque::new(),
            proofs: ArrivalProofs::default(),
            aims: try_filled(aim, SENDS_MAX)?,
            fins: [NOWHERE; LINKS_MAX],
            now: Instant::default(),
        })
    }

    /// Returns whether operations are in flight or wait.
    pub(crate) fn has_unfinished(&self) -> bool {
        self.flights.len() > 0 || !self.again.is_empty()
    }

    /// Returns whether operations wait for a link.
    pub(crate) fn has_waiting(&self) -> bool {
        !self.again.is_empty()
    }

    /// Drops all operations in flight, because the peer has received all of them.
    pub(crate) fn clear_in_flight(&mut self) {
        self.flights.clear();
        self.again.clear();
        self.proofs = ArrivalProofs::default();
    }
}

impl SendLane {
    /// Starts a message over several links; false means not yet.
    pub(crate) fn start_spread(
        &mut self,
        rails: &mut GroupRails<impl Rail>,
        slot: u16,
        message: SendMessage,
    ) -> Result<bool, CommFault> {
        self.count_eager(rails, message.len);
        let view = MailboxView(self.mailbox.memory_and_offset());
        let decided = self.sender.on_isend(&view, message.tag, message.len);
        self.settle_eager(rails);
        // A second view, because settling credits needs the lane exclusively in between.
        let view = MailboxView(self.mailbox.memory_and_offset());
        match decided? {
            SendDecision::NotYet => return Ok(false),
            SendDecision::Eager(header) => {
                self.track_message(slot, message);
                // The whole message is in one operation, so no piece remains for `post_pieces`.
                self.outgoing[slot as usize].given = message.len;
                self.post_or_queue(
                    rails,
                    MessageOp { slot, cargo: OpPayload::Eager(header), offset: 0, len: message.len },
                )?;
            }
            SendDecision::Direct(cts) => {
                let others =
                    // The first line of a record contains the place on path 0 only.
                    self.sender.other_links(&view, &cts).map_or([NOWHERE; 3], |others| others.places);
                self.track_message(slot, message);
                self.plan_stripes(rails, slot, message, &cts, others)?;
            }
        }
        if !rails.burst {
            rails.flush();
            rails.burst = true;
        }
        Ok(true)
    }

    fn plan_stripes(
        &mut self,
        rails: &mut GroupRails<impl Rail>,
        slot: u16,
        message: SendMessage,
        cts: &CtsRecord,
        [one, two, three]: [RemoteRegion; LINKS_MAX - 1],
    ) -> Result<(), CommFault> {
        let Some(many) = &mut self.many else { return Ok(()) };
        // A member's pieces are bounded as its slices are on a single link.
        let most = if self.part.remote.is_some() { SLICE_MAX } else { u64::MAX };
        // Over one rail a message is not split, unless the plan requests it.
        let least = if self.plan.split || rails.len() > 1 { self.plan.stripe_min } else { u64::MAX };
        let (count, piece) = many.spread.plan_pieces(message.len, least, self.plan.message_max.min(most));
        let first = RemoteRegion { key: cts.key, addr: cts.addr };
        many.aims[slot as usize] =
            StripeTarget { receive: cts.number, places: [first, one, two, three], piece, pieces: count };
        let outgoing = &mut self.outgoing[slot as usize];
        // Kept with the request, because the fin record and the stripes name the buffer by it.
        outgoing.token = cts.token;
        let whole = if !self.plan.write_data {
            None
        } else if message.len == cts.len {
            Some(WriteImmediate::Full(cts.token))
        } else {
            self.plan.remote_len.then_some(WriteImmediate::Whole(cts.token))
        };
        if let (1, Some(imm)) = (count, whole) {
            outgoing.given = message.len;
            let cargo = OpPayload::Bytes { imm: Some(imm.to_bits()), part: MessagePart::Bytes };
            return self.post_or_queue(rails, MessageOp { slot, cargo, offset: 0, len: message.len });
        }
        // More pieces than stripe numbers, or no immediates: the fin record has to follow the
        // arrival of all.
        let later = count > STRIPES_MAX as u64 || !self.plan.write_data;
        outgoing.fin = if later { FinDue::Placed } else { FinDue::Now(count as u8) };
        self.unposted.push_back(slot);
        self.post_spread(rails)
    }

    /// Posts an operation, or queues it until there is credit.
    fn post_or_queue(
        &mut self,
        rails: &mut GroupRails<impl Rail>,
        flight: MessageOp,
    ) -> Result<(), CommFault> {
        self.outgoing[flight.slot as usize].left += 1;
        if !self.post_on_best_path(rails, flight)?
            && let Some(many) = &mut self.many
        {
            many.again.push_back(flight);
        }
        Ok(())
    }

    /// Posts an operation on the path that will complete it first; false if no path accepts it now.
    fn post_on_best_path(
        &mut self,
        rails: &mut GroupRails<impl Rail>,
        flight: MessageOp,
    ) -> Result<bool, CommFault> {
        // Each failed attempt removes one link, so the number of links bounds the attempts.
        for _ in 0..LINKS_MAX {
            let Some(many) = &mut self.many else { return Ok(false) };
            let paths = &self.paths;
            let proofs = &many.proofs;
            let arrives = self.plan.arrives;
            // A path with too many unproven operations takes no more, because its table is bounded.
            let takes = |at| paths.path_credits(rails, at) > 0 && (arrives || proofs.has_room(at));
            let may = |at| at < paths.len() && takes(at);
            let Some(path) = many.spread.best_link(flight.len, many.now, may) else { return Ok(false) };
            let long = self.part.remote.is_some() && flight.len > SMALL_MAX;
            if long && !rails.slices.try_take(self.part.slices) {
                return Ok(false);
            }
            self.part.slices += u32::from(long);
            // Recorded before the post, because the record's number is the operation's `wr_id`.
            let number = many.flights.insert(PostedOp { flight, path, at: many.now, told: None });
            match self.post_flight(rails, path, number, flight)? {
                PostAttempt::Posted => {
                    let Some(many) = &mut self.many else { return Ok(true) };
                    many.spread.on_posted(path, flight.len, many.now);
                    return Ok(true);
                }
                PostAttempt::Lost => {
                    let Some(many) = &mut self.many else { return Ok(false) };
                    many.flights.remove(number);
                    self.end_slice(rails, flight.len);
                    // Leaving the path makes the balancer choose another one in the next round.
                    self.drain_path(rails, path);
                }
            }
        }
        Ok(false)
    }

    fn post_flight(
        &mut self,
        rails: &mut GroupRails<impl Rail>,
        path: usize,
        number: u64,
        flight: MessageOp,
    ) -> Result<PostAttempt, CommFault> {
        let MessageOp { slot, cargo, offset, len } = flight;
        let outgoing = self.outgoing[slot as usize];
        let &LinkPath { rail, link, .. } = self.paths.get(path);
        let mut buffer = [0; INLINE_MAX];
        let (head, fin, message_of);
        let head_len = if matches!(cargo, OpPayload::Eager(_)) { self.part.header_len() } else { 0 };
        // The extent is found for each post, because the region's key depends on the rail.
        let message = SendMessage { mr: outgoing.mr, offset: outgoing.offset + offset, len, tag: 0 };
        let body = match self.copy_inline(message, head_len, &mut buffer) {
            Some(bytes) => OpSource::Inline(&bytes[head_len..]),
            None => match self.regions.find_extent(outgoing.mr, rail, outgoing.offset + offset, len) {
                Some((_, extent)) => OpSource::Region(extent),
                None => return Err(CommFault::Revoked),
            },
        };
        let Some(many) = &self.many else { return Ok(PostAttempt::Lost) };
        let op = match cargo {
            OpPayload::Eager(header) => {
                head = self.part.eager_head(header);
                Op::Send { head: &head[..head_len], body, imm: None }
            }
            OpPayload::Bytes { imm, .. } => {
                // The buffer has a different key and address on each path.
                let RemoteRegion { key, addr } = many.aims[slot as usize].places[path];
                let to = RemoteLocation::for_data(key, addr.wrapping_add(offset));
                Op::Write { from: body, to, imm }
            }
            OpPayload::Fin(stripes) if !self.plan.write_data => {
                message_of = FinRecord { len: outgoing.len, stripes, token: outgoing.token }.to_message();
                Op::Send { head: &message_of, body: OpSource::Inline(&[]), imm: None }
            }
            OpPayload::Fin(stripes) => {
                let token = outgoing.token;
                fin = FinRecord { len: outgoing.len, stripes, token }.to_bytes();
                let RemoteRegion { key, addr } = many.fins[path];
                let place = token.slot() & self.part.fin_mask;
                let at = addr.wrapping_add((place * fin::BYTES) as u64);
                let to = RemoteLocation::for_records(key, at);
                Op::Write {
                    from: OpSource::Inline(&fin),
                    to,
                    imm: Some(WriteImmediate::Fin(token).to_bits()),
                }
            }
        };
        match rails.get_mut(rail).post(link, self.part.tag | number, op, true) {
            Ok(()) => Ok(PostAttempt::Posted),
            // Credit was checked before, so a link without credit is broken.
            Err(PostError::Busy | PostError::Refused(OpStatus::Flushed | OpStatus::PeerDead)) => {
                Ok(PostAttempt::Lost)
            }
            Err(PostError::Refused(status)) => Err(CommFault::Link(status)),
        }
    }

    /// Posts the operations that wait, as far as there is credit.
    pub(crate) fn post_spread(&mut self, rails: &mut GroupRails<impl Rail>) -> Result<(), CommFault> {
        // First, because a proof may free the room that the queue waits for.
        if !self.plan.arrives {
            self.post_proofs(rails);
        }
        // Lost operations first, because messages after them must not overtake the repetition.
        while let Some(flight) = self.many.as_mut().and_then(|many| many.again.pop_front()) {
            if !self.post_on_best_path(rails, flight)? {
                if let Some(many) = &mut self.many {
                    // Back to the front, to keep the order.
                    many.again.push_front(flight);
                }
                return Ok(());
            }
        }
        while let Some(&slot) = self.unposted.front() {
            if !self.post_pieces(rails, slot)? {
                return Ok(());
            }
            self.unposted.pop_front();
        }
        Ok(())
    }

    /// Posts the stripes of one message that can be posted now; false when credit ran out.
    fn post_pieces(&mut self, rails: &mut GroupRails<impl Rail>, slot: u16) -> Result<bool, CommFault> {
        loop {
            let outgoing = self.outgoing[slot as usize];
            let (piece, pieces) = self.many.as_ref().map_or((1, 0), |many| {
                let StripeTarget { piece, pieces, .. } = many.aims[slot as usize];
                (piece, pieces)
            });
            let striped = outgoing.is_striped();
            let more = pieces > 0;
            let flight = if more {
                let len = (outgoing.len - outgoing.given).min(piece);
                let index = (outgoing.given / piece) as u8;
                let cargo = match striped {
                    true => OpPayload::Bytes {
                        imm: Some(WriteImmediate::Stripe(outgoing.token, index).to_bits()),
                        part: MessagePart::Stripe(index),
                    },
                    false => OpPayload::Bytes { imm: None, part: MessagePart::Bytes },
                };
                MessageOp { slot, cargo, offset: outgoing.given, len }
            } else {
                let stripes = match outgoing.fin {
                    FinDue::No => return Ok(true),
                    FinDue::Now(stripes) => stripes,
                    // Counts stripes without proof of arrival, too. The last proof queues the request again.
                    FinDue::Placed | FinDue::Proven if outgoing.left > 0 => return Ok(true),
                    FinDue::Placed | FinDue::Proven => 0,
                };
                MessageOp { slot, cargo: OpPayload::Fin(stripes), offset: 0, len: 0 }
            };
            if !self.post_on_best_path(rails, flight)? {
                return Ok(false);
            }
            let outgoing = &mut self.outgoing[slot as usize];
            outgoing.left += 1;
            match &mut self.many {
                Some(many) if more => {
                    outgoing.given += flight.len;
                    many.aims[slot as usize].pieces -= 1;
                }
                // Posted: nothing of the request is left for this loop.
                _ => outgoing.fin = FinDue::No,
            }
        }
    }

    /// Sets the time for this call, which reads the clock once.
    pub(crate) fn set_time(&mut self, now: Instant) {
        if let Some(many) = &mut self.many {
            many.now = now;
        }
    }

    /// Marks a path as usable; `speed` in megabits per second and `latency` in nanoseconds, as far as its NIC reports them.
    pub(crate) fn link_up(&mut self, path: usize, speed: u64, latency: u64, now: Instant) {
        if let Some(many) = &mut self.many {
            many.spread.mark_up(path, speed, latency, now);
        }
    }

    /// Returns the region for fin records over a path.
    pub(crate) fn fins_of(&self, path: usize) -> Option<RemoteRegion> {
        self.many.as_ref().map(|many| many.fins[path])
    }

    /// Sets the region for fin records over a path, as the peer announced it.
    pub(crate) fn set_fins(&mut self, path: usize, fins: RemoteRegion) {
        if let Some(many) = &mut self.many {
            many.fins[path] = fins;
        }
    }

    /// Handles the completion of an operation.
    pub(crate) fn on_op_completed(
        &mut self,
        rails: &mut GroupRails<impl Rail>,
        requests: &RequestTable,
        number: u64,
    ) -> Result<(), CommFault> {
        if !self.plan.arrives {
            return self.on_unproven_completion(rails, requests, number);
        }
        let Some(many) = &mut self.many else { return Ok(()) };
        let Some(PostedOp { flight, path, at, .. }) = many.flights.remove(number) else { return Ok(()) };
        // The balancer learns the speed of a path from each operation's time.
        let now = many.now;
        many.spread.on_done(path, flight.len, at, now);
        self.end_slice(rails, flight.len);
        // Counted on the request only now, because before, its bytes might have been needed for a repetition.
        self.on_op_arrived(requests, flight.slot);
        self.post_spread(rails)
    }

    /// Handles a completion that does not show arrival, or that proves the arrival of earlier operations.
    fn on_unproven_completion(
        &mut self,
        rails: &mut GroupRails<impl Rail>,
        requests: &RequestTable,
        number: u64,
    ) -> Result<(), CommFault> {
        // Proofs have numbers above those of operations.
        let path = number.wrapping_sub(PROOF) as usize;
        if path < self.paths.len() {
            return self.on_path_proven(rails, requests, path);
        }
        let Some(many) = &mut self.many else { return Ok(()) };
        let Some(posted) = many.flights.uncompleted_op(number) else { return Ok(()) };
        let PostedOp { flight, path, at, .. } = *posted;
        let slot = usize::from(flight.slot);
        // The request's slot may be reused before the proof completes, so the receive and its token
        // are stored here.
        posted.told = Some((many.aims[slot].receive, self.outgoing[slot].token));
        let now = many.now;
        many.spread.on_done(path, flight.len, at, now);
        let waits = flight.is_announced_later();
        many.proofs.add_completed(path, number, waits);
        self.end_slice(rails, flight.len);
        // Its request may be done now, although a loss would then only be detected, not repaired.
        if !waits {
            self.on_op_arrived(requests, flight.slot);
        }
        self.post_spread(rails)
    }

    /// Returns the slice credit of a piece that has ended.
    fn end_slice(&mut self, rails: &mut GroupRails<impl Rail>, len: u64) {
        if self.part.remote.is_some() && len > SMALL_MAX {
            self.part.slices = self.part.slices.saturating_sub(1);
            rails.slices.return_credits(1);
        }
    }

    pub(crate) fn on_op_arrived(&mut self, requests: &RequestTable, slot: u16) {
        let outgoing = &mut self.outgoing[slot as usize];
        outgoing.left = outgoing.left.saturating_sub(1);
        self.end_wait(slot);
        if !self.unposted.contains(&slot) {
            self.finish_if_done(requests, slot);
        }
    }

    /// Starts to drain an unusable path: no new operation is posted on it, and its outstanding completions are awaited.
    pub(crate) fn drain_path(&mut self, rails: &mut GroupRails<impl Rail>, path: usize) {
        if let Some(many) = &mut self.many {
            many.spread.mark_down(path);
        }
        self.paths.start_drain(rails, path, None);
    }

    /// Handles the receiver's report after both ends of a path are in error: operations that have not arrived are posted again.
    pub(crate) fn repost_lost_ops(
        &mut self,
        rails: &mut GroupRails<impl Rail>,
        requests: &RequestTable,
        path: usize,
        standing: Option<&DeliveryReport>,
    ) -> Result<(), CommFault> {
        // A receiver has to report; without a report, lost and arrived operations are not
        // distinguishable.
        let Some(standing) = standing else { return Err(MessageFault::Standing.into()) };
        if let Some(many) = &mut self.many {
            // The report replaces the proofs of this path.
            many.proofs.forget_path(path);
        }
        let mut lost = false;
        while let Some(many) = &mut self.many
            && let Some(PostedOp { flight, told, .. }) = many.flights.remove_of(path)
        {
            // A completed operation stored its receive, because its request may belong to another
            // message by now.
            let own = (many.aims[flight.slot as usize].receive, self.outgoing[flight.slot as usize].token);
            let (receive, token) = told.unwrap_or(own);
            let arrived = flight.has_arrived(standing, receive, token);
            // Its request is done, so its memory belongs to the caller and cannot be sent again.
            let ended = told.is_some() && !flight.is_announced_later();
            lost |= ended && !arrived;
            if !arrived && !ended {
                many.again.push_back(flight);
            }
            // A completed operation has returned its slice credit already.
            if told.is_none() {
                self.end_slice(rails, flight.len);
            }
            if arrived && !ended {
                self.on_op_arrived(requests, flight.slot);
            }
        }
        // A message whose request is done was lost, and its bytes are not kept: only failing the comm
        // reports that.
        if lost {
            return Err(CommFault::Link(OpStatus::Flushed));
        }
        self.post_spread(rails)?;
        rails.flush();
        Ok(())
    }
}
