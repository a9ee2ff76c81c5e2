//! A process's part in a one-sided job: what it serves, what it has begun, and the control streams for both. Front ends call it;
//! no call waits but for a lane that another thread has.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use trunkline_fabric::{Caps, Fabric, Host, Rail, RailConfig, RecvOrder};
use trunkline_proto::id::ProcessId;
use trunkline_proto::limits::{RMA_STREAMS_MAX, whole_lines};
use trunkline_proto::mutant::Mutant;
use trunkline_proto::reserve::try_filled_with;
use trunkline_proto::rma::atomic::Atomic;
use trunkline_proto::wire::dial::Card;
use trunkline_proto::wire::rma::Stream;
use trunkline_proto::wire::rma::signal::Update;
use trunkline_proto::wire::rma::word::Word as Word8;

use crate::control::member_key::MemberKey;
use crate::lane::Lane;
use crate::rma::context::{ANSWERS_MAX, Context, ContextId, Fetch, Local, Source};
use crate::rma::desk::Desk;
use crate::rma::error::RmaError;
use crate::rma::heaps::{Heaps, LearnedHeaps};
use crate::rma::native::Native;
use crate::rma::place::{Place, named};
use crate::rma::service::{RECEIVES_MAX, Service, arm_rails};
use crate::rma::streams::Streams;
use crate::{Nics, Params};

/// A member of the job, by its number.
pub type Member = u32;

/// Links that a rail has at most.
const LINKS_MAX: u32 = 4096;
/// Contexts of a member that a rail has room for; those that come beyond are refused.
const CONTEXTS: u32 = 4;
/// Receives of a link at least.
const RECEIVES_MIN: u32 = 4;
/// Calls that serve between two looks at control streams.
const STREAMS_EVERY: u64 = 64;
/// Operations that may be under way on a link.
const DEPTH_MAX: u32 = 128;

pub(super) const UNMET: RmaError = RmaError::Argument("the members are not known");

/// Which places have a context.
#[derive(Debug, Default)]
pub(super) struct Made {
    /// Places that had one so far, and those of them that have none now.
    places: usize,
    free: Vec<usize>,
    /// Contexts so far, by which those of one place are told apart.
    uses: u16,
}

/// A process in a job.
pub struct Job<F: Fabric, H: Host> {
    pub(super) fabric: F,
    pub(super) host: H,
    pub(super) params: Params,
    pub(super) nics: Nics,
    pub(super) process: ProcessId,
    pub(super) key: MemberKey,
    pub(super) me: OnceLock<(Member, Vec<Card>)>,
    pub(super) heaps: Mutex<Heaps>,
    pub(super) learned: Mutex<LearnedHeaps>,
    pub(super) desk: Lane<Desk<H>>,
    /// Nothing before the members are known.
    pub(super) service: Lane<Option<Service<F::Rail>>>,
    pub(super) contexts: Box<[OnceLock<Place<F::Rail>>]>,
    pub(super) made: Mutex<Made>,
    /// Calls that went on with everything.
    polls: AtomicU64,
}

impl<F: Fabric, H: Host> Job<F, H> {
    /// A process that serves others by these NICs. Nobody knows of it yet.
    ///
    /// # Errors
    /// A NIC cannot be opened, or the system refuses to listen.
    pub fn new(fabric: F, host: H, params: Params, nics: Nics) -> Result<Self, RmaError> {
        let process = ProcessId(host.random());
        let key = MemberKey::new([host.random(), host.random()]);
        let streams = Streams::new(process, &host, params.mutant)?;
        let mutant = params.mutant;
        Ok(Self {
            fabric,
            host,
            nics,
            process,
            key,
            me: OnceLock::new(),
            heaps: Mutex::default(),
            learned: Mutex::default(),
            desk: Lane::new(Desk::new(streams), mutant),
            service: Lane::new(None, mutant),
            contexts: try_filled_with(RMA_STREAMS_MAX, OnceLock::new)?,
            made: Mutex::default(),
            polls: AtomicU64::new(0),
            params,
        })
    }

    /// Rails for the end that serves or the one that begins, and how many receives each of their links has.
    pub(super) fn open(&self, serves: bool) -> Result<(Vec<F::Rail>, u32), RmaError> {
        let Some((_, cards)) = self.me.get() else { return Err(UNMET) };
        let paths = cards.iter().map(|card| u32::from(card.rails)).max().unwrap_or(1);
        let links = (cards.len() as u32).saturating_mul(paths);
        let links = links.saturating_mul(if serves { CONTEXTS } else { 1 }).min(LINKS_MAX);
        let nics = self.nics.numbers().iter().filter_map(|&nic| self.fabric.nics().get(nic));
        let caps = nics.map(|nic| nic.caps);
        let granted = caps.clone().map(|caps| caps.depth_max).min().unwrap_or(DEPTH_MAX);
        let depth = self.params.depth.min(DEPTH_MAX).min(granted);
        // Who comes when the receives are given away is refused. Else it would wait for ever for what it cannot be told.
        let shared = caps.clone().map(|caps| caps.receives_max).min().unwrap_or(u32::MAX);
        let shared = if self.params.mutant.is("job-promises-receives") { u32::MAX } else { shared };
        let links = links.min((shared / RECEIVES_MIN).max(1));
        // Each receive may complete, and each operation; a link has at least one of either.
        let room = |caps: Caps| {
            let each = caps.completions_max / links.max(1);
            caps.depth_max.min(each.saturating_sub(depth.min(each / 2))).min(shared / links.max(1))
        };
        let most = if serves { RECEIVES_MAX } else { ANSWERS_MAX };
        let receives = caps.map(room).min().unwrap_or(0).clamp(RECEIVES_MIN, most);
        let open = |&nic: &usize| {
            let config = RailConfig {
                depth,
                recv_depth: receives,
                recv_order: RecvOrder::Any,
                links,
                peer_time: self.params.peer_time,
                rail_time: self.params.rail_time,
                receives: serves,
                traffic_class: None,
                many: true,
            };
            Ok(self.fabric.open(nic, &config)?)
        };
        let rails = self.nics.numbers().iter().map(open).collect::<Result<_, RmaError>>()?;
        Ok((rails, receives))
    }

    /// The bug that is planted in it, if any.
    #[must_use]
    #[inline]
    pub const fn mutant(&self) -> Mutant {
        self.params.mutant
    }

    /// The number of this process, and of how many; nothing before [`Job::meet`].
    pub fn me(&self) -> Option<(Member, Member)> {
        self.me.get().map(|(me, cards)| (*me, cards.len() as Member))
    }

    /// A new context, with rails of its own.
    ///
    /// # Errors
    /// [`RmaError::Open`], [`RmaError::Register`], [`RmaError::Exhausted`].
    pub fn context(&self) -> Result<ContextId, RmaError> {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let exhausted = RmaError::Exhausted { what: "contexts", limit: RMA_STREAMS_MAX };
        let at = made.free.last().copied().unwrap_or(made.places);
        let stream = Stream::new(at as u8).filter(|_| at < RMA_STREAMS_MAX).ok_or(exhausted)?;
        let (rails, answers) = self.open(false)?;
        let heaps = self.heaps.lock().unwrap_or_else(PoisonError::into_inner).try_clone()?;
        let mutant = self.params.mutant;
        let now = self.host.now();
        let id = ContextId { stream, generation: made.uses };
        let mut context = Context::new(id, (rails, answers), heaps, now, &self.params)?;
        if self.nics_execute() {
            context.native = Some(Native::new(&context.rails[0])?);
        }
        // Nobody else takes this place: it is held.
        let place = self.contexts[at].get_or_init(|| Place::new(mutant));
        *place.claim() = Some(context);
        if let Err(lack) = self.learn_all(place) {
            let unmade = place.claim().take();
            drop(unmade);
            return Err(lack.into());
        }
        made.uses = made.uses.wrapping_add(1);
        if made.free.pop().is_none() {
            made.places += 1;
        }
        Ok(id)
    }

    /// Closes a context under which nothing is under way any more: what members served for it is theirs again, and its place is for
    /// another. False means not yet: something is under way, or another thread uses it. What has failed and was told by no quiet is
    /// not told any more.
    ///
    /// # Errors
    /// [`RmaError::Unknown`] if it was closed before.
    pub fn close_context(&self, id: ContextId) -> Result<bool, RmaError> {
        let closed = self.look(id, |context| Ok(context.is_idle().then_some(())))?;
        if closed.is_none() {
            return Ok(false);
        }
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(mut slot) = self.place(id)?.try_claim() else { return Ok(false) };
        if !named(&mut slot, id)?.is_idle() {
            return Ok(false);
        }
        self.end(&mut slot);
        made.free.push(id.stream.index());
        Ok(true)
    }

    /// The same whatever is under way, of which nothing is told any more: it may still be done, or not. Waits for whoever uses the context right now.
    ///
    /// # Errors
    /// As [`Job::close_context`].
    pub fn abandon_context(&self, id: ContextId) -> Result<(), RmaError> {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let mut slot = self.place(id)?.claim();
        named(&mut slot, id)?;
        self.end(&mut slot);
        made.free.push(id.stream.index());
        Ok(())
    }

    /// Says farewell for a context, and ends it.
    fn end(&self, slot: &mut Option<Context<F::Rail>>) {
        let Some(mut context) = slot.take() else { return };
        let mut desk = self.desk.claim();
        // First what it has yet to say: among it may be farewell to members that no link leads to any more.
        for (control, word) in std::mem::take(&mut context.words) {
            desk.streams.say(control, &word, None);
        }
        for (control, word) in context.farewell() {
            desk.streams.say(control, &word, None);
        }
    }

    pub(super) fn place(&self, id: ContextId) -> Result<&Place<F::Rail>, RmaError> {
        self.contexts.get(id.stream.index()).and_then(OnceLock::get).ok_or_else(RmaError::unknown)
    }

    /// Goes on with a context.
    pub(super) fn go_on_with(&self, place: &Place<F::Rail>, context: &mut Context<F::Rail>) -> bool {
        place.hear(context, || self.processes());
        context.tend(|| self.host.now(), self.params.rail_time);
        let moved = context.progress();
        self.say(&mut context.words);
        moved
    }

    /// Calls a context that nobody else has, once it reaches the member. `None`: not now.
    fn with<T>(
        &self,
        id: ContextId,
        member: Member,
        f: impl FnOnce(&mut Context<F::Rail>) -> Result<Option<T>, RmaError>,
    ) -> Result<Option<T>, RmaError> {
        let place = self.place(id)?;
        let Some(mut slot) = place.try_claim() else { return Ok(None) };
        let context = named(&mut slot, id)?;
        let reached = self.reach(context, member)?;
        let done = if reached { f(context)? } else { None };
        if done.is_none() {
            self.go_on_with(place, context);
            drop(slot);
            self.go_on();
            if !reached {
                // What it waits for comes by a control stream.
                self.hear_streams();
            }
        }
        Ok(done)
    }

    /// Begins the links from a context to a member, unless they are begun; whether anything can be asked of it now. For who waits
    /// for what a member does, and wants to know whether it still can.
    ///
    /// # Errors
    /// [`RmaError::Lost`], [`RmaError::Argument`].
    pub fn reaches(&self, id: ContextId, member: Member) -> Result<bool, RmaError> {
        Ok(self.with(id, member, |_| Ok(Some(())))?.is_some())
    }

    /// Most bytes that a context copies at once.
    ///
    /// # Errors
    /// [`RmaError::Unknown`].
    pub fn inline_max(&self, id: ContextId) -> Result<u64, RmaError> {
        Ok(named(&mut self.place(id)?.claim(), id)?.inline_max)
    }

    /// Puts bytes into a heap of a member, or as many of the first of them as go at once: how many, which are under way then; the
    /// rest is to be put by another call. `None` means not yet: call again with the same arguments.
    ///
    /// # Errors
    /// [`RmaError::Lost`], [`RmaError::Argument`].
    pub fn put(
        &self,
        id: ContextId,
        member: Member,
        heap: u8,
        offset: u64,
        from: Source<'_>,
    ) -> Result<Option<u64>, RmaError> {
        self.with(id, member, |context| context.put(member, heap, offset, from))
    }

    /// Gets bytes of a heap of a member, into one of this process, or as many of the first of them as come at once. They are there
    /// after a quiet. `None` means not yet.
    ///
    /// # Errors
    /// As [`Job::put`].
    pub fn get(
        &self,
        id: ContextId,
        member: Member,
        heap: u8,
        offset: u64,
        into: Local,
    ) -> Result<Option<u64>, RmaError> {
        self.with(id, member, |context| context.get(member, heap, offset, into))
    }

    /// Asks for an atomic on a word of a member, which that executes, or its NIC. `None` means not yet. One that does not fetch is complete
    /// with a quiet.
    ///
    /// # Errors
    /// As [`Job::put`].
    pub fn atomic(
        &self,
        id: ContextId,
        member: Member,
        word: Word8,
        atomic: Atomic,
    ) -> Result<Option<Fetch>, RmaError> {
        self.with(id, member, |context| context.atomic(member, word, atomic))
    }

    /// The value that an atomic has found; `None` means not yet. The place of one that fetches is its own until it is told here, or
    /// [given up](Job::give_up): who leaves [`RMA_CALLS_MAX`](trunkline_proto::limits::RMA_CALLS_MAX) of them to a member uncollected
    /// begins no other there.
    ///
    /// # Errors
    /// [`RmaError::NoWord`], [`RmaError::Lost`]; [`RmaError::Unknown`] if it was told before.
    pub fn fetched(&self, id: ContextId, fetch: Fetch) -> Result<Option<u64>, RmaError> {
        self.look(id, |context| context.fetched(fetch))
    }

    /// The same of what is known already: goes on with nothing.
    ///
    /// # Errors
    /// As [`Job::fetched`].
    pub fn found(&self, id: ContextId, fetch: Fetch) -> Result<Option<u64>, RmaError> {
        let Some(mut slot) = self.place(id)?.try_claim() else { return Ok(None) };
        named(&mut slot, id)?.fetched(fetch)
    }

    /// Nobody will ask for that value: it was given up, or cannot be had.
    ///
    /// # Errors
    /// [`RmaError::Unknown`] if there is no such context any more.
    pub fn give_up(&self, id: ContextId, fetch: Fetch) -> Result<(), RmaError> {
        named(&mut self.place(id)?.claim(), id)?.give_up(fetch);
        Ok(())
    }

    /// Says whether more operations of a context follow at once (`true`), or the next one is the last of its batch (`false`, as in the
    /// beginning). The posted operations of a batch are given to the network with its last one, or when anything goes on with the context:
    /// one doorbell per NIC, where each operation has one otherwise.
    ///
    /// # Errors
    /// [`RmaError::Unknown`] if there is no such context any more.
    pub fn batch(&self, id: ContextId, more: bool) -> Result<(), RmaError> {
        let batches = more && !self.params.mutant.is("job-ends-each-batch");
        named(&mut self.place(id)?.claim(), id)?.batches = batches;
        Ok(())
    }

    /// Signals a member: a word of it changes, after all that this context has put there before. False means not yet.
    ///
    /// # Errors
    /// As [`Job::put`].
    pub fn signal(&self, id: ContextId, member: Member, update: Update) -> Result<bool, RmaError> {
        let signal = |context: &mut Context<_>| Ok(context.signal(member, update)?.then_some(()));
        Ok(self.with(id, member, signal)?.is_some())
    }

    /// Puts bytes into a heap of a member, of any number, and signals it behind them. It is taken as a whole, and goes on by itself as
    /// the job does: bytes of a heap of this process are not to be changed before a quiet. One is under way towards a member at a
    /// time. False means not yet: call again with the same arguments.
    ///
    /// # Errors
    /// As [`Job::put`].
    pub fn put_signal(
        &self,
        id: ContextId,
        member: Member,
        (heap, offset): (u8, u64),
        from: Source<'_>,
        update: Update,
    ) -> Result<bool, RmaError> {
        let put = |context: &mut Context<_>| {
            Ok(context.put_signal(member, heap, offset, from, update)?.then_some(()))
        };
        Ok(self.with(id, member, put)?.is_some())
    }

    /// Whether all that a context has begun is complete where it was to go. False means not yet.
    ///
    /// # Errors
    /// [`RmaError::Failed`] for what failed since the last such error.
    pub fn quiet(&self, id: ContextId) -> Result<bool, RmaError> {
        Ok(self.look(id, |context| Ok(context.quiet()?.then_some(())))?.is_some())
    }

    /// The same of what it has begun towards one member.
    ///
    /// # Errors
    /// As [`Job::quiet`].
    pub fn quiet_member(&self, id: ContextId, member: Member) -> Result<bool, RmaError> {
        Ok(self.look(id, |context| Ok(context.quiet_member(member)?.then_some(())))?.is_some())
    }

    /// What a context begins from now on towards a member comes there after all that it has begun before.
    ///
    /// # Errors
    /// [`RmaError::Unknown`].
    pub fn fence(&self, id: ContextId) -> Result<(), RmaError> {
        named(&mut self.place(id)?.claim(), id)?.fence();
        Ok(())
    }

    /// Asks a context; goes on with everything if there is nothing yet.
    fn look<T>(
        &self,
        id: ContextId,
        mut f: impl FnMut(&mut Context<F::Rail>) -> Result<Option<T>, RmaError>,
    ) -> Result<Option<T>, RmaError> {
        let place = self.place(id)?;
        let Some(mut slot) = place.try_claim() else { return Ok(None) };
        let context = named(&mut slot, id)?;
        let found = f(context)?;
        if found.is_some() {
            return Ok(found);
        }
        self.go_on_with(place, context);
        let found = f(context)?;
        let serves = context.serves(found.is_some());
        drop(slot);
        if serves {
            self.go_on();
        }
        Ok(found)
    }

    /// Goes on with everything of which another thread has not the lane: control streams, what is served, and the context.
    /// Whether anything moved.
    ///
    /// # Errors
    /// [`RmaError::Unknown`].
    pub fn progress(&self, id: ContextId) -> Result<bool, RmaError> {
        let mut moved = self.go_on();
        let place = self.place(id)?;
        if let Some(mut slot) = place.try_claim() {
            moved |= self.go_on_with(place, named(&mut slot, id)?);
        }
        Ok(moved)
    }

    /// Calls so far by which threads of this process have served.
    pub(super) fn polls(&self) -> u64 {
        self.polls.load(Ordering::Relaxed)
    }

    /// Serves, as a thread of this process, which asks again at once. Control streams bring something seldom, and each time they are
    /// asked that is a system call for each of them.
    pub(super) fn go_on(&self) -> bool {
        // Two at once may count as one.
        let polls = self.polls().wrapping_add(1);
        self.polls.store(polls, Ordering::Relaxed);
        let moved = self.serve_links();
        moved | (polls.is_multiple_of(STREAMS_EVERY) && self.hear_streams())
    }

    /// Goes on with what this process does for others, and with control streams. Whether anything moved.
    pub fn serve(&self) -> bool {
        let moved = self.serve_links();
        moved | self.hear_streams()
    }

    /// A number that has grown if something has moved since it was last asked for, even if that completed nothing: what others put
    /// and get here, and pieces of what a context puts and gets. Then more is likely to. To be asked before a sleep. `None`:
    /// another thread is at it.
    pub fn stirs(&self, id: Option<ContextId>) -> Option<u64> {
        let served = self.service.try_claim()?.as_mut().map_or(0, Service::stirs);
        let Some(place) = id.and_then(|id| self.place(id).ok()) else { return Some(served) };
        let own = place.try_claim()?.as_mut().map_or(0, Context::stirs);
        Some(served + own)
    }

    /// Whether what others do to this process's memory makes progress only in its calls, and none of them hears of it.
    pub fn works_unseen(&self) -> bool {
        let mut nics = self.nics.numbers().iter().filter_map(|&nic| self.fabric.nics().get(nic));
        nics.any(|nic| nic.caps.unseen)
    }

    /// The same without control streams.
    pub(super) fn serve_links(&self) -> bool {
        let Some(mut service) = self.service.try_claim() else { return false };
        let Some(service) = service.as_mut() else { return false };
        let moved = service.progress();
        service.answer_all();
        self.say(&mut service.words);
        moved
    }

    /// Prepares a wait for whatever [`Job::serve_links`] and [`Job::go_on_with_begun`] would find and adds the descriptors to wait
    /// for. False if something has to be polled, or another thread is at it.
    pub(super) fn arm(&self, descriptors: &mut Vec<Arc<OwnedFd>>) -> bool {
        let is_armed = |service: &mut Service<F::Rail>| service.arm(descriptors);
        if !self.service.try_claim().is_some_and(|mut service| service.as_mut().is_some_and(is_armed)) {
            return false;
        }
        self.contexts.iter().filter_map(OnceLock::get).all(|place| {
            let Some(mut slot) = place.try_claim() else { return false };
            let begun = slot.as_mut().filter(|context| context.has_begun());
            begun.is_none_or(|context| arm_rails(&mut context.rails, descriptors))
        })
    }

    /// Goes on with all that contexts have begun of which nobody else has the lane. Whether anything moved.
    pub(super) fn go_on_with_begun(&self) -> bool {
        let mut moved = false;
        for place in self.contexts.iter().filter_map(OnceLock::get) {
            let Some(mut slot) = place.try_claim() else { continue };
            if let Some(context) = slot.as_mut().filter(|context| context.has_begun()) {
                moved |= self.go_on_with(place, context);
            }
        }
        moved
    }

    pub(super) fn hear_streams(&self) -> bool {
        self.desk.try_claim().is_some_and(|mut desk| self.hear(&mut desk))
    }

    /// Links that are served, and control streams: for leak checks.
    pub fn in_use(&self) -> (usize, usize) {
        let served = self.service.claim().as_ref().map_or(0, Service::len);
        (served, self.desk.claim().streams.len())
    }
}

impl<F: Fabric, H: Host> Drop for Job<F, H> {
    fn drop(&mut self) {
        for place in self.contexts.iter().filter_map(OnceLock::get) {
            self.end(&mut place.claim());
        }
    }
}

/// What a job's rails can do, as its contexts need to know.
pub(super) fn caps_of<R: Rail>(rails: &[R]) -> (bool, bool, u64, u64) {
    let all = |f: fn(&Caps) -> bool| rails.iter().all(|rail| f(rail.caps()));
    let least = |f: fn(&Caps) -> u64| rails.iter().map(|rail| f(rail.caps())).min();
    let inline = least(|caps| caps.inline_max.into()).unwrap_or(0);
    let message = least(|caps| caps.message_max).unwrap_or(0);
    (all(|caps| caps.arrives), all(|caps| caps.write_data), inline.min(message), whole_lines(message))
}
