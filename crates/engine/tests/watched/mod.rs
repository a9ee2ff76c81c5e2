//! The software NIC with counters and a gate for tests: it counts the doorbells of operations that a process begins,
//! and can hold each registration at a gate until the test lets it pass.

#![allow(dead_code, unreachable_pub, reason = "each test program uses a part of this module")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use trunkline_fabric::{
    AccessRights, Caps, Completion, DeregisterError, Fabric, LinkAddress, LinkControl, LinkError, LinkId,
    LocalKey, MemoryRegistrar, NicPort, Op, PostError, Rail, RailConfig, RailOpenError, RegionKeys,
    RegionPurpose, RegisterError, WaitMethod,
};
use trunkline_mem::MemoryRange;
use trunkline_proto::wire::status::NicUsage;
use trunkline_softnic::{SoftFabric, SoftRail};

/// The counts of a NIC that a test reads, and the gate that it sets.
#[derive(Debug, Default)]
pub struct NicWatch {
    /// Doorbells of rails that begin operations.
    pub rings: AtomicU64,
    /// Each registration waits until `passes` exceeds its number.
    pub is_gated: AtomicBool,
    pub passes: AtomicU64,
    /// Registrations that have reached the gate.
    pub came: AtomicU64,
}

/// Registers memory once the gate lets the registration pass.
struct GatedRegistrar(Arc<dyn MemoryRegistrar>, Arc<NicWatch>);

impl MemoryRegistrar for GatedRegistrar {
    fn register(
        &self,
        memory: &MemoryRange,
        access: AccessRights,
        purpose: RegionPurpose,
    ) -> Result<RegionKeys, RegisterError> {
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

/// The software NIC whose doorbells are counted.
pub struct WatchedFabric(pub SoftFabric, pub Arc<NicWatch>);

pub struct WatchedRail {
    rail: SoftRail,
    watch: Arc<NicWatch>,
    /// The rail serves operations of other processes.
    serves: bool,
}

impl Fabric for WatchedFabric {
    type Rail = WatchedRail;

    fn fabric_name(&self) -> &'static str {
        "watched"
    }

    fn nics(&self) -> &[NicPort] {
        self.0.nics()
    }

    fn nic_usage(&self, nic: usize) -> NicUsage {
        self.0.nic_usage(nic)
    }

    fn open_rail(&self, nic: usize, config: &RailConfig) -> Result<WatchedRail, RailOpenError> {
        Ok(WatchedRail {
            rail: self.0.open_rail(nic, config)?,
            watch: Arc::clone(&self.1),
            serves: config.receives,
        })
    }
}

impl LinkControl for WatchedRail {
    fn create_link_on(&mut self, pipeline: Option<u32>) -> Result<LinkId, LinkError> {
        self.rail.create_link_on(pipeline)
    }

    fn link_pipeline(&self, link: LinkId) -> Option<u32> {
        self.rail.link_pipeline(link)
    }

    fn link_address(&self, link: LinkId) -> Result<LinkAddress, LinkError> {
        self.rail.link_address(link)
    }

    fn connect(&mut self, link: LinkId, peer: LinkAddress) -> Result<(), LinkError> {
        self.rail.connect(link, peer)
    }

    fn poll_link_up(&mut self, link: LinkId) -> Result<bool, LinkError> {
        self.rail.poll_link_up(link)
    }

    fn check_link(&mut self, link: LinkId) -> Result<(), LinkError> {
        self.rail.check_link(link)
    }

    fn fail_link(&mut self, link: LinkId) {
        self.rail.fail_link(link);
    }

    fn poll_link_quiet(&mut self, link: LinkId) -> bool {
        self.rail.poll_link_quiet(link)
    }

    fn destroy_link(&mut self, link: LinkId) {
        self.rail.destroy_link(link);
    }
}

impl Rail for WatchedRail {
    fn caps(&self) -> &Caps {
        self.rail.caps()
    }

    fn registrar(&self) -> Arc<dyn MemoryRegistrar> {
        Arc::new(GatedRegistrar(self.rail.registrar(), Arc::clone(&self.watch)))
    }

    fn post_credits(&self, link: LinkId) -> u32 {
        self.rail.post_credits(link)
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

    fn arm_wait(&mut self) -> WaitMethod {
        self.rail.arm_wait()
    }
}
