//! `cargo xtask words`: habits of prose that make texts hard to read, per crate and for the documents, as rates that
//! may only fall (tools/xtask/words.toml), and commit subjects that are too long.
//!
//! Called by developers and by `ci`. It finds words, not meanings: a count may include good sentences, and only its
//! growth is judged.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use comfy_table::Table;
use regex_lite::Regex;
use walkdir::WalkDir;

use crate::prose::{self, ProsePassage};
use crate::ratchet::{CrateFigures, FigureRatchet, WorkspaceFigures};
use crate::report::CheckFindings;
use crate::shell;
use crate::workspace::Workspace;

const RATCHET: FigureRatchet = FigureRatchet {
    file: "tools/xtask/words.toml",
    command: "cargo xtask words",
    per: Some(WORDS),
    head: "# Habits of prose, per crate and for documents: counts beside the number of words. Their rates may only fall. `cargo xtask words`\n\
           # compares, `--list CRATE` shows each place, `--update` records lower ones. tools/xtask/src/words.rs defines the habits.\n",
};

/// The figure that the others are relative to.
const WORDS: &str = "words";

/// The crate's place in the table that stands for README.md, docs/ and the like.
const DOCUMENTS: &str = "documents";

/// Headers in C and C++ that users include.
const HEADERS: &str = "include";

/// Most words of a sentence.
const SENTENCE_WORDS_MAX: usize = 35;

/// Most characters of a commit's subject.
const SUBJECT_MAX: usize = 72;

/// A habit, and the expression that finds it in a text.
const HABITS: [(&str, &str); 12] = [
    ("headless_what", r"(?i)\bwhat\b"),
    (
        "headless_who",
        r"(?i)(?:^|[.,;:(]\s*|\b(?:of|to|by|for|from|with|and|or|if|than|that|as|is|are|not|on|at|in|when|where|how)\s+)whom?\b",
    ),
    ("whoever", r"(?i)\b(?:whoever|whomever)\b"),
    ("people", r"(?i)\b(?:nobody|somebody|anybody|everybody)\b"),
    ("told", r"(?i)\b(?:is|are|was|were|be|been|being)\s+(?:told|said)\b"),
    ("speech", r"(?i)\b(?:says|said|say|tells|told|tell|hears|heard|hear|asks|asked|answers|answered)\b"),
    ("looks", r"(?i)\b(?:looks?|looked)\b"),
    ("is_there", r"(?i)\b(?:is|are|was|were)\s+there\b"),
    ("go_and_come", r"(?i)\b(?:goes|go|went|gone|comes|come|came)\b"),
    ("so_many", r"(?i)\b(?:so|as)\s+(?:many|much|long|few)\b"),
    ("archaisms", r"(?i)\b(?:all the same|anew|besides|in vain|for good|now and then|astray)\b"),
    (
        "without_verb_or_noun",
        r"(?i)\b(?:cannot|must|can|may) be[.;:,]|\b(?:that which|those which|the one that|the ones that|the thing that|the things that)\b",
    ),
];

const LONG_SENTENCES: &str = "long_sentences";

/// A habit at a place.
struct HabitHit {
    habit: &'static str,
    place: String,
    text: String,
}

/// Hits and words of each crate.
#[derive(Default)]
struct WordCensus {
    hits: BTreeMap<String, Vec<HabitHit>>,
    words: BTreeMap<String, u64>,
}

/// Compares the rates with the recorded ones; on request, lists the places of one crate, or records lower rates.
///
/// # Errors
/// Sources, documents or recorded figures cannot be read or written, or a figure to record has risen.
pub(crate) fn run(workspace: &Workspace, list: Option<&str>, update: bool) -> Result<CheckFindings> {
    let census = count_habits(workspace)?;
    if let Some(package) = list {
        let hits = census
            .hits
            .get(package)
            .with_context(|| format!("no crate {package}, and neither {DOCUMENTS} nor {HEADERS}"))?;
        hits.iter().for_each(|hit| println!("{}: {}: {}", hit.place, hit.habit, hit.text));
        return Ok(CheckFindings::default());
    }
    let counted = census.group_figures();
    let recorded = RATCHET.read_figures(&workspace.root)?;
    if update {
        RATCHET.write_figures(&workspace.root, &RATCHET.lower_figures(&recorded, &counted)?)?;
        print_rates(&counted);
        return Ok(CheckFindings::default());
    }
    let mut findings = RATCHET.judge_figures(&recorded, &counted);
    judge_subjects(&workspace.root, &mut findings)?;
    Ok(findings)
}

/// Prints the rates of the crates, of the documents and of all.
fn print_rates(figures: &WorkspaceFigures) {
    let value = |of: &CrateFigures, name: &str| of.get(name).copied().unwrap_or(0);
    let rate = |figures: &[&CrateFigures], name: &str| {
        let sum = |name| figures.iter().map(|of| value(of, name)).sum::<u64>();
        format!("{:.1}", 10_000.0 * sum(name) as f64 / sum(WORDS).max(1) as f64)
    };
    let documents: Vec<_> = figures.iter().filter(|(name, _)| *name == DOCUMENTS).map(|(_, of)| of).collect();
    let code: Vec<_> = figures.iter().filter(|(name, _)| *name != DOCUMENTS).map(|(_, of)| of).collect();
    let mut table = Table::new();
    table.set_header(["per 10,000 words", "code", "documents"]);
    for name in HABITS.iter().map(|(name, _)| *name).chain([LONG_SENTENCES]) {
        table.add_row([name, &rate(&code, name), &rate(&documents, name)]);
    }
    println!("{table}");
}

fn count_habits(workspace: &Workspace) -> Result<WordCensus> {
    let habits = habit_patterns()?;
    let mut census = WordCensus::default();
    let add = |census: &mut WordCensus, group: &str, paths: Vec<PathBuf>| -> Result<()> {
        for path in paths {
            let text =
                std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
            let is_document = path.extension().is_some_and(|end| end == "md");
            let passages = if is_document { prose::of_document(&text) } else { prose::of_source(&text) };
            census.add_passages(group, &workspace.relative_path(&path), &passages, &habits);
        }
        Ok(())
    };
    for package in &workspace.crates {
        add(&mut census, &package.name, files_below(&package.dir, &["rs", "h"]))?;
    }
    add(&mut census, HEADERS, files_below(&workspace.root.join("include"), &["h", "hpp", "cuh"]))?;
    add(&mut census, DOCUMENTS, document_paths(&workspace.root))?;
    Ok(census)
}

fn habit_patterns() -> Result<Vec<(&'static str, Regex)>> {
    HABITS.iter().map(|&(name, pattern)| Ok((name, Regex::new(pattern)?))).collect()
}

fn files_below(dir: &Path, endings: &[&str]) -> Vec<PathBuf> {
    let walk = WalkDir::new(dir).sort_by_file_name().into_iter();
    let walk = walk.filter_entry(|entry| entry.file_name() != "target").filter_map(Result::ok);
    let ends = |path: &PathBuf| endings.iter().any(|end| path.extension().is_some_and(|own| own == *end));
    walk.map(walkdir::DirEntry::into_path).filter(ends).collect()
}

/// Markdown at the root, and below docs/.
fn document_paths(root: &Path) -> Vec<PathBuf> {
    let at_root = WalkDir::new(root).max_depth(1).sort_by_file_name().into_iter().filter_map(Result::ok);
    let at_root = at_root
        .map(walkdir::DirEntry::into_path)
        .filter(|path| path.extension().is_some_and(|end| end == "md"));
    at_root.chain(files_below(&root.join("docs"), &["md"])).collect()
}

impl WordCensus {
    fn add_passages(
        &mut self,
        group: &str,
        file: &str,
        passages: &[ProsePassage],
        habits: &[(&'static str, Regex)],
    ) {
        let words =
            passages.iter().map(|passage| prose::split_words(&passage.text).count() as u64).sum::<u64>();
        *self.words.entry(group.to_owned()).or_default() += words;
        let hits = self.hits.entry(group.to_owned()).or_default();
        for ProsePassage { line, text } in passages {
            let place = format!("{file}:{line}");
            for (habit, regex) in habits {
                hits.extend(regex.find_iter(text).map(|found| HabitHit {
                    habit,
                    place: place.clone(),
                    text: hit_context(text, found.range()).to_owned(),
                }));
            }
            let long = prose::split_sentences(text)
                .filter(|sentence| prose::split_words(sentence).count() > SENTENCE_WORDS_MAX);
            hits.extend(long.map(|sentence| HabitHit {
                habit: LONG_SENTENCES,
                place: place.clone(),
                text: sentence.to_owned(),
            }));
        }
    }

    fn group_figures(&self) -> WorkspaceFigures {
        let of_group = |group: &String, hits: &Vec<HabitHit>| {
            let names = HABITS.iter().map(|(name, _)| *name).chain([LONG_SENTENCES]);
            let count = |name| hits.iter().filter(|hit| hit.habit == name).count() as u64;
            let mut figures: CrateFigures = names.map(|name| (name.to_owned(), count(name))).collect();
            figures.insert(WORDS.to_owned(), self.words.get(group).copied().unwrap_or(0));
            figures
        };
        self.hits.iter().map(|(group, hits)| (group.clone(), of_group(group, hits))).collect()
    }
}

/// The hit with a few words on each side.
fn hit_context(text: &str, hit: std::ops::Range<usize>) -> &str {
    const SIDE: usize = 40;
    let floor = |mut at: usize| {
        while !text.is_char_boundary(at) {
            at -= 1;
        }
        at
    };
    &text[floor(hit.start.saturating_sub(SIDE))..floor((hit.end + SIDE).min(text.len()))]
}

/// Adds a finding for each commit since this check exists whose subject is too long.
fn judge_subjects(root: &Path, findings: &mut CheckFindings) -> Result<()> {
    let git = |arguments: &[&str]| shell::run_captured(Command::new("git").current_dir(root).args(arguments));
    let Ok(first) = git(&["log", "--diff-filter=A", "--format=%H", "--reverse", "--", RATCHET.file]) else {
        findings.add_note("no git history: the subjects of commits were not read");
        return Ok(());
    };
    let Some(first) = first.lines().next() else { return Ok(()) };
    let log = git(&["log", "--format=%h %s", &format!("{first}..HEAD")])?;
    for (commit, subject) in log.lines().filter_map(|line| line.split_once(' ')) {
        // Merges and fixups are not written by hand.
        let length = subject.chars().count();
        if length > SUBJECT_MAX && !subject.starts_with("Merge ") {
            findings.add_finding(
                commit,
                format!("the subject has {length} characters, at most {SUBJECT_MAX}: {subject}"),
            );
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "words_tests.rs"]
mod tests;
