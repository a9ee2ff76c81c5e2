//! M2: a GPU kernel posts, and a host thread executes. Measured on hosts with an NVIDIA GPU and NVRTC; on other hosts
//! the row contains the reason why not.

use std::sync::Arc;
use std::time::{Duration, Instant};

use trunkline_device::{
    DeviceCopier, DeviceQueues, EntryRegion, ErrorTable, KernelJob, KernelLanes, LanePlan,
};
use trunkline_device_queue::kernels;
use trunkline_mem::MemoryRange;
use trunkline_mem::gpu::{GpuDevice, GpuVendor, KernelArg, KernelModule, PinnedMemory, VendorDriver};

use super::ranks::LoopbackNetwork;
use super::{DeviceBenchError, DeviceBenchRow, DeviceBenchSettings};
use crate::bench::BenchError;
use crate::bench::times::OperationTimes;

/// Bytes of the slots, which follow the data. Puts copy the first half of the data to the second.
const SLOTS: u64 = 4096;
/// Threads per block of the kernel that measures entries per second.
const BLOCK: u32 = 32;
/// Entries of the row of entries per second.
const ENTRIES: u64 = 200_000;
/// Depth of a queue, in entries.
const DEPTH: u32 = 1024;
/// Time limit of one kernel.
const LIMIT: Duration = Duration::from_secs(120);
/// Most bytes of a put.
const PUT_MAX: usize = 16 << 20;

type GpuRowSink<'a> = &'a mut dyn FnMut(&DeviceBenchRow) -> Result<(), BenchError>;

/// The memory that contains a rank's region.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum RegionPlacement {
    Device,
    Pinned,
}

impl RegionPlacement {
    const fn name(self) -> &'static str {
        match self {
            Self::Device => "M2 device",
            Self::Pinned => "M2 pinned",
        }
    }
}

struct KernelDevice {
    device: GpuDevice,
    program: KernelModule,
}

fn ranks_error(error: &dyn std::fmt::Display) -> DeviceBenchError {
    DeviceBenchError::Ranks(error.to_string())
}

/// Opens the first GPU with our kernels; else returns the reason.
fn open_device() -> Result<KernelDevice, String> {
    let gpu = VendorDriver::open(GpuVendor::Nvidia).map_err(|error| error.to_string())?;
    let device = gpu.open_device(0).map_err(|error| error.to_string())?;
    let program = kernels::load_kernels(&device).map_err(|error| error.to_string())?;
    Ok(KernelDevice { device, program })
}

/// B5: the rows of M2, or one row with the reason why they are missing.
pub(super) fn measure_kernels(
    settings: &DeviceBenchSettings,
    print: GpuRowSink<'_>,
) -> Result<(), BenchError> {
    let machine = match open_device() {
        Ok(machine) => machine,
        Err(reason) => return print(&DeviceBenchRow::skipped("B5", "put + wait, puts", "M2", reason)),
    };
    for place in [RegionPlacement::Device, RegionPlacement::Pinned] {
        for &bytes in settings.sizes.iter().filter(|&&bytes| bytes <= PUT_MAX) {
            print(&measure_put(&machine, settings, place, bytes)?)?;
        }
        for batch in [1, 16, 64] {
            print(&measure_rate(&machine, place, batch)?)?;
        }
    }
    Ok(())
}

/// A rank whose peer is itself: the kernel's arguments, and the memory and queues that they refer to.
struct LoopbackRank {
    queues: DeviceQueues<LoopbackNetwork>,
    lanes: KernelLanes,
    region: MemoryRange,
    pinned: PinnedMemory,
    results: MemoryRange,
    bases: MemoryRange,
    job: KernelJob,
}

impl LoopbackRank {
    fn new(
        machine: &KernelDevice,
        place: RegionPlacement,
        half: u64,
        words: usize,
    ) -> Result<Self, DeviceBenchError> {
        let device = &machine.device;
        let failed = |error| ranks_error(&error);
        let queues = DeviceQueues::for_device(LoopbackNetwork(0), 4, device.clone());
        let queues = queues.map_err(|error| ranks_error(&error))?;
        let bytes = (2 * half + SLOTS) as usize;
        let pinned = device.allocate_pinned(bytes).map_err(failed)?;
        let (region, copies, data): (_, Option<Arc<dyn DeviceCopier>>, _) = match place {
            RegionPlacement::Pinned => (pinned.memory().clone(), None, pinned.device_address()),
            RegionPlacement::Device => {
                let region = device.allocate(bytes).map_err(failed)?;
                let data = region.addr() as u64;
                (region, Some(Arc::new(device.copy_queue().map_err(failed)?)), data)
            }
        };
        let words_of = copies.is_some().then(|| pinned.memory().clone());
        let table = ErrorTable::default();
        let of = EntryRegion { memory: region.clone(), heap: 0, table, copies, words: words_of };
        let key = queues.add_region(of).ok_or_else(|| ranks_error(&"no region"))?;
        let plan = LanePlan { lanes: 1, depth: DEPTH, first: 0, blocks: 1 };
        let lanes = KernelLanes::new(device, &queues, plan).map_err(|error| ranks_error(&error))?;
        let results = device.allocate(words * 8).map_err(failed)?;
        let bases = device.allocate(SLOTS as usize).map_err(failed)?;
        let job = KernelJob {
            slots: data + 2 * half,
            bases: bases.addr() as u64,
            data,
            results: results.addr() as u64,
            keys: [key.to_bits(); 2],
            slots_at: 2 * half,
            bytes: half,
            ..KernelJob::default()
        };
        Ok(Self { queues, lanes, region, pinned, results, bases, job })
    }

    /// Runs a kernel of one block; returns its time and its results.
    fn run_kernel(
        &self,
        machine: &KernelDevice,
        name: &str,
        threads: u32,
        job: KernelJob,
        words: usize,
    ) -> Result<(Duration, Vec<u64>), DeviceBenchError> {
        let mut args =
            vec![KernelArg::Words(job.to_words(&self.lanes)), KernelArg::Pinned(self.pinned.clone())];
        let own = [self.region.clone(), self.results.clone(), self.bases.clone()];
        args.extend(self.lanes.held_memory().into_iter().chain(own).map(KernelArg::Memory));
        let began = Instant::now();
        let running =
            machine.program.launch_kernel(name, 1, threads, args).map_err(|error| ranks_error(&error))?;
        if !running.wait(LIMIT).map_err(|error| ranks_error(&error))? {
            self.abort_queues();
            return Err(ranks_error(&format!("the kernel {name} did not end within {LIMIT:?}")));
        }
        let took = began.elapsed();
        let mut bytes = vec![0; words * 8];
        machine.device.copy_from_device(&self.results, 0, &mut bytes).map_err(|error| ranks_error(&error))?;
        let word = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_le_bytes);
        Ok((took, bytes.chunks_exact(8).map(word).collect()))
    }

    /// Aborts the queues so that a running kernel ends; the caller waits for that.
    fn abort_queues(&self) {
        use trunkline_proto::wire::device_queue::{AbortWord, EntryStatus};
        let numbers = self.lanes.queue_numbers().iter().flatten();
        for queue in numbers.filter_map(|number| self.queues.find_queue(*number)) {
            queue.abort(AbortWord { status: EntryStatus::Aborted, reason: 0 });
        }
    }

    /// Reads the first bytes of the second half, the target of puts.
    fn read_target(
        &self,
        machine: &KernelDevice,
        place: RegionPlacement,
        bytes: &mut [u8],
    ) -> Result<(), DeviceBenchError> {
        match place {
            RegionPlacement::Device => {
                let read = machine.device.copy_from_device(&self.region, self.job.bytes, bytes);
                read.map_err(|error| ranks_error(&error))
            }
            RegionPlacement::Pinned => {
                self.region.read(self.job.bytes, bytes).map_err(|error| ranks_error(&error))
            }
        }
    }
}

/// Measures one put and its wait, by the device's clock.
fn measure_put(
    machine: &KernelDevice,
    settings: &DeviceBenchSettings,
    place: RegionPlacement,
    bytes: usize,
) -> Result<DeviceBenchRow, DeviceBenchError> {
    let count = if settings.iterations == 0 { 500 } else { settings.iterations };
    let bytes = bytes.next_multiple_of(8);
    let rank = LoopbackRank::new(machine, place, bytes as u64, count + 1)?;
    let data: Vec<u8> = (0..bytes).map(|at| (at as u8).wrapping_mul(7).wrapping_add(5)).collect();
    match place {
        RegionPlacement::Device => {
            machine.device.copy_to_device(&rank.region, 0, &data).map_err(|error| ranks_error(&error))?
        }
        RegionPlacement::Pinned => rank.region.write(0, &data).map_err(|error| ranks_error(&error))?,
    }
    let job = KernelJob { rounds: count as u64, ..rank.job };
    let (_, results) = rank.run_kernel(machine, "ping", 1, job, count + 1)?;
    let (failed, nanos) = results.split_first().ok_or(DeviceBenchError::Panicked)?;
    let mut there = vec![0; bytes];
    rank.read_target(machine, place, &mut there)?;
    let wrong = there.iter().zip(&data).filter(|(there, data)| there != data).count() as u64;
    let row = DeviceBenchRow::from_times(
        "B5",
        "put + wait",
        place.name(),
        bytes,
        OperationTimes::from_nanos(nanos.to_vec(), 1),
    );
    Ok(DeviceBenchRow { wrong: wrong + failed, ..row })
}

/// Measures millions of entries per second of a block's threads, each of which posts batches.
fn measure_rate(
    machine: &KernelDevice,
    place: RegionPlacement,
    batch: usize,
) -> Result<DeviceBenchRow, DeviceBenchError> {
    let rank = LoopbackRank::new(machine, place, u64::from(BLOCK) * 8, BLOCK as usize)?;
    let rounds = (ENTRIES / u64::from(BLOCK) / batch as u64).max(1);
    let job = KernelJob { rounds, batch: batch as u64, ..rank.job };
    let (took, results) = rank.run_kernel(machine, "flood", BLOCK, job, BLOCK as usize)?;
    let wrong = results.iter().filter(|result| **result != 0).count() as u64;
    let all = rounds * u64::from(BLOCK) * batch as u64;
    let row = DeviceBenchRow::from_rate(
        "B5",
        "puts and signals",
        place.name(),
        8,
        batch,
        all as f64 / took.as_secs_f64() / 1e6,
    );
    Ok(DeviceBenchRow { wrong, ..row })
}
