//! T19: the other rank is another process, which stops, or dies; and an executor that ends, after which another begins. Also what is said
//! beside links that carry nothing any more.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use trunkline_device::{
    Carried, Ended, Executor, Failure, Far, Key, Mode, Network, Place, Queues, Region, Rma, Words,
};
use trunkline_device_queue::{Condition, Queue, Slots, WaitError};
use trunkline_engine::Nics;
use trunkline_engine::host::UnixHost;
use trunkline_engine::rma::{Job, Local as Heap, Source};
use trunkline_mem::Memory;
use trunkline_proto::rma::atomic::Action;
use trunkline_proto::wire::device_queue::{Atomic, Companion, Count, Entry, Local, Remote, Status, Work};
use trunkline_proto::wire::dial::CARD_BYTES;
use trunkline_softnic::{SoftConfig, SoftFabric, WireMode};

use crate::ranks::{
    BYTES, Over, Rank, SHM, SLOTS, SLOTS_COUNT, TABLE, TCP, bytes_of, done, patience, pattern, planted, ranks,
};

const BOUND: Duration = Duration::from_millis(100);
/// The key of the first region of any rank: number 0, generation 1.
const FIRST: Key = Key::from_bits(1 << 8);
const CARD: &str = "TRUNKLINE_TEST_CARD";
const WIRE: &str = "TRUNKLINE_TEST_WIRE";

fn job(tcp: bool) -> Job<SoftFabric, UnixHost> {
    let wire = if tcp { WireMode::Tcp } else { WireMode::Auto };
    let fabric = SoftFabric::new(SoftConfig { wire, ..SoftConfig::default() }).unwrap();
    Job::new(fabric, UnixHost::new(|_, _| {}), crate::ranks::params(), Nics::from(0)).unwrap()
}

fn rank(job: Job<SoftFabric, UnixHost>, me: u32, cards: &[[u8; CARD_BYTES]]) -> Rank {
    job.meet(me, cards).unwrap();
    let memory = Memory::heap(BYTES);
    let heap = job.add_heap(memory.clone()).unwrap();
    let job: Over = Arc::new(job);
    let queues = Queues::start(Rma::new(Arc::clone(&job)).unwrap(), 64, Mode::Thread, planted()).unwrap();
    let own =
        queues.add_region(Region { memory: memory.clone(), heap, table: TABLE, copies: None, words: None });
    assert_eq!(own, Some(FIRST));
    queues
        .learn(
            1 - me,
            Far { key: FIRST, len: BYTES as u64, table: TABLE, near: None, copies: None, words: None },
        )
        .unwrap();
    queues.watch(1 - me, &memory, Slots::Poisoned { slots: SLOTS, count: SLOTS_COUNT }).unwrap();
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

/// Rank 1, when it is started as such: it raises signal 0 of the other for ever, and says what becomes of signal 1 of its own.
#[test]
fn as_the_other_process() {
    let Ok(theirs) = std::env::var(CARD) else { return };
    let job = job(std::env::var(WIRE).unwrap() == "tcp");
    let mine = job.card();
    println!("card {}", hex(&mine));
    let rank = rank(job, 1, &[card(&theirs), mine]);
    std::thread::scope(|scope| {
        let waits = &rank;
        scope.spawn(move || {
            let heard = waits.wait_signal(1, 1);
            println!("heard {heard:?}");
        });
        let queue = rank.queues.queue(16).unwrap();
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
                "the other process is gone without {begin:?}"
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
    let mine = job.card();
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
        let queue = rank.queues.queue(8).unwrap();
        rank.memory.write(1 << 19, &pattern(300_000, 5)).unwrap();
        done(&queue, &[rank.write(1 << 19, 1, 1 << 19, 300_000), rank.read(1, 1 << 19, 3 << 20, 300_000)]);
        assert!(bytes_of(&rank.memory, 3 << 20, 300_000) == pattern(300_000, 5));
    }
}

#[test]
fn a_dead_peer_reaches_every_waiter() {
    for tcp in [false, true] {
        let (rank, other) = two(tcp);
        rank.wait_signal(0, 3).unwrap();
        let queue = rank.queues.queue(64).unwrap();
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
            assert_eq!((poison.status, poison.queue), (Status::PeerDead, u32::MAX));
            let (ended, failed) = tickets.join().unwrap();
            let is_told = matches!(ended, Ok(Err(WaitError::Failed(_))) | Err(_));
            assert!(is_told, "tcp {tcp}: {ended:?}");
            println!("tcp {tcp}: signal told after {:?}, ticket after {:?}", told - died, failed - died);
            assert!(told - died < BOUND && failed - died < BOUND);
            died
        });
        // And whoever comes later.
        let late = rank.queues.queue(8).unwrap();
        let ticket = late.post(&[rank.signal(1, 7, 1)], &mut patience()).unwrap();
        assert!(matches!(late.wait(ticket, &mut patience()), Err(WaitError::Failed(_))));
        assert!(died.elapsed() < Duration::from_secs(5));
    }
}

/// It takes nothing, so its own waiter cannot hear of a failure yet; those here do, at once.
#[test]
fn a_stopped_peer_keeps_nobody_waiting_here_and_hears_when_it_goes_on() {
    for tcp in [false, true] {
        let (rank, mut other) = two(tcp);
        rank.wait_signal(0, 3).unwrap();
        let queue = rank.queues.queue(8).unwrap();
        done(&queue, &[rank.signal(1, 7, 1)]);
        other.signal(Signal::STOP);
        let nowhere = Local { addr: u64::MAX - 8, key: FIRST.bits() };
        let broken = Entry::new(Work::Write { from: nowhere, to: rank.at(1, 0), len: 8, imm: None });
        let began = Instant::now();
        let ticket = queue.post(&[broken, rank.signal(1, 1, 1)], &mut patience()).unwrap();
        let Err(WaitError::Failed(fault)) = queue.wait(ticket, &mut patience()) else { panic!("tcp {tcp}") };
        assert_eq!(fault.status, Status::Access);
        assert!(began.elapsed() < BOUND, "tcp {tcp}: {:?}", began.elapsed());
        std::thread::sleep(Duration::from_millis(60));
        other.signal(Signal::CONT);
        let heard = other.line("heard ");
        assert!(heard.contains("Poisoned") && heard.contains("Access"), "tcp {tcp}: {heard}");
    }
}

/// Links whose atomics all fail, while control streams live.
struct Broken(Rma<Over>);

impl Network for Broken {
    fn me(&self) -> u32 {
        self.0.me()
    }

    fn executes(&self) -> bool {
        true
    }

    fn put(&mut self, _: u64, _: Place, _: Source<'_>) -> Carried {
        Carried::Failed(Failure { status: Status::Network, reason: 42 })
    }

    fn get(&mut self, _: u64, _: Place, _: Heap) -> Carried {
        Carried::Failed(Failure { status: Status::Network, reason: 43 })
    }

    fn atomic(&mut self, _: u64, _: Place, _: Action, _: bool) -> Carried {
        Carried::Failed(Failure { status: Status::Network, reason: 44 })
    }

    fn go_on(&mut self, ended: &mut Vec<Ended>) -> bool {
        self.0.go_on(ended)
    }

    fn spoil(&mut self, at: Place, value: u64) -> bool {
        self.0.spoil(at, value)
    }

    fn hear(&mut self) {
        self.0.hear();
    }

    fn is_gone(&mut self, member: u32) -> bool {
        self.0.is_gone(member)
    }
}

#[test]
fn a_remote_waiter_hears_by_the_control_stream() {
    for way in [SHM, TCP] {
        let ranks = ranks(2, way);
        let job = Arc::clone(&ranks[0].job);
        let queues = Queues::start(Broken(Rma::new(job).unwrap()), 4, Mode::Thread, planted()).unwrap();
        let key = ranks[1].keys[1];
        queues
            .learn(1, Far { key, len: BYTES as u64, table: TABLE, near: None, copies: None, words: None })
            .unwrap();
        let queue = queues.queue(8).unwrap();
        let began = Instant::now();
        let ticket = queue.post(&[ranks[0].signal(1, 9, 1)], &mut patience()).unwrap();
        let Err(WaitError::Failed(fault)) = queue.wait(ticket, &mut patience()) else { panic!("{way:?}") };
        assert_eq!((fault.status, fault.reason), (Status::Network, 44));
        let seen = ranks[1].wait_signal(9, 1);
        println!("{way:?}: told after {:?}", began.elapsed());
        let Err(WaitError::Poisoned(poison)) = seen else { panic!("{way:?}: {seen:?}") };
        assert_eq!((poison.status, poison.queue), (Status::Network, queue.shape().number()));
        assert!(began.elapsed() < BOUND, "{way:?}: {:?}", began.elapsed());
        // An error word that says something stays.
        let slot = ranks[1].slot(9);
        assert!(ranks[0].job.spoil(1, 0, slot.error, 77).unwrap());
        assert!(ranks[0].job.spoil(1, 0, slot.error + 16, 78).unwrap());
        let until = Condition::AtLeast(1);
        let _ = ranks[1].slot(10).wait(&ranks[1].words(), until, &mut patience(), planted());
        assert_eq!(ranks[1].memory.load(slot.error).unwrap(), poison.to_word());
        assert_eq!(ranks[1].memory.load(slot.error + 16).unwrap(), 78);
    }
}

/// Replaces a rank's executor by another one, which the other rank reaches and is reached by under the same keys.
fn begin_anew(ranks: &mut [Rank], which: usize, mode: Mode) {
    let network = Rma::new(Arc::clone(&ranks[which].job)).unwrap();
    let queues = Queues::start(network, 64, mode, planted()).unwrap();
    drop(std::mem::replace(&mut ranks[which].queues, queues));
    let (other, memory) = (1 - which, ranks[which].memory.clone());
    let region = Region { memory, heap: 0, table: TABLE, copies: None, words: None };
    assert_eq!(ranks[which].queues.add_region(region), Some(ranks[which].keys[which]));
    let key = ranks[which].keys[other];
    let far = Far { key, len: BYTES as u64, table: TABLE, near: None, copies: None, words: None };
    ranks[which].queues.learn(other as u32, far).unwrap();
}

#[test]
fn an_executor_that_ends_makes_room_for_another() {
    for way in [SHM, TCP] {
        let mut ranks = ranks(2, way);
        let idle = ranks[1].job.in_use();
        // More often than a process has places for contexts.
        for round in 1..=80 {
            let queue = ranks[0].queues.queue(8).unwrap();
            done(&queue, &[ranks[0].write(0, 1, 0, 1000), ranks[0].signal(1, 0, 1)]);
            assert_eq!(ranks[1].wait_signal(0, round), Ok(round));
            if round % 8 == 0 {
                let back = ranks[1].queues.queue(8).unwrap();
                done(&back, &[ranks[1].write(0, 0, 5000, 1000), ranks[1].signal(0, 0, 1)]);
                begin_anew(&mut ranks, 1, way.mode);
            }
            begin_anew(&mut ranks, 0, way.mode);
        }
        let until = Instant::now() + Duration::from_secs(5);
        while ranks[1].job.in_use().0 > idle.0 {
            assert!(
                Instant::now() < until,
                "{way:?}: {:?} links are served for nobody",
                ranks[1].job.in_use()
            );
            ranks[1].job.serve();
        }
    }
}

/// Whoever has a queue of an executor that has ended hears of it, also of entries that were under way.
#[test]
fn an_executor_that_ends_tells_who_waits() {
    for mode in [Mode::Thread, Mode::Inline] {
        let mut ranks = ranks(2, crate::ranks::Way { mode, ..SHM });
        let queue = ranks[0].queues.queue(8).unwrap();
        done(&queue, &[ranks[0].signal(0, 0, 1)]);
        let other = ranks[0].queues.queue(8).unwrap();
        let never = Entry::new(Work::Wait { queue: other.shape().number(), index: 5 });
        let ticket = queue.post(&[never], &mut patience()).unwrap();
        let began = Instant::now();
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| queue.wait(ticket, &mut patience()));
            std::thread::sleep(Duration::from_millis(10));
            begin_anew(&mut ranks, 0, mode);
            // It looks before the executor has flushed the entry, or after it.
            let ended = waits.join().unwrap();
            let status = match ended {
                Err(WaitError::Aborted(why)) => why.status,
                Err(WaitError::Failed(fault)) => fault.status,
                _ => panic!("{mode:?}: {ended:?}"),
            };
            assert_eq!(status, Status::Abandoned);
        });
        assert!(began.elapsed() < BOUND, "{mode:?}: {:?}", began.elapsed());
        // And whoever comes later.
        if let Ok(ticket) = queue.post(&[ranks[0].signal(0, 0, 1)], &mut patience()) {
            let ended = queue.wait(ticket, &mut patience());
            assert!(matches!(ended, Err(WaitError::Aborted(_) | WaitError::Failed(_))), "{ended:?}");
        }
        assert_eq!(ranks[0].memory.load(ranks[0].slot(0).value), Ok(1), "that is not executed");
    }
}

/// A network whose operations never end, and what was said beside it.
#[derive(Debug)]
struct Stuck(Arc<Mutex<Vec<u64>>>);

impl Network for Stuck {
    fn me(&self) -> u32 {
        0
    }

    fn executes(&self) -> bool {
        true
    }

    fn put(&mut self, _: u64, _: Place, from: Source<'_>) -> Carried {
        let Source::Heap(from) = from else { panic!("no bytes are given by value") };
        Carried::Begun(from.len)
    }

    fn get(&mut self, _: u64, _: Place, into: Heap) -> Carried {
        Carried::Begun(into.len)
    }

    fn atomic(&mut self, _: u64, _: Place, _: Action, _: bool) -> Carried {
        Carried::Begun(0)
    }

    fn go_on(&mut self, _: &mut Vec<Ended>) -> bool {
        false
    }

    fn spoil(&mut self, at: Place, _: u64) -> bool {
        self.0.lock().unwrap().push(at.offset);
        true
    }

    fn is_gone(&mut self, _: u32) -> bool {
        false
    }
}

/// Signals and counters that will not be raised any more are poisoned, of entries under way and of those behind them, however many.
#[test]
fn an_executor_that_ends_poisons_all_that_it_leaves() {
    const SIGNALS: u32 = 300;
    for mode in [Mode::Thread, Mode::Inline] {
        let said = Arc::new(Mutex::new(Vec::new()));
        let queues = Queues::start(Stuck(Arc::clone(&said)), 4, mode, planted()).unwrap();
        let memory = Memory::heap(BYTES);
        let region = Region { memory: memory.clone(), heap: 0, table: TABLE, copies: None, words: None };
        let key = queues.add_region(region).unwrap();
        let far = Far { key, len: BYTES as u64, table: TABLE, near: None, copies: None, words: None };
        queues.learn(1, far).unwrap();
        let queue = queues.queue(512).unwrap();
        let slot = |number| Slots::Poisoned { slots: SLOTS, count: SLOTS_COUNT }.slot(number).unwrap();
        let bytes = |at| (Local { addr: at, key: key.bits() }, Remote { peer: 1, addr: at, key: key.bits() });
        let (from, to) = bytes(0);
        let write = Work::Write { from, to, len: 64, imm: None };
        let at = Local { addr: slot(0).value, key: key.bits() };
        let counted = write.counted(Count { at, value: 1, poisoned: true }).unwrap();
        let signal = |number| {
            let (_, at) = bytes(slot(number).value);
            Entry::new(Work::Atomic { at, change: Atomic::Add(1), poisoned: true })
        };
        queue.post(&[Entry::new(counted)], &mut patience()).unwrap();
        for number in 1..=SIGNALS {
            queue.post(&[signal(number)], &mut patience()).unwrap();
        }
        std::thread::sleep(Duration::from_millis(10));
        let began = Instant::now();
        drop(queues);
        assert!(began.elapsed() < BOUND, "{mode:?}: {:?}", began.elapsed());
        assert_ne!(memory.load(slot(0).error), Ok(0), "{mode:?}: the counter of an entry under way");
        assert_eq!(memory.load(slot(0).value), Ok(0), "{mode:?}");
        let said = said.lock().unwrap();
        let missing = (1..=SIGNALS).filter(|number| !said.contains(&slot(*number).error)).count();
        assert_eq!(missing, 0, "{mode:?}: signals of which nobody is told");
    }
}

/// A queue has one companion and a companion none, however often they are asked for; and who ends makes none.
#[test]
fn companions_are_made_once_and_not_at_the_end() {
    let said = Arc::new(Mutex::new(Vec::new()));
    let mut executor = Executor::new(Stuck(said), 8, planted()).unwrap();
    let [queue, other] = [8, 8].map(|depth| executor.make_queue(depth, 0).unwrap());
    let ask = |queue: &Queue<Words>, executor: &mut Executor<Stuck>| {
        queue.answer(Companion::None);
        assert_eq!(queue.companion(), Companion::Asked);
        executor.pass();
        queue.companion()
    };
    let first = ask(&queue, &mut executor);
    let Companion::Queue(number) = first else { panic!("{first:?}") };
    for _ in 0..3 {
        assert_eq!(ask(&queue, &mut executor), first);
    }
    let directory = executor.directory();
    let companion = directory.lock().unwrap().get(&number).cloned().unwrap();
    assert_eq!(ask(&companion, &mut executor), Companion::Refused);
    assert_eq!(directory.lock().unwrap().len(), 3);
    assert_eq!(other.companion(), Companion::Asked);
    executor.leave();
    assert_eq!(other.companion(), Companion::Refused);
    assert_eq!(directory.lock().unwrap().len(), 3);
}
