//! Who makes an executor's passes. [`ExecutorMode::Inline`]: whoever rings or waits, in his own thread. [`ExecutorMode::Thread`]: a thread that spins for a while when
//! there is nothing, and then sleeps until somebody rings; idle queues then cost nothing but a look now and then at what others ask of this process.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, PoisonError};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

use trunkline_device_queue::{DeviceQueue, SlotLayout};
use trunkline_mem::MemoryRange;
use trunkline_mem::gpu::GpuDevice;
use trunkline_proto::reserve::OutOfMemory;

use crate::affinity::{SYSFS, run_near};
use crate::executor::{QueueDirectory, QueueExecutor};
use crate::network::MemberNetwork;
use crate::queue_error::QueueError;
use crate::region::{EntryKey, EntryRegion, PeerRegion};
use crate::words::{DoorbellObserver, QueueWords};
use trunkline_engine::ExecutorLock;
use trunkline_engine::rma::MemberRank;
use trunkline_engine::{BackoffStep, RestMethod, WaitBackoff, WaitPolicy};

/// Fruitless passes before the thread lets others go first: who posts may need its processor.
const SPINS: u32 = 32;
/// Fruitless passes in which it does that, at least, before it sleeps; each of them may take as long as another thread has its processor.
const YIELDS: u32 = 64;
/// And how long.
const AWAKE: Duration = Duration::from_micros(100);
/// The first sleep; each next one is twice as long.
const SLEEP_FIRST: Duration = Duration::from_micros(50);
/// The longest sleep: others may ask this process for something, whose threads sleep, too.
const SLEEP_MAX: Duration = Duration::from_millis(2);
/// How long it stays awake, and how long it naps, where nobody can wake it.
const DEVICE_AWAKE: Duration = Duration::from_millis(20);
const NAP: Duration = Duration::from_micros(50);
/// How long it stays awake while operations are under way and none of them moves: naps are short beside what those have taken by then.
const BUSY_AWAKE: Duration = Duration::from_millis(20);
/// Passes between two looks at what others ask, while queues are busy.
const SERVE_EVERY: u32 = 16;
/// Passes of a thread that rings or waits, at most: it has its own to do.
const TURNS_MAX: u32 = 64;

/// Who makes the passes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ExecutorMode {
    /// M0: who rings or waits.
    Inline,
    /// M1: a thread.
    Thread,
    /// M2: a thread that no producer can wake, as they are threads of a device ([`DeviceQueues::for_device`]) or of other processes ([`DeviceQueues::for_processes`]). It looks at the doorbells again and again, and naps
    /// for a moment where nothing has come for long.
    Device,
}

/// Queues cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum QueuesError {
    /// Not such ones.
    #[error(transparent)]
    Queue(#[from] QueueError),
    /// The system has no thread left.
    #[error("no thread to execute entries: {0}")]
    Thread(#[source] io::Error),
}

struct SharedExecutor<N> {
    turns: ExecutorLock<QueueExecutor<N>>,
    mode: ExecutorMode,
    /// The thread says so before it falls asleep.
    asleep: AtomicBool,
    stop: AtomicBool,
    thread: OnceLock<Thread>,
}

/// An executor and whoever drives it. Dropping it ends the thread, and all queues as an abort does, with the status of a reservation that was abandoned: whoever posts or waits there hears of it.
/// Entries that are under way then may still be done, or not.
pub struct DeviceQueues<N: MemberNetwork + 'static> {
    shared: Arc<SharedExecutor<N>>,
    thread: Option<JoinHandle<()>>,
}

impl<N: MemberNetwork> SharedExecutor<N> {
    /// Set-up, which is let in first.
    fn with_executor<T>(&self, f: impl FnOnce(&mut QueueExecutor<N>) -> T) -> T {
        match self.mode {
            ExecutorMode::Inline => {
                self.turns.with_setup(f, TURNS_MAX, |executor| run_caller_pass(executor, false))
            }
            ExecutorMode::Thread | ExecutorMode::Device => f(&mut self.turns.lock()),
        }
    }

    fn wake_thread(&self) {
        let sleeps = self.asleep.load(Ordering::SeqCst) && self.asleep.swap(false, Ordering::SeqCst);
        if sleeps && let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }

    /// The thread's loop.
    fn run_thread(&self) {
        let mut fruitless = 0_u32;
        let mut passes = 0_u32;
        let mut idle_since = None;
        let mut slept = false;
        let (awake, first, most) = match self.mode {
            ExecutorMode::Device => (DEVICE_AWAKE, NAP, NAP),
            ExecutorMode::Inline | ExecutorMode::Thread => (AWAKE, SLEEP_FIRST, SLEEP_MAX),
        };
        let mut sleeps =
            WaitBackoff::new(WaitPolicy { spins: 0, yields: 0, first, most, rest: RestMethod::Park });
        while !self.stop.load(Ordering::Relaxed) {
            let Some(mut executor) = self.turns.try_lock() else {
                std::thread::yield_now();
                continue;
            };
            let pass = executor.run_pass();
            passes = passes.wrapping_add(1);
            // Who waits for a signal waits for what others ask of this process.
            let waits = self.turns.is_wanted(Ordering::Relaxed) && self.turns.take_wanted();
            let idles = fruitless >= SPINS;
            let serves = waits || std::mem::take(&mut slept) || idles || passes.is_multiple_of(SERVE_EVERY);
            let served = serves && executor.serve_members();
            drop(executor);
            if pass.moved || served || waits {
                (fruitless, idle_since) = (0, None);
                sleeps.reset_backoff();
                if waits && !pass.moved && !served {
                    std::thread::yield_now();
                }
                continue;
            }
            fruitless = fruitless.saturating_add(1);
            if fruitless < SPINS {
                std::hint::spin_loop();
                continue;
            }
            let since = *idle_since.get_or_insert_with(Instant::now);
            let stays = if pass.busy { BUSY_AWAKE } else { awake };
            if fruitless < SPINS + YIELDS || since.elapsed() < stays {
                std::thread::yield_now();
                continue;
            }
            let longest = if pass.busy {
                NAP
            } else {
                let BackoffStep::Rest { length, .. } = sleeps.next_step() else { continue };
                length
            };
            self.sleep_until_rung(longest);
            slept = true;
        }
    }

    /// Sleeps until somebody rings or waits, or so long.
    fn sleep_until_rung(&self, longest: Duration) {
        self.asleep.store(true, Ordering::SeqCst);
        let stays = self.stop.load(Ordering::SeqCst) || self.turns.is_wanted(Ordering::SeqCst);
        // Who has the executor right now may have changed it.
        let rung = self.turns.try_lock().is_none_or(|executor| executor.is_rung());
        if !stays && !rung {
            std::thread::park_timeout(longest);
        }
        self.asleep.store(false, Ordering::SeqCst);
    }
}

/// One of the passes that who rings or waits makes. Whether another is likely to find something.
fn run_caller_pass<N: MemberNetwork>(executor: &mut QueueExecutor<N>, serves: bool) -> bool {
    let pass = executor.run_pass();
    let goes_on = pass.moved && pass.busy;
    if serves && !pass.moved { executor.serve_members() } else { goes_on }
}

impl<N: MemberNetwork> DoorbellObserver for SharedExecutor<N> {
    #[inline]
    fn on_doorbell(&self) {
        match self.mode {
            // Another thread that is at it goes on for this one.
            ExecutorMode::Inline => {
                self.turns.drive_passes(TURNS_MAX, |executor| run_caller_pass(executor, false))
            }
            ExecutorMode::Thread | ExecutorMode::Device => self.wake_thread(),
        }
    }

    #[inline]
    fn on_wait(&self) {
        match self.mode {
            ExecutorMode::Inline => {
                self.turns.drive_if_free(TURNS_MAX, |executor| run_caller_pass(executor, true))
            }
            ExecutorMode::Thread | ExecutorMode::Device => {
                if !self.turns.is_wanted(Ordering::Relaxed) {
                    self.turns.request_pass();
                    self.wake_thread();
                }
                std::hint::spin_loop();
            }
        }
    }
}

impl<N: MemberNetwork + 'static> DeviceQueues<N> {
    /// At most `queues` queues over a network, companions included.
    ///
    /// # Errors
    /// [`QueuesError`].
    pub fn start(network: N, queues: u32, mode: ExecutorMode) -> Result<Self, QueuesError> {
        match mode {
            ExecutorMode::Device => Err(QueueError::Device.into()),
            ExecutorMode::Inline | ExecutorMode::Thread => {
                Self::start_thread(QueueExecutor::new(network, queues)?, mode, None)
            }
        }
    }

    /// Queues whose producers are threads of a device, executed by a thread ([`ExecutorMode::Device`]): made by [`QueueExecutor::make_lane`], in pinned memory.
    ///
    /// # Errors
    /// [`QueuesError`].
    pub fn for_device(network: N, queues: u32, device: GpuDevice) -> Result<Self, QueuesError> {
        let executor = QueueExecutor::for_device(network, queues, &device)?;
        Self::start_thread(executor, ExecutorMode::Device, device.pci_address().ok())
    }

    /// Queues whose producers are threads of other processes of the host, executed by a thread ([`ExecutorMode::Device`]): at most so many, none deeper than `deepest`, in a memory file
    /// ([`QueueExecutor::memory_file`]). Each queue is made here and named to its producer by its number, who opens it by [`Guest`](super::GuestQueues).
    ///
    /// # Errors
    /// [`QueuesError`].
    pub fn for_processes(network: N, queues: u32, deepest: u32) -> Result<Self, QueuesError> {
        Self::start_thread(
            QueueExecutor::for_processes(network, queues, deepest)?,
            ExecutorMode::Device,
            None,
        )
    }

    /// Starts the thread, if the mode has one: near the device of this PCI address, if there is one.
    fn start_thread(
        executor: QueueExecutor<N>,
        mode: ExecutorMode,
        near: Option<String>,
    ) -> Result<Self, QueuesError> {
        let shared = Arc::new(SharedExecutor {
            turns: ExecutorLock::new(executor),
            mode,
            asleep: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            thread: OnceLock::new(),
        });
        let thread = match mode {
            ExecutorMode::Inline => None,
            ExecutorMode::Thread | ExecutorMode::Device => {
                let run = Arc::clone(&shared);
                let builder = std::thread::Builder::new().name("trunkline-devq".to_owned());
                let bind_and_run = move || {
                    near.iter().for_each(|near| _ = run_near(Path::new(SYSFS), near));
                    run.run_thread();
                };
                Some(builder.spawn(bind_and_run).map_err(QueuesError::Thread)?)
            }
        };
        if let Some(thread) = &thread {
            let _first = shared.thread.set(thread.thread().clone());
        }
        Ok(Self { shared, thread })
    }

    /// Calls the executor, between two passes.
    pub fn with_executor<T>(&self, f: impl FnOnce(&mut QueueExecutor<N>) -> T) -> T {
        self.shared.with_executor(f)
    }

    /// A new queue, for any number of threads.
    ///
    /// # Errors
    /// [`QueueError`].
    pub fn make_queue(&self, depth: u32) -> Result<DeviceQueue<QueueWords>, QueueError> {
        self.make_queue_from(depth, 0)
    }

    /// The same, whose first index is `first`.
    ///
    /// # Errors
    /// [`QueueError`].
    pub fn make_queue_from(&self, depth: u32, first: u64) -> Result<DeviceQueue<QueueWords>, QueueError> {
        let queue = self.with_executor(|executor| executor.make_queue(depth, first))?;
        self.producer_view(&queue)
    }

    /// [`QueueExecutor::end_queue`].
    pub fn end_queue(&self, number: u32) {
        self.with_executor(|executor| executor.end_queue(number));
        self.drop_retired();
    }

    /// [`QueueExecutor::make_lane`]; the memory is pinned, and freed if there is no lane, while the executor is another's.
    ///
    /// # Errors
    /// [`QueueError`].
    pub fn make_lane(&self, device: &GpuDevice, depth: u32, first: u64) -> Result<[u32; 2], QueueError> {
        let bytes = QueueExecutor::<N>::lane_bytes(depth)?;
        let pinned = [device.allocate_pinned(bytes)?, device.allocate_pinned(bytes)?];
        let made = self.with_executor(|executor| executor.make_lane(depth, first, &pinned));
        self.drop_retired();
        made
    }

    /// Waits until all that was submitted to these queues is complete, at most so long; ends them, and waits until nothing that they have begun is under way,
    /// at most `last` longer. Whether nothing is. To be called when no thread posts to them any more.
    pub fn finish_queues(&self, numbers: &[u32], limit: Duration, last: Duration) -> bool {
        self.wait_until(limit, |executor| numbers.iter().all(|&number| executor.is_through(number)));
        self.with_executor(|executor| numbers.iter().for_each(|&number| executor.end_queue(number)));
        let until = Instant::now() + last;
        let mut ends =
            self.wait_until(last, |executor| !numbers.iter().any(|&number| executor.is_ending(number)));
        self.drop_retired();
        // Counters that queues have raised, and error words that they have set, are no entry's.
        let begun = self.with_executor(|executor| executor.begun_ops());
        let last = until.saturating_duration_since(Instant::now());
        ends &= self.wait_until(last, |executor| !executor.is_any_begun(&begun));
        ends
    }

    /// Has the executor go on until something is so, at most so long. Whether it is.
    pub fn wait_until(&self, limit: Duration, mut is_so: impl FnMut(&mut QueueExecutor<N>) -> bool) -> bool {
        let until = Instant::now() + limit;
        let mut waiting = WaitBackoff::new(WaitPolicy::CALL);
        loop {
            let (done, moved) = self.with_executor(|executor| {
                if is_so(executor) {
                    return (true, true);
                }
                let moved = executor.run_pass().moved | executor.serve_members();
                (is_so(executor), moved)
            });
            if done || Instant::now() >= until {
                return done;
            }
            if moved {
                waiting.reset_backoff();
            }
            waiting.wait_once();
        }
    }

    /// Frees the memory of queues that are gone, while the executor is another's: a driver may wait for a kernel first, which may wait for entries.
    fn drop_retired(&self) {
        let retired = self.with_executor(QueueExecutor::take_retired);
        drop(retired);
    }

    /// The queue of a number, such as a companion.
    #[must_use]
    pub fn find_queue(&self, number: u32) -> Option<DeviceQueue<QueueWords>> {
        self.queue_finder()(number)
    }

    /// Finds queues by their numbers, for lanes that have companions.
    pub fn queue_finder(
        &self,
    ) -> impl Fn(u32) -> Option<DeviceQueue<QueueWords>> + Clone + Send + Sync + use<N> {
        let shared = Arc::clone(&self.shared);
        let directory = self.queue_directory();
        move |number| {
            let directory = directory.lock().unwrap_or_else(PoisonError::into_inner);
            let queue = directory.get(&number)?.clone();
            drop(directory);
            producer_view(&shared, &queue).ok()
        }
    }

    fn queue_directory(&self) -> QueueDirectory {
        self.with_executor(|executor| executor.queue_directory())
    }

    fn producer_view(&self, queue: &DeviceQueue<QueueWords>) -> Result<DeviceQueue<QueueWords>, QueueError> {
        producer_view(&self.shared, queue)
    }

    /// Memory with signals and counters, so that who waits there has the executor go on.
    #[must_use]
    pub fn observed_words(&self, memory: &MemoryRange) -> QueueWords {
        QueueWords::from_memory(memory.clone())
            .with_observer(Arc::clone(&self.shared) as Arc<dyn DoorbellObserver>)
    }

    /// [`QueueExecutor::add_region`].
    #[must_use]
    pub fn add_region(&self, region: EntryRegion) -> Option<EntryKey> {
        self.with_executor(|executor| executor.add_region(region))
    }

    /// [`QueueExecutor::remove_region`].
    pub fn remove_region(&self, key: EntryKey) -> Option<EntryRegion> {
        self.with_executor(|executor| executor.remove_region(key))
    }

    /// [`QueueExecutor::add_remote_region`].
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn add_remote_region(&self, member: MemberRank, far: PeerRegion) -> Result<(), OutOfMemory> {
        self.with_executor(|executor| executor.add_remote_region(member, far))
    }

    /// [`QueueExecutor::watch_signals`].
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn watch_signals(
        &self,
        member: MemberRank,
        memory: &MemoryRange,
        slots: SlotLayout,
    ) -> Result<(), OutOfMemory> {
        self.with_executor(|executor| executor.watch_signals(member, memory.clone(), slots))
    }
}

/// The producers' view of a queue: who rings there has the executor go on.
fn producer_view<N: MemberNetwork + 'static>(
    shared: &Arc<SharedExecutor<N>>,
    queue: &DeviceQueue<QueueWords>,
) -> Result<DeviceQueue<QueueWords>, QueueError> {
    let ringer = || Arc::clone(shared) as Arc<dyn DoorbellObserver>;
    let words = shared.with_executor(|executor| executor.bell_page().as_memory().with_observer(ringer()));
    let page = trunkline_device_queue::BellPage::open(words)?;
    Ok(DeviceQueue::open(queue.as_memory().with_observer(ringer()), &page)?)
}

impl<N: MemberNetwork + 'static> Drop for DeviceQueues<N> {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.asleep.store(true, Ordering::SeqCst);
        self.shared.wake_thread();
        if let Some(thread) = self.thread.take() {
            // A thread that has panicked has told so.
            let _ = thread.join();
        }
        // Who has a queue of it has the executor, too, which would keep what it has of the network.
        self.shared.turns.lock().shut_down();
    }
}

impl<N: MemberNetwork + 'static> std::fmt::Debug for DeviceQueues<N> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Queues({:?})", self.shared.mode)
    }
}
