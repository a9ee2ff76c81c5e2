//! The mailbox of a sending comm, as the sender reads it.

use trunkline_mem::MemoryRange;
use trunkline_proto::comm::sender::SenderMailbox;
use trunkline_proto::wire::cts;

/// The mailbox: its memory, and its offset there.
pub(crate) struct MailboxView<'a>(pub(crate) (&'a MemoryRange, u64));

impl SenderMailbox for MailboxView<'_> {
    #[inline]
    fn load_word(&self, offset: u64) -> u64 {
        // In range, because the sender reads only words of the mailbox.
        let (memory, start) = self.0;
        memory.load(start + offset).unwrap_or(0)
    }

    #[inline]
    fn load_line(&self, offset: u64) -> [u64; cts::WORDS] {
        let (memory, start) = self.0;
        memory.load_row(start + offset).unwrap_or_default()
    }
}
