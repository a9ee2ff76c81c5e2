//! The fuzz targets of the launcher: streams of frames, and a job whose agents send arbitrary frames.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use trunkline_proto::fuzzing::make_variants;

use super::frame::{self, AgentReady, AgentStart, LauncherFrame, RankEnding, RankStart, VERSION};
use super::hosts::JobHost;
use super::state::{JobLifecycle, LauncherCommand};

/// Checks several frames in one stream.
pub(crate) fn check_frames(mut bytes: &[u8]) {
    while let Ok(Some(frame)) = frame::receive_frame(&mut bytes) {
        let mut printed = Vec::new();
        // A frame that was read may exceed the limit when it is written again, if its JSON had fewer blanks than ours.
        if frame::send_frame(&mut printed, &frame).is_ok() {
            let again = frame::receive_frame(&mut printed.as_slice());
            assert!(again.is_ok_and(|again| again == Some(frame)), "a frame changed on its way");
        }
    }
}

/// One stream of each kind of frame.
pub(super) fn every_frame() -> Vec<LauncherFrame> {
    let start = AgentStart {
        program: "p".into(),
        arguments: vec!["\u{fc} \n".into()],
        directory: "/".into(),
        variables: vec![("A".into(), "b=c".into())],
        ranks: vec![RankStart { rank: 3, variables: vec![("RANK".into(), "3".into())] }],
    };
    vec![
        LauncherFrame::Ready(AgentReady {
            version: VERSION,
            port: 20_001,
            addresses: vec!["10.0.0.1".into()],
        }),
        LauncherFrame::Start(start),
        LauncherFrame::Output(1, vec![0, 255, b'\n']),
        LauncherFrame::Errors(2, Vec::new()),
        LauncherFrame::Pmi(3, "cmd=init pmi_version=1 pmi_subversion=1".into()),
        LauncherFrame::Exited(4, RankEnding::Code(-1)),
        LauncherFrame::Exited(5, RankEnding::Signal(i32::MAX)),
        LauncherFrame::Signal(15),
        LauncherFrame::Failed("why".into()),
    ]
}

pub(crate) fn frame_seeds() -> Vec<Vec<u8>> {
    let all: Vec<Vec<u8>> = every_frame().iter().map(bytes_of).collect();
    let mut seeds = make_variants(&all);
    seeds.push(all.concat());
    seeds.push(b"Welcome to node7!\n".to_vec());
    seeds
}

pub(super) fn bytes_of(frame: &LauncherFrame) -> Vec<u8> {
    let mut bytes = Vec::new();
    let sent = frame::send_frame(&mut bytes, frame);
    assert!(sent.is_ok());
    bytes
}

/// Most actions of one input.
const ACTIONS_MAX: usize = 256;
/// Ranks of each host.
const RANKS: [usize; 3] = [2, 1, 3];

/// A job, and the model of its state.
struct FuzzedJob {
    state: JobLifecycle,
    hosts: Vec<JobHost>,
    now: Instant,
    /// Per agent: the bytes in transit, and whether it has ended.
    agents: Vec<(VecDeque<u8>, bool)>,
    ended: Vec<bool>,
    /// Ranks in the barrier.
    waiting: Vec<bool>,
    /// Per rank: the PMI replies that it may still receive.
    answers: Vec<usize>,
    /// Per rank and stream: bytes that were written and not printed yet.
    written: BTreeMap<(u32, bool), VecDeque<u8>>,
    /// A rank, an agent or a frame has failed.
    bad: bool,
}

/// Decodes four bytes per action: its kind, the agent, the rank, and a number. Every agent may send any frame about any
/// rank.
pub(crate) fn check_job(bytes: &[u8]) {
    let mut job = FuzzedJob::new();
    for action in bytes.chunks_exact(4).take(ACTIONS_MAX) {
        job.apply_action(
            action[0],
            usize::from(action[1]) % RANKS.len(),
            u32::from(action[2] % 8),
            action[3],
        );
        job.check_commands();
    }
    job.end_job();
}

impl FuzzedJob {
    fn new() -> Self {
        let mut first = 0;
        let host = |count| {
            let host = JobHost { name: format!("host{first}"), first, count };
            first += count;
            host
        };
        let hosts: Vec<JobHost> = RANKS.into_iter().map(host).collect();
        Self {
            state: JobLifecycle::new(&hosts, "job"),
            hosts,
            now: Instant::now(),
            agents: vec![(VecDeque::new(), false); RANKS.len()],
            ended: vec![false; first],
            waiting: vec![false; first],
            answers: vec![0; first],
            written: BTreeMap::new(),
            bad: false,
        }
    }

    fn apply_action(&mut self, what: u8, agent: usize, rank: u32, number: u8) {
        // The launcher no longer reads.
        if self.state.is_over() {
            return;
        }
        let ending = if number < 128 {
            RankEnding::Code(i32::from(number % 4))
        } else {
            RankEnding::Signal(number.into())
        };
        let key = number % 4;
        let line = match number / 4 % 8 {
            0 => "cmd=init pmi_version=1 pmi_subversion=1".to_owned(),
            1 => format!("cmd=put kvsname=job key=k{key} value=v{rank}"),
            2 => format!("cmd=get kvsname=job key=k{key}"),
            3..=5 => "cmd=barrier_in".to_owned(),
            6 => format!("cmd=abort exitcode={number}"),
            _ => "cmd".to_owned(),
        };
        match what % 12 {
            0 => {
                self.deliver_frame(agent, &LauncherFrame::Output(rank, vec![number; usize::from(number % 5)]))
            }
            1 => self.deliver_frame(agent, &LauncherFrame::Errors(rank, vec![number, b'\n'])),
            2..=4 => self.deliver_frame(agent, &LauncherFrame::Pmi(rank, line)),
            5 => self.deliver_frame(agent, &LauncherFrame::Exited(rank, ending)),
            6 => self.deliver_frame(
                agent,
                &LauncherFrame::Exited(rank, RankEnding::Signal(i32::MAX - i32::from(number))),
            ),
            7 => self.deliver_frame(agent, &every_frame().swap_remove([0, 1, 7, 8][usize::from(number % 4)])),
            8 => self.agents[agent].0.extend([number, rank as u8, what]),
            9 => self.agent_ends(agent),
            10 => {
                self.bad |= !self.state.is_over();
                self.state.on_signal([2, 15, i32::MAX][usize::from(number % 3)], self.now);
            }
            _ => {
                self.now += Duration::from_millis(u64::from(number) * 20);
                self.state.on_time(self.now);
            }
        }
    }

    fn deliver_frame(&mut self, agent: usize, frame: &LauncherFrame) {
        self.agents[agent].0.extend(bytes_of(frame));
        // Deliver the frames that the launcher's reader would read: whole frames, or the end of the stream at bytes
        // that are not a frame.
        while !self.agents[agent].1 && !self.state.is_over() {
            let stream = self.agents[agent].0.make_contiguous().to_vec();
            let mut rest = stream.as_slice();
            match frame::receive_frame(&mut rest) {
                Ok(Some(frame)) => {
                    self.agents[agent].0.drain(..stream.len() - rest.len());
                    self.record_effects(agent, &frame);
                    self.state.on_frame(agent, frame, self.now);
                }
                Ok(None) => return,
                Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => return,
                Err(_) => self.agent_ends(agent),
            }
        }
    }

    /// Notes in the model the effects that a frame may have.
    fn record_effects(&mut self, agent: usize, frame: &LauncherFrame) {
        let host = &self.hosts[agent];
        let own = |rank: &u32| (host.first..host.first + host.count).contains(&(*rank as usize));
        match frame {
            LauncherFrame::Output(rank, bytes) if own(rank) => {
                self.written.entry((*rank, false)).or_default().extend(bytes);
            }
            LauncherFrame::Errors(rank, bytes) if own(rank) => {
                self.written.entry((*rank, true)).or_default().extend(bytes);
            }
            LauncherFrame::Pmi(rank, line) if own(rank) => {
                let at = *rank as usize;
                if self.ended[at] {
                } else if line.starts_with("cmd=barrier_in") {
                    self.waiting[at] = true;
                    if self.waiting.iter().all(|waiting| *waiting) {
                        self.waiting.fill(false);
                        self.answers.iter_mut().for_each(|answers| *answers += 1);
                    }
                } else if line.starts_with("cmd=abort") {
                    self.bad = true;
                } else {
                    self.answers[at] += 1;
                }
            }
            LauncherFrame::Exited(rank, ending) if own(rank) => {
                let was = std::mem::replace(&mut self.ended[*rank as usize], true);
                self.bad |= !was && *ending != RankEnding::Code(0);
            }
            LauncherFrame::Ready(_) | LauncherFrame::Start(_) | LauncherFrame::Signal(_) => {}
            // A frame about a rank of another host, or a failure.
            _ => self.bad = true,
        }
    }

    fn agent_ends(&mut self, agent: usize) {
        if std::mem::replace(&mut self.agents[agent].1, true) {
            return;
        }
        let host = &self.hosts[agent];
        let ranks = &mut self.ended[host.first..host.first + host.count];
        self.bad |= ranks.iter().any(|ended| !*ended);
        ranks.fill(true);
        self.state.on_agent_end(agent, self.now);
    }

    /// Checks that the launcher's commands follow the frames, once and in order, and that no frame acted for a rank of
    /// another agent.
    fn check_commands(&mut self) {
        for command in self.state.take_commands() {
            match command {
                LauncherCommand::Output(rank, bytes) => self.check_printed(rank, false, &bytes),
                LauncherCommand::Errors(rank, bytes) => self.check_printed(rank, true, &bytes),
                LauncherCommand::EndOutput(rank) => {
                    assert!(self.ended[rank as usize], "rank {rank} has not ended")
                }
                LauncherCommand::Send(agent, LauncherFrame::Pmi(rank, line)) => {
                    let host = &self.hosts[agent];
                    assert!((host.first..host.first + host.count).contains(&(rank as usize)), "{line}");
                    let answers = &mut self.answers[rank as usize];
                    assert!(*answers > 0, "rank {rank} gets a PMI reply without a request: {line}");
                    *answers -= 1;
                }
                LauncherCommand::Send(agent, LauncherFrame::Signal(_)) => {
                    assert!(
                        !self.agents[agent].1 && self.bad,
                        "a signal to an agent that has ended, or to a job that has not failed"
                    );
                }
                LauncherCommand::Send(_, other) => panic!("{other:?} is not a frame of a launcher"),
                LauncherCommand::Tell(_) => {}
            }
        }
        assert!(self.written.values().all(VecDeque::is_empty), "output of a rank is not shown");
        assert_eq!(self.state.has_failed(), self.bad);
        assert_eq!(self.state.exit_status() == 0, !self.bad, "the exit status does not match the failures");
        let all_ended = self.ended.iter().all(|ended| *ended);
        assert!(!all_ended || self.state.is_over(), "the job runs on after all ranks have ended");
        assert!(all_ended || !self.state.is_over() || self.bad, "the job is over, but ranks run");
    }

    fn check_printed(&mut self, rank: u32, errors: bool, bytes: &[u8]) {
        let written = self.written.entry((rank, errors)).or_default();
        assert!(written.len() >= bytes.len(), "rank {rank} did not write that");
        assert!(written.drain(..bytes.len()).eq(bytes.iter().copied()), "rank {rank} wrote something else");
    }

    /// Checks that a failed job has ended after three more timer steps.
    fn end_job(mut self) {
        let mut times = 0;
        while !self.state.is_over()
            && let Some(until) = self.state.deadline()
        {
            self.now = until;
            self.state.on_time(until);
            self.check_commands();
            times += 1;
            assert!(times <= 3, "the job does not end");
        }
        assert!(self.state.is_over() || !self.bad, "a failed job does not end");
    }
}

pub(crate) fn job_seeds() -> Vec<Vec<u8>> {
    let output = 0;
    let pmi = 2;
    let exited = 5;
    let cut = 9;
    let signal = 10;
    let time = 11;
    let of = |rank: u8| if rank < 2 { 0 } else { 1 + u8::from(rank > 2) };
    let all = |what, number| (0..6).map(|rank| [what, of(rank), rank, number]).collect::<Vec<_>>();
    let barrier = 12;
    let scripts: [Vec<[u8; 4]>; 7] = [
        [all(output, 9), all(pmi, 1), all(pmi, 5), all(pmi, barrier), all(pmi, 8), all(exited, 0)].concat(),
        [all(pmi, barrier), all(pmi, barrier), vec![[pmi, 0, 0, barrier]], all(exited, 3)].concat(),
        vec![[output, 0, 5, 7], [exited, 1, 0, 0], [pmi, 2, 1, barrier], [time, 0, 0, 255]],
        vec![[6, 2, 3, 0], [6, 2, 3, 255], [exited, 2, 3, 0], [signal, 0, 0, 1], [time, 0, 0, 255]],
        [vec![[cut, 1, 0, 0], [time, 0, 0, 16]], all(exited, 0), vec![[cut, 0, 0, 0]]].concat(),
        vec![
            [signal, 0, 0, 0],
            [signal, 0, 0, 2],
            [7, 0, 0, 3],
            [8, 1, 1, 1],
            [output, 1, 2, 4],
            [pmi, 0, 1, 24],
        ],
        [all(exited, 0), all(exited, 1), all(output, 4), vec![[signal, 0, 0, 0]]].concat(),
    ];
    make_variants(&scripts.map(|script| script.concat()))
}

#[cfg(test)]
mod tests {
    use trunkline_proto::fuzzing::RandomNumbers;

    use super::*;

    #[test]
    fn random_scripts_hold() {
        job_seeds().iter().for_each(|seed| check_job(seed));
        let mut numbers = RandomNumbers::new(11);
        for _ in 0..2000 {
            let len = 4 * numbers.next_below(80);
            let script: Vec<u8> = (0..len).map(|_| numbers.next_u64() as u8).collect();
            check_job(&script);
        }
    }
}
