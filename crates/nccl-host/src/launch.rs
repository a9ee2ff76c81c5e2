//! The parent process: starts ranks or connects to those that another launcher started, routes their handles,
//! implements their barriers, and ends all of them when one fails.
//!
//! Used by the benchmark command and by tests. It loads no plugin itself, so a plugin that crashes takes only a rank
//! with it. Every wait has a deadline.

use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use thiserror::Error;

use crate::buffer::MemoryKind;
use crate::channel::RankChannel;
use crate::collective::Collective;
use crate::device::DeviceSelection;
use crate::left_files::{self, KeptFiles, LeftFiles};
use crate::p2p;
use crate::rank::RANK_VARIABLE;
use crate::rendezvous::{
    self, CollectiveCase, CollectiveMeasured, FromRank, HandleOffer, P2pCase, P2pMeasured, PluginReport,
    RankSetup, ToRank,
};
use crate::schedule::ConnectionGraph;

/// How long the parent waits for messages of other ranks after one rank has failed.
const GRACE: Duration = Duration::from_millis(300);
/// How long a rank may take to exit after its CLOSED message.
const EXIT: Duration = Duration::from_secs(10);

/// Configures a run.
#[derive(Clone, Debug)]
pub struct RankJob {
    /// The plugin's file.
    pub plugin: PathBuf,
    /// Version of the interface; the newest if `None`.
    pub abi: Option<u8>,
    /// The device to use.
    pub device: DeviceSelection,
    /// Number of rank processes.
    pub ranks: usize,
    /// Communicators per rank, all used at the same time.
    pub comms: usize,
    /// Channels per communicator.
    pub channels: usize,
    /// The collective; `None` for point-to-point.
    pub collective: Option<Collective>,
    /// The root rank.
    pub root: usize,
    /// Length of the largest buffer, or of the largest point-to-point message, in bytes.
    pub bytes_max: usize,
    /// Bytes of a message of a collective, at most.
    pub chunk: usize,
    /// Length of a receive in bytes, at least, even for a shorter message: NCCL's step size times slice steps. 0: the
    /// length of the message.
    pub receive_min: usize,
    /// The kind of memory.
    pub memory: MemoryKind,
    /// Whether receives are flushed; `None`: as the device advertises.
    pub flush: Option<bool>,
    /// Time limit of the whole run.
    pub timeout: Duration,
    /// Time limit of one row.
    pub row_timeout: Duration,
    /// The files of the plugin to keep, if any.
    pub keep: Option<KeptFiles>,
    /// Further environment variables for the ranks that the parent starts; ranks of another launcher have their own
    /// environment.
    pub environment: Vec<(String, String)>,
}

/// Why a run failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RankLaunchError {
    /// A rank could not be started.
    #[error("cannot start rank {rank}: {source}")]
    Start {
        /// The rank.
        rank: usize,
        /// The cause.
        source: io::Error,
    },
    /// A rank reported an error.
    #[error("rank {rank}: {message}")]
    Failed {
        /// The rank.
        rank: usize,
        /// The reported text.
        message: String,
    },
    /// A rank ended without a report.
    #[error("rank {rank} died: {status}")]
    Died {
        /// The rank.
        rank: usize,
        /// The exit status.
        status: String,
    },
    /// Some ranks did not reply in time.
    #[error("no answer within {} s from rank {}", .after.as_secs(), format_ranks(.ranks))]
    TimedOut {
        /// The time allowed.
        after: Duration,
        /// The ranks without a reply.
        ranks: Vec<usize>,
    },
    /// A rank sent an unexpected message.
    #[error("rank {rank} sent an unexpected message; do all hosts have the same build?")]
    OutOfOrder {
        /// The rank.
        rank: usize,
    },
}

fn format_ranks(ranks: &[usize]) -> String {
    let names: Vec<String> = ranks.iter().map(usize::to_string).collect();
    names.join(", ")
}

/// The result of one row of a collective over all ranks.
#[derive(Clone, Copy, Debug)]
pub struct RowResult {
    /// Mean over the ranks of the time of one iteration, in microseconds.
    pub time_us: f64,
    /// Wrong elements of all ranks and checks.
    pub wrong: u64,
}

/// An event of a rank.
enum RankEvent {
    Said(FromRank),
    Ended,
}

/// How the parent reaches a rank.
#[derive(Debug)]
#[non_exhaustive]
pub enum RankOrigin {
    /// A process that the parent starts.
    Child,
    /// A process that already runs, and calls `serve_parent` on the other end.
    Far(RankChannel),
}

/// A rank process, as its parent sees it.
struct RankProcess {
    /// `None` if another launcher started it.
    child: Option<Child>,
    writer: Box<dyn Write + Send>,
}

/// The running ranks. Dropping this ends them.
pub struct RankCluster {
    ranks: Vec<RankProcess>,
    news: Receiver<(usize, RankEvent)>,
    info: PluginReport,
    pids: Vec<u32>,
    deadline: Instant,
    timeout: Duration,
    row_timeout: Duration,
    /// Wrong elements or bytes so far.
    wrong: u64,
    /// Files that plugins left, by rank.
    left: Vec<LeftFiles>,
    finished: bool,
}

impl RankCluster {
    /// Starts the ranks and connects them.
    pub fn start(job: &RankJob) -> Result<Self, RankLaunchError> {
        Self::start_among((0..job.ranks).map(|_| RankOrigin::Child).collect(), job)
    }

    /// Connects ranks of these origins, by rank; one origin per rank of the job.
    pub fn start_among(seats: Vec<RankOrigin>, job: &RankJob) -> Result<Self, RankLaunchError> {
        let (sender, news) = mpsc::channel();
        let mut cluster = Self {
            ranks: Vec::new(),
            news,
            info: PluginReport::default(),
            pids: Vec::new(),
            deadline: Instant::now() + job.timeout,
            timeout: job.timeout,
            row_timeout: job.row_timeout,
            wrong: 0,
            left: vec![LeftFiles::new(); job.ranks],
            finished: false,
        };
        for (rank, seat) in seats.into_iter().enumerate() {
            let process = match seat {
                RankOrigin::Child => spawn_rank(rank, job, &sender),
                RankOrigin::Far(channel) => start_listener(rank, channel, None, &sender),
            };
            cluster.ranks.push(process.map_err(|source| RankLaunchError::Start { rank, source })?);
        }
        drop(sender);
        for rank in 0..job.ranks {
            cluster.send_to_rank(rank, &ToRank::Setup(rank_setup(job, rank)));
        }
        let mut offers: Vec<HandleOffer> = Vec::new();
        for (rank, message) in cluster.gather_answers()?.into_iter().enumerate() {
            let FromRank::Listening(info, mine) = message else {
                return Err(RankLaunchError::OutOfOrder { rank });
            };
            cluster.pids.push(info.pid);
            cluster.info = info;
            offers.extend(mine);
        }
        for rank in 0..job.ranks {
            let his = offers.iter().filter(|offer| offer.sender == rank).cloned().collect();
            cluster.send_to_rank(rank, &ToRank::Connect(his));
        }
        for (rank, message) in cluster.gather_answers()?.into_iter().enumerate() {
            let FromRank::Connected = message else { return Err(RankLaunchError::OutOfOrder { rank }) };
        }
        Ok(cluster)
    }

    /// Returns the report of the loaded plugin.
    pub fn plugin_report(&self) -> &PluginReport {
        &self.info
    }

    /// Returns the process ids of the ranks.
    pub fn process_ids(&self) -> &[u32] {
        &self.pids
    }

    /// Runs one row of a collective.
    pub fn run_collective(&mut self, case: &CollectiveCase) -> Result<RowResult, RankLaunchError> {
        self.say_all(&ToRank::Run(*case));
        let mut result = RowResult { time_us: 0.0, wrong: 0 };
        let ranks = self.ranks.len() as f64;
        for (rank, message) in self.gather_answers()?.into_iter().enumerate() {
            let FromRank::Done(CollectiveMeasured { time_us, wrong }) = message else {
                return Err(RankLaunchError::OutOfOrder { rank });
            };
            result.time_us += time_us / ranks;
            result.wrong += wrong;
        }
        self.wrong += result.wrong;
        Ok(result)
    }

    /// Runs one size of the point-to-point benchmark.
    pub fn run_p2p(&mut self, case: &P2pCase) -> Result<P2pMeasured, RankLaunchError> {
        self.say_all(&ToRank::RunP2p(*case));
        let mut result: Option<P2pMeasured> = None;
        for (rank, message) in self.gather_answers()?.into_iter().enumerate() {
            let FromRank::DoneP2p(measured) = message else {
                return Err(RankLaunchError::OutOfOrder { rank });
            };
            match result.as_mut() {
                None => result = Some(measured),
                Some(first) => first.wrong += measured.wrong,
            }
        }
        let result = result.unwrap_or_default();
        self.wrong += result.wrong;
        Ok(result)
    }

    /// Makes the ranks close everything and exit, and sends them whether all verified data was correct. Returns the
    /// files that their plugins left, by rank, if they were requested.
    pub fn finish(mut self) -> Result<Vec<LeftFiles>, RankLaunchError> {
        self.say_all(&ToRank::Quit { wrong: self.wrong > 0 });
        for (rank, message) in self.gather_answers()?.into_iter().enumerate() {
            let FromRank::Closed = message else { return Err(RankLaunchError::OutOfOrder { rank }) };
        }
        self.finished = true;
        let deadline = Instant::now() + EXIT;
        for rank in (0..self.ranks.len()).filter(|rank| self.ranks[*rank].child.is_some()).collect::<Vec<_>>()
        {
            let status = self.wait_exit(rank, deadline);
            match status {
                Some(status) if status.success() => {}
                Some(status) => return Err(RankLaunchError::Died { rank, status: describe_exit(status) }),
                None => return Err(RankLaunchError::TimedOut { after: EXIT, ranks: vec![rank] }),
            }
        }
        Ok(std::mem::take(&mut self.left))
    }

    /// Sends a message to a rank. A failed write is ignored: the reader of that rank reports its end.
    fn send_to_rank(&mut self, rank: usize, message: &ToRank) {
        let _ = rendezvous::write_message(&mut self.ranks[rank].writer, message);
    }

    fn say_all(&mut self, message: &ToRank) {
        for rank in 0..self.ranks.len() {
            self.send_to_rank(rank, message);
        }
    }

    /// Waits for one message of every rank; implements barriers meanwhile.
    fn gather_answers(&mut self) -> Result<Vec<FromRank>, RankLaunchError> {
        let until = self.deadline.min(Instant::now() + self.row_timeout);
        let mut answers: Vec<Option<FromRank>> = self.ranks.iter().map(|_| None).collect();
        let mut at_barrier = vec![false; self.ranks.len()];
        while answers.iter().any(Option::is_none) {
            let left = until.saturating_duration_since(Instant::now());
            match self.news.recv_timeout(left) {
                Ok((rank, RankEvent::Said(FromRank::AtBarrier))) => {
                    at_barrier[rank] = true;
                    if at_barrier.iter().all(|there| *there) {
                        at_barrier.fill(false);
                        self.say_all(&ToRank::Go);
                    }
                }
                Ok((rank, RankEvent::Said(FromRank::Failed { message }))) => {
                    return Err(self.find_culprit(rank, Some(message)));
                }
                Ok((rank, RankEvent::Said(FromRank::Left { begins, text }))) => {
                    if !left_files::take_part(&mut self.left[rank], begins, &text) {
                        return Err(RankLaunchError::OutOfOrder { rank });
                    }
                }
                Ok((rank, RankEvent::Said(answer))) => answers[rank] = Some(answer),
                // A rank that has closed everything may exit while its peers are still closing.
                Ok((rank, RankEvent::Ended)) if matches!(answers[rank], Some(FromRank::Closed)) => {}
                Ok((rank, RankEvent::Ended)) => return Err(self.find_culprit(rank, None)),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    let late = |rank: &usize| answers[*rank].is_none() && !at_barrier[*rank];
                    let ranks: Vec<usize> = (0..answers.len()).filter(late).collect();
                    return Err(RankLaunchError::TimedOut {
                        after: self.timeout.min(self.row_timeout),
                        ranks,
                    });
                }
            }
        }
        Ok(answers.into_iter().flatten().collect())
    }

    /// Finds the rank whose failure is the cause: one that died, otherwise one whose error is not about its peer.
    fn find_culprit(&mut self, rank: usize, message: Option<String>) -> RankLaunchError {
        let mut failures = vec![(rank, message)];
        let until = Instant::now() + GRACE;
        while failures.iter().all(|(_, message)| message.is_some()) {
            match self.news.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok((rank, RankEvent::Said(FromRank::Failed { message }))) => {
                    failures.push((rank, Some(message)))
                }
                Ok((rank, RankEvent::Ended)) => failures.push((rank, None)),
                Ok(_) => {}
                Err(_) => break,
            }
        }
        if let Some((rank, _)) = failures.iter().find(|(_, message)| message.is_none()).cloned() {
            let status = self.wait_exit(rank, Instant::now() + GRACE);
            let status = status.map_or_else(|| String::from("it closed its channel"), describe_exit);
            return RankLaunchError::Died { rank, status };
        }
        let own = failures.iter().position(|(_, message)| {
            message.as_ref().is_some_and(|message| !message.contains("ncclRemoteError"))
        });
        let (rank, message) = failures.swap_remove(own.unwrap_or(0));
        RankLaunchError::Failed { rank, message: message.unwrap_or_default() }
    }

    fn wait_exit(&mut self, rank: usize, until: Instant) -> Option<ExitStatus> {
        let child = self.ranks[rank].child.as_mut()?;
        loop {
            if let Ok(Some(status)) = child.try_wait() {
                return Some(status);
            }
            if Instant::now() >= until {
                return None;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for RankCluster {
    fn drop(&mut self) {
        for rank in &mut self.ranks {
            match &mut rank.child {
                Some(child) => drop(child.kill()),
                None if !self.finished => drop(rendezvous::write_message(&mut rank.writer, &ToRank::Abort)),
                None => {}
            }
        }
        for child in self.ranks.iter_mut().filter_map(|rank| rank.child.as_mut()) {
            let _ = child.wait();
        }
    }
}

fn rank_setup(job: &RankJob, rank: usize) -> RankSetup {
    let least = job.receive_min;
    let (graph, send_bytes, recv_bytes, chunk) = match job.collective {
        // The last receive may extend behind the last byte.
        Some(collective) => (
            ConnectionGraph::for_collective(collective, job.root),
            job.bytes_max,
            job.bytes_max + least,
            job.chunk,
        ),
        None => {
            let recv_bytes = p2p::memory_bytes(job.bytes_max.max(least));
            (ConnectionGraph::Full, p2p::memory_bytes(job.bytes_max), recv_bytes, job.bytes_max)
        }
    };
    RankSetup {
        rank,
        ranks: job.ranks,
        plugin: job.plugin.clone(),
        abi: job.abi,
        device: job.device.clone(),
        comms: job.comms,
        channels: job.channels,
        graph,
        send_bytes,
        recv_bytes,
        chunk,
        receive_min: least,
        scratch: job.collective.is_some(),
        memory: job.memory,
        flush: job.flush,
        left: job.keep.as_ref().map(|keep| keep.rank_directory(rank)),
    }
}

/// Starts this program again as a rank, with one end of a socket pair as its standard input.
fn spawn_rank(rank: usize, job: &RankJob, news: &Sender<(usize, RankEvent)>) -> io::Result<RankProcess> {
    let (ours, theirs) = UnixStream::pair()?;
    let given = job.environment.iter().map(|(name, value)| (name, value));
    // The host prints warnings by default. A plugin reads the variable to know that, so it is set explicitly.
    let debug = std::env::var_os("NCCL_DEBUG").unwrap_or_else(|| "WARN".into());
    let child = Command::new(std::env::current_exe()?)
        .env("NCCL_DEBUG", debug)
        .env(RANK_VARIABLE, rank.to_string())
        .envs(given)
        .envs(job.keep.as_ref().map(|keep| (keep.variable, keep.rank_directory(rank))))
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::null())
        .spawn()?;
    start_listener(rank, RankChannel::from_unix(ours)?, Some(child), news)
}

/// Starts the thread that reads the messages of a rank.
fn start_listener(
    rank: usize,
    channel: RankChannel,
    child: Option<Child>,
    news: &Sender<(usize, RankEvent)>,
) -> io::Result<RankProcess> {
    let RankChannel { mut reader, writer } = channel;
    let news = news.clone();
    std::thread::Builder::new().name(format!("rank {rank}")).spawn(move || {
        while let Ok(Some(message)) = rendezvous::read_message(&mut reader) {
            if news.send((rank, RankEvent::Said(message))).is_err() {
                return;
            }
        }
        let _ = news.send((rank, RankEvent::Ended));
    })?;
    Ok(RankProcess { child, writer })
}

fn describe_exit(status: ExitStatus) -> String {
    match status.signal() {
        Some(signal) => format!("killed by signal {signal}"),
        None => format!("exit status {}", status.code().unwrap_or(-1)),
    }
}
