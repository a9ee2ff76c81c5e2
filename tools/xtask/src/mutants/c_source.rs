//! Sources in C and its relatives: their tokens, their functions, and their edits woven in.
//!
//! `woven_source` calls this. It does not parse the grammar: an anchor that ends in `;` or `}` counts as statements,
//! any other as an expression.

use std::ops::Range;

use super::bug_file::EditAction;
use super::file_edit::{self, FileEdit};
use super::source_anchor::{self, SourceAnchor};
use super::source_token::{self, SourceToken};
use super::woven_piece::{self, PieceForm, WovenPiece};
use crate::report::CheckFinding;

/// The header that the weaver writes beside a woven file.
pub(crate) const HEADER_NAME: &str = "trunkline_planted.h";

/// The include directives of a woven file. A kernel that is compiled at run time finds only the files that its program
/// embeds, and cannot read the environment.
const INCLUDE: &str = "#if defined(__CUDACC_RTC__) || defined(__HIPCC_RTC__)\n#define trunkline_planted(name) false\n#else\n\
     #include \"trunkline_planted.h\"\n#endif\n";

/// Words that may stand between the parameters and the body of a function.
const QUALIFIERS: [&str; 4] = ["const", "noexcept", "override", "final"];

/// Weaves all edits of one file into its text.
///
/// # Errors
/// Every edit that cannot be woven.
pub(crate) fn weave_c(text: &str, edits: &[FileEdit<'_>]) -> Result<String, Vec<CheckFinding>> {
    let tokens = split_c(text);
    let mut failures = Vec::new();
    let mut pieces = Vec::new();
    for &of in edits {
        match place_piece(text, &tokens, of) {
            Ok(piece) => pieces.push(piece),
            Err(reason) => failures.push(of.refuse_edit(reason)),
        }
    }
    if !failures.is_empty() {
        return Err(failures);
    }
    let woven = woven_piece::write_pieces(text, pieces)
        .map_err(|overlap| vec![file_edit::refuse_overlap(edits, &overlap)])?;
    Ok(include_header(&woven))
}

fn place_piece(text: &str, tokens: &[SourceToken], of: FileEdit<'_>) -> Result<WovenPiece, String> {
    let request = of.edit.read_request()?;
    let anchor = SourceAnchor::new(split_c(request.anchor))?;
    let within = of.edit.within.as_deref().map(|text| SourceAnchor::new(split_c(text))).transpose()?;
    let area = match &of.edit.item {
        None => 0..tokens.len(),
        Some(name) => find_body(tokens, name).ok_or_else(|| format!("the file has no function `{name}`"))?,
    };
    let found = source_anchor::find_once(text, tokens, &[area], within.as_ref(), &anchor)?;
    let anchored = &tokens[found.clone()];
    let bytes = source_token::bytes_of(anchored);
    let is_statements = anchored.last().is_some_and(|last| [";", "}"].contains(&last.text.as_str()));
    let bug = of.bug.to_owned();
    let with = request.text.to_owned();
    if !is_balanced(anchored) {
        return Err(
            "the anchor is a piece of an expression: anchor a whole one, or whole statements".to_owned()
        );
    }
    match request.action {
        EditAction::Swap if is_statements => {
            Ok(WovenPiece { bytes, bug, text: with, form: PieceForm::CStatements })
        }
        EditAction::Swap if with.trim().is_empty() => {
            Err("an expression needs a value: give `with`".to_owned())
        }
        EditAction::Swap => Ok(WovenPiece { bytes, bug, text: with, form: PieceForm::CExpression }),
        _ if !is_statements => {
            Err("nothing can be inserted beside an expression: anchor whole statements, `;` included"
                .to_owned())
        }
        _ if is_sole_statement(text, tokens, found.start) => Err(
            "the statement has no braces around it, and only one fits there: swap it, with itself repeated"
                .to_owned(),
        ),
        action => {
            let inserted =
                format!("if ({}) {}", woven_piece::ask_c(&bug), woven_piece::block_of(&with, false));
            Ok(match action {
                EditAction::InsertAfter => WovenPiece::at_point(bytes.end, &bug, format!(" {inserted}")),
                _ => WovenPiece::at_point(bytes.start, &bug, format!("{inserted} ")),
            })
        }
    }
}

/// Whether a statement follows a condition or `else` without a brace.
fn is_sole_statement(text: &str, tokens: &[SourceToken], at: usize) -> bool {
    let Some(before) = at.checked_sub(1).map(|before| &tokens[before]) else { return false };
    let line = text[..before.bytes.start].rfind('\n').map_or(0, |end| end + 1);
    let is_directive = text[line..].trim_start().starts_with('#');
    !is_directive && [")", "else", "do"].contains(&before.text.as_str())
}

fn is_balanced(tokens: &[SourceToken]) -> bool {
    let mut open = Vec::new();
    for token in tokens {
        match token.text.as_str() {
            "(" => open.push(")"),
            "[" => open.push("]"),
            "{" => open.push("}"),
            closing @ (")" | "]" | "}") if open.pop() != Some(closing) => return false,
            _ => {}
        }
    }
    open.is_empty()
}

/// The tokens inside the body of the first function of that name.
fn find_body(tokens: &[SourceToken], name: &str) -> Option<Range<usize>> {
    let name = split_c(name);
    let is_at = |at: usize| name.iter().zip(&tokens[at..]).all(|(wanted, token)| wanted.text == token.text);
    let bodies = (0..tokens.len().checked_sub(name.len())?).filter(|&at| is_at(at)).filter_map(|at| {
        let mut open = skip_group(tokens, at + name.len(), "(", ")")?;
        while tokens.get(open).is_some_and(|token| QUALIFIERS.contains(&token.text.as_str())) {
            open += 1;
        }
        let end = skip_group(tokens, open, "{", "}")?;
        Some(open + 1..end - 1)
    });
    bodies.into_iter().next()
}

/// The index after a group that opens here.
fn skip_group(tokens: &[SourceToken], at: usize, open: &str, close: &str) -> Option<usize> {
    tokens.get(at).filter(|token| token.text == open)?;
    let mut depth = 0;
    for (offset, token) in tokens[at..].iter().enumerate() {
        depth += usize::from(token.text == open);
        depth -= usize::from(token.text == close);
        if depth == 0 {
            return Some(at + offset + 1);
        }
    }
    None
}

/// The tokens of a text in C: words, numbers, strings, and each other character by itself. Comments are left out.
pub(crate) fn split_c(text: &str) -> Vec<SourceToken> {
    let mut tokens = Vec::new();
    let mut at = 0;
    while let Some(letter) = text[at..].chars().next() {
        let rest = &text[at..];
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        let (len, counts) = if rest.starts_with("//") {
            (rest.find('\n').unwrap_or(rest.len()), false)
        } else if rest.starts_with("/*") {
            (rest.find("*/").map_or(rest.len(), |end| end + 2), false)
        } else if letter == '"' || letter == '\'' {
            (quoted_len(rest, letter), true)
        } else if is_word(letter) {
            (rest.find(|c| !is_word(c)).unwrap_or(rest.len()), true)
        } else {
            (letter.len_utf8(), !letter.is_whitespace())
        };
        if counts {
            tokens.push(SourceToken { text: rest[..len].to_owned(), bytes: at..at + len });
        }
        at += len;
    }
    tokens
}

/// The length of a string or character, quotes included.
fn quoted_len(text: &str, quote: char) -> usize {
    let mut is_escaped = false;
    for (at, letter) in text.char_indices().skip(1) {
        if letter == quote && !is_escaped {
            return at + 1;
        }
        is_escaped = letter == '\\' && !is_escaped;
    }
    text.len()
}

/// Adds the line that includes the weaver's header: after `#pragma once`, the include guard or the first block of
/// includes.
fn include_header(text: &str) -> String {
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    let directive = |line: &str, name: &str| {
        line.trim_start().strip_prefix('#').is_some_and(|rest| rest.trim_start().starts_with(name))
    };
    let pragma = lines.iter().position(|line| directive(line, "pragma once")).map(|at| at + 1);
    // The first directive of a header with a guard, and the second.
    let mut directives = (0..lines.len()).filter(|&at| lines[at].trim_start().starts_with('#'));
    let guard = directives.next().zip(directives.next()).filter(|&(first, second)| {
        directive(lines[first], "ifndef") && second == first + 1 && directive(lines[second], "define")
    });
    let includes = lines
        .iter()
        .position(|line| directive(line, "include"))
        .map(|first| first + lines[first..].iter().take_while(|line| directive(line, "include")).count());
    let at = pragma.or(guard.map(|(_, second)| second + 1)).or(includes).unwrap_or(0);
    let is_unended = at > 0 && !lines[at - 1].ends_with('\n');
    let end = if is_unended { "\n" } else { "" };
    format!("{}{end}{INCLUDE}{}", lines[..at].concat(), lines[at..].concat())
}
