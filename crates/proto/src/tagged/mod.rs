//! Tagged messages between processes of a node: the receive that each message matches, and the protocol for its bytes. Pure: the owner of the
//! rings, the stage and the drivers calls it ([`crate::wire::tagged`] defines the messages in the rings).
//!
//! - [`TagMatcher`]: posted receives, and unexpected messages. If a receive fits two messages of one sender, it gets the one that was sent
//!   first. If a message fits two receives, it is delivered to the one that was posted first.
//! - [`choose_send_method`] and [`choose_receive_method`]: whether bytes are sent eagerly, by a reference, into the receiver's memory, or in
//!   pieces. The sender selects among these by the measurements of a [`Chooser`](crate::chooser::MethodChooser) of [`CopyMethod`]s.
//! - [`StridedRows`]: bytes that are not contiguous, and [`RowRuns`], the parts of them that are contiguous at both ends.
//! - [`StageWriter`]: the free bytes of a stage.

mod matching;
mod plan;
mod rows;
mod stage;

pub use matching::{MatcherFull, ReceiveId, TagMatcher, TagPattern};
pub use plan::{
    CopyMethod, MemoryReach, MethodChoice, ReceiveMethod, SETTLED, SendMethod, allowed_methods,
    choose_receive_method, choose_send_method, is_eager,
};
pub use rows::{RowRuns, StridedRows};
pub use stage::{StagePiece, StageWriter};
