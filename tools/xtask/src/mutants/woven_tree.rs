//! The woven tree: a copy of the working tree whose edited sources check at run time which bug is selected.
//!
//! `mod` calls this before it builds, and for `weave`. A file is written only if its bytes differ, so that cargo
//! rebuilds little.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use walkdir::WalkDir;

use super::woven_source::WovenSources;
use super::{c_source, woven_manifest};
use crate::shell;
use crate::workspace::{Workspace, WorkspaceCrate, long_name};

/// The crate that woven code calls, relative to the tree.
pub(crate) const PLANTED: &str = "tools/planted";

/// Its source.
const PLANTED_SOURCE: &str = include_str!("../../planted/lib.rs");

/// The header that woven code in C calls.
const PLANTED_HEADER: &str = include_str!("../../planted/trunkline_planted.h");

/// The folder of cargo's results, which is no part of the tree.
const TARGET: &str = "target";

/// The entry at one path of the tree.
#[derive(Debug, PartialEq, Eq)]
enum WovenEntry {
    File { bytes: Vec<u8>, mode: u32 },
    Link(PathBuf),
}

impl WovenEntry {
    fn plain_file(text: String) -> Self {
        Self::File { bytes: text.into_bytes(), mode: 0o644 }
    }

    /// Reads the entry at a path; `None` for a folder.
    fn read_path(path: &Path) -> Result<Option<Self>> {
        let Ok(metadata) = path.symlink_metadata() else { return Ok(None) };
        let context = || format!("reading {}", path.display());
        if metadata.is_symlink() {
            return Ok(Some(Self::Link(path.read_link().with_context(context)?)));
        }
        if !metadata.is_file() {
            return Ok(None);
        }
        let bytes = std::fs::read(path).with_context(context)?;
        Ok(Some(Self::File { bytes, mode: metadata.permissions().mode() & 0o777 }))
    }

    /// Writes this entry, unless the path already contains it.
    fn write_changed(&self, path: &Path) -> Result<()> {
        if Self::read_path(path)?.as_ref() == Some(self) {
            return Ok(());
        }
        self.replace_file(path).with_context(|| format!("writing {}", path.display()))
    }

    fn replace_file(&self, path: &Path) -> std::io::Result<()> {
        if let Ok(metadata) = path.symlink_metadata() {
            if metadata.is_dir() { std::fs::remove_dir_all(path)? } else { std::fs::remove_file(path)? }
        }
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        match self {
            Self::Link(to) => std::os::unix::fs::symlink(to, path),
            Self::File { bytes, mode } => {
                std::fs::write(path, bytes)?;
                std::fs::set_permissions(path, std::fs::Permissions::from_mode(*mode))
            }
        }
    }
}

/// The default folder of the tree.
pub(crate) fn default_folder(workspace: &Workspace) -> PathBuf {
    workspace.target.join("woven")
}

/// The crate whose folder has this file, given relative to the root.
pub(crate) fn find_owner<'a>(workspace: &'a Workspace, path: &str) -> Option<&'a WorkspaceCrate> {
    let path = workspace.root.join(path);
    let owners = workspace.crates.iter().filter(|package| path.starts_with(&package.dir));
    owners.max_by_key(|package| package.dir.as_os_str().len())
}

/// Writes the woven tree to `out`.
///
/// # Errors
/// A file cannot be read or written, or `out` is a folder with other content.
pub(crate) fn write_tree(workspace: &Workspace, sources: WovenSources, out: &Path) -> Result<()> {
    check_folder(workspace, out)?;
    let mut entries = copied_entries(&workspace.root, out)?;
    let dependents = find_dependents(workspace, &sources);
    add_woven(&mut entries, sources);
    add_planted(workspace, &mut entries, &dependents)?;
    for (path, entry) in &entries {
        entry.write_changed(&out.join(path))?;
    }
    remove_others(out, &entries)
}

/// Refuses folders whose files must not be removed.
fn check_folder(workspace: &Workspace, out: &Path) -> Result<()> {
    if workspace.root.starts_with(out) {
        bail!("{} contains the sources: choose another folder for the woven tree", out.display());
    }
    let is_empty =
        !out.exists() || out.read_dir().context("reading the folder of the woven tree")?.next().is_none();
    if !is_empty && !out.join(PLANTED).exists() {
        bail!("{} is no woven tree and not empty: choose another folder", out.display());
    }
    Ok(())
}

/// The entries that are copied from the working tree: all that git does not ignore.
fn copied_entries(root: &Path, out: &Path) -> Result<BTreeMap<PathBuf, WovenEntry>> {
    let mut command = Command::new("git");
    command.current_dir(root).args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
    let mut entries = BTreeMap::new();
    for name in shell::run_captured(&mut command)?.split('\0').filter(|name| !name.is_empty()) {
        let path = root.join(name);
        if path.starts_with(out) {
            continue;
        }
        // A file that git lists may have been removed; a folder is another repository.
        if let Some(entry) = WovenEntry::read_path(&path)? {
            entries.insert(PathBuf::from(name), entry);
        }
    }
    Ok(entries)
}

/// The crates that must be able to check for bugs, without prefix.
fn find_dependents(workspace: &Workspace, sources: &WovenSources) -> BTreeSet<String> {
    if sources.values().any(|source| source.is_in_macro) {
        return workspace.crates.iter().map(|package| package.name.clone()).collect();
    }
    let rust = sources.keys().filter(|path| path.ends_with(".rs"));
    rust.filter_map(|path| find_owner(workspace, path)).map(|owner| owner.name.clone()).collect()
}

fn add_woven(entries: &mut BTreeMap<PathBuf, WovenEntry>, sources: WovenSources) {
    for (path, source) in sources {
        let path = PathBuf::from(path);
        if path.extension().is_none_or(|extension| extension != "rs") {
            let header = path.with_file_name(c_source::HEADER_NAME);
            entries.insert(header, WovenEntry::plain_file(PLANTED_HEADER.to_owned()));
        }
        let mode = match entries.get(&path) {
            Some(WovenEntry::File { mode, .. }) => *mode,
            _ => 0o644,
        };
        entries.insert(path, WovenEntry::File { bytes: source.text.into_bytes(), mode });
    }
}

/// Adds the crate that woven code calls, and the references to it: manifests and the lock file.
fn add_planted(
    workspace: &Workspace,
    entries: &mut BTreeMap<PathBuf, WovenEntry>,
    dependents: &BTreeSet<String>,
) -> Result<()> {
    let planted = Path::new(PLANTED);
    entries.insert(
        planted.join("Cargo.toml"),
        WovenEntry::plain_file(woven_manifest::PLANTED_MANIFEST.to_owned()),
    );
    entries.insert(planted.join("src/lib.rs"), WovenEntry::plain_file(PLANTED_SOURCE.to_owned()));
    change_text(entries, Path::new("Cargo.toml"), woven_manifest::change_root)?;
    for package in workspace.crates.iter().filter(|package| dependents.contains(&package.name)) {
        let folder = package.dir.strip_prefix(&workspace.root).context("a crate outside of the root")?;
        change_text(entries, &folder.join("Cargo.toml"), woven_manifest::change_member)?;
    }
    let lock = Path::new("Cargo.lock");
    if entries.contains_key(lock) {
        let names = dependents.iter().map(|name| long_name(name)).collect();
        change_text(entries, lock, |text| Ok(woven_manifest::change_lock(text, &names)))?;
    }
    Ok(())
}

fn change_text(
    entries: &mut BTreeMap<PathBuf, WovenEntry>,
    path: &Path,
    change: impl FnOnce(&str) -> Result<String>,
) -> Result<()> {
    let Some(WovenEntry::File { bytes, .. }) = entries.get_mut(path) else {
        bail!("{} is not among git's files: add it", path.display());
    };
    let text = std::str::from_utf8(bytes).with_context(|| format!("reading {}", path.display()))?;
    *bytes = change(text).with_context(|| format!("changing {}", path.display()))?.into_bytes();
    Ok(())
}

/// Removes files and folders that the tree no longer has.
fn remove_others(out: &Path, entries: &BTreeMap<PathBuf, WovenEntry>) -> Result<()> {
    let folders: BTreeSet<&Path> = entries.keys().flat_map(|path| path.ancestors().skip(1)).collect();
    let is_target = |path: &Path| path.strip_prefix(out).is_ok_and(|path| path == Path::new(TARGET));
    let walk = WalkDir::new(out).min_depth(1).into_iter().filter_entry(|found| !is_target(found.path()));
    let all = walk.collect::<walkdir::Result<Vec<_>>>().context("reading the woven tree")?;
    // In reverse order, so that a folder is empty when it is removed.
    for found in all.iter().rev() {
        let relative = found.path().strip_prefix(out).unwrap_or(found.path());
        let removed = if found.file_type().is_dir() {
            if folders.contains(relative) { Ok(()) } else { std::fs::remove_dir(found.path()) }
        } else if entries.contains_key(relative) {
            Ok(())
        } else {
            std::fs::remove_file(found.path())
        };
        removed.with_context(|| format!("removing {}", found.path().display()))?;
    }
    Ok(())
}
