//! All bugs of `mutants/*.toml`: read, checked, and woven into their sources in memory.
//!
//! `mod` calls this for each command. It writes no file.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context as _, Result};
use walkdir::WalkDir;

use super::bug_file::{BugFile, PlantedBug};
use super::file_edit::FileEdit;
use super::mutant_row::MutantRow;
use super::woven_source::{WovenSource, WovenSources, weave_source};
use super::woven_tree;
use crate::report::{CheckFinding, CheckFindings};
use crate::workspace::Workspace;

/// The folder of the bugs' files, relative to the root.
const FOLDER: &str = "mutants";

/// A file of bugs.
#[derive(Debug)]
struct NamedFile {
    /// Relative to the root.
    path: String,
    /// The crate of its name, without prefix.
    package: String,
    bugs: BugFile,
}

/// All files of bugs.
#[derive(Debug, Default)]
pub(crate) struct BugTable {
    files: Vec<NamedFile>,
}

impl BugTable {
    /// Reads all files, and checks their names, suites and crates.
    ///
    /// # Errors
    /// The folder or a file cannot be read.
    pub(crate) fn read_files(workspace: &Workspace, findings: &mut CheckFindings) -> Result<Self> {
        let mut table = Self::default();
        let folder = workspace.root.join(FOLDER);
        for entry in WalkDir::new(folder).min_depth(1).max_depth(1).sort_by_file_name() {
            let path = entry.with_context(|| format!("reading {FOLDER}"))?.into_path();
            if path.extension().is_none_or(|extension| extension != "toml") {
                continue;
            }
            let package = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            let name = format!("{FOLDER}/{package}.toml");
            let text = std::fs::read_to_string(&path).with_context(|| format!("reading {name}"))?;
            match toml::from_str(&text) {
                Ok(bugs) => table.files.push(NamedFile { path: name, package, bugs }),
                Err(error) => findings.add_finding(name, error.to_string()),
            }
        }
        if table.iter_bugs().next().is_none() {
            findings.add_finding(FOLDER, "no file <crate>.toml has a bug: plant some");
        }
        table.check_names(workspace, findings);
        Ok(table)
    }

    /// All bugs, in the order of weaving.
    fn iter_bugs(&self) -> impl Iterator<Item = &PlantedBug> {
        self.files.iter().flat_map(|file| &file.bugs.bug)
    }

    /// How many bugs, edits and edited files there are.
    pub(crate) fn summary_text(&self) -> String {
        let edits = self.iter_bugs().map(|bug| bug.edit.len()).sum::<usize>();
        format!("{} bugs, {edits} edits in {} files", self.iter_bugs().count(), self.edits_by_file().len())
    }

    /// A row for each bug and suite that must detect it.
    pub(crate) fn bug_rows(&self) -> Vec<MutantRow<'_>> {
        let mut rows = Vec::new();
        for file in &self.files {
            for bug in &file.bugs.bug {
                let suites = bug.suites.iter().filter_map(|name| file.bugs.suite.get(name));
                rows.extend(suites.map(|suite| MutantRow {
                    name: &bug.name,
                    breaks: &bug.breaks,
                    suite,
                    package: suite.package.as_ref().unwrap_or(&file.package),
                }));
            }
        }
        rows
    }

    fn edits_by_file(&self) -> BTreeMap<&str, Vec<FileEdit<'_>>> {
        let mut files: BTreeMap<&str, Vec<FileEdit<'_>>> = BTreeMap::new();
        for bug in self.iter_bugs() {
            for edit in &bug.edit {
                files.entry(&edit.file).or_default().push(FileEdit { bug: &bug.name, edit });
            }
        }
        files
    }

    /// Weaves each edited file, several at a time. Edits that cannot be woven become findings, in the order of the
    /// files.
    pub(crate) fn weave_sources(&self, workspace: &Workspace, findings: &mut CheckFindings) -> WovenSources {
        let files: Vec<_> = self.edits_by_file().into_iter().collect();
        let next = AtomicUsize::new(0);
        let ended = Mutex::new(BTreeMap::new());
        let work = || {
            while let Some((path, edits)) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
                let woven = weave_path(workspace, path, edits);
                ended.lock().unwrap_or_else(PoisonError::into_inner).insert((*path).to_owned(), woven);
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
                scope.spawn(work);
            }
        });
        let mut sources = WovenSources::new();
        for (path, woven) in ended.into_inner().unwrap_or_else(PoisonError::into_inner) {
            match woven {
                Ok(source) => drop(sources.insert(path, source)),
                Err(refused) => findings.broken.extend(refused),
            }
        }
        sources
    }

    fn check_names(&self, workspace: &Workspace, findings: &mut CheckFindings) {
        let mut seen = BTreeMap::new();
        for file in &self.files {
            if workspace.find_crate(&file.package).is_none() {
                findings.add_finding(
                    &file.path,
                    format!("there is no crate {}: a file has the name of one", file.package),
                );
            }
            for bug in &file.bugs.bug {
                let place = format!("{}: bug {}", file.path, bug.name);
                if let Some(first) = seen.insert(&bug.name, &file.path) {
                    findings
                        .add_finding(&place, format!("{first} has a bug of this name already: rename one"));
                }
                check_bug(&place, bug, &file.bugs, findings);
            }
            for (name, suite) in &file.bugs.suite {
                let place = format!("{}: suite {name}", file.path);
                if !file.bugs.bug.iter().any(|bug| bug.suites.contains(name)) {
                    findings.add_finding(&place, "no bug of this file names it: remove it");
                }
                for package in suite.package.iter().chain(&suite.build) {
                    if workspace.find_crate(package).is_none() {
                        findings.add_finding(&place, format!("there is no crate {package}"));
                    }
                }
            }
        }
    }
}

fn check_bug(place: &str, bug: &PlantedBug, file: &BugFile, findings: &mut CheckFindings) {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_' || c == '.';
    if bug.name.is_empty() || !bug.name.chars().all(is_plain) {
        findings.add_finding(place, "a name has letters, digits and `-` only");
    }
    if bug.breaks.trim().is_empty() {
        findings.add_finding(place, "`breaks` is empty: describe the wrong behaviour");
    }
    if bug.suites.is_empty() {
        findings.add_finding(place, "no suite must detect it: name at least one in `suites`");
    }
    if bug.edit.is_empty() {
        findings.add_finding(place, "it edits nothing: add [[bug.edit]]");
    }
    for (at, suite) in bug.suites.iter().enumerate() {
        if !file.suite.contains_key(suite) {
            let known: Vec<&str> = file.suite.keys().map(String::as_str).collect();
            findings
                .add_finding(place, format!("there is no suite {suite}; the file has {}", known.join(", ")));
        }
        if bug.suites[..at].contains(suite) {
            findings.add_finding(place, format!("it names suite {suite} twice"));
        }
    }
}

fn weave_path(
    workspace: &Workspace,
    path: &str,
    edits: &[FileEdit<'_>],
) -> Result<WovenSource, Vec<CheckFinding>> {
    let refuse = |reason: &str| Err(edits.iter().map(|of| of.refuse_edit(reason)).collect());
    let relative = Path::new(path);
    if relative.is_absolute() || relative.iter().any(|part| part == "..") {
        return refuse("`file` is relative to the root and has no `..`");
    }
    if relative.file_name().is_some_and(|name| name == "build.rs") {
        return refuse("a build script runs before its crate can ask for a bug: plant it elsewhere");
    }
    if path.ends_with(".rs") && woven_tree::find_owner(workspace, path).is_none() {
        return refuse("the file belongs to no crate of the workspace, which could ask for the bug");
    }
    match std::fs::read_to_string(workspace.root.join(path)) {
        Ok(text) => weave_source(&text, edits),
        Err(error) => refuse(&format!("reading it: {error}")),
    }
}

/// `cargo xtask mutants check`: all bugs can be woven, and their suites and crates exist.
///
/// # Errors
/// A file of bugs cannot be read.
pub(crate) fn check_bugs(workspace: &Workspace) -> Result<CheckFindings> {
    let mut findings = CheckFindings::default();
    let table = BugTable::read_files(workspace, &mut findings)?;
    table.weave_sources(workspace, &mut findings);
    println!("mutants: {}", table.summary_text());
    Ok(findings)
}
