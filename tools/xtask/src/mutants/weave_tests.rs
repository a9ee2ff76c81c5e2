//! Edits woven into small sources: each kind, and each refusal.

use super::bug_file::BugFile;
use super::file_edit::FileEdit;
use super::woven_source::weave_source;

/// A bug with one edit, whose keys are these lines.
fn bug(name: &str, edit: &str) -> String {
    let file = if edit.contains("file =") { "" } else { "file = \"a.rs\"\n" };
    format!("[[bug]]\nname = \"{name}\"\nbreaks = \"x\"\nsuites = []\n[[bug.edit]]\n{file}{edit}\n")
}

/// The woven text, with each run-time condition as `?name`; or the failures, one per line.
fn weave(source: &str, bugs: &str) -> Result<String, String> {
    let file: BugFile = toml::from_str(bugs).unwrap();
    let edits: Vec<FileEdit<'_>> = file
        .bug
        .iter()
        .flat_map(|bug| bug.edit.iter().map(|edit| FileEdit { bug: &bug.name, edit }))
        .collect();
    match weave_source(source, &edits) {
        Ok(woven) => {
            let mut parts = woven.text.split("::trunkline_planted::is_planted(\"");
            let first = parts.next().unwrap_or_default().to_owned();
            Ok(parts.fold(first, |text, part| text + "?" + &part.replacen("\")", "", 1)))
        }
        Err(failures) => Err(failures.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")),
    }
}

/// The woven text of one edit on one line.
fn weave_one(source: &str, edit: &str) -> String {
    let woven = weave(source, &bug("a", edit)).unwrap_or_else(|failure| panic!("{failure}"));
    super::source_anchor::on_one_line(&woven)
}

fn refuse(source: &str, edit: &str) -> String {
    weave(source, &bug("a", edit)).unwrap_err()
}

#[test]
fn anchors_ignore_layout_comments_and_last_commas() {
    let source = "fn f() -> u8 {\n    g(\n        one, // first\n        /* second */ two,\n    )\n}";
    let woven = weave(source, &bug("a", "swap = \"g(one,two)\"\nwith = \"0\"")).unwrap();
    assert!(woven.contains("if ?a { 0 } else { g(\n        one, // first"), "{woven}");
    assert!(refuse(source, "swap = \"g(two, one)\"\nwith = \"0\"").contains("the anchor does not occur"));
}

#[test]
fn anchors_occur_exactly_once() {
    let source = "fn f() { a(1); a(1); }\nfn g() { a(1); }";
    let failure = refuse(source, "in = \"f\"\nswap = \"a(1)\"\nwith = \"\"");
    assert!(failure.contains("2 times, in lines 1, 1"), "{failure}");
    assert_eq!(
        weave_one(source, "in = \"g\"\nswap = \"a(1)\"\nwith = \"\""),
        "fn f() { a(1); a(1); } fn g() { if ?a { } else { a(1); } }"
    );
}

#[test]
fn within_narrows_the_place() {
    let source = "fn f() { let (a, b) = (g(x), h(x)); }";
    let woven = weave_one(source, "within = \"h(x)\"\nswap = \"x\"\nwith = \"0\"");
    assert_eq!(woven, "fn f() { let (a, b) = (g(x), h((if ?a { 0 } else { x }))); }");
    let failure = refuse(source, "within = \"k(x)\"\nswap = \"x\"\nwith = \"0\"");
    assert!(failure.contains("`within` does not occur"), "{failure}");
    assert!(refuse(source, "swap = \"x\"\nwith = \"0\"").contains("add `within`"));
}

#[test]
fn dots_match_the_shortest_balanced_run() {
    let source = "fn f() { if a { b({ c }); } if d { e } k(); }";
    let woven = weave_one(source, "swap = \"if a { ... }\"\nwith = \"\"");
    assert_eq!(woven, "fn f() { if ?a { } else { if a { b({ c }); } } if d { e } k(); }");
    let woven = weave_one(source, "swap = \"if d { e } ... k();\"\nwith = \"\"");
    assert!(woven.ends_with("if ?a { } else { if d { e } k(); } }"), "{woven}");
    // No run leaves the delimiters in which it began.
    assert!(refuse(source, "swap = \"b( ... k()\"\nwith = \"\"").contains("does not occur"));
}

#[test]
fn a_missing_anchor_names_the_nearest_match() {
    let source = "fn f() {\n    start(now);\n    total += size_of(first) * 2;\n}";
    let failure = refuse(source, "in = \"f\"\nswap = \"size_of(last) * 2\"\nwith = \"0\"");
    assert_eq!(
        failure,
        "bug a: a.rs: in `f`, anchor `size_of(last) * 2`: the anchor does not occur; the nearest match is in line 3: \
         `size_of(first) * 2`"
    );
}

const PATHS: &str = "
mod inner { fn plain() { one(); } }
struct Pair<T>(T);
impl<T> Pair<T> { fn fmt(&self) { one(); } }
impl<T> fmt::Display for Pair<T> { fn fmt(&self) { fn deep() { one(); } one(); } }
trait Shape { fn area(&self) { one(); } }
macro_rules! twice { ($x:expr) => { one($x) }; }
";

#[test]
fn items_are_found_by_path() {
    let woven_at = |path: &str| {
        let woven = weave_one(PATHS, &format!("in = \"{path}\"\nswap = \"one()\"\nwith = \"two()\""));
        woven[..woven.find("?a").unwrap()].matches("one();").count()
    };
    assert_eq!(woven_at("plain"), 0);
    assert_eq!(woven_at("inner::plain"), 0);
    assert_eq!(woven_at("Shape::area"), 4);
    assert_eq!(woven_at("fmt::deep"), 2);
    assert_eq!(woven_at("Display for Pair::fmt::deep"), 2);
    let both = refuse(PATHS, "in = \"Pair::fmt\"\nswap = \"one()\"\nwith = \"\"");
    assert!(both.contains("3 times"), "{both}");
    let woven =
        weave_one(PATHS, "in = \"Display for Pair::fmt\"\nswap = \"fn deep() { ... } one();\"\nwith = \"\"");
    assert!(woven.contains("if ?a { } else { fn deep()"), "{woven}");
    assert!(
        weave_one(PATHS, "in = \"twice\"\nswap = \"one($x)\"\nwith = \"$x\"")
            .contains("(if ?a { $x } else { one($x) })")
    );
}

#[test]
fn a_missing_item_names_similar_ones() {
    let failure = refuse(PATHS, "in = \"Shape::areas\"\nswap = \"one()\"\nwith = \"\"");
    assert!(
        failure.contains("the file has no item `Shape::areas`; similar ones are `Shape::area`"),
        "{failure}"
    );
}

#[test]
fn an_expression_is_swapped_in_parentheses() {
    assert_eq!(
        weave_one("fn f() -> u8 { let x = a + b * c; x }", "swap = \"b * c\"\nwith = \"0\""),
        "fn f() -> u8 { let x = a + (if ?a { 0 } else { b * c }); x }"
    );
    // An argument of a macro is an expression, too; a part of one is not.
    assert_eq!(
        weave_one("fn f() { assert!(a + b, \"x\"); }", "swap = \"b\"\nwith = \"0\""),
        "fn f() { assert!(a + (if ?a { 0 } else { b }), \"x\"); }"
    );
}

#[test]
fn an_expression_becomes_a_block_where_one_must_stand() {
    let source = "fn f() { match x { A => { one() } B => two(), } if y { three() } else { four() } let c = |z| -> u8 { z }; }";
    assert!(
        weave_one(source, "swap = \"{ one() }\"\nwith = \"\"")
            .contains("A => { if ?a { } else { { one() } } } B")
    );
    assert!(
        weave_one(source, "within = \"else { four() }\"\nswap = \"{ ... }\"\nwith = \"5\"")
            .contains("else { if ?a { 5 } else { { four() } } }")
    );
    assert!(
        weave_one(source, "within = \"u8 { z }\"\nswap = \"{ z }\"\nwith = \"5\"")
            .contains("-> u8 { if ?a { 5 } else { { z } } }")
    );
    assert!(
        weave_one(source, "swap = \"{ three() }\"\nwith = \"5\"")
            .contains("if y { if ?a { 5 } else { { three() } } }")
    );
    assert_eq!(
        weave_one("fn f() { S { name } }", "swap = \"name\"\nwith = \"0\""),
        "fn f() { S { name: (if ?a { 0 } else { name }) } }"
    );
}

#[test]
fn statements_are_swapped_without_parentheses() {
    let source = "fn f() -> u8 { one(); two(); three() }";
    assert_eq!(
        weave_one(source, "swap = \"one(); two()\"\nwith = \"four()\""),
        "fn f() -> u8 { if ?a { four(); } else { one(); two(); } three() }"
    );
    assert_eq!(
        weave_one(source, "swap = \"two(); three()\"\nwith = \"4\""),
        "fn f() -> u8 { one(); if ?a { 4 } else { two(); three() } }"
    );
    // A comment at the end of a bug's text hides no brace.
    assert!(weave(source, &bug("a", "swap = \"one()\"\nwith = \"four() // why\"")).is_ok());
}

#[test]
fn a_let_alone_is_refused() {
    let source = "fn f() { let x = one(); two(x); let y = 1; }";
    let failure = refuse(source, "swap = \"let x = one();\"\nwith = \"\"");
    assert!(failure.contains("anchor its initialiser"), "{failure}");
    assert!(
        weave_one(source, "swap = \"let x = one(); two(x);\"\nwith = \"\"")
            .contains("if ?a { } else { let x = one(); two(x); } let y")
    );
    assert!(
        weave_one(source, "swap = \"one()\"\nwith = \"2\"").contains("let x = (if ?a { 2 } else { one() });")
    );
}

#[test]
fn a_let_without_a_name_is_swapped() {
    let woven = weave_one("fn f() { let _ = one(); two(); }", "swap = \"let _ = one();\"\nwith = \"\"");
    assert_eq!(woven, "fn f() { if ?a { } else { let _ = one(); } two(); }");
}

#[test]
fn arms_get_guards() {
    let source = "fn f() { match x { A => 1, B if c || d => { 2 } _ => 3 } }";
    assert_eq!(
        weave_one(source, "swap = \"A => 1,\"\nwith = \"A if e => 4, C => 5\""),
        "fn f() { match x { A if ?a && (e) => 4, C if ?a => 5, A => 1, B if c || d => { 2 } _ => 3 } }"
    );
    assert_eq!(
        weave_one(source, "swap = \"A => 1, B if c || d => { 2 }\"\nwith = \"\""),
        "fn f() { match x { A if !?a => 1, B if !?a && (c || d) => { 2 } _ => 3 } }"
    );
    // Two bugs remove the same arm.
    let woven = weave(
        source,
        &(bug("a", "swap = \"A => 1\"\nwith = \"\"") + &bug("b", "swap = \"A => 1\"\nwith = \"\"")),
    );
    assert!(woven.unwrap().contains("A if !?a && !?b => 1"));
}

#[test]
fn inserts_stand_beside_the_innermost_statement() {
    let source = "fn f() -> u8 { one(two(3)); if y { four(5); } six() }";
    assert_eq!(
        weave_one(source, "insert = \"return 9\"\nbefore = \"two(3)\""),
        "fn f() -> u8 { if ?a { return 9; } one(two(3)); if y { four(5); } six() }"
    );
    assert!(
        weave_one(source, "insert = \"return 9;\"\nafter = \"four(\"")
            .contains("four(5); if ?a { return 9; } }")
    );
    assert!(
        weave_one(source, "insert = \"return 9;\"\nbefore = \"six()\"")
            .contains("if ?a { return 9; } six() }")
    );
    assert!(
        refuse(source, "insert = \"return 9;\"\nafter = \"six()\"").contains("nothing runs after the value")
    );
    // A loop has no value.
    let woven = weave_one("fn f() { for x in y { one(); } }", "insert = \"two()\"\nafter = \"for x in y\"");
    assert_eq!(woven, "fn f() { for x in y { one(); } if ?a { two(); } }");
}

#[test]
fn an_inserted_let_shadows_its_name() {
    let source = "fn f(x: u8) { one(x); }";
    assert_eq!(
        weave_one(source, "insert = \"let mut x: u8 = x + 1;\"\nbefore = \"one\""),
        "fn f(x: u8) { let mut x: u8 = if ?a { x + 1 } else { x }; one(x); }"
    );
}

#[test]
fn inserts_at_arms_are_arms_or_surround_the_body() {
    let source = "fn f() { match x { A => one(), B => two()? } }";
    assert!(
        weave_one(source, "insert = \"C => 3\"\nbefore = \"A =>\"").contains("{ C if ?a => 3, A => one(),")
    );
    assert!(
        weave_one(source, "insert = \"C => 3\"\nafter = \"one()\"").contains("A => one(), C if ?a => 3, B")
    );
    assert!(
        weave_one(source, "insert = \"three()\"\nbefore = \"one()\"")
            .contains("A => { if ?a { three(); } one() },")
    );
    assert!(
        weave_one(source, "insert = \"three()\"\nafter = \"two()\"")
            .contains("B => { let planted_value = two()?; if ?a { three(); } planted_value } }")
    );
}

#[test]
fn equal_anchors_are_a_chain() {
    let source = "fn f() -> u8 { let x = one(); x }";
    let bugs = bug("b", "swap = \"one()\"\nwith = \"2\"") + &bug("a", "swap = \"one( )\"\nwith = \"3\"");
    let woven = weave(source, &bugs).unwrap();
    assert!(woven.contains("(if ?b { 2 } else if ?a { 3 } else { one() })"), "{woven}");
}

#[test]
fn inner_anchors_are_woven_into_the_original() {
    let source = "fn f() { one(two(3)); }";
    let bugs = bug("a", "swap = \"3\"\nwith = \"4\"") + &bug("b", "swap = \"one(two(3));\"\nwith = \"\"");
    let woven = weave(source, &(bugs + &bug("c", "insert = \"five()\"\nbefore = \"one\""))).unwrap();
    assert_eq!(woven, "fn f() { if ?c { five(); } if ?b { } else { one(two((if ?a { 4 } else { 3 }))); } }");
}

#[test]
fn overlapping_anchors_are_refused() {
    let source = "fn f() { one(); two(); three(); }";
    let bugs = bug("a", "swap = \"one(); two();\"\nwith = \"\"")
        + &bug("b", "swap = \"two(); three();\"\nwith = \"\"");
    let failure = weave(source, &bugs).unwrap_err();
    assert!(failure.starts_with("bug b: ") && failure.contains("overlaps one of bug a"), "{failure}");
}

#[test]
fn anchors_without_a_node_are_refused() {
    for (source, edit, why) in [
        ("fn f() { let x = a + b * c; }", "swap = \"a + b\"\nwith = \"0\"", "no whole node"),
        ("fn f() { one(2; }", "swap = \"one\"\nwith = \"0\"", "no Rust"),
        ("const X: u8 = 1 + 2;", "swap = \"2\"\nwith = \"0\"", "constant or a type"),
        ("fn f() { let x = [0; 2 + 3]; }", "swap = \"3\"\nwith = \"0\"", "constant or a type"),
        ("fn f(x: Vec<u8>) {}", "swap = \"u8\"\nwith = \"u16\"", "no whole node"),
        ("#[inline]\nfn f() {}", "swap = \"inline\"\nwith = \"cold\"", "no whole node"),
        ("const fn f() -> u8 { 1 }", "swap = \"1\"\nwith = \"0\"", "fn f is `const`"),
        ("fn f() { if let Some(x) = y {} }", "swap = \"let Some(x) = y\"\nwith = \"z\"", "behind its `=`"),
        ("fn f() { self.x += 1; }", "swap = \"self.x\"\nwith = \"y\"", "is written to"),
        ("fn f() { g(&mut self.x.y); }", "swap = \"self.x\"\nwith = \"y\"", "is written to"),
        ("fn f() { g(1); }", "swap = \"1\"\nwith = \"\"", "needs a value"),
        ("fn f() { g(1); }", "swap = \"1\"\nwith = \"if\"", "neither an expression nor statements"),
        ("fn f() { match x { A => 1 } }", "swap = \"A => 1\"\nwith = \"2\"", "no match arm"),
        ("fn f() { g(1); }", "swap = \"// 1\"\nwith = \"2\"", "comments do not count"),
        ("fn f() { g(1); }", "swap = \"1\"\nbefore = \"1\"\nwith = \"2\"", "an edit has"),
        ("fn f() { g(1); }", "swap = \"1\"", "an edit has"),
    ] {
        let failure = refuse(source, edit);
        assert!(failure.starts_with("bug a: a.rs: ") && failure.contains(why), "{source}: {failure}");
    }
    // A closure runs later than the constant around it is evaluated.
    assert!(weave("static X: L = L::new(|| one(2));", &bug("a", "swap = \"2\"\nwith = \"3\"")).is_ok());
}

#[test]
fn all_failures_are_listed() {
    let source = "fn f() { g(1); }";
    let bugs = bug("a", "swap = \"2\"\nwith = \"0\"")
        + &bug("b", "swap = \"g\"\nwith = \"h\"")
        + &bug("c", "in = \"k\"\nswap = \"1\"\nwith = \"0\"");
    let failures = weave(source, &bugs).unwrap_err();
    let bugs: Vec<&str> = failures.lines().map(|line| &line[..6]).collect();
    assert_eq!(bugs, ["bug a:", "bug c:"]);
}

#[test]
fn macro_tokens_are_an_expression_or_statements() {
    let source = "macro_rules! m { ($x:expr, $($y:expr),*) => { one($x); let z = two($x); three($($y),*) }; }\n\
                  fn f() { select! { x = a(1) => b(2), } }";
    assert!(
        weave_one(source, "swap = \"two($x)\"\nwith = \"$x\"")
            .contains("let z = (if ?a { $x } else { two($x) });")
    );
    assert!(
        weave_one(source, "swap = \"one($x)\"\nwith = \"\"").contains("{ if ?a { } else { one($x); } let z")
    );
    assert!(weave_one(source, "swap = \"b(2)\"\nwith = \"3\"").contains("=> (if ?a { 3 } else { b(2) }),"));
    assert!(
        weave_one(source, "insert = \"four()\"\nbefore = \"one($x);\"")
            .contains("{ if ?a { four(); } one($x);")
    );
    assert!(
        refuse(source, "swap = \"=> b(2)\"\nwith = \"3\"").contains("neither an expression nor statements")
    );
    let file: BugFile = toml::from_str(&bug("a", "swap = \"two($x)\"\nwith = \"$x\"")).unwrap();
    let edits = [FileEdit { bug: "a", edit: &file.bug[0].edit[0] }];
    assert!(weave_source(source, &edits).unwrap().is_in_macro);
}

const HEADER: &str = "// A header.\n#ifndef A_H\n#define A_H\n#include <b.h>\n\nint h(int x);\n\
                      static inline int f(int x) { /* g(1) { */\n    if (x) g(1);\n    return x + 2;\n}\nint k(int x) { return x + 2; }\n#endif\n";

fn weave_header(edit: &str) -> Result<String, String> {
    let woven = weave(HEADER, &bug("a", &format!("file = \"a.h\"\n{edit}")))?;
    Ok(woven.replace("trunkline_planted(\"a\")", "?a"))
}

#[test]
fn headers_are_woven_by_text() {
    let woven = weave_header("in = \"f\"\nswap = \"x+2\"\nwith = \"0\"").unwrap();
    assert!(woven.contains("return (?a ? (0) : (x + 2));\n}\nint k(int x) { return x + 2; }"), "{woven}");
    assert!(woven.contains("#define A_H\n#if defined(__CUDACC_RTC__)"), "{woven}");
    assert!(woven.contains("#include \"trunkline_planted.h\"\n#endif\n#include <b.h>"), "{woven}");
    let woven = weave_header("swap = \"g(1);\"\nwith = \"\"").unwrap();
    assert!(woven.contains("if (x) { if (?a) { } else { g(1); } }"), "{woven}");
    let woven = weave_header("in = \"f\"\ninsert = \"x = 3;\"\nbefore = \"return x + 2;\"").unwrap();
    assert!(woven.contains("if (?a) { x = 3; } return x + 2;"), "{woven}");
}

#[test]
fn headers_refuse_edits_that_cannot_be_woven() {
    for (edit, why) in [
        ("swap = \"x + 2\"\nwith = \"0\"", "2 times"),
        ("in = \"h\"\nswap = \"x\"\nwith = \"0\"", "no function `h`"),
        ("in = \"f\"\nswap = \"x + 3\"\nwith = \"0\"", "the nearest match is in line 9: `x + 2`"),
        ("in = \"f\"\nswap = \"return x +\"\nwith = \"\"", "needs a value"),
        ("in = \"f\"\nswap = \"g(\"\nwith = \"0\"", "piece of an expression"),
        ("in = \"f\"\ninsert = \"x = 1;\"\nbefore = \"x + 2\"", "beside an expression"),
        ("in = \"f\"\ninsert = \"x = 1;\"\nbefore = \"g(1);\"", "no braces around it"),
    ] {
        let failure = weave_header(edit).unwrap_err();
        assert!(failure.contains(why), "{edit}: {failure}");
    }
}

#[test]
fn pragma_precedes_the_include() {
    let edit = bug("a", "file = \"a.hpp\"\nswap = \"1\"\nwith = \"0\"");
    assert!(weave("#pragma once\nint x = 1;\n", &edit).unwrap().starts_with("#pragma once\n#if defined"));
    assert!(
        weave("#include <a>\n#include <b>\nint x = 1;\n", &edit)
            .unwrap()
            .starts_with("#include <a>\n#include <b>\n#if defined")
    );
}
