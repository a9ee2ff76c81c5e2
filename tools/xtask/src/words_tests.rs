//! Each habit that `words` counts, shown on small texts.

use super::*;
use crate::fixture::Fixture;

fn found_in(text: &str) -> Vec<&'static str> {
    let mut census = WordCensus::default();
    census.add_passages("engine", "lib.rs", &prose::of_source(text), &habit_patterns().unwrap());
    census.hits["engine"].iter().map(|hit| hit.habit).collect()
}

#[test]
fn each_habit_is_found() {
    for (name, text) in [
        ("headless_what", "// What is posted leaves with the next poll."),
        ("headless_who", "// Rests are for who waits."),
        ("whoever", "// Whoever has the lock polls."),
        ("people", "// Nobody waits."),
        ("told", "// The peer is told."),
        ("speech", "// A record says its length."),
        ("looks", "// A look at the ring."),
        ("is_there", "// Once it is there, it is read."),
        ("go_and_come", "// The message goes by TCP."),
        ("so_many", "// Only so many fit."),
        ("archaisms", "// It is registered anew."),
        ("without_verb_or_noun", "/// Rank 7 cannot be."),
        ("without_verb_or_noun", "/// That which is posted."),
    ] {
        assert!(found_in(text).contains(&name), "{name} in {text}: {:?}", found_in(text));
    }
}

#[test]
fn prose_in_the_words_of_the_field_is_clean() {
    let text = "//! Posts operations and polls completions. The caller who waits blocks until the transfer completes.\nfn what() {}\n";
    assert_eq!(found_in(text), [""; 0]);
}

#[test]
fn messages_and_test_names_are_searched() {
    assert_eq!(found_in("fn f() { bail!(\"nobody has registered it\") }"), ["people"]);
    assert_eq!(found_in("#[test]\nfn what_is_sent_arrives() {}"), ["headless_what"]);
}

#[test]
fn long_sentences_are_found() {
    let sentence = |words: usize| format!("// {}.", vec!["word"; words].join(" "));
    assert!(found_in(&sentence(SENTENCE_WORDS_MAX)).is_empty());
    assert_eq!(found_in(&sentence(SENTENCE_WORDS_MAX + 1)), [LONG_SENTENCES]);
    let two = format!("// {0}. Then {0}.", vec!["word"; 20].join(" "));
    assert!(found_in(&two).is_empty());
}

#[test]
fn a_worse_text_fails_the_check() {
    let fixture = Fixture::new();
    fixture.with("engine", &[], "//! Sends and receives messages for the callers of this crate.\n");
    fixture.write("README.md", "# Trunkline\n").write("tools/xtask/.keep", "");
    run(&fixture.load(), None, true).unwrap();
    assert!(run(&fixture.load(), None, false).unwrap().is_clean());
    fixture.write("README.md", "# Trunkline\n\nNobody is told.\n");
    assert!(run(&fixture.load(), None, false).unwrap().mentions("people rose from 0 to 1"));
    assert!(run(&fixture.load(), None, true).is_err());
}

#[test]
fn long_subjects_are_findings_from_the_first_commit_of_the_check_on() {
    let fixture = Fixture::new();
    let git = |arguments: &[&str]| {
        let mut command = Command::new("git");
        command.current_dir(fixture.root()).args(["-c", "user.name=T", "-c", "user.email=t@example.org"]);
        shell::run_captured(command.args(arguments)).unwrap()
    };
    let commit = |subject: &str| git(&["commit", "-q", "--allow-empty", "-m", subject]);
    git(&["init", "-q"]);
    commit(&"old ".repeat(30));
    fixture.write(RATCHET.file, "");
    git(&["add", "."]);
    commit("words: count habits");
    commit(&"x".repeat(SUBJECT_MAX));
    let judged = || {
        let mut findings = CheckFindings::default();
        judge_subjects(fixture.root(), &mut findings).unwrap();
        findings
    };
    assert!(judged().is_clean());
    commit(&"y".repeat(SUBJECT_MAX + 1));
    assert!(judged().mentions("the subject has 73 characters"));
}
