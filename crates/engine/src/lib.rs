//! The engine: one loop that drives Trunkline's protocols over any [`Fabric`](trunkline_fabric::Fabric).
//!
//! Front ends call [`Engine`]; the simulator calls the very same. A *comm* is one directed connection of two
//! processes; its link, completion queue and routing state form a lane that one thread at a time may use. Nothing
//! here knows which fabric it runs on: capabilities became a plan when the comm was connected.
#![forbid(unsafe_code)]

mod comm;
mod control;
mod engine;
mod error;
#[cfg(test)]
mod flood_host;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod helper;
pub mod host;
mod id;
mod lane;
#[cfg(test)]
mod lane_tests;
mod link;
mod memory;
mod nics;
mod params;
mod pool;
pub mod rma;
mod status;
mod sync;
mod turns;
#[cfg(test)]
mod turns_tests;
mod wait;

pub use control::member_key::{MemberKey, ProofPurpose};
pub use engine::{Engine, OffsetBase, RecvBuf};
pub use error::{CommFault, EngineError, in_full};
pub use helper::{HelperRound, HelperThread};
pub use id::{CommId, ListenId, MrId, RequestId};
pub use nics::CommNics;
pub use params::{
    EngineParams, ExecuteBy, FabricName, MatchBy, OfiParams, ParamAlias, ParamRow, ParamSetting, ParamsError,
    SharedHeap, SharingParams, SoftCopy, SoftParams, TABLE,
};
pub use pool::groups::SharingUsage;
pub use status::{StatusPageError, read_head, read_status};
pub use trunkline_proto::counters::Counters;
pub use trunkline_proto::pool::config::TrafficHint;
pub use turns::ExecutorLock;
pub use wait::{BackoffStep, RestMethod, WaitBackoff, WaitPolicy};
