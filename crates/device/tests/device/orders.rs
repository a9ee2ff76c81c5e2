//! All orders of events in which a put into a window in device memory can meet readers of the same bytes: gets of other
//! ranks, and puts of the window's owner. The executors, proxies and owners are the real ones. The network and the
//! device's copies are lists of begun operations. Each run lets them end in another order, until all orders were tried.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use trunkline_device::{
    BeginOutcome, DeviceCopier, EntryFailure, EntryKey, EntryRegion, ErrorTable, LocalPart, MemberNetwork,
    NetworkCompletion, PeerRegion, ProxyNetwork, QueueExecutor, QueueWords, RemotePart,
};
use trunkline_device_queue::{DeviceQueue, EntryTicket, PollLimit, WaitError};
use trunkline_engine::rma::HeapAddress;
use trunkline_engine::rma::{HeapRange as Heap, PutSource};
use trunkline_mem::MemoryRange;
use trunkline_mem::gpu::MemoryLocation;
use trunkline_proto::rma::atomic::AtomicAction;
use trunkline_proto::wire::device_queue::{
    EntryStatus, EntryWork, LocalAddress, PeerAddress, PostRooms, QueueEntry,
};

const RANKS: usize = 3;
/// The rank whose part is in a device's memory.
pub(crate) const OWNER: usize = 1;
const WINDOW: u64 = 4096;
const OLD: u8 = 1;
const NEW: u8 = 2;
/// The bytes that all scenarios use.
const AT: u64 = 64;
const LEN: u64 = 64;

pub(crate) fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An operation that has begun.
pub(crate) struct Begun {
    rank: usize,
    cookie: u64,
    from: (MemoryRange, u64),
    to: (MemoryRange, u64),
    len: u64,
}

impl Begun {
    fn perform(&self) {
        let Self { from, to, len, .. } = self;
        to.0.copy_from(to.1, &from.0, from.1, *len).unwrap();
    }
}

/// All operations in progress between the ranks, and the ended ones, by rank.
pub(crate) struct Wire {
    pub(crate) heaps: Vec<MemoryRange>,
    pub(crate) begun: Vec<Begun>,
    ended: Vec<Vec<NetworkCompletion>>,
    /// Whether the network begins no further operations.
    pub(crate) is_lost: bool,
}

struct Slow {
    me: usize,
    wire: Arc<Mutex<Wire>>,
}

impl Slow {
    fn begin(&self, cookie: u64, [from, to]: [(usize, u64); 2], len: u64) -> BeginOutcome {
        let mut wire = lock(&self.wire);
        if wire.is_lost {
            return BeginOutcome::Failed(EntryFailure { status: EntryStatus::Network, reason: 0 });
        }
        let [from, to] = [from, to].map(|(rank, at)| (wire.heaps[rank].clone(), at));
        wire.begun.push(Begun { rank: self.me, cookie, from, to, len });
        BeginOutcome::Begun(len)
    }
}

impl MemberNetwork for Slow {
    fn own_rank(&self) -> u32 {
        self.me as u32
    }

    fn can_execute_locally(&self) -> bool {
        true
    }

    fn put(&mut self, cookie: u64, to: HeapAddress, from: PutSource<'_>) -> BeginOutcome {
        let PutSource::Heap(from) = from else { panic!("the test puts no bytes by value") };
        self.begin(cookie, [(self.me, from.offset), (to.member as usize, to.offset)], from.len)
    }

    fn get(&mut self, cookie: u64, from: HeapAddress, into: Heap) -> BeginOutcome {
        self.begin(cookie, [(from.member as usize, from.offset), (self.me, into.offset)], into.len)
    }

    fn post_atomic(&mut self, _: u64, _: HeapAddress, _: AtomicAction, _: bool) -> BeginOutcome {
        panic!("the test changes no words over the network")
    }

    fn make_progress(&mut self, ended: &mut Vec<NetworkCompletion>) -> bool {
        let mut wire = lock(&self.wire);
        let before = ended.len();
        ended.append(&mut wire.ended[self.me]);
        ended.len() > before
    }

    fn send_error_word(&mut self, _: HeapAddress, _: u64) -> bool {
        false
    }

    fn is_gone(&mut self, _: u32) -> bool {
        false
    }
}

/// The only stream of a device, whose copies end in order; and the ended copies, by user.
#[derive(Default)]
pub(crate) struct CopyStream {
    pub(crate) begun: VecDeque<Begun>,
    /// The number of copies that ever began.
    pub(crate) count: u32,
    ended: [Vec<(u64, Result<(), u32>)>; 2],
}

/// A user of the stream.
struct StreamUser(Arc<Mutex<CopyStream>>, usize);

impl std::fmt::Debug for StreamUser {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "StreamUser({})", self.1)
    }
}

impl DeviceCopier for StreamUser {
    fn begin_copy(&self, cookie: u64, from: MemoryLocation<'_>, to: MemoryLocation<'_>, len: u64) -> bool {
        let [from, to] = [from, to].map(|at| (at.memory.clone(), at.offset));
        let mut stream = lock(&self.0);
        stream.begun.push_back(Begun { rank: self.1, cookie, from, to, len });
        stream.count += 1;
        true
    }

    fn take_ended(&self, into: &mut Vec<(u64, Result<(), u32>)>) {
        into.append(&mut lock(&self.0).ended[self.1]);
    }
}

pub(crate) struct Job {
    executors: Vec<QueueExecutor<ProxyNetwork<Slow>>>,
    queues: Vec<DeviceQueue<QueueWords>>,
    keys: Vec<EntryKey>,
    pub(crate) wire: Arc<Mutex<Wire>>,
    pub(crate) stream: Arc<Mutex<CopyStream>>,
    /// The part of the owner.
    pub(crate) device: MemoryRange,
}

impl Job {
    /// Creates a job with a window of `len` bytes; the network does not reach its owner's part.
    pub(crate) fn new(window: u64) -> Self {
        Self::build(window, false)
    }

    /// Creates a job whose network reaches the owner's part: the part is registered, without host memory beside it.
    pub(crate) fn reached(window: u64) -> Self {
        Self::build(window, true)
    }

    fn build(window: u64, is_reached: bool) -> Self {
        let rooms = PostRooms::new(window + LocalPart::boxes_bytes(RANKS as u64), RANKS as u32, window);
        let bytes = (rooms.room_offset(0, 0) + rooms.total_bytes()) as usize;
        let mut heaps: Vec<MemoryRange> = (0..RANKS).map(|_| MemoryRange::heap(bytes)).collect();
        let device = MemoryRange::heap(window as usize);
        device.write(0, &vec![OLD; window as usize]).unwrap();
        if is_reached {
            heaps[OWNER] = device.clone();
        }
        let (begun, ended) = (Vec::new(), (0..RANKS).map(|_| Vec::new()).collect());
        let wire = Arc::new(Mutex::new(Wire { heaps: heaps.clone(), begun, ended, is_lost: false }));
        let stream = Arc::new(Mutex::new(CopyStream::default()));
        let user = |nth| Arc::new(StreamUser(Arc::clone(&stream), nth)) as Arc<dyn DeviceCopier>;
        let table = ErrorTable::default();
        let (mut executors, mut queues, mut keys) = (Vec::new(), Vec::new(), Vec::new());
        for (me, memory) in heaps.iter().enumerate() {
            let network = ProxyNetwork::new(Slow { me, wire: Arc::clone(&wire) }).unwrap();
            let mut executor = QueueExecutor::new(network, 4).unwrap();
            let own = (me == OWNER).then(|| (device.clone(), user(1)));
            let region = match &own {
                Some(_) => {
                    let (copies, words) = (Some(user(0)), Some(memory.clone()).filter(|_| !is_reached));
                    EntryRegion { memory: device.clone(), heap: 0, table, copies, words }
                }
                None => EntryRegion::of_host(memory.clone(), 0, table),
            };
            let key = executor.add_region(region).unwrap();
            if !is_reached {
                executor.add_rooms(key, rooms).unwrap();
                let peer =
                    |rank| RemotePart { heap: 0, boxes: window, is_posted: rank == OWNER, slots: Vec::new() };
                let (memory, peers) = (memory.clone(), (0..RANKS).map(peer).collect());
                let part = LocalPart { heap: 0, memory, boxes: window, rooms, device: own, peers };
                executor.network_mut().open_window(part).unwrap();
            }
            queues.push(executor.make_queue(64, 0).unwrap());
            executors.push(executor);
            keys.push(key);
        }
        for (me, executor) in executors.iter_mut().enumerate() {
            for (other, key) in keys.iter().enumerate().filter(|(other, _)| *other != me) {
                executor
                    .add_remote_region(other as u32, PeerRegion::of_host(*key, window, table, None))
                    .unwrap();
            }
        }
        Self { executors, queues, keys, wire, stream, device }
    }

    pub(crate) fn here(&self, rank: usize, addr: u64) -> LocalAddress {
        LocalAddress { addr, key: self.keys[rank].to_bits() }
    }

    pub(crate) fn there(&self, rank: usize, addr: u64) -> PeerAddress {
        PeerAddress { peer: rank as u32, addr, key: self.keys[rank].to_bits() }
    }

    pub(crate) fn post(&self, rank: usize, work: EntryWork) -> EntryTicket {
        self.queues[rank].post(&[QueueEntry::new(work)], &mut PollLimit(1)).unwrap()
    }

    /// Whether an entry has completed successfully.
    pub(crate) fn is_done(&self, rank: usize, ticket: EntryTicket) -> bool {
        match self.outcome(rank, ticket) {
            Ok(()) => true,
            Err(WaitError::Timeout) => false,
            Err(error) => panic!("an entry of rank {rank}: {error}"),
        }
    }

    /// Returns how an entry has ended, if it has.
    pub(crate) fn outcome(&self, rank: usize, ticket: EntryTicket) -> Result<(), WaitError> {
        self.queues[rank].wait(ticket, &mut PollLimit(1))
    }

    /// Makes progress at all ranks until none can continue.
    pub(crate) fn settle(&mut self) {
        while self
            .executors
            .iter_mut()
            .fold(false, |moved, one| moved | one.run_pass().moved | one.serve_members())
        {}
    }

    /// Returns the number of events that could be the next.
    pub(crate) fn choices(&self) -> usize {
        lock(&self.wire).begun.len() + usize::from(!lock(&self.stream).begun.is_empty())
    }

    /// Returns the event whose delay keeps bytes in flight longest: a copy, or else an operation that is not a get.
    fn longest(&self) -> usize {
        let (wire, stream) = (lock(&self.wire), lock(&self.stream));
        let is_request = |one: &Begun| one.rank != 2 || one.to.0.addr() == wire.heaps[OWNER].addr();
        let first = wire.begun.iter().position(is_request).unwrap_or(0);
        if stream.begun.is_empty() { first } else { wire.begun.len() }
    }

    /// Lets one of these events happen.
    pub(crate) fn happen(&self, choice: usize) {
        let mut wire = lock(&self.wire);
        if choice < wire.begun.len() {
            let one = wire.begun.remove(choice);
            one.perform();
            wire.ended[one.rank].push(NetworkCompletion { cookie: one.cookie, how: Ok(0) });
        } else {
            let mut stream = lock(&self.stream);
            let one = stream.begun.pop_front().unwrap();
            one.perform();
            stream.ended[one.rank].push((one.cookie, Ok(())));
        }
    }
}

fn bytes(memory: &MemoryRange, at: u64) -> [u8; LEN as usize] {
    let mut bytes = [0; LEN as usize];
    memory.read(at, &mut bytes).unwrap();
    bytes
}

/// An operation that reads the bytes that rank 0 puts.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Reader {
    /// A get by rank 2.
    Get,
    /// A put of these bytes by their owner, to rank 2.
    OwnPut,
}

/// Runs with events in one order. `path` lists each choice and its number of alternatives; the run extends it by first
/// choices.
fn run(make: fn(u64) -> Job, readers: &[Reader], path: &mut Vec<(usize, usize)>) {
    let mut job = make(WINDOW);
    lock(&job.wire).heaps[0].write(0, &[NEW; LEN as usize]).unwrap();
    let put = EntryWork::Write { from: job.here(0, 0), to: job.there(OWNER, AT), len: LEN, imm: None };
    let put = job.post(0, put);
    let read = |(nth, reader): (u64, &Reader)| {
        let into = nth * LEN;
        match reader {
            Reader::Get => {
                let read = EntryWork::Read { into: job.here(2, into), from: job.there(OWNER, AT), len: LEN };
                (2, job.post(2, read), into)
            }
            Reader::OwnPut => {
                let (from, to) = (job.here(OWNER, AT), job.there(2, into));
                (OWNER, job.post(OWNER, EntryWork::Write { from, to, len: LEN, imm: None }), into)
            }
        }
    };
    let reads: Vec<_> = (0..).zip(readers).map(read).collect();
    let mut step = 0;
    loop {
        job.settle();
        if job.is_done(0, put) {
            assert_eq!(
                bytes(&job.device, AT),
                [NEW; LEN as usize],
                "the bytes of a completed put must be visible: {path:?}"
            );
        }
        let choices = job.choices();
        if choices == 0 {
            break;
        }
        if path.len() == step {
            path.push((0, choices));
        }
        assert_eq!(path[step].1, choices, "a run must repeat the choices of its path");
        job.happen(path[step].0);
        step += 1;
    }
    assert!(job.is_done(0, put));
    for (rank, ticket, into) in reads {
        assert!(job.is_done(rank, ticket), "{readers:?}: {path:?}");
        let found = bytes(&lock(&job.wire).heaps[2], into);
        assert!([OLD, NEW].iter().any(|all| found == [*all; LEN as usize]), "{found:?}: {path:?}");
    }
}

/// Tries all orders. Returns their number.
fn explore(make: fn(u64) -> Job, readers: &[Reader]) -> u32 {
    let (mut path, mut runs) = (Vec::new(), 0);
    loop {
        run(make, readers, &mut path);
        runs += 1;
        while path.last().is_some_and(|(choice, choices)| choice + 1 == *choices) {
            path.pop();
        }
        match path.last_mut() {
            Some((choice, _)) => *choice += 1,
            None => return runs,
        }
    }
}

#[test]
fn no_reader_undoes_a_put_in_any_order() {
    use Reader::{Get, OwnPut};
    for (readers, least) in [(&[Get][..], 50), (&[OwnPut], 10), (&[Get, OwnPut], 1000)] {
        let runs = explore(Job::new, readers);
        println!("{readers:?}: {runs} orders");
        assert!(runs >= least, "{readers:?}: {runs} orders");
    }
}

/// If the network reaches the part, its bytes have one place, and each operation has one event.
#[test]
fn no_reader_undoes_puts_into_reached_parts() {
    use Reader::{Get, OwnPut};
    for (readers, orders) in [(&[Get][..], 2), (&[OwnPut], 2), (&[Get, OwnPut], 6)] {
        assert_eq!(explore(Job::reached, readers), orders, "{readers:?}");
    }
}

/// More reads than bounce buffers, which end as late as possible, or in random order: each returns its own bytes.
#[test]
fn bounce_buffer_is_reused_after_its_bytes_left() {
    const READS: u64 = 40;
    for seed in 1..=20_u64 {
        let mut job = Job::new(WINDOW);
        for nth in 0..READS {
            job.device.write(nth * LEN, &[nth as u8 + 3; LEN as usize]).unwrap();
            let at = nth * LEN;
            if seed % 2 == 0 {
                let (from, to) = (job.here(OWNER, at), job.there(2, at));
                job.post(OWNER, EntryWork::Write { from, to, len: LEN, imm: None });
            } else {
                job.post(2, EntryWork::Read { into: job.here(2, at), from: job.there(OWNER, at), len: LEN });
            }
        }
        let mut dice = seed;
        loop {
            job.settle();
            let choices = job.choices();
            if choices == 0 {
                break;
            }
            dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let chance = (dice >> 33) as usize % choices;
            job.happen(if seed < 3 { job.longest() } else { chance });
        }
        for nth in 0..READS {
            let found = bytes(&lock(&job.wire).heaps[2], nth * LEN);
            assert_eq!(found, [nth as u8 + 3; LEN as usize], "seed {seed}, read {nth}");
        }
    }
}
