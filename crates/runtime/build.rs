//! Puts the commit of the source into the banner of release builds. Development builds contain none, because each
//! commit would then link all of them again.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::{env, fs};

/// The number of a commit's digits in the banner.
const DIGITS: usize = 12;

fn main() {
    // Packages that are built without a repository pass the commit.
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

/// Returns the commit that is checked out; `None` without a repository. Reads its files, because `git` may be missing.
fn head_commit() -> Option<String> {
    let root = Path::new(&env::var_os("CARGO_MANIFEST_DIR")?).join("../..");
    let git = git_folder(&root.join(".git"))?;
    let head = read_watched(&git.join("HEAD"))?;
    let Some(name) = head.trim().strip_prefix("ref: ") else { return Some(head.trim().to_owned()) };
    // A worktree keeps its references in the main repository.
    let common = fs::read_to_string(git.join("commondir")).map_or(git.clone(), |path| git.join(path.trim()));
    let packed = read_watched(&common.join("packed-refs"));
    // Every commit writes this file, also if its reference was packed before.
    let _ = read_watched(&git.join("logs/HEAD"));
    let loose = read_watched(&common.join(name)).map(|commit| commit.trim().to_owned());
    loose.or_else(|| {
        let text = packed?;
        let mut pairs = text.lines().filter_map(|line| line.split_once(' '));
        pairs.find(|(_, of)| *of == name).map(|(commit, _)| commit.to_owned())
    })
}

/// Returns the repository's folder; in a worktree, `.git` is a file with its path.
fn git_folder(path: &Path) -> Option<PathBuf> {
    if path.is_dir() {
        return Some(path.to_owned());
    }
    let text = fs::read_to_string(path).ok()?;
    Some(path.parent()?.join(text.trim().strip_prefix("gitdir: ")?))
}

/// Returns the content of a file, and runs this script again after a change. A missing file would run it for each
/// build.
fn read_watched(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    println!("cargo::rerun-if-changed={}", path.display());
    Some(text)
}
