//! Creates windows, at all ranks or at none, and releases their resources when they end. Called by
//! [`Devices::window`] and [`Window::free`]; kernels call nothing here.
//!
//! ```text
//! each rank                      all ranks                        each rank                      all ranks
//! memory, heap, region, card --> gather reports and cards   -->   keys, post boxes, queues  -->  gather reports
//! ```
//!
//! A rank that fails reports the reason and still takes part in the gather: otherwise the others would wait for it
//! until it dies.

use std::sync::Arc;
use std::time::Duration;

use trunkline_device::{
    EntryKey, EntryRegion, ErrorTable, FarWords, FlushedPart, FlushedPeer, KernelLanes, LanePlan, LocalPart,
    PeerRegion, QueueWords, QueuesError, RemotePart, WordsRegion,
};
use trunkline_device_queue::{DeviceQueue, SlotLayout};
use trunkline_engine::rma::HeapAddress;
use trunkline_engine::rma::{HeapRange, MemberRank, RmaError};
use trunkline_mem::{MemoryRange, OutOfMemory};
use trunkline_proto::reserve::{try_grow, try_vec};
use trunkline_proto::wire::device_queue::{
    CARD_WORDS, CONFIG_WORDS, LINE_BYTES, MakingReport, PartLengths, PostBox, PostRooms, REPORT_WORDS,
    WindowCard, WindowLayout,
};

use super::error::DeviceError;
use super::gpudirect::ReachedHeap;
use super::guest::LentChannels;
use super::on_gpu::{GpuPlacement, OnGpu, PartPlace, Residence};
use super::window::{Devices, ExecutorResources, OwnPart, Window, WindowConfig};
use crate::world::World;

/// The time for which the end of a window waits for submitted entries, and the additional time for operations in
/// flight once its queues have ended.
pub(super) const SETTLE_MAX: Duration = Duration::from_secs(9);
/// See [`SETTLE_MAX`].
pub(super) const END_MAX: Duration = Duration::from_secs(1);

/// Words that each rank publishes: its report and its card.
const GIVEN_WORDS: usize = REPORT_WORDS + CARD_WORDS;

/// The resources of a window in this rank's engine and executor, recorded so that they can be released.
#[derive(Debug)]
pub(super) struct WindowRecord {
    pub(super) heap: Option<u8>,
    /// The heap of the words, for a part whose words are stored apart from its data.
    pub(super) words_heap: Option<u8>,
    pub(super) key: Option<EntryKey>,
    pub(super) memory: Option<MemoryRange>,
    /// Parts of other ranks that entries may name.
    pub(super) learned: Vec<(MemberRank, EntryKey)>,
    /// Numbers of its queues. Companions end with them.
    pub(super) numbers: Vec<u32>,
}

impl WindowRecord {
    const NONE: Self = Self {
        heap: None,
        words_heap: None,
        key: None,
        memory: None,
        learned: Vec::new(),
        numbers: Vec::new(),
    };

    /// Returns the heap that contains the boxes.
    pub(super) fn boxes_heap(&self) -> Option<u8> {
        self.words_heap.or(self.heap)
    }

    /// Releases everything except the queues, which have ended. No operation in flight, here or at other ranks, may
    /// name any of it.
    pub(super) fn take_back(&self, inner: &ExecutorResources) -> Result<(), RmaError> {
        let queues = &inner.queues;
        queues.with_executor(|executor| {
            self.memory.iter().for_each(|memory| executor.unwatch_memory(memory));
            if let Some(heap) = self.boxes_heap() {
                executor.network_mut().close_window(heap);
                executor.network_mut().network_mut().close_window(heap);
            }
            self.learned
                .iter()
                .for_each(|&(rank, key)| executor.regions_mut().remove_remote_region(rank, key));
        });
        // Dropping the region may free its memory, which is done without the executor's lock.
        drop(self.key.and_then(|key| queues.remove_region(key)));
        let heaps = self.heap.into_iter().chain(self.words_heap);
        heaps.map(|heap| inner.shared.network.remove_heap(heap)).fold(Ok(()), Result::and)
    }
}

/// A window that is being created. If it is dropped before it is kept, it releases the resources that this rank has
/// created.
struct PartialWindow<'d> {
    devices: &'d Devices,
    record: WindowRecord,
    is_kept: bool,
}

impl Drop for PartialWindow<'_> {
    fn drop(&mut self) {
        if self.is_kept {
            return;
        }
        let inner = &self.devices.inner;
        // No operation was posted, so nothing has to settle.
        inner.queues.finish_queues(&self.record.numbers, Duration::ZERO, END_MAX);
        // The caller receives the first failure; this one would only repeat it.
        let _ = self.record.take_back(inner);
    }
}

/// Queues by channel, then by lane.
type ChannelLanes = Vec<Vec<DeviceQueue<QueueWords>>>;

/// The resources that a rank creates without the others.
struct PreparedPart {
    layout: WindowLayout,
    place: PartPlace,
    lent: Option<LentChannels>,
    extent: PartExtent,
    card: WindowCard,
}

/// The sizes of parts, and the offset of the words behind the data.
#[derive(Clone, Copy)]
struct PartExtent {
    lengths: PartLengths,
    /// The offset of everything except the data.
    words: u64,
    /// The offset of the post boxes in a part that is not divided.
    boxes: u64,
    rooms: PostRooms,
}

impl PartExtent {
    fn new(layout: &WindowLayout) -> Self {
        let ranks = layout.shape().ranks;
        let words = layout.words_offset();
        let boxes = layout.window_bytes().next_multiple_of(LINE_BYTES).max(LINE_BYTES);
        let end = boxes + LocalPart::boxes_bytes(ranks.into());
        let rooms = PostRooms::new(end, ranks, layout.window_bytes());
        let whole = rooms.room_offset(0, 0) + rooms.total_bytes();
        let lengths = PartLengths { whole, data: words.max(LINE_BYTES), words: end - words };
        Self { lengths, words, boxes, rooms }
    }

    /// Returns the offset of the post boxes in their heap.
    const fn boxes_of(&self, is_divided: bool) -> u64 {
        if is_divided { self.boxes - self.words } else { self.boxes }
    }
}

/// The resources that a rank creates once it knows the parts of all ranks.
struct ConnectedPart {
    layout: WindowLayout,
    lent: Option<LentChannels>,
    keys: Vec<EntryKey>,
    lanes: ChannelLanes,
    on_gpu: Option<OnGpu>,
}

impl Devices {
    /// Creates a window: each rank allocates and registers its memory, and learns the parts of the others. All ranks
    /// call it with the same shape. It succeeds at all ranks or fails at all; a failed call leaves no resources.
    ///
    /// # Errors
    /// - [`DeviceError::Shape`]: the shape is invalid. [`DeviceError::Differ`]: a rank passed another one.
    /// - [`DeviceError::Allocate`], [`DeviceError::Engine`], [`DeviceError::Queues`], [`DeviceError::Regions`]: this
    ///   rank has no memory, or no room for it.
    /// - [`DeviceError::Elsewhere`]: another rank failed; contains its reason.
    /// - [`DeviceError::Told`], [`DeviceError::Report`]: a rank published an invalid description or report.
    /// - [`DeviceError::World`]: a collective call failed.
    ///
    /// # Examples
    /// ```no_run
    /// # use trunkline::World;
    /// # use trunkline::device::{DeviceError, Devices, WindowConfig};
    /// # fn example(world: &World, devices: &Devices) -> Result<(), DeviceError> {
    /// let config = WindowConfig {
    ///     bytes: 1 << 20,
    ///     lanes: 2,
    ///     chunks: 8, // per stream; 0 would mean no streams
    ///     chunk: 16 << 10,
    ///     ..WindowConfig::default()
    /// };
    /// let window = devices.window(world, config)?; // all ranks make this call
    /// # Ok(())
    /// # }
    /// ```
    pub fn window(&self, world: &World, config: WindowConfig) -> Result<Window, DeviceError> {
        let mut making = PartialWindow { devices: self, record: WindowRecord::NONE, is_kept: false };
        let prepared = making.prepare_part(world, &config);
        let card = prepared.as_ref().map_or([0; CARD_WORDS], |prepared| prepared.card.to_words());
        let cards = gather_cards(world, &report_of(&prepared), &card);
        let prepared = prepared?;
        let cards = cards?;
        let made = making.connect_part(world, &config, prepared, &cards);
        // A rank is not accessed before it has created all that it needs.
        let agreed = gather_cards(world, &report_of(&made), &[0; CARD_WORDS]);
        let ConnectedPart { layout, lent, keys, lanes, on_gpu } = made?;
        agreed?;
        making.is_kept = true;
        let record = std::mem::replace(&mut making.record, WindowRecord::NONE);
        let memory = record.memory.clone().ok_or(DeviceError::Regions)?;
        let words = self.inner.queues.observed_words(&memory);
        let part = OwnPart { layout, memory, words, keys, rank: world.rank() };
        let inner = Arc::clone(&self.inner);
        Ok(Window { inner, config, part, record, queues: lanes, on_gpu, lent })
    }
}

impl PartialWindow<'_> {
    /// Allocates and registers this rank's part.
    fn prepare_part(&mut self, world: &World, config: &WindowConfig) -> Result<PreparedPart, DeviceError> {
        let layout = config.to_layout(world.size())?;
        let extent = PartExtent::new(&layout);
        let inner = &self.devices.inner;
        if let Some(gpu) = inner.gpu.as_ref().filter(|gpu| gpu.residence == Residence::Device)
            && let Some(data) = inner.allocate_reached(gpu, extent.lengths.data)?
        {
            return self.prepare_reached(config, gpu, layout, extent, data);
        }
        let bytes = usize::try_from(extent.lengths.whole).map_err(|_| DeviceError::Regions)?;
        let (place, lent) = match &inner.gpu {
            None if inner.is_for_processes => {
                let lent = LentChannels::new(bytes, config.channels.max(1))?;
                (PartPlace::Host(lent.window_memory().clone()), Some(lent))
            }
            None => (PartPlace::allocate_host(bytes)?, None),
            Some(gpu) => (gpu.allocate_part(bytes, layout.window_bytes())?, None),
        };
        let heap = inner.shared.network.add_heap(place.network_memory().clone())?;
        (self.record.heap, self.record.memory) = (Some(heap), Some(place.network_memory().clone()));
        let key = inner.queues.add_region(place.to_region(heap)).ok_or(DeviceError::Regions)?;
        self.record.key = Some(key);
        inner
            .queues
            .with_executor(|executor| executor.add_rooms(key, extent.rooms))
            .ok_or(DeviceError::Regions)?;
        let told = inner.shared.network.heap_descriptors(heap)?;
        let card = WindowCard::new(config.to_words(), key.to_bits(), &told).ok_or(DeviceError::Regions)?;
        Ok(PreparedPart { layout, lent, extent, card: card.with_posted(place.is_posted()), place })
    }

    /// Allocates and registers a part whose data is GPU memory that NICs reach. Everything else is in pinned memory.
    fn prepare_reached(
        &mut self,
        config: &WindowConfig,
        gpu: &GpuPlacement,
        layout: WindowLayout,
        extent: PartExtent,
        data: ReachedHeap,
    ) -> Result<PreparedPart, DeviceError> {
        let ReachedHeap { region, heap, needs_flush } = data;
        self.record.heap = Some(heap);
        let inner = &self.devices.inner;
        let first = extent.words;
        let len = usize::try_from(extent.lengths.words).map_err(|_| DeviceError::Regions)?;
        let place = PartPlace::Reached {
            region,
            words: gpu.device.allocate_pinned(len)?,
            first,
            mover: gpu.device.copy_queue()?,
        };
        let words_heap = inner.shared.network.add_heap(place.network_memory().clone())?;
        (self.record.words_heap, self.record.memory) =
            (Some(words_heap), Some(place.network_memory().clone()));
        let key = inner.queues.add_region(place.to_region(heap)).ok_or(DeviceError::Regions)?;
        self.record.key = Some(key);
        let words = EntryRegion::of_host(place.network_memory().clone(), words_heap, ErrorTable::default());
        let words = WordsRegion { first, region: words };
        let added = inner.queues.with_executor(|executor| executor.regions_mut().add_words(key, words));
        added.ok_or(DeviceError::Regions)?;
        let told = inner.shared.network.heap_descriptors(heap)?;
        let apart = inner.shared.network.heap_descriptors(words_heap)?;
        let card = WindowCard::new(config.to_words(), key.to_bits(), &told);
        let card = card.and_then(|card| card.with_words_apart(words_heap, needs_flush, &apart));
        Ok(PreparedPart { layout, lent: None, extent, card: card.ok_or(DeviceError::Regions)?, place })
    }

    /// Registers the parts of other ranks, and creates the queues.
    fn connect_part(
        &mut self,
        world: &World,
        config: &WindowConfig,
        prepared: PreparedPart,
        cards: &[[u64; CARD_WORDS]],
    ) -> Result<ConnectedPart, DeviceError> {
        let PreparedPart { layout, place, lent, extent, card: own } = prepared;
        let inner = &self.devices.inner;
        let memory = place.network_memory().clone();
        let me = world.rank();
        let first = own.words.map_or(0, |_| extent.words);
        let mut keys = try_vec(cards.len())?;
        let mut peers = try_vec(cards.len())?;
        let mut flushed = try_vec(cards.len())?;
        let mut needs_flush = false;
        for (rank, words) in cards.iter().enumerate() {
            if words[..CONFIG_WORDS] != config.to_words() {
                return Err(DeviceError::Differ { rank });
            }
            let card = WindowCard::from_words(words, extent.lengths);
            let card = card.map_err(|source| DeviceError::Told { rank, source })?;
            let key = EntryKey::from_bits(card.key);
            let member = rank as MemberRank;
            let slots = slots_of(&layout, member, first)?;
            keys.push(key);
            if rank != me {
                inner.shared.network.set_member_heap(member, key.region_number(), card.heaps())?;
                self.record.learned.push((member, key));
                let far = PeerRegion::of_host(key, layout.window_bytes(), ErrorTable::default(), None);
                let words = card.words.map(|words| {
                    (
                        words,
                        FarWords {
                            first: extent.words,
                            heap: words.heap,
                            len: layout.window_bytes() - extent.words,
                        },
                    )
                });
                if let Some((words, _)) = &words {
                    inner.shared.network.set_member_heap(member, words.heap, words.heaps())?;
                }
                let words = words.map(|(_, words)| words);
                inner
                    .queues
                    .with_executor(|executor| executor.regions_mut().add_remote_region(member, far, words))?;
                slots.iter().try_for_each(|slots| inner.queues.watch_signals(member, &memory, *slots))?;
            }
            let heap = card.words.map_or(key.region_number(), |words| words.heap);
            let boxes = extent.boxes_of(card.words.is_some());
            needs_flush |= card.words.is_some_and(|words| words.needs_flush);
            peers.push(RemotePart { heap, boxes, is_posted: card.is_posted, slots });
            flushed.push((key.region_number(), card.words.is_some_and(|words| words.needs_flush)));
        }
        let heap = self.record.boxes_heap().ok_or(DeviceError::Regions)?;
        let boxes = extent.boxes_of(own.words.is_some());
        if needs_flush {
            let part = flushed_part(self.record.heap, heap, boxes, me as MemberRank, &peers, &flushed)?;
            inner.queues.with_executor(|executor| {
                part.map(|part| executor.network_mut().network_mut().open_window(part))
            });
        }
        if peers.iter().any(|peer| peer.is_posted) {
            let part =
                LocalPart { heap, memory, boxes, rooms: extent.rooms, device: place.device_memory(), peers };
            inner.queues.with_executor(|executor| executor.network_mut().open_window(part))?;
        }
        let (lanes, on_gpu) = self.make_lanes(config, &layout, place, &keys, me)?;
        Ok(ConnectedPart { layout, lent, keys, lanes, on_gpu })
    }

    /// Creates the queues of a window, for host threads or for kernels of a GPU.
    fn make_lanes(
        &mut self,
        config: &WindowConfig,
        layout: &WindowLayout,
        place: PartPlace,
        keys: &[EntryKey],
        rank: usize,
    ) -> Result<(ChannelLanes, Option<OnGpu>), DeviceError> {
        let inner = &self.devices.inner;
        let record = &mut self.record;
        let queues = &inner.queues;
        let depth = config.depth.next_power_of_two().max(2);
        let channels = config.channels.max(1);
        let lanes = config.lanes.max(1);
        if let Some(gpu) = &inner.gpu {
            // The words of channels are in tables of the window, so the lanes need none for blocks of kernels.
            let plan = LanePlan { lanes: channels * layout.shape().lanes, depth, first: 0, blocks: 1 };
            let lanes = KernelLanes::new(&gpu.device, queues, plan)?;
            record.numbers.extend(lanes.queue_numbers().iter().map(|&[queue, _]| queue));
            let made = OnGpu::new(gpu, place, layout, channels, lanes, keys, rank)?;
            return Ok((Vec::new(), Some(made)));
        }
        let mut all = try_vec(channels as usize)?;
        for _ in 0..channels {
            let mut channel = try_vec(lanes as usize)?;
            try_grow(&mut record.numbers, lanes as usize)?;
            for _ in 0..lanes {
                let queue = queues.make_queue(depth).map_err(QueuesError::from)?;
                record.numbers.push(queue.queue_shape().number());
                channel.push(queue);
            }
            all.push(channel);
        }
        Ok((all, None))
    }
}

/// Describes this rank's part where writes of NICs need a flush. `data` is the heap of its data. Its post boxes begin
/// at `boxes` of `heap`. Per rank, `flushed` contains the heap of its data and whether writes to it need a flush.
fn flushed_part(
    data: Option<u8>,
    heap: u8,
    boxes: u64,
    me: MemberRank,
    peers: &[RemotePart],
    flushed: &[(u8, bool)],
) -> Result<Option<FlushedPart>, OutOfMemory> {
    let unread = |boxes, rank| PostBox::new(boxes, rank).map(PostBox::flush_byte);
    let peer = |((member, peer), &(heap, needs_flush)): ((MemberRank, &RemotePart), &(u8, bool))| {
        let unread = HeapAddress { member, heap: peer.heap, offset: unread(peer.boxes, me)? };
        Some(FlushedPeer { heap, needs_flush, unread })
    };
    let own = data.filter(|_| flushed.get(me as usize).is_some_and(|(_, needs_flush)| *needs_flush));
    let mut all = try_vec(peers.len())?;
    all.extend((0..).zip(peers).zip(flushed).map_while(peer));
    let offset = unread(boxes, me).filter(|_| all.len() == peers.len());
    let part = |offset| FlushedPart { own, unread: HeapRange { heap, offset, len: 1 }, peers: all };
    Ok(offset.map(part))
}

/// A rank's report of its part.
fn report_of<T>(how: &Result<T, DeviceError>) -> MakingReport {
    how.as_ref().map_or_else(|error| MakingReport::from_failure(&error.to_string()), |_| MakingReport::READY)
}

/// Publishes this rank's report and card, and returns the cards of all ranks.
///
/// # Errors
/// [`DeviceError::Elsewhere`] of the first rank that reports a failure.
fn gather_cards(
    world: &World,
    report: &MakingReport,
    card: &[u64; CARD_WORDS],
) -> Result<Vec<[u64; CARD_WORDS]>, DeviceError> {
    let mut mine = [0; GIVEN_WORDS];
    mine[..REPORT_WORDS].copy_from_slice(&report.to_words());
    mine[REPORT_WORDS..].copy_from_slice(card);
    let all = world.alloc::<u64>(GIVEN_WORDS * world.size())?;
    let gathered = world.all_gather(&mine, &all).and_then(|()| all.try_to_vec());
    world.free(all)?;
    let mut cards = try_vec(world.size())?;
    for (rank, given) in gathered?.as_chunks::<GIVEN_WORDS>().0.iter().enumerate() {
        let Some((report, card)) = given.split_first_chunk::<REPORT_WORDS>() else { continue };
        let report = MakingReport::from_words(report);
        let report = report.map_err(|source| DeviceError::Report { rank, source })?;
        if let Some(cause) = report.failure_cause() {
            return Err(DeviceError::Elsewhere { rank, cause: cause.to_owned() });
        }
        cards.extend(card.first_chunk::<CARD_WORDS>());
    }
    Ok(cards)
}

/// Waits for all ranks at the end of a window, and checks that none has operations of it in flight.
///
/// # Errors
/// [`DeviceError::Unsettled`], and as [`World::all_gather`].
pub(super) fn agree_on_end(world: &World, is_settled: bool) -> Result<(), DeviceError> {
    let all = world.alloc::<u64>(world.size())?;
    let gathered = world.all_gather(&[u64::from(is_settled)], &all).and_then(|()| all.try_to_vec());
    world.free(all)?;
    match gathered?.iter().position(|settled| *settled == 0) {
        Some(rank) => Err(DeviceError::Unsettled { rank }),
        None => Ok(()),
    }
}

/// Returns the words that rank `by` raises here, which are poisoned when it dies. Their offsets are relative to
/// `begin`.
fn slots_of(layout: &WindowLayout, by: MemberRank, begin: u64) -> Result<Vec<SlotLayout>, OutOfMemory> {
    let shape = layout.shape();
    let slots = |first: Option<u64>, count: u32| {
        first.filter(|_| count > 0).map(|first| SlotLayout::Poisoned { slots: first - begin, count })
    };
    let barriers = (0..shape.barriers).map(|id| slots(layout.barrier_slot(id, by), 1));
    let streams =
        (0..shape.channels).filter_map(|channel| layout.stream_layout(by, channel)).flat_map(|stream| {
            let ready = (0..shape.lanes).map(move |lane| slots(Some(stream.ready_flag(lane)), 1));
            ready.chain([slots(Some(stream.free_flag()), 1)])
        });
    let most = 1 + shape.barriers as usize + shape.channels as usize * (shape.lanes as usize + 1);
    let mut all = try_vec(most)?;
    all.extend(
        [slots(layout.signal_slot(by, 0), shape.signals)]
            .into_iter()
            .chain(barriers)
            .chain(streams)
            .flatten(),
    );
    Ok(all)
}
