//! The two usual entries of companions, a WAIT and an ADD, recognised by their whole words. The executor calls this before it parses an entry field
//! by field.

use super::{PeerAddress, QueueEntry, entry_sequence, flag, join_halves, split_halves};

impl QueueEntry {
    /// Returns the queue and the index of a WAIT that has no fence, tag, unused fields or check. Compares whole words, in few instructions;
    /// [`from_words`](Self::from_words) returns the same fields for these words. `None`: the caller has to parse the entry.
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

    /// Returns the word, the added value and whether a poison word follows, for an ADD of the same plain form.
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
