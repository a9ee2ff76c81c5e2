//! A queue between two processes, as between a device and its host: both have mapped the memory, at their own
//! addresses.

#![allow(clippy::unwrap_used, reason = "a failed setup step ends the test")]

mod common;

use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd, RawFd};
use std::process::{Command, Stdio};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use rustix::fs::MemfdFlags;
use rustix::mm::{MapFlags, ProtFlags};
use trunkline_device_queue::{
    BellPage, DeviceQueue, ExecutorRules, JobExecutor, JobOutcome, QueueDrain, QueueJob, SignalSlot,
    SlotCondition, TicketPoll, WaitBudget, WaitError, raw,
};
use trunkline_proto::wire::device_queue::{
    AbortWord, AtomicChange, EntryStatus, EntryWork, QueueEntry, QueueShape,
};

use common::{add, notify};

/// The variable with the memory's descriptor, for the child.
const DESCRIPTOR: &str = "TRUNKLINE_TEST_DEVQ";

const BYTES: usize = 1 << 16;
/// The offsets of the page of doorbells, the queue and a signal.
const QUEUE: usize = 4096;
const SIGNAL: usize = 32_768;

const POSTS: u32 = 2_000;

/// A budget of half a minute; the waiter yields between two polls.
struct Patience(Instant);

impl WaitBudget for Patience {
    fn spend_poll(&mut self) -> bool {
        std::thread::yield_now();
        self.0.elapsed() < Duration::from_secs(30)
    }
}

fn patience() -> Patience {
    Patience(Instant::now())
}

/// Maps the memory until the process ends.
fn map(file: BorrowedFd<'_>) -> NonNull<u8> {
    let (rights, shared) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
    // SAFETY: the kernel chooses the address, and the memory is never unmapped.
    let at = unsafe { rustix::mm::mmap(std::ptr::null_mut(), BYTES, rights, shared, file, 0) };
    NonNull::new(at.unwrap().cast()).unwrap()
}

fn part(start: NonNull<u8>, from: usize, to: usize) -> &'static [AtomicU64] {
    let start = start.map_addr(|at| at.checked_add(from).unwrap());
    // SAFETY: the range is within the mapping, which is never removed, and both processes access it by atomics only.
    unsafe { raw::words_at(start, to - from) }.unwrap()
}

/// Returns the words of the page, the queue and the signal.
fn parts(file: BorrowedFd<'_>) -> [&'static [AtomicU64]; 3] {
    let start = map(file);
    [part(start, 0, QUEUE), part(start, QUEUE, SIGNAL), part(start, SIGNAL, BYTES)]
}

/// The producer's process. Without the variable the test does nothing.
#[test]
fn child() {
    let Ok(descriptor) = std::env::var(DESCRIPTOR) else { return };
    let descriptor: RawFd = descriptor.parse().unwrap();
    // SAFETY: the parent has left the descriptor open for this process.
    let file = unsafe { BorrowedFd::borrow_raw(descriptor) };
    let [bells, words, signal] = parts(file);
    let page = BellPage::open(bells).unwrap();
    let queue = DeviceQueue::open(words, &page).unwrap();
    for number in 0..POSTS {
        let ticket = queue.post(&[notify(number), add(0, 0, 1, true)], &mut patience()).unwrap();
        if number % 16 == 0 {
            assert_eq!(queue.wait(ticket, &mut patience()), Ok(()));
            let completion = queue.read_completion(ticket).unwrap();
            assert_eq!((completion.status, completion.value), (EntryStatus::Done, number.into()));
        }
    }
    let until = SlotCondition::AtLeast(POSTS.into());
    let signalled = SignalSlot::with_poison_word(0).wait(&signal, until, &mut patience());
    assert_eq!(signalled, Ok(POSTS.into()));
    // Later posts fail, and waits for them fail in the other process.
    let failed = queue.post(&[notify(u32::MAX), add(0, 0, 1, true)], &mut patience()).unwrap();
    assert!(
        matches!(queue.wait(failed, &mut patience()), Err(WaitError::Failed(fault)) if fault.reason == 11)
    );
    let until = SlotCondition::AtLeast(u64::from(POSTS) + 1);
    let poisoned = SignalSlot::with_poison_word(0).wait(&signal, until, &mut patience());
    assert!(matches!(poisoned, Err(WaitError::Poisoned(poison)) if poison.status == EntryStatus::PeerDead));
    assert!(queue.abort(AbortWord { status: EntryStatus::Other(1000), reason: 1 }));
}

/// Executes at once.
struct Executor {
    signal: &'static [AtomicU64],
    next: u32,
}

impl JobExecutor for Executor {
    fn begin_job(&mut self, _: u32, _: u64, job: &QueueJob) -> Option<JobOutcome> {
        let order = std::sync::atomic::Ordering::AcqRel;
        Some(match job {
            QueueJob::Execute(QueueEntry { work: EntryWork::Notify { imm: u32::MAX, .. }, .. }) => {
                JobOutcome::Failed { status: EntryStatus::PeerDead, reason: 11 }
            }
            QueueJob::Execute(QueueEntry { work: EntryWork::Notify { imm, .. }, .. }) => {
                assert_eq!(*imm, self.next);
                self.next += 1;
                JobOutcome::Done(0)
            }
            QueueJob::Execute(QueueEntry {
                work: EntryWork::Atomic { at, change: AtomicChange::Add(value), .. },
                ..
            }) => JobOutcome::Done(self.signal[at.addr as usize / 8].fetch_add(*value, order)),
            QueueJob::Poison { at, poison, .. } => {
                self.signal[at.addr as usize / 8 + 1]
                    .store(poison.to_word(), std::sync::atomic::Ordering::Release);
                JobOutcome::Done(0)
            }
            other => panic!("{other:?}"),
        })
    }
}

#[test]
fn two_processes_share_a_queue() {
    // Without CLOEXEC, so that the child inherits the descriptor.
    let file: OwnedFd = rustix::fs::memfd_create("devq", MemfdFlags::empty()).unwrap();
    rustix::fs::ftruncate(&file, BYTES as u64).unwrap();
    let [bells, words, signal] = parts(std::os::fd::AsFd::as_fd(&file));
    let page = BellPage::create(bells, 4).unwrap();
    let shape = QueueShape::new(64, 3, 1, 2).unwrap().with_check();
    let queue = DeviceQueue::create(words, shape, u64::MAX - 100, &page).unwrap();
    let mut drain = QueueDrain::new(page).unwrap();
    assert!(drain.add_queue(queue.clone(), ExecutorRules { is_ordered: true, me: 0, window: 16 }).unwrap());
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "child", "--nocapture"]).env(DESCRIPTOR, file.as_raw_fd().to_string());
    let mut child = child.stdin(Stdio::null()).spawn().unwrap();
    let mut port = Executor { signal, next: 0 };
    let ended = loop {
        if drain.run_pass(&mut port).begun == 0 {
            std::thread::yield_now();
        }
        if let Some(ended) = child.try_wait().unwrap() {
            break ended;
        }
    };
    assert!(ended.success());
    drain.run_pass(&mut port);
    assert_eq!(
        (port.next, queue.abort_word().map(|why| why.status)),
        (POSTS, Some(EntryStatus::Other(1000)))
    );
    let last = trunkline_device_queue::EntryTicket {
        queue: 3,
        epoch: 1,
        index: (u64::MAX - 100).wrapping_add(2 * u64::from(POSTS) - 1),
    };
    assert_eq!(queue.poll(last), Ok(TicketPoll::Done));
}
