//! I17: messages to a peer use two channels. The final state is the same for every order in which these and all other
//! channels deliver.

use std::collections::{HashMap, HashSet};
use std::vec::Vec;

use proptest::prelude::*;

use super::config;
use super::world::{PLACE, Setup, Step, World};
use crate::ipc::exporter::{ExportAmount, ExporterConfig};
use crate::ipc::importer::{MappingKind, MappingPlace};

const BUFFERS: &[(u64, u64)] = &[(0x1000, 8), (0x1004, 8), (0x2000, 8), (0x3000, 0x100)];
const PEERS: usize = 2;
const PLACES: &[MappingPlace] = &[PLACE, MappingPlace { device: 1, way: MappingKind::Device }];

fn setup(entries: usize, peers: usize) -> Setup {
    let config = ExporterConfig { passing: 2, ..config(entries, 0x1000) };
    Setup { config, hooked: false, buffers: BUFFERS, peers, places: PLACES, refused: &[] }
}

const fn send(buffer: usize, peer: usize) -> Step {
    Step::Send { buffer, peer, place: 0, passing: false }
}

/// Executes those steps of the user, as far as each is possible, without any delivery. Exports succeed at once.
fn act(world: &mut World, steps: &[Step]) {
    for &step in steps {
        if world.is_possible(step) {
            world.step(step);
        }
        while world.is_possible(Step::Exported(0, true)) {
            world.step(Step::Exported(0, true));
        }
    }
}

/// Executes the user's acts, with all deliveries after each act, in every possible order. Returns the number of states.
/// After each act, the final states differ only in names and in the order of events.
fn every_order(setup: Setup, acts: &[&[Step]]) -> usize {
    let mut begun = Vec::from([World::new(setup)]);
    let mut states = 0;
    for steps in acts {
        begun.iter_mut().for_each(|world| act(world, steps));
        let print = |world: &World| (world.print(), world.steps);
        let mut seen: HashSet<_> = begun.iter().map(print).collect();
        let (mut open, mut ends) = (core::mem::take(&mut begun), HashMap::new());
        while let Some(world) = open.pop() {
            let pending = world.pending();
            if pending.is_empty() {
                world.check_at_rest();
                ends.entry(world.outcome()).or_insert(world.steps);
                begun.push(world);
                continue;
            }
            for step in pending {
                let mut next = world.clone();
                next.step(step);
                if seen.insert(print(&next)) {
                    open.push(next);
                }
            }
        }
        assert_eq!(ends.len(), 1, "{steps:?} end in several ways: {:?}", ends.values());
        states += seen.len();
    }
    std::eprintln!("{states} states, {} ends", begun.len());
    begun.into_iter().for_each(World::finish);
    states
}

#[test]
fn every_delivery_order_has_the_same_final_state() {
    let (a, b, c) = (Step::Allocate(0), Step::Allocate(1), Step::Allocate(2));
    // A buffer, and another one across its end in its place.
    let acts: [&[Step]; 2] =
        [&[a, send(0, 0), send(0, 0), send(0, 1)], &[Step::Free(0), b, send(1, 0), send(1, 1)]];
    let states = every_order(setup(4, 2), &acts);
    assert!(states > 700, "{states}");
    // Two messages at once, one of which is requested back under use and sent again.
    let acts: [&[Step]; 2] = [&[a, c, send(0, 0), send(2, 0), Step::Release(0), send(2, 0)], &[send(0, 0)]];
    let states = every_order(setup(4, 1), &acts);
    assert!(states > 400, "{states}");
    // A peer is drained and receives the announcement again, then the budget becomes 0.
    let shrink = Step::Shrink(ExportAmount::NONE);
    let acts: [&[Step]; 3] =
        [&[a, send(0, 0), Step::Drain(0), send(0, 0)], &[send(0, 0), send(0, 1), shrink], &[send(0, 0)]];
    let states = every_order(setup(4, 2), &acts);
    assert!(states > 100, "{states}");
}

/// The user's steps of one act. A request to release memory that messages use is the last one, because a later message
/// finds that memory only if those messages are not done, which does not depend on the channels.
fn steps() -> impl Strategy<Value = Vec<Step>> {
    let buffer = || 0..BUFFERS.len();
    let send = (buffer(), 0..PEERS, 0..PLACES.len(), 0..8_u8)
        .prop_map(|(buffer, peer, place, passing)| Step::Send { buffer, peer, place, passing: passing == 0 });
    let step = prop_oneof![
        8 => buffer().prop_map(Step::Allocate),
        4 => buffer().prop_map(Step::Free),
        20 => send,
        1 => (0..PEERS).prop_map(Step::Drain),
        1 => Just(Step::Trim(0)),
        1 => Just(Step::Shrink(ExportAmount::NONE)),
        2 => Just(Step::Grow(ExportAmount { entries: 16, bytes: 0x1_0000 })),
        1 => Just(Step::Wait),
        1 => (0..PEERS).prop_map(Step::Leave),
    ];
    let release = prop::option::weighted(0.3, buffer().prop_map(Step::Release));
    (prop::collection::vec(step, 1..12), release).prop_map(|(mut steps, release)| {
        steps.extend(release);
        steps
    })
}

/// Delivers all messages; the numbers choose the next one.
fn deliver(world: &mut World, numbers: &[usize]) {
    for number in numbers.iter().cycle() {
        let steps = world.pending();
        let Some(&step) = steps.get(number % steps.len().max(1)) else { return };
        world.step(step);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(256) })]

    #[test]
    fn two_delivery_orders_have_the_same_end(
        acts in prop::collection::vec(steps(), 1..8),
        orders in prop::array::uniform2(prop::collection::vec(0..1000_usize, 1..60)),
    ) {
        let mut worlds = [0, 1].map(|_| World::new(setup(16, PEERS)));
        for steps in &acts {
            for (world, numbers) in worlds.iter_mut().zip(&orders) {
                act(world, steps);
                deliver(world, numbers);
                world.check_at_rest();
            }
            let [first, second] = &worlds;
            prop_assert_eq!(first.outcome(), second.outcome(), "{:?} and {:?}", first.steps, second.steps);
        }
        worlds.into_iter().for_each(World::finish);
    }
}
