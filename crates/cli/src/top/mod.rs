//! Reads other processes' status pages: finds the pages, computes rates, and prints them.
//!
//! Called by `cmd::top` and `cmd::info`. It sends nothing to these processes and waits for none of them.

pub(crate) mod find;
mod groups;
pub(crate) mod node;
pub(crate) mod prometheus;
pub(crate) mod report;
pub(crate) mod sample;
pub(crate) mod table;
