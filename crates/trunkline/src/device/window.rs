//! The executor of a rank, and windows, which all ranks make and free together.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use trunkline_device::{
    DeviceQueues, EntryKey, EntryRegion, ErrorTable, ExecutorMode, FlushedNetwork, HostDeadline,
    ProxyNetwork, QueueWords,
};
use trunkline_device_queue::{BellPage, CompanionDirectory, DeviceQueue, EntryTicket, WordMemory as _};
use trunkline_mem::{MemoryRange, OutOfMemory};
use trunkline_proto::wire::device_queue::{WindowLayout, WindowShape, at, is_before};
use trunkline_runtime::DeviceQueueContext;

use super::error::DeviceError;
use super::guest::LentChannels;
use super::kernel::Kernel;
use super::on_gpu::{GpuPlacement, OnGpu};
use super::view::DeviceTables;
use super::window_setup::{END_MAX, SETTLE_MAX, WindowRecord, agree_on_end};
use crate::shared_world::SharedWorld;
use crate::world::World;

/// Queues of an executor at a time, companions included.
const QUEUES: u32 = 1024;

/// The network by which the executor of a rank's queues carries out entries.
pub(super) type WindowNetwork = ProxyNetwork<FlushedNetwork<DeviceQueueContext>>;

fn window_network(carrying: DeviceQueueContext) -> Result<WindowNetwork, OutOfMemory> {
    ProxyNetwork::new(FlushedNetwork::new(carrying))
}

/// The executor of this rank's device queues. It lives until the last window of it is gone.
#[derive(Clone, Debug)]
pub struct Devices {
    pub(super) inner: Arc<ExecutorResources>,
}

pub(super) struct ExecutorResources {
    pub(super) queues: DeviceQueues<WindowNetwork>,
    pub(super) shared: Arc<SharedWorld>,
    /// Where kernels run, if not on the host.
    pub(super) gpu: Option<GpuPlacement>,
    /// Queues and windows lie in memory files.
    pub(super) is_for_processes: bool,
    /// It was said that memory of the GPU is not registered with NICs, and why.
    pub(super) said_why_shadowed: AtomicBool,
}

impl std::fmt::Debug for ExecutorResources {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.queues)
    }
}

/// How a window is to be; the same on all ranks.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct WindowConfig {
    /// Bytes of data.
    pub bytes: u64,
    /// Signals that each rank may raise at each.
    pub signals: u32,
    /// Counters of each rank.
    pub counters: u32,
    /// Barriers.
    pub barriers: u32,
    /// Kernels at a time; each has a channel.
    pub channels: u32,
    /// Queues of a channel, 1 to 64: puts take turns.
    pub lanes: u32,
    /// Entries of a queue.
    pub depth: u32,
    /// Chunks of a stream that may be under way, where kernels send and receive; 0: they do not.
    pub chunks: u32,
    /// Bytes of a chunk, a multiple of 16.
    pub chunk: u64,
}

impl Default for WindowConfig {
    /// One channel of one lane, one barrier, and no streams.
    fn default() -> Self {
        Self {
            bytes: 0,
            signals: 0,
            counters: 0,
            barriers: 1,
            channels: 1,
            lanes: 1,
            depth: 256,
            chunks: 0,
            chunk: 4096,
        }
    }
}

impl WindowConfig {
    pub(super) fn to_layout(self, ranks: usize) -> Result<WindowLayout, DeviceError> {
        let streams = if self.chunks == 0 { 0 } else { self.channels };
        Ok(WindowLayout::new(WindowShape {
            ranks: ranks as u32,
            bytes: self.bytes,
            signals: self.signals,
            counters: self.counters,
            barriers: self.barriers,
            channels: streams,
            lanes: self.lanes.max(1),
            depth: self.chunks.max(1),
            chunk: self.chunk.max(16),
        })?)
    }

    pub(super) fn to_words(self) -> [u64; 8] {
        let Self { bytes, signals, counters, barriers, channels, lanes, chunks, chunk, .. } = self;
        let [signals, counters, barriers, channels, lanes, chunks] =
            [signals, counters, barriers, channels, lanes, chunks].map(u64::from);
        [bytes, signals, counters, barriers, channels, lanes, chunks, chunk]
    }
}

/// Finds companions.
pub(super) type CompanionFinder = Box<dyn Fn(u32) -> Option<DeviceQueue<QueueWords>> + Send + Sync>;

/// Memory of every rank that kernels put to and get from. Freed by [`Window::free`], which all ranks call; one that is dropped stays
/// registered until the world ends.
pub struct Window {
    pub(super) inner: Arc<ExecutorResources>,
    pub(super) config: WindowConfig,
    pub(super) part: OwnPart,
    /// The parts of it that are to be taken back.
    pub(super) record: WindowRecord,
    /// By channel, then by lane; none of a window whose kernels run on a GPU.
    pub(super) queues: Vec<Vec<DeviceQueue<QueueWords>>>,
    pub(super) on_gpu: Option<OnGpu>,
    /// Of a window that other processes may use.
    pub(super) lent: Option<LentChannels>,
}

/// A rank's own part of a window, and how entries name all parts: what kernels use, of this process and of others.
#[derive(Debug)]
pub(super) struct OwnPart {
    pub(super) layout: WindowLayout,
    pub(super) memory: MemoryRange,
    /// The same memory, for waits.
    pub(super) words: QueueWords,
    /// By rank.
    pub(super) keys: Vec<EntryKey>,
    pub(super) rank: usize,
}

impl std::fmt::Debug for Window {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Window({:?})", self.config)
    }
}

/// Memory of this rank alone that kernels put from and get into, beside a window's own.
#[derive(Clone, Debug)]
pub struct SourceMemory {
    pub(super) memory: MemoryRange,
    pub(super) key: EntryKey,
}

impl World {
    /// Starts the executor of this rank's device queues. Each rank has its own, and all of a job may be of different modes.
    ///
    /// # Errors
    /// [`DeviceError::Engine`], [`DeviceError::Queues`].
    pub fn devices(&self, mode: ExecutorMode) -> Result<Devices, DeviceError> {
        let network = window_network(self.shared_world().network.device_queue_context()?)?;
        let queues = DeviceQueues::start(network, QUEUES, mode)?;
        Ok(self.devices_of(queues, None, false))
    }

    fn devices_of(
        &self,
        queues: DeviceQueues<WindowNetwork>,
        gpu: Option<GpuPlacement>,
        is_for_processes: bool,
    ) -> Devices {
        let shared = Arc::clone(self.shared_world());
        Devices {
            inner: Arc::new(ExecutorResources {
                queues,
                shared,
                gpu,
                is_for_processes,
                said_why_shadowed: AtomicBool::new(false),
            }),
        }
    }

    /// The same for kernels in other processes of the host, to which channels of its windows are lent ([`Window::lend`]): at most `queues` queues, and none deeper than
    /// `deepest`. All of them lie in one memory file. A thread executes, which nobody can wake, so it looks at doorbells again and again while there is something to do, and
    /// every 50 us while there is not.
    ///
    /// # Errors
    /// [`DeviceError::Engine`], [`DeviceError::Queues`].
    pub fn devices_for_processes(&self, queues: u32, deepest: u32) -> Result<Devices, DeviceError> {
        let network = window_network(self.shared_world().network.device_queue_context()?)?;
        let queues = DeviceQueues::for_processes(network, queues, deepest)?;
        Ok(self.devices_of(queues, None, true))
    }

    /// The same for kernels of a GPU, which make windows of this executor and use them (mode M2). Ranks of a job may have them beside ranks whose kernels are threads.
    ///
    /// # Errors
    /// [`DeviceError::Engine`], [`DeviceError::Queues`].
    pub fn devices_of_gpu(&self, gpu: GpuPlacement) -> Result<Devices, DeviceError> {
        let network = window_network(self.shared_world().network.device_queue_context()?)?;
        let queues = DeviceQueues::for_device(network, QUEUES, gpu.device.clone())?;
        Ok(self.devices_of(queues, Some(gpu), false))
    }
}

impl Devices {
    /// Queues that its windows have, companions included; an executor has up to 1,024.
    #[must_use]
    pub fn queue_count(&self) -> usize {
        self.inner.queues.with_executor(|executor| executor.queue_count())
    }

    /// Registers memory of this rank alone, for kernels to put from and get into.
    ///
    /// # Errors
    /// [`DeviceError::Engine`], [`DeviceError::Regions`].
    pub fn register(&self, memory: &MemoryRange) -> Result<SourceMemory, DeviceError> {
        let heap = self.inner.shared.network.add_heap(memory.clone())?;
        let region = EntryRegion {
            memory: memory.clone(),
            heap,
            table: ErrorTable::default(),
            copies: None,
            words: None,
        };
        let Some(key) = self.inner.queues.add_region(region) else {
            self.inner.shared.network.remove_heap(heap)?;
            return Err(DeviceError::Regions);
        };
        Ok(SourceMemory { memory: memory.clone(), key })
    }

    /// The same of new bytes, zeros.
    ///
    /// # Errors
    /// As [`Devices::register`]; [`DeviceError::Allocate`].
    pub fn source(&self, bytes: usize) -> Result<SourceMemory, DeviceError> {
        self.register(&MemoryRange::try_heap(bytes)?)
    }

    /// Ends the registration of such memory. What kernels have begun with it must be complete.
    ///
    /// # Errors
    /// [`DeviceError::Engine`].
    pub fn unregister(&self, source: SourceMemory) -> Result<(), DeviceError> {
        if let Some(region) = self.inner.queues.remove_region(source.key) {
            self.inner.shared.network.remove_heap(region.heap)?;
        }
        Ok(())
    }
}

impl Window {
    /// What one thread uses of the window, by a channel that no other kernel has at the same time. It goes on where the last one of that channel ended.
    ///
    /// # Errors
    /// [`DeviceError::NoChannel`]; [`DeviceError::Earlier`] if what that one posted has failed; [`DeviceError::OnGpu`].
    pub fn kernel(&self, channel: u32) -> Result<Kernel<'_>, DeviceError> {
        if self.on_gpu.is_some() {
            return Err(DeviceError::OnGpu);
        }
        let lanes = self.channel_lanes(channel)?;
        if self.lent.as_ref().is_some_and(|lent| lent.is_lent(channel)) {
            return Err(DeviceError::Lent { channel });
        }
        for queue in lanes {
            let ready = queue.as_memory().load(at::READY, std::sync::atomic::Ordering::Acquire);
            if is_before(0, ready) {
                let number = queue.queue_shape().number();
                let epoch = queue.queue_shape().epoch();
                let last = EntryTicket { queue: number, epoch, index: ready.wrapping_sub(1) };
                queue.wait(last, &mut HostDeadline::without_deadline()).map_err(DeviceError::Earlier)?;
            }
        }
        Ok(Kernel::new(&self.part, channel, lanes, None))
    }

    /// The queues of a channel, by lane.
    pub(super) fn channel_lanes(&self, channel: u32) -> Result<&[DeviceQueue<QueueWords>], DeviceError> {
        let none = DeviceError::NoChannel { channel, channels: self.queues.len() as u32 };
        self.queues.get(channel as usize).map(Vec::as_slice).ok_or(none)
    }

    /// How large it is.
    #[must_use]
    pub const fn config(&self) -> &WindowConfig {
        &self.config
    }

    /// Copies bytes into this rank's part.
    ///
    /// # Errors
    /// [`DeviceError::Range`].
    pub fn write(&self, at: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.check_range(at, bytes.len() as u64)?;
        if let Some(on_gpu) = &self.on_gpu {
            return on_gpu.write_bytes(at, bytes);
        }
        // It is inside.
        let _ = self.part.memory.write(at, bytes);
        Ok(())
    }

    /// Copies bytes out of this rank's part.
    ///
    /// # Errors
    /// [`DeviceError::Range`].
    pub fn read(&self, at: u64, into: &mut [u8]) -> Result<(), DeviceError> {
        self.check_range(at, into.len() as u64)?;
        if let Some(on_gpu) = &self.on_gpu {
            return on_gpu.read_bytes(at, into);
        }
        let _ = self.part.memory.read(at, into);
        Ok(())
    }

    fn check_range(&self, at: u64, len: u64) -> Result<(), DeviceError> {
        let bytes = self.config.bytes;
        let inside = at.checked_add(len).is_some_and(|end| end <= bytes);
        if inside { Ok(()) } else { Err(DeviceError::Range { at, len, bytes }) }
    }

    /// The window as plain numbers, as a kernel in another language takes it: docs/wire.md, "Windows". It stays right while the window lives. To be made once:
    /// kernels of a channel go on with the words that are in it.
    ///
    /// # Errors
    /// [`DeviceError::Allocate`].
    pub fn device_view(&self) -> Result<DeviceTables, DeviceError> {
        Ok(DeviceTables::from_window(self)?)
    }

    /// Runs what launches kernels in another language, in a thread of its own, and has the executor go on until it comes back: such kernels ring and wait without
    /// telling it.
    ///
    /// # Panics
    /// As `launch`.
    pub fn attend<T: Send>(&self, launch: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let launched = scope.spawn(launch);
            while !launched.is_finished() {
                self.part.words.pause();
                std::thread::yield_now();
            }
            launched.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// The companion of a lane's queue, by which counters count what has completed: made when first asked for.
    ///
    /// # Errors
    /// [`DeviceError::NoChannel`], [`DeviceError::Earlier`].
    pub fn companion(&self, channel: u32, lane: usize) -> Result<DeviceQueue<QueueWords>, DeviceError> {
        let missing = DeviceError::NoChannel { channel, channels: self.queues.len() as u32 };
        let queue = self.channel_lanes(channel)?.get(lane).ok_or(missing)?;
        let number =
            queue.companion_within(&mut HostDeadline::without_deadline()).map_err(DeviceError::Earlier)?;
        let finder: CompanionFinder = Box::new(self.inner.queues.queue_finder());
        finder.find_queue(number).ok_or(DeviceError::Regions)
    }

    /// The page of doorbells, for [`DeviceTables`].
    pub(super) fn doorbell_page(&self) -> BellPage<QueueWords> {
        self.inner.queues.with_executor(|executor| executor.bell_page().clone())
    }

    /// Frees it, at all ranks, which all call it once their kernels have ended. What those have submitted is waited for, for ten seconds at most. Its queues are others' then: nothing of
    /// it is to be used any more, also by those to whom it was [lent](Window::lend).
    ///
    /// # Errors
    /// [`DeviceError::Unsettled`] if something was still under way then at any rank: the window's memory stays registered at all of them until the world ends, as
    /// a network may still read or write it. As [`World::barrier`], [`DeviceError::Engine`].
    pub fn free(self, world: &World) -> Result<(), DeviceError> {
        let queues = &self.inner.queues;
        let record = &self.record;
        let is_settled = queues.finish_queues(&record.numbers, SETTLE_MAX, END_MAX);
        // No rank puts to it, gets from it, or asks its owner for anything any more ...
        agree_on_end(world, is_settled)?;
        // ... and the requests of others here are answered.
        let heap = record.boxes_heap();
        let is_idle = queues
            .wait_until(END_MAX, |executor| heap.is_none_or(|heap| executor.network_mut().is_idle(heap)));
        agree_on_end(world, is_idle)?;
        Ok(record.take_back(&self.inner)?)
    }
}
