//! Memory of a victim that no other process may read or change: one piece outside all regions, one in a region without rights for peers.

use std::sync::Arc;

use trunkline_fabric::{
    AccessRights, Fabric, MemoryRegistrar, NicPort, Rail as _, RailConfig, RailOpenError, RecvOrder,
    RegionPurpose,
};
use trunkline_mem::MemoryRange;
use trunkline_proto::time::Duration;
use trunkline_proto::wire::status::NicUsage;
use trunkline_softnic::{SoftFabric, SoftRail};

/// Bytes of each canary.
pub(crate) const CANARY: usize = 16 << 10;

/// The software NICs of a process, of which the victim has a rail of its own, too.
#[derive(Clone)]
pub(crate) struct SharedNics(pub(crate) Arc<SoftFabric>);

impl Fabric for SharedNics {
    type Rail = SoftRail;

    fn fabric_name(&self) -> &'static str {
        self.0.fabric_name()
    }

    fn nics(&self) -> &[NicPort] {
        self.0.nics()
    }

    fn nic_usage(&self, nic: usize) -> NicUsage {
        self.0.nic_usage(nic)
    }

    fn open_rail(&self, nic: usize, config: &RailConfig) -> Result<SoftRail, RailOpenError> {
        self.0.open_rail(nic, config)
    }
}

/// The canaries of one victim.
pub(crate) struct SecretCanaries {
    pub(crate) secret: [u8; 16],
    outside: Box<[u8]>,
    private: MemoryRange,
    /// Keeps the private region and the keys.
    registrar: Arc<dyn MemoryRegistrar>,
    _rail: SoftRail,
}

impl SecretCanaries {
    /// The canaries, the local key of the private one, and a remote key of memory that was retired.
    pub(crate) fn new(fabric: &SharedNics, secret: [u8; 16]) -> (Self, u64, u64) {
        let rail = fabric.open_rail(0, &rail_config()).unwrap();
        let registrar = rail.registrar();
        let bytes = secret.repeat(CANARY / secret.len());
        let private = MemoryRange::heap(CANARY);
        private.write(0, &bytes).unwrap();
        let local = registrar.register(&private, AccessRights::LOCAL, RegionPurpose::Bounce).unwrap().local;
        let retired =
            registrar.register(&MemoryRange::heap(4096), AccessRights::ALL, RegionPurpose::Bounce).unwrap();
        registrar.retire(retired.local).unwrap();
        let canaries = Self { secret, outside: bytes.into(), private, registrar, _rail: rail };
        (canaries, local.0, retired.remote.0)
    }

    /// The address of the canary that is outside all regions.
    pub(crate) fn address(&self) -> u64 {
        self.outside.as_ptr().expose_provenance() as u64
    }

    pub(crate) fn are_whole(&self) -> bool {
        let mut private = vec![0; CANARY];
        self.private.read(0, &mut private).unwrap();
        let is_whole = |bytes: &[u8]| bytes.chunks(16).all(|part| part == self.secret);
        is_whole(&private)
            && is_whole(std::hint::black_box(&self.outside))
            && Arc::strong_count(&self.registrar) > 0
    }
}

/// A rail with few links, beside that of an engine.
pub(crate) fn rail_config() -> RailConfig {
    RailConfig {
        depth: 16,
        recv_depth: 16,
        recv_order: RecvOrder::Posted,
        links: 64,
        peer_time: Duration::from_secs(5),
        rail_time: Duration::from_secs(3),
        receives: false,
        traffic_class: None,
        many: false,
    }
}
