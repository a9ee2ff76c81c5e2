//! What a process does for others: it owns the far ends of the links to it, applies signals, executes atomics and answers. One
//! lane; polled by every call of the job, and by whoever makes progress for it.

use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use trunkline_fabric::{
    Completion, Done, LinkAddress, LinkError, LinkId, Op, PassedFd, PostError, Rail, RegisterError, Source,
    Status, Wake,
};
use trunkline_proto::limits::{LINKS_MAX as PATHS_MAX, RMA_HEAPS_TOLD_MAX};
use trunkline_proto::mutant::Mutant;
use trunkline_proto::reserve::{OutOfMemory, try_filled};
use trunkline_proto::rma::inbox::{Inbox, Took};
use trunkline_proto::rma::incoming::MakeUp;
use trunkline_proto::rma::served::{Served, Service as Answer};
use trunkline_proto::rma::shape::Shape;
use trunkline_proto::rma::{Fault, Path};
use trunkline_proto::slots::{SlotId, Slots};
use trunkline_proto::time::Duration;
use trunkline_proto::wire::dial::{Heap as Told, Refusal, Word};
use trunkline_proto::wire::rma::atomic::{Outcome, Request};
use trunkline_proto::wire::rma::signal::Ack;
use trunkline_proto::wire::rma::{Message, Stream, word};

use crate::params::Params;
use crate::rma::heap::{self, Heap};
use crate::rma::receives::Receives;

/// Links to one process.
const LINKS_MAX: usize = 65_536;
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
    /// The control stream that it was asked for on, and what it is called there.
    control: SlotId,
    id: u64,
    receives: Receives,
    /// Answers that the link had no room for.
    owed: VecDeque<Message>,
    /// Something has come over it: the other end is up.
    heard: bool,
    /// It is in error, and may have more to tell.
    leaving: bool,
}

/// What is served of a stream, until its context leaves or its process ends: longer than any link of it.
struct Serving {
    control: SlotId,
    /// What its requests have led to.
    served: Served,
    links: [Option<SlotId>; PATHS_MAX],
}

/// What is known of a member that has streams here.
struct Member {
    inbox: Inbox,
    streams: HashMap<Stream, Serving>,
}

/// The lane.
pub(super) struct Service<R: Rail> {
    rails: Vec<R>,
    heaps: Vec<Option<Heap>>,
    links: Slots<Link>,
    /// By rail, then by the link's number.
    names: Vec<Vec<Option<SlotId>>>,
    members: HashMap<u32, Member>,
    /// Of each link.
    receives: u32,
    /// Some link has receives that found no room.
    starves: bool,
    /// Links that are being left.
    leaving: Vec<SlotId>,
    /// Words for control streams, which others have right now.
    pub(super) words: Vec<(SlotId, Word)>,
    stirred: u64,
    batch: Box<[Completion]>,
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
    #[error("it has that link")]
    Twice,
}

/// Whose link it is to be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Caller {
    pub(super) member: u32,
    pub(super) stream: Stream,
    pub(super) path: Path,
    pub(super) control: SlotId,
    /// What it calls the link.
    pub(super) id: u64,
}

impl<R: Rail> Service<R> {
    /// One on these rails, with so many receives for each link.
    pub(super) fn new(
        rails: Vec<R>,
        receives: u32,
        &Params { mutant, progress_batch: batch, .. }: &Params,
    ) -> Result<Self, OutOfMemory> {
        let names = rails.iter().map(|_| Vec::new()).collect();
        let links = Slots::new(LINKS_MAX);
        let members = HashMap::new();
        let starves = false;
        let stirred = 0;
        let heaps = Vec::new();
        let leaving = Vec::new();
        let words = Vec::new();
        let batch = try_filled(Completion::BLANK, batch as usize)?;
        Ok(Self {
            rails,
            heaps,
            links,
            names,
            members,
            receives,
            starves,
            leaving,
            words,
            stirred,
            batch,
            mutant,
        })
    }

    /// Its rails.
    pub(super) fn rails(&self) -> &[R] {
        &self.rails
    }

    /// Its heaps, by number.
    pub(super) fn heaps(&self) -> &[Option<Heap>] {
        &self.heaps
    }

    /// The same, to add some and to take some away.
    pub(super) fn heaps_mut(&mut self) -> &mut Vec<Option<Heap>> {
        &mut self.heaps
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
        fd: Option<PassedFd>,
    ) -> Result<(SlotId, LinkAddress, Vec<Told>), Refused> {
        let Caller { member, stream, path, control, id } = caller;
        let known = |serving: &&Serving| serving.control == control;
        match self.members.get(&member).and_then(|member| member.streams.get(&stream)) {
            Some(serving) if known(&serving) && serving.links[path.index()].is_some() => {
                self.forget(member, stream);
                return Err(Refused::Twice);
            }
            // Its process has lost the control stream that it had, and begins anew.
            Some(serving) if !known(&serving) => self.forget(member, stream),
            Some(_) | None => {}
        }
        // Memory first: a link has to be undone.
        let inbox = || Inbox::new(Shape::WIRE, self.mutant);
        let known =
            self.members.entry(member).or_insert_with(|| Member { inbox: inbox(), streams: HashMap::new() });
        known.inbox.grow(stream).map_err(LinkError::from)?;
        let at = path.index() % self.rails.len();
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
        let owed = VecDeque::new();
        self.starves = true;
        let entry = Link {
            member,
            stream,
            path,
            rail: at,
            link,
            control,
            id,
            receives,
            owed,
            heard: false,
            leaving: false,
        };
        let Ok(served) = self.links.insert(entry) else {
            self.rails[at].destroy(link);
            return Err(Refused::Full);
        };
        let names = &mut self.names[at];
        names.resize(names.len().max(link.0 as usize + 1), None);
        names[link.0 as usize] = Some(served);
        let inbox = || Inbox::new(Shape::WIRE, self.mutant);
        let known =
            self.members.entry(member).or_insert_with(|| Member { inbox: inbox(), streams: HashMap::new() });
        let new = || Serving { control, served: Served::new(self.mutant), links: [None; PATHS_MAX] };
        known.streams.entry(stream).or_insert_with(new).links[path.index()] = Some(served);
        let told = |heap: &Option<Heap>| heap.as_ref().and_then(|heap| heap.told(at)).unwrap_or(Heap::NONE);
        let told = self.heaps.iter().take(RMA_HEAPS_TOLD_MAX).map(told).collect();
        Ok((served, ours, told))
    }

    /// A link is in error, or its other end is: nothing lands there any more, and what has come is still taken in.
    fn fail(&mut self, id: SlotId) {
        let Some(link) = self.links.get_mut(id) else { return };
        if !std::mem::replace(&mut link.leaving, true) {
            self.rails[link.rail].fail(link.link);
            self.leaving.push(id);
        }
    }

    /// The same, if its peer says so on the stream on which it was asked for.
    pub(super) fn on_down(&mut self, id: SlotId, control: SlotId) {
        if self.links.get(id).is_some_and(|link| link.control == control) {
            self.fail(id);
        }
    }

    /// Says of links that have told all what came over them. Whether there was any.
    fn settle(&mut self) -> bool {
        let before = self.leaving.len();
        let mut left = std::mem::take(&mut self.leaving);
        left.retain(|&id| {
            let Some(link) = self.links.get(id) else { return false };
            let waits = !self.rails[link.rail].is_quiet(link.link);
            if !waits {
                self.stand(id);
            }
            waits
        });
        self.leaving = left;
        self.leaving.len() < before
    }

    fn stand(&mut self, id: SlotId) {
        let Some(link) = self.destroy(id) else { return };
        let Some(member) = self.members.get_mut(&link.member) else { return };
        if let Some(serving) = member.streams.get_mut(&link.stream) {
            serving.links[link.path.index()] = None;
        }
        let standing = member.inbox.leave(link.stream, link.path);
        self.words.push((link.control, Word::Standing { id: link.id, standing }));
        self.acknowledge(link.member, None);
    }

    fn destroy(&mut self, id: SlotId) -> Option<Link> {
        let link = self.links.remove(id)?;
        self.rails[link.rail].destroy(link.link);
        if let Some(name) = self.names[link.rail].get_mut(link.link.0 as usize) {
            *name = None;
        }
        Some(link)
    }

    /// A stream is not served any more.
    fn forget(&mut self, member: u32, stream: Stream) {
        let Some(known) = self.members.get_mut(&member) else { return };
        known.inbox.forget(stream);
        let gone = known.streams.remove(&stream);
        if known.streams.is_empty() {
            self.members.remove(&member);
        }
        gone.into_iter().flat_map(|serving| serving.links).flatten().for_each(|id| drop(self.destroy(id)));
    }

    /// The member that was asked for on a control stream to be served on that stream.
    fn member_of(&self, control: SlotId, stream: Stream) -> Option<u32> {
        let its = |member: &Member| member.streams.get(&stream).is_some_and(|its| its.control == control);
        self.members.iter().find(|(_, member)| its(member)).map(|(&number, _)| number)
    }

    /// A member says that a word will not be changed any more by what was to change it.
    pub(super) fn spoil(&mut self, heap: u8, offset: u64, value: u64) {
        if let Ok(word) = word::Word::new(heap, offset, word::Width::Eight) {
            // What is no word of this process spoils nothing.
            let _ = heap::update(&self.heaps, word, |old| (old == 0).then_some(value));
        }
    }

    /// The initiator is done with a stream.
    pub(super) fn leave(&mut self, control: SlotId, stream: Stream) {
        if let Some(member) = self.member_of(control, stream) {
            self.forget(member, stream);
        }
    }

    /// Writes that were lost with a link were written again.
    pub(super) fn make_up(&mut self, control: SlotId, stream: Stream, lost: &[MakeUp]) {
        let Some(number) = self.member_of(control, stream) else { return };
        let Some(member) = self.members.get_mut(&number) else { return };
        let made_up = lost.iter().try_for_each(|lost| member.inbox.make_up(lost).map(drop));
        match made_up {
            Ok(()) => self.apply(number, Took::Ready(stream), None),
            Err(_) => self.banish(number, stream),
        }
        self.rails.iter_mut().for_each(Rail::flush);
    }

    /// What a member says on a stream breaks the protocol.
    fn banish(&mut self, member: u32, stream: Stream) {
        let serving = self.members.get(&member).and_then(|member| member.streams.get(&stream));
        let link = serving.and_then(|serving| serving.links.iter().flatten().next());
        if let Some(link) = link.and_then(|&id| self.links.get(id)) {
            self.words.push((link.control, Word::Refused { id: link.id, why: Refusal::Protocol }));
        }
        self.forget(member, stream);
    }

    /// A control stream has ended, and with it the process that asked on it.
    pub(super) fn lose(&mut self, control: SlotId) {
        let its = |(&number, member): (&u32, &Member)| {
            let streams = member.streams.iter().filter(|(_, serving)| serving.control == control);
            streams.map(|(&stream, _)| (number, stream)).collect::<Vec<_>>()
        };
        let lost: Vec<_> = self.members.iter().flat_map(its).collect();
        lost.into_iter().for_each(|(member, stream)| self.forget(member, stream));
    }

    /// Takes what has come and answers. Whether there was anything.
    pub(super) fn progress(&mut self) -> bool {
        let mut moved = false;
        if self.starves {
            self.feed();
        }
        for at in 0..self.rails.len() {
            let mut count = self.take_from(at);
            moved |= count > 0;
            while count > 0 && self.mutant.is("job-empties-one-rail-first") {
                count = self.take_from(at);
            }
        }
        if !self.leaving.is_empty() {
            moved |= self.settle();
        }
        moved
    }

    /// Takes from one rail what has come, a bounded number, and answers. Returns how many.
    fn take_from(&mut self, at: usize) -> usize {
        let count = self.rails[at].poll(&mut self.batch);
        for index in 0..count {
            let completion = self.batch[index];
            let name = self.names[at].get(completion.link.0 as usize).copied().flatten();
            let Some(id) = name else { continue };
            if completion.status != Status::Ok {
                self.fail(id);
            } else if self.on_completion(id, &completion).is_err()
                && let Some(&Link { member, stream, .. }) = self.links.get(id)
            {
                self.banish(member, stream);
            }
        }
        if count > 0 {
            self.rails[at].flush();
        }
        count
    }

    /// Prepares a wait for requests of other members and adds the descriptors to wait for. False if it has to be polled.
    pub(super) fn arm(&mut self, descriptors: &mut Vec<Arc<OwnedFd>>) -> bool {
        let is_behind = self.starves || !self.leaving.is_empty();
        if is_behind || self.links.iter().any(|(_, link)| !link.owed.is_empty()) {
            return false;
        }
        arm_rails(&mut self.rails, descriptors)
    }

    /// How often a rail wanted to be asked again at once, when it was asked here.
    pub(super) fn stirs(&mut self) -> u64 {
        self.stirred += stirred(&mut self.rails);
        self.stirred
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
        let foreign = Fault::Epoch(u64::MAX);
        link.heard |= completion.done != Done::Posted;
        match completion.done {
            Done::Posted => Ok(()),
            Done::Written => {
                let number = link.member;
                let Some(member) = self.members.get_mut(&number) else { return Ok(()) };
                let took = member.inbox.on_write(completion.imm.ok_or(foreign)?, link.path)?;
                self.apply(number, took, Some(id));
                Ok(())
            }
            Done::Received => {
                let message = link.receives.take(completion.wr_id, completion.len).map_err(|_| foreign)?;
                self.starves |= !link.receives.post(&mut self.rails[link.rail], link.link);
                self.on_message(id, &message)
            }
        }
    }

    fn on_message(&mut self, id: SlotId, message: &Message) -> Result<(), Fault> {
        let Some(link) = self.links.get_mut(id) else { return Ok(()) };
        let number = link.member;
        let Some(member) = self.members.get_mut(&number) else { return Ok(()) };
        let took = match message {
            Message::Request(request) if request.stream == link.stream => return self.serve(id, request),
            Message::Signal(signal) if signal.stream == link.stream => member.inbox.on_signal(signal)?,
            Message::Ask(ask) if ask.stream == link.stream => member.inbox.on_ask(ask)?,
            _ => return Err(Fault::Epoch(u64::MAX)),
        };
        self.apply(number, took, Some(id));
        Ok(())
    }

    /// Applies the signals whose turn it is, and acknowledges.
    fn apply(&mut self, number: u32, took: Took, over: Option<SlotId>) {
        let Some(member) = self.members.get_mut(&number) else { return };
        if let Took::Ready(stream) = took {
            while let Some(update) = member.inbox.take(stream) {
                let word = update.word();
                // A word that is not there is applied by nobody; the initiator had no right to name it.
                heap::update(&self.heaps, word, |old| update.apply(old));
            }
        }
        self.acknowledge(number, over);
    }

    /// Sends the acknowledgements that are due to a member, each over a link of its stream: that one, if it is and can. Those for which
    /// there is none stay due: their initiator has lost a link, and asks.
    fn acknowledge(&mut self, number: u32, over: Option<SlotId>) {
        while let Some((id, ack)) = self.next_ack(number, over) {
            let Some(link) = self.links.get_mut(id) else { return };
            link.owed.push_back(Message::Ack(ack));
            answer(&mut self.rails[link.rail], link);
        }
    }

    fn next_ack(&mut self, number: u32, over: Option<SlotId>) -> Option<(SlotId, Ack)> {
        let member = self.members.get_mut(&number)?;
        let links = &self.links;
        let streams = &member.streams;
        let eager = self.mutant.is("job-answers-before-it-hears");
        let carries = |id: &SlotId| links.get(*id).is_some_and(|link| !link.leaving && (link.heard || eager));
        let link_of = |stream: Stream| {
            let all = &streams.get(&stream)?.links;
            let that = over.filter(|id| all.contains(&Some(*id)) && carries(id));
            that.or_else(|| all.iter().flatten().copied().find(carries))
        };
        let ack = member.inbox.next_ack_where(|stream| link_of(stream).is_some())?;
        Some((link_of(ack.stream)?, ack))
    }

    fn serve(&mut self, id: SlotId, request: &Request) -> Result<(), Fault> {
        let Some(link) = self.links.get_mut(id) else { return Ok(()) };
        let Some(member) = self.members.get_mut(&link.member) else { return Ok(()) };
        let Some(serving) = member.streams.get_mut(&link.stream) else { return Ok(()) };
        let heaps = &self.heaps;
        let mutant = self.mutant;
        let execute = |request: &Request| {
            let word = request.word();
            let atomic = request.atomic();
            heap::update(heaps, word, |old| atomic.apply(old, mutant)).map_or(Outcome::Refused, Outcome::Done)
        };
        match serving.served.serve(request, execute)? {
            Answer::Now(reply) | Answer::Again(reply) => link.owed.push_back(Message::Reply(reply)),
            Answer::Past => {}
        }
        answer(&mut self.rails[link.rail], link);
        Ok(())
    }

    /// Goes on with answers that found no room.
    pub(super) fn answer_all(&mut self) {
        for (_, link) in self.links.iter_mut().filter(|(_, link)| !link.owed.is_empty()) {
            answer(&mut self.rails[link.rail], link);
        }
    }
}

/// Sends what is owed, as far as there is room. A link that takes none has failed, which its own completion tells; what is owed is
/// asked for again over another.
fn answer(rail: &mut impl Rail, link: &mut Link) {
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

/// Prepares a wait for events of these rails and adds the descriptors to wait for. False if one of them has to be polled.
pub(super) fn arm_rails<R: Rail>(rails: &mut [R], descriptors: &mut Vec<Arc<OwnedFd>>) -> bool {
    rails.iter_mut().all(|rail| match (rail.arm(), rail.event_descriptor()) {
        (Wake::Event, Some(descriptor)) => {
            descriptors.push(descriptor);
            true
        }
        _ => false,
    })
}

/// How many of these rails want to be asked again at once.
pub(super) fn stirred<R: Rail>(rails: &mut [R]) -> u64 {
    rails.iter_mut().map(|rail| u64::from(rail.arm() == Wake::After(Duration(0)))).sum()
}
