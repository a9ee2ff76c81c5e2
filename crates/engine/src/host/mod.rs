//! The machine this process runs on, for engines that are not simulated.

mod local;
mod machine;
mod oob;
mod remote;

pub use machine::{Reach, UnixHost};
pub use oob::{UnixListener, UnixOob, UnixStream};
