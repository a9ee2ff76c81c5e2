//! Threads that register and deregister at random, against a model of held registrations.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use trunkline_fabric::{AccessRights, LocalKey, MemoryRegistrar, Rail as _};
use trunkline_mem::MemoryRange;

use crate::Case;
use crate::kit::{Held, Over, Setup, part};

pub(crate) const CASES: &[Case] = &[
    Case::new("threads at random", &Over::ALL, threads),
    Case::new("threads at random, where some fail", &Over::BOUND, threads_that_fail).env(&[(
        "FI_STRICT_FAIL",
        "mr_regattr:25,mr_regattr:37,mr_regattr:60,mr_bind:29,mr_bind:50,mr_enable:32,mr_enable:70,mr_enable:71",
    )]),
];

const THREADS: u64 = 4;
const ROUNDS: u32 = 1500;
const PLACE: usize = 4096;
const PLACES: usize = 16;

/// Held registrations: the remote key, by rail and local key.
type Known = HashMap<(usize, LocalKey), u64>;
type Model = Mutex<Known>;

/// Checks that holders of one registration are of one scope, and that a key belongs to one registration.
fn agree(known: &Known, between_rails: bool) {
    let mut rails: HashMap<u64, usize> = HashMap::new();
    for (&(rail, _), &key) in known.iter().filter(|(_, key)| **key != 0) {
        let first = *rails.entry(key).or_insert(rail);
        assert!(first == rail || between_rails, "two endpoints share one registration");
    }
}

fn one(
    seed: u64,
    rails: &[Arc<dyn MemoryRegistrar>],
    memory: &MemoryRange,
    model: &Model,
    setup: &Setup,
    fails: bool,
) {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut held: Vec<(usize, Held)> = Vec::new();
    for _ in 0..ROUNDS {
        if held.len() > 5 || !held.is_empty() && random.bool() {
            let (rail, one) = held.swap_remove(random.usize(..held.len()));
            // No other registration has that key before it is deregistered.
            model.lock().unwrap().remove(&(rail, one.keys.local)).unwrap();
            if random.u8(..4) == 0 {
                one.retire()
            } else {
                one.end()
            }
            continue;
        }
        let rail = random.usize(..rails.len());
        let (start, len) = (random.usize(..PLACES), random.usize(1..4));
        let len = len.min(PLACES - start);
        let access = [AccessRights::LOCAL, AccessRights::WRITE, AccessRights::READ_WRITE][random.usize(..3)];
        let wanted = part(memory, start * PLACE, len * PLACE);
        let made = Held::try_by(&rails[rail], &wanted, access);
        let one = match made {
            Ok(one) => one,
            Err(error) if fails => {
                assert!(error.contains("registering"), "{error}");
                continue;
            }
            Err(error) => panic!("{error}"),
        };
        let mut model = model.lock().unwrap();
        let known = model.insert((rail, one.keys.local), one.keys.remote.0);
        assert_eq!(known, None, "two regions have one local key");
        agree(&model, setup.over.shares_between_rails());
        drop(model);
        assert!(setup.registrations() >= 1);
        held.push((rail, one));
    }
    for (rail, one) in held {
        model.lock().unwrap().remove(&(rail, one.keys.local)).unwrap();
        one.end();
    }
}

fn all(setup: &Setup, fails: bool) {
    // The rails have links, so that no registration is closed under its users when one of them retires it.
    let (mut ends, others) = (setup.pair(), setup.pair());
    let rails = [ends.a.registrar(), others.a.registrar(), others.b.registrar()];
    let (memory, model) = (MemoryRange::heap(PLACES * PLACE), Model::default());
    std::thread::scope(|threads| {
        for seed in 0..THREADS {
            let (rails, memory, model) = (&rails, &memory, &model);
            threads.spawn(move || one(seed, rails, memory, model, setup, fails));
        }
    });
    assert!(model.lock().unwrap().is_empty());
    assert_eq!(setup.registrations(), 0, "registrations are left without a holder");
    let held = Held::new(&ends.b, &memory, AccessRights::WRITE);
    let bytes = crate::kit::write(&mut ends, b"and it works", held.remote(0));
    assert_eq!(bytes, trunkline_fabric::OpStatus::Ok);
    held.end();
}

fn threads(setup: &Setup) {
    all(setup, false);
}

fn threads_that_fail(setup: &Setup) {
    all(setup, true);
}
