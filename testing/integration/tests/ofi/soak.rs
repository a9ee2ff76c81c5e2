//! A soak between two processes: messages of log-uniform length in groups of one to eight, some with equal tags, posted
//! in random order and at random times. Both ends draw the same messages from one seed; every byte, length and count is
//! checked.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::strict::{Env, Strict};
use super::{NATIVE, has, over};
use crate::contract::messages::between;
use crate::net::{Comm, Mr, Net, Piece, Request, until};
use crate::run::Scene;
use crate::sharing::flow::Mapped;
use crate::sharing::{is_full, status};

scenarios! {
    a_soak_of_messages,
}

/// Longest message in bytes.
const LEN: usize = 1 << 20;
/// Most messages per group.
const GROUP: usize = 8;
/// Outstanding groups of one end.
const WINDOW: usize = 4;

/// The seed of the messages.
const SEED: u64 = 7;

/// The number of messages of a soak.
fn count() -> usize {
    if is_full() { 200_000 } else { 5000 }
}

#[test]
fn a_soak_over_tcp_loses_nothing() {
    if has(NATIVE) {
        over(NATIVE, "a_soak_of_messages").env("TEST_MESSAGES", count()).two();
    }
}

/// Half of the calls return EAGAIN; operations and completions are reordered, on two rails.
#[test]
fn a_soak_under_injected_faults_loses_nothing() {
    let Some(strict) = Strict::here("a soak over ofi:strict") else { return };
    let storm: Env<'_> = &[
        ("FI_STRICT_EAGAIN", "0.5"),
        ("FI_STRICT_REORDER", "0.3"),
        ("FI_STRICT_NICS", "2"),
        ("TEST_FUSED", "2"),
        ("TRUNKLINE_PROGRESS_THREAD", "1"),
    ];
    let calls: Env<'_> = &[("FI_STRICT_EAGAIN", "0.5"), ("FI_STRICT_MR", "none")];
    let weathers = if is_full() { vec![storm, calls] } else { vec![storm] };
    for weather in weathers {
        strict.over("a_soak_of_messages", weather).env("TEST_MESSAGES", count()).two();
        let found = strict.clean(2);
        assert!(found.sum_of("eagain") > 1000, "{found:?}");
    }
}

/// A message: its length, its tag, and the seed of its bytes.
#[derive(Clone, Copy)]
struct Message {
    len: usize,
    tag: i32,
    seed: usize,
}

/// The sequence of messages, the same at both ends.
struct Script {
    dice: fastrand::Rng,
    left: usize,
    next: usize,
}

impl Script {
    fn new(seed: u64, count: usize) -> Self {
        Self { dice: fastrand::Rng::with_seed(seed), left: count, next: 1 }
    }

    fn message(&mut self) -> Message {
        // One in twenty is empty; the lengths of the others are distributed evenly over the octaves.
        let octave = self.dice.f64() * f64::from(LEN.ilog2());
        let len = if self.dice.u32(..20) == 0 { 0 } else { octave.exp2() as usize };
        let tag = if self.dice.bool() { self.dice.i32(0..3) } else { self.dice.i32(..) };
        self.next += 1;
        Message { len, tag, seed: self.next }
    }

    /// The messages of the next receive; `None` at the end.
    fn group(&mut self) -> Option<Vec<Message>> {
        let count = self.dice.usize(1..=GROUP).min(self.left);
        self.left -= count;
        (count > 0).then(|| (0..count).map(|_| self.message()).collect())
    }
}

/// One end.
struct End<'a> {
    net: &'a Net,
    comm: Comm,
    mr: Mr,
    memory: Mapped,
    /// Choices of this end alone, which the peer cannot derive.
    dice: fastrand::Rng,
    /// Indices of free group slots.
    free: Vec<usize>,
    done: usize,
}

impl<'a> End<'a> {
    fn new(net: &'a Net, comm: Comm, seed: u64) -> Self {
        let memory = Mapped::new(WINDOW * GROUP * LEN);
        let mr = net.reg(comm, memory.addr(), memory.len()).expect("regMr");
        let free = (0..WINDOW).collect();
        Self { net, comm, mr, memory, dice: fastrand::Rng::with_seed(seed), free, done: 0 }
    }

    fn piece(&self, place: usize, at: usize, len: usize, tag: i32) -> Piece {
        let start = (place * GROUP + at) * LEN;
        Piece { addr: self.memory.addr() + start, len, tag, mr: self.mr }
    }

    /// Sleeps occasionally.
    fn pause(&mut self) {
        if self.dice.u32(..400) == 0 {
            std::thread::sleep(Duration::from_micros(self.dice.u64(..2000)));
        }
    }

    /// Tests one outstanding request at random; if it has ended, returns its entry and sizes.
    fn test<T>(&mut self, requests: &mut VecDeque<(Request, T)>) -> Option<(T, [i32; 8])> {
        self.pause();
        if requests.is_empty() {
            return None;
        }
        let at = self.dice.usize(..requests.len());
        let sizes = self.net.try_test(requests[at].0).expect("test")?;
        requests.remove(at).map(|(_, what)| (what, sizes))
    }
}

fn receive_all(mut end: End<'_>, mut script: Script) -> usize {
    let mut requests: VecDeque<(Request, (usize, Vec<Message>))> = VecDeque::new();
    let mut next = script.group();
    while next.is_some() || !requests.is_empty() {
        if let (Some(group), Some(&place)) = (&next, end.free.last()) {
            let room = |message: &Message| (message.len + 64).min(LEN);
            let pieces = group.iter().enumerate();
            let pieces: Vec<Piece> =
                pieces.map(|(at, message)| end.piece(place, at, room(message), message.tag)).collect();
            if let Some(request) = end.net.try_recv(end.comm, &pieces, 0).expect("irecv") {
                end.free.pop();
                requests.push_back((request, (place, next.take().expect("a group"))));
                next = script.group();
            }
        }
        let ended = match end.free.is_empty() {
            true => Some(until("an end of a receive", || end.test(&mut requests))),
            false => end.test(&mut requests),
        };
        let Some(((place, group), sizes)) = ended else { continue };
        for (at, message) in group.iter().enumerate() {
            assert_eq!(sizes[at] as usize, message.len, "length of message {}", message.seed);
            let start = (place * GROUP + at) * LEN;
            end.memory.check(start..start + message.len, message.seed, "a message");
        }
        end.done += group.len();
        end.free.push(place);
    }
    end.done
}

/// The sending end, and its outstanding requests.
struct Sender<'a> {
    end: End<'a>,
    requests: VecDeque<(Request, usize)>,
    /// For each slot, the messages that have not ended.
    under_way: [usize; WINDOW],
}

impl Sender<'_> {
    /// Tests one request; returns whether it has ended.
    fn test(&mut self) -> Option<()> {
        let (place, _) = self.end.test(&mut self.requests)?;
        self.under_way[place] -= 1;
        self.end.done += 1;
        if self.under_way[place] == 0 {
            self.end.free.push(place);
        }
        Some(())
    }

    /// Sends a group in any order, except that messages with equal tags keep their order.
    fn send(&mut self, place: usize, group: &[Message]) {
        self.under_way[place] = group.len();
        for (at, message) in group.iter().enumerate() {
            let start = (place * GROUP + at) * LEN;
            self.end.memory.fill(start..start + message.len, message.seed);
        }
        let mut left: Vec<usize> = (0..group.len()).collect();
        while !left.is_empty() {
            let any = group[left[self.end.dice.usize(..left.len())]].tag;
            let at = left.iter().position(|&one| group[one].tag == any).expect("that one");
            let one = left.remove(at);
            let piece = self.end.piece(place, one, group[one].len, group[one].tag);
            let sent = until("isend", || {
                let sent = self.end.net.try_send(self.end.comm, piece, 0).expect("isend");
                self.test();
                sent
            });
            self.requests.push_back((sent, place));
        }
    }
}

fn send_all(end: End<'_>, mut script: Script) -> usize {
    let mut sender = Sender { end, requests: VecDeque::new(), under_way: [0; WINDOW] };
    while let Some(group) = script.group() {
        let place = until("a free place", || {
            sender.test();
            sender.end.free.pop()
        });
        sender.send(place, &group);
    }
    while !sender.requests.is_empty() {
        until("an end of a send", || sender.test());
    }
    sender.end.done
}

fn a_soak_of_messages(mut scene: Scene) {
    let count: usize = std::env::var("TEST_MESSAGES").expect("a count").parse().expect("a number");
    let net = Net::start(scene.version);
    let (send, recv) = between(&net, &mut scene);
    let begun = Instant::now();
    // Each process sends half of them and receives the other half, on two threads.
    let done: [usize; 2] = std::thread::scope(|scope| {
        let [ours, theirs] =
            [scene.role, 1 - scene.role].map(|role| Script::new(SEED + role as u64, count / 2));
        let sender = scope.spawn(|| send_all(End::new(&net, send, 100), ours));
        let received = receive_all(End::new(&net, recv, 200), theirs);
        [sender.join().expect("the sender"), received]
    });
    println!("figure: {count} messages both ways in {:?}", begun.elapsed());
    assert_eq!(done, [count / 2; 2]);
    scene.meet();
    let counters = status().process_counters();
    let half = count as u64 / 2;
    assert_eq!((counters.messages_sent, counters.messages_received), (half, half));
    assert_eq!((counters.messages_pending, counters.messages_failed, counters.requests_failed), (0, 0, 0));
    assert_eq!(counters.completions_dropped, 0);
    net.close_send(send).expect("close");
    net.close_recv(recv).expect("close");
    scene.meet();
}
