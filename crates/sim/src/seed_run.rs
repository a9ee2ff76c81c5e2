//! Runs one seed: draws network model and scenario, runs the cluster, and returns the outcome. Called by the sweep,
//! by `trunkline sim` and to replay a failure.

use std::fmt;

use crate::SimWorld;
use crate::checkers::PropertyViolation;
use crate::cluster::SimCluster;
use crate::scenario::{CommPlan, RunScenario};

/// Options of a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct SeedOptions {
    /// Whether to keep a trace.
    pub trace: bool,
    /// Whether a sweep ends with the first seed that fails.
    pub stop_at_failure: bool,
}

/// The outcome of a run.
#[derive(Clone, Debug)]
pub struct SeedOutcome {
    /// The seed.
    pub seed: u64,
    /// The violated property, if there is one.
    pub violation: Option<PropertyViolation>,
    /// Calls of the simulated applications.
    pub steps: u64,
    /// Virtual duration in nanoseconds.
    pub time: u64,
    /// Requests that ended.
    pub requests: u64,
    /// The trace, if it was requested.
    pub trace: Vec<String>,
}

impl fmt::Display for SeedOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, steps, requests, .. } = self;
        let time = self.time / 1_000;
        match &self.violation {
            None => write!(f, "seed {seed}: ok, {requests} requests, {steps} calls, {time} us"),
            Some(violation) => write!(
                f,
                "seed {seed}: {violation}\n  ({requests} requests, {steps} calls, {time} us)\n  replay: trunkline sim --seed {seed}"
            ),
        }
    }
}

/// Runs one seed.
#[must_use]
pub fn run_seed(seed: u64, options: &SeedOptions) -> SeedOutcome {
    let scenario = RunScenario::from_seed(seed);
    let world = SimWorld::new(seed, scenario.weather.clone(), options.trace);
    world.note_trace(format_args!("{:?}", scenario.weather));
    world.note_trace(format_args!("{:?}, {} processes", scenario.engine, scenario.processes));
    if scenario.has_sharing() {
        world.note_trace(format_args!("{:?}", scenario.sharing));
        for (at, comm) in scenario.comms.iter().enumerate() {
            let CommPlan { from, to, from_nics, to_nics, sender, receiver, settles, .. } = comm;
            let ends = (sender.ending, receiver.ending);
            world.note_trace(format_args!(
                "comm {at}: p{from} {from_nics:?} to p{to} {to_nics:?}, {ends:?}, settles: {settles}"
            ));
        }
    }
    let cluster = SimCluster::new(world.clone(), scenario, seed);
    let (violation, steps, requests) = match cluster {
        Ok(mut cluster) => (cluster.run_to_end().err(), cluster.steps, cluster.ended_requests()),
        Err(violation) => (Some(violation), 0, 0),
    };
    SeedOutcome { seed, violation, steps, time: world.now(), requests, trace: world.take_trace() }
}
