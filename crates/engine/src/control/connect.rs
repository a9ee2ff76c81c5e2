//! The asking side of a connection: makes the sending lane, asks, and opens the comm when the answer comes.

use trunkline_fabric::{Fabric, Host, LinkAddress, Links, Rail, RailConfig, RecvOrder};
use trunkline_proto::comm::sender::Sender;
use trunkline_proto::control::{ConnectStep, Connecting};
use trunkline_proto::counters::Tally;
use trunkline_proto::limits::LINKS_MAX;
use trunkline_proto::link::LinkLife;
use trunkline_proto::nics;
use trunkline_proto::pool::config::Traffic;
use trunkline_proto::pool::{Ask, Next, Place};
use trunkline_proto::slots::SlotId;
use trunkline_proto::time::Duration;
use trunkline_proto::wire::cts::Lines;
use trunkline_proto::wire::frame::{Answer, Frame, Open as OpenFrame, Region, Reply};
use trunkline_proto::wire::handle::Handle;
use trunkline_proto::wire::proof;
use trunkline_proto::wire::share::{Mode, Request};

use crate::comm::plan::Plan;
use crate::comm::send::SendLane;
use crate::comm::send_tables::SendTables;
use crate::control::{ATTEMPTS_MAX, Attempt, Control};
use crate::link::path::{NO_LINK, Path, Paths, Proof};
use crate::link::rails::Rails;
use crate::memory::slab::Piece;
use crate::pool::groups::{Group, Seat};
use crate::pool::member::{Ends, Open, Side};
use crate::pool::ride::Made;
use crate::{CommId, Engine, Error, Nics, Params};

/// How rails are opened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Manner {
    /// Posted receives of a link.
    pub(crate) recv_depth: u32,
    /// For the end that connects, and sends.
    pub(crate) asks: bool,
    /// How many times as deep as usual.
    pub(crate) times: u32,
    /// The pipeline that the first link goes on, where its NIC has several.
    pub(crate) pipeline: Option<u32>,
    /// The traffic class.
    pub(crate) class: Option<u8>,
}

impl<F: Fabric, H: Host> Engine<F, H> {
    /// Opens the rails of a comm with so many links, the first link on them.
    pub(crate) fn open_paths(
        &self,
        nics: &Nics,
        links: usize,
        manner: Manner,
    ) -> Result<(Rails<F::Rail>, Paths), Error> {
        let Manner { recv_depth, asks, times, pipeline, class: traffic_class } = manner;
        let Params { depth, peer_time, rail_time, .. } = self.params;
        // Where there is no other link, one is given up no sooner than a peer.
        let rail_time = if links > 1 { rail_time } else { rail_time.max(peer_time) };
        // Bounce buffers are all alike.
        let recv_order = RecvOrder::Any;
        let used = &nics.numbers()[..nics.numbers().len().min(links)];
        let depth_of = |at: usize| {
            let most = self.fabric.nics().get(used[at]).map_or(depth, |nic| nic.caps.depth_max);
            let forgets = self.params.mutant.is("engine-depth-not-granted");
            depth.saturating_mul(times).min(if forgets { u32::MAX } else { most })
        };
        let open = |at: usize| {
            // Link `k` is on NIC `k` modulo their number.
            let links = (links - at).div_ceil(used.len()) as u32;
            let plain = self.params.mutant.is("ride-keeps-plain-depth");
            let depth = if plain { depth } else { depth_of(at) };
            let config = RailConfig {
                depth,
                recv_depth,
                recv_order,
                links,
                peer_time,
                rail_time,
                receives: !asks,
                traffic_class,
                many: false,
            };
            Ok(self.fabric.open(used[at], &config)?)
        };
        let mut rails = Rails::new(
            open(0)?,
            (1..used.len()).map(open).collect::<Result<_, Error>>()?,
            depth_of(0),
            self.params.mutant,
        );
        rails.pipeline = pipeline;
        let now = self.host.now();
        let mutant = self.params.mutant;
        let first = rails.create(0, 0)?;
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
        traffic: Traffic,
    ) -> Result<Option<SlotId>, Error> {
        let Some(stream) = control.stream_to(&self.host, handle.process, &handle.address)? else {
            return Ok(None);
        };
        let ignored = self.params.mutant.is("ride-ignores-hints");
        let traffic = if ignored { Traffic::default() } else { traffic };
        let neighbours =
            control.is_local(stream) || self.params.mutant.is("engine-takes-anybody-for-a-neighbour");
        let offered = handle.near || self.params.mutant.is("engine-asks-for-what-is-not-offered");
        let near = self.fabric.near().filter(|_| neighbours && offered);
        let (nics, remote) = match near {
            Some(near) => (Nics::from(near), nics::Nics::NEAR),
            None => (nics, handle.nics),
        };
        let rails = usize::from(remote.len()).max(nics.numbers().len());
        let each = match self.params.p2p_links_per_rail {
            0 => self.params.links_per_rail,
            p2p if handle.p2p && !self.params.mutant.is("engine-forgets-point-to-point") => p2p,
            _ => self.params.links_per_rail,
        };
        let links = (rails * each as usize).min(LINKS_MAX);
        let open = OpenFrame {
            conn: 0,
            listen: handle.listen,
            nonce: handle.nonce,
            matched: false,
            near: near.is_some(),
            links: links as u8,
            mailbox: Region { key: 0, addr: 0 },
            link: Vec::new(),
            share: Request { mode: Mode::Alone, turn: 0 },
        };
        let attempt = Attempt {
            machine: Connecting::new(self.host.now()),
            stream,
            process: handle.process,
            address: handle.address.clone(),
            redials: 0,
            nics,
            remote,
            wish: self.wish(&nics, links).hinted(traffic),
            place: None,
            open,
            lane: None,
            reply: None,
            joined: false,
            comm: None,
            closed: false,
            unasked: Duration::default(),
        };
        let limit = |_| Error::Exhausted { what: "connection attempts", limit: ATTEMPTS_MAX };
        let id = control.attempts.insert(attempt).map_err(limit)?;
        if let Err(error) = self.ask(control, id) {
            self.forget_attempt(control, id);
            return Err(error);
        }
        Ok(Some(id))
    }

    /// Goes on with an attempt; the comm once it is there. On an error the attempt is of no more use.
    pub(crate) fn advance_connect(
        &self,
        control: &mut Control<H, F::Rail>,
        id: SlotId,
    ) -> Result<Option<CommId>, Error> {
        let Some(attempt) = control.attempts.get_mut(id) else {
            return Err(Error::Unknown("connection attempt"));
        };
        let stream = attempt.stream;
        let process = attempt.process;
        if attempt.closed {
            return Err(crate::CommFault::PeerClosed(process).into());
        }
        let asked = attempt.place.is_some();
        let step = attempt.machine.on_time(self.host.now());
        let answered = attempt.reply.is_some();
        let joined = attempt.joined;
        if !answered || joined {
            let redialled = !answered && !joined && control.redial(&self.host, id, self.params.mutant);
            if let Some(error) = control.stream_fault(stream, process).filter(|_| !redialled) {
                return Err(error);
            }
            if redialled && asked {
                send_open(control, id)?;
            } else if !asked {
                self.ask(control, id)?;
            } else if step == ConnectStep::SendOpen {
                send_open(control, id)?;
            }
        }
        if answered && (joined || self.join(control, id)?) { self.open_comm(control, id) } else { Ok(None) }
    }

    /// Makes this end as the pool says, and asks for the other, unless it is to wait for something.
    fn ask(&self, control: &mut Control<H, F::Rail>, id: SlotId) -> Result<(), Error> {
        let Some((ask, wish)) = self.place(control, id)? else { return Ok(()) };
        let Some(share) = ask.request(wish.turn) else { return Ok(()) };
        let Some(attempt) = control.attempts.get_mut(id) else { return Ok(()) };
        let nics = attempt.nics;
        let links = usize::from(wish.links);
        let class = wish.class;
        let (place, made) = match ask {
            Ask::Alone(place) | Ask::Rather(place) => {
                (place, self.make_own(&nics, links, class, (None, self.pipeline(control, &nics, place))))
            }
            Ask::Create(place, _) | Ask::First(place, _) => {
                let times = control.pool.config().depth(1, u32::MAX);
                (
                    place,
                    self.make_own(&nics, links, class, (Some(times), self.pipeline(control, &nics, place))),
                )
            }
            Ask::Join(place, ..) => (place, self.make_rider(control, place.group)),
            Ask::Wait => return Ok(()),
        };
        let (lane, made) = match made {
            Ok(made) => made,
            Err(error) => {
                self.leave_pool(control, place);
                // A link of the group is being made anew.
                return if matches!(error, Error::Draining) { Ok(()) } else { Err(error) };
            }
        };
        let now = self.host.now();
        let Some(attempt) = control.attempts.get_mut(id) else { return Ok(()) };
        (attempt.place, attempt.machine) = (Some(place), Connecting::new(now));
        (attempt.open.matched, attempt.open.mailbox) = (lane.plan.matched, lane.mailbox(0));
        (attempt.open.conn, attempt.open.share) = (id.to_bits(), share);
        attempt.open.link.clear();
        attempt.lane = Some((lane, made));
        send_open(control, id)
    }

    /// The pipeline that the first link of a new group goes on, where its NIC has several.
    pub(crate) fn pipeline(
        &self,
        control: &mut Control<H, F::Rail>,
        nics: &Nics,
        place: Place,
    ) -> Option<u32> {
        let pipelines = self.fabric.nics().get(nics.first()).map_or(1, |nic| nic.caps.pipelines);
        control.pool.place_on_pipeline(place.group, pipelines)
    }

    /// Rails, links and a lane for a comm that has them to itself, or is the first of a group whose queues are `group` times
    /// as deep as those of one.
    fn make_own(
        &self,
        nics: &Nics,
        links: usize,
        class: Option<u8>,
        (group, pipeline): (Option<u32>, Option<u32>),
    ) -> Result<(SendLane, Made<F::Rail>), Error> {
        let caps = self.fabric.nics().get(nics.first()).map(|nic| nic.caps);
        let plan = Plan::new(&caps.ok_or(Error::Argument("no such NIC"))?, &self.params, links);
        let manner = Manner { recv_depth: 0, asks: true, times: plan.deeper(group), pipeline, class };
        let (rails, paths) = self.open_paths(nics, links, manner)?;
        let mailbox = Piece::alone(&rails, Lines::of(links).mailbox_bytes())?;
        let plan = plan.times(group.unwrap_or(1));
        let sender = Sender::new(0, 0, self.params.mutant);
        let tables = SendTables::new(paths.are_many(), plan.mutant);
        if tables.is_err() && plan.mutant.is("engine-leaks-without-memory") {
            std::mem::forget(mailbox.memory().0.clone());
        }
        let lane = SendLane::new(tables?, paths, plan, sender, mailbox, self.params.regions_max as usize);
        Ok((lane, Made::Own(rails)))
    }

    /// Connects the link as the reply says; false if there is nothing to connect.
    fn join(&self, control: &mut Control<H, F::Rail>, id: SlotId) -> Result<bool, Error> {
        let Some(attempt) = control.attempts.get_mut(id) else { return Ok(false) };
        let (Some((reply, _)), Some(place)) = (&attempt.reply, attempt.place) else { return Ok(false) };
        let share = reply.share;
        let link = reply.link.clone();
        match attempt.machine.on_result(reply.answer) {
            ConnectStep::Connect => {}
            ConnectStep::Refused(Answer::NoResources) => return Err(Error::PeerExhausted),
            ConnectStep::Refused(_) => return Err(Error::Refused),
            ConnectStep::Wait | ConnectStep::SendOpen | ConnectStep::SendReady => {
                attempt.reply = None;
                return Ok(false);
            }
        }
        match control.pool.answered(place.seat, &share) {
            Next::Wire => {
                self.wire(control, id, &link)?;
                if self.params.mutant.is("ride-joins-before-link-is-up") {
                    self.wired(control, id)?;
                }
            }
            Next::Go => {}
            Next::Again(wish) => {
                self.unask(control, id, wish);
                return Ok(false);
            }
            Next::Failed(_) if self.params.mutant.is("engine-takes-any-answer") => {}
            Next::Failed(fault) => return Err(fault.into()),
            Next::Known => return Ok(false),
        }
        let Some(attempt) = control.attempts.get_mut(id) else { return Ok(false) };
        if let (Some((reply, _)), Some((lane, _))) = (&attempt.reply, &mut attempt.lane) {
            let (speed, latency) = self.nic_speed(lane.paths.get(0).nic);
            lane.link_up(0, speed, latency, self.host.now());
            self.apply_reply(lane, reply);
        }
        attempt.joined = true;
        Ok(true)
    }

    /// Connects the link of this end to the one that the other end has made.
    fn wire(&self, control: &mut Control<H, F::Rail>, id: SlotId, link: &[u8]) -> Result<(), Error> {
        let Some(attempt) = control.attempts.get_mut(id) else { return Ok(()) };
        let (Some((_, fd)), Some((lane, Made::Own(rails)))) = (&mut attempt.reply, &mut attempt.lane) else {
            return Ok(());
        };
        let address = LinkAddress { bytes: link.to_vec(), fd: fd.take() };
        let links = lane.paths.len();
        let path = lane.paths.leader();
        let rail = rails.get_mut(path.rail);
        let link_id = path.link;
        rail.connect(link_id, address)?;
        if links == 1 {
            lane.plan.copied_max = rail.copied_max(link_id).min(lane.plan.message_max);
            if rail.poll_is_call(link_id) {
                lane.plan.blind_max = lane.plan.blind_max.max(lane.plan.copied_max);
            }
        }
        Ok(())
    }

    /// The link of this end is up: others may join its group, if it is to have any.
    fn wired(&self, control: &mut Control<H, F::Rail>, id: SlotId) -> Result<(), Error> {
        let Some(Attempt { open, place: Some(place), reply: Some((reply, _)), lane, .. }) =
            control.attempts.get_mut(id)
        else {
            return Ok(());
        };
        if matches!(lane, Some((_, Made::Own(_)))) {
            let proof = proof::Proof::of([(open.link.as_slice(), reply.link.as_slice())]);
            control.pool.wired(place.group, proof)?;
        }
        Ok(())
    }

    /// Makes the comm, once the link is up.
    fn open_comm(&self, control: &mut Control<H, F::Rail>, id: SlotId) -> Result<Option<CommId>, Error> {
        let Some(attempt) = control.attempts.get_mut(id) else { return Ok(None) };
        let stream = attempt.stream;
        let process = attempt.process;
        let up = match &mut attempt.lane {
            Some((lane, Made::Own(rails))) => {
                let path = lane.paths.leader();
                rails.get_mut(path.rail).is_up(path.link)?
            }
            // Whoever came before has seen that it is.
            _ => true,
        };
        if !up && !self.params.mutant.is("engine-connects-before-link-is-up") {
            return Ok(None);
        }
        if !self.params.mutant.is("ride-joins-before-link-is-up") {
            self.wired(control, id)?;
        }
        // What the attempt has is cleared away with it.
        let Some(peer) = control.peer(stream) else {
            return Err(crate::CommFault::PeerDead(process).into());
        };
        let Some(attempt) = control.attempts.get_mut(id) else { return Ok(None) };
        let (Some((reply, _)), Some((lane, made))) = (attempt.reply.take(), attempt.lane.take()) else {
            return Err(Error::Unknown("connection attempt"));
        };
        let place = attempt.place.take();
        let ends = Ends { stream, remote: reply.comm, attempt: Some(id) };
        let mut open = Open::new(Side::Send(lane), peer, ends);
        open.place = place;
        let comm = self.seat_sender(control, open, made, &reply).inspect_err(|_| {
            if let Some(place) = place {
                self.leave_pool(control, place);
            }
        })?;
        control.send(stream, &Frame::Ready { comm: reply.comm, conn: id.to_bits() }, None);
        if let Some(attempt) = control.attempts.get_mut(id) {
            attempt.comm = Some(comm);
        }
        Ok(Some(comm))
    }

    fn apply_reply(&self, lane: &mut SendLane, reply: &Reply) {
        let links = lane.paths.len();
        lane.plan.matched = reply.matched && lane.plan.matched;
        lane.plan.remote_len = reply.remote_len;
        let eager_max = reply.eager_max.min(lane.plan.eager_max);
        let credits = reply.eager_credits.min(lane.plan.eager_credits);
        let credits = if eager_max == 0 { 0 } else { credits };
        (lane.plan.eager_max, lane.plan.eager_credits) = (eager_max, credits);
        lane.connected(Sender::new(eager_max, credits, self.params.mutant).over(links), reply.fins);
    }

    /// Opens a comm over rails of its own.
    pub(crate) fn install(&self, open: Open, rails: Rails<F::Rail>) -> Result<CommId, Error> {
        let place = self.comms.reserve(&self.status)?;
        let id = self.comms.insert(place, open, self.host.now(), &self.status, |open| {
            Ok(Seat::alone(self.groups.insert(Group::alone(rails, open))?))
        })?;
        self.status.add(Tally::CommsOpened, 1);
        self.show_usage();
        Ok(id)
    }
}

/// Sends OPEN, again if need be.
fn send_open<H: Host, R: Rail>(control: &mut Control<H, R>, id: SlotId) -> Result<(), Error> {
    let Some(attempt) = control.attempts.get_mut(id) else { return Ok(()) };
    let Some((lane, made)) = attempt.lane.as_ref() else { return Ok(()) };
    let address = match made {
        Made::Own(rails) => {
            let path = lane.paths.leader();
            rails.get(path.rail).address(path.link)?
        }
        Made::Rider { .. } => LinkAddress { bytes: Vec::new(), fd: None },
    };
    if attempt.open.link.is_empty() {
        // The first is what the other end connects to.
        attempt.open.link.clone_from(&address.bytes);
    }
    let open = attempt.open.clone();
    let stream = attempt.stream;
    control.send(stream, &Frame::Open(open), address.fd);
    Ok(())
}
