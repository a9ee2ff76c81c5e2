//! A host: namespaces that a thread can enter, and processes started in them.
//!
//! Called by the testbed and by tests. No process that is started here outlives its [`RunningProcess`].

use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns, unshare};
use rustix::process::{Pid, Signal, kill_process_group};

use super::inner_program::{refuse_testbed, require_granted};

/// The kinds of namespaces that a host has of its own.
const KINDS: [(&str, CloneFlags); 3] =
    [("net", CloneFlags::CLONE_NEWNET), ("mnt", CloneFlags::CLONE_NEWNS), ("uts", CloneFlags::CLONE_NEWUTS)];

/// A host of the testbed. Clones refer to the same host.
#[derive(Clone, Debug)]
pub struct TestHost(Arc<HostNamespaces>);

#[derive(Debug)]
struct HostNamespaces {
    name: String,
    /// In the order of [`KINDS`]; they keep the namespaces alive.
    files: [File; 3],
}

impl TestHost {
    pub(super) fn new(name: &str, number: usize) -> Self {
        let good = !name.is_empty() && name.bytes().all(|letter| letter.is_ascii_alphanumeric());
        assert!(good, "{name:?} is not a valid host name: use letters and digits only");
        let files = in_thread(|| {
            let all = KINDS.iter().fold(CloneFlags::empty(), |all, (_, kind)| all | *kind);
            require_granted("namespaces of a host", unshare(all));
            set_up_namespaces(name, number);
            KINDS.map(|(kind, _)| {
                let path = format!("/proc/thread-self/ns/{kind}");
                File::open(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
            })
        });
        let host = Self(Arc::new(HostNamespaces { name: name.to_owned(), files }));
        host.run_ip("link set lo up");
        host
    }

    /// Returns its name, which `gethostname` returns on that host.
    #[must_use]
    pub fn host_name(&self) -> &str {
        &self.0.name
    }

    /// Calls a function on this host, in a thread of its own. Sockets that it opens belong to this host wherever they
    /// are used. Threads and processes that it starts run on this host, too; nothing ends such processes.
    ///
    /// # Panics
    /// If the function panics.
    pub fn call_on_host<T: Send>(&self, function: impl FnOnce() -> T + Send) -> T {
        in_thread(|| {
            self.enter_namespaces();
            function()
        })
    }

    /// Starts a program on this host, as the leader of a process group of its own.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start_process(&self, command: &mut Command) -> io::Result<RunningProcess> {
        self.call_on_host(|| RunningProcess::start_process(command))
    }

    /// Runs a program on this host until it ends, and captures its output.
    ///
    /// # Errors
    /// If it cannot be started, or its output cannot be read.
    pub fn run_captured(&self, command: &mut Command) -> io::Result<Output> {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let running = self.start_process(command)?;
        running.wait_with_output()
    }

    /// Whether both are the same host.
    #[must_use]
    pub fn is_same_host(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Returns a path at which other processes can open the network namespace.
    pub(super) fn network_path(&self) -> String {
        use std::os::fd::AsRawFd as _;
        format!("/proc/{}/fd/{}", std::process::id(), self.0.files[0].as_raw_fd())
    }

    /// Executes lines of `ip -batch`.
    pub(super) fn run_ip(&self, lines: &str) {
        let mut command = Command::new("ip");
        command.args(["-batch", "-"]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut running = match self.start_process(&mut command) {
            Err(error) => refuse_testbed(format!("ip (package iproute2): {error}")),
            Ok(running) => running,
        };
        let mut input = running.child_mut().stdin.take();
        let written = input.as_mut().map(|input| input.write_all(lines.as_bytes()));
        drop(input);
        let output = running.wait_with_output().unwrap_or_else(|error| panic!("ip: {error}"));
        let said = String::from_utf8_lossy(&output.stderr);
        // The kernel lacks the feature, or does not permit its use.
        if ["not permitted", "not supported", "Unknown device type"].iter().any(|text| said.contains(text)) {
            refuse_testbed(format!("ip {}: {}", lines.trim(), said.trim()));
        }
        assert!(output.status.success() && matches!(written, Some(Ok(()))), "ip {lines}: {said}");
    }

    /// Moves the calling thread to this host permanently.
    fn enter_namespaces(&self) {
        // A thread that shares its working directory with others cannot change its mounts.
        unshare(CloneFlags::CLONE_FS).unwrap_or_else(|error| panic!("unshare: {error}"));
        for ((kind, flag), file) in KINDS.iter().zip(&self.0.files) {
            setns(file, *flag)
                .unwrap_or_else(|error| panic!("host {}, namespace {kind}: {error}", self.host_name()));
        }
    }
}

/// Sets up the namespaces of the calling thread as those of a host: name, `/sys`, `/dev/shm` and boot id.
fn set_up_namespaces(name: &str, number: usize) {
    require_granted("sethostname", nix::unistd::sethostname(name));
    let nothing = None::<&str>;
    let plain = MsFlags::empty();
    require_granted("mounting /sys", mount(Some("sysfs"), "/sys", Some("sysfs"), plain, nothing));
    require_granted("mounting /dev/shm", mount(Some("tmpfs"), "/dev/shm", Some("tmpfs"), plain, nothing));
    // A file of the new /dev/shm replaces the kernel's by a bind mount; its own name is then removed.
    let boot_id = Path::new("/dev/shm/boot_id");
    let real = "/proc/sys/kernel/random/boot_id";
    let text = format!("00000000-0000-4000-8000-{number:012x}\n");
    std::fs::write(boot_id, text).unwrap_or_else(|error| panic!("{}: {error}", boot_id.display()));
    require_granted("mounting boot_id", mount(Some(boot_id), real, nothing, MsFlags::MS_BIND, nothing));
    std::fs::remove_file(boot_id).unwrap_or_else(|error| panic!("{}: {error}", boot_id.display()));
}

/// Calls a function in a thread of its own, and passes on its result or its panic.
fn in_thread<T: Send>(function: impl FnOnce() -> T + Send) -> T {
    let joined = std::thread::scope(|scope| scope.spawn(function).join());
    joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// A process on a host. Dropping it kills it and everything in its process group.
#[derive(Debug)]
pub struct RunningProcess(Child);

impl RunningProcess {
    /// Starts a program in the namespaces of the calling thread.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start_process(command: &mut Command) -> io::Result<Self> {
        command.process_group(0).spawn().map(Self)
    }

    /// Returns its process id.
    #[must_use]
    pub fn process_id(&self) -> u32 {
        self.0.id()
    }

    /// Returns the process as a type of the standard library, for access to its pipes.
    pub fn child_mut(&mut self) -> &mut Child {
        &mut self.0
    }

    /// Waits for its end; `None` if it still runs after the limit.
    ///
    /// # Errors
    /// If the system cannot report its status.
    pub fn wait(&mut self, limit: Duration) -> io::Result<Option<ExitStatus>> {
        let until = Instant::now() + limit;
        loop {
            if let Some(status) = self.0.try_wait()? {
                return Ok(Some(status));
            }
            if Instant::now() >= until {
                return Ok(None);
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Waits for its end, and returns the output that it wrote to its pipes.
    ///
    /// # Errors
    /// If a pipe cannot be read.
    pub fn wait_with_output(mut self) -> io::Result<Output> {
        use std::io::Read as _;
        let out = self.0.stdout.take();
        let err = self.0.stderr.take();
        let mut both = [Vec::new(), Vec::new()];
        let [stdout, stderr] = &mut both;
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| out.map_or(Ok(0), |mut out| out.read_to_end(stdout)));
            err.map_or(Ok(0), |mut err| err.read_to_end(stderr))?;
            reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })?;
        let status = self.0.wait()?;
        let [stdout, stderr] = both;
        Ok(Output { status, stdout, stderr })
    }

    /// Sends a signal to it and to all processes of its group.
    ///
    /// # Errors
    /// If no process of the group exists any more.
    pub fn send_signal(&self, signal: Signal) -> io::Result<()> {
        Ok(kill_process_group(Pid::from_child(&self.0), signal)?)
    }
}

impl Drop for RunningProcess {
    fn drop(&mut self) {
        // The group may still have members after its leader has ended. If all have ended, the signal fails, which is
        // ignored.
        let _ = self.send_signal(Signal::KILL);
        let _ = self.0.wait();
    }
}
