//! Flushes: a read from ourselves. A queue pair that is connected to itself reads a word of our own memory, or a byte of a
//! GPU's; by the rules of the bus its answer pushes earlier writes of the device to that memory before it. Needs no peer,
//! and works when a link is in error.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use trunkline_fabric::{Access, Ctrl, LinkId, Mr, Registrar, Remote};
use trunkline_mem::Memory;
use trunkline_sys::verbs::{QpCap, Rdma, SendWr, SendWrTarget, Sge, wr_opcode};

use crate::cq::CompletionQueue;
use crate::device::Port;
use crate::ladder::{self, Limits, Ours, Rung, Theirs};
use crate::link::Kind;
use crate::qp::Qp;
use crate::register::rkey;
use crate::stage::{Bytes, Chain, Stage, Work};

/// Bytes that a flush reads.
const BYTES: u64 = 8;

/// One flush that was asked for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Asked {
    /// By which link,
    pub(crate) link: LinkId,
    /// in which of its lives.
    pub(crate) life: u64,
    /// The user's number.
    pub(crate) wr_id: u64,
    /// Whether the user is told.
    pub(crate) told: bool,
}

/// The queue pair that reads from itself.
pub(crate) struct Flusher {
    pub(crate) qp: Qp,
    pub(crate) chain: Chain,
    /// Oldest first.
    pub(crate) asked: VecDeque<Asked>,
    room: usize,
    to: Sge,
    // After the queue pair, which may still read it.
    region: Mr<Ctrl>,
}

impl Flusher {
    /// Makes one for so many flushes at once.
    ///
    /// # Errors
    /// The system's error, with the attribute that was wrong.
    pub(crate) fn new(
        port: &Port,
        cq: &CompletionQueue,
        registrar: &Arc<dyn Registrar>,
        (ours, limits): (&Ours, &Limits),
        room: u32,
    ) -> io::Result<Self> {
        let memory = Memory::heap(2 * BYTES as usize);
        let access = Access { write: false, read: true, atomic: false };
        let region = Mr::register(registrar, memory, access).map_err(io::Error::other)?;
        let to = port.device.regions.place(region.extent(BYTES, BYTES)).ok_or(io::ErrorKind::InvalidData)?;
        let cap =
            QpCap { max_send_wr: room, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
        let qp = Qp::new(&port.device, cq, cap, port.extended)?;
        let itself = Theirs {
            number: qp.number(),
            psn: ours.psn,
            mtu: port.attr.active_mtu as u8,
            lid: port.attr.lid,
            gid: port.gid.raw,
        };
        let rungs = [
            (Rung::Init, ladder::init(ours)),
            (Rung::Receive, ladder::receive(ours, &itself)),
            (Rung::Send, ladder::send(ours)),
        ];
        for (rung, (attr, mask)) in rungs {
            qp.modify(&attr, mask).map_err(|error| ladder::blame(rung, &attr, limits, &error))?;
        }
        let asked = VecDeque::with_capacity(room as usize);
        let room = room as usize;
        Ok(Self { qp, chain: Chain::EMPTY, asked, room, to, region })
    }

    /// Whether one more can be asked for.
    pub(crate) fn has_room(&self) -> bool {
        self.asked.len() < self.room
    }

    /// Adds a flush to what waits: of memory of the host, or of that at a place.
    pub(crate) fn add(&mut self, stage: &mut Stage, asked: Asked, at: Option<Remote>) {
        self.asked.push_back(asked);
        let keys = self.region.keys();
        let of_host = Remote { key: keys.remote, addr: keys.remote_base };
        let (at, length) = at.map_or((of_host, self.to.length), |at| (at, 1));
        let rdma = Rdma { remote_addr: at.addr, rkey: rkey(at.key) };
        let mut target: SendWrTarget = SendWr::ZERO.wr;
        target.rdma = rdma;
        let work =
            Work { id: Kind::Flush.id(0, 0), opcode: wr_opcode::RDMA_READ, imm: 0, target, signalled: true };
        stage.add(&mut self.chain, &work, Bytes::Placed(Sge { length, ..self.to }));
    }
}
