//! A fabric around a fabric that records what goes over each NIC and when, for a timeline that Perfetto opens.
//!
//! A front end wraps its fabric in [`TracedFabric`] when it starts, and at the end writes a [`TraceFile`] of what the
//! [`EventRecorder`] holds. The engine sees a fabric like any other. Without a recorder a rail pays one branch a post and one
//! a poll. With one, an event costs a look at the clock and five stores into a buffer that was there before; no event
//! allocates, locks or makes a system call (where the clock makes none), and what finds the buffer full is counted and
//! dropped.
//!
//! Nothing is made of the events while the process works: `story` finds the post of each completion and `layout` makes
//! slices nest, both when the file is written.

mod event;
mod file;
mod layout;
mod rail;
mod recorder;
#[cfg(test)]
mod tests;
mod timeline;

use std::sync::Arc;

use trunkline_proto::wire::status::NicUsage;

pub use file::{EventArgs, ProcessOrigin, TraceEvent, TraceFile, TraceMetadata, TracedProcess};
pub use rail::TracedRail;
pub use recorder::EventRecorder;

use crate::{Fabric, NicPort, RailConfig, RailOpenError};

/// A fabric whose rails tell a [`EventRecorder`] what they do, if there is one.
#[derive(Debug)]
pub struct TracedFabric<F> {
    fabric: F,
    recorder: Option<Arc<EventRecorder>>,
}

impl<F: Fabric> TracedFabric<F> {
    /// The fabric, recorded by `recorder`; without one it is the same as before.
    pub fn new(fabric: F, recorder: Option<Arc<EventRecorder>>) -> Self {
        Self { fabric, recorder }
    }
}

impl<F: Fabric> Fabric for TracedFabric<F> {
    type Rail = TracedRail<F::Rail>;

    fn fabric_name(&self) -> &'static str {
        self.fabric.fabric_name()
    }

    fn name_qualifier(&self) -> &str {
        self.fabric.name_qualifier()
    }

    fn nics(&self) -> &[NicPort] {
        self.fabric.nics()
    }

    fn can_fuse_nics(&self) -> bool {
        self.fabric.can_fuse_nics()
    }

    fn intra_host_nic(&self) -> Option<usize> {
        self.fabric.intra_host_nic()
    }

    fn nic_usage(&self, nic: usize) -> NicUsage {
        self.fabric.nic_usage(nic)
    }

    fn open_rail(&self, nic: usize, config: &RailConfig) -> Result<Self::Rail, RailOpenError> {
        Ok(TracedRail::new(self.fabric.open_rail(nic, config)?, nic, self.recorder.as_ref()))
    }
}
