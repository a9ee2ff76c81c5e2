//! The sending lane of a comm with several links: every operation is known until it has completed, goes over the link
//! that will be done with it first, and is posted on another if its link is lost before it arrived. A request is done
//! when all its operations have completed, because until then its bytes may be needed again.

use std::collections::VecDeque;

use trunkline_fabric::{Op, PostError, Rail, Remote, Source, Status};
use trunkline_proto::comm::Fault;
use trunkline_proto::comm::sender::Isend;
use trunkline_proto::comm::spread::Spread;
use trunkline_proto::limits::{LINKS_MAX, SENDS_MAX, SLICE_MAX, SMALL_MAX, STRIPES_MAX};
use trunkline_proto::reserve::{OutOfMemory, try_filled};
use trunkline_proto::time::Instant;
use trunkline_proto::wire::cts::Cts;
use trunkline_proto::wire::fin::{self, Fin};
use trunkline_proto::wire::frame::Region;
use trunkline_proto::wire::imm::Imm;
use trunkline_proto::wire::standing::{Part, Standing};

use crate::comm::flight::{Cargo, Flight, Flights, Posted};
use crate::comm::outgoing::{FinDue, Message};
use crate::comm::plan::INLINE_MAX;
use crate::comm::request::Requests;
use crate::comm::send::SendLane;
use crate::link::path::Path;
use crate::link::proofs::{PROOF, Proofs};
use crate::link::rails::Rails;
use crate::memory::mailbox::View;
use crate::{CommFault, Mutant};

/// What a lane with several links has besides.
pub(crate) struct Many {
    pub(crate) spread: Spread,
    pub(crate) flights: Flights,
    /// Operations without a link: there was no credit, or their link was lost. Posted before anything else.
    again: VecDeque<Flight>,
    /// By request.
    aims: Box<[Aim]>,
    /// Where fin records go, by path.
    pub(crate) fins: [Region; LINKS_MAX],
    /// Where completions do not tell of arrival.
    pub(crate) proofs: Proofs,
    /// What time it is, as far as the current call asked.
    pub(crate) now: Instant,
}

/// Where a message goes.
#[derive(Clone, Copy)]
struct Aim {
    /// The number of its receive.
    receive: u32,
    /// Its buffer, by path.
    places: [Region; LINKS_MAX],
    /// Bytes of a piece.
    piece: u64,
    /// Pieces still to post; an empty message has one.
    pieces: u64,
}

/// What became of an attempt to post.
enum Try {
    Posted,
    /// The link is of no more use.
    Lost,
}

const NOWHERE: Region = Region { key: 0, addr: 0 };

impl Many {
    pub(crate) fn new(mutant: Mutant) -> Result<Self, OutOfMemory> {
        let aim = Aim { receive: 0, places: [NOWHERE; LINKS_MAX], piece: 0, pieces: 0 };
        Ok(Self {
            spread: Spread::new(mutant),
            flights: Flights::default(),
            again: VecDeque::new(),
            proofs: Proofs::default(),
            aims: try_filled(aim, SENDS_MAX)?,
            fins: [NOWHERE; LINKS_MAX],
            now: Instant::default(),
        })
    }

    /// Whether operations are under way or wait.
    pub(crate) fn busy(&self) -> bool {
        self.flights.len() > 0 || !self.again.is_empty()
    }

    /// Whether operations wait for a link.
    pub(crate) fn waits(&self) -> bool {
        !self.again.is_empty()
    }

    /// Forgets everything under way: the peer has it all.
    pub(crate) fn forget(&mut self) {
        self.flights.clear();
        self.again.clear();
        self.proofs = Proofs::default();
    }
}

impl SendLane {
    /// Starts a message over several links; false means not yet.
    pub(crate) fn start_spread(
        &mut self,
        rails: &mut Rails<impl Rail>,
        slot: u16,
        message: Message,
    ) -> Result<bool, CommFault> {
        self.count_eager(rails, message.len);
        let view = View(self.mailbox.memory());
        let decided = self.sender.on_isend(&view, message.tag, message.len);
        self.settle_eager(rails);
        let view = View(self.mailbox.memory());
        match decided? {
            Isend::NotYet => return Ok(false),
            Isend::Eager(header) => {
                self.track(slot, message);
                self.outgoing[slot as usize].given = message.len;
                self.launch(
                    rails,
                    Flight { slot, cargo: Cargo::Eager(header), offset: 0, len: message.len },
                )?;
            }
            Isend::Direct(cts) => {
                let others = self.sender.others(&view, &cts).map_or([NOWHERE; 3], |others| others.places);
                self.track(slot, message);
                self.aim(rails, slot, message, &cts, others)?;
            }
        }
        if !rails.burst {
            rails.flush();
            rails.burst = true;
        }
        Ok(true)
    }

    fn aim(
        &mut self,
        rails: &mut Rails<impl Rail>,
        slot: u16,
        message: Message,
        cts: &Cts,
        [one, two, three]: [Region; LINKS_MAX - 1],
    ) -> Result<(), CommFault> {
        let Some(many) = &mut self.many else { return Ok(()) };
        let most = if self.part.remote.is_some() { SLICE_MAX } else { u64::MAX };
        // Over one rail a message goes whole, if that is wanted.
        let spreads = self.plan.mutant.is("engine-spreads-in-any-case");
        let least =
            if self.plan.split || spreads || rails.len() > 1 { self.plan.stripe_min } else { u64::MAX };
        let (count, piece) = many.spread.pieces(message.len, least, self.plan.message_max.min(most));
        let first = Region { key: cts.key, addr: cts.addr };
        many.aims[slot as usize] =
            Aim { receive: cts.number, places: [first, one, two, three], piece, pieces: count };
        let outgoing = &mut self.outgoing[slot as usize];
        outgoing.token = cts.token;
        let whole = if !self.plan.write_data {
            None
        } else if message.len == cts.len {
            Some(Imm::Full(cts.token))
        } else {
            self.plan.remote_len.then_some(Imm::Whole(cts.token))
        };
        if let (1, Some(imm)) = (count, whole) {
            outgoing.given = message.len;
            let cargo = Cargo::Bytes { imm: Some(imm.to_bits()), part: Part::Bytes };
            return self.launch(rails, Flight { slot, cargo, offset: 0, len: message.len });
        }
        let later = count > STRIPES_MAX as u64 || !self.plan.write_data;
        outgoing.fin = if later { FinDue::Placed } else { FinDue::Now(count as u8) };
        self.unposted.push_back(slot);
        self.post_spread(rails)
    }

    /// Posts an operation, or keeps it until there is credit.
    fn launch(&mut self, rails: &mut Rails<impl Rail>, flight: Flight) -> Result<(), CommFault> {
        self.outgoing[flight.slot as usize].left += 1;
        if !self.fly(rails, flight)?
            && let Some(many) = &mut self.many
        {
            many.again.push_back(flight);
        }
        Ok(())
    }

    /// Posts an operation on the path that is done with it first; false if none takes one now.
    fn fly(&mut self, rails: &mut Rails<impl Rail>, flight: Flight) -> Result<bool, CommFault> {
        let alone = self.plan.mutant.is("engine-spreads-nothing");
        for _ in 0..LINKS_MAX {
            let Some(many) = &mut self.many else { return Ok(false) };
            let paths = &self.paths;
            let proofs = &many.proofs;
            let arrives = self.plan.arrives;
            let takes = |at| paths.credits(rails, at) > 0 && (arrives || proofs.takes(at));
            let may = |at| at < paths.len() && takes(at) && (!alone || at == paths.lead());
            let Some(path) = many.spread.best(flight.len, many.now, may) else { return Ok(false) };
            let long = self.part.remote.is_some() && flight.len > SMALL_MAX;
            if long && !rails.slices.take(self.part.slices) {
                return Ok(false);
            }
            self.part.slices += u32::from(long);
            let number = many.flights.insert(Posted { flight, path, at: many.now, told: None });
            match self.post_flight(rails, path, number, flight)? {
                Try::Posted => {
                    let Some(many) = &mut self.many else { return Ok(true) };
                    many.spread.on_posted(path, flight.len, many.now);
                    return Ok(true);
                }
                Try::Lost => {
                    let Some(many) = &mut self.many else { return Ok(false) };
                    many.flights.remove(number);
                    self.end_slice(rails, flight.len);
                    self.lose(rails, path);
                }
            }
        }
        Ok(false)
    }

    fn post_flight(
        &mut self,
        rails: &mut Rails<impl Rail>,
        path: usize,
        number: u64,
        flight: Flight,
    ) -> Result<Try, CommFault> {
        let Flight { slot, cargo, offset, len } = flight;
        let outgoing = self.outgoing[slot as usize];
        let &Path { rail, link, .. } = self.paths.get(path);
        let mut buffer = [0; INLINE_MAX];
        let (head, fin, message_of);
        let head_len = if matches!(cargo, Cargo::Eager(_)) { self.part.head() } else { 0 };
        let message = Message { mr: outgoing.mr, offset: outgoing.offset + offset, len, tag: 0 };
        let body = match self.inline(message, head_len, &mut buffer) {
            Some(bytes) => Source::Inline(&bytes[head_len..]),
            None => match self.regions.find(outgoing.mr, rail, outgoing.offset + offset, len) {
                Some((_, extent)) => Source::Region(extent),
                None => return Err(CommFault::Revoked),
            },
        };
        let Some(many) = &self.many else { return Ok(Try::Lost) };
        let op = match cargo {
            Cargo::Eager(header) => {
                head = self.part.eager_head(header);
                Op::Send { head: &head[..head_len], body, imm: None }
            }
            Cargo::Bytes { imm, .. } => {
                let Region { key, addr } = many.aims[slot as usize].places[path];
                let to = Remote::data(key, addr.wrapping_add(offset));
                Op::Write { from: body, to, imm }
            }
            Cargo::Fin(stripes) if !self.plan.write_data => {
                message_of = Fin { len: outgoing.len, stripes, token: outgoing.token }.to_message();
                Op::Send { head: &message_of, body: Source::Inline(&[]), imm: None }
            }
            Cargo::Fin(stripes) => {
                let token = outgoing.token;
                fin = Fin { len: outgoing.len, stripes, token }.to_bytes();
                let Region { key, addr } = many.fins[path];
                let place = token.slot() & self.part.fin_mask;
                let at = addr.wrapping_add((place * fin::BYTES) as u64);
                let to = Remote::record(key, at);
                Op::Write { from: Source::Inline(&fin), to, imm: Some(Imm::Fin(token).to_bits()) }
            }
        };
        match rails.get_mut(rail).post(link, self.part.tag | number, op, true) {
            Ok(()) => Ok(Try::Posted),
            // Credit was checked before; a link that has none all the same is broken.
            Err(PostError::Busy | PostError::Refused(Status::Flushed | Status::PeerDead)) => Ok(Try::Lost),
            Err(PostError::Refused(status)) => Err(CommFault::Link(status)),
        }
    }

    /// Posts what waits, as far as credit goes.
    pub(crate) fn post_spread(&mut self, rails: &mut Rails<impl Rail>) -> Result<(), CommFault> {
        if !self.plan.arrives {
            self.post_proofs(rails);
        }
        while let Some(flight) = self.many.as_mut().and_then(|many| many.again.pop_front()) {
            if !self.fly(rails, flight)? {
                if let Some(many) = &mut self.many {
                    many.again.push_front(flight);
                }
                return Ok(());
            }
        }
        while let Some(&slot) = self.unposted.front() {
            if !self.post_pieces(rails, slot)? {
                return Ok(());
            }
            self.unposted.pop_front();
        }
        Ok(())
    }

    /// Posts the stripes of one message that can be posted now; false when credit ran out.
    fn post_pieces(&mut self, rails: &mut Rails<impl Rail>, slot: u16) -> Result<bool, CommFault> {
        loop {
            let outgoing = self.outgoing[slot as usize];
            let (piece, pieces) = self.many.as_ref().map_or((1, 0), |many| {
                let Aim { piece, pieces, .. } = many.aims[slot as usize];
                (piece, pieces)
            });
            let striped = outgoing.is_striped();
            let more = pieces > 0;
            let flight = if more {
                let len = (outgoing.len - outgoing.given).min(piece);
                let index = (outgoing.given / piece) as u8;
                let cargo = match striped {
                    true => Cargo::Bytes {
                        imm: Some(Imm::Stripe(outgoing.token, index).to_bits()),
                        part: Part::Stripe(index),
                    },
                    false => Cargo::Bytes { imm: None, part: Part::Bytes },
                };
                Flight { slot, cargo, offset: outgoing.given, len }
            } else {
                let stripes = match outgoing.fin {
                    FinDue::No => return Ok(true),
                    FinDue::Now(stripes) => stripes,
                    // Stripes that are not proven to have arrived are left, too. The last proof brings the request back.
                    FinDue::Placed | FinDue::Proven if outgoing.left > 0 => return Ok(true),
                    FinDue::Placed | FinDue::Proven => 0,
                };
                Flight { slot, cargo: Cargo::Fin(stripes), offset: 0, len: 0 }
            };
            if !self.fly(rails, flight)? {
                return Ok(false);
            }
            let outgoing = &mut self.outgoing[slot as usize];
            outgoing.left += 1;
            match &mut self.many {
                Some(many) if more => {
                    outgoing.given += flight.len;
                    many.aims[slot as usize].pieces -= 1;
                }
                _ => outgoing.fin = FinDue::No,
            }
        }
    }

    /// What time it is, for what this call does.
    pub(crate) fn set_time(&mut self, now: Instant) {
        if let Some(many) = &mut self.many {
            many.now = now;
        }
    }

    /// A path may be used; megabits a second and nanoseconds, as far as its NIC knows.
    pub(crate) fn link_up(&mut self, path: usize, speed: u64, latency: u64, now: Instant) {
        if let Some(many) = &mut self.many {
            many.spread.up(path, speed, latency, now);
        }
    }

    /// Where fin records go over a path.
    pub(crate) fn fins_of(&self, path: usize) -> Option<Region> {
        self.many.as_ref().map(|many| many.fins[path])
    }

    /// The peer says where fin records go over a path.
    pub(crate) fn set_fins(&mut self, path: usize, fins: Region) {
        if let Some(many) = &mut self.many {
            many.fins[path] = fins;
        }
    }

    /// An operation has completed.
    pub(crate) fn landed(
        &mut self,
        rails: &mut Rails<impl Rail>,
        requests: &Requests,
        number: u64,
    ) -> Result<(), CommFault> {
        let unproven = self.plan.mutant.is("engine-takes-completed-for-arrived");
        if !self.plan.arrives && !unproven {
            return self.told(rails, requests, number);
        }
        let Some(many) = &mut self.many else { return Ok(()) };
        let Some(Posted { flight, path, at, .. }) = many.flights.remove(number) else { return Ok(()) };
        let now = many.now;
        many.spread.on_done(path, flight.len, at, now);
        self.end_slice(rails, flight.len);
        self.arrived(requests, flight.slot);
        self.post_spread(rails)
    }

    /// An operation has completed, which does not tell that it has arrived; or one that proves it of others.
    fn told(
        &mut self,
        rails: &mut Rails<impl Rail>,
        requests: &Requests,
        number: u64,
    ) -> Result<(), CommFault> {
        let path = number.wrapping_sub(PROOF) as usize;
        if path < self.paths.len() {
            return self.proven(rails, requests, path);
        }
        let Some(many) = &mut self.many else { return Ok(()) };
        let Some(posted) = many.flights.untold(number) else { return Ok(()) };
        let Posted { flight, path, at, .. } = *posted;
        let slot = usize::from(flight.slot);
        posted.told = Some((many.aims[slot].receive, self.outgoing[slot].token));
        let now = many.now;
        many.spread.on_done(path, flight.len, at, now);
        let waits = flight.is_announced_later();
        many.proofs.enter(path, number, waits);
        self.end_slice(rails, flight.len);
        if !waits {
            self.arrived(requests, flight.slot);
        }
        self.post_spread(rails)
    }

    /// A piece is under way no more.
    fn end_slice(&mut self, rails: &mut Rails<impl Rail>, len: u64) {
        if self.part.remote.is_some() && len > SMALL_MAX {
            self.part.slices = self.part.slices.saturating_sub(1);
            rails.slices.give(1);
        }
    }

    pub(crate) fn arrived(&mut self, requests: &Requests, slot: u16) {
        let outgoing = &mut self.outgoing[slot as usize];
        outgoing.left = outgoing.left.saturating_sub(1);
        self.end_wait(slot);
        if !self.unposted.contains(&slot) {
            self.finish_if_done(requests, slot);
        }
    }

    /// A path is of no more use: nothing new goes over it, and what it still has to tell is awaited.
    pub(crate) fn lose(&mut self, rails: &mut Rails<impl Rail>, path: usize) {
        if let Some(many) = &mut self.many {
            many.spread.down(path);
        }
        self.paths.leave(rails, path, None, true);
    }

    /// Both ends of a path are in error, and this is what the receiver has: the rest goes again.
    pub(crate) fn settle(
        &mut self,
        rails: &mut Rails<impl Rail>,
        requests: &Requests,
        path: usize,
        standing: Option<&Standing>,
    ) -> Result<(), CommFault> {
        let Some(standing) = standing else { return Err(Fault::Standing.into()) };
        let mutant = self.plan.mutant;
        if let Some(many) = &mut self.many {
            many.proofs.forget(path);
        }
        let mut lost = false;
        while let Some(many) = &mut self.many
            && let Some(Posted { flight, told, .. }) = many.flights.remove_of(path)
        {
            let own = (many.aims[flight.slot as usize].receive, self.outgoing[flight.slot as usize].token);
            let (receive, token) = told.unwrap_or(own);
            let arrived = flight.has_arrived(standing, receive, token);
            let arrived =
                (arrived && !mutant.is("engine-replays-all")) || mutant.is("engine-replays-nothing");
            // Its request is done, and its memory the caller's.
            let ended = told.is_some() && !flight.is_announced_later();
            lost |= ended && !arrived;
            if !arrived && !ended {
                many.again.push_back(flight);
            }
            if told.is_none() {
                self.end_slice(rails, flight.len);
            }
            if arrived && !ended {
                self.arrived(requests, flight.slot);
            }
        }
        if lost && !mutant.is("engine-forgets-what-was-lost") {
            return Err(CommFault::Link(Status::Flushed));
        }
        self.post_spread(rails)?;
        rails.flush();
        Ok(())
    }
}
