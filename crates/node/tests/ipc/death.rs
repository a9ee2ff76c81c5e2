//! Processes that are killed, leave or close, at any point of a transfer.

use std::time::Duration;

use crate::process::{By, COPIED, LOST, MIB, World, meet};
use crate::words::Op;

/// A survivor must have freed everything within this time.
const SECOND: Duration = Duration::from_secs(1);

const LEN: usize = 16 * MIB;

/// Acceptance case T-H.
#[test]
fn importer_killed_during_a_copy_leaves_nothing() {
    for by in [By::Bytes, By::Descriptor] {
        let world = World::new(64, 16, by);
        let [owner, other] = world.pair();
        let addr = owner.alloc(LEN);
        let began = owner.send(addr, LEN);
        other.ask(Op::Waiting, &[1]).unwrap();
        other.ask(Op::Manual, &[1]).unwrap();
        let _number = other.receive();
        other.ask(Op::Progress, &[4]).unwrap();
        assert_eq!((other.look().maps, other.look().received), (1, 0), "the copy must be in progress");
        let waiting = owner.send(addr, 64);
        other.kill();
        assert_eq!([owner.sent(began), owner.sent(waiting)], [LOST; 2]);
        assert_eq!(owner.left(0), "Died");
        owner.ask(Op::Ask, &[0, 0]).unwrap();
        owner.until(SECOND, |look| look.live + look.zombies == 0 && look.exports == look.unexports);
        owner.free(addr);
        world.used(0, SECOND);
        let addr = owner.alloc(LEN);
        // A new process joins, and messages are exchanged as before.
        let next = world.process();
        meet(&owner, &next);
        owner.fill(addr, LEN, 8);
        let began = owner.send_to(1, addr, LEN).unwrap();
        let number = next.receive();
        assert_eq!((next.received(number, 8), owner.sent(began)), ((COPIED, 0), COPIED));
    }
}

/// Acceptance case T-H.
#[test]
fn exporter_killed_during_a_copy_leaves_nothing() {
    for by in [By::Bytes, By::Descriptor] {
        let world = World::new(64, 16, by);
        let [owner, other] = world.pair();
        let [addr, unmapped] = [owner.alloc(LEN), owner.alloc(MIB)];
        let _began = [owner.send(addr, LEN), owner.send(addr, 64), owner.send(unmapped, MIB)];
        other.ask(Op::Waiting, &[3]).unwrap();
        other.ask(Op::Manual, &[1]).unwrap();
        let number = other.receive();
        other.ask(Op::Progress, &[4]).unwrap();
        assert_eq!((other.look().maps, other.look().received), (1, 0), "the copy must be in progress");
        owner.kill();
        let kept = if matches!(by, By::Bytes) { LEN } else { LEN + MIB };
        world.used(kept, SECOND);
        other.ask(Op::Manual, &[0]).unwrap();
        world.used(0, SECOND);
        assert_eq!(other.received(number, 0).0, LOST);
        assert_eq!(other.left(0), "Died");
        let look = other.look();
        assert_eq!((look.maps, look.unmaps), (1, 1));
        assert!(
            other.ask(Op::Receive, &[]).is_err(),
            "an arrival that was not received must end with its sender"
        );
        assert!(other.send_to(0, other.alloc(64), 64).unwrap_err().starts_with("Gone"));
    }
}

#[test]
fn processes_close_in_any_order_and_leave_nothing() {
    for both in [false, true] {
        let world = World::new(64, 16, By::Descriptor);
        let [one, two] = world.pair();
        let [mine, yours] = [one.alloc(4 * MIB), two.alloc(4 * MIB)];
        one.gives(&two, mine, 4 * MIB, 1);
        two.gives(&one, yours, 4 * MIB, 2);
        // One message per direction that the other process does not receive.
        let begun = [one.send(mine, 64), two.send(yours, 64)];
        one.ask(Op::Waiting, &[1]).unwrap();
        two.ask(Op::Waiting, &[1]).unwrap();
        one.tell(Op::Close, &[], &[]);
        if both {
            two.tell(Op::Close, &[], &[]);
            two.answer().unwrap();
        }
        one.answer().unwrap();
        assert_eq!((one.left(0), two.left(0)), ("Bye".to_owned(), "Bye".to_owned()));
        assert!(one.sent(begun[0]) != COPIED && two.sent(begun[1]) != COPIED);
        for process in [&one, &two] {
            let look = process.until(SECOND, |look| look.maps == look.unmaps);
            assert_eq!((look.broken, look.leaks, look.maps), (0, 0, 1), "{look:?}");
        }
        if !both {
            two.ask(Op::Close, &[]).unwrap();
        }
        for process in [&one, &two] {
            process.until(SECOND, |look| look.exports == look.unexports);
        }
        one.free(mine);
        two.free(yours);
        world.used(0, SECOND);
    }
}

#[test]
fn close_ends_although_the_neighbour_is_stopped() {
    let world = World::new(64, 16, By::Bytes);
    let [owner, other] = world.pair();
    let addr = owner.alloc(MIB);
    owner.gives(&other, addr, MIB, 1);
    other.signal(rustix::process::Signal::STOP);
    owner.tell(Op::Close, &[], &[]);
    owner.answer().unwrap();
    assert_eq!(owner.left(0), "Silent");
    other.signal(rustix::process::Signal::CONT);
    assert_eq!(other.left(0), "Bye");
    other.until(SECOND, |look| look.unmaps == 1);
}
