//! Device queues: the protocol by which a thread of a GPU, or of the host, starts communication and learns its result.
//!
//! Both sides of the protocol are here, over any memory: words of this process, words at an address, or those of a model checker. The crate `trunkline_device`
//! calls it and executes entries through [`JobExecutor`]. The Rust API and tests post entries. Nothing here reads a clock, starts a thread, or executes an
//! entry. A wait has a [`WaitBudget`], and returns when the budget is spent. docs/wire.md, "Device queues", defines the words; docs/device.md is for users.
//!
//! # Modules, in reading order
//!
//! - [`memory`], [`raw`]: memory as the protocol needs it; words at an address. All unsafe code is in [`raw`], except for the feature `cuda`.
//! - [`queue`], [`reservation`]: the producer's side: [`DeviceQueue`], [`QueueReservation`], [`EntryTicket`], and waits.
//! - [`bells`]: doorbells, and the bits that show which were rung.
//! - [`slot`]: signals and counters, their poison, and their epochs.
//! - [`consumer`], [`job`], [`drain`]: the engine's side of one queue (order, fences, WAIT, completions, errors), its executor, and many queues.
//! - [`channel`], [`verdict`]: tickets of several lanes and their flush; the result that the leader of a group shares with its threads.
//! - [`lane`], [`original`], [`successor`]: the operations of two APIs, as entries.
//! - [`view`], [`header`]: the data for kernels that use the twin of this protocol for devices, `include/trunkline/device.h`.
//! - With the feature `cuda`: `nvrtc`, which compiles kernels when a program starts, and `kernels`, which are this project's.
//!
//! # One entry, from its reservation to its completion
//!
//! ```text
//!  producer                                    engine
//!  reserve: places, only if the frontier shows room
//!  write:   64 bytes each
//!  publish: in the order of reservation
//!  submit:  a doorbell, and its bit        ->  drain: reads bits, then doorbells
//!                                              consumer: copies the entry out once, parses it
//!                                              executor: executes, reports the outcome
//!  wait:    polls the frontier             <-  completes in order: the frontier, one word
//! ```
//!
//! # Rules
//!
//! - *No place is acquired without room.* A reservation changes a counter only when the frontier shows free places, so a wait for room can end at any time. A
//!   producer that adds first and waits then, as in the first design, cannot give back places that are in use. The price is a compare and swap instead of an
//!   addition.
//! - *Publication is a chain.* Each producer publishes behind the previous one, so the engine sees no hole. The entries of a producer that leaves become NOPs.
//!   If even that is impossible, the queue ends by an abort that all producers see.
//! - *A WRITE may raise a counter* of its own process once it has completed. The consumer keeps the increment (`consumer.rs`) until the frontier is published,
//!   as a companion's WAIT and ADD would, for the price of one entry. A put that a companion counts is published on both queues, and one poll of the engine
//!   submits it (`submit_both`): two doorbells, one word of bits.
//! - *A doorbell is stored, never added to*, as a device may be unable to change words of the host by an atomic. A producer that has raised the device's
//!   counter stores it, and reads the counter again. That needs two full fences. Without them the smaller of two doorbells may remain, also on x86: loom found
//!   that, and the first design had no fence.
//! - *One word publishes all completions*, the frontier, with a bit for the error page. Everything behind the first failure fails, too, so one index gives the
//!   end of every ticket. Indices wrap at 64 bits, the frontier at 63.
//! - *After a failure* entries are flushed in order, and only when their own work has ended, so that a producer may then reuse its memory. Signals and
//!   counters that will not be changed are poisoned before that. A WAIT for a failed entry fails, where hardware continues or hangs.
//! - *A flush clears nothing* (`channel.rs`). Each lane records how far it was recorded and how far it was seen complete, so a second flush cannot return
//!   before the first.
//! - *A slot is reset* by a base, not by a store, which would lose a concurrent addition.
//! - *Two APIs* use it. The original's (`original.rs`) has bare words, a fenced signal of its own, and a counter that waits for the signal. Its successor's
//!   (`successor.rs`) has channels, slots with poison, and a counter that waits for the bytes. The entries of each are tested row by row in
//!   `tests/operations.rs`.
//! - *A group continues or stops as one*: its leader waits and shares the verdict (`verdict.rs`).
//! - *The header for devices* (`include/trunkline`) is the producer's side in C++, access by access as in `queue.rs` and the files around it. It has a file
//!   for each of them and one for each kind of machine (`platform_*.h`), without dependencies. Entry, doorbell and poll are overloaded for a queue in memory
//!   and for a NIC's queue pair (`mlx5.h`). Reserving, publishing and submitting are templates over them, so that a proof of one holds for the other.
//!   Functions with many copies per kernel are called, not inlined: with inlining NVRTC took ten times the time.
//! - *Lanes in lockstep take turns* (`turns.h`). On GPUs of AMD one lane of a wavefront at a time reserves and publishes or cancels, as masked lanes publish
//!   nothing that others wait for. Elsewhere turns compile to nothing.
//! - *A device changes no memory of the host by an atomic.* Names of accesses include the owner of the memory, and a script reads the PTX. So doorbell pages
//!   have bytes, producers' words lie in the device's memory (`view.rs` has the addresses for a kernel), and the engine turns requests into an abort or a
//!   companion (`consumer.rs`).
//! - *Writes of a device are hostile.* An entry is copied out once and parsed. A doorbell too far ahead fails the queue.
//!
//! Tests:
//!
//! - `loom`: small worlds, every order; `shuttle`: larger ones, at random.
//! - `adversary`: an executor that splits, delays, reorders and fails, with every invariant checked after every step.
//! - `protocol`: step by step; `threads`: threads of this machine.
//! - `header`, `header_threads` and `header_mlx5`: the header.
#![no_std]
#![deny(unsafe_code)]

extern crate alloc;

pub mod bells;
pub mod budget;
pub mod channel;
pub mod consumer;
pub mod drain;
mod entry_record;
pub mod error;
pub mod header;
pub mod job;
#[cfg(feature = "cuda")]
pub mod kernels;
pub mod lane;
pub mod memory;
#[cfg(feature = "cuda")]
pub mod nvrtc;
pub mod original;
pub mod progress;
pub mod queue;
pub mod raw;
pub mod reservation;
pub mod slot;
pub mod successor;
pub mod verdict;
pub mod view;

pub use bells::{BellPage, QueueDoorbell};
pub use budget::{ClockDeadline, OrDie, PollLimit, UnlimitedWait, WaitBudget};
pub use consumer::QueueConsumer;
pub use drain::{DrainPass, QueueDrain};
pub use error::{QueueFault, WaitError};
pub use job::{ConsumerStep, ExecutorRules, JobExecutor, JobOutcome, QueueJob, WINDOW_MAX};
pub use lane::{CompanionDirectory, OpError, PutBytes, QueueLane, WordAddition};
pub use memory::{HeapWords, StoredWord, WordMemory, allocate_words};
pub use progress::QueueProgress;
pub use queue::{DeviceQueue, EntryTicket, ReserveError, RingOutcome, TicketPoll};
pub use reservation::QueueReservation;
pub use slot::{SignalSlot, SlotCondition, SlotLayout, poll_sum};
pub use view::QueueView;
