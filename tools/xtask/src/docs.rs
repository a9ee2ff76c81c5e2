//! Links between documents, and the list of the site's pages: `cargo xtask docs`, which then builds the site (`site`).
//!
//! `ci` calls [`check_links`], which reads the Markdown files only. Each link to a file or a heading of the repository
//! must have its target. Each page under docs/ must be in docs/SUMMARY.md, and each message
//! that docs/troubleshooting.md quotes must exist. Links to other hosts are not followed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use anyhow::{Context as _, Result};
use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};
use walkdir::WalkDir;

use crate::quoted_messages;
use crate::report::CheckFindings;
use crate::workspace::Workspace;

/// The list of pages of the site, relative to the root.
const SUMMARY: &str = "docs/SUMMARY.md";
/// Folders without documents of the project.
const SKIPPED_FOLDERS: [&str; 2] = [".git", "target"];

/// A link of a document.
struct DocumentLink {
    line: usize,
    destination: String,
}

/// A document: its links, and the anchors of its headings.
#[derive(Default)]
struct MarkdownPage {
    links: Vec<DocumentLink>,
    anchors: BTreeSet<String>,
}

/// Checks each link of each document to a file or a heading of the repository, and that the site has all pages.
///
/// # Errors
/// A document cannot be read.
pub(crate) fn check_links(workspace: &Workspace) -> Result<CheckFindings> {
    let documents = list_pages(&workspace.root)?;
    let mut findings = CheckFindings::default();
    for (path, document) in &documents {
        for link in &document.links {
            if let Err(text) = check_link(&workspace.root, path, &link.destination, &documents) {
                findings.add_finding(format!("{}:{}", path.display(), link.line), text);
            }
        }
    }
    check_summary(&documents, &mut findings);
    quoted_messages::check_quotes(&workspace.root, &mut findings)?;
    Ok(findings)
}

/// Checks that the list of pages has each document under docs/.
fn check_summary(documents: &BTreeMap<PathBuf, MarkdownPage>, findings: &mut CheckFindings) {
    let Some(summary) = documents.get(Path::new(SUMMARY)) else { return };
    let listed: BTreeSet<PathBuf> =
        summary.links.iter().map(|link| Path::new("docs").join(&link.destination)).collect();
    for page in documents.keys().filter(|page| page.starts_with("docs") && *page != Path::new(SUMMARY)) {
        if !listed.contains(page) {
            findings.add_finding(page.display().to_string(), format!("the page is not in {SUMMARY}"));
        }
    }
}

/// All Markdown files of the tree, by their paths relative to its root.
fn list_pages(root: &Path) -> Result<BTreeMap<PathBuf, MarkdownPage>> {
    let mut documents = BTreeMap::new();
    let is_wanted = |name: &std::ffi::OsStr| !SKIPPED_FOLDERS.iter().any(|skipped| name == *skipped);
    for entry in WalkDir::new(root).into_iter().filter_entry(|entry| is_wanted(entry.file_name())) {
        let entry = entry?;
        if entry.file_type().is_file() && entry.path().extension().is_some_and(|extension| extension == "md")
        {
            let text = std::fs::read_to_string(entry.path())
                .with_context(|| format!("reading {}", entry.path().display()))?;
            documents.insert(entry.path().strip_prefix(root)?.to_owned(), parse_page(&text));
        }
    }
    Ok(documents)
}

fn parse_page(text: &str) -> MarkdownPage {
    let mut document = MarkdownPage::default();
    let mut heading: Option<String> = None;
    let options = Options::ENABLE_TABLES | Options::ENABLE_FOOTNOTES | Options::ENABLE_STRIKETHROUGH;
    for (event, range) in Parser::new_ext(text, options).into_offset_iter() {
        match event {
            Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                let line = text[..range.start].matches('\n').count() + 1;
                document.links.push(DocumentLink { line, destination: dest_url.into_string() });
            }
            Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
            Event::End(TagEnd::Heading(_)) => {
                let anchor = anchor_of(&heading.take().unwrap_or_default());
                // A second heading of the same text has a number.
                let unique = (0..).map(|number| match number {
                    0 => anchor.clone(),
                    number => format!("{anchor}-{number}"),
                });
                let free = unique.into_iter().find(|anchor| !document.anchors.contains(anchor));
                document.anchors.extend(free);
            }
            Event::Text(part) | Event::Code(part) => {
                if let Some(heading) = &mut heading {
                    heading.push_str(&part);
                }
            }
            _ => {}
        }
    }
    document
}

/// The anchor of a heading, as GitHub and mdBook make it: lower case, without punctuation, with hyphens for spaces.
fn anchor_of(heading: &str) -> String {
    let kept = heading.trim().to_lowercase();
    let kept = kept.chars().filter(|&letter| letter.is_alphanumeric() || matches!(letter, ' ' | '-' | '_'));
    kept.map(|letter| if letter == ' ' { '-' } else { letter }).collect()
}

/// Checks that a link of the document `from` has a target.
fn check_link(
    root: &Path,
    from: &Path,
    destination: &str,
    documents: &BTreeMap<PathBuf, MarkdownPage>,
) -> std::result::Result<(), String> {
    if destination.contains("://") || destination.starts_with("mailto:") {
        return Ok(());
    }
    let mut halves = destination.splitn(2, '#');
    let file = halves.next().unwrap_or_default();
    let folder = from.parent().unwrap_or(Path::new(""));
    let target = if file.is_empty() { Some(from.to_owned()) } else { resolve_path(&folder.join(file)) };
    let target = target
        .filter(|target| root.join(target).exists())
        .ok_or_else(|| format!("the link to {destination} has no target: correct the path"))?;
    match (halves.next(), documents.get(&target)) {
        (Some(anchor), Some(document)) if !document.anchors.contains(anchor) => Err(format!(
            "{} has no heading for #{anchor}: correct the link to {destination}",
            target.display()
        )),
        _ => Ok(()),
    }
}

/// The path without `.` and `..`; `None` if it leaves the tree.
pub(crate) fn resolve_path(path: &Path) -> Option<PathBuf> {
    let mut resolved = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => {
                if !resolved.pop() {
                    return None;
                }
            }
            part => resolved.push(part),
        }
    }
    Some(resolved)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::Fixture;

    fn check_fixture(fixture: &Fixture) -> CheckFindings {
        let root = fixture.root().to_owned();
        let workspace = Workspace { target: root.join("target"), root, crates: Vec::new() };
        check_links(&workspace).unwrap()
    }

    #[test]
    fn links_with_targets_pass() {
        let fixture = Fixture::new();
        fixture.write(
            "README.md",
            "# One `part`, two\n[a](docs/a.md) [b](#one-part-two) [c](docs/a.md#its-end) [d](docs)\n",
        );
        fixture.write(
            "docs/a.md",
            "## Its end\n[up](../README.md) [out](https://example.org/none) <mailto:a@b>\n",
        );
        fixture.write("docs/SUMMARY.md", "- [A](a.md)\n");
        let findings = check_fixture(&fixture);
        assert!(findings.is_clean(), "{:?}", findings.broken);
    }

    #[test]
    fn links_without_targets_are_found() {
        let fixture = Fixture::new();
        let text = "# Here\n\n[a](none.md)\n[b](#nowhere)\n[c](docs/a.md#gone)\n[d](../outside.md)\n![e](docs/none.svg)\n";
        fixture.write("README.md", text);
        fixture.write("docs/a.md", "# A\n");
        let findings = check_fixture(&fixture);
        for place in ["README.md:3", "README.md:4", "README.md:5", "README.md:6", "README.md:7"] {
            assert!(findings.mentions(place), "{place}: {:?}", findings.broken);
        }
        assert_eq!(findings.broken.len(), 5);
    }

    #[test]
    fn pages_outside_of_the_summary_are_found() {
        let fixture = Fixture::new();
        fixture
            .write("docs/SUMMARY.md", "- [A](a.md)\n")
            .write("docs/a.md", "# A\n")
            .write("docs/b.md", "# B\n");
        let findings = check_fixture(&fixture);
        assert!(findings.mentions("docs/b.md: the page is not in docs/SUMMARY.md"), "{:?}", findings.broken);
        assert_eq!(findings.broken.len(), 1);
    }

    #[test]
    fn equal_headings_have_numbers() {
        let document = parse_page("# Why, and how?\n## Why, and how?\n```\n# no heading\n```\n");
        assert_eq!(document.anchors.into_iter().collect::<Vec<_>>(), ["why-and-how", "why-and-how-1"]);
    }
}
