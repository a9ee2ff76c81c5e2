//! The rules of both ends: one by one, under random events, and exhaustively in small worlds.

mod churn;
mod exporting;
mod importing;
mod keeping;
mod model;
mod orders;
mod world;

use std::vec::Vec;

use super::exporter::{
    DriverAllocation, DriverAllocationId, ExportAmount, ExportRequest, ExporterCommand, ExporterConfig,
    FallbackReason, ImportingPeerId, MemoryExporter, ShareDecision, SharedReference,
};
use crate::intervals::ByteSpan;
use crate::slots::SlotId;
use crate::time::{Duration, Instant};
use crate::wire::ipc::{CopyOutcome, ExportName};

/// How long unused exports are kept in these tests.
const IDLE: Duration = Duration::from_secs(30);

fn span(start: u64, len: u64) -> ByteSpan {
    ByteSpan::new(start, len).unwrap()
}

fn name(slot: u32, generation: u32) -> ExportName {
    ExportName::new(SlotId { slot, generation }).unwrap()
}

fn allocation(id: u64, start: u64, len: u64) -> DriverAllocation {
    DriverAllocation { span: span(start, len), id: DriverAllocationId(id), device: 0 }
}

/// Returns the instant after that many seconds.
fn at(seconds: u64) -> Instant {
    Instant::default() + Duration::from_secs(seconds)
}

const fn config(entries: usize, bytes: u64) -> ExporterConfig {
    ExporterConfig {
        budget: ExportAmount { entries, bytes },
        passing: 4,
        idle: Some(IDLE),
        weightless: false,
    }
}

/// An exporter with a peer, and the actions of a driver and a stream for it.
struct Exporting {
    exporter: MemoryExporter,
    peer: ImportingPeerId,
    exports: u64,
    announced: u64,
}

impl Exporting {
    fn new(config: ExporterConfig) -> Self {
        let mut exporter = MemoryExporter::new(config);
        let peer = exporter.add_peer().unwrap();
        Self { exporter, peer, exports: 0, announced: 0 }
    }

    fn ask(&self, memory: DriverAllocation) -> ExportRequest {
        ExportRequest { peer: self.peer, part: memory.span, memory, passing: false }
    }

    /// Sends a message about the whole allocation; the error is the reason for another way.
    fn send(&mut self, ask: &ExportRequest, now: Instant) -> Result<SharedReference, FallbackReason> {
        let shared = match self.exporter.share_memory(ask, now).unwrap() {
            ShareDecision::Export(export) => {
                self.exports += 1;
                self.exporter.on_exported(export, now).unwrap()
            }
            shared => shared,
        };
        match shared {
            ShareDecision::Sent(sent) => {
                self.announced += u64::from(sent.announce);
                Ok(sent)
            }
            ShareDecision::Fallback(why) => Err(why),
            other => unreachable!("{other:?}"),
        }
    }

    /// Sends a message that is done at once, and returns the export's name.
    fn touch(&mut self, memory: DriverAllocation, now: Instant) -> ExportName {
        let sent = self.send(&self.ask(memory), now).unwrap();
        let name = sent.pin.export_name();
        self.exporter.finish_message(sent.pin, CopyOutcome::Copied, now);
        name
    }

    /// Completes all due retirements and unexports, and returns the names in the order of the unexports.
    fn settle(&mut self, now: Instant) -> Vec<ExportName> {
        let mut over = self.unexport(now);
        while let Some(names) = self.exporter.take_due_names(self.peer) {
            self.exporter.on_retired(self.peer, &names).unwrap();
            over.extend(self.unexport(now));
        }
        over
    }

    fn unexport(&mut self, now: Instant) -> Vec<ExportName> {
        let mut over = Vec::new();
        while let Some(command) = self.exporter.poll(now) {
            let ExporterCommand::Unexport(name) = command else { unreachable!("{command:?}") };
            self.exporter.on_unexported(name).unwrap();
            over.push(name);
        }
        over
    }
}
