//! Entries that no honest producer writes: each fails with a status, and touches nothing.

use trunkline_device::{ErrorTable, Region, UNSUPPORTED, Words};
use trunkline_device_queue::{Memory as _, WaitError};
use trunkline_mem::{Kind, Memory};
use trunkline_proto::wire::device_queue::{Atomic, Count, Entry, Local, Remote, Status, Work};

use crate::ranks::{BYTES, Rank, SLOTS, TABLE, WAYS, bytes_of, done, patience, pattern, ranks};

/// How a queue of its own ends with this entry.
fn status_of(rank: &Rank, entry: Entry) -> Status {
    let queue = rank.queues.queue(4).unwrap();
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
        let write = |from: Local, to: Remote, len| Entry::new(Work::Write { from, to, len, imm: None });
        let peers = [1, 0];
        for peer in peers {
            let at = |addr| rank.at(peer, addr);
            let wrong = [
                write(from(0), at(end - 7), 8),
                write(from(end - 7), at(0), 8),
                write(from(0), at(u64::MAX - 3), 8),
                write(from(u64::MAX - 3), at(0), 8),
                write(from(0), Remote { key: wild, ..at(0) }, 8),
                write(from(0), Remote { key: 0, ..at(0) }, 8),
                write(Local { key: wild, ..from(0) }, at(0), 8),
                write(from(0), Remote { peer: 99, ..at(0) }, 8),
                Entry::new(Work::Read { into: from(0), from: at(end), len: 1 }),
                Entry::new(Work::Read { into: from(end), from: at(0), len: 1 }),
                Entry::new(Work::Atomic { at: at(end), change: Atomic::Add(1), poisoned: false }),
                // Its poison word is outside.
                Entry::new(Work::Atomic { at: at(end - 8), change: Atomic::Add(1), poisoned: true }),
                rank.inline(&[1; 24], peer, end - 23),
            ];
            // A counter that cannot be raised: nothing is written.
            let counted = |at: Local, poisoned| {
                let work = write(from(0), rank.at(peer, 0), 8).work;
                Entry::new(work.counted(Count { at, value: 1, poisoned }).unwrap())
            };
            let uncounted = [
                counted(from(end), false),
                counted(from(end - 8), true),
                counted(Local { key: wild, ..from(0) }, true),
            ];
            for entry in wrong.into_iter().chain(uncounted) {
                assert_eq!(status_of(rank, entry), Status::Access, "{way:?}: {entry:?}");
            }
        }
        assert!(bytes_of(&ranks[1].memory, 0, BYTES) == before, "{way:?}");
        assert_eq!(status_of(rank, Entry::new(Work::Notify { peer: 1, imm: 3 })), UNSUPPORTED);
        let told = Work::Write { from: from(0), to: rank.at(1, 0), len: 8, imm: Some(1) };
        assert_eq!(status_of(rank, Entry::new(told)), UNSUPPORTED);
        // And all goes on for others.
        rank.memory.write(0, &pattern(64, 1)).unwrap();
        done(&rank.queues.queue(4).unwrap(), &[rank.write(0, 1, 0, 64)]);
        assert!(bytes_of(&ranks[1].memory, 0, 64) == pattern(64, 1));
    }
}

/// A WRITE whose counter lies in this memory is refused, and nothing of it is written.
fn refuses_a_counter_in(memory: impl Fn() -> Memory) {
    for way in WAYS {
        let ranks = ranks(2, way);
        let rank = &ranks[0];
        rank.memory.write(0, &pattern(64, 7)).unwrap();
        let before = bytes_of(&ranks[1].memory, 0, BYTES);
        let region =
            Region { memory: memory(), heap: 7, table: ErrorTable::default(), copies: None, words: None };
        let key = rank.queues.add_region(region).unwrap().bits();
        let count = Count { at: Local { addr: 64, key }, value: 1, poisoned: true };
        let write = rank.write(0, 1, 0, 8).work.counted(count).unwrap();
        assert_eq!(status_of(rank, Entry::new(write)), Status::Access, "{way:?}");
        assert!(bytes_of(&ranks[1].memory, 0, BYTES) == before, "{way:?}");
    }
}

/// A counter is a word where it lies in memory, whatever offset names it.
#[test]
fn a_counter_that_lies_across_words_is_refused_before_anything_is_written() {
    refuses_a_counter_in(|| Memory::heap(4096).part(4, 1024).unwrap());
}

/// Nor is it one where nothing of this process changes words: in memory of a device that has none of the host beside it.
#[test]
fn a_counter_that_nobody_here_can_raise_is_refused_before_anything_is_written() {
    // SAFETY: of a device, so nothing here touches it, whether it is there or not.
    refuses_a_counter_in(|| unsafe { Memory::from_raw(1 << 40, 4096, Kind::Device(0)) });
}

/// A key of a region that has ended names nothing, also when another region has its number.
#[test]
fn keys_end_with_their_regions() {
    for way in WAYS {
        let ranks = ranks(2, way);
        let rank = &ranks[0];
        let key = rank.keys[0];
        let region = rank.queues.remove_region(key).unwrap();
        assert_eq!(status_of(rank, rank.write(0, 1, 0, 8)), Status::Stale, "{way:?}");
        assert_eq!(status_of(rank, rank.signal(0, 0, 1)), Status::Stale, "{way:?}");
        let memory = Memory::heap(BYTES);
        let again = rank.queues.add_region(Region {
            memory: memory.clone(),
            heap: region.heap,
            table: TABLE,
            copies: None,
            words: None,
        });
        assert_ne!(again, Some(key));
        assert_eq!(status_of(rank, rank.signal(0, 0, 1)), Status::Stale, "{way:?}");
        assert_eq!(memory.load(SLOTS).unwrap(), 0, "{way:?}");
        assert!(rank.queues.remove_region(key).is_none());
        // A key that is yet to come.
        let ahead = Local { key: again.unwrap().bits() + (1 << 8), addr: 0 };
        let entry = Work::Write { from: ahead, to: rank.at(1, 0), len: 8, imm: None };
        assert_eq!(status_of(rank, Entry::new(entry)), Status::Access, "{way:?}");
        // And one of the other rank.
        let other = ranks[1].keys[1];
        rank.queues.with(|executor| executor.regions().forget(1, other));
        let from = Local { key: again.unwrap().bits(), addr: 0 };
        let entry = Entry::new(Work::Write { from, to: rank.at(1, 0), len: 8, imm: None });
        assert_eq!(status_of(rank, entry), Status::Access, "{way:?}");
    }
}

/// What lies in the ring is not what a producer's own code writes.
#[test]
fn words_that_are_no_entry_end_the_queue() {
    for way in WAYS {
        let ranks = ranks(2, way);
        for (word, value) in
            [(0, 0xff << 32), (0, 12 << 32), (4, u64::MAX), (0, 0xff_ff00_0000_0000), (7, 1 << 40)]
        {
            let queue = ranks[0].queues.queue(4).unwrap();
            let mut reservation = queue.reserve(1).unwrap();
            let ticket = reservation.write(&ranks[0].write(0, 1, 0, 8)).unwrap();
            let words: &Words = queue.words();
            let place = queue.shape().entry(ticket.index) + 8 * word;
            words.put(place, words.get(place) ^ value);
            let ticket = reservation.publish().unwrap();
            queue.submit(ticket.index + 1);
            let Err(WaitError::Failed(fault)) = queue.wait(ticket, &mut patience()) else {
                panic!("{way:?}")
            };
            assert_eq!(fault.status, Status::BadEntry, "{way:?}: word {word}");
        }
    }
}
