//! Forwards the ranks' output to the terminal: unchanged, or line by line with the rank as a prefix. Called by the
//! launcher.

use std::collections::BTreeMap;
use std::io::{self, Write};

/// A longer line is split there.
const LINE_BYTES_MAX: usize = 64 << 10;

/// One of the launcher's two streams.
pub(crate) struct RankOutput<W> {
    stream: W,
    label: bool,
    /// Incomplete lines, by rank.
    begun: BTreeMap<u32, Vec<u8>>,
}

impl<W: Write> RankOutput<W> {
    pub(crate) fn new(stream: W, label: bool) -> Self {
        Self { stream, label, begun: BTreeMap::new() }
    }

    /// Writes output of a rank.
    pub(crate) fn write_bytes(&mut self, rank: u32, bytes: &[u8]) -> io::Result<()> {
        if !self.label {
            self.stream.write_all(bytes)?;
            return self.stream.flush();
        }
        let begun = self.begun.entry(rank).or_default();
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            begun.extend_from_slice(piece);
            if piece.ends_with(b"\n") || begun.len() >= LINE_BYTES_MAX {
                write_line(&mut self.stream, rank, begun)?;
            }
        }
        self.stream.flush()
    }

    /// Writes a last line that has no line end.
    pub(crate) fn finish_rank(&mut self, rank: u32) -> io::Result<()> {
        match self.begun.remove(&rank) {
            Some(mut begun) if !begun.is_empty() => {
                write_line(&mut self.stream, rank, &mut begun)?;
                self.stream.flush()
            }
            _ => Ok(()),
        }
    }
}

fn write_line(stream: &mut impl Write, rank: u32, line: &mut Vec<u8>) -> io::Result<()> {
    write!(stream, "[{rank}] ")?;
    stream.write_all(line)?;
    if !line.ends_with(b"\n") {
        stream.write_all(b"\n")?;
    }
    line.clear();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_get_their_rank_and_stay_whole() {
        let mut output = RankOutput::new(Vec::new(), true);
        output.write_bytes(0, b"a").unwrap();
        output.write_bytes(12, b"x\ny").unwrap();
        output.write_bytes(0, b"b\n\n").unwrap();
        output.finish_rank(12).unwrap();
        output.finish_rank(0).unwrap();
        assert_eq!(String::from_utf8(output.stream).unwrap(), "[12] x\n[0] ab\n[0] \n[12] y\n");
        let mut output = RankOutput::new(Vec::new(), false);
        output.write_bytes(1, b"a").unwrap();
        output.write_bytes(0, b"b").unwrap();
        output.finish_rank(1).unwrap();
        assert_eq!(output.stream, b"ab");
    }

    #[test]
    fn a_line_without_end_is_cut() {
        let mut output = RankOutput::new(Vec::new(), true);
        output.write_bytes(0, &vec![b'x'; 3 * LINE_BYTES_MAX]).unwrap();
        assert!(output.begun[&0].len() < LINE_BYTES_MAX && output.stream.len() > 2 * LINE_BYTES_MAX);
    }
}
