//! Makes and closes mappings: directly, or on the kind's thread if its driver may wait for a running kernel. The node
//! posts requests to that thread, polls for the results, and does other work meanwhile. Exports that have ended are
//! handled the same way if the driver may wait to take a handle back; the exporter counts them until the driver has
//! replied.
//!
//! ```text
//! ResolveOutcome::Map --> OpeningMapping: waits for room --> posted --> MemoryImporter::on_mapped, on_map_failed
//! UnmapCommand --> ClosingMapping: posted --> MemoryImporter::on_unmapped
//!                      ^            |
//!                      +-- refused -+  at most CLOSE_TRIES times
//! ```

use std::collections::VecDeque;
use std::os::fd::OwnedFd;

use trunkline_fabric::OobStream;
use trunkline_mem::ipc::{
    CloseError, ExportedHandle, HandleOpenError, IpcHandle, IpcMemory, MappingTicket, MappingUser, NotClosed,
    OpenedHandle,
};
use trunkline_proto::ipc::importer::{MapRefusal, MappingId, MappingKind, MappingPlace, UnmapCommand};
use trunkline_proto::wire::ipc::ExportName;

use super::{CLOSE_TRIES, IpcNode, MessageBuffer, NeighbourId, ProtocolViolation};

/// A mapping that the kind's thread makes.
#[derive(Debug)]
struct OpeningMapping {
    mapping: MappingId,
    /// `None` while the request queue is full.
    ticket: Option<MappingTicket>,
}

/// A mapping that is not closed yet.
#[derive(Debug)]
struct ClosingMapping {
    mapping: MappingId,
    step: ClosingStep,
    /// How often the driver has failed to close it.
    tries: u8,
}

/// The state of closing a mapping.
#[derive(Debug)]
enum ClosingStep {
    /// The request is to be posted, or the driver to be called: for the first time or again.
    Waits(OpenedHandle),
    /// The request was posted to the kind's thread.
    Posted(MappingTicket),
}

/// An export that the kind's thread gives back.
#[derive(Debug)]
struct EndingExport {
    name: ExportName,
    step: EndingStep,
}

/// The state of giving an export back.
#[derive(Debug)]
enum EndingStep {
    /// The request is not posted yet: the queue was full or has not been tried.
    Waits(Box<ExportedHandle>),
    /// The request was posted to the kind's thread.
    Posted(MappingTicket),
}

/// The exports that the kind's thread gives back.
#[derive(Debug, Default)]
struct EndingExports(VecDeque<EndingExport>);

/// The mappings that are being made or closed, and the exports that are being given back.
#[derive(Debug, Default)]
pub(super) struct MappingWork {
    /// Mappings that the kind's thread makes.
    opening: VecDeque<OpeningMapping>,
    /// Mappings that it closes, and mappings that the driver did not close at once.
    closing: VecDeque<ClosingMapping>,
    ending_exports: EndingExports,
}

impl MappingWork {
    pub(super) fn is_done(&self) -> bool {
        self.opening.is_empty() && self.closing.is_empty()
    }
}

impl<M: IpcMemory, S: OobStream> IpcNode<M, S> {
    /// Returns where a neighbour's memory must be mapped for copies from or to that buffer.
    pub(super) fn place_of(&self, buffer: &MessageBuffer) -> MappingPlace {
        match self.memory.mapping_user(buffer.own_address()) {
            None => self.config.place,
            Some(MappingUser::Device(device)) => MappingPlace { device, way: MappingKind::Device },
            Some(MappingUser::Host) => MappingPlace { device: 0, way: MappingKind::Host },
        }
    }

    /// Maps the memory that a message needs, or posts the request. On failure, the importer returns it at the next
    /// resolution of the name.
    pub(super) fn open_mapping(&mut self, mapping: MappingId) {
        if self.memory.mapping_queue().is_some() {
            self.mapping_work.opening.push_back(OpeningMapping { mapping, ticket: None });
            return self.post_openings();
        }
        match self.to_open(mapping) {
            Some((handle, descriptor, user)) => {
                let opened = self.memory.open_for(&handle, descriptor, user);
                self.on_opened(mapping, opened);
            }
            None => self.map_failed(mapping, MapRefusal::Other),
        }
    }

    /// Returns the handle, descriptor and user of a mapping to be made. `None`: its neighbour has ended, or the
    /// process has no descriptors left.
    fn to_open(&self, mapping: MappingId) -> Option<(IpcHandle, Option<OwnedFd>, MappingUser)> {
        let peer = self.peers.get(NeighbourId(mapping.source)).filter(|peer| peer.stream.is_some())?;
        let import = peer.imports.get(mapping.name)?;
        // The handle's process is replaced by the stream's peer, so a neighbour cannot refer to another process.
        let handle = peer.process.map_or(import.handle, |number| import.handle.of_process(number));
        let descriptor = import.descriptor.as_ref().map(|fd| fd.try_clone()).transpose().ok()?;
        let user = match mapping.place {
            MappingPlace { device, way: MappingKind::Device } => MappingUser::Device(device),
            MappingPlace { way: MappingKind::Host, .. } => MappingUser::Host,
        };
        Some((handle, descriptor, user))
    }

    /// Posts the requests that wait, until the queue is full.
    fn post_openings(&mut self) {
        for at in 0..self.mapping_work.opening.len() {
            let Some(OpeningMapping { mapping, ticket: None }) = self.mapping_work.opening.get(at) else {
                continue;
            };
            let mapping = *mapping;
            let ticket = match self.to_open(mapping) {
                Some((handle, descriptor, user)) => {
                    let queue = self.memory.mapping_queue();
                    queue.and_then(|queue| queue.post_open(&handle, descriptor, user))
                }
                None => {
                    self.mapping_work.opening.remove(at);
                    self.map_failed(mapping, MapRefusal::Other);
                    // The removal has shifted the later entries: the next call posts them.
                    return;
                }
            };
            if ticket.is_none() {
                return;
            }
            if let Some(one) = self.mapping_work.opening.get_mut(at) {
                one.ticket = ticket;
            }
        }
    }

    /// Reads the results of posted mappings, and posts requests that wait; returns whether there was any result.
    pub(super) fn end_openings(&mut self) -> bool {
        if self.mapping_work.opening.is_empty() {
            return false;
        }
        let mut ended = false;
        for _ in 0..self.mapping_work.opening.len() {
            let Some(one) = self.mapping_work.opening.pop_front() else { break };
            let opened = match (self.memory.mapping_queue(), &one.ticket) {
                (Some(queue), Some(ticket)) => queue.take_opened(ticket),
                (Some(_), None) => None,
                // A child of fork does not have the thread.
                (None, _) => Some(Err(HandleOpenError::Gone)),
            };
            match opened {
                Some(opened) => {
                    ended = true;
                    self.on_opened(one.mapping, opened);
                }
                None => self.mapping_work.opening.push_back(one),
            }
        }
        self.post_openings();
        ended
    }

    /// Handles the driver's result for a mapping. If the neighbour has ended meanwhile, the importer requests the
    /// unmapping in the next calls.
    fn on_opened(&mut self, mapping: MappingId, opened: Result<OpenedHandle, HandleOpenError>) {
        let neighbour = NeighbourId(mapping.source);
        let mapped = match opened {
            Ok(mapped) => mapped,
            Err(error) if error.is_in_the_way() => {
                return self.map_failed(mapping, MapRefusal::AlreadyMapped);
            }
            Err(_) => return self.map_failed(mapping, MapRefusal::Other),
        };
        let import = self.peers.get(neighbour).and_then(|peer| peer.imports.get(mapping.name));
        let announced = import.map_or(0, |import| import.span.len());
        let found = mapped.len() as u64;
        if found < announced {
            self.end_mapping(mapping, mapped, 0);
            self.map_failed(mapping, MapRefusal::Other);
            return self.break_with(neighbour, ProtocolViolation::Length { found, announced });
        }
        self.counts.maps += 1;
        let address = mapped.local_address().unwrap_or(0) as u64;
        if self.importer.on_mapped(mapping, address).is_ok()
            && let Some(peer) = self.peers.get_mut(neighbour)
        {
            peer.imports.record_mapping(mapping.name, mapping.place, mapped);
        }
    }

    fn map_failed(&mut self, mapping: MappingId, why: MapRefusal) {
        self.counts.map_failures += 1;
        // The importer requested this mapping, so it accepts the result.
        let _ = self.importer.on_map_failed(mapping, why);
    }

    pub(super) fn close_mapping(&mut self, unmap: UnmapCommand) {
        let UnmapCommand { mapping, .. } = unmap;
        let peer = self.peers.get_mut(NeighbourId(mapping.source));
        let mapped = peer.and_then(|peer| peer.imports.take_mapping(mapping.name, mapping.place));
        match mapped {
            Some(mapped) => {
                if self.end_mapping(mapping, mapped, 0) {
                    self.on_unmapped(mapping);
                }
            }
            // The importer ends only mapped windows, so this does not happen.
            None => _ = self.importer.on_unmapped(mapping),
        }
    }

    fn on_unmapped(&mut self, mapping: MappingId) {
        self.counts.unmaps += 1;
        let _ = self.importer.on_unmapped(mapping);
    }

    /// Closes a mapping, or posts the request; returns whether it is closed.
    fn end_mapping(&mut self, mapping: MappingId, mapped: OpenedHandle, tries: u8) -> bool {
        if let Some(queue) = self.memory.mapping_queue() {
            let step = match queue.post_close(mapped) {
                Ok(ticket) => ClosingStep::Posted(ticket),
                Err(mapped) => ClosingStep::Waits(mapped),
            };
            self.mapping_work.closing.push_back(ClosingMapping { mapping, step, tries });
            return false;
        }
        match self.memory.close(mapped) {
            Ok(()) => true,
            Err(left) => {
                self.on_not_closed(mapping, left, tries);
                false
            }
        }
    }

    /// Records that the driver did not close a mapping, for another try.
    fn on_not_closed(&mut self, mapping: MappingId, left: NotClosed, tries: u8) {
        self.counts.unmap_failures += u64::from(tries == 0);
        let step = ClosingStep::Waits(left.mapped);
        self.mapping_work.closing.push_back(ClosingMapping { mapping, step, tries: tries + 1 });
    }

    /// Reads the results of closed mappings. Closes those again that the driver did not close, or leaves them behind
    /// after `CLOSE_TRIES` tries. Returns whether there was any result.
    pub(super) fn end_closings(&mut self) -> bool {
        let mut ended = false;
        for _ in 0..self.mapping_work.closing.len() {
            let Some(ClosingMapping { mapping, step, tries }) = self.mapping_work.closing.pop_front() else {
                break;
            };
            match step {
                ClosingStep::Waits(_) if tries >= CLOSE_TRIES => {
                    self.counts.leaks += 1;
                    let _ = self.importer.on_unmapped(mapping);
                }
                ClosingStep::Waits(mapped) => {
                    if self.end_mapping(mapping, mapped, tries) {
                        self.on_unmapped(mapping);
                    }
                }
                ClosingStep::Posted(ticket) => ended |= self.end_closing(mapping, ticket, tries),
            }
        }
        ended
    }

    /// Reads the result for one closed mapping; returns whether there was one.
    fn end_closing(&mut self, mapping: MappingId, ticket: MappingTicket, tries: u8) -> bool {
        let Some(queue) = self.memory.mapping_queue() else {
            // A child of fork does not have the thread.
            self.counts.leaks += 1;
            let _ = self.importer.on_unmapped(mapping);
            return true;
        };
        match queue.take_closed(&ticket) {
            None => {
                let step = ClosingStep::Posted(ticket);
                self.mapping_work.closing.push_back(ClosingMapping { mapping, step, tries });
                return false;
            }
            Some(Ok(())) => self.on_unmapped(mapping),
            Some(Err(left)) => self.on_not_closed(mapping, left, tries),
        }
        true
    }

    /// Gives an export back, or queues it for the kind's thread.
    pub(super) fn end_export(&mut self, name: ExportName) {
        let Some(export) = self.exports.take_export(name) else {
            return self.on_unexported(name, Err(CloseError::Unknown));
        };
        if self.memory.unexport_queue().is_some() {
            self.mapping_work
                .ending_exports
                .0
                .push_back(EndingExport { name, step: EndingStep::Waits(Box::new(export)) });
            return;
        }
        let ended = self.memory.unexport(export);
        self.on_unexported(name, ended);
    }

    /// Posts the exports that wait for room, and reads the results of the others; returns whether there was any
    /// result.
    pub(super) fn end_unexports(&mut self) -> bool {
        let mut ended = false;
        for _ in 0..self.mapping_work.ending_exports.0.len() {
            let Some(EndingExport { name, step }) = self.mapping_work.ending_exports.0.pop_front() else {
                break;
            };
            let step = match (step, self.memory.unexport_queue()) {
                (EndingStep::Waits(export), Some(queue)) => match queue.post_unexport(export) {
                    Ok(ticket) => EndingStep::Posted(ticket),
                    Err(export) => EndingStep::Waits(export),
                },
                (EndingStep::Posted(ticket), Some(queue)) => match queue.take_unexported(&ticket) {
                    Some(answer) => {
                        ended = true;
                        self.on_unexported(name, answer);
                        continue;
                    }
                    None => EndingStep::Posted(ticket),
                },
                // A child of fork does not have the thread.
                (_, None) => {
                    ended = true;
                    self.on_unexported(name, Err(CloseError::Unknown));
                    continue;
                }
            };
            self.mapping_work.ending_exports.0.push_back(EndingExport { name, step });
        }
        ended
    }

    fn on_unexported(&mut self, name: ExportName, ended: Result<(), CloseError>) {
        match ended {
            Ok(()) => self.counts.unexports += 1,
            // The driver's state is unknown after a failure; the export counts as ended.
            Err(_) => self.counts.export_failures += 1,
        }
        // The exporter requested this, so it accepts the result.
        let _ = self.exporter.on_unexported(name);
    }
}
