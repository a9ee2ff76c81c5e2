//! What a process begins itself: puts, gets, atomics and signals of one context, towards any member. A lane with rails of its
//! own, used by one thread at a time; the rules are in `trunkline_proto::rma`.

use std::collections::HashMap;
use std::os::fd::OwnedFd;

use trunkline_fabric::{
    Access, Completion, Done, Extent, LinkAddress, LinkId, Op, PostError, Purpose, Rail, Remote, RemoteKey,
    Source as From, Status,
};
use trunkline_mem::Memory;
use trunkline_proto::id::ProcessId;
use trunkline_proto::mutant::Mutant;
use trunkline_proto::rma::Path;
use trunkline_proto::rma::atomic::Atomic;
use trunkline_proto::rma::calls::{Answer, Refused};
use trunkline_proto::rma::ledger::{Ledger, Quiet};
use trunkline_proto::rma::outgoing::{self, Busy, Order, Sealed, Tag};
use trunkline_proto::slots::SlotId;
use trunkline_proto::wire::dial::{Heap as Told, Refusal, Word};
use trunkline_proto::wire::rma::atomic::{Outcome, Slot};
use trunkline_proto::wire::rma::signal::Update;
use trunkline_proto::wire::rma::{Message, Stream, word};

use crate::rma::error::{Lost, RmaError};
use crate::rma::heap::Heap;
use crate::rma::job::{Member, caps_of};
use crate::rma::peer::{Found, Link, Peer, Stage};
use crate::rma::receives::Receives;

/// Operations of a context that may be under way.
const OPS: u32 = 4096;
/// Completions that one look at a rail takes.
const BATCH: usize = 32;
/// Answers that may be under way to one link of a context: replies and acknowledgements.
pub(super) const ANSWERS_MAX: u32 = 64 + 8;
/// Bytes of a piece, where a long transfer is spread over several paths.
const STRIPE: u64 = 512 << 10;
/// Bytes of a piece at most.
const PIECE_MAX: u64 = 1 << 30;
/// Puts without a signal after which they are not counted any more.
const REVERT_AFTER: u32 = 256;
/// `wr_id` of messages, of which only failures are told.
const MESSAGE: u64 = u64::MAX;

/// Names a context of a job.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct ContextId(pub(super) Stream);

/// Bytes of a heap of this process.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Local {
    /// Which heap.
    pub heap: u8,
    /// The first byte.
    pub offset: u64,
    /// How many.
    pub len: u64,
}

/// Where the bytes of a put come from.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Source<'a> {
    /// Copied before the call returns; at most [`Job::inline_max`](crate::rma::Job::inline_max).
    Bytes(&'a [u8]),
    /// A heap of this process, not to be changed before a quiet.
    Heap(Local),
}

/// Names an atomic whose value was asked for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[must_use = "the value is lost"]
pub struct Fetch {
    peer: u32,
    slot: Slot,
}

/// What an operation in the ledger is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Note {
    /// A write that was counted, or a read; its bytes.
    Plain(u32),
    /// A write that was not counted, of which the stream is to know; its bytes.
    Uncounted(u32),
    /// A proof that all before it on its path is there, and how many uncounted writes that are.
    Proof(u32),
    /// An atomic, until its reply.
    Call,
}

impl Note {
    const fn bytes(self) -> u64 {
        match self {
            Self::Plain(bytes) | Self::Uncounted(bytes) => bytes as u64,
            Self::Proof(_) | Self::Call => 0,
        }
    }
}

/// The lane.
pub(super) struct Context<R: Rail> {
    stream: Stream,
    rails: Vec<R>,
    heaps: Vec<Heap>,
    ledger: Ledger<Note>,
    peers: Vec<Peer>,
    /// By member.
    known: HashMap<Member, u32>,
    /// By rail, then by the link's number: peer and path.
    names: Vec<Vec<Option<(u32, u8)>>>,
    /// Completed means arrived.
    arrives: bool,
    order: Order,
    pub(super) inline_max: u64,
    message_max: u64,
    batch: [Completion; BATCH],
    /// Receives of each link, for answers.
    answers: u32,
    /// Some link has receives that found no room.
    starves: bool,
    /// How the last failure was called.
    why: Status,
    mutant: Mutant,
}

const NOTHING: Completion =
    Completion { wr_id: 0, link: LinkId(0), done: Done::Posted, status: Status::Ok, imm: None, len: 0 };

/// Context, peer and path in the id of a link that is dialled.
pub(super) fn dialled(id: u64) -> (usize, u32, u8) {
    ((id >> 40) as usize & 63, (id >> 8) as u32, id as u8)
}

impl<R: Rail> Context<R> {
    /// One on these rails, for these heaps.
    pub(super) fn new(
        stream: Stream,
        (rails, answers): (Vec<R>, u32),
        heaps: &[Memory],
        mutant: Mutant,
    ) -> Result<Self, RmaError> {
        let register = |memory| Heap::new(&rails, memory, Access::LOCAL);
        let heaps = heaps.iter().map(register).collect::<Result<_, _>>()?;
        let (arrives, write_data, inline_max, message_max) = caps_of(&rails);
        let order = if write_data { Order::Counted { revert_after: REVERT_AFTER } } else { Order::Completed };
        let mut ledger = Ledger::new(mutant);
        ledger.grow(0, OPS);
        let names = rails.iter().map(|_| Vec::new()).collect();
        let (peers, known) = (Vec::new(), HashMap::new());
        let (batch, why) = ([NOTHING; BATCH], Status::Ok);
        Ok(Self {
            stream,
            rails,
            heaps,
            ledger,
            peers,
            known,
            names,
            arrives,
            order,
            inline_max,
            message_max,
            batch,
            answers,
            starves: false,
            why,
            mutant,
        })
    }

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
    fn make(&mut self, rail: usize) -> Result<(Link, LinkAddress), RmaError> {
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
    fn lose(&mut self, at: u32, path: u8, lost: Lost) {
        let Some(peer) = self.peers.get_mut(at as usize).filter(|peer| peer.lost.is_none()) else { return };
        for link in &mut peer.links {
            (link.stage, link.unproven) = (Stage::Gone, false);
            self.rails[link.rail].fail(link.link);
        }
        peer.lost = Some(lost);
        peer.found.iter_mut().for_each(|found| found.1 = None);
        if let Lost::Rails(status) = lost {
            self.why = status;
        }
        if let Some(path) = Path::new(path) {
            self.ledger.lose(at, path, |_| ());
        }
    }

    /// Takes what has finished. Whether there was anything.
    pub(super) fn progress(&mut self) -> bool {
        let mut moved = self.raise();
        if self.starves {
            self.feed();
        }
        for rail in 0..self.rails.len() {
            let count = self.rails[rail].poll(&mut self.batch);
            moved |= count > 0;
            for index in 0..count {
                let completion = self.batch[index];
                let name = self.names[rail].get(completion.link.0 as usize).copied().flatten();
                if let Some((at, path)) = name {
                    self.on_completion(at, path, &completion);
                }
            }
        }
        moved
    }

    /// Posts receives that found no room before.
    #[cold]
    fn feed(&mut self) {
        self.starves = false;
        for link in self.peers.iter_mut().flat_map(|peer| &mut peer.links) {
            self.starves |= !link.receives.post(&mut self.rails[link.rail], link.link);
        }
    }

    /// Looks whether links that are made are up.
    fn raise(&mut self) -> bool {
        let mut raised = false;
        for at in 0..self.peers.len() {
            if !self.peers[at].links.iter().any(|link| link.stage == Stage::Made) {
                continue;
            }
            for path in 0..self.peers[at].links.len() {
                let link = &mut self.peers[at].links[path];
                if link.stage != Stage::Made {
                    continue;
                }
                match self.rails[link.rail].is_up(link.link) {
                    Ok(false) => {}
                    Ok(true) => (link.stage, raised) = (Stage::Up, true),
                    Err(_) => {
                        self.lose(at as u32, path as u8, Lost::Rails(Status::PeerDead));
                        break;
                    }
                }
            }
        }
        raised
    }

    fn on_completion(&mut self, at: u32, path: u8, completion: &Completion) {
        if completion.status != Status::Ok {
            return self.lose(at, path, Lost::Rails(completion.status));
        }
        match completion.done {
            // What is told of a link that was given up was counted as failed.
            _ if self.peers.get(at as usize).is_none_or(|peer| peer.lost.is_some()) => {}
            Done::Posted if completion.wr_id == MESSAGE => {}
            Done::Posted => self.on_done(SlotId::from_bits(completion.wr_id)),
            // Nobody writes here but with records, of which there are none.
            Done::Written => {}
            Done::Received => self.on_message(at, path, completion),
        }
    }

    fn on_done(&mut self, id: SlotId) {
        let Ok(op) = self.ledger.done(id) else { return };
        let Some(peer) = self.peers.get_mut(op.peer as usize) else { return };
        if let Some(link) = peer.links.get_mut(op.path.index()) {
            link.bytes -= op.note.bytes();
        }
        match op.note {
            // Told twice it is told to the ledger twice, which counts that.
            Note::Uncounted(_) if self.arrives => {
                let _ = peer.outgoing.on_plain_done();
            }
            Note::Proof(writes) => {
                for _ in 0..writes {
                    let _ = peer.outgoing.on_plain_done();
                }
            }
            Note::Uncounted(_) | Note::Plain(_) | Note::Call => {}
        }
    }

    fn on_message(&mut self, at: u32, path: u8, completion: &Completion) {
        let Some(peer) = self.peers.get_mut(at as usize) else { return };
        let Some(link) = peer.links.get_mut(usize::from(path)) else { return };
        let message = link.receives.take(completion.wr_id, completion.len);
        self.starves |= !link.receives.post(&mut self.rails[link.rail], link.link);
        let kept = match message {
            Ok(Message::Reply(reply)) if reply.stream == self.stream => self.on_reply(at, &reply),
            Ok(Message::Ack(ack)) if ack.stream == self.stream => match peer.outgoing.on_ack(ack) {
                Ok(signals) => self.ledger.acknowledged(at, signals as u32).is_ok(),
                Err(_) => false,
            },
            _ => false,
        };
        if !kept {
            self.lose(at, path, Lost::Protocol);
        }
    }

    /// Whether somebody asked for it.
    fn on_reply(&mut self, at: u32, reply: &trunkline_proto::wire::rma::atomic::Reply) -> bool {
        let peer = &mut self.peers[at as usize];
        let Ok(answer) = peer.calls.on_reply(reply) else { return false };
        let Answer::First(_, outcome) = answer else { return true };
        let found = &mut peer.found[reply.slot.index()];
        found.2 = match outcome {
            Outcome::Done(value) => Found::Value(value),
            Outcome::Refused => Found::Nowhere,
        };
        let Some(id) = found.1.take() else { return true };
        match outcome {
            Outcome::Done(_) => self.ledger.done(id).is_ok(),
            Outcome::Refused => self.ledger.failed(id).is_ok(),
        }
    }

    /// Takes the place of a peer that carries, unless its fence waits.
    fn ready(&mut self, member: Member) -> Option<u32> {
        let at = *self.known.get(&member)?;
        if self.peers[at as usize].fenced {
            if self.quiet_of(at) != Ok(Quiet::Done) {
                return None;
            }
            self.peers[at as usize].fenced = false;
        }
        Some(at)
    }

    /// Puts the first bytes of these: how many. `None` if there is no room now.
    pub(super) fn put(
        &mut self,
        member: Member,
        heap: u8,
        offset: u64,
        from: Source<'_>,
    ) -> Result<Option<u64>, RmaError> {
        let (source, len) = self.source(from)?;
        let Some((at, path, len)) = self.route(member, len) else { return Ok(None) };
        let peer = &mut self.peers[at as usize];
        let to = remote(&peer.links[path], heap, offset, len)?;
        let Some(on) = Path::new(path as u8) else { return Ok(None) };
        let tag = match peer.outgoing.put(on) {
            Ok(tag) => tag,
            Err(busy) => {
                if busy == Busy::Plain {
                    self.prove(at);
                }
                return Ok(None);
            }
        };
        self.write(at, path, to, source.first(len), tag)?;
        Ok(Some(len))
    }

    /// The peer, the path, and how many of so many bytes go over it at once.
    fn route(&mut self, member: Member, len: u64) -> Option<(u32, usize, u64)> {
        let at = self.ready(member)?;
        let (peer, rails) = (&self.peers[at as usize], &self.rails);
        let path = peer.path(|link| rails[link.rail].credits(link.link) > 0)?;
        let most = if peer.has_several() && len > 2 * STRIPE { STRIPE } else { PIECE_MAX };
        Some((at, path, len.min(most).min(self.message_max)))
    }

    /// Posts a write that the stream has taken. There is room for it.
    fn write(
        &mut self,
        at: u32,
        path: usize,
        to: Remote,
        source: Sourced<'_>,
        tag: Tag,
    ) -> Result<(), RmaError> {
        let bytes = source.len() as u32;
        let (imm, note) = match tag {
            Tag::Plain => (None, Note::Uncounted(bytes)),
            Tag::Counted(imm) => (Some(imm), Note::Plain(bytes)),
        };
        let on = Path::new(path as u8).ok_or(RmaError::Unknown)?;
        let link = &mut self.peers[at as usize].links[path];
        let rail = &mut self.rails[link.rail];
        let from = source.on(&self.heaps, link.rail)?;
        let id = self.ledger.begin(at, on, note).map_err(|_| RmaError::Unknown)?;
        link.unproven |= !self.arrives;
        link.uncounted += u32::from(!self.arrives && tag == Tag::Plain);
        link.bytes += u64::from(bytes);
        match rail.post(link.link, id.to_bits(), Op::Write { from, to, imm }, true) {
            Ok(()) => rail.flush(),
            // There was a credit: the link has ended, which its completions tell, too.
            Err(PostError::Busy) => self.lose(at, path as u8, Lost::Rails(Status::Flushed)),
            Err(PostError::Refused(status)) => self.lose(at, path as u8, Lost::Rails(status)),
        }
        Ok(())
    }

    /// Gets the first bytes of these: how many. `None` if there is no room now.
    pub(super) fn get(
        &mut self,
        member: Member,
        heap: u8,
        offset: u64,
        into: Local,
    ) -> Result<Option<u64>, RmaError> {
        let (_, len) = self.source(Source::Heap(into))?;
        let Some((at, path, len)) = self.route(member, len) else { return Ok(None) };
        let link = &mut self.peers[at as usize].links[path];
        let from = remote(link, heap, offset, len)?;
        let (Some(on), Some(mr)) = (
            Path::new(path as u8),
            self.heaps.get(usize::from(into.heap)).and_then(|heap| heap.on(link.rail)),
        ) else {
            return Err(RmaError::Unknown);
        };
        let into: Extent = mr.extent(into.offset, len);
        let Ok(id) = self.ledger.begin(at, on, Note::Plain(len as u32)) else { return Ok(None) };
        link.bytes += len;
        let rail = &mut self.rails[link.rail];
        match rail.post(link.link, id.to_bits(), Op::Read { into, from }, true) {
            Ok(()) => rail.flush(),
            Err(PostError::Busy) => self.lose(at, path as u8, Lost::Rails(Status::Flushed)),
            Err(PostError::Refused(status)) => self.lose(at, path as u8, Lost::Rails(status)),
        }
        Ok(Some(len))
    }

    /// Asks for an atomic. `None` if there is no room now.
    pub(super) fn atomic(
        &mut self,
        member: Member,
        word: word::Word,
        atomic: Atomic,
    ) -> Result<Option<Fetch>, RmaError> {
        let Some(at) = self.ready(member) else { return Ok(None) };
        let peer = &mut self.peers[at as usize];
        let rails = &self.rails;
        // One of the receives is for what asks, and of those for answers one in four for acknowledgements.
        let out = u64::from(peer.calls.len()) + peer.outgoing.unacknowledged();
        let most = u64::from(self.answers - self.answers / 4);
        let takes = |link: &Link| out + 1 < u64::from(link.credit) && u64::from(peer.calls.len()) < most;
        let has_room = |link: &Link| takes(link) && rails[link.rail].credits(link.link) > 0;
        let Some(path) = peer.path(has_room) else {
            // What is not acknowledged takes the receives: its target is asked.
            self.ask(at);
            return Ok(None);
        };
        let Some(on) = Path::new(path as u8) else { return Ok(None) };
        let request = match peer.calls.begin(word, atomic) {
            Ok(request) => request,
            Err(Refused::Busy) => return Ok(None),
            Err(Refused::Width) => return Err(RmaError::Argument("the word is not as wide as the type")),
        };
        let slot = request.slot;
        let id = self.ledger.begin(at, on, Note::Call).ok();
        peer.found[slot.index()] = (slot.generation(), id, Found::Pending);
        self.send(at, path, &Message::Request(request));
        Ok(Some(Fetch { peer: at, slot }))
    }

    /// The value that an atomic has found; `None` if it is not known yet.
    pub(super) fn fetched(&mut self, fetch: Fetch) -> Result<Option<u64>, RmaError> {
        let peer = self.peers.get(fetch.peer as usize).ok_or(RmaError::Unknown)?;
        let (generation, _, found) = peer.found[fetch.slot.index()];
        match found {
            _ if generation != fetch.slot.generation() => Err(RmaError::Unknown),
            Found::Value(value) => Ok(Some(value)),
            Found::Nowhere => Err(RmaError::NoWord(peer.member)),
            Found::Pending => match peer.lost {
                Some(lost) => Err(RmaError::Lost { member: peer.member, lost }),
                None => Ok(None),
            },
        }
    }

    /// Signals. False if there is no room now.
    pub(super) fn signal(&mut self, member: Member, update: Update) -> Result<bool, RmaError> {
        let Some(at) = self.ready(member) else { return Ok(false) };
        let peer = &mut self.peers[at as usize];
        let rails = &self.rails;
        let out = u64::from(peer.calls.len()) + peer.outgoing.unacknowledged();
        let has_room =
            |link: &Link| out + 1 < u64::from(link.credit) && rails[link.rail].credits(link.link) > 0;
        let Some(path) = peer.path(has_room) else {
            // What is not acknowledged takes the receives: its target is asked.
            self.ask(at);
            return Ok(false);
        };
        let sealed = match peer.outgoing.begin() {
            Ok(batch) => peer.outgoing.end(batch, update, false).map_err(|(batch, busy)| {
                peer.outgoing.abandon(batch);
                busy
            }),
            Err(busy) => Err(busy),
        };
        match sealed {
            Ok(Sealed::Message(signal)) => {
                // There is such a peer.
                let _ = self.ledger.signalled(at);
                self.send(at, path, &Message::Signal(signal));
                Ok(true)
            }
            Ok(Sealed::Fenced(_)) => Err(RmaError::Argument("no NIC of this context executes signals")),
            Err(busy) => {
                if busy == Busy::Plain {
                    self.prove(at);
                }
                Ok(false)
            }
        }
    }

    /// Sends a message over a path that has room.
    fn send(&mut self, at: u32, path: usize, message: &Message) {
        let link = &self.peers[at as usize].links[path];
        let rail = &mut self.rails[link.rail];
        let (bytes, len) = message.to_bytes();
        let op = Op::Send { head: &bytes[..len], body: From::Inline(&[]), imm: None };
        // A link that takes none has ended, which its completions tell.
        let _ = rail.post(link.link, MESSAGE, op, false);
        rail.flush();
    }

    /// Posts proofs on the paths on which something has completed that need not have arrived.
    fn prove(&mut self, at: u32) {
        if self.arrives {
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
    fn ask(&mut self, at: u32) {
        let (peer, rails) = (&mut self.peers[at as usize], &self.rails);
        if let Some(path) = peer.path(|link| rails[link.rail].credits(link.link) > 0)
            && let outgoing::Quiet::Ask(ask) = peer.outgoing.quiet()
        {
            self.send(at, path, &Message::Ask(ask));
        }
    }

    /// How a quiet towards one peer stands; asks for what has to be asked for.
    fn quiet_of(&mut self, at: u32) -> Result<Quiet, trunkline_proto::rma::ledger::Failed> {
        self.prove(at);
        self.ask(at);
        match self.ledger.quiet_peer(at) {
            // What completed has yet to be proven to be there.
            Ok(Quiet::Done) if self.peers[at as usize].links.iter().any(|link| link.unproven) => {
                Ok(Quiet::Pending)
            }
            told => told,
        }
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
        if self.ledger.quiet() == Ok(Quiet::Done) && self.arrives {
            return Ok(true);
        }
        for at in 0..self.peers.len() as u32 {
            if self.peers[at as usize].lost.is_none() {
                self.prove(at);
                self.ask(at);
            }
        }
        let proven = |peer: &Peer| peer.lost.is_some() || !peer.links.iter().any(|link| link.unproven);
        match self.ledger.quiet() {
            Ok(quiet) => Ok(quiet == Quiet::Done && self.peers.iter().all(proven)),
            Err(failed) => Err(self.failed(failed.peer, failed.path)),
        }
    }

    fn failed(&self, peer: u32, path: Path) -> RmaError {
        let member = self.peers.get(peer as usize).map_or(Member::MAX, |peer| peer.member);
        RmaError::Failed { member, rail: path.index(), status: self.why }
    }

    /// What is posted from now on towards a member comes after all that was.
    pub(super) fn fence(&mut self) {
        let free = self.arrives && self.rails.len() == 1 && self.rails[0].caps().link_order;
        if !free {
            for at in 0..self.peers.len() as u32 {
                self.peers[at as usize].fenced |= self.ledger.pending(at) > 0 || !self.arrives;
            }
        }
    }

    fn source<'a>(&self, from: Source<'a>) -> Result<(Sourced<'a>, u64), RmaError> {
        match from {
            Source::Bytes(bytes) if bytes.len() as u64 > self.inline_max => {
                Err(RmaError::Argument("more bytes than are copied at once"))
            }
            Source::Bytes(bytes) => Ok((Sourced::Bytes(bytes), bytes.len() as u64)),
            Source::Heap(local) => {
                let memory = self.heaps.get(usize::from(local.heap)).and_then(Heap::memory);
                let memory = memory.ok_or(RmaError::Argument("there is no such heap"))?;
                memory
                    .checked(local.offset, local.len)
                    .map_err(|_| RmaError::Argument("outside of the heap"))?;
                Ok((Sourced::Heap(local), local.len))
            }
        }
    }
}

/// Where bytes come from, once that was checked.
#[derive(Clone, Copy)]
enum Sourced<'a> {
    Bytes(&'a [u8]),
    Heap(Local),
}

impl<'a> Sourced<'a> {
    fn len(self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::Heap(local) => local.len,
        }
    }

    /// The first of them; bytes go whole.
    fn first(self, len: u64) -> Self {
        match self {
            Self::Bytes(bytes) => Self::Bytes(bytes),
            Self::Heap(local) => Self::Heap(Local { len, ..local }),
        }
    }

    fn on(self, heaps: &[Heap], rail: usize) -> Result<From<'a>, RmaError> {
        match self {
            Self::Bytes(bytes) => Ok(From::Inline(bytes)),
            Self::Heap(local) => {
                let mr = heaps.get(usize::from(local.heap)).and_then(|heap| heap.on(rail));
                Ok(From::Region(mr.ok_or(RmaError::Unknown)?.extent(local.offset, local.len)))
            }
        }
    }
}

/// Where bytes of a member's heap are, over a link.
fn remote(link: &Link, heap: u8, offset: u64, len: u64) -> Result<Remote, RmaError> {
    let heap = link.heaps.get(usize::from(heap)).ok_or(RmaError::Argument("the member has no such heap"))?;
    let inside = offset.checked_add(len).is_some_and(|end| end <= heap.len);
    if !inside {
        return Err(RmaError::Argument("outside of the member's heap"));
    }
    let (key, addr) = (RemoteKey(heap.region.key), heap.region.addr.wrapping_add(offset));
    Ok(Remote { key, addr, purpose: Purpose::Bounce })
}
