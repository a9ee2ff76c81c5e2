//! A window as plain numbers, for kernels that are not written in Rust (docs/wire.md, "Windows").
//! `include/trunkline/device/window.h` declares the same structures in C++, with the same names. Nothing here reads
//! or writes memory of a window.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use trunkline_device::{EntryKey, QueueWords};
use trunkline_device_queue::{DeviceQueue, QueueView};
use trunkline_proto::reserve::{OutOfMemory, try_collect, try_filled_with, try_vec};
use trunkline_proto::wire::device_queue::{WindowLayout, stream_at};

use super::window::Window;

/// The version of [`DeviceView`].
pub const VIEW_VERSION: u32 = 3;

/// Words by which the threads of a group synchronize (`GROUP_WORDS`).
const GROUP_WORDS: usize = 16;

/// A window; `Window` in C++. Addresses are of this process; offsets are relative to the first byte of the window.
#[repr(C)]
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct DeviceView {
    /// [`VIEW_VERSION`].
    pub version: u32,
    /// The number of this rank.
    pub rank: u32,
    /// The number of ranks.
    pub ranks: u32,
    /// Signals per pair of ranks.
    pub signals: u32,
    /// The number of counters.
    pub counters: u32,
    /// The number of barriers.
    pub barriers: u32,
    /// The number of channels.
    pub channels: u32,
    /// Lanes per channel.
    pub lanes: u32,
    /// Chunks per stream that may be in flight.
    pub chunks: u32,
    /// Reserved, 0.
    pub reserved: u32,
    /// Bytes per chunk.
    pub chunk: u64,
    /// Address of the first byte of the window.
    pub base: u64,
    /// Bytes of data, from [`DeviceView::base`] on.
    pub bytes: u64,
    /// Offset of the first signal.
    pub signals_at: u64,
    /// Address of the base of the first signal.
    pub signal_bases: u64,
    /// Offset of the first counter.
    pub counters_at: u64,
    /// Address of the base of the first counter.
    pub counter_bases: u64,
    /// Offset of the slots of the first barrier.
    pub barriers_at: u64,
    /// Address of the first word that counts this rank's calls of a barrier.
    pub epochs: u64,
    /// Offset of the first stream.
    pub streams_at: u64,
    /// Distance from one stream to the next, in bytes.
    pub stream_bytes: u64,
    /// Address of the table of parts: one [`PeerView`] per rank.
    pub peers: u64,
    /// Address of the table of queues: one [`LaneView`] each, by channel, then by lane.
    pub queues: u64,
    /// Address of the words that kernels of a channel share. Per channel they are the words of its group, two words
    /// per lane, and the index of the next lane; see [`DeviceTables::words_of_channel`].
    pub words: u64,
    /// Address to which offsets of signals, counters, barriers and streams are added. It is [`DeviceView::base`],
    /// unless they are stored apart from the data.
    pub slots: u64,
}

/// A window as plain numbers, with the tables to which they point.
#[derive(Clone, Debug)]
pub struct DeviceTables {
    /// The numbers, to be copied to the kernel. They point into the tables below, so this value must outlive the
    /// kernel.
    pub view: DeviceView,
    /// The names of all parts, by rank.
    pub peers: Arc<Vec<PeerView>>,
    /// The queues, by channel, then by lane.
    pub queues: Arc<Vec<LaneView>>,
    /// The views of the same queues for producers.
    pub views: Arc<Vec<QueueView>>,
    /// The words that kernels of a channel share. A kernel continues with the state that the previous one left there.
    pub words: Arc<Vec<AtomicU64>>,
}

/// A rank's part of a window, as entries name it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PeerView {
    /// The number of the rank.
    pub rank: u32,
    /// The key of its region.
    pub key: u32,
}

/// A queue and its companions, which windows do not use; `Lane` in C++.
#[repr(C)]
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct LaneView {
    /// Address of the [`QueueView`].
    pub main: u64,
    /// Reserved, 0.
    pub companions: u64,
    /// Reserved, 0.
    pub count: u32,
    /// Reserved, 0.
    pub reserved: u32,
}

const _: () = assert!(size_of::<DeviceView>() == 10 * 4 + 15 * 8);
const _: () = assert!(size_of::<PeerView>() == 8 && size_of::<LaneView>() == 24);
const _: () = assert!(stream_at::SENT == 0 && stream_at::RECEIVED == 8 && stream_at::EXPECTED == 16);

impl DeviceView {
    /// Converts a layout. Addresses and channels stay 0.
    pub(super) fn from_layout(layout: &WindowLayout, rank: u32) -> Self {
        let shape = *layout.shape();
        let stream = |rank| layout.stream_layout(rank, 0).map_or(0, |stream| stream.state_offset());
        let second = layout
            .stream_layout(0, 1)
            .or_else(|| layout.stream_layout(1, 0))
            .map_or(0, |next| next.state_offset());
        Self {
            version: VIEW_VERSION,
            rank,
            ranks: shape.ranks,
            signals: shape.signals,
            counters: shape.counters,
            barriers: shape.barriers,
            channels: 0,
            lanes: shape.lanes,
            chunks: if shape.channels == 0 { 0 } else { shape.depth },
            reserved: 0,
            chunk: shape.chunk,
            base: 0,
            bytes: shape.bytes,
            signals_at: layout.signal_slot(0, 0).unwrap_or(0),
            signal_bases: 0,
            counters_at: layout.counter_slot(0).unwrap_or(0),
            counter_bases: 0,
            barriers_at: layout.barrier_slot(0, 0).unwrap_or(0),
            epochs: 0,
            streams_at: stream(0),
            stream_bytes: second.saturating_sub(stream(0)),
            peers: 0,
            queues: 0,
            words: 0,
            slots: 0,
        }
    }

    /// Returns the words of the view in memory order.
    ///
    /// # Examples
    /// ```no_run
    /// # use trunkline::device::{DeviceError, Window};
    /// # fn example(window: &Window) -> Result<(), DeviceError> {
    /// let tables = window.device_view()?;
    /// let words: [u64; 20] = tables.view.to_words();
    /// // The bytes of `Window` in C++, for a launch that passes it by value.
    /// let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub const fn to_words(&self) -> [u64; 20] {
        const fn join_halves(low: u32, high: u32) -> u64 {
            low as u64 | (high as u64) << 32
        }
        [
            join_halves(self.version, self.rank),
            join_halves(self.ranks, self.signals),
            join_halves(self.counters, self.barriers),
            join_halves(self.channels, self.lanes),
            join_halves(self.chunks, self.reserved),
            self.chunk,
            self.base,
            self.bytes,
            self.signals_at,
            self.signal_bases,
            self.counters_at,
            self.counter_bases,
            self.barriers_at,
            self.epochs,
            self.streams_at,
            self.stream_bytes,
            self.peers,
            self.queues,
            self.words,
            self.slots,
        ]
    }
}

impl DeviceTables {
    /// Returns the number of words that kernels of one channel share.
    ///
    /// # Examples
    /// ```
    /// use trunkline::device::DeviceTables;
    ///
    /// // The zeroed words of four channels with two lanes each.
    /// let words = vec![0_u64; 4 * DeviceTables::words_of_channel(2)];
    /// assert_eq!(words.len(), 128);
    /// ```
    #[must_use]
    pub const fn words_of_channel(lanes: u32) -> usize {
        (GROUP_WORDS + 2 * lanes as usize + 1).next_multiple_of(16)
    }

    pub(super) fn from_window(window: &Window) -> Result<Self, OutOfMemory> {
        let (layout, shape) = (&window.part.layout, *window.part.layout.shape());
        let channels = window.queues.len() as u32;
        let peer = |(rank, key): (usize, &EntryKey)| PeerView { rank: rank as u32, key: key.to_bits() };
        let peers = Arc::new(try_collect(window.part.keys.iter().enumerate().map(peer))?);
        let page = window.doorbell_page();
        let view = |queue: &DeviceQueue<QueueWords>| {
            let at = queue.as_memory().as_memory().addr() as u64;
            let bells = page.as_memory().as_memory().addr() as u64;
            QueueView::new(queue.queue_shape(), at, page.doorbell_layout(), bells, None)
        };
        // All queues of such a window are for host threads, so each has a view.
        let mut views = try_vec(window.queues.iter().map(Vec::len).sum())?;
        views.extend(window.queues.iter().flatten().filter_map(view));
        let views = Arc::new(views);
        let lane = |view: &QueueView| LaneView {
            main: (&raw const *view).addr() as u64,
            companions: 0,
            count: 0,
            reserved: 0,
        };
        let queues = Arc::new(try_collect(views.iter().map(lane))?);
        let words = channels as usize * Self::words_of_channel(shape.lanes);
        let words = Arc::new(try_filled_with(words, || AtomicU64::new(0))?.into_vec());
        let base = window.part.memory.addr() as u64;
        let view = DeviceView {
            channels,
            base,
            slots: base,
            signal_bases: base + layout.signal_base(0, 0).unwrap_or(0),
            counter_bases: base + layout.counter_base(0).unwrap_or(0),
            epochs: base + layout.barrier_epoch(0).unwrap_or(0),
            peers: peers.as_ptr().addr() as u64,
            queues: queues.as_ptr().addr() as u64,
            words: words.as_ptr().addr() as u64,
            ..DeviceView::from_layout(layout, window.part.rank as u32)
        };
        Ok(Self { view, peers, queues, views, words })
    }
}
