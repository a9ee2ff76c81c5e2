//! The calls that front ends make. None blocks, except that registering, closing and setting up wait for a lock in use.

pub(crate) mod core;
pub(crate) mod driver;

use std::sync::atomic::Ordering;

use trunkline_fabric::{Fabric, Host, NicPort};
use trunkline_proto::counters::Counters;
use trunkline_proto::id::ProcessId;
use trunkline_proto::limits::RECV_BUFFERS_MAX;

use crate::comm::CommSlot;
use crate::comm::outgoing::SendMessage;
use crate::comm::request::{RequestOutcome, RequestTicket};
use crate::engine::core::{EngineCore, locked_member_of};
use crate::engine::driver::CommDriver;
use crate::link::path::LinkPath;
use crate::memory::regions::NO_MR;
use crate::pool::groups::{LockedMember, SharingUsage};
use crate::pool::member::CommSide;
use crate::{CommFault, CommId, EngineError, EngineParams, MrId, RequestId};

/// Number of eager messages with unread records from which on an isend reads records first, because each of them frees
/// a credit for a further eager message.
const UNMATCHED_MAX: usize = 24;

/// One buffer of a receive.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RecvBuf {
    /// The region that contains it.
    pub mr: MrId,
    /// Its first byte, relative to the call's [`OffsetBase`].
    pub offset: u64,
    /// Its length in bytes; a message may be shorter.
    pub len: u64,
    /// The tag of its message.
    pub tag: u32,
}

/// The base of a buffer's offset.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum OffsetBase {
    /// The start of its region.
    Region,
    /// Address 0: the offset is an address of this process.
    Address,
}

/// Trunkline over one fabric, for one process (or one of several in the simulator).
///
/// The calls of front ends are implemented here. Their state is in three parts, each of which owns the next one:
///
/// ```text
/// Engine
///   driver: CommDriver         polls open comms, looks after their links and peers
///     setup: ConnectionSetup   the control plane behind its lock, and closed comms that linger
///       core: EngineCore       fabric, host, parameters, status page; the tables of comms and of groups
/// ```
///
/// Dropping it closes all that is open.
pub struct Engine<F: Fabric, H: Host> {
    pub(crate) driver: CommDriver<F, H>,
    pub(crate) process: ProcessId,
}

impl<F: Fabric, H: Host> Engine<F, H> {
    /// Creates an engine over `fabric`, without listeners and connections.
    ///
    /// # Errors
    /// [`EngineError::Memory`].
    pub fn new(fabric: F, host: H, params: EngineParams) -> Result<Self, EngineError> {
        let process = ProcessId(host.random_bytes());
        let core = EngineCore::new(fabric, host, params, process)?;
        Ok(Self { driver: CommDriver::new(core, process), process })
    }

    /// Returns the NICs of the fabric.
    pub fn nics(&self) -> &[NicPort] {
        self.driver.setup.core.fabric.nics()
    }

    /// Returns the fabric.
    pub fn fabric(&self) -> &F {
        &self.driver.setup.core.fabric
    }

    /// Returns the host.
    pub fn host(&self) -> &H {
        &self.driver.setup.core.host
    }

    /// Returns the id of this process.
    pub fn process_id(&self) -> ProcessId {
        self.process
    }

    /// Returns the counters so far.
    pub fn counters(&self) -> Counters {
        let EngineCore { comms, status, .. } = &self.driver.setup.core;
        status.sum_counters(comms.slot_counts())
    }

    /// Returns the numbers of open comms, of comms that linger after close, and of control streams, for leak checks.
    pub fn in_use(&self) -> (usize, usize, usize) {
        let setup = &self.driver.setup;
        (setup.core.comms.open_count(), setup.lingering_count(), setup.lock_control().stream_count())
    }

    /// Returns the usage of shared queue pairs.
    pub fn sharing_usage(&self) -> SharingUsage {
        let setup = &self.driver.setup;
        let control = setup.lock_control();
        setup.core.groups.sharing_usage(&control)
    }

    /// Returns the name of the group of which a comm is a member, unique among the current groups of this engine; `None` if it
    /// shares nothing.
    pub fn group_of(&self, comm: CommId) -> Option<u32> {
        self.driver.setup.core.comms.get(comm)?.member_location().shared_lane()
    }

    /// Returns which links of an open comm are up, in order; `None` for an unknown comm.
    pub fn carrying_links(&self, comm: CommId) -> Option<Vec<bool>> {
        let core = &self.driver.setup.core;
        core.with_member(comm, |turn| turn.open.side.paths_mut().iter().map(LinkPath::is_carrying).collect())
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

    /// [`Engine::isend`], for a buffer whose offset is relative to `base`.
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
        let core = &self.driver.setup.core;
        let slot = core.comm_slot(comm)?;
        let seat = slot.member_location();
        let Some(mut lane) = core.groups.try_lock_group(seat) else { return Ok(None) };
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
            self.driver.progress_comm(slot, turn);
            return turn.open.fault.map_or(Ok(None), |fault| Err(fault.into()));
        }
        let CommSide::Send(side) = &mut open.side else {
            return Err(EngineError::Argument("the comm receives; only a sending comm can send"));
        };
        if side.many.is_some() {
            side.set_time(core.host.now());
        }
        let Some(RecvBuf { mr, offset, len, tag }) = side.regions.locate_buffer(base, buffer) else {
            return Err(EngineError::Argument("the bytes exceed the region"));
        };
        let message = SendMessage { mr, offset, len, tag };
        let mut started = if len > side.plan.blind_max || side.unmatched_eager() >= UNMATCHED_MAX {
            // Polls for the clear-to-send record first, because an eager message is copied once more than a direct one.
            Ok(None)
        } else {
            side.start_send(rails, &slot.requests, message)
        };
        if let Ok(None) = started {
            self.driver.progress_comm(slot, turn);
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
            self.driver.drain_deferred();
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

    /// [`Engine::irecv`], for buffers whose offsets are relative to `base`.
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
        let core = &self.driver.setup.core;
        let slot = core.comm_slot(comm)?;
        if buffers.is_empty() || buffers.len() > RECV_BUFFERS_MAX {
            return Err(EngineError::Argument("a receive has 1 to 8 buffers"));
        }
        let seat = slot.member_location();
        let Some(mut lane) = core.groups.try_lock_group(seat) else { return Ok(None) };
        let Some(mut turn) = locked_member_of(&mut lane, seat, comm) else {
            return Err(EngineError::Unknown("connection"));
        };
        let turn = &mut turn;
        let LockedMember { open, rails, .. } = turn;
        if let Some(fault) = open.fault {
            return Err(fault.into());
        }
        // A delayed record needs a poll: if the thread then waits on another comm, that comm's polls drive this one.
        slot.set_driving_thread();
        let CommSide::Recv(side) = &mut open.side else {
            return Err(EngineError::Argument("the comm sends; only a receiving comm can receive or flush"));
        };
        let elsewhere = EngineError::Argument("a buffer exceeds its region");
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
            self.driver.progress_comm(slot, turn);
        }
        let started = self.finish_start(slot, turn, started);
        if let Ok(None) = started {
            drop(lane);
            self.driver.drain_deferred();
        }
        started
    }

    /// Makes received bytes visible to their reader, a device or the CPU. `None` means that no flush is needed.
    ///
    /// # Errors
    /// As [`Engine::isend`].
    pub fn iflush(&self, comm: CommId, buffers: &[RecvBuf]) -> Result<Option<RequestId>, EngineError> {
        self.iflush_from(comm, OffsetBase::Region, buffers)
    }

    /// [`Engine::iflush`], for buffers whose offsets are relative to `base`. Buffers outside any region count as host memory.
    ///
    /// # Errors
    /// As [`Engine::isend`].
    pub fn iflush_from(
        &self,
        comm: CommId,
        base: OffsetBase,
        buffers: &[RecvBuf],
    ) -> Result<Option<RequestId>, EngineError> {
        let core = &self.driver.setup.core;
        let slot = core.comm_slot(comm)?;
        if buffers.iter().all(|buffer| buffer.len == 0) {
            return Ok(None);
        }
        let seat = slot.member_location();
        let mut lane = core.groups.lock_group(seat);
        let Some(mut turn) = locked_member_of(&mut lane, seat, comm) else {
            return Err(EngineError::Unknown("connection"));
        };
        let turn = &mut turn;
        let LockedMember { open, rails, .. } = turn;
        if let Some(fault) = open.fault {
            return Err(fault.into());
        }
        let CommSide::Recv(side) = &mut open.side else {
            return Err(EngineError::Argument("the comm sends; only a receiving comm can receive or flush"));
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
                // A new request resets the idle count, because the peer's writes to this side are not observable here.
                turn.open.idle = 0;
                Ok(Some(RequestId::new(turn.open.id, ticket)))
            }
            Ok(None) => {
                slot.requests.row.count_retry();
                Ok(None)
            }
            Err(fault) => {
                self.driver.fail_comm(slot, turn, fault);
                Err(turn.open.fault.unwrap_or(fault).into())
            }
        }
    }

    /// Tests a request; true when it is done, which frees it. Fills in a size for each buffer.
    ///
    /// # Errors
    /// [`EngineError::Comm`] if it failed, which frees it too.
    #[inline]
    pub fn test(&self, request: RequestId, sizes: &mut [u64; RECV_BUFFERS_MAX]) -> Result<bool, EngineError> {
        let done = self.test_count(request, sizes)?;
        if let Some(count) = done {
            sizes[count..].fill(0);
        }
        Ok(done.is_some())
    }

    /// [`Engine::test`], which also returns the number of sizes of a finished request: 1 for a send, 0 for a flush.
    ///
    /// # Errors
    /// As [`Engine::test`].
    #[inline]
    pub fn test_count(
        &self,
        request: RequestId,
        sizes: &mut [u64; RECV_BUFFERS_MAX],
    ) -> Result<Option<usize>, EngineError> {
        let core = &self.driver.setup.core;
        let slot = core.comm_slot(request.comm_id())?;
        let due = slot.send_due.load(Ordering::Relaxed);
        // The slot of a request that has ended may belong to another one.
        if due && slot.requests.is_outstanding(request.request_ticket()) && !self.send_went(slot, request)? {
            return Ok(None);
        }
        let mut outcome = slot.requests.take_outcome(request.request_ticket(), sizes);
        if slot.joining.load(Ordering::Relaxed) && outcome != RequestOutcome::Pending {
            self.driver.drive_unpolled_links(slot, request.comm_id());
        }
        if outcome == RequestOutcome::Pending && !due {
            let seat = slot.member_location();
            if let Some(mut lane) = core.groups.try_lock_group(seat) {
                let Some(mut turn) = locked_member_of(&mut lane, seat, request.comm_id()) else {
                    return Err(EngineError::Unknown("connection"));
                };
                self.driver.progress_sends(slot, &mut turn);
                drop(lane);
                self.driver.drain_deferred();
                outcome = slot.requests.take_outcome(request.request_ticket(), sizes);
            }
        }
        match outcome {
            RequestOutcome::Pending => Ok(None),
            RequestOutcome::Done(count) => Ok(Some(count)),
            RequestOutcome::Failed => Err(core.fault_of(request.comm_id())),
            RequestOutcome::Unknown => Err(EngineError::Unknown("request")),
        }
    }

    /// Sends a finished eager message that is still queued, either for batching or because the network accepts nothing now, and
    /// reads the records that arrived meanwhile. False while it is queued.
    fn send_went(&self, slot: &CommSlot, request: RequestId) -> Result<bool, EngineError> {
        let seat = slot.member_location();
        let Some(mut lane) = self.driver.setup.core.groups.try_lock_group(seat) else { return Ok(false) };
        let Some(mut turn) = locked_member_of(&mut lane, seat, request.comm_id()) else {
            return Err(EngineError::Unknown("connection"));
        };
        self.driver.progress_sends(slot, &mut turn);
        let LockedMember { open, rails, .. } = turn;
        let request = request.request_ticket().slot_index();
        let here = matches!(&open.side, CommSide::Send(side) if !side.has_left(rails, request));
        Ok(open.fault.is_some() || !here)
    }

    /// Makes progress on work outside any open comm: handshakes and closed comms. Front ends need not call it.
    pub fn progress_all(&self) {
        self.driver.progress_all();
    }
}

impl<F: Fabric, H: Host> Drop for Engine<F, H> {
    fn drop(&mut self) {
        self.shutdown();
    }
}
