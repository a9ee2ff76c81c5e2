//! Networks whose completions do not prove arrival. No message is reported before its bytes have arrived. Messages that
//! a link has lost are sent again although they had completed, and no late record overwrites a newer one.

use trunkline_engine::{
    CommFault, CommId, CommNics, EngineError, EngineParams, MatchBy, RecvBuf, RequestId, SharingParams,
};
use trunkline_proto::limits::RECVS_MAX;
use trunkline_proto::pool::config::SharingMode;
use trunkline_proto::time::Duration;

use crate::rules_tests::{Duo, SECOND, buffer, isend, params};
use crate::{NetworkModel, SimPid};

/// How far operations overtake each other, and completions their operations.
fn weather(nics: usize, link_order: bool) -> NetworkModel {
    let (latency, jitter, slow, retry_time, poll_time) = (20_000, 50_000, 30, 20_000_000, 2_000);
    let mut weather =
        NetworkModel { nics, latency, jitter, slow, retry_time, poll_time, ..NetworkModel::fault_free() };
    weather.caps.link_order = link_order;
    weather.without_arrival()
}

fn by_mailbox() -> EngineParams {
    EngineParams {
        match_by: MatchBy::Mailbox,
        stripe_min: 256,
        rail_time: Duration::from_millis(50),
        ..params()
    }
}

fn shared() -> EngineParams {
    EngineParams {
        sharing: SharingParams { sharing: SharingMode::On, groups: 1, ..SharingParams::default() },
        ..by_mailbox()
    }
}

/// Connects `a` to `b` over all these NICs, and waits until every link carries.
fn connect(duo: &Duo, nics: &[usize]) -> (CommId, CommId) {
    let nics = CommNics::new(nics).unwrap();
    let (listen, mut handle) = duo.b.listen(nics).unwrap();
    let (mut send, mut recv) = (None, None);
    while send.is_none() || recv.is_none() {
        send = send.or_else(|| duo.a.connect(nics, &mut handle).unwrap());
        recv = recv.or_else(|| duo.b.accept(listen).unwrap());
    }
    duo.b.close_listen(listen).unwrap();
    let comm = (send.unwrap(), recv.unwrap());
    until(duo, "links", || {
        let ends = [duo.a.carrying_links(comm.0), duo.b.carrying_links(comm.1)];
        ends.iter().flatten().flatten().all(|carries| *carries)
    });
    comm
}

fn until(duo: &Duo, what: &str, mut done: impl FnMut() -> bool) {
    let limit = duo.world.now() + 60 * SECOND;
    while !done() {
        for engine in [&duo.a, &duo.b] {
            engine.progress_all();
            engine.drive_unpolled();
        }
        assert!(duo.world.now() < limit, "no end of the wait for {what}");
    }
}

/// Sends a message of `len` bytes; returns whether it is complete when its receive is done.
fn goes_whole(duo: &Duo, (send, recv): (CommId, CommId), len: u64, fill: u8, what: &str) {
    let room = len + u64::from(fill % 2) * 8;
    let ((source, from), (target, into)) = (buffer(&duo.a, send, len), buffer(&duo.b, recv, room));
    source.write(0, &vec![fill; len as usize]).unwrap();
    let received = duo.b.irecv(recv, &[into]).unwrap().unwrap();
    let sent = isend(&duo.a, send, from);
    let (mut ended, mut sizes) = ([false; 2], [0; 8]);
    until(duo, what, || {
        ended[0] = ended[0] || duo.a.test(sent, &mut sizes).unwrap();
        if !ended[1] && duo.b.test(received, &mut sizes).unwrap() {
            ended[1] = true;
            let mut bytes = vec![0; len as usize];
            target.read(0, &mut bytes).unwrap();
            let wrong = bytes.iter().position(|&byte| byte != fill);
            assert_eq!(
                (wrong, sizes[0]),
                (None, len),
                "{what}: the receive completed before its bytes arrived"
            );
        }
        ended == [true; 2]
    });
}

#[test]
fn long_message_completes_after_all_bytes_arrive() {
    for (params, nics) in [(by_mailbox(), 1), (shared(), 1), (by_mailbox(), 2), (shared(), 2)] {
        for (order, message_max, len) in
            [(false, 512, 20_000), (true, 512, 20_000), (false, 1 << 30, 700_000), (true, 1 << 30, 700_000)]
        {
            for seed in 0..6 {
                let mut weather = weather(nics, order);
                weather.caps.message_max = message_max;
                let duo = Duo::new(seed, weather, params.clone());
                let comms = [(); 2].map(|()| connect(&duo, &[0, 1][..nics]));
                for fill in 1..4 {
                    let what = format!("{len} bytes, {nics} links, order {order}, seed {seed}");
                    comms.iter().for_each(|&comm| goes_whole(&duo, comm, len, fill, &what));
                }
            }
        }
    }
}

/// More pieces than a path keeps unproven.
#[test]
fn message_of_many_pieces_waits_for_proofs() {
    let mut weather = weather(2, false);
    weather.caps.message_max = 512;
    let duo = Duo::new(1, weather, by_mailbox());
    let comm = connect(&duo, &[0, 1]);
    goes_whole(&duo, comm, 1 << 20, 7, "many pieces");
}

/// A send is done, and its rail dies: returns whether the message arrives. If not, both ends fail.
fn survives(duo: &Duo, (send, recv): (CommId, CommId), len: u64, nic: usize, seed: u64) -> bool {
    let ((source, from), (target, into)) = (buffer(&duo.a, send, len), buffer(&duo.b, recv, len));
    source.write(0, &vec![7; len as usize]).unwrap();
    let received = duo.b.irecv(recv, &[into]).unwrap().unwrap();
    let sent = isend(&duo.a, send, from);
    until(duo, "the send", || duo.a.test(sent, &mut [0; 8]).unwrap());
    // The buffer belongs to the caller again.
    source.write(0, &vec![9; len as usize]).unwrap();
    duo.world.cut_nic(SimPid((seed % 2) as usize), nic, 1 << 60);
    let (mut ended, mut fails) = (None, false);
    until(duo, &format!("{len} bytes, seed {seed}, NIC {nic}"), || {
        fails = fails || duo.a.isend(send, from.mr, 0, 8, 1 << 20).is_err();
        ended = match duo.b.test(received, &mut [0; 8]) {
            Ok(false) => None,
            Ok(true) => Some(true),
            Err(EngineError::Comm(CommFault::Link(_) | CommFault::PeerClosed(_))) => Some(false),
            Err(error) => panic!("{error}"),
        };
        if fails && duo.a.close(send).is_ok() {
            duo.world.note_trace(format_args!("the sender detects the loss"));
        }
        ended.is_some()
    });
    let mut bytes = vec![0; len as usize];
    target.read(0, &mut bytes).unwrap();
    let well = ended == Some(true);
    assert!(
        !well || bytes.iter().all(|&byte| byte == 7),
        "seed {seed}: the received bytes differ from the sent ones"
    );
    well
}

#[test]
fn sent_message_arrives_or_its_loss_is_reported() {
    let seeds = if std::env::var_os("TRUNKLINE_FULL").is_some() { 8 } else { 4 };
    for params in [by_mailbox(), shared()] {
        let mut well = [0; 2];
        for len in [64, 4096, 20_000] {
            for seed in 0..seeds {
                for nic in 0..2 {
                    let duo = Duo::new(seed, weather(2, false), params.clone());
                    let comms = [(); 2].map(|()| connect(&duo, &[0, 1]));
                    let well_now = survives(&duo, comms[seed as usize % 2], len, nic, seed);
                    well[usize::from(well_now)] += 1;
                }
            }
        }
        assert!(well.iter().all(|&count| count > 4), "lost and arrived messages: {well:?}");
    }
}

#[test]
fn link_carries_after_its_first_arrival() {
    for seed in 0..10 {
        let slow = NetworkModel { jitter: 0, slow: 0, latency: SECOND / 10, ..weather(2, false) };
        let duo = Duo::new(seed, slow, EngineParams { rail_time: Duration::from_secs(3), ..by_mailbox() });
        let before = duo.world.now();
        connect(&duo, &[0, 1]);
        let took = duo.world.now() - before;
        assert!(took > SECOND / 10, "seed {seed}: a message arrived within {took} ns");
    }
}

/// Sends a message for each of these receives, all at once.
fn messages(duo: &Duo, send: CommId, receives: Vec<RequestId>, from: RecvBuf) {
    let mut open: Vec<(bool, RequestId)> = receives.into_iter().map(|received| (false, received)).collect();
    open.extend((0..open.len()).map(|_| (true, isend(&duo.a, send, from))));
    until(duo, "messages", || {
        open.retain(|&(sends, request)| {
            let engine = if sends { &duo.a } else { &duo.b };
            !engine.test(request, &mut [0; 8]).unwrap()
        });
        open.is_empty()
    });
}

/// Records that had arrived are written again when their link is lost, and are delayed for long. Meanwhile receives
/// continue until later records use their slots.
#[test]
fn rewritten_record_overwrites_no_newer_one() {
    for (arrives, seed) in (0..20).map(|seed| (seed % 2 == 0, seed)) {
        let mut quick = NetworkModel { jitter: 0, slow: 0, poll_time: 100, ..weather(2, false) };
        quick.caps.arrives = arrives;
        let duo = Duo::new(seed, quick, EngineParams { eager_max: 0, ..by_mailbox() });
        let (send, recv) = connect(&duo, &[0, 1]);
        let (from, into) = (buffer(&duo.a, send, 8).1, buffer(&duo.b, recv, 8).1);
        let receives = || -> Vec<RequestId> {
            let all = (0..RECVS_MAX).map(|_| duo.b.irecv(recv, &[into]).unwrap().unwrap());
            all.collect()
        };
        let wait = |nanos: u64| {
            let late = duo.world.now() + nanos;
            until(&duo, "the arrival of delayed writes", || duo.world.now() > late);
        };
        let first = receives();
        wait(100_000);
        duo.world.lock().weather.slow = 500;
        duo.world.cut_nic(SimPid(0), 0, 1 << 60);
        let lost = |links: Option<Vec<bool>>| links.unwrap() == [false, true];
        until(&duo, "the end of a link", || {
            lost(duo.a.carrying_links(send)) && lost(duo.b.carrying_links(recv))
        });
        wait(50_000);
        duo.world.lock().weather.slow = 0;
        messages(&duo, send, first, from);
        messages(&duo, send, receives(), from);
        let others = receives();
        wait(2_000_000);
        messages(&duo, send, others, from);
    }
}
