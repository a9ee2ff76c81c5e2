//! What is measured: B1 to B4 and B6, and of B5 what threads of the host do, of the specification of device queues.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Instant;

use trunkline_device::QueueError;
use trunkline_device::{Executor, Network, Words};
use trunkline_device_queue::channel::Channel;
use trunkline_device_queue::{BellPage, Lane, Queue, Ticket, heap};
use trunkline_engine::Mutant;
use trunkline_proto::wire::device_queue::{Bells, Entry, Work};

use super::gpu;
use super::pattern::{check, fill};
use super::ranks::{Alone, Rank, Way, alone, over, patience};
use super::{DeviceBenchError, Row, Settings};
use crate::bench::times::{Times, warm_up};
use crate::cmd::BenchError;

/// Runs of a row of few bytes.
const RUNS: usize = 2000;
/// Operations that are timed together, where one is short.
const PARTS: u32 = 16;
/// Bytes up to which one is.
const SHORT: usize = 4096;
/// Turns of the operations that are compared with each other, where they are short.
const TURNS: usize = 8;
/// Bytes from which a row has few runs.
const LONG: usize = 64 << 20;
/// Peers of the fan-out.
const PEERS: usize = 64;
/// Rounds of them.
const FANS: usize = 200;
/// Queues that are idle.
const IDLE: u32 = 1024;

/// Ways of B1 and B2.
pub(super) const WAYS: usize = Way::ALL.len();

/// What the goals are about.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Found {
    pub(super) m1_put_us: f64,
    pub(super) m0_put_us: f64,
    pub(super) m1_rate: f64,
    pub(super) idle_pass_us: f64,
    pub(super) idle_flags_us: f64,
    pub(super) look_counter_ns: f64,
    pub(super) look_tickets_ns: f64,
    /// B4: 64 puts until one counter has them all, and until their tickets are done.
    pub(super) fan_counter_us: f64,
    pub(super) fan_tickets_us: f64,
    pub(super) m0_counter_us: f64,
    pub(super) m0_companion_us: f64,
    pub(super) m1_counter_us: f64,
    pub(super) m1_companion_us: f64,
}

/// A word on its own line.
#[repr(align(128))]
struct Line(AtomicU64);

/// Half of what a word takes to another processor and back, in microseconds.
pub(super) fn line_transfer_us() -> Result<f64, DeviceBenchError> {
    const ROUNDS: u64 = 20_000;
    let line = Line(AtomicU64::new(0));
    let turn = |mine: u64| {
        let began = Instant::now();
        for round in 0..ROUNDS {
            let mut looks = 0_u32;
            while line.0.load(Ordering::Acquire) != 2 * round + mine {
                std::hint::spin_loop();
                looks += 1;
                if looks.is_multiple_of(10_000) {
                    std::thread::yield_now();
                }
            }
            line.0.store(2 * round + mine + 1, Ordering::Release);
        }
        began.elapsed()
    };
    let mut best = f64::INFINITY;
    for _ in 0..5 {
        line.0.store(0, Ordering::Release);
        let took = std::thread::scope(|scope| {
            let other = scope.spawn(|| turn(1));
            let took = turn(0);
            other.join().map(|_| took)
        });
        let took = took.map_err(|_| DeviceBenchError::Panicked)?;
        best = best.min(took.as_secs_f64() * 1e6 / ROUNDS as f64 / 2.0);
    }
    Ok(best)
}

type Print<'a> = &'a mut dyn FnMut(&Row) -> Result<(), BenchError>;

/// Everything, a row at a time.
pub(super) fn all(settings: &Settings, print: Print<'_>) -> Result<Found, BenchError> {
    let mut found = Found::default();
    let mut modes = Vec::new();
    for way in Way::ALL {
        match way {
            Way::M0 | Way::M1 => {
                let mut keep = |row: &Row| {
                    modes.extend(row.of_mode());
                    print(row)
                };
                of_way(&alone(way, settings.largest())?, way, settings, &mut keep, &mut found)?;
            }
            Way::Shm | Way::Tcp => of_way(&over(way, settings.largest())?, way, settings, print, &mut found)?,
        }
    }
    // B5: the same operations again, side by side.
    modes.iter().try_for_each(&mut *print)?;
    gpu::all(settings, print)?;
    idle(print, &mut found)?;
    fan_out(print, &mut found)?;
    baseline(settings, print)?;
    Ok(found)
}

fn runs(settings: &Settings, bytes: usize) -> usize {
    match settings.iterations {
        0 => ((64 << 20) / bytes.max(1)).clamp(runs_least(bytes), RUNS),
        iterations => iterations,
    }
}

/// Where one run takes long there are fewer.
const fn runs_least(bytes: usize) -> usize {
    if bytes > LONG { 3 } else { 20 }
}

/// Times an operation, several at a time where one is about as long as a look at the clock.
fn timed(
    bytes: usize,
    count: usize,
    mut operation: impl FnMut() -> Result<(), DeviceBenchError>,
) -> Result<Times, DeviceBenchError> {
    let parts = if bytes <= SHORT { PARTS } else { 1 };
    let times = (count / parts as usize).max(runs_least(bytes));
    Times::take(times, parts, |_| (0..parts).try_for_each(|_| operation()))
}

/// Has somebody wait at a rank while another one puts there: its executor stays awake, as it does for a kernel that waits for what comes.
fn attended<N: Network + 'static, T>(
    rank: &Rank<N>,
    f: impl FnOnce() -> Result<T, DeviceBenchError>,
) -> Result<T, DeviceBenchError> {
    let over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                rank.attend();
            }
        });
        let result = f();
        over.store(true, Ordering::Relaxed);
        result
    })
}

/// B1 and B2.
fn of_way<N: Network + 'static>(
    ranks: &[Rank<N>; 2],
    way: Way,
    settings: &Settings,
    print: Print<'_>,
    found: &mut Found,
) -> Result<(), BenchError> {
    let [first, second] = ranks;
    let queue = first.queue(1024)?;
    let companion = companion(first, &queue)?;
    for &bytes in &settings.sizes {
        let count = runs(settings, bytes);
        let [put, flush, counter, waits] =
            attended_over(second, way, || puts(ranks, (&queue, &companion), way, (bytes, count)))?;
        let p50 = |row: &Row| row.p50_us.unwrap_or_default();
        let times = [p50(&put), p50(&counter), p50(&waits)];
        match way {
            Way::M0 if bytes == 8 => {
                [found.m0_put_us, found.m0_counter_us, found.m0_companion_us] = times;
            }
            Way::M1 if bytes == 8 => {
                [found.m1_put_us, found.m1_counter_us, found.m1_companion_us] = times;
            }
            _ => {}
        }
        [put, flush, counter, waits, ping_pong(ranks, way, bytes, count)?]
            .iter()
            .try_for_each(&mut *print)?;
    }
    let mut sent = first.value(9);
    let times = timed(8, runs(settings, 8), || {
        sent += 1;
        first.queues_wait(&queue, &[first.count(9)])?;
        debug_assert_eq!(first.value(9), sent);
        Ok(())
    })?;
    print(&Row::timed("B1", "signal (own) + wait", way.name(), 0, times))?;
    let entries = if matches!(way, Way::M0 | Way::M1) { 200_000 } else { 5_000 };
    for batch in [1, 16, 64] {
        let rate = attended_over(second, way, || rate(first, &queue, (batch, entries), 1))?;
        if (way, batch) == (Way::M1, 16) {
            found.m1_rate = rate;
        }
        print(&Row::rated("B1", "puts", way.name(), (8, batch), rate))?;
    }
    let mut producers = 2;
    while producers <= settings.producers {
        let rate = attended_over(second, way, || rate(first, &queue, (16, entries), producers))?;
        print(&Row::rated("B2", &format!("puts, {producers} producers"), way.name(), (8, 16), rate))?;
        producers *= 2;
    }
    Ok(())
}

/// Only a network needs the other side.
fn attended_over<N: Network + 'static, T>(
    rank: &Rank<N>,
    way: Way,
    f: impl FnOnce() -> Result<T, DeviceBenchError>,
) -> Result<T, DeviceBenchError> {
    match way {
        Way::M0 | Way::M1 => f(),
        Way::Shm | Way::Tcp => attended(rank, f),
    }
}

fn companion<N: Network + 'static>(
    rank: &Rank<N>,
    queue: &Queue<Words>,
) -> Result<Queue<Words>, DeviceBenchError> {
    let number = queue.companion_within(&mut patience())?;
    rank.queues.find(number).ok_or_else(|| DeviceBenchError::Ranks("no companion".to_owned()))
}

impl<N: Network + 'static> Rank<N> {
    fn queues_wait(&self, queue: &Queue<Words>, entries: &[Entry]) -> Result<Ticket, DeviceBenchError> {
        let ticket = queue.post(entries, &mut patience())?;
        queue.wait(ticket, &mut patience())?;
        Ok(ticket)
    }
}

/// An operation of one put, with its name and what its bytes are made of.
struct Kind<'a> {
    what: &'static str,
    seed: u64,
    round: &'a mut dyn FnMut() -> Result<(), DeviceBenchError>,
}

/// Puts of the first rank to the second, one at a time, each of which is posted and waited for. The kinds take turns, some runs each: a machine that is
/// slow for a while is slow for all. The bytes are checked each time.
fn in_turns<N: Network + 'static, const KINDS: usize>(
    ranks: &[Rank<N>; 2],
    way: Way,
    (bytes, count): (usize, usize),
    mut kinds: [Kind<'_>; KINDS],
) -> Result<[Row; KINDS], DeviceBenchError> {
    let parts = if bytes <= SHORT { PARTS } else { 1 };
    let turns = if bytes <= SHORT { TURNS } else { 1 };
    let runs = (count / parts as usize).max(runs_least(bytes)).div_ceil(turns);
    let mut found = [(); KINDS].map(|()| (Vec::with_capacity(turns * runs), 0));
    for _ in 0..turns {
        for (kind, (nanos, wrong)) in kinds.iter_mut().zip(&mut found) {
            fill([&ranks[0].memory, &ranks[1].memory], bytes, kind.seed);
            for run in 0..warm_up(runs) + runs {
                let began = Instant::now();
                (0..parts).try_for_each(|_| (kind.round)())?;
                let took = began.elapsed();
                if run >= warm_up(runs) {
                    nanos.push(took.as_nanos() as u64);
                }
            }
            *wrong += check(&ranks[1].memory, bytes, kind.seed);
        }
    }
    // As many as there are kinds.
    let mut found = found.into_iter();
    Ok(kinds.map(|kind| {
        let (nanos, wrong) = found.next().unwrap_or_default();
        Row { wrong, ..Row::timed("B1", kind.what, way.name(), bytes, Times::of(nanos, parts)) }
    }))
}

/// A put until its ticket is done, until a channel of one lane is flushed, until a counter has it that its own entry raises, and until one that a companion raises.
fn puts<N: Network + 'static>(
    ranks: &[Rank<N>; 2],
    (queue, companion): (&Queue<Words>, &Queue<Words>),
    way: Way,
    (bytes, count): (usize, usize),
) -> Result<[Row; 4], DeviceBenchError> {
    let rank = &ranks[0];
    let entries = rank.put(bytes);
    let mut wait = || rank.queues_wait(queue, &entries).map(drop);
    let counted_entries = rank.put_counted(bytes, 0)?;
    let mut counted = rank.value(0);
    let mut count_it = || {
        queue.post(&counted_entries, &mut patience())?;
        counted += 1;
        rank.wait(0, counted)
    };
    let lane = Lane::new(queue.clone(), rank.queues.finder());
    let place = rank.bytes(bytes);
    let counter = rank.counter(1);
    let mut seen = rank.value(1);
    let mut accompany = || {
        lane.write_and_count(companion, &place, &counter, &mut patience())?;
        seen += 1;
        rank.wait(1, seen)
    };
    let mut channel = None;
    let mut flush = || {
        let ticket = queue.post(&entries, &mut patience())?;
        let channel = match &mut channel {
            Some(channel) => channel,
            none => none.insert(one_lane(ticket.index)?),
        };
        let _ = channel.record(0, ticket);
        Ok(channel.flush(std::slice::from_ref(queue), &mut patience())?)
    };
    let kinds = [
        Kind { what: "put + wait", seed: 1, round: &mut wait },
        Kind { what: "put + flush", seed: 5, round: &mut flush },
        Kind { what: "put + fused counter", seed: 2, round: &mut count_it },
        Kind { what: "put + companion's counter", seed: 3, round: &mut accompany },
    ];
    in_turns(ranks, way, (bytes, count), kinds)
}

/// A channel of one lane, whose first entry is that one.
fn one_lane(first: u64) -> Result<Channel<Words>, DeviceBenchError> {
    let words = Words::try_heap(64).map_err(|error| DeviceBenchError::Ranks(error.to_string()))?;
    Channel::create(words, 0, &[first], Mutant::NONE).ok_or(DeviceBenchError::Panicked)
}

/// Half of a put with a signal there, and one back.
fn ping_pong<N: Network + 'static>(
    ranks: &[Rank<N>; 2],
    way: Way,
    bytes: usize,
    count: usize,
) -> Result<Row, DeviceBenchError> {
    fill([&ranks[0].memory, &ranks[1].memory], bytes, 4);
    let all = count + warm_up(count);
    let [first, second] = ranks;
    let there = first.queue(128)?;
    let back = second.queue(128)?;
    let mut sent = second.value(2);
    let mut heard = first.value(2);
    let replied = heard;
    let put = |rank: &Rank<N>| [rank.put(bytes), vec![rank.signal(2)]].concat();
    let ask = put(first);
    let answer = put(second);
    let times = std::thread::scope(|scope| {
        let echo = scope.spawn(move || {
            let mut heard = sent;
            for _ in 0..all {
                heard += 1;
                second.wait(2, heard)?;
                back.post(&answer, &mut patience())?;
            }
            Ok::<_, DeviceBenchError>(())
        });
        let times = Times::take(count, 2, |_| {
            sent += 1;
            heard += 1;
            there.post(&ask, &mut patience())?;
            first.wait(2, heard)
        });
        echo.join().map_err(|_| DeviceBenchError::Panicked)??;
        times
    })?;
    let came = first.value(2) - replied;
    let row = Row::timed("B1", "put + signal, one way", way.name(), bytes, times);
    Ok(Row { wrong: check(&ranks[1].memory, bytes, 4) + came.abs_diff(all as u64), ..row })
}

/// Millions of entries a second.
fn rate<N: Network + 'static>(
    rank: &Rank<N>,
    queue: &Queue<Words>,
    (batch, entries): (usize, usize),
    producers: usize,
) -> Result<f64, DeviceBenchError> {
    let each = (entries / producers / batch).max(1);
    let entries = rank.put(8).repeat(batch);
    let began = Instant::now();
    std::thread::scope(|scope| {
        let produce = || {
            let mut last = None;
            for _ in 0..each {
                last = Some(queue.post(&entries, &mut patience())?);
            }
            last.map_or(Ok(()), |ticket| Ok(queue.wait(ticket, &mut patience())?))
        };
        let others: Vec<_> = (1..producers).map(|_| scope.spawn(produce)).collect();
        let own: Result<(), DeviceBenchError> = produce();
        for other in others {
            other.join().map_err(|_| DeviceBenchError::Panicked)??;
        }
        own
    })?;
    Ok((each * batch * producers) as f64 / began.elapsed().as_secs_f64() / 1e6)
}

/// B3: a byte for each queue, as a GPU sets them, in place of a bit.
fn idle_flags() -> Result<Times, QueueError> {
    let bytes = Bells::new(IDLE)?.by_bytes().bytes();
    let page = BellPage::create_for_devices(heap(bytes), IDLE, Mutant::NONE)?;
    Times::take(RUNS, 100, |_| {
        for _ in 0..100 {
            for group in 0..page.groups() {
                black_box(page.take(group));
            }
        }
        Ok(())
    })
}

/// B3: no producer and no waiter, just the executor.
fn idle(print: Print<'_>, found: &mut Found) -> Result<(), BenchError> {
    let mut executor = Executor::new(Alone(0), IDLE, Mutant::NONE).map_err(DeviceBenchError::from)?;
    let queues: Result<Vec<_>, _> = (0..IDLE).map(|_| executor.make_queue(64, 0)).collect();
    let queues = queues.map_err(DeviceBenchError::from)?;
    // What was taken on is looked at once.
    while executor.pass().busy {}
    let times = Times::take(RUNS, 100, |_| {
        for _ in 0..100 {
            black_box(executor.pass());
        }
        Ok::<_, DeviceBenchError>(())
    })?;
    found.idle_pass_us = times.p50_us;
    print(&Row::timed("B3", "pass, 1,024 idle queues", "executor", 0, times))?;
    let times = idle_flags().map_err(DeviceBenchError::from)?;
    found.idle_flags_us = times.p50_us;
    print(&Row::timed("B3", "look, 1,024 idle flags of a GPU", "page", 0, times))?;
    let nops = [Entry::new(Work::Nop); 16];
    let queue = &queues[0];
    let mut nanos = Vec::with_capacity(RUNS);
    for _ in 0..RUNS {
        queue.post(&nops, &mut patience()).map_err(DeviceBenchError::from)?;
        let began = Instant::now();
        while executor.pass().busy {}
        nanos.push(began.elapsed().as_nanos() as u64);
    }
    print(&Row::timed("B3", "entry of a batch (NOP)", "executor", 0, Times::of(nanos, 16)))
}

/// B4: 64 puts until one counter has them all, and until their tickets are done, in turns: a machine that is slow for a while is slow for both. How long these took,
/// and the counter's value.
fn fans(
    rank: &Rank<Alone>,
    queues: &[Queue<Words>],
    tickets: &mut Vec<Ticket>,
) -> Result<([Times; 2], u64), DeviceBenchError> {
    let put = rank.put(8);
    let counted_put = rank.put_counted(8, 5)?;
    let mut counted = rank.value(5);
    let mut nanos = [(); 2].map(|()| Vec::with_capacity(FANS));
    for run in 0..warm_up(FANS) + FANS {
        let began = Instant::now();
        for queue in queues {
            queue.post(&counted_put, &mut patience())?;
        }
        counted += PEERS as u64;
        rank.wait(5, counted)?;
        let by_counter = began.elapsed();
        tickets.clear();
        let began = Instant::now();
        for queue in queues {
            tickets.push(queue.post(&put, &mut patience())?);
        }
        queues.iter().zip(&*tickets).try_for_each(|(queue, ticket)| queue.wait(*ticket, &mut patience()))?;
        let took = [by_counter, began.elapsed()];
        for (nanos, took) in nanos.iter_mut().zip(took).filter(|_| run >= warm_up(FANS)) {
            nanos.push(took.as_nanos() as u64);
        }
    }
    Ok((nanos.map(|nanos| Times::of(nanos, 1)), counted))
}

/// B4: that, and the waiter's looks once all has completed, which is what it does at least.
fn fan_out(print: Print<'_>, found: &mut Found) -> Result<(), BenchError> {
    let ranks = alone(Way::M1, 8)?;
    let rank = &ranks[0];
    let queues: Result<Vec<_>, _> = (0..PEERS).map(|_| rank.queue(16)).collect();
    let queues = queues?;
    let mut tickets = Vec::with_capacity(PEERS);
    let ([by_counter, by_tickets], counted) = fans(rank, &queues, &mut tickets)?;
    (found.fan_counter_us, found.fan_tickets_us) = (by_counter.p50_us, by_tickets.p50_us);
    print(&Row::timed("B4", "64 puts, one counter", Way::M1.name(), 8, by_counter))?;
    print(&Row::timed("B4", "64 puts, 64 tickets", Way::M1.name(), 8, by_tickets))?;
    let look = Times::take(RUNS, 1, |_| rank.wait(5, black_box(counted)))?;
    let looks = Times::take(RUNS, 1, |_| {
        for (queue, ticket) in queues.iter().zip(&tickets) {
            queue.wait(*black_box(ticket), &mut patience())?;
        }
        Ok::<_, DeviceBenchError>(())
    })?;
    (found.look_counter_ns, found.look_tickets_ns) = (look.p50_us * 1e3, looks.p50_us * 1e3);
    print(&Row::timed("B4", "a look: one counter", Way::M1.name(), 8, look))?;
    print(&Row::timed("B4", "a look: 64 tickets", Way::M1.name(), 8, looks))
}

/// B6: what a channel of the standard library takes for the same.
fn baseline(settings: &Settings, print: Print<'_>) -> Result<(), BenchError> {
    let (ask, asked) = mpsc::channel::<u64>();
    let (answer, answered) = mpsc::channel::<u64>();
    let times = std::thread::scope(|scope| {
        let echo = scope.spawn(move || {
            while let Ok(word) = asked.recv() {
                if answer.send(word).is_err() {
                    return;
                }
            }
        });
        let times = Times::take(runs(settings, 8), 1, |at| {
            let gone = |_| DeviceBenchError::Panicked;
            ask.send(at as u64).map_err(|_| DeviceBenchError::Panicked)?;
            answered.recv().map(drop).map_err(gone)
        });
        drop(ask);
        echo.join().map_err(|_| DeviceBenchError::Panicked)?;
        times
    })?;
    print(&Row::timed("B6", "mpsc, there and back", "channel", 8, times))
}
