//! Two fabrics as one: the NICs of one reach any host, and the one NIC of the other connects only to processes of this host.
//!
//! Made by a front end, read by the engine, which calls [`Fabric::intra_host_nic`] when a connection is made. A connection uses NICs of one of the
//! two, so plans, keys and limits are those of its own NICs. Only the calls of an open rail distinguish the two here.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use trunkline_proto::wire::status::NicUsage;

use crate::{
    Caps, Completion, CqPosition, Fabric, LinkAddress, LinkControl, LinkError, LinkId, MemoryRegistrar,
    NicPort, Op, PostError, Rail, RailConfig, RailOpenError, WaitMethod,
};

/// A fabric for all hosts, and, if present, one for the processes of this host.
#[derive(Debug)]
pub struct SplitFabric<N, F> {
    far: F,
    near: Option<N>,
    nics: Vec<NicPort>,
}

impl<N: Fabric, F: Fabric> SplitFabric<N, F> {
    /// Creates a fabric of `far` alone, or with the first NIC of `near` for the processes of this host. That NIC follows those of `far` in the list.
    pub fn new(far: F, near: Option<N>) -> Self {
        let first = near.as_ref().and_then(|near| near.nics().first());
        let nics = far.nics().iter().chain(first).cloned().collect();
        Self { far, near, nics }
    }

    /// Returns the fabric that reaches any host.
    pub const fn network_fabric(&self) -> &F {
        &self.far
    }
}

impl<N: Fabric, F: Fabric> Fabric for SplitFabric<N, F> {
    type Rail = SplitRail<N::Rail, F::Rail>;

    fn fabric_name(&self) -> &'static str {
        self.far.fabric_name()
    }

    fn name_qualifier(&self) -> &str {
        self.far.name_qualifier()
    }

    fn nics(&self) -> &[NicPort] {
        &self.nics
    }

    fn can_fuse_nics(&self) -> bool {
        self.far.can_fuse_nics()
    }

    fn intra_host_nic(&self) -> Option<usize> {
        let behind = self.far.nics().len();
        (self.nics.len() > behind).then_some(behind)
    }

    fn nic_usage(&self, nic: usize) -> NicUsage {
        match &self.near {
            Some(near) if Some(nic) == self.intra_host_nic() => near.nic_usage(0),
            _ => self.far.nic_usage(nic),
        }
    }

    fn open_rail(&self, nic: usize, config: &RailConfig) -> Result<Self::Rail, RailOpenError> {
        match &self.near {
            Some(near) if Some(nic) == self.intra_host_nic() => {
                near.open_rail(0, config).map(SplitRail::Near)
            }
            _ => self.far.open_rail(nic, config).map(SplitRail::Far),
        }
    }
}

/// An open NIC of one of the two fabrics.
#[derive(Debug)]
pub enum SplitRail<N, F> {
    /// The NIC for the processes of this host.
    Near(N),
    /// A NIC that reaches any host.
    Far(F),
}

/// Evaluates the same expression for either kind of rail.
macro_rules! of {
    ($split:expr, $rail:ident => $what:expr) => {
        match $split {
            SplitRail::Near($rail) => $what,
            SplitRail::Far($rail) => $what,
        }
    };
}

impl<N: Rail, F: Rail> LinkControl for SplitRail<N, F> {
    fn create_link(&mut self) -> Result<LinkId, LinkError> {
        of!(self, rail => rail.create_link())
    }

    fn create_link_on(&mut self, pipeline: Option<u32>) -> Result<LinkId, LinkError> {
        of!(self, rail => rail.create_link_on(pipeline))
    }

    fn link_pipeline(&self, link: LinkId) -> Option<u32> {
        of!(self, rail => rail.link_pipeline(link))
    }

    fn link_address(&self, link: LinkId) -> Result<LinkAddress, LinkError> {
        of!(self, rail => rail.link_address(link))
    }

    fn connect(&mut self, link: LinkId, peer: LinkAddress) -> Result<(), LinkError> {
        of!(self, rail => rail.connect(link, peer))
    }

    fn poll_link_up(&mut self, link: LinkId) -> Result<bool, LinkError> {
        of!(self, rail => rail.poll_link_up(link))
    }

    fn check_link(&mut self, link: LinkId) -> Result<(), LinkError> {
        of!(self, rail => rail.check_link(link))
    }

    #[inline]
    fn poll_is_call(&self, link: LinkId) -> bool {
        of!(self, rail => rail.poll_is_call(link))
    }

    fn copied_max(&self, link: LinkId) -> u64 {
        of!(self, rail => rail.copied_max(link))
    }

    fn trim_idle_memory(&mut self, link: LinkId) -> bool {
        of!(self, rail => rail.trim_idle_memory(link))
    }

    fn fail_link(&mut self, link: LinkId) {
        of!(self, rail => rail.fail_link(link));
    }

    fn poll_link_quiet(&mut self, link: LinkId) -> bool {
        of!(self, rail => rail.poll_link_quiet(link))
    }

    fn destroy_link(&mut self, link: LinkId) {
        of!(self, rail => rail.destroy_link(link));
    }
}

impl<N: Rail, F: Rail> Rail for SplitRail<N, F> {
    #[inline]
    fn caps(&self) -> &Caps {
        of!(self, rail => rail.caps())
    }

    fn registrar(&self) -> Arc<dyn MemoryRegistrar> {
        of!(self, rail => rail.registrar())
    }

    #[inline]
    fn post_credits(&self, link: LinkId) -> u32 {
        of!(self, rail => rail.post_credits(link))
    }

    // Inlined because callers pass a constant kind of operation, which lets the compiler drop the other branches.
    #[inline(always)]
    fn post(&mut self, link: LinkId, wr_id: u64, op: Op<'_>, signalled: bool) -> Result<(), PostError> {
        of!(self, rail => rail.post(link, wr_id, op, signalled))
    }

    fn take_back(&mut self, link: LinkId, wr_id: u64) -> bool {
        of!(self, rail => rail.take_back(link, wr_id))
    }

    #[inline]
    fn flush(&mut self) {
        of!(self, rail => rail.flush());
    }

    #[inline]
    fn unsent_ops(&self, link: LinkId) -> u32 {
        of!(self, rail => rail.unsent_ops(link))
    }

    #[inline]
    fn poll(&mut self, out: &mut [Completion]) -> usize {
        of!(self, rail => rail.poll(out))
    }

    #[inline]
    fn cq_position(&self) -> Option<CqPosition> {
        of!(self, rail => rail.cq_position())
    }

    fn arm_wait(&mut self) -> WaitMethod {
        of!(self, rail => rail.arm_wait())
    }

    fn event_descriptor(&self) -> Option<Arc<OwnedFd>> {
        of!(self, rail => rail.event_descriptor())
    }
}
