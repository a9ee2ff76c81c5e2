//! `cargo xtask corpus`: writes the generated files of the fuzz corpus, the same each time.
//!
//! Called by people who changed a wire format. The seeds stand next to what they test, and one test both replays and
//! writes them; this only starts it.

use anyhow::{Result, bail};

use crate::shell;
use crate::workspace::Workspace;

/// Writes the seeds and replays the whole corpus.
///
/// # Errors
/// When a parser refuses its own corpus, or cargo cannot run.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    let mut command = shell::cargo_command(&workspace.root);
    command.args(["test", "--quiet", "--package", "trunkline-tests", "--test", "corpus"]);
    if !command.env("TRUNKLINE_CORPUS", "write").status()?.success() {
        bail!("the corpus does not replay");
    }
    Ok(())
}
