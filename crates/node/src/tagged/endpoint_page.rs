//! The status page of an endpoint, for other processes: its numbers, neighbours and exports. Progress calls rewrite
//! it periodically; no message causes a write.

use trunkline_fabric::OobStream;
use trunkline_mem::gpu::FreeCount;
use trunkline_mem::ipc::IpcMemory;
use trunkline_proto::ipc::exporter::{self, ExportListing, ExportState, FallbackReason};
use trunkline_proto::time::{Duration, Instant};
use trunkline_proto::wire::status::Number;
use trunkline_proto::wire::status::node::{EXPORTS, ExportStatus, NEIGHBOURS, NeighbourRecord, PageExport};

use super::{TaggedCounts, TaggedEndpoint, TaggedPeerId};
use crate::NodePage;
use crate::ipc::FreeHook;

/// Time between two writes.
const EVERY: Duration = Duration::from_millis(100);

/// A page, and the labels on it that the endpoint does not know.
#[derive(Debug)]
pub(super) struct EndpointPage {
    page: NodePage,
    /// Per peer number: the rank, and the process number.
    labels: Vec<(Option<u32>, u32)>,
    due: Instant,
}

impl<M: IpcMemory, S: OobStream> TaggedEndpoint<M, S> {
    /// Publishes the endpoint on that page: writes it at once, and then in progress calls, at most every tenth of a
    /// second.
    pub fn publish_page(&mut self, page: NodePage) {
        self.shown = Some(EndpointPage { page, labels: Vec::new(), due: self.now });
        self.write_page();
    }

    /// Labels a peer with its rank in the job and its process number in its own namespace.
    pub fn label_peer(&mut self, peer: TaggedPeerId, rank: u32, pid: u32) {
        let Some(shown) = &mut self.shown else { return };
        let at = peer.0 as usize;
        if at >= shown.labels.len() {
            shown.labels.resize(at + 1, (None, 0));
        }
        shown.labels[at] = (Some(rank), pid);
        shown.due = self.now;
    }

    /// Returns the flag for a hook that sees frees of memory of this endpoint's kind. When the flag is set, the node
    /// checks every export.
    #[must_use]
    pub fn free_hook(&self) -> FreeHook {
        self.hook.clone()
    }

    /// Follows the frees that a preloaded library counts, as if a hook had reported each.
    pub fn follow_frees(&mut self, count: FreeCount) {
        self.free_count = Some(count);
    }

    /// Reads the hook's flag and the count of frees; returns whether memory was freed since the last call.
    fn take_frees(&mut self) -> bool {
        let hooked = self.hook.take_flag();
        let counted = self.free_count.as_mut().is_some_and(FreeCount::take_rise);
        hooked || counted
    }

    /// Checks for freed memory, and writes the page if it is due. Returns whether memory was freed.
    pub(super) fn poll_frees_and_page(&mut self) -> bool {
        let freed = self.take_frees();
        if freed {
            self.node.report_free();
        }
        if self.shown.as_ref().is_some_and(|shown| shown.due <= self.now) {
            self.write_page();
        }
        freed
    }

    /// Writes the page: all exports, and their holders up to the page's room.
    fn write_page(&mut self) {
        let Some(shown) = &mut self.shown else { return };
        shown.due = self.now + EVERY;
        let Some(shown) = &self.shown else { return };
        let exporter = self.node.exporter();
        let mut neighbours = [NeighbourRecord::default(); NEIGHBOURS];
        let mut holders = [None; NEIGHBOURS];
        for (number, peer) in self.peers.iter().enumerate().take(NEIGHBOURS) {
            let usage = self.node.importer().source_usage(peer.neighbour.source());
            let (rank, pid) = shown.labels.get(number).copied().unwrap_or_default();
            neighbours[number] = NeighbourRecord {
                gone: peer.gone,
                pid,
                rank,
                mappings: usage.mappings as u32,
                mapped_bytes: usage.bytes,
                pins: usage.pins as u32,
                ..NeighbourRecord::default()
            };
            holders[number] = self.node.exporter_peer(peer.neighbour);
        }
        shown.page.begin_write();
        let mut written = 0;
        let mut pinned = 0;
        let mut pins = 0;
        for listing in exporter.list_exports() {
            pinned += u64::from(listing.pins > 0);
            pins += u64::from(listing.pins);
            if written == EXPORTS {
                continue;
            }
            let mut export = page_export_of(&listing);
            for (holder, _) in exporter.export_holders(listing.name) {
                let Some(at) = holders.iter().position(|other| *other == Some(holder)) else { continue };
                export.held_by |= 1 << at;
                neighbours[at].holds += 1;
                neighbours[at].held_bytes = neighbours[at].held_bytes.saturating_add(export.len);
            }
            shown.page.write_export(written, &export);
            written += 1;
        }
        let mut numbers = self.page_numbers();
        numbers[Number::PinnedEntries as usize] = pinned;
        numbers[Number::Pins as usize] = pins;
        let there = self.peers.len().min(NEIGHBOURS);
        shown.page.finish_write(self.now, &numbers, &neighbours[..there], written);
    }

    /// Returns all numbers except those that the walk through the exports counts.
    fn page_numbers(&self) -> [u64; Number::LEN] {
        let mut numbers = [0; Number::LEN];
        let mut put = |which: Number, value: u64| numbers[which as usize] = value;
        let exporter = self.node.exporter();
        let driver = self.node.counts();
        let config = exporter.config();
        let usage = exporter.usage();
        let counts = exporter.counts();
        put(Number::BudgetEntries, config.budget.entries as u64);
        put(Number::BudgetBytes, config.budget.bytes);
        put(Number::IdleNs, config.idle.map_or(u64::MAX, |limit| limit.0));
        put(Number::LiveEntries, usage.live.entries as u64);
        put(Number::LiveBytes, usage.live.bytes);
        put(Number::PassingEntries, usage.passing.entries as u64);
        put(Number::PassingBytes, usage.passing.bytes);
        put(Number::ZombieEntries, usage.zombies.entries as u64);
        put(Number::ZombieBytes, usage.zombies.bytes);
        put(Number::IdleEntries, usage.idle as u64);
        put(Number::PeakBytes, exporter.peak_bytes());
        put(Number::Neighbours, self.peers.len() as u64);
        let exporter::ExporterCounts { hits, announced, misses, evicted, expired, stale, .. } = counts;
        let of = [hits, announced, misses, evicted, expired, stale];
        let at = [
            Number::Hits,
            Number::Announced,
            Number::Misses,
            Number::Evicted,
            Number::Expired,
            Number::Stale,
        ];
        at.into_iter().zip(of).for_each(|(at, value)| put(at, value));
        put(Number::Exports, driver.exports);
        put(Number::Unexports, driver.unexports);
        put(Number::ExportFailures, driver.export_failures);
        put(Number::Maps, driver.maps);
        put(Number::Unmaps, driver.unmaps);
        put(Number::MapFailures, driver.map_failures);
        put(Number::UnmapFailures, driver.unmap_failures);
        put(Number::Leaks, driver.leaks);
        put(Number::Broken, driver.broken);
        let mapping = self.node.importer().counts();
        put(Number::MapHits, mapping.hits);
        put(Number::MapStale, mapping.stale);
        put(Number::RefusedReferences, mapping.refused);
        put(Number::Eager, self.counts.eager);
        put(Number::Mapped, self.counts.mapped);
        put(Number::Staged, self.counts.staged);
        put(Number::Unmapped, self.counts.fallbacks);
        put(Number::Early, self.counts.early);
        let TaggedCounts { by_receiver, by_sender, .. } = self.counts;
        put(Number::ByReceiver, by_receiver);
        put(Number::BySender, by_sender);
        let reasons = numbers.iter_mut().skip(Number::FALLBACKS).zip(FallbackReason::ALL);
        reasons.for_each(|(number, why)| *number = counts.fallback_count(why));
        numbers
    }
}

/// Returns the record of an export, without its holders.
fn page_export_of(of: &ExportListing) -> PageExport {
    PageExport {
        stands: match of.state {
            ExportState::Exporting => ExportStatus::Exporting,
            ExportState::Live => ExportStatus::Live,
            ExportState::Retiring => ExportStatus::Retiring,
            ExportState::Leaving | ExportState::Ending | ExportState::Spent => ExportStatus::Leaving,
        },
        passing: of.passing,
        device: of.memory.device,
        base: of.memory.span.start(),
        len: of.memory.span.len(),
        allocation: of.memory.id.0,
        pins: of.pins,
        holders: of.holders,
        used: of.used.0,
        held_by: 0,
    }
}
