//! The fabric: the usable ports of this host, found once when it is created. The front end creates it; it opens rails and moves no data.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use trunkline_fabric::{Fabric, NicPort, RailConfig, RailOpenError};
use trunkline_mem::gpu::VendorDrivers;
use trunkline_proto::wire::status::NicUsage;
use trunkline_sys::verbs::{LINK_LAYER_ETHERNET, LINK_LAYER_INFINIBAND, PORT_ACTIVE, TRANSPORT_IB};

use crate::config::PacketRouting;
use crate::device::{PortAddress, VerbsDevice, VerbsPort};
use crate::grant::QueueGrant;
use crate::{VerbsConfig, VerbsLibrary, VerbsRail, VerbsUnavailable, caps, gid, speed};

/// RDMA devices of this host.
pub struct VerbsFabric {
    ports: Vec<Arc<VerbsPort>>,
    nics: Vec<NicPort>,
    config: Arc<VerbsConfig>,
    notes: Vec<String>,
}

impl VerbsFabric {
    /// Opens rdma-core and the devices that `config` selects.
    ///
    /// # Errors
    /// [`VerbsUnavailable`] names the missing part.
    pub fn new(config: VerbsConfig) -> Result<Self, VerbsUnavailable> {
        if config.disabled {
            return Err(VerbsUnavailable::Disabled);
        }
        Self::with_library(Arc::new(VerbsLibrary::open()?), config)
    }

    /// Opens the devices with a library that is open.
    ///
    /// # Errors
    /// As [`VerbsFabric::new`].
    pub fn with_library(library: Arc<VerbsLibrary>, config: VerbsConfig) -> Result<Self, VerbsUnavailable> {
        if config.disabled {
            return Err(VerbsUnavailable::Disabled);
        }
        let devices = open_all(&library, &config)?;
        let ports = Vec::new();
        let nics = Vec::new();
        let notes = Vec::new();
        let mut found = Self { ports, nics, config: Arc::new(config), notes };
        let mut left_out = Vec::new();
        for device in devices {
            match device {
                Ok(device) => found.take_device(&Arc::new(device), &mut left_out),
                Err(why) => left_out.push(why),
            }
        }
        if found.ports.is_empty() { Err(VerbsUnavailable::Ports(left_out.join("; "))) } else { Ok(found) }
    }

    /// Returns the requested and granted queue sizes, a line per NIC, for the log of the caller that opens the fabric.
    #[must_use]
    pub fn grant_notes(&self) -> &[String] {
        &self.notes
    }

    /// Whether a NIC reaches memory of GPUs, as far as device and kernel are concerned.
    #[must_use]
    pub fn reaches_devices(&self) -> bool {
        self.nics.iter().any(|nic| nic.caps.devices.reaches_any())
    }

    /// Limits the memory of GPUs that NICs reach to that of these drivers. Without this call it is all memory that the
    /// devices reach.
    #[must_use]
    pub fn with_gpus(mut self, gpus: &VendorDrivers) -> Self {
        for nic in &mut self.nics {
            nic.caps.devices = nic.caps.devices.limit_to_gpus(gpus);
        }
        self
    }

    fn take_device(&mut self, device: &Arc<VerbsDevice>, left_out: &mut Vec<String>) {
        let pci_path = device.pci_path(self.config.merge_functions);
        let before = self.devices_at(pci_path.as_deref(), &device.name);
        for number in 1..=device.attr.phys_port_cnt {
            let name = nic_name(&device.name, number);
            if !self.config.hca.matches_port(&device.name, number.into()) {
                left_out.push(format!("{name} is not selected"));
                continue;
            }
            match usable_port(device, number, &self.config) {
                Ok(port) => {
                    let mut caps = caps::port_caps(
                        &device.attr,
                        &port.first.attr,
                        port.grant.depth,
                        device.regions.regions_max(),
                        device.reach,
                    );
                    self.notes.push(port.grant.log_line(&name));
                    caps.pipelines = device.pipelines.pipeline_count();
                    self.nics.push(NicPort {
                        name,
                        pci_path: pci_path.clone(),
                        guid: u64::from_be(device.attr.sys_image_guid),
                        port: u32::from(number) + before,
                        speed_mbps: port.speed_mbps,
                        latency_us: 0.0,
                        caps,
                    });
                    self.ports.push(Arc::new(port));
                }
                Err(why) => left_out.push(format!("{name} {why}")),
            }
        }
    }
}

impl VerbsFabric {
    /// Returns the number of other devices at the same place, which is not 0 if the functions of a card count as one.
    /// The ports of those devices are numbered first.
    fn devices_at(&self, place: Option<&str>, name: &str) -> u32 {
        let there = |(nic, port): (&NicPort, &Arc<VerbsPort>)| {
            let there = nic.pci_path.as_deref() == place && port.device.name != name;
            there.then(|| port.device.name.clone())
        };
        let names: BTreeSet<String> = self.nics.iter().zip(&self.ports).filter_map(there).collect();
        if place.is_none() {
            return 0;
        }
        // At most the number of devices.
        names.len() as u32
    }
}

/// Opens every device; each failure is returned as its reason.
fn open_all(
    library: &Arc<VerbsLibrary>,
    config: &VerbsConfig,
) -> Result<Vec<Result<VerbsDevice, String>>, VerbsUnavailable> {
    let mut count = 0;
    // SAFETY: `count` is valid for writes.
    let list = unsafe { (library.calls().get_device_list)(&raw mut count) };
    if list.is_null() {
        return Err(VerbsUnavailable::Devices);
    }
    let mut devices = Vec::new();
    for at in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: `at` is less than the number of entries that the library returned.
        let entry = unsafe { list.add(at) };
        // SAFETY: an entry of the list, which has not been freed.
        let raw = unsafe { *entry };
        // SAFETY: the entry points to a device, which stays valid until the list is freed.
        let transport = unsafe { (*raw).transport_type };
        if transport != TRANSPORT_IB {
            continue;
        }
        // SAFETY: `raw` is an entry of the list, which has not been freed.
        let device = unsafe { VerbsDevice::open(library, raw, config) };
        devices.push(device.map_err(|error| format!("device {at} cannot be opened ({error})")));
    }
    // SAFETY: the list was returned above and is freed once; open devices remain valid (ibv_get_device_list(3)).
    unsafe { (library.calls().free_device_list)(list) };
    if devices.is_empty() { Err(VerbsUnavailable::Devices) } else { Ok(devices) }
}

/// Returns the name of a port. The second and further ports of a device have their number in it.
fn nic_name(device: &str, port: u8) -> String {
    if port == 1 { device.to_owned() } else { format!("{device}:{port}") }
}

/// Returns a port if it can be used, else the reason why not.
fn usable_port(
    device: &Arc<VerbsDevice>,
    number: u8,
    config: &Arc<VerbsConfig>,
) -> Result<VerbsPort, String> {
    let told =
        device.query_port(number).map_err(|error| format!("has attributes that cannot be read ({error})"))?;
    let attr = told.attr;
    let speed_mbps = speed::of_port(&told);
    if attr.state != PORT_ACTIVE {
        return Err("is not active".to_owned());
    }
    if ![LINK_LAYER_INFINIBAND, LINK_LAYER_ETHERNET].contains(&attr.link_layer) {
        return Err("has a link layer that is neither InfiniBand nor Ethernet".to_owned());
    }
    let gid = gid::choose_gid(attr.link_layer, &device.query_gids(number, &attr), config);
    let gid = gid.ok_or_else(|| match config.gid_index {
        Some(index) => format!("has no address with index {index} (NCCL_IB_GID_INDEX)"),
        None => "has no address".to_owned(),
    })?;
    if config.pkey_index >= attr.pkey_tbl_len.max(1) {
        return Err(format!("has no partition key with index {} (NCCL_IB_PKEY)", config.pkey_index));
    }
    let adaptive = match config.routing {
        PacketRouting::Usual => attr.link_layer == LINK_LAYER_INFINIBAND,
        PacketRouting::Adaptive => true,
        PacketRouting::Fixed => false,
    };
    // A write whose immediate is a request of its own needs two requests.
    let places = if adaptive { 2 } else { 1 };
    let grant = QueueGrant::probe_grant(device, config, places)?;
    Ok(VerbsPort {
        device: Arc::clone(device),
        number,
        config: Arc::clone(config),
        first: PortAddress { attr, gid },
        speed_mbps,
        last_gid: Mutex::new(gid),
        grant,
        flusher: Mutex::default(),
        adaptive,
    })
}

impl Fabric for VerbsFabric {
    type Rail = VerbsRail;

    fn fabric_name(&self) -> &'static str {
        "verbs"
    }

    fn nics(&self) -> &[NicPort] {
        &self.nics
    }

    fn can_fuse_nics(&self) -> bool {
        self.config.merge_nics
    }

    fn nic_usage(&self, nic: usize) -> NicUsage {
        let (Some(found), Some(port)) = (self.nics.get(nic), self.ports.get(nic)) else {
            return NicUsage::default();
        };
        let device = &port.device;
        NicUsage {
            queue_pairs: device.queue_pairs.load(Ordering::Relaxed),
            queue_pairs_max: device.attr.max_qp.unsigned_abs(),
            completion_queues: device.queues.load(Ordering::Relaxed),
            regions: device.regions.len(),
            regions_max: found.caps.regions_max,
        }
    }

    fn open_rail(&self, nic: usize, config: &RailConfig) -> Result<VerbsRail, RailOpenError> {
        let (Some(found), Some(port)) = (self.nics.get(nic), self.ports.get(nic)) else {
            return Err(RailOpenError::NoSuchNic(nic));
        };
        let limit = found.caps.depth_max;
        if config.depth.max(config.recv_depth) > limit {
            return Err(RailOpenError::Exhausted { what: "the depth of a queue pair", limit: limit.into() });
        }
        VerbsRail::new(port, &self.config, config, found.caps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_ports_have_the_name_of_their_device() {
        assert_eq!(
            (nic_name("mlx5_0", 1), nic_name("mlx5_0", 2)),
            ("mlx5_0".to_owned(), "mlx5_0:2".to_owned())
        );
    }
}
