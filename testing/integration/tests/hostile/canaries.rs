//! Memory of a victim that no other process may read or change: one piece in no region, one in a region without rights for peers.

use std::sync::Arc;

use trunkline_fabric::{
    Access, Fabric, Nic, OpenError, Purpose, Rail as _, RailConfig, RecvOrder, Registrar,
};
use trunkline_mem::Memory;
use trunkline_proto::time::Duration;
use trunkline_proto::wire::status::Usage;
use trunkline_softnic::{SoftFabric, SoftRail};

/// Bytes of each canary.
pub(crate) const CANARY: usize = 16 << 10;

/// The software NICs of a process, of which the victim has a rail of its own, too.
#[derive(Clone)]
pub(crate) struct SharedNics(pub(crate) Arc<SoftFabric>);

impl Fabric for SharedNics {
    type Rail = SoftRail;

    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn nics(&self) -> &[Nic] {
        self.0.nics()
    }

    fn usage(&self, nic: usize) -> Usage {
        self.0.usage(nic)
    }

    fn open(&self, nic: usize, config: &RailConfig) -> Result<SoftRail, OpenError> {
        self.0.open(nic, config)
    }
}

/// The canaries of one victim.
pub(crate) struct SecretCanaries {
    pub(crate) secret: [u8; 16],
    outside: Box<[u8]>,
    private: Memory,
    /// Keeps the private region and the keys.
    registrar: Arc<dyn Registrar>,
    _rail: SoftRail,
}

impl SecretCanaries {
    /// The canaries, the local key of the private one, and a remote key of memory that was retired.
    pub(crate) fn new(fabric: &SharedNics, secret: [u8; 16]) -> (Self, u64, u64) {
        let rail = fabric.open(0, &rail_config()).unwrap();
        let registrar = rail.registrar();
        let bytes = secret.repeat(CANARY / secret.len());
        let private = Memory::heap(CANARY);
        private.write(0, &bytes).unwrap();
        let local = registrar.register(&private, Access::LOCAL, Purpose::Bounce).unwrap().local;
        let retired = registrar.register(&Memory::heap(4096), Access::ALL, Purpose::Bounce).unwrap();
        registrar.retire(retired.local).unwrap();
        let canaries = Self { secret, outside: bytes.into(), private, registrar, _rail: rail };
        (canaries, local.0, retired.remote.0)
    }

    /// Where the canary is that is in no region.
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
        peer_time: Duration::secs(5),
        rail_time: Duration::secs(3),
        receives: false,
        traffic_class: None,
        many: false,
    }
}
