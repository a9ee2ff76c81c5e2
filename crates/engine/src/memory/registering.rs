//! The calls by which front ends register memory with a comm, and take it back. They wait for a lane in use.

use trunkline_fabric::{Access, DeregisterError, Exported, Fabric, Host, Mr, Rail, RegisterError};
use trunkline_mem::{Kind, Memory};

use crate::comm::Comm;
use crate::memory::regions::Registered;
use crate::pool::groups::Turn;
use crate::pool::member::Side;
use crate::{CommFault, CommId, Engine, Error, MrId};

impl<F: Fabric, H: Host> Engine<F, H> {
    /// Registers memory with a comm.
    ///
    /// # Errors
    /// [`Error::Register`] names the limit or the cause.
    pub fn register(&self, comm: CommId, memory: Memory) -> Result<MrId, Error> {
        self.register_as(comm, memory, None)
    }

    /// Registers memory of a device that its driver has exported, as one dma-buf for all NICs of the comm.
    ///
    /// # Errors
    /// As [`Engine::register`].
    pub fn register_exported(
        &self,
        comm: CommId,
        memory: Memory,
        exported: Exported<'_>,
    ) -> Result<MrId, Error> {
        self.register_as(comm, memory, Some(exported))
    }

    fn register_as(
        &self,
        comm: CommId,
        memory: Memory,
        exported: Option<Exported<'_>>,
    ) -> Result<MrId, Error> {
        let of_device = memory.kind() != Kind::Host;
        let found = self.open(comm, |turn| {
            let (access, plan) = match &turn.open.side {
                Side::Send(lane) => (Access::LOCAL, &lane.plan),
                // A flush reads it.
                Side::Recv(lane) if of_device => (Access::READ_WRITE, &lane.plan),
                Side::Recv(lane) => (Access::WRITE, &lane.plan),
            };
            // Elsewhere it would be in the way of messages that the CPU copies.
            let may = !of_device || plan.devices.any();
            (turn.rails.iter().map(Rail::registrar).collect::<Vec<_>>(), access, may)
        });
        let Some((registrars, access, may)) = found else { return Err(Error::Unknown("connection")) };
        if !may {
            return Err(RegisterError::Kind(memory.kind()).into());
        }
        let register = |registrar, memory| match exported {
            None => Mr::register(registrar, memory, access),
            Some(exported) => Mr::register_exported(registrar, memory, exported, access),
        };
        let Some((first, others)) = registrars.split_first() else {
            return Err(Error::Unknown("connection"));
        };
        let more: Result<Vec<_>, _> =
            others.iter().map(|registrar| register(registrar, memory.clone())).collect();
        let registered = Registered::new(register(first, memory)?, more?);
        let limit = self.params.regions_max as usize;
        let named = self
            .open(comm, |turn| turn.open.side.regions().insert(registered))
            .ok_or(Error::Unknown("connection"))?
            .map_err(|_| Error::Exhausted { what: "regions of the connection", limit });
        self.show_usage();
        named
    }

    /// Ends a registration. If outstanding messages use the memory, the comm fails first, so that nothing can touch
    /// it afterwards.
    ///
    /// # Errors
    /// [`Error::Deregister`] if a peer is stopped inside a copy; the region takes no more messages, and the call may be
    /// repeated. [`Error::Draining`] where the comm shares its queue pairs with others, which go on, and operations that
    /// use the memory are still under way: to be called again, for at most the peer time limit, after which the queue pairs
    /// are given up. Also while a flush may read memory of a device, or the network has not ended what a failed comm had posted.
    pub fn deregister(&self, comm: CommId, mr: MrId) -> Result<(), Error> {
        let slot = self.comm(comm)?;
        let taken = self.open(comm, |turn| {
            let closing = turn.open.side.regions().is_closing(mr);
            if closing {
                // Whatever keeps it ends by being polled.
                match turn.shared.is_none() && turn.open.fault.is_some() {
                    true => turn.forget_finished(),
                    false => _ = self.drive(slot, turn),
                }
            }
            if !self.has_flushed(slot, turn, mr) {
                return Err(Error::Draining);
            }
            let used = turn.open.side.regions().in_use(mr);
            if used && !self.params.mutant.is("engine-revokes-nothing") {
                if turn.open.fault.is_none() || !turn.open.rides() {
                    self.failed(slot, turn, CommFault::Revoked);
                }
                if turn.open.rides() && !self.is_revoked(slot, turn, mr) {
                    return Err(Error::Draining);
                }
            } else if turn.open.rides() && !self.has_copied(slot, turn, mr) {
                return Err(Error::Draining);
            }
            let named = self.is_named(turn, used);
            if !closing {
                turn.open.revoking = None;
            }
            Ok(turn.open.side.regions().remove(mr).map(|region| (region, named)))
        });
        let Some(taken) = taken else { return Err(Error::Unknown("region")) };
        let Some((region, named)) = taken? else { return Err(Error::Unknown("region")) };
        let named = named && !self.params.mutant.is("ride-closes-named-memory");
        let closed = if named { region.retire() } else { region.close() };
        let closed = closed.or_else(|(region, error)| {
            if self.params.mutant.is("engine-hides-stuck-copies") {
                return Ok(());
            }
            if self.params.mutant.is("engine-forgets-stuck-regions") {
                return Err(error.into());
            }
            let late = self.open(comm, |turn| {
                turn.open.side.regions().keep_closing(mr, region);
                self.waits(&mut turn.open.revoking) > self.params.peer_time
            });
            let waits = late == Some(false) || self.params.mutant.is("engine-waits-for-what-never-drains");
            let drains = error == DeregisterError::Draining && waits;
            Err(if drains { Error::Draining } else { error.into() })
        });
        self.show_usage();
        closed
    }

    /// Regions registered with a comm.
    pub fn regions(&self, comm: CommId) -> usize {
        self.open(comm, |turn| turn.open.side.regions().len()).unwrap_or(0)
    }

    /// Whether no flush reads a region, which would end badly without it, and with it all flushes of the NIC.
    fn has_flushed(&self, slot: &Comm, turn: &mut Turn<'_, F::Rail>, mr: MrId) -> bool {
        let waits = |turn: &mut Turn<'_, F::Rail>| match &turn.open.side {
            Side::Recv(lane) => lane.regions.is_of_device(mr) && lane.flushes_device(),
            Side::Send(_) => false,
        };
        if !waits(turn) || self.params.mutant.is("engine-takes-memory-from-flushes-of-devices") {
            return true;
        }
        self.drive(slot, turn);
        if waits(turn) {
            // Who has failed alone has nobody to spare.
            return if turn.open.rides() { self.gives_up(turn) } else { turn.open.fault.is_some() };
        }
        turn.open.revoking = None;
        true
    }
}
