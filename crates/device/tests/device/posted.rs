//! Entries that were handed to the network and fail there: a completion with an error, later, as a NIC tells it, and not a refusal of the executor.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use trunkline_device::{Carried, Ended, Failure, Far, Key, Mode, Network, Place, Queues, Rma, Words};
use trunkline_device_queue::{Queue, Ticket, WaitError};
use trunkline_engine::rma::{Local as Heap, Source};
use trunkline_proto::rma::atomic::Action;
use trunkline_proto::wire::device_queue::{Entry, Fence, Inline, Local, Remote, Status, Work};

use crate::ranks::{BYTES, Over, Rank, SHM, TABLE, TCP, done, patience, planted, ranks};

/// Operations of a script.
const SCRIPT: u32 = 32;
/// What the specification gives an error to reach all waiters, and how often a script is tried that takes longer.
const BOUND: Duration = Duration::from_millis(100);
const TRIES: u32 = 3;
/// What the network says of an operation that fails.
const WHY: Failure = Failure { status: Status::Network, reason: 77 };
/// Looks between the beginning of such an operation and its end.
const LATE: u32 = 20;

/// A network on which one operation begins and comes to nothing.
struct Breaking {
    inner: Rma<Over>,
    /// Operations until that one, and more where none is to fail.
    left: Arc<AtomicU64>,
    /// The one that has begun, and how many looks it has left.
    doomed: Option<(u64, u32)>,
}

impl Breaking {
    /// Whether this operation is it.
    fn dooms(&mut self, cookie: u64) -> bool {
        let is_it = self.left.load(SeqCst) == 0 && self.doomed.is_none();
        if is_it {
            self.doomed = Some((cookie, LATE));
        }
        is_it
    }

    fn count(&self, carried: Carried) -> Carried {
        if matches!(carried, Carried::Begun(_)) {
            self.left.fetch_sub(1, SeqCst);
        }
        carried
    }
}

impl Network for Breaking {
    fn me(&self) -> u32 {
        self.inner.me()
    }

    fn executes(&self) -> bool {
        self.inner.executes()
    }

    fn put(&mut self, cookie: u64, to: Place, from: Source<'_>) -> Carried {
        let len = match &from {
            Source::Heap(heap) => heap.len,
            Source::Bytes(bytes) => bytes.len() as u64,
        };
        let carried = if self.dooms(cookie) { Carried::Begun(len) } else { self.inner.put(cookie, to, from) };
        self.count(carried)
    }

    fn get(&mut self, cookie: u64, from: Place, into: Heap) -> Carried {
        let carried =
            if self.dooms(cookie) { Carried::Begun(into.len) } else { self.inner.get(cookie, from, into) };
        self.count(carried)
    }

    fn atomic(&mut self, cookie: u64, at: Place, action: Action, fetches: bool) -> Carried {
        let carried = if self.dooms(cookie) {
            Carried::Begun(8)
        } else {
            self.inner.atomic(cookie, at, action, fetches)
        };
        self.count(carried)
    }

    fn go_on(&mut self, ended: &mut Vec<Ended>) -> bool {
        let moved = self.inner.go_on(ended);
        match &mut self.doomed {
            Some((cookie, 0)) => {
                ended.push(Ended { cookie: *cookie, how: Err(WHY) });
                self.doomed = None;
                true
            }
            Some((_, looks)) => {
                *looks -= 1;
                moved
            }
            None => moved,
        }
    }

    fn spoil(&mut self, at: Place, value: u64) -> bool {
        self.inner.spoil(at, value)
    }

    fn hear(&mut self) {
        self.inner.hear();
    }

    fn is_gone(&mut self, member: u32) -> bool {
        self.inner.is_gone(member)
    }

    fn leave(&mut self) {
        self.inner.leave();
    }
}

/// The first rank's queues over such a network, and its own memory there.
struct Sender<'a> {
    rank: &'a Rank,
    queues: Queues<Breaking>,
    key: Key,
    left: Arc<AtomicU64>,
}

impl<'a> Sender<'a> {
    fn new(rank: &'a Rank, mode: Mode) -> Self {
        let left = Arc::new(AtomicU64::new(u64::MAX));
        let inner = Rma::new(Arc::clone(&rank.job)).unwrap();
        let network = Breaking { inner, left: Arc::clone(&left), doomed: None };
        let queues = Queues::start(network, 256, mode, planted()).unwrap();
        let key = queues.add_region(rank.queues.remove_region(rank.keys[0]).unwrap()).unwrap();
        let far =
            Far { key: rank.keys[1], len: BYTES as u64, table: TABLE, near: None, copies: None, words: None };
        queues.learn(1, far).unwrap();
        Self { rank, queues, key, left }
    }

    fn entry(&self, at: u32) -> Entry {
        let here = |addr: u64| Local { addr, key: self.key.bits() };
        let there = |addr: u64| Remote { peer: 1, addr, key: self.rank.keys[1].bits() };
        let place = u64::from(at) * 100;
        match at % 4 {
            0 => Entry::new(Work::Write { from: here(place), to: there(place), len: 100, imm: None }),
            1 => Entry::new(Work::Read { into: here(500_000), from: there(0), len: 64 }),
            2 => Entry::new(Work::WriteInline {
                bytes: Inline::new(&[at as u8; 8]).unwrap(),
                to: there(600_000),
            }),
            // As the signal of a put: behind what was written before it, and here also behind what was read.
            _ => Entry { fence: Fence::ReadsAndAtomics, ..self.rank.signal(1, at, 1) },
        }
    }

    /// Posts the script, whose operation `bad` fails in the network; how long it took until all who wait had been told.
    fn break_at(&self, other: &Rank, bad: u32) -> Duration {
        let queue: Queue<Words> = self.queues.queue(SCRIPT).unwrap();
        let entries: Vec<_> = (0..SCRIPT).map(|at| self.entry(at)).collect();
        let values = || (0..SCRIPT).map(|slot| other.slot(slot).read(&other.words()));
        let before: Vec<_> = values().collect();
        self.left.store(bad.into(), SeqCst);
        let began = Instant::now();
        let last = queue.post(&entries, &mut patience()).unwrap();
        let Err(WaitError::Failed(fault)) = queue.wait(last, &mut patience()) else {
            panic!("entry {bad} failed and nobody was told")
        };
        assert_eq!((fault.first_bad, fault.status, fault.reason), (bad.into(), WHY.status, WHY.reason));
        for at in 0..SCRIPT {
            let ticket = Ticket { index: at.into(), ..last };
            assert_eq!(queue.poll(ticket).is_ok(), at < bad, "entry {at}, {bad} failed");
        }
        for slot in (0..SCRIPT).filter(|at| at % 4 == 3) {
            let wanted = before[slot as usize] + 1;
            let seen = other.wait_signal(slot, wanted);
            if slot < bad {
                assert_eq!(seen, Ok(wanted), "signal {slot}, {bad} failed");
            } else {
                assert!(matches!(seen, Err(WaitError::Poisoned(_))), "signal {slot}, {bad} failed: {seen:?}");
                let poison = other.slot(slot).poison(&other.words()).unwrap();
                assert!(other.slot(slot).heal(&other.words(), poison));
            }
        }
        self.left.store(u64::MAX, SeqCst);
        began.elapsed()
    }
}

/// T8, of each script, by operations that were posted.
#[test]
fn an_error_of_the_network_at_each_place_of_a_script_reaches_every_waiter() {
    for way in [SHM, TCP] {
        let ranks = ranks(2, way);
        // The links are there.
        done(&ranks[0].queues.queue(4).unwrap(), &[ranks[0].signal(1, 4000, 1)]);
        let sender = Sender::new(&ranks[0], way.mode);
        for bad in 0..SCRIPT {
            let mut tries = (0..TRIES).map(|_| sender.break_at(&ranks[1], bad));
            assert!(tries.any(|took| took < BOUND), "{way:?}: operation {bad} took too long {TRIES} times");
        }
        // All is well afterwards.
        let queue = sender.queues.queue(SCRIPT).unwrap();
        done(&queue, &(0..SCRIPT).map(|at| sender.entry(at)).collect::<Vec<_>>());
    }
}
