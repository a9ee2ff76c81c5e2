//! What companions do, a WAIT and an ADD, as entries mostly have them: told by their words together. Called by the executor before it reads an entry field by field.

use super::{PeerAddress, QueueEntry, entry_sequence, flag, join_halves, split_halves};

impl QueueEntry {
    /// The queue and index of a WAIT that stands alone: without a fence, a tag, anything that it does not use, or a check. Told by its words together, in few
    /// instructions; what [`from_words`](Self::from_words) reads of them is the same. `None`: that is to be asked.
    #[inline]
    #[must_use]
    pub const fn plain_wait(words: &[u64; 8], index: u64) -> Option<(u32, u64)> {
        const KIND: u32 = 8 | (flag::COMPLETES as u32) << 8;
        let [head, local, awaited, keys, len, operand, comparand, peer] = *words;
        let (other, queue) = split_halves(keys);
        let unused = local | other as u64 | len | operand | comparand | peer;
        if head == join_halves(entry_sequence(index), KIND) && unused == 0 {
            Some((queue, awaited))
        } else {
            None
        }
    }

    /// The same of an ADD: the word, what is added, and whether a poison word stands behind it.
    #[inline]
    #[must_use]
    pub const fn plain_add(words: &[u64; 8], index: u64) -> Option<(PeerAddress, u64, bool)> {
        const KIND: u32 = 3 | (flag::COMPLETES as u32) << 8;
        const POISONED: u64 = (flag::POISONED as u64) << 40;
        let [head, local, addr, keys, len, value, comparand, peer] = *words;
        let ((other, key), (peer, check)) = (split_halves(keys), split_halves(peer));
        let unused = local | other as u64 | len | comparand | check as u64 | addr & 7;
        if head & !POISONED != join_halves(entry_sequence(index), KIND) || unused != 0 {
            return None;
        }
        Some((PeerAddress { peer, addr, key }, value, head & POISONED != 0))
    }
}
