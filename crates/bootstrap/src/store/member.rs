//! A member's side of the store: tries all possible addresses of rank 0, and proves its membership. Called by
//! `bootstrap`; blocks until the deadline.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use super::frame::{JoinStatus, StoreAnswer, StoreChallenge, StoreHello};
use crate::deadline_io;
use crate::secret::{self, JobSecret};

/// Longest connection attempt to one address.
const CONNECT_TIME: Duration = Duration::from_secs(2);
/// Longest wait for the handshake; rank 0 may be serving many members.
const ANSWER_TIME: Duration = Duration::from_secs(5);
/// The first and the longest pause between two rounds over all addresses: rank 0 may not have started.
const PAUSE_FIRST: Duration = Duration::from_millis(5);
const PAUSE_MAX: Duration = Duration::from_millis(250);

/// Why rank 0 of this job refused the member.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum JoinRefused {
    RankTaken,
    OtherSize,
}

/// Why one attempt failed.
enum ConnectFailure {
    Refused(JoinRefused),
    /// The address did not accept the connection.
    Nobody(String),
    /// The connection was accepted, but not by this job's store.
    Other(String),
}

/// Connects to rank 0 at one of the addresses that `places` returns; retries until the deadline.
///
/// # Errors
/// A refusal by the job's own rank 0; otherwise a text about the last failed attempt, preferably one whose connection
/// was accepted.
pub(crate) fn join_center(
    places: &mut dyn FnMut() -> io::Result<Vec<SocketAddr>>,
    secret: &JobSecret,
    rank: usize,
    size: usize,
    deadline: Instant,
) -> Result<TcpStream, Result<JoinRefused, String>> {
    let mut pause = PAUSE_FIRST;
    let mut last = String::from("no address was tried");
    let mut answered = false;
    loop {
        match places() {
            Ok(addresses) => {
                for address in addresses {
                    match try_address(address, secret, rank, size, deadline) {
                        Ok(stream) => return Ok(stream),
                        Err(ConnectFailure::Refused(refused)) => return Err(Ok(refused)),
                        Err(ConnectFailure::Other(why)) => {
                            (last, answered) = (format!("{address}: {why}"), true)
                        }
                        Err(ConnectFailure::Nobody(why)) if !answered => last = format!("{address}: {why}"),
                        Err(ConnectFailure::Nobody(_)) => {}
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

fn try_address(
    address: SocketAddr,
    secret: &JobSecret,
    rank: usize,
    size: usize,
    deadline: Instant,
) -> Result<TcpStream, ConnectFailure> {
    let other = |error: io::Error| ConnectFailure::Other(error.to_string());
    let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
    let nobody = |error: io::Error| ConnectFailure::Nobody(error.to_string());
    let stream = TcpStream::connect_timeout(&address, CONNECT_TIME.min(left)).map_err(nobody)?;
    // On an unused port of the ephemeral range, TCP may connect a socket to itself.
    if stream.local_addr().ok() == Some(address) {
        return Err(ConnectFailure::Nobody("no process listens there".into()));
    }
    super::configure_stream(&stream).map_err(other)?;
    let until = Instant::now() + ANSWER_TIME.min(left);
    let mut bytes = [0; StoreChallenge::BYTES];
    deadline_io::read_exact(&stream, &mut bytes, until).map_err(other)?;
    let no_store = || ConnectFailure::Other("the listener there is not a store".into());
    let challenge = StoreChallenge::decode(&bytes).ok_or_else(no_store)?;
    let nonce = secret::random_bytes().map_err(other)?;
    let number = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
    let hello = StoreHello::new(secret, &challenge, number(rank), number(size), nonce);
    deadline_io::write_all(&stream, &hello.encode(), until).map_err(other)?;
    let mut bytes = [0; StoreAnswer::BYTES];
    deadline_io::read_exact(&stream, &mut bytes, until).map_err(other)?;
    let answer = StoreAnswer::decode(&bytes).ok_or_else(no_store)?;
    if answer.status == JoinStatus::WrongProof || !answer.verify_proof(secret, &challenge, &hello) {
        return Err(ConnectFailure::Other("a store with another secret listens there".into()));
    }
    match answer.status {
        JoinStatus::RankTaken => Err(ConnectFailure::Refused(JoinRefused::RankTaken)),
        JoinStatus::OtherSize => Err(ConnectFailure::Refused(JoinRefused::OtherSize)),
        JoinStatus::Welcome | JoinStatus::WrongProof => Ok(stream),
    }
}
