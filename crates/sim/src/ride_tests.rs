//! Rules of shared queue pairs that random runs meet too seldom, or cannot check exactly: which comms receive an
//! error, and how soon a member is freed of its state.

use trunkline_engine::{
    CommFault, CommId, EngineError, EngineParams, RecvBuf, RequestId, SharingParams, TrafficHint,
};
use trunkline_fabric::OpStatus;
use trunkline_proto::limits::MEMBER_QUARANTINE;
use trunkline_proto::pool::config::SharingMode;
use trunkline_proto::time::Duration;

use crate::rules_tests::{Duo, SECOND, buffer, connect, end, isend, params};
use crate::{NetworkModel, SimPid};

/// Two processes whose comms share that many groups.
fn duo(weather: NetworkModel, groups: u8) -> Duo {
    let sharing = SharingParams { sharing: SharingMode::On, groups, ..SharingParams::default() };
    Duo::new(1, weather, EngineParams { sharing, ..params() })
}

/// Sends one message over a comm and receives it.
pub(crate) fn exchange(duo: &Duo, (send, recv): (CommId, CommId), len: u64) {
    let ((_, from), (_, into)) = (buffer(&duo.a, send, len), buffer(&duo.b, recv, len));
    let received = duo.b.irecv(recv, &[into]).unwrap().unwrap();
    let sent = isend(&duo.a, send, from);
    both_end(duo, sent, received);
    duo.a.deregister(send, from.mr).unwrap();
    duo.b.deregister(recv, into.mr).unwrap();
}

fn both_end(duo: &Duo, sent: RequestId, received: RequestId) {
    let (mut ended, mut sizes) = ([false; 2], [0; 8]);
    for _ in 0..200_000 {
        ended[0] = ended[0] || duo.a.test(sent, &mut sizes).unwrap();
        ended[1] = ended[1] || duo.b.test(received, &mut sizes).unwrap();
        if ended == [true; 2] {
            return;
        }
    }
    panic!("{ended:?}: a message of an unaffected comm does not end");
}

/// Closes both ends as a front end does, `b`'s first.
pub(crate) fn close(duo: &Duo, (send, recv): (CommId, CommId)) {
    let until = duo.world.now() + SECOND;
    while !duo.b.prepare_close(recv).unwrap() {
        duo.a.progress_all();
        assert!(duo.world.now() < until, "the receiver cannot close");
    }
    duo.b.close(recv).unwrap();
    while !duo.a.prepare_close(send).unwrap() {
        duo.b.progress_all();
        assert!(duo.world.now() < until, "the sender cannot close");
    }
    duo.a.close(send).unwrap();
}

#[test]
fn comms_use_the_agreed_number_of_queue_pairs() {
    for groups in [1, 2, 8] {
        let duo = duo(NetworkModel::fault_free(), groups);
        let comms: Vec<_> = (0..6).map(|_| duo.connect()).collect();
        let links = [0, 1].map(|pid| duo.world.held_resources(SimPid(pid)).links);
        assert_eq!(links, [usize::from(groups.min(6)); 2]);
        comms.iter().for_each(|&comm| exchange(&duo, comm, 100));
        let (sender, receiver) = (duo.a.sharing_usage(), duo.b.sharing_usage());
        assert_eq!((sender.dropped, receiver.dropped, sender.wrong, receiver.wrong), (0, 0, None, None));
        comms.iter().for_each(|&comm| close(&duo, comm));
        duo.run(SECOND);
        assert_eq!([0, 1].map(|pid| duo.world.held_resources(SimPid(pid)).links), [0, 0]);
    }
}

#[test]
fn broken_link_fails_only_its_members_once() {
    let duo = duo(NetworkModel::fault_free(), 2);
    let comms: Vec<_> = (0..5).map(|_| duo.connect()).collect();
    let posted: Vec<_> = comms
        .iter()
        .map(|&(_, recv)| duo.b.irecv(recv, &[buffer(&duo.b, recv, 64).1]).unwrap().unwrap())
        .collect();
    let group = |&(_, recv): &(CommId, CommId)| duo.b.group_of(recv).unwrap();
    let groups: Vec<u32> = comms.iter().map(group).collect();
    assert_ne!(groups[0], groups[1]);
    duo.world.flap_link().unwrap();
    let (mut failed, mut sizes) = ([0; 5], [0; 8]);
    let until = duo.world.now() + 30 * SECOND;
    while duo.world.now() < until {
        for (at, &request) in posted.iter().enumerate() {
            match duo.b.test(request, &mut sizes) {
                Ok(done) => assert!(!done && failed[at] == 0, "nothing was sent"),
                Err(EngineError::Comm(fault)) => {
                    assert!(matches!(fault, CommFault::Link(_)), "{fault}");
                    failed[at] += 1;
                }
                Err(error) => assert!(failed[at] == 1 && matches!(error, EngineError::Unknown(_)), "{error}"),
            }
        }
        duo.a.progress_all();
        duo.world.advance_by(10_000_000);
    }
    let hit: Vec<u32> = groups.iter().zip(failed).filter(|(_, n)| *n > 0).map(|(g, _)| *g).collect();
    assert!(
        !hit.is_empty() && hit.iter().all(|&group| group == hit[0]),
        "{failed:?} failures of groups {groups:?}"
    );
    // One line per comm, and one for the group.
    assert_eq!(duo.world.warning_count(SimPid(1)), hit.len() + 1);
    assert_eq!(duo.b.counters().requests_failed, hit.len() as u64);
    for (at, &comm) in comms.iter().enumerate() {
        if groups[at] == hit[0] {
            assert_eq!(failed[at], 1, "each member fails once");
            assert!(duo.b.test(posted[at], &mut sizes).is_err() && duo.b.irecv(comm.1, &[NOWHERE]).is_err());
        } else {
            let sent = isend(&duo.a, comm.0, buffer(&duo.a, comm.0, 64).1);
            both_end(&duo, sent, posted[at]);
        }
    }
    // New comms do not join a group that has ended.
    let (mut sender, mut receiver) = (duo.a.sharing_usage().groups, duo.b.sharing_usage().groups);
    let late: Vec<_> = (0..2).map(|_| duo.connect()).collect();
    late.iter().for_each(|&comm| exchange(&duo, comm, 64));
    sender.append(&mut receiver);
    assert!(
        sender.iter().any(|group| group.state == trunkline_proto::pool::group::GroupPhase::Broken),
        "{sender:?}"
    );
}

/// The link of a group works, but refuses all posts for a while.
#[test]
fn refused_post_fails_only_its_posters_once() {
    let duo = duo(NetworkModel::fault_free(), 2);
    let comms: Vec<_> = (0..8).map(|_| duo.connect()).collect();
    let post = |&(_, recv): &(CommId, CommId)| duo.b.irecv(recv, &[buffer(&duo.b, recv, 64).1]).unwrap();
    let posted: Vec<_> = comms.iter().map(|comm| post(comm).unwrap()).collect();
    duo.run(SECOND / 100);
    duo.world.refuse_posts(Some(SimPid(0)));
    // One member of each group sends nothing.
    let sends: Vec<Vec<Result<RequestId, EngineError>>> = comms[2..]
        .iter()
        .map(|&(send, _)| {
            let (_, from) = buffer(&duo.a, send, 64);
            let one = || (0..10_000).find_map(|_| duo.a.isend(send, from.mr, 0, 64, 0).transpose()).unwrap();
            (0..2).map(|_| one()).collect()
        })
        .collect();
    duo.run(SECOND / 100);
    duo.world.refuse_posts(None);
    let refused =
        |error: &EngineError| matches!(error, EngineError::Comm(CommFault::Link(OpStatus::Other(12))));
    let mut hit = Vec::new();
    for (&comm, sends) in comms[2..].iter().zip(sends) {
        let ended = sends.into_iter().map(|sent| sent.and_then(|request| end(&duo.a, request)));
        let failed =
            ended.filter_map(Result::err).inspect(|error| assert!(refused(error), "{error}")).count();
        assert!([0, 2].contains(&failed), "{failed} of two members failed");
        hit.extend((failed > 0).then_some(comm));
    }
    let group = |comm: &(CommId, CommId)| duo.a.group_of(comm.0);
    let all: Vec<_> = comms[2..].iter().filter(|comm| group(comm) == group(&hit[0])).copied().collect();
    assert_eq!((hit.len(), &hit), (3, &all), "all senders of one group");
    assert_eq!(
        [0, 1].map(|pid| duo.world.warning_count(SimPid(pid))),
        [hit.len(), 0],
        "each failure is logged once"
    );
    // The link still works for the other members of the group.
    for (&comm, &received) in comms.iter().zip(&posted).filter(|(comm, _)| !hit.contains(comm)) {
        if comms[..2].contains(&comm) {
            let sent = isend(&duo.a, comm.0, buffer(&duo.a, comm.0, 64).1);
            assert_eq!(end(&duo.a, sent).unwrap(), 64);
        }
        assert_eq!(end(&duo.b, received).unwrap(), 64);
        exchange(&duo, comm, 1000);
    }
    hit.iter().for_each(|comm| duo.a.close(comm.0).unwrap());
    for (_, &received) in comms.iter().zip(&posted).filter(|(comm, _)| hit.contains(comm)) {
        let told = end(&duo.b, received);
        assert!(matches!(told, Err(EngineError::Comm(CommFault::PeerClosed(_)))), "{told:?}");
    }
}

/// A completion for a member that has left names the slot of its successors; only the generation differs.
#[test]
fn late_completions_of_ended_members_are_counted() {
    const TURNS: usize = 3 * (MEMBER_QUARANTINE + 2);
    let duo = duo(NetworkModel::fault_free(), 1);
    let (stays, one) = (duo.connect(), duo.connect());
    duo.world.keep_completions(true);
    [100_000, 64, 200_000, 70_000].into_iter().for_each(|len| exchange(&duo, one, len));
    duo.world.keep_completions(false);
    close(&duo, one);
    let mut late = [0; 2];
    for turn in 0..TURNS {
        let later = duo.connect();
        let ((from_memory, from), (into_memory, into)) =
            (buffer(&duo.a, later.0, 100_000), buffer(&duo.b, later.1, 100_000));
        from_memory.write(0, &[turn as u8; 100_000]).unwrap();
        let received = duo.b.irecv(later.1, &[into]).unwrap().unwrap();
        let sent = isend(&duo.a, later.0, from);
        for (pid, late) in late.iter_mut().enumerate() {
            *late += duo.world.come_late(SimPid(pid)) as u64;
        }
        // Polled through another member, and by the member itself.
        if turn % 2 == 0 {
            exchange(&duo, stays, 8);
        }
        both_end(&duo, sent, received);
        let mut bytes = vec![0; 100_000];
        into_memory.read(0, &mut bytes).unwrap();
        assert!(bytes.iter().all(|&byte| byte == turn as u8), "turn {turn}");
        close(&duo, later);
        duo.run(SECOND / 1000);
    }
    close(&duo, stays);
    duo.run(SECOND / 10);
    assert!(late.iter().all(|&late| late >= 3 * TURNS as u64), "{late:?}");
    assert_eq!([&duo.a, &duo.b].map(|engine| engine.counters().completions_dropped), late);
}

const NOWHERE: RecvBuf =
    RecvBuf { mr: trunkline_engine::MrId::from_bits(1 << 32), offset: 0, len: 0, tag: 0 };

#[test]
fn revoked_receiver_memory_affects_no_other_member() {
    for (retires, seed) in [(true, 1), (false, 1), (false, 2), (true, 2)] {
        let mut weather = NetworkModel::fault_free();
        weather.caps.retires = retires;
        weather.latency *= seed;
        let duo = duo(weather, 1);
        let (one, other) = (duo.connect(), duo.connect());
        let ((_, from), (_, into)) = (buffer(&duo.a, one.0, 1 << 22), buffer(&duo.b, one.1, 1 << 22));
        duo.b.irecv(one.1, &[into]).unwrap().unwrap();
        let sent = isend(&duo.a, one.0, from);
        let until = duo.world.now() + SECOND;
        while let Err(error) = duo.b.deregister(one.1, into.mr) {
            assert!(matches!(error, EngineError::Draining), "{error}");
            // Its owner may be busy with other work.
            duo.a.progress_all();
            assert!(duo.world.now() < until, "the peer does not reply to STOP");
        }
        exchange(&duo, other, 10_000);
        assert!(duo.b.irecv(one.1, &[NOWHERE]).is_err());
        close(&duo, one);
        let _ = sent;
        exchange(&duo, other, 10_000);
        close(&duo, other);
        duo.run(SECOND);
        assert_eq!([0, 1].map(|pid| duo.world.held_resources(SimPid(pid)).links), [0, 0]);
    }
}

/// A sender receives STOP while its process makes calls only for another member, which has no work in flight.
#[test]
fn calls_for_one_member_serve_the_others() {
    let mut weather = NetworkModel::fault_free();
    weather.caps.retires = false;
    let sharing = SharingParams { sharing: SharingMode::On, groups: 1, ..SharingParams::default() };
    let duo = Duo::new(1, weather, EngineParams { sharing, idle_polls: 4, ..params() });
    let (one, other) = (duo.connect(), duo.connect());
    let (_, into) = buffer(&duo.b, one.1, 1 << 22);
    duo.b.irecv(one.1, &[into]).unwrap().unwrap();
    isend(&duo.a, one.0, buffer(&duo.a, one.0, 1 << 22).1);
    let (_, waits) = buffer(&duo.a, other.0, 100_000);
    let until = duo.world.now() + SECOND;
    while let Err(error) = duo.b.deregister(one.1, into.mr) {
        assert!(matches!(error, EngineError::Draining), "{error}");
        assert!(
            duo.a.isend(other.0, waits.mr, 0, waits.len, 0).unwrap().is_none(),
            "no receive is posted for it"
        );
        assert!(duo.world.now() < until, "the peer does not reply to STOP");
    }
}

#[test]
fn unexpected_messages_cost_other_members_no_buffers() {
    let sharing = SharingParams { sharing: SharingMode::On, groups: 1, ..SharingParams::default() };
    let duo = Duo::new(1, NetworkModel::fault_free(), EngineParams { sharing, idle_polls: 4, ..params() });
    let stays = duo.connect();
    for round in 0..40 {
        let (send, recv) = duo.connect();
        let (_, from) = buffer(&duo.a, send, 8);
        let sent: Vec<_> = (0..4).map(|_| isend(&duo.a, send, from)).collect();
        sent.into_iter().for_each(|request| assert_eq!(end(&duo.a, request).unwrap(), 8));
        duo.a.close(send).unwrap();
        let (_, into) = buffer(&duo.b, recv, 8);
        let received = duo.b.irecv(recv, &[into]).unwrap().unwrap();
        assert_eq!(end(&duo.b, received).unwrap(), 8);
        // The peer has ended, and three messages are left. Some of them are received, others get no receive.
        duo.run(SECOND / 10);
        (0..500).for_each(|_| {
            duo.b.drive_unpolled();
        });
        for _ in 0..round % 4 {
            let received = duo.b.irecv(recv, &[into]).unwrap().unwrap();
            assert_eq!(end(&duo.b, received).unwrap(), 8);
        }
        let more = duo.b.irecv(recv, &[into]);
        if round % 4 == 3 {
            assert!(
                more.and_then(|request| end(&duo.b, request.unwrap())).is_err(),
                "a fifth message was received"
            );
        }
        duo.b.deregister(recv, into.mr).unwrap();
        duo.b.close(recv).unwrap();
        duo.run(SECOND / 10);
    }
    buffers_are_left(&duo, stays);
}

/// Whether messages of that comm still find buffers.
fn buffers_are_left(duo: &Duo, stays: (CommId, CommId)) {
    (0..20).for_each(|_| exchange(duo, stays, 8));
    let (_, from) = buffer(&duo.a, stays.0, 8);
    let sent: Vec<_> = (0..8).map(|_| isend(&duo.a, stays.0, from)).collect();
    let until = duo.world.now() + SECOND;
    while duo.world.unpolled_messages(SimPid(1)) < 8 {
        sent.iter().for_each(|&request| drop(duo.a.test(request, &mut [0; 8])));
        assert!(duo.world.now() < until, "no buffers are free for messages");
    }
}

#[test]
fn messages_for_a_closed_member_cost_no_buffers() {
    let duo = duo(NetworkModel::fault_free(), 1);
    let stays = duo.connect();
    for _ in 0..40 {
        let (send, recv) = duo.connect();
        let (_, from) = buffer(&duo.a, send, 8);
        let sent: Vec<_> = (0..4).map(|_| isend(&duo.a, send, from)).collect();
        assert_eq!(sent.len(), 4);
        duo.b.close(recv).unwrap();
        // They arrive while only the closed member makes progress.
        duo.run(SECOND / 10);
        duo.a.close(send).unwrap();
        duo.run(SECOND / 10);
    }
    buffers_are_left(&duo, stays);
}

#[test]
fn silently_ended_link_blocks_no_member() {
    let sharing = SharingParams { sharing: SharingMode::On, groups: 1, ..SharingParams::default() };
    let duo = Duo::new(1, NetworkModel::fault_free(), EngineParams { sharing, eager_max: 0, ..params() });
    let comms = [duo.connect(), duo.connect()];
    // There is no posted operation that could be flushed.
    duo.run(SECOND / 10);
    duo.world.flap_link().unwrap();
    duo.run(SECOND / 10);
    for (send, recv) in comms {
        duo.b.close(recv).unwrap();
        duo.a.close(send).unwrap();
    }
    duo.run(SECOND);
    assert_eq!([0, 1].map(|pid| duo.world.held_resources(SimPid(pid)).links), [0, 0]);
    let _ = connect(&duo.a, &duo.b);
}

#[test]
fn memory_is_released_when_its_stuck_copy_ends() {
    let mut weather = NetworkModel::fault_free();
    (weather.stuck, weather.kib_time) = (1000, 2_000);
    let duo = duo(weather, 1);
    let one = duo.connect();
    let ((_, from), (_, into)) = (buffer(&duo.a, one.0, 1 << 20), buffer(&duo.b, one.1, 1 << 20));
    let received = duo.b.irecv(one.1, &[into]).unwrap().unwrap();
    isend(&duo.a, one.0, from);
    for _ in 0..100 {
        assert!(!duo.b.test(received, &mut [0; 8]).unwrap());
        duo.a.progress_all();
    }
    // Closed without waiting, so its group ends with it.
    duo.b.close(one.1).unwrap();
    duo.a.close(one.0).unwrap();
    duo.run(15 * SECOND);
    let left = [0, 1].map(|pid| duo.world.held_resources(SimPid(pid)));
    assert!(left.iter().all(|counts| (counts.links, counts.regions) == (0, 0)), "{left:?}");
}

#[test]
fn unpolled_attempt_expires_while_its_group_works() {
    let mut weather = NetworkModel::fault_free();
    weather.kib_time = 5_000_000;
    let sharing = SharingParams { sharing: SharingMode::On, groups: 1, ..SharingParams::default() };
    let duo =
        Duo::new(1, weather, EngineParams { sharing, connect_time: Duration::from_secs(3), ..params() });
    let (send, recv) = duo.connect();
    let ((_, from), (_, into)) = (buffer(&duo.a, send, 1 << 22), buffer(&duo.b, recv, 1 << 22));
    let received = duo.b.irecv(recv, &[into]).unwrap().unwrap();
    let sent = isend(&duo.a, send, from);
    let (_, mut handle) = duo.b.listen(0).unwrap();
    for _ in 0..10 {
        assert_eq!(duo.a.connect(0, &mut handle).unwrap(), None, "no process accepts");
    }
    // Each open comm has an attempt, too.
    assert_eq!(duo.a.sharing_usage().attempts, 2);
    // From here on the message is only tested, under the lane in which the attempt has a mailbox.
    let until = duo.world.now() + 60 * SECOND;
    let mut ended = [false; 2];
    while ended != [true; 2] {
        ended[0] = ended[0] || duo.a.test(sent, &mut [0; 8]).unwrap();
        ended[1] = ended[1] || duo.b.test(received, &mut [0; 8]).unwrap();
        duo.world.advance_by(1_000_000);
        assert!(duo.world.now() < until, "{ended:?}");
    }
    duo.run(SECOND);
    let riding = duo.a.sharing_usage();
    assert_eq!((riding.attempts, riding.pool.members, riding.wrong), (1, 1, None));
}

#[test]
fn shutdown_ends_groups_with_only_attempts() {
    let duo = duo(NetworkModel::fault_free(), 1);
    let comm = duo.connect();
    exchange(&duo, comm, 100);
    let (_, mut handle) = duo.b.listen(0).unwrap();
    for _ in 0..10 {
        assert_eq!(duo.a.connect(0, &mut handle).unwrap(), None, "no process accepts");
    }
    assert_eq!(duo.a.sharing_usage().attempts, 2);
    duo.a.shutdown();
    duo.b.shutdown();
    for (pid, engine) in [(0, &duo.a), (1, &duo.b)] {
        let (riding, counts) = (engine.sharing_usage(), duo.world.held_resources(SimPid(pid)));
        assert_eq!((riding.lanes, riding.attempts, counts.links, counts.regions), (0, 0, 0, 0), "{pid}");
    }
    // The next connection works as before.
    exchange(&duo, duo.connect(), 100);
}

#[test]
fn memory_is_kept_until_it_is_copied_out() {
    let mut weather = NetworkModel::fault_free();
    (weather.cramped, weather.copied_max) = (900, u64::MAX);
    (weather.caps.retires, weather.caps.matched) = (false, false);
    let duo = duo(weather, 1);
    let (one, other) = (duo.connect(), duo.connect());
    for round in 0..50 {
        let ((memory, from), (_, into)) = (buffer(&duo.a, one.0, 500), buffer(&duo.b, one.1, 500));
        let received = duo.b.irecv(one.1, &[into]).unwrap().unwrap();
        let sent = isend(&duo.a, one.0, from);
        let until = duo.world.now() + SECOND;
        while let Err(error) = duo.a.deregister(one.0, from.mr) {
            assert!(matches!(error, EngineError::Draining), "{error}");
            assert!(duo.world.now() < until, "round {round}");
        }
        drop(memory);
        both_end(&duo, sent, received);
        duo.b.deregister(one.1, into.mr).unwrap();
        exchange(&duo, other, 1000);
    }
}

/// A send is done when its message has left; its comm may have failed by then.
#[test]
fn late_message_of_a_failed_comm_keeps_no_memory() {
    let mut weather = NetworkModel::fault_free();
    (weather.cramped, weather.copied_max) = (950, u64::MAX);
    (weather.caps.retires, weather.caps.matched) = (false, false);
    let duo = duo(weather, 1);
    let _other = duo.connect();
    for round in 0..30 {
        let one = duo.connect();
        let ((_, from), (_, into)) = (buffer(&duo.a, one.0, 5000), buffer(&duo.b, one.1, 5000));
        let received = duo.b.irecv(one.1, &[into]).unwrap().unwrap();
        let started = || {
            assert!(!duo.b.test(received, &mut [0; 8]).unwrap());
            duo.a.isend(one.0, from.mr, 0, 5000, 0).unwrap()
        };
        std::iter::repeat_with(started).take(100_000).flatten().next().unwrap();
        duo.b.close(one.1).unwrap();
        let until = duo.world.now() + SECOND / 100;
        while let Err(error) = duo.a.deregister(one.0, from.mr) {
            assert!(matches!(error, EngineError::Draining), "{error}");
            assert!(duo.world.now() < until, "round {round}");
        }
        duo.a.close(one.0).unwrap();
    }
}

#[test]
fn rejected_member_leaves_no_state() {
    let sharing = SharingParams { sharing: SharingMode::On, groups: 1, ..SharingParams::default() };
    let params = EngineParams { sharing, ..params() };
    let mut duo = Duo::new(1, NetworkModel::fault_free(), params.clone());
    let few = crate::SimFabric::new(&duo.world, SimPid(0));
    duo.a = crate::comm_end::SimEngine::new(
        few,
        crate::SimHost::new(&duo.world, SimPid(0)),
        EngineParams { comms_max: 2, ..params },
    )
    .unwrap();
    let comms = [duo.connect(), duo.connect()];
    let (listen, mut handle) = duo.b.listen(0).unwrap();
    let until = duo.world.now() + SECOND;
    let refused = loop {
        assert!(duo.world.now() < until);
        let _ = duo.b.accept(listen).unwrap();
        if let Err(error) = duo.a.connect(0, &mut handle) {
            break error;
        }
    };
    assert!(matches!(refused, EngineError::Exhausted { .. }), "{refused}");
    let riding = duo.a.sharing_usage();
    assert_eq!((riding.attempts, riding.pool.members, riding.wrong), (2, 2, None));
    comms.iter().for_each(|&comm| exchange(&duo, comm, 100));
}

#[test]
fn receiver_of_a_closed_peer_closes_at_once() {
    let mut weather = NetworkModel::fault_free();
    weather.caps.retires = false;
    let duo = duo(weather, 1);
    let (one, other) = (duo.connect(), duo.connect());
    let (_, into) = buffer(&duo.b, one.1, 1000);
    let received = duo.b.irecv(one.1, &[into]).unwrap().unwrap();
    while !duo.a.prepare_close(one.0).unwrap() {
        duo.b.progress_all();
    }
    duo.a.close(one.0).unwrap();
    let until = duo.world.now() + SECOND;
    while duo.b.test(received, &mut [0; 8]).is_ok() {
        duo.a.progress_all();
        assert!(duo.world.now() < until, "the peer has closed");
    }
    // Its memory is named in a record that no process reads any more.
    duo.b.close(one.1).unwrap();
    exchange(&duo, other, 1000);
    assert_eq!([0, 1].map(|pid| duo.world.held_resources(SimPid(pid)).links), [1, 1]);
}

#[test]
fn closed_members_leave_during_connects_and_accepts() {
    let duo = duo(NetworkModel::fault_free(), 1);
    let (one, other) = (duo.connect(), duo.connect());
    duo.b.close(one.1).unwrap();
    duo.a.close(one.0).unwrap();
    let (listen, mut handle) = duo.b.listen(0).unwrap();
    let (mut connected, mut accepted) = (None, None);
    let until = duo.world.now() + SECOND;
    while duo.a.sharing_usage().seats > 2
        || duo.b.sharing_usage().seats > 2
        || connected.is_none()
        || accepted.is_none()
    {
        connected = connected.or_else(|| duo.a.connect(0, &mut handle).unwrap());
        accepted = accepted.or_else(|| duo.b.accept(listen).unwrap());
        if connected.is_some() {
            // No process accepts on this listener.
            let (_, mut nowhere) = duo.b.listen(0).unwrap();
            let _ = duo.a.connect(0, &mut nowhere);
        }
        duo.world.advance_by(10_000);
        assert!(duo.world.now() < until, "{:?} {:?}", duo.a.sharing_usage(), duo.b.sharing_usage());
    }
    exchange(&duo, other, 1000);
}

#[test]
fn awakened_process_reads_before_it_gives_up() {
    let mut weather = NetworkModel::fault_free();
    weather.caps.retires = false;
    let duo = duo(weather, 1);
    let (one, other) = (duo.connect(), duo.connect());
    let (_, into) = buffer(&duo.b, one.1, 1000);
    duo.b.irecv(one.1, &[into]).unwrap().unwrap();
    assert!(duo.b.deregister(one.1, into.mr).is_err(), "the peer has not reported its end yet");
    // Neither process makes calls.
    duo.world.advance_by(1000 * SECOND);
    let until = duo.world.now() + SECOND;
    while duo.b.deregister(one.1, into.mr).is_err() {
        duo.a.progress_all();
        assert!(duo.world.now() < until);
    }
    exchange(&duo, other, 1000);
    assert_eq!([0, 1].map(|pid| duo.world.held_resources(SimPid(pid)).links), [1, 1]);
}

/// Connects `a` to `b` with these traffic hints.
fn connect_in(duo: &Duo, traffic: TrafficHint) -> (CommId, CommId) {
    let (listen, mut handle) = duo.b.listen(0).unwrap();
    let (mut send, mut recv) = (None, None);
    for _ in 0..10_000 {
        send = send.or_else(|| duo.a.connect_in(traffic, 0, &mut handle).unwrap());
        recv = recv.or_else(|| duo.b.accept(listen).unwrap());
        if let (Some(send), Some(recv)) = (send, recv) {
            duo.b.close_listen(listen).unwrap();
            return (send, recv);
        }
    }
    panic!("never connected");
}

#[test]
fn new_comm_joins_the_least_loaded_group() {
    for busy in [0, 1] {
        let duo = duo(NetworkModel::fault_free(), 2);
        let comms = [duo.connect(), duo.connect()];
        (0..20).for_each(|_| exchange(&duo, comms[busy], 100));
        exchange(&duo, comms[1 - busy], 100);
        let third = duo.connect();
        assert_eq!(duo.a.group_of(third.0), duo.a.group_of(comms[1 - busy].0));
        // Work before the last sample of the load does not count any more.
        let fourth = duo.connect();
        assert_eq!(duo.a.group_of(fourth.0), duo.a.group_of(comms[busy].0));
    }
}

#[test]
fn heavy_comm_is_left_alone_in_its_group() {
    let duo = duo(NetworkModel::fault_free(), 2);
    let heavy = connect_in(&duo, TrafficHint { peers: 1, flows: 2, class: None });
    let light: Vec<_> =
        (0..8).map(|_| connect_in(&duo, TrafficHint { peers: 7, flows: 2, class: None })).collect();
    let alone = duo.a.group_of(heavy.0);
    assert!(light.iter().all(|comm| duo.a.group_of(comm.0) != alone));
    // Their load now equals that of the heavy comm.
    let more = [duo.connect(), duo.connect()].map(|comm| duo.a.group_of(comm.0));
    assert!(more.contains(&alone));
}
