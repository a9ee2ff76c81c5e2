//! The launcher's agent on a host: starts ranks, forwards their output and their PMI lines, delivers signals, and
//! leaves no process behind. Called by `cmd` for the hidden subcommand `run-agent`.
//!
//! One mutex guards standard output; every thread writes whole frames. Each rank leads a process group, so that
//! processes it starts end with it.

use std::io::{self, BufRead as _, BufReader, Read, Stdout, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};
use trunkline_bootstrap::PMI_LINE_BYTES_MAX;

use super::frame::{
    self, AgentReady, AgentStart, LauncherFrame, OUTPUT_BYTES_MAX, RankEnding, RankStart, VERSION,
};

/// Time between SIGTERM and SIGKILL of the ranks after the launcher's stream has ended.
const GRACE: Duration = Duration::from_millis(500);
/// Write limit for a rank that does not read its PMI stream.
const PMI_TIME: Duration = Duration::from_secs(5);
/// Frames to the launcher.
#[derive(Clone)]
struct LauncherSender(Arc<Mutex<Stdout>>);

impl LauncherSender {
    fn send_frame(&self, frame: &LauncherFrame) -> io::Result<()> {
        frame::send_frame(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner), frame)
    }
}

/// A started rank, as the thread that reads the launcher's frames uses it.
struct StartedRank {
    number: u32,
    group: Pid,
    pmi: UnixStream,
}

/// Ranks that may get signals. Ended ranks are removed before the system can reuse their process ids.
type StartedRanks = Arc<Mutex<Vec<StartedRank>>>;

/// Runs until all ranks have ended, or until the launcher's stream ends.
pub(crate) fn run_agent() -> ExitCode {
    let up = LauncherSender(Arc::new(Mutex::new(io::stdout())));
    match run_ranks(&up) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = up.send_frame(&LauncherFrame::Failed(error.to_string()));
            ExitCode::from(2)
        }
    }
}

fn run_ranks(up: &LauncherSender) -> io::Result<()> {
    let addresses = trunkline_bootstrap::host_addresses()?.iter().map(ToString::to_string).collect();
    up.send_frame(&LauncherFrame::Ready(AgentReady {
        version: VERSION,
        port: trunkline_bootstrap::free_port()?,
        addresses,
    }))?;
    let mut down = io::stdin();
    let Some(LauncherFrame::Start(start)) = frame::receive_frame(&mut down)? else { return Ok(()) };
    std::env::set_current_dir(&start.directory).map_err(|error| {
        io::Error::new(error.kind(), format!("cannot enter {}: {error}", start.directory))
    })?;
    let ranks = StartedRanks::default();
    // Ranks are started by this thread: a rank's parent-death signal is sent when its starting thread ends.
    let mut waiting = Vec::new();
    let mut failed = None;
    for one in &start.ranks {
        match spawn_rank(&start, one, up, &ranks) {
            Ok(waiter) => waiting.push(waiter),
            Err(error) => {
                failed =
                    Some(io::Error::new(error.kind(), format!("cannot start rank {}: {error}", one.rank)));
                break;
            }
        }
    }
    if let Some(error) = failed {
        signal_ranks(&ranks, Signal::KILL);
        return Err(error);
    }
    let listening = Arc::clone(&ranks);
    thread::Builder::new().name("launcher".into()).spawn(move || handle_frames(&mut down, &listening))?;
    for waiter in waiting {
        let _ = waiter.join();
    }
    Ok(())
}

/// Starts one rank and the threads that serve it. The returned thread is the last of them; it ends after it has sent
/// the rank's exit status.
fn spawn_rank(
    start: &AgentStart,
    one: &RankStart,
    up: &LauncherSender,
    ranks: &StartedRanks,
) -> io::Result<JoinHandle<()>> {
    let (ours, theirs) = UnixStream::pair()?;
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["run-child", "--agent", &std::process::id().to_string(), "--", &start.program]);
    command.args(&start.arguments).env_remove("PMI_PORT").env_remove("PMI_ID");
    command.envs(start.variables.iter().cloned()).envs(one.variables.iter().cloned());
    command.stdin(Stdio::from(OwnedFd::from(theirs))).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.process_group(0).spawn()?;
    drop(command);
    let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) else {
        return Err(io::Error::other("a process without an id"));
    };
    let number = one.rank;
    ours.set_write_timeout(Some(PMI_TIME))?;
    lock_ranks(ranks).push(StartedRank { number, group, pmi: ours.try_clone()? });
    let mut readers = Vec::new();
    if let Some(stream) = child.stdout.take() {
        readers.push(forward_output(stream, up, move |bytes| LauncherFrame::Output(number, bytes))?);
    }
    if let Some(stream) = child.stderr.take() {
        readers.push(forward_output(stream, up, move |bytes| LauncherFrame::Errors(number, bytes))?);
    }
    let pmi_up = up.clone();
    thread::Builder::new().name(format!("pmi {number}")).spawn(move || forward_pmi(ours, number, &pmi_up))?;
    let up = up.clone();
    let ranks = Arc::clone(ranks);
    thread::Builder::new()
        .name(format!("rank {number}"))
        .spawn(move || await_end(number, group, child, readers, &up, &ranks))
}

/// Forwards a rank's output until the rank ends or the launcher stops reading.
fn forward_output(
    mut stream: impl Read + Send + 'static,
    up: &LauncherSender,
    frame: impl Fn(Vec<u8>) -> LauncherFrame + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    let up = up.clone();
    thread::Builder::new().name("output".into()).spawn(move || {
        let mut bytes = vec![0; OUTPUT_BYTES_MAX];
        loop {
            match stream.read(&mut bytes) {
                Ok(0) => return,
                Ok(read) if up.send_frame(&frame(bytes[..read].to_vec())).is_ok() => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(_) | Err(_) => return,
            }
        }
    })
}

/// Forwards PMI lines to the launcher. A line that is too long ends the stream.
fn forward_pmi(stream: UnixStream, rank: u32, up: &LauncherSender) {
    let mut reader = BufReader::new(stream);
    loop {
        let mut line = Vec::new();
        let limited = (&mut reader).take(PMI_LINE_BYTES_MAX as u64).read_until(b'\n', &mut line);
        if limited.is_err() || line.pop() != Some(b'\n') {
            return;
        }
        if up.send_frame(&LauncherFrame::Pmi(rank, String::from_utf8_lossy(&line).into_owned())).is_err() {
            return;
        }
    }
}

/// Waits for a rank to exit, kills the rest of its process group, and sends its exit status after its last output.
fn await_end(
    number: u32,
    group: Pid,
    mut child: Child,
    readers: Vec<JoinHandle<()>>,
    up: &LauncherSender,
    ranks: &StartedRanks,
) {
    // The rank is not reaped yet, so its process id is not reused.
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    while let Err(Errno::INTR) = rustix::process::waitid(WaitId::Pid(group), options) {}
    lock_ranks(ranks).retain(|rank| rank.number != number);
    let _ = rustix::process::kill_process_group(group, Signal::KILL);
    let status = child.wait();
    for reader in readers {
        let _ = reader.join();
    }
    let ending = match status {
        Ok(status) => match status.signal() {
            Some(signal) => RankEnding::Signal(signal),
            None => RankEnding::Code(status.code().unwrap_or(1)),
        },
        Err(_) => RankEnding::Code(1),
    };
    let _ = up.send_frame(&LauncherFrame::Exited(number, ending));
}

/// Executes the launcher's frames. When their stream ends, it ends the ranks and this process.
fn handle_frames(down: &mut impl Read, ranks: &StartedRanks) {
    while let Ok(Some(frame)) = frame::receive_frame(down) {
        match frame {
            LauncherFrame::Signal(number) => {
                if let Some(named) = Signal::from_named_raw(number) {
                    signal_ranks(ranks, named);
                }
            }
            LauncherFrame::Pmi(rank, line) => {
                let stream =
                    lock_ranks(ranks).iter().find(|one| one.number == rank).map(|one| one.pmi.try_clone());
                if let Some(Ok(mut stream)) = stream {
                    // A rank that has ended or does not read detects that by itself.
                    let _ = stream.write_all(format!("{line}\n").as_bytes());
                }
            }
            _ => break,
        }
    }
    signal_ranks(ranks, Signal::TERM);
    thread::sleep(GRACE);
    signal_ranks(ranks, Signal::KILL);
    std::process::exit(2);
}

fn signal_ranks(ranks: &StartedRanks, signal: Signal) {
    for rank in lock_ranks(ranks).iter() {
        let _ = rustix::process::kill_process_group(rank.group, signal);
    }
}

fn lock_ranks(ranks: &StartedRanks) -> std::sync::MutexGuard<'_, Vec<StartedRank>> {
    ranks.lock().unwrap_or_else(PoisonError::into_inner)
}
