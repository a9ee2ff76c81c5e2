//! The contract between the engine and a network.
//!
//! A [`Fabric`] lists NICs and opens them; an open NIC is a [`Rail`], owned by one caller at a time, on which links
//! are made, work is posted and completions are polled; memory is registered through its [`MemoryRegistrar`], which may be
//! shared between threads. A [`Host`] gives what no network gives: time, random numbers and control streams.
//!
//! Fabrics implement these traits; the engine is generic over them; the simulator is one more fabric, and so are
//! [`trace::TracedFabric`], which records another one, and [`SplitFabric`], which has one for neighbours besides. Nothing here assumes order between links, or that more than eight bytes arrive untorn: what a network does guarantee is in its
//! [`Caps`].
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
