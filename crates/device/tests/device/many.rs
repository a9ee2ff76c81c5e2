//! Limits of numbers: laps of rings at the limits of indices, depths, producers, peers that add to one word, concurrent
//! flushes and resets, and eight ranks that all exchange entries.

use trunkline_device::QueueWords;
use trunkline_device_queue::channel::TicketRecord;
use trunkline_device_queue::lane::{PutBytes, QueueLane};
use trunkline_device_queue::successor::{self, PutActions, SlotArray};
use trunkline_device_queue::{EntryTicket, SlotCondition, WordMemory as _};

use crate::ranks::{INLINE, NEAR, Rank, SHM, SLOTS, TCP, WAYS, bytes_of, done, patience, pattern, ranks};

/// Acceptance cases T6 and T7.
#[test]
fn rings_of_any_depth_wrap_anywhere() {
    for way in [SHM, NEAR, INLINE] {
        let ranks = ranks(2, way);
        let mut sum = 0;
        for depth in [2, 4, 1024] {
            for first in [0, (1 << 16) - 3, (1 << 32) - 3, (1 << 63) - 3, 0_u64.wrapping_sub(2 * depth)] {
                let queue = ranks[0].queues.make_queue_from(depth as u32, first).unwrap();
                let laps = if depth == 1024 { 2100 } else { 20 };
                let mut last = None;
                for round in 0..laps {
                    last = Some(queue.post(&[ranks[0].signal(1, 1, 1)], &mut patience()).unwrap());
                    if round == 3 {
                        assert_eq!(queue.wait(last.unwrap(), &mut patience()), Ok(()), "{way:?}");
                    }
                }
                assert_eq!(last.unwrap().index, first.wrapping_add(laps - 1));
                assert_eq!(
                    queue.wait(last.unwrap(), &mut patience()),
                    Ok(()),
                    "{way:?}, {depth} from {first:#x}"
                );
                sum += laps;
                assert_eq!(
                    ranks[1].memory.load(SLOTS + 16).unwrap(),
                    sum,
                    "{way:?}, {depth} from {first:#x}"
                );
            }
        }
    }
}

/// Acceptance case T11.
#[test]
fn up_to_sixteen_producers_share_a_queue() {
    for way in [SHM, NEAR, INLINE] {
        let ranks = ranks(2, way);
        for producers in [2_u64, 5, 16] {
            let queue = ranks[0].queues.make_queue(32).unwrap();
            let before = ranks[1].memory.load(SLOTS).unwrap();
            let (queue, rank) = (&queue, &ranks[0]);
            std::thread::scope(|scope| {
                for producer in 0..producers {
                    scope.spawn(move || {
                        for round in 0..40_u64 {
                            let at = 8 * (producer * 64 + round);
                            let mark = (producer << 32 | round).to_le_bytes();
                            done(queue, &[rank.inline(&mark, 1, at), rank.signal(1, 0, 1)]);
                        }
                    });
                }
            });
            assert_eq!(ranks[1].memory.load(SLOTS).unwrap(), before + producers * 40, "{way:?}");
            for (producer, round) in (0..producers).flat_map(|one| (0..40).map(move |round| (one, round))) {
                let mark = ranks[1].memory.load(8 * (producer * 64 + round)).unwrap();
                assert_eq!(mark, producer << 32 | round, "{way:?}");
            }
        }
    }
}

/// Acceptance case T14, with the successor's operations: a queue and a companion per peer, and one counter.
#[test]
fn shared_counter_of_eight_peers_is_the_sum() {
    for way in [SHM, TCP, NEAR, INLINE] {
        let ranks = ranks(8, way);
        let rank = &ranks[0];
        let counter = SlotArray { at: rank.at(0, SLOTS) }.add_to_slot(0, 1);
        let channels_words = QueueWords::try_heap(4096).unwrap();
        let lanes: Vec<_> = (1..8)
            .map(|_| QueueLane::new(rank.queues.make_queue(16).unwrap(), rank.queues.queue_finder()))
            .collect();
        let rounds = 20;
        for (peer, lane) in (1..).zip(&lanes) {
            let words = channels_words.clone();
            let recorded = TicketRecord::create(words.clone(), u64::from(peer) * 128, &[0]).unwrap();
            let cursor_at = u64::from(peer) * 128 + 64;
            let lane = std::slice::from_ref(lane);
            let channel = successor::LaneChannel::new(lane, recorded, words, cursor_at).unwrap();
            let bytes = PutBytes { from: rank.here(0), to: rank.at(peer, 64), len: 1000 };
            rank.memory.write(0, &pattern(1000, 3)).unwrap();
            let signal = SlotArray { at: rank.at(peer, SLOTS) }.add_to_slot(5, 1);
            for round in 0..rounds {
                let (signal, counter) = (Some(signal), Some(counter));
                // Alternately by the companion, and by the put's own entry.
                let counter_in_entry = round % 2 == 1;
                let with = PutActions { signal, counter, counter_in_entry, ..PutActions::default() };
                channel.put(&bytes, &with, &mut patience()).unwrap();
            }
            channel.flush(&mut patience()).unwrap();
        }
        assert_eq!(rank.wait_signal(0, 7 * rounds), Ok(7 * rounds), "{way:?}");
        // The counter must not exceed the sum, once no entry is left that raises it.
        for lane in &lanes {
            let companion = lane.companion_queue(&mut patience()).unwrap();
            let ready = companion
                .as_memory()
                .load(trunkline_proto::wire::device_queue::at::READY, std::sync::atomic::Ordering::Acquire);
            let (number, epoch) = (companion.queue_shape().number(), companion.queue_shape().epoch());
            companion.wait(EntryTicket { queue: number, epoch, index: ready - 1 }, &mut patience()).unwrap();
        }
        assert_eq!(rank.wait_signal(0, 0), Ok(7 * rounds), "{way:?}");
        for other in &ranks[1..] {
            assert_eq!(other.wait_signal(5, rounds), Ok(rounds), "{way:?}");
            assert!(bytes_of(&other.memory, 64, 1000) == pattern(1000, 3));
        }
    }
}

/// Acceptance cases T12 and T13.
#[test]
fn concurrent_flushes_and_resets_lose_nothing() {
    for way in [SHM, NEAR] {
        let ranks = ranks(2, way);
        let rank = &ranks[0];
        let words = QueueWords::try_heap(256).unwrap();
        let queue = rank.queues.make_queue(16).unwrap();
        let channel = TicketRecord::create(words.clone(), 0, &[0]).unwrap();
        // The base of the slot is beside it.
        let slot = rank.slot(30).with_base(SLOTS + 16 * 31);
        let other = ranks[1].words();
        std::thread::scope(|scope| {
            let reset = scope.spawn(|| {
                let (mut seen, mut resets) = (0, 0);
                while seen < 200 {
                    seen += slot.reset_base(&other).unwrap();
                    resets += 1;
                    other.pause();
                    std::thread::yield_now();
                }
                (seen, resets)
            });
            let flushers: Vec<_> = (0..2)
                .map(|_| {
                    let (queue, channel) = (&queue, &channel);
                    scope.spawn(move || {
                        for _ in 0..100 {
                            let ticket = queue.post(&[rank.signal(1, 30, 1)], &mut patience()).unwrap();
                            assert!(channel.record_ticket(0, ticket));
                            channel.flush(std::slice::from_ref(queue), &mut patience()).unwrap();
                            assert_eq!(
                                queue.poll(ticket),
                                Ok(trunkline_device_queue::TicketPoll::Done),
                                "{way:?}"
                            );
                        }
                    })
                })
                .collect();
            flushers.into_iter().for_each(|flusher| flusher.join().unwrap());
            assert_eq!(reset.join().unwrap().0, 200, "{way:?}");
        });
        assert_eq!(slot.read_value(&other), 0);
    }
}

fn talk(rank: &Rank, count: u32, rounds: u64) {
    let queue = rank.queues.make_queue(64).unwrap();
    let others = || (0..count).filter(|other| *other != rank.me);
    for round in 1..=rounds {
        let mine = pattern(512, (rank.me as u8) ^ (round as u8));
        rank.memory.write(0, &mine).unwrap();
        for other in others() {
            let to = 4096 + 1024 * u64::from(rank.me);
            let entries = [rank.write(0, other, to, 512), rank.signal(other, rank.me, 1)];
            queue.post(&entries, &mut patience()).unwrap();
        }
        for other in others() {
            assert_eq!(rank.wait_signal(other, round), Ok(round));
            let there = bytes_of(&rank.memory, 4096 + 1024 * u64::from(other), 512);
            assert!(there == pattern(512, (other as u8) ^ (round as u8)), "from {other}, round {round}");
        }
        // All ranks must have read the bytes before they are overwritten.
        for other in others() {
            done(&queue, &[rank.signal(other, 100, 1)]);
        }
        let all = round * u64::from(count - 1);
        let until = SlotCondition::AtLeast(all);
        rank.slot(100).wait(&rank.words(), until, &mut patience()).unwrap();
    }
}

#[test]
fn two_to_eight_ranks_exchange_concurrently() {
    for way in WAYS {
        for count in [2, 3, 8] {
            let ranks = ranks(count, way);
            std::thread::scope(|scope| {
                ranks.iter().for_each(|rank| drop(scope.spawn(move || talk(rank, count as u32, 12))));
            });
        }
    }
}
