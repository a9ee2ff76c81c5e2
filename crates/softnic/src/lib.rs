//! A software RDMA NIC with verbs semantics: regions with checked keys, reliable queue pairs, posted receives, remote writes, reads and atomics, a matched
//! send, and links that wait for completion queues. It needs no hardware, no privileges and no set-up.
//!
//! The engine uses it through [`trunkline_fabric`]'s traits; a front end makes a [`SoftFabric`]. One rule holds everywhere: a process writes only its own
//! address space, and those of processes that let it. This crate knows no messages, no names of peers and no control streams, and starts no thread.
//!
//! # Files, in reading order
//!
//! - `fabric.rs`, `nic.rs`, `rail.rs`: the fabric, its NICs, and an open NIC: post, poll, credits.
//! - `qp.rs`, `qp_state.rs`: a queue pair. `send.rs`, `job.rs`: posted work becomes records. `poll.rs`, `receive.rs`: records are executed.
//! - `record.rs`, `ring.rs`, `segment.rs`: the ring in shared memory (docs/wire.md, "Software NIC"). `tcp/`: the same to another host.
//! - `register.rs`, `guard.rs`, `pin_registry.rs`: regions, and the wait before one ends.
//! - `direct.rs`, `copy_claim.rs`, `method.rs`, `peer_memory.rs`: copies without the ring.
//! - `matched.rs`, `cq.rs`, `hold.rs`: matched sends, waits for a completion queue, delayed visibility.
//!
//! # One write, from post to the completion
//!
//! ```text
//!  initiator                                        target
//!  Rail::post -> SoftRail::post_inside
//!    post_small: a small write into the ring at once
//!    post_job:   the rest, as jobs
//!  transmit_records: jobs -> records    -- ring -->  Rail::poll: SoftQp::take_in copies a record out of the ring
//!                                                    execute_words: checks key, bounds and rights, moves the bytes
//!  Rail::poll: retire_ops, completion   <-- count of executed records --
//! ```
//!
//! Jobs without room wait for `pump_jobs` of a later `poll`. `Busy` is a value that is returned before the call has acquired anything. Nothing spins.
//!
//! *The target executes*, in its own `poll`, after it has found the key in its own table. The first design had the initiator execute where it can reach the
//! memory. The target's execution keeps key checks and deregistration inside one process. The price is that a target which never polls makes no progress; so
//! far every front end polls. Remote keys are random.
//!
//! # Four ways to copy, and how one is chosen
//!
//! - *Staged, or staged long*: through a ring that both sides use, in short or long pieces.
//! - *Pulled*: by the receiver, out of the sender's memory.
//! - *Shared*: the receiver pulls one part, while the sender pushes the other into memory that the receiver has pinned and opened for this record.
//!
//! Each link learns the fastest way for each size from the service times of its own messages ([`trunkline_proto::chooser`]). A cost table measured at start,
//! as first designed, does not work: the fastest way depends on the caches that hold the bytes, and on the writer, which nothing measured at start can know.
//! Memory that no system call of another process reaches, such as memory that a driver has pinned and mapped, is detected when it is registered, and always
//! uses the ring.
//!
//! # Deregistering
//!
//! Deregistering removes the key from the table, then waits until no rail is inside a copy that may have found it (`guard.rs`). It fails rather than
//! succeeding early.
//!
//! - A rail pays two plain stores. The rare side pays with a barrier across the process (`membarrier`). Where the kernel has none, or refuses it from some
//!   moment on, as under a seccomp filter that was installed late, rails execute a barrier whenever they enter.
//! - Direct copies have a registry of pins. Deregistering closes the pins of the region, so that no copy begins any more, and waits for a peer that is inside
//!   one, or for its death, at most the peer time.
//! - A region that its owner drops while a copy is stuck in it stays with the NIC (at most 4096 of them), which tries again with later calls
//!   (`MemoryRegistrar::abandon`).
//! - A region can be retired (`RegisteredRegion::retire`): peers that still write to it get no error, and their bytes are dropped. So one user of a link can
//!   take its memory away without ending the link for others. The NIC keeps the last 65,536 such keys.
//!
//! # Work that waits for other work
//!
//! `Op::Wait` holds a link until the completion queue of a rail has produced a certain completion. So a companion link counts the completions of a main link
//! without the processor, as device queues need. The counted completions are those that `poll` returns, because the software NIC makes them there. A rail that
//! is waited for must thus be polled, and counting costs it one store per poll. A waiting link reads the other rail's counter without a lock.
//!
//! Hardware releases a wait by a failed completion as by a successful one, or never. Here a completion in error fails every wait from it on, with the
//! waiting link. So do the end of the awaited rail, and a link that is destroyed with completions outstanding, because completions of other links get
//! their numbers. The price: after an error the queue cannot be waited for any more. A rail that is waited for should have one link.
//!
//! Queue pairs are placed on *pipelines* of a NIC, if it has several, before they are made (`LinkControl::create_link_on`, `nic.rs`). The software NIC divides
//! its queue pairs among them as such hardware does, so that tests and benchmarks show the cost of placement.

mod caps;
mod config;
mod connect;
mod copy_claim;
mod cq;
mod direct;
mod error;
mod fabric;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod guard;
mod hold;
mod job;
mod matched;
mod method;
mod nic;
mod own_links;
mod peer_memory;
mod pin_registry;
mod poll;
mod process;
mod qp;
mod qp_state;
mod queue;
mod rail;
mod receive;
mod receive_queue;
mod record;
mod register;
mod ring;
mod segment;
mod send;
mod tcp;

pub use config::{CopyMode, SoftConfig, WireMode};
pub use fabric::SoftFabric;
pub use rail::SoftRail;
