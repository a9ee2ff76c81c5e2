//! How a context comes by links to a member, and how it loses them. Called when something is first wanted of a member, as its
//! process answers, and when a link or a process ends.

use std::os::fd::OwnedFd;

use trunkline_fabric::{LinkAddress, Rail, Status};
use trunkline_proto::id::ProcessId;
use trunkline_proto::rma::Path;
use trunkline_proto::slots::SlotId;
use trunkline_proto::wire::dial::{Heap as Told, Refusal, Word};

use crate::rma::context::{Context, dialled};
use crate::rma::error::{Lost, RmaError};
use crate::rma::job::Member;
use crate::rma::peer::{Link, Peer, Stage};
use crate::rma::receives::Receives;

impl<R: Rail> Context<R> {
    /// Whether a link to a member carries; `None` if none was begun.
    pub(super) fn reaches(&mut self, member: Member) -> Result<Option<bool>, RmaError> {
        let Some(&at) = self.known.get(&member) else { return Ok(None) };
        let peer = &self.peers[at as usize];
        match peer.lost {
            Some(lost) => Err(RmaError::Lost { member, lost }),
            None => Ok(Some(!peer.is_coming())),
        }
    }

    /// Begins the links to a member: what is to be said for each.
    pub(super) fn dial(
        &mut self,
        member: Member,
        control: SlotId,
        paths: usize,
        nonce: [u8; 16],
        me: Member,
    ) -> Result<Vec<(Word, Option<OwnedFd>)>, RmaError> {
        let at = self.peers.len() as u32;
        let mut peer = Peer::new(member, control, self.stream, self.order, self.mutant);
        let mut words = Vec::new();
        for path in 0..paths as u8 {
            let id = u64::from(self.stream.number()) << 40 | u64::from(at) << 8 | u64::from(path);
            let made = self.make(usize::from(path) % self.rails.len());
            let (link, address) = match made {
                Ok(made) => made,
                Err(error) => {
                    peer.links.iter().for_each(|link| self.rails[link.rail].destroy(link.link));
                    return Err(error);
                }
            };
            let (stream, bytes) = (self.stream, address.bytes);
            words.push((Word::Dial { id, nonce, member: me, stream, path, link: bytes }, address.fd));
            peer.links.push(link);
        }
        for (path, link) in peer.links.iter().enumerate() {
            let names = &mut self.names[link.rail];
            names.resize(names.len().max(link.link.0 as usize + 1), None);
            names[link.link.0 as usize] = Some((at, path as u8));
        }
        self.peers.push(peer);
        self.known.insert(member, at);
        self.ledger.grow(at + 1, 0);
        Ok(words)
    }

    /// One end of a link, and its address.
    pub(super) fn make(&mut self, rail: usize) -> Result<(Link, LinkAddress), RmaError> {
        let on = &mut self.rails[rail];
        let link = on.create()?;
        let made = Receives::new(on, self.answers).map_err(RmaError::from);
        let made = made.and_then(|receives| Ok((receives, on.address(link)?)));
        let (receives, address) = made.inspect_err(|_| on.destroy(link))?;
        self.starves = true;
        let (stage, heaps) = (Stage::Asked, Vec::new());
        let link = Link {
            rail,
            link,
            stage,
            served: 0,
            receives,
            heaps,
            unproven: false,
            uncounted: 0,
            bytes: 0,
            credit: 0,
        };
        Ok((link, address))
    }

    /// The other end of a link is made.
    pub(super) fn on_taken(
        &mut self,
        control: SlotId,
        id: u64,
        (served, receives, heaps): (u64, u32, Vec<Told>),
        address: Vec<u8>,
        fd: Option<OwnedFd>,
    ) {
        let (_, at, path) = dialled(id);
        let Some(peer) = self.peers.get_mut(at as usize).filter(|peer| peer.control == control) else {
            return;
        };
        let Some(link) = peer.links.get_mut(usize::from(path)).filter(|link| link.stage == Stage::Asked)
        else {
            return;
        };
        let made = self.rails[link.rail].connect(link.link, LinkAddress { bytes: address, fd });
        (link.served, link.credit, link.heaps) = (served, receives, heaps);
        link.stage = if made.is_ok() { Stage::Made } else { Stage::Gone };
        if made.is_err() {
            self.lose(at, path, Lost::Rails(Status::PeerDead));
        }
    }

    /// There is no other end.
    pub(super) fn on_refused(&mut self, id: u64, why: Refusal) {
        let (_, at, path) = dialled(id);
        self.lose(at, path, Lost::Refused(why));
    }

    /// A control stream has ended, and with it the process that it led to.
    pub(super) fn on_lost(&mut self, control: SlotId, processes: &[ProcessId]) {
        for at in 0..self.peers.len() {
            let peer = &self.peers[at];
            if peer.control == control
                && let Some(&process) = processes.get(peer.member as usize)
            {
                self.lose(at as u32, 0, Lost::Dead(process));
            }
        }
    }

    /// A member cannot be reached any more: nothing is under way towards it, and what was has failed.
    pub(super) fn lose(&mut self, at: u32, path: u8, lost: Lost) {
        let Some(peer) = self.peers.get_mut(at as usize).filter(|peer| peer.lost.is_none()) else { return };
        for link in &mut peer.links {
            (link.stage, link.unproven) = (Stage::Gone, false);
            self.rails[link.rail].fail(link.link);
        }
        peer.lost = Some(lost);
        peer.found.iter_mut().for_each(|found| found.1 = None);
        self.why = match lost {
            Lost::Rails(status) => status,
            Lost::Dead(_) | Lost::Refused(_) | Lost::Protocol => Status::PeerDead,
        };
        if let Some(path) = Path::new(path) {
            self.ledger.lose(at, path, |_| ());
        }
    }
}
