//! The accepting side of a connection: makes the receiving lane, replies with RESULT, and returns the comm to its caller when the
//! connecting side is ready.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use trunkline_fabric::{Caps, Fabric, Host, LinkAddress, LinkControl};
use trunkline_proto::comm::receiver::MessageReceiver;
use trunkline_proto::control::{AcceptHandshake, AcceptStep};
use trunkline_proto::counters::ProcessTally;
use trunkline_proto::limits::TOKENS_MAX;
use trunkline_proto::pool::{AcceptPlan, GroupPlace, PlacementError};
use trunkline_proto::slots::SlotId;
use trunkline_proto::wire::frame::{self as wire, ControlFrame, OpenAnswer, ResultFrame};
use trunkline_proto::wire::member::MemberId;
use trunkline_proto::wire::proof::GroupProof;
use trunkline_proto::wire::share::{self, ShareMode, ShareOutcome};

use crate::comm::plan::TransferPlan;
use crate::comm::recv::{self, ReceiveMemory, RecvLane, RecvTables};
use crate::control::connect::RailOptions;
use crate::control::refusal::{refusal_frame, without_comm};
use crate::control::setup::ConnectionSetup;
use crate::control::{AcceptAttempt, ControlPlane, PendingOpen};
use crate::memory::bounces::BounceBuffers;
use crate::memory::slab::MailboxPiece;
use crate::pool::groups::{CommGroup, LockedMember};
use crate::pool::member::{CommNames, CommSide, OpenComm};
use crate::{CommFault, CommId, CommNics, EngineError, in_full};

impl<F: Fabric, H: Host> ConnectionSetup<F, H> {
    /// Makes progress on the requests of a listener; returns a comm once one is ready.
    pub(crate) fn advance_accept(
        &self,
        control: &mut ControlPlane<H, F::Rail>,
        id: SlotId,
    ) -> Result<Option<CommId>, EngineError> {
        let Some(listen) = control.listens.get_mut(id) else { return Err(EngineError::Unknown("listener")) };
        // One connection at a time per listener, so that comms are returned in the order of their OPENs.
        if listen.current.is_none() {
            let nics = listen.nics;
            let Some(stream) = listen.pending.front().map(|asked| asked.stream) else { return Ok(None) };
            // Links cost memory and queue pairs, so unproven peers are limited.
            if !control.may_answer(stream, self.core.host.now()) {
                return Ok(None);
            }
            let next = control.listens.get_mut(id).and_then(|listen| listen.pending.pop_front());
            let Some(asked) = next else { return Ok(None) };
            let refused = refusal_frame(&asked.open, OpenAnswer::NoResources);
            let conn = asked.open.conn;
            let Some(nics) = self.nics_for(control, nics, &asked) else {
                self.core.status.add_tally(ProcessTally::OpensRefused, 1);
                let text = "connection refused: it requests the intra-host NIC, but is from another host, or there is no such NIC";
                control.warn_refusal(&self.core.control_context(), text);
                control.send_frame(stream, &refusal_frame(&asked.open, OpenAnswer::Refused), None);
                return Ok(None);
            };
            match self.answer_open(control, id, &nics, asked) {
                Ok(Some(current)) => {
                    if let Some(listen) = control.listens.get_mut(id) {
                        listen.current = Some(current);
                    }
                    // An accepted connection proves the peer, so its frames cost no budget any
                    // more.
                    control.mark_carrying(stream);
                    self.send_result(control, id)?;
                }
                Ok(None) => return Ok(None),
                Err(error) => {
                    let text = format!("cannot accept a connection: {}", in_full(&error));
                    control.warn_refusal(&self.core.control_context(), &text);
                    control.send_frame(stream, &refused, None);
                    if let Some(listen) = control.listens.get_mut(id) {
                        // Forgotten, so that a repeated OPEN is tried again when resources are
                        // free.
                        listen.seen.forget_connection(stream, conn);
                    }
                    return Err(error);
                }
            }
        }
        self.advance_current(control, id)
    }

    /// Returns the NICs of this end: the listener's, or the intra-host NIC if a process of this host requests it.
    fn nics_for(
        &self,
        control: &ControlPlane<H, F::Rail>,
        nics: CommNics,
        asked: &PendingOpen,
    ) -> Option<CommNics> {
        if !asked.open.near {
            return Some(nics);
        }
        // The intra-host NIC reaches only processes of this host, which a local stream proves.
        self.core.fabric.intra_host_nic().filter(|_| control.is_local(asked.stream)).map(CommNics::from)
    }

    fn advance_current(
        &self,
        control: &mut ControlPlane<H, F::Rail>,
        id: SlotId,
    ) -> Result<Option<CommId>, EngineError> {
        let Some(listen) = control.listens.get_mut(id) else { return Err(EngineError::Unknown("listener")) };
        let Some(current) = listen.current.as_mut() else { return Ok(None) };
        // A CLOSE makes the READY before it unnecessary, because the accept is over either way.
        if self.core.comms.get(current.comm).is_some_and(|comm| comm.peer_closed.load(Ordering::Acquire)) {
            current.machine.on_ready();
        }
        let step = match current.machine.on_time(self.core.host.now()) {
            AcceptStep::Wait if std::mem::take(&mut current.repeat) => current.machine.on_open(),
            step => step,
        };
        // Polled before READY too, because the other end may wait for this one to dial.
        let ready = step == AcceptStep::Ready;
        let up = match self.is_up(current.comm) {
            // The other end had the link, and has closed it again.
            Err(_) if ready => Ok(true),
            up => up.map(|up| up && ready),
        };
        if !matches!(up, Ok(false)) {
            let comm = current.comm;
            let stream = current.stream;
            let conn = current.conn;
            let seat = current.place.seat;
            listen.current = None;
            listen.seen.forget_connection(stream, conn);
            if up.is_ok() {
                // Fails only for a member that has left meanwhile, to which readiness does not matter.
                let _ = control.pool.on_ready(seat);
            }
            return up.map(|_| Some(comm)).inspect_err(|_| {
                self.drop_comm(control, comm);
                // CLOSE is needed because the other end may see no fault on its link.
                control.send_frame(stream, &ControlFrame::Close { id: conn, messages: 0 }, None);
            });
        }
        if current.peer.dead.load(Ordering::Acquire) {
            let comm = current.comm;
            let process = current.peer.process;
            listen.current = None;
            // Nothing was returned to the caller yet, so the comm is dropped silently.
            self.drop_comm(control, comm);
            return Err(CommFault::PeerDead(process).into());
        }
        if step == AcceptStep::SendResult {
            self.send_result(control, id)?;
        }
        Ok(None)
    }

    /// Returns whether the link of a requested comm is up, or never will be because the peer has closed or died.
    fn is_up(&self, comm: CommId) -> Result<bool, EngineError> {
        let Some(slot) = self.core.comms.get(comm) else { return Ok(true) };
        let closed = slot.peer_closed.load(Ordering::Acquire);
        let up = self.core.with_member(comm, |LockedMember { open, rails, .. }| {
            // A link to an ended peer will never be up.
            let over = closed || open.peer.dead.load(Ordering::Acquire);
            match &mut open.side {
                CommSide::Recv(lane) if !over => {
                    let path = lane.paths.get(0);
                    Ok(rails.get_mut(path.rail).poll_link_up(path.link)?)
                }
                _ => Ok(true),
            }
        });
        up.unwrap_or(Ok(true))
    }

    /// Makes this end of a connection as the pool decides; `None` if the request has to be changed or repeated.
    fn answer_open(
        &self,
        control: &mut ControlPlane<H, F::Rail>,
        listen: SlotId,
        nics: &CommNics,
        asked: PendingOpen,
    ) -> Result<Option<AcceptAttempt>, EngineError> {
        // A stream that has ended cannot carry RESULT.
        if let Some(error) = control.stream_fault(asked.stream, asked.peer.process) {
            return Err(error);
        }
        let key = self.receiving_key(nics, asked.peer.process)?;
        let open = &asked.open;
        let mut verdict = control.pool.on_request(&key, open.conn, open.links, &open.share)?;
        if let AcceptPlan::Stale(seat) = verdict {
            // The control stream keeps order, so the abandoned attempt has ended already, and only its membership is left.
            let _ = control.pool.remove_member(seat);
            verdict = control.pool.on_request(&key, open.conn, open.links, &open.share)?;
        }
        let stream = asked.stream;
        let conn = open.conn;
        let open = open.clone();
        let given = match verdict {
            AcceptPlan::Created(place) => {
                return self.answer_own(control, nics, asked, place, true).map(Some);
            }
            AcceptPlan::Alone(place) => return self.answer_own(control, nics, asked, place, false).map(Some),
            AcceptPlan::Joined(place) => match self.answer_in_group(control, asked, place) {
                // The link of the group is in error at this end.
                Err(EngineError::Draining) => Some(ShareOutcome::Retry),
                made => return made.map(Some),
            },
            AcceptPlan::Retry => Some(ShareOutcome::Retry),
            AcceptPlan::Full => Some(ShareOutcome::Full),
            AcceptPlan::NoResources(limit) => return Err(PlacementError::Exhausted(limit).into()),
            AcceptPlan::Later | AcceptPlan::Late | AcceptPlan::Stale(_) => None,
        };
        // The connecting side repeats its request, changed or as it is.
        if let Some(given) = given {
            control.send_frame(stream, &without_comm(&open, OpenAnswer::Accepted, given), None);
        }
        if let Some(listen) = control.listens.get_mut(listen) {
            match given {
                Some(given) => listen.seen.record_refusal(stream, conn, given),
                // Forgotten without a reply, because the repeated OPEN must be treated as new.
                None => listen.seen.forget_connection(stream, conn),
            }
        }
        Ok(None)
    }

    /// Makes links and a receiving lane for an OPEN.
    fn answer_own(
        &self,
        control: &mut ControlPlane<H, F::Rail>,
        nics: &CommNics,
        asked: PendingOpen,
        place: GroupPlace,
        begins: bool,
    ) -> Result<AcceptAttempt, EngineError> {
        let made = self.make_receiver(control, nics, asked, place, begins);
        // The pool has reserved a place, which an error must free.
        made.inspect_err(|_| self.leave_pool(control, place))
    }

    /// Returns the plan of a receiving lane on links of its own, or of a group with `times` their depth, and the number of
    /// receives that they need.
    fn plan_receiver(&self, caps: &Caps, open: &wire::OpenFrame, times: Option<u32>) -> (TransferPlan, u32) {
        let mut plan = TransferPlan::new(caps, &self.core.params, usize::from(open.links))
            .with_depth_factor(times.unwrap_or(1));
        // The NIC pairs messages only if both ends do so.
        plan.matched &= open.matched;
        let recv_depth = match plan.matched {
            // A group uses the whole depth, because each member needs its share.
            true if times.is_some() => caps.depth_max,
            true => TOKENS_MAX as u32,
            false => plan.bounces,
        };
        (plan, recv_depth.min(caps.depth_max))
    }

    fn make_receiver(
        &self,
        control: &mut ControlPlane<H, F::Rail>,
        nics: &CommNics,
        asked: PendingOpen,
        place: GroupPlace,
        begins: bool,
    ) -> Result<AcceptAttempt, EngineError> {
        let PendingOpen { open, fd, stream, peer } = asked;
        let links = usize::from(open.links);
        let caps = self.core.fabric.nics().get(nics.first_nic()).map(|nic| nic.caps);
        let Some(caps) = caps else { return Err(EngineError::Argument("the NIC number is out of range")) };
        let times = begins.then(|| control.pool.config().queue_depth(1, u32::MAX));
        let (plan, recv_depth) = self.plan_receiver(&caps, &open, times);
        let pipeline = self.assign_pipeline(control, nics, place);
        let times = plan.depth_factor(times);
        // The traffic class arrives with the other end's address.
        let manner = RailOptions { recv_depth, asks: false, times, pipeline, class: None };
        let (mut rails, paths) = self.open_paths(nics, links, manner)?;
        let tables = RecvTables::new(paths.are_many())?;
        let links_of = paths.iter().map(|path| path.rail);
        let bounces = recv::bounce_bytes(&plan);
        let bounces = Arc::new(BounceBuffers::new(&rails, links_of, bounces, plan.bounces)?);
        let path = paths.lead_path();
        let link = path.link;
        let rail = rails.get_mut(path.rail);
        let theirs = open.link.clone();
        rail.connect(link, LinkAddress { bytes: open.link, fd })?;
        // The address that RESULT contains: it may depend on the connecting side.
        let own = rail.link_address(link)?;
        let proof = GroupProof::of_links([(theirs.as_slice(), own.bytes.as_slice())]);
        let receiver = MessageReceiver::new();
        let regions_max = self.core.params.regions_max as usize;
        let ends = CommNames { stream, remote: open.conn, attempt: None };
        let (lane, fins, group) = if begins {
            // The mailbox is a slot of the group's slab, because further members will use it too.
            let mut group = CommGroup::new_receiving(place.group, rails, &paths, plan, Arc::clone(&bounces));
            let (lot, fins) = group.take_mailbox()?;
            (Some(lot), fins, Err(group))
        } else {
            let fins = MailboxPiece::register_own(&rails, recv::FINS_BYTES)?;
            (None, fins, Ok(rails))
        };
        let own_memory = ReceiveMemory { bounces, fins };
        let mut receiving =
            RecvLane::new(tables, paths, plan, receiver, open.mailbox, own_memory, regions_max);
        let mut group = group;
        match &mut group {
            // Posted before RESULT, because the peer may send as soon as it has the address.
            Ok(rails) => receiving.post_bounces(rails, 0)?,
            Err(group) => group.post_bounces(&mut receiving)?,
        }
        let mut member = OpenComm::new(CommSide::Recv(receiving), peer.clone(), ends);
        (member.place, member.lot) = (Some(place), lane);
        let (comm, given) = match group {
            Ok(rails) => (self.core.install_comm(member, rails)?, ShareOutcome::Alone),
            Err(group) => {
                let lane = self.core.groups.insert(group)?;
                control.riding.insert(place.group, lane);
                // The proof lets both ends check that they mean the same links.
                control.pool.on_wired(place.group, proof)?;
                let comm = self.add_receiver(control, lane, member)?;
                (comm, self.group_answer(comm, open.share.mode, Some(proof))?)
            }
        };
        let machine = AcceptHandshake::new(self.core.host.now());
        let conn = open.conn;
        let turn = open.share.turn;
        Ok(AcceptAttempt { machine, comm, conn, turn, given, place, stream, peer, repeat: false })
    }

    /// Makes a receiving lane on the links of a group.
    fn answer_in_group(
        &self,
        control: &mut ControlPlane<H, F::Rail>,
        asked: PendingOpen,
        place: GroupPlace,
    ) -> Result<AcceptAttempt, EngineError> {
        let made = self.make_riding_receiver(control, asked, place);
        made.inspect_err(|_| self.leave_pool(control, place))
    }

    fn make_riding_receiver(
        &self,
        control: &mut ControlPlane<H, F::Rail>,
        asked: PendingOpen,
        place: GroupPlace,
    ) -> Result<AcceptAttempt, EngineError> {
        let PendingOpen { open, stream, peer, .. } = asked;
        let unknown = EngineError::Unknown("group of queue pairs");
        let Some(&lane) = control.riding.get(&place.group) else { return Err(unknown) };
        let member = {
            // Waits for the lane: joining is not on a message's path.
            let mut held = self.core.groups.lock_lane(lane);
            let Some(group) = held.as_mut() else { return Err(unknown) };
            let Some((common, rails)) = group.shared_resources() else { return Err(unknown) };
            let Some(receiving) = &common.receiving else { return Err(unknown) };
            let bounces = Arc::clone(&receiving.bounces);
            let Some(paths) = self.paths_of(common, rails, false) else { return Err(EngineError::Draining) };
            let tables = RecvTables::new(paths.are_many());
            let tables = tables.inspect_err(|_| paths.release_links(rails))?;
            let (lot, fins) = common.take_mailbox(rails).inspect_err(|_| paths.release_links(rails))?;
            let receiver = MessageReceiver::new();
            let regions_max = self.core.params.regions_max as usize;
            let lane = RecvLane::new(
                tables,
                paths,
                common.plan,
                receiver,
                open.mailbox,
                ReceiveMemory { bounces, fins },
                regions_max,
            );
            let ends = CommNames { stream, remote: open.conn, attempt: None };
            let mut member = OpenComm::new(CommSide::Recv(lane), peer.clone(), ends);
            (member.place, member.lot) = (Some(place), Some(lot));
            member
        };
        let comm = self.add_receiver(control, lane, member)?;
        let given = self.group_answer(comm, open.share.mode, None)?;
        let machine = AcceptHandshake::new(self.core.host.now());
        let conn = open.conn;
        let turn = open.share.turn;
        Ok(AcceptAttempt { machine, comm, conn, turn, given, place, stream, peer, repeat: false })
    }

    /// Returns the group fields of RESULT for a comm; with a proof for the first member.
    fn group_answer(
        &self,
        comm: CommId,
        mode: ShareMode,
        proof: Option<GroupProof>,
    ) -> Result<ShareOutcome, EngineError> {
        let bits = self.core.with_member(comm, |turn| turn.open.member).unwrap_or(0);
        let member = MemberId::from_bits(bits).ok_or(EngineError::Unknown("connection"))?;
        match (mode, proof) {
            (ShareMode::Create(epoch) | ShareMode::First(epoch), Some(proof)) => {
                // The creator reports the proof; members that join know it already.
                Ok(ShareOutcome::Created { epoch, proof, member })
            }
            (ShareMode::Join(epoch, _), None) => Ok(ShareOutcome::Joined { epoch, member }),
            _ => Ok(ShareOutcome::Alone),
        }
    }

    fn send_result(&self, control: &mut ControlPlane<H, F::Rail>, id: SlotId) -> Result<(), EngineError> {
        let current = control.listens.get(id).and_then(|listen| listen.current.as_ref());
        let Some(&AcceptAttempt { comm, conn, turn, given, stream, .. }) = current else { return Ok(()) };
        let joined = matches!(given, ShareOutcome::Joined { .. });
        let reply = self.core.with_member(comm, |LockedMember { open, rails, .. }| {
            let CommSide::Recv(lane) = &open.side else { return Ok(None) };
            let path = lane.paths.get(0);
            let address = match joined {
                // The other end has the address already.
                true => LinkAddress { bytes: Vec::new(), fd: None },
                false => rails.get(path.rail).link_address(path.link)?,
            };
            let matched = lane.plan.matched;
            let reply = ResultFrame {
                conn,
                answer: OpenAnswer::Accepted,
                matched,
                remote_len: lane.plan.remote_len,
                comm: comm.to_bits(),
                fins: lane.fin_region(0),
                // With pairing by the NIC there are no eager messages.
                eager_max: if matched { 0 } else { lane.plan.eager_max },
                eager_credits: lane.plan.eager_credits,
                link: address.bytes,
                share: share::ShareAnswer { given, turn },
            };
            Ok::<_, EngineError>(Some((reply, address.fd)))
        });
        if let Some((reply, fd)) = reply.transpose()?.flatten() {
            control.send_frame(stream, &ControlFrame::Result(reply), fd);
        }
        Ok(())
    }
}
