//! `cargo xtask fuzz-list`: every parser of foreign bytes has a fuzz target, and each target its program, its corpus
//! and its replay.
//!
//! Called by developers and by `ci`. It finds parsers by their shape, compares them with tools/xtask/fuzz.toml, and
//! runs no target. With `--update` it writes the programs under testing/fuzz/ from that file.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result};
use quote::ToTokens as _;
use serde::Deserialize;
use syn::visit::{self, Visit};

use crate::report::CheckFindings;
use crate::source::{self, SourceFile};
use crate::workspace::{Workspace, WorkspaceCrate, long_name};

/// The list, relative to the root.
const LIST: &str = "tools/xtask/fuzz.toml";
/// Everything after this line of testing/fuzz/Cargo.toml is generated.
const GENERATED: &str = "# Written by `cargo xtask fuzz-list --update` from tools/xtask/fuzz.toml.\n";
/// Crates that only tests use: nothing in them reads foreign bytes in a product.
const TEST_CRATES: &[&str] = &["sim", "ofi-strict", "integration", "xtask"];
/// Fewest characters of a reason.
const REASON_LEN_MIN: usize = 10;
/// Fewest files of a replayed corpus.
const CORPUS_FILES_MIN: usize = 10;

/// tools/xtask/fuzz.toml.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct FuzzList {
    /// Each target, and the crate whose feature `fuzzing` contains it.
    targets: BTreeMap<String, String>,
    /// Targets that execute a list of actions, or check a value that is not bytes, and a description.
    actions: BTreeMap<String, String>,
    /// Each parser, and its target; after " via " the item that the target calls instead.
    parsers: BTreeMap<String, String>,
    /// Functions that were found but parse no foreign bytes, or bytes that a target of another parser feeds, and the
    /// reason.
    exceptions: BTreeMap<String, String>,
}

/// Compares the sources with the list; with `update` writes the programs first.
///
/// # Errors
/// A source, the list or a program cannot be read or written.
pub(crate) fn run(workspace: &Workspace, update: bool) -> Result<CheckFindings> {
    let path = workspace.root.join(LIST);
    let text = std::fs::read_to_string(&path).with_context(|| format!("reading {LIST}"))?;
    let list: FuzzList = toml::from_str(&text).with_context(|| format!("parsing {LIST}"))?;
    if update {
        write_programs(&workspace.root, &list)?;
    }
    let mut findings = CheckFindings::default();
    check_parsers(workspace, &list, &mut findings)?;
    check_programs(&workspace.root, &list, &mut findings);
    Ok(findings)
}

/// Checks that the list contains each found parser, and that each parser of the list is found and called.
fn check_parsers(workspace: &Workspace, list: &FuzzList, findings: &mut CheckFindings) -> Result<()> {
    let mut found = BTreeSet::new();
    let mut fuzzing = BTreeMap::new();
    for package in &workspace.crates {
        let (targets, product) = split_sources(source::product_sources(&package.dir)?, package);
        let text: String = targets.into_iter().map(|source| source.text).collect();
        fuzzing.insert(package.name.clone(), text);
        if !TEST_CRATES.contains(&package.name.as_str()) {
            product.iter().for_each(|source| find_parsers(workspace, source, &mut found));
        }
    }
    for name in &found {
        if list.parsers.contains_key(name) == list.exceptions.contains_key(name) {
            let text = "it takes bytes and may refuse them: name its fuzz target, or why it needs none, once in tools/xtask/fuzz.toml";
            findings.add_finding(name, text);
        }
    }
    for name in list.parsers.keys().chain(list.exceptions.keys()).filter(|name| !found.contains(*name)) {
        findings.add_finding(
            name,
            "is in tools/xtask/fuzz.toml and not in the sources: remove or rename the line",
        );
    }
    for (parser, by) in &list.parsers {
        let (target, calls) = by.split_once(" via ").map_or((by.as_str(), None), |(a, b)| (a, Some(b)));
        let Some(package) = list.targets.get(target) else {
            findings.add_finding(
                parser,
                format!("its target {target} is not among the targets of tools/xtask/fuzz.toml"),
            );
            continue;
        };
        let item = calls.unwrap_or_else(|| parser.rsplit(' ').next().unwrap_or(parser));
        if !fuzzing.get(package).is_some_and(|text| text.contains(item)) {
            findings.add_finding(
                parser,
                format!("no fuzzing source of {package} calls {item}; name the called item after ` via `"),
            );
        }
    }
    let reasons = list.exceptions.iter().chain(&list.actions);
    for (name, reason) in reasons.filter(|(_, reason)| reason.len() < REASON_LEN_MIN) {
        findings.add_finding(name, format!("the reason {reason:?} is too short"));
    }
    let used: BTreeSet<&str> =
        list.parsers.values().map(|by| by.split(" via ").next().unwrap_or(by)).collect();
    for target in list.targets.keys() {
        if used.contains(target.as_str()) == list.actions.contains_key(target) {
            findings.add_finding(
                target,
                "needs a parser that names it, or a line of [actions] that describes it",
            );
        }
    }
    Ok(())
}

/// The sources of fuzz targets, and the others.
fn split_sources(sources: Vec<SourceFile>, package: &WorkspaceCrate) -> (Vec<SourceFile>, Vec<SourceFile>) {
    sources.into_iter().partition(|source| source.is_fuzzing(&package.dir))
}

/// Adds each parser of a file as "crates/x/src/y.rs Type::name".
fn find_parsers(workspace: &Workspace, source: &SourceFile, found: &mut BTreeSet<String>) {
    let mut finder = ParserFinder { of: Vec::new(), found: Vec::new() };
    finder.visit_file(&source.product);
    let file = workspace.relative_path(&source.path);
    found.extend(finder.found.into_iter().map(|name| format!("{file} {name}")));
}

/// Functions that have the shape of a parser.
struct ParserFinder {
    of: Vec<String>,
    found: Vec<String>,
}

impl ParserFinder {
    fn check_signature(&mut self, signature: &syn::Signature) {
        if is_parser(signature) {
            let of = self.of.last().map(|of| format!("{of}::")).unwrap_or_default();
            self.found.push(format!("{of}{}", signature.ident));
        }
    }
}

impl<'ast> Visit<'ast> for ParserFinder {
    fn visit_item_impl(&mut self, block: &'ast syn::ItemImpl) {
        let of = match &*block.self_ty {
            syn::Type::Path(path) => path.path.segments.last().map(|last| last.ident.to_string()),
            _ => None,
        };
        self.of.push(of.unwrap_or_default());
        visit::visit_item_impl(self, block);
        self.of.pop();
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        self.check_signature(&function.sig);
    }

    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        self.check_signature(&function.sig);
    }
}

/// Whether a function parses bytes: by its name, or because its argument is bytes and its result an option or a result.
fn is_parser(signature: &syn::Signature) -> bool {
    let refuses = match &signature.output {
        syn::ReturnType::Default => false,
        syn::ReturnType::Type(_, of) => {
            let of = compact_text(of);
            let (name, _) = of.split_once('<').unwrap_or_default();
            name.ends_with("Option") || name.ends_with("Result")
        }
    };
    if !refuses {
        return false;
    }
    let name = signature.ident.to_string();
    let named = ["parse", "decode", "from_bytes", "from_words", "unpack", "read_from"]
        .iter()
        .any(|start| name.starts_with(start));
    let typed = signature.inputs.iter().map(|input| match input {
        syn::FnArg::Receiver(_) => false,
        syn::FnArg::Typed(typed) => {
            let of = compact_text(&typed.ty);
            let is_stream = (of.contains("impl") || of.contains("dyn")) && of.contains("Read");
            of == "&[u8]" || of == "Vec<u8>" || of.starts_with("&[u8;") || of.starts_with("[u8;") || is_stream
        }
    });
    let by_itself = signature.receiver().is_none();
    named || (by_itself && typed.clone().count() <= 2 && typed.into_iter().any(|bytes| bytes))
}

/// Source text of a type without spaces.
fn compact_text(of: &syn::Type) -> String {
    of.to_token_stream().to_string().split_whitespace().collect()
}

/// Checks that each target has a program, an entry in the manifest and a corpus, and that no others exist.
fn check_programs(root: &Path, list: &FuzzList, findings: &mut CheckFindings) {
    let programs = folder_names(&root.join("testing/fuzz/fuzz_targets"));
    let folders = folder_names(&root.join("testing/fuzz/corpus"));
    for (target, package) in &list.targets {
        let path = root.join(format!("testing/fuzz/fuzz_targets/{target}.rs"));
        if std::fs::read_to_string(path).ok().as_deref() != Some(&render_program(target, package)) {
            findings.add_finding(
                target,
                "its program is missing or differs: `cargo xtask fuzz-list --update` writes it",
            );
        }
        let files = folder_names(&root.join("testing/fuzz/corpus").join(target)).len();
        if files < CORPUS_FILES_MIN {
            findings.add_finding(
                target,
                format!("its corpus has {files} files: `cargo xtask corpus` writes its seeds"),
            );
        }
    }
    let known: BTreeSet<String> = list.targets.keys().map(|target| format!("{target}.rs")).collect();
    for program in programs.difference(&known) {
        findings
            .add_finding(program, "is in testing/fuzz/fuzz_targets and no target of tools/xtask/fuzz.toml");
    }
    for folder in folders.iter().filter(|folder| !list.targets.contains_key(*folder)) {
        findings.add_finding(folder, "is in testing/fuzz/corpus and no target of tools/xtask/fuzz.toml");
    }
    let manifest = std::fs::read_to_string(root.join("testing/fuzz/Cargo.toml")).unwrap_or_default();
    let is_written = manifest.split_once(GENERATED).is_some_and(|(kept, generated)| {
        generated == manifest_entries(list) && !kept.contains("[[bin]]") && !kept.contains("[dependencies]")
    });
    if !is_written {
        findings.add_finding(
            "testing/fuzz/Cargo.toml",
            "differs from tools/xtask/fuzz.toml: `cargo xtask fuzz-list --update` writes it",
        );
    }
}

/// Names in a folder; empty if the folder does not exist.
fn folder_names(folder: &Path) -> BTreeSet<String> {
    let Ok(entries) = std::fs::read_dir(folder) else { return BTreeSet::new() };
    entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

fn write_programs(root: &Path, list: &FuzzList) -> Result<()> {
    let folder = root.join("testing/fuzz/fuzz_targets");
    for old in folder_names(&folder) {
        std::fs::remove_file(folder.join(old))?;
    }
    for (target, package) in &list.targets {
        std::fs::write(folder.join(format!("{target}.rs")), render_program(target, package))?;
    }
    let path = root.join("testing/fuzz/Cargo.toml");
    let manifest = std::fs::read_to_string(&path).context("reading testing/fuzz/Cargo.toml")?;
    let kept = manifest.split_once(GENERATED).map_or(manifest.as_str(), |(kept, _)| kept);
    std::fs::write(&path, format!("{kept}{GENERATED}{}", manifest_entries(list)))?;
    Ok(())
}

/// Dependencies and programs.
fn manifest_entries(list: &FuzzList) -> String {
    let mut out = String::from("[dependencies]\nlibfuzzer-sys = \"0.4\"\n");
    let packages: BTreeSet<&String> = list.targets.values().collect();
    for package in packages {
        let _ = writeln!(
            out,
            "{} = {{ path = \"../../crates/{package}\", features = [\"fuzzing\"] }}",
            long_name(package)
        );
    }
    for target in list.targets.keys() {
        let _ = write!(
            out,
            "\n[[bin]]\nname = \"{target}\"\npath = \"fuzz_targets/{target}.rs\"\ntest = false\ndoc = false\nbench = false\n"
        );
    }
    out
}

fn render_program(target: &str, package: &str) -> String {
    let library = long_name(package).replace('-', "_");
    format!(
        "//! Fuzzes `{target}`; its checks are in `{library}::fuzzing`.\n#![no_main]\n\n\
         libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {{\n    {library}::fuzzing::run(\"{target}\", bytes);\n}});\n"
    )
}

#[cfg(test)]
#[path = "fuzz_list_tests.rs"]
mod tests;
