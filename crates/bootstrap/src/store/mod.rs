//! The store of a job: a star of TCP streams with rank 0 as its centre. docs/wire.md specifies its bytes.
//!
//! Used by `bootstrap`. It starts no thread: the data is exchanged while all processes are inside the same call.

mod frame;
mod listener;
mod member;

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use frame::StoreChallenge;
pub(crate) use frame::{
    GATHERED_BYTES_MAX, StoreFrameHeader, StoreFrameKind, decode_gathered, encode_gathered,
};
#[cfg(feature = "fuzzing")]
pub(crate) use frame::{JoinStatus, StoreAnswer, StoreHello};
#[cfg(test)]
pub(crate) use listener::ACCEPTS;
pub(crate) use listener::{MeetError, StoreListener, accept_members};
pub(crate) use member::{JoinRefused, join_center};

pub use frame::GIVEN_BYTES_MAX;

use std::io;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use trunkline_proto::reserve::{OutOfMemory, try_vec};

use crate::deadline_io;

/// Idle time before and between the kernel's keepalive probes, and the number of probes.
const KEEPALIVE: Duration = Duration::from_secs(5);
const KEEPALIVE_ASKS: u32 = 3;

/// Configures a stream: nonblocking, without Nagle's delay, and with keepalive to detect a lost host.
fn configure_stream(stream: &TcpStream) -> io::Result<()> {
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
pub(crate) fn send_frame(
    stream: &TcpStream,
    head: StoreFrameHeader,
    body: &[u8],
    deadline: Instant,
) -> io::Result<()> {
    deadline_io::write_all(stream, &head.encode(), deadline)?;
    deadline_io::write_all(stream, body, deadline)
}

/// Reads a frame whose body has at most `most` bytes.
pub(crate) fn receive_frame(
    stream: &TcpStream,
    most: usize,
    deadline: Instant,
) -> io::Result<(StoreFrameHeader, Vec<u8>)> {
    let head = receive_head(stream, most, deadline)?;
    Ok((head, receive_body(stream, head, deadline)?))
}

/// Reads the head of a frame whose body has at most `most` bytes. The caller reads or skips the body next.
pub(crate) fn receive_head(
    stream: &TcpStream,
    most: usize,
    deadline: Instant,
) -> io::Result<StoreFrameHeader> {
    let mut bytes = [0; StoreFrameHeader::BYTES];
    deadline_io::read_exact(stream, &mut bytes, deadline)?;
    let head = StoreFrameHeader::decode(&bytes).filter(|head| head.length as usize <= most);
    head.ok_or_else(|| {
        io::Error::new(io::ErrorKind::InvalidData, "the received bytes are not a frame of the store")
    })
}

/// Reads the body of a frame.
pub(crate) fn receive_body(
    stream: &TcpStream,
    head: StoreFrameHeader,
    deadline: Instant,
) -> io::Result<Vec<u8>> {
    let length = head.length as usize;
    // The peer chooses the length; a failed allocation fails this frame, and not the process.
    let mut body = try_vec(length).map_err(out_of_memory_error)?;
    body.resize(length, 0);
    deadline_io::read_exact(stream, &mut body, deadline)?;
    Ok(body)
}

/// Converts a failed allocation to an I/O error, with the number of bytes and the remedy.
fn out_of_memory_error(error: OutOfMemory) -> io::Error {
    io::Error::new(io::ErrorKind::OutOfMemory, error)
}

/// Reads the body of a frame and discards it.
pub(crate) fn skip_body(stream: &TcpStream, head: StoreFrameHeader, deadline: Instant) -> io::Result<()> {
    let mut scratch = [0; 4096];
    let mut left = head.length as usize;
    while left > 0 {
        let part = left.min(scratch.len());
        deadline_io::read_exact(stream, &mut scratch[..part], deadline)?;
        left -= part;
    }
    Ok(())
}
