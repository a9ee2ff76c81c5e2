//! Acceptance case M12: a process is killed at each step of a message, and the other one frees everything within a
//! second.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::process::{By, LOST, MIB, Process, World};
use crate::words::{Look, Op};

const SECOND: Duration = Duration::from_secs(1);

/// The last completed step of a message and of the end of its export.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Step {
    /// The exporter has exported and announced the memory, and sent the reference.
    Referred,
    /// The importer has a buffer for the bytes, and has mapped nothing.
    Wanted,
    /// The importer has mapped the memory, and copied at most a part.
    Mapped,
    /// The importer has copied everything, and replied.
    Copied,
    /// The exporter has sent RETIRE.
    AskedBack,
    /// The importer has unmapped the memory, and replied.
    Unmapped,
    /// The exporter has returned the handle to the driver.
    Unexported,
}

const STEPS: [Step; 7] = [
    Step::Referred,
    Step::Wanted,
    Step::Mapped,
    Step::Copied,
    Step::AskedBack,
    Step::Unmapped,
    Step::Unexported,
];

const LEN: usize = 4 * MIB;

fn progress(process: &Process, until: impl Fn(&Look) -> bool) {
    for _ in 0..1000 {
        if until(&process.look()) {
            return;
        }
        process.ask(Op::Progress, &[1]).unwrap();
    }
    panic!("the process did not reach the step in 1000 progress calls: {:?}", process.look());
}

/// Brings two processes, which make progress only on request, to that step; returns them and the exporter's memory.
fn come_to(world: &World, step: Step) -> ([Process; 2], usize) {
    let [owner, other] = world.pair();
    let addr = owner.alloc(LEN);
    for process in [&owner, &other] {
        process.ask(Op::Manual, &[1]).unwrap();
    }
    let _begun = owner.send(addr, LEN);
    let mut done = BTreeSet::from([Step::Referred]);
    for next in STEPS.into_iter().skip(1).take_while(|next| *next <= step) {
        match next {
            Step::Referred => {}
            Step::Wanted => {
                other.ask(Op::Progress, &[1]).unwrap();
                other.ask(Op::Waiting, &[1]).unwrap();
                let _number = other.receive();
                assert_eq!(other.look().maps, 0);
            }
            Step::Mapped => progress(&other, |look| look.maps == 1),
            Step::Copied => progress(&other, |look| look.received == 1),
            Step::AskedBack => {
                // The exporter reads the reply, and requests all its exports back.
                owner.ask(Op::Progress, &[2]).unwrap();
                owner.ask(Op::Ask, &[0, 0]).unwrap();
                owner.ask(Op::Progress, &[2]).unwrap();
                let look = owner.look();
                assert_eq!((look.live, look.zombies, look.unexports), (0, 1, 0), "{look:?}");
            }
            Step::Unmapped => progress(&other, |look| look.unmaps == 1),
            Step::Unexported => progress(&owner, |look| look.unexports == 1),
        }
        done.insert(next);
    }
    assert_eq!(done.last(), Some(&step));
    ([owner, other], addr)
}

#[test]
fn process_killed_at_any_step_leaves_nothing() {
    for by in [By::Bytes, By::Descriptor] {
        for step in STEPS {
            let what = format!("{step:?}, {by:?}");
            // The importer is killed.
            let world = World::new(16, 16, by);
            let ([owner, other], addr) = come_to(&world, step);
            other.kill();
            owner.ask(Op::Manual, &[0]).unwrap();
            assert_eq!(owner.left(0), "Died", "{what}");
            if step < Step::Copied {
                assert_eq!(owner.ask(Op::Sent, &[0]).unwrap().words[1], LOST, "{what}");
            }
            owner.ask(Op::Ask, &[0, 0]).unwrap();
            let look = owner.until(SECOND, |look| look.live + look.zombies + look.passing == 0);
            assert_eq!((look.exports, look.unexports, look.broken), (1, 1, 0), "{what}: {look:?}");
            owner.free(addr);
            world.used(0, SECOND);
            // The exporter is killed.
            let world = World::new(16, 16, by);
            let ([owner, other], _) = come_to(&world, step);
            owner.kill();
            other.ask(Op::Manual, &[0]).unwrap();
            assert_eq!(other.left(0), "Died", "{what}");
            let look = other.until(SECOND, |look| look.maps == look.unmaps);
            assert_eq!((look.leaks, look.broken), (0, 0), "{what}");
            world.used(0, SECOND);
        }
    }
}
