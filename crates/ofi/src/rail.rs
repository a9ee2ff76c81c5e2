//! An open NIC: its links, its completion queue, and what has finished and was not told yet. Posting gives operations to the
//! provider at once; what that has no room for waits here, and is given again by whoever flushes or polls.

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

/// Most bytes of a head, or of a body, that are copied into an operation.
pub(crate) const INLINE_MAX: usize = 256;
/// Most bytes of both: one buffer on the stack.
pub(crate) const COPIED_MAX: usize = 2 * INLINE_MAX;
/// Tag bit of messages that are paired by their tag, in the highest place that the provider compares.
pub(crate) const PAIRED: u32 = 1;
/// How long somebody may sleep who waits for this rail.
const NAP: Duration = Duration(20_000);
/// An operation that this fabric does not have.
pub(crate) const UNSUPPORTED: u32 = 2;

/// An open NIC.
pub struct OfiRail {
    // In the order in which they may go.
    pub(crate) links: Vec<Option<Box<OfiLink>>>,
    /// By place: what is left of a link that is gone, as long as the queue may still tell of its operations.
    pub(crate) gone: Vec<Option<LingeringLink>>,
    pub(crate) has_gone: bool,
    /// The endpoints of all links, where they do not have their own.
    pub(crate) shared: Option<Box<EndpointPair>>,
    /// Endpoints of links that were never up.
    #[expect(clippy::vec_box, reason = "they are boxed where they come from")]
    pub(crate) half_made: Vec<Box<EndpointPair>>,
    pub(crate) flusher: Option<Box<crate::flusher::RailFlusher>>,
    pub(crate) landing: Option<Box<crate::connect::ProofBuffers>>,
    pub(crate) heads: HeadBuffers,
    /// What goes on after its link.
    pub(crate) dying: LingeringOps,
    /// Bytes that the provider copies at most.
    pub(crate) inject: usize,
    pub(crate) registrar: Arc<OfiRegistrar>,
    pub(crate) queue: OfiQueue,
    pub(crate) stash: VecDeque<Completion>,
    /// Links with something that waits.
    pub(crate) waits: u32,
    /// What came for a link that is not there any more.
    pub(crate) strays: u64,
    pub(crate) nic: Arc<OpenNic>,
    pub(crate) info: crate::info::OfiInfo,
    pub(crate) profile: ProviderProfile,
    pub(crate) config: RailConfig,
    pub(crate) caps: Caps,
    /// Slots of a link.
    pub(crate) span: u32,
    /// Links made so far.
    pub(crate) lives: u32,
    pub(crate) tag_bits: u32,
}

// SAFETY: queue and endpoints are used by one thread at a time, and so they are: all of them are in here, and every use of
// them takes the rail mutably.
unsafe impl Send for OfiRail {}

/// What is left of a link.
pub(crate) struct LingeringLink {
    /// Operations on endpoints that others use, too, which are still to end.
    pub(crate) out: u32,
}

/// What a link's operations are given with.
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

/// What a write with this immediate brings to the queue of a link with that mark.
#[inline]
fn remote_cq_data(mark: u32, imm: Option<u32>) -> Option<u64> {
    imm.map(|imm| u64::from(mark) << 32 | u64::from(imm))
}

impl LinkSubmission<'_> {
    /// Gives an operation to the provider. Its bytes, where they were copied, are in `bytes`.
    #[inline]
    fn submit_op(&self, pair: &mut EndpointPair, work: ProviderOp, bytes: &[u8]) -> SubmitOutcome {
        let Some((peer, records)) = self.link.peers else {
            // Only receives come before the peer is known, and need none.
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

    /// Tag of what is paired by this key.
    fn paired_tag(&self, key: u64) -> u64 {
        let top = 1 << (self.tag_bits - PAIRED);
        key & (top - 1) | top
    }

    /// An operation with its bytes: the head and body of what is to be copied.
    #[inline]
    fn prepare_op<'a>(
        &self,
        op: Op<'a>,
        cookie: u64,
    ) -> Result<(ProviderOp, [&'a [u8]; 2], LinkOpKind), PostError> {
        let unsupported = PostError::Refused(OpStatus::Other(UNSUPPORTED));
        // The provider copies no more than it said.
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
            Op::Nop if self.profile.arrives => {
                (ProviderOp::Proof { records: false }, [&[], &[]], LinkOpKind::Proof(0))
            }
            Op::Nop if self.profile.one_stream => {
                (ProviderOp::Proof { records: false }, [&[], &[]], LinkOpKind::Proof(1))
            }
            Op::Nop => (ProviderOp::Proof { records: true }, [&[], &[]], LinkOpKind::Proof(2)),
            _ => return Err(unsupported),
        })
    }

    /// What is copied goes out at once, if it can: nothing is left of it here. Whether it has.
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
        let idle = link.waiting.is_empty();
        let mut buffer = [0; COPIED_MAX];
        let bytes = join_parts(&mut buffer, parts);
        let copied = matches!(
            work,
            ProviderOp::Send { from: StagedSource::Copied(_), .. }
                | ProviderOp::Write { from: StagedSource::Copied(_), placed: false, .. }
        );
        // Who is told of refusals has to know of what, and who is told of arrival waits for it.
        let known = told && self.profile.arrives
            || self.profile.tells_refusals && matches!(work, ProviderOp::Write { .. })
            || self.profile.lingers;
        if copied && idle && !known && self.inject_op(at, work, bytes)? {
            if told {
                self.stash_completion(id, wr_id, CompletionKind::Posted, OpStatus::Ok);
            }
            return Ok(());
        }
        self.begin_op(at, wr_id, kind, told, work, bytes)
    }

    /// Begins an operation that has a place, and gives it if nothing waits before it.
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
        // What the provider copies at once is kept only if it does not.
        if work.is_kept() {
            self.heads.keep_bytes(slot, work.is_record(), bytes);
        }
        if kind == LinkOpKind::Proof(0) {
            link.nops.push_back(place);
            self.end_nops(at);
            return Ok(());
        }
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

    /// Begins the first word to the peer, or the next part of a proof.
    pub(crate) fn begin_own(&mut self, at: usize, kind: LinkOpKind, records: bool) -> Result<(), PostError> {
        self.begin_op(at, 0, kind, false, ProviderOp::Proof { records }, &[])
    }

    /// An operation that has a place goes on with more.
    pub(crate) fn give_again(&mut self, at: usize, place: u32, work: ProviderOp) {
        let Some(Some(link)) = self.links.get_mut(at) else { return };
        self.waits += u32::from(link.waiting.is_empty());
        link.waiting.push_back((place, work));
    }

    /// Keeps for the next poll what that has to tell.
    pub(crate) fn stash_completion(
        &mut self,
        link: LinkId,
        wr_id: u64,
        done: CompletionKind,
        status: OpStatus,
    ) {
        self.stash.push_back(Completion { wr_id, link, done, status, imm: None, len: 0 });
    }

    /// Gives what waits, as far as there is room.
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

    /// A link is in error: what it had comes back, as soon as the provider has done with it. Endpoints of its own are closed, so
    /// that nothing more lands.
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

    /// Ends what is out on a link with its endpoints.
    fn end_with(&mut self, at: usize, own: Box<EndpointPair>) {
        let Some(Some(link)) = self.links.get_mut(at) else { return };
        // Connections of which the peer has not heard yet may be half made: an endpoint that is closed then is used by providers
        // over sockets when they go on with it. It is closed with its domain.
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

    /// Ends what is out on a link whose endpoints go on: each when the provider says so, and what it never had behind them.
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

    /// Gives back all that is left of a link in error.
    pub(crate) fn end_rest(&mut self, at: usize) {
        let Some(Some(link)) = self.links.get_mut(at) else { return };
        let id = link.id;
        let ops = link.end_all();
        ops.into_iter().for_each(|op| self.give_back(id, op, OpStatus::Flushed));
    }

    /// Gives one operation back that did not go well.
    pub(crate) fn give_back(&mut self, id: LinkId, op: crate::ops::LinkOpEntry, status: OpStatus) {
        if let Some(done) = op.completion_kind() {
            self.stash_completion(id, op.wr_id, done, status);
        }
    }
}

/// Gives an operation of a link to the provider.
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
    let mut own = link.pair.take();
    let posted = match own.as_mut().or(shared.as_mut()) {
        Some(pair) => LinkSubmission { link, nic, heads, slot: OpSlot(slot) }.submit_op(pair, work, bytes),
        None => SubmitOutcome::Again,
    };
    link.pair = own;
    posted
}

/// Both parts, one behind the other.
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
                // Bytes in memory of the host are there when their write is told of.
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
        let idle = self.stash.is_empty() && self.waits == 0 && !flushes;
        WaitMethod::After(if idle { NAP } else { Duration(0) })
    }
}
