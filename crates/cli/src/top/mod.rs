//! What other processes show of themselves: finds their status pages, reads them, and prints what was read.
//!
//! Called by `cmd::top` and `cmd::info`. It asks nothing of the processes it looks at and waits for none of them.

pub(crate) mod find;
mod groups;
pub(crate) mod node;
pub(crate) mod prometheus;
pub(crate) mod report;
pub(crate) mod sample;
pub(crate) mod table;
