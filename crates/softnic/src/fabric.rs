//! The fabric: a list of software NICs. Made once by whoever starts an engine.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use trunkline_fabric::{Fabric, Nic, OpenError, RailConfig};
use trunkline_proto::wire::status::Usage;

use crate::nic::Shared;
use crate::segment::Geometry;
use crate::{SoftConfig, SoftRail, WireMode, caps};

/// Software NICs `soft0`, `soft1` and so on.
pub struct SoftFabric {
    shared: Arc<Shared>,
    nics: Vec<Nic>,
}

impl SoftFabric {
    /// Makes NICs as `config` says.
    ///
    /// # Errors
    /// [`OpenError::System`] when sizes are not usable or the system gives no random numbers.
    pub fn new(config: SoftConfig) -> Result<Self, OpenError> {
        if Geometry::new(config.slots, config.payload).is_none() {
            let source = std::io::ErrorKind::InvalidInput.into();
            return Err(OpenError::System { what: "setting the sizes of the rings", source });
        }
        let Some(pipeline_qps) = config.pipeline_qps() else {
            let why = format!("{} pipelines, {} queue pairs", config.pipelines, config.max_qp);
            let source = std::io::Error::new(std::io::ErrorKind::InvalidInput, why);
            return Err(OpenError::System { what: "giving each pipeline its queue pairs", source });
        };
        let caps = caps::of(&config, pipeline_qps);
        let shared = Shared::new(config, pipeline_qps)?;
        let nics = (0..shared.nics.len())
            .map(|index| Nic {
                name: format!("soft{index}"),
                pci_path: None,
                guid: guid(&shared.id, index),
                port: 1,
                speed_mbps: shared.config.speed_mbps(index),
                latency_us: 0.0,
                caps,
            })
            .collect();
        Ok(Self { shared: Arc::new(shared), nics })
    }
}

/// A number that other processes' NICs do not have.
fn guid(id: &[u8; 16], index: usize) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = *id;
    u64::from_le_bytes([a, b, c, d, e, f, g, h]).wrapping_add(index as u64)
}

impl Fabric for SoftFabric {
    type Rail = SoftRail;

    fn name(&self) -> &'static str {
        "soft"
    }

    fn qualifier(&self) -> &str {
        match self.shared.config.wire {
            WireMode::Auto => "",
            WireMode::Shm => "shm",
            WireMode::Tcp => "tcp",
        }
    }

    fn nics(&self) -> &[Nic] {
        &self.nics
    }

    fn usage(&self, nic: usize) -> Usage {
        let (Some(found), Some(state)) = (self.nics.get(nic), self.shared.nics.get(nic)) else {
            return Usage::default();
        };
        Usage {
            queue_pairs: state.queue_pairs(),
            queue_pairs_max: found.caps.links_max,
            completion_queues: state.queues.load(Ordering::Relaxed),
            // At most as many as the NIC has, which are counted in 32 bits.
            regions: state.table.len() as u32,
            regions_max: found.caps.regions_max,
        }
    }

    fn open(&self, nic: usize, config: &RailConfig) -> Result<SoftRail, OpenError> {
        let Some(found) = self.nics.get(nic) else { return Err(OpenError::NoSuchNic(nic)) };
        let limit = |what, asked: u32, limit: u32| {
            if asked > limit { Err(OpenError::Exhausted { what, limit: u64::from(limit) }) } else { Ok(()) }
        };
        limit("the depth of a queue pair", config.depth.max(config.recv_depth), found.caps.depth_max)?;
        Ok(SoftRail::new(Arc::clone(&self.shared), nic, *config, found.caps))
    }
}
