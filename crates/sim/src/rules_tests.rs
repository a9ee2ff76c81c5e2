//! Rules of the engine that random runs meet too seldom, one by one: names of closed comms, authorized senders on
//! control streams, and the limits after which a peer is given up.

use trunkline_engine::{CommFault, CommId, EngineError, EngineParams, ListenId, MatchBy, RecvBuf, RequestId};
use trunkline_fabric::{OobAddress, OobFrame, OobListener, OobStream, OobTransport};
use trunkline_mem::MemoryRange;
use trunkline_proto::id::ProcessId;
use trunkline_proto::limits::UNPROVEN_STREAMS_MAX;
use trunkline_proto::nics::NicList;
use trunkline_proto::time::Duration;
use trunkline_proto::wire::fabric::ChosenFabric;
use trunkline_proto::wire::frame;
use trunkline_proto::wire::handle::{self, ConnectionHandle};
use trunkline_proto::wire::share::{ShareMode, ShareOffer, ShareRequest};

use crate::comm_end::SimEngine;
use crate::{NetworkModel, SimFabric, SimHost, SimOob, SimPid, SimStream, SimWorld};

pub(crate) const SECOND: u64 = 1_000_000_000;

/// The parameters of most tests: connecting may take 30 seconds.
pub(crate) fn params() -> EngineParams {
    EngineParams { connect_time: Duration::from_secs(30), ..EngineParams::default() }
}

/// Two processes.
pub(crate) struct Duo {
    pub(crate) world: SimWorld,
    pub(crate) a: SimEngine,
    pub(crate) b: SimEngine,
}

impl Duo {
    pub(crate) fn new(seed: u64, weather: NetworkModel, params: EngineParams) -> Self {
        let world = SimWorld::new(seed, weather, false);
        let [a, b] = [world.add_process(), world.add_process()].map(|pid| {
            SimEngine::new(SimFabric::new(&world, pid), SimHost::new(&world, pid), params.clone()).unwrap()
        });
        Self { world, a, b }
    }

    pub(crate) fn calm() -> Self {
        Self::new(1, NetworkModel::fault_free(), params())
    }

    /// Connects `a` to `b`: the sending and the receiving end.
    pub(crate) fn connect(&self) -> (CommId, CommId) {
        connect(&self.a, &self.b)
    }

    /// Connects a rogue peer's stream to the process of that handle, and sends its first frames.
    pub(crate) fn stranger(&self, handle: &[u8; 128], frames: &[frame::ControlFrame]) -> SimStream {
        let address = OobAddress(ConnectionHandle::from_bytes(handle).unwrap().address);
        let outside = self.world.add_process();
        let mut stream = SimOob::for_rogue_peer(&self.world, outside).connect(&address).unwrap();
        for frame in frames {
            stream.send(OobFrame { bytes: frame.to_bytes(), fd: None }).unwrap();
        }
        stream
    }

    /// Lets both processes make calls for a while.
    pub(crate) fn run(&self, nanos: u64) {
        let until = self.world.now() + nanos;
        while self.world.now() < until {
            self.a.progress_all();
            self.b.progress_all();
            self.world.advance_by(1_000_000);
        }
    }
}

impl Drop for Duo {
    fn drop(&mut self) {
        self.world.free_run(1_000_000);
    }
}

pub(crate) fn connect(from: &SimEngine, to: &SimEngine) -> (CommId, CommId) {
    let (listen, mut handle) = to.listen(0).unwrap();
    let (mut send, mut recv) = (None, None);
    for _ in 0..10_000 {
        send = send.or_else(|| from.connect(0, &mut handle).unwrap());
        recv = recv.or_else(|| to.accept(listen).unwrap());
        if let (Some(send), Some(recv)) = (send, recv) {
            to.close_listen(listen).unwrap();
            return (send, recv);
        }
    }
    panic!("never connected");
}

/// A buffer of `len` bytes, registered with a comm.
pub(crate) fn buffer(engine: &SimEngine, comm: CommId, len: u64) -> (MemoryRange, RecvBuf) {
    let memory = MemoryRange::heap(len as usize);
    let mr = engine.register(comm, memory.clone()).unwrap();
    (memory, RecvBuf { mr, offset: 0, len, tag: 0 })
}

pub(crate) fn isend(engine: &SimEngine, comm: CommId, from: RecvBuf) -> RequestId {
    let RecvBuf { mr, offset, len, tag } = from;
    (0..10_000).find_map(|_| engine.isend(comm, mr, offset, len, tag).unwrap()).unwrap()
}

/// Tests until the request ends.
pub(crate) fn end(engine: &SimEngine, request: RequestId) -> Result<u64, EngineError> {
    let mut sizes = [0; 8];
    for _ in 0..1_000_000 {
        if engine.test(request, &mut sizes)? {
            return Ok(sizes[0]);
        }
    }
    panic!("a request does not end");
}

pub(crate) fn hello(min: u16, max: u16, process: u8) -> frame::ControlFrame {
    frame::ControlFrame::Hello { min, max, offer: ShareOffer::NONE, process: ProcessId([process; 16]) }
}

/// Returns the handle of a listener at that address that the test plays: process 7, with one NIC.
pub(crate) fn handle_at(address: Vec<u8>) -> [u8; handle::BYTES] {
    let (process, nics, fabric) = (ProcessId([7; 16]), NicList::new(&[0]).unwrap(), ChosenFabric::default());
    let (nonce, listen, attempt, p2p, near) = ([1; 16], 1, 0, false, false);
    ConnectionHandle { process, nonce, nics, listen, address, attempt, p2p, near, fabric }.to_bytes()
}

/// Whether the stream was closed; reads and drops its frames.
fn is_over(stream: &mut SimStream) -> bool {
    loop {
        match stream.recv() {
            Ok(Some(_)) => {}
            Ok(None) => return false,
            Err(_) => return true,
        }
    }
}

#[test]
fn ids_of_a_closed_comm_stay_invalid_after_reuse() {
    let duo = Duo::new(1, NetworkModel::fault_free(), EngineParams { comms_max: 1, ..params() });
    let (send, recv) = duo.connect();
    let (_, from) = buffer(&duo.a, send, 8);
    let (_, into) = buffer(&duo.b, recv, 8);
    let received = duo.b.irecv(recv, &[into]).unwrap().unwrap();
    let sent = isend(&duo.a, send, from);
    duo.b.close(recv).unwrap();
    duo.a.close(send).unwrap();
    let (again, other) = duo.connect();
    assert_eq!(
        (again.to_bits() as u16, other.to_bits() as u16),
        (send.to_bits() as u16, recv.to_bits() as u16)
    );
    let (_, new_from) = buffer(&duo.a, again, 8);
    let (_, new_into) = buffer(&duo.b, other, 8);
    let requests = (duo.b.irecv(other, &[new_into]).unwrap().unwrap(), isend(&duo.a, again, new_from));
    let unknown =
        |what: &str, error: EngineError| assert!(matches!(error, EngineError::Unknown(_)), "{what}: {error}");
    unknown("isend", duo.a.isend(send, from.mr, 0, 8, 0).unwrap_err());
    unknown("irecv", duo.b.irecv(recv, &[into]).unwrap_err());
    unknown("iflush", duo.b.iflush(recv, &[into]).unwrap_err());
    unknown("test of a send", duo.a.test(sent, &mut [0; 8]).unwrap_err());
    unknown("test of a receive", duo.b.test(received, &mut [0; 8]).unwrap_err());
    unknown("register", duo.a.register(send, MemoryRange::heap(8)).unwrap_err());
    unknown("deregister", duo.b.deregister(recv, into.mr).unwrap_err());
    unknown("close", duo.a.close(send).unwrap_err());
    assert_eq!(end(&duo.a, requests.1).unwrap(), 8);
    assert_eq!(end(&duo.b, requests.0).unwrap(), 8);
}

/// A NIC may share one registration between several owners of the same memory: it must be notified that peers still
/// name it.
#[test]
fn memory_that_a_failed_comm_still_names_is_retired() {
    let duo = Duo::new(1, NetworkModel { stuck: 0, ..NetworkModel::fault_free() }, params());
    let (_, recv) = duo.connect();
    let (_, into) = buffer(&duo.b, recv, 8);
    let (_, idle) = buffer(&duo.b, recv, 8);
    duo.b.deregister(recv, idle.mr).unwrap();
    assert_eq!(duo.world.retired_regions(SimPid(1)), 0, "no peer names the memory");
    duo.b.irecv(recv, &[into]).unwrap().unwrap();
    duo.b.deregister(recv, into.mr).unwrap();
    assert_eq!(duo.world.retired_regions(SimPid(1)), 1);
}

#[test]
fn waiting_lane_drives_the_other_lanes() {
    // A long message has more pieces than the link can hold at once, so that posting must continue.
    let mut weather = NetworkModel::fault_free();
    (weather.caps.message_max, weather.caps.depth_max) = (512, 32);
    let duo = Duo::new(1, weather, params());
    let ((out, there), (back, here)) = (duo.connect(), connect(&duo.b, &duo.a));
    let (_, first) = buffer(&duo.a, out, 60_000);
    let (_, into) = buffer(&duo.b, there, 60_000);
    let arrives = duo.b.irecv(there, &[into]).unwrap().unwrap();
    isend(&duo.a, out, first);
    let (_, answer) = buffer(&duo.a, here, 8);
    let waits = duo.a.irecv(here, &[answer]).unwrap().unwrap();
    let mut sizes = [0; 8];
    for _ in 0..10_000 {
        // Only the reply is tested, and it is sent only after the message has arrived.
        assert!(!duo.a.test(waits, &mut sizes).unwrap());
        if duo.b.test(arrives, &mut sizes).unwrap() {
            let (_, from) = buffer(&duo.b, back, 8);
            isend(&duo.b, back, from);
            assert_eq!(end(&duo.a, waits).unwrap(), 8);
            return;
        }
    }
    panic!("the message never arrives");
}

#[test]
fn messages_before_a_detected_death_are_received() {
    let mut received = 0;
    for seed in 0..60 {
        let weather = NetworkModel {
            latency: 500 + 50 * seed,
            stream_time: 0,
            death_notice: 0,
            ..NetworkModel::fault_free()
        };
        let duo = Duo::new(seed, weather, EngineParams { idle_polls: 1, ..params() });
        let (send, recv) = duo.connect();
        let (_, from) = buffer(&duo.a, send, 4096);
        let (_, into) = buffer(&duo.b, recv, 4096);
        let request = duo.b.irecv(recv, &[into]).unwrap().unwrap();
        isend(&duo.a, send, from);
        duo.world.kill_process(SimPid(0));
        match end(&duo.b, request) {
            Ok(size) => {
                assert_eq!(size, 4096);
                received += 1;
            }
            Err(error) => {
                assert!(matches!(error, EngineError::Comm(CommFault::PeerDead(_))), "{error}");
                assert_eq!(
                    duo.world.unpolled_messages(SimPid(1)),
                    0,
                    "seed {seed}: a message had arrived and was lost"
                );
            }
        }
    }
    assert!((1..60).contains(&received), "{received} of 60: some arrive before the death is noticed");
}

/// Returns the HELLO of a rogue peer in the name of `process`.
fn in_the_name_of(process: ProcessId) -> frame::ControlFrame {
    let version = frame::VERSION;
    frame::ControlFrame::Hello { min: version, max: version, offer: ShareOffer::NONE, process }
}

#[test]
fn claimed_process_name_does_not_kill_its_owner() {
    let duo = Duo::calm();
    let (_, handle) = duo.b.listen(0).unwrap();
    let (send, recv) = duo.connect();
    let (_, into) = buffer(&duo.b, recv, 8);
    let request = duo.b.irecv(recv, &[into]).unwrap().unwrap();
    let stream = duo.stranger(&handle, &[in_the_name_of(duo.a.process_id())]);
    duo.run(SECOND);
    drop(stream);
    duo.run(SECOND);
    for _ in 0..10_000 {
        assert!(!duo.b.test(request, &mut [0; 8]).unwrap());
    }
    let (_, from) = buffer(&duo.a, send, 8);
    isend(&duo.a, send, from);
    assert_eq!(end(&duo.b, request).unwrap(), 8);
}

#[test]
fn claimed_process_name_receives_no_requests() {
    let duo = Duo::calm();
    let (_, handle) = duo.a.listen(0).unwrap();
    let mut stream = duo.stranger(&handle, &[in_the_name_of(duo.b.process_id())]);
    duo.run(SECOND);
    duo.connect();
    let frames = std::iter::from_fn(|| stream.recv().unwrap());
    let kinds: Vec<_> = frames.map(|frame| frame::ControlFrame::from_bytes(&frame.bytes).unwrap()).collect();
    assert!(matches!(kinds[..], [frame::ControlFrame::Hello { .. }]), "{kinds:?}");
}

#[test]
fn unauthenticated_peer_closes_nothing() {
    let duo = Duo::calm();
    let handles = [duo.a.listen(0).unwrap().1, duo.b.listen(0).unwrap().1];
    let (send, recv) = duo.connect();
    let (_, into) = buffer(&duo.b, recv, 8);
    let request = duo.b.irecv(recv, &[into]).unwrap().unwrap();
    let close = |id| frame::ControlFrame::Close { id, messages: 0 };
    let said = [
        hello(frame::VERSION, frame::VERSION, 7),
        close(recv.to_bits()),
        close(send.to_bits()),
        close(1 << 32),
    ];
    let _streams = handles.map(|handle| duo.stranger(&handle, &said));
    duo.run(SECOND);
    for _ in 0..10_000 {
        assert!(!duo.b.test(request, &mut [0; 8]).unwrap());
    }
    let (_, from) = buffer(&duo.a, send, 8);
    let sent = isend(&duo.a, send, from);
    assert_eq!((end(&duo.b, request).unwrap(), end(&duo.a, sent).unwrap()), (8, 8));
}

#[test]
fn peer_without_the_nonce_is_refused() {
    let duo = Duo::calm();
    let (listen, handle) = duo.b.listen(0).unwrap();
    let (listen_id, nowhere) =
        (ConnectionHandle::from_bytes(&handle).unwrap().listen, frame::RemoteRegion { key: 0, addr: 0 });
    let open = frame::OpenFrame {
        conn: 1,
        listen: listen_id,
        nonce: [0; 16],
        matched: false,
        near: false,
        links: 1,
        mailbox: nowhere,
        link: vec![7; 20],
        share: ShareRequest { mode: ShareMode::Alone, turn: 0 },
    };
    let mut stream =
        duo.stranger(&handle, &[hello(frame::VERSION, frame::VERSION, 7), frame::ControlFrame::Open(open)]);
    for _ in 0..1000 {
        assert_eq!(duo.b.accept(listen).unwrap(), None);
    }
    duo.run(SECOND / 10);
    assert_eq!((duo.b.counters().opens_refused, duo.b.in_use().0), (1, 0));
    let answers = std::iter::from_fn(|| stream.recv().unwrap());
    let answer = answers.map(|frame| frame::ControlFrame::from_bytes(&frame.bytes).unwrap()).last();
    let Some(frame::ControlFrame::Result(reply)) = answer else { panic!("{answer:?}") };
    assert_eq!((reply.conn, reply.answer), (1, frame::OpenAnswer::Refused));
}

#[test]
fn peer_of_another_version_is_refused() {
    let duo = Duo::calm();
    let (_, handle) = duo.b.listen(0).unwrap();
    for versions in [(frame::VERSION + 1, 9), (0, 0), (3, 3)] {
        let before = duo.b.counters().streams_refused;
        let mut stream = duo.stranger(&handle, &[hello(versions.0, versions.1, 7)]);
        duo.run(SECOND / 100);
        assert_eq!(duo.b.counters().streams_refused, before + 1, "{versions:?}");
        assert!(is_over(&mut stream));
    }
    assert_eq!(duo.b.in_use().2, 0);
}

#[test]
fn streams_without_a_nonce_are_closed() {
    let duo = Duo::calm();
    let (_, handle) = duo.b.listen(0).unwrap();
    let mut silent = duo.stranger(&handle, &[]);
    let mut polite = duo.stranger(&handle, &[hello(frame::VERSION, frame::VERSION, 7)]);
    duo.run(9 * SECOND);
    assert!(!is_over(&mut silent), "a slow peer is not closed yet");
    duo.run(2 * SECOND);
    assert!(is_over(&mut silent) && is_over(&mut polite), "a hello without a nonce proves nothing");
    assert_eq!((duo.b.in_use().2, duo.b.counters().streams_refused), (0, 2));
    // A peer that has opened a connection stays, however long it sends nothing.
    let (send, recv) = duo.connect();
    duo.run(30 * SECOND);
    let (_, into) = buffer(&duo.b, recv, 8);
    let request = duo.b.irecv(recv, &[into]).unwrap().unwrap();
    let (_, from) = buffer(&duo.a, send, 8);
    let sent = isend(&duo.a, send, from);
    assert_eq!((end(&duo.b, request).unwrap(), end(&duo.a, sent).unwrap()), (8, 8));
}

#[test]
fn awakened_process_reads_before_closing_streams() {
    let duo = Duo::calm();
    let (_, handle) = duo.b.listen(0).unwrap();
    let mut stream = duo.stranger(&handle, &[hello(frame::VERSION, frame::VERSION, 7)]);
    duo.run(SECOND / 10);
    // It makes no calls while the peer sends its nonce, and then for longer than the peer's time limit.
    let known = ConnectionHandle::from_bytes(&handle).unwrap();
    let open = frame::ControlFrame::Open(frame::OpenFrame {
        conn: 1,
        listen: known.listen,
        nonce: known.nonce,
        matched: false,
        near: false,
        links: 1,
        mailbox: frame::RemoteRegion { key: 0, addr: 0 },
        link: vec![7; 20],
        share: ShareRequest { mode: ShareMode::Alone, turn: 0 },
    });
    stream.send(OobFrame { bytes: open.to_bytes(), fd: None }).unwrap();
    duo.world.advance_by(11 * SECOND);
    duo.run(SECOND / 10);
    assert!(!is_over(&mut stream));
    assert_eq!(duo.b.counters().streams_refused, 0);
}

#[test]
fn stream_flood_closes_the_oldest_unproven_ones() {
    let duo = Duo::calm();
    let (_, handle) = duo.b.listen(0).unwrap();
    let said = [hello(frame::VERSION, frame::VERSION, 7)];
    let (send, recv) = duo.connect();
    let before = duo.b.in_use().2;
    let mut streams: Vec<_> = (0..UNPROVEN_STREAMS_MAX + 10).map(|_| duo.stranger(&handle, &said)).collect();
    duo.run(SECOND / 10);
    assert_eq!(duo.b.in_use().2 - before, UNPROVEN_STREAMS_MAX);
    let ended = streams.iter_mut().map(is_over).take_while(|is_over| *is_over).count();
    assert_eq!(ended, 10, "the oldest streams are closed");
    let (_, into) = buffer(&duo.b, recv, 8);
    let request = duo.b.irecv(recv, &[into]).unwrap().unwrap();
    let (_, from) = buffer(&duo.a, send, 8);
    let sent = isend(&duo.a, send, from);
    assert_eq!(
        (end(&duo.b, request).unwrap(), end(&duo.a, sent).unwrap()),
        (8, 8),
        "the earlier connection survives"
    );
    duo.connect();
}

#[test]
fn request_is_refused_by_another_process() {
    let duo = Duo::calm();
    let (listen, handle) = duo.b.listen(0).unwrap();
    let parsed =
        ConnectionHandle { process: ProcessId([3; 16]), ..ConnectionHandle::from_bytes(&handle).unwrap() };
    let mut handle = parsed.to_bytes();
    let refused = (0..10_000).find_map(|_| {
        assert!(duo.b.accept(listen).unwrap().is_none());
        duo.a.connect(0, &mut handle).map(|comm| assert_eq!(comm, None, "connected to another process")).err()
    });
    assert!(matches!(refused, Some(EngineError::Comm(CommFault::PeerDead(_)))), "{refused:?}");
}

#[test]
fn a_listener_of_another_version_is_named() {
    let duo = Duo::calm();
    let outside = duo.world.add_process();
    let mut listener = SimOob::for_rogue_peer(&duo.world, outside).listen().unwrap();
    let address = listener.listen_address().0;
    for (low, high) in [(frame::VERSION + 1, 9), (3, 3)] {
        let mut handle = handle_at(address.clone());
        let mut streams = Vec::new();
        let error = (0..10_000).find_map(|_| {
            if let Some(mut stream) = listener.accept().unwrap() {
                stream.send(OobFrame { bytes: hello(low, high, 7).to_bytes(), fd: None }).unwrap();
                streams.push(stream);
            }
            duo.a.connect(0, &mut handle).err()
        });
        let Some(EngineError::Version { min, max, ours: frame::VERSION }) = error else {
            panic!("{error:?}")
        };
        assert_eq!((min, max), (low, high));
    }
}

#[test]
fn a_listener_over_another_fabric_is_named() {
    let duo = Duo::calm();
    let (_, handle) = duo.b.listen(0).unwrap();
    let fabric = ChosenFabric::new("ofi", "efa");
    let mut handle = ConnectionHandle { fabric, ..ConnectionHandle::from_bytes(&handle).unwrap() }.to_bytes();
    let before = handle;
    let error = (0..10_000).find_map(|_| duo.a.connect(0, &mut handle).err()).unwrap();
    assert!(matches!(&error, EngineError::Fabric { theirs, .. } if *theirs == fabric), "{error:?}");
    let text = error.to_string();
    assert!(
        text.contains("uses fabric ofi:efa, this process uses ") && text.contains("set TRUNKLINE_FABRIC")
    );
    assert_eq!((handle, duo.b.in_use().2), (before, 0), "no request was sent to the listener");
}

#[test]
fn ready_counts_only_from_the_connecting_process() {
    let duo = Duo::calm();
    let (listen, mut handle) = duo.b.listen(0).unwrap();
    assert!(duo.a.connect(0, &mut handle).unwrap().is_none());
    let accept = || (0..200).find_map(|_| duo.b.accept(listen).unwrap());
    assert_eq!(accept(), None, "no READY was sent");
    assert_eq!(duo.b.in_use().0, 1, "the accepting end has replied");
    let conn = ConnectionHandle::from_bytes(&handle).unwrap().attempt;
    let ready = frame::ControlFrame::Ready { comm: 1 << 16, conn };
    let _stream = duo.stranger(&handle, &[hello(frame::VERSION, frame::VERSION, 7), ready]);
    assert_eq!(accept(), None, "READY of an unrelated process counts");
    assert!((0..200).find_map(|_| duo.a.connect(0, &mut handle).unwrap()).is_some());
    assert!(accept().is_some());
}

#[test]
fn repeated_frames_connect_once() {
    let duo = Duo::new(1, NetworkModel { stream_twice: 1000, ..NetworkModel::fault_free() }, params());
    let (listen, mut handle) = duo.b.listen(0).unwrap();
    let (mut send, mut recv) = (None, None);
    for _ in 0..1000 {
        send = send.or_else(|| duo.a.connect(0, &mut handle).unwrap());
        recv = recv.or_else(|| duo.b.accept(listen).unwrap());
    }
    assert!(send.is_some() && recv.is_some());
    for _ in 0..1000 {
        duo.run(1_000_000);
        assert_eq!(duo.b.accept(listen).unwrap(), None);
    }
    assert_eq!((duo.a.in_use().0, duo.b.in_use().0), (1, 1));
}

/// An attempt of `a` at a listener of `b`, called once.
fn forgotten(duo: &Duo) -> (ListenId, [u8; 128]) {
    let (listen, mut handle) = duo.b.listen(0).unwrap();
    assert!(duo.a.connect(0, &mut handle).unwrap().is_none());
    (listen, handle)
}

#[test]
fn unpolled_attempt_is_given_up() {
    let duo = Duo::calm();
    let before = duo.world.held_resources(SimPid(0));
    let (_, mut handle) = forgotten(&duo);
    let warnings = duo.world.warning_count(SimPid(0));
    duo.run(25 * SECOND);
    assert_eq!(
        (duo.world.held_resources(SimPid(0)).links, duo.a.counters().attempts_abandoned),
        (1, 0),
        "there is time left"
    );
    duo.run(60 * SECOND);
    let now = duo.world.held_resources(SimPid(0));
    assert_eq!((now.rails, now.links, now.regions), (before.rails, before.links, before.regions));
    assert_eq!(duo.a.counters().attempts_abandoned, 1);
    assert_eq!(duo.world.warning_count(SimPid(0)), warnings + 1, "the warning is logged once");
    // A later call with the same handle gets an error once, and may then begin again.
    assert!(matches!(duo.a.connect(0, &mut handle), Err(EngineError::Unknown("connection attempt"))));
    assert!(duo.a.connect(0, &mut handle).unwrap().is_none());
    assert_eq!(duo.world.held_resources(SimPid(0)).links, 1);
}

#[test]
fn an_attempt_outlives_the_sleep_of_its_process() {
    let duo = Duo::calm();
    let (listen, mut handle) = forgotten(&duo);
    duo.world.advance_by(3600 * SECOND);
    duo.a.progress_all();
    duo.world.advance_by(3600 * SECOND);
    duo.a.progress_all();
    assert_eq!(duo.a.counters().attempts_abandoned, 0);
    let connected = (0..1000).find_map(|_| {
        duo.b.accept(listen).unwrap();
        duo.a.connect(0, &mut handle).unwrap()
    });
    assert!(connected.is_some());
}

#[test]
fn abandoned_attempt_ends_the_accepted_comm() {
    for accepts_first in [true, false] {
        let duo = Duo::calm();
        let (listen, _) = forgotten(&duo);
        if accepts_first {
            assert_eq!((0..100).find_map(|_| duo.b.accept(listen).unwrap()), None);
        }
        duo.run(60 * SECOND);
        assert_eq!(duo.a.counters().attempts_abandoned, 1);
        let accepted = (0..1000).find_map(|_| {
            duo.run(1_000_000);
            duo.b.accept(listen).unwrap()
        });
        let comm = accepted.expect("the accepting end must not hang");
        let (_, into) = buffer(&duo.b, comm, 8);
        let ended = duo.b.irecv(comm, &[into]).and_then(|request| end(&duo.b, request.unwrap()));
        assert!(matches!(ended, Err(EngineError::Comm(CommFault::PeerClosed(_)))), "{ended:?}");
    }
}

#[test]
fn sleeping_receiver_gets_messages_of_a_closed_peer() {
    for seed in 0..6000 {
        // The control frame is faster than the message, and a poll may return nothing although there is a completion.
        let weather = NetworkModel {
            latency: 5_000_000,
            stream_time: 0,
            short_poll: 1000,
            ..NetworkModel::fault_free()
        };
        let duo = Duo::new(seed, weather, EngineParams { idle_polls: 1, ..params() });
        let (send, recv) = duo.connect();
        let (_, from) = buffer(&duo.a, send, 8);
        let (_, into) = buffer(&duo.b, recv, 8);
        let request = duo.b.irecv(recv, &[into]).unwrap().unwrap();
        isend(&duo.a, send, from);
        duo.a.close(send).unwrap();
        for _ in 0..10 + seed % 5 {
            assert!(!duo.b.test(request, &mut [0; 8]).unwrap());
        }
        duo.world.advance_by(90 * SECOND);
        let ended = end(&duo.b, request);
        assert!(matches!(ended, Ok(8)), "seed {seed}: {ended:?}");
    }
}

#[test]
fn early_completed_message_waits_for_its_receiver() {
    // Immediates wait for receives, which a process that makes no calls does not repost.
    let mut weather = NetworkModel::fault_free().without_arrival();
    (weather.caps.immediate_takes_receive, weather.caps.message_max) = (true, 512);
    let duo = Duo::new(1, weather, EngineParams { eager_max: 0, match_by: MatchBy::Mailbox, ..params() });
    let (send, recv) = duo.connect();
    let received: Vec<_> = (0..24)
        .map(|_| duo.b.irecv(recv, &[buffer(&duo.b, recv, 2048).1]).unwrap().expect("room for 24 receives"))
        .collect();
    duo.b.progress_all();
    duo.world.advance_by(1_000_000);
    for _ in &received {
        let (_, from) = buffer(&duo.a, send, 2048);
        let sent = isend(&duo.a, send, from);
        while !duo.a.test(sent, &mut [0; 8]).unwrap() {
            duo.world.advance_by(10_000);
        }
    }
    duo.a.close(send).unwrap();
    for _ in 0..60 {
        duo.a.progress_all();
        duo.world.advance_by(SECOND);
    }
    for (at, request) in received.into_iter().enumerate() {
        let ended = end_beside(&duo, request);
        assert!(matches!(ended, Ok(2048)), "{at}: {ended:?}");
    }
}

/// Waits for the end of a receive of `b`, while `a` makes progress on its closed comms.
fn end_beside(duo: &Duo, request: RequestId) -> Result<u64, EngineError> {
    let mut sizes = [0; 8];
    while !duo.b.test(request, &mut sizes)? {
        duo.a.progress_all();
        duo.world.advance_by(100_000);
    }
    Ok(sizes[0])
}
