//! `cargo xtask unsafe-budget`: compares the amount of unsafe code in each crate with the table in docs/unsafe.md.
//!
//! Called by developers and by `ci`. A rise fails until the same commit changes the table; a fall is a remark. It also
//! finds unsafe code without a `SAFETY:` comment, which clippy does better where it is installed.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::{Context as _, Result, bail};
use proc_macro2::TokenTree;
use syn::spanned::Spanned as _;
use syn::visit::{self, Visit};

use crate::report::CheckFindings;
use crate::source::{self, SourceFile};
use crate::workspace::Workspace;

/// The file of the table, relative to the root.
const DOCUMENT: &str = "docs/unsafe.md";
const BEGIN: &str = "<!-- unsafe-budget:begin -->";
const END: &str = "<!-- unsafe-budget:end -->";

/// How far above an unsafe block or impl its `SAFETY:` comment may begin.
const COMMENT_LINES_ABOVE: usize = 12;

/// The counted kinds, in the order of the table's columns.
const COLUMNS: [&str; 5] = ["blocks", "fns", "impls", "attributes", "in macros"];

/// Counts in the order of [`COLUMNS`].
type UnsafeCounts = [usize; 5];

/// Compares the sources with the table; with `update` writes the table instead.
///
/// # Errors
/// Sources or document cannot be read or written.
pub(crate) fn run(workspace: &Workspace, update: bool) -> Result<CheckFindings> {
    let mut findings = CheckFindings::default();
    let mut counted = BTreeMap::new();
    for package in &workspace.crates {
        let mut counts = UnsafeCounts::default();
        for source in source::product_sources(&package.dir)? {
            let file = workspace.relative_path(&source.path);
            count_file(&source, &file, &mut counts, &mut findings);
        }
        if counts != UnsafeCounts::default() {
            counted.insert(package.name.clone(), counts);
        }
    }
    let path = workspace.root.join(DOCUMENT);
    let text = std::fs::read_to_string(&path).with_context(|| format!("reading {DOCUMENT}"))?;
    if update {
        std::fs::write(&path, with_table(&text, &counted)?).with_context(|| format!("writing {DOCUMENT}"))?;
        findings.add_note(format!("{DOCUMENT} is up to date"));
    } else {
        compare_counts(&counted, &read_table(&text)?, &mut findings);
    }
    for name in counted.keys() {
        if !text.lines().any(|line| line.starts_with('#') && line.contains(&format!("`{name}`"))) {
            findings.add_finding(
                DOCUMENT,
                format!("has no section headed `{name}`: why unsafe, which invariants, how checked"),
            );
        }
    }
    Ok(findings)
}

fn compare_counts(
    counted: &BTreeMap<String, UnsafeCounts>,
    table: &BTreeMap<String, UnsafeCounts>,
    findings: &mut CheckFindings,
) {
    for (name, counts) in counted {
        let budget = table.get(name).copied().unwrap_or_default();
        for ((column, now), allowed) in COLUMNS.iter().zip(counts).zip(budget) {
            if *now > allowed {
                let text = format!(
                    "unsafe {column}: {now}, the budget is {allowed}; remove some, or \
                     run `cargo xtask unsafe-budget --update` and give the reason in the same commit"
                );
                findings.add_finding(name, text);
            } else if *now < allowed {
                findings.add_note(format!(
                    "{name}: unsafe {column} fell from {allowed} to {now}; --update records it"
                ));
            }
        }
    }
    for name in table.keys().filter(|name| !counted.contains_key(*name)) {
        findings.add_note(format!("{name} contains no unsafe any more; --update removes its row"));
    }
}

/// Counts one file and checks its comments.
fn count_file(source: &SourceFile, file: &str, counts: &mut UnsafeCounts, findings: &mut CheckFindings) {
    let mut seen = UnsafeCounter::default();
    seen.visit_file(&source.product);
    counts[0] += seen.blocks.len();
    counts[1] += seen.functions;
    counts[2] += seen.impls.len();
    counts[3] += seen.attributes;
    counts[4] += seen.in_macros;
    let lines: Vec<&str> = source.text.lines().collect();
    for line in seen.blocks.iter().chain(&seen.impls) {
        let from = line.saturating_sub(COMMENT_LINES_ABOVE + 1);
        let near = lines.get(from..*line).unwrap_or_default();
        if !near.iter().any(|l| l.contains("SAFETY:")) {
            findings.add_finding(format!("{file}:{line}"), "unsafe without a SAFETY: comment above it");
        }
    }
}

/// The unsafe code of a file; blocks and impls by line.
#[derive(Default)]
struct UnsafeCounter {
    blocks: Vec<usize>,
    functions: usize,
    impls: Vec<usize>,
    attributes: usize,
    in_macros: usize,
}

impl<'ast> Visit<'ast> for UnsafeCounter {
    fn visit_expr_unsafe(&mut self, block: &'ast syn::ExprUnsafe) {
        self.blocks.push(block.unsafe_token.span().start().line);
        visit::visit_expr_unsafe(self, block);
    }

    fn visit_signature(&mut self, signature: &'ast syn::Signature) {
        self.functions += usize::from(signature.unsafety.is_some());
        visit::visit_signature(self, signature);
    }

    fn visit_foreign_item_fn(&mut self, item: &'ast syn::ForeignItemFn) {
        // Unsafe unless it is declared `safe`, which syn keeps as separate tokens.
        self.functions += usize::from(item.sig.unsafety.is_none());
        visit::visit_foreign_item_fn(self, item);
    }

    fn visit_attribute(&mut self, attribute: &'ast syn::Attribute) {
        self.attributes += usize::from(attribute.path().is_ident("unsafe"));
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        self.impls.extend(item.unsafety.map(|token| token.span().start().line));
        visit::visit_item_impl(self, item);
    }

    fn visit_macro(&mut self, item: &'ast syn::Macro) {
        let mut tokens = Vec::new();
        source::flat_tokens(item.tokens.clone(), &mut tokens);
        self.in_macros += (0..tokens.len()).filter(|at| opens_unsafe(&tokens, *at)).count();
    }
}

/// Whether `unsafe` in a macro opens unsafe code; function pointer types do not.
fn opens_unsafe(tokens: &[TokenTree], at: usize) -> bool {
    let is = |offset: usize, word: &str| match tokens.get(at + offset) {
        Some(TokenTree::Ident(ident)) => *ident == word,
        _ => false,
    };
    is(0, "unsafe") && !is(1, "extern")
}

fn read_table(text: &str) -> Result<BTreeMap<String, UnsafeCounts>> {
    let mut table = BTreeMap::new();
    for line in split_document(text)?.1.lines().filter(|l| l.starts_with("| `")) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [name, numbers @ ..] = cells.as_slice() else { bail!("{DOCUMENT}: odd row {line}") };
        let mut counts = UnsafeCounts::default();
        if numbers.len() != counts.len() {
            bail!("{DOCUMENT}: a row has {} columns, not {}", numbers.len() + 1, counts.len() + 1);
        }
        for (count, number) in counts.iter_mut().zip(numbers) {
            *count = number.parse().with_context(|| format!("{DOCUMENT}: {number} in {line}"))?;
        }
        table.insert(name.trim_matches('`').to_owned(), counts);
    }
    Ok(table)
}

fn with_table(text: &str, counted: &BTreeMap<String, UnsafeCounts>) -> Result<String> {
    let (before, _, after) = split_document(text)?;
    let mut table =
        format!("\n| crate | {} |\n| --- |{}\n", COLUMNS.join(" | "), " ---: |".repeat(COLUMNS.len()));
    for (name, counts) in counted {
        let cells: Vec<String> = counts.iter().map(ToString::to_string).collect();
        writeln!(table, "| `{name}` | {} |", cells.join(" | "))?;
    }
    Ok(format!("{before}{BEGIN}{table}{END}{after}"))
}

/// The document before, between and after the two markers.
fn split_document(text: &str) -> Result<(&str, &str, &str)> {
    let parts = text.split_once(BEGIN).and_then(|(a, rest)| rest.split_once(END).map(|(b, c)| (a, b, c)));
    parts.with_context(|| format!("{DOCUMENT} lacks the markers {BEGIN} and {END}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::Fixture;

    const LIB: &str = "// SAFETY: planted.\nunsafe impl Send for S {}\nunsafe fn f() {}\n\
                       fn g() {\n // SAFETY: planted.\n unsafe { f() }\n}\n\
                       macro_rules! m { () => { unsafe { f() } } }\ntype F = unsafe extern \"C\" fn();\n";

    fn fixture(row: &str) -> Fixture {
        let fixture = Fixture::new();
        fixture.with("mem", &[], LIB);
        fixture.write(DOCUMENT, &format!("## `mem`\n{BEGIN}\n{row}\n{END}\nrest\n"));
        fixture
    }

    #[test]
    fn within_budget_passes_and_above_is_caught() {
        assert!(run(&fixture("| `mem` | 1 | 1 | 1 | 0 | 1 |").load(), false).unwrap().is_clean());
        let findings = run(&fixture("| `mem` | 0 | 1 | 1 | 0 | 1 |").load(), false).unwrap();
        assert!(findings.mentions("mem: unsafe blocks: 1, the budget is 0"));
        assert!(run(&fixture("").load(), false).unwrap().mentions("unsafe in macros: 1"));
    }

    #[test]
    fn lower_counts_are_a_remark() {
        let findings = run(&fixture("| `mem` | 9 | 1 | 1 | 0 | 1 |").load(), false).unwrap();
        assert!(findings.is_clean());
        assert_eq!(findings.notes.len(), 1);
    }

    #[test]
    fn update_writes_a_table_that_passes() {
        let fixture = fixture("");
        run(&fixture.load(), true).unwrap();
        let text = std::fs::read_to_string(fixture.root().join(DOCUMENT)).unwrap();
        assert!(text.contains("| `mem` | 1 | 1 | 1 | 0 | 1 |") && text.ends_with("rest\n"));
        assert!(run(&fixture.load(), false).unwrap().is_clean());
    }

    #[test]
    fn unsafe_without_a_comment_is_caught() {
        let fixture = fixture("| `mem` | 1 | 0 | 0 | 0 | 0 |");
        fixture.with("mem", &[], "fn g() {\n unsafe { f() }\n}\n");
        assert!(run(&fixture.load(), false).unwrap().mentions("lib.rs:2: unsafe without a SAFETY: comment"));
    }

    #[test]
    fn foreign_functions_and_attributes_count() {
        let fixture = fixture("");
        fixture.with("mem", &[], "unsafe extern \"C\" { fn f(); }\n#[unsafe(no_mangle)] fn g() {}\n");
        let findings = run(&fixture.load(), false).unwrap();
        assert!(findings.mentions("unsafe fns: 1") && findings.mentions("unsafe attributes: 1"));
    }

    #[test]
    fn a_crate_without_its_section_is_caught() {
        let fixture = fixture("| `mem` | 1 | 1 | 1 | 0 | 1 |");
        fixture.with("sys", &[], "unsafe fn f() {}");
        assert!(run(&fixture.load(), false).unwrap().mentions("no section headed `sys`"));
    }

    #[test]
    fn test_code_is_not_budgeted() {
        let fixture = fixture("");
        fixture.with("mem", &[], "#[cfg(test)]\nmod tests { fn g() { unsafe { f() } } }\n");
        assert!(run(&fixture.load(), false).unwrap().is_clean());
    }
}
