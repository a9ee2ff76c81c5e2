//! When what a context has begun is complete: quiets and fences, and what they have to ask of the network and of members.

use trunkline_fabric::{Op, OpStatus, Rail};
use trunkline_proto::rma::PathId;
use trunkline_proto::rma::ledger::{QuietFailure, QuietProgress};
use trunkline_proto::rma::outgoing;
use trunkline_proto::wire::rma::RmaMessage;

use crate::rma::context::{PROOF, RmaContext};
use crate::rma::error::{LossCause, RmaError};
use crate::rma::job::MemberRank;

impl<R: Rail> RmaContext<R> {
    /// Posts proofs on the paths on which something was written that need not have arrived when it completes.
    pub(super) fn post_proofs(&mut self, at: u32) {
        if self.arrives {
            return;
        }
        let peer = &mut self.peers[at as usize];
        for (path, link) in peer.links.iter_mut().enumerate() {
            let rail = &mut self.rails[link.rail];
            let more = link.unproven.len() as u32 - link.proving;
            let carries = PathId::new(path as u8).is_some_and(|path| peer.paths.is_up(path));
            if more == 0 || !carries || rail.post_credits(link.link) == 0 {
                continue;
            }
            if rail.post(link.link, PROOF, Op::Nop, true).is_ok() {
                link.proofs.push_back(more);
                link.proving += more;
                rail.flush();
            }
        }
    }

    /// The same, unless the peer is lost.
    pub(super) fn post_proofs_if_alive(&mut self, at: u32) {
        if self.peers[at as usize].lost.is_none() {
            self.post_proofs(at);
        }
    }

    /// Asks for the acknowledgement of all signals, unless that is asked for. False if there is no room now.
    pub(super) fn request_ack(&mut self, at: u32) -> bool {
        let peer = &mut self.peers[at as usize];
        let rails = &self.rails;
        let Some((path, _)) = peer.select_path(|link| rails[link.rail].post_credits(link.link) > 0) else {
            return false;
        };
        if let outgoing::QuietStep::Ask(ask) = peer.outgoing.quiet() {
            self.send_message(at, path, &RmaMessage::Ask(ask));
        }
        true
    }

    /// What is not acknowledged takes the receives of a peer: it is asked, unless it acknowledges by itself.
    pub(super) fn request_room(&mut self, at: u32) {
        let asks = self.mutant.is_planted("job-asks-all-the-time");
        if asks || !self.peers[at as usize].outgoing.is_told_unasked() {
            self.request_ack(at);
        }
    }

    /// How a quiet towards one peer stands; asks for what has to be asked for.
    pub(super) fn poll_quiet(&mut self, at: u32) -> Result<QuietProgress, QuietFailure> {
        self.post_proofs(at);
        self.request_ack(at);
        self.ledger.quiet_peer(at)
    }

    /// Whether nothing is under way towards a peer; asks for what has to be asked for, and takes no failure's news.
    pub(super) fn poll_peer_idle(&mut self, at: u32) -> bool {
        self.post_proofs(at);
        self.request_ack(at);
        self.ledger.pending_towards(at) == 0
    }

    /// Whether everything towards a member is complete there.
    pub(super) fn quiet_member(&mut self, member: MemberRank) -> Result<bool, RmaError> {
        let Some(&at) = self.known.get(&member) else { return Ok(true) };
        self.ring_all();
        self.poll_quiet(at)
            .map(|quiet| quiet == QuietProgress::Done)
            .map_err(|failed| self.operation_error(failed.peer, failed.path))
    }

    /// Whether everything is complete where it was to go.
    pub(super) fn quiet(&mut self) -> Result<bool, RmaError> {
        self.ring_all();
        match self.ledger.quiet() {
            Err(failed) => return Err(self.operation_error(failed.peer, failed.path)),
            Ok(QuietProgress::Done) => return Ok(true),
            Ok(QuietProgress::Pending) => {}
        }
        for at in 0..self.peers.len() as u32 {
            if self.peers[at as usize].lost.is_none() {
                self.post_proofs(at);
                self.request_ack(at);
            }
        }
        Ok(false)
    }

    pub(super) fn operation_error(&self, peer: u32, path: PathId) -> RmaError {
        let peer = self.peers.get(peer as usize);
        let status = match peer.and_then(|peer| peer.lost) {
            Some(LossCause::Rails { status, .. }) => status,
            Some(_) => OpStatus::PeerDead,
            None => self.why,
        };
        let member = peer.map_or(MemberRank::MAX, |peer| peer.member);
        RmaError::Failed { member, rail: path.index(), status }
    }

    /// What is posted from now on towards a member comes after all that was: by itself, where a network keeps the order of writes and
    /// nothing else is under way. What its process has to execute may be there long before it is done.
    pub(super) fn fence(&mut self) {
        if self.ledger.is_idle() || self.mutant.is_planted("job-fences-nothing") {
            return;
        }
        let in_order = self.arrives && self.rails.len() == 1 && self.rails[0].caps().link_order;
        let trusts = in_order && self.mutant.is_planted("job-fences-writes-only");
        for (at, peer) in self.peers.iter_mut().enumerate() {
            let free = in_order && !peer.is_served() || trusts;
            peer.fenced |= !free && self.ledger.pending_towards(at as u32) > 0;
        }
    }
}
