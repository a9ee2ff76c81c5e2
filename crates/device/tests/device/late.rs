//! Bytes that arrive late and in any order: a device whose copies finish long after they began, and a network that places pieces as it
//! likes, while what changes words is quick. Nobody may see a signal before its bytes.

use std::sync::{Arc, Mutex};

use trunkline_device::{
    Carried, Copies, Ended, ErrorTable, Far, Mode, Network, Place, Queues, Region, Words,
};
use trunkline_device_queue::{Condition, Slot};
use trunkline_engine::rma::{Local as Heap, Source};
use trunkline_mem::Memory;
use trunkline_proto::rma::atomic::{Action, Atomic as Change, Type};
use trunkline_proto::wire::device_queue::{Atomic, Entry, Local, Remote, Work};

use crate::ranks::{BYTES, INLINE, NEAR, SLOTS, TABLE, bytes_of, patience, pattern, planted, ranks};

/// Looks before the next copy or piece lands.
const LATE: u32 = 50;

fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

/// Bytes in a memory, from there on.
type From = (Memory, u64);

#[derive(Debug, Default)]
struct Late {
    /// Cookie, from, to, bytes.
    pending: Vec<(u64, From, From, u64)>,
    looks: u32,
    random: u64,
}

impl Late {
    fn begin(&mut self, cookie: u64, from: (&Memory, u64), to: (&Memory, u64), len: u64) {
        self.pending.push((cookie, (from.0.clone(), from.1), (to.0.clone(), to.1), len));
    }

    /// One lands now and then, whichever.
    fn land(&mut self) -> Option<u64> {
        self.looks += 1;
        if !self.looks.is_multiple_of(LATE) || self.pending.is_empty() {
            return None;
        }
        let which = random(&mut self.random) as usize % self.pending.len();
        let (cookie, from, to, len) = self.pending.swap_remove(which);
        to.0.copy_from(to.1, &from.0, from.1, len).unwrap();
        Some(cookie)
    }
}

#[derive(Debug, Default)]
struct Device(Mutex<Late>);

impl Copies for Device {
    fn begin(&self, cookie: u64, from: (&Memory, u64), to: (&Memory, u64), len: u64) -> bool {
        let mut late = self.0.lock().unwrap();
        // It has a queue of a few copies.
        let has_room = late.pending.len() < 4;
        if has_room {
            late.begin(cookie, from, to, len);
        }
        has_room
    }

    fn ended(&self, into: &mut Vec<(u64, Result<(), u32>)>) {
        into.extend(self.0.lock().unwrap().land().map(|cookie| (cookie, Ok(()))));
    }
}

#[test]
fn a_signal_waits_for_late_copies_of_a_device() {
    for way in [NEAR, INLINE] {
        let ranks = ranks(2, way);
        let device = Arc::new(Device::default());
        let region = ranks[0].queues.remove_region(ranks[0].keys[0]).unwrap();
        let copies: Arc<dyn Copies> = Arc::clone(&device) as _;
        let key = ranks[0].queues.add_region(Region { copies: Some(copies), ..region }).unwrap();
        let queue = ranks[0].queues.queue(16).unwrap();
        for round in 1..=30_u64 {
            let bytes = pattern(3000, round as u8);
            ranks[0].memory.write(0, &bytes).unwrap();
            let write = |at: u64| {
                let from = Local { addr: at, key: key.bits() };
                Entry::new(Work::Write { from, to: ranks[0].at(1, 100 + at), len: 500, imm: None })
            };
            let mut entries: Vec<_> = (0..6).map(|nth| write(nth * 500)).collect();
            entries.push(ranks[0].signal(1, 0, 1));
            let ticket = queue.post(&entries, &mut patience()).unwrap();
            // Its executor goes on by who waits: the sender, where there is no thread.
            let seen = std::thread::scope(|scope| {
                let sender = scope.spawn(|| queue.wait(ticket, &mut patience()));
                let seen = ranks[1].wait_signal(0, round);
                let there = bytes_of(&ranks[1].memory, 100, 3000);
                assert_eq!(sender.join().unwrap(), Ok(()));
                seen.map(|_| there)
            });
            assert!(seen.unwrap() == bytes, "{way:?}: the signal came before its bytes");
        }
    }
}

/// Member 1 is memory of this process; pieces of a kilobyte land when they like, words change at once.
#[derive(Debug)]
struct Unordered {
    own: Memory,
    other: Memory,
    late: Late,
    changed: Vec<Ended>,
}

impl Network for Unordered {
    fn me(&self) -> u32 {
        0
    }

    fn executes(&self) -> bool {
        true
    }

    fn put(&mut self, cookie: u64, to: Place, from: Source<'_>) -> Carried {
        let Source::Heap(from) = from else { panic!("no bytes are given by value") };
        if self.late.pending.len() >= 7 {
            return Carried::Busy;
        }
        let len = from.len.min(1000);
        self.late.begin(cookie, (&self.own, from.offset), (&self.other, to.offset), len);
        Carried::Begun(len)
    }

    fn get(&mut self, cookie: u64, from: Place, into: Heap) -> Carried {
        if self.late.pending.len() >= 7 {
            return Carried::Busy;
        }
        let len = into.len.min(1000);
        self.late.begin(cookie, (&self.other, from.offset), (&self.own, into.offset), len);
        Carried::Begun(len)
    }

    fn atomic(&mut self, cookie: u64, at: Place, action: Action, fetches: bool) -> Carried {
        let change = Change::new(Type::U64, action, fetches).unwrap();
        let old = self.other.update(at.offset, |old| change.apply(old, planted())).unwrap();
        self.changed.push(Ended { cookie, how: Ok(old) });
        Carried::Begun(8)
    }

    fn go_on(&mut self, ended: &mut Vec<Ended>) -> bool {
        ended.append(&mut self.changed);
        ended.extend(self.late.land().map(|cookie| Ended { cookie, how: Ok(0) }));
        !ended.is_empty()
    }

    fn spoil(&mut self, _: Place, _: u64) -> bool {
        false
    }

    fn is_gone(&mut self, _: u32) -> bool {
        false
    }
}

#[test]
fn a_signal_waits_for_all_pieces_of_its_bytes() {
    for mode in [Mode::Inline, Mode::Thread] {
        let (own, other) = (Memory::heap(BYTES), Memory::heap(BYTES));
        let network =
            Unordered { own: own.clone(), other: other.clone(), late: Late::default(), changed: Vec::new() };
        let queues = Queues::start(network, 4, mode, planted()).unwrap();
        let region = Region { memory: own.clone(), heap: 0, table: TABLE, copies: None, words: None };
        let key = queues.add_region(region).unwrap();
        queues
            .learn(
                1,
                Far {
                    key,
                    len: BYTES as u64,
                    table: ErrorTable::default(),
                    near: None,
                    copies: None,
                    words: None,
                },
            )
            .unwrap();
        let queue = queues.queue(8).unwrap();
        let slot = Slot::poisoned(SLOTS);
        let there = Words::of(other.clone());
        for round in 1..=10 {
            let bytes = pattern(9_500, round as u8);
            own.write(0, &bytes).unwrap();
            let from = Local { addr: 0, key: key.bits() };
            let to = |addr| Remote { peer: 1, addr, key: key.bits() };
            let entries = [
                Entry::new(Work::Write { from, to: to(64), len: 9_500, imm: None }),
                Entry::new(Work::Atomic { at: to(SLOTS), change: Atomic::Add(1), poisoned: true }),
                // What is read comes in pieces as well.
                Entry::new(Work::Read { into: Local { addr: 1 << 19, ..from }, from: to(64), len: 9_500 }),
            ];
            let ticket = queue.post(&entries, &mut patience()).unwrap();
            std::thread::scope(|scope| {
                let sender = scope.spawn(|| queue.wait(ticket, &mut patience()));
                slot.wait(&there, Condition::AtLeast(round), &mut patience(), planted()).unwrap();
                assert!(bytes_of(&other, 64, 9_500) == bytes, "{mode:?}: the signal came before its bytes");
                assert_eq!(sender.join().unwrap(), Ok(()));
            });
            assert!(bytes_of(&own, 1 << 19, 9_500) == bytes, "{mode:?}: read, and not all is there");
        }
    }
}
