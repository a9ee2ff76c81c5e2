//! The machine this process runs on, for engines that are not simulated.

mod unix;

pub use unix::{UnixHost, UnixListener, UnixOob, UnixStream};
