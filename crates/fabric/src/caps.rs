//! The guarantees and limits of a NIC. Read once at connect time to make a plan; never on the data path.

use trunkline_mem::gpu::{GpuVendor, VendorDrivers};

/// Memory of accelerators that a NIC reaches. Other such memory is refused when it is registered.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct DeviceReach {
    /// Memory that is passed as a dma-buf ([`MemoryRegistrar::register_exported`](crate::MemoryRegistrar::register_exported)).
    pub dmabuf: bool,
    /// Memory of NVIDIA's GPUs by its address ([`MemoryRegistrar::register`](crate::MemoryRegistrar::register)); true while their kernel module for
    /// that is loaded.
    pub nvidia: bool,
    /// Memory of AMD's GPUs by its address, likewise.
    pub amd: bool,
    /// Writes into it may stay invisible to the device until an [`Op::FlushAt`](crate::Op::FlushAt) completes.
    pub needs_flush: bool,
}

impl DeviceReach {
    /// Whether any such memory is reached.
    #[must_use]
    pub fn reaches_any(&self) -> bool {
        self.dmabuf || self.nvidia || self.amd
    }

    /// Limits the reach to the GPU drivers given: memory by address of the GPUs whose drivers are open, and dma-bufs if one of those drivers exports
    /// them.
    #[must_use]
    pub fn limit_to_gpus(self, gpus: &VendorDrivers) -> Self {
        Self {
            dmabuf: self.dmabuf && gpus.exports_memory(),
            nvidia: self.nvidia && gpus.has_vendor(GpuVendor::Nvidia),
            amd: self.amd && gpus.has_vendor(GpuVendor::Amd),
            ..self
        }
    }

    /// Returns the memory that both NICs reach, and whether either of them needs flushes.
    #[must_use]
    pub fn intersect_with(self, other: Self) -> Self {
        Self {
            dmabuf: self.dmabuf && other.dmabuf,
            nvidia: self.nvidia && other.nvidia,
            amd: self.amd && other.amd,
            needs_flush: self.needs_flush || other.needs_flush,
        }
    }
}

/// Guarantees and limits of one NIC.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Caps {
    /// Operations of one link arrive, and their completions appear at the target, in the order they were posted. A read fetches its bytes at any
    /// time before it completes: writes and atomics that are posted behind it may already have changed them (InfiniBand Architecture
    /// Specification, volume 1, section 10.8.3.3: only a fence orders them). A caller that needs the old bytes waits for the read's completion.
    pub link_order: bool,
    /// [`Completion::len`](crate::Completion::len) of a remote write with immediate is the number of bytes written.
    pub remote_len: bool,
    /// Writes into data regions may stay invisible to the CPU until an [`Op::Flush`](crate::Op::Flush) completes.
    pub needs_flush: bool,
    /// Memory that the CPU does not reach, and the NIC does.
    pub devices: DeviceReach,
    /// The NIC pairs sends and receives of the same key by itself ([`Op::MatchedSend`](crate::Op::MatchedSend)).
    pub matched: bool,
    /// Matched operations of one link and key are paired in the order in which they were posted at each end.
    pub match_order: bool,
    /// Lowest bits of a [`MatchKey`](crate::MatchKey) that are compared, at most 64.
    pub match_bits: u32,
    /// The NIC executes remote atomics ([`Op::FetchAdd`](crate::Op::FetchAdd), [`Op::CompareSwap`](crate::Op::CompareSwap)), each with no other of
    /// its own in between.
    pub atomics: bool,
    /// Those atomics are also atomic with the CPU's. Where this is false, all atomics on a word must use the NIC, or none.
    pub coherent_atomics: bool,
    /// The NIC executes atomics while its process makes no call.
    pub offloads_atomics: bool,
    /// A link can wait for a completion queue ([`Op::Wait`](crate::Op::Wait)).
    pub wait: bool,
    /// Peers' writes to a region that was retired ([`RegisteredRegion::retire`](crate::RegisteredRegion::retire)) are accepted and dropped, instead
    /// of ending their link.
    pub retires: bool,
    /// A link that is destroyed still delivers the operations posted on it, and then its peer's end is in error. Where this is false, operations that
    /// had not left are lost. The peer then notices through its own operations, or not through the network at all.
    pub ends_are_told: bool,
    /// An operation that the target refuses fails: for a wrong key, a right that was not granted, bytes outside of a region,
    /// or a receive that is too short. Where this is false it may seem to succeed, and operations posted after it may be lost.
    pub refusals_are_told: bool,
    /// An error that ends a link also ends it at the peer. Where this is false, the peer notices through its own operations, or not through the network
    /// at all.
    pub errors_reach_peers: bool,
    /// A send that finds no receive waits in its sender's queue, and has not completed. Where this is false, the target buffers it, or a
    /// connection stalls there.
    pub sends_wait: bool,
    /// An operation that has completed as [`CompletionKind::Posted`](crate::CompletionKind::Posted) has arrived at the target. Where this is false, only its
    /// source may be reused, and a completed [`Op::Nop`](crate::Op::Nop) proves that all operations posted before it on its link have arrived.
    pub arrives: bool,
    /// A write can be posted such that it completes only once its bytes are placed ([`Op::PlacedWrite`](crate::Op::PlacedWrite)). Useful where
    /// ordinary writes complete earlier.
    pub placed_writes: bool,
    /// A write with immediate consumes one of the target's posted receives, as a send does, and waits if there is
    /// none until the target posts one or ends. The NIC posts that receive again in the poll that returns the
    /// [`CompletionKind::Written`](crate::CompletionKind::Written), without a completion for its owner. It stays
    /// posted until a send fills it or the link ends. The order in which sends fill several receives is not promised.
    /// An owner that must stay reachable by immediates keeps one receive more posted than sends can fill.
    pub immediate_takes_receive: bool,
    /// A write may carry an immediate. Where this is false, a post with one is refused. A send that finds no receive
    /// is then retried until its target ends, because it may be a record.
    pub write_data: bool,
    /// Largest [`OpSource::Inline`](crate::OpSource::Inline) of one operation, in bytes, at least [`Caps::INLINE_MIN`]: a fabric copies the bytes
    /// that exceed the device's own limit.
    pub inline_max: u32,
    /// Most bytes one operation may move.
    pub message_max: u64,
    /// Most operations that may be outstanding on one link.
    pub depth_max: u32,
    /// Most links this NIC can have at once, over all processes' rails of it.
    pub links_max: u32,
    /// Pipelines that share the work of the NIC, at least 1. Each takes an equal part of `links_max`; a link stays on
    /// the one it was made on ([`LinkControl::create_link_on`](crate::LinkControl::create_link_on)).
    pub pipelines: u32,
    /// Most completions that wait in one rail's completion queue.
    pub completions_max: u32,
    /// Peers' reads and writes make progress only in calls of this side, and those calls do not report them. A caller that waits for
    /// something else must therefore keep polling.
    pub unseen: bool,
    /// Receives that all links of a rail may hold together, where they share them; `u32::MAX` elsewhere.
    pub receives_max: u32,
    /// Most registered regions at once.
    pub regions_max: u32,
}

impl Caps {
    /// Smallest [`Caps::inline_max`], in bytes: the length of a record of the engine.
    pub const INLINE_MIN: u32 = 64;
}
