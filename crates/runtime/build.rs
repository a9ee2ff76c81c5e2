//! Puts the commit of the source into the banner of builds for use. Builds for development name none: each commit would have them all linked anew.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::{env, fs};

/// Digits of a commit that are shown.
const DIGITS: usize = 12;

fn main() {
    // A package that is built without its history names the commit.
    println!("cargo::rerun-if-env-changed=TRUNKLINE_COMMIT");
    println!("cargo::rerun-if-changed=build.rs");
    let named = env::var("TRUNKLINE_COMMIT").ok().filter(|commit| !commit.is_empty());
    let is_for_use = env::var("PROFILE").is_ok_and(|profile| profile == "release");
    let commit = match named {
        Some(commit) => Some(commit),
        None if is_for_use => head_commit(),
        None => None,
    };
    let unknown = if is_for_use { "unknown" } else { "unknown, a development build" };
    let commit = commit.map_or_else(|| unknown.to_owned(), |commit| commit.chars().take(DIGITS).collect());
    println!("cargo::rustc-env=TRUNKLINE_BUILT_FROM={commit}");
}

/// The commit that is checked out; `None` without a repository. Read from its files, as `git` may be missing.
fn head_commit() -> Option<String> {
    let root = Path::new(&env::var_os("CARGO_MANIFEST_DIR")?).join("../..");
    let git = git_folder(&root.join(".git"))?;
    let head = read_watched(&git.join("HEAD"))?;
    let Some(name) = head.trim().strip_prefix("ref: ") else { return Some(head.trim().to_owned()) };
    // A worktree keeps its references with the repository it is of.
    let common = fs::read_to_string(git.join("commondir")).map_or(git.clone(), |path| git.join(path.trim()));
    let packed = read_watched(&common.join("packed-refs"));
    // Written by each commit, also by one whose reference was packed before.
    let _ = read_watched(&git.join("logs/HEAD"));
    let loose = read_watched(&common.join(name)).map(|commit| commit.trim().to_owned());
    loose.or_else(|| {
        let text = packed?;
        let mut pairs = text.lines().filter_map(|line| line.split_once(' '));
        pairs.find(|(_, of)| *of == name).map(|(commit, _)| commit.to_owned())
    })
}

/// The repository's folder; of a worktree `.git` is a file that names it.
fn git_folder(path: &Path) -> Option<PathBuf> {
    if path.is_dir() {
        return Some(path.to_owned());
    }
    let text = fs::read_to_string(path).ok()?;
    Some(path.parent()?.join(text.trim().strip_prefix("gitdir: ")?))
}

/// The content of a file, whose next change runs this again. One that is missing would run it each time.
fn read_watched(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    println!("cargo::rerun-if-changed={}", path.display());
    Some(text)
}
