//! The check of all bugs over small workspaces.

use super::bug_table::check_bugs;
use crate::fixture::Fixture;
use crate::report::CheckFindings;

const BUGS: &str = r#"
[suite.sums]
test = "adds"

[[bug]]
name = "wrong-sum"
breaks = "a sum is wrong"
suites = ["sums"]
[[bug.edit]]
file = "crates/demo/src/lib.rs"
swap = "a + b"
with = "a"
"#;

fn check_text(bugs: &str) -> CheckFindings {
    let fixture = Fixture::new();
    fixture.with("demo", &[], "pub fn add(a: u8, b: u8) -> u8 { a + b }\n").write("mutants/demo.toml", bugs);
    check_bugs(&fixture.load()).unwrap()
}

#[test]
fn good_bugs_are_clean() {
    let findings = check_text(BUGS);
    assert!(findings.is_clean(), "{:?}", findings.broken);
}

#[test]
fn wrong_bugs_are_found() {
    let bug = &BUGS[BUGS.find("[[bug]]").unwrap()..];
    for (bugs, finding) in [
        (format!("{BUGS}{bug}"), "has a bug of this name already"),
        (BUGS.replace("suites = [\"sums\"]", "suites = [\"sum\"]"), "there is no suite sum"),
        (BUGS.replace("suites = [\"sums\"]", "suites = []"), "no suite must detect it"),
        (
            BUGS.replace("test = \"adds\"", "test = \"adds\"\n[suite.other]\ntest = \"x\""),
            "suite other: no bug",
        ),
        (BUGS.replace("test = \"adds\"", "test = \"adds\"\npackage = \"none\""), "there is no crate none"),
        (BUGS.replace("test = \"adds\"", "test = \"adds\"\ntset = 1"), "unknown field `tset`"),
        (BUGS.replace("swap = \"a + b\"", "swap = \"b + a\""), "in line 1"),
        (BUGS.replace("src/lib.rs", "src/gone.rs"), "reading it"),
        (BUGS.replace("src/lib.rs", "../../x.rs"), "no `..`"),
        (BUGS.replace("src/lib.rs", "build.rs"), "build script"),
        (BUGS.replace("wrong-sum", "wrong sum"), "letters, digits"),
        (BUGS[..BUGS.find("[[bug.edit]]").unwrap()].to_owned(), "it edits nothing"),
    ] {
        let findings = check_text(&bugs);
        assert!(findings.mentions(finding), "{finding}: {:?}", findings.broken);
    }
}

#[test]
fn check_fails_without_bugs() {
    let fixture = Fixture::new();
    fixture.with("demo", &[], "");
    assert!(check_bugs(&fixture.load()).is_err());
    fixture.write("mutants/README.md", "");
    assert!(check_bugs(&fixture.load()).unwrap().mentions("no file <crate>.toml has a bug"));
}

#[test]
fn files_have_names_of_crates() {
    let fixture = Fixture::new();
    fixture.with("demo", &[], "").write("mutants/nobody.toml", BUGS).write("lost.rs", "fn f() { a + b }");
    assert!(check_bugs(&fixture.load()).unwrap().mentions("there is no crate nobody"));
    fixture.write("mutants/demo.toml", &BUGS.replace("crates/demo/src/lib.rs", "lost.rs"));
    assert!(check_bugs(&fixture.load()).unwrap().mentions("belongs to no crate"));
}
