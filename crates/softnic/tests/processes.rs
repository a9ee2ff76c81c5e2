//! The shared-memory wire between real processes. The test binary runs itself again as the peer, also in separate
//! namespaces, and stops or kills it in the middle of copies.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot continue fails")]

mod common;

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use common::{Random, poll, poll_until, rail_config};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};
use rustix::process::{Pid, Signal};
use trunkline_fabric::{
    AccessRights, CompletionKind, DeregisterError, Fabric, LinkAddress, LinkControl, LinkId, LocalKey,
    MemoryRegistrar, Op, OpSource, OpStatus, PassedFd, PeerProcess, Rail, RailConfig, RegionExtent,
    RegionKeys, RegionPurpose, RemoteKey, RemoteLocation,
};
use trunkline_mem::MemoryRange;
use trunkline_mem::ipc::{peer_pidfd, process_across};
use trunkline_softnic::{CopyMode, SoftConfig, SoftFabric, SoftRail};

const SIZE: usize = 48 << 20;
const MODE: &str = "SOFTNIC_TEST_COPY";
/// The name of the socket at which the two processes connect.
const MEETING: &str = "SOFTNIC_TEST_MEETING";
const MODES: [(&str, CopyMode); 4] = [
    ("auto", CopyMode::Auto),
    ("staging", CopyMode::Staging),
    ("pull", CopyMode::Pull),
    ("share", CopyMode::Share),
];

fn send(socket: impl AsFd, bytes: &[u8], fd: Option<OwnedFd>) {
    let fds: Vec<_> = fd.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
    }
    let sent =
        rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::empty()).unwrap();
    assert_eq!(sent, bytes.len());
}

fn receive(socket: impl AsFd) -> (Vec<u8>, Option<PassedFd>) {
    let socket = socket.as_fd();
    let mut bytes = vec![0; 4096];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let got = rustix::net::recvmsg(
        socket,
        &mut [IoSliceMut::new(&mut bytes)],
        &mut control,
        RecvFlags::CMSG_CLOEXEC,
    )
    .unwrap();
    bytes.truncate(got.bytes);
    let fd = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    let sender = || process_across(socket).and_then(|pid| PeerProcess::new(pid, peer_pidfd(socket)));
    (bytes, fd.map(|fd| PassedFd { fd, sender: sender() }))
}

/// One connected end with one region.
struct End {
    fabric: SoftFabric,
    rail: SoftRail,
    link: LinkId,
    memory: MemoryRange,
    keys: RegionKeys,
    registrar: std::sync::Arc<dyn MemoryRegistrar>,
    peer: RemoteLocation,
}

impl End {
    fn new(socket: impl AsFd, mode: CopyMode, access: AccessRights) -> Self {
        let config = RailConfig { peer_time: trunkline_proto::time::Duration::from_secs(1), ..rail_config() };
        let fabric = SoftFabric::new(SoftConfig { copy: mode, ..SoftConfig::default() }).unwrap();
        let mut rail = fabric.open_rail(0, &config).unwrap();
        let link = rail.create_link().unwrap();
        let memory = MemoryRange::heap(SIZE);
        let registrar = rail.registrar();
        let keys = registrar.register(&memory, access, RegionPurpose::Bounce).unwrap();
        let address = rail.link_address(link).unwrap();
        let mut hello = keys.remote.0.to_le_bytes().to_vec();
        hello.extend_from_slice(&keys.remote_base.to_le_bytes());
        hello.extend_from_slice(&address.bytes);
        send(&socket, &hello, address.fd.map(|passed| passed.fd));
        let (hello, fd) = receive(&socket);
        let word = |at: usize| u64::from_le_bytes(hello[at..at + 8].try_into().unwrap());
        let peer = RemoteLocation { key: RemoteKey(word(0)), addr: word(8), purpose: RegionPurpose::Data };
        rail.connect(link, LinkAddress { bytes: hello[16..].to_vec(), fd }).unwrap();
        Self { fabric, rail, link, memory, keys, registrar, peer }
    }

    fn write(&mut self, offset: u64, len: u64, imm: Option<u32>) {
        let from = OpSource::Region(RegionExtent { key: self.keys.local, offset, len });
        let to = RemoteLocation {
            key: self.peer.key,
            addr: self.peer.addr + offset,
            purpose: RegionPurpose::Data,
        };
        self.rail.post(self.link, 1, Op::Write { from, to, imm }, true).unwrap();
    }
}

/// Keeps this thread on one processor: two that share one never copy at the same time.
fn pin(processor: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(processor);
    // With a single processor the call changes nothing.
    let _ = rustix::thread::sched_setaffinity(None, &set);
}

impl End {
    /// Writes `len` bytes, and polls for `wait` after the first byte of the reply has arrived.
    fn await_answer(&mut self, len: u64, wait: Duration) {
        let before = self.memory.load(0).unwrap();
        self.write(0, len, Some(0));
        poll_until("the first bytes of the answer", || {
            poll(&mut self.rail);
            (self.memory.load(0).unwrap() == !before).then_some(())
        });
        let until = Instant::now() + wait;
        while Instant::now() < until {
            poll(&mut self.rail);
        }
    }
}

/// The peer process: replies to each write with immediate `n` by the same bytes complemented, at the same place. Does
/// nothing unless another test of this file started it.
#[test]
fn peer() {
    let Ok(mode) = std::env::var(MODE) else { return };
    let mode = MODES.iter().find(|(name, _)| *name == mode).unwrap().1;
    if mode == CopyMode::Share {
        pin(1);
    }
    let meeting = std::env::var(MEETING).unwrap();
    let socket = UnixStream::connect_addr(&SocketAddr::from_abstract_name(meeting).unwrap()).unwrap();
    let mut end = End::new(&socket, mode, AccessRights::ALL);
    let started = Instant::now();
    let mut idle = 0u32;
    while started.elapsed() < Duration::from_secs(60) {
        idle += 1;
        for one in poll(&mut end.rail) {
            idle = 0;
            if one.status != OpStatus::Ok {
                return;
            }
            if one.done == CompletionKind::Written {
                let at = u64::from(one.imm.unwrap()) * 4096;
                let mut bytes = vec![0; one.len as usize];
                end.memory.read(at, &mut bytes).unwrap();
                bytes.iter_mut().for_each(|byte| *byte = !*byte);
                end.memory.write(at, &bytes).unwrap();
                end.write(at, one.len, one.imm);
            }
        }
        if end.rail.post_credits(end.link) == 0 {
            return;
        }
        // Yields rarely, because on a busy host a yield takes long, and never inside a copy.
        if idle > 10_000 {
            idle = 0;
            std::thread::yield_now();
        }
    }
}

fn start(mode: CopyMode, prefix: &[&str]) -> (Child, UnixStream) {
    // Each process connects its own end, so that the kernel names the right process to the other one.
    static MEETINGS: AtomicU32 = AtomicU32::new(0);
    let number = MEETINGS.fetch_add(1, Ordering::Relaxed);
    let meeting = format!("softnic-test.{}.{number}", std::process::id());
    let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&meeting).unwrap()).unwrap();
    let exe = std::env::current_exe().unwrap();
    let mut words: Vec<&std::ffi::OsStr> = prefix.iter().map(std::ffi::OsStr::new).collect();
    words.push(exe.as_os_str());
    let child = Command::new(words[0])
        .args(&words[1..])
        .args(["--exact", "peer", "--nocapture", "--test-threads=1"])
        .env(MODE, MODES.iter().find(|(_, one)| *one == mode).unwrap().0)
        .env(MEETING, &meeting)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    (child, listener.accept().unwrap().0)
}

/// Sends bytes to the peer and checks that their complement is returned.
fn exchange(end: &mut End) {
    let mut random = Random(0x55aa_1234);
    for len in [0u64, 1, 8, 64, 96, 97, 4096, 65536, 1 << 20, 9 << 20] {
        let page = (random.next() % 1000) as u32;
        let at = u64::from(page) * 4096;
        let bytes: Vec<u8> = (0..len).map(|_| random.next().to_le_bytes()[0]).collect();
        end.memory.write(at, &bytes).unwrap();
        end.write(at, len, Some(page));
        let told = poll_until("the answer", || {
            let seen = poll(&mut end.rail);
            assert!(seen.iter().all(|one| one.status == OpStatus::Ok), "{seen:?}");
            seen.into_iter().find(|one| one.done == CompletionKind::Written)
        });
        assert_eq!((told.imm, told.len), (Some(page), len));
        let mut back = vec![0; len as usize];
        end.memory.read(at, &mut back).unwrap();
        assert!(back.iter().zip(&bytes).all(|(got, sent)| *got == !*sent), "{len} bytes were returned wrong");
    }
}

fn exchange_with(mode: CopyMode, prefix: &[&str]) {
    let (mut child, socket) = start(mode, prefix);
    let mut end = End::new(&socket, mode, AccessRights::ALL);
    exchange(&mut end);
    end.rail.destroy_link(end.link);
    child.wait().unwrap();
}

#[test]
fn staged_bytes_arrive_between_processes() {
    exchange_with(CopyMode::Staging, &[]);
}

#[test]
fn pulled_bytes_arrive_between_processes() {
    exchange_with(CopyMode::Pull, &[]);
}

#[test]
fn shared_copies_arrive_between_processes() {
    exchange_with(CopyMode::Share, &[]);
}

#[test]
fn learned_methods_work_between_processes() {
    exchange_with(CopyMode::Auto, &[]);
}

#[test]
fn peers_in_namespaces_of_their_own() {
    for flags in
        [&["--pid", "--fork"][..], &["--ipc"], &["--mount"], &["--pid", "--fork", "--ipc", "--mount"]]
    {
        let mut prefix = vec!["unshare", "--user", "--map-root-user"];
        prefix.extend_from_slice(flags);
        let allowed = Command::new(prefix[0]).args(&prefix[1..]).arg("true").output();
        if !allowed.is_ok_and(|output| output.status.success()) {
            return skip("peers_in_namespaces_of_their_own", "namespaces cannot be unshared here");
        }
        exchange_with(CopyMode::Pull, &prefix);
        exchange_with(CopyMode::Share, &prefix);
    }
}

fn skip(name: &str, reason: &str) {
    let required = std::env::var("TRUNKLINE_REQUIRE").unwrap_or_default();
    assert!(!required.split(',').any(|one| one == "soft"), "{name}: {reason}");
    println!("SKIPPED {name}: {reason}");
    if let Some(path) = std::env::var_os("TRUNKLINE_SKIP_LOG") {
        use std::io::Write;
        let mut file = std::fs::OpenOptions::new().append(true).create(true).open(path).unwrap();
        writeln!(file, "{name}: {reason}").unwrap();
    }
}

fn signal(child: &Child, signal: Signal) {
    rustix::process::kill_process(Pid::from_child(child), signal).unwrap();
}

/// Offers all memory to a peer that pulls, and stops the peer at a moment during the copy. Returns whether the peer
/// was inside one. Then the peer is resumed, or killed.
fn stop_inside(mode: CopyMode, kill: bool, wait: Duration) -> bool {
    let (mut child, socket) = start(mode, &[]);
    let mut end = End::new(&socket, mode, AccessRights::ALL);
    exchange(&mut end);
    let source = MemoryRange::heap(SIZE);
    let key = end.registrar.register(&source, AccessRights::LOCAL, RegionPurpose::Bounce).unwrap().local;
    let from = OpSource::Region(RegionExtent { key, offset: 0, len: SIZE as u64 });
    end.rail.post(end.link, 7, Op::Write { from, to: end.peer, imm: None }, true).unwrap();
    let until = Instant::now() + wait;
    let mut seen = Vec::new();
    while Instant::now() < until {
        seen.extend(poll(&mut end.rail));
    }
    signal(&child, Signal::STOP);
    let started = Instant::now();
    let result = end.registrar.deregister(key);
    assert!(started.elapsed() < Duration::from_secs(9), "bounded by the peer time");
    let inside = match result {
        Ok(()) => false,
        Err(DeregisterError::InUse { peer }) => {
            assert_eq!(peer, child.id(), "the error names the stopped process");
            true
        }
        Err(error) => panic!("{error}"),
    };
    signal(&child, if kill { Signal::KILL } else { Signal::CONT });
    // A dead process reads nothing, so its pins are released.
    poll_until("the end of the copy", || {
        seen.extend(poll(&mut end.rail));
        (!inside || end.registrar.deregister(key).is_ok()).then_some(())
    });
    end.rail.fail_link(end.link);
    poll_until("the end of the write", || {
        seen.extend(poll(&mut end.rail));
        seen.iter().find(|one| one.wr_id == 7).copied()
    });
    assert_eq!(end.registrar.deregister(LocalKey(key.0)), Err(DeregisterError::Unknown));
    let _ = child.kill();
    child.wait().unwrap();
    inside
}

/// Stops a peer that pulls at different moments until it was inside a copy.
fn until_inside_a_pull(kill: bool) {
    let stop =
        |round: u64| stop_inside(CopyMode::Pull, kill, Duration::from_micros(200 + 150 * (round % 12)));
    let inside = (0..30).filter(|&round| stop(round)).take(1).count();
    assert!(inside > 0, "the peer was never stopped inside a copy");
}

#[test]
fn a_peer_stopped_inside_a_copy_keeps_source() {
    until_inside_a_pull(false);
}

/// The state of a peer that was stopped while it wrote to memory of this side.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Push {
    /// It was not inside a copy.
    Outside,
    /// It was, and no copy ended before it was resumed.
    Inside,
}

/// Lets the peer write much, and stops it at a moment: the target stays registered while the peer is inside a copy.
/// Then the peer is resumed, or killed.
fn stop_inside_a_push(kill: bool, wait: Duration) -> Push {
    const LEN: u64 = 40 << 20;
    pin(0);
    let (mut child, socket) = start(CopyMode::Share, &[]);
    let mut end = End::new(&socket, CopyMode::Share, AccessRights::ALL);
    end.await_answer(LEN, wait);
    signal(&child, Signal::STOP);
    let result = end.registrar.deregister(end.keys.local);
    let push = match result {
        Ok(()) => Push::Outside,
        Err(DeregisterError::InUse { peer }) => {
            assert_eq!(peer, child.id(), "the error names the stopped process");
            Push::Inside
        }
        Err(error) => panic!("{error}"),
    };
    signal(&child, if kill { Signal::KILL } else { Signal::CONT });
    // A dead process writes nothing, so its pins are released.
    if push == Push::Inside {
        poll_until("the end of the copy", || end.registrar.deregister(end.keys.local).ok());
    }
    let _ = child.kill();
    child.wait().unwrap();
    push
}

/// Stops a peer that writes, and drops the region. The region ends once the peer has been resumed, by an unrelated
/// call.
fn drop_inside_a_push(wait: Duration) -> Push {
    const LEN: u64 = 40 << 20;
    pin(0);
    let (mut child, socket) = start(CopyMode::Share, &[]);
    let mut end = End::new(&socket, CopyMode::Share, AccessRights::ALL);
    end.await_answer(LEN, wait);
    signal(&child, Signal::STOP);
    let regions = |end: &End| end.fabric.nic_usage(0).regions;
    let before = regions(&end);
    end.registrar.abandon(end.keys.local);
    let push = if regions(&end) == before { Push::Inside } else { Push::Outside };
    let calls = |end: &End| {
        let other = end
            .registrar
            .register(&MemoryRange::heap(8), AccessRights::LOCAL, RegionPurpose::Bounce)
            .unwrap();
        end.registrar.deregister(other.local).unwrap();
        regions(end)
    };
    let still = calls(&end);
    signal(&child, Signal::CONT);
    if push == Push::Inside {
        assert_eq!(still, before, "while the peer is stopped");
        poll_until("the end of the region", || (calls(&end) == before - 1).then_some(()));
    }
    assert_eq!(regions(&end), before - 1);
    let _ = child.kill();
    child.wait().unwrap();
    push
}

/// Stops a peer that writes, fails the link, and checks when the owner of the memory receives the error.
fn fail_inside_a_push(wait: Duration) -> Push {
    const LEN: u64 = 40 << 20;
    pin(0);
    let (mut child, socket) = start(CopyMode::Share, &[]);
    let mut end = End::new(&socket, CopyMode::Share, AccessRights::ALL);
    end.await_answer(LEN, wait);
    signal(&child, Signal::STOP);
    let note = RegionExtent { key: end.keys.local, offset: 0, len: 8 };
    end.rail.post(end.link, 9, Op::Recv { into: note }, true).unwrap();
    end.rail.fail_link(end.link);
    let until = Instant::now() + Duration::from_millis(100);
    let mut told = false;
    while Instant::now() < until {
        told |= poll(&mut end.rail).iter().any(|one| one.wr_id == 9);
    }
    let inside = end.registrar.deregister(end.keys.local).is_err();
    assert!(!(inside && told), "the error was reported while the peer could still write");
    signal(&child, Signal::CONT);
    if !told {
        poll_until("the report of the error", || {
            poll(&mut end.rail).iter().find(|one| one.wr_id == 9).map(drop)
        });
    }
    let _ = child.kill();
    child.wait().unwrap();
    if inside { Push::Inside } else { Push::Outside }
}

/// Tries at different moments until the peer was inside a copy: over 3 ms at first. Other processes may keep the peer
/// from its processor, so each further round covers twice the time, up to 50 ms.
fn until_inside(attempt: impl Fn(Duration) -> Push) {
    let started = Instant::now();
    for round in 0u64.. {
        let span = 135 << (round / 24 % 5);
        if attempt(Duration::from_micros(50 + span * (round % 24))) == Push::Inside {
            return;
        }
        assert!(started.elapsed() < Duration::from_secs(60), "the peer was never stopped inside a copy");
    }
}

#[test]
fn a_peer_stopped_inside_a_push_keeps_target() {
    until_inside(|wait| stop_inside_a_push(false, wait));
}

#[test]
fn a_region_dropped_while_a_peer_is_stopped_inside_a_push_ends_later() {
    until_inside(drop_inside_a_push);
}

#[test]
fn errors_are_reported_after_the_peer_stops_writing() {
    until_inside(fail_inside_a_push);
}

#[test]
fn a_peer_killed_inside_a_copy_keeps_nothing() {
    until_inside(|wait| stop_inside_a_push(true, wait));
    until_inside_a_pull(true);
    for round in 0..6 {
        stop_inside(CopyMode::Share, true, Duration::from_micros(300 * round));
        stop_inside(CopyMode::Staging, true, Duration::from_micros(300 * round));
    }
}

#[test]
fn peer_stopped_while_staging_blocks_nothing() {
    for round in 0..3 {
        assert!(!stop_inside(CopyMode::Staging, false, Duration::from_micros(300 * round)));
    }
}
