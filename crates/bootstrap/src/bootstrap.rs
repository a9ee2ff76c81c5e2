//! A job whose processes are connected: allgather, barrier, and the streams themselves.
//!
//! Called by the front ends. All processes of the job make the same calls in the same order; each call has a time
//! limit. It starts no thread. After the last call only the streams remain that the caller has taken.

use std::io;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use thiserror::Error;
use trunkline_proto::reserve::{OutOfMemory, try_collect, try_vec};

use crate::address::{self, RendezvousAddress};
use crate::placement::{
    EnvironmentError, JobEnvironment, JobPlacement, Launcher, RendezvousMethod, port_window,
};
use crate::pmi::{self, PmiError};
use crate::pmix::{self, PmixError};
use crate::secret::JobSecret;
use crate::store::{
    self, GATHERED_BYTES_MAX, GIVEN_BYTES_MAX, JoinRefused, MeetError, StoreFrameHeader, StoreFrameKind,
    StoreListener,
};

/// Bytes of an error reason in an ABORT frame, at most.
const REASON_BYTES_MAX: usize = 1024;
/// How long rank 0 tries to send the other ranks the reason of its failure.
const FAREWELL: Duration = Duration::from_secs(1);

/// Why the processes of a job could not connect.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum JoinError {
    /// The environment contradicts itself.
    #[error(transparent)]
    Environment(#[from] EnvironmentError),
    /// The launcher's PMI-1 failed.
    #[error(transparent)]
    Pmi(#[from] PmiError),
    /// The launcher's PMIx failed.
    #[error(transparent)]
    Pmix(#[from] PmixError),
    /// The launcher's key-value space has no valid entry of rank 0.
    #[error(
        "the launcher's key-value space has no valid address of rank 0 ({0:?}); does rank 0 run another program?"
    )]
    NoNotice(String),
    /// Rank 0 cannot listen.
    #[error("rank 0 cannot listen on {place}: {source}")]
    Listen {
        /// Address and ports.
        place: String,
        /// The cause.
        source: io::Error,
    },
    /// Other ranks did not connect in time.
    #[error(
        "rank {ranks} did not connect within {} s; did they start, and can they reach {place}?", .after.as_secs()
    )]
    Missing {
        /// Numbers of missing ranks; the first few of them.
        ranks: String,
        /// Where rank 0 listens.
        place: String,
        /// The time allowed.
        after: Duration,
    },
    /// Rank 0 could not accept the connections of other ranks.
    #[error(
        "rank 0 could not accept connections of rank {ranks} within {} s: {source}; raise its limit of open files \
         (ulimit -n) above the number of ranks", .after.as_secs()
    )]
    Unaccepted {
        /// Numbers of missing ranks; the first few of them.
        ranks: String,
        /// The time allowed.
        after: Duration,
        /// The last error of the system.
        source: io::Error,
    },
    /// Rank 0 was not found.
    #[error(
        "rank {rank} did not find rank 0 within {} s at {place} (last: {last}); does it run there, and do firewalls let \
         these ports pass?", .after.as_secs()
    )]
    NotFound {
        /// The rank of this process.
        rank: usize,
        /// Where rank 0 was expected.
        place: String,
        /// The result of the last attempt.
        last: String,
        /// The time allowed.
        after: Duration,
    },
    /// Two processes have the same rank.
    #[error("rank {rank} has already joined the job; do two processes have the same {launcher} variables?")]
    Taken {
        /// The rank.
        rank: usize,
        /// The launcher.
        launcher: Launcher,
    },
    /// Rank 0 has a different job size.
    #[error(
        "rank 0 has a different job size than {size}; do all processes have the same {launcher} variables?"
    )]
    OtherSize {
        /// The job size of this process.
        size: usize,
        /// The launcher.
        launcher: Launcher,
    },
    /// The system has no memory for the members of the job.
    #[error("cannot allocate memory: {0}")]
    Memory(#[from] OutOfMemory),
    /// A system call failed.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Why an exchange failed; the job cannot continue.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ExchangeError {
    /// The connection to a process failed: it has ended, has timed out, or has sent an invalid frame.
    #[error("rank {rank}: {source}")]
    Rank {
        /// The other process.
        rank: usize,
        /// The cause.
        source: io::Error,
    },
    /// Another process aborted the exchange.
    #[error("rank {rank} aborted the exchange: {reason}")]
    Aborted {
        /// The process that sent ABORT.
        rank: usize,
        /// The reason.
        reason: String,
    },
    /// Frames arrived out of order.
    #[error("rank {rank} sent a frame of another exchange round; do all processes make the same calls?")]
    OutOfOrder {
        /// The other process.
        rank: usize,
    },
    /// The limit of bytes per exchange is exceeded.
    #[error("{bytes} bytes in one exchange exceed the limit of {most}: have each rank pass fewer")]
    TooLarge {
        /// The number of bytes.
        bytes: usize,
        /// The limit.
        most: usize,
    },
    /// The system has no memory for the bytes of the ranks.
    #[error("cannot allocate memory: {0}")]
    Memory(#[from] OutOfMemory),
}

/// The streams between rank 0 and the other ranks, for a caller that continues with its own protocol. They are
/// blocking, with keepalive.
#[derive(Debug)]
pub enum JobStreams {
    /// At rank 0: a stream for each rank, except its own.
    Center(Vec<Option<TcpStream>>),
    /// At another rank: its stream to rank 0.
    Member(TcpStream),
}

/// A job whose processes are connected.
#[derive(Debug)]
pub struct JobBootstrap {
    launcher: Launcher,
    place: JobPlacement,
    streams: JobStreams,
    round: u32,
}

impl JobBootstrap {
    /// Connects the processes of the job. All of them must call this, each within `limit` of the others.
    ///
    /// # Errors
    /// If a process does not connect in time, or the launcher fails.
    pub fn join(environment: &JobEnvironment, limit: Duration) -> Result<Self, JoinError> {
        let deadline = Instant::now() + limit;
        let launcher = environment.launcher;
        let joining = JoinContext { launcher, limit, deadline };
        let (place, streams) = match &environment.meeting {
            RendezvousMethod::At { host, port, secret, .. } => {
                if let Some(warning) = environment.secret_warning() {
                    eprintln!("trunkline: warning: {warning}");
                }
                // Only launchers that are queried over PMI leave the placement unknown.
                let place = environment.place.ok_or_else(missing_rank_error)?;
                (place, joining.join_at_host(place, host, *port, secret)?)
            }
            RendezvousMethod::Pmi { server, extra } => {
                let mut client = pmi::PmiClient::open(server, deadline)?;
                let place = match (environment.place, client.place) {
                    (Some(place), _) => place,
                    (None, Some((rank, size))) => {
                        JobPlacement::new_checked(launcher, rank, size, None, None)?
                    }
                    (None, None) => return Err(missing_rank_error().into()),
                };
                let (listener, mine) = joining.open_listener(place, extra.as_deref())?;
                let notice = client.hand_round(mine.as_deref())?;
                client.finalize_session()?;
                (place, joining.join_announced(place, listener, &notice, extra.as_deref())?)
            }
            RendezvousMethod::Pmix { extra } => {
                let place = environment.place.ok_or_else(missing_rank_error)?;
                let (listener, mine) = joining.open_listener(place, extra.as_deref())?;
                let notice = pmix::hand_round(mine.as_deref())?;
                (place, joining.join_announced(place, listener, &notice, extra.as_deref())?)
            }
        };
        Ok(Self { launcher, place, streams, round: 0 })
    }

    /// Returns the launcher of the job.
    #[must_use]
    pub fn launcher(&self) -> Launcher {
        self.launcher
    }

    /// Returns the placement of this process in the job.
    #[must_use]
    pub fn job_placement(&self) -> JobPlacement {
        self.place
    }

    /// Sends bytes to all processes; returns the bytes of each, by rank.
    ///
    /// # Errors
    /// If a process has ended, or does not make the same call within `limit`. The job cannot continue then.
    pub fn all_gather(&mut self, mine: &[u8], limit: Duration) -> Result<Vec<Vec<u8>>, ExchangeError> {
        let most = GIVEN_BYTES_MAX;
        if mine.len() > most {
            return Err(ExchangeError::TooLarge { bytes: mine.len(), most });
        }
        self.round = self.round.wrapping_add(1);
        let round = self.round;
        let deadline = Instant::now() + limit;
        let size = self.place.size;
        match &self.streams {
            JobStreams::Member(stream) => send_part(stream, mine, round, size, deadline),
            JobStreams::Center(members) => {
                let gathered = gather_parts(members, mine, round, deadline);
                if let Err(error) = &gathered {
                    send_abort(members, &error.to_string(), round);
                }
                gathered
            }
        }
    }

    /// Blocks until all processes have called this.
    ///
    /// # Errors
    /// As [`JobBootstrap::all_gather`].
    pub fn barrier(&mut self, limit: Duration) -> Result<(), ExchangeError> {
        self.all_gather(&[], limit).map(drop)
    }

    /// Returns the streams, for another protocol.
    ///
    /// # Errors
    /// If the system cannot make them blocking.
    pub fn into_streams(self) -> io::Result<JobStreams> {
        match &self.streams {
            JobStreams::Member(stream) => stream.set_nonblocking(false)?,
            JobStreams::Center(members) => {
                members.iter().flatten().try_for_each(|stream| stream.set_nonblocking(false))?;
            }
        }
        Ok(self.streams)
    }
}

/// Rank 0's listener before the others have connected, and the address that they need.
type AnnouncedListener = (StoreListener, RendezvousAddress);

/// The constants of one join.
struct JoinContext {
    launcher: Launcher,
    limit: Duration,
    deadline: Instant,
}

impl JoinContext {
    /// Joins a job in which every process knows rank 0's host.
    fn join_at_host(
        &self,
        place: JobPlacement,
        host: &str,
        port: u16,
        secret: &JobSecret,
    ) -> Result<JobStreams, JoinError> {
        let ports = port_window(port);
        let first = ports.clone().min().unwrap_or(port);
        let last = ports.clone().max().unwrap_or(port);
        let text = format!("{host}, ports {first} to {last}");
        if place.rank == 0 {
            let listener = StoreListener::bind(address::parse_loopback(host), ports)
                .map_err(|source| JoinError::Listen { place: text.clone(), source })?;
            return self.accept_peers(&listener, place, secret, &text);
        }
        let mut places = || address::resolve_host(host, ports.clone());
        self.connect_to_center(&mut places, place, secret, &text)
    }

    /// At rank 0: listens on any free port, and encodes the address for the launcher's key-value space.
    fn open_listener(
        &self,
        place: JobPlacement,
        extra: Option<&str>,
    ) -> Result<(Option<AnnouncedListener>, Option<String>), JoinError> {
        if place.rank != 0 {
            return Ok((None, None));
        }
        let addresses = address::announced_addresses(place.all_here())?;
        let alone = if place.all_here() { addresses.first().copied() } else { None };
        let listener = StoreListener::bind(alone, std::iter::once(0))
            .map_err(|source| JoinError::Listen { place: String::from("any free port"), source })?;
        let notice =
            RendezvousAddress { secret: JobSecret::random()?, port: listener.local_port()?, addresses };
        let text = notice.encode();
        let notice = RendezvousAddress { secret: mix_secret(&notice.secret, extra), ..notice };
        Ok((Some((listener, notice)), Some(text)))
    }

    /// Joins a job after the launcher has distributed rank 0's address.
    fn join_announced(
        &self,
        place: JobPlacement,
        listener: Option<AnnouncedListener>,
        text: &str,
        extra: Option<&str>,
    ) -> Result<JobStreams, JoinError> {
        if let Some((listener, notice)) = listener {
            let text = format!("{:?}", notice.socket_addrs());
            return self.accept_peers(&listener, place, &notice.secret, &text);
        }
        // The error shows only the start of the text, because the text may contain a secret.
        let notice = RendezvousAddress::decode(text)
            .ok_or_else(|| JoinError::NoNotice(text.chars().take(8).collect()))?;
        let places = notice.socket_addrs();
        let shown = format!("{places:?}");
        self.connect_to_center(&mut || Ok(places.clone()), place, &mix_secret(&notice.secret, extra), &shown)
    }

    fn accept_peers(
        &self,
        listener: &StoreListener,
        place: JobPlacement,
        secret: &JobSecret,
        text: &str,
    ) -> Result<JobStreams, JoinError> {
        match store::accept_members(listener, secret, place.size, self.deadline) {
            Ok(members) => Ok(JobStreams::Center(members)),
            Err(MeetError::Io(error)) => Err(error.into()),
            Err(MeetError::Memory(error)) => Err(error.into()),
            Err(MeetError::Missing { here, refused }) => {
                let ranks = list_missing_ranks(&here);
                let after = self.limit;
                let error = match refused {
                    Some(source) => JoinError::Unaccepted { ranks, after, source },
                    None => JoinError::Missing { ranks, place: text.to_owned(), after },
                };
                send_abort(&here, &error.to_string(), 0);
                Err(error)
            }
        }
    }

    fn connect_to_center(
        &self,
        places: &mut dyn FnMut() -> io::Result<Vec<std::net::SocketAddr>>,
        place: JobPlacement,
        secret: &JobSecret,
        text: &str,
    ) -> Result<JobStreams, JoinError> {
        let JobPlacement { rank, size, .. } = place;
        match store::join_center(places, secret, rank, size, self.deadline) {
            Ok(stream) => Ok(JobStreams::Member(stream)),
            Err(Ok(JoinRefused::RankTaken)) => Err(JoinError::Taken { rank, launcher: self.launcher }),
            Err(Ok(JoinRefused::OtherSize)) => Err(JoinError::OtherSize { size, launcher: self.launcher }),
            Err(Err(last)) => {
                Err(JoinError::NotFound { rank, place: text.to_owned(), last, after: self.limit })
            }
        }
    }
}

/// The error of an environment without a rank; no reader of environments returns one.
fn missing_rank_error() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "the launcher sets no rank")
}

fn mix_secret(secret: &JobSecret, extra: Option<&str>) -> JobSecret {
    extra.map_or_else(|| secret.clone(), |extra| secret.with_text(extra))
}

/// Lists the first few ranks that have no stream, and the number of further ones.
fn list_missing_ranks(here: &[Option<TcpStream>]) -> String {
    const SHOWN: usize = 8;
    let ranks =
        || here.iter().enumerate().skip(1).filter(|(_, stream)| stream.is_none()).map(|(rank, _)| rank);
    let names: Vec<String> = ranks().take(SHOWN).map(|rank| rank.to_string()).collect();
    let more = ranks().skip(SHOWN).count();
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    names.join(", ") + &more
}

/// A member's part of an exchange.
fn send_part(
    stream: &TcpStream,
    mine: &[u8],
    round: u32,
    size: usize,
    deadline: Instant,
) -> Result<Vec<Vec<u8>>, ExchangeError> {
    let failed = |source| ExchangeError::Rank { rank: 0, source };
    let head = StoreFrameHeader {
        kind: StoreFrameKind::Gather,
        length: u32::try_from(mine.len()).unwrap_or(u32::MAX),
        round,
    };
    let sent = store::send_frame(stream, head, mine, deadline);
    // After a failed send, the stream may still contain the reason that rank 0 sent before it closed it.
    let (head, body) = store::receive_frame(stream, GATHERED_BYTES_MAX, deadline)
        .map_err(|error| failed(sent.err().unwrap_or(error)))?;
    match head.kind {
        StoreFrameKind::Abort => Err(abort_error(0, &body)),
        StoreFrameKind::Gathered if head.round == round => {
            store::decode_gathered(&body, size)?.ok_or_else(|| failed(io::ErrorKind::InvalidData.into()))
        }
        StoreFrameKind::Gathered | StoreFrameKind::Gather => Err(ExchangeError::OutOfOrder { rank: 0 }),
    }
}

/// Rank 0's part of an exchange.
fn gather_parts(
    members: &[Option<TcpStream>],
    mine: &[u8],
    round: u32,
    deadline: Instant,
) -> Result<Vec<Vec<u8>>, ExchangeError> {
    let most = GATHERED_BYTES_MAX;
    let mut parts = try_vec(members.len())?;
    // The encoding puts a length before each part.
    let mut bytes = 4 * members.len() + mine.len();
    for (rank, member) in members.iter().enumerate() {
        let Some(stream) = member else {
            parts.push(try_collect(mine.iter().copied())?);
            continue;
        };
        let failed = |source| ExchangeError::Rank { rank, source };
        let head = store::receive_head(stream, GIVEN_BYTES_MAX, deadline).map_err(failed)?;
        let is_part = head.kind == StoreFrameKind::Gather && head.round == round;
        if is_part {
            bytes += head.length as usize;
        }
        if is_part && bytes > most {
            // The parts are dropped at once, because the exchange fails. The remaining bodies are still read, so that
            // each member's send ends and it receives the reason.
            parts.clear();
            store::skip_body(stream, head, deadline).map_err(failed)?;
            continue;
        }
        let body = store::receive_body(stream, head, deadline).map_err(failed)?;
        match head.kind {
            StoreFrameKind::Gather if is_part => parts.push(body),
            StoreFrameKind::Abort => return Err(abort_error(rank, &body)),
            StoreFrameKind::Gather | StoreFrameKind::Gathered => {
                return Err(ExchangeError::OutOfOrder { rank });
            }
        }
        #[cfg(test)]
        tests::HELD_MOST.set(tests::HELD_MOST.get().max(parts.iter().map(Vec::len).sum()));
    }
    let body = if bytes > most { None } else { store::encode_gathered(&parts)? };
    let body = body.ok_or(ExchangeError::TooLarge { bytes, most })?;
    let head = StoreFrameHeader {
        kind: StoreFrameKind::Gathered,
        length: u32::try_from(body.len()).unwrap_or(u32::MAX),
        round,
    };
    for (rank, stream) in
        members.iter().enumerate().filter_map(|(rank, member)| Some((rank, member.as_ref()?)))
    {
        store::send_frame(stream, head, &body, deadline)
            .map_err(|source| ExchangeError::Rank { rank, source })?;
    }
    Ok(parts)
}

fn abort_error(rank: usize, body: &[u8]) -> ExchangeError {
    let reason: String = String::from_utf8_lossy(body).chars().take(REASON_BYTES_MAX).collect();
    ExchangeError::Aborted { rank, reason }
}

/// Sends the members the reason of a failure. Those that cannot receive it see the closed stream.
fn send_abort(members: &[Option<TcpStream>], reason: &str, round: u32) {
    let mut end = reason.len().min(REASON_BYTES_MAX);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    let body = &reason.as_bytes()[..end];
    let head = StoreFrameHeader { kind: StoreFrameKind::Abort, length: body.len() as u32, round };
    let deadline = Instant::now() + FAREWELL;
    for stream in members.iter().flatten() {
        let _ = store::send_frame(stream, head, body, deadline);
    }
}

#[cfg(test)]
#[path = "bootstrap_tests.rs"]
mod tests;
