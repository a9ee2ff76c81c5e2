//! `cargo xtask compare`: compares Trunkline with libfabric and UCX over shared memory and TCP loopback, and, over
//! libfabric, with a program that uses libfabric for messages only. Runs alternate; results are ratios.
//!
//! Called by developers after a change for speed. It gates nothing; `--write` writes the figures into
//! docs/performance.md.

mod ours;
mod peers;
pub(crate) mod shmem;
mod stats;

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use comfy_table::Table;

use crate::workspace::Workspace;
use crate::{dist, shell};
use stats::{BetterDirection, FigurePairs, PairSummary};

/// The file that `--write` changes, relative to the root, and its markers.
const DOCUMENT: &str = "docs/performance.md";
const BEGIN: &str = "<!-- compare:begin -->";
const END: &str = "<!-- compare:end -->";

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// The arguments of the command.
#[derive(Debug, clap::Args)]
pub(crate) struct CompareOptions {
    /// Run this many pairs per row; our runs and the peer's alternate.
    #[arg(long, default_value_t = 9)]
    pairs: usize,
    /// Measure only rows whose name contains this [default: all].
    #[arg(long, value_name = "PART")]
    only: Option<String>,
    /// Write the figures into docs/performance.md.
    #[arg(long)]
    write: bool,
}

/// The transport of a row.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ComparedWire {
    /// Shared memory.
    Shm,
    /// TCP through the loopback interface.
    Tcp,
    /// The same by libfabric.
    Ofi,
}

/// One row: the measurement, and the goal that it is compared with.
struct ComparisonRow {
    name: String,
    unit: &'static str,
    better: BetterDirection,
    bytes: usize,
    wire: ComparedWire,
    ours: OwnMeasure,
    peer: Option<PeerBenchmark>,
    /// The ratio to reach, if any.
    goal: Option<f64>,
    /// Our figure to reach, if any.
    own_goal: Option<f64>,
}

/// Our figure that a row shows.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OwnMeasure {
    Latency,
    OneWay,
    MessageRate,
    /// A one-sided put with its quiet, or a get.
    Remote(&'static str),
    /// A stream of those.
    RemoteStream(&'static str),
    /// Half a round trip of tagged messages inside a host, in that kind of memory.
    NearLatency(&'static str),
    /// A stream of those.
    NearStream(&'static str),
    /// Bus bandwidth of a collective on two ranks, in place or not.
    Collective(&'static str, bool),
}

/// The program that a row is compared with.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PeerBenchmark {
    /// Debian's `fi_pingpong` over the shm or the net provider.
    Pingpong,
    /// The example `raw` of `crates/ofi`: only libfabric's tagged messages.
    Raw,
    /// The same with a connection for each direction, as connections of NCCL's are.
    RawEach,
    /// The same program's round trips of messages.
    RawRound,
    /// Its streams of remote writes and reads.
    RawRemote,
    /// Debian's `ucx_perftest -t tag_bw` over posix and cma, or tcp.
    TagBandwidth,
    /// The same program's `-t tag_lat`.
    TagLatency,
    /// The copy bandwidth of one core, as our own bench measures it.
    OwnMemcpy,
    /// Our own point-to-point bandwidth in both directions at once, which is the limit of a collective.
    OwnBothWay,
}

impl PeerBenchmark {
    const fn peer_name(self, wire: ComparedWire) -> &'static str {
        match (self, wire) {
            (Self::Pingpong, ComparedWire::Shm) => "fi_pingpong -p shm",
            (Self::Pingpong, _) => "fi_pingpong -p net",
            (Self::Raw, _) => "raw libfabric",
            (Self::RawRound, _) => "raw libfabric, a message there and back",
            (Self::RawRemote, _) => "raw libfabric, writes and reads",
            (Self::RawEach, _) => "raw libfabric, a connection each way",
            (Self::TagBandwidth, ComparedWire::Shm) => "UCX tag_bw, posix,cma",
            (Self::TagBandwidth, _) => "UCX tag_bw, tcp",
            (Self::TagLatency, _) => "UCX tag_lat, posix,cma",
            (Self::OwnMemcpy, _) => "one core's memcpy",
            (Self::OwnBothWay, _) => "own p2p, both ways",
        }
    }

    /// The program that is needed, and its package.
    const fn needed_program(self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::Pingpong => Some(("fi_pingpong", "libfabric-bin")),
            Self::TagBandwidth | Self::TagLatency => Some(("ucx_perftest", "ucx-utils")),
            Self::Raw
            | Self::RawEach
            | Self::RawRound
            | Self::RawRemote
            | Self::OwnBothWay
            | Self::OwnMemcpy => None,
        }
    }
}

/// Measures every row.
///
/// # Errors
/// Ours does not build or run, or the document cannot be written. A peer that is not installed is a skip.
pub(crate) fn run(workspace: &Workspace, options: &CompareOptions) -> Result<()> {
    if options.pairs < 9 {
        eprintln!("compare: fewer than 9 pairs give unreliable medians; raise --pairs");
    }
    let packages = ["--package", "trunkline-nccl", "--package", "trunkline-cli"];
    let tool = dist::build_shipped(workspace, &packages)?.join("trunkline");
    dist::build_shipped(workspace, &["--package", "trunkline-ofi", "--example", "raw"])?;
    let mut summaries = Vec::new();
    for row in comparison_rows()
        .into_iter()
        .filter(|r| options.only.as_ref().is_none_or(|part| r.name.contains(part)))
    {
        if let Some((program, package)) = row.peer.and_then(PeerBenchmark::needed_program)
            && shell::find_program(program).is_none()
        {
            println!("SKIPPED {}: {program} is not installed (package {package})", row.name);
            continue;
        }
        eprintln!("compare: {} ...", row.name);
        let pairs = measure_row(&tool, &row, options.pairs)?;
        let summary = pairs.to_summary().with_context(|| format!("{}: no figures", row.name))?;
        summaries.push((row, summary));
    }
    println!("{}", summary_table(&summaries));
    let text = render_markdown(&summaries, options.pairs)?;
    if options.write {
        write_document(&workspace.root.join(DOCUMENT), &text)?;
    } else {
        println!("{text}");
    }
    Ok(())
}

/// Formats a size in bytes.
fn format_size(bytes: usize) -> String {
    match bytes {
        0..KIB => format!("{bytes} B"),
        KIB..MIB => format!("{} KiB", bytes / KIB),
        _ => format!("{} MiB", bytes / MIB),
    }
}

fn comparison_rows() -> Vec<ComparisonRow> {
    let row = |wire, bytes, what: &str, ours| {
        let over = match wire {
            ComparedWire::Shm => "",
            ComparedWire::Tcp => "tcp: ",
            ComparedWire::Ofi => "ofi:tcp: ",
        };
        let (unit, better) = match ours {
            OwnMeasure::Latency | OwnMeasure::Remote(_) | OwnMeasure::NearLatency(_) => {
                ("us", BetterDirection::Lower)
            }
            OwnMeasure::MessageRate => ("million/s", BetterDirection::Higher),
            OwnMeasure::OneWay
            | OwnMeasure::RemoteStream(_)
            | OwnMeasure::NearStream(_)
            | OwnMeasure::Collective(..) => ("GB/s", BetterDirection::Higher),
        };
        let peer = match ours {
            OwnMeasure::Remote(_) => Some(PeerBenchmark::RawRound),
            OwnMeasure::RemoteStream(_) => Some(PeerBenchmark::RawRemote),
            _ if wire == ComparedWire::Ofi => Some(PeerBenchmark::Raw),
            OwnMeasure::Latency => Some(PeerBenchmark::Pingpong),
            OwnMeasure::NearLatency(_) => Some(PeerBenchmark::TagLatency),
            OwnMeasure::OneWay | OwnMeasure::NearStream(_) => Some(PeerBenchmark::TagBandwidth),
            OwnMeasure::MessageRate => None,
            OwnMeasure::Collective(..) => Some(PeerBenchmark::OwnBothWay),
        };
        let name = format!("{over}{} {what}", format_size(bytes));
        ComparisonRow { name, unit, better, bytes, wire, ours, peer, goal: None, own_goal: None }
    };
    let latency = |wire, bytes, goal, own_goal| ComparisonRow {
        goal,
        own_goal,
        ..row(wire, bytes, "half round trip", OwnMeasure::Latency)
    };
    let rate = |wire, goal| ComparisonRow {
        own_goal: Some(goal),
        ..row(wire, 8, "messages", OwnMeasure::MessageRate)
    };
    let shm = |bytes| ComparisonRow {
        goal: Some(1.75),
        ..row(ComparedWire::Shm, bytes, "stream", OwnMeasure::OneWay)
    };
    let tcp = |bytes, goal| ComparisonRow {
        own_goal: Some(goal),
        ..row(ComparedWire::Tcp, bytes, "stream", OwnMeasure::OneWay)
    };
    let collective = |name: &'static str, in_place| {
        let what = format!("{name}{}", if in_place { " in place" } else { "" });
        ComparisonRow {
            goal: Some(0.85),
            ..row(ComparedWire::Shm, 16 * MIB, &what, OwnMeasure::Collective(name, in_place))
        }
    };
    let mut rows = vec![
        latency(ComparedWire::Shm, 8, Some(0.75), Some(0.20)),
        latency(ComparedWire::Shm, 64 * KIB, None, Some(4.0)),
        rate(ComparedWire::Shm, 5.0),
    ];
    rows.extend([64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB].map(shm));
    rows.extend([collective("sendrecv", false), collective("all_gather", true)]);
    rows.extend(
        [(8, 4.8), (4 * KIB, 5.3), (64 * KIB, 10.4)]
            .map(|(bytes, goal)| latency(ComparedWire::Tcp, bytes, None, Some(goal))),
    );
    rows.push(rate(ComparedWire::Tcp, 0.51));
    let streams = [(64 * KIB, 5.22), (256 * KIB, 8.91), (MIB, 9.39), (16 * MIB, 6.8), (64 * MIB, 5.81)];
    rows.extend(streams.map(|(bytes, goal)| tcp(bytes, goal)));
    rows.extend(
        [(8, 1.08), (64 * KIB, 1.05)]
            .map(|(bytes, goal)| latency(ComparedWire::Ofi, bytes, Some(goal), None)),
    );
    let each = row(ComparedWire::Ofi, 8, "half round trip, a connection each way", OwnMeasure::Latency);
    rows.push(ComparisonRow { peer: Some(PeerBenchmark::RawEach), ..each });
    rows.push(ComparisonRow {
        goal: Some(0.95),
        ..row(ComparedWire::Ofi, 8, "messages", OwnMeasure::MessageRate)
    });
    for (what, name) in [("put and quiet", "put"), ("get", "get")] {
        rows.push(ComparisonRow {
            goal: Some(1.15),
            ..row(ComparedWire::Ofi, 8, what, OwnMeasure::Remote(name))
        });
    }
    for (what, name) in [("stream of puts", "put"), ("stream of gets", "get")] {
        let streams = [64 * KIB, 256 * KIB, MIB]
            .map(|bytes| row(ComparedWire::Ofi, bytes, what, OwnMeasure::RemoteStream(name)));
        rows.extend(streams.map(|row| ComparisonRow { goal: Some(0.95), ..row }));
    }
    rows.extend(near_rows(row));
    rows
}

/// Tagged messages inside a host.
fn near_rows(row: impl Fn(ComparedWire, usize, &str, OwnMeasure) -> ComparisonRow) -> Vec<ComparisonRow> {
    let named = |memory: &'static str, bytes, what: &str, ours, goal| {
        let row = row(ComparedWire::Shm, bytes, &format!("{what} of {memory} memory"), ours);
        ComparisonRow { name: format!("messages: {}", row.name), goal: Some(goal), ..row }
    };
    let latency = |bytes| named("host", bytes, "half round trip", OwnMeasure::NearLatency("host"), 1.0);
    let stream =
        |memory, goal| move |bytes| named(memory, bytes, "stream", OwnMeasure::NearStream(memory), goal);
    let mut rows: Vec<ComparisonRow> = [8, 4 * KIB].map(latency).into();
    rows.extend([64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB].map(stream("host", 1.75)));
    // The other method for private memory; which of the two is faster depends on the machine.
    let by_kernel = [64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB].map(stream("cma", 1.0));
    rows.extend(by_kernel.map(|row| ComparisonRow { goal: None, ..row }));
    rows.extend([64 * KIB, 256 * KIB, MIB, 4 * MIB].map(stream("memfd", 3.0)));
    let whole = stream("memfd", 0.9)(16 * MIB);
    rows.push(ComparisonRow { peer: Some(PeerBenchmark::OwnMemcpy), ..whole });
    rows
}

/// Runs the pairs, alternating which side runs first.
fn measure_row(tool: &Path, row: &ComparisonRow, count: usize) -> Result<FigurePairs> {
    let mut pairs = FigurePairs::default();
    for turn in 0..count {
        let ours_first = turn % 2 == 0;
        let early = ours_first.then(|| measure_ours(tool, row)).transpose()?;
        let theirs = row.peer.map(|peer| measure_peer(tool, peer, row)).transpose()?;
        let ours = match early {
            Some(ours) => ours,
            None => measure_ours(tool, row)?,
        };
        pairs.push(ours, theirs);
    }
    Ok(pairs)
}

fn measure_ours(tool: &Path, row: &ComparisonRow) -> Result<f64> {
    let p2p = || ours::point_to_point(tool, row.wire, row.bytes);
    match row.ours {
        OwnMeasure::Latency => Ok(p2p()?.latency_us),
        OwnMeasure::OneWay => Ok(p2p()?.bandwidth_gbps),
        OwnMeasure::MessageRate => Ok(p2p()?.messages_million),
        OwnMeasure::Remote(name) => Ok(ours::bench_remote(tool, row.wire, name, row.bytes)?.time_us),
        OwnMeasure::RemoteStream(name) => Ok(ours::bench_remote(tool, row.wire, name, row.bytes)?.gbs),
        OwnMeasure::NearLatency(memory) => Ok(ours::bench_messages(tool, memory, row.bytes)?.0.latency_us),
        OwnMeasure::NearStream(memory) => Ok(ours::bench_messages(tool, memory, row.bytes)?.0.bandwidth_gbps),
        OwnMeasure::Collective(name, in_place) => ours::collective_gbps(tool, name, row.bytes, in_place),
    }
}

fn measure_peer(tool: &Path, peer: PeerBenchmark, row: &ComparisonRow) -> Result<f64> {
    let each = peer == PeerBenchmark::RawEach;
    let raw = tool.with_file_name("examples").join("raw");
    let of_raw = || peers::measure_raw(&raw, row.bytes, each);
    match peer {
        PeerBenchmark::Pingpong => peers::pingpong_us(row.wire, row.bytes),
        PeerBenchmark::Raw if row.ours == OwnMeasure::MessageRate => Ok(of_raw()?.messages_million),
        PeerBenchmark::Raw | PeerBenchmark::RawEach => Ok(of_raw()?.latency_us),
        PeerBenchmark::RawRound => Ok(2.0 * of_raw()?.latency_us),
        PeerBenchmark::RawRemote => {
            let gets = row.ours == OwnMeasure::RemoteStream("get");
            let streams = peers::raw_streams(&raw, row.bytes)?;
            Ok(streams[usize::from(gets)])
        }
        PeerBenchmark::TagBandwidth => peers::tag_bandwidth_gbps(row.wire, row.bytes),
        PeerBenchmark::TagLatency => peers::tag_latency_us(row.bytes),
        PeerBenchmark::OwnMemcpy => Ok(ours::bench_messages(tool, "memfd", row.bytes)?.1),
        PeerBenchmark::OwnBothWay => Ok(ours::point_to_point(tool, row.wire, row.bytes)?.both_way_gbps),
    }
}

/// The cells of one row after its name, for both kinds of table.
fn row_cells(row: &ComparisonRow, summary: &PairSummary) -> [String; 5] {
    let number = |value: f64| if value < 10.0 { format!("{value:.2}") } else { format!("{value:.1}") };
    let spread = |[low, high]: [f64; 2]| format!("{} to {}", number(low), number(high));
    let ours = format!("{} {} ({})", number(summary.ours), row.unit, spread(summary.ours_spread));
    let Some(theirs) = &summary.theirs else {
        return [ours, "-".to_owned(), "-".to_owned(), "-".to_owned(), goal_verdict(row, summary)];
    };
    let peer = row.peer.map(|peer| peer.peer_name(row.wire)).unwrap_or_default();
    [
        ours,
        format!("{} {} ({})", number(theirs.median), row.unit, spread(theirs.spread)),
        format!("{:.2} ({:.2} to {:.2})", theirs.ratio, theirs.ratio_spread[0], theirs.ratio_spread[1]),
        peer.to_owned(),
        goal_verdict(row, summary),
    ]
}

/// Each goal, and whether it is reached.
fn goal_verdict(row: &ComparisonRow, summary: &PairSummary) -> String {
    let word =
        |value: f64, goal: f64| if row.better.reaches_goal(value, goal) { "reached" } else { "missed" };
    let ratio = row.goal.zip(summary.theirs.as_ref());
    let ratio = ratio.map(|(goal, theirs)| format!("ratio {goal}: {}", word(theirs.ratio, goal)));
    let own = row.own_goal.map(|goal| format!("{goal} {}: {}", row.unit, word(summary.ours, goal)));
    [ratio, own].into_iter().flatten().collect::<Vec<_>>().join(", ")
}

const HEADER: [&str; 6] = ["", "ours", "peer", "ratio", "whose", "goal"];

fn summary_table(summaries: &[(ComparisonRow, PairSummary)]) -> Table {
    let mut table = Table::new();
    table.set_header(HEADER);
    for (row, summary) in summaries {
        let mut line = vec![row.name.clone()];
        line.extend(row_cells(row, summary));
        table.add_row(line);
    }
    table
}

fn render_markdown(summaries: &[(ComparisonRow, PairSummary)], pairs: usize) -> Result<String> {
    let mut text = format!(
        "{} on {}, {pairs} pairs a row, medians (smallest to largest):\n\n",
        machine_name(),
        current_date()?
    );
    writeln!(text, "| {} |\n|{}", HEADER.join(" | "), " --- |".repeat(HEADER.len()))?;
    for (row, summary) in summaries {
        writeln!(text, "| {} | {} |", row.name, row_cells(row, summary).join(" | "))?;
    }
    Ok(text)
}

/// Processor and number of cores.
fn machine_name() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model =
        info.lines().find_map(|l| l.strip_prefix("model name")?.split_once(':').map(|(_, m)| m.trim()));
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    format!("{cores} cores of {}", model.unwrap_or("an unnamed processor"))
}

/// The date, in the format of documents.
pub(crate) fn current_date() -> Result<String> {
    Ok(shell::run_captured(std::process::Command::new("date").arg("+%Y-%m-%d"))?.trim().to_owned())
}

fn write_document(path: &Path, figures: &str) -> Result<()> {
    write_between(path, [BEGIN, END], figures)
}

/// Replaces the text between two markers.
fn write_between(path: &Path, [begin, end]: [&str; 2], figures: &str) -> Result<()> {
    let text = std::fs::read_to_string(path).with_context(|| format!("reading {DOCUMENT}"))?;
    let Some((before, rest)) = text.split_once(begin) else { bail!("{DOCUMENT} lacks {begin}") };
    let Some((_, after)) = rest.split_once(end) else { bail!("{DOCUMENT} lacks {end}") };
    std::fs::write(path, format!("{before}{begin}\n{figures}{end}{after}"))
        .with_context(|| format!("writing {DOCUMENT}"))
}
