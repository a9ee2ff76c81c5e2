//! The banner that a process logs once when it starts: version, commit, front end, fabric, NICs, rails, sharing.
//! Front ends create it; it opens nothing.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use trunkline_engine::{EngineParams, FabricName};
use trunkline_fabric::NicPort;
use trunkline_proto::pool::config::SharingMode;

use crate::GpuNote;

/// The commit of the build, or the reason why it is unknown.
pub const COMMIT: &str = env!("TRUNKLINE_BUILT_FROM");

/// The version and the commit.
pub const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (commit ", env!("TRUNKLINE_BUILT_FROM"), ")");

/// Whether this process has logged the banner.
static SAID: AtomicBool = AtomicBool::new(false);

/// The banner's note on a NIC whose reach of GPU memory was not determined.
const HOST_MEMORY: &str = "not used, only host memory is registered";

/// The interface by which a program uses Trunkline.
#[derive(Clone, Debug, Default)]
pub struct FrontEnd {
    /// The name of the interface: `NCCL plugin`.
    pub name: &'static str,
    /// A note per NIC on the GPU memory that it reaches, if the interface supports such memory.
    pub gpu_notes: Vec<GpuNote>,
}

/// The parts of the banner.
#[derive(Clone, Copy, Debug)]
pub struct ProcessBanner<'a> {
    /// The front end that starts.
    pub front_end: &'a FrontEnd,
    /// The fabric, as users name it: `soft`, `verbs`, `ofi:efa`.
    pub fabric: &'a str,
    /// The NICs in use.
    pub nics: &'a [NicPort],
    /// The number of NICs per connection.
    pub rails: usize,
    /// The parameters from which the rest of the banner follows.
    pub params: &'a EngineParams,
}

impl ProcessBanner<'_> {
    /// Returns the text, unless this process has logged it: one line, and one per NIC.
    #[must_use]
    pub fn text_once(&self) -> Option<String> {
        (!SAID.swap(true, Ordering::Relaxed)).then(|| self.to_text())
    }

    fn to_text(self) -> String {
        let Self { front_end, fabric, nics, rails, params } = self;
        let sharing = match params.sharing.sharing {
            SharingMode::Off => "off".to_owned(),
            SharingMode::On => format!("on ({} groups)", params.sharing.groups),
            SharingMode::Auto => format!("auto ({} groups)", params.sharing.groups),
        };
        if nics.is_empty() {
            return format!("Trunkline {VERSION} as {}: no NIC is offered", front_end.name);
        }
        let mut text = format!(
            "Trunkline {VERSION} as {}: fabric {fabric}, {} NICs, rails per connection: {rails}, links per rail: {}, link \
             sharing {sharing}",
            front_end.name,
            nics.len(),
            params.links_per_rail
        );
        for nic in nics {
            let speed = match nic.speed_mbps {
                0 => "speed unknown".to_owned(),
                mbps => format!("{} Gb/s", f64::from(mbps) / 1000.0),
            };
            let layer = link_layer(params, fabric, &nic.name);
            let note = front_end.gpu_notes.iter().find(|note| note.nic == nic.name);
            let gpus = match note {
                Some(GpuNote { reached: true, note, .. }) => note.clone(),
                Some(GpuNote { note, .. }) => format!("not used, {note}"),
                None => HOST_MEMORY.to_owned(),
            };
            // Formatting into a `String` never fails.
            let _ = write!(text, "\n  {}: {speed}, link layer {layer}, GPUDirect {gpus}", nic.name);
        }
        text
    }
}

/// Returns the link layer of a NIC for the banner.
fn link_layer(params: &EngineParams, fabric: &str, nic: &str) -> String {
    match (fabric, params.fabric) {
        ("soft", FabricName::SoftShm) => "shared memory".to_owned(),
        ("soft", FabricName::SoftTcp) => "TCP".to_owned(),
        ("soft", _) => "TCP and shared memory".to_owned(),
        ("verbs", _) => of_port(&params.host_root, nic),
        (other, _) => match other.strip_prefix("ofi:") {
            Some("cxi") => "Slingshot".to_owned(),
            Some("efa" | "efa-direct") => "EFA".to_owned(),
            provider => provider.unwrap_or(other).to_owned(),
        },
    }
}

/// Returns the link layer of an RDMA device's port. The port follows the device's name if it is not the first.
fn of_port(root: &Path, nic: &str) -> String {
    let (device, port) = nic.split_once(':').unwrap_or((nic, "1"));
    let path = root.join(format!("sys/class/infiniband/{device}/ports/{port}/link_layer"));
    std::fs::read_to_string(path).map_or_else(|_| "unknown".to_owned(), |layer| layer.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use trunkline_fabric::Fabric as _;
    use trunkline_softnic::{SoftConfig, SoftFabric};

    use super::*;

    #[test]
    fn banner_names_every_choice() {
        let fabric = SoftFabric::new(SoftConfig { nics: 2, ..SoftConfig::default() }).unwrap();
        let mut nics = fabric.nics().to_vec();
        (nics[0].name, nics[0].speed_mbps) = ("mlx5_0".to_owned(), 400_000);
        (nics[1].name, nics[1].speed_mbps) = ("mlx5_0:2".to_owned(), 2_500);
        let root = tempfile::tempdir().unwrap();
        for (port, layer) in [(1, "InfiniBand\n"), (2, "Ethernet\n")] {
            let folder = root.path().join(format!("sys/class/infiniband/mlx5_0/ports/{port}"));
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join("link_layer"), layer).unwrap();
        }
        let params = EngineParams { host_root: root.path().to_owned(), ..EngineParams::default() };
        let note = GpuNote { nic: "mlx5_0".to_owned(), reached: true, note: "as dma-bufs".to_owned() };
        let against = GpuNote { nic: "mlx5_0:2".to_owned(), reached: false, note: "no driver".to_owned() };
        let front_end = FrontEnd { name: "NCCL plugin", gpu_notes: vec![note, against] };
        let banner =
            ProcessBanner { front_end: &front_end, fabric: "verbs", nics: &nics, rails: 1, params: &params };
        let text = banner.to_text();
        let nothing = ProcessBanner { nics: &[], ..banner }.to_text();
        assert!(nothing.ends_with(" as NCCL plugin: no NIC is offered"), "{nothing}");
        let lines: Vec<_> = text.lines().collect();
        let version = env!("CARGO_PKG_VERSION");
        assert!(lines[0].starts_with(&format!("Trunkline {version} (commit ")), "{text}");
        assert!(
            lines[0].ends_with(
                ") as NCCL plugin: fabric verbs, 2 NICs, rails per connection: 1, links per rail: 1, link sharing off"
            ),
            "{text}"
        );
        assert_eq!(lines[1], "  mlx5_0: 400 Gb/s, link layer InfiniBand, GPUDirect as dma-bufs");
        assert_eq!(lines[2], "  mlx5_0:2: 2.5 Gb/s, link layer Ethernet, GPUDirect not used, no driver");
    }

    #[test]
    fn link_layers_follow_the_fabric() {
        let layer = |fabric: &str, named| {
            link_layer(&EngineParams { fabric: named, ..EngineParams::default() }, fabric, "cxi0")
        };
        assert_eq!(layer("ofi:cxi", FabricName::Auto), "Slingshot");
        assert_eq!(layer("ofi:efa", FabricName::Auto), "EFA");
        assert_eq!(layer("ofi:tcp", FabricName::Ofi), "tcp");
        assert_eq!(layer("soft", FabricName::SoftTcp), "TCP");
        assert_eq!(layer("soft", FabricName::Auto), "TCP and shared memory");
    }
}
