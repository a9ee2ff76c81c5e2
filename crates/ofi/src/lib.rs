//! NICs through libfabric, which is opened at run time: EFA, Slingshot, and what else it has a provider for.
//!
//! This is the typed layer: what belongs to payload and what belongs to the control path are different types ([`typed::Role`]), so
//! that a descriptor or key of one cannot be given to an endpoint of the other. [`typed`] is what its tests and the fabric on
//! top of it use; nothing here knows of the contract's rails and links, or decides who talks to whom.

mod address;
mod auto;
mod cache;
mod caps;
mod connect;
mod contexts;
mod domain;
mod endpoint;
mod errno;
mod fabric;
mod fid;
mod flusher;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod granted;
mod guard;
mod handlers;
mod heads;
mod info;
mod lease;
mod library;
mod link;
mod mutant;
mod nic;
mod ops;
mod pages;
mod poll;
mod post;
mod profile;
mod queue;
mod rail;
mod reach;
mod region;
mod register;
mod remains;
mod rights;
mod role;
mod table;
mod trial;

pub use auto::Auto;
pub use fabric::{COPIES_MAX, NoNic, OfiConfig, OfiFabric};
pub use library::{Library, Missing};
pub use profile::Profile;
pub use rail::OfiRail;

/// The typed layer over libfabric. A domain is opened once a NIC ([`typed::Domain`]); a queue on it, endpoints of a role on
/// that ([`typed::Endpoint`]), and registrations through [`typed::register`].
pub mod typed {
    pub use crate::contexts::Slot;
    pub use crate::domain::{Domain, Refused};
    pub use crate::endpoint::{Anchor, Endpoint, OpenError, OpenStep, Opt, Peer};
    pub use crate::errno::Errno;
    pub use crate::granted::{Exclusion, Granted, Orders, Sizes};
    pub use crate::info::{Hints, Info, Nic, query};
    pub use crate::lease::{LeaseError, Leases};
    pub use crate::post::{How, Posted, Source};
    pub use crate::queue::{Entry, Failure, Format, Queue, QueueWants, Read};
    pub use crate::region::{
        Iface, Local, Model, Mr, MrBound, MrDisabled, RKey, RegisterError, RegisterStep, Remote, Wanted,
        register,
    };
    pub use crate::rights::{Duty, LocalUse, Rights};
    pub use crate::role::{Ctrl, Data, Role};
}
