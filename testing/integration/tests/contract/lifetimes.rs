//! Lifetimes of registrations, of comms with outstanding requests, and of communicators.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use crate::contract::messages::{between, round};
use crate::net::{Buf, Called, Comm, Net, Piece, Request, until};
use crate::raw;
use crate::run::Scene;

scenarios! {
    a_range_registers_repeatedly,
    comms_close_in_any_order,
    comms_close_with_work_in_flight,
    registration_beside_traffic,
    communicators_end_and_start_again,
    two_processes_close_at_any_time,
    a_forked_child_ends,
    a_registration_may_be_larger_than_4_gib,
    messages_at_the_borders_of_31_bits,
    messages_at_the_borders_of_32_bits,
    messages_beyond_4_gib,
}

fn a_range_registers_repeatedly(scene: Scene) {
    let net = Net::start(scene.version);
    let (send, recv) = net.to_self();
    let memory = Buf::filled(1 << 16, 8);
    let to = Buf::new(1 << 16);
    // The same range, and ranges inside it, many times at once.
    let mrs: Vec<_> = (0..300)
        .map(|at| net.reg(send, memory.addr() + at % 7, memory.len() - at % 7 - at).unwrap())
        .collect();
    let to_mrs: Vec<_> = (0..300).map(|_| net.reg_buf(recv, &to)).collect();
    // Each registration stays valid after others of the same range are deregistered.
    for at in [0, 150, 299] {
        let piece = Piece { addr: to.addr(), len: 5000, tag: 0, mr: to_mrs[at] };
        let request = net.recv(recv, &[piece]);
        let sent = net.send(send, Piece { addr: memory.addr() + 7, len: 5000, tag: 0, mr: mrs[at] });
        net.finish_all(&[request, sent]);
        net.dereg(send, mrs[at]).unwrap();
        net.dereg(recv, to_mrs[at]).unwrap();
        assert!(net.dereg(send, mrs[at]).is_err(), "deregistered twice");
        let gone = Piece { addr: memory.addr() + 7, len: 50, tag: 0, mr: mrs[at] };
        assert!(net.try_send(send, gone, 0).is_err(), "a send from memory that is not registered");
    }
    for at in (0..300).filter(|at| ![0, 150, 299].contains(at)) {
        net.dereg(send, mrs[at]).unwrap();
        net.dereg(recv, to_mrs[at]).unwrap();
    }
    // Memory out of a registration's bounds is refused.
    let mr = net.reg(send, memory.addr(), 100).unwrap();
    let beyond = Piece { addr: memory.addr() + 60, len: 41, tag: 0, mr };
    assert!(net.try_send(send, beyond, 0).is_err(), "a send beyond its registration");
    net.close_send(send).unwrap();
    net.close_recv(recv).unwrap();
}

fn comms_close_in_any_order(scene: Scene) {
    let net = Net::start(scene.version);
    let pairs: Vec<_> = (0..4).map(|_| net.to_self()).collect();
    let mut ends: Vec<(usize, bool)> = (0..4).flat_map(|at| [(at, false), (at, true)]).collect();
    // Closes eight ends one after another, in one of many orders; pairs with both ends open continue.
    for step in 0..8 {
        let (at, recv) = ends.remove((step * 5 + 3) % ends.len());
        let (send, receive) = pairs[at];
        if recv {
            net.close_recv(receive).unwrap()
        } else {
            net.close_send(send).unwrap()
        }
        for (at, &pair) in pairs.iter().enumerate() {
            if ends.iter().filter(|end| end.0 == at).count() == 2 {
                round(&net, pair, 10_000);
            }
        }
    }
    for (send, recv) in pairs {
        assert!(net.close_send(send).is_err() && net.close_recv(recv).is_err(), "closed twice");
    }
}

/// Posts up to `count` messages; stops at the first error.
fn post(mut start: impl FnMut() -> Called<Option<Request>>, count: usize) -> Vec<Request> {
    let mut requests = Vec::new();
    for _ in 0..count {
        if let Ok(Some(request)) = start() {
            requests.push(request);
        }
    }
    requests
}

/// Waits until every request has ended, successfully or not. Returns the number of failures.
#[track_caller]
fn all_end(net: &Net, requests: Vec<Request>) -> usize {
    let ended = requests.into_iter().map(|request| {
        until("an end of each request", || match net.try_test(request) {
            Ok(None) => None,
            Ok(Some(_)) => Some(false),
            Err(_) => Some(true),
        })
    });
    ended.filter(|failed| *failed).count()
}

fn comms_close_with_work_in_flight(scene: Scene) {
    let net = Net::start(scene.version);
    for len in [0, 100, 5000, 1 << 20] {
        let (from, to) = (Buf::filled(len.max(1), 3), Buf::new(len.max(1)));
        for (sends, recvs, sender_first) in
            [(5, 0, true), (5, 0, false), (0, 5, true), (0, 5, false), (20, 3, true), (3, 20, false)]
        {
            let (send, recv) = net.to_self();
            let (from_mr, to_mr) = (net.reg_buf(send, &from), net.reg_buf(recv, &to));
            let from_piece = Piece { addr: from.addr(), len, tag: 0, mr: from_mr };
            let to_piece = Piece { addr: to.addr(), len, tag: 0, mr: to_mr };
            let sent = post(|| net.try_send(send, from_piece, 0), sends);
            let received = post(|| net.try_recv(recv, &[to_piece], 0), recvs);
            if sender_first {
                net.close_send(send).unwrap();
                // Receives without a sender fail; messages sent before the close may arrive.
                let late = post(|| net.try_recv(recv, &[to_piece], 0), 3);
                all_end(&net, received);
                all_end(&net, late);
                assert!(sent.iter().all(|&request| net.try_test(request).is_err()), "closed, and tested");
                net.close_recv(recv).unwrap();
            } else {
                net.close_recv(recv).unwrap();
                let late = post(|| net.try_send(send, from_piece, 0), 3);
                all_end(&net, sent);
                all_end(&net, late);
                assert!(received.iter().all(|&request| net.try_test(request).is_err()), "closed, and tested");
                net.close_send(send).unwrap();
            }
        }
    }
    let pair = net.to_self();
    round(&net, pair, 1 << 20);
}

fn registration_beside_traffic(scene: Scene) {
    let net = Net::start(scene.version);
    let (send, recv) = net.to_self();
    let (from, to) = (Buf::new(1 << 17), Buf::new(1 << 17));
    let (from_mr, to_mr) = (net.reg_buf(send, &from), net.reg_buf(recv, &to));
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        // The progress thread.
        let progress = scope.spawn(|| {
            let mut rounds = 0;
            while !stop.load(Ordering::Relaxed) || rounds < 100 {
                let len = [10, 5000, 1 << 17][rounds % 3];
                from.fill(0..len, rounds);
                let piece = Piece { addr: to.addr(), len, tag: 0, mr: to_mr };
                let request = net.recv(recv, &[piece]);
                let sent = net.send(send, Piece { addr: from.addr(), len, tag: 0, mr: from_mr });
                net.finish_all(&[request, sent]);
                to.check(0..len, rounds);
                rounds += 1;
            }
            rounds
        });
        // The service thread.
        let other = Buf::new(1 << 16);
        for turn in 0..200 {
            let mrs = [net.reg_buf(send, &other), net.reg_buf(recv, &other)];
            net.dereg(send, mrs[0]).unwrap();
            net.dereg(recv, mrs[1]).unwrap();
            if turn % 10 == 0 {
                let pair = net.to_self();
                net.close_recv(pair.1).unwrap();
                net.close_send(pair.0).unwrap();
            }
        }
        stop.store(true, Ordering::Relaxed);
        assert!(progress.join().unwrap() >= 100);
    });
}

fn communicators_end_and_start_again(scene: Scene) {
    let net = Net::start(scene.version);
    let path = std::env::var_os("TRUNKLINE_TEST_PLUGIN").unwrap();
    let library = crate::net::load(path.as_ref());
    let again = || Net::init(raw::find(&library, scene.version).unwrap()).unwrap();
    let others: Vec<Net> = (0..4).map(|_| again()).collect();
    let pair = net.to_self();
    for other in &others {
        // Comms of one communicator work while another communicator ends.
        let theirs = other.to_self();
        round(other, theirs, 3000);
        if scene.version >= 11 {
            assert_ne!(other.ctx(), net.ctx(), "two communicators share a context");
            other.finalize().unwrap().unwrap();
        }
        round(&net, pair, 3000);
        other.close_send(theirs.0).unwrap();
        other.close_recv(theirs.1).unwrap();
    }
    net.close_send(pair.0).unwrap();
    net.close_recv(pair.1).unwrap();
    if let Some(finalized) = net.finalize() {
        finalized.unwrap();
    }
    // All communicators have ended; the plugin starts again.
    let last = again();
    let pair = last.to_self();
    round(&last, pair, 3000);
}

/// One process closes in one of several states, with outstanding requests.
fn leave(net: &Net, (send, recv): (Comm, Comm), turn: usize) {
    let memory = Buf::filled(1 << 18, 1);
    let (send_mr, recv_mr) = (net.reg_buf(send, &memory), net.reg_buf(recv, &memory));
    let len = [8, 3000, 1 << 18][turn % 3];
    let sending = Piece { addr: memory.addr(), len, tag: 0, mr: send_mr };
    let receiving = Piece { addr: memory.addr(), len: 1 << 18, tag: 0, mr: recv_mr };
    let work = turn / 3;
    let requests = post(|| net.try_send(send, sending, 0), work * 3);
    post(|| net.try_recv(recv, &[receiving], 0), work * 2);
    if let (1, Some(&first)) = (turn % 2, requests.first()) {
        all_end(net, vec![first]);
    }
    if turn.is_multiple_of(2) {
        net.close_send(send).unwrap();
        net.close_recv(recv).unwrap();
    } else {
        net.close_recv(recv).unwrap();
        net.close_send(send).unwrap();
    }
}

/// The other process keeps posting until both calls fail.
fn stay(net: &Net, (send, recv): (Comm, Comm), len: usize) {
    let (from, to) = (Buf::filled(1 << 18, 1), Buf::new(1 << 18));
    let (send_mr, recv_mr) = (net.reg_buf(send, &from), net.reg_buf(recv, &to));
    let sending = Piece { addr: from.addr(), len, tag: 0, mr: send_mr };
    let receiving = Piece { addr: to.addr(), len: 1 << 18, tag: 0, mr: recv_mr };
    let mut requests = Vec::new();
    let (mut sends_fail, mut recvs_fail) = (false, false);
    until("the error after the peer closed", || {
        let looks = [net.try_send(send, sending, 0), net.try_recv(recv, &[receiving], 0)];
        sends_fail |= looks[0].is_err();
        recvs_fail |= looks[1].is_err();
        requests.extend(looks.into_iter().filter_map(Result::ok).flatten());
        requests.retain(|&request| matches!(net.try_test(request), Ok(None)));
        (sends_fail && recvs_fail).then_some(())
    });
    all_end(net, requests);
    net.close_send(send).unwrap();
    net.close_recv(recv).unwrap();
}

fn two_processes_close_at_any_time(mut scene: Scene) {
    let net = Net::start(scene.version);
    let (listen, _) = net.listen();
    for turn in 0..12 {
        let pair = between(&net, &mut scene);
        scene.meet();
        if (turn + scene.role).is_multiple_of(2) {
            leave(&net, pair, turn);
            // The service thread still runs and delivers the messages that were sent before the close.
            until("the peer's end", || {
                assert_eq!(net.try_accept(listen), Ok(None));
                scene.is_spoken_to().then_some(())
            });
        } else {
            stay(&net, pair, [8, 9000][turn % 2]);
        }
        scene.meet();
    }
    let pair = between(&net, &mut scene);
    scene.meet();
    net.close_send(pair.0).unwrap();
    net.close_recv(pair.1).unwrap();
}

/// Sends eight bytes and 200,000 bytes in each direction.
fn both_ways(net: &Net, (send, recv): (Comm, Comm)) {
    for len in [8, 200_000] {
        let (from, to) = (Buf::filled(len, 3), Buf::new(len));
        let (from_mr, to_mr) = (net.reg_buf(send, &from), net.reg_buf(recv, &to));
        let received = net.recv(recv, &[Piece { addr: to.addr(), len, tag: 0, mr: to_mr }]);
        let sent = net.send(send, Piece { addr: from.addr(), len, tag: 0, mr: from_mr });
        net.finish_all(&[received, sent]);
        to.check(0..len, 3);
        net.dereg(send, from_mr).unwrap();
        net.dereg(recv, to_mr).unwrap();
    }
}

/// A process that uses the plugin may fork: exit handlers of the child must not end the parent's connections.
fn a_forked_child_ends(mut scene: Scene) {
    let net = Net::start(scene.version);
    let pair = between(&net, &mut scene);
    both_ways(&net, pair);
    scene.meet();
    // SAFETY: the child only calls `exit`, which runs the exit handlers of the libraries.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: as above.
        unsafe { libc::exit(0) };
    }
    let mut status = 0;
    // SAFETY: waits for the child just made.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    scene.meet();
    both_ways(&net, pair);
    scene.meet();
    net.close_send(pair.0).unwrap();
    net.close_recv(pair.1).unwrap();
}

/// Reserved address space whose pages are allocated when they are touched.
struct Reserved(usize, usize);

impl Reserved {
    fn new(len: usize) -> Self {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let mapped =
            unsafe { mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, flags) };
        Self(mapped.expect("memory").expose_provenance(), len)
    }

    fn byte(&self, at: usize) -> *mut u8 {
        assert!(at < self.1);
        std::ptr::with_exposed_provenance_mut(self.0 + at)
    }

    fn set(&self, at: usize, value: u8) {
        // SAFETY: inside the mapping.
        unsafe { self.byte(at).write_volatile(value) };
    }

    fn get(&self, at: usize) -> u8 {
        // SAFETY: inside the mapping.
        unsafe { self.byte(at).read_volatile() }
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        // SAFETY: the mapping that `new` made, which nothing uses any more.
        unsafe { munmap(self.byte(0).cast(), self.1) }.expect("munmap");
    }
}

fn a_registration_may_be_larger_than_4_gib(scene: Scene) {
    const LEN: usize = 5 << 30;
    let (from, to) = (Reserved::new(LEN), Reserved::new(LEN));
    let net = Net::start(scene.version);
    let (send, recv) = net.to_self();
    let from_mr = net.reg(send, from.0, LEN).unwrap();
    let to_mr = net.reg(recv, to.0, LEN).unwrap();
    let far = (4 << 30) + 12_345;
    for (len, at) in [(10, far), (9000, far + 5), (1 << 20, LEN - (1 << 20))] {
        from.set(at, 1);
        from.set(at + len - 1, 2);
        let piece = Piece { addr: to.0 + at, len, tag: 0, mr: to_mr };
        let request = net.recv(recv, &[piece]);
        let sent = net.send(send, Piece { addr: from.0 + at, len, tag: 0, mr: from_mr });
        net.finish_all(&[request, sent]);
        assert_eq!((to.get(at), to.get(at + len - 1)), (1, 2));
        // If the length were cut to 32 bits, the bytes would be here.
        assert_eq!(to.get(at - (4 << 30)), 0);
        from.set(at, 0);
        from.set(at + len - 1, 0);
    }
    net.dereg(send, from_mr).unwrap();
    net.dereg(recv, to_mr).unwrap();
}

/// Whether this machine has memory for messages of `gib` GiB.
fn has_room(name: &str, gib: usize) -> bool {
    let available = std::fs::read_to_string("/proc/meminfo").unwrap();
    let available = available.lines().find_map(|line| line.strip_prefix("MemAvailable:")).unwrap();
    let available: usize = available.trim().trim_end_matches(" kB").parse().unwrap();
    let room = available >= gib << 20;
    if !room {
        trunkline_integration::skip_test(name, "", &format!("less than {gib} GiB of memory are free"));
    }
    room
}

/// Bytes after a message, which must stay unwritten.
const GUARD: usize = 64;

/// Sends one message of `len` bytes, marked at a thousand offsets and around the borders of 31 and 32 bits.
fn send_marked(net: &Net, (send, recv): (Comm, Comm), len: usize) {
    let (from, to) = (Reserved::new(len + GUARD), Reserved::new(len + GUARD));
    let from_mr = net.reg(send, from.0, len).unwrap();
    let to_mr = net.reg(recv, to.0, len + GUARD).unwrap();
    let borders = [1 << 31, 1 << 32].into_iter().flat_map(|border: usize| border - 2..border + 2);
    let marks: Vec<usize> =
        (0..1000).map(|at| at * (len / 1000) + at % 3).chain(borders).chain([len - 1]).collect();
    let marks: Vec<usize> = marks.into_iter().filter(|&mark| mark < len).collect();
    marks.iter().for_each(|&mark| from.set(mark, mark as u8 | 1));
    let request = net.recv(recv, &[Piece { addr: to.0, len: len + GUARD, tag: 0, mr: to_mr }]);
    let sent = net.send(send, Piece { addr: from.0, len, tag: 0, mr: from_mr });
    let sizes = net.finish_all(&[request, sent]);
    // Some versions report sizes in 31 bits.
    assert_eq!(sizes[0][0], i32::try_from(len).unwrap_or(i32::MAX), "the size of {len}");
    for &mark in &marks {
        assert_eq!(to.get(mark), mark as u8 | 1, "byte {mark} of {len}");
    }
    assert!((len..len + GUARD).all(|at| to.get(at) == 0), "bytes behind {len}");
    net.dereg(send, from_mr).unwrap();
    net.dereg(recv, to_mr).unwrap();
}

fn messages_at_the_borders_of_31_bits(scene: Scene) {
    if !has_room("messages_at_the_borders_of_31_bits", 4) {
        return;
    }
    let net = Net::start(scene.version);
    let comms = net.to_self();
    // Before version 9, lengths are signed 32-bit integers.
    let lengths = [(1 << 31) - 1, 1 << 31, (1 << 31) + 1];
    let lengths = if scene.version < 9 { &[(1 << 31) - 1 - GUARD][..] } else { &lengths };
    lengths.iter().for_each(|&len| send_marked(&net, comms, len));
}

fn messages_at_the_borders_of_32_bits(scene: Scene) {
    if !has_room("messages_at_the_borders_of_32_bits", 7) {
        return;
    }
    let net = Net::start(scene.version);
    let comms = net.to_self();
    for len in [(1 << 31) - 1, 1 << 31, (1 << 31) + 1, (1 << 32) - 1, 1 << 32, (1 << 32) + 1] {
        send_marked(&net, comms, len);
    }
}

fn messages_beyond_4_gib(scene: Scene) {
    if !has_room("messages_beyond_4_gib", 7) {
        return;
    }
    let net = Net::start(scene.version);
    let comms = net.to_self();
    for len in [(2 << 30) + 77, (4 << 30) + 99] {
        send_marked(&net, comms, len);
    }
}
