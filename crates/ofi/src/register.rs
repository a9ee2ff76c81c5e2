//! The registrar of a rail: memory is registered for the endpoint of its purpose, or with the domain where that is enough.

use std::io;
use std::sync::Arc;

use trunkline_fabric::{
    Access, DeregisterError, Keys, LocalKey, Purpose, RegisterError, Registrar, RemoteKey,
};
use trunkline_mem::{Kind, Memory};

use crate::nic::Opened;
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
}

impl Registrar for OfiRegistrar {
    fn register(&self, memory: &Memory, access: Access, purpose: Purpose) -> Result<Keys, RegisterError> {
        if memory.kind() != Kind::Host {
            return Err(RegisterError::Kind(memory.kind()));
        }
        let region = self.make(memory, access, purpose)?;
        let (key, remote_base) = match &region {
            Region::Data(mr) => (mr.key().map(|key| key.number()), mr.remote_base()),
            Region::Ctrl(mr) => (mr.key().map(|key| key.number()), mr.remote_base()),
        };
        let local =
            self.nic.table.insert(region).map_err(|_| RegisterError::Exhausted(REGIONS_MAX as u32))?;
        Ok(Keys { local, remote: RemoteKey(key.unwrap_or(0)), remote_base })
    }

    fn deregister(&self, key: LocalKey) -> Result<(), DeregisterError> {
        let region = self.nic.table.remove(key).ok_or(DeregisterError::Unknown)?;
        drop(region);
        Ok(())
    }
}
