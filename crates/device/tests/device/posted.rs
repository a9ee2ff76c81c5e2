//! Entries that fail after the network has accepted them: by an error completion, as from a NIC, and not by a refusal.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use trunkline_device::{
    BeginOutcome, DeviceQueues, EntryFailure, EntryKey, ExecutorMode, MemberNetwork, NetworkCompletion,
    PeerRegion, QueueWords, RmaNetwork,
};
use trunkline_device_queue::{DeviceQueue, EntryTicket, WaitError};
use trunkline_engine::rma::HeapAddress;
use trunkline_engine::rma::{HeapRange as Heap, PutSource};
use trunkline_proto::rma::atomic::AtomicAction;
use trunkline_proto::wire::device_queue::{
    EntryFence, EntryStatus, EntryWork, InlineBytes, LocalAddress, PeerAddress, QueueEntry,
};

use crate::ranks::{BYTES, Over, Rank, SHM, TABLE, TCP, done, patience, ranks};

/// Operations of a script.
const SCRIPT: u32 = 32;
/// The time that the specification allows for an error to reach all waiters, and the attempts for a script that takes
/// longer.
const BOUND: Duration = Duration::from_millis(100);
const TRIES: u32 = 3;
/// The network's status of an operation that fails.
const WHY: EntryFailure = EntryFailure { status: EntryStatus::Network, reason: 77 };
/// Polls between the beginning of such an operation and its end.
const LATE: u32 = 20;

/// A network on which one operation begins and then fails.
struct Breaking {
    inner: RmaNetwork<Over>,
    /// Operations before the failing one; larger than the script if no operation is to fail.
    left: Arc<AtomicU64>,
    /// The failing operation, and its remaining polls.
    doomed: Option<(u64, u32)>,
}

impl Breaking {
    /// Returns whether this operation is to fail.
    fn dooms(&mut self, cookie: u64) -> bool {
        let is_it = self.left.load(SeqCst) == 0 && self.doomed.is_none();
        if is_it {
            self.doomed = Some((cookie, LATE));
        }
        is_it
    }

    fn count(&self, carried: BeginOutcome) -> BeginOutcome {
        if matches!(carried, BeginOutcome::Begun(_)) {
            self.left.fetch_sub(1, SeqCst);
        }
        carried
    }
}

impl MemberNetwork for Breaking {
    fn own_rank(&self) -> u32 {
        self.inner.own_rank()
    }

    fn can_execute_locally(&self) -> bool {
        self.inner.can_execute_locally()
    }

    fn put(&mut self, cookie: u64, to: HeapAddress, from: PutSource<'_>) -> BeginOutcome {
        let len = match &from {
            PutSource::Heap(heap) => heap.len,
            PutSource::Bytes(bytes) => bytes.len() as u64,
        };
        let carried =
            if self.dooms(cookie) { BeginOutcome::Begun(len) } else { self.inner.put(cookie, to, from) };
        self.count(carried)
    }

    fn get(&mut self, cookie: u64, from: HeapAddress, into: Heap) -> BeginOutcome {
        let carried = if self.dooms(cookie) {
            BeginOutcome::Begun(into.len)
        } else {
            self.inner.get(cookie, from, into)
        };
        self.count(carried)
    }

    fn post_atomic(
        &mut self,
        cookie: u64,
        at: HeapAddress,
        action: AtomicAction,
        fetches: bool,
    ) -> BeginOutcome {
        let carried = if self.dooms(cookie) {
            BeginOutcome::Begun(8)
        } else {
            self.inner.post_atomic(cookie, at, action, fetches)
        };
        self.count(carried)
    }

    fn make_progress(&mut self, ended: &mut Vec<NetworkCompletion>) -> bool {
        let moved = self.inner.make_progress(ended);
        match &mut self.doomed {
            Some((cookie, 0)) => {
                ended.push(NetworkCompletion { cookie: *cookie, how: Err(WHY) });
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

    fn send_error_word(&mut self, at: HeapAddress, value: u64) -> bool {
        self.inner.send_error_word(at, value)
    }

    fn poll_control_streams(&mut self) {
        self.inner.poll_control_streams();
    }

    fn is_gone(&mut self, member: u32) -> bool {
        self.inner.is_gone(member)
    }

    fn detach_job(&mut self) {
        self.inner.detach_job();
    }
}

/// The first rank's queues over such a network, and its own memory at the other rank.
struct Sender<'a> {
    rank: &'a Rank,
    queues: DeviceQueues<Breaking>,
    key: EntryKey,
    left: Arc<AtomicU64>,
}

impl<'a> Sender<'a> {
    fn new(rank: &'a Rank, mode: ExecutorMode) -> Self {
        let left = Arc::new(AtomicU64::new(u64::MAX));
        let inner = RmaNetwork::new(Arc::clone(&rank.job)).unwrap();
        let network = Breaking { inner, left: Arc::clone(&left), doomed: None };
        let queues = DeviceQueues::start(network, 256, mode).unwrap();
        let key = queues.add_region(rank.queues.remove_region(rank.keys[0]).unwrap()).unwrap();
        let far = PeerRegion {
            key: rank.keys[1],
            len: BYTES as u64,
            table: TABLE,
            near: None,
            copies: None,
            words: None,
        };
        queues.add_remote_region(1, far).unwrap();
        Self { rank, queues, key, left }
    }

    fn entry(&self, at: u32) -> QueueEntry {
        let here = |addr: u64| LocalAddress { addr, key: self.key.to_bits() };
        let there = |addr: u64| PeerAddress { peer: 1, addr, key: self.rank.keys[1].to_bits() };
        let place = u64::from(at) * 100;
        match at % 4 {
            0 => {
                QueueEntry::new(EntryWork::Write { from: here(place), to: there(place), len: 100, imm: None })
            }
            1 => QueueEntry::new(EntryWork::Read { into: here(500_000), from: there(0), len: 64 }),
            2 => QueueEntry::new(EntryWork::WriteInline {
                bytes: InlineBytes::new(&[at as u8; 8]).unwrap(),
                to: there(600_000),
            }),
            // Ordered like the signal of a put: behind earlier writes, and here also behind earlier reads.
            _ => QueueEntry { fence: EntryFence::ReadsAndAtomics, ..self.rank.signal(1, at, 1) },
        }
    }

    /// Posts the script, whose operation `bad` fails in the network. Returns the time until all waiters have failed.
    fn break_at(&self, other: &Rank, bad: u32) -> Duration {
        let queue: DeviceQueue<QueueWords> = self.queues.make_queue(SCRIPT).unwrap();
        let entries: Vec<_> = (0..SCRIPT).map(|at| self.entry(at)).collect();
        let values = || (0..SCRIPT).map(|slot| other.slot(slot).read_value(&other.words()));
        let before: Vec<_> = values().collect();
        self.left.store(bad.into(), SeqCst);
        let began = Instant::now();
        let last = queue.post(&entries, &mut patience()).unwrap();
        let Err(WaitError::Failed(fault)) = queue.wait(last, &mut patience()) else {
            panic!("entry {bad} failed, but its waiters did not")
        };
        assert_eq!((fault.first_bad, fault.status, fault.reason), (bad.into(), WHY.status, WHY.reason));
        for at in 0..SCRIPT {
            let ticket = EntryTicket { index: at.into(), ..last };
            assert_eq!(queue.poll(ticket).is_ok(), at < bad, "entry {at}, {bad} failed");
        }
        for slot in (0..SCRIPT).filter(|at| at % 4 == 3) {
            let wanted = before[slot as usize] + 1;
            let seen = other.wait_signal(slot, wanted);
            if slot < bad {
                assert_eq!(seen, Ok(wanted), "signal {slot}, {bad} failed");
            } else {
                assert!(matches!(seen, Err(WaitError::Poisoned(_))), "signal {slot}, {bad} failed: {seen:?}");
                let poison = other.slot(slot).read_poison(&other.words()).unwrap();
                assert!(other.slot(slot).clear_poison(&other.words(), poison));
            }
        }
        self.left.store(u64::MAX, SeqCst);
        began.elapsed()
    }
}

/// Acceptance case T8, for each script, by operations that were posted.
#[test]
fn network_error_at_any_entry_fails_every_waiter() {
    for way in [SHM, TCP] {
        let ranks = ranks(2, way);
        // Connects the links.
        done(&ranks[0].queues.make_queue(4).unwrap(), &[ranks[0].signal(1, 4000, 1)]);
        let sender = Sender::new(&ranks[0], way.mode);
        for bad in 0..SCRIPT {
            let mut tries = (0..TRIES).map(|_| sender.break_at(&ranks[1], bad));
            assert!(tries.any(|took| took < BOUND), "{way:?}: operation {bad} took too long {TRIES} times");
        }
        // Later operations succeed.
        let queue = sender.queues.make_queue(SCRIPT).unwrap();
        done(&queue, &(0..SCRIPT).map(|at| sender.entry(at)).collect::<Vec<_>>());
    }
}
