//! Reads topologies from trees: machines of many shapes, and malformed trees.

#![expect(clippy::unwrap_used, reason = "a test stops at an unexpected error")]

#[path = "common/machine.rs"]
mod machine;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use tempfile::TempDir;
use trunkline_topo::{
    Distance, GPUS_MAX, GpusBy, NICS_MAX, NicKind, NodeTopology, NumaNode, PER_GPU_MAX, PciAddress,
    RankPlacement, read_numa_node, read_topology,
};

fn address(text: &str) -> PciAddress {
    text.parse().unwrap()
}

fn topology(root: &TempDir) -> NodeTopology {
    read_topology(root.path(), &[]).unwrap()
}

/// Returns the names of each GPU's NICs, and the distance of the first.
fn uses(topology: &NodeTopology) -> Vec<(Vec<&str>, Option<Distance>)> {
    let result = topology.assign_nics(&topology.candidate_nics(|_| true), PER_GPU_MAX);
    let name = |at: usize| topology.nics()[at].name.as_str();
    (0..topology.gpus().len())
        .map(|gpu| {
            let picks = result.gpu_nics(gpu);
            (picks.iter().map(|pick| name(pick.nic)).collect(), picks.first().map(|pick| pick.distance))
        })
        .collect()
}

/// Returns the only NIC of each GPU, and checks its distance.
fn firsts(name: &str, distance: Distance) -> Vec<String> {
    let topology = topology(&machine::tree(name));
    let all = uses(&topology);
    assert!(all.iter().all(|(nics, far)| nics.len() == 1 && *far == Some(distance)), "{name}: {all:?}");
    all.iter().map(|(nics, _)| nics[0].to_owned()).collect()
}

#[test]
fn each_gpu_uses_the_nic_behind_its_switch() {
    assert_eq!(
        firsts("hgx-8-gpus-8-nics", Distance::Pix),
        ["mlx5_0", "mlx5_3", "mlx5_4", "mlx5_5", "mlx5_6", "mlx5_9", "mlx5_10", "mlx5_11"]
    );
}

#[test]
fn two_gpus_behind_a_switch_use_different_nics() {
    assert_eq!(
        firsts("dgx-pairs", Distance::Pix),
        ["mlx5_1", "mlx5_0", "mlx5_3", "mlx5_2", "mlx5_5", "mlx5_4", "mlx5_7", "mlx5_6"]
    );
}

#[test]
fn two_gpus_behind_a_switch_share_its_one_nic() {
    assert_eq!(
        firsts("switches-4-nics", Distance::Pix),
        ["mlx5_0", "mlx5_0", "mlx5_1", "mlx5_1", "mlx5_2", "mlx5_2", "mlx5_3", "mlx5_3"]
    );
}

/// The ports for storage are assigned, too, because the rule cannot identify them; `NCCL_IB_HCA` excludes them.
#[test]
fn numa_node_decides_without_common_host_bridges() {
    let found = topology(&machine::tree("grace-blackwell"));
    let near = Some(Distance::Node);
    assert_eq!(
        uses(&found),
        [
            (vec!["mlx5_2", "mlx5_3"], near),
            (vec!["mlx5_0", "mlx5_1"], near),
            (vec!["mlx5_6", "mlx5_7"], near),
            (vec!["mlx5_4", "mlx5_5"], near)
        ]
    );
    let compute = ["mlx5_0", "mlx5_1", "mlx5_4", "mlx5_5"];
    let candidates = found.candidate_nics(|nic| compute.contains(&nic.name.as_str()));
    let result = found.assign_nics(&candidates, PER_GPU_MAX);
    let nics: Vec<_> = (0..4).map(|gpu| found.nics()[result.gpu_nics(gpu)[0].nic].name.as_str()).collect();
    assert_eq!((result.per_gpu(), nics), (1, vec!["mlx5_1", "mlx5_0", "mlx5_5", "mlx5_4"]));
}

#[test]
fn slingshot_nics_are_assigned_by_host_bridge() {
    assert_eq!(firsts("slingshot-4-gpus", Distance::Phb), ["cxi0", "cxi1", "cxi2", "cxi3"]);
    let found = topology(&machine::tree("slingshot-4-gpus"));
    let nic = &found.nics()[0];
    assert_eq!((nic.kind, nic.interfaces[0].as_str(), nic.speed_mbps), (NicKind::Cxi, "hsn0", Some(200_000)));
}

#[test]
fn amd_gpus_are_assigned_nics() {
    assert_eq!(
        firsts("slingshot-8-gpus", Distance::Pix),
        ["cxi0", "cxi0", "cxi1", "cxi1", "cxi2", "cxi2", "cxi3", "cxi3"]
    );
}

#[test]
fn machines_that_hide_the_tree_are_balanced_by_node() {
    assert_eq!(
        firsts("cloud-domains", Distance::Node),
        ["mlx5_ib1", "mlx5_ib0", "mlx5_ib3", "mlx5_ib2", "mlx5_ib5", "mlx5_ib4", "mlx5_ib7", "mlx5_ib6"]
    );
}

#[test]
fn machines_that_show_one_bus_are_balanced() {
    let mut nics = firsts("cloud-flat", Distance::Phb);
    nics.sort();
    assert_eq!(nics, (0..8).map(|at| format!("mlx5_{at}")).collect::<Vec<_>>());
}

#[test]
fn four_nics_behind_each_switch_are_all_used() {
    let found = topology(&machine::tree("cloud-efa-32-nics"));
    let all = uses(&found);
    assert_eq!(all[0], (vec!["rdmap79s0", "rdmap80s0", "rdmap81s0", "rdmap82s0"], Some(Distance::Pix)));
    assert_eq!(all[7].0, ["rdmap198s0", "rdmap199s0", "rdmap200s0", "rdmap201s0"]);
    let mut nics: Vec<&str> = all.iter().flat_map(|(nics, _)| nics.clone()).collect();
    nics.sort_unstable();
    nics.dedup();
    assert_eq!(nics.len(), 32);
}

/// The GPUs of the far socket are spread over both NICs; those of the near socket share their nearest NIC.
#[test]
fn far_gpus_spread_over_equally_far_nics() {
    let found = topology(&machine::tree("one-socket-has-the-nics"));
    let (near, far) = (Some(Distance::Phb), Some(Distance::Sys));
    let expected =
        [(vec!["mlx5_0"], near), (vec!["mlx5_0"], near), (vec!["mlx5_1"], far), (vec!["mlx5_1"], far)];
    assert_eq!(uses(&found), expected);
}

#[test]
fn gpus_are_found_by_class_without_drivers() {
    let found = topology(&machine::tree("cloud-interfaces"));
    assert_eq!(found.gpus_by(), GpusBy::Class);
    let gpus: Vec<_> = found.gpus().iter().map(|gpu| gpu.address.to_string()).collect();
    // The GPU that is passed to a virtual machine is missing.
    assert_eq!(gpus, ["0000:00:04.0", "0000:00:05.0", "0000:80:04.0", "0000:80:05.0"]);
    assert_eq!(firsts("cloud-interfaces", Distance::Phb), ["eth1", "eth0", "eth3", "eth2"]);
}

#[test]
fn a_gpu_with_a_sound_card_is_one_gpu() {
    let found = topology(&machine::tree("one-nic"));
    assert_eq!(
        (found.gpus().len(), found.gpus_by(), found.gpus()[0].id),
        (2, GpusBy::Driver, Some((0x10de, 0x2684)))
    );
    assert_eq!(firsts("one-nic", Distance::Phb), ["mlx5_0", "mlx5_0"]);
}

#[test]
fn functions_of_other_classes_are_not_gpus() {
    let root = machine::room();
    let lines = "pci0000:00\n  0000:00:01.0 gpu=nvidia class=040300\n  0000:00:02.0 gpu=nvidia class=120000\n  0000:00:03.0 gpu=nvidia class=068000\n  0000:00:04.0 gpu=nvidia class=0302";
    machine::write(lines, root.path());
    // The last class is malformed: a device with a GPU driver counts as a GPU unless its class is another one.
    fs::write(root.path().join("devices/pci0000:00/0000:00:04.0/class"), "0x3020000000\n").unwrap();
    let gpus: Vec<_> = topology(&root).gpus().iter().map(|gpu| gpu.address).collect();
    assert_eq!(gpus, [address("0000:00:02.0"), address("0000:00:04.0")]);
}

#[test]
fn nics_are_listed_without_gpus() {
    let found = topology(&machine::tree("laptop"));
    assert_eq!((found.gpus().len(), found.gpus_by()), (0, GpusBy::Nobody));
    let nics: Vec<_> =
        found.nics().iter().map(|nic| (nic.name.as_str(), nic.kind, nic.pci_address())).collect();
    assert_eq!(
        nics,
        [("wlan0", NicKind::Interface, Some(address("0000:00:14.3"))), ("rxe0", NicKind::Rdma, None)]
    );
}

#[test]
fn callers_gpus_are_used_only_as_fallback() {
    let root = machine::room();
    machine::write(
        "pci0000:00 numa=1\n  0000:00:0d.0 rdma=mlx5_0\n  0000:00:0e.0 rdma=mlx5_1\n",
        root.path(),
    );
    let known = [address("0000:00:06.0"), address("0000:00:05.0")];
    let found = read_topology(root.path(), &known).unwrap();
    assert_eq!((found.gpus_by(), found.gpus()[0].address), (GpusBy::Caller, known[1]));
    // Their locations are unknown, but each still gets its own NIC.
    assert_eq!(uses(&found), [(vec!["mlx5_1"], Some(Distance::Sys)), (vec!["mlx5_0"], Some(Distance::Sys))]);
    // They are ignored if the tree shows GPUs.
    let shown = machine::tree("one-nic");
    assert_eq!(read_topology(shown.path(), &known).unwrap(), topology(&shown));
}

/// Each process passes another GPU as its own, and reads the tree separately.
#[test]
fn all_processes_compute_the_same_assignment() {
    for name in machine::names() {
        let root = machine::tree(&name);
        let all = topology(&root);
        let table = uses(&all);
        for gpu in all.gpus() {
            let own = read_topology(root.path(), &[gpu.address]).unwrap();
            assert_eq!(uses(&own), table, "{name}");
            assert_eq!(own.find_gpu(gpu.address), all.find_gpu(gpu.address));
        }
    }
}

/// The lines of each machine are reversed, so that files are created, and listed, in another order.
#[test]
fn order_of_folders_is_irrelevant() {
    for name in machine::names() {
        let lines = machine::lines(&name);
        let mut parts: Vec<Vec<&str>> = Vec::new();
        for line in lines.lines().filter(|line| !line.starts_with('#')) {
            match parts.last_mut() {
                Some(part) if line.starts_with(' ') => part.push(line),
                _ => parts.push(vec![line]),
            }
        }
        parts.reverse();
        let root = machine::room();
        machine::write(&parts.concat().join("\n"), root.path());
        assert_eq!(topology(&root), topology(&machine::tree(&name)), "{name}");
    }
}

#[test]
fn missing_tree_is_an_error() {
    let root = machine::room();
    let error = read_topology(&root.path().join("gone"), &[]).unwrap_err().to_string();
    assert!(error.contains("gone: No such file"), "{error}");
    fs::write(root.path().join("file"), "").unwrap();
    let error = read_topology(&root.path().join("file"), &[]).unwrap_err().to_string();
    assert!(error.contains("file: Not a directory"), "{error}");
    assert_eq!(topology(&root), NodeTopology::default());
}

/// Reads a machine with one GPU and one NIC, after `spoil` has changed its tree.
fn spoiled(spoil: impl Fn(&Path)) -> NodeTopology {
    let root = machine::room();
    machine::write(
        "pci0000:00 numa=1\n  0000:00:05.0 gpu=nvidia id=10de:2330\n  0000:00:0d.0 rdma=mlx5_0 rate=400\n",
        root.path(),
    );
    spoil(root.path());
    topology(&root)
}

#[test]
fn circular_links_are_ignored() {
    let found = spoiled(|root| {
        let (nic, gpu) = (root.join("class/infiniband/mlx5_0"), root.join("bus/pci/devices/0000:00:05.0"));
        fs::remove_file(&nic).unwrap();
        symlink("mlx5_0", nic).unwrap();
        fs::remove_file(&gpu).unwrap();
        symlink("../devices/0000:00:05.0", gpu).unwrap();
        fs::remove_dir_all(root.join("class/pci_bus")).unwrap();
    });
    assert_eq!((found.nics().len(), found.gpus()[0].place.path.clone()), (0, None));
}

#[test]
fn nothing_outside_the_tree_is_read() {
    let outside = machine::room();
    machine::write("pci0000:00 numa=7\n  0000:00:05.0 gpu=nvidia id=10de:2330\n", outside.path());
    let there = outside.path().join("devices/pci0000:00/0000:00:05.0");
    let found = spoiled(|root| {
        let gpu = root.join("devices/pci0000:00/0000:00:05.0");
        fs::remove_file(gpu.join("numa_node")).unwrap();
        symlink(there.join("numa_node"), gpu.join("numa_node")).unwrap();
    });
    assert_eq!((found.gpus()[0].place.numa, found.gpus()[0].place.path.is_some()), (None, true));
}

#[test]
fn malformed_files_count_as_unknown() {
    let found = spoiled(|root| {
        for device in ["0000:00:05.0", "0000:00:0d.0"] {
            let folder = root.join("devices/pci0000:00").join(device);
            fs::write(folder.join("numa_node"), [0xff, 0xfe, 0]).unwrap();
            fs::write(folder.join("vendor"), "0x10de0000").unwrap();
            fs::write(folder.join("class"), "display").unwrap();
        }
        let rate = root.join("class/infiniband/mlx5_0/ports/1/rate");
        fs::write(rate, "9".repeat(1 << 20)).unwrap();
    });
    let gpu = &found.gpus()[0];
    assert_eq!((gpu.place.numa, gpu.id, found.nics()[0].speed_mbps), (None, None, None));
    assert_eq!(uses(&found), [(vec!["mlx5_0"], Some(Distance::Phb))]);
}

#[test]
fn only_the_first_256_bytes_are_read() {
    let padded = |spaces: usize| {
        let found = spoiled(|root| {
            let node = root.join("devices/pci0000:00/0000:00:05.0/numa_node");
            fs::write(node, format!("2{}x", " ".repeat(spaces))).unwrap();
        });
        found.gpus()[0].place.numa.map(NumaNode::node_number)
    };
    assert_eq!((padded(254), padded(255)), (None, Some(2)));
}

#[test]
fn copies_that_end_with_zeros_are_read() {
    let found = spoiled(|root| {
        for file in ["numa_node", "vendor", "device", "class"] {
            let path = root.join("devices/pci0000:00/0000:00:05.0").join(file);
            let mut bytes = fs::read(&path).unwrap();
            bytes.resize(4096, 0);
            fs::write(path, bytes).unwrap();
        }
    });
    let gpu = &found.gpus()[0];
    assert_eq!((gpu.place.numa.unwrap().node_number(), gpu.id), (1, Some((0x10de, 0x2330))));
}

#[test]
fn missing_files_count_as_unknown() {
    let found = spoiled(|root| {
        for device in ["0000:00:05.0", "0000:00:0d.0"] {
            for file in ["numa_node", "vendor", "class", "device"] {
                fs::remove_file(root.join("devices/pci0000:00").join(device).join(file)).unwrap();
            }
        }
        fs::remove_dir_all(root.join("class/infiniband/mlx5_0/ports")).unwrap();
    });
    assert_eq!((found.gpus().len(), found.gpus()[0].id, found.nics()[0].place.numa), (1, None, None));
}

#[test]
fn pipe_in_the_tree_does_not_block() {
    let found = spoiled(|root| {
        let node = root.join("devices/pci0000:00/0000:00:05.0/numa_node");
        fs::remove_file(&node).unwrap();
        let made = std::process::Command::new("mkfifo").arg(&node).status().unwrap();
        assert!(made.success());
    });
    assert_eq!(found.gpus()[0].place.numa, None);
}

#[test]
fn invalid_device_names_are_counted_and_omitted() {
    let found = spoiled(|root| {
        for name in ["mlx5 1", "\u{1b}[31m", &"n".repeat(65)] {
            symlink("mlx5_0", root.join("class/infiniband").join(name)).unwrap();
        }
        fs::write(root.join("class/infiniband/abi_version"), "1").unwrap();
    });
    let names: Vec<_> = found.nics().iter().map(|nic| nic.name.as_str()).collect();
    assert_eq!((names, found.unusable_count()), (vec!["mlx5_0"], 3));
}

#[test]
fn unlisted_gpu_is_located_by_its_bus() {
    let found = spoiled(|root| {
        fs::remove_dir_all(root.join("bus/pci/devices")).unwrap();
    });
    let gpu = &found.gpus()[0];
    assert_eq!(gpu.place.path.as_ref().unwrap().sysfs_folder(), "devices/pci0000:00/0000:00:05.0");
    assert_eq!(gpu.place.numa.unwrap().node_number(), 1);
}

#[test]
fn link_to_another_device_gives_no_location() {
    let found = spoiled(|root| {
        let link = root.join("bus/pci/devices/0000:00:05.0");
        fs::remove_file(&link).unwrap();
        fs::write(root.join("devices/pci0000:00/0000:00:0d.0/class"), "0x030200").unwrap();
        symlink("../../../devices/pci0000:00/0000:00:0d.0", link).unwrap();
        fs::remove_dir_all(root.join("class/pci_bus")).unwrap();
    });
    assert_eq!(found.gpus()[0].place.path, None);
}

/// Reads a tree with these numbers of GPUs and NICs; returns the topology or the error.
fn many(gpus: usize, nics: usize) -> Result<NodeTopology, String> {
    let root = machine::room();
    let drivers = root.path().join("bus/pci/drivers/nvidia");
    fs::create_dir_all(&drivers).unwrap();
    for at in 0..gpus {
        fs::write(drivers.join(format!("0000:{:02x}:{:02x}.0", at / 32, at % 32)), "").unwrap();
    }
    for at in 0..nics {
        fs::create_dir_all(root.path().join(format!("class/infiniband/rxe{at}"))).unwrap();
    }
    read_topology(root.path(), &[]).map_err(|error| error.to_string())
}

#[test]
fn too_many_entries_are_an_error() {
    let most = many(GPUS_MAX, NICS_MAX).unwrap();
    assert_eq!((most.gpus().len(), most.nics().len()), (GPUS_MAX, NICS_MAX));
    let result = most.assign_nics(&most.candidate_nics(|_| true), PER_GPU_MAX);
    assert!((0..GPUS_MAX).all(|gpu| result.gpu_nics(gpu).len() == 2));
    assert_eq!(
        many(GPUS_MAX + 1, 0).unwrap_err(),
        "the sysfs tree has more than 256 GPUs, which no node has"
    );
    assert_eq!(
        many(0, NICS_MAX + 1).unwrap_err(),
        "the sysfs tree has more than 512 NICs and network interfaces, which no node has"
    );
    assert_eq!(
        many(4097, 0).unwrap_err(),
        "the sysfs tree has more than 4096 entries in a folder of sysfs, which no node has"
    );
    let known: Vec<_> =
        (0..=GPUS_MAX).map(|at| address(&format!("0000:{:02x}:{:02x}.0", at / 32, at % 32))).collect();
    let root = machine::room();
    assert_eq!(
        read_topology(root.path(), &known).unwrap_err().to_string(),
        "the sysfs tree has more than 256 GPUs, which no node has"
    );
}

/// Returns the NICs of a rank, by name.
fn names_of_rank(topology: &NodeTopology, rank: RankPlacement, most: usize) -> Vec<&str> {
    let nics = topology.nics_of_rank(&topology.candidate_nics(|_| true), &rank, most);
    nics.into_iter().map(|at| topology.nics()[at].name.as_str()).collect()
}

#[test]
fn a_rank_with_a_gpu_uses_the_nics_of_its_gpu() {
    for name in ["hgx-8-gpus-8-nics", "dgx-pairs", "grace-blackwell", "slingshot-4-gpus"] {
        let topology = topology(&machine::tree(name));
        for (gpu, (nics, _)) in uses(&topology).into_iter().enumerate() {
            let rank = RankPlacement { gpu: Some(gpu), local_rank: 7 - gpu, local_size: 8, numa: None };
            assert_eq!(names_of_rank(&topology, rank, PER_GPU_MAX), nics, "{name}, GPU {gpu}");
        }
    }
}

#[test]
fn ranks_without_gpus_divide_their_nodes_nics() {
    let topology = topology(&machine::tree("dgx-pairs"));
    let of = |node: &str, local_rank, local_size| {
        let numa = NumaNode::parse(node);
        names_of_rank(&topology, RankPlacement { gpu: None, numa, local_rank, local_size }, 4)
    };
    // Eight NICs, two per NUMA node.
    assert_eq!((of("3", 0, 8), of("3", 1, 8)), (vec!["mlx5_0"], vec!["mlx5_1"]));
    assert_eq!((of("7", 4, 8), of("7", 5, 8)), (vec!["mlx5_4"], vec!["mlx5_5"]));
    assert_eq!(of("5", 3, 4), ["mlx5_6", "mlx5_7"], "two per rank");
    assert_eq!(of("1", 0, 1), ["mlx5_2", "mlx5_3"], "no far NICs, although the share is larger");
    assert_eq!(of("-1", 0, 1).len(), 4, "all are equally far: the maximum number");
    let crowd: Vec<_> = (0..4).map(|rank| of("3", rank, 64)).collect();
    assert_eq!(crowd, [["mlx5_0"], ["mlx5_1"], ["mlx5_0"], ["mlx5_1"]]);
    assert!(NodeTopology::default().nics_of_rank(&[], &RankPlacement::default(), 4).is_empty());
}

#[test]
fn nics_slower_than_half_of_the_fastest_are_left_out() {
    let root = tree_of(&[("mlx5_0", "400"), ("mlx5_1", "200"), ("mlx5_2", "100"), ("mlx5_3", "")]);
    let topology = topology(&root);
    let names: Vec<_> =
        topology.candidate_nics(|_| true).into_iter().map(|at| topology.nics()[at].name.as_str()).collect();
    assert_eq!(names, ["mlx5_0", "mlx5_1", "mlx5_3"]);
}

/// Creates a tree of software RDMA devices with these rates in Gb/s.
fn tree_of(devices: &[(&str, &str)]) -> TempDir {
    let root = tempfile::tempdir().unwrap();
    for (name, rate) in devices {
        let port = root.path().join(format!("class/infiniband/{name}/ports/1"));
        fs::create_dir_all(&port).unwrap();
        if !rate.is_empty() {
            fs::write(port.join("rate"), format!("{rate} Gb/sec (4X NDR)\n")).unwrap();
        }
    }
    root
}

#[test]
fn numa_node_must_contain_all_processors() {
    let root = tempfile::tempdir().unwrap();
    for (node, list) in [("node0", "0-3,8-11\n"), ("node1", "4-7,12-15\n")] {
        let folder = root.path().join("devices/system/node").join(node);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("cpulist"), list).unwrap();
    }
    let node = |processors: &[usize]| read_numa_node(root.path(), processors).map(NumaNode::node_number);
    assert_eq!(node(&[1, 9]), Some(0));
    assert_eq!(node(&[4, 5, 15]), Some(1));
    assert_eq!(node(&[3, 4]), None, "processors of two nodes");
    assert_eq!(node(&[99]), None);
    assert_eq!(read_numa_node(Path::new("/nonexistent"), &[0]), None);
}
