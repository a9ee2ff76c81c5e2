//! Memory and messages between the processes of a node: buffers that a process shares with other processes of its host, and tagged messages over them.
//!
//! Called by the Rust API, and by the command, which reads [pages](read_node) of other processes. It uses no network and no engine, and starts no thread.
//!
//! - [`ipc`]: memory of devices that this process shares with other processes of its node.
//! - [`tagged`]: tagged messages, which share long buffers and copy short ones.
//! - [`NodePage`]: the exports and counters of an endpoint, shown to other processes.
//!
//! # Files, in reading order
//!
//! - `ipc/node.rs`, `ipc/neighbour.rs`: this process's part, and one other process. `send.rs`, `exports.rs`: the exporting side; `arrival.rs`, `imports.rs`,
//!   `mapping.rs`: the importing side.
//! - `ipc/frame_handlers.rs` handles received frames, `close.rs` tears down neighbours that leave, die or violate the protocol.
//! - `ipc/lend.rs`: windows. `ipc/external_messages.rs`: messages that a ring carries instead of the stream, so that a hit makes no system call.
//! - `tagged/endpoint.rs`, `tagged/{send,receive}.rs`, `tagged/ring.rs`: the messages and the rings. `tagged/{learned,staging,eager,pinning}.rs`: copies.
//!
//! # A long message, from send to the copy
//!
//! ```text
//!  sender                                         receiver
//!  tagged/send: choose_send_method
//!  ipc/send: export once, announce            ->  ipc/frame_handlers: the export is known
//!  ring: message with (slot, generation)      ->  tagged/receive: matching, choose the method
//!                                                 ipc/mapping: map on first use (posted to the mapping thread of the kind)
//!                                                 ipc/arrival: copy, 1 MiB per call
//!  request complete                           <-  ring: reply; both ends unpin
//! ```
//!
//! The rules, such as pins, stale mappings and budgets, are [`trunkline_proto::ipc`]'s and [`trunkline_proto::tagged`]'s. The kinds of memory are
//! [`trunkline_mem::ipc`]'s.
//!
//! - *A node does not match messages.* It reports arrivals, and the matcher chooses the buffer. Memory that cannot be shared is reported to the sender, which
//!   sends the message in another way. To map a buffer costs a driver a millisecond, so mappings are kept.
//! - *One owner.* A node has one owner, in whose calls everything happens. Requests to the mapping thread are posted and polled for (`ipc/mapping.rs`): at
//!   most 64 are outstanding, and further ones wait. An importer reports an end only behind the driver's reply, and a node that closes waits for all of them.
//!   The exporter counts handles whose return is pending.
//! - *Bounds.* Unanswered messages and unreleased names are bounded, so a stream whose other end reads never overflows; one that overflows is broken. A
//!   process that violates the protocol costs the others nothing.
//! - *Rings* (`tagged/ring.rs`). Each direction of each pair has two: messages and replies, so that unmatched messages hold up no reply. An unmatched message
//!   stays in the ring, and its sender waits. The first word of a frame is written last and the word behind it is zero, so a short message costs the transfer
//!   of one cache line.
//! - *Copy methods* (`tagged/learned.rs`). The Rust API's stages have 256 KiB, in pieces of 16 KiB. Where both memories can be reached, the sender prefers the
//!   method that it has learned for that peer and size: the receiver copies, both do by turns, or both through the stage. A driver that refuses costs the
//!   message the stage, with the same receive, and is counted.
//! - *Pins of inboxes* (`tagged/pinning.rs`). Copies between a device and an inbox are busy until the pin is settled. Messages of the host are not delayed. A
//!   peer that leaves abandons its request.
//! - *Short messages of a device's memory* (`tagged/eager.rs`) are copied into the peer's ring, and out of the own one, by copies that continue after they
//!   were begun. The thread that makes progress polls for their ends and never waits for one, as a kernel may run for any time. The sender publishes the frame
//!   behind its copy, and sends that peer nothing else before, so that messages stay in order. The receiver reads on, and frees cells behind the earliest
//!   copy.
//! - *Pages* (`tagged/endpoint_page.rs`, `page.rs`; docs/wire.md, "Page of shared memory"). All of a page is under one sequence, so that a copy shows one
//!   moment. It is written when the streams are polled, every tenth of a second, and costs a message nothing. The same poll checks the free hook's flag
//!   (`ipc/hook.rs`) and the count of frees of the preloaded library (`trunkline_mem::gpu`).
//! - *Windows* (`ipc/lend.rs`) are lent exports. They are pinned at both ends from their making to their freeing, outside every budget, and are ordinary
//!   exports afterwards.
#![forbid(unsafe_code)]

#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
pub mod ipc;
mod page;
pub mod tagged;

pub use page::{NodePage, NodePageError, read_node};
