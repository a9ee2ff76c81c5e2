//! A member's side of the store: looks for rank 0 at all places where it may be, and proves who it is.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use super::frame::{Answer, Challenge, Hello, Status};
use crate::clock;
use crate::secret::{self, Secret};

/// Longest wait for one address.
const CONNECT_TIME: Duration = Duration::from_secs(2);
/// Longest wait for the words of the handshake; rank 0 may be busy with many.
const ANSWER_TIME: Duration = Duration::from_secs(5);
/// Between two rounds over all addresses: rank 0 may not have begun.
const PAUSE_FIRST: Duration = Duration::from_millis(5);
const PAUSE_MAX: Duration = Duration::from_millis(250);

/// Rank 0 of this very job says no.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum JoinRefused {
    RankTaken,
    OtherSize,
}

/// Why one attempt led to nothing.
enum Attempt {
    Refused(JoinRefused),
    /// Nobody took the connection.
    Nobody(String),
    /// Somebody did who is not the one.
    Other(String),
}

/// Connects to rank 0 at one of the addresses that `places` finds, again and again until the deadline.
///
/// # Errors
/// A refusal by the job's own rank 0, or a text that says what was met last: one who answered before those who did not.
pub(crate) fn join(
    places: &mut dyn FnMut() -> io::Result<Vec<SocketAddr>>,
    secret: &Secret,
    rank: usize,
    size: usize,
    deadline: Instant,
) -> Result<TcpStream, Result<JoinRefused, String>> {
    let mut pause = PAUSE_FIRST;
    let mut last = String::from("nothing was tried");
    let mut answered = false;
    loop {
        match places() {
            Ok(addresses) => {
                for address in addresses {
                    match attempt(address, secret, rank, size, deadline) {
                        Ok(stream) => return Ok(stream),
                        Err(Attempt::Refused(refused)) => return Err(Ok(refused)),
                        Err(Attempt::Other(why)) => (last, answered) = (format!("{address}: {why}"), true),
                        Err(Attempt::Nobody(why)) if !answered => last = format!("{address}: {why}"),
                        Err(Attempt::Nobody(_)) => {}
                    }
                }
            }
            Err(error) => (last, answered) = (error.to_string(), false),
        }
        if Instant::now() + pause >= deadline {
            return Err(Err(last));
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

fn attempt(
    address: SocketAddr,
    secret: &Secret,
    rank: usize,
    size: usize,
    deadline: Instant,
) -> Result<TcpStream, Attempt> {
    let other = |error: io::Error| Attempt::Other(error.to_string());
    let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
    let nobody = |error: io::Error| Attempt::Nobody(error.to_string());
    let stream = TcpStream::connect_timeout(&address, CONNECT_TIME.min(left)).map_err(nobody)?;
    // Where nobody listens on a port that the system hands out, a connection may meet itself.
    if stream.local_addr().ok() == Some(address) {
        return Err(Attempt::Nobody("nobody listens there".into()));
    }
    super::prepare(&stream).map_err(other)?;
    let until = Instant::now() + ANSWER_TIME.min(left);
    let mut bytes = [0; Challenge::BYTES];
    clock::read_exact(&stream, &mut bytes, until).map_err(other)?;
    let no_store = || Attempt::Other("something else than a store listens there".into());
    let challenge = Challenge::decode(&bytes).ok_or_else(no_store)?;
    let nonce = secret::random().map_err(other)?;
    let number = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
    let hello = Hello::new(secret, &challenge, number(rank), number(size), nonce);
    clock::write_all(&stream, &hello.encode(), until).map_err(other)?;
    let mut bytes = [0; Answer::BYTES];
    clock::read_exact(&stream, &mut bytes, until).map_err(other)?;
    let answer = Answer::decode(&bytes).ok_or_else(no_store)?;
    if answer.status == Status::WrongProof || !answer.proves(secret, &challenge, &hello) {
        return Err(Attempt::Other("a store with another secret listens there".into()));
    }
    match answer.status {
        Status::RankTaken => Err(Attempt::Refused(JoinRefused::RankTaken)),
        Status::OtherSize => Err(Attempt::Refused(JoinRefused::OtherSize)),
        Status::Welcome | Status::WrongProof => Ok(stream),
    }
}
