//! The invariants, over a small network of the model in `net.rs`, judged by `oracle.rs`.

mod atomics;
mod ledger;
mod net;
mod oracle;
mod order;

use std::vec::Vec;

use net::{Config, Step, World};
use proptest::prelude::*;

use crate::limits::LINKS_MAX;
use crate::rma::outgoing::SignalOrdering;
use crate::rma::shape::EpochShape;

const COUNTED: SignalOrdering = SignalOrdering::Counted { revert_after: 5 };

/// Epochs of 4 bits, so that their numbers wrap often.
fn narrow() -> Config {
    Config {
        bits: 4,
        shape: EpochShape::new(4, 8, 2).unwrap(),
        order: COUNTED,
        delays: [1, 10, 30, 100],
        rails: LINKS_MAX as u8,
        processes: 2,
        streams: 1,
        two_threads: false,
    }
}

fn wide() -> Config {
    Config { bits: 16, shape: EpochShape::WIRE, ..narrow() }
}

/// Returns steps of all kinds; most are signals.
fn mixed(world: &mut World, steps: u64) -> Vec<Step> {
    let mut all = Vec::new();
    for _ in 0..steps {
        all.push(match world.below(12) {
            0..4 => Step::Put(1 + world.below(4) as u32),
            4..7 => Step::Signal(0),
            7..11 => Step::Signal(1 + world.below(5) as u32),
            _ => Step::Quiet,
        });
    }
    all
}

/// Runs a world in which every stream between any two processes has its own program.
fn everybody(config: Config, seed: u64, steps: u64) -> World {
    let mut world = World::new(config, seed);
    for from in 0..config.processes {
        for to in (0..config.processes).filter(|&to| to != from) {
            for stream in 0..config.streams {
                let program = mixed(&mut world, steps);
                world.program(from, to, stream, &program);
            }
        }
    }
    world
}

fn config() -> impl Strategy<Value = Config> {
    let order = prop_oneof![4 => Just(COUNTED), 1 => Just(SignalOrdering::Completed)];
    (order, 1..=LINKS_MAX as u8, 2..=3_usize, 1..=3_u8, any::<bool>(), any::<bool>()).prop_map(
        |(order, rails, processes, streams, two_threads, is_wide)| {
            let base = if is_wide { wide() } else { narrow() };
            Config { order, rails, processes, streams, two_threads, ..base }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn invariants_hold(config in config(), seed: u64, steps in 1..120_u64) {
        let mut world = everybody(config, seed, steps);
        world.run();
        world.check_end();
    }

    #[test]
    fn invariants_hold_when_paths_are_lost(config in config(), seed: u64, steps in 20..120_u64) {
        let config = Config { rails: LINKS_MAX as u8, ..config };
        let mut world = everybody(config, seed, steps);
        let spared = world.below(LINKS_MAX as u64) as u8;
        for path in (0..LINKS_MAX as u8).filter(|&path| path != spared) {
            let (time, process) = (world.below(2000), world.below(2) as usize);
            match world.below(3) {
                0 => world.fail_at(time, process, 1 - process, path),
                _ => world.lose_at(time, 0, 1, path),
            }
        }
        world.run();
        world.check_end();
    }
}

#[test]
fn lost_paths_cause_repeated_operations() {
    let (mut again, mut made_up) = (0, 0);
    for seed in 1..200 {
        let mut world = everybody(narrow(), seed, 100);
        for path in 0..3 {
            let time = world.below(2000);
            world.lose_at(time, 0, 1, path);
        }
        world.run();
        world.check_end();
        (again, made_up) = (again + world.sent.again, made_up + world.sent.made_up);
    }
    assert!(again > 500 && made_up > 100, "{again} repeated, {made_up} made up for");
}

#[test]
fn mutual_signal_storms_do_not_deadlock() {
    for seed in 1..40 {
        for (config, rails) in [(narrow(), 1), (narrow(), LINKS_MAX as u8), (wide(), LINKS_MAX as u8)] {
            let mut world = World::new(Config { rails, ..config }, seed);
            for (from, to) in [(0, 1), (1, 0)] {
                let mut steps = [Step::Signal(0); 300];
                steps.iter_mut().step_by(3).for_each(|step| *step = Step::Signal(2));
                world.program(from, to, 0, &steps);
            }
            world.run();
            world.check_end();
        }
    }
}

#[test]
fn one_way_signals_cost_an_acknowledgement_in_32() {
    let mut world = World::new(wide(), 7);
    world.program(0, 1, 0, &[Step::Signal(1); 3200]);
    world.run();
    world.check_end();
    assert_eq!(world.oracle[&(0, 1, 0)].applied(), 3200);
    assert!(world.sent.acks <= 3200 / 32 + 1, "{} acknowledgements", world.sent.acks);
    assert!(world.sent.asks <= 1);
}

#[test]
fn acknowledgements_are_piggybacked_on_opposite_signals() {
    let mut world = World::new(wide(), 7);
    world.program(0, 1, 0, &[Step::Signal(0); 2000]);
    world.program(1, 0, 0, &[Step::Signal(0); 2000]);
    world.run();
    let rode = world.seen(0, 1).rode + world.seen(1, 0).rode;
    assert!(
        world.sent.acks < 32 && rode > 64,
        "{} acknowledgements were sent alone, {rode} piggybacked",
        world.sent.acks
    );
}

#[test]
fn plain_puts_cost_the_target_no_work() {
    let mut world = World::new(wide(), 3);
    world.program(0, 1, 0, &[Step::Put(3); 500]);
    world.run();
    world.check_end();
    assert_eq!((world.sent.acks, world.sent.asks, world.sent.counted), (0, 0, 0));
    assert_eq!(world.seen(1, 0), Default::default());
}

#[test]
fn puts_are_counted_while_a_stream_sends_signals() {
    let config = Config { order: SignalOrdering::Counted { revert_after: 5 }, ..wide() };
    let mut world = World::new(config, 3);
    world.program(0, 1, 0, &[Step::Put(4), Step::Signal(2), Step::Put(20), Step::Signal(0), Step::Put(3)]);
    world.run();
    world.check_end();
    assert_eq!(world.sent.counted, 2 + 5 + 3);
}
