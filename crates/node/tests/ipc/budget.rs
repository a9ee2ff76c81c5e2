//! When exports are kept and when they are released: by budget, by time, and on request.

use std::time::Duration;

use crate::process::{Began, By, COPIED, MIB, World, meet};
use crate::words::Op;

const SOON: Duration = Duration::from_secs(10);

/// Acceptance case T-D.
#[test]
fn exports_in_use_stay_mapped_beyond_the_budget() {
    let world = World::new(64, 1, By::Bytes);
    let [owner, other] = world.pair();
    let [first, second] = [owner.alloc(4 * MIB), owner.alloc(4 * MIB)];
    for round in 0..4 {
        owner.fill(first, 4 * MIB, round);
        owner.fill(second, 4 * MIB, 100 + round);
        let begun = [owner.send(first, 4 * MIB), owner.send_passing(second, 4 * MIB)];
        let refused = owner.send(second + MIB, MIB);
        let numbers = [other.receive(), other.receive()];
        assert_eq!(other.received(numbers[0], round), (COPIED, 0));
        assert_eq!(other.received(numbers[1], 100 + round), (COPIED, 0));
        assert_eq!(begun.map(|began| owner.sent(began)), [COPIED; 2]);
        if let Began::Begun(_) = refused {
            let number = other.receive();
            assert_eq!(other.received(number, 100 + round + 7 * (MIB as u64 / 8)), (COPIED, 0));
        }
        owner.until(SOON, |look| look.passing == 0 && look.zombies == 0 && look.live <= 1);
    }
    assert_eq!(other.look().map_failures, 0);
}

/// Acceptance case T-E.
#[test]
fn sends_beyond_the_budget_use_passing_exports() {
    let world = World::new(64, 16, By::Bytes);
    let [owner, other] = world.pair();
    let buffers: Vec<usize> = (0..20).map(|_| owner.alloc(MIB)).collect();
    let begun: Vec<Began> = (0..20)
        .map(|n| {
            owner.fill(buffers[n], MIB, n as u64);
            match owner.send(buffers[n], MIB) {
                Began::Elsewhere(_) => owner.send_passing(buffers[n], MIB),
                began => began,
            }
        })
        .collect();
    let look = owner.look();
    assert_eq!((look.live, look.passing, look.fallbacks), (16, 4, 4), "{look:?}");
    let numbers: Vec<u64> = begun.iter().map(|_| other.receive()).collect();
    for (n, number) in numbers.into_iter().enumerate() {
        assert_eq!(other.received(number, n as u64), (COPIED, 0));
    }
    assert!(begun.into_iter().all(|began| owner.sent(began) == COPIED));
    let look = owner.until(SOON, |look| look.passing + look.zombies == 0);
    assert_eq!((look.live, other.look().maps - other.look().unmaps), (16, 16));
}

/// Acceptance case T-I.
#[test]
fn a_budget_of_16_then_0_then_16_converges_under_load() {
    let world = World::new(64, 16, By::Bytes);
    let [owner, other] = world.pair();
    let buffers: Vec<usize> = (0..16).map(|_| owner.alloc(MIB)).collect();
    let load = |first: u64| {
        let begun: Vec<Began> = (0..16)
            .map(|n| {
                owner.fill(buffers[n], MIB, first + n as u64);
                owner.send(buffers[n], MIB)
            })
            .collect();
        let going: Vec<usize> = (0..16).filter(|n| matches!(begun[*n], Began::Begun(_))).collect();
        let numbers: Vec<u64> = going.iter().map(|_| other.receive()).collect();
        (begun, going, numbers)
    };
    let done = |(begun, going, numbers): (Vec<Began>, Vec<usize>, Vec<u64>), first: u64| {
        for (n, number) in going.iter().zip(&numbers) {
            assert_eq!(other.received(*number, first + *n as u64), (COPIED, 0));
            assert_eq!(owner.sent(begun[*n]), COPIED);
        }
        going.len()
    };
    for round in 0..3 {
        assert_eq!(done(load(100 * round), 100 * round), 16);
        assert_eq!((owner.look().live, other.look().maps), (16, 16 * (round + 1)));
        let under_way = load(7000 + round);
        owner.shrink(0);
        assert_eq!(owner.send(buffers[0], MIB), Began::Elsewhere(0), "off");
        assert_eq!(done(under_way, 7000 + round), 16);
        let look = owner.until(SOON, |look| look.live + look.zombies == 0);
        let there = other.look();
        assert_eq!((look.live_bytes, there.maps), (0, there.unmaps), "{look:?} {there:?}");
        assert_eq!(done(load(8000), 8000), 0);
        owner.grow(16);
    }
}

/// Messages that are not yet received keep their export alive, but no further message may use it.
#[test]
fn budget_of_0_keeps_only_exports_in_use() {
    let world = World::new(64, 16, By::Bytes);
    let [owner, other] = world.pair();
    let addr = owner.alloc(MIB);
    owner.fill(addr, MIB, 1);
    for round in 0..3 {
        let begun = [owner.send(addr, MIB), owner.send(addr, MIB)];
        owner.shrink(0);
        assert_eq!(owner.send(addr, MIB), Began::Elsewhere(0), "off");
        let look = owner.look();
        assert_eq!((look.live, look.passing, look.unexports), (0, 1, round), "{look:?}");
        for began in begun {
            let number = other.receive();
            assert_eq!((other.received(number, 1), owner.sent(began)), ((COPIED, 0), COPIED));
        }
        let look = owner.until(SOON, |look| look.passing + look.zombies == 0);
        let there = other.look();
        assert_eq!((look.unexports, there.maps, there.unmaps), (round + 1, round + 1, round + 1), "{look:?}");
        owner.grow(16);
    }
}

#[test]
fn exports_of_freed_memory_expire_after_30s() {
    let world = World::new(64, 16, By::Bytes);
    let [owner, other] = world.pair();
    let addr = owner.alloc(8 * MIB);
    owner.gives(&other, addr, 8 * MIB, 1);
    owner.free(addr);
    world.used(8 * MIB, SOON);
    owner.ask(Op::Later, &[29]).unwrap();
    assert_eq!(owner.look().live, 1);
    owner.ask(Op::Later, &[2]).unwrap();
    world.used(0, SOON);
    assert_eq!(owner.until(SOON, |look| look.live + look.zombies == 0).unexports, 1);
}

#[test]
fn exports_end_when_released_trimmed_or_drained() {
    let world = World::new(64, 16, By::Descriptor);
    let [owner, other] = world.pair();
    let third = world.process();
    meet(&owner, &third);
    let buffers: Vec<usize> = (0..3).map(|_| owner.alloc(MIB)).collect();
    let give = |n: usize, to: u64| {
        let began = owner.send_to(to, buffers[n], MIB).unwrap();
        let from = if to == 0 { &other } else { &third };
        let number = from.receive();
        assert_eq!((from.received(number, 0).0, owner.sent(began)), (COPIED, COPIED));
    };
    (0..3).for_each(|n| give(n, 0));
    (0..3).for_each(|n| give(n, 1));
    let has = |n: usize| owner.ask(Op::Ask, &[3, buffers[n] as u64, 1]).unwrap().words[1];
    // Release one export by its address.
    owner.ask(Op::Ask, &[1, buffers[1] as u64]).unwrap();
    let look = owner.until(SOON, |look| look.zombies == 0);
    assert_eq!((look.live, has(0), has(1)), (2, 1, 0));
    // Trim the exports to this number of bytes.
    owner.ask(Op::Ask, &[0, MIB as u64]).unwrap();
    assert_eq!(owner.until(SOON, |look| look.zombies == 0).live_bytes, MIB as u64);
    // Release all exports of one neighbour.
    owner.ask(Op::Ask, &[2, 1]).unwrap();
    let there = third.until(SOON, |look| look.unmaps == 3);
    assert_eq!((there.maps, other.look().unmaps, owner.look().live), (3, 2, 1));
}

/// A stopped process is not dead: its exports are kept, and at most its limit of messages is sent to it.
#[test]
fn sends_to_a_stopped_neighbour_are_bounded() {
    let world = World::new(64, 16, By::Bytes);
    let [owner, other] = world.pair();
    let addr = owner.alloc(MIB);
    owner.gives(&other, addr, MIB, 1);
    other.signal(rustix::process::Signal::STOP);
    let begun: Vec<Began> =
        std::iter::repeat_with(|| owner.send(addr, 64)).take_while(|began| *began != Began::Busy).collect();
    assert_eq!(begun.len(), 128);
    owner.ask(Op::Ask, &[1, addr as u64]).unwrap();
    let look = owner.look();
    assert_eq!((look.zombies, look.unexports), (1, 0), "{look:?}");
    other.signal(rustix::process::Signal::CONT);
    other.ask(Op::Drink, &[128, 64]).unwrap();
    assert_eq!(other.ask(Op::Drink, &[0]).unwrap().words[1], 128);
    assert!(begun.into_iter().all(|began| owner.sent(began) == COPIED));
    owner.until(SOON, |look| look.unexports == 1);
}
