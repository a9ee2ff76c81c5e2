//! The launcher's decisions while a job runs: which frames of agents it accepts, when the job fails, when ranks get
//! signals to end, and when the launcher gives up. Called by `job`, which passes frames and time; does no input or
//! output itself.
//!
//! A frame of an agent is accepted only about ranks of the agent's own host.

use std::ops::Range;
use std::time::{Duration, Instant};

use trunkline_bootstrap::{PmiReply, PmiSpace};

use super::frame::{LauncherFrame, RankEnding};
use super::hosts::{self, JobHost};

/// After a failure, the time in which ranks may end by themselves.
const OWN_TIME: Duration = Duration::from_millis(300);
/// After SIGTERM, the time until SIGKILL.
const ASKED_TIME: Duration = Duration::from_secs(3);
/// After SIGKILL; ranks that are still running then are on a host that does not answer.
const KILLED_TIME: Duration = Duration::from_secs(3);
const TERM: i32 = signal_hook::consts::SIGTERM;
const KILL: i32 = signal_hook::consts::SIGKILL;

/// An action for the launcher; actions are executed in order.
#[derive(Debug, Eq, PartialEq)]
pub(super) enum LauncherCommand {
    /// Writes bytes of a rank to standard output.
    Output(u32, Vec<u8>),
    /// Writes bytes of a rank to standard error.
    Errors(u32, Vec<u8>),
    /// Writes the last lines of a rank, which has ended.
    EndOutput(u32),
    /// Sends a frame to an agent.
    Send(usize, LauncherFrame),
    /// Prints a message for the user.
    Tell(String),
}

/// The progress of the job's end.
#[derive(Clone, Copy, Debug, PartialEq)]
enum JobStage {
    Running,
    /// A rank failed; until this time all ranks may end by themselves.
    Own(Instant),
    /// All ranks were sent a request to end.
    Asked(Instant),
    Killed(Instant),
    /// The launcher has given up on ranks that have not ended.
    GivenUp,
}

/// A job between its start and its end.
#[derive(Debug)]
pub(super) struct JobLifecycle {
    hosts: Vec<JobHost>,
    /// Agents whose streams are still open.
    open: Vec<bool>,
    space: PmiSpace,
    /// Ranks that have ended.
    ended: Vec<bool>,
    stage: JobStage,
    /// The exit status, once a rank or an agent has failed.
    failed: Option<u8>,
    commands: Vec<LauncherCommand>,
}

impl JobLifecycle {
    /// Creates a job whose ranks all run; `name` names its key space.
    pub(super) fn new(hosts: &[JobHost], name: &str) -> Self {
        let size: usize = hosts.iter().map(|host| host.count).sum();
        Self {
            hosts: hosts.to_vec(),
            open: vec![true; hosts.len()],
            space: PmiSpace::new(size, name, &hosts::pmi_mapping(hosts)),
            ended: vec![false; size],
            stage: JobStage::Running,
            failed: None,
            commands: Vec::new(),
        }
    }

    /// Whether all ranks have ended or the launcher has given up.
    pub(super) fn is_over(&self) -> bool {
        self.stage == JobStage::GivenUp || !self.ended.contains(&false)
    }

    /// When [`JobLifecycle::on_time`] is due.
    pub(super) fn deadline(&self) -> Option<Instant> {
        match self.stage {
            JobStage::Running | JobStage::GivenUp => None,
            JobStage::Own(until) | JobStage::Asked(until) | JobStage::Killed(until) => Some(until),
        }
    }

    /// The exit status of the job.
    pub(super) fn exit_status(&self) -> u8 {
        self.failed.unwrap_or(0)
    }

    /// Whether a rank, an agent or a signal has ended the job.
    #[cfg(feature = "fuzzing")]
    pub(super) fn has_failed(&self) -> bool {
        self.failed.is_some()
    }

    /// Takes the pending commands, in order.
    pub(super) fn take_commands(&mut self) -> Vec<LauncherCommand> {
        std::mem::take(&mut self.commands)
    }

    fn agent_ranks(&self, agent: usize) -> Range<usize> {
        self.hosts.get(agent).map_or(0..0, |host| host.first..host.first + host.count)
    }

    /// Handles a frame of an agent.
    pub(super) fn on_frame(&mut self, agent: usize, frame: LauncherFrame, now: Instant) {
        let rank = match &frame {
            LauncherFrame::Output(rank, _)
            | LauncherFrame::Errors(rank, _)
            | LauncherFrame::Pmi(rank, _)
            | LauncherFrame::Exited(rank, _) => *rank,
            LauncherFrame::Failed(why) => {
                let host = self.hosts.get(agent).map_or("", |host| host.name.as_str());
                self.commands.push(LauncherCommand::Tell(format!("host {host}: {why}")));
                return self.fail_job(2, now);
            }
            LauncherFrame::Ready(_) | LauncherFrame::Start(_) | LauncherFrame::Signal(_) => return,
        };
        if !self.agent_ranks(agent).contains(&(rank as usize)) {
            let host = self.hosts.get(agent).map_or("", |host| host.name.as_str());
            let why =
                format!("host {host}: its agent sent a frame about rank {rank}, which is not on that host");
            self.commands.push(LauncherCommand::Tell(why));
            return self.fail_job(2, now);
        }
        match frame {
            LauncherFrame::Output(rank, bytes) => self.commands.push(LauncherCommand::Output(rank, bytes)),
            LauncherFrame::Errors(rank, bytes) => self.commands.push(LauncherCommand::Errors(rank, bytes)),
            LauncherFrame::Pmi(rank, line) => self.on_pmi(rank, &line, now),
            LauncherFrame::Exited(rank, ending) => self.on_exit(rank, ending, now),
            LauncherFrame::Failed(_)
            | LauncherFrame::Ready(_)
            | LauncherFrame::Start(_)
            | LauncherFrame::Signal(_) => {}
        }
    }

    /// Handles a rank's PMI line. A rank that has ended gets no reply.
    fn on_pmi(&mut self, rank: u32, line: &str, now: Instant) {
        if self.ended.get(rank as usize) != Some(&false) {
            return;
        }
        for reply in self.space.on_line(rank as usize, line) {
            match reply {
                PmiReply::To(rank, line) => {
                    let of = (0..self.hosts.len()).find(|agent| self.agent_ranks(*agent).contains(&rank));
                    let frame = LauncherFrame::Pmi(rank as u32, line);
                    self.commands.extend(of.map(|agent| LauncherCommand::Send(agent, frame)));
                }
                PmiReply::Abort(code) => {
                    let why = format!("rank {rank} aborted the job with status {code}");
                    self.commands.push(LauncherCommand::Tell(why));
                    self.fail_job(status_byte(code), now);
                }
            }
        }
    }

    /// Handles the end of a rank; a second report of the same rank has no effect.
    fn on_exit(&mut self, rank: u32, ending: RankEnding, now: Instant) {
        let Some(ended) = self.ended.get_mut(rank as usize) else { return };
        if std::mem::replace(ended, true) {
            return;
        }
        self.commands.push(LauncherCommand::EndOutput(rank));
        let (code, told) = match ending {
            RankEnding::Code(0) => return,
            RankEnding::Code(code) => (status_byte(code), format!("ended with status {code}")),
            RankEnding::Signal(signal) => (signal_status(signal), format!("was killed by signal {signal}")),
        };
        if self.failed.is_none() {
            let left = self.ended.iter().filter(|ended| !**ended).count();
            let others = if left > 0 { format!("; ending the other {left}") } else { String::new() };
            self.commands.push(LauncherCommand::Tell(format!("rank {rank} {told}{others}")));
        }
        self.fail_job(code, now);
    }

    /// Handles the end of an agent's stream. Its ranks end with it; returns whether that ended the job.
    pub(super) fn on_agent_end(&mut self, agent: usize, now: Instant) -> bool {
        if let Some(open) = self.open.get_mut(agent) {
            *open = false;
        }
        let ranks = self.agent_ranks(agent);
        let Some(ended) = self.ended.get_mut(ranks) else { return false };
        if ended.iter().all(|ended| *ended) {
            return false;
        }
        ended.fill(true);
        let is_first = self.failed.is_none();
        self.fail_job(2, now);
        is_first
    }

    /// Handles a signal to the launcher. The first one is forwarded; a second one ends everything.
    pub(super) fn on_signal(&mut self, number: i32, now: Instant) {
        if self.failed.is_none() {
            self.failed = Some(signal_status(number));
        }
        match self.stage {
            JobStage::GivenUp => {}
            JobStage::Running => {
                self.send_signal(number);
                self.stage = JobStage::Asked(now + ASKED_TIME);
            }
            JobStage::Own(_) | JobStage::Asked(_) | JobStage::Killed(_) => {
                self.send_signal(KILL);
                self.stage = JobStage::Killed(now + KILLED_TIME);
            }
        }
    }

    /// Handles the deadline, if it has passed.
    pub(super) fn on_time(&mut self, now: Instant) {
        if self.deadline().is_none_or(|until| until > now) {
            return;
        }
        match self.stage {
            JobStage::Running | JobStage::GivenUp => {}
            JobStage::Own(_) => {
                self.send_signal(TERM);
                self.stage = JobStage::Asked(now + ASKED_TIME);
            }
            JobStage::Asked(_) => {
                self.send_signal(KILL);
                self.stage = JobStage::Killed(now + KILLED_TIME);
            }
            JobStage::Killed(_) => {
                let open = self.hosts.iter().zip(&self.open).filter(|(_, open)| **open);
                let left: Vec<&str> = open.map(|(host, _)| host.name.as_str()).collect();
                self.commands.push(LauncherCommand::Tell(format!("gave up waiting for {}", left.join(", "))));
                self.stage = JobStage::GivenUp;
            }
        }
    }

    fn fail_job(&mut self, code: u8, now: Instant) {
        if self.failed.is_none() {
            self.failed = Some(code);
        }
        if self.stage == JobStage::Running {
            self.stage = JobStage::Own(now + OWN_TIME);
        }
    }

    fn send_signal(&mut self, number: i32) {
        let open = self.open.iter().enumerate().filter(|(_, open)| **open);
        let all: Vec<LauncherCommand> =
            open.map(|(agent, _)| LauncherCommand::Send(agent, LauncherFrame::Signal(number))).collect();
        self.commands.extend(all);
    }
}

/// Converts an exit code to the system's range; a failure never becomes 0.
fn status_byte(code: i32) -> u8 {
    match u8::try_from(code & 0xff) {
        Ok(0) | Err(_) => 1,
        Ok(code) => code,
    }
}

/// The exit status of a rank that a signal has killed. The agent may send any number.
fn signal_status(signal: i32) -> u8 {
    status_byte(signal.saturating_add(128))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job() -> (JobLifecycle, Instant) {
        let host = |name: &str, first, count| JobHost { name: name.into(), first, count };
        (JobLifecycle::new(&[host("a", 0, 2), host("b", 2, 1)], "job"), Instant::now())
    }

    #[test]
    fn agent_ends_no_rank_of_another_host() {
        let (mut job, now) = job();
        for rank in [2, 0] {
            job.on_frame(0, LauncherFrame::Exited(rank, RankEnding::Code(0)), now);
        }
        job.on_frame(1, LauncherFrame::Output(1, b"x".to_vec()), now);
        job.on_frame(0, LauncherFrame::Exited(1, RankEnding::Code(0)), now);
        assert!(!job.is_over() && job.exit_status() == 2, "{job:?}");
        let told = |command: &LauncherCommand| matches!(command, LauncherCommand::Tell(why) if why.contains("not on that host"));
        assert_eq!(job.take_commands().iter().filter(|command| told(command)).count(), 2);
        job.on_frame(1, LauncherFrame::Exited(2, RankEnding::Code(0)), now);
        assert!(job.is_over());
    }

    #[test]
    fn any_signal_number_is_a_failure() {
        for (signal, status) in [(9, 137), (i32::MAX, 255), (i32::MIN, 128), (-128, 1)] {
            let (mut job, now) = job();
            job.on_frame(1, LauncherFrame::Exited(2, RankEnding::Signal(signal)), now);
            assert_eq!(job.exit_status(), status, "signal {signal}");
        }
    }

    #[test]
    fn failure_ends_the_job_in_bounded_time() {
        let (mut job, begun) = job();
        job.on_frame(0, LauncherFrame::Failed("no such program".into()), begun);
        let mut signals = Vec::new();
        while let Some(until) = job.deadline() {
            assert!(until - begun <= OWN_TIME + ASKED_TIME + KILLED_TIME);
            job.on_time(until);
            signals.extend(job.take_commands().into_iter().filter_map(|command| match command {
                LauncherCommand::Send(0, LauncherFrame::Signal(number)) => Some(number),
                _ => None,
            }));
        }
        assert!(job.is_over() && signals == [TERM, KILL]);
    }
}
