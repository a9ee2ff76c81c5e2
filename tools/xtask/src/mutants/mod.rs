//! `cargo xtask mutants`: every planted bug must be detected by its tests.
//!
//! Called by developers, by `./test` and, for `check`, by `ci`. The bugs of mutants/*.toml are woven into a copy of the
//! tree; one build contains all of them, and its test programs run once for each row. It never changes the tree itself.

mod bug_file;
mod bug_table;
mod c_source;
mod file_edit;
mod mutant_row;
mod named_span;
mod piece_list;
mod row_share;
mod source_anchor;
mod source_node;
mod source_token;
mod test_programs;
mod verdict;
mod woven_manifest;
mod woven_piece;
mod woven_source;
mod woven_tree;

#[cfg(test)]
mod table_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tree_tests;
#[cfg(test)]
mod weave_tests;

use std::path::{Path, PathBuf};

use anyhow::Result;
use comfy_table::Table;

use self::bug_table::BugTable;
pub(crate) use self::bug_table::check_bugs;
use self::row_share::RowShare;
use crate::report::{self, CheckFindings};
use crate::workspace::Workspace;

/// Arguments of `cargo xtask mutants`.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct MutantOptions {
    #[command(subcommand)]
    task: Option<MutantTask>,
    /// Run only the bugs whose name contains this [default: all].
    only: Option<String>,
    /// Run only a share of them: 0/3 is the first of three shares [default: all].
    #[arg(long, value_name = "N/OF")]
    share: Option<RowShare>,
}

#[derive(Debug, Clone, clap::Subcommand)]
enum MutantTask {
    /// Check that every edit of mutants/*.toml can be woven, without writing or building.
    Check,
    /// Write the woven tree and print its path.
    Weave {
        /// Write the tree into this folder [default: woven, in cargo's target folder].
        folder: Option<PathBuf>,
    },
}

/// Runs the requested task; `false` if a bug is wrong or not detected.
///
/// # Errors
/// A file cannot be read or written, the build fails or a test cannot be started.
pub(crate) fn run(workspace: &Workspace, options: &MutantOptions) -> Result<bool> {
    match &options.task {
        Some(MutantTask::Check) => Ok(crate::report_findings("mutants", &check_bugs(workspace)?)),
        Some(MutantTask::Weave { folder }) => {
            let out = match folder {
                Some(folder) => std::path::absolute(folder)?,
                None => woven_tree::default_folder(workspace),
            };
            let mut findings = CheckFindings::default();
            let table = BugTable::read_files(workspace, &mut findings)?;
            let is_woven = weave_table(workspace, &table, findings, &out)?;
            if is_woven {
                println!("{}", out.display());
            }
            Ok(is_woven)
        }
        None => run_rows(workspace, options.only.as_deref(), options.share),
    }
}

/// Runs all rows, or those whose name contains `only` and that are in the share; `false` if a bug is wrong or not
/// detected.
fn run_rows(workspace: &Workspace, only: Option<&str>, share: Option<RowShare>) -> Result<bool> {
    let mut findings = CheckFindings::default();
    let bugs = BugTable::read_files(workspace, &mut findings)?;
    let mut rows = bugs.bug_rows();
    let all = rows.len();
    rows.retain(|row| only.is_none_or(|part| row.name.contains(part)));
    if let Some(share) = share {
        share.retain_share(&mut rows);
    }
    println!("mutants: {} of {all} rows", rows.len());
    if rows.is_empty() && findings.is_clean() {
        println!("mutants: no rows");
        report::print_result_line(0, 0);
        return Ok(true);
    }
    // Weave all bugs, so that runs of other rows rebuild nothing.
    if !weave_table(workspace, &bugs, findings, &woven_tree::default_folder(workspace))? {
        return Ok(false);
    }
    let programs = test_programs::build(workspace, &rows)?;
    let verdicts = verdict::judge_alone(&rows, &programs, verdict::judge_all(&rows, &programs)?)?;
    let mut table = Table::new();
    table.set_header(["mutant", "breaks", "test", "result"]);
    for (row, verdict) in rows.iter().zip(&verdicts) {
        let which = if row.suite.test.is_empty() { "all" } else { &row.suite.test };
        let test = format!("{} {}: {which}", row.package, row.suite.target);
        table.add_row([row.name, row.breaks, &test, verdict.verdict_text()]);
    }
    let killed = verdicts.iter().filter(|verdict| verdict.is_good()).count();
    println!("{table}");
    report::print_result_line(killed, rows.len() - killed);
    Ok(killed == rows.len())
}

/// Weaves all bugs into the tree at `out`. If one is wrong, nothing is written, the report is that of `check`, and
/// `false` is returned.
fn weave_table(
    workspace: &Workspace,
    table: &BugTable,
    mut findings: CheckFindings,
    out: &Path,
) -> Result<bool> {
    let sources = table.weave_sources(workspace, &mut findings);
    if !findings.is_clean() {
        return Ok(crate::report_findings("mutants", &findings));
    }
    woven_tree::write_tree(workspace, sources, out)?;
    Ok(true)
}
