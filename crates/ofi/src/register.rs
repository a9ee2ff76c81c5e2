//! The registrar of a rail: memory is registered for the endpoint of its purpose, or with the domain where that is enough.
//! Payload of users is registered once for all who ask for the same ([`crate::cache`]).

use std::io;
use std::sync::Arc;

use trunkline_fabric::{
    Access, DeregisterError, Exported, Keys, LocalKey, Purpose, RegisterError, Registrar, RemoteKey,
};
use trunkline_mem::{Kind, Memory};

use crate::cache::{ForPeers, Sharing};
use crate::mutant::Planted;
use crate::nic::Opened;
use crate::reach;
use crate::region::{self, Model, Mr, Wanted, register};
use crate::rights::Duty;
use crate::role::{Ctrl, Data};
use crate::table::Region;

/// Registers memory for one rail.
pub(crate) struct OfiRegistrar {
    nic: Arc<Opened>,
    data: Model<Data>,
    records: Model<Ctrl>,
    pub(crate) sharing: Sharing,
}

fn failed(error: region::RegisterError) -> RegisterError {
    RegisterError::System { what: "registering memory with libfabric", source: io::Error::other(error) }
}

impl OfiRegistrar {
    /// One that registers so.
    pub(crate) fn new(nic: &Arc<Opened>, data: Model<Data>, records: Model<Ctrl>, closes: bool) -> Self {
        let sharing = Sharing::new(nic, matches!(data, Model::Endpoint(_)), closes);
        Self { nic: Arc::clone(nic), data, records, sharing }
    }

    /// Payload of users, by a registration that there is already or by the one that `make` makes.
    fn share(
        &self,
        memory: &Memory,
        exported: Option<&Exported<'_>>,
        access: Access,
        make: impl FnOnce() -> Result<Mr<Data>, RegisterError>,
    ) -> Result<Option<(Region, ForPeers)>, RegisterError> {
        let shared = self.sharing.acquire(memory, exported, access, make)?;
        Ok(shared.map(|(shared, peers)| (Region::Shared(shared), peers)))
    }

    /// Memory of the host that users send from and receive into.
    fn register_payload(
        &self,
        memory: &Memory,
        access: Access,
    ) -> Result<Option<(Region, ForPeers)>, RegisterError> {
        let wanted = Wanted::host(memory, Duty::User(access));
        self.share(memory, None, access, || register(&self.nic.domain, &self.data, &wanted).map_err(failed))
    }

    /// A registration of its own.
    fn make(
        &self,
        memory: &Memory,
        access: Access,
        purpose: Purpose,
    ) -> Result<(Region, ForPeers), RegisterError> {
        let domain = &self.nic.domain;
        let wanted = |duty| Wanted::host(memory, duty);
        let made = match purpose {
            Purpose::Data | Purpose::Bounce | Purpose::Heap => {
                let duty = match purpose {
                    Purpose::Bounce if access == Access::LOCAL => Duty::Bounce,
                    Purpose::Heap if Planted::named("ofi-heaps-receive-alone").is_on() => Duty::Bounce,
                    Purpose::Heap => Duty::Heap(access),
                    _ => Duty::User(access),
                };
                let mr = register(domain, &self.data, &wanted(duty));
                mr.map(|mr| (ForPeers::of(&mr), Region::Data(mr)))
            }
            Purpose::Records => {
                let duty = if access == Access::LOCAL { Duty::Records } else { Duty::Mailbox };
                let mr = register(domain, &self.records, &wanted(duty));
                mr.map(|mr| (ForPeers::of(&mr), Region::Ctrl(mr)))
            }
        };
        made.map(|(peers, region)| (region, peers)).map_err(failed)
    }

    /// Takes a region in.
    fn enter(&self, region: Region, peers: ForPeers) -> Result<Keys, RegisterError> {
        let entry = if let Region::Shared(shared) = &region { Some(shared.entry()) } else { None };
        let local = match self.nic.table.insert(region) {
            Ok(local) => local,
            Err((region, why)) => {
                self.nic.close(*region);
                return Err(why);
            }
        };
        // It may have been closed under its users before this one was known as one.
        if entry.is_some_and(|entry| !self.sharing.stands(entry)) {
            let _ = self.end(local, false);
            let ended = io::Error::other("the rail's links have ended");
            return Err(RegisterError::System { what: "registering memory with libfabric", source: ended });
        }
        Ok(Keys { local, remote: RemoteKey(peers.key.unwrap_or(0)), remote_base: peers.base })
    }

    fn end(&self, key: LocalKey, retired: bool) -> Result<(), DeregisterError> {
        let revokes = retired && self.sharing.revokes();
        let mut removed = self.nic.table.remove(key, revokes);
        if matches!(removed, Err(DeregisterError::Draining)) {
            // Of a rail that is there its owner hears.
            self.nic.look_at_remains();
            removed = self.nic.table.remove(key, revokes);
        }
        match removed? {
            Region::Shared(shared) if revokes => self.sharing.revoke(shared, &self.nic.table),
            region => self.nic.close(region),
        }
        Ok(())
    }

    /// Memory of a device, where the NIC reaches any.
    fn register_device(
        &self,
        memory: &Memory,
        exported: Option<Exported<'_>>,
        access: Access,
        purpose: Purpose,
    ) -> Result<Keys, RegisterError> {
        if !self.nic.devices.reach.any() {
            return Err(RegisterError::Kind(memory.kind()));
        }
        let make = || reach::make(&self.nic, &self.data, memory, exported, access);
        let shared = match purpose {
            Purpose::Data => self.share(memory, exported.as_ref(), access, make)?,
            _ => None,
        };
        let (region, peers) = match shared {
            Some(shared) => shared,
            None => {
                let mr = make()?;
                let peers = ForPeers::of(&mr);
                (Region::Data(mr), peers)
            }
        };
        self.enter(region, peers)
    }
}

impl Registrar for OfiRegistrar {
    fn register(&self, memory: &Memory, access: Access, purpose: Purpose) -> Result<Keys, RegisterError> {
        // There are no atomics, and a right to them would be one to write.
        let access = Access { atomic: false, ..access };
        // Memory that the CPU has mapped is the host's for a provider that accesses it by its address.
        if !matches!(memory.kind(), Kind::Host | Kind::Mapped) {
            return self.register_device(memory, None, access, purpose);
        }
        let shared = match purpose {
            Purpose::Data => self.register_payload(memory, access)?,
            _ => None,
        };
        let (region, peers) = match shared {
            Some(shared) => shared,
            None => self.make(memory, access, purpose)?,
        };
        self.enter(region, peers)
    }

    fn register_exported(
        &self,
        memory: &Memory,
        exported: Exported<'_>,
        access: Access,
        purpose: Purpose,
    ) -> Result<Keys, RegisterError> {
        self.register_device(memory, Some(exported), Access { atomic: false, ..access }, purpose)
    }

    fn deregister(&self, key: LocalKey) -> Result<(), DeregisterError> {
        self.end(key, false)
    }

    fn retire(&self, key: LocalKey) -> Result<(), DeregisterError> {
        self.end(key, true)
    }

    fn abandon(&self, key: LocalKey) {
        if let Some(region) = self.nic.table.abandon(key) {
            self.nic.close(region);
        }
    }
}
