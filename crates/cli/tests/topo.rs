//! `trunkline topo`: drawings of machines of many shapes, JSON, variables that select NICs, and refused input.
//!
//! The machines are those of the `topo` crate's tests. `tests/topo` contains their drawings. Run these tests with
//! `TRUNKLINE_TEST_BLESS=1` to write the drawings again, and check them before you commit.

#![expect(clippy::expect_used, reason = "a failed set-up ends the test")]

#[path = "../../topo/tests/common/machine.rs"]
mod machine;

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use roxmltree::{Document, Node};
use serde_json::Value;
use tempfile::TempDir;

/// Runs the command on a tree, with these settings and no others that choose NICs.
fn topo(root: &Path, args: &[&str], settings: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trunkline"));
    for name in ["NCCL_IB_HCA", "TRUNKLINE_IB_HCA", "NCCL_SOCKET_IFNAME"] {
        command.env_remove(name);
    }
    command.arg("topo").arg("--sysfs").arg(root).args(args).envs(settings.iter().copied());
    command.stdin(Stdio::null()).output().expect("it runs")
}

fn right(root: &Path, args: &[&str], settings: &[(&str, &str)]) -> String {
    let output = topo(root, args, settings);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

fn wrong(root: &Path, args: &[&str], settings: &[(&str, &str)]) -> String {
    let output = topo(root, args, settings);
    assert_eq!(output.status.code(), Some(2), "{args:?}");
    String::from_utf8(output.stderr).expect("text")
}

fn json(root: &Path, settings: &[(&str, &str)]) -> Value {
    serde_json::from_str(&right(root, &["--json"], settings)).expect("one JSON object")
}

/// The names of each GPU's NICs.
fn uses(report: &Value) -> Vec<Vec<String>> {
    let text = |value: &Value| value.as_str().expect("text").to_owned();
    let nics =
        |gpu: &Value| gpu["nics"].as_array().expect("a list").iter().map(|nic| text(&nic["name"])).collect();
    report["gpus"].as_array().expect("a list").iter().map(nics).collect()
}

/// Text and picture of a machine.
fn drawn(name: &str) -> (String, String) {
    let (tree, out) = (machine::tree(name), machine::room());
    let picture = out.path().join("node.svg");
    let text = right(tree.path(), &["--svg", picture.to_str().expect("a path")], &[]);
    (text, std::fs::read_to_string(picture).expect("a picture"))
}

/// Compares with the recorded file, or writes that file.
fn compare(file: &str, found: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/topo").join(file);
    if std::env::var_os("TRUNKLINE_TEST_BLESS").is_some() {
        std::fs::write(path, found).expect("written");
        return;
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    let at = found.lines().zip(expected.lines()).position(|(a, b)| a != b);
    let line = at.map(|at| (found.lines().nth(at), expected.lines().nth(at)));
    assert!(found == expected, "{} differs from line {at:?} on: {line:?}\n{found}", path.display());
}

#[test]
fn drawings_match_the_recorded_ones() {
    let names = machine::names();
    assert!(names.len() >= 12, "{names:?}");
    for name in names {
        let (text, picture) = drawn(&name);
        compare(&format!("{name}.txt"), &text);
        compare(&format!("{name}.svg"), &picture);
    }
}

#[test]
fn text_is_for_eighty_columns_and_names_every_device() {
    for name in machine::names() {
        let tree = machine::tree(&name);
        let (text, report) = (right(tree.path(), &[], &[]), json(tree.path(), &[]));
        for line in text.lines() {
            assert!(line.chars().count() <= 80 && !line.ends_with(' '), "{name}: {line:?}");
        }
        for device in ["gpus", "nics"].iter().flat_map(|list| report[list].as_array().expect("a list")) {
            if let Some(address) = device["address"].as_str() {
                assert!(text.contains(address), "{name}: {address}");
            }
        }
    }
}

#[test]
fn document_contains_a_recorded_drawing() {
    let page = include_str!("../../../docs/topology.md");
    let text = right(machine::tree("switches-4-nics").path(), &[], &[]);
    let shown = page.split("```").nth(1).expect("a drawing").trim();
    let mut drawn = text.lines();
    for line in shown.lines().filter(|line| *line != "...") {
        assert!(drawn.any(|other| other == line), "{line}\n{text}");
    }
}

#[test]
fn help_and_document_explain_each_distance() {
    let help = right(Path::new("/sys"), &["--help"], &[]);
    for distance in ["PIX", "PXB", "PHB", "NODE", "SYS"] {
        assert!(help.lines().any(|line| line.trim_start().starts_with(distance)), "{distance}: {help}");
        assert!(include_str!("../../../docs/topology.md").contains(&format!("| `{distance}` |")));
    }
    for word in ["NCCL_IB_HCA", "NCCL_SOCKET_IFNAME", "--nics-per-gpu", "--svg", "--json", "--sysfs"] {
        assert!(help.contains(word), "{word}");
    }
}

fn attribute(node: &Node<'_, '_>, name: &str) -> f64 {
    node.attribute(name).expect(name).parse().expect("a number")
}

/// Boxes of devices, left, top, right, bottom.
fn boxes(svg: &Document<'_>) -> Vec<[f64; 4]> {
    let devices = svg.descendants().find(|node| node.attribute("class") == Some("devices")).expect("devices");
    let boxes = devices.descendants().filter(|node| node.has_tag_name("rect"));
    boxes
        .map(|node| {
            let [x, y, width, height] = ["x", "y", "width", "height"].map(|name| attribute(&node, name));
            [x, y, x + width, y + height]
        })
        .collect()
}

#[test]
fn pictures_are_self_contained_without_overlaps() {
    for name in machine::names() {
        let (_, text) = drawn(&name);
        let svg = Document::parse(&text).expect("XML");
        for node in svg.descendants() {
            let outside =
                node.attributes().any(|found| found.name() == "href" || found.value().contains("url("));
            assert!(!outside && !["image", "script", "style"].contains(&node.tag_name().name()), "{name}");
        }
        let (width, height) =
            (attribute(&svg.root_element(), "width"), attribute(&svg.root_element(), "height"));
        let boxes = boxes(&svg);
        for (at, [left, top, right, bottom]) in boxes.iter().enumerate() {
            assert!(*left > 0.0 && *top > 0.0 && *right < width && *bottom < height, "{name}");
            let apart = |other: &[f64; 4]| {
                right <= &other[0] || left >= &other[2] || bottom <= &other[1] || top >= &other[3]
            };
            assert!(boxes[..at].iter().all(apart), "{name}: box {at}");
        }
    }
}

#[test]
fn a_picture_has_a_line_for_each_nic_of_a_gpu() {
    for name in machine::names() {
        let (_, text) = drawn(&name);
        let svg = Document::parse(&text).expect("XML");
        let links = svg.descendants().find(|node| node.attribute("class") == Some("links")).expect("links");
        let report = json(machine::tree(&name).path(), &[]);
        let count = uses(&report).iter().map(Vec::len).sum::<usize>();
        assert_eq!(links.descendants().filter(|node| node.has_tag_name("path")).count(), count, "{name}");
        let devices =
            ["gpus", "nics"].map(|list| report[list].as_array().map_or(0, Vec::len)).iter().sum::<usize>();
        assert_eq!(boxes(&svg).len(), devices, "{name}");
    }
}

#[test]
fn json_has_the_location_of_every_device() {
    let tree = machine::tree("slingshot-4-gpus");
    let report = json(tree.path(), &[]);
    assert_eq!(report["sysfs"], tree.path().to_str().expect("a path"));
    assert_eq!((&report["gpus_by"], &report["nics_per_gpu"]), (&"driver".into(), &1.into()));
    let gpu = &report["gpus"][1];
    assert_eq!(
        (&gpu["index"], &gpu["address"], &gpu["id"]),
        (&1.into(), &"0000:43:00.0".into(), &"10de:20b0".into())
    );
    assert_eq!(
        (&gpu["numa"], &gpu["host_bridge"], &gpu["close"]),
        (&2.into(), &"0000:40".into(), &false.into())
    );
    assert_eq!(gpu["path"], serde_json::json!(["0000:40:01.1", "0000:43:00.0"]));
    assert_eq!(gpu["nics"], serde_json::json!([{"name": "cxi1", "distance": "PHB"}]));
    let nic = &report["nics"][1];
    assert_eq!((&nic["name"], &nic["kind"], &nic["numa"]), (&"cxi1".into(), &"cxi".into(), &2.into()));
    assert_eq!((&nic["interfaces"], &nic["gpus"]), (&serde_json::json!(["hsn1"]), &serde_json::json!([1])));
    assert_eq!((&nic["speed_mbps"], &nic["shared_out"]), (&200_000.into(), &true.into()));
    assert_eq!(nic["distances"], serde_json::json!(["SYS", "PHB", "SYS", "SYS"]));
    assert_eq!(report["notes"], serde_json::json!([]));
}

#[test]
fn nccl_ib_hca_selects_rdma_devices() {
    let tree = machine::tree("grace-blackwell");
    let chosen = |name, value| uses(&json(tree.path(), &[(name, value)]));
    let compute = [["mlx5_1"], ["mlx5_0"], ["mlx5_5"], ["mlx5_4"]];
    assert_eq!(chosen("NCCL_IB_HCA", "=mlx5_0,mlx5_1,mlx5_4,mlx5_5"), compute);
    assert_eq!(
        chosen("TRUNKLINE_IB_HCA", "^mlx5_2,mlx5_3:1,mlx5_6,mlx5_7"),
        [vec!["mlx5_1"], vec!["mlx5_0"], vec!["mlx5_5"], vec!["mlx5_4"]]
            .map(|row| row.into_iter().map(str::to_owned).collect::<Vec<_>>())
    );
    let text = right(tree.path(), &[], &[("NCCL_IB_HCA", "=mlx5_0")]);
    assert!(text.contains("mlx5_7") && text.contains("not assigned"), "{text}");
    let error = wrong(tree.path(), &[], &[("NCCL_IB_HCA", "mlx5_0:one")]);
    assert!(error.contains("NCCL_IB_HCA"), "{error}");
    // Other variables are not read, so their values may be invalid.
    right(tree.path(), &[], &[("NCCL_IB_TIMEOUT", "soon"), ("NCCL_SOCKET_FAMILY", "AF_UNIX")]);
}

#[test]
fn nccl_socket_ifname_selects_interfaces() {
    let tree = machine::tree("cloud-interfaces");
    let chosen = |value| uses(&json(tree.path(), &[("NCCL_SOCKET_IFNAME", value)]));
    assert_eq!(chosen("eth1,eth2"), [["eth1"], ["eth1"], ["eth2"], ["eth2"]]);
    assert_eq!(chosen("^eth"), [[""; 0]; 4]);
}

#[test]
fn a_gpu_may_be_kept_to_fewer_nics() {
    let tree = machine::tree("cloud-efa-32-nics");
    let report: Value =
        serde_json::from_str(&right(tree.path(), &["--json", "--nics-per-gpu", "2"], &[])).expect("JSON");
    assert_eq!(report["nics_per_gpu"], 2);
    assert_eq!(uses(&report)[0], ["rdmap79s0", "rdmap80s0"]);
    for bad in ["0", "17", "two"] {
        wrong(tree.path(), &["--nics-per-gpu", bad], &[]);
    }
}

#[test]
fn topo_succeeds_on_this_machine() {
    let text = right(Path::new("/sys"), &[], &[]);
    assert!(text.lines().next().expect("a line").contains("GPU"), "{text}");
    json(Path::new("/sys"), &[]);
}

#[test]
fn missing_tree_and_unwritable_picture_are_reported() {
    let empty: TempDir = machine::room();
    assert_eq!(
        right(empty.path(), &[], &[]),
        "no GPU and no NIC\nthe node has no GPU, so no NIC is assigned\n"
    );
    let error = wrong(&empty.path().join("gone"), &[], &[]);
    assert!(error.contains("cannot read the topology") && error.contains("gone: No such file"), "{error}");
    let error = wrong(empty.path(), &["--svg", "node.png"], &[]);
    assert!(error.contains("end its name in .svg"), "{error}");
    let there = empty.path().join("no/folder.svg");
    let error = wrong(empty.path(), &["--svg", there.to_str().expect("a path")], &[]);
    assert!(error.contains("folder.svg: No such file"), "{error}");
}
