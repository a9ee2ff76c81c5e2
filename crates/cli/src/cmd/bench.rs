//! `trunkline bench`: parses the arguments.
//!
//! Called by `cmd`. The `bench` module runs and prints the rows; the `job` module detects whether a launcher started
//! this process as one of several.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser as _};
use clap::{Args, Subcommand, value_parser};
use trunkline_nccl_host::{
    Collective, DataType, DeviceSelection, LocalOverrides, MemoryKind, RankCluster, RankJob, RedOp,
};

use super::{device, rma};
use crate::bench::trace::{self, OwnDirectory};
use crate::bench::{self, BenchError, BenchSettings};
use crate::job::{self, LaunchedJob};
use crate::locate;

/// Most ranks that a run starts itself.
const RANKS_MAX: u64 = 16;
/// How long the processes of a job may take to connect to each other.
const MEETING: Duration = Duration::from_secs(120);

const EXAMPLES: &str = "\
Examples:
  trunkline bench all_reduce                         2 ranks, 8 B to 64 MiB
  trunkline bench sendrecv -b 16M -e 16M -i 50       one size, 50 timed iterations
  trunkline bench all_gather -n 4 -d half --json     4 ranks, one JSON object per row
  trunkline bench reduce -d int32 -o max --root 1    an operator and a root
  trunkline bench all_reduce --channels 2 --comms 2  2 communicators with 2 channels each
  trunkline bench p2p -e 16M                         latency, bandwidth, message rate
  trunkline bench p2p --receive exact                receives of exactly the message's length
  trunkline bench rma                                one-sided operations; see bench rma --help
  trunkline bench device                             device queues; see bench device --help
  trunkline bench p2p --memory host                  inside this host, without plugin or NIC
  trunkline bench p2p --memory cma                   the same, copied by the receiver alone
  trunkline bench p2p --memory memfd                 the same with simulated device memory
  trunkline bench p2p --memory cuda                  the same with memory of NVIDIA GPUs
  trunkline bench p2p --plot p2p.svg                 the table, and a plot of it
  trunkline bench p2p --trace p2p.json -b 1M -e 1M   operations per rail, for ui.perfetto.dev
  trunkline bench p2p --plugin ./libnccl-net.so --abi 8
                                                     another plugin, version 8 of its interface
  trunkline bench p2p --merge                        all NICs as one device; --merge 0,2 fuses two
  TRUNKLINE_FABRIC=ofi:tcp trunkline bench all_reduce --near
                                                     ofi:tcp between hosts, shared memory inside
  trunkline run --hosts a,b trunkline bench p2p      between two hosts
  srun -N 2 trunkline bench all_reduce               under Slurm; also under torchrun or mpiexec

Under a launcher, each process is a rank, the launcher sets their number, and rank 0 prints.
Without one, this command starts the ranks on this host.

The columns are those of nccl-tests. algbw is the size divided by the time. busbw is algbw times the
factor of the collective, to compare it with the speed of the network. #wrong should be 0. It counts wrong
elements of the verified runs, and changed bytes beside the buffers, where nothing may be written.

The exit status is 0 if all data was right, 1 if some was wrong, 2 if the run failed.

With --memory host, cma, memfd, cuda, hip or ze, p2p loads no plugin. It measures tagged messages between
two ranks of this host by the Rust API (crate trunkline, module messages):
  host           private memory. The receiver copies each message (pull), the two ranks copy alternate
                 messages (turns), or both copy each message through shared memory (stage). The fastest
                 of these methods is used, or the one in TRUNKLINE_NODE_COPY.
  cma            private memory. The receiver copies, by XPMEM if it works, else by process_vm_readv.
  memfd          memory of a device that is simulated by a memory file.
  cuda, hip, ze  memory of NVIDIA, AMD or Intel GPUs. Rank N uses GPU N, or both use a single GPU.
All messages use the same two buffers. Short round trips are timed 16 at a time. The column memcpy is the
bandwidth of one core that copies between two such buffers.

--merge fuses NICs as NCCL does with NCCL_NET_FORCE_MERGE or NCCL_NET_MERGE_LEVEL. This plugin fuses at
most 4; TRUNKLINE_SOFT_NICS sets the number of software NICs. The lines above the table name the device in
use and its speed.

--trace writes a file for https://ui.perfetto.dev. It has a process per rank, a track per rail (a NIC port
that the rank uses), and an event per operation from post to completion. Marks show where a link is lost,
fenced (moved to the error state by its own side) or reconnected. A link is a reliable connection from a
rail to one rail of a peer. With RDMA and with software NICs it is a pair of connected queue pairs, with
libfabric a peer of an endpoint. A comm (an NCCL connection) has up to four links in all.
Each rank records the first 262144 events (TRUNKLINE_TRACE_EVENTS), warm-up included, so use one size and
few iterations. Other plugins record nothing.

--json prints one object per row, with these keys among others:
  device       the name of the device; a fused one has the names of its members, joined by +
  receive_min  the value of --receive (0: exact)
  fabric       the network that carries the data, in the syntax of TRUNKLINE_FABRIC; the plugin's name
               if it is another plugin
  plugin       the plugin's name

Without --plugin, the command loads the plugin that TRUNKLINE_PLUGIN names, else libtrunkline_nccl.so beside
this program, else ../lib/libnccl-net-trunkline.so. The plugin inherits the environment, for example
TRUNKLINE_FABRIC and NCCL_DEBUG.";

/// Benchmarks with arguments of their own.
#[derive(Debug, Subcommand)]
enum BenchSubcommand {
    /// Measure one-sided operations: put, get, atomics, signals, quiet.
    Rma(rma::RmaArgs),
    /// Measure device queues: operations that kernels post and wait for.
    Device(device::DeviceArgs),
}

/// Arguments of `bench`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
#[command(disable_help_subcommand = true)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    other: Option<BenchSubcommand>,
    /// Run this benchmark: a collective, or p2p for point-to-point messages.
    #[arg(value_name = "COLLECTIVE|p2p", value_parser = what_parser(), required = true)]
    what: Option<String>,
    /// Start this many rank processes, 2 to 16; p2p needs 2 [default: 2; under a launcher: its number of processes].
    #[arg(short = 'n', long, value_parser = value_parser!(u64).range(2..=RANKS_MAX))]
    ranks: Option<u64>,
    /// Start at this size in bytes; K, M and G are powers of 1024.
    #[arg(short = 'b', long, default_value = "8", value_parser = bench::sizes::parse)]
    minbytes: usize,
    /// End at this size in bytes [default: 64M; p2p: 16M].
    #[arg(short = 'e', long, value_parser = bench::sizes::parse)]
    maxbytes: Option<usize>,
    /// Multiply each size by this factor to get the next.
    #[arg(short = 'f', long, default_value_t = 4, value_parser = value_parser!(u64).range(2..))]
    factor: u64,
    /// Use elements of this type.
    #[arg(short = 'd', long, default_value = "float", value_parser = named(DataType::NAMES))]
    datatype: String,
    /// Reduce with this operator.
    #[arg(short = 'o', long, default_value = "sum", value_parser = named(RedOp::NAMES))]
    op: String,
    /// Use this rank as the root of reduce, broadcast, gather and scatter.
    #[arg(short = 'r', long, default_value_t = 0)]
    root: u64,
    /// Verify the data of this many iterations per row; 0 verifies nothing.
    #[arg(short = 'c', long, default_value_t = 1)]
    check: u32,
    /// Run this many warm-up iterations before the timed ones.
    #[arg(short = 'w', long, default_value_t = 5)]
    warmup: u32,
    /// Time this many iterations per row; 0 selects 20, and more for small sizes.
    #[arg(short = 'i', long, default_value_t = 0)]
    iters: u32,
    /// Open this many channels (connections to each peer) per communicator.
    #[arg(long, default_value_t = 1, value_parser = value_parser!(u64).range(1..=64))]
    channels: u64,
    /// Run this many communicators at the same time, on separate data.
    #[arg(long, default_value_t = 1, value_parser = value_parser!(u64).range(1..=16))]
    comms: u64,
    /// Split the data of a collective into messages of at most this size.
    #[arg(long, default_value = "2M", value_parser = bench::sizes::parse)]
    chunk: usize,
    /// Post receives of at least this size, even for shorter messages; exact: of the message's length. The default is
    /// NCCL's step size times slice steps (protocol Simple, 4 MiB of buffers).
    #[arg(long, value_name = "SIZE|exact", default_value = "1M", value_parser = bench::sizes::parse_receive)]
    receive: usize,
    /// Print one JSON object per row instead of the table.
    #[arg(long)]
    json: bool,
    /// Plot bandwidth and time by message size (out of place) after the run; for several runs, use `trunkline plot`.
    #[arg(long, value_name = "FILE.svg", value_parser = super::plot::picture_path)]
    plot: Option<PathBuf>,
    /// Record the operations of each rail with their times, and write them as JSON for Perfetto (ui.perfetto.dev).
    #[arg(long, value_name = "FILE.json")]
    trace: Option<PathBuf>,
    /// Load this plugin file [default: TRUNKLINE_PLUGIN, else the library beside this program or in ../lib].
    #[arg(long, value_name = "PATH")]
    plugin: Option<PathBuf>,
    /// Use this version of the plugin interface, 6 to 12 [default: the newest that the plugin exports].
    #[arg(long, value_name = "N", value_parser = value_parser!(u8).range(6..=12))]
    abi: Option<u8>,
    /// Use the plugin's device with this number.
    #[arg(long, value_name = "N", default_value_t = 0)]
    device: i32,
    /// Fuse these devices (without a list: all) into one with makeVDevice (interface versions 9 to 12), and use it.
    #[arg(long, value_name = "N,N,...", num_args = 0..=1, conflicts_with = "device", value_parser = members)]
    merge: Option<Option<DeviceSelection>>,
    /// Connect ranks on one host by shared memory, even if another fabric reaches other hosts (sets TRUNKLINE_NEAR=1).
    #[arg(long)]
    near: bool,
    /// Allocate buffers in this memory: private, shared (a memory file) or huge (huge pages) [default: private]; host,
    /// cma, memfd, cuda, hip and ze are for p2p, and measure tagged messages inside this host by the Rust API.
    #[arg(long, value_name = "KIND", value_parser = memory_parser())]
    memory: Option<String>,
    /// Flush after receives always, never, or as the plugin requires (auto).
    #[arg(long, default_value = "auto", value_parser = named(&["auto", "always", "never"]))]
    flush: String,
    /// Fail if the whole run takes longer than this many seconds.
    #[arg(long, value_name = "S", default_value_t = 900)]
    timeout: u64,
    /// Fail if one row takes longer than this many seconds.
    #[arg(long, value_name = "S", default_value_t = 120)]
    row_timeout: u64,
}

/// Parses a list of device numbers, such as `0,2`.
fn members(text: &str) -> Result<DeviceSelection, String> {
    let numbers: Result<Vec<i32>, _> = text.split(',').map(str::parse).collect();
    let told = "not a list of device numbers, such as 0,2; to fuse all devices, write --merge last: bench p2p --merge";
    numbers.map(DeviceSelection::Fused).map_err(|_| told.to_owned())
}

fn named(names: &'static [&'static str]) -> PossibleValuesParser {
    PossibleValuesParser::new(names)
}

fn what_parser() -> impl clap::builder::TypedValueParser<Value = String> {
    PossibleValuesParser::new(Collective::NAMES.iter().copied().chain(["p2p"])).map(|name| name)
}

fn memory_parser() -> impl clap::builder::TypedValueParser<Value = String> {
    let names = MemoryKind::NAMES.iter().copied().chain(bench::messages::BenchMemory::NAMES);
    PossibleValuesParser::new(names).map(|name| name)
}

/// Runs the benchmark; the exit status is 0 if all bytes were right.
pub(crate) fn run_bench(args: &BenchArgs) -> Result<ExitCode, BenchError> {
    match &args.other {
        Some(BenchSubcommand::Rma(args)) => return rma::run_rma(args),
        Some(BenchSubcommand::Device(args)) => return device::run_device(args),
        None => {}
    }
    if args.near {
        bench::ready_near().map_err(BenchError::Near)?;
    }
    if let Some(of) = args.memory.as_deref().and_then(bench::messages::BenchMemory::from_name) {
        return run_messages(args, of);
    }
    if args.plugin.is_none() {
        bench::ready_network().map_err(BenchError::Network)?;
    }
    let recorded = args.trace.is_some() && job::is_launched()?;
    // The directory for the trace of this rank, if another launcher started it.
    let own = recorded.then(OwnDirectory::open_or_restart).transpose()?;
    let Some(mut joined) = job::join_job(MEETING.min(Duration::from_secs(args.timeout)))? else {
        let mut settings = build_settings(args, None)?;
        settings.enable_trace(args)?;
        let cluster = RankCluster::start(&settings.job)?;
        return run_rows(&settings, cluster);
    };
    let settings = build_settings(args, Some(&joined));
    // All ranks have the same arguments, but hosts may have different files.
    if !joined.agree_to_start(settings.as_ref().err())? {
        return Ok(ExitCode::from(2));
    }
    let mut settings = settings?;
    match joined.into_role()? {
        job::JobRole::Parent(seats) => {
            settings.enable_trace(args)?;
            run_rows(&settings, RankCluster::start_among(seats, &settings.job)?)
        }
        job::JobRole::Rank(seat) => {
            // The directory whose files this rank sends to the parent.
            let left = own.as_ref().map(|own| own.path().to_owned());
            Ok(seat.serve(LocalOverrides { plugin: settings.job.plugin, left })?)
        }
    }
}

impl BenchSettings {
    /// Makes the ranks' plugins record a trace, if one was requested.
    fn enable_trace(&mut self, args: &BenchArgs) -> Result<(), BenchError> {
        self.trace = args.trace.as_deref().map(trace::PendingTrace::new).transpose()?;
        self.job.keep = self.trace.as_ref().map(trace::PendingTrace::plugin_setting);
        Ok(())
    }
}

fn run_rows(settings: &BenchSettings, cluster: RankCluster) -> Result<ExitCode, BenchError> {
    let wrong = match settings.job.collective {
        Some(collective) => bench::collective::run_collective(settings, collective, cluster)?,
        None => bench::p2p::run_p2p(settings, cluster)?,
    };
    Ok(if wrong == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Measures tagged messages inside this host; called in each of two ranks.
fn run_messages(args: &BenchArgs, of: bench::messages::BenchMemory) -> Result<ExitCode, BenchError> {
    let usage = |text: &str| Err(BenchError::Usage(text.to_owned()));
    if args.what.as_deref() != Some("p2p") {
        return usage(
            "--memory host, cma, memfd, cuda, hip and ze work with p2p only; for collectives use private, shared or huge",
        );
    }
    let of_plugins = args.plugin.is_some() || args.abi.is_some() || args.merge.is_some();
    if of_plugins || args.near || args.trace.is_some() {
        return usage(
            "this --memory uses no plugin and no NIC; leave out --plugin, --abi, --merge, --near and --trace",
        );
    }
    let maxbytes = args.maxbytes.unwrap_or(16 << 20);
    if maxbytes < args.minbytes {
        return usage("the largest size is smaller than the smallest; raise -e or lower -b");
    }
    if !trunkline::is_rank()? {
        return Ok(trunkline::start_ranks(args.ranks.unwrap_or(2) as usize)?);
    }
    let world = trunkline::World::start()?;
    if world.size() != 2 {
        return usage("p2p runs between 2 ranks; use -n 2, or start 2 processes");
    }
    let plot = args.plot.clone().filter(|_| world.rank() == 0).map(bench::plot::PendingPlot::new);
    let settings = bench::messages::MessageBenchSettings {
        of,
        sizes: bench::sizes::size_series(args.minbytes, maxbytes, args.factor as usize),
        check: args.check > 0,
        iterations: args.iters as usize,
        json: args.json,
        plot,
    };
    let wrong = bench::messages::run_messages(&settings, &world)?;
    world.finish()?;
    Ok(if wrong == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The number of ranks: the launcher's, if one started this process.
fn rank_count(args: &BenchArgs, joined: Option<&LaunchedJob>) -> Result<usize, BenchError> {
    let asked = args.ranks.map(|ranks| ranks as usize);
    let Some(joined) = joined else { return Ok(asked.unwrap_or(2)) };
    match asked {
        Some(asked) if asked != joined.job_size() => Err(BenchError::Usage(format!(
            "-n {asked} does not match the job: {} started {} processes; leave -n out",
            joined.launcher(),
            joined.job_size()
        ))),
        _ => Ok(joined.job_size()),
    }
}

fn build_settings(args: &BenchArgs, joined: Option<&LaunchedJob>) -> Result<BenchSettings, BenchError> {
    let usage = |text: &str| Err(BenchError::Usage(text.to_owned()));
    // Clap requires it, unless a subcommand is given.
    let what = args.what.as_deref().unwrap_or("p2p");
    let collective: Option<Collective> = if what == "p2p" { None } else { Some(what.parse()?) };
    let ranks = rank_count(args, joined)?;
    if collective.is_none() && ranks != 2 {
        return usage("p2p runs between 2 ranks; use -n 2, or start 2 processes");
    }
    if args.root >= ranks as u64 {
        return usage("--root is out of range; use the number of a rank, less than -n");
    }
    let dtype: DataType = args.datatype.parse()?;
    let maxbytes = args.maxbytes.unwrap_or(if collective.is_some() { 64 << 20 } else { 16 << 20 });
    if maxbytes < args.minbytes {
        return usage("the largest size is smaller than the smallest; raise -e or lower -b");
    }
    if args.chunk < 64 {
        return usage("--chunk is too small; use 64 bytes or more");
    }
    let job = RankJob {
        plugin: locate::find_plugin(args.plugin.as_deref())?,
        abi: args.abi,
        device: match &args.merge {
            Some(list) => list.clone().unwrap_or(DeviceSelection::FusedAll),
            None => DeviceSelection::Number(args.device),
        },
        ranks,
        comms: args.comms as usize,
        channels: if collective.is_some() { args.channels as usize } else { 1 },
        collective,
        root: args.root as usize,
        // The smallest blocks have one element per rank, which may be more bytes than requested.
        bytes_max: maxbytes.max(ranks * dtype.element_bytes()),
        chunk: args.chunk / dtype.element_bytes() * dtype.element_bytes(),
        receive_min: args.receive,
        memory: args.memory.as_deref().unwrap_or(MemoryKind::NAMES[0]).parse()?,
        flush: match args.flush.as_str() {
            "always" => Some(true),
            "never" => Some(false),
            _ => None,
        },
        timeout: Duration::from_secs(args.timeout),
        row_timeout: Duration::from_secs(args.row_timeout),
        keep: None,
        // Lets software NICs fuse, too, which have no PCI address.
        environment: args.merge.iter().map(|_| ("TRUNKLINE_FUSE".to_owned(), "all".to_owned())).collect(),
    };
    Ok(BenchSettings {
        job,
        sizes: bench::sizes::size_series(args.minbytes, maxbytes, args.factor as usize),
        dtype,
        op: args.op.parse()?,
        check: args.check,
        warmup: args.warmup,
        iters: args.iters,
        json: args.json,
        plot: args.plot.clone().map(bench::plot::PendingPlot::new),
        trace: None,
    })
}
