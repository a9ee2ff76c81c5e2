//! The woven tree of a small workspace: written, built and run.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::time::SystemTime;

use super::woven_manifest;
use super::woven_tree::{default_folder, find_owner};
use super::*;
use crate::fixture::Fixture;
use crate::shell;

const LIB: &str = "
pub fn add(a: u8, b: u8) -> u8 {
    let sum = a + b;
    match sum {
        0 => return 100,
        _ => {}
    }
    sum
}
#[cfg(test)]
mod tests {
    #[test] fn adds() { assert_eq!(super::add(1, 2), 3) }
    #[test] fn adds_nothing() { assert_eq!(super::add(0, 0), 100) }
}
";

const BUGS: &str = r#"
[suite.sums]
test = "adds"
[suite.nothing]
test = "adds_nothing"

[[bug]]
name = "wrong-sum"
breaks = "a sum is wrong"
suites = ["sums"]
[[bug.edit]]
file = "crates/demo/src/lib.rs"
swap = "a + b"
with = "a"

[[bug]]
name = "no-hundred"
breaks = "an arm is lost"
suites = ["nothing", "sums"]
[[bug.edit]]
file = "crates/demo/src/lib.rs"
swap = "0 => return 100,"
with = ""

[[bug]]
name = "returns-early"
breaks = "the sum is not looked at"
suites = ["nothing"]
[[bug.edit]]
file = "crates/demo/src/lib.rs"
insert = "return sum;"
before = "match sum"

[[bug]]
name = "harmless"
breaks = "nothing, so it survives"
suites = ["nothing"]
[[bug.edit]]
file = "crates/demo/src/lib.rs"
insert = "let sum = sum + 0;"
after = "let sum"
"#;

/// A workspace with bugs, whose crate `other` has none.
fn fixture() -> Fixture {
    let fixture = Fixture::new();
    fixture.with("demo", &[], LIB).with("other", &["demo"], "").write("mutants/demo.toml", BUGS).init_git();
    // Woven code has redundant parentheses, and must still build.
    let root = "[workspace]\nresolver = \"3\"\nmembers = [\"crates/*\"]\n[workspace.lints.rust]\nwarnings = \"deny\"\n";
    fixture.write("Cargo.toml", root).manifest("demo", "[lints]\nworkspace = true\n");
    fixture
}

/// Weaves all bugs, as `cargo xtask mutants weave` does.
fn weave_tree(workspace: &Workspace, out: &Path) -> Result<bool> {
    run(
        workspace,
        &MutantOptions {
            task: Some(MutantTask::Weave { folder: Some(out.to_owned()) }),
            only: None,
            share: None,
        },
    )
}

#[test]
fn woven_bugs_are_detected_when_selected() {
    let fixture = fixture();
    let workspace = fixture.load();
    assert!(!run_rows(&workspace, None, None).unwrap(), "one survives");
    for name in ["wrong-sum", "no-hundred", "returns-early"] {
        assert!(run_rows(&workspace, Some(name), None).unwrap(), "{name}");
    }
    // The built programs select the bug at run time.
    let table = BugTable::read_files(&workspace, &mut CheckFindings::default()).unwrap();
    let rows = table.bug_rows();
    let programs = test_programs::build(&workspace, &rows).unwrap();
    let program = programs.find_program(&rows[0]).unwrap();
    assert!(program.dir.starts_with(default_folder(&workspace)), "{}", program.dir.display());
    let passes = |bug: &str| {
        Command::new(&program.file).arg("adds").env("PLANTED_BUG", bug).output().unwrap().status.success()
    };
    assert!(passes("") && passes("wrong") && !passes("wrong-sum"));
    // The product is unchanged.
    assert_eq!(std::fs::read_to_string(fixture.root().join("crates/demo/src/lib.rs")).unwrap(), LIB);
}

#[test]
fn a_tree_is_rewritten_only_where_it_differs() {
    let fixture = fixture();
    fixture.write("crates/demo/run.sh", "one").write("crates/demo/gone/file", "").write("ignored/x", "");
    fixture.write(".gitignore", "/target\n/ignored\n");
    let script = fixture.root().join("crates/demo/run.sh");
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    std::os::unix::fs::symlink("run.sh", fixture.root().join("crates/demo/link")).unwrap();
    let workspace = fixture.load();
    let out = fixture.root().join("target/woven");
    assert!(weave_tree(&workspace, &out).unwrap());
    let past = SystemTime::UNIX_EPOCH;
    let woven_lib = out.join("crates/demo/src/lib.rs");
    for file in ["crates/demo/src/lib.rs", "Cargo.toml", "crates/demo/Cargo.toml", "crates/demo/run.sh"] {
        std::fs::File::options().append(true).open(out.join(file)).unwrap().set_modified(past).unwrap();
    }
    std::fs::create_dir_all(out.join("target/debug")).unwrap();
    std::fs::remove_dir_all(fixture.root().join("crates/demo/gone")).unwrap();
    std::fs::write(&script, "two").unwrap();
    assert!(weave_tree(&workspace, &out).unwrap());
    let is_past = |file: &str| out.join(file).metadata().unwrap().modified().unwrap() == past;
    assert!(is_past("crates/demo/src/lib.rs") && is_past("Cargo.toml") && is_past("crates/demo/Cargo.toml"));
    assert!(!is_past("crates/demo/run.sh"));
    assert_eq!(out.join("crates/demo/run.sh").metadata().unwrap().permissions().mode() & 0o777, 0o755);
    assert_eq!(out.join("crates/demo/link").read_link().unwrap(), Path::new("run.sh"));
    assert!(!out.join("crates/demo/gone").exists());
    assert!(!out.join("ignored").exists());
    assert!(out.join("target/debug").exists());
    assert!(
        std::fs::read_to_string(woven_lib)
            .unwrap()
            .contains("::trunkline_planted::is_planted(\"wrong-sum\")")
    );
    let member = |name: &str| std::fs::read_to_string(out.join(format!("crates/{name}/Cargo.toml"))).unwrap();
    assert!(member("demo").contains("trunkline-planted") && !member("other").contains("trunkline-planted"));
}

#[test]
fn folders_of_something_else_are_refused() {
    let fixture = fixture();
    let workspace = fixture.load();
    fixture.write("target/precious/file", "");
    for folder in ["", "crates/..", "target/precious"] {
        let out = std::path::absolute(fixture.root().join(folder)).unwrap().canonicalize().unwrap();
        assert!(weave_tree(&workspace, &out).is_err(), "{folder}");
    }
    assert!(fixture.root().join("target/precious/file").exists());
}

#[test]
fn unweavable_bug_stops_the_weave() {
    let fixture = fixture();
    fixture
        .write("mutants/demo.toml", &BUGS.replace("a + b", "a - b").replace("0 => return 100,", "1 => 2,"));
    let workspace = fixture.load();
    let out = default_folder(&workspace);
    assert!(!weave_tree(&workspace, &out).unwrap());
    assert!(!run_rows(&workspace, Some("harmless"), None).unwrap());
    assert!(!out.exists());
    // These print all findings.
    let findings = check_bugs(&workspace).unwrap();
    assert!(findings.mentions("bug wrong-sum") && findings.mentions("bug no-hundred"), "{findings:?}");
}

#[test]
fn no_bug_is_woven_without_a_row() {
    let fixture = fixture();
    let workspace = fixture.load();
    assert!(run_rows(&workspace, Some("unknown"), None).unwrap());
    assert!(!default_folder(&workspace).exists());
}

#[test]
fn users_of_a_woven_macro_depend_on_planted() {
    let fixture = Fixture::new();
    let lib = "#[macro_export]\nmacro_rules! sum { ($a:expr) => { $a + 1 }; }\n";
    let test = "#[test]\nfn adds() { assert_eq!(trunkline_demo::sum!(1), 2); }\n";
    let bugs =
        BUGS[..BUGS.find("[[bug]]\nname = \"no-hundred\"").unwrap()].replace("\"a + b\"", "\"$a + 1\"");
    let bugs = bugs.replace("[suite.nothing]\ntest = \"adds_nothing\"\n", "");
    let bugs = bugs
        .replace("with = \"a\"", "with = \"$a\"")
        .replace("test = \"adds\"", "package = \"other\"\ntest = \"adds\"");
    fixture
        .with("demo", &[], lib)
        .with("other", &["demo"], test)
        .write("mutants/demo.toml", &bugs)
        .init_git();
    assert!(run_rows(&fixture.load(), None, None).unwrap());
}

/// The results of the planted header, compiled as C and as C++.
#[test]
fn header_reads_the_choice_at_run_time() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("source");
    let text = include_str!("../../planted/trunkline_planted.h");
    std::fs::write(folder.path().join("trunkline_planted.h"), text).unwrap();
    std::fs::write(
        &source,
        "#include \"trunkline_planted.h\"\nint main(void) { return trunkline_planted(\"a\") ? 3 : 4; }\n",
    )
    .unwrap();
    for (compiler, language) in [("cc", "c"), ("c++", "c++")] {
        let program = folder.path().join(language);
        let mut command = Command::new(compiler);
        command.args(["-Wall", "-Wextra", "-Werror", "-x", language, "-o"]).args([&program, &source]);
        shell::run_captured(&mut command).unwrap();
        let answer = |bug: Option<&str>| {
            let mut command = Command::new(&program);
            command.env_remove("PLANTED_BUG").envs(bug.map(|bug| ("PLANTED_BUG", bug)));
            command.status().unwrap().code()
        };
        assert_eq!(
            [answer(Some("a")), answer(Some("ab")), answer(None)],
            [Some(3), Some(4), Some(4)],
            "{language}"
        );
    }
}

#[test]
fn the_lock_file_is_as_cargo_writes_it() {
    let lock = "# Generated\nversion = 4\n\n[[package]]\nname = \"anyhow\"\nversion = \"1.0.0\"\nsource = \"registry\"\n\n\
                [[package]]\nname = \"trunkline-demo\"\nversion = \"0.1.0\"\ndependencies = [\n \"anyhow\",\n \"zed\",\n]\n\n\
                [[package]]\nname = \"trunkline-sys\"\nversion = \"0.1.0\"\n";
    let dependents = ["trunkline-demo", "trunkline-sys"].map(str::to_owned).into();
    let expected = "# Generated\nversion = 4\n\n[[package]]\nname = \"anyhow\"\nversion = \"1.0.0\"\nsource = \"registry\"\n\n\
                    [[package]]\nname = \"trunkline-demo\"\nversion = \"0.1.0\"\ndependencies = [\n \"anyhow\",\n \"trunkline-planted\",\n \"zed\",\n]\n\n\
                    [[package]]\nname = \"trunkline-planted\"\nversion = \"0.0.0\"\n\n\
                    [[package]]\nname = \"trunkline-sys\"\nversion = \"0.1.0\"\ndependencies = [\n \"trunkline-planted\",\n]\n";
    assert_eq!(woven_manifest::change_lock(lock, &dependents), expected);
}

#[test]
fn a_file_belongs_to_the_innermost_crate() {
    let fixture = fixture();
    let workspace = fixture.load();
    let owner = |path: &str| find_owner(&workspace, path).map(|package| package.name.as_str());
    assert_eq!(owner("crates/demo/tests/x.rs"), Some("demo"));
    assert_eq!(owner("include/x.rs"), None);
}
