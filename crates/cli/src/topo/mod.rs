//! Shows a node's GPUs and NICs as text, as a picture, or as JSON.
//!
//! Called by `cmd::topo`. The `topo` crate finds the devices and assigns the NICs; this module only prints them.

mod picture;
mod report;
mod text;
mod tree;

pub(crate) use picture::render_picture;
pub(crate) use report::TopologyReport;
pub(crate) use text::topology_lines;

use trunkline_topo::{GpusBy, NicAssignment, NodeGpu, NodeNic, NodeTopology, PciAddress};

/// A node, and which NICs its GPUs use.
#[derive(Debug)]
pub(crate) struct TopologyView {
    topology: NodeTopology,
    /// The assignment, by indices into the topology.
    assignment: NicAssignment,
    /// Whether each NIC takes part in the assignment.
    candidates: Vec<bool>,
}

impl TopologyView {
    /// Assigns the NICs for which `takes` is true to the GPUs, at most `most` per GPU.
    pub(crate) fn new(topology: NodeTopology, takes: impl Fn(&NodeNic) -> bool, most: usize) -> Self {
        let chosen = topology.candidate_nics(takes);
        let assignment = topology.assign_nics(&chosen, most);
        let candidates = (0..topology.nics().len()).map(|at| chosen.contains(&at)).collect();
        Self { topology, assignment, candidates }
    }

    fn gpus(&self) -> &[NodeGpu] {
        self.topology.gpus()
    }

    fn nics(&self) -> &[NodeNic] {
        self.topology.nics()
    }

    /// The GPUs that use a NIC.
    fn nic_users(&self, nic: usize) -> Vec<usize> {
        let uses = |gpu: &usize| self.assignment.gpu_nics(*gpu).iter().any(|pick| pick.nic == nic);
        (0..self.gpus().len()).filter(uses).collect()
    }

    /// How many NUMA nodes have devices.
    fn numa_nodes(&self) -> usize {
        let gpus = self.gpus().iter().filter_map(|gpu| gpu.place.numa);
        let mut nodes: Vec<_> = gpus.chain(self.nics().iter().filter_map(|nic| nic.place.numa)).collect();
        nodes.sort_unstable();
        nodes.dedup();
        nodes.len()
    }

    /// The numbers of GPUs, NICs and NUMA nodes, in one line.
    fn title_line(&self) -> String {
        let count = |count: usize, what: &str| match count {
            0 => format!("no {what}"),
            1 => format!("1 {what}"),
            _ => format!("{count} {what}s"),
        };
        let gpus = self.gpus().len();
        let nics = self.nics().len();
        let both = format!("{} and {}", count(gpus, "GPU"), count(nics, "NIC"));
        match self.numa_nodes() {
            0 => both,
            nodes => format!("{both} at {}", count(nodes, "NUMA node")),
        }
    }

    /// How many NICs a GPU uses, and why, in one line.
    fn subtitle_line(&self) -> String {
        let candidates = self.candidates.iter().filter(|taken| **taken).count();
        let gpus = self.gpus().len();
        match (gpus, candidates) {
            (0, _) => "the node has no GPU, so no NIC is assigned".to_owned(),
            (_, 0) => "the node has no NIC to assign".to_owned(),
            _ => {
                let which = if candidates == self.nics().len() { "all" } else { &candidates.to_string() };
                let of = if which == "all" { "" } else { " of the" };
                let each = self.assignment.per_gpu();
                format!("{which}{of} NICs are assigned to {gpus} GPUs, at most {each} each")
            }
        }
    }

    /// Notes that deserve a line of their own.
    fn note_lines(&self) -> Vec<String> {
        let mut notes = Vec::new();
        match self.topology.gpus_by() {
            GpusBy::Class => notes.push(
                "no driver of GPUs shows devices here; GPUs are those of NVIDIA and AMD by PCI class"
                    .to_owned(),
            ),
            GpusBy::Caller => notes.push("the node lists no GPUs; these are the caller's".to_owned()),
            GpusBy::Driver | GpusBy::Nobody => {}
        }
        if self.topology.unusable_count() > 0 {
            notes
                .push(format!("{} devices with invalid names were left out", self.topology.unusable_count()));
        }
        let hidden = self.gpus().iter().filter(|gpu| gpu.place.path.is_none()).count();
        if hidden > 0 {
            notes.push(format!("{hidden} GPUs have no place in the PCI tree; NUMA nodes decide for them"));
        }
        notes
    }
}

/// Formats a vendor and a device.
fn model_name(id: Option<(u16, u16)>) -> String {
    match id {
        Some((0x10de, device)) => format!("NVIDIA {device:04x}"),
        Some((0x1002, device)) => format!("AMD {device:04x}"),
        Some((vendor, device)) => format!("{vendor:04x}:{device:04x}"),
        None => String::new(),
    }
}

/// Formats a speed.
pub(crate) fn format_speed(mbps: Option<u32>) -> String {
    match mbps {
        Some(mbps) if mbps % 1000 == 0 => format!("{} Gb/s", mbps / 1000),
        Some(mbps) => format!("{mbps} Mb/s"),
        None => String::new(),
    }
}

fn format_address(address: Option<PciAddress>) -> String {
    address.map_or_else(String::new, |address| address.to_string())
}

/// `GPU 3`, `GPUs 2 and 3`, `GPUs 0 1 2 3`.
fn format_gpus(numbers: &[usize]) -> String {
    let all: Vec<String> = numbers.iter().map(usize::to_string).collect();
    match numbers {
        [] => String::new(),
        [_] => format!("GPU {}", all[0]),
        [_, _] => format!("GPUs {} and {}", all[0], all[1]),
        _ => format!("GPUs {}", all.join(" ")),
    }
}
