//! Anchors: the tokens that an edit searches, and their only place in a source.
//!
//! `woven_source` and `c_source` call this. A message for a missing anchor contains the most similar tokens.

use std::collections::BTreeMap;
use std::ops::Range;

use super::source_token::{self, SourceToken};

/// Matches the shortest run of tokens with balanced delimiters, in an anchor.
const ANY_RUN: [&str; 3] = [".", ".", "."];

/// The tokens that an edit searches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SourceAnchor {
    /// Runs of tokens; between two of them may be any tokens with balanced delimiters.
    runs: Vec<Vec<SourceToken>>,
}

impl SourceAnchor {
    /// An anchor of these tokens.
    ///
    /// # Errors
    /// The list is empty.
    pub(crate) fn new(mut tokens: Vec<SourceToken>) -> Result<Self, String> {
        // The last comma of a list is optional, as for rustfmt.
        if tokens.len() > 1 {
            tokens.pop_if(|last| last.text == ",");
        }
        let mut runs = vec![Vec::new()];
        let mut rest = tokens.as_slice();
        while let Some((first, others)) = rest.split_first() {
            if is_any_run(rest) {
                runs.push(Vec::new());
                rest = &rest[ANY_RUN.len()..];
                continue;
            }
            if let Some(run) = runs.last_mut() {
                run.push(first.clone());
            }
            rest = others;
        }
        if runs.first().is_none_or(Vec::is_empty) {
            return Err(
                "the anchor begins with no token: comments do not count, and `...` needs one before it"
                    .to_owned(),
            );
        }
        Ok(Self { runs })
    }

    /// All its tokens.
    fn all_tokens(&self) -> impl Iterator<Item = &SourceToken> {
        self.runs.iter().flatten()
    }

    /// The tokens that match from here on.
    fn match_at(&self, tokens: &[SourceToken], at: usize) -> Option<Range<usize>> {
        let mut end = at;
        for (number, run) in self.runs.iter().enumerate() {
            let begin = if number == 0 { end } else { find_balanced(tokens, end, run)? };
            if !is_same(tokens.get(begin..begin + run.len())?, run) {
                return None;
            }
            end = begin + run.len();
        }
        Some(at..end)
    }
}

/// Whether three dots follow, side by side.
fn is_any_run(tokens: &[SourceToken]) -> bool {
    tokens.len() >= ANY_RUN.len()
        && tokens.iter().zip(ANY_RUN).all(|(token, dot)| token.text == dot)
        && tokens[0].bytes.start + ANY_RUN.len() == tokens[2].bytes.end
}

/// Where the nearest such run begins, with balanced delimiters before it.
fn find_balanced(tokens: &[SourceToken], from: usize, run: &[SourceToken]) -> Option<usize> {
    let mut depth = 0_usize;
    for at in from..=tokens.len() {
        if depth == 0 && tokens.get(at..at + run.len()).is_some_and(|window| is_same(window, run)) {
            return Some(at);
        }
        match tokens.get(at)?.text.as_str() {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth = depth.checked_sub(1)?,
            _ => {}
        }
    }
    None
}

/// The only place of an anchor in the areas, or in the only place of `within` there.
///
/// # Errors
/// No place or several match: the message has the nearest match, or the lines.
pub(crate) fn find_once(
    text: &str,
    tokens: &[SourceToken],
    areas: &[Range<usize>],
    within: Option<&SourceAnchor>,
    anchor: &SourceAnchor,
) -> Result<Range<usize>, String> {
    match within {
        None => find_place(text, tokens, areas, anchor, "the anchor"),
        Some(within) => {
            let area = find_place(text, tokens, areas, within, "`within`")?;
            find_place(text, tokens, &[area], anchor, "the anchor")
        }
    }
}

fn find_place(
    text: &str,
    tokens: &[SourceToken],
    areas: &[Range<usize>],
    anchor: &SourceAnchor,
    what: &str,
) -> Result<Range<usize>, String> {
    let found = areas.iter().flat_map(|area| find_anchor(tokens, area, anchor));
    // Areas may contain each other.
    let places: BTreeMap<usize, Range<usize>> = found.map(|place| (place.start, place)).collect();
    let line = |at: usize| line_of(text, tokens[at].bytes.start);
    let mut found = places.values();
    match (found.next(), found.next()) {
        (Some(place), None) => Ok(place.clone()),
        (Some(_), Some(_)) => {
            let lines = places.keys().map(|&at| line(at).to_string()).collect::<Vec<_>>().join(", ");
            Err(format!(
                "{what} occurs {} times, in lines {lines}: make it longer, name the item, or add `within`",
                places.len()
            ))
        }
        _ => {
            let nearest = areas.iter().find_map(|area| find_nearest(tokens, area, anchor));
            let nearest = nearest.map(|found| {
                let bytes = source_token::bytes_of(&tokens[found.clone()]);
                let near = on_one_line(&text[bytes]);
                format!("; the nearest match is in line {}: `{near}`", line(found.start))
            });
            Err(format!("{what} does not occur{}", nearest.unwrap_or_default()))
        }
    }
}

/// Where an anchor matches among the tokens of a range.
fn find_anchor(tokens: &[SourceToken], within: &Range<usize>, anchor: &SourceAnchor) -> Vec<Range<usize>> {
    let tokens = &tokens[..within.end];
    within.clone().filter_map(|at| anchor.match_at(tokens, at)).collect()
}

fn is_same(window: &[SourceToken], anchor: &[SourceToken]) -> bool {
    window.iter().zip(anchor).all(|(token, wanted)| token.text == wanted.text)
}

/// The place of the most similar tokens: those that share most adjacent pairs with the anchor.
fn find_nearest(
    tokens: &[SourceToken],
    within: &Range<usize>,
    anchor: &SourceAnchor,
) -> Option<Range<usize>> {
    let anchor: Vec<SourceToken> = anchor.all_tokens().cloned().collect();
    let anchor = anchor.as_slice();
    let len = anchor.len().min(within.len());
    if len == 0 {
        return None;
    }
    let mut wanted = BTreeMap::new();
    pairs_of(anchor).for_each(|pair| *wanted.entry(pair).or_insert(0_usize) += 1);
    let similarity = |at: usize| {
        let window = &tokens[at..at + len];
        let mut left = wanted.clone();
        let mut pairs = 0;
        for pair in pairs_of(window) {
            if let Some(count) = left.get_mut(&pair).filter(|count| **count > 0) {
                *count -= 1;
                pairs += 1;
            }
        }
        let equal = window.iter().filter(|token| anchor.iter().any(|a| a.text == token.text)).count();
        let in_place = window.iter().zip(anchor).filter(|(token, wanted)| token.text == wanted.text).count();
        4 * pairs + 2 * equal + in_place
    };
    let best = (within.start..within.end - len + 1).max_by_key(|&at| (similarity(at), usize::MAX - at))?;
    Some(best..best + len)
}

type TokenPair<'a> = (&'a str, &'a str);

fn pairs_of(tokens: &[SourceToken]) -> impl Iterator<Item = TokenPair<'_>> {
    tokens.windows(2).map(|pair| (pair[0].text.as_str(), pair[1].text.as_str()))
}

/// A text on one line, for messages.
pub(crate) fn on_one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The number of the line that holds a byte, from 1.
fn line_of(text: &str, byte: usize) -> usize {
    1 + text.as_bytes()[..byte.min(text.len())].iter().filter(|&&byte| byte == b'\n').count()
}
