//! `cargo xtask conformance --src DIR`: a public suite of OpenSHMEM programs, built by our `oshcc` and run over each
//! fabric.
//!
//! Called by developers, with a checkout of openshmem-org's tests-sos beside the repository; no part of it is copied.
//! Writes docs/conformance.md with the results of this run, and the other rows unchanged.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use wait_timeout::ChildExt as _;

use crate::compare::current_date;
use crate::shell;
use crate::workspace::Workspace;

/// Folders of the suite whose programs are run.
const FOLDERS: [&str; 3] = ["unit", "spec-example", "apps"];
/// Folders whose programs are not run, and why.
const OTHER_FOLDERS: [(&str, &str); 2] =
    [("shmemx", "extensions of another library"), ("performance", "a benchmark without checks")];
/// Files that are not programs of their own, or that need a feature outside this suite.
const LEFT_OUT: [(&str, &str); 2] = [("mt_lock.c", "a part of mt_lock_test"), ("hybrid_mpi_", "MPI hybrid")];
/// Programs that share their source with another one: name, source, macros to define.
const VARIANTS: [(&str, &str, &str); 2] = [
    ("rma_coverage_pshmem", "rma_coverage.c", "-DTEST_PSHMEM"),
    ("query_thread_funneled", "query_thread.c", "-DENABLE_THREADS"),
];
/// Time limit of one program.
const LIMIT: Duration = Duration::from_secs(900);
/// How long the launcher may take to end its PEs after a signal.
const PASSES_ON: Duration = Duration::from_secs(20);
const RESULTS: &str = "docs/conformance.md";

/// The arguments of the command.
#[derive(clap::Args, Debug)]
pub(crate) struct ConformanceOptions {
    /// Read the suite from this checkout.
    #[arg(long, value_name = "DIR")]
    src: PathBuf,
    /// Run only the programs whose name contains this; the other rows stay unchanged [default: all].
    #[arg(long, value_name = "PART")]
    only: Option<String>,
    /// Run with these numbers of PEs.
    #[arg(long, value_delimiter = ',', default_value = "2,4")]
    pes: Vec<u32>,
    /// Run over these fabrics.
    #[arg(long, value_delimiter = ',', default_value = "soft:shm,soft:tcp,ofi:tcp,ofi:tcp;ofi_rxm")]
    fabrics: Vec<String>,
}

/// A program of the suite.
struct SuiteProgram {
    name: String,
    folder: &'static str,
    sources: Vec<PathBuf>,
    define: Option<&'static str>,
}

/// The library that programs must load.
const LIBRARY: &str = "libtrunkline_shmem.so";

/// One way to run a program.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
struct SuiteRunMode {
    fabric: String,
    /// Whether PEs also share memory, beside the fabric.
    shares: bool,
    pes: u32,
}

impl SuiteRunMode {
    fn mode_title(&self) -> String {
        let by = if self.shares { "shared memory" } else { &self.fabric };
        format!("{by}, {}", self.pes)
    }
}

/// Builds and runs the suite; returns whether all passed.
///
/// # Errors
/// The suite does not exist, or a file cannot be written.
pub(crate) fn run(workspace: &Workspace, options: &ConformanceOptions) -> Result<bool> {
    let packages = ["build", "--release", "--package", "trunkline-cli", "--package", "trunkline-shmem"];
    shell::run_cargo(&workspace.root, &packages)?;
    let built = workspace.target.join("release");
    let (mut programs, left_out) = list_programs(&options.src)?;
    let all: Vec<ProgramKey> =
        programs.iter().map(|program| (program.folder, program.name.clone())).collect();
    if let Some(only) = &options.only {
        programs.retain(|program| program.name.contains(only.as_str()));
    }
    ensure!(!programs.is_empty(), "no program in {} has a name that contains --only", options.src.display());
    // Describe the build before the run, because sources may change meanwhile.
    let about = RunDescription::describe_run(workspace, options, programs.len())?;
    let folder = workspace.target.join("conformance");
    fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
    let ways = run_modes(options);
    let mut results = SuiteResults::new();
    let mut failed = 0;
    for (at, program) in programs.iter().enumerate() {
        let file = folder.join(&program.name);
        let compiled = compile_program(&built, &options.src, program, &file)?;
        if compiled {
            shell::check_loads(&file, &workspace.target, LIBRARY, &built)?;
        }
        let mut row = Vec::new();
        for way in &ways {
            let result = if compiled { run_program(&built, &file, way)? } else { "does not compile".into() };
            failed += usize::from(result != "ok");
            println!("[{}/{}] {} {}: {result}", at + 1, programs.len(), program.name, way.mode_title());
            row.push(result);
        }
        results.insert((program.folder, program.name.clone()), row);
    }
    let path = workspace.root.join(RESULTS);
    if options.only.is_some() {
        // Keep the results of the other programs, if they were run in the same ways.
        take_others(&fs::read_to_string(&path).unwrap_or_default(), &ways, &all, &mut results);
    }
    let text = render_report(&about, &ways, &results, &left_out);
    fs::write(&path, text).with_context(|| format!("writing {RESULTS}"))?;
    println!(
        "test result: {} programs, {} runs, {failed} failed",
        programs.len(),
        programs.len() * ways.len()
    );
    Ok(failed == 0)
}

/// Adds the earlier rows of programs that were not run now.
fn take_others(text: &str, ways: &[SuiteRunMode], all: &[ProgramKey], results: &mut SuiteResults) {
    let titles: Vec<String> = ways.iter().map(SuiteRunMode::mode_title).collect();
    let cells =
        |line: &str| line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
    let mut rows = text.lines().filter(|line| line.starts_with('|')).map(cells);
    let same = rows.next().is_some_and(|head| head[1..] == titles);
    for row in rows.filter(|_| same) {
        let Some((folder, name)) = row[0].split_once('/') else { continue };
        let Some(folder) = FOLDERS.into_iter().find(|known| *known == folder) else { continue };
        let named = (folder, name.to_owned());
        if all.contains(&named) {
            results.entry(named).or_insert_with(|| row[1..].to_vec());
        }
    }
}

/// Each fabric carries everything; and once more with shared memory between PEs, which is the default on one host.
fn run_modes(options: &ConformanceOptions) -> Vec<SuiteRunMode> {
    let pes = options.pes.iter();
    let mut ways: Vec<SuiteRunMode> =
        pes.clone().map(|&pes| SuiteRunMode { fabric: "soft".into(), shares: true, pes }).collect();
    for fabric in &options.fabrics {
        ways.extend(pes.clone().map(|&pes| SuiteRunMode { fabric: fabric.clone(), shares: false, pes }));
    }
    ways
}

/// A program by its folder and its name.
type ProgramKey = (&'static str, String);
/// The results of each program, one per way.
type SuiteResults = BTreeMap<ProgramKey, Vec<String>>;
/// A file that is left out, by its folder and name, and why.
type LeftOut = (String, &'static str);

/// Lists the programs, and every other file of the suite's folders, so that no file is left out silently. Makefiles and
/// the headers in `include` are not programs.
fn list_programs(src: &Path) -> Result<(Vec<SuiteProgram>, Vec<LeftOut>)> {
    let mut programs = Vec::new();
    let mut left_out = Vec::new();
    let test = src.join("test");
    for folder in FOLDERS {
        for path in folder_entries(&test.join(folder))? {
            if path.is_dir() {
                all_of(&test, &path, "in a subfolder", &mut left_out)?;
            } else if let Some(why) = why_not(&path) {
                left_out.extend(document_name(&test, &path).map(|name| (name, why)));
            } else {
                programs.extend(programs_of(folder, &path));
            }
        }
    }
    for path in folder_entries(&test)?.into_iter().filter(|path| path.is_dir()) {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if FOLDERS.contains(&name) || name == "include" {
            continue;
        }
        let why = OTHER_FOLDERS.iter().find(|(folder, _)| *folder == name);
        all_of(&test, &path, why.map_or("in an unknown folder", |(_, why)| why), &mut left_out)?;
    }
    programs.sort_by(|one, other| (one.folder, &one.name).cmp(&(other.folder, &other.name)));
    left_out.sort();
    Ok((programs, left_out))
}

/// Why a file is not run as a program; `None` if it is.
fn why_not(path: &Path) -> Option<&'static str> {
    let file = path.file_name()?.to_string_lossy();
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("f90" | "f" | "F90" | "fh") => Some("Fortran"),
        Some("c" | "cpp") => LEFT_OUT.iter().find(|(part, _)| file.starts_with(part)).map(|(_, why)| *why),
        Some("h" | "hpp") => Some("a header"),
        _ => Some("neither C nor C++ nor Fortran"),
    }
}

/// The programs that are made from a source.
fn programs_of(folder: &'static str, path: &Path) -> Vec<SuiteProgram> {
    let file = path.file_name().unwrap_or_default().to_string_lossy();
    let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let variants = VARIANTS.iter().filter(|(_, of, _)| *of == file);
    let variants = variants.map(|(variant, _, define)| ((*variant).to_owned(), Some(*define)));
    let mut sources = vec![path.to_owned()];
    if name == "mt_lock_test" {
        sources.push(path.with_file_name("mt_lock.c"));
    }
    let program = |(name, define)| SuiteProgram { name, folder, sources: sources.clone(), define };
    std::iter::once((name, None)).chain(variants).map(program).collect()
}

fn folder_entries(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder)
        .with_context(|| format!("{}: is this a checkout of tests-sos?", folder.display()))?;
    entries.map(|entry| Ok(entry?.path())).collect()
}

/// Leaves out all files of a folder and of those in it.
fn all_of(test: &Path, folder: &Path, why: &'static str, left_out: &mut Vec<LeftOut>) -> Result<()> {
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for path in folder_entries(&folder)? {
            if path.is_dir() {
                folders.push(path);
            } else {
                left_out.extend(document_name(test, &path).map(|name| (name, why)));
            }
        }
    }
    Ok(())
}

/// A file's name in the document, unless it is a Makefile or hidden.
fn document_name(test: &Path, path: &Path) -> Option<String> {
    let file = path.file_name()?.to_string_lossy();
    let is_file_of_builds = file.starts_with("Makefile") || file.starts_with('.');
    (!is_file_of_builds).then(|| path.strip_prefix(test).unwrap_or(path).display().to_string())
}

fn compile_program(built: &Path, src: &Path, program: &SuiteProgram, file: &Path) -> Result<bool> {
    let is_cxx =
        program.sources.iter().any(|source| source.extension().is_some_and(|extension| extension == "cpp"));
    let compiler = built.join(if is_cxx { "oshcxx" } else { "oshcc" });
    let mut command = Command::new(&compiler);
    command.args(["-O2", "-w", "-fopenmp", "-pthread", "-DENABLE_DEPRECATED_TESTS"]).args(program.define);
    command.arg("-I").arg(src.join("test/include")).args(&program.sources).arg("-o").arg(file).arg("-lm");
    let output = command.output().with_context(|| format!("calling {}", compiler.display()))?;
    if !output.status.success() {
        eprintln!("{}: {}", program.name, String::from_utf8_lossy(&output.stderr));
    }
    Ok(output.status.success())
}

/// Runs a program; returns `ok`, or how it ended.
fn run_program(built: &Path, file: &Path, way: &SuiteRunMode) -> Result<String> {
    let target = built.parent().unwrap_or(built);
    let mut command = shell::user_command(built.join("oshrun"), target);
    command.args(["-n", &way.pes.to_string()]).arg(file).env("TRUNKLINE_FABRIC", &way.fabric);
    command.env("TRUNKLINE_SHARED_HEAP", if way.shares { "on" } else { "off" });
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let began = Instant::now();
    let mut child = command.spawn().context("starting oshrun")?;
    let Some(status) = child.wait_timeout(LIMIT)? else {
        // The launcher forwards the signal to its PEs.
        let _ = Command::new("kill").arg(child.id().to_string()).status();
        if child.wait_timeout(PASSES_ON)?.is_none() {
            child.kill().context("ending oshrun")?;
            child.wait()?;
        }
        return Ok(format!("no end after {} s", began.elapsed().as_secs()));
    };
    Ok(if status.success() { "ok".into() } else { status.to_string() })
}

/// The versions and the date of a run.
struct RunDescription {
    /// The suite's commit and its date.
    suite: String,
    /// The commit of Trunkline and its date.
    ours: String,
    /// The date of this run.
    date: String,
    /// The version that the launcher opens, or a text that libfabric is missing.
    libfabric: String,
    /// Number of programs in this run; other rows are from an earlier run.
    now: usize,
}

impl RunDescription {
    /// Describes this run of `now` programs.
    fn describe_run(workspace: &Workspace, options: &ConformanceOptions, now: usize) -> Result<Self> {
        let git = |folder: &Path, arguments: &[&str]| {
            shell::run_captured(Command::new("git").arg("-C").arg(folder).args(arguments))
        };
        let commit = ["log", "-1", "--format=%H of %cs"];
        let changed = git(&workspace.root, &["status", "--porcelain", "--untracked-files=no"])?;
        let mut ours = git(&workspace.root, &commit)?.trim().to_owned();
        // This document itself may be changed.
        if changed.lines().any(|line| !line.ends_with(RESULTS)) {
            ours += " with changes that are not in it";
        }
        let mut info = Command::new(workspace.target.join("release/trunkline"));
        let info =
            shell::run_captured(info.arg("info").env("TRUNKLINE_FABRIC", "ofi:tcp")).unwrap_or_default();
        Ok(Self {
            suite: git(&options.src, &commit)?.trim().to_owned(),
            ours,
            date: current_date()?,
            libfabric: libfabric_version(&info)
                .map_or("no libfabric".into(), |version| format!("libfabric {version}")),
            now,
        })
    }
}

/// Parses the version from the output of `trunkline info`.
fn libfabric_version(info: &str) -> Option<&str> {
    let (_, after) = info.split_once("of libfabric ")?;
    let version = after.split(|letter: char| !letter.is_ascii_digit() && letter != '.').next()?;
    let version = version.trim_end_matches('.');
    (!version.is_empty()).then_some(version)
}

fn render_report(
    about: &RunDescription,
    ways: &[SuiteRunMode],
    results: &SuiteResults,
    left_out: &[LeftOut],
) -> String {
    let passed = results.values().flatten().filter(|result| *result == "ok").count();
    let all: usize = results.values().map(Vec::len).sum();
    let mut text = format!(
        "# Conformance\n\nWritten by `cargo xtask conformance --src DIR`, where DIR is a checkout of \
         github.com/openshmem-org/tests-sos, commit {}. Run on {} of commit {} of this repository with {}. \
         `oshcc` and `oshc++` build the programs unchanged, and `oshrun` runs them. In the columns `shared memory`, PEs of one host \
         share memory, which is the default (`TRUNKLINE_FABRIC=soft`). In the other columns, all data uses the fabric \
         (`TRUNKLINE_SHARED_HEAP=off`). A program passes if all its PEs end with status 0.\n\n\
         **{} programs, {all} runs, {passed} passed.**\n\n",
        about.suite,
        about.date,
        about.ours,
        about.libfabric,
        results.len()
    );
    if results.len() > about.now {
        let earlier = results.len() - about.now;
        let _ = writeln!(
            text,
            "Of these programs, {} were run then; the rows of the other {earlier} are from an earlier run.\n",
            about.now
        );
    }
    text += "| program |";
    ways.iter().for_each(|way| {
        let _ = write!(text, " {} |", way.mode_title());
    });
    text += "\n| --- |";
    text += &" --- |".repeat(ways.len());
    text += "\n";
    for ((folder, name), row) in results {
        let _ = writeln!(text, "| {folder}/{name} | {} |", row.join(" | "));
    }
    text += "\nLeft out:\n\n";
    for (file, why) in left_out {
        let _ = writeln!(text, "- `{file}`: {why}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A checkout with these files.
    fn checkout(files: &[&str]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for file in files {
            let path = folder.path().join("test").join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        folder
    }

    #[test]
    fn every_file_is_a_program_or_left_out_by_name() {
        let files = [
            "unit/hello.c",
            "unit/cxx.cpp",
            "unit/rma_coverage.c",
            "unit/mt_lock.c",
            "unit/mt_lock_test.c",
            "unit/hello_f.f90",
            "unit/hybrid_mpi_mapping_id.c",
            "unit/run.sh",
            "unit/Makefile.am",
            "unit/deep/inside.c",
            "spec-example/a.c",
            "apps/b.c",
            "apps/b.h",
            "shmemx/perf_counters.c",
            "shmemx/Makefile.am",
            "performance/tests/time.c",
            "performance/suite/lat.c",
            "new/c.c",
            "include/check.h",
        ];
        let folder = checkout(&files);
        let (programs, left_out) = list_programs(folder.path()).unwrap();
        let names: Vec<String> = programs.iter().map(|it| format!("{}/{}", it.folder, it.name)).collect();
        assert_eq!(
            names,
            [
                "apps/b",
                "spec-example/a",
                "unit/cxx",
                "unit/hello",
                "unit/mt_lock_test",
                "unit/rma_coverage",
                "unit/rma_coverage_pshmem"
            ]
        );
        let left_out: Vec<(&str, &str)> = left_out.iter().map(|(name, why)| (name.as_str(), *why)).collect();
        assert_eq!(
            left_out,
            [
                ("apps/b.h", "a header"),
                ("new/c.c", "in an unknown folder"),
                ("performance/suite/lat.c", "a benchmark without checks"),
                ("performance/tests/time.c", "a benchmark without checks"),
                ("shmemx/perf_counters.c", "extensions of another library"),
                ("unit/deep/inside.c", "in a subfolder"),
                ("unit/hello_f.f90", "Fortran"),
                ("unit/hybrid_mpi_mapping_id.c", "MPI hybrid"),
                ("unit/mt_lock.c", "a part of mt_lock_test"),
                ("unit/run.sh", "neither C nor C++ nor Fortran"),
            ]
        );
        let two = programs.iter().find(|it| it.name == "mt_lock_test").unwrap();
        assert_eq!(two.sources.len(), 2);
        assert_eq!(programs.iter().filter(|it| it.define.is_some()).count(), 1);
        assert!(list_programs(&folder.path().join("unit")).is_err(), "no checkout");
    }

    #[test]
    fn head_names_commits_date_and_library() {
        let mut results = SuiteResults::new();
        results.insert(("unit", "a".into()), vec!["ok".into()]);
        results.insert(("unit", "b".into()), vec!["exit status: 1".into()]);
        let mut about = RunDescription {
            suite: "5017e of 2025-03-19".into(),
            ours: "0125 of 2026-11-24".into(),
            date: "2026-11-25".into(),
            libfabric: "libfabric 1.17".into(),
            now: 2,
        };
        let ways = [SuiteRunMode { fabric: "soft".into(), shares: true, pes: 2 }];
        let left_out = [("shmemx/x.c".to_owned(), "extensions of another library")];
        let text = render_report(&about, &ways, &results, &left_out);
        for part in [
            "tests-sos, commit 5017e of 2025-03-19.",
            "Run on 2026-11-25 of commit 0125 of 2026-11-24 of this repository with libfabric 1.17.",
            "**2 programs, 2 runs, 1 passed.**",
            "| program | shared memory, 2 |",
            "| unit/b | exit status: 1 |",
            "- `shmemx/x.c`: extensions of another library",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains("earlier run"));
        about.now = 1;
        let text = render_report(&about, &ways, &results, &left_out);
        assert!(
            text.contains(
                "Of these programs, 1 were run then; the rows of the other 1 are from an earlier run."
            ),
            "{text}"
        );
        // Parsing the written document gives the same results.
        let mut again = SuiteResults::new();
        let all: Vec<ProgramKey> = results.keys().cloned().collect();
        take_others(&text, &ways, &all, &mut again);
        assert_eq!(again, results);
    }

    #[test]
    fn libfabric_version_is_parsed_from_info() {
        assert_eq!(libfabric_version("ofi: provider net of libfabric 1.17, file x"), Some("1.17"));
        assert_eq!(libfabric_version("provider tcp of libfabric 2.6.\n"), Some("2.6"));
        assert_eq!(libfabric_version("nothing of libfabric here"), None);
        assert_eq!(libfabric_version(""), None);
    }

    #[test]
    fn rows_of_programs_not_run_stay() {
        let way = |pes| SuiteRunMode { fabric: "soft".into(), shares: true, pes };
        let ways = [way(2), way(4)];
        let mut results = SuiteResults::new();
        results.insert(("unit", "a".into()), vec!["ok".into(), "ok".into()]);
        let text = "# x\n\n| program | shared memory, 2 | shared memory, 4 |\n| --- | --- | --- |\n\
                    | unit/a | exit status: 1 | ok |\n| apps/b | ok | exit status: 1 |\n| apps/gone | ok | ok |\n";
        let all = [("unit", "a".to_owned()), ("apps", "b".to_owned())];
        take_others(text, &ways, &all, &mut results);
        assert!(!results.contains_key(&("apps", "gone".to_owned())), "no row of an unknown program");
        assert_eq!(results[&("unit", "a".to_owned())], ["ok", "ok"], "results of this run");
        assert_eq!(results[&("apps", "b".to_owned())], ["ok", "exit status: 1"]);
        let mut none = SuiteResults::new();
        take_others(text, &[way(2)], &all, &mut none);
        assert!(none.is_empty(), "no rows of other run modes");
    }
}
