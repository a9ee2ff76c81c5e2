//! The mailbox of a sending comm, as the sender reads it.

use trunkline_mem::Memory;
use trunkline_proto::comm::sender::Mailbox;
use trunkline_proto::wire::cts;

/// The mailbox: the memory it lies in, and where it begins there.
pub(crate) struct View<'a>(pub(crate) (&'a Memory, u64));

impl Mailbox for View<'_> {
    #[inline]
    fn word(&self, offset: u64) -> u64 {
        // The sender asks only for words of the mailbox.
        let (memory, start) = self.0;
        memory.load(start + offset).unwrap_or(0)
    }

    #[inline]
    fn line(&self, offset: u64) -> [u64; cts::WORDS] {
        let (memory, start) = self.0;
        memory.load_row(start + offset).unwrap_or_default()
    }
}
