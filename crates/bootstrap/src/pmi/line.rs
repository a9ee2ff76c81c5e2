//! One line of PMI-1: words of the form `key=value`. Pure; used by client and server.

/// Bytes of a line with its end, at most.
pub const LINE_BYTES_MAX: usize = 1024;
/// Words of a line that are parsed, at most.
const WORDS_MAX: usize = 32;

/// A parsed line.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct PmiLine(Vec<(String, String)>);

impl PmiLine {
    /// Parses a line; `None` if it is too long or has a word that is not a pair.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        if text.len() >= LINE_BYTES_MAX {
            return None;
        }
        let pair = |word: &str| word.split_once('=').map(|(key, value)| (key.to_owned(), value.to_owned()));
        let words: Option<Vec<_>> = text.split_ascii_whitespace().take(WORDS_MAX).map(pair).collect();
        words.filter(|words| !words.is_empty()).map(Self)
    }

    pub(crate) fn get(&self, key: &str) -> Option<&str> {
        self.0.iter().find(|pair| pair.0 == key).map(|pair| pair.1.as_str())
    }

    pub(crate) fn command(&self) -> &str {
        self.get("cmd").unwrap_or_default()
    }

    pub(crate) fn parse_number(&self, key: &str) -> Option<usize> {
        self.get(key)?.parse().ok()
    }
}

/// Whether a key or value fits into a line as one word.
pub(crate) fn is_word(text: &str, bytes_max: usize) -> bool {
    !text.is_empty() && text.len() <= bytes_max && text.bytes().all(|byte| byte.is_ascii_graphic())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_is_parsed_into_pairs() {
        let line = PmiLine::parse("cmd=get_result rc=0 msg=success value=(vector,(0,1,2))=x").unwrap();
        assert_eq!(line.command(), "get_result");
        assert_eq!(line.parse_number("rc"), Some(0));
        assert_eq!(line.get("value"), Some("(vector,(0,1,2))=x"));
        assert_eq!((line.get("none"), line.parse_number("msg")), (None, None));
        assert_eq!(PmiLine::parse("cmd=a key= rc=-1").unwrap().get("key"), Some(""));
        for bad in ["", "   ", "cmd", "cmd=a b", &"a=".repeat(600)] {
            assert_eq!(PmiLine::parse(bad), None, "{bad}");
        }
    }

    proptest::proptest! {
        #[test]
        fn line_parser_never_panics(text in ".{0,200}") {
            let _ = PmiLine::parse(&text);
        }
    }
}
