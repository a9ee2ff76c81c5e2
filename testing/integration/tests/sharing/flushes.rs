//! Flushes among receives: several of both are outstanding on each of several connections that share a queue pair and
//! its completion queue, over a NIC whose writes stay invisible until a flush.

use crate::net::{Buf, Comm, Mr, Net, Piece, Request, until};
use crate::run::Scene;

scenarios! {
    flushes_are_among_receives,
}

const MEMBERS: usize = 4;
/// Outstanding messages of a connection.
const SLOTS: usize = 8;
const MESSAGES: usize = 300;
/// Eager, several eager, with a record, several slices.
const LENGTHS: [usize; 5] = [100, 8, 20_000, 3000, 300_000];
const SLOT: usize = 300_000;

/// The state of a slot of the receiver.
#[derive(Clone, Copy)]
enum State {
    Idle,
    Receiving(usize, Request),
    Flushing(usize, Request),
}

struct Member<'a> {
    net: &'a Net,
    ends: (Comm, Comm),
    from: Buf,
    to: Buf,
    mrs: (Mr, Mr),
    name: usize,
    slots: [State; SLOTS],
    sends: [Option<Request>; SLOTS],
    begun: usize,
    sent: usize,
    done: usize,
    /// Most flushes at the same time, and most while a receive was outstanding.
    most: (usize, usize),
}

impl<'a> Member<'a> {
    fn new(net: &'a Net, name: usize) -> Self {
        let (send, recv) = net.to_self();
        let (from, to) = (Buf::new(SLOTS * SLOT), Buf::new(SLOTS * SLOT));
        let mrs = (net.reg_buf(send, &from), net.reg_buf(recv, &to));
        let (slots, sends) = ([State::Idle; SLOTS], [None; SLOTS]);
        Self {
            net,
            ends: (send, recv),
            from,
            to,
            mrs,
            name,
            slots,
            sends,
            begun: 0,
            sent: 0,
            done: 0,
            most: (0, 0),
        }
    }

    fn len(&self, message: usize) -> usize {
        LENGTHS[(message + self.name) % LENGTHS.len()]
    }

    fn seed(&self, message: usize) -> usize {
        self.name * 1009 + message + 1
    }

    fn piece(&self, message: usize, of: &Buf, mr: Mr) -> Piece {
        let addr = of.addr() + message % SLOTS * SLOT;
        Piece { addr, len: self.len(message), tag: self.name as i32, mr }
    }

    /// Starts sends, as far as possible.
    fn send(&mut self) {
        let slot = self.sent % SLOTS;
        if let Some(request) = self.sends[slot] {
            if self.net.try_test(request).expect("test").is_none() {
                return;
            }
            self.sends[slot] = None;
        }
        if self.sent == MESSAGES {
            return;
        }
        let start = slot * SLOT;
        self.from.fill(start..start + self.len(self.sent), self.seed(self.sent));
        let piece = self.piece(self.sent, &self.from, self.mrs.0);
        self.sends[slot] = self.net.try_send(self.ends.0, piece, 0).expect("isend");
        self.sent += usize::from(self.sends[slot].is_some());
    }

    /// One step of a slot: received bytes are flushed before they are checked.
    fn receive(&mut self, slot: usize) {
        match self.slots[slot] {
            State::Idle if self.begun < MESSAGES && self.begun % SLOTS == slot => {
                let piece = self.piece(self.begun, &self.to, self.mrs.1);
                let request = self.net.try_recv(self.ends.1, &[piece], 0).expect("irecv");
                if let Some(request) = request {
                    self.slots[slot] = State::Receiving(self.begun, request);
                    self.begun += 1;
                }
            }
            State::Idle => {}
            State::Receiving(message, request) => {
                let Some(sizes) = self.net.try_test(request).expect("test") else { return };
                assert_eq!(sizes[0] as usize, self.len(message));
                let piece = self.piece(message, &self.to, self.mrs.1);
                let flush = self.net.try_flush(self.ends.1, &[piece]).expect("iflush");
                self.slots[slot] = State::Flushing(message, flush.expect("a flush that waits for something"));
            }
            State::Flushing(message, request) => {
                if self.net.try_test(request).expect("test").is_none() {
                    return;
                }
                let start = slot * SLOT;
                self.to.check(start..start + self.len(message), self.seed(message));
                self.slots[slot] = State::Idle;
                self.done += 1;
            }
        }
        self.look();
    }

    fn look(&mut self) {
        let count = |is: fn(&State) -> bool| self.slots.iter().filter(|&slot| is(slot)).count();
        let flushing = count(|slot| matches!(slot, State::Flushing(..)));
        let receiving = count(|slot| matches!(slot, State::Receiving(..)));
        self.most = (self.most.0.max(flushing), self.most.1.max(flushing.min(receiving)));
    }

    fn close(self) {
        let (send, recv) = self.ends;
        self.net.dereg(send, self.mrs.0).expect("deregMr");
        self.net.dereg(recv, self.mrs.1).expect("deregMr");
        self.net.close_send(send).expect("closeSend");
        self.net.close_recv(recv).expect("closeRecv");
    }
}

fn flushes_are_among_receives(scene: Scene) {
    let net = Net::start(scene.version);
    let mut members: Vec<Member<'_>> = (0..MEMBERS).map(|name| Member::new(&net, name)).collect();
    assert!(super::queue_pairs() < 2 * MEMBERS as u32, "they share");
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    until("all messages", || {
        for _ in 0..64 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let member = &mut members[random as usize % MEMBERS];
            member.send();
            member.receive((random >> 32) as usize % SLOTS);
        }
        members.iter().all(|member| member.done == MESSAGES).then_some(())
    });
    let most = members.iter().map(|member| member.most).fold((0, 0), |a, b| (a.0.max(b.0), a.1.max(b.1)));
    assert!(most.0 >= 3 && most.1 >= 2, "flushes at once, and beside receives: {most:?}");
    for mut member in members {
        for request in member.sends.iter_mut().filter_map(Option::take) {
            net.finish(request);
        }
        member.close();
    }
}
