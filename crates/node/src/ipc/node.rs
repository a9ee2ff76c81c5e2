//! A process's part in sharing memory with other processes of its host: the node, its configuration and its counts.
//! The owner of the node drives it by calling [`IpcNode::progress`]; the node itself never blocks.

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

/// Configures a node.
#[derive(Clone, Copy, Debug)]
pub struct NodeConfig {
    /// A random name of this process. It differs after each start.
    pub process: [u8; 16],
    /// How much may be exported, and for how long. The kind of memory overrides `weightless`: see [`IpcNode::new`].
    pub exporting: Exporting,
    /// How handles are passed; must be one of the ways that the kind of memory supports.
    pub passing: HandlePassing,
    /// Where memory of neighbours is mapped if the kind has one mapping for all users, and for which user a loan is
    /// mapped. A kind that distinguishes devices determines the device of each mapping itself.
    pub place: MappingPlace,
    /// How long neighbours may take to leave when this process leaves.
    pub leaving: Duration,
}

impl NodeConfig {
    /// Returns the defaults for a process of that name, with `budget` as the limit on kept exports.
    #[must_use]
    pub const fn new(process: [u8; 16], budget: ExportAmount) -> Self {
        let exporting = Exporting { budget, passing: 64, idle: Some(Exporting::IDLE), weightless: false };
        let place = MappingPlace { device: 0, way: MappingKind::Device };
        let leaving = Duration::from_secs(2);
        Self { process, exporting, passing: HandlePassing::Bytes, place, leaving }
    }
}

/// Counts the operations of a node. The protocol keeps further counts: [`IpcNode::exporter`], [`IpcNode::importer`].
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct NodeCounts {
    /// Messages that referred to memory of this process.
    pub sent: u64,
    /// Messages whose bytes were copied here.
    pub received: u64,
    /// Messages whose bytes were not copied.
    pub not_received: u64,
    /// Handles that the driver exported.
    pub exports: u64,
    /// Handles that the driver took back.
    pub unexports: u64,
    /// Failures of the driver to export a handle or to take one back.
    pub export_failures: u64,
    /// Mappings that the driver made.
    pub maps: u64,
    /// Mappings that the driver closed.
    pub unmaps: u64,
    /// Mappings that the driver failed to make.
    pub map_failures: u64,
    /// Mappings that the driver failed to close at the first try.
    pub unmap_failures: u64,
    /// Those among `unmap_failures` that the driver never closed; their memory is lost until this process ends.
    pub leaks: u64,
    /// Neighbours that violated the protocol.
    pub broken: u64,
}

/// A process's part in sharing memory. It has one owner, which calls [`IpcNode::progress`] repeatedly.
#[derive(Debug)]
pub struct IpcNode<M, S> {
    pub(super) config: NodeConfig,
    pub(super) memory: M,
    pub(super) exporter: MemoryExporter,
    pub(super) importer: MemoryImporter,
    pub(super) exports: ExportTable,
    pub(super) peers: NeighbourTable<S>,
    /// Arrivals that are being received.
    pub(super) copying: VecDeque<ArrivalId>,
    pub(super) notices: VecDeque<NodeEvent>,
    pub(super) mapping_work: MappingWork,
    pub(super) counts: NodeCounts,
    /// Set once the node is closed: the time at which it gives up neighbours that have not left.
    pub(super) until: Option<Instant>,
}

impl<M: IpcMemory, S: OobStream> IpcNode<M, S> {
    /// Creates a node that shares memory of that kind and has no neighbours yet.
    #[must_use]
    pub fn new(memory: M, mut config: NodeConfig) -> Self {
        // Without mappings, an export does not keep freed memory allocated.
        config.exporting.weightless = !memory.caps().maps;
        // A loan is mapped for the device that copies for the host, if the kind distinguishes devices.
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

    /// Adds a neighbour, over a stream on which nothing was sent yet. Messages can be sent to it after
    /// [`NodeEvent::Met`].
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

    /// Does a bounded part of the pending work: reads messages of neighbours, copies, calls the driver, sends
    /// messages. Returns whether anything happened; if not, the caller may rest.
    pub fn progress(&mut self, now: Instant) -> bool {
        self.receive_messages(now) | self.copy_arrivals() | self.run_housekeeping(now)
    }

    /// The part of [`IpcNode::progress`] that neither reads messages nor copies.
    pub fn run_housekeeping(&mut self, now: Instant) -> bool {
        self.call_driver(now) | self.send_retirements() | self.close_departed(now)
    }

    /// Returns the next event, in the order in which they happened.
    pub fn next_event(&mut self) -> Option<NodeEvent> {
        self.notices.pop_front()
    }

    /// When [`IpcNode::progress`] must be called even if no message arrives.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        [self.exporter.next_deadline(), self.until].into_iter().flatten().min()
    }

    /// Returns the kind of memory.
    pub const fn memory(&self) -> &M {
        &self.memory
    }

    /// Returns the exporter, with the exports of this process, their holders, counts, usage and budgets.
    pub const fn exporter(&self) -> &MemoryExporter {
        &self.exporter
    }

    /// Returns the importer: the memory of neighbours that this process has mapped.
    pub const fn importer(&self) -> &MemoryImporter {
        &self.importer
    }

    /// Returns the counts.
    #[must_use]
    pub const fn counts(&self) -> NodeCounts {
        self.counts
    }

    /// Raises the budget of kept exports to at least that; see [`MemoryExporter::grow_budget`].
    pub fn grow_budget(&mut self, budget: ExportAmount) {
        self.exporter.grow_budget(budget);
    }

    /// Lowers the budget of kept exports to at most that; see [`MemoryExporter::shrink_budget`].
    pub fn shrink_budget(&mut self, budget: ExportAmount) {
        self.exporter.shrink_budget(budget);
    }

    /// Requests exports back from neighbours until at most that many bytes are kept; see
    /// [`MemoryExporter::trim_exports`].
    pub fn trim_exports(&mut self, bytes: u64) {
        self.exporter.trim_exports(bytes);
    }

    /// Requests back all exports that a neighbour holds; see [`MemoryExporter::drain_peer`].
    pub fn drain_neighbour(&mut self, neighbour: NeighbourId) {
        if let Some(peer) = self.peers.get(neighbour) {
            self.exporter.drain_peer(peer.exporting);
        }
    }

    /// Requests back the allocation around an address; returns `false` if it is not exported. The release is complete
    /// once [`IpcNode::is_exported`] returns `false`.
    pub fn release_export(&mut self, addr: usize) -> bool {
        self.exporter.release_allocation(addr as u64)
    }

    /// Whether any of those bytes is exported, or still held by a neighbour.
    #[must_use]
    pub fn is_exported(&self, addr: usize, len: usize) -> bool {
        ByteSpan::new(addr as u64, len as u64).is_some_and(|bytes| self.exporter.has_export_of(bytes))
    }

    /// Reports that memory was freed: a hook's flag was found set.
    pub fn report_free(&mut self) {
        self.exporter.on_memory_freed();
    }

    /// Marks a neighbour that violated the protocol; it is treated as dead by the next housekeeping. The first
    /// violation is kept.
    pub(super) fn break_with(&mut self, neighbour: NeighbourId, broken: ProtocolViolation) {
        if let Some(peer) = self.peers.get_mut(neighbour).filter(|peer| peer.broken.is_none()) {
            peer.broken = Some(broken);
        }
    }
}

impl<M: IpcMemory, S: OobStream> IpcNode<M, S> {
    /// Makes the driver calls that the exporter and the importer request; returns whether there were any.
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

    /// Sends RETIRE for exports that neighbours are to unmap, and RETIRED for their exports that were unmapped here;
    /// returns whether anything was sent.
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

    /// Sends RETIRE to a neighbour, up to the limit of unacknowledged names; returns whether anything was sent.
    pub(super) fn send_retire_requests(&mut self, neighbour: NeighbourId) -> bool {
        let mut asked = false;
        let Some(peer) = self.peers.get_mut(neighbour).filter(|peer| NeighbourEntry::is_there(peer)) else {
            return false;
        };
        // A further RETIRE may contain up to `NAMES_MAX` names.
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
