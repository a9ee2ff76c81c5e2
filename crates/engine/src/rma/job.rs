//! A process's part in a one-sided job: the links that it serves, its contexts, and the control streams for both. Front ends call
//! it. No call blocks, except for a lock that another thread holds.

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

/// A member of the job, by its rank.
pub type MemberRank = u32;

/// The maximum number of links of a rail.
const LINKS_MAX: u32 = 4096;
/// Contexts per member for which a rail has links; the dials of further contexts are refused.
const CONTEXTS: u32 = 4;
/// The minimum number of receives of a link.
const RECEIVES_MIN: u32 = 4;
/// Service calls per poll of the control streams, because a poll is a system call per stream, and these streams are
/// seldom readable.
const STREAMS_EVERY: u64 = 64;
/// Operations in flight per link, at most.
const DEPTH_MAX: u32 = 128;

pub(super) const UNMET: RmaError = RmaError::Argument("set_members was not called yet");

/// The slots of contexts that are in use or free.
#[derive(Debug, Default)]
pub(super) struct SlotAllocator {
    /// Slots that have held a context, and those of them that are free now.
    places: usize,
    free: Vec<usize>,
    /// Contexts created so far: the generation that distinguishes the contexts of one slot.
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
    /// `None` before the members are known.
    pub(super) service: OwnerLock<Option<RmaService<F::Rail>>>,
    pub(super) contexts: Box<[OnceLock<ContextSlot<F::Rail>>]>,
    pub(super) made: Mutex<SlotAllocator>,
    /// Service calls so far.
    polls: AtomicU64,
}

impl<F: Fabric, H: Host> RmaJob<F, H> {
    /// Creates a process of a job that serves other members by these NICs. No member knows of it until it has the process's card.
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

    /// Opens rails for the serving or the initiating end. Returns them, and the number of receives that each of their links has.
    pub(super) fn open_rails(&self, serves: bool) -> Result<(Vec<F::Rail>, u32), RmaError> {
        let Some((_, cards)) = self.me.get() else { return Err(UNMET) };
        let paths = cards.iter().map(|card| u32::from(card.rails)).max().unwrap_or(1);
        let links = (cards.len() as u32).saturating_mul(paths);
        // The server needs links for several contexts per member; a context needs only its own.
        let links = links.saturating_mul(if serves { CONTEXTS } else { 1 }).min(LINKS_MAX);
        let nics = self.nics.numbers().iter().filter_map(|&nic| self.fabric.nics().get(nic));
        let caps = nics.map(|nic| nic.caps);
        let granted = caps.clone().map(|caps| caps.depth_max).min().unwrap_or(DEPTH_MAX);
        let depth = self.params.depth.min(DEPTH_MAX).min(granted);
        // A dial is refused once the shared receives are used up. An accepted link without receives would stall its sender, which
        // cannot detect that.
        let shared = caps.clone().map(|caps| caps.receives_max).min().unwrap_or(u32::MAX);
        let links = links.min((shared / RECEIVES_MIN).max(1));
        // Each receive and each operation may produce a completion, so both share the completion queue. A link has at least one
        // of each.
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

    /// Returns the rank of this process and the size of the job; `None` before [`RmaJob::set_members`].
    pub fn rank_and_size(&self) -> Option<(MemberRank, MemberRank)> {
        self.me.get().map(|(me, cards)| (*me, cards.len() as MemberRank))
    }

    /// Creates a context with rails of its own.
    ///
    /// # Errors
    /// [`RmaError::Open`], [`RmaError::Register`], [`RmaError::Exhausted`].
    pub fn create_context(&self) -> Result<ContextId, RmaError> {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let exhausted = RmaError::Exhausted { what: "contexts", limit: RMA_STREAMS_MAX };
        let at = made.free.last().copied().unwrap_or(made.places);
        let stream = RmaStream::new(at as u8).filter(|_| at < RMA_STREAMS_MAX).ok_or(exhausted)?;
        let (rails, answers) = self.open_rails(false)?;
        // The heaps so far; `made` is locked, so none is added before the context is in its slot.
        let heaps = self.heaps.lock().unwrap_or_else(PoisonError::into_inner).try_clone()?;
        let now = self.host.now();
        let id = ContextId { stream, generation: made.uses };
        let mut context = RmaContext::new(id, rails, answers, heaps, now, &self.params)?;
        // All atomics on a word must pass through the same NIC, so contexts use it too.
        if self.nics_execute() {
            context.native = Some(NicAtomics::new(&context.rails.all_rails()[0])?);
        }
        // No other call takes this slot, because the lock of `made` is held.
        let place = self.contexts[at].get_or_init(ContextSlot::new);
        // Visible from here on, but the caller gets the id only below.
        *place.lock_context() = Some(context);
        if let Err(lack) = self.copy_member_heaps(place) {
            // Taken out under the lock, dropped without it, because its rails deregister memory.
            let unmade = place.lock_context().take();
            drop(unmade);
            return Err(lack.into());
        }
        // Counted only now, because a failed call must not use up a generation.
        made.uses = made.uses.wrapping_add(1);
        if made.free.pop().is_none() {
            made.places += 1;
        }
        Ok(id)
    }

    /// Closes a context without pending operations: members stop serving it, and its slot becomes free. Returns false if
    /// operations are pending or another thread uses the context; call again then. Failures that no quiet has reported are
    /// dropped.
    ///
    /// # Errors
    /// [`RmaError::Unknown`] if it was closed before.
    pub fn close_context(&self, id: ContextId) -> Result<bool, RmaError> {
        let closed = self.poll_context(id, |context| Ok(context.poll_idle().then_some(())))?;
        // Checked first without `made`, which would block creations of contexts meanwhile.
        if closed.is_none() {
            return Ok(false);
        }
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(mut slot) = self.context_slot(id)?.try_lock_context() else { return Ok(false) };
        // Checked again, because another thread may have used the context between the two locks.
        if !live_context(&mut slot, id)?.poll_idle() {
            return Ok(false);
        }
        self.detach_context(&mut slot);
        // Free only after LEAVE is queued, because the next context of the slot dials with the same stream number.
        made.free.push(id.stream.index());
        Ok(true)
    }

    /// Closes a context whatever is pending: pending operations may still execute, and their results are not reported. Waits for
    /// a thread that uses the context right now.
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

    /// Sends LEAVE for a context to its members, and drops it.
    fn detach_context(&self, slot: &mut Option<RmaContext<F::Rail>>) {
        let Some(mut context) = slot.take() else { return };
        // Waits for the streams: LEAVE must be sent, because the context does not exist afterwards.
        let mut desk = self.desk.lock();
        // Queued messages first, because some of them are LEAVE messages to members that no link reaches any more.
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

    /// Makes progress on a context: delivers events, checks links, polls and sends.
    pub(super) fn progress_context(
        &self,
        place: &ContextSlot<F::Rail>,
        context: &mut RmaContext<F::Rail>,
    ) -> bool {
        // First, because the events may bring up the links that the caller waits for.
        place.deliver_events(context, || self.member_processes());
        context.check_links_when_due(|| self.host.now(), self.params.rail_time);
        let moved = context.progress();
        self.send_messages(&mut context.words);
        moved
    }

    /// Calls `f` on a context once it has a link to the member. `None`: not yet, or another thread holds the context.
    fn with_context<T>(
        &self,
        id: ContextId,
        member: MemberRank,
        f: impl FnOnce(&mut RmaContext<F::Rail>) -> Result<Option<T>, RmaError>,
    ) -> Result<Option<T>, RmaError> {
        let place = self.context_slot(id)?;
        // Another thread uses the context; the caller's retry is cheaper than a wait.
        let Some(mut slot) = place.try_lock_context() else { return Ok(None) };
        let context = live_context(&mut slot, id)?;
        let reached = self.ensure_links(context, member)?;
        let done = if reached { f(context)? } else { None };
        if done.is_none() {
            self.progress_context(place, context);
            // Unlocked first, because serving may take long, and other threads may use the context meanwhile.
            drop(slot);
            // The target may be waiting for this process, so a blocked caller also serves.
            self.progress_service();
            if !reached {
                // The answer to a dial arrives on a control stream.
                self.poll_control_streams();
            }
        }
        Ok(done)
    }

    /// Dials the links from a context to a member, unless that was done. Returns whether operations can be posted to it now.
    /// Waiters for an action of a member call this to find out whether the member is still reachable.
    ///
    /// # Errors
    /// [`RmaError::Lost`], [`RmaError::Argument`].
    pub fn connect_member(&self, id: ContextId, member: MemberRank) -> Result<bool, RmaError> {
        Ok(self.with_context(id, member, |_| Ok(Some(())))?.is_some())
    }

    /// Returns the maximum number of bytes that a context copies at once.
    ///
    /// # Errors
    /// [`RmaError::Unknown`].
    pub fn inline_max(&self, id: ContextId) -> Result<u64, RmaError> {
        Ok(live_context(&mut self.context_slot(id)?.lock_context(), id)?.inline_max)
    }

    /// Puts bytes into a heap of a member: the leading bytes that can be posted at once. Returns their number; those are in
    /// flight, and the caller puts the rest by further calls. `None` means not yet: call again with the same arguments.
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

    /// Gets bytes of a heap of a member into a heap of this process: the leading bytes that can be posted at once. Returns their
    /// number; they have arrived after a quiet. `None` means not yet.
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

    /// Posts an atomic on a word of a member, which the member or its NIC executes. `None` means not yet. An atomic that does not
    /// fetch is complete after a quiet.
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

    /// Returns the value that an atomic has fetched; `None` means not yet. A fetching atomic holds its slot until its value is
    /// collected here or [given up](RmaJob::give_up). With [`RMA_CALLS_MAX`](trunkline_proto::limits::RMA_CALLS_MAX) uncollected
    /// ones towards a member, no further one begins there.
    ///
    /// # Errors
    /// [`RmaError::NoWord`], [`RmaError::Lost`]; [`RmaError::Unknown`] if the value was collected before.
    pub fn collect_fetch(&self, id: ContextId, fetch: FetchHandle) -> Result<Option<u64>, RmaError> {
        self.poll_context(id, |context| context.collect_fetch(fetch))
    }

    /// Returns the fetched value if it has arrived already: makes no progress.
    ///
    /// # Errors
    /// As [`RmaJob::collect_fetch`].
    pub fn collect_ready_fetch(&self, id: ContextId, fetch: FetchHandle) -> Result<Option<u64>, RmaError> {
        let Some(mut slot) = self.context_slot(id)?.try_lock_context() else { return Ok(None) };
        live_context(&mut slot, id)?.collect_fetch(fetch)
    }

    /// Gives up a fetched value: the caller will not collect it, or it will never arrive. Frees its slot.
    ///
    /// # Errors
    /// [`RmaError::Unknown`] if there is no such context any more.
    pub fn give_up(&self, id: ContextId, fetch: FetchHandle) -> Result<(), RmaError> {
        live_context(&mut self.context_slot(id)?.lock_context(), id)?.give_up(fetch);
        Ok(())
    }

    /// Sets whether more operations of a context follow at once (`true`), or the next one is the last of its batch (`false`, the
    /// initial state). The operations of a batch are flushed with its last one, or with the next progress call of the context:
    /// one doorbell per NIC instead of one per operation.
    ///
    /// # Errors
    /// [`RmaError::Unknown`] if there is no such context any more.
    pub fn set_batching(&self, id: ContextId, more: bool) -> Result<(), RmaError> {
        live_context(&mut self.context_slot(id)?.lock_context(), id)?.rails.set_batching(more);
        Ok(())
    }

    /// Signals a member: updates a word there after all earlier puts of this context to that member. False means not yet.
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

    /// Puts any number of bytes into a heap of a member, and signals the member after them. The call accepts all of it or
    /// nothing, and the job's progress completes it. Source bytes in a heap of this process must not change before a quiet. At
    /// most one is pending per member. False means not yet: call again with the same arguments.
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

    /// Returns whether all operations of a context are complete at their targets. False means not yet.
    ///
    /// # Errors
    /// [`RmaError::Failed`] for operations that failed since the last such error.
    pub fn quiet(&self, id: ContextId) -> Result<bool, RmaError> {
        Ok(self.poll_context(id, |context| Ok(context.quiet()?.then_some(())))?.is_some())
    }

    /// As [`RmaJob::quiet`], for the operations towards one member.
    ///
    /// # Errors
    /// As [`RmaJob::quiet`].
    pub fn quiet_member(&self, id: ContextId, member: MemberRank) -> Result<bool, RmaError> {
        Ok(self.poll_context(id, |context| Ok(context.quiet_member(member)?.then_some(())))?.is_some())
    }

    /// Orders operations: those that a context begins from now on towards a member take effect there after all earlier ones.
    ///
    /// # Errors
    /// [`RmaError::Unknown`].
    pub fn fence(&self, id: ContextId) -> Result<(), RmaError> {
        live_context(&mut self.context_slot(id)?.lock_context(), id)?.fence();
        Ok(())
    }

    /// Queries a context; makes progress on everything if there is no result yet.
    fn poll_context<T>(
        &self,
        id: ContextId,
        mut f: impl FnMut(&mut RmaContext<F::Rail>) -> Result<Option<T>, RmaError>,
    ) -> Result<Option<T>, RmaError> {
        let place = self.context_slot(id)?;
        let Some(mut slot) = place.try_lock_context() else { return Ok(None) };
        let context = live_context(&mut slot, id)?;
        let found = f(context)?;
        // The common case of a result makes no further progress call.
        if found.is_some() {
            return Ok(found);
        }
        self.progress_context(place, context);
        let found = f(context)?;
        let serves = context.check_service_due(found.is_some());
        // Unlocked before serving, as above.
        drop(slot);
        if serves {
            self.progress_service();
        }
        Ok(found)
    }

    /// Makes progress on control streams, served links and the context, as far as no other thread holds their locks. Returns
    /// whether anything moved.
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

    /// Service calls so far by threads of this process.
    pub(super) fn poll_count(&self) -> u64 {
        self.polls.load(Ordering::Relaxed)
    }

    /// Serves on behalf of a calling thread, which polls again at once. Control streams are seldom readable, and a poll costs one
    /// system call per stream, so only each [`STREAMS_EVERY`]th call polls them.
    pub(super) fn progress_service(&self) -> bool {
        // Not one atomic increment: two concurrent calls may count as one, which only delays a poll of the streams.
        let polls = self.poll_count().wrapping_add(1);
        // Relaxed, because the count only decides how often the streams are polled.
        self.polls.store(polls, Ordering::Relaxed);
        let moved = self.serve_links();
        // `|` and not `||`, so that the streams are polled even if links moved.
        moved | (polls.is_multiple_of(STREAMS_EVERY) && self.poll_control_streams())
    }

    /// Serves other members, and polls the control streams. Returns whether anything moved.
    pub fn serve_members(&self) -> bool {
        let moved = self.serve_links();
        moved | self.poll_control_streams()
    }

    /// Returns a count that has grown if data has moved since the last call, even if that completed no operation: puts and gets
    /// of other members, and parts of a context's own transfers. If it has grown, more data is likely to move, so callers check
    /// it before they sleep. `None`: another thread holds one of the locks.
    pub fn sample_progress(&self, id: Option<ContextId>) -> Option<u64> {
        // Both locks are only tried, because this precedes a sleep and must not block.
        let served = self.service.try_lock()?.as_mut().map_or(0, RmaService::sample_progress);
        let Some(place) = id.and_then(|id| self.context_slot(id).ok()) else { return Some(served) };
        let own = place.try_lock_context()?.as_mut().map_or(0, |context| context.rails.sample_progress());
        Some(served + own)
    }

    /// Returns whether one-sided accesses to this process's memory make progress only during its calls, and those calls do not
    /// report them.
    pub fn works_unseen(&self) -> bool {
        let mut nics = self.nics.numbers().iter().filter_map(|&nic| self.fabric.nics().get(nic));
        nics.any(|nic| nic.caps.unseen)
    }

    /// As [`RmaJob::serve_members`], without control streams.
    pub(super) fn serve_links(&self) -> bool {
        let Some(mut service) = self.service.try_lock() else { return false };
        let Some(service) = service.as_mut() else { return false };
        let moved = service.progress();
        // After the poll, so that replies to new requests are sent with the queued ones.
        service.answer_all();
        // Messages for control streams that the service could not send itself.
        self.send_messages(&mut service.words);
        moved
    }

    /// Prepares a wait for events that [`RmaJob::serve_links`] and [`RmaJob::progress_begun`] would find, and adds the
    /// descriptors to wait for. False if something has to be polled, or another thread holds a lock.
    pub(super) fn arm_events(&self, descriptors: &mut Vec<Arc<OwnedFd>>) -> bool {
        let is_armed = |service: &mut RmaService<F::Rail>| service.arm_events(descriptors);
        if !self.service.try_lock().is_some_and(|mut service| service.as_mut().is_some_and(is_armed)) {
            // Some rail has to be polled, so a sleep would miss its events.
            return false;
        }
        self.contexts.iter().filter_map(OnceLock::get).all(|place| {
            let Some(mut slot) = place.try_lock_context() else { return false };
            // Contexts without pending work need no poll.
            let begun = slot.as_mut().filter(|context| context.has_begun());
            begun.is_none_or(|context| context.rails.arm_events(descriptors))
        })
    }

    /// Makes progress on all contexts that no other thread holds. Returns whether anything moved.
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

    /// Returns the numbers of served links and of control streams, for leak checks.
    pub fn in_use(&self) -> (usize, usize) {
        let served = self.service.lock().as_ref().map_or(0, RmaService::len);
        (served, self.desk.lock().streams.len())
    }
}

impl<F: Fabric, H: Host> Drop for RmaJob<F, H> {
    fn drop(&mut self) {
        for place in self.contexts.iter().filter_map(OnceLock::get) {
            // The peers must stop serving these contexts, even if the program ends in another way
            // than by close.
            self.detach_context(&mut place.lock_context());
        }
    }
}

/// The capabilities of a job's rails that its contexts depend on.
pub(super) fn caps_of<R: Rail>(rails: &[R]) -> (bool, bool, u64, u64) {
    let all = |f: fn(&Caps) -> bool| rails.iter().all(|rail| f(rail.caps()));
    let least = |f: fn(&Caps) -> u64| rails.iter().map(|rail| f(rail.caps())).min();
    // The smallest of all rails, because an operation must fit any of them.
    let inline = least(|caps| caps.inline_max.into()).unwrap_or(0);
    let message = least(|caps| caps.message_max).unwrap_or(0);
    (all(|caps| caps.arrives), all(|caps| caps.write_data), inline.min(message), whole_lines(message))
}
