//! The world: this process as a rank of a job, from joining to finishing. Programs start here; this module joins the
//! job, registers the heaps and starts the thread for passive progress. It moves no data.

use std::cell::{Cell, RefCell};
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use trunkline_engine::{CommNics, HelperThread};
use trunkline_fabric::LogLevel;
use trunkline_mem::MemoryRange;
use trunkline_proto::ranges::HeapRanges;
use trunkline_runtime::{FrontEndKind, JobCarrier, JobMember, ProcessSettings};

use crate::collective::CollectiveCall;
use crate::context::Context;
use crate::error::Error;
use crate::shared_world::{INNER_BYTES, SharedWorld};

type LogHandler = Box<dyn Fn(LogLevel, &str) + Send + Sync>;

/// This process as a rank of a job.
///
/// A world has the symmetric heap, the collective calls, and a [`Context`] of its own, whose methods it dereferences
/// to. One thread uses it; other threads create contexts with [`context`](Self::context).
///
/// Dropping a world leaves the job at once, and the other ranks see this rank as dead: that is right for a rank that
/// fails. A rank that has done its part calls [`finish`](Self::finish).
pub struct World {
    context: Context,
    carrier: JobCarrier,
    /// The number of collective calls so far.
    pub(crate) meetings: Cell<u32>,
    pub(crate) ranges: RefCell<HeapRanges>,
    helper: Option<HelperThread>,
}

/// The settings of a world that is to be started; see [`World::builder`]. Settings of the builder override the
/// environment.
pub struct WorldBuilder {
    heap: Option<u64>,
    nics: Option<CommNics>,
    passive: Option<bool>,
    meeting: Duration,
    log: LogHandler,
}

impl std::fmt::Debug for WorldBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Builder {{ heap: {:?}, nics: {:?}, passive: {:?} }}", self.heap, self.nics, self.passive)
    }
}

impl WorldBuilder {
    /// Sets the size of the symmetric heap in bytes; all ranks must use the same one [default:
    /// `TRUNKLINE_HEAP_BYTES`, or 64 MiB].
    ///
    /// # Examples
    /// ```no_run
    /// use trunkline::World;
    ///
    /// // All ranks ask for the same size: a symmetric object has the same offset on each of them.
    /// let world = World::builder().heap(1 << 30).start()?; // 1 GiB
    /// let grid = world.alloc::<f64>(100_000_000)?; // 800 MB of it
    /// # Ok::<(), trunkline::Error>(())
    /// ```
    #[must_use]
    pub fn heap(self, bytes: u64) -> Self {
        Self { heap: Some(bytes), ..self }
    }

    /// Sets the NICs to use, one to four, by their numbers in `trunkline info` [default: those that `trunkline topo`
    /// shows for the GPU of this rank, or those near its processors; of software NICs the first one].
    ///
    /// # Errors
    /// [`Error::Argument`] if the list is empty, has more than four numbers, or contains a number twice.
    ///
    /// # Examples
    /// ```no_run
    /// use trunkline::World;
    ///
    /// // `trunkline info` lists the numbers of the NICs; this rank uses two of them.
    /// let world = World::builder().nics(&[0, 1])?.start()?;
    /// println!("{}", world.carrier().nics.join(", "));
    /// # Ok::<(), trunkline::Error>(())
    /// ```
    pub fn nics(self, numbers: &[usize]) -> Result<Self, Error> {
        let nics = CommNics::new(numbers)
            .ok_or(Error::Argument("a world uses one to four different NICs; pass each number once"))?;
        Ok(Self { nics: Some(nics), ..self })
    }

    /// Sets whether a thread serves other ranks while this rank makes no call [default: on, unless
    /// `TRUNKLINE_PROGRESS_THREAD=0`]. The thread sleeps while this rank makes calls.
    ///
    /// Without it, operations of other ranks that need this rank wait until it makes a call that waits, or calls
    /// [`progress`](Context::progress).
    ///
    /// # Examples
    /// ```no_run
    /// # fn relax_row(_row: usize) {}
    /// use trunkline::World;
    ///
    /// let world = World::builder().passive(false).start()?;
    /// for row in 0..10_000 {
    ///     relax_row(row);
    ///     // No thread serves other ranks, so their operations wait for a call of this rank.
    ///     world.progress()?;
    /// }
    /// # Ok::<(), trunkline::Error>(())
    /// ```
    #[must_use]
    pub fn passive(self, on: bool) -> Self {
        Self { passive: Some(on), ..self }
    }

    /// Sets how long the ranks may take to meet [default: two minutes].
    ///
    /// # Examples
    /// ```no_run
    /// use std::time::Duration;
    /// use trunkline::World;
    ///
    /// // If a rank does not start, the others return an error after 10 s instead of two minutes.
    /// let world = World::builder().meeting(Duration::from_secs(10)).start()?;
    /// # Ok::<(), trunkline::Error>(())
    /// ```
    #[must_use]
    pub fn meeting(self, limit: Duration) -> Self {
        Self { meeting: limit, ..self }
    }

    /// Sets the receiver of log lines [default: warnings are written to standard error].
    ///
    /// # Examples
    /// ```no_run
    /// # use trunkline::World;
    /// use std::sync::{Arc, Mutex};
    ///
    /// let lines: Arc<Mutex<Vec<String>>> = Arc::default();
    /// let receiver = Arc::clone(&lines); // the world keeps this one
    /// let builder = World::builder().log(move |level, line| {
    ///     if let Ok(mut lines) = receiver.lock() {
    ///         lines.push(format!("{level:?}: {line}"));
    ///     }
    /// });
    /// let world = builder.start()?;
    /// # Ok::<(), trunkline::Error>(())
    /// ```
    #[must_use]
    pub fn log(self, log: impl Fn(LogLevel, &str) + Send + Sync + 'static) -> Self {
        Self { log: Box::new(log), ..self }
    }

    /// Joins the job as the rank that the environment specifies (`trunkline run`, torchrun, Slurm, `mpiexec`), or
    /// starts a world of one rank without a launcher. Returns when all ranks have met and have registered their
    /// heaps. OpenSHMEM's counterpart is `shmem_init`.
    ///
    /// # Errors
    /// - [`Error::Join`]: the environment is invalid, the fabric cannot be used, or other ranks did not meet within
    ///   the limit. If a setting of any rank is invalid, all ranks return this error, and rank 0 has logged the reason.
    /// - [`Error::Argument`]: the heap is larger than the address space.
    /// - [`Error::Memory`]: the system has no memory for the heap.
    /// - [`Error::Start`], [`Error::Thread`]: the engine cannot register memory, or cannot start the thread for
    ///   passive progress.
    /// - [`Error::Engine`]: the NIC has no room for a context.
    ///
    /// # Examples
    /// ```no_run
    /// use trunkline::{Error, World};
    ///
    /// let world = match World::builder().start() {
    ///     Ok(world) => world,
    ///     Err(Error::Join(reason)) => {
    ///         eprintln!("cannot join the job: {reason}"); // the reason names the remedy
    ///         std::process::exit(2);
    ///     }
    ///     Err(error) => return Err(error),
    /// };
    /// # Ok::<(), Error>(())
    /// ```
    pub fn start(self) -> Result<World, Error> {
        let mut settings = ProcessSettings::from_process(FrontEndKind::Rust)
            .map_err(|error| JobMember::refuse_start(error, self.meeting, &self.log))?;
        let params = &mut settings.params;
        params.progress_thread = self.passive.unwrap_or(params.progress_thread);
        params.heap_bytes = self.heap.unwrap_or(params.heap_bytes);
        let passive = params.progress_thread;
        let heap_bytes = params.heap_bytes;
        let heap_bytes = usize::try_from(heap_bytes).map_err(|_| Error::Argument("the symmetric heap exceeds the address space; lower TRUNKLINE_HEAP_BYTES or WorldBuilder::heap"))?;
        let (network, mut member) =
            JobMember::join(settings, self.nics, self.meeting, "Rust program", self.log)?;
        let heap = MemoryRange::try_heap(heap_bytes)?;
        let inner = MemoryRange::try_heap(INNER_BYTES as usize)?;
        for memory in [&heap, &inner] {
            network.add_heap(memory.clone()).map_err(Error::Start)?;
        }
        let helper = if passive { Some(network.serve_beside().map_err(Error::Thread)?) } else { None };
        let ranges = RefCell::new(HeapRanges::new(heap_bytes as u64));
        // After this barrier, operations of any rank find the heaps of all ranks registered.
        member.barrier()?;
        let JobMember { carrier, rank, size, .. } = member;
        let context = SharedWorld::new(network, rank, size, heap, inner).acquire_context()?;
        Ok(World { context, carrier, meetings: Cell::new(0), ranges, helper })
    }
}

impl World {
    /// Joins the job with the settings of the environment alone; see [`WorldBuilder::start`].
    ///
    /// # Errors
    /// As [`WorldBuilder::start`].
    ///
    /// # Examples
    /// ```no_run
    /// use trunkline::World;
    ///
    /// let world = World::start()?;
    /// println!("rank {} of {}", world.rank(), world.size());
    /// world.finish()?;
    /// # Ok::<(), trunkline::Error>(())
    /// ```
    pub fn start() -> Result<Self, Error> {
        Self::builder().start()
    }

    /// Returns the default settings of a world, to be changed before [`WorldBuilder::start`].
    ///
    /// # Examples
    /// ```no_run
    /// use std::time::Duration;
    /// use trunkline::World;
    ///
    /// let world = World::builder()
    ///     .heap(256 << 20) // 256 MiB
    ///     .meeting(Duration::from_secs(600)) // a queue may start hosts minutes apart
    ///     .start()?;
    /// # Ok::<(), trunkline::Error>(())
    /// ```
    #[must_use]
    pub fn builder() -> WorldBuilder {
        let warn = |level, line: &str| {
            if level == LogLevel::Warn {
                eprintln!("trunkline: {line}");
            }
        };
        let meeting = Duration::from_secs(120);
        WorldBuilder { heap: None, nics: None, passive: None, meeting, log: Box::new(warn) }
    }

    /// Creates a context for another thread, or for operations that are to be completed apart from others.
    /// OpenSHMEM's counterpart is `shmem_ctx_create`.
    ///
    /// A world has at most 16 contexts at a time, its own included. Each other rank accepts at most four contexts of
    /// this rank at a time, including that of an executor of device queues ([`devices`](Self::devices)). The
    /// resources of a dropped context are used again.
    ///
    /// # Errors
    /// [`Error::Argument`] if 16 contexts exist, [`Error::Engine`] if the NIC has no room.
    ///
    /// # Examples
    /// ```no_run
    /// # use trunkline::{Error, World};
    /// # let world = World::start()?;
    /// # let next = (world.rank() + 1) % world.size();
    /// let slots = &world.alloc::<u64>(2)?;
    /// let context = world.context()?; // the world's own context is for this thread
    /// std::thread::scope(|scope| -> Result<(), Error> {
    ///     let second = scope.spawn(move || -> Result<(), Error> {
    ///         context.put(next, slots.at(1), &[8])?;
    ///         context.quiet() // completes the put of the second thread only
    ///     });
    ///     world.put(next, slots.at(0), &[7])?;
    ///     world.quiet()?;
    ///     second.join().expect("the second thread does not panic")
    /// })?;
    /// # Ok::<(), Error>(())
    /// ```
    pub fn context(&self) -> Result<Context, Error> {
        self.context.shared.acquire_context()
    }

    /// Returns the fabric and the NICs that carry the data of this job.
    ///
    /// # Examples
    /// ```no_run
    /// # let world = trunkline::World::start()?;
    /// let carrier = world.carrier();
    /// println!("{}: {}", carrier.fabric, carrier.nics.join(", "));
    /// println!("{} Mbit/s", carrier.speed_mbps); // of all these NICs together
    /// # Ok::<(), trunkline::Error>(())
    /// ```
    #[must_use]
    pub fn carrier(&self) -> &JobCarrier {
        &self.carrier
    }

    /// Returns whether a thread serves other ranks while this rank makes no call.
    ///
    /// # Examples
    /// ```no_run
    /// # let world = trunkline::World::start()?;
    /// # fn relax_row(_row: usize) {}
    /// for row in 0..10_000 {
    ///     relax_row(row);
    ///     if !world.is_passive() {
    ///         world.progress()?; // no thread serves other ranks during this loop
    ///     }
    /// }
    /// # Ok::<(), trunkline::Error>(())
    /// ```
    #[must_use]
    pub fn is_passive(&self) -> bool {
        self.helper.is_some()
    }

    pub(crate) fn shared_world(&self) -> &Arc<SharedWorld> {
        &self.context.shared
    }

    /// Finishes this rank: completes all operations of this world, waits until all ranks have called it, and leaves
    /// the job. Operations of other contexts are to be complete before. OpenSHMEM's counterpart is `shmem_finalize`.
    ///
    /// # Errors
    /// As [`barrier`](Self::barrier).
    ///
    /// # Examples
    /// ```no_run
    /// # fn compute(_world: &trunkline::World) -> Result<(), trunkline::Error> { Ok(()) }
    /// use trunkline::World;
    ///
    /// let world = World::start()?;
    /// // On an error the world is dropped, and the other ranks see this rank as dead.
    /// compute(&world)?;
    /// world.finish()?; // waits for the other ranks, so that each can leave
    /// # Ok::<(), trunkline::Error>(())
    /// ```
    pub fn finish(self) -> Result<(), Error> {
        self.quiet()?;
        self.synchronize_ranks(CollectiveCall::Finish)?;
        // Other ranks may still wait for acknowledgements of this one. A rank that has left needs none, and makes a
        // quiet fail once, so at most one attempt per rank is needed.
        let _ = (0..self.size()).find(|_| self.quiet().is_ok());
        Ok(())
    }
}

impl Deref for World {
    type Target = Context;

    fn deref(&self) -> &Context {
        &self.context
    }
}

impl std::fmt::Debug for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "World(rank {} of {}, {:?})", self.rank(), self.size(), self.carrier)
    }
}
