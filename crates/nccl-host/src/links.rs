//! The connections of one communicator, with the memory registered on them.
//!
//! Made and closed on the service thread, used on the progress thread. A connection is made in NCCL's order: listen;
//! then connect and accept, repeated in any order until each has returned its object; then closeListen; then
//! registration of every buffer.

use std::ffi::c_int;
use std::sync::Arc;

use thiserror::Error;

use crate::abi::PluginCallError;
use crate::buffer::{HostBuffer, MapError, MemoryKind};
use crate::comm::{ListenComm, NetHandle, NetMr, PluginContext, RecvComm, SendComm};
use crate::rendezvous::HandleOffer;
use crate::wait::SpinWait;

/// The memory of one communicator: send buffer, receive buffer, and scratch.
#[derive(Debug)]
pub(crate) struct CommMemory {
    pub(crate) buffers: [HostBuffer; 3],
}

/// Index of the memory that out-of-place runs send from.
pub(crate) const INPUT: usize = 0;
/// Index of the memory that runs receive into; in-place runs also send from it.
pub(crate) const OUTPUT: usize = 1;
/// Index of the scratch slots.
pub(crate) const SCRATCH: usize = 2;

impl CommMemory {
    pub(crate) fn new(kind: MemoryKind, bytes: [usize; 3]) -> Result<Self, MapError> {
        let [input, output, scratch] = bytes;
        let buffers =
            [HostBuffer::new(kind, input)?, HostBuffer::new(kind, output)?, HostBuffer::new(kind, scratch)?];
        Ok(Self { buffers })
    }
}

/// An outgoing connection.
#[derive(Debug)]
pub(crate) struct SendLink {
    pub(crate) comm: SendComm,
    pub(crate) peer: usize,
    pub(crate) tag: c_int,
    pub(crate) mrs: Vec<NetMr>,
}

/// An incoming connection.
#[derive(Debug)]
pub(crate) struct RecvLink {
    pub(crate) comm: RecvComm,
    pub(crate) peer: usize,
    pub(crate) tag: c_int,
    pub(crate) mrs: Vec<NetMr>,
}

/// All connections of a communicator, in the order in which the schedules number them.
#[derive(Debug, Default)]
pub(crate) struct RankLinks {
    pub(crate) send: Vec<SendLink>,
    pub(crate) recv: Vec<RecvLink>,
}

/// A failed call, and its peer.
#[derive(Debug, Error)]
#[error("{direction} rank {peer}: {source}")]
pub(crate) struct PeerCallError {
    pub(crate) direction: &'static str,
    pub(crate) peer: usize,
    pub(crate) source: PluginCallError,
}

pub(crate) fn error_to(peer: usize) -> impl FnOnce(PluginCallError) -> PeerCallError {
    move |source| PeerCallError { direction: "to", peer, source }
}

pub(crate) fn error_from(peer: usize) -> impl FnOnce(PluginCallError) -> PeerCallError {
    move |source| PeerCallError { direction: "from", peer, source }
}

/// A listening object, and the peer that will connect to it.
#[derive(Debug)]
pub(crate) struct ListeningPeer {
    pub(crate) comm: ListenComm,
    pub(crate) peer: usize,
}

/// Listens once for every incoming connection.
pub(crate) fn listen_for_peers(
    net: &Arc<PluginContext>,
    device: c_int,
    peers: &[usize],
    channels: usize,
) -> Result<Vec<(ListeningPeer, NetHandle)>, PeerCallError> {
    let mut out = Vec::new();
    for _ in 0..channels {
        for peer in peers.iter().copied() {
            let (comm, handle) = net.listen(device).map_err(error_from(peer))?;
            out.push((ListeningPeer { comm, peer }, handle));
        }
    }
    Ok(out)
}

/// Connects and accepts all links, in the order in which they become ready.
pub(crate) fn connect_links(
    net: &Arc<PluginContext>,
    device: c_int,
    offers: &[HandleOffer],
    listening: Vec<ListeningPeer>,
    rank: usize,
    threads: usize,
) -> Result<RankLinks, PeerCallError> {
    let mut handles: Vec<NetHandle> = offers.iter().map(HandleOffer::to_handle).collect();
    let mut sends: Vec<Option<SendComm>> = offers.iter().map(|_| None).collect();
    let mut recvs: Vec<Option<RecvComm>> = listening.iter().map(|_| None).collect();
    let mut waiting = SpinWait::new(threads);
    let mut left = sends.len() + recvs.len();
    while left > 0 {
        let before = left;
        for (index, slot) in sends.iter_mut().enumerate().filter(|(_, slot)| slot.is_none()) {
            *slot = net.connect(device, &mut handles[index]).map_err(error_to(offers[index].listener))?;
            left -= usize::from(slot.is_some());
        }
        for (index, slot) in recvs.iter_mut().enumerate().filter(|(_, slot)| slot.is_none()) {
            *slot = listening[index].comm.accept().map_err(error_from(listening[index].peer))?;
            left -= usize::from(slot.is_some());
        }
        if left == before {
            waiting.wait_once();
        } else {
            waiting.note_progress();
        }
    }
    let send = sends.into_iter().flatten().zip(offers).map(|(comm, offer)| SendLink {
        comm,
        peer: offer.listener,
        tag: rank as c_int,
        mrs: Vec::new(),
    });
    let recv = recvs.into_iter().flatten().zip(&listening).map(|(comm, from)| RecvLink {
        comm,
        peer: from.peer,
        tag: from.peer as c_int,
        mrs: Vec::new(),
    });
    let links = RankLinks { send: send.collect(), recv: recv.collect() };
    for listening in listening {
        listening.comm.close().map_err(error_from(listening.peer))?;
    }
    Ok(links)
}

impl RankLinks {
    /// Registers all memory on every connection.
    pub(crate) fn register_memory(&mut self, memory: &CommMemory) -> Result<(), PeerCallError> {
        for link in &mut self.send {
            for buffer in &memory.buffers {
                // SAFETY: the memory lives until the links are closed.
                let mr = unsafe { link.comm.reg_mr(buffer.as_ptr(), buffer.len().max(1)) };
                link.mrs.push(mr.map_err(error_to(link.peer))?);
            }
        }
        for link in &mut self.recv {
            for buffer in &memory.buffers {
                // SAFETY: as above.
                let mr = unsafe { link.comm.reg_mr(buffer.as_ptr(), buffer.len().max(1)) };
                link.mrs.push(mr.map_err(error_from(link.peer))?);
            }
        }
        Ok(())
    }

    /// Ends the registrations, and closes the connections.
    pub(crate) fn close_links(self) -> Result<(), PeerCallError> {
        for link in self.send {
            for mr in link.mrs {
                // SAFETY: registered above, deregistered once, and no request is in flight any more.
                unsafe { link.comm.dereg_mr(mr) }.map_err(error_to(link.peer))?;
            }
            link.comm.close().map_err(error_to(link.peer))?;
        }
        for link in self.recv {
            for mr in link.mrs {
                // SAFETY: as above.
                unsafe { link.comm.dereg_mr(mr) }.map_err(error_from(link.peer))?;
            }
            link.comm.close().map_err(error_from(link.peer))?;
        }
        Ok(())
    }
}
