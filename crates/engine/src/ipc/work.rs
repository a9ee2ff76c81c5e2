//! What the rules want done: the driver's calls, outside of any message that is in hand, and what neighbours are to be told.

use trunkline_fabric::OobStream;
use trunkline_mem::ipc::{IpcMemory, Mapped, User};
use trunkline_proto::ipc::exporter::Command;
use trunkline_proto::ipc::importer::{MappingId, Place, Refusal, Unmap, Way};
use trunkline_proto::time::Instant;
use trunkline_proto::wire::ipc::{Message, Name};

use super::neighbour::Peer;
use super::{Broken, Buffer, CLOSE_TRIES, NAMES_ASKED_MAX, Neighbour, Node, WORK_PER_CALL};

/// A mapping that the driver did not close.
#[derive(Debug)]
pub(super) struct Unclosed {
    mapping: MappingId,
    mapped: Mapped,
    tries: u8,
}

impl<M: IpcMemory, S: OobStream> Node<M, S> {
    /// Calls the driver for what is over; whether there was anything.
    pub(super) fn work(&mut self, now: Instant) -> bool {
        let mut worked = self.unmap_again();
        for _ in 0..WORK_PER_CALL {
            let Some(unmap) = self.importer.poll() else { break };
            worked = true;
            self.unmap(unmap);
        }
        for _ in 0..WORK_PER_CALL {
            let Some(command) = self.exporter.poll(now) else { break };
            worked = true;
            match command {
                Command::Unexport(name) => self.unexport(name),
                Command::Query(query) => {
                    let there = self.find(query.address() as usize).ok();
                    self.exporter.queried(query, there);
                }
            }
        }
        worked
    }

    fn unexport(&mut self, name: Name) {
        match self.exports.take(name).map(|export| self.memory.unexport(export)) {
            Some(Ok(())) => self.counts.unexports += 1,
            // It is not exported any more as far as anybody can tell.
            Some(Err(_)) | None => self.counts.export_failures += 1,
        }
        // The exporter said so itself.
        let _ = self.exporter.unexported(name);
    }

    /// Where memory of others must be mapped for copies from or to that buffer.
    pub(super) fn place_of(&self, buffer: &Buffer) -> Place {
        let user = self.memory.user(buffer.address());
        match user.filter(|_| !self.mutant.is("ipc-node-maps-in-one-place")) {
            None => self.config.place,
            Some(User::Device(device)) => Place { device, way: Way::Device },
            Some(User::Host) => Place { device: 0, way: Way::Host },
        }
    }

    /// Maps what a message needs; what is not mapped is told to whoever resolves it next.
    pub(super) fn map(&mut self, mapping: MappingId) {
        let neighbour = Neighbour(mapping.source);
        let peer = self.peers.get(neighbour);
        let import = peer.and_then(|peer| Some((peer.process, peer.imports.get(mapping.name)?)));
        let Some((process, import)) = import else { return self.map_failed(mapping, Refusal::Other) };
        // A neighbour names no other process than itself, be it this one.
        let process = process.filter(|_| !self.mutant.is("ipc-node-believes-numbers"));
        let handle = process.map_or(import.handle, |number| import.handle.of_process(number));
        let announced = import.span.len();
        let descriptor = import.descriptor.as_ref().map(|fd| fd.try_clone());
        let Ok(descriptor) = descriptor.transpose() else {
            return self.map_failed(mapping, Refusal::Other);
        };
        let user = match mapping.place {
            Place { device, way: Way::Device } => User::Device(device),
            Place { way: Way::Host, .. } => User::Host,
        };
        match self.memory.open_for(&handle, descriptor, user) {
            Ok(mapped)
                if (mapped.len() as u64) < announced && !self.mutant.is("ipc-node-believes-lengths") =>
            {
                let found = mapped.len() as u64;
                self.end_mapping(mapping, mapped, 0);
                self.map_failed(mapping, Refusal::Other);
                self.break_with(neighbour, Broken::Length { found, announced });
            }
            Ok(mapped) => {
                self.counts.maps += 1;
                let address = mapped.address().unwrap_or(0) as u64;
                if self.importer.mapped(mapping, address).is_ok()
                    && let Some(peer) = self.peers.get_mut(neighbour)
                {
                    peer.imports.mapped(mapping.name, mapping.place, mapped);
                }
            }
            Err(error) if error.is_in_the_way() => self.map_failed(mapping, Refusal::AlreadyMapped),
            Err(_) => self.map_failed(mapping, Refusal::Other),
        }
    }

    fn map_failed(&mut self, mapping: MappingId, why: Refusal) {
        self.counts.map_failures += 1;
        // The importer asked for it itself.
        let _ = self.importer.map_failed(mapping, why);
    }

    fn unmap(&mut self, unmap: Unmap) {
        let Unmap { mapping, .. } = unmap;
        let peer = self.peers.get_mut(Neighbour(mapping.source));
        let mapped = peer.and_then(|peer| peer.imports.unmap(mapping.name, mapping.place));
        match mapped {
            Some(_) if self.mutant.is("ipc-node-unmaps-nothing") => _ = self.importer.unmapped(mapping),
            Some(mapped) => {
                if self.end_mapping(mapping, mapped, 0) {
                    self.counts.unmaps += 1;
                    let _ = self.importer.unmapped(mapping);
                }
            }
            // Only a planted bug has the importer take for mapped what is not.
            None => _ = self.importer.unmapped(mapping),
        }
    }

    /// Whether it is closed; otherwise it is tried again.
    fn end_mapping(&mut self, mapping: MappingId, mapped: Mapped, tries: u8) -> bool {
        let Err(left) = self.memory.close(mapped) else { return true };
        self.counts.unmap_failures += u64::from(tries == 0);
        self.unclosed.push_back(Unclosed { mapping, mapped: left.mapped, tries: tries + 1 });
        false
    }

    /// What the driver did not close is closed again, or left behind.
    fn unmap_again(&mut self) -> bool {
        for _ in 0..self.unclosed.len() {
            let Some(Unclosed { mapping, mapped, tries }) = self.unclosed.pop_front() else { break };
            if tries >= CLOSE_TRIES {
                self.counts.leaks += 1;
                let _ = self.importer.unmapped(mapping);
            } else if self.end_mapping(mapping, mapped, tries) {
                self.counts.unmaps += 1;
                let _ = self.importer.unmapped(mapping);
            }
        }
        false
    }

    /// Tells neighbours what they are to let go, and what was let go of theirs; whether there was anything.
    pub(super) fn tell(&mut self) -> bool {
        let mut told = false;
        for place in 0..self.peers.places() {
            let Some(neighbour) = self.peers.at(place) else { continue };
            told |= self.ask_back(neighbour);
            while let Some(names) = self.importer.retired(neighbour.0) {
                told = true;
                let Some(peer) = self.peers.get_mut(neighbour) else { break };
                if !self.mutant.is("ipc-node-keeps-handles") {
                    names.get().iter().for_each(|name| peer.imports.forget(*name));
                }
                peer.say(&Message::Retired(names), None);
            }
        }
        told
    }

    /// Asks a neighbour for what it is to let go, as far as it may be asked at once.
    pub(super) fn ask_back(&mut self, neighbour: Neighbour) -> bool {
        let mut asked = false;
        let Some(peer) = self.peers.get_mut(neighbour).filter(|peer| Peer::is_there(peer)) else {
            return false;
        };
        // One question more has as many names as a message takes.
        while peer.asked + trunkline_proto::wire::ipc::NAMES_MAX <= NAMES_ASKED_MAX
            && let Some(names) = self.exporter.retire(peer.exporting)
        {
            asked = true;
            peer.asked += names.get().len();
            peer.say(&Message::Retire(names), None);
        }
        asked
    }
}
