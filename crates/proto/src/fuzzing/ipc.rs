//! Fuzzing of memory shared inside a node: the messages, and an importer and an exporter with hostile peers.

use alloc::vec::Vec;

use super::make_variants;
use crate::intervals::ByteSpan;
use crate::ipc::exporter::{
    DriverAllocation, DriverAllocationId, ExportAmount, ExportPin, ExportRequest, ExporterCommand,
    ExporterConfig, ImportingPeerId, MemoryExporter, ShareDecision,
};
use crate::ipc::importer::{
    ImportPin, MapRefusal, MappingId, MappingKind, MappingPlace, MemoryImporter, ResolveOutcome, SourceId,
};
use crate::slots::SlotId;
use crate::tagged::StridedRows;
use crate::time::Instant;
use crate::wire::ipc::{
    CopyOutcome, ExportAnnouncement, ExportHandle, ExportName, ExportNames, ExportReference, IpcHello,
    IpcMessage, MESSAGE_MAX, NAMES_MAX,
};
use crate::wire::window::{AccessKind, PartCard, WindowAccess, WindowPart};

/// A parsed message encodes to the same bytes.
pub(super) fn check_messages(bytes: &[u8]) {
    let Ok(parsed) = IpcMessage::from_bytes(bytes) else { return };
    assert!(bytes.len() <= MESSAGE_MAX);
    assert_eq!(parsed.to_bytes(), bytes);
    if let IpcMessage::Refer { reference, .. } = parsed {
        assert_eq!(ExportReference::from_bytes(&reference.to_bytes()), Ok(reference));
    }
}

pub(super) fn message_seeds() -> Vec<Vec<u8>> {
    let name = |slot, generation| ExportName::new(SlotId { slot, generation });
    let (Some(first), Some(last)) = (name(0, 1), name(0xffff, u32::MAX)) else { return Vec::new() };
    let (Some(span), Some(part)) = (ByteSpan::new(0x7f00_0000_0000, 0x20_0000), ByteSpan::new(0x1000, 8))
    else {
        return Vec::new();
    };
    let (Some(handle), Some(none)) = (ExportHandle::new(1, &[0x5a; 64]), ExportHandle::new(0, &[])) else {
        return Vec::new();
    };
    let (Some(one), Some(many)) = (ExportNames::new(&[first, last]), ExportNames::new(&[last; NAMES_MAX]))
    else {
        return Vec::new();
    };
    let announce =
        |descriptor, handle| ExportAnnouncement { name: last, span, device: 3, descriptor, handle };
    let all = [
        IpcMessage::Announce(announce(true, handle)),
        IpcMessage::Refer { operation: 1 << 40, reference: ExportReference { name: first, part } },
        IpcMessage::Done { operation: 7, outcome: CopyOutcome::NotMapped },
        IpcMessage::Retire(one),
        IpcMessage::Retired(one),
        IpcMessage::Announce(announce(false, none)),
        IpcMessage::Retire(many),
        IpcMessage::Bye,
        IpcMessage::Hello(IpcHello { process: [9; 16], operations: 128 }),
    ];
    make_variants(&all.map(|message| message.to_bytes()))
}

/// A parsed message about a window encodes to the same bytes.
pub(super) fn check_windows(bytes: &[u8]) {
    if let Ok(card) = PartCard::from_bytes(bytes) {
        assert_eq!(card.to_bytes(), bytes);
    }
    if let Ok(access) = WindowAccess::from_bytes(bytes) {
        assert_eq!(access.to_bytes(), bytes);
        assert!(access.end_offset().is_some_and(|end| end > access.at));
    }
}

pub(super) fn window_seeds() -> Vec<Vec<u8>> {
    let name = ExportName::new(SlotId { slot: 5, generation: 2 });
    let (Some(name), Some(part), Some(rows)) = (name, ByteSpan::new(0x1000, 900), StridedRows::new(8, 64))
    else {
        return Vec::new();
    };
    let cards = [
        (0, WindowPart::Refused),
        (7, WindowPart::Asked),
        (900, WindowPart::Mapped(ExportReference { name, part })),
    ];
    let cards = cards.map(|(len, part)| PartCard { len, part }.to_bytes().to_vec());
    let access = |deed, at, rows| WindowAccess { deed, window: 1 << 62, number: 9, at, len: 64, rows };
    let accesses = [access(AccessKind::Put, 0, StridedRows::WHOLE), access(AccessKind::Get, 1 << 40, rows)];
    make_variants(&[&cards[..], &accesses.map(|access| access.to_bytes().to_vec())].concat())
}

/// Time stands still in these targets.
const NOW: Instant = Instant(0);

/// Four bytes per step: the message or action, the slot, the generation, and a number.
pub(super) fn check_hostile(bytes: &[u8]) {
    let (Some(mut importing), Some(mut exporting)) = (FuzzImporter::new(), FuzzExporter::new()) else {
        return;
    };
    for step in bytes.chunks_exact(4).take(512) {
        let what = step[0];
        let id = SlotId { slot: u32::from(step[1] % 8), generation: u32::from(step[2] % 4) };
        let Some(name) = ExportName::new(id) else { continue };
        importing.run_step(what, name, step[3]);
        exporting.run_step(what, name, step[3]);
    }
    importing.end_source();
    exporting.close_exporter();
}

pub(super) fn hostile_seeds() -> Vec<Vec<u8>> {
    let announce = 0;
    let refer = 1;
    let resolve = 2;
    let mapped = 3;
    let finish = 5;
    let retire = 6;
    let scripts: [&[[u8; 4]]; 4] = [
        &[[announce, 1, 1, 1], [refer, 1, 1, 2], [resolve, 0, 1, 0], [mapped, 0, 1, 0], [resolve, 0, 1, 0]],
        &[[refer, 1, 1, 2], [announce, 1, 1, 1], [resolve, 0, 1, 0], [4, 0, 1, 0], [finish, 0, 1, 0]],
        &[[announce, 1, 1, 1], [retire, 1, 1, 0], [announce, 1, 2, 1], [7, 1, 1, 0], [refer, 1, 2, 0]],
        &[[announce, 1, 1, 1], [announce, 2, 1, 1], [refer, 1, 1, 1], [resolve, 0, 1, 1], [8, 0, 1, 0]],
    ];
    make_variants(&scripts.map(<[[u8; 4]]>::concat))
}

/// An importer with a hostile exporter.
struct FuzzImporter {
    importer: MemoryImporter,
    source: SourceId,
    uses: Vec<ImportPin>,
    mapping: Vec<MappingId>,
}

impl FuzzImporter {
    fn new() -> Option<Self> {
        let mut importer = MemoryImporter::new();
        let source = importer.add_source().ok()?;
        Some(Self { importer, source, uses: Vec::new(), mapping: Vec::new() })
    }

    fn run_step(&mut self, what: u8, name: ExportName, number: u8) {
        let at = usize::from(number);
        let place = MappingPlace { device: u32::from(number & 1), way: MappingKind::Device };
        match what % 9 {
            0 => self.announce_export(name, number),
            1 => {
                let Some(part) = ByteSpan::new(u64::from(number), 4) else { return };
                let reference = ExportReference { name, part };
                self.uses.extend(self.importer.pin_reference(self.source, &reference).ok());
            }
            2 => {
                let Some(one) = self.uses.get(at % self.uses.len().max(1)) else { return };
                if let Ok(ResolveOutcome::Map(mapping)) = self.importer.resolve_address(one, place) {
                    assert!(!self.mapping.contains(&mapping));
                    self.mapping.push(mapping);
                }
            }
            3 | 4 => {
                let Some(mapping) = self.mapping.pop() else { return };
                let told = match what % 9 {
                    3 => self.importer.on_mapped(mapping, 1 << 40),
                    _ => self.importer.on_map_failed(mapping, MapRefusal::AlreadyMapped),
                };
                assert!(told.is_ok());
            }
            5 if !self.uses.is_empty() => {
                self.importer.release_pin(self.uses.swap_remove(at % self.uses.len()))
            }
            6 => {
                let Some(names) = ExportNames::new(&[name]) else { return };
                _ = self.importer.on_retire(self.source, &names);
            }
            7 => self.unmap_next(),
            _ => _ = self.importer.take_retired_names(self.source),
        }
        let usage = self.importer.source_usage(self.source);
        assert!(usage.pins == self.uses.len() as u64 && usage.mappings >= self.mapping.len());
    }

    fn announce_export(&mut self, name: ExportName, number: u8) {
        let start = 0x1000 + u64::from(number >> 4);
        let (Some(span), Some(handle)) =
            (ByteSpan::new(start, u64::from(number & 15) + 1), ExportHandle::new(0, &[]))
        else {
            return;
        };
        let announce = ExportAnnouncement { name, span, device: 0, descriptor: false, handle };
        _ = self.importer.on_announce(self.source, &announce);
    }

    fn unmap_next(&mut self) {
        if let Some(unmap) = self.importer.poll() {
            assert!(self.importer.on_unmapped(unmap.mapping).is_ok());
        }
    }

    fn end_source(mut self) {
        self.importer.end_source(self.source);
        self.mapping.drain(..).for_each(|mapping| assert!(self.importer.on_mapped(mapping, 0).is_ok()));
        self.uses.drain(..).for_each(|one| self.importer.release_pin(one));
        while !self.importer.is_gone(self.source) {
            let before = self.importer.source_usage(self.source);
            self.unmap_next();
            assert!(self.importer.is_gone(self.source) || self.importer.source_usage(self.source) != before);
        }
    }
}

/// An exporter with a hostile peer.
struct FuzzExporter {
    exporter: MemoryExporter,
    peer: ImportingPeerId,
    pins: Vec<ExportPin>,
    allocations: u64,
}

impl FuzzExporter {
    fn new() -> Option<Self> {
        let budget = ExportAmount { entries: 4, bytes: 64 };
        let config = ExporterConfig { budget, passing: 2, idle: None, weightless: false };
        let mut exporter = MemoryExporter::new(config);
        let peer = exporter.add_peer().ok()?;
        Some(Self { exporter, peer, pins: Vec::new(), allocations: 0 })
    }

    fn run_step(&mut self, what: u8, name: ExportName, number: u8) {
        match what % 9 {
            0 | 1 => self.share_message(name.slot_id().slot, number),
            2 | 3 if !self.pins.is_empty() => {
                let outcome = if what % 9 == 2 { CopyOutcome::Copied } else { CopyOutcome::NotMapped };
                let pin = self.pins.swap_remove(usize::from(number) % self.pins.len());
                self.exporter.finish_message(pin, outcome, NOW);
            }
            4 => self.exporter.drain_peer(self.peer),
            5 => self.exporter.trim_exports(number.into()),
            6 => _ = self.exporter.take_due_names(self.peer),
            7 => {
                let Some(names) = ExportNames::new(&[name]) else { return };
                _ = self.exporter.on_retired(self.peer, &names);
            }
            _ => _ = self.exporter.release_allocation(0x1000 + u64::from(number)),
        }
        self.unexport_all();
    }

    fn share_message(&mut self, place: u32, number: u8) {
        self.allocations += u64::from(number & 1);
        let Some(span) = ByteSpan::new(0x1000 + 8 * u64::from(place), u64::from(number & 15) + 1) else {
            return;
        };
        let memory = DriverAllocation { span, id: DriverAllocationId(self.allocations), device: 0 };
        let ask = ExportRequest { peer: self.peer, part: span, memory, passing: number & 16 != 0 };
        let shared = match self.exporter.share_memory(&ask, NOW) {
            Ok(ShareDecision::Export(export)) => self.exporter.on_exported(export, NOW).ok(),
            shared => shared.ok(),
        };
        if let Some(ShareDecision::Sent(sent)) = shared {
            self.pins.push(sent.pin);
        }
    }

    fn unexport_all(&mut self) {
        while let Some(ExporterCommand::Unexport(name)) = self.exporter.poll(NOW) {
            assert!(!self.pins.iter().any(|pin| pin.export_name() == name));
            assert!(self.exporter.on_unexported(name).is_ok());
        }
    }

    fn close_exporter(mut self) {
        self.exporter.close();
        self.exporter.remove_peer(self.peer, NOW);
        self.pins.clear();
        self.unexport_all();
        assert!(
            self.exporter.is_gone()
                && self.exporter.usage() == MemoryExporter::new(self.exporter.config()).usage()
        );
    }
}
