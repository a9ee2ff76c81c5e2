//! The messages that docs/troubleshooting.md explains: each must exist in a source, word for word.
//!
//! Called by `docs`. A line of the form ``**`message`**`` quotes a message; `<name>` stands for a value, `...` for a part
//! that is left out. The text between those is searched in the string literals of the crates.

use std::path::Path;

use anyhow::{Context as _, Result};
use ra_ap_rustc_lexer::{FrontmatterAllowed, LiteralKind, TokenKind, tokenize};
use regex_lite::Regex;
use walkdir::WalkDir;

use crate::report::CheckFindings;

/// The page, relative to the root.
const PAGE: &str = "docs/troubleshooting.md";
/// The folder whose sources print messages.
const SOURCES: &str = "crates";
/// Fewest characters of a text that is searched: shorter ones occur by chance.
const TEXT_CHARS_MIN: usize = 12;

/// Checks that each quoted message of the page exists in the sources below `root`.
///
/// # Errors
/// The page or a source cannot be read.
pub(crate) fn check_quotes(root: &Path, findings: &mut CheckFindings) -> Result<()> {
    let page = root.join(PAGE);
    if !page.exists() {
        return Ok(());
    }
    let literals = collect_literals(&root.join(SOURCES))?;
    let quote = Regex::new(r"^\*\*`+ ?(.+?) ?`+\*\*$")?;
    let gap = Regex::new(r"<[^>]*>|\.\.\.")?;
    for (index, line) in std::fs::read_to_string(&page)?.lines().enumerate() {
        let Some(message) = quote.captures(line.trim()) else { continue };
        for part in gap.split(&message[1]) {
            if let Some(missing) = find_missing_text(part, &literals) {
                findings.add_finding(
                    format!("{PAGE}:{}", index + 1),
                    format!("no source prints \"{missing}\": quote the message as it is now"),
                );
            }
        }
    }
    Ok(())
}

/// Returns a text of a quoted part that no literal contains. A part may consist of several literals, one after a colon or a
/// semicolon of another.
fn find_missing_text<'a>(part: &'a str, literals: &str) -> Option<&'a str> {
    let trim = |text: &'a str| text.trim_matches([' ', '.', ',', ':', ';', '(', ')']);
    let is_there = |text: &str| text.chars().count() < TEXT_CHARS_MIN || literals.contains(text);
    let whole = trim(part);
    if is_there(whole) {
        return None;
    }
    whole.split([':', ';', '=']).map(trim).find(|text| !is_there(text))
}

/// Returns the texts of all string literals of the sources below a folder, one per line.
fn collect_literals(folder: &Path) -> Result<String> {
    let continuation = Regex::new(r"\\\n\s*")?;
    let mut literals = String::new();
    for entry in WalkDir::new(folder) {
        let entry = entry?;
        let is_source = entry.path().extension().is_some_and(|extension| extension == "rs");
        if !is_source || entry.path().components().any(|part| part.as_os_str() == "tests") {
            continue;
        }
        let text = std::fs::read_to_string(entry.path())
            .with_context(|| format!("reading {}", entry.path().display()))?;
        let mut offset = 0;
        for token in tokenize(&text, FrontmatterAllowed::No) {
            let part = &text[offset..offset + token.len as usize];
            offset += part.len();
            if let TokenKind::Literal { kind: LiteralKind::Str { .. }, .. } = token.kind {
                literals.push_str(&continuation.replace_all(part, "").replace("\\\"", "\""));
                literals.push('\n');
            }
        }
    }
    Ok(literals)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::Fixture;

    fn findings_of(page: &str) -> CheckFindings {
        let fixture = Fixture::new();
        fixture.write("docs/troubleshooting.md", page).write(
            "crates/a/src/lib.rs",
            "#[error(\"cannot open {path}: the file does \\\n     not exist; name \\\"another\\\" one\")]\n\
             const WHY: &str = \"because of a reason\";\n// a comment with hidden words\n",
        );
        let mut findings = CheckFindings::default();
        check_quotes(fixture.root(), &mut findings).unwrap();
        findings
    }

    #[test]
    fn quoted_messages_of_the_sources_pass() {
        for message in [
            "cannot open <path>: the file does not exist; name \"another\" one",
            "cannot open <path>: the file does ...",
            "the file does not exist: because of a reason",
        ] {
            let findings = findings_of(&format!("# Page\n\n**`{message}`**\n"));
            assert!(findings.is_clean(), "{message}: {:?}", findings.broken);
        }
    }

    #[test]
    fn changed_messages_are_found() {
        for message in ["cannot open <path>: the file is not there", "a comment with hidden words"] {
            let findings = findings_of(&format!("**`{message}`**\n"));
            assert!(findings.mentions("docs/troubleshooting.md:1: no source prints"), "{message}");
        }
    }
}
