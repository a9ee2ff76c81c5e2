//! How a context comes by links to a member. Called when something is first wanted of a member, and as its process answers.

use std::collections::VecDeque;

use trunkline_fabric::{LinkAddress, LinkError, OpStatus, PassedFd, Rail};
use trunkline_proto::reserve::{OutOfMemory, try_grow};
use trunkline_proto::rma::PathId;
use trunkline_proto::rma::incoming::PathDeliveryReport;
use trunkline_proto::rma::paths::{PathStage, PathStep};
use trunkline_proto::slots::SlotId;
use trunkline_proto::wire::dial::{DialMessage, DialRefusal, MemberProof, RemoteHeap as Told};

use crate::rma::context::{LinkDialId, RmaContext};
use crate::rma::error::{LossCause, RmaError};
use crate::rma::heap::RegisteredHeap;
use crate::rma::heaps::reserve_learned;
use crate::rma::job::MemberRank;
use crate::rma::peer::{MemberAtomics, OutboundLink, RemoteMember};
use crate::rma::receives::LinkReceives;

impl<R: Rail> RmaContext<R> {
    /// Whether a link to a member carries; `None` if none was begun.
    pub(super) fn member_readiness(&mut self, member: MemberRank) -> Result<Option<bool>, RmaError> {
        let Some(&at) = self.known.get(&member) else { return Ok(None) };
        let peer = &self.peers[at as usize];
        match peer.lost {
            Some(lost) => Err(RmaError::Lost { member, lost }),
            None => Ok(Some(!peer.paths.are_coming())),
        }
    }

    /// Begins the links to a member: what is to be said for each.
    pub(super) fn dial_member(
        &mut self,
        member: MemberRank,
        control: SlotId,
        paths: usize,
        proof: MemberProof,
        me: MemberRank,
    ) -> Result<Vec<(DialMessage, Option<PassedFd>)>, RmaError> {
        let at = self.peers.len() as u32;
        // All memory first: the later steps have to be undone.
        try_grow(&mut self.peers, 1)?;
        self.ledger.grow_capacity(at + 1, 0)?;
        if paths > 1 {
            self.keep_copies()?;
        }
        let mut peer = RemoteMember::new(member, control, paths, self.stream, self.order, self.mutant)?;
        peer.on_nic = self.native.is_some().then(|| MemberAtomics::new(self.stream, self.mutant));
        let mut words = Vec::new();
        for path in (0..paths as u8).filter_map(PathId::new) {
            let stream = self.stream;
            let generation = self.generation;
            let id = LinkDialId { stream, generation, peer: at, path }.to_bits();
            let made = self.create_link(path.index() % self.rails.len());
            let (link, address) = match made {
                Ok(made) => made,
                Err(error) => {
                    peer.links.iter().for_each(|link| self.rails[link.rail].destroy_link(link.link));
                    return Err(error);
                }
            };
            let path = path.index() as u8;
            let bytes = address.bytes;
            words.push((DialMessage::Dial { id, proof, member: me, stream, path, link: bytes }, address.fd));
            peer.links.push(link);
        }
        for (path, link) in peer.links.iter().enumerate() {
            let names = &mut self.names[link.rail];
            names.resize(names.len().max(link.link.0 as usize + 1), None);
            names[link.link.0 as usize] = PathId::new(path as u8).map(|path| (at, path));
        }
        self.peers.push(peer);
        self.known.insert(member, at);
        Ok(words)
    }

    /// One end of a link, and its address.
    pub(super) fn create_link(&mut self, rail: usize) -> Result<(OutboundLink, LinkAddress), RmaError> {
        let on = &mut self.rails[rail];
        let link = on.create_link()?;
        let made = LinkReceives::new(on, self.answers).map_err(RmaError::from);
        let made = made.and_then(|receives| Ok((receives, on.link_address(link)?)));
        let (receives, address) = made.inspect_err(|_| on.destroy_link(link))?;
        self.starves = true;
        let link = OutboundLink {
            rail,
            link,
            exists: true,
            served: 0,
            receives,
            heaps: Vec::new(),
            unproven: VecDeque::new(),
            proofs: VecDeque::new(),
            proving: 0,
            bytes: 0,
            credit: 0,
        };
        Ok((link, address))
    }

    /// The peer that a word is about, if it is of this context and came from there.
    fn find_dialled(&mut self, control: SlotId, id: u64) -> Option<(LinkDialId, &mut RemoteMember)> {
        let dialled = LinkDialId::from_bits(id).filter(|dialled| dialled.generation == self.generation)?;
        let peer = self.peers.get_mut(dialled.peer as usize)?;
        let is_its =
            peer.control == control && peer.lost.is_none() && dialled.path.index() < peer.links.len();
        is_its.then_some((dialled, peer))
    }

    /// The other end of a link is made.
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
        if !peer.paths.on_taken(path) {
            return;
        }
        let link = &mut peer.links[path.index()];
        (link.served, link.credit, link.heaps) = (served, receives, heaps);
        let member = peer.member;
        let rail = link.rail;
        let on = link.link;
        let mut learned = self.learned.iter().filter(|((of, _), _)| *of == member);
        let mut known = Ok(());
        if let Some(peer) = self.peers.get_mut(at as usize) {
            let link = &mut peer.links[path.index()];
            known = learned.try_for_each(|((_, number), told)| set_link_heap(link, path, *number, told));
        }
        let connected = known.map_err(LinkError::Memory);
        let connected = connected.and_then(|()| self.rails[rail].connect(on, address));
        if let Err(error) = connected {
            self.fail_path(at, path, OpStatus::PeerDead);
            // It is good for nothing else.
            self.destroy_link(at, path);
            if let LinkError::Memory(lack) = error
                && let Some(peer) = self.peers.get_mut(at as usize)
                && matches!(peer.lost, Some(LossCause::Rails { .. }))
            {
                // The cause is not the peer's.
                peer.lost = Some(LossCause::NoMemory(lack));
            }
        }
    }

    /// A member has told of a heap of its own.
    ///
    /// # Errors
    /// [`OutOfMemory`]; the call may be repeated.
    pub(super) fn set_member_heap(
        &mut self,
        member: MemberRank,
        number: u8,
        told: &[Told],
    ) -> Result<(), OutOfMemory> {
        reserve_learned(&mut self.learned)?;
        if let Some(&at) = self.known.get(&member) {
            for (at, link) in self.peers[at as usize].links.iter_mut().enumerate() {
                if let Some(path) = PathId::new(at as u8) {
                    set_link_heap(link, path, number, told)?;
                }
            }
        }
        self.learned.insert((member, number), told.to_vec());
        Ok(())
    }

    /// There is no other end, or it is not served any more.
    pub(super) fn on_refused(&mut self, control: SlotId, id: u64, why: DialRefusal) {
        let Some((LinkDialId { peer: at, path, .. }, peer)) = self.find_dialled(control, id) else { return };
        match why {
            DialRefusal::Protocol => self.lose_member(at, path, LossCause::Refused(why)),
            _ => match peer.paths.on_refused(path) {
                PathStep::Nothing => {}
                PathStep::Leave { .. } => self.destroy_link(at, path),
                PathStep::Last => self.lose_member(at, path, LossCause::Refused(why)),
            },
        }
    }

    /// The other end of a link was left.
    pub(super) fn on_delivery_report(&mut self, control: SlotId, id: u64, standing: PathDeliveryReport) {
        let Some((LinkDialId { peer: at, path, .. }, peer)) = self.find_dialled(control, id) else { return };
        if peer.paths.path_stage(path) == PathStage::Asked {
            return self.lose_member(at, path, LossCause::Protocol);
        }
        let step = peer.paths.on_delivery_report(path, standing);
        self.apply_step(at, path, step, OpStatus::PeerDead);
    }
}

/// A heap of a member is meant by that number over a link: as its rail at the other end of the path has it.
fn set_link_heap(
    link: &mut OutboundLink,
    path: PathId,
    number: u8,
    told: &[Told],
) -> Result<(), OutOfMemory> {
    let Some(&told) = told.get(path.index() % told.len().max(1)) else { return Ok(()) };
    let at = usize::from(number);
    if link.heaps.len() <= at {
        let more = at + 1 - link.heaps.len();
        try_grow(&mut link.heaps, more)?;
        link.heaps.resize(at + 1, RegisteredHeap::NONE);
    }
    link.heaps[at] = told;
    Ok(())
}
