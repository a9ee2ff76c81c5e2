//! The prose of a file: comments, messages and test names of a Rust source or a header, paragraphs of a document.
//!
//! `words` counts in it. It cuts texts into pieces and judges none.

use ra_ap_rustc_lexer::{FrontmatterAllowed, LiteralKind, Token, TokenKind, tokenize};

/// One paragraph, message or test name.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ProsePassage {
    /// Line on which it begins, 1-based.
    pub(crate) line: usize,
    /// Its words, without code, links and marks.
    pub(crate) text: String,
}

/// Words that a string literal needs at least to be a message.
const MESSAGE_WORDS_MIN: usize = 3;

/// The comments, messages and test names of a Rust source, or of a C++ header.
pub(crate) fn of_source(text: &str) -> Vec<ProsePassage> {
    let mut reader = SourceReader {
        comment: ParagraphReader::default(),
        found: Vec::new(),
        is_test: false,
        follows_fn: false,
    };
    let mut offset = 0;
    let mut line = 1;
    for token in tokenize(text, FrontmatterAllowed::No) {
        let part = &text[offset..offset + token.len as usize];
        reader.read_token(&token, part, line);
        offset += part.len();
        line += part.matches('\n').count();
    }
    reader.into_passages()
}

/// The paragraphs of a Markdown document; each cell of a table is one.
pub(crate) fn of_document(text: &str) -> Vec<ProsePassage> {
    let mut paragraphs = ParagraphReader::default();
    for (number, line) in text.lines().enumerate() {
        paragraphs.add_line(line, number + 1);
    }
    paragraphs.into_passages()
}

struct SourceReader {
    /// The comment that the lines so far are part of.
    comment: ParagraphReader,
    found: Vec<ProsePassage>,
    /// An attribute `#[test]` stands before the next function.
    is_test: bool,
    follows_fn: bool,
}

impl SourceReader {
    fn read_token(&mut self, token: &Token, part: &str, line: usize) {
        match token.kind {
            TokenKind::LineComment { .. } => {
                self.comment.add_line(part.trim_start_matches(['/', '!']), line);
            }
            TokenKind::BlockComment { .. } => {
                let inner = part.trim_start_matches(['/', '*', '!']).trim_end_matches(['/', '*']);
                for (number, text) in inner.lines().enumerate() {
                    self.comment.add_line(text.trim_start().trim_start_matches('*'), line + number);
                }
            }
            // An empty line ends a comment.
            TokenKind::Whitespace if part.matches('\n').count() < 2 => {}
            _ => {
                self.found.append(&mut std::mem::take(&mut self.comment).into_passages());
                self.read_code(token, part, line);
            }
        }
    }

    fn read_code(&mut self, token: &Token, part: &str, line: usize) {
        match token.kind {
            TokenKind::Ident if self.follows_fn && std::mem::take(&mut self.is_test) => {
                self.found.push(ProsePassage { line, text: part.replace('_', " ") });
            }
            TokenKind::Ident if part == "test" && !self.follows_fn => self.is_test = true,
            TokenKind::Literal { kind: LiteralKind::Str { .. } | LiteralKind::RawStr { .. }, .. } => {
                let text = part.trim_start_matches(['r', '#', '"']).trim_end_matches(['"', '#']);
                // A backslash at the end of a line joins it with the next line.
                let joined: String = text.split("\\\n").map(str::trim_start).collect::<Vec<_>>().join("");
                let text = strip_markup(&joined.replace("\\n", " "));
                if text.contains(' ') && split_words(&text).count() >= MESSAGE_WORDS_MIN {
                    self.found.push(ProsePassage { line, text });
                }
            }
            TokenKind::Whitespace => return,
            _ => {}
        }
        self.follows_fn = token.kind == TokenKind::Ident && part == "fn";
    }

    fn into_passages(mut self) -> Vec<ProsePassage> {
        self.found.append(&mut self.comment.into_passages());
        self.found
    }
}

/// Lines of Markdown, joined to paragraphs.
#[derive(Default)]
struct ParagraphReader {
    found: Vec<ProsePassage>,
    open: Option<ProsePassage>,
    is_code: bool,
}

impl ParagraphReader {
    fn add_line(&mut self, line: &str, number: usize) {
        let text = line.trim();
        if text.starts_with("```") || text.starts_with("~~~") {
            self.is_code = !self.is_code;
            self.close_paragraph();
            return;
        }
        if self.is_code {
            return;
        }
        let begins =
            ["#", "- ", "* ", "+ ", "|", ">"].iter().any(|mark| text.starts_with(mark)) || is_numbered(text);
        if begins || text.is_empty() {
            self.close_paragraph();
        }
        if text.starts_with('|') {
            let cells = text.split('|').map(strip_markup).filter(|cell| split_words(cell).next().is_some());
            self.found.extend(cells.map(|text| ProsePassage { line: number, text }));
        } else if let Some(open) = &mut self.open {
            open.text.push(' ');
            open.text.push_str(text);
        } else if !text.is_empty() {
            self.open = Some(ProsePassage { line: number, text: text.to_owned() });
        }
    }

    fn close_paragraph(&mut self) {
        if let Some(ProsePassage { line, text }) = self.open.take() {
            self.found.push(ProsePassage { line, text: strip_markup(&text) });
        }
    }

    fn into_passages(mut self) -> Vec<ProsePassage> {
        self.close_paragraph();
        self.found
    }
}

/// Whether a line begins an item of a numbered list.
fn is_numbered(line: &str) -> bool {
    line.split_once(". ")
        .is_some_and(|(number, _)| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()))
}

/// A text without code, targets of links and marks. Code counts as one word.
fn strip_markup(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(['`', ']', '*', '[', '<', '>', '|', ':']) {
        let (before, found) = rest.split_at(at);
        out.push_str(before);
        let (mark, behind) = found.split_at(1);
        rest = match mark {
            "`" => {
                out.push_str("code");
                behind.split_once('`').map_or("", |(_, behind)| behind)
            }
            "]" if behind.starts_with('(') => behind.split_once(')').map_or("", |(_, behind)| behind),
            ":" if behind.starts_with("//") => {
                behind.trim_start_matches(|letter: char| !letter.is_whitespace())
            }
            ":" => {
                out.push(':');
                behind
            }
            _ => behind,
        };
    }
    out.push_str(rest);
    out.trim().trim_start_matches(['#', '-', '+', '>']).trim().to_owned()
}

/// The words of a text.
pub(crate) fn split_words(text: &str) -> impl Iterator<Item = &str> {
    text.split_whitespace().filter(|word| word.chars().any(char::is_alphabetic))
}

/// The sentences of a text.
pub(crate) fn split_sentences(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let end = rest.match_indices(['.', '!', '?', ';', ':']).find_map(|(at, mark)| {
            let after = &rest[at + mark.len()..];
            let next = after.trim_start().chars().next();
            let ends = after.starts_with(char::is_whitespace)
                && (mark != "." || !next.is_some_and(char::is_lowercase));
            (ends && mark != ";" && mark != ":").then_some(at + mark.len())
        });
        let (sentence, behind) = rest.split_at(end.unwrap_or(rest.len()));
        rest = behind.trim_start();
        Some(sentence)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(passages: &[ProsePassage]) -> Vec<(usize, &str)> {
        passages.iter().map(|passage| (passage.line, passage.text.as_str())).collect()
    }

    #[test]
    fn comments_are_joined_to_paragraphs() {
        let source = "//! A head\n//! of two lines.\n//!\n//! ```\n//! let code = 1;\n//! ```\nfn f() {\n    // Calls `g()` at once.\n    g(); // Why.\n}\n";
        let found = of_source(source);
        assert_eq!(texts(&found), [(1, "A head of two lines."), (8, "Calls code at once."), (9, "Why.")]);
    }

    #[test]
    fn messages_and_test_names_are_prose() {
        let source = "#[test]\n#[ignore = \"long\"]\nfn a_link_is_closed() { let a = \"one two\"; bail!(\"no such rank; use \\\n  another one\"); }\nfn other_name() {}\n";
        let found = of_source(source);
        assert_eq!(texts(&found), [(3, "a link is closed"), (3, "no such rank; use another one")]);
    }

    #[test]
    fn lists_and_cells_are_passages_of_their_own() {
        let document = "# Title\n\nText with a [link](https://x.y)\nover lines.\n- one item\n- another\n\n| a | b c |\n| --- | --- |\n";
        let found = of_document(document);
        let expected = [
            (1, "Title"),
            (3, "Text with a link over lines."),
            (5, "one item"),
            (6, "another"),
            (8, "a"),
            (8, "b c"),
        ];
        assert_eq!(texts(&found), expected);
    }

    #[test]
    fn sentences_end_at_marks_before_a_new_one() {
        let text = "Posts it, e.g. a write. Returns 2.5 ms later! Then?";
        assert_eq!(
            split_sentences(text).collect::<Vec<_>>(),
            ["Posts it, e.g. a write.", "Returns 2.5 ms later!", "Then?"]
        );
    }
}
