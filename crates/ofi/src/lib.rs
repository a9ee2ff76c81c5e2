//! NICs through libfabric, which is opened at run time: EFA, Slingshot, and what else it has a provider for.
//!
//! This is the typed layer: what belongs to payload and what belongs to the control path are different types ([`typed::EndpointRole`]), so
//! that a descriptor or key of one cannot be given to an endpoint of the other. [`typed`] is what its tests and the fabric on
//! top of it use; nothing here knows of the contract's rails and links, or decides who talks to whom.

mod address;
mod auto;
mod cache;
mod caps;
mod connect;
mod contexts;
mod domain;
mod domain_lock;
mod endpoint;
mod errno;
mod fabric;
mod fid;
mod flusher;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod gpudirect;
mod handlers;
mod heads;
mod info;
mod lease;
mod library;
mod lingering_ops;
mod link;
mod nic;
mod ops;
mod pages;
mod poll;
mod post;
mod profile;
mod provider_grant;
mod queue;
mod rail;
mod region;
mod register;
mod rights;
mod role;
mod table;
mod trial;

pub use auto::AutoSelection;
pub use fabric::{COPIES_MAX, NoNic, OfiConfig, OfiFabric};
pub use library::{OfiLibrary, OfiUnavailable};
pub use profile::ProviderProfile;
pub use rail::OfiRail;

/// The typed layer over libfabric. A domain is opened once a NIC ([`typed::OfiDomain`]); a queue on it, endpoints of a role on
/// that ([`typed::OfiEndpoint`]), and registrations through [`typed::register_memory`].
pub mod typed {
    pub use crate::contexts::OpSlot;
    pub use crate::domain::{CloseFailures, OfiDomain};
    pub use crate::endpoint::{
        EndpointAnchor, EndpointOption, EndpointPeer, OfiEndpoint, OfiOpenError, OfiOpenStep,
    };
    pub use crate::errno::OfiErrno;
    pub use crate::info::{NicAttributes, OfiHints, OfiInfo, query_infos};
    pub use crate::lease::{KeyLeases, LeaseError};
    pub use crate::post::{PayloadSource, PostOptions, SubmitOutcome};
    pub use crate::provider_grant::{CallExclusion, OrderGuarantees, ProviderGrant, SizeLimits};
    pub use crate::queue::{
        CompletionEntry, CompletionFormat, FailedOperation, OfiQueue, QueueRead, QueueWants,
    };
    pub use crate::region::{
        LocalSlice, MemoryIface, MrBound, MrDisabled, MrEnabled, MrRequest, MrScope, OfiRegisterError, RKey,
        RegisterStep, RemotePlace, register_memory,
    };
    pub use crate::rights::{LocalUse, MemoryDuty, MemoryRights};
    pub use crate::role::{ControlTraffic, EndpointRole, PayloadTraffic};
}
