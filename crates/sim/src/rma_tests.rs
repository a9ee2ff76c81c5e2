//! Jobs of three members in random networks: puts have arrived after a quiet, sums are exact, and signals are seen in
//! order and after the puts before them.

use trunkline_engine::rma::{ContextId, FetchHandle, HeapRange, LossCause, PutSource, RmaError, RmaJob};
use trunkline_engine::{CommNics, EngineParams};
use trunkline_fabric::Caps;
use trunkline_mem::MemoryRange;
use trunkline_proto::rma::atomic::{AtomicAction, AtomicType, TypedAtomic};
use trunkline_proto::wire::dial::DialRefusal;
use trunkline_proto::wire::rma::signal::{SignalUpdate, UpdateOp};
use trunkline_proto::wire::rma::word::{SymmetricWord, WordWidth};

use crate::rules_tests::params;
use crate::{NetworkModel, SimFabric, SimHost, SimPid, SimRng, SimWorld};

const MEMBERS: u64 = 3;
/// Bytes of a heap: an area of [`AREA`] for each initiator, then [`STAGE`] and words.
const HEAP: usize = 1 << 17;
const AREA: u64 = 16 << 10;
/// The source of puts and the target of gets.
const STAGE: u64 = AREA * MEMBERS;
/// The word to which all members add.
const SUM: u64 = STAGE + 2 * AREA;
/// The words to which signals add, by initiator.
const SIGNALS: u64 = SUM + 8;
/// The words that are put before each signal, a different one for each, by initiator: puts to the same word would be
/// unordered.
const BEFORE: u64 = SIGNALS + 8 * MEMBERS;
const BEFORE_EACH: u64 = 1000;

/// Returns the offset of the word of a signal.
fn before(from: usize, signal: u64) -> u64 {
    BEFORE + 8 * (from as u64 * BEFORE_EACH + signal % BEFORE_EACH)
}

pub(crate) struct Member {
    pub(crate) job: RmaJob<SimFabric, SimHost>,
    pub(crate) heap: MemoryRange,
    pub(crate) context: ContextId,
    /// The bytes that it has put into each member's heap: the expected content of its area there after a quiet.
    areas: Vec<Vec<u8>>,
    /// The number of signals that it has sent to each member.
    signals: Vec<u64>,
    /// The amount that it has added to each member's sum.
    added: Vec<u64>,
}

/// A NIC that is cut off after that many steps, for that time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Loss {
    pub(crate) step: u64,
    pub(crate) of: usize,
    pub(crate) nic: usize,
    pub(crate) nanos: u64,
}

pub(crate) struct Trial {
    pub(crate) world: SimWorld,
    pub(crate) dice: SimRng,
    pub(crate) members: Vec<Member>,
    /// The future losses of rails, the next one last.
    pub(crate) losses: Vec<Loss>,
    pub(crate) steps: u64,
    /// Signals seen so far, by target and initiator.
    seen: Vec<Vec<u64>>,
}

impl Trial {
    fn new(seed: u64, weather: NetworkModel, nics: &[usize]) -> Self {
        Self::with(seed, weather, [nics; MEMBERS as usize], &params())
    }

    /// Creates a trial in which each member has its own set of NICs.
    pub(crate) fn with(
        seed: u64,
        weather: NetworkModel,
        nics: [&[usize]; MEMBERS as usize],
        params: &EngineParams,
    ) -> Self {
        let world = SimWorld::new(seed, weather, false);
        let job = |nics| {
            let process = world.add_process();
            let (fabric, host) = (SimFabric::new(&world, process), SimHost::new(&world, process));
            RmaJob::new(fabric, host, params.clone(), CommNics::new(nics).unwrap()).unwrap()
        };
        let jobs: Vec<_> = nics.into_iter().map(job).collect();
        let cards: Vec<_> = jobs.iter().map(RmaJob::process_card).collect();
        let member = |(me, job): (usize, RmaJob<_, _>)| {
            job.set_members(me as u32, &cards).unwrap();
            let heap = MemoryRange::heap(HEAP);
            job.add_heap(heap.clone()).unwrap();
            let context = job.create_context().unwrap();
            let areas = vec![vec![0; AREA as usize]; MEMBERS as usize];
            let (signals, added) = (vec![0; MEMBERS as usize], vec![0; MEMBERS as usize]);
            Member { job, heap, context, areas, signals, added }
        };
        let members = jobs.into_iter().enumerate().map(member).collect();
        let seen = vec![vec![0; MEMBERS as usize]; MEMBERS as usize];
        Self { world, dice: SimRng::new(seed, 77), members, losses: Vec::new(), steps: 0, seen }
    }

    /// Makes progress on all members, and checks the signals.
    pub(crate) fn step(&mut self) {
        self.steps += 1;
        while let Some(loss) = self.losses.last().copied().filter(|loss| loss.step <= self.steps) {
            self.losses.pop();
            self.world.cut_nic(SimPid(loss.of), loss.nic, loss.nanos);
        }
        for member in &self.members {
            member.job.progress(member.context).unwrap();
        }
        self.world.advance_by(200_000);
        for (target, seen) in self.seen.iter_mut().enumerate() {
            for (from, seen) in seen.iter_mut().enumerate() {
                let heap = &self.members[target].heap;
                let now = heap.load(SIGNALS + 8 * from as u64).unwrap();
                assert!(now >= *seen, "the value of a signal has decreased");
                for signal in *seen + 1..=now {
                    let put = heap.load(before(from, signal)).unwrap();
                    assert_eq!(put, signal, "signal {signal} arrived before an earlier put");
                }
                *seen = now;
            }
        }
    }

    pub(crate) fn until<T>(&mut self, mut f: impl FnMut(&Self) -> Result<Option<T>, RmaError>) -> T {
        for _ in 0..200_000 {
            if let Some(done) = f(self).unwrap() {
                return done;
            }
            self.step();
        }
        panic!("the trial does not end");
    }

    pub(crate) fn quiet(&mut self, of: usize) {
        self.until(|trial| {
            let member = &trial.members[of];
            Ok(member.job.quiet(member.context)?.then_some(()))
        });
    }

    fn put(&mut self, of: usize, to: usize) {
        let offset = self.dice.below(AREA);
        let len = self.dice.between(1, (AREA - offset).min(8192) + 1).min(AREA - offset);
        let inline = self.members[of].job.inline_max(self.members[of].context).unwrap();
        let bytes: Vec<u8> = (0..len).map(|_| self.dice.draw_u64() as u8).collect();
        let area = of as u64 * AREA + offset;
        if len <= inline && self.dice.coin() {
            self.put_all(of, to, area, PutSource::Bytes(&bytes));
        } else {
            // The source of earlier puts is overwritten, so they must have completed.
            self.quiet(of);
            self.members[of].heap.write(STAGE, &bytes).unwrap();
            self.put_all(of, to, area, PutSource::Heap(HeapRange { heap: 0, offset: STAGE, len }));
        }
        // Overlapping puts to one area are unordered without a quiet.
        self.quiet(of);
        let at = offset as usize;
        self.members[of].areas[to][at..at + len as usize].copy_from_slice(&bytes);
        // No put to this area is in flight any more: delayed writes land now.
        self.world.force_delayed_writes(&self.members[to].heap, of as u64 * AREA, AREA);
        self.check_area(of, to);
    }

    /// Checks that the puts of one member into another's heap have arrived.
    fn check_area(&self, of: usize, to: usize) {
        let mut there = vec![0; AREA as usize];
        self.members[to].heap.read(of as u64 * AREA, &mut there).unwrap();
        assert!(there == self.members[of].areas[to], "member {to} has wrong bytes of {of}");
    }

    /// Puts with a signal, of random length; the last word identifies the put.
    pub(crate) fn put_signal(&mut self, of: usize, to: usize) {
        self.quiet(of);
        let next = self.members[of].signals[to] + 1;
        let len = 8 * self.dice.below(AREA / 8);
        let bytes: Vec<u8> = (0..len).map(|_| self.dice.draw_u64() as u8).collect();
        self.members[of].heap.write(STAGE, &bytes).unwrap();
        let (value, at) = (next.to_le_bytes(), before(of, next));
        let word = SymmetricWord::new(0, SIGNALS + 8 * of as u64, WordWidth::Eight).unwrap();
        let update = SignalUpdate::new(UpdateOp::Add, word, 1).unwrap();
        let from = PutSource::Heap(HeapRange { heap: 0, offset: STAGE, len });
        self.put_all(of, to, at, PutSource::Bytes(&value));
        self.until(|trial| {
            let Member { job, context, .. } = &trial.members[of];
            let offset = of as u64 * AREA;
            Ok(job.put_signal(*context, to as u32, 0, offset, from, update)?.then_some(()))
        });
        self.members[of].signals[to] = next;
        self.members[of].areas[to][..len as usize].copy_from_slice(&bytes);
        // A member that sees the signal must see all of the put.
        self.until(|trial| {
            let now = trial.members[to].heap.load(SIGNALS + 8 * of as u64).unwrap();
            Ok((now == next).then_some(()))
        });
        self.check_area(of, to);
    }

    pub(crate) fn put_all(&mut self, of: usize, to: usize, mut offset: u64, mut from: PutSource<'_>) {
        loop {
            let taken = self.until(|trial| {
                let member = &trial.members[of];
                member.job.put(member.context, to as u32, 0, offset, from)
            });
            match &mut from {
                PutSource::Heap(local) if taken < local.len => {
                    (local.offset, local.len) = (local.offset + taken, local.len - taken);
                }
                _ => return,
            }
            offset += taken;
        }
    }

    fn get(&mut self, of: usize, to: usize) {
        self.quiet(of);
        let mut done = 0;
        while done < AREA {
            let into = HeapRange { heap: 0, offset: STAGE + AREA + done, len: AREA - done };
            done += self.until(|trial| {
                let member = &trial.members[of];
                member.job.get(member.context, to as u32, 0, of as u64 * AREA + done, into)
            });
        }
        self.quiet(of);
        let mut there = vec![0; AREA as usize];
        let member = &self.members[of];
        member.heap.read(STAGE + AREA, &mut there).unwrap();
        assert!(there == member.areas[to], "member {of} reads wrong bytes of {to}");
    }

    fn add(&mut self, of: usize, to: usize) {
        let (n, fetches) = (self.dice.below(1 << 20), self.dice.coin());
        let word = SymmetricWord::new(0, SUM, WordWidth::Eight).unwrap();
        let atomic = TypedAtomic::new(AtomicType::U64, AtomicAction::Add(n), fetches).unwrap();
        if of == to && self.members[of].job.can_execute_locally(WordWidth::Eight) {
            self.members[of].heap.fetch_update(SUM, |old| Some(old + n)).unwrap();
            self.members[of].added[to] += n;
            return;
        }
        let fetch: FetchHandle = self.until(|trial| {
            let member = &trial.members[of];
            member.job.post_atomic(member.context, to as u32, word, atomic)
        });
        self.members[of].added[to] += n;
        if fetches {
            let old =
                self.until(|trial| trial.members[of].job.collect_fetch(trial.members[of].context, fetch));
            let sum: u64 = self.members.iter().map(|member| member.added[to]).sum();
            // Adds without a quiet may arrive later.
            assert!(old + n <= sum);
        }
    }

    fn signal(&mut self, of: usize, to: usize) {
        let next = self.members[of].signals[to] + 1;
        let word = SymmetricWord::new(0, SIGNALS + 8 * of as u64, WordWidth::Eight).unwrap();
        let update = SignalUpdate::new(UpdateOp::Add, word, 1).unwrap();
        let (value, at) = (next.to_le_bytes(), before(of, next));
        self.put_all(of, to, at, PutSource::Bytes(&value));
        self.until(|trial| {
            let member = &trial.members[of];
            Ok(member.job.send_signal(member.context, to as u32, update)?.then_some(()))
        });
        self.members[of].signals[to] = next;
    }

    pub(crate) fn run(&mut self, steps: u64) {
        for _ in 0..steps {
            let (of, to) = (self.dice.below(MEMBERS) as usize, self.dice.below(MEMBERS) as usize);
            match self.dice.below(12) {
                0..=2 => self.put(of, to),
                3 => self.get(of, to),
                4..=6 => self.add(of, to),
                7..=8 => self.put_signal(of, to),
                _ => self.signal(of, to),
            }
        }
        for of in 0..MEMBERS as usize {
            self.quiet(of);
        }
        for to in 0..MEMBERS as usize {
            let sum: u64 = self.members.iter().map(|member| member.added[to]).sum();
            assert_eq!(self.members[to].heap.load(SUM).unwrap(), sum);
            for of in 0..MEMBERS as usize {
                self.world.force_delayed_writes(&self.members[to].heap, 0, HEAP as u64);
                self.check_area(of, to);
                let signals = self.members[to].heap.load(SIGNALS + 8 * of as u64).unwrap();
                assert_eq!(
                    signals, self.members[of].signals[to],
                    "a quiet has returned before all signals arrived"
                );
            }
        }
    }
}

impl Drop for Trial {
    fn drop(&mut self) {
        self.world.free_run(1_000_000);
    }
}

/// Returns the network of that seed, without faults.
pub(crate) fn fair(seed: u64) -> NetworkModel {
    let mut weather = NetworkModel::from_rng(&mut SimRng::new(seed, 78));
    // The serving member has receives posted for all members at once.
    weather.caps.completions_max = weather.caps.completions_max.max(256);
    (weather.stuck, weather.no_route, weather.receiver_time, weather.nics) = (0, 0, None, 2);
    weather
}

#[test]
fn job_properties_hold_on_a_fault_free_network() {
    for nics in [&[0][..], &[0, 1][..]] {
        let calm = || NetworkModel { nics: 2, ..NetworkModel::fault_free() };
        Trial::new(1, calm(), nics).run(400);
        Trial::new(2, calm().without_arrival(), nics).run(400);
        Trial::new(3, calm().without_immediates(), nics).run(400);
    }
}

#[test]
fn job_properties_hold_on_any_network() {
    let seeds = if std::env::var_os("TRUNKLINE_FULL").is_some() { 4000 } else { 100 };
    for seed in 0..seeds {
        let nics = if seed % 2 == 0 { &[0][..] } else { &[0, 1][..] };
        println!("seed {seed}: {:?}", fair(seed));
        Trial::new(seed, fair(seed), nics).run(60);
    }
}

#[test]
fn fenced_puts_of_one_word_arrive_in_order() {
    for (seed, nics) in (0..40).flat_map(|seed| [(seed, &[0][..]), (seed, &[0, 1][..])]) {
        let calm = NetworkModel { nics: 2, jitter: 2_000_000, ..NetworkModel::fault_free() };
        let caps = Caps { link_order: false, ..calm.caps };
        let weather = NetworkModel { caps, ..calm };
        let weather = if seed % 2 == 0 { weather } else { weather.without_arrival() };
        let weather = if seed % 4 == 1 { weather.without_placed_writes() } else { weather };
        let mut trial = Trial::new(seed, weather, nics);
        for value in 1..=20_u64 {
            trial.put_all(0, 1, SUM, PutSource::Bytes(&value.to_le_bytes()));
            trial.members[0].job.fence(trial.members[0].context).unwrap();
        }
        trial.quiet(0);
        assert_eq!(trial.members[1].heap.load(SUM).unwrap(), 20, "seed {seed}");
    }
}

/// The owner is slow to execute them, and its NIC quickly accepts later operations.
#[test]
fn fence_orders_after_atomics_and_signals() {
    let mut trial = Trial::new(1, NetworkModel::fault_free(), &[0]);
    let (at, behind) = (SIGNALS, before(0, 1));
    trial.put_all(0, 1, behind, PutSource::Bytes(&[0; 8]));
    trial.quiet(0);
    let word = SymmetricWord::new(0, at, WordWidth::Eight).unwrap();
    let add = TypedAtomic::new(AtomicType::U64, AtomicAction::Add(1), false).unwrap();
    let update = SignalUpdate::new(UpdateOp::Add, word, 1).unwrap();
    for value in 1..=20_u64 {
        trial.until(|trial| {
            let Member { job, context, .. } = &trial.members[0];
            match value % 2 {
                0 => Ok(job.send_signal(*context, 1, update)?.then_some(())),
                _ => Ok(job.post_atomic(*context, 1, word, add)?.map(|_| ())),
            }
        });
        trial.members[0].job.fence(trial.members[0].context).unwrap();
        let (bytes, mut is_put) = (value.to_le_bytes(), false);
        for turn in 0..400 {
            let Member { job, context, .. } = &trial.members[0];
            is_put = is_put || job.put(*context, 1, 0, behind, PutSource::Bytes(&bytes)).unwrap().is_some();
            job.progress(*context).unwrap();
            trial.world.advance_by(50_000);
            let heap = &trial.members[1].heap;
            assert!(heap.load(at).unwrap() >= heap.load(behind).unwrap(), "round {value}");
            if turn >= 100 {
                trial.members[1].job.progress(trial.members[1].context).unwrap();
            }
        }
        assert!(is_put, "round {value}: the fence does not end");
    }
    trial.quiet(0);
}

/// Every member adds to every member's word, and to its own as its job permits. With one NIC each, NICs execute the
/// atomics; with two, or if a member has two, the owners do.
#[test]
fn sums_are_exact_with_incoherent_nic_atomics() {
    let (one, two) = (&[0][..], &[0, 1][..]);
    for (seed, nics) in [[one; 3], [two; 3], [one, two, one]].into_iter().cycle().take(30).enumerate() {
        let weather =
            NetworkModel { nics: 2, jitter: 200_000, ..NetworkModel::fault_free() }.with_incoherent_atomics();
        let mut trial = Trial::with(seed as u64, weather, nics, &params());
        for _ in 0..200 {
            let (of, to) = (trial.dice.below(MEMBERS) as usize, trial.dice.below(MEMBERS) as usize);
            // Operations in flight on one path direct later ones to the next path.
            let (member, from) = (&trial.members[of], HeapRange { heap: 0, offset: STAGE, len: 512 });
            let _ =
                member.job.put(member.context, to as u32, 0, STAGE + AREA, PutSource::Heap(from)).unwrap();
            trial.add(of, to);
        }
        trial.run(0);
    }
}

/// All atomics by NICs that can only add, and compare and swap; several of each context at the same time.
#[test]
fn nics_execute_every_atomic() {
    for seed in 0..20 {
        let weather =
            if seed % 2 == 0 { NetworkModel::fault_free() } else { fair(seed) }.with_incoherent_atomics();
        // With a small depth, the steps of several atomics do not fit at once.
        let params = EngineParams { depth: if seed % 4 < 2 { 2 } else { 512 }, ..params() };
        let mut trial = Trial::with(seed, weather, [&[0]; 3], &params);
        assert!(
            !trial.members[0].job.can_execute_locally(WordWidth::Eight)
                && trial.members[0].job.can_execute_locally(WordWidth::Four)
        );
        let word = SymmetricWord::new(0, SUM, WordWidth::Eight).unwrap();
        // Each member has a byte that it sets and then inverts; all members count above these bytes.
        let own = |of: usize| 0xff_u64 << (8 * of);
        for round in 0..30_u64 {
            for of in 0..MEMBERS as usize {
                let (or, xor) = (AtomicAction::Or(own(of)), AtomicAction::Xor(own(of)));
                for action in [or, AtomicAction::Add(1 << 32), xor, AtomicAction::And(!0)] {
                    let fetches = trial.dice.coin();
                    let atomic = TypedAtomic::new(AtomicType::U64, action, fetches).unwrap();
                    let fetch: FetchHandle = trial.until(|trial| {
                        let Member { job, context, .. } = &trial.members[of];
                        job.post_atomic(*context, 1, word, atomic)
                    });
                    if fetches {
                        let found = trial.until(|trial| {
                            trial.members[of].job.collect_fetch(trial.members[of].context, fetch)
                        });
                        assert!(found >> 32 <= 3 * (round + 1), "seed {seed}");
                    }
                }
            }
            for of in 0..MEMBERS as usize {
                // Atomics that the owner executes use another path.
                let half = SymmetricWord::new(0, STAGE, WordWidth::Four).unwrap();
                let add = TypedAtomic::new(AtomicType::U32, AtomicAction::Add(1), false).unwrap();
                let _: FetchHandle = trial.until(|trial| {
                    let Member { job, context, .. } = &trial.members[of];
                    job.post_atomic(*context, 1, half, add)
                });
                trial.quiet(of);
            }
            assert_eq!(trial.members[1].heap.load(SUM).unwrap() >> 32, 3 * (round + 1), "seed {seed}");
        }
        let swap = |expect, swap| {
            TypedAtomic::new(AtomicType::U64, AtomicAction::CompareSwap { expect, swap }, true).unwrap()
        };
        let set = TypedAtomic::new(AtomicType::F64, AtomicAction::Set(7), true).unwrap();
        let now = trial.members[1].heap.load(SUM).unwrap();
        for (atomic, found, after) in [(swap(now, 5), now, 5), (swap(now, 6), 5, 5), (set, 5, 7)] {
            let fetch: FetchHandle = trial.until(|trial| {
                let Member { job, context, .. } = &trial.members[0];
                job.post_atomic(*context, 1, word, atomic)
            });
            let was =
                trial.until(|trial| trial.members[0].job.collect_fetch(trial.members[0].context, fetch));
            trial.quiet(0);
            assert_eq!((was, trial.members[1].heap.load(SUM).unwrap()), (found, after), "seed {seed}");
        }
        let nowhere = SymmetricWord::new(0, HEAP as u64, WordWidth::Eight).unwrap();
        let fetch: FetchHandle = trial.until(|trial| {
            let Member { job, context, .. } = &trial.members[0];
            job.post_atomic(*context, 1, nowhere, set)
        });
        let Member { job, context, .. } = &trial.members[0];
        assert!(matches!(job.collect_fetch(*context, fetch), Err(RmaError::NoWord(1))));
        assert!(job.quiet(*context).is_err(), "a quiet reports the refusal");
    }
}

/// An endpoint has receives for two links, each of which may carry some messages at once.
#[test]
fn member_without_free_receives_is_refused() {
    let calm = NetworkModel::fault_free();
    let weather = NetworkModel { caps: Caps { receives_max: 8, ..calm.caps }, ..calm };
    let mut trial = Trial::new(1, weather, &[0]);
    for of in [0, 1] {
        trial.put_all(of, 1, 8 * of as u64, PutSource::Bytes(&[1; 8]));
    }
    let refused = (0..200_000).find_map(|_| {
        let member = &trial.members[2];
        let put = member.job.put(member.context, 1, 0, 16, PutSource::Bytes(&[1; 8]));
        trial.step();
        put.map(|put| assert!(put.is_none(), "only two links have receives")).err()
    });
    let why = LossCause::Refused(DialRefusal::NoResources);
    let expected = RmaError::Lost { member: 1, lost: why };
    assert_eq!(refused.unwrap().to_string(), expected.to_string());
    // The other members are served as before.
    for of in [0, 1] {
        trial.add(of, 1);
        trial.quiet(of);
    }
}

/// If completions do not prove arrival, the operations in flight are proved before more of them are sent.
#[test]
fn more_than_the_inflight_limit_leaves_without_quiet() {
    for weather in [
        NetworkModel::fault_free(),
        NetworkModel::fault_free().without_arrival(),
        NetworkModel::fault_free().without_arrival().without_placed_writes(),
    ] {
        let mut trial = Trial::new(1, weather, &[0]);
        let from = PutSource::Heap(HeapRange { heap: 0, offset: 0, len: 64 << 10 });
        for _ in 0..100 {
            trial.put_all(0, 1, 0, from);
        }
        trial.quiet(0);
    }
}
