//! The client of PMI-1: distributes one value of rank 0 to all processes. Called when a job is joined; starts no
//! thread.

use std::io;
use std::net::TcpStream;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use thiserror::Error;

use super::PmiServer;
use super::line::{LINE_BYTES_MAX, PmiLine};
use crate::{address, deadline_io};

/// The key of rank 0's address.
const KEY: &str = "trunkline-store";
/// Longest connection attempt to one address of the launcher.
const CONNECT_TIME: Duration = Duration::from_secs(10);

/// A failure of PMI-1.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PmiError {
    /// The descriptor is not open.
    #[error(
        "PMI_FD={fd} is not an open descriptor; start the program directly by the launcher, or unset PMI_FD"
    )]
    Closed {
        /// Its number.
        fd: i32,
    },
    /// The launcher's port cannot be reached.
    #[error("cannot reach the launcher at PMI_PORT={host}:{port}: {source}")]
    Connect {
        /// Its host.
        host: String,
        /// Its port.
        port: u16,
        /// The cause.
        source: io::Error,
    },
    /// The stream to the launcher failed.
    #[error("the PMI connection to the launcher failed: {0}")]
    Io(#[from] io::Error),
    /// The launcher's reply is not the expected one.
    #[error("invalid PMI reply {got:?} of the launcher; expected {expected}")]
    Answer {
        /// The line that was received.
        got: String,
        /// The expected reply.
        expected: &'static str,
    },
}

/// A session with the launcher, from `init` on.
#[derive(Debug)]
pub(crate) struct PmiClient {
    fd: OwnedFd,
    /// Bytes received after the last line.
    ahead: Vec<u8>,
    deadline: Instant,
    space: String,
    /// Rank and size, if the server sent them.
    pub(crate) place: Option<(usize, usize)>,
}

impl PmiClient {
    /// Connects to the launcher and begins the session.
    pub(crate) fn open(server: &PmiServer, deadline: Instant) -> Result<Self, PmiError> {
        let (fd, id) = match server {
            PmiServer::Fd(number) => (clone_inherited_fd(*number)?, None),
            PmiServer::Port { host, port, id } => {
                let connected = connect_host(host, *port, deadline);
                let host = host.clone();
                let port = *port;
                (connected.map_err(|source| PmiError::Connect { host, port, source })?.into(), Some(*id))
            }
        };
        let mut client = Self { fd, ahead: Vec::new(), deadline, space: String::new(), place: None };
        if let Some(id) = id {
            client.negotiate_rank(id)?;
        }
        client.send_command("cmd=init pmi_version=1 pmi_subversion=1", "response_to_init")?;
        let line = client.send_command("cmd=get_my_kvsname", "my_kvsname")?;
        client.space = line.get("kvsname").unwrap_or_default().to_owned();
        Ok(client)
    }

    /// Sends the process's id, if no descriptor identifies it; the server replies with rank and size.
    fn negotiate_rank(&mut self, id: usize) -> Result<(), PmiError> {
        self.send_command(&format!("cmd=initack pmiid={id}"), "initack")?;
        let mut rank = None;
        let mut size = None;
        while rank.is_none() || size.is_none() {
            let line = self.read_reply("set")?;
            rank = rank.or(line.parse_number("rank"));
            size = size.or(line.parse_number("size"));
        }
        // The server always sends a third line, about debugging.
        self.read_reply("set")?;
        self.place = rank.zip(size);
        Ok(())
    }

    /// Puts rank 0's value, and returns it at every process.
    pub(crate) fn hand_round(&mut self, mine: Option<&str>) -> Result<String, PmiError> {
        if let Some(value) = mine {
            self.send_command(
                &format!("cmd=put kvsname={} key={KEY} value={value}", self.space),
                "put_result",
            )?;
        }
        self.send_command("cmd=barrier_in", "barrier_out")?;
        let line = self.send_command(&format!("cmd=get kvsname={} key={KEY}", self.space), "get_result")?;
        Ok(line.get("value").unwrap_or_default().to_owned())
    }

    /// Ends the session; a launcher treats a process that exits without this as crashed.
    pub(crate) fn finalize_session(mut self) -> Result<(), PmiError> {
        self.send_command("cmd=finalize", "finalize_ack").map(drop)
    }

    fn send_command(&mut self, question: &str, answer: &'static str) -> Result<PmiLine, PmiError> {
        deadline_io::write_all(&self.fd, format!("{question}\n").as_bytes(), self.deadline)?;
        self.read_reply(answer)
    }

    fn read_reply(&mut self, command: &'static str) -> Result<PmiLine, PmiError> {
        let text = self.read_line()?;
        match PmiLine::parse(&text) {
            Some(line) if line.command() == command && line.get("rc").is_none_or(|rc| rc == "0") => Ok(line),
            _ => Err(PmiError::Answer { got: text, expected: command }),
        }
    }

    fn read_line(&mut self) -> Result<String, PmiError> {
        loop {
            if let Some(end) = self.ahead.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.ahead.drain(..=end).collect();
                return Ok(String::from_utf8_lossy(&line[..end]).into_owned());
            }
            if self.ahead.len() >= LINE_BYTES_MAX {
                let got = String::from_utf8_lossy(&self.ahead[..64]).into_owned();
                return Err(PmiError::Answer { got, expected: "a line of at most 1024 bytes" });
            }
            let mut bytes = [0; LINE_BYTES_MAX];
            let read = deadline_io::read_some(&self.fd, &mut bytes, self.deadline)?;
            self.ahead.extend_from_slice(&bytes[..read]);
        }
    }
}

/// Connects to the first of a host's addresses that accepts.
fn connect_host(host: &str, port: u16, deadline: Instant) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in address::resolve_host(host, std::iter::once(port))? {
        let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        match TcpStream::connect_timeout(&address, left.min(CONNECT_TIME)) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Duplicates a descriptor that the launcher left open for this process.
fn clone_inherited_fd(number: i32) -> Result<OwnedFd, PmiError> {
    let open = std::fs::symlink_metadata(format!("/proc/self/fd/{number}")).is_ok();
    if number < 0 || !open {
        return Err(PmiError::Closed { fd: number });
    }
    // SAFETY: the descriptor is open, as checked above. The launcher passed it to this process for this use, and no
    // other code closes it.
    let given = unsafe { BorrowedFd::borrow_raw(number) };
    given.try_clone_to_owned().map_err(|_| PmiError::Closed { fd: number })
}
