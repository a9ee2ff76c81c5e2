//! Isend, irecv, iflush and test.

use std::thread;

use crate::net::{Buf, Comm, Net, Piece, Request, STALE, fresh_seed, until};
use crate::run::Scene;

scenarios! {
    stale_requests_are_overwritten,
    every_message_size_between_threads,
    sends_end_without_their_receiver,
    grouped_receives_match_by_tag,
    requests_are_tested_in_any_order,
    an_optional_receive_can_be_tested,
    a_flush_has_nothing_to_wait_for,
    a_flush_is_a_request,
    two_processes_exchange_messages,
    a_message_arrives_although_all_short_ones_wait,
    messages_pass_one_whose_receive_is_late,
}

/// Bytes of a message's receive: more than the message, as NCCL's steps are.
pub(crate) fn room(len: usize) -> usize {
    (len + 1).next_multiple_of(4096)
}

/// Sends one message of `len` bytes, registered for it, and checks it.
#[track_caller]
pub(crate) fn round(net: &Net, (send, recv): (Comm, Comm), len: usize) {
    let seed = fresh_seed();
    let (from, to) = (Buf::filled(len.max(1), seed), Buf::new(room(len)));
    let (mr_from, mr_to) = (net.reg_buf(send, &from), net.reg_buf(recv, &to));
    let received = net.recv(recv, &[Piece { addr: to.addr(), len: room(len), tag: 5, mr: mr_to }]);
    let sent = net.send(send, Piece { addr: from.addr(), len, tag: 5, mr: mr_from });
    let sizes = net.finish_all(&[sent, received]);
    assert_eq!(sizes[1][0], len as i32);
    to.check(0..len, seed);
    to.untouched(len..room(len));
    net.dereg(send, mr_from).unwrap();
    net.dereg(recv, mr_to).unwrap();
}

/// Receives that a connection accepts before the first send: more than NCCL's outstanding requests, and fewer if the
/// connection shares links.
fn receives() -> usize {
    std::env::var("TEST_RECEIVES").map_or(32, |count| count.parse().expect("a number"))
}

fn stale_requests_are_overwritten(scene: Scene) {
    let net = Net::start(scene.version);
    let (send, recv) = net.to_self();
    let len = 1 << 16;
    let memory = Buf::filled(len, 9);
    let mr = net.reg_buf(send, &memory);
    let piece = Piece { addr: memory.addr(), len, tag: 1, mr };
    // Without receives, isend returns NULL ("call again"), immediately or once the credits are used up.
    let mut sent = Vec::new();
    let stales = [STALE, 0x1, 0x2, memory.addr()];
    for at in 0..1000 {
        // The driver checks that the request pointer was written.
        match net.try_send(send, piece, stales[at % 4]).unwrap() {
            Some(request) => sent.push(request),
            None => break,
        }
    }
    assert!(sent.len() < 1000, "sends without end");
    for stale in stales {
        assert_eq!(net.try_send(send, piece, stale), Ok(None));
    }
    // Receives without sends also reach a limit, but not too early.
    let to = Buf::new(len);
    let to_mr = net.reg_buf(recv, &to);
    let pieces = [Piece { addr: to.addr(), len, tag: 1, mr: to_mr }];
    let mut received = Vec::new();
    for at in 0..1000 {
        match net.try_recv(recv, &pieces, stales[at % 4]).unwrap() {
            Some(request) => received.push(request),
            None if received.len() >= receives().max(sent.len()) => break,
            // Messages sent before arrive meanwhile.
            None => thread::yield_now(),
        }
    }
    assert!((receives()..1000).contains(&received.len()), "{} receives", received.len());
    let missing = received.len() - sent.len();
    for _ in 0..missing {
        // Poll the receives too: the sender may wait for an action of the receiver.
        let next = until("isend", || {
            received.retain(|&request| net.try_test(request).unwrap().is_none());
            net.try_send(send, piece, STALE).unwrap()
        });
        sent.push(next);
    }
    sent.extend(received);
    net.finish_all(&sent);
    to.check(0..len, 9);
    // A failed call returns no request either.
    let unknown = Piece { mr: crate::net::Mr(0x5555_0000_5555), ..piece };
    assert!(net.try_send(send, unknown, STALE).is_err());
    assert!(net.try_recv(recv, &[unknown], STALE).is_err());
    net.close_send(send).unwrap();
    net.close_recv(recv).unwrap();
}

/// Lengths around every border: eager, lines, pages, stripes, slices.
pub(crate) fn lengths() -> Vec<usize> {
    let mut lengths = vec![0, 1, 7, 8, 9, 63, 64, 65, 127, 128, 129, 4000, 4095, 4096, 4097, 8191];
    lengths.extend([(32 << 10) - 1, 32 << 10, (32 << 10) + 1, (256 << 10) - 1, 256 << 10, (256 << 10) + 1]);
    lengths.extend([(1 << 20) + 1, 65535, 65536, 65537, 300_001, 1 << 20, (1 << 22) + 999]);
    lengths
}

/// Sends messages of every length, up to eight at a time.
pub(crate) fn send_all(net: &Net, send: Comm, seeds: usize) {
    let lengths = lengths();
    let bufs: Vec<Buf> =
        lengths.iter().enumerate().map(|(at, &len)| Buf::filled(len.max(1), seeds + at)).collect();
    let mut requests: Vec<Request> = Vec::new();
    for (at, (buf, &len)) in bufs.iter().zip(&lengths).enumerate() {
        let mr = net.reg_buf(send, buf);
        if requests.len() == 8 {
            net.finish(requests.remove(0));
        }
        requests.push(net.send(send, Piece { addr: buf.addr(), len, tag: at as i32, mr }));
    }
    net.finish_all(&requests);
}

/// Receives the messages of `send_all`; `room` computes each buffer's length from its message's length.
pub(crate) fn recv_all(net: &Net, recv: Comm, seeds: usize, room: impl Fn(usize) -> usize) {
    let lengths = lengths();
    let bufs: Vec<Buf> = lengths.iter().map(|&len| Buf::new(room(len).max(1))).collect();
    let mut requests: Vec<(usize, Request)> = Vec::new();
    let done = |(at, request): (usize, Request)| {
        let len = lengths[at];
        assert_eq!(net.finish(request)[0], len as i32, "size of message {at}");
        bufs[at].check(0..len, seeds + at);
        bufs[at].untouched(len..room(len));
    };
    for (at, buf) in bufs.iter().enumerate() {
        let mr = net.reg_buf(recv, buf);
        if requests.len() == 8 {
            done(requests.remove(0));
        }
        let piece = Piece { addr: buf.addr(), len: room(lengths[at]), tag: at as i32, mr };
        requests.push((at, net.recv(recv, &[piece])));
    }
    requests.into_iter().for_each(done);
}

/// A host whose receives have completed need not call again; its peer's sends must complete without further calls.
fn sends_end_without_their_receiver(scene: Scene) {
    let net = Net::start(scene.version);
    let (send, recv) = net.to_self();
    let odd = [(1 << 16) + 3, (1 << 20) + 90, (1 << 22) + 3];
    for len in lengths().into_iter().chain(odd) {
        for count in [1, 2, 8] {
            let (from, to) = (Buf::filled(len.max(1), 7), Buf::new(room(len)));
            let (from_mr, to_mr) = (net.reg_buf(send, &from), net.reg_buf(recv, &to));
            // In rounds of two messages each fills its receive; in other rounds receives are longer.
            let len_to = if count == 2 { len } else { room(len) };
            let piece = Piece { addr: to.addr(), len: len_to, tag: 0, mr: to_mr };
            let received: Vec<_> = (0..count).map(|_| net.recv(recv, &[piece])).collect();
            let piece = Piece { addr: from.addr(), len, tag: 0, mr: from_mr };
            let sent: Vec<_> = (0..count).map(|_| net.send(send, piece)).collect();
            for request in received {
                net.finish(request);
            }
            println!("{count} messages of {len} bytes are received");
            for request in sent {
                net.finish(request);
            }
        }
    }
    net.close_send(send).unwrap();
    net.close_recv(recv).unwrap();
}

fn every_message_size_between_threads(scene: Scene) {
    let net = Net::start(scene.version);
    let (send, recv) = net.to_self();
    for (seeds, room) in [(1000, room as fn(usize) -> usize), (2000, |len| len + 100), (3000, |len| len)] {
        thread::scope(|scope| {
            scope.spawn(|| send_all(&net, send, seeds));
            scope.spawn(|| recv_all(&net, recv, seeds, room));
        });
    }
    net.close_recv(recv).unwrap();
    net.close_send(send).unwrap();
}

/// Tags of 32 bits, some equal except for the upper half.
const TAGS: [i32; 8] = [-1, 65536 + 3, 3, i32::MIN, 1 << 30, i32::MAX, 0x00ff_ffff, -65536];

/// The buffers of a group and the messages sent to them: length of the buffer, length of the message, tag.
fn group(n: usize, turn: usize) -> Vec<(usize, usize, i32)> {
    let lengths = [0, 9, 4096, 5000, 70_000, 1, 128, 200_000];
    (0..n)
        .map(|at| (lengths[(at + turn) % 8], TAGS[(at * 3 + turn) % 8]))
        .map(|(l, t)| (l + 40, l, t))
        .collect()
}

fn recv_group(net: &Net, recv: Comm, n: usize, turn: usize) {
    let group = group(n, turn);
    let bufs: Vec<Buf> = group.iter().map(|&(len, ..)| Buf::new(len)).collect();
    let mrs: Vec<_> = bufs.iter().map(|buf| net.reg_buf(recv, buf)).collect();
    let pieces: Vec<Piece> = (0..n)
        .map(|at| Piece { addr: bufs[at].addr(), len: group[at].0, tag: group[at].2, mr: mrs[at] })
        .collect();
    let sizes = net.finish(net.recv(recv, &pieces));
    for (at, &(room, len, _)) in group.iter().enumerate() {
        assert_eq!(sizes[at], len as i32, "size {at} of a group of {n}");
        bufs[at].check(0..len, turn * 100 + at);
        bufs[at].untouched(len..room);
    }
    assert_eq!(sizes[n..], [-1; 8][n..], "sizes beyond the group");
    mrs.into_iter().for_each(|mr| net.dereg(recv, mr).unwrap());
}

fn send_group(net: &Net, send: Comm, n: usize, turn: usize) {
    let group = group(n, turn);
    let bufs: Vec<Buf> =
        group.iter().enumerate().map(|(at, &(_, len, _))| Buf::filled(len.max(1), turn * 100 + at)).collect();
    // The messages are sent in another order than the receives.
    let order: Vec<usize> = (0..n).map(|at| (n - 1 - at + turn) % n).collect();
    let mrs: Vec<_> = bufs.iter().map(|buf| net.reg_buf(send, buf)).collect();
    let requests: Vec<Request> = order
        .into_iter()
        .map(|at| {
            let (_, len, tag) = group[at];
            net.send(send, Piece { addr: bufs[at].addr(), len, tag, mr: mrs[at] })
        })
        .collect();
    net.finish_all(&requests);
    mrs.into_iter().for_each(|mr| net.dereg(send, mr).unwrap());
}

fn grouped_receives_match_by_tag(scene: Scene) {
    let net = Net::start(scene.version);
    assert_eq!(net.props(0).unwrap().max_recvs, 8);
    let (send, recv) = net.to_self();
    for turn in 0..3 {
        for n in 1..=8 {
            thread::scope(|scope| {
                scope.spawn(|| send_group(&net, send, n, turn * 8 + n));
                recv_group(&net, recv, n, turn * 8 + n);
            });
        }
    }
    net.close_send(send).unwrap();
    net.close_recv(recv).unwrap();
}

fn requests_are_tested_in_any_order(scene: Scene) {
    let net = Net::start(scene.version);
    let (send, recv) = net.to_self();
    let count = receives();
    for (turn, len) in [40, 5000, 40_000].into_iter().enumerate() {
        let (from, to) = (Buf::new(count * len), Buf::new(count * len));
        let (from_mr, to_mr) = (net.reg_buf(send, &from), net.reg_buf(recv, &to));
        let part = |buf: &Buf, at: usize, mr| Piece { addr: buf.addr() + at * len, len, tag: 0, mr };
        let received: Vec<_> = (0..count).map(|at| net.recv(recv, &[part(&to, at, to_mr)])).collect();
        let sent: Vec<_> = (0..count)
            .map(|at| {
                from.fill(at * len..(at + 1) * len, turn * count + at);
                net.send(send, part(&from, at, from_mr))
            })
            .collect();
        // Each is completed before the next; consecutive ones are far apart.
        for step in 0..count {
            let at = (step * 13 + 31) % count;
            net.finish(received[at]);
            to.check(at * len..(at + 1) * len, turn * count + at);
        }
        for step in 0..count {
            net.finish(sent[(step * 21 + 7) % count]);
        }
        // A completed request is invalid afterwards.
        assert!(net.try_test(sent[0]).is_err() && net.try_test(received[count - 1]).is_err());
        net.dereg(send, from_mr).unwrap();
        net.dereg(recv, to_mr).unwrap();
    }
    net.close_send(send).unwrap();
    net.close_recv(recv).unwrap();
}

fn an_optional_receive_can_be_tested(scene: Scene) {
    let net = Net::start(scene.version);
    let (send, recv) = net.to_self();
    let (from, to) = (Buf::new(8192), Buf::new(room(8192)));
    let (from_mr, to_mr) = (net.reg_buf(send, &from), net.reg_buf(recv, &to));
    for seed in 0..50 {
        from.fill(0..8192, seed);
        let piece = Piece { addr: to.addr(), len: to.len(), tag: 0, mr: to_mr };
        let request = until("irecv", || net.try_recv(recv, &[piece], 0x1).unwrap());
        // The hint must not complete a receive early: a caller that stopped testing then would never get the message.
        for _ in 0..100 {
            assert_eq!(net.try_test(request), Ok(None));
        }
        let sent = net.send(send, Piece { addr: from.addr(), len: 8192, tag: 0, mr: from_mr });
        assert_eq!(net.finish(request)[0], 8192);
        to.check(0..8192, seed);
        net.finish(sent);
    }
    net.close_send(send).unwrap();
    net.close_recv(recv).unwrap();
}

fn flushed(scene: &Scene) -> Vec<Option<Request>> {
    let net = Net::start(scene.version);
    let (send, recv) = net.to_self();
    let (from, to) = (Buf::filled(100_000, 4), Buf::new(100_000));
    let (from_mr, to_mr) = (net.reg_buf(send, &from), net.reg_buf(recv, &to));
    let piece = Piece { addr: to.addr(), len: 100_000, tag: 0, mr: to_mr };
    let request = net.recv(recv, &[piece]);
    let sent = net.send(send, Piece { addr: from.addr(), len: 100_000, tag: 0, mr: from_mr });
    net.finish_all(&[sent, request]);
    let flushes = vec![net.try_flush(recv, &[piece]).unwrap(), net.try_flush(recv, &[piece, piece]).unwrap()];
    for &flush in flushes.iter().flatten() {
        net.finish(flush);
    }
    to.check(0..100_000, 4);
    assert_eq!(net.try_flush(recv, &[Piece { len: 0, ..piece }]), Ok(None), "nothing to flush");
    net.close_send(send).unwrap();
    net.close_recv(recv).unwrap();
    flushes
}

fn a_flush_has_nothing_to_wait_for(scene: Scene) {
    assert_eq!(flushed(&scene), [None, None]);
}

fn a_flush_is_a_request(scene: Scene) {
    assert!(flushed(&scene).iter().all(Option::is_some), "a flush that waits for nothing");
}

/// Connects two processes in both directions; returns the sending comm first.
pub(crate) fn between(net: &Net, scene: &mut Scene) -> (Comm, Comm) {
    let (listen, handle) = net.listen();
    scene.say(&handle);
    let mut theirs = scene.hear_handle();
    let (mut send, mut recv) = (None, None);
    let pair = until("connections both ways", || {
        send = send.or_else(|| net.try_connect(&mut theirs).unwrap());
        recv = recv.or_else(|| net.try_accept(listen).unwrap());
        send.zip(recv)
    });
    net.close_listen(listen).unwrap();
    pair
}

/// A long message arrives although its connection, or another member's, has the maximum number of short messages
/// waiting for their receives.
fn a_message_arrives_although_all_short_ones_wait(scene: Scene) {
    const LONG: usize = 1 << 20;
    let net = Net::start(scene.version);
    let pairs: Vec<_> = (0..2).map(|_| net.to_self()).collect();
    let (crowd, into_crowd) = pairs[1];
    let from = Buf::filled(LONG, 7);
    for (round, &(send, recv)) in pairs.iter().enumerate() {
        let to = Buf::new(LONG);
        let (mr_from, mr_to) = (net.reg_buf(send, &from), net.reg_buf(recv, &to));
        let long = net.recv(recv, &[Piece { addr: to.addr(), len: LONG, tag: 1, mr: mr_to }]);
        let (short, mr_short) = (Buf::filled(64, 3), net.reg_buf(crowd, &from));
        let piece = Piece { addr: from.addr(), len: 64, tag: 2, mr: mr_short };
        let mut crowded = Vec::new();
        let mut refused = 0;
        while refused < 2000 {
            match net.try_send(crowd, piece, STALE).unwrap() {
                Some(request) => crowded.push(request),
                None => refused += 1,
            }
            assert_eq!(net.try_test(long), Ok(None), "a receive completed before its message was sent");
        }
        assert!(crowded.len() > 4, "round {round}: {} were sent without their receives", crowded.len());
        let sent = net.send(send, Piece { addr: from.addr(), len: LONG, tag: 1, mr: mr_from });
        net.finish_all(&[sent, long]);
        to.check(0..LONG, 7);
        let mr = net.reg_buf(into_crowd, &short);
        for &sent in &crowded {
            let received = net.recv(into_crowd, &[Piece { addr: short.addr(), len: 64, tag: 2, mr }]);
            net.finish_all(&[sent, received]);
        }
        short.check(0..64, 7);
    }
    for (send, recv) in pairs {
        net.close_send(send).unwrap();
        net.close_recv(recv).unwrap();
    }
}

fn two_processes_exchange_messages(mut scene: Scene) {
    let net = Net::start(scene.version).with_device_handles();
    let (send, recv) = between(&net, &mut scene);
    thread::scope(|scope| {
        scope.spawn(|| {
            send_all(&net, send, 5000);
            (1..=8).for_each(|n| send_group(&net, send, n, n));
        });
        scope.spawn(|| {
            recv_all(&net, recv, 5000, room);
            (1..=8).for_each(|n| recv_group(&net, recv, n, n));
        });
    });
    scene.meet();
    net.close_send(send).unwrap();
    net.close_recv(recv).unwrap();
    if let Some(finalized) = net.finalize() {
        finalized.unwrap();
    }
    scene.meet();
}

/// Sends many more messages than a receiver buffers without a receive, while the first one has no receive.
fn messages_pass_one_whose_receive_is_late(scene: Scene) {
    let net = Net::start(scene.version);
    let (send, recv) = net.to_self();
    let (late, late_to) = (Buf::filled(8, 3), Buf::new(8));
    let (early, early_to) = (Buf::filled(8, 4), Buf::new(8));
    let [mr_late, mr_early] = [&late, &early].map(|buf| net.reg_buf(send, buf));
    let [mr_late_to, mr_early_to] = [&late_to, &early_to].map(|buf| net.reg_buf(recv, buf));
    let first = Piece { addr: late.addr(), len: 8, tag: 5, mr: mr_late };
    let sent_first = net.try_send(send, first, STALE).unwrap();
    for _ in 0..300 {
        let piece = Piece { addr: early.addr(), len: 8, tag: 6, mr: mr_early };
        let before = net.try_send(send, piece, STALE).unwrap();
        let received = net.recv(recv, &[Piece { addr: early_to.addr(), len: 8, tag: 6, mr: mr_early_to }]);
        let sent = before.unwrap_or_else(|| net.send(send, piece));
        net.finish_all(&[sent, received]);
        early_to.check(0..8, 4);
    }
    let received = net.recv(recv, &[Piece { addr: late_to.addr(), len: 8, tag: 5, mr: mr_late_to }]);
    let sent = sent_first.unwrap_or_else(|| net.send(send, first));
    net.finish_all(&[sent, received]);
    late_to.check(0..8, 3);
}
