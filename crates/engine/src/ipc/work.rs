//! What the rules want done: the driver's calls, outside of any message that is in hand, and what neighbours are to be told.

use trunkline_fabric::OobStream;
use trunkline_mem::ipc::IpcMemory;
use trunkline_proto::ipc::exporter::Command;
use trunkline_proto::time::Instant;
use trunkline_proto::wire::ipc::{Message, Name};

use super::neighbour::Peer;
use super::{NAMES_ASKED_MAX, Neighbour, Node, WORK_PER_CALL};

impl<M: IpcMemory, S: OobStream> Node<M, S> {
    /// Calls the driver for what is over; whether there was anything.
    pub(super) fn work(&mut self, now: Instant) -> bool {
        let mut worked = self.end_openings() | self.end_closings();
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
