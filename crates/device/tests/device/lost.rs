//! A link that is lost while both processes live. The same executor does not connect again: all waiters for entries on
//! that link fail, and so do later posts. Another executor connects again.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use trunkline_device::{
    DeviceQueues, EntryKey, EntryRegion, ExecutorMode, HostDeadline, PeerRegion, QueueWords, RmaNetwork,
};
use trunkline_device_queue::{DeviceQueue, SlotCondition, SlotLayout, WaitError};
use trunkline_engine::host::UnixHost;
use trunkline_engine::rma::RmaJob;
use trunkline_engine::{CommNics, EngineParams};
use trunkline_mem::MemoryRange;
use trunkline_proto::wire::device_queue::{
    AtomicChange, EntryStatus, EntryWork, LocalAddress, PeerAddress, QueueEntry,
};
use trunkline_softnic::{SoftConfig, SoftFabric, WireMode};

use crate::mortal::{Dead, Mortal};
use crate::ranks::{BYTES, SLOTS, SLOTS_COUNT, TABLE};

const BOUND: Duration = Duration::from_millis(100);
/// The key of the first region of any rank: number 0, generation 1.
const KEY: u32 = 1 << 8;

type Over = Arc<RmaJob<Mortal, UnixHost>>;

struct Rank {
    me: u32,
    job: Over,
    dead: Dead,
    memory: MemoryRange,
    queues: DeviceQueues<RmaNetwork<Over>>,
}

fn patience() -> HostDeadline {
    HostDeadline::from_duration(Duration::from_secs(5))
}

fn begin(me: u32, job: &Over, memory: &MemoryRange) -> DeviceQueues<RmaNetwork<Over>> {
    let network = RmaNetwork::new(Arc::clone(job)).unwrap();
    let queues = DeviceQueues::start(network, 64, ExecutorMode::Thread).unwrap();
    let region = EntryRegion { memory: memory.clone(), heap: 0, table: TABLE, copies: None, words: None };
    assert_eq!(queues.add_region(region).unwrap().to_bits(), KEY);
    let key = EntryKey::from_bits(KEY);
    let far = PeerRegion { key, len: BYTES as u64, table: TABLE, near: None, copies: None, words: None };
    queues.add_remote_region(1 - me, far).unwrap();
    queues.watch_signals(1 - me, memory, SlotLayout::Poisoned { slots: SLOTS, count: SLOTS_COUNT }).unwrap();
    queues
}

fn two(wire: WireMode) -> [Rank; 2] {
    let jobs = [(); 2].map(|()| {
        let dead = Dead::default();
        let config = SoftConfig { wire, nics: crate::mortal::NICS, ..SoftConfig::default() };
        let fabric = Mortal(SoftFabric::new(config).unwrap(), Arc::clone(&dead));
        let job = RmaJob::new(fabric, UnixHost::new(|_, _| {}), EngineParams::default(), CommNics::from(0));
        (job.unwrap(), dead)
    });
    let cards = [jobs[0].0.process_card(), jobs[1].0.process_card()];
    let mut number = 0..;
    jobs.map(|(job, dead)| {
        let me = number.next().unwrap();
        job.set_members(me, &cards).unwrap();
        let memory = MemoryRange::heap(BYTES);
        job.add_heap(memory.clone()).unwrap();
        let job = Arc::new(job);
        let queues = begin(me, &job, &memory);
        Rank { me, job, dead, memory, queues }
    })
}

impl Rank {
    fn raise(&self, peer: u32, slot: u32) -> QueueEntry {
        let at = PeerAddress { peer, addr: SLOTS + 16 * u64::from(slot), key: KEY };
        QueueEntry::new(EntryWork::Atomic { at, change: AtomicChange::Add(1), poisoned: true })
    }

    fn write(&self, len: u64) -> QueueEntry {
        let (from, to) =
            (LocalAddress { addr: 0, key: KEY }, PeerAddress { peer: 1 - self.me, addr: 0, key: KEY });
        QueueEntry::new(EntryWork::Write { from, to, len, imm: None })
    }

    fn wait_slot(&self, number: u32, value: u64) -> Result<u64, WaitError> {
        let slot = SlotLayout::Poisoned { slots: SLOTS, count: SLOTS_COUNT }.slot_at(number).unwrap();
        let words = self.queues.observed_words(&self.memory);
        slot.wait(&words, SlotCondition::AtLeast(value), &mut patience())
    }

    fn try_once(&self, queue: &DeviceQueue<QueueWords>, entries: &[QueueEntry]) -> Result<(), WaitError> {
        let ticket = queue.post(entries, &mut patience()).map_err(|_| WaitError::Refused)?;
        queue.wait(ticket, &mut patience())
    }
}

/// Whether the error is one of a lost link: the sender cannot distinguish it from a dead peer.
fn is_unreached<T: std::fmt::Debug>(how: &Result<T, WaitError>) -> bool {
    let unreached = [EntryStatus::Network, EntryStatus::PeerDead];
    match how {
        Err(WaitError::Failed(fault)) => unreached.contains(&fault.status),
        Err(WaitError::Poisoned(poison)) => unreached.contains(&poison.status),
        _ => false,
    }
}

#[test]
fn lost_link_fails_every_waiter_and_later_posts() {
    for wire in [WireMode::Shm, WireMode::Tcp] {
        let [mut here, there] = two(wire);
        let queue = here.queues.make_queue(16).unwrap();
        here.try_once(&queue, &[here.write(5000), here.raise(1, 0)]).unwrap();
        // Both ranks wait: by ticket, by counter, and by signal.
        let companion = queue.companion_within(&mut patience()).unwrap();
        let companion = here.queues.find_queue(companion).unwrap();
        std::thread::scope(|scope| {
            let signal = scope.spawn(|| (there.wait_slot(1, 1), Instant::now()));
            let counter = scope.spawn(|| (here.wait_slot(2, 1), Instant::now()));
            std::thread::sleep(Duration::from_millis(10));
            here.dead[0].store(true, Ordering::Relaxed);
            // Until an entry finds the link lost, entries are executed or in progress.
            let (ticket, lost) = loop {
                let began = Instant::now();
                let entries = [here.write(100_000), here.raise(1, 5)];
                let done = here.try_once(&queue, &entries);
                if done.is_err() {
                    break (done, began);
                }
            };
            let told = Instant::now();
            assert!(is_unreached(&ticket), "{wire:?}: {ticket:?}");
            // Entries behind a failure: a signal at the other rank, a local counter.
            let behind = here.queues.make_queue(16).unwrap();
            let refused = here.try_once(&behind, &[here.write(8), here.raise(1, 1)]);
            assert!(is_unreached(&refused), "{wire:?}: {refused:?}");
            let last = trunkline_device_queue::EntryTicket {
                index: queue.queue_fault().unwrap().first_bad,
                ..ticket_of(&queue)
            };
            let wait = QueueEntry::new(EntryWork::Wait { queue: last.queue, index: last.index });
            let counts = companion.post(&[wait, here.raise(0, 2)], &mut patience()).unwrap();
            assert!(companion.wait(counts, &mut patience()).is_err(), "{wire:?}");
            let (signal, heard) = signal.join().unwrap();
            assert!(is_unreached(&signal), "{wire:?}: {signal:?}");
            let (counter, counted) = counter.join().unwrap();
            assert!(matches!(counter, Err(WaitError::Poisoned(_))), "{wire:?}: {counter:?}");
            println!(
                "{wire:?}: ticket {:?}, signal {:?}, counter {:?}",
                told - lost,
                heard - told,
                counted - told
            );
            assert!(told - lost < BOUND && heard - told < BOUND && counted - told < BOUND, "{wire:?}");
        });
        // Both processes live, so no other signal fails. The executor does not connect again, although the NIC works
        // again.
        assert!(matches!(there.wait_slot_once(3), Err(WaitError::Timeout)));
        here.dead[0].store(false, Ordering::Relaxed);
        let late = here.queues.make_queue(16).unwrap();
        let refused = here.try_once(&late, &[here.raise(1, 4)]);
        assert!(is_unreached(&refused), "{wire:?}: {refused:?}");
        assert!(is_unreached(&there.wait_slot(4, 1)), "{wire:?}");
        // Another executor connects again.
        let queues = begin(0, &here.job, &here.memory);
        drop(std::mem::replace(&mut here.queues, queues));
        let queue = here.queues.make_queue(16).unwrap();
        here.try_once(&queue, &[here.write(5000), here.raise(1, 0)]).unwrap();
        assert_eq!(there.wait_slot(0, 2), Ok(2));
    }
}

fn ticket_of(queue: &DeviceQueue<QueueWords>) -> trunkline_device_queue::EntryTicket {
    trunkline_device_queue::EntryTicket {
        queue: queue.queue_shape().number(),
        epoch: queue.queue_shape().epoch(),
        index: 0,
    }
}

impl Rank {
    fn wait_slot_once(&self, number: u32) -> Result<u64, WaitError> {
        let slot = SlotLayout::Poisoned { slots: SLOTS, count: SLOTS_COUNT }.slot_at(number).unwrap();
        let mut soon = HostDeadline::from_duration(Duration::from_millis(20));
        slot.wait(&self.queues.observed_words(&self.memory), SlotCondition::AtLeast(1), &mut soon)
    }
}
