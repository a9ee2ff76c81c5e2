//! A fabric that wraps another one and records the operations of each NIC with their times, for a timeline that Perfetto opens.
//!
//! A front end wraps its fabric in [`TracedFabric`] when it starts, and at the end writes a [`TraceFile`] of the events in the
//! [`EventRecorder`]. The engine sees a fabric like any other. Without a recorder a rail costs one branch per post and one
//! per poll. With one, an event costs a read of the clock and five stores into a buffer that was allocated before. No event
//! allocates, locks or makes a system call (if the clock makes none). Events that find the buffer full are counted and
//! dropped.
//!
//! The events are not processed while the process works: `timeline` finds the post of each completion and `layout` makes
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

/// A fabric whose rails record their operations in an [`EventRecorder`], if there is one.
#[derive(Debug)]
pub struct TracedFabric<F> {
    fabric: F,
    recorder: Option<Arc<EventRecorder>>,
}

impl<F: Fabric> TracedFabric<F> {
    /// Wraps the fabric, recorded by `recorder`; without one it behaves as the fabric itself.
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
