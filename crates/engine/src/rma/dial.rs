//! How a context comes by links to a member. Called when something is first wanted of a member, and as its process answers.

use std::collections::VecDeque;

use trunkline_fabric::{LinkAddress, LinkError, PassedFd, Rail, Status};
use trunkline_proto::reserve::{OutOfMemory, try_grow};
use trunkline_proto::rma::Path;
use trunkline_proto::rma::incoming::Standing;
use trunkline_proto::rma::paths::{Stage, Step};
use trunkline_proto::slots::SlotId;
use trunkline_proto::wire::dial::{Heap as Told, Proof, Refusal, Word};

use crate::rma::context::{Context, Dialled};
use crate::rma::error::{Lost, RmaError};
use crate::rma::heap::Heap;
use crate::rma::heaps::reserve_learned;
use crate::rma::job::Member;
use crate::rma::peer::{Asked, Link, Peer};
use crate::rma::receives::Receives;

impl<R: Rail> Context<R> {
    /// Whether a link to a member carries; `None` if none was begun.
    pub(super) fn reaches(&mut self, member: Member) -> Result<Option<bool>, RmaError> {
        let Some(&at) = self.known.get(&member) else { return Ok(None) };
        let peer = &self.peers[at as usize];
        match peer.lost {
            Some(lost) => Err(RmaError::Lost { member, lost }),
            None => Ok(Some(!peer.paths.are_coming())),
        }
    }

    /// Begins the links to a member: what is to be said for each.
    pub(super) fn dial(
        &mut self,
        member: Member,
        control: SlotId,
        paths: usize,
        proof: Proof,
        me: Member,
    ) -> Result<Vec<(Word, Option<PassedFd>)>, RmaError> {
        let at = self.peers.len() as u32;
        // All memory first: the later steps have to be undone.
        try_grow(&mut self.peers, 1)?;
        self.ledger.grow(at + 1, 0)?;
        if paths > 1 {
            self.keep_copies()?;
        }
        let mut peer = Peer::new((member, control), paths, self.stream, self.order, self.mutant)?;
        peer.on_nic = self.native.is_some().then(|| Asked::new(self.stream, self.mutant));
        let mut words = Vec::new();
        for path in (0..paths as u8).filter_map(Path::new) {
            let stream = self.stream;
            let generation = self.generation;
            let id = Dialled { stream, generation, peer: at, path }.to_bits();
            let made = self.make(path.index() % self.rails.len());
            let (link, address) = match made {
                Ok(made) => made,
                Err(error) => {
                    peer.links.iter().for_each(|link| self.rails[link.rail].destroy(link.link));
                    return Err(error);
                }
            };
            let path = path.index() as u8;
            let bytes = address.bytes;
            words.push((Word::Dial { id, proof, member: me, stream, path, link: bytes }, address.fd));
            peer.links.push(link);
        }
        for (path, link) in peer.links.iter().enumerate() {
            let names = &mut self.names[link.rail];
            names.resize(names.len().max(link.link.0 as usize + 1), None);
            names[link.link.0 as usize] = Path::new(path as u8).map(|path| (at, path));
        }
        self.peers.push(peer);
        self.known.insert(member, at);
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
        let link = Link {
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
    fn about(&mut self, control: SlotId, id: u64) -> Option<(Dialled, &mut Peer)> {
        let dialled = Dialled::from_bits(id).filter(|dialled| dialled.generation == self.generation)?;
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
        (served, receives, heaps): (u64, u32, Vec<Told>),
        address: Vec<u8>,
        fd: Option<PassedFd>,
    ) {
        let Some((Dialled { peer: at, path, .. }, peer)) = self.about(control, id) else { return };
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
            known = learned.try_for_each(|((_, number), told)| know(link, path, *number, told));
        }
        let connected = known.map_err(LinkError::Memory);
        let connected =
            connected.and_then(|()| self.rails[rail].connect(on, LinkAddress { bytes: address, fd }));
        if let Err(error) = connected {
            self.fail(at, path, Status::PeerDead);
            // It is good for nothing else.
            self.destroy(at, path);
            if let LinkError::Memory(lack) = error
                && let Some(peer) = self.peers.get_mut(at as usize)
                && matches!(peer.lost, Some(Lost::Rails { .. }))
            {
                // The cause is not the peer's.
                peer.lost = Some(Lost::NoMemory(lack));
            }
        }
    }

    /// A member has told of a heap of its own.
    ///
    /// # Errors
    /// [`OutOfMemory`]; the call may be repeated.
    pub(super) fn learn(&mut self, member: Member, number: u8, told: &[Told]) -> Result<(), OutOfMemory> {
        reserve_learned(&mut self.learned)?;
        if let Some(&at) = self.known.get(&member) {
            for (at, link) in self.peers[at as usize].links.iter_mut().enumerate() {
                if let Some(path) = Path::new(at as u8) {
                    know(link, path, number, told)?;
                }
            }
        }
        self.learned.insert((member, number), told.to_vec());
        Ok(())
    }

    /// There is no other end, or it is not served any more.
    pub(super) fn on_refused(&mut self, control: SlotId, id: u64, why: Refusal) {
        let Some((Dialled { peer: at, path, .. }, peer)) = self.about(control, id) else { return };
        match why {
            Refusal::Protocol => self.lose(at, path, Lost::Refused(why)),
            _ => match peer.paths.on_refused(path) {
                Step::Nothing => {}
                Step::Leave { .. } => self.destroy(at, path),
                Step::Last => self.lose(at, path, Lost::Refused(why)),
            },
        }
    }

    /// The other end of a link was left.
    pub(super) fn on_standing(&mut self, control: SlotId, id: u64, standing: Standing) {
        let Some((Dialled { peer: at, path, .. }, peer)) = self.about(control, id) else { return };
        if peer.paths.stage(path) == Stage::Asked {
            return self.lose(at, path, Lost::Protocol);
        }
        let step = peer.paths.on_standing(path, standing);
        self.do_step(at, path, step, Status::PeerDead);
    }
}

/// A heap of a member is meant by that number over a link: as its rail at the other end of the path has it.
fn know(link: &mut Link, path: Path, number: u8, told: &[Told]) -> Result<(), OutOfMemory> {
    let Some(&told) = told.get(path.index() % told.len().max(1)) else { return Ok(()) };
    let at = usize::from(number);
    if link.heaps.len() <= at {
        let more = at + 1 - link.heaps.len();
        try_grow(&mut link.heaps, more)?;
        link.heaps.resize(at + 1, Heap::NONE);
    }
    link.heaps[at] = told;
    Ok(())
}
