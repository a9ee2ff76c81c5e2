//! Reads a node's topology from sysfs, or from a tree of the same form. The only part that opens files; front ends
//! and `trunkline topo` call it once. The tree is not trusted: reading is bounded, follows no link out of the tree,
//! opens only plain files, and treats unusable entries as missing.

use std::collections::BTreeMap;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use crate::distance::{DeviceLocation, NumaNode};
use crate::pci::{PciAddress, PciPath};
use crate::rank::holds_all;
use crate::topology::{DeviceName, GpusBy, NicKind, NodeGpu, NodeNic, NodeTopology};

/// Most GPUs per node.
pub const GPUS_MAX: usize = 256;
/// Most NICs per node, network interfaces included.
pub const NICS_MAX: usize = 512;
/// Most entries per folder.
const ENTRIES_MAX: usize = 4096;
/// Most bytes that are read from a file.
const BYTES_MAX: u64 = 256;

/// Drivers of GPUs whose memory NICs can access.
const GPU_DRIVERS: [&str; 2] = ["nvidia", "amdgpu"];
/// The vendors of these GPUs.
const GPU_VENDORS: [u16; 2] = [0x10de, 0x1002];
/// First byte of a PCI class: display controllers, and processing accelerators, which some GPUs report.
const GPU_CLASSES: [u32; 2] = [0x03, 0x12];

/// The tree cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The tree does not exist.
    #[error("no sysfs tree at {}: {source}", root.display())]
    Root {
        /// The expected path.
        root: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The tree has more entries than a node can have.
    #[error("the sysfs tree has more than {limit} {what}, which no node has")]
    TooMany {
        /// The kind of entries.
        what: &'static str,
        /// The limit.
        limit: usize,
    },
}

/// Reads the tree below `root`, which is `/sys` on a real machine. `known` lists GPUs that the caller knows, all that
/// the node's processes use; they are used only if the tree shows no GPU.
///
/// # Errors
/// If there is no tree, or a limit is exceeded. Other invalid entries are left out.
pub fn read_topology(root: &Path, known: &[PciAddress]) -> Result<NodeTopology, ReadError> {
    let at_root = |source| ReadError::Root { root: root.to_owned(), source };
    let tree = SysfsTree { root: root.canonicalize().map_err(at_root)? };
    // A root that is a plain file would otherwise be read as an empty tree.
    std::fs::read_dir(&tree.root).map_err(at_root)?;
    let (gpus, gpus_by) = tree.read_gpus(known)?;
    let (nics, unusable) = tree.read_nics()?;
    Ok(NodeTopology::new(gpus, gpus_by, nics).with_unusable(unusable))
}

/// Returns the NUMA node that contains all of these processors, in the tree below `root`. `None` if no node does, or
/// if the tree has no list of nodes.
#[must_use]
pub fn read_numa_node(root: &Path, processors: &[usize]) -> Option<NumaNode> {
    let tree = SysfsTree { root: root.canonicalize().ok()? };
    let folder = "devices/system/node";
    let names = tree.list_entries(folder).ok()?;
    let has_all = |name: &String| {
        let list = tree.read_text(&format!("{folder}/{name}/cpulist"));
        list.is_some_and(|list| holds_all(&list, processors))
    };
    let name = names.iter().filter(|name| name.starts_with("node")).find(|name| has_all(name))?;
    NumaNode::parse(name.strip_prefix("node")?)
}

/// The tree, by its canonical path.
struct SysfsTree {
    root: PathBuf,
}

impl SysfsTree {
    fn read_gpus(&self, known: &[PciAddress]) -> Result<(Vec<NodeGpu>, GpusBy), ReadError> {
        let mut found = Vec::new();
        for driver in GPU_DRIVERS {
            // The folder contains files that control the driver, too.
            let entries = self.list_entries(&format!("bus/pci/drivers/{driver}"))?;
            found.extend(entries.iter().filter_map(|name| name.parse::<PciAddress>().ok()));
        }
        found.retain(|&gpu| self.read_class(gpu).is_none_or(|class| GPU_CLASSES.contains(&(class >> 16))));
        let mut by = GpusBy::Driver;
        if found.is_empty() {
            let all = self.list_entries("bus/pci/devices")?;
            found = all.iter().filter_map(|name| name.parse().ok()).collect();
            found.retain(|&gpu| self.looks_like_gpu(gpu));
            by = GpusBy::Class;
        }
        if found.is_empty() {
            found = known.to_vec();
            by = if known.is_empty() { GpusBy::Nobody } else { GpusBy::Caller };
        }
        found.sort_unstable();
        found.dedup();
        if found.len() > GPUS_MAX {
            return Err(ReadError::TooMany { what: "GPUs", limit: GPUS_MAX });
        }
        Ok((found.into_iter().map(|address| self.read_gpu(address)).collect(), by))
    }

    fn read_gpu(&self, address: PciAddress) -> NodeGpu {
        let folder = self.resolve_path(&format!("bus/pci/devices/{address}"));
        // If the device's own link is missing, the folder of its bus leads to the bridge above it.
        let above = || self.resolve_path(&format!("class/pci_bus/{}/device/{address}", address.bus_name()));
        let folder = folder
            .or_else(above)
            .filter(|path| PciPath::parse(path).is_some_and(|at| at.device_address() == address));
        let id = self.read_hex(address, "vendor").zip(self.read_hex(address, "device"));
        let id =
            id.and_then(|(vendor, device)| Some((u16::try_from(vendor).ok()?, u16::try_from(device).ok()?)));
        let place = match folder {
            Some(folder) => self.locate_device(&folder),
            None => {
                DeviceLocation { path: None, numa: self.numa_node_of(&format!("bus/pci/devices/{address}")) }
            }
        };
        NodeGpu { address, place, id }
    }

    /// Whether a device is a GPU of a known vendor without a foreign driver. A GPU that is passed to a virtual
    /// machine does not count.
    fn looks_like_gpu(&self, address: PciAddress) -> bool {
        let driver = std::fs::read_link(self.root.join(format!("bus/pci/devices/{address}/driver"))).ok();
        let other = driver.is_some_and(|link| {
            link.file_name().is_none_or(|name| !GPU_DRIVERS.iter().any(|driver| name == *driver))
        });
        let vendor = self.read_hex(address, "vendor");
        !other
            && GPU_VENDORS.iter().any(|&known| vendor == Some(known.into()))
            && self.read_class(address).is_some_and(|class| GPU_CLASSES.contains(&(class >> 16)))
    }

    fn read_class(&self, address: PciAddress) -> Option<u32> {
        self.read_hex(address, "class").filter(|class| *class <= 0xff_ffff)
    }

    /// Reads a hexadecimal number with the prefix 0x, of a device.
    fn read_hex(&self, address: PciAddress, file: &str) -> Option<u32> {
        let text = self.read_text(&format!("bus/pci/devices/{address}/{file}"))?;
        let digits = text.trim().strip_prefix("0x").filter(|digits| !digits.starts_with('+'))?;
        u32::from_str_radix(digits, 16).ok()
    }

    /// Returns the NICs, and the number of devices with invalid names.
    fn read_nics(&self) -> Result<(Vec<NodeNic>, usize), ReadError> {
        let mut nics = Vec::new();
        let mut unusable = 0;
        for (class, kind) in
            [("infiniband", NicKind::Rdma), ("cxi", NicKind::Cxi), ("net", NicKind::Interface)]
        {
            let mut found = Vec::new();
            for entry in self.list_entries(&format!("class/{class}"))? {
                match DeviceName::new(&entry) {
                    Some(name) => found.extend(self.read_nic(class, kind, name)),
                    None => unusable += 1,
                }
            }
            if nics.len() + found.len() > NICS_MAX {
                return Err(ReadError::TooMany { what: "NICs and network interfaces", limit: NICS_MAX });
            }
            nics.extend(found);
        }
        Ok((merge_interfaces(nics), unusable))
    }

    fn read_nic(&self, class: &str, kind: NicKind, name: DeviceName) -> Option<NodeNic> {
        let folder = format!("class/{class}/{name}");
        let device = self.resolve_path(&format!("{folder}/device"));
        // Loopback, bridges and tunnels have no device and are left out. Software RDMA has no device either, but
        // counts as a NIC.
        if device.is_none() && kind == NicKind::Interface {
            return None;
        }
        // If the link does not lead to a folder, it is a stray file in the class.
        if device.is_none() && !self.resolve_path(&folder).is_some_and(|path| self.root.join(path).is_dir()) {
            return None;
        }
        let speed_mbps = match kind {
            NicKind::Rdma => {
                self.read_text(&format!("{folder}/ports/1/rate")).as_deref().and_then(parse_rate)
            }
            NicKind::Interface => self.read_text(&format!("{folder}/speed")).as_deref().and_then(parse_speed),
            NicKind::Cxi => None,
        };
        let place = device.map(|device| self.locate_device(&device)).unwrap_or_default();
        Some(NodeNic { name, kind, place, interfaces: Vec::new(), speed_mbps })
    }

    /// Returns the location of the device with that folder.
    fn locate_device(&self, folder: &str) -> DeviceLocation {
        let path = PciPath::parse(folder);
        // Devices below a PCI device, such as virtio, have no NUMA node of their own.
        let of_node = path.as_ref().map_or_else(|| folder.to_owned(), PciPath::sysfs_folder);
        DeviceLocation { numa: self.numa_node_of(&of_node), path }
    }

    fn numa_node_of(&self, folder: &str) -> Option<NumaNode> {
        self.read_text(&format!("{folder}/numa_node")).as_deref().and_then(NumaNode::parse)
    }

    /// Lists the names of a folder's entries; empty if it does not exist. Names that are not UTF-8 become invalid
    /// device names.
    fn list_entries(&self, folder: &str) -> Result<Vec<String>, ReadError> {
        let Some(entries) =
            self.resolve_path(folder).and_then(|path| std::fs::read_dir(self.root.join(path)).ok())
        else {
            return Ok(Vec::new());
        };
        let mut names = Vec::new();
        for entry in entries.map_while(Result::ok) {
            if names.len() == ENTRIES_MAX {
                return Err(ReadError::TooMany { what: "entries in a folder of sysfs", limit: ENTRIES_MAX });
            }
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
        Ok(names)
    }

    /// Reads the beginning of a file inside the tree.
    fn read_text(&self, path: &str) -> Option<String> {
        let path = self.root.join(self.resolve_path(path)?);
        // Opening a pipe would block.
        if !std::fs::metadata(&path).ok()?.is_file() {
            return None;
        }
        let mut bytes = Vec::new();
        std::fs::File::open(path).ok()?.take(BYTES_MAX).read_to_end(&mut bytes).ok()?;
        // The kernel reports a length of one page for each file, so copies of them end with zeros.
        if let Some(end) = bytes.iter().position(|byte| *byte == 0) {
            bytes.truncate(end);
        }
        String::from_utf8(bytes).ok()
    }

    /// Resolves a path, relative to the root; `None` if it does not exist, is circular, or leads out of the tree.
    fn resolve_path(&self, path: &str) -> Option<String> {
        let real = self.root.join(path).canonicalize().ok()?;
        real.strip_prefix(&self.root).ok()?.to_str().map(str::to_owned)
    }
}

/// Merges network interfaces into the NICs of the same PCI function; others remain NICs of their own.
fn merge_interfaces(mut nics: Vec<NodeNic>) -> Vec<NodeNic> {
    let interfaces = nics.extract_if(.., |nic| nic.kind == NicKind::Interface).collect::<Vec<_>>();
    let mut owners: BTreeMap<PciAddress, Vec<usize>> = BTreeMap::new();
    for (at, nic) in nics.iter().enumerate() {
        if let Some(address) = nic.pci_address() {
            owners.entry(address).or_default().push(at);
        }
    }
    for interface in interfaces {
        let owners = interface.pci_address().and_then(|address| owners.get(&address));
        let Some(owners) = owners else {
            nics.push(interface);
            continue;
        };
        for &at in owners {
            nics[at].speed_mbps = nics[at].speed_mbps.or(interface.speed_mbps);
            nics[at].interfaces.push(interface.name.clone());
        }
    }
    for nic in &mut nics {
        nic.interfaces.sort();
    }
    nics
}

/// Parses the Mb/s of an interface; the kernel writes -1 if they are unknown.
fn parse_speed(text: &str) -> Option<u32> {
    text.trim().parse().ok().filter(|&speed| speed > 0)
}

/// Parses the rate of a port into Mb/s: `400 Gb/sec (4X NDR)`, `2.5 Gb/sec (1X SDR)`.
fn parse_rate(text: &str) -> Option<u32> {
    let (number, unit) = text.trim().split_once(' ')?;
    let (whole, tenths) = number.split_once('.').unwrap_or((number, "0"));
    let tenths = tenths.parse::<u32>().ok().filter(|&tenths| tenths < 10)?;
    let whole = whole.parse::<u32>().ok()?.checked_mul(1000)?;
    (unit.starts_with("Gb/sec")).then(|| whole.checked_add(tenths * 100))?.filter(|&speed| speed > 0)
}
