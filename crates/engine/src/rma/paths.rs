//! The paths of a context to a member, from their dial to their loss. The context dials on its first operation towards a member,
//! and continues with the replies of the member. Both ends leave a path before its lost operations are posted again over other
//! paths; a member is lost with its last path, or with its process. Called when a path fails, and then by each poll until the
//! recovery is complete. The rules are in `trunkline_proto::rma::{paths, redo}`. Nothing here begins an operation.

use trunkline_fabric::{LinkAddress, LinkError, OpStatus, PassedFd, Rail};
use trunkline_proto::id::ProcessId;
use trunkline_proto::reserve::{OutOfMemory, try_grow};
use trunkline_proto::rma::PathId;
use trunkline_proto::rma::incoming::PathDeliveryReport;
use trunkline_proto::rma::paths::{PathStage, PathStep};
use trunkline_proto::rma::redo::{RedoQueue, RedoWork};
use trunkline_proto::slots::SlotId;
use trunkline_proto::time::{Duration, Instant};
use trunkline_proto::wire::dial::{DialMessage, DialRefusal, EPOCHS_MAX, MemberProof, RemoteHeap as Told};
use trunkline_proto::wire::rma::RmaMessage;

use crate::rma::context::{LinkDialId, RmaContext};
use crate::rma::context_rails::LinkOwner;
use crate::rma::error::{LossCause, RmaError};
use crate::rma::heaps::reserve_learned;
use crate::rma::job::MemberRank;
use crate::rma::operations::{OpRecord, WriteNotice};
use crate::rma::peer::{MemberAtomics, RemoteMember};

/// Polls per read of the clock, because reading it for each poll is too expensive.
const TURNS: u32 = 64;
/// Checks of a link per `rail_time`, the time after which a silent link counts as failed.
const LOOKS_IN_RAIL_TIME: u64 = 16;

impl<R: Rail> RmaContext<R> {
    /// Returns whether a link to a member carries traffic; `None` if the member was not dialled.
    pub(super) fn member_readiness(&mut self, member: MemberRank) -> Result<Option<bool>, RmaError> {
        let Some(&at) = self.known.get(&member) else { return Ok(None) };
        let peer = &self.peers[at as usize];
        match peer.lost {
            Some(lost) => Err(RmaError::Lost { member, lost }),
            None => Ok(Some(!peer.paths.are_coming())),
        }
    }

    /// Creates the links to a member. Returns the DIAL message of each.
    pub(super) fn dial_member(
        &mut self,
        member: MemberRank,
        control: SlotId,
        paths: usize,
        proof: MemberProof,
        me: MemberRank,
    ) -> Result<Vec<(DialMessage, Option<PassedFd>)>, RmaError> {
        let at = self.peers.len() as u32;
        // Allocates all memory first, because the later steps would have to be undone.
        try_grow(&mut self.peers, 1)?;
        self.operations.grow_peers(at + 1)?;
        if paths > 1 {
            self.keep_copies()?;
        }
        let mut peer = RemoteMember::new(member, control, paths, self.stream, self.order)?;
        // Two tables, because NIC and process number their replies separately.
        peer.on_nic = self.native.is_some().then(|| MemberAtomics::new(self.stream));
        let mut words = Vec::new();
        for path in (0..paths as u8).filter_map(PathId::new) {
            let stream = self.stream;
            let generation = self.generation;
            let id = LinkDialId { stream, generation, peer: at, path }.to_bits();
            // Round robin over the rails, as the member does with its own.
            let made = self.rails.create_link(path.index() % self.rails.rail_count());
            let (link, address) = match made {
                Ok(made) => made,
                Err(error) => {
                    // The links were not dialled, so the member does not know them.
                    peer.links.iter().for_each(|link| self.rails.discard_link(link));
                    return Err(error);
                }
            };
            let path = path.index() as u8;
            let bytes = address.bytes;
            words.push((DialMessage::Dial { id, proof, member: me, stream, path, link: bytes }, address.fd));
            peer.links.push(link);
        }
        // Owners are set only when all links exist, because before, an error drops the links again.
        for (path, link) in peer.links.iter().enumerate() {
            let owner = PathId::new(path as u8).map(|path| LinkOwner { peer: at, path });
            self.rails.set_owner(link, owner);
        }
        self.peers.push(peer);
        self.known.insert(member, at);
        Ok(words)
    }

    /// Returns the peer that a message names, if it belongs to this context and the message arrived on the control stream of the
    /// peer.
    fn find_dialled(&mut self, control: SlotId, id: u64) -> Option<(LinkDialId, &mut RemoteMember)> {
        // The generation excludes replies to an earlier context of the slot.
        let dialled = LinkDialId::from_bits(id).filter(|dialled| dialled.generation == self.generation)?;
        let peer = self.peers.get_mut(dialled.peer as usize)?;
        let is_its =
            peer.control == control && peer.lost.is_none() && dialled.path.index() < peer.links.len();
        is_its.then_some((dialled, peer))
    }

    /// Handles TAKEN: the member has made the other end of a link.
    pub(super) fn on_taken(
        &mut self,
        control: SlotId,
        id: u64,
        served: u64,
        receives: u32,
        heaps: Vec<Told>,
        address: LinkAddress,
    ) {
        let Some((LinkDialId { peer: at, path, .. }, peer)) = self.find_dialled(control, id) else { return };
        // A repeated TAKEN, or one for a path that was given up.
        if !peer.paths.on_taken(path) {
            return;
        }
        let link = &mut peer.links[path.index()];
        link.served = served;
        link.credit = receives;
        link.heaps = heaps;
        let member = peer.member;
        let mut learned = self.learned.iter().filter(|((of, _), _)| *of == member);
        let link = &mut self.peers[at as usize].links[path.index()];
        // Descriptions that arrived before the link are applied now.
        let known = learned.try_for_each(|((_, number), told)| link.set_heap(path, *number, told));
        let connected = known.map_err(LinkError::Memory);
        let connected = connected.and_then(|()| self.rails.connect_link(link, address));
        if let Err(error) = connected {
            self.fail_path(at, path, OpStatus::PeerDead);
            // A link that cannot be connected is of no other use.
            self.destroy_link(at, path);
            if let LinkError::Memory(lack) = error
                && let Some(peer) = self.peers.get_mut(at as usize)
                && matches!(peer.lost, Some(LossCause::Rails { .. }))
            {
                // The cause is a lack of memory here, not the peer.
                peer.lost = Some(LossCause::NoMemory(lack));
            }
        }
    }

    /// Handles a heap description of a member.
    ///
    /// # Errors
    /// [`OutOfMemory`]; the call may be repeated.
    pub(super) fn set_member_heap(
        &mut self,
        member: MemberRank,
        number: u8,
        told: &[Told],
    ) -> Result<(), OutOfMemory> {
        // Reserved first: the links below must not be changed if the map cannot grow.
        reserve_learned(&mut self.learned)?;
        if let Some(&at) = self.known.get(&member) {
            for (at, link) in self.peers[at as usize].links.iter_mut().enumerate() {
                if let Some(path) = PathId::new(at as u8) {
                    link.set_heap(path, number, told)?;
                }
            }
        }
        self.learned.insert((member, number), told.to_vec());
        Ok(())
    }

    /// Handles REFUSED: the member did not make the other end, or does not serve it any more.
    pub(super) fn on_refused(&mut self, control: SlotId, id: u64, why: DialRefusal) {
        let Some((LinkDialId { peer: at, path, .. }, peer)) = self.find_dialled(control, id) else { return };
        match why {
            // No other path of this member is usable after a protocol violation.
            DialRefusal::Protocol => self.lose_member(at, path, LossCause::Refused(why)),
            _ => match peer.paths.on_refused(path) {
                PathStep::Nothing => {}
                PathStep::Leave { .. } => self.destroy_link(at, path),
                PathStep::Last => self.lose_member(at, path, LossCause::Refused(why)),
            },
        }
    }

    /// Handles a delivery report: the member has left the other end of a link.
    pub(super) fn on_delivery_report(&mut self, control: SlotId, id: u64, standing: PathDeliveryReport) {
        let Some((LinkDialId { peer: at, path, .. }, peer)) = self.find_dialled(control, id) else { return };
        // A delivery report for a link that was never accepted is a protocol violation.
        if peer.paths.path_stage(path) == PathStage::Asked {
            return self.lose_member(at, path, LossCause::Protocol);
        }
        let step = peer.paths.on_delivery_report(path, standing);
        self.apply_step(at, path, step, OpStatus::PeerDead);
    }

    /// Handles the failure of a link at this end.
    #[cold]
    pub(super) fn fail_path(&mut self, at: u32, path: PathId, status: OpStatus) {
        let peer = &mut self.peers[at as usize];
        // Later failures of the links add nothing.
        if peer.lost.is_some() {
            return;
        }
        // An error of the operation, not of the link, would recur on any path.
        if !status.is_of_link() {
            return self.lose_member(at, path, LossCause::Rails { rail: path.index(), status });
        }
        // A link that is only dialled has no state at the member yet.
        if peer.paths.path_stage(path) != PathStage::Asked {
            let step = peer.paths.on_failed(path);
            self.apply_step(at, path, step, status);
        }
    }

    pub(super) fn apply_step(&mut self, at: u32, path: PathId, step: PathStep, status: OpStatus) {
        let peer = &mut self.peers[at as usize];
        let link = &peer.links[path.index()];
        match step {
            PathStep::Nothing => {}
            PathStep::Leave { say } => {
                // Put into error first, so that nothing lands after the member's report.
                self.rails.fail_link(link);
                if say {
                    self.words.push((peer.control, DialMessage::Down { served: link.served }));
                }
                self.mark_busy(at);
            }
            PathStep::Last => self.lose_member(at, path, LossCause::Rails { rail: path.index(), status }),
        }
    }

    /// Marks a peer as having deferred work.
    pub(super) fn mark_busy(&mut self, at: u32) {
        if !self.busy.contains(&at) {
            self.busy.push(at);
        }
    }

    /// Handles the end of a control stream, and with it of the process at its other end.
    pub(super) fn on_lost(&mut self, control: SlotId, processes: &[ProcessId]) {
        for at in 0..self.peers.len() {
            let peer = &self.peers[at];
            if peer.control == control
                && let Some(&process) = processes.get(peer.member as usize)
                && let Some(path) = PathId::new(0)
            {
                self.lose_member(at as u32, path, LossCause::Dead(process));
                // Overwrites an earlier cause, because links may have failed before, which proved
                // nothing about the process.
                self.peers[at].lost = Some(LossCause::Dead(process));
            }
        }
    }

    /// Gives a member up: its pending operations have failed, and no new one is accepted.
    #[cold]
    pub(super) fn lose_member(&mut self, at: u32, path: PathId, lost: LossCause) {
        let Some(peer) = self.peers.get_mut(at as usize).filter(|peer| peer.lost.is_none()) else { return };
        peer.lost = Some(lost);
        let asked = peer.on_nic.iter_mut().chain([&mut peer.asked]);
        // Pending operations end here, so late replies must not end them again.
        asked.flat_map(|asked| asked.found.iter_mut()).for_each(|found| found.1 = None);
        // Deferred work is dropped: its operations are reported as failed.
        peer.sending = None;
        peer.redo = RedoQueue::new();
        peer.steps.clear();
        // A member that is alive stops serving this context, which frees its links.
        if !matches!(lost, LossCause::Dead(_)) {
            self.words.push((peer.control, DialMessage::Leave { stream: self.stream }));
        }
        let status = match lost {
            LossCause::Rails { status, .. } => status,
            LossCause::Dead(_) | LossCause::Refused(_) | LossCause::NoMemory(_) | LossCause::Protocol => {
                OpStatus::PeerDead
            }
        };
        for link in &mut peer.links {
            self.rails.destroy_link(link);
        }
        // Last, when no link can report a completion of these operations any more.
        self.operations.lose_peer(at, path, status);
    }

    /// Destroys this end of a link: it reports no completion any more, and nothing lands.
    fn destroy_link(&mut self, at: u32, path: PathId) {
        self.rails.destroy_link(&mut self.peers[at as usize].links[path.index()]);
    }

    /// Makes progress on the recovery of lost paths, and on puts with signal. Returns whether anything moved.
    #[inline]
    pub(super) fn progress_busy(&mut self) -> bool {
        !self.busy.is_empty() && self.progress_all_busy()
    }

    #[cold]
    fn progress_all_busy(&mut self) -> bool {
        let mut moved = false;
        // Taken out, because the steps may mark peers as busy again.
        let mut left = std::mem::take(&mut self.busy);
        left.retain(|&at| {
            // `|` and not `||`, so that each step runs.
            moved |= self.retire_left_paths(at)
                | self.redo_lost_ops(at)
                | self.progress_put_signal(at)
                | self.progress_steps(at);
            self.peers[at as usize].has_work()
        });
        // Peers that a step above has marked meanwhile.
        for at in self.busy.drain(..) {
            if !left.contains(&at) {
                left.push(at);
            }
        }
        self.busy = left;
        moved
    }

    /// Retires paths that both ends have left.
    fn retire_left_paths(&mut self, at: u32) -> bool {
        let mut moved = false;
        for path in (0..self.peers[at as usize].links.len() as u8).filter_map(PathId::new) {
            let peer = &mut self.peers[at as usize];
            if peer.lost.is_some() || peer.paths.path_stage(path) != PathStage::Leaving {
                continue;
            }
            let link = &peer.links[path.index()];
            let is_quiet = !link.exists || self.rails.poll_link_quiet(link);
            let Some(standing) = peer.paths.take_delivery_report(path, is_quiet) else { continue };
            moved = true;
            // Both ends have left, so no completion of this link is needed any more.
            self.destroy_link(at, path);
            let peer = &mut self.peers[at as usize];
            // Acknowledgements may have been lost with the path.
            peer.asks = true;
            let outgoing = &mut peer.outgoing;
            if self.operations.queue_lost_work(at, path, &standing, outgoing, &mut peer.redo).is_err() {
                self.lose_member(at, path, LossCause::Protocol);
            }
        }
        moved
    }

    /// Repeats lost operations and signals, as far as there is room.
    fn redo_lost_ops(&mut self, at: u32) -> bool {
        let mut moved = false;
        let peer = &mut self.peers[at as usize];
        // Proofs are posted even without a quiet, because a signal waits at its target until the repeated
        // writes have arrived.
        if !peer.redo.is_empty() {
            peer.post_proofs(&mut self.rails);
        }
        if peer.asks {
            peer.asks = !peer.request_ack(&mut self.rails);
        }
        loop {
            let peer = &mut self.peers[at as usize];
            let rails = &self.rails;
            // The target must know how many counted writes of an epoch arrive again before it
            // applies the signal.
            while let Some(lost) = peer.redo.make_up(EPOCHS_MAX) {
                self.words.push((peer.control, DialMessage::MakeUp { stream: self.stream, lost }));
            }
            let Some(again) = peer.redo.next() else { return moved };
            // No room: the rest is posted by a later call.
            let Some((path, _)) = peer.select_path(|link| rails.post_credits(link) > 0) else { return moved };
            peer.redo.pop_posted();
            moved = true;
            match again {
                RedoWork::Signal(number, signal) => {
                    // The path of the signal is recorded, because it may be lost again.
                    peer.outgoing.sent_over(number, path);
                    self.rails.send_message(&peer.links[path.index()], &RmaMessage::Signal(signal));
                }
                RedoWork::Op(id) => self.redo_op(at, path, id),
            }
        }
    }

    fn redo_op(&mut self, at: u32, path: PathId, id: SlotId) {
        let Some(note) = self.operations.note_mut(id) else { return };
        if let OpRecord::Put(_, told @ WriteNotice::Counted(_)) = note {
            // Repeated writes are not counted by an immediate: MAKE_UP reports them.
            *told = WriteNotice::Rewritten;
        }
        let note = *note;
        // Cannot fail, because the operation is pending.
        let _ = self.operations.move_operation(id, path);
        match note {
            OpRecord::Put(..) | OpRecord::Get(_) => self.post_transfer(at, path, id, note, None, None),
            // Native atomics have one path only, and the member is lost with it.
            OpRecord::Native(..) => {}
            OpRecord::Call(slot) => {
                let peer = &mut self.peers[at as usize];
                let calls = &mut peer.asked.calls;
                // The reply has arrived meanwhile, so the request is not repeated.
                let Some(request) = calls.resend_request(slot) else { return };
                // Both ends have left the path of the first request, so this is the only copy in flight; the reply proves its
                // arrival.
                calls.on_copy_gone(slot);
                self.rails.send_message(&peer.links[path.index()], &RmaMessage::Request(request));
            }
        }
    }

    /// Checks periodically whether links with pending operations still carry traffic, because their posted operations
    /// may never complete, and then no completion reports the failure.
    #[inline]
    pub(super) fn check_links_when_due(&mut self, now: impl Fn() -> Instant, rail_time: Duration) {
        // A counter first, because reading the clock for each poll is too expensive.
        self.turns = self.turns.wrapping_add(1);
        if self.turns.is_multiple_of(TURNS) {
            self.check_links(now(), rail_time);
        }
    }

    #[cold]
    fn check_links(&mut self, now: Instant, rail_time: Duration) {
        if now - self.looked < Duration(rail_time.0 / LOOKS_IN_RAIL_TIME) {
            return;
        }
        self.looked = now;
        for at in 0..self.peers.len() {
            for path in (0..self.peers[at].links.len() as u8).filter_map(PathId::new) {
                let peer = &self.peers[at];
                // Links without pending operations may be broken unnoticed, which harms nothing.
                let waits = peer.lost.is_none() && self.operations.pending_towards(at as u32) > 0;
                let link = &peer.links[path.index()];
                if !waits || !peer.paths.is_up(path) {
                    continue;
                }
                if self.rails.check_link(link).is_err() {
                    self.fail_path(at as u32, path, OpStatus::PeerDead);
                }
            }
        }
    }

    /// Returns the LEAVE messages to the members of this context, for its end.
    pub(super) fn detach_messages(&self) -> impl Iterator<Item = (SlotId, DialMessage)> {
        let lives = self.peers.iter().filter(|peer| peer.lost.is_none());
        lives.map(|peer| (peer.control, DialMessage::Leave { stream: self.stream }))
    }
}
