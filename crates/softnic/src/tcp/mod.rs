//! The wire to another host: frames over one TCP connection per link. The queue pair drives it as it drives a ring, and
//! the same code executes the requests of frames; only the transport of bytes differs.
//!
//! A frame is a head of 64 bytes and its payload ([docs/wire.md](../../../../docs/wire.md), "Frames over TCP"). Ready
//! frames are sent with one system call, large payload straight from its memory. Received large payload is read
//! straight to its destination. Nothing here blocks, starts a thread, or resolves host names.

mod events;
mod frame;
mod health;
mod listener;
mod receive;
mod send;
mod socket;
mod stream;

pub(crate) use events::SocketEvents;
#[cfg(feature = "fuzzing")]
pub(crate) use frame::{BYTES as FRAME_BYTES, FrameBody, TcpFrame};
pub(crate) use listener::{DialToken, LinkListener, STRANGER_TIME};
#[cfg(feature = "fuzzing")]
pub(crate) use listener::{HELLO, hello_bytes, parse_hello};
pub(crate) use receive::progress_stream;
pub(crate) use send::transmit_frames;
pub(crate) use stream::{LinkStream, PeerEnd};
