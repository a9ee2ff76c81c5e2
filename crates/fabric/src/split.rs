//! Two fabrics as one: the NICs of one reach any host, and the one NIC of the other is for neighbours, the processes of this host.
//!
//! Made by a front end, read by the engine, which asks [`Fabric::near`] when a connection is made: a connection is over NICs of one of the two,
//! so plans, keys and limits are those of its own NICs, and nothing here is asked which it is but the calls of an open rail.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use trunkline_proto::wire::status::Usage;

use crate::{
    Caps, Completion, Cq, Fabric, LinkAddress, LinkError, LinkId, Links, Nic, Op, OpenError, PostError, Rail,
    RailConfig, Registrar, Wake,
};

/// A fabric for all, and one for neighbours if there is one.
#[derive(Debug)]
pub struct Split<N, F> {
    far: F,
    near: Option<N>,
    nics: Vec<Nic>,
}

impl<N: Fabric, F: Fabric> Split<N, F> {
    /// `far` alone, or with the first NIC of `near` for neighbours; it stands behind those of `far`.
    pub fn new(far: F, near: Option<N>) -> Self {
        let first = near.as_ref().and_then(|near| near.nics().first());
        let nics = far.nics().iter().chain(first).cloned().collect();
        Self { far, near, nics }
    }

    /// The fabric that reaches any host.
    pub const fn far(&self) -> &F {
        &self.far
    }
}

impl<N: Fabric, F: Fabric> Fabric for Split<N, F> {
    type Rail = SplitRail<N::Rail, F::Rail>;

    fn name(&self) -> &'static str {
        self.far.name()
    }

    fn qualifier(&self) -> &str {
        self.far.qualifier()
    }

    fn nics(&self) -> &[Nic] {
        &self.nics
    }

    fn fuses(&self) -> bool {
        self.far.fuses()
    }

    fn near(&self) -> Option<usize> {
        let behind = self.far.nics().len();
        (self.nics.len() > behind).then_some(behind)
    }

    fn usage(&self, nic: usize) -> Usage {
        match &self.near {
            Some(near) if Some(nic) == self.near() => near.usage(0),
            _ => self.far.usage(nic),
        }
    }

    fn open(&self, nic: usize, config: &RailConfig) -> Result<Self::Rail, OpenError> {
        match &self.near {
            Some(near) if Some(nic) == self.near() => near.open(0, config).map(SplitRail::Near),
            _ => self.far.open(nic, config).map(SplitRail::Far),
        }
    }
}

/// An open NIC of one of the two.
#[derive(Debug)]
pub enum SplitRail<N, F> {
    /// The one for neighbours.
    Near(N),
    /// One of the others.
    Far(F),
}

/// The same of whichever rail it is.
macro_rules! of {
    ($split:expr, $rail:ident => $what:expr) => {
        match $split {
            SplitRail::Near($rail) => $what,
            SplitRail::Far($rail) => $what,
        }
    };
}

impl<N: Rail, F: Rail> Links for SplitRail<N, F> {
    fn create(&mut self) -> Result<LinkId, LinkError> {
        of!(self, rail => rail.create())
    }

    fn create_on(&mut self, pipeline: Option<u32>) -> Result<LinkId, LinkError> {
        of!(self, rail => rail.create_on(pipeline))
    }

    fn pipeline(&self, link: LinkId) -> Option<u32> {
        of!(self, rail => rail.pipeline(link))
    }

    fn address(&self, link: LinkId) -> Result<LinkAddress, LinkError> {
        of!(self, rail => rail.address(link))
    }

    fn connect(&mut self, link: LinkId, peer: LinkAddress) -> Result<(), LinkError> {
        of!(self, rail => rail.connect(link, peer))
    }

    fn is_up(&mut self, link: LinkId) -> Result<bool, LinkError> {
        of!(self, rail => rail.is_up(link))
    }

    fn look(&mut self, link: LinkId) -> Result<(), LinkError> {
        of!(self, rail => rail.look(link))
    }

    #[inline]
    fn poll_is_call(&self, link: LinkId) -> bool {
        of!(self, rail => rail.poll_is_call(link))
    }

    fn copied_max(&self, link: LinkId) -> u64 {
        of!(self, rail => rail.copied_max(link))
    }

    fn rest(&mut self, link: LinkId) -> bool {
        of!(self, rail => rail.rest(link))
    }

    fn fail(&mut self, link: LinkId) {
        of!(self, rail => rail.fail(link));
    }

    fn is_quiet(&mut self, link: LinkId) -> bool {
        of!(self, rail => rail.is_quiet(link))
    }

    fn destroy(&mut self, link: LinkId) {
        of!(self, rail => rail.destroy(link));
    }
}

impl<N: Rail, F: Rail> Rail for SplitRail<N, F> {
    #[inline]
    fn caps(&self) -> &Caps {
        of!(self, rail => rail.caps())
    }

    fn registrar(&self) -> Arc<dyn Registrar> {
        of!(self, rail => rail.registrar())
    }

    #[inline]
    fn credits(&self, link: LinkId) -> u32 {
        of!(self, rail => rail.credits(link))
    }

    // Inlined, as callers know which operation it is.
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
    fn unsent(&self, link: LinkId) -> u32 {
        of!(self, rail => rail.unsent(link))
    }

    #[inline]
    fn poll(&mut self, out: &mut [Completion]) -> usize {
        of!(self, rail => rail.poll(out))
    }

    #[inline]
    fn cq(&self) -> Option<Cq> {
        of!(self, rail => rail.cq())
    }

    fn arm(&mut self) -> Wake {
        of!(self, rail => rail.arm())
    }

    fn event_descriptor(&self) -> Option<Arc<OwnedFd>> {
        of!(self, rail => rail.event_descriptor())
    }
}
