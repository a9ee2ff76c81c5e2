//! The mutant runner over a small crate with bugs planted in it.

use std::collections::BTreeSet;
use std::path::Path;

use super::bug_file::BugSuite;
use super::mutant_row::MutantRow;
use super::test_programs::{TestPrograms, build, link_built_artifacts, program_filters};
use super::verdict::{HealthyRuns, MutantVerdict, judge_all, judge_alone, judge_row, tests_run};
use super::*;
use crate::fixture::Fixture;

const LIB: &str = "
pub fn add(a: u8, b: u8) -> u8 { a + b }
#[cfg(test)]
mod tests {
    #[test] fn adds() { assert_eq!(super::add(1, 2), 3) }
    #[test] fn looks_away() { super::add(1, 0); }
    #[test] fn broken() { panic!() }
}
";

/// A bug that runs this code, and one suite.
fn bug(name: &str, code: &str, test: &str) -> String {
    format!(
        "[suite.{name}]\ntest = '{test}'\nlimit_s = 2\n[[bug]]\nname = '{name}'\nbreaks = 'b'\nsuites = ['{name}']\n\
         [[bug.edit]]\nfile = 'crates/demo/src/lib.rs'\ninsert = '{code}'\nbefore = 'a + b'\n"
    )
}

/// Weaves and builds these bugs, and judges their rows.
fn judge_bugs<V>(bugs: &[String], judge: impl FnOnce(&[MutantRow<'_>], &TestPrograms) -> V) -> V {
    let fixture = Fixture::new();
    fixture.with("demo", &[], LIB).write("mutants/demo.toml", &bugs.concat()).init_git();
    let workspace = fixture.load();
    let mut findings = CheckFindings::default();
    let table = BugTable::read_files(&workspace, &mut findings).unwrap();
    assert!(weave_table(&workspace, &table, findings, &woven_tree::default_folder(&workspace)).unwrap());
    let rows = table.bug_rows();
    judge(&rows, &build(&workspace, &rows).unwrap())
}

/// A row of bug `a`.
fn row<'a>(package: &'a str, suite: &'a BugSuite) -> MutantRow<'a> {
    MutantRow { name: "a", breaks: "b", suite, package }
}

fn suite(target: &str) -> BugSuite {
    toml::from_str(&format!("test = ''\ntarget = '{target}'")).unwrap()
}

#[test]
fn each_verdict_is_reached() {
    let wait = "loop { std::thread::sleep(std::time::Duration::from_millis(10)) }";
    let bugs = [
        bug("wrong-sum", "return a", "adds"),
        bug("hang", wait, "adds"),
        bug("unseen", "return a", "looks_away"),
        bug("of-a-broken-test", "return a", "broken"),
        bug("of-no-test", "return a", "no_such_test"),
    ];
    let verdicts = judge_bugs(&bugs, |rows, programs| {
        let healthy = HealthyRuns::default();
        let judge = |row| judge_row(row, programs.find_program(row).unwrap(), &healthy).unwrap();
        rows.iter().map(judge).collect::<Vec<_>>()
    });
    let expected = [
        MutantVerdict::Killed,
        MutantVerdict::KilledByLimit,
        MutantVerdict::Survived,
        MutantVerdict::BrokenTest,
        MutantVerdict::NoTest,
    ];
    assert_eq!(verdicts, expected);
}

#[test]
fn bug_missed_in_parallel_is_found_alone() {
    // The first run succeeds, like a bug that needs several attempts to show.
    let shy = "if std::fs::File::create_new(\"seen\").is_err() { return a }";
    let bugs = [bug("shy", shy, "adds"), bug("wrong-sum", "return a", "looks_away")];
    judge_bugs(&bugs, |rows, programs| {
        let beside = judge_all(rows, programs).unwrap();
        assert_eq!(beside, [MutantVerdict::Survived, MutantVerdict::Survived]);
        let alone = judge_alone(rows, programs, beside).unwrap();
        assert_eq!(alone, [MutantVerdict::KilledAlone, MutantVerdict::Survived]);
    });
}

#[test]
fn test_counts_are_read_from_libtest() {
    assert_eq!(tests_run("\nrunning 2 tests\ntest a ... ok\n"), 2);
    assert_eq!(tests_run("running 0 tests\n"), 0);
}

/// Cargo overwrites its records of a build in place, and compilers replace their output.
#[test]
fn linked_artifacts_of_plain_builds_stay_unchanged() {
    use std::time::{Duration, SystemTime};

    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (folder.path().join("plain"), folder.path().join("bugs"));
    let note = Path::new(".fingerprint/mem-1/lib-mem");
    let made = Path::new("deps/libmem-1.rlib");
    for part in [".fingerprint/mem-1", "build", "deps"] {
        std::fs::create_dir_all(from.join(part)).unwrap();
    }
    std::fs::write(from.join(note), "one").unwrap();
    std::fs::write(from.join(made), "crate one").unwrap();
    let past = SystemTime::now() - Duration::from_secs(1000);
    std::fs::File::options().append(true).open(from.join(note)).unwrap().set_modified(past).unwrap();
    link_built_artifacts(&from, &to).unwrap();
    assert_eq!(to.join(note).metadata().unwrap().modified().unwrap(), past, "as old as it was");
    std::fs::write(from.join(note), "two").unwrap();
    std::fs::remove_file(from.join(made)).unwrap();
    std::fs::write(from.join(made), "crate two").unwrap();
    let read = |path: &Path| std::fs::read_to_string(to.join(path)).unwrap();
    assert_eq!((read(note).as_str(), read(made).as_str()), ("one", "crate one"));
}

#[test]
fn each_row_is_in_one_share() {
    let suite = suite("lib");
    let names: Vec<String> = (0..100).map(|at| format!("m{at}")).collect();
    let packages = ["p0", "p1", "p2", "p3"];
    let share = |text: &str| {
        let named = names.iter().zip(packages.into_iter().cycle());
        let mut rows: Vec<_> =
            named.map(|(name, package)| MutantRow { name, ..row(package, &suite) }).collect();
        text.parse::<RowShare>().unwrap().retain_share(&mut rows);
        rows
    };
    let shares = ["0/3", "1/3", "2/3"].map(share);
    let names: BTreeSet<_> = shares.iter().flatten().map(|row| row.name).collect();
    assert_eq!((names.len(), shares.each_ref().map(Vec::len)), (100, [33, 33, 34]));
    // Few packages have to be built for each.
    for share in &shares {
        assert!(share.iter().map(|row| row.package).collect::<BTreeSet<_>>().len() <= 3);
    }
    for wrong in ["", "1", "3/3", "0/0", "-1/3", "a/b"] {
        assert!(wrong.parse::<RowShare>().is_err(), "{wrong}");
    }
}

#[test]
fn programs_of_rows_alone_are_built() {
    let fixture = Fixture::new();
    fixture.with("engine", &[], "").write("crates/engine/tests/job.rs", "");
    fixture.write("crates/engine/tests/device/main.rs", "");
    let suites = ["lib", "job", "device", "job", "trunkline"].map(suite);
    let rows = suites.each_ref().map(|suite| row("engine", suite));
    let filters: Vec<String> = program_filters(&fixture.load(), &rows).into_iter().collect();
    assert_eq!(filters, ["--bin=trunkline", "--lib", "--test=device", "--test=job"]);
}
