//! A rank process: set-up, connections, runs, verification, teardown.
//!
//! Every program that launches ranks calls `rank_entry` first, because the launcher starts the same program again. A
//! process that another launcher made a rank calls `serve_parent`. The main thread here corresponds to NCCL's
//! application thread: init, properties, data; the service thread and the progress thread do the rest. A rank never
//! retries a failed call and never waits for a clock: the parent does both.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use thiserror::Error;
use trunkline_sys::nccl_net::{CommAttr, NetAttr};

use crate::abi::PluginCallError;
use crate::buffer::MapError;
use crate::channel::RankChannel;
use crate::comm::PluginContext;
use crate::device::{self, SelectDeviceError};
use crate::executor::{CollectiveRun, ReceiveOptions, ScheduleExecutor};
use crate::left_files;
use crate::links::{self, CommMemory, ListeningPeer, PeerCallError, RankLinks};
use crate::p2p;
use crate::plugin::{LoadError, NetPlugin};
use crate::rendezvous::{
    self, CollectiveCase, CollectiveMeasured, FromRank, HandleOffer, P2pCase, PluginReport, RankSetup, ToRank,
};
use crate::schedule::{RankSchedule, SchedulePlan};
use crate::verify::RowExtents;
use crate::worker::{WorkerGone, WorkerThread};

/// Set in the environment of a rank process.
pub(crate) const RANK_VARIABLE: &str = "TRUNKLINE_NETHOST_RANK";
/// How long closing may take after the parent has ended.
const CLOSING: Duration = Duration::from_secs(10);

/// Why the parent does not need this rank any more.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum ParentLoss {
    /// The run has failed, and the parent reports the cause.
    Aborted,
    /// The parent has ended.
    Gone,
}

/// The paths of a rank that another launcher started, on its own host; they replace the parent's paths.
#[derive(Clone, Debug)]
pub struct LocalOverrides {
    /// The plugin's file.
    pub plugin: PathBuf,
    /// The directory for files of the plugin that the parent requests.
    pub left: Option<PathBuf>,
}

/// Why a rank ended early.
#[derive(Debug, Error)]
enum RankError {
    #[error("the connection to the launcher failed: {0}")]
    Launcher(#[from] std::io::Error),
    #[error("the launcher sent an unexpected message; do all hosts have the same build?")]
    Unexpected,
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error(transparent)]
    Call(#[from] PluginCallError),
    #[error(transparent)]
    Device(#[from] SelectDeviceError),
    #[error("messages of {bytes} bytes were requested, but the device carries at most {most}")]
    MessageTooLarge { bytes: usize, most: usize },
    #[error(transparent)]
    Link(#[from] PeerCallError),
    #[error(transparent)]
    Memory(#[from] MapError),
    #[error(transparent)]
    Worker(#[from] WorkerGone),
}

/// Runs this process as a rank if the launcher started it as one.
pub fn rank_entry() -> Option<ExitCode> {
    std::env::var_os(RANK_VARIABLE)?;
    // If the launcher dies, the kernel kills its ranks, even inside the plugin.
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    let stream = std::io::stdin().as_fd().try_clone_to_owned().map(UnixStream::from);
    let Ok(channel) = stream.and_then(RankChannel::from_unix) else { return Some(ExitCode::FAILURE) };
    let _ = serve_parent(channel, None, |_| std::process::exit(1));
    Some(ExitCode::SUCCESS)
}

/// Serves the parent at the other end of the channel until it ends the rank. Returns whether any rank received wrong
/// bytes. `own` overrides the parent's paths, because the parent may run on another host.
///
/// `lost` must end the process. It is called on another thread, because this one may be inside the plugin. A failure
/// here also waits for that call, after it was reported to the parent.
///
/// # Errors
/// If no thread can be started.
pub fn serve_parent(
    channel: RankChannel,
    own: Option<LocalOverrides>,
    lost: impl FnOnce(ParentLoss) + Send + 'static,
) -> std::io::Result<bool> {
    let RankChannel { mut reader, writer } = channel;
    let (sender, inbox) = mpsc::channel();
    std::thread::Builder::new().name("parent".into()).spawn(move || {
        let mut leaving = false;
        loop {
            match rendezvous::read_message(&mut reader) {
                Ok(Some(ToRank::Abort)) => return lost(ParentLoss::Aborted),
                Ok(Some(message)) => {
                    leaving |= matches!(message, ToRank::Quit { .. });
                    let _ = sender.send(message);
                }
                Ok(None) | Err(_) => break,
            }
        }
        if leaving {
            std::thread::sleep(CLOSING);
        }
        lost(ParentLoss::Gone);
    })?;
    let mut parent = ParentChannel { inbox, writer };
    let mut comms = Vec::new();
    match run_rank(&mut parent, own, &mut comms) {
        Ok(wrong) => Ok(wrong),
        Err(error) => {
            let _ = parent.send_message(&FromRank::Failed { message: error.to_string() });
            // The progress threads may still be inside the plugin, so nothing is closed. Peers still use this rank's
            // memory and sockets; the parent ends the process after it has the reports of all ranks.
            std::mem::forget(comms);
            loop {
                std::thread::park();
            }
        }
    }
}

/// The other end of the channel.
struct ParentChannel {
    inbox: Receiver<ToRank>,
    writer: Box<dyn std::io::Write + Send>,
}

impl ParentChannel {
    fn send_message(&mut self, message: &FromRank) -> Result<(), RankError> {
        Ok(rendezvous::write_message(&mut self.writer, message)?)
    }

    fn receive_message(&mut self) -> Result<ToRank, RankError> {
        self.inbox.recv().map_err(|_| RankError::Launcher(std::io::ErrorKind::UnexpectedEof.into()))
    }

    fn barrier(&mut self) -> Result<(), RankError> {
        self.send_message(&FromRank::AtBarrier)?;
        match self.receive_message()? {
            ToRank::Go => Ok(()),
            _ => Err(RankError::Unexpected),
        }
    }
}

/// A communicator of this rank.
struct RankComm {
    net: Arc<PluginContext>,
    memory: Arc<CommMemory>,
    links: Arc<RankLinks>,
    service: WorkerThread<()>,
    progress: WorkerThread<ScheduleExecutor>,
}

fn run_rank(
    parent: &mut ParentChannel,
    own: Option<LocalOverrides>,
    comms: &mut Vec<RankComm>,
) -> Result<bool, RankError> {
    let ToRank::Setup(mut setup) = parent.receive_message()? else { return Err(RankError::Unexpected) };
    if let Some(LocalOverrides { plugin, left }) = own {
        (setup.plugin, setup.left) = (plugin, left);
    }
    connect_comms(parent, &setup, comms)?;
    parent.send_message(&FromRank::Connected)?;
    let wrong = loop {
        match parent.receive_message()? {
            ToRank::Run(case) => {
                let measured = run_row(parent, &setup, comms, &case)?;
                parent.send_message(&FromRank::Done(measured))?;
            }
            ToRank::RunP2p(case) => {
                let measured = run_p2p(parent, &setup, comms, case)?;
                parent.send_message(&FromRank::DoneP2p(measured))?;
            }
            ToRank::Quit { wrong } => break wrong,
            _ => return Err(RankError::Unexpected),
        }
    };
    for comm in comms.drain(..) {
        close_comm(comm)?;
    }
    if let Some(directory) = &setup.left {
        left_files::send_files(directory, |message| parent.send_message(message))?;
    }
    parent.send_message(&FromRank::Closed)?;
    Ok(wrong)
}

/// A communicator with its listeners.
struct ListeningComm {
    net: Arc<PluginContext>,
    service: WorkerThread<()>,
    listening: Vec<ListeningPeer>,
}

fn connect_comms(
    parent: &mut ParentChannel,
    setup: &RankSetup,
    comms: &mut Vec<RankComm>,
) -> Result<(), RankError> {
    let plugin = NetPlugin::load(&setup.plugin, setup.abi)?;
    let nets: Vec<Arc<PluginContext>> = (0..setup.comms)
        .map(|index| PluginContext::init(&plugin, 0x7472_756e_0000 + index as u64))
        .collect::<Result<_, _>>()?;
    let Some(first) = nets.first() else { return Err(RankError::Unexpected) };
    let (number, properties) = device::choose_device(first, &setup.device)?;
    let mut pending = Vec::new();
    let mut offers = Vec::new();
    for (index, net) in nets.into_iter().enumerate() {
        net.set_net_attr(&traffic_hints(setup))?;
        let service = WorkerThread::start_thread("service", ())?;
        let listening = listen_on_device(setup, number, &net, &service, index, &mut offers)?;
        pending.push(ListeningComm { net, service, listening });
    }
    let most = properties.max_coll_bytes.min(properties.max_p2p_bytes);
    if setup.chunk > most {
        return Err(RankError::MessageTooLarge { bytes: setup.chunk, most });
    }
    let flush = setup.flush.unwrap_or(properties.force_flush);
    let info = PluginReport {
        name: plugin.name(),
        abi: plugin.version(),
        devices: plugin.devices()?,
        number,
        members: properties.members,
        device: properties.name,
        speed: properties.speed,
        flush,
        pid: std::process::id(),
    };
    parent.send_message(&FromRank::Listening(info, offers))?;
    let ToRank::Connect(offers) = parent.receive_message()? else { return Err(RankError::Unexpected) };
    for (index, pending) in pending.into_iter().enumerate() {
        let mine: Vec<HandleOffer> = offers.iter().filter(|offer| offer.comm == index).cloned().collect();
        comms.push(establish_comm(setup, number, pending, mine, flush)?);
    }
    Ok(())
}

/// Returns the traffic hints that NCCL passes before it connects.
fn traffic_hints(setup: &RankSetup) -> NetAttr {
    let attr = |peers: usize| CommAttr {
        max_concurrent_peers: peers as i32,
        min_concurrent_peers: peers as i32,
        max_flows_per_peer: setup.channels as i32,
        min_flows_per_peer: setup.channels as i32,
    };
    NetAttr {
        send_comm_attr: attr(setup.graph.peers_out(setup.rank, setup.ranks).len()),
        recv_comm_attr: attr(setup.graph.peers_in(setup.rank, setup.ranks).len()),
        ..NetAttr::UNDEF
    }
}

fn listen_on_device(
    setup: &RankSetup,
    device: i32,
    net: &Arc<PluginContext>,
    service: &WorkerThread<()>,
    index: usize,
    offers: &mut Vec<HandleOffer>,
) -> Result<Vec<ListeningPeer>, RankError> {
    let peers = setup.graph.peers_in(setup.rank, setup.ranks);
    let net = Arc::clone(net);
    let channels = setup.channels;
    let count = peers.len();
    let made = service.call_task(move |()| links::listen_for_peers(&net, device, &peers, channels))??;
    let mut listening = Vec::new();
    for (position, (row, handle)) in made.into_iter().enumerate() {
        let channel = position / count.max(1);
        offers.push(HandleOffer::new(index, channel, setup.rank, row.peer, &handle));
        listening.push(row);
    }
    Ok(listening)
}

/// Connects one communicator in the order of its schedule's links, and starts its progress thread.
fn establish_comm(
    setup: &RankSetup,
    device: i32,
    pending: ListeningComm,
    offers: Vec<HandleOffer>,
    flush: bool,
) -> Result<RankComm, RankError> {
    let ListeningComm { net, service, listening } = pending;
    let mut ordered = Vec::new();
    for channel in 0..setup.channels {
        for peer in setup.graph.peers_out(setup.rank, setup.ranks) {
            let offer = offers.iter().find(|offer| offer.channel == channel && offer.listener == peer);
            ordered.push(offer.cloned().ok_or(RankError::Unexpected)?);
        }
    }
    let slot = if setup.scratch { slot_bytes(setup) } else { 0 };
    let scratch = RankSchedule::scratch_bytes(setup.graph, setup.rank, setup.ranks, setup.channels, slot);
    let memory = Arc::new(CommMemory::new(setup.memory, [setup.send_bytes, setup.recv_bytes, scratch])?);
    let threads = setup.ranks * setup.comms;
    let rank = setup.rank;
    let net_there = Arc::clone(&net);
    let memory_there = Arc::clone(&memory);
    let links = service.call_task(move |()| {
        let mut links = links::connect_links(&net_there, device, &ordered, listening, rank, threads)?;
        links.register_memory(&memory_there).map(|()| links)
    })??;
    let links = Arc::new(links);
    let receives = ReceiveOptions { least: setup.receive_min, flush };
    let executor = ScheduleExecutor::new(Arc::clone(&links), Arc::clone(&memory), receives, threads);
    let progress = WorkerThread::start_thread("progress", executor)?;
    Ok(RankComm { net, memory, links, service, progress })
}

/// Returns the length of a scratch slot, which must hold a whole receive.
fn slot_bytes(setup: &RankSetup) -> usize {
    setup.chunk.max(setup.receive_min)
}

/// Closes a communicator in NCCL's order: first progress, then registrations and connections, then the context.
fn close_comm(comm: RankComm) -> Result<(), RankError> {
    let RankComm { net, memory, links, service, progress } = comm;
    progress.join_thread()?;
    if let Ok(links) = Arc::try_unwrap(links) {
        service.call_task(move |()| links.close_links())??;
    }
    service.join_thread()?;
    drop(memory);
    drop(net);
    Ok(())
}

/// Times and verifies one row on all communicators at the same time.
fn run_row(
    parent: &mut ParentChannel,
    setup: &RankSetup,
    comms: &[RankComm],
    case: &CollectiveCase,
) -> Result<CollectiveMeasured, RankError> {
    let plan = SchedulePlan {
        collective: case.collective,
        dtype: case.dtype,
        op: case.op,
        block: case.block,
        rank: setup.rank,
        ranks: setup.ranks,
        root: case.root,
        in_place: case.in_place,
        channels: setup.channels,
        chunk: setup.chunk,
        slot: slot_bytes(setup),
    };
    let layout = RowExtents::new(&plan, case.seed);
    let job = CollectiveRun {
        schedule: Arc::new(RankSchedule::build(&plan)),
        bases: layout.buffer_bases(),
        dtype: case.dtype,
        op: case.op,
        ranks: setup.ranks,
    };
    for (index, comm) in comms.iter().enumerate() {
        layout.with_comm(index).fill_memory(&comm.memory);
    }
    parent.barrier()?;
    let mut measured = CollectiveMeasured { time_us: time_run(comms, &job, case)?, wrong: 0 };
    for check in 0..case.checks {
        let layout = layout.with_seed(case.seed.wrapping_add(u64::from(check) + 1));
        for (index, comm) in comms.iter().enumerate() {
            layout.with_comm(index).fill_memory(&comm.memory);
        }
        parent.barrier()?;
        run_all(comms, &job, 1)?;
        for (index, comm) in comms.iter().enumerate() {
            measured.wrong += layout.with_comm(index).count_wrong(&comm.memory);
        }
    }
    Ok(measured)
}

/// Returns the microseconds of one iteration on the slowest communicator.
fn time_run(comms: &[RankComm], job: &CollectiveRun, case: &CollectiveCase) -> Result<f64, RankError> {
    let answers: Vec<_> = comms
        .iter()
        .map(|comm| {
            let job = job.clone();
            let case = *case;
            comm.progress.begin_task(move |executor| -> Result<f64, PeerCallError> {
                for _ in 0..case.warmup {
                    executor.run_schedule(&job)?;
                }
                let start = Instant::now();
                for _ in 0..case.iterations {
                    executor.run_schedule(&job)?;
                }
                Ok(start.elapsed().as_secs_f64() * 1e6 / f64::from(case.iterations.max(1)))
            })
        })
        .collect();
    let mut longest: f64 = 0.0;
    for answer in answers {
        longest = longest.max(answer.wait()??);
    }
    Ok(longest)
}

fn run_all(comms: &[RankComm], job: &CollectiveRun, times: u32) -> Result<(), RankError> {
    let answers: Vec<_> = comms
        .iter()
        .map(|comm| {
            let job = job.clone();
            comm.progress.begin_task(move |executor| (0..times).try_for_each(|_| executor.run_schedule(&job)))
        })
        .collect();
    for answer in answers {
        answer.wait()??;
    }
    Ok(())
}

fn run_p2p(
    parent: &mut ParentChannel,
    setup: &RankSetup,
    comms: &[RankComm],
    case: P2pCase,
) -> Result<rendezvous::P2pMeasured, RankError> {
    parent.barrier()?;
    let Some(comm) = comms.first() else { return Err(RankError::Unexpected) };
    let rank = setup.rank;
    Ok(comm.progress.call_task(move |executor| p2p::measure_size(executor, rank, &case))??)
}
