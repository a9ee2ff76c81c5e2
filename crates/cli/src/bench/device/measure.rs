//! The measurements B1 to B4 and B6 of the specification of device queues, and the part of B5 that runs on host
//! threads.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Instant;

use trunkline_device::QueueError;
use trunkline_device::{MemberNetwork, QueueExecutor, QueueWords};
use trunkline_device_queue::channel::TicketRecord;
use trunkline_device_queue::{BellPage, DeviceQueue, EntryTicket, QueueLane, allocate_words};
use trunkline_proto::wire::device_queue::{DoorbellLayout, EntryWork, QueueEntry};

use super::gpu;
use super::pattern::{count_wrong, fill_source};
use super::ranks::{
    BenchRank, ExecutionPath, LoopbackNetwork, endless_patience, start_loopback_ranks, start_soft_ranks,
};
use super::{DeviceBenchError, DeviceBenchRow, DeviceBenchSettings};
use crate::bench::BenchError;
use crate::bench::times::{OperationTimes, warm_up};

/// Runs of a row of small puts.
const RUNS: usize = 2000;
/// Operations timed together if one of them is short.
const PARTS: u32 = 16;
/// Largest size in bytes whose operations count as short.
const SHORT: usize = 4096;
/// Alternations between the compared operations, if they are short.
const TURNS: usize = 8;
/// Size in bytes above which a row has few runs.
const LONG: usize = 64 << 20;
/// Peers of the fan-out.
const PEERS: usize = 64;
/// Rounds of the fan-out.
const FANS: usize = 200;
/// Idle queues of B3.
const IDLE: u32 = 1024;

/// Execution paths of B1 and B2.
pub(super) const WAYS: usize = ExecutionPath::ALL.len();

/// The figures that the goals compare.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct GoalFigures {
    pub(super) m1_put_us: f64,
    pub(super) m0_put_us: f64,
    pub(super) m1_rate: f64,
    pub(super) idle_pass_us: f64,
    pub(super) idle_flags_us: f64,
    pub(super) look_counter_ns: f64,
    pub(super) look_tickets_ns: f64,
    /// B4: 64 puts, until one counter contains all of them, and until all tickets are done.
    pub(super) fan_counter_us: f64,
    pub(super) fan_tickets_us: f64,
    pub(super) m0_counter_us: f64,
    pub(super) m0_companion_us: f64,
    pub(super) m1_counter_us: f64,
    pub(super) m1_companion_us: f64,
}

/// A word on its own cache line.
#[repr(align(128))]
struct CacheLine(AtomicU64);

/// Measures half the round trip of a word to another processor, in microseconds.
pub(super) fn line_transfer_us() -> Result<f64, DeviceBenchError> {
    const ROUNDS: u64 = 20_000;
    let line = CacheLine(AtomicU64::new(0));
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

type RowSink<'a> = &'a mut dyn FnMut(&DeviceBenchRow) -> Result<(), BenchError>;

/// Measures everything and prints one row at a time.
pub(super) fn measure_all(
    settings: &DeviceBenchSettings,
    print: RowSink<'_>,
) -> Result<GoalFigures, BenchError> {
    let mut found = GoalFigures::default();
    let mut modes = Vec::new();
    for way in ExecutionPath::ALL {
        match way {
            ExecutionPath::M0 | ExecutionPath::M1 => {
                let mut keep = |row: &DeviceBenchRow| {
                    modes.extend(row.of_mode());
                    print(row)
                };
                measure_path(
                    &start_loopback_ranks(way, settings.largest_size())?,
                    way,
                    settings,
                    &mut keep,
                    &mut found,
                )?;
            }
            ExecutionPath::Shm | ExecutionPath::Tcp => measure_path(
                &start_soft_ranks(way, settings.largest_size())?,
                way,
                settings,
                print,
                &mut found,
            )?,
        }
    }
    // B5: the same operations again, in adjacent rows.
    modes.iter().try_for_each(&mut *print)?;
    gpu::measure_kernels(settings, print)?;
    measure_idle(print, &mut found)?;
    fan_out(print, &mut found)?;
    measure_baseline(settings, print)?;
    Ok(found)
}

fn run_count(settings: &DeviceBenchSettings, bytes: usize) -> usize {
    match settings.iterations {
        0 => ((64 << 20) / bytes.max(1)).clamp(runs_least(bytes), RUNS),
        iterations => iterations,
    }
}

/// The fewest runs of a row; large sizes take long, so they have fewer.
const fn runs_least(bytes: usize) -> usize {
    if bytes > LONG { 3 } else { 20 }
}

/// Times an operation. Short ones are timed in batches, because reading the clock takes about the same time.
fn time_operation(
    bytes: usize,
    count: usize,
    mut operation: impl FnMut() -> Result<(), DeviceBenchError>,
) -> Result<OperationTimes, DeviceBenchError> {
    let parts = if bytes <= SHORT { PARTS } else { 1 };
    let times = (count / parts as usize).max(runs_least(bytes));
    OperationTimes::time_runs(times, parts, |_| (0..parts).try_for_each(|_| operation()))
}

/// Keeps a waiter polling at a rank while another rank puts to it. Its executor then stays awake, as it does for a
/// kernel that waits for data.
fn with_waiter<N: MemberNetwork + 'static, T>(
    rank: &BenchRank<N>,
    f: impl FnOnce() -> Result<T, DeviceBenchError>,
) -> Result<T, DeviceBenchError> {
    let over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                rank.poll_once();
            }
        });
        let result = f();
        over.store(true, Ordering::Relaxed);
        result
    })
}

/// Measures B1 and B2 on one execution path.
fn measure_path<N: MemberNetwork + 'static>(
    ranks: &[BenchRank<N>; 2],
    way: ExecutionPath,
    settings: &DeviceBenchSettings,
    print: RowSink<'_>,
    found: &mut GoalFigures,
) -> Result<(), BenchError> {
    let [first, second] = ranks;
    let queue = first.create_queue(1024)?;
    let companion = find_companion(first, &queue)?;
    for &bytes in &settings.sizes {
        let count = run_count(settings, bytes);
        let [put, flush, counter, waits] =
            with_remote_waiter(second, way, || measure_puts(ranks, &queue, &companion, way, bytes, count))?;
        let p50 = |row: &DeviceBenchRow| row.p50_us.unwrap_or_default();
        let times = [p50(&put), p50(&counter), p50(&waits)];
        match way {
            ExecutionPath::M0 if bytes == 8 => {
                [found.m0_put_us, found.m0_counter_us, found.m0_companion_us] = times;
            }
            ExecutionPath::M1 if bytes == 8 => {
                [found.m1_put_us, found.m1_counter_us, found.m1_companion_us] = times;
            }
            _ => {}
        }
        [put, flush, counter, waits, ping_pong(ranks, way, bytes, count)?]
            .iter()
            .try_for_each(&mut *print)?;
    }
    let mut sent = first.counter_value(9);
    let times = time_operation(8, run_count(settings, 8), || {
        sent += 1;
        first.queues_wait(&queue, &[first.count_entry(9)])?;
        debug_assert_eq!(first.counter_value(9), sent);
        Ok(())
    })?;
    print(&DeviceBenchRow::from_times("B1", "signal (own) + wait", way.name(), 0, times))?;
    let entries = if matches!(way, ExecutionPath::M0 | ExecutionPath::M1) { 200_000 } else { 5_000 };
    for batch in [1, 16, 64] {
        let rate = with_remote_waiter(second, way, || measure_rate(first, &queue, batch, entries, 1))?;
        if (way, batch) == (ExecutionPath::M1, 16) {
            found.m1_rate = rate;
        }
        print(&DeviceBenchRow::from_rate("B1", "puts", way.name(), 8, batch, rate))?;
    }
    let mut producers = 2;
    while producers <= settings.producers {
        let rate = with_remote_waiter(second, way, || measure_rate(first, &queue, 16, entries, producers))?;
        print(&DeviceBenchRow::from_rate(
            "B2",
            &format!("puts, {producers} producers"),
            way.name(),
            8,
            16,
            rate,
        ))?;
        producers *= 2;
    }
    Ok(())
}

/// Adds a waiter at the remote rank. Only a network needs the remote rank's executor.
fn with_remote_waiter<N: MemberNetwork + 'static, T>(
    rank: &BenchRank<N>,
    way: ExecutionPath,
    f: impl FnOnce() -> Result<T, DeviceBenchError>,
) -> Result<T, DeviceBenchError> {
    match way {
        ExecutionPath::M0 | ExecutionPath::M1 => f(),
        ExecutionPath::Shm | ExecutionPath::Tcp => with_waiter(rank, f),
    }
}

fn find_companion<N: MemberNetwork + 'static>(
    rank: &BenchRank<N>,
    queue: &DeviceQueue<QueueWords>,
) -> Result<DeviceQueue<QueueWords>, DeviceBenchError> {
    let number = queue.companion_within(&mut endless_patience())?;
    rank.queues.find_queue(number).ok_or_else(|| DeviceBenchError::Ranks("no companion".to_owned()))
}

impl<N: MemberNetwork + 'static> BenchRank<N> {
    fn queues_wait(
        &self,
        queue: &DeviceQueue<QueueWords>,
        entries: &[QueueEntry],
    ) -> Result<EntryTicket, DeviceBenchError> {
        let ticket = queue.post(entries, &mut endless_patience())?;
        queue.wait(ticket, &mut endless_patience())?;
        Ok(ticket)
    }
}

/// A variant of a put: its name, the seed of its pattern, and the operation.
struct PutVariant<'a> {
    what: &'static str,
    seed: u64,
    round: &'a mut dyn FnMut() -> Result<(), DeviceBenchError>,
}

/// Measures puts of the first rank to the second, one at a time, each posted and waited for. The variants alternate,
/// several runs each, so that a slow phase of the machine affects all of them. The received bytes are checked after
/// each variant's runs.
fn in_turns<N: MemberNetwork + 'static, const KINDS: usize>(
    ranks: &[BenchRank<N>; 2],
    way: ExecutionPath,
    bytes: usize,
    count: usize,
    mut kinds: [PutVariant<'_>; KINDS],
) -> Result<[DeviceBenchRow; KINDS], DeviceBenchError> {
    let parts = if bytes <= SHORT { PARTS } else { 1 };
    let turns = if bytes <= SHORT { TURNS } else { 1 };
    let runs = (count / parts as usize).max(runs_least(bytes)).div_ceil(turns);
    let mut found = [(); KINDS].map(|()| (Vec::with_capacity(turns * runs), 0));
    for _ in 0..turns {
        for (kind, (nanos, wrong)) in kinds.iter_mut().zip(&mut found) {
            fill_source([&ranks[0].memory, &ranks[1].memory], bytes, kind.seed);
            for run in 0..warm_up(runs) + runs {
                let began = Instant::now();
                (0..parts).try_for_each(|_| (kind.round)())?;
                let took = began.elapsed();
                if run >= warm_up(runs) {
                    nanos.push(took.as_nanos() as u64);
                }
            }
            *wrong += count_wrong(&ranks[1].memory, bytes, kind.seed);
        }
    }
    // `found` has one element per variant.
    let mut found = found.into_iter();
    Ok(kinds.map(|kind| {
        let (nanos, wrong) = found.next().unwrap_or_default();
        DeviceBenchRow {
            wrong,
            ..DeviceBenchRow::from_times(
                "B1",
                kind.what,
                way.name(),
                bytes,
                OperationTimes::from_nanos(nanos, parts),
            )
        }
    }))
}

/// Measures a put until each of four events. Its ticket is done; a channel of one lane is flushed; a counter that its
/// own entry increments has the new value; a counter that a companion increments has it.
fn measure_puts<N: MemberNetwork + 'static>(
    ranks: &[BenchRank<N>; 2],
    queue: &DeviceQueue<QueueWords>,
    companion: &DeviceQueue<QueueWords>,
    way: ExecutionPath,
    bytes: usize,
    count: usize,
) -> Result<[DeviceBenchRow; 4], DeviceBenchError> {
    let rank = &ranks[0];
    let entries = rank.put_entries(bytes);
    let mut wait = || rank.queues_wait(queue, &entries).map(drop);
    let counted_entries = rank.put_counted(bytes, 0)?;
    let mut counted = rank.counter_value(0);
    let mut count_it = || {
        queue.post(&counted_entries, &mut endless_patience())?;
        counted += 1;
        rank.wait_counter(0, counted)
    };
    let lane = QueueLane::new(queue.clone(), rank.queues.queue_finder());
    let place = rank.put_range(bytes);
    let counter = rank.counter_addition(1);
    let mut seen = rank.counter_value(1);
    let mut accompany = || {
        lane.write_and_count(companion, &place, &counter, &mut endless_patience())?;
        seen += 1;
        rank.wait_counter(1, seen)
    };
    let mut channel = None;
    let mut flush = || {
        let ticket = queue.post(&entries, &mut endless_patience())?;
        let channel = match &mut channel {
            Some(channel) => channel,
            none => none.insert(one_lane(ticket.index)?),
        };
        let _ = channel.record_ticket(0, ticket);
        Ok(channel.flush(std::slice::from_ref(queue), &mut endless_patience())?)
    };
    let kinds = [
        PutVariant { what: "put + wait", seed: 1, round: &mut wait },
        PutVariant { what: "put + flush", seed: 5, round: &mut flush },
        PutVariant { what: "put + fused counter", seed: 2, round: &mut count_it },
        PutVariant { what: "put + companion's counter", seed: 3, round: &mut accompany },
    ];
    in_turns(ranks, way, bytes, count, kinds)
}

/// The ticket record of a channel of one lane whose first entry is `first`.
fn one_lane(first: u64) -> Result<TicketRecord<QueueWords>, DeviceBenchError> {
    let words = QueueWords::try_heap(64).map_err(|error| DeviceBenchError::Ranks(error.to_string()))?;
    TicketRecord::create(words, 0, &[first]).ok_or(DeviceBenchError::Panicked)
}

/// Measures half of a put with a signal and one in return.
fn ping_pong<N: MemberNetwork + 'static>(
    ranks: &[BenchRank<N>; 2],
    way: ExecutionPath,
    bytes: usize,
    count: usize,
) -> Result<DeviceBenchRow, DeviceBenchError> {
    fill_source([&ranks[0].memory, &ranks[1].memory], bytes, 4);
    let all = count + warm_up(count);
    let [first, second] = ranks;
    let there = first.create_queue(128)?;
    let back = second.create_queue(128)?;
    let mut sent = second.counter_value(2);
    let mut heard = first.counter_value(2);
    let replied = heard;
    let put = |rank: &BenchRank<N>| [rank.put_entries(bytes), vec![rank.signal_entry(2)]].concat();
    let ask = put(first);
    let answer = put(second);
    let times = std::thread::scope(|scope| {
        let echo = scope.spawn(move || {
            let mut heard = sent;
            for _ in 0..all {
                heard += 1;
                second.wait_counter(2, heard)?;
                back.post(&answer, &mut endless_patience())?;
            }
            Ok::<_, DeviceBenchError>(())
        });
        let times = OperationTimes::time_runs(count, 2, |_| {
            sent += 1;
            heard += 1;
            there.post(&ask, &mut endless_patience())?;
            first.wait_counter(2, heard)
        });
        echo.join().map_err(|_| DeviceBenchError::Panicked)??;
        times
    })?;
    let came = first.counter_value(2) - replied;
    let row = DeviceBenchRow::from_times("B1", "put + signal, one way", way.name(), bytes, times);
    Ok(DeviceBenchRow { wrong: count_wrong(&ranks[1].memory, bytes, 4) + came.abs_diff(all as u64), ..row })
}

/// Measures millions of entries per second.
fn measure_rate<N: MemberNetwork + 'static>(
    rank: &BenchRank<N>,
    queue: &DeviceQueue<QueueWords>,
    batch: usize,
    entries: usize,
    producers: usize,
) -> Result<f64, DeviceBenchError> {
    let each = (entries / producers / batch).max(1);
    let entries = rank.put_entries(8).repeat(batch);
    let began = Instant::now();
    std::thread::scope(|scope| {
        let produce = || {
            let mut last = None;
            for _ in 0..each {
                last = Some(queue.post(&entries, &mut endless_patience())?);
            }
            last.map_or(Ok(()), |ticket| Ok(queue.wait(ticket, &mut endless_patience())?))
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

/// B3: a byte per queue, as a GPU sets them, instead of a bit.
fn idle_flags() -> Result<OperationTimes, QueueError> {
    let bytes = DoorbellLayout::new(IDLE)?.by_bytes().page_bytes();
    let page = BellPage::create_for_devices(allocate_words(bytes), IDLE)?;
    OperationTimes::time_runs(RUNS, 100, |_| {
        for _ in 0..100 {
            for group in 0..page.group_count() {
                black_box(page.take_group(group));
            }
        }
        Ok(())
    })
}

/// B3: no producer and no waiter, only the executor.
fn measure_idle(print: RowSink<'_>, found: &mut GoalFigures) -> Result<(), BenchError> {
    let mut executor = QueueExecutor::new(LoopbackNetwork(0), IDLE).map_err(DeviceBenchError::from)?;
    let queues: Result<Vec<_>, _> = (0..IDLE).map(|_| executor.make_queue(64, 0)).collect();
    let queues = queues.map_err(DeviceBenchError::from)?;
    // The executor checks new queues once; finish that before the measurement.
    while executor.run_pass().busy {}
    let times = OperationTimes::time_runs(RUNS, 100, |_| {
        for _ in 0..100 {
            black_box(executor.run_pass());
        }
        Ok::<_, DeviceBenchError>(())
    })?;
    found.idle_pass_us = times.p50_us;
    print(&DeviceBenchRow::from_times("B3", "pass, 1,024 idle queues", "executor", 0, times))?;
    let times = idle_flags().map_err(DeviceBenchError::from)?;
    found.idle_flags_us = times.p50_us;
    print(&DeviceBenchRow::from_times("B3", "poll, 1,024 idle GPU flags", "page", 0, times))?;
    let nops = [QueueEntry::new(EntryWork::Nop); 16];
    let queue = &queues[0];
    let mut nanos = Vec::with_capacity(RUNS);
    for _ in 0..RUNS {
        queue.post(&nops, &mut endless_patience()).map_err(DeviceBenchError::from)?;
        let began = Instant::now();
        while executor.run_pass().busy {}
        nanos.push(began.elapsed().as_nanos() as u64);
    }
    print(&DeviceBenchRow::from_times(
        "B3",
        "entry of a batch (NOP)",
        "executor",
        0,
        OperationTimes::from_nanos(nanos, 16),
    ))
}

/// B4: times 64 puts until one counter contains all of them, and until all tickets are done. The two alternate, so that
/// a slow phase of the machine affects both. Returns both times and the counter's value.
fn time_fan_outs(
    rank: &BenchRank<LoopbackNetwork>,
    queues: &[DeviceQueue<QueueWords>],
    tickets: &mut Vec<EntryTicket>,
) -> Result<([OperationTimes; 2], u64), DeviceBenchError> {
    let put = rank.put_entries(8);
    let counted_put = rank.put_counted(8, 5)?;
    let mut counted = rank.counter_value(5);
    let mut nanos = [(); 2].map(|()| Vec::with_capacity(FANS));
    for run in 0..warm_up(FANS) + FANS {
        let began = Instant::now();
        for queue in queues {
            queue.post(&counted_put, &mut endless_patience())?;
        }
        counted += PEERS as u64;
        rank.wait_counter(5, counted)?;
        let by_counter = began.elapsed();
        tickets.clear();
        let began = Instant::now();
        for queue in queues {
            tickets.push(queue.post(&put, &mut endless_patience())?);
        }
        queues
            .iter()
            .zip(&*tickets)
            .try_for_each(|(queue, ticket)| queue.wait(*ticket, &mut endless_patience()))?;
        let took = [by_counter, began.elapsed()];
        for (nanos, took) in nanos.iter_mut().zip(took).filter(|_| run >= warm_up(FANS)) {
            nanos.push(took.as_nanos() as u64);
        }
    }
    Ok((nanos.map(|nanos| OperationTimes::from_nanos(nanos, 1)), counted))
}

/// B4: the fan-outs, then the time of one check by the waiter after everything has completed, which is the least that a
/// waiter needs.
fn fan_out(print: RowSink<'_>, found: &mut GoalFigures) -> Result<(), BenchError> {
    let ranks = start_loopback_ranks(ExecutionPath::M1, 8)?;
    let rank = &ranks[0];
    let queues: Result<Vec<_>, _> = (0..PEERS).map(|_| rank.create_queue(16)).collect();
    let queues = queues?;
    let mut tickets = Vec::with_capacity(PEERS);
    let ([by_counter, by_tickets], counted) = time_fan_outs(rank, &queues, &mut tickets)?;
    (found.fan_counter_us, found.fan_tickets_us) = (by_counter.p50_us, by_tickets.p50_us);
    print(&DeviceBenchRow::from_times(
        "B4",
        "64 puts, one counter",
        ExecutionPath::M1.name(),
        8,
        by_counter,
    ))?;
    print(&DeviceBenchRow::from_times("B4", "64 puts, 64 tickets", ExecutionPath::M1.name(), 8, by_tickets))?;
    let look = OperationTimes::time_runs(RUNS, 1, |_| rank.wait_counter(5, black_box(counted)))?;
    let looks = OperationTimes::time_runs(RUNS, 1, |_| {
        for (queue, ticket) in queues.iter().zip(&tickets) {
            queue.wait(*black_box(ticket), &mut endless_patience())?;
        }
        Ok::<_, DeviceBenchError>(())
    })?;
    (found.look_counter_ns, found.look_tickets_ns) = (look.p50_us * 1e3, looks.p50_us * 1e3);
    print(&DeviceBenchRow::from_times("B4", "check of one counter", ExecutionPath::M1.name(), 8, look))?;
    print(&DeviceBenchRow::from_times("B4", "check of 64 tickets", ExecutionPath::M1.name(), 8, looks))
}

/// B6: the round trip over a channel of the standard library, as a baseline.
fn measure_baseline(settings: &DeviceBenchSettings, print: RowSink<'_>) -> Result<(), BenchError> {
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
        let times = OperationTimes::time_runs(run_count(settings, 8), 1, |at| {
            let gone = |_| DeviceBenchError::Panicked;
            ask.send(at as u64).map_err(|_| DeviceBenchError::Panicked)?;
            answered.recv().map(drop).map_err(gone)
        });
        drop(ask);
        echo.join().map_err(|_| DeviceBenchError::Panicked)?;
        times
    })?;
    print(&DeviceBenchRow::from_times("B6", "mpsc, there and back", "channel", 8, times))
}
