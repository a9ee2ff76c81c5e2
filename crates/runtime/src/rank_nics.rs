//! The NICs that a process uses when its user names none: those that `trunkline topo` shows for its GPU, or those
//! near its processors. It opens no device. [`FabricJob`](crate::fabric_job::FabricJob) calls it once when it has
//! opened the fabric.

use std::path::Path;

use trunkline_bootstrap::JobEnvironment;
use trunkline_engine::CommNics;
use trunkline_fabric::NicPort;
use trunkline_proto::limits::RAILS_MAX;
use trunkline_topo::{NodeTopology, PciPath, RankPlacement, gpu_of_rank, read_numa_node};

/// The variables by which NVIDIA's and AMD's runtimes restrict a process to some GPUs; the first that is set counts.
const VISIBLE: [&str; 3] = ["CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"];

/// The choice of a fabric's NICs for a process.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum NicChoice {
    /// These NICs, by their indices in the fabric's list.
    Named(CommNics),
    /// The NICs of this rank.
    OfRank(Box<RankNics>),
}

impl From<CommNics> for NicChoice {
    fn from(nics: CommNics) -> Self {
        Self::Named(nics)
    }
}

impl NicChoice {
    /// Returns the choice for the rank that the environment describes, on the host whose files are below `host_root`.
    #[must_use]
    pub fn of_rank(host_root: &Path, environment: Option<&JobEnvironment>) -> Self {
        Self::OfRank(Box::new(RankNics::read_topology(host_root, environment, |name| {
            std::env::var(name).ok()
        })))
    }

    /// Returns indices in the fabric's list.
    pub(crate) fn resolve_nics(&self, nics: &[NicPort]) -> CommNics {
        match self {
            Self::Named(nics) => *nics,
            Self::OfRank(rank) => rank.resolve_nics(nics),
        }
    }
}

/// The facts that decide which NICs a rank uses.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct RankNics {
    topology: NodeTopology,
    rank: RankPlacement,
}

impl RankNics {
    /// Reads the topology, and the place of this process in it. A host that does not expose its devices has none.
    fn read_topology(
        host_root: &Path,
        environment: Option<&JobEnvironment>,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Self {
        let sys = host_root.join("sys");
        let topology = trunkline_topo::read_topology(&sys, &[]).unwrap_or_default();
        let place = environment.and_then(JobEnvironment::job_placement);
        let local_rank = place.and_then(|place| place.local_rank).unwrap_or(0);
        let local_size = place.and_then(|place| place.local_size).unwrap_or(1);
        let visible = VISIBLE.iter().find_map(|name| variable(name));
        let gpu = gpu_of_rank(visible.as_deref(), local_rank, topology.gpus().len());
        let numa = read_numa_node(&sys, &allowed_processors());
        Self { topology, rank: RankPlacement { gpu, numa, local_rank, local_size } }
    }

    /// Returns indices in the fabric's list; the first NIC if the topology knows none of them, as for software NICs.
    fn resolve_nics(&self, nics: &[NicPort]) -> CommNics {
        let known = self.topology.nics();
        let is_same = |nic: &NicPort, known: &trunkline_topo::NodeNic| {
            let device = nic.name.split(':').next().unwrap_or_default();
            let address = nic.pci_path.as_deref().and_then(PciPath::parse).map(|path| path.device_address());
            device == known.name.as_str() || (address.is_some() && address == known.pci_address())
        };
        let candidates = self.topology.candidate_nics(|known| nics.iter().any(|nic| is_same(nic, known)));
        let chosen = self.topology.nics_of_rank(&candidates, &self.rank, RAILS_MAX);
        let place = |&at: &usize| nics.iter().position(|nic| is_same(nic, &known[at]));
        let mut places: Vec<usize> = chosen.iter().filter_map(place).collect();
        places.dedup();
        CommNics::new(&places).unwrap_or(CommNics::from(0))
    }
}

/// Returns the processors on which this thread may run.
fn allowed_processors() -> Vec<usize> {
    let Ok(set) = rustix::thread::sched_getaffinity(None) else { return Vec::new() };
    (0..rustix::thread::CpuSet::MAX_CPU).filter(|&at| set.is_set(at)).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use trunkline_fabric::Fabric as _;
    use trunkline_softnic::{SoftConfig, SoftFabric};

    use super::*;

    /// A host with four NICs behind two host bridges, and a GPU behind the second one.
    fn host() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let sys = root.path().join("sys");
        let device = |path: &str, class: &str| {
            let folder = sys.join("devices").join(path);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("class"), class).unwrap();
            let address = path.rsplit('/').next().unwrap();
            let bus = sys.join("bus/pci/devices");
            fs::create_dir_all(&bus).unwrap();
            symlink(&folder, bus.join(address)).unwrap();
            folder
        };
        let nics = [
            ("mlx5_0", "pci0000:00/0000:00:01.0/0000:01:00.0", "400"),
            ("mlx5_1", "pci0000:00/0000:00:02.0/0000:02:00.0", "100"),
            ("mlx5_2", "pci0000:80/0000:80:01.0/0000:81:00.0", "400"),
            ("mlx5_3", "pci0000:80/0000:80:02.0/0000:82:00.0", "400"),
        ];
        for (name, path, rate) in nics {
            let folder = device(path, "0x020700\n");
            let rdma = folder.join("infiniband").join(name);
            fs::create_dir_all(rdma.join("ports/1")).unwrap();
            fs::write(rdma.join("ports/1/rate"), format!("{rate} Gb/sec (4X NDR)\n")).unwrap();
            symlink(&folder, rdma.join("device")).unwrap();
            fs::create_dir_all(sys.join("class/infiniband")).unwrap();
            symlink(&rdma, sys.join("class/infiniband").join(name)).unwrap();
        }
        let gpu = device("pci0000:80/0000:80:03.0/0000:83:00.0", "0x030200\n");
        fs::write(gpu.join("vendor"), "0x10de\n").unwrap();
        root
    }

    fn nic(name: &str) -> NicPort {
        let fabric = SoftFabric::new(SoftConfig::default()).unwrap();
        NicPort { name: name.to_owned(), ..fabric.nics()[0].clone() }
    }

    fn chosen(host: &Path, visible: Option<&str>, nics: &[&str]) -> Vec<usize> {
        let variable = |name: &str| visible.filter(|_| name == VISIBLE[0]).map(str::to_owned);
        let rank = RankNics::read_topology(host, None, variable);
        let nics: Vec<NicPort> = nics.iter().map(|name| nic(name)).collect();
        NicChoice::OfRank(Box::new(rank)).resolve_nics(&nics).numbers().to_vec()
    }

    #[test]
    fn a_rank_uses_the_nics_near_its_gpu() {
        let host = host();
        let all = ["mlx5_0", "mlx5_1", "mlx5_2:1", "mlx5_3:1"];
        assert_eq!(chosen(host.path(), None, &all), [2, 3]);
        assert_eq!(chosen(host.path(), None, &["mlx5_3", "mlx5_0"]), [0], "only NICs that the fabric offers");
        // Without a GPU the processors decide, which this host does not describe; a slow NIC is excluded.
        assert_eq!(chosen(host.path(), Some(""), &all), [0, 2, 3]);
    }

    #[test]
    fn fabric_with_unplaced_nics_uses_its_first() {
        let host = host();
        assert_eq!(chosen(host.path(), None, &["soft0", "soft1"]), [0]);
        assert_eq!(chosen(Path::new("/nonexistent"), None, &["mlx5_0", "mlx5_1"]), [0]);
        let named = NicChoice::from(CommNics::new(&[1, 0]).unwrap());
        assert_eq!(named.resolve_nics(&[nic("mlx5_0"), nic("mlx5_1")]).numbers(), [1, 0]);
    }
}
