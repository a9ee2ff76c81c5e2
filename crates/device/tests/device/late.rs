//! Bytes that arrive late and in any order, while atomics are fast: a device whose copies complete long after they
//! began, and a network that places pieces in random order. No signal may be visible before its bytes.

use std::sync::{Arc, Mutex};

use trunkline_device::{
    BeginOutcome, DeviceCopier, DeviceQueues, EntryRegion, ErrorTable, ExecutorMode, MemberNetwork,
    NetworkCompletion, PeerRegion, QueueWords,
};
use trunkline_device_queue::{SignalSlot, SlotCondition};
use trunkline_engine::rma::HeapAddress;
use trunkline_engine::rma::{HeapRange as Heap, PutSource};
use trunkline_mem::MemoryRange;
use trunkline_mem::gpu::MemoryLocation;
use trunkline_proto::rma::atomic::{AtomicAction, AtomicType, TypedAtomic as Change};
use trunkline_proto::wire::device_queue::{AtomicChange, EntryWork, LocalAddress, PeerAddress, QueueEntry};

use crate::ranks::{BYTES, INLINE, NEAR, SLOTS, TABLE, bytes_of, patience, pattern, ranks};

/// Polls before the next copy or piece lands.
const LATE: u32 = 50;

fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

/// A position in a memory.
type From = (MemoryRange, u64);

#[derive(Debug, Default)]
struct Late {
    /// Cookie, source, target and length.
    pending: Vec<(u64, From, From, u64)>,
    looks: u32,
    random: u64,
}

impl Late {
    fn begin(&mut self, cookie: u64, from: MemoryLocation<'_>, to: MemoryLocation<'_>, len: u64) {
        let [from, to] = [from, to].map(|at| (at.memory.clone(), at.offset));
        self.pending.push((cookie, from, to, len));
    }

    /// Lets a random copy land at every `LATE`-th call.
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

impl DeviceCopier for Device {
    fn begin_copy(&self, cookie: u64, from: MemoryLocation<'_>, to: MemoryLocation<'_>, len: u64) -> bool {
        let mut late = self.0.lock().unwrap();
        // The queue has room for a few copies.
        let has_room = late.pending.len() < 4;
        if has_room {
            late.begin(cookie, from, to, len);
        }
        has_room
    }

    fn take_ended(&self, into: &mut Vec<(u64, Result<(), u32>)>) {
        into.extend(self.0.lock().unwrap().land().map(|cookie| (cookie, Ok(()))));
    }
}

#[test]
fn signal_waits_for_late_device_copies() {
    for way in [NEAR, INLINE] {
        let ranks = ranks(2, way);
        let device = Arc::new(Device::default());
        let region = ranks[0].queues.remove_region(ranks[0].keys[0]).unwrap();
        let copies: Arc<dyn DeviceCopier> = Arc::clone(&device) as _;
        let key = ranks[0].queues.add_region(EntryRegion { copies: Some(copies), ..region }).unwrap();
        let queue = ranks[0].queues.make_queue(16).unwrap();
        for round in 1..=30_u64 {
            let bytes = pattern(3000, round as u8);
            ranks[0].memory.write(0, &bytes).unwrap();
            let write = |at: u64| {
                let from = LocalAddress { addr: at, key: key.to_bits() };
                QueueEntry::new(EntryWork::Write { from, to: ranks[0].at(1, 100 + at), len: 500, imm: None })
            };
            let mut entries: Vec<_> = (0..6).map(|nth| write(nth * 500)).collect();
            entries.push(ranks[0].signal(1, 0, 1));
            let ticket = queue.post(&entries, &mut patience()).unwrap();
            // In inline mode, the sender's wait also executes the entries.
            let seen = std::thread::scope(|scope| {
                let sender = scope.spawn(|| queue.wait(ticket, &mut patience()));
                let seen = ranks[1].wait_signal(0, round);
                let there = bytes_of(&ranks[1].memory, 100, 3000);
                assert_eq!(sender.join().unwrap(), Ok(()));
                seen.map(|_| there)
            });
            assert!(seen.unwrap() == bytes, "{way:?}: the signal was visible before its bytes");
        }
    }
}

/// Member 1 is memory of this process. Pieces of a kilobyte land at random times; words change at once.
#[derive(Debug)]
struct Unordered {
    own: MemoryRange,
    other: MemoryRange,
    late: Late,
    changed: Vec<NetworkCompletion>,
}

impl MemberNetwork for Unordered {
    fn own_rank(&self) -> u32 {
        0
    }

    fn can_execute_locally(&self) -> bool {
        true
    }

    fn put(&mut self, cookie: u64, to: HeapAddress, from: PutSource<'_>) -> BeginOutcome {
        let PutSource::Heap(from) = from else { panic!("the test puts no bytes by value") };
        if self.late.pending.len() >= 7 {
            return BeginOutcome::Busy;
        }
        let len = from.len.min(1000);
        let from = MemoryLocation { memory: &self.own, offset: from.offset };
        self.late.begin(cookie, from, MemoryLocation { memory: &self.other, offset: to.offset }, len);
        BeginOutcome::Begun(len)
    }

    fn get(&mut self, cookie: u64, from: HeapAddress, into: Heap) -> BeginOutcome {
        if self.late.pending.len() >= 7 {
            return BeginOutcome::Busy;
        }
        let len = into.len.min(1000);
        let from = MemoryLocation { memory: &self.other, offset: from.offset };
        self.late.begin(cookie, from, MemoryLocation { memory: &self.own, offset: into.offset }, len);
        BeginOutcome::Begun(len)
    }

    fn post_atomic(
        &mut self,
        cookie: u64,
        at: HeapAddress,
        action: AtomicAction,
        fetches: bool,
    ) -> BeginOutcome {
        let change = Change::new(AtomicType::U64, action, fetches).unwrap();
        let old = self.other.fetch_update(at.offset, |old| change.apply_to(old)).unwrap();
        self.changed.push(NetworkCompletion { cookie, how: Ok(old) });
        BeginOutcome::Begun(8)
    }

    fn make_progress(&mut self, ended: &mut Vec<NetworkCompletion>) -> bool {
        ended.append(&mut self.changed);
        ended.extend(self.late.land().map(|cookie| NetworkCompletion { cookie, how: Ok(0) }));
        !ended.is_empty()
    }

    fn send_error_word(&mut self, _: HeapAddress, _: u64) -> bool {
        false
    }

    fn is_gone(&mut self, _: u32) -> bool {
        false
    }
}

#[test]
fn signal_waits_for_all_pieces_of_its_bytes() {
    for mode in [ExecutorMode::Inline, ExecutorMode::Thread] {
        let (own, other) = (MemoryRange::heap(BYTES), MemoryRange::heap(BYTES));
        let network =
            Unordered { own: own.clone(), other: other.clone(), late: Late::default(), changed: Vec::new() };
        let queues = DeviceQueues::start(network, 4, mode).unwrap();
        let region = EntryRegion { memory: own.clone(), heap: 0, table: TABLE, copies: None, words: None };
        let key = queues.add_region(region).unwrap();
        queues
            .add_remote_region(
                1,
                PeerRegion {
                    key,
                    len: BYTES as u64,
                    table: ErrorTable::default(),
                    near: None,
                    copies: None,
                    words: None,
                },
            )
            .unwrap();
        let queue = queues.make_queue(8).unwrap();
        let slot = SignalSlot::with_poison_word(SLOTS);
        let there = QueueWords::from_memory(other.clone());
        for round in 1..=10 {
            let bytes = pattern(9_500, round as u8);
            own.write(0, &bytes).unwrap();
            let from = LocalAddress { addr: 0, key: key.to_bits() };
            let to = |addr| PeerAddress { peer: 1, addr, key: key.to_bits() };
            let entries = [
                QueueEntry::new(EntryWork::Write { from, to: to(64), len: 9_500, imm: None }),
                QueueEntry::new(EntryWork::Atomic {
                    at: to(SLOTS),
                    change: AtomicChange::Add(1),
                    poisoned: true,
                }),
                // Reads are cut into pieces, too.
                QueueEntry::new(EntryWork::Read {
                    into: LocalAddress { addr: 1 << 19, ..from },
                    from: to(64),
                    len: 9_500,
                }),
            ];
            let ticket = queue.post(&entries, &mut patience()).unwrap();
            std::thread::scope(|scope| {
                let sender = scope.spawn(|| queue.wait(ticket, &mut patience()));
                slot.wait(&there, SlotCondition::AtLeast(round), &mut patience()).unwrap();
                assert!(
                    bytes_of(&other, 64, 9_500) == bytes,
                    "{mode:?}: the signal was visible before its bytes"
                );
                assert_eq!(sender.join().unwrap(), Ok(()));
            });
            assert!(
                bytes_of(&own, 1 << 19, 9_500) == bytes,
                "{mode:?}: the get completed before all its bytes had arrived"
            );
        }
    }
}
