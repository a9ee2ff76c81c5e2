//! Buffers that are sent, freed and allocated again, from one process to another.

use std::time::Duration;

use crate::process::{Began, By, COPIED, MIB, NOT_MAPPED, REFUSED, World};
use crate::words::Op;

const SOON: Duration = Duration::from_secs(10);

#[test]
fn second_message_reuses_export_and_mapping() {
    for by in [By::Bytes, By::Descriptor] {
        let world = World::new(64, 16, by);
        let [owner, other] = world.pair();
        let addr = owner.alloc(4 * MIB);
        owner.gives(&other, addr, 4 * MIB, 5);
        owner.gives(&other, addr + MIB, MIB, 6);
        let (at, there) = (owner.look(), other.look());
        assert_eq!((at.exports, at.announced, at.hits), (1, 1, 1), "{at:?}");
        assert_eq!((there.maps, there.map_failures, there.received), (1, 0, 2), "{there:?}");
    }
}

/// Acceptance case T-F.
#[test]
fn burst_before_receives_is_exported_and_mapped_once() {
    let world = World::new(64, 16, By::Bytes);
    let [owner, other] = world.pair();
    let addr = owner.alloc(MIB);
    owner.fill(addr, MIB, 9);
    let begun: Vec<Began> = (0..64).map(|n| owner.send(addr + n * 4096, 4096)).collect();
    other.ask(Op::Waiting, &[64]).unwrap();
    assert_eq!(other.look().maps, 0);
    let numbers: Vec<u64> = (0..64).map(|_| other.receive()).collect();
    for (n, number) in numbers.into_iter().enumerate() {
        assert_eq!(other.received(number, 9 + 7 * 512 * n as u64), (COPIED, 0));
    }
    assert!(begun.into_iter().all(|began| owner.sent(began) == COPIED));
    let (at, there) = (owner.look(), other.look());
    assert_eq!((at.exports, at.announced, there.maps), (1, 1, 1), "{at:?} {there:?}");
}

/// Acceptance case T-A.
#[test]
fn overlap_with_freed_memory_costs_one_unmap() {
    for by in [By::Bytes, By::Descriptor] {
        let world = World::new(64, 16, by);
        let [owner, other] = world.pair();
        let (below, addr) = (owner.alloc(2 * MIB), owner.alloc(4 * MIB));
        assert_eq!(addr, below + 2 * MIB);
        owner.gives(&other, addr, 4 * MIB, 1);
        owner.free(addr);
        owner.free(below);
        assert_eq!(owner.alloc(8 * MIB), below);
        owner.gives(&other, below, 8 * MIB, 2);
        let (at, there) = (owner.until(SOON, |look| look.unexports == 1), other.look());
        assert_eq!((at.stale, at.exports), (1, 2), "{at:?}");
        assert_eq!((there.maps, there.unmaps, there.map_failures), (2, 1, 0), "{there:?}");
        world.used(8 * MIB, SOON);
    }
}

/// Acceptance case T-B.
#[test]
fn new_memory_at_old_address_is_mapped_again() {
    let world = World::new(64, 16, By::Bytes);
    let [owner, other] = world.pair();
    let addr = owner.alloc(2 * MIB);
    for round in 1..=5 {
        owner.gives(&other, addr, 2 * MIB, 100 * round);
        assert_eq!(other.look().maps, round);
        owner.free(addr);
        assert_eq!(owner.alloc(2 * MIB), addr);
    }
    assert_eq!(other.look().map_failures, 0);
}

/// Acceptance case T-C.
#[test]
fn rounds_of_allocate_exchange_and_free_never_run_out_of_memory() {
    let world = World::new(64, 16, By::Bytes);
    let [one, two] = world.pair();
    let rounds = if std::env::var_os("TRUNKLINE_FULL").is_some() { 10_000 } else { 60 };
    for round in 0..rounds {
        let (mine, yours) = (one.alloc(10 * MIB), two.alloc(10 * MIB));
        // Only the last page is written and compared; the rest keeps its content from the allocation.
        for (from, to, addr, first) in [(&one, &two, mine, 2 * round), (&two, &one, yours, 2 * round + 1)] {
            from.gives(to, addr + 10 * MIB - 4096, 4096, first);
        }
        one.free(mine);
        two.free(yours);
    }
    let (look, other) = (one.look(), two.look());
    assert_eq!((look.fallbacks, look.map_failures, look.leaks), (0, 0, 0), "{look:?}");
    assert!(look.maps - look.unmaps <= 1 && other.maps - other.unmaps <= 1, "{look:?} {other:?}");
}

/// Acceptance case T-G.
#[test]
fn short_and_long_messages_of_one_buffer_share_a_mapping() {
    let world = World::new(64, 16, By::Bytes);
    let [owner, other] = world.pair();
    let addr = owner.alloc(2 * MIB);
    for round in 0..8 {
        let (len, first) = if round % 2 == 0 { (64, round) } else { (MIB, 1000 + round) };
        owner.gives(&other, addr + 64 * round as usize, len, first);
    }
    assert_eq!((owner.look().exports, other.look().maps), (1, 1));
}

/// Acceptance case T-J.
#[test]
fn descriptors_and_mappings_do_not_grow() {
    for by in [By::Bytes, By::Descriptor] {
        let world = World::new(64, 16, by);
        let [owner, other] = world.pair();
        let addr = owner.alloc(MIB);
        owner.gives(&other, addr, 64, 1);
        // Exchanges that need a new mapping each: 20 passing exports, and the exports that they evict.
        let anew = || {
            for round in 0..20 {
                let passing = owner.alloc(MIB);
                owner.fill(passing, 64, round);
                let began = owner.send_passing(passing, 64);
                let number = other.receive();
                assert_eq!((other.received(number, round), owner.sent(began)), ((COPIED, 0), COPIED));
                owner.until(SOON, |look| look.passing == 0 && look.zombies == 0);
                owner.free(passing);
            }
        };
        anew();
        let before = [owner.look(), other.look()];
        let count = 100_000;
        other.ask(Op::Drink, &[count, 64]).unwrap();
        let sent = owner.ask(Op::Pump, &[0, addr as u64, 64, count]).unwrap().words;
        assert_eq!(sent[1..3], [count, 0]);
        assert_eq!(other.ask(Op::Drink, &[0]).unwrap().words[1], count);
        anew();
        for (before, now) in before.into_iter().zip([owner.look(), other.look()]) {
            let of = |look: crate::words::Look| (look.descriptors, look.mappings);
            assert_eq!(of(now), of(before), "{now:?}");
        }
        assert_eq!(other.look().map_failures, 0);
    }
}

/// Acceptance case T-K.
#[test]
fn one_buffer_sends_and_receives_without_budget() {
    let world = World::new(64, 0, By::Bytes);
    let [one, two] = world.pair();
    let buffers = [one.alloc(4 * MIB), two.alloc(4 * MIB)];
    for round in 0..6_u64 {
        // The first half is sent while the second half is received into.
        one.fill(buffers[0], 2 * MIB, 10 * round);
        two.fill(buffers[1], 2 * MIB, 10 * round + 1);
        let begun = [one.send_passing(buffers[0], 2 * MIB), two.send_passing(buffers[1], 2 * MIB)];
        let again = one.send_passing(buffers[0], MIB);
        let numbers =
            [one.receive_own(buffers[0] + 2 * MIB), two.receive_own(buffers[1] + 2 * MIB), two.receive()];
        assert_eq!(one.received(numbers[0], 0).0, COPIED);
        assert_eq!(two.received(numbers[1], 0).0, COPIED);
        assert_eq!(two.received(numbers[2], 10 * round), (COPIED, 0));
        assert_eq!([one.sent(begun[0]), two.sent(begun[1]), one.sent(again)], [COPIED; 3]);
        assert_eq!(one.wrong(buffers[0] + 2 * MIB, 2 * MIB, 10 * round + 1), 0);
        assert_eq!(two.wrong(buffers[1] + 2 * MIB, 2 * MIB, 10 * round), 0);
    }
    for process in [&one, &two] {
        let look = process.until(SOON, |look| look.passing == 0 && look.zombies == 0 && look.live == 0);
        assert_eq!((look.map_failures, look.exports), (0, look.unexports), "{look:?}");
    }
}

#[test]
fn sent_memory_may_be_rewritten_after_the_reply() {
    let world = World::new(64, 16, By::Bytes);
    let [owner, other] = world.pair();
    let addr = owner.alloc(16 * MIB);
    for round in 0..3 {
        owner.fill(addr, 16 * MIB, round);
        let began = owner.send(addr, 16 * MIB);
        let number = other.receive();
        assert_eq!(owner.sent(began), COPIED);
        owner.fill(addr, 16 * MIB, 4711);
        assert_eq!(other.received(number, round), (COPIED, 0));
    }
}

#[test]
fn bytes_across_allocations_are_not_sent_by_reference() {
    const PIECE: usize = 64 << 10;
    let world = World::new(64, 16, By::Bytes);
    let [owner, other] = world.pair();
    let addrs = [owner.alloc(PIECE), owner.alloc(PIECE)];
    assert_eq!(addrs[1], addrs[0] + PIECE, "the allocations must be adjacent, else the test proves nothing");
    owner.ask(Op::Fail, &[4, 1]).unwrap();
    let not_exported = trunkline_proto::ipc::exporter::FallbackReason::NotExported as u64;
    assert_eq!(owner.send(addrs[0], 2 * PIECE), Began::Elsewhere(not_exported));
    assert_eq!(owner.send(addrs[0] + PIECE / 2, PIECE), Began::Elsewhere(not_exported));
    // Each allocation alone can be exported.
    for addr in addrs {
        owner.fill(addr, PIECE, 5);
        let began = owner.send(addr, PIECE);
        let number = other.receive();
        assert_eq!((other.received(number, 5), owner.sent(began)), ((COPIED, 0), COPIED));
    }
    owner.ask(Op::Fail, &[4, 0]).unwrap();
    assert!(
        owner.ask(Op::Send, &[0, addrs[0] as u64, 2 * PIECE as u64, 0]).unwrap_err().contains("not in one")
    );
}

#[test]
fn driver_failures_fall_back_and_are_retried() {
    let world = World::new(64, 16, By::Bytes);
    let [owner, other] = world.pair();
    let addr = owner.alloc(MIB);
    owner.fill(addr, MIB, 3);
    // An export fails.
    owner.ask(Op::Fail, &[0, 1]).unwrap();
    assert!(matches!(owner.send(addr, MIB), Began::Elsewhere(_)));
    // A mapping fails, then a copy.
    for call in [1, 3] {
        other.ask(Op::Fail, &[call, 1]).unwrap();
        let began = owner.send(addr, MIB);
        let number = other.receive();
        assert_ne!(other.received(number, 3).0, COPIED);
        assert_eq!(owner.sent(began), NOT_MAPPED);
        let mut began = owner.send(addr, MIB);
        while let Began::Elsewhere(_) = began {
            began = owner.send(addr, MIB);
        }
        let number = other.receive();
        assert_eq!((other.received(number, 3), owner.sent(began)), ((COPIED, 0), COPIED));
    }
    // An unmapping fails. The exporter keeps its export until the mapping has ended.
    other.ask(Op::Fail, &[2, 3]).unwrap();
    other.ask(Op::Manual, &[1]).unwrap();
    assert_eq!(owner.ask(Op::Ask, &[1, addr as u64]).unwrap().words[1], 1);
    assert_eq!(owner.look().zombies, 1);
    other.ask(Op::Progress, &[2]).unwrap();
    assert_eq!((other.look().unmap_failures, owner.look().unexports), (1, 0));
    other.ask(Op::Manual, &[0]).unwrap();
    owner.until(SOON, |look| look.unexports == 1);
    let there = other.look();
    assert_eq!((there.unmaps, there.unmap_failures, there.leaks), (1, 1, 0), "{there:?}");
    owner.free(addr);
    world.used(0, SOON);
}

/// Acceptance case M11. The kernel passes no descriptor to a process that has reached its limit. Messages to it fall
/// back to another method, and use mappings again once it has free descriptors.
#[test]
fn process_out_of_descriptors_keeps_its_neighbours() {
    for by in [By::Bytes, By::Descriptor] {
        let world = World::new(64, 16, by);
        let [owner, other] = world.pair();
        let [before, addr] = [owner.alloc(MIB), owner.alloc(MIB)];
        owner.gives(&other, before, MIB, 1);
        other.ask(Op::Descriptors, &[0]).unwrap();
        owner.fill(addr, MIB, 3);
        for _ in 0..3 {
            let mut began = owner.send(addr, MIB);
            while let Began::Elsewhere(_) = began {
                began = owner.send(addr, MIB);
            }
            let number = other.receive();
            // Both ends must report the same outcome.
            let received = other.received(number, 3);
            let sent = owner.sent(began);
            assert!(received == (COPIED, 0) && sent == COPIED || received.0 != COPIED && sent == NOT_MAPPED);
        }
        owner.gives(&other, before, MIB, 4);
        other.ask(Op::Descriptors, &[1]).unwrap();
        let fresh = owner.alloc(MIB);
        owner.gives(&other, fresh, MIB, 5);
        assert_eq!((owner.look().broken, other.look().broken), (0, 0));
    }
}

#[test]
fn refused_messages_are_reported_and_not_mapped() {
    let world = World::new(64, 16, By::Bytes);
    let [owner, other] = world.pair();
    let addr = owner.alloc(MIB);
    let began = owner.send(addr, MIB);
    other.ask(Op::Refuse, &[]).unwrap();
    assert_eq!((owner.sent(began), other.look().maps), (REFUSED, 0));
    for (at, len) in [(addr, MIB + 1), (addr - 1, 2), (addr + MIB, 1), (addr, 0)] {
        assert!(owner.send_to(0, at, len).is_err());
    }
    owner.gives(&other, addr, MIB, 1);
}
