//! The registrar of a rail: registers memory for the endpoint of its purpose, or with the domain where that is enough. Payload of users is
//! registered once for all requests of the same memory ([`crate::cache`]).

use std::io;
use std::sync::Arc;

use trunkline_fabric::{
    AccessRights, DeregisterError, ExportedDmaBuf, LocalKey, MemoryRegistrar, RegionKeys, RegionPurpose,
    RegisterError, RemoteKey,
};
use trunkline_mem::{MemoryKind, MemoryRange};

use crate::cache::{ForPeers, RegistrationSharing};
use crate::gpudirect;
use crate::nic::OpenNic;
use crate::region::{self, MrEnabled, MrRequest, MrScope, register_memory};
use crate::rights::MemoryDuty;
use crate::role::{ControlTraffic, PayloadTraffic};
use crate::table::OfiRegion;

/// Registers memory for one rail.
pub(crate) struct OfiRegistrar {
    nic: Arc<OpenNic>,
    data: MrScope<PayloadTraffic>,
    records: MrScope<ControlTraffic>,
    pub(crate) sharing: RegistrationSharing,
}

fn system_error(error: region::OfiRegisterError) -> RegisterError {
    RegisterError::System { what: "registering memory with libfabric", source: io::Error::other(error) }
}

impl OfiRegistrar {
    /// Creates a registrar with these scopes.
    pub(crate) fn new(
        nic: &Arc<OpenNic>,
        data: MrScope<PayloadTraffic>,
        records: MrScope<ControlTraffic>,
        closes: bool,
    ) -> Self {
        let sharing = RegistrationSharing::new(nic, matches!(data, MrScope::Endpoint(_)), closes);
        Self { nic: Arc::clone(nic), data, records, sharing }
    }

    /// Acquires a shared registration of a user's payload: an existing one, or one created by `make`.
    fn share_registration(
        &self,
        memory: &MemoryRange,
        exported: Option<&ExportedDmaBuf<'_>>,
        access: AccessRights,
        make: impl FnOnce() -> Result<MrEnabled<PayloadTraffic>, RegisterError>,
    ) -> Result<Option<(OfiRegion, ForPeers)>, RegisterError> {
        let shared = self.sharing.acquire_registration(memory, exported, access, make)?;
        Ok(shared.map(|(shared, peers)| (OfiRegion::Shared(shared), peers)))
    }

    /// Registers memory of the host that users send from and receive into.
    fn register_payload(
        &self,
        memory: &MemoryRange,
        access: AccessRights,
    ) -> Result<Option<(OfiRegion, ForPeers)>, RegisterError> {
        let wanted = MrRequest::for_host(memory, MemoryDuty::User(access));
        self.share_registration(memory, None, access, || {
            register_memory(&self.nic.domain, &self.data, &wanted).map_err(system_error)
        })
    }

    /// Creates a registration for one caller.
    fn register_own(
        &self,
        memory: &MemoryRange,
        access: AccessRights,
        purpose: RegionPurpose,
    ) -> Result<(OfiRegion, ForPeers), RegisterError> {
        let domain = &self.nic.domain;
        let wanted = |duty| MrRequest::for_host(memory, duty);
        let made = match purpose {
            RegionPurpose::Data | RegionPurpose::Bounce | RegionPurpose::Heap => {
                let duty = match purpose {
                    RegionPurpose::Bounce if access == AccessRights::LOCAL => MemoryDuty::Bounce,
                    RegionPurpose::Heap => MemoryDuty::Heap(access),
                    _ => MemoryDuty::User(access),
                };
                let mr = register_memory(domain, &self.data, &wanted(duty));
                mr.map(|mr| (ForPeers::from_mr(&mr), OfiRegion::Data(mr)))
            }
            RegionPurpose::Records => {
                let duty =
                    if access == AccessRights::LOCAL { MemoryDuty::Records } else { MemoryDuty::Mailbox };
                let mr = register_memory(domain, &self.records, &wanted(duty));
                mr.map(|mr| (ForPeers::from_mr(&mr), OfiRegion::Ctrl(mr)))
            }
        };
        made.map(|(peers, region)| (region, peers)).map_err(system_error)
    }

    /// Inserts a region into the table.
    fn insert_region(&self, region: OfiRegion, peers: ForPeers) -> Result<RegionKeys, RegisterError> {
        let entry = if let OfiRegion::Shared(shared) = &region { Some(shared.entry_id()) } else { None };
        let local = match self.nic.table.insert(region) {
            Ok(local) => local,
            Err((region, why)) => {
                self.nic.close_region(*region);
                return Err(why);
            }
        };
        // The registration may have been closed, with the rail's links, before this user was known to the cache.
        if entry.is_some_and(|entry| !self.sharing.is_current(entry)) {
            let _ = self.end_registration(local, false);
            let ended = io::Error::other("the rail's links have ended");
            return Err(RegisterError::System { what: "registering memory with libfabric", source: ended });
        }
        Ok(RegionKeys { local, remote: RemoteKey(peers.key.unwrap_or(0)), remote_base: peers.base })
    }

    fn end_registration(&self, key: LocalKey, retired: bool) -> Result<(), DeregisterError> {
        let revokes = retired && self.sharing.is_revoking();
        let mut removed = self.nic.table.remove(key, revokes);
        if matches!(removed, Err(DeregisterError::Draining)) {
            // Only lingering rails are polled here, because a live rail polls its own operations.
            self.nic.look_at_remains();
            removed = self.nic.table.remove(key, revokes);
        }
        match removed? {
            OfiRegion::Shared(shared) if revokes => self.sharing.revoke_registration(shared, &self.nic.table),
            region => self.nic.close_region(region),
        }
        Ok(())
    }

    /// Registers memory of a device, if the NIC can access any.
    fn register_device(
        &self,
        memory: &MemoryRange,
        exported: Option<ExportedDmaBuf<'_>>,
        access: AccessRights,
        purpose: RegionPurpose,
    ) -> Result<RegionKeys, RegisterError> {
        if !self.nic.devices.reach.reaches_any() {
            return Err(RegisterError::Kind(memory.kind()));
        }
        let make = || gpudirect::register_device_memory(&self.nic, &self.data, memory, exported, access);
        let shared = match purpose {
            RegionPurpose::Data => self.share_registration(memory, exported.as_ref(), access, make)?,
            _ => None,
        };
        let (region, peers) = match shared {
            Some(shared) => shared,
            None => {
                let mr = make()?;
                let peers = ForPeers::from_mr(&mr);
                (OfiRegion::Data(mr), peers)
            }
        };
        self.insert_region(region, peers)
    }
}

impl MemoryRegistrar for OfiRegistrar {
    fn register(
        &self,
        memory: &MemoryRange,
        access: AccessRights,
        purpose: RegionPurpose,
    ) -> Result<RegionKeys, RegisterError> {
        // Atomics are not supported, and the right to them would imply the right to write.
        let access = AccessRights { atomic: false, ..access };
        // Memory that the CPU has mapped counts as memory of the host, because the provider accesses it by its address.
        if !matches!(memory.kind(), MemoryKind::Host | MemoryKind::Mapped) {
            return self.register_device(memory, None, access, purpose);
        }
        // Only payload is shared, because memory of other purposes is registered once by its one owner.
        let shared = match purpose {
            RegionPurpose::Data => self.register_payload(memory, access)?,
            _ => None,
        };
        let (region, peers) = match shared {
            Some(shared) => shared,
            None => self.register_own(memory, access, purpose)?,
        };
        self.insert_region(region, peers)
    }

    fn register_exported(
        &self,
        memory: &MemoryRange,
        exported: ExportedDmaBuf<'_>,
        access: AccessRights,
        purpose: RegionPurpose,
    ) -> Result<RegionKeys, RegisterError> {
        self.register_device(memory, Some(exported), AccessRights { atomic: false, ..access }, purpose)
    }

    fn deregister(&self, key: LocalKey) -> Result<(), DeregisterError> {
        self.end_registration(key, false)
    }

    fn retire(&self, key: LocalKey) -> Result<(), DeregisterError> {
        self.end_registration(key, true)
    }

    fn abandon(&self, key: LocalKey) {
        if let Some(region) = self.nic.table.abandon_region(key) {
            self.nic.close_region(region);
        }
    }
}
