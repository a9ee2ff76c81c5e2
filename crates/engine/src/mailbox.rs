//! The mailbox of a sending comm, as the sender reads it.

use trunkline_mem::Memory;
use trunkline_proto::wire::cts;
use trunkline_proto::xfer::sender::Mailbox;

pub(crate) struct View<'a>(pub(crate) &'a Memory);

impl Mailbox for View<'_> {
    #[inline]
    fn word(&self, offset: u64) -> u64 {
        // The sender asks only for words of the mailbox.
        self.0.load(offset).unwrap_or(0)
    }

    #[inline]
    fn line(&self, offset: u64) -> [u64; cts::WORDS] {
        self.0.load_row(offset).unwrap_or_default()
    }
}
