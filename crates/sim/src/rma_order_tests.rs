//! The ordering of one-sided operations over links with very different latencies, and its cost.

use trunkline_engine::rma::{HeapRange, PutSource};
use trunkline_engine::{EngineParams, ExecuteBy};
use trunkline_fabric::Caps;
use trunkline_proto::rma::atomic::{AtomicAction, AtomicType, TypedAtomic};
use trunkline_proto::wire::rma::signal::{SignalUpdate, UpdateOp};
use trunkline_proto::wire::rma::word::{SymmetricWord, WordWidth};

use crate::rma_tests::Trial;
use crate::rules_tests::params;
use crate::{NetworkModel, SimPid};

const NICS: [usize; 4] = [0, 1, 2, 3];
const SIGNAL: u64 = 1 << 16;
const DATA: u64 = 0;

fn add() -> SignalUpdate {
    SignalUpdate::new(UpdateOp::Add, SymmetricWord::new(0, SIGNAL, WordWidth::Eight).unwrap(), 1).unwrap()
}

/// NICs of which the last is 100 times slower than the first, and in a third of the seeds no link keeps an order.
fn uneven(seed: u64) -> NetworkModel {
    let calm = NetworkModel::fault_free();
    let caps = Caps { link_order: !seed.is_multiple_of(3), ..calm.caps };
    let weather = NetworkModel { nics: 4, caps, latency: 2_000, slower: [1, 5, 20, 100], ..calm };
    if seed % 4 == 1 { weather.without_arrival() } else { weather }
}

impl Trial {
    fn signal_all(&mut self, of: usize, to: u32) {
        self.until(|trial| {
            let member = &trial.members[of];
            Ok(member.job.send_signal(member.context, to, add())?.then_some(()))
        });
    }
}

/// Member 0 puts to 1 over any link, waits for its quiet, and signals 2 over other links; a get of 2 from 1 must then
/// return the put bytes.
#[test]
fn signal_after_quiet_covers_puts_to_others() {
    for seed in 0..40 {
        // The latencies of single operations differ as much.
        let weather = NetworkModel { jitter: 99 * 2_000, ..uneven(seed) };
        let mut trial = Trial::with(seed, weather, [&NICS; 3], &params());
        for round in 1..=10_u64 {
            for word in 0..20 {
                trial.put_all(0, 1, DATA + 8 * word, PutSource::Bytes(&round.to_le_bytes()));
            }
            trial.quiet(0);
            trial.signal_all(0, 2);
            trial.until(|trial| Ok((trial.members[2].heap.load(SIGNAL).unwrap() == round).then_some(())));
            let (mut done, len) = (0, 160);
            while done < len {
                let into = HeapRange { heap: 0, offset: 4096 + done, len: len - done };
                done += trial.until(|trial| {
                    let member = &trial.members[2];
                    member.job.get(member.context, 1, 0, DATA + done, into)
                });
            }
            trial.quiet(2);
            for word in 0..20 {
                let got = trial.members[2].heap.load(4096 + 8 * word).unwrap();
                assert_eq!(got, round, "seed {seed}: word {word}");
            }
        }
    }
}

/// Two members that only put and signal to each other, as fast as possible, with room for two operations on a link.
#[test]
fn signal_storm_over_uneven_rails_stays_in_order() {
    const SIGNALS: u64 = 400;
    for seed in 0..8 {
        let params = EngineParams { depth: 2, ..params() };
        let mut trial = Trial::with(seed, uneven(seed), [&NICS; 3], &params);
        let word = |signal: u64| DATA + 8 * signal;
        let mut sent = [[0_u64; 2]; 2];
        let mut seen = [0_u64; 2];
        while sent != [[SIGNALS; 2]; 2] || seen != [SIGNALS; 2] {
            for (of, [puts, signals]) in sent.iter_mut().enumerate() {
                let (member, to) = (&trial.members[of], 1 - of as u32);
                if *puts == *signals && *puts < SIGNALS {
                    let value = (*puts + 1).to_le_bytes();
                    let put = member.job.put(member.context, to, 0, word(*puts), PutSource::Bytes(&value));
                    *puts += u64::from(put.unwrap().is_some());
                }
                if *puts > *signals && member.job.send_signal(member.context, to, add()).unwrap() {
                    *signals += 1;
                }
            }
            trial.step();
            assert!(trial.steps < 400_000, "seed {seed}: stuck at {sent:?}, {seen:?}");
            for (at, seen) in seen.iter_mut().enumerate() {
                let heap = &trial.members[at].heap;
                let now = heap.load(SIGNAL).unwrap();
                for signal in *seen..now {
                    let value = heap.load(word(signal)).unwrap();
                    assert_eq!(value, signal + 1, "seed {seed}: a signal arrived before its put");
                }
                *seen = now;
            }
        }
        (0..2).for_each(|of| trial.quiet(of));
    }
}

#[test]
fn one_way_signals_cost_one_message_in_32() {
    let weather = NetworkModel { nics: 4, slower: [1, 5, 20, 100], ..NetworkModel::fault_free() };
    let mut trial = Trial::with(1, weather, [&NICS; 3], &params());
    trial.world.keep_completions(true);
    for word in 0..500 {
        trial.put_all(0, 1, DATA + 8 * word, PutSource::Bytes(&[1; 8]));
    }
    trial.quiet(0);
    let told = |trial: &Trial| [0, 1].map(|pid| trial.world.kept_messages(SimPid(pid)));
    assert_eq!(told(&trial), [0, 0], "puts cause no message");
    for signal in 0..3200 {
        trial.put_all(0, 1, DATA + 8 * (signal % 500), PutSource::Bytes(&[1; 8]));
        trial.signal_all(0, 1);
    }
    trial.until(|trial| Ok((trial.members[1].heap.load(SIGNAL).unwrap() == 3200).then_some(())));
    let [acks, signals] = told(&trial);
    assert!(acks <= 3200 / 32, "{acks} acknowledgements");
    assert!(signals <= 3200 + 1, "{signals} messages");
    trial.quiet(0);
    assert!(told(&trial)[0] <= 3200 / 32 + 1);
}

#[test]
fn one_poll_takes_at_most_a_batch_per_rail() {
    const BATCH: u32 = 2;
    let params = EngineParams { progress_batch: BATCH, execute_by: ExecuteBy::Owner, ..params() };
    let mut trial = Trial::with(1, NetworkModel::fault_free(), [&[0]; 3], &params);
    let word = SymmetricWord::new(0, SIGNAL, WordWidth::Eight).unwrap();
    let one = TypedAtomic::new(AtomicType::U64, AtomicAction::Add(1), false).unwrap();
    let _first =
        trial.until(|trial| trial.members[0].job.post_atomic(trial.members[0].context, 1, word, one));
    trial.quiet(0);
    for _ in 0..20 {
        let member = &trial.members[0];
        assert!(member.job.post_atomic(member.context, 1, word, one).unwrap().is_some(), "the post has room");
    }
    let member = &trial.members[0];
    member.job.progress(member.context).unwrap();
    // All of them have arrived.
    trial.world.advance_by(1_000_000_000);
    let (mut sum, mut looks) = (1, 0);
    while sum < 21 {
        let member = &trial.members[1];
        member.job.progress(member.context).unwrap();
        let now = member.heap.load(SIGNAL).unwrap();
        assert!(now - sum <= u64::from(BATCH), "{} operations in one poll", now - sum);
        (sum, looks) = (now, looks + 1);
        assert!(looks < 1000, "the operations do not progress");
    }
    assert!(looks >= 10);
}
