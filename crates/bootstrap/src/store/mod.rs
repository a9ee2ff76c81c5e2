//! The store of a job: a star of TCP streams with rank 0 in the middle. docs/wire.md has its bytes.
//!
//! Used by `bootstrap`. No thread: what all give to all goes round while all are inside the same call.

mod center;
mod frame;
mod member;

pub(crate) use center::{Listener, MeetError, meet};
#[cfg(feature = "fuzzing")]
pub(crate) use frame::{Answer, Challenge, Hello, Status};
pub(crate) use frame::{GATHERED_BYTES_MAX, Head, Kind, gathered, split};
pub(crate) use member::{JoinRefused, join};

pub use frame::GIVEN_BYTES_MAX;

use std::io;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::clock;

/// Idle time after which the kernel asks whether the other host is still there, and how often it asks.
const KEEPALIVE: Duration = Duration::from_secs(5);
const KEEPALIVE_ASKS: u32 = 3;

/// Sets a stream up: small frames at once, a lost host noticed, no call that blocks.
fn prepare(stream: &TcpStream) -> io::Result<()> {
    use rustix::net::sockopt;
    stream.set_nonblocking(true)?;
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, KEEPALIVE)?;
    sockopt::set_tcp_keepintvl(stream, KEEPALIVE)?;
    sockopt::set_tcp_keepcnt(stream, KEEPALIVE_ASKS)?;
    Ok(())
}

/// Writes a frame.
pub(crate) fn send(stream: &TcpStream, head: Head, body: &[u8], deadline: Instant) -> io::Result<()> {
    clock::write_all(stream, &head.encode(), deadline)?;
    clock::write_all(stream, body, deadline)
}

/// Reads a frame whose body has at most so many bytes.
pub(crate) fn receive(stream: &TcpStream, most: usize, deadline: Instant) -> io::Result<(Head, Vec<u8>)> {
    let mut bytes = [0; Head::BYTES];
    clock::read_exact(stream, &mut bytes, deadline)?;
    let broken = || io::Error::new(io::ErrorKind::InvalidData, "what came is no frame of this protocol");
    let head = Head::decode(&bytes).ok_or_else(broken)?;
    let length = head.length as usize;
    if length > most {
        return Err(broken());
    }
    let mut body = vec![0; length];
    clock::read_exact(stream, &mut body, deadline)?;
    Ok((head, body))
}
