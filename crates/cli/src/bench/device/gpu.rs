//! M2: a kernel of a GPU posts, and a thread of the host executes. Measured where there is a GPU of NVIDIA and NVRTC; elsewhere the row says why not.

use std::sync::Arc;
use std::time::{Duration, Instant};

use trunkline_device::{Copies, ErrorTable, Job, Lanes, Queues, Region};
use trunkline_device_queue::kernels;
use trunkline_engine::Mutant;
use trunkline_mem::Memory;
use trunkline_mem::gpu::{Arg, Device, Gpu, Pinned, Program, Vendor};

use super::ranks::Alone;
use super::{DeviceBenchError, Row, Settings};
use crate::bench::times::Times;
use crate::cmd::BenchError;

/// Slots, behind data that is put from the first half to the second.
const SLOTS: u64 = 4096;
/// Threads of a block of the kernel that counts how many entries a second.
const BLOCK: u32 = 32;
/// Entries of such a row.
const ENTRIES: u64 = 200_000;
/// Depth of a queue.
const DEPTH: u32 = 1024;
/// How long a kernel may take.
const LIMIT: Duration = Duration::from_secs(120);
/// Most bytes of a put.
const PUT_MAX: usize = 16 << 20;

type Print<'a> = &'a mut dyn FnMut(&Row) -> Result<(), BenchError>;

/// Where a rank's region is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Place {
    Device,
    Pinned,
}

impl Place {
    const fn name(self) -> &'static str {
        match self {
            Self::Device => "M2 device",
            Self::Pinned => "M2 pinned",
        }
    }
}

struct Machine {
    device: Device,
    program: Program,
}

fn ranks(error: &dyn std::fmt::Display) -> DeviceBenchError {
    DeviceBenchError::Ranks(error.to_string())
}

/// The first GPU, with our kernels; or why not.
fn open() -> Result<Machine, String> {
    let gpu = Gpu::open(Vendor::Nvidia).map_err(|error| error.to_string())?;
    let device = gpu.device(0).map_err(|error| error.to_string())?;
    let program = kernels::open(&device).map_err(|error| error.to_string())?;
    Ok(Machine { device, program })
}

/// B5: the rows of M2, or one that says why there are none.
pub(super) fn all(settings: &Settings, print: Print<'_>) -> Result<(), BenchError> {
    let machine = match open() {
        Ok(machine) => machine,
        Err(reason) => return print(&Row::skipped("B5", "put + wait, puts", "M2", reason)),
    };
    for place in [Place::Device, Place::Pinned] {
        for &bytes in settings.sizes.iter().filter(|&&bytes| bytes <= PUT_MAX) {
            print(&ping(&machine, settings, place, bytes)?)?;
        }
        for batch in [1, 16, 64] {
            print(&rate(&machine, place, batch)?)?;
        }
    }
    Ok(())
}

/// A rank whose peer is itself: what kernels are given, and all that this holds.
struct Rank {
    queues: Queues<Alone>,
    lanes: Lanes,
    region: Memory,
    pinned: Pinned,
    results: Memory,
    bases: Memory,
    job: Job,
}

impl Rank {
    fn new(machine: &Machine, place: Place, half: u64, words: usize) -> Result<Self, DeviceBenchError> {
        let device = &machine.device;
        let failed = |error| ranks(&error);
        let queues = Queues::for_device(Alone(0), 4, device.clone(), Mutant::NONE);
        let queues = queues.map_err(|error| ranks(&error))?;
        let bytes = (2 * half + SLOTS) as usize;
        let pinned = device.pinned(bytes).map_err(failed)?;
        let (region, copies, data): (_, Option<Arc<dyn Copies>>, _) = match place {
            Place::Pinned => (pinned.memory().clone(), None, pinned.at()),
            Place::Device => {
                let region = device.allocate(bytes).map_err(failed)?;
                let data = region.addr() as u64;
                (region, Some(Arc::new(device.mover().map_err(failed)?)), data)
            }
        };
        let words_of = copies.is_some().then(|| pinned.memory().clone());
        let table = ErrorTable::default();
        let of = Region { memory: region.clone(), heap: 0, table, copies, words: words_of };
        let key = queues.add_region(of).ok_or_else(|| ranks(&"no region"))?;
        let lanes = Lanes::new(device, &queues, (1, DEPTH, 0), 1).map_err(|error| ranks(&error))?;
        let results = device.allocate(words * 8).map_err(failed)?;
        let bases = device.allocate(SLOTS as usize).map_err(failed)?;
        let job = Job {
            slots: data + 2 * half,
            bases: bases.addr() as u64,
            data,
            results: results.addr() as u64,
            keys: [key.bits(); 2],
            slots_at: 2 * half,
            bytes: half,
            ..Job::default()
        };
        Ok(Self { queues, lanes, region, pinned, results, bases, job })
    }

    /// Runs a kernel of one block; how long it took, and the results.
    fn run(
        &self,
        machine: &Machine,
        name: &str,
        threads: u32,
        job: Job,
        words: usize,
    ) -> Result<(Duration, Vec<u64>), DeviceBenchError> {
        let mut args = vec![Arg::Words(job.words(&self.lanes)), Arg::Pinned(self.pinned.clone())];
        let own = [self.region.clone(), self.results.clone(), self.bases.clone()];
        args.extend(self.lanes.held().into_iter().chain(own).map(Arg::Memory));
        let began = Instant::now();
        let running = machine.program.launch(name, (1, threads), args).map_err(|error| ranks(&error))?;
        if !running.wait(LIMIT).map_err(|error| ranks(&error))? {
            self.abort();
            return Err(ranks(&format!("the kernel {name} has not ended in {LIMIT:?}")));
        }
        let took = began.elapsed();
        let mut bytes = vec![0; words * 8];
        machine.device.read(&self.results, 0, &mut bytes).map_err(|error| ranks(&error))?;
        let word = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_le_bytes);
        Ok((took, bytes.chunks_exact(8).map(word).collect()))
    }

    /// So that the kernel ends, which is waited for.
    fn abort(&self) {
        use trunkline_proto::wire::device_queue::{Aborted, Status};
        let numbers = self.lanes.numbers().iter().flatten();
        for queue in numbers.filter_map(|number| self.queues.find(*number)) {
            queue.abort(Aborted { status: Status::Aborted, reason: 0 });
        }
    }

    /// The first bytes of the second half, where puts go.
    fn there(&self, machine: &Machine, place: Place, bytes: &mut [u8]) -> Result<(), DeviceBenchError> {
        match place {
            Place::Device => {
                let read = machine.device.read(&self.region, self.job.bytes, bytes);
                read.map_err(|error| ranks(&error))
            }
            Place::Pinned => self.region.read(self.job.bytes, bytes).map_err(|error| ranks(&error)),
        }
    }
}

/// A put and its wait, by the device's clock.
fn ping(machine: &Machine, settings: &Settings, place: Place, bytes: usize) -> Result<Row, DeviceBenchError> {
    let count = if settings.iterations == 0 { 500 } else { settings.iterations };
    let bytes = bytes.next_multiple_of(8);
    let rank = Rank::new(machine, place, bytes as u64, count + 1)?;
    let data: Vec<u8> = (0..bytes).map(|at| (at as u8).wrapping_mul(7).wrapping_add(5)).collect();
    match place {
        Place::Device => machine.device.write(&rank.region, 0, &data).map_err(|error| ranks(&error))?,
        Place::Pinned => rank.region.write(0, &data).map_err(|error| ranks(&error))?,
    }
    let job = Job { rounds: count as u64, ..rank.job };
    let (_, results) = rank.run(machine, "ping", 1, job, count + 1)?;
    let (failed, nanos) = results.split_first().ok_or(DeviceBenchError::Panicked)?;
    let mut there = vec![0; bytes];
    rank.there(machine, place, &mut there)?;
    let wrong = there.iter().zip(&data).filter(|(there, data)| there != data).count() as u64;
    let row = Row::timed("B5", "put + wait", place.name(), bytes, Times::of(nanos.to_vec(), 1));
    Ok(Row { wrong: wrong + failed, ..row })
}

/// Millions of entries a second of a block's threads, each of which posts batches.
fn rate(machine: &Machine, place: Place, batch: usize) -> Result<Row, DeviceBenchError> {
    let rank = Rank::new(machine, place, u64::from(BLOCK) * 8, BLOCK as usize)?;
    let rounds = (ENTRIES / u64::from(BLOCK) / batch as u64).max(1);
    let job = Job { rounds, batch: batch as u64, ..rank.job };
    let (took, results) = rank.run(machine, "flood", BLOCK, job, BLOCK as usize)?;
    let wrong = results.iter().filter(|result| **result != 0).count() as u64;
    let all = rounds * u64::from(BLOCK) * batch as u64;
    let row =
        Row::rated("B5", "puts and signals", place.name(), (8, batch), all as f64 / took.as_secs_f64() / 1e6);
    Ok(Row { wrong, ..row })
}
