//! `cargo xtask names`: how well names explain themselves, per crate, as figures that may only fall
//! (tools/xtask/names.toml).
//!
//! Called by developers and by `ci`. It reads product sources as syntax trees; test code is exempt. It renames nothing.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use comfy_table::Table;
use syn::spanned::Spanned as _;
use syn::visit::{self, Visit};

use crate::ratchet::{FigureRatchet, WorkspaceFigures};
use crate::report::CheckFindings;
use crate::source::{self, SourceFile};
use crate::workspace::Workspace;

const RATCHET: FigureRatchet = FigureRatchet {
    file: "tools/xtask/names.toml",
    command: "cargo xtask names",
    per: None,
    head: "# Figures of names, per crate, which may only fall. `cargo xtask names` compares, `--list CRATE` shows each place,\n\
           # `--update` records lower ones. tools/xtask/src/names.rs describes how each is counted.\n",
};

/// The figures, in the order of the printed table.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum NameFigure {
    /// Types named by one word.
    OneWordTypes,
    /// Functions named by one word.
    OneWordFunctions,
    /// Types whose name another type of the workspace has, too.
    SharedTypes,
    /// Arguments of functions that are tuples.
    TupleArguments,
    /// `let (a, b) = (x, y)`.
    TupleLets,
    /// Visible fields of structs beyond [`VISIBLE_FIELDS_MAX`] for each.
    VisibleFields,
    /// Files with inherent methods of a type beyond [`FILES_PER_TYPE_MAX`] for each.
    ScatteredTypes,
    /// Predicates that take `&mut self`.
    ActingPredicates,
    /// Imports that rename a type of ours.
    RenamingImports,
}

impl NameFigure {
    const ALL: [Self; 9] = [
        Self::OneWordTypes,
        Self::OneWordFunctions,
        Self::SharedTypes,
        Self::TupleArguments,
        Self::TupleLets,
        Self::VisibleFields,
        Self::ScatteredTypes,
        Self::ActingPredicates,
        Self::RenamingImports,
    ];

    fn figure_name(self) -> &'static str {
        match self {
            Self::OneWordTypes => "one_word_types",
            Self::OneWordFunctions => "one_word_functions",
            Self::SharedTypes => "shared_types",
            Self::TupleArguments => "tuple_arguments",
            Self::TupleLets => "tuple_lets",
            Self::VisibleFields => "visible_fields",
            Self::ScatteredTypes => "scattered_types",
            Self::ActingPredicates => "acting_predicates",
            Self::RenamingImports => "renaming_imports",
        }
    }
}

/// Visible fields that a struct may have.
const VISIBLE_FIELDS_MAX: usize = 12;

/// Files in which the inherent methods of a type may stand.
const FILES_PER_TYPE_MAX: usize = 4;

/// Words that add nothing to the other words of a name.
const EMPTY_WORDS: [&str; 11] =
    ["data", "info", "item", "object", "manager", "helper", "util", "impl", "type", "value", "state"];

/// Names that Rust's own interfaces have, which are neither good nor bad here.
const CONVENTIONAL: [&str; 34] = [
    "new",
    "default",
    "len",
    "iter",
    "iter_mut",
    "into_iter",
    "next",
    "poll",
    "drop",
    "clone",
    "fmt",
    "eq",
    "ne",
    "cmp",
    "partial_cmp",
    "hash",
    "deref",
    "deref_mut",
    "borrow",
    "index",
    "main",
    "from",
    "into",
    "get",
    "get_mut",
    "insert",
    "remove",
    "push",
    "pop",
    "clear",
    "contains",
    "extend",
    "source",
    "build",
];

/// Prefixes of predicates.
const PREDICATES: [&str; 7] = ["is_", "has_", "can_", "was_", "are_", "should_", "needs_"];

/// Crates in which files of the same name have types of the same name: the same role over three networks.
const FABRICS: [&str; 3] = ["ofi", "softnic", "verbs"];

/// One place that counts.
struct NameOffence {
    figure: NameFigure,
    /// How much it adds.
    weight: u64,
    place: String,
    text: String,
}

/// A type of the workspace.
struct DeclaredName {
    package: String,
    /// Its file, without folder.
    file: String,
    place: String,
    name: String,
}

/// All findings of a run.
#[derive(Default)]
struct NameCensus {
    offences: BTreeMap<String, Vec<NameOffence>>,
    types: Vec<DeclaredName>,
    /// Functions whose names are judged.
    functions: u64,
    /// Lines of product code.
    lines: u64,
}

/// Compares the counted figures with the recorded ones; on request, lists the places of one crate, or records lower
/// figures.
///
/// # Errors
/// Sources or recorded figures cannot be read or written, or a figure to record has risen.
pub(crate) fn run(workspace: &Workspace, list: Option<&str>, update: bool) -> Result<CheckFindings> {
    let census = count_names(workspace)?;
    if let Some(package) = list {
        list_offences(&census, package)?;
        return Ok(CheckFindings::default());
    }
    let counted = census.crate_figures();
    let recorded = RATCHET.read_figures(&workspace.root)?;
    if update {
        RATCHET.write_figures(&workspace.root, &RATCHET.lower_figures(&recorded, &counted)?)?;
        print_shares(&census);
        return Ok(CheckFindings::default());
    }
    Ok(RATCHET.judge_figures(&recorded, &counted))
}

fn list_offences(census: &NameCensus, package: &str) -> Result<()> {
    let Some(offences) = census.offences.get(package) else {
        anyhow::bail!("no crate {package} in this workspace; crates are named without \"trunkline-\"");
    };
    let mut sorted: Vec<_> = offences.iter().collect();
    sorted.sort_by(|a, b| (a.figure, &a.place).cmp(&(b.figure, &b.place)));
    for offence in sorted {
        println!("{}: {}: {}", offence.place, offence.figure.figure_name(), offence.text);
    }
    Ok(())
}

/// Prints the figures of the whole workspace, as shares, beside the goals.
fn print_shares(census: &NameCensus) {
    let total = |figure| -> u64 {
        let all = census.offences.values().flatten();
        all.filter(|offence| offence.figure == figure).map(|offence| offence.weight).sum()
    };
    let percent = |figure, of: u64| format!("{:.0} %", 100.0 * total(figure) as f64 / of.max(1) as f64);
    let types = census.types.len() as u64;
    let mut table = Table::new();
    table.set_header(["figure", "now", "goal"]);
    table.add_row(["types named by one word", &percent(NameFigure::OneWordTypes, types), "35 %"]);
    table.add_row([
        "functions named by one word",
        &percent(NameFigure::OneWordFunctions, census.functions),
        "40 %",
    ]);
    table.add_row(["types that share their name", &percent(NameFigure::SharedTypes, types), "15 %"]);
    table.add_row(["tuple arguments", &total(NameFigure::TupleArguments).to_string(), "5"]);
    let lets = 1000.0 * total(NameFigure::TupleLets) as f64 / census.lines.max(1) as f64;
    table.add_row(["tuple lets per 1,000 lines", &format!("{lets:.1}"), "0.5"]);
    for figure in [
        NameFigure::VisibleFields,
        NameFigure::ScatteredTypes,
        NameFigure::ActingPredicates,
        NameFigure::RenamingImports,
    ] {
        table.add_row([figure.figure_name(), &total(figure).to_string(), ""]);
    }
    println!("{table}");
}

fn count_names(workspace: &Workspace) -> Result<NameCensus> {
    let mut census = NameCensus::default();
    for package in &workspace.crates {
        let mut files = MethodFiles::default();
        let mut offences = Vec::new();
        for source in source::product_sources(&package.dir)? {
            let file = workspace.relative_path(&source.path);
            census.lines += source.product_lines() as u64;
            let mut seen = FileNames::new(&file);
            seen.visit_file(&source.product);
            census.functions += seen.functions;
            offences.append(&mut seen.offences);
            let types = seen.types.into_iter().map(|(name, line)| DeclaredName {
                package: package.name.clone(),
                file: file_name(&source),
                place: format!("{file}:{line}"),
                name,
            });
            census.types.extend(types);
            for name in seen.methods_of {
                files.of.entry(name).or_default().insert(file.clone());
            }
        }
        offences.extend(files.into_offences());
        census.offences.insert(package.name.clone(), offences);
    }
    census.add_shared_types();
    Ok(census)
}

fn file_name(source: &SourceFile) -> String {
    source.path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

impl NameCensus {
    fn crate_figures(&self) -> WorkspaceFigures {
        let of_crate = |offences: &Vec<NameOffence>| {
            let value = |figure| offences.iter().filter(|o| o.figure == figure).map(|o| o.weight).sum();
            NameFigure::ALL.iter().map(|&figure| (figure.figure_name().to_owned(), value(figure))).collect()
        };
        self.offences.iter().map(|(package, offences)| (package.clone(), of_crate(offences))).collect()
    }

    /// Adds an offence for each type that has a namesake, unless all of them stand for the same role of the fabrics.
    fn add_shared_types(&mut self) {
        let mut by_name = BTreeMap::<&str, Vec<&DeclaredName>>::new();
        for named in &self.types {
            by_name.entry(&named.name).or_default().push(named);
        }
        let mut found = Vec::new();
        for named in &self.types {
            let others = by_name.get(named.name.as_str()).into_iter().flatten();
            let others: Vec<_> = others
                .copied()
                .filter(|other| !std::ptr::eq(*other, named) && !has_same_role(named, other))
                .collect();
            if let Some(other) = others.first() {
                let text =
                    format!("{} is named as {} others, one at {}", named.name, others.len(), other.place);
                let offence = NameOffence {
                    figure: NameFigure::SharedTypes,
                    weight: 1,
                    place: named.place.clone(),
                    text,
                };
                found.push((named.package.clone(), offence));
            }
        }
        for (package, offence) in found {
            self.offences.entry(package).or_default().push(offence);
        }
    }
}

/// Whether two types stand for the same part of two fabrics.
fn has_same_role(one: &DeclaredName, other: &DeclaredName) -> bool {
    let is_fabric = |named: &DeclaredName| FABRICS.contains(&named.package.as_str());
    is_fabric(one) && is_fabric(other) && one.package != other.package && one.file == other.file
}

/// The files that hold inherent methods of each type of a crate.
#[derive(Default)]
struct MethodFiles {
    of: BTreeMap<String, BTreeSet<String>>,
}

impl MethodFiles {
    fn into_offences(self) -> impl Iterator<Item = NameOffence> {
        let scattered = self.of.into_iter().filter(|(_, files)| files.len() > FILES_PER_TYPE_MAX);
        scattered.map(|(name, files)| NameOffence {
            figure: NameFigure::ScatteredTypes,
            weight: (files.len() - FILES_PER_TYPE_MAX) as u64,
            text: format!("{name} has methods in {} files; at most {FILES_PER_TYPE_MAX}", files.len()),
            place: files.into_iter().next().unwrap_or_default(),
        })
    }
}

/// How many words a name has, without those that add nothing.
fn words_of(name: &str) -> usize {
    let mut words = Vec::<String>::new();
    let mut last_is_lower = false;
    for letter in name.trim_start_matches("r#").chars() {
        let begins = letter.is_uppercase() && last_is_lower || letter == '_' || words.is_empty();
        if begins {
            words.push(String::new());
        }
        if letter != '_'
            && let Some(word) = words.last_mut()
        {
            word.extend(letter.to_lowercase());
        }
        last_is_lower = letter.is_lowercase() || letter.is_numeric();
    }
    words.retain(|word| !word.is_empty());
    let full = words.iter().filter(|word| !EMPTY_WORDS.contains(&word.as_str())).count();
    full.max(1).min(words.len().max(1))
}

/// The names of one file.
struct FileNames<'a> {
    file: &'a str,
    offences: Vec<NameOffence>,
    types: Vec<(String, usize)>,
    methods_of: Vec<String>,
    functions: u64,
}

impl<'a> FileNames<'a> {
    fn new(file: &'a str) -> Self {
        Self { file, offences: Vec::new(), types: Vec::new(), methods_of: Vec::new(), functions: 0 }
    }

    fn add_offence(&mut self, figure: NameFigure, weight: usize, line: usize, text: String) {
        let place = format!("{}:{line}", self.file);
        self.offences.push(NameOffence { figure, weight: weight as u64, place, text });
    }

    fn judge_type(&mut self, ident: &syn::Ident) {
        let name = ident.to_string();
        let line = ident.span().start().line;
        if words_of(&name) == 1 {
            self.add_offence(NameFigure::OneWordTypes, 1, line, name.clone());
        }
        self.types.push((name, line));
    }

    fn judge_fields(&mut self, item: &syn::ItemStruct) {
        let visible =
            item.fields.iter().filter(|field| !matches!(field.vis, syn::Visibility::Inherited)).count();
        if let Some(beyond @ 1..) = visible.checked_sub(VISIBLE_FIELDS_MAX) {
            let text = format!("{} has {visible} visible fields; at most {VISIBLE_FIELDS_MAX}", item.ident);
            self.add_offence(NameFigure::VisibleFields, beyond, item.ident.span().start().line, text);
        }
    }

    /// Judges a function whose name is ours to choose.
    fn judge_function(&mut self, signature: &syn::Signature) {
        let name = signature.ident.to_string();
        let line = signature.ident.span().start().line;
        if !CONVENTIONAL.contains(&name.as_str()) && signature.abi.is_none() {
            self.functions += 1;
            if words_of(&name) == 1 {
                self.add_offence(NameFigure::OneWordFunctions, 1, line, format!("fn {name}"));
            }
        }
        let takes_mut =
            signature.receiver().is_some_and(|own| own.reference.is_some() && own.mutability.is_some());
        if takes_mut && PREDICATES.iter().any(|prefix| name.starts_with(prefix)) {
            self.add_offence(NameFigure::ActingPredicates, 1, line, format!("fn {name}(&mut self)"));
        }
        for argument in &signature.inputs {
            let syn::FnArg::Typed(argument) = argument else { continue };
            let is_tuple = matches!(&*argument.ty, syn::Type::Tuple(tuple) if !tuple.elems.is_empty());
            if is_tuple {
                self.add_offence(
                    NameFigure::TupleArguments,
                    1,
                    argument.span().start().line,
                    format!("fn {name}"),
                );
            }
        }
    }

    fn judge_import(&mut self, tree: &syn::UseTree) {
        match tree {
            syn::UseTree::Path(path) => self.judge_import(&path.tree),
            syn::UseTree::Group(group) => group.items.iter().for_each(|item| self.judge_import(item)),
            syn::UseTree::Rename(rename) if rename.rename != "_" => {
                let is_type = rename.ident.to_string().starts_with(char::is_uppercase);
                if is_type {
                    let text = format!("{} as {}", rename.ident, rename.rename);
                    self.add_offence(NameFigure::RenamingImports, 1, rename.ident.span().start().line, text);
                }
            }
            _ => {}
        }
    }
}

/// Whether an import is of this crate or another of ours.
fn is_ours(tree: &syn::UseTree) -> bool {
    let syn::UseTree::Path(path) = tree else { return false };
    let first = path.ident.to_string();
    ["crate", "self", "super"].contains(&first.as_str()) || first.starts_with("trunkline")
}

impl<'ast> Visit<'ast> for FileNames<'_> {
    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        self.judge_type(&item.ident);
        self.judge_fields(item);
        visit::visit_item_struct(self, item);
    }

    fn visit_item_enum(&mut self, item: &'ast syn::ItemEnum) {
        self.judge_type(&item.ident);
        visit::visit_item_enum(self, item);
    }

    fn visit_item_union(&mut self, item: &'ast syn::ItemUnion) {
        self.judge_type(&item.ident);
        visit::visit_item_union(self, item);
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        self.judge_type(&item.ident);
        visit::visit_item_trait(self, item);
    }

    fn visit_item_type(&mut self, item: &'ast syn::ItemType) {
        self.judge_type(&item.ident);
        visit::visit_item_type(self, item);
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.judge_function(&item.sig);
        visit::visit_item_fn(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        self.judge_function(&item.sig);
        visit::visit_trait_item_fn(self, item);
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        // The trait defines the names of its methods.
        if item.trait_.is_none() {
            for part in &item.items {
                if let syn::ImplItem::Fn(function) = part {
                    self.judge_function(&function.sig);
                }
            }
            if let syn::Type::Path(path) = &*item.self_ty
                && let Some(last) = path.path.segments.last()
            {
                self.methods_of.push(last.ident.to_string());
            }
        }
        visit::visit_item_impl(self, item);
    }

    fn visit_local(&mut self, local: &'ast syn::Local) {
        let init = local.init.as_ref().map(|init| &*init.expr);
        if let (syn::Pat::Tuple(_), Some(syn::Expr::Tuple(_))) = (&local.pat, init) {
            self.add_offence(
                NameFigure::TupleLets,
                1,
                local.span().start().line,
                "let (..) = (..)".to_owned(),
            );
        }
        visit::visit_local(self, local);
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if is_ours(&item.tree) {
            self.judge_import(&item.tree);
        }
    }
}

#[cfg(test)]
#[path = "names_tests.rs"]
mod tests;
