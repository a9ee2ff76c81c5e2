//! Small throw-away workspaces for the tests of the checks.
//!
//! Only tests call this. A fixture has no lock file and is never built.

use std::path::Path;
use std::process::Command;

use crate::shell;
use crate::workspace::Workspace;

/// A workspace in a temporary folder, which is removed on drop.
pub(crate) struct Fixture {
    folder: tempfile::TempDir,
}

impl Fixture {
    /// An empty workspace.
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let fixture = Self { folder };
        fixture.write("Cargo.toml", "[workspace]\nresolver = \"3\"\nmembers = [\"crates/*\"]\n");
        fixture
    }

    /// Its root.
    pub(crate) fn root(&self) -> &Path {
        self.folder.path()
    }

    /// Writes one file, folders included.
    pub(crate) fn write(&self, path: &str, text: &str) -> &Self {
        let path = self.folder.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
        self
    }

    /// Adds package `trunkline-<name>` with a library of this text that depends on other crates of ours.
    pub(crate) fn with(&self, name: &str, dependencies: &[&str], lib: &str) -> &Self {
        let mut manifest = format!(
            "[package]\nname = \"trunkline-{name}\"\nversion = \"0.1.0\"\nedition = \"2024\"\n\n[dependencies]\n"
        );
        for dependency in dependencies {
            manifest += &format!("trunkline-{dependency} = {{ path = \"../{dependency}\" }}\n");
        }
        self.write(&format!("crates/{name}/Cargo.toml"), &manifest);
        self.write(&format!("crates/{name}/src/lib.rs"), lib)
    }

    /// Appends to a crate's manifest.
    pub(crate) fn manifest(&self, name: &str, more: &str) -> &Self {
        let path = self.folder.path().join(format!("crates/{name}/Cargo.toml"));
        let text = std::fs::read_to_string(&path).unwrap() + more;
        std::fs::write(path, text).unwrap();
        self
    }

    /// Makes it a repository of git, in which nothing is committed.
    pub(crate) fn init_git(&self) -> &Self {
        self.write(".gitignore", "/target\n");
        shell::run_captured(Command::new("git").current_dir(self.root()).args(["init", "--quiet"])).unwrap();
        self
    }

    /// Loads it as the checks do.
    pub(crate) fn load(&self) -> Workspace {
        Workspace::load(self.root()).unwrap()
    }
}
