//! Sources as flat lists of tokens, which anchors are compared with: layout and comments do not count.
//!
//! `woven_source` calls this for Rust, `c_source` builds the same lists for C. It finds and compares; it changes no
//! text.

use std::ops::Range;

use ra_ap_rustc_lexer::{FrontmatterAllowed, TokenKind, tokenize};

/// One token, and its place in the text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SourceToken {
    /// The token as written; one character of an operator.
    pub(crate) text: String,
    /// Its bytes.
    pub(crate) bytes: Range<usize>,
}

/// The tokens of a Rust text. Comments are left out, and so are commas before a closing delimiter: rustfmt adds and
/// removes those.
pub(crate) fn split_rust(text: &str) -> Vec<SourceToken> {
    let mut tokens: Vec<SourceToken> = Vec::new();
    let mut at = 0;
    for token in tokenize(text, FrontmatterAllowed::No) {
        let bytes = at..at + token.len as usize;
        at = bytes.end;
        match token.kind {
            TokenKind::Whitespace | TokenKind::LineComment { .. } | TokenKind::BlockComment { .. } => {
                continue;
            }
            TokenKind::CloseParen | TokenKind::CloseBrace | TokenKind::CloseBracket => {
                tokens.pop_if(|last| last.text == ",");
            }
            _ => {}
        }
        tokens.push(SourceToken { text: text[bytes.clone()].to_owned(), bytes });
    }
    tokens
}

/// The bytes of some tokens in a row.
pub(crate) fn bytes_of(tokens: &[SourceToken]) -> Range<usize> {
    match (tokens.first(), tokens.last()) {
        (Some(first), Some(last)) => first.bytes.start..last.bytes.end,
        _ => 0..0,
    }
}

/// Which tokens lie in a range of bytes.
pub(crate) fn tokens_within(tokens: &[SourceToken], bytes: &Range<usize>) -> Range<usize> {
    let first = tokens.partition_point(|token| token.bytes.start < bytes.start);
    let end = tokens.partition_point(|token| token.bytes.start < bytes.end);
    first..end.max(first)
}
