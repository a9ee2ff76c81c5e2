//! The receiving lane of a comm: announces receives, places eager messages, and turns completions into finished
//! requests. Called with the lane claimed; never waits.

use std::collections::VecDeque;

use trunkline_fabric::{
    Completion, Ctrl, Done, Extent, LinkId, Match, Mr, Op, PostError, Rail, Remote, RemoteKey, Source, Status,
};
use trunkline_proto::limits::{RECV_BUFFERS_MAX, RECVS_MAX, TOKENS_MAX};
use trunkline_proto::wire::cts::{self, Cts};
use trunkline_proto::wire::eager::{self, Eager};
use trunkline_proto::wire::fin::{self, Fin};
use trunkline_proto::wire::frame::Region;
use trunkline_proto::wire::imm::{Imm, Token};
use trunkline_proto::xfer::Fault;
use trunkline_proto::xfer::receiver::{Arrival, Receiver, RecvId};

use crate::plan::Plan;
use crate::regions::{NO_MR, Regions};
use crate::request::{Requests, Ticket};
use crate::{CommFault, MrId, RecvBuf};

/// `wr_id`s: bounce buffers count from 0, matched receives carry their token, flushes their request.
const MATCHED: u64 = 1 << 32;
const FLUSH: u64 = 2 << 32;

/// The lane.
pub(crate) struct RecvLane<R: Rail> {
    pub(crate) rail: R,
    pub(crate) link: LinkId,
    pub(crate) plan: Plan,
    pub(crate) regions: Regions,
    /// Apart, because it is large, and comms that send would have room for it too.
    receiver: Box<Receiver>,
    /// The sender's mailbox.
    mailbox: Region,
    bounce: Mr<Ctrl>,
    fins: Mr<Ctrl>,
    cursor: u16,
    places: Box<[Place]>,
    /// Request slots by receive.
    requests: [u16; RECVS_MAX],
    /// Requests of flushes to post.
    flushes: VecDeque<u16>,
    /// Flushes that have not completed.
    flushing: u32,
    /// Buffers of matched receives to post.
    matched_due: VecDeque<Token>,
    /// Immediates that named nothing that waits.
    pub(crate) dropped: u64,
    /// Messages that have arrived, in a buffer of a receive or not.
    pub(crate) arrived: u64,
    /// The peer is gone: only what it sent before can still be received.
    pub(crate) gone: bool,
}

#[derive(Clone, Copy)]
struct Place {
    mr: MrId,
    offset: u64,
    len: u64,
    tag: u32,
}

/// Bytes of a bounce buffer.
pub(crate) fn bounce_bytes(plan: &Plan) -> usize {
    (plan.eager_max as usize + eager::BYTES).next_multiple_of(64)
}

/// Bytes of the fin mailbox.
pub(crate) const FINS_BYTES: usize = TOKENS_MAX * fin::BYTES;

impl<R: Rail> RecvLane<R> {
    pub(crate) fn new(
        rail: R,
        link: LinkId,
        plan: Plan,
        receiver: Receiver,
        mailbox: Region,
        (bounce, fins): (Mr<Ctrl>, Mr<Ctrl>),
        regions_max: usize,
    ) -> Self {
        Self {
            rail,
            link,
            plan,
            regions: Regions::new(regions_max),
            receiver: Box::new(receiver),
            mailbox,
            bounce,
            fins,
            cursor: 0,
            places: vec![Place { mr: NO_MR, offset: 0, len: 0, tag: 0 }; TOKENS_MAX].into(),
            requests: [0; RECVS_MAX],
            flushes: VecDeque::with_capacity(RECVS_MAX),
            flushing: 0,
            matched_due: VecDeque::with_capacity(TOKENS_MAX),
            dropped: 0,
            arrived: 0,
            gone: false,
        }
    }

    pub(crate) fn fins(&self) -> Region {
        let keys = self.fins.keys();
        Region { key: keys.remote.0, addr: keys.remote_base }
    }

    /// Posts the bounce buffers, once.
    pub(crate) fn post_bounces(&mut self) -> Result<(), CommFault> {
        if self.plan.matched || self.plan.eager_max == 0 || self.plan.eager_credits == 0 {
            return Ok(());
        }
        for bounce in 0..self.plan.bounces {
            self.post_bounce(bounce)?;
        }
        Ok(())
    }

    fn post_bounce(&mut self, bounce: u32) -> Result<(), CommFault> {
        if self.gone {
            return Ok(());
        }
        let bytes = bounce_bytes(&self.plan) as u64;
        let into = self.bounce.extent(u64::from(bounce) * bytes, bytes);
        self.post(u64::from(bounce), Op::Recv { into }, true)
    }

    /// Starts a receive; `None` means not yet.
    #[inline]
    pub(crate) fn irecv(
        &mut self,
        requests: &Requests,
        buffers: &[RecvBuf],
    ) -> Result<Option<Ticket>, CommFault> {
        // Every buffer is announced at once: an eager message may end the receive before there is credit again.
        let announced = !self.gone && !self.plan.matched;
        let blind = self.plan.mutant.is("engine-receives-without-credit");
        if announced && !blind && self.rail.credits(self.link) < buffers.len() as u32 {
            return Ok(None);
        }
        let Some(ticket) = requests.reserve(&mut self.cursor) else { return Ok(None) };
        let slot = ticket.slot();
        let Some(id) = self.receiver.on_irecv(buffers.iter().map(|b| (b.tag, b.len))) else {
            requests.cancel(slot);
            return Ok(None);
        };
        requests.row.begun(buffers.len());
        self.requests[id.0] = slot;
        for (index, buffer) in buffers.iter().enumerate() {
            let RecvBuf { mr, offset, len, tag } = *buffer;
            self.places[id.0 * RECV_BUFFERS_MAX + index] = Place { mr, offset, len, tag };
            self.regions.hold(mr);
        }
        if self.plan.matched {
            self.post_matched(id, buffers.len())?;
        } else {
            self.announce(id, buffers.len())?;
            self.deliver(requests)?;
        }
        // A small message comes without having been asked for: its record has time until the next poll, and leaves with
        // what else is posted then.
        let eager = u64::from(self.plan.eager_max);
        let urgent = self.plan.matched || buffers.iter().any(|buffer| buffer.len > eager);
        if urgent && !self.plan.mutant.is("engine-keeps-announcements") {
            self.rail.flush();
        }
        Ok(Some(ticket))
    }

    fn post_matched(&mut self, id: RecvId, count: usize) -> Result<(), CommFault> {
        for index in 0..count {
            self.matched_due.push_back(self.receiver.announcement(id, index).1);
        }
        self.post_matched_due()
    }

    /// Posts matched receives in order, as far as the NIC takes them.
    fn post_matched_due(&mut self) -> Result<(), CommFault> {
        while let Some(&token) = self.matched_due.front() {
            let Place { mr, offset, len, tag } = self.places[token.slot()];
            let into = self.extent(mr, offset, len)?;
            let op = Op::MatchedRecv { into, key: Match(u64::from(tag)) };
            match self.rail.post(self.link, MATCHED | u64::from(token.to_bits()), op, true) {
                Ok(()) => self.matched_due.pop_front(),
                Err(PostError::Busy) => return Ok(()),
                Err(PostError::Refused(_)) if self.gone => return Ok(()),
                Err(PostError::Refused(status)) => return Err(CommFault::Link(status)),
            };
        }
        Ok(())
    }

    fn extent(&self, mr: MrId, offset: u64, len: u64) -> Result<Extent, CommFault> {
        self.regions.find(mr, offset, len).map(|(_, extent)| extent).ok_or(CommFault::Revoked)
    }

    #[inline]
    fn post(&mut self, wr_id: u64, op: Op<'_>, signalled: bool) -> Result<(), CommFault> {
        match self.rail.post(self.link, wr_id, op, signalled) {
            Ok(()) => Ok(()),
            // The link has ended; what arrived before is still to be given out.
            Err(PostError::Refused(Status::Flushed)) => {
                self.gone = true;
                Ok(())
            }
            // Credit was checked before; a link that has none all the same is broken.
            Err(PostError::Busy) => Err(CommFault::Link(Status::Flushed)),
            Err(PostError::Refused(status)) => Err(CommFault::Link(status)),
        }
    }

    /// Writes the clear-to-send records of a receive.
    #[inline]
    fn announce(&mut self, id: RecvId, count: usize) -> Result<(), CommFault> {
        if self.gone {
            return Ok(());
        }
        for index in 0..count {
            let (number, token, count) = self.receiver.announcement(id, index);
            let Place { mr, offset, len, tag } = self.places[token.slot()];
            let Some(mr) = self.regions.mr(mr) else { return Err(CommFault::Revoked) };
            let keys = mr.keys();
            let narrow = self.plan.mutant.is("engine-narrow-offsets");
            let offset = if narrow { u64::from(offset as u32) } else { offset };
            let addr = keys.remote_base.wrapping_add(offset);
            let keys = [keys.remote.0, 0, 0];
            let record = Cts { number, index: index as u8, count, addr, len, tag, token, keys };
            let at = self.mailbox.addr.wrapping_add(cts::offset(number, index));
            let to = Remote { key: RemoteKey(self.mailbox.key), addr: at };
            let op = Op::Write { from: Source::Inline(&record.to_bytes()), to, imm: None };
            self.post(0, op, false)?;
        }
        Ok(())
    }

    /// Copies eager messages whose buffers are known.
    #[inline]
    fn deliver(&mut self, requests: &Requests) -> Result<(), CommFault> {
        while let Some(delivery) = self.receiver.next_delivery()? {
            let Place { mr, offset, .. } = self.places[delivery.token.slot()];
            let at = u64::from(delivery.bounce) * bounce_bytes(&self.plan) as u64 + eager::BYTES as u64;
            let copied = self.regions.mr(mr).is_some_and(|mr| {
                mr.memory().copy_from(offset, self.bounce.memory(), at, u64::from(delivery.len)).is_ok()
            });
            if !copied {
                return Err(CommFault::Revoked);
            }
            if !self.plan.mutant.is("engine-keeps-bounce-buffers") {
                self.post_bounce(delivery.bounce)?;
            }
            let arrival = self.receiver.delivered(&delivery);
            self.on_arrival(requests, arrival);
        }
        Ok(())
    }

    #[inline]
    fn on_arrival(&mut self, requests: &Requests, arrival: Arrival) {
        match arrival {
            Arrival::Partial | Arrival::Filled => {}
            Arrival::Stale => self.dropped += 1,
            Arrival::Done(id) => {
                let (mut sizes, mut count) = ([0; RECV_BUFFERS_MAX], 0);
                self.receiver.finish(id, |index, len| {
                    sizes[index] = len;
                    count = count.max(index + 1);
                });
                let start = id.0 * RECV_BUFFERS_MAX;
                for place in &mut self.places[start..start + count] {
                    self.regions.release(place.mr);
                    place.mr = NO_MR;
                }
                requests.complete_recv(self.requests[id.0], &sizes[..count]);
            }
        }
    }

    /// Starts a flush; `None` means there is nothing to wait for.
    pub(crate) fn iflush(&mut self, requests: &Requests) -> Result<Option<Ticket>, CommFault> {
        if !self.plan.needs_flush || self.plan.mutant.is("engine-skips-flush") {
            return Ok(None);
        }
        // Flushes share the requests of receives, of which there are four times as many as receives.
        let Some(ticket) = requests.reserve(&mut self.cursor) else {
            return Err(CommFault::Link(Status::Other(0)));
        };
        self.flushes.push_back(ticket.slot());
        self.post_due()?;
        Ok(Some(ticket))
    }

    /// Whether a flush has not completed.
    pub(crate) fn flushing(&self) -> bool {
        (self.flushing > 0 || !self.flushes.is_empty()) && !self.plan.mutant.is("engine-flush-needs-peer")
    }

    /// Posts what waited for credit.
    #[inline]
    pub(crate) fn post_due(&mut self) -> Result<(), CommFault> {
        if self.flushes.is_empty() && self.matched_due.is_empty() {
            return Ok(());
        }
        self.post_matched_due()?;
        while let Some(&slot) = self.flushes.front() {
            if self.rail.credits(self.link) == 0 {
                break;
            }
            self.post(FLUSH | u64::from(slot), Op::Flush, true)?;
            self.flushing += 1;
            self.flushes.pop_front();
        }
        self.rail.flush();
        Ok(())
    }

    /// Takes one completion.
    #[inline]
    pub(crate) fn on_completion(
        &mut self,
        requests: &Requests,
        completion: &Completion,
    ) -> Result<(), CommFault> {
        if completion.status != Status::Ok {
            return Err(CommFault::Link(completion.status));
        }
        match completion.done {
            Done::Written => self.on_written(requests, completion),
            Done::Received if completion.wr_id & MATCHED != 0 => {
                let token = Token::from_bits(completion.wr_id as u32);
                let arrival = self.receiver.on_imm(Imm::Whole(token), completion.len)?;
                self.arrived += 1;
                self.on_arrival(requests, arrival);
                Ok(())
            }
            Done::Received => self.on_bounced(requests, completion),
            Done::Posted => {
                if completion.wr_id & FLUSH != 0 {
                    self.flushing = self.flushing.saturating_sub(1);
                    requests.complete(completion.wr_id as u16, &[]);
                }
                Ok(())
            }
        }
    }

    #[inline]
    fn on_written(&mut self, requests: &Requests, completion: &Completion) -> Result<(), CommFault> {
        let bits = completion.imm.unwrap_or(0);
        let Some(imm) = Imm::from_bits(bits) else { return Err(Fault::Immediate(bits).into()) };
        let arrival = if let Imm::Fin(token) = imm {
            let mut record = [0; fin::BYTES];
            let at = (token.slot() * fin::BYTES) as u64;
            match self.fins.memory().read(at, &mut record) {
                Ok(()) => {
                    let record = Fin::from_bytes(&record).map_err(Fault::Fin)?;
                    self.receiver.on_fin(token, record)?
                }
                Err(_) => Arrival::Stale,
            }
        } else {
            self.receiver.on_imm(imm, completion.len)?
        };
        self.arrived += u64::from(matches!(arrival, Arrival::Done(_) | Arrival::Filled));
        self.on_arrival(requests, arrival);
        Ok(())
    }

    fn on_bounced(&mut self, requests: &Requests, completion: &Completion) -> Result<(), CommFault> {
        let at = completion.wr_id.wrapping_mul(bounce_bytes(&self.plan) as u64);
        let mut head = [0; eager::BYTES];
        if self.bounce.memory().read(at, &mut head).is_err() {
            self.dropped += 1;
            return Ok(());
        }
        let header = Eager::from_bytes(&head).map_err(Fault::Eager)?;
        if header.len > self.plan.eager_max {
            return Err(Fault::TooLong { len: header.len.into(), room: self.plan.eager_max.into() }.into());
        }
        self.receiver.on_eager(header, completion.wr_id as u32)?;
        self.arrived += 1;
        self.deliver(requests)
    }
}
