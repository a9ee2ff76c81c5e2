//! The simulated host of one process: virtual time, random numbers from the seed, control streams.

use trunkline_fabric::{Host, LogLevel};
use trunkline_proto::time::Instant;

use crate::{SimOob, SimPid, SimWorld};

/// The host on which the engine of one simulated process runs.
#[derive(Debug)]
pub struct SimHost {
    world: SimWorld,
    process: SimPid,
    oob: SimOob,
}

impl SimHost {
    /// Creates the host of a process of the world.
    #[must_use]
    pub fn new(world: &SimWorld, process: SimPid) -> Self {
        Self { world: world.clone(), process, oob: SimOob::new(world.clone(), process) }
    }
}

impl Host for SimHost {
    type Oob = SimOob;

    fn now(&self) -> Instant {
        let mut state = self.world.lock();
        state.poll_tick();
        Instant(state.now)
    }

    fn random_bytes(&self) -> [u8; 16] {
        let mut state = self.world.lock();
        let mut bytes = [0; 16];
        if let Some(process) = state.processes.get_mut(self.process.0) {
            let low = process.dice.draw_u64();
            let high = process.dice.draw_u64();
            bytes[..8].copy_from_slice(&low.to_le_bytes());
            bytes[8..].copy_from_slice(&high.to_le_bytes());
        }
        bytes
    }

    fn oob(&self) -> &SimOob {
        &self.oob
    }

    fn log(&self, level: LogLevel, text: &str) {
        let mut state = self.world.lock();
        state.note_trace(format_args!("{} logs {level:?}: {text}", self.process));
        if let Some(process) = state.processes.get_mut(self.process.0) {
            process.warnings += usize::from(level == LogLevel::Warn);
        }
    }
}
