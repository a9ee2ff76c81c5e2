//! `cargo xtask corpus` and `cargo xtask header`: write generated files; the content is deterministic.
//!
//! Called by developers who changed a wire format, or the table of OpenSHMEM's types. Each generated file is next to
//! its source, and one test both checks and writes it; this module only starts that test.

use anyhow::{Result, bail};

use crate::shell;
use crate::workspace::Workspace;

/// Writes the seeds and replays the whole corpus.
///
/// # Errors
/// A parser rejects its own corpus, or cargo cannot run.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    let mut command = shell::cargo_command(&workspace.root);
    // That test alone: another test would read files while they are written.
    command.args([
        "test",
        "--quiet",
        "--package",
        "trunkline-integration",
        "--test",
        "corpus",
        "every_file_is_replayed",
    ]);
    if !command.env("TRUNKLINE_CORPUS", "write").status()?.success() {
        bail!("the replay of the corpus failed; see above");
    }
    Ok(())
}

/// Writes the headers of OpenSHMEM.
///
/// # Errors
/// Cargo cannot run, or a test of the headers fails.
pub(crate) fn write_headers(workspace: &Workspace) -> Result<()> {
    let mut command = shell::cargo_command(&workspace.root);
    command.args(["test", "--quiet", "--package", "trunkline-shmem", "--lib", "headers_match_the_table"]);
    if !command.env("TRUNKLINE_HEADER", "write").status()?.success() {
        bail!("the headers do not match the table of types; see above");
    }
    Ok(())
}
