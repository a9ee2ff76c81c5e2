//! `cargo xtask layers`: checks the dependencies between crates, and the content of the pure crates.
//!
//! Called by developers and by `ci`. Reads manifests and sources; the rules themselves are the tables at the top, and
//! ARCHITECTURE.md draws the same picture.

use anyhow::Result;
use proc_macro2::{Spacing, TokenTree};
use quote::ToTokens as _;

use crate::report::CheckFindings;
use crate::source::{self, SourceFile};
use crate::workspace::{DependencyScope, Workspace, WorkspaceCrate};

/// Every crate and its layer.
const LAYERS: &[(&str, u8)] = &[
    ("proto", 0),
    ("settings", 0),
    ("sys", 0),
    ("bootstrap", 1),
    ("fabric", 1),
    ("mem", 1),
    ("topo", 1),
    ("device-queue", 1),
    ("softnic", 2),
    ("verbs", 2),
    ("ofi", 2),
    ("ofi-strict", 1),
    ("engine", 3),
    ("sim", 3),
    ("node", 3),
    ("device", 3),
    ("runtime", 4),
    ("trunkline", 4),
    ("nccl", 4),
    ("shmem", 4),
    ("nvshmem", 4),
    ("nccl-host", 4),
    ("freehook", 4),
    ("cli", 5),
    ("xtask", 5),
    ("integration", 5),
];

/// Arrows inside a layer, all of them.
const SAME_LAYER: &[(&str, &str)] = &[
    ("bootstrap", "topo"),
    ("fabric", "mem"),
    ("device-queue", "mem"),
    ("sim", "engine"),
    ("device", "engine"),
    ("nccl", "runtime"),
    ("trunkline", "runtime"),
    ("shmem", "runtime"),
    ("nvshmem", "runtime"),
];

/// Crates that may use the foreign function tables. `xtask` compares their layouts with a C compiler's.
const SYS_USERS: &[&str] = &[
    "bootstrap",
    "mem",
    "verbs",
    "ofi",
    "ofi-strict",
    "nccl-host",
    "nccl",
    "nvshmem",
    "xtask",
    "integration",
];

/// Crates in which only files of the C edge may name `trunkline_sys`.
const SYS_ONLY_AT_THE_EDGE: &[&str] = &["nccl", "nvshmem"];

/// The files of the C edge: files with these names, and everything below `abi/`.
const EDGE_FILES: &[&str] = &["abi", "guard", "status"];

/// Crates that `proto` may depend on outside its tests: small, pure, `no_std`.
const PROTO_DEPENDENCIES: &[&str] = &["arrayvec", "bitflags", "thiserror", "zerocopy"];

/// Crates that `settings` may depend on outside its tests.
const SETTINGS_DEPENDENCIES: &[&str] = &["thiserror"];

/// Modules of `std` for input and output, time and threads. `settings` uses none of them.
const IMPURE_MODULES: &[&str] = &["env", "fs", "io", "net", "process", "thread", "time"];

/// Crates whose every root must contain `#![forbid(unsafe_code)]`.
const NO_UNSAFE: &[&str] = &[
    "proto",
    "settings",
    "fabric",
    "engine",
    "node",
    "device",
    "sim",
    "cli",
    "xtask",
    "topo",
    "runtime",
    "trunkline",
];

/// The folder of shipped crates. They need no crate of another folder, except in tests.
const SHIPPED: &str = "crates";

/// Runs the check on the current workspace.
///
/// # Errors
/// The workspace or a source cannot be read.
pub(crate) fn run(workspace: &Workspace) -> Result<CheckFindings> {
    let mut findings = CheckFindings::default();
    for package in &workspace.crates {
        check_arrows(package, &mut findings);
        ships_no_test_crate(workspace, package, &mut findings);
        if NO_UNSAFE.contains(&package.name.as_str()) {
            forbids_unsafe(workspace, package, &mut findings)?;
        }
    }
    proto_and_sys_never_meet(workspace, &mut findings);
    if let Some(proto) = workspace.find_crate("proto") {
        proto_is_pure(workspace, proto, &mut findings)?;
    }
    if let Some(settings) = workspace.find_crate("settings") {
        settings_are_pure(workspace, settings, &mut findings)?;
    }
    if let Some(cli) = workspace.find_crate("cli") {
        cli_names_no_plugin_item(workspace, cli, &mut findings)?;
    }
    for name in SYS_ONLY_AT_THE_EDGE {
        if let Some(package) = workspace.find_crate(name) {
            sys_at_the_edge(workspace, package, &mut findings)?;
        }
    }
    Ok(findings)
}

fn layer_of(name: &str) -> Option<u8> {
    LAYERS.iter().find(|(n, _)| *n == name).map(|(_, layer)| *layer)
}

/// Checks the rules for one crate's dependencies.
fn check_arrows(package: &WorkspaceCrate, findings: &mut CheckFindings) {
    let from = package.name.as_str();
    let Some(layer) = layer_of(from) else {
        return findings.add_finding(from, "has no layer; add it to LAYERS in tools/xtask/src/layers.rs");
    };
    for (to, when) in package.own_dependencies() {
        let Some(below) = layer_of(to) else {
            findings.add_finding(from, format!("depends on {to}, which has no layer"));
            continue;
        };
        // A test may use a crate of its own layer (a plugin its host), never one above.
        let same_layer_allowed = when == DependencyScope::Tests || SAME_LAYER.contains(&(from, to));
        if below > layer || (below == layer && from != to && !same_layer_allowed) {
            findings.add_finding(from, format!("in layer {layer} depends on {to} in layer {below}"));
        }
        if to == "sys" && !SYS_USERS.contains(&from) {
            findings.add_finding(from, format!("uses sys; only {} may", SYS_USERS.join(", ")));
        }
        if from == "nccl-host" && to != "sys" && when == DependencyScope::Always {
            findings.add_finding(
                from,
                format!("depends on {to}; the plugin host may know no crate of ours but sys"),
            );
        }
        if ["engine", "node", "device", "sim"].contains(&from)
            && below == 2
            && when == DependencyScope::Always
        {
            findings.add_finding(from, format!("names the fabric {to}; it sees the contract only"));
        }
    }
}

/// Checks that shipped crates contain no code of `testing/` and `tools/`.
fn ships_no_test_crate(workspace: &Workspace, package: &WorkspaceCrate, findings: &mut CheckFindings) {
    let ships = |package: &WorkspaceCrate| package.dir.starts_with(workspace.root.join(SHIPPED));
    if !ships(package) {
        return;
    }
    let needed = package.own_dependencies().filter(|(_, when)| *when == DependencyScope::Always);
    for needless in needed.filter_map(|(name, _)| workspace.find_crate(name)).filter(|other| !ships(other)) {
        let folder = workspace.relative_path(&needless.dir);
        findings.add_finding(&package.name, format!("ships, and depends on {folder}; only its tests may"));
    }
}

/// Checks that no path of dependencies connects `proto` and `sys`, in either direction.
fn proto_and_sys_never_meet(workspace: &Workspace, findings: &mut CheckFindings) {
    for (from, to) in [("proto", "sys"), ("sys", "proto")] {
        let mut seen = vec![from];
        let mut next = 0;
        while next < seen.len() {
            if let Some(package) = workspace.find_crate(seen[next]) {
                for (name, _) in package.own_dependencies() {
                    if !seen.contains(&name) {
                        seen.push(name);
                    }
                }
            }
            next += 1;
        }
        if seen.contains(&to) {
            findings.add_finding(from, format!("reaches {to}; no path of dependencies may connect the two"));
        }
    }
}

fn forbids_unsafe(
    workspace: &Workspace,
    package: &WorkspaceCrate,
    findings: &mut CheckFindings,
) -> Result<()> {
    for root in &package.roots {
        let source = SourceFile::read(root)?;
        let has = source.product.attrs.iter().any(|a| {
            let text: String = a.meta.to_token_stream().to_string().split_whitespace().collect();
            text == "forbid(unsafe_code)"
        });
        if !has {
            findings.add_finding(workspace.relative_path(root), "lacks #![forbid(unsafe_code)]");
        }
    }
    Ok(())
}

/// Checks that a crate depends only on the crates of its list, outside its tests.
fn check_allow_list(package: &WorkspaceCrate, allowed: &[&str], findings: &mut CheckFindings) {
    for dependency in package.dependencies.iter().filter(|d| d.when == DependencyScope::Always) {
        if !allowed.contains(&dependency.name.as_str()) {
            findings.add_finding(
                &package.name,
                format!("depends on {}, which is not on its allow-list", dependency.name),
            );
        }
    }
}

fn proto_is_pure(workspace: &Workspace, proto: &WorkspaceCrate, findings: &mut CheckFindings) -> Result<()> {
    check_allow_list(proto, PROTO_DEPENDENCIES, findings);
    for source in source::product_sources(&proto.dir)? {
        let is_root = proto.roots.contains(&source.path);
        if is_root && !source.product.attrs.iter().any(|a| a.path().is_ident("no_std")) {
            findings.add_finding(workspace.relative_path(&source.path), "lacks #![no_std]");
        }
        for line in lines_naming(&source, "std", true) {
            findings.add_finding(
                format!("{}:{line}", workspace.relative_path(&source.path)),
                "uses std; proto is pure",
            );
        }
    }
    Ok(())
}

/// Checks that `settings` reads no environment and opens no file: its caller passes both.
fn settings_are_pure(
    workspace: &Workspace,
    settings: &WorkspaceCrate,
    findings: &mut CheckFindings,
) -> Result<()> {
    check_allow_list(settings, SETTINGS_DEPENDENCIES, findings);
    for source in source::product_sources(&settings.dir)? {
        for module in IMPURE_MODULES {
            for line in lines_with_module(&source, module) {
                let place = format!("{}:{line}", workspace.relative_path(&source.path));
                findings.add_finding(place, format!("uses std::{module}; settings is pure"));
            }
        }
    }
    Ok(())
}

fn cli_names_no_plugin_item(
    workspace: &Workspace,
    cli: &WorkspaceCrate,
    findings: &mut CheckFindings,
) -> Result<()> {
    for source in source::product_sources(&cli.dir)? {
        for line in lines_naming(&source, "trunkline_nccl", false) {
            let place = format!("{}:{line}", workspace.relative_path(&source.path));
            findings.add_finding(place, "names trunkline_nccl; the tool reaches the plugin by dlopen only");
        }
    }
    Ok(())
}

fn sys_at_the_edge(
    workspace: &Workspace,
    package: &WorkspaceCrate,
    findings: &mut CheckFindings,
) -> Result<()> {
    for source in source::product_sources(&package.dir)? {
        let relative = source.path.strip_prefix(&package.dir).unwrap_or(&source.path);
        let stem = relative.file_stem().and_then(|s| s.to_str()).unwrap_or_default();
        if EDGE_FILES.contains(&stem) || relative.iter().any(|part| part == "abi") {
            continue;
        }
        for line in lines_naming(&source, "trunkline_sys", false) {
            let place = format!("{}:{line}", workspace.relative_path(&source.path));
            findings.add_finding(place, "names trunkline_sys outside the C edge (abi/, guard.rs, status.rs)");
        }
    }
    Ok(())
}

/// Lines of product code that contain an identifier; macros included, strings and comments not.
///
/// With `as_path` only `name::` and `extern crate name` count, so that a field of that name does not.
fn lines_naming(source: &SourceFile, name: &str, as_path: bool) -> Vec<usize> {
    let mut tokens = Vec::new();
    source::flat_tokens(source.product.to_token_stream(), &mut tokens);
    let mut lines = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        let TokenTree::Ident(ident) = token else { continue };
        let counts = *ident == name
            && (!as_path
                || is_path_start(&tokens[at + 1..])
                || is_word(tokens.get(at.wrapping_sub(1)), "crate"));
        if counts {
            lines.push(ident.span().start().line);
        }
    }
    lines.dedup();
    lines
}

/// Lines of product code in which a path or an import contains a module: `std::fs`, `fs::read`, `{fs as files}`.
fn lines_with_module(source: &SourceFile, module: &str) -> Vec<usize> {
    let mut tokens = Vec::new();
    source::flat_tokens(source.product.to_token_stream(), &mut tokens);
    let is_module = |at: usize| {
        is_word(tokens.get(at), module)
            && (is_path_start(&tokens[at + 1..])
                || is_word(tokens.get(at + 1), "as")
                || at >= 2 && is_path_start(&tokens[at - 2..]))
    };
    let mut lines: Vec<usize> =
        (0..tokens.len()).filter(|at| is_module(*at)).map(|at| tokens[at].span().start().line).collect();
    lines.dedup();
    lines
}

fn is_path_start(rest: &[TokenTree]) -> bool {
    let colon = |tree: Option<&TokenTree>, spacing: Option<Spacing>| match tree {
        Some(TokenTree::Punct(p)) => p.as_char() == ':' && spacing.is_none_or(|s| s == p.spacing()),
        _ => false,
    };
    colon(rest.first(), Some(Spacing::Joint)) && colon(rest.get(1), None)
}

fn is_word(tree: Option<&TokenTree>, word: &str) -> bool {
    matches!(tree, Some(TokenTree::Ident(ident)) if *ident == word)
}

#[cfg(test)]
#[path = "layers_tests.rs"]
mod tests;
