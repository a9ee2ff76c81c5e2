//! The hardware that checks need: RDMA devices, EFA, Slingshot, GPUs, and the libraries that reach them.
//!
//! Called by `selftest` once. It reads files and checks access rights; it opens no device and loads no library, because
//! a broken driver may hang its caller.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::fs::Access;

/// Folders that the dynamic linker searches without a cache, below the root.
const LIBRARY_FOLDERS: [&str; 6] =
    ["usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu", "usr/lib64", "lib64", "usr/lib", "usr/local/lib"];
/// Folders of the libfabric that AWS installs.
const EFA_FOLDERS: [&str; 2] = ["opt/amazon/efa/lib", "opt/amazon/efa/lib64"];
/// Vendor numbers of PCI: NVIDIA, AMD, Intel.
const NVIDIA: u16 = 0x10de;
const AMD: u16 = 0x1002;
const INTEL: u16 = 0x8086;

/// A port of an RDMA device.
#[derive(Clone, Debug)]
pub(crate) struct RdmaPort {
    pub(crate) number: String,
    /// As the kernel writes it: `4: ACTIVE`.
    pub(crate) state: String,
    pub(crate) rate: String,
    pub(crate) link_layer: String,
}

impl RdmaPort {
    fn is_active(&self) -> bool {
        self.state.contains("ACTIVE")
    }
}

/// A device of `/sys/class/infiniband`.
#[derive(Clone, Debug)]
pub(crate) struct RdmaDevice {
    pub(crate) name: String,
    pub(crate) driver: String,
    pub(crate) firmware: String,
    pub(crate) model: String,
    pub(crate) numa_node: String,
    pub(crate) ports: Vec<RdmaPort>,
}

impl RdmaDevice {
    fn is_efa(&self) -> bool {
        self.driver == "efa"
    }
}

/// Drivers of GPUs by which `bench p2p --memory` reaches their memory.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum GpuDriver {
    Cuda,
    Hip,
    LevelZero,
}

impl GpuDriver {
    pub(crate) const ALL: [Self; 3] = [Self::Cuda, Self::Hip, Self::LevelZero];

    /// The word of `bench p2p --memory`.
    pub(crate) const fn memory_option(self) -> &'static str {
        match self {
            Self::Cuda => "cuda",
            Self::Hip => "hip",
            Self::LevelZero => "ze",
        }
    }

    /// The libraries by which programs access it, newest first.
    pub(crate) const fn library_names(self) -> &'static [&'static str] {
        match self {
            Self::Cuda => &["libcuda.so.1"],
            Self::Hip => &["libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so"],
            Self::LevelZero => &["libze_loader.so.1"],
        }
    }

    const fn pci_vendor(self) -> (u16, &'static str) {
        match self {
            Self::Cuda => (NVIDIA, "NVIDIA"),
            Self::Hip => (AMD, "AMD"),
            Self::LevelZero => (INTEL, "Intel"),
        }
    }
}

/// The hardware of a host, read from the files below a root folder.
#[derive(Debug)]
pub(crate) struct HostHardware {
    root: PathBuf,
    pub(crate) rdma: Vec<RdmaDevice>,
    pub(crate) cxi: Vec<String>,
    /// Vendor numbers of the GPUs in the PCI tree.
    pub(crate) gpu_vendors: Vec<u16>,
    /// The library search path of the environment.
    library_path: Vec<PathBuf>,
}

impl HostHardware {
    /// Reads the host below `root`, which is `/` except in tests.
    pub(crate) fn read_host(root: &Path) -> Self {
        let of_class = list_folder(&root.join("sys/class/cxi"));
        let of_dev =
            || list_folder(&root.join("dev")).into_iter().filter(|name| name.starts_with("cxi")).collect();
        let gpus = trunkline_topo::read_topology(&root.join("sys"), &[]).map(|found| found.gpus().to_vec());
        let path = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
        Self {
            root: root.to_owned(),
            rdma: rdma_devices(root),
            cxi: if of_class.is_empty() { of_dev() } else { of_class },
            gpu_vendors: gpus.unwrap_or_default().iter().filter_map(|gpu| Some(gpu.id?.0)).collect(),
            library_path: std::env::split_paths(&path).filter(|one| one.is_absolute()).collect(),
        }
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// The active ports that `TRUNKLINE_FABRIC=verbs` may use.
    pub(crate) fn verbs_ports(&self) -> usize {
        self.active_ports(false)
    }

    /// The active ports of EFA.
    pub(crate) fn efa_ports(&self) -> usize {
        self.active_ports(true)
    }

    fn active_ports(&self, efa: bool) -> usize {
        let devices = self.rdma.iter().filter(|device| device.is_efa() == efa);
        devices.flat_map(|device| &device.ports).filter(|port| port.is_active()).count()
    }

    /// Returns the reason why InfiniBand and RoCE cannot be checked, or `None`.
    pub(crate) fn lacks_verbs(&self) -> Option<String> {
        if !self.rdma.iter().any(|device| !device.is_efa()) {
            return Some("no RDMA device: /sys/class/infiniband has none".to_owned());
        }
        self.lacks_device_files()
            .or_else(|| self.lacks_library("libibverbs.so.1", "rdma-core"))
            .or_else(|| (self.verbs_ports() == 0).then(|| "no port of an RDMA device is ACTIVE".to_owned()))
    }

    /// Returns the reason why EFA cannot be checked, or `None`.
    pub(crate) fn lacks_efa(&self) -> Option<String> {
        if !self.rdma.iter().any(RdmaDevice::is_efa) {
            return Some("no EFA device: no driver in /sys/class/infiniband is efa".to_owned());
        }
        self.lacks_device_files().or_else(|| self.lacks_library("libfabric.so.1", "libfabric"))
    }

    /// Returns the reason why Slingshot cannot be checked, or `None`.
    pub(crate) fn lacks_cxi(&self) -> Option<String> {
        if self.cxi.is_empty() {
            return Some("no Slingshot NIC: neither /sys/class/cxi nor /dev has one".to_owned());
        }
        self.lacks_library("libfabric.so.1", "libfabric")
    }

    /// Returns the reason why GPU memory cannot be checked with this driver, or `None`.
    pub(crate) fn lacks_gpu(&self, driver: GpuDriver) -> Option<String> {
        let (vendor, name) = driver.pci_vendor();
        let has_node = driver == GpuDriver::Cuda
            && ["dev/nvidiactl", "dev/dxg"].iter().any(|node| self.root.join(node).exists());
        if !has_node && !self.gpu_vendors.contains(&vendor) {
            return Some(format!("no GPU of {name}"));
        }
        let libraries = driver.library_names();
        let is_installed = libraries.iter().any(|library| self.find_library(library).is_some());
        (!is_installed).then(|| format!("{} is not installed (the GPU's driver)", libraries[0]))
    }

    fn lacks_library(&self, name: &str, package: &str) -> Option<String> {
        self.find_library(name).is_none().then(|| format!("{name} is not installed ({package})"))
    }

    fn lacks_device_files(&self) -> Option<String> {
        let folder = self.root.join("dev/infiniband");
        let nodes: Vec<String> =
            list_folder(&folder).into_iter().filter(|name| name.starts_with("uverbs")).collect();
        let Some(first) = nodes.first() else {
            return Some(
                "no /dev/infiniband/uverbs*: load the module ib_uverbs, or pass the devices to the container"
                    .to_owned(),
            );
        };
        let can_use =
            |name: &String| rustix::fs::access(folder.join(name), Access::READ_OK | Access::WRITE_OK).is_ok();
        let refused = !nodes.iter().any(can_use);
        refused.then(|| format!("no access to /dev/infiniband/{first}: this user may not read and write it"))
    }

    /// Finds a library as the dynamic linker does: by `LD_LIBRARY_PATH`, its cache, and its usual folders.
    pub(crate) fn find_library(&self, name: &str) -> Option<PathBuf> {
        let named = self.library_path.iter().map(|folder| folder.join(name)).find(|path| path.exists());
        named.or_else(|| self.find_cached(name)).or_else(|| {
            let folders = LIBRARY_FOLDERS.iter().chain(&EFA_FOLDERS);
            folders.map(|folder| self.root.join(folder).join(name)).find(|path| path.exists())
        })
    }

    /// The cache holds the paths of all libraries as strings that end in a zero byte.
    fn find_cached(&self, name: &str) -> Option<PathBuf> {
        let cache = fs::read(self.root.join("etc/ld.so.cache")).ok()?;
        let ending = format!("/{name}");
        let paths = cache.split(|byte| *byte == 0).filter_map(|text| std::str::from_utf8(text).ok());
        let found = paths.filter(|text| text.starts_with('/') && text.ends_with(&ending));
        found.map(|path| self.root.join(path.trim_start_matches('/'))).find(|path| path.exists())
    }
}

fn rdma_devices(root: &Path) -> Vec<RdmaDevice> {
    let class = root.join("sys/class/infiniband");
    let device = |name: String| {
        let folder = class.join(&name);
        let driver = fs::read_link(folder.join("device/driver")).ok();
        let driver = driver.and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()));
        RdmaDevice {
            driver: driver.unwrap_or_else(|| "no PCI driver".to_owned()),
            firmware: first_line(&folder.join("fw_ver")),
            model: first_line(&folder.join("hca_type")),
            numa_node: first_line(&folder.join("device/numa_node")),
            ports: list_folder(&folder.join("ports"))
                .into_iter()
                .map(|number| read_port(&folder, number))
                .collect(),
            name,
        }
    };
    list_folder(&class).into_iter().map(device).collect()
}

fn read_port(device: &Path, number: String) -> RdmaPort {
    let folder = device.join("ports").join(&number);
    RdmaPort {
        state: first_line(&folder.join("state")),
        rate: first_line(&folder.join("rate")),
        link_layer: first_line(&folder.join("link_layer")),
        number,
    }
}

/// The names in a folder, sorted; empty if the folder does not exist.
pub(crate) fn list_folder(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// The first line of a file, or an empty string.
pub(crate) fn first_line(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines().next().unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes a file below a folder that stands for `/`.
    fn write(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn missing_hardware_is_named_with_its_cause() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let look = || HostHardware { library_path: Vec::new(), ..HostHardware::read_host(root) };
        assert!(look().lacks_verbs().unwrap().contains("no RDMA device"));
        assert!(look().lacks_efa().unwrap().contains("no EFA device"));
        assert!(look().lacks_cxi().unwrap().contains("no Slingshot NIC"));
        assert_eq!(look().lacks_gpu(GpuDriver::Hip).unwrap(), "no GPU of AMD");

        write(root, "sys/class/infiniband/mlx5_0/ports/1/state", "1: DOWN\n");
        assert!(look().lacks_verbs().unwrap().contains("no /dev/infiniband/uverbs*"));
        write(root, "dev/infiniband/uverbs0", "");
        assert!(look().lacks_verbs().unwrap().contains("libibverbs.so.1 is not installed (rdma-core)"));
        write(root, "usr/lib64/libibverbs.so.1", "");
        assert!(look().lacks_verbs().unwrap().contains("no port of an RDMA device is ACTIVE"));
        write(root, "sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE\n");
        assert_eq!((look().lacks_verbs(), look().verbs_ports(), look().efa_ports()), (None, 1, 0));

        write(root, "dev/nvidiactl", "");
        assert!(look().lacks_gpu(GpuDriver::Cuda).unwrap().contains("libcuda.so.1 is not installed"));
        write(root, "opt/driver/libcuda.so.1", "");
        write(root, "etc/ld.so.cache", "x\0libcuda.so.1\0/opt/driver/libcuda.so.1\0");
        assert_eq!(look().lacks_gpu(GpuDriver::Cuda), None);
    }

    #[test]
    fn refused_device_files_are_no_rdma_devices() {
        use std::os::unix::fs::PermissionsExt as _;
        let root = tempfile::tempdir().unwrap();
        write(root.path(), "sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE\n");
        write(root.path(), "dev/infiniband/uverbs0", "");
        let node = root.path().join("dev/infiniband/uverbs0");
        fs::set_permissions(&node, fs::Permissions::from_mode(0o000)).unwrap();
        // Root may open every file.
        if rustix::process::geteuid().is_root() {
            return;
        }
        let told = HostHardware::read_host(root.path()).lacks_verbs().unwrap();
        assert!(told.contains("no access to /dev/infiniband/uverbs0"), "{told}");
    }
}
