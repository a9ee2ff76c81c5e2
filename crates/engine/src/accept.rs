//! The answering side of a connection: makes the receiving lane, answers, and hands the comm out when the asking side
//! is ready.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use trunkline_fabric::{Fabric, Host, Level, LinkAddress, Links};
use trunkline_proto::conn::{AcceptStep, Accepting};
use trunkline_proto::limits::TOKENS_MAX;
use trunkline_proto::slots::SlotId;
use trunkline_proto::wire::frame::{Answer, Frame, Reply};
use trunkline_proto::wire::share::{self, Given};
use trunkline_proto::xfer::receiver::Receiver;

use crate::bounces::Bounces;
use crate::control::{Asked, Control, Current, refusal};
use crate::groups::Turn;
use crate::member::{Ends, Side};
use crate::plan::Plan;
use crate::recv::{self, RecvLane};
use crate::slab::Piece;
use crate::{CommFault, CommId, Engine, Error, Nics, in_full};

impl<F: Fabric, H: Host> Engine<F, H> {
    /// Goes on with what waits at a listener; a comm once one is there.
    pub(crate) fn advance_accept(
        &self,
        control: &mut Control<H, F::Rail>,
        id: SlotId,
    ) -> Result<Option<CommId>, Error> {
        let Some(listen) = control.listens.get_mut(id) else { return Err(Error::Unknown("listener")) };
        if listen.current.is_none() {
            let nics = listen.nics;
            let Some(asked) = listen.pending.pop_front() else { return Ok(None) };
            let (refused, stream) = (refusal(&asked.open, Answer::NoResources), asked.stream);
            match self.answer(control, &nics, asked) {
                Ok(current) => {
                    if let Some(listen) = control.listens.get_mut(id) {
                        listen.current = Some(current);
                    }
                    self.send_result(control, id)?;
                }
                Err(error) => {
                    self.host.log(Level::Warn, &format!("connection not accepted: {}", in_full(&error)));
                    control.send(stream, &refused, None);
                    return Err(error);
                }
            }
        }
        self.advance_current(control, id)
    }

    fn advance_current(
        &self,
        control: &mut Control<H, F::Rail>,
        id: SlotId,
    ) -> Result<Option<CommId>, Error> {
        let Some(listen) = control.listens.get_mut(id) else { return Err(Error::Unknown("listener")) };
        let Some(current) = listen.current.as_mut() else { return Ok(None) };
        // A CLOSE says more than the READY before it.
        if self.params.mutant.is("engine-accepts-before-ready")
            || self.comms.get(current.comm).is_some_and(|comm| comm.peer_closed.load(Ordering::Acquire))
        {
            current.machine.on_ready();
        }
        let step = match current.machine.on_time(self.host.now()) {
            AcceptStep::Wait if std::mem::take(&mut current.repeat) => current.machine.on_open(),
            step => step,
        };
        let mutant = self.params.mutant;
        // Asked before READY too: the other end may wait to be dialled by this one.
        let up = match step == AcceptStep::Ready {
            true if mutant.is("engine-accepts-before-link-is-up") => Ok(true),
            false if mutant.is("engine-dials-after-ready") => Ok(false),
            ready => match self.is_up(current.comm) {
                // The other end had the link, and has closed it again.
                Err(_) if ready => Ok(true),
                up => up.map(|up| up && ready),
            },
        };
        if !matches!(up, Ok(false)) {
            let (comm, stream, conn) = (current.comm, current.stream, current.conn);
            listen.current = None;
            listen.seen.retain(|known| *known != (stream, conn));
            return up.map(|_| Some(comm)).inspect_err(|_| {
                self.drop_comm(comm);
                // The other end may see nothing wrong with its link.
                if !self.params.mutant.is("engine-keeps-failed-accepts-to-itself") {
                    control.send(stream, &Frame::Close { id: conn, messages: 0 }, None);
                }
            });
        }
        if current.peer.dead.load(Ordering::Acquire) {
            let (comm, process) = (current.comm, current.peer.process);
            listen.current = None;
            self.drop_comm(comm);
            return Err(CommFault::PeerDead(process).into());
        }
        if step == AcceptStep::SendResult {
            self.send_result(control, id)?;
        }
        Ok(None)
    }

    /// Whether the link of a comm that was asked for is up, or never will be because the peer has closed or died.
    fn is_up(&self, comm: CommId) -> Result<bool, Error> {
        let Some(slot) = self.comms.get(comm) else { return Ok(true) };
        let closed = slot.peer_closed.load(Ordering::Acquire);
        let up = self.open(comm, |Turn { open, rails, .. }| {
            let over = closed || open.peer.dead.load(Ordering::Acquire);
            match &mut open.side {
                Side::Recv(lane) if !over => {
                    let path = lane.paths.get(0);
                    Ok(rails.get_mut(path.rail).is_up(path.link)?)
                }
                _ => Ok(true),
            }
        });
        up.unwrap_or(Ok(true))
    }

    /// Makes the receiving lane for an OPEN.
    fn answer(&self, control: &Control<H, F::Rail>, nics: &Nics, asked: Asked) -> Result<Current, Error> {
        let Asked { open, fd, stream, peer } = asked;
        if let Some(error) = control.stream_fault(stream, peer.process) {
            return Err(error);
        }
        let links = usize::from(open.links);
        let caps = self.fabric.nics().get(nics.first()).map(|nic| nic.caps);
        let Some(caps) = caps else { return Err(Error::Argument("no such NIC")) };
        let mut plan = Plan::new(&caps, &self.params, links);
        plan.matched &= open.matched;
        let recv_depth = if plan.matched { TOKENS_MAX as u32 } else { plan.bounces };
        let recv_depth = recv_depth.min(caps.depth_max);
        let (mut rails, paths) = self.open_paths(nics, links, recv_depth, false)?;
        let links_of = paths.iter().map(|path| path.rail);
        let bounces = Bounces::new(&rails, links_of, recv::bounce_bytes(&plan), plan.bounces)?;
        let bounces = Arc::new(bounces);
        let fins = Piece::alone(&rails, recv::FINS_BYTES)?;
        let path = paths.leader();
        rails.get_mut(path.rail).connect(path.link, LinkAddress { bytes: open.link, fd })?;
        let receiver = Receiver::new(self.params.mutant);
        let regions_max = self.params.regions_max as usize;
        let mut lane = RecvLane::new(paths, plan, receiver, open.mailbox, (bounces, fins), regions_max);
        lane.post_bounces(&mut rails, 0)?;
        let ends = Ends { stream, remote: open.conn, attempt: None };
        let comm = self.install(Side::Recv(lane), rails, peer.clone(), ends)?;
        let machine = Accepting::new(self.host.now());
        let conn = open.conn;
        let turn = if self.params.mutant.is("engine-answers-turn-0") { 0 } else { open.share.turn };
        Ok(Current { machine, comm, conn, turn, stream, peer, repeat: false })
    }

    fn send_result(&self, control: &mut Control<H, F::Rail>, id: SlotId) -> Result<(), Error> {
        let current = control.listens.get(id).and_then(|listen| listen.current.as_ref());
        let Some(&Current { comm, conn, turn, stream, .. }) = current else { return Ok(()) };
        let reply = self.open(comm, |Turn { open, rails, .. }| {
            let Side::Recv(lane) = &open.side else { return Ok(None) };
            let path = lane.paths.get(0);
            let address = rails.get(path.rail).address(path.link)?;
            let matched = lane.plan.matched;
            let reply = Reply {
                conn,
                answer: Answer::Accepted,
                matched,
                remote_len: lane.plan.remote_len,
                comm: comm.to_bits(),
                fins: lane.fins(0),
                eager_max: if matched { 0 } else { lane.plan.eager_max },
                eager_credits: lane.plan.eager_credits,
                link: address.bytes,
                share: share::Answer { given: Given::Alone, turn },
            };
            Ok::<_, Error>(Some((reply, address.fd)))
        });
        if let Some((reply, fd)) = reply.transpose()?.flatten() {
            control.send(stream, &Frame::Result(reply), fd);
        }
        Ok(())
    }
}
