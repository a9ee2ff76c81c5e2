//! Reads a node's topology from sysfs, or from a tree that looks like it. The only part that opens files; front ends and
//! `trunkline topo` call it once. What it finds may be anything: it is bounded, follows no link out of the tree, opens
//! nothing but plain files, and takes what it cannot use for missing.

use std::collections::BTreeMap;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use crate::distance::{DeviceLocation, NumaNode};
use crate::pci::{PciAddress, PciPath};
use crate::rank::holds_all;
use crate::topology::{DeviceName, GpusBy, NicKind, NodeGpu, NodeNic, NodeTopology};

/// Most GPUs of a node.
pub const GPUS_MAX: usize = 256;
/// Most NICs of a node, network interfaces included.
pub const NICS_MAX: usize = 512;
/// Most entries of a folder.
const ENTRIES_MAX: usize = 4096;
/// Most bytes that are read of a file.
const BYTES_MAX: u64 = 256;

/// Drivers of GPUs whose memory NICs reach.
const GPU_DRIVERS: [&str; 2] = ["nvidia", "amdgpu"];
/// Their vendors.
const GPU_VENDORS: [u16; 2] = [0x10de, 0x1002];
/// First byte of a PCI class: display controllers, and processing accelerators, which some GPUs say they are.
const GPU_CLASSES: [u32; 2] = [0x03, 0x12];

/// The tree cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// It is not there.
    #[error("{}: {source}", root.display())]
    Root {
        /// Where it should be.
        root: PathBuf,
        /// Why it is not.
        source: io::Error,
    },
    /// More than a node has.
    #[error("more than {limit} {what}")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many there may be.
        limit: usize,
    },
}

/// Reads the tree below `root`, on a machine `/sys`. `known` are GPUs that the caller knows of, all that the node's
/// processes use: they count only where the tree shows no GPU.
///
/// # Errors
/// When there is no tree, or more in it than a node has. Anything else that is strange is left out.
pub fn read_topology(root: &Path, known: &[PciAddress]) -> Result<NodeTopology, ReadError> {
    let at_root = |source| ReadError::Root { root: root.to_owned(), source };
    let tree = SysfsTree { root: root.canonicalize().map_err(at_root)? };
    // A file instead of a folder has no entries to be missing.
    std::fs::read_dir(&tree.root).map_err(at_root)?;
    let (gpus, gpus_by) = tree.read_gpus(known)?;
    let (nics, unusable) = tree.read_nics()?;
    Ok(NodeTopology::new(gpus, gpus_by, nics).with_unusable(unusable))
}

/// The NUMA node that has all of these processors, in the tree below `root`; `None` if no node has, or the tree does not tell.
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

/// The tree, by its real path.
struct SysfsTree {
    root: PathBuf,
}

impl SysfsTree {
    fn read_gpus(&self, known: &[PciAddress]) -> Result<(Vec<NodeGpu>, GpusBy), ReadError> {
        let mut found = Vec::new();
        for driver in GPU_DRIVERS {
            // Beside devices there are files to control the driver.
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
        // The folder of the bus leads to the bridge above it.
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

    /// A GPU of a vendor we know, which no other driver has: one that is given to a virtual machine does not count.
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

    /// A number that the kernel writes with 0x, of a device.
    fn read_hex(&self, address: PciAddress, file: &str) -> Option<u32> {
        let text = self.read_text(&format!("bus/pci/devices/{address}/{file}"))?;
        let digits = text.trim().strip_prefix("0x").filter(|digits| !digits.starts_with('+'))?;
        u32::from_str_radix(digits, 16).ok()
    }

    /// NICs, and how many devices have names that are none.
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
        // Loopback, bridges and tunnels have no device. RDMA in software has none either, and is one all the same.
        if device.is_none() && kind == NicKind::Interface {
            return None;
        }
        // Where a link leads to something that is no folder, the class has a stray file.
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

    /// Where the device with a folder is.
    fn locate_device(&self, folder: &str) -> DeviceLocation {
        let path = PciPath::parse(folder);
        // What hangs on a PCI device, as virtio does, has no node of its own.
        let of_node = path.as_ref().map_or_else(|| folder.to_owned(), PciPath::sysfs_folder);
        DeviceLocation { numa: self.numa_node_of(&of_node), path }
    }

    fn numa_node_of(&self, folder: &str) -> Option<NumaNode> {
        self.read_text(&format!("{folder}/numa_node")).as_deref().and_then(NumaNode::parse)
    }

    /// Names of a folder's entries; none if it is not there. Those that are no UTF-8 are replaced by what is no name.
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

    /// The beginning of a file inside the tree.
    fn read_text(&self, path: &str) -> Option<String> {
        let path = self.root.join(self.resolve_path(path)?);
        // A pipe would be waited for.
        if !std::fs::metadata(&path).ok()?.is_file() {
            return None;
        }
        let mut bytes = Vec::new();
        std::fs::File::open(path).ok()?.take(BYTES_MAX).read_to_end(&mut bytes).ok()?;
        // The kernel calls each file a page long, so copies end with zeros.
        if let Some(end) = bytes.iter().position(|byte| *byte == 0) {
            bytes.truncate(end);
        }
        String::from_utf8(bytes).ok()
    }

    /// Where a path leads, relative to the root; `None` if it leads nowhere, in circles, or out of the tree.
    fn resolve_path(&self, path: &str) -> Option<String> {
        let real = self.root.join(path).canonicalize().ok()?;
        real.strip_prefix(&self.root).ok()?.to_str().map(str::to_owned)
    }
}

/// Network interfaces of a NIC's function become part of it; the others stay for themselves.
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

/// Mb/s of an interface; the kernel says -1 where it does not know.
fn parse_speed(text: &str) -> Option<u32> {
    text.trim().parse().ok().filter(|&speed| speed > 0)
}

/// Mb/s of a port: `400 Gb/sec (4X NDR)`, `2.5 Gb/sec (1X SDR)`.
fn parse_rate(text: &str) -> Option<u32> {
    let (number, unit) = text.trim().split_once(' ')?;
    let (whole, tenths) = number.split_once('.').unwrap_or((number, "0"));
    let tenths = tenths.parse::<u32>().ok().filter(|&tenths| tenths < 10)?;
    let whole = whole.parse::<u32>().ok()?.checked_mul(1000)?;
    (unit.starts_with("Gb/sec")).then(|| whole.checked_add(tenths * 100))?.filter(|&speed| speed > 0)
}
