//! `cargo xtask limits`: files of at most 1,000 lines, functions of at most 100, no file-scope mutable state.
//!
//! Called by developers and by `ci`. Works on syntax trees, so strings and comments do not count; test code is exempt.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result};
use proc_macro2::{TokenStream, TokenTree};
use quote::ToTokens as _;
use serde::Deserialize;
use syn::spanned::Spanned as _;
use syn::visit::{self, Visit};

use crate::report::CheckFindings;
use crate::source::{self, SourceFile};
use crate::workspace::{Workspace, WorkspaceCrate};

const FILE_LINES_MAX: usize = 1000;
const FUNCTION_LINES_MAX: usize = 100;

/// The file of the exceptions, relative to the root.
const ALLOW_LIST: &str = "tools/xtask/limits.toml";

/// Standard and well-known types that make a `static` mutable. Names that begin with `Atomic` count too.
const MUTABLE_TYPES: &[&str] = &[
    "Cell",
    "RefCell",
    "UnsafeCell",
    "SyncUnsafeCell",
    "OnceCell",
    "LazyCell",
    "Mutex",
    "RwLock",
    "Once",
    "OnceLock",
    "LazyLock",
    "Lazy",
    "Condvar",
    "ArcSwap",
    "DashMap",
];

/// The allow-list for file-scope state.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct StateAllowList {
    #[serde(default)]
    state: Vec<AllowedStatic>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AllowedStatic {
    file: String,
    name: String,
    reason: String,
}

/// Runs the check on every crate.
///
/// # Errors
/// A source or the allow-list cannot be read.
pub(crate) fn run(workspace: &Workspace) -> Result<CheckFindings> {
    let allowed = read_allowed(workspace)?;
    let mut used = vec![false; allowed.state.len()];
    let mut findings = CheckFindings::default();
    for package in &workspace.crates {
        for (place, name) in check_crate(workspace, package, &mut findings)? {
            let file = place.split(':').next().unwrap_or_default();
            match allowed.state.iter().position(|a| a.file == file && a.name == name) {
                Some(at) => used[at] = true,
                None => findings
                    .add_finding(place, format!("{name} is file-scope mutable state; pass it as a value")),
            }
        }
    }
    for (entry, used) in allowed.state.iter().zip(used) {
        if entry.reason.trim().is_empty() {
            findings.add_finding(ALLOW_LIST, format!("{} has no reason; write one", entry.name));
        }
        if !used {
            findings.add_finding(
                ALLOW_LIST,
                format!("{} in {} does not exist; remove the entry", entry.name, entry.file),
            );
        }
    }
    Ok(findings)
}

fn read_allowed(workspace: &Workspace) -> Result<StateAllowList> {
    let path = workspace.root.join(ALLOW_LIST);
    if !path.exists() {
        return Ok(StateAllowList::default());
    }
    let text = std::fs::read_to_string(&path).with_context(|| format!("reading {ALLOW_LIST}"))?;
    toml::from_str(&text).with_context(|| format!("parsing {ALLOW_LIST}"))
}

/// Checks lengths; returns the (place, name) of each piece of state, to be checked against the allow-list.
fn check_crate(
    workspace: &Workspace,
    package: &WorkspaceCrate,
    findings: &mut CheckFindings,
) -> Result<Vec<(String, String)>> {
    let sources = source::product_sources(&package.dir)?;
    let changing = changing_types(&sources);
    let mut state = Vec::new();
    for source in &sources {
        let file = workspace.relative_path(&source.path);
        let lines = source.product_lines();
        if lines > FILE_LINES_MAX {
            findings.add_finding(&file, format!("{lines} lines without tests; at most {FILE_LINES_MAX}"));
        }
        let mut functions = LongFunctions::default();
        functions.visit_file(&source.product);
        for (name, line, lines) in functions.too_long {
            findings.add_finding(
                format!("{file}:{line}"),
                format!("fn {name} has {lines} lines; at most {FUNCTION_LINES_MAX}"),
            );
        }
        let mut statics = MutableStatics { changing: &changing, found: Vec::new() };
        statics.visit_file(&source.product);
        state.extend(statics.found.into_iter().map(|(line, name)| (format!("{file}:{line}"), name)));
    }
    Ok(state)
}

/// Functions that are too long: name, line, length.
#[derive(Default)]
struct LongFunctions {
    too_long: Vec<(String, usize, usize)>,
}

impl LongFunctions {
    fn measure_function(&mut self, signature: &syn::Signature, block: &syn::Block) {
        let first = signature.span().start().line;
        let lines = block.span().end().line - first + 1;
        if lines > FUNCTION_LINES_MAX {
            self.too_long.push((signature.ident.to_string(), first, lines));
        }
    }
}

impl<'ast> Visit<'ast> for LongFunctions {
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.measure_function(&item.sig, &item.block);
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.measure_function(&item.sig, &item.block);
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if let Some(block) = &item.default {
            self.measure_function(&item.sig, block);
        }
        visit::visit_trait_item_fn(self, item);
    }
}

/// Mutable statics, anywhere: one inside a function is as global as any other.
struct MutableStatics<'a> {
    changing: &'a BTreeSet<String>,
    found: Vec<(usize, String)>,
}

impl<'ast> Visit<'ast> for MutableStatics<'_> {
    fn visit_item_static(&mut self, item: &'ast syn::ItemStatic) {
        let is_mut = !matches!(item.mutability, syn::StaticMutability::None);
        if is_mut || names_changing(item.ty.to_token_stream(), self.changing) {
            self.found.push((item.ident.span().start().line, item.ident.to_string()));
        }
        visit::visit_item_static(self, item);
    }

    fn visit_macro(&mut self, item: &'ast syn::Macro) {
        let is_thread_local = item.path.segments.last().is_some_and(|s| s.ident == "thread_local");
        if is_thread_local {
            self.found.extend(thread_locals(item.tokens.clone()));
        }
        visit::visit_macro(self, item);
    }
}

/// The names after each `static` in a `thread_local!` block.
fn thread_locals(tokens: TokenStream) -> Vec<(usize, String)> {
    let mut names = Vec::new();
    let mut after_static = false;
    for tree in tokens {
        let TokenTree::Ident(ident) = tree else {
            after_static = false;
            continue;
        };
        if after_static {
            names.push((ident.span().start().line, ident.to_string()));
        }
        after_static = ident == "static";
    }
    names
}

fn names_changing(tokens: TokenStream, changing: &BTreeSet<String>) -> bool {
    let mut flat = Vec::new();
    source::flat_tokens(tokens, &mut flat);
    flat.iter().any(|tree| match tree {
        TokenTree::Ident(ident) => {
            let name = ident.to_string();
            MUTABLE_TYPES.contains(&name.as_str()) || name.starts_with("Atomic") || changing.contains(&name)
        }
        _ => false,
    })
}

/// The crate's own types that contain one of [`MUTABLE_TYPES`], directly or through each other.
fn changing_types(sources: &[SourceFile]) -> BTreeSet<String> {
    let mut types = FieldTokens::default();
    for source in sources {
        types.visit_file(&source.product);
    }
    let mut changing = BTreeSet::new();
    loop {
        let before = changing.len();
        for (name, fields) in &types.fields {
            if names_changing(fields.clone(), &changing) {
                changing.insert(name.clone());
            }
        }
        if changing.len() == before {
            return changing;
        }
    }
}

/// Every struct and enum with the tokens of its fields.
#[derive(Default)]
struct FieldTokens {
    fields: Vec<(String, TokenStream)>,
}

impl<'ast> Visit<'ast> for FieldTokens {
    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        let fields = item.fields.iter().map(|f| f.ty.to_token_stream()).collect();
        self.fields.push((item.ident.to_string(), fields));
    }

    fn visit_item_enum(&mut self, item: &'ast syn::ItemEnum) {
        let fields =
            item.variants.iter().flat_map(|v| v.fields.iter()).map(|f| f.ty.to_token_stream()).collect();
        self.fields.push((item.ident.to_string(), fields));
    }
}

#[cfg(test)]
#[path = "limits_tests.rs"]
mod tests;
