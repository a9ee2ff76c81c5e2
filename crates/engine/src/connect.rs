//! The asking side of a connection: makes the sending lane, asks, and opens the comm when the answer comes.

use std::sync::Arc;

use trunkline_fabric::{Fabric, Host, LinkAddress, Links, Rail, RailConfig, RecvOrder};
use trunkline_proto::conn::{ConnectStep, Connecting, LinkLife};
use trunkline_proto::counters::Tally;
use trunkline_proto::limits::LINKS_MAX;
use trunkline_proto::pool::AnswerFault;
use trunkline_proto::slots::SlotId;
use trunkline_proto::time::Duration;
use trunkline_proto::wire::cts::Lines;
use trunkline_proto::wire::frame::{Answer, Frame, Open as OpenFrame, Reply};
use trunkline_proto::wire::handle::Handle;
use trunkline_proto::wire::share::{Given, Mode, Request};
use trunkline_proto::xfer::sender::Sender;

use crate::comm::Peer;
use crate::control::{ATTEMPTS_MAX, Attempt, Control};
use crate::groups::{Group, Seat};
use crate::member::{Ends, Open, Side};
use crate::path::{NO_LINK, Path, Paths, Proof};
use crate::plan::Plan;
use crate::rails::Rails;
use crate::send::SendLane;
use crate::slab::Piece;
use crate::{CommId, Engine, Error, Nics, Params};

impl<F: Fabric, H: Host> Engine<F, H> {
    /// Opens the rails of a comm with so many links, the first link on them.
    pub(crate) fn open_paths(
        &self,
        nics: &Nics,
        links: usize,
        recv_depth: u32,
        asks: bool,
    ) -> Result<(Rails<F::Rail>, Paths), Error> {
        let Params { depth, peer_time, rail_time, .. } = self.params;
        // Where there is no other link, one is given up no sooner than a peer.
        let rail_time = if links > 1 { rail_time } else { rail_time.max(peer_time) };
        // Bounce buffers are all alike.
        let recv_order = RecvOrder::Any;
        let used = &nics.numbers()[..nics.numbers().len().min(links)];
        let open = |at: usize| {
            // Link `k` is on NIC `k` modulo their number.
            let links = (links - at).div_ceil(used.len()) as u32;
            let config = RailConfig { depth, recv_depth, recv_order, links, peer_time, rail_time };
            Ok(self.fabric.open(used[at], &config)?)
        };
        let mut rails = Rails::new(
            open(0)?,
            (1..used.len()).map(open).collect::<Result<_, Error>>()?,
            self.params.mutant,
        );
        let (now, mutant) = (self.host.now(), self.params.mutant);
        let first = rails.get_mut(0).create()?;
        let path = |at: usize| {
            let (link, life) = match at {
                0 => (first, LinkLife::first(asks, now, mutant)),
                _ => (NO_LINK, LinkLife::further(asks, now, mutant)),
            };
            let rail = at % used.len();
            Path { rail, link, nic: used[rail], life, leaving: None, proof: Proof::None }
        };
        Ok((rails, Paths::new(path(0), (1..links).map(path).collect())))
    }

    /// Starts an attempt; `None` if the peer is too busy to be asked right now.
    pub(crate) fn begin_connect(
        &self,
        control: &mut Control<H, F::Rail>,
        nics: Nics,
        handle: &Handle,
    ) -> Result<Option<SlotId>, Error> {
        let Some(stream) = control.stream_to(&self.host, handle.process, &handle.address)? else {
            return Ok(None);
        };
        let rails = usize::from(handle.nics.len()).max(nics.numbers().len());
        let links = (rails * self.params.links_per_rail as usize).min(LINKS_MAX);
        let (rails, paths) = self.open_paths(&nics, links, 0, true)?;
        let mailbox = Piece::alone(&rails, Lines::of(links).mailbox_bytes())?;
        let plan = Plan::new(rails.get(0).caps(), &self.params, links);
        let sender = Sender::new(0, 0, self.params.mutant);
        let lane = SendLane::new(paths, plan, sender, mailbox, self.params.regions_max as usize);
        let open = OpenFrame {
            conn: 0,
            listen: handle.listen,
            nonce: handle.nonce,
            matched: plan.matched,
            links: links as u8,
            mailbox: lane.mailbox(0),
            link: Vec::new(),
            share: Request { mode: Mode::Alone, turn: 0 },
        };
        let attempt = Attempt {
            machine: Connecting::new(self.host.now()),
            stream,
            process: handle.process,
            open,
            lane: Some((lane, rails)),
            reply: None,
            joined: false,
            comm: None,
            closed: false,
            unasked: Duration::default(),
        };
        let limit = |_| Error::Exhausted { what: "connection attempts", limit: ATTEMPTS_MAX };
        let id = control.attempts.insert(attempt).map_err(limit)?;
        if let Err(error) = send_open(control, id) {
            control.attempts.remove(id);
            return Err(error);
        }
        Ok(Some(id))
    }

    /// Goes on with an attempt; the comm once it is there. On an error the attempt is gone.
    pub(crate) fn advance_connect(
        &self,
        control: &mut Control<H, F::Rail>,
        id: SlotId,
    ) -> Result<Option<CommId>, Error> {
        let Some(attempt) = control.attempts.get_mut(id) else {
            return Err(Error::Unknown("connection attempt"));
        };
        let (stream, process) = (attempt.stream, attempt.process);
        if attempt.closed {
            return Err(crate::CommFault::PeerClosed(process).into());
        }
        let step = attempt.machine.on_time(self.host.now());
        let (answered, joined) = (attempt.reply.is_some(), attempt.joined);
        if !answered || joined {
            if let Some(error) = control.stream_fault(stream, process) {
                return Err(error);
            }
            if step == ConnectStep::SendOpen {
                send_open(control, id)?;
            }
        }
        if answered && (joined || self.join(control, id)?) { self.open_comm(control, id) } else { Ok(None) }
    }

    /// Connects the link as the reply says; false if there is nothing to connect.
    fn join(&self, control: &mut Control<H, F::Rail>, id: SlotId) -> Result<bool, Error> {
        let Some(attempt) = control.attempts.get_mut(id) else { return Ok(false) };
        let (Some((reply, fd)), Some((lane, rails))) = (&mut attempt.reply, &mut attempt.lane) else {
            return Ok(false);
        };
        // Nothing but links of its own was asked for.
        if reply.share.given != Given::Alone && !self.params.mutant.is("engine-takes-any-answer") {
            return Err(AnswerFault::Nonsense.into());
        }
        match attempt.machine.on_result(reply.answer) {
            ConnectStep::Connect => {}
            ConnectStep::Refused(Answer::NoResources) => return Err(Error::PeerExhausted),
            ConnectStep::Refused(_) => return Err(Error::Refused),
            ConnectStep::Wait | ConnectStep::SendOpen | ConnectStep::SendReady => {
                attempt.reply = None;
                return Ok(false);
            }
        }
        let address = LinkAddress { bytes: reply.link.clone(), fd: fd.take() };
        self.apply_reply(lane, rails, reply, address)?;
        attempt.joined = true;
        Ok(true)
    }

    /// Makes the comm, once the link is up.
    fn open_comm(&self, control: &mut Control<H, F::Rail>, id: SlotId) -> Result<Option<CommId>, Error> {
        let Some(attempt) = control.attempts.get_mut(id) else { return Ok(None) };
        let (stream, process) = (attempt.stream, attempt.process);
        let up = attempt.lane.as_mut().map(|(lane, rails)| {
            let path = lane.paths.leader();
            rails.get_mut(path.rail).is_up(path.link)
        });
        let up = up.transpose()?;
        if up == Some(false) && !self.params.mutant.is("engine-connects-before-link-is-up") {
            return Ok(None);
        }
        let (Some((reply, _)), Some((lane, rails))) = (attempt.reply.take(), attempt.lane.take()) else {
            return Err(Error::Unknown("connection attempt"));
        };
        let Some(peer) = control.peer(stream) else { return Err(crate::CommFault::PeerDead(process).into()) };
        let ends = Ends { stream, remote: reply.comm, attempt: Some(id) };
        let comm = self.install(Side::Send(lane), rails, peer, ends)?;
        control.send(stream, &Frame::Ready { comm: reply.comm, conn: id.to_bits() }, None);
        if let Some(attempt) = control.attempts.get_mut(id) {
            attempt.comm = Some(comm);
        }
        Ok(Some(comm))
    }

    fn apply_reply(
        &self,
        lane: &mut SendLane,
        rails: &mut Rails<F::Rail>,
        reply: &Reply,
        address: LinkAddress,
    ) -> Result<(), Error> {
        let now = self.host.now();
        let links = lane.paths.len();
        let nic = lane.paths.get(0).nic;
        let path = lane.paths.leader();
        let (rail, link) = (rails.get_mut(path.rail), path.link);
        rail.connect(link, address)?;
        if links == 1 {
            lane.plan.copied_max = rail.copied_max(link).min(lane.plan.message_max);
            if rail.poll_is_call(link) {
                lane.plan.blind_max = lane.plan.blind_max.max(lane.plan.copied_max);
            }
        }
        let (speed, latency) = self.nic_speed(nic);
        lane.link_up(0, speed, latency, now);
        lane.plan.matched = reply.matched && lane.plan.matched;
        lane.plan.remote_len = reply.remote_len;
        let eager_max = reply.eager_max.min(lane.plan.eager_max);
        let credits = reply.eager_credits.min(lane.plan.eager_credits);
        let credits = if eager_max == 0 { 0 } else { credits };
        lane.connected(Sender::new(eager_max, credits, self.params.mutant).over(links), reply.fins);
        Ok(())
    }

    /// Opens a comm over rails of its own.
    pub(crate) fn install(
        &self,
        side: Side,
        rails: Rails<F::Rail>,
        peer: Arc<Peer>,
        ends: Ends,
    ) -> Result<CommId, Error> {
        let open = Open::new(side, peer, ends);
        let id = self.comms.insert(open, self.host.now(), &self.status, |open| {
            Ok(Seat::alone(self.groups.insert(Group::alone(rails, open))?))
        })?;
        self.status.add(Tally::CommsOpened, 1);
        self.show_usage();
        Ok(id)
    }
}

fn send_open<H: Host, R: Rail>(control: &mut Control<H, R>, id: SlotId) -> Result<(), Error> {
    let Some(attempt) = control.attempts.get_mut(id) else { return Ok(()) };
    let Some((lane, rails)) = attempt.lane.as_ref() else { return Ok(()) };
    let path = lane.paths.leader();
    let address = rails.get(path.rail).address(path.link)?;
    let open = OpenFrame { conn: id.to_bits(), link: address.bytes, ..attempt.open.clone() };
    let stream = attempt.stream;
    control.send(stream, &Frame::Open(open), address.fd);
    Ok(())
}
