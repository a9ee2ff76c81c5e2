//! A stream of frames between the parent and a rank: a socket pair where the parent started the rank, TCP where another
//! launcher did. Used by `launch` and `rank`; it knows no message.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// A peer that takes nothing for so long is lost.
const WRITE_TIME: Duration = Duration::from_secs(30);

/// Both directions of a stream, which two threads may use.
pub struct RankChannel {
    pub(crate) reader: Box<dyn Read + Send>,
    pub(crate) writer: Box<dyn Write + Send>,
}

impl RankChannel {
    /// Over one end of a socket pair.
    ///
    /// # Errors
    /// When the system cannot copy the descriptor.
    pub fn from_unix(stream: UnixStream) -> io::Result<Self> {
        Ok(Self { reader: Box::new(stream.try_clone()?), writer: Box::new(stream) })
    }

    /// Over TCP, to a process that is known to belong to the job. The stream must block.
    ///
    /// # Errors
    /// When the system cannot copy the descriptor or set its limits.
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
