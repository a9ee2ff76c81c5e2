//! Device queues: how a thread of a GPU, or of the host, starts communication, and how it learns what became of it.
//!
//! A producer *reserves* entries, *writes* them, *publishes* them in the order of reservation and *submits* them by a doorbell. An
//! engine *fetches* them in order, has them executed, and *completes* them in order. docs/wire.md, "Device queues", has the words.
//!
//! - [`memory`]: what the protocol asks of memory; the words of this process, or any others behind the same trait.
//! - [`raw`]: words at an address. All unsafe code is there, but what the feature `cuda` adds.
//! - [`queue`], [`reservation`]: the producer's side: [`DeviceQueue`], [`QueueReservation`], [`EntryTicket`], and waiting.
//! - [`bells`]: doorbells, and the bits that tell which have been rung.
//! - [`slot`]: signals and counters, their poison, and their epochs.
//! - [`consumer`]: the engine's side of one queue: order, fences, WAIT, completions, errors.
//! - [`job`]: what that gives to an executor, and what it hears back.
//! - [`drain`]: the engine's side of many queues.
//! - [`channel`]: tickets of several lanes, and the flush that covers them.
//! - [`verdict`]: what the leader of a group has learned, told to all of it.
//! - [`lane`], [`original`], [`successor`]: the operations of two APIs, as entries.
//! - [`view`], [`header`]: what kernels are given that use the twin of this protocol for devices, `include/trunkline/device.h`.
//! - with the feature `cuda` `nvrtc`, which compiles kernels when a program starts, and `kernels`, which are this project's.
//!
//! Nothing here reads a clock, starts a thread, or executes an entry. A wait gets a [`WaitBudget`], and says when that is spent.
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
