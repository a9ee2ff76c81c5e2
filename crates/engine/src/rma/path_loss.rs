//! How a context loses a path to a member, and a member. A path is left at both ends before what went over it is done again over the
//! others; a member is lost with its last path, or with its process. Called when something fails, and then by each turn until it
//! is over; the rules are `trunkline_proto::rma::{paths, redo}`'s.

use trunkline_fabric::{LinkError, OpStatus, Rail};
use trunkline_proto::id::ProcessId;
use trunkline_proto::rma::PathId;
use trunkline_proto::rma::paths::{PathStage, PathStep};
use trunkline_proto::rma::redo::{RedoQueue, RedoWork};
use trunkline_proto::slots::SlotId;
use trunkline_proto::time::{Duration, Instant};
use trunkline_proto::wire::dial::{DialMessage, EPOCHS_MAX};
use trunkline_proto::wire::rma::RmaMessage;

use crate::rma::context::{OpRecord, RmaContext, WriteNotice};
use crate::rma::error::LossCause;
use crate::rma::peer::RemoteMember;

/// Turns between two looks at the clock.
const TURNS: u32 = 64;
/// How often the network is asked whether a link still carries, while the time limit for that passes.
const LOOKS_IN_RAIL_TIME: u64 = 16;

impl<R: Rail> RmaContext<R> {
    /// A link has failed at this end.
    #[cold]
    pub(super) fn fail_path(&mut self, at: u32, path: PathId, status: OpStatus) {
        let peer = &mut self.peers[at as usize];
        if peer.lost.is_some() {
            return;
        }
        // That would fail on any path.
        if !status.is_of_link() {
            return self.lose_member(at, path, LossCause::Rails { rail: path.index(), status });
        }
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
                self.rails[link.rail].fail_link(link.link);
                if say {
                    self.words.push((peer.control, DialMessage::Down { served: link.served }));
                }
                self.mark_busy(at);
            }
            PathStep::Last => self.lose_member(at, path, LossCause::Rails { rail: path.index(), status }),
        }
    }

    /// There is something to do for a peer.
    pub(super) fn mark_busy(&mut self, at: u32) {
        if !self.busy.contains(&at) {
            self.busy.push(at);
        }
    }

    /// A control stream has ended, and with it the process that it led to.
    pub(super) fn on_lost(&mut self, control: SlotId, processes: &[ProcessId]) {
        for at in 0..self.peers.len() {
            let peer = &self.peers[at];
            if peer.control == control
                && let Some(&process) = processes.get(peer.member as usize)
                && let Some(path) = PathId::new(0)
            {
                self.lose_member(at as u32, path, LossCause::Dead(process));
                // Its links may have failed before: that said nothing of the process.
                self.peers[at].lost = Some(LossCause::Dead(process));
            }
        }
    }

    /// A member cannot be reached any more: nothing is under way towards it, and what was has failed.
    #[cold]
    pub(super) fn lose_member(&mut self, at: u32, path: PathId, lost: LossCause) {
        let Some(peer) = self.peers.get_mut(at as usize).filter(|peer| peer.lost.is_none()) else { return };
        peer.lost = Some(lost);
        let asked = peer.on_nic.iter_mut().chain([&mut peer.asked]);
        asked.flat_map(|asked| asked.found.iter_mut()).for_each(|found| found.1 = None);
        (peer.sending, peer.redo) = (None, RedoQueue::new(self.mutant));
        peer.steps.clear();
        if !matches!(lost, LossCause::Dead(_)) {
            self.words.push((peer.control, DialMessage::Leave { stream: self.stream }));
        }
        self.why = match lost {
            LossCause::Rails { status, .. } => status,
            LossCause::Dead(_) | LossCause::Refused(_) | LossCause::NoMemory(_) | LossCause::Protocol => {
                OpStatus::PeerDead
            }
        };
        let links = peer.links.len() as u8;
        for path in (0..links).filter_map(PathId::new) {
            self.destroy_link(at, path);
        }
        self.report_lost(at);
        self.ledger.lose_peer(at, path, |_| ());
    }

    /// Ends a link at this side: nothing of it is told any more, and nothing lands.
    pub(super) fn destroy_link(&mut self, at: u32, path: PathId) {
        let link = &mut self.peers[at as usize].links[path.index()];
        if !std::mem::replace(&mut link.exists, false) {
            return;
        }
        self.rails[link.rail].fail_link(link.link);
        self.rails[link.rail].destroy_link(link.link);
        if let Some(name) = self.names[link.rail].get_mut(link.link.0 as usize) {
            *name = None;
        }
        (link.proving, link.bytes) = (0, 0);
        link.unproven.clear();
        link.proofs.clear();
    }

    /// Goes on with what lost paths leave to be done, and with puts with signal. Whether anything moved.
    #[inline]
    pub(super) fn progress_busy(&mut self) -> bool {
        !self.busy.is_empty() && self.progress_all_busy()
    }

    #[cold]
    fn progress_all_busy(&mut self) -> bool {
        let mut moved = false;
        let mut left = std::mem::take(&mut self.busy);
        left.retain(|&at| {
            moved |= self.retire_left_paths(at)
                | self.redo_lost_ops(at)
                | self.progress_put_signal(at)
                | self.progress_steps(at);
            self.peers[at as usize].has_work()
        });
        // What a step has added meanwhile.
        for at in self.busy.drain(..) {
            if !left.contains(&at) {
                left.push(at);
            }
        }
        self.busy = left;
        moved
    }

    /// Paths that both ends have left.
    fn retire_left_paths(&mut self, at: u32) -> bool {
        let mut moved = false;
        for path in (0..self.peers[at as usize].links.len() as u8).filter_map(PathId::new) {
            let peer = &mut self.peers[at as usize];
            if peer.lost.is_some() || peer.paths.path_stage(path) != PathStage::Leaving {
                continue;
            }
            let link = &peer.links[path.index()];
            let is_quiet = !link.exists || self.rails[link.rail].poll_link_quiet(link.link);
            let Some(standing) = peer.paths.take_delivery_report(path, is_quiet) else { continue };
            moved = true;
            self.destroy_link(at, path);
            let peer = &mut self.peers[at as usize];
            peer.asks = true;
            let outgoing = &mut peer.outgoing;
            let ledger = &mut self.ledger;
            if peer.redo.queue_lost_work(at, path, &standing, outgoing, ledger, OpRecord::redo_kind).is_err()
            {
                self.lose_member(at, path, LossCause::Protocol);
            }
        }
        moved
    }

    /// Does again what is due, as far as there is room.
    fn redo_lost_ops(&mut self, at: u32) -> bool {
        let mut moved = false;
        // Nobody may be in a quiet: a signal waits at its target until what was written again has arrived.
        if !self.peers[at as usize].redo.is_empty() && !self.mutant.is_planted("job-proves-only-in-quiets") {
            self.post_proofs(at);
        }
        if self.peers[at as usize].asks {
            self.peers[at as usize].asks = !self.request_ack(at);
        }
        loop {
            let peer = &mut self.peers[at as usize];
            let rails = &self.rails;
            while let Some(lost) = peer.redo.make_up(EPOCHS_MAX) {
                self.words.push((peer.control, DialMessage::MakeUp { stream: self.stream, lost }));
            }
            let Some(again) = peer.redo.next() else { return moved };
            let Some((path, _)) = peer.select_path(|link| rails[link.rail].post_credits(link.link) > 0)
            else {
                return moved;
            };
            peer.redo.pop_posted();
            moved = true;
            match again {
                RedoWork::Signal(number, signal) => {
                    peer.outgoing.sent_over(number, path);
                    self.send_message(at, path, &RmaMessage::Signal(signal));
                }
                RedoWork::Op(id) => self.redo_op(at, path, id),
            }
        }
    }

    fn redo_op(&mut self, at: u32, path: PathId, id: SlotId) {
        let Some(note) = self.ledger.note_mut(id) else { return };
        if let OpRecord::Put(_, told @ WriteNotice::Counted(_)) = note {
            *told = WriteNotice::Rewritten;
        }
        let note = *note;
        // It is under way.
        let _ = self.ledger.move_operation(id, path);
        match note {
            OpRecord::Put(..) | OpRecord::Get(_) => self.post_transfer(at, path, id, note, None, None),
            // There was one path only, and with it the member is lost.
            OpRecord::Native(..) => {}
            OpRecord::Call(slot) => {
                let calls = &mut self.peers[at as usize].asked.calls;
                let again = calls
                    .resend_request(slot)
                    .filter(|_| !self.mutant.is_planted("job-forgets-lost-requests"));
                let Some(request) = again else { return };
                // Both ends have left the path that it went over, so this is the only message with it; the reply tells that it
                // has come.
                calls.on_copy_gone(slot);
                self.send_message(at, path, &RmaMessage::Request(request));
            }
        }
    }

    /// Asks the network now and then whether links still carry that something is waited for on: what was posted may never
    /// complete.
    #[inline]
    pub(super) fn check_links_when_due(&mut self, now: impl Fn() -> Instant, rail_time: Duration) {
        self.turns = self.turns.wrapping_add(1);
        if self.turns.is_multiple_of(TURNS) {
            self.check_links(now(), rail_time);
        }
    }

    #[cold]
    fn check_links(&mut self, now: Instant, rail_time: Duration) {
        if now - self.looked < Duration(rail_time.0 / LOOKS_IN_RAIL_TIME)
            || self.mutant.is_planted("job-never-looks")
        {
            return;
        }
        self.looked = now;
        for at in 0..self.peers.len() {
            for path in (0..self.peers[at].links.len() as u8).filter_map(PathId::new) {
                let peer = &self.peers[at];
                let waits = peer.lost.is_none() && self.ledger.pending_towards(at as u32) > 0;
                let link = &peer.links[path.index()];
                if !waits || !peer.paths.is_up(path) {
                    continue;
                }
                let looked: Result<(), LinkError> = self.rails[link.rail].check_link(link.link);
                if looked.is_err() {
                    self.fail_path(at as u32, path, OpStatus::PeerDead);
                }
            }
        }
    }

    /// Whether nothing is under way, nor anything to be said of it; asks for what has to be asked for.
    pub(super) fn poll_idle(&mut self) -> bool {
        for at in 0..self.peers.len() as u32 {
            if self.peers[at as usize].lost.is_none() {
                self.poll_peer_idle(at);
            }
        }
        let (began, ended) = self.ledger.operation_counts();
        began == ended && self.busy.is_empty() && self.words.is_empty()
    }

    /// Whether something is under way, or is to be.
    pub(super) fn has_begun(&self) -> bool {
        let coming = |peer: &RemoteMember| peer.lost.is_none() && peer.paths.are_coming();
        !self.ledger.is_idle()
            || !self.busy.is_empty()
            || !self.words.is_empty()
            || self.peers.iter().any(coming)
    }

    /// What is to be said to those whom this context has links to, as it ends.
    pub(super) fn detach_messages(&self) -> impl Iterator<Item = (SlotId, DialMessage)> {
        let lives = self.peers.iter().filter(|peer| peer.lost.is_none());
        let silent = self.mutant.is_planted("job-takes-no-leave");
        lives.filter(move |_| !silent).map(|peer| (peer.control, DialMessage::Leave { stream: self.stream }))
    }
}
