//! The software NIC, some of which die.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use trunkline_fabric::{
    Caps, Completion, Fabric, LinkAddress, LinkError, LinkId, Links, Nic, Op, OpenError, PostError, Rail,
    RailConfig, Registrar, Wake,
};
use trunkline_proto::wire::status::Usage;
use trunkline_softnic::SoftFabric;

pub(crate) const NICS: usize = 4;

/// Which NICs of a process are dead.
pub(crate) type Dead = Arc<[AtomicBool; NICS]>;

/// The software NIC, some of which may die: all links of such a one are in error then.
pub(crate) struct Mortal(pub(crate) SoftFabric, pub(crate) Dead);

pub(crate) struct MortalRail<R> {
    rail: R,
    nic: usize,
    dead: Dead,
    links: Vec<LinkId>,
}

impl Fabric for Mortal {
    type Rail = MortalRail<<SoftFabric as Fabric>::Rail>;

    fn name(&self) -> &'static str {
        "mortal"
    }

    fn nics(&self) -> &[Nic] {
        self.0.nics()
    }

    fn usage(&self, nic: usize) -> Usage {
        self.0.usage(nic)
    }

    fn open(&self, nic: usize, config: &RailConfig) -> Result<Self::Rail, OpenError> {
        let rail = self.0.open(nic, config)?;
        Ok(MortalRail { rail, nic, dead: Arc::clone(&self.1), links: Vec::new() })
    }
}

impl<R: Rail> Links for MortalRail<R> {
    fn create_on(&mut self, pipeline: Option<u32>) -> Result<LinkId, LinkError> {
        let link = self.rail.create_on(pipeline)?;
        self.links.push(link);
        Ok(link)
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
        self.links.retain(|&known| known != link);
        self.rail.destroy(link);
    }
}

impl<R: Rail> Rail for MortalRail<R> {
    fn caps(&self) -> &Caps {
        self.rail.caps()
    }

    fn registrar(&self) -> Arc<dyn Registrar> {
        self.rail.registrar()
    }

    fn credits(&self, link: LinkId) -> u32 {
        self.rail.credits(link)
    }

    fn post(&mut self, link: LinkId, wr_id: u64, op: Op<'_>, signalled: bool) -> Result<(), PostError> {
        self.rail.post(link, wr_id, op, signalled)
    }

    fn flush(&mut self) {
        self.rail.flush();
    }

    fn poll(&mut self, out: &mut [Completion]) -> usize {
        if self.dead[self.nic].load(Ordering::Relaxed) {
            self.links.drain(..).for_each(|link| self.rail.fail(link));
        }
        self.rail.poll(out)
    }

    fn arm(&mut self) -> Wake {
        self.rail.arm()
    }
}
