//! A device, its kernels, and ranks of this process whose kernels run on it. Used with the stand-in driver, and on a GPU.

use std::sync::Arc;
use std::time::{Duration, Instant};

use trunkline_device::{
    BeginOutcome, DeviceCopier, DeviceQueues, EntryFailure, EntryKey, EntryRegion, ErrorTable, KernelJob,
    KernelLanes, LanePlan, MemberNetwork, NetworkCompletion, PeerRegion,
};
use trunkline_engine::rma::HeapAddress as Far_;
use trunkline_engine::rma::{HeapRange, PutSource};
use trunkline_mem::MemoryRange;
use trunkline_mem::gpu::{DeviceCopyQueue, GpuDevice, KernelArg, KernelModule, PinnedMemory, RunningKernel};
use trunkline_proto::rma::atomic::AtomicAction;
use trunkline_proto::wire::device_queue::EntryStatus;

/// Bytes of a rank's region, and the offset of its slots.
pub(crate) const BYTES: usize = 192 << 10;
pub(crate) const SLOTS: u64 = 128 << 10;
pub(crate) const SLOTS_COUNT: usize = 64;
/// Most threads of a kernel.
pub(crate) const THREADS: usize = 4096;

/// The environment of a test.
pub(crate) struct Machine {
    pub(crate) device: GpuDevice,
    pub(crate) program: KernelModule,
    /// Limit of a wait that is expected to succeed, in ticks of the device's clock.
    pub(crate) ticks: u64,
    /// Tested numbers of threads per block.
    pub(crate) groups: &'static [u32],
    /// Whether long tests run in full.
    pub(crate) is_full: bool,
    /// Whether the device is a GPU and not the stand-in.
    pub(crate) is_real: bool,
}

/// No network: all memory is in this process, or of its device.
#[derive(Debug)]
pub(crate) struct Alone(pub(crate) u32);

impl MemberNetwork for Alone {
    fn own_rank(&self) -> u32 {
        self.0
    }

    fn can_execute_locally(&self) -> bool {
        true
    }

    fn put(&mut self, _: u64, _: Far_, _: PutSource<'_>) -> BeginOutcome {
        BeginOutcome::Failed(EntryFailure::from_status(EntryStatus::Network))
    }

    fn get(&mut self, _: u64, _: Far_, _: HeapRange) -> BeginOutcome {
        BeginOutcome::Failed(EntryFailure::from_status(EntryStatus::Network))
    }

    fn post_atomic(&mut self, _: u64, _: Far_, _: AtomicAction, _: bool) -> BeginOutcome {
        BeginOutcome::Failed(EntryFailure::from_status(EntryStatus::Network))
    }

    fn make_progress(&mut self, _: &mut Vec<NetworkCompletion>) -> bool {
        false
    }

    fn send_error_word(&mut self, _: Far_, _: u64) -> bool {
        false
    }

    fn is_gone(&mut self, _: u32) -> bool {
        false
    }
}

/// The location of a region.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Place {
    /// In the device's memory: the device copies, and words are changed through host memory.
    Device,
    /// In pinned memory of the host.
    Pinned,
}

/// The properties of a rank.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) place: Place,
    pub(crate) lanes: u32,
    pub(crate) depth: u32,
    pub(crate) first: u64,
    pub(crate) blocks: u32,
}

pub(crate) const PLAN: Plan = Plan { place: Place::Device, lanes: 1, depth: 64, first: 0, blocks: 1 };

/// A rank: an executor, a region, and lanes.
pub(crate) struct Rank<N: MemberNetwork + 'static = Alone> {
    pub(crate) queues: DeviceQueues<N>,
    pub(crate) lanes: KernelLanes,
    pub(crate) key: EntryKey,
    pub(crate) plan: Plan,
    region: MemoryRange,
    /// The region in pinned memory, or the host memory in which the words of the device's region are changed.
    pinned: PinnedMemory,
    mover: Option<DeviceCopyQueue>,
    bases: MemoryRange,
    pub(crate) results: MemoryRange,
}

/// The copier of a rank's stream, for another executor.
fn shared(mover: Option<&DeviceCopyQueue>) -> Option<Arc<dyn DeviceCopier>> {
    mover.map(|mover| Arc::new(mover.clone_for_user()) as _)
}

impl Rank {
    pub(crate) fn new(machine: &Machine, me: u32, plan: Plan) -> Self {
        let pinned = machine.device.allocate_pinned(BYTES).unwrap();
        Self::over(machine, Alone(me), plan, pinned)
    }
}

impl<N: MemberNetwork + 'static> Rank<N> {
    /// Creates a rank over a network, which uses this host memory as its heap 0.
    pub(crate) fn over(machine: &Machine, network: N, plan: Plan, pinned: PinnedMemory) -> Self {
        let device = &machine.device;
        let queues = DeviceQueues::for_device(network, 32, device.clone()).unwrap();
        let (region, mover) = match plan.place {
            Place::Pinned => (pinned.memory().clone(), None),
            Place::Device => (device.allocate(BYTES).unwrap(), Some(device.copy_queue().unwrap())),
        };
        let copies = shared(mover.as_ref());
        let words = mover.is_some().then(|| pinned.memory().clone());
        let table = ErrorTable::default();
        let of = EntryRegion { memory: region.clone(), heap: 0, table, copies, words };
        let key = queues.add_region(of).unwrap();
        let Plan { lanes, depth, first, blocks, .. } = plan;
        let lane_plan = LanePlan { lanes, depth, first, blocks };
        let lanes = KernelLanes::new(device, &queues, lane_plan).unwrap();
        let bases = device.allocate(SLOTS_COUNT * 8).unwrap();
        let results = device.allocate(THREADS * 8).unwrap();
        Self { queues, lanes, key, plan, region, pinned, mover, bases, results }
    }

    /// The region, the host memory beside it, and a user of its copy stream.
    pub(crate) fn parts(&self) -> (MemoryRange, MemoryRange, Option<Arc<dyn DeviceCopier>>) {
        (self.region.clone(), self.pinned.memory().clone(), shared(self.mover.as_ref()))
    }

    /// Adds another rank's region, whose bytes this rank accesses itself.
    pub(crate) fn learn(&self, member: u32, other: &Self) {
        let words = other.mover.is_some().then(|| other.pinned.memory().clone());
        let far = PeerRegion {
            key: other.key,
            len: BYTES as u64,
            table: ErrorTable::default(),
            near: Some(other.region.clone()),
            copies: shared(other.mover.as_ref()),
            words,
        };
        self.queues.add_remote_region(member, far).unwrap();
    }

    /// A job whose peer is this rank itself.
    pub(crate) fn job(&self, machine: &Machine) -> KernelJob {
        let data = match self.plan.place {
            Place::Device => self.region.addr() as u64,
            Place::Pinned => self.pinned.device_address(),
        };
        KernelJob {
            slots: data + SLOTS,
            bases: self.bases.addr() as u64,
            data,
            results: self.results.addr() as u64,
            keys: [self.key.to_bits(); 2],
            slots_at: SLOTS,
            ticks: machine.ticks,
            ..KernelJob::default()
        }
    }

    pub(crate) fn start(
        &self,
        machine: &Machine,
        name: &str,
        grid: (u32, u32),
        job: KernelJob,
    ) -> RunningKernel {
        let held = self.lanes.held_memory().into_iter().chain([
            self.region.clone(),
            self.bases.clone(),
            self.results.clone(),
        ]);
        let mut args = vec![KernelArg::Words(job.to_words(&self.lanes))];
        // The launch also gets the memory that the words refer to. No kernel reads these arguments; they keep the
        // memory.
        args.extend(held.map(KernelArg::Memory));
        args.push(KernelArg::Pinned(self.pinned.clone()));
        machine.program.launch_kernel(name, grid.0, grid.1, args).unwrap()
    }

    /// Runs a kernel. Returns the result of each thread.
    pub(crate) fn run(&self, machine: &Machine, name: &str, grid: (u32, u32), job: KernelJob) -> Vec<u64> {
        let running = self.start(machine, name, grid, job);
        self.finish(machine, &running, grid)
    }

    pub(crate) fn finish(
        &self,
        machine: &Machine,
        running: &RunningKernel,
        (blocks, threads): (u32, u32),
    ) -> Vec<u64> {
        assert!(running.wait(Duration::from_secs(180)).unwrap(), "the kernel must end within 180 s");
        self.words(machine, &self.results, 0, (blocks * threads) as usize)
    }

    /// Words of the device's memory.
    fn words(&self, machine: &Machine, memory: &MemoryRange, at: u64, count: usize) -> Vec<u64> {
        let mut bytes = vec![0; count * 8];
        machine.device.copy_from_device(memory, at, &mut bytes).unwrap();
        bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect()
    }

    /// Words of the results.
    pub(crate) fn result_words(&self, machine: &Machine, count: usize) -> Vec<u64> {
        self.words(machine, &self.results, 0, count)
    }

    /// Returns words of the region, in either location.
    pub(crate) fn region_words(&self, machine: &Machine, at: u64, count: usize) -> Vec<u64> {
        match self.plan.place {
            Place::Device => self.words(machine, &self.region, at, count),
            Place::Pinned => (0..count as u64).map(|word| self.region.load(at + word * 8).unwrap()).collect(),
        }
    }

    /// Writes words to the region.
    pub(crate) fn fill(&self, machine: &Machine, at: u64, words: &[u64]) {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        match self.plan.place {
            Place::Device => machine.device.copy_to_device(&self.region, at, &bytes).unwrap(),
            Place::Pinned => self.region.write(at, &bytes).unwrap(),
        }
    }

    /// The value of a slot, and its poison.
    pub(crate) fn slot(&self, machine: &Machine, number: u64) -> [u64; 2] {
        let words = self.region_words(machine, SLOTS + number * 16, 2);
        [words[0], words[1]]
    }
}

/// Waits until the host observes a condition.
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_micros(100));
    }
}
