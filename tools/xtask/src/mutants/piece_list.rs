//! The pieces of a Rust file: the text that each edit writes at the node of its anchor.
//!
//! `woven_source` fills this and passes it to `woven_piece`. It handles one node at a time.

use std::collections::BTreeMap;
use std::ops::Range;
use std::str::FromStr as _;

use proc_macro2::{TokenStream, TokenTree};
use syn::parse::Parser as _;
use syn::spanned::Spanned as _;

use super::bug_file::{EditAction, EditRequest};
use super::source_node::{AnchorNode, ArmParts, ExpressionSlot, StatementsEnd};
use super::woven_piece::{self, PieceForm, WovenPiece};

/// The pieces of a file, in the order in which its edits are added.
#[derive(Default)]
pub(crate) struct PieceList {
    pieces: Vec<WovenPiece>,
    /// Closing texts of pieces that begin at a point: at the same place, the last opened is closed first.
    closers: Vec<WovenPiece>,
    /// Arms that bugs remove, by the end of their patterns.
    emptied: BTreeMap<usize, EmptiedArm>,
}

struct EmptiedArm {
    parts: ArmParts,
    bugs: Vec<String>,
}

impl PieceList {
    /// Adds the text of an edit at its node.
    ///
    /// # Errors
    /// The edit does not fit the node.
    pub(crate) fn add_edit(
        &mut self,
        bug: &str,
        request: EditRequest<'_>,
        node: AnchorNode,
    ) -> Result<(), String> {
        let EditRequest { action, text, .. } = request;
        match (node, action) {
            (AnchorNode::Refused(reason), _) => return Err(reason),
            (AnchorNode::Expression { bytes, slot }, EditAction::Swap) => {
                check_block(text)?;
                if text.trim().is_empty() && slot != ExpressionSlot::Block {
                    return Err("an expression needs a value: give `with`".to_owned());
                }
                let (open, close) = match slot {
                    ExpressionSlot::Free => ("(".to_owned(), ")"),
                    ExpressionSlot::Block => ("{ ".to_owned(), " }"),
                    ExpressionSlot::Shorthand(name) => (format!("{name}: ("), ")"),
                    ExpressionSlot::Written => {
                        return Err("the anchor is written to: anchor the statement".to_owned());
                    }
                };
                self.add_piece(bug, bytes, text, PieceForm::Expression { open, close });
            }
            (AnchorNode::Statements { lost: Some(reason), .. }, EditAction::Swap) => return Err(reason),
            (AnchorNode::Statements { bytes, end, .. }, EditAction::Swap) => {
                check_block(text)?;
                self.add_piece(bug, bytes, text, PieceForm::Statements(end == StatementsEnd::Value));
            }
            (AnchorNode::Statements { end: StatementsEnd::Value, .. }, EditAction::InsertAfter) => {
                return Err(
                    "nothing runs after the value of a block: insert before it, or swap it".to_owned()
                );
            }
            (AnchorNode::Statements { bytes, .. }, _) => {
                check_block(text)?;
                let inserted = shadowed_name(bug, text).unwrap_or_else(|| {
                    format!("if {} {}", woven_piece::ask_rust(bug), woven_piece::block_of(text, false))
                });
                self.add_point(bug, action, &bytes, &inserted);
            }
            (AnchorNode::Arms { arms, .. }, EditAction::Swap) if text.trim().is_empty() => {
                for parts in arms {
                    let empty = || EmptiedArm { parts: parts.clone(), bugs: Vec::new() };
                    self.emptied.entry(parts.pattern_end).or_insert_with(empty).bugs.push(bug.to_owned());
                }
            }
            (AnchorNode::Arms { bytes, arms }, _) => match (guard_arms(bug, text), &arms[..]) {
                (Err(_), [arm]) if action != EditAction::Swap && check_block(text).is_ok() => {
                    self.add_to_body(bug, action, &arm.body, text);
                }
                (guarded, _) => self.add_point(bug, action, &bytes, &guarded?),
            },
            (AnchorNode::Expression { .. } | AnchorNode::MacroTokens { .. }, _) => {
                return Err(
                    "nothing can be inserted beside an expression: anchor whole statements or a match arm"
                        .to_owned(),
                );
            }
        }
        Ok(())
    }

    fn add_piece(&mut self, bug: &str, bytes: Range<usize>, text: &str, form: PieceForm) {
        self.pieces.push(WovenPiece { bytes, bug: bug.to_owned(), text: text.to_owned(), form });
    }

    /// Adds statements to an arm whose body is an expression, so that no statement is around it.
    fn add_to_body(&mut self, bug: &str, action: EditAction, body: &Range<usize>, text: &str) {
        let inserted = format!("if {} {}", woven_piece::ask_rust(bug), woven_piece::block_of(text, false));
        let (open, close) = match action {
            EditAction::InsertAfter => {
                ("{ let planted_value = ".to_owned(), format!("; {inserted} planted_value }}"))
            }
            _ => (format!("{{ {inserted} "), " }".to_owned()),
        };
        self.pieces.push(WovenPiece::at_point(body.start, bug, open));
        self.closers.push(WovenPiece::at_point(body.end, bug, close));
    }

    fn add_point(&mut self, bug: &str, action: EditAction, bytes: &Range<usize>, text: &str) {
        let piece = match action {
            EditAction::InsertAfter => WovenPiece::at_point(bytes.end, bug, format!(" {text}")),
            _ => WovenPiece::at_point(bytes.start, bug, format!("{text} ")),
        };
        self.pieces.push(piece);
    }

    /// All pieces, in the order of the bugs.
    pub(crate) fn into_pieces(self) -> Vec<WovenPiece> {
        let mut pieces = self.pieces;
        pieces.extend(self.closers.into_iter().rev());
        for EmptiedArm { parts, bugs } in self.emptied.into_values() {
            let asked: Vec<String> =
                bugs.iter().map(|bug| format!("!{}", woven_piece::ask_rust(bug))).collect();
            let asked = asked.join(" && ");
            match parts.guard {
                None => {
                    pieces.push(WovenPiece::at_point(parts.pattern_end, &bugs[0], format!(" if {asked}")))
                }
                Some(guard) => {
                    pieces.push(WovenPiece::at_point(guard.start, &bugs[0], format!("{asked} && (")));
                    pieces.push(WovenPiece::at_point(guard.end, &bugs[0], ")".to_owned()));
                }
            }
        }
        pieces
    }
}

/// Checks that a block may contain a bug's text.
fn check_block(text: &str) -> Result<(), String> {
    let stream = without_dollars(text).map_err(|error| format!("the bug's text is no Rust: {error}"))?;
    match syn::Block::parse_within.parse2(stream) {
        Ok(_) => Ok(()),
        Err(error) => Err(format!("the bug's text is neither an expression nor statements: {error}")),
    }
}

/// Converts a text that is a single `let` of a name to another value of that name: inside the condition's block it
/// would be out of scope.
fn shadowed_name(bug: &str, text: &str) -> Option<String> {
    let statements = syn::Block::parse_within.parse_str(text).ok()?;
    let [syn::Stmt::Local(local)] = &statements[..] else { return None };
    let name = match &local.pat {
        syn::Pat::Ident(name) => name,
        syn::Pat::Type(typed) => match &*typed.pat {
            syn::Pat::Ident(name) => name,
            _ => return None,
        },
        _ => return None,
    };
    let value = local.init.as_ref().filter(|init| init.diverge.is_none() && name.subpat.is_none())?;
    let pattern = &text[local.pat.span().byte_range()];
    let value = &text[value.expr.span().byte_range()];
    Some(format!(
        "let {pattern} = if {} {{ {value} }} else {{ {} }};",
        woven_piece::ask_rust(bug),
        name.ident
    ))
}

/// The arms of a bug, which match only if it is selected.
fn guard_arms(bug: &str, text: &str) -> Result<String, String> {
    let wrapped = format!("match () {{ {text}\n }}");
    let parsed: syn::ExprMatch =
        syn::parse_str(&wrapped).map_err(|error| format!("the bug's text is no match arm: {error}"))?;
    let asked = woven_piece::ask_rust(bug);
    let mut arms = String::new();
    for arm in &parsed.arms {
        let at = |span: proc_macro2::Span| &wrapped[span.byte_range()];
        let guard = arm.guard.as_ref().map(|(_, guard)| format!(" && ({})", at(guard.span())));
        let attributes: String =
            arm.attrs.iter().map(|attribute| format!("{} ", at(attribute.span()))).collect();
        arms += &format!(
            "{attributes}{} if {asked}{} => {}, ",
            at(arm.pat.span()),
            guard.unwrap_or_default(),
            at(arm.body.span())
        );
    }
    Ok(arms.trim_end().to_owned())
}

/// Tokens as if `$name` of a macro were names.
pub(crate) fn without_dollars(text: &str) -> Result<TokenStream, String> {
    let stream = TokenStream::from_str(text).map_err(|error| error.to_string())?;
    Ok(drop_dollars(stream))
}

fn drop_dollars(stream: TokenStream) -> TokenStream {
    let kept =
        stream.into_iter().filter(|tree| !matches!(tree, TokenTree::Punct(punct) if punct.as_char() == '$'));
    kept.map(|tree| match tree {
        TokenTree::Group(group) => {
            proc_macro2::Group::new(group.delimiter(), drop_dollars(group.stream())).into()
        }
        other => other,
    })
    .collect()
}
