//! Messages shorter than their receives, as most of NCCL's are, and messages in pieces: the length record costs no
//! round trip, blocks no other message, and no piece cuts a line of 128 bytes.

use std::collections::BTreeMap;

use trunkline_engine::{CommId, CommNics, EngineParams, MatchBy, RecvBuf, RequestId, SharingParams};
use trunkline_fabric::RegionPurpose;
use trunkline_proto::limits::LINE_BYTES;
use trunkline_proto::pool::config::SharingMode;
use trunkline_proto::time::Duration;

use crate::NetworkModel;
use crate::link::PostedWork;
use crate::rules_tests::{Duo, SECOND, buffer, params};

/// The one-way latency of every packet.
const LATENCY: u64 = 1_000_000;

/// A network with long round trips, whose NICs do not report the length of a write, as no RDMA NIC does.
fn weather(nics: usize, link_order: bool) -> NetworkModel {
    let calm =
        NetworkModel { nics, latency: LATENCY, kib_time: 1, poll_time: 2_000, ..NetworkModel::fault_free() };
    let mut weather = calm;
    (weather.caps.link_order, weather.caps.remote_len) = (link_order, false);
    weather
}

fn alone() -> EngineParams {
    let rail_time = Duration::from_secs(3);
    EngineParams { match_by: MatchBy::Mailbox, eager_max: 0, stripe_min: 256, rail_time, ..params() }
}

fn shared() -> EngineParams {
    let sharing = SharingParams { sharing: SharingMode::On, groups: 1, ..SharingParams::default() };
    EngineParams { sharing, ..alone() }
}

/// Lets both processes make calls until the condition holds, which must be soon.
fn until(duo: &Duo, what: &str, mut holds: impl FnMut() -> bool) {
    let limit = duo.world.now() + 5 * SECOND;
    while !holds() {
        assert!(duo.world.now() < limit, "no end: {what}");
        for engine in [&duo.a, &duo.b] {
            engine.progress_all();
            engine.drive_unpolled();
        }
    }
}

/// Connects a comm over that many NICs, all of whose links carry.
fn connect(duo: &Duo, nics: usize) -> (CommId, CommId) {
    let nics = CommNics::new(&[0, 1, 2, 3][..nics]).unwrap();
    let (listen, mut handle) = duo.b.listen(nics).unwrap();
    let (mut send, mut recv) = (None, None);
    until(duo, "the connection", || {
        send = send.or_else(|| duo.a.connect(nics, &mut handle).unwrap());
        recv = recv.or_else(|| duo.b.accept(listen).unwrap());
        send.is_some() && recv.is_some()
    });
    duo.b.close_listen(listen).unwrap();
    let comm = (send.unwrap(), recv.unwrap());
    let carry = |links: Option<Vec<bool>>| links.unwrap().iter().all(|carries| *carries);
    until(duo, "all links", || carry(duo.a.carrying_links(comm.0)) && carry(duo.b.carrying_links(comm.1)));
    comm
}

/// Posts a receive of `room` bytes and waits until its record has arrived.
fn receive(duo: &Duo, recv: CommId, room: u64) -> RequestId {
    let into = buffer(&duo.b, recv, room).1;
    let received = duo.b.irecv(recv, &[into]).unwrap().unwrap();
    let arrived = duo.world.now() + 10 * LATENCY;
    until(duo, "the record", || duo.world.now() > arrived);
    received
}

/// Starts a send if the engine accepts it at once.
fn begin(duo: &Duo, send: CommId, len: u64) -> Option<RequestId> {
    let RecvBuf { mr, offset, len, tag } = buffer(&duo.a, send, len).1;
    duo.a.isend(send, mr, offset, len, tag).unwrap()
}

fn end_all(duo: &Duo, mut sent: Vec<RequestId>, mut received: Vec<(RequestId, u64)>) {
    until(duo, "the messages", || {
        sent.retain(|&request| !duo.a.test(request, &mut [0; 8]).unwrap());
        received.retain(|&(request, len)| {
            let mut sizes = [0; 8];
            let done = duo.b.test(request, &mut sizes).unwrap();
            assert!(!done || sizes[0] == len, "{} bytes for {len}", sizes[0]);
            !done
        });
        sent.is_empty() && received.is_empty()
    });
}

/// Returns the time from the send of a message until its receive is done.
fn time_of(duo: &Duo, (send, recv): (CommId, CommId), len: u64, room: u64) -> u64 {
    let received = receive(duo, recv, room);
    let sent = begin(duo, send, len).unwrap();
    let began = duo.world.now();
    end_all(duo, Vec::new(), vec![(received, len)]);
    let took = duo.world.now() - began;
    end_all(duo, vec![sent], Vec::new());
    took
}

#[test]
fn the_length_of_a_short_message_costs_no_round_trip() {
    for params in [alone(), shared()] {
        for (nics, order) in [(1, true), (1, false), (2, true)] {
            for (arrives, remote_len) in [(true, false), (false, false), (true, true)] {
                let mut weather = weather(nics, order);
                weather.caps.remote_len = remote_len;
                let weather = if arrives { weather } else { weather.without_arrival() };
                let duo = Duo::new(1, weather, params.clone());
                let comm = connect(&duo, nics);
                for len in [0, 8, 20_000, 100_000, 700_000, 1 << 20] {
                    let [exact, longer] = [len, 2 << 20].map(|room| time_of(&duo, comm, len, room));
                    let what = format!("{len} bytes, {nics} links, order {order}, arrives {arrives}");
                    assert!(
                        longer < exact + LATENCY / 2,
                        "{what}: {longer} ns, {exact} into an exact receive"
                    );
                }
            }
        }
    }
}

#[test]
fn sends_begin_while_a_record_waits_for_placement() {
    for params in [alone(), shared()] {
        for (nics, arrives) in [(1, true), (1, false), (2, true), (2, false)] {
            let mut weather = weather(nics, false);
            // More pieces than a message can have stripes.
            (weather.caps.message_max, weather.caps.depth_max) = (512, 4096);
            let weather = if arrives { weather } else { weather.without_arrival() };
            let duo = Duo::new(1, weather, params.clone());
            let (send, recv) = connect(&duo, nics);
            let lens = [20_000, 20_001, 8];
            let received = lens.map(|len| (receive(&duo, recv, len + 4096), len));
            let sent = lens.map(|len| begin(&duo, send, len).unwrap_or_else(|| panic!("{len} bytes wait")));
            end_all(&duo, sent.to_vec(), received.to_vec());
            duo.a.close(send).unwrap();
            duo.b.close(recv).unwrap();
        }
    }
}

/// Returns the targets and lengths of the queued writes of one message.
fn note_writes(duo: &Duo, writes: &mut BTreeMap<u64, u64>) {
    let state = duo.world.lock();
    for wqe in state.links.iter().flat_map(|link| &link.sends) {
        if let PostedWork::Write { from, to, .. } = &wqe.work
            && matches!(to.purpose, RegionPurpose::Data)
        {
            writes.insert(to.addr, from.len());
        }
    }
}

#[test]
fn no_piece_of_a_message_cuts_a_line() {
    for (params, message_max, stripe_min) in [
        (alone(), 1 << 30, 64 << 10),
        (alone(), 1000, 100),
        (alone(), 5000, 1),
        (shared(), 1 << 30, 1000),
        (shared(), 70_001, 64 << 10),
        (shared(), 4097, 500),
    ] {
        for nics in [1, 2, 4] {
            let mut weather = weather(nics, true);
            weather.caps.message_max = message_max;
            let duo = Duo::new(1, weather, EngineParams { stripe_min, ..params.clone() });
            let (send, recv) = connect(&duo, nics);
            // A step of LL128 that four links cut into eighths, and other lengths.
            for len in [600_192, 614_400, 20_001, 128 * 1001, 33_000] {
                let mut writes = BTreeMap::new();
                let received = receive(&duo, recv, len);
                let sent = begin(&duo, send, len).unwrap();
                until(&duo, "the message", || {
                    note_writes(&duo, &mut writes);
                    duo.b.test(received, &mut [0; 8]).unwrap()
                });
                end_all(&duo, vec![sent], Vec::new());
                let first = *writes.keys().next().unwrap();
                let cut = writes.keys().find(|&at| !(at - first).is_multiple_of(LINE_BYTES));
                let what = format!("{len} bytes in {} pieces, {nics} links, {message_max}", writes.len());
                assert_eq!((cut, writes.values().sum()), (None, len), "{what}");
            }
        }
    }
}
