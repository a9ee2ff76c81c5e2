//! `cargo xtask compare-shmem`: compares our OpenSHMEM with Open MPI's and, if it is installed, Sandia's, using one
//! program that is compiled with each. Runs alternate.
//!
//! Called by developers. The measurements are in shmem.c. The other libraries are Debian's (packages libopenmpi-dev and
//! openmpi-bin) and one that the caller has built; the repository contains no part of them.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use super::stats::{BetterDirection, FigurePairs};
use super::{DOCUMENT, current_date, machine_name, write_between};
use crate::workspace::Workspace;
use crate::{dist, shell};

const MARKS: [&str; 2] = ["<!-- compare-shmem:begin -->", "<!-- compare-shmem:end -->"];
/// Our library.
const OURS: &str = "libtrunkline_shmem.so";
/// Open MPI's compiler, searched in the path.
const THEIRS: &str = "oshcc";
/// The launcher of Sandia's programs: it has no launcher of its own.
const HYDRA: &str = "mpiexec.hydra";

/// The arguments of the command.
#[derive(clap::Args, Debug)]
pub(crate) struct ShmemCompareOptions {
    /// Run each library this many times.
    #[arg(long, default_value_t = 9)]
    pairs: usize,
    /// Write the figures into docs/performance.md.
    #[arg(long)]
    write: bool,
    /// Also measure Sandia OpenSHMEM, installed here. Build it with `--enable-pmi-simple --enable-ofi-mr=basic
    /// --enable-hard-polling`; MPICH's hydra starts it.
    #[arg(long, value_name = "PREFIX")]
    sandia: Option<PathBuf>,
}

/// Another library.
struct PeerLibrary {
    name: &'static str,
    compiler: PathBuf,
    /// The launcher's arguments before the number of PEs.
    launcher: &'static [&'static str],
    ends: RequiredEnd,
    /// The setups in which it is measured.
    ways: &'static [ComparedSetup],
}

/// One setup for both libraries.
struct ComparedSetup {
    title: &'static str,
    pes: usize,
    ours: &'static [(&'static str, &'static str)],
    theirs: &'static [(&'static str, &'static str)],
    /// Only figures whose names begin with one of these; all if empty.
    only: &'static [&'static str],
    /// The goals of ratios, by the beginning of a figure's name.
    goals: &'static [(&'static str, f64)],
}

const SHARED: &[(&str, f64)] = &[
    ("put+quiet", 1.0),
    ("get,", 1.0),
    ("fetch-add", 0.3),
    ("ping-pong", 0.6),
    ("put stream", 0.95),
    ("get stream", 0.95),
    ("barrier", 1.0),
    ("sum", 1.0),
];
const TCP: &[(&str, f64)] = &[("get,", 1.0), ("fetch-add", 0.85), ("put stream", 3.0), ("get stream", 3.0)];
const POINT: &[&str] = &["put", "get", "fetch-add", "ping-pong"];
const OVER_TCP: &[(&str, &str)] = &[("UCX_TLS", "tcp,self")];

const BY_RXM: &[(&str, &str)] = &[("SHMEM_OFI_PROVIDER", "tcp;ofi_rxm")];
const ALONE: &[(&str, f64)] = &[("barrier", 1.0), ("sum", 1.0)];

const OPEN_MPI_WAYS: [ComparedSetup; 4] = [
    ComparedSetup { title: "one host, 2 PEs", pes: 2, ours: &[], theirs: &[], only: &[], goals: SHARED },
    ComparedSetup {
        title: "one host, 4 PEs",
        pes: 4,
        ours: &[],
        theirs: &[],
        only: &["barrier", "sum"],
        goals: SHARED,
    },
    ComparedSetup {
        title: "soft:tcp, 2 PEs",
        pes: 2,
        ours: &[("TRUNKLINE_SHARED_HEAP", "off"), ("TRUNKLINE_FABRIC", "soft:tcp")],
        theirs: OVER_TCP,
        only: POINT,
        goals: TCP,
    },
    ComparedSetup {
        title: "ofi:tcp, 2 PEs",
        pes: 2,
        ours: &[("TRUNKLINE_SHARED_HEAP", "off"), ("TRUNKLINE_FABRIC", "ofi:tcp")],
        theirs: OVER_TCP,
        only: POINT,
        goals: &[("get,", 1.0), ("put stream", 3.0), ("get stream", 3.0)],
    },
];

/// Over TCP; in both libraries all data uses the network.
const SANDIA_WAYS: [ComparedSetup; 2] = [
    ComparedSetup {
        title: "soft:tcp, 2 PEs",
        pes: 2,
        ours: &[("TRUNKLINE_SHARED_HEAP", "off"), ("TRUNKLINE_FABRIC", "soft:tcp")],
        theirs: BY_RXM,
        only: &[],
        goals: ALONE,
    },
    ComparedSetup {
        title: "ofi:tcp, 2 PEs",
        pes: 2,
        ours: &[("TRUNKLINE_SHARED_HEAP", "off"), ("TRUNKLINE_FABRIC", "ofi:tcp")],
        theirs: BY_RXM,
        only: &[],
        goals: ALONE,
    },
];

fn peer_libraries(options: &ShmemCompareOptions) -> Vec<PeerLibrary> {
    let open_mpi = PeerLibrary {
        name: "Open MPI",
        compiler: THEIRS.into(),
        launcher: &["oshrun", "--oversubscribe", "-np"],
        ends: RequiredEnd::Anyhow,
        ways: &OPEN_MPI_WAYS,
    };
    let sandia = options.sandia.as_ref().map(|prefix| PeerLibrary {
        name: "Sandia",
        compiler: prefix.join("bin/oshcc"),
        launcher: &[HYDRA, "-n"],
        ends: RequiredEnd::Anyhow,
        ways: &SANDIA_WAYS,
    });
    std::iter::once(open_mpi).chain(sandia).collect()
}

/// Measures and prints; writes the document if requested.
///
/// # Errors
/// A program does not compile or run, or its output has no figures.
pub(crate) fn run(workspace: &Workspace, options: &ShmemCompareOptions) -> Result<()> {
    if shell::find_program(THEIRS).is_none() {
        println!(
            "SKIPPED compare-shmem: {THEIRS} is not installed (packages libopenmpi-dev and openmpi-bin)"
        );
        return Ok(());
    }
    let built =
        dist::build_shipped(workspace, &["--package", "trunkline-cli", "--package", "trunkline-shmem"])?;
    let folder = tempfile::tempdir().context("a folder for programs")?;
    let source = workspace.root.join("tools/xtask/src/compare/shmem.c");
    let compile = |compiler: &Path, name: &str| -> Result<PathBuf> {
        let out = folder.path().join(name);
        shell::run_captured(Command::new(compiler).arg("-O2").arg(&source).arg("-o").arg(&out))?;
        Ok(out)
    };
    let ours = compile(&built.join("oshcc"), "ours")?;
    shell::check_loads(&ours, &workspace.target, OURS, &built)?;
    let mut text = format!(
        "{} on {}, {} pairs a row, medians (smallest to largest):\n",
        machine_name(),
        current_date()?,
        options.pairs
    );
    println!("{text}");
    for peer in peer_libraries(options) {
        // Open MPI finds its static variables by the file's name, which must not contain a space for that.
        let theirs = compile(&peer.compiler, &peer.name.replace(' ', "-"))?;
        for way in peer.ways {
            let mut pairs: BTreeMap<String, FigurePairs> = BTreeMap::new();
            for at in 0..options.pairs {
                eprintln!("compare-shmem: {}, {}, {} of {} ...", peer.name, way.title, at + 1, options.pairs);
                let pes = way.pes.to_string();
                let mut command = shell::user_command(built.join("oshrun"), &workspace.target);
                let mine = command.args(["-n", &pes]).arg(&ours).envs(way.ours.iter().copied());
                let mine = run_figures(mine, RequiredEnd::Well)?;
                let other = run_figures(&mut theirs_by(&peer, way, &theirs), peer.ends)?;
                for (name, value) in mine {
                    let theirs = *other.get(&name).with_context(|| format!("{name}: only ours has it"))?;
                    pairs.entry(name).or_default().push(value, Some(theirs));
                }
            }
            // Each table is printed as soon as it is complete: all of them take half an hour.
            let table = render_table(peer.name, way, &pairs)?;
            println!("{table}");
            text.push_str(&table);
        }
    }
    if options.write {
        write_between(&workspace.root.join(DOCUMENT), MARKS, &text)?;
    }
    Ok(())
}

/// The command that starts another library's program.
fn theirs_by(peer: &PeerLibrary, way: &ComparedSetup, program: &Path) -> Command {
    let pes = way.pes.to_string();
    let mut command = Command::new(peer.launcher[0]);
    command.args(&peer.launcher[1..]).arg(pes).arg(program).envs(way.theirs.iter().copied());
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    command
}

/// The required exit of a program that has printed all of its figures. Open MPI's crashes in `shmem_finalize` with two
/// PEs on one host.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum RequiredEnd {
    Well,
    Anyhow,
}

/// The figures that a program prints: names and numbers.
fn run_figures(command: &mut Command, ends: RequiredEnd) -> Result<BTreeMap<String, f64>> {
    let output = command.output().with_context(|| format!("starting {command:?}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let is_whole = text.lines().any(|line| line == "end");
    if !is_whole || ends == RequiredEnd::Well && !output.status.success() {
        bail!("{command:?}: {}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    }
    let line = |line: &str| {
        line.rsplit_once(' ').and_then(|(name, value)| Some((name.to_owned(), value.parse().ok()?)))
    };
    let found: BTreeMap<String, f64> = text.lines().filter_map(line).collect();
    if found.is_empty() { bail!("it printed no figures") } else { Ok(found) }
}

fn render_table(peer: &str, way: &ComparedSetup, pairs: &BTreeMap<String, FigurePairs>) -> Result<String> {
    let mut text = String::new();
    writeln!(text, "\n| {} | ours | {peer} | ratio | goal |\n| --- | --- | --- | --- | --- |", way.title)?;
    let wanted = |name: &str| way.only.is_empty() || way.only.iter().any(|begin| name.starts_with(begin));
    for (name, pairs) in pairs.iter().filter(|(name, _)| wanted(name)) {
        let Some(summary) = pairs.to_summary() else { continue };
        let Some(theirs) = &summary.theirs else { continue };
        let is_rate = name.contains("stream");
        let unit = if is_rate { "MB/s" } else { "us" };
        let number = |value: f64| match value {
            _ if value < 0.1 => format!("{value:.4}"),
            _ if value < 10.0 => format!("{value:.3}"),
            _ => format!("{value:.1}"),
        };
        let better = if is_rate { BetterDirection::Higher } else { BetterDirection::Lower };
        let goal = way.goals.iter().find(|(begin, _)| name.starts_with(begin)).map(|(_, goal)| *goal);
        let verdict = goal.map_or_else(String::new, |goal| {
            let reached = if better.reaches_goal(theirs.ratio, goal) { "reached" } else { "missed" };
            format!("{} {goal}: {reached}", if is_rate { "at least" } else { "at most" })
        });
        writeln!(
            text,
            "| {} | {} {unit} | {} {unit} | {:.2} ({:.2} to {:.2}) | {verdict} |",
            name.trim_end_matches(',').replace(',', ", "),
            number(summary.ours),
            number(theirs.median),
            theirs.ratio,
            theirs.ratio_spread[0],
            theirs.ratio_spread[1],
        )?;
    }
    Ok(text)
}
