//! `cargo xtask compare`: ours against libfabric and UCX over shared memory and TCP loopback, and over libfabric against a
//! program that asks it for nothing but messages; in turns, as ratios.
//!
//! Called by people who changed something that should be faster. It gates nothing; `--write` puts the figures
//! into docs/performance.md.

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
use stats::{Better, Pairs, Summary};

/// Where `--write` puts the figures, relative to the root, and between which markers.
const DOCUMENT: &str = "docs/performance.md";
const BEGIN: &str = "<!-- compare:begin -->";
const END: &str = "<!-- compare:end -->";

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// What is asked for on the command line.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Pairs of runs for each row, ours and the peer's in turns.
    #[arg(long, default_value_t = 9)]
    pairs: usize,
    /// Only rows whose name contains this.
    #[arg(long, value_name = "PART")]
    only: Option<String>,
    /// Writes the figures into docs/performance.md.
    #[arg(long)]
    write: bool,
}

/// What carries the bytes of a row.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wire {
    /// Shared memory.
    Shm,
    /// TCP through the loopback interface.
    Tcp,
    /// The same by libfabric.
    Ofi,
}

/// One row: what is measured, and the bar it is held against.
struct Row {
    name: String,
    unit: &'static str,
    better: Better,
    bytes: usize,
    wire: Wire,
    ours: Ours,
    peer: Option<Peer>,
    /// The ratio to reach, if there is one.
    goal: Option<f64>,
    /// The own figure to reach, if there is one.
    own_goal: Option<f64>,
}

/// What of ours a row shows.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ours {
    Latency,
    OneWay,
    MessageRate,
    /// A one-sided put with its quiet, or a get.
    Remote(&'static str),
    /// A stream of those.
    RemoteStream(&'static str),
    /// Half a round trip of tagged messages inside a host, of that memory.
    NearLatency(&'static str),
    /// A stream of those.
    NearStream(&'static str),
    /// Bus bandwidth of a collective on two ranks, in place or not.
    Collective(&'static str, bool),
}

/// Whom a row is compared with.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Peer {
    /// Debian's `fi_pingpong` over the shm or the net provider.
    Pingpong,
    /// The example `raw` of `crates/ofi`: libfabric's tagged messages and nothing else.
    Raw,
    /// The same with a connection for each direction, as connections of NCCL's are.
    RawEach,
    /// The same program's round trips of messages.
    RawRound,
    /// And its streams of remote writes and reads.
    RawRemote,
    /// Debian's `ucx_perftest -t tag_bw` over posix and cma, or tcp.
    TagBandwidth,
    /// The same program's `-t tag_lat`.
    TagLatency,
    /// What one core copies, as our own bench tells.
    OwnMemcpy,
    /// Our own point-to-point bandwidth, both ways at once: what a collective could reach.
    OwnBothWay,
}

impl Peer {
    const fn name(self, wire: Wire) -> &'static str {
        match (self, wire) {
            (Self::Pingpong, Wire::Shm) => "fi_pingpong -p shm",
            (Self::Pingpong, _) => "fi_pingpong -p net",
            (Self::Raw, _) => "raw libfabric",
            (Self::RawRound, _) => "raw libfabric, a message there and back",
            (Self::RawRemote, _) => "raw libfabric, writes and reads",
            (Self::RawEach, _) => "raw libfabric, a connection each way",
            (Self::TagBandwidth, Wire::Shm) => "UCX tag_bw, posix,cma",
            (Self::TagBandwidth, _) => "UCX tag_bw, tcp",
            (Self::TagLatency, _) => "UCX tag_lat, posix,cma",
            (Self::OwnMemcpy, _) => "one core's memcpy",
            (Self::OwnBothWay, _) => "own p2p, both ways",
        }
    }

    /// Program and package.
    const fn needs(self) -> Option<(&'static str, &'static str)> {
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
/// When ours does not build or run, or the document cannot be written. A peer that is not installed is a skip.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    if options.pairs < 9 {
        eprintln!("compare: fewer than 9 pairs say little");
    }
    let packages = ["--package", "trunkline-nccl", "--package", "trunkline-cli"];
    let tool = dist::build_shipped(workspace, &packages)?.join("trunkline");
    dist::build_shipped(workspace, &["--package", "trunkline-ofi", "--example", "raw"])?;
    let mut summaries = Vec::new();
    for row in rows().into_iter().filter(|r| options.only.as_ref().is_none_or(|part| r.name.contains(part))) {
        if let Some((program, package)) = row.peer.and_then(Peer::needs)
            && shell::which(program).is_none()
        {
            println!("SKIPPED {}: {program} is not installed (package {package})", row.name);
            continue;
        }
        eprintln!("compare: {} ...", row.name);
        let pairs = measure(&tool, &row, options.pairs)?;
        let summary = pairs.summary().with_context(|| format!("{}: no figures", row.name))?;
        summaries.push((row, summary));
    }
    println!("{}", table(&summaries));
    let text = markdown(&summaries, options.pairs)?;
    if options.write {
        write_document(&workspace.root.join(DOCUMENT), &text)?;
    } else {
        println!("{text}");
    }
    Ok(())
}

/// Bytes, as people say them.
fn said(bytes: usize) -> String {
    match bytes {
        0..KIB => format!("{bytes} B"),
        KIB..MIB => format!("{} KiB", bytes / KIB),
        _ => format!("{} MiB", bytes / MIB),
    }
}

fn rows() -> Vec<Row> {
    let row = |wire, bytes, what: &str, ours| {
        let over = match wire {
            Wire::Shm => "",
            Wire::Tcp => "tcp: ",
            Wire::Ofi => "ofi:tcp: ",
        };
        let (unit, better) = match ours {
            Ours::Latency | Ours::Remote(_) | Ours::NearLatency(_) => ("us", Better::Lower),
            Ours::MessageRate => ("million/s", Better::Higher),
            Ours::OneWay | Ours::RemoteStream(_) | Ours::NearStream(_) | Ours::Collective(..) => {
                ("GB/s", Better::Higher)
            }
        };
        let peer = match ours {
            Ours::Remote(_) => Some(Peer::RawRound),
            Ours::RemoteStream(_) => Some(Peer::RawRemote),
            _ if wire == Wire::Ofi => Some(Peer::Raw),
            Ours::Latency => Some(Peer::Pingpong),
            Ours::NearLatency(_) => Some(Peer::TagLatency),
            Ours::OneWay | Ours::NearStream(_) => Some(Peer::TagBandwidth),
            Ours::MessageRate => None,
            Ours::Collective(..) => Some(Peer::OwnBothWay),
        };
        let name = format!("{over}{} {what}", said(bytes));
        Row { name, unit, better, bytes, wire, ours, peer, goal: None, own_goal: None }
    };
    let latency = |wire, bytes, goal, own_goal| Row {
        goal,
        own_goal,
        ..row(wire, bytes, "half round trip", Ours::Latency)
    };
    let rate = |wire, goal| Row { own_goal: Some(goal), ..row(wire, 8, "messages", Ours::MessageRate) };
    let shm = |bytes| Row { goal: Some(1.75), ..row(Wire::Shm, bytes, "stream", Ours::OneWay) };
    let tcp = |bytes, goal| Row { own_goal: Some(goal), ..row(Wire::Tcp, bytes, "stream", Ours::OneWay) };
    let collective = |name: &'static str, in_place| {
        let what = format!("{name}{}", if in_place { " in place" } else { "" });
        Row { goal: Some(0.85), ..row(Wire::Shm, 16 * MIB, &what, Ours::Collective(name, in_place)) }
    };
    let mut rows = vec![
        latency(Wire::Shm, 8, Some(0.75), Some(0.20)),
        latency(Wire::Shm, 64 * KIB, None, Some(4.0)),
        rate(Wire::Shm, 5.0),
    ];
    rows.extend([64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB].map(shm));
    rows.extend([collective("sendrecv", false), collective("all_gather", true)]);
    rows.extend(
        [(8, 4.8), (4 * KIB, 5.3), (64 * KIB, 10.4)]
            .map(|(bytes, goal)| latency(Wire::Tcp, bytes, None, Some(goal))),
    );
    rows.push(rate(Wire::Tcp, 0.51));
    let streams = [(64 * KIB, 5.22), (256 * KIB, 8.91), (MIB, 9.39), (16 * MIB, 6.8), (64 * MIB, 5.81)];
    rows.extend(streams.map(|(bytes, goal)| tcp(bytes, goal)));
    rows.extend(
        [(8, 1.08), (64 * KIB, 1.05)].map(|(bytes, goal)| latency(Wire::Ofi, bytes, Some(goal), None)),
    );
    let each = row(Wire::Ofi, 8, "half round trip, a connection each way", Ours::Latency);
    rows.push(Row { peer: Some(Peer::RawEach), ..each });
    rows.push(Row { goal: Some(0.95), ..row(Wire::Ofi, 8, "messages", Ours::MessageRate) });
    for (what, name) in [("put and quiet", "put"), ("get", "get")] {
        rows.push(Row { goal: Some(1.15), ..row(Wire::Ofi, 8, what, Ours::Remote(name)) });
    }
    for (what, name) in [("stream of puts", "put"), ("stream of gets", "get")] {
        let streams =
            [64 * KIB, 256 * KIB, MIB].map(|bytes| row(Wire::Ofi, bytes, what, Ours::RemoteStream(name)));
        rows.extend(streams.map(|row| Row { goal: Some(0.95), ..row }));
    }
    rows.extend(near(row));
    rows
}

/// Tagged messages inside a host.
fn near(row: impl Fn(Wire, usize, &str, Ours) -> Row) -> Vec<Row> {
    let named = |memory: &'static str, bytes, what: &str, ours, goal| {
        let row = row(Wire::Shm, bytes, &format!("{what} of {memory} memory"), ours);
        Row { name: format!("messages: {}", row.name), goal: Some(goal), ..row }
    };
    let latency = |bytes| named("host", bytes, "half round trip", Ours::NearLatency("host"), 1.0);
    let stream = |memory, goal| move |bytes| named(memory, bytes, "stream", Ours::NearStream(memory), goal);
    let mut rows: Vec<Row> = [8, 4 * KIB].map(latency).into();
    rows.extend([64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB].map(stream("host", 1.75)));
    // The other way of private memory; which of the two is the faster one depends on the machine.
    let by_kernel = [64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB].map(stream("cma", 1.0));
    rows.extend(by_kernel.map(|row| Row { goal: None, ..row }));
    rows.extend([64 * KIB, 256 * KIB, MIB, 4 * MIB].map(stream("memfd", 3.0)));
    let whole = stream("memfd", 0.9)(16 * MIB);
    rows.push(Row { peer: Some(Peer::OwnMemcpy), ..whole });
    rows
}

/// Runs the pairs, the one that goes first changing each time.
fn measure(tool: &Path, row: &Row, count: usize) -> Result<Pairs> {
    let mut pairs = Pairs::default();
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

fn measure_ours(tool: &Path, row: &Row) -> Result<f64> {
    let p2p = || ours::point_to_point(tool, row.wire, row.bytes);
    match row.ours {
        Ours::Latency => Ok(p2p()?.latency_us),
        Ours::OneWay => Ok(p2p()?.bandwidth_gbps),
        Ours::MessageRate => Ok(p2p()?.messages_million),
        Ours::Remote(name) => Ok(ours::remote(tool, row.wire, name, row.bytes)?.time_us),
        Ours::RemoteStream(name) => Ok(ours::remote(tool, row.wire, name, row.bytes)?.gbs),
        Ours::NearLatency(memory) => Ok(ours::messages(tool, memory, row.bytes)?.0.latency_us),
        Ours::NearStream(memory) => Ok(ours::messages(tool, memory, row.bytes)?.0.bandwidth_gbps),
        Ours::Collective(name, in_place) => ours::collective_gbps(tool, name, row.bytes, in_place),
    }
}

fn measure_peer(tool: &Path, peer: Peer, row: &Row) -> Result<f64> {
    let each = peer == Peer::RawEach;
    let raw = tool.with_file_name("examples").join("raw");
    let of_raw = || peers::raw(&raw, row.bytes, each);
    match peer {
        Peer::Pingpong => peers::pingpong_us(row.wire, row.bytes),
        Peer::Raw if row.ours == Ours::MessageRate => Ok(of_raw()?.messages_million),
        Peer::Raw | Peer::RawEach => Ok(of_raw()?.latency_us),
        Peer::RawRound => Ok(2.0 * of_raw()?.latency_us),
        Peer::RawRemote => {
            let gets = row.ours == Ours::RemoteStream("get");
            let streams = peers::raw_streams(&raw, row.bytes)?;
            Ok(streams[usize::from(gets)])
        }
        Peer::TagBandwidth => peers::tag_bandwidth_gbps(row.wire, row.bytes),
        Peer::TagLatency => peers::tag_latency_us(row.bytes),
        Peer::OwnMemcpy => Ok(ours::messages(tool, "memfd", row.bytes)?.1),
        Peer::OwnBothWay => Ok(ours::point_to_point(tool, row.wire, row.bytes)?.both_way_gbps),
    }
}

/// The cells of one row after its name, for both kinds of table.
fn cells(row: &Row, summary: &Summary) -> [String; 5] {
    let number = |value: f64| if value < 10.0 { format!("{value:.2}") } else { format!("{value:.1}") };
    let spread = |[low, high]: [f64; 2]| format!("{} to {}", number(low), number(high));
    let ours = format!("{} {} ({})", number(summary.ours), row.unit, spread(summary.ours_spread));
    let Some(theirs) = &summary.theirs else {
        return [ours, "-".to_owned(), "-".to_owned(), "-".to_owned(), verdict(row, summary)];
    };
    let peer = row.peer.map(|peer| peer.name(row.wire)).unwrap_or_default();
    [
        ours,
        format!("{} {} ({})", number(theirs.median), row.unit, spread(theirs.spread)),
        format!("{:.2} ({:.2} to {:.2})", theirs.ratio, theirs.ratio_spread[0], theirs.ratio_spread[1]),
        peer.to_owned(),
        verdict(row, summary),
    ]
}

/// Each goal and whether it is reached.
fn verdict(row: &Row, summary: &Summary) -> String {
    let word = |value: f64, goal: f64| if row.better.reaches(value, goal) { "reached" } else { "missed" };
    let ratio = row.goal.zip(summary.theirs.as_ref());
    let ratio = ratio.map(|(goal, theirs)| format!("ratio {goal}: {}", word(theirs.ratio, goal)));
    let own = row.own_goal.map(|goal| format!("{goal} {}: {}", row.unit, word(summary.ours, goal)));
    [ratio, own].into_iter().flatten().collect::<Vec<_>>().join(", ")
}

const HEADER: [&str; 6] = ["", "ours", "peer", "ratio", "whose", "goal"];

fn table(summaries: &[(Row, Summary)]) -> Table {
    let mut table = Table::new();
    table.set_header(HEADER);
    for (row, summary) in summaries {
        let mut line = vec![row.name.clone()];
        line.extend(cells(row, summary));
        table.add_row(line);
    }
    table
}

fn markdown(summaries: &[(Row, Summary)], pairs: usize) -> Result<String> {
    let mut text =
        format!("{} on {}, {pairs} pairs a row, medians (smallest to largest):\n\n", machine(), today()?);
    writeln!(text, "| {} |\n|{}", HEADER.join(" | "), " --- |".repeat(HEADER.len()))?;
    for (row, summary) in summaries {
        writeln!(text, "| {} | {} |", row.name, cells(row, summary).join(" | "))?;
    }
    Ok(text)
}

/// Processor and number of cores.
fn machine() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model =
        info.lines().find_map(|l| l.strip_prefix("model name")?.split_once(':').map(|(_, m)| m.trim()));
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    format!("{cores} cores of {}", model.unwrap_or("an unnamed processor"))
}

/// The date, as documents have it.
pub(crate) fn today() -> Result<String> {
    Ok(shell::output(std::process::Command::new("date").arg("+%Y-%m-%d"))?.trim().to_owned())
}

fn write_document(path: &Path, figures: &str) -> Result<()> {
    write_between(path, [BEGIN, END], figures)
}

/// Replaces what stands between two marks.
fn write_between(path: &Path, [begin, end]: [&str; 2], figures: &str) -> Result<()> {
    let text = std::fs::read_to_string(path).with_context(|| format!("reading {DOCUMENT}"))?;
    let Some((before, rest)) = text.split_once(begin) else { bail!("{DOCUMENT} lacks {begin}") };
    let Some((_, after)) = rest.split_once(end) else { bail!("{DOCUMENT} lacks {end}") };
    std::fs::write(path, format!("{before}{begin}\n{figures}{end}{after}"))
        .with_context(|| format!("writing {DOCUMENT}"))
}
