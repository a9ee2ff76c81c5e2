//! When operations leave: a connection waits for its link, a completed operation has left, and posted operations
//! leave at once or with the next poll. A message of a comm with several links uses all of them.

use trunkline_engine::{CommFault, CommId, CommNics, EngineError, EngineParams, MatchBy, RecvBuf};
use trunkline_proto::limits::EAGER_CREDITS_MAX;

use crate::comm_end::SimEngine;
use crate::rules_tests::{Duo, SECOND, buffer, connect, end, isend, params};
use crate::{NetworkModel, SimPid};

/// A network whose links are dialled; the seed decides which end dials.
fn dialled() -> NetworkModel {
    NetworkModel { dialled: true, dial_time: 50_000_000, ..NetworkModel::fault_free() }
}

/// The result of opening an end.
type Opened = Result<CommId, EngineError>;

/// Makes calls at both ends until both have a result, the sending and the receiving one; `look` is called with each
/// process that has got one.
fn open(duo: &Duo, look: impl Fn(SimPid)) -> (Opened, Opened) {
    let (listen, mut handle) = duo.b.listen(0).unwrap();
    let (mut send, mut recv) = (None, None);
    let until = duo.world.now() + 30 * SECOND;
    while duo.world.now() < until {
        if send.is_none() {
            send = duo.a.connect(0, &mut handle).transpose();
            send.iter().for_each(|_| look(SimPid(0)));
        }
        if recv.is_none() {
            recv = duo.b.accept(listen).transpose();
            recv.iter().for_each(|_| look(SimPid(1)));
        }
        match (send, recv) {
            (Some(send), Some(recv)) => return (send, recv),
            both => (send, recv) = both,
        }
        duo.world.advance_by(100_000);
    }
    panic!("an end hangs: {send:?}, {recv:?}");
}

/// Whether a comm reports that its peer has closed it.
fn is_closed(engine: &SimEngine, comm: CommId) -> bool {
    let (_, into) = buffer(engine, comm, 8);
    let ended = engine.irecv(comm, &[into]).and_then(|request| end(engine, request.unwrap()));
    matches!(ended, Err(EngineError::Comm(CommFault::PeerClosed(_))))
}

#[test]
fn connection_is_returned_once_its_link_is_up() {
    for seed in 0..20 {
        let duo = Duo::new(seed, dialled(), params());
        let up = |process| assert_eq!(duo.world.waiting_links(process), 0, "seed {seed}: {process}");
        let (send, recv) = open(&duo, up);
        let (send, recv) = (send.unwrap(), recv.unwrap());
        let (_, from) = buffer(&duo.a, send, 8);
        let (_, into) = buffer(&duo.b, recv, 8);
        let received = duo.b.irecv(recv, &[into]).unwrap().unwrap();
        isend(&duo.a, send, from);
        assert_eq!(end(&duo.b, received).unwrap(), 8);
    }
}

#[test]
fn unreachable_peer_is_reported_at_both_ends() {
    let mut by = [0; 2];
    for seed in 0..20 {
        let duo = Duo::new(seed, NetworkModel { no_route: 1000, ..dialled() }, params());
        let (send, recv) = open(&duo, |_| {});
        let unreachable = |opened: &Opened| matches!(opened, Err(EngineError::Link(_)));
        by[0] += usize::from(unreachable(&send));
        by[1] += usize::from(unreachable(&recv));
        assert!(send.is_err(), "seed {seed}: {send:?}");
        assert!(recv.map_or(true, |comm| is_closed(&duo.b, comm)), "seed {seed}");
        duo.run(20 * SECOND);
        assert_eq!((duo.a.in_use().1, duo.world.held_resources(SimPid(0)).links), (0, 0), "seed {seed}");
    }
    assert!(by[0] > 0 && by[1] > 0, "either end dials: {by:?}");
}

#[test]
fn peer_death_ends_a_wait_for_a_link() {
    for seed in 0..20 {
        let weather = NetworkModel { dial_time: 3_600 * SECOND, ..dialled() };
        let duo = Duo::new(seed, weather, EngineParams { match_by: MatchBy::Mailbox, ..params() });
        let (listen, mut handle) = duo.b.listen(0).unwrap();
        let mut waits = || {
            duo.world.advance_by(1_000_000);
            let accepted = duo.b.accept(listen);
            (duo.a.connect(0, &mut handle), accepted)
        };
        for _ in 0..1000 {
            assert!(matches!(waits(), (Ok(None), Ok(None))), "seed {seed}");
        }
        let (dead, connects) = if seed % 2 == 0 { (SimPid(1), true) } else { (SimPid(0), false) };
        duo.world.kill_process(dead);
        let error = (0..10_000).find_map(|_| {
            duo.world.advance_by(1_000_000);
            if connects { duo.a.connect(0, &mut handle).err() } else { duo.b.accept(listen).err() }
        });
        let told = matches!(error, Some(EngineError::Comm(CommFault::PeerDead(_)) | EngineError::Link(_)));
        assert!(told, "seed {seed}: {error:?}");
    }
}

#[test]
fn completed_send_arrives_without_another_call() {
    for seed in 0..20 {
        // The network accepts nothing most of the time.
        let duo = Duo::new(seed, NetworkModel { cramped: 900, ..NetworkModel::fault_free() }, params());
        let (send, recv) = duo.connect();
        let (_, from) = buffer(&duo.a, send, 8);
        let (_, into) = buffer(&duo.b, recv, 8);
        let received: Vec<_> = (0..8).map(|_| duo.b.irecv(recv, &[into]).unwrap().unwrap()).collect();
        let sent: Vec<_> = (0..8).map(|_| isend(&duo.a, send, from)).collect();
        for request in sent {
            end(&duo.a, request).unwrap();
        }
        for request in received {
            assert_eq!(end(&duo.b, request).unwrap(), 8);
        }
    }
}

#[test]
fn ended_request_stays_ended_when_its_slot_is_reused() {
    let duo = Duo::new(1, NetworkModel { cramped: 900, ..NetworkModel::fault_free() }, params());
    let (send, recv) = duo.connect();
    let (_, from) = buffer(&duo.a, send, 8);
    let (_, into) = buffer(&duo.b, recv, 8);
    let mut ended = Vec::new();
    for _ in 0..3 * trunkline_proto::limits::SENDS_MAX {
        let received = duo.b.irecv(recv, &[into]).unwrap().unwrap();
        let sent = isend(&duo.a, send, from);
        for &request in &ended {
            assert!(duo.a.test(request, &mut [0; 8]).is_err(), "an ended request is valid again");
        }
        end(&duo.a, sent).unwrap();
        assert_eq!(end(&duo.b, received).unwrap(), 8);
        if ended.len() < 4 {
            ended.push(sent);
        }
    }
}

#[test]
fn the_first_message_after_a_poll_leaves_at_once() {
    let duo = Duo::calm();
    let (send, recv) = duo.connect();
    let (_, from) = buffer(&duo.a, send, 8);
    let (_, into) = buffer(&duo.b, recv, 8);
    for _ in 0..3 {
        let received = duo.b.irecv(recv, &[into]).unwrap().unwrap();
        let sent = isend(&duo.a, send, from);
        assert_eq!(end(&duo.b, received).unwrap(), 8);
        // Only the first operation of a burst leaves; the others leave with the next poll, which a test makes.
        let received = [0; 2].map(|_| duo.b.irecv(recv, &[into]).unwrap().unwrap());
        let last = [0; 2].map(|_| isend(&duo.a, send, from))[1];
        end(&duo.a, sent).unwrap();
        end(&duo.a, last).unwrap();
        for request in received {
            assert_eq!(end(&duo.b, request).unwrap(), 8);
        }
    }
}

#[test]
fn long_receives_are_announced_at_once_short_later() {
    // No message is eager, so every message needs its announcement.
    let duo = Duo::new(1, NetworkModel::fault_free(), EngineParams { eager_credits: 0, ..params() });
    let (send, recv) = duo.connect();
    for len in [8, 100_000] {
        let (_, from) = buffer(&duo.a, send, len);
        let (_, into) = buffer(&duo.b, recv, len);
        let received = duo.b.irecv(recv, &[into]).unwrap().unwrap();
        if len == 8 {
            assert!(!duo.b.test(received, &mut [0; 8]).unwrap());
        }
        let sent = isend(&duo.a, send, from);
        end(&duo.a, sent).unwrap();
        assert_eq!(end(&duo.b, received).unwrap(), len);
    }
}

#[test]
fn waiting_records_never_exceed_the_kept_tags() {
    let duo = Duo::calm();
    let (send, recv) = duo.connect();
    let (_, from) = buffer(&duo.a, send, 8);
    let (_, into) = buffer(&duo.b, recv, 8);
    let tagged = |buffer: RecvBuf, tag| RecvBuf { tag, ..buffer };
    // These end before they are announced, so that only their tags are left.
    for tag in 0..5 {
        let received = duo.b.irecv(recv, &[tagged(into, tag)]).unwrap().unwrap();
        end(&duo.a, isend(&duo.a, send, tagged(from, tag))).unwrap();
        end(&duo.b, received).unwrap();
    }
    let begun = (100..100 + EAGER_CREDITS_MAX as u32 + 8)
        .map(|tag| (tag, duo.b.irecv(recv, &[tagged(into, tag)]).unwrap().unwrap()));
    for (tag, received) in begun.collect::<Vec<_>>() {
        end(&duo.a, isend(&duo.a, send, tagged(from, tag))).unwrap();
        assert_eq!(end(&duo.b, received).unwrap(), 8, "tag {tag}");
    }
}

#[test]
fn long_message_completes_when_it_has_left() {
    // The network accepts nothing half of the time.
    let weather = NetworkModel { cramped: 500, copied_max: u64::MAX, ..NetworkModel::fault_free() };
    for seed in 0..20 {
        let duo = Duo::new(seed, weather.clone(), params());
        let (send, recv) = duo.connect();
        let (memory, from) = buffer(&duo.a, send, 100_000);
        let (got, into) = buffer(&duo.b, recv, 100_000);
        for byte in 1..=3 {
            memory.write(0, &vec![byte; 100_000]).unwrap();
            let received = duo.b.irecv(recv, &[into]).unwrap().unwrap();
            let mut sent = None;
            while sent.is_none() {
                assert!(!duo.b.test(received, &mut [0; 8]).unwrap());
                sent = duo.a.isend(send, from.mr, 0, from.len, 0).unwrap();
            }
            end(&duo.a, sent.unwrap()).unwrap();
            memory.write(0, &vec![9; 100_000]).unwrap();
            assert_eq!(end(&duo.b, received).unwrap(), 100_000);
            let mut bytes = vec![0; 100_000];
            got.read(0, &mut bytes).unwrap();
            assert!(bytes.iter().all(|&one| one == byte), "seed {seed}: message {byte} was sent late");
        }
    }
}

#[test]
fn untested_receive_is_announced_during_other_waits() {
    let duo = Duo::new(1, NetworkModel::fault_free(), EngineParams { eager_credits: 1, ..params() });
    let (send, recv) = duo.connect();
    let (back, _forth) = connect(&duo.b, &duo.a);
    let ((_, from), (_, into), (_, other)) =
        (buffer(&duo.a, send, 8), buffer(&duo.b, recv, 8), buffer(&duo.b, back, 8));
    // The next message needs the announcement of its receive.
    isend(&duo.a, send, from);
    duo.b.irecv(recv, &[into]).unwrap().unwrap();
    isend(&duo.b, back, other);
    let started = (0..1000).any(|_| {
        // No receive is posted for it.
        assert!(duo.b.isend(back, other.mr, 0, 8, 0).unwrap().is_none());
        duo.world.advance_by(1000);
        duo.a.isend(send, from.mr, 0, 8, 0).unwrap().is_some()
    });
    assert!(started);
}

#[test]
fn unsent_long_message_fails_with_its_link() {
    let duo = Duo::new(1, NetworkModel { copied_max: u64::MAX, ..NetworkModel::fault_free() }, params());
    let (send, recv) = duo.connect();
    let (_, from) = buffer(&duo.a, send, 100_000);
    let (_, into) = buffer(&duo.b, recv, 100_000);
    duo.b.irecv(recv, &[into]).unwrap().unwrap();
    duo.world.advance_by(SECOND);
    // From now on the network accepts nothing.
    duo.world.lock().weather.cramped = 1000;
    let sent = duo.a.isend(send, from.mr, 0, from.len, 0).unwrap().unwrap();
    assert!(!duo.a.test(sent, &mut [0; 8]).unwrap());
    duo.world.kill_process(SimPid(1));
    duo.world.advance_by(SECOND);
    assert!(matches!(end(&duo.a, sent), Err(EngineError::Comm(_))));
}

const LEN: u64 = 4 << 20;

/// Returns the mean nanoseconds per message over that many NICs.
fn time_of_a_message(nics: usize, params: EngineParams) -> u64 {
    // About 100 MB/s.
    let links = nics * params.links_per_rail as usize;
    let duo = Duo::new(1, NetworkModel { nics, kib_time: 10_000, ..NetworkModel::fault_free() }, params);
    let numbers: Vec<usize> = (0..nics).collect();
    let (send, recv) = connect_over(&duo, CommNics::new(&numbers).unwrap());
    let (_, from) = buffer(&duo.a, send, LEN);
    let (_, into) = buffer(&duo.b, recv, LEN);
    let message = || {
        let received = duo.b.irecv(recv, &[into]).unwrap().unwrap();
        let sent = isend(&duo.a, send, from);
        let (started, mut done) = (duo.world.now(), [false; 2]);
        while done != [true; 2] {
            assert!(duo.world.now() < started + SECOND, "no end: {done:?}");
            done[0] = done[0] || duo.a.test(sent, &mut [0; 8]).unwrap();
            done[1] = done[1] || duo.b.test(received, &mut [0; 8]).unwrap();
            duo.world.advance_by(10_000);
        }
        duo.world.now() - started
    };
    // Links are established while messages are sent.
    message();
    let all = Some(vec![true; links]);
    assert_eq!((duo.a.carrying_links(send), duo.b.carrying_links(recv)), (all.clone(), all));
    (0..3).map(|_| message()).sum::<u64>() / 3
}

fn connect_over(duo: &Duo, nics: CommNics) -> (CommId, CommId) {
    let (listen, mut handle) = duo.b.listen(nics).unwrap();
    let (mut send, mut recv) = (None, None);
    for _ in 0..10_000 {
        send = send.or_else(|| duo.a.connect(nics, &mut handle).unwrap());
        recv = recv.or_else(|| duo.b.accept(listen).unwrap());
        if let Some(pair) = send.zip(recv) {
            return pair;
        }
    }
    panic!("never connected");
}

#[test]
fn message_time_shrinks_with_the_number_of_links() {
    let [one, two, four] = [1, 2, 4].map(|nics| time_of_a_message(nics, params()));
    assert!(one > 40_000_000, "{one} ns over one link is more than it carries");
    assert!(two * 10 < one * 7 && four * 10 < one * 4, "{one}, {two}, {four} ns over 1, 2, 4 links");
}

#[test]
fn message_stays_whole_over_one_rail_if_configured() {
    let [one, spread] =
        [1, 4].map(|links_per_rail| time_of_a_message(1, EngineParams { links_per_rail, ..params() }));
    let whole = |nics| time_of_a_message(nics, EngineParams { links_per_rail: 2, split: false, ..params() });
    let (whole, over_rails) = (whole(1), whole(2));
    assert!(spread * 10 < one * 4, "{one} ns over one link, {spread} over four");
    assert!(
        whole * 10 > one * 9 && over_rails * 10 < one * 7,
        "{one}, then {whole} and {over_rails} ns whole"
    );
}

#[test]
fn point_to_point_connections_have_their_own_links() {
    let params = EngineParams { links_per_rail: 2, p2p_links_per_rail: 4, ..params() };
    for (flag, links) in [(0, 2), (1, 4)] {
        let duo = Duo::new(1, NetworkModel::fault_free(), params.clone());
        let (listen, mut handle) = duo.b.listen(0).unwrap();
        handle[40] = flag;
        let (mut send, mut recv) = (None, None);
        while send.is_none() || recv.is_none() {
            send = send.or_else(|| duo.a.connect(0, &mut handle).unwrap());
            recv = recv.or_else(|| duo.b.accept(listen).unwrap());
        }
        assert_eq!(duo.a.carrying_links(send.unwrap()).map(|links| links.len()), Some(links));
    }
}
