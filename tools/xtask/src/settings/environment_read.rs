//! Code that reads the environment: calls of `std::env::var` and the like, and imports of these functions. It judges none of
//! them.

use proc_macro2::TokenTree;
use syn::visit::{self, Visit};

use crate::source;

/// The functions of `std::env` that read variables.
const STD_CALLS: [&str; 4] = ["var", "var_os", "vars", "vars_os"];
/// Functions of C that do.
const C_CALLS: [&str; 2] = ["getenv", "secure_getenv"];

/// A place that reads the environment.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct EnvironmentRead {
    /// Line, 1-based.
    pub(super) line: usize,
    /// The function, constant or static that contains it; `use` for an import.
    pub(super) item: String,
    /// The call.
    pub(super) call: String,
}

/// Finds the places in a file; macros included.
pub(super) fn find_reads(file: &syn::File) -> Vec<EnvironmentRead> {
    let mut finder = ReadFinder::default();
    finder.visit_file(file);
    finder.found
}

#[derive(Default)]
struct ReadFinder {
    /// The items around the present place, the innermost last.
    items: Vec<String>,
    found: Vec<EnvironmentRead>,
}

impl ReadFinder {
    fn visit_inside(&mut self, ident: &syn::Ident, visit_item: impl FnOnce(&mut Self)) {
        self.items.push(ident.to_string());
        visit_item(self);
        self.items.pop();
    }

    fn add_read(&mut self, place: &syn::Ident, call: String) {
        let item = self.items.last().cloned().unwrap_or_default();
        self.found.push(EnvironmentRead { line: place.span().start().line, item, call });
    }

    /// Adds the call that a path ends with, if it reads variables.
    fn add_call(&mut self, module: Option<&syn::Ident>, function: &syn::Ident) {
        let is_std = module.is_some_and(|module| module == "env") && is_one_of(function, &STD_CALLS);
        if is_std {
            self.add_read(function, format!("env::{function}"));
        } else if is_one_of(function, &C_CALLS) {
            self.add_read(function, function.to_string());
        }
    }

    fn add_imports(&mut self, tree: &syn::UseTree, module: Option<&syn::Ident>) {
        match tree {
            syn::UseTree::Path(path) => self.add_imports(&path.tree, Some(&path.ident)),
            syn::UseTree::Name(name) => self.add_call(module, &name.ident),
            // Another name of the module would hide its calls.
            syn::UseTree::Rename(rename) if rename.ident == "env" => {
                self.add_read(&rename.ident, format!("env as {}", rename.rename));
            }
            syn::UseTree::Rename(rename) => self.add_call(module, &rename.ident),
            syn::UseTree::Glob(_) => {
                if let Some(module) = module.filter(|module| *module == "env") {
                    self.add_read(module, "env::*".to_owned());
                }
            }
            syn::UseTree::Group(group) => group.items.iter().for_each(|tree| self.add_imports(tree, module)),
        }
    }
}

fn is_one_of(ident: &syn::Ident, names: &[&str]) -> bool {
    names.iter().any(|name| ident == name)
}

impl<'ast> Visit<'ast> for ReadFinder {
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.visit_inside(&item.sig.ident, |finder| visit::visit_item_fn(finder, item));
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.visit_inside(&item.sig.ident, |finder| visit::visit_impl_item_fn(finder, item));
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        self.visit_inside(&item.sig.ident, |finder| visit::visit_trait_item_fn(finder, item));
    }

    fn visit_item_static(&mut self, item: &'ast syn::ItemStatic) {
        self.visit_inside(&item.ident, |finder| visit::visit_item_static(finder, item));
    }

    fn visit_item_const(&mut self, item: &'ast syn::ItemConst) {
        self.visit_inside(&item.ident, |finder| visit::visit_item_const(finder, item));
    }

    fn visit_item_macro(&mut self, item: &'ast syn::ItemMacro) {
        match &item.ident {
            Some(ident) => self.visit_inside(ident, |finder| visit::visit_item_macro(finder, item)),
            None => visit::visit_item_macro(self, item),
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        self.items.push("use".to_owned());
        self.add_imports(&item.tree, None);
        self.items.pop();
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let mut names = path.segments.iter().rev().map(|segment| &segment.ident);
        if let Some(function) = names.next() {
            self.add_call(names.next(), function);
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, item: &'ast syn::Macro) {
        let mut tokens = Vec::new();
        source::flat_tokens(item.tokens.clone(), &mut tokens);
        for (at, token) in tokens.iter().enumerate() {
            let TokenTree::Ident(function) = token else { continue };
            let module = match tokens.get(at.wrapping_sub(3)) {
                Some(TokenTree::Ident(module)) => Some(module),
                _ => None,
            };
            self.add_call(module.filter(|_| source::follows_colons(&tokens, at)), function);
        }
    }
}
