//! The project's checks and tools: `cargo xtask <command>`.
//!
//! Called by developers, by `./test` and by CI. It never changes a source file, except with `--update`, and is not part
//! of the installed files.
#![forbid(unsafe_code)]

mod abi;
mod bindings;
mod budget;
mod ci;
mod compare;
mod conformance;
mod corpus;
mod deny;
mod dist;
mod docs;
#[cfg(test)]
mod fixture;
mod fuzz_list;
mod layers;
mod limits;
mod mutants;
mod names;
#[cfg(test)]
mod on_gpu_tests;
mod profile;
mod prose;
mod ratchet;
mod report;
#[cfg(test)]
mod script_tests;
mod shell;
mod source;
mod suite;
mod unsafe_budget;
mod words;
mod workspace;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

use crate::report::CheckFindings;
use crate::workspace::Workspace;

/// Trunkline's checks and tools.
#[derive(Parser)]
#[command(name = "cargo xtask")]
struct XtaskArguments {
    #[command(subcommand)]
    command: XtaskCommand,
}

#[derive(Subcommand)]
enum XtaskCommand {
    /// Checks the dependencies between crates, and that the pure crates are pure.
    Layers,
    /// Checks licences, versions and sources of all dependencies by the rules of deny.toml.
    Deny,
    /// Checks the lengths of files and functions, and that no file has mutable static state.
    Limits,
    /// Counts unsafe against the table in docs/unsafe.md.
    UnsafeBudget {
        /// Writes the counts into the table instead of comparing.
        #[arg(long)]
        update: bool,
    },
    /// Counts unclear names and compares with tools/xtask/names.toml.
    Names {
        /// Prints each place of one crate instead.
        #[arg(long, value_name = "CRATE", conflicts_with = "update")]
        list: Option<String>,
        /// Records figures that have fallen, and prints the shares of the whole workspace.
        #[arg(long)]
        update: bool,
    },
    /// Counts habits of prose and compares with tools/xtask/words.toml.
    Words {
        /// Prints each place of one crate, of "documents" or of "include" instead.
        #[arg(long, value_name = "CRATE", conflicts_with = "update")]
        list: Option<String>,
        /// Records rates that have fallen, and prints those of the whole workspace.
        #[arg(long)]
        update: bool,
    },
    /// Compares the layouts of the NCCL net structs with a C compiler's.
    Bindings {
        /// Accepted for clarity; checking is all this does.
        #[arg(long)]
        check: bool,
        /// A header that declares the interface, such as NCCL's own, instead of ours.
        #[arg(long, value_name = "FILE")]
        header: Option<PathBuf>,
    },
    /// Builds the plugin and compares the symbols it exports with the checked-in list.
    Abi,
    /// Checks the links of all documents, and builds their site with mdBook under target/book.
    Docs,
    /// Builds the files that users install, under target/dist.
    Dist,
    /// Runs each planted bug's tests, which must detect it.
    Mutants(mutants::MutantOptions),
    /// Compares ours with libfabric and UCX over shared memory and TCP, in alternating runs.
    Compare(compare::CompareOptions),
    /// Compares our OpenSHMEM with Open MPI's, in alternating runs.
    CompareShmem(compare::shmem::ShmemCompareOptions),
    /// Counts instructions and system calls of a message against tools/xtask/budget.toml.
    Budget {
        /// Writes the measured counts, with some headroom, into the file instead.
        #[arg(long)]
        update: bool,
    },
    /// Runs the test programs of the workspace, several at the same time.
    Suite(suite::SuiteOptions),
    /// Writes the generated files of the fuzz corpus.
    Corpus,
    /// Checks that every parser has a fuzz target, and every target its program and corpus.
    FuzzList {
        /// Writes the programs and testing/fuzz/Cargo.toml from tools/xtask/fuzz.toml first.
        #[arg(long)]
        update: bool,
    },
    /// Writes shmem.h and pshmem.h from the table of types.
    Header,
    /// Builds and runs a public suite of OpenSHMEM programs over each fabric, and writes docs/conformance.md.
    Conformance(conformance::ConformanceOptions),
    /// Runs every check that needs no test run: fmt, clippy and the rules above.
    Ci {
        /// Only the checks of the source, without the comparisons with foreign headers.
        #[arg(long)]
        quick: bool,
    },
}

fn main() -> ExitCode {
    match run_command(XtaskArguments::parse().command) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs one command; `false` if it found something broken.
fn run_command(command: XtaskCommand) -> Result<bool> {
    let workspace = Workspace::current()?;
    match command {
        XtaskCommand::Deny => Ok(report_findings("deny", &deny::run(&workspace)?)),
        XtaskCommand::Layers => Ok(report_findings("layers", &layers::run(&workspace)?)),
        XtaskCommand::Limits => Ok(report_findings("limits", &limits::run(&workspace)?)),
        XtaskCommand::UnsafeBudget { update } => {
            Ok(report_findings("unsafe-budget", &unsafe_budget::run(&workspace, update)?))
        }
        XtaskCommand::Names { list, update } => {
            Ok(report_findings("names", &names::run(&workspace, list.as_deref(), update)?))
        }
        XtaskCommand::Words { list, update } => {
            Ok(report_findings("words", &words::run(&workspace, list.as_deref(), update)?))
        }
        XtaskCommand::Bindings { check: _, header: Some(header) } => {
            Ok(report_findings("bindings", &bindings::run_against(&workspace, &header)?))
        }
        XtaskCommand::Bindings { check: _, header: None } => {
            let shown_nccl = report_findings("bindings", &bindings::run(&workspace)?);
            let shown_verbs = report_findings("bindings-verbs", &bindings::run_verbs(&workspace)?);
            let shown_ofi = report_findings("bindings-ofi", &bindings::run_ofi(&workspace)?);
            let shown_cuda = report_findings("bindings-cuda", &bindings::run_cuda(&workspace)?);
            let shown_hip = report_findings("bindings-hip", &bindings::run_hip(&workspace)?);
            let shown_ze = report_findings("bindings-ze", &bindings::run_ze(&workspace)?);
            Ok(shown_nccl && shown_verbs && shown_ofi && shown_cuda && shown_hip && shown_ze)
        }
        XtaskCommand::Abi => Ok(report_findings("abi", &abi::run(&workspace)?)),
        XtaskCommand::Docs => Ok(report_findings("docs", &docs::build_site(&workspace)?)),
        XtaskCommand::Dist => dist::run(&workspace).map(|()| true),
        XtaskCommand::Mutants(options) => mutants::run(&workspace, &options),
        XtaskCommand::Compare(options) => compare::run(&workspace, &options).map(|()| true),
        XtaskCommand::CompareShmem(options) => compare::shmem::run(&workspace, &options).map(|()| true),
        XtaskCommand::Budget { update } => budget::run(&workspace, update),
        XtaskCommand::Suite(options) => suite::run(&workspace, &options),
        XtaskCommand::Corpus => corpus::run(&workspace).map(|()| true),
        XtaskCommand::FuzzList { update } => {
            Ok(report_findings("fuzz-list", &fuzz_list::run(&workspace, update)?))
        }
        XtaskCommand::Header => corpus::write_headers(&workspace).map(|()| true),
        XtaskCommand::Conformance(options) => conformance::run(&workspace, &options),
        XtaskCommand::Ci { quick } => Ok(ci::run_checks(&workspace, quick)),
    }
}

fn report_findings(check: &str, findings: &CheckFindings) -> bool {
    findings.print_report(check);
    findings.is_clean()
}
