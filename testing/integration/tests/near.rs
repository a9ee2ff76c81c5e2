//! Connections inside a host over the NIC for neighbours, and all others over the other NICs. Tested with two engines
//! of one process over a split fabric, and with the plugin over libfabric's provider for TCP, in processes of one host.

use std::time::{Duration, Instant};

use trunkline_engine::host::{ControlReach, UnixHost};
use trunkline_engine::{CommId, Engine, EngineError, EngineParams, RecvBuf};
use trunkline_fabric::{Fabric as _, SplitFabric};
use trunkline_mem::MemoryRange;
use trunkline_softnic::{SoftConfig, SoftFabric, WireMode};

use crate::contract::messages::{between, recv_all, room, send_all};
use crate::net::Net;
use crate::ofi::{NATIVE, has, over};
use crate::run::{Scene, scenario};
use crate::sharing::status;

scenarios! {
    messages_of_neighbours_use_the_near_nic,
}

const LIMIT: Duration = Duration::from_secs(30);
/// The indices of the two NICs of an end.
const FAR: usize = 0;
const NEAR: usize = 1;

type Over = Engine<SplitFabric<SoftFabric, SoftFabric>, UnixHost>;

/// An end whose control streams stay inside the host, or do not, with or without a NIC for neighbours.
fn end(local: bool, near: bool) -> Over {
    let soft = |wire, addresses| {
        SoftFabric::new(SoftConfig { wire, addresses, ..SoftConfig::default() }).expect("the software NIC")
    };
    let loopback = vec!["127.0.0.1".parse().expect("an address")];
    let far = soft(WireMode::Tcp, loopback.clone());
    let fabric = SplitFabric::new(far, near.then(|| soft(WireMode::Auto, Vec::new())));
    let params = EngineParams { status: false, ..EngineParams::default() };
    let reach = ControlReach { local, addresses: loopback, ..ControlReach::default() };
    Engine::new(fabric, UnixHost::with_reach(reach, |_, _| {}), params).expect("an engine")
}

/// Connects the first to the second; `change` may modify the handle.
fn connect(ends: [&Over; 2], change: impl Fn(&mut [u8; 128])) -> Result<[CommId; 2], EngineError> {
    let [asks, answers] = ends;
    let (listen, mut handle) = answers.listen(FAR).expect("a listener");
    change(&mut handle);
    let (mut send, mut recv) = (None, None);
    let began = Instant::now();
    while send.is_none() || recv.is_none() {
        assert!(began.elapsed() < LIMIT, "never connected");
        send = match send {
            None => asks.connect(FAR, &mut handle)?,
            open => open,
        };
        recv = recv.or_else(|| answers.accept(listen).expect("accept"));
    }
    answers.close_listen(listen).expect("a listener");
    Ok([send.expect("one end"), recv.expect("the other")])
}

/// Queue pairs of an end's two NICs.
fn queue_pairs(end: &Over) -> [u32; 2] {
    [FAR, NEAR].map(|nic| end.fabric().nic_usage(nic).queue_pairs)
}

/// Sends a message of `len` bytes and checks the bytes.
fn message(ends: [&Over; 2], comms: [CommId; 2], len: usize) {
    let memories = [MemoryRange::heap(len), MemoryRange::heap(len)];
    memories[0].write(0, &vec![len as u8 | 1; len]).expect("it fits");
    let [out, into] = [0, 1].map(|at| ends[at].register(comms[at], memories[at].clone()).expect("a region"));
    let buffer = RecvBuf { mr: into, offset: 0, len: len as u64, tag: 0 };
    let (mut requests, mut done, mut sizes) = ([None; 2], [false; 2], [0; 8]);
    let began = Instant::now();
    while done != [true; 2] {
        assert!(began.elapsed() < LIMIT, "no message");
        requests[1] = requests[1].or_else(|| ends[1].irecv(comms[1], &[buffer]).expect("irecv"));
        requests[0] = requests[0].or_else(|| ends[0].isend(comms[0], out, 0, len as u64, 0).expect("isend"));
        for at in [0, 1] {
            done[at] =
                done[at] || requests[at].is_some_and(|one| ends[at].test(one, &mut sizes).expect("test"));
        }
    }
    let mut bytes = vec![0; len];
    memories[1].read(0, &mut bytes).expect("it fits");
    assert!(bytes.iter().all(|&byte| byte == len as u8 | 1), "wrong bytes");
}

/// Connects these two, sends messages, and returns the queue pairs in use on each NIC of both ends.
fn goes_over(ends: [&Over; 2]) -> [[u32; 2]; 2] {
    let comms = connect(ends, |_| {}).expect("a connection");
    for len in [1, 4096, 300_000] {
        message(ends, comms, len);
    }
    let used = ends.map(queue_pairs);
    comms.into_iter().zip(ends).for_each(|(comm, end)| end.close(comm).expect("close"));
    used
}

#[test]
fn only_neighbours_connect_by_the_near_nic() {
    let [near, far] = [[[0, 1]; 2], [[1, 0]; 2]];
    let pair = |one: (bool, bool), other: (bool, bool)| [end(one.0, one.1), end(other.0, other.1)];
    for (one, other, expected) in [
        ((true, true), (true, true), near),
        // One of them has no NIC for neighbours, or they do not connect inside the host.
        ((true, true), (true, false), far),
        ((true, false), (true, true), far),
        ((false, true), (true, true), far),
        ((true, true), (false, true), far),
    ] {
        let ends = pair(one, other);
        assert_eq!(goes_over([&ends[0], &ends[1]]), expected, "{one:?} {other:?}");
    }
    // Ends of each kind in one process.
    let [hub, neighbour, other] = [end(true, true), end(true, true), end(false, true)];
    assert_eq!(goes_over([&hub, &neighbour]), near);
    assert_eq!(goes_over([&hub, &other]), far);
}

#[test]
fn requests_for_a_missing_near_nic_are_refused() {
    let [asks, answers] = [end(true, true), end(true, false)];
    // The handle of a listener that has such a NIC: docs/wire.md.
    let refused = connect([&asks, &answers], |handle| handle[45] = 1)
        .expect_err("a refusal, as the listener has no NIC for neighbours");
    assert!(matches!(refused, EngineError::Refused), "{refused}");
    // The refusal harms no other connection.
    assert_eq!(goes_over([&asks, &answers]), [[1, 0]; 2]);
}

/// Two processes of one host, whose connections use only the NIC for neighbours.
fn messages_of_neighbours_use_the_near_nic(mut scene: Scene) {
    let net = Net::start(scene.version);
    let far = net.devices() as usize;
    let (send, recv) = between(&net, &mut scene);
    let head = status().head;
    assert_eq!(head.nics.len(), far + 1, "devices must not include the NIC for neighbours: {:?}", head.nics);
    let used: Vec<bool> = head.usage.iter().map(|nic| nic.queue_pairs > 0).collect();
    assert_eq!((used[..far].contains(&true), used[far]), (false, true), "{used:?} of {:?}", head.nics);
    std::thread::scope(|scope| {
        scope.spawn(|| send_all(&net, send, 500));
        scope.spawn(|| recv_all(&net, recv, 500, room));
    });
    scene.meet();
    net.close_send(send).expect("close");
    net.close_recv(recv).expect("close");
    scene.meet();
}

#[test]
fn near_uses_shared_memory_beside_libfabric() {
    if !has(NATIVE) {
        return;
    }
    let over = |name| over(NATIVE, name).env("TRUNKLINE_NEAR", 1);
    over("messages_of_neighbours_use_the_near_nic").two();
    for name in
        ["every_message_size_between_threads", "grouped_receives_match_by_tag", "comms_close_in_any_order"]
    {
        over(name).alone();
    }
    over("two_processes_exchange_messages").two();
    over("two_processes_exchange_messages").env("TRUNKLINE_QP_SHARING", "on").two();
    over("a_killed_peer_fails_every_request_soon").env("TEST_CASE", "both").two_and_one_dies();
}

#[test]
fn near_without_shared_memory_fails_init() {
    let setting = scenario("a_bad_value_fails_init_and_is_named").env("TRUNKLINE_FABRIC", "soft:tcp");
    setting
        .env("TRUNKLINE_NEAR", 1)
        .env("TEST_NAME", "TRUNKLINE_NEAR=1 and TRUNKLINE_FABRIC=soft:tcp contradict")
        .alone();
}
