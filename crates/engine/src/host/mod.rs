//! The machine this process runs on, for engines that are not simulated.

mod dial;
mod lobby;
mod local;
mod machine;
mod oob;
mod remote;
mod strand;

pub use machine::{Reach, UnixHost};
pub use oob::{UnixListener, UnixOob, UnixStream};
