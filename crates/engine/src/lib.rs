//! The engine: one loop that drives Trunkline's protocols over any [`Fabric`](trunkline_fabric::Fabric).
//!
//! Front ends call [`Engine`]; the simulator calls the very same. A *comm* is one directed connection of two
//! processes; its link, completion queue and routing state form a lane that one thread at a time may use. Nothing
//! here knows which fabric it runs on: capabilities became a plan when the comm was connected.
#![forbid(unsafe_code)]

mod accept;
mod announce;
mod bounces;
mod comm;
mod connect;
mod control;
#[cfg(test)]
mod control_tests;
mod engine;
mod error;
mod failover;
mod fins;
mod flight;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod groups;
mod helper;
pub mod host;
mod id;
mod lane;
#[cfg(test)]
mod lane_tests;
mod left;
mod lifecycle;
mod linger;
mod links;
mod mailbox;
mod matched;
mod member;
mod member_key;
mod news;
mod nics;
mod outgoing;
mod params;
mod part;
mod path;
mod pieces;
mod plan;
#[cfg(any(test, feature = "fuzzing"))]
mod planted;
mod proofs;
mod rails;
mod records;
mod recv;
mod refusal;
mod regions;
mod registering;
mod request;
#[cfg(test)]
mod request_tests;
mod rest;
mod revoke;
mod ride;
pub mod rma;
mod route;
mod run;
mod seen;
mod send;
mod send_tables;
mod slab;
mod status;
mod stripe;
mod sync;
mod turns;
#[cfg(test)]
mod turns_tests;
mod wait;
mod watch;

pub use engine::{Base, Engine, RecvBuf};
pub use error::{CommFault, Error, in_full};
pub use groups::Riding;
pub use helper::{Helper, Tended};
pub use id::{CommId, ListenId, MrId, RequestId};
pub use member_key::{MemberKey, ProofPurpose};
pub use nics::Nics;
pub use params::{
    Alias, ExecuteBy, FabricName, Found, MatchBy, OfiParams, ParamInfo, Params, ParamsError, SharedHeap,
    SharingParams, SoftCopy, SoftParams, TABLE,
};
pub use status::{PageError, read_head, read_status};
pub use trunkline_proto::counters::Counters;
pub use trunkline_proto::mutant::Mutant;
pub use trunkline_proto::pool::config::Traffic;
pub use turns::Turns;
pub use wait::{Pause, Waiting};
