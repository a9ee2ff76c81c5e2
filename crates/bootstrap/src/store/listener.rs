//! Rank 0's side of the store: listens, requests a proof from each peer that connects, and keeps the members.
//!
//! Unauthenticated peers may connect at will: each occupies one of a bounded number of slots for a bounded time, and
//! learns only a nonce.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use trunkline_proto::reserve::{OutOfMemory, try_collect, try_vec};

use super::frame::{JoinStatus, StoreAnswer, StoreChallenge, StoreHello};
use crate::deadline_io;
use crate::secret::{self, JobSecret};

/// Connections without a proof, at most.
const PENDING_MAX: usize = 256;
/// How long each of them may take.
const PROOF_TIME: Duration = Duration::from_secs(5);
/// How long rank 0 waits for room in the send buffer of a socket that was just opened.
const ANSWER_TIME: Duration = Duration::from_secs(1);
/// How long rank 0 does not poll its listener after the system had no descriptor or memory for a connection. The
/// connection stays in the listener's queue, which would otherwise end every poll at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Longest poll; the deadlines of unauthenticated peers need no more precision.
const SLEEP: Duration = Duration::from_millis(500);

/// Rank 0's listening socket.
#[derive(Debug)]
pub(crate) struct StoreListener(TcpListener);

impl StoreListener {
    /// Binds the first free port of `ports`; 0 is any free port. Without an address, it listens on all addresses of
    /// this host.
    pub(crate) fn bind(address: Option<IpAddr>, ports: impl Iterator<Item = u16>) -> io::Result<Self> {
        let mut last = io::Error::from(io::ErrorKind::InvalidInput);
        for port in ports {
            match bind_one(address, port) {
                Ok(listener) => {
                    listener.set_nonblocking(true)?;
                    return Ok(Self(listener));
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    pub(crate) fn local_port(&self) -> io::Result<u16> {
        Ok(self.0.local_addr()?.port())
    }
}

/// Binds one port in both address families, or in IPv4 alone if there is no IPv6.
fn bind_one(address: Option<IpAddr>, port: u16) -> io::Result<TcpListener> {
    match address {
        Some(address) => TcpListener::bind(SocketAddr::new(address, port)),
        None => match TcpListener::bind(SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port)) {
            Err(error) if error.kind() != io::ErrorKind::AddrInUse => {
                TcpListener::bind(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port))
            }
            bound => bound,
        },
    }
}

/// A connection without a proof.
struct PendingMember {
    stream: TcpStream,
    challenge: StoreChallenge,
    bytes: [u8; StoreHello::BYTES],
    filled: usize,
    until: Instant,
}

/// Waits until all of `size` processes have connected; returns their streams by rank, `None` for rank 0.
///
/// # Errors
/// A system error, a failed allocation, or at the deadline the members that have connected.
pub(crate) fn accept_members(
    listener: &StoreListener,
    secret: &JobSecret,
    size: usize,
    deadline: Instant,
) -> Result<Vec<Option<TcpStream>>, MeetError> {
    let mut members: Vec<Option<TcpStream>> = try_collect((0..size).map(|_| None))?;
    let mut pending: Vec<PendingMember> = try_vec(PENDING_MAX)?;
    let mut refused: Option<AcceptRefusal> = None;
    while members.iter().skip(1).any(Option::is_none) {
        let now = Instant::now();
        if now >= deadline {
            let refused = refused.map(|refusal| refusal.cause);
            return Err(MeetError::Missing { here: members, refused });
        }
        pending.retain(|one| one.until > now);
        let left = deadline.saturating_duration_since(now).min(SLEEP);
        let paused = refused.as_ref().map(|refusal| refusal.until.saturating_duration_since(now));
        let paused = paused.filter(|pause| !pause.is_zero());
        let accepts = pending.len() < PENDING_MAX && paused.is_none();
        wait_readable(accepts.then_some(listener), &pending, left.min(paused.unwrap_or(left)))?;
        if accepts {
            match accept_pending(listener, &mut pending) {
                Ok(true) => refused = None,
                Ok(false) => {}
                Err(cause) => refused = Some(AcceptRefusal { cause, until: Instant::now() + ACCEPT_PAUSE }),
            }
        }
        let mut at = 0;
        while let Some(one) = pending.get_mut(at) {
            match one.read_hello() {
                Ok(Some(hello)) => admit_member(pending.remove(at), &hello, secret, &mut members),
                Ok(None) => at += 1,
                Err(_) => drop(pending.remove(at)),
            }
        }
    }
    Ok(members)
}

/// Why the members did not all connect.
#[derive(Debug)]
pub(crate) enum MeetError {
    Io(io::Error),
    /// There is no memory for the members, or for the connections without a proof.
    Memory(OutOfMemory),
    /// The deadline has passed. `refused` is the error of the last accept, if the system had no resources for it.
    Missing {
        here: Vec<Option<TcpStream>>,
        refused: Option<io::Error>,
    },
}

/// The system had no descriptor or memory for a connection.
struct AcceptRefusal {
    cause: io::Error,
    /// When the next attempt is due.
    until: Instant,
}

impl From<OutOfMemory> for MeetError {
    fn from(error: OutOfMemory) -> Self {
        Self::Memory(error)
    }
}

impl From<io::Error> for MeetError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// Polls until a peer connects or sends, at most for `longest`.
fn wait_readable(
    listener: Option<&StoreListener>,
    pending: &[PendingMember],
    longest: Duration,
) -> Result<(), MeetError> {
    let mut polled = try_vec(1 + pending.len())?;
    polled.extend(listener.map(|listener| PollFd::from_borrowed_fd(listener.0.as_fd(), PollFlags::IN)));
    polled.extend(pending.iter().map(|one| PollFd::from_borrowed_fd(one.stream.as_fd(), PollFlags::IN)));
    match poll(&mut polled, Some(&deadline_io::to_timespec(longest))) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(MeetError::Io(error.into())),
    }
}

/// Accepts one connection, if one is waiting, and sends it the challenge; returns whether one was accepted. A later
/// failure ends only that connection.
///
/// # Errors
/// The system's error if it has no resources for a connection.
fn accept_pending(listener: &StoreListener, pending: &mut Vec<PendingMember>) -> io::Result<bool> {
    use io::ErrorKind::{ConnectionAborted, Interrupted, WouldBlock};
    #[cfg(test)]
    ACCEPTS.set(ACCEPTS.get() + 1);
    let stream = match listener.0.accept() {
        Ok((stream, _)) => stream,
        Err(error) if matches!(error.kind(), ConnectionAborted | Interrupted | WouldBlock) => {
            return Ok(false);
        }
        Err(error) => return Err(error),
    };
    let Ok(nonce) = secret::random_bytes() else { return Ok(true) };
    let challenge = StoreChallenge { nonce };
    let asked = super::configure_stream(&stream)
        .and_then(|()| deadline_io::write_all(&stream, &challenge.encode(), Instant::now() + ANSWER_TIME));
    if asked.is_ok() {
        let until = Instant::now() + PROOF_TIME;
        pending.push(PendingMember { stream, challenge, bytes: [0; StoreHello::BYTES], filled: 0, until });
    }
    Ok(true)
}

#[cfg(test)]
thread_local! {
    /// How often this thread called accept.
    pub(crate) static ACCEPTS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

impl PendingMember {
    /// Reads available bytes; returns the hello once it is complete.
    fn read_hello(&mut self) -> io::Result<Option<StoreHello>> {
        while self.filled < StoreHello::BYTES {
            match rustix::io::read(&self.stream, &mut self.bytes[self.filled..]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(read) => self.filled += read,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
        StoreHello::decode(&self.bytes).map(Some).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }
}

/// Admits a member, or sends it the reason for the refusal.
fn admit_member(
    one: PendingMember,
    hello: &StoreHello,
    secret: &JobSecret,
    members: &mut [Option<TcpStream>],
) {
    let rank = hello.rank as usize;
    let status = if !hello.verify_proof(secret, &one.challenge) {
        JoinStatus::WrongProof
    } else if hello.size as usize != members.len() {
        JoinStatus::OtherSize
    } else if rank == 0 || members.get(rank).is_none_or(|place| place.as_ref().is_some_and(is_alive)) {
        JoinStatus::RankTaken
    } else {
        JoinStatus::Welcome
    };
    let answer = StoreAnswer::new(secret, &one.challenge, hello, status);
    let told = deadline_io::write_all(&one.stream, &answer.encode(), Instant::now() + ANSWER_TIME);
    if status == JoinStatus::Welcome
        && told.is_ok()
        && let Some(place) = members.get_mut(rank)
    {
        *place = Some(one.stream);
    }
}

/// Whether a member's stream is still open; if it is not, the rank may connect again.
fn is_alive(stream: &TcpStream) -> bool {
    match stream.peek(&mut [0]) {
        Ok(read) => read > 0,
        Err(error) => error.kind() == io::ErrorKind::WouldBlock,
    }
}
