//! `trunkline run`: starts the processes of a job here and on other hosts, and ends them all when one fails.
//!
//! Called by `cmd::run`. One agent per host starts the ranks. The launcher itself reads frames and signals, serves
//! PMI-1, and decides when the job has ended.

pub(crate) mod agent;
pub(crate) mod child;
mod frame;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
pub(crate) mod hosts;
mod job;
mod output;
mod state;

use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use thiserror::Error;
use trunkline_bootstrap::JobSecret;

use frame::{AgentReady, LauncherFrame, VERSION};
use hosts::{HostsError, JobHost};

/// How long hosts may take to reply.
const ANSWER: Duration = Duration::from_secs(60);
/// Signals that end the launcher and are forwarded to the ranks.
const SIGNALS: [i32; 3] =
    [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP];

/// The job to start.
#[derive(Clone, Debug)]
pub(crate) struct LaunchPlan {
    /// Hosts with their ranks.
    pub(crate) hosts: Vec<JobHost>,
    /// Words of the remote shell's command; the host's name and our command are appended.
    pub(crate) remote_shell: Vec<String>,
    /// Whether names of this machine need no remote shell.
    pub(crate) local_names: bool,
    /// Path of our command on other hosts.
    pub(crate) remote_program: String,
    /// Address of rank 0's host, if `--address` was given.
    pub(crate) address: Option<String>,
    /// Program and arguments.
    pub(crate) program: Vec<String>,
    /// Variables for hosts that do not inherit our environment.
    pub(crate) variables: Vec<(String, String)>,
    /// Variables requested with arguments.
    pub(crate) extra: Vec<(String, String)>,
    /// The working directory of the ranks.
    pub(crate) directory: String,
    /// Whether each line of output is prefixed with its rank.
    pub(crate) label: bool,
}

/// The job could not be run.
#[derive(Debug, Error)]
#[non_exhaustive]
pub(crate) enum RunError {
    /// Hosts and ranks do not match.
    #[error(transparent)]
    Hosts(#[from] HostsError),
    /// An argument is invalid.
    #[error("{0}")]
    Usage(String),
    /// A host's agent cannot be started.
    #[error("host {host}: cannot run {command}: {source}")]
    Shell {
        /// The host.
        host: String,
        /// The command.
        command: String,
        /// The system's error.
        source: io::Error,
    },
    /// A host's agent ended or never began.
    #[error(
        "host {host}: the agent ended ({why}); run `{command}` by hand, and check that trunkline has this path there \
         (--remote-trunkline names another)"
    )]
    Agent {
        /// The host.
        host: String,
        /// The way in which it ended.
        why: String,
        /// The command.
        command: String,
    },
    /// A host did not reply in time.
    #[error("host {host} did not reply within {} s; check that the remote shell works without a password", ANSWER.as_secs())]
    Silent {
        /// The host.
        host: String,
    },
    /// The host has another version of this program.
    #[error(
        "host {host} has a trunkline of another version ({found} instead of {VERSION}); install the same build"
    )]
    Version {
        /// The host.
        host: String,
        /// Its version.
        found: u32,
    },
    /// An agent reported a failure.
    #[error("host {host}: {why}")]
    Failed {
        /// The host.
        host: String,
        /// The agent's message.
        why: String,
    },
    /// A system call failed.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// An event for the launcher.
enum LauncherEvent {
    /// A frame from the agent with this index.
    Said(usize, LauncherFrame),
    /// The end of that agent's output, and the read error, if any.
    Ended(usize, Option<io::Error>),
    /// A signal to the launcher.
    Signal(i32),
}

/// The agent of a host.
struct HostAgent {
    name: String,
    command: String,
    child: Child,
    input: ChildStdin,
    /// Whether it inherits our environment.
    local: bool,
}

/// Runs the job; returns the exit status of the command.
pub(crate) fn launch_job(plan: &LaunchPlan) -> Result<u8, RunError> {
    let (sender, events) = mpsc::sync_channel(1024);
    let mut signals = signal_hook::iterator::Signals::new(SIGNALS)?;
    let signal_sender = sender.clone();
    thread::Builder::new().name("signals".into()).spawn(move || {
        for signal in signals.forever() {
            if signal_sender.send(LauncherEvent::Signal(signal)).is_err() {
                return;
            }
        }
    })?;
    let mut agents = HostAgents(Vec::new());
    for (index, host) in plan.hosts.iter().enumerate() {
        agents.0.push(start_agent(plan, host, index, &sender)?);
    }
    drop(sender);
    let ready = match await_ready(&mut agents.0, &events)? {
        Ok(ready) => ready,
        Err(signal) => return Ok(128 + signal as u8),
    };
    let secret = JobSecret::random()?.to_hex();
    let store = store_host(plan, &agents.0, &ready[0]);
    let starts = job::agent_starts(plan, &store, ready[0].port, &secret);
    for (agent, start) in agents.0.iter_mut().zip(starts) {
        let mut start = start;
        if !agent.local {
            start.variables.splice(0..0, plan.variables.iter().cloned());
        }
        // The agent's reader thread detects an agent that has ended.
        match frame::send_frame(&mut agent.input, &LauncherFrame::Start(start)) {
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => return Err(error.into()),
            _ => {}
        }
    }
    job::RunningJob::new(plan, &mut agents.0).run_to_end(&events)
}

/// The agents of a job. On drop, those still running end with the launcher.
struct HostAgents(Vec<HostAgent>);

impl Drop for HostAgents {
    fn drop(&mut self) {
        let agents = std::mem::take(&mut self.0);
        // Agents end when their input is closed, and they end their ranks.
        let mut children: Vec<Child> = agents.into_iter().map(|agent| agent.child).collect();
        let until = Instant::now() + Duration::from_secs(3);
        for child in &mut children {
            while matches!(child.try_wait(), Ok(None)) && Instant::now() < until {
                thread::sleep(Duration::from_millis(5));
            }
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Whether a name refers to this machine.
fn is_here(name: &str) -> bool {
    let own = rustix::system::uname();
    ["localhost", "127.0.0.1", "::1"].contains(&name) || own.nodename().to_bytes() == name.as_bytes()
}

fn start_agent(
    plan: &LaunchPlan,
    host: &JobHost,
    index: usize,
    events: &mpsc::SyncSender<LauncherEvent>,
) -> Result<HostAgent, RunError> {
    let local = plan.local_names && is_here(&host.name);
    let mut words: Vec<String> = Vec::new();
    if local {
        words.push(std::env::current_exe()?.display().to_string());
    } else {
        words.extend(plan.remote_shell.iter().cloned());
        words.push(host.name.clone());
        words.push(plan.remote_program.clone());
    }
    words.push("run-agent".into());
    let shown = words.join(" ");
    let shell = |source| RunError::Shell { host: host.name.clone(), command: shown.clone(), source };
    // In a process group of its own, so that only the launcher receives the terminal's signals.
    let mut child = Command::new(&words[0])
        .args(&words[1..])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .process_group(0)
        .spawn()
        .map_err(shell)?;
    let (Some(input), Some(mut output)) = (child.stdin.take(), child.stdout.take()) else {
        return Err(shell(io::ErrorKind::BrokenPipe.into()));
    };
    let events = events.clone();
    thread::Builder::new().name(format!("host {index}")).spawn(move || {
        loop {
            let event = match frame::receive_frame(&mut output) {
                Ok(Some(frame)) => LauncherEvent::Said(index, frame),
                Ok(None) => LauncherEvent::Ended(index, None),
                Err(error) => LauncherEvent::Ended(index, Some(error)),
            };
            let last = matches!(event, LauncherEvent::Ended(..));
            if events.send(event).is_err() || last {
                return;
            }
        }
    })?;
    Ok(HostAgent { name: host.name.clone(), command: shown, child, input, local })
}

/// Waits for the first frames of all agents, or for an earlier signal.
fn await_ready(
    agents: &mut [HostAgent],
    events: &Receiver<LauncherEvent>,
) -> Result<Result<Vec<AgentReady>, i32>, RunError> {
    let until = Instant::now() + ANSWER;
    let mut ready: Vec<Option<AgentReady>> = agents.iter().map(|_| None).collect();
    while let Some(late) = ready.iter().position(Option::is_none) {
        match events.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(LauncherEvent::Said(index, LauncherFrame::Ready(found))) => {
                if found.version != VERSION {
                    return Err(RunError::Version { host: agents[index].name.clone(), found: found.version });
                }
                ready[index] = Some(found);
            }
            Ok(LauncherEvent::Said(index, LauncherFrame::Failed(why))) => {
                return Err(RunError::Failed { host: agents[index].name.clone(), why });
            }
            Ok(LauncherEvent::Said(index, _)) => {
                return Err(agent_error(&mut agents[index], Some("it sent an unexpected frame")));
            }
            Ok(LauncherEvent::Ended(index, error)) => {
                let why = error.map(|error| error.to_string());
                return Err(agent_error(&mut agents[index], why.as_deref()));
            }
            Ok(LauncherEvent::Signal(signal)) => return Ok(Err(signal)),
            Err(_) => return Err(RunError::Silent { host: agents[late].name.clone() }),
        }
    }
    Ok(Ok(ready.into_iter().flatten().collect()))
}

/// The error for an agent that has ended.
fn agent_error(agent: &mut HostAgent, why: Option<&str>) -> RunError {
    let status = || match agent.child.wait() {
        Ok(status) => status.to_string(),
        Err(error) => error.to_string(),
    };
    let why = why.map_or_else(status, str::to_owned);
    RunError::Agent { host: agent.name.clone(), why, command: agent.command.clone() }
}

/// The address at which the other ranks find rank 0's host.
fn store_host(plan: &LaunchPlan, agents: &[HostAgent], ready: &AgentReady) -> String {
    use std::net::ToSocketAddrs as _;
    if let Some(address) = &plan.address {
        return address.clone();
    }
    if agents.len() == 1 {
        return "127.0.0.1".into();
    }
    let name = &plan.hosts[0].name;
    let bare = name.rsplit_once('@').map_or(name.as_str(), |(_, host)| host);
    let known = (bare, 0).to_socket_addrs().is_ok_and(|mut found| found.all(|one| !one.ip().is_loopback()));
    if known {
        return bare.into();
    }
    ready.addresses.first().cloned().unwrap_or_else(|| bare.into())
}
