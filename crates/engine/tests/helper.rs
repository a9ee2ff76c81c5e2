//! The helper thread, over the software NIC: with it a peer's transfers progress while this process makes no call,
//! without it they wait. It skips comms that another thread polls.

#![expect(clippy::expect_used, reason = "a test that cannot go on stops")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use trunkline_engine::host::UnixHost;
use trunkline_engine::{CommId, Engine, EngineError, EngineParams, HelperThread, MrId, RecvBuf, RequestId};
use trunkline_mem::MemoryRange;
use trunkline_softnic::{SoftConfig, SoftFabric, WireMode};

type Running = Engine<SoftFabric, UnixHost>;

const LEN: usize = 16 << 20;

/// Time limit for each event that must happen.
const LIMIT: Duration = Duration::from_secs(30);

/// Time after which an event that must not happen counts as absent.
const WHILE: Duration = Duration::from_millis(300);

fn engine() -> Arc<Running> {
    let config = SoftConfig { wire: WireMode::Shm, ..SoftConfig::default() };
    let fabric = SoftFabric::new(config).expect("the software NIC");
    let params = EngineParams { status: false, ..EngineParams::default() };
    Arc::new(Engine::new(fabric, UnixHost::new(|_, _| {}), params).expect("an engine"))
}

/// Polls until `look` returns a value, at most for this time.
fn within<T>(limit: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let end = Instant::now() + limit;
    loop {
        if let Some(found) = look() {
            return Some(found);
        }
        if Instant::now() > end {
            return None;
        }
        std::thread::yield_now();
    }
}

/// A connection with a large region at each end.
struct Pair {
    from: Arc<Running>,
    into: Arc<Running>,
    send: (CommId, MrId),
    recv: (CommId, MrId),
    memory: MemoryRange,
}

impl Pair {
    fn new() -> Self {
        let (from, into) = (engine(), engine());
        let (listen, mut handle) = into.listen(0).expect("a listener");
        let (mut send, mut recv) = (None, None);
        within(LIMIT, || {
            send = send.or_else(|| from.connect(0, &mut handle).expect("connect"));
            recv = recv.or_else(|| into.accept(listen).expect("accept"));
            send.zip(recv).map(|_| ())
        });
        let (send, recv) = (send.expect("connected"), recv.expect("accepted"));
        let (source, memory) = (MemoryRange::heap(LEN), MemoryRange::heap(LEN));
        source.write(0, &vec![0x5a; LEN]).expect("it fits");
        let send = (send, from.register(send, source).expect("a region"));
        let recv = (recv, into.register(recv, memory.clone()).expect("a region"));
        Self { from, into, send, recv, memory }
    }

    /// Posts the receive. Its owner makes no further call.
    fn receive(&self) -> RequestId {
        let buffer = RecvBuf { mr: self.recv.1, offset: 0, len: LEN as u64, tag: 0 };
        let posted = within(LIMIT, || self.into.irecv(self.recv.0, &[buffer]).expect("irecv"));
        posted.expect("a receive")
    }

    /// Sends, and returns whether the send completed within this time.
    fn send(&self, limit: Duration) -> bool {
        let start = || self.from.isend(self.send.0, self.send.1, 0, LEN as u64, 0).expect("isend");
        let Some(sent) = within(limit, start) else { return false };
        within(limit, || self.from.test(sent, &mut [0; 8]).expect("a send").then_some(())).is_some()
    }
}

#[test]
fn helper_completes_a_send_without_receiver_calls() {
    let pair = Pair::new();
    let received = pair.receive();
    let helper = HelperThread::spawn_for(Arc::clone(&pair.into)).expect("a thread");
    assert!(pair.send(LIMIT), "the send did not complete with a helper at the receiver");
    drop(helper);
    assert!(
        pair.into.test(received, &mut [0; 8]).expect("a receive"),
        "the receive is complete at its first test"
    );
    let mut last = [0];
    pair.memory.read(LEN as u64 - 1, &mut last).expect("the last byte is inside the memory");
    assert_eq!(last, [0x5a]);
}

#[test]
fn without_a_helper_the_send_waits_for_the_receiver() {
    let pair = Pair::new();
    let received = pair.receive();
    assert!(!pair.send(WHILE), "the send completed without a helper");
    // The transfer completes as soon as both ends call again.
    let done = within(LIMIT, || {
        pair.from.drive_unpolled();
        pair.into.test(received, &mut [0; 8]).expect("a receive").then_some(())
    });
    assert!(done.is_some());
}

/// Connects to a closed listener. Returns whether the refusal arrived, and checks that it is one.
fn refused(limit: Duration, helper: bool) -> bool {
    let (from, into) = (engine(), engine());
    let (listen, mut handle) = into.listen(0).expect("a listener");
    into.close_listen(listen).expect("a listener");
    let _helper = helper.then(|| HelperThread::spawn_for(Arc::clone(&into)).expect("a thread"));
    let answer = within(limit, || from.connect(0, &mut handle).err());
    assert!(answer.as_ref().is_none_or(|error| matches!(error, EngineError::Refused)), "{answer:?}");
    answer.is_some()
}

#[test]
fn idle_process_refuses_connections_only_with_a_helper() {
    assert!(refused(LIMIT, true));
    assert!(!refused(WHILE, false));
}

#[test]
fn helper_skips_polled_and_closed_comms() {
    let pair = Pair::new();
    let received = pair.receive();
    // Once the helper has taken the comm over, each pass drives it.
    pair.into.drive_unpolled();
    assert_eq!((pair.into.drive_unpolled().driven, pair.into.drive_unpolled().driven), (1, 1));
    assert!(!pair.into.test(received, &mut [0; 8]).expect("a receive"));
    assert_eq!(pair.into.drive_unpolled().driven, 0, "the comm was just polled");
    assert_eq!(pair.into.drive_unpolled().driven, 1, "the comm is no longer polled");
    pair.into.close(pair.recv.0).expect("a comm");
    assert_eq!(pair.into.drive_unpolled().driven, 0, "the comm is closed");
}

#[test]
fn dropping_a_sleeping_helper_ends_its_thread() {
    let engine = engine();
    let helper = HelperThread::spawn_for(Arc::clone(&engine)).expect("a thread");
    std::thread::sleep(Duration::from_millis(50));
    let began = Instant::now();
    drop(helper);
    assert!(began.elapsed() < Duration::from_secs(5));
    assert_eq!(Arc::strong_count(&engine), 1, "the helper thread has ended");
}

#[test]
fn message_without_a_receive_survives_a_rest() {
    let pair = Pair::new();
    let len = 1000;
    let sent = within(LIMIT, || pair.from.isend(pair.send.0, pair.send.1, 0, len, 0).expect("isend"));
    let sent = sent.expect("a send");
    let tend = |engine: &Running, time: Duration| {
        within(time, || {
            engine.drive_unpolled();
            None::<()>
        })
    };
    assert!(within(LIMIT, || pair.from.test(sent, &mut [0; 8]).expect("a send").then_some(())).is_some());
    // Longer than the time after which a comm without messages gives memory back.
    tend(&pair.into, Duration::from_millis(1500));
    let buffer = RecvBuf { mr: pair.recv.1, offset: 0, len, tag: 0 };
    let received =
        within(LIMIT, || pair.into.irecv(pair.recv.0, &[buffer]).expect("irecv")).expect("a receive");
    let done = within(LIMIT, || pair.into.test(received, &mut [0; 8]).expect("a receive").then_some(()));
    assert!(done.is_some());
    let mut bytes = vec![0; len as usize];
    pair.memory.read(0, &mut bytes).expect("the range is inside the memory");
    assert!(bytes.iter().all(|&byte| byte == 0x5a));
}
