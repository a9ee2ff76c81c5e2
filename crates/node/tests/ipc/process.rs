//! The processes that a test starts, and the operations that it requests of them.

use std::cell::RefCell;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketFlags, SocketType};
use trunkline_mem::ipc::MemfdDevice;

use crate::server::ROLE;
use crate::words::{Look, Op, Parcel, receive, send};

pub(crate) const MIB: usize = 1 << 20;

/// A limit that no correct run reaches.
const PATIENCE: Duration = Duration::from_secs(40);

/// The outcome of a send, numbered as [`trunkline_node::ipc::SendOutcome`].
pub(crate) const COPIED: u64 = 0;
pub(crate) const NOT_MAPPED: u64 = 1;
pub(crate) const REFUSED: u64 = 2;
pub(crate) const LOST: u64 = 3;

/// How handles are passed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum By {
    Bytes,
    Descriptor,
}

/// A device, and the budget of its processes.
pub(crate) struct World {
    pub(crate) device: MemfdDevice,
    entries: u64,
    bytes: u64,
    by: By,
}

impl World {
    pub(crate) fn new(mib: usize, entries: u64, by: By) -> Self {
        let device = MemfdDevice::create(3, (mib * MIB) as u64).unwrap();
        Self { device, entries, bytes: 1 << 40, by }
    }

    pub(crate) fn process(&self) -> Process {
        self.process_by(Command::new(std::env::current_exe().unwrap()))
    }

    /// Starts a process through another program, which receives the command line to execute as its last arguments.
    pub(crate) fn process_by(&self, mut command: Command) -> Process {
        let (socket, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .unwrap();
        let child = command
            .args(["--exact", "server::serve", "--nocapture", "--test-threads=1"])
            .env(ROLE, "1")
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        let timeout = rustix::net::sockopt::Timeout::Recv;
        rustix::net::sockopt::set_socket_timeout(&socket, timeout, Some(PATIENCE)).unwrap();
        let device = self.device.descriptor().unwrap();
        send(&socket, &[0, self.entries, self.bytes, self.by as u64], &[], Some(&device)).unwrap();
        Process { child: RefCell::new(child), socket }
    }

    /// Starts two neighbours; each is number 0 at the other.
    pub(crate) fn pair(&self) -> [Process; 2] {
        let pair = [self.process(), self.process()];
        meet(&pair[0], &pair[1]);
        pair
    }

    /// Waits until exactly this number of bytes is in use.
    pub(crate) fn used(&self, bytes: usize, within: Duration) {
        let until = Instant::now() + within;
        loop {
            let usage = self.device.usage().unwrap();
            if usage.used == bytes as u64 {
                return;
            }
            assert!(Instant::now() < until, "the bytes in use did not become {bytes} in time: {usage:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Makes two processes neighbours.
pub(crate) fn meet(one: &Process, other: &Process) {
    let met = |of: &Process| of.ask(Op::Met, &[0]).unwrap().words[1];
    let before = (met(one), met(other));
    let address = one.ask(Op::Address, &[]).unwrap().tail;
    other.tell(Op::Connect, &[], &address);
    other.answer().unwrap();
    one.ask(Op::Met, &[before.0 + 1]).unwrap();
    other.ask(Op::Met, &[before.1 + 1]).unwrap();
}

/// How a send has started.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Began {
    /// Its number in the process.
    Begun(u64),
    Elsewhere(u64),
    Busy,
}

impl Began {
    pub(crate) fn number(self) -> u64 {
        let Self::Begun(number) = self else { panic!("{self:?}") };
        number
    }
}

/// A process that a test drives.
pub(crate) struct Process {
    child: RefCell<Child>,
    socket: OwnedFd,
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Process {
    pub(crate) fn tell(&self, op: Op, args: &[u64], tail: &[u8]) {
        send(&self.socket, &[&[op as u64], args].concat(), tail, None).unwrap();
    }

    pub(crate) fn answer(&self) -> Result<Parcel, String> {
        let parcel = receive(&self.socket, true).expect("the process must reply").unwrap();
        match parcel.words[0] {
            0 => Ok(parcel),
            _ => Err(String::from_utf8(parcel.tail).unwrap()),
        }
    }

    pub(crate) fn ask(&self, op: Op, args: &[u64]) -> Result<Parcel, String> {
        self.tell(op, args, &[]);
        self.answer()
    }

    /// Kills the process by SIGKILL.
    pub(crate) fn kill(&self) {
        let mut child = self.child.borrow_mut();
        let _ = child.kill();
        child.wait().unwrap();
    }

    /// Sends a signal. After SIGSTOP, waits until the process has stopped, which on a busy machine takes a while.
    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child.borrow());
        rustix::process::kill_process(pid, signal).unwrap();
        let until = Instant::now() + Duration::from_secs(10);
        while signal == rustix::process::Signal::STOP && !self.has_stopped() {
            assert!(Instant::now() < until, "the process did not stop within 10 s of SIGSTOP");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Whether all its threads have stopped.
    fn has_stopped(&self) -> bool {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.child.borrow().id())).unwrap();
        threads.flatten().all(|thread| {
            let status = std::fs::read_to_string(thread.path().join("status")).unwrap_or_default();
            status.lines().any(|line| line.starts_with("State:\tT"))
        })
    }

    /// Returns the bytes of memory in use, and the bytes of address space.
    pub(crate) fn memory(&self) -> [u64; 2] {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.borrow().id())).unwrap();
        ["VmRSS:", "VmSize:"].map(|what| {
            let line = status.lines().find(|line| line.starts_with(what)).unwrap();
            line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
        })
    }

    pub(crate) fn alloc(&self, len: usize) -> usize {
        self.ask(Op::Alloc, &[len as u64]).unwrap().words[1] as usize
    }

    pub(crate) fn free(&self, addr: usize) {
        self.ask(Op::Free, &[addr as u64]).unwrap();
    }

    pub(crate) fn fill(&self, addr: usize, len: usize, first: u64) {
        self.ask(Op::Fill, &[addr as u64, len as u64, first]).unwrap();
    }

    /// Returns the number of words in its memory that differ from the pattern.
    pub(crate) fn wrong(&self, addr: usize, len: usize, first: u64) -> u64 {
        self.ask(Op::Check, &[addr as u64, len as u64, first]).unwrap().words[1]
    }

    fn begin(&self, to: u64, addr: usize, len: usize, passing: bool) -> Result<Began, String> {
        let [_, what, number, ..] =
            self.ask(Op::Send, &[to, addr as u64, len as u64, u64::from(passing)])?.words;
        Ok(match what {
            0 => Began::Begun(number),
            1 => Began::Elsewhere(number),
            _ => Began::Busy,
        })
    }

    pub(crate) fn send_to(&self, to: u64, addr: usize, len: usize) -> Result<Began, String> {
        self.begin(to, addr, len, false)
    }

    pub(crate) fn send(&self, addr: usize, len: usize) -> Began {
        self.begin(0, addr, len, false).unwrap()
    }

    /// Sends a message with a passing export.
    pub(crate) fn send_passing(&self, addr: usize, len: usize) -> Began {
        self.begin(0, addr, len, true).unwrap()
    }

    /// Waits until a send has ended, and returns its outcome.
    pub(crate) fn sent(&self, began: Began) -> u64 {
        self.ask(Op::Sent, &[began.number()]).unwrap().words[1]
    }

    /// Receives the next arrival; returns its number.
    pub(crate) fn receive(&self) -> u64 {
        self.ask(Op::Receive, &[]).unwrap().words[1]
    }

    /// Receives the next arrival into own memory; returns its number.
    pub(crate) fn receive_own(&self, addr: usize) -> u64 {
        self.ask(Op::ReceiveOwn, &[addr as u64]).unwrap().words[1]
    }

    /// Waits until a receive has ended; returns its outcome and the number of wrong words.
    pub(crate) fn received(&self, number: u64, first: u64) -> (u64, u64) {
        let words = self.ask(Op::Received, &[number, first]).unwrap().words;
        (words[1], words[2])
    }

    /// Sends a message and checks that it arrives correctly.
    pub(crate) fn gives(&self, other: &Self, addr: usize, len: usize, first: u64) {
        self.fill(addr, len, first);
        let began = self.send(addr, len);
        let number = other.receive();
        assert_eq!(other.received(number, first), (COPIED, 0));
        assert_eq!(self.sent(began), COPIED);
    }

    pub(crate) fn shrink(&self, entries: u64) {
        self.ask(Op::Keep, &[entries, 1 << 40, 0]).unwrap();
    }

    pub(crate) fn grow(&self, entries: u64) {
        self.ask(Op::Keep, &[entries, 1 << 40, 1]).unwrap();
    }

    pub(crate) fn look(&self) -> Look {
        Look::of(&self.ask(Op::Look, &[]).unwrap().words[1..])
    }

    /// Polls the counts until `is` holds for them, and returns them.
    pub(crate) fn until(&self, within: Duration, is: impl Fn(&Look) -> bool) -> Look {
        let until = Instant::now() + within;
        loop {
            let look = self.look();
            if is(&look) {
                return look;
            }
            assert!(Instant::now() < until, "the condition did not hold within {within:?}: {look:?}");
        }
    }

    /// Waits until the neighbour of that number has left, and returns the reason.
    pub(crate) fn left(&self, number: u64) -> String {
        String::from_utf8(self.ask(Op::Left, &[number]).unwrap().tail).unwrap()
    }
}
