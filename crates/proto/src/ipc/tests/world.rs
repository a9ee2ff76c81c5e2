//! An exporting process, importing processes, the messages between them, and strict drivers, which refuse every call that would harm a real driver.
//! Every step checks the invariants of the two state machines together.
//!
//! The exporter sends on two streams, so that references overtake announcements and the reverse; within a stream the order is kept. A copy checks
//! whose bytes it finds.

mod check;

use std::collections::VecDeque;
use std::vec;
use std::vec::Vec;

use super::{IDLE, at};
use crate::intervals::ByteSpan;
use crate::ipc::exporter::{
    DriverAllocation, DriverAllocationId, ExportAmount, ExportPin, ExportRequest, ExporterCommand,
    ExporterConfig, FallbackReason, ImportingPeerId, MemoryExporter, PendingExport, ShareDecision,
    SharedReference,
};
use crate::ipc::importer::{
    ImportPin, MapRefusal, MappingId, MappingKind, MappingPlace, MemoryImporter, ResolveOutcome, SourceId,
};
use crate::time::Instant;
use crate::wire::ipc::{
    CopyOutcome, ExportAnnouncement, ExportHandle, ExportName, ExportReference, IpcMessage,
};

/// A step of the user or of the machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Step {
    /// The user allocates a buffer, at its place.
    Allocate(usize),
    /// The user frees it: while no message uses it, or while one does.
    Free(usize),
    FreeUnderUse(usize),
    /// A message about a buffer to a peer begins, to be copied in a place.
    Send {
        buffer: usize,
        peer: usize,
        place: usize,
        passing: bool,
    },
    /// An export succeeds or fails.
    Exported(usize, bool),
    /// The first message is delivered: on the stream of announcements, on that of references, on the way back.
    Announcements(usize),
    References(usize),
    Answers(usize),
    /// A message at a peer resolves its bytes, or copies them.
    Turn(usize, usize),
    /// A mapping succeeds or fails.
    Mapped(usize, usize, Result<(), MapRefusal>),
    /// The first message at a peer is abandoned there.
    Cancel(usize),
    /// A peer executes the next unmapping.
    Unmap(usize),
    /// The flag of the free hook is checked.
    Look,
    /// The idle limit passes.
    Wait,
    Trim(u64),
    Shrink(ExportAmount),
    Grow(ExportAmount),
    Drain(usize),
    Release(usize),
    /// The exporter is closed.
    Close,
    /// A peer ends its imports, and sends BYE when it has.
    Leave(usize),
    /// A peer dies.
    Die(usize),
    /// The exporting process dies.
    DieAll,
}

/// The configuration of a world.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setup {
    pub(super) config: ExporterConfig,
    /// Whether a free hook reports frees.
    pub(super) hooked: bool,
    /// The address ranges of the buffers; those that overlap are not allocated together.
    pub(super) buffers: &'static [(u64, u64)],
    pub(super) peers: usize,
    pub(super) places: &'static [MappingPlace],
    /// Buffers that every driver refuses to map.
    pub(super) refused: &'static [usize],
}

pub(super) const PLACE: MappingPlace = MappingPlace { device: 0, way: MappingKind::Device };

/// A message that is not done, at the exporter.
#[derive(Clone, Debug, Hash)]
struct Sending {
    operation: u64,
    peer: usize,
    id: DriverAllocationId,
    pin: ExportPin,
}

/// A message that has begun and waits for its export.
#[derive(Clone, Debug, Hash)]
struct Exporting {
    export: PendingExport,
    peer: usize,
    place: usize,
}

/// A message at a peer.
#[derive(Clone, Debug, Hash)]
struct Operation {
    operation: u64,
    used: ImportPin,
    id: DriverAllocationId,
    place: usize,
    /// The address that it is copying from.
    from: Option<u64>,
}

/// A mapping, as the driver knows it.
#[derive(Clone, Copy, Debug, Hash)]
struct Held {
    mapping: MappingId,
    id: DriverAllocationId,
    span: ByteSpan,
    address: u64,
}

#[derive(Clone)]
struct Peer {
    alive: bool,
    leaving: bool,
    /// The peer has sent BYE; the exporter has received it.
    said: bool,
    gone: bool,
    id: ImportingPeerId,
    importer: MemoryImporter,
    source: SourceId,
    announcements: VecDeque<IpcMessage>,
    references: VecDeque<(u64, ExportReference, DriverAllocationId, usize)>,
    answers: VecDeque<IpcMessage>,
    /// Announced allocations, and their names.
    handles: Vec<(ExportName, DriverAllocationId, ByteSpan)>,
    operations: Vec<Operation>,
    opening: Vec<MappingId>,
    held: Vec<Held>,
    /// Mappings made since the announcement: none is to be made again.
    opened: Vec<MappingId>,
}

#[derive(Clone)]
pub(super) struct World {
    setup: Setup,
    pub(super) exporter: MemoryExporter,
    alive: bool,
    now: Instant,
    /// Numbers of allocations and messages so far.
    allocations: u64,
    pub(super) sent: u64,
    buffers: Vec<Option<DriverAllocation>>,
    freed: bool,
    /// All names so far.
    names: Vec<ExportName>,
    exporting: Vec<Exporting>,
    exports: Vec<(ExportName, DriverAllocation)>,
    sending: Vec<Sending>,
    peers: Vec<Peer>,
    pub(super) steps: Steps,
}

/// Event counts, to compare with those of the state machines.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub(super) struct Steps {
    pub(super) copied: u64,
    pub(super) fallbacks: u64,
    pub(super) opens: u64,
    pub(super) exports: u64,
}

impl World {
    pub(super) fn new(setup: Setup) -> Self {
        let mut exporter = MemoryExporter::new(setup.config);
        let peers = (0..setup.peers).map(|_| {
            let (id, mut importer) = (exporter.add_peer().unwrap(), MemoryImporter::new());
            let source = importer.add_source().unwrap();
            Peer::new(id, importer, source)
        });
        let peers = peers.collect();
        Self {
            setup,
            exporter,
            alive: true,
            now: at(1),
            allocations: 0,
            sent: 0,
            buffers: vec![None; setup.buffers.len()],
            freed: false,
            names: Vec::new(),
            exporting: Vec::new(),
            exports: Vec::new(),
            sending: Vec::new(),
            peers,
            steps: Steps::default(),
        }
    }

    /// Returns the number of mappings.
    pub(super) fn mapped(&self) -> usize {
        self.peers.iter().map(|peer| peer.held.len()).sum()
    }

    /// Returns the pending steps: each message in flight and each pending action continues.
    pub(super) fn pending(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        steps.extend((0..self.exporting.len()).map(|at| Step::Exported(at, true)));
        for (at, peer) in self.peers.iter().enumerate() {
            let mut add = |is: bool, step| {
                if is {
                    steps.push(step)
                }
            };
            add(peer.alive && !peer.announcements.is_empty(), Step::Announcements(at));
            add(peer.alive && !peer.references.is_empty(), Step::References(at));
            add(self.alive && !peer.answers.is_empty(), Step::Answers(at));
            add(peer.alive && peer.importer.clone().poll().is_some(), Step::Unmap(at));
            for opening in 0..peer.opening.len() {
                add(peer.alive, Step::Mapped(at, opening, Ok(())));
            }
            for (turn, operation) in peer.operations.iter().enumerate() {
                let waits = operation.from.is_none() && peer.is_waiting(operation, &self.setup);
                add(peer.alive && !waits, Step::Turn(at, turn));
            }
        }
        steps
    }

    /// Returns whether a step is possible now. A failure needs a pending action.
    pub(super) fn is_possible(&self, step: Step) -> bool {
        match step {
            Step::Exported(at, _) => self.pending().contains(&Step::Exported(at, true)),
            Step::Mapped(at, opening, _) => self.pending().contains(&Step::Mapped(at, opening, Ok(()))),
            step => self.can(step),
        }
    }

    fn can(&self, step: Step) -> bool {
        let open = |buffer: usize| self.buffers[buffer].is_some();
        let peer = |at: usize| self.alive && self.peers[at].alive && !self.peers[at].leaving;
        match step {
            Step::Allocate(buffer) => {
                let (start, len) = self.setup.buffers[buffer];
                let span = super::span(start, len);
                self.alive && !self.buffers.iter().flatten().any(|other| other.span.overlaps(span))
            }
            Step::Free(buffer) => self.alive && open(buffer) && !self.is_used(buffer),
            Step::FreeUnderUse(buffer) => self.alive && open(buffer) && self.is_used(buffer),
            Step::Cancel(at) => self.peers[at].alive && !self.peers[at].operations.is_empty(),
            Step::Send { buffer, peer: to, .. } => open(buffer) && peer(to),
            Step::Drain(at) | Step::Leave(at) => peer(at),
            Step::Die(at) => self.peers[at].alive,
            Step::Release(buffer) => self.alive && open(buffer),
            Step::Look => self.alive && self.freed,
            _ => self.alive,
        }
    }

    /// Returns whether a message uses a buffer, or begins to.
    fn is_used(&self, buffer: usize) -> bool {
        let id = self.buffers[buffer].map(|memory| memory.id);
        self.exporting.iter().any(|one| Some(one.export.allocation().id) == id)
            || self.sending.iter().any(|one| Some(one.id) == id && self.peers[one.peer].alive)
    }

    pub(super) fn step(&mut self, step: Step) {
        match step {
            Step::Allocate(buffer) => self.allocate(buffer),
            Step::Free(buffer) | Step::FreeUnderUse(buffer) => {
                self.buffers[buffer] = None;
                self.freed = self.setup.hooked;
            }
            Step::Cancel(at) => self.peers[at].done(0, CopyOutcome::Ended),
            Step::Send { buffer, peer, place, passing } => self.send(buffer, peer, place, passing),
            Step::Exported(at, well) => self.exported(at, well),
            Step::Announcements(at) => self.on_announcements(at),
            Step::References(at) => self.on_references(at),
            Step::Answers(at) => self.on_answers(at),
            Step::Turn(at, turn) => self.turn(at, turn),
            Step::Mapped(at, opening, result) => self.on_mapped(at, opening, result),
            Step::Unmap(at) => self.unmap(at),
            Step::Look => self.look(),
            Step::Wait => self.now = self.now + IDLE,
            Step::Trim(bytes) => self.exporter.trim_exports(bytes),
            Step::Shrink(budget) => self.exporter.shrink_budget(budget),
            Step::Grow(budget) => self.exporter.grow_budget(budget),
            Step::Drain(at) => self.exporter.drain_peer(self.peers[at].id),
            Step::Release(buffer) => {
                let memory = self.buffers[buffer].unwrap();
                let _any = self.exporter.release_allocation(memory.span.start());
            }
            Step::Close => self.exporter.close(),
            Step::Leave(at) => {
                let peer = &mut self.peers[at];
                peer.leaving = true;
                peer.importer.end_source(peer.source);
            }
            Step::Die(at) => {
                self.peers[at].die();
                self.exporter.remove_peer(self.peers[at].id, self.now);
            }
            Step::DieAll => {
                self.alive = false;
                self.peers.iter_mut().for_each(|peer| peer.importer.end_source(peer.source));
            }
        }
        self.go_on();
        self.check();
    }

    fn allocate(&mut self, buffer: usize) {
        self.allocations += 1;
        let (start, len) = self.setup.buffers[buffer];
        self.buffers[buffer] = Some(super::allocation(self.allocations, start, len));
    }

    fn look(&mut self) {
        self.freed = false;
        self.exporter.on_memory_freed();
    }

    fn send(&mut self, buffer: usize, peer: usize, place: usize, passing: bool) {
        let memory = self.buffers[buffer].unwrap();
        if self.freed {
            self.look();
        }
        let ask = ExportRequest { peer: self.peers[peer].id, part: inside(memory.span), memory, passing };
        match self.exporter.share_memory(&ask, self.now).unwrap() {
            ShareDecision::Sent(sent) => {
                let off = self.exporter.config().budget.is_none();
                assert!(passing || !off, "a message keeps memory although the budget is 0");
                self.put(sent, peer, place, memory);
            }
            ShareDecision::Export(export) => {
                let (usage, budget) = (self.exporter.usage(), self.exporter.config().budget);
                let kept = usage.live.combined_with(usage.zombies);
                assert!(passing || kept.fits_within(budget), "{usage:?} exceeds a budget of {budget:?}");
                self.exporting.push(Exporting { export, peer, place });
            }
            ShareDecision::Fallback(_) => self.steps.fallbacks += 1,
            // The message would repeat its request without an effect.
            ShareDecision::Coming => {}
        }
    }

    /// Sends a message, after the announcement if there is one, on another stream.
    fn put(&mut self, sent: SharedReference, peer: usize, place: usize, memory: DriverAllocation) {
        let name = sent.reference.name;
        assert!(self.exports.contains(&(name, memory)), "a message refers to memory that is not exported");
        let to = &mut self.peers[peer];
        assert!(
            sent.announce || to.is_told_of(name),
            "a message refers to an export that was not announced to its peer"
        );
        if sent.announce {
            let (span, handle) = (memory.span, ExportHandle::new(0, &memory.id.0.to_le_bytes()).unwrap());
            let announce = ExportAnnouncement { name, span, device: 0, descriptor: false, handle };
            to.announcements.push_back(IpcMessage::Announce(announce));
        }
        to.references.push_back((self.sent, sent.reference, memory.id, place));
        self.sending.push(Sending { operation: self.sent, peer, id: memory.id, pin: sent.pin });
        self.sent += 1;
    }

    fn exported(&mut self, at: usize, well: bool) {
        let Exporting { export, peer, place } = self.exporting.remove(at);
        let (name, memory) = (export.export_name(), export.allocation());
        if !well {
            assert_eq!(self.exporter.on_export_failed(export), Ok(FallbackReason::NotExported));
            self.steps.fallbacks += 1;
            return;
        }
        assert!(!self.names.contains(&name), "a name was reused");
        self.names.push(name);
        self.steps.exports += 1;
        self.exports.push((name, memory));
        match self.exporter.on_exported(export, self.now).unwrap() {
            ShareDecision::Sent(sent) => self.put(sent, peer, place, memory),
            ShareDecision::Fallback(_) => self.steps.fallbacks += 1,
            other => unreachable!("{other:?}"),
        }
    }

    fn on_announcements(&mut self, at: usize) {
        let peer = &mut self.peers[at];
        match peer.announcements.pop_front().unwrap() {
            IpcMessage::Announce(announce) => {
                let id =
                    DriverAllocationId(u64::from_le_bytes(announce.handle.as_bytes().try_into().unwrap()));
                if !peer.leaving && self.alive {
                    peer.importer.on_announce(peer.source, &announce).unwrap();
                }
                peer.handles.retain(|(name, _, _)| name.slot_id().slot != announce.name.slot_id().slot);
                peer.handles.push((announce.name, id, announce.span));
                peer.opened.retain(|mapping| mapping.name.slot_id().slot != announce.name.slot_id().slot);
            }
            IpcMessage::Retire(names) => peer.importer.on_retire(peer.source, &names).unwrap(),
            other => unreachable!("{other:?}"),
        }
    }

    fn on_references(&mut self, at: usize) {
        let (alive, peer) = (self.alive, &mut self.peers[at]);
        let (operation, reference, id, place) = peer.references.pop_front().unwrap();
        match peer.importer.pin_reference(peer.source, &reference) {
            Ok(used) => peer.operations.push(Operation { operation, used, id, place, from: None }),
            Err(error) => {
                assert!(peer.leaving || !alive, "{error}");
                peer.answers.push_back(IpcMessage::Done { operation, outcome: CopyOutcome::Ended });
            }
        }
    }

    fn on_answers(&mut self, at: usize) {
        let peer = self.peers[at].id;
        match self.peers[at].answers.pop_front().unwrap() {
            IpcMessage::Done { operation, outcome } => {
                let at = self.sending.iter().position(|one| one.operation == operation).unwrap();
                let Sending { pin, .. } = self.sending.remove(at);
                self.exporter.finish_message(pin, outcome, self.now);
            }
            IpcMessage::Retired(names) => self.exporter.on_retired(peer, &names).unwrap(),
            IpcMessage::Bye => {
                self.peers[at].gone = true;
                self.exporter.remove_peer(peer, self.now);
            }
            other => unreachable!("{other:?}"),
        }
    }

    /// A message resolves its bytes, or completes its copy.
    fn turn(&mut self, at: usize, turn: usize) {
        let (places, peer) = (self.setup.places, &mut self.peers[at]);
        let operation = &mut peer.operations[turn];
        let place = places[operation.place];
        if let Some(from) = operation.from {
            let found = peer.held.iter().find(|held| held.address == from);
            let found = found.unwrap_or_else(|| panic!("{operation:?} copies memory that is not mapped"));
            assert_eq!(found.id, operation.id, "{operation:?} copies other memory");
            assert_eq!(
                found.mapping.place, place,
                "{operation:?} copies memory that is mapped in another place"
            );
            self.steps.copied += 1;
            return peer.done(turn, CopyOutcome::Copied);
        }
        match peer.importer.resolve_address(&operation.used, place) {
            Ok(ResolveOutcome::At(address)) => operation.from = Some(address - operation.used.part().start()),
            Ok(ResolveOutcome::Map(mapping)) => {
                let twice =
                    peer.opening.contains(&mapping) || peer.held.iter().any(|held| held.mapping == mapping);
                assert!(!twice, "{mapping:?} is mapped twice");
                assert!(!peer.opened.contains(&mapping), "{mapping:?} is mapped again");
                self.steps.opens += 1;
                peer.opening.push(mapping);
            }
            Ok(ResolveOutcome::Wait) => {}
            Ok(ResolveOutcome::Failed) => {
                self.steps.fallbacks += 1;
                peer.done(turn, CopyOutcome::NotMapped);
            }
            Err(error) => {
                assert!(!self.alive || peer.leaving, "{error}");
                peer.done(turn, CopyOutcome::Ended);
            }
        }
    }

    fn on_mapped(&mut self, at: usize, opening: usize, result: Result<(), MapRefusal>) {
        let peer = &mut self.peers[at];
        let mapping = peer.opening.remove(opening);
        let &(_, id, span) = peer.handles.iter().find(|(name, _, _)| *name == mapping.name).unwrap();
        let exported = self.exports.iter().any(|(name, _)| *name == mapping.name);
        let died = if self.alive { Ok(()) } else { Err(MapRefusal::Other) };
        let buffers = self.setup.refused.iter().map(|buffer| self.setup.buffers[*buffer]);
        let refused = buffers.into_iter().any(|(start, len)| super::span(start, len) == span);
        let refused = if refused { Err(MapRefusal::AlreadyMapped) } else { Ok(()) };
        if let Err(why) = result.and(died).and(refused) {
            return peer.importer.on_map_failed(mapping, why).unwrap();
        }
        assert!(exported, "{mapping:?} is mapped and not exported");
        let in_the_way =
            peer.held.iter().find(|held| held.mapping.place == mapping.place && held.span.overlaps(span));
        assert!(in_the_way.is_none(), "{mapping:?} is mapped over {in_the_way:?}");
        let place = self.setup.places.iter().position(|place| *place == mapping.place).unwrap() as u64;
        let address = id.0 << 32 | place << 16;
        peer.held.push(Held { mapping, id, span, address });
        peer.opened.push(mapping);
        peer.importer.on_mapped(mapping, address).unwrap();
    }

    fn unmap(&mut self, at: usize) {
        let peer = &mut self.peers[at];
        let unmap = peer.importer.poll().unwrap();
        let used = peer.operations.iter().find(|operation| operation.from == Some(unmap.address));
        assert!(used.is_none(), "{unmap:?} under {used:?}");
        let before = peer.held.len();
        peer.held.retain(|held| held.mapping != unmap.mapping || held.address != unmap.address);
        assert_eq!(peer.held.len() + 1, before, "{unmap:?} is not mapped");
        peer.importer.on_unmapped(unmap.mapping).unwrap();
    }

    /// Executes the commands of the state machines: unexports, queries and messages.
    fn go_on(&mut self) {
        while self.alive
            && let Some(command) = self.exporter.poll(self.now)
        {
            match command {
                ExporterCommand::Unexport(name) => self.unexport(name),
                ExporterCommand::Query(query) => {
                    let there = self.buffers.iter().flatten();
                    let there = there.copied().find(|memory| memory.span.start() == query.address());
                    self.exporter.on_queried(query, there);
                }
            }
        }
        for peer in &mut self.peers {
            while self.alive
                && let Some(names) = self.exporter.take_due_names(peer.id)
            {
                let uses =
                    |one: &&Sending| names.get().contains(&one.pin.export_name()) && peer.has(one.operation);
                let used = self.sending.iter().find(uses);
                assert!(used.is_none(), "{names:?} are requested back while {used:?} uses them");
                peer.announcements.push_back(IpcMessage::Retire(names));
            }
            peer.answer();
        }
    }

    fn unexport(&mut self, name: ExportName) {
        for peer in self.peers.iter().filter(|peer| peer.alive) {
            let held = peer.held.iter().find(|held| held.mapping.name == name);
            assert!(held.is_none(), "{name:?} is unexported and mapped: {held:?}");
            assert!(!peer.opening.iter().any(|mapping| mapping.name == name), "{name:?} is being mapped");
        }
        let there = |one: &&Sending| self.peers[one.peer].alive && !self.peers[one.peer].gone;
        let used = self.sending.iter().filter(there).find(|one| one.pin.export_name() == name);
        assert!(used.is_none(), "{name:?} is unexported under {used:?}");
        let before = self.exports.len();
        self.exports.retain(|(other, _)| *other != name);
        assert_eq!(self.exports.len() + 1, before, "{name:?} is unexported twice");
        self.exporter.on_unexported(name).unwrap();
    }
}

impl Peer {
    fn new(id: ImportingPeerId, importer: MemoryImporter, source: SourceId) -> Self {
        Self {
            alive: true,
            leaving: false,
            said: false,
            gone: false,
            id,
            importer,
            source,
            announcements: VecDeque::new(),
            references: VecDeque::new(),
            answers: VecDeque::new(),
            handles: Vec::new(),
            operations: Vec::new(),
            opening: Vec::new(),
            held: Vec::new(),
            opened: Vec::new(),
        }
    }

    fn die(&mut self) {
        self.alive = false;
        self.announcements.clear();
        self.references.clear();
        self.answers.clear();
        self.operations.clear();
        self.opening.clear();
        self.held.clear();
        self.opened.clear();
    }

    /// Returns whether the peer knows that name, or will when it reads messages sent from now on on the same stream.
    fn is_told_of(&self, name: ExportName) -> bool {
        let said = |message: &IpcMessage| match message {
            IpcMessage::Announce(announce) if announce.name == name => Some(true),
            IpcMessage::Retire(names) if names.get().contains(&name) => Some(false),
            _ => None,
        };
        let heard = || self.handles.iter().any(|(other, _, _)| *other == name);
        self.announcements.iter().rev().find_map(said).unwrap_or_else(heard)
    }

    /// Returns whether a message would have to wait, and nothing else would happen.
    fn is_waiting(&self, operation: &Operation, setup: &Setup) -> bool {
        let mut importer = self.importer.clone();
        let before = importer.counts();
        let waits = importer.resolve_address(&operation.used, setup.places[operation.place])
            == Ok(ResolveOutcome::Wait);
        waits && importer.counts() == before
    }

    /// Returns whether this peer has not replied to a message yet.
    fn has(&self, operation: u64) -> bool {
        self.references.iter().any(|one| one.0 == operation)
            || self.operations.iter().any(|one| one.operation == operation)
    }

    fn done(&mut self, turn: usize, outcome: CopyOutcome) {
        let Operation { operation, used, .. } = self.operations.remove(turn);
        self.importer.release_pin(used);
        self.answers.push_back(IpcMessage::Done { operation, outcome });
    }

    /// Sends all due RETIRED messages.
    fn answer(&mut self) {
        while self.alive
            && let Some(names) = self.importer.take_retired_names(self.source)
        {
            self.answers.push_back(IpcMessage::Retired(names));
        }
        if self.alive && self.leaving && !self.said && self.importer.is_gone(self.source) {
            self.said = true;
            self.answers.push_back(IpcMessage::Bye);
        }
    }
}

/// Returns part of a range.
fn inside(span: ByteSpan) -> ByteSpan {
    super::span(span.start() + 1, span.len() - 1)
}
