//! The executor of a rank, and windows: allocated, registered and exchanged by all ranks together.

use std::sync::Arc;
use std::time::Duration;

use trunkline_choose::Carrying;
use trunkline_devq::{BellPage, Directory, Memory as _, Queue, Slots, Ticket};
use trunkline_engine::Mutant;
use trunkline_engine::device::{
    Courier, ErrorTable, Far, Key, Mode, Part, Patience, Peer, Queues, Region, Words,
};
use trunkline_engine::rma::Member;
use trunkline_mem::Memory;
use trunkline_proto::wire::devq::{
    CARD_WORDS, CONFIG_WORDS, LINE_BYTES, WindowCard, WindowLayout, WindowShape, at, is_before,
};

use super::error::DeviceError;
use super::guest::Lent;
use super::kernel::Kernel;
use super::on_gpu::{Gpus, OnGpu, Place};
use super::view::DeviceTables;
use crate::shared::Shared;
use crate::world::World;

/// Queues of an executor at a time, companions included.
const QUEUES: u32 = 1024;
/// How long the end of a window waits for what is under way there.
const SETTLE_MAX: Duration = Duration::from_secs(10);

pub(super) fn planted() -> Mutant {
    #[cfg(feature = "mutants")]
    if let Ok(name) = std::env::var("TRUNKLINE_MUTANT") {
        return Mutant::named(name.leak());
    }
    Mutant::NONE
}

/// The executor of this rank's device queues. It lives until the last window of it is gone.
#[derive(Clone, Debug)]
pub struct Devices {
    inner: Arc<Inner>,
}

pub(super) struct Inner {
    pub(super) queues: Queues<Courier<Carrying>>,
    shared: Arc<Shared>,
    /// Where kernels run, if not on the host.
    pub(super) gpu: Option<Gpus>,
    /// Queues and windows lie in memory files.
    is_for_processes: bool,
}

impl std::fmt::Debug for Inner {
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
    fn layout(&self, ranks: usize) -> Result<WindowLayout, DeviceError> {
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

    fn words(&self) -> [u64; 8] {
        let Self { bytes, signals, counters, barriers, channels, lanes, chunks, chunk, .. } = *self;
        let [signals, counters, barriers, channels, lanes, chunks] =
            [signals, counters, barriers, channels, lanes, chunks].map(u64::from);
        [bytes, signals, counters, barriers, channels, lanes, chunks, chunk]
    }
}

/// Finds companions.
pub(super) type Finder = Box<dyn Fn(u32) -> Option<Queue<Words>> + Send + Sync>;

/// Memory of every rank that kernels put to and get from. Freed by [`Window::free`], which all ranks call; one that is dropped stays
/// registered until the world ends.
pub struct Window {
    pub(super) inner: Arc<Inner>,
    pub(super) config: WindowConfig,
    pub(super) part: OwnPart,
    heap: u8,
    /// By channel, then by lane; none of a window whose kernels run on a GPU.
    pub(super) queues: Vec<Vec<Queue<Words>>>,
    pub(super) on_gpu: Option<OnGpu>,
    /// Of a window that other processes may use.
    pub(super) lent: Option<Lent>,
}

/// A rank's own part of a window, and how entries name all parts: what kernels use, of this process and of others.
#[derive(Debug)]
pub(super) struct OwnPart {
    pub(super) layout: WindowLayout,
    pub(super) memory: Memory,
    /// The same memory, for waits.
    pub(super) words: Words,
    /// By rank.
    pub(super) keys: Vec<Key>,
    pub(super) rank: usize,
}

impl std::fmt::Debug for Window {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Window({:?})", self.config)
    }
}

/// Memory of this rank alone that kernels put from and get into, beside a window's own.
#[derive(Clone, Debug)]
pub struct Source {
    pub(super) memory: Memory,
    pub(super) key: Key,
}

impl World {
    /// Starts the executor of this rank's device queues. Each rank has its own, and all of a job may be of different modes.
    ///
    /// # Errors
    /// [`DeviceError::Engine`], [`DeviceError::Queues`].
    pub fn devices(&self, mode: Mode) -> Result<Devices, DeviceError> {
        let network = Courier::new(self.shared().job.carrying()?, planted());
        let queues = Queues::start(network, QUEUES, mode, planted())?;
        Ok(self.devices_of(queues, None, false))
    }

    fn devices_of(
        &self,
        queues: Queues<Courier<Carrying>>,
        gpu: Option<Gpus>,
        is_for_processes: bool,
    ) -> Devices {
        let shared = Arc::clone(self.shared());
        Devices { inner: Arc::new(Inner { queues, shared, gpu, is_for_processes }) }
    }

    /// The same for kernels in other processes of the host, to which channels of its windows are lent ([`Window::lend`]): at most `queues` queues, and none deeper than
    /// `deepest`. All of them lie in one memory file. A thread executes, which nobody can wake, so it looks at doorbells again and again while there is something to do, and
    /// every 50 us while there is not.
    ///
    /// # Errors
    /// [`DeviceError::Engine`], [`DeviceError::Queues`].
    pub fn devices_for_processes(&self, queues: u32, deepest: u32) -> Result<Devices, DeviceError> {
        let network = Courier::new(self.shared().job.carrying()?, planted());
        let queues = Queues::for_processes(network, queues, deepest, planted())?;
        Ok(self.devices_of(queues, None, true))
    }

    /// The same for kernels of a GPU, which make windows of this executor and use them (mode M2). Ranks of a job may have them beside ranks whose kernels are threads.
    ///
    /// # Errors
    /// [`DeviceError::Engine`], [`DeviceError::Queues`].
    pub fn devices_of_gpu(&self, gpu: Gpus) -> Result<Devices, DeviceError> {
        let network = Courier::new(self.shared().job.carrying()?, planted());
        let queues = Queues::for_device(network, QUEUES, gpu.device.clone(), planted())?;
        Ok(self.devices_of(queues, Some(gpu), false))
    }
}

/// Queues by channel and lane, or what a GPU has in their place.
type Made = (Vec<Vec<Queue<Words>>>, Option<OnGpu>);

/// Rank by rank how its part is named, and reached.
struct Told {
    keys: Vec<Key>,
    peers: Vec<Peer>,
}

impl Devices {
    /// Makes a window: its memory is allocated and registered at each rank, and each learns how it reaches the others'. All ranks call it with
    /// the same configuration.
    ///
    /// # Errors
    /// [`DeviceError`].
    pub fn window(&self, world: &World, config: WindowConfig) -> Result<Window, DeviceError> {
        let layout = config.layout(world.size())?;
        let boxes = layout.bytes().next_multiple_of(LINE_BYTES).max(LINE_BYTES);
        let bytes = boxes + Part::boxes_bytes(world.size() as u64);
        let bytes = usize::try_from(bytes).map_err(|_| DeviceError::Regions)?;
        let (job, queues) = (&self.inner.shared.job, &self.inner.queues);
        let (place, lent) = match &self.inner.gpu {
            None if self.inner.is_for_processes => {
                let lent = Lent::new(bytes, config.channels.max(1))?;
                (Place::Host(lent.memory().clone()), Some(lent))
            }
            None => (Place::host(bytes), None),
            Some(gpu) => (gpu.place(bytes, layout.bytes())?, None),
        };
        let memory = place.memory().clone();
        let heap = job.add_heap(memory.clone())?;
        let key = queues.add_region(place.region(heap)).ok_or(DeviceError::Regions)?;
        let Told { keys, peers } =
            self.exchange(world, (&config, &layout), (key, place.is_posted()), heap, memory.len() as u64)?;
        let rank = world.rank();
        for (other, peer) in peers.iter().enumerate().filter(|&(other, _)| other != rank) {
            peer.slots.iter().for_each(|slots| queues.watch(other as Member, &memory, *slots));
        }
        if peers.iter().any(|peer| peer.is_posted) {
            let part = Part { heap, memory: memory.clone(), boxes, device: place.device(), peers };
            queues.with(|executor| executor.network().open(part));
        }
        let (made, on_gpu) = self.lanes(&config, &layout, place, (&keys, rank))?;
        let words = queues.words(&memory);
        // Nobody is written to before he has all he needs.
        world.barrier()?;
        let inner = Arc::clone(&self.inner);
        let part = OwnPart { layout, memory, words, keys, rank };
        Ok(Window { inner, config, part, heap, queues: made, on_gpu, lent })
    }

    /// The queues of a window, for threads of the host or for kernels of a GPU.
    fn lanes(
        &self,
        config: &WindowConfig,
        layout: &WindowLayout,
        place: Place,
        (keys, rank): (&[Key], usize),
    ) -> Result<Made, DeviceError> {
        let queues = &self.inner.queues;
        let depth = config.depth.next_power_of_two().max(2);
        if let Some(gpu) = &self.inner.gpu {
            let made = OnGpu::new(gpu, queues, place, layout, (config.channels.max(1), depth), (keys, rank))?;
            return Ok((Vec::new(), Some(made)));
        }
        let lane = |_| queues.queue(depth);
        let channel = |_| (0..config.lanes.max(1)).map(lane).collect::<Result<Vec<_>, _>>();
        let made = (0..config.channels.max(1)).map(channel).collect::<Result<Vec<_>, _>>();
        Ok((made.map_err(trunkline_engine::device::QueuesError::from)?, None))
    }

    /// Registers memory of this rank alone, for kernels to put from and get into.
    ///
    /// # Errors
    /// [`DeviceError::Engine`], [`DeviceError::Regions`].
    pub fn register(&self, memory: &Memory) -> Result<Source, DeviceError> {
        let heap = self.inner.shared.job.add_heap(memory.clone())?;
        let region =
            Region { memory: memory.clone(), heap, table: ErrorTable::default(), copies: None, words: None };
        let key = self.inner.queues.add_region(region).ok_or(DeviceError::Regions)?;
        Ok(Source { memory: memory.clone(), key })
    }

    /// The same of new bytes, zeros.
    ///
    /// # Errors
    /// As [`Devices::register`].
    pub fn source(&self, bytes: usize) -> Result<Source, DeviceError> {
        self.register(&Memory::heap(bytes))
    }

    /// Ends the registration of such memory. What kernels have begun with it must be complete.
    ///
    /// # Errors
    /// [`DeviceError::Engine`].
    pub fn unregister(&self, source: Source) -> Result<(), DeviceError> {
        if let Some(region) = self.inner.queues.remove_region(source.key) {
            self.inner.shared.job.remove_heap(region.heap)?;
        }
        Ok(())
    }

    /// Each rank tells how its part is reached.
    fn exchange(
        &self,
        world: &World,
        (config, layout): (&WindowConfig, &WindowLayout),
        (key, is_posted): (Key, bool),
        heap: u8,
        len: u64,
    ) -> Result<Told, DeviceError> {
        let job = &self.inner.shared.job;
        let mine =
            WindowCard::new(config.words(), key.bits(), &job.told(heap)?).ok_or(DeviceError::Regions)?;
        let mine = mine.posted(is_posted);
        let all = world.alloc::<u64>(CARD_WORDS * world.size())?;
        let gathered = world.all_gather(&mine.to_words(), &all).map(|()| all.to_vec());
        world.free(all)?;
        let mut told =
            Told { keys: Vec::with_capacity(world.size()), peers: Vec::with_capacity(world.size()) };
        for (rank, words) in gathered?.as_chunks().0.iter().enumerate() {
            if words[..CONFIG_WORDS] != config.words() {
                return Err(DeviceError::Differ { rank });
            }
            let card = WindowCard::from_words(words, len, planted());
            let card = card.map_err(|source| DeviceError::Told { rank, source })?;
            let key = Key::from_bits(card.key);
            told.keys.push(key);
            let slots = slots_of(layout, rank as Member);
            told.peers.push(Peer { heap: key.number(), is_posted: card.is_posted, slots });
            if rank == world.rank() {
                continue;
            }
            job.learn(rank as Member, key.number(), card.heaps())?;
            let far = Far::of_host(key, layout.bytes(), ErrorTable::default(), None);
            self.inner.queues.learn(rank as Member, far);
        }
        Ok(told)
    }
}

/// What a rank raises here, which is poisoned when it dies.
fn slots_of(layout: &WindowLayout, by: Member) -> Vec<Slots> {
    let shape = layout.shape();
    let slots = |first: Option<u64>, count: u32| {
        first.filter(|_| count > 0).map(|slots| Slots::Poisoned { slots, count })
    };
    let barriers = (0..shape.barriers).map(|id| slots(layout.barrier(id, by), 1));
    let streams = (0..shape.channels).filter_map(|channel| layout.stream(by, channel)).flat_map(|stream| {
        let ready = (0..shape.lanes).map(move |lane| slots(Some(stream.ready(lane)), 1));
        ready.chain([slots(Some(stream.free()), 1)])
    });
    [slots(layout.signal(by, 0), shape.signals)]
        .into_iter()
        .chain(barriers)
        .chain(streams)
        .flatten()
        .collect()
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
        let lanes = self.lanes(channel)?;
        if self.lent.as_ref().is_some_and(|lent| lent.is_lent(channel)) {
            return Err(DeviceError::Lent { channel });
        }
        for queue in lanes {
            let ready = queue.words().load(at::READY, std::sync::atomic::Ordering::Acquire);
            if is_before(0, ready) {
                let (number, epoch) = (queue.shape().number(), queue.shape().epoch());
                let last = Ticket { queue: number, epoch, index: ready.wrapping_sub(1) };
                queue.wait(last, &mut Patience::endless()).map_err(DeviceError::Earlier)?;
            }
        }
        Ok(Kernel::new(&self.part, channel, lanes, None))
    }

    /// The queues of a channel, by lane.
    pub(super) fn lanes(&self, channel: u32) -> Result<&[Queue<Words>], DeviceError> {
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
        self.inside(at, bytes.len() as u64)?;
        if let Some(on_gpu) = &self.on_gpu {
            return on_gpu.write(at, bytes);
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
        self.inside(at, into.len() as u64)?;
        if let Some(on_gpu) = &self.on_gpu {
            return on_gpu.read(at, into);
        }
        let _ = self.part.memory.read(at, into);
        Ok(())
    }

    fn inside(&self, at: u64, len: u64) -> Result<(), DeviceError> {
        let bytes = self.config.bytes;
        let inside = at.checked_add(len).is_some_and(|end| end <= bytes);
        if inside { Ok(()) } else { Err(DeviceError::Range { at, len, bytes }) }
    }

    /// The window as plain numbers, as a kernel in another language takes it: docs/wire.md, "Windows". It stays right while the window lives. To be made once:
    /// kernels of a channel go on with the words that are in it.
    #[must_use]
    pub fn device_view(&self) -> DeviceTables {
        DeviceTables::of(self)
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
    pub fn companion(&self, channel: u32, lane: usize) -> Result<Queue<Words>, DeviceError> {
        let missing = DeviceError::NoChannel { channel, channels: self.queues.len() as u32 };
        let queue = self.lanes(channel)?.get(lane).ok_or(missing)?;
        let number = queue.companion_within(&mut Patience::endless()).map_err(DeviceError::Earlier)?;
        let finder: Finder = Box::new(self.inner.queues.finder());
        finder.find(number).ok_or(DeviceError::Regions)
    }

    /// The page of doorbells, for [`DeviceTables`].
    pub(super) fn bells(&self) -> BellPage<Words> {
        self.inner.queues.with(|executor| executor.page().clone())
    }

    /// The numbers of its queues.
    fn numbers(&self) -> Vec<u32> {
        let on_host = self.queues.iter().flatten().map(|queue| queue.shape().number());
        let on_gpu = self.on_gpu.iter().flat_map(OnGpu::queues);
        on_host.chain(on_gpu).collect()
    }

    /// Waits for what kernels have submitted to a queue and not waited for, which others' memory or this one's is still read or written by; how it ends is nobody's to hear any more.
    fn settle(&self, number: u32) {
        let Some(queue) = self.inner.queues.find(number) else { return };
        let submitted = queue.words().load(at::SUBMITTED, std::sync::atomic::Ordering::Acquire);
        let (number, epoch) = (queue.shape().number(), queue.shape().epoch());
        let last = Ticket { queue: number, epoch, index: submitted.wrapping_sub(1) };
        let _ended = queue.wait(last, &mut Patience::of(SETTLE_MAX));
    }

    /// Frees it, at all ranks, which all call it once their kernels have ended. What those have submitted is waited for, for ten seconds at most. Its queues are others' then: nothing of
    /// it is to be used any more, also by those to whom it was [lent](Window::lend).
    ///
    /// # Errors
    /// As [`World::barrier`], [`DeviceError::Engine`].
    pub fn free(self, world: &World) -> Result<(), DeviceError> {
        let queues = &self.inner.queues;
        let numbers = self.numbers();
        for &number in &numbers {
            self.settle(number);
            if let Some(companion) = queues.with(|executor| executor.companion_of(number)) {
                self.settle(companion);
            }
        }
        // Nobody puts to it any more.
        world.barrier()?;
        numbers.iter().for_each(|&number| queues.end_queue(number));
        queues.with(|executor| {
            executor.unwatch(&self.part.memory);
            executor.network().close(self.heap);
        });
        if let Some(key) = self.part.keys.get(self.part.rank) {
            let _region = queues.remove_region(*key);
        }
        for (rank, key) in self.part.keys.iter().enumerate().filter(|&(rank, _)| rank != self.part.rank) {
            queues.with(|executor| executor.forget(rank as Member, *key));
        }
        self.inner.shared.job.remove_heap(self.heap)?;
        Ok(world.barrier()?)
    }
}
