use std::vec::Vec;

use proptest::prelude::*;

use super::*;

const SILENCE: Duration = Duration::from_secs(10);

fn at(ms: u64) -> Instant {
    Instant(0) + Duration::from_millis(ms)
}

fn dialling(slots: usize, silence: Duration) -> StreamLife {
    StreamLife::new_dialling(slots, silence, at(0))
}

/// Returns the slots that are dialled at a moment.
fn dialled(life: &mut StreamLife, ms: u64) -> Vec<usize> {
    core::iter::from_fn(|| life.next_dial(at(ms))).map(|step| step.slot).collect()
}

fn join(life: &mut StreamLife, slot: usize, ms: u64) {
    life.on_answered(slot);
    life.on_joined(slot, at(ms));
}

/// Returns a stream over `slots` slots, all of them joined at 1 ms.
fn woven(slots: usize, silence: Duration) -> StreamLife {
    let mut life = dialling(slots, silence);
    assert_eq!(dialled(&mut life, 0), (0..slots).collect::<Vec<_>>());
    (0..slots).for_each(|slot| join(&mut life, slot, 1));
    life
}

fn lose(life: &mut StreamLife, slot: usize, end: StrandEnd, ms: u64) {
    life.on_ended(slot, StrandPhase::Joined, end, at(ms));
}

#[test]
fn unanswered_attempt_gets_a_second_one_beside_it() {
    let mut life = dialling(2, SILENCE);
    assert_eq!(dialled(&mut life, 0), [0, 1]);
    join(&mut life, 0, 20);
    assert_eq!((life.joined_count(), life.is_joined(0), life.is_joined(1)), (1, true, false));
    assert_eq!(dialled(&mut life, 499), [0; 0]);
    // The second attempt runs beside the first; each later one replaces the oldest.
    for (ms, drops_oldest) in [(500, false), (1000, true), (1500, true), (2000, true), (2500, true)] {
        assert_eq!(life.next_deadline(), Some(at(ms)));
        assert_eq!(life.next_dial(at(ms)), Some(DialStep { slot: 1, drops_oldest }));
    }
    // A third slot, of an address that became known later.
    life.set_slots(3);
    assert_eq!(dialled(&mut life, 2600), [2]);
}

#[test]
fn attempts_are_hedged_until_the_process_replies() {
    let mut life = woven(2, SILENCE);
    lose(&mut life, 1, StrandEnd::Silence, 20_000);
    assert_eq!(dialled(&mut life, 20_000), [1]);
    life.on_answered(1);
    assert_eq!(dialled(&mut life, 20_499), [0; 0]);
    assert_eq!(
        dialled(&mut life, 20_500),
        [1],
        "a lost reply of the process was not compensated by another attempt"
    );
    life.on_answered(1);
    assert_eq!(dialled(&mut life, 90_000), [0; 0], "a stopped process got a third attempt");
    life.on_ended(1, StrandPhase::Answered, StrandEnd::Silence, at(90_000));
    assert_eq!(dialled(&mut life, 90_000), [1]);
    join(&mut life, 1, 90_001);
    assert_eq!((life.joined_count(), dialled(&mut life, 99_000)), (2, Vec::new()));
}

#[test]
fn lost_strand_is_redialled_every_500_ms() {
    for (peer_ms, redial_ms) in [(10, 250), (1000, 250), (2000, 500), (10_000, 500), (60_000, 500)] {
        let mut life = woven(2, Duration::from_millis(peer_ms));
        lose(&mut life, 1, StrandEnd::Silence, 5000);
        for attempt in 0..1000 {
            let ms = 5000 + attempt * redial_ms;
            assert!(attempt == 0 || dialled(&mut life, ms - 1).is_empty());
            assert_eq!(dialled(&mut life, ms), [1]);
            life.on_ended(1, StrandPhase::Dialled, StrandEnd::Refusal, at(ms));
            assert!(!life.check_over(at(ms)), "the stream ended although the other slot is joined");
        }
    }
}

/// A slot whose address may be invalid is dialled less often after a minute, until the network changes.
#[test]
fn unproven_slot_is_redialled_after_a_loss() {
    let mut life = dialling(2, SILENCE);
    dialled(&mut life, 0);
    join(&mut life, 0, 1);
    let mut last = 0;
    for ms in 1..200_000 {
        if dialled(&mut life, ms) == [1] {
            let pace = if last < 60_001 { 500 } else { 2000 };
            assert_eq!(ms - last, pace, "at {ms}");
            last = ms;
        }
    }
    lose(&mut life, 0, StrandEnd::Silence, last + 200);
    assert_eq!(dialled(&mut life, last + 200), [0, 1]);
}

#[test]
fn a_stream_ends_at_once_with_the_process() {
    // The other host closes the last joined strand.
    let mut life = woven(2, SILENCE);
    lose(&mut life, 0, StrandEnd::Refusal, 50);
    assert!(!life.check_over(at(50)));
    lose(&mut life, 1, StrandEnd::Refusal, 50);
    assert!(life.check_over(at(50)) && life.has_ended() && life.next_dial(at(9000)).is_none());
    // The other host closes the only strand of the accepting end.
    let mut life = StreamLife::new_accepted(SILENCE, at(0));
    assert!(!life.check_over(at(100_000)), "a silent stream ended at once");
    life.on_joined(0, at(100_000));
    lose(&mut life, 0, StrandEnd::Refusal, 100_001);
    assert!(life.check_over(at(100_001)));
    // All strands have fallen silent, and the host refuses connections at an address that was the process's.
    let mut life = woven(2, SILENCE);
    (0..2).for_each(|slot| lose(&mut life, slot, StrandEnd::Silence, 50));
    assert_eq!(dialled(&mut life, 150), [0, 1]);
    life.on_ended(1, StrandPhase::Dialled, StrandEnd::Refusal, at(151));
    assert!(life.check_over(at(151)));
}

#[test]
fn silent_stream_lingers_while_it_is_dialled() {
    for end in [woven(2, SILENCE), {
        let mut life = StreamLife::new_accepted(SILENCE, at(0));
        life.on_joined(0, at(1));
        life
    }] {
        for comes_back in [false, true] {
            let mut life = end.clone();
            (0..life.joined_count()).for_each(|slot| lose(&mut life, slot, StrandEnd::Silence, 20_000));
            for ms in (20_000..21_990).step_by(10) {
                dialled(&mut life, ms);
                assert!(!life.check_over(at(ms)), "at {ms}");
            }
            if comes_back {
                life.on_joined(0, at(21_995));
            }
            assert_eq!(life.check_over(at(22_000)), !comes_back);
        }
    }
}

/// A refusal at an address that never led to the process proves nothing.
#[test]
fn a_refusal_by_an_unproven_address_ends_nothing() {
    let mut life = dialling(2, SILENCE);
    dialled(&mut life, 0);
    join(&mut life, 0, 1);
    lose(&mut life, 0, StrandEnd::Silence, 20_000);
    assert_eq!(dialled(&mut life, 20_000), [0, 1]);
    life.on_ended(1, StrandPhase::Dialled, StrandEnd::Refusal, at(20_001));
    assert!(!life.check_over(at(20_001)));
}

/// The other host replies, so a path works; its process may be stopped for any time.
#[test]
fn accepted_attempt_keeps_a_stream_alive() {
    let mut life = woven(2, SILENCE);
    (0..2).for_each(|slot| lose(&mut life, slot, StrandEnd::Silence, 20_000));
    assert_eq!(dialled(&mut life, 20_000), [0, 1]);
    life.on_answered(1);
    for ms in (20_000..500_000).step_by(100) {
        dialled(&mut life, ms);
        assert!(!life.check_over(at(ms)), "at {ms}");
    }
    life.on_ended(1, StrandPhase::Answered, StrandEnd::Refusal, at(500_000));
    assert!(life.check_over(at(500_000)), "the stream of a killed process did not end");
}

/// The process was stopped or computed, so frames that arrived meanwhile are still unread.
#[test]
fn stream_of_a_stopped_process_lingers() {
    let mut life = woven(1, SILENCE);
    lose(&mut life, 0, StrandEnd::Silence, 100_000);
    for look in 1..8 {
        assert!(!life.check_over(at(100_000 + look * 30_000)), "look {look}");
    }
    assert!(life.check_over(at(100_000 + 8 * 30_000)));
}

#[test]
fn stream_without_replies_ends_after_the_peer_time() {
    let mut life = dialling(2, SILENCE);
    for ms in (0..=10_000).step_by(100) {
        dialled(&mut life, ms);
        assert!(!life.check_over(at(ms)), "at {ms}");
    }
    assert!(life.check_over(at(10_001)));
    // A stream also ends as soon as no slot can be dialled.
    let mut life = dialling(1, SILENCE);
    dialled(&mut life, 0);
    life.on_ended(0, StrandPhase::Dialled, StrandEnd::Refusal, at(1));
    assert!(life.check_over(at(1)));
}

/// Milliseconds between two polls of each end.
const TICK: u64 = 5;

/// One connection of the simulated network.
#[derive(Clone, Debug)]
struct Wire {
    slot: usize,
    /// The packet that is in flight or is tried next, and the time at which the kernel sends it.
    stage: Stage,
    sends_at: u64,
    pause: u64,
    /// By end: whether it has joined, and whether it still holds the connection.
    joined: [bool; 2],
    holds: [bool; 2],
    /// Last moment at which its path was whole.
    whole: u64,
    /// Time since which it is whole again.
    since: u64,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, PartialOrd)]
enum Stage {
    Syn,
    Join,
    Answer,
    Done,
}

/// Two ends, the paths between them, and the kernels' packets.
struct World {
    lives: [StreamLife; 2],
    wires: Vec<Wire>,
    up: Vec<bool>,
    rtt: u64,
    silence: u64,
    /// By how much the kernel of each end exceeds the peer time before it ends a strand.
    late: [u64; 2],
    /// By path: the time of its repair, until the next attempt.
    mended: Vec<Option<u64>>,
}

impl World {
    fn new(paths: usize, silence: u64, rtt: u64, late: [u64; 2]) -> Self {
        let dialler = StreamLife::new_dialling(paths, Duration::from_millis(silence), at(0));
        let acceptor = StreamLife::new_accepted(Duration::from_millis(silence), at(0));
        let (up, mended) = ([true].repeat(paths), [None].repeat(paths));
        Self { lives: [dialler, acceptor], wires: Vec::new(), up, rtt, silence, late, mended }
    }

    fn change(&mut self, path: usize, up: bool, now: u64) {
        self.up[path] = up;
        self.mended[path] = up.then_some(now);
    }

    /// Runs the events of one moment; an error names the broken promise.
    fn tick(&mut self, now: u64) -> Result<(), TestCaseError> {
        while let Some(DialStep { slot, drops_oldest }) = self.lives[0].next_dial(at(now)) {
            let waits = |wire: &Wire| wire.slot == slot && wire.stage == Stage::Syn;
            if let Some(oldest) = self.wires.iter().position(waits).filter(|_| drops_oldest) {
                self.wires.remove(oldest);
            }
            self.mended[slot] = None;
            let (stage, joined, holds) = (Stage::Syn, [false; 2], [true; 2]);
            let wire =
                Wire { slot, stage, sends_at: now, pause: 1000, joined, holds, whole: now, since: now };
            self.wires.push(wire);
        }
        for at in 0..self.wires.len() {
            self.carry(at, now);
            self.end(at, now);
        }
        self.wires.retain(|wire| wire.holds != [false; 2]);
        for (end, life) in self.lives.iter_mut().enumerate() {
            prop_assert!(!life.check_over(at(now)), "end {end} is over at {now} ms");
        }
        for (slot, mended) in self.mended.iter_mut().enumerate() {
            let answered =
                |wire: &&Wire| wire.slot == slot && (Stage::Join..Stage::Done).contains(&wire.stage);
            let waits = self.wires.iter().filter(answered).count() >= ANSWERED_MAX;
            *mended = mended.filter(|_| !self.lives[0].is_joined(slot) && !waits);
            prop_assert!(mended.is_none_or(|mended| now - mended <= 500), "no SYN over {slot} until {now}");
        }
        Ok(())
    }

    /// Sends a packet, whose effect follows after one way or two.
    fn carry(&mut self, wire: usize, now: u64) {
        let up = self.up[self.wires[wire].slot];
        let wire = &mut self.wires[wire];
        if up && wire.whole + TICK < now {
            wire.since = now;
        }
        if up {
            wire.whole = now;
        }
        let held = wire.holds[0] && (wire.stage < Stage::Answer || wire.holds[1]);
        if wire.stage == Stage::Done || wire.sends_at > now || !held {
            return;
        }
        if !up {
            wire.sends_at = now + wire.pause;
            wire.pause *= 2;
            return;
        }
        let slot = wire.slot;
        match wire.stage {
            // The replies arrive later, so that time is added to the next packet.
            Stage::Syn => {
                (wire.stage, wire.sends_at, wire.pause) = (Stage::Join, now + self.rtt, 200 + self.rtt);
                self.lives[0].on_answered(slot);
            }
            Stage::Join => {
                (wire.stage, wire.sends_at, wire.pause) = (Stage::Answer, now + self.rtt, 200 + self.rtt);
                wire.joined[1] = true;
                self.lives[1].on_joined(0, at(now));
            }
            Stage::Answer if self.lives[0].is_joined(slot) => {
                wire.holds[0] = false;
            }
            Stage::Answer => {
                (wire.stage, wire.joined[0]) = (Stage::Done, true);
                self.lives[0].on_joined(slot, at(now));
                // The dialling end drops the other attempts of the slot.
                for other in &mut self.wires {
                    other.holds[0] &= other.slot != slot || other.joined[0];
                    other.holds[1] &= other.joined[1];
                }
            }
            Stage::Done => {}
        }
    }

    /// Ends a connection that carries nothing, or whose other end has ended, as the kernels do.
    fn end(&mut self, wire: usize, now: u64) {
        let wire = &mut self.wires[wire];
        let phase = match wire.stage {
            Stage::Syn => StrandPhase::Dialled,
            Stage::Join | Stage::Answer => StrandPhase::Answered,
            Stage::Done => StrandPhase::Joined,
        };
        for (end, phase) in [phase, StrandPhase::Joined].into_iter().enumerate() {
            if !wire.holds[end] || (end == 1 && !wire.joined[1]) {
                continue;
            }
            let silent = now - wire.whole > self.silence + self.late[end];
            // A probe reaches the other end, which has no such connection any more.
            let alone = wire.joined[1] && !wire.holds[1 - end];
            let refused = alone && now == wire.whole && now - wire.since >= self.silence / 4;
            if silent || refused {
                wire.holds[end] = false;
                wire.holds[1] &= wire.joined[1];
                let why = if silent { StrandEnd::Silence } else { StrandEnd::Refusal };
                let slot = if end == 0 { wire.slot } else { 0 };
                self.lives[end].on_ended(slot, phase, why, at(now));
            }
        }
    }
}

/// The path that is cut, the duration of the cut, and the time from its repair to the next cut.
fn rounds() -> impl Strategy<Value = Vec<(usize, u64, u64)>> {
    let gap = prop_oneof![Just(0), Just(100), Just(1000), Just(3000), 0..4000_u64];
    prop::collection::vec((0..3_usize, 0..15_000_u64, gap), 1..6)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Paths are cut one after another, each once the one before works again, or later.
    #[test]
    fn stream_survives_consecutive_cuts(
        paths in 2..=3_usize,
        silence in prop_oneof![Just(2000_u64), Just(10_000)],
        rtt in 1..200_u64,
        late in [0..1000_u64, 0..1000_u64],
        rounds in rounds(),
    ) {
        let mut world = World::new(paths, silence, rtt, late);
        let mut now = 0;
        let mut run = |world: &mut World, ms: u64| -> Result<(), TestCaseError> {
            let until = now + ms;
            while now < until {
                world.tick(now)?;
                now += TICK;
            }
            Ok(())
        };
        run(&mut world, 5000)?;
        prop_assert_eq!(world.lives[0].joined_count(), paths);
        let mut clock = 5000;
        for (path, down, gap) in rounds {
            let (down, gap) = (down - down % TICK, gap - gap % TICK);
            world.change(path % paths, false, clock);
            run(&mut world, down)?;
            clock += down;
            world.change(path % paths, true, clock);
            run(&mut world, gap)?;
            clock += gap;
        }
        run(&mut world, silence + 5000)?;
        prop_assert_eq!(world.lives[0].joined_count(), paths);
    }
}
