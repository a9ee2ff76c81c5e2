//! The services that no network provides: time, random numbers, and control streams between processes. The engine calls them. The real
//! implementation uses the operating system; the simulator's derives all from a seed.

use std::io;
use std::sync::Arc;

use trunkline_mem::PublishedPage;
use trunkline_proto::time::Instant;

use crate::{OobError, PassedFd};

/// The machine a process runs on.
pub trait Host: Send + Sync + 'static {
    /// Its control streams.
    type Oob: OobTransport;

    /// Returns the time of a monotonic clock.
    fn now(&self) -> Instant;

    /// Returns sixteen unpredictable bytes.
    fn random_bytes(&self) -> [u8; 16];

    /// Returns the transport that makes control streams.
    fn oob(&self) -> &Self::Oob;

    /// Logs a line for the user, once, where the fact is first known. Never called per message.
    fn log(&self, level: LogLevel, text: &str);

    /// Publishes a page of `bytes` bytes that other processes of this machine can find and read. Returns `None` where pages are not supported, as in a
    /// simulator. Called once, when an engine starts.
    ///
    /// # Errors
    /// When the system refuses.
    fn publish_page(&self, bytes: usize) -> io::Result<Option<HostPage>> {
        let _ = bytes;
        Ok(None)
    }
}

/// A page for other processes to read, and the facts that its readers need first.
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
    /// A failure that the user should know of.
    Warn,
    /// Findings and decisions.
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

    /// Starts a stream to a listener; frames may be sent immediately.
    ///
    /// # Errors
    /// [`OobError::Closed`] if that address has no listener.
    fn connect(&self, address: &OobAddress) -> Result<Self::Stream, OobError>;
}

/// Accepts control streams.
pub trait OobListener: Send + 'static {
    /// The type of its streams.
    type Stream: OobStream;

    /// Returns the address of the listener.
    fn listen_address(&self) -> OobAddress;

    /// Returns the next pending stream, if any.
    ///
    /// # Errors
    /// When the system refuses.
    fn accept(&mut self) -> Result<Option<Self::Stream>, OobError>;
}

/// One message of a control stream, and the descriptor that was passed with it.
#[derive(Debug)]
pub struct OobFrame {
    /// The message, at most [`OobFrame::MAX`] bytes.
    pub bytes: Vec<u8>,
    /// A descriptor that was passed with the frame. A stream that returns one sets the process at its other end as the sender, whatever sender the
    /// frame had when it was sent.
    pub fd: Option<PassedFd>,
}

impl OobFrame {
    /// Most bytes of a frame.
    pub const MAX: usize = 4096;
}

/// Network connections of one control stream that both ends have joined.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct StreamConnections {
    /// Connections that carry it now.
    pub now: usize,
    /// Number of connections that have carried it so far.
    pub ever: u64,
}

/// One control stream.
pub trait OobStream: Send + 'static {
    /// Sends a frame, or queues it while the peer does not read.
    ///
    /// # Errors
    /// [`OobError::Overflow`] if too much is queued; other errors mean that the stream has ended.
    fn send(&mut self, frame: OobFrame) -> Result<(), OobError>;

    /// Returns the next frame, if a whole one has arrived; also sends the queued frames.
    ///
    /// # Errors
    /// [`OobError::Closed`] once the peer has ended and everything it sent was returned. [`OobError::Merged`] from an
    /// accepted stream that turns out to be a part of another one. It is returned before any frame, and the caller drops the stream.
    fn recv(&mut self) -> Result<Option<OobFrame>, OobError>;

    /// Returns the network connections that carry it; `None` if no network connection does.
    fn connection_counts(&self) -> Option<StreamConnections> {
        None
    }

    /// Whether its other end is on this host, which a descriptor received over it proves.
    fn is_local(&self) -> bool {
        false
    }

    /// Returns the number, in this process's PID namespace, of the process at its other end; 0 if it has no number here. The number is from the
    /// operating system, not from that process.
    ///
    /// `None`: the system does not name the process.
    fn peer_pid(&self) -> Option<u32> {
        None
    }
}
