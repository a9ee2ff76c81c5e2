//! Device queues: entries, completions, and the layout of their words ("Device queues" of docs/wire.md). All functions take and return words; the
//! crate `device-queue` accesses the memory that contains them.

mod completion;
mod entry;
mod guest;
mod inline;
mod layout;
mod post;
mod report;
mod status;
#[cfg(test)]
mod tests;
mod window;
mod window_card;

pub use completion::{CompletionOwner, EntryCompletion};
pub use entry::{
    AtomicChange, CounterUpdate, EntryFence, EntryWork, LENGTH_MAX, LocalAddress, PeerAddress, QueueEntry,
    QueueEntryError,
};
pub use guest::{GUEST_RANKS_MAX, GuestCardError, GuestChannelCard, GuestFile};
pub use inline::{INLINE_BYTES_MAX, InlineBytes};
pub use layout::{
    BELLS_MAX, COMPLETION_BYTES, CompanionWord, DEPTH_MAX, DEPTH_MIN, DoorbellLayout, ENTRY_BYTES,
    FrontierWord, LINE_BYTES, QueueShape, ShapeError, VERSION, at,
};
pub use post::{
    BOX_BYTES, OwnerAction, POST_PLACES, PostBox, PostReply, PostRequest, PostRooms, REPLY_BYTES,
    REQUEST_BYTES,
};
pub use report::{MakingReport, REPORT_WORDS, ReportError};
pub use status::{AbortWord, EntryStatus, PoisonWord};
pub use window::{
    GRANULE, SLOT_BYTES, StreamLayout, WINDOW_BYTES_MAX, WINDOW_LANES_MAX, WindowLayout, WindowShape,
    WindowShapeError, stream_at,
};
pub use window_card::{CARD_WORDS, CONFIG_WORDS, CardError, PartLengths, WindowCard, WordsCard};

/// Returns whether index `a` is before index `b`. Indices wrap, and are never 2^63 apart.
#[inline]
#[must_use]
pub const fn is_before(a: u64, b: u64) -> bool {
    (b.wrapping_sub(a) as i64) > 0
}

/// Returns a word from its low and its high half.
#[inline]
const fn join_halves(low: u32, high: u32) -> u64 {
    low as u64 | (high as u64) << 32
}

/// Returns the low and the high half of a word.
#[inline]
const fn split_halves(word: u64) -> (u32, u32) {
    (word as u32, (word >> 32) as u32)
}
