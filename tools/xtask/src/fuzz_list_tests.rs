//! Planted gaps in the list of fuzz targets; each must be caught, and a complete list must pass.

use super::*;
use crate::fixture::Fixture;

const LIB: &str = "#[cfg(feature = \"fuzzing\")]\npub mod fuzzing;\n\npub struct Card;\n\nimpl Card {\n    \
                   pub fn from_bytes(_: &[u8]) -> Option<Self> {\n        None\n    }\n}\n";
const FUZZING: &str = "pub fn card(bytes: &[u8]) { let _ = super::Card::from_bytes(bytes); }\n";
const LISTED: &str = "[targets]\ncard = \"wire\"\n[actions]\n[parsers]\n\
                      \"crates/wire/src/lib.rs Card::from_bytes\" = \"card\"\n[exceptions]\n";

/// A crate with one parser, its target, its program and its corpus.
fn complete(list: &str, lib: &str) -> Fixture {
    let fixture = Fixture::new();
    fixture.with("wire", &[], lib).write("crates/wire/src/fuzzing.rs", FUZZING).write(LIST, list);
    fixture
        .write("testing/fuzz/Cargo.toml", "[package]\nname = \"fuzz\"\n\n")
        .write("testing/fuzz/fuzz_targets/old.rs", "");
    for file in 0..CORPUS_FILES_MIN {
        fixture.write(&format!("testing/fuzz/corpus/card/seed-{file}"), "x");
    }
    fixture
}

fn check(fixture: &Fixture) -> CheckFindings {
    run(&fixture.load(), false).unwrap()
}

#[test]
fn complete_list_passes_once_written() {
    let fixture = complete(LISTED, LIB);
    assert!(check(&fixture).mentions("its program is missing"));
    assert!(check(&fixture).mentions("testing/fuzz/Cargo.toml"));
    assert!(check(&fixture).mentions("old.rs: is in testing/fuzz/fuzz_targets"));
    assert_eq!(run(&fixture.load(), true).unwrap().broken, []);
    assert_eq!(check(&fixture).broken, []);
    let program = std::fs::read_to_string(fixture.root().join("testing/fuzz/fuzz_targets/card.rs")).unwrap();
    assert!(program.contains("trunkline_wire::fuzzing::run(\"card\", bytes)"), "{program}");
}

#[test]
fn parser_without_a_target_is_found() {
    let forms = [
        "pub fn parse_more(_: &str) -> Option<u8> { None }",
        "pub fn decode(_: [u64; 4]) -> Result<u8, ()> { Err(()) }",
        "pub fn more(_: &[u8; 4]) -> Option<u8> { None }",
        "pub fn receive(_: &mut (impl std::io::Read + ?Sized)) -> std::io::Result<u8> { Ok(0) }",
        "impl Card { fn read(_: Vec<u8>) -> Option<Self> { None } }",
    ];
    for form in forms {
        let fixture = complete(LISTED, &format!("{LIB}{form}"));
        let findings = run(&fixture.load(), true).unwrap();
        assert!(findings.mentions("it takes bytes and may refuse them"), "{form}");
        assert_eq!(findings.broken.len(), 1, "{form}: {:?}", findings.broken);
    }
    for other in
        ["pub fn len(_: &[u8]) -> usize { 0 }", "#[cfg(test)] pub fn parse(_: &[u8]) -> Option<u8> { None }"]
    {
        let fixture = complete(LISTED, &format!("{LIB}{other}"));
        assert_eq!(run(&fixture.load(), true).unwrap().broken, [], "{other}");
    }
}

#[test]
fn exceptions_need_a_reason_and_a_function() {
    let lib = format!("{LIB}pub fn parse_word(_: &str) -> Option<u8> {{ None }}");
    let with = |line: &str| format!("{LISTED}\"crates/wire/src/lib.rs {line}\n");
    let reasoned = complete(&with("parse_word\" = \"a setting of the own user\""), &lib);
    assert_eq!(run(&reasoned.load(), true).unwrap().broken, []);
    let bare = complete(&with("parse_word\" = \"no\""), &lib);
    assert!(run(&bare.load(), true).unwrap().mentions("is too short"));
    let gone = complete(&with("parse_old\" = \"a setting of the own user\""), LIB);
    assert!(run(&gone.load(), true).unwrap().mentions("not in the sources"));
}

#[test]
fn target_that_calls_no_parser_is_found() {
    let fixture = complete(LISTED, LIB);
    fixture.write("crates/wire/src/fuzzing.rs", "pub fn card(_: &[u8]) {}\n");
    assert!(run(&fixture.load(), true).unwrap().mentions("calls Card::from_bytes"));
    let unnamed = complete(&LISTED.replace("[actions]", "idle = \"wire\"\n[actions]"), LIB);
    assert!(run(&unnamed.load(), true).unwrap().mentions("idle: needs a parser that names it"));
    let unknown = complete(&LISTED.replace("= \"card\"", "= \"cards\""), LIB);
    assert!(run(&unknown.load(), true).unwrap().mentions("its target cards is not among"));
}

#[test]
fn target_without_a_corpus_is_found() {
    let fixture = complete(LISTED, LIB);
    std::fs::remove_dir_all(fixture.root().join("testing/fuzz/corpus/card")).unwrap();
    fixture.write("testing/fuzz/corpus/cards/seed-0", "x");
    let findings = run(&fixture.load(), true).unwrap();
    assert!(findings.mentions("card: its corpus has 0 files"));
    assert!(findings.mentions("cards: is in testing/fuzz/corpus"));
}

#[test]
fn entries_beside_the_list_are_found() {
    let fixture = complete(LISTED, LIB);
    fixture.write("testing/fuzz/Cargo.toml", "[package]\nname = \"fuzz\"\n\n[[bin]]\nname = \"old\"\n");
    assert!(run(&fixture.load(), true).unwrap().mentions("testing/fuzz/Cargo.toml: differs"));
}
