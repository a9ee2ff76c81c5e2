//! The software NIC as tests watch it: doorbells of operations that a process begins are counted, and each registration waits at a gate, if a test says so.

#![allow(dead_code, unreachable_pub, reason = "each test uses some of it")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use trunkline_fabric::{
    Access, Caps, Completion, DeregisterError, Fabric, Keys, LinkAddress, LinkError, LinkId, Links, LocalKey,
    Nic, Op, OpenError, PostError, Purpose, Rail, RailConfig, RegisterError, Registrar, Wake,
};
use trunkline_mem::Memory;
use trunkline_proto::wire::status::Usage;
use trunkline_softnic::{SoftFabric, SoftRail};

/// The counts that a test reads of a NIC, and the gate that it sets.
#[derive(Debug, Default)]
pub struct NicWatch {
    /// Doorbells of rails that begin something.
    pub rings: AtomicU64,
    /// Each registration waits for a pass.
    pub is_gated: AtomicBool,
    pub passes: AtomicU64,
    /// Registrations that have come to the gate.
    pub came: AtomicU64,
}

/// Registers memory when it may pass.
struct GatedRegistrar(Arc<dyn Registrar>, Arc<NicWatch>);

impl Registrar for GatedRegistrar {
    fn register(&self, memory: &Memory, access: Access, purpose: Purpose) -> Result<Keys, RegisterError> {
        if self.1.is_gated.load(Ordering::Acquire) {
            let number = self.1.came.fetch_add(1, Ordering::AcqRel);
            while self.1.passes.load(Ordering::Acquire) <= number {
                std::thread::sleep(Duration::from_micros(100));
            }
        }
        self.0.register(memory, access, purpose)
    }

    fn deregister(&self, key: LocalKey) -> Result<(), DeregisterError> {
        self.0.deregister(key)
    }

    fn retire(&self, key: LocalKey) -> Result<(), DeregisterError> {
        self.0.retire(key)
    }

    fn abandon(&self, key: LocalKey) {
        self.0.abandon(key);
    }
}

/// The software NIC that is watched.
pub struct WatchedFabric(pub SoftFabric, pub Arc<NicWatch>);

pub struct WatchedRail {
    rail: SoftRail,
    watch: Arc<NicWatch>,
    /// It serves others.
    serves: bool,
}

impl Fabric for WatchedFabric {
    type Rail = WatchedRail;

    fn name(&self) -> &'static str {
        "watched"
    }

    fn nics(&self) -> &[Nic] {
        self.0.nics()
    }

    fn usage(&self, nic: usize) -> Usage {
        self.0.usage(nic)
    }

    fn open(&self, nic: usize, config: &RailConfig) -> Result<WatchedRail, OpenError> {
        Ok(WatchedRail {
            rail: self.0.open(nic, config)?,
            watch: Arc::clone(&self.1),
            serves: config.receives,
        })
    }
}

impl Links for WatchedRail {
    fn create_on(&mut self, pipeline: Option<u32>) -> Result<LinkId, LinkError> {
        self.rail.create_on(pipeline)
    }

    fn pipeline(&self, link: LinkId) -> Option<u32> {
        self.rail.pipeline(link)
    }

    fn address(&self, link: LinkId) -> Result<LinkAddress, LinkError> {
        self.rail.address(link)
    }

    fn connect(&mut self, link: LinkId, peer: LinkAddress) -> Result<(), LinkError> {
        self.rail.connect(link, peer)
    }

    fn is_up(&mut self, link: LinkId) -> Result<bool, LinkError> {
        self.rail.is_up(link)
    }

    fn look(&mut self, link: LinkId) -> Result<(), LinkError> {
        self.rail.look(link)
    }

    fn fail(&mut self, link: LinkId) {
        self.rail.fail(link);
    }

    fn is_quiet(&mut self, link: LinkId) -> bool {
        self.rail.is_quiet(link)
    }

    fn destroy(&mut self, link: LinkId) {
        self.rail.destroy(link);
    }
}

impl Rail for WatchedRail {
    fn caps(&self) -> &Caps {
        self.rail.caps()
    }

    fn registrar(&self) -> Arc<dyn Registrar> {
        Arc::new(GatedRegistrar(self.rail.registrar(), Arc::clone(&self.watch)))
    }

    fn credits(&self, link: LinkId) -> u32 {
        self.rail.credits(link)
    }

    fn post(&mut self, link: LinkId, wr_id: u64, op: Op<'_>, signalled: bool) -> Result<(), PostError> {
        self.rail.post(link, wr_id, op, signalled)
    }

    fn flush(&mut self) {
        if !self.serves {
            self.watch.rings.fetch_add(1, Ordering::Relaxed);
        }
        self.rail.flush();
    }

    fn poll(&mut self, out: &mut [Completion]) -> usize {
        self.rail.poll(out)
    }

    fn arm(&mut self) -> Wake {
        self.rail.arm()
    }
}
