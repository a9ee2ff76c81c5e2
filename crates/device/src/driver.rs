//! Drives an executor's passes. Owned by a front end. With [`ExecutorMode::Inline`] the threads that ring or wait make the passes. With
//! [`ExecutorMode::Thread`] a thread of its own spins for a while without work, then sleeps until a doorbell is rung. An idle executor then
//! only polls from time to time for requests of other processes.

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

/// Fruitless passes before the thread yields its processor: a producer on the same core may need it.
const SPINS: u32 = 32;
/// Fewest passes with a yield before the thread sleeps. One yield may last for a whole time slice of another thread, so a limit in time
/// alone could end after very few.
const YIELDS: u32 = 64;
/// Shortest time without work before it sleeps.
const AWAKE: Duration = Duration::from_micros(100);
/// The first sleep; each later one has twice the length of the one before.
const SLEEP_FIRST: Duration = Duration::from_micros(50);
/// The longest sleep. Other processes may need passes of this one while all its threads sleep, and they cannot wake it.
const SLEEP_MAX: Duration = Duration::from_millis(2);
/// Time without work before a thread that no producer can wake begins to nap, and the length of a nap.
const DEVICE_AWAKE: Duration = Duration::from_millis(20);
const NAP: Duration = Duration::from_micros(50);
/// Time before the thread naps while operations are in progress but none advances. Operations that took this long are delayed little by a
/// nap.
const BUSY_AWAKE: Duration = Duration::from_millis(20);
/// Passes between two polls for requests of other members, while queues are busy: these polls are more expensive than doorbells.
const SERVE_EVERY: u32 = 16;
/// Most passes in one call of a thread that rings or waits: the thread has its own work.
const TURNS_MAX: u32 = 64;

/// Which threads make the passes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ExecutorMode {
    /// M0: the threads that ring or wait.
    Inline,
    /// M1: a thread of the executor, which producers wake.
    Thread,
    /// M2: a thread that no producer can wake, because they are threads of a device ([`DeviceQueues::for_device`]) or of other processes
    /// ([`DeviceQueues::for_processes`]). It polls the doorbells continuously, and naps between polls after a while without work.
    Device,
}

/// Queues cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum QueuesError {
    /// The executor refused them.
    #[error(transparent)]
    Queue(#[from] QueueError),
    /// The system cannot create a thread.
    #[error("cannot create a thread to execute entries: {0}")]
    Thread(#[source] io::Error),
}

struct SharedExecutor<N> {
    turns: ExecutorLock<QueueExecutor<N>>,
    mode: ExecutorMode,
    /// Set by the thread before it sleeps.
    asleep: AtomicBool,
    stop: AtomicBool,
    thread: OnceLock<Thread>,
}

/// An executor and the thread that drives it, if any. Dropping it ends the thread and aborts all queues with the status of an abandoned
/// reservation, so posts and waits there fail. Entries in progress at that time may or may not take effect.
pub struct DeviceQueues<N: MemberNetwork + 'static> {
    shared: Arc<SharedExecutor<N>>,
    thread: Option<JoinHandle<()>>,
}

impl<N: MemberNetwork> SharedExecutor<N> {
    /// Calls the executor, with priority over passes.
    fn with_executor<T>(&self, f: impl FnOnce(&mut QueueExecutor<N>) -> T) -> T {
        match self.mode {
            ExecutorMode::Inline => {
                self.turns.with_setup(f, TURNS_MAX, |executor| run_caller_pass(executor, false))
            }
            ExecutorMode::Thread | ExecutorMode::Device => f(&mut self.turns.lock()),
        }
    }

    fn wake_thread(&self) {
        // The load avoids a read-modify-write per doorbell while the thread is awake. The swap lets only one of several producers unpark
        // it.
        let sleeps = self.asleep.load(Ordering::SeqCst) && self.asleep.swap(false, Ordering::SeqCst);
        if sleeps && let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }

    /// Runs the thread's loop.
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
        // Relaxed is enough: a late pass is harmless, and `sleep_until_rung` reads the flag again with `SeqCst` before the thread parks.
        while !self.stop.load(Ordering::Relaxed) {
            // Not a blocking lock: the thread must see `stop` also while another thread holds the executor.
            let Some(mut executor) = self.turns.try_lock() else {
                std::thread::yield_now();
                continue;
            };
            let pass = executor.run_pass();
            passes = passes.wrapping_add(1);
            // A waiter may depend on requests of other members, such as a signal that they raise here. So this pass serves them too.
            let waits = self.turns.is_wanted(Ordering::Relaxed) && self.turns.take_wanted();
            // An idle thread serves other members in every pass, as no entry is delayed by that.
            let idles = fruitless >= SPINS;
            let serves = waits || std::mem::take(&mut slept) || idles || passes.is_multiple_of(SERVE_EVERY);
            let served = serves && executor.serve_members();
            // The lock is released before the thread yields or sleeps, so that producers and set-up can use the executor.
            drop(executor);
            if pass.moved || served || waits {
                (fruitless, idle_since) = (0, None);
                sleeps.reset_backoff();
                // The waiter may need this processor to react.
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
            // Operations in progress complete without a doorbell, so the thread must not sleep longer than a nap.
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

    /// Sleeps until a producer rings or waits, at most for `longest`.
    fn sleep_until_rung(&self, longest: Duration) {
        // The flag is stored before the bits are read. A producer sets its bit before it reads the flag. With `SeqCst` on all four, one of
        // the two sees the other, so no doorbell is lost.
        self.asleep.store(true, Ordering::SeqCst);
        let stays = self.stop.load(Ordering::SeqCst) || self.turns.is_wanted(Ordering::SeqCst);
        // If the lock is held, its holder may have taken bits or changed queues, so the thread does not sleep.
        let rung = self.turns.try_lock().is_none_or(|executor| executor.is_rung());
        if !stays && !rung {
            std::thread::park_timeout(longest);
        }
        self.asleep.store(false, Ordering::SeqCst);
    }
}

/// Makes one pass on behalf of a producer or waiter. Returns whether another pass is likely to find work.
fn run_caller_pass<N: MemberNetwork>(executor: &mut QueueExecutor<N>, serves: bool) -> bool {
    let pass = executor.run_pass();
    let goes_on = pass.moved && pass.busy;
    if serves && !pass.moved { executor.serve_members() } else { goes_on }
}

impl<N: MemberNetwork> DoorbellObserver for SharedExecutor<N> {
    #[inline]
    fn on_doorbell(&self) {
        match self.mode {
            // If another thread holds the executor, it makes this pass too.
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
                // The flag is only read once it is set: polls of several waiters would otherwise contend for its cache line.
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
    /// Starts an executor for at most `queues` queues, companions included.
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

    /// Starts an executor whose producers are threads of a device, driven by a thread ([`ExecutorMode::Device`]). Its queues are created by
    /// [`QueueExecutor::make_lane`], in pinned memory.
    ///
    /// # Errors
    /// [`QueuesError`].
    pub fn for_device(network: N, queues: u32, device: GpuDevice) -> Result<Self, QueuesError> {
        let executor = QueueExecutor::for_device(network, queues, &device)?;
        Self::start_thread(executor, ExecutorMode::Device, device.pci_address().ok())
    }

    /// Starts an executor whose producers are other processes of the host, driven by a thread ([`ExecutorMode::Device`]). It has at most
    /// `queues` queues, none deeper than `deepest`, in a memory file ([`QueueExecutor::memory_file`]). Each queue is created here. Its
    /// producer receives its number, and opens it by [`GuestQueues`](super::GuestQueues).
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

    /// Starts the thread, if the mode has one, on processors near the device with this PCI address, if given.
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

    /// Calls the executor between two passes.
    pub fn with_executor<T>(&self, f: impl FnOnce(&mut QueueExecutor<N>) -> T) -> T {
        self.shared.with_executor(f)
    }

    /// Creates a queue for any number of threads.
    ///
    /// # Errors
    /// [`QueueError`].
    pub fn make_queue(&self, depth: u32) -> Result<DeviceQueue<QueueWords>, QueueError> {
        self.make_queue_from(depth, 0)
    }

    /// As [`make_queue`](Self::make_queue), with the first index `first`.
    ///
    /// # Errors
    /// [`QueueError`].
    pub fn make_queue_from(&self, depth: u32, first: u64) -> Result<DeviceQueue<QueueWords>, QueueError> {
        let queue = self.with_executor(|executor| executor.make_queue(depth, first))?;
        self.producer_view(&queue)
    }

    /// Calls [`QueueExecutor::end_queue`].
    pub fn end_queue(&self, number: u32) {
        self.with_executor(|executor| executor.end_queue(number));
        self.drop_retired();
    }

    /// Calls [`QueueExecutor::make_lane`]. The memory is pinned, and freed on failure, without the executor's lock: a driver call may wait
    /// for a kernel that waits for entries.
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

    /// Waits at most `limit` until all submitted entries of these queues have completed, and ends the queues. Then waits at most `last`
    /// until none of their operations is in progress, and returns whether that is so. No thread may post to the queues any more.
    pub fn finish_queues(&self, numbers: &[u32], limit: Duration, last: Duration) -> bool {
        self.wait_until(limit, |executor| numbers.iter().all(|&number| executor.is_through(number)));
        self.with_executor(|executor| numbers.iter().for_each(|&number| executor.end_queue(number)));
        let until = Instant::now() + last;
        let mut ends =
            self.wait_until(last, |executor| !numbers.iter().any(|&number| executor.is_ending(number)));
        self.drop_retired();
        // Raised counters and error words are operations that belong to no entry, so the queues' progress does not cover them.
        let begun = self.with_executor(|executor| executor.begun_ops());
        let last = until.saturating_duration_since(Instant::now());
        ends &= self.wait_until(last, |executor| !executor.is_any_begun(&begun));
        ends
    }

    /// Makes passes until `is_so` returns `true`, at most for `limit`. Returns whether it did.
    pub fn wait_until(&self, limit: Duration, mut is_so: impl FnMut(&mut QueueExecutor<N>) -> bool) -> bool {
        let until = Instant::now() + limit;
        let mut waiting = WaitBackoff::new(WaitPolicy::CALL);
        loop {
            let (done, moved) = self.with_executor(|executor| {
                if is_so(executor) {
                    return (true, true);
                }
                let moved = executor.run_pass().moved | executor.serve_members();
                // Checked again after the pass, so that success needs no further wait.
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

    /// Frees the memory of removed queues without the executor's lock: a driver may first wait for a kernel, which may wait for entries.
    fn drop_retired(&self) {
        let retired = self.with_executor(QueueExecutor::take_retired);
        drop(retired);
    }

    /// Returns the queue with this number, such as a companion.
    #[must_use]
    pub fn find_queue(&self, number: u32) -> Option<DeviceQueue<QueueWords>> {
        self.queue_finder()(number)
    }

    /// Returns a function that finds queues by number, for lanes with companions.
    pub fn queue_finder(
        &self,
    ) -> impl Fn(u32) -> Option<DeviceQueue<QueueWords>> + Clone + Send + Sync + use<N> {
        let shared = Arc::clone(&self.shared);
        let directory = self.queue_directory();
        move |number| {
            let directory = directory.lock().unwrap_or_else(PoisonError::into_inner);
            let queue = directory.get(&number)?.clone();
            // The executor locks the table in its passes. `producer_view` locks the executor, so holding the table here could deadlock.
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

    /// Returns memory with signals and counters whose waits drive or wake the executor.
    #[must_use]
    pub fn observed_words(&self, memory: &MemoryRange) -> QueueWords {
        QueueWords::from_memory(memory.clone())
            .with_observer(Arc::clone(&self.shared) as Arc<dyn DoorbellObserver>)
    }

    /// Calls [`QueueExecutor::add_region`].
    #[must_use]
    pub fn add_region(&self, region: EntryRegion) -> Option<EntryKey> {
        self.with_executor(|executor| executor.add_region(region))
    }

    /// Calls [`QueueExecutor::remove_region`].
    pub fn remove_region(&self, key: EntryKey) -> Option<EntryRegion> {
        self.with_executor(|executor| executor.remove_region(key))
    }

    /// Calls [`QueueExecutor::add_remote_region`].
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn add_remote_region(&self, member: MemberRank, far: PeerRegion) -> Result<(), OutOfMemory> {
        self.with_executor(|executor| executor.add_remote_region(member, far))
    }

    /// Calls [`QueueExecutor::watch_signals`].
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

/// Returns the producers' handle of a queue, whose doorbells drive or wake the executor.
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
        // `wake_thread` unparks only a thread that is marked asleep. If the thread is about to park, the unpark makes that return at once.
        self.shared.asleep.store(true, Ordering::SeqCst);
        self.shared.wake_thread();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was already printed by the panic hook.
            let _ = thread.join();
        }
        // Remaining handles of a queue keep the executor alive. So its resources of the network are released here, not on its drop.
        self.shared.turns.lock().shut_down();
    }
}

impl<N: MemberNetwork + 'static> std::fmt::Debug for DeviceQueues<N> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Queues({:?})", self.shared.mode)
    }
}
