//! What a process does for others: it owns the far ends of the links to it, applies signals, executes atomics and answers. One
//! lane; polled by every call of the job, and by whoever makes progress for it.

use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;

use trunkline_fabric::{
    Completion, Done, LinkAddress, LinkError, LinkId, Op, PostError, Rail, RegisterError, Source, Status,
};
use trunkline_proto::mutant::Mutant;
use trunkline_proto::rma::inbox::{Inbox, Took};
use trunkline_proto::rma::served::{Served, Service as Serving};
use trunkline_proto::rma::shape::Shape;
use trunkline_proto::rma::{Fault, Path};
use trunkline_proto::slots::{SlotId, Slots};
use trunkline_proto::wire::dial::Heap as Told;
use trunkline_proto::wire::rma::atomic::{Outcome, Request};
use trunkline_proto::wire::rma::word::Word;
use trunkline_proto::wire::rma::{Message, Stream};

use crate::rma::heap::{self, Heap};
use crate::rma::receives::Receives;

/// Links to one process.
const LINKS_MAX: usize = 65_536;
/// Completions that one look at a rail takes.
const BATCH: usize = 32;
/// Messages that a context may have under way to a process over one link: requests, signals and an ask.
pub(super) const RECEIVES_MAX: u32 = 64 + 128 + 8;
/// `wr_id` of answers, of which only failures are told.
const ANSWER: u64 = u64::MAX;

/// The far end of a link.
struct Link {
    member: u32,
    stream: Stream,
    path: Path,
    rail: usize,
    link: LinkId,
    /// The control stream that it was asked for on.
    control: SlotId,
    receives: Receives,
    /// Answers that the link had no room for.
    owed: VecDeque<Message>,
}

/// What is known of a member that has links here.
struct Member {
    inbox: Inbox,
    /// What its requests have led to, by stream.
    served: HashMap<Stream, Served>,
    links: u32,
}

/// The lane.
pub(super) struct Service<R: Rail> {
    rails: Vec<R>,
    heaps: Vec<Heap>,
    links: Slots<Link>,
    /// By rail, then by the link's number.
    names: Vec<Vec<Option<SlotId>>>,
    members: HashMap<u32, Member>,
    /// Of each link.
    receives: u32,
    /// Some link has receives that found no room.
    starves: bool,
    batch: [Completion; BATCH],
    mutant: Mutant,
}

/// Why a link is not made.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refused {
    #[error(transparent)]
    Link(#[from] LinkError),
    #[error(transparent)]
    Register(#[from] RegisterError),
    #[error("too many links")]
    Full,
}

/// Whose link it is to be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Caller {
    pub(super) member: u32,
    pub(super) stream: Stream,
    pub(super) path: Path,
    pub(super) control: SlotId,
}

const NOTHING: Completion =
    Completion { wr_id: 0, link: LinkId(0), done: Done::Posted, status: Status::Ok, imm: None, len: 0 };

impl<R: Rail> Service<R> {
    /// One on these rails, with so many receives for each link.
    pub(super) fn new(rails: Vec<R>, receives: u32, mutant: Mutant) -> Self {
        let names = rails.iter().map(|_| Vec::new()).collect();
        let (links, members) = (Slots::new(LINKS_MAX), HashMap::new());
        let starves = false;
        let (heaps, batch) = (Vec::new(), [NOTHING; BATCH]);
        Self { rails, heaps, links, names, members, receives, starves, batch, mutant }
    }

    /// Its rails.
    pub(super) fn rails(&self) -> &[R] {
        &self.rails
    }

    /// One heap more.
    pub(super) fn add_heap(&mut self, heap: Heap) {
        self.heaps.push(heap);
    }

    /// Messages that may be under way to it over a link.
    pub(super) fn receives(&self) -> u32 {
        self.receives
    }

    /// Links that there are.
    pub(super) fn len(&self) -> usize {
        self.links.len()
    }

    /// Makes the far end of a link: its name here, its address, and the heaps as they are reached over it.
    ///
    /// # Errors
    /// [`Refused`]; nothing is left of it.
    pub(super) fn take(
        &mut self,
        caller: Caller,
        address: Vec<u8>,
        fd: Option<OwnedFd>,
    ) -> Result<(SlotId, LinkAddress, Vec<Told>), Refused> {
        let at = caller.path.index() % self.rails.len();
        let rail = &mut self.rails[at];
        let link = rail.create()?;
        let make = || -> Result<(Receives, LinkAddress), Refused> {
            let receives = Receives::new(rail, self.receives)?;
            let ours = rail.address(link)?;
            rail.connect(link, LinkAddress { bytes: address, fd })?;
            Ok((receives, ours))
        };
        let (receives, ours) = match make() {
            Ok(made) => made,
            Err(error) => {
                rail.destroy(link);
                return Err(error);
            }
        };
        let Caller { member, stream, path, control } = caller;
        let owed = VecDeque::new();
        self.starves = true;
        let entry = Link { member, stream, path, rail: at, link, control, receives, owed };
        let Ok(id) = self.links.insert(entry) else {
            self.rails[at].destroy(link);
            return Err(Refused::Full);
        };
        let names = &mut self.names[at];
        names.resize(names.len().max(link.0 as usize + 1), None);
        names[link.0 as usize] = Some(id);
        let inbox = || Inbox::new(Shape::WIRE, self.mutant);
        let known = || Member { inbox: inbox(), served: HashMap::new(), links: 0 };
        let known = self.members.entry(member).or_insert_with(known);
        known.links += 1;
        known.inbox.grow(stream);
        known.served.entry(stream).or_insert_with(|| Served::new(self.mutant));
        let told = self.heaps.iter().filter_map(|heap| heap.told(at)).collect();
        Ok((id, ours, told))
    }

    /// A link is of no more use.
    pub(super) fn leave(&mut self, id: SlotId) {
        let Some(link) = self.links.remove(id) else { return };
        self.rails[link.rail].destroy(link.link);
        if let Some(name) = self.names[link.rail].get_mut(link.link.0 as usize) {
            *name = None;
        }
        if let Some(member) = self.members.get_mut(&link.member) {
            member.links -= 1;
            if member.links == 0 {
                self.members.remove(&link.member);
            }
        }
    }

    /// The same, if its peer says so on the stream on which it was asked for.
    pub(super) fn leave_as(&mut self, id: SlotId, control: SlotId) {
        if self.links.get(id).is_some_and(|link| link.control == control) {
            self.leave(id);
        }
    }

    /// A control stream has ended, and with it the process that asked for these links.
    pub(super) fn lose(&mut self, control: SlotId) {
        let its = |(id, link): (SlotId, &Link)| (link.control == control).then_some(id);
        let lost: Vec<SlotId> = self.links.iter().filter_map(its).collect();
        lost.into_iter().for_each(|id| self.leave(id));
    }

    /// Takes what has come and answers. Whether there was anything.
    pub(super) fn progress(&mut self) -> bool {
        let mut moved = false;
        if self.starves {
            self.feed();
        }
        for at in 0..self.rails.len() {
            let count = self.rails[at].poll(&mut self.batch);
            moved |= count > 0;
            for index in 0..count {
                let completion = self.batch[index];
                let name = self.names[at].get(completion.link.0 as usize).copied().flatten();
                let Some(id) = name else { continue };
                if self.on_completion(id, &completion).is_err() {
                    // It breaks the protocol, or its link is lost: its control stream tells which, in its time.
                    self.leave(id);
                }
            }
            if count > 0 {
                self.rails[at].flush();
            }
        }
        moved
    }

    /// Posts receives that found no room before.
    #[cold]
    fn feed(&mut self) {
        self.starves = false;
        for (_, link) in self.links.iter_mut() {
            self.starves |= !link.receives.post(&mut self.rails[link.rail], link.link);
        }
    }

    fn on_completion(&mut self, id: SlotId, completion: &Completion) -> Result<(), Fault> {
        let Some(link) = self.links.get_mut(id) else { return Ok(()) };
        let lost = Fault::Epoch(u64::MAX);
        match completion.done {
            _ if completion.status != Status::Ok => Err(lost),
            Done::Posted => Ok(()),
            Done::Written => {
                let Some(member) = self.members.get_mut(&link.member) else { return Ok(()) };
                let imm = completion.imm.ok_or(lost)?;
                let took = member.inbox.on_write(imm, link.path)?;
                self.apply(id, took)
            }
            Done::Received => {
                let message = link.receives.take(completion.wr_id, completion.len).map_err(|_| lost)?;
                self.starves |= !link.receives.post(&mut self.rails[link.rail], link.link);
                self.on_message(id, &message)
            }
        }
    }

    fn on_message(&mut self, id: SlotId, message: &Message) -> Result<(), Fault> {
        let Some(link) = self.links.get_mut(id) else { return Ok(()) };
        let Some(member) = self.members.get_mut(&link.member) else { return Ok(()) };
        let foreign = Fault::Epoch(u64::MAX);
        match message {
            Message::Request(request) if request.stream == link.stream => self.serve(id, request),
            Message::Signal(signal) if signal.stream == link.stream => {
                let took = member.inbox.on_signal(signal)?;
                self.apply(id, took)
            }
            Message::Ask(ask) if ask.stream == link.stream => {
                let took = member.inbox.on_ask(ask)?;
                self.apply(id, took)
            }
            _ => Err(foreign),
        }
    }

    /// Applies the signals whose turn it is, and acknowledges.
    fn apply(&mut self, id: SlotId, took: Took) -> Result<(), Fault> {
        let Some(link) = self.links.get_mut(id) else { return Ok(()) };
        let Some(member) = self.members.get_mut(&link.member) else { return Ok(()) };
        if let Took::Ready(stream) = took {
            while let Some(update) = member.inbox.take(stream) {
                let word = update.word();
                // A word that is not there is applied by nobody; the initiator had no right to name it.
                heap::update(&self.heaps, word, |old| update.apply(old));
            }
        }
        while let Some(ack) = member.inbox.next_ack() {
            link.owed.push_back(Message::Ack(ack));
        }
        self.answer(id);
        Ok(())
    }

    fn serve(&mut self, id: SlotId, request: &Request) -> Result<(), Fault> {
        let Some(link) = self.links.get_mut(id) else { return Ok(()) };
        let Some(member) = self.members.get_mut(&link.member) else { return Ok(()) };
        let Some(served) = member.served.get_mut(&link.stream) else { return Ok(()) };
        let (heaps, mutant) = (&self.heaps, self.mutant);
        let execute = |request: &Request| {
            let (word, atomic): (Word, _) = (request.word(), request.atomic());
            heap::update(heaps, word, |old| atomic.apply(old, mutant)).map_or(Outcome::Refused, Outcome::Done)
        };
        match served.serve(request, execute)? {
            Serving::Now(reply) | Serving::Again(reply) => link.owed.push_back(Message::Reply(reply)),
            Serving::Past => {}
        }
        self.answer(id);
        Ok(())
    }

    /// Sends what is owed, as far as there is room. A link that takes none has failed, which its own completion tells.
    fn answer(&mut self, id: SlotId) {
        let Some(link) = self.links.get_mut(id) else { return };
        let rail = &mut self.rails[link.rail];
        while let Some(message) = link.owed.front() {
            let (bytes, len) = message.to_bytes();
            let op = Op::Send { head: &bytes[..len], body: Source::Inline(&[]), imm: None };
            match rail.post(link.link, ANSWER, op, false) {
                Ok(()) => drop(link.owed.pop_front()),
                Err(PostError::Busy) => return,
                Err(PostError::Refused(_)) => return link.owed.clear(),
            }
        }
    }

    /// Goes on with answers that found no room.
    pub(super) fn answer_all(&mut self) {
        let owing: Vec<SlotId> =
            self.links.iter().filter(|(_, link)| !link.owed.is_empty()).map(|(id, _)| id).collect();
        owing.into_iter().for_each(|id| self.answer(id));
    }
}
