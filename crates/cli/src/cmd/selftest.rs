//! `trunkline selftest`: the arguments, and their meaning. Called by `cmd`; the `selftest` module runs the checks.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, value_parser};
use thiserror::Error;

use crate::job::{self, LaunchedJobError};
use crate::locate::{self, LocateError};
use crate::own_settings::named_fabric;
use crate::run::hosts::{self, HostsError};
use crate::selftest::catalog::{CheckOptions, HostPair, PlannedCheck, plan_checks};
use crate::selftest::facts::collect_facts;
use crate::selftest::hardware::HostHardware;
use crate::selftest::redact::ReportRedactor;
use crate::selftest::report::{CheckStatus, ReportOptions, SelftestReport};
use crate::selftest::{self, TimeLimits};

/// The variable that names a fabric.
/// After a signal, the exit status is this plus its number, as shells have it.
const SIGNALLED: i32 = 128;

const EXAMPLES: &str = "\
Examples:
  trunkline selftest --report report.md        all checks; paste report.md into an issue
  trunkline selftest --hosts a,b --report report.md
                                               also between two hosts, by ssh without a password
  trunkline selftest --list                    list the checks, and those that cannot run here
  trunkline selftest --only verbs,gpu-cuda     all checks of InfiniBand and RoCE, and one of NVIDIA GPUs
  TRUNKLINE_FABRIC=verbs:mlx5_1 trunkline selftest
                                               one fabric or device

For a host with an RDMA NIC (InfiniBand, RoCE, EFA, Slingshot) or a GPU. A selftest takes at most ten
minutes, needs no root, and changes nothing on the host. Each check is a benchmark in separate processes,
with a time limit, and verifies every byte. Important checks run first; a failed check does not stop the
others. A SKIPPED row names the missing hardware or library. The checks of the software NIC (soft) run
everywhere, for comparison.

The report is Markdown: hardware and versions of the host, a row per check with its main figures, and the
last lines of errors. A JSON file beside it has all figures. Names of hosts and users, IP addresses and
paths in the home folder are removed unless --names is given. Read the report before you post it.

The exit status is 0 if no check failed, 1 if one failed, 2 for a usage error.";

/// Arguments of `selftest`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct SelftestArgs {
    /// Write the report to this file, which is replaced [default: standard output].
    #[arg(long, value_name = "FILE.md")]
    report: Option<PathBuf>,
    /// Write the report as JSON to this file, which is replaced [default: the name of --report with .json].
    #[arg(long, value_name = "FILE.json")]
    json: Option<PathBuf>,
    /// List the checks, and run none.
    #[arg(long)]
    list: bool,
    /// Run only these checks, separated by commas; a prefix (verbs, soft) selects all its checks [default: all].
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    only: Vec<String>,
    /// Use small sizes and few iterations.
    #[arg(long)]
    quick: bool,
    /// Also check between these two hosts, as `trunkline run --hosts`.
    #[arg(long, value_name = "A,B")]
    hosts: Option<String>,
    /// Reach hosts by this command, as `trunkline run --rsh` [default: ssh -o BatchMode=yes].
    #[arg(long, value_name = "CMD", requires = "hosts")]
    rsh: Option<String>,
    /// Run this path as trunkline on both hosts, as `trunkline run --remote-trunkline` [default: the same path as
    /// here].
    #[arg(long, value_name = "PATH", requires = "hosts")]
    remote_trunkline: Option<String>,
    /// Connect the second host to this address of the first, as `trunkline run --address` [default: its name, or
    /// one of its addresses].
    #[arg(long, value_name = "ADDR", requires = "hosts")]
    address: Option<String>,
    /// Keep names of hosts and users, IP addresses and paths of the home folder in the report.
    #[arg(long)]
    names: bool,
    /// Stop after this many seconds; the remaining checks are listed as not reached.
    #[arg(long, value_name = "S", default_value_t = 600, value_parser = value_parser!(u64).range(1..=86_400))]
    limit: u64,
    /// Fail a check after this many seconds.
    #[arg(long, value_name = "S", default_value_t = 90, value_parser = value_parser!(u64).range(1..=86_400))]
    check_limit: u64,
    /// Root of the host's files: `/`, or a folder with a copy of them.
    #[arg(long, value_name = "DIR", default_value = "/", hide = true)]
    root: PathBuf,
}

/// An error before the checks run, or while the report is written.
#[derive(Debug, Error)]
#[non_exhaustive]
pub(crate) enum SelftestError {
    /// There is no plugin to check.
    #[error(transparent)]
    Locate(#[from] LocateError),
    /// The launcher's variables contradict each other.
    #[error(transparent)]
    Job(#[from] LaunchedJobError),
    /// The hosts cannot be used.
    #[error(transparent)]
    Hosts(#[from] HostsError),
    /// The report cannot be written.
    #[error("cannot write the report to {}: {source}", .path.display())]
    Report {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The checks cannot be run.
    #[error("cannot run the checks: {0}")]
    Run(#[source] io::Error),
    /// Standard output cannot be written.
    #[error("cannot write: {0}")]
    Print(#[from] io::Error),
    /// The JSON cannot be made.
    #[error("cannot write JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// Two arguments contradict each other.
    #[error("{0}")]
    Usage(String),
}

/// Runs the subcommand; the exit status shows whether a check failed.
pub(crate) fn run_selftest(args: &SelftestArgs) -> Result<ExitCode, SelftestError> {
    if job::is_launched()? {
        let told = "selftest starts its ranks itself; run it without a launcher";
        return Err(SelftestError::Usage(told.to_owned()));
    }
    let named_hosts = named_hosts(args)?;
    let hardware = HostHardware::read_host(&args.root);
    let checks = chosen_checks(args, plan_checks(&check_options(args, &named_hosts), &hardware))?;
    if args.list {
        return list_checks(&checks);
    }
    locate::find_plugin(None)?;
    let files = ReportFiles::new(args)?;
    let whole = Duration::from_secs(args.limit);
    let limits = TimeLimits { whole, check: Duration::from_secs(args.check_limit) };
    let outcome = selftest::run_checks(&checks, limits).map_err(SelftestError::Run)?;

    let options = ReportOptions { quick: args.quick, limit_s: args.limit, names: args.names };
    let mut report = SelftestReport::new(options, collect_facts(&hardware, args.names), outcome.checks);
    let redactor =
        if args.names { ReportRedactor::keeping_names() } else { ReportRedactor::of_system(&named_hosts) };
    report.redact(&redactor);
    files.write_reports(&report)?;
    eprintln!("trunkline: selftest: {}", report.summary_line());
    Ok(match outcome.signal {
        Some(signal) => ExitCode::from(u8::try_from(SIGNALLED + signal).unwrap_or(1)),
        None if report.count_checks(CheckStatus::Failed) > 0 => ExitCode::FAILURE,
        None => ExitCode::SUCCESS,
    })
}

fn named_hosts(args: &SelftestArgs) -> Result<Vec<String>, SelftestError> {
    let Some(list) = &args.hosts else { return Ok(Vec::new()) };
    let placed = hosts::place_ranks(Some(2), Some(list))?;
    if placed.len() != 2 {
        return Err(SelftestError::Usage(format!(
            "--hosts {list} does not name two hosts; write --hosts a,b"
        )));
    }
    Ok(placed.into_iter().map(|host| host.name).collect())
}

fn check_options(args: &SelftestArgs, named_hosts: &[String]) -> CheckOptions {
    let own = std::env::current_exe().unwrap_or_default().display().to_string();
    let given =
        [("--rsh", &args.rsh), ("--remote-trunkline", &args.remote_trunkline), ("--address", &args.address)];
    let options =
        given.iter().filter_map(|(name, value)| Some([(*name).to_owned(), value.as_ref()?.clone()]));
    let two_hosts = args.hosts.as_ref().zip(named_hosts.last()).map(|(both, second)| HostPair {
        both: both.clone(),
        second: if second.contains(':') { format!("[{second}]") } else { second.clone() },
        options: options.flatten().collect(),
    });
    CheckOptions {
        quick: args.quick,
        two_hosts,
        program: args.remote_trunkline.clone().unwrap_or(own),
        fabric: named_fabric(),
    }
}

/// The checks that `--only` selects.
fn chosen_checks(args: &SelftestArgs, checks: Vec<PlannedCheck>) -> Result<Vec<PlannedCheck>, SelftestError> {
    let is_of = |check: &PlannedCheck, name: &str| {
        check.name == name || check.name.strip_prefix(name).is_some_and(|rest| rest.starts_with('-'))
    };
    if let Some(unknown) = args.only.iter().find(|name| !checks.iter().any(|check| is_of(check, name))) {
        let names: Vec<&str> = checks.iter().map(|check| &*check.name).collect();
        let told = format!("--only {unknown}: unknown check; use one of {}", names.join(", "));
        return Err(SelftestError::Usage(told));
    }
    let is_chosen =
        |check: &PlannedCheck| args.only.is_empty() || args.only.iter().any(|name| is_of(check, name));
    Ok(checks.into_iter().filter(is_chosen).collect())
}

fn list_checks(checks: &[PlannedCheck]) -> Result<ExitCode, SelftestError> {
    let mut out = io::stdout().lock();
    let widest = checks.iter().map(|check| check.name.len()).max().unwrap_or(0);
    for check in checks {
        let skipped = check.missing.as_ref().map_or_else(String::new, |why| format!(" (SKIPPED: {why})"));
        writeln!(out, "{:<widest$}  {}{skipped}", check.name, check.about)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The files of a report.
struct ReportFiles {
    markdown: Option<PathBuf>,
    json: Option<PathBuf>,
}

impl ReportFiles {
    /// Creates the files before the checks run, because a report that cannot be written would waste ten minutes.
    fn new(args: &SelftestArgs) -> Result<Self, SelftestError> {
        let beside = args.report.as_ref().map(|path| path.with_extension("json"));
        let files = Self { markdown: args.report.clone(), json: args.json.clone().or(beside) };
        if files.markdown.is_some() && files.markdown == files.json {
            let told = "--report and --json name the same file; end the name of the report in .md";
            return Err(SelftestError::Usage(told.to_owned()));
        }
        for path in files.markdown.iter().chain(&files.json) {
            write_file(path, "")?;
        }
        Ok(files)
    }

    fn write_reports(&self, report: &SelftestReport) -> Result<(), SelftestError> {
        if let Some(path) = &self.json {
            write_file(path, &(serde_json::to_string_pretty(report)? + "\n"))?;
        }
        let Some(path) = &self.markdown else {
            io::stdout().lock().write_all(report.to_markdown().as_bytes())?;
            return Ok(());
        };
        write_file(path, &report.to_markdown())?;
        eprintln!("trunkline: the report is in {}; read it, then paste it into an issue", path.display());
        Ok(())
    }
}

fn write_file(path: &Path, text: &str) -> Result<(), SelftestError> {
    std::fs::write(path, text).map_err(|source| SelftestError::Report { path: path.to_owned(), source })
}
