//! Adjacent records of the sender's mailbox, collected so that one write carries them. Part of the receiving lane.

use trunkline_proto::wire::cts;

use crate::comm::plan::INLINE_MAX;

/// Records for consecutive entries of the mailbox.
pub(crate) struct RecordRun {
    /// Offset of the first in the mailbox, in bytes.
    at: u64,
    len: usize,
    bytes: [u8; INLINE_MAX],
}

impl RecordRun {
    /// Creates an empty run.
    #[inline]
    pub(crate) const fn new() -> Self {
        Self { at: 0, len: 0, bytes: [0; INLINE_MAX] }
    }

    /// Returns whether it is empty.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends the record of an entry. False: it is not adjacent to the others, or exceeds a write of `most` bytes.
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

    /// Empties the run, after its records were written.
    #[inline]
    pub(crate) fn clear(&mut self) {
        self.len = 0;
    }

    /// Returns the offset of the first record, and all bytes.
    #[inline]
    pub(crate) fn start_and_bytes(&self) -> (u64, &[u8]) {
        (self.at, &self.bytes[..self.len])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_takes_adjacent_records_up_to_its_limit() {
        let record = |byte: u8| [byte; cts::BYTES];
        let mut run = RecordRun::new();
        assert!(run.is_empty() && run.append_record(128, &record(1), 192));
        assert!(!run.append_record(128, &record(2), 192) && !run.append_record(256, &record(2), 192));
        assert!(run.append_record(192, &record(2), 192) && run.append_record(256, &record(3), 192));
        assert!(!run.append_record(320, &record(4), 192));
        let (at, bytes) = run.start_and_bytes();
        assert_eq!((at, bytes.len()), (128, 192));
        assert!(bytes.chunks(cts::BYTES).map(|line| line[0]).eq([1, 2, 3]));
        // A NIC that copies less than a record gets one write per record.
        let mut run = RecordRun::new();
        assert!(run.append_record(0, &record(1), 8) && !run.append_record(64, &record(2), 8));
    }
}
