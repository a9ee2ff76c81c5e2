//! A running job: forwards its ranks' output and PMI-1 until the last rank has ended. Called by the launcher.
//!
//! The first rank that fails ends the job. The other ranks get a moment to end by themselves, because their own errors
//! are often more precise. Then they get a request to end, then SIGKILL.

use std::io::{self, Stderr, Stdout};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Instant;

use trunkline_bootstrap::trunkline_run;

use super::frame::{self, AgentStart, RankStart};
use super::output::RankOutput;
use super::state::{JobLifecycle, LauncherCommand};
use super::{HostAgent, LaunchPlan, LauncherEvent, RunError, hosts};

/// The start frame of each agent.
pub(super) fn agent_starts(plan: &LaunchPlan, store: &str, port: u16, secret: &str) -> Vec<AgentStart> {
    let size: usize = plan.hosts.iter().map(|host| host.count).sum();
    let bracketed = if store.contains(':') { format!("[{store}]") } else { store.to_owned() };
    let pair = |name: &str, value: String| (name.to_owned(), value);
    let start = |host: &hosts::JobHost| {
        let mut variables = vec![
            pair(trunkline_run::SIZE, size.to_string()),
            pair(trunkline_run::LOCAL_SIZE, host.count.to_string()),
            pair(trunkline_run::STORE, format!("{bracketed}:{port}")),
            pair(trunkline_run::SECRET, secret.to_owned()),
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
                pair(trunkline_run::RANK, (host.first + local).to_string()),
                pair(trunkline_run::LOCAL_RANK, local.to_string()),
                pair("RANK", (host.first + local).to_string()),
                pair("LOCAL_RANK", local.to_string()),
                pair("PMI_RANK", (host.first + local).to_string()),
                pair("MPI_LOCALRANKID", local.to_string()),
            ],
        };
        AgentStart {
            program: plan.program.first().cloned().unwrap_or_default(),
            arguments: plan.program.iter().skip(1).cloned().collect(),
            directory: plan.directory.clone(),
            variables,
            ranks: (0..host.count).map(rank).collect(),
        }
    };
    plan.hosts.iter().map(start).collect()
}

/// A job between its start and its end.
pub(super) struct RunningJob<'a> {
    state: JobLifecycle,
    agents: &'a mut Vec<HostAgent>,
    lost: Option<RunError>,
    out: RankOutput<Stdout>,
    errors: RankOutput<Stderr>,
}

impl<'a> RunningJob<'a> {
    pub(super) fn new(plan: &'a LaunchPlan, agents: &'a mut Vec<HostAgent>) -> Self {
        let name = format!("trunkline-{}", std::process::id());
        Self {
            state: JobLifecycle::new(&plan.hosts, &name),
            agents,
            lost: None,
            out: RankOutput::new(io::stdout(), plan.label),
            errors: RankOutput::new(io::stderr(), plan.label),
        }
    }

    /// Runs until all ranks have ended; returns the exit status.
    pub(super) fn run_to_end(mut self, events: &Receiver<LauncherEvent>) -> Result<u8, RunError> {
        while !self.state.is_over() {
            let event = match self.state.deadline() {
                None => events.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(until) => events.recv_timeout(until.saturating_duration_since(Instant::now())),
            };
            let now = Instant::now();
            match event {
                Ok(LauncherEvent::Said(agent, frame)) => self.state.on_frame(agent, frame, now),
                Ok(LauncherEvent::Ended(agent, error)) => self.agent_ended(agent, error, now),
                Ok(LauncherEvent::Signal(number)) => self.state.on_signal(number, now),
                Err(RecvTimeoutError::Timeout) => self.state.on_time(now),
                Err(RecvTimeoutError::Disconnected) => break,
            }
            self.execute_commands()?;
        }
        match self.lost {
            Some(error) => Err(error),
            None => Ok(self.state.exit_status()),
        }
    }

    fn execute_commands(&mut self) -> Result<(), RunError> {
        for command in self.state.take_commands() {
            match command {
                LauncherCommand::Output(rank, bytes) => self.out.write_bytes(rank, &bytes)?,
                LauncherCommand::Errors(rank, bytes) => self.errors.write_bytes(rank, &bytes)?,
                LauncherCommand::EndOutput(rank) => {
                    self.out.finish_rank(rank)?;
                    self.errors.finish_rank(rank)?;
                }
                LauncherCommand::Send(agent, frame) => {
                    if let Some(agent) = self.agents.get_mut(agent) {
                        // The agent's reader thread detects an agent that has ended.
                        let _ = frame::send_frame(&mut agent.input, &frame);
                    }
                }
                LauncherCommand::Tell(text) => eprintln!("trunkline: {text}"),
            }
        }
        Ok(())
    }

    /// Handles an agent's end; an agent that ends before its ranks is a failure.
    fn agent_ended(&mut self, index: usize, error: Option<io::Error>, now: Instant) {
        if self.state.on_agent_end(index, now)
            && let Some(agent) = self.agents.get_mut(index)
        {
            let why = error.map(|error| error.to_string());
            self.lost = Some(super::agent_error(agent, why.as_deref()));
        }
    }
}
