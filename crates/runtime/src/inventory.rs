//! The RDMA, EFA and Slingshot devices of a host from its `/sys`, and the limits of this process that decide whether
//! they can be used. Files are read below a folder in place of `/`, so that tests bring their own. It opens no
//! device; `cause` derives the reasons.

use std::fs::{self, OpenOptions};
use std::io;
use std::net::Ipv6Addr;
use std::path::{Path, PathBuf};

/// The largest number of entries of a folder that is read.
const ENTRIES_MAX: usize = 1024;
/// The capability to lock memory without a limit, as a bit of the kernel's sets.
const CAP_IPC_LOCK: u32 = 14;
/// Drivers of PCI devices whose RDMA provider has another name.
const PROVIDERS: [(&str, &str); 9] = [
    ("mlx5_core", "mlx5"),
    ("mlx4_core", "mlx4"),
    ("bnxt_en", "bnxt_re"),
    ("ice", "irdma"),
    ("i40e", "irdma"),
    ("idpf", "irdma"),
    ("hns3", "hns"),
    ("qede", "qedr"),
    ("hfi1", "hfi1verbs"),
];

/// The software that drives a device.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum DeviceKind {
    /// rdma-core, over hardware.
    Hardware,
    /// rdma-core, over a device in software: soft-RoCE or soft-iWARP.
    Software,
    /// libfabric's provider `efa`.
    Efa,
    /// libfabric's provider `cxi`.
    Slingshot,
}

/// A device of the host.
#[derive(Debug)]
pub(crate) struct HostDevice {
    pub(crate) name: String,
    /// The kernel's driver, or the device's name if that is not known.
    pub(crate) driver: String,
    pub(crate) kind: DeviceKind,
    /// Its ports, in order.
    pub(crate) ports: Vec<DevicePort>,
    /// The device node, and whether this process may open it; `None` if the kernel has none for the device.
    pub(crate) node: Option<(PathBuf, io::Result<()>)>,
    /// A resource of the rdma cgroup that is used up for it.
    pub(crate) used_up: Option<CgroupLimit>,
}

/// A port of a device.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct DevicePort {
    pub(crate) number: u32,
    /// As the kernel calls it: `ACTIVE`, `DOWN`, `INIT`, ...
    pub(crate) state: String,
    /// As the kernel calls it: `InfiniBand` or `Ethernet`.
    pub(crate) link_layer: String,
    /// Whether one of its GIDs is set and reaches beyond its own cable.
    pub(crate) routable: bool,
}

/// A limit of the rdma cgroup that leaves no room.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct CgroupLimit {
    /// `hca_handle` or `hca_object`.
    pub(crate) resource: String,
    pub(crate) max: u64,
    pub(crate) current: u64,
    /// The file that holds the limit.
    pub(crate) file: PathBuf,
}

/// Limits of this process.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct ProcessLimits {
    /// Bytes of memory that it may lock; `None` if unlimited or unknown.
    pub(crate) memlock: Option<u64>,
}

/// Reads the devices of the host below `root`, those of rdma-core first.
pub(crate) fn read_devices(root: &Path) -> Vec<HostDevice> {
    let class = root.join("sys/class/infiniband");
    let cgroups = rdma_cgroups(root);
    let rdma =
        list_names(&class).into_iter().map(|name| rdma_device(root, &class.join(&name), name, &cgroups));
    let mut slingshot = list_names(&root.join("sys/class/cxi"));
    if slingshot.is_empty() {
        slingshot =
            list_names(&root.join("dev")).into_iter().filter(|name| name.starts_with("cxi")).collect();
    }
    let slingshot = slingshot.into_iter().map(|name| HostDevice {
        name,
        driver: "cxi".to_owned(),
        kind: DeviceKind::Slingshot,
        ports: Vec::new(),
        node: None,
        used_up: None,
    });
    rdma.chain(slingshot).collect()
}

/// Reads the limits of this process below `root`.
pub(crate) fn read_limits(root: &Path) -> ProcessLimits {
    let process = root.join("proc/self");
    let capabilities = read_text(&process.join("status"));
    let effective = capabilities.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let set = effective.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(0);
    if set >> CAP_IPC_LOCK & 1 == 1 {
        return ProcessLimits::default();
    }
    let limits = read_text(&process.join("limits"));
    let soft = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"));
    let bytes = soft.and_then(|line| line.split_whitespace().next()?.parse().ok());
    ProcessLimits { memlock: bytes }
}

/// The name of a driver's library in rdma-core: `lib<name>-rdmav*.so`.
pub(crate) fn provider_of(driver: &str) -> &str {
    let known = PROVIDERS.iter().find(|(of, _)| *of == driver);
    known.map_or_else(|| driver.strip_suffix("_ib").unwrap_or(driver), |(_, provider)| *provider)
}

fn rdma_device(root: &Path, folder: &Path, name: String, cgroups: &[PathBuf]) -> HostDevice {
    let description = read_text(&folder.join("node_desc"));
    let link = fs::read_link(folder.join("device/driver")).ok();
    let linked = link.and_then(|path| path.file_name().map(|driver| driver.to_string_lossy().into_owned()));
    // The driver link of software devices may name the driver of the interface below them, or be absent.
    let in_software = match description.trim() {
        "rxe" => Some("rxe"),
        other if other.contains("iWARP") => Some("siw"),
        _ if folder.join("parent").exists() => Some("rxe"),
        _ => None,
    };
    let (driver, kind) = match (in_software, linked) {
        (Some(driver), _) => (driver.to_owned(), DeviceKind::Software),
        (None, Some(driver)) if driver == "efa" => (driver, DeviceKind::Efa),
        (None, Some(driver)) => (driver, DeviceKind::Hardware),
        (None, None) => ("no known driver".to_owned(), DeviceKind::Hardware),
    };
    let mut ports: Vec<_> = list_names(&folder.join("ports"))
        .iter()
        .filter_map(|number| Some(read_port(&folder.join("ports").join(number), number.parse().ok()?)))
        .collect();
    ports.sort_by_key(|port| port.number);
    let used_up = cgroups.iter().find_map(|cgroup| used_up(cgroup, &name));
    HostDevice { node: open_node(root, &name), name, driver, kind, ports, used_up }
}

fn read_port(folder: &Path, number: u32) -> DevicePort {
    // The kernel writes "4: ACTIVE".
    let state = read_text(&folder.join("state"));
    let state = state.rsplit(':').next().unwrap_or_default().trim().to_owned();
    let link_layer = read_text(&folder.join("link_layer")).trim().to_owned();
    let gids = folder.join("gids");
    let routable = list_names(&gids).iter().any(|index| is_routable(read_text(&gids.join(index)).trim()));
    DevicePort { number, state, link_layer, routable }
}

/// Returns whether a GID is set, and is not link-local.
fn is_routable(gid: &str) -> bool {
    gid.parse().is_ok_and(|gid: Ipv6Addr| gid.octets()[8..] != [0; 8] && !gid.is_unicast_link_local())
}

/// Opens the node of a device for a moment, and returns its path and the result.
fn open_node(root: &Path, device: &str) -> Option<(PathBuf, io::Result<()>)> {
    let class = root.join("sys/class/infiniband_verbs");
    let is_of = |name: &String| read_text(&class.join(name).join("ibdev")).trim() == device;
    let name = list_names(&class).into_iter().find(is_of)?;
    let path = root.join("dev/infiniband").join(name);
    let opened = OpenOptions::new().read(true).write(true).open(&path);
    Some((path, opened.map(drop)))
}

/// Returns the folders of this process's rdma cgroup and of its ancestors, its own first.
fn rdma_cgroups(root: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for line in read_text(&root.join("proc/self/cgroup")).lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let base = match controllers {
            "" => root.join("sys/fs/cgroup"),
            list if list.split(',').any(|name| name == "rdma") => root.join("sys/fs/cgroup/rdma"),
            _ => continue,
        };
        let own = Path::new(path.trim_start_matches('/'));
        found.extend(own.ancestors().map(|below| base.join(below)));
    }
    found
}

/// Returns the resource of a device that a cgroup has used up.
fn used_up(cgroup: &Path, device: &str) -> Option<CgroupLimit> {
    let file = cgroup.join("rdma.max");
    let current = read_text(&cgroup.join("rdma.current"));
    let text = read_text(&file);
    let line = |text: &str| {
        let line =
            text.lines().find_map(|line| line.strip_prefix(device)?.strip_prefix(' ').map(str::to_owned));
        line.unwrap_or_default()
    };
    let limits = line(&text);
    let used = line(&current);
    let value = |line: &str, resource: &str| {
        let mut pairs = line.split_whitespace().filter_map(|pair| pair.split_once('='));
        pairs.find(|(of, _)| *of == resource)?.1.parse::<u64>().ok()
    };
    ["hca_handle", "hca_object"].into_iter().find_map(|resource| {
        let max = value(&limits, resource)?;
        let current = value(&used, resource).unwrap_or(0);
        let limit = CgroupLimit { resource: resource.to_owned(), max, current, file: file.clone() };
        (current >= max).then_some(limit)
    })
}

/// Returns the content of a small file; an empty text if it cannot be read.
fn read_text(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// Returns the names in a folder, in order; none if the folder is absent.
fn list_names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().take(ENTRIES_MAX);
    let mut names: Vec<String> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}
