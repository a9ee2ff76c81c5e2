//! The state that all parts of an engine use: its fabric, host, parameters and status page, and its tables of comms and of
//! groups. Called by every part. Waits for no lock but that of one group, and neither moves messages nor makes handshakes.

use trunkline_fabric::{Fabric, Host, Rail};
use trunkline_proto::counters::ProcessTally;
use trunkline_proto::id::ProcessId;
use trunkline_proto::limits::MEMBERS_OF_GROUP_MAX;
use trunkline_proto::time::Duration;
use trunkline_proto::wire::member::MemberId;

use crate::comm::{CommSlot, CommTable};
use crate::control::ControlContext;
use crate::control::peer_check::LOOKS_AT_END;
use crate::link::rails::GroupRails;
use crate::pool::groups::{CommGroup, GroupResources, GroupTable, LockedMember, MemberLocation};
use crate::pool::member::{FailureTimer, OpenComm};
use crate::status::{EngineStatus, row_count};
use crate::{CommId, CommNics, EngineError, EngineParams};

/// The settings of an engine, the process around it, and its tables of comms and of groups.
///
/// [`ConnectionSetup`](crate::control::setup::ConnectionSetup) owns it, and the parts above access it through that one. All of
/// them have shared references only: the fabric, the host and the parameters never change, and each table and the status page
/// guard their own state. Each comm in `comms` is a member of a group in `groups` from the moment that it has a name. It loses
/// its name under the lock of that group. Nothing here takes the lock of the control plane.
pub(crate) struct EngineCore<F: Fabric, H: Host> {
    pub(crate) comms: CommTable,
    pub(crate) groups: GroupTable<F::Rail>,
    pub(crate) fabric: F,
    pub(crate) host: H,
    pub(crate) params: EngineParams,
    pub(crate) status: EngineStatus,
}

impl<F: Fabric, H: Host> EngineCore<F, H> {
    /// Creates empty tables, and the status page of the process.
    ///
    /// # Errors
    /// [`EngineError::Memory`].
    pub(super) fn new(
        fabric: F,
        host: H,
        params: EngineParams,
        process: ProcessId,
    ) -> Result<Self, EngineError> {
        let status = EngineStatus::new(&fabric, &host, &params, process);
        Ok(Self {
            comms: CommTable::new(row_count(&params))?,
            // The double number, because closed comms may linger with their group.
            groups: GroupTable::new(2 * row_count(&params))?,
            fabric,
            host,
            params,
            status,
        })
    }

    /// Returns the state that the control plane needs to dispatch frames.
    pub(crate) fn control_context(&self) -> ControlContext<'_, H> {
        let Self { host, comms, params, status, .. } = self;
        ControlContext { host, comms, params, status }
    }

    /// Checks that the fabric has each of these NICs.
    pub(crate) fn check_nics(&self, nics: &CommNics) -> Result<(), EngineError> {
        let known = nics.numbers().iter().all(|&nic| nic < self.fabric.nics().len());
        if known { Ok(()) } else { Err(EngineError::Argument("the NIC number is out of range")) }
    }

    /// Returns the slot of an open comm.
    #[inline]
    pub(crate) fn comm_slot(&self, id: CommId) -> Result<&CommSlot, EngineError> {
        // Constructed only in the error case, because an eager error value would have to be dropped on each call.
        let Some(comm) = self.comms.get(id) else { return Err(EngineError::Unknown("connection")) };
        Ok(comm)
    }

    /// Calls `use_it` with an open comm, under its group's lock, for which it waits; `None` if no comm has this name.
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

    /// Returns the error of a request of a failed comm.
    pub(crate) fn fault_of(&self, id: CommId) -> EngineError {
        let fault = self.with_member(id, |turn| turn.open.fault).flatten();
        fault.map_or(EngineError::Unknown("request"), EngineError::from)
    }

    /// Opens a comm over rails of its own.
    pub(crate) fn install_comm(
        &self,
        open: OpenComm,
        rails: GroupRails<F::Rail>,
    ) -> Result<CommId, EngineError> {
        let place = self.comms.reserve_slot(&self.status)?;
        let id = self.comms.insert(place, open, self.host.now(), &self.status, |open| {
            Ok(MemberLocation::of_single_comm(self.groups.insert(CommGroup::of_single_comm(rails, open))?))
        })?;
        self.status.add_tally(ProcessTally::CommsOpened, 1);
        self.show_usage();
        Ok(id)
    }

    /// Opens a comm in the group of a lane; `part` sets its names there.
    pub(crate) fn install_in(
        &self,
        lane: u32,
        open: OpenComm,
        part: impl FnOnce(&mut OpenComm, &mut GroupResources, MemberId) -> bool,
    ) -> Result<CommId, EngineError> {
        let reserved = match self.comms.reserve_slot(&self.status) {
            Ok(reserved) => reserved,
            Err(error) => {
                self.reject_member(lane, open);
                return Err(error);
            }
        };
        let id = self.comms.insert(reserved, open, self.host.now(), &self.status, |open| {
            let mut held = self.groups.lock_lane(lane);
            let full = EngineError::Exhausted { what: "members of a group", limit: MEMBERS_OF_GROUP_MAX };
            let peer = open.peer.process;
            let member = held.as_mut().and_then(|group| group.add_member(open, part)).ok_or(full)?;
            if let Some((common, rails)) = held.as_mut().and_then(CommGroup::shared_resources) {
                self.status.show_group(lane, peer, common, rails);
            }
            Ok(MemberLocation::of_member(lane, member))
        })?;
        self.status.add_tally(ProcessTally::CommsOpened, 1);
        self.show_usage();
        Ok(id)
    }

    /// Releases the group resources of a comm that does not join the group.
    pub(crate) fn reject_member(&self, lane: u32, open: OpenComm) {
        if let Some(group) = self.groups.lock_lane(lane).as_mut() {
            group.reject_member(open);
        }
    }

    /// Destroys the queue pairs of a group.
    pub(crate) fn end_group(&self, lane: u32) {
        let mut held = self.groups.lock_lane(lane);
        if let Some(group) = held.as_mut() {
            group.destroy_links();
            if let Some((common, _)) = group.shared_resources() {
                self.status.hide_group(lane, common);
                self.status.add_tally(ProcessTally::CompletionsDropped, common.dropped);
            }
        }
        drop(self.groups.remove(lane, held));
    }

    /// Publishes the usage of the NICs.
    #[cold]
    pub(crate) fn show_usage(&self) {
        self.status.show_usage(&self.fabric);
    }

    /// Returns the users' name of a NIC.
    pub(crate) fn nic_name(&self, nic: usize) -> &str {
        self.fabric.nics().get(nic).map_or("no NIC", |nic| &nic.name)
    }

    /// Returns the speed of a NIC in megabits per second and its latency in nanoseconds, as its fabric reports them.
    pub(crate) fn nic_speed(&self, nic: usize) -> (u64, u64) {
        self.fabric
            .nics()
            .get(nic)
            .map_or((0, 0), |nic| (u64::from(nic.speed_mbps), (f64::from(nic.latency_us) * 1000.0) as u64))
    }

    /// Returns the time that a wait has lasted while the process made calls, because a process that was stopped
    /// processes earlier arrivals only now.
    pub(crate) fn advance_timer(&self, down: &mut Option<FailureTimer>) -> Duration {
        let step = self.params.peer_time.0 / LOOKS_AT_END;
        FailureTimer::advance_timer(down, self.host.now(), Duration(step))
    }
}

/// Returns the comm of this name as a locked member, if it still has that location.
#[inline]
pub(crate) fn locked_member_of<'a, R: Rail>(
    lane: &'a mut Option<CommGroup<R>>,
    seat: MemberLocation,
    id: CommId,
) -> Option<LockedMember<'a, R>> {
    lane.as_mut()?.locked_member_of(seat, id)
}
