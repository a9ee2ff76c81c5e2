//! Connections are opened and closed on shared queue pairs: in every order, thousands of times, by many threads at
//! once. Afterwards all resources are back to their initial numbers.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use crate::contract::messages::{between, round};
use crate::net::{Buf, Comm, Net, Piece, until};
use crate::run::Scene;
use crate::sharing::flow::Stream;
use crate::sharing::{connect_many, is_full, queue_pairs, status, usage, wait_for_queue_pairs};

scenarios! {
    members_close_in_every_order,
    all_close_on_one_side_only,
    thousands_of_connections_open_and_close,
    eight_threads_connect_at_once,
    eight_threads_test_on_one_group,
}

/// All permutations of `count` indices.
fn orders(count: usize) -> Vec<Vec<usize>> {
    if count == 0 {
        return vec![Vec::new()];
    }
    let shorter = orders(count - 1);
    let inserted = |order: &Vec<usize>, at: usize| {
        let mut order = order.clone();
        order.insert(at, count - 1);
        order
    };
    shorter.iter().flat_map(|order| (0..count).map(move |at| inserted(order, at))).collect()
}

/// Messages of each member before the first close.
const BEFORE: usize = 3;
/// Messages of the remaining members after each close.
const BETWEEN: usize = 3;

/// One end of one round: members close in the given order, with outstanding messages; the remaining members continue.
fn close_in_order(net: &Net, comms: &[Comm], sends: bool, order: &[usize], first: bool) {
    let streams = comms.iter().enumerate().map(|(name, &comm)| Stream::new(net, comm, sends, name));
    let mut streams: Vec<Option<Stream<'_>>> = streams.map(Some).collect();
    let mut upto = BEFORE;
    for &next in order {
        // The end that closes first does so amid its messages; the other end closes when it gets the error.
        until("messages", || {
            for (at, stream) in streams.iter_mut().enumerate() {
                let Some(stream) = stream else { continue };
                let most = if first && at == next { usize::MAX } else { upto };
                let ended = stream.step(most).is_err();
                assert!(!ended || !first, "an error before any end has closed");
            }
            streams.iter().flatten().all(|stream| stream.done >= upto || stream.failed).then_some(())
        });
        if let Some(stream) = streams[next].take() {
            stream.drop_all();
        }
        upto += BETWEEN;
    }
}

/// One end closes amid messages, in every order of four. The other end continues with all members until each gets its error.
fn members_close_in_every_order(mut scene: Scene) {
    let net = Net::start(scene.version);
    let before = usage();
    for (turn, order) in orders(4).into_iter().enumerate() {
        for sender_first in [true, false] {
            let comms = connect_many(&net, &mut scene, 4);
            assert_eq!(queue_pairs(), 1);
            let sends = scene.role == 1;
            if sends == sender_first {
                close_in_order(&net, &comms, sends, &order, true);
            } else {
                // In another order of its own, with any outstanding messages.
                let streams =
                    comms.iter().enumerate().map(|(name, &comm)| Stream::new(&net, comm, sends, name));
                let mut streams: Vec<_> = streams.collect();
                until("an error after every close", || {
                    for stream in &mut streams {
                        let _ = stream.step(usize::MAX);
                    }
                    streams.iter().all(|stream| stream.failed).then_some(())
                });
                let shift = turn % streams.len();
                streams.rotate_left(shift);
                streams.into_iter().for_each(Stream::drop_all);
            }
            wait_for_queue_pairs(&net, 0);
            scene.meet();
        }
    }
    assert_eq!(usage(), before, "as at the start");
    assert_eq!(status().process_counters().messages_pending, 0);
}

/// One end has closed all its members, the other none; new connections work.
fn all_close_on_one_side_only(mut scene: Scene) {
    let net = Net::start(scene.version);
    for closer in [0, 1, 0, 1] {
        let old = connect_many(&net, &mut scene, 4);
        let sends = scene.role == 1;
        let close = |comm| if sends { net.close_send(comm) } else { net.close_recv(comm) }.expect("close");
        if scene.role == closer {
            old.iter().for_each(|&comm| close(comm));
        }
        scene.meet();
        let new = connect_many(&net, &mut scene, 4);
        let streams = new.iter().enumerate().map(|(name, &comm)| Stream::new(&net, comm, sends, name));
        let mut streams: Vec<_> = streams.collect();
        until("messages", || {
            streams.iter_mut().for_each(|stream| stream.step(10).expect("no error"));
            streams.iter().all(|stream| stream.done == 10).then_some(())
        });
        if scene.role != closer {
            old.iter().for_each(|&comm| close(comm));
        }
        scene.meet();
        streams.into_iter().for_each(Stream::close);
        wait_for_queue_pairs(&net, 0);
        scene.meet();
    }
}

/// Memory of this process in KiB.
fn resident() -> i64 {
    let text = std::fs::read_to_string("/proc/self/status").expect("a status");
    let line = text.lines().find(|line| line.starts_with("VmRSS:")).expect("a size");
    line.split_whitespace().nth(1).and_then(|word| word.parse().ok()).expect("a number")
}

/// Bytes that this process has allocated and not freed.
fn heap() -> usize {
    // SAFETY: takes no argument, and fills in a struct of numbers.
    let malloc = unsafe { libc::mallinfo2() };
    malloc.uordblks + malloc.hblkhd
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("descriptors").count()
}

/// Connects, sends a message in each direction and closes, beside connections that stay open.
fn thousands_of_connections_open_and_close(mut scene: Scene) {
    let asked = std::env::var("TEST_CYCLES").ok().map(|text| text.parse().expect("a number"));
    let cycles = asked.unwrap_or(if is_full() { 100_000 } else { 5_000 });
    let net = Net::start(scene.version);
    let stay: Vec<_> = (0..3).map(|_| between(&net, &mut scene)).collect();
    let (listen, handle) = net.listen();
    scene.say(&handle);
    let theirs = scene.hear_handle();
    let (from, to) = (Buf::filled(9000, 5), Buf::new(9000));
    let exchange = |(send, recv): (Comm, Comm), at: usize| {
        let len = [8, 9000, 0, 4000][at % 4];
        let (from_mr, to_mr) = (net.reg_buf(send, &from), net.reg_buf(recv, &to));
        let received = net.recv(recv, &[Piece { addr: to.addr(), len, tag: 1, mr: to_mr }]);
        let sent = net.send(send, Piece { addr: from.addr(), len, tag: 1, mr: from_mr });
        assert_eq!(net.finish_all(&[sent, received])[1][0], len as i32);
        net.dereg(send, from_mr).expect("deregMr");
        net.dereg(recv, to_mr).expect("deregMr");
    };
    let cycle = |at: usize| {
        let mut handle = theirs;
        let (mut send, mut recv) = (None, None);
        let pair = until("a connection each way", || {
            send = send.or_else(|| net.try_connect(&mut handle).expect("connect"));
            recv = recv.or_else(|| net.try_accept(listen).expect("accept"));
            send.zip(recv)
        });
        exchange(pair, at);
        if at.is_multiple_of(2) {
            net.close_send(pair.0).expect("close");
            net.close_recv(pair.1).expect("close");
        } else {
            net.close_recv(pair.1).expect("close");
            net.close_send(pair.0).expect("close");
        }
    };
    (0..500).for_each(cycle);
    scene.meet();
    let before = (usage(), descriptors());
    let began = Instant::now();
    // The minimum of a phase, so that objects that are just being closed do not count.
    let mut least = [usize::MAX; 2];
    let mut settled = 0;
    for at in 0..cycles {
        if at == cycles / 10 {
            settled = resident();
        }
        cycle(at);
        if let part @ (1 | 9) = at * 10 / cycles {
            let least = &mut least[usize::from(part == 9)];
            *least = heap().min(*least);
        }
        if at.is_multiple_of(50) {
            exchange(stay[at / 50 % 3], at);
        }
    }
    scene.meet();
    let took = began.elapsed();
    // The last connections may linger briefly.
    until("the initial resource usage", || {
        assert_eq!(net.try_accept(listen), Ok(None));
        (usage().regions <= before.0.regions).then_some(())
    });
    // The bound does not depend on the number of cycles: leaks would add up. Tables of closing and retired objects
    // double occasionally, and the rings of the groups' links become fully used.
    let grown = (least[1] as i64 - least[0] as i64, resident() - settled);
    println!("figure: {cycles} cycles in {took:?}, {grown:?} bytes allocated and KiB resident more");
    assert!(grown.0 < 64 << 10 && grown.1 < 2048, "{grown:?} bytes and KiB more after {cycles} cycles");
    let after = usage();
    assert_eq!(
        (after.queue_pairs, after.completion_queues),
        (before.0.queue_pairs, before.0.completion_queues)
    );
    assert_eq!(descriptors(), before.1);
    stay.iter().enumerate().for_each(|(at, &pair)| exchange(pair, at));
    scene.meet();
    for (send, recv) in stay {
        net.close_send(send).expect("close");
        net.close_recv(recv).expect("close");
    }
    net.close_listen(listen).expect("closeListen");
    wait_for_queue_pairs(&net, 0);
    let counters = status().process_counters();
    assert_eq!(counters.comms_opened, counters.comms_closed);
    assert_eq!((counters.messages_pending, counters.requests_failed, usage().regions), (0, 0, 0));
    scene.meet();
}

/// Eight threads connect, use and close at once, each its own connections, all with one key.
fn eight_threads_connect_at_once(scene: Scene) {
    let net = Net::start(scene.version);
    let stay = net.to_self();
    for _ in 0..10 {
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let pairs: Vec<_> = (0..4).map(|_| net.to_self()).collect();
                    pairs.iter().for_each(|&pair| round(&net, pair, 70_000));
                    for (send, recv) in pairs {
                        net.close_send(send).expect("close");
                        net.close_recv(recv).expect("close");
                    }
                });
            }
        });
        round(&net, stay, 100);
    }
    net.close_send(stay.0).expect("close");
    net.close_recv(stay.1).expect("close");
    wait_for_queue_pairs(&net, 0);
}

/// Eight threads each drive a member of the same two queue pairs: every message arrives once, and is counted once.
fn eight_threads_test_on_one_group(scene: Scene) {
    let messages = if is_full() { 10_000_000 } else { 100_000 };
    let net = Net::start(scene.version);
    let pairs: Vec<_> = (0..8).map(|_| net.to_self()).collect();
    assert_eq!(queue_pairs(), 2);
    let done = [const { AtomicUsize::new(0) }; 8];
    let failed = AtomicBool::new(false);
    let began = Instant::now();
    thread::scope(|scope| {
        for (name, &(send, recv)) in pairs.iter().enumerate() {
            let (net, done, failed) = (&net, &done, &failed);
            scope.spawn(move || {
                const LENGTHS: [usize; 5] = [8, 100, 0, 5000, 64];
                let mut sends = Stream::of(net, send, true, name, &LENGTHS);
                let mut receives = Stream::of(net, recv, false, name, &LENGTHS);
                let upto = messages / 8;
                while receives.done < upto || sends.done < upto {
                    if sends.step(upto).is_err()
                        || receives.step(upto).is_err()
                        || began.elapsed() > 4 * crate::net::LIMIT && !is_full()
                    {
                        return failed.store(true, Ordering::Relaxed);
                    }
                }
                done[name].store(receives.done, Ordering::Relaxed);
                sends.close();
                receives.close();
            });
        }
    });
    println!("figure: {messages} messages by 8 threads in {:?}", began.elapsed());
    assert!(!failed.into_inner(), "{done:?}");
    assert_eq!(done.iter().map(|done| done.load(Ordering::Relaxed)).sum::<usize>(), messages);
    wait_for_queue_pairs(&net, 0);
    let counters = status().process_counters();
    let messages = messages as u64;
    assert_eq!((counters.messages_sent, counters.messages_received), (messages, messages));
    assert_eq!((counters.messages_pending, counters.messages_failed, counters.requests_failed), (0, 0, 0));
    assert_eq!(counters.completions_dropped, 0);
}
