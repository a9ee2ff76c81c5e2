//! Starts this test program again, as one process or as two that are joined by a socket, and waits for them with a deadline.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read as _, Seek as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{PoisonError, RwLock};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};
use trunkline_integration::testbed::TestHost;

/// Longest time for one scenario; the long sizes have hours.
fn limit() -> Duration {
    Duration::from_secs(if crate::sharing::is_full() { 7200 } else { 120 })
}

/// How long the second process may continue after the first has failed.
const AFTERWARDS: Duration = Duration::from_secs(3);

/// Locked by every scenario that plays: shared, or exclusively by one that measures, because more tests run at once than there are cores.
static CORES: RwLock<()> = RwLock::new(());

/// The parameters of a scenario's process, and its channel.
pub(crate) struct Scene {
    /// The version of the interface to use.
    pub(crate) version: u8,
    /// The role of this process, 0 or 1 of two.
    pub(crate) role: usize,
    channel: Option<UnixStream>,
}

impl Scene {
    /// The parameters for another scenario of the same process, which needs no second process.
    pub(crate) fn another(&self) -> Self {
        Self { version: self.version, role: self.role, channel: None }
    }

    /// Sends bytes to the other process.
    pub(crate) fn say(&mut self, bytes: &[u8]) {
        let channel = self.channel.as_mut().expect("a scene of two");
        let length = (bytes.len() as u32).to_le_bytes();
        channel.write_all(&[&length, bytes].concat()).expect("the other process reads");
    }

    /// Receives bytes from the other process; `None` when it has ended.
    pub(crate) fn try_hear(&mut self) -> Option<Vec<u8>> {
        let channel = self.channel.as_mut().expect("a scene of two");
        let mut length = [0; 4];
        channel.read_exact(&mut length).ok()?;
        let mut bytes = vec![0; u32::from_le_bytes(length) as usize];
        channel.read_exact(&mut bytes).ok()?;
        Some(bytes)
    }

    #[track_caller]
    pub(crate) fn hear(&mut self) -> Vec<u8> {
        self.try_hear().expect("the other process sends bytes")
    }

    /// Whether bytes from the other process have arrived.
    pub(crate) fn is_spoken_to(&self) -> bool {
        let channel = self.channel.as_ref().expect("a scene of two");
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(channel, PollFlags::IN)], Some(&now)).expect("poll") > 0
    }

    /// Waits until both processes have called this.
    #[track_caller]
    pub(crate) fn meet(&mut self) {
        self.say(b"here");
        assert_eq!(self.hear(), b"here");
    }

    /// Receives a handle from the other process.
    #[track_caller]
    pub(crate) fn hear_handle(&mut self) -> crate::net::Handle {
        self.hear().try_into().expect("128 bytes")
    }

    /// Exchanges process ids; returns the other process's.
    #[track_caller]
    pub(crate) fn swap_pids(&mut self) -> Pid {
        self.say(&std::process::id().to_le_bytes());
        let pid = u32::from_le_bytes(self.hear().try_into().expect("a number"));
        Pid::from_raw(pid as i32).expect("a process id")
    }
}

/// The scenario that the environment selects for this process, if any.
pub(crate) fn asked() -> Option<(String, Scene)> {
    let name = std::env::var("TRUNKLINE_TEST_SCENARIO").ok()?;
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    // No process may outlive the test. The testbed guarantees that for its hosts; there the parent is a thread that ends.
    if std::env::var_os("TRUNKLINE_TEST_HOSTED").is_none() {
        let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    }
    let two = std::env::var_os("TRUNKLINE_TEST_PAIR").is_some();
    let channel = two.then(|| {
        let fd = std::io::stdin().as_fd().try_clone_to_owned().expect("a descriptor");
        let channel = UnixStream::from(fd);
        channel.set_read_timeout(Some(crate::net::limit())).expect("a time limit");
        channel
    });
    let scene =
        Scene { version: number("TRUNKLINE_TEST_ABI") as u8, role: number("TRUNKLINE_TEST_ROLE"), channel };
    Some((name, scene))
}

/// A folder that does not exist, in place of `/`: a host without RDMA, EFA or Slingshot devices.
pub(crate) const NO_DEVICES: &str = "/nonexistent";

/// The settings of a scenario's processes.
#[derive(Clone)]
pub(crate) struct Setting {
    scenario: &'static str,
    version: u8,
    env: Vec<(String, OsString)>,
    /// Variables of the second process alone.
    second_env: Vec<(String, OsString)>,
    /// A program, with arguments, that starts the second process.
    wrapper: Vec<String>,
    /// The host of each process, if not this one.
    hosts: Option<[TestHost; 2]>,
    /// Whether no other scenario may play meanwhile.
    measures: bool,
    /// Time limit of the scenario.
    limit: Duration,
}

struct Actor {
    child: Child,
    output: File,
}

pub(crate) fn scenario(name: &'static str) -> Setting {
    Setting {
        scenario: name,
        version: 12,
        // The machine's own devices must not change a scenario that names no fabric.
        env: vec![
            ("TRUNKLINE_FUSE".to_owned(), "all".into()),
            ("TRUNKLINE_HOST_ROOT".to_owned(), NO_DEVICES.into()),
        ],
        second_env: Vec::new(),
        wrapper: Vec::new(),
        hosts: None,
        measures: false,
        limit: limit(),
    }
}

impl Setting {
    pub(crate) fn version(mut self, version: u8) -> Self {
        self.version = version;
        self
    }

    pub(crate) fn env(self, name: &str, value: impl ToString) -> Self {
        self.env_os(name, value.to_string().into())
    }

    /// Sets a variable to a value that need not be text.
    pub(crate) fn env_os(mut self, name: &str, value: OsString) -> Self {
        self.env.push((name.to_owned(), value));
        self
    }

    /// Sets a variable of the second process to another value.
    pub(crate) fn second_env(mut self, name: &str, value: &str) -> Self {
        self.second_env.push((name.to_owned(), value.into()));
        self
    }

    pub(crate) fn second_in(mut self, wrapper: &[&str]) -> Self {
        self.wrapper = wrapper.iter().map(|&word| word.to_owned()).collect();
        self
    }

    pub(crate) fn on(mut self, hosts: [&TestHost; 2]) -> Self {
        self.hosts = Some(hosts.map(TestHost::clone));
        self
    }

    /// Raises the time limit.
    pub(crate) fn within(mut self, limit: Duration) -> Self {
        self.limit = self.limit.max(limit);
        self
    }

    /// Marks a scenario that measures time or memory: no other scenario of this program plays meanwhile.
    pub(crate) fn measures(mut self) -> Self {
        self.measures = true;
        self
    }

    /// Plays while holding the cores.
    fn with_cores<R>(&self, play: impl FnOnce() -> R) -> R {
        // A failed scenario leaves no inconsistent state in the lock.
        if self.measures {
            let _held = CORES.write().unwrap_or_else(PoisonError::into_inner);
            play()
        } else {
            let _held = CORES.read().unwrap_or_else(PoisonError::into_inner);
            play()
        }
    }

    fn start(&self, role: usize, stdin: Stdio, pair: bool) -> Actor {
        let program = std::env::current_exe().expect("this program");
        let mut command = match self.wrapper.split_first() {
            Some((first, rest)) if role == 1 => {
                let mut command = Command::new(first);
                command.args(rest).arg(program);
                command
            }
            _ => Command::new(program),
        };
        let output = tempfile::tempfile().expect("a file");
        let (out, err) = (output.try_clone().expect("a file"), output.try_clone().expect("a file"));
        command.args(["--exact", "a_process_plays_its_scenario", "--nocapture", "--test-threads=1"]);
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("TRUNKLINE_")) {
            if name != "TRUNKLINE_FULL" {
                command.env_remove(name);
            }
        }
        if pair {
            command.env("TRUNKLINE_TEST_PAIR", "1");
        }
        if !self.env.iter().any(|(name, _)| name == "TRUNKLINE_TEST_PLUGIN") {
            command.env("TRUNKLINE_TEST_PLUGIN", trunkline_integration::plugin_path().expect("the plugin"));
        }
        command.env("RUST_BACKTRACE", "0");
        command.env("TRUNKLINE_TEST_SCENARIO", self.scenario);
        command.env("TRUNKLINE_TEST_ABI", self.version.to_string());
        command.env("TRUNKLINE_TEST_ROLE", role.to_string());
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        if role == 1 {
            command.envs(self.second_env.iter().map(|(name, value)| (name, value)));
        }
        command.stdin(stdin).stdout(out).stderr(err);
        let child = match &self.hosts {
            Some(hosts) => hosts[role].call_on_host(|| command.env("TRUNKLINE_TEST_HOSTED", "1").spawn()),
            None => command.spawn(),
        };
        let child = child.expect("a process starts");
        Actor { child, output }
    }

    /// Plays the scenario in one process.
    #[track_caller]
    pub(crate) fn alone(&self) {
        let (status, text) = self.with_cores(|| {
            let mut actor = self.start(0, Stdio::null(), false);
            (actor.wait(Instant::now() + self.limit), actor.text())
        });
        assert!(good(status), "{self}: {}\n{text}", describe(status));
    }

    /// Plays the scenario in two processes. The second may be killed, if `may_die`.
    #[track_caller]
    fn play_two(&self, may_die: bool) {
        let (ours, theirs) = UnixStream::pair().expect("a socket pair");
        let mut first = self.start(0, Stdio::from(OwnedFd::from(ours)), true);
        let mut second = self.start(1, Stdio::from(OwnedFd::from(theirs)), true);
        let until = Instant::now() + self.limit;
        let ended = first.wait(until);
        // Without the first process, the second may have no reason to end.
        let until = if good(ended) { until } else { Instant::now() + AFTERWARDS };
        let status = [ended, second.wait(until)];
        let killed = status[1].and_then(|status| status.signal()) == Some(Signal::KILL.as_raw());
        let well = good(status[0]) && (good(status[1]) && !may_die || may_die && killed);
        let [one, two] = status.map(describe);
        for text in [first.text(), second.text()] {
            text.lines().filter(|line| line.contains("figure: ")).for_each(|line| println!("{line}"));
        }
        assert!(well, "{self}\n== first: {one}\n{}\n== second: {two}\n{}", first.text(), second.text());
    }

    #[track_caller]
    pub(crate) fn two(&self) {
        self.with_cores(|| self.play_two(false));
    }

    /// Plays the scenario in two processes, of which the first kills the second.
    #[track_caller]
    pub(crate) fn two_and_one_dies(&self) {
        self.with_cores(|| self.play_two(true));
    }

    /// Plays the scenario in one process, once for each version.
    #[track_caller]
    pub(crate) fn alone_in_every_version(&self) {
        for version in VERSIONS {
            self.clone().version(version).alone();
        }
    }

    /// Plays the scenario in two processes, once for each version.
    #[track_caller]
    pub(crate) fn two_in_every_version(&self) {
        for version in VERSIONS {
            self.clone().version(version).two();
        }
    }
}

/// Every version of the interface.
pub(crate) const VERSIONS: [u8; 7] = [6, 7, 8, 9, 10, 11, 12];

impl std::fmt::Display for Setting {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "scenario {} with version {} and {:?}", self.scenario, self.version, self.env)
    }
}

fn good(status: Option<ExitStatus>) -> bool {
    status.is_some_and(|status| status.success())
}

fn describe(status: Option<ExitStatus>) -> String {
    status.map_or_else(|| format!("still running after {:?}", limit()), |status| status.to_string())
}

/// Waits for a child, until `until` at the latest.
pub(crate) fn wait(child: &mut Child, until: Instant) -> Option<ExitStatus> {
    let pid = Pid::from_child(child);
    let fd = pidfd_open(pid, PidfdFlags::empty()).expect("a child can be watched");
    let left = until.saturating_duration_since(Instant::now());
    let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
    let ended = poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&left)).expect("poll");
    (ended > 0).then(|| child.wait().expect("a child's status"))
}

impl Actor {
    fn wait(&mut self, until: Instant) -> Option<ExitStatus> {
        wait(&mut self.child, until)
    }

    fn text(&mut self) -> String {
        let mut text = Vec::new();
        let read = self.output.rewind().and_then(|()| self.output.read_to_end(&mut text));
        read.expect("its output");
        // Indented, so that its result line is not mistaken for ours.
        String::from_utf8_lossy(&text).lines().map(|line| format!("  | {line}\n")).collect()
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        // It may have ended; a stopped process also dies of this signal.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
