//! The serving side of a process: owns the far ends of the links to it, applies signals, executes atomics and replies. It has one
//! lock; each call of the job polls it, and so does a service thread. It never starts an operation of its own.

use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use trunkline_fabric::{
    Completion, CompletionKind, LinkAddress, LinkError, LinkId, Op, OpSource, OpStatus, PassedFd, PostError,
    Rail, RegisterError, WaitMethod,
};
use trunkline_proto::limits::{LINKS_MAX as PATHS_MAX, RMA_HEAPS_TOLD_MAX};
use trunkline_proto::reserve::{OutOfMemory, try_filled};
use trunkline_proto::rma::inbox::{ArrivalEffect, StreamInbox};
use trunkline_proto::rma::incoming::MakeUp;
use trunkline_proto::rma::served::{ServedReply as Answer, ServedSlots};
use trunkline_proto::rma::shape::EpochShape;
use trunkline_proto::rma::{PathId, ProtocolFault};
use trunkline_proto::slots::{SlotId, SlotTable};
use trunkline_proto::time::Duration;
use trunkline_proto::wire::dial::{DialMessage, DialRefusal, RemoteHeap as Told};
use trunkline_proto::wire::rma::atomic::{AtomicOutcome, AtomicRequest};
use trunkline_proto::wire::rma::signal::SignalAck;
use trunkline_proto::wire::rma::{RmaMessage, RmaStream, word};

use crate::params::EngineParams;
use crate::rma::heap::{self, RegisteredHeap};
use crate::rma::receives::LinkReceives;

/// The maximum number of served links of a process.
const LINKS_MAX: usize = 65_536;
/// Messages that a context may have in flight to a process over one link: requests, signals, and one acknowledgement request.
pub(super) const RECEIVES_MAX: u32 = 64 + 128 + 8;
/// `wr_id` of replies. They are unsignalled, so that only failures are reported.
const ANSWER: u64 = u64::MAX;

/// The far end of a link.
struct ServedLink {
    member: u32,
    stream: RmaStream,
    path: PathId,
    rail: usize,
    link: LinkId,
    /// The control stream on which the link was dialled, and the dialler's id of it.
    control: SlotId,
    id: u64,
    receives: LinkReceives,
    /// Replies for which the link had no credit.
    owed: VecDeque<RmaMessage>,
    /// A message has arrived over it, so the other end is up.
    heard: bool,
    /// The link is in error, and may still report completions.
    leaving: bool,
}

/// The served state of a stream. It lives until its context leaves or its process ends, and so longer than any link of it.
struct ServedStream {
    control: SlotId,
    /// The results of its requests, because a repeated request must get its first reply and must not be executed again.
    served: ServedSlots,
    links: [Option<SlotId>; PATHS_MAX],
}

/// The state of a member that has streams here.
struct ServedMember {
    inbox: StreamInbox,
    streams: HashMap<RmaStream, ServedStream>,
}

/// The service, under one lock.
pub(super) struct RmaService<R: Rail> {
    rails: Vec<R>,
    heaps: Vec<Option<RegisteredHeap>>,
    links: SlotTable<ServedLink>,
    /// By rail, then by the link's number.
    names: Vec<Vec<Option<SlotId>>>,
    members: HashMap<u32, ServedMember>,
    /// Per link.
    receives: u32,
    /// Some link has receives that are not posted for lack of credit.
    starves: bool,
    /// Links in error whose completions are not yet all reported.
    leaving: Vec<SlotId>,
    /// Messages for control streams that another thread holds right now.
    pub(super) words: Vec<(SlotId, DialMessage)>,
    stirred: u64,
    batch: Box<[Completion]>,
}

/// Why a link was not accepted.
#[derive(Debug, thiserror::Error)]
pub(super) enum AcceptLinkError {
    #[error(transparent)]
    Link(#[from] LinkError),
    #[error(transparent)]
    Register(#[from] RegisterError),
    #[error("all links for members are in use")]
    Full,
    #[error("the member has that link already")]
    Twice,
}

/// The member, stream and path that dial a link.
#[derive(Clone, Copy, Debug)]
pub(super) struct LinkRequest {
    pub(super) member: u32,
    pub(super) stream: RmaStream,
    pub(super) path: PathId,
    pub(super) control: SlotId,
    /// The dialler's id of the link.
    pub(super) id: u64,
}

impl<R: Rail> RmaService<R> {
    /// Creates the service on these rails, with this many receives for each link.
    pub(super) fn new(
        rails: Vec<R>,
        receives: u32,
        &EngineParams { progress_batch: batch, .. }: &EngineParams,
    ) -> Result<Self, OutOfMemory> {
        let names = rails.iter().map(|_| Vec::new()).collect();
        let links = SlotTable::new(LINKS_MAX);
        let members = HashMap::new();
        let starves = false;
        let stirred = 0;
        let heaps = Vec::new();
        let leaving = Vec::new();
        let words = Vec::new();
        let batch = try_filled(Completion::BLANK, batch as usize)?;
        Ok(Self { rails, heaps, links, names, members, receives, starves, leaving, words, stirred, batch })
    }

    /// Returns its rails.
    pub(super) fn rails(&self) -> &[R] {
        &self.rails
    }

    /// Returns its heaps, by number.
    pub(super) fn heaps(&self) -> &[Option<RegisteredHeap>] {
        &self.heaps
    }

    /// Returns its heaps, to add or remove some.
    pub(super) fn heaps_mut(&mut self) -> &mut Vec<Option<RegisteredHeap>> {
        &mut self.heaps
    }

    /// Returns how many messages may be in flight to this process over a link.
    pub(super) fn receive_depth(&self) -> u32 {
        self.receives
    }

    /// Returns the number of links.
    pub(super) fn len(&self) -> usize {
        self.links.len()
    }

    /// Accepts a link: creates its far end, and returns its id here, its address, and the heaps as they are reached over it.
    ///
    /// # Errors
    /// [`AcceptLinkError`]; then nothing is allocated.
    pub(super) fn accept_link(
        &mut self,
        caller: LinkRequest,
        address: Vec<u8>,
        fd: Option<PassedFd>,
    ) -> Result<(SlotId, LinkAddress, Vec<Told>), AcceptLinkError> {
        let LinkRequest { member, stream, path, control, id } = caller;
        let known = |serving: &&ServedStream| serving.control == control;
        match self.members.get(&member).and_then(|member| member.streams.get(&stream)) {
            Some(serving) if known(&serving) && serving.links[path.index()].is_some() => {
                // A second dial of a path violates the protocol.
                self.remove_stream(member, stream);
                return Err(AcceptLinkError::Twice);
            }
            // The dialler has lost its earlier control stream, and dials again from the start.
            Some(serving) if !known(&serving) => self.remove_stream(member, stream),
            Some(_) | None => {}
        }
        // Allocates before it makes the link, because memory errors need no cleanup then, but a link would have
        // to be destroyed.
        let inbox = || StreamInbox::new(EpochShape::WIRE);
        let known = self
            .members
            .entry(member)
            .or_insert_with(|| ServedMember { inbox: inbox(), streams: HashMap::new() });
        known.inbox.add_stream(stream).map_err(LinkError::from)?;
        // The same rule as at the dialler, so that both use corresponding rails.
        let at = path.index() % self.rails.len();
        let rail = &mut self.rails[at];
        let link = rail.create_link()?;
        let make = || -> Result<(LinkReceives, LinkAddress), AcceptLinkError> {
            let receives = LinkReceives::new(rail, self.receives)?;
            let ours = rail.link_address(link)?;
            rail.connect(link, LinkAddress { bytes: address, fd })?;
            Ok((receives, ours))
        };
        let (receives, ours) = match make() {
            Ok(made) => made,
            Err(error) => {
                rail.destroy_link(link);
                return Err(error);
            }
        };
        let owed = VecDeque::new();
        // Its receives are posted by the next poll.
        self.starves = true;
        let entry = ServedLink {
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
            // The table of links is full. Nothing else refers to the link yet.
            self.rails[at].destroy_link(link);
            return Err(AcceptLinkError::Full);
        };
        let names = &mut self.names[at];
        names.resize(names.len().max(link.0 as usize + 1), None);
        // Completions name the link by its number.
        names[link.0 as usize] = Some(served);
        let inbox = || StreamInbox::new(EpochShape::WIRE);
        let known = self
            .members
            .entry(member)
            .or_insert_with(|| ServedMember { inbox: inbox(), streams: HashMap::new() });
        let new = || ServedStream { control, served: ServedSlots::new(), links: [None; PATHS_MAX] };
        known.streams.entry(stream).or_insert_with(new).links[path.index()] = Some(served);
        let told = |heap: &Option<RegisteredHeap>| {
            heap.as_ref().and_then(|heap| heap.descriptor_on(at)).unwrap_or(RegisteredHeap::NONE)
        };
        let told = self.heaps.iter().take(RMA_HEAPS_TOLD_MAX).map(told).collect();
        Ok((served, ours, told))
    }

    /// Handles a link in error at either end: nothing lands over it any more. Arrived messages are still processed.
    fn fail_link(&mut self, id: SlotId) {
        let Some(link) = self.links.get_mut(id) else { return };
        // Once, because both the peer's message and a completion may report the failure.
        if !std::mem::replace(&mut link.leaving, true) {
            self.rails[link.rail].fail_link(link.link);
            self.leaving.push(id);
        }
    }

    /// As [`Self::fail_link`], at the request of the peer, on the control stream on which the link was dialled.
    pub(super) fn on_down(&mut self, id: SlotId, control: SlotId) {
        if self.links.get(id).is_some_and(|link| link.control == control) {
            self.fail_link(id);
        }
    }

    /// Sends delivery reports for links that have reported all their completions. Returns whether there were any.
    fn retire_drained_links(&mut self) -> bool {
        let before = self.leaving.len();
        let mut left = std::mem::take(&mut self.leaving);
        left.retain(|&id| {
            let Some(link) = self.links.get(id) else { return false };
            // Messages that arrived before the error are still reported, and count for the delivery
            // report.
            let waits = !self.rails[link.rail].poll_link_quiet(link.link);
            if !waits {
                self.send_delivery_report(id);
            }
            waits
        });
        self.leaving = left;
        self.leaving.len() < before
    }

    fn send_delivery_report(&mut self, id: SlotId) {
        let Some(link) = self.destroy_link(id) else { return };
        let Some(member) = self.members.get_mut(&link.member) else { return };
        if let Some(serving) = member.streams.get_mut(&link.stream) {
            serving.links[link.path.index()] = None;
        }
        let standing = member.inbox.close_path(link.stream, link.path);
        // Sent after the link was destroyed, because nothing may arrive after the report.
        self.words.push((link.control, DialMessage::Standing { id: link.id, standing }));
        // The acknowledgements of the lost link are sent over another one.
        self.send_acks(link.member, None);
    }

    fn destroy_link(&mut self, id: SlotId) -> Option<ServedLink> {
        let link = self.links.remove(id)?;
        self.rails[link.rail].destroy_link(link.link);
        if let Some(name) = self.names[link.rail].get_mut(link.link.0 as usize) {
            *name = None;
        }
        Some(link)
    }

    /// Stops serving a stream.
    fn remove_stream(&mut self, member: u32, stream: RmaStream) {
        let Some(known) = self.members.get_mut(&member) else { return };
        known.inbox.forget_stream(stream);
        let gone = known.streams.remove(&stream);
        // The last stream of a member: its inbox is not needed any more.
        if known.streams.is_empty() {
            self.members.remove(&member);
        }
        gone.into_iter()
            .flat_map(|serving| serving.links)
            .flatten()
            .for_each(|id| drop(self.destroy_link(id)));
    }

    /// Returns the member that dialled this stream on this control stream.
    fn member_of(&self, control: SlotId, stream: RmaStream) -> Option<u32> {
        let its =
            |member: &ServedMember| member.streams.get(&stream).is_some_and(|its| its.control == control);
        self.members.iter().find(|(_, member)| its(member)).map(|(&number, _)| number)
    }

    /// Handles SPOIL: writes the error value into a word that no operation will change any more, if the word is still 0.
    pub(super) fn set_error_word(&mut self, heap: u8, offset: u64, value: u64) {
        if let Ok(word) = word::SymmetricWord::new(heap, offset, word::WordWidth::Eight) {
            // Ignored if this process has no such word, because the message names it, so it may be invalid.
            let _ = heap::update_word(&self.heaps, word, |old| (old == 0).then_some(value));
        }
    }

    /// The initiator has closed a stream.
    pub(super) fn close_stream(&mut self, control: SlotId, stream: RmaStream) {
        if let Some(member) = self.member_of(control, stream) {
            self.remove_stream(member, stream);
        }
    }

    /// The initiator has repeated writes that were lost with a link.
    pub(super) fn make_up(&mut self, control: SlotId, stream: RmaStream, lost: &[MakeUp]) {
        let Some(number) = self.member_of(control, stream) else { return };
        let Some(member) = self.members.get_mut(&number) else { return };
        let made_up = lost.iter().try_for_each(|lost| member.inbox.make_up(lost).map(drop));
        match made_up {
            // The repeated writes may have completed an epoch, so its signals are due.
            Ok(()) => self.apply_signals(number, ArrivalEffect::Ready(stream), None),
            Err(_) => self.refuse_stream(number, stream),
        }
        self.rails.iter_mut().for_each(Rail::flush);
    }

    /// Handles a protocol violation of a member on a stream.
    fn refuse_stream(&mut self, member: u32, stream: RmaStream) {
        let serving = self.members.get(&member).and_then(|member| member.streams.get(&stream));
        let link = serving.and_then(|serving| serving.links.iter().flatten().next());
        if let Some(link) = link.and_then(|&id| self.links.get(id)) {
            // Any link of the stream identifies it to the dialler.
            self.words.push((link.control, DialMessage::Refused { id: link.id, why: DialRefusal::Protocol }));
        }
        self.remove_stream(member, stream);
    }

    /// A control stream has ended, and with it the process that dialled on it.
    pub(super) fn remove_streams_of(&mut self, control: SlotId) {
        let its = |(&number, member): (&u32, &ServedMember)| {
            let streams = member.streams.iter().filter(|(_, serving)| serving.control == control);
            streams.map(|(&stream, _)| (number, stream)).collect::<Vec<_>>()
        };
        let lost: Vec<_> = self.members.iter().flat_map(its).collect();
        lost.into_iter().for_each(|(member, stream)| self.remove_stream(member, stream));
    }

    /// Polls the rails, processes arrived messages and replies. Returns whether there was anything.
    pub(super) fn progress(&mut self) -> bool {
        let mut moved = false;
        // First, because a link without receives stalls its sender.
        if self.starves {
            self.post_receives();
        }
        for at in 0..self.rails.len() {
            moved |= self.take_from(at) > 0;
        }
        if !self.leaving.is_empty() {
            moved |= self.retire_drained_links();
        }
        moved
    }

    /// Polls one rail once, so the number of completions is bounded, and replies. Returns the number of completions.
    fn take_from(&mut self, at: usize) -> usize {
        let count = self.rails[at].poll(&mut self.batch);
        for index in 0..count {
            let completion = self.batch[index];
            let name = self.names[at].get(completion.link.0 as usize).copied().flatten();
            // A completion of a link that was destroyed in this poll.
            let Some(id) = name else { continue };
            if completion.status != OpStatus::Ok {
                self.fail_link(id);
            } else if self.on_completion(id, &completion).is_err()
                && let Some(&ServedLink { member, stream, .. }) = self.links.get(id)
            {
                self.refuse_stream(member, stream);
            }
        }
        if count > 0 {
            // Replies of the whole batch share one doorbell.
            self.rails[at].flush();
        }
        count
    }

    /// Prepares a wait for requests of other members, and adds the descriptors to wait for. False if the service has to be
    /// polled.
    pub(super) fn arm_events(&mut self, descriptors: &mut Vec<Arc<OwnedFd>>) -> bool {
        // Deferred work is done by polls only, so a sleep would delay it.
        let is_behind = self.starves || !self.leaving.is_empty();
        if is_behind || self.links.iter().any(|(_, link)| !link.owed.is_empty()) {
            return false;
        }
        arm_rails(&mut self.rails, descriptors)
    }

    /// Returns how often a rail requested another poll at once, over all calls of this function.
    pub(super) fn sample_progress(&mut self) -> u64 {
        self.stirred += count_pending_rails(&mut self.rails);
        self.stirred
    }

    /// Posts receives for which there was no credit before.
    #[cold]
    fn post_receives(&mut self) {
        self.starves = false;
        for (_, link) in self.links.iter_mut() {
            self.starves |= !link.receives.post_due(&mut self.rails[link.rail], link.link);
        }
    }

    fn on_completion(&mut self, id: SlotId, completion: &Completion) -> Result<(), ProtocolFault> {
        let Some(link) = self.links.get_mut(id) else { return Ok(()) };
        let foreign = ProtocolFault::Epoch(u64::MAX);
        // Only arrivals prove that the other end is up; own completions do not.
        link.heard |= completion.done != CompletionKind::Posted;
        match completion.done {
            CompletionKind::Posted => Ok(()),
            CompletionKind::Written => {
                let number = link.member;
                let Some(member) = self.members.get_mut(&number) else { return Ok(()) };
                let took = member.inbox.on_write(completion.imm.ok_or(foreign)?, link.path)?;
                self.apply_signals(number, took, Some(id));
                Ok(())
            }
            CompletionKind::Received => {
                let message =
                    link.receives.take_message(completion.wr_id, completion.len).map_err(|_| foreign)?;
                // Posted again before the message is processed, because the sender counts on it.
                self.starves |= !link.receives.post_due(&mut self.rails[link.rail], link.link);
                self.on_message(id, &message)
            }
        }
    }

    fn on_message(&mut self, id: SlotId, message: &RmaMessage) -> Result<(), ProtocolFault> {
        let Some(link) = self.links.get_mut(id) else { return Ok(()) };
        let number = link.member;
        let Some(member) = self.members.get_mut(&number) else { return Ok(()) };
        let took = match message {
            // The stream is compared, since a link serves exactly one.
            RmaMessage::Request(request) if request.stream == link.stream => {
                return self.serve_request(id, request);
            }
            RmaMessage::Signal(signal) if signal.stream == link.stream => member.inbox.on_signal(signal)?,
            RmaMessage::Ask(ask) if ask.stream == link.stream => member.inbox.on_ask(ask)?,
            _ => return Err(ProtocolFault::Epoch(u64::MAX)),
        };
        self.apply_signals(number, took, Some(id));
        Ok(())
    }

    /// Applies the signals that are next in order, and sends acknowledgements.
    fn apply_signals(&mut self, number: u32, took: ArrivalEffect, over: Option<SlotId>) {
        let Some(member) = self.members.get_mut(&number) else { return };
        if let ArrivalEffect::Ready(stream) = took {
            while let Some(update) = member.inbox.take_signal(stream) {
                let word = update.word();
                // A signal to a word that does not exist is dropped, because the initiator had no right
                // to name the word.
                heap::update_word(&self.heaps, word, |old| update.apply_to(old));
            }
        }
        self.send_acks(number, over);
    }

    /// Sends the acknowledgements that are due to a member, each over a link of its stream: over the link `over` if it
    /// belongs to the stream and has credit. Without any link they stay due, because the initiator has lost a link too,
    /// and requests them again.
    fn send_acks(&mut self, number: u32, over: Option<SlotId>) {
        while let Some((id, ack)) = self.next_ack(number, over) {
            let Some(link) = self.links.get_mut(id) else { return };
            link.owed.push_back(RmaMessage::Ack(ack));
            send_answers(&mut self.rails[link.rail], link);
        }
    }

    fn next_ack(&mut self, number: u32, over: Option<SlotId>) -> Option<(SlotId, SignalAck)> {
        let member = self.members.get_mut(&number)?;
        let links = &self.links;
        let streams = &member.streams;
        // A link that the dialler does not consider up yet would lose the acknowledgement.
        let carries = |id: &SlotId| links.get(*id).is_some_and(|link| !link.leaving && link.heard);
        let link_of = |stream: RmaStream| {
            let all = &streams.get(&stream)?.links;
            // The link of the arrival first, because it has just carried a message.
            let that = over.filter(|id| all.contains(&Some(*id)) && carries(id));
            that.or_else(|| all.iter().flatten().copied().find(carries))
        };
        let ack = member.inbox.next_ack_where(|stream| link_of(stream).is_some())?;
        Some((link_of(ack.stream)?, ack))
    }

    fn serve_request(&mut self, id: SlotId, request: &AtomicRequest) -> Result<(), ProtocolFault> {
        let Some(link) = self.links.get_mut(id) else { return Ok(()) };
        let Some(member) = self.members.get_mut(&link.member) else { return Ok(()) };
        let Some(serving) = member.streams.get_mut(&link.stream) else { return Ok(()) };
        let heaps = &self.heaps;
        // Executed at most once per request, because `served` keeps the results for repetitions.
        let execute = |request: &AtomicRequest| {
            let word = request.word();
            let atomic = request.atomic();
            heap::update_word(heaps, word, |old| atomic.apply_to(old))
                .map_or(AtomicOutcome::Refused, AtomicOutcome::Done)
        };
        match serving.served.serve_request(request, execute)? {
            Answer::Now(reply) | Answer::Again(reply) => link.owed.push_back(RmaMessage::Reply(reply)),
            Answer::Past => {}
        }
        send_answers(&mut self.rails[link.rail], link);
        Ok(())
    }

    /// Sends replies for which there was no credit before.
    pub(super) fn answer_all(&mut self) {
        for (_, link) in self.links.iter_mut().filter(|(_, link)| !link.owed.is_empty()) {
            send_answers(&mut self.rails[link.rail], link);
        }
    }
}

/// Sends the queued replies, as far as there is credit. A link that refuses them has failed, which its own completion reports;
/// the initiator repeats its request over another link.
fn send_answers(rail: &mut impl Rail, link: &mut ServedLink) {
    while let Some(message) = link.owed.front() {
        let (bytes, len) = message.to_bytes();
        let op = Op::Send { head: &bytes[..len], body: OpSource::Inline(&[]), imm: None };
        match rail.post(link.link, ANSWER, op, false) {
            // Removed only when posted: a busy link keeps the order of its replies.
            Ok(()) => drop(link.owed.pop_front()),
            Err(PostError::Busy) => return,
            Err(PostError::Refused(_)) => return link.owed.clear(),
        }
    }
}

/// Prepares a wait for events of these rails, and adds the descriptors to wait for. False if one of them has to be polled.
pub(super) fn arm_rails<R: Rail>(rails: &mut [R], descriptors: &mut Vec<Arc<OwnedFd>>) -> bool {
    rails.iter_mut().all(|rail| match (rail.arm_wait(), rail.event_descriptor()) {
        (WaitMethod::Event, Some(descriptor)) => {
            descriptors.push(descriptor);
            true
        }
        _ => false,
    })
}

/// Counts the rails that request another poll at once.
pub(super) fn count_pending_rails<R: Rail>(rails: &mut [R]) -> u64 {
    rails.iter_mut().map(|rail| u64::from(rail.arm_wait() == WaitMethod::After(Duration(0)))).sum()
}
