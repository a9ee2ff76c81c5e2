//! The registrar of a rail: memory is registered for the endpoint of its purpose, or with the domain where that is enough.

use std::io;
use std::sync::Arc;

use trunkline_fabric::{
    Access, DeregisterError, Exported, Keys, LocalKey, Purpose, RegisterError, Registrar, RemoteKey,
};
use trunkline_mem::{Kind, Memory};

use crate::nic::Opened;
use crate::reach;
use crate::region::{Model, Wanted, register};
use crate::rights::Duty;
use crate::role::{Ctrl, Data};
use crate::table::{REGIONS_MAX, Region};

/// Registers memory for one rail.
pub(crate) struct OfiRegistrar {
    nic: Arc<Opened>,
    data: Model<Data>,
    records: Model<Ctrl>,
}

impl OfiRegistrar {
    /// One that registers so.
    pub(crate) fn new(nic: &Arc<Opened>, data: Model<Data>, records: Model<Ctrl>) -> Self {
        Self { nic: Arc::clone(nic), data, records }
    }

    fn make(&self, memory: &Memory, access: Access, purpose: Purpose) -> Result<Region, RegisterError> {
        let domain = &self.nic.domain;
        // There are none, and a right to them would be one to write.
        let access = Access { atomic: false, ..access };
        let wanted = |duty| Wanted::host(memory, duty);
        let made = match purpose {
            Purpose::Bounce if access == Access::LOCAL => {
                register(domain, &self.data, &wanted(Duty::Bounce)).map(Region::Data)
            }
            Purpose::Data | Purpose::Bounce => {
                register(domain, &self.data, &wanted(Duty::User(access))).map(Region::Data)
            }
            Purpose::Records if access == Access::LOCAL => {
                register(domain, &self.records, &wanted(Duty::Records)).map(Region::Ctrl)
            }
            Purpose::Records => register(domain, &self.records, &wanted(Duty::Mailbox)).map(Region::Ctrl),
        };
        made.map_err(|error| RegisterError::System {
            what: "registering memory with libfabric",
            source: io::Error::other(error),
        })
    }

    /// Memory of a device, where the NIC reaches any.
    fn make_of_device(
        &self,
        memory: &Memory,
        exported: Option<Exported<'_>>,
        access: Access,
    ) -> Result<Region, RegisterError> {
        if !self.nic.devices.reach.any() {
            return Err(RegisterError::Kind(memory.kind()));
        }
        reach::make(&self.nic, &self.data, memory, exported, access).map(Region::Data)
    }

    /// Takes a region in.
    fn enter(&self, region: Region) -> Result<Keys, RegisterError> {
        let (key, remote_base) = match &region {
            Region::Data(mr) => (mr.key().map(|key| key.number()), mr.remote_base()),
            Region::Ctrl(mr) => (mr.key().map(|key| key.number()), mr.remote_base()),
        };
        let local =
            self.nic.table.insert(region).map_err(|_| RegisterError::Exhausted(REGIONS_MAX as u32))?;
        Ok(Keys { local, remote: RemoteKey(key.unwrap_or(0)), remote_base })
    }
}

impl Registrar for OfiRegistrar {
    fn register(&self, memory: &Memory, access: Access, purpose: Purpose) -> Result<Keys, RegisterError> {
        let region = match memory.kind() {
            Kind::Host => self.make(memory, access, purpose)?,
            _ => self.make_of_device(memory, None, access)?,
        };
        self.enter(region)
    }

    fn register_exported(
        &self,
        memory: &Memory,
        exported: Exported<'_>,
        access: Access,
        _: Purpose,
    ) -> Result<Keys, RegisterError> {
        let region = self.make_of_device(memory, Some(exported), access)?;
        self.enter(region)
    }

    fn deregister(&self, key: LocalKey) -> Result<(), DeregisterError> {
        let region = self.nic.table.remove(key).ok_or(DeregisterError::Unknown)?;
        drop(region);
        Ok(())
    }
}
