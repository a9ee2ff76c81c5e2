//! The fabric: a list of software NICs. Created once by the program that starts an engine.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use trunkline_fabric::{Fabric, NicPort, RailConfig, RailOpenError};
use trunkline_proto::wire::status::NicUsage;

use crate::nic::SharedFabric;
use crate::segment::SegmentGeometry;
use crate::{SoftConfig, SoftRail, WireMode, caps};

/// Software NICs `soft0`, `soft1` and so on.
pub struct SoftFabric {
    shared: Arc<SharedFabric>,
    nics: Vec<NicPort>,
}

impl SoftFabric {
    /// Creates the NICs of `config`.
    ///
    /// # Errors
    /// [`RailOpenError::System`] when sizes are invalid or the system has no random numbers.
    pub fn new(config: SoftConfig) -> Result<Self, RailOpenError> {
        if SegmentGeometry::new(config.slots, config.payload).is_none() {
            let source = std::io::ErrorKind::InvalidInput.into();
            return Err(RailOpenError::System { what: "setting the sizes of the rings", source });
        }
        let Some(pipeline_qps) = config.pipeline_qps() else {
            let why = format!("{} pipelines, {} queue pairs", config.pipelines, config.max_qp);
            let source = std::io::Error::new(std::io::ErrorKind::InvalidInput, why);
            return Err(RailOpenError::System {
                what: "dividing the queue pairs among the pipelines",
                source,
            });
        };
        let caps = caps::nic_caps(&config, pipeline_qps);
        let shared = SharedFabric::new(config, pipeline_qps)?;
        let nics = (0..shared.nics.len())
            .map(|index| NicPort {
                name: format!("soft{index}"),
                pci_path: None,
                guid: nic_guid(&shared.id, index),
                port: 1,
                speed_mbps: shared.config.speed_mbps(index),
                latency_us: 0.0,
                caps,
            })
            .collect();
        Ok(Self { shared: Arc::new(shared), nics })
    }
}

/// Returns a number that other processes' NICs do not have.
fn nic_guid(id: &[u8; 16], index: usize) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = *id;
    u64::from_le_bytes([a, b, c, d, e, f, g, h]).wrapping_add(index as u64)
}

impl Fabric for SoftFabric {
    type Rail = SoftRail;

    fn fabric_name(&self) -> &'static str {
        "soft"
    }

    fn name_qualifier(&self) -> &str {
        match self.shared.config.wire {
            WireMode::Auto => "",
            WireMode::Shm => "shm",
            WireMode::Tcp => "tcp",
        }
    }

    fn nics(&self) -> &[NicPort] {
        &self.nics
    }

    fn nic_usage(&self, nic: usize) -> NicUsage {
        let (Some(found), Some(state)) = (self.nics.get(nic), self.shared.nics.get(nic)) else {
            return NicUsage::default();
        };
        NicUsage {
            queue_pairs: state.queue_pairs(),
            queue_pairs_max: found.caps.links_max,
            completion_queues: state.queues.load(Ordering::Relaxed),
            // At most the NIC's limit, which has 32 bits.
            regions: state.table.len() as u32,
            regions_max: found.caps.regions_max,
        }
    }

    fn open_rail(&self, nic: usize, config: &RailConfig) -> Result<SoftRail, RailOpenError> {
        let Some(found) = self.nics.get(nic) else { return Err(RailOpenError::NoSuchNic(nic)) };
        let limit = |what, asked: u32, limit: u32| {
            if asked > limit {
                Err(RailOpenError::Exhausted { what, limit: u64::from(limit) })
            } else {
                Ok(())
            }
        };
        limit("the depth of a queue pair", config.depth.max(config.recv_depth), found.caps.depth_max)?;
        Ok(SoftRail::new(Arc::clone(&self.shared), nic, *config, found.caps))
    }
}
