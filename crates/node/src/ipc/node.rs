//! A process's part in sharing memory with others of its node.

use std::collections::VecDeque;

use trunkline_fabric::OobStream;
use trunkline_mem::ipc::{IpcMemory, Passing, User};
use trunkline_proto::intervals::Span;
use trunkline_proto::ipc::exporter::{Amount, Command, Config as Exporting, Exporter};
use trunkline_proto::ipc::importer::{Importer, Place, Way};
use trunkline_proto::mutant::Mutant;
use trunkline_proto::time::{Duration, Instant};
use trunkline_proto::wire::ipc::{Hello, Message, NAMES_MAX};

use super::exports::Exports;
use super::mapping::MappingWork;
use super::neighbour::{Peer, Peers};
use super::{
    ArrivalId, Broken, JoinError, NAMES_ASKED_MAX, Neighbour, Notice, OPERATIONS_MAX, WORK_PER_CALL,
};

/// What a node may do.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// A random name of this process, another one after each start.
    pub process: [u8; 16],
    /// What may be exported, and for how long. Whether exports weigh nothing the kind of memory says, whatever stands here.
    pub exporting: Exporting,
    /// How handles go; the kind of memory says which of the two it can.
    pub passing: Passing,
    /// Where memory of others is mapped, of a kind that has one mapping for all users, and for whom it is lent. A kind that tells devices apart
    /// says itself for which of them that is.
    pub place: Place,
    /// For how long neighbours may take to leave when this process does.
    pub leaving: Duration,
    /// A planted bug.
    pub mutant: Mutant,
}

impl Config {
    /// The defaults, for that process: what is kept is at most so much.
    #[must_use]
    pub const fn new(process: [u8; 16], budget: Amount) -> Self {
        let exporting = Exporting { budget, passing: 64, idle: Some(Exporting::IDLE), weightless: false };
        let place = Place { device: 0, way: Way::Device };
        let leaving = Duration::secs(2);
        Self { process, exporting, passing: Passing::Bytes, place, leaving, mutant: Mutant::NONE }
    }
}

/// What a node has done. What the rules count besides: [`Node::exporter`], [`Node::importer`].
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Counts {
    /// Messages that named memory.
    pub sent: u64,
    /// Messages that were copied here.
    pub received: u64,
    /// Messages that were not.
    pub not_received: u64,
    /// Handles that the driver gave, and took back.
    pub exports: u64,
    /// See above.
    pub unexports: u64,
    /// Handles that the driver did not give or take back.
    pub export_failures: u64,
    /// Mappings that the driver made, and ended.
    pub maps: u64,
    /// See above.
    pub unmaps: u64,
    /// Mappings that the driver did not make.
    pub map_failures: u64,
    /// Mappings that the driver did not end at the first try.
    pub unmap_failures: u64,
    /// Of them those that it never ended; their memory is lost until this process ends.
    pub leaks: u64,
    /// Neighbours that said what cannot be.
    pub broken: u64,
}

/// A process's part in sharing memory. Has one owner, who calls [`Node::progress`] again and again.
#[derive(Debug)]
pub struct Node<M, S> {
    pub(super) config: Config,
    pub(super) memory: M,
    pub(super) exporter: Exporter,
    pub(super) importer: Importer,
    pub(super) exports: Exports,
    pub(super) peers: Peers<S>,
    /// What is being received.
    pub(super) copying: VecDeque<ArrivalId>,
    pub(super) notices: VecDeque<Notice>,
    pub(super) mapping_work: MappingWork,
    pub(super) counts: Counts,
    /// Once the node is closed: when neighbours that have not left are given up.
    pub(super) until: Option<Instant>,
    pub(super) mutant: Mutant,
}

impl<M: IpcMemory, S: OobStream> Node<M, S> {
    /// One that shares that kind of memory, with nobody yet.
    #[must_use]
    pub fn new(memory: M, mut config: Config) -> Self {
        // What nobody maps keeps no memory from being freed.
        config.exporting.weightless =
            !memory.caps().maps && !config.mutant.is("ipc-node-weighs-what-is-not-kept");
        // What is lent is for the device that copies for the host, where there are several.
        if let Some(User::Device(device)) = memory.user(None) {
            config.place = Place { device, way: Way::Device };
        }
        Self {
            exporter: Exporter::new(config.exporting, config.mutant),
            importer: Importer::new(config.mutant),
            exports: Exports::default(),
            peers: Peers::new(),
            copying: VecDeque::new(),
            notices: VecDeque::new(),
            mapping_work: MappingWork::default(),
            counts: Counts::default(),
            until: None,
            mutant: config.mutant,
            config,
            memory,
        }
    }

    /// A further process, over a stream that nothing was said on. It can be sent to once it is [`Notice::Met`].
    ///
    /// # Errors
    /// [`JoinError`].
    pub fn join(&mut self, stream: S) -> Result<Neighbour, JoinError> {
        if self.until.is_some() {
            return Err(JoinError::Closed);
        }
        let source = self.importer.join()?;
        let exporting = match self.exporter.join() {
            Ok(peer) => peer,
            Err(error) => {
                self.importer.end(source);
                return Err(error.into());
            }
        };
        let mut peer = Peer::new(source, exporting, stream);
        let hello = Hello { process: self.config.process, operations: OPERATIONS_MAX as u32 };
        peer.say(&Message::Hello(hello), None);
        let neighbour = peer.neighbour();
        self.peers.add(peer);
        Ok(neighbour)
    }

    /// Does what there is to do, a bounded part of it: hears neighbours, copies, calls the driver, tells neighbours. Whether anything
    /// happened; if not, whoever waits may rest.
    pub fn progress(&mut self, now: Instant) -> bool {
        self.hear(now) | self.copy() | self.attend(now)
    }

    /// The part of it that neither hears nor copies.
    pub fn attend(&mut self, now: Instant) -> bool {
        self.work(now) | self.tell() | self.see_off(now)
    }

    /// What has happened, in order.
    pub fn notice(&mut self) -> Option<Notice> {
        self.notices.pop_front()
    }

    /// When [`Node::progress`] has something to do by time alone.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        [self.exporter.deadline(), self.until].into_iter().flatten().min()
    }

    /// The kind of memory.
    pub const fn memory(&self) -> &M {
        &self.memory
    }

    /// What this process has exported, and to whom: counts, usage, budgets, holders.
    pub const fn exporter(&self) -> &Exporter {
        &self.exporter
    }

    /// What this process has mapped of others.
    pub const fn importer(&self) -> &Importer {
        &self.importer
    }

    /// What has been done.
    #[must_use]
    pub const fn counts(&self) -> Counts {
        self.counts
    }

    /// From now on at least so much is kept; see [`Exporter::grow`].
    pub fn grow(&mut self, budget: Amount) {
        self.exporter.grow(budget);
    }

    /// From now on at most so much is kept; see [`Exporter::shrink`].
    pub fn shrink(&mut self, budget: Amount) {
        self.exporter.shrink(budget);
    }

    /// Asks memory back until at most so many bytes are kept; see [`Exporter::trim`].
    pub fn trim(&mut self, bytes: u64) {
        self.exporter.trim(bytes);
    }

    /// Asks back all that a neighbour has; see [`Exporter::drain`].
    pub fn drain(&mut self, neighbour: Neighbour) {
        if let Some(peer) = self.peers.get(neighbour).filter(|_| !self.mutant.is("seen-drains-nobody")) {
            self.exporter.drain(peer.exporting);
        }
    }

    /// Asks back the allocation around an address; `false` if it is not exported. It is back when [`Node::has`] says no.
    pub fn release(&mut self, addr: usize) -> bool {
        self.exporter.release(addr as u64)
    }

    /// Whether any of those bytes is exported, or not let go by all.
    #[must_use]
    pub fn has(&self, addr: usize, len: usize) -> bool {
        Span::new(addr as u64, len as u64).is_some_and(|bytes| self.exporter.has(bytes))
    }

    /// A hook's flag was found set: something was freed.
    pub fn freed(&mut self) {
        self.exporter.freed();
    }

    /// A neighbour said what cannot be, and is taken for dead soon.
    pub(super) fn break_with(&mut self, neighbour: Neighbour, broken: Broken) {
        if let Some(peer) = self.peers.get_mut(neighbour).filter(|peer| peer.broken.is_none()) {
            peer.broken = Some(broken);
        }
    }
}

impl<M: IpcMemory, S: OobStream> Node<M, S> {
    /// Calls the driver for what is over; whether there was anything.
    pub(super) fn work(&mut self, now: Instant) -> bool {
        let mut worked = self.end_openings() | self.end_closings() | self.end_unexports();
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
        while peer.asked + NAMES_MAX <= NAMES_ASKED_MAX
            && let Some(names) = self.exporter.retire(peer.exporting)
        {
            asked = true;
            peer.asked += names.get().len();
            peer.say(&Message::Retire(names), None);
        }
        asked
    }
}
