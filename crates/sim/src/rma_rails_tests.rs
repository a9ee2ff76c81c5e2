//! One-sided jobs whose NICs fail at any time. Each operation still completes exactly once as long as a path is left,
//! and nothing lands late. With the last path the member is lost, and the error names it.

use trunkline_engine::EngineParams;
use trunkline_engine::rma::{HeapRange, LossCause, PutSource, RmaError};
use trunkline_proto::limits::LINE_BYTES;
use trunkline_proto::time::Duration;

use crate::rma_tests::{Loss, Trial, fair};
use crate::rules_tests::params;
use crate::{NetworkModel, SimRng};

const NICS: [usize; 4] = [0, 1, 2, 3];
/// Never restored.
const EVER: u64 = 1 << 60;

fn quick() -> EngineParams {
    EngineParams { rail_time: Duration::from_millis(50), ..params() }
}

/// Losses at any time, temporary or permanent; each pair of members keeps a path that is never lost.
fn losses(dice: &mut SimRng, counts: [usize; 3], until: u64) -> Vec<Loss> {
    let least = counts.into_iter().min().unwrap_or(1);
    let spared = dice.below(least as u64) as usize;
    let mut losses = Vec::new();
    for (of, count) in counts.into_iter().enumerate() {
        for nic in (0..count).filter(|&nic| nic != spared) {
            if dice.chance(700) {
                let nanos = dice.pick([EVER, 20_000_000, 300_000_000]);
                losses.push(Loss { step: dice.below(until), of, nic, nanos });
            }
        }
    }
    losses.sort_by_key(|loss| std::cmp::Reverse(loss.step));
    losses
}

/// Returns the network of that seed, in which rails die and nothing else fails.
fn rough(seed: u64) -> NetworkModel {
    let mut weather = fair(seed);
    let mut dice = SimRng::new(seed, 79);
    weather.draw_arrival(&mut dice);
    weather.nics = NICS.len();
    weather.deaf = dice.chance(200);
    weather.retry_time = dice.pick([1_000_000, 20_000_000, 200_000_000]);
    weather.dial_time = weather.dial_time.min(20_000_000);
    weather.numbered = SimRng::new(seed, 82).chance(300);
    weather
}

/// Returns the number of NICs of each member: the same for all, or drawn for each.
fn counts(dice: &mut SimRng) -> [usize; 3] {
    match dice.coin() {
        true => [dice.pick([2, 3, 4]); 3],
        false => [dice.pick([1, 2, 4]), dice.pick([1, 2, 4]), dice.pick([2, 4])],
    }
}

#[test]
fn operations_complete_despite_lost_nics() {
    // Two seeds that once found a defect are always run.
    let asked = |name| std::env::var(name).ok().map(|value| value.parse::<u64>().unwrap());
    let full = std::env::var_os("TRUNKLINE_FULL").is_some();
    let seeds = asked("TRUNKLINE_SEEDS").unwrap_or(if full { 4000 } else { 100 });
    let first = asked("TRUNKLINE_SEED").unwrap_or(0);
    for seed in (first..first + seeds).chain([118, 738]) {
        let mut dice = SimRng::new(seed, 80);
        let counts = counts(&mut dice);
        let losses = losses(&mut dice, counts, 3000);
        println!("seed {seed}: {counts:?} {losses:?} {:?}", rough(seed));
        let mut trial = Trial::with(seed, rough(seed), counts.map(|count| &NICS[..count]), &quick());
        trial.losses = losses;
        trial.run(60);
    }
}

/// Members with any numbers of rails reach each other.
#[test]
fn members_with_any_rail_counts_connect() {
    for counts in [[1, 2, 4], [4, 1, 2], [2, 4, 3], [4, 4, 1]] {
        let calm = NetworkModel { nics: 4, ..NetworkModel::fault_free() };
        let mut trial = Trial::with(7, calm, counts.map(|count| &NICS[..count]), &quick());
        trial.run(150);
    }
}

/// A transfer is cut between lines of 128 bytes, even if an operation cannot carry a whole number of them.
#[test]
fn no_piece_of_a_put_or_get_cuts_a_line() {
    const LEN: u64 = 30_000;
    for gets in [false, true] {
        let mut calm = NetworkModel { nics: 2, ..NetworkModel::fault_free() };
        calm.caps.message_max = 1000;
        let mut trial = Trial::with(7, calm, [&NICS[..2]; 3], &quick());
        let mut begun = 0;
        for _ in 0..10_000 {
            let member = &trial.members[0];
            let local = HeapRange { heap: 0, offset: begun, len: LEN - begun };
            let taken = match gets {
                true => member.job.get(member.context, 1, 0, begun, local),
                false => member.job.put(member.context, 1, 0, begun, PutSource::Heap(local)),
            };
            begun += taken.unwrap().unwrap_or(0);
            if begun == LEN {
                break;
            }
            assert!(begun.is_multiple_of(LINE_BYTES), "a piece begins at {begun}");
            trial.step();
        }
        assert_eq!(begun, LEN);
    }
}

/// The value of a put that was written again does not land a second time, over a newer one.
#[test]
fn lost_rail_writes_overwrite_no_newer_data() {
    for seed in 0..60 {
        let weather = NetworkModel {
            nics: 2,
            latency: 50_000,
            jitter: 300_000,
            stream_time: 5_000_000,
            retry_time: 20_000_000,
            ..NetworkModel::fault_free()
        };
        let weather = if seed % 3 == 0 { weather.without_arrival() } else { weather };
        let mut trial = Trial::with(seed, weather, [&NICS[..2]; 3], &quick());
        trial.put_all(0, 1, 0, PutSource::Bytes(&0_u64.to_le_bytes()));
        trial.quiet(0);
        for value in 1..=8_u64 {
            for word in 0..16 {
                trial.put_all(0, 1, 8 * word, PutSource::Bytes(&value.to_le_bytes()));
            }
            if value == 4 {
                trial.world.advance_by(seed * 5_000);
                trial.losses.push(Loss {
                    step: 0,
                    of: (seed % 2) as usize,
                    nic: (seed / 2 % 2) as usize,
                    nanos: EVER,
                });
            }
            trial.quiet(0);
            let heap = trial.members[1].heap.clone();
            // At first, delayed writes of the lost rail would only repeat the present value. Later they are made to
            // land, which must not overwrite the newer value.
            if value > 4 {
                trial.world.force_delayed_writes(&heap, 0, 128);
            }
            for word in 0..16 {
                assert_eq!(heap.load(8 * word).unwrap(), value, "seed {seed}, word {word}");
            }
        }
    }
}

/// The signal arrives although no member calls quiet.
#[test]
fn signal_with_lost_writes_arrives_without_quiet() {
    for seed in 0..60 {
        let weather = NetworkModel {
            nics: 4,
            latency: 50_000,
            jitter: 300_000,
            retry_time: 20_000_000,
            ..NetworkModel::fault_free()
        };
        let weather = if seed % 2 == 0 { weather.without_arrival() } else { weather };
        let weather = if seed % 4 == 0 { weather.without_placed_writes() } else { weather };
        let mut trial = Trial::with(seed, weather, [&NICS; 3], &quick());
        let mut dice = SimRng::new(seed, 81);
        let start = trial.steps;
        for (at, nic) in [1, 2, 3].into_iter().enumerate() {
            let step = start + 20 + dice.below(60 + 100 * at as u64);
            trial.losses.push(Loss { step, of: dice.below(2) as usize, nic, nanos: EVER });
        }
        trial.losses.sort_by_key(|loss| std::cmp::Reverse(loss.step));
        for _ in 0..40 {
            trial.put_signal(0, 1);
        }
    }
}

#[test]
fn loss_of_the_last_rail_names_the_member() {
    for (seed, deaf) in (0..20).map(|seed| (seed, seed % 4 == 0)) {
        let weather = NetworkModel { nics: 2, retry_time: 20_000_000, deaf, ..NetworkModel::fault_free() };
        let mut trial = Trial::with(seed, weather, [&NICS[..2]; 3], &quick());
        for to in [1, 2] {
            trial.put_all(0, to, 0, PutSource::Bytes(&[7; 8]));
        }
        trial.quiet(0);
        let last = (seed % 2) as usize;
        trial.losses.push(Loss { step: trial.steps + 40, of: 1, nic: last, nanos: EVER });
        trial.losses.push(Loss { step: 0, of: 1, nic: 1 - last, nanos: EVER });
        let mut quiets = 0;
        let lost = loop {
            let (job, context) = (&trial.members[0].job, trial.members[0].context);
            match job.put(context, 1, 0, 0, PutSource::Bytes(&[8; 8])) {
                Ok(_) => {}
                Err(error) => break error,
            }
            // The error of a quiet also names member and rail.
            match job.quiet(context) {
                Ok(_) => {}
                Err(RmaError::Failed { member: 1, rail, .. }) => {
                    assert!(rail < 2);
                    quiets += 1;
                }
                Err(error) => panic!("seed {seed}: {error}"),
            }
            trial.step();
            assert!(trial.steps < 200_000, "seed {seed}: the loss is not reported");
        };
        let RmaError::Lost { member: 1, lost: LossCause::Rails { rail, .. } } = lost else {
            panic!("{lost}")
        };
        assert!(rail < 2 && quiets <= 1, "seed {seed}");
        if quiets == 0 {
            let (job, context) = (&trial.members[0].job, trial.members[0].context);
            assert!(matches!(job.quiet(context), Err(RmaError::Failed { member: 1, .. }) | Ok(true)));
        }
        // Other members are not affected.
        trial.put_all(0, 2, 0, PutSource::Bytes(&[9; 8]));
        trial.quiet(0);
    }
}
