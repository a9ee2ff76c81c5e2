//! A stream of frames between the parent and a rank: a socket pair if the parent started the rank, TCP if another
//! launcher did. Used by `launch` and `rank`; it knows no message.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// How long a write may be blocked before the peer counts as lost.
const WRITE_TIME: Duration = Duration::from_secs(30);

/// Both directions of a stream, for use by two threads.
pub struct RankChannel {
    pub(crate) reader: Box<dyn Read + Send>,
    pub(crate) writer: Box<dyn Write + Send>,
}

impl RankChannel {
    /// Makes a channel of one end of a socket pair.
    ///
    /// # Errors
    /// If the system cannot duplicate the descriptor.
    pub fn from_unix(stream: UnixStream) -> io::Result<Self> {
        Ok(Self { reader: Box::new(stream.try_clone()?), writer: Box::new(stream) })
    }

    /// Makes a channel of a TCP stream to a process that is known to belong to the job. The stream must be blocking.
    ///
    /// # Errors
    /// If the system cannot duplicate the descriptor or set its limits.
    pub fn from_tcp(stream: TcpStream) -> io::Result<Self> {
        stream.set_write_timeout(Some(WRITE_TIME))?;
        stream.set_nodelay(true)?;
        Ok(Self { reader: Box::new(stream.try_clone()?), writer: Box::new(stream) })
    }
}

impl std::fmt::Debug for RankChannel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Channel")
    }
}
