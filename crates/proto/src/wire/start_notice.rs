//! The notice that each rank of a job passes to all others when it starts: its invalid settings and its warnings. `runtime` writes
//! and reads it, and rank 0 prints each line once. It does no I/O. Layout: "Start notice" of docs/wire.md.

use crate::wire::cursor::{FieldReader, ShortInput};

/// Most bytes of a notice.
pub const NOTICE_BYTES_MAX: usize = 1024;

const MAGIC: [u8; 4] = *b"TRSN";
const VERSION: u16 = 1;
/// Bytes before the first line: magic, version, and the number of lines that are left out.
const HEAD_BYTES: usize = 8;
/// The field with the number of lines that are left out.
const LEFT_OUT_OFFSET: usize = 6;
/// Bytes before the text of a line: its kind and its length.
const LINE_HEAD_BYTES: usize = 3;
/// The end of a text that is cut.
const CUT: &str = "...";

/// The importance of a line.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum NoticeKind {
    /// 1: a warning; the rank starts.
    Warning,
    /// 2: an invalid setting; no rank starts.
    Invalid,
}

impl NoticeKind {
    const fn to_byte(self) -> u8 {
        match self {
            Self::Warning => 1,
            Self::Invalid => 2,
        }
    }

    const fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            1 => Some(Self::Warning),
            2 => Some(Self::Invalid),
            _ => None,
        }
    }
}

/// A line of a notice.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct NoticeLine<'a> {
    /// Its importance.
    pub kind: NoticeKind,
    /// The text: at least one character, none of them a control character.
    pub text: &'a str,
}

/// The notice of a rank: at most [`NOTICE_BYTES_MAX`] bytes, and no allocation.
#[derive(Clone)]
pub struct StartNotice {
    bytes: [u8; NOTICE_BYTES_MAX],
    len: usize,
}

/// Why bytes are not a notice.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum StartNoticeError {
    /// There are fewer bytes than a field needs, or more than [`NOTICE_BYTES_MAX`].
    #[error("a start notice of {0} bytes is too long, or ends inside a field")]
    Length(usize),
    /// The first bytes are not `TRSN`.
    #[error("the bytes are no start notice of Trunkline")]
    Foreign,
    /// The version is not that of this code.
    #[error(
        "a start notice of version {0}, and this library reads version {VERSION}; use one library in all ranks"
    )]
    Version(u16),
    /// The kind of a line is unknown.
    #[error("a line of a start notice has the unknown kind {0}")]
    Kind(u8),
    /// A line is empty, is not UTF-8, or contains a control character; or lines are left out of an empty notice.
    #[error("a line of a start notice is no text")]
    Text,
}

impl Default for StartNotice {
    fn default() -> Self {
        Self::new()
    }
}

impl StartNotice {
    /// Creates a notice without lines.
    #[must_use]
    pub const fn new() -> Self {
        let mut bytes = [0; NOTICE_BYTES_MAX];
        let [m0, m1, m2, m3] = MAGIC;
        let [v0, v1] = VERSION.to_le_bytes();
        (bytes[0], bytes[1], bytes[2], bytes[3], bytes[4], bytes[5]) = (m0, m1, m2, m3, v0, v1);
        Self { bytes, len: HEAD_BYTES }
    }

    /// Adds the lines of a text. A control character becomes `?`, and an empty line is skipped.
    ///
    /// A first line that is too long is cut. Any other line that does not fit is left out, with all later ones, so the most
    /// important lines are to be added first.
    pub fn add_lines(&mut self, kind: NoticeKind, text: &str) {
        text.split('\n')
            .filter(|line| !line.trim_ascii().is_empty())
            .for_each(|line| self.add_line(kind, line));
    }

    fn add_line(&mut self, kind: NoticeKind, line: &str) {
        let room = NOTICE_BYTES_MAX - self.len;
        let is_first = self.len == HEAD_BYTES;
        if self.left_out() > 0 || !is_first && LINE_HEAD_BYTES + line.len() > room {
            return self.set_left_out(self.left_out().saturating_add(1));
        }
        let room = room - LINE_HEAD_BYTES;
        let (text, end) = if line.len() <= room {
            (line, "")
        } else {
            (&line[..floor_boundary(line, room - CUT.len())], CUT)
        };
        let len_bytes = ((text.len() + end.len()) as u16).to_le_bytes();
        self.push_bytes(&[kind.to_byte(), len_bytes[0], len_bytes[1]]);
        let begin = self.len;
        self.push_bytes(text.as_bytes());
        // The replacements have the length of the control characters. Those of two bytes, U+0080 to U+009F, are C2 80 to C2 9F.
        let mut is_after_lead = false;
        for byte in &mut self.bytes[begin..self.len] {
            if byte.is_ascii_control() {
                *byte = b'?';
            } else if is_after_lead && (0x80..0xa0).contains(byte) {
                // U+00BF, an inverted question mark.
                *byte = 0xbf;
            }
            is_after_lead = *byte == 0xc2;
        }
        self.push_bytes(end.as_bytes());
    }

    fn push_bytes(&mut self, bytes: &[u8]) {
        self.bytes[self.len..][..bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }

    fn set_left_out(&mut self, lines: u16) {
        self.bytes[LEFT_OUT_OFFSET..HEAD_BYTES].copy_from_slice(&lines.to_le_bytes());
    }

    /// Returns the number of lines that did not fit.
    #[must_use]
    pub fn left_out(&self) -> u16 {
        u16::from_le_bytes([self.bytes[LEFT_OUT_OFFSET], self.bytes[LEFT_OUT_OFFSET + 1]])
    }

    /// Returns the lines, in the order in which they were added.
    #[must_use]
    pub fn iter_lines(&self) -> NoticeLines<'_> {
        NoticeLines(FieldReader(&self.bytes[HEAD_BYTES..self.len]))
    }

    /// Returns whether the rank has an invalid setting.
    #[must_use]
    pub fn is_refusal(&self) -> bool {
        self.iter_lines().any(|line| line.kind == NoticeKind::Invalid)
    }

    /// Returns the bytes to send.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Parses a notice.
    ///
    /// # Errors
    /// [`StartNoticeError`] names the invalid field.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, StartNoticeError> {
        let wrong_length = StartNoticeError::Length(bytes.len());
        let short = |_: ShortInput| wrong_length;
        if bytes.len() > NOTICE_BYTES_MAX {
            return Err(wrong_length);
        }
        let mut reader = FieldReader(bytes);
        if reader.array::<4>().map_err(short)? != MAGIC {
            return Err(StartNoticeError::Foreign);
        }
        let version = reader.u16().map_err(short)?;
        if version != VERSION {
            return Err(StartNoticeError::Version(version));
        }
        let left_out = reader.u16().map_err(short)?;
        if left_out > 0 && reader.0.is_empty() {
            return Err(StartNoticeError::Text);
        }
        while !reader.0.is_empty() {
            read_line(&mut reader, wrong_length)?;
        }
        let mut notice = Self::new();
        notice.len = 0;
        notice.push_bytes(bytes);
        Ok(notice)
    }
}

/// Returns the last place between two characters that is at most `end`.
fn floor_boundary(text: &str, end: usize) -> usize {
    (0..=end).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0)
}

/// Reads one line; `wrong_length` is the error for an input that ends too early.
fn read_line<'a>(
    reader: &mut FieldReader<'a>,
    wrong_length: StartNoticeError,
) -> Result<NoticeLine<'a>, StartNoticeError> {
    let short = |_: ShortInput| wrong_length;
    let kind = reader.u8().map_err(short)?;
    let kind = NoticeKind::from_byte(kind).ok_or(StartNoticeError::Kind(kind))?;
    let len = usize::from(reader.u16().map_err(short)?);
    let text = reader.bytes(len).map_err(short)?;
    let text = core::str::from_utf8(text).map_err(|_| StartNoticeError::Text)?;
    if text.is_empty() || text.chars().any(char::is_control) {
        return Err(StartNoticeError::Text);
    }
    Ok(NoticeLine { kind, text })
}

impl PartialEq for StartNotice {
    fn eq(&self, other: &Self) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl Eq for StartNotice {}

impl core::fmt::Debug for StartNotice {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_list().entries(self.iter_lines()).finish()
    }
}

/// The lines of a notice; see [`StartNotice::iter_lines`].
#[derive(Clone, Debug)]
pub struct NoticeLines<'a>(FieldReader<'a>);

impl<'a> Iterator for NoticeLines<'a> {
    type Item = NoticeLine<'a>;

    fn next(&mut self) -> Option<NoticeLine<'a>> {
        // The bytes of a notice are valid, so an error is the end.
        read_line(&mut self.0, StartNoticeError::Length(0)).ok()
    }
}

#[cfg(test)]
#[path = "start_notice_tests.rs"]
mod tests;
