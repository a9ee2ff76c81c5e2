//! The receiving lane of a comm: announces receives, places eager messages, and turns completions into finished
//! requests. Called with the lane claimed; never waits.

use std::collections::VecDeque;

use trunkline_fabric::{
    Completion, Ctrl, Done, Extent, LinkAddress, LinkError, Match, Mr, Op, PostError, Rail, Remote,
    RemoteKey, Source, Status,
};
use trunkline_proto::limits::{
    EAGER_CREDITS_MAX, LINKS_MAX, MAILBOX_SLOTS, RECV_BUFFERS_MAX, RECVS_MAX, SENDS_MAX, TOKENS_MAX,
};
use trunkline_proto::wire::cts::{self, Cts, Lines, Others};
use trunkline_proto::wire::eager::{self, Eager};
use trunkline_proto::wire::fin::{self, Fin};
use trunkline_proto::wire::frame::Region;
use trunkline_proto::wire::imm::{Imm, Token};
use trunkline_proto::wire::standing::Standing;
use trunkline_proto::xfer::Fault;
use trunkline_proto::xfer::receiver::{Arrival, Receiver, RecvId};

use crate::path::{NO_LINK, Path, Paths};
use crate::plan::Plan;
use crate::regions::{NO_MR, Regions};
use crate::request::{Requests, Ticket};
use crate::{CommFault, MrId, RecvBuf};

/// `wr_id`s: bounce buffers count from 0, matched receives carry their token, flushes their request.
const MATCHED: u64 = 1 << 32;
const FLUSH: u64 = 2 << 32;
const REPEATED: u64 = 4 << 32;

/// The lane.
pub(crate) struct RecvLane<R: Rail> {
    pub(crate) paths: Paths<R>,
    pub(crate) plan: Plan,
    pub(crate) regions: Regions,
    /// Apart, because it is large, and comms that send would have room for it too.
    receiver: Box<Receiver>,
    /// The sender's mailbox, by path.
    pub(crate) mailboxes: [Region; LINKS_MAX],
    /// By path.
    bounces: Vec<Mr<Ctrl>>,
    /// One memory, registered on each path's rail.
    fins: Vec<Mr<Ctrl>>,
    cursor: u16,
    places: Box<[Place]>,
    /// Request slots by receive.
    requests: [u16; RECVS_MAX],
    /// Requests of flushes to post.
    flushes: VecDeque<u16>,
    /// Flushes that have not completed.
    flushing: u32,
    /// By request, where there are several paths: flushes of it that have not completed.
    flushes_left: Box<[u8]>,
    /// Where there are several paths: receives whose records are still to be written, oldest first; true if they were
    /// written before, over a link that was lost.
    unannounced: VecDeque<(u32, bool)>,
    /// Where there are several paths: the receives whose records the sender may not have read, by number.
    past: Box<[Past]>,
    /// Records written again over each path that have not completed.
    repeated: [u32; LINKS_MAX],
    /// The oldest receive of those.
    oldest: u32,

    /// Buffers of matched receives to post.
    matched_due: VecDeque<Token>,
    /// Immediates that named nothing that waits.
    pub(crate) dropped: u64,
    /// Messages that have arrived, in a buffer of a receive or not.
    pub(crate) arrived: u64,
    /// The peer is gone: only what it sent before can still be received.
    pub(crate) gone: bool,
}

/// What the sender has to know of a receive although it may be done: its eager messages are paired by it.
#[derive(Clone, Copy)]
struct Past {
    count: u8,
    /// Over which its records were written last.
    path: u8,
    tags: [u32; RECV_BUFFERS_MAX],
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
        paths: Paths<R>,
        plan: Plan,
        receiver: Receiver,
        mailbox: Region,
        (bounces, fins): (Vec<Mr<Ctrl>>, Vec<Mr<Ctrl>>),
        regions_max: usize,
    ) -> Self {
        let many = usize::from(paths.are_many());
        let flushes_left = vec![0; SENDS_MAX * many];
        let past = vec![Past { count: 0, path: 0, tags: [0; RECV_BUFFERS_MAX] }; MAILBOX_SLOTS * many];
        Self {
            paths,
            plan,
            regions: Regions::new(regions_max),
            receiver: Box::new(receiver),
            mailboxes: [mailbox; LINKS_MAX],
            bounces,
            fins,
            cursor: 0,
            places: vec![Place { mr: NO_MR, offset: 0, len: 0, tag: 0 }; TOKENS_MAX].into(),
            requests: [0; RECVS_MAX],
            flushes: VecDeque::with_capacity(RECVS_MAX),
            flushing: 0,
            flushes_left: flushes_left.into(),
            unannounced: VecDeque::new(),
            past: past.into(),
            repeated: [0; LINKS_MAX],
            oldest: 0,
            matched_due: VecDeque::with_capacity(TOKENS_MAX),
            dropped: 0,
            arrived: 0,
            gone: false,
        }
    }

    /// Where fin records go over a path.
    pub(crate) fn fins(&self, path: usize) -> Region {
        let keys = self.fins[path].keys();
        Region { key: keys.remote.0, addr: keys.remote_base }
    }

    /// Posts the bounce buffers of a path, once for each of its links.
    pub(crate) fn post_bounces(&mut self, path: usize) -> Result<(), CommFault> {
        if self.plan.matched || self.plan.eager_max == 0 || self.plan.eager_credits == 0 {
            return Ok(());
        }
        for bounce in 0..self.plan.bounces {
            self.post_bounce(path as u32 * self.plan.bounces + bounce)?;
        }
        Ok(())
    }

    /// The path of a bounce buffer, and which of that path's it is.
    #[inline]
    fn bounce(&self, bounce: u32) -> (usize, u64) {
        if !self.paths.are_many() {
            return (0, u64::from(bounce));
        }
        let each = self.plan.bounces.max(1);
        ((bounce / each) as usize, u64::from(bounce % each))
    }

    #[inline]
    fn post_bounce(&mut self, bounce: u32) -> Result<(), CommFault> {
        if self.gone {
            return Ok(());
        }
        let (path, index) = self.bounce(bounce);
        let bytes = bounce_bytes(&self.plan) as u64;
        let Some(memory) = self.bounces.get(path) else { return Ok(()) };
        let into = memory.extent(index * bytes, bytes);
        self.post(path, u64::from(bounce), Op::Recv { into }, true)
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
        let many = self.paths.are_many();
        if announced && !many && !blind && self.paths.lead_credits() < buffers.len() as u32 {
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
        } else if many {
            self.announce_later(id, buffers);
            self.announce_due()?;
            self.deliver(requests)?;
        } else {
            self.announce(id, buffers.len())?;
            self.deliver(requests)?;
        }
        // A small message comes without having been asked for: its record has time until the next poll, and leaves with
        // what else is posted then.
        let eager = u64::from(self.plan.eager_max);
        let urgent = self.plan.matched || buffers.iter().any(|buffer| buffer.len > eager);
        if urgent && !self.plan.mutant.is("engine-keeps-announcements") {
            self.paths.flush();
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
            let (rail, link) = self.paths.leader();
            match rail.post(link, MATCHED | u64::from(token.to_bits()), op, true) {
                Ok(()) => self.matched_due.pop_front(),
                Err(PostError::Busy) => return Ok(()),
                Err(PostError::Refused(_)) if self.gone => return Ok(()),
                Err(PostError::Refused(status)) => return Err(CommFault::Link(status)),
            };
        }
        Ok(())
    }

    fn extent(&self, mr: MrId, offset: u64, len: u64) -> Result<Extent, CommFault> {
        self.regions.find(mr, 0, offset, len).map(|(_, extent)| extent).ok_or(CommFault::Revoked)
    }

    #[inline]
    fn post(&mut self, path: usize, wr_id: u64, op: Op<'_>, signalled: bool) -> Result<(), CommFault> {
        let Path { rail, link, .. } = self.paths.get_mut(path);
        match rail.post(*link, wr_id, op, signalled) {
            Ok(()) => Ok(()),
            Err(PostError::Busy | PostError::Refused(Status::Flushed)) if self.paths.are_many() => {
                self.lose(path);
                Ok(())
            }
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
            self.announce_one(0, id, index, 0, false)?;
        }
        Ok(())
    }

    #[inline]
    fn announce_one(
        &mut self,
        path: usize,
        id: RecvId,
        index: usize,
        wr_id: u64,
        signalled: bool,
    ) -> Result<(), CommFault> {
        let (number, token, count) = self.receiver.announcement(id, index);
        let Place { mr, offset, len, tag } = self.places[token.slot()];
        let narrow = self.plan.mutant.is("engine-narrow-offsets");
        let offset = if narrow { u64::from(offset as u32) } else { offset };
        let Some(Region { key, addr }) = self.place_on(0, mr, offset) else { return Err(CommFault::Revoked) };
        let record = Cts { number, index: index as u8, count, addr, len, tag, token, key };
        if self.paths.are_many() {
            let place = |path| self.place_on(path, mr, offset).unwrap_or(Region { key: 0, addr: 0 });
            let others = Others { number, index: index as u8, places: [place(1), place(2), place(3)] };
            return self.write_record(path, &record, &others, wr_id, signalled);
        }
        let at = self.mailboxes[0].addr.wrapping_add(cts::offset(number, index, Lines::One));
        let to = Remote { key: RemoteKey(self.mailboxes[0].key), addr: at };
        let op = Op::Write { from: Source::Inline(&record.to_bytes()), to, imm: None };
        self.post(0, wr_id, op, signalled)
    }

    /// Where a buffer lies on the rail of a path.
    #[inline]
    fn place_on(&self, path: usize, mr: MrId, offset: u64) -> Option<Region> {
        let keys = self.regions.mr(mr, path)?.keys();
        Some(Region { key: keys.remote.0, addr: keys.remote_base.wrapping_add(offset) })
    }

    /// Copies eager messages whose buffers are known.
    #[inline]
    fn deliver(&mut self, requests: &Requests) -> Result<(), CommFault> {
        while let Some(delivery) = self.receiver.next_delivery()? {
            let Place { mr, offset, .. } = self.places[delivery.token.slot()];
            let (path, index) = self.bounce(delivery.bounce);
            let at = index * bounce_bytes(&self.plan) as u64 + eager::BYTES as u64;
            let bounce = self.bounces[path].memory();
            let copied = self
                .regions
                .mr(mr, 0)
                .is_some_and(|mr| mr.memory().copy_from(offset, bounce, at, u64::from(delivery.len)).is_ok());
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
        if self.flushes.is_empty() && self.matched_due.is_empty() && self.unannounced.is_empty() {
            return Ok(());
        }
        self.post_matched_due()?;
        self.announce_due()?;
        while let Some(&slot) = self.flushes.front() {
            if !self.post_flushes(slot)? {
                break;
            }
            self.flushes.pop_front();
        }
        self.paths.flush();
        Ok(())
    }

    /// Posts the flushes of a request: one over each link that may have brought bytes. False if there is no credit.
    fn post_flushes(&mut self, slot: u16) -> Result<bool, CommFault> {
        if !self.paths.are_many() {
            if self.paths.lead_credits() == 0 {
                return Ok(false);
            }
            self.post(0, FLUSH | u64::from(slot), Op::Flush, true)?;
            self.flushing += 1;
            return Ok(true);
        }
        let none_left = !self.paths.any_carries();
        let mut used = [false; LINKS_MAX];
        for (at, used) in used.iter_mut().enumerate().take(self.paths.len()) {
            let leads = at == self.paths.lead();
            let path = self.paths.get(at);
            // The peer may use a link before this end has heard that it is up; one that is being left has brought what
            // it has brought.
            *used = path.life.is_up() || path.life.is_joining() || path.leaving.is_some();
            *used |= leads && none_left;
            let works = *used && path.leaving.is_none() && !none_left;
            if works && path.rail.credits(path.link) == 0 {
                return Ok(false);
            }
        }
        self.flushes_left[usize::from(slot)] = 0;
        for at in (0..self.paths.len()).filter(|&at| used[at]) {
            let Path { rail, link, .. } = self.paths.get_mut(at);
            if rail.post(*link, FLUSH | u64::from(slot), Op::Flush, true).is_ok() {
                self.flushing += 1;
                self.flushes_left[usize::from(slot)] += 1;
            }
        }
        Ok(true)
    }

    /// Takes one completion.
    #[inline]
    pub(crate) fn on_completion(
        &mut self,
        requests: &Requests,
        path: usize,
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
                self.on_posted(requests, path, completion.wr_id);
                Ok(())
            }
        }
    }

    /// An operation of ours has completed.
    fn on_posted(&mut self, requests: &Requests, path: usize, wr_id: u64) {
        if wr_id == REPEATED {
            self.repeated[path] = self.repeated[path].saturating_sub(1);
        } else if wr_id & FLUSH != 0 {
            self.flushing = self.flushing.saturating_sub(1);
            let slot = wr_id as u16;
            // Where there is one path, there is one flush.
            let left = self.flushes_left.get_mut(usize::from(slot)).map_or(0, |left| {
                *left = left.saturating_sub(1);
                *left
            });
            if left == 0 {
                requests.complete(slot, &[]);
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
            match self.fins[0].memory().read(at, &mut record) {
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
        let (path, index) = self.bounce(completion.wr_id as u32);
        let at = index.wrapping_mul(bounce_bytes(&self.plan) as u64);
        let mut head = [0; eager::BYTES];
        let read = self.bounces.get(path).map(|bounce| bounce.memory().read(at, &mut head));
        if !matches!(read, Some(Ok(()))) {
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

    /// Whether the peer's end of a link that was lost may still take an older record, which could come to lie where a
    /// new one is.
    fn is_leaving(&self) -> bool {
        self.paths.iter().any(|path| path.leaving.is_some() || path.life.is_fenced())
            && !self.plan.mutant.is("engine-announces-while-leaving")
    }

    /// A path is of no more use: nothing new goes over it, and what it still has to tell is awaited.
    pub(crate) fn lose(&mut self, path: usize) {
        let fences = !self.plan.mutant.is("engine-leaves-without-fence");
        self.paths.leave(path, None, fences);
    }

    /// Both ends of a path are in error: records from receive `next` on may have been lost with it, and are written again.
    pub(crate) fn settle(&mut self, path: usize, next: u32) -> Result<(), CommFault> {
        self.repeated[path] = 0;
        let end = self.receiver.next_number();
        // What the peer said may be old: it has read all but the latest by now, as each that it has not holds a receive
        // or an eager message.
        let behind = end.wrapping_sub(next).min((RECVS_MAX + EAGER_CREDITS_MAX) as u32);
        for number in (1..=behind).map(|at| end.wrapping_sub(at)) {
            let lost = usize::from(self.past[number as usize % MAILBOX_SLOTS].path) == path;
            let waits = self.unannounced.iter().any(|&(known, _)| known == number);
            if lost && !waits && !self.plan.mutant.is("engine-forgets-records") {
                self.unannounced.push_front((number, true));
            }
        }
        let age = |number: u32| end.wrapping_sub(number);
        self.unannounced
            .make_contiguous()
            .sort_unstable_by_key(|&(number, _)| std::cmp::Reverse(age(number)));
        self.post_due()
    }

    /// A receive is to be announced, as soon as that may be.
    fn announce_later(&mut self, id: RecvId, buffers: &[RecvBuf]) {
        let number = self.receiver.announcement(id, 0).0;
        let mut tags = [0; RECV_BUFFERS_MAX];
        for (to, buffer) in tags.iter_mut().zip(buffers) {
            *to = buffer.tag;
        }
        self.past[number as usize % MAILBOX_SLOTS] = Past { count: buffers.len() as u8, path: 0, tags };
        self.unannounced.push_back((number, false));
    }

    /// Writes records that wait, where there are several links.
    fn announce_due(&mut self) -> Result<(), CommFault> {
        while let Some(&(number, again)) = self.unannounced.front() {
            let (lead, slot) = (self.paths.lead(), number as usize % MAILBOX_SLOTS);
            let count = self.past[slot].count;
            let waits = self.is_leaving() || self.is_ahead(number);
            if !self.gone && (waits || self.paths.credits(lead) < u32::from(count)) {
                return Ok(());
            }
            self.unannounced.pop_front();
            if again && self.repeated == [0; LINKS_MAX] {
                self.oldest = number;
            }
            self.past[slot].path = lead as u8;
            for index in 0..if self.gone { 0 } else { count } {
                self.announce_by_number(lead, number, index, again)?;
                self.repeated[lead] += u32::from(again);
            }
        }
        Ok(())
    }

    /// Writes one record. Of a receive that is done only what pairs eager messages with it matters: the sender has used
    /// no buffer of a receive whose record it has not read.
    fn announce_by_number(
        &mut self,
        path: usize,
        number: u32,
        index: u8,
        again: bool,
    ) -> Result<(), CommFault> {
        let wr_id = if again { REPEATED } else { 0 };
        if let Some(id) = self.receiver.outstanding(number) {
            return self.announce_one(path, id, usize::from(index), wr_id, again);
        }
        let Past { count, tags, .. } = self.past[number as usize % MAILBOX_SLOTS];
        let (tag, token) = (tags[usize::from(index)], Token::new(0, 0));
        let record = Cts { number, index, count, addr: 0, len: 0, tag, token, key: 0 };
        let nowhere = Region { key: 0, addr: 0 };
        let others = Others { number, index, places: [nowhere; LINKS_MAX - 1] };
        self.write_record(path, &record, &others, wr_id, again)
    }

    /// Writes both lines of a record into the sender's mailbox.
    fn write_record(
        &mut self,
        path: usize,
        record: &Cts,
        others: &Others,
        wr_id: u64,
        signalled: bool,
    ) -> Result<(), CommFault> {
        let Region { key, addr } = self.mailboxes[path];
        let at = cts::offset(record.number, usize::from(record.index), Lines::Two);
        let to = Remote { key: RemoteKey(key), addr: addr.wrapping_add(at) };
        let mut bytes = [0; 2 * cts::BYTES];
        bytes[..cts::BYTES].copy_from_slice(&record.to_bytes());
        bytes[cts::BYTES..].copy_from_slice(&others.to_bytes());
        self.post(path, wr_id, Op::Write { from: Source::Inline(&bytes), to, imm: None }, signalled)
    }

    /// Whether the record of a receive shares its slot with one that was written again and may still be under way.
    fn is_ahead(&self, number: u32) -> bool {
        self.repeated != [0; LINKS_MAX] && number.wrapping_sub(self.oldest) >= MAILBOX_SLOTS as u32
    }

    /// Makes the link of a path anew, and connects it.
    pub(crate) fn make_link(&mut self, path: usize, peer: LinkAddress) -> Result<(), LinkError> {
        let Path { rail, link, .. } = self.paths.get_mut(path);
        rail.destroy(std::mem::replace(link, NO_LINK));
        *link = rail.create()?;
        let made = *link;
        // A link that takes no receives is lost already, which it will say by itself.
        let _ = self.post_bounces(path);
        self.paths.get_mut(path).rail.connect(made, peer)
    }

    /// What has arrived, for the sender.
    pub(crate) fn standing(&self) -> Standing {
        self.receiver.standing()
    }
}
