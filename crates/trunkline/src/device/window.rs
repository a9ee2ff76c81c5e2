//! The executor of a rank, and windows, which all ranks create and free together. Host threads call it; kernels use
//! [`Kernel`].

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

/// Queues of an executor at a time, including companions.
const QUEUES: u32 = 1024;

/// The network through which a rank's executor carries out entries.
pub(super) type WindowNetwork = ProxyNetwork<FlushedNetwork<DeviceQueueContext>>;

fn window_network(carrying: DeviceQueueContext) -> Result<WindowNetwork, OutOfMemory> {
    ProxyNetwork::new(FlushedNetwork::new(carrying))
}

/// The executor of this rank's device queues: it carries out the entries that kernels post. It lives as long as this
/// value, a clone of it, or a window of it.
#[derive(Clone, Debug)]
pub struct Devices {
    pub(super) inner: Arc<ExecutorResources>,
}

pub(super) struct ExecutorResources {
    pub(super) queues: DeviceQueues<WindowNetwork>,
    pub(super) shared: Arc<SharedWorld>,
    /// The GPU whose kernels use the windows; `None` for kernels on the host.
    pub(super) gpu: Option<GpuPlacement>,
    /// Whether queues and windows are in memory files, for other processes.
    pub(super) is_for_processes: bool,
    /// Whether the reason was logged why GPU memory is not registered with NICs.
    pub(super) said_why_shadowed: AtomicBool,
}

impl std::fmt::Debug for ExecutorResources {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.queues)
    }
}

/// The shape of a window; the same on all ranks.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct WindowConfig {
    /// Bytes of data per rank.
    pub bytes: u64,
    /// Signals per pair of ranks: each rank can raise that many at each rank.
    pub signals: u32,
    /// Counters per rank.
    pub counters: u32,
    /// Barriers of the window.
    pub barriers: u32,
    /// Channels: the number of kernels that use the window at a time.
    pub channels: u32,
    /// Queues per channel, 1 to 64. Puts alternate between them.
    pub lanes: u32,
    /// Entries per queue.
    pub depth: u32,
    /// Chunks of a stream that may be in flight, for kernels that send and receive; 0 for none.
    pub chunks: u32,
    /// Bytes per chunk, a multiple of 16.
    pub chunk: u64,
}

impl Default for WindowConfig {
    /// Returns a shape with one channel of one lane, one barrier, and no streams.
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

/// Finds the companion of a queue by its number.
pub(super) type CompanionFinder = Box<dyn Fn(u32) -> Option<DeviceQueue<QueueWords>> + Send + Sync>;

/// Memory of every rank that kernels put to and get from, with signals, counters, barriers and streams. All ranks
/// call [`Window::free`]; a dropped window stays registered until the world ends.
pub struct Window {
    pub(super) inner: Arc<ExecutorResources>,
    pub(super) config: WindowConfig,
    pub(super) part: OwnPart,
    /// The resources that are released when it ends.
    pub(super) record: WindowRecord,
    /// The queues by channel, then by lane; empty if kernels run on a GPU.
    pub(super) queues: Vec<Vec<DeviceQueue<QueueWords>>>,
    pub(super) on_gpu: Option<OnGpu>,
    /// The lent channels, for windows that other processes may use.
    pub(super) lent: Option<LentChannels>,
}

/// A rank's own part of a window, and the names of all parts in entries. Kernels of this process and of others use
/// it.
#[derive(Debug)]
pub(super) struct OwnPart {
    pub(super) layout: WindowLayout,
    pub(super) memory: MemoryRange,
    /// The same memory, for waits on words.
    pub(super) words: QueueWords,
    /// The keys of all parts, by rank.
    pub(super) keys: Vec<EntryKey>,
    pub(super) rank: usize,
}

impl std::fmt::Debug for Window {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Window({:?})", self.config)
    }
}

/// Registered memory of this rank alone, from which kernels put in addition to a window's own.
#[derive(Clone, Debug)]
pub struct SourceMemory {
    pub(super) memory: MemoryRange,
    pub(super) key: EntryKey,
}

impl World {
    /// Starts the executor of this rank's device queues. Each rank has its own; the ranks of a job may use different
    /// modes.
    ///
    /// # Errors
    /// [`DeviceError::Engine`]: the NIC has no room. [`DeviceError::Queues`]: the queues or the thread cannot be
    /// created.
    ///
    /// # Examples
    /// ```no_run
    /// use trunkline::World;
    /// use trunkline::device::{ExecutorMode, WindowConfig};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let world = World::start()?;
    /// let devices = world.devices(ExecutorMode::Thread)?; // a thread executes what kernels post
    /// let config = WindowConfig { bytes: 4096, ..WindowConfig::default() };
    /// let window = devices.window(&world, config)?;
    /// # Ok(())
    /// # }
    /// ```
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

    /// Starts an executor whose windows can be lent to kernels in other processes of this host ([`Window::lend`]). It
    /// has at most `queues` queues, of at most `deepest` entries each, all in one memory file.
    ///
    /// A thread executes the entries. Other processes cannot wake it, so it polls the doorbells: continuously while
    /// there is work, and every 50 us while there is none.
    ///
    /// # Errors
    /// [`DeviceError::Engine`], [`DeviceError::Queues`].
    ///
    /// # Examples
    /// ```no_run
    /// # use std::process::Command;
    /// # use trunkline::World;
    /// # use trunkline::device::WindowConfig;
    /// # fn example(world: &World) -> Result<(), Box<dyn std::error::Error>> {
    /// let devices = world.devices_for_processes(8, 64)?; // 8 queues of at most 64 entries
    /// let config = WindowConfig { bytes: 4096, depth: 64, ..WindowConfig::default() };
    /// let window = devices.window(world, config)?;
    /// let child = Command::new("worker").spawn()?;
    /// let card = window.lend(0, child.id())?; // the kernel of channel 0 is in the child
    /// # Ok(())
    /// # }
    /// ```
    pub fn devices_for_processes(&self, queues: u32, deepest: u32) -> Result<Devices, DeviceError> {
        let network = window_network(self.shared_world().network.device_queue_context()?)?;
        let queues = DeviceQueues::for_processes(network, queues, deepest)?;
        Ok(self.devices_of(queues, None, true))
    }

    /// Starts an executor whose windows are used by kernels of a GPU (mode M2). Ranks of a job may have it beside
    /// ranks whose kernels are host threads.
    ///
    /// # Errors
    /// [`DeviceError::Engine`], [`DeviceError::Queues`].
    ///
    /// # Examples
    /// ```no_run
    /// # use trunkline::World;
    /// use trunkline::device::gpu::{GpuVendor, VendorDriver};
    /// use trunkline::device::{GpuPlacement, Residence};
    ///
    /// # fn example(world: &World) -> Result<(), Box<dyn std::error::Error>> {
    /// let driver = VendorDriver::open(GpuVendor::Nvidia)?;
    /// let device = driver.open_device(0)?;
    /// let gpu = GpuPlacement { device, residence: Residence::Device };
    /// let devices = world.devices_of_gpu(gpu)?; // windows are in the memory of the GPU
    /// # Ok(())
    /// # }
    /// ```
    pub fn devices_of_gpu(&self, gpu: GpuPlacement) -> Result<Devices, DeviceError> {
        let network = window_network(self.shared_world().network.device_queue_context()?)?;
        let queues = DeviceQueues::for_device(network, QUEUES, gpu.device.clone())?;
        Ok(self.devices_of(queues, Some(gpu), false))
    }
}

impl Devices {
    /// Returns the number of queues of its windows, including companions; at most 1,024.
    ///
    /// # Examples
    /// ```no_run
    /// # use trunkline::World;
    /// # use trunkline::device::{DeviceError, Devices, WindowConfig};
    /// # fn example(world: &World, devices: &Devices) -> Result<(), DeviceError> {
    /// let config = WindowConfig { channels: 4, lanes: 2, ..WindowConfig::default() };
    /// let window = devices.window(world, config)?; // uses eight queues
    /// println!("{} of 1024 queues are in use", devices.queue_count());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn queue_count(&self) -> usize {
        self.inner.queues.with_executor(|executor| executor.queue_count())
    }

    /// Registers memory of this rank alone, for kernels to put from.
    ///
    /// # Errors
    /// [`DeviceError::Engine`] if the engine cannot register it; [`DeviceError::Regions`] if all regions are in use.
    ///
    /// # Examples
    /// ```no_run
    /// # use std::error::Error;
    /// # use trunkline::device::{Devices, Kernel, PutNotification};
    /// use trunkline_mem::MemoryRange;
    ///
    /// # fn example(devices: &Devices, kernel: &Kernel<'_>) -> Result<(), Box<dyn Error>> {
    /// let memory = MemoryRange::try_heap(4096)?;
    /// let source = devices.register(&memory)?;
    /// memory.write(0, b"hello")?;
    /// kernel.put_source(1, 100, &source, 0, 5, PutNotification::signal(0))?;
    /// kernel.flush()?; // the memory must not change before the put is complete
    /// # Ok(())
    /// # }
    /// ```
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

    /// Allocates zeroed bytes, and registers them as [`register`](Self::register) does.
    ///
    /// # Errors
    /// As [`Devices::register`]; [`DeviceError::Allocate`].
    ///
    /// # Examples
    /// ```no_run
    /// # use std::error::Error;
    /// # use trunkline::device::{Devices, Kernel, PutNotification};
    /// # fn example(devices: &Devices, kernel: &Kernel<'_>) -> Result<(), Box<dyn Error>> {
    /// let zeros = devices.source(4096)?;
    /// // Clears the first 4096 bytes of each rank.
    /// for rank in 0..kernel.size() {
    ///     kernel.put_source(rank, 0, &zeros, 0, 4096, PutNotification::NONE)?;
    /// }
    /// kernel.barrier(0)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn source(&self, bytes: usize) -> Result<SourceMemory, DeviceError> {
        self.register(&MemoryRange::try_heap(bytes)?)
    }

    /// Ends the registration of memory. Operations of kernels that use it must be complete.
    ///
    /// # Errors
    /// [`DeviceError::Engine`].
    ///
    /// # Examples
    /// ```no_run
    /// # use std::error::Error;
    /// # use trunkline::device::{Devices, Kernel, PutNotification};
    /// # fn example(devices: &Devices, kernel: &Kernel<'_>) -> Result<(), Box<dyn Error>> {
    /// let source = devices.source(4096)?;
    /// kernel.put_source(1, 0, &source, 0, 4096, PutNotification::NONE)?;
    /// kernel.flush()?; // no operation may use the memory any more
    /// devices.unregister(source)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn unregister(&self, source: SourceMemory) -> Result<(), DeviceError> {
        if let Some(region) = self.inner.queues.remove_region(source.key) {
            self.inner.shared.network.remove_heap(region.heap)?;
        }
        Ok(())
    }
}

impl Window {
    /// Returns the access of one thread to the window, through a channel that no other kernel uses at the same time.
    /// Waits until the operations of the channel's previous kernel are complete, and continues after them.
    ///
    /// # Errors
    /// - [`DeviceError::NoChannel`], [`DeviceError::Lent`]: the channel is out of range, or lent to another process.
    /// - [`DeviceError::Earlier`]: an operation of the previous kernel failed.
    /// - [`DeviceError::OnGpu`]: kernels of this window run on a GPU.
    ///
    /// # Examples
    /// ```no_run
    /// # use trunkline::device::{Kernel, KernelError, Window};
    /// # fn exchange(kernel: &Kernel<'_>) -> Result<(), KernelError> {
    /// #     kernel.flush()
    /// # }
    /// # fn example(window: &Window) -> Result<(), Box<dyn std::error::Error>> {
    /// let kernels = [window.kernel(0)?, window.kernel(1)?]; // a channel per thread
    /// let results = std::thread::scope(|scope| {
    ///     let threads = kernels.map(|kernel| scope.spawn(move || exchange(&kernel)));
    ///     threads.map(|thread| thread.join())
    /// });
    /// for result in results {
    ///     result.map_err(|_| "a kernel has panicked")??;
    /// }
    /// # Ok(())
    /// # }
    /// ```
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

    /// Returns the queues of a channel, by lane.
    pub(super) fn channel_lanes(&self, channel: u32) -> Result<&[DeviceQueue<QueueWords>], DeviceError> {
        let none = DeviceError::NoChannel { channel, channels: self.queues.len() as u32 };
        self.queues.get(channel as usize).map(Vec::as_slice).ok_or(none)
    }

    /// Returns the shape of the window.
    ///
    /// # Examples
    /// ```no_run
    /// # use trunkline::device::{DeviceError, Window};
    /// # fn example(window: &Window) -> Result<(), DeviceError> {
    /// let mut data = vec![0; window.config().bytes as usize];
    /// window.read(0, &mut data)?; // all data of this rank
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub const fn config(&self) -> &WindowConfig {
        &self.config
    }

    /// Copies bytes into this rank's part, from offset `at` on.
    ///
    /// # Errors
    /// [`DeviceError::Range`]; [`DeviceError::Memory`] if the GPU's memory cannot be written.
    ///
    /// # Examples
    /// ```no_run
    /// # use trunkline::World;
    /// # use trunkline::device::{DeviceError, Window};
    /// # fn example(world: &World, window: &Window) -> Result<(), DeviceError> {
    /// window.write(0, b"initial value")?;
    /// world.barrier()?; // afterwards, kernels of all ranks can get the bytes
    /// # Ok(())
    /// # }
    /// ```
    pub fn write(&self, at: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.check_range(at, bytes.len() as u64)?;
        if let Some(on_gpu) = &self.on_gpu {
            return on_gpu.write_bytes(at, bytes);
        }
        // The check above excludes an error.
        let _ = self.part.memory.write(at, bytes);
        Ok(())
    }

    /// Copies bytes out of this rank's part, from offset `at` on.
    ///
    /// # Errors
    /// [`DeviceError::Range`]; [`DeviceError::Memory`] if the GPU's memory cannot be read.
    ///
    /// # Examples
    /// ```no_run
    /// # use trunkline::device::{DeviceError, Window};
    /// # fn example(window: &Window) -> Result<(), DeviceError> {
    /// let mut word = [0; 8];
    /// window.read(64, &mut word)?;
    /// println!("the kernels have computed {}", u64::from_le_bytes(word));
    /// # Ok(())
    /// # }
    /// ```
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

    /// Returns the window as plain numbers, for kernels in other languages (docs/wire.md, "Windows"). It is valid
    /// while the window lives. Create it once: kernels of a channel keep their state in its words.
    ///
    /// # Errors
    /// [`DeviceError::Allocate`].
    ///
    /// # Examples
    /// ```no_run
    /// # use trunkline::device::{DeviceError, DeviceView, Window};
    /// # fn example(
    /// #     window: &Window,
    /// #     ring_sum: extern "C" fn(*const DeviceView) -> u32,
    /// # ) -> Result<(), DeviceError> {
    /// let tables = window.device_view()?; // must outlive the kernels
    /// // In C++: extern "C" u32 ring_sum(const Window *window)
    /// let failed = window.attend(|| ring_sum(&tables.view));
    /// # Ok(())
    /// # }
    /// ```
    pub fn device_view(&self) -> Result<DeviceTables, DeviceError> {
        Ok(DeviceTables::from_window(self)?)
    }

    /// Runs `launch`, which starts kernels in another language, in a thread of its own, and drives the executor until
    /// `launch` returns. Such kernels ring doorbells and wait without calling the executor.
    ///
    /// # Panics
    /// If `launch` panics.
    ///
    /// # Examples
    /// ```no_run
    /// # use trunkline::device::{DeviceError, DeviceView, Window};
    /// # fn example(
    /// #     window: &Window,
    /// #     ring_sum: extern "C" fn(*const DeviceView) -> u32,
    /// # ) -> Result<(), DeviceError> {
    /// let tables = window.device_view()?;
    /// // This thread drives the executor while another one runs the kernel in C++.
    /// let failed = window.attend(|| ring_sum(&tables.view));
    /// println!("the kernel returned {failed}");
    /// # Ok(())
    /// # }
    /// ```
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

    /// Returns the companion of a lane's queue, by which counters count completed operations. The first call creates
    /// it.
    ///
    /// # Errors
    /// [`DeviceError::NoChannel`], [`DeviceError::Earlier`].
    ///
    /// # Examples
    /// ```no_run
    /// # use std::error::Error;
    /// # use trunkline::device::{Kernel, PutNotification, Window};
    /// # use trunkline_device::HostDeadline;
    /// # use trunkline_proto::wire::device_queue::{AtomicChange, EntryWork};
    /// # use trunkline_proto::wire::device_queue::{PeerAddress, QueueEntry};
    /// # fn example(window: &Window, kernel: &Kernel<'_>) -> Result<(), Box<dyn Error>> {
    /// # let tables = window.device_view()?;
    /// # let peer = tables.peers[kernel.rank()];
    /// # let at = PeerAddress { peer: peer.rank, addr: tables.view.counters_at, key: peer.key };
    /// # let queue = tables.views[0].number;
    /// let companion = window.companion(0, 0)?;
    /// kernel.put(1, 0, 0, 8, PutNotification::NONE)?; // entry 0 of the lane's queue
    /// // The companion waits for that entry, and then adds 1 to counter 0.
    /// let wait = QueueEntry::new(EntryWork::Wait { queue, index: 0 });
    /// let add = EntryWork::Atomic { at, change: AtomicChange::Add(1), poisoned: true };
    /// companion.post(&[wait, QueueEntry::new(add)], &mut HostDeadline::without_deadline())?;
    /// kernel.wait_counter(0, 1)?; // the put is complete
    /// # Ok(())
    /// # }
    /// ```
    pub fn companion(&self, channel: u32, lane: usize) -> Result<DeviceQueue<QueueWords>, DeviceError> {
        let missing = DeviceError::NoChannel { channel, channels: self.queues.len() as u32 };
        let queue = self.channel_lanes(channel)?.get(lane).ok_or(missing)?;
        let number =
            queue.companion_within(&mut HostDeadline::without_deadline()).map_err(DeviceError::Earlier)?;
        let finder: CompanionFinder = Box::new(self.inner.queues.queue_finder());
        finder.find_queue(number).ok_or(DeviceError::Regions)
    }

    /// Returns the page of doorbells, for [`DeviceTables`].
    pub(super) fn doorbell_page(&self) -> BellPage<QueueWords> {
        self.inner.queues.with_executor(|executor| executor.bell_page().clone())
    }

    /// Frees the window at all ranks. All ranks call it after their kernels have ended. It waits for submitted
    /// entries, at most ten seconds. Afterwards the queues belong to other windows: no kernel may use this window any
    /// more, also in processes to which a channel was [lent](Window::lend).
    ///
    /// # Errors
    /// [`DeviceError::Unsettled`] if operations were still in flight at any rank after that time. The memory then
    /// stays registered at all ranks until the world ends, because a network may still access it.
    /// [`DeviceError::World`] as [`World::barrier`]; [`DeviceError::Engine`].
    ///
    /// # Examples
    /// ```no_run
    /// # use trunkline::World;
    /// # use trunkline::device::{DeviceError, Window};
    /// # fn example(world: &World, window: Window) -> Result<(), DeviceError> {
    /// match window.free(world) {
    ///     // The program can continue: only the memory of this window stays registered.
    ///     Err(DeviceError::Unsettled { rank }) => eprintln!("rank {rank} is not finished"),
    ///     freed => freed?,
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn free(self, world: &World) -> Result<(), DeviceError> {
        let queues = &self.inner.queues;
        let record = &self.record;
        let is_settled = queues.finish_queues(&record.numbers, SETTLE_MAX, END_MAX);
        // No rank accesses another rank's part any more ...
        agree_on_end(world, is_settled)?;
        // ... and this rank waits until it has replied to all requests of other ranks, because they write to its boxes.
        let heap = record.boxes_heap();
        let is_idle = queues
            .wait_until(END_MAX, |executor| heap.is_none_or(|heap| executor.network_mut().is_idle(heap)));
        agree_on_end(world, is_idle)?;
        Ok(record.take_back(&self.inner)?)
    }
}
