//! A job that has met: what all processes give to all, barriers, and the streams themselves.
//!
//! Called by the front ends. Every call is made by all processes of the job in the same order and has a time limit. No
//! thread, and after the last call nothing stays but what the caller took.

use std::io;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use thiserror::Error;
use trunkline_proto::reserve::{OutOfMemory, try_collect, try_vec};

use crate::address::{self, Notice};
use crate::environment::{Environment, EnvironmentError, Launcher, Meeting, Place, window};
use crate::planted;
use crate::pmi::{self, PmiError};
use crate::pmix::{self, PmixError};
use crate::secret::Secret;
use crate::store::{self, GATHERED_BYTES_MAX, GIVEN_BYTES_MAX, Head, JoinRefused, Kind, Listener, MeetError};

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
pub enum Streams {
    /// This is rank 0: a stream for each rank, none for its own.
    Center(Vec<Option<TcpStream>>),
    /// Another rank: its stream to rank 0.
    Member(TcpStream),
}

/// A job that has met.
#[derive(Debug)]
pub struct Bootstrap {
    launcher: Launcher,
    place: Place,
    streams: Streams,
    round: u32,
}

impl Bootstrap {
    /// Meets the others. All processes of the job call it, each within `limit` of the others.
    ///
    /// # Errors
    /// When one of them does not come, or the launcher does not help.
    pub fn join(environment: &Environment, limit: Duration) -> Result<Self, JoinError> {
        let deadline = Instant::now() + limit;
        let launcher = environment.launcher;
        let joining = Joining { launcher, limit, deadline };
        let (place, streams) = match &environment.meeting {
            Meeting::At { host, port, secret, .. } => {
                if let Some(warning) = environment.secret_warning() {
                    eprintln!("trunkline: warning: {warning}");
                }
                // Only launchers that are asked leave it open.
                let place = environment.place.ok_or_else(unplaced)?;
                (place, joining.at(place, host, *port, secret)?)
            }
            Meeting::Pmi { server, extra } => {
                let mut client = pmi::Client::open(server, deadline)?;
                let place = match (environment.place, client.place) {
                    (Some(place), _) => place,
                    (None, Some((rank, size))) => Place::checked(launcher, rank, size, None, None)?,
                    (None, None) => return Err(unplaced().into()),
                };
                let (listener, mine) = joining.listen(place, extra.as_deref())?;
                let notice = client.hand_round(mine.as_deref())?;
                client.finish()?;
                (place, joining.noticed(place, listener, &notice, extra.as_deref())?)
            }
            Meeting::Pmix { extra } => {
                let place = environment.place.ok_or_else(unplaced)?;
                let (listener, mine) = joining.listen(place, extra.as_deref())?;
                let notice = pmix::hand_round(mine.as_deref())?;
                (place, joining.noticed(place, listener, &notice, extra.as_deref())?)
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
    pub fn place(&self) -> Place {
        self.place
    }

    /// Gives bytes to all processes; returns what each gave, by rank.
    ///
    /// # Errors
    /// When a process is gone or does not make the same call within `limit`. The job cannot go on then.
    pub fn exchange(&mut self, mine: &[u8], limit: Duration) -> Result<Vec<Vec<u8>>, ExchangeError> {
        let most = GIVEN_BYTES_MAX;
        if mine.len() > most {
            return Err(ExchangeError::TooLarge { bytes: mine.len(), most });
        }
        self.round = self.round.wrapping_add(1);
        let round = self.round;
        let deadline = Instant::now() + limit;
        let size = self.place.size;
        match &self.streams {
            Streams::Member(stream) => give(stream, mine, round, size, deadline),
            Streams::Center(members) => {
                let gathered = gather(members, mine, round, deadline);
                if let Err(error) = &gathered {
                    farewell(members, &error.to_string(), round);
                }
                gathered
            }
        }
    }

    /// Waits for all processes.
    ///
    /// # Errors
    /// As [`Bootstrap::exchange`].
    pub fn barrier(&mut self, limit: Duration) -> Result<(), ExchangeError> {
        self.exchange(&[], limit).map(drop)
    }

    /// The streams, for another use.
    ///
    /// # Errors
    /// When the system cannot make them block.
    pub fn into_streams(self) -> io::Result<Streams> {
        match &self.streams {
            Streams::Member(stream) => stream.set_nonblocking(false)?,
            Streams::Center(members) => {
                members.iter().flatten().try_for_each(|stream| stream.set_nonblocking(false))?;
            }
        }
        Ok(self.streams)
    }
}

/// Rank 0 before the others have come, and what they need.
type Listening = (Listener, Notice);

/// What holds during a meeting.
struct Joining {
    launcher: Launcher,
    limit: Duration,
    deadline: Instant,
}

impl Joining {
    /// Rank 0's host is known to all.
    fn at(&self, place: Place, host: &str, port: u16, secret: &Secret) -> Result<Streams, JoinError> {
        let ports = window(port);
        let first = ports.clone().min().unwrap_or(port);
        let last = ports.clone().max().unwrap_or(port);
        let text = format!("{host}, ports {first} to {last}");
        if place.rank == 0 {
            let listener = Listener::bind(address::loopback(host), ports)
                .map_err(|source| JoinError::Listen { place: text.clone(), source })?;
            return self.meet(&listener, place, secret, &text);
        }
        let mut places = || address::resolve(host, ports.clone());
        self.find(&mut places, place, secret, &text)
    }

    /// Rank 0 listens anywhere, and has something to tell.
    fn listen(
        &self,
        place: Place,
        extra: Option<&str>,
    ) -> Result<(Option<Listening>, Option<String>), JoinError> {
        if place.rank != 0 {
            return Ok((None, None));
        }
        let addresses = address::mine(place.all_here())?;
        let alone = if place.all_here() { addresses.first().copied() } else { None };
        let listener = Listener::bind(alone, std::iter::once(0))
            .map_err(|source| JoinError::Listen { place: String::from("any free port"), source })?;
        let notice = Notice { secret: Secret::random()?, port: listener.port()?, addresses };
        let text = notice.encode();
        let notice = Notice { secret: mixed(&notice.secret, extra), ..notice };
        Ok((Some((listener, notice)), Some(text)))
    }

    /// Rank 0's place went round.
    fn noticed(
        &self,
        place: Place,
        listener: Option<Listening>,
        text: &str,
        extra: Option<&str>,
    ) -> Result<Streams, JoinError> {
        if let Some((listener, notice)) = listener {
            let text = format!("{:?}", notice.places());
            return self.meet(&listener, place, &notice.secret, &text);
        }
        // Shown shortened, as it may hold a secret.
        let notice =
            Notice::decode(text).ok_or_else(|| JoinError::NoNotice(text.chars().take(8).collect()))?;
        let places = notice.places();
        let shown = format!("{places:?}");
        self.find(&mut || Ok(places.clone()), place, &mixed(&notice.secret, extra), &shown)
    }

    fn meet(
        &self,
        listener: &Listener,
        place: Place,
        secret: &Secret,
        text: &str,
    ) -> Result<Streams, JoinError> {
        match store::meet(listener, secret, place.size, self.deadline) {
            Ok(members) => Ok(Streams::Center(members)),
            Err(MeetError::Io(error)) => Err(error.into()),
            Err(MeetError::Memory(error)) => Err(error.into()),
            Err(MeetError::Missing { here, refused }) => {
                let ranks = missing(&here);
                let after = self.limit;
                let error = match refused {
                    Some(source) => JoinError::Unaccepted { ranks, after, source },
                    None => JoinError::Missing { ranks, place: text.to_owned(), after },
                };
                farewell(&here, &error.to_string(), 0);
                Err(error)
            }
        }
    }

    fn find(
        &self,
        places: &mut dyn FnMut() -> io::Result<Vec<std::net::SocketAddr>>,
        place: Place,
        secret: &Secret,
        text: &str,
    ) -> Result<Streams, JoinError> {
        let Place { rank, size, .. } = place;
        match store::join(places, secret, rank, size, self.deadline) {
            Ok(stream) => Ok(Streams::Member(stream)),
            Err(Ok(JoinRefused::RankTaken)) => Err(JoinError::Taken { rank, launcher: self.launcher }),
            Err(Ok(JoinRefused::OtherSize)) => Err(JoinError::OtherSize { size, launcher: self.launcher }),
            Err(Err(last)) => {
                Err(JoinError::NotFound { rank, place: text.to_owned(), last, after: self.limit })
            }
        }
    }
}

/// No reader of an environment makes one like this.
fn unplaced() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "the launcher tells no rank")
}

fn mixed(secret: &Secret, extra: Option<&str>) -> Secret {
    extra.map_or_else(|| secret.clone(), |extra| secret.with(extra))
}

/// The numbers of the first few ranks that have no stream, and how many more there are.
fn missing(here: &[Option<TcpStream>]) -> String {
    const SHOWN: usize = 8;
    let ranks =
        || here.iter().enumerate().skip(1).filter(|(_, stream)| stream.is_none()).map(|(rank, _)| rank);
    let names: Vec<String> = ranks().take(SHOWN).map(|rank| rank.to_string()).collect();
    let more = ranks().skip(SHOWN).count();
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    names.join(", ") + &more
}

/// A member's part of an exchange.
fn give(
    stream: &TcpStream,
    mine: &[u8],
    round: u32,
    size: usize,
    deadline: Instant,
) -> Result<Vec<Vec<u8>>, ExchangeError> {
    let failed = |source| ExchangeError::Rank { rank: 0, source };
    let head = Head { kind: Kind::Gather, length: u32::try_from(mine.len()).unwrap_or(u32::MAX), round };
    let sent = store::send(stream, head, mine, deadline);
    // Rank 0 may have said why before it closed.
    let (head, body) = store::receive(stream, GATHERED_BYTES_MAX, deadline)
        .map_err(|error| failed(sent.err().unwrap_or(error)))?;
    match head.kind {
        Kind::Abort => Err(aborted(0, &body)),
        Kind::Gathered if head.round == round => {
            store::split(&body, size)?.ok_or_else(|| failed(io::ErrorKind::InvalidData.into()))
        }
        Kind::Gathered | Kind::Gather => Err(ExchangeError::OutOfOrder { rank: 0 }),
    }
}

/// Rank 0's part of an exchange.
fn gather(
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
        let is_part = head.kind == Kind::Gather && head.round == round;
        if is_part {
            bytes += head.length as usize;
        }
        if is_part && bytes > most && !planted("bootstrap-keeps-what-is-too-large") {
            // The parts are dropped at once. Reading goes on, so that every member then receives the reason.
            parts.clear();
            store::skip_body(stream, head, deadline).map_err(failed)?;
            continue;
        }
        let body = store::receive_body(stream, head, deadline).map_err(failed)?;
        match head.kind {
            Kind::Gather if is_part => parts.push(body),
            Kind::Abort => return Err(aborted(rank, &body)),
            Kind::Gather | Kind::Gathered => return Err(ExchangeError::OutOfOrder { rank }),
        }
        #[cfg(test)]
        tests::HELD_MOST.set(tests::HELD_MOST.get().max(parts.iter().map(Vec::len).sum()));
    }
    let body = if bytes > most { None } else { store::gathered(&parts)? };
    let body = body.ok_or(ExchangeError::TooLarge { bytes, most })?;
    let head = Head { kind: Kind::Gathered, length: u32::try_from(body.len()).unwrap_or(u32::MAX), round };
    for (rank, stream) in
        members.iter().enumerate().filter_map(|(rank, member)| Some((rank, member.as_ref()?)))
    {
        store::send(stream, head, &body, deadline).map_err(|source| ExchangeError::Rank { rank, source })?;
    }
    Ok(parts)
}

fn aborted(rank: usize, body: &[u8]) -> ExchangeError {
    let reason: String = String::from_utf8_lossy(body).chars().take(REASON_BYTES_MAX).collect();
    ExchangeError::Aborted { rank, reason }
}

/// Tells the members why; those that cannot hear it find the stream closed.
fn farewell(members: &[Option<TcpStream>], reason: &str, round: u32) {
    let mut end = reason.len().min(REASON_BYTES_MAX);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    let body = &reason.as_bytes()[..end];
    let head = Head { kind: Kind::Abort, length: body.len() as u32, round };
    let deadline = Instant::now() + FAREWELL;
    for stream in members.iter().flatten() {
        let _ = store::send(stream, head, body, deadline);
    }
}

#[cfg(test)]
#[path = "bootstrap_tests.rs"]
mod tests;
