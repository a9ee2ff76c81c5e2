//! Long runs, and unusual processes: children and processes in other PID namespaces.

use std::process::Command;
use std::time::Duration;

use crate::process::{By, COPIED, MIB, Process, World, meet};
use crate::words::{Look, Op};

const SECOND: Duration = Duration::from_secs(1);
const SOON: Duration = Duration::from_secs(10);

/// Sends `count` short messages; all must be copied.
fn flow(owner: &Process, other: &Process, addr: usize, count: u64) {
    other.ask(Op::Drink, &[count, 64]).unwrap();
    let sent = owner.ask(Op::Pump, &[0, addr as u64, 64, count]).unwrap().words;
    assert_eq!(sent[1..3], [count, 0]);
    assert_eq!(other.ask(Op::Drink, &[0]).unwrap().words[1], count);
}

/// Acceptance case M15. Sends 48,000 messages, or a million with TRUNKLINE_FULL. Their memory is kept, sent as passing
/// exports, freed and allocated again, or released. Descriptors, mappings, addresses and memory in use must not grow.
#[test]
fn many_messages_leave_no_resources_in_use() {
    let world = World::new(64, 8, By::Descriptor);
    let [owner, other] = world.pair();
    let (kept, into) = (owner.alloc(MIB), other.alloc(64));
    let rounds = if std::env::var_os("TRUNKLINE_FULL").is_some() { 500 } else { 24 };
    let mut before = None;
    for round in 0..rounds {
        flow(&owner, &other, kept, 2000);
        for number in 0..4 {
            let passing = owner.alloc(MIB);
            owner.fill(passing, 64, number);
            let began =
                if number % 2 == 0 { owner.send_passing(passing, 64) } else { owner.send(passing, 64) };
            let received = other.receive_own(into);
            assert_eq!((other.received(received, 0).0, owner.sent(began)), (COPIED, COPIED));
            assert_eq!(other.wrong(into, 64, number), 0);
            owner.free(passing);
        }
        if round % 8 == 7 {
            owner.ask(Op::Ask, &[0, 0]).unwrap();
            owner.until(SOON, |look| look.live + look.passing + look.zombies == 0);
            let of = |process: &Process| {
                let Look { descriptors, mappings, leaks, .. } = process.look();
                ((descriptors, mappings, leaks), process.memory())
            };
            let now = [of(&owner), of(&other)];
            let Some(then) = before else {
                before = Some(now);
                continue;
            };
            for (then, now) in std::iter::zip::<[_; 2], _>(then, now) {
                assert_eq!(now.0, then.0, "round {round}");
                let more = [0, 1].map(|at: usize| now.1[at].saturating_sub(then.1[at]));
                assert!(more.iter().all(|more| *more < 2 * MIB as u64), "round {round}: {more:?} bytes more");
            }
        }
    }
    owner.ask(Op::Ask, &[0, 0]).unwrap();
    owner.free(kept);
    other.free(into);
    world.used(0, SOON);
}

/// Acceptance case M14. A child that executes another program inherits nothing: the parent's exports and imports are
/// free once the parent is dead.
#[test]
fn executed_children_hold_no_memory_of_their_parent() {
    for by in [By::Bytes, By::Descriptor] {
        let world = World::new(64, 16, by);
        let [owner, other] = world.pair();
        let [mine, yours] = [owner.alloc(4 * MIB), other.alloc(4 * MIB)];
        owner.gives(&other, mine, 4 * MIB, 1);
        other.gives(&owner, yours, 4 * MIB, 2);
        let child = owner.ask(Op::Spawn, &[30]).unwrap().words[1];
        let of_child = format!("/proc/{child}");
        owner.kill();
        assert_eq!(other.left(0), "Died", "the child must not keep its parent's streams open");
        other.ask(Op::Ask, &[0, 0]).unwrap();
        other.until(SECOND, |look| look.maps == look.unmaps && look.exports == look.unexports);
        other.free(yours);
        world.used(0, SECOND);
        assert!(std::path::Path::new(&of_child).exists(), "the child must outlive its parent");
        let child = rustix::process::Pid::from_raw(child as i32).unwrap();
        rustix::process::kill_process(child, rustix::process::Signal::KILL).unwrap();
    }
}

/// Acceptance case M17. Two processes, each the first of its PID namespace, have the same PID and must be kept apart. A
/// third process with that PID, started after one of them has died, must be a new neighbour.
#[test]
fn processes_with_equal_pids_are_kept_apart() {
    let name = "endure::processes_with_equal_pids_are_kept_apart";
    let unshare = || {
        let mut command = Command::new("unshare");
        command.args(["--pid", "--fork", "--kill-child"]);
        command
    };
    if !unshare().arg("true").status().is_ok_and(|status| status.success()) {
        return skip(name, "unshare cannot create a PID namespace here");
    }
    for by in [By::Bytes, By::Descriptor] {
        let world = World::new(64, 16, by);
        let first_of_its = || {
            let mut command = unshare();
            command.arg(std::env::current_exe().unwrap());
            world.process_by(command)
        };
        let [one, two] = [first_of_its(), first_of_its()];
        meet(&one, &two);
        let [mine, yours] = [one.alloc(MIB), two.alloc(MIB)];
        for round in 0..3 {
            one.gives(&two, mine, MIB, 10 * round + 1);
            two.gives(&one, yours, MIB, 10 * round + 2);
        }
        two.kill();
        assert_eq!(one.left(0), "Died");
        one.until(SECOND, |look| look.maps == look.unmaps);
        world.used(MIB, SECOND);
        let three = first_of_its();
        meet(&one, &three);
        one.fill(mine, MIB, 77);
        let began = one.send_to(1, mine, MIB).unwrap();
        let received = three.receive();
        assert_eq!((three.received(received, 77), one.sent(began)), ((COPIED, 0), COPIED));
    }
}

/// Reports that a test was skipped, with the reason, in the log that `./test` counts.
fn skip(name: &str, reason: &str) {
    use std::io::Write as _;
    println!("SKIPPED {name}: {reason}");
    if let Some(path) = std::env::var_os("TRUNKLINE_SKIP_LOG") {
        let file = std::fs::OpenOptions::new().append(true).create(true).open(path);
        let noted = file.and_then(|mut file| file.write_all(format!("{name}: {reason}\n").as_bytes()));
        assert!(noted.is_ok(), "cannot write to the skip log: {noted:?}");
    }
}
