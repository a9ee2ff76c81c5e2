//! The cases of M2, for any device.

use std::time::Instant;

use trunkline_device::{KernelJob, MemberNetwork};
use trunkline_device_queue::WordMemory as _;
use trunkline_proto::wire::device_queue::{AbortWord, EntryStatus, at};

use crate::machine::{Machine, PLAN, Place, Plan, Rank, until};

/// A wait that takes too long ends with a reason.
pub(crate) fn expires(machine: &Machine) {
    let rank = Rank::new(machine, 0, PLAN);
    const TIMEOUT: u64 = 4;
    assert_eq!(rank.run(machine, "expires", (1, 1), rank.job(machine)), [TIMEOUT]);
}

/// Every operation, at depths and first indices that wrap, over one lane and two, by single threads and groups.
pub(crate) fn operations(machine: &Machine) {
    for place in [Place::Device, Place::Pinned] {
        for (depth, first, lanes) in [
            (2, 0, 1),
            (2, u64::MAX - 5, 1),
            (4, u64::MAX - 60, 1),
            (64, 0xffff_fff0, 2),
            (1024, u64::MAX - 900, 2),
        ] {
            for &threads in machine.groups.iter().filter(|&&threads| threads < depth) {
                let plan = Plan { place, lanes, depth, first, ..PLAN };
                let rank = Rank::new(machine, 0, plan);
                let job = KernelJob { rounds: 12, ..rank.job(machine) };
                let results = rank.run(machine, "operations", (1, threads), job);
                let failed = results.iter().fold(0, |all, one| all | one);
                assert!(failed == 0, "{plan:?}, {threads} threads: checks that failed: {failed:#b}");
                // A second time, because indices, bases and groups continue with their current values.
                assert_eq!(rank.slot(machine, 7), [24, 0], "{plan:?}");
                assert_eq!(rank.slot(machine, 5), [2, 0], "{plan:?}");
            }
        }
    }
}

/// Acceptance cases T11 and T17: many producers on few queues, at all depths. Every entry is executed once, and the
/// last write of each thread has arrived.
pub(crate) fn floods(machine: &Machine, place: Place) {
    // Lanes, depth, entries per batch, blocks, threads.
    for (lanes, depth, batch, blocks, threads) in
        [(1, 2, 2, 1, 1), (1, 2, 1, 2, 2), (1, 4, 4, 2, 3), (2, 64, 8, 4, 4), (4, 1024, 16, 4, 4)]
    {
        let whole = depth == 1024 && machine.is_full;
        let entries: u64 = match place {
            _ if !whole => 8_000,
            // Each write is a copy by the driver, which takes about 6 us on a GPU.
            Place::Device if machine.is_real => 1_000_000,
            _ => 10_000_000,
        };
        let plan = Plan { place, lanes, depth, first: u64::MAX - 3000, blocks };
        flood(machine, plan, threads, (batch, entries));
    }
}

fn flood(machine: &Machine, plan: Plan, threads: u32, (batch, entries): (u64, u64)) {
    let rank = Rank::new(machine, 0, plan);
    let producers = u64::from(plan.blocks * threads);
    let rounds = entries.div_ceil(producers * batch).max(4);
    let job = KernelJob { rounds, batch, bytes: 64 << 10, ..rank.job(machine) };
    let began = Instant::now();
    let results = rank.run(machine, "flood", (plan.blocks, threads), job);
    let seconds = began.elapsed().as_secs_f64();
    assert_eq!(results, vec![0; producers as usize], "{plan:?}: failed operations");
    let raised: u64 = (0..u64::from(plan.lanes)).map(|lane| rank.slot(machine, lane)[0]).sum();
    assert_eq!(raised, producers * rounds, "{plan:?}: signals");
    if batch > 1 {
        let written = rank.region_words(machine, 64 << 10, producers as usize);
        assert_eq!(written, vec![rounds; producers as usize], "{plan:?}: the last write of each thread");
    }
    let all = producers * rounds * batch;
    let rate = all as f64 / seconds / 1e6;
    println!("{plan:?}, {producers} producers: {all} entries in {seconds:.2} s, {rate:.2} M/s");
    for of in rank.lanes.queue_numbers() {
        let queue = rank.queues.find_queue(of[0]).unwrap();
        assert_eq!((queue.queue_fault(), queue.abort_word()), (None, None), "{plan:?}");
    }
}

/// Bytes arrive before the signal that follows them, however late the device copies.
pub(crate) fn exchanges(machine: &Machine) {
    for place in [Place::Device, Place::Pinned] {
        for &threads in machine.groups {
            let plan = Plan { place, lanes: 2, blocks: 2, ..PLAN };
            let rank = Rank::new(machine, 0, plan);
            let rounds = if machine.is_full { 5_000 } else { 300 };
            let job = KernelJob { rounds, bytes: 16 << 10, ..rank.job(machine) };
            let results = rank.run(machine, "exchange", (2, threads), job);
            assert!(results.iter().all(|one| *one == 0), "{plan:?}, {threads} threads: {results:x?}");
            assert_eq!([0, 1].map(|slot| rank.slot(machine, slot)), [[rounds, 0], [rounds, 0]]);
        }
    }
}

/// Two ranks flood each other at the same time, and change each other's words.
pub(crate) fn two_ranks(machine: &Machine) {
    for place in [Place::Device, Place::Pinned] {
        let plan = Plan { place, lanes: 2, blocks: 2, ..PLAN };
        let ranks = [0, 1].map(|me| Rank::new(machine, me, plan));
        ranks[0].learn(1, &ranks[1]);
        ranks[1].learn(0, &ranks[0]);
        let rounds = 500;
        let job = |me: usize| {
            let keys = [ranks[me].key.to_bits(), ranks[1 - me].key.to_bits()];
            let own = ranks[me].job(machine);
            KernelJob { keys, peer: 1 - me as u32, rounds, batch: 4, bytes: 64 << 10, ..own }
        };
        let running = [0, 1].map(|me| ranks[me].start(machine, "flood", (2, 2), job(me)));
        for (rank, running) in ranks.iter().zip(&running) {
            assert_eq!(rank.finish(machine, running, (2, 2)), [0; 4], "{plan:?}");
        }
        for rank in &ranks {
            let raised: u64 = [0, 1].map(|lane| rank.slot(machine, lane)[0]).iter().sum();
            assert_eq!(raised, 4 * rounds, "{plan:?}");
            assert_eq!(rank.region_words(machine, 64 << 10, 4), [rounds; 4], "{plan:?}");
        }
    }
}

/// The results of waits for a ticket, a slot and a flush, and whether the thread has ended.
fn kinds(result: u64) -> [u64; 4] {
    [result & 0xff, result >> 8 & 0xff, result >> 16 & 0xff, result >> 63]
}

const FAILED: u64 = 1;
const POISONED: u64 = 2;
const ABORTED: u64 = 3;

/// A failure reaches every waiter of every kind, of all threads.
pub(crate) fn failures(machine: &Machine) {
    for place in [Place::Device, Place::Pinned] {
        let rank = Rank::new(machine, 0, Plan { place, blocks: 2, ..PLAN });
        let own = rank.job(machine);
        let job = KernelJob { keys: [own.keys[0] ^ 0x5a00, own.keys[1]], number: u64::MAX, ..own };
        let results = rank.run(machine, "endure", (2, 3), job);
        for result in &results {
            assert_eq!(kinds(*result), [FAILED, POISONED, FAILED, 1], "{place:?}: {results:x?}");
            assert_eq!(
                (result >> 32 & 0xffff) as u16,
                EntryStatus::Access.to_bits(),
                "{place:?}: {results:x?}"
            );
        }
        assert_ne!(rank.slot(machine, 0)[1], 0, "the slot must be poisoned");
        let queue = rank.queues.find_queue(rank.lanes.queue_numbers()[0][0]).unwrap();
        assert_eq!(queue.queue_fault().map(|fault| fault.status), Some(EntryStatus::Access));
    }
}

/// An abort by the host ends waits without a limit.
pub(crate) fn aborts(machine: &Machine) {
    for place in [Place::Device, Place::Pinned] {
        let rank = Rank::new(machine, 0, Plan { place, blocks: 2, ..PLAN });
        let job = KernelJob { number: u64::MAX, ticks: 0, ..rank.job(machine) };
        let running = rank.start(machine, "endure", (2, 2), job);
        let queue = rank.queues.find_queue(rank.lanes.queue_numbers()[0][0]).unwrap();
        until("four puts and signals have completed", || {
            queue.as_memory().load(at::FRONTIER, std::sync::atomic::Ordering::Acquire) >= 8
        });
        assert!(!running.is_over().unwrap(), "the kernel must still wait");
        assert!(queue.abort(AbortWord { status: EntryStatus::Aborted, reason: 3 }));
        let results = rank.finish(machine, &running, (2, 2));
        for result in &results {
            let [_, slot, _, ended] = kinds(*result);
            assert_eq!((slot, ended), (ABORTED, 1), "{results:x?}");
        }
    }
}

/// A thread of the device aborts the queue, and the host sees the abort.
pub(crate) fn stops(machine: &Machine) {
    for round in 0..10 {
        let rank = Rank::new(machine, 0, Plan { blocks: 2, ..PLAN });
        let job = KernelJob { number: u64::MAX, ticks: 0, ..rank.job(machine) };
        let results = rank.run(machine, "stop", (2, 2), job);
        for result in &results {
            let [_, slot, _, ended] = kinds(*result);
            assert!(ended == 1 && (slot == ABORTED || slot == POISONED), "{round}: {results:x?}");
        }
        let queue = rank.queues.find_queue(rank.lanes.queue_numbers()[0][0]).unwrap();
        until("the host sees the abort", || queue.abort_word().is_some());
        assert_eq!(queue.abort_word(), Some(AbortWord { status: EntryStatus::Aborted, reason: 7 }));
    }
}

/// A put of one word and its wait, in ticks of the device.
pub(crate) fn pings(machine: &Machine) {
    for place in [Place::Device, Place::Pinned] {
        let rank = Rank::new(machine, 0, Plan { place, ..PLAN });
        let job = KernelJob { rounds: 500, bytes: 8, ..rank.job(machine) };
        let failed = rank.run(machine, "ping", (1, 1), job);
        assert_eq!(failed, [0]);
        let mut ticks = rank.result_words(machine, 501);
        ticks.remove(0);
        ticks.sort_unstable();
        assert!(ticks[0] > 0);
        println!("{place:?}: put of 8 B and wait: {} ticks, p50, {}, p99", ticks[250], ticks[495]);
    }
}

/// Creates the given number of ranks, connected to each other.
fn near(machine: &Machine, place: Place, count: usize) -> Vec<Rank> {
    let plan = Plan { place, depth: 32, ..PLAN };
    let ranks: Vec<Rank> = (0..count as u32).map(|me| Rank::new(machine, me, plan)).collect();
    for (me, rank) in ranks.iter().enumerate() {
        for (other, of) in ranks.iter().enumerate().filter(|(other, _)| *other != me) {
            assert_eq!(of.key, rank.key, "all regions must have the same key");
            rank.learn(other as u32, of);
        }
    }
    ranks
}

/// Runs a kernel on each rank at the same time.
fn together<N: MemberNetwork + 'static>(
    machine: &Machine,
    ranks: &[Rank<N>],
    threads: u32,
    name: &str,
    job: &KernelJob,
) {
    let start = |(me, rank): (usize, &Rank<N>)| {
        let KernelJob { rounds, batch, bytes, .. } = *job;
        let number = ranks.len() as u64;
        let own = KernelJob { peer: me as u32, number, rounds, batch, bytes, ..rank.job(machine) };
        rank.start(machine, name, (1, threads), own)
    };
    let running: Vec<_> = ranks.iter().enumerate().map(start).collect();
    for (rank, running) in ranks.iter().zip(&running) {
        let results = rank.finish(machine, running, (1, threads));
        assert!(results.iter().all(|one| *one == 0), "{name}, {:?}: {results:x?}", rank.plan);
    }
}

/// The programs of the three examples, as kernels.
pub(crate) fn examples(machine: &Machine) {
    for place in [Place::Device, Place::Pinned] {
        for count in [2, 3] {
            for &threads in machine.groups.iter().filter(|&&threads| threads < 32) {
                each_example(machine, threads, || near(machine, place, count));
            }
        }
    }
}

/// Runs each of the three, each on new ranks.
pub(crate) fn each_example<N: MemberNetwork + 'static>(
    machine: &Machine,
    threads: u32,
    make: impl Fn() -> Vec<Rank<N>>,
) {
    ring(machine, threads, &make());
    dispatch(machine, threads, &make());
    halo(machine, threads, &make());
}

fn ring<N: MemberNetwork + 'static>(machine: &Machine, threads: u32, ranks: &[Rank<N>]) {
    const WORDS: u64 = 1000;
    let number = |rank: u64, at: u64| (rank + 1) * (at + 3);
    let job = KernelJob { bytes: WORDS * 8, ..KernelJob::default() };
    for (me, rank) in (0..).zip(ranks) {
        let words: Vec<u64> = (0..WORDS).map(|at| number(me, at)).collect();
        rank.fill(machine, 0, &words);
    }
    together(machine, ranks, threads, "ring", &job);
    for rank in ranks {
        let sums = rank.region_words(machine, 2 * WORDS * 8, WORDS as usize);
        for (at, sum) in (0..).zip(sums) {
            let wanted: u64 = (0..ranks.len() as u64).map(|rank| number(rank, at)).sum();
            assert_eq!(sum, wanted, "number {at}, {:?}", rank.plan);
        }
    }
}

fn dispatch<N: MemberNetwork + 'static>(machine: &Machine, threads: u32, ranks: &[Rank<N>]) {
    const TOKENS: u64 = 200;
    let job = KernelJob { batch: TOKENS, bytes: TOKENS * 8, ..KernelJob::default() };
    let count = ranks.len();
    together(machine, ranks, threads, "dispatch", &job);
    let all = (0..count as u64).flat_map(|rank| (0..TOKENS).map(move |token| token * 2_654_435_761 + rank));
    let all: Vec<u64> = all.collect();
    for (me, rank) in (0..).zip(ranks) {
        let mine: u64 = all.iter().filter(|number| **number % count as u64 == me).sum();
        let sum = rank.region_words(machine, count as u64 * TOKENS * 8, 1)[0];
        assert_eq!(sum, mine, "tokens of rank {me} of {count}, {:?}", rank.plan);
    }
}

fn halo<N: MemberNetwork + 'static>(machine: &Machine, threads: u32, ranks: &[Rank<N>]) {
    const CELLS: u64 = 37;
    const ROUNDS: u64 = 25;
    let job = KernelJob { batch: CELLS, rounds: ROUNDS, ..KernelJob::default() };
    let cell = |at: u64| at * at + 1;
    for (me, rank) in (0..).zip(ranks) {
        let cells: Vec<u64> = (0..CELLS).map(|at| cell(me * CELLS + at)).collect();
        rank.fill(machine, 0, &cells);
    }
    let count = ranks.len();
    together(machine, ranks, threads, "halo", &job);
    let whole = count * CELLS as usize;
    let mut cells: Vec<u64> = (0..whole as u64).map(cell).collect();
    for _ in 0..ROUNDS {
        let sum = |at: usize| {
            let (before, behind) = (cells[(at + whole - 1) % whole], cells[(at + 1) % whole]);
            before.wrapping_add(cells[at]).wrapping_add(behind)
        };
        cells = (0..whole).map(sum).collect();
    }
    for (rank, wanted) in ranks.iter().zip(cells.chunks(CELLS as usize)) {
        assert_eq!(rank.region_words(machine, 0, CELLS as usize), wanted, "{:?}", rank.plan);
    }
}
