//! One source with all its edits woven in, in memory.
//!
//! `bug_table` calls this for each file that has edits. `c_source` handles files that are not Rust.

use std::collections::BTreeMap;
use std::ops::Range;
use std::str::FromStr as _;

use proc_macro2::TokenStream;
use syn::parse::Parser as _;

use super::bug_file::{EditAction, EditRequest};
use super::c_source;
use super::file_edit::{self, FileEdit};
use super::named_span::{self, NamedSpan};
use super::piece_list::{self, PieceList};
use super::source_anchor::{self, SourceAnchor};
use super::source_node::{self, AnchorNode, ExpressionSlot, StatementsEnd, WantedAnchor};
use super::source_token::{self, SourceToken};
use super::woven_piece;
use crate::report::CheckFinding;

/// A woven text.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct WovenSource {
    /// The text.
    pub(crate) text: String,
    /// Whether a macro's definition checks for a bug: crates that use the macro must depend on the planted crate, too.
    pub(crate) is_in_macro: bool,
}

/// Woven texts, by path relative to the root.
pub(crate) type WovenSources = BTreeMap<String, WovenSource>;

/// Weaves all edits of one file into its text.
///
/// # Errors
/// Every edit that cannot be woven.
pub(crate) fn weave_source(text: &str, edits: &[FileEdit<'_>]) -> Result<WovenSource, Vec<CheckFinding>> {
    let Some(first) = edits.first() else {
        return Ok(WovenSource { text: text.to_owned(), is_in_macro: false });
    };
    if !first.edit.file.ends_with(".rs") {
        return c_source::weave_c(text, edits).map(|text| WovenSource { text, is_in_macro: false });
    }
    let source = RustSource::from_text(text)
        .map_err(|error| vec![first.refuse_edit(format!("the file is no Rust: {error}"))])?;
    source.weave_edits(edits)
}

/// A parsed Rust file.
struct RustSource<'a> {
    text: &'a str,
    file: syn::File,
    tokens: Vec<SourceToken>,
    names: Vec<NamedSpan>,
}

/// An edit whose anchor is found.
struct PlacedEdit<'a> {
    of: FileEdit<'a>,
    request: EditRequest<'a>,
    tokens: Range<usize>,
}

impl PlacedEdit<'_> {
    fn as_wanted(&self) -> WantedAnchor {
        WantedAnchor { tokens: self.tokens.clone(), may_be_part: self.request.action != EditAction::Swap }
    }
}

impl<'a> RustSource<'a> {
    fn from_text(text: &'a str) -> Result<Self, String> {
        let stream = TokenStream::from_str(text).map_err(|error| error.to_string())?;
        let file: syn::File = syn::parse2(stream).map_err(|error| error.to_string())?;
        let tokens = source_token::split_rust(text);
        let names = named_span::list_names(&file);
        Ok(Self { text, file, tokens, names })
    }

    fn weave_edits(&self, edits: &[FileEdit<'_>]) -> Result<WovenSource, Vec<CheckFinding>> {
        let mut failures = Vec::new();
        let mut placed = Vec::new();
        for &of in edits {
            match self.place_edit(of) {
                Ok(edit) => placed.push(edit),
                Err(reason) => failures.push(of.refuse_edit(reason)),
            }
        }
        let anchors: Vec<WantedAnchor> = placed.iter().map(PlacedEdit::as_wanted).collect();
        let nodes = source_node::find_nodes(&self.file, &self.tokens, &anchors);
        let is_in_macro =
            nodes.iter().any(|node| matches!(node, AnchorNode::MacroTokens { is_definition: true, .. }));
        let mut pieces = PieceList::default();
        for (edit, node) in placed.iter().zip(nodes) {
            if let Err(reason) = self
                .resolve_macro(node, &edit.request)
                .and_then(|node| pieces.add_edit(edit.of.bug, edit.request, node))
            {
                failures.push(edit.of.refuse_edit(reason));
            }
        }
        if !failures.is_empty() {
            return Err(failures);
        }
        let text = woven_piece::write_pieces(self.text, pieces.into_pieces())
            .map_err(|overlap| vec![file_edit::refuse_overlap(edits, &overlap)])?;
        self.check_syntax(&text, edits)?;
        Ok(WovenSource { text, is_in_macro })
    }

    /// Whether the woven text is Rust; if not, which bugs break it.
    fn check_syntax(&self, text: &str, edits: &[FileEdit<'_>]) -> Result<(), Vec<CheckFinding>> {
        let Err(error) = syn::parse_file(text) else { return Ok(()) };
        let mut bugs: Vec<&str> = edits.iter().map(|of| of.bug).collect();
        bugs.dedup();
        let mut failures = Vec::new();
        if bugs.len() > 1 {
            for bug in bugs {
                let own: Vec<FileEdit<'_>> = edits.iter().filter(|of| of.bug == bug).copied().collect();
                failures.extend(self.weave_edits(&own).err().unwrap_or_default());
            }
        }
        if failures.is_empty() {
            let line =
                text.lines().nth(error.span().start().line.saturating_sub(1)).unwrap_or_default().trim();
            let reason = format!("the woven file is no Rust: {error}: `{line}`");
            failures.push(edits[0].refuse_edit(reason));
        }
        Err(failures)
    }

    /// Finds the one place of an edit's anchor.
    fn place_edit<'e>(&self, of: FileEdit<'e>) -> Result<PlacedEdit<'e>, String> {
        let request = of.edit.read_request()?;
        let anchor = split_anchor(request.anchor)?;
        let areas: Vec<Range<usize>> = match &of.edit.item {
            None => std::iter::once(0..self.tokens.len()).collect(),
            Some(path) => {
                let items = named_span::find_items(&self.names, path);
                if items.is_empty() {
                    let similar = named_span::similar_paths(&self.names, path).join("`, `");
                    return Err(format!("the file has no item `{path}`; similar ones are `{similar}`"));
                }
                items.iter().map(|item| source_token::tokens_within(&self.tokens, &item.bytes)).collect()
            }
        };
        let within = of.edit.within.as_deref().map(split_anchor).transpose()?;
        let tokens = source_anchor::find_once(self.text, &self.tokens, &areas, within.as_ref(), &anchor)?;
        Ok(PlacedEdit { of, request, tokens })
    }

    /// The tokens of a macro as the expression or the statements that they are.
    fn resolve_macro(&self, node: AnchorNode, request: &EditRequest<'_>) -> Result<AnchorNode, String> {
        let AnchorNode::MacroTokens { tokens, .. } = node else { return Ok(node) };
        let text_at =
            |at: Option<usize>| at.and_then(|at| self.tokens.get(at)).map_or("", |token| token.text.as_str());
        let follower = text_at(Some(tokens.end));
        let is_first = ["{", "}", ";"].contains(&text_at(tokens.start.checked_sub(1)));
        let ends_block = follower == "}";
        let is_empty = request.text.trim().is_empty();
        let is_statement = is_first && (follower == ";" || ends_block && is_empty);
        let mut bytes = source_token::bytes_of(&self.tokens[tokens.clone()]);
        let stream = piece_list::without_dollars(&self.text[bytes.clone()])?;
        let is_insert = request.action != EditAction::Swap;
        if !is_statement
            && !is_insert
            && syn::parse2::<syn::Expr>(stream.clone()).is_ok_and(|e| !is_verbatim(&e))
        {
            return Ok(AnchorNode::Expression { bytes, slot: ExpressionSlot::Free });
        }
        let statements = syn::Block::parse_within.parse2(stream);
        let Some((statements, last)) =
            statements.ok().and_then(|list| list.last().cloned().map(|last| (list, last)))
        else {
            return Err("the anchor in a macro is neither an expression nor statements: anchor one of them"
                .to_owned());
        };
        let mut end = source_node::statements_end(&last, ends_block);
        if follower == ";" && self.tokens[tokens.end - 1].text != ";" {
            bytes.end = self.tokens[tokens.end].bytes.end;
            end = StatementsEnd::Plain;
        }
        Ok(AnchorNode::Statements { bytes, end, lost: source_node::name_lost(&statements, ends_block) })
    }
}

fn is_verbatim(expression: &syn::Expr) -> bool {
    matches!(expression, syn::Expr::Verbatim(_) | syn::Expr::Let(_))
}

fn split_anchor(anchor: &str) -> Result<SourceAnchor, String> {
    SourceAnchor::new(source_token::split_rust(anchor))
}
