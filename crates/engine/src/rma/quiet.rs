//! When what a context has begun is complete: quiets and fences, and what they have to ask of the network and of members.

use trunkline_fabric::{Op, Rail};
use trunkline_proto::rma::Path;
use trunkline_proto::rma::ledger::{Failed, Quiet};
use trunkline_proto::rma::outgoing;
use trunkline_proto::wire::rma::Message;

use crate::rma::context::{Context, Note};
use crate::rma::error::RmaError;
use crate::rma::job::Member;
use crate::rma::peer::Stage;

impl<R: Rail> Context<R> {
    /// Posts proofs on the paths on which something has completed that need not have arrived.
    pub(super) fn prove(&mut self, at: u32) {
        if self.arrives || self.mutant.is("job-proves-nothing") {
            return;
        }
        for path in 0..self.peers[at as usize].links.len() {
            let link = &mut self.peers[at as usize].links[path];
            let rail = &mut self.rails[link.rail];
            if !link.unproven || link.stage != Stage::Up || rail.credits(link.link) == 0 {
                continue;
            }
            let Some(on) = Path::new(path as u8) else { continue };
            let Ok(id) = self.ledger.begin(at, on, Note::Proof(link.uncounted)) else { continue };
            if rail.post(link.link, id.to_bits(), Op::Nop, true).is_ok() {
                (link.unproven, link.uncounted) = (false, 0);
                rail.flush();
            } else {
                let _ = self.ledger.failed(id);
            }
        }
    }

    /// Asks for the acknowledgement of all signals, unless that is asked for, or there is no room now.
    pub(super) fn ask(&mut self, at: u32) {
        let (peer, rails) = (&mut self.peers[at as usize], &self.rails);
        if let Some(path) = peer.path(|link| rails[link.rail].credits(link.link) > 0)
            && let outgoing::Quiet::Ask(ask) = peer.outgoing.quiet()
        {
            self.send(at, path, &Message::Ask(ask));
        }
    }

    /// How a quiet towards one peer stands; asks for what has to be asked for.
    pub(super) fn quiet_of(&mut self, at: u32) -> Result<Quiet, Failed> {
        self.prove(at);
        self.ask(at);
        match self.ledger.quiet_peer(at) {
            Ok(Quiet::Done) if !self.is_proven(at) => Ok(Quiet::Pending),
            told => told,
        }
    }

    /// Whether nothing towards a peer has completed that need not have arrived.
    fn is_proven(&self, at: u32) -> bool {
        let peer = &self.peers[at as usize];
        peer.lost.is_some()
            || !peer.links.iter().any(|link| link.unproven)
            || self.mutant.is("job-proves-nothing")
    }

    /// Whether nothing is under way towards a peer; asks for what has to be asked for, and takes no failure's news.
    pub(super) fn is_still(&mut self, at: u32) -> bool {
        self.prove(at);
        self.ask(at);
        self.ledger.pending(at) == 0 && self.is_proven(at)
    }

    /// Whether everything towards a member is complete there.
    pub(super) fn quiet_member(&mut self, member: Member) -> Result<bool, RmaError> {
        let Some(&at) = self.known.get(&member) else { return Ok(true) };
        self.quiet_of(at)
            .map(|quiet| quiet == Quiet::Done)
            .map_err(|failed| self.failed(failed.peer, failed.path))
    }

    /// Whether everything is complete where it was to go.
    pub(super) fn quiet(&mut self) -> Result<bool, RmaError> {
        match self.ledger.quiet() {
            Err(failed) => return Err(self.failed(failed.peer, failed.path)),
            Ok(Quiet::Done) if self.arrives => return Ok(true),
            Ok(Quiet::Done | Quiet::Pending) => {}
        }
        let mut still = true;
        for at in 0..self.peers.len() as u32 {
            still &= self.peers[at as usize].lost.is_some() || self.is_still(at);
        }
        Ok(still)
    }

    pub(super) fn failed(&self, peer: u32, path: Path) -> RmaError {
        let member = self.peers.get(peer as usize).map_or(Member::MAX, |peer| peer.member);
        RmaError::Failed { member, rail: path.index(), status: self.why }
    }

    /// What is posted from now on towards a member comes after all that was.
    pub(super) fn fence(&mut self) {
        let free = self.arrives && self.rails.len() == 1 && self.rails[0].caps().link_order;
        if !free && !self.mutant.is("job-fences-nothing") {
            for at in 0..self.peers.len() as u32 {
                self.peers[at as usize].fenced |= self.ledger.pending(at) > 0 || !self.arrives;
            }
        }
    }
}
