//! `cargo xtask docs`: the documentation site, built with mdBook from a copy of the documents.
//!
//! Called by `docs` with `--full` and by developers, never by `ci`. Links inside docs/ work on the site as they are. The copy
//! differs in the others: documents of the root become pages of the site, and a link to a source file becomes its path,
//! because the site contains no sources. Every link of the built pages to a file of the site is followed.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use pulldown_cmark::{Event, Options, Parser, Tag};
use regex_lite::Regex;
use walkdir::WalkDir;

use crate::docs::{check_links, resolve_path};
use crate::report::CheckFindings;
use crate::shell;
use crate::workspace::Workspace;

/// The folder of the pages.
const PAGES: &str = "docs";
/// Documents of the root that are pages of the site too: the document, the page, its title. mdBook would name the page of a
/// README.md like the index.
const ROOT_PAGES: [(&str, &str, &str); 5] = [
    ("README.md", "overview.md", "Overview"),
    ("ARCHITECTURE.md", "ARCHITECTURE.md", "Architecture"),
    ("CONTRIBUTING.md", "CONTRIBUTING.md", "Contributing"),
    ("SECURITY.md", "SECURITY.md", "Security"),
    ("CHANGELOG.md", "CHANGELOG.md", "Changes"),
];
/// The list of pages, and the heading of the pages of the root in it.
const SUMMARY: &str = "SUMMARY.md";
const ROOT_HEADING: &str = "\n# Project\n\n";

/// Checks all links, and builds the site with mdBook under target/book.
///
/// # Errors
/// A document cannot be read or copied, or mdBook cannot be started.
pub(crate) fn build_site(workspace: &Workspace) -> Result<CheckFindings> {
    let mut findings = check_links(workspace)?;
    if !findings.is_clean() {
        return Ok(findings);
    }
    if shell::run_captured(Command::new("mdbook").arg("--version")).is_err() {
        return Ok(CheckFindings::with_skip("mdbook is not installed (cargo install --locked mdbook)"));
    }
    let copy = workspace.target.join("book-pages");
    let book = workspace.target.join("book");
    for folder in [&copy, &book] {
        if folder.exists() {
            std::fs::remove_dir_all(folder)?;
        }
    }
    copy_documents(&workspace.root, &copy)?;
    let built = Command::new("mdbook").arg("build").arg("--dest-dir").arg(&book).arg(&copy).status()?;
    if !built.success() {
        findings.add_finding("book.toml", "mdbook build fails; see above");
        return Ok(findings);
    }
    check_pages(&copy.join(PAGES), &book, &mut findings)?;
    findings.add_note(format!("the site is in {}", book.display()));
    Ok(findings)
}

/// Copies the documents, with links that work on the site.
fn copy_documents(root: &Path, copy: &Path) -> Result<()> {
    let pages = copy.join(PAGES);
    std::fs::create_dir_all(&pages)?;
    std::fs::copy(root.join("book.toml"), copy.join("book.toml")).context("copying book.toml")?;
    for entry in WalkDir::new(root.join(PAGES)).min_depth(1) {
        let entry = entry?;
        let inside = entry.path().strip_prefix(root.join(PAGES))?;
        if entry.file_type().is_dir() {
            std::fs::create_dir_all(pages.join(inside))?;
        } else if entry.path().extension().is_some_and(|extension| extension == "md") {
            copy_page(root, &Path::new(PAGES).join(inside), &pages.join(inside))?;
        } else {
            std::fs::copy(entry.path(), pages.join(inside))?;
        }
    }
    for (name, page, _) in ROOT_PAGES {
        copy_page(root, Path::new(name), &pages.join(page))?;
    }
    let mut summary = std::fs::read_to_string(pages.join(SUMMARY))?;
    summary.push_str(ROOT_HEADING);
    for (_, page, title) in ROOT_PAGES {
        summary.push_str(&format!("- [{title}]({page})\n"));
    }
    Ok(std::fs::write(pages.join(SUMMARY), summary)?)
}

fn copy_page(root: &Path, from: &Path, to: &Path) -> Result<()> {
    let text =
        std::fs::read_to_string(root.join(from)).with_context(|| format!("reading {}", from.display()))?;
    std::fs::write(to, site_text(&text, from)).with_context(|| format!("writing {}", to.display()))
}

/// A link of a document: its place, and the place of its text.
struct SiteLink {
    whole: Range<usize>,
    text: Range<usize>,
    destination: String,
}

/// Returns the text of a document with links that work on the site; `from` is its path in the repository.
fn site_text(text: &str, from: &Path) -> String {
    let mut changed = String::new();
    let mut end = 0;
    for SiteLink { whole, text: label, destination } in list_links(text) {
        let Some(replacement) = site_link(&text[label], &destination, from) else { continue };
        changed.push_str(&text[end..whole.start]);
        changed.push_str(&replacement);
        end = whole.end;
    }
    changed.push_str(&text[end..]);
    changed
}

/// Returns the link to write instead of one that would be dead on the site; `None`: it works.
fn site_link(label: &str, destination: &str, from: &Path) -> Option<String> {
    if destination.contains("://") || destination.starts_with("mailto:") || destination.starts_with('#') {
        return None;
    }
    let (file, anchor) = destination.split_at(destination.find('#').unwrap_or(destination.len()));
    let target = resolve_path(&from.parent().unwrap_or(Path::new("")).join(file))?;
    if let Ok(page) = target.strip_prefix(PAGES) {
        // Pages of the root lie beside those of docs/ on the site.
        return (!from.starts_with(PAGES)).then(|| format!("[{label}]({}{anchor})", page.display()));
    }
    if let Some((_, page, _)) = ROOT_PAGES.iter().find(|(name, ..)| target == Path::new(name)) {
        return Some(format!("[{label}]({page}{anchor})"));
    }
    let path = target.display().to_string();
    Some(if label.trim_matches('`') == path { format!("`{path}`") } else { format!("{label} (`{path}`)") })
}

/// Returns the inline links `[label](destination)` of a document, in their order. Those in code are none.
fn list_links(text: &str) -> Vec<SiteLink> {
    let options = Options::ENABLE_TABLES | Options::ENABLE_FOOTNOTES | Options::ENABLE_STRIKETHROUGH;
    let mut links = Vec::new();
    for (event, whole) in Parser::new_ext(text, options).into_offset_iter() {
        let Event::Start(Tag::Link { dest_url, .. }) = event else { continue };
        let Some(label_end) = text[whole.clone()].rfind("](") else { continue };
        let label = whole.start + 1..whole.start + label_end;
        links.push(SiteLink { whole, text: label, destination: dest_url.into_string() });
    }
    links
}

/// Checks that mdBook built each page, and that each link of a built page to a file of the site has its target.
fn check_pages(pages: &Path, book: &Path, findings: &mut CheckFindings) -> Result<()> {
    for entry in WalkDir::new(pages) {
        let entry = entry?;
        let inside = entry.path().strip_prefix(pages)?;
        let is_page = entry.path().extension().is_some_and(|extension| extension == "md");
        if is_page && inside != Path::new(SUMMARY) && !book.join(inside.with_extension("html")).is_file() {
            findings.add_finding(inside.display().to_string(), "mdbook built no page from it");
        }
    }
    for (page, link) in list_dead_links(book)? {
        findings
            .add_finding(page.display().to_string(), format!("the link to {link} has no target on the site"));
    }
    Ok(())
}

/// Returns the links of built pages to files that the site does not have.
fn list_dead_links(book: &Path) -> Result<Vec<(PathBuf, String)>> {
    let reference = Regex::new("(?:href|src)=\"([^\"#?:]+)[^\":]*\"")?;
    let mut dead = BTreeMap::new();
    for entry in WalkDir::new(book) {
        let entry = entry?;
        // The page of all pages and the one for missing pages repeat links from other folders.
        let is_repeated = ["print.html", "404.html"].iter().any(|name| entry.file_name() == *name);
        if is_repeated || entry.path().extension().is_none_or(|extension| extension != "html") {
            continue;
        }
        let folder = entry.path().parent().unwrap_or(book);
        for found in reference.captures_iter(&std::fs::read_to_string(entry.path())?) {
            if !folder.join(&found[1]).exists() {
                let page = entry.path().strip_prefix(book)?.to_owned();
                dead.insert((page, found[1].to_owned()), ());
            }
        }
    }
    Ok(dead.into_keys().collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::Fixture;

    #[test]
    fn links_to_sources_become_paths() {
        let page = Path::new("docs/a.md");
        for (text, on_site) in [
            ("[b](b.md#x) [c](#y) [d](https://e.org/a)", "[b](b.md#x) [c](#y) [d](https://e.org/a)"),
            ("see [the test](../crates/x/tests/t.rs).", "see the test (`crates/x/tests/t.rs`)."),
            ("[`crates/x`](../crates/x)", "`crates/x`"),
            ("[security](../SECURITY.md#a)", "[security](SECURITY.md#a)"),
            ("`[code](../crates/x)`", "`[code](../crates/x)`"),
        ] {
            assert_eq!(site_text(text, page), on_site);
        }
        let root = Path::new("README.md");
        assert_eq!(site_text("[a](docs/a.md#b), [c](CHANGELOG.md)", root), "[a](a.md#b), [c](CHANGELOG.md)");
    }

    #[test]
    fn dead_links_of_built_pages_are_found() {
        let fixture = Fixture::new();
        fixture
            .write(
                "a.html",
                "<a href=\"b.html#x\"></a><a href=\"none.html\"></a><img src=\"https://e.org/x\">",
            )
            .write("b.html", "<a href=\"#y\"></a>");
        let dead = list_dead_links(fixture.root()).unwrap();
        assert_eq!(dead, [(PathBuf::from("a.html"), "none.html".to_owned())]);
    }
}
