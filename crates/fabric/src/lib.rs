//! The contract between the engine and a network.
//!
//! A [`Fabric`] lists NICs and opens them. An open NIC is a [`Rail`], owned by one caller at a time, on which links are made, work is posted and completions
//! are polled. Memory is registered through its [`MemoryRegistrar`], which threads may share. A [`Host`] provides everything else: time, random numbers,
//! control streams, log lines, and a page for other processes.
//!
//! Fabrics implement these traits, and the engine is generic over them. The simulator is one more fabric, and so are [`trace::TracedFabric`], which records
//! another one, and [`SplitFabric`], which adds one for processes of this host. Nothing here assumes order between links, or that more than eight bytes arrive
//! untorn: the guarantees of a network are in its [`Caps`].
//!
//! # Files, in reading order
//!
//! - `fabric.rs`, `rail.rs`, `op.rs`, `completion.rs`, `caps.rs`: NICs, rails and links, posted work, its completions, and the guarantees.
//! - `register.rs`, `abandoned.rs`, `cache.rs`: memory, registrations that could not be ended, and registrations that several requests share.
//! - `host.rs`, `passed_fd.rs`: the host, and descriptors that arrive on its streams.
//! - `split.rs`, `trace/`: fabrics around fabrics. `conformance/`: the suite that every fabric must pass.
//!
//! # One operation, from post to the completion
//!
//! ```text
//!  Fabric::open_rail -> Rail; LinkControl::create_link_on, connect
//!  MemoryRegistrar::register -> RegisteredRegion<Role>: LocalKey, RemoteKey
//!  Rail::post(link, wr_id, Op, signalled)   Err(Busy): nothing was acquired, post again
//!  Rail::flush
//!  Rail::poll -> Completion: wr_id, status
//! ```
//!
//! A region has a role, data or control, as a type. Remote keys are random, and each access is checked against key, bounds and rights. The host and the fabric
//! are replaced together: in the simulator one seed decides both.
//!
//! [`trace::TracedFabric`] records the operations and times of each rail (`TRUNKLINE_TRACE`); the engine has no code for it. A rail appends raw events, posts
//! and completions, to one buffer of the process. They are paired, and slices nested on a track, when the file is written.
//!
//! # Registrations that are shared
//!
//! `cache.rs` puts a lock around [`trunkline_proto::registrations`], which decides. A shared registration stays open when one of its users releases it. So
//! registrations are shared only where their end is not the barrier against a peer's late writes:
//!
//! - *libfabric, registrations of the domain (EFA, TCP)*: shared between rails of a domain. The end of the rail's endpoints stops peers. A link's own
//!   endpoints end with it; endpoints of all links end with the last link in use (`OfiRail::close_if_idle`).
//! - *libfabric, bound to endpoints (Slingshot)*: shared within a rail, as endpoints cannot end before registrations that are bound to them. A failed comm
//!   retires its memory. When a rail has no usable link left, its retired registrations are closed at once, as no user can use them any more.
//! - *RDMA devices*: not shared, although a queue pair in error places nothing. Each comm has its own registrations.
//! - *Software NIC*: not shared. Deregistering is the fence there: the key is removed and running copies are waited for. It costs microseconds, as no pages
//!   are pinned.
//! - *Simulator*: not shared. It checks the other crates.
//!
//! A peer that has the key of a shared registration reaches all of it. A faulty peer can thus write beyond its part, as far as memory that another request
//! covered, until the last user has released the registration.
#![forbid(unsafe_code)]

mod abandoned;
pub mod cache;
mod caps;
mod completion;
#[cfg(feature = "test-utils")]
pub mod conformance;
mod error;
mod fabric;
mod host;
mod op;
mod passed_fd;
mod rail;
mod register;
mod split;
pub mod trace;

pub use abandoned::{ABANDONED_MAX, AbandonedKeys};
pub use caps::{Caps, DeviceReach};
pub use completion::{Completion, CompletionKind, OpStatus};
pub use error::{DeregisterError, LinkError, OobError, PostError, RailOpenError, RegisterError};
pub use fabric::{Fabric, NicPort};
pub use host::{
    Host, HostPage, LogLevel, OobAddress, OobFrame, OobListener, OobStream, OobTransport, StreamConnections,
};
pub use op::{CqId, MatchKey, Op, OpSource, RegionExtent, RemoteLocation};
pub use passed_fd::{PassedFd, PeerProcess};
pub use rail::{CqPosition, LinkAddress, LinkControl, LinkId, Rail, RailConfig, RecvOrder, WaitMethod};
pub use register::{
    AccessRights, BounceRole, ControlRole, ExportedDmaBuf, HeapRole, LocalKey, MemoryRegistrar, PayloadRole,
    RegionKeys, RegionPurpose, RegionRole, RegisteredRegion, RemoteKey, WriteVisibility,
};
pub use split::{SplitFabric, SplitRail};
