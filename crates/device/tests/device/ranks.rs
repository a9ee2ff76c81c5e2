//! Ranks of one process, each with its own engine and queues.

use std::sync::Arc;
use std::time::Duration;

use trunkline_device::{
    DeviceQueues, EntryKey, EntryRegion, ErrorTable, ExecutorMode, HostDeadline, PeerRegion, QueueWords,
    RmaNetwork,
};
use trunkline_device_queue::{DeviceQueue, EntryTicket, SlotLayout};
use trunkline_engine::host::UnixHost;
use trunkline_engine::rma::RmaJob;
use trunkline_engine::{CommNics, EngineParams};
use trunkline_mem::MemoryRange;
use trunkline_proto::wire::device_queue::{
    AtomicChange, EntryWork, InlineBytes, LocalAddress, PeerAddress, QueueEntry,
};
use trunkline_softnic::{SoftConfig, SoftFabric, WireMode};

pub(crate) type Over = Arc<RmaJob<SoftFabric, UnixHost>>;

/// Bytes of each rank's region.
pub(crate) const BYTES: usize = 4 << 20;
/// Offset of the slots with a poison word, whose values other ranks add to.
pub(crate) const SLOTS: u64 = 1 << 20;
/// The number of these slots.
pub(crate) const SLOTS_COUNT: u32 = 4096;
/// Offset of the bare signals, which their error words follow.
pub(crate) const BARE: u64 = SLOTS + 16 * SLOTS_COUNT as u64;
pub(crate) const BARE_COUNT: u32 = 64;

/// The limit of a rank's waits.
pub(crate) const LIMIT: Duration = Duration::from_secs(20);

pub(crate) const TABLE: ErrorTable =
    ErrorTable { values: BARE, errors: BARE + 8 * BARE_COUNT as u64, count: BARE_COUNT };

pub(crate) fn patience() -> HostDeadline {
    HostDeadline::from_duration(LIMIT)
}

pub(crate) struct Rank {
    pub(crate) me: u32,
    pub(crate) job: Over,
    pub(crate) queues: DeviceQueues<RmaNetwork<Over>>,
    pub(crate) memory: MemoryRange,
    /// The keys, by rank.
    pub(crate) keys: Vec<EntryKey>,
}

/// The wire, whether other ranks' bytes are accessed inside this process, and the execution mode.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Way {
    pub(crate) wire: WireMode,
    pub(crate) near: bool,
    pub(crate) mode: ExecutorMode,
}

pub(crate) const SHM: Way = Way { wire: WireMode::Shm, near: false, mode: ExecutorMode::Thread };
pub(crate) const TCP: Way = Way { wire: WireMode::Tcp, near: false, mode: ExecutorMode::Thread };
pub(crate) const NEAR: Way = Way { wire: WireMode::Auto, near: true, mode: ExecutorMode::Thread };
pub(crate) const INLINE: Way = Way { wire: WireMode::Auto, near: true, mode: ExecutorMode::Inline };

/// All ways in which ranks of one process are tested.
pub(crate) const WAYS: [Way; 4] = [SHM, TCP, NEAR, INLINE];

pub(crate) fn ranks(count: usize, way: Way) -> Vec<Rank> {
    few(count, way, 256)
}

/// As [`ranks`], each with at most `most` queues.
pub(crate) fn few(count: usize, way: Way, most: u32) -> Vec<Rank> {
    let job = |_| {
        let config = SoftConfig { wire: way.wire, nics: 4, ..SoftConfig::default() };
        let fabric = SoftFabric::new(config).unwrap();
        RmaJob::new(fabric, UnixHost::new(|_, _| {}), EngineParams::default(), CommNics::from(0)).unwrap()
    };
    let jobs: Vec<_> = (0..count).map(job).collect();
    let cards: Vec<_> = jobs.iter().map(RmaJob::process_card).collect();
    let rank = |(me, job): (usize, RmaJob<_, _>)| {
        job.set_members(me as u32, &cards).unwrap();
        let memory = MemoryRange::heap(BYTES);
        let heap = job.add_heap(memory.clone()).unwrap();
        let job = Arc::new(job);
        let queues = DeviceQueues::start(RmaNetwork::new(Arc::clone(&job)).unwrap(), most, way.mode).unwrap();
        let region = EntryRegion { memory: memory.clone(), heap, table: TABLE, copies: None, words: None };
        let keys = vec![queues.add_region(region).unwrap()];
        Rank { me: me as u32, job, queues, memory, keys }
    };
    let mut ranks: Vec<_> = jobs.into_iter().enumerate().map(rank).collect();
    let keys: Vec<_> = ranks.iter().map(|rank| rank.keys[0]).collect();
    let memories: Vec<_> = ranks.iter().map(|rank| rank.memory.clone()).collect();
    for rank in &mut ranks {
        for (other, memory) in memories.iter().enumerate().filter(|(other, _)| *other as u32 != rank.me) {
            let near = way.near.then(|| memory.clone());
            let far = PeerRegion {
                key: keys[other],
                len: BYTES as u64,
                table: TABLE,
                near,
                copies: None,
                words: None,
            };
            rank.queues.add_remote_region(other as u32, far).unwrap();
        }
        rank.keys.clone_from(&keys);
    }
    ranks
}

impl Rank {
    pub(crate) fn here(&self, addr: u64) -> LocalAddress {
        LocalAddress { addr, key: self.keys[self.me as usize].to_bits() }
    }

    pub(crate) fn at(&self, peer: u32, addr: u64) -> PeerAddress {
        PeerAddress { peer, addr, key: self.keys[peer as usize].to_bits() }
    }

    pub(crate) fn write(&self, from: u64, peer: u32, to: u64, len: u64) -> QueueEntry {
        QueueEntry::new(EntryWork::Write { from: self.here(from), to: self.at(peer, to), len, imm: None })
    }

    pub(crate) fn inline(&self, bytes: &[u8], peer: u32, to: u64) -> QueueEntry {
        QueueEntry::new(EntryWork::WriteInline {
            bytes: InlineBytes::new(bytes).unwrap(),
            to: self.at(peer, to),
        })
    }

    pub(crate) fn read(&self, peer: u32, from: u64, into: u64, len: u64) -> QueueEntry {
        QueueEntry::new(EntryWork::Read { into: self.here(into), from: self.at(peer, from), len })
    }

    pub(crate) fn change(&self, peer: u32, slot: u32, change: AtomicChange) -> QueueEntry {
        let at = self.at(peer, SLOTS + 16 * u64::from(slot));
        QueueEntry::new(EntryWork::Atomic { at, change, poisoned: true })
    }

    pub(crate) fn signal(&self, peer: u32, slot: u32, value: u64) -> QueueEntry {
        self.change(peer, slot, AtomicChange::Add(value))
    }

    /// Returns the words of this rank's memory, as a waiter reads them.
    pub(crate) fn words(&self) -> QueueWords {
        self.queues.observed_words(&self.memory)
    }

    pub(crate) fn slot(&self, number: u32) -> trunkline_device_queue::SignalSlot {
        SlotLayout::Poisoned { slots: SLOTS, count: SLOTS_COUNT }.slot_at(number).unwrap()
    }

    pub(crate) fn wait_signal(
        &self,
        number: u32,
        value: u64,
    ) -> Result<u64, trunkline_device_queue::WaitError> {
        let until = trunkline_device_queue::SlotCondition::AtLeast(value);
        self.slot(number).wait(&self.words(), until, &mut patience())
    }
}

/// Posts entries and waits for them; returns the ticket of the last one.
pub(crate) fn done(queue: &DeviceQueue<QueueWords>, entries: &[QueueEntry]) -> EntryTicket {
    let ticket = queue.post(entries, &mut patience()).unwrap();
    assert_eq!(queue.wait(ticket, &mut patience()), Ok(()));
    ticket
}

/// Bytes that identify their offset.
pub(crate) fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|at| (at as u8).wrapping_mul(31).wrapping_add((at >> 8) as u8).wrapping_add(seed)).collect()
}

pub(crate) fn bytes_of(memory: &MemoryRange, at: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    memory.read(at, &mut bytes).unwrap();
    bytes
}
