//! The workspace for the checks: crates, their folders and their dependencies.
//!
//! Every command starts here. It runs `cargo metadata` and never builds anything.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use cargo_metadata::{DependencyKind, MetadataCommand};

/// The prefix of every package of ours.
pub(crate) const PREFIX: &str = "trunkline-";

/// The builds that include a dependency.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DependencyScope {
    /// In the files that users build (build scripts included).
    Always,
    /// Only in tests, examples and benches.
    Tests,
}

/// One dependency of a crate.
#[derive(Debug, Clone)]
pub(crate) struct CrateDependency {
    /// Package name, prefix included.
    pub(crate) name: String,
    /// The builds that include it.
    pub(crate) when: DependencyScope,
}

/// One package of the workspace.
#[derive(Debug, Clone)]
pub(crate) struct WorkspaceCrate {
    /// Name without the prefix: `engine`.
    pub(crate) name: String,
    /// Folder, absolute.
    pub(crate) dir: PathBuf,
    /// The root sources of its library and binaries, absolute.
    pub(crate) roots: Vec<PathBuf>,
    /// All its dependencies, ours or not.
    pub(crate) dependencies: Vec<CrateDependency>,
}

impl WorkspaceCrate {
    /// The crate's dependencies on crates of ours, without the prefix.
    pub(crate) fn own_dependencies(&self) -> impl Iterator<Item = (&str, DependencyScope)> {
        self.dependencies.iter().filter_map(|d| Some((short_name(&d.name)?, d.when)))
    }
}

/// The whole workspace.
#[derive(Debug)]
pub(crate) struct Workspace {
    /// The folder of the root manifest.
    pub(crate) root: PathBuf,
    /// Cargo's target folder.
    pub(crate) target: PathBuf,
    /// Every member, sorted by name.
    pub(crate) crates: Vec<WorkspaceCrate>,
}

impl Workspace {
    /// Reads the workspace whose root manifest is in `root`.
    ///
    /// # Errors
    /// `cargo metadata` fails there.
    pub(crate) fn load(root: &Path) -> Result<Self> {
        let metadata = MetadataCommand::new()
            .manifest_path(root.join("Cargo.toml"))
            .no_deps()
            .exec()
            .with_context(|| format!("cargo metadata in {}", root.display()))?;
        let mut crates: Vec<WorkspaceCrate> =
            metadata.workspace_packages().into_iter().map(to_crate).collect();
        crates.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(Self {
            root: metadata.workspace_root.clone().into_std_path_buf(),
            target: metadata.target_directory.clone().into_std_path_buf(),
            crates,
        })
    }

    /// The workspace this binary was built from.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub(crate) fn current() -> Result<Self> {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        Self::load(here.ancestors().nth(2).unwrap_or(here))
    }

    /// The crate of that name (without prefix).
    pub(crate) fn find_crate(&self, name: &str) -> Option<&WorkspaceCrate> {
        self.crates.iter().find(|c| c.name == name)
    }

    /// A path relative to the root.
    pub(crate) fn relative_path(&self, path: &Path) -> String {
        path.strip_prefix(&self.root).unwrap_or(path).display().to_string()
    }
}

/// The name without our prefix; `None` for crates that are not ours.
pub(crate) fn short_name(package: &str) -> Option<&str> {
    // The Rust API crate has no suffix: package `trunkline`.
    if package == "trunkline" { Some(package) } else { package.strip_prefix(PREFIX) }
}

/// The package of a crate of ours.
pub(crate) fn long_name(name: &str) -> String {
    if name == "trunkline" { name.to_owned() } else { format!("{PREFIX}{name}") }
}

fn to_crate(package: &cargo_metadata::Package) -> WorkspaceCrate {
    let dir = package.manifest_path.parent().map(|p| p.as_std_path().to_owned()).unwrap_or_default();
    let roots = package
        .targets
        .iter()
        .filter(|t| !(t.is_test() || t.is_example() || t.is_bench()))
        .map(|t| t.src_path.clone().into_std_path_buf())
        .collect();
    let dependencies = package
        .dependencies
        .iter()
        .map(|d| CrateDependency {
            name: d.name.clone(),
            when: if d.kind == DependencyKind::Development {
                DependencyScope::Tests
            } else {
                DependencyScope::Always
            },
        })
        .collect();
    let name = package.name.as_str();
    WorkspaceCrate { name: short_name(name).unwrap_or(name).to_owned(), dir, roots, dependencies }
}
