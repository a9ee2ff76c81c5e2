//! `trunkline topo`: the GPUs and NICs of a node, and which NICs a GPU uses, as text, JSON or a picture.
//!
//! Called by `cmd`. It reads sysfs and nothing else; no device is opened.

use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, value_parser};
use thiserror::Error;
use trunkline_runtime::{ChooseError, FrontEndKind, read_values};
use trunkline_settings::SettingErrors;
use trunkline_topo::{InterfaceChoice, NicKind, NodeNic, PER_GPU_MAX, ReadError};
use trunkline_verbs::VerbsConfig;

use super::plot::picture_path;
use crate::topo::{self, TopologyReport, TopologyView};

/// Most ports of a device that a choice may name.
const PORTS_MAX: u32 = 16;

const EXAMPLES: &str = "\
Examples:
  trunkline topo                        the tree of this host, and the NICs that each GPU uses
  trunkline topo --svg node.svg         the same as a picture
  trunkline topo --json | jq '.gpus[] | {address, nics}'
  NCCL_IB_HCA=^mlx5_7,mlx5_8 trunkline topo
                                        without two NICs, for example those of storage
  trunkline topo --sysfs ./node7-sys    another host, from a copy of its /sys

All GPUs of the node count, even those that this process or job does not use. Every process thus computes
the same table, and jobs that share a node do not all use the same NICs.

A GPU may use the node's NICs divided by its GPUs, at least one. It first gets the nearest NICs, by the
part of the PCI tree between GPU and NIC:
  PIX   one PCIe switch
  PXB   several PCIe bridges; counts as near as PIX
  PHB   the host bridge of the processor
  NODE  host bridges of one NUMA node
  SYS   the link between NUMA nodes
It gets fewer NICs rather than farther ones. Then, for one GPU after another, a NIC that several GPUs use is
replaced by one of the same class with at least two users fewer. Ties are decided by PCI address. GPUs have
the numbers of nvidia-smi, which are CUDA's with CUDA_DEVICE_ORDER=PCI_BUS_ID.

NICs are RDMA devices (InfiniBand, RoCE, EFA, Slingshot), or network interfaces if the node has none.
NCCL_IB_HCA (TRUNKLINE_IB_HCA) and NCCL_SOCKET_IFNAME select NICs; set them alike in all processes.
docs/topology.md has the complete rule.

To copy /sys of another host for --sysfs (tar reports files that it cannot read; ignore that):
  cd /sys && find bus/pci class devices \\( -type d -o -type l -o -name numa_node -o -name class \\
    -o -name vendor -o -name device -o -name rate -o -name speed \\) \\
    | tar --no-recursion -cf ~/node7.tar -T -";

/// Arguments of `topo`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TopoArgs {
    /// Read sysfs from this folder.
    #[arg(long, value_name = "ROOT", default_value = "/sys")]
    sysfs: PathBuf,
    /// Print one JSON object instead of text.
    #[arg(long)]
    json: bool,
    /// Also draw the node into this file, which is replaced.
    #[arg(long, value_name = "FILE.svg", value_parser = picture_path)]
    svg: Option<PathBuf>,
    /// Assign at most this many NICs per GPU.
    #[arg(long, value_name = "N", default_value_t = PER_GPU_MAX as u64, value_parser = value_parser!(u64).range(1..=PER_GPU_MAX as u64))]
    nics_per_gpu: u64,
}

/// Why nothing can be shown.
#[derive(Debug, Error)]
#[non_exhaustive]
pub(crate) enum TopoError {
    /// Sysfs cannot be read.
    #[error("cannot read the topology: {0}")]
    Read(#[from] ReadError),
    /// The choice of devices or interfaces is invalid.
    #[error(transparent)]
    Settings(#[from] SettingErrors),
    /// The configuration file cannot be used.
    #[error(transparent)]
    File(#[from] ChooseError),
    /// The picture cannot be written.
    #[error("{path}: {1}", path = .0.display())]
    Picture(PathBuf, #[source] io::Error),
    /// Standard output cannot be written.
    #[error("cannot write: {0}")]
    Print(#[from] io::Error),
    /// The JSON cannot be serialised.
    #[error("cannot write JSON: {0}")]
    Json(#[from] serde_json::Error),
}

/// Runs the subcommand.
pub(crate) fn run_topo(args: &TopoArgs) -> Result<ExitCode, TopoError> {
    let topology = trunkline_topo::read_topology(&args.sysfs, &[])?;
    let takes = chosen_nics()?;
    let view = TopologyView::new(topology, takes, args.nics_per_gpu as usize);
    if let Some(path) = &args.svg {
        std::fs::write(path, topo::render_picture(&view))
            .map_err(|error| TopoError::Picture(path.clone(), error))?;
    }
    let mut out = io::BufWriter::new(io::stdout().lock());
    if args.json {
        serde_json::to_writer_pretty(
            &mut out,
            &TopologyReport::new(&view, args.sysfs.display().to_string()),
        )?;
        writeln!(out)?;
    } else {
        topo::topology_lines(&view).iter().try_for_each(|line| writeln!(out, "{line}"))?;
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the filter of NICs that the environment selects.
fn chosen_nics() -> Result<impl Fn(&NodeNic) -> bool, TopoError> {
    let (values, _) = read_values(FrontEndKind::Nccl)?;
    // The other RDMA settings do not matter here, even if their values are invalid.
    let devices = VerbsConfig::port_filter(&values)?;
    let interfaces = InterfaceChoice::name_filter(&values)?;
    Ok(move |nic: &NodeNic| match nic.kind {
        NicKind::Rdma => (1..=PORTS_MAX).any(|port| devices.matches_port(nic.name.as_str(), port)),
        NicKind::Cxi => true,
        NicKind::Interface => interfaces.includes_name(nic.name.as_str()),
    })
}
