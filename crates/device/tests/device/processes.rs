//! Queues of other processes, served by one executor over shared memory; the death of either side.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use trunkline_device::{
    DeviceQueues, EntryKey, EntryRegion, GuestQueues, HostDeadline, PeerRegion, QueueWords, RmaNetwork,
    guest_queues::open_pidfd,
};
use trunkline_device_queue::{DeviceQueue, SlotCondition, SlotLayout, WaitError, WordMemory as _};
use trunkline_engine::host::UnixHost;
use trunkline_engine::rma::RmaJob;
use trunkline_engine::{CommNics, EngineParams};
use trunkline_mem::{MemoryFileId, MemoryRange, SharedMemory};
use trunkline_proto::wire::device_queue::{
    AtomicChange, CompanionWord, EntryStatus, EntryWork, LocalAddress, PeerAddress, QueueEntry,
};
use trunkline_softnic::{SoftConfig, SoftFabric};

use crate::ranks::{
    BYTES, Over, Rank, SHM, SLOTS, SLOTS_COUNT, TABLE, TCP, Way, bytes_of, patience, pattern, ranks,
};

const BOUND: Duration = Duration::from_millis(100);
const LIMIT: Duration = Duration::from_secs(20);
const FILES: &str = "TRUNKLINE_TEST_FILES";
const KEYS: &str = "TRUNKLINE_TEST_KEYS";
/// The role of the other process.
const PART: &str = "TRUNKLINE_TEST_PART";

fn to_text(found: &MemoryFileId) -> String {
    format!("{} {} {} {}", found.pid, found.fd, found.inode, found.len)
}

fn from_text(text: &str) -> MemoryFileId {
    let mut numbers = text.split(' ').map(|number| number.parse::<u64>().unwrap());
    let mut next = || numbers.next().unwrap();
    MemoryFileId { pid: next() as u32, fd: next() as u32, inode: next(), len: next() }
}

/// The host's side: an executor whose queues and region are in memory files, and another rank.
struct Host {
    queues: DeviceQueues<RmaNetwork<Over>>,
    region: SharedMemory,
    key: EntryKey,
    other: Rank,
}

/// Creates two ranks, of which the executor of the first one also serves other processes.
fn host(way: Way) -> Host {
    let mut two = ranks(2, way);
    let (other, first) = (two.remove(1), two.remove(0));
    let queues =
        DeviceQueues::for_processes(RmaNetwork::new(Arc::clone(&first.job)).unwrap(), 16, 64).unwrap();
    let region = SharedMemory::new("trunkline-test", BYTES).unwrap();
    let heap = first.job.add_heap(region.memory().clone()).unwrap();
    let memory = region.memory().clone();
    let key =
        queues.add_region(EntryRegion { memory, heap, table: TABLE, copies: None, words: None }).unwrap();
    let far = PeerRegion {
        key: other.keys[1],
        len: BYTES as u64,
        table: TABLE,
        near: None,
        copies: None,
        words: None,
    };
    queues.add_remote_region(1, far).unwrap();
    Host { queues, region, key, other }
}

struct Producer {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Producer {
    /// Another process, which posts to these queues.
    fn start(host: &Host, part: &str, queues: &[&DeviceQueue<QueueWords>]) -> Self {
        let file = host.queues.with_executor(|executor| executor.memory_file().unwrap().file_id());
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "processes::as_a_producer", "--nocapture"]).stdout(Stdio::piped());
        command.env(FILES, format!("{},{}", to_text(&file), to_text(&host.region.file_id())));
        command.env(KEYS, format!("{} {}", host.key.to_bits(), host.other.keys[1].to_bits())).env(PART, part);
        let mut child = command.spawn().unwrap();
        for queue in queues {
            let descriptor = open_pidfd(child.id()).unwrap();
            host.queues
                .with_executor(|executor| executor.set_queue_owner(queue.queue_shape().number(), descriptor));
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
                "the other process ended before it printed {begin:?}"
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

/// The producer's resources.
struct Here {
    guest: GuestQueues,
    region: MemoryRange,
    mine: u32,
    theirs: u32,
}

impl Here {
    fn from(&self, addr: u64) -> LocalAddress {
        LocalAddress { addr, key: self.mine }
    }

    fn to(&self, addr: u64) -> PeerAddress {
        PeerAddress { peer: 1, addr, key: self.theirs }
    }

    fn write(&self, from: u64, to: u64, len: u64) -> QueueEntry {
        QueueEntry::new(EntryWork::Write { from: self.from(from), to: self.to(to), len, imm: None })
    }

    fn raise(&self, at: PeerAddress, slot: u32) -> QueueEntry {
        let at = PeerAddress { addr: SLOTS + 16 * u64::from(slot), ..at };
        QueueEntry::new(EntryWork::Atomic { at, change: AtomicChange::Add(1), poisoned: true })
    }
}

/// The other process, when it is started with a role.
#[test]
fn as_a_producer() {
    let Ok(part) = std::env::var(PART) else { return };
    let (files, keys) = (std::env::var(FILES).unwrap(), std::env::var(KEYS).unwrap());
    let (file, region) = files.split_once(',').unwrap();
    let (mine, theirs) = keys.split_once(' ').unwrap();
    let found = from_text(file);
    let guest = GuestQueues::open(&found.map_file().unwrap(), Some(open_pidfd(found.pid).unwrap())).unwrap();
    let region = from_text(region).map_file().unwrap();
    let here = Here { guest, region, mine: mine.parse().unwrap(), theirs: theirs.parse().unwrap() };
    match part.as_str() {
        "works" => works(&here),
        "dies" => dies(&here),
        other => panic!("{other}"),
    }
}

/// Posts to two queues at once, waits in every way, and exits normally.
fn works(here: &Here) {
    std::thread::scope(|scope| {
        for number in 0..2_u32 {
            scope.spawn(move || {
                let queue = here.guest.open_queue(number).unwrap();
                assert!(here.guest.queue_view(number).is_ok_and(|view| view.number == number));
                let base = u64::from(number) << 18;
                for round in 1..=200_u64 {
                    here.region.write(base, &pattern(5000, round as u8)).unwrap();
                    let entries = [here.write(base, base, 5000), here.raise(here.to(0), number)];
                    let ticket = queue.post(&entries, &mut here.guest.wait_budget(LIMIT)).unwrap();
                    queue.wait(ticket, &mut here.guest.wait_budget(LIMIT)).unwrap();
                }
                // A local counter through a companion, which the host creates on this request.
                let companion = queue.companion_within(&mut here.guest.wait_budget(LIMIT)).unwrap();
                let companion = here.guest.open_queue(companion).unwrap();
                let ticket =
                    queue.post(&[here.write(base, base, 8)], &mut here.guest.wait_budget(LIMIT)).unwrap();
                let wait = QueueEntry::new(EntryWork::Wait { queue: number, index: ticket.index });
                let own = PeerAddress { peer: 0, addr: 0, key: here.mine };
                let counts = [wait, here.raise(own, 8 + number)];
                companion.post(&counts, &mut here.guest.wait_budget(LIMIT)).unwrap();
                let slot =
                    SlotLayout::Poisoned { slots: SLOTS, count: SLOTS_COUNT }.slot_at(8 + number).unwrap();
                let words = QueueWords::from_memory(here.region.clone());
                let mut budget = here.guest.wait_budget(LIMIT);
                let counted = slot.wait(&words, SlotCondition::AtLeast(1), &mut budget);
                assert_eq!(counted, Ok(1));
            });
        }
    });
    assert!(here.guest.open_queue(4).is_err(), "this queue was never created");
}

/// Leaves an executed entry, an entry that waits for one that is never posted, and reserved places that it never
/// writes.
fn dies(here: &Here) {
    let mut budget = here.guest.wait_budget(LIMIT);
    let [good, stuck, holed] = [0, 1, 2].map(|number| here.guest.open_queue(number).unwrap());
    good.post(&[here.write(0, 0, 5000), here.raise(here.to(0), 0)], &mut budget).unwrap();
    let never = QueueEntry::new(EntryWork::Wait { queue: 3, index: 60 });
    stuck.post(&[never, here.raise(here.to(0), 1)], &mut budget).unwrap();
    let _hole = std::mem::ManuallyDrop::new(holed.reserve_entries(2).unwrap());
    println!("ready");
    std::thread::sleep(LIMIT);
}

#[test]
fn queues_of_another_process_are_executed() {
    for way in [SHM, TCP] {
        let host = host(way);
        let queues = [8, 64].map(|depth| host.queues.make_queue(depth).unwrap());
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
fn death_of_a_producer_ends_its_queues() {
    for way in [SHM, TCP] {
        let host = host(way);
        let queues = [8, 8, 8].map(|depth| host.queues.make_queue(depth).unwrap());
        let other = host.queues.make_queue(8).unwrap();
        let mut producer = Producer::start(&host, "dies", &[&queues[0], &queues[1], &queues[2]]);
        producer.line("ready");
        std::thread::scope(|scope| {
            // This post is behind places that are never written, and has no limit of its own.
            let behind = scope.spawn(|| {
                let posted =
                    queues[2].post(&[QueueEntry::new(EntryWork::Nop)], &mut HostDeadline::without_deadline());
                (posted.map(drop), Instant::now())
            });
            let remote = scope.spawn(|| (host.other.wait_signal(1, 1), Instant::now()));
            std::thread::sleep(Duration::from_millis(20));
            producer.kill();
            let died = Instant::now();
            let (seen, told) = remote.join().unwrap();
            let Err(WaitError::Poisoned(poison)) = seen else { panic!("{way:?}: {seen:?}") };
            assert_eq!(
                (poison.status, poison.queue),
                (EntryStatus::PeerDead, queues[1].queue_shape().number())
            );
            let (posted, ended) = behind.join().unwrap();
            assert!(posted.is_err(), "{way:?}: {posted:?}");
            println!("{way:?}: signal failed after {:?}, producer after {:?}", told - died, ended - died);
            assert!(told - died < BOUND && ended - died < BOUND, "{:?} {:?}", told - died, ended - died);
        });
        assert!(
            queues
                .iter()
                .all(|queue| queue.abort_word().is_some_and(|why| why.status == EntryStatus::PeerDead))
        );
        // The entries that the process had submitted were executed, and other queues work.
        assert_eq!(host.other.wait_signal(0, 1), Ok(1));
        let ticket = other.post(&[QueueEntry::new(EntryWork::Nop)], &mut patience()).unwrap();
        assert_eq!(other.wait(ticket, &mut patience()), Ok(()));
    }
}

/// An executor alone in its job, when started with that role. Its operations stay in this process.
#[test]
fn as_an_executor() {
    if !std::env::var(PART).is_ok_and(|part| part == "executes") {
        return;
    }
    let fabric = SoftFabric::new(SoftConfig::default()).unwrap();
    let job =
        RmaJob::new(fabric, UnixHost::new(|_, _| {}), EngineParams::default(), CommNics::from(0)).unwrap();
    job.set_members(0, &[job.process_card()]).unwrap();
    let queues = DeviceQueues::for_processes(RmaNetwork::new(Arc::new(job)).unwrap(), 4, 8).unwrap();
    queues.make_queue(8).unwrap();
    println!("file {}", to_text(&queues.with_executor(|executor| executor.memory_file().unwrap().file_id())));
    std::thread::sleep(LIMIT);
}

#[test]
fn death_of_an_executor_fails_its_producers() {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "processes::as_an_executor", "--nocapture"]).stdout(Stdio::piped());
    let mut child = command.env(PART, "executes").spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap());
    let mut executor = Producer { child, lines };
    let found = from_text(&executor.line("file "));
    let guest = GuestQueues::open(&found.map_file().unwrap(), Some(open_pidfd(found.pid).unwrap())).unwrap();
    let queue = guest.open_queue(0).unwrap();
    let ticket = queue.post(&[QueueEntry::new(EntryWork::Nop)], &mut guest.wait_budget(LIMIT)).unwrap();
    assert_eq!(queue.wait(ticket, &mut guest.wait_budget(LIMIT)), Ok(()));
    assert!(!guest.check_host());
    executor.kill();
    let died = Instant::now();
    let late = queue.post(&[QueueEntry::new(EntryWork::Nop)], &mut guest.wait_budget(LIMIT)).unwrap();
    let ended = queue.wait(late, &mut guest.wait_budget(LIMIT));
    let told = died.elapsed();
    match ended {
        Err(WaitError::Aborted(why)) => assert_eq!(why.status, EntryStatus::PeerDead),
        _ => panic!("{ended:?}"),
    }
    println!("failed after {told:?}");
    assert!(told < BOUND, "{told:?}");
    assert!(guest.check_host());
}

/// A descriptor of a process that has ended.
fn ended() -> std::os::fd::OwnedFd {
    let mut child = Command::new("true").spawn().unwrap();
    let descriptor = open_pidfd(child.id()).unwrap();
    child.wait().unwrap();
    descriptor
}

/// A producer that dies between submitting and ringing has submitted; other producers may rely on the submission.
#[test]
fn submitted_entries_of_a_dead_producer_are_executed() {
    let host = host(SHM);
    let queue = host.queues.make_queue(8).unwrap();
    let at = PeerAddress { peer: 1, addr: SLOTS, key: host.other.keys[1].to_bits() };
    let signal = QueueEntry::new(EntryWork::Atomic { at, change: AtomicChange::Add(1), poisoned: true });
    let mut places = queue.reserve_entries(1).unwrap();
    places.write_entry(&signal).unwrap();
    places.publish().unwrap();
    queue.as_memory().store(trunkline_proto::wire::device_queue::at::SUBMITTED, 1, SeqCst);
    host.queues.with_executor(|executor| executor.set_queue_owner(queue.queue_shape().number(), ended()));
    assert_eq!(host.other.wait_signal(0, 1), Ok(1));
    let until = Instant::now() + LIMIT;
    while queue.abort_word().is_none_or(|why| why.status != EntryStatus::PeerDead) {
        assert!(Instant::now() < until, "the queue must be aborted after its producer's death");
        std::thread::yield_now();
    }
}

/// A producer may also write the word with its companion's number. Its death ends its own queues only.
#[test]
fn dead_process_ends_only_its_own_queues() {
    let host = host(SHM);
    let (his, other) = (host.queues.make_queue(8).unwrap(), host.queues.make_queue(8).unwrap());
    let companion = CompanionWord::Queue(other.queue_shape().number());
    his.as_memory().store(trunkline_proto::wire::device_queue::at::COMPANION, companion.to_word(), SeqCst);
    host.queues.with_executor(|executor| executor.set_queue_owner(his.queue_shape().number(), ended()));
    let until = Instant::now() + LIMIT;
    while his.abort_word().is_none() {
        assert!(Instant::now() < until, "the queue must be aborted after its producer's death");
        std::thread::yield_now();
    }
    host.queues.with_executor(|_| ());
    assert_eq!(other.abort_word(), None);
}

/// The file has room for the requested number of queues at the maximum depth.
#[test]
fn too_deep_queue_takes_no_room() {
    let host = host(SHM);
    assert!(host.queues.make_queue(128).is_err(), "64 is the maximum depth");
    for number in 0..16 {
        assert_eq!(host.queues.make_queue(64).unwrap().queue_shape().number(), number);
    }
}

/// A queue's offset is in a file that other processes can write. A value that is not a queue's offset is rejected, and
/// a change during the open redirects nothing.
#[test]
fn queue_offsets_of_other_processes_are_checked() {
    let host = host(SHM);
    let queue = host.queues.make_queue(8).unwrap();
    let file = host.queues.with_executor(|executor| executor.memory_file().unwrap().memory().clone());
    let guest = GuestQueues::open(&file, None).unwrap();
    assert!(guest.open_queue(0).is_ok());
    // Finds the word with the offset of the first queue.
    let good = queue.as_memory().as_memory().addr() as u64 - file.addr() as u64;
    let said = (0..4096).step_by(8).find(|at| file.load(*at) == Ok(good)).unwrap();
    for wrong in [4097, good + 8, 1 << 40, u64::MAX] {
        file.fetch_update(said, |_| Some(wrong)).unwrap();
        assert!(guest.open_queue(0).is_err(), "{wrong}");
    }
    let over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for wild in [good, 1 << 40].into_iter().cycle() {
                file.fetch_update(said, |_| Some(wild)).unwrap();
                if over.load(SeqCst) {
                    break;
                }
            }
        });
        for _ in 0..20_000 {
            let Ok(view) = guest.queue_view(0) else { continue };
            let (at, words) = (
                queue.as_memory().as_memory().addr() as u64,
                trunkline_proto::wire::device_queue::at::RESERVED,
            );
            assert_eq!(view.words, at + words);
        }
        over.store(true, SeqCst);
    });
}
