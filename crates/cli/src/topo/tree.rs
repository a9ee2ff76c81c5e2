//! The tree to draw: NUMA nodes, host bridges, switches, devices. Pure. Called by `text` and `picture`.
//!
//! A bridge with one way to go on is left out: it tells nothing of who is near whom.

use std::collections::BTreeMap;

use trunkline_topo::{PciAddress, Place, Topology};

/// What stands in a tree.
#[derive(Debug)]
pub(super) enum Entry {
    /// A GPU by its number.
    Gpu(usize),
    /// A NIC by its number.
    Nic(usize),
    /// Several of these behind something.
    Group(Group),
}

/// What several devices are behind of.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) label: String,
    pub(super) entries: Vec<Entry>,
}

impl Group {
    /// How many groups are inside each other, this one included.
    pub(super) fn depth(&self) -> usize {
        let inner = |entry: &Entry| match entry {
            Entry::Group(group) => group.depth(),
            Entry::Gpu(_) | Entry::Nic(_) => 0,
        };
        1 + self.entries.iter().map(inner).max().unwrap_or(0)
    }
}

/// A device on its way down, and what is left of that.
struct Falling<'a> {
    hops: &'a [PciAddress],
    entry: Entry,
}

/// The NUMA nodes with all that is at them. An unknown one comes last.
pub(super) fn tree(topology: &Topology) -> Vec<Group> {
    let gpus = topology.gpus().iter().enumerate().map(|(at, gpu)| (&gpu.place, Entry::Gpu(at)));
    let nics = topology.nics().iter().enumerate().map(|(at, nic)| (&nic.place, Entry::Nic(at)));
    let mut nodes: BTreeMap<u16, Vec<(&Place, Entry)>> = BTreeMap::new();
    for (place, entry) in gpus.chain(nics) {
        nodes.entry(place.numa.map_or(u16::MAX, |node| node.number())).or_default().push((place, entry));
    }
    let label = |node: u16| match node {
        u16::MAX => "NUMA node unknown".to_owned(),
        _ => format!("NUMA node {node}"),
    };
    nodes.into_iter().map(|(node, devices)| Group { label: label(node), entries: bridges(devices) }).collect()
}

/// The host bridges of a node, by their first addresses; what is on no bus comes last.
fn bridges(devices: Vec<(&Place, Entry)>) -> Vec<Entry> {
    let mut bridges: BTreeMap<(PciAddress, &str), (&str, Vec<Falling<'_>>)> = BTreeMap::new();
    let mut firsts: BTreeMap<&str, PciAddress> = BTreeMap::new();
    let mut nowhere = Vec::new();
    for path in devices.iter().filter_map(|(place, _)| place.path.as_ref()) {
        let first = firsts.entry(path.root()).or_insert(path.hops()[0]);
        *first = path.hops()[0].min(*first);
    }
    for (place, entry) in devices {
        match &place.path {
            Some(path) => {
                let key = (firsts[path.root()], path.root());
                let falling = Falling { hops: path.hops(), entry };
                bridges.entry(key).or_insert((path.bridge(), Vec::new())).1.push(falling);
            }
            None => nowhere.push(entry),
        }
    }
    let grouped = bridges.into_values().flat_map(|(bridge, devices)| {
        let inner = below(devices);
        gathered(format!("host bridge {bridge}"), inner)
    });
    grouped.chain(nowhere).collect()
}

/// What is below a bridge, by address. No deeper than a path is long.
fn below(devices: Vec<Falling<'_>>) -> Vec<Entry> {
    let mut ways: BTreeMap<PciAddress, (Vec<Entry>, Vec<Falling<'_>>)> = BTreeMap::new();
    for Falling { hops, entry } in devices {
        let Some((first, rest)) = hops.split_first() else { continue };
        let (here, further) = ways.entry(*first).or_default();
        match rest {
            [] => here.push(entry),
            _ => further.push(Falling { hops: rest, entry }),
        }
    }
    let mut found = Vec::new();
    for (address, (here, further)) in ways {
        found.extend(here);
        let label = card(&further).map_or_else(|| format!("switch {address}"), |card| format!("card {card}"));
        found.extend(gathered(label, below(further)));
    }
    found
}

/// The card whose functions these are, if they are functions of one and nothing is behind them: no switch is needed for that.
fn card(devices: &[Falling<'_>]) -> Option<String> {
    let mut cards = devices.iter().map(|device| match device.hops {
        [function] => Some(function.card()),
        _ => None,
    });
    let first = cards.next()??;
    cards.all(|card| card.as_ref() == Some(&first)).then_some(first)
}

/// Several things as a group, one without.
fn gathered(label: String, entries: Vec<Entry>) -> Vec<Entry> {
    if entries.len() < 2 { entries } else { vec![Entry::Group(Group { label, entries })] }
}
