//! An open port: its links, its posted requests, and its completion queue. Posting builds
//! requests in place; `flush` submits them, one call for each queue pair. Nothing here allocates or locks per message.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use trunkline_fabric::{
    Caps, Completion, LinkId, MemoryRegistrar, Op, OpSource, OpStatus, PostError, Rail, RailConfig,
    RegionExtent, RemoteLocation, WaitMethod,
};
use trunkline_proto::time::Duration;
use trunkline_sys::verbs::{Atomic, Rdma, SendWr, SendWrTarget, Sge, wr_opcode};

use crate::VerbsConfig;
use crate::cq::CompletionQueue;
use crate::device::VerbsPort;
use crate::error::{NOT_POSTED, UNSUPPORTED};
use crate::flusher::{FlushRequest, FlusherMember};
use crate::link::{VerbsLink, VerbsLinkStage, WrIdKind};
use crate::queue::WorkEntry;
use crate::register::{VerbsRegistrar, device_rkey};
use crate::stage::{ROOM, RequestBytes, RequestChain, RequestStage, StagedRequest};

/// A queue with requests that are not submitted.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum DirtyQueue {
    /// Work of a link.
    Work(u32),
    /// Receives of a link.
    Receives(u32),
}

/// An open port of a device.
pub struct VerbsRail {
    // Fields are dropped in this order: libibverbs refuses to destroy a completion queue that queue pairs still use (EBUSY).
    pub(crate) links: Vec<Option<Box<VerbsLink>>>,
    pub(crate) flusher: Option<FlusherMember>,
    /// Flushes whose completions were not returned.
    pub(crate) flushes: u32,
    pub(crate) cq: CompletionQueue,
    /// Whether the queue may still hold completions of ended links, because there was no memory to take them out.
    pub(crate) leftovers: bool,
    pub(crate) stage: RequestStage,
    pub(crate) dirty: Vec<DirtyQueue>,
    /// Links that have requests or receives which the device refused.
    pub(crate) refused: Vec<u32>,
    pub(crate) live: u32,
    pub(crate) lives: u64,
    pub(crate) registrar: Arc<VerbsRegistrar>,
    pub(crate) port: Arc<VerbsPort>,
    pub(crate) verbs: Arc<VerbsConfig>,
    pub(crate) config: RailConfig,
    pub(crate) caps: Caps,
    /// Bytes above which a write's immediate is a request of its own.
    pub(crate) adaptive_above: u64,
}

/// The request for an operation.
struct WorkRequest<'a> {
    opcode: u32,
    imm: u32,
    target: SendWrTarget,
    bytes: RequestPayload<'a>,
    /// Whether the immediate follows as a request of its own.
    apart: bool,
    /// Whether it addresses a word that is not aligned to 8 bytes, which the InfiniBand Architecture Specification
    /// forbids (volume 1, section 9.4.5). Some devices refuse it when it is posted and some when it arrives, so it is
    /// never submitted.
    astray: bool,
}

/// Its bytes, before heads are copied to a place.
enum RequestPayload<'a> {
    Copied(&'a [u8], &'a [u8]),
    Placed(Sge),
    /// A head that must be copied to a place, and the bytes that follow it.
    Headed(&'a [u8], Sge),
}

fn rdma_target(to: RemoteLocation) -> SendWrTarget {
    let mut target = SendWr::ZERO.wr;
    target.rdma = Rdma { remote_addr: to.addr, rkey: device_rkey(to.key) };
    target
}

impl VerbsRail {
    #[inline]
    pub(crate) fn find_link(&self, link: LinkId) -> Option<&VerbsLink> {
        self.links.get(link.0 as usize)?.as_deref()
    }

    #[inline]
    fn resolve_extent(&self, extent: RegionExtent) -> Result<Sge, PostError> {
        // Refused here, because at the device it would fail and end the link.
        if extent.len > self.caps.message_max {
            return Err(PostError::Refused(OpStatus::LocalProtection));
        }
        self.port.device.regions.resolve_extent(extent).ok_or(PostError::Refused(OpStatus::LocalProtection))
    }

    #[inline]
    fn source<'a>(&self, head: &'a [u8], body: OpSource<'a>) -> Result<RequestPayload<'a>, PostError> {
        let most = self.caps.inline_max as usize;
        let too_long = PostError::Refused(OpStatus::TooLong);
        if head.len() > most {
            return Err(too_long);
        }
        match body {
            OpSource::Inline(bytes) if bytes.len() > most => Err(too_long),
            OpSource::Inline(bytes) => Ok(RequestPayload::Copied(head, bytes)),
            OpSource::Region(extent) => {
                let sge = self.resolve_extent(extent)?;
                // Without a body the head alone is copied, which needs no second range.
                Ok(match (head.is_empty(), sge.length) {
                    (true, _) => RequestPayload::Placed(sge),
                    (false, 0) => RequestPayload::Copied(head, &[]),
                    (false, _) => RequestPayload::Headed(head, sge),
                })
            }
        }
    }

    /// Converts an operation into the request for the device.
    #[inline]
    fn build_request<'a>(&self, op: Op<'a>) -> Result<WorkRequest<'a>, PostError> {
        let unsupported = PostError::Refused(OpStatus::Other(UNSUPPORTED));
        let with = |opcode, imm: Option<u32>, target, bytes| {
            Ok(WorkRequest { opcode, imm: imm.unwrap_or(0), target, bytes, apart: false, astray: false })
        };
        match op {
            Op::Send { head, body, imm } => {
                let opcode = if imm.is_some() { wr_opcode::SEND_WITH_IMM } else { wr_opcode::SEND };
                with(opcode, imm, SendWr::ZERO.wr, self.source(head, body)?)
            }
            Op::Write { from, to, imm } => {
                let opcode =
                    if imm.is_some() { wr_opcode::RDMA_WRITE_WITH_IMM } else { wr_opcode::RDMA_WRITE };
                let asks = with(opcode, imm, rdma_target(to), self.source(&[], from)?)?;
                // Copied bytes fit into one packet, so there is nothing to distribute over several paths.
                let long =
                    matches!(asks.bytes, RequestPayload::Placed(_)) && from.len() > self.adaptive_above;
                Ok(WorkRequest { apart: imm.is_some() && long, ..asks })
            }
            Op::Read { into, from } => {
                let bytes = RequestPayload::Placed(self.resolve_extent(into)?);
                with(wr_opcode::RDMA_READ, None, rdma_target(from), bytes)
            }
            Op::FetchAdd { old, at, add } if self.caps.atomics => {
                self.atomic_request(wr_opcode::ATOMIC_FETCH_AND_ADD, old, at, add, 0)
            }
            Op::CompareSwap { old, at, expect, swap } if self.caps.atomics => {
                self.atomic_request(wr_opcode::ATOMIC_CMP_AND_SWP, old, at, expect, swap)
            }
            // A write of no bytes: devices do not check its key (InfiniBand Architecture Specification, volume 1, C9-88).
            Op::Nop => with(wr_opcode::RDMA_WRITE, None, SendWr::ZERO.wr, RequestPayload::Copied(&[], &[])),
            _ => Err(unsupported),
        }
    }

    fn atomic_request<'a>(
        &self,
        opcode: u32,
        old: RegionExtent,
        at: RemoteLocation,
        compare_add: u64,
        swap: u64,
    ) -> Result<WorkRequest<'a>, PostError> {
        // An atomic has exactly 8 bytes (InfiniBand Architecture Specification, volume 1, section 9.4.5).
        if old.len != 8 {
            return Err(PostError::Refused(OpStatus::LocalProtection));
        }
        let bytes = RequestPayload::Placed(self.resolve_extent(old)?);
        let to = Atomic { remote_addr: at.addr, compare_add, swap, rkey: device_rkey(at.key) };
        let target = SendWrTarget { atomic: to };
        let astray = !at.addr.is_multiple_of(8);
        Ok(WorkRequest { opcode, imm: 0, target, bytes, apart: false, astray })
    }

    #[inline]
    fn post_work(&mut self, link: LinkId, wr_id: u64, op: Op<'_>, told: bool) -> Result<(), PostError> {
        let Some(Some(found)) = self.links.get(link.0 as usize) else {
            return Err(PostError::Refused(OpStatus::Flushed));
        };
        if found.state != VerbsLinkStage::Up {
            return Err(PostError::Refused(OpStatus::Flushed));
        }
        let asks = self.build_request(op)?;
        let credits = found.free_credits();
        if credits == 0 {
            return Err(PostError::Busy);
        }
        // Staged requests are submitted before an unaligned atomic is refused, so that they are before it in the queue.
        if !self.stage.has_room(1 + usize::from(asks.apart)) || asks.astray {
            self.ring_all();
        }
        let asks = if asks.apart { self.add_bytes(link, wr_id, asks) } else { asks };
        let Some(Some(found)) = self.links.get_mut(link.0 as usize) else {
            return Err(PostError::Refused(OpStatus::Flushed));
        };
        let found = &mut **found;
        let is_send = matches!(asks.opcode, wr_opcode::SEND | wr_opcode::SEND_WITH_IMM);
        // The request that takes the last credit is signalled, or no completion might ever return a credit.
        let (position, signalled) =
            found.queue.push(WorkEntry { wr_id, told, is_send, half: false }, credits == 1);
        let id = WrIdKind::Work.to_wr_id(link.0, position);
        let work = StagedRequest { id, opcode: asks.opcode, imm: asks.imm, target: asks.target, signalled };
        let place = position % found.queue.depth();
        let bytes = match asks.bytes {
            RequestPayload::Copied(one, two) if one.len() + two.len() <= found.inline => {
                RequestBytes::Copied(one, two)
            }
            RequestPayload::Copied(one, two) => {
                RequestBytes::Placed(found.staging.copy_payload(place, one, two))
            }
            RequestPayload::Placed(sge) => RequestBytes::Placed(sge),
            RequestPayload::Headed(head, sge) => {
                RequestBytes::Both(found.staging.copy_payload(place, head, &[]), sge)
            }
        };
        if asks.astray {
            found.queue.mark_submitted();
            found.queue.mark_refused(1);
            self.break_refused(link.0, OpStatus::RemoteAccess);
            return Ok(());
        }
        if found.chain.is_empty() {
            self.dirty.push(DirtyQueue::Work(link.0));
        }
        self.stage.add_request(&mut found.chain, &work, bytes);
        Ok(())
    }

    /// Adds the bytes of a write whose immediate is a request of its own; returns the request for the immediate.
    fn add_bytes<'a>(&mut self, link: LinkId, wr_id: u64, asks: WorkRequest<'a>) -> WorkRequest<'a> {
        let Some(Some(found)) = self.links.get_mut(link.0 as usize) else { return asks };
        let entry = WorkEntry { wr_id, told: false, is_send: false, half: true };
        let (position, signalled) = found.queue.push(entry, false);
        let id = WrIdKind::Work.to_wr_id(link.0, position);
        let work =
            StagedRequest { id, opcode: wr_opcode::RDMA_WRITE, imm: 0, target: asks.target, signalled };
        if found.chain.is_empty() {
            self.dirty.push(DirtyQueue::Work(link.0));
        }
        if let RequestPayload::Placed(sge) = asks.bytes {
            self.stage.add_request(&mut found.chain, &work, RequestBytes::Placed(sge));
        }
        WorkRequest { bytes: RequestPayload::Copied(&[], &[]), apart: false, ..asks }
    }

    #[inline]
    fn post_receive(&mut self, link: LinkId, wr_id: u64, into: RegionExtent) -> Result<(), PostError> {
        let sge = self.resolve_extent(into)?;
        if self.stage.is_full() {
            self.ring_all();
        }
        let Some(Some(found)) = self.links.get_mut(link.0 as usize) else {
            return Err(PostError::Refused(OpStatus::Flushed));
        };
        if found.state == VerbsLinkStage::Error {
            return Err(PostError::Refused(OpStatus::Flushed));
        }
        let Some(slot) = found.receives.take_slot(wr_id, sge) else { return Err(PostError::Busy) };
        self.stage_receive(link.0, slot, sge);
        Ok(())
    }

    /// Adds a receive to the requests that are not submitted. There must be room.
    #[inline]
    fn stage_receive(&mut self, place: u32, slot: u32, into: Sge) {
        let Some(Some(found)) = self.links.get_mut(place as usize) else { return };
        if found.receive_chain.is_empty() {
            self.dirty.push(DirtyQueue::Receives(place));
        }
        self.stage.add_receive(&mut found.receive_chain, WrIdKind::Receive.to_wr_id(place, slot), into);
    }

    /// Posts a receive again that a write with immediate consumed; this poll submits it.
    #[inline]
    pub(crate) fn lend_again(&mut self, place: u32, slot: u32) {
        if self.stage.is_full() {
            self.ring_all();
        }
        let Some(Some(found)) = self.links.get_mut(place as usize) else { return };
        let Some(into) = found.receives.slot_memory(slot) else { return };
        self.stage_receive(place, slot, into);
    }

    /// Posts a flush. It works on a link in error too, because it uses the flusher's queue pair.
    fn post_flush(
        &mut self,
        link: LinkId,
        wr_id: u64,
        at: Option<RemoteLocation>,
        told: bool,
    ) -> Result<(), PostError> {
        if self.find_link(link).is_none() {
            return Err(PostError::Refused(OpStatus::Flushed));
        }
        if self.flusher.is_none() {
            // Created with the first flush, because most rails never flush.
            // The port's first address is replaced by the current one where the queue pair is connected.
            let ours = self.local_attrs(0, &self.port.first);
            let limits = self.attr_limits();
            let seat = FlusherMember::new(&self.port, &self.registrar(), &ours, &limits).map_err(|error| {
                let code = NOT_POSTED + error.raw_os_error().unwrap_or(0).unsigned_abs();
                PostError::Refused(OpStatus::Other(code))
            });
            self.flusher = Some(seat?);
        }
        let (Some(flusher), Some(Some(found))) = (&self.flusher, self.links.get_mut(link.0 as usize)) else {
            return Err(PostError::Refused(OpStatus::Flushed));
        };
        if found.outstanding_ops() >= found.depth {
            return Err(PostError::Busy);
        }
        found.flushes += 1;
        self.flushes += 1;
        flusher.post_flush(FlushRequest { link, life: found.life, wr_id, told }, at);
        Ok(())
    }

    /// Submits all requests, one call for each queue.
    pub(crate) fn ring_all(&mut self) {
        for at in 0..self.dirty.len() {
            match self.dirty[at] {
                DirtyQueue::Work(place) => self.ring_work(place),
                DirtyQueue::Receives(place) => self.ring_receives(place),
            }
        }
        self.dirty.clear();
        self.stage.clear();
    }

    #[inline]
    fn ring_work(&mut self, place: u32) {
        let Some(Some(link)) = self.links.get_mut(place as usize) else { return };
        let chain = std::mem::replace(&mut link.chain, RequestChain::EMPTY);
        link.queue.mark_submitted();
        if let Err((code, left)) = self.stage.submit_chain(&link.qp, chain) {
            link.queue.mark_refused(left);
            self.break_refused(place, OpStatus::Other(NOT_POSTED + code.unsigned_abs()));
        }
    }

    #[inline]
    fn ring_receives(&mut self, place: u32) {
        let Some(Some(link)) = self.links.get_mut(place as usize) else { return };
        let chain = std::mem::replace(&mut link.receive_chain, RequestChain::EMPTY);
        if link.state == VerbsLinkStage::Error {
            // Not every device flushes receives that are posted in the error state, so they are completed by `give_back`.
            for id in self.stage.receives_of(chain) {
                link.receives.keep_untaken(id as u32);
            }
            return self.note_refused(place);
        }
        if let Err((code, left)) = self.stage.ring_receives(&link.qp, chain) {
            for id in self.stage.receives_from(left) {
                link.receives.keep_untaken(id as u32);
            }
            self.break_refused(place, OpStatus::Other(NOT_POSTED + code.unsigned_abs()));
        }
    }

    /// Fails a link because the device refused requests; those complete last.
    #[cold]
    fn break_refused(&mut self, place: u32, why: OpStatus) {
        if let Some(Some(link)) = self.links.get_mut(place as usize) {
            link.refusal.get_or_insert(why);
            link.break_down();
        }
        self.note_refused(place);
    }

    /// Lists a link with requests that must complete although the device does not have them.
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

    fn registrar(&self) -> Arc<dyn MemoryRegistrar> {
        Arc::clone(&self.registrar) as Arc<dyn MemoryRegistrar>
    }

    #[inline]
    fn post_credits(&self, link: LinkId) -> u32 {
        self.find_link(link).map_or(0, VerbsLink::free_credits)
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

    fn unsent_ops(&self, link: LinkId) -> u32 {
        self.find_link(link).map_or(0, |link| link.chain.len())
    }

    #[inline]
    fn poll(&mut self, out: &mut [Completion]) -> usize {
        self.flush();
        self.collect_completions(out)
    }

    fn arm_wait(&mut self) -> WaitMethod {
        self.flush();
        // Loopback flushes use the flusher's completion queue, which no descriptor of this rail reports.
        if self.cq.oldest_completion().is_some() || self.flushes > 0 {
            return WaitMethod::After(Duration(0));
        }
        self.cq.request_notify();
        // A completion that arrived before the queue was armed makes no event (ibv_req_notify_cq(3)), so poll once more.
        self.cq.poll_batch();
        if self.cq.oldest_completion().is_some() { WaitMethod::After(Duration(0)) } else { WaitMethod::Event }
    }

    fn event_descriptor(&self) -> Option<Arc<OwnedFd>> {
        Some(Arc::clone(self.cq.wait_descriptor()))
    }
}

const _: () = assert!(ROOM <= u16::MAX as usize);
