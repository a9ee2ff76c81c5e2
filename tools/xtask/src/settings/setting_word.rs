//! Names in string literals that begin as settings do, anywhere in the text: in calls, messages and attributes. Comments do
//! not count.

use proc_macro2::TokenTree;
use quote::ToTokens as _;
use trunkline_settings::TEST_PREFIXES;
use trunkline_settings::rows::{all_rows, is_known_name};

use crate::source;

/// The beginnings of names of settings; a capital letter follows.
const PREFIXES: [&str; 5] = ["TRUNKLINE_", "NCCL_IB_", "SHMEM_", "NVSHMEM_", "RCCL_"];

/// A name in a text.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SettingWord {
    /// Line of the literal, 1-based.
    pub(super) line: usize,
    /// The name, or the common beginning of several if it ends with `_`.
    pub(super) name: String,
}

/// Finds the names in the literals of a file; macros included.
pub(super) fn find_words(file: &syn::File) -> Vec<SettingWord> {
    let mut tokens = Vec::new();
    source::flat_tokens(file.to_token_stream(), &mut tokens);
    let mut found = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        let TokenTree::Literal(literal) = token else { continue };
        if is_comment(&tokens[..at]) {
            continue;
        }
        let line = literal.span().start().line;
        let text = literal_text(&literal.to_string());
        let names = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let names = names.filter(|name| begins_like_setting(name));
        found.extend(names.map(|name| SettingWord { line, name: name.to_owned() }));
    }
    found
}

/// Returns whether the registry contains a name, or names that begin so.
pub(super) fn is_known(name: &str) -> bool {
    let is_for_tests = TEST_PREFIXES.iter().any(|prefix| name.starts_with(prefix));
    if is_for_tests || is_known_name(name) {
        return true;
    }
    let mut names = all_rows()
        .flat_map(|row| std::iter::once(row.name).chain(row.aliases.iter().map(|alias| alias.name)));
    name.ends_with('_') && names.any(|known| known.starts_with(name))
}

fn begins_like_setting(name: &str) -> bool {
    let mut rests = PREFIXES.iter().filter_map(|prefix| name.strip_prefix(prefix));
    rests.any(|rest| rest.starts_with(|c: char| c.is_ascii_uppercase()))
}

/// Returns whether the next literal is a comment of documentation, which is an attribute `doc = "text"` in a syntax tree.
fn is_comment(before: &[TokenTree]) -> bool {
    match before {
        [.., TokenTree::Ident(name), TokenTree::Punct(sign)] => name == "doc" && sign.as_char() == '=',
        _ => false,
    }
}

/// Returns the text of a string literal of any kind, without escapes; empty for other literals.
fn literal_text(literal: &str) -> String {
    match syn::parse_str::<syn::Lit>(literal) {
        Ok(syn::Lit::Str(text)) => text.value(),
        Ok(syn::Lit::ByteStr(bytes)) => String::from_utf8_lossy(&bytes.value()).into_owned(),
        Ok(syn::Lit::CStr(text)) => text.value().to_string_lossy().into_owned(),
        _ => String::new(),
    }
}
