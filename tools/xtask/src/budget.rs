//! `cargo xtask budget`: compares the cost of one message in instructions and system calls with
//! tools/xtask/budget.toml.
//!
//! Called by developers and by `./test`. Runs a small program that moves messages through the plugin's C table inside
//! one process, under valgrind and under strace; two runs of different lengths differ by the messages alone. Before it
//! trusts either counter, it plants work and a system call that the counter must detect.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::thread;

use anyhow::{Context as _, Result, bail};
use comfy_table::Table;
use serde::Deserialize;

use crate::profile::ObjectProfile;
use crate::report::{self, CheckFindings};
use crate::shell;
use crate::workspace::Workspace;

/// The file of the limits, relative to the root.
const LIMITS: &str = "tools/xtask/budget.toml";
/// Percentage above the measured cost that `--update` allows.
const HEADROOM: u64 = 5;
/// Percentage below a limit at which the limit must be lowered.
const SLACK: u64 = 15;
/// Percentage by which costs that must be equal may differ.
const ALIKE: u64 = 1;
/// Orders that move no messages: lookups of exports, and quiets.
const LOOKUPS: [&str; 5] = ["recent", "indexed", "share", "resolve", "quiet"];

/// Orders that are calls of OpenSHMEM, by a program in C.
const CALLS: &str = "shmem_";
/// The source of that program, and the folder of the header that it includes.
const CALLS_SOURCE: [&str; 2] = ["tools/xtask/src/calls.c", "crates/shmem/include"];
/// OpenSHMEM's library.
const OPENSHMEM: &str = "libtrunkline_shmem.so";

/// Orders that the example `messages` of `node` knows.
const MESSAGES: [&str; 1] = ["near"];
/// Orders that the example `one_sided` of `runtime` knows: one-sided calls of front ends.
const ONE_SIDED: &str = "rma_";
/// Orders that the example `entries` of `device` knows: entries of device queues.
const ENTRIES: &str = "device_";
/// Calls per message that count as none: timed calls that a longer run makes in addition.
const NO_CALLS: f64 = 0.05;
/// The plugin's file; only its instructions are counted if another library does the rest.
const PLUGIN: &str = "libtrunkline_nccl.so";
/// Runs whose system calls are counted for one figure.
const CALL_RUNS: u32 = 3;
/// Figures that are measured if one is over its limit.
const CALL_TRIES: u32 = 3;
/// Time limit of a run in seconds; a longer run hangs.
const RUN_SECONDS: &str = "120";
/// Fixes the CPU features, because glibc would otherwise choose copy routines by machine, and callgrind counts those.
const TUNABLES: &str = "glibc.cpu.hwcaps=-AVX2_Usable,-AVX2,-AVX512F,-AVX512VL,-ERMS,-FSRM,-AVX_Fast_Unaligned_Load\
                        :glibc.cpu.x86_non_temporal_threshold=0xc0000";

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CostLimits {
    cycle: Vec<MessageCycle>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct MessageCycle {
    name: String,
    order: String,
    bytes: u64,
    messages: u64,
    #[serde(default)]
    settings: BTreeMap<String, String>,
    same_as: Option<String>,
    eighth_of: Option<String>,
    within: Option<String>,
    instructions: u64,
    system_calls: Option<u64>,
}

/// The measured cost of one message; `None` if the counter is missing or does not apply.
#[derive(Debug, Default, Clone, Copy)]
struct CycleCost {
    instructions: Option<u64>,
    system_calls: Option<f64>,
}

/// The built programs and libraries.
struct BuiltPrograms {
    program: PathBuf,
    /// Executes the orders that move no messages.
    lookups: PathBuf,
    /// Sends tagged messages inside one process.
    messages: PathBuf,
    /// Posts entries of device queues inside one process.
    entries: PathBuf,
    one_sided: PathBuf,
    /// Calls OpenSHMEM; `None` without a C compiler.
    calls: Option<PathBuf>,
    plugin: PathBuf,
    /// A folder with a library that stands for libibverbs, whose devices are connected to each other inside a process;
    /// `None` without a C compiler and its header.
    devices: Option<PathBuf>,
}

/// The source of that library, and the versions of its symbols.
const DEVICES: [&str; 2] =
    ["testing/integration/tests/gpu/fake_verbs.c", "testing/integration/tests/gpu/fake_verbs.map"];

type CostCounter = fn(&mut Command, &[String], &MessageCycle) -> Result<u64>;

/// Counts and compares, or rewrites the limits; `false` if a cost is over its limit.
///
/// # Errors
/// The programs cannot be built or run, or their output cannot be parsed.
pub(crate) fn run(workspace: &Workspace, update: bool) -> Result<bool> {
    let path = workspace.root.join(LIMITS);
    let text = std::fs::read_to_string(&path).with_context(|| format!("reading {LIMITS}"))?;
    let limits: CostLimits = toml::from_str(&text).with_context(|| format!("parsing {LIMITS}"))?;
    let built = build(workspace)?;
    let mut findings = CheckFindings::default();
    let valgrind = check_counter("valgrind", "work", &built, &limits, run_callgrind, &mut findings)?;
    let strace = check_counter("strace", "syscall", &built, &limits, run_strace, &mut findings)?;
    let wanted = limits.cycle.iter().map(|cycle| can_run(&built, cycle)).collect::<Vec<_>>();
    let mut costs = vec![CycleCost::default(); limits.cycle.len()];
    if valgrind {
        count_instructions(&built, &limits, &wanted, &mut costs)?;
    }
    for ((cycle, wanted), cost) in limits.cycle.iter().zip(&wanted).zip(&mut costs) {
        if let Some(limit) = cycle.system_calls.filter(|_| strace && *wanted) {
            cost.system_calls = Some(fewest_calls(&built, cycle, limit)?);
        }
    }
    if update && valgrind {
        std::fs::write(&path, update_limits(&text, &costs)?).with_context(|| format!("writing {LIMITS}"))?;
    } else {
        limits.cycle.iter().zip(&costs).for_each(|(cycle, cost)| compare_cost(cycle, *cost, &mut findings));
        compare_alike(&limits, &costs, &mut findings)?;
    }
    println!("{}", cost_table(&limits, &costs));
    findings.print_report("budget");
    let failed = findings.broken.len();
    let counted =
        costs.iter().map(|c| usize::from(c.instructions.is_some()) + usize::from(c.system_calls.is_some()));
    report::print_result_line(counted.sum::<usize>().saturating_sub(failed), failed);
    Ok(failed == 0)
}

/// Whether the programs that a cycle needs were built; otherwise prints the missing ones.
fn can_run(built: &BuiltPrograms, cycle: &MessageCycle) -> bool {
    if wants_devices(cycle) && built.devices.is_none() {
        return report_skip(&cycle.name, "no C compiler, or no header of libibverbs");
    }
    if is_call(cycle) && built.calls.is_none() {
        return report_skip(&cycle.name, "no C compiler");
    }
    if !over_libfabric(cycle) {
        return true;
    }
    match run_plain(built, cycle) {
        Ok(()) => true,
        Err(error) => report_skip(&cycle.name, &format!("{error:#}")),
    }
}

/// Counts instructions of all cycles, one cycle per processor at a time, because an instruction count does not depend
/// on other processes. System calls do, so they are counted one cycle at a time.
fn count_instructions(
    built: &BuiltPrograms,
    limits: &CostLimits,
    wanted: &[bool],
    costs: &mut [CycleCost],
) -> Result<()> {
    let pairs = limits.cycle.iter().zip(costs);
    let wanted = pairs.zip(wanted).filter(|(_, wanted)| **wanted).map(|(pair, _)| pair);
    let left: Mutex<Vec<(&MessageCycle, &mut CycleCost)>> = Mutex::new(wanted.collect());
    let take = || left.lock().unwrap_or_else(PoisonError::into_inner).pop();
    let work = || -> Result<()> {
        while let Some((cycle, cost)) = take() {
            let counter = if over_libfabric(cycle) { instructions_of_plugin } else { run_callgrind };
            cost.instructions = Some(per_message(built, cycle, "", counter)?.round() as u64);
        }
        Ok(())
    };
    let workers = thread::available_parallelism().map_or(1, NonZero::get);
    thread::scope(|scope| {
        let running: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        running.into_iter().try_for_each(|one| one.join().unwrap_or_else(|_| bail!("a worker panicked")))
    })
}

/// Builds the programs and the plugin, optimized, for any processor.
fn build(workspace: &Workspace) -> Result<BuiltPrograms> {
    let packages = [
        "-p",
        "trunkline-nccl",
        "-p",
        "trunkline-nccl-host",
        "-p",
        "trunkline-proto",
        "-p",
        "trunkline-node",
        "-p",
        "trunkline-device",
        "-p",
        "trunkline-runtime",
        "-p",
        "trunkline-shmem",
    ];
    let examples = ["cycle", "lookup", "messages", "entries", "one_sided"];
    let begin = ["build", "--quiet", "--profile", "budget", "--lib"].into_iter();
    let wanted = examples.iter().flat_map(|name| ["--example", name]);
    let args: Vec<&str> = begin.chain(packages).chain(wanted).collect();
    shell::run_cargo(&workspace.root, &args)?;
    let dir = workspace.target.join("budget");
    let plugin = dir.join(PLUGIN);
    let [program, lookups, messages, entries, one_sided] =
        examples.map(|name| dir.join("examples").join(name));
    Ok(BuiltPrograms {
        program,
        lookups,
        messages,
        entries,
        one_sided,
        plugin,
        calls: build_calls(&workspace.root, &dir),
        devices: build_devices(&workspace.root, &dir.join("devices")),
    })
}

/// Builds the library that stands for libibverbs, in a folder of its own.
fn build_devices(root: &Path, folder: &Path) -> Option<PathBuf> {
    let library = "libibverbs.so.1";
    std::fs::create_dir_all(folder).ok()?;
    let mut cc = Command::new("cc");
    cc.args(["-O2", "-shared", "-fPIC", "-o"]).arg(folder.join(library));
    cc.arg(root.join(DEVICES[0])).arg(format!("-Wl,-soname,{library}"));
    cc.arg(format!("-Wl,--version-script,{}", root.join(DEVICES[1]).display()));
    shell::run_captured(&mut cc).ok().map(|_| folder.to_owned())
}

/// Builds the program that calls OpenSHMEM's functions.
fn build_calls(root: &Path, dir: &Path) -> Option<PathBuf> {
    let program = dir.join("calls");
    let [source, headers] = CALLS_SOURCE.map(|path| root.join(path));
    let mut cc = Command::new("cc");
    cc.arg("-O2").arg("-I").arg(headers).arg(source).arg("-o").arg(&program).arg(dir.join(OPENSHMEM));
    cc.arg(format!("-Wl,-rpath,{}", dir.display()));
    shell::run_captured(&mut cc).ok().map(|_| program)
}

/// Whether the cycle is a call of OpenSHMEM.
fn is_call(cycle: &MessageCycle) -> bool {
    cycle.order.starts_with(CALLS)
}

/// Whether the cycle uses RDMA devices.
fn wants_devices(cycle: &MessageCycle) -> bool {
    cycle.settings.get("TRUNKLINE_FABRIC").is_some_and(|fabric| fabric == "verbs")
}

/// Whether the cycle uses libfabric.
fn over_libfabric(cycle: &MessageCycle) -> bool {
    cycle.settings.get("TRUNKLINE_FABRIC").is_some_and(|fabric| fabric.starts_with("ofi"))
}

/// Whether a counter is installed and detects the work planted in the first cycle.
fn check_counter(
    tool: &str,
    plant: &str,
    built: &BuiltPrograms,
    limits: &CostLimits,
    counter: CostCounter,
    findings: &mut CheckFindings,
) -> Result<bool> {
    if shell::find_program(tool).is_none() {
        return Ok(report_skip(tool, "it is not installed"));
    }
    let Some(cycle) = limits.cycle.first() else { bail!("{LIMITS} contains no cycle") };
    let honest = match per_message(built, cycle, "", counter) {
        Ok(honest) => honest,
        // A container may forbid tracing; the program itself runs.
        Err(error) if tool == "strace" && run_plain(built, cycle).is_ok() => {
            return Ok(report_skip(tool, &format!("it cannot trace here: {error:#}")));
        }
        Err(error) => return Err(error),
    };
    let planted = per_message(built, cycle, plant, counter)?;
    let noticed = planted >= honest * (1.0 + HEADROOM as f64 / 100.0) && planted > honest + 0.9;
    if !noticed {
        findings.add_finding(
            tool,
            format!("the counter did not detect a planted {plant}: {honest:.2} without and {planted:.2} with it, per message"),
        );
    }
    println!("check budget {tool} detects a planted {plant} ... {}", if noticed { "ok" } else { "FAILED" });
    Ok(true)
}

fn report_skip(tool: &str, reason: &str) -> bool {
    println!("SKIPPED budget {tool}: {reason}");
    report::log_skip(&format!("budget {tool}"), reason);
    false
}

/// The amount that one message adds to a counter.
fn per_message(
    built: &BuiltPrograms,
    cycle: &MessageCycle,
    plant: &str,
    counter: CostCounter,
) -> Result<f64> {
    let count = |messages: u64| {
        let program = match cycle.order.as_str() {
            order if order.starts_with(CALLS) => built.calls.as_ref().unwrap_or(&built.program),
            order if LOOKUPS.contains(&order) => &built.lookups,
            order if MESSAGES.contains(&order) => &built.messages,
            order if order.starts_with(ENTRIES) => &built.entries,
            order if order.starts_with(ONE_SIDED) => &built.one_sided,
            _ => &built.program,
        };
        let mut words = vec![program.display().to_string(), built.plugin.display().to_string()];
        words.extend([cycle.order.clone(), cycle.bytes.to_string(), messages.to_string()]);
        let mut command = Command::new("env");
        for (name, value) in cycle_environment(cycle, plant) {
            command.arg(format!("{name}={value}"));
        }
        if let Some(devices) = built.devices.as_ref().filter(|_| wants_devices(cycle)) {
            // The host of these devices has no GPU.
            command.arg(format!("LD_LIBRARY_PATH={}", devices.display())).arg("FAKE_VERBS_DMABUF=0");
        }
        command.args(["timeout", RUN_SECONDS]);
        counter(&mut command, &words, cycle)
    };
    let short = count(cycle.messages)?;
    let long = count(2 * cycle.messages)?;
    Ok((long as f64 - short as f64).max(0.0) / cycle.messages as f64)
}

/// The environment of a cycle: shared memory, copies through the ring (a measurement at start would choose by the
/// clock), and no eager messages if the direct path is meant; then the cycle's own settings.
fn cycle_environment<'a>(cycle: &'a MessageCycle, plant: &str) -> BTreeMap<&'a str, String> {
    let eager = if cycle.order == "eager" { "4096" } else { "0" };
    let usual = [
        ("TRUNKLINE_FABRIC", "soft:shm"),
        ("TRUNKLINE_SOFT_COPY", "staging"),
        ("TRUNKLINE_EAGER_MAX", eager),
        ("TRUNKLINE_PLANT", plant),
        ("GLIBC_TUNABLES", TUNABLES),
    ];
    let own = cycle.settings.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    usual.into_iter().chain(own).map(|(name, value)| (name, value.to_owned())).collect()
}

fn run_plain(built: &BuiltPrograms, cycle: &MessageCycle) -> Result<()> {
    per_message(built, cycle, "", |command, words, _| shell::run_captured(command.args(words)).map(|_| 0))
        .map(drop)
}

/// Counts the instructions of a whole run, or of the cycle's function in it, by callgrind.
fn run_callgrind(command: &mut Command, words: &[String], cycle: &MessageCycle) -> Result<u64> {
    let log = tempfile::NamedTempFile::new().context("a temporary file")?;
    let log_option = format!("--log-file={}", log.path().display());
    command.args(["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", &log_option]);
    // The name is a part of a longer symbol in the program.
    command.args(cycle.within.as_ref().map(|name| format!("--toggle-collect=*{name}*")));
    shell::run_captured(command.args(words))?;
    let text = read_log(log.path())?;
    parse_collected(&text).with_context(|| format!("callgrind printed no count: {text}"))
}

/// Counts the instructions of the plugin itself, without the library below it.
fn instructions_of_plugin(command: &mut Command, words: &[String], _: &MessageCycle) -> Result<u64> {
    let out = tempfile::NamedTempFile::new().context("a temporary file")?;
    let option = format!("--callgrind-out-file={}", out.path().display());
    command.args(["valgrind", "--tool=callgrind", "--log-file=/dev/null", &option]);
    shell::run_captured(command.args(words))?;
    Ok(ObjectProfile::parse(&read_log(out.path())?)?.object_cost(PLUGIN))
}

/// The count in a line like `==17== Collected : 4711`.
fn parse_collected(text: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.contains("Collected :"))?;
    line.rsplit(':').next()?.trim().parse().ok()
}

/// Counts the system calls of a whole run, of all its threads: the minimum of some runs, because set-up waits for the
/// clock, which only adds calls.
fn run_strace(command: &mut Command, words: &[String], _: &MessageCycle) -> Result<u64> {
    let log = tempfile::NamedTempFile::new().context("a temporary file")?;
    let out = log.path().display().to_string();
    command.args(["strace", "-f", "-c", "-o", &out]).args(words);
    let mut fewest = u64::MAX;
    for _ in 0..CALL_RUNS {
        shell::run_captured(command)?;
        let text = read_log(log.path())?;
        let found = parse_total(&text).with_context(|| format!("strace printed no total: {text}"))?;
        fewest = fewest.min(found);
    }
    Ok(fewest)
}

/// System calls per message. A figure over the limit is measured again: a call that each message makes occurs each
/// time, and one that the clock caused does not.
fn fewest_calls(built: &BuiltPrograms, cycle: &MessageCycle, limit: u64) -> Result<f64> {
    let mut fewest = f64::INFINITY;
    for _ in 0..CALL_TRIES {
        fewest = fewest.min(per_message(built, cycle, "", run_strace)?);
        if fewest <= limit as f64 + NO_CALLS {
            break;
        }
    }
    Ok(fewest)
}

/// The calls in the last line of strace's table: time, seconds, microseconds a call, calls, perhaps errors, `total`.
fn parse_total(text: &str) -> Option<u64> {
    let line = text.lines().rev().find(|line| line.trim_end().ends_with(" total"))?;
    line.split_whitespace().nth(3)?.parse().ok()
}

fn read_log(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).context("reading back a log")
}

fn compare_cost(cycle: &MessageCycle, cost: CycleCost, findings: &mut CheckFindings) {
    let mut check = |what: &str, found: f64, limit: u64, allowed: f64| {
        let within = found <= limit as f64 + allowed;
        println!("check budget {} {what} ... {}", cycle.name, if within { "ok" } else { "FAILED" });
        if !within {
            findings.add_finding(
                &cycle.name,
                format!(
                    "{found:.2} {what} per message, the limit is {limit}; find the cause, or run --update"
                ),
            );
        }
    };
    if let Some(found) = cost.instructions {
        check("instructions", found as f64, cycle.instructions, 0.0);
    }
    if let (Some(found), Some(limit)) = (cost.system_calls, cycle.system_calls) {
        check("system calls", found, limit, NO_CALLS);
    }
    if cost.instructions.is_some_and(|found| found * 100 < cycle.instructions * (100 - SLACK)) {
        findings.add_note(format!("{}: far below its limit; --update records the lower cost", cycle.name));
    }
}

/// Compares the costs of cycles that must have a given relation.
fn compare_alike(limits: &CostLimits, costs: &[CycleCost], findings: &mut CheckFindings) -> Result<()> {
    for (cycle, cost) in limits.cycle.iter().zip(costs) {
        let wanted = [(&cycle.same_as, CostRelation::Same), (&cycle.eighth_of, CostRelation::Eighth)];
        for (name, likeness) in wanted.into_iter().filter_map(|(name, how)| Some((name.as_ref()?, how))) {
            let other = limits.cycle.iter().zip(costs).find(|(other, _)| other.name == *name);
            let other =
                other.with_context(|| format!("{LIMITS}: {} names a row that does not exist", cycle.name))?.1;
            let (Some(one), Some(other)) = (cost.instructions, other.instructions) else { continue };
            let holds = likeness.is_met(one, other);
            println!(
                "check budget {} {likeness} {name} ... {}",
                cycle.name,
                if holds { "ok" } else { "FAILED" }
            );
            if !holds {
                findings.add_finding(
                    &cycle.name,
                    format!("{one} instructions per message; {name} needs {other}"),
                );
            }
        }
    }
    Ok(())
}

/// The required relation between the costs of two cycles.
#[derive(Clone, Copy)]
enum CostRelation {
    Same,
    Eighth,
}

impl CostRelation {
    const fn is_met(self, one: u64, other: u64) -> bool {
        match self {
            Self::Same => one.abs_diff(other) * 100 <= other * ALIKE,
            Self::Eighth => one * 8 <= other,
        }
    }
}

impl std::fmt::Display for CostRelation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Same => "as many instructions as",
            Self::Eighth => "at most an eighth of",
        })
    }
}

/// The file with new limits, otherwise unchanged.
fn update_limits(text: &str, costs: &[CycleCost]) -> Result<String> {
    let mut out = String::new();
    let mut costs = costs.iter();
    for line in text.lines() {
        if line.starts_with("instructions = ") {
            let found = costs.next().and_then(|cost| cost.instructions).context("more limits than cycles")?;
            writeln!(out, "instructions = {}", found + found * HEADROOM / 100)?;
        } else {
            writeln!(out, "{line}")?;
        }
    }
    Ok(out)
}

fn cost_table(limits: &CostLimits, costs: &[CycleCost]) -> Table {
    let mut table = Table::new();
    table.set_header(["message", "instructions", "limit", "system calls", "limit"]);
    let or_dash = |value: Option<String>| value.unwrap_or_else(|| "-".into());
    for (cycle, cost) in limits.cycle.iter().zip(costs) {
        table.add_row([
            cycle.name.clone(),
            or_dash(cost.instructions.map(|n| n.to_string())),
            cycle.instructions.to_string(),
            or_dash(cost.system_calls.map(|n| format!("{n:.3}"))),
            or_dash(cycle.system_calls.map(|n| n.to_string())),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cycle() -> MessageCycle {
        toml::from_str(
            "name = 'a'\norder = 'eager'\nbytes = 8\nmessages = 10\ninstructions = 1000\nsystem_calls = 0",
        )
        .unwrap()
    }

    #[test]
    fn counts_are_parsed_from_tool_output() {
        assert_eq!(parse_collected("==1== Events : Ir\n==1== Collected : 4711\n"), Some(4711));
        let strace = "% time     seconds  usecs/call     calls    errors syscall\n\
                      100.00    0.000000           0         3         1 read\n\
                      100.00    0.001000           1        45         6 total\n";
        assert_eq!((parse_total(strace), parse_total("nothing")), (Some(45), None));
    }

    #[test]
    fn cycle_settings_override_the_defaults() {
        let cycle: MessageCycle = toml::from_str(
            "name = 'a'\norder = 'direct'\nbytes = 8\nmessages = 10\ninstructions = 1\n\
             settings = { TRUNKLINE_FABRIC = 'soft:tcp', TRUNKLINE_MATCH = 'nic' }",
        )
        .unwrap();
        let set = cycle_environment(&cycle, "work");
        let of = |name: &str| set.get(name).map(String::as_str);
        assert_eq!((of("TRUNKLINE_FABRIC"), of("TRUNKLINE_MATCH")), (Some("soft:tcp"), Some("nic")));
        assert_eq!((of("TRUNKLINE_EAGER_MAX"), of("TRUNKLINE_PLANT")), (Some("0"), Some("work")));
    }

    #[test]
    fn costs_over_their_limit_are_found() {
        let found = |instructions, system_calls| {
            let mut findings = CheckFindings::default();
            compare_cost(&cycle(), CycleCost { instructions, system_calls }, &mut findings);
            (findings.broken.len(), findings.notes.len())
        };
        assert_eq!(found(Some(1000), Some(0.01)), (0, 0));
        assert_eq!(found(Some(1001), Some(1.0)), (2, 0));
        assert_eq!(found(Some(500), None), (0, 1));
        assert_eq!(found(None, None), (0, 0));
    }

    #[test]
    fn unequal_costs_are_found() {
        let like = |name: &str| MessageCycle { name: "b".into(), same_as: Some(name.into()), ..cycle() };
        let found = |name, two| {
            let mut findings = CheckFindings::default();
            let cost = |instructions| CycleCost { instructions: Some(instructions), system_calls: None };
            let limits = CostLimits { cycle: vec![cycle(), like(name)] };
            compare_alike(&limits, &[cost(1000), cost(two)], &mut findings).map(|()| findings.broken.len())
        };
        let counts = [990, 1010, 989, 1011].map(|two| found("a", two).unwrap());
        assert_eq!(counts, [0, 0, 1, 1]);
        assert!(found("c", 1000).is_err());
    }

    #[test]
    fn costs_over_an_eighth_are_found() {
        let part = MessageCycle { name: "b".into(), eighth_of: Some("a".into()), ..cycle() };
        let limits = CostLimits { cycle: vec![cycle(), part] };
        let found = |part| {
            let cost = |instructions| CycleCost { instructions: Some(instructions), system_calls: None };
            let mut findings = CheckFindings::default();
            compare_alike(&limits, &[cost(1000), cost(part)], &mut findings).map(|()| findings.broken.len())
        };
        assert_eq!([1, 125, 126].map(|part| found(part).unwrap()), [0, 0, 1]);
    }

    #[test]
    fn an_update_changes_the_limits_only() {
        let cost = CycleCost { instructions: Some(200), system_calls: None };
        let text = "# head\ninstructions = 7\nbytes = 8\n";
        assert_eq!(update_limits(text, &[cost]).unwrap(), "# head\ninstructions = 210\nbytes = 8\n");
        assert!(update_limits(text, &[]).is_err());
    }
}
