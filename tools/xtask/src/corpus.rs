//! `cargo xtask corpus` and `cargo xtask header`: write files that are generated, the same each time.
//!
//! Called by people who changed a wire format, or the table of OpenSHMEM's types. What is written stands next to what it is made from, and one
//! test both looks at it and writes it; this only starts that.

use anyhow::{Result, bail};

use crate::shell;
use crate::workspace::Workspace;

/// Writes the seeds and replays the whole corpus.
///
/// # Errors
/// When a parser refuses its own corpus, or cargo cannot run.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    let mut command = shell::cargo_command(&workspace.root);
    // That test alone: another one would read files while they are written.
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
        bail!("the corpus does not replay");
    }
    Ok(())
}

/// Writes the headers of OpenSHMEM.
///
/// # Errors
/// When cargo cannot run, or something else is wrong with them.
pub(crate) fn write_headers(workspace: &Workspace) -> Result<()> {
    let mut command = shell::cargo_command(&workspace.root);
    command.args(["test", "--quiet", "--package", "trunkline-shmem", "--lib", "headers_are_of_the_table"]);
    if !command.env("TRUNKLINE_HEADER", "write").status()?.success() {
        bail!("the headers are not of the table");
    }
    Ok(())
}
