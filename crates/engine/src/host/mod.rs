//! The machine this process runs on, for engines that are not simulated.

mod dial;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod lobby;
mod local;
mod machine;
mod oob;
mod reach;
mod remote;
mod strand;

pub use machine::UnixHost;
pub use oob::{UnixListener, UnixOob, UnixStream};
pub use reach::{ControlReach, LocalUsers};
