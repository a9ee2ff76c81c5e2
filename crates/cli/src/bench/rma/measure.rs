//! The measurements. All ranks call them in the same order, with a barrier between two of them; rank 0 has the times.

use std::hint::black_box;
use std::time::{Duration, Instant};

use trunkline::{Compare, Error, SignalOp, Symmetric, SymmetricSlice, World};

use super::super::times::{OperationTimes, warm_up};
use super::{FixedSizeResult, RmaBenchSettings};
use crate::bench::BenchError;

/// Guard bytes on each side of the data, which no operation may change.
const GUARD: usize = 64;
const GUARD_BYTE: u8 = 0xa5;
/// Bytes that all timed runs of a size move together, and the limits of the number of runs.
const WHOLE: usize = 32 << 20;
const FEW: usize = 20;
const MANY: usize = 10_000;
/// Most operations at a computing rank, and the pause between two of them, which is longer than a serving thread stays
/// awake.
const AT_COMPUTING: usize = 1000;
const PAUSE: Duration = Duration::from_millis(5);

/// Results of puts or of gets of one size.
pub(super) struct TransferResult {
    pub(super) name: &'static str,
    pub(super) times: OperationTimes,
    /// Bandwidth of a stream, in 1e9 bytes per second.
    pub(super) gbs: f64,
    /// Millions of operations per second.
    pub(super) rate: f64,
    pub(super) wrong: u64,
}

/// The memory and settings that all measurements share.
pub(super) struct RmaBench<'a> {
    world: &'a World,
    settings: &'a RmaBenchSettings,
    /// The target of puts, between two guards.
    data: SymmetricSlice<u8>,
    /// The source of puts.
    source: SymmetricSlice<u8>,
    words: SymmetricSlice<u64>,
    halves: SymmetricSlice<u32>,
    /// On each rank: the number of errors found on any rank.
    wrong: Symmetric<u64>,
}

impl<'a> RmaBench<'a> {
    /// Number of lines of [`measure_line`](Self::measure_line).
    pub(super) const LINES: usize = 8;

    pub(super) fn new(world: &'a World, settings: &'a RmaBenchSettings) -> Result<Self, Error> {
        let most = settings.sizes.iter().copied().max().unwrap_or(8);
        Ok(Self {
            world,
            settings,
            data: world.alloc(most + 2 * GUARD)?,
            source: world.alloc(most)?,
            words: world.alloc(4 + world.size())?,
            halves: world.alloc(1)?,
            wrong: world.alloc_one()?,
        })
    }

    /// Timed runs of a size.
    pub(super) fn iteration_count(&self, bytes: usize) -> usize {
        match self.settings.iterations {
            0 => (WHOLE / bytes.max(1)).clamp(FEW, MANY),
            asked => asked,
        }
    }

    /// The number of errors found on any rank so far; the same on all ranks.
    pub(super) fn wrong_of_all(&self) -> Result<u64, BenchError> {
        self.world.barrier()?;
        Ok(self.wrong.load())
    }

    /// Adds this rank's errors to the counter of every rank; returns the errors that all ranks found since `before`.
    fn share_wrong(&self, before: u64, wrong: u64) -> Result<u64, Error> {
        if wrong > 0 {
            for rank in 0..self.world.size() {
                self.world.add(rank, &self.wrong, wrong)?;
            }
        }
        self.world.barrier()?;
        Ok(self.wrong.load() - before)
    }

    fn is_wrong(&self, what: bool) -> u64 {
        u64::from(self.settings.check && what)
    }

    /// The pattern of a size.
    fn pattern_bytes(bytes: usize, salt: usize) -> Vec<u8> {
        let byte = |at: usize| ((at ^ at >> 8 ^ at >> 16).wrapping_mul(31) + bytes + salt) as u8;
        (0..bytes).map(byte).collect()
    }

    /// Counts the bytes of the data that differ from `expected`, guards included.
    fn count_differing(&self, expected: &[u8]) -> u64 {
        if !self.settings.check {
            return 0;
        }
        let all = self.data.to_vec();
        let (before, rest) = all.split_at(GUARD);
        let (moved, behind) = rest.split_at(expected.len());
        let guards = before.iter().chain(&behind[..GUARD]).filter(|&&byte| byte != GUARD_BYTE).count();
        (guards + moved.iter().zip(expected).filter(|(left, right)| left != right).count()) as u64
    }

    /// Measures puts of a size, then gets.
    pub(super) fn measure_transfers(&self, bytes: usize) -> Result<[TransferResult; 2], Error> {
        Ok([self.measure_puts(bytes)?, self.measure_gets(bytes)?])
    }

    fn measure_puts(&self, bytes: usize) -> Result<TransferResult, Error> {
        let world = self.world;
        let count = self.iteration_count(bytes);
        let before = self.wrong.load();
        let [single, streamed] = [1, 2].map(|salt| Self::pattern_bytes(bytes, salt));
        self.data.fill(GUARD_BYTE);
        self.source.write(0, &streamed);
        world.barrier()?;
        let to = self.data.at(GUARD);
        let times = self.on_first(|| {
            OperationTimes::time_runs(count, 1, |_| {
                world.put(1, to, &single)?;
                world.quiet_rank(1)
            })
        })?;
        world.barrier()?;
        let mut wrong = if world.rank() == 1 { self.count_differing(&single) } else { 0 };
        world.barrier()?;
        let (gbs, rate) = self.time_stream(bytes, count, || world.put_nbi(1, to, &self.source, bytes))?;
        wrong += if world.rank() == 1 { self.count_differing(&streamed) } else { 0 };
        Ok(TransferResult { name: "put", times, gbs, rate, wrong: self.share_wrong(before, wrong)? })
    }

    fn measure_gets(&self, bytes: usize) -> Result<TransferResult, Error> {
        let world = self.world;
        let count = self.iteration_count(bytes);
        let before = self.wrong.load();
        let expected = Self::pattern_bytes(bytes, 3);
        self.data.fill(GUARD_BYTE);
        if world.rank() == 1 {
            self.source.write(0, &expected);
        }
        world.barrier()?;
        let mut got = vec![0; bytes];
        let times =
            self.on_first(|| OperationTimes::time_runs(count, 1, |_| world.get(1, &self.source, &mut got)))?;
        let first = world.rank() == 0;
        let mut wrong = self.is_wrong(first && got != expected);
        world.barrier()?;
        let (gbs, rate) =
            self.time_stream(bytes, count, || world.get_nbi(1, &self.source, self.data.at(GUARD), bytes))?;
        wrong += if first { self.count_differing(&expected) } else { 0 };
        Ok(TransferResult { name: "get", times, gbs, rate, wrong: self.share_wrong(before, wrong)? })
    }

    /// Measures on rank 0, while the other ranks wait for it.
    fn on_first(
        &self,
        measure: impl FnOnce() -> Result<OperationTimes, Error>,
    ) -> Result<OperationTimes, Error> {
        let times = if self.world.rank() == 0 {
            measure()?
        } else {
            OperationTimes { p50_us: 0.0, p99_us: 0.0, max_us: 0.0 }
        };
        self.world.sync()?;
        Ok(times)
    }

    /// Times a stream of operations with a quiet after it. Returns 1e9 bytes per second and millions of operations per
    /// second.
    fn time_stream(
        &self,
        bytes: usize,
        count: usize,
        mut operation: impl FnMut() -> Result<(), Error>,
    ) -> Result<(f64, f64), Error> {
        let mut seconds = f64::INFINITY;
        if self.world.rank() == 0 {
            for _ in 0..count / 10 + 1 {
                operation()?;
            }
            self.world.quiet()?;
            let began = Instant::now();
            for _ in 0..count {
                operation()?;
            }
            self.world.quiet()?;
            seconds = began.elapsed().as_secs_f64();
        }
        self.world.barrier()?;
        Ok(((bytes * count) as f64 / seconds / 1e9, count as f64 / seconds / 1e6))
    }

    /// Measures the line number `line` of the table of single sizes.
    pub(super) fn measure_line(&self, line: usize) -> Result<FixedSizeResult, Error> {
        self.words.fill(0);
        self.halves.fill(0);
        self.world.barrier()?;
        match line {
            0 => self.fetch_adds(),
            1 => self.compare_swaps(),
            2 => self.measure_swaps(),
            3 => self.measure_add_stream(),
            4 => self.measure_signals(false),
            5 => self.measure_signals(true),
            6 => self.signal_stream(),
            _ => self.quiets_of_nothing(),
        }
    }

    /// Times an operation on rank 0, then checks the result on rank 1.
    fn time_operation(
        &self,
        name: &str,
        bytes: usize,
        operation: impl FnMut(usize) -> Result<(), Error>,
        check: impl FnOnce(usize) -> bool,
    ) -> Result<FixedSizeResult, Error> {
        let count = self.iteration_count(8);
        let before = self.wrong.load();
        let times = self.on_first(|| OperationTimes::time_runs(count, 1, operation))?;
        self.world.barrier()?;
        let all = count + warm_up(count);
        let wrong = self.is_wrong(self.world.rank() == 1 && !check(all));
        let wrong = self.share_wrong(before, wrong)?;
        Ok(FixedSizeResult { name: name.into(), bytes, times: Some(times), rate: None, wrong })
    }

    fn fetch_adds(&self) -> Result<FixedSizeResult, Error> {
        let add = |at: usize| match self.world.fetch_add(1, self.words.at(0), 3)? {
            old if old == 3 * at as u64 => Ok(()),
            _ => Err(Error::Argument("a fetch-and-add returned a wrong sum")),
        };
        self.time_operation("fetch-add, 8 B", 8, add, |all| self.words.load(0) == 3 * all as u64)
    }

    /// Times fetch-adds at rank 1, which makes no call of the library until rank 0 has put a word there.
    pub(super) fn fetch_adds_at_computing_rank(&self) -> Result<FixedSizeResult, Error> {
        let world = self.world;
        let before = self.wrong.load();
        let sum = self.words.at(0);
        let end = 1;
        self.words.fill(0);
        world.barrier()?;
        let mut times = OperationTimes { p50_us: 0.0, p99_us: 0.0, max_us: 0.0 };
        match world.rank() {
            0 => {
                let count = self.iteration_count(8).min(AT_COMPUTING);
                let mut nanos = Vec::with_capacity(count);
                for _ in 0..count {
                    std::thread::sleep(PAUSE);
                    let began = Instant::now();
                    world.fetch_add(1, sum, 1)?;
                    nanos.push(began.elapsed().as_nanos() as u64);
                }
                times = OperationTimes::from_nanos(nanos, 1);
                world.put(1, self.words.at(end), &[count as u64])?;
            }
            1 => {
                let mut state = 1_u64;
                while self.words.load(end) == 0 {
                    (0..1000).for_each(|_| state = black_box(state.wrapping_mul(0x9e37_79b9).rotate_left(7)));
                }
            }
            _ => {}
        }
        world.barrier()?;
        let is_wrong = world.rank() == 1 && self.words.load(0) != self.words.load(end);
        let wrong = self.share_wrong(before, self.is_wrong(is_wrong))?;
        let name = "fetch-add, at a rank that computes".into();
        Ok(FixedSizeResult { name, bytes: 8, times: Some(times), rate: None, wrong })
    }

    fn compare_swaps(&self) -> Result<FixedSizeResult, Error> {
        let swap = |at: usize| {
            let at = at as u64;
            self.world.compare_swap(1, self.words.at(0), at, at + 1).map(drop)
        };
        self.time_operation("compare-swap, 8 B", 8, swap, |all| self.words.load(0) == all as u64)
    }

    fn measure_swaps(&self) -> Result<FixedSizeResult, Error> {
        let swap = |at: usize| self.world.swap(1, self.halves.at(0), at as u32).map(drop);
        self.time_operation("swap, 4 B", 4, swap, |all| self.halves.load(0) == all as u32 - 1)
    }

    /// Measures a stream of additions that return no value.
    fn measure_add_stream(&self) -> Result<FixedSizeResult, Error> {
        let count = self.iteration_count(8);
        let before = self.wrong.load();
        let (_, rate) = self.time_stream(8, count, || self.world.inc(1, self.words.at(0)))?;
        let all = (count + count / 10 + 1) as u64;
        let wrong = self.is_wrong(self.world.rank() == 1 && self.words.load(0) != all);
        let wrong = self.share_wrong(before, wrong)?;
        Ok(FixedSizeResult {
            name: "stream of increments, 8 B".into(),
            bytes: 8,
            times: None,
            rate: Some(rate),
            wrong,
        })
    }

    /// Measures half round trips of signals, each after a put of 8 B if `puts` is set.
    fn measure_signals(&self, puts: bool) -> Result<FixedSizeResult, Error> {
        let world = self.world;
        let count = self.iteration_count(8);
        let before = self.wrong.load();
        let mut wrong = 0;
        let send = |to: usize, value: u64| {
            let word = self.words.at(0);
            match puts {
                true => world.put_signal(to, self.words.at(1), &[value], word, SignalOp::Add, 1),
                false => world.signal(to, word, SignalOp::Add, 1),
            }
        };
        let mut receive = |from: usize, value: u64| {
            world.wait_until(self.words.at(0), Compare::AtLeast, value, from)?;
            wrong += self.is_wrong(puts && self.words.load(1) != value);
            Ok::<_, Error>(())
        };
        let all = count + warm_up(count);
        let mut times = OperationTimes { p50_us: 0.0, p99_us: 0.0, max_us: 0.0 };
        match world.rank() {
            0 => {
                times = OperationTimes::time_runs(count, 2, |at| {
                    send(1, at as u64 + 1)?;
                    receive(1, at as u64 + 1)
                })?;
            }
            1 => (1..=all as u64).try_for_each(|value| {
                receive(0, value)?;
                send(0, value)
            })?,
            _ => {}
        }
        let wrong = self.share_wrong(before, wrong)?;
        let name = if puts { "put of 8 B with signal, one way" } else { "signal, one way" };
        Ok(FixedSizeResult { name: name.into(), bytes: 8, times: Some(times), rate: None, wrong })
    }

    fn signal_stream(&self) -> Result<FixedSizeResult, Error> {
        let count = self.iteration_count(8);
        let before = self.wrong.load();
        let signal = || self.world.signal(1, self.words.at(0), SignalOp::Add, 1);
        let (_, rate) = self.time_stream(8, count, signal)?;
        let all = (count + count / 10 + 1) as u64;
        let wrong = self.is_wrong(self.world.rank() == 1 && self.words.load(0) != all);
        let wrong = self.share_wrong(before, wrong)?;
        Ok(FixedSizeResult {
            name: "stream of signals".into(),
            bytes: 8,
            times: None,
            rate: Some(rate),
            wrong,
        })
    }

    fn quiets_of_nothing(&self) -> Result<FixedSizeResult, Error> {
        self.time_operation("quiet, nothing to wait for", 0, |_| self.world.quiet(), |_| true)
    }

    /// Measures a quiet after a put to each of `peers` ranks.
    pub(super) fn measure_quiet(&self, peers: usize) -> Result<FixedSizeResult, Error> {
        let world = self.world;
        let before = self.wrong.load();
        let count = self.iteration_count(8);
        self.words.fill(0);
        world.barrier()?;
        let times = self.on_first(|| {
            OperationTimes::time_runs(count, 1, |at| {
                (1..=peers).try_for_each(|rank| world.put(rank, self.words.at(0), &[at as u64]))?;
                world.quiet()
            })
        })?;
        world.barrier()?;
        let last = (count + warm_up(count) - 1) as u64;
        let is_put = (1..=peers).contains(&world.rank());
        let wrong = self.share_wrong(before, self.is_wrong(is_put && self.words.load(0) != last))?;
        let name = format!("put of 8 B to {peers} {}, quiet", if peers == 1 { "rank" } else { "ranks" });
        Ok(FixedSizeResult { name, bytes: 8, times: Some(times), rate: None, wrong })
    }

    /// Measures `callers` ranks that add to one word of rank 0.
    pub(super) fn fan_in_adds(&self, callers: usize) -> Result<FixedSizeResult, Error> {
        let count = self.iteration_count(8);
        let add = |_| self.world.fetch_inc(0, self.words.at(0)).map(drop);
        let all = (callers * count) as u64;
        self.fan_in("fetch-adds", callers, count, add, || self.words.load(0) == all)
    }

    /// Measures `callers` ranks that put to distinct words of rank 0.
    pub(super) fn fan_in_puts(&self, callers: usize) -> Result<FixedSizeResult, Error> {
        let count = self.iteration_count(8);
        let place = 4 + self.world.rank();
        let put = |at: usize| self.world.put(0, self.words.at(place), &[at as u64 + 1]);
        let is_right = || (1..=callers).all(|rank| self.words.load(4 + rank) == count as u64);
        self.fan_in("puts", callers, count, put, is_right)
    }

    fn fan_in(
        &self,
        what: &str,
        callers: usize,
        count: usize,
        operation: impl FnMut(usize) -> Result<(), Error>,
        is_right: impl FnOnce() -> bool,
    ) -> Result<FixedSizeResult, Error> {
        let world = self.world;
        let before = self.wrong.load();
        self.words.fill(0);
        world.barrier()?;
        let began = Instant::now();
        if (1..=callers).contains(&world.rank()) {
            (0..count).try_for_each(operation)?;
        }
        world.barrier()?;
        let seconds = began.elapsed().as_secs_f64();
        let wrong = self.share_wrong(before, self.is_wrong(world.rank() == 0 && !is_right()))?;
        let name = format!("{callers} to one, 8 B {what}");
        let rate = Some((callers * count) as f64 / seconds / 1e6);
        Ok(FixedSizeResult { name, bytes: 8, times: None, rate, wrong })
    }
}
