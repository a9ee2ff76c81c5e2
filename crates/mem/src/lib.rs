//! Memory as the rest of Trunkline sees it: a [`Memory`] is a byte range of a [`Kind`] that can be read, written and
//! copied with bounds checks, whoever owns the bytes.
//!
//! Called by every floor above. This crate never registers memory with a NIC (that is a fabric's job) and never
//! looks at what the bytes mean.

mod kind;
mod memory;

pub use kind::Kind;
pub use memory::{Memory, OutOfBounds};
