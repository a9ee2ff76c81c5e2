//! Memory shared inside a node: the messages, and an importer and an exporter that are told anything.

use alloc::vec::Vec;

use super::variants;
use crate::intervals::Span;
use crate::ipc::exporter::{
    Allocation, AllocationId, Amount, Ask, Command, Config, Exporter, PeerId, Pin, Shared,
};
use crate::ipc::importer::{Importer, MappingId, Place, Refusal, Resolved, SourceId, Use, Way};
use crate::mutant::Mutant;
use crate::slots::SlotId;
use crate::tagged::Rows;
use crate::time::Instant;
use crate::wire::ipc::{
    Announce, Handle, Hello, MESSAGE_MAX, Message, NAMES_MAX, Name, Names, Outcome, Reference,
};
use crate::wire::window::{Access, Card, Deed, Part};

/// What is read is what would have been written.
pub(super) fn messages(bytes: &[u8]) {
    let Ok(parsed) = Message::from_bytes(bytes) else { return };
    assert!(bytes.len() <= MESSAGE_MAX);
    assert_eq!(parsed.to_bytes(), bytes);
    if let Message::Refer { reference, .. } = parsed {
        assert_eq!(Reference::from_bytes(&reference.to_bytes()), Ok(reference));
    }
}

pub(super) fn message_seeds() -> Vec<Vec<u8>> {
    let name = |slot, generation| Name::new(SlotId { slot, generation });
    let (Some(first), Some(last)) = (name(0, 1), name(0xffff, u32::MAX)) else { return Vec::new() };
    let (Some(span), Some(part)) = (Span::new(0x7f00_0000_0000, 0x20_0000), Span::new(0x1000, 8)) else {
        return Vec::new();
    };
    let (Some(handle), Some(none)) = (Handle::new(1, &[0x5a; 64]), Handle::new(0, &[])) else {
        return Vec::new();
    };
    let (Some(one), Some(many)) = (Names::new(&[first, last]), Names::new(&[last; NAMES_MAX])) else {
        return Vec::new();
    };
    let announce = |descriptor, handle| Announce { name: last, span, device: 3, descriptor, handle };
    let all = [
        Message::Announce(announce(true, handle)),
        Message::Refer { operation: 1 << 40, reference: Reference { name: first, part } },
        Message::Done { operation: 7, outcome: Outcome::NotMapped },
        Message::Retire(one),
        Message::Retired(one),
        Message::Announce(announce(false, none)),
        Message::Retire(many),
        Message::Bye,
        Message::Hello(Hello { process: [9; 16], operations: 128 }),
    ];
    variants(&all.map(|message| message.to_bytes()))
}

/// What is said of windows: what is read is what would have been written.
pub(super) fn windows(bytes: &[u8]) {
    if let Ok(card) = Card::from_bytes(bytes) {
        assert_eq!(card.to_bytes(), bytes);
    }
    if let Ok(access) = Access::from_bytes(bytes) {
        assert_eq!(access.to_bytes(), bytes);
        assert!(access.end().is_some_and(|end| end > access.at));
    }
}

pub(super) fn window_seeds() -> Vec<Vec<u8>> {
    let name = Name::new(SlotId { slot: 5, generation: 2 });
    let (Some(name), Some(part), Some(rows)) = (name, Span::new(0x1000, 900), Rows::new(8, 64)) else {
        return Vec::new();
    };
    let cards = [(0, Part::Refused), (7, Part::Asked), (900, Part::Mapped(Reference { name, part }))];
    let cards = cards.map(|(len, part)| Card { len, part }.to_bytes().to_vec());
    let access = |deed, at, rows| Access { deed, window: 1 << 62, number: 9, at, len: 64, rows };
    let accesses = [access(Deed::Put, 0, Rows::WHOLE), access(Deed::Get, 1 << 40, rows)];
    variants(&[&cards[..], &accesses.map(|access| access.to_bytes().to_vec())].concat())
}

/// Time does not go by below.
const NOW: Instant = Instant(0);

/// Four bytes a step: what is said or done, to which slot, in which generation, and a number.
pub(super) fn hostile(bytes: &[u8]) {
    let (Some(mut importing), Some(mut exporting)) = (Importing::new(), Exporting::new()) else { return };
    for step in bytes.chunks_exact(4).take(512) {
        let what = step[0];
        let id = SlotId { slot: u32::from(step[1] % 8), generation: u32::from(step[2] % 4) };
        let Some(name) = Name::new(id) else { continue };
        importing.step(what, name, step[3]);
        exporting.step(what, name, step[3]);
    }
    importing.end();
    exporting.end();
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
    variants(&scripts.map(<[[u8; 4]]>::concat))
}

/// An importer whose exporter says anything.
struct Importing {
    importer: Importer,
    source: SourceId,
    uses: Vec<Use>,
    mapping: Vec<MappingId>,
}

impl Importing {
    fn new() -> Option<Self> {
        let mut importer = Importer::new(Mutant::NONE);
        let source = importer.join().ok()?;
        Some(Self { importer, source, uses: Vec::new(), mapping: Vec::new() })
    }

    fn step(&mut self, what: u8, name: Name, number: u8) {
        let at = usize::from(number);
        let place = Place { device: u32::from(number & 1), way: Way::Device };
        match what % 9 {
            0 => self.announce(name, number),
            1 => {
                let Some(part) = Span::new(u64::from(number), 4) else { return };
                let reference = Reference { name, part };
                self.uses.extend(self.importer.arrive(self.source, &reference).ok());
            }
            2 => {
                let Some(one) = self.uses.get(at % self.uses.len().max(1)) else { return };
                if let Ok(Resolved::Map(mapping)) = self.importer.resolve(one, place) {
                    assert!(!self.mapping.contains(&mapping));
                    self.mapping.push(mapping);
                }
            }
            3 | 4 => {
                let Some(mapping) = self.mapping.pop() else { return };
                let told = match what % 9 {
                    3 => self.importer.mapped(mapping, 1 << 40),
                    _ => self.importer.map_failed(mapping, Refusal::AlreadyMapped),
                };
                assert!(told.is_ok());
            }
            5 if !self.uses.is_empty() => self.importer.finish(self.uses.swap_remove(at % self.uses.len())),
            6 => {
                let Some(names) = Names::new(&[name]) else { return };
                _ = self.importer.retire(self.source, &names);
            }
            7 => self.unmap(),
            _ => _ = self.importer.retired(self.source),
        }
        let usage = self.importer.usage(self.source);
        assert!(usage.pins == self.uses.len() as u64 && usage.mappings >= self.mapping.len());
    }

    fn announce(&mut self, name: Name, number: u8) {
        let start = 0x1000 + u64::from(number >> 4);
        let (Some(span), Some(handle)) = (Span::new(start, u64::from(number & 15) + 1), Handle::new(0, &[]))
        else {
            return;
        };
        let announce = Announce { name, span, device: 0, descriptor: false, handle };
        _ = self.importer.announce(self.source, &announce);
    }

    fn unmap(&mut self) {
        if let Some(unmap) = self.importer.poll() {
            assert!(self.importer.unmapped(unmap.mapping).is_ok());
        }
    }

    fn end(mut self) {
        self.importer.end(self.source);
        self.mapping.drain(..).for_each(|mapping| assert!(self.importer.mapped(mapping, 0).is_ok()));
        self.uses.drain(..).for_each(|one| self.importer.finish(one));
        while !self.importer.is_gone(self.source) {
            let before = self.importer.usage(self.source);
            self.unmap();
            assert!(self.importer.is_gone(self.source) || self.importer.usage(self.source) != before);
        }
    }
}

/// An exporter whose peer says anything.
struct Exporting {
    exporter: Exporter,
    peer: PeerId,
    pins: Vec<Pin>,
    allocations: u64,
}

impl Exporting {
    fn new() -> Option<Self> {
        let budget = Amount { entries: 4, bytes: 64 };
        let config = Config { budget, passing: 2, idle: None, weightless: false };
        let mut exporter = Exporter::new(config, Mutant::NONE);
        let peer = exporter.join().ok()?;
        Some(Self { exporter, peer, pins: Vec::new(), allocations: 0 })
    }

    fn step(&mut self, what: u8, name: Name, number: u8) {
        match what % 9 {
            0 | 1 => self.send(name.id().slot, number),
            2 | 3 if !self.pins.is_empty() => {
                let outcome = if what % 9 == 2 { Outcome::Copied } else { Outcome::NotMapped };
                let pin = self.pins.swap_remove(usize::from(number) % self.pins.len());
                self.exporter.finish(pin, outcome, NOW);
            }
            4 => self.exporter.drain(self.peer),
            5 => self.exporter.trim(number.into()),
            6 => _ = self.exporter.retire(self.peer),
            7 => {
                let Some(names) = Names::new(&[name]) else { return };
                _ = self.exporter.retired(self.peer, &names);
            }
            _ => _ = self.exporter.release(0x1000 + u64::from(number)),
        }
        self.unexport();
    }

    fn send(&mut self, place: u32, number: u8) {
        self.allocations += u64::from(number & 1);
        let Some(span) = Span::new(0x1000 + 8 * u64::from(place), u64::from(number & 15) + 1) else { return };
        let memory = Allocation { span, id: AllocationId(self.allocations), device: 0 };
        let ask = Ask { peer: self.peer, part: span, memory, passing: number & 16 != 0 };
        let shared = match self.exporter.share(&ask, NOW) {
            Ok(Shared::Export(export)) => self.exporter.exported(export, NOW).ok(),
            shared => shared.ok(),
        };
        if let Some(Shared::Sent(sent)) = shared {
            self.pins.push(sent.pin);
        }
    }

    fn unexport(&mut self) {
        while let Some(Command::Unexport(name)) = self.exporter.poll(NOW) {
            assert!(!self.pins.iter().any(|pin| pin.name() == name));
            assert!(self.exporter.unexported(name).is_ok());
        }
    }

    fn end(mut self) {
        self.exporter.close();
        self.exporter.gone(self.peer, NOW);
        self.pins.clear();
        self.unexport();
        assert!(
            self.exporter.is_gone()
                && self.exporter.usage() == Exporter::new(self.exporter.config(), Mutant::NONE).usage()
        );
    }
}
