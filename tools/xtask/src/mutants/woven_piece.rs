//! Pieces of a source that check at run time which bug is selected, and the text that contains them.
//!
//! `woven_source` and `c_source` define the range that each piece replaces; this module combines all pieces of a file.

use std::ops::Range;

/// How a piece is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PieceForm {
    /// A Rust expression between these two texts.
    Expression {
        /// Written before the `if`.
        open: String,
        /// Written after it.
        close: &'static str,
    },
    /// Rust statements; `true` when the last is the value of its block.
    Statements(bool),
    /// Statements of C.
    CStatements,
    /// An expression of C.
    CExpression,
    /// The text itself, at the begin of the bytes, which remain.
    Point,
}

/// The text of one bug for one place.
#[derive(Debug, Clone)]
pub(crate) struct WovenPiece {
    /// The bytes that are replaced when the bug is selected; empty for a point.
    pub(crate) bytes: Range<usize>,
    /// The bug.
    pub(crate) bug: String,
    /// The bug's text.
    pub(crate) text: String,
    /// How it is written.
    pub(crate) form: PieceForm,
}

impl WovenPiece {
    /// A text that is added at a byte.
    pub(crate) fn at_point(at: usize, bug: &str, text: String) -> Self {
        Self { bytes: at..at, bug: bug.to_owned(), text, form: PieceForm::Point }
    }
}

/// The condition that a bug is selected, in Rust.
pub(crate) fn ask_rust(bug: &str) -> String {
    format!("::trunkline_planted::is_planted({bug:?})")
}

/// The condition that a bug is selected, in C.
pub(crate) fn ask_c(bug: &str) -> String {
    format!("trunkline_planted({bug:?})")
}

/// Statements in braces. They end in a semicolon, so that the block has no value; a comment at their end does not hide
/// the brace.
pub(crate) fn block_of(text: &str, is_value: bool) -> String {
    let text = text.trim();
    if text.is_empty() {
        return "{ }".to_owned();
    }
    let end = if is_value || text.ends_with(';') { "" } else { ";" };
    // A semicolon after a comment would be part of it.
    let line = if text.lines().last().is_some_and(|line| line.contains("//")) { "\n" } else { " " };
    if line == "\n" { format!("{{ {text}\n{end} }}") } else { format!("{{ {text}{end} }}") }
}

/// Two pieces that overlap, and neither contains the other.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PieceOverlap {
    /// The bug whose piece begins first.
    pub(crate) first: String,
    /// The bug whose piece begins inside of it.
    pub(crate) second: String,
}

/// Writes all pieces into a text: equal ones as a chain, in their order, and nested ones where no bug of the outer one
/// is selected.
///
/// # Errors
/// Two pieces overlap.
pub(crate) fn write_pieces(text: &str, mut pieces: Vec<WovenPiece>) -> Result<String, PieceOverlap> {
    // Stable: equal places keep the order of the bugs.
    pieces.sort_by_key(|piece| {
        (piece.bytes.start, piece.form != PieceForm::Point, usize::MAX - piece.bytes.end)
    });
    write_range(text, 0..text.len(), &pieces)
}

fn write_range(text: &str, range: Range<usize>, pieces: &[WovenPiece]) -> Result<String, PieceOverlap> {
    let mut out = String::new();
    let mut at = range.start;
    let mut rest = pieces;
    while let Some(first) = rest.first() {
        out += &text[at..first.bytes.start];
        at = first.bytes.end;
        if first.form == PieceForm::Point {
            out += &first.text;
            rest = &rest[1..];
            continue;
        }
        let same = rest.iter().take_while(|piece| is_same_place(piece, first)).count();
        let inside = rest[same..].iter().take_while(|piece| piece.bytes.start < first.bytes.end).count();
        let nested = &rest[same..same + inside];
        if let Some(second) = nested.iter().find(|piece| is_overlapping(piece, first)) {
            return Err(PieceOverlap { first: first.bug.clone(), second: second.bug.clone() });
        }
        let original = write_range(text, first.bytes.clone(), nested)?;
        out += &write_chain(&rest[..same], &original);
        rest = &rest[same + inside..];
    }
    out += &text[at..range.end];
    Ok(out)
}

fn is_same_place(piece: &WovenPiece, first: &WovenPiece) -> bool {
    piece.bytes == first.bytes && piece.form == first.form
}

/// Whether a piece that begins inside another one is not nested in it.
fn is_overlapping(piece: &WovenPiece, outer: &WovenPiece) -> bool {
    piece.bytes.end > outer.bytes.end || piece.bytes == outer.bytes
}

/// The bugs of one place, and the original after the last `else`.
fn write_chain(pieces: &[WovenPiece], original: &str) -> String {
    let Some(first) = pieces.first() else { return original.to_owned() };
    let mut chain = String::new();
    match &first.form {
        PieceForm::Expression { open, close } => {
            for piece in pieces {
                chain += &format!("if {} {} else ", ask_rust(&piece.bug), block_of(&piece.text, true));
            }
            format!("{open}{chain}{{ {original} }}{close}")
        }
        PieceForm::Statements(is_value) => {
            for piece in pieces {
                chain += &format!("if {} {} else ", ask_rust(&piece.bug), block_of(&piece.text, *is_value));
            }
            format!("{chain}{{ {original} }}")
        }
        PieceForm::CStatements => {
            for piece in pieces {
                chain += &format!("if ({}) {} else ", ask_c(&piece.bug), block_of(&piece.text, false));
            }
            // Braces around the chain: compilers warn of an `else` that could belong to two `if`.
            format!("{{ {chain}{{ {original} }} }}")
        }
        PieceForm::CExpression => {
            for piece in pieces {
                chain += &format!("({} ? ({}) : ", ask_c(&piece.bug), piece.text.trim());
            }
            format!("{chain}({original}){}", ")".repeat(pieces.len()))
        }
        PieceForm::Point => original.to_owned(),
    }
}
