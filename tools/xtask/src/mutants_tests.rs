//! The mutant runner over a small crate with bugs planted in it.

use super::*;
use crate::fixture::Fixture;

const LIB: &str = r#"
pub fn add(a: u8, b: u8) -> u8 {
    #[cfg(feature = "mutants")]
    match std::env::var("TRUNKLINE_MUTANT").as_deref() {
        Ok("wrong-sum") => return a,
        // For the first time only, as bugs do that need a moment.
        Ok("shy") => return if std::fs::File::create_new("seen").is_ok() { a + b } else { a },
        Ok("hang") => loop { std::thread::sleep(std::time::Duration::from_millis(10)) },
        _ => {}
    }
    a + b
}
#[cfg(test)]
mod tests {
    #[test] fn adds() { assert_eq!(super::add(1, 2), 3) }
    #[test] fn looks_away() { super::add(1, 0); }
    #[test] fn broken() { panic!() }
}
"#;

fn row(name: &str, test: &str) -> String {
    format!(
        "[[mutant]]\nname = \"{name}\"\nbreaks = \"b\"\nplanted = \"demo\"\ntest = \"{test}\"\nlimit_s = 2\n"
    )
}

#[test]
fn each_verdict_is_reached() {
    let fixture = Fixture::new();
    fixture.with("demo", &[], LIB).manifest("demo", "[features]\nmutants = []\n");
    let workspace = fixture.load();
    let cases = [
        (row("wrong-sum", "adds"), MutantVerdict::Killed),
        (row("hang", "adds"), MutantVerdict::KilledByLimit),
        (row("wrong-sum-2", "looks_away"), MutantVerdict::Survived),
        (row("wrong-sum-3", "broken"), MutantVerdict::BrokenTest),
        (row("wrong-sum-4", "no_such_test"), MutantVerdict::NoTest),
    ];
    let text: String = cases.iter().map(|(row, _)| row.as_str()).collect();
    let rows = parse_rows(&text).unwrap();
    let programs = build(&workspace, &rows).unwrap();
    let healthy = HealthyRuns::default();
    for (row, (_, wanted)) in rows.iter().zip(&cases) {
        assert_eq!(
            judge_row(row, programs.find_program(row).unwrap(), &healthy).unwrap(),
            *wanted,
            "{}",
            row.name
        );
    }
    fixture.write(ROWS, &row("wrong-sum", "looks_away"));
    assert!(!run(&workspace, None, None).unwrap());
    fixture.write(ROWS, &row("wrong-sum", "adds"));
    assert!(run(&workspace, None, None).unwrap());
}

#[test]
fn a_bug_that_hides_in_company_is_found_alone() {
    let fixture = Fixture::new();
    fixture.with("demo", &[], LIB).manifest("demo", "[features]\nmutants = []\n");
    let workspace = fixture.load();
    let rows = parse_rows(&(row("shy", "adds") + &row("wrong-sum", "looks_away"))).unwrap();
    let programs = build(&workspace, &rows).unwrap();
    let beside = judge_all(&rows, &programs).unwrap();
    assert_eq!(beside, [MutantVerdict::Survived, MutantVerdict::Survived]);
    let alone = judge_alone(&rows, &programs, beside).unwrap();
    assert_eq!(alone, [MutantVerdict::KilledAlone, MutantVerdict::Survived]);
}

#[test]
fn a_wrong_table_is_an_error() {
    assert!(parse_rows(&row("a", "t").repeat(2)).unwrap_err().to_string().contains("twice"));
    assert!(parse_rows("[[mutant]]\nname = \"a\"\n").is_err());
    assert!(parse_rows(&(row("a", "t") + "tset = \"typo\"\n")).is_err());
}

#[test]
fn one_row_may_stand_for_several_bugs() {
    let text = "[[mutant]]\nplanted = \"demo\"\ntest = \"t\"\n[mutant.bugs]\nb = \"two\"\na = \"one\"\n";
    let rows = parse_rows(text).unwrap();
    let said: Vec<_> = rows.iter().map(|row| (row.name.as_str(), row.breaks.as_str())).collect();
    assert_eq!(said, [("a", "one"), ("b", "two")]);
    assert_eq!(rows[1].test, "t");
    assert!(parse_rows(&(text.to_owned() + &row("a", "t"))).unwrap_err().to_string().contains("twice"));
    assert!(parse_rows(&row("x", "t").replace("name", "bugs = { y = \"z\" }\nname")).is_err());
}

#[test]
fn a_crate_without_the_feature_is_an_error() {
    let fixture = Fixture::new();
    fixture.with("demo", &[], LIB);
    let error = build(&fixture.load(), &parse_rows(&row("a", "adds")).unwrap()).unwrap_err();
    assert!(error.to_string().contains("has no feature mutants"), "{error}");
}

#[test]
fn counts_what_libtest_says() {
    assert_eq!(tests_run("\nrunning 2 tests\ntest a ... ok\n"), 2);
    assert_eq!(tests_run("running 0 tests\n"), 0);
}

/// Cargo writes its notes of a build over in place, and compilers replace what they make.
#[test]
fn what_is_taken_from_plain_builds_stays_as_it_was() {
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
    take_what_is_built(&from, &to).unwrap();
    assert_eq!(to.join(note).metadata().unwrap().modified().unwrap(), past, "as old as it was");
    std::fs::write(from.join(note), "two").unwrap();
    std::fs::remove_file(from.join(made)).unwrap();
    std::fs::write(from.join(made), "crate two").unwrap();
    let read = |path: &Path| std::fs::read_to_string(to.join(path)).unwrap();
    assert_eq!((read(note).as_str(), read(made).as_str()), ("one", "crate one"));
}

#[test]
fn each_row_is_in_one_share() {
    let text = |at: usize| {
        let package = at % 4;
        format!(
            "[[mutant]]\nname = 'm{at}'\nbreaks = 'b'\nplanted = 'proto'\npackage = 'p{package}'\ntest = ''\n"
        )
    };
    let all: String = (0..100).map(text).collect();
    let share = |text: &str| {
        let mut rows = parse_rows(&all).unwrap();
        text.parse::<RowShare>().unwrap().retain_share(&mut rows);
        rows
    };
    let shares = ["0/3", "1/3", "2/3"].map(share);
    let mut names: Vec<_> = shares.iter().flatten().map(|row| row.name.clone()).collect();
    names.sort();
    names.dedup();
    assert_eq!((names.len(), shares.each_ref().map(Vec::len)), (100, [33, 33, 34]));
    // Few packages are to be built for each.
    for share in &shares {
        assert!(share.iter().map(MutantRow::package_name).collect::<BTreeSet<_>>().len() <= 3);
    }
    for wrong in ["", "1", "3/3", "0/0", "-1/3", "a/b"] {
        assert!(wrong.parse::<RowShare>().is_err(), "{wrong}");
    }
}

/// Cargo refuses a build that names a feature of a package that it does not select.
#[test]
fn features_of_unselected_packages_are_left_out() {
    let features = ["cli", "proto"].map(str::to_owned).into();
    let arguments = package_arguments(&BTreeSet::from(["proto", "shmem"]), &features);
    let expected = [
        "--package",
        "trunkline-proto",
        "--package",
        "trunkline-shmem",
        "--features",
        "trunkline-proto/mutants",
    ];
    assert_eq!(arguments, expected);
}

#[test]
fn programs_of_rows_alone_are_built() {
    let fixture = Fixture::new();
    fixture.with("engine", &[], "").write("crates/engine/tests/job.rs", "");
    fixture.write("crates/engine/tests/device/main.rs", "");
    let row = |target: &str| MutantRow {
        planted: "engine".to_owned(),
        target: target.to_owned(),
        ..parse_rows("[[mutant]]\nname = \"a\"\nbreaks = \"b\"\nplanted = \"engine\"\ntest = \"c\"\n")
            .unwrap()
            .remove(0)
    };
    let rows = ["lib", "job", "device", "job", "trunkline"].map(row);
    let filters: Vec<String> = program_filters(&fixture.load(), &rows).into_iter().collect();
    assert_eq!(filters, ["--bin=trunkline", "--lib", "--test=device", "--test=job"]);
}
