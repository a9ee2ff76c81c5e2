//! The software NIC, with NICs that can die.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use trunkline_fabric::{
    Caps, Completion, Fabric, LinkAddress, LinkControl, LinkError, LinkId, MemoryRegistrar, NicPort, Op,
    PostError, Rail, RailConfig, RailOpenError, WaitMethod,
};
use trunkline_proto::wire::status::NicUsage;
use trunkline_softnic::SoftFabric;

pub(crate) const NICS: usize = 4;

/// Which NICs of a process are dead.
pub(crate) type Dead = Arc<[AtomicBool; NICS]>;

/// The software NIC; all links of a dead NIC are in error.
pub(crate) struct Mortal(pub(crate) SoftFabric, pub(crate) Dead);

pub(crate) struct MortalRail<R> {
    rail: R,
    nic: usize,
    dead: Dead,
    links: Vec<LinkId>,
}

impl Fabric for Mortal {
    type Rail = MortalRail<<SoftFabric as Fabric>::Rail>;

    fn fabric_name(&self) -> &'static str {
        "mortal"
    }

    fn nics(&self) -> &[NicPort] {
        self.0.nics()
    }

    fn nic_usage(&self, nic: usize) -> NicUsage {
        self.0.nic_usage(nic)
    }

    fn open_rail(&self, nic: usize, config: &RailConfig) -> Result<Self::Rail, RailOpenError> {
        let rail = self.0.open_rail(nic, config)?;
        Ok(MortalRail { rail, nic, dead: Arc::clone(&self.1), links: Vec::new() })
    }
}

impl<R: Rail> LinkControl for MortalRail<R> {
    fn create_link_on(&mut self, pipeline: Option<u32>) -> Result<LinkId, LinkError> {
        let link = self.rail.create_link_on(pipeline)?;
        self.links.push(link);
        Ok(link)
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
        self.links.retain(|&known| known != link);
        self.rail.destroy_link(link);
    }
}

impl<R: Rail> Rail for MortalRail<R> {
    fn caps(&self) -> &Caps {
        self.rail.caps()
    }

    fn registrar(&self) -> Arc<dyn MemoryRegistrar> {
        self.rail.registrar()
    }

    fn post_credits(&self, link: LinkId) -> u32 {
        self.rail.post_credits(link)
    }

    fn post(&mut self, link: LinkId, wr_id: u64, op: Op<'_>, signalled: bool) -> Result<(), PostError> {
        self.rail.post(link, wr_id, op, signalled)
    }

    fn flush(&mut self) {
        self.rail.flush();
    }

    fn poll(&mut self, out: &mut [Completion]) -> usize {
        if self.dead[self.nic].load(Ordering::Relaxed) {
            self.links.drain(..).for_each(|link| self.rail.fail_link(link));
        }
        self.rail.poll(out)
    }

    fn arm_wait(&mut self) -> WaitMethod {
        self.rail.arm_wait()
    }
}
