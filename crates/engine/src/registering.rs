//! The calls by which front ends register memory with a comm, and take it back. They wait for a lane in use.

use trunkline_fabric::{Access, Fabric, Host, Mr, Rail};
use trunkline_mem::Memory;

use crate::member::Side;
use crate::regions::Registered;
use crate::{CommFault, CommId, Engine, Error, MrId};

impl<F: Fabric, H: Host> Engine<F, H> {
    /// Registers memory with a comm.
    ///
    /// # Errors
    /// [`Error::Register`] names the limit or the cause.
    pub fn register(&self, comm: CommId, memory: Memory) -> Result<MrId, Error> {
        let found = self.open(comm, |turn| {
            let access = match &turn.open.side {
                Side::Send(_) => Access::LOCAL,
                Side::Recv(_) => Access::WRITE,
            };
            (turn.rails.iter().map(Rail::registrar).collect::<Vec<_>>(), access)
        });
        let Some((registrars, access)) = found else { return Err(Error::Unknown("connection")) };
        let Some((first, others)) = registrars.split_first() else {
            return Err(Error::Unknown("connection"));
        };
        let more: Result<Vec<_>, _> =
            others.iter().map(|registrar| Mr::register(registrar, memory.clone(), access)).collect();
        let registered = Registered::new(Mr::register(first, memory, access)?, more?);
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
    /// are given up.
    pub fn deregister(&self, comm: CommId, mr: MrId) -> Result<(), Error> {
        let slot = self.comm(comm)?;
        let taken = self.open(comm, |turn| {
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
            Ok(turn.open.side.regions().remove(mr).map(|region| (region, used && turn.open.rides())))
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
            self.open(comm, |turn| turn.open.side.regions().keep_closing(mr, region));
            Err(error.into())
        });
        self.show_usage();
        closed
    }

    /// Regions registered with a comm.
    pub fn regions(&self, comm: CommId) -> usize {
        self.open(comm, |turn| turn.open.side.regions().len()).unwrap_or(0)
    }
}
