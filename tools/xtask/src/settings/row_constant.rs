//! The rows of the registry as its sources define them, with the path of each constant, and the paths that other sources name.
//! The compiled registry has the names of variables, and not those of constants.

use std::collections::BTreeSet;

use proc_macro2::TokenTree;
use quote::ToTokens as _;

use crate::source::{self, SourceFile};

/// The macro that defines the rows of a file.
const ROWS_MACRO: &str = "setting_rows";
/// The constant with all rows of a table.
const TABLE: &str = "ROWS";
/// The group of rows without effect. One call reports all of a table.
const UNUSED_GROUP: &str = "Unused";

/// A row, as its source defines it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RowConstant {
    /// The modules of the table below `rows`: `network`, or `unused::nccl`.
    pub(super) table: String,
    /// The constant.
    pub(super) constant: String,
    /// The environment variable.
    pub(super) name: String,
    /// The variant of `SettingGroup`.
    pub(super) group: String,
}

impl RowConstant {
    /// Returns the path by which readers name it.
    pub(super) fn full_path(&self) -> String {
        format!("{}::{}", self.table, self.constant)
    }

    /// Returns whether the paths of other sources contain it. A row without effect may be named by its table.
    pub(super) fn is_named_in(&self, paths: &BTreeSet<String>) -> bool {
        let table = format!("{}::{TABLE}", self.table);
        paths.contains(&self.full_path()) || (self.group == UNUSED_GROUP && paths.contains(&table))
    }
}

/// Returns the rows of a file of the registry; none if it defines no table.
pub(super) fn read_rows(source: &SourceFile) -> Vec<RowConstant> {
    let stem = source.path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
    let mut rows = Vec::new();
    add_rows(&source.product.items, stem, &mut rows);
    rows
}

fn add_rows(items: &[syn::Item], table: &str, rows: &mut Vec<RowConstant>) {
    for item in items {
        match item {
            syn::Item::Mod(syn::ItemMod { ident, content: Some((_, items)), .. }) => {
                add_rows(items, &format!("{table}::{ident}"), rows);
            }
            syn::Item::Macro(syn::ItemMacro { mac, ident: None, .. }) if mac.path.is_ident(ROWS_MACRO) => {
                let trees: Vec<TokenTree> = mac.tokens.clone().into_iter().collect();
                rows.extend(trees.windows(5).filter_map(|head| row_of_head(head, table)));
            }
            _ => {}
        }
    }
}

/// Returns the row that begins with `CONSTANT: "NAME", Group`.
fn row_of_head(head: &[TokenTree], table: &str) -> Option<RowConstant> {
    let [
        TokenTree::Ident(constant),
        TokenTree::Punct(colon),
        TokenTree::Literal(name),
        TokenTree::Punct(comma),
        TokenTree::Ident(group),
    ] = head
    else {
        return None;
    };
    if colon.as_char() != ':' || comma.as_char() != ',' {
        return None;
    }
    Some(RowConstant {
        table: table.to_owned(),
        constant: constant.to_string(),
        name: syn::parse_str::<syn::LitStr>(&name.to_string()).ok()?.value(),
        group: group.to_string(),
    })
}

/// Collects the ends of two and three names of all paths in files; macros included.
pub(super) fn collect_paths<'a>(files: impl Iterator<Item = &'a syn::File>) -> BTreeSet<String> {
    let mut paths = BTreeSet::new();
    for file in files {
        let mut tokens = Vec::new();
        source::flat_tokens(file.to_token_stream(), &mut tokens);
        for at in 0..tokens.len() {
            let Some(mut path) = ident_at(&tokens, at) else { continue };
            let mut start = at;
            while source::follows_colons(&tokens, start)
                && let Some(module) = ident_at(&tokens, start.wrapping_sub(3))
                && path.matches("::").count() < 2
            {
                start -= 3;
                path = format!("{module}::{path}");
                paths.insert(path.clone());
            }
        }
    }
    paths
}

fn ident_at(tokens: &[TokenTree], at: usize) -> Option<String> {
    match tokens.get(at) {
        Some(TokenTree::Ident(ident)) => Some(ident.to_string()),
        _ => None,
    }
}
