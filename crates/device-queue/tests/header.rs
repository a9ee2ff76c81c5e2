//! The device header, compiled for the host, beside the Rust core: the same acts on two worlds leave the same words in
//! all memory, and have the same results. Includes traces of the design, and orders of accesses that no single thread
//! could distinguish.

#![allow(clippy::unwrap_used, reason = "a failed setup step ends the test")]

mod common;
#[path = "header/fixture.rs"]
mod fixture;
#[path = "header/twin.rs"]
mod twin;

use std::cell::{Cell, RefCell};

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use trunkline_device_queue::{QueueView, WordMemory, header};
use trunkline_proto::wire::device_queue::{
    AbortWord, BELLS_MAX, CompanionWord, CounterUpdate, DEPTH_MAX, DEPTH_MIN, DoorbellLayout, EntryStatus,
    EntryWork, FrontierWord, INLINE_BYTES_MAX, LENGTH_MAX, QueueEntry, QueueShape, VERSION, at,
};

use common::is_full;
use fixture::{Fixture, compile, fixture, skip};
use twin::{Mode, Pair, Plan, Rust, lanes, signal};

const GIB: u64 = 1 << 30;

const PLAN: Plan = Plan { mode: Mode::Device, lanes: 1, depth: 8, first: 0, checked: false };

/// Values near all limits of an index, or of a part of it.
fn firsts(depth: u32) -> [u64; 8] {
    let depth = u64::from(depth);
    [0, 1, 0xfffd, 0xffff_fffd, (1 << 63) - 3, (1 << 62) - 2, u64::MAX - 2 * depth + 1, u64::MAX - 1]
}

/// One act on both worlds.
#[derive(Clone, Copy, Debug)]
struct Act {
    kind: u8,
    raw: [u16; 6],
}

const LENGTHS: [u64; 10] = [0, 1, 20, 100, 4096, GIB - 1, GIB, GIB + 1, 5 * GIB / 2, 4 * GIB + 5];

/// An address: mostly small, sometimes near the limit of the address space.
fn address(raw: u16) -> u64 {
    if raw.is_multiple_of(17) { u64::MAX - u64::from(raw) * 4096 } else { u64::from(raw) * 8 }
}

/// Performs an act of the world on both sides, or an operation with its arguments.
fn arguments(pair: &Pair<'_>, rust: &Rust<'_>, act: &Act) -> Option<(u64, [u64; 10])> {
    let [a, b, c, d, e, f] = act.raw.map(u64::from);
    let looks = 1 + f % 3;
    let len = LENGTHS[(c % 10) as usize];
    let (from, to) = (address(act.raw[0]), address(act.raw[1]));
    let queues = u64::from(pair.plan.lanes) * 2;
    let queue = a % queues;
    let near = pair.word(queue as usize, at::RESERVED).wrapping_sub(b % (u64::from(pair.plan.depth) + 2));
    let ready = pair.word(queue as usize, at::READY);
    let kind = u64::from(act.kind % 40);
    Some(match kind {
        0..=8 => (kind, [looks, d, from, to, len, e % 8, u64::from(act.raw[4]), b % 8, c, 0]),
        9..=15 => {
            let threads = match kind {
                14 => 3 + d % 5,
                _ => d % (u64::from(pair.plan.depth) + 3),
            };
            let has = if kind == 14 { e % 2 } else { e };
            (
                kind + 1,
                [looks, from, to, len, has, d % 8, e, c % 8, a, if kind == 11 { d % 40 } else { threads }],
            )
        }
        16 => (16, [looks, 0, 0, 0, 0, a % 8, b, c % 8, d, 0]),
        17 => (17, [looks, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
        18 => (18, [0; 10]),
        19 => (19, [looks, b % (queues / 2 + 1), near, 0, 0, 0, 0, 0, 0, 0]),
        20..=22 => {
            let of = if c % 16 == 0 { queue + 1 } else { queue };
            (kind, [looks, queue, of, if c % 17 == 0 { 4 } else { 5 }, near, 0, 0, 0, 0, 0])
        }
        23 if !rust.holds(queue) => {
            (23, [looks, queue, d % (u64::from(pair.plan.depth) + 2), 0, 0, 0, 0, 0, 0, 0])
        }
        24 | 25 | 27 if rust.holds(queue) => {
            (kind, [0, queue, b % 8, to, e, d, u64::from(act.raw[4]) << (d % 40), c, 0, 0])
        }
        26 => (26, [0, queue, ready.wrapping_sub(b % 3), 0, 0, 0, 0, 0, 0, 0]),
        28 if e % 8 == 0 => (28, [0, queue, b % 12, d, 0, 0, 0, 0, 0, 0]),
        29 | 30 => (kind, [looks, queue, 0, 0, 0, 0, 0, 0, 0, 0]),
        31 => (40 + c % 3, [looks, a % 8, b % 6, d % 9, e % 2, 0, 0, 0, 0, 0]),
        32 => (43 + c % 2, [looks, 1 + a % 4, b % 7, d % 1000, d, e, 0, 0, 0, 0]),
        34 => (46, [looks, a % 8, b % 6, d % 9, e % 2, queue, 0, 0, 0, 0]),
        33 => (45, [looks, a % 8, 2, b % 4, 0, 0, 0, 0, 0, 0]),
        _ => return None,
    })
}

/// An act of the engine, the host or the other rank.
fn others(pair: &Pair<'_>, act: &Act) {
    let [a, b, c, ..] = act.raw.map(u64::from);
    match act.raw[5] % 8 {
        0 => assert_eq!(pair.rust.answer(a % 8 == 0), pair.header.answer(a % 8 == 0)),
        1 if c % 4 == 0 => {
            let queue = a as u32 % (pair.plan.lanes * 2);
            let index = pair.word(queue as usize, at::RESERVED).wrapping_add(b % 3);
            pair.rust.fail(queue, index);
            pair.header.fail(queue, index);
        }
        2 => {
            for world in [&pair.rust, &pair.header] {
                world.slots.fetch_add(128 + a % 8 * 16, b % 4, std::sync::atomic::Ordering::AcqRel);
            }
        }
        _ => assert_eq!(pair.rust.pass(), pair.header.pass()),
    }
}

fn run(plan: Plan, acts: &[Act]) {
    let fixture = fixture("header").unwrap();
    let pair = Pair::new(fixture, plan);
    let lanes = lanes(&pair.rust);
    let mut rust = Rust::new(&pair.rust, &lanes, &plan);
    pair.compare();
    for act in acts {
        match arguments(&pair, &rust, act) {
            None => others(&pair, act),
            Some((number, args)) => {
                let theirs = pair.twin.act(number, &args);
                no_change(fixture);
                assert_eq!(
                    theirs,
                    rust.act(number, &args),
                    "act {number} with {args:?}: the header's result is on the left"
                );
            }
        }
        pair.compare();
    }
}

fn plan() -> impl Strategy<Value = Plan> {
    let mode = prop_oneof![Just(Mode::Bits), Just(Mode::Bytes), Just(Mode::Device)];
    (mode, 1..=2u32, prop::sample::select(vec![2u32, 4, 8, 64]), 0..8usize, any::<bool>()).prop_map(
        |(mode, lanes, depth, first, checked)| Plan {
            mode,
            lanes,
            depth,
            first: firsts(depth)[first],
            checked,
        },
    )
}

/// No atomic of a device changes memory that it shares with the host.
fn no_change(fixture: &Fixture) {
    assert_eq!(fixture.changes(), 0, "atomics on memory of the host");
}

/// Acceptance case T15: random scripts of all operations, near all limits of numbers, with errors.
#[test]
fn header_and_core_leave_the_same_words() {
    let Some(fixture) = fixture("the device header beside the Rust core") else { return };
    let _turn = fixture.turn();
    let cases = if is_full() { 300_000 } else { 10_000 };
    let mut runner = TestRunner::new(Config { failure_persistence: None, ..Config::with_cases(cases) });
    let acts = prop::collection::vec(
        (any::<u8>(), any::<[u16; 6]>()).prop_map(|(kind, raw)| Act { kind, raw }),
        1..60,
    );
    let result = runner.run(&(plan(), acts), |(plan, acts)| {
        run(plan, &acts);
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
}

/// Performs one act on both sides, and compares.
fn both(pair: &Pair<'_>, rust: &mut Rust<'_>, act: u64, args: &[u64; 10]) -> [u64; 8] {
    let theirs = pair.twin.act(act, args);
    assert_eq!(theirs, rust.act(act, args), "act {act}");
    pair.compare();
    theirs
}

/// The decoded entries of a queue from `first` on, from the header's ring.
fn works(pair: &Pair<'_>, queue: usize, first: u64, count: u64) -> Vec<QueueEntry> {
    let queue = &pair.header.queues[queue];
    let read = |index: u64| {
        let words = std::array::from_fn(|word| {
            queue.as_memory().get(queue.queue_shape().entry_offset(index) + word as u64 * 8)
        });
        QueueEntry::from_words(&words, index, queue.queue_shape().is_checked()).unwrap()
    };
    (0..count).map(|at| read(first.wrapping_add(at))).collect()
}

/// Runs a trace in each mode, from all first indices.
fn trace(plan: Plan, test: &str, run: impl Fn(&Pair<'_>, &mut Rust<'_>)) {
    let Some(fixture) = fixture(test) else { return };
    let _turn = fixture.turn();
    for mode in [Mode::Bits, Mode::Bytes, Mode::Device] {
        for first in firsts(plan.depth) {
            let plan = Plan { mode, first, ..plan };
            let pair = Pair::new(fixture, plan);
            let lanes = lanes(&pair.rust);
            run(&pair, &mut Rust::new(&pair.rust, &lanes, &plan));
        }
    }
}

fn with_companion(pair: &Pair<'_>) {
    for world in [&pair.rust, &pair.header] {
        for lane in 0..pair.plan.lanes {
            world.queues[lane as usize].answer_companion(CompanionWord::Queue(lane + pair.plan.lanes));
        }
    }
}

/// Traces A1 to A3: puts of the original.
#[test]
fn puts_are_writes() {
    trace(PLAN, "puts of the device header", |pair, rust| {
        let first = pair.plan.first;
        let at = |index: u64| first.wrapping_add(index);
        let out = both(pair, rust, 0, &[1, 0, 64, 128, 4096, 0, 0, 0, 0, 0]);
        assert_eq!(out[5..7], [0, first]);
        let out = both(pair, rust, 0, &[1, 0, 0, 0, 5 * GIB / 2, 0, 0, 0, 0, 0]);
        assert_eq!(out[6], at(3), "A2: three pieces");
        assert_eq!(pair.header.page.read_bell(0), at(4), "one doorbell");
        let out = both(pair, rust, 4, &[1, 0, 8, 8, 8, 1, 3, 0, 0, 0]);
        assert_eq!(out[6], at(5), "A3");
        let [write, signal] = works(pair, 0, at(4), 2).try_into().unwrap();
        assert!(matches!(write.work, EntryWork::Write { .. }));
        assert!(signal.fence == trunkline_proto::wire::device_queue::EntryFence::ReadsAndAtomics);
        // Trace A8: behind all other entries, with a wait.
        assert_eq!(both(pair, rust, 8, &[1, 0, 0, 0, 0, 2, 0, 0, 0, 0])[..2], [8, 4]);
    });
}

/// Traces A4 and A5: the entry that a counter waits for.
#[test]
fn counters_wait_for_the_right_entry() {
    trace(PLAN, "counters of the device header", |pair, rust| {
        with_companion(pair);
        let first = pair.plan.first;
        let at = |index: u64| first.wrapping_add(index);
        both(pair, rust, 5, &[1, 0, 0, 0, 8, 1, 3, 2, 4, 0]);
        let out = both(pair, rust, 10, &[1, 0, 0, 8, 3, 1, 3, 2, 4, 0]);
        assert_eq!(out[6..], [at(2), at(3)]);
        both(pair, rust, 10, &[1, 0, 0, 8, 11, 1, 3, 2, 4, 0]);
        let waits: Vec<_> = works(pair, 1, first, 6)
            .iter()
            .filter_map(
                |entry| if let EntryWork::Wait { queue: 0, index } = entry.work { Some(index) } else { None },
            )
            .collect();
        assert_eq!(
            waits,
            [at(1), at(2), at(5)],
            "the original's counter waits for the signal, the successor's for the bytes"
        );
        while pair.header.pass() + pair.rust.pass() > 0 {
            pair.compare();
        }
        let counted = both(pair, rust, 42, &[1, 2, 0, 8, 0, 0, 0, 0, 0, 0]);
        assert_eq!(counted[1..6], [0, 0, 0, 0, 8], "each counter must be raised twice by four");
    });
}

/// The last WRITE raises its counter itself. If the entry has no room for the counter, the companion raises it.
#[test]
fn last_write_raises_its_counter() {
    trace(PLAN, "counters in entries of the device header", |pair, rust| {
        with_companion(pair);
        let first = pair.plan.first;
        let out = both(pair, rust, 10, &[1, 0, 0, 8, 16 | 3, 1, 3, 2, 4, 0]);
        assert_eq!(out[6..], [first, first.wrapping_add(1)]);
        both(pair, rust, 11, &[1, 0, 0, 20, 16 | 2, 1, 3, 3, 5, 3]);
        let counts: Vec<_> =
            works(pair, 0, first, 5).iter().map(|entry| entry.work.counter_update()).collect();
        let count = |id, value: u64| {
            let at = signal(id, 0).at;
            let at = trunkline_proto::wire::device_queue::LocalAddress { addr: at.addr, key: at.key };
            Some(CounterUpdate { at, value: value as u32, poisoned: true })
        };
        assert_eq!(counts, [count(2, 4), None, None, None, count(3, 5)]);
        assert_eq!(pair.header.page.read_bell(1), first, "the companion must have no entry");
        both(pair, rust, 10, &[1, 0, 0, 8, 16 | 2, 1, 3, 2, 1 << 32, 0]);
        both(pair, rust, 10, &[1, 0, 0, 8, 16 | 11, 1, 3, 2, 4, 0]);
        assert_eq!(
            pair.header.page.read_bell(1),
            first.wrapping_add(4),
            "the companion must raise the counter"
        );
        while pair.header.pass() + pair.rust.pass() > 0 {
            pair.compare();
        }
        let counted = both(pair, rust, 42, &[1, 2, 0, 8 + (1 << 32), 0, 0, 0, 0, 0, 0]);
        assert_eq!(counted[1..6], [0, 0, 0, 0, 8 + (1 << 32)]);
        assert_eq!(both(pair, rust, 42, &[1, 3, 0, 5, 0, 0, 0, 0, 0, 0])[1..6], [0, 0, 0, 0, 5]);
    });
}

/// Traces A6 and A14: shares of a group, and signals of lanes.
#[test]
fn group_shares_and_lane_signals_match() {
    let plan = Plan { lanes: 2, depth: 64, ..PLAN };
    trace(plan, "shares of the device header", |pair, rust| {
        for (len, each, last) in [(100, 3, 7), (20, 0, 20)] {
            let out = both(pair, rust, 11, &[1, 0, 0, len, 0, 0, 0, 0, 0, 32]);
            let entries = works(pair, out[5] as usize, out[6].wrapping_sub(31), 32);
            let lengths = entries.iter().map(|entry| match entry.work {
                EntryWork::Write { len, .. } => len,
                _ => 0,
            });
            assert!(lengths.eq((0..31).map(|_| each).chain([last])));
        }
        for chunk in 0..4 {
            let out = both(pair, rust, 10, &[1, 0, 0, 8, 5, 1, 3, 0, 0, 0]);
            assert_eq!(out[5], chunk % 2, "the lanes must alternate");
            let [entry] = works(pair, out[5] as usize, out[7], 1).try_into().unwrap();
            let EntryWork::Atomic { at, .. } = entry.work else { panic!("{entry:?}") };
            assert_eq!(at.addr, signal(1, 0).at.addr + out[5] * 128);
        }
    });
}

/// Trace A9: reservations are published in order, and one doorbell covers them.
#[test]
fn publication_is_in_order() {
    trace(Plan { lanes: 2, ..PLAN }, "reservations of the device header", |pair, rust| {
        let first = pair.plan.first;
        assert_eq!(both(pair, rust, 23, &[1, 0, 2, 0, 0, 0, 0, 0, 0, 0])[5], first);
        // The second producer cannot publish, cancels, and aborts the queue.
        let out = both(pair, rust, 14, &[2, 0, 0, 0, 0, 1, 1, 0, 0, 0]);
        assert_eq!(out[0], 1, "busy");
        let poll = both(pair, rust, 20, &[1, 0, 0, 5, first, 0, 0, 0, 0, 0]);
        assert_eq!(poll[1..3], [3, EntryStatus::Abandoned.to_bits().into()]);
    });
}

/// Traces A10 to A12: room, laps and errors.
#[test]
fn room_laps_and_errors_match() {
    trace(PLAN, "laps of the device header", |pair, rust| {
        let first = pair.plan.first;
        let at = |index: u64| first.wrapping_add(index);
        let signal = [1, 0, 0, 0, 0, 1, 1, 0, 0, 0];
        for _ in 0..8 {
            assert_eq!(both(pair, rust, 14, &signal)[0], 0);
        }
        assert_eq!(both(pair, rust, 14, &signal)[0], 1, "the ring must have no room");
        assert_eq!(pair.rust.pass(), pair.header.pass());
        assert_eq!(both(pair, rust, 14, &signal)[0], 0);
        for index in 0..9 {
            let found = both(pair, rust, 22, &[1, 0, 0, 5, at(index), 0, 0, 0, 0, 0]);
            let expected = if index < 8 { 0 } else { 1 };
            assert_eq!(found[0], expected, "entry {index}");
        }
        pair.rust.fail(0, at(10));
        pair.header.fail(0, at(10));
        for _ in 0..3 {
            both(pair, rust, 14, &signal);
        }
        while pair.rust.pass() + pair.header.pass() > 0 {}
        for (index, kind) in [(9, 0), (10, 1), (11, 1)] {
            let out = both(pair, rust, 21, &[1, 0, 0, 5, at(index), 0, 0, 0, 0, 0]);
            assert_eq!(out[1], kind, "entry {index}");
            assert_eq!(out[2..5], if kind == 0 { [0; 3] } else { [77, 5, at(10)] });
        }
        let waits = both(pair, rust, 42, &[1, 1, 2, 100, 0, 0, 0, 0, 0, 0]);
        assert_eq!(waits[1..4], [2, 77, 0], "the slot must be poisoned, as the queue was stopped");
        assert_eq!(
            both(pair, rust, 22, &[1, 0, 0, 5, at(0), 0, 0, 0, 0, 0])[0],
            2,
            "the place must have a later completion"
        );
    });
}

/// Trace A15: a flush waits for the last entry of each lane. A later flush waits again for completions that this one
/// did not see.
#[test]
fn flushes_cover_all_lanes() {
    trace(Plan { lanes: 2, ..PLAN }, "flushes of the device header", |pair, rust| {
        for _ in 0..3 {
            both(pair, rust, 10, &[1, 0, 0, 8, 0, 0, 0, 0, 0, 0]);
        }
        assert_eq!(both(pair, rust, 18, &[0; 10])[5], 3);
        for _ in 0..2 {
            assert_eq!(
                both(pair, rust, 17, &[2, 0, 0, 0, 0, 0, 0, 0, 0, 0])[1],
                4,
                "the flush must time out, as nothing has completed"
            );
        }
        assert_eq!(pair.rust.pass(), pair.header.pass());
        assert_eq!(both(pair, rust, 17, &[2, 0, 0, 0, 0, 0, 0, 0, 0, 0])[1], 0);
        assert_eq!(both(pair, rust, 18, &[0; 10])[5], 0);
    });
}

/// A put is too long for the queue: some of its entries are posted, and the rest is refused. A flush waits for the
/// posted ones.
#[test]
fn flush_covers_a_partly_refused_put() {
    trace(PLAN, "a long put of the device header", |pair, rust| {
        let long = (u64::from(PLAN.depth) + 1) << 30;
        both(pair, rust, 10, &[3, 0, 0, long, 0, 0, 0, 0, 0, 0]);
        assert_eq!(both(pair, rust, 18, &[0; 10])[5], 1);
        assert_eq!(
            both(pair, rust, 17, &[2, 0, 0, 0, 0, 0, 0, 0, 0, 0])[1],
            4,
            "the flush must time out, as nothing has completed"
        );
    });
}

/// The leader's result reaches the group.
#[test]
fn verdicts_contain_errors() {
    trace(PLAN, "verdicts of the device header", |pair, rust| {
        for kind in 0..7 {
            let round = [1, 9 + kind, kind, 33, 44, 55, 0, 0, 0, 0];
            both(pair, rust, 43, &round);
            assert_eq!(both(pair, rust, 44, &round)[1], kind);
            assert_eq!(
                both(pair, rust, 44, &[1, 8 + kind, 0, 0, 0, 0, 0, 0, 0, 0])[1],
                4,
                "a verdict of another round must be ignored"
            );
        }
    });
}

/// Runs one act of the header, and another act at one of its steps.
fn interrupted(
    mode: Mode,
    test: &str,
    act: (u64, [u64; 10]),
    at_step: &str,
    meanwhile: impl Fn(&Pair<'_>),
) -> Option<u64> {
    let fixture = fixture(test)?;
    let _turn = fixture.turn();
    let pair = Pair::new(fixture, Plan { mode, ..PLAN });
    let is_open = Cell::new(true);
    let step = |name: &str| {
        if name == at_step && is_open.replace(false) {
            meanwhile(&pair);
        }
    };
    let out = fixture.with_steps(step, || pair.twin.act(act.0, &act.1));
    assert_eq!(out[0], 0);
    for _ in 0..4 {
        pair.header.pass();
    }
    Some(pair.header.completed(0))
}

const SIGNAL: (u64, [u64; 10]) = (14, [1, 0, 0, 0, 0, 1, 1, 0, 0, 0]);

/// Two doorbells in the wrong order (m2): the smaller one must not be the last.
#[test]
fn last_doorbell_is_not_the_smaller() {
    for mode in [Mode::Bits, Mode::Bytes, Mode::Device] {
        let post = |pair: &Pair<'_>| assert_eq!(pair.twin.act(SIGNAL.0, &SIGNAL.1)[0], 0);
        let done = interrupted(mode, "doorbells of the device header", SIGNAL, "submit", post);
        assert!(done.is_none_or(|done| done == 2), "{mode:?}: {done:?} of 2 were executed");
    }
}

/// The mark is set after the doorbell (m3), so that an engine that polls in between polls again.
#[test]
fn mark_follows_the_doorbell() {
    for mode in [Mode::Bits, Mode::Bytes, Mode::Device] {
        let pass = |pair: &Pair<'_>| {
            pair.header.pass();
        };
        let done = interrupted(mode, "marks of the device header", SIGNAL, "half-rung", pass);
        assert!(done.is_none_or(|done| done == 1), "{mode:?}");
    }
}

/// The doorbell is rung after the publication (m1), so that the engine reads no unwritten entry.
#[test]
fn doorbell_follows_the_publication() {
    for step in ["early", "publish", "half-rung"] {
        let Some(fixture) = fixture("the order of the device header") else { return };
        let _turn = fixture.turn();
        let pair = Pair::new(fixture, PLAN);
        let ahead = Cell::new(0);
        let check = |name: &str| {
            if name == step {
                ahead.set(
                    ahead.get().max(pair.header.page.read_bell(0).saturating_sub(pair.word(0, at::READY))),
                );
            }
        };
        assert_eq!(fixture.with_steps(check, || pair.twin.act(SIGNAL.0, &SIGNAL.1))[0], 0);
        assert_eq!(ahead.get(), 0, "a doorbell covers unpublished entries");
    }
}

/// Both fences of the loop that rings exist, in their places. A run of one thread could not detect their absence.
#[test]
fn doorbell_is_between_two_full_fences() {
    let Some(fixture) = fixture("fences of the device header") else { return };
    let _turn = fixture.turn();
    let pair = Pair::new(fixture, PLAN);
    let steps = RefCell::new(Vec::new());
    let note = |name: &str| steps.borrow_mut().push(name.to_owned());
    fixture.with_steps(note, || pair.twin.act(SIGNAL.0, &SIGNAL.1));
    assert_eq!(*steps.borrow(), ["publish", "submit", "full-fence", "half-rung", "full-fence", "rung"]);
}

/// A slot is reset while other threads add to it (m9): no addition is lost.
#[test]
fn slot_reset_loses_no_addition() {
    let Some(fixture) = fixture("slots of the device header") else { return };
    let _turn = fixture.turn();
    let pair = Pair::new(fixture, PLAN);
    let add = |name: &str| {
        if name == "reset" {
            pair.header.slots.fetch_add(128, 5, std::sync::atomic::Ordering::AcqRel);
        }
    };
    pair.header.slots.store(128, 7, std::sync::atomic::Ordering::Release);
    let reset = fixture.with_steps(add, || pair.twin.act(41, &[0, 0, 0, 0, 1, 0, 0, 0, 0, 0]));
    assert_eq!(reset[5..7], [1, 7]);
    let left = pair.twin.act(40, &[0, 0, 0, 0, 1, 0, 0, 0, 0, 0]);
    assert_eq!(left[5], 5, "the addition during the reset must be kept");
}

/// A device makes requests by its own words. The engine converts them into an abort, unless one exists, and into
/// companions.
#[test]
fn engine_executes_requests_of_a_device() {
    let Some(fixture) = fixture("requests of the device header") else { return };
    let _turn = fixture.turn();
    for is_first in [true, false] {
        let pair = Pair::new(fixture, PLAN);
        let queue = &pair.header.queues[0];
        assert_eq!(pair.twin.act(29, &[1, 0, 0, 0, 0, 0, 0, 0, 0, 0])[5], CompanionWord::Asked.to_word());
        assert_eq!(
            (queue.as_memory().get(at::COMPANION), pair.header.answer(false)),
            (0, None),
            "the engine has not polled yet"
        );
        assert_eq!(pair.header.pass(), 0);
        assert_eq!(pair.header.answer(false), Some(0));
        assert_eq!(
            pair.twin.act(30, &[1, 0, 0, 0, 0, 0, 0, 0, 0, 0])[5],
            1,
            "the device must read the companion's number"
        );
        let ours = AbortWord { status: EntryStatus::Aborted, reason: 4 };
        if !is_first {
            assert!(queue.abort(ours));
        }
        assert_eq!(pair.twin.act(28, &[0, 0, 6, 9, 0, 0, 0, 0, 0, 0])[5], u64::from(is_first));
        assert_eq!(queue.abort_word(), (!is_first).then_some(ours), "the engine has not polled yet");
        no_change(fixture);
        pair.header.pass();
        let stays = if is_first { AbortWord { reason: 9, ..ours } } else { ours };
        assert_eq!(queue.abort_word(), Some(stays));
    }
}

/// Views that do not meet the requirements for a queue of a device are refused.
#[test]
fn unsuitable_views_are_refused() {
    let Some(fixture) = fixture("views of the device header") else { return };
    let shape = QueueShape::new(8, 3, 1, 9).unwrap();
    let (bits, bytes) = (DoorbellLayout::new(10).unwrap(), DoorbellLayout::new(10).unwrap().by_bytes());
    let own = trunkline_device_queue::view::DeviceWords { words: 4096, claims: 8192 };
    let of = |shape: &QueueShape, bells, own| QueueView::new(shape, 1 << 20, bells, 1 << 16, own);
    assert!(of(&shape, bits, Some(own)).is_none() && of(&shape.for_device(), bytes, None).is_none());
    assert!(
        of(&shape.for_device(), bits, Some(own)).is_none(),
        "a doorbell bit needs an atomic on host memory"
    );
    assert!(of(&shape, DoorbellLayout::new(9).unwrap(), None).is_none(), "the page has no such doorbell");
    let view = of(&shape.for_device(), bytes, Some(own)).unwrap();
    assert_eq!((view.mark - (1 << 16), view.bit, view.words), (64 + 9, 0, 4096));
    assert!(fixture.is_usable(&view));
    for wrong in
        [QueueView { version: 2, ..view }, QueueView { depth: 7, ..view }, QueueView { shift: 2, ..view }]
    {
        assert!(!fixture.is_usable(&wrong));
    }
    assert!(
        bits.page_bytes() > 0
            && DoorbellLayout::new(BELLS_MAX).unwrap().by_bytes().group_count() == BELLS_MAX / 8
    );
}

/// Acceptance case T1: offsets and numbers are the same on both sides.
#[test]
fn header_and_core_layouts_are_equal() {
    let Some(fixture) = fixture("layouts of the device header") else { return };
    macro_rules! offsets {
        ($($field:ident),*) => { [$(std::mem::offset_of!(QueueView, $field) as u64),*] };
    }
    let mut ours = vec![size_of::<QueueView>() as u64];
    ours.extend(offsets!(
        told,
        ring,
        completions,
        bell,
        mark,
        bit,
        claims,
        depth,
        number,
        epoch,
        flags,
        shift,
        version,
        reserved
    ));
    ours.extend([at::RESERVED, at::READY, at::SUBMITTED, at::SHADOW].map(|at| at - 128));
    ours.push(trunkline_device_queue::view::WORDS_BYTES);
    let told = [at::FRONTIER, at::ABORT, at::COMPANION, at::ABORT_ASKED, at::COMPANION_ASKED];
    ours.extend(told.map(|at| at - at::FRONTIER));
    ours.extend([at::ERROR, at::FIRST_BAD, at::REASON].map(|at| at - at::FRONTIER));
    ours.extend([
        u64::from(VERSION),
        DEPTH_MIN.into(),
        DEPTH_MAX.into(),
        LENGTH_MAX,
        INLINE_BYTES_MAX as u64,
    ]);
    ours.extend([
        u64::from(trunkline_device_queue::channel::LANES_MAX),
        trunkline_device_queue::successor::LANE_STRIDE,
    ]);
    ours.push(FrontierWord::new(0, true).0);
    let companions =
        [CompanionWord::None, CompanionWord::Asked, CompanionWord::Refused, CompanionWord::Queue(0)];
    ours.extend(companions.map(CompanionWord::to_word));
    ours.push(trunkline_device_queue::view::GROUP_BYTES);
    ours.extend(0..11);
    assert_eq!(fixture.layout(), ours);
    assert_eq!(EntryStatus::Abandoned.to_bits(), 10);
}

/// Every installed C++ compiler accepts the header, and kernels that use it, without a warning. The embedded text of
/// the header is complete.
#[test]
fn compilers_accept_the_header() {
    for compiler in ["g++", "clang++"] {
        for (source, level) in [("fixture.cpp", "-O0"), ("kernels.cpp", "-O2"), ("kernels.cpp", "-O0")] {
            if !compile(compiler, source, &[level, "-c", "-o", "/dev/null"]) {
                skip(&format!("the device header by {compiler}"), "not installed (Debian: g++, clang)");
                break;
            }
        }
    }
    for file in header::FILES {
        let lines: Vec<_> = file.text.lines().collect();
        assert!(lines.len() <= 600, "{} has {} lines", file.name, lines.len());
        let begins = |line: &&str| line.starts_with("TRUNKLINE_FN") || line.starts_with("TRUNKLINE_CALL");
        for (at, line) in lines.iter().enumerate().filter(|(_, line)| begins(line)) {
            let end = lines[at..].iter().position(|line| line.ends_with('}') && !line.starts_with(' '));
            assert!(end.is_some_and(|end| end < 70), "{}: {line} has more than 70 lines", file.name);
        }
    }
    let folder = fixture::folder().join("../../../../include");
    let mut found = 1;
    for file in header::FILES {
        assert_eq!(std::fs::read_to_string(folder.join(file.name)).unwrap(), file.text, "{}", file.name);
    }
    for file in std::fs::read_dir(folder.join("trunkline/device")).unwrap() {
        let name = format!("trunkline/device/{}", file.unwrap().file_name().to_str().unwrap());
        assert!(header::FILES.iter().any(|file| file.name == name), "{name} is not in header::FILES");
        found += 1;
    }
    assert_eq!(found, header::FILES.len());
}
