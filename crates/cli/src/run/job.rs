//! A running job: output, PMI-1 and ends of its ranks, until the last one. Called by the launcher.
//!
//! The first rank that fails ends the job. The others get a moment to end by themselves, as they often do and know more,
//! then a request, then no choice.

use std::io::{self, Stderr, Stdout};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use trunkline_bootstrap::{PmiReply, PmiSpace, own};

use super::frame::{self, Ending, Frame, RankStart, Start};
use super::output::Output;
use super::{Agent, Event, Plan, RunError, hosts};

/// After a failure, the time to end by oneself.
const OWN_TIME: Duration = Duration::from_millis(300);
/// After a request to end.
const ASKED_TIME: Duration = Duration::from_secs(3);
/// After SIGKILL; what is then still there is on a host that does not answer.
const KILLED_TIME: Duration = Duration::from_secs(3);
const TERM: i32 = signal_hook::consts::SIGTERM;
const KILL: i32 = signal_hook::consts::SIGKILL;

/// What each agent is to start.
pub(super) fn starts(plan: &Plan, store: &str, port: u16, secret: &str) -> Vec<Start> {
    let size: usize = plan.hosts.iter().map(|host| host.count).sum();
    let bracketed = if store.contains(':') { format!("[{store}]") } else { store.to_owned() };
    let pair = |name: &str, value: String| (name.to_owned(), value);
    let start = |host: &hosts::Host| {
        let mut variables = vec![
            pair(own::SIZE, size.to_string()),
            pair(own::LOCAL_SIZE, host.count.to_string()),
            pair(own::STORE, format!("{bracketed}:{port}")),
            pair(own::SECRET, secret.to_owned()),
            pair("WORLD_SIZE", size.to_string()),
            pair("LOCAL_WORLD_SIZE", host.count.to_string()),
            pair("MASTER_ADDR", store.to_owned()),
            pair("MASTER_PORT", port.to_string()),
            pair("PMI_SIZE", size.to_string()),
            pair("MPI_LOCALNRANKS", host.count.to_string()),
        ];
        variables.extend(plan.extra.iter().cloned());
        let rank = |local: usize| RankStart {
            rank: (host.first + local) as u32,
            variables: vec![
                pair(own::RANK, (host.first + local).to_string()),
                pair(own::LOCAL_RANK, local.to_string()),
                pair("RANK", (host.first + local).to_string()),
                pair("LOCAL_RANK", local.to_string()),
                pair("PMI_RANK", (host.first + local).to_string()),
                pair("MPI_LOCALRANKID", local.to_string()),
            ],
        };
        Start {
            program: plan.program.first().cloned().unwrap_or_default(),
            arguments: plan.program.iter().skip(1).cloned().collect(),
            directory: plan.directory.clone(),
            variables,
            ranks: (0..host.count).map(rank).collect(),
        }
    };
    plan.hosts.iter().map(start).collect()
}

/// How far the end has come.
#[derive(Clone, Copy, PartialEq)]
enum Stage {
    Running,
    /// Something failed: until then everybody may end by himself.
    Own(Instant),
    /// Everybody has been asked.
    Asked(Instant),
    Killed(Instant),
}

/// A job between its start and its end.
pub(super) struct Running<'a> {
    plan: &'a Plan,
    agents: &'a mut Vec<Agent>,
    space: PmiSpace,
    /// Ranks that have ended.
    ended: Vec<bool>,
    stage: Stage,
    /// The exit status, once something failed.
    failed: Option<u8>,
    lost: Option<RunError>,
    out: Output<Stdout>,
    errors: Output<Stderr>,
}

impl<'a> Running<'a> {
    pub(super) fn new(plan: &'a Plan, agents: &'a mut Vec<Agent>) -> Self {
        let size: usize = plan.hosts.iter().map(|host| host.count).sum();
        let name = format!("trunkline-{}", std::process::id());
        Self {
            plan,
            agents,
            space: PmiSpace::new(size, &name, &hosts::mapping(&plan.hosts)),
            ended: vec![false; size],
            stage: Stage::Running,
            failed: None,
            lost: None,
            out: Output::new(io::stdout(), plan.label),
            errors: Output::new(io::stderr(), plan.label),
        }
    }

    /// Until all ranks have ended; the exit status.
    pub(super) fn run(mut self, events: &Receiver<Event>) -> Result<u8, RunError> {
        while self.ended.contains(&false) {
            let event = match self.stage {
                Stage::Running => events.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Stage::Own(until) | Stage::Asked(until) | Stage::Killed(until) => {
                    events.recv_timeout(until.saturating_duration_since(Instant::now()))
                }
            };
            match event {
                Ok(Event::Said(agent, frame)) => self.said(agent, frame)?,
                Ok(Event::Ended(agent, error)) => self.agent_ended(agent, error),
                Ok(Event::Signal(number)) => self.signalled(number),
                Err(RecvTimeoutError::Timeout) => {
                    if !self.next_stage() {
                        break;
                    }
                }
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        match (self.lost, self.failed) {
            (Some(error), _) => Err(error),
            (None, Some(code)) => Ok(code),
            (None, None) => Ok(0),
        }
    }

    fn said(&mut self, agent: usize, frame: Frame) -> Result<(), RunError> {
        match frame {
            Frame::Output(rank, bytes) => self.out.write(rank, &bytes)?,
            Frame::Errors(rank, bytes) => self.errors.write(rank, &bytes)?,
            Frame::Pmi(rank, line) => {
                for reply in self.space.on_line(rank as usize, &line) {
                    match reply {
                        PmiReply::To(rank, line) => self.answer(rank, line),
                        PmiReply::Abort(code) => {
                            eprintln!("trunkline: rank {rank} aborted the job with status {code}");
                            self.fail(status_byte(code));
                        }
                    }
                }
            }
            Frame::Exited(rank, ending) => {
                self.out.end(rank)?;
                self.errors.end(rank)?;
                self.rank_ended(rank as usize, ending);
            }
            Frame::Failed(why) => {
                let host = self.plan.hosts.get(agent).map_or("", |host| host.name.as_str());
                eprintln!("trunkline: host {host}: {why}");
                self.fail(2);
            }
            Frame::Ready(_) | Frame::Start(_) | Frame::Signal(_) => {}
        }
        Ok(())
    }

    fn answer(&mut self, rank: usize, line: String) {
        let hosts = &self.plan.hosts;
        if let Some(host) =
            hosts.iter().position(|host| (host.first..host.first + host.count).contains(&rank))
        {
            let _ = frame::send(&mut self.agents[host].input, &Frame::Pmi(rank as u32, line));
        }
    }

    fn rank_ended(&mut self, rank: usize, ending: Ending) {
        let Some(ended) = self.ended.get_mut(rank) else { return };
        *ended = true;
        #[cfg(feature = "mutants")]
        if std::env::var("TRUNKLINE_MUTANT").is_ok_and(|name| name == "run-failed-rank-is-fine") {
            return;
        }
        let (code, told) = match ending {
            Ending::Code(0) => return,
            Ending::Code(code) => (status_byte(code), format!("ended with status {code}")),
            Ending::Signal(signal) => (status_byte(128 + signal), format!("was killed by signal {signal}")),
        };
        if self.failed.is_none() {
            let left = self.ended.iter().filter(|ended| !**ended).count();
            let others = if left > 0 { format!("; ending the other {left}") } else { String::new() };
            eprintln!("trunkline: rank {rank} {told}{others}");
        }
        self.fail(code);
    }

    /// An agent that goes before its ranks have ended is a failure.
    fn agent_ended(&mut self, index: usize, error: Option<io::Error>) {
        let (Some(agent), Some(host)) = (self.agents.get_mut(index), self.plan.hosts.get(index)) else {
            return;
        };
        agent.open = false;
        let ranks = host.first..host.first + host.count;
        if self.ended[ranks.clone()].iter().all(|ended| *ended) {
            return;
        }
        if self.failed.is_none() {
            let why = error.map(|error| error.to_string());
            self.lost = Some(super::ended(agent, why.as_deref()));
        }
        // Nothing more will be heard of them; they end with their agent.
        self.ended[ranks].fill(true);
        self.fail(2);
    }

    fn fail(&mut self, code: u8) {
        if self.failed.is_none() {
            self.failed = Some(code);
        }
        if self.stage == Stage::Running {
            self.stage = Stage::Own(Instant::now() + OWN_TIME);
        }
    }

    /// The first signal is passed on, a second one is not patient.
    fn signalled(&mut self, number: i32) {
        let again = self.stage != Stage::Running;
        if self.failed.is_none() {
            self.failed = Some(status_byte(128 + number));
        }
        if again {
            self.send_signal(KILL);
            self.stage = Stage::Killed(Instant::now() + KILLED_TIME);
        } else {
            self.send_signal(number);
            self.stage = Stage::Asked(Instant::now() + ASKED_TIME);
        }
    }

    /// A time is over; whether anybody is left to wait for.
    fn next_stage(&mut self) -> bool {
        match self.stage {
            Stage::Running => {}
            Stage::Own(_) => {
                self.send_signal(TERM);
                self.stage = Stage::Asked(Instant::now() + ASKED_TIME);
            }
            Stage::Asked(_) => {
                self.send_signal(KILL);
                self.stage = Stage::Killed(Instant::now() + KILLED_TIME);
            }
            Stage::Killed(_) => {
                let left: Vec<&str> =
                    self.agents.iter().filter(|agent| agent.open).map(|agent| agent.name.as_str()).collect();
                eprintln!("trunkline: gave up waiting for {}", left.join(", "));
                return false;
            }
        }
        true
    }

    fn send_signal(&mut self, number: i32) {
        for agent in self.agents.iter_mut().filter(|agent| agent.open) {
            let _ = frame::send(&mut agent.input, &Frame::Signal(number));
        }
    }
}

/// A status as the system has room for it; a failure never becomes 0.
fn status_byte(code: i32) -> u8 {
    match u8::try_from(code & 0xff) {
        Ok(0) | Err(_) => 1,
        Ok(code) => code,
    }
}
