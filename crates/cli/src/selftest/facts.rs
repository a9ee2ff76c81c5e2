//! The facts of a host that make a report comparable: versions, NICs, GPUs, limits, settings.
//!
//! Called by `selftest`. It reads files only. It adds no name of a user or host and no address on purpose; `redact`
//! still cleans the values.

use std::path::Path;

use rustix::process::{Resource, getrlimit};
use serde::Serialize;

use super::hardware::{GpuDriver, HostHardware, first_line, list_folder};
use crate::sweep::machine;

/// Variables that change the measured figures.
const SETTINGS: [&str; 5] = ["TRUNKLINE_", "NCCL_", "RCCL_", "FI_", "MLX5_"];
/// Prefixes of variables that belong to a job or a test, and may be secret.
const PRIVATE: [&str; 3] = ["TRUNKLINE_JOB_", "TRUNKLINE_NETHOST_", "TRUNKLINE_TEST_"];
/// Modules by which NICs reach memory of GPUs.
const MODULES: [&str; 3] = ["nvidia_peermem", "gdrdrv", "amdgpu"];

/// One row of the table above the checks.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct HostFact {
    pub(crate) name: String,
    pub(crate) value: String,
}

impl HostFact {
    pub(crate) fn new(name: &str, value: impl Into<String>) -> Self {
        Self { name: name.to_owned(), value: value.into() }
    }
}

/// Collects the facts of this host.
pub(crate) fn collect_facts(hardware: &HostHardware, names: bool) -> Vec<HostFact> {
    let mut facts = vec![
        HostFact::new("Trunkline", trunkline_version()),
        HostFact::new("machine", machine::describe_machine()),
        HostFact::new("distribution", distribution_name(hardware.root())),
        HostFact::new("locked memory (ulimit -l)", locked_memory()),
        HostFact::new("rdma-core", library_version(hardware, "libibverbs.so.1")),
        HostFact::new("libfabric", library_version(hardware, "libfabric.so.1")),
    ];
    if names {
        let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
        facts.insert(0, HostFact::new("host", name));
    }
    facts.extend(nic_facts(hardware));
    facts.extend(gpu_facts(hardware));
    let loaded = MODULES.iter().filter(|name| hardware.root().join("sys/module").join(name).exists());
    let loaded: Vec<&str> = loaded.copied().collect();
    facts.push(HostFact::new("modules for GPU memory", joined_or_none(&loaded, ", ")));
    let iommu = !list_folder(&hardware.root().join("sys/class/iommu")).is_empty();
    facts.push(HostFact::new("IOMMU", if iommu { "present" } else { "none" }));
    let settings =
        relevant_settings(std::env::vars_os().filter_map(|(name, value)| {
            Some((name.into_string().ok()?, value.to_string_lossy().into_owned()))
        }));
    facts.push(HostFact::new("settings", joined_or_none(&settings, " ")));
    facts
}

fn trunkline_version() -> String {
    format!("{}, commit {}", env!("CARGO_PKG_VERSION"), trunkline_runtime::COMMIT)
}

fn joined_or_none<T: AsRef<str>>(words: &[T], between: &str) -> String {
    let words: Vec<&str> = words.iter().map(AsRef::as_ref).collect();
    if words.is_empty() { "none".to_owned() } else { words.join(between) }
}

fn distribution_name(root: &Path) -> String {
    let text = std::fs::read_to_string(root.join("etc/os-release")).unwrap_or_default();
    let name = text.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    name.map_or_else(|| "unknown".to_owned(), |name| name.trim_matches('"').to_owned())
}

fn locked_memory() -> String {
    match getrlimit(Resource::Memlock).current {
        None => "unlimited".to_owned(),
        Some(bytes) => format!("{} KiB", bytes >> 10),
    }
}

/// The file that a library's symbolic link resolves to; its name contains the version.
fn library_version(hardware: &HostHardware, name: &str) -> String {
    let Some(path) = hardware.find_library(name) else { return "not installed".to_owned() };
    let real = path.canonicalize().unwrap_or(path);
    let file = real.file_name().map_or_else(|| name.to_owned(), |file| file.to_string_lossy().into_owned());
    match rdma_core_release(&file) {
        Some(release) => format!("{release} ({file})"),
        None => file,
    }
}

/// The release of rdma-core from a file name: `libibverbs.so.1.14.44.0` belongs to 44.0.
fn rdma_core_release(file: &str) -> Option<String> {
    let numbers: Vec<&str> = file.strip_prefix("libibverbs.so.")?.split('.').collect();
    let [_, _, major, minor] = numbers[..] else { return None };
    Some(format!("{major}.{minor}"))
}

fn nic_facts(hardware: &HostHardware) -> Vec<HostFact> {
    let mut facts: Vec<HostFact> = hardware
        .rdma
        .iter()
        .map(|device| {
            let ports = device.ports.iter().map(|port| {
                format!("port {}: {}, {}, {}", port.number, port.link_layer, port.rate, port.state)
            });
            let ports: Vec<String> = ports.collect();
            let parts =
                [("", &*device.model), ("driver ", &*device.driver), ("firmware ", &*device.firmware)];
            let parts = parts.iter().filter(|(_, text)| !text.is_empty());
            let mut parts: Vec<String> = parts.map(|(word, text)| format!("{word}{text}")).collect();
            if !device.numa_node.is_empty() {
                parts.push(format!("NUMA node {}", device.numa_node));
            }
            HostFact::new(&format!("RDMA device {}", device.name), [parts, ports].concat().join("; "))
        })
        .collect();
    if !hardware.cxi.is_empty() {
        facts.push(HostFact::new("Slingshot NICs", hardware.cxi.join(", ")));
    }
    if facts.is_empty() {
        facts.push(HostFact::new("RDMA devices", "none"));
    }
    facts
}

fn gpu_facts(hardware: &HostHardware) -> Vec<HostFact> {
    let root = hardware.root();
    let nvidia = root.join("proc/driver/nvidia/gpus");
    let mut models: Vec<String> = list_folder(&nvidia)
        .into_iter()
        .filter_map(|gpu| {
            let text = std::fs::read_to_string(nvidia.join(gpu).join("information")).ok()?;
            let model = text.lines().find_map(|line| line.strip_prefix("Model:"))?;
            Some(model.trim().to_owned())
        })
        .collect();
    if models.is_empty() {
        models = hardware.gpu_vendors.iter().map(|vendor| format!("PCI vendor {vendor:04x}")).collect();
    }
    let mut counted: Vec<(String, usize)> = Vec::new();
    for model in models {
        match counted.iter_mut().find(|(known, _)| *known == model) {
            Some((_, count)) => *count += 1,
            None => counted.push((model, 1)),
        }
    }
    let models: Vec<String> = counted.iter().map(|(model, count)| format!("{count} x {model}")).collect();
    let drivers = [("nvidia", GpuDriver::Cuda), ("amdgpu", GpuDriver::Hip)];
    let drivers = drivers.iter().filter_map(|(module, driver)| {
        let version = first_line(&root.join("sys/module").join(module).join("version"));
        let user = driver.library_names().iter().any(|library| hardware.find_library(library).is_some());
        let user = if user { "" } else { ", without its library" };
        (!version.is_empty()).then(|| format!("{module} {version}{user}"))
    });
    let drivers: Vec<String> = drivers.collect();
    vec![
        HostFact::new("GPUs", joined_or_none(&models, ", ")),
        HostFact::new("GPU drivers", joined_or_none(&drivers, ", ")),
    ]
}

/// The variables that change the measured figures, quoted for a shell.
fn relevant_settings(variables: impl Iterator<Item = (String, String)>) -> Vec<String> {
    let counts = |name: &str| {
        SETTINGS.iter().any(|start| name.starts_with(start))
            && !PRIVATE.iter().any(|start| name.starts_with(start))
    };
    let mut lines: Vec<String> =
        variables.filter(|(name, _)| counts(name)).map(|(name, value)| format!("{name}={value}")).collect();
    lines.sort();
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_of_a_job_are_no_settings() {
        let set = ["NCCL_DEBUG", "TRUNKLINE_JOB_SECRET", "HOME", "TRUNKLINE_FABRIC", "FI_PROVIDER"];
        let variables = set.iter().map(|name| ((*name).to_owned(), "x".to_owned()));
        assert_eq!(relevant_settings(variables), ["FI_PROVIDER=x", "NCCL_DEBUG=x", "TRUNKLINE_FABRIC=x"]);
    }

    #[test]
    fn the_release_of_rdma_core_is_in_its_file_name() {
        assert_eq!(rdma_core_release("libibverbs.so.1.14.44.0").as_deref(), Some("44.0"));
        assert_eq!(rdma_core_release("libibverbs.so.1"), None);
        assert_eq!(rdma_core_release("libfabric.so.1.21.0"), None);
    }
}
