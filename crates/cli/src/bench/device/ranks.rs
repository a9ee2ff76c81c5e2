//! Two ranks in this process: of one network each, or with nothing between them but memory.

use std::sync::Arc;

use trunkline_device::{
    Carried, Ended, ErrorTable, Failure, Far, Key, Mode, Network, Patience, Place, Queues, Region, Rma, Words,
};
use trunkline_device_queue::{Addition, Bytes, Condition, Queue, Slot};
use trunkline_engine::host::UnixHost;
use trunkline_engine::rma::{Job, Local as Heap, Source};
use trunkline_engine::{Mutant, Nics, Params};
use trunkline_mem::Memory;
use trunkline_proto::rma::atomic::Action;
use trunkline_proto::wire::device_queue::{Atomic, Entry, Local, Remote, Status, Work};
use trunkline_softnic::{SoftConfig, SoftFabric, WireMode};

use super::DeviceBenchError;

/// Queues of a rank.
const QUEUES: u32 = 1100;
/// Bytes of a rank's slots, behind its data.
const SLOTS_BYTES: usize = 1 << 20;
/// Where slots begin.
const ALIGN: usize = 4096;

/// How entries are executed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Way {
    M0,
    M1,
    Shm,
    Tcp,
}

impl Way {
    pub(super) const ALL: [Self; 4] = [Self::M0, Self::M1, Self::Shm, Self::Tcp];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::M0 => "M0",
            Self::M1 => "M1",
            Self::Shm => "M1 soft:shm",
            Self::Tcp => "M1 soft:tcp",
        }
    }

    const fn mode(self) -> Mode {
        match self {
            Self::M0 => Mode::Inline,
            Self::M1 | Self::Shm | Self::Tcp => Mode::Thread,
        }
    }
}

/// No network: all memory is in this process.
#[derive(Debug)]
pub(super) struct Alone(pub(super) u32);

impl Network for Alone {
    fn me(&self) -> u32 {
        self.0
    }

    fn executes(&self) -> bool {
        true
    }

    fn put(&mut self, _: u64, _: Place, _: Source<'_>) -> Carried {
        Carried::Failed(Failure::of(Status::Network))
    }

    fn get(&mut self, _: u64, _: Place, _: Heap) -> Carried {
        Carried::Failed(Failure::of(Status::Network))
    }

    fn atomic(&mut self, _: u64, _: Place, _: Action, _: bool) -> Carried {
        Carried::Failed(Failure::of(Status::Network))
    }

    fn go_on(&mut self, _: &mut Vec<Ended>) -> bool {
        false
    }

    fn spoil(&mut self, _: Place, _: u64) -> bool {
        false
    }

    fn is_gone(&mut self, _: u32) -> bool {
        false
    }
}

/// A rank, whatever its network.
pub(super) struct Rank<N: Network + 'static> {
    me: u32,
    /// Where its slots begin, behind its data; so they do at the other one.
    slots: u64,
    pub(super) queues: Queues<N>,
    pub(super) memory: Memory,
    words: Words,
    /// By rank.
    keys: [Key; 2],
}

fn rank<N: Network + 'static>(
    me: u32,
    network: N,
    mode: Mode,
    bytes: usize,
) -> Result<Rank<N>, DeviceBenchError> {
    let ranks = |error: &dyn std::fmt::Display| DeviceBenchError::Ranks(error.to_string());
    let queues = Queues::start(network, QUEUES, mode, Mutant::NONE).map_err(|error| ranks(&error))?;
    let slots = bytes.next_multiple_of(ALIGN);
    let memory = Memory::try_heap(slots + SLOTS_BYTES).map_err(|error| ranks(&error))?;
    let region = Region::of_host(memory.clone(), 0, ErrorTable::default());
    let key = queues.add_region(region).ok_or_else(|| ranks(&"no region"))?;
    let words = queues.words(&memory);
    Ok(Rank { me, slots: slots as u64, queues, memory, words, keys: [key; 2] })
}

/// Two ranks of so many bytes with nothing between them.
pub(super) fn alone(way: Way, bytes: usize) -> Result<[Rank<Alone>; 2], DeviceBenchError> {
    let ranks = [rank(0, Alone(0), way.mode(), bytes)?, rank(1, Alone(1), way.mode(), bytes)?];
    for (one, other) in [(0, 1), (1, 0)] {
        let near = Some(ranks[other].memory.clone());
        let key = ranks[other].keys[0];
        let len = ranks[other].memory.len() as u64;
        let far = Far::of_host(key, len, ErrorTable::default(), near);
        let learned = ranks[one].queues.learn(other as u32, far);
        learned.map_err(|error| DeviceBenchError::Ranks(error.to_string()))?;
    }
    Ok(ranks)
}

type Over = Arc<Job<SoftFabric, UnixHost>>;

/// The same with software NICs.
pub(super) fn over(way: Way, bytes: usize) -> Result<[Rank<Rma<Over>>; 2], DeviceBenchError> {
    let ranks = |error: &dyn std::fmt::Display| DeviceBenchError::Ranks(error.to_string());
    let wire = if way == Way::Tcp { WireMode::Tcp } else { WireMode::Shm };
    let job = || {
        let fabric =
            SoftFabric::new(SoftConfig { wire, ..SoftConfig::default() }).map_err(|error| ranks(&error))?;
        Job::new(fabric, UnixHost::new(|_, _| {}), Params::default(), Nics::from(0))
            .map_err(|error| ranks(&error))
    };
    let jobs = [job()?, job()?];
    let cards = [jobs[0].card(), jobs[1].card()];
    let [first, second] = jobs.map(Arc::new);
    let start = |me: u32, job: Over| {
        job.meet(me, &cards).map_err(|error| ranks(&error))?;
        let network = || Rma::new(Arc::clone(&job)).map_err(|error| ranks(&error));
        // The heap is the region's memory, so it comes first.
        let one = rank(me, network()?, way.mode(), bytes)?;
        job.add_heap(one.memory.clone()).map_err(|error| ranks(&error))?;
        Ok::<_, DeviceBenchError>(one)
    };
    let both = [start(0, first)?, start(1, second)?];
    for (one, other) in [(0, 1), (1, 0)] {
        let key = both[other].keys[0];
        let len = both[other].memory.len() as u64;
        let far = Far::of_host(key, len, ErrorTable::default(), None);
        both[one].queues.learn(other as u32, far).map_err(|error| ranks(&error))?;
    }
    Ok(both)
}

impl<N: Network + 'static> Rank<N> {
    pub(super) fn queue(&self, depth: u32) -> Result<Queue<Words>, DeviceBenchError> {
        Ok(self.queues.queue(depth)?)
    }

    fn remote(&self, peer: u32, addr: u64) -> Remote {
        Remote { peer, addr, key: self.keys[peer as usize & 1].bits() }
    }

    /// A put, as an entry for each GiB.
    pub(super) fn put(&self, bytes: usize) -> Vec<Entry> {
        let bytes = self.bytes(bytes);
        (0..bytes.entries()).map(|nth| bytes.nth(nth)).collect()
    }

    /// The same, and the last one raises a counter here.
    pub(super) fn put_counted(&self, bytes: usize, slot: u64) -> Result<Vec<Entry>, DeviceBenchError> {
        let mut entries = self.put(bytes);
        let last = entries.pop().and_then(|last| self.counter(slot).with(last));
        entries.push(last.ok_or_else(|| DeviceBenchError::Ranks("no entry has room for it".to_owned()))?);
        Ok(entries)
    }

    pub(super) fn bytes(&self, len: usize) -> Bytes {
        let from = Local { addr: 0, key: self.keys[0].bits() };
        Bytes { from, to: self.remote(1 - self.me, 0), len: len as u64 }
    }

    /// What is added to a counter here.
    pub(super) fn counter(&self, slot: u64) -> Addition {
        Addition { at: self.remote(self.me, self.slots + 128 * slot), value: 1, poisoned: true }
    }

    pub(super) fn add(&self, peer: u32, slot: u64) -> Entry {
        let at = self.remote(peer, self.slots + 128 * slot);
        Entry::new(Work::Atomic { at, change: Atomic::Add(1), poisoned: true })
    }

    pub(super) fn count(&self, slot: u64) -> Entry {
        self.add(self.me, slot)
    }

    pub(super) fn signal(&self, slot: u64) -> Entry {
        self.add(1 - self.me, slot)
    }

    pub(super) fn value(&self, slot: u64) -> u64 {
        Slot::poisoned(self.slots + 128 * slot).read(&self.words)
    }

    /// One look at what comes here, as a kernel that waits looks.
    pub(super) fn attend(&self) {
        trunkline_device_queue::Memory::pause(&self.words);
        std::thread::yield_now();
    }

    pub(super) fn wait(&self, slot: u64, value: u64) -> Result<(), DeviceBenchError> {
        let slot = Slot::poisoned(self.slots + 128 * slot);
        let until = Condition::AtLeast(value);
        slot.wait(&self.words, until, &mut patience(), Mutant::NONE)?;
        Ok(())
    }
}

/// No limit: a clock would be read for each operation.
pub(super) const fn patience() -> Patience {
    Patience::endless()
}
