//! The effect of each operation, in every mode of execution.

use trunkline_proto::wire::device_queue::{AtomicChange, EntryFence, EntryWork, QueueEntry};

use crate::ranks::{BARE, Rank, SLOTS, WAYS, bytes_of, done, patience, pattern, ranks};

fn value(rank: &Rank, slot: u32) -> u64 {
    rank.memory.load(SLOTS + 16 * u64::from(slot)).unwrap()
}

#[test]
fn bytes_are_put_and_got() {
    for way in WAYS {
        let ranks = ranks(3, way);
        let queue = ranks[0].queues.make_queue(64).unwrap();
        for (len, seed) in [(0, 0), (1, 1), (24, 2), (100, 3), (4096, 4), (700_001, 5)] {
            let bytes = pattern(len, seed);
            ranks[0].memory.write(3, &bytes).unwrap();
            done(&queue, &[ranks[0].write(3, 1, 77, len as u64)]);
            assert!(bytes_of(&ranks[1].memory, 77, len) == bytes, "{way:?}, {len} bytes");
            // From the other rank, through a region that only this rank knows, to another place here.
            done(&queue, &[ranks[0].read(1, 77, 2 << 20, len as u64)]);
            assert!(bytes_of(&ranks[0].memory, 2 << 20, len) == bytes, "{way:?}, {len} bytes back");
            if len <= 24 {
                done(&queue, &[ranks[0].inline(&bytes, 2, 501)]);
                assert!(bytes_of(&ranks[2].memory, 501, len) == bytes, "{way:?}, {len} bytes inline");
            }
        }
        // To the rank itself.
        done(&queue, &[ranks[0].write(3, 0, 900_000, 5000), ranks[0].read(0, 900_000, 910_000, 5000)]);
        assert!(bytes_of(&ranks[0].memory, 900_000, 5000) == bytes_of(&ranks[0].memory, 3, 5000));
    }
}

#[test]
fn atomics_change_words_and_return_old_values() {
    for way in WAYS {
        let ranks = ranks(2, way);
        let queue = ranks[0].queues.make_queue(64).unwrap();
        for peer in [1, 0] {
            let apply = |change, brings: u64, then: u64| {
                let ticket = done(&queue, &[ranks[0].change(peer, 7, change)]);
                assert_eq!(queue.read_completion(ticket).unwrap().value, brings, "{way:?}: {change:?}");
                assert_eq!(value(&ranks[peer as usize], 7), then, "{way:?}: {change:?}");
            };
            apply(AtomicChange::Add(5), 0, 5);
            apply(AtomicChange::Add(u64::MAX), 5, 4);
            apply(AtomicChange::SwapIf { expect: 3, swap: 9 }, 4, 4);
            apply(AtomicChange::SwapIf { expect: 4, swap: 9 }, 4, 9);
            apply(AtomicChange::Set(1 << 40), 0, 1 << 40);
            apply(AtomicChange::Max(17), 0, 1 << 40);
            apply(AtomicChange::Max(1 << 41), 0, 1 << 41);
            apply(AtomicChange::Set(0xffff_fff0), 0, 0xffff_fff0);
            // Two numbers of 32 bits: no carry passes from one into the other.
            let masked =
                AtomicChange::AddMasked { add: 0x0000_0001_0000_0020, boundaries: 1 << 31 | 1 << 63 };
            apply(masked, 0xffff_fff0, 0x0000_0001_0000_0010);
        }
    }
}

#[test]
fn multi_step_atomics_lose_no_concurrent_change() {
    for way in WAYS {
        let ranks = ranks(3, way);
        let masked = AtomicChange::AddMasked { add: 1 << 32 | 1, boundaries: 1 << 31 | 1 << 63 };
        std::thread::scope(|scope| {
            for rank in &ranks {
                scope.spawn(move || {
                    let queue = rank.queues.make_queue(16).unwrap();
                    for _ in 0..50 {
                        done(&queue, &[rank.change(1, 3, masked), rank.signal(1, 4, 1)]);
                    }
                });
            }
        });
        assert_eq!((value(&ranks[1], 3), value(&ranks[1], 4)), (150 << 32 | 150, 150), "{way:?}");
    }
}

/// The central guarantee: a waiter that sees the signal sees the bytes, whatever the number of pieces.
#[test]
fn signal_follows_all_earlier_bytes() {
    for way in WAYS {
        let ranks = ranks(2, way);
        let queue = ranks[0].queues.make_queue(16).unwrap();
        let sizes = [8, 1000, 65_536, 900_000];
        for (round, len) in (1..).zip(sizes.into_iter().cycle().take(12)) {
            let bytes = pattern(len, round as u8);
            ranks[0].memory.write(0, &bytes).unwrap();
            let half = len as u64 / 2;
            let entries = [
                ranks[0].write(0, 1, 8, half),
                ranks[0].write(half, 1, 8 + half, len as u64 - half),
                ranks[0].signal(1, 0, 1),
            ];
            let ticket = queue.post(&entries, &mut patience()).unwrap();
            assert_eq!(ranks[1].wait_signal(0, round), Ok(round));
            assert!(
                bytes_of(&ranks[1].memory, 8, len) == bytes,
                "{way:?}: not all of {len} bytes have arrived"
            );
            assert_eq!(queue.wait(ticket, &mut patience()), Ok(()));
        }
    }
}

/// A counter is a word of this rank. The companion changes it when an entry of the main queue has completed.
#[test]
fn companions_count_completed_entries() {
    for way in WAYS {
        let ranks = ranks(2, way);
        let main = ranks[0].queues.make_queue(8).unwrap();
        let number = main.companion_within(&mut patience()).unwrap();
        let companion = ranks[0].queues.find_queue(number).unwrap();
        for round in 1..=40 {
            // The WAIT is posted before its entry: the companion may run ahead of its queue.
            let awaited = main.as_memory().clone();
            let _ = awaited;
            let put = main.post(&[ranks[0].write(0, 1, 0, 100)], &mut patience()).unwrap();
            let wait = QueueEntry::new(EntryWork::Wait { queue: put.queue, index: put.index });
            let count = [wait, ranks[0].signal(0, 9, 1)];
            companion.post(&count, &mut patience()).unwrap();
            assert_eq!(ranks[0].wait_signal(9, round), Ok(round), "{way:?}");
        }
        assert_eq!(main.companion_within(&mut patience()).unwrap(), number);
    }
}

#[test]
fn fences_and_bare_words_are_executed() {
    for way in WAYS {
        let ranks = ranks(2, way);
        let queue = ranks[0].queues.make_queue(16).unwrap();
        let at = ranks[0].at(1, BARE + 8 * 5);
        let bare = QueueEntry::new(EntryWork::Atomic { at, change: AtomicChange::Add(2), poisoned: false });
        ranks[1].memory.write(100, &pattern(5000, 7)).unwrap();
        // The second entry writes the bytes that the first one reads, behind a fence.
        let entries = [
            ranks[0].read(1, 100, 50_000, 5000),
            ranks[0].write(50_000, 1, 60_000, 5000).with_fence(EntryFence::ReadsAndAtomics),
            bare.with_fence(EntryFence::All),
            QueueEntry::new(EntryWork::Nop),
            QueueEntry::new(EntryWork::Barrier),
            QueueEntry::new(EntryWork::Show),
        ];
        done(&queue, &entries);
        assert!(bytes_of(&ranks[1].memory, 60_000, 5000) == pattern(5000, 7), "{way:?}");
        assert_eq!(ranks[1].memory.load(BARE + 40).unwrap(), 2);
    }
}
