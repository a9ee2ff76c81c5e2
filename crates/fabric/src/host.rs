//! What no network gives: time, random numbers, and control streams between processes. The real one asks the
//! operating system; the simulator's comes from a seed.

use std::io;
use std::sync::Arc;

use trunkline_mem::PublishedPage;
use trunkline_proto::time::Instant;

use crate::{OobError, PassedFd};

/// The machine a process runs on.
pub trait Host: Send + Sync + 'static {
    /// Its control streams.
    type Oob: OobTransport;

    /// Now, by a clock that never goes back.
    fn now(&self) -> Instant;

    /// Sixteen unpredictable bytes.
    fn random_bytes(&self) -> [u8; 16];

    /// The maker of control streams.
    fn oob(&self) -> &Self::Oob;

    /// Tells a person something, once, where it is first known. Never called for each message.
    fn log(&self, level: LogLevel, text: &str);

    /// A page of `bytes` bytes that other processes of this machine can find and read; `None` where there are none,
    /// as in a simulator. Asked once, by an engine that starts.
    ///
    /// # Errors
    /// When the system refuses.
    fn publish_page(&self, bytes: usize) -> io::Result<Option<HostPage>> {
        let _ = bytes;
        Ok(None)
    }
}

/// A page for others to read, and what a reader asks first.
#[derive(Clone, Debug)]
pub struct HostPage {
    /// The page, all zeros.
    pub page: Arc<PublishedPage>,
    /// The number of this process, as it sees itself.
    pub pid: u32,
    /// The time of day: nanoseconds since 1970.
    pub unix_ns: u64,
}

/// How much a log line matters.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum LogLevel {
    /// Something went wrong and somebody should know.
    Warn,
    /// What was found and chosen.
    Info,
}

/// Where a listener can be reached: at most [`OobAddress::MAX`] opaque bytes.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct OobAddress(pub Vec<u8>);

impl OobAddress {
    /// Most bytes of an address.
    pub const MAX: usize = 48;
}

/// Makes control streams: reliable, ordered, and closed by the kernel when the peer dies. No call blocks.
pub trait OobTransport: Send + Sync + 'static {
    /// Accepts streams.
    type Listener: OobListener<Stream = Self::Stream>;
    /// One stream.
    type Stream: OobStream;

    /// Listens at a new address.
    ///
    /// # Errors
    /// When the system refuses.
    fn listen(&self) -> Result<Self::Listener, OobError>;

    /// Starts a stream to a listener; frames may be sent at once.
    ///
    /// # Errors
    /// [`OobError::Closed`] if nobody listens there.
    fn connect(&self, address: &OobAddress) -> Result<Self::Stream, OobError>;
}

/// Accepts control streams.
pub trait OobListener: Send + 'static {
    /// What it makes.
    type Stream: OobStream;

    /// Where it listens.
    fn listen_address(&self) -> OobAddress;

    /// The next stream, if one waits.
    ///
    /// # Errors
    /// When the system refuses.
    fn accept(&mut self) -> Result<Option<Self::Stream>, OobError>;
}

/// One message of a control stream, and the descriptor that came with it.
#[derive(Debug)]
pub struct OobFrame {
    /// The message, at most [`OobFrame::MAX`] bytes.
    pub bytes: Vec<u8>,
    /// A descriptor that was handed over. A stream that returns one names the process at its other end as the sender, whatever the frame said
    /// when it was sent.
    pub fd: Option<PassedFd>,
}

impl OobFrame {
    /// Most bytes of a frame.
    pub const MAX: usize = 4096;
}

/// Network connections of one control stream that both ends have joined.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct StreamConnections {
    /// Those that carry it now.
    pub now: usize,
    /// All that have carried it so far.
    pub ever: u64,
}

/// One control stream.
pub trait OobStream: Send + 'static {
    /// Sends a frame, or queues it if the peer does not read right now.
    ///
    /// # Errors
    /// [`OobError::Overflow`] if too much is queued; others mean the stream is gone.
    fn send(&mut self, frame: OobFrame) -> Result<(), OobError>;

    /// The next frame, if a whole one is there; also sends what is queued.
    ///
    /// # Errors
    /// [`OobError::Closed`] once the peer is gone and everything it sent was returned. [`OobError::Merged`] from an
    /// accepted stream, before any frame, that turns out to be a part of another one; it is to be dropped.
    fn recv(&mut self) -> Result<Option<OobFrame>, OobError>;

    /// The network connections that carry it; `None` where it is carried by none.
    fn connection_counts(&self) -> Option<StreamConnections> {
        None
    }

    /// Whether its other end is on this host, as descriptors that come over it prove.
    fn is_local(&self) -> bool {
        false
    }

    /// The number, here, of the process at its other end, by the system's word and not by that process's; 0 if it has none here.
    ///
    /// `None`: nobody says.
    fn peer_pid(&self) -> Option<u32> {
        None
    }
}
