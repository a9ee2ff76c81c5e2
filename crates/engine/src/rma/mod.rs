//! One-sided communication: puts, gets, atomics and signals between the members of a job, over the same fabrics and hosts as
//! connections. Front ends call [`RmaJob`]; nothing in here waits.
//!
//! Each process serves the others by one *service* (`service`), which owns the far ends of all links to the process, applies
//! signals and executes atomics. A process's own operations use *contexts* (`context`). Each context has a lock, rails of its
//! own, and a link per path to each member that it has dialled. So contexts of different threads share nothing, and the service
//! is independent of them.
//!
//! The rules are in `trunkline_proto::rma`: when a quiet is complete, the order in which signals are applied, and that each
//! atomic is executed once. The messages that precede a link are specified in docs/wire.md, "Cards and dialling".

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
