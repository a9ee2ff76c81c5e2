//! Executes look-ups in a loop, for `cargo xtask budget` to count the instructions. Arguments: a file (not used), the
//! kind of look-up, the number of exports, and the number of repetitions.
//!
//! - `recent`: finds the export that was shared last, as a message does after a query of the driver.
//! - `indexed`: finds any other export, after a query of the driver.
//! - `resolve`: resolves a reference at the importer, where the export is mapped.
//! - `quiet`: asks an idle one-sided context with that many members whether operations are pending.
//! - `share`: a message finds its export, pins it, and completes.

use std::hint::black_box;
use std::process::ExitCode;

use trunkline_proto::intervals::ByteSpan;
use trunkline_proto::ipc::exporter::{
    DriverAllocation, DriverAllocationId, ExportAmount, ExportLookup, ExportRequest, ExporterConfig,
    ImportingPeerId, MemoryExporter, ShareDecision,
};
use trunkline_proto::ipc::importer::{MappingKind, MappingPlace, MemoryImporter, ResolveOutcome};
use trunkline_proto::rma::PathId;
use trunkline_proto::rma::ledger::{OperationLedger, QuietProgress};
use trunkline_proto::time::Instant;
use trunkline_proto::wire::ipc::{CopyOutcome, ExportAnnouncement, ExportHandle, ExportReference};

/// An exporter, its one peer, and its exports.
struct Exported {
    exporter: MemoryExporter,
    peer: ImportingPeerId,
    memory: Vec<DriverAllocation>,
}

const NOW: Instant = Instant(1);

/// Creates that many exports, each of 2 MiB.
fn exported(count: usize) -> Option<Exported> {
    let budget = ExportAmount { entries: count, bytes: u64::MAX };
    let config = ExporterConfig { budget, passing: 0, idle: Some(ExporterConfig::IDLE), weightless: false };
    let mut exporter = MemoryExporter::new(config);
    let peer = exporter.add_peer().ok()?;
    let mut memory = Vec::new();
    for number in 0..count as u64 {
        // Not in the order of their addresses.
        let place = number.wrapping_mul(0x9e37) % (1 << 16);
        let span = ByteSpan::new(0x7f00_0000_0000 + (place << 22), 2 << 20)?;
        let one = DriverAllocation { span, id: DriverAllocationId(number), device: 0 };
        let ask = ExportRequest { peer, part: span, memory: one, passing: false };
        let Ok(ShareDecision::Export(export)) = exporter.share_memory(&ask, NOW) else { return None };
        let Ok(ShareDecision::Sent(sent)) = exporter.on_exported(export, NOW) else { return None };
        exporter.finish_message(sent.pin, CopyOutcome::Copied, NOW);
        memory.push(one);
    }
    Some(Exported { exporter, peer, memory })
}

fn recent(count: usize, times: usize) -> Option<()> {
    let Exported { exporter, memory, .. } = exported(count)?;
    let last = memory.last()?;
    let part = ByteSpan::new(last.span.start() + 4096, 65536)?;
    for _ in 0..times {
        black_box(black_box(&exporter).lookup_export(part, black_box(*last)));
    }
    matches!(exporter.lookup_export(part, *last), ExportLookup::Hit(_)).then_some(())
}

fn indexed(count: usize, times: usize) -> Option<()> {
    let Exported { exporter, memory, .. } = exported(count)?;
    let others = memory.split_last()?.1;
    let asked: Vec<_> = others.iter().map(|one| (one.span, *one)).collect();
    for _ in 0..times.div_ceil(asked.len()) {
        for (part, memory) in &asked {
            black_box(black_box(&exporter).lookup_export(*part, *memory));
        }
    }
    let hit = |(part, memory): &(ByteSpan, DriverAllocation)| {
        matches!(exporter.lookup_export(*part, *memory), ExportLookup::Hit(_))
    };
    asked.iter().all(hit).then_some(())
}

fn share(count: usize, times: usize) -> Option<()> {
    let Exported { mut exporter, peer, memory } = exported(count)?;
    let last = memory.last()?;
    let ask = ExportRequest { peer, part: last.span, memory: *last, passing: false };
    for _ in 0..times {
        let Ok(ShareDecision::Sent(sent)) = black_box(&mut exporter).share_memory(black_box(&ask), NOW)
        else {
            return None;
        };
        exporter.finish_message(sent.pin, CopyOutcome::Copied, NOW);
    }
    Some(())
}

fn resolve(count: usize, times: usize) -> Option<()> {
    let Exported { exporter, .. } = exported(count)?;
    let mut importer = MemoryImporter::new();
    let source = importer.add_source().ok()?;
    let place = MappingPlace { device: 0, way: MappingKind::Device };
    let mut uses = Vec::new();
    for export in exporter.list_exports() {
        let (name, span, handle) = (export.name, export.memory.span, ExportHandle::new(0, &[])?);
        importer
            .on_announce(source, &ExportAnnouncement { name, span, device: 0, descriptor: false, handle })
            .ok()?;
        let one = importer
            .pin_reference(source, &ExportReference { name, part: ByteSpan::new(4096, 65536)? })
            .ok()?;
        let Ok(ResolveOutcome::Map(mapping)) = importer.resolve_address(&one, place) else { return None };
        importer.on_mapped(mapping, span.start()).ok()?;
        uses.push(one);
    }
    for one in uses.iter().cycle().take(times) {
        let Ok(ResolveOutcome::At(address)) = black_box(&mut importer).resolve_address(black_box(one), place)
        else {
            return None;
        };
        black_box(address);
    }
    Some(())
}

fn quiet(count: usize, times: usize) -> Option<()> {
    let mut ledger = OperationLedger::new();
    ledger.grow_capacity(count as u32, 1).unwrap_or_else(|error| panic!("{error}"));
    for peer in 0..count as u32 {
        let op = ledger.begin_operation(peer, PathId::new(0)?, ()).ok()?;
        ledger.complete_operation(op).ok()?;
    }
    for _ in 0..times {
        if !matches!(black_box(&mut ledger).quiet(), Ok(QuietProgress::Done)) || !black_box(&ledger).is_idle()
        {
            return None;
        }
    }
    Some(())
}

fn main() -> ExitCode {
    let words: Vec<_> = std::env::args().skip(2).collect();
    let [what, count, times] = words.as_slice() else { return ExitCode::FAILURE };
    let (Ok(count), Ok(times)) = (count.parse(), times.parse()) else { return ExitCode::FAILURE };
    let done = match what.as_str() {
        "recent" => recent(count, times),
        "indexed" => indexed(count, times),
        "quiet" => quiet(count, times),
        "share" => share(count, times),
        "resolve" => resolve(count, times),
        _ => None,
    };
    if done.is_some() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
