//! The world of one attack: starts the pair and the attacker, measures alternately with and without the attack, and
//! asserts the limits of its damage.
//!
//! The pair's rate is judged by its own work: the processor time of both victims per message. The victims alternate, so
//! with a processor per process a message cannot take less by the clock. Other work on the machine, the attacker's
//! included, does not change this figure. The rate by the clock is also printed.

use std::fs::File;
use std::io::{Read as _, Seek as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::attacker::AttackReport;
use crate::channel::TestChannel;
use crate::meeting;
use crate::pair::{PAIR, PairKind};
use crate::store;

/// The variable that names the part of a process of this program.
pub(crate) const PART: &str = "TRUNKLINE_TEST_PART";

/// Bounds on the growth of a victim since the beginning of the attack, and on its log. SECURITY.md repeats these numbers.
pub(crate) struct VictimBounds {
    descriptors: u64,
    memory_kib: u64,
    /// Log lines allowed immediately; one more is allowed per second.
    lines: u64,
    /// Percentage of one processor's time that the thread waiting at the store may use.
    store_percent: u64,
}

pub(crate) const MOST: VictimBounds =
    VictimBounds { descriptors: 300, memory_kib: 16 << 10, lines: 72, store_percent: 20 };

/// Duration of one window of counted messages; longer if a busy machine carries few of them.
const WINDOW: Duration = Duration::from_millis(40);
/// Fewest windows with and without the attack. The attack may need more. Three times this number is measured before the
/// victims count as slow.
const WINDOWS: usize = 9;
const WINDOWS_MOST: usize = 200;

/// Only one world at a time, because each measures.
static CORES: Mutex<()> = Mutex::new(());

/// A process of the world.
struct WorldProcess {
    part: String,
    child: Child,
    channel: TestChannel,
    output: File,
}

impl WorldProcess {
    fn new(part: &str, pair: PairKind, environment: &[(&str, String)]) -> Self {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let output = tempfile::tempfile().unwrap();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "a_process_plays_its_part", "--nocapture", "--test-threads=1"]);
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("TRUNKLINE_")) {
            command.env_remove(name);
        }
        // Planted bugs apply to the victims only; attackers run unchanged.
        if !part.starts_with("victim") {
            command.env_remove("PLANTED_BUG");
        }
        command.env(PART, part).env(PAIR, pair.name()).stdin(Stdio::from(OwnedFd::from(theirs)));
        command.stdout(output.try_clone().unwrap()).stderr(output.try_clone().unwrap());
        command.envs(environment.iter().map(|(name, value)| (name, value)));
        let child = command.spawn().unwrap();
        // The command still holds the other end of the socket pair.
        drop(command);
        Self { part: part.to_owned(), child, channel: TestChannel::new(ours), output }
    }

    /// A value from `/proc/PID/status`, in KiB.
    fn memory_kib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmData:")).unwrap();
        line.split_whitespace().next().unwrap().parse().unwrap()
    }

    /// The processor time of all threads of the process.
    fn work_time(&self) -> Duration {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap();
        // The first number of proc(5)'s schedstat is the time on a processor, in nanoseconds.
        let of_thread = |task: std::io::Result<std::fs::DirEntry>| {
            let stat = std::fs::read_to_string(task.ok()?.path().join("schedstat")).ok()?;
            stat.split(' ').next()?.parse::<u64>().ok()
        };
        Duration::from_nanos(tasks.filter_map(of_thread).sum())
    }

    fn descriptors(&self) -> u64 {
        std::fs::read_dir(format!("/proc/{}/fd", self.child.id())).unwrap().count() as u64
    }

    /// The processor time of the thread that waits at the store.
    fn store_time(&self) -> Duration {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap();
        let of_thread = |stat: String| {
            let (name, rest) = stat.rsplit_once(')')?;
            let is_its = name.ends_with(&format!("({}", store::THREAD));
            // utime and stime, in ticks of 10 ms.
            let ticks = |at: usize| rest.split_whitespace().nth(at)?.parse::<u64>().ok();
            is_its.then_some(Duration::from_millis(10 * (ticks(11)? + ticks(12)?)))
        };
        let stats = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("stat")).ok());
        stats.filter_map(of_thread).sum()
    }
}

impl Drop for WorldProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let mut text = Vec::new();
            let _ = self.output.rewind().and_then(|()| self.output.read_to_end(&mut text));
            let text = String::from_utf8_lossy(&text);
            let lines: Vec<_> = text.lines().collect();
            println!("== {}, its last lines:", self.part);
            lines.iter().skip(lines.len().saturating_sub(20)).for_each(|line| println!("  | {line}"));
        }
    }
}

/// The results that a victim sends.
#[derive(Debug)]
struct VictimOutcome {
    is_whole: bool,
    lines: u64,
    messages: u64,
    secret: Vec<u8>,
    fault: String,
}

/// Descriptors and memory of a victim before the attack, and their maximum since then.
#[derive(Debug)]
struct VictimGrowth {
    before: [u64; 2],
    most: [u64; 2],
}

impl VictimGrowth {
    fn new(actor: &WorldProcess) -> Self {
        let now = [actor.descriptors(), actor.memory_kib()];
        Self { before: now, most: now }
    }

    fn look(&mut self, actor: &WorldProcess) {
        let now = [actor.descriptors(), actor.memory_kib()];
        (0..2).for_each(|at| self.most[at] = self.most[at].max(now[at]));
    }

    fn more(&self) -> [u64; 2] {
        [0, 1].map(|at| self.most[at] - self.before[at])
    }
}

/// The cost of the pair's messages, over windows of one kind.
#[derive(Debug, Default)]
struct MessageCost {
    messages: u64,
    /// Elapsed time.
    took: Duration,
    /// Processor time of both victims.
    work: Duration,
}

impl MessageCost {
    /// Adds a window; returns its number of messages.
    fn measure(&mut self, victim: &mut WorldProcess, other: &WorldProcess) -> u64 {
        let before = victim.work_time() + other.work_time();
        victim.channel.send(&(WINDOW.as_nanos() as u64).to_le_bytes());
        let [messages, nanos] = victim.channel.receive_numbers()[..] else {
            panic!("a victim must send two numbers")
        };
        // The time of a thread that has ended is no longer counted.
        self.work += (victim.work_time() + other.work_time()).saturating_sub(before);
        self.took += Duration::from_nanos(nanos);
        self.messages += messages;
        messages
    }

    /// Messages per second.
    fn rate(&self) -> u64 {
        (self.messages as f64 / self.took.as_secs_f64()) as u64
    }

    /// Nanoseconds of processor time per message.
    fn nanos(&self) -> u64 {
        self.work.as_nanos() as u64 / self.messages.max(1)
    }
}

/// The pair's rate under attack as a percentage of its rate without it, by its own work.
fn percent_left([quiet, attacked]: &[MessageCost; 2]) -> u64 {
    100 * quiet.nanos() / attacked.nanos().max(1)
}

/// The attack, and the pair's work beside its messages.
pub(crate) struct AttackWorld {
    attack: &'static str,
    pair: PairKind,
    calls: bool,
    store: bool,
    meets: bool,
}

impl AttackWorld {
    pub(crate) fn new(attack: &'static str) -> Self {
        Self { attack, pair: PairKind::OneSided, calls: false, store: false, meets: false }
    }

    /// Selects how the pair's messages travel.
    pub(crate) fn over(mut self, pair: PairKind) -> Self {
        self.pair = pair;
        self
    }

    /// Makes the victim dial the attacker, as a member of its job.
    pub(crate) fn with_calls(mut self) -> Self {
        self.calls = true;
        self
    }

    /// Makes the victim rank 0 of a job whose rank 1 has not joined yet.
    pub(crate) fn with_store(mut self) -> Self {
        self.store = true;
        self
    }

    /// Makes the pair and the attacker start tagged messages.
    pub(crate) fn with_meeting(mut self) -> Self {
        self.meets = true;
        self
    }

    /// Attacks the pair, and asserts that the attack fails.
    #[track_caller]
    pub(crate) fn withstand(&self) {
        let _cores = CORES.lock().unwrap_or_else(PoisonError::into_inner);
        let started = Instant::now();
        let parts = ["victim 0", "victim 1", self.attack];
        let port = if self.meets { trunkline_bootstrap::free_port().unwrap() } else { 0 };
        let mut actors = [0, 1, 2].map(|at: u32| {
            let job = meeting::environment(at, port);
            let environment = if self.meets { job.as_slice() } else { &[] };
            WorldProcess::new(parts[at as usize], self.pair, environment)
        });
        if let Some(reason) = self.introduce(&mut actors) {
            return trunkline_integration::skip_test(
                &format!("hostile, {}", self.attack),
                "hostile",
                &reason,
            );
        }
        let [victim, other, attacker] = &mut actors;
        let mut taken = [VictimGrowth::new(victim), VictimGrowth::new(other)];
        let (began, idle) = (Instant::now(), victim.store_time());
        let mut costs = [MessageCost::default(), MessageCost::default()];
        for window in 0.. {
            assert!(window < WINDOWS_MOST, "the attack does not end");
            costs[0].measure(victim, other);
            attacker.channel.send(b"attack");
            assert_eq!(attacker.channel.receive(), b"on");
            let is_stuck = costs[1].measure(victim, other) == 0;
            taken[0].look(victim);
            taken[1].look(other);
            attacker.channel.send(b"pause");
            let is_over = attacker.channel.receive_numbers() == [1];
            let is_clear = window + 1 >= 3 * WINDOWS || window + 1 >= WINDOWS && percent_left(&costs) >= 50;
            if is_stuck || is_over && is_clear {
                break;
            }
        }
        let (at_store, took) = (victim.store_time() - idle, began.elapsed());
        attacker.channel.send(b"finish");
        let report = AttackReport::receive(&mut attacker.channel);
        [&mut *victim, other].into_iter().for_each(|one| one.channel.send(b"finish"));
        let outcomes = [victim, other].map(receive_outcome);
        self.judge(&report, &outcomes, &taken, &costs);
        let lines = MOST.lines + started.elapsed().as_secs();
        for outcome in &outcomes {
            assert!(outcome.lines <= lines, "{} log lines, {lines} are allowed", outcome.lines);
        }
        let percent = 100 * at_store.as_millis() / took.as_millis().max(1);
        assert!(percent <= MOST.store_percent.into(), "{percent} % of a processor at the store");
        actors.iter_mut().for_each(|one| one.channel.send(b"end"));
    }

    /// Connects the processes; returns the reason if the attack cannot be tried.
    fn introduce(&self, actors: &mut [WorldProcess; 3]) -> Option<String> {
        let cards = actors.each_mut().map(|one| one.channel.receive());
        actors.iter_mut().for_each(|one| cards.iter().for_each(|card| one.channel.send(card)));
        let [victims @ .., attacker] = actors;
        let port = if self.store { trunkline_bootstrap::free_port().unwrap().into() } else { 0 };
        for one in victims.iter_mut() {
            one.channel.send_numbers(&[port, u64::from(self.calls)]);
        }
        for one in victims {
            let facts = one.channel.receive();
            attacker.channel.send(&facts);
        }
        let ready = String::from_utf8(attacker.channel.receive()).unwrap();
        ready.strip_prefix("cannot: ").map(str::to_owned)
    }

    fn judge(
        &self,
        report: &AttackReport,
        outcomes: &[VictimOutcome; 2],
        taken: &[VictimGrowth; 2],
        costs: &[MessageCost; 2],
    ) {
        let left = percent_left(costs);
        let [quiet, attacked] = costs.each_ref().map(MessageCost::nanos);
        let rates = costs.each_ref().map(MessageCost::rate);
        let more = taken.each_ref().map(VictimGrowth::more);
        println!(
            "figure: {} ({}): {} acts, {quiet} ns of work for a message without and {attacked} with the attack ({left} % left), messages/s: {rates:?}, more [descriptors, KiB]: {more:?}, lines: {:?}",
            self.attack,
            self.pair.name(),
            report.acts,
            outcomes.each_ref().map(|one| one.lines),
        );
        assert!(report.acts > 0, "the attacker made no attempt");
        for (outcome, [descriptors, memory_kib]) in outcomes.iter().zip(more) {
            assert_eq!(outcome.fault, "", "the pair's messages");
            assert!(outcome.messages > 0, "{outcome:?}");
            assert!(outcome.is_whole, "a canary was changed");
            let is_read = |part: &[u8]| report.loot.windows(part.len()).any(|bytes| bytes == part);
            assert!(!outcome.secret.chunks(8).any(is_read), "a canary was read");
            assert!(descriptors <= MOST.descriptors, "{descriptors} more descriptors");
            assert!(memory_kib <= MOST.memory_kib, "{memory_kib} KiB more memory");
        }
        assert_eq!(report.claims, "", "the attack succeeded");
        assert!(
            left >= 50,
            "{left} % of the rate is left: a message takes {attacked} ns of work under attack, {quiet} without"
        );
    }
}

fn receive_outcome(victim: &mut WorldProcess) -> VictimOutcome {
    let [whole, lines, messages] = victim.channel.receive_numbers()[..] else {
        panic!("a victim must send three numbers")
    };
    let secret = victim.channel.receive();
    let fault = String::from_utf8(victim.channel.receive()).unwrap();
    VictimOutcome { is_whole: whole == 1, lines, messages, secret, fault }
}
