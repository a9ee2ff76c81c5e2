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
  trunkline bench sendrecv -b 16M -e 16M -i 50       one size, 50 timed runs
  trunkline bench all_gather -n 4 -d half --json     four ranks, one JSON object a row
  trunkline bench reduce -d int32 -o max --root 1    an operator and a root
  trunkline bench all_reduce --channels 2 --comms 2  two communicators of two channels each
  trunkline bench p2p -e 16M                         latency, bandwidth, message rate
  trunkline bench p2p --receive exact                the same with receives as long as their messages
  trunkline bench rma                                one-sided: put, get, atomics, signals; see bench rma --help
  trunkline bench device                             device queues; see bench device --help
  trunkline bench p2p --memory host                  inside this host by the Rust API, without plugin or NIC
  trunkline bench p2p --memory cma                   the same, each message copied once by the kernel
  trunkline bench p2p --memory memfd                 the same of memory that the other rank maps, as a GPU's is
  trunkline bench p2p --memory cuda                  the same of memory of GPUs
  trunkline bench p2p --plot p2p.svg                 the table, and a picture of it
  trunkline bench p2p --trace p2p.json -b 1M -e 1M   what went over which rail, for ui.perfetto.dev
  trunkline bench p2p --plugin ./libnccl-net.so --abi 8
  TRUNKLINE_FABRIC=ofi:tcp trunkline bench all_reduce --near   that network between hosts, shared memory inside
  trunkline bench p2p --merge                        all NICs as one; --merge 0,2 fuses two of them
  trunkline run --hosts a,b trunkline bench p2p      between two hosts
  srun -N 2 trunkline bench all_reduce               the same under Slurm, torchrun or mpiexec

Started by a launcher as one of several processes, each is a rank, their number is the launcher's,
and rank 0 prints; else the ranks are started here.

The columns are those of nccl-tests: algbw is size over time, busbw is algbw times the factor of
the collective, so that it compares with the speed of the wire. #wrong counts wrong elements of
the verified runs, damaged guard bytes included; it should always be 0, and the exit status is 1
when it is not (2 when the run failed).

With --memory host, cma, memfd, cuda, hip or ze, p2p measures tagged messages between two ranks of this host by
the Rust API (crate trunkline, messages): of private memory, copied by the receiver, by both ranks
in turns or by way of a stage, whichever is found the fastest or TRUNKLINE_NODE_COPY says (host), or by the receiver
alone by process_vm_readv, or XPMEM where that is (cma), of a device in a memory file that behaves as a GPU's driver does, or of GPUs by their driver (rank N uses GPU N, or both the first). One buffer is sent and one received into, over and over; short round trips are timed 16
at a time. The column memcpy is what one core copies between two such buffers.

--merge fuses NICs as NCCL does where NCCL_NET_FORCE_MERGE or NCCL_NET_MERGE_LEVEL say so. This
plugin fuses up to 4; TRUNKLINE_SOFT_NICS makes the software NIC several. The lines above the table
name the device that is used with its speed.

--trace writes a file for https://ui.perfetto.dev: a process a rank, a track a rail (a NIC port that the
rank uses), an event an operation from its post to its completion, and a mark where a link is lost,
fenced or up again. Each rank records the first 262144 events, warm-up included, which
TRUNKLINE_TRACE_EVENTS changes; so take one size and few runs. Other plugins record nothing.

--json prints one object a row. Its device is the name of the device, of a fused one the names of its
members joined by +. Its receive_min is what --receive says (0: exact). Its fabric is the network that carries the data, as TRUNKLINE_FABRIC
names it, for this plugin's own devices; for other plugins it is the plugin's name. Its plugin is
the name in both cases.

Without --plugin, the plugin is the one named by TRUNKLINE_PLUGIN, else libtrunkline_nccl.so next
to this program, else ../lib/libnccl-net-trunkline.so. The environment, TRUNKLINE_FABRIC and
NCCL_DEBUG for example, is passed on to it.";

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
    /// Benchmark to run: a collective, or p2p for point-to-point messages.
    #[arg(value_name = "COLLECTIVE|p2p", value_parser = what_parser(), required = true)]
    what: Option<String>,
    /// Rank processes to start, 2 to 16; p2p needs 2 [default: 2; under a launcher: its number of processes].
    #[arg(short = 'n', long, value_parser = value_parser!(u64).range(2..=RANKS_MAX))]
    ranks: Option<u64>,
    /// Smallest size in bytes; K, M and G are powers of 1024.
    #[arg(short = 'b', long, default_value = "8", value_parser = bench::sizes::parse)]
    minbytes: usize,
    /// Largest size in bytes [default: 64M; p2p: 16M].
    #[arg(short = 'e', long, value_parser = bench::sizes::parse)]
    maxbytes: Option<usize>,
    /// Multiply each size by this to get the next.
    #[arg(short = 'f', long, default_value_t = 4, value_parser = value_parser!(u64).range(2..))]
    factor: u64,
    /// Element type.
    #[arg(short = 'd', long, default_value = "float", value_parser = named(DataType::NAMES))]
    datatype: String,
    /// Reduction operator.
    #[arg(short = 'o', long, default_value = "sum", value_parser = named(RedOp::NAMES))]
    op: String,
    /// Root rank of reduce, broadcast, gather and scatter.
    #[arg(short = 'r', long, default_value_t = 0)]
    root: u64,
    /// Verified runs of each row; 0 verifies nothing.
    #[arg(short = 'c', long, default_value_t = 1)]
    check: u32,
    /// Warm-up runs before the timed ones.
    #[arg(short = 'w', long, default_value_t = 5)]
    warmup: u32,
    /// Timed runs of each row; 0 runs 20, and more for small sizes.
    #[arg(short = 'i', long, default_value_t = 0)]
    iters: u32,
    /// Channels (connections to each peer) per communicator.
    #[arg(long, default_value_t = 1, value_parser = value_parser!(u64).range(1..=64))]
    channels: u64,
    /// Communicators, which run at the same time on separate data.
    #[arg(long, default_value_t = 1, value_parser = value_parser!(u64).range(1..=16))]
    comms: u64,
    /// Most bytes of one message of a collective.
    #[arg(long, default_value = "2M", value_parser = bench::sizes::parse)]
    chunk: usize,
    /// Least bytes of a receive, even for shorter messages; exact: as long as the message. The default is NCCL's step
    /// size times slice steps (protocol Simple, 4 MiB of buffers).
    #[arg(long, value_name = "SIZE|exact", default_value = "1M", value_parser = bench::sizes::parse_receive)]
    receive: usize,
    /// Print one JSON object per row instead of the table.
    #[arg(long)]
    json: bool,
    /// Draw bandwidth and time over size (out of place) after the run; `trunkline plot` draws several runs in one picture.
    #[arg(long, value_name = "FILE.svg", value_parser = super::plot::picture_path)]
    plot: Option<PathBuf>,
    /// Record the operations of each rail with their times, and write them after the run as JSON for Perfetto (ui.perfetto.dev).
    #[arg(long, value_name = "FILE.json")]
    trace: Option<PathBuf>,
    /// Plugin file [default: TRUNKLINE_PLUGIN, else the library next to this program or in ../lib].
    #[arg(long, value_name = "PATH")]
    plugin: Option<PathBuf>,
    /// Version of the plugin interface [default: the newest that the plugin has].
    #[arg(long, value_name = "N", value_parser = value_parser!(u8).range(6..=12))]
    abi: Option<u8>,
    /// Device number of the plugin.
    #[arg(long, value_name = "N", default_value_t = 0)]
    device: i32,
    /// Fuse devices into one with makeVDevice (interface versions 9 to 12) and use it: all devices, or those with the listed numbers.
    #[arg(long, value_name = "N,N,...", num_args = 0..=1, conflicts_with = "device", value_parser = members)]
    merge: Option<Option<DeviceSelection>>,
    /// Connect ranks on one host by shared memory, even if another fabric reaches other hosts (sets TRUNKLINE_NEAR=1).
    #[arg(long)]
    near: bool,
    /// Memory of the buffers: private, shared or huge for the plugin's messages [default: private]; for p2p also host,
    /// cma, memfd, cuda, hip or ze, which measures tagged messages inside this host by the Rust API.
    #[arg(long, value_name = "KIND", value_parser = memory_parser())]
    memory: Option<String>,
    /// When to flush after receives.
    #[arg(long, default_value = "auto", value_parser = named(&["auto", "always", "never"]))]
    flush: String,
    /// Fail if the whole run takes longer, in seconds.
    #[arg(long, value_name = "S", default_value_t = 900)]
    timeout: u64,
    /// Fail if one row takes longer, in seconds.
    #[arg(long, value_name = "S", default_value_t = 120)]
    row_timeout: u64,
}

/// Parses the numbers of a list like `0,2`.
fn members(text: &str) -> Result<DeviceSelection, String> {
    let numbers: Result<Vec<i32>, _> = text.split(',').map(str::parse).collect();
    let told = "not a list of device numbers like 0,2 (without one, the name of the run comes first: bench p2p --merge)";
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
            "--memory host, cma, memfd, cuda, hip and ze are for p2p: what collectives use is private, shared or huge",
        );
    }
    let of_plugins = args.plugin.is_some() || args.abi.is_some() || args.merge.is_some();
    if of_plugins || args.near || args.trace.is_some() {
        return usage(
            "messages inside this host go by no plugin and no NIC: leave out --plugin, --abi, --merge, --near and --trace",
        );
    }
    let maxbytes = args.maxbytes.unwrap_or(16 << 20);
    if maxbytes < args.minbytes {
        return usage("the largest size is smaller than the smallest");
    }
    if !trunkline::is_rank()? {
        return Ok(trunkline::start_ranks(args.ranks.unwrap_or(2) as usize)?);
    }
    let world = trunkline::World::start()?;
    if world.size() != 2 {
        return usage("p2p runs between 2 ranks");
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
            "-n {asked} was asked for, but {} started {} processes; leave -n out",
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
        return usage("p2p runs between 2 ranks");
    }
    if args.root >= ranks as u64 {
        return usage("the root is not one of the ranks");
    }
    let dtype: DataType = args.datatype.parse()?;
    let maxbytes = args.maxbytes.unwrap_or(if collective.is_some() { 64 << 20 } else { 16 << 20 });
    if maxbytes < args.minbytes {
        return usage("the largest size is smaller than the smallest");
    }
    if args.chunk < 64 {
        return usage("a chunk has at least 64 bytes");
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
