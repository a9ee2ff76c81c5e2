//! `cargo xtask mutants`: every planted bug in tools/xtask/mutants.toml must be noticed by its test.
//!
//! Called by people and by `./test`. One build with the `mutants` features, in a target folder of its own so that
//! no product file ever holds a planted bug; then the test programs are run directly, once for each row.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use comfy_table::Table;
use serde::Deserialize;

use crate::report;
use crate::shell::{self, ProgramEnd};
use crate::suite::{self, TestProgram};
use crate::workspace::{Workspace, long_name};

/// Where the rows stand, relative to the root.
const ROWS: &str = "tools/xtask/mutants.toml";

/// The cargo feature that compiles planted bugs in.
const FEATURE: &str = "mutants";

/// What a row breaks that tries another row's bug.
const AGAIN: &str = "(see its own row)";

/// Chooses the planted bug at run time.
const CHOICE: &str = "TRUNKLINE_MUTANT";

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct MutantRows {
    #[serde(default)]
    mutant: Vec<MutantRow>,
}

/// One planted bug, or several that one test notices; mutants.toml explains the fields.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct MutantRow {
    #[serde(default)]
    name: String,
    #[serde(default)]
    breaks: String,
    /// Names and what they break, instead of one name; gone once the table is parsed.
    #[serde(default)]
    bugs: BTreeMap<String, String>,
    /// Bugs of other rows that this test notices as well; gone like those.
    #[serde(default)]
    also: Vec<String>,
    planted: String,
    package: Option<String>,
    #[serde(default = "MutantRow::lib")]
    target: String,
    test: String,
    #[serde(default)]
    exact: bool,
    #[serde(default)]
    env: BTreeMap<String, String>,
    #[serde(default)]
    build: Vec<String>,
    #[serde(default = "MutantRow::default_limit")]
    limit_s: u64,
}

impl MutantRow {
    fn lib() -> String {
        "lib".to_owned()
    }

    const fn default_limit() -> u64 {
        120
    }

    /// A row for each bug.
    fn expand_row(mut self) -> Result<Vec<Self>> {
        let bugs = std::mem::take(&mut self.bugs);
        let also = std::mem::take(&mut self.also);
        if !also.is_empty() && bugs.is_empty() && self.name.is_empty() {
            let row = |name| Self { name, breaks: AGAIN.to_owned(), ..self.clone() };
            return Ok(also.into_iter().map(row).collect());
        }
        if !also.is_empty()
            || self.name.is_empty() == bugs.is_empty()
            || self.name.is_empty() != self.breaks.is_empty()
        {
            bail!(
                "{ROWS}: a row has either `name` and `breaks`, or `bugs`, or `also`: {} {bugs:?}",
                self.name
            );
        }
        if bugs.is_empty() {
            return Ok(vec![self]);
        }
        let row = |(name, breaks)| Self { name, breaks, ..self.clone() };
        Ok(bugs.into_iter().map(row).collect())
    }

    fn package_name(&self) -> &str {
        self.package.as_deref().unwrap_or(&self.planted)
    }
}

/// What became of one row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MutantVerdict {
    /// The test failed with the bug and passes without.
    Killed,
    /// As `Killed`, by never ending.
    KilledByLimit,
    /// Not beside another row, but as `Killed` or `KilledByLimit` with the machine to itself.
    KilledAlone,
    /// The test passes with the bug too.
    Survived,
    /// The test fails without the bug.
    BrokenTest,
    /// The filter matches no test.
    NoTest,
}

impl MutantVerdict {
    const fn is_good(self) -> bool {
        matches!(self, Self::Killed | Self::KilledByLimit | Self::KilledAlone)
    }

    /// Whether a row that had company may come to something else without.
    const fn is_open(self) -> bool {
        matches!(self, Self::Survived | Self::BrokenTest)
    }

    const fn verdict_text(self) -> &'static str {
        match self {
            Self::Killed => "killed",
            Self::KilledByLimit => "killed (time limit)",
            Self::KilledAlone => "killed (alone)",
            Self::Survived => "SURVIVED",
            Self::BrokenTest => "TEST FAILS WITHOUT IT",
            Self::NoTest => "NO SUCH TEST",
        }
    }
}

/// A share of the rows: that of this number, from 0, of so many. Rows of one package are together, so that few have to be built.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct RowShare {
    number: usize,
    of: usize,
}

impl RowShare {
    /// Leaves the rows of this share, and no others.
    fn retain_share(self, rows: &mut Vec<MutantRow>) {
        rows.sort_by(|a, b| (a.package_name(), &a.target).cmp(&(b.package_name(), &b.target)));
        let from = |number: usize| rows.len() * number / self.of;
        let range = from(self.number)..from(self.number + 1);
        *rows = rows.drain(range).collect();
    }
}

impl std::str::FromStr for RowShare {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once('/').and_then(|(n, of)| Some((n.parse().ok()?, of.parse().ok()?)));
        let share = parts.map(|(number, of)| Self { number, of }).filter(|share| share.number < share.of);
        share.ok_or_else(|| format!("{text} is no share; 0/3, 1/3 and 2/3 are the three thirds"))
    }
}

/// Runs all rows, or those whose name contains `only` and that are in the share; `false` when one is not noticed.
///
/// # Errors
/// When the table is wrong, the build fails or a test cannot be started.
pub(crate) fn run(workspace: &Workspace, only: Option<&str>, share: Option<RowShare>) -> Result<bool> {
    let text =
        std::fs::read_to_string(workspace.root.join(ROWS)).with_context(|| format!("reading {ROWS}"))?;
    let mut rows = parse_rows(&text)?;
    let all = rows.len();
    rows.retain(|row| only.is_none_or(|part| row.name.contains(part)));
    if let Some(share) = share {
        share.retain_share(&mut rows);
    }
    println!("mutants: {} of {all} rows", rows.len());
    if rows.is_empty() {
        println!("mutants: no rows");
        report::print_result_line(0, 0);
        return Ok(true);
    }
    let programs = build(workspace, &rows)?;
    let verdicts = judge_alone(&rows, &programs, judge_all(&rows, &programs)?)?;
    let mut table = Table::new();
    table.set_header(["mutant", "breaks", "test", "result"]);
    for (row, verdict) in rows.iter().zip(&verdicts) {
        let which = if row.test.is_empty() { "all" } else { &row.test };
        let test = format!("{} {}: {which}", row.package_name(), row.target);
        table.add_row([&row.name, &row.breaks, &test, verdict.verdict_text()]);
    }
    let killed = verdicts.iter().filter(|verdict| verdict.is_good()).count();
    println!("{table}");
    report::print_result_line(killed, rows.len() - killed);
    Ok(killed == rows.len())
}

fn parse_rows(text: &str) -> Result<Vec<MutantRow>> {
    let rows: MutantRows = toml::from_str(text).with_context(|| format!("parsing {ROWS}"))?;
    let mut names = BTreeSet::new();
    let expanded: Result<Vec<Vec<MutantRow>>> = rows.mutant.into_iter().map(MutantRow::expand_row).collect();
    let rows = expanded?.concat();
    let (again, first): (Vec<_>, Vec<_>) = rows.iter().partition(|row| row.breaks == AGAIN);
    for row in first {
        if !names.insert(&row.name) {
            bail!("{ROWS}: {} stands there twice", row.name);
        }
    }
    if let Some(row) = again.iter().find(|row| !names.contains(&row.name)) {
        bail!("{ROWS}: {} is no bug of another row", row.name);
    }
    Ok(rows)
}

/// Test programs by (package, target); a library's target is `lib`.
#[derive(Debug, Default)]
struct TestPrograms(BTreeMap<(String, String), TestProgram>);

impl TestPrograms {
    fn find_program(&self, row: &MutantRow) -> Result<&TestProgram> {
        let key = (row.package_name().to_owned(), row.target.clone());
        self.0.get(&key).with_context(|| {
            format!("{ROWS}: {}: crate {} has no test program `{}`", row.name, row.package_name(), row.target)
        })
    }
}

/// Builds every test program the rows need, with all planted bugs compiled in.
fn build(workspace: &Workspace, rows: &[MutantRow]) -> Result<TestPrograms> {
    let target = workspace.target.join("mutants");
    take_what_is_built(&workspace.target.join("debug"), &target.join("debug"))?;
    let features = mutant_features(workspace, rows)?;
    let planted: BTreeSet<&str> = rows.iter().map(|r| r.planted.as_str()).collect();
    let extra: BTreeSet<&str> = rows.iter().flat_map(|r| &r.build).map(String::as_str).collect();
    let tested: BTreeSet<&str> = rows.iter().map(MutantRow::package_name).collect();
    let cargo = |verb: &[&str], packages: &BTreeSet<&str>| {
        let mut command = shell::cargo_command(&workspace.root);
        command.args(verb).arg("--target-dir").arg(&target);
        let selected = packages.iter().chain(&tested).chain(&planted).copied().collect::<BTreeSet<_>>();
        command.args(package_arguments(&selected, &features));
        command
    };
    if !extra.is_empty() && !cargo(&["build"], &extra).status().context("starting cargo")?.success() {
        bail!("cargo build with the planted bugs failed");
    }
    let mut command = cargo(&["test", "--no-run", "--message-format=json-render-diagnostics"], &tested);
    command.args(program_filters(workspace, rows));
    let out = command.stderr(Stdio::inherit()).output().context("starting cargo")?;
    if !out.status.success() {
        bail!("cargo test --no-run with the planted bugs failed");
    }
    programs_in(workspace, &out.stdout)
}

/// Links what plain builds have made into a target folder that is new: crates without planted bugs are the same there.
fn take_what_is_built(from: &Path, to: &Path) -> Result<()> {
    if to.exists() || !from.exists() {
        return Ok(());
    }
    for part in [".fingerprint", "build", "deps"] {
        take_all(&from.join(part), &to.join(part))
            .with_context(|| format!("linking {part} for the build"))?;
    }
    Ok(())
}

fn take_all(from: &Path, to: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in from.read_dir()? {
        let entry = entry?;
        let (entry, to) = (entry.path(), to.join(entry.file_name()));
        if entry.is_dir() {
            take_all(&entry, &to)?;
        } else if is_made_anew(&entry) {
            std::fs::hard_link(&entry, &to)?;
        } else {
            copy_as_old(&entry, &to)?;
        }
    }
    Ok(())
}

/// Whether each build replaces the file, as compilers do with what they make. What cargo notes of a build it writes over
/// in place: through a link, one folder's note would say that the other's crate is up to date.
fn is_made_anew(file: &Path) -> bool {
    match file.extension() {
        Some(extension) => ["rlib", "rmeta", "so"].iter().any(|made| extension == *made),
        // Programs.
        None => file.parent().is_some_and(|folder| folder.ends_with("deps")),
    }
}

/// Copies a file with its time, by which cargo tells what is up to date.
fn copy_as_old(from: &Path, to: &Path) -> std::io::Result<()> {
    std::fs::copy(from, to)?;
    let modified = from.metadata()?.modified()?;
    std::fs::File::options().append(true).open(to)?.set_modified(modified)
}

/// Cargo's arguments for these packages. Cargo refuses features of a package that is not selected.
fn package_arguments(packages: &BTreeSet<&str>, features: &BTreeSet<String>) -> Vec<String> {
    let chosen = packages.iter().copied().filter(|&name| features.contains(name));
    let chosen: Vec<_> = chosen.map(|name| format!("{}/{FEATURE}", long_name(name))).collect();
    let names = packages.iter().flat_map(|name| ["--package".to_owned(), long_name(name)]);
    names.chain(["--features".to_owned(), chosen.join(",")]).collect()
}

/// Cargo's arguments for the test programs that the rows name: the selected packages have many others.
fn program_filters(workspace: &Workspace, rows: &[MutantRow]) -> BTreeSet<String> {
    let filter = |row: &MutantRow| {
        let name = &row.target;
        if *name == MutantRow::lib() {
            return "--lib".to_owned();
        }
        let tests = workspace.find_crate(row.package_name()).map(|package| package.dir.join("tests"));
        let is_test = |tests: PathBuf| {
            tests.join(format!("{name}.rs")).exists() || tests.join(name).join("main.rs").exists()
        };
        let kind = if tests.is_some_and(is_test) { "test" } else { "bin" };
        format!("--{kind}={name}")
    };
    rows.iter().map(filter).collect()
}

/// The crates with the feature `mutants` that a row names: those with bugs must have it, tests and tools may.
fn mutant_features(workspace: &Workspace, rows: &[MutantRow]) -> Result<BTreeSet<String>> {
    let mut features = BTreeSet::new();
    for row in rows {
        let others = row.build.iter().map(String::as_str).chain([row.package_name()]);
        for name in others.chain([row.planted.as_str()]) {
            let package = workspace
                .find_crate(name)
                .with_context(|| format!("{ROWS}: {}: no crate {name}", row.name))?;
            if package.features.iter().any(|f| f == FEATURE) {
                features.insert(name.to_owned());
            } else if name == row.planted {
                bail!("{ROWS}: {}: crate {name} has no feature {FEATURE}", row.name);
            }
        }
    }
    Ok(features)
}

fn programs_in(workspace: &Workspace, messages: &[u8]) -> Result<TestPrograms> {
    let programs = suite::test_programs(workspace, messages)?.into_iter();
    Ok(TestPrograms(
        programs.map(|program| ((program.package.clone(), program.target.clone()), program)).collect(),
    ))
}

/// What identifies a healthy run, so that rows that share a test share it.
type RunKey = (PathBuf, String, bool, BTreeMap<String, String>);

/// What each such run came to without a bug; the row that comes first finds out, the others wait for it.
#[derive(Debug, Default)]
struct HealthyRuns(Mutex<BTreeMap<RunKey, Arc<OnceLock<Option<MutantVerdict>>>>>);

/// Judges the rows, several at a time: most of them wait for something.
fn judge_all(rows: &[MutantRow], programs: &TestPrograms) -> Result<Vec<MutantVerdict>> {
    let healthy = HealthyRuns::default();
    let next = AtomicUsize::new(0);
    let work = || -> Result<Vec<(usize, MutantVerdict)>> {
        let mut judged = Vec::new();
        while let Some((at, row)) = next_of(rows, &next) {
            let began = Instant::now();
            let verdict = judge_row(row, programs.find_program(row)?, &healthy)?;
            // What is left open is told when it has been judged alone.
            let found = if verdict.is_open() { "once more, alone" } else { verdict.verdict_text() };
            println!("mutant {} ({:.1} s) ... {found}", row.name, began.elapsed().as_secs_f64());
            judged.push((at, verdict));
        }
        Ok(judged)
    };
    // One more than there are cores, for many wait; what suffers from the company is judged again alone.
    let workers = std::thread::available_parallelism().map_or(1, usize::from) + 1;
    let mut judged = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        let ended = threads.into_iter().map(|thread| match thread.join() {
            Ok(judged) => judged,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        ended.collect::<Result<Vec<_>>>()
    })?
    .concat();
    judged.sort_unstable_by_key(|&(at, _)| at);
    Ok(judged.into_iter().map(|(_, verdict)| verdict).collect())
}

/// Judges once more what came to nothing good beside another row: many bugs need a moment of two processes to show,
/// and many tests need time.
fn judge_alone(
    rows: &[MutantRow],
    programs: &TestPrograms,
    verdicts: Vec<MutantVerdict>,
) -> Result<Vec<MutantVerdict>> {
    let healthy = HealthyRuns::default();
    let again = |(row, verdict): (&MutantRow, MutantVerdict)| {
        if !verdict.is_open() {
            return Ok(verdict);
        }
        let alone = judge_row(row, programs.find_program(row)?, &healthy)?;
        let verdict = if alone.is_good() { MutantVerdict::KilledAlone } else { alone };
        println!("mutant {} ... {}", row.name, verdict.verdict_text());
        Ok(verdict)
    };
    rows.iter().zip(verdicts).map(again).collect()
}

/// The next row that nobody has taken.
fn next_of<'a>(rows: &'a [MutantRow], next: &AtomicUsize) -> Option<(usize, &'a MutantRow)> {
    let at = next.fetch_add(1, Ordering::Relaxed);
    rows.get(at).map(|row| (at, row))
}

fn judge_row(row: &MutantRow, program: &TestProgram, healthy: &HealthyRuns) -> Result<MutantVerdict> {
    let key = (program.file.clone(), row.test.clone(), row.exact, row.env.clone());
    let known = {
        let mut runs = healthy.0.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(runs.entry(key).or_default())
    };
    let mut failed = None;
    let without = *known.get_or_init(|| {
        judge_without(row, program).unwrap_or_else(|error| {
            failed = Some(error);
            Some(MutantVerdict::BrokenTest)
        })
    });
    if let Some(error) = failed {
        return Err(error);
    }
    if let Some(verdict) = without {
        return Ok(verdict);
    }
    Ok(match run_test(row, program, Some(&row.name))?.0 {
        ProgramEnd::Passed => MutantVerdict::Survived,
        ProgramEnd::Failed => MutantVerdict::Killed,
        ProgramEnd::TimedOut => MutantVerdict::KilledByLimit,
    })
}

/// What is wrong with a row's test when no bug is chosen.
fn judge_without(row: &MutantRow, program: &TestProgram) -> Result<Option<MutantVerdict>> {
    let (ended, log) = run_test(row, program, None)?;
    Ok(match (ended, tests_run(&log)) {
        (ProgramEnd::Passed, 0) => Some(MutantVerdict::NoTest),
        (ProgramEnd::Passed, _) => None,
        _ => {
            // Set off, so that nobody takes its result line for ours.
            log.lines().for_each(|line| println!("  | {line}"));
            Some(MutantVerdict::BrokenTest)
        }
    })
}

fn run_test(row: &MutantRow, program: &TestProgram, mutant: Option<&str>) -> Result<(ProgramEnd, String)> {
    let mut command = Command::new(&program.file);
    command.arg(&row.test).args(row.exact.then_some("--exact"));
    command
        .current_dir(&program.dir)
        .env("CARGO_MANIFEST_DIR", &program.dir)
        .env_remove(CHOICE)
        .envs(&row.env);
    // A skip belongs to the plain run of the test, not to each replay.
    command.env_remove("TRUNKLINE_SKIP_LOG");
    if let Some(name) = mutant {
        command.env(CHOICE, name);
    }
    shell::run_limited(&mut command, Duration::from_secs(row.limit_s))
}

/// How many tests a libtest log says it ran.
fn tests_run(log: &str) -> usize {
    let count = |line: &str| line.strip_prefix("running ")?.split(' ').next()?.parse::<usize>().ok();
    log.lines().filter_map(count).sum()
}

#[cfg(test)]
#[path = "mutants_tests.rs"]
mod tests;
