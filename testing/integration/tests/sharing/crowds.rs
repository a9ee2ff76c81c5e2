//! More than two of something: processes behind one NIC, members with many outstanding messages at once, a peer that is
//! killed, ends with different settings.

use std::time::{Duration, Instant};

use rustix::process::{Signal, kill_process};
use trunkline_engine::EngineParams;
use trunkline_proto::wire::status::CommDirection;
use trunkline_proto::wire::status::group::GroupCounters;
use trunkline_sys::nccl_net::{CommAttr, NetAttr, ResultCode};

use crate::net::{Net, Piece, until};
use crate::run::Scene;
use crate::sharing::flow::{Mapped, Stream};
use crate::sharing::{connect_many, queue_pairs, status, wait_for_queue_pairs};

scenarios! {
    processes_behind_one_nic_share_nothing,
    all_messages_are_in_flight_at_once,
    hints_set_the_weight_of_a_connection,
    a_killed_peer_fails_each_member_once,
    ends_with_different_settings_agree,
    queues_have_the_requested_depth,
}

/// The streams of these comms, after `messages` messages each.
fn exchange<'a>(net: &'a Net, comms: &[crate::net::Comm], sends: bool, messages: usize) -> Vec<Stream<'a>> {
    let streams = comms.iter().enumerate().map(|(name, &comm)| Stream::new(net, comm, sends, name));
    let mut streams: Vec<_> = streams.collect();
    until("messages", || {
        streams.iter_mut().for_each(|stream| stream.step(messages).expect("no error"));
        streams.iter().all(|stream| stream.done == messages).then_some(())
    });
    streams
}

/// Of two groups, a connection whose traffic is alone in its communicator gets one to itself; the other eight connections share one.
fn hints_set_the_weight_of_a_connection(scene: Scene) {
    let net = Net::start(scene.version);
    let connect = |peers, flows| {
        let sends = CommAttr { max_concurrent_peers: peers, max_flows_per_peer: flows, ..CommAttr::UNDEF };
        net.hint(NetAttr { send_comm_attr: sends, ..NetAttr::UNDEF })
            .expect("this version has hints")
            .expect("hints");
        net.to_self()
    };
    let comms: Vec<_> =
        [(1, 1)].into_iter().chain([(7, 4); 8]).map(|(peers, flows)| connect(peers, flows)).collect();
    let rides = status().rows.into_iter().filter_map(|row| row.comm);
    let sending =
        rides.filter(|comm| comm.direction == CommDirection::Send).filter_map(|comm| comm.ride?.record);
    let mut members = [0; 256];
    sending.for_each(|record| members[usize::from(record)] += 1);
    members.sort_unstable();
    assert_eq!(members[252..], [0, 0, 1, 8]);
    comms.iter().for_each(|&pair| crate::contract::messages::round(&net, pair, 3000));
}

/// The first process has connections to itself and to the second one, over the same NIC: two keys, so four queue pairs.
fn processes_behind_one_nic_share_nothing(mut scene: Scene) {
    let net = Net::start(scene.version);
    let own: Vec<_> = (0..3).map(|_| net.to_self()).collect();
    assert_eq!(queue_pairs(), 2);
    let comms = connect_many(&net, &mut scene, 4);
    assert_eq!(queue_pairs(), 3, "no group has members of two processes");
    let streams = exchange(&net, &comms, scene.role == 1, 20);
    own.iter().for_each(|&pair| crate::contract::messages::round(&net, pair, 300_000));
    // Each kind can be closed without the other.
    if scene.role == 0 {
        for &(send, recv) in &own {
            net.close_send(send).expect("close");
            net.close_recv(recv).expect("close");
        }
        wait_for_queue_pairs(&net, 1);
    }
    scene.meet();
    streams.into_iter().for_each(Stream::close);
    scene.meet();
    if scene.role == 1 {
        assert!(queue_pairs() >= 2);
        own.iter().for_each(|&pair| crate::contract::messages::round(&net, pair, 300_000));
        for (send, recv) in own {
            net.close_send(send).expect("close");
            net.close_recv(recv).expect("close");
        }
    }
    wait_for_queue_pairs(&net, 0);
    scene.meet();
}

/// 64 comms of 8 messages each, all started before any is tested, in every length, for some rounds.
fn all_messages_are_in_flight_at_once(mut scene: Scene) {
    const COMMS: usize = 64;
    const STEPS: usize = 8;
    const LENGTHS: [usize; 8] = [0, 1, 4096, 4097, 32 << 10, (32 << 10) + 1, (256 << 10) + 1, 700_000];
    let net = Net::start(scene.version);
    let comms = connect_many(&net, &mut scene, COMMS);
    assert_eq!(queue_pairs(), 1);
    let sends = scene.role == 1;
    let room = *LENGTHS.iter().max().expect("some");
    let memory = Mapped::new(COMMS * STEPS * room);
    let mrs: Vec<_> =
        comms.iter().map(|&comm| net.reg(comm, memory.addr(), memory.len()).expect("regMr")).collect();
    for round in 0..3 {
        scene.meet();
        let mut begun = vec![None; COMMS * STEPS];
        let place = |at: usize| {
            let len = LENGTHS[(at / COMMS + at % COMMS + round) % LENGTHS.len()];
            (at * room..at * room + len, round * 1000 + at + 1)
        };
        if sends {
            (0..begun.len()).for_each(|at| memory.fill(place(at).0, place(at).1));
        }
        // First the first messages of all members, then all second ones. A message is tested only if its comm has no room for more.
        until("all have begun", || {
            for at in 0..begun.len() {
                let comm = at % COMMS;
                if begun[at].is_some() || at >= COMMS && begun[at - COMMS].is_none() {
                    continue;
                }
                let range = place(at).0;
                let piece = Piece {
                    addr: memory.addr() + range.start,
                    len: range.len(),
                    tag: at as i32,
                    mr: mrs[comm],
                };
                begun[at] = if sends {
                    net.try_send(comms[comm], piece, 0).expect("isend")
                } else {
                    net.try_recv(comms[comm], &[piece], 0).expect("irecv")
                };
            }
            begun.iter().all(Option::is_some).then_some(())
        });
        let requests: Vec<_> = begun.into_iter().flatten().collect();
        let sizes = net.finish_all(&requests);
        if !sends {
            for (at, sizes) in sizes.iter().enumerate() {
                let (range, seed) = place(at);
                assert_eq!(sizes[0] as usize, range.len());
                memory.check(range, seed, &format!("message {at}"));
            }
        }
    }
    for (&comm, mr) in comms.iter().zip(mrs) {
        net.dereg(comm, mr).expect("deregMr");
        if sends { net.close_send(comm) } else { net.close_recv(comm) }.expect("close");
    }
    scene.meet();
    wait_for_queue_pairs(&net, 0);
    scene.meet();
}

/// Eight members connect to a process that is killed amid their messages. Each member fails once, and members to another process continue.
fn a_killed_peer_fails_each_member_once(mut scene: Scene) {
    const MEMBERS: usize = 8;
    let net = Net::start(scene.version);
    let pid = scene.swap_pids();
    let own: Vec<_> = (0..3).map(|_| net.to_self()).collect();
    let comms = connect_many(&net, &mut scene, MEMBERS);
    let sends = scene.role == 1;
    let streams = comms.iter().enumerate().map(|(name, &comm)| Stream::new(&net, comm, sends, name));
    let mut streams: Vec<_> = streams.collect();
    if scene.role == 1 {
        loop {
            streams.iter_mut().for_each(|stream| stream.step(usize::MAX).expect("no error"));
        }
    }
    until("messages", || {
        streams.iter_mut().for_each(|stream| stream.step(usize::MAX).expect("no error"));
        streams.iter().all(|stream| stream.done >= 10).then_some(())
    });
    kill_process(pid, Signal::KILL).expect("kill");
    let killed = Instant::now();
    let mut failed = 0;
    until("each member fails", || {
        for stream in &mut streams {
            match stream.step(usize::MAX) {
                Ok(()) => {}
                Err(code) => {
                    assert_eq!(code, ResultCode::REMOTE_ERROR);
                    failed += 1;
                }
            }
        }
        own.iter().for_each(|&pair| crate::contract::messages::round(&net, pair, 40_000));
        streams.iter().all(|stream| stream.failed).then_some(())
    });
    let took = killed.elapsed();
    println!("figure: all {MEMBERS} members failed {took:?} after the kill");
    assert!(took < Duration::from_secs(8), "{took:?}");
    assert_eq!(failed, MEMBERS);
    let lines = || crate::net::LINES.lock().expect("no panic").clone();
    assert_eq!(crate::net::logged("requests over soft0 failed: process"), MEMBERS, "{:?}", lines());
    assert_eq!(crate::net::logged("a group of shared queue pairs has ended"), 1, "{:?}", lines());
    streams.into_iter().for_each(Stream::close);
    wait_for_queue_pairs(&net, 2);
    own.iter().for_each(|&pair| crate::contract::messages::round(&net, pair, 400_000));
}

/// Each end's setting is in its environment; the test sets the expected number of queue pairs.
fn ends_with_different_settings_agree(mut scene: Scene) {
    let wanted = std::env::var("TEST_WANTED").expect("TEST_WANTED names the settings of both ends");
    let (own, count) = wanted.split_once('=').expect("wishes and a number");
    let own = own.split(',').nth(scene.role).expect("a wish");
    let (name, value) = match own {
        "off" => ("TRUNKLINE_QP_SHARING", "off"),
        groups => ("TRUNKLINE_QP_GROUPS", groups),
    };
    // SAFETY: the plugin, which reads it, is started later, and no other thread accesses the environment.
    unsafe { std::env::set_var(name, value) };
    let net = Net::start(scene.version);
    let comms = connect_many(&net, &mut scene, 12);
    scene.meet();
    assert_eq!(queue_pairs().to_string(), count, "{wanted}");
    let streams = exchange(&net, &comms, scene.role == 1, 20);
    scene.meet();
    streams.into_iter().for_each(Stream::close);
    scene.meet();
    wait_for_queue_pairs(&net, 0);
    scene.meet();
}

/// On an idle link, the group's counters show the NIC's queue depth: the requested multiple of the default.
fn queues_have_the_requested_depth(scene: Scene) {
    let times = std::env::var("TRUNKLINE_QP_DEPTH_MULTIPLIER").expect("a number");
    let times: u32 = times.parse().expect("1 to 255");
    let net = Net::start(scene.version);
    let pairs: Vec<_> = (0..3).map(|_| net.to_self()).collect();
    pairs.iter().for_each(|&pair| crate::contract::messages::round(&net, pair, 100_000));
    let usual = EngineParams::default();
    let close = |(send, recv)| {
        net.close_send(send).expect("close");
        net.close_recv(recv).expect("close");
    };
    for (way, eager) in [(CommDirection::Send, usual.eager_credits), (CommDirection::Recv, 0)] {
        // The numbers are updated when a connection is added.
        let comer = net.to_self();
        let records = status().head.records.into_iter().flatten();
        let group = records.into_iter().find(|record| record.direction == way).expect("a record");
        close(comer);
        let GroupCounters { queue, eager: credits, .. } = group.numbers;
        println!("figure: depth times {times}, {way:?}: {queue:?}, eager {credits:?}");
        assert_eq!((queue.total, credits.total), (usual.depth * times, eager * times), "{way:?}");
        assert!(
            queue.used < 16,
            "{way:?}: the NIC has room for {} operations only",
            queue.total - queue.used
        );
    }
    pairs.into_iter().for_each(close);
}
