//! What an endpoint shows of itself to other processes: a page of its numbers, its neighbours and its exports, written now and then by
//! whoever makes progress. Nothing here is done for a message.

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

/// Time between two writings.
const EVERY: Duration = Duration::from_millis(100);

/// A page, and what is written on it that the endpoint does not know.
#[derive(Debug)]
pub(super) struct EndpointPage {
    page: NodePage,
    /// By the numbers of peers: their ranks, and the numbers of their processes.
    labels: Vec<(Option<u32>, u32)>,
    due: Instant,
}

impl<M: IpcMemory, S: OobStream> TaggedEndpoint<M, S> {
    /// From now on this is shown on that page, which is written at once and then every tenth of a second in which progress is made.
    pub fn publish_page(&mut self, page: NodePage) {
        self.shown = Some(EndpointPage { page, labels: Vec::new(), due: self.now });
        self.write_page();
    }

    /// Who a peer is: its rank in the job, and the number of its process as that sees itself.
    pub fn label_peer(&mut self, peer: TaggedPeerId, rank: u32, pid: u32) {
        let Some(shown) = &mut self.shown else { return };
        let at = peer.0 as usize;
        if at >= shown.labels.len() {
            shown.labels.resize(at + 1, (None, 0));
        }
        shown.labels[at] = (Some(rank), pid);
        shown.due = self.now;
    }

    /// The flag for a hook of whatever frees memory of this endpoint's kind: found set, every export is looked at.
    #[must_use]
    pub fn free_hook(&self) -> FreeHook {
        self.hook.clone()
    }

    /// Follows the frees that a preloaded library counts, as if a hook had told of each.
    pub fn follow_frees(&mut self, count: FreeCount) {
        self.free_count = Some(count);
    }

    /// Looks at the hook and at the count of frees; whether memory was freed since it was asked last.
    fn take_frees(&mut self) -> bool {
        let hooked = self.hook.take_flag();
        let counted = self.free_count.as_mut().is_some_and(FreeCount::take_rise);
        hooked || counted
    }

    /// Looks for freed memory, and writes the page if it is time. Returns whether memory was freed.
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

    /// Writes the page. Looks at as many exports as there are, and at the holders of as many as it shows.
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

    /// All numbers but those that a walk through the exports gives.
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

/// An export, but for who holds it.
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
