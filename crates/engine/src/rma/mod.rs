//! One-sided communication: puts, gets, atomics and signals between the members of a job, over the same fabrics and hosts as
//! connections. Front ends call [`RmaJob`]; nothing in here waits.
//!
//! Each process serves the others by one lane (`service`), which owns the far ends of all links to it, applies signals and executes
//! atomics. What a process begins itself goes by *contexts*: a lane each (`context`), with rails of its own and a link to each member
//! that it has been asked for, over each path. So contexts of different threads share nothing, and a process that serves need
//! know nothing of what it begins.
//!
//! The rules are `trunkline_proto::rma`'s: what a quiet waits for, in which order signals are applied, and that each atomic is
//! executed once. What is said before a link carries is in docs/wire.md, "Cards and dialling".

mod atomics;
mod context;
mod context_rails;
mod context_slot;
mod control_messages;
mod error;
mod event_wait;
mod heap;
mod heaps;
mod job;
mod operations;
mod outcome_log;
mod paths;
mod peer;
mod post;
mod process_card;
mod receives;
mod service;
mod service_thread;
mod streams;
#[cfg(test)]
mod streams_tests;

pub use context::{ContextId, FetchHandle, HeapAddress, HeapRange, PutSource};
pub use error::{LossCause, RmaError};
pub use event_wait::{EventWait, SleepEnd};
pub use heap::{HeapMemory, WordAccess};
pub use job::{MemberRank, RmaJob};
pub use outcome_log::{OpOutcome, RmaRequest};
