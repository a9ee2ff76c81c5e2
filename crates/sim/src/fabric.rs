//! The simulated network, as one process sees it.

use trunkline_fabric::{Fabric, NicPort, RailConfig, RailOpenError};
use trunkline_proto::wire::status::NicUsage;

use crate::rail::{RailEntry, SimRail};
use crate::{SimPid, SimWorld};

/// The NICs of one simulated process.
#[derive(Debug)]
pub struct SimFabric {
    world: SimWorld,
    process: SimPid,
    nics: Vec<NicPort>,
}

impl SimFabric {
    /// Creates the network of a process of the world.
    #[must_use]
    pub fn new(world: &SimWorld, process: SimPid) -> Self {
        let weather = world.lock().weather.clone();
        let nics = (0..weather.nics)
            .map(|number| NicPort {
                name: format!("sim{number}"),
                pci_path: None,
                guid: 0x51_0000 + number as u64,
                port: 1,
                speed_mbps: 100_000,
                latency_us: 0.0,
                caps: weather.caps,
            })
            .collect();
        Self { world: world.clone(), process, nics }
    }
}

impl Fabric for SimFabric {
    type Rail = SimRail;

    fn fabric_name(&self) -> &'static str {
        "sim"
    }

    fn nics(&self) -> &[NicPort] {
        &self.nics
    }

    fn nic_usage(&self, nic: usize) -> NicUsage {
        let Some(found) = self.nics.get(nic) else { return NicUsage::default() };
        let state = self.world.lock();
        let mine = |rail: usize| {
            let rail = &state.rails[rail];
            rail.process == self.process && rail.nic == nic && rail.open
        };
        let rails = (0..state.rails.len()).filter(|&rail| mine(rail));
        let links = |rail: usize| state.rails[rail].links.iter().flatten().count();
        let regions = state.regions.values().filter(|region| mine(region.rail)).count();
        NicUsage {
            queue_pairs: rails.clone().map(links).sum::<usize>() as u32,
            queue_pairs_max: found.caps.links_max,
            completion_queues: rails.count() as u32,
            regions: regions as u32,
            regions_max: found.caps.regions_max,
        }
    }

    fn open_rail(&self, nic: usize, config: &RailConfig) -> Result<SimRail, RailOpenError> {
        let caps = self.nics.get(nic).ok_or(RailOpenError::NoSuchNic(nic))?.caps;
        let mut state = self.world.lock();
        let rail = state.rails.len();
        state.rails.push(RailEntry {
            process: self.process,
            nic,
            config: *config,
            open: true,
            busy_until: 0,
            links: Vec::new(),
            queue: std::collections::VecDeque::new(),
            polled: 0,
            waiting: std::collections::VecDeque::new(),
        });
        drop(state);
        Ok(SimRail::new(self.world.clone(), rail, self.process, caps))
    }
}
