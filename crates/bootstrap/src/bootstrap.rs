//! A job that has met: what all processes give to all, barriers, and the streams themselves.
//!
//! Called by the front ends. Every call is made by all processes of the job in the same order and has a time limit. No
//! thread, and after the last call nothing stays but what the caller took.

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

/// Most bytes of a reason that travels.
const REASON_BYTES_MAX: usize = 1024;
/// How long rank 0 takes to tell the others why it gives up.
const FAREWELL: Duration = Duration::from_secs(1);

/// The processes of a job could not meet.
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
    /// What rank 0 put into the launcher's key-value space is not there.
    #[error("the launcher handed on no place of rank 0 ({0:?}); is rank 0 another program?")]
    NoNotice(String),
    /// Rank 0 cannot listen.
    #[error("rank 0 cannot listen on {place}: {source}")]
    Listen {
        /// Address and ports.
        place: String,
        /// Why.
        source: io::Error,
    },
    /// Others did not come.
    #[error(
        "rank {ranks} did not come within {} s; did they start, and can they reach {place}?", .after.as_secs()
    )]
    Missing {
        /// Numbers of those that are missing, some of them.
        ranks: String,
        /// Where rank 0 listens.
        place: String,
        /// The time allowed.
        after: Duration,
    },
    /// Rank 0 could not accept the connections of others.
    #[error(
        "rank 0 could not accept the connections of rank {ranks} within {} s: {source}; raise its limit of open files \
         (ulimit -n) above the number of ranks", .after.as_secs()
    )]
    Unaccepted {
        /// Numbers of those that are missing, some of them.
        ranks: String,
        /// The time allowed.
        after: Duration,
        /// Why the system refused, the last time.
        source: io::Error,
    },
    /// Rank 0 was not found.
    #[error(
        "rank {rank} did not find rank 0 within {} s at {place} (last: {last}); does it run there, and do firewalls let \
         these ports through?", .after.as_secs()
    )]
    NotFound {
        /// This process.
        rank: usize,
        /// Where rank 0 should be.
        place: String,
        /// What came of the last attempt.
        last: String,
        /// The time allowed.
        after: Duration,
    },
    /// Two processes say that they are the same.
    #[error("rank {rank} is in the job already; do two processes have the same {launcher} variables?")]
    Taken {
        /// The number.
        rank: usize,
        /// Who started the job.
        launcher: Launcher,
    },
    /// Rank 0 has another number of processes.
    #[error("rank 0 says that the job has not {size} processes; do all have the same {launcher} variables?")]
    OtherSize {
        /// Our number of processes.
        size: usize,
        /// Who started the job.
        launcher: Launcher,
    },
    /// The system has no memory for the members of the job.
    #[error("cannot allocate memory: {0}")]
    Memory(#[from] OutOfMemory),
    /// The system failed.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// An exchange failed; the job cannot go on.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ExchangeError {
    /// A process is gone, silent or confused.
    #[error("rank {rank}: {source}")]
    Rank {
        /// The other one.
        rank: usize,
        /// What happened.
        source: io::Error,
    },
    /// Another process gave up.
    #[error("rank {rank} gave up: {reason}")]
    Aborted {
        /// Who said so.
        rank: usize,
        /// Why.
        reason: String,
    },
    /// Frames came in another order than they can.
    #[error("rank {rank} is in another round than this process; do all make the same calls?")]
    OutOfOrder {
        /// The other one.
        rank: usize,
    },
    /// More bytes than travel at once.
    #[error("{bytes} bytes in one exchange; at most {most}: have each rank give fewer")]
    TooLarge {
        /// How many.
        bytes: usize,
        /// The limit.
        most: usize,
    },
    /// The system has no memory for the bytes of the ranks.
    #[error("cannot allocate memory: {0}")]
    Memory(#[from] OutOfMemory),
}

/// The streams between rank 0 and the others, for a caller that goes on by itself. They block and keep their keepalive.
#[derive(Debug)]
pub enum JobStreams {
    /// This is rank 0: a stream for each rank, none for its own.
    Center(Vec<Option<TcpStream>>),
    /// Another rank: its stream to rank 0.
    Member(TcpStream),
}

/// A job that has met.
#[derive(Debug)]
pub struct JobBootstrap {
    launcher: Launcher,
    place: JobPlacement,
    streams: JobStreams,
    round: u32,
}

impl JobBootstrap {
    /// Meets the others. All processes of the job call it, each within `limit` of the others.
    ///
    /// # Errors
    /// When one of them does not come, or the launcher does not help.
    pub fn join(environment: &JobEnvironment, limit: Duration) -> Result<Self, JoinError> {
        let deadline = Instant::now() + limit;
        let launcher = environment.launcher;
        let joining = JoinContext { launcher, limit, deadline };
        let (place, streams) = match &environment.meeting {
            RendezvousMethod::At { host, port, secret, .. } => {
                if let Some(warning) = environment.secret_warning() {
                    eprintln!("trunkline: warning: {warning}");
                }
                // Only launchers that are asked leave it open.
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

    /// Who started the job.
    #[must_use]
    pub fn launcher(&self) -> Launcher {
        self.launcher
    }

    /// The place of this process in the job.
    #[must_use]
    pub fn job_placement(&self) -> JobPlacement {
        self.place
    }

    /// Gives bytes to all processes; returns what each gave, by rank.
    ///
    /// # Errors
    /// When a process is gone or does not make the same call within `limit`. The job cannot go on then.
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

    /// Waits for all processes.
    ///
    /// # Errors
    /// As [`JobBootstrap::all_gather`].
    pub fn barrier(&mut self, limit: Duration) -> Result<(), ExchangeError> {
        self.all_gather(&[], limit).map(drop)
    }

    /// The streams, for another use.
    ///
    /// # Errors
    /// When the system cannot make them block.
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

/// Rank 0 before the others have come, and what they need.
type AnnouncedListener = (StoreListener, RendezvousAddress);

/// What holds during a meeting.
struct JoinContext {
    launcher: Launcher,
    limit: Duration,
    deadline: Instant,
}

impl JoinContext {
    /// Rank 0's host is known to all.
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

    /// Rank 0 listens anywhere, and has something to tell.
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

    /// Rank 0's place went round.
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
        // Shown shortened, as it may hold a secret.
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

/// No reader of an environment makes one like this.
fn missing_rank_error() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "the launcher tells no rank")
}

fn mix_secret(secret: &JobSecret, extra: Option<&str>) -> JobSecret {
    extra.map_or_else(|| secret.clone(), |extra| secret.with_text(extra))
}

/// The numbers of the first few ranks that have no stream, and how many more there are.
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
    // Rank 0 may have said why before it closed.
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
    // Each part has its length before it.
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
            // The parts are dropped at once. Reading goes on, so that every member then receives the reason.
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

/// Tells the members why; those that cannot hear it find the stream closed.
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
