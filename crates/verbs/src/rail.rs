//! An open port: its links, what is posted and not yet given to the device, and its completion queue. Posting builds
//! requests in place; `flush` gives them away, one call for each queue pair. Nothing here allocates or locks for a message.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use trunkline_fabric::{
    Caps, Completion, Extent, LinkId, Op, PostError, Rail, RailConfig, Registrar, Remote, Source, Status,
    Wake,
};
use trunkline_proto::time::Duration;
use trunkline_sys::verbs::{Atomic, Rdma, SendWr, SendWrTarget, Sge, wr_opcode};

use crate::VerbsConfig;
use crate::cq::CompletionQueue;
use crate::device::Port;
use crate::error::{NOT_POSTED, Planted, UNSUPPORTED};
use crate::flusher::{Asked, Seat};
use crate::link::{Kind, Link, State};
use crate::queue::Entry;
use crate::register::{VerbsRegistrar, rkey};
use crate::stage::{Bytes, Chain, ROOM, Stage, Work};

/// A queue that has something waiting.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Dirty {
    /// Work of a link.
    Work(u32),
    /// Receives of a link.
    Receives(u32),
}

/// An open port of a device.
pub struct VerbsRail {
    // In the order in which they may go.
    pub(crate) links: Vec<Option<Box<Link>>>,
    pub(crate) flusher: Option<Seat>,
    /// Flushes that have not been told of.
    pub(crate) flushes: u32,
    pub(crate) cq: CompletionQueue,
    /// Completions of links that have ended may still come: there was no memory to take them out.
    pub(crate) leftovers: bool,
    pub(crate) stage: Stage,
    pub(crate) dirty: Vec<Dirty>,
    /// Links that have work or receives which the device did not take.
    pub(crate) refused: Vec<u32>,
    pub(crate) live: u32,
    pub(crate) lives: u64,
    pub(crate) registrar: Arc<VerbsRegistrar>,
    pub(crate) port: Arc<Port>,
    pub(crate) verbs: Arc<VerbsConfig>,
    pub(crate) config: RailConfig,
    pub(crate) caps: Caps,
    /// The immediate of a longer write goes by itself.
    pub(crate) adaptive_above: u64,
    pub(crate) keeps_lent: Planted,
    pub(crate) keeps_leftovers: Planted,
    pub(crate) polls_twice: Planted,
}

/// A request as the operation asks for it.
struct Asks<'a> {
    opcode: u32,
    imm: u32,
    target: SendWrTarget,
    bytes: Payload<'a>,
    /// The immediate follows by itself.
    apart: bool,
    /// Whether it is for a word that is not aligned. Some devices refuse it when it is posted and some when it arrives, so
    /// none is given it.
    astray: bool,
}

/// Its bytes, before heads have a place.
enum Payload<'a> {
    Copied(&'a [u8], &'a [u8]),
    Placed(Sge),
    /// A head that needs a place, and what follows it.
    Headed(&'a [u8], Sge),
}

fn target(to: Remote) -> SendWrTarget {
    let mut target = SendWr::ZERO.wr;
    target.rdma = Rdma { remote_addr: to.addr, rkey: rkey(to.key) };
    target
}

impl VerbsRail {
    #[inline]
    pub(crate) fn link(&self, link: LinkId) -> Option<&Link> {
        self.links.get(link.0 as usize)?.as_deref()
    }

    #[inline]
    fn place(&self, extent: Extent) -> Result<Sge, PostError> {
        if extent.len > self.caps.message_max {
            return Err(PostError::Refused(Status::LocalProtection));
        }
        self.port.device.regions.place(extent).ok_or(PostError::Refused(Status::LocalProtection))
    }

    #[inline]
    fn source<'a>(&self, head: &'a [u8], body: Source<'a>) -> Result<Payload<'a>, PostError> {
        let most = self.caps.inline_max as usize;
        let too_long = PostError::Refused(Status::TooLong);
        if head.len() > most {
            return Err(too_long);
        }
        match body {
            Source::Inline(bytes) if bytes.len() > most => Err(too_long),
            Source::Inline(bytes) => Ok(Payload::Copied(head, bytes)),
            Source::Region(extent) => {
                let sge = self.place(extent)?;
                Ok(match (head.is_empty(), sge.length) {
                    (true, _) => Payload::Placed(sge),
                    (false, 0) => Payload::Copied(head, &[]),
                    (false, _) => Payload::Headed(head, sge),
                })
            }
        }
    }

    /// An operation as the device knows it.
    #[inline]
    fn asks<'a>(&self, op: Op<'a>) -> Result<Asks<'a>, PostError> {
        let unsupported = PostError::Refused(Status::Other(UNSUPPORTED));
        let with = |opcode, imm: Option<u32>, target, bytes| {
            Ok(Asks { opcode, imm: imm.unwrap_or(0), target, bytes, apart: false, astray: false })
        };
        match op {
            Op::Send { head, body, imm } => {
                let opcode = if imm.is_some() { wr_opcode::SEND_WITH_IMM } else { wr_opcode::SEND };
                with(opcode, imm, SendWr::ZERO.wr, self.source(head, body)?)
            }
            Op::Write { from, to, imm } => {
                let opcode =
                    if imm.is_some() { wr_opcode::RDMA_WRITE_WITH_IMM } else { wr_opcode::RDMA_WRITE };
                let asks = with(opcode, imm, target(to), self.source(&[], from)?)?;
                // What is copied goes in one packet.
                let long = matches!(asks.bytes, Payload::Placed(_)) && from.len() > self.adaptive_above;
                Ok(Asks { apart: imm.is_some() && long, ..asks })
            }
            Op::Read { into, from } => {
                let bytes = Payload::Placed(self.place(into)?);
                with(wr_opcode::RDMA_READ, None, target(from), bytes)
            }
            Op::FetchAdd { old, at, add } if self.caps.atomics => {
                self.atomic(wr_opcode::ATOMIC_FETCH_AND_ADD, old, at, (add, 0))
            }
            Op::CompareSwap { old, at, expect, swap } if self.caps.atomics => {
                self.atomic(wr_opcode::ATOMIC_CMP_AND_SWP, old, at, (expect, swap))
            }
            // A write of nothing: devices look at no key then.
            Op::Nop => with(wr_opcode::RDMA_WRITE, None, SendWr::ZERO.wr, Payload::Copied(&[], &[])),
            _ => Err(unsupported),
        }
    }

    fn atomic<'a>(
        &self,
        opcode: u32,
        old: Extent,
        at: Remote,
        (compare_add, swap): (u64, u64),
    ) -> Result<Asks<'a>, PostError> {
        if old.len != 8 {
            return Err(PostError::Refused(Status::LocalProtection));
        }
        let bytes = Payload::Placed(self.place(old)?);
        let to = Atomic { remote_addr: at.addr, compare_add, swap, rkey: rkey(at.key) };
        let target = SendWrTarget { atomic: to };
        let astray = !at.addr.is_multiple_of(8);
        Ok(Asks { opcode, imm: 0, target, bytes, apart: false, astray })
    }

    #[inline]
    fn post_work(&mut self, link: LinkId, wr_id: u64, op: Op<'_>, told: bool) -> Result<(), PostError> {
        let Some(Some(found)) = self.links.get(link.0 as usize) else {
            return Err(PostError::Refused(Status::Flushed));
        };
        if found.state != State::Up {
            return Err(PostError::Refused(Status::Flushed));
        }
        let asks = self.asks(op)?;
        let credits = found.credits();
        if credits == 0 {
            return Err(PostError::Busy);
        }
        if !self.stage.has_room(1 + usize::from(asks.apart)) || asks.astray {
            self.ring_all();
        }
        let asks = if asks.apart { self.add_bytes(link, wr_id, asks) } else { asks };
        let Some(Some(found)) = self.links.get_mut(link.0 as usize) else {
            return Err(PostError::Refused(Status::Flushed));
        };
        let found = &mut **found;
        let is_send = matches!(asks.opcode, wr_opcode::SEND | wr_opcode::SEND_WITH_IMM);
        let (position, signalled) =
            found.queue.push(Entry { wr_id, told, is_send, half: false }, credits == 1);
        let id = Kind::Work.id(link.0, position);
        let work = Work { id, opcode: asks.opcode, imm: asks.imm, target: asks.target, signalled };
        let place = position % found.queue.depth();
        let bytes = match asks.bytes {
            Payload::Copied(one, two) if one.len() + two.len() <= found.inline => Bytes::Copied(one, two),
            Payload::Copied(one, two) => Bytes::Placed(found.staging.copy(place, one, two)),
            Payload::Placed(sge) => Bytes::Placed(sge),
            Payload::Headed(head, sge) => Bytes::Both(found.staging.copy(place, head, &[]), sge),
        };
        if asks.astray {
            found.queue.give();
            found.queue.refused(1);
            self.break_refused(link.0, Status::RemoteAccess);
            return Ok(());
        }
        if found.chain.is_empty() {
            self.dirty.push(Dirty::Work(link.0));
        }
        self.stage.add(&mut found.chain, &work, bytes);
        Ok(())
    }

    /// Adds the bytes of a write whose immediate follows by itself; what is left of it.
    fn add_bytes<'a>(&mut self, link: LinkId, wr_id: u64, asks: Asks<'a>) -> Asks<'a> {
        let Some(Some(found)) = self.links.get_mut(link.0 as usize) else { return asks };
        let entry = Entry { wr_id, told: false, is_send: false, half: true };
        let (position, signalled) = found.queue.push(entry, false);
        let id = Kind::Work.id(link.0, position);
        let work = Work { id, opcode: wr_opcode::RDMA_WRITE, imm: 0, target: asks.target, signalled };
        if found.chain.is_empty() {
            self.dirty.push(Dirty::Work(link.0));
        }
        if let Payload::Placed(sge) = asks.bytes {
            self.stage.add(&mut found.chain, &work, Bytes::Placed(sge));
        }
        Asks { bytes: Payload::Copied(&[], &[]), apart: false, ..asks }
    }

    #[inline]
    fn post_receive(&mut self, link: LinkId, wr_id: u64, into: Extent) -> Result<(), PostError> {
        let sge = self.place(into)?;
        if self.stage.is_full() {
            self.ring_all();
        }
        let Some(Some(found)) = self.links.get_mut(link.0 as usize) else {
            return Err(PostError::Refused(Status::Flushed));
        };
        if found.state == State::Error {
            return Err(PostError::Refused(Status::Flushed));
        }
        let Some(slot) = found.receives.take(wr_id, sge) else { return Err(PostError::Busy) };
        self.stage_receive(link.0, slot, sge);
        Ok(())
    }

    /// Adds a receive to what waits. There must be room.
    #[inline]
    fn stage_receive(&mut self, place: u32, slot: u32, into: Sge) {
        let Some(Some(found)) = self.links.get_mut(place as usize) else { return };
        if found.receive_chain.is_empty() {
            self.dirty.push(Dirty::Receives(place));
        }
        self.stage.add_receive(&mut found.receive_chain, Kind::Receive.id(place, slot), into);
    }

    /// A write with immediate took a receive: it is posted again with what this poll gives to the device.
    #[inline]
    pub(crate) fn lend_again(&mut self, place: u32, slot: u32) {
        if self.stage.is_full() {
            self.ring_all();
        }
        let Some(Some(found)) = self.links.get_mut(place as usize) else { return };
        if self.keeps_lent.is_on() {
            return;
        }
        let Some(into) = found.receives.lent(slot) else { return };
        self.stage_receive(place, slot, into);
    }

    /// A flush works on a link in error too.
    fn post_flush(
        &mut self,
        link: LinkId,
        wr_id: u64,
        at: Option<Remote>,
        told: bool,
    ) -> Result<(), PostError> {
        if self.link(link).is_none() {
            return Err(PostError::Refused(Status::Flushed));
        }
        if self.flusher.is_none() {
            // Only if somebody flushes.
            // The address is read where the queue pair is connected.
            let ours = self.ours(0, &self.port.first);
            let limits = self.limits();
            let seat = Seat::new(&self.port, &self.registrar(), (&ours, &limits)).map_err(|error| {
                let code = NOT_POSTED + error.raw_os_error().unwrap_or(0).unsigned_abs();
                PostError::Refused(Status::Other(code))
            });
            self.flusher = Some(seat?);
        }
        let (Some(flusher), Some(Some(found))) = (&self.flusher, self.links.get_mut(link.0 as usize)) else {
            return Err(PostError::Refused(Status::Flushed));
        };
        if found.used() >= found.depth {
            return Err(PostError::Busy);
        }
        found.flushes += 1;
        self.flushes += 1;
        flusher.post(Asked { link, life: found.life, wr_id, told }, at);
        Ok(())
    }

    /// Gives everything that waits to the device, one call for each queue.
    pub(crate) fn ring_all(&mut self) {
        for at in 0..self.dirty.len() {
            match self.dirty[at] {
                Dirty::Work(place) => self.ring_work(place),
                Dirty::Receives(place) => self.ring_receives(place),
            }
        }
        self.dirty.clear();
        self.stage.clear();
    }

    #[inline]
    fn ring_work(&mut self, place: u32) {
        let Some(Some(link)) = self.links.get_mut(place as usize) else { return };
        let chain = std::mem::replace(&mut link.chain, Chain::EMPTY);
        link.queue.give();
        if let Err((code, left)) = self.stage.ring(&link.qp, chain) {
            link.queue.refused(left);
            self.break_refused(place, Status::Other(NOT_POSTED + code.unsigned_abs()));
        }
    }

    #[inline]
    fn ring_receives(&mut self, place: u32) {
        let Some(Some(link)) = self.links.get_mut(place as usize) else { return };
        let chain = std::mem::replace(&mut link.receive_chain, Chain::EMPTY);
        if link.state == State::Error {
            // Not every device gives back what it is given from now on.
            for id in self.stage.receives_of(chain) {
                link.receives.keep(id as u32);
            }
            return self.note_refused(place);
        }
        if let Err((code, left)) = self.stage.ring_receives(&link.qp, chain) {
            for id in self.stage.receives_from(left) {
                link.receives.keep(id as u32);
            }
            self.break_refused(place, Status::Other(NOT_POSTED + code.unsigned_abs()));
        }
    }

    /// The device did not take what was given: the link is in error, and what it did not take comes back last.
    #[cold]
    fn break_refused(&mut self, place: u32, why: Status) {
        if let Some(Some(link)) = self.links.get_mut(place as usize) {
            link.refusal.get_or_insert(why);
            link.break_down();
        }
        self.note_refused(place);
    }

    /// Something of a link is given back although the device did not have it.
    fn note_refused(&mut self, place: u32) {
        if !self.refused.contains(&place) {
            self.refused.push(place);
        }
    }
}

impl Rail for VerbsRail {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn registrar(&self) -> Arc<dyn Registrar> {
        Arc::clone(&self.registrar) as Arc<dyn Registrar>
    }

    #[inline]
    fn credits(&self, link: LinkId) -> u32 {
        self.link(link).map_or(0, Link::credits)
    }

    #[inline]
    fn post(&mut self, link: LinkId, wr_id: u64, op: Op<'_>, signalled: bool) -> Result<(), PostError> {
        match op {
            Op::Recv { into } => self.post_receive(link, wr_id, into),
            Op::Flush => self.post_flush(link, wr_id, None, signalled),
            Op::FlushAt { at } => self.post_flush(link, wr_id, Some(at), signalled),
            op => self.post_work(link, wr_id, op, signalled),
        }
    }

    #[inline]
    fn flush(&mut self) {
        if !self.dirty.is_empty() {
            self.ring_all();
        }
    }

    fn unsent(&self, link: LinkId) -> u32 {
        self.link(link).map_or(0, |link| link.chain.len())
    }

    #[inline]
    fn poll(&mut self, out: &mut [Completion]) -> usize {
        self.flush();
        self.collect(out)
    }

    fn arm(&mut self) -> Wake {
        self.flush();
        // Flushes wake nobody.
        if self.cq.oldest().is_some() || self.flushes > 0 {
            return Wake::After(Duration(0));
        }
        self.cq.arm();
        // What came before it was armed makes no event.
        self.cq.refill();
        if self.cq.oldest().is_some() { Wake::After(Duration(0)) } else { Wake::Event }
    }

    fn event_descriptor(&self) -> Option<Arc<OwnedFd>> {
        Some(Arc::clone(self.cq.descriptor()))
    }
}

const _: () = assert!(ROOM <= u16::MAX as usize);
