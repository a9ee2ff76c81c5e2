//! What a rank shares of its memory and who holds it, for whoever asks; and how it is asked back.

use std::time::Duration;

use trunkline_mem::ipc::IpcMemory;
pub use trunkline_node::ipc::{FreeHook, NodeCounts as Driver};
use trunkline_node::tagged::TaggedPeerId;
use trunkline_proto::ipc::exporter::ExportListing;
pub use trunkline_proto::ipc::exporter::ExporterCounts as Sharing;
pub use trunkline_proto::ipc::exporter::{ExportAmount, ExportState, ExportUsage, FallbackReason};
use trunkline_proto::time::Duration as Nanoseconds;

use super::{MessageError, Messages};

/// What there is of exported memory, and what has happened with it.
#[derive(Clone, Copy, Debug)]
pub struct SharingReport {
    /// What may be kept.
    pub budget: ExportAmount,
    /// For how long an export is kept that no message uses; `None`: for ever.
    pub idle: Option<Duration>,
    /// What there is. Zombies are exports that are over and that a message uses or a rank has mapped; their bytes count.
    pub usage: ExportUsage,
    /// Most bytes that were exported at once.
    pub peak_bytes: u64,
    /// Hits, misses, evictions, and messages that went without sharing by the reason why.
    pub counts: Sharing,
    /// What the driver was asked, and what it did not do.
    pub driver: Driver,
}

/// A rank that was told of an export and has not let it go.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ExportHolder {
    /// Which rank.
    pub rank: usize,
    /// Messages to it that use the export now.
    pub pins: u32,
}

/// Memory of this rank that others were told of.
#[derive(Clone, Debug)]
pub struct ExportedAllocation {
    /// Address of the allocation's first byte.
    pub addr: usize,
    /// Its bytes.
    pub len: u64,
    /// What its driver calls the allocation; no other one of this process has that number.
    pub allocation: u64,
    /// Where the export stands.
    pub state: ExportState,
    /// Whether it goes with the last message that uses it, instead of being kept.
    pub passing: bool,
    /// Messages that use it now.
    pub pins: u32,
    /// Since when no message has ended that used it.
    pub unused: Duration,
    /// Who holds it.
    pub held_by: Vec<ExportHolder>,
}

/// What this rank has mapped of another one's memory.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ImportedMemory {
    /// Whose memory.
    pub rank: usize,
    /// Exports of it that may be mapped here.
    pub imports: usize,
    /// Mappings.
    pub mappings: usize,
    /// Their bytes.
    pub bytes: u64,
    /// Messages that use them now.
    pub pins: u64,
}

impl<M: IpcMemory> Messages<M> {
    /// What is exported by how much, out of what budget, and what became of messages that would have shared memory. A snapshot.
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

    /// Every export of this rank, as it stands, with who holds it. In no order.
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

    /// The ranks that hold the allocation around an address, and with how many messages that are not done. Also those that hold an allocation
    /// which had that address before and was freed, until they have let it go. Empty: nobody does.
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

    /// What this rank has mapped of each rank near.
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

    /// From now on at least so many allocations, and bytes of them, are kept. This alone allocates memory for it, once.
    pub fn grow(&mut self, allocations: usize, bytes: u64) {
        self.endpoint.node_mut().grow_budget(ExportAmount { entries: allocations, bytes });
    }

    /// From now on at most so many allocations, and bytes of them, are kept; with 0 of one nothing is exported. What is beyond goes, the least
    /// recently used first; what messages use, as soon as they are done.
    pub fn shrink(&mut self, allocations: usize, bytes: u64) {
        self.endpoint.node_mut().shrink_budget(ExportAmount { entries: allocations, bytes });
    }

    /// For how long an export is kept from now on that no message uses, 30 s at first; `None`: for ever. What is older goes with the next look,
    /// in any call of this type.
    pub fn idle_limit(&mut self, limit: Option<Duration>) {
        let limit = limit.map(|limit| Nanoseconds(u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX)));
        self.endpoint.node_mut().set_idle_limit(limit);
    }

    /// Asks back all that a rank holds of this one's memory: what messages to it use, once they are done. It may be told of it again
    /// afterwards; messages to it that come before it has let go take another way.
    ///
    /// # Errors
    /// [`MessageError::NoRank`], [`MessageError::Far`], [`MessageError::Own`].
    pub fn drain(&mut self, rank: usize) -> Result<(), MessageError> {
        let peer = self.peer_id(rank)?;
        let neighbour = self.endpoint.neighbour_of(peer);
        neighbour.into_iter().for_each(|neighbour| self.endpoint.node_mut().drain_neighbour(neighbour));
        Ok(())
    }

    /// The flag for a hook of whatever frees memory of this kind ([`FreeHook::report_free`]), in any thread: every export is compared with what its
    /// driver says in the next calls of this type, within a millisecond or so if there are any, and what was freed is unmapped everywhere.
    /// A program that preloads `libtrunkline_freehook.so` needs none for memory of GPUs. Without either, memory that was freed is given
    /// back when its address is seen again, after the idle limit, or when it is asked back.
    #[must_use]
    pub fn free_hook(&self) -> FreeHook {
        self.endpoint.free_hook()
    }
}
