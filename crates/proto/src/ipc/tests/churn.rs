//! Random events in random order, in worlds too large for an exhaustive search.

use proptest::prelude::*;

use super::config;
use super::world::{PLACE, Setup, Step, World};
use crate::ipc::exporter::{ExportAmount, ExportUsage, ExporterConfig};
use crate::ipc::importer::{MapRefusal, MappingKind, MappingPlace};
use std::vec::Vec;

const BUFFERS: &[(u64, u64)] = &[
    (0x1000, 0x100),
    (0x1080, 0x100),
    (0x1100, 0x80),
    (0x2000, 0x800),
    (0x3000, 8),
    (0x4000, 0x100),
    (0x4010, 8),
];
const PEERS: usize = 3;
const PLACES: &[MappingPlace] = &[
    PLACE,
    MappingPlace { device: 1, way: MappingKind::Device },
    MappingPlace { device: 0, way: MappingKind::Host },
];

const fn setup(config: ExporterConfig, peers: usize) -> Setup {
    Setup { config, hooked: false, buffers: BUFFERS, peers, places: PLACES, refused: &[] }
}

/// A chosen step, or the number of a pending step.
#[derive(Clone, Copy, Debug)]
enum Event {
    Chosen(Step),
    ByItself(usize),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let buffer = || 0..BUFFERS.len();
    let send =
        (buffer(), 0..PEERS, 0..PLACES.len() * 2, 0..8_u8).prop_map(|(buffer, peer, place, passing)| {
            let place = if place < PLACES.len() { place } else { 0 };
            Step::Send { buffer, peer, place, passing: passing == 0 }
        });
    let amount = (0..6_usize, 0..0x1000_u64).prop_map(|(entries, bytes)| ExportAmount { entries, bytes });
    let rare = prop_oneof![
        4 => Just(Step::Wait),
        4 => (0..0x1000_u64).prop_map(Step::Trim),
        4 => amount.clone().prop_map(Step::Shrink),
        8 => amount.prop_map(Step::Grow),
        4 => (0..PEERS).prop_map(Step::Drain),
        4 => buffer().prop_map(Step::Release),
        1 => (0..PEERS).prop_map(Step::Leave),
        1 => (0..PEERS).prop_map(Step::Die),
    ];
    let fails = prop_oneof![
        Just(Step::Exported(0, false)),
        (0..PEERS).prop_map(|peer| Step::Mapped(peer, 0, Err(MapRefusal::Other))),
        (0..PEERS).prop_map(|peer| Step::Mapped(peer, 0, Err(MapRefusal::AlreadyMapped))),
    ];
    let chosen = prop_oneof![
        10 => buffer().prop_map(Step::Allocate),
        5 => buffer().prop_map(Step::Free),
        1 => buffer().prop_map(Step::FreeUnderUse),
        1 => (0..PEERS).prop_map(Step::Cancel),
        24 => send,
        2 => Just(Step::Look),
        3 => rare,
        1 => fails,
    ];
    prop::collection::vec(
        prop_oneof![2 => chosen.prop_map(Event::Chosen), 5 => (0..1000_usize).prop_map(Event::ByItself)],
        1..400,
    )
}

fn take(world: &mut World, event: Event) {
    let step = match event {
        Event::Chosen(step) => {
            if !world.is_possible(step) {
                return;
            }
            step
        }
        Event::ByItself(number) => {
            let steps = world.pending();
            let Some(&step) = steps.get(number % steps.len().max(1)) else { return };
            step
        }
    };
    world.step(step);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(512) })]

    #[test]
    fn no_memory_is_used_after_its_end(
        events in events(),
        entries in 0..6_usize,
        bytes in 0..0x1000_u64,
        hooked: bool,
        end in prop::option::weighted(0.3, prop_oneof![Just(Step::DieAll), Just(Step::Close)]),
    ) {
        let mut world = World::new(Setup { hooked, ..setup(config(entries, bytes), PEERS) });
        events.into_iter().for_each(|event| take(&mut world, event));
        end.into_iter().for_each(|step| world.step(step));
        world.finish();
    }
}

/// Without failures, a burst of messages costs one export, and one mapping per peer and place.
#[test]
fn a_burst_costs_one_export_and_one_mapping() {
    let config = config(4, 1 << 20);
    let mut world = World::new(setup(config, 1));
    world.step(Step::Allocate(3));
    for _ in 0..65 {
        world.step(Step::Send { buffer: 3, peer: 0, place: 0, passing: false });
        if world.sent == 0 {
            world.step(Step::Exported(0, true));
        }
    }
    while let Some(&step) = world.pending().last() {
        world.step(step);
    }
    let steps = world.steps;
    assert_eq!((steps.exports, steps.opens, steps.copied, steps.fallbacks), (1, 1, 65, 0));
    assert_eq!(world.exporter.counts().hits, 64);
    world.finish();
}

/// Allocates, sends, frees, and does not send again, often enough that a leak would be visible.
#[test]
fn ten_thousand_send_rounds_leave_nothing() {
    for hooked in [false, true] {
        let mut world = World::new(Setup { hooked, ..setup(config(4, 0x1000), 2) });
        for round in 0..10_000 {
            // In turn at the same address, across its end, and elsewhere.
            let buffer = [0, 1, 3, 0, 4][round % 5];
            world.step(Step::Allocate(buffer));
            for peer in 0..2 {
                world.step(Step::Send { buffer, peer, place: 0, passing: false });
                while let Some(&step) = world.pending().first() {
                    world.step(step);
                }
            }
            world.step(Step::Free(buffer));
            if hooked {
                world.step(Step::Look);
            }
            let usage = world.exporter.usage();
            assert!(usage.live.bytes + usage.zombies.bytes <= 0x1000, "{usage:?}");
        }
        assert!(world.steps.copied > 15_000, "{:?}", world.steps);
        if hooked {
            while let Some(&step) = world.pending().first() {
                world.step(step);
            }
            assert_eq!(world.exporter.usage(), Default::default(), "no export depended on the idle limit");
        }
        world.finish();
    }
}

/// Executes all pending steps until none is left, in an order that the numbers determine.
fn settle(world: &mut World, numbers: &[usize]) {
    for number in numbers.iter().chain(&[0]).cycle() {
        let steps = world.pending();
        let Some(&step) = steps.get(number % steps.len().max(1)) else { return };
        world.step(step);
    }
}

/// Allocates, sends, frees, and does not send again. Each way to request memory back, and time alone, ends all exports
/// and mappings.
#[test]
fn each_way_to_release_memory_leaves_nothing() {
    let none = ExportAmount::NONE;
    let ways: [(&str, bool, &[Step]); 7] = [
        ("time", false, &[Step::Wait]),
        ("trim", false, &[Step::Trim(0)]),
        ("release", false, &[Step::Release(0), Step::Release(3)]),
        ("a hook", true, &[Step::Look]),
        ("a budget of 0", false, &[Step::Shrink(none)]),
        ("a close", false, &[Step::Close]),
        ("a drain", false, &[Step::Drain(0), Step::Drain(1)]),
    ];
    for (way, hooked, steps) in ways {
        for in_use in [false, true] {
            let mut world = World::new(Setup { hooked, ..setup(config(4, 0x1000), 2) });
            let sends = || [(0, 0), (0, 1), (3, 0), (3, 1)].into_iter();
            [0, 3].into_iter().for_each(|buffer| world.step(Step::Allocate(buffer)));
            for (buffer, peer) in sends().chain(sends()) {
                world.step(Step::Send { buffer, peer, place: 0, passing: false });
                let exports = world.is_possible(Step::Exported(0, true));
                exports.then(|| world.step(Step::Exported(0, true)));
            }
            let frees =
                [0, 3].map(|buffer| if in_use { Step::FreeUnderUse(buffer) } else { Step::Free(buffer) });
            if !in_use {
                settle(&mut world, &[]);
                assert_eq!((world.mapped(), world.exporter.usage().live.entries), (4, 2));
            }
            let releases = way == "release";
            if releases {
                // The release is requested before the memory is freed.
                steps.iter().for_each(|step| world.step(*step));
            }
            frees.into_iter().for_each(|step| world.step(step));
            if !releases {
                steps.iter().for_each(|step| world.step(*step));
            }
            settle(&mut world, &[3, 1, 4, 1, 5]);
            if in_use && way == "time" {
                // The idle time counts from the last use.
                world.step(Step::Wait);
                settle(&mut world, &[]);
            }
            assert_eq!(world.mapped(), 0, "{way}, in use: {in_use}");
            if way != "a drain" {
                assert_eq!(world.exporter.usage(), ExportUsage::default(), "{way}, in use: {in_use}");
            }
            world.finish();
        }
    }
}

/// Messages follow each other without a pause, but a budget of 0 ends their exports, and no new export begins.
#[test]
fn budget_of_zero_is_reached_under_continuous_messages() {
    let mut world = World::new(setup(config(4, 0x1000), 2));
    [0, 3].into_iter().for_each(|buffer| world.step(Step::Allocate(buffer)));
    let send = |world: &mut World| {
        for (buffer, peer) in [(0, 0), (3, 0), (0, 1), (3, 1)] {
            world.step(Step::Send { buffer, peer, place: 0, passing: false });
            let exports = world.is_possible(Step::Exported(0, true));
            exports.then(|| world.step(Step::Exported(0, true)));
        }
    };
    for round in 0..3 {
        send(&mut world);
        let shared = world.sent;
        assert!(shared > 0, "{round}");
        world.step(Step::Shrink(ExportAmount::NONE));
        // New messages begin before pending ones are done, repeatedly.
        for step in 0..200 {
            send(&mut world);
            let steps = world.pending();
            if let Some(&next) = steps.get(step % steps.len().max(1)) {
                world.step(next);
            }
        }
        assert_eq!((world.mapped(), world.sent), (0, shared), "{round}");
        assert_eq!(world.exporter.usage(), ExportUsage::default(), "{round}");
        world.step(Step::Grow(ExportAmount { entries: 4, bytes: 0x1000 }));
    }
    world.finish();
}
