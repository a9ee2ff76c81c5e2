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
mod quoted_messages;
mod ratchet;
mod report;
#[cfg(test)]
mod script_tests;
mod settings;
mod shell;
mod site;
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
    /// Check the dependencies between crates, and that the pure crates are pure.
    Layers,
    /// Check licences, versions and sources of all dependencies by the rules of deny.toml.
    Deny,
    /// Check the lengths of files and functions, and that no file has mutable static state.
    Limits,
    /// Count unsafe against the table in docs/unsafe.md.
    UnsafeBudget {
        /// Write the counts into the table instead of comparing.
        #[arg(long)]
        update: bool,
    },
    /// Count unclear names and compare them with tools/xtask/names.toml.
    Names {
        /// Print each place of one crate instead.
        #[arg(long, value_name = "CRATE", conflicts_with = "update")]
        list: Option<String>,
        /// Record figures that have fallen, and print the shares of the whole workspace.
        #[arg(long)]
        update: bool,
    },
    /// Count habits of prose and compare them with tools/xtask/words.toml.
    Words {
        /// Print each place of one crate, of "documents" or of "include" instead.
        #[arg(long, value_name = "CRATE", conflicts_with = "update")]
        list: Option<String>,
        /// Record rates that have fallen, and print those of the whole workspace.
        #[arg(long)]
        update: bool,
    },
    /// Compare the layouts of the NCCL net structs with a C compiler's.
    Bindings {
        /// Do nothing; accepted for clarity, because the command only checks.
        #[arg(long)]
        check: bool,
        /// Read this header instead of ours, for example NCCL's own.
        #[arg(long, value_name = "FILE")]
        header: Option<PathBuf>,
    },
    /// Build the libraries and compare their exported symbols with the checked-in lists.
    Abi,
    /// Check the links of all documents, and build their site with mdBook under target/book.
    Docs,
    /// Build the files that users install, under target/dist.
    Dist,
    /// Run the tests of each planted bug, which must detect it.
    Mutants(mutants::MutantOptions),
    /// Compare Trunkline with libfabric and UCX over shared memory and TCP, in alternating runs.
    Compare(compare::CompareOptions),
    /// Compare our OpenSHMEM with Open MPI's, in alternating runs.
    CompareShmem(compare::shmem::ShmemCompareOptions),
    /// Count instructions and system calls of a message against tools/xtask/budget.toml.
    Budget {
        /// Write the measured counts, with some headroom, into the file instead.
        #[arg(long)]
        update: bool,
    },
    /// Run the test programs of the workspace, several at the same time.
    Suite(suite::SuiteOptions),
    /// Write the generated files of the fuzz corpus.
    Corpus,
    /// Check that every parser has a fuzz target, and every target its program and corpus.
    FuzzList {
        /// Write the programs and testing/fuzz/Cargo.toml from tools/xtask/fuzz.toml first.
        #[arg(long)]
        update: bool,
    },
    /// Compare docs/settings.md with the registry of settings, and find settings outside of it.
    Settings {
        /// Write the page from the registry instead of comparing.
        #[arg(long)]
        update: bool,
    },
    /// Write shmem.h and pshmem.h from the table of types.
    Header,
    /// Build and run a public suite of OpenSHMEM programs over each fabric, and write docs/conformance.md.
    Conformance(conformance::ConformanceOptions),
    /// Run every check that needs no test run: fmt, clippy and the rules above.
    Ci {
        /// Run only the checks of the sources, without the comparisons with foreign headers.
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
        XtaskCommand::Docs => Ok(report_findings("docs", &site::build_site(&workspace)?)),
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
        XtaskCommand::Settings { update } => {
            Ok(report_findings("settings", &settings::check_settings(&workspace, update)?))
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
