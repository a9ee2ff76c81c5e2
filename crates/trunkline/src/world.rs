//! The world: this process as a rank of a job, from its start to its end.

use std::cell::{Cell, RefCell};
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use trunkline_engine::{CommNics, HelperThread};
use trunkline_fabric::LogLevel;
use trunkline_mem::MemoryRange;
use trunkline_proto::ranges::HeapRanges;
use trunkline_runtime::{JobCarrier, JobMember};

use crate::collective::CollectiveCall;
use crate::context::Context;
use crate::error::Error;
use crate::shared_world::{INNER_BYTES, SharedWorld};

/// Passive progress is what programs of this kind expect.
const DEFAULTS: [(&str, &str); 1] = [("TRUNKLINE_PROGRESS_THREAD", "1")];

type LogHandler = Box<dyn Fn(LogLevel, &str) + Send + Sync>;

/// This process as a rank of a job: the symmetric heap, what ranks do together, and a [`Context`] of its own, whose methods it
/// has, too.
///
/// It is used by one thread; others make a context each.
///
/// Dropping it leaves at once, and the others are told that this rank is gone: that is for a rank that fails. One that has done its part
/// calls [`finish`](Self::finish).
pub struct World {
    context: Context,
    carrier: JobCarrier,
    /// Meetings so far.
    pub(crate) meetings: Cell<u32>,
    pub(crate) ranges: RefCell<HeapRanges>,
    helper: Option<HelperThread>,
}

/// How a world is to be; see [`World::builder`].
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
    /// Bytes of the symmetric heap; the same on all ranks [default: `TRUNKLINE_HEAP_BYTES`, or 64 MiB].
    #[must_use]
    pub fn heap(self, bytes: u64) -> Self {
        Self { heap: Some(bytes), ..self }
    }

    /// The NICs to use, one to four, by their numbers in `trunkline info` [default: those that `trunkline topo`
    /// shows for the GPU of this rank, or those near its processors; of software NICs the first one].
    ///
    /// # Errors
    /// [`Error::Argument`] if there are none, more than four, or one twice.
    pub fn nics(self, numbers: &[usize]) -> Result<Self, Error> {
        let nics = CommNics::new(numbers).ok_or(Error::Argument("a world has one to four different NICs"))?;
        Ok(Self { nics: Some(nics), ..self })
    }

    /// Whether a thread serves other ranks while this one makes no call [default: it does, unless `TRUNKLINE_PROGRESS_THREAD=0`]. It
    /// sleeps while this rank calls. Without it, other ranks wait until this one makes a call that waits, or
    /// [`progress`](Context::progress).
    #[must_use]
    pub fn passive(self, on: bool) -> Self {
        Self { passive: Some(on), ..self }
    }

    /// How long the ranks may take to meet [default: two minutes].
    #[must_use]
    pub fn meeting(self, limit: Duration) -> Self {
        Self { meeting: limit, ..self }
    }

    /// Where lines for people go [default: warnings to standard error].
    #[must_use]
    pub fn log(self, log: impl Fn(LogLevel, &str) + Send + Sync + 'static) -> Self {
        Self { log: Box::new(log), ..self }
    }

    /// Starts, as the rank that the environment says (`trunkline run`, torchrun, Slurm, `mpiexec`), or as the only one. Comes back when
    /// all ranks have met.
    ///
    /// # Errors
    /// What the environment says cannot be, the fabric cannot be used, or other ranks do not come.
    pub fn start(self) -> Result<World, Error> {
        let mut params = trunkline_runtime::params_or(&DEFAULTS)?;
        params.progress_thread = self.passive.unwrap_or(params.progress_thread);
        params.heap_bytes = self.heap.unwrap_or(params.heap_bytes);
        let passive = params.progress_thread;
        let heap_bytes = params.heap_bytes;
        let heap_bytes = usize::try_from(heap_bytes).map_err(|_| Error::Argument("no heap is that large"))?;
        let (network, mut member) =
            JobMember::join(params, self.nics, self.meeting, "Rust program", self.log)?;
        let heap = MemoryRange::try_heap(heap_bytes)?;
        let inner = MemoryRange::try_heap(INNER_BYTES as usize)?;
        for memory in [&heap, &inner] {
            network.add_heap(memory.clone()).map_err(Error::Start)?;
        }
        let helper = if passive { Some(network.serve_beside().map_err(Error::Thread)?) } else { None };
        let ranges = RefCell::new(HeapRanges::new(heap_bytes as u64));
        // Who begins something finds all heaps of all.
        member.barrier()?;
        let JobMember { carrier, rank, size, .. } = member;
        let context = SharedWorld::new(network, rank, size, heap, inner).acquire_context()?;
        Ok(World { context, carrier, meetings: Cell::new(0), ranges, helper })
    }
}

impl World {
    /// Starts with what the environment says; see [`WorldBuilder::start`].
    ///
    /// # Errors
    /// As [`WorldBuilder::start`].
    pub fn start() -> Result<Self, Error> {
        Self::builder().start()
    }

    /// How a world is to be.
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

    /// A context for another thread, or for operations that are to be waited for apart from others. A world has 16 at most at a time, its own
    /// included, and each other rank takes four from it; a context that is dropped is used again.
    ///
    /// # Errors
    /// [`Error::Argument`] if there are 16, [`Error::Engine`] if the NIC has no room.
    pub fn context(&self) -> Result<Context, Error> {
        self.context.shared.acquire_context()
    }

    /// What carries the data.
    #[must_use]
    pub fn carrier(&self) -> &JobCarrier {
        &self.carrier
    }

    /// Whether a thread serves other ranks while this one makes no call.
    #[must_use]
    pub fn is_passive(&self) -> bool {
        self.helper.is_some()
    }

    pub(crate) fn shared_world(&self) -> &Arc<SharedWorld> {
        &self.context.shared
    }

    /// Ends, when all that this rank's world has begun is complete and all ranks have called it.
    ///
    /// # Errors
    /// As [`barrier`](Self::barrier).
    pub fn finish(self) -> Result<(), Error> {
        self.quiet()?;
        self.synchronize_ranks(CollectiveCall::Finish)?;
        // Others may be waiting for what this rank owes them. Those that need nothing more are gone, and took what was for them.
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
