//! Two ranks in this process: each with a network, or connected by memory alone.

use std::sync::Arc;

use trunkline_device::{
    BeginOutcome, DeviceQueues, EntryFailure, EntryKey, EntryRegion, ErrorTable, ExecutorMode, HostDeadline,
    MemberNetwork, NetworkCompletion, PeerRegion, QueueWords, RmaNetwork,
};
use trunkline_device_queue::{DeviceQueue, PutBytes, SignalSlot, SlotCondition, WordAddition};
use trunkline_engine::host::UnixHost;
use trunkline_engine::rma::HeapAddress;
use trunkline_engine::rma::{HeapRange as Heap, PutSource, RmaJob};
use trunkline_engine::{CommNics, EngineParams};
use trunkline_mem::MemoryRange;
use trunkline_proto::rma::atomic::AtomicAction;
use trunkline_proto::wire::device_queue::{
    AtomicChange, EntryStatus, EntryWork, LocalAddress, PeerAddress, QueueEntry,
};
use trunkline_softnic::{SoftConfig, SoftFabric, WireMode};

use super::DeviceBenchError;

/// Queues of a rank.
const QUEUES: u32 = 1100;
/// Bytes of a rank's slots, which follow its data.
const SLOTS_BYTES: usize = 1 << 20;
/// Alignment of the slots.
const ALIGN: usize = 4096;

/// How entries are executed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum ExecutionPath {
    M0,
    M1,
    Shm,
    Tcp,
}

impl ExecutionPath {
    pub(super) const ALL: [Self; 4] = [Self::M0, Self::M1, Self::Shm, Self::Tcp];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::M0 => "M0",
            Self::M1 => "M1",
            Self::Shm => "M1 soft:shm",
            Self::Tcp => "M1 soft:tcp",
        }
    }

    const fn mode(self) -> ExecutorMode {
        match self {
            Self::M0 => ExecutorMode::Inline,
            Self::M1 | Self::Shm | Self::Tcp => ExecutorMode::Thread,
        }
    }
}

/// No network: all memory is in this process.
#[derive(Debug)]
pub(super) struct LoopbackNetwork(pub(super) u32);

impl MemberNetwork for LoopbackNetwork {
    fn own_rank(&self) -> u32 {
        self.0
    }

    fn can_execute_locally(&self) -> bool {
        true
    }

    fn put(&mut self, _: u64, _: HeapAddress, _: PutSource<'_>) -> BeginOutcome {
        BeginOutcome::Failed(EntryFailure::from_status(EntryStatus::Network))
    }

    fn get(&mut self, _: u64, _: HeapAddress, _: Heap) -> BeginOutcome {
        BeginOutcome::Failed(EntryFailure::from_status(EntryStatus::Network))
    }

    fn post_atomic(&mut self, _: u64, _: HeapAddress, _: AtomicAction, _: bool) -> BeginOutcome {
        BeginOutcome::Failed(EntryFailure::from_status(EntryStatus::Network))
    }

    fn make_progress(&mut self, _: &mut Vec<NetworkCompletion>) -> bool {
        false
    }

    fn send_error_word(&mut self, _: HeapAddress, _: u64) -> bool {
        false
    }

    fn is_gone(&mut self, _: u32) -> bool {
        false
    }
}

/// A rank on any network.
pub(super) struct BenchRank<N: MemberNetwork + 'static> {
    me: u32,
    /// Offset of the slots, after the data; the same at both ranks.
    slots: u64,
    pub(super) queues: DeviceQueues<N>,
    pub(super) memory: MemoryRange,
    words: QueueWords,
    /// Keys of both ranks' regions, by rank.
    keys: [EntryKey; 2],
}

fn start_rank<N: MemberNetwork + 'static>(
    me: u32,
    network: N,
    mode: ExecutorMode,
    bytes: usize,
) -> Result<BenchRank<N>, DeviceBenchError> {
    let ranks = |error: &dyn std::fmt::Display| DeviceBenchError::Ranks(error.to_string());
    let queues = DeviceQueues::start(network, QUEUES, mode).map_err(|error| ranks(&error))?;
    let slots = bytes.next_multiple_of(ALIGN);
    let memory = MemoryRange::try_heap(slots + SLOTS_BYTES).map_err(|error| ranks(&error))?;
    let region = EntryRegion::of_host(memory.clone(), 0, ErrorTable::default());
    let key = queues.add_region(region).ok_or_else(|| ranks(&"no region"))?;
    let words = queues.observed_words(&memory);
    Ok(BenchRank { me, slots: slots as u64, queues, memory, words, keys: [key; 2] })
}

/// Starts two ranks with `bytes` of data each and no network between them.
pub(super) fn start_loopback_ranks(
    way: ExecutionPath,
    bytes: usize,
) -> Result<[BenchRank<LoopbackNetwork>; 2], DeviceBenchError> {
    let ranks = [
        start_rank(0, LoopbackNetwork(0), way.mode(), bytes)?,
        start_rank(1, LoopbackNetwork(1), way.mode(), bytes)?,
    ];
    for (one, other) in [(0, 1), (1, 0)] {
        let near = Some(ranks[other].memory.clone());
        let key = ranks[other].keys[0];
        let len = ranks[other].memory.len() as u64;
        let far = PeerRegion::of_host(key, len, ErrorTable::default(), near);
        let learned = ranks[one].queues.add_remote_region(other as u32, far);
        learned.map_err(|error| DeviceBenchError::Ranks(error.to_string()))?;
    }
    Ok(ranks)
}

type SoftJob = Arc<RmaJob<SoftFabric, UnixHost>>;

/// Starts two ranks that are connected by software NICs.
pub(super) fn start_soft_ranks(
    way: ExecutionPath,
    bytes: usize,
) -> Result<[BenchRank<RmaNetwork<SoftJob>>; 2], DeviceBenchError> {
    let ranks = |error: &dyn std::fmt::Display| DeviceBenchError::Ranks(error.to_string());
    let wire = if way == ExecutionPath::Tcp { WireMode::Tcp } else { WireMode::Shm };
    let job = || {
        let fabric =
            SoftFabric::new(SoftConfig { wire, ..SoftConfig::default() }).map_err(|error| ranks(&error))?;
        RmaJob::new(fabric, UnixHost::new(|_, _| {}), EngineParams::default(), CommNics::from(0))
            .map_err(|error| ranks(&error))
    };
    let jobs = [job()?, job()?];
    let cards = [jobs[0].process_card(), jobs[1].process_card()];
    let [first, second] = jobs.map(Arc::new);
    let start = |me: u32, job: SoftJob| {
        job.set_members(me, &cards).map_err(|error| ranks(&error))?;
        let network = || RmaNetwork::new(Arc::clone(&job)).map_err(|error| ranks(&error));
        // The heap is the region's memory, so the rank is started first.
        let one = start_rank(me, network()?, way.mode(), bytes)?;
        job.add_heap(one.memory.clone()).map_err(|error| ranks(&error))?;
        Ok::<_, DeviceBenchError>(one)
    };
    let both = [start(0, first)?, start(1, second)?];
    for (one, other) in [(0, 1), (1, 0)] {
        let key = both[other].keys[0];
        let len = both[other].memory.len() as u64;
        let far = PeerRegion::of_host(key, len, ErrorTable::default(), None);
        both[one].queues.add_remote_region(other as u32, far).map_err(|error| ranks(&error))?;
    }
    Ok(both)
}

impl<N: MemberNetwork + 'static> BenchRank<N> {
    pub(super) fn create_queue(&self, depth: u32) -> Result<DeviceQueue<QueueWords>, DeviceBenchError> {
        Ok(self.queues.make_queue(depth)?)
    }

    fn remote_address(&self, peer: u32, addr: u64) -> PeerAddress {
        PeerAddress { peer, addr, key: self.keys[peer as usize & 1].to_bits() }
    }

    /// The entries of a put: one per GiB.
    pub(super) fn put_entries(&self, bytes: usize) -> Vec<QueueEntry> {
        let bytes = self.put_range(bytes);
        (0..bytes.entry_count()).map(|nth| bytes.nth_entry(nth)).collect()
    }

    /// The entries of a put, of which the last one raises a counter of this rank.
    pub(super) fn put_counted(&self, bytes: usize, slot: u64) -> Result<Vec<QueueEntry>, DeviceBenchError> {
        let mut entries = self.put_entries(bytes);
        let last = entries.pop().and_then(|last| self.counter_addition(slot).attach_to(last));
        entries.push(last.ok_or_else(|| {
            DeviceBenchError::Ranks("the last entry of a put cannot also increment a counter".to_owned())
        })?);
        Ok(entries)
    }

    pub(super) fn put_range(&self, len: usize) -> PutBytes {
        let from = LocalAddress { addr: 0, key: self.keys[0].to_bits() };
        PutBytes { from, to: self.remote_address(1 - self.me, 0), len: len as u64 }
    }

    /// The addition of 1 to a counter of this rank.
    pub(super) fn counter_addition(&self, slot: u64) -> WordAddition {
        WordAddition { at: self.remote_address(self.me, self.slots + 128 * slot), value: 1, poisoned: true }
    }

    pub(super) fn add_entry(&self, peer: u32, slot: u64) -> QueueEntry {
        let at = self.remote_address(peer, self.slots + 128 * slot);
        QueueEntry::new(EntryWork::Atomic { at, change: AtomicChange::Add(1), poisoned: true })
    }

    pub(super) fn count_entry(&self, slot: u64) -> QueueEntry {
        self.add_entry(self.me, slot)
    }

    pub(super) fn signal_entry(&self, slot: u64) -> QueueEntry {
        self.add_entry(1 - self.me, slot)
    }

    pub(super) fn counter_value(&self, slot: u64) -> u64 {
        SignalSlot::with_poison_word(self.slots + 128 * slot).read_value(&self.words)
    }

    /// Polls once for arrivals, as a waiting kernel does.
    pub(super) fn poll_once(&self) {
        trunkline_device_queue::WordMemory::pause(&self.words);
        std::thread::yield_now();
    }

    pub(super) fn wait_counter(&self, slot: u64, value: u64) -> Result<(), DeviceBenchError> {
        let slot = SignalSlot::with_poison_word(self.slots + 128 * slot);
        let until = SlotCondition::AtLeast(value);
        slot.wait(&self.words, until, &mut endless_patience())?;
        Ok(())
    }
}

/// A deadline that never passes, because checking a limit would read a clock for each operation.
pub(super) const fn endless_patience() -> HostDeadline {
    HostDeadline::without_deadline()
}
