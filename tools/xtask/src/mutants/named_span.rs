//! The items of a Rust file by path, as an edit's `in` names them.
//!
//! `woven_source` calls this. Items that a macro generates are not included.

use std::ops::Range;

use quote::ToTokens as _;
use syn::spanned::Spanned as _;
use syn::visit::{self, Visit};

/// How many similar names a message has.
const SIMILAR_MAX: usize = 3;

/// One name of an item's path.
#[derive(Debug, Clone, PartialEq, Eq)]
struct NameStep {
    name: String,
    /// The trait, for a block `impl Trait for name`.
    of_trait: Option<String>,
}

impl NameStep {
    fn new(name: impl ToString) -> Self {
        Self { name: name.to_string(), of_trait: None }
    }

    fn from_text(text: &str) -> Self {
        match text.split_once(" for ") {
            Some((of_trait, name)) => {
                Self { name: name.trim().to_owned(), of_trait: Some(of_trait.trim().to_owned()) }
            }
            None => Self::new(text.trim()),
        }
    }

    /// Whether this step matches a requested one.
    fn is_meant_by(&self, asked: &Self) -> bool {
        self.name == asked.name && (asked.of_trait.is_none() || asked.of_trait == self.of_trait)
    }
}

/// One item, and where it is.
#[derive(Debug, Clone)]
pub(crate) struct NamedSpan {
    path: Vec<NameStep>,
    /// The whole item, attributes included.
    pub(crate) bytes: Range<usize>,
}

impl NamedSpan {
    /// The path as an edit would name it.
    pub(crate) fn path_text(&self) -> String {
        let text = |step: &NameStep| match &step.of_trait {
            Some(of_trait) => format!("{of_trait} for {}", step.name),
            None => step.name.clone(),
        };
        self.path.iter().map(text).collect::<Vec<_>>().join("::")
    }
}

/// All items of a file, nested ones included.
pub(crate) fn list_names(file: &syn::File) -> Vec<NamedSpan> {
    let mut lister = NameLister::default();
    lister.visit_file(file);
    lister.items
}

/// The items whose path ends in this one.
pub(crate) fn find_items<'a>(items: &'a [NamedSpan], path: &str) -> Vec<&'a NamedSpan> {
    let asked: Vec<NameStep> = path.split("::").map(NameStep::from_text).collect();
    let is_meant = |item: &&NamedSpan| {
        let Some(skipped) = item.path.len().checked_sub(asked.len()) else { return false };
        item.path[skipped..].iter().zip(&asked).all(|(step, asked)| step.is_meant_by(asked))
    };
    items.iter().filter(is_meant).collect()
}

/// The paths most similar to one that no item has.
pub(crate) fn similar_paths(items: &[NamedSpan], path: &str) -> Vec<String> {
    let mut paths: Vec<String> = items.iter().map(NamedSpan::path_text).collect();
    paths.sort_unstable();
    paths.dedup();
    // An item with the right name in a wrong type or module is more similar than another item in the right type.
    let name = |path: &str| path.rsplit("::").next().unwrap_or_default().to_owned();
    paths.sort_by_cached_key(|known| {
        3 * edit_distance(&name(known), &name(path)) + edit_distance(known, path)
    });
    paths.truncate(SIMILAR_MAX);
    paths
}

/// The number of letters to add, remove or replace.
fn edit_distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (at, letter) in one.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = at + 1;
        for (column, wanted) in other.iter().enumerate() {
            let replaced = diagonal + usize::from(letter != *wanted);
            diagonal = row[column + 1];
            row[column + 1] = replaced.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[other.len()]
}

#[derive(Default)]
struct NameLister {
    path: Vec<NameStep>,
    items: Vec<NamedSpan>,
}

impl NameLister {
    fn add_name(&mut self, step: NameStep, span: proc_macro2::Span) {
        let mut path = self.path.clone();
        path.push(step);
        self.items.push(NamedSpan { path, bytes: span.byte_range() });
    }

    /// Adds an item, and the items nested in it.
    fn enter_name(&mut self, step: NameStep, span: proc_macro2::Span, visit: impl FnOnce(&mut Self)) {
        self.add_name(step.clone(), span);
        self.path.push(step);
        visit(self);
        self.path.pop();
    }
}

impl<'ast> Visit<'ast> for NameLister {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        let name = match item {
            syn::Item::Struct(item) => Some(&item.ident),
            syn::Item::Enum(item) => Some(&item.ident),
            syn::Item::Union(item) => Some(&item.ident),
            syn::Item::Const(item) => Some(&item.ident),
            syn::Item::Static(item) => Some(&item.ident),
            syn::Item::Type(item) => Some(&item.ident),
            syn::Item::Macro(item) => item.ident.as_ref(),
            _ => None,
        };
        match name {
            Some(name) => {
                self.enter_name(NameStep::new(name), item.span(), |lister| visit::visit_item(lister, item));
            }
            None => visit::visit_item(self, item),
        }
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        let step = NameStep::new(&item.sig.ident);
        self.enter_name(step, item.span(), |lister| visit::visit_item_fn(lister, item));
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        let step = NameStep::new(&item.ident);
        self.enter_name(step, item.span(), |lister| visit::visit_item_mod(lister, item));
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        let step = NameStep::new(&item.ident);
        self.enter_name(step, item.span(), |lister| visit::visit_item_trait(lister, item));
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        let last = |path: &syn::Path| path.segments.last().map(|segment| segment.ident.to_string());
        let of_trait = item.trait_.as_ref().and_then(|(_, path, _)| last(path));
        let step = NameStep { name: find_type_name(&item.self_ty), of_trait };
        self.enter_name(step, item.span(), |lister| visit::visit_item_impl(lister, item));
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        let step = NameStep::new(&item.sig.ident);
        self.enter_name(step, item.span(), |lister| visit::visit_impl_item_fn(lister, item));
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        let step = NameStep::new(&item.sig.ident);
        self.enter_name(step, item.span(), |lister| visit::visit_trait_item_fn(lister, item));
    }

    fn visit_impl_item_const(&mut self, item: &'ast syn::ImplItemConst) {
        self.add_name(NameStep::new(&item.ident), item.span());
    }
}

/// The last identifier of a type, without generics.
fn find_type_name(of: &syn::Type) -> String {
    match of {
        syn::Type::Path(path) => {
            path.path.segments.last().map(|segment| segment.ident.to_string()).unwrap_or_default()
        }
        syn::Type::Reference(reference) => find_type_name(&reference.elem),
        syn::Type::Ptr(pointer) => find_type_name(&pointer.elem),
        syn::Type::Slice(slice) => find_type_name(&slice.elem),
        syn::Type::Array(array) => find_type_name(&array.elem),
        syn::Type::Paren(inner) => find_type_name(&inner.elem),
        syn::Type::Group(inner) => find_type_name(&inner.elem),
        syn::Type::TraitObject(object) => match object.bounds.first() {
            Some(syn::TypeParamBound::Trait(bound)) => {
                bound.path.segments.last().map(|segment| segment.ident.to_string()).unwrap_or_default()
            }
            _ => String::new(),
        },
        other => other.to_token_stream().to_string(),
    }
}
