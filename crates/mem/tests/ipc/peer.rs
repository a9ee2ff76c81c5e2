//! A process that has a kind of memory and executes requests that it receives over a socket.

use std::cell::{Cell, RefCell};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use trunkline_mem::MemoryRange;
use trunkline_mem::ipc::{
    CopyBatch, CopyPlace, CopyTarget, DeviceUsage, ExportedHandle, HandlePassing, IpcAllocation,
    IpcAllocationId, IpcCaps, IpcHandle, MappingTicket, MappingUser, MemfdDevice, OpenedHandle,
};

use crate::copies::{self, Childs};
use crate::stub::{self, Module, StubDevice};
use crate::subject::{Subject, make};

const KIND: &str = "MEM_TEST_KIND";
const PATIENCE: Duration = Duration::from_secs(60);

/// Words of a request and of a reply; further bytes follow them.
const WORDS: usize = 7;
type Words = [u64; WORDS];

fn send(socket: impl AsFd, words: Words, tail: &[u8], fd: Option<&OwnedFd>) -> rustix::io::Result<usize> {
    let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    bytes.extend_from_slice(tail);
    let fds: Vec<_> = fd.into_iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
    }
    rustix::net::sendmsg(socket, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL)
}

/// Returns `None` when the other end is closed.
fn receive(socket: impl AsFd) -> Option<(Words, Vec<u8>, Option<OwnedFd>)> {
    let mut bytes = vec![0; 4096];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let into = &mut [IoSliceMut::new(&mut bytes)];
    let got = rustix::net::recvmsg(socket, into, &mut control, RecvFlags::CMSG_CLOEXEC).ok()?.bytes;
    let fd = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    bytes.truncate(got);
    if got < 8 * WORDS {
        return None;
    }
    let tail = bytes.split_off(8 * WORDS);
    let words = std::array::from_fn(|at| u64::from_le_bytes(bytes[8 * at..8 * at + 8].try_into().unwrap()));
    Some((words, tail, fd))
}

/// The configuration shared by all processes of a test.
pub(crate) struct World {
    kind: &'static str,
    pub(crate) device: Option<MemfdDevice>,
    stub: Option<StubDevice>,
    module: Option<Module>,
    user: Cell<Option<u32>>,
    settings: RefCell<Vec<(&'static str, String)>>,
}

impl World {
    /// Creates a world of that kind; `capacity` is its device's size in bytes.
    pub(crate) fn new(kind: &'static str, capacity: u64) -> Self {
        let device = (kind == "device").then(|| MemfdDevice::create(3, capacity).unwrap());
        Self::with(kind, device, capacity, 1)
    }

    /// Creates a world over a stub whose first allocation has that id.
    pub(crate) fn beginning(kind: &'static str, capacity: u64, first: u64) -> Self {
        Self::with(kind, None, capacity, first)
    }

    fn with(kind: &'static str, device: Option<MemfdDevice>, capacity: u64, first: u64) -> Self {
        let is_stubbed = !kind.starts_with("native_") && stub::library_of(kind).is_some();
        let module = (kind == "xpmem").then(Module::new);
        let stub = (is_stubbed && module.is_none()).then(|| StubDevice::new(capacity, first));
        Self { kind, device, stub, module, user: Cell::new(None), settings: RefCell::default() }
    }

    /// Sets a variable in the environment of processes started later.
    pub(crate) fn set(&self, name: &'static str, value: impl ToString) {
        self.settings.borrow_mut().push((name, value.to_string()));
    }

    fn common(&self) -> Option<OwnedFd> {
        self.device.as_ref().map(|device| device.descriptor().unwrap())
    }

    /// Sets the user of processes started later.
    pub(crate) fn run_as(&self, user: u32) {
        self.user.set(Some(user));
    }

    /// Starts a process.
    pub(crate) fn process(&self) -> Process {
        self.process_of(self.kind)
    }

    /// Starts a process of another kind.
    pub(crate) fn process_of(&self, kind: &str) -> Process {
        let (socket, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .unwrap();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "peer::peer", "--nocapture", "--test-threads=1"])
            .env(KIND, kind)
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        if let Some(stub) = &self.stub {
            stub.give(&mut command);
        }
        if let Some(module) = &self.module {
            module.give(&mut command);
        }
        command.envs(self.settings.borrow().iter().map(|(name, value)| (name, value)));
        if let Some(user) = self.user.get() {
            std::os::unix::process::CommandExt::uid(&mut command, user);
        }
        let (child, module) = (RefCell::new(command.spawn().unwrap()), self.module.clone());
        let process = Process { child, socket, module };
        rustix::net::sockopt::set_socket_timeout(
            &process.socket,
            rustix::net::sockopt::Timeout::Recv,
            Some(PATIENCE),
        )
        .unwrap();
        send(&process.socket, [0; WORDS], &[], self.common().as_ref()).unwrap();
        process
    }

    /// Waits until the usage has the expected value, because children that are being started hold descriptors briefly.
    pub(crate) fn used(&self, expected: u64) -> DeviceUsage {
        let device = self.device.as_ref().unwrap();
        let until = Instant::now() + Duration::from_secs(2);
        loop {
            let usage = device.usage().unwrap();
            if usage.used == expected {
                return usage;
            }
            assert!(Instant::now() < until, "the bytes in use did not become {expected} in time: {usage:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// A location in a process.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place {
    Own(usize),
    /// The number of an open handle, and an offset in it.
    Open(u64, u64),
}

/// The direction of a copy between own memory and an open handle.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Copying {
    Out,
    Into,
    /// From heap memory into the handle.
    Fill,
}

/// A pattern of words: the first word, and the difference between neighbours.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Pattern(pub(crate) u64, pub(crate) u64);

/// A handle in transit.
#[derive(Debug)]
pub(crate) struct Parcel {
    pub(crate) handle: IpcHandle,
    pub(crate) descriptor: Option<OwnedFd>,
}

impl Parcel {
    pub(crate) fn with(&self, change: impl FnOnce(&mut Vec<u8>)) -> Self {
        let mut bytes = self.handle.bytes().to_vec();
        change(&mut bytes);
        let descriptor = self.descriptor.as_ref().map(|fd| fd.try_clone().unwrap());
        Self { handle: IpcHandle::new(self.handle.kind(), &bytes).unwrap(), descriptor }
    }
}

/// A process that a test drives.
pub(crate) struct Process {
    child: RefCell<Child>,
    socket: OwnedFd,
    module: Option<Module>,
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

type Reply = Result<(Words, Vec<u8>, Option<OwnedFd>), String>;

impl Process {
    fn ask(&self, op: Op, args: &[u64], tail: &[u8], fd: Option<&OwnedFd>) -> Reply {
        let mut words = [0; WORDS];
        words[0] = op as u64;
        words[1..=args.len()].copy_from_slice(args);
        send(&self.socket, words, tail, fd).unwrap();
        let (words, tail, fd) = receive(&self.socket).expect("the process must reply");
        match words[0] {
            0 => Ok((words, tail, fd)),
            _ => Err(String::from_utf8(tail).unwrap()),
        }
    }

    /// Kills the process by SIGKILL.
    pub(crate) fn kill(&self) {
        let mut child = self.child.borrow_mut();
        let _ = child.kill();
        child.wait().unwrap();
        self.module.iter().for_each(|module| module.bury(child.id()));
    }

    pub(crate) fn alloc(&self, len: usize) -> Result<usize, String> {
        self.ask(Op::Alloc, &[len as u64], &[], None).map(|(words, ..)| words[1] as usize)
    }

    pub(crate) fn caps(&self) -> IpcCaps {
        let (words, ..) = self.ask(Op::Caps, &[], &[], None).unwrap();
        let is = |bit: u32| words[1] >> bit & 1 == 1;
        IpcCaps {
            maps: is(0),
            by_bytes: is(1),
            by_descriptor: is(2),
            opens_once: is(3),
            refuses_overlap: is(4),
            outlives_free: is(5),
            tells_descriptors: is(6),
        }
    }

    /// Returns a number from the stub of its driver.
    pub(crate) fn number(&self, name: &str, argument: u64) -> u64 {
        self.ask(Op::Number, &[argument], name.as_bytes(), None).unwrap().0[1]
    }

    /// Waits until no memory of the stub is in use. The kernel may release the stub's locks of closed files after the
    /// call.
    pub(crate) fn has_all_back(&self) {
        let began = Instant::now();
        while self.number("stub_used", 0) != 0 {
            assert!(began.elapsed().as_secs() < 5, "the memory did not become free in 5 s");
        }
    }

    /// Calls an additional function of the stub, with a number.
    pub(crate) fn vendor(&self, name: &str, arguments: &[u64]) -> Result<u64, String> {
        self.ask(Op::Vendor, arguments, name.as_bytes(), None).map(|(words, ..)| words[1])
    }

    /// Creates the process's kind of memory again. Open handles stay mapped, but the new value does not know them.
    pub(crate) fn anew(&self) {
        self.ask(Op::Anew, &[], &[], None).unwrap();
    }

    /// Ends all exports that the process keeps.
    pub(crate) fn unexport(&self) -> Result<(), String> {
        self.ask(Op::Unexport, &[], &[], None).map(drop)
    }

    pub(crate) fn free(&self, addr: usize) {
        self.ask(Op::Free, &[addr as u64], &[], None).unwrap();
    }

    pub(crate) fn find(&self, addr: usize) -> Result<IpcAllocation, String> {
        let (words, ..) = self.ask(Op::Find, &[addr as u64], &[], None)?;
        let [base, len] = [words[1], words[2]].map(|word| word as usize);
        Ok(IpcAllocation { base, len, id: IpcAllocationId(words[3]), device: words[4] as u32 })
    }

    pub(crate) fn export(&self, of: &IpcAllocation, how: HandlePassing) -> Result<Parcel, String> {
        let args = [of.base as u64, of.len as u64, of.id.0, u64::from(of.device), how as u64];
        let (words, tail, descriptor) = self.ask(Op::Export, &args, &[], None)?;
        Ok(Parcel { handle: IpcHandle::new(words[1] as u8, &tail).unwrap(), descriptor })
    }

    pub(crate) fn open(&self, parcel: &Parcel) -> Result<u64, String> {
        self.open_with(parcel, 0)
    }

    /// Opens a parcel for a device of that process.
    pub(crate) fn open_for(&self, parcel: &Parcel, device: u64) -> Result<u64, String> {
        self.open_with(parcel, 1 + device)
    }

    fn open_with(&self, parcel: &Parcel, user: u64) -> Result<u64, String> {
        let args = [u64::from(parcel.handle.kind()), user];
        let reply = self.ask(Op::Open, &args, parcel.handle.bytes(), parcel.descriptor.as_ref());
        reply.map(|(words, ..)| words[1])
    }

    /// Returns the address of an open handle, for kinds that map.
    pub(crate) fn address(&self, open: u64) -> usize {
        self.ask(Op::Address, &[open], &[], None).unwrap().0[1] as usize
    }

    pub(crate) fn close(&self, open: u64) {
        self.ask(Op::Close, &[open], &[], None).unwrap();
    }

    /// Requests that the thread of the kind closes a handle.
    pub(crate) fn close_beside(&self, open: u64) {
        self.ask(Op::CloseBeside, &[open], &[], None).unwrap();
    }

    /// Whether that thread has closed the mapping that was posted last.
    pub(crate) fn is_closed(&self) -> bool {
        self.ask(Op::IsClosed, &[], &[], None).map(|(words, ..)| words[1] == 1).unwrap()
    }

    pub(crate) fn fill(&self, at: Place, len: usize, pattern: Pattern) -> Result<(), String> {
        self.ask(Op::Fill, &args(at, len, pattern), &[], None).map(drop)
    }

    /// Copies bytes between own memory at `own` and an open handle, or from heap memory into the handle.
    pub(crate) fn copy(&self, how: Copying, own: usize, (open, at): (u64, u64), len: usize) {
        self.ask(Op::Copy, &[how as u64, own as u64, open, at, len as u64], &[], None).unwrap();
    }

    /// Begins to copy bytes of an open handle to own memory; returns the number of the batch.
    pub(crate) fn begin(&self, (open, at): (u64, u64), own: usize, len: usize) -> Result<u64, String> {
        self.go_on(0, (open, at), own, len)
    }

    /// As [`Process::begin`], in an existing batch.
    pub(crate) fn go_on(
        &self,
        batch: u64,
        (open, at): (u64, u64),
        own: usize,
        len: usize,
    ) -> Result<u64, String> {
        let args = [open, at, own as u64, len as u64, batch];
        self.ask(Op::Begin, &args, &[], None).map(|(words, ..)| words[1])
    }

    /// Begins to write a pattern to own memory, as soon as there is room; returns the number of the batch.
    pub(crate) fn begin_fill(&self, own: usize, len: usize, pattern: Pattern) -> u64 {
        loop {
            match self.try_begin_fill(own, len, pattern) {
                Err(busy) if busy.starts_with("Busy") => std::thread::yield_now(),
                begun => return begun.unwrap(),
            }
        }
    }

    /// As [`Process::begin_fill`], but returns an error if the kind is busy.
    pub(crate) fn try_begin_fill(&self, own: usize, len: usize, pattern: Pattern) -> Result<u64, String> {
        self.fill_further(0, own, len, pattern)
    }

    /// As [`Process::try_begin_fill`], in an existing batch.
    pub(crate) fn fill_further(
        &self,
        batch: u64,
        own: usize,
        len: usize,
        Pattern(first, step): Pattern,
    ) -> Result<u64, String> {
        let args = [own as u64, len as u64, first, step, batch];
        self.ask(Op::BeginFill, &args, &[], None).map(|(words, ..)| words[1])
    }

    /// Pins and unpins host memory. Returns whether it was pinned, and the stub's number of pins before and after the
    /// unpin.
    pub(crate) fn pin(&self, len: usize) -> [u64; 3] {
        let (words, ..) = self.ask(Op::Pin, &[len as u64], &[], None).unwrap();
        [words[1], words[2], words[4]]
    }

    /// Whether a batch has ended.
    pub(crate) fn has_ended(&self, batch: u64) -> Result<bool, String> {
        self.ask(Op::HasEnded, &[batch], &[], None).map(|(words, ..)| words[1] == 1)
    }

    /// Returns the number of words that differ from a pattern.
    pub(crate) fn check(&self, at: Place, len: usize, pattern: Pattern) -> Result<u64, String> {
        self.ask(Op::Check, &args(at, len, pattern), &[], None).map(|(words, ..)| words[1])
    }

    /// Opens and closes a parcel that many times; returns the numbers of descriptors and mappings before and after.
    pub(crate) fn rounds(&self, parcel: &Parcel, rounds: u64) -> [u64; 4] {
        let args = [u64::from(parcel.handle.kind()), rounds];
        let (words, ..) =
            self.ask(Op::Rounds, &args, parcel.handle.bytes(), parcel.descriptor.as_ref()).unwrap();
        [words[1], words[2], words[3], words[4]]
    }

    /// Allocates, frees, exports and opens own exports at random, until the process is killed.
    pub(crate) fn churn(&self, seed: u64) {
        let mut words = [0; WORDS];
        words[..2].copy_from_slice(&[Op::Churn as u64, seed]);
        send(&self.socket, words, &[], None).unwrap();
    }

    /// Forks. The child tries every call with an own allocation, an open handle and a handle to open, and lives until
    /// it is killed. Returns its PID, and the calls that wrongly succeeded or changed memory. `at` is an offset in the
    /// open handle.
    pub(crate) fn fork(
        &self,
        (addr, len): (usize, usize),
        (open, at): (u64, u64),
        parcel: &Parcel,
    ) -> (u64, String) {
        let args = [addr as u64, len as u64, open, u64::from(parcel.handle.kind()), at];
        let bytes = parcel.handle.bytes();
        let (words, tail, _) = self.ask(Op::Fork, &args, bytes, parcel.descriptor.as_ref()).unwrap();
        (words[1], String::from_utf8(tail).unwrap())
    }

    /// Denies processes of the same user access to its memory.
    pub(crate) fn hide(&self) {
        self.ask(Op::Hide, &[], &[], None).unwrap();
    }
}

fn args(at: Place, len: usize, pattern: Pattern) -> [u64; 6] {
    let [which, a, b] = match at {
        Place::Own(addr) => [0, addr as u64, 0],
        Place::Open(open, offset) => [1, open, offset],
    };
    [which, a, b, len as u64, pattern.0, pattern.1]
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Alloc,
    Free,
    Find,
    Export,
    Open,
    Address,
    Close,
    Fill,
    Check,
    Rounds,
    Churn,
    Hide,
    Caps,
    Number,
    Vendor,
    Copy,
    Unexport,
    Anew,
    Fork,
    Begin,
    BeginFill,
    HasEnded,
    Pin,
    CloseBeside,
    IsClosed,
}

const OPS: [Op; 25] = [
    Op::Alloc,
    Op::Free,
    Op::Find,
    Op::Export,
    Op::Open,
    Op::Address,
    Op::Close,
    Op::Fill,
    Op::Check,
    Op::Rounds,
    Op::Churn,
    Op::Hide,
    Op::Caps,
    Op::Number,
    Op::Vendor,
    Op::Copy,
    Op::Unexport,
    Op::Anew,
    Op::Fork,
    Op::Begin,
    Op::BeginFill,
    Op::HasEnded,
    Op::Pin,
    Op::CloseBeside,
    Op::IsClosed,
];

/// Executes requests. Does nothing unless another test of this binary started the process.
#[test]
fn peer() {
    let Ok(kind) = std::env::var(KIND) else { return };
    let socket = std::io::stdin();
    let Some((_, _, common)) = receive(&socket) else { return };
    let mut server =
        Server { subject: make(&kind, common), kind, open: Vec::new(), exports: Vec::new(), closing: None };
    while let Some((words, tail, fd)) = receive(&socket) {
        let done = match server.serve(words, &tail, fd) {
            Ok((words, tail, fd)) => send(&socket, words, &tail, fd.as_ref()),
            Err(text) => send(&socket, [1, 0, 0, 0, 0, 0, 0], text.as_bytes(), None),
        };
        if done.is_err() {
            return;
        }
    }
}

struct Server {
    subject: Box<dyn Subject>,
    kind: String,
    open: Vec<Option<OpenedHandle>>,
    exports: Vec<ExportedHandle>,
    closing: Option<MappingTicket>,
}

fn text(error: impl std::fmt::Debug + std::fmt::Display) -> String {
    format!("{error:?}: {error}")
}

fn reply(words: &[u64]) -> Reply {
    let mut all = [0; WORDS];
    all[1..=words.len()].copy_from_slice(words);
    Ok((all, Vec::new(), None))
}

fn count(folder: &str) -> u64 {
    std::fs::read_dir(folder).unwrap().count() as u64
}

fn mappings() -> u64 {
    std::fs::read_to_string("/proc/self/maps")
        .unwrap()
        .lines()
        .filter(|line| line.contains("/memfd:") || line.contains("/trunkline.xpmem"))
        .count() as u64
}

impl Server {
    fn serve(&mut self, words: Words, tail: &[u8], fd: Option<OwnedFd>) -> Reply {
        let [op, args @ ..] = words;
        let [a, b, c, d, e, _] = args;
        match OPS[op as usize] {
            Op::Alloc => reply(&[self.subject.alloc(a as usize)? as u64]),
            Op::Free => self.subject.free(a as usize).and_then(|()| reply(&[])),
            Op::Find => {
                let found = self.subject.memory().allocation_of(a as usize).map_err(text)?;
                reply(&[found.base as u64, found.len as u64, found.id.0, u64::from(found.device)])
            }
            Op::Export => {
                let of = IpcAllocation {
                    base: a as usize,
                    len: b as usize,
                    id: IpcAllocationId(c),
                    device: d as u32,
                };
                let how = match e {
                    0 => HandlePassing::Bytes,
                    1 => HandlePassing::Descriptor,
                    _ => HandlePassing::Either,
                };
                let export = self.subject.memory().export(&of, how).map_err(text)?;
                let (handle, descriptor) =
                    (export.handle, export.descriptor.as_ref().map(|fd| fd.try_clone().unwrap()));
                if self.subject.keeps_exports() {
                    self.exports.push(export);
                } else {
                    self.subject.memory().unexport(export).map_err(text)?;
                }
                Ok(([0, u64::from(handle.kind()), 0, 0, 0, 0, 0], handle.bytes().to_vec(), descriptor))
            }
            Op::Open => {
                let handle = IpcHandle::new(a as u8, tail).unwrap();
                let memory = self.subject.memory();
                let mapped = match b.checked_sub(1) {
                    None => memory.open(&handle, fd),
                    Some(device) => memory.open_for(&handle, fd, MappingUser::Device(device as u32)),
                };
                let mapped = mapped.map_err(text)?;
                self.open.push(Some(mapped));
                reply(&[self.open.len() as u64 - 1])
            }
            Op::Address => {
                let mapped = self.open[a as usize].as_ref().unwrap();
                reply(&[mapped.local_address().unwrap_or(0) as u64, mapped.len() as u64])
            }
            Op::Close => {
                let mapped = self.open[a as usize].take().unwrap();
                self.subject.memory().close(mapped).map_err(text)?;
                reply(&[])
            }
            Op::CloseBeside => {
                let mapped = self.open[a as usize].take().unwrap();
                self.closing =
                    Some(self.subject.memory().mapping_queue().unwrap().post_close(mapped).unwrap());
                reply(&[])
            }
            Op::IsClosed => {
                let queue = self.subject.memory().mapping_queue().unwrap();
                let closed = self.closing.as_ref().and_then(|ticket| queue.take_closed(ticket));
                let is_closed = closed.is_some();
                closed.transpose().map_err(|left| text(left.error))?;
                reply(&[u64::from(is_closed)])
            }
            Op::Fill | Op::Check => self.move_bytes(OPS[op as usize], args),
            Op::Copy => {
                let (memory, own, len) = (self.subject.memory(), b as usize, e as usize);
                let open = self.open[c as usize].as_ref().unwrap();
                let copied = match a {
                    0 => memory.copy(CopyPlace::Open(open, d), CopyTarget::Own(own), len),
                    1 => memory.copy(CopyPlace::Own(own), CopyTarget::Open(open, d), len),
                    _ => {
                        let heap = MemoryRange::try_heap(len).unwrap();
                        memory.copy(CopyPlace::Own(own), CopyTarget::Memory(&heap, 0), len).map_err(text)?;
                        memory.fill_from(CopyPlace::Open(open, d), &heap, 0, len)
                    }
                };
                copied.map_err(text)?;
                reply(&[])
            }
            Op::Begin => {
                let (open, mut batch) =
                    (self.open[a as usize].as_ref().unwrap(), (e != 0).then_some(CopyBatch(e)));
                let (from, to) = (CopyPlace::Open(open, b), CopyTarget::Own(c as usize));
                self.subject.memory().begin_copy(&mut batch, from, to, d as usize).map_err(text)?;
                reply(&[batch.map_or(0, |CopyBatch(number)| number)])
            }
            Op::BeginFill => {
                let (heap, mut batch) =
                    (MemoryRange::try_heap(b as usize).unwrap(), (e != 0).then_some(CopyBatch(e)));
                for (at, offset) in (0..b).step_by(8).enumerate() {
                    heap.write(offset, &c.wrapping_add(d.wrapping_mul(at as u64)).to_le_bytes()).unwrap();
                }
                let to = CopyPlace::Own(a as usize);
                self.subject.memory().begin_fill(&mut batch, to, &heap, 0, b as usize).map_err(text)?;
                reply(&[batch.map_or(0, |CopyBatch(number)| number)])
            }
            Op::Pin => {
                let heap = MemoryRange::try_heap(a as usize).unwrap();
                let mut told = Vec::new();
                let library = stub::library_of(&self.kind).unwrap();
                let pins = || stub::number(library, "stub_pins", 0);
                let pinned = self.subject.memory().pin_stage(&heap);
                told.extend([u64::from(pinned.is_some()), pins()]);
                drop(pinned);
                // Another thread unpins the memory.
                let until = Instant::now() + Duration::from_secs(5);
                while pins() > 0 && Instant::now() < until {
                    std::thread::yield_now();
                }
                told.extend([0, pins()]);
                reply(&told)
            }
            Op::HasEnded => {
                let ended = self.subject.memory().has_ended(&CopyBatch(a)).map_err(text)?;
                reply(&[u64::from(ended)])
            }
            Op::Rounds => self.rounds(&IpcHandle::new(a as u8, tail).unwrap(), fd.as_ref(), b),
            Op::Churn => self.churn(a),
            Op::Hide => {
                rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)
                    .map_err(text)?;
                reply(&[])
            }
            Op::Caps => {
                let caps = self.subject.caps();
                let all = [
                    caps.maps,
                    caps.by_bytes,
                    caps.by_descriptor,
                    caps.opens_once,
                    caps.refuses_overlap,
                    caps.outlives_free,
                    caps.tells_descriptors,
                ];
                reply(&[all.iter().enumerate().map(|(bit, is)| u64::from(*is) << bit).sum()])
            }
            Op::Number => {
                let library = stub::library_of(&self.kind).unwrap();
                reply(&[stub::number(library, std::str::from_utf8(tail).unwrap(), a)])
            }
            Op::Vendor => {
                let name = std::str::from_utf8(tail).unwrap();
                reply(&[crate::vendor::also(&self.kind, &*self.subject, name, args)?])
            }
            Op::Anew => {
                std::mem::forget(std::mem::replace(&mut self.subject, make(&self.kind, None)));
                reply(&[])
            }
            Op::Fork => {
                let handle = IpcHandle::new(d as u8, tail).unwrap();
                let mapped = self.open[c as usize].take().unwrap();
                let wanted = Childs { addr: a as usize, len: b as usize, at: e, handle, descriptor: fd };
                let (child, went, mapped) = copies::fork(&mut self.subject, mapped, wanted);
                self.open[c as usize] = Some(mapped);
                Ok(([0, child, 0, 0, 0, 0, 0], went.into_bytes(), None))
            }
            Op::Unexport => {
                for export in std::mem::take(&mut self.exports) {
                    self.subject.memory().unexport(export).map_err(text)?;
                }
                reply(&[])
            }
        }
    }

    fn move_bytes(&self, op: Op, [which, a, b, len, first, step]: [u64; 6]) -> Reply {
        let memory = self.subject.memory();
        let at = match which {
            0 => CopyPlace::Own(a as usize),
            _ => CopyPlace::Open(self.open[a as usize].as_ref().unwrap(), b),
        };
        let expected: Vec<u8> =
            (0..len / 8).flat_map(|n| first.wrapping_add(n.wrapping_mul(step)).to_le_bytes()).collect();
        if matches!(op, Op::Fill) {
            memory.write(at, &expected).map_err(text)?;
            return reply(&[]);
        }
        let mut found = vec![0x55; expected.len()];
        memory.read(at, &mut found).map_err(text)?;
        let copy = MemoryRange::try_heap(found.len()).unwrap();
        memory.copy(at, CopyTarget::Memory(&copy, 0), found.len()).map_err(text)?;
        let mut copied = vec![0xaa; found.len()];
        copy.read(0, &mut copied).unwrap();
        assert!(copied == found, "a copy and a read returned different bytes");
        let wrong = found.chunks(8).zip(expected.chunks(8)).filter(|(one, other)| one != other).count();
        reply(&[wrong as u64])
    }

    fn rounds(&self, handle: &IpcHandle, fd: Option<&OwnedFd>, rounds: u64) -> Reply {
        let memory = self.subject.memory();
        let before = [count("/proc/self/fd"), mappings()];
        for _ in 0..rounds {
            let mapped = memory.open(handle, fd.map(|fd| fd.try_clone().unwrap())).map_err(text)?;
            memory.close(mapped).map_err(text)?;
        }
        reply(&[before[0], before[1], count("/proc/self/fd"), mappings()])
    }

    fn churn(&mut self, seed: u64) -> ! {
        let mut state = seed | 1;
        let mut mine = Vec::new();
        loop {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let number = (state >> 33) as usize;
            if mine.len() < 8
                && let Ok(addr) = self.subject.alloc(1 + number % (256 << 10))
            {
                mine.push(addr);
            }
            if number.is_multiple_of(3) && !mine.is_empty() {
                self.subject.free(mine.swap_remove(number % mine.len())).unwrap();
            }
            if let Some(addr) = mine.last() {
                let allocation = self.subject.memory().allocation_of(*addr).unwrap();
                drop(self.subject.memory().export(&allocation, HandlePassing::Descriptor).unwrap());
            }
        }
    }
}
