//! A process's part in sharing memory with others of its node.

use std::collections::VecDeque;

use trunkline_fabric::OobStream;
use trunkline_mem::ipc::{HandlePassing, IpcMemory, MappingUser};
use trunkline_proto::intervals::ByteSpan;
use trunkline_proto::ipc::exporter::{
    ExportAmount, ExporterCommand, ExporterConfig as Exporting, MemoryExporter,
};
use trunkline_proto::ipc::importer::{MappingKind, MappingPlace, MemoryImporter};
use trunkline_proto::time::{Duration, Instant};
use trunkline_proto::wire::ipc::{IpcHello, IpcMessage, NAMES_MAX};

use super::exports::ExportTable;
use super::mapping::MappingWork;
use super::neighbour::{NeighbourEntry, NeighbourTable};
use super::{
    ArrivalId, NAMES_ASKED_MAX, NeighbourId, NodeEvent, NodeJoinError, OPERATIONS_MAX, ProtocolViolation,
    WORK_PER_CALL,
};

/// What a node may do.
#[derive(Clone, Copy, Debug)]
pub struct NodeConfig {
    /// A random name of this process, another one after each start.
    pub process: [u8; 16],
    /// What may be exported, and for how long. Whether exports weigh nothing the kind of memory says, whatever stands here.
    pub exporting: Exporting,
    /// How handles go; the kind of memory says which of the two it can.
    pub passing: HandlePassing,
    /// Where memory of others is mapped, of a kind that has one mapping for all users, and for whom it is lent. A kind that tells devices apart
    /// says itself for which of them that is.
    pub place: MappingPlace,
    /// For how long neighbours may take to leave when this process does.
    pub leaving: Duration,
}

impl NodeConfig {
    /// The defaults, for that process: what is kept is at most so much.
    #[must_use]
    pub const fn new(process: [u8; 16], budget: ExportAmount) -> Self {
        let exporting = Exporting { budget, passing: 64, idle: Some(Exporting::IDLE), weightless: false };
        let place = MappingPlace { device: 0, way: MappingKind::Device };
        let leaving = Duration::from_secs(2);
        Self { process, exporting, passing: HandlePassing::Bytes, place, leaving }
    }
}

/// What a node has done. What the rules count besides: [`IpcNode::exporter`], [`IpcNode::importer`].
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct NodeCounts {
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

/// A process's part in sharing memory. Has one owner, who calls [`IpcNode::progress`] again and again.
#[derive(Debug)]
pub struct IpcNode<M, S> {
    pub(super) config: NodeConfig,
    pub(super) memory: M,
    pub(super) exporter: MemoryExporter,
    pub(super) importer: MemoryImporter,
    pub(super) exports: ExportTable,
    pub(super) peers: NeighbourTable<S>,
    /// What is being received.
    pub(super) copying: VecDeque<ArrivalId>,
    pub(super) notices: VecDeque<NodeEvent>,
    pub(super) mapping_work: MappingWork,
    pub(super) counts: NodeCounts,
    /// Once the node is closed: when neighbours that have not left are given up.
    pub(super) until: Option<Instant>,
}

impl<M: IpcMemory, S: OobStream> IpcNode<M, S> {
    /// One that shares that kind of memory, with nobody yet.
    #[must_use]
    pub fn new(memory: M, mut config: NodeConfig) -> Self {
        // What nobody maps keeps no memory from being freed.
        config.exporting.weightless = !memory.caps().maps;
        // What is lent is for the device that copies for the host, where there are several.
        if let Some(MappingUser::Device(device)) = memory.mapping_user(None) {
            config.place = MappingPlace { device, way: MappingKind::Device };
        }
        Self {
            exporter: MemoryExporter::new(config.exporting),
            importer: MemoryImporter::new(),
            exports: ExportTable::default(),
            peers: NeighbourTable::new(),
            copying: VecDeque::new(),
            notices: VecDeque::new(),
            mapping_work: MappingWork::default(),
            counts: NodeCounts::default(),
            until: None,
            config,
            memory,
        }
    }

    /// A further process, over a stream that nothing was said on. It can be sent to once it is [`NodeEvent::Met`].
    ///
    /// # Errors
    /// [`NodeJoinError`].
    pub fn join_neighbour(&mut self, stream: S) -> Result<NeighbourId, NodeJoinError> {
        if self.until.is_some() {
            return Err(NodeJoinError::Closed);
        }
        let source = self.importer.add_source()?;
        let exporting = match self.exporter.add_peer() {
            Ok(peer) => peer,
            Err(error) => {
                self.importer.end_source(source);
                return Err(error.into());
            }
        };
        let mut peer = NeighbourEntry::new(source, exporting, stream);
        let hello = IpcHello { process: self.config.process, operations: OPERATIONS_MAX as u32 };
        peer.send_message(&IpcMessage::Hello(hello), None);
        let neighbour = peer.neighbour_id();
        self.peers.add_entry(peer);
        Ok(neighbour)
    }

    /// Does what there is to do, a bounded part of it: hears neighbours, copies, calls the driver, tells neighbours. Whether anything
    /// happened; if not, whoever waits may rest.
    pub fn progress(&mut self, now: Instant) -> bool {
        self.receive_messages(now) | self.copy_arrivals() | self.run_housekeeping(now)
    }

    /// The part of it that neither hears nor copies.
    pub fn run_housekeeping(&mut self, now: Instant) -> bool {
        self.call_driver(now) | self.send_retirements() | self.close_departed(now)
    }

    /// What has happened, in order.
    pub fn next_event(&mut self) -> Option<NodeEvent> {
        self.notices.pop_front()
    }

    /// When [`IpcNode::progress`] has something to do by time alone.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        [self.exporter.next_deadline(), self.until].into_iter().flatten().min()
    }

    /// The kind of memory.
    pub const fn memory(&self) -> &M {
        &self.memory
    }

    /// What this process has exported, and to whom: counts, usage, budgets, holders.
    pub const fn exporter(&self) -> &MemoryExporter {
        &self.exporter
    }

    /// What this process has mapped of others.
    pub const fn importer(&self) -> &MemoryImporter {
        &self.importer
    }

    /// What has been done.
    #[must_use]
    pub const fn counts(&self) -> NodeCounts {
        self.counts
    }

    /// From now on at least so much is kept; see [`MemoryExporter::grow_budget`].
    pub fn grow_budget(&mut self, budget: ExportAmount) {
        self.exporter.grow_budget(budget);
    }

    /// From now on at most so much is kept; see [`MemoryExporter::shrink_budget`].
    pub fn shrink_budget(&mut self, budget: ExportAmount) {
        self.exporter.shrink_budget(budget);
    }

    /// Asks memory back until at most so many bytes are kept; see [`MemoryExporter::trim_exports`].
    pub fn trim_exports(&mut self, bytes: u64) {
        self.exporter.trim_exports(bytes);
    }

    /// Asks back all that a neighbour has; see [`MemoryExporter::drain_peer`].
    pub fn drain_neighbour(&mut self, neighbour: NeighbourId) {
        if let Some(peer) = self.peers.get(neighbour) {
            self.exporter.drain_peer(peer.exporting);
        }
    }

    /// Asks back the allocation around an address; `false` if it is not exported. It is back when [`IpcNode::is_exported`] says no.
    pub fn release_export(&mut self, addr: usize) -> bool {
        self.exporter.release_allocation(addr as u64)
    }

    /// Whether any of those bytes is exported, or not let go by all.
    #[must_use]
    pub fn is_exported(&self, addr: usize, len: usize) -> bool {
        ByteSpan::new(addr as u64, len as u64).is_some_and(|bytes| self.exporter.has_export_of(bytes))
    }

    /// A hook's flag was found set: something was freed.
    pub fn report_free(&mut self) {
        self.exporter.on_memory_freed();
    }

    /// A neighbour said what cannot be, and is taken for dead soon.
    pub(super) fn break_with(&mut self, neighbour: NeighbourId, broken: ProtocolViolation) {
        if let Some(peer) = self.peers.get_mut(neighbour).filter(|peer| peer.broken.is_none()) {
            peer.broken = Some(broken);
        }
    }
}

impl<M: IpcMemory, S: OobStream> IpcNode<M, S> {
    /// Calls the driver for what is over; whether there was anything.
    pub(super) fn call_driver(&mut self, now: Instant) -> bool {
        let mut worked = self.end_openings() | self.end_closings() | self.end_unexports();
        for _ in 0..WORK_PER_CALL {
            let Some(unmap) = self.importer.poll() else { break };
            worked = true;
            self.close_mapping(unmap);
        }
        for _ in 0..WORK_PER_CALL {
            let Some(command) = self.exporter.poll(now) else { break };
            worked = true;
            match command {
                ExporterCommand::Unexport(name) => self.end_export(name),
                ExporterCommand::Query(query) => {
                    let there = self.find_allocation(query.address() as usize).ok();
                    self.exporter.on_queried(query, there);
                }
            }
        }
        worked
    }

    /// Tells neighbours what they are to let go, and what was let go of theirs; whether there was anything.
    pub(super) fn send_retirements(&mut self) -> bool {
        let mut told = false;
        for place in 0..self.peers.slot_count() {
            let Some(neighbour) = self.peers.neighbour_at(place) else { continue };
            told |= self.send_retire_requests(neighbour);
            while let Some(names) = self.importer.take_retired_names(neighbour.0) {
                told = true;
                let Some(peer) = self.peers.get_mut(neighbour) else { break };
                names.get().iter().for_each(|name| peer.imports.remove_import(*name));
                peer.send_message(&IpcMessage::Retired(names), None);
            }
        }
        told
    }

    /// Asks a neighbour for what it is to let go, as far as it may be asked at once.
    pub(super) fn send_retire_requests(&mut self, neighbour: NeighbourId) -> bool {
        let mut asked = false;
        let Some(peer) = self.peers.get_mut(neighbour).filter(|peer| NeighbourEntry::is_there(peer)) else {
            return false;
        };
        // One question more has as many names as a message takes.
        while peer.asked + NAMES_MAX <= NAMES_ASKED_MAX
            && let Some(names) = self.exporter.take_due_names(peer.exporting)
        {
            asked = true;
            peer.asked += names.get().len();
            peer.send_message(&IpcMessage::Retire(names), None);
        }
        asked
    }
}
