//! Entries that no correct producer writes: each one fails with a status, and changes no memory.

use trunkline_device::{EntryRegion, ErrorTable, QueueWords, UNSUPPORTED};
use trunkline_device_queue::{WaitError, WordMemory as _};
use trunkline_mem::{MemoryKind, MemoryRange};
use trunkline_proto::wire::device_queue::{
    AtomicChange, CounterUpdate, EntryStatus, EntryWork, LocalAddress, PeerAddress, QueueEntry,
};

use crate::ranks::{BYTES, Rank, SLOTS, TABLE, WAYS, bytes_of, done, patience, pattern, ranks};

/// Returns how a queue ends that contains only this entry.
fn status_of(rank: &Rank, entry: QueueEntry) -> EntryStatus {
    let queue = rank.queues.make_queue(4).unwrap();
    let ticket = queue.post(&[entry], &mut patience()).unwrap();
    match queue.wait(ticket, &mut patience()) {
        Err(WaitError::Failed(fault)) => fault.status,
        other => panic!("{entry:?}: {other:?}"),
    }
}

#[test]
fn keys_and_bounds_are_checked() {
    for way in WAYS {
        let ranks = ranks(2, way);
        let rank = &ranks[0];
        rank.memory.write(0, &pattern(64, 7)).unwrap();
        let before = bytes_of(&ranks[1].memory, 0, BYTES);
        let (end, wild) = (BYTES as u64, 0x4242_4242);
        let from = |addr| rank.here(addr);
        let write = |from: LocalAddress, to: PeerAddress, len| {
            QueueEntry::new(EntryWork::Write { from, to, len, imm: None })
        };
        let peers = [1, 0];
        for peer in peers {
            let at = |addr| rank.at(peer, addr);
            let wrong = [
                write(from(0), at(end - 7), 8),
                write(from(end - 7), at(0), 8),
                write(from(0), at(u64::MAX - 3), 8),
                write(from(u64::MAX - 3), at(0), 8),
                write(from(0), PeerAddress { key: wild, ..at(0) }, 8),
                write(from(0), PeerAddress { key: 0, ..at(0) }, 8),
                write(LocalAddress { key: wild, ..from(0) }, at(0), 8),
                write(from(0), PeerAddress { peer: 99, ..at(0) }, 8),
                QueueEntry::new(EntryWork::Read { into: from(0), from: at(end), len: 1 }),
                QueueEntry::new(EntryWork::Read { into: from(end), from: at(0), len: 1 }),
                QueueEntry::new(EntryWork::Atomic {
                    at: at(end),
                    change: AtomicChange::Add(1),
                    poisoned: false,
                }),
                // The poison word is out of bounds.
                QueueEntry::new(EntryWork::Atomic {
                    at: at(end - 8),
                    change: AtomicChange::Add(1),
                    poisoned: true,
                }),
                rank.inline(&[1; 24], peer, end - 23),
            ];
            // A counter that cannot be raised: the WRITE must write nothing.
            let counted = |at: LocalAddress, poisoned| {
                let work = write(from(0), rank.at(peer, 0), 8).work;
                QueueEntry::new(work.with_counter(CounterUpdate { at, value: 1, poisoned }).unwrap())
            };
            let uncounted = [
                counted(from(end), false),
                counted(from(end - 8), true),
                counted(LocalAddress { key: wild, ..from(0) }, true),
            ];
            for entry in wrong.into_iter().chain(uncounted) {
                assert_eq!(status_of(rank, entry), EntryStatus::Access, "{way:?}: {entry:?}");
            }
        }
        assert!(bytes_of(&ranks[1].memory, 0, BYTES) == before, "{way:?}");
        assert_eq!(status_of(rank, QueueEntry::new(EntryWork::Notify { peer: 1, imm: 3 })), UNSUPPORTED);
        let told = EntryWork::Write { from: from(0), to: rank.at(1, 0), len: 8, imm: Some(1) };
        assert_eq!(status_of(rank, QueueEntry::new(told)), UNSUPPORTED);
        // Other queues still work.
        rank.memory.write(0, &pattern(64, 1)).unwrap();
        done(&rank.queues.make_queue(4).unwrap(), &[rank.write(0, 1, 0, 64)]);
        assert!(bytes_of(&ranks[1].memory, 0, 64) == pattern(64, 1));
    }
}

/// A WRITE whose counter lies in this memory is refused, and none of its bytes is written.
fn refuses_a_counter_in(memory: impl Fn() -> MemoryRange) {
    for way in WAYS {
        let ranks = ranks(2, way);
        let rank = &ranks[0];
        rank.memory.write(0, &pattern(64, 7)).unwrap();
        let before = bytes_of(&ranks[1].memory, 0, BYTES);
        let region = EntryRegion {
            memory: memory(),
            heap: 7,
            table: ErrorTable::default(),
            copies: None,
            words: None,
        };
        let key = rank.queues.add_region(region).unwrap().to_bits();
        let count = CounterUpdate { at: LocalAddress { addr: 64, key }, value: 1, poisoned: true };
        let write = rank.write(0, 1, 0, 8).work.with_counter(count).unwrap();
        assert_eq!(status_of(rank, QueueEntry::new(write)), EntryStatus::Access, "{way:?}");
        assert!(bytes_of(&ranks[1].memory, 0, BYTES) == before, "{way:?}");
    }
}

/// Alignment of a counter depends on its address, not on its offset.
#[test]
fn unaligned_counter_is_refused_before_any_write() {
    refuses_a_counter_in(|| MemoryRange::heap(4096).sub_range(4, 1024).unwrap());
}

/// A counter is refused in memory whose words this process cannot change: device memory without host memory beside it.
#[test]
fn inaccessible_counter_is_refused_before_any_write() {
    // SAFETY: the kind is device memory, so no code accesses the address, whether it is mapped or not.
    refuses_a_counter_in(|| unsafe { MemoryRange::from_raw(1 << 40, 4096, MemoryKind::Device(0)) });
}

/// The key of a removed region is invalid, even if another region has its number.
#[test]
fn keys_end_with_their_regions() {
    for way in WAYS {
        let ranks = ranks(2, way);
        let rank = &ranks[0];
        let key = rank.keys[0];
        let region = rank.queues.remove_region(key).unwrap();
        assert_eq!(status_of(rank, rank.write(0, 1, 0, 8)), EntryStatus::Stale, "{way:?}");
        assert_eq!(status_of(rank, rank.signal(0, 0, 1)), EntryStatus::Stale, "{way:?}");
        let memory = MemoryRange::heap(BYTES);
        let again = rank.queues.add_region(EntryRegion {
            memory: memory.clone(),
            heap: region.heap,
            table: TABLE,
            copies: None,
            words: None,
        });
        assert_ne!(again, Some(key));
        assert_eq!(status_of(rank, rank.signal(0, 0, 1)), EntryStatus::Stale, "{way:?}");
        assert_eq!(memory.load(SLOTS).unwrap(), 0, "{way:?}");
        assert!(rank.queues.remove_region(key).is_none());
        // A key that was not issued yet.
        let ahead = LocalAddress { key: again.unwrap().to_bits() + (1 << 8), addr: 0 };
        let entry = EntryWork::Write { from: ahead, to: rank.at(1, 0), len: 8, imm: None };
        assert_eq!(status_of(rank, QueueEntry::new(entry)), EntryStatus::Access, "{way:?}");
        // A key of the other rank.
        let other = ranks[1].keys[1];
        rank.queues.with_executor(|executor| executor.regions_mut().remove_remote_region(1, other));
        let from = LocalAddress { key: again.unwrap().to_bits(), addr: 0 };
        let entry = QueueEntry::new(EntryWork::Write { from, to: rank.at(1, 0), len: 8, imm: None });
        assert_eq!(status_of(rank, entry), EntryStatus::Access, "{way:?}");
    }
}

/// Bytes in the ring that a correct producer never writes.
#[test]
fn invalid_entry_words_end_the_queue() {
    for way in WAYS {
        let ranks = ranks(2, way);
        for (word, value) in
            [(0, 0xff << 32), (0, 12 << 32), (4, u64::MAX), (0, 0xff_ff00_0000_0000), (7, 1 << 40)]
        {
            let queue = ranks[0].queues.make_queue(4).unwrap();
            let mut reservation = queue.reserve_entries(1).unwrap();
            let ticket = reservation.write_entry(&ranks[0].write(0, 1, 0, 8)).unwrap();
            let words: &QueueWords = queue.as_memory();
            let place = queue.queue_shape().entry_offset(ticket.index) + 8 * word;
            words.put(place, words.get(place) ^ value);
            let ticket = reservation.publish().unwrap();
            queue.submit(ticket.index + 1);
            let Err(WaitError::Failed(fault)) = queue.wait(ticket, &mut patience()) else {
                panic!("{way:?}")
            };
            assert_eq!(fault.status, EntryStatus::BadEntry, "{way:?}: word {word}");
        }
    }
}
