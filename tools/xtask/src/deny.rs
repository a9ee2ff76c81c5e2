//! The check `deny`: licences, versions and sources of all dependencies, by the rules of deny.toml.
//!
//! Called by `cargo xtask ci`. cargo-deny reads the rules; this module runs it, and proves each time that it can fail:
//! the same dependencies must fail under a stricter copy of the rules. It never accesses the network by itself.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::report::CheckFindings;
use crate::shell;
use crate::workspace::Workspace;

/// The rules, relative to the root.
const RULES: &str = "deny.toml";

/// A part of the rules, and a text in it whose removal makes it stricter than the dependencies allow.
const STRICTER: &[(&str, &str)] = &[
    ("licenses", "\"MIT\", "),
    (
        "bans",
        "    { crate = \"syn\", reason = \"runs in the compiler: derive macros use both generations\" },\n",
    ),
    ("sources", "\"https://github.com/rust-lang/crates.io-index\""),
];

pub(crate) fn run(workspace: &Workspace) -> Result<CheckFindings> {
    if shell::run_captured(shell::cargo_command(&workspace.root).args(["deny", "--version"])).is_err() {
        return Ok(CheckFindings::with_skip(
            "cargo deny is not installed (cargo install --locked cargo-deny)",
        ));
    }
    let mut findings = CheckFindings::default();
    let rules = workspace.root.join(RULES);
    let all: Vec<_> = STRICTER.iter().map(|(part, _)| *part).collect();
    if !deny_command(workspace, &rules, &all).status()?.success() {
        findings.add_finding(RULES, "see above");
        return Ok(findings);
    }
    let text = std::fs::read_to_string(&rules).with_context(|| format!("reading {RULES}"))?;
    let folder = tempfile::tempdir()?;
    for (part, left_out) in STRICTER {
        let stricter = folder.path().join(part).with_extension("toml");
        if !text.contains(left_out) {
            findings.add_finding(
                RULES,
                format!("{left_out:?} is no longer part of {part}: tools/xtask/src/deny.rs leaves it out"),
            );
            continue;
        }
        std::fs::write(&stricter, text.replace(left_out, ""))?;
        if shell::run_captured(&mut deny_command(workspace, &stricter, &[part])).is_ok() {
            findings.add_finding(
                RULES,
                format!("the check of {part} also passes without {left_out:?}, so it detects nothing"),
            );
        }
    }
    Ok(findings)
}

/// cargo-deny over all crates of the workspace, for some parts of those rules.
fn deny_command(workspace: &Workspace, rules: &Path, parts: &[&str]) -> Command {
    let mut command = shell::cargo_command(&workspace.root);
    command.args(["deny", "--log-level", "error", "--config"]).arg(rules).arg("check").args(parts);
    command
}
