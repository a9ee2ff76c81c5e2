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
#[cfg(any(test, feature = "fuzzing"))]
mod planted;
mod pool;
pub mod rma;
mod status;
mod sync;
mod turns;
#[cfg(test)]
mod turns_tests;
mod wait;

pub use control::member_key::{MemberKey, ProofPurpose};
pub use engine::{Base, Engine, RecvBuf};
pub use error::{CommFault, Error, in_full};
pub use helper::{Helper, Tended};
pub use id::{CommId, ListenId, MrId, RequestId};
pub use nics::Nics;
pub use params::{
    Alias, ExecuteBy, FabricName, Found, MatchBy, OfiParams, ParamInfo, Params, ParamsError, SharedHeap,
    SharingParams, SoftCopy, SoftParams, TABLE,
};
pub use pool::groups::Riding;
pub use status::{PageError, read_head, read_status};
pub use trunkline_proto::counters::Counters;
pub use trunkline_proto::mutant::Mutant;
pub use trunkline_proto::pool::config::Traffic;
pub use turns::Turns;
pub use wait::{Pause, Waiting};
