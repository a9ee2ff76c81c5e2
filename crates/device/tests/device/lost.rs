//! A link that is lost while both processes live. Nothing is dialled again by the same executor: every waiter of what goes that way hears of it, and so does whoever posts later.
//! Another executor dials anew.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use trunkline_device::{Far, Key, Mode, Patience, Queues, Region, Rma, Words};
use trunkline_device_queue::{Condition, Queue, Slots, WaitError};
use trunkline_engine::Nics;
use trunkline_engine::host::UnixHost;
use trunkline_engine::rma::Job;
use trunkline_mem::Memory;
use trunkline_proto::wire::device_queue::{Atomic, Entry, Local, Remote, Status, Work};
use trunkline_softnic::{SoftConfig, SoftFabric, WireMode};

use crate::mortal::{Dead, Mortal};
use crate::ranks::{BYTES, SLOTS, SLOTS_COUNT, TABLE, params, planted};

const BOUND: Duration = Duration::from_millis(100);
/// The key of the first region of any rank: number 0, generation 1.
const KEY: u32 = 1 << 8;

type Over = Arc<Job<Mortal, UnixHost>>;

struct Rank {
    me: u32,
    job: Over,
    dead: Dead,
    memory: Memory,
    queues: Queues<Rma<Over>>,
}

fn patience() -> Patience {
    Patience::of(Duration::from_secs(5))
}

fn begin(me: u32, job: &Over, memory: &Memory) -> Queues<Rma<Over>> {
    let network = Rma::new(Arc::clone(job)).unwrap();
    let queues = Queues::start(network, 64, Mode::Thread, planted()).unwrap();
    let region = Region { memory: memory.clone(), heap: 0, table: TABLE, copies: None, words: None };
    assert_eq!(queues.add_region(region).unwrap().bits(), KEY);
    let key = Key::from_bits(KEY);
    let far = Far { key, len: BYTES as u64, table: TABLE, near: None, copies: None, words: None };
    queues.learn(1 - me, far).unwrap();
    queues.watch(1 - me, memory, Slots::Poisoned { slots: SLOTS, count: SLOTS_COUNT }).unwrap();
    queues
}

fn two(wire: WireMode) -> [Rank; 2] {
    let jobs = [(); 2].map(|()| {
        let dead = Dead::default();
        let config = SoftConfig { wire, nics: crate::mortal::NICS, ..SoftConfig::default() };
        let fabric = Mortal(SoftFabric::new(config).unwrap(), Arc::clone(&dead));
        (Job::new(fabric, UnixHost::new(|_, _| {}), params(), Nics::from(0)).unwrap(), dead)
    });
    let cards = [jobs[0].0.card(), jobs[1].0.card()];
    let mut number = 0..;
    jobs.map(|(job, dead)| {
        let me = number.next().unwrap();
        job.meet(me, &cards).unwrap();
        let memory = Memory::heap(BYTES);
        job.add_heap(memory.clone()).unwrap();
        let job = Arc::new(job);
        let queues = begin(me, &job, &memory);
        Rank { me, job, dead, memory, queues }
    })
}

impl Rank {
    fn raise(&self, peer: u32, slot: u32) -> Entry {
        let at = Remote { peer, addr: SLOTS + 16 * u64::from(slot), key: KEY };
        Entry::new(Work::Atomic { at, change: Atomic::Add(1), poisoned: true })
    }

    fn write(&self, len: u64) -> Entry {
        let (from, to) = (Local { addr: 0, key: KEY }, Remote { peer: 1 - self.me, addr: 0, key: KEY });
        Entry::new(Work::Write { from, to, len, imm: None })
    }

    fn wait_slot(&self, number: u32, value: u64) -> Result<u64, WaitError> {
        let slot = Slots::Poisoned { slots: SLOTS, count: SLOTS_COUNT }.slot(number).unwrap();
        let words = self.queues.words(&self.memory);
        slot.wait(&words, Condition::AtLeast(value), &mut patience(), planted())
    }

    fn try_once(&self, queue: &Queue<Words>, entries: &[Entry]) -> Result<(), WaitError> {
        let ticket = queue.post(entries, &mut patience()).map_err(|_| WaitError::Refused)?;
        queue.wait(ticket, &mut patience())
    }
}

/// A link tells no more than that nothing comes by it.
fn is_unreached<T: std::fmt::Debug>(how: &Result<T, WaitError>) -> bool {
    let unreached = [Status::Network, Status::PeerDead];
    match how {
        Err(WaitError::Failed(fault)) => unreached.contains(&fault.status),
        Err(WaitError::Poisoned(poison)) => unreached.contains(&poison.status),
        _ => false,
    }
}

#[test]
fn a_lost_link_reaches_every_waiter_and_is_refused_from_then_on() {
    for wire in [WireMode::Shm, WireMode::Tcp] {
        let [mut here, there] = two(wire);
        let queue = here.queues.queue(16).unwrap();
        here.try_once(&queue, &[here.write(5000), here.raise(1, 0)]).unwrap();
        // Both ranks wait, by ticket, by counter, by signal.
        let companion = queue.companion_within(&mut patience()).unwrap();
        let companion = here.queues.find(companion).unwrap();
        std::thread::scope(|scope| {
            let signal = scope.spawn(|| (there.wait_slot(1, 1), Instant::now()));
            let counter = scope.spawn(|| (here.wait_slot(2, 1), Instant::now()));
            std::thread::sleep(Duration::from_millis(10));
            here.dead[0].store(true, Ordering::Relaxed);
            // Until an entry finds the link lost they are executed, or are under way.
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
            // What comes behind a failure: a signal there, a counter here.
            let behind = here.queues.queue(16).unwrap();
            let refused = here.try_once(&behind, &[here.write(8), here.raise(1, 1)]);
            assert!(is_unreached(&refused), "{wire:?}: {refused:?}");
            let last = trunkline_device_queue::Ticket {
                index: queue.fault().unwrap().first_bad,
                ..ticket_of(&queue)
            };
            let wait = Entry::new(Work::Wait { queue: last.queue, index: last.index });
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
        // Both live, so no other signal was given up; and nobody is dialled again, though the NIC is back.
        assert!(matches!(there.wait_slot_once(3), Err(WaitError::Timeout)));
        here.dead[0].store(false, Ordering::Relaxed);
        let late = here.queues.queue(16).unwrap();
        let refused = here.try_once(&late, &[here.raise(1, 4)]);
        assert!(is_unreached(&refused), "{wire:?}: {refused:?}");
        assert!(is_unreached(&there.wait_slot(4, 1)), "{wire:?}");
        // By another executor it is.
        let queues = begin(0, &here.job, &here.memory);
        drop(std::mem::replace(&mut here.queues, queues));
        let queue = here.queues.queue(16).unwrap();
        here.try_once(&queue, &[here.write(5000), here.raise(1, 0)]).unwrap();
        assert_eq!(there.wait_slot(0, 2), Ok(2));
    }
}

fn ticket_of(queue: &Queue<Words>) -> trunkline_device_queue::Ticket {
    trunkline_device_queue::Ticket { queue: queue.shape().number(), epoch: queue.shape().epoch(), index: 0 }
}

impl Rank {
    fn wait_slot_once(&self, number: u32) -> Result<u64, WaitError> {
        let slot = Slots::Poisoned { slots: SLOTS, count: SLOTS_COUNT }.slot(number).unwrap();
        let mut soon = Patience::of(Duration::from_millis(20));
        slot.wait(&self.queues.words(&self.memory), Condition::AtLeast(1), &mut soon, planted())
    }
}
