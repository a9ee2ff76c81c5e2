//! A host for NCCL network plugins: it loads any of them and drives it as NCCL's proxy does.
//!
//! Used by the benchmark command and by tests. It loads a plugin by `dlopen` and calls only the functions in the table that the plugin exports (`ncclNetPlugin_v6`
//! to `ncclNetPlugin_v12`), so that every plugin is measured in the same way. `trunkline-sys`, which has the C structs, is the only crate of this project that it
//! depends on. It never falls back from the requested plugin to another one. The layers, from the plugin up:
//!
//! - `plugin`, `abi`, `comm`, `properties`: a loaded plugin and its objects, one interface over seven versions;
//! - `schedule`: a collective as a list of steps, pure;
//! - `executor`, `worker`, `wait`: the progress thread and the service thread of a communicator, as NCCL's proxy has them;
//! - `data`, `reduce`, `buffer`, `element`, `verify`: memory, test data, arithmetic;
//! - `device`: the device of a rank, fused from several if requested;
//! - `rank`, `launch`, `rendezvous`: rank processes, and the parent that starts and watches them;
//! - `channel`: the stream of frames between a rank and the parent, not a channel of NCCL;
//! - `left_files`: files that a plugin leaves, such as traces, which are sent to the parent.
//!
//! One collective: the parent starts the ranks (`launch`), which open the plugin and connect (`rank`, `links`). The steps are made by `schedule`. The progress
//! thread posts and tests them (`executor`). In verified runs, a rank checks every byte (`verify`) before it reports its result, one row of the table.

mod abi;
mod buffer;
mod channel;
mod collective;
mod comm;
mod data;
mod device;
mod element;
mod executor;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod launch;
mod left_files;
mod links;
mod log;
mod p2p;
mod plugin;
mod properties;
mod rank;
mod reduce;
mod rendezvous;
mod schedule;
mod types;
mod verify;
mod wait;
mod worker;

pub use abi::{PluginCallError, VERSIONS, result_name};
pub use buffer::{HostBuffer, MapError, MemoryKind};
pub use channel::RankChannel;
pub use collective::{Collective, ElementCounts};
pub use comm::{ListenComm, NetHandle, NetMr, NetRecvPart, NetRequest, PluginContext, RecvComm, SendComm};
pub use device::DeviceSelection;
pub use launch::{RankCluster, RankJob, RankLaunchError, RankOrigin, RowResult};
pub use left_files::{KeptFiles, LeftFiles};
pub use plugin::{LoadError, NetPlugin};
pub use properties::NetProperties;
pub use rank::{LocalOverrides, ParentLoss, rank_entry, serve_parent};
pub use rendezvous::{CollectiveCase, P2pCase, P2pMeasured, PluginReport};
pub use types::{DataType, RedOp, UnknownName};
