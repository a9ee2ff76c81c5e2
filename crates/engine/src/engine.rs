//! The calls front ends make. None blocks, except that registering, closing and setting up wait for a lane in use.

use std::sync::atomic::{AtomicBool, Ordering};

use spin::mutex::SpinMutex;

use trunkline_fabric::{Fabric, Host, NicPort, Rail};
use trunkline_proto::counters::Counters;
use trunkline_proto::id::ProcessId;
use trunkline_proto::limits::RECV_BUFFERS_MAX;
use trunkline_proto::pool::group::GroupId;

use crate::comm::outgoing::SendMessage;
use crate::comm::request::{RequestOutcome, RequestTicket};
use crate::comm::{CommSlot, CommTable};
use crate::control::linger::LingeringComm;
use crate::control::{ControlContext, ControlPlane};
use crate::lane::OwnerLock;
use crate::memory::regions::NO_MR;
use crate::pool::groups::{CommGroup, GroupTable, LockedMember, MemberLocation};
use crate::pool::member::CommSide;
use crate::pool::membership::new_control;
use crate::status::EngineStatus as Shown;
use crate::{CommFault, CommId, CommNics, EngineError, EngineParams, MrId, RequestId};

/// Eager messages whose records were not read yet, above which an isend reads records first.
const UNMATCHED_MAX: usize = 24;

/// Fruitless polls of a lane after which its thread also polls others.
const HELP_AFTER: u32 = 4;

/// One buffer of a receive.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RecvBuf {
    /// The region it lies in.
    pub mr: MrId,
    /// Its first byte, counted as the call's [`OffsetBase`] says.
    pub offset: u64,
    /// Its length in bytes; a message may be shorter.
    pub len: u64,
    /// The tag of the message it is for.
    pub tag: u32,
}

/// What the first byte of a buffer is counted from.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum OffsetBase {
    /// The start of its region.
    Region,
    /// Address 0: it is an address of this process.
    Address,
}

/// Trunkline over one fabric, for one process (or one of several in the simulator).
pub struct Engine<F: Fabric, H: Host> {
    pub(crate) comms: CommTable,
    pub(crate) groups: GroupTable<F::Rail>,
    pub(crate) control: OwnerLock<ControlPlane<H, F::Rail>>,
    pub(crate) lingering: OwnerLock<Vec<LingeringComm>>,
    /// Closed comms wait for a turn of their group that nobody else has.
    pub(crate) owes: AtomicBool,
    /// Groups whose links have ended, for the pool to know.
    pub(crate) broken: SpinMutex<Vec<GroupId>>,
    pub(crate) has_broken: AtomicBool,
    pub(crate) fabric: F,
    pub(crate) host: H,
    pub(crate) params: EngineParams,
    pub(crate) status: Shown,
    pub(crate) process: ProcessId,
}

impl<F: Fabric, H: Host> Engine<F, H> {
    /// An engine over `fabric`. Nothing listens or is connected yet.
    ///
    /// # Errors
    /// [`EngineError::Memory`].
    pub fn new(fabric: F, host: H, params: EngineParams) -> Result<Self, EngineError> {
        let process = ProcessId(host.random_bytes());
        let status = Shown::new(&fabric, &host, &params, process);
        let control = new_control(&fabric, &host, &params, process);
        Ok(Self {
            comms: CommTable::new(crate::status::row_count(&params))?,
            // Those whose comms are closed may linger.
            groups: GroupTable::new(2 * crate::status::row_count(&params), params.mutant)?,
            control: OwnerLock::new(control, params.mutant),
            lingering: OwnerLock::new(Vec::new(), params.mutant),
            owes: AtomicBool::new(false),
            broken: SpinMutex::new(Vec::new()),
            has_broken: AtomicBool::new(false),
            fabric,
            host,
            params,
            status,
            process,
        })
    }

    /// The NICs of the fabric.
    pub fn nics(&self) -> &[NicPort] {
        self.fabric.nics()
    }

    /// The fabric.
    pub fn fabric(&self) -> &F {
        &self.fabric
    }

    /// The machine.
    pub fn host(&self) -> &H {
        &self.host
    }

    /// This process.
    pub fn process_id(&self) -> ProcessId {
        self.process
    }

    /// What was counted so far.
    pub fn counters(&self) -> Counters {
        self.status.sum_counters(self.comms.slot_counts())
    }

    /// Open comms, lanes that linger after close, and control streams: for leak checks.
    pub fn in_use(&self) -> (usize, usize, usize) {
        (self.comms.open_count(), self.lingering.lock().len(), self.control.lock().stream_count())
    }

    /// Starts a send. `None` means not yet: call again with the same arguments.
    ///
    /// # Errors
    /// [`EngineError::Comm`] once the comm has failed; [`EngineError::Argument`] if the region does not hold the bytes.
    #[inline]
    pub fn isend(
        &self,
        comm: CommId,
        mr: MrId,
        offset: u64,
        len: u64,
        tag: u32,
    ) -> Result<Option<RequestId>, EngineError> {
        self.isend_from(comm, OffsetBase::Region, RecvBuf { mr, offset, len, tag })
    }

    /// [`Engine::isend`], for a buffer whose first byte is counted from `base`.
    ///
    /// # Errors
    /// As [`Engine::isend`].
    #[inline]
    pub fn isend_from(
        &self,
        comm: CommId,
        base: OffsetBase,
        buffer: RecvBuf,
    ) -> Result<Option<RequestId>, EngineError> {
        let slot = self.comm_slot(comm)?;
        let seat = slot.member_location();
        let Some(mut lane) = self.groups.try_lock_group(seat) else { return Ok(None) };
        let Some(mut turn) = locked_member_of(&mut lane, seat, comm) else {
            return Err(EngineError::Unknown("connection"));
        };
        let turn = &mut turn;
        let LockedMember { open, rails, .. } = turn;
        if let Some(fault) = open.fault {
            return Err(fault.into());
        }
        slot.set_driving_thread();
        if open.life.is_link_lost() {
            self.progress_comm(slot, turn);
            return turn.open.fault.map_or(Ok(None), |fault| Err(fault.into()));
        }
        let CommSide::Send(side) = &mut open.side else {
            return Err(EngineError::Argument("not a sending comm"));
        };
        if side.many.is_some() {
            side.set_time(self.host.now());
        }
        let Some(RecvBuf { mr, offset, len, tag }) = side.regions.locate_buffer(base, buffer) else {
            return Err(EngineError::Argument("the region does not hold these bytes"));
        };
        let message = SendMessage { mr, offset, len, tag };
        let mut started = if len > side.plan.blind_max || side.unmatched_eager() >= UNMATCHED_MAX {
            // Worth a look for the clear-to-send record: what goes eagerly is copied once more.
            Ok(None)
        } else {
            side.start_send(rails, &slot.requests, message)
        };
        if let Ok(None) = started {
            self.progress_comm(slot, turn);
            if let Some(fault) = turn.open.fault {
                return Err(fault.into());
            }
            let CommSide::Send(side) = &mut turn.open.side else { return Ok(None) };
            started = side.start_send(turn.rails, &slot.requests, message);
        }
        if let CommSide::Send(side) = &turn.open.side {
            slot.send_due.store(side.is_due(turn.rails), Ordering::Relaxed);
        }
        let started = self.finish_start(slot, turn, started);
        if let Ok(None) = started {
            drop(lane);
            self.drain_deferred();
        }
        started
    }

    /// Starts a receive of 1 to 8 buffers. `None` means not yet: call again with the same arguments.
    ///
    /// # Errors
    /// As [`Engine::isend`].
    #[inline]
    pub fn irecv(&self, comm: CommId, buffers: &[RecvBuf]) -> Result<Option<RequestId>, EngineError> {
        self.irecv_into(comm, OffsetBase::Region, buffers)
    }

    /// [`Engine::irecv`], for buffers whose first bytes are counted from `base`.
    ///
    /// # Errors
    /// As [`Engine::isend`].
    #[inline]
    pub fn irecv_into(
        &self,
        comm: CommId,
        base: OffsetBase,
        buffers: &[RecvBuf],
    ) -> Result<Option<RequestId>, EngineError> {
        let slot = self.comm_slot(comm)?;
        if buffers.is_empty() || buffers.len() > RECV_BUFFERS_MAX {
            return Err(EngineError::Argument("a receive has 1 to 8 buffers"));
        }
        let seat = slot.member_location();
        let Some(mut lane) = self.groups.try_lock_group(seat) else { return Ok(None) };
        let Some(mut turn) = locked_member_of(&mut lane, seat, comm) else {
            return Err(EngineError::Unknown("connection"));
        };
        let turn = &mut turn;
        let LockedMember { open, rails, .. } = turn;
        if let Some(fault) = open.fault {
            return Err(fault.into());
        }
        // If the thread then waits elsewhere, records that wait for a poll get one.
        if !self.params.mutant.is_planted("engine-forgets-who-receives") {
            slot.set_driving_thread();
        }
        let CommSide::Recv(side) = &mut open.side else {
            return Err(EngineError::Argument("not a receiving comm"));
        };
        let elsewhere = EngineError::Argument("a region does not hold its buffer");
        let started = if let &[only] = buffers {
            let Some(found) = side.regions.locate_buffer(base, only) else { return Err(elsewhere) };
            side.start_recv(rails, &slot.requests, &[found])
        } else {
            let mut located = [RecvBuf { mr: NO_MR, offset: 0, len: 0, tag: 0 }; RECV_BUFFERS_MAX];
            for (to, &buffer) in located.iter_mut().zip(buffers) {
                let Some(found) = side.regions.locate_buffer(base, buffer) else { return Err(elsewhere) };
                *to = found;
            }
            side.start_recv(rails, &slot.requests, &located[..buffers.len()])
        };
        if let Ok(None) = started {
            self.progress_comm(slot, turn);
        }
        let started = self.finish_start(slot, turn, started);
        if let Ok(None) = started {
            drop(lane);
            self.drain_deferred();
        }
        started
    }

    /// Makes received bytes visible to those who read them, a device or the CPU. `None` means there is nothing to wait for.
    ///
    /// # Errors
    /// As [`Engine::isend`].
    pub fn iflush(&self, comm: CommId, buffers: &[RecvBuf]) -> Result<Option<RequestId>, EngineError> {
        self.iflush_from(comm, OffsetBase::Region, buffers)
    }

    /// [`Engine::iflush`], of buffers whose first bytes are counted from `base`. Those that no region holds count as memory of
    /// the host.
    ///
    /// # Errors
    /// As [`Engine::isend`].
    pub fn iflush_from(
        &self,
        comm: CommId,
        base: OffsetBase,
        buffers: &[RecvBuf],
    ) -> Result<Option<RequestId>, EngineError> {
        let slot = self.comm_slot(comm)?;
        if buffers.iter().all(|buffer| buffer.len == 0) {
            return Ok(None);
        }
        let seat = slot.member_location();
        let mut lane = self.groups.lock_group(seat);
        let Some(mut turn) = locked_member_of(&mut lane, seat, comm) else {
            return Err(EngineError::Unknown("connection"));
        };
        let turn = &mut turn;
        let LockedMember { open, rails, .. } = turn;
        if let Some(fault) = open.fault {
            return Err(fault.into());
        }
        let CommSide::Recv(side) = &mut open.side else {
            return Err(EngineError::Argument("not a receiving comm"));
        };
        let located = buffers.iter().filter_map(|&buffer| side.regions.locate_buffer(base, buffer));
        let Some(what) = side.flush_target(located) else { return Ok(None) };
        let started = side.start_flush(rails, &slot.requests, what);
        self.finish_start(slot, turn, started)
    }

    #[inline(always)]
    fn finish_start(
        &self,
        slot: &CommSlot,
        turn: &mut LockedMember<'_, F::Rail>,
        started: Result<Option<RequestTicket>, CommFault>,
    ) -> Result<Option<RequestId>, EngineError> {
        match started {
            Ok(Some(ticket)) => {
                // Something moves, seen from here as little as what the peer writes to this side.
                turn.open.idle = 0;
                Ok(Some(RequestId::new(turn.open.id, ticket)))
            }
            Ok(None) => {
                slot.requests.row.count_retry();
                Ok(None)
            }
            Err(fault) => {
                self.fail_comm(slot, turn, fault);
                Err(turn.open.fault.unwrap_or(fault).into())
            }
        }
    }

    /// Looks at a request; true when it is done, and then gone. Fills in a size for each buffer.
    ///
    /// # Errors
    /// [`EngineError::Comm`] if it failed; the request is gone too.
    #[inline]
    pub fn test(&self, request: RequestId, sizes: &mut [u64; RECV_BUFFERS_MAX]) -> Result<bool, EngineError> {
        let done = self.test_count(request, sizes)?;
        if let Some(count) = done {
            sizes[count..].fill(0);
        }
        Ok(done.is_some())
    }

    /// [`Engine::test`], telling how many sizes a finished request has: 1 for a send, 0 for a flush.
    ///
    /// # Errors
    /// As [`Engine::test`].
    #[inline]
    pub fn test_count(
        &self,
        request: RequestId,
        sizes: &mut [u64; RECV_BUFFERS_MAX],
    ) -> Result<Option<usize>, EngineError> {
        let slot = self.comm_slot(request.comm_id())?;
        let due = slot.send_due.load(Ordering::Relaxed);
        // Of a request that has ended, the place may be another's.
        let asks_ended = self.params.mutant.is_planted("engine-asks-ended-requests");
        if due
            && (asks_ended || slot.requests.is_outstanding(request.request_ticket()))
            && !self.send_went(slot, request)?
        {
            return Ok(None);
        }
        let mut outcome = slot.requests.take_outcome(request.request_ticket(), sizes);
        if slot.joining.load(Ordering::Relaxed) && outcome != RequestOutcome::Pending {
            self.drive_unpolled_links(slot, request.comm_id());
        }
        if outcome == RequestOutcome::Pending && !due {
            let seat = slot.member_location();
            if let Some(mut lane) = self.groups.try_lock_group(seat) {
                let Some(mut turn) = locked_member_of(&mut lane, seat, request.comm_id()) else {
                    return Err(EngineError::Unknown("connection"));
                };
                self.progress_sends(slot, &mut turn);
                drop(lane);
                self.drain_deferred();
                outcome = slot.requests.take_outcome(request.request_ticket(), sizes);
            }
        }
        match outcome {
            RequestOutcome::Pending => Ok(None),
            RequestOutcome::Done(count) => Ok(Some(count)),
            RequestOutcome::Failed => Err(self.fault_of(request.comm_id())),
            RequestOutcome::Unknown => Err(EngineError::Unknown("request")),
        }
    }

    /// A finished eager send may still be here: gathered with others, or where the network takes nothing now. Lets it
    /// go, and reads the records that came meanwhile; false as long as it is here.
    fn send_went(&self, slot: &CommSlot, request: RequestId) -> Result<bool, EngineError> {
        let seat = slot.member_location();
        let Some(mut lane) = self.groups.try_lock_group(seat) else { return Ok(false) };
        let Some(mut turn) = locked_member_of(&mut lane, seat, request.comm_id()) else {
            return Err(EngineError::Unknown("connection"));
        };
        self.progress_sends(slot, &mut turn);
        let LockedMember { open, rails, .. } = turn;
        let request = request.request_ticket().slot_index();
        let here = matches!(&open.side, CommSide::Send(side) if !side.has_left(rails, request));
        Ok(open.fault.is_some() || !here)
    }

    /// [`Engine::progress_comm`], and records that came are read off the path of any message.
    #[inline]
    fn progress_sends(&self, slot: &CommSlot, turn: &mut LockedMember<'_, F::Rail>) {
        self.progress_comm(slot, turn);
        if let CommSide::Send(side) = &mut turn.open.side {
            side.read_records(turn.rails);
            slot.send_due.store(side.is_due(turn.rails), Ordering::Relaxed);
        }
    }

    /// Goes on with what is under way outside of any comm: handshakes and closed lanes. Front ends need not call it.
    pub fn progress_all(&self) {
        if let Some(mut control) = self.control.try_lock() {
            self.progress_control(&mut control);
        }
        self.deliver_link_frames();
        self.progress_lingering();
    }

    /// Comms whose caller makes no calls for them answer their peers all the same when somebody else does.
    pub(crate) fn deliver_link_frames(&self) {
        if !self.comms.news.swap(false, Ordering::AcqRel) {
            return;
        }
        for (id, slot) in self.comms.open_comms().filter(|(_, slot)| slot.has_link_frames()) {
            let seat = slot.member_location();
            let Some(mut lane) = self.groups.try_lock_group(seat) else {
                // Who has it may be past the look at what is new, or looks for another member.
                self.owes
                    .fetch_or(!self.params.mutant.is_planted("ride-owes-nobody-news"), Ordering::Relaxed);
                let kept = !self.params.mutant.is_planted("ride-loses-news-of-lanes-in-use");
                self.comms.news.fetch_or(kept, Ordering::Release);
                continue;
            };
            if let Some(mut turn) = locked_member_of(&mut lane, seat, id) {
                if turn.shared.is_some() {
                    self.drive_comm(slot, &mut turn);
                } else {
                    self.drive_links(slot, &mut turn);
                }
            }
        }
    }

    #[inline]
    fn progress_comm(&self, slot: &CommSlot, turn: &mut LockedMember<'_, F::Rail>) {
        slot.mark_polled();
        self.drive_comm(slot, turn);
        let open = &mut *turn.open;
        if open.life.is_link_lost() && open.fault.is_none() {
            self.check_peer(slot, turn);
        } else if open.idle > HELP_AFTER {
            slot.set_driving_thread();
            let due = self.schedule_peer_check(open);
            if due {
                open.idle = 0;
            }
            self.help_other_comm(slot);
            if due {
                self.check_idle_comm(slot, turn);
            }
        }
    }

    /// A lane has waited for long.
    #[cold]
    pub(crate) fn check_idle_comm(&self, slot: &CommSlot, turn: &mut LockedMember<'_, F::Rail>) {
        self.rest_if_idle(turn);
        self.check_peer(slot, turn);
    }

    /// Polls a lane, and names what it failed of; whether anything moved.
    #[inline]
    pub(crate) fn drive_comm(&self, slot: &CommSlot, turn: &mut LockedMember<'_, F::Rail>) -> bool {
        if turn.open.fault.is_some() {
            return self.drive_failed(slot, turn);
        }
        if turn.open.many
            && let CommSide::Send(lane) = &mut turn.open.side
        {
            lane.set_time(self.host.now());
        }
        let moved = turn.progress_member(&self.comms, &slot.requests);
        if turn.open.fault.is_some() {
            self.after_drive(slot, turn);
            self.on_fault(slot, turn);
        } else if turn.check_follow_up(slot) {
            self.after_drive(slot, turn);
        }
        moved
    }

    /// The same for a comm that has failed, and has something to do only where others share its links.
    #[cold]
    fn drive_failed(&self, slot: &CommSlot, turn: &mut LockedMember<'_, F::Rail>) -> bool {
        if turn.shared.is_none() {
            return false;
        }
        let moved = turn.progress_failed(&self.comms, &slot.requests);
        if turn.check_follow_up(slot) {
            self.after_drive(slot, turn);
        }
        moved
    }

    /// After a turn: links are looked after, and neighbours.
    fn after_drive(&self, slot: &CommSlot, turn: &mut LockedMember<'_, F::Rail>) {
        if turn.open.many {
            self.drive_links(slot, turn);
        }
        if turn.shared.is_some() {
            self.notify_members(slot, turn);
        }
    }

    /// The engine's parts that the control plane needs.
    pub(crate) fn control_context(&self) -> ControlContext<'_, H> {
        let Self { host, comms, params, status, .. } = self;
        ControlContext { host, comms, params, status }
    }

    pub(crate) fn progress_control(&self, control: &mut ControlPlane<H, F::Rail>) {
        control.progress_streams(&self.control_context());
        self.report_broken(control);
        while let Some(id) = control.abandoned.pop() {
            self.forget_attempt(control, id);
        }
        self.clear_leftovers(control);
    }

    pub(crate) fn check_nics(&self, nics: &CommNics) -> Result<(), EngineError> {
        let known = nics.numbers().iter().all(|&nic| nic < self.fabric.nics().len());
        if known { Ok(()) } else { Err(EngineError::Argument("no such NIC")) }
    }

    #[inline]
    pub(crate) fn comm_slot(&self, id: CommId) -> Result<&CommSlot, EngineError> {
        // No error is made, and dropped, where there is a comm.
        let Some(comm) = self.comms.get(id) else { return Err(EngineError::Unknown("connection")) };
        Ok(comm)
    }

    /// Uses an open comm's lane, waiting for it; `None` if no comm has that name.
    pub(crate) fn with_member<T>(
        &self,
        id: CommId,
        use_it: impl FnOnce(&mut LockedMember<'_, F::Rail>) -> T,
    ) -> Option<T> {
        let seat = self.comms.get(id)?.member_location();
        let mut lane = self.groups.lock_group(seat);
        let mut turn = locked_member_of(&mut lane, seat, id)?;
        Some(use_it(&mut turn))
    }
}

/// The turn of the comm of that name, if it has that seat.
#[inline]
pub(crate) fn locked_member_of<'a, R: Rail>(
    lane: &'a mut Option<CommGroup<R>>,
    seat: MemberLocation,
    id: CommId,
) -> Option<LockedMember<'a, R>> {
    lane.as_mut()?.locked_member_of(seat, id)
}

impl<F: Fabric, H: Host> Drop for Engine<F, H> {
    fn drop(&mut self) {
        self.shutdown();
    }
}
