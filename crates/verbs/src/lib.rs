//! Real RDMA devices: InfiniBand, RoCE and soft-RoCE, through rdma-core's libibverbs, which is opened at run time.
//!
//! A [`VerbsFabric`] lists usable ports. An open one is a [`VerbsRail`] with one completion queue, and each of its links is one reliable queue pair. The
//! engine drives it through the contract of `trunkline-fabric` and never names this crate. A front end makes the fabric (`trunkline-runtime`). Nothing here
//! selects peers.
//!
//! # Files, in reading order
//!
//! - `library.rs`, `device.rs`, `listing.rs`, `fabric.rs`: libibverbs, open devices, usable ports. `config.rs`, `hca.rs`, `gid.rs`: the
//!   user's choices.
//! - `rail.rs`, `stage.rs`, `queue.rs`, `receives.rs`, `poll.rs`, `cq.rs`: posting, requests, signalling, receives, completions.
//! - `link.rs`, `qp.rs`, `qp_state.rs`, `connect.rs`, `pipelines.rs`, `grant.rs`: queue pairs and their states.
//! - `register.rs`, `gpudirect.rs`, `flusher.rs`: registrations, GPU memory, flushes. `events.rs`, `error.rs`, `caps.rs`: events, errors, guarantees.
//!
//! # One write, from post to the completion
//!
//! ```text
//!  VerbsRail::post -> stage.rs: a request, chained by queue pair; inline bytes are copied now
//!  VerbsRail::flush -> each chain is submitted with one call: as a list, or built in place (ibv_wr_*)
//!                      queue.rs: one in a quarter of the queue is signalled
//!  VerbsRail::poll -> ibv_poll_cq: a completion ends all requests before it on its queue pair
//! ```
//!
//! Facts that are not obvious:
//!
//! - *A link is one queue pair*, and a write with immediate consumes one of its receives as a send does (`Caps::immediate_takes_receive`). The fabric
//!   posts that receive again in the poll that returns the immediate (`poll.rs`, `receives.rs`), without the engine. So the engine posts more receives on
//!   such a fabric than eager messages can hold (`IMMEDIATES_SPARE` in its `plan.rs`): otherwise the message that all others wait for might find none.
//!   Without a receive, a device retries for ever. The simulated network has this mode too, and half of its seeds run in it.
//! - *A last request ends a link* (`link.rs`). A device in error reports nothing for work that was not signalled; the completion of a last request behind
//!   it shows its end. Receives are posted to no device that is known to be in error, because soft-RoCE would keep them.
//! - *Requests wait in one place* (`stage.rs`). Whether a provider supports `ibv_wr_*` is detected when the queue pair is created. Sends of two ranges are
//!   submitted as a list even there, in order with the others: soft-RoCE would send the first range twice. A head before registered bytes is copied to
//!   registered memory of the link, which has a place for each operation.
//! - *Not all requests are signalled* (`queue.rs`): the engine's signalled ones, one in a quarter of the queue, and the last that fits. After an error,
//!   requests without a completion were flushed.
//! - *The end of a peer's link is not reported* (`Caps::ends_are_told`). The control stream reports it.
//! - *Events* are polled by `LinkControl::check_link`, so no thread waits for them, and they are delivered to the link that they concern.
//! - *Refused state changes.* The kernel returns "invalid argument". `qp_state.rs` derives the refused attribute from the limits of device and port.
//! - *Keys* of devices are 32 bits and guessable. A longer key, which no device made, is changed into one that matches nothing.
//! - *Atomics.* A misaligned word is refused as if the peer had done it: some providers refuse it at the post.
//! - *Memory of GPUs* (`gpudirect.rs`). Whether the device reaches it is tested once, with an invalid dma-buf: the kernel's error shows whether it knows the
//!   call. A flush reads the GPU's own memory; a read of the host's memory would push nothing towards the GPU.
//! - *Flushes* (`flusher.rs`) use one queue pair per port, made with the first flush and shared by all rails of the process under a lock that is held for a
//!   post or a poll. A failed flush puts it into error; the others are posted again over a new one. The first design had one per device.

mod caps;
mod config;
mod connect;
mod cq;
mod device;
mod error;
mod events;
mod fabric;
mod flusher;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod gid;
mod gpudirect;
mod grant;
mod hca;
mod library;
mod link;
mod listing;
mod pipelines;
mod poll;
mod qp;
mod qp_state;
mod queue;
mod rail;
mod receives;
mod register;
mod speed;
mod stage;

pub use config::{BusOrdering, ConfigTextError, GidFamily, GidRange, PacketRouting, VerbsConfig};
pub use error::VerbsUnavailable;
pub use fabric::VerbsFabric;
pub use hca::HcaFilter;
pub use library::VerbsLibrary;
pub use listing::device_names;
pub use rail::VerbsRail;
