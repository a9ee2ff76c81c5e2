//! The calls by which front ends register and deregister memory of a comm. They wait for a lock in use.

use trunkline_fabric::{
    AccessRights, DeregisterError, ExportedDmaBuf, Fabric, Host, Rail, RegisterError, RegisteredRegion,
};
use trunkline_mem::{MemoryKind, MemoryRange};

use crate::comm::CommSlot;
use crate::memory::regions::RailRegistrations;
use crate::pool::groups::LockedMember;
use crate::pool::member::CommSide;
use crate::{CommFault, CommId, Engine, EngineError, MrId};

impl<F: Fabric, H: Host> Engine<F, H> {
    /// Registers memory with a comm.
    ///
    /// # Errors
    /// [`EngineError::Register`] names the limit or the cause.
    pub fn register(&self, comm: CommId, memory: MemoryRange) -> Result<MrId, EngineError> {
        self.register_as(comm, memory, None)
    }

    /// Registers memory of a device that its driver has exported, as one dma-buf for all NICs of the comm.
    ///
    /// # Errors
    /// As [`Engine::register`].
    pub fn register_exported(
        &self,
        comm: CommId,
        memory: MemoryRange,
        exported: ExportedDmaBuf<'_>,
    ) -> Result<MrId, EngineError> {
        self.register_as(comm, memory, Some(exported))
    }

    fn register_as(
        &self,
        comm: CommId,
        memory: MemoryRange,
        exported: Option<ExportedDmaBuf<'_>>,
    ) -> Result<MrId, EngineError> {
        let core = &self.driver.setup.core;
        let of_device = memory.kind() != MemoryKind::Host;
        let found = core.with_member(comm, |turn| {
            let (access, plan) = match &turn.open.side {
                CommSide::Send(lane) => (AccessRights::LOCAL, &lane.plan),
                // A flush reads it.
                CommSide::Recv(lane) if of_device => (AccessRights::READ_WRITE, &lane.plan),
                CommSide::Recv(lane) => (AccessRights::WRITE, &lane.plan),
            };
            // Without such NICs, the region would prevent eager messages, which the CPU copies.
            let may = !of_device || plan.devices.reaches_any();
            (turn.rails.iter().map(Rail::registrar).collect::<Vec<_>>(), access, may)
        });
        let Some((registrars, access, may)) = found else { return Err(EngineError::Unknown("connection")) };
        if !may {
            return Err(RegisterError::Kind(memory.kind()).into());
        }
        let register = |registrar, memory| match exported {
            None => RegisteredRegion::register(registrar, memory, access),
            Some(exported) => RegisteredRegion::register_exported(registrar, memory, exported, access),
        };
        let Some((first, others)) = registrars.split_first() else {
            return Err(EngineError::Unknown("connection"));
        };
        let more: Result<Vec<_>, _> =
            others.iter().map(|registrar| register(registrar, memory.clone())).collect();
        let registered = RailRegistrations::new(register(first, memory)?, more?);
        let limit = core.params.regions_max as usize;
        let named = core
            .with_member(comm, |turn| turn.open.side.regions_mut().insert(registered))
            .ok_or(EngineError::Unknown("connection"))?
            .map_err(|_| EngineError::Exhausted { what: "regions of the connection", limit });
        core.show_usage();
        named
    }

    /// Ends a registration. If outstanding messages use the memory, the comm fails first, so that nothing can touch it
    /// afterwards.
    ///
    /// # Errors
    /// [`EngineError::Deregister`] if a peer is stopped inside a copy; no new message uses the region, and the call may be
    /// repeated.
    ///
    /// [`EngineError::Draining`] if the comm shares its queue pairs with others that continue, and operations that use the memory
    /// are in flight. Repeat the call, for at most the peer time limit; then the queue pairs are ended. Also returned while a
    /// flush may read device memory, or the network has not finished the operations of a failed comm.
    pub fn deregister(&self, comm: CommId, mr: MrId) -> Result<(), EngineError> {
        let core = &self.driver.setup.core;
        let slot = core.comm_slot(comm)?;
        let taken = core.with_member(comm, |turn| {
            let closing = turn.open.side.regions_mut().is_closing(mr);
            if closing {
                // A poll is needed for anything that keeps the region in use to end.
                match turn.shared.is_none() && turn.open.fault.is_some() {
                    true => turn.forget_finished(),
                    false => _ = self.driver.drive_comm(slot, turn),
                }
            }
            if !self.has_flushed(slot, turn, mr) {
                return Err(EngineError::Draining);
            }
            let used = turn.open.side.regions_mut().in_use(mr);
            if used {
                if turn.open.fault.is_none() || !turn.open.is_grouped() {
                    self.driver.fail_and_count(slot, turn, CommFault::Revoked);
                }
                if turn.open.is_grouped() && !self.driver.is_revoked(slot, turn, mr) {
                    return Err(EngineError::Draining);
                }
            } else if turn.open.is_grouped() && !self.driver.has_copied(slot, turn, mr) {
                return Err(EngineError::Draining);
            }
            let named = self.driver.is_named(turn, used);
            if !closing {
                turn.open.revoking = None;
            }
            Ok(turn.open.side.regions_mut().remove(mr).map(|region| (region, named)))
        });
        let Some(taken) = taken else { return Err(EngineError::Unknown("region")) };
        let Some((region, named)) = taken? else { return Err(EngineError::Unknown("region")) };
        let closed = if named { region.retire() } else { region.close() };
        let closed = closed.map_err(|(region, error)| {
            let late = core.with_member(comm, |turn| {
                turn.open.side.regions_mut().keep_closing(mr, region);
                core.advance_timer(&mut turn.open.revoking) > core.params.peer_time
            });
            let drains = error == DeregisterError::Draining && late == Some(false);
            if drains { EngineError::Draining } else { error.into() }
        });
        core.show_usage();
        closed
    }

    /// Returns the number of regions registered with a comm.
    pub fn region_count(&self, comm: CommId) -> usize {
        self.driver.setup.core.with_member(comm, |turn| turn.open.side.regions_mut().len()).unwrap_or(0)
    }

    /// Returns whether a comm may be closed without harm to others that share its queue pairs: no operation in flight reads or
    /// writes its caller's memory. Call until true, for at most the peer time limit. An earlier close ends the queue pairs of all
    /// their members if it must. The call may end registrations, so deregister none after the first call.
    ///
    /// # Errors
    /// [`EngineError::Unknown`].
    pub fn prepare_close(&self, comm: CommId) -> Result<bool, EngineError> {
        self.driver.prepare_close(comm)
    }

    /// Drives flushes. Returns whether none of them reads a region, because without its region a flush would fail, and
    /// with it all flushes of the NIC.
    fn has_flushed(&self, slot: &CommSlot, turn: &mut LockedMember<'_, F::Rail>, mr: MrId) -> bool {
        let waits = |turn: &mut LockedMember<'_, F::Rail>| match &turn.open.side {
            CommSide::Recv(lane) => lane.regions.is_of_device(mr) && lane.flushes_device(),
            CommSide::Send(_) => false,
        };
        if !waits(turn) {
            return true;
        }
        self.driver.drive_comm(slot, turn);
        if waits(turn) {
            // A failed comm with links of its own affects no other member.
            let grouped = turn.open.is_grouped();
            return if grouped { self.driver.gives_up(turn) } else { turn.open.fault.is_some() };
        }
        turn.open.revoking = None;
        true
    }
}
