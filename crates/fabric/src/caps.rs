//! What a NIC guarantees and how much it takes. Read once at connect time to make a plan; never on the data path.

use trunkline_mem::gpu::{GpuVendor, VendorDrivers};

/// Memory of accelerators that a NIC reaches. Other such memory is refused when it is registered.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct DeviceReach {
    /// That of a dma-buf ([`MemoryRegistrar::register_exported`](crate::MemoryRegistrar::register_exported)).
    pub dmabuf: bool,
    /// That of NVIDIA's GPUs by its address ([`MemoryRegistrar::register`](crate::MemoryRegistrar::register)), as their kernel module for
    /// that is loaded.
    pub nvidia: bool,
    /// The same of AMD's GPUs.
    pub amd: bool,
    /// Writes into it may stay invisible to the device until an [`Op::FlushAt`](crate::Op::FlushAt) completes.
    pub needs_flush: bool,
}

impl DeviceReach {
    /// Whether any is reached.
    #[must_use]
    pub fn reaches_any(&self) -> bool {
        self.dmabuf || self.nvidia || self.amd
    }

    /// What of it is of use with these drivers of GPUs: by its address memory of those that are open, as a dma-buf if they
    /// export it.
    #[must_use]
    pub fn limit_to_gpus(self, gpus: &VendorDrivers) -> Self {
        Self {
            dmabuf: self.dmabuf && gpus.exports_memory(),
            nvidia: self.nvidia && gpus.has_vendor(GpuVendor::Nvidia),
            amd: self.amd && gpus.has_vendor(GpuVendor::Amd),
            ..self
        }
    }

    /// What both of two NICs reach, and whether one of them needs flushes.
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
    /// Lowest bits of a [`Match`](crate::MatchKey) that are compared, at most 64.
    pub match_bits: u32,
    /// The NIC executes remote atomics ([`Op::FetchAdd`](crate::Op::FetchAdd), [`Op::CompareSwap`](crate::Op::CompareSwap)), each with no other of
    /// its own in between.
    pub atomics: bool,
    /// Nor one of the CPU's. Elsewhere all atomics of a word go through the NIC, or none.
    pub coherent_atomics: bool,
    /// It executes them while its side makes no call.
    pub offloads_atomics: bool,
    /// A link can wait for a completion queue ([`Op::Wait`](crate::Op::Wait)).
    pub wait: bool,
    /// What peers write to a region that was retired ([`Mr::retire`](crate::RegisteredRegion::retire)) is taken and goes nowhere, instead
    /// of ending their link.
    pub retires: bool,
    /// A link that is destroyed still delivers what was posted on it, and then its peer's end is in error. Elsewhere what
    /// had not left is lost, and the peer learns of it by what it sends itself, or not from the network.
    pub ends_are_told: bool,
    /// An operation that the target refuses fails: for a wrong key, a right that was not granted, bytes outside of a region,
    /// or a receive that is too short. Elsewhere it may seem to work, and what was posted after it may be lost.
    pub refusals_are_told: bool,
    /// An error that ends a link ends it at the peer, too. Elsewhere the peer learns of it by what it posts itself, or not
    /// from the network.
    pub errors_reach_peers: bool,
    /// A send that finds no receive waits where it was posted, and has not completed. Elsewhere the target keeps it, or a
    /// connection stops there.
    pub sends_wait: bool,
    /// What has completed as [`CompletionKind::Posted`](crate::CompletionKind::Posted) is at the target. Elsewhere only its source may be reused,
    /// and an [`Op::Nop`](crate::Op::Nop) that completes proves that all posted before it on its link is there.
    pub arrives: bool,
    /// A write can be asked to complete only once its bytes are there ([`Op::PlacedWrite`](crate::Op::PlacedWrite)). Of use where
    /// not all do.
    pub placed_writes: bool,
    /// A write with immediate takes one of the target's posted receives, as a send does, and waits where there is none, for
    /// as long as the target lives. The NIC posts that receive again in the poll that returns the
    /// [`CompletionKind::Written`](crate::CompletionKind::Written), and its owner does not hear of it: it stays posted until a send fills it or
    /// the link ends, and which of several a send fills is not promised. Who has to be reachable by immediates keeps one
    /// receive more posted than sends can fill.
    pub immediate_takes_receive: bool,
    /// A write may bring an immediate. Elsewhere one that has one is refused when it is posted, and a send that finds no receive
    /// is tried for as long as the target lives: a record may be one.
    pub write_data: bool,
    /// Most bytes of [`OpSource::Inline`](crate::OpSource::Inline) in one operation, at least [`Caps::INLINE_MIN`]: a fabric copies what
    /// its device does not.
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
    /// What peers read and write here makes progress only in calls of this side, which are told nothing of it: who waits for
    /// something else has to go on calling.
    pub unseen: bool,
    /// Receives that all links of a rail may hold together, where they share them; `u32::MAX` elsewhere.
    pub receives_max: u32,
    /// Most registered regions at once.
    pub regions_max: u32,
}

impl Caps {
    /// Fewest bytes of [`Caps::inline_max`]: a record of the engine's is as long.
    pub const INLINE_MIN: u32 = 64;
}
