//! Making, connecting and ending links, and the address by which two ends find each other. A slow path; everything that
//! comes from a peer is parsed into values that cannot be wrong.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

use trunkline_fabric::{LinkAddress, LinkError, LinkId, Links};

use crate::book::Pins;
use crate::direct::Direct;
use crate::ladder::State;
use crate::nic::Berth;
use crate::process::Process;
use crate::qp::{Qp, Wire};
use crate::ring::{Consumer, Producer, side};
use crate::segment::{Geometry, Segment};
use crate::{CopyMode, SoftRail, WireMode};

const MAGIC: [u8; 8] = *b"TLSOFTNC";
const VERSION: u16 = 2;
/// Bytes of an address.
const BYTES: usize = 80;
/// Most receives a peer may name.
const RECEIVES: u32 = 1 << 16;

/// What a link tells its peer; the layout is in docs/wire.md.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Address {
    /// Number of the NIC in its fabric.
    pub(crate) nic: u16,
    /// Number of the queue pair.
    pub(crate) number: u32,
    /// The fabric.
    pub(crate) fabric: [u8; 16],
    /// Position of the first record in the segment.
    pub(crate) start: u64,
    /// Sizes of the segment.
    pub(crate) geometry: Geometry,
    /// Process number, as its owner sees it.
    pub(crate) pid: u32,
    /// Receives it may post, which bounds its grants.
    pub(crate) receives: u32,
    /// Reads it executes at once.
    pub(crate) reads: u32,
    /// Address of a word in its process,
    pub(crate) probe: u64,
    /// and what the word holds.
    pub(crate) proof: u64,
}

impl Address {
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(BYTES);
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&self.nic.to_le_bytes());
        out.extend_from_slice(&self.number.to_le_bytes());
        out.extend_from_slice(&self.fabric);
        out.extend_from_slice(&self.start.to_le_bytes());
        for word in [self.geometry.slots(), self.geometry.payload(), self.pid, self.receives, self.reads, 0] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        out.extend_from_slice(&self.probe.to_le_bytes());
        out.extend_from_slice(&self.proof.to_le_bytes());
        out
    }

    /// Parses what a peer sent.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, &'static str> {
        let bytes: &[u8; BYTES] = bytes.try_into().map_err(|_| "it has the wrong length")?;
        if bytes[..8] != MAGIC {
            return Err("it is not of a software NIC");
        }
        if bytes[8..10] != VERSION.to_le_bytes() {
            return Err("its version is another");
        }
        let word = |at: usize| {
            let mut word = [0; 4];
            word.copy_from_slice(&bytes[at..at + 4]);
            u32::from_le_bytes(word)
        };
        let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        let mut fabric = [0; 16];
        fabric.copy_from_slice(&bytes[16..32]);
        let geometry = Geometry::new(word(40), word(44)).ok_or("its ring sizes are not usable")?;
        let (receives, reads) = (word(52), word(56));
        if receives > RECEIVES || reads == 0 || word(60) != 0 {
            return Err("its limits are not usable");
        }
        Ok(Self {
            nic: u16::from_le_bytes([bytes[10], bytes[11]]),
            number: word(12),
            fabric,
            start: long(32),
            geometry,
            pid: word(48),
            receives,
            reads,
            probe: long(64),
            proof: long(72),
        })
    }
}

fn system(what: &'static str) -> impl Fn(io::Error) -> LinkError {
    move |source| LinkError::System { what, source }
}

impl SoftRail {
    fn qp(&self, link: LinkId) -> Result<&Qp, LinkError> {
        match self.links.get(link.0 as usize) {
            Some(Some(qp)) => Ok(qp),
            _ => Err(LinkError::State),
        }
    }

    fn make(&self, link: LinkId, berth: Berth) -> Result<Qp, LinkError> {
        let config = &self.shared.config;
        let geometry = Geometry::new(config.slots, config.payload).ok_or(LinkError::State)?;
        let segment = Segment::create(geometry).map_err(system("making a memory file"))?;
        let rx = Consumer::new(segment, config.start_position);
        let qp = Qp::new((link, berth), rx, Arc::clone(&self.cq), &self.config, &self.shared);
        qp.rx.publish_posted(qp.posted);
        Ok(qp)
    }

    fn choose(&self, peer: &Address) -> Result<Wire, LinkError> {
        if peer.fabric != self.shared.id || self.shared.config.wire == WireMode::Shm {
            return Ok(Wire::Shm);
        }
        if usize::from(peer.nic) >= self.shared.nics.len() {
            return Err(LinkError::Address("it names a NIC that does not exist"));
        }
        Ok(Wire::Mem)
    }
}

impl Links for SoftRail {
    fn create_on(&mut self, pipeline: Option<u32>) -> Result<LinkId, LinkError> {
        let used = self.links.iter().filter(|link| link.is_some()).count();
        if used >= self.config.links as usize {
            return Err(LinkError::Exhausted(self.config.links));
        }
        let nic = &self.shared.nics[self.nic];
        let berth = nic.take_queue_pair(pipeline, self.shared.pipeline_qps)?;
        let free = self.links.iter().position(Option::is_none).unwrap_or(self.links.len());
        // No more than `config.links`, which is 32 bits wide.
        let link = LinkId(free as u32);
        let qp = match self.make(link, berth) {
            Ok(qp) => Box::new(qp),
            Err(error) => {
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

    fn pipeline(&self, link: LinkId) -> Option<u32> {
        self.qp(link).ok().map(|qp| qp.pipeline)
    }

    fn address(&self, link: LinkId) -> Result<LinkAddress, LinkError> {
        let qp = self.qp(link)?;
        let segment = qp.rx.segment();
        let fd = segment.fd().as_fd().try_clone_to_owned().map_err(system("copying a descriptor"))?;
        let address = Address {
            // A fabric has far fewer NICs than 2^16.
            nic: self.nic as u16,
            number: qp.number,
            fabric: self.shared.id,
            start: qp.start,
            geometry: segment.geometry(),
            pid: std::process::id(),
            receives: self.config.recv_depth,
            reads: self.shared.config.max_reads,
            probe: std::ptr::from_ref(&*self.shared.probe).expose_provenance() as u64,
            proof: *self.shared.probe,
        };
        Ok(LinkAddress { bytes: address.bytes(), fd: Some(fd) })
    }

    fn connect(&mut self, link: LinkId, peer: LinkAddress) -> Result<(), LinkError> {
        let address = Address::parse(&peer.bytes).map_err(LinkError::Address)?;
        let fd = peer.fd.ok_or(LinkError::Unreachable("it gave no shared memory"))?;
        let wire = self.choose(&address)?;
        let recv_depth = address.receives;
        let Some(Some(qp)) = self.links.get_mut(link.0 as usize) else { return Err(LinkError::State) };
        let ready = qp.state.step(State::ReadyToReceive).ok_or(LinkError::State)?;
        let segment = Segment::open(fd, address.geometry)
            .map_err(system("mapping the peer's memory file"))?
            .ok_or(LinkError::Address("its memory file is not sealed or has the wrong size"))?;
        qp.state = ready;
        qp.wire = wire;
        qp.sends = address.start;
        qp.peer_posted = address.start;
        let mut tx = Producer::new(segment, address.start);
        let config = &self.shared.config;
        if wire == Wire::Shm && config.copy != CopyMode::Staging && !config.delayed_visibility {
            let peer = Arc::new(Process::new(address.pid));
            let reaches = peer.proves(address.probe, address.proof);
            if reaches {
                qp.rx.publish_reach();
            }
            let pins = Arc::new(Pins::new(peer, Arc::clone(tx.segment()), Arc::clone(qp.rx.segment())));
            tx.set_pins(Arc::clone(&pins));
            let limit = std::time::Duration::from_nanos(self.config.peer_time.0);
            qp.direct = Some(Direct::new(&self.shared, self.nic, pins, reaches, qp.start, limit));
        }
        qp.tx = Some(tx);
        qp.wanted = crate::queue::Queue::new(address.reads.min(self.shared.config.max_reads), 0);
        qp.matcher.set_grants(recv_depth);
        qp.state = qp.state.step(State::ReadyToSend).ok_or(LinkError::State)?;
        Ok(())
    }

    fn fail(&mut self, link: LinkId) {
        if let Some(Some(qp)) = self.links.get_mut(link.0 as usize) {
            qp.drain();
        }
    }

    fn destroy(&mut self, link: LinkId) {
        let Some(place) = self.links.get_mut(link.0 as usize) else { return };
        let Some(mut qp) = place.take() else { return };
        if let Some(tx) = &qp.tx
            && qp.failure.is_none()
        {
            tx.publish_state(side::CLOSED);
        }
        if qp.failure.is_none() {
            qp.rx.publish();
            qp.rx.publish_state(side::CLOSED);
        }
        self.owed -= qp.owed;
        if qp.owes_news() {
            self.cq.forgo();
        }
        qp.state = State::Error;
        self.shared.nics[self.nic].give_queue_pair(qp.pipeline);
    }
}
