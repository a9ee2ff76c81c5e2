//! Tagged messages between processes of a node: which receive a message is for, and how its bytes go. Pure; whoever has the rings, the
//! stage and the drivers asks here ([`crate::wire::tagged`] is what stands in the rings).
//!
//! - [`TagMatcher`]: posted receives and messages that came before them. Two messages of one sender that a receive both fits are taken in the order in
//!   which they were sent; two receives that a message both fits, in the order in which they were posted.
//! - [`choose_send_method`] and [`choose_receive_method`]: whether bytes go at once, by a reference, into the receiver's memory, or in pieces. Among these the sender takes what a
//!   [`Chooser`](crate::chooser::MethodChooser) of [`CopyMethod`]s has learned.
//! - [`StridedRows`]: bytes that do not stand in one row, and [`RowRuns`], the parts of them that do at both ends.
//! - [`StageWriter`]: which bytes of a stage are free.

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
