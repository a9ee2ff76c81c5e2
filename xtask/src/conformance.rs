//! `cargo xtask conformance --src DIR`: a public suite of OpenSHMEM programs, built by our `oshcc` and run over each fabric.
//!
//! Called by people, with a checkout of openshmem-org's tests-sos beside the repository; nothing of it is copied. Writes docs/conformance.md
//! with what was run now, and the other rows as they were.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use wait_timeout::ChildExt as _;

use crate::shell;
use crate::workspace::Workspace;

/// Folders of the suite whose programs are run.
const FOLDERS: [&str; 3] = ["unit", "spec-example", "apps"];
/// Files that are no program of their own, or of what the suite is not run for.
const LEFT_OUT: [(&str, &str); 2] = [("mt_lock.c", "a part of mt_lock_test"), ("hybrid_mpi_", "MPI hybrid")];
/// Programs whose source another one has, too: name, source, what is defined.
const VARIANTS: [(&str, &str, &str); 2] = [
    ("rma_coverage_pshmem", "rma_coverage.c", "-DTEST_PSHMEM"),
    ("query_thread_funneled", "query_thread.c", "-DENABLE_THREADS"),
];
/// What a program may take.
const LIMIT: Duration = Duration::from_secs(900);
const RESULTS: &str = "docs/conformance.md";

/// What `cargo xtask conformance` is told.
#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    /// The suite's checkout.
    #[arg(long, value_name = "DIR")]
    src: PathBuf,
    /// Only the programs whose name contains this; what is written of others stays.
    #[arg(long, value_name = "PART")]
    only: Option<String>,
    /// How many PEs.
    #[arg(long, value_delimiter = ',', default_value = "2,4")]
    pes: Vec<u32>,
    /// Over which fabrics.
    #[arg(long, value_delimiter = ',', default_value = "soft:shm,soft:tcp,ofi:tcp,ofi:tcp;ofi_rxm")]
    fabrics: Vec<String>,
}

/// A program of the suite.
struct Program {
    name: String,
    folder: &'static str,
    sources: Vec<PathBuf>,
    define: Option<&'static str>,
}

/// One way to run it.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
struct Way {
    fabric: String,
    /// Whether PEs share memory, beside it.
    shares: bool,
    pes: u32,
}

impl Way {
    fn title(&self) -> String {
        let by = if self.shares { "shared memory" } else { &self.fabric };
        format!("{by}, {}", self.pes)
    }
}

/// Builds and runs the suite; whether all passed.
///
/// # Errors
/// When the suite is not there, or a file cannot be written.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<bool> {
    let packages = ["build", "--release", "--package", "trunkline-cli", "--package", "trunkline-shmem"];
    shell::cargo(&workspace.root, &packages)?;
    let built = workspace.target.join("release");
    let (mut programs, left_out) = list(&options.src)?;
    if let Some(only) = &options.only {
        programs.retain(|program| program.name.contains(only.as_str()));
    }
    ensure!(!programs.is_empty(), "no program of that name in {}", options.src.display());
    let folder = workspace.target.join("conformance");
    fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
    let ways = ways(options);
    let mut results = Results::new();
    let mut failed = 0;
    for (at, program) in programs.iter().enumerate() {
        let file = folder.join(&program.name);
        let compiled = compile(&built, &options.src, program, &file)?;
        let mut row = Vec::new();
        for way in &ways {
            let result = if compiled { start(&built, &file, way)? } else { "does not compile".into() };
            failed += usize::from(result != "ok");
            println!("[{}/{}] {} {}: {result}", at + 1, programs.len(), program.name, way.title());
            row.push(result);
        }
        results.insert((program.folder, program.name.clone()), row);
    }
    let path = workspace.root.join(RESULTS);
    if options.only.is_some() {
        // What the others did stands there, if they were run in the same ways.
        take_others(&fs::read_to_string(&path).unwrap_or_default(), &ways, &mut results);
    }
    let text = report(&options.src, &ways, &results, &left_out)?;
    fs::write(&path, text).with_context(|| format!("writing {RESULTS}"))?;
    println!(
        "test result: {} programs, {} runs, {failed} failed",
        programs.len(),
        programs.len() * ways.len()
    );
    Ok(failed == 0)
}

/// Takes the rows of programs that were not run now.
fn take_others(text: &str, ways: &[Way], results: &mut Results) {
    let titles: Vec<String> = ways.iter().map(Way::title).collect();
    let cells =
        |line: &str| line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
    let mut rows = text.lines().filter(|line| line.starts_with('|')).map(cells);
    let same = rows.next().is_some_and(|head| head[1..] == titles);
    for row in rows.filter(|_| same) {
        let Some((folder, name)) = row[0].split_once('/') else { continue };
        let Some(folder) = FOLDERS.into_iter().find(|known| *known == folder) else { continue };
        results.entry((folder, name.to_owned())).or_insert_with(|| row[1..].to_vec());
    }
}

/// Each fabric carries everything; and once PEs share memory, as they do on one host if nothing is said.
fn ways(options: &Options) -> Vec<Way> {
    let pes = options.pes.iter();
    let mut ways: Vec<Way> =
        pes.clone().map(|&pes| Way { fabric: "soft".into(), shares: true, pes }).collect();
    for fabric in &options.fabrics {
        ways.extend(pes.clone().map(|&pes| Way { fabric: fabric.clone(), shares: false, pes }));
    }
    ways
}

/// By folder and program: how it ended in each way.
type Results = BTreeMap<(&'static str, String), Vec<String>>;
/// A file that is left out, and why.
type LeftOut = (String, &'static str);

/// The programs, and what of the suite is left out.
fn list(src: &Path) -> Result<(Vec<Program>, Vec<LeftOut>)> {
    let (mut programs, mut left_out) = (Vec::new(), Vec::new());
    for folder in FOLDERS {
        let at = src.join("test").join(folder);
        let entries = fs::read_dir(&at)
            .with_context(|| format!("{}: is this a checkout of tests-sos?", at.display()))?;
        for entry in entries {
            let path = entry?.path();
            let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            match path.extension().and_then(|extension| extension.to_str()) {
                Some("f90") => left_out.push((file, "Fortran")),
                Some("c" | "cpp") => {
                    if let Some((_, why)) = LEFT_OUT.iter().find(|(part, _)| file.starts_with(part)) {
                        left_out.push((file, why));
                        continue;
                    }
                    let mut sources = vec![path.clone()];
                    if name == "mt_lock_test" {
                        sources.push(at.join("mt_lock.c"));
                    }
                    programs.push(Program { name, folder, sources, define: None });
                    for (variant, of, define) in VARIANTS.iter().filter(|(_, of, _)| *of == file) {
                        let _ = of;
                        let (name, sources) = ((*variant).to_owned(), vec![path.clone()]);
                        programs.push(Program { name, folder, sources, define: Some(define) });
                    }
                }
                _ => {}
            }
        }
    }
    programs.sort_by(|one, other| (one.folder, &one.name).cmp(&(other.folder, &other.name)));
    left_out.sort();
    Ok((programs, left_out))
}

fn compile(built: &Path, src: &Path, program: &Program, file: &Path) -> Result<bool> {
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

/// `ok`, or how it ended.
fn start(built: &Path, file: &Path, way: &Way) -> Result<String> {
    let mut command = Command::new(built.join("oshrun"));
    command.args(["-n", &way.pes.to_string()]).arg(file).env("TRUNKLINE_FABRIC", &way.fabric);
    command.env("TRUNKLINE_SHARED_HEAP", if way.shares { "on" } else { "off" });
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let began = Instant::now();
    let mut child = command.spawn().context("starting oshrun")?;
    let Some(status) = child.wait_timeout(LIMIT)? else {
        // The launcher passes it on.
        let _ = Command::new("kill").arg(child.id().to_string()).status();
        child.wait()?;
        return Ok(format!("no end after {} s", began.elapsed().as_secs()));
    };
    Ok(if status.success() { "ok".into() } else { status.to_string() })
}

fn report(src: &Path, ways: &[Way], results: &Results, left_out: &[LeftOut]) -> Result<String> {
    let git = Command::new("git").arg("-C").arg(src).args(["log", "-1", "--format=%H of %cs"]).output()?;
    let commit = String::from_utf8_lossy(&git.stdout).trim().to_owned();
    let passed = results.values().flatten().filter(|result| *result == "ok").count();
    let all: usize = results.values().map(Vec::len).sum();
    let mut text = format!(
        "# Conformance\n\nWritten by `cargo xtask conformance --src DIR`, where DIR is a checkout of \
         github.com/openshmem-org/tests-sos, commit {commit}. Its programs are built by `oshcc` and `oshc++` as they are, and run by \
         `oshrun`; `shared memory` is what PEs of one host do if nothing is said (`TRUNKLINE_FABRIC=soft`), the others have everything go \
         over a fabric (`TRUNKLINE_SHARED_HEAP=off`). A program passes if all its PEs end with status 0.\n\n\
         **{} programs, {all} runs, {passed} passed.**\n\n| program |",
        results.len()
    );
    ways.iter().for_each(|way| {
        let _ = write!(text, " {} |", way.title());
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
    text +=
        "- the folder `shmemx`: extensions of another library; `performance`: measures and tests nothing\n";
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_others_stay() {
        let way = |pes| Way { fabric: "soft".into(), shares: true, pes };
        let ways = [way(2), way(4)];
        let mut results = Results::new();
        results.insert(("unit", "a".into()), vec!["ok".into(), "ok".into()]);
        let text = "# x\n\n| program | shared memory, 2 | shared memory, 4 |\n| --- | --- | --- |\n\
                    | unit/a | exit status: 1 | ok |\n| apps/b | ok | exit status: 1 |\n";
        take_others(text, &ways, &mut results);
        assert_eq!(results[&("unit", "a".to_owned())], ["ok", "ok"], "what was run now");
        assert_eq!(results[&("apps", "b".to_owned())], ["ok", "exit status: 1"]);
        let mut none = Results::new();
        take_others(text, &[way(2)], &mut none);
        assert!(none.is_empty(), "of other ways");
    }
}
