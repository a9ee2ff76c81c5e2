//! Benchmarks tagged messages between two ranks of this host over the Rust API. It prints the table of p2p for memory
//! that no plugin uses.
//!
//! Called by `cmd::bench` in both ranks; rank 0 prints.

use std::io::Write as _;
use std::time::Instant;

use indicatif::ProgressBar;
use serde::Serialize;
use trunkline::World;
use trunkline::messages::{
    AnyMemory, Buffer, CopyMethod, HostMemory, IpcMemory, MessageError, Messages, MethodChoice, shared_device,
};

use super::plot::PendingPlot;
use super::progress;
use super::times::{OperationTimes, warm_up};
use crate::bench::BenchError;

/// The memory of the buffers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum BenchMemory {
    /// Private memory, which peers read by system calls or cannot read. Each connection learns the fastest copy method.
    Host,
    /// Memory of a device that is simulated by a memory file.
    Memfd,
    /// Memory of a kind that is opened by name, which only the receiver copies: memory of GPUs, by their driver, or
    /// private memory that other processes read by system calls or attach.
    Opened { name: &'static str, kind: &'static str },
}

impl BenchMemory {
    pub(crate) const NAMES: [&'static str; 6] = ["host", "cma", "memfd", "cuda", "hip", "ze"];

    pub(crate) fn from_name(name: &str) -> Option<Self> {
        match name {
            "host" => Some(Self::Host),
            "memfd" => Some(Self::Memfd),
            "cma" => Some(Self::Opened { name: "cma", kind: "private" }),
            other => {
                let found = AnyMemory::GPUS.into_iter().find(|name| *name == other);
                found.map(|name| Self::Opened { name, kind: name })
            }
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Memfd => "memfd",
            Self::Opened { name, .. } => name,
        }
    }
}

/// The parsed arguments.
pub(crate) struct MessageBenchSettings {
    /// The memory of the buffers.
    pub(crate) of: BenchMemory,
    /// Sizes of the rows.
    pub(crate) sizes: Vec<usize>,
    /// Whether bytes are checked.
    pub(crate) check: bool,
    /// Timed runs per size; 0 selects a number that fits the size.
    pub(crate) iterations: usize,
    /// Print JSON instead of the table.
    pub(crate) json: bool,
    /// The picture to draw.
    pub(crate) plot: Option<PendingPlot>,
}

/// One line of `--json`, with the keys of p2p.
#[derive(Debug, Serialize)]
struct MessageLine<'a> {
    collective: &'a str,
    fabric: &'a str,
    plugin: &'a str,
    device: &'a str,
    interface: &'a str,
    ranks: usize,
    bytes: usize,
    #[serde(rename = "type")]
    dtype: &'a str,
    redop: &'a str,
    in_place: bool,
    time_us: f64,
    algbw: f64,
    busbw: f64,
    latency_p50_us: f64,
    latency_p99_us: f64,
    latency_max_us: f64,
    one_way_gbs: f64,
    both_way_gbs: f64,
    rate_mps: f64,
    memcpy_gbs: f64,
    wrong: u64,
}

const COLUMNS: &str = "\
#               half round trip, one in flight     one way, 8 in flight    both ways    memcpy
#       size       p50       p99       max      bandwidth      rate     each way   one core  #wrong
#        (B)      (us)      (us)      (us)         (GB/s)    (Mmsg/s)     (GB/s)     (GB/s)";

/// Outstanding messages of a stream.
const WINDOW: usize = 8;
/// Bytes that all timed runs of a size move together, and the limits of the number of runs.
const WHOLE: usize = 256 << 20;
const FEW: usize = 32;
const MANY: usize = 100_000;
/// Round trips by which rank 0 chooses the number of runs.
const PROBES: usize = 20;
/// Short round trips that are timed together.
const TOGETHER: u32 = 16;
const SHORT: usize = 16 << 10;

/// Runs all sizes and returns the number of wrong bytes of both ranks, on both ranks.
pub(crate) fn run_messages(settings: &MessageBenchSettings, world: &World) -> Result<u64, BenchError> {
    let most = settings.sizes.iter().copied().max().unwrap_or(8);
    settings.plot.as_ref().map_or(Ok(()), PendingPlot::prepare_file)?;
    match settings.of {
        BenchMemory::Host => {
            let to_send = Buffer::private(most)?;
            let to_receive = Buffer::private(most)?;
            // If the kernel does not let ranks access each other's memory, each connection learns that only the stage
            // works.
            let memory = AnyMemory::open("private", 0).or_else(|_| HostMemory::new().map(AnyMemory::Host));
            let messages = Messages::start(world, memory.map_err(MessageError::from)?)?;
            MessageBench { settings, messages, to_send, to_receive }.run_rows()
        }
        BenchMemory::Memfd => {
            let room = 4 * (most as u64).next_multiple_of(1 << 16) + (1 << 20);
            let device = shared_device(world, room)?;
            let make = || device.alloc(most).map(|addr| Buffer::from_address(addr, most));
            let to_send = make().map_err(MessageError::from)?;
            let to_receive = make().map_err(MessageError::from)?;
            let messages = Messages::start(world, device)?;
            MessageBench { settings, messages, to_send, to_receive }.run_rows()
        }
        BenchMemory::Opened { kind, name } => {
            let memory = device_of(kind, world.rank())?;
            let make = || match memory.is_everything() {
                true => Buffer::private(most),
                false => Ok(Buffer::from_address(memory.alloc(most).map_err(MessageError::from)?, most)),
            };
            let to_send = make()?;
            let to_receive = make()?;
            let mut messages = Messages::start(world, memory)?;
            if name == "cma" {
                messages.choose_method(MethodChoice::Fixed(CopyMethod::Pull));
            }
            MessageBench { settings, messages, to_send, to_receive }.run_rows()
        }
    }
}

/// Opens the device that a rank uses: ranks alternate between the driver's devices.
fn device_of(name: &str, rank: usize) -> Result<AnyMemory, MessageError> {
    let own = AnyMemory::open(name, rank as u32);
    // A single GPU serves both ranks.
    Ok(own.or_else(|_| AnyMemory::open(name, 0))?)
}

struct MessageBench<'a, M> {
    settings: &'a MessageBenchSettings,
    messages: Messages<M>,
    to_send: Buffer,
    to_receive: Buffer,
}

/// One row.
struct MessageRow {
    bytes: usize,
    times: OperationTimes,
    one_way_gbs: f64,
    rate_mps: f64,
    both_way_gbs: f64,
    memcpy_gbs: f64,
    wrong: u64,
}

/// The pattern of a size.
fn pattern_bytes(bytes: usize, salt: usize) -> Vec<u8> {
    (0..bytes).map(|at| ((at ^ at >> 8 ^ at >> 16).wrapping_mul(31) + bytes + salt) as u8).collect()
}

impl<M: IpcMemory> MessageBench<'_, M> {
    fn run_rows(mut self) -> Result<u64, BenchError> {
        let first = self.messages.rank() == 0;
        let sizes = &self.settings.sizes;
        let bar = if first { progress::row_bar(sizes.len()) } else { ProgressBar::hidden() };
        let mut out = std::io::stdout().lock();
        if first && !self.settings.json {
            let of = self.settings.of.name();
            writeln!(
                out,
                "# p2p: 2 ranks of this host, {of} memory\n# interface: messages of the Rust API\n#\n{COLUMNS}"
            )?;
        }
        let mut wrong = 0;
        for bytes in sizes.iter().copied() {
            bar.set_message(format!("{bytes} B"));
            let row = self.measure_row(bytes)?;
            wrong += row.wrong;
            if first {
                let json = self.json_line(&row)?;
                let line = if self.settings.json { json.clone() } else { table_row(&row) };
                self.settings.plot.iter().for_each(|plot| plot.add_row(json.clone()));
                bar.suspend(|| writeln!(out, "{line}").and_then(|()| out.flush()))?;
                bar.inc(1);
            }
        }
        bar.finish_and_clear();
        self.messages.finish()?;
        self.settings.plot.as_ref().map_or(Ok(()), PendingPlot::draw_rows)?;
        Ok(wrong)
    }

    /// Chooses the number of runs of a size: the requested number, or the number that fits into a second. Rank 0
    /// measures that with a few round trips.
    fn choose_iterations(&mut self, from: &Buffer, into: &Buffer) -> Result<usize, BenchError> {
        if self.settings.iterations > 0 {
            return Ok(self.settings.iterations);
        }
        let most = (WHOLE / from.len().max(1)).clamp(FEW, MANY);
        let began = Instant::now();
        for _ in 0..PROBES {
            self.round_trip(from, into)?;
        }
        let fit = (PROBES as f64 / began.elapsed().as_secs_f64()) as u64;
        let fit = self.sum_ranks(if self.messages.rank() == 0 { fit } else { 0 })?;
        Ok(usize::try_from(fit).unwrap_or(most).clamp(FEW, most))
    }

    fn measure_row(&mut self, bytes: usize) -> Result<MessageRow, BenchError> {
        let rank = self.messages.rank();
        let from = self.to_send.part(0, bytes)?;
        let into = self.to_receive.part(0, bytes)?;
        self.write_buffer(&from, &pattern_bytes(bytes, rank))?;
        self.write_buffer(&into, &pattern_bytes(bytes, 7))?;
        self.messages.barrier()?;
        let count = self.choose_iterations(&from, &into)?;
        let times = self.round_trips(&from, &into, count)?;
        let mut wrong = self.count_differing(&into, &pattern_bytes(bytes, 1 - rank))?;
        self.write_buffer(&into, &pattern_bytes(bytes, 7))?;
        self.messages.barrier()?;
        let seconds = self.time_stream(&from, &into, count, [rank == 0, rank == 1])?;
        if rank == 1 {
            wrong += self.count_differing(&into, &pattern_bytes(bytes, 0))?;
        }
        let both = self.time_stream(&from, &into, count, [true, true])?;
        wrong += self.count_differing(&into, &pattern_bytes(bytes, 1 - rank))?;
        let wrong = self.sum_ranks(wrong)?;
        let moved = (count * bytes) as f64 / 1e9;
        let memcpy_gbs = if rank == 0 { self.measure_memcpy(bytes, count)? } else { 0.0 };
        self.messages.barrier()?;
        Ok(MessageRow {
            bytes,
            times,
            one_way_gbs: moved / seconds,
            rate_mps: count as f64 / seconds / 1e6,
            both_way_gbs: moved / both,
            memcpy_gbs,
            wrong,
        })
    }

    /// Times round trips, each started by rank 0, and returns halves of them.
    fn round_trips(
        &mut self,
        from: &Buffer,
        into: &Buffer,
        count: usize,
    ) -> Result<OperationTimes, BenchError> {
        let together = if from.len() <= SHORT { TOGETHER } else { 1 };
        let times = OperationTimes::time_runs(count / together as usize + 1, 2 * together, |_| {
            (0..together).try_for_each(|_| self.round_trip(from, into))
        })?;
        Ok(times)
    }

    fn round_trip(&mut self, from: &Buffer, into: &Buffer) -> Result<(), MessageError> {
        let messages = &mut self.messages;
        let first = messages.rank() == 0;
        let other = 1 - messages.rank();
        let received = messages.irecv(other, 1, into)?;
        if first {
            let sent = messages.isend(other, 1, from)?;
            messages.wait(received)?;
            messages.wait(sent)?;
        } else {
            messages.wait(received)?;
            let sent = messages.isend(other, 1, from)?;
            messages.wait(sent)?;
        }
        Ok(())
    }

    /// Returns the seconds until all `count` messages have arrived and both ranks know it.
    fn time_stream(
        &mut self,
        from: &Buffer,
        into: &Buffer,
        count: usize,
        [sends, receives]: [bool; 2],
    ) -> Result<f64, BenchError> {
        let other = 1 - self.messages.rank();
        let mut under_way = std::collections::VecDeque::with_capacity(2 * WINDOW);
        self.messages.barrier()?;
        let mut began = Instant::now();
        let warm_up = warm_up(count);
        for at in 0..warm_up + count {
            if at == warm_up {
                self.messages.barrier()?;
                began = Instant::now();
            }
            if receives {
                under_way.push_back(self.messages.irecv(other, 2, into)?);
            }
            if sends {
                under_way.push_back(self.messages.isend(other, 2, from)?);
            }
            while under_way.len() >= WINDOW * (usize::from(sends) + usize::from(receives))
                || at + 1 == warm_up && !under_way.is_empty()
            {
                let Some(oldest) = under_way.pop_front() else { break };
                self.messages.wait(oldest)?;
            }
        }
        for request in under_way {
            self.messages.wait(request)?;
        }
        self.messages.barrier()?;
        Ok(began.elapsed().as_secs_f64())
    }

    /// Measures the bandwidth of one core that copies between two buffers, in GB/s. The other rank waits meanwhile.
    fn measure_memcpy(&self, bytes: usize, count: usize) -> Result<f64, BenchError> {
        let from = self.to_send.part(0, bytes)?;
        let into = self.to_receive.part(0, bytes)?;
        let mut began = Instant::now();
        let warm_up = warm_up(count);
        for at in 0..warm_up + count {
            if at == warm_up {
                began = Instant::now();
            }
            self.messages.copy(&from, &into)?;
        }
        Ok((count * bytes) as f64 / 1e9 / began.elapsed().as_secs_f64())
    }

    fn write_buffer(&self, buffer: &Buffer, bytes: &[u8]) -> Result<(), BenchError> {
        Ok(self.messages.write(buffer, 0, bytes)?)
    }

    fn count_differing(&self, buffer: &Buffer, expected: &[u8]) -> Result<u64, BenchError> {
        if !self.settings.check {
            return Ok(0);
        }
        let mut bytes = vec![0; expected.len()];
        self.messages.read(buffer, 0, &mut bytes)?;
        Ok(bytes.iter().zip(expected).filter(|(left, right)| left != right).count() as u64)
    }

    /// Returns the sum of both ranks' values.
    fn sum_ranks(&mut self, mine: u64) -> Result<u64, BenchError> {
        let other = 1 - self.messages.rank();
        let mut theirs = [0; 8];
        self.messages.send(other, 3, &mine.to_le_bytes())?;
        self.messages.recv(other, 3, &mut theirs)?;
        Ok(mine + u64::from_le_bytes(theirs))
    }

    fn json_line(&self, row: &MessageRow) -> Result<String, BenchError> {
        let line = MessageLine {
            collective: "p2p",
            fabric: self.settings.of.name(),
            plugin: "Trunkline",
            device: self.settings.of.name(),
            interface: "messages",
            ranks: 2,
            bytes: row.bytes,
            dtype: "uint8",
            redop: "none",
            in_place: false,
            time_us: row.times.p50_us,
            algbw: row.one_way_gbs,
            busbw: row.both_way_gbs,
            latency_p50_us: row.times.p50_us,
            latency_p99_us: row.times.p99_us,
            latency_max_us: row.times.max_us,
            one_way_gbs: row.one_way_gbs,
            both_way_gbs: row.both_way_gbs,
            rate_mps: row.rate_mps,
            memcpy_gbs: row.memcpy_gbs,
            wrong: row.wrong,
        };
        Ok(serde_json::to_string(&line).map_err(std::io::Error::from)?)
    }
}

fn table_row(row: &MessageRow) -> String {
    format!(
        "{:>12}  {:>8.3}  {:>8.3}  {:>8.2}  {:>13.3}  {:>10.3}  {:>11.3}  {:>9.3}  {:>6}",
        row.bytes,
        row.times.p50_us,
        row.times.p99_us,
        row.times.max_us,
        row.one_way_gbs,
        row.rate_mps,
        row.both_way_gbs,
        row.memcpy_gbs,
        row.wrong,
    )
}
