//! The wire to another host: frames over one TCP connection a link. The queue pair drives it as it drives a ring, and
//! what a frame asks for is executed by the same code; only how bytes get here and there is different.
//!
//! A frame is a head of 64 bytes and its payload ([docs/wire.md](../../../../docs/wire.md), "Frames over TCP"). What is
//! ready goes out in one system call, large payload straight from its memory; large payload that comes in is read
//! straight to where it belongs. Nothing here blocks, starts a thread, or looks at names of hosts.

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
