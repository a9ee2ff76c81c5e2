//! The report of a rank whether it completed its share of creating a window, or why not. Each rank sends its report to all others with its card, and
//! again when all is created, so that either all ranks continue or none does. `trunkline::device` encodes and parses it. Layout: "Windows", report,
//! of docs/wire.md.

/// Words of a report: the length of its text in bytes, and the text.
pub const REPORT_WORDS: usize = 32;

/// Longest text in bytes.
const TEXT_MAX: usize = 8 * (REPORT_WORDS - 1);

/// A rank's report.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct MakingReport {
    text: [u8; TEXT_MAX],
    len: usize,
}

/// Words that are not a valid report.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("a report of {0} bytes is not text, or has bytes other than 0 after its end")]
pub struct ReportError(u64);

impl MakingReport {
    /// The rank has completed its share.
    pub const READY: Self = Self { text: [0; TEXT_MAX], len: 0 };

    /// Creates the report of a failure: as much of the text as fits, and never an empty text.
    #[must_use]
    pub fn from_failure(why: &str) -> Self {
        let why = if why.is_empty() { "no cause is known" } else { why };
        let mut len = why.len().min(TEXT_MAX);
        while !why.is_char_boundary(len) {
            len -= 1;
        }
        let mut text = [0; TEXT_MAX];
        text.iter_mut().zip(why.bytes().take(len)).for_each(|(to, from)| *to = from);
        Self { text, len }
    }

    /// Returns why the rank failed; `None` if it has completed its share.
    #[must_use]
    pub fn failure_cause(&self) -> Option<&str> {
        let text = self.text.get(..self.len).filter(|text| !text.is_empty())?;
        core::str::from_utf8(text).ok()
    }

    /// Returns the report's words.
    #[must_use]
    pub fn to_words(&self) -> [u64; REPORT_WORDS] {
        let mut words = [0; REPORT_WORDS];
        let [len, text @ ..] = &mut words;
        *len = self.len as u64;
        for (word, bytes) in text.iter_mut().zip(self.text.as_chunks::<8>().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        words
    }

    /// Parses the report of another rank.
    ///
    /// # Errors
    /// [`ReportError`].
    pub fn from_words(words: &[u64; REPORT_WORDS]) -> Result<Self, ReportError> {
        let [first, text @ ..] = words;
        let invalid = ReportError(*first);
        let len = usize::try_from(*first).ok().filter(|len| *len <= TEXT_MAX).ok_or(invalid)?;
        let mut bytes = [0; TEXT_MAX];
        for (to, word) in bytes.chunks_exact_mut(8).zip(text) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        let (said, rest) = bytes.split_at(len);
        let is_whole = rest.iter().all(|byte| *byte == 0);
        if core::str::from_utf8(said).is_err() || !is_whole {
            return Err(invalid);
        }
        Ok(Self { text: bytes, len })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn back(report: MakingReport) -> Result<MakingReport, ReportError> {
        MakingReport::from_words(&report.to_words())
    }

    #[test]
    fn a_report_keeps_its_cause() {
        assert_eq!(MakingReport::READY.failure_cause(), None);
        assert_eq!(MakingReport::READY.to_words(), [0; REPORT_WORDS]);
        let long = "é".repeat(200);
        for (why, cause) in [("", "no cause is known"), ("full", "full"), (&*long, &long[..TEXT_MAX])] {
            let report = MakingReport::from_failure(why);
            assert_eq!((report.failure_cause(), back(report)), (Some(cause), Ok(report)));
        }
        // A character that does not fit completely is left out.
        let odd = ["x", &long].concat();
        assert_eq!(MakingReport::from_failure(&odd).failure_cause(), Some(&odd[..TEXT_MAX - 1]));
        assert_eq!(back(MakingReport::READY), Ok(MakingReport::READY));
    }

    #[test]
    fn words_of_an_invalid_report_are_rejected() {
        let words = MakingReport::from_failure("full").to_words();
        for (at, word) in [(0, TEXT_MAX as u64 + 1), (0, u64::MAX), (0, 3), (1, 0xff), (2, 1), (31, 1 << 63)]
        {
            let mut words = words;
            words[at] = word;
            let read = MakingReport::from_words(&words);
            assert_eq!(read, Err(ReportError(words[0])), "word {at}: {word:#x}");
        }
    }
}
