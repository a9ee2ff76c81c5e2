//! A fabric around a fabric that records what goes over each NIC and when, for a timeline that Perfetto opens.
//!
//! A front end wraps its fabric in [`Traced`] when it starts, and at the end writes a [`TraceFile`] of what the
//! [`Recorder`] holds. The engine sees a fabric like any other. Without a recorder a rail pays one branch a post and one
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
mod story;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use trunkline_proto::wire::status::Usage;

pub use file::{About, Args, Origin, Process, TraceEvent, TraceFile};
pub use rail::TracedRail;
pub use recorder::Recorder;

use crate::{Fabric, Nic, OpenError, RailConfig};

/// A fabric whose rails tell a [`Recorder`] what they do, if there is one.
#[derive(Debug)]
pub struct Traced<F> {
    fabric: F,
    recorder: Option<Arc<Recorder>>,
}

impl<F: Fabric> Traced<F> {
    /// The fabric, recorded by `recorder`; without one it is the same as before.
    pub fn new(fabric: F, recorder: Option<Arc<Recorder>>) -> Self {
        Self { fabric, recorder }
    }
}

impl<F: Fabric> Fabric for Traced<F> {
    type Rail = TracedRail<F::Rail>;

    fn name(&self) -> &'static str {
        self.fabric.name()
    }

    fn qualifier(&self) -> &str {
        self.fabric.qualifier()
    }

    fn nics(&self) -> &[Nic] {
        self.fabric.nics()
    }

    fn fuses(&self) -> bool {
        self.fabric.fuses()
    }

    fn near(&self) -> Option<usize> {
        self.fabric.near()
    }

    fn usage(&self, nic: usize) -> Usage {
        self.fabric.usage(nic)
    }

    fn open(&self, nic: usize, config: &RailConfig) -> Result<Self::Rail, OpenError> {
        Ok(TracedRail::new(self.fabric.open(nic, config)?, nic, self.recorder.as_ref()))
    }
}
