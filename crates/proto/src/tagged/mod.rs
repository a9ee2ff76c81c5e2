//! Tagged messages between processes of a node: which receive a message is for, and how its bytes go. Pure; whoever has the rings, the
//! stage and the drivers asks here ([`crate::wire::tagged`] is what stands in the rings).
//!
//! - [`Matcher`]: posted receives and messages that came before them. Two messages of one sender that a receive both fits are taken in the order in
//!   which they were sent; two receives that a message both fits, in the order in which they were posted.
//! - [`way`] and [`answer`]: whether bytes go at once, by a reference, into the receiver's memory, or in pieces. Among these the sender takes what a
//!   [`Chooser`](crate::chooser::Chooser) of [`Method`]s has learned.
//! - [`Rows`]: bytes that do not stand in one row, and [`Runs`], the parts of them that do at both ends.
//! - [`Stage`]: which bytes of a stage are free.

mod matching;
mod plan;
mod rows;
mod stage;

pub use matching::{Full, Matcher, Pattern, ReceiveId};
pub use plan::{Choice, Method, Reach, Reply, SETTLED, Way, allowed, answer, is_eager, way};
pub use rows::{Rows, Runs};
pub use stage::{Piece, Stage};
