//! An open NIC: its links, its completion queue, and completions not yet returned. Operations are submitted to the provider when they are
//! posted; those for which it has no room wait here, and are submitted again by a flush or poll.

use std::collections::VecDeque;
use std::sync::Arc;

use trunkline_fabric::{
    Caps, Completion, CompletionKind, LinkId, MemoryRegistrar, Op, OpSource, OpStatus, PostError, Rail,
    RailConfig, RegionPurpose, WaitMethod,
};
use trunkline_proto::time::Duration;

use crate::contexts::OpSlot;
use crate::heads::HeadBuffers;
use crate::lingering_ops::LingeringOps;
use crate::link::{EndpointPair, HelloProgress, OfiLink, OfiLinkStage, ProviderOp, StagedSource};
use crate::nic::OpenNic;
use crate::ops::LinkOpKind;
use crate::post::{PayloadSource as Given, PostOptions, SubmitOutcome};
use crate::profile::ProviderProfile;
use crate::queue::OfiQueue;
use crate::region::{RKey, RemotePlace as Place};
use crate::register::OfiRegistrar;
use crate::role::{ControlTraffic, PayloadTraffic};

/// The maximum length of a head, or of a body, that is copied into an operation, in bytes.
pub(crate) const INLINE_MAX: usize = 256;
/// The maximum length of both: one buffer on the stack.
pub(crate) const COPIED_MAX: usize = 2 * INLINE_MAX;
/// Number of tag bits that mark messages matched by tag; the highest one that the provider compares.
pub(crate) const PAIRED: u32 = 1;
/// How long a thread that waits for this rail may sleep, in nanoseconds.
const NAP: Duration = Duration(20_000);
/// The status of an operation that this fabric does not support.
pub(crate) const UNSUPPORTED: u32 = 2;

/// An open NIC.
pub struct OfiRail {
    // In the order of closing.
    pub(crate) links: Vec<Option<Box<OfiLink>>>,
    /// Remains of destroyed links, by place, until the queue has reported all their operations.
    pub(crate) gone: Vec<Option<LingeringLink>>,
    pub(crate) has_gone: bool,
    /// The endpoints of all links, unless links have their own.
    pub(crate) shared: Option<Box<EndpointPair>>,
    /// Endpoints of links that were never connected in both directions.
    #[expect(clippy::vec_box, reason = "links hold them in boxes")]
    pub(crate) half_made: Vec<Box<EndpointPair>>,
    pub(crate) flusher: Option<Box<crate::flusher::RailFlusher>>,
    pub(crate) landing: Option<Box<crate::connect::ProofBuffers>>,
    pub(crate) heads: HeadBuffers,
    /// Operations that outlive their link.
    pub(crate) dying: LingeringOps,
    /// The provider's maximum inject size, in bytes.
    pub(crate) inject: usize,
    pub(crate) registrar: Arc<OfiRegistrar>,
    pub(crate) queue: OfiQueue,
    pub(crate) stash: VecDeque<Completion>,
    /// Number of links with waiting operations.
    pub(crate) waits: u32,
    /// Number of remote writes to links that no longer exist.
    pub(crate) strays: u64,
    pub(crate) nic: Arc<OpenNic>,
    pub(crate) info: crate::info::OfiInfo,
    pub(crate) profile: ProviderProfile,
    pub(crate) config: RailConfig,
    pub(crate) caps: Caps,
    /// Number of slots of a link.
    pub(crate) span: u32,
    /// Number of links created so far.
    pub(crate) lives: u32,
    pub(crate) tag_bits: u32,
}

// SAFETY: queue and endpoints are used by one thread at a time, because all of them are fields of the rail and every use borrows it mutably.
unsafe impl Send for OfiRail {}

/// The remains of a destroyed link.
pub(crate) struct LingeringLink {
    /// Number of operations on shared endpoints that have not completed.
    pub(crate) out: u32,
}

/// The objects needed to submit a link's operations.
struct LinkSubmission<'a> {
    link: &'a OfiLink,
    nic: &'a OpenNic,
    heads: &'a HeadBuffers,
    slot: OpSlot,
}

fn post_error(errno: crate::errno::OfiErrno) -> PostError {
    PostError::Refused(OpStatus::Other(errno.number().unsigned_abs()))
}

const PROTECTION: PostError = PostError::Refused(OpStatus::LocalProtection);

/// Returns the CQ data of a write with this immediate to a link with that mark.
#[inline]
fn remote_cq_data(mark: u32, imm: Option<u32>) -> Option<u64> {
    imm.map(|imm| u64::from(mark) << 32 | u64::from(imm))
}

impl LinkSubmission<'_> {
    /// Submits an operation to the provider. `bytes` contains its bytes if they were copied.
    #[inline]
    fn submit_op(&self, pair: &mut EndpointPair, work: ProviderOp, bytes: &[u8]) -> SubmitOutcome {
        let Some((peer, records)) = self.link.peers else {
            // Only receives can be submitted before the peer is known, because they name no peer.
            return match work {
                ProviderOp::Receive { into, tag } => self.submit_receive(pair, into, tag),
                _ => SubmitOutcome::Again,
            };
        };
        let theirs = self.link.theirs.as_ref();
        let mark = theirs.map_or(0, |theirs| theirs.mark);
        match work {
            ProviderOp::Receive { into, tag } => self.submit_receive(pair, into, tag),
            ProviderOp::Send { from, tag, imm } => match self.source(from, bytes) {
                Some(from) => pair.data.send_tagged(
                    peer,
                    from,
                    tag,
                    remote_cq_data(mark, imm),
                    self.slot,
                    PostOptions::TOLD,
                ),
                None => SubmitOutcome::Refused(crate::errno::OfiErrno::INVALID),
            },
            ProviderOp::Write { from, to, imm, .. } if to.purpose == RegionPurpose::Records => {
                let from = match from {
                    StagedSource::Copied(_) => Some(Given::Inline(bytes)),
                    StagedSource::Kept(len) => self.heads.record_slice(self.slot.0, len).map(Given::One),
                    StagedSource::Region(extent) => self.nic.table.record_slice(extent).map(Given::One),
                    // Records are written without a separate head.
                    StagedSource::Both(..) => None,
                };
                let to = Place::<ControlTraffic>::new(RKey::new(to.key.0), to.addr);
                let Some(from) = from else { return SubmitOutcome::Refused(crate::errno::OfiErrno::INVALID) };
                pair.records.write(records, from, to, remote_cq_data(mark, imm), self.slot, PostOptions::TOLD)
            }
            ProviderOp::Write { from, to, imm, placed } => {
                let to = Place::<PayloadTraffic>::new(RKey::new(to.key.0), to.addr);
                let Some(from) = self.source(from, bytes) else {
                    return SubmitOutcome::Refused(crate::errno::OfiErrno::INVALID);
                };
                let how = PostOptions { placed, ..PostOptions::TOLD };
                pair.data.write(peer, from, to, remote_cq_data(mark, imm), self.slot, how)
            }
            ProviderOp::Read { into, from } => {
                let from = Place::<PayloadTraffic>::new(RKey::new(from.key.0), from.addr);
                match self.nic.table.data_slice(into) {
                    Some(into) => pair.data.read(peer, into, from, self.slot, PostOptions::TOLD),
                    None => SubmitOutcome::Refused(crate::errno::OfiErrno::INVALID),
                }
            }
            ProviderOp::Proof { records: over } => {
                let landings = theirs.map(|theirs| theirs.landings).unwrap_or_default();
                let how = PostOptions { placed: true, ..PostOptions::TOLD };
                // A proof writes eight bytes with delivery-complete semantics: on one endpoint it completes after all earlier operations.
                let nothing = [0; 8];
                if over {
                    let to = Place::<ControlTraffic>::new(RKey::new(landings[1].key), landings[1].addr);
                    pair.records.write(records, Given::Inline(&nothing), to, None, self.slot, how)
                } else {
                    let to = Place::<PayloadTraffic>::new(RKey::new(landings[0].key), landings[0].addr);
                    pair.data.write(peer, Given::Inline(&nothing), to, None, self.slot, how)
                }
            }
        }
    }

    #[inline]
    fn submit_receive(
        &self,
        pair: &mut EndpointPair,
        into: trunkline_fabric::RegionExtent,
        tag: u64,
    ) -> SubmitOutcome {
        match self.nic.table.data_slice(into) {
            Some(into) => pair.data.receive_tagged(None, into, tag, 0, self.slot, false),
            None => SubmitOutcome::Refused(crate::errno::OfiErrno::INVALID),
        }
    }

    #[inline]
    fn source<'b>(&'b self, from: StagedSource, bytes: &'b [u8]) -> Option<Given<'b, PayloadTraffic>> {
        match from {
            StagedSource::Copied(_) => Some(Given::Inline(bytes)),
            StagedSource::Kept(len) => self.heads.payload_slice(self.slot.0, len).map(Given::One),
            StagedSource::Region(extent) => self.nic.table.data_slice(extent).map(Given::One),
            StagedSource::Both(len, extent) => Some(Given::Two(
                self.heads.payload_slice(self.slot.0, len)?,
                self.nic.table.data_slice(extent)?,
            )),
        }
    }
}

impl OfiRail {
    #[inline]
    pub(crate) fn find_link(&self, link: LinkId) -> Option<&OfiLink> {
        self.links.get(link.0 as usize)?.as_deref()
    }

    /// Returns the tag of messages matched by this key.
    fn paired_tag(&self, key: u64) -> u64 {
        let top = 1 << (self.tag_bits - PAIRED);
        key & (top - 1) | top
    }

    /// Converts an operation; also returns the head and body to be copied.
    #[inline]
    fn prepare_op<'a>(
        &self,
        op: Op<'a>,
        cookie: u64,
    ) -> Result<(ProviderOp, [&'a [u8]; 2], LinkOpKind), PostError> {
        let unsupported = PostError::Refused(OpStatus::Other(UNSUPPORTED));
        // Longer bytes are staged in registered memory, because the provider copies at most its inject size.
        let copied =
            |len| if len <= self.inject { StagedSource::Copied(len) } else { StagedSource::Kept(len) };
        let source = |head: &'a [u8], body: OpSource<'a>| {
            let most = self.caps.inline_max as usize;
            let too_long = PostError::Refused(OpStatus::TooLong);
            match body {
                OpSource::Inline(bytes) if head.len() + bytes.len() > 2 * most => Err(too_long),
                OpSource::Inline(bytes) if bytes.len() > most || head.len() > most => Err(too_long),
                OpSource::Inline(bytes) => Ok((copied(head.len() + bytes.len()), [head, bytes])),
                OpSource::Region(_) if head.len() > most => Err(too_long),
                OpSource::Region(extent) if self.nic.table.data_slice(extent).is_none() => Err(PROTECTION),
                OpSource::Region(extent) if head.is_empty() => {
                    Ok((StagedSource::Region(extent), [head, &[]]))
                }
                // An empty body needs no second range, which some providers do not support.
                OpSource::Region(extent) if extent.len == 0 => Ok((copied(head.len()), [head, &[]])),
                OpSource::Region(extent) => Ok((StagedSource::Both(head.len(), extent), [head, &[]])),
            }
        };
        Ok(match op {
            Op::Send { head, body, imm } => {
                let (from, bytes) = source(head, body)?;
                (ProviderOp::Send { from, tag: cookie, imm }, bytes, LinkOpKind::Work)
            }
            Op::MatchedSend { from, key } if self.caps.matched => {
                let (from, bytes) = source(&[], from)?;
                (ProviderOp::Send { from, tag: self.paired_tag(key.0), imm: None }, bytes, LinkOpKind::Work)
            }
            Op::Write { from: OpSource::Region(extent), to, imm } if to.purpose == RegionPurpose::Records => {
                if self.nic.table.record_slice(extent).is_none() {
                    return Err(PROTECTION);
                }
                let from = StagedSource::Region(extent);
                (ProviderOp::Write { from, to, imm, placed: false }, [&[], &[]], LinkOpKind::Work)
            }
            Op::Write { from, to, imm } => {
                let (from, bytes) = source(&[], from)?;
                (ProviderOp::Write { from, to, imm, placed: false }, bytes, LinkOpKind::Work)
            }
            Op::PlacedWrite { from, to, imm } if to.purpose != RegionPurpose::Records => {
                let (from, bytes) = source(&[], from)?;
                (ProviderOp::Write { from, to, imm, placed: true }, bytes, LinkOpKind::Work)
            }
            Op::Read { into, from } => {
                if self.nic.table.data_slice(into).is_none() {
                    return Err(PROTECTION);
                }
                (ProviderOp::Read { into, from }, [&[], &[]], LinkOpKind::Work)
            }
            // Completions prove arrival already, so a proof only waits for earlier operations.
            Op::Nop if self.profile.arrives => {
                (ProviderOp::Proof { records: false }, [&[], &[]], LinkOpKind::Proof(0))
            }
            // One connection keeps payload and records in order, so one proof covers both.
            Op::Nop if self.profile.one_stream => {
                (ProviderOp::Proof { records: false }, [&[], &[]], LinkOpKind::Proof(1))
            }
            // Two endpoints are not ordered with each other, so each needs a proof: records first, then payload.
            Op::Nop => (ProviderOp::Proof { records: true }, [&[], &[]], LinkOpKind::Proof(2)),
            _ => return Err(unsupported),
        })
    }

    /// Injects an operation whose bytes are copied; no state of it is kept. Returns whether the provider accepted it.
    #[inline]
    fn inject_op(&mut self, at: usize, work: ProviderOp, bytes: &[u8]) -> Result<bool, PostError> {
        let Some(Some(link)) = self.links.get_mut(at) else { return Ok(false) };
        let link = &mut **link;
        let (Some(pair), Some((peer, records))) = (link.pair.as_mut().or(self.shared.as_mut()), link.peers)
        else {
            return Ok(false);
        };
        let mark = link.theirs.as_ref().map_or(0, |theirs| theirs.mark);
        let posted = match work {
            ProviderOp::Send { tag, imm, .. } => {
                pair.data.inject_tagged(peer, bytes, tag, remote_cq_data(mark, imm))
            }
            ProviderOp::Write { to, imm, .. } if to.purpose == RegionPurpose::Records => {
                let to = Place::<ControlTraffic>::new(RKey::new(to.key.0), to.addr);
                pair.records.inject_write(records, bytes, to, remote_cq_data(mark, imm))
            }
            ProviderOp::Write { to, imm, .. } => {
                let to = Place::<PayloadTraffic>::new(RKey::new(to.key.0), to.addr);
                pair.data.inject_write(peer, bytes, to, remote_cq_data(mark, imm))
            }
            _ => return Ok(false),
        };
        match posted {
            SubmitOutcome::Taken => Ok(true),
            SubmitOutcome::Again => Ok(false),
            SubmitOutcome::Refused(errno) => Err(post_error(errno)),
        }
    }

    #[inline]
    fn post_work(&mut self, id: LinkId, wr_id: u64, op: Op<'_>, told: bool) -> Result<(), PostError> {
        let at = id.0 as usize;
        let Some(Some(link)) = self.links.get(at) else { return Err(PostError::Refused(OpStatus::Flushed)) };
        if link.state != OfiLinkStage::Up {
            return Err(PostError::Refused(OpStatus::Flushed));
        }
        let cookie = link.theirs.as_ref().map_or(0, |theirs| theirs.cookie);
        let (work, parts, kind) = self.prepare_op(op, cookie)?;
        if link.ops.free_credits().min(self.heads.free_count()) == 0 {
            return Err(PostError::Busy);
        }
        // An injected operation must not overtake waiting ones.
        let idle = link.waiting.is_empty();
        let mut buffer = [0; COPIED_MAX];
        let bytes = join_parts(&mut buffer, parts);
        let copied = matches!(
            work,
            ProviderOp::Send { from: StagedSource::Copied(_), .. }
                | ProviderOp::Write { from: StagedSource::Copied(_), placed: false, .. }
        );
        // Inject produces no completion, so it is unusable where a rejection must be reported, arrival proved, or a held-back operation tracked.
        let known = told && self.profile.arrives
            || self.profile.tells_refusals && matches!(work, ProviderOp::Write { .. })
            || self.profile.lingers;
        if copied && idle && !known && self.inject_op(at, work, bytes)? {
            // An injected operation has no completion of the provider, so it is created here.
            if told {
                self.stash_completion(id, wr_id, CompletionKind::Posted, OpStatus::Ok);
            }
            return Ok(());
        }
        self.begin_op(at, wr_id, kind, told, work, bytes)
    }

    /// Begins an operation that has a place, and submits it if no earlier one is waiting.
    fn begin_op(
        &mut self,
        at: usize,
        wr_id: u64,
        kind: LinkOpKind,
        told: bool,
        work: ProviderOp,
        bytes: &[u8],
    ) -> Result<(), PostError> {
        let Some(Some(link)) = self.links.get_mut(at) else {
            return Err(PostError::Refused(OpStatus::Flushed));
        };
        let Some(place) = link.ops.begin_op(wr_id, kind, told, work.region_key()) else {
            return Err(PostError::Busy);
        };
        let slot = link.base + place;
        // Copied bytes are kept only if the provider does not accept the operation now.
        if work.is_kept() {
            self.heads.keep_bytes(slot, work.is_record(), bytes);
        }
        // Needs no operation of the provider, because it completes with the work before it.
        if kind == LinkOpKind::Proof(0) {
            link.nops.push_back(place);
            self.end_nops(at);
            return Ok(());
        }
        // Only if none waits, because operations of a link must be submitted in the order of posting.
        if link.waiting.is_empty() {
            match submit_to_link(link, &mut self.shared, &self.nic, &self.heads, slot, work, bytes) {
                SubmitOutcome::Taken => return Ok(()),
                SubmitOutcome::Again => {}
                SubmitOutcome::Refused(errno) => {
                    link.ops.end_op(place);
                    self.heads.release_slot(slot);
                    return Err(post_error(errno));
                }
            }
        }
        // The provider has copied nothing, so the bytes of the caller are kept for the next attempt.
        if work.copied_len() > 0 {
            self.heads.keep_bytes(slot, work.is_record(), bytes);
        }
        self.waits += u32::from(link.waiting.is_empty());
        link.waiting.push_back((place, work));
        Ok(())
    }

    fn post_receive(&mut self, id: LinkId, wr_id: u64, op: Op<'_>) -> Result<(), PostError> {
        let at = id.0 as usize;
        let Some(Some(link)) = self.links.get(at) else { return Err(PostError::Refused(OpStatus::Flushed)) };
        // Receives are accepted before the link is connected, so that no message arrives without one.
        if link.state == OfiLinkStage::Error {
            return Err(PostError::Refused(OpStatus::Flushed));
        }
        let (into, tag, kind) = match op {
            Op::Recv { into } => (into, link.cookie, LinkOpKind::Receive),
            Op::MatchedRecv { into, key } if self.caps.matched => {
                (into, self.paired_tag(key.0), LinkOpKind::Paired)
            }
            _ => return Err(PostError::Refused(OpStatus::Other(UNSUPPORTED))),
        };
        if self.nic.table.data_slice(into).is_none() {
            return Err(PROTECTION);
        }
        if link.ops.receive_credits() == 0 {
            return Err(PostError::Busy);
        }
        self.begin_op(at, wr_id, kind, true, ProviderOp::Receive { into, tag }, &[])
    }

    /// Begins the hello to the peer, or the next part of a proof.
    pub(crate) fn begin_own(&mut self, at: usize, kind: LinkOpKind, records: bool) -> Result<(), PostError> {
        self.begin_op(at, 0, kind, false, ProviderOp::Proof { records }, &[])
    }

    /// Queues another part of an operation that has a place.
    pub(crate) fn give_again(&mut self, at: usize, place: u32, work: ProviderOp) {
        let Some(Some(link)) = self.links.get_mut(at) else { return };
        self.waits += u32::from(link.waiting.is_empty());
        link.waiting.push_back((place, work));
    }

    /// Stashes a completion for the next poll.
    pub(crate) fn stash_completion(
        &mut self,
        link: LinkId,
        wr_id: u64,
        done: CompletionKind,
        status: OpStatus,
    ) {
        self.stash.push_back(Completion { wr_id, link, done, status, imm: None, len: 0 });
    }

    /// Submits waiting operations, as far as the provider has room.
    pub(crate) fn give_waiting(&mut self) {
        if self.waits == 0 {
            return;
        }
        for at in 0..self.links.len() {
            self.give_waiting_of(at);
        }
    }

    fn give_waiting_of(&mut self, at: usize) {
        let Some(Some(link)) = self.links.get_mut(at) else { return };
        if link.waiting.is_empty() {
            return;
        }
        // Handled after the loop, because the loop borrows the link.
        let mut broken = None;
        while let Some(&(place, work)) = link.waiting.front() {
            let slot = link.base + place;
            let mut buffer = [0; COPIED_MAX];
            let copied = work.copied_len().min(COPIED_MAX);
            let bytes = self.heads.read_bytes(slot, &mut buffer[..copied]);
            match submit_to_link(link, &mut self.shared, &self.nic, &self.heads, slot, work, bytes) {
                SubmitOutcome::Taken if copied > 0 => self.heads.release_slot(slot),
                SubmitOutcome::Taken => {}
                SubmitOutcome::Again => break,
                SubmitOutcome::Refused(errno) => {
                    broken = Some((place, errno));
                    break;
                }
            }
            link.waiting.pop_front();
        }
        self.waits -= u32::from(link.waiting.is_empty());
        if let Some((place, errno)) = broken {
            self.break_link(at, Some((place, OpStatus::Other(errno.number().unsigned_abs()))));
        }
    }

    /// Puts a link into error. Its operations are returned once the provider no longer uses them. Endpoints of its own are closed, so that no later
    /// write arrives.
    pub(crate) fn break_link(&mut self, at: usize, why: Option<(u32, OpStatus)>) {
        let Some(Some(link)) = self.links.get_mut(at) else { return };
        if link.state == OfiLinkStage::Error {
            return;
        }
        let id = link.id;
        let first = why.and_then(|(place, status)| link.ops.end_op(place).zip(Some(status)));
        if let Some((op, status)) = first {
            self.give_back(id, op, status);
        }
        match self.links.get_mut(at).and_then(Option::as_mut).and_then(|link| link.pair.take()) {
            Some(own) => self.end_with(at, own),
            None => self.end_after_all(at),
        }
        self.registrar.sharing.link_ends();
        self.close_if_idle();
    }

    /// Ends a link's operations by closing its own endpoints.
    fn end_with(&mut self, at: usize, own: Box<EndpointPair>) {
        let Some(Some(link)) = self.links.get_mut(at) else { return };
        // Connections may be half made before the first proof has completed. Providers over sockets then continue to use a closed endpoint, so it is kept open
        // until its domain is closed.
        let base = link.base;
        let stays = link.hello != HelloProgress::Heard;
        let waiting = std::mem::take(&mut link.waiting);
        self.waits -= u32::from(!waiting.is_empty());
        waiting.iter().for_each(|(place, _)| self.heads.release_slot(base + place));
        if stays {
            self.half_made.push(own);
            self.heads.forget_slots(base..base + self.span);
        } else {
            self.nic.closed_endpoints(own.endpoint_count());
            drop(own);
            (base..base + self.span).for_each(|slot| self.heads.release_slot(slot));
        }
        self.end_rest(at);
    }

    /// Ends the operations of a link whose endpoints stay open: each when the provider reports it, and those never submitted after them.
    fn end_after_all(&mut self, at: usize) {
        let (Some(Some(link)), Some(pair)) = (self.links.get_mut(at), &mut self.shared) else {
            return self.end_rest(at);
        };
        for (slot, region) in link.end_after_all(pair) {
            self.dying.insert(&self.nic, slot, region);
        }
        let base = link.base;
        let waiting = std::mem::take(&mut link.waiting);
        self.waits -= u32::from(!waiting.is_empty());
        waiting.iter().for_each(|(place, _)| self.heads.release_slot(base + place));
        if link.out == 0 {
            self.end_rest(at);
        }
    }

    /// Returns all remaining operations of a link in error.
    pub(crate) fn end_rest(&mut self, at: usize) {
        let Some(Some(link)) = self.links.get_mut(at) else { return };
        let id = link.id;
        let ops = link.end_all();
        ops.into_iter().for_each(|op| self.give_back(id, op, OpStatus::Flushed));
    }

    /// Returns one failed operation to its owner.
    pub(crate) fn give_back(&mut self, id: LinkId, op: crate::ops::LinkOpEntry, status: OpStatus) {
        if let Some(done) = op.completion_kind() {
            self.stash_completion(id, op.wr_id, done, status);
        }
    }
}

/// Submits an operation of a link to the provider.
#[inline]
fn submit_to_link(
    link: &mut OfiLink,
    shared: &mut Option<Box<EndpointPair>>,
    nic: &OpenNic,
    heads: &HeadBuffers,
    slot: u32,
    work: ProviderOp,
    bytes: &[u8],
) -> SubmitOutcome {
    // Taken out during the call, because the submission borrows the link.
    let mut own = link.pair.take();
    let posted = match own.as_mut().or(shared.as_mut()) {
        Some(pair) => LinkSubmission { link, nic, heads, slot: OpSlot(slot) }.submit_op(pair, work, bytes),
        None => SubmitOutcome::Again,
    };
    link.pair = own;
    posted
}

/// Concatenates both parts.
#[inline]
fn join_parts<'b>(buffer: &'b mut [u8; COPIED_MAX], [head, body]: [&[u8]; 2]) -> &'b [u8] {
    let len = head.len() + body.len();
    buffer[..head.len()].copy_from_slice(head);
    buffer[head.len()..len].copy_from_slice(body);
    &buffer[..len]
}

impl Rail for OfiRail {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn registrar(&self) -> Arc<dyn MemoryRegistrar> {
        Arc::clone(&self.registrar) as Arc<dyn MemoryRegistrar>
    }

    #[inline]
    fn post_credits(&self, link: LinkId) -> u32 {
        // Flushes in flight use credits of their link (see `post_flush`).
        let credits = |link: &OfiLink| link.ops.free_credits().saturating_sub(link.flushes);
        self.find_link(link).map_or(0, |link| credits(link).min(self.heads.free_count()))
    }

    #[inline]
    fn post(&mut self, link: LinkId, wr_id: u64, op: Op<'_>, signalled: bool) -> Result<(), PostError> {
        match op {
            Op::Recv { .. } | Op::MatchedRecv { .. } => self.post_receive(link, wr_id, op),
            Op::Flush => {
                if self.find_link(link).is_none() {
                    return Err(PostError::Refused(OpStatus::Flushed));
                }
                // Memory of the host needs no flush: the completion of a write implies that its bytes are visible.
                if signalled {
                    self.stash_completion(link, wr_id, CompletionKind::Posted, OpStatus::Ok);
                }
                Ok(())
            }
            Op::FlushAt { at } => self.post_flush(link, wr_id, at, signalled),
            _ => self.post_work(link, wr_id, op, signalled),
        }
    }

    fn take_back(&mut self, link: LinkId, wr_id: u64) -> bool {
        self.take_back_paired(link, wr_id)
    }

    fn flush(&mut self) {
        self.give_waiting();
    }

    fn unsent_ops(&self, link: LinkId) -> u32 {
        self.find_link(link).map_or(0, |link| {
            // A lingering provider may hold accepted operations back, so all that have not completed count as unsent.
            if self.profile.lingers { link.ops.outstanding_work() } else { link.unsent_count() }
        })
    }

    #[inline]
    fn poll(&mut self, out: &mut [Completion]) -> usize {
        self.collect_completions(out)
    }

    fn arm_wait(&mut self) -> WaitMethod {
        self.flush();
        let flushes = self.flusher.as_ref().is_some_and(|flusher| flusher.is_busy());
        // A waiter must not sleep while the rail itself has work that only a poll completes.
        let idle = self.stash.is_empty() && self.waits == 0 && !flushes;
        // By time, because no provider is known to wake a waiter through its descriptor (`wakes`).
        WaitMethod::After(if idle { NAP } else { Duration(0) })
    }
}
