//! A window as plain numbers, for kernels that are not written in Rust: docs/wire.md, "Windows". Nothing here reads or writes memory.

use std::sync::Arc;

use trunkline_devq::Queue;
use trunkline_engine::device::{Key, Words};
use trunkline_proto::wire::devq::stream_at;

use super::window::Window;

/// A window. All addresses are of this process; offsets are from the first byte of the window.
#[repr(C)]
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct DeviceView {
    /// Version of this, 1.
    pub version: u32,
    /// This rank.
    pub rank: u32,
    /// Ranks.
    pub ranks: u32,
    /// Signals that each rank may raise here.
    pub signals: u32,
    /// Counters.
    pub counters: u32,
    /// Barriers.
    pub barriers: u32,
    /// Channels.
    pub channels: u32,
    /// Lanes of a channel.
    pub lanes: u32,
    /// Chunks of a stream.
    pub chunks: u32,
    /// 0.
    pub reserved: u32,
    /// Bytes of a chunk.
    pub chunk: u64,
    /// Address of the first byte.
    pub base: u64,
    /// Bytes of data, from there on.
    pub bytes: u64,
    /// Offsets of the first signal, of its base, and so on.
    pub signals_at: u64,
    /// The same.
    pub signal_bases_at: u64,
    /// The same.
    pub counters_at: u64,
    /// The same.
    pub counter_bases_at: u64,
    /// The same.
    pub barriers_at: u64,
    /// The same.
    pub epochs_at: u64,
    /// The first stream, and how far the next one is.
    pub streams_at: u64,
    /// The same.
    pub stream_bytes: u64,
    /// Address of the page of doorbells.
    pub bells: u64,
    /// Address of how each rank's part is named, a [`PeerView`] each.
    pub peers: u64,
    /// Address of the queues, a [`QueueView`] each, by channel and then lane.
    pub queues: u64,
}

/// A window as plain numbers, and the tables that they point to.
#[derive(Clone, Debug)]
pub struct DeviceTables {
    /// The numbers, to be copied to the kernel. They point into what follows, so this is to live as long.
    pub view: DeviceView,
    /// How each rank's part is named, by rank.
    pub peers: Arc<[PeerView]>,
    /// Queues, by channel and then lane.
    pub queues: Arc<[QueueView]>,
}

/// A rank's part of a window, as entries name it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PeerView {
    /// The rank.
    pub rank: u32,
    /// The key of its region.
    pub key: u32,
}

/// A queue.
#[repr(C)]
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct QueueView {
    /// Address of its header.
    pub at: u64,
    /// Entries.
    pub depth: u32,
    /// Its doorbell, on the page of the window.
    pub bell: u32,
}

const _: () = assert!(size_of::<DeviceView>() == 10 * 4 + 14 * 8);
const _: () = assert!(size_of::<PeerView>() == 8 && size_of::<QueueView>() == 16);
const _: () = assert!(stream_at::SENT == 0 && stream_at::RECEIVED == 8 && stream_at::EXPECTED == 16);

impl DeviceTables {
    pub(super) fn of(window: &Window) -> Self {
        let (layout, shape) = (&window.layout, *window.layout.shape());
        let stream = |rank| layout.stream(rank, 0).map_or(0, |stream| stream.state());
        let channels = window.queues.len() as u32;
        let second = layout.stream(0, 1).or_else(|| layout.stream(1, 0)).map_or(0, |next| next.state());
        let peer = |(rank, key): (usize, &Key)| PeerView { rank: rank as u32, key: key.bits() };
        let peers: Arc<[_]> = window.keys.iter().enumerate().map(peer).collect();
        let queue = |queue: &Queue<Words>| QueueView {
            at: queue.words().memory().addr() as u64,
            depth: queue.shape().depth(),
            bell: queue.shape().bell(),
        };
        let queues: Arc<[_]> = window.queues.iter().flatten().map(queue).collect();
        let view = DeviceView {
            version: 1,
            rank: window.rank as u32,
            ranks: shape.ranks,
            signals: shape.signals,
            counters: shape.counters,
            barriers: shape.barriers,
            channels,
            lanes: shape.lanes,
            chunks: if shape.channels == 0 { 0 } else { shape.depth },
            reserved: 0,
            chunk: shape.chunk,
            base: window.memory.addr() as u64,
            bytes: shape.bytes,
            signals_at: layout.signal(0, 0).unwrap_or(0),
            signal_bases_at: layout.signal_base(0, 0).unwrap_or(0),
            counters_at: layout.counter(0).unwrap_or(0),
            counter_bases_at: layout.counter_base(0).unwrap_or(0),
            barriers_at: layout.barrier(0, 0).unwrap_or(0),
            epochs_at: layout.epoch(0).unwrap_or(0),
            streams_at: stream(0),
            stream_bytes: second.saturating_sub(stream(0)),
            bells: window.bells().words().memory().addr() as u64,
            peers: peers.as_ptr().addr() as u64,
            queues: queues.as_ptr().addr() as u64,
        };
        Self { view, peers, queues }
    }
}
