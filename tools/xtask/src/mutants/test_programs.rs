//! The test programs that rows need, built in the woven tree.
//!
//! `mod` calls this once per run. A separate target folder keeps planted bugs out of all products.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context as _, Result, bail};

use super::mutant_row::MutantRow;
use super::{bug_file, woven_tree};
use crate::shell;
use crate::suite::{self, TestProgram};
use crate::workspace::{Workspace, long_name};

/// Test programs by (package, target); a library's target is `lib`.
#[derive(Debug, Default)]
pub(crate) struct TestPrograms(BTreeMap<(String, String), TestProgram>);

impl TestPrograms {
    /// The program with a row's tests.
    ///
    /// # Errors
    /// No such program was built.
    pub(crate) fn find_program(&self, row: &MutantRow<'_>) -> Result<&TestProgram> {
        let target = &row.suite.target;
        let key = (row.package.to_owned(), target.clone());
        self.0.get(&key).with_context(|| {
            format!("bug {}: crate {} has no test program `{target}`", row.name, row.package)
        })
    }
}

/// Builds every test program that the rows need, in the woven tree, which has already been written.
///
/// # Errors
/// The build fails.
pub(crate) fn build(workspace: &Workspace, rows: &[MutantRow<'_>]) -> Result<TestPrograms> {
    let target = workspace.target.join("mutants");
    link_built_artifacts(&workspace.target.join("debug"), &target.join("debug"))?;
    let workspace = &Workspace::load(&woven_tree::default_folder(workspace))?;
    let cargo = |verb: &[&str], packages: &BTreeSet<&str>| {
        let mut command = shell::cargo_command(&workspace.root);
        command.args(verb).arg("--target-dir").arg(&target);
        command.args(packages.iter().flat_map(|name| ["--package".to_owned(), long_name(name)]));
        command
    };
    let tested: BTreeSet<&str> = rows.iter().map(|row| row.package).collect();
    let opened: BTreeSet<&str> = rows.iter().flat_map(|row| &row.suite.build).map(String::as_str).collect();
    if !opened.is_empty()
        && !cargo(&["build"], &(&opened | &tested)).status().context("starting cargo")?.success()
    {
        bail!("cargo build with the planted bugs failed");
    }
    let mut command = cargo(&["test", "--no-run", "--message-format=json-render-diagnostics"], &tested);
    command.args(program_filters(workspace, rows));
    let out = command.stderr(Stdio::inherit()).output().context("starting cargo")?;
    if !out.status.success() {
        bail!("cargo test --no-run with the planted bugs failed");
    }
    let programs = suite::test_programs(workspace, &out.stdout)?.into_iter();
    Ok(TestPrograms(
        programs.map(|program| ((program.package.clone(), program.target.clone()), program)).collect(),
    ))
}

/// Links the results of plain builds into a new target folder: crates without planted bugs are equal there.
pub(crate) fn link_built_artifacts(from: &Path, to: &Path) -> Result<()> {
    if to.exists() || !from.exists() {
        return Ok(());
    }
    for part in [".fingerprint", "build", "deps"] {
        take_all(&from.join(part), &to.join(part))
            .with_context(|| format!("linking {part} for the build"))?;
    }
    Ok(())
}

fn take_all(from: &Path, to: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in from.read_dir()? {
        let entry = entry?;
        let (entry, to) = (entry.path(), to.join(entry.file_name()));
        if entry.is_dir() {
            take_all(&entry, &to)?;
        } else if is_made_anew(&entry) {
            std::fs::hard_link(&entry, &to)?;
        } else {
            copy_as_old(&entry, &to)?;
        }
    }
    Ok(())
}

/// Whether each build replaces the file, as compilers do with their output. Cargo overwrites its own records of a build
/// in place: through a link, the record of one folder would claim that the other's crate is up to date.
fn is_made_anew(file: &Path) -> bool {
    match file.extension() {
        Some(extension) => ["rlib", "rmeta", "so"].iter().any(|made| extension == *made),
        // Programs.
        None => file.parent().is_some_and(|folder| folder.ends_with("deps")),
    }
}

/// Copies a file with its modification time, by which cargo detects files that are up to date.
fn copy_as_old(from: &Path, to: &Path) -> std::io::Result<()> {
    std::fs::copy(from, to)?;
    let modified = from.metadata()?.modified()?;
    std::fs::File::options().append(true).open(to)?.set_modified(modified)
}

/// Cargo's arguments for the test programs that the rows name: the selected packages contain many other programs.
pub(crate) fn program_filters(workspace: &Workspace, rows: &[MutantRow<'_>]) -> BTreeSet<String> {
    let filter = |row: &MutantRow<'_>| {
        let name = &row.suite.target;
        if *name == bug_file::default_target() {
            return "--lib".to_owned();
        }
        let tests = workspace.find_crate(row.package).map(|package| package.dir.join("tests"));
        let is_test = |tests: PathBuf| {
            tests.join(format!("{name}.rs")).exists() || tests.join(name).join("main.rs").exists()
        };
        let kind = if tests.is_some_and(is_test) { "test" } else { "bin" };
        format!("--{kind}={name}")
    };
    rows.iter().map(filter).collect()
}
