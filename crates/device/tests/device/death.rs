//! Acceptance case T19: the other rank is another process, which is stopped or dies. Also executors that end, after
//! which another one starts, and error words that only the control stream can deliver.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use trunkline_device::{
    BeginOutcome, DeviceQueues, EntryFailure, EntryKey, EntryRegion, ExecutorMode, MemberNetwork,
    NetworkCompletion, PeerRegion, QueueExecutor, QueueWords, RmaNetwork,
};
use trunkline_device_queue::{DeviceQueue, SlotCondition, SlotLayout, WaitError};
use trunkline_engine::host::UnixHost;
use trunkline_engine::rma::HeapAddress;
use trunkline_engine::rma::{HeapRange as Heap, PutSource, RmaJob};
use trunkline_engine::{CommNics, EngineParams};
use trunkline_mem::MemoryRange;
use trunkline_proto::rma::atomic::AtomicAction;
use trunkline_proto::wire::device_queue::{
    AtomicChange, CompanionWord, CounterUpdate, EntryStatus, EntryWork, LocalAddress, PeerAddress, QueueEntry,
};
use trunkline_proto::wire::dial::CARD_BYTES;
use trunkline_softnic::{SoftConfig, SoftFabric, WireMode};

use crate::ranks::{
    BYTES, Over, Rank, SHM, SLOTS, SLOTS_COUNT, TABLE, TCP, bytes_of, done, patience, pattern, ranks,
};

const BOUND: Duration = Duration::from_millis(100);
/// The key of the first region of any rank: number 0, generation 1.
const FIRST: EntryKey = EntryKey::from_bits(1 << 8);
const CARD: &str = "TRUNKLINE_TEST_CARD";
const WIRE: &str = "TRUNKLINE_TEST_WIRE";

fn job(tcp: bool) -> RmaJob<SoftFabric, UnixHost> {
    let wire = if tcp { WireMode::Tcp } else { WireMode::Auto };
    let fabric = SoftFabric::new(SoftConfig { wire, ..SoftConfig::default() }).unwrap();
    RmaJob::new(fabric, UnixHost::new(|_, _| {}), EngineParams::default(), CommNics::from(0)).unwrap()
}

fn rank(job: RmaJob<SoftFabric, UnixHost>, me: u32, cards: &[[u8; CARD_BYTES]]) -> Rank {
    job.set_members(me, cards).unwrap();
    let memory = MemoryRange::heap(BYTES);
    let heap = job.add_heap(memory.clone()).unwrap();
    let job: Over = Arc::new(job);
    let queues =
        DeviceQueues::start(RmaNetwork::new(Arc::clone(&job)).unwrap(), 64, ExecutorMode::Thread).unwrap();
    let own = queues.add_region(EntryRegion {
        memory: memory.clone(),
        heap,
        table: TABLE,
        copies: None,
        words: None,
    });
    assert_eq!(own, Some(FIRST));
    queues
        .add_remote_region(
            1 - me,
            PeerRegion { key: FIRST, len: BYTES as u64, table: TABLE, near: None, copies: None, words: None },
        )
        .unwrap();
    queues.watch_signals(1 - me, &memory, SlotLayout::Poisoned { slots: SLOTS, count: SLOTS_COUNT }).unwrap();
    Rank { me, job, queues, memory, keys: vec![FIRST; 2] }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn card(text: &str) -> [u8; CARD_BYTES] {
    let bytes: Vec<u8> =
        (0..text.len() / 2).map(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap()).collect();
    bytes.try_into().unwrap()
}

/// Rank 1, in a process started with that role. It raises signal 0 of the other rank until it is killed, and prints how
/// the wait for its own signal 1 ended.
#[test]
fn as_the_other_process() {
    let Ok(theirs) = std::env::var(CARD) else { return };
    let job = job(std::env::var(WIRE).unwrap() == "tcp");
    let mine = job.process_card();
    println!("card {}", hex(&mine));
    let rank = rank(job, 1, &[card(&theirs), mine]);
    std::thread::scope(|scope| {
        let waits = &rank;
        scope.spawn(move || {
            let heard = waits.wait_signal(1, 1);
            println!("heard {heard:?}");
        });
        let queue = rank.queues.make_queue(16).unwrap();
        let began = Instant::now();
        for round in 0_u64.. {
            rank.memory.write(0, &pattern(5000, round as u8)).unwrap();
            let entries = [rank.write(0, 0, 0, 5000), rank.signal(0, 0, 1)];
            let Ok(ticket) = queue.post(&entries, &mut patience()) else { return };
            if queue.wait(ticket, &mut patience()).is_err() || began.elapsed() > Duration::from_secs(30) {
                return;
            }
        }
    });
}

struct Other {
    child: Child,
    lines: BufReader<std::process::ChildStdout>,
}

impl Other {
    fn line(&mut self, begin: &str) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert!(
                self.lines.read_line(&mut line).unwrap() > 0,
                "the other process ended before it printed {begin:?}"
            );
            if let Some((_, rest)) = line.split_once(begin) {
                return rest.trim().to_owned();
            }
        }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn two(tcp: bool) -> (Rank, Other) {
    let job = job(tcp);
    let mine = job.process_card();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "death::as_the_other_process", "--nocapture"]);
    command.env(CARD, hex(&mine)).env(WIRE, if tcp { "tcp" } else { "shm" }).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap());
    let mut other = Other { child, lines };
    let theirs = card(&other.line("card "));
    (rank(job, 0, &[mine, theirs]), other)
}

#[test]
fn processes_put_to_each_other() {
    for tcp in [false, true] {
        let (rank, _other) = two(tcp);
        let mut seen = 0;
        for _ in 0..20 {
            seen = rank.wait_signal(0, seen + 1).unwrap();
        }
        let queue = rank.queues.make_queue(8).unwrap();
        rank.memory.write(1 << 19, &pattern(300_000, 5)).unwrap();
        done(&queue, &[rank.write(1 << 19, 1, 1 << 19, 300_000), rank.read(1, 1 << 19, 3 << 20, 300_000)]);
        assert!(bytes_of(&rank.memory, 3 << 20, 300_000) == pattern(300_000, 5));
    }
}

#[test]
fn death_of_a_peer_fails_every_waiter() {
    for tcp in [false, true] {
        let (rank, other) = two(tcp);
        rank.wait_signal(0, 3).unwrap();
        let queue = rank.queues.make_queue(64).unwrap();
        done(&queue, &[rank.signal(1, 7, 1)]);
        let died = std::thread::scope(|scope| {
            let signal = scope.spawn(|| {
                let seen = rank.wait_signal(40, 1);
                (seen, Instant::now())
            });
            let tickets = scope.spawn(|| {
                loop {
                    let entries = [rank.write(0, 1, 100_000, 50_000), rank.signal(1, 7, 1)];
                    let ticket = queue.post(&entries, &mut patience());
                    let ended = ticket.map(|ticket| queue.wait(ticket, &mut patience()));
                    if !matches!(ended, Ok(Ok(()))) {
                        return (ended, Instant::now());
                    }
                }
            });
            std::thread::sleep(Duration::from_millis(30));
            other.signal(Signal::KILL);
            let died = Instant::now();
            let (seen, told) = signal.join().unwrap();
            let Err(WaitError::Poisoned(poison)) = seen else { panic!("tcp {tcp}: {seen:?}") };
            assert_eq!((poison.status, poison.queue), (EntryStatus::PeerDead, u32::MAX));
            let (ended, failed) = tickets.join().unwrap();
            let is_told = matches!(ended, Ok(Err(WaitError::Failed(_))) | Err(_));
            assert!(is_told, "tcp {tcp}: {ended:?}");
            println!("tcp {tcp}: signal failed after {:?}, ticket after {:?}", told - died, failed - died);
            assert!(told - died < BOUND && failed - died < BOUND);
            died
        });
        // Posts after the death fail, too.
        let late = rank.queues.make_queue(8).unwrap();
        let ticket = late.post(&[rank.signal(1, 7, 1)], &mut patience()).unwrap();
        assert!(matches!(late.wait(ticket, &mut patience()), Err(WaitError::Failed(_))));
        assert!(died.elapsed() < Duration::from_secs(5));
    }
}

/// The stopped rank reads nothing, so its own waiter sees no failure yet; waiters of this rank fail at once.
#[test]
fn stopped_peer_delays_no_waiter_and_fails_later() {
    for tcp in [false, true] {
        let (rank, mut other) = two(tcp);
        rank.wait_signal(0, 3).unwrap();
        let queue = rank.queues.make_queue(8).unwrap();
        done(&queue, &[rank.signal(1, 7, 1)]);
        other.signal(Signal::STOP);
        let nowhere = LocalAddress { addr: u64::MAX - 8, key: FIRST.to_bits() };
        let broken =
            QueueEntry::new(EntryWork::Write { from: nowhere, to: rank.at(1, 0), len: 8, imm: None });
        let began = Instant::now();
        let ticket = queue.post(&[broken, rank.signal(1, 1, 1)], &mut patience()).unwrap();
        let Err(WaitError::Failed(fault)) = queue.wait(ticket, &mut patience()) else { panic!("tcp {tcp}") };
        assert_eq!(fault.status, EntryStatus::Access);
        assert!(began.elapsed() < BOUND, "tcp {tcp}: {:?}", began.elapsed());
        std::thread::sleep(Duration::from_millis(60));
        other.signal(Signal::CONT);
        let heard = other.line("heard ");
        assert!(heard.contains("Poisoned") && heard.contains("Access"), "tcp {tcp}: {heard}");
    }
}

/// Links whose atomics all fail, while control streams work.
struct Broken(RmaNetwork<Over>);

impl MemberNetwork for Broken {
    fn own_rank(&self) -> u32 {
        self.0.own_rank()
    }

    fn can_execute_locally(&self) -> bool {
        true
    }

    fn put(&mut self, _: u64, _: HeapAddress, _: PutSource<'_>) -> BeginOutcome {
        BeginOutcome::Failed(EntryFailure { status: EntryStatus::Network, reason: 42 })
    }

    fn get(&mut self, _: u64, _: HeapAddress, _: Heap) -> BeginOutcome {
        BeginOutcome::Failed(EntryFailure { status: EntryStatus::Network, reason: 43 })
    }

    fn post_atomic(&mut self, _: u64, _: HeapAddress, _: AtomicAction, _: bool) -> BeginOutcome {
        BeginOutcome::Failed(EntryFailure { status: EntryStatus::Network, reason: 44 })
    }

    fn make_progress(&mut self, ended: &mut Vec<NetworkCompletion>) -> bool {
        self.0.make_progress(ended)
    }

    fn send_error_word(&mut self, at: HeapAddress, value: u64) -> bool {
        self.0.send_error_word(at, value)
    }

    fn poll_control_streams(&mut self) {
        self.0.poll_control_streams();
    }

    fn is_gone(&mut self, member: u32) -> bool {
        self.0.is_gone(member)
    }
}

#[test]
fn remote_waiter_fails_by_the_control_stream() {
    for way in [SHM, TCP] {
        let ranks = ranks(2, way);
        let job = Arc::clone(&ranks[0].job);
        let queues =
            DeviceQueues::start(Broken(RmaNetwork::new(job).unwrap()), 4, ExecutorMode::Thread).unwrap();
        let key = ranks[1].keys[1];
        queues
            .add_remote_region(
                1,
                PeerRegion { key, len: BYTES as u64, table: TABLE, near: None, copies: None, words: None },
            )
            .unwrap();
        let queue = queues.make_queue(8).unwrap();
        let began = Instant::now();
        let ticket = queue.post(&[ranks[0].signal(1, 9, 1)], &mut patience()).unwrap();
        let Err(WaitError::Failed(fault)) = queue.wait(ticket, &mut patience()) else { panic!("{way:?}") };
        assert_eq!((fault.status, fault.reason), (EntryStatus::Network, 44));
        let seen = ranks[1].wait_signal(9, 1);
        println!("{way:?}: failed after {:?}", began.elapsed());
        let Err(WaitError::Poisoned(poison)) = seen else { panic!("{way:?}: {seen:?}") };
        assert_eq!((poison.status, poison.queue), (EntryStatus::Network, queue.queue_shape().number()));
        assert!(began.elapsed() < BOUND, "{way:?}: {:?}", began.elapsed());
        // An error word that is set is not overwritten.
        let slot = ranks[1].slot(9);
        assert!(ranks[0].job.send_error_word(1, 0, slot.error, 77).unwrap());
        assert!(ranks[0].job.send_error_word(1, 0, slot.error + 16, 78).unwrap());
        let until = SlotCondition::AtLeast(1);
        let _ = ranks[1].slot(10).wait(&ranks[1].words(), until, &mut patience());
        assert_eq!(ranks[1].memory.load(slot.error).unwrap(), poison.to_word());
        assert_eq!(ranks[1].memory.load(slot.error + 16).unwrap(), 78);
    }
}

/// Replaces a rank's executor by another one, and exchanges keys in both directions again.
fn begin_anew(ranks: &mut [Rank], which: usize, mode: ExecutorMode) {
    let network = RmaNetwork::new(Arc::clone(&ranks[which].job)).unwrap();
    let queues = DeviceQueues::start(network, 64, mode).unwrap();
    drop(std::mem::replace(&mut ranks[which].queues, queues));
    let (other, memory) = (1 - which, ranks[which].memory.clone());
    let region = EntryRegion { memory, heap: 0, table: TABLE, copies: None, words: None };
    assert_eq!(ranks[which].queues.add_region(region), Some(ranks[which].keys[which]));
    let key = ranks[which].keys[other];
    let far = PeerRegion { key, len: BYTES as u64, table: TABLE, near: None, copies: None, words: None };
    ranks[which].queues.add_remote_region(other as u32, far).unwrap();
}

#[test]
fn ended_executor_frees_its_contexts_and_links() {
    for way in [SHM, TCP] {
        let mut ranks = ranks(2, way);
        let idle = ranks[1].job.in_use();
        // More executors than a process has room for contexts.
        for round in 1..=80 {
            let queue = ranks[0].queues.make_queue(8).unwrap();
            done(&queue, &[ranks[0].write(0, 1, 0, 1000), ranks[0].signal(1, 0, 1)]);
            assert_eq!(ranks[1].wait_signal(0, round), Ok(round));
            if round % 8 == 0 {
                let back = ranks[1].queues.make_queue(8).unwrap();
                done(&back, &[ranks[1].write(0, 0, 5000, 1000), ranks[1].signal(0, 0, 1)]);
                begin_anew(&mut ranks, 1, way.mode);
            }
            begin_anew(&mut ranks, 0, way.mode);
        }
        let until = Instant::now() + Duration::from_secs(5);
        while ranks[1].job.in_use().0 > idle.0 {
            assert!(
                Instant::now() < until,
                "{way:?}: {:?} links of ended executors are still served",
                ranks[1].job.in_use()
            );
            ranks[1].job.serve_members();
        }
    }
}

/// Users of a queue whose executor has ended get an error, also for entries that were in progress.
#[test]
fn ended_executor_fails_its_waiters() {
    for mode in [ExecutorMode::Thread, ExecutorMode::Inline] {
        let mut ranks = ranks(2, crate::ranks::Way { mode, ..SHM });
        let queue = ranks[0].queues.make_queue(8).unwrap();
        done(&queue, &[ranks[0].signal(0, 0, 1)]);
        let other = ranks[0].queues.make_queue(8).unwrap();
        let never = QueueEntry::new(EntryWork::Wait { queue: other.queue_shape().number(), index: 5 });
        let ticket = queue.post(&[never], &mut patience()).unwrap();
        let began = Instant::now();
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| queue.wait(ticket, &mut patience()));
            std::thread::sleep(Duration::from_millis(10));
            begin_anew(&mut ranks, 0, mode);
            // The poll runs before the executor has flushed the entry, or after it.
            let ended = waits.join().unwrap();
            let status = match ended {
                Err(WaitError::Aborted(why)) => why.status,
                Err(WaitError::Failed(fault)) => fault.status,
                _ => panic!("{mode:?}: {ended:?}"),
            };
            assert_eq!(status, EntryStatus::Abandoned);
        });
        assert!(began.elapsed() < BOUND, "{mode:?}: {:?}", began.elapsed());
        // Later posts fail, too.
        if let Ok(ticket) = queue.post(&[ranks[0].signal(0, 0, 1)], &mut patience()) {
            let ended = queue.wait(ticket, &mut patience());
            assert!(matches!(ended, Err(WaitError::Aborted(_) | WaitError::Failed(_))), "{ended:?}");
        }
        assert_eq!(
            ranks[0].memory.load(ranks[0].slot(0).value),
            Ok(1),
            "an entry posted after the end must not be executed"
        );
    }
}

/// A network whose operations never end, and which records the error words sent by the control stream.
#[derive(Debug)]
struct Stuck(Arc<Mutex<Vec<u64>>>);

impl MemberNetwork for Stuck {
    fn own_rank(&self) -> u32 {
        0
    }

    fn can_execute_locally(&self) -> bool {
        true
    }

    fn put(&mut self, _: u64, _: HeapAddress, from: PutSource<'_>) -> BeginOutcome {
        let PutSource::Heap(from) = from else { panic!("the test puts no bytes by value") };
        BeginOutcome::Begun(from.len)
    }

    fn get(&mut self, _: u64, _: HeapAddress, into: Heap) -> BeginOutcome {
        BeginOutcome::Begun(into.len)
    }

    fn post_atomic(&mut self, _: u64, _: HeapAddress, _: AtomicAction, _: bool) -> BeginOutcome {
        BeginOutcome::Begun(0)
    }

    fn make_progress(&mut self, _: &mut Vec<NetworkCompletion>) -> bool {
        false
    }

    fn send_error_word(&mut self, at: HeapAddress, _: u64) -> bool {
        self.0.lock().unwrap().push(at.offset);
        true
    }

    fn is_gone(&mut self, _: u32) -> bool {
        false
    }
}

/// Signals and counters that can no longer be raised are poisoned, for all entries in progress and behind them.
#[test]
fn ended_executor_poisons_pending_signals() {
    const SIGNALS: u32 = 300;
    for mode in [ExecutorMode::Thread, ExecutorMode::Inline] {
        let said = Arc::new(Mutex::new(Vec::new()));
        let queues = DeviceQueues::start(Stuck(Arc::clone(&said)), 4, mode).unwrap();
        let memory = MemoryRange::heap(BYTES);
        let region = EntryRegion { memory: memory.clone(), heap: 0, table: TABLE, copies: None, words: None };
        let key = queues.add_region(region).unwrap();
        let far = PeerRegion { key, len: BYTES as u64, table: TABLE, near: None, copies: None, words: None };
        queues.add_remote_region(1, far).unwrap();
        let queue = queues.make_queue(512).unwrap();
        let slot =
            |number| SlotLayout::Poisoned { slots: SLOTS, count: SLOTS_COUNT }.slot_at(number).unwrap();
        let bytes = |at| {
            (
                LocalAddress { addr: at, key: key.to_bits() },
                PeerAddress { peer: 1, addr: at, key: key.to_bits() },
            )
        };
        let (from, to) = bytes(0);
        let write = EntryWork::Write { from, to, len: 64, imm: None };
        let at = LocalAddress { addr: slot(0).value, key: key.to_bits() };
        let counted = write.with_counter(CounterUpdate { at, value: 1, poisoned: true }).unwrap();
        let signal = |number| {
            let (_, at) = bytes(slot(number).value);
            QueueEntry::new(EntryWork::Atomic { at, change: AtomicChange::Add(1), poisoned: true })
        };
        queue.post(&[QueueEntry::new(counted)], &mut patience()).unwrap();
        for number in 1..=SIGNALS {
            queue.post(&[signal(number)], &mut patience()).unwrap();
        }
        std::thread::sleep(Duration::from_millis(10));
        let began = Instant::now();
        drop(queues);
        assert!(began.elapsed() < BOUND, "{mode:?}: {:?}", began.elapsed());
        assert_ne!(
            memory.load(slot(0).error),
            Ok(0),
            "{mode:?}: the counter of an entry in progress must be poisoned"
        );
        assert_eq!(memory.load(slot(0).value), Ok(0), "{mode:?}");
        let said = said.lock().unwrap();
        let missing = (1..=SIGNALS).filter(|number| !said.contains(&slot(*number).error)).count();
        assert_eq!(missing, 0, "{mode:?}: each signal must be poisoned by an error word");
    }
}

/// A queue gets one companion and a companion gets none, however often one is requested. An executor that is shutting
/// down creates none.
#[test]
fn companions_are_created_once_and_never_at_shutdown() {
    let said = Arc::new(Mutex::new(Vec::new()));
    let mut executor = QueueExecutor::new(Stuck(said), 8).unwrap();
    let [queue, other] = [8, 8].map(|depth| executor.make_queue(depth, 0).unwrap());
    let ask = |queue: &DeviceQueue<QueueWords>, executor: &mut QueueExecutor<Stuck>| {
        queue.answer_companion(CompanionWord::None);
        assert_eq!(queue.request_companion(), CompanionWord::Asked);
        executor.run_pass();
        queue.request_companion()
    };
    let first = ask(&queue, &mut executor);
    let CompanionWord::Queue(number) = first else { panic!("{first:?}") };
    for _ in 0..3 {
        assert_eq!(ask(&queue, &mut executor), first);
    }
    let directory = executor.queue_directory();
    let companion = directory.lock().unwrap().get(&number).cloned().unwrap();
    assert_eq!(ask(&companion, &mut executor), CompanionWord::Refused);
    assert_eq!(directory.lock().unwrap().len(), 3);
    assert_eq!(other.request_companion(), CompanionWord::Asked);
    executor.shut_down();
    assert_eq!(other.request_companion(), CompanionWord::Refused);
    assert_eq!(directory.lock().unwrap().len(), 3);
}
