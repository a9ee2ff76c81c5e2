//! Queries of exported and imported memory, and calls that retire exports. Called by programs that need to know which
//! ranks hold their memory; nothing here sends messages.

use std::time::Duration;

use trunkline_mem::ipc::IpcMemory;
pub use trunkline_node::ipc::{FreeHook, NodeCounts as Driver};
use trunkline_node::tagged::TaggedPeerId;
use trunkline_proto::ipc::exporter::ExportListing;
pub use trunkline_proto::ipc::exporter::ExporterCounts as Sharing;
pub use trunkline_proto::ipc::exporter::{ExportAmount, ExportState, ExportUsage, FallbackReason};
use trunkline_proto::time::Duration as Nanoseconds;

use super::{MessageError, Messages};

/// The exports of a rank at one moment, their budget, and counts of events so far.
#[derive(Clone, Copy, Debug)]
pub struct SharingReport {
    /// The budget of exports.
    pub budget: ExportAmount,
    /// The time for which an unused export is kept; `None`: without limit.
    pub idle: Option<Duration>,
    /// The current exports. Zombies are exports that were retired while a message used them or a rank had them
    /// mapped; their bytes count.
    pub usage: ExportUsage,
    /// The largest number of bytes that were exported at one time.
    pub peak_bytes: u64,
    /// Hits, misses and evictions of exports, and messages that did not share memory, by reason.
    pub counts: Sharing,
    /// Calls of the driver, and those that failed.
    pub driver: Driver,
}

/// A rank that has received an export and has not released it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ExportHolder {
    /// The rank.
    pub rank: usize,
    /// Messages to that rank that use the export now.
    pub pins: u32,
}

/// An allocation of this rank that is exported to other ranks.
#[derive(Clone, Debug)]
pub struct ExportedAllocation {
    /// The address of the allocation's first byte.
    pub addr: usize,
    /// The length of the allocation in bytes.
    pub len: u64,
    /// The driver's identifier of the allocation, which no other allocation of this process has.
    pub allocation: u64,
    /// The state of the export.
    pub state: ExportState,
    /// Whether the export is retired after the last message that uses it, instead of being kept.
    pub passing: bool,
    /// Messages that use the export now.
    pub pins: u32,
    /// The time since the last message that used the export ended.
    pub unused: Duration,
    /// The ranks that hold the export.
    pub held_by: Vec<ExportHolder>,
}

/// The memory of another rank that this rank has mapped.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ImportedMemory {
    /// The rank that owns the memory.
    pub rank: usize,
    /// Exports of that rank that may be mapped here.
    pub imports: usize,
    /// Current mappings.
    pub mappings: usize,
    /// Bytes of the mappings.
    pub bytes: u64,
    /// Messages that use the mappings now.
    pub pins: u64,
}

impl<M: IpcMemory> Messages<M> {
    /// Returns the current exports, their budget, and counts of messages that shared memory or could not. A snapshot.
    ///
    /// # Examples
    /// ```no_run
    /// # use trunkline::World;
    /// # use trunkline::messages::{HostMemory, Messages};
    /// # let world = World::start()?;
    /// # let messages = Messages::start(&world, HostMemory::new()?)?;
    /// let report = messages.sharing_report();
    /// let (live, budget) = (report.usage.live, report.budget);
    /// println!("{} of {} exports, {} bytes", live.entries, budget.entries, live.bytes);
    /// println!("retired, but still held: {} bytes", report.usage.zombies.bytes);
    /// println!("messages without sharing: {}", report.counts.all_fallbacks());
    /// # Ok::<(), trunkline::messages::MessageError>(())
    /// ```
    #[must_use]
    pub fn sharing_report(&self) -> SharingReport {
        let exporter = self.endpoint.node().exporter();
        let driver = self.endpoint.node().counts();
        let config = exporter.config();
        SharingReport {
            budget: config.budget,
            idle: config.idle.map(|limit| Duration::from_nanos(limit.0)),
            usage: exporter.usage(),
            peak_bytes: exporter.peak_bytes(),
            counts: exporter.counts(),
            driver,
        }
    }

    /// Returns every export of this rank with its state and its holders, in no particular order.
    ///
    /// # Examples
    /// ```no_run
    /// # use trunkline::World;
    /// # use trunkline::messages::{HostMemory, Messages};
    /// # let world = World::start()?;
    /// # let messages = Messages::start(&world, HostMemory::new()?)?;
    /// for export in messages.list_exports() {
    ///     println!("{:#x}: {} bytes, {:?}", export.addr, export.len, export.state);
    ///     for holder in &export.held_by {
    ///         println!("  rank {}, {} pending messages", holder.rank, holder.pins);
    ///     }
    /// }
    /// # Ok::<(), trunkline::messages::MessageError>(())
    /// ```
    #[must_use]
    pub fn list_exports(&self) -> Vec<ExportedAllocation> {
        let now = self.current_time();
        let of = |listing: ExportListing| ExportedAllocation {
            addr: listing.memory.span.start() as usize,
            len: listing.memory.span.len(),
            allocation: listing.memory.id.0,
            state: listing.state,
            passing: listing.passing,
            pins: listing.pins,
            unused: Duration::from_nanos(now.0.saturating_sub(listing.used.0)),
            held_by: self.export_holders(&listing),
        };
        self.endpoint.node().exporter().list_exports().map(of).collect()
    }

    /// Returns the ranks that hold the allocation around an address, each with its number of pending messages. The
    /// list includes ranks that still hold a freed allocation which had that address before. It is empty if no rank
    /// holds one.
    ///
    /// # Examples
    /// ```no_run
    /// # use trunkline::World;
    /// # use trunkline::messages::{HostMemory, Messages};
    /// # let world = World::start()?;
    /// # let messages = Messages::start(&world, HostMemory::new()?)?;
    /// # let address = messages.memory().alloc(1 << 20)?;
    /// // After a free that returned no memory to the device:
    /// for holder in messages.who_holds(address) {
    ///     println!("rank {} still holds {address:#x}", holder.rank);
    /// }
    /// # Ok::<(), trunkline::messages::MessageError>(())
    /// ```
    #[must_use]
    pub fn who_holds(&self, addr: usize) -> Vec<ExportHolder> {
        let around = |listing: &ExportListing| {
            let start = listing.memory.span.start();
            let len = listing.memory.span.len();
            (addr as u64).checked_sub(start).is_some_and(|offset| offset < len)
        };
        let mut all: Vec<ExportHolder> = Vec::new();
        let exports = self.endpoint.node().exporter().list_exports().filter(around);
        for holder in exports.flat_map(|listing| self.export_holders(&listing)) {
            match all.iter_mut().find(|other| other.rank == holder.rank) {
                Some(other) => other.pins += holder.pins,
                None => all.push(holder),
            }
        }
        all.sort_by_key(|holder| holder.rank);
        all
    }

    fn export_holders(&self, of: &ExportListing) -> Vec<ExportHolder> {
        let rank = |(neighbour, pins)| {
            Some(ExportHolder { rank: self.rank_of(self.endpoint.find_peer(neighbour)?), pins })
        };
        self.endpoint.node().export_holders(of.name).filter_map(rank).collect()
    }

    /// Returns the mappings of this rank, per near rank.
    ///
    /// # Examples
    /// ```no_run
    /// # use trunkline::World;
    /// # use trunkline::messages::{HostMemory, Messages};
    /// # let world = World::start()?;
    /// # let messages = Messages::start(&world, HostMemory::new()?)?;
    /// for import in messages.imports() {
    ///     println!("rank {}: {} bytes are mapped here", import.rank, import.bytes);
    /// }
    /// # Ok::<(), trunkline::messages::MessageError>(())
    /// ```
    #[must_use]
    pub fn imports(&self) -> Vec<ImportedMemory> {
        let near = self.peers.iter().enumerate().filter_map(|(rank, peer)| Some((rank, (*peer)?)));
        let of = |(rank, peer): (usize, TaggedPeerId)| {
            let neighbour = self.endpoint.neighbour_of(peer)?;
            let usage = self.endpoint.node().importer().source_usage(neighbour.source());
            let imports = usage.imports;
            let mappings = usage.mappings;
            Some(ImportedMemory { rank, imports, mappings, bytes: usage.bytes, pins: usage.pins })
        };
        near.filter_map(of).collect()
    }

    /// Raises the budget of exports to at least `allocations` and `bytes`. This is the only call that allocates
    /// memory for the tables of exports, once.
    ///
    /// # Examples
    /// ```no_run
    /// # use trunkline::World;
    /// # use trunkline::messages::{HostMemory, Messages};
    /// # let world = World::start()?;
    /// # let mut messages = Messages::start(&world, HostMemory::new()?)?;
    /// // The tables grow now, so that no later message has to allocate memory for them.
    /// messages.grow(1024, 1 << 40);
    /// assert_eq!(messages.sharing_report().budget.entries, 1024);
    /// # Ok::<(), trunkline::messages::MessageError>(())
    /// ```
    pub fn grow(&mut self, allocations: usize, bytes: u64) {
        self.endpoint.node_mut().grow_budget(ExportAmount { entries: allocations, bytes });
    }

    /// Lowers the budget of exports to at most `allocations` and `bytes`; with 0 of either, messages export nothing.
    /// Exports beyond it are retired, the least recently used first. Exports that messages use are retired when those
    /// messages have ended.
    ///
    /// # Examples
    /// ```no_run
    /// # use trunkline::World;
    /// # use trunkline::messages::{HostMemory, Messages};
    /// # let world = World::start()?;
    /// # let mut messages = Messages::start(&world, HostMemory::new()?)?;
    /// messages.shrink(16, 256 << 20); // For a phase that needs most of the memory.
    /// // ...
    /// messages.grow(256, 1 << 40);
    /// # Ok::<(), trunkline::messages::MessageError>(())
    /// ```
    pub fn shrink(&mut self, allocations: usize, bytes: u64) {
        self.endpoint.node_mut().shrink_budget(ExportAmount { entries: allocations, bytes });
    }

    /// Sets the time for which an unused export is kept, 30 s at first; `None`: without limit. The next call of this
    /// type retires older exports.
    ///
    /// # Examples
    /// ```no_run
    /// # use trunkline::World;
    /// # use trunkline::messages::{HostMemory, Messages};
    /// # let world = World::start()?;
    /// # let mut messages = Messages::start(&world, HostMemory::new()?)?;
    /// use std::time::Duration;
    ///
    /// // Memory that no message has used for two seconds is unmapped by the other ranks.
    /// messages.idle_limit(Some(Duration::from_secs(2)));
    /// # Ok::<(), trunkline::messages::MessageError>(())
    /// ```
    pub fn idle_limit(&mut self, limit: Option<Duration>) {
        let limit = limit.map(|limit| Nanoseconds(u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX)));
        self.endpoint.node_mut().set_idle_limit(limit);
    }

    /// Retires all exports that a rank holds; exports that messages use, when those messages have ended. Later
    /// messages may export the memory again. Messages that start before the rank has unmapped it do not share memory.
    ///
    /// # Errors
    /// [`MessageError::NoRank`], [`MessageError::Far`], [`MessageError::Own`].
    ///
    /// # Examples
    /// ```no_run
    /// # use trunkline::World;
    /// # use trunkline::messages::{HostMemory, Messages};
    /// # let world = World::start()?;
    /// # let mut messages = Messages::start(&world, HostMemory::new()?)?;
    /// # let address = messages.memory().alloc(1 << 20)?;
    /// messages.drain(1)?; // Rank 1 is short of memory.
    /// while messages.who_holds(address).iter().any(|holder| holder.rank == 1) {
    ///     messages.progress();
    /// }
    /// # Ok::<(), trunkline::messages::MessageError>(())
    /// ```
    pub fn drain(&mut self, rank: usize) -> Result<(), MessageError> {
        let peer = self.peer_id(rank)?;
        let neighbour = self.endpoint.neighbour_of(peer);
        neighbour.into_iter().for_each(|neighbour| self.endpoint.node_mut().drain_neighbour(neighbour));
        Ok(())
    }

    /// Returns a flag for hooks that run when memory of this kind is freed ([`FreeHook::report_free`]), in any
    /// thread. Once it is set, the next calls of this type compare every export with its driver, within about a
    /// millisecond if the program makes calls. Exports of freed memory are unmapped everywhere.
    ///
    /// A program that preloads `libtrunkline_freehook.so` needs no flag for memory of GPUs. Without either, freed
    /// memory is released when its address is used again, after the idle limit, or when its export is retired on
    /// demand.
    ///
    /// # Examples
    /// ```no_run
    /// # use trunkline::World;
    /// # use trunkline::messages::{HostMemory, Messages};
    /// # let world = World::start()?;
    /// # let messages = Messages::start(&world, HostMemory::new()?)?;
    /// let hook = messages.free_hook();
    /// // The allocator of the program calls this after each free, in any thread.
    /// let after_free = move || hook.report_free();
    /// after_free();
    /// # Ok::<(), trunkline::messages::MessageError>(())
    /// ```
    #[must_use]
    pub fn free_hook(&self) -> FreeHook {
        self.endpoint.free_hook()
    }
}
