//! The offers that one control plane announces and another one stores, over the system's own streams.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::process::Uid;
use rustix::thread::set_thread_res_uid;
use trunkline_fabric::{self as fabric, Host, OobError, OobListener, OobStream, OobTransport as _};
use trunkline_proto::id::ProcessId;
use trunkline_proto::limits::{INVITED_STREAMS_MAX, UNPROVEN_READS_MAX};
use trunkline_proto::log_rate;
use trunkline_proto::pool::GroupPool;
use trunkline_proto::pool::config::PoolConfig;
use trunkline_proto::slots::SlotId;
use trunkline_proto::wire::frame::{ControlFrame, OpenFrame, RemoteRegion, VERSION};
use trunkline_proto::wire::share::{ShareMode, ShareOffer, ShareRequest};
use trunkline_softnic::{SoftConfig, SoftFabric, SoftRail};

use crate::comm::{CommTable, RemoteProcess};
use crate::control::{ControlContext, ControlPlane};
use crate::flood_host::{FloodHost, FloodStream};
use crate::host::{ControlReach, LocalUsers, UnixHost};
use crate::status::EngineStatus;
use crate::{CommNics, EngineParams};

/// The default parameters, without a status page.
fn params() -> EngineParams {
    EngineParams { status: false, ..EngineParams::default() }
}

/// The lines that a process has logged.
type Lines = Arc<Mutex<Vec<String>>>;

/// The control plane of a process, and its environment.
struct Process<H: Host> {
    id: ProcessId,
    host: H,
    comms: CommTable,
    params: EngineParams,
    status: EngineStatus,
    control: ControlPlane<H, SoftRail>,
    lines: Lines,
}

impl Process<UnixHost> {
    fn new(name: u8, groups: u8) -> Self {
        let lines = Lines::default();
        let log = Arc::clone(&lines);
        let host = UnixHost::new(move |_, line: &str| log.lock().unwrap().push(line.to_owned()));
        Self { lines, ..Self::on_host(host, name, groups) }
    }
}

impl<H: Host> Process<H> {
    /// Makes one on a host that keeps or drops its own log lines.
    fn on_host(host: H, name: u8, groups: u8) -> Self {
        let lines = Lines::default();
        let (id, params) = (ProcessId([name; 16]), params());
        let fabric = SoftFabric::new(SoftConfig::default()).unwrap();
        let status = EngineStatus::new(&fabric, &host, &params, id);
        let pool = GroupPool::new(PoolConfig::OFF, 1);
        let control = ControlPlane::new(id, ShareOffer { groups }, pool);
        Self { id, host, comms: CommTable::new(1).unwrap(), params, status, control, lines }
    }

    fn progress(&mut self) {
        let Self { host, comms, params, status, control, .. } = self;
        control.progress_streams(&ControlContext { host, comms, params, status });
    }

    /// Makes progress; returns the process at the other end of the first stream, once that is known.
    fn peer(&mut self) -> Option<Arc<RemoteProcess>> {
        self.progress();
        self.control.stream_peer(SlotId { slot: 0, generation: 1 })
    }
}

#[test]
fn refusals_are_logged_at_a_bounded_rate() {
    let mut victim = Process::new(1, 0);
    let address = victim.control.listen_address(&victim.host).unwrap();
    let (strangers, started) = (UnixHost::new(|_, _| {}), Instant::now());
    let count = 4 * log_rate::BURST;
    for _ in 0..count {
        let mut stream = strangers.oob().connect(&address).unwrap();
        stream.send(fabric::OobFrame { bytes: vec![0xff; 9], fd: None }).unwrap();
        while !matches!(stream.recv(), Err(OobError::Closed)) {
            victim.progress();
            assert!(
                started.elapsed() < Duration::from_secs(30),
                "a stream with an invalid frame was not closed"
            );
        }
    }
    let allowed = u64::from(log_rate::BURST) + started.elapsed().as_secs() + 1;
    let logged = victim.lines.lock().unwrap().len() as u64;
    assert!((1..=allowed).contains(&logged), "{logged} lines were logged, the limit is {allowed}");
    assert_eq!(victim.status.sum_counters(std::iter::empty()).streams_refused, u64::from(count));
}

#[test]
fn process_of_another_user_is_refused() {
    let other = |users| {
        let reach = ControlReach { users, ..ControlReach::default() };
        UnixHost::with_reach(reach, |_, _| {})
    };
    let (strict, open) = (other(LocalUsers::Same), other(LocalUsers::Any));
    let mut listeners = [strict.oob().listen().unwrap(), open.oob().listen().unwrap()];
    let addresses = listeners.each_ref().map(OobListener::listen_address);
    let nobody = Uid::from_raw(65534);
    // In a thread of its own, because the change of user then affects this thread only.
    let connects = std::thread::spawn(move || {
        if set_thread_res_uid(Some(nobody), Some(nobody), Some(nobody)).is_err() {
            return None;
        }
        let refused = strict.oob().connect(&addresses[0]).map(drop);
        let made = [open.oob().connect(&addresses[0]), open.oob().connect(&addresses[1])];
        Some((refused, made.map(Result::unwrap)))
    });
    let Some((refused, streams)) = connects.join().unwrap() else {
        return skip("process_of_another_user_is_refused", "only root can be another user");
    };
    let ours = rustix::process::geteuid().as_raw();
    let Err(OobError::OtherUser { theirs, ours: own }) = refused else { panic!("{refused:?}") };
    assert_eq!((theirs, own), (ours, 65534), "the error of connect contains the listener's user");
    let first = listeners[0].accept();
    // A stream that connected and was refused has closed already; a stream that has requested nothing is refused here.
    let refused = match first {
        Err(OobError::OtherUser { theirs, ours: own }) => (theirs, own),
        other => panic!("{other:?}"),
    };
    assert_eq!(refused, (65534, ours));
    assert!(matches!(listeners[0].accept(), Err(OobError::OtherUser { .. })));
    assert!(listeners[0].accept().unwrap().is_none());
    assert!(listeners[1].accept().unwrap().is_some(), "LocalUsers::Any accepts all users");
    drop(streams);
}

/// The first frame of a peer.
fn hello() -> ControlFrame {
    ControlFrame::Hello { min: VERSION, max: VERSION, offer: ShareOffer::NONE, process: ProcessId([2; 16]) }
}

/// An OPEN for that listener.
fn open(conn: u64, listen: u64, nonce: [u8; 16]) -> ControlFrame {
    let mailbox = RemoteRegion { key: 1, addr: 1 };
    let share = ShareRequest { mode: ShareMode::Alone, turn: 0 };
    let link = vec![1; 120];
    let (matched, near, links) = (false, false, 1);
    ControlFrame::Open(OpenFrame { conn, listen, nonce, matched, near, links, mailbox, link, share })
}

#[test]
fn invited_streams_per_process_are_limited() {
    let mut victim = Process::new(1, 0);
    let address = victim.control.listen_address(&victim.host).unwrap();
    let nonce = [9; 16];
    let listen = victim.control.add_listener(CommNics::from(0), nonce).unwrap().to_bits();
    let guests = UnixHost::new(|_, _| {});
    let mut streams = Vec::new();
    for conn in 1..=INVITED_STREAMS_MAX as u64 + 3 {
        let mut stream = guests.oob().connect(&address).unwrap();
        for frame in [hello(), open(conn, listen, nonce)] {
            stream.send(fabric::OobFrame { bytes: frame.to_bytes(), fd: None }).unwrap();
        }
        victim.progress();
        streams.push(stream);
    }
    let mut is_ended = |stream: &mut _| loop {
        match OobStream::recv(stream) {
            Ok(Some(_)) => {}
            Ok(None) => return false,
            Err(_) => return true,
        }
    };
    let ended: Vec<_> = streams.iter_mut().map(&mut is_ended).collect();
    assert_eq!(ended[..4], [true, true, true, false], "the oldest streams are closed");
    assert!(!ended.iter().skip(3).any(|ended| *ended));
}

#[test]
fn silent_streams_are_read_in_rotation() {
    // Fewer than may wait, and an accept and a frame of each are within the work that is done at once.
    const SILENT: usize = 7 * UNPROVEN_READS_MAX + 3;
    let mut victim = Process::on_host(FloodHost::default(), 1, 0);
    victim.control.listen_address(&victim.host).unwrap();
    let nonce = [9; 16];
    let listen = victim.control.add_listener(CommNics::from(0), nonce).unwrap().to_bits();
    victim.control.stream_to(&victim.host, ProcessId([3; 16]), &[3]).unwrap().unwrap();
    let member = victim.host.last_opened();
    let silent = || FloodStream::with_frames(&[hello().to_bytes()]);
    let streams: Vec<_> = (0..SILENT).map(|_| victim.host.queue_stream(silent())).collect();
    // Each poll accepts some, and reads the HELLO of each.
    (0..SILENT).for_each(|_| victim.progress());
    assert_eq!(victim.host.accept_count(), SILENT);
    // This restores the work budget, so that it does not limit the reads below.
    victim.host.advance_clock(trunkline_proto::time::Duration::from_secs(1));
    let counts = || streams.iter().map(FloodStream::read_count).collect::<Vec<_>>();
    let before = counts();
    for poll in 1..=SILENT.div_ceil(UNPROVEN_READS_MAX) {
        let (earlier, of_member) = (counts().iter().sum::<usize>(), member.read_count());
        victim.progress();
        let reads = counts().iter().sum::<usize>() - earlier;
        assert_eq!(reads, UNPROVEN_READS_MAX, "reads of {SILENT} silent streams by poll {poll}");
        assert_eq!(member.read_count() - of_member, 1, "a stream with connections is read by each poll");
    }
    assert!(
        counts().iter().zip(&before).all(|(now, then)| now > then),
        "each stream is read once per rotation"
    );
    // A stream that shows the nonce is read by each poll from then on.
    let guest = &streams[SILENT / 2];
    guest.push_frame(open(1, listen, nonce).to_bytes());
    (0..SILENT.div_ceil(UNPROVEN_READS_MAX)).for_each(|_| victim.progress());
    let invited = guest.read_count();
    (0..5).for_each(|_| victim.progress());
    assert_eq!(guest.read_count() - invited, 5);
}

fn skip(name: &str, reason: &str) {
    println!("SKIPPED {name}: {reason}");
    if let Some(path) = std::env::var_os("TRUNKLINE_SKIP_LOG") {
        use std::io::Write as _;
        let mut file = std::fs::OpenOptions::new().append(true).create(true).open(path).unwrap();
        writeln!(file, "{name}: {reason}").unwrap();
    }
}

#[test]
fn each_end_stores_the_offer_of_the_other() {
    for offered in [(0, 5), (64, 0), (1, 8)] {
        let (mut one, mut other) = (Process::new(1, offered.0), Process::new(2, offered.1));
        let address = other.control.listen_address(&other.host).unwrap();
        one.control.stream_to(&one.host, other.id, &address.0).unwrap().unwrap();
        let limit = Instant::now() + Duration::from_secs(30);
        let (by_one, by_other) = loop {
            if let (Some(by_one), Some(by_other)) = (one.peer(), other.peer()) {
                break (by_one, by_other);
            }
            assert!(Instant::now() < limit, "the HELLO frames did not arrive within 30 s");
            std::thread::yield_now();
        };
        assert_eq!((by_one.process, by_one.offer.groups), (other.id, offered.1));
        assert_eq!((by_other.process, by_other.offer.groups), (one.id, offered.0));
    }
}
