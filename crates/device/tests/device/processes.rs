//! Queues of other processes, served by one executor over shared memory; the death of either side.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use trunkline_device::{Far, Guest, Key, Patience, Queues, Region, Rma, Words, processes::process};
use trunkline_device_queue::{Condition, Memory as _, Queue, Slots, WaitError};
use trunkline_engine::Nics;
use trunkline_engine::host::UnixHost;
use trunkline_engine::rma::Job;
use trunkline_mem::{Found, Memory, Shared};
use trunkline_proto::wire::device_queue::{Atomic, Companion, Entry, Local, Remote, Status, Work};
use trunkline_softnic::{SoftConfig, SoftFabric};

use crate::ranks::{
    BYTES, Over, Rank, SHM, SLOTS, SLOTS_COUNT, TABLE, TCP, Way, bytes_of, params, patience, pattern,
    planted, ranks,
};

const BOUND: Duration = Duration::from_millis(100);
const LIMIT: Duration = Duration::from_secs(20);
const FILES: &str = "TRUNKLINE_TEST_FILES";
const KEYS: &str = "TRUNKLINE_TEST_KEYS";
/// What the other process is to do.
const PART: &str = "TRUNKLINE_TEST_PART";

fn to_text(found: &Found) -> String {
    format!("{} {} {} {}", found.pid, found.fd, found.inode, found.len)
}

fn from_text(text: &str) -> Found {
    let mut numbers = text.split(' ').map(|number| number.parse::<u64>().unwrap());
    let mut next = || numbers.next().unwrap();
    Found { pid: next() as u32, fd: next() as u32, inode: next(), len: next() }
}

/// The host's side: an executor whose queues and region lie in memory files, and another rank.
struct Host {
    queues: Queues<Rma<Over>>,
    region: Shared,
    key: Key,
    other: Rank,
}

/// A rank of two whose executor serves other processes; the other one is as ever.
fn host(way: Way) -> Host {
    let mut two = ranks(2, way);
    let (other, first) = (two.remove(1), two.remove(0));
    let queues = Queues::for_processes(Rma::new(Arc::clone(&first.job)).unwrap(), 16, 64, planted()).unwrap();
    let region = Shared::new("trunkline-test", BYTES).unwrap();
    let heap = first.job.add_heap(region.memory().clone()).unwrap();
    let memory = region.memory().clone();
    let key = queues.add_region(Region { memory, heap, table: TABLE, copies: None, words: None }).unwrap();
    let far =
        Far { key: other.keys[1], len: BYTES as u64, table: TABLE, near: None, copies: None, words: None };
    queues.learn(1, far).unwrap();
    Host { queues, region, key, other }
}

struct Producer {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Producer {
    /// Another process, which has these queues.
    fn start(host: &Host, part: &str, queues: &[&Queue<Words>]) -> Self {
        let file = host.queues.with(|executor| executor.file().unwrap().found());
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "processes::as_a_producer", "--nocapture"]).stdout(Stdio::piped());
        command.env(FILES, format!("{},{}", to_text(&file), to_text(&host.region.found())));
        command.env(KEYS, format!("{} {}", host.key.bits(), host.other.keys[1].bits())).env(PART, part);
        let mut child = command.spawn().unwrap();
        for queue in queues {
            let descriptor = process(child.id()).unwrap();
            host.queues.with(|executor| executor.own(queue.shape().number(), descriptor));
        }
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self { child, lines }
    }

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

    fn kill(&mut self) {
        kill_process(Pid::from_child(&self.child), Signal::KILL).unwrap();
    }
}

impl Drop for Producer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What the producer's side has.
struct Here {
    guest: Guest,
    region: Memory,
    mine: u32,
    theirs: u32,
}

impl Here {
    fn from(&self, addr: u64) -> Local {
        Local { addr, key: self.mine }
    }

    fn to(&self, addr: u64) -> Remote {
        Remote { peer: 1, addr, key: self.theirs }
    }

    fn write(&self, from: u64, to: u64, len: u64) -> Entry {
        Entry::new(Work::Write { from: self.from(from), to: self.to(to), len, imm: None })
    }

    fn raise(&self, at: Remote, slot: u32) -> Entry {
        let at = Remote { addr: SLOTS + 16 * u64::from(slot), ..at };
        Entry::new(Work::Atomic { at, change: Atomic::Add(1), poisoned: true })
    }
}

/// The other process, when it is started as such.
#[test]
fn as_a_producer() {
    let Ok(part) = std::env::var(PART) else { return };
    let (files, keys) = (std::env::var(FILES).unwrap(), std::env::var(KEYS).unwrap());
    let (file, region) = files.split_once(',').unwrap();
    let (mine, theirs) = keys.split_once(' ').unwrap();
    let found = from_text(file);
    let guest = Guest::open(&found.map().unwrap(), Some(process(found.pid).unwrap()), planted()).unwrap();
    let region = from_text(region).map().unwrap();
    let here = Here { guest, region, mine: mine.parse().unwrap(), theirs: theirs.parse().unwrap() };
    match part.as_str() {
        "works" => works(&here),
        "dies" => dies(&here),
        other => panic!("{other}"),
    }
}

/// Posts to two queues at once, waits in every way, and ends well.
fn works(here: &Here) {
    std::thread::scope(|scope| {
        for number in 0..2_u32 {
            scope.spawn(move || {
                let queue = here.guest.queue(number).unwrap();
                assert!(here.guest.view(number).is_ok_and(|view| view.number == number));
                let base = u64::from(number) << 18;
                for round in 1..=200_u64 {
                    here.region.write(base, &pattern(5000, round as u8)).unwrap();
                    let entries = [here.write(base, base, 5000), here.raise(here.to(0), number)];
                    let ticket = queue.post(&entries, &mut here.guest.patience(LIMIT)).unwrap();
                    queue.wait(ticket, &mut here.guest.patience(LIMIT)).unwrap();
                }
                // A counter here by a companion, which the host makes now.
                let companion = queue.companion_within(&mut here.guest.patience(LIMIT)).unwrap();
                let companion = here.guest.queue(companion).unwrap();
                let ticket =
                    queue.post(&[here.write(base, base, 8)], &mut here.guest.patience(LIMIT)).unwrap();
                let wait = Entry::new(Work::Wait { queue: number, index: ticket.index });
                let own = Remote { peer: 0, addr: 0, key: here.mine };
                let counts = [wait, here.raise(own, 8 + number)];
                companion.post(&counts, &mut here.guest.patience(LIMIT)).unwrap();
                let slot = Slots::Poisoned { slots: SLOTS, count: SLOTS_COUNT }.slot(8 + number).unwrap();
                let words = Words::of(here.region.clone());
                let mut budget = here.guest.patience(LIMIT);
                let counted = slot.wait(&words, Condition::AtLeast(1), &mut budget, planted());
                assert_eq!(counted, Ok(1));
            });
        }
    });
    assert!(here.guest.queue(4).is_err(), "it was never made");
}

/// Leaves an entry that is executed, one that waits for what never comes, and places that it never writes.
fn dies(here: &Here) {
    let mut budget = here.guest.patience(LIMIT);
    let [good, stuck, holed] = [0, 1, 2].map(|number| here.guest.queue(number).unwrap());
    good.post(&[here.write(0, 0, 5000), here.raise(here.to(0), 0)], &mut budget).unwrap();
    let never = Entry::new(Work::Wait { queue: 3, index: 60 });
    stuck.post(&[never, here.raise(here.to(0), 1)], &mut budget).unwrap();
    let _hole = std::mem::ManuallyDrop::new(holed.reserve(2).unwrap());
    println!("ready");
    std::thread::sleep(LIMIT);
}

#[test]
fn queues_of_another_process_are_executed() {
    for way in [SHM, TCP] {
        let host = host(way);
        let queues = [8, 64].map(|depth| host.queues.queue(depth).unwrap());
        let mut producer = Producer::start(&host, "works", &[&queues[0], &queues[1]]);
        for number in 0..2 {
            assert_eq!(host.other.wait_signal(number, 200), Ok(200), "{way:?}");
        }
        assert!(producer.child.wait().unwrap().success(), "{way:?}");
        for base in [0, 1 << 18] {
            assert!(bytes_of(&host.other.memory, base, 5000) == pattern(5000, 200), "{way:?}");
        }
    }
}

#[test]
fn the_death_of_a_producer_ends_its_queues() {
    for way in [SHM, TCP] {
        let host = host(way);
        let queues = [8, 8, 8].map(|depth| host.queues.queue(depth).unwrap());
        let other = host.queues.queue(8).unwrap();
        let mut producer = Producer::start(&host, "dies", &[&queues[0], &queues[1], &queues[2]]);
        producer.line("ready");
        std::thread::scope(|scope| {
            // It stands behind the places that nobody writes, and has no limit of its own.
            let behind = scope.spawn(|| {
                let posted = queues[2].post(&[Entry::new(Work::Nop)], &mut Patience::endless());
                (posted.map(drop), Instant::now())
            });
            let remote = scope.spawn(|| (host.other.wait_signal(1, 1), Instant::now()));
            std::thread::sleep(Duration::from_millis(20));
            producer.kill();
            let died = Instant::now();
            let (seen, told) = remote.join().unwrap();
            let Err(WaitError::Poisoned(poison)) = seen else { panic!("{way:?}: {seen:?}") };
            assert_eq!((poison.status, poison.queue), (Status::PeerDead, queues[1].shape().number()));
            let (posted, ended) = behind.join().unwrap();
            assert!(posted.is_err(), "{way:?}: {posted:?}");
            println!("{way:?}: signal told after {:?}, producer after {:?}", told - died, ended - died);
            assert!(told - died < BOUND && ended - died < BOUND, "{:?} {:?}", told - died, ended - died);
        });
        assert!(queues.iter().all(|queue| queue.aborted().is_some_and(|why| why.status == Status::PeerDead)));
        // What it had submitted was executed, and others go on.
        assert_eq!(host.other.wait_signal(0, 1), Ok(1));
        let ticket = other.post(&[Entry::new(Work::Nop)], &mut patience()).unwrap();
        assert_eq!(other.wait(ticket, &mut patience()), Ok(()));
    }
}

/// An executor alone in its job, when it is started as such: what it executes stays in this process.
#[test]
fn as_an_executor() {
    if !std::env::var(PART).is_ok_and(|part| part == "executes") {
        return;
    }
    let fabric = SoftFabric::new(SoftConfig::default()).unwrap();
    let job = Job::new(fabric, UnixHost::new(|_, _| {}), params(), Nics::from(0)).unwrap();
    job.meet(0, &[job.card()]).unwrap();
    let queues = Queues::for_processes(Rma::new(Arc::new(job)).unwrap(), 4, 8, planted()).unwrap();
    queues.queue(8).unwrap();
    println!("file {}", to_text(&queues.with(|executor| executor.file().unwrap().found())));
    std::thread::sleep(LIMIT);
}

#[test]
fn the_death_of_an_executor_reaches_its_producers() {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "processes::as_an_executor", "--nocapture"]).stdout(Stdio::piped());
    let mut child = command.env(PART, "executes").spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap());
    let mut executor = Producer { child, lines };
    let found = from_text(&executor.line("file "));
    let guest = Guest::open(&found.map().unwrap(), Some(process(found.pid).unwrap()), planted()).unwrap();
    let queue = guest.queue(0).unwrap();
    let ticket = queue.post(&[Entry::new(Work::Nop)], &mut guest.patience(LIMIT)).unwrap();
    assert_eq!(queue.wait(ticket, &mut guest.patience(LIMIT)), Ok(()));
    assert!(!guest.look());
    executor.kill();
    let died = Instant::now();
    let late = queue.post(&[Entry::new(Work::Nop)], &mut guest.patience(LIMIT)).unwrap();
    let ended = queue.wait(late, &mut guest.patience(LIMIT));
    let told = died.elapsed();
    match ended {
        Err(WaitError::Aborted(why)) => assert_eq!(why.status, Status::PeerDead),
        _ => panic!("{ended:?}"),
    }
    println!("told after {told:?}");
    assert!(told < BOUND, "{told:?}");
    assert!(guest.look());
}

/// A descriptor of a process that has ended.
fn ended() -> std::os::fd::OwnedFd {
    let mut child = Command::new("true").spawn().unwrap();
    let descriptor = process(child.id()).unwrap();
    child.wait().unwrap();
    descriptor
}

/// Whoever submits and dies before he rings has submitted: others may have heard from him that it is so.
#[test]
fn what_a_dead_producer_had_submitted_is_executed_though_nobody_rang() {
    let host = host(SHM);
    let queue = host.queues.queue(8).unwrap();
    let at = Remote { peer: 1, addr: SLOTS, key: host.other.keys[1].bits() };
    let signal = Entry::new(Work::Atomic { at, change: Atomic::Add(1), poisoned: true });
    let mut places = queue.reserve(1).unwrap();
    places.write(&signal).unwrap();
    places.publish().unwrap();
    queue.words().store(trunkline_proto::wire::device_queue::at::SUBMITTED, 1, SeqCst);
    host.queues.with(|executor| executor.own(queue.shape().number(), ended()));
    assert_eq!(host.other.wait_signal(0, 1), Ok(1));
    let until = Instant::now() + LIMIT;
    while queue.aborted().is_none_or(|why| why.status != Status::PeerDead) {
        assert!(Instant::now() < until, "the queue goes on without its producer");
        std::thread::yield_now();
    }
}

/// The word by which a producer hears of its companion is also its own to write: whoever dies ends his own queues, and no other.
#[test]
fn who_dies_ends_no_queue_that_is_not_his() {
    let host = host(SHM);
    let (his, other) = (host.queues.queue(8).unwrap(), host.queues.queue(8).unwrap());
    let companion = Companion::Queue(other.shape().number());
    his.words().store(trunkline_proto::wire::device_queue::at::COMPANION, companion.to_word(), SeqCst);
    host.queues.with(|executor| executor.own(his.shape().number(), ended()));
    let until = Instant::now() + LIMIT;
    while his.aborted().is_none() {
        assert!(Instant::now() < until, "the queue goes on without its producer");
        std::thread::yield_now();
    }
    host.queues.with(|_| ());
    assert_eq!(other.aborted(), None);
}

/// There is room for as many queues as were asked for, none of which is deeper.
#[test]
fn a_queue_that_is_too_deep_takes_nobodys_room() {
    let host = host(SHM);
    assert!(host.queues.queue(128).is_err(), "64 is the deepest");
    for number in 0..16 {
        assert_eq!(host.queues.queue(64).unwrap().shape().number(), number);
    }
}

/// Where a queue lies is said by a file that others write: what is not a queue's place is none, and what changes meanwhile leads nowhere else.
#[test]
fn places_of_queues_are_not_believed() {
    let host = host(SHM);
    let queue = host.queues.queue(8).unwrap();
    let file = host.queues.with(|executor| executor.file().unwrap().memory().clone());
    let guest = Guest::open(&file, None, planted()).unwrap();
    assert!(guest.queue(0).is_ok());
    // The word that says where the first queue lies.
    let good = queue.words().memory().addr() as u64 - file.addr() as u64;
    let said = (0..4096).step_by(8).find(|at| file.load(*at) == Ok(good)).unwrap();
    for wrong in [4097, good + 8, 1 << 40, u64::MAX] {
        file.update(said, |_| Some(wrong)).unwrap();
        assert!(guest.queue(0).is_err(), "{wrong}");
    }
    let over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for wild in [good, 1 << 40].into_iter().cycle() {
                file.update(said, |_| Some(wild)).unwrap();
                if over.load(SeqCst) {
                    break;
                }
            }
        });
        for _ in 0..20_000 {
            let Ok(view) = guest.view(0) else { continue };
            let (at, words) =
                (queue.words().memory().addr() as u64, trunkline_proto::wire::device_queue::at::RESERVED);
            assert_eq!(view.words, at + words);
        }
        over.store(true, SeqCst);
    });
}
