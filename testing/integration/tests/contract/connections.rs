//! Listen, connect and accept.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crate::contract::messages::round;
use crate::net::{Buf, Comm, Handle, Net, Piece, until};
use crate::run::Scene;

scenarios! {
    any_order_of_connect_and_accept,
    connecting_under_load_never_blocks,
    one_thread_connects_to_itself,
    one_listener_accepts_many,
    listeners_close_at_any_time,
}

/// A connection that is being set up, with both ends in this process.
struct Halves {
    listen: Comm,
    handle: Handle,
    send: Option<Comm>,
    recv: Option<Comm>,
}

impl Halves {
    fn new(net: &Net) -> Self {
        let (listen, handle) = net.listen();
        Self { listen, handle, send: None, recv: None }
    }

    fn connect(&mut self, net: &Net) {
        if self.send.is_none() {
            self.send = net.try_connect(&mut self.handle).unwrap();
        }
    }

    fn accept(&mut self, net: &Net) {
        if self.recv.is_none() {
            self.recv = net.try_accept(self.listen).unwrap();
        }
    }

    fn done(&self) -> Option<(Comm, Comm)> {
        self.send.zip(self.recv)
    }
}

fn close(net: &Net, (send, recv): (Comm, Comm)) {
    net.close_send(send).unwrap();
    net.close_recv(recv).unwrap();
}

fn any_order_of_connect_and_accept(scene: Scene) {
    let net = Net::start(scene.version).with_device_handles();
    // No peer connects yet: accept must return no comm, repeatedly.
    let mut first = Halves::new(&net);
    for _ in 0..3 {
        first.accept(&net);
        assert_eq!(first.recv, None);
    }
    let pair = until("accept before connect", || {
        first.accept(&net);
        first.connect(&net);
        first.done()
    });
    round(&net, pair, 100);
    // No call accepts yet: connect must return no comm, repeatedly.
    let mut second = Halves::new(&net);
    for _ in 0..50 {
        second.connect(&net);
    }
    assert_eq!(second.send, None, "connect returned a comm before any accept");
    let other = until("connect before accept", || {
        second.connect(&net);
        second.accept(&net);
        second.done()
    });
    round(&net, other, 5000);
    // Many connections at once, each advanced as far as possible, in a changing order.
    let mut many: Vec<Halves> = (0..24).map(|_| Halves::new(&net)).collect();
    let mut step = 0;
    until("many connections", || {
        step += 1;
        for at in 0..many.len() {
            let at = (at * 7 + step) % many.len();
            if (at + step).is_multiple_of(3) { many[at].accept(&net) } else { many[at].connect(&net) }
        }
        many.iter().all(|halves| halves.done().is_some()).then_some(())
    });
    for halves in &many {
        net.close_listen(halves.listen).unwrap();
    }
    for halves in many.iter().rev() {
        round(&net, halves.done().unwrap(), 3000);
    }
    many.iter().for_each(|halves| close(&net, halves.done().unwrap()));
    for (halves, pair) in [(&first, pair), (&second, other)] {
        net.close_listen(halves.listen).unwrap();
        close(&net, pair);
    }
}

fn connecting_under_load_never_blocks(scene: Scene) {
    let net = Net::start(scene.version);
    let busy = net.to_self();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let worker = scope.spawn(|| {
            let mut rounds = 0;
            while !stop.load(Ordering::Relaxed) {
                round(&net, busy, 1 << 20);
                rounds += 1;
            }
            rounds
        });
        // The driver times each call.
        let pairs: Vec<_> = (0..30).map(|_| net.to_self()).collect();
        for pair in pairs {
            round(&net, pair, 64);
            close(&net, pair);
        }
        stop.store(true, Ordering::Relaxed);
        assert!(worker.join().unwrap() > 0, "there was no load");
    });
    close(&net, busy);
}

fn one_thread_connects_to_itself(scene: Scene) {
    // NCCL's probe: no device handle, memory on both ends, and all comms closed at once.
    let net = Net::start(scene.version);
    for _ in 0..3 {
        let (listen, mut handle) = net.listen();
        let (mut send, mut recv) = (None, None);
        until("the probe", || {
            send = send.or_else(|| net.try_connect(&mut handle).unwrap());
            recv = recv.or_else(|| net.try_accept(listen).unwrap());
            send.zip(recv)
        });
        let (send, recv) = (send.unwrap(), recv.unwrap());
        let memory = Buf::new(4096);
        let mrs = [net.reg_buf(send, &memory), net.reg_buf(recv, &memory)];
        net.dereg(send, mrs[0]).unwrap();
        net.dereg(recv, mrs[1]).unwrap();
        close(&net, (send, recv));
        net.close_listen(listen).unwrap();
    }
}

fn one_listener_accepts_many(scene: Scene) {
    let net = Net::start(scene.version);
    let (listen, handle) = net.listen();
    let mut handles = [handle; 6];
    let mut sends = [None; 6];
    let mut recvs = Vec::new();
    until("six connections to one listener", || {
        for (handle, send) in handles.iter_mut().zip(&mut sends) {
            *send = send.or_else(|| net.try_connect(handle).unwrap());
        }
        recvs.extend(net.try_accept(listen).unwrap());
        (recvs.len() == 6 && sends.iter().all(Option::is_some)).then_some(())
    });
    assert_eq!(net.try_accept(listen), Ok(None), "a seventh connection");
    net.close_listen(listen).unwrap();
    // The messages show which comms are connected: each sender sends a number of bytes that equals its index.
    let memory = Buf::new(64);
    let requests: Vec<_> = recvs
        .iter()
        .map(|&recv| {
            let mr = net.reg_buf(recv, &memory);
            net.recv(recv, &[Piece { addr: memory.addr(), len: 64, tag: 3, mr }])
        })
        .collect();
    let sent: Vec<_> = sends
        .iter()
        .enumerate()
        .map(|(number, send)| {
            let send = send.unwrap();
            let mr = net.reg_buf(send, &memory);
            net.send(send, Piece { addr: memory.addr(), len: number, tag: 3, mr })
        })
        .collect();
    net.finish_all(&sent);
    let mut numbers: Vec<i32> = net.finish_all(&requests).iter().map(|sizes| sizes[0]).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, [0, 1, 2, 3, 4, 5]);
    for send in sends.into_iter().flatten() {
        net.close_send(send).unwrap();
    }
    recvs.into_iter().for_each(|recv| net.close_recv(recv).unwrap());
}

fn listeners_close_at_any_time(scene: Scene) {
    let net = Net::start(scene.version);
    // Listens without a connection.
    let (listen, stale) = net.listen();
    net.close_listen(listen).unwrap();
    assert!(net.try_accept(listen).is_err(), "a closed listener accepts");
    assert!(net.close_listen(listen).is_err(), "a closed listener closes");
    // A stale handle must be refused soon.
    let mut handle = stale;
    let error = until("a refusal", || net.try_connect(&mut handle).err());
    assert_eq!(error, trunkline_sys::nccl_net::ResultCode::REMOTE_ERROR);
    // Requested but not accepted: closing the listener refuses it.
    for asked in 0..40 {
        let (listen, mut handle) = net.listen();
        let mut begun = None;
        for _ in 0..asked {
            begun = begun.or_else(|| net.try_connect(&mut handle).unwrap());
        }
        assert_eq!(begun, None);
        net.close_listen(listen).unwrap();
        let _refusal = until("a refusal", || net.try_connect(&mut handle).err());
    }
    // Half accepted: the stage that the listener holds is closed with it.
    let (listen, mut handle) = net.listen();
    until("an attempt", || {
        assert_eq!(net.try_connect(&mut handle), Ok(None));
        assert_eq!(net.try_accept(listen), Ok(None));
        Some(())
    });
    net.close_listen(listen).unwrap();
    let outcome = until("an end", || match net.try_connect(&mut handle) {
        Ok(None) => None,
        ended => Some(ended),
    });
    if let Ok(Some(send)) = outcome {
        // It was accepted just before the close; the sender gets the error at its next send.
        net.close_send(send).unwrap();
    }
    // New connections still work.
    let pair = net.to_self();
    round(&net, pair, 1000);
    close(&net, pair);
}
