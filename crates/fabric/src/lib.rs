//! The contract between the engine and a network.
//!
//! A [`Fabric`] lists NICs and opens them; an open NIC is a [`Rail`], owned by one caller at a time, on which links
//! are made, work is posted and completions are polled; memory is registered through its [`Registrar`], which may be
//! shared between threads. A [`Host`] gives what no network gives: time, random numbers and control streams.
//!
//! Fabrics implement these traits; the engine is generic over them; the simulator is one more fabric, and so are
//! [`trace::Traced`], which records another one, and [`Split`], which has one for neighbours besides. Nothing here assumes order between links, or that more than eight bytes arrive untorn: what a network does guarantee is in its
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
mod passed;
mod rail;
mod register;
mod split;
pub mod trace;

pub use abandoned::{ABANDONED_MAX, Abandoned};
pub use caps::{Caps, DeviceReach};
pub use completion::{Completion, Done, Status};
pub use error::{DeregisterError, LinkError, OobError, OpenError, PostError, RegisterError};
pub use fabric::{Fabric, Nic};
pub use host::{Frame, Host, HostPage, Level, Oob, OobAddress, OobListener, OobStream, StreamConnections};
pub use op::{CqId, Extent, Match, Op, Remote, Source};
pub use passed::{PassedFd, PeerProcess};
pub use rail::{Cq, LinkAddress, LinkId, Links, Rail, RailConfig, RecvOrder, Wake};
pub use register::{
    Access, Bounce, Ctrl, Data, Exported, Heap, Keys, LocalKey, Mr, Purpose, Registrar, RemoteKey, Role,
    Visibility,
};
pub use split::{Split, SplitRail};
