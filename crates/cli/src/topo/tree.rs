//! The tree of NUMA nodes, host bridges, switches and devices. Pure. Called by `text` and `picture`.
//!
//! A bridge with a single child is left out: it does not affect any distance.

use std::collections::BTreeMap;

use trunkline_topo::{DeviceLocation, NodeTopology, PciAddress};

/// An entry of the tree.
#[derive(Debug)]
pub(super) enum TreeEntry {
    /// A GPU by its number.
    Gpu(usize),
    /// A NIC by its number.
    Nic(usize),
    /// Several entries behind a common bridge.
    Group(DeviceGroup),
}

/// A node, bridge, switch or card, and the entries below it.
#[derive(Debug)]
pub(super) struct DeviceGroup {
    pub(super) label: String,
    pub(super) entries: Vec<TreeEntry>,
}

impl DeviceGroup {
    /// The nesting depth of groups, this one included.
    pub(super) fn depth(&self) -> usize {
        let inner = |entry: &TreeEntry| match entry {
            TreeEntry::Group(group) => group.depth(),
            TreeEntry::Gpu(_) | TreeEntry::Nic(_) => 0,
        };
        1 + self.entries.iter().map(inner).max().unwrap_or(0)
    }
}

/// A device, and the part of its path that is still below the current bridge.
struct DescendingDevice<'a> {
    hops: &'a [PciAddress],
    entry: TreeEntry,
}

/// The NUMA nodes with all their devices. The unknown node is last.
pub(super) fn build_tree(topology: &NodeTopology) -> Vec<DeviceGroup> {
    let gpus = topology.gpus().iter().enumerate().map(|(at, gpu)| (&gpu.place, TreeEntry::Gpu(at)));
    let nics = topology.nics().iter().enumerate().map(|(at, nic)| (&nic.place, TreeEntry::Nic(at)));
    let mut nodes: BTreeMap<u16, Vec<(&DeviceLocation, TreeEntry)>> = BTreeMap::new();
    for (place, entry) in gpus.chain(nics) {
        nodes.entry(place.numa.map_or(u16::MAX, |node| node.node_number())).or_default().push((place, entry));
    }
    let label = |node: u16| match node {
        u16::MAX => "NUMA node unknown".to_owned(),
        _ => format!("NUMA node {node}"),
    };
    nodes
        .into_iter()
        .map(|(node, devices)| DeviceGroup { label: label(node), entries: bridge_entries(devices) })
        .collect()
}

/// The host bridges of a node, by their first addresses; devices without a bus are last.
fn bridge_entries(devices: Vec<(&DeviceLocation, TreeEntry)>) -> Vec<TreeEntry> {
    let mut bridges: BTreeMap<(PciAddress, &str), (&str, Vec<DescendingDevice<'_>>)> = BTreeMap::new();
    let mut firsts: BTreeMap<&str, PciAddress> = BTreeMap::new();
    let mut nowhere = Vec::new();
    for path in devices.iter().filter_map(|(place, _)| place.path.as_ref()) {
        let first = firsts.entry(path.root_path()).or_insert(path.hops()[0]);
        *first = path.hops()[0].min(*first);
    }
    for (place, entry) in devices {
        match &place.path {
            Some(path) => {
                let key = (firsts[path.root_path()], path.root_path());
                let falling = DescendingDevice { hops: path.hops(), entry };
                bridges.entry(key).or_insert((path.bridge_name(), Vec::new())).1.push(falling);
            }
            None => nowhere.push(entry),
        }
    }
    let grouped = bridges.into_values().flat_map(|(bridge, devices)| {
        let inner = entries_below(devices);
        group_entries(format!("host bridge {bridge}"), inner)
    });
    grouped.chain(nowhere).collect()
}

/// The entries below a bridge, by address. Recursion ends with the longest path.
fn entries_below(devices: Vec<DescendingDevice<'_>>) -> Vec<TreeEntry> {
    let mut ways: BTreeMap<PciAddress, (Vec<TreeEntry>, Vec<DescendingDevice<'_>>)> = BTreeMap::new();
    for DescendingDevice { hops, entry } in devices {
        let Some((first, rest)) = hops.split_first() else { continue };
        let (here, further) = ways.entry(*first).or_default();
        match rest {
            [] => here.push(entry),
            _ => further.push(DescendingDevice { hops: rest, entry }),
        }
    }
    let mut found = Vec::new();
    for (address, (here, further)) in ways {
        found.extend(here);
        let label =
            common_card(&further).map_or_else(|| format!("switch {address}"), |card| format!("card {card}"));
        found.extend(group_entries(label, entries_below(further)));
    }
    found
}

/// The card whose functions these devices are, if all are functions of one card without anything behind them. Such a
/// card needs no switch in the tree.
fn common_card(devices: &[DescendingDevice<'_>]) -> Option<String> {
    let mut cards = devices.iter().map(|device| match device.hops {
        [function] => Some(function.card_name()),
        _ => None,
    });
    let first = cards.next()??;
    cards.all(|card| card.as_ref() == Some(&first)).then_some(first)
}

/// Makes a group of several entries; a single entry needs none.
fn group_entries(label: String, entries: Vec<TreeEntry>) -> Vec<TreeEntry> {
    if entries.len() < 2 { entries } else { vec![TreeEntry::Group(DeviceGroup { label, entries })] }
}
