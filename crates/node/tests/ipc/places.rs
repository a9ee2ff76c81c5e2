//! A process with two devices, whose copy engines need a mapping each, and whose processor needs a third one.

use std::time::Duration;

use crate::process::{By, COPIED, MIB, World};
use crate::words::Op;

const SOON: Duration = Duration::from_secs(10);

/// Acceptance cases M8 and M9. One buffer is received alternately into memory of both devices and of the host. It is
/// announced once and mapped once for each of the three. Each copies only through its own mapping, and all three
/// mappings end together.
#[test]
fn each_device_and_the_host_have_their_own_mapping() {
    for by in [By::Bytes, By::Descriptor] {
        let world = World::new(64, 16, by);
        let [owner, other] = world.pair();
        other.ask(Op::Places, &[]).unwrap();
        let mine = owner.alloc(MIB);
        let alloc = |place: u64| other.ask(Op::Alloc, &[MIB as u64, place]).unwrap().words[1] as usize;
        let into = [Some(alloc(0)), Some(alloc(1)), None];
        for round in 0..12 {
            owner.fill(mine, MIB, round);
            let began = owner.send(mine, MIB);
            match into[round as usize % 3] {
                Some(addr) => {
                    let received = other.receive_own(addr);
                    assert_eq!((other.received(received, round).0, owner.sent(began)), (COPIED, COPIED));
                    assert_eq!(other.wrong(addr, MIB, round), 0, "round {round}");
                }
                None => {
                    let received = other.receive();
                    assert_eq!((other.received(received, round), owner.sent(began)), ((COPIED, 0), COPIED));
                }
            }
            let (exports, maps) = (owner.look().exports, other.look().maps);
            assert_eq!((exports, maps), (1, (round + 1).min(3)), "round {round}");
        }
        owner.ask(Op::Ask, &[0, 0]).unwrap();
        other.until(SOON, |look| look.unmaps == 3);
        owner.until(SOON, |look| look.unexports == 1);
        owner.free(mine);
        world.used(2 * MIB, SOON);
    }
}
