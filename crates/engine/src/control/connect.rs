//! The connecting side: makes the sending lane, sends OPEN, and opens the comm when RESULT arrives.

use trunkline_fabric::{Fabric, Host, LinkAddress, LinkControl, Rail, RailConfig, RecvOrder};
use trunkline_proto::comm::sender::MessageSender;
use trunkline_proto::control::{ConnectHandshake, ConnectStep};
use trunkline_proto::limits::LINKS_MAX;
use trunkline_proto::link::LinkLife;
use trunkline_proto::nics;
use trunkline_proto::pool::config::TrafficHint;
use trunkline_proto::pool::{AnswerStep, ConnectPlan, GroupPlace};
use trunkline_proto::slots::SlotId;
use trunkline_proto::time::Duration;
use trunkline_proto::wire::cts::RecordLines;
use trunkline_proto::wire::frame::{ControlFrame, OpenAnswer, OpenFrame, RemoteRegion, ResultFrame};
use trunkline_proto::wire::handle::ConnectionHandle;
use trunkline_proto::wire::proof;
use trunkline_proto::wire::share::{ShareMode, ShareRequest};

use crate::comm::plan::TransferPlan;
use crate::comm::send::SendLane;
use crate::comm::send_tables::SendTables;
use crate::control::setup::ConnectionSetup;
use crate::control::{ATTEMPTS_MAX, ConnectAttempt, ControlPlane};
use crate::engine::core::EngineCore;
use crate::link::path::{CommPaths, LinkPath, LinkProbe, NO_LINK};
use crate::link::rails::GroupRails;
use crate::memory::slab::MailboxPiece;
use crate::pool::member::{CommNames, CommSide, OpenComm};
use crate::pool::membership::AttemptLinks;
use crate::{CommId, CommNics, EngineError, EngineParams};

/// Options for the rails of a comm.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RailOptions {
    /// Posted receives of a link.
    pub(crate) recv_depth: u32,
    /// For the end that connects, and sends.
    pub(crate) asks: bool,
    /// The factor of the queue depths.
    pub(crate) times: u32,
    /// The pipeline for the first link, where its NIC has several.
    pub(crate) pipeline: Option<u32>,
    /// The traffic class.
    pub(crate) class: Option<u8>,
}

impl<F: Fabric, H: Host> ConnectionSetup<F, H> {
    /// Opens the rails of a comm with this many links, and makes the first link.
    pub(crate) fn open_paths(
        &self,
        nics: &CommNics,
        links: usize,
        manner: RailOptions,
    ) -> Result<(GroupRails<F::Rail>, CommPaths), EngineError> {
        let RailOptions { recv_depth, asks, times, pipeline, class: traffic_class } = manner;
        let EngineParams { depth, peer_time, rail_time, .. } = self.core.params;
        // Without another link, the rail time limit is at least the peer time limit, because nothing is gained
        // by giving the link up earlier.
        let rail_time = if links > 1 { rail_time } else { rail_time.max(peer_time) };
        // Bounce buffers are interchangeable, so receives may complete in any order.
        let recv_order = RecvOrder::Any;
        // Fewer links than NICs: only the first NICs are opened.
        let used = &nics.numbers()[..nics.numbers().len().min(links)];
        let depth_of = |at: usize| {
            let most = self.core.fabric.nics().get(used[at]).map_or(depth, |nic| nic.caps.depth_max);
            depth.saturating_mul(times).min(most)
        };
        let open = |at: usize| {
            // Link `k` is on NIC `k` modulo their number.
            let links = (links - at).div_ceil(used.len()) as u32;
            let depth = depth_of(at);
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
            Ok(self.core.fabric.open_rail(used[at], &config)?)
        };
        let mut rails = GroupRails::new(
            open(0)?,
            (1..used.len()).map(open).collect::<Result<_, EngineError>>()?,
            depth_of(0),
        );
        rails.pipeline = pipeline;
        let now = self.core.host.now();
        // Only the first link is made now; the others follow when the comm is polled.
        let first = rails.create_link(0, 0)?;
        let path = |at: usize| {
            let (link, life) = match at {
                0 => (first, LinkLife::new_first(asks, now)),
                _ => (NO_LINK, LinkLife::new_further(asks, now)),
            };
            let rail = at % used.len();
            LinkPath { rail, link, nic: used[rail], life, leaving: None, proof: LinkProbe::None }
        };
        Ok((rails, CommPaths::new(path(0), (1..links).map(path).collect())))
    }

    /// Starts an attempt; `None` if the peer is too busy to be dialled right now.
    pub(crate) fn begin_connect(
        &self,
        control: &mut ControlPlane<H, F::Rail>,
        nics: CommNics,
        handle: &ConnectionHandle,
        traffic: TrafficHint,
    ) -> Result<Option<SlotId>, EngineError> {
        let EngineCore { fabric, host, params, .. } = &self.core;
        // The process cannot accept another stream now.
        let Some(stream) = control.stream_to(host, handle.process, &handle.address)? else {
            return Ok(None);
        };
        // Both must be true, because the stream proves the same host, and the handle that the listener has such
        // a NIC.
        let near = fabric.intra_host_nic().filter(|_| control.is_local(stream) && handle.near);
        let (nics, remote) = match near {
            Some(near) => (CommNics::from(near), nics::NicList::NEAR),
            None => (nics, handle.nics),
        };
        // Enough links for the end with more NICs.
        let rails = usize::from(remote.len()).max(nics.numbers().len());
        let each = match params.p2p_links_per_rail {
            0 => params.links_per_rail,
            p2p if handle.p2p => p2p,
            _ => params.links_per_rail,
        };
        let links = (rails * each as usize).min(LINKS_MAX);
        let open = OpenFrame {
            conn: 0,
            listen: handle.listen,
            nonce: handle.nonce,
            // Set when the pool has chosen the links.
            matched: false,
            near: near.is_some(),
            links: links as u8,
            mailbox: RemoteRegion { key: 0, addr: 0 },
            link: Vec::new(),
            share: ShareRequest { mode: ShareMode::Alone, turn: 0 },
        };
        let attempt = ConnectAttempt {
            machine: ConnectHandshake::new(host.now()),
            stream,
            process: handle.process,
            address: handle.address.clone(),
            redials: 0,
            nics,
            remote,
            wish: self.group_preference(&nics, links).with_traffic(traffic),
            place: None,
            open,
            lane: None,
            reply: None,
            joined: false,
            comm: None,
            closed: false,
            unasked: Duration::default(),
        };
        let limit = |_| EngineError::Exhausted { what: "connection attempts", limit: ATTEMPTS_MAX };
        let id = control.attempts.insert(attempt).map_err(limit)?;
        // An error must not leave the attempt behind, because the caller gets no handle to it.
        if let Err(error) = self.send_open(control, id) {
            self.forget_attempt(control, id);
            return Err(error);
        }
        Ok(Some(id))
    }

    /// Makes progress on an attempt; returns the comm once it is open. After an error the attempt is unusable.
    pub(crate) fn advance_connect(
        &self,
        control: &mut ControlPlane<H, F::Rail>,
        id: SlotId,
    ) -> Result<Option<CommId>, EngineError> {
        let Some(attempt) = control.attempts.get_mut(id) else {
            return Err(EngineError::Unknown("connection attempt"));
        };
        let stream = attempt.stream;
        let process = attempt.process;
        // The accepting side closed while this end was still connecting.
        if attempt.closed {
            return Err(crate::CommFault::PeerClosed(process).into());
        }
        let asked = attempt.place.is_some();
        let step = attempt.machine.on_time(self.core.host.now());
        let answered = attempt.reply.is_some();
        let joined = attempt.joined;
        if !answered || joined {
            let redialled = !answered && !joined && control.redial_attempt(&self.core.host, id);
            if let Some(error) = control.stream_fault(stream, process).filter(|_| !redialled) {
                return Err(error);
            }
            // The OPEN was sent on the lost stream, so it is repeated on the new one.
            if redialled && asked {
                send_open(control, id)?;
            } else if !asked {
                self.send_open(control, id)?;
            } else if step == ConnectStep::SendOpen {
                send_open(control, id)?;
            }
        }
        if answered && (joined || self.connect_from_reply(control, id)?) {
            self.open_comm(control, id)
        } else {
            Ok(None)
        }
    }

    /// Makes this end as the pool decides, and sends OPEN, unless the attempt has to wait.
    fn send_open(&self, control: &mut ControlPlane<H, F::Rail>, id: SlotId) -> Result<(), EngineError> {
        let Some((ask, wish)) = self.place_attempt(control, id)? else { return Ok(()) };
        let Some(share) = ask.to_request(wish.turn) else { return Ok(()) };
        let Some(attempt) = control.attempts.get_mut(id) else { return Ok(()) };
        let nics = attempt.nics;
        let links = usize::from(wish.links);
        let class = wish.class;
        let (place, made) = match ask {
            ConnectPlan::Alone(place) | ConnectPlan::Rather(place) => {
                (place, self.make_own(&nics, links, class, None, self.assign_pipeline(control, &nics, place)))
            }
            ConnectPlan::Create(place, _) | ConnectPlan::First(place, _) => {
                let times = control.pool.config().queue_depth(1, u32::MAX);
                (
                    place,
                    self.make_own(
                        &nics,
                        links,
                        class,
                        Some(times),
                        self.assign_pipeline(control, &nics, place),
                    ),
                )
            }
            ConnectPlan::Join(place, ..) => (place, self.make_group_member(control, place.group)),
            ConnectPlan::Wait => return Ok(()),
        };
        let (lane, made) = match made {
            Ok(made) => made,
            Err(error) => {
                // The place must not stay reserved without links.
                self.leave_pool(control, place);
                // A link of the group is being replaced.
                return if matches!(error, EngineError::Draining) { Ok(()) } else { Err(error) };
            }
        };
        let now = self.core.host.now();
        let Some(attempt) = control.attempts.get_mut(id) else { return Ok(()) };
        (attempt.place, attempt.machine) = (Some(place), ConnectHandshake::new(now));
        (attempt.open.matched, attempt.open.mailbox) = (lane.plan.matched, lane.mailbox_region(0));
        (attempt.open.conn, attempt.open.share) = (id.to_bits(), share);
        // A new link has a new address, which `send_open` fills in.
        attempt.open.link.clear();
        attempt.lane = Some((lane, made));
        send_open(control, id)
    }

    /// Assigns the pipeline for the first link of a new group, where its NIC has several.
    pub(crate) fn assign_pipeline(
        &self,
        control: &mut ControlPlane<H, F::Rail>,
        nics: &CommNics,
        place: GroupPlace,
    ) -> Option<u32> {
        let pipelines = self.core.fabric.nics().get(nics.first_nic()).map_or(1, |nic| nic.caps.pipelines);
        control.pool.place_on_pipeline(place.group, pipelines)
    }

    /// Makes rails, links and a lane for a comm of its own, or for the first member of a group whose queues are `group` times as
    /// deep.
    fn make_own(
        &self,
        nics: &CommNics,
        links: usize,
        class: Option<u8>,
        group: Option<u32>,
        pipeline: Option<u32>,
    ) -> Result<(SendLane, AttemptLinks<F::Rail>), EngineError> {
        let EngineCore { fabric, params, .. } = &self.core;
        let caps = fabric.nics().get(nics.first_nic()).map(|nic| nic.caps);
        let plan = TransferPlan::new(
            &caps.ok_or(EngineError::Argument("the NIC number is out of range"))?,
            params,
            links,
        );
        let manner =
            RailOptions { recv_depth: 0, asks: true, times: plan.depth_factor(group), pipeline, class };
        let (rails, paths) = self.open_paths(nics, links, manner)?;
        // The mailbox size depends on the number of links, because records have two lines for several.
        let mailbox = MailboxPiece::register_own(&rails, RecordLines::for_links(links).mailbox_bytes())?;
        let plan = plan.with_depth_factor(group.unwrap_or(1));
        let sender = MessageSender::new(0, 0);
        let tables = SendTables::new(paths.are_many())?;
        let lane = SendLane::new(tables, paths, plan, sender, mailbox, params.regions_max as usize);
        Ok((lane, AttemptLinks::Own(rails)))
    }

    /// Connects the link to the address in the reply; false if there is nothing to connect.
    fn connect_from_reply(
        &self,
        control: &mut ControlPlane<H, F::Rail>,
        id: SlotId,
    ) -> Result<bool, EngineError> {
        let Some(attempt) = control.attempts.get_mut(id) else { return Ok(false) };
        let (Some((reply, _)), Some(place)) = (&attempt.reply, attempt.place) else { return Ok(false) };
        let share = reply.share;
        let link = reply.link.clone();
        match attempt.machine.on_result(reply.answer) {
            ConnectStep::Connect => {}
            ConnectStep::Refused(OpenAnswer::NoResources) => return Err(EngineError::PeerExhausted),
            ConnectStep::Refused(_) => return Err(EngineError::Refused),
            ConnectStep::Wait | ConnectStep::SendOpen | ConnectStep::SendReady => {
                // Dropped, so that a repeated RESULT is processed as new.
                attempt.reply = None;
                return Ok(false);
            }
        }
        match control.pool.on_answer(place.seat, &share) {
            AnswerStep::Wire => self.connect_link(control, id, &link)?,
            AnswerStep::Go => {}
            AnswerStep::Again(wish) => {
                self.withdraw_ask(control, id, wish);
                return Ok(false);
            }
            AnswerStep::Failed(fault) => return Err(fault.into()),
            AnswerStep::Known => return Ok(false),
        }
        let Some(attempt) = control.attempts.get_mut(id) else { return Ok(false) };
        if let (Some((reply, _)), Some((lane, _))) = (&attempt.reply, &mut attempt.lane) {
            // The balancer needs the speed of the path before the first message.
            let (speed, latency) = self.core.nic_speed(lane.paths.get(0).nic);
            lane.link_up(0, speed, latency, self.core.host.now());
            self.apply_reply(lane, reply);
        }
        attempt.joined = true;
        Ok(true)
    }

    /// Connects the link of this end to the link of the other end.
    fn connect_link(
        &self,
        control: &mut ControlPlane<H, F::Rail>,
        id: SlotId,
        link: &[u8],
    ) -> Result<(), EngineError> {
        let Some(attempt) = control.attempts.get_mut(id) else { return Ok(()) };
        let (Some((_, fd)), Some((lane, AttemptLinks::Own(rails)))) = (&mut attempt.reply, &mut attempt.lane)
        else {
            return Ok(());
        };
        let address = LinkAddress { bytes: link.to_vec(), fd: fd.take() };
        let links = lane.paths.len();
        let path = lane.paths.lead_path();
        let rail = rails.get_mut(path.rail);
        let link_id = path.link;
        rail.connect(link_id, address)?;
        // Only a single link copies at once, because with several, an operation may have to be repeated.
        if links == 1 {
            lane.plan.copied_max = rail.copied_max(link_id).min(lane.plan.message_max);
            // A poll costs a call here, so copied messages are sent without one.
            if rail.poll_is_call(link_id) {
                lane.plan.blind_max = lane.plan.blind_max.max(lane.plan.copied_max);
            }
        }
        Ok(())
    }

    /// Handles a link that is up: other comms may join its group, if it is to have any.
    fn on_link_up(&self, control: &mut ControlPlane<H, F::Rail>, id: SlotId) -> Result<(), EngineError> {
        let Some(ConnectAttempt { open, place: Some(place), reply: Some((reply, _)), lane, .. }) =
            control.attempts.get_mut(id)
        else {
            return Ok(());
        };
        // Members that join find the link connected, and have nothing to prove.
        if matches!(lane, Some((_, AttemptLinks::Own(_)))) {
            let proof = proof::GroupProof::of_links([(open.link.as_slice(), reply.link.as_slice())]);
            control.pool.on_wired(place.group, proof)?;
        }
        Ok(())
    }

    /// Opens the comm, once the link is up.
    fn open_comm(
        &self,
        control: &mut ControlPlane<H, F::Rail>,
        id: SlotId,
    ) -> Result<Option<CommId>, EngineError> {
        let Some(attempt) = control.attempts.get_mut(id) else { return Ok(None) };
        let stream = attempt.stream;
        let process = attempt.process;
        let up = match &mut attempt.lane {
            Some((lane, AttemptLinks::Own(rails))) => {
                let path = lane.paths.lead_path();
                rails.get_mut(path.rail).poll_link_up(path.link)?
            }
            // The first member of the group has checked that the link is up.
            _ => true,
        };
        if !up {
            return Ok(None);
        }
        self.on_link_up(control, id)?;
        // On an error, the attempt's resources are freed together with the attempt.
        let Some(peer) = control.stream_peer(stream) else {
            return Err(crate::CommFault::PeerDead(process).into());
        };
        let Some(attempt) = control.attempts.get_mut(id) else { return Ok(None) };
        let (Some((reply, _)), Some((lane, made))) = (attempt.reply.take(), attempt.lane.take()) else {
            return Err(EngineError::Unknown("connection attempt"));
        };
        let place = attempt.place.take();
        let ends = CommNames { stream, remote: reply.comm, attempt: Some(id) };
        let mut open = OpenComm::new(CommSide::Send(lane), peer, ends);
        open.place = place;
        let comm = self.add_sender(control, open, made, &reply).inspect_err(|_| {
            // The comm is not open, so its place is freed.
            if let Some(place) = place {
                self.leave_pool(control, place);
            }
        })?;
        // After the comm is open, because the accepting side may write records as soon as it gets READY.
        control.send_frame(stream, &ControlFrame::Ready { comm: reply.comm, conn: id.to_bits() }, None);
        if let Some(attempt) = control.attempts.get_mut(id) {
            attempt.comm = Some(comm);
        }
        Ok(Some(comm))
    }

    fn apply_reply(&self, lane: &mut SendLane, reply: &ResultFrame) {
        let links = lane.paths.len();
        // Both ends must agree, and the reply contains the other end's choice.
        lane.plan.matched = reply.matched && lane.plan.matched;
        lane.plan.remote_len = reply.remote_len;
        // The smaller of both limits holds.
        let eager_max = reply.eager_max.min(lane.plan.eager_max);
        let credits = reply.eager_credits.min(lane.plan.eager_credits);
        // Without eager messages there is nothing to spend credits on.
        let credits = if eager_max == 0 { 0 } else { credits };
        (lane.plan.eager_max, lane.plan.eager_credits) = (eager_max, credits);
        let sender = MessageSender::new(eager_max, credits).with_links(links);
        let sender = if lane.plan.link_order { sender } else { sender.without_order() };
        lane.apply_peer_answer(sender, reply.fins);
    }
}

/// Sends OPEN, also repeatedly.
fn send_open<H: Host, R: Rail>(control: &mut ControlPlane<H, R>, id: SlotId) -> Result<(), EngineError> {
    let Some(attempt) = control.attempts.get_mut(id) else { return Ok(()) };
    let Some((lane, made)) = attempt.lane.as_ref() else { return Ok(()) };
    let address = match made {
        AttemptLinks::Own(rails) => {
            let path = lane.paths.lead_path();
            rails.get(path.rail).link_address(path.link)?
        }
        // Members use the group's links, so their OPEN contains no address.
        AttemptLinks::Rider { .. } => LinkAddress { bytes: Vec::new(), fd: None },
    };
    // Filled once, because a repeated OPEN must contain the same address.
    if attempt.open.link.is_empty() {
        // The other end connects its first link to this address.
        attempt.open.link.clone_from(&address.bytes);
    }
    let open = attempt.open.clone();
    let stream = attempt.stream;
    control.send_frame(stream, &ControlFrame::Open(open), address.fd);
    Ok(())
}
