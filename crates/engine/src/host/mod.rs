//! The machine this process runs on, for engines that are not simulated.

mod accept_queue;
mod control_connection;
mod dial;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod local;
mod oob;
mod reach;
mod remote;
mod unix_host;

pub use oob::{UnixListener, UnixOob, UnixStream};
pub use reach::{ControlReach, LocalUsers};
pub use unix_host::UnixHost;
