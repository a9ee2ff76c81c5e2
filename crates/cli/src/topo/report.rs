//! The node as JSON. Called by `cmd::topo`; programs that start jobs read it.

use serde::Serialize;
use trunkline_topo::{DeviceLocation, Distance, GpusBy, NicKind, PciPath};

use super::TopologyView;

/// A GPU.
#[derive(Debug, Serialize)]
struct TopologyGpuRow {
    /// Its number, in the order of addresses.
    index: usize,
    address: String,
    /// Vendor and device.
    id: Option<String>,
    #[serde(flatten)]
    place: PlaceRow,
    /// Its NICs, in the order in which they are used.
    nics: Vec<PickRow>,
    /// Whether the path to the first one avoids the processor.
    close: bool,
}

/// A NIC of a GPU.
#[derive(Debug, Serialize)]
struct PickRow {
    name: String,
    distance: String,
}

/// Where a device is.
#[derive(Debug, Serialize)]
struct PlaceRow {
    numa: Option<u16>,
    host_bridge: Option<String>,
    /// The bridges below the host bridge, then the device.
    path: Vec<String>,
}

impl PlaceRow {
    fn new(place: &DeviceLocation) -> Self {
        let hops = |path: &PciPath| path.hops().iter().map(ToString::to_string).collect();
        Self {
            numa: place.numa.map(|node| node.node_number()),
            host_bridge: place.path.as_ref().map(|path| path.bridge_name().to_owned()),
            path: place.path.as_ref().map_or_else(Vec::new, hops),
        }
    }
}

/// A NIC.
#[derive(Debug, Serialize)]
struct TopologyNicRow {
    name: String,
    kind: &'static str,
    address: Option<String>,
    #[serde(flatten)]
    place: PlaceRow,
    interfaces: Vec<String>,
    speed_mbps: Option<u32>,
    /// Whether it takes part in the assignment.
    shared_out: bool,
    /// The GPUs that use it.
    gpus: Vec<usize>,
    /// How far it is from each GPU.
    distances: Vec<String>,
}

/// The whole node.
#[derive(Debug, Serialize)]
pub(crate) struct TopologyReport {
    sysfs: String,
    gpus_by: &'static str,
    nics_per_gpu: usize,
    gpus: Vec<TopologyGpuRow>,
    nics: Vec<TopologyNicRow>,
    notes: Vec<String>,
}

impl TopologyReport {
    /// The report of a node that was read from `sysfs`.
    pub(crate) fn new(view: &TopologyView, sysfs: String) -> Self {
        Self {
            sysfs,
            gpus_by: match view.topology.gpus_by() {
                GpusBy::Driver => "driver",
                GpusBy::Class => "class",
                GpusBy::Caller => "caller",
                GpusBy::Nobody => "nobody",
            },
            nics_per_gpu: view.assignment.per_gpu(),
            gpus: (0..view.gpus().len()).map(|at| gpu_row(view, at)).collect(),
            nics: (0..view.nics().len()).map(|at| nic_row(view, at)).collect(),
            notes: view.note_lines(),
        }
    }
}

fn gpu_row(view: &TopologyView, index: usize) -> TopologyGpuRow {
    let gpu = &view.gpus()[index];
    let pick = |pick: &trunkline_topo::AssignedNic| PickRow {
        name: view.nics()[pick.nic].name.to_string(),
        distance: pick.distance.to_string(),
    };
    TopologyGpuRow {
        index,
        address: gpu.address.to_string(),
        id: gpu.id.map(|(vendor, device)| format!("{vendor:04x}:{device:04x}")),
        place: PlaceRow::new(&gpu.place),
        nics: view.assignment.gpu_nics(index).iter().map(pick).collect(),
        close: view.assignment.is_close(index),
    }
}

fn nic_row(view: &TopologyView, at: usize) -> TopologyNicRow {
    let nic = &view.nics()[at];
    TopologyNicRow {
        name: nic.name.to_string(),
        kind: match nic.kind {
            NicKind::Rdma => "rdma",
            NicKind::Cxi => "cxi",
            NicKind::Interface => "interface",
        },
        address: nic.pci_address().map(|address| address.to_string()),
        place: PlaceRow::new(&nic.place),
        interfaces: nic.interfaces.iter().map(ToString::to_string).collect(),
        speed_mbps: nic.speed_mbps,
        shared_out: view.candidates[at],
        gpus: view.nic_users(at),
        distances: view
            .gpus()
            .iter()
            .map(|gpu| Distance::between(&gpu.place, &nic.place).to_string())
            .collect(),
    }
}
