//! Records that lie side by side in the sender's mailbox, collected to go there in one write. Part of the receiving lane.

use trunkline_proto::wire::cts;

use crate::comm::plan::INLINE_MAX;

/// Records for places one behind the other.
pub(crate) struct RecordRun {
    /// Place of the first in the mailbox, in bytes.
    at: u64,
    len: usize,
    bytes: [u8; INLINE_MAX],
}

impl RecordRun {
    /// None yet.
    #[inline]
    pub(crate) const fn new() -> Self {
        Self { at: 0, len: 0, bytes: [0; INLINE_MAX] }
    }

    /// Whether there is none.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Takes the record of a place. False: it does not lie behind the others, or a write of at most `most` bytes has no room.
    #[inline]
    pub(crate) fn append_record(&mut self, at: u64, record: &[u8; cts::BYTES], most: u64) -> bool {
        let behind = at == self.at + self.len as u64;
        let room = most.min(INLINE_MAX as u64) as usize;
        if self.is_empty() {
            self.at = at;
        } else if !behind || self.len + cts::BYTES > room {
            return false;
        }
        self.bytes[self.len..self.len + cts::BYTES].copy_from_slice(record);
        self.len += cts::BYTES;
        true
    }

    /// They are written.
    #[inline]
    pub(crate) fn clear(&mut self) {
        self.len = 0;
    }

    /// The place of the first, and all bytes.
    #[inline]
    pub(crate) fn start_and_bytes(&self) -> (u64, &[u8]) {
        (self.at, &self.bytes[..self.len])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_lies_side_by_side_and_fits_goes_together() {
        let record = |byte: u8| [byte; cts::BYTES];
        let mut run = RecordRun::new();
        assert!(run.is_empty() && run.append_record(128, &record(1), 192));
        assert!(!run.append_record(128, &record(2), 192) && !run.append_record(256, &record(2), 192));
        assert!(run.append_record(192, &record(2), 192) && run.append_record(256, &record(3), 192));
        assert!(!run.append_record(320, &record(4), 192));
        let (at, bytes) = run.start_and_bytes();
        assert_eq!((at, bytes.len()), (128, 192));
        assert!(bytes.chunks(cts::BYTES).map(|line| line[0]).eq([1, 2, 3]));
        // Who copies less than a record writes each by itself.
        let mut run = RecordRun::new();
        assert!(run.append_record(0, &record(1), 8) && !run.append_record(64, &record(2), 8));
    }
}
