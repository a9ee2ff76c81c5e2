//! A failed entry reaches all waiters for it and for entries behind it: by ticket, by counter, and at the other rank by signal.

use std::time::{Duration, Instant};

use trunkline_device::QueueWords;
use trunkline_device_queue::{
    DeviceQueue, SlotCondition, SlotLayout, WaitBudget as _, WaitError, WordAddition, WordMemory as _,
};
use trunkline_proto::wire::device_queue::{AbortWord, EntryStatus, EntryWork, LocalAddress, QueueEntry};

use crate::ranks::{BARE, Rank, TABLE, WAYS, Way, bytes_of, done, patience, ranks};

/// The time that the specification allows for an error to reach all waiters.
const BOUND: Duration = Duration::from_millis(100);
/// Attempts for a script that takes longer.
const TRIES: u32 = 3;
/// Operations of the script.
const SCRIPT: u32 = 32;

/// The script: writes, reads, and in every fourth entry a signal of the other rank.
fn script(rank: &Rank, at: u32) -> QueueEntry {
    match at % 4 {
        0 => rank.write(u64::from(at) * 100, 1, u64::from(at) * 100, 100),
        1 => rank.read(1, 0, 500_000, 64),
        2 => rank.inline(&[at as u8; 8], 1, 600_000),
        _ => rank.signal(1, at, 1),
    }
}

/// The same entry, with addresses that no region contains.
fn broken(rank: &Rank, at: u32) -> QueueEntry {
    let nowhere = LocalAddress { addr: u64::MAX - 1000, key: rank.keys[0].to_bits() };
    match script(rank, at).work {
        EntryWork::Atomic { at, change, .. } => {
            // A wild address has no poison word; the entries behind it have one.
            QueueEntry::new(EntryWork::Atomic {
                at: trunkline_proto::wire::device_queue::PeerAddress { peer: 77, ..at },
                change,
                poisoned: true,
            })
        }
        EntryWork::Write { to, len, .. } => {
            QueueEntry::new(EntryWork::Write { from: nowhere, to, len, imm: None })
        }
        EntryWork::Read { from, len, .. } => QueueEntry::new(EntryWork::Read { into: nowhere, from, len }),
        _ => QueueEntry::new(EntryWork::Notify { peer: 1, imm: 0 }),
    }
}

/// Posts the script with a broken entry. Returns the time until all waiters have failed.
fn break_at(rank: &Rank, other: &Rank, way: Way, bad: u32) -> Duration {
    let queue = rank.queues.make_queue(SCRIPT).unwrap();
    let companion = rank.queues.make_queue(64).unwrap();
    let entries: Vec<_> =
        (0..SCRIPT).map(|at| if at == bad { broken(rank, at) } else { script(rank, at) }).collect();
    let before: Vec<_> = (0..SCRIPT).map(|slot| other.slot(slot).read_value(&other.words())).collect();
    // A counter waits for the last entry.
    let wait = |index: u32| {
        QueueEntry::new(EntryWork::Wait { queue: queue.queue_shape().number(), index: index.into() })
    };
    let counted = 3000 + bad;
    let began = Instant::now();
    let last = queue.post(&entries, &mut patience()).unwrap();
    let count = companion.post(&[wait(SCRIPT - 1), rank.signal(0, counted, 1)], &mut patience()).unwrap();
    let Err(WaitError::Failed(fault)) = queue.wait(last, &mut patience()) else {
        panic!("{way:?}: entry {bad} failed, but its waiters did not")
    };
    assert_eq!(fault.first_bad, u64::from(bad), "{way:?}");
    for at in 0..SCRIPT {
        let ticket = trunkline_device_queue::EntryTicket { index: at.into(), ..last };
        assert_eq!(queue.poll(ticket).is_ok(), at < bad, "{way:?}: entry {at}, {bad} failed");
    }
    assert!(matches!(companion.wait(count, &mut patience()), Err(WaitError::Failed(_))), "{way:?}");
    let counter = rank.slot(counted).wait(&rank.words(), SlotCondition::AtLeast(1), &mut patience());
    let Err(WaitError::Poisoned(poison)) = counter else { panic!("{way:?}: counter {counter:?}") };
    assert!(rank.slot(counted).clear_poison(&rank.words(), poison));
    // If the address of an atomic is itself wild, no rank has its word.
    for slot in (0..SCRIPT).filter(|&at| at % 4 == 3 && at != bad) {
        let seen = other.wait_signal(slot, before[slot as usize] + 1);
        match slot {
            _ if slot < bad => assert_eq!(seen, Ok(before[slot as usize] + 1), "{way:?}"),
            _ => assert!(matches!(seen, Err(WaitError::Poisoned(_))), "{way:?}: {slot} {seen:?}"),
        }
        if let Some(poison) = other.slot(slot).read_poison(&other.words()) {
            assert!(other.slot(slot).clear_poison(&other.words(), poison));
        }
    }
    began.elapsed()
}

/// Acceptance case T8, for each script. A slow attempt is repeated, because the machine may have been busy; a defect is
/// slow each time.
#[test]
fn error_at_any_entry_fails_every_waiter() {
    for way in WAYS {
        let ranks = ranks(2, way);
        let (rank, other) = (&ranks[0], &ranks[1]);
        // Connects the links.
        done(&rank.queues.make_queue(4).unwrap(), &[rank.signal(1, 4000, 1)]);
        let mut times = Vec::new();
        for bad in 0..SCRIPT {
            let mut tries =
                (0..TRIES).map(|_| break_at(rank, other, way, bad)).inspect(|took| times.push(*took));
            assert!(tries.any(|took| took < BOUND), "{way:?}: entry {bad} took too long {TRIES} times");
        }
        times.sort_unstable();
        let (median, slowest) = (times[times.len() / 2], times[times.len() - 1]);
        println!("{way:?}: all waiters of {SCRIPT} scripts failed after {median:?}, at most {slowest:?}");
        assert!(slowest < 20 * BOUND, "{way:?}: {times:?}");
    }
}

/// The error words of bare signals are in a table of their region.
#[test]
fn bare_signals_are_poisoned_in_their_table() {
    for way in WAYS {
        let ranks = ranks(2, way);
        let (rank, other) = (&ranks[0], &ranks[1]);
        let queue = rank.queues.make_queue(8).unwrap();
        let at = rank.at(1, BARE + 8 * 6);
        let change = trunkline_proto::wire::device_queue::AtomicChange::Add(1);
        let signal = QueueEntry::new(EntryWork::Atomic { at, change, poisoned: false });
        queue.post(&[broken(rank, 0), signal], &mut patience()).unwrap();
        let slots = SlotLayout::Bare { values: TABLE.values, errors: TABLE.errors, count: TABLE.count };
        let slot = slots.slot_at(6).unwrap();
        let seen = slot.wait(&other.words(), SlotCondition::AtLeast(1), &mut patience());
        let Err(WaitError::Poisoned(poison)) = seen else { panic!("{way:?}: {seen:?}") };
        assert_eq!((poison.status, poison.queue), (EntryStatus::Access, queue.queue_shape().number()));
        assert_eq!(slots.slot_at(5).unwrap().read_poison(&other.words()), None);
    }
}

/// A WRITE that raises a local counter is behind a failed entry: its counter is poisoned, in either layout. A counter
/// before the failure is raised.
#[test]
fn counters_behind_a_failed_entry_are_poisoned() {
    for way in WAYS {
        let ranks = ranks(2, way);
        let rank = &ranks[0];
        let bare = SlotLayout::Bare { values: TABLE.values, errors: TABLE.errors, count: TABLE.count };
        let of_bare = |number| bare.slot_at(number).unwrap();
        for (good, bad, poisoned) in [(of_bare(4), of_bare(5), false), (rank.slot(9), rank.slot(10), true)] {
            let queue = rank.queues.make_queue(8).unwrap();
            let counted = |slot: trunkline_device_queue::SignalSlot| {
                let counter = WordAddition { at: rank.at(0, slot.value), value: 7, poisoned };
                counter.attach_to(rank.write(0, 1, 0, 8)).unwrap()
            };
            let all = [counted(good), broken(rank, 0), counted(bad)];
            queue.post(&all, &mut patience()).unwrap();
            let (words, until) = (rank.words(), SlotCondition::AtLeast(7));
            assert_eq!(good.wait(&words, until, &mut patience()), Ok(7), "{way:?}");
            let seen = bad.wait(&words, until, &mut patience());
            let Err(WaitError::Poisoned(poison)) = seen else { panic!("{way:?}: {seen:?}") };
            assert_eq!((poison.status, poison.queue), (EntryStatus::Access, queue.queue_shape().number()));
        }
    }
}

/// Acceptance case T9: an abort ends all waits, and the engine begins nothing after it has read the abort.
#[test]
fn abort_ends_all_waits_and_later_entries() {
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    for way in WAYS {
        let ranks = ranks(2, way);
        let (rank, other) = (&ranks[0], &ranks[1]);
        for round in 0..20 {
            let queue: DeviceQueue<QueueWords> = rank.queues.make_queue(64).unwrap();
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let stop = (random >> 33) % 60;
            let why = AbortWord { status: EntryStatus::Aborted, reason: round };
            let slot = 100 + round;
            std::thread::scope(|scope| {
                let waiters = [0, 1, 2].map(|_| {
                    let queue = queue.clone();
                    scope.spawn(move || {
                        let mut told = Ok(());
                        for _ in 0..60 {
                            let posted = queue.post(&[rank.signal(1, slot, 1)], &mut patience());
                            let Ok(ticket) = posted else { break };
                            told = queue.wait(ticket, &mut patience());
                            if told.is_err() {
                                break;
                            }
                        }
                        told
                    })
                });
                let aborter = queue.clone();
                scope.spawn(move || {
                    let mut budget = patience();
                    while other.slot(slot).read_value(&other.words()) < stop && budget.spend_poll() {
                        // In inline mode, this waiter also executes the entries.
                        other.words().pause();
                    }
                    assert!(aborter.abort(why));
                });
                for waiter in waiters {
                    // Waiters whose entries had not completed get an error; the others need none.
                    if let Err(error) = waiter.join().unwrap() {
                        let is_it = matches!(error, WaitError::Aborted(told) if told == why)
                            || matches!(error, WaitError::Failed(fault) if fault.status == EntryStatus::Aborted);
                        assert!(is_it, "{way:?}: {error:?}");
                    }
                }
            });
            // Later entries are flushed, so memory does not change any more.
            let late = queue.post(&[rank.signal(1, slot, 1 << 32)], &mut patience());
            if let Ok(late) = late {
                assert!(queue.wait(late, &mut patience()).is_err(), "{way:?}");
            }
            std::thread::sleep(Duration::from_millis(2));
            assert!(bytes_of(&other.memory, other.slot(slot).value + 4, 4) == [0; 4], "{way:?}");
        }
    }
}
