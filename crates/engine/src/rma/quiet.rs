//! When what a context has begun is complete: quiets and fences, and what they have to ask of the network and of members.

use trunkline_fabric::{Op, Rail, Status};
use trunkline_proto::rma::Path;
use trunkline_proto::rma::ledger::{Failed, Quiet};
use trunkline_proto::rma::outgoing;
use trunkline_proto::wire::rma::Message;

use crate::rma::context::{Context, PROOF};
use crate::rma::error::{Lost, RmaError};
use crate::rma::job::Member;

impl<R: Rail> Context<R> {
    /// Posts proofs on the paths on which something was written that need not have arrived when it completes.
    pub(super) fn prove(&mut self, at: u32) {
        if self.arrives {
            return;
        }
        let peer = &mut self.peers[at as usize];
        for (path, link) in peer.links.iter_mut().enumerate() {
            let rail = &mut self.rails[link.rail];
            let more = link.unproven.len() as u32 - link.proving;
            let carries = Path::new(path as u8).is_some_and(|path| peer.paths.carries(path));
            if more == 0 || !carries || rail.credits(link.link) == 0 {
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
    pub(super) fn prove_if_alive(&mut self, at: u32) {
        if self.peers[at as usize].lost.is_none() {
            self.prove(at);
        }
    }

    /// Asks for the acknowledgement of all signals, unless that is asked for. False if there is no room now.
    pub(super) fn ask(&mut self, at: u32) -> bool {
        let peer = &mut self.peers[at as usize];
        let rails = &self.rails;
        let Some((path, _)) = peer.path(|link| rails[link.rail].credits(link.link) > 0) else { return false };
        if let outgoing::Quiet::Ask(ask) = peer.outgoing.quiet() {
            self.send(at, path, &Message::Ask(ask));
        }
        true
    }

    /// What is not acknowledged takes the receives of a peer: it is asked, unless it acknowledges by itself.
    pub(super) fn ask_for_room(&mut self, at: u32) {
        let asks = self.mutant.is("job-asks-all-the-time");
        if asks || !self.peers[at as usize].outgoing.is_told_unasked() {
            self.ask(at);
        }
    }

    /// How a quiet towards one peer stands; asks for what has to be asked for.
    pub(super) fn quiet_of(&mut self, at: u32) -> Result<Quiet, Failed> {
        self.prove(at);
        self.ask(at);
        self.ledger.quiet_peer(at)
    }

    /// Whether nothing is under way towards a peer; asks for what has to be asked for, and takes no failure's news.
    pub(super) fn is_still(&mut self, at: u32) -> bool {
        self.prove(at);
        self.ask(at);
        self.ledger.pending(at) == 0
    }

    /// Whether everything towards a member is complete there.
    pub(super) fn quiet_member(&mut self, member: Member) -> Result<bool, RmaError> {
        let Some(&at) = self.known.get(&member) else { return Ok(true) };
        self.ring_all();
        self.quiet_of(at)
            .map(|quiet| quiet == Quiet::Done)
            .map_err(|failed| self.failed(failed.peer, failed.path))
    }

    /// Whether everything is complete where it was to go.
    pub(super) fn quiet(&mut self) -> Result<bool, RmaError> {
        self.ring_all();
        match self.ledger.quiet() {
            Err(failed) => return Err(self.failed(failed.peer, failed.path)),
            Ok(Quiet::Done) => return Ok(true),
            Ok(Quiet::Pending) => {}
        }
        for at in 0..self.peers.len() as u32 {
            if self.peers[at as usize].lost.is_none() {
                self.prove(at);
                self.ask(at);
            }
        }
        Ok(false)
    }

    pub(super) fn failed(&self, peer: u32, path: Path) -> RmaError {
        let peer = self.peers.get(peer as usize);
        let status = match peer.and_then(|peer| peer.lost) {
            Some(Lost::Rails { status, .. }) => status,
            Some(_) => Status::PeerDead,
            None => self.why,
        };
        let member = peer.map_or(Member::MAX, |peer| peer.member);
        RmaError::Failed { member, rail: path.index(), status }
    }

    /// What is posted from now on towards a member comes after all that was: by itself, where a network keeps the order of writes and
    /// nothing else is under way. What its process has to execute may be there long before it is done.
    pub(super) fn fence(&mut self) {
        if self.ledger.is_idle() || self.mutant.is("job-fences-nothing") {
            return;
        }
        let in_order = self.arrives && self.rails.len() == 1 && self.rails[0].caps().link_order;
        let trusts = in_order && self.mutant.is("job-fences-writes-only");
        for (at, peer) in self.peers.iter_mut().enumerate() {
            let free = in_order && !peer.is_served() || trusts;
            peer.fenced |= !free && self.ledger.pending(at as u32) > 0;
        }
    }
}
