//! Creates, connects and ends links, and encodes the address by which two ends find each other. A slow path; all bytes
//! from a peer are parsed into types that admit only valid values.

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use trunkline_fabric::{LinkAddress, LinkControl, LinkError, LinkId, PassedFd};
use trunkline_proto::reserve::try_grow;

use crate::direct::DirectCopier;
use crate::nic::QueuePairSlot;
use crate::peer_memory::{LinkProof, PeerMemory, ProofWord};
use crate::pin_registry::LinkPins;
use crate::qp::{LinkWire, QpNames, SoftQp};
use crate::qp_state::QueuePairState;
use crate::receive_queue::SendCredit;
use crate::record::INLINE;
use crate::register::random_bytes;
use crate::ring::{RingConsumer, RingProducer, side};
use crate::segment::{RingSegment, SegmentGeometry};
use crate::tcp::{DialToken, LinkListener, LinkStream, PeerEnd};
use crate::{CopyMode, SoftRail, WireMode};
use trunkline_proto::chooser;

const MAGIC: [u8; 8] = *b"TLSOFTNC";
const VERSION: u16 = 6;
/// Bytes of an address.
const BYTES: usize = 120;
/// Most receives a peer may name, which bounds the memory for its grants.
const RECEIVES: u32 = 1 << 16;

/// The description of a link for its peer; the layout is in docs/wire.md.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct SoftLinkAddress {
    /// Number of the NIC in its fabric.
    pub(crate) nic: u16,
    /// Number of the queue pair.
    pub(crate) number: u32,
    /// The fabric.
    pub(crate) fabric: [u8; 16],
    /// Position of the first record in the segment.
    pub(crate) start: u64,
    /// Sizes of the segment.
    pub(crate) geometry: SegmentGeometry,
    /// Receives it may post, which bounds its grants.
    pub(crate) receives: u32,
    /// Reads it executes at once.
    pub(crate) reads: u32,
    /// Lets the peer verify that it reads the memory of the link's own process.
    pub(crate) proof: LinkProof,
    /// Names the link to the process that dials it.
    pub(crate) token: DialToken,
    /// Operations it may have outstanding.
    pub(crate) depth: u32,
    /// Address at which other hosts reach it, if they do.
    pub(crate) door: Option<SocketAddr>,
}

impl SoftLinkAddress {
    pub(crate) fn to_bytes(self) -> Vec<u8> {
        let mut out = Vec::with_capacity(BYTES);
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&self.nic.to_le_bytes());
        out.extend_from_slice(&self.number.to_le_bytes());
        out.extend_from_slice(&self.fabric);
        out.extend_from_slice(&self.start.to_le_bytes());
        for word in
            [self.geometry.slot_count(), self.geometry.payload_bytes(), 0, self.receives, self.reads, 0]
        {
            out.extend_from_slice(&word.to_le_bytes());
        }
        out.extend_from_slice(&self.proof.addr.to_le_bytes());
        out.extend_from_slice(&self.proof.word.to_le_bytes());
        out.extend_from_slice(&self.token);
        out.extend_from_slice(&self.depth.to_le_bytes());
        let (family, octets) = match self.door.map(|door| door.ip()) {
            None => (0, [0; 16]),
            Some(IpAddr::V4(ip)) => (4, ip.to_ipv6_mapped().octets()),
            Some(IpAddr::V6(ip)) => (6, ip.octets()),
        };
        out.extend_from_slice(&self.door.map_or(0, |door| door.port()).to_le_bytes());
        out.extend_from_slice(&[family, 0]);
        out.extend_from_slice(&octets);
        out
    }

    /// Parses the bytes that a peer sent.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, &'static str> {
        let bytes: [u8; BYTES] = bytes.try_into().map_err(|_| "the address has the wrong length")?;
        if bytes[..8] != MAGIC {
            return Err("the address is not of a software NIC");
        }
        if bytes[8..10] != VERSION.to_le_bytes() {
            return Err("the address has another version");
        }
        let word = |at: usize| {
            let mut word = [0; 4];
            word.copy_from_slice(&bytes[at..at + 4]);
            u32::from_le_bytes(word)
        };
        let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        let mut fabric = [0; 16];
        fabric.copy_from_slice(&bytes[16..32]);
        let mut token = [0; 16];
        token.copy_from_slice(&bytes[80..96]);
        let geometry = SegmentGeometry::new(word(40), word(44)).ok_or("the ring sizes are invalid")?;
        let receives = word(52);
        let reads = word(56);
        // The reserved words must be 0, so that a later version can use them.
        if receives > RECEIVES || reads == 0 || word(48) != 0 || word(60) != 0 {
            return Err("the limit of receives or reads is out of range, or a reserved word is not 0");
        }
        Ok(Self {
            nic: u16::from_le_bytes([bytes[10], bytes[11]]),
            number: word(12),
            fabric,
            start: long(32),
            geometry,
            receives,
            reads,
            proof: LinkProof { addr: long(64), word: long(72) },
            token,
            depth: word(96),
            door: parse_door(&bytes)?,
        })
    }
}

/// Parses the last part of an address: where other hosts reach its maker.
fn parse_door(bytes: &[u8; BYTES]) -> Result<Option<SocketAddr>, &'static str> {
    let mut octets = [0; 16];
    octets.copy_from_slice(&bytes[104..120]);
    let ip = Ipv6Addr::from(octets);
    let port = u16::from_le_bytes([bytes[100], bytes[101]]);
    // An absent address is all zeros, so that each address has exactly one encoding.
    let ip = match (bytes[102], bytes[103]) {
        (0, 0) if octets == [0; 16] && port == 0 => return Ok(None),
        (4, 0) => ip.to_ipv4_mapped().map(IpAddr::V4),
        (6, 0) => Some(IpAddr::V6(ip)),
        _ => None,
    };
    match ip {
        Some(ip) if port != 0 => Ok(Some(SocketAddr::new(ip, port))),
        _ => Err("the network address is malformed"),
    }
}

fn system_error(what: &'static str) -> impl Fn(io::Error) -> LinkError {
    move |source| LinkError::System { what, source }
}

impl SoftRail {
    fn queue_pair(&self, link: LinkId) -> Result<&SoftQp, LinkError> {
        match self.links.get(link.0 as usize) {
            Some(Some(qp)) => Ok(qp),
            _ => Err(LinkError::State),
        }
    }

    fn make_queue_pair(&self, link: LinkId, berth: QueuePairSlot) -> Result<SoftQp, LinkError> {
        let config = &self.shared.config;
        // A link that can only use TCP needs no ring, so it gets the smallest one.
        let rx = match config.wire {
            WireMode::Tcp => no_ring(config.start_position)?,
            WireMode::Auto | WireMode::Shm => {
                let geometry = SegmentGeometry::new(config.slots, config.payload).ok_or(LinkError::State)?;
                let (segment, file) =
                    RingSegment::create_shared(geometry).map_err(system_error("creating a memory file"))?;
                RingConsumer::new(segment, Some(file), config.start_position)
            }
        };
        // Two independent values: diallers send the token in plain text, so it must not reveal the proof.
        let token = random_bytes().map_err(system_error("getrandom"))?;
        let word = random_bytes().map_err(system_error("getrandom"))?;
        let names = QpNames {
            token,
            proof: ProofWord::new(u128::from_le_bytes(word) as u64),
            own: self.shared.own_links.add_link(token),
            door: self.open_listener()?,
        };
        let qp = SoftQp::new(link, berth, names, rx, Arc::clone(&self.cq), &self.config, &self.shared)?;
        // Published before any peer can map the segment, because positions need not begin at 0.
        qp.rx.publish_posted(qp.receives.posted_position());
        Ok(qp)
    }

    /// Chooses the wire to a peer. An address that claims to be of a link of this fabric must name one, and this process must have passed it:
    /// on such a link both ends use each other's tables of regions.
    fn choose_wire(&self, peer: &SoftLinkAddress, passed: Option<&PassedFd>) -> Result<LinkWire, LinkError> {
        let wire = self.shared.config.wire;
        if wire == WireMode::Tcp || (wire == WireMode::Auto && passed.is_none()) {
            return Ok(LinkWire::Tcp);
        }
        if peer.fabric != self.shared.id {
            return Ok(LinkWire::Shm);
        }
        if !passed.is_some_and(|passed| self.is_own(peer, passed)) {
            return Err(LinkError::Address("it names a link of this process, but another process sent it"));
        }
        if wire == WireMode::Shm {
            return Ok(LinkWire::Shm);
        }
        if usize::from(peer.nic) >= self.shared.nics.len() {
            return Err(LinkError::Address("it names a NIC that does not exist"));
        }
        Ok(LinkWire::Mem)
    }

    /// Whether an address is of a link that this fabric has created, passed by this process itself.
    fn is_own(&self, peer: &SoftLinkAddress, passed: &PassedFd) -> bool {
        passed.is_own() && self.shared.own_links.contains(&peer.token)
    }

    /// Returns the memory of the process that passed an address, for direct copies. Returns `None` if the kernel does not name that process, or if
    /// this process passed it for a link of another fabric: such links stage their bytes.
    fn peer_memory(&self, peer: &SoftLinkAddress, passed: &mut PassedFd) -> Option<PeerMemory> {
        if passed.is_own() && !self.is_own(peer, passed) {
            return None;
        }
        let process = self.shared.peer_process(passed.sender.take()?);
        Some(PeerMemory::new(process, peer.proof))
    }

    /// Opens the listener for connections of other hosts to this NIC, if they reach it.
    fn open_listener(&self) -> Result<Option<Arc<LinkListener>>, LinkError> {
        let Some(at) = self.shared.config.nic_address(self.nic) else { return Ok(None) };
        self.shared.nics[self.nic]
            .open_listener(at)
            .map(Some)
            .map_err(system_error("listening for other hosts"))
    }

    /// Gives a link its stream to another host. The link must be in its first state.
    fn connect_stream(&mut self, link: LinkId, peer: &SoftLinkAddress) -> Result<(), LinkError> {
        let address = peer
            .door
            .ok_or(LinkError::Unreachable("its address has neither shared memory nor a network address"))?;
        let from = self.shared.config.nic_address(self.nic);
        let start = self.shared.config.start_position;
        let Some(Some(qp)) = self.links.get_mut(link.0 as usize) else { return Err(LinkError::State) };
        let door = qp.door.clone().ok_or(LinkError::Unreachable("this NIC has no network address"))?;
        // Checked before anything is created, so that a link in the wrong state is left unchanged.
        let ready = qp.state.transition_to(QueuePairState::ReadyToReceive).ok_or(LinkError::State)?;
        // The end with the smaller token dials, so with equal tokens both would wait.
        if peer.token == qp.token {
            return Err(LinkError::Address("it is the address of this link itself"));
        }
        let other = PeerEnd { token: peer.token, address, start: peer.start, depth: peer.depth };
        // The ring that the link was created with is not used over TCP; replacing it by the smallest one frees its memory.
        let rx = no_ring(start)?;
        let limit = std::time::Duration::from_nanos(self.config.rail_time.0);
        let posted = qp.receives.posted_position();
        let stream = LinkStream::connect(door, qp.token, &other, from, limit, start, posted)
            .map_err(system_error("connecting to the peer's address"))?;
        qp.state = ready;
        qp.wire = LinkWire::Tcp;
        qp.rx = rx;
        qp.stream = Some(Box::new(stream));
        self.streams += 1;
        Ok(())
    }

    /// Maps the ring of a peer on this host for a link. The link must be in its first state.
    fn connect_ring(
        &mut self,
        link: LinkId,
        peer: &SoftLinkAddress,
        passed: Option<PassedFd>,
        wire: LinkWire,
    ) -> Result<(), LinkError> {
        let mut passed = passed.ok_or(LinkError::Unreachable("its address has no shared memory"))?;
        let config = &self.shared.config;
        // Direct copies bypass the buffer in which delayed writes are held, so they exclude delayed visibility.
        let is_direct =
            wire == LinkWire::Shm && config.copy != CopyMode::Staging && !config.delayed_visibility;
        let memory = if is_direct { self.peer_memory(peer, &mut passed) } else { None };
        let Some(Some(qp)) = self.links.get_mut(link.0 as usize) else { return Err(LinkError::State) };
        let ready = qp.state.transition_to(QueuePairState::ReadyToReceive).ok_or(LinkError::State)?;
        let segment = RingSegment::map_peer(passed.fd, peer.geometry)
            .map_err(system_error("mapping the peer's memory file"))?
            .ok_or(LinkError::Address("its memory file is not sealed or has the wrong size"))?;
        let mut tx = RingProducer::new(segment, peer.start)?;
        // The peer closes its memory file once it sees this, so that a link does not occupy a descriptor.
        tx.publish_mapped();
        if let Some(memory) = memory {
            // The kernel may forbid the access (process_vm_readv(2), ptrace access mode), so the proof is tried before it is relied on.
            let reaches = memory.is_proven();
            if reaches {
                qp.rx.publish_reach();
            }
            let pins = LinkPins::new(memory, Arc::clone(tx.segment()), Arc::clone(qp.rx.segment()))?;
            let pins = Arc::new(pins);
            tx.set_pins(Arc::clone(&pins));
            let limit = std::time::Duration::from_nanos(self.config.peer_time.0);
            qp.direct = Some(DirectCopier::new(&self.shared, self.nic, pins, reaches, qp.start, limit));
        }
        // Set after the last call that can fail, so that a failed connect leaves the link in its first state.
        qp.state = ready;
        qp.wire = wire;
        qp.tx = Some(tx);
        Ok(())
    }
}

/// Creates the smallest ring, for a link that does not use one.
fn no_ring(start: u64) -> Result<RingConsumer, LinkError> {
    let segment =
        RingSegment::create_unshared(SegmentGeometry::SMALLEST).map_err(system_error("mapping memory"))?;
    Ok(RingConsumer::new(segment, None, start))
}

impl LinkControl for SoftRail {
    fn create_link_on(&mut self, pipeline: Option<u32>) -> Result<LinkId, LinkError> {
        let used = self.links.iter().filter(|link| link.is_some()).count();
        if used >= self.config.links as usize {
            return Err(LinkError::Exhausted(self.config.links));
        }
        let nic = &self.shared.nics[self.nic];
        let berth = nic.take_queue_pair(pipeline, self.shared.pipeline_qps)?;
        let free = self.links.iter().position(Option::is_none).unwrap_or(self.links.len());
        // No more than `config.links`, which is 32 bits wide.
        let link = LinkId(free as u32);
        let has_room = try_grow(&mut self.links, 1).map_err(LinkError::from);
        let qp = match has_room.and_then(|()| self.make_queue_pair(link, berth)) {
            Ok(qp) => Box::new(qp),
            Err(error) => {
                // Released, or failed attempts would use up the pipeline.
                nic.give_queue_pair(berth.pipeline);
                return Err(error);
            }
        };
        if free == self.links.len() {
            self.links.push(Some(qp));
        } else {
            self.links[free] = Some(qp);
        }
        Ok(link)
    }

    fn link_pipeline(&self, link: LinkId) -> Option<u32> {
        self.queue_pair(link).ok().map(|qp| qp.pipeline)
    }

    fn link_address(&self, link: LinkId) -> Result<LinkAddress, LinkError> {
        let qp = self.queue_pair(link)?;
        let copy = |file: &OwnedFd| file.try_clone().map_err(system_error("copying a descriptor"));
        let fd = qp.rx.memory_file().map(copy).transpose()?;
        let address = SoftLinkAddress {
            // A fabric has far fewer NICs than 2^16.
            nic: self.nic as u16,
            number: qp.number,
            fabric: self.shared.id,
            start: qp.start,
            geometry: qp.rx.segment().geometry(),
            receives: self.config.recv_depth,
            reads: self.shared.config.max_reads,
            proof: qp.proof.to_proof(),
            token: qp.token,
            depth: self.config.depth,
            door: qp.door.as_ref().map(|door| door.local_address()),
        };
        Ok(LinkAddress { bytes: address.to_bytes(), fd: fd.map(PassedFd::from_own_process) })
    }

    fn connect(&mut self, link: LinkId, peer: LinkAddress) -> Result<(), LinkError> {
        let address = SoftLinkAddress::parse(&peer.bytes).map_err(LinkError::Address)?;
        match self.choose_wire(&address, peer.fd.as_ref())? {
            LinkWire::Tcp => self.connect_stream(link, &address)?,
            wire => self.connect_ring(link, &address, peer.fd, wire)?,
        }
        let Some(Some(qp)) = self.links.get_mut(link.0 as usize) else { return Err(LinkError::State) };
        qp.credit = SendCredit::new(address.start);
        // The peer's limits may be lower than this side's, and it refuses requests beyond them as violations.
        qp.wanted.lower_capacity(address.reads);
        qp.matcher.set_grants(address.receives);
        qp.state = qp.state.transition_to(QueuePairState::ReadyToSend).ok_or(LinkError::State)?;
        Ok(())
    }

    fn poll_link_up(&mut self, link: LinkId) -> Result<bool, LinkError> {
        let Some(Some(qp)) = self.links.get_mut(link.0 as usize) else { return Err(LinkError::State) };
        match &mut qp.stream {
            Some(stream) => {
                let greeted =
                    stream.has_greeted().map_err(system_error("accepting the peer's connection"))?;
                greeted.ok_or(LinkError::Unreachable("its network address does not respond"))
            }
            None => {
                // The memory file is needed only until the peer has mapped it, so it is closed here, in a call that is repeated.
                qp.rx.forget_file();
                Ok(qp.tx.is_some())
            }
        }
    }

    fn check_link(&mut self, link: LinkId) -> Result<(), LinkError> {
        let Some(Some(qp)) = self.links.get_mut(link.0 as usize) else { return Err(LinkError::State) };
        if qp.failure.is_some() || matches!(qp.state, QueuePairState::Drain | QueuePairState::Error) {
            return Err(LinkError::State);
        }
        match qp.stream.as_mut().map(|stream| stream.is_cut()).transpose() {
            Ok(Some(true)) => {
                Err(LinkError::Unreachable("the network does not acknowledge data of the link"))
            }
            Ok(_) => Ok(()),
            Err(error) => Err(system_error("reading the state of the connection")(error)),
        }
    }

    fn trim_idle_memory(&mut self, link: LinkId) -> bool {
        let Some(Some(qp)) = self.links.get_mut(link.0 as usize) else { return false };
        qp.trim_idle_memory()
    }

    fn poll_is_call(&self, link: LinkId) -> bool {
        self.queue_pair(link).is_ok_and(|qp| qp.wire == LinkWire::Tcp)
    }

    fn copied_max(&self, link: LinkId) -> u64 {
        match self.queue_pair(link) {
            // Shorter operations are always staged (`choose_method`), and a staged copy is complete when its record is written.
            Ok(qp) if qp.wire == LinkWire::Shm => chooser::LEAST - 1,
            // Any size: sent bytes are in a buffer of the kernel.
            Ok(qp) if qp.wire == LinkWire::Tcp => u64::MAX,
            _ => INLINE as u64,
        }
    }

    fn fail_link(&mut self, link: LinkId) {
        if let Some(Some(qp)) = self.links.get_mut(link.0 as usize) {
            // Drained and not failed at once, so that records that have already arrived are still executed.
            qp.start_drain();
        }
    }

    fn poll_link_quiet(&mut self, link: LinkId) -> bool {
        self.links.get(link.0 as usize).and_then(Option::as_ref).is_none_or(|qp| qp.is_quiet())
    }

    fn destroy_link(&mut self, link: LinkId) {
        let Some(place) = self.links.get_mut(link.0 as usize) else { return };
        let Some(mut qp) = place.take() else { return };
        if let Some(tx) = &qp.tx
            && qp.failure.is_none()
        {
            tx.publish_state(side::CLOSED);
        }
        if qp.failure.is_none() {
            // The position before the state, so that operations that were executed complete as successful at the peer.
            qp.rx.publish_consumed();
            qp.rx.publish_state(side::CLOSED);
        }
        if let Some(stream) = &mut qp.stream {
            self.streams -= 1;
            // The peer may still dial, and is rejected only if the listener is polled (`tend_door`).
            if stream.is_awaited() {
                self.tends = Some(Instant::now());
            }
            if qp.failure.is_none() {
                stream.end_stream(None);
            }
        }
        self.owed -= qp.owed;
        // Its completions are never produced, so a wait for one of them would end with that of another link.
        if qp.owes_news() {
            self.cq.abandon_owed();
        }
        qp.state = QueuePairState::Error;
        self.shared.nics[self.nic].give_queue_pair(qp.pipeline);
    }
}
