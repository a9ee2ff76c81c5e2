//! Who makes an executor's passes. [`Mode::Inline`]: whoever rings or waits, in his own thread. [`Mode::Thread`]: a thread that spins for a while when
//! there is nothing, and then sleeps until somebody rings; idle queues then cost nothing but a look now and then at what others ask of this process.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, PoisonError};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

use trunkline_device_queue::{Queue, Slots};
use trunkline_mem::Memory;
use trunkline_mem::gpu::Device;
use trunkline_proto::mutant::Mutant;
use trunkline_proto::reserve::OutOfMemory;

use crate::affinity::{SYSFS, run_near};
use crate::executor::{Directory, Executor};
use crate::network::Network;
use crate::queue_error::QueueError;
use crate::region::{Far, Key, Region};
use crate::words::{Ringer, Words};
use trunkline_engine::Turns;
use trunkline_engine::rma::Member;
use trunkline_engine::{Pause, Waiting};

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
pub enum Mode {
    /// M0: who rings or waits.
    Inline,
    /// M1: a thread.
    Thread,
    /// M2: a thread that no producer can wake, as they are threads of a device ([`Queues::for_device`]) or of other processes ([`Queues::for_processes`]). It looks at the doorbells again and again, and naps
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

struct Shared<N> {
    turns: Turns<Executor<N>>,
    mode: Mode,
    /// The thread says so before it falls asleep.
    asleep: AtomicBool,
    stop: AtomicBool,
    thread: OnceLock<Thread>,
    mutant: Mutant,
}

/// An executor and whoever drives it. Dropping it ends the thread, and all queues as an abort does, with the status of a reservation that was abandoned: whoever posts or waits there hears of it.
/// Entries that are under way then may still be done, or not.
pub struct Queues<N: Network + 'static> {
    shared: Arc<Shared<N>>,
    thread: Option<JoinHandle<()>>,
}

impl<N: Network> Shared<N> {
    /// Set-up, which is let in first.
    fn with<T>(&self, f: impl FnOnce(&mut Executor<N>) -> T) -> T {
        match self.mode {
            Mode::Inline => self.turns.with(f, TURNS_MAX, |executor| turn(executor, false)),
            Mode::Thread | Mode::Device => f(&mut self.turns.claim()),
        }
    }

    fn wake(&self) {
        let sleeps = self.asleep.load(Ordering::SeqCst) && self.asleep.swap(false, Ordering::SeqCst);
        if sleeps && let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }

    /// The thread's loop.
    fn run(&self) {
        let mut fruitless = 0_u32;
        let mut passes = 0_u32;
        let mut idle_since = None;
        let mut sleeps = Waiting::patient(0, 0);
        let mut slept = false;
        let (awake, first, most) = match self.mode {
            Mode::Device => (DEVICE_AWAKE, NAP, NAP),
            Mode::Inline | Mode::Thread => (AWAKE, SLEEP_FIRST, SLEEP_MAX),
        };
        while !self.stop.load(Ordering::Relaxed) {
            let Some(mut executor) = self.turns.try_claim() else {
                std::thread::yield_now();
                continue;
            };
            let pass = executor.pass();
            passes = passes.wrapping_add(1);
            // Who waits for a signal waits for what others ask of this process.
            let waits = self.turns.is_wanted(Ordering::Relaxed) && self.turns.take_wanted();
            let idles = fruitless >= SPINS;
            let serves = waits || std::mem::take(&mut slept) || idles || passes.is_multiple_of(SERVE_EVERY);
            let served = serves && executor.serve();
            drop(executor);
            if pass.moved || served || waits {
                (fruitless, idle_since) = (0, None);
                sleeps.moved();
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
            let spins_on =
                self.mutant.is("dev-never-sleeps") || pass.busy && self.mutant.is("dev-never-naps");
            if fruitless < SPINS + YIELDS || since.elapsed() < stays || spins_on {
                std::thread::yield_now();
                continue;
            }
            let pause = if pass.busy { Pause::Park(NAP) } else { sleeps.pause(first, most) };
            let Pause::Park(longest) = pause else { continue };
            self.sleep(longest);
            slept = true;
        }
    }

    /// Sleeps until somebody rings or waits, or so long.
    fn sleep(&self, longest: Duration) {
        let blindly = self.mutant.is("dev-sleeps-blindly");
        if blindly {
            // As if it were interrupted here.
            std::thread::sleep(Duration::from_millis(1));
        }
        self.asleep.store(true, Ordering::SeqCst);
        let stays = self.stop.load(Ordering::SeqCst) || self.turns.is_wanted(Ordering::SeqCst);
        // Who has the executor right now may have changed it.
        let rung = self.turns.try_claim().is_none_or(|executor| executor.is_rung());
        if !stays && (!rung || blindly) {
            // What heals a bug of this kind by and by is left out with it.
            let heals = !blindly && !self.mutant.is("dev-wakes-nobody");
            std::thread::park_timeout(if heals { longest } else { Duration::from_secs(2) });
        }
        self.asleep.store(false, Ordering::SeqCst);
    }
}

/// One of the passes that who rings or waits makes. Whether another is likely to find something.
fn turn<N: Network>(executor: &mut Executor<N>, serves: bool) -> bool {
    let pass = executor.pass();
    let goes_on = pass.moved && pass.busy;
    if serves && !pass.moved { executor.serve() } else { goes_on }
}

impl<N: Network> Ringer for Shared<N> {
    #[inline]
    fn rung(&self) {
        match self.mode {
            // Another thread that is at it goes on for this one.
            Mode::Inline => self.turns.drive(TURNS_MAX, |executor| turn(executor, false)),
            Mode::Thread | Mode::Device if self.mutant.is("dev-wakes-nobody") => {}
            Mode::Thread | Mode::Device => self.wake(),
        }
    }

    #[inline]
    fn waits(&self) {
        match self.mode {
            Mode::Inline => self.turns.drive_if_free(TURNS_MAX, |executor| turn(executor, true)),
            Mode::Thread | Mode::Device => {
                if !self.turns.is_wanted(Ordering::Relaxed) {
                    self.turns.want();
                    self.wake();
                }
                std::hint::spin_loop();
            }
        }
    }
}

impl<N: Network + 'static> Queues<N> {
    /// At most `queues` queues over a network, companions included.
    ///
    /// # Errors
    /// [`QueuesError`].
    pub fn start(network: N, queues: u32, mode: Mode, mutant: Mutant) -> Result<Self, QueuesError> {
        match mode {
            Mode::Device => Err(QueueError::Device.into()),
            Mode::Inline | Mode::Thread => {
                Self::drive(Executor::new(network, queues, mutant)?, mode, None, mutant)
            }
        }
    }

    /// Queues whose producers are threads of a device, executed by a thread ([`Mode::Device`]): made by [`Executor::make_lane`], in pinned memory.
    ///
    /// # Errors
    /// [`QueuesError`].
    pub fn for_device(network: N, queues: u32, device: Device, mutant: Mutant) -> Result<Self, QueuesError> {
        let executor = Executor::for_device(network, queues, &device, mutant)?;
        Self::drive(executor, Mode::Device, device.pci_address().ok(), mutant)
    }

    /// Queues whose producers are threads of other processes of the host, executed by a thread ([`Mode::Device`]): at most so many, none deeper than `deepest`, in a memory file
    /// ([`Executor::file`]). Each queue is made here and named to its producer by its number, who opens it by [`Guest`](super::Guest).
    ///
    /// # Errors
    /// [`QueuesError`].
    pub fn for_processes(network: N, queues: u32, deepest: u32, mutant: Mutant) -> Result<Self, QueuesError> {
        Self::drive(Executor::for_processes(network, queues, deepest, mutant)?, Mode::Device, None, mutant)
    }

    /// Starts the thread, if the mode has one: near the device of this PCI address, if there is one.
    fn drive(
        executor: Executor<N>,
        mode: Mode,
        near: Option<String>,
        mutant: Mutant,
    ) -> Result<Self, QueuesError> {
        let shared = Arc::new(Shared {
            turns: Turns::new(executor, mutant),
            mode,
            asleep: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            thread: OnceLock::new(),
            mutant,
        });
        let thread = match mode {
            Mode::Inline => None,
            Mode::Thread | Mode::Device => {
                let run = Arc::clone(&shared);
                let builder = std::thread::Builder::new().name("trunkline-devq".to_owned());
                let bind_and_run = move || {
                    near.iter().for_each(|near| _ = run_near(Path::new(SYSFS), near, mutant));
                    run.run();
                };
                Some(builder.spawn(bind_and_run).map_err(QueuesError::Thread)?)
            }
        };
        if let Some(thread) = &thread {
            let _first = shared.thread.set(thread.thread().clone());
        }
        Ok(Self { shared, thread })
    }

    pub(super) fn mutant(&self) -> Mutant {
        self.shared.mutant
    }

    /// Calls the executor, between two passes.
    pub fn with<T>(&self, f: impl FnOnce(&mut Executor<N>) -> T) -> T {
        self.shared.with(f)
    }

    /// A new queue, for any number of threads.
    ///
    /// # Errors
    /// [`QueueError`].
    pub fn queue(&self, depth: u32) -> Result<Queue<Words>, QueueError> {
        self.queue_from(depth, 0)
    }

    /// The same, whose first index is `first`.
    ///
    /// # Errors
    /// [`QueueError`].
    pub fn queue_from(&self, depth: u32, first: u64) -> Result<Queue<Words>, QueueError> {
        let queue = self.with(|executor| executor.make_queue(depth, first))?;
        self.told(&queue)
    }

    /// [`Executor::end_queue`].
    pub fn end_queue(&self, number: u32) {
        self.with(|executor| executor.end_queue(number));
        self.drop_retired();
    }

    /// [`Executor::make_lane`]; the memory is pinned, and freed if there is no lane, while the executor is another's.
    ///
    /// # Errors
    /// [`QueueError`].
    pub fn lane(&self, device: &Device, depth: u32, first: u64) -> Result<[u32; 2], QueueError> {
        let bytes = Executor::<N>::lane_bytes(depth)?;
        let pinned = [device.pinned(bytes)?, device.pinned(bytes)?];
        let made = self.with(|executor| executor.make_lane(depth, first, &pinned));
        self.drop_retired();
        made
    }

    /// Waits until all that was submitted to these queues is complete, at most so long; ends them, and waits until nothing that they have begun is under way,
    /// at most `last` longer. Whether nothing is. To be called when no thread posts to them any more.
    pub fn finish(&self, numbers: &[u32], limit: Duration, last: Duration) -> bool {
        self.wait_until(limit, |executor| numbers.iter().all(|&number| executor.is_through(number)));
        self.with(|executor| numbers.iter().for_each(|&number| executor.end_queue(number)));
        let until = Instant::now() + last;
        let mut ends =
            self.wait_until(last, |executor| !numbers.iter().any(|&number| executor.is_ending(number)));
        self.drop_retired();
        // Counters that queues have raised, and error words that they have set, are no entry's.
        let begun = self.with(|executor| executor.begun());
        let last = until.saturating_duration_since(Instant::now());
        ends &= self.wait_until(last, |executor| !executor.is_any_begun(&begun));
        ends
    }

    /// Has the executor go on until something is so, at most so long. Whether it is.
    pub fn wait_until(&self, limit: Duration, mut is_so: impl FnMut(&mut Executor<N>) -> bool) -> bool {
        let until = Instant::now() + limit;
        let mut fruitless = 0_u32;
        loop {
            let (done, moved) = self.with(|executor| {
                if is_so(executor) {
                    return (true, true);
                }
                let moved = executor.pass().moved | executor.serve();
                (is_so(executor), moved)
            });
            if done || Instant::now() >= until {
                return done;
            }
            fruitless = if moved { 0 } else { fruitless.saturating_add(1) };
            if fruitless < SPINS + YIELDS {
                std::thread::yield_now();
            } else {
                std::thread::park_timeout(NAP);
            }
        }
    }

    /// Frees the memory of queues that are gone, while the executor is another's: a driver may wait for a kernel first, which may wait for entries.
    fn drop_retired(&self) {
        let retired = self.with(Executor::take_retired);
        drop(retired);
    }

    /// The queue of a number, such as a companion.
    #[must_use]
    pub fn find(&self, number: u32) -> Option<Queue<Words>> {
        self.finder()(number)
    }

    /// Finds queues by their numbers, for lanes that have companions.
    pub fn finder(&self) -> impl Fn(u32) -> Option<Queue<Words>> + Clone + Send + Sync + use<N> {
        let shared = Arc::clone(&self.shared);
        let directory = self.directory();
        move |number| {
            let directory = directory.lock().unwrap_or_else(PoisonError::into_inner);
            let queue = directory.get(&number)?.clone();
            drop(directory);
            told(&shared, &queue).ok()
        }
    }

    fn directory(&self) -> Directory {
        self.with(|executor| executor.directory())
    }

    fn told(&self, queue: &Queue<Words>) -> Result<Queue<Words>, QueueError> {
        told(&self.shared, queue)
    }

    /// Memory with signals and counters, so that who waits there has the executor go on.
    #[must_use]
    pub fn words(&self, memory: &Memory) -> Words {
        Words::of(memory.clone()).told(Arc::clone(&self.shared) as Arc<dyn Ringer>)
    }

    /// [`Executor::add_region`].
    #[must_use]
    pub fn add_region(&self, region: Region) -> Option<Key> {
        self.with(|executor| executor.add_region(region))
    }

    /// [`Executor::remove_region`].
    pub fn remove_region(&self, key: Key) -> Option<Region> {
        self.with(|executor| executor.remove_region(key))
    }

    /// [`Executor::learn`].
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn learn(&self, member: Member, far: Far) -> Result<(), OutOfMemory> {
        self.with(|executor| executor.learn(member, far))
    }

    /// [`Executor::watch`].
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn watch(&self, member: Member, memory: &Memory, slots: Slots) -> Result<(), OutOfMemory> {
        self.with(|executor| executor.watch(member, memory.clone(), slots))
    }
}

/// The producers' view of a queue: who rings there has the executor go on.
fn told<N: Network + 'static>(
    shared: &Arc<Shared<N>>,
    queue: &Queue<Words>,
) -> Result<Queue<Words>, QueueError> {
    let ringer = || Arc::clone(shared) as Arc<dyn Ringer>;
    let words = shared.with(|executor| executor.page().words().told(ringer()));
    let page = trunkline_device_queue::BellPage::open(words, shared.mutant)?;
    Ok(Queue::open(queue.words().told(ringer()), &page, shared.mutant)?)
}

impl<N: Network + 'static> Drop for Queues<N> {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.asleep.store(true, Ordering::SeqCst);
        self.shared.wake();
        if let Some(thread) = self.thread.take() {
            // A thread that has panicked has told so.
            let _ = thread.join();
        }
        // Who has a queue of it has the executor, too, which would keep what it has of the network.
        self.shared.turns.claim().leave();
    }
}

impl<N: Network + 'static> std::fmt::Debug for Queues<N> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Queues({:?})", self.shared.mode)
    }
}
