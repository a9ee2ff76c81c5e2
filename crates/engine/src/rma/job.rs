//! A process's part in a one-sided job: what it serves, what it has begun, and the control streams for both. Front ends call it;
//! no call waits but for a lane that another thread has.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use trunkline_fabric::{Caps, Fabric, Host, Rail, RailConfig, RecvOrder};
use trunkline_proto::id::ProcessId;
use trunkline_proto::limits::{RMA_STREAMS_MAX, whole_lines};
use trunkline_proto::reserve::try_filled_with;
use trunkline_proto::rma::atomic::TypedAtomic;
use trunkline_proto::wire::dial::ProcessCard;
use trunkline_proto::wire::rma::RmaStream;
use trunkline_proto::wire::rma::signal::SignalUpdate;
use trunkline_proto::wire::rma::word::SymmetricWord as Word8;

use crate::control::member_key::MemberKey;
use crate::lane::OwnerLock;
use crate::rma::atomics::NicAtomics;
use crate::rma::context::{ANSWERS_MAX, ContextId, FetchHandle, HeapRange, PutSource, RmaContext};
use crate::rma::context_slot::{ContextSlot, live_context};
use crate::rma::control_messages::ControlMessages;
use crate::rma::error::RmaError;
use crate::rma::heaps::{HeapTable, LearnedHeaps};
use crate::rma::service::{RECEIVES_MAX, RmaService};
use crate::rma::streams::MemberStreams;
use crate::{CommNics, EngineParams};

/// A member of the job, by its number.
pub type MemberRank = u32;

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
pub(super) struct SlotAllocator {
    /// Places that had one so far, and those of them that have none now.
    places: usize,
    free: Vec<usize>,
    /// Contexts so far, by which those of one place are told apart.
    uses: u16,
}

/// A process in a job.
pub struct RmaJob<F: Fabric, H: Host> {
    pub(super) fabric: F,
    pub(super) host: H,
    pub(super) params: EngineParams,
    pub(super) nics: CommNics,
    pub(super) process: ProcessId,
    pub(super) key: MemberKey,
    pub(super) me: OnceLock<(MemberRank, Vec<ProcessCard>)>,
    pub(super) heaps: Mutex<HeapTable>,
    pub(super) learned: Mutex<LearnedHeaps>,
    pub(super) desk: OwnerLock<ControlMessages<H>>,
    /// Nothing before the members are known.
    pub(super) service: OwnerLock<Option<RmaService<F::Rail>>>,
    pub(super) contexts: Box<[OnceLock<ContextSlot<F::Rail>>]>,
    pub(super) made: Mutex<SlotAllocator>,
    /// Calls that went on with everything.
    polls: AtomicU64,
}

impl<F: Fabric, H: Host> RmaJob<F, H> {
    /// A process that serves others by these NICs. Nobody knows of it yet.
    ///
    /// # Errors
    /// A NIC cannot be opened, or the system refuses to listen.
    pub fn new(fabric: F, host: H, params: EngineParams, nics: CommNics) -> Result<Self, RmaError> {
        let process = ProcessId(host.random_bytes());
        let key = MemberKey::new([host.random_bytes(), host.random_bytes()]);
        let streams = MemberStreams::new(process, &host)?;
        Ok(Self {
            fabric,
            host,
            nics,
            process,
            key,
            me: OnceLock::new(),
            heaps: Mutex::default(),
            learned: Mutex::default(),
            desk: OwnerLock::new(ControlMessages::new(streams)),
            service: OwnerLock::new(None),
            contexts: try_filled_with(RMA_STREAMS_MAX, OnceLock::new)?,
            made: Mutex::default(),
            polls: AtomicU64::new(0),
            params,
        })
    }

    /// Rails for the end that serves or the one that begins, and how many receives each of their links has.
    pub(super) fn open_rails(&self, serves: bool) -> Result<(Vec<F::Rail>, u32), RmaError> {
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
            Ok(self.fabric.open_rail(nic, &config)?)
        };
        let rails = self.nics.numbers().iter().map(open).collect::<Result<_, RmaError>>()?;
        Ok((rails, receives))
    }

    /// The number of this process, and of how many; nothing before [`RmaJob::set_members`].
    pub fn rank_and_size(&self) -> Option<(MemberRank, MemberRank)> {
        self.me.get().map(|(me, cards)| (*me, cards.len() as MemberRank))
    }

    /// A new context, with rails of its own.
    ///
    /// # Errors
    /// [`RmaError::Open`], [`RmaError::Register`], [`RmaError::Exhausted`].
    pub fn create_context(&self) -> Result<ContextId, RmaError> {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let exhausted = RmaError::Exhausted { what: "contexts", limit: RMA_STREAMS_MAX };
        let at = made.free.last().copied().unwrap_or(made.places);
        let stream = RmaStream::new(at as u8).filter(|_| at < RMA_STREAMS_MAX).ok_or(exhausted)?;
        let (rails, answers) = self.open_rails(false)?;
        let heaps = self.heaps.lock().unwrap_or_else(PoisonError::into_inner).try_clone()?;
        let now = self.host.now();
        let id = ContextId { stream, generation: made.uses };
        let mut context = RmaContext::new(id, rails, answers, heaps, now, &self.params)?;
        if self.nics_execute() {
            context.native = Some(NicAtomics::new(&context.rails.all_rails()[0])?);
        }
        // Nobody else takes this place: it is held.
        let place = self.contexts[at].get_or_init(ContextSlot::new);
        *place.lock_context() = Some(context);
        if let Err(lack) = self.copy_member_heaps(place) {
            let unmade = place.lock_context().take();
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
        let closed = self.poll_context(id, |context| Ok(context.poll_idle().then_some(())))?;
        if closed.is_none() {
            return Ok(false);
        }
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(mut slot) = self.context_slot(id)?.try_lock_context() else { return Ok(false) };
        if !live_context(&mut slot, id)?.poll_idle() {
            return Ok(false);
        }
        self.detach_context(&mut slot);
        made.free.push(id.stream.index());
        Ok(true)
    }

    /// The same whatever is under way, of which nothing is told any more: it may still be done, or not. Waits for whoever uses the context right now.
    ///
    /// # Errors
    /// As [`RmaJob::close_context`].
    pub fn abandon_context(&self, id: ContextId) -> Result<(), RmaError> {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let mut slot = self.context_slot(id)?.lock_context();
        live_context(&mut slot, id)?;
        self.detach_context(&mut slot);
        made.free.push(id.stream.index());
        Ok(())
    }

    /// Says farewell for a context, and ends it.
    fn detach_context(&self, slot: &mut Option<RmaContext<F::Rail>>) {
        let Some(mut context) = slot.take() else { return };
        let mut desk = self.desk.lock();
        // First what it has yet to say: among it may be farewell to members that no link leads to any more.
        for (control, word) in std::mem::take(&mut context.words) {
            desk.streams.send_message(control, &word, None);
        }
        for (control, word) in context.detach_messages() {
            desk.streams.send_message(control, &word, None);
        }
    }

    pub(super) fn context_slot(&self, id: ContextId) -> Result<&ContextSlot<F::Rail>, RmaError> {
        self.contexts.get(id.stream.index()).and_then(OnceLock::get).ok_or_else(RmaError::unknown_request)
    }

    /// Goes on with a context.
    pub(super) fn progress_context(
        &self,
        place: &ContextSlot<F::Rail>,
        context: &mut RmaContext<F::Rail>,
    ) -> bool {
        place.deliver_events(context, || self.member_processes());
        context.check_links_when_due(|| self.host.now(), self.params.rail_time);
        let moved = context.progress();
        self.send_messages(&mut context.words);
        moved
    }

    /// Calls a context that nobody else has, once it reaches the member. `None`: not now.
    fn with_context<T>(
        &self,
        id: ContextId,
        member: MemberRank,
        f: impl FnOnce(&mut RmaContext<F::Rail>) -> Result<Option<T>, RmaError>,
    ) -> Result<Option<T>, RmaError> {
        let place = self.context_slot(id)?;
        let Some(mut slot) = place.try_lock_context() else { return Ok(None) };
        let context = live_context(&mut slot, id)?;
        let reached = self.ensure_links(context, member)?;
        let done = if reached { f(context)? } else { None };
        if done.is_none() {
            self.progress_context(place, context);
            drop(slot);
            self.progress_service();
            if !reached {
                // What it waits for comes by a control stream.
                self.poll_control_streams();
            }
        }
        Ok(done)
    }

    /// Begins the links from a context to a member, unless they are begun; whether anything can be asked of it now. For who waits
    /// for what a member does, and wants to know whether it still can.
    ///
    /// # Errors
    /// [`RmaError::Lost`], [`RmaError::Argument`].
    pub fn connect_member(&self, id: ContextId, member: MemberRank) -> Result<bool, RmaError> {
        Ok(self.with_context(id, member, |_| Ok(Some(())))?.is_some())
    }

    /// Most bytes that a context copies at once.
    ///
    /// # Errors
    /// [`RmaError::Unknown`].
    pub fn inline_max(&self, id: ContextId) -> Result<u64, RmaError> {
        Ok(live_context(&mut self.context_slot(id)?.lock_context(), id)?.inline_max)
    }

    /// Puts bytes into a heap of a member, or as many of the first of them as go at once: how many, which are under way then; the
    /// rest is to be put by another call. `None` means not yet: call again with the same arguments.
    ///
    /// # Errors
    /// [`RmaError::Lost`], [`RmaError::Argument`].
    pub fn put(
        &self,
        id: ContextId,
        member: MemberRank,
        heap: u8,
        offset: u64,
        from: PutSource<'_>,
    ) -> Result<Option<u64>, RmaError> {
        self.with_context(id, member, |context| context.put(member, heap, offset, from))
    }

    /// Gets bytes of a heap of a member, into one of this process, or as many of the first of them as come at once. They are there
    /// after a quiet. `None` means not yet.
    ///
    /// # Errors
    /// As [`RmaJob::put`].
    pub fn get(
        &self,
        id: ContextId,
        member: MemberRank,
        heap: u8,
        offset: u64,
        into: HeapRange,
    ) -> Result<Option<u64>, RmaError> {
        self.with_context(id, member, |context| context.get(member, heap, offset, into))
    }

    /// Asks for an atomic on a word of a member, which that executes, or its NIC. `None` means not yet. One that does not fetch is complete
    /// with a quiet.
    ///
    /// # Errors
    /// As [`RmaJob::put`].
    pub fn post_atomic(
        &self,
        id: ContextId,
        member: MemberRank,
        word: Word8,
        atomic: TypedAtomic,
    ) -> Result<Option<FetchHandle>, RmaError> {
        self.with_context(id, member, |context| context.post_atomic(member, word, atomic))
    }

    /// The value that an atomic has found; `None` means not yet. The place of one that fetches is its own until it is told here, or
    /// [given up](RmaJob::give_up): who leaves [`RMA_CALLS_MAX`](trunkline_proto::limits::RMA_CALLS_MAX) of them to a member uncollected
    /// begins no other there.
    ///
    /// # Errors
    /// [`RmaError::NoWord`], [`RmaError::Lost`]; [`RmaError::Unknown`] if it was told before.
    pub fn collect_fetch(&self, id: ContextId, fetch: FetchHandle) -> Result<Option<u64>, RmaError> {
        self.poll_context(id, |context| context.collect_fetch(fetch))
    }

    /// The same of what is known already: goes on with nothing.
    ///
    /// # Errors
    /// As [`RmaJob::collect_fetch`].
    pub fn collect_ready_fetch(&self, id: ContextId, fetch: FetchHandle) -> Result<Option<u64>, RmaError> {
        let Some(mut slot) = self.context_slot(id)?.try_lock_context() else { return Ok(None) };
        live_context(&mut slot, id)?.collect_fetch(fetch)
    }

    /// Nobody will ask for that value: it was given up, or cannot be had.
    ///
    /// # Errors
    /// [`RmaError::Unknown`] if there is no such context any more.
    pub fn give_up(&self, id: ContextId, fetch: FetchHandle) -> Result<(), RmaError> {
        live_context(&mut self.context_slot(id)?.lock_context(), id)?.give_up(fetch);
        Ok(())
    }

    /// Says whether more operations of a context follow at once (`true`), or the next one is the last of its batch (`false`, as in the
    /// beginning). The posted operations of a batch are given to the network with its last one, or when anything goes on with the context:
    /// one doorbell per NIC, where each operation has one otherwise.
    ///
    /// # Errors
    /// [`RmaError::Unknown`] if there is no such context any more.
    pub fn set_batching(&self, id: ContextId, more: bool) -> Result<(), RmaError> {
        live_context(&mut self.context_slot(id)?.lock_context(), id)?.rails.set_batching(more);
        Ok(())
    }

    /// Signals a member: a word of it changes, after all that this context has put there before. False means not yet.
    ///
    /// # Errors
    /// As [`RmaJob::put`].
    pub fn send_signal(
        &self,
        id: ContextId,
        member: MemberRank,
        update: SignalUpdate,
    ) -> Result<bool, RmaError> {
        let signal = |context: &mut RmaContext<_>| Ok(context.send_signal(member, update)?.then_some(()));
        Ok(self.with_context(id, member, signal)?.is_some())
    }

    /// Puts bytes into a heap of a member, of any number, and signals it behind them. It is taken as a whole, and goes on by itself as
    /// the job does: bytes of a heap of this process are not to be changed before a quiet. One is under way towards a member at a
    /// time. False means not yet: call again with the same arguments.
    ///
    /// # Errors
    /// As [`RmaJob::put`].
    pub fn put_signal(
        &self,
        id: ContextId,
        member: MemberRank,
        heap: u8,
        offset: u64,
        from: PutSource<'_>,
        update: SignalUpdate,
    ) -> Result<bool, RmaError> {
        let put = |context: &mut RmaContext<_>| {
            Ok(context.put_signal(member, heap, offset, from, update)?.then_some(()))
        };
        Ok(self.with_context(id, member, put)?.is_some())
    }

    /// Whether all that a context has begun is complete where it was to go. False means not yet.
    ///
    /// # Errors
    /// [`RmaError::Failed`] for what failed since the last such error.
    pub fn quiet(&self, id: ContextId) -> Result<bool, RmaError> {
        Ok(self.poll_context(id, |context| Ok(context.quiet()?.then_some(())))?.is_some())
    }

    /// The same of what it has begun towards one member.
    ///
    /// # Errors
    /// As [`RmaJob::quiet`].
    pub fn quiet_member(&self, id: ContextId, member: MemberRank) -> Result<bool, RmaError> {
        Ok(self.poll_context(id, |context| Ok(context.quiet_member(member)?.then_some(())))?.is_some())
    }

    /// What a context begins from now on towards a member comes there after all that it has begun before.
    ///
    /// # Errors
    /// [`RmaError::Unknown`].
    pub fn fence(&self, id: ContextId) -> Result<(), RmaError> {
        live_context(&mut self.context_slot(id)?.lock_context(), id)?.fence();
        Ok(())
    }

    /// Asks a context; goes on with everything if there is nothing yet.
    fn poll_context<T>(
        &self,
        id: ContextId,
        mut f: impl FnMut(&mut RmaContext<F::Rail>) -> Result<Option<T>, RmaError>,
    ) -> Result<Option<T>, RmaError> {
        let place = self.context_slot(id)?;
        let Some(mut slot) = place.try_lock_context() else { return Ok(None) };
        let context = live_context(&mut slot, id)?;
        let found = f(context)?;
        if found.is_some() {
            return Ok(found);
        }
        self.progress_context(place, context);
        let found = f(context)?;
        let serves = context.check_service_due(found.is_some());
        drop(slot);
        if serves {
            self.progress_service();
        }
        Ok(found)
    }

    /// Goes on with everything of which another thread has not the lane: control streams, what is served, and the context.
    /// Whether anything moved.
    ///
    /// # Errors
    /// [`RmaError::Unknown`].
    pub fn progress(&self, id: ContextId) -> Result<bool, RmaError> {
        let mut moved = self.progress_service();
        let place = self.context_slot(id)?;
        if let Some(mut slot) = place.try_lock_context() {
            moved |= self.progress_context(place, live_context(&mut slot, id)?);
        }
        Ok(moved)
    }

    /// Calls so far by which threads of this process have served.
    pub(super) fn poll_count(&self) -> u64 {
        self.polls.load(Ordering::Relaxed)
    }

    /// Serves, as a thread of this process, which asks again at once. Control streams bring something seldom, and each time they are
    /// asked that is a system call for each of them.
    pub(super) fn progress_service(&self) -> bool {
        // Two at once may count as one.
        let polls = self.poll_count().wrapping_add(1);
        self.polls.store(polls, Ordering::Relaxed);
        let moved = self.serve_links();
        moved | (polls.is_multiple_of(STREAMS_EVERY) && self.poll_control_streams())
    }

    /// Goes on with what this process does for others, and with control streams. Whether anything moved.
    pub fn serve_members(&self) -> bool {
        let moved = self.serve_links();
        moved | self.poll_control_streams()
    }

    /// A number that has grown if something has moved since it was last asked for, even if that completed nothing: what others put
    /// and get here, and pieces of what a context puts and gets. Then more is likely to. To be asked before a sleep. `None`:
    /// another thread is at it.
    pub fn sample_progress(&self, id: Option<ContextId>) -> Option<u64> {
        let served = self.service.try_lock()?.as_mut().map_or(0, RmaService::sample_progress);
        let Some(place) = id.and_then(|id| self.context_slot(id).ok()) else { return Some(served) };
        let own = place.try_lock_context()?.as_mut().map_or(0, |context| context.rails.sample_progress());
        Some(served + own)
    }

    /// Whether what others do to this process's memory makes progress only in its calls, and none of them hears of it.
    pub fn works_unseen(&self) -> bool {
        let mut nics = self.nics.numbers().iter().filter_map(|&nic| self.fabric.nics().get(nic));
        nics.any(|nic| nic.caps.unseen)
    }

    /// The same without control streams.
    pub(super) fn serve_links(&self) -> bool {
        let Some(mut service) = self.service.try_lock() else { return false };
        let Some(service) = service.as_mut() else { return false };
        let moved = service.progress();
        service.answer_all();
        self.send_messages(&mut service.words);
        moved
    }

    /// Prepares a wait for whatever [`RmaJob::serve_links`] and [`RmaJob::progress_begun`] would find and adds the descriptors to wait
    /// for. False if something has to be polled, or another thread is at it.
    pub(super) fn arm_events(&self, descriptors: &mut Vec<Arc<OwnedFd>>) -> bool {
        let is_armed = |service: &mut RmaService<F::Rail>| service.arm_events(descriptors);
        if !self.service.try_lock().is_some_and(|mut service| service.as_mut().is_some_and(is_armed)) {
            return false;
        }
        self.contexts.iter().filter_map(OnceLock::get).all(|place| {
            let Some(mut slot) = place.try_lock_context() else { return false };
            let begun = slot.as_mut().filter(|context| context.has_begun());
            begun.is_none_or(|context| context.rails.arm_events(descriptors))
        })
    }

    /// Goes on with all that contexts have begun of which nobody else has the lane. Whether anything moved.
    pub(super) fn progress_begun(&self) -> bool {
        let mut moved = false;
        for place in self.contexts.iter().filter_map(OnceLock::get) {
            let Some(mut slot) = place.try_lock_context() else { continue };
            if let Some(context) = slot.as_mut().filter(|context| context.has_begun()) {
                moved |= self.progress_context(place, context);
            }
        }
        moved
    }

    pub(super) fn poll_control_streams(&self) -> bool {
        self.desk.try_lock().is_some_and(|mut desk| self.receive_messages(&mut desk))
    }

    /// Links that are served, and control streams: for leak checks.
    pub fn in_use(&self) -> (usize, usize) {
        let served = self.service.lock().as_ref().map_or(0, RmaService::len);
        (served, self.desk.lock().streams.len())
    }
}

impl<F: Fabric, H: Host> Drop for RmaJob<F, H> {
    fn drop(&mut self) {
        for place in self.contexts.iter().filter_map(OnceLock::get) {
            self.detach_context(&mut place.lock_context());
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
