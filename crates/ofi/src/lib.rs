//! NICs through libfabric, which is opened at run time: EFA, Slingshot, and other NICs that it has a provider for.
//!
//! A front end makes an [`OfiFabric`] (`trunkline-runtime`), and the engine drives its rails ([`OfiRail`]) through the contract. Below is a typed layer
//! ([`typed`]), where payload and the control path have different types ([`typed::EndpointRole`]), so that a descriptor or key of one cannot be passed to an
//! endpoint of the other. The typed layer knows no rails and no links of the contract. Nothing here selects peers. docs/libfabric.md is for users.
//!
//! # Files, in reading order
//!
//! - `library.rs`, `info.rs`, `auto.rs`, `profile.rs`, `fabric.rs`: libfabric, the offers of providers, the selected NICs.
//! - `domain.rs`, `endpoint.rs`, `queue.rs`, `region.rs`, `rights.rs`, `role.rs`, `post.rs`, `lease.rs`, `provider_grant.rs`: the typed layer.
//! - `nic.rs`, `rail.rs`, `link.rs`, `connect.rs`, `ops.rs`, `heads.rs`, `poll.rs`, `lingering_ops.rs`: rails and links.
//! - `register.rs`, `cache.rs`, `gpudirect.rs`, `flusher.rs`, `trial.rs`, `pages.rs`: memory, shared registrations, flushes, tested capabilities.
//!
//! # One write, from post to the completion
//!
//! ```text
//!  OfiRail::post -> prepare_op: the provider's operation, its bytes, its kind; no free credit: Busy
//!                   inject_op: copied bytes, no operation waits, and neither arrival nor refusal must be reported
//!                   else begin_op: submitted with a context, or queued at the link if the provider has no room
//!  OfiRail::poll -> waiting operations are submitted again, the provider's queue is read
//!                   poll.rs: a context names link and place -> completion of the contract
//! ```
//!
//! # Rules
//!
//! - *Roles are types* (`role.rs`). Endpoints, peers, registrations, keys and local bytes are of `PayloadTraffic` or of `ControlTraffic`, and are compatible
//!   only within a role. Some NICs bind a registration to one endpoint; there only hardware detects a wrong one, and not all of it does.
//! - *The state of a registration is a type* (`region.rs`). One that is not enabled has neither key nor bytes to name. Whether it belongs to the domain or to
//!   an endpoint is decided when the endpoint is opened ([`typed::OfiEndpoint::mr_scope`]); after that both are used alike.
//! - *Users own their dependencies.* A registration owns its endpoint, that owns its queue, and that owns the domain. Fields are dropped in their order, so
//!   that no close is refused. A refused close is counted (`OfiDomain::close_failures`).
//! - *Memory has the rights of its duty* (`rights.rs`). Memory that no peer may reach has no key, whatever the provider reports.
//! - *Keys* that this crate chooses (`lease.rs`) are random and distinct in a domain, and are free again only once the provider has closed their
//!   registrations.
//! - *Locks* (`domain_lock.rs`) are used only where the granted threading model requires them. By their types, a queue and its endpoints belong to one thread
//!   at a time.
//! - *Grants* of a provider are read once (`provider_grant.rs`). Where it wants memory to have its pages before registration, they are made (`pages.rs`).
//! - *Capabilities are tested, not believed* (`trial.rs`). An endpoint of its own writes to itself with data, and reads memory of GPUs back that a driver has
//!   lent. Providers whose software is known are not tested. The offer that includes memory of devices (`FI_HMEM`) replaces the other only where it reaches
//!   some, as it may give up something for it.
//! - *Flushes* (`flusher.rs`) use an endpoint and a queue for nothing else, made with a rail's first flush. So they work when a link is in error, and affect
//!   none of its operations. A failed flush ends its link.
//! - *Without a named fabric* (`auto.rs`), devices are detected in `/sys`, because opening libfabric takes too long to do it without need.
//! - *Signal handlers* that libraries linked to Debian's libfabric install when it is opened are restored (`handlers.rs`).
//! - *Operations without a completion* do not report when their memory is free, unless completions are ordered, which few providers promise. So callers that
//!   need free memory request a completion, or inject.
//! - *Shared registrations* (`cache.rs`) serve payload of users, never bounce buffers and mailboxes. A registration stays open when one of its users releases
//!   it. So the barrier against a peer's late writes is the end of the rail's endpoints, which end with its last link (`close_if_idle`). A registration that
//!   is bound to endpoints is closed at once when it is retired and its rail has no link left. An owner that knows of frees calls
//!   [`OfiFabric::forget_memory`].

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
