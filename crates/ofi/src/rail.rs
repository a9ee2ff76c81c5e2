//! An open NIC: its links, its completion queue, and what has finished and was not told yet. Posting gives operations to the
//! provider at once; what that has no room for waits here, and is given again by whoever flushes or polls.

use std::collections::VecDeque;
use std::sync::Arc;

use trunkline_fabric::{
    Caps, Completion, Done, LinkId, Op, PostError, Purpose, Rail, RailConfig, Registrar, Source, Status, Wake,
};
use trunkline_proto::time::Duration;

use crate::contexts::Slot;
use crate::heads::Heads;
use crate::link::{From, Hello, Link, Pair, State, Work};
use crate::mutant::Planted;
use crate::nic::Opened;
use crate::ops::Kind;
use crate::post::{How, Posted, Source as Given};
use crate::profile::Profile;
use crate::queue::Queue;
use crate::region::{RKey, Remote as Place};
use crate::register::OfiRegistrar;
use crate::remains::Dying;
use crate::role::{Ctrl, Data};

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
    pub(crate) links: Vec<Option<Box<Link>>>,
    /// By place: what is left of a link that is gone, as long as the queue may still tell of its operations.
    pub(crate) gone: Vec<Option<Left>>,
    pub(crate) has_gone: bool,
    /// The endpoints of all links, where they do not have their own.
    pub(crate) shared: Option<Box<Pair>>,
    /// Endpoints of links that were never up.
    #[expect(clippy::vec_box, reason = "they are boxed where they come from")]
    pub(crate) half_made: Vec<Box<Pair>>,
    pub(crate) flusher: Option<Box<crate::flusher::Flusher>>,
    pub(crate) landing: Option<Box<crate::connect::Landings>>,
    pub(crate) heads: Heads,
    /// What goes on after its link.
    pub(crate) dying: Dying,
    /// Bytes that the provider copies at most.
    pub(crate) inject: usize,
    pub(crate) registrar: Arc<OfiRegistrar>,
    pub(crate) queue: Queue,
    pub(crate) stash: VecDeque<Completion>,
    /// Links with something that waits.
    pub(crate) waits: u32,
    /// What came for a link that is not there any more.
    pub(crate) strays: u64,
    pub(crate) nic: Arc<Opened>,
    pub(crate) info: crate::info::Info,
    pub(crate) profile: Profile,
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
pub(crate) struct Left {
    /// Operations on endpoints that others use, too, which are still to end.
    pub(crate) out: u32,
}

/// What a link's operations are given with.
struct Giving<'a> {
    link: &'a Link,
    nic: &'a Opened,
    heads: &'a Heads,
    slot: Slot,
}

fn refused(errno: crate::errno::Errno) -> PostError {
    PostError::Refused(Status::Other(errno.number().unsigned_abs()))
}

const PROTECTION: PostError = PostError::Refused(Status::LocalProtection);

/// What a write with this immediate brings to the queue of a link with that mark.
#[inline]
fn data_of(mark: u32, imm: Option<u32>) -> Option<u64> {
    imm.map(|imm| u64::from(mark) << 32 | u64::from(imm))
}

impl Giving<'_> {
    /// Gives an operation to the provider. Its bytes, where they were copied, are in `bytes`.
    #[inline]
    fn give(&self, pair: &mut Pair, work: Work, bytes: &[u8]) -> Posted {
        let Some((peer, records)) = self.link.peers else {
            // Only receives come before the peer is known, and need none.
            return match work {
                Work::Receive { into, tag } => self.receive(pair, into, tag),
                _ => Posted::Again,
            };
        };
        let theirs = self.link.theirs.as_ref();
        let mark = theirs.map_or(0, |theirs| theirs.mark);
        match work {
            Work::Receive { into, tag } => self.receive(pair, into, tag),
            Work::Send { from, tag, imm } => match self.source(from, bytes) {
                Some(from) => {
                    pair.data.send_tagged(peer, from, tag, data_of(mark, imm), self.slot, How::TOLD)
                }
                None => Posted::Refused(crate::errno::Errno::INVALID),
            },
            Work::Write { from, to, imm, .. } if to.purpose == Purpose::Records => {
                let from = match from {
                    From::Copied(_) => Some(Given::Inline(bytes)),
                    From::Kept(len) => self.heads.record(self.slot.0, len).map(Given::One),
                    From::Region(extent) => self.nic.table.records(extent).map(Given::One),
                    From::Both(..) => None,
                };
                let to = Place::<Ctrl>::new(RKey::new(to.key.0), to.addr);
                let Some(from) = from else { return Posted::Refused(crate::errno::Errno::INVALID) };
                pair.records.write(records, from, to, data_of(mark, imm), self.slot, How::TOLD)
            }
            Work::Write { from, to, imm, placed } => {
                let to = Place::<Data>::new(RKey::new(to.key.0), to.addr);
                let Some(from) = self.source(from, bytes) else {
                    return Posted::Refused(crate::errno::Errno::INVALID);
                };
                let placed = placed && !Planted::named("ofi-places-nothing").is_on();
                let how = How { placed, ..How::TOLD };
                pair.data.write(peer, from, to, data_of(mark, imm), self.slot, how)
            }
            Work::Read { into, from } => {
                let from = Place::<Data>::new(RKey::new(from.key.0), from.addr);
                match self.nic.table.data(into) {
                    Some(into) => pair.data.read(peer, into, from, self.slot, How::TOLD),
                    None => Posted::Refused(crate::errno::Errno::INVALID),
                }
            }
            Work::Proof { records: over } => {
                let landings = theirs.map(|theirs| theirs.landings).unwrap_or_default();
                let how = How { placed: true, ..How::TOLD };
                let nothing = [0; 8];
                if over {
                    let to = Place::<Ctrl>::new(RKey::new(landings[1].key), landings[1].addr);
                    pair.records.write(records, Given::Inline(&nothing), to, None, self.slot, how)
                } else {
                    let to = Place::<Data>::new(RKey::new(landings[0].key), landings[0].addr);
                    pair.data.write(peer, Given::Inline(&nothing), to, None, self.slot, how)
                }
            }
        }
    }

    #[inline]
    fn receive(&self, pair: &mut Pair, into: trunkline_fabric::Extent, tag: u64) -> Posted {
        match self.nic.table.data(into) {
            Some(into) => pair.data.receive_tagged(None, into, tag, 0, self.slot, false),
            None => Posted::Refused(crate::errno::Errno::INVALID),
        }
    }

    #[inline]
    fn source<'b>(&'b self, from: From, bytes: &'b [u8]) -> Option<Given<'b, Data>> {
        match from {
            From::Copied(_) => Some(Given::Inline(bytes)),
            From::Kept(len) => self.heads.payload(self.slot.0, len).map(Given::One),
            From::Region(extent) => self.nic.table.data(extent).map(Given::One),
            From::Both(len, extent) => {
                Some(Given::Two(self.heads.payload(self.slot.0, len)?, self.nic.table.data(extent)?))
            }
        }
    }
}

impl OfiRail {
    #[inline]
    pub(crate) fn link(&self, link: LinkId) -> Option<&Link> {
        self.links.get(link.0 as usize)?.as_deref()
    }

    /// Tag of what is paired by this key.
    fn paired_tag(&self, key: u64) -> u64 {
        let top = 1 << (self.tag_bits - PAIRED);
        key & (top - 1) | top
    }

    /// An operation with its bytes: the head and body of what is to be copied.
    #[inline]
    fn work<'a>(&self, op: Op<'a>, cookie: u64) -> Result<(Work, [&'a [u8]; 2], Kind), PostError> {
        let unsupported = PostError::Refused(Status::Other(UNSUPPORTED));
        // The provider copies no more than it said.
        let copied = |len| if len <= self.inject { From::Copied(len) } else { From::Kept(len) };
        let source = |head: &'a [u8], body: Source<'a>| {
            let most = self.caps.inline_max as usize;
            let too_long = PostError::Refused(Status::TooLong);
            match body {
                Source::Inline(bytes) if head.len() + bytes.len() > 2 * most => Err(too_long),
                Source::Inline(bytes) if bytes.len() > most || head.len() > most => Err(too_long),
                Source::Inline(bytes) => Ok((copied(head.len() + bytes.len()), [head, bytes])),
                Source::Region(_) if head.len() > most => Err(too_long),
                Source::Region(extent) if self.nic.table.data(extent).is_none() => Err(PROTECTION),
                Source::Region(extent) if head.is_empty() => Ok((From::Region(extent), [head, &[]])),
                Source::Region(extent) if extent.len == 0 => Ok((copied(head.len()), [head, &[]])),
                Source::Region(extent) => Ok((From::Both(head.len(), extent), [head, &[]])),
            }
        };
        Ok(match op {
            Op::Send { head, body, imm } => {
                let (from, bytes) = source(head, body)?;
                (Work::Send { from, tag: cookie, imm }, bytes, Kind::Work)
            }
            Op::MatchedSend { from, key } if self.caps.matched => {
                let (from, bytes) = source(&[], from)?;
                (Work::Send { from, tag: self.paired_tag(key.0), imm: None }, bytes, Kind::Work)
            }
            Op::Write { from: Source::Region(extent), to, imm } if to.purpose == Purpose::Records => {
                if self.nic.table.records(extent).is_none() {
                    return Err(PROTECTION);
                }
                let from = From::Region(extent);
                (Work::Write { from, to, imm, placed: false }, [&[], &[]], Kind::Work)
            }
            Op::Write { from, to, imm } => {
                let (from, bytes) = source(&[], from)?;
                (Work::Write { from, to, imm, placed: false }, bytes, Kind::Work)
            }
            Op::PlacedWrite { from, to, imm } if to.purpose != Purpose::Records => {
                let (from, bytes) = source(&[], from)?;
                (Work::Write { from, to, imm, placed: true }, bytes, Kind::Work)
            }
            Op::Read { into, from } => {
                if self.nic.table.data(into).is_none() {
                    return Err(PROTECTION);
                }
                (Work::Read { into, from }, [&[], &[]], Kind::Work)
            }
            Op::Nop if self.profile.arrives => (Work::Proof { records: false }, [&[], &[]], Kind::Proof(0)),
            Op::Nop if self.profile.one_stream => {
                (Work::Proof { records: false }, [&[], &[]], Kind::Proof(1))
            }
            Op::Nop => (Work::Proof { records: true }, [&[], &[]], Kind::Proof(2)),
            _ => return Err(unsupported),
        })
    }

    /// What is copied goes out at once, if it can: nothing is left of it here. Whether it has.
    #[inline]
    fn inject(&mut self, at: usize, work: Work, bytes: &[u8]) -> Result<bool, PostError> {
        let Some(Some(link)) = self.links.get_mut(at) else { return Ok(false) };
        let link = &mut **link;
        let (Some(pair), Some((peer, records))) = (link.pair.as_mut().or(self.shared.as_mut()), link.peers)
        else {
            return Ok(false);
        };
        let mark = link.theirs.as_ref().map_or(0, |theirs| theirs.mark);
        let posted = match work {
            Work::Send { tag, imm, .. } => pair.data.inject_tagged(peer, bytes, tag, data_of(mark, imm)),
            Work::Write { to, imm, .. } if to.purpose == Purpose::Records => {
                let to = Place::<Ctrl>::new(RKey::new(to.key.0), to.addr);
                pair.records.inject_write(records, bytes, to, data_of(mark, imm))
            }
            Work::Write { to, imm, .. } => {
                let to = Place::<Data>::new(RKey::new(to.key.0), to.addr);
                pair.data.inject_write(peer, bytes, to, data_of(mark, imm))
            }
            _ => return Ok(false),
        };
        match posted {
            Posted::Taken => Ok(true),
            Posted::Again => Ok(false),
            Posted::Refused(errno) => Err(refused(errno)),
        }
    }

    #[inline]
    fn post_work(&mut self, id: LinkId, wr_id: u64, op: Op<'_>, told: bool) -> Result<(), PostError> {
        let at = id.0 as usize;
        let Some(Some(link)) = self.links.get(at) else { return Err(PostError::Refused(Status::Flushed)) };
        if link.state != State::Up {
            return Err(PostError::Refused(Status::Flushed));
        }
        let cookie = link.theirs.as_ref().map_or(0, |theirs| theirs.cookie);
        let (work, parts, kind) = self.work(op, cookie)?;
        if link.ops.credits().min(self.heads.left()) == 0 {
            return Err(PostError::Busy);
        }
        let idle = link.waiting.is_empty();
        let mut buffer = [0; COPIED_MAX];
        let bytes = join(&mut buffer, parts);
        let copied = matches!(
            work,
            Work::Send { from: From::Copied(_), .. }
                | Work::Write { from: From::Copied(_), placed: false, .. }
        );
        // Who is told of refusals has to know of what, and who is told of arrival waits for it.
        let known = told && self.profile.arrives
            || self.profile.tells_refusals && matches!(work, Work::Write { .. })
            || self.profile.lingers;
        if copied && idle && !known && self.inject(at, work, bytes)? {
            if told {
                self.tell(id, wr_id, Done::Posted, Status::Ok);
            }
            return Ok(());
        }
        self.begin(at, wr_id, kind, told, work, bytes)
    }

    /// Begins an operation that has a place, and gives it if nothing waits before it.
    fn begin(
        &mut self,
        at: usize,
        wr_id: u64,
        kind: Kind,
        told: bool,
        work: Work,
        bytes: &[u8],
    ) -> Result<(), PostError> {
        let Some(Some(link)) = self.links.get_mut(at) else {
            return Err(PostError::Refused(Status::Flushed));
        };
        let Some(place) = link.ops.begin(wr_id, kind, told, work.region()) else {
            return Err(PostError::Busy);
        };
        let slot = link.base + place;
        // What the provider copies at once is kept only if it does not.
        if work.is_kept() {
            self.heads.keep(slot, work.is_record(), bytes);
        }
        if kind == Kind::Proof(0) {
            link.nops.push_back(place);
            self.end_nops(at);
            return Ok(());
        }
        if link.waiting.is_empty() {
            match give(link, &mut self.shared, &self.nic, &self.heads, slot, work, bytes) {
                Posted::Taken => return Ok(()),
                Posted::Again => {}
                Posted::Refused(errno) => {
                    link.ops.end(place);
                    self.heads.release(slot);
                    return Err(refused(errno));
                }
            }
        }
        if work.copied() > 0 {
            self.heads.keep(slot, work.is_record(), bytes);
        }
        self.waits += u32::from(link.waiting.is_empty());
        link.waiting.push_back((place, work));
        Ok(())
    }

    fn post_receive(&mut self, id: LinkId, wr_id: u64, op: Op<'_>) -> Result<(), PostError> {
        let at = id.0 as usize;
        let Some(Some(link)) = self.links.get(at) else { return Err(PostError::Refused(Status::Flushed)) };
        if link.state == State::Error {
            return Err(PostError::Refused(Status::Flushed));
        }
        let (into, tag, kind) = match op {
            Op::Recv { into } => (into, link.cookie, Kind::Receive),
            Op::MatchedRecv { into, key } if self.caps.matched => {
                (into, self.paired_tag(key.0), Kind::Paired)
            }
            _ => return Err(PostError::Refused(Status::Other(UNSUPPORTED))),
        };
        if self.nic.table.data(into).is_none() {
            return Err(PROTECTION);
        }
        if link.ops.receive_credits() == 0 {
            return Err(PostError::Busy);
        }
        self.begin(at, wr_id, kind, true, Work::Receive { into, tag }, &[])
    }

    /// Begins the first word to the peer, or the next part of a proof.
    pub(crate) fn begin_own(&mut self, at: usize, kind: Kind, records: bool) -> Result<(), PostError> {
        self.begin(at, 0, kind, false, Work::Proof { records }, &[])
    }

    /// An operation that has a place goes on with more.
    pub(crate) fn give_again(&mut self, at: usize, place: u32, work: Work) {
        let Some(Some(link)) = self.links.get_mut(at) else { return };
        self.waits += u32::from(link.waiting.is_empty());
        link.waiting.push_back((place, work));
    }

    /// Keeps for the next poll what that has to tell.
    pub(crate) fn tell(&mut self, link: LinkId, wr_id: u64, done: Done, status: Status) {
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
            let copied = work.copied().min(COPIED_MAX);
            let bytes = self.heads.bytes(slot, &mut buffer[..copied]);
            match give(link, &mut self.shared, &self.nic, &self.heads, slot, work, bytes) {
                Posted::Taken if copied > 0 => self.heads.release(slot),
                Posted::Taken => {}
                Posted::Again => break,
                Posted::Refused(errno) => {
                    broken = Some((place, errno));
                    break;
                }
            }
            link.waiting.pop_front();
        }
        self.waits -= u32::from(link.waiting.is_empty());
        if let Some((place, errno)) = broken {
            self.break_link(at, Some((place, Status::Other(errno.number().unsigned_abs()))));
        }
    }

    /// A link is in error: what it had comes back, as soon as the provider has done with it. Endpoints of its own are closed, so
    /// that nothing more lands.
    pub(crate) fn break_link(&mut self, at: usize, why: Option<(u32, Status)>) {
        let Some(Some(link)) = self.links.get_mut(at) else { return };
        if link.state == State::Error {
            return;
        }
        let id = link.id;
        let first = why.and_then(|(place, status)| link.ops.end(place).zip(Some(status)));
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
    fn end_with(&mut self, at: usize, own: Box<Pair>) {
        let Some(Some(link)) = self.links.get_mut(at) else { return };
        // Connections of which the peer has not heard yet may be half made: an endpoint that is closed then is used by providers
        // over sockets when they go on with it. It is closed with its domain.
        let base = link.base;
        let stays = link.hello != Hello::Heard;
        let waiting = std::mem::take(&mut link.waiting);
        self.waits -= u32::from(!waiting.is_empty());
        waiting.iter().for_each(|(place, _)| self.heads.release(base + place));
        if stays {
            self.half_made.push(own);
            self.heads.lose(base..base + self.span);
        } else {
            self.nic.closed_endpoints(own.count());
            drop(own);
            (base..base + self.span).for_each(|slot| self.heads.release(slot));
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
        waiting.iter().for_each(|(place, _)| self.heads.release(base + place));
        if link.out == 0 || Planted::named("ofi-gives-back-early").is_on() {
            self.end_rest(at);
        }
    }

    /// Gives back all that is left of a link in error.
    pub(crate) fn end_rest(&mut self, at: usize) {
        let Some(Some(link)) = self.links.get_mut(at) else { return };
        let id = link.id;
        let ops = link.end_all();
        ops.into_iter().for_each(|op| self.give_back(id, op, Status::Flushed));
    }

    /// Gives one operation back that did not go well.
    pub(crate) fn give_back(&mut self, id: LinkId, op: crate::ops::Op, status: Status) {
        if let Some(done) = op.done() {
            self.tell(id, op.wr_id, done, status);
        }
    }
}

/// Gives an operation of a link to the provider.
#[inline]
fn give(
    link: &mut Link,
    shared: &mut Option<Box<Pair>>,
    nic: &Opened,
    heads: &Heads,
    slot: u32,
    work: Work,
    bytes: &[u8],
) -> Posted {
    let mut own = link.pair.take();
    let posted = match own.as_mut().or(shared.as_mut()) {
        Some(pair) => Giving { link, nic, heads, slot: Slot(slot) }.give(pair, work, bytes),
        None => Posted::Again,
    };
    link.pair = own;
    posted
}

/// Both parts, one behind the other.
#[inline]
fn join<'b>(buffer: &'b mut [u8; COPIED_MAX], [head, body]: [&[u8]; 2]) -> &'b [u8] {
    let len = head.len() + body.len();
    buffer[..head.len()].copy_from_slice(head);
    buffer[head.len()..len].copy_from_slice(body);
    &buffer[..len]
}

impl Rail for OfiRail {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn registrar(&self) -> Arc<dyn Registrar> {
        Arc::clone(&self.registrar) as Arc<dyn Registrar>
    }

    #[inline]
    fn credits(&self, link: LinkId) -> u32 {
        let credits = |link: &Link| link.ops.credits().saturating_sub(link.flushes);
        self.link(link).map_or(0, |link| credits(link).min(self.heads.left()))
    }

    #[inline]
    fn post(&mut self, link: LinkId, wr_id: u64, op: Op<'_>, signalled: bool) -> Result<(), PostError> {
        match op {
            Op::Recv { .. } | Op::MatchedRecv { .. } => self.post_receive(link, wr_id, op),
            Op::Flush => {
                if self.link(link).is_none() {
                    return Err(PostError::Refused(Status::Flushed));
                }
                // Bytes in memory of the host are there when their write is told of.
                if signalled {
                    self.tell(link, wr_id, Done::Posted, Status::Ok);
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

    fn unsent(&self, link: LinkId) -> u32 {
        self.link(link).map_or(0, |link| if self.profile.lingers { link.ops.works() } else { link.unsent() })
    }

    #[inline]
    fn poll(&mut self, out: &mut [Completion]) -> usize {
        self.collect(out)
    }

    fn arm(&mut self) -> Wake {
        self.flush();
        let flushes = self.flusher.as_ref().is_some_and(|flusher| flusher.is_busy());
        let idle = self.stash.is_empty() && self.waits == 0 && !flushes;
        Wake::After(if idle { NAP } else { Duration(0) })
    }
}
