//! Reads descriptions of machines and writes them as trees with the form of sysfs, for the tests of this crate and of
//! the command.
//!
//! Each line is a folder below the nearest line with less indentation: a host bridge, a bridge, or a device by its
//! address. The words after it are:
//! - `numa=`: the NUMA node of this folder and all folders below.
//! - `gpu=DRIVER`, `rdma=NAME`, `cxi=NAME`, `net=NAME,NAME`: the kind of the device.
//! - `id=`, `class=`, `rate=` (Gb/s of the port), `speed=` (Mb/s of the interface): the content of its files.
//! - `via=`: the folder between a device and its interface.
//!
//! `virtual` is RDMA in software. `hide drivers` and `hide devices` omit folders. Lines that begin with # are
//! comments.

#![allow(dead_code, reason = "each test uses only some of these functions")]
#![expect(clippy::unwrap_used, reason = "an invalid description of a machine stops the test")]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

/// Returns the folder of the descriptions.
pub(crate) fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../topo/tests/machines")
}

/// Returns the names of all machines, sorted.
pub(crate) fn names() -> Vec<String> {
    let entries = fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path());
    let mut names: Vec<String> = entries
        .filter(|path| path.extension().is_some_and(|extension| extension == "machine"))
        .map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned())
        .collect();
    names.sort();
    names
}

/// Returns the description of a machine.
pub(crate) fn lines(name: &str) -> String {
    fs::read_to_string(folder().join(format!("{name}.machine"))).unwrap()
}

/// Creates a folder that is removed when the value is dropped. Prefers memory, because a tree has a thousand files.
pub(crate) fn room() -> TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

/// Writes the tree of a machine into a new folder, which is removed when the value is dropped.
pub(crate) fn tree(name: &str) -> TempDir {
    let folder = room();
    write(&lines(name), folder.path());
    folder
}

/// Writes the tree of a description into a folder.
pub(crate) fn write(text: &str, root: &Path) {
    let hidden: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("hide ")).collect();
    let hides = |what: &str| hidden.contains(&what);
    // Folders above the current line: indentation, path, node.
    let mut above: Vec<(usize, String, String)> = Vec::new();
    for line in text.lines().filter(|line| !line.starts_with("hide ") && !line.trim().is_empty()) {
        if line.starts_with('#') {
            continue;
        }
        let indent = line.len() - line.trim_start().len();
        above.retain(|(other, ..)| *other < indent);
        let mut words = line.split_whitespace();
        let name = words.next().unwrap();
        let words: Vec<(&str, &str)> = words.map(|word| word.split_once('=').unwrap()).collect();
        let word = |key: &str| words.iter().find(|(name, _)| *name == key).map(|(_, value)| *value);
        if name == "virtual" {
            let rdma = word("rdma").unwrap();
            make(root, &format!("devices/virtual/infiniband/{rdma}"));
            link(root, &format!("class/infiniband/{rdma}"), &format!("devices/virtual/infiniband/{rdma}"));
            continue;
        }
        let (parent, node) = above.last().map_or(("devices", "-1"), |(_, path, node)| (path, node));
        let node = word("numa").unwrap_or(node).to_owned();
        let path = format!("{parent}/{name}");
        make(root, &path);
        if name.contains('.') {
            device(root, &path, name, &node, &word, hides("drivers"), hides("devices"));
        }
        above.push((indent, path, node));
    }
}

/// Writes the files and links of a PCI function.
fn device<'a>(
    root: &Path,
    path: &str,
    address: &str,
    node: &str,
    word: &impl Fn(&str) -> Option<&'a str>,
    hides_drivers: bool,
    hides_devices: bool,
) {
    put(root, &format!("{path}/numa_node"), &format!("{node}\n"));
    if !hides_devices {
        link(root, &format!("bus/pci/devices/{address}"), path);
        let (bus, _) = address.rsplit_once(':').unwrap();
        let (parent, _) = path.rsplit_once('/').unwrap();
        link(root, &format!("{parent}/pci_bus/{bus}/device"), parent);
        link(root, &format!("class/pci_bus/{bus}"), &format!("{parent}/pci_bus/{bus}"));
    }
    let (vendor, id) = word("id").and_then(|id| id.split_once(':')).unwrap_or(("8086", "2020"));
    put(root, &format!("{path}/vendor"), &format!("0x{vendor}\n"));
    put(root, &format!("{path}/device"), &format!("0x{id}\n"));
    if let Some(driver) = word("gpu") {
        put(root, &format!("{path}/class"), &format!("0x{}\n", word("class").unwrap_or("030200")));
        if !hides_drivers {
            put(root, &format!("bus/pci/drivers/{driver}/new_id"), "");
            link(root, &format!("bus/pci/drivers/{driver}/{address}"), path);
        }
        link(root, &format!("{path}/driver"), &format!("bus/pci/drivers/{driver}"));
    } else {
        put(root, &format!("{path}/class"), &format!("0x{}\n", word("class").unwrap_or("020000")));
    }
    if let Some(name) = word("rdma") {
        put(
            root,
            &format!("{path}/infiniband/{name}/ports/1/rate"),
            &format!("{} Gb/sec (4X)\n", word("rate").unwrap_or("0")),
        );
        class(root, "infiniband", path, name);
    }
    if let Some(name) = word("cxi") {
        class(root, "cxi", path, name);
    }
    let below = word("via").map_or_else(|| path.to_owned(), |via| format!("{path}/{via}"));
    for name in word("net").into_iter().flat_map(|names| names.split(',')) {
        put(root, &format!("{below}/net/{name}/speed"), &format!("{}\n", word("speed").unwrap_or("-1")));
        class(root, "net", &below, name);
    }
}

/// Writes the links of a device of a class.
fn class(root: &Path, class: &str, device: &str, name: &str) {
    link(root, &format!("{device}/{class}/{name}/device"), device);
    link(root, &format!("class/{class}/{name}"), &format!("{device}/{class}/{name}"));
}

fn make(root: &Path, path: &str) {
    fs::create_dir_all(root.join(path)).unwrap();
}

fn put(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// Writes a relative link, as the kernel does.
fn link(root: &Path, from: &str, to: &str) {
    let up = "../".repeat(from.matches('/').count());
    let path = root.join(from);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    if path.symlink_metadata().is_err() {
        symlink(format!("{up}{to}"), path).unwrap();
    }
}
