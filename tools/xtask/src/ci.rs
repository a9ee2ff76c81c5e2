//! `cargo xtask ci`: every check that needs no test run, in order, with a summary.
//!
//! Called by developers before they commit, and by `./test`.

use std::time::Instant;

use anyhow::Result;
use comfy_table::Table;

use crate::report::{self, CheckFindings};
use crate::workspace::{Workspace, long_name};
use crate::{
    abi, bindings, deny, docs, fuzz_list, layers, limits, mutants, names, settings, shell, unsafe_budget,
    words,
};

/// A named check.
type CheckStep = (&'static str, fn(&Workspace) -> Result<CheckFindings>);

/// The packages that users install or link.
const SHIPPED: [&str; 5] = ["cli", "nccl", "nvshmem", "shmem", "trunkline"];

/// Checks of the source alone, cheap ones first: a formatting slip should not cost a build.
const SOURCE: &[CheckStep] = &[
    ("fmt", run_fmt),
    ("layers", layers::run),
    ("limits", limits::run),
    ("unsafe-budget", |workspace| unsafe_budget::run(workspace, false)),
    ("names", |workspace| names::run(workspace, None, false)),
    ("words", |workspace| words::run(workspace, None, false)),
    ("fuzz-list", |workspace| fuzz_list::run(workspace, false)),
    ("links", docs::check_links),
    ("settings", |workspace| settings::check_settings(workspace, false)),
    ("mutants", mutants::check_bugs),
    ("clippy", run_clippy),
    ("shipped", check_shipped),
    ("deny", deny::run),
];

/// Checks that compare with foreign headers, or inspect a library that they build.
const INTERFACES: &[CheckStep] = &[
    ("bindings", bindings::run),
    ("bindings-verbs", bindings::run_verbs),
    ("bindings-ofi", bindings::run_ofi),
    ("bindings-cuda", bindings::run_cuda),
    ("bindings-hip", bindings::run_hip),
    ("bindings-ze", bindings::run_ze),
    ("abi", abi::run),
];

/// Runs all checks, or those of the source alone, even if some fail; `false` if one failed.
pub(crate) fn run_checks(workspace: &Workspace, quick: bool) -> bool {
    let mut table = Table::new();
    table.set_header(["check", "result"]);
    let mut passed = 0;
    let mut failed = 0;
    let interfaces = if quick { &[] } else { INTERFACES };
    for (name, step) in SOURCE.iter().chain(interfaces) {
        let began = Instant::now();
        let spent = shell::processor_time();
        let findings = step(workspace).unwrap_or_else(|error| {
            let mut findings = CheckFindings::default();
            findings.add_finding(*name, format!("{error:#}"));
            findings
        });
        findings.print_report(name);
        let result = match (findings.is_clean(), &findings.skipped) {
            (false, _) => "FAILED",
            (true, Some(_)) => "skipped",
            (true, None) => "ok",
        };
        passed += usize::from(result == "ok");
        failed += usize::from(result == "FAILED");
        let took = began.elapsed().as_secs_f64();
        let spent = shell::processor_time().saturating_sub(spent).as_secs_f64();
        println!("check {name} ({took:.0} s, {spent:.0} s of processor) ... {result}");
        table.add_row([name, result]);
    }
    println!("{table}");
    report::print_result_line(passed, failed);
    failed == 0
}

fn run_fmt(workspace: &Workspace) -> Result<CheckFindings> {
    cargo_component(workspace, "fmt", "rustfmt", &["--all", "--check"])
}

fn run_clippy(workspace: &Workspace) -> Result<CheckFindings> {
    let args = ["--quiet", "--workspace", "--all-targets", "--", "-D", "warnings"];
    cargo_component(workspace, "clippy", "clippy", &args)
}

/// Checks the shipped packages with their own features alone: builds of tests enable more features, which hide calls
/// that need them.
fn check_shipped(workspace: &Workspace) -> Result<CheckFindings> {
    let mut findings = CheckFindings::default();
    let mut command = shell::cargo_command(&workspace.root);
    command.args(["check", "--quiet"]);
    for name in SHIPPED {
        command.args(["--package", &long_name(name)]);
    }
    if !command.status()?.success() {
        findings
            .add_finding("shipped", "the shipped packages do not compile with their own features; see above");
    }
    Ok(findings)
}

/// Runs a cargo command of an optional component of the toolchain.
fn cargo_component(
    workspace: &Workspace,
    name: &str,
    component: &str,
    args: &[&str],
) -> Result<CheckFindings> {
    if shell::run_captured(shell::cargo_command(&workspace.root).args([name, "--version"])).is_err() {
        return Ok(CheckFindings::with_skip(format!(
            "cargo {name} is not installed (rustup component add {component})"
        )));
    }
    let mut findings = CheckFindings::default();
    if !shell::cargo_command(&workspace.root).arg(name).args(args).status()?.success() {
        findings.add_finding(name, "see above");
    }
    Ok(findings)
}
