//! The control messages of a job: members dial links, report lost ones, and give up streams by them. Called when a context lacks
//! or has lost a link, and periodically by the job's calls.

use std::collections::HashMap;
use std::sync::OnceLock;

use trunkline_fabric::{Fabric, Host, PassedFd};
use trunkline_proto::id::ProcessId;
use trunkline_proto::rma::PathId;
use trunkline_proto::slots::SlotId;
use trunkline_proto::wire::dial::{DialMessage, DialRefusal, MemberProof, ProcessCard};
use trunkline_proto::wire::rma::RmaStream;

use crate::control::member_key::ProofPurpose;
use crate::in_full;
use crate::rma::context::{LinkDialId, RmaContext};
use crate::rma::context_slot::ContextEvent;
use crate::rma::error::{LossCause, RmaError};
use crate::rma::job::{MemberRank, RmaJob, UNMET};
use crate::rma::service::{AcceptLinkError, LinkRequest};
use crate::rma::streams::{MemberStreams, StreamEvent};

/// The verdict on a message.
enum MessageVerdict {
    /// It needs no proof of a member, and no reply.
    Nothing,
    /// It contained the proof of a member; the reply, if there is one right now.
    Member(Option<(DialMessage, Option<PassedFd>)>),
    /// It lacked a valid proof; the reply.
    Stranger(DialMessage),
}

/// The fields of a [`DialMessage::Dial`], before its proof and its path are checked.
struct DialRequest {
    /// The dialling member's name of the link.
    id: u64,
    /// The proof that the member sent this message.
    proof: MemberProof,
    /// The dialling member.
    member: MemberRank,
    stream: RmaStream,
    /// The number of the path that the link is for.
    path: u8,
    /// The address of the member's end of the link.
    link: Vec<u8>,
}

/// The event queue of a context is full.
struct BacklogFull;

/// The control streams and their events, under one lock.
pub(super) struct ControlMessages<H: Host> {
    pub(super) streams: MemberStreams<H>,
    pub(super) events: Vec<StreamEvent>,
    /// Proofs that members have to show to this process, computed when first needed.
    proofs: HashMap<MemberRank, MemberProof>,
}

impl<H: Host> ControlMessages<H> {
    /// Creates the state with no message exchanged.
    pub(super) fn new(streams: MemberStreams<H>) -> Self {
        Self { streams, events: Vec::new(), proofs: HashMap::new() }
    }
}

impl<F: Fabric, H: Host> RmaJob<F, H> {
    /// Sends messages, unless another thread holds the streams: then they stay queued.
    #[inline]
    pub(super) fn send_messages(&self, words: &mut Vec<(SlotId, DialMessage)>) {
        // Tried only, because the caller may hold the lock of a context or of the service.
        if !words.is_empty()
            && let Some(mut desk) = self.desk.try_lock()
        {
            words.drain(..).for_each(|(control, word)| desk.streams.send_message(control, &word, None));
        }
    }

    /// Receives messages and dispatches them. Returns whether there were any.
    pub(super) fn receive_messages(&self, desk: &mut ControlMessages<H>) -> bool {
        // A member that dials early waits: its proof cannot be checked before the cards of all members are known.
        if self.me.get().is_none() {
            return false;
        }
        // Taken out of the table, since handling events changes it.
        let mut events = std::mem::take(&mut desk.events);
        desk.streams.poll_streams(&self.host, &mut events);
        let moved = !events.is_empty();
        for event in events.drain(..) {
            match event {
                StreamEvent::Word(control, word, fd) => self.receive_message(desk, control, word, fd),
                StreamEvent::Lost(control) => self.on_stream_lost(control),
            }
        }
        // After the events, because a proof may be among them.
        desk.streams.expire_unproven(&self.host, &mut desk.events);
        // Streams that were ended by the messages themselves, or have expired.
        for event in desk.events.drain(..) {
            if let StreamEvent::Lost(control) = event {
                self.on_stream_lost(control);
            }
        }
        desk.events = events;
        moved
    }

    fn on_stream_lost(&self, control: SlotId) {
        // Waits for the lock, because the loss of a stream must not be missed.
        if let Some(service) = self.service.lock().as_mut() {
            service.remove_streams_of(control);
        }
        for place in self.contexts.iter().filter_map(OnceLock::get) {
            // Always has room for a loss.
            let _ = place.push_event(ContextEvent::Lost { control });
        }
    }

    fn receive_message(
        &self,
        desk: &mut ControlMessages<H>,
        control: SlotId,
        word: DialMessage,
        fd: Option<PassedFd>,
    ) {
        let is_answer = matches!(
            word,
            DialMessage::Taken { .. } | DialMessage::Refused { .. } | DialMessage::Standing { .. }
        );
        // Replies arrive only on streams that this process opened, from members to which it sent a request.
        if is_answer && !desk.streams.is_opened(control) {
            let why = "it sent a reply without a request";
            return desk.streams.refuse_stream(&self.host, control, why, &mut desk.events);
        }
        match self.dispatch_message(desk, control, word, fd) {
            Ok(MessageVerdict::Nothing) => {}
            Ok(MessageVerdict::Member(answer)) => {
                // Only after the proof was checked, because until then the stream has a time limit.
                desk.streams.mark_proven(control);
                if let Some((answer, fd)) = answer {
                    desk.streams.send_message(control, &answer, fd);
                }
            }
            Ok(MessageVerdict::Stranger(answer)) => desk.streams.send_message(control, &answer, None),
            Err(BacklogFull) => {
                // The peer sends more than it may, so its stream ends.
                let why = "too many of its messages wait for a context";
                desk.streams.refuse_stream(&self.host, control, why, &mut desk.events);
            }
        }
    }

    /// Dispatches a message to the service or a context.
    fn dispatch_message(
        &self,
        desk: &mut ControlMessages<H>,
        control: SlotId,
        word: DialMessage,
        fd: Option<PassedFd>,
    ) -> Result<MessageVerdict, BacklogFull> {
        match word {
            DialMessage::Dial { id, proof, member, stream, path, link } => {
                let request = DialRequest { id, proof, member, stream, path, link };
                return Ok(self.on_dial(desk, control, request, fd));
            }
            DialMessage::Taken { id, served, receives, heaps, link } => {
                self.queue_event(id, ContextEvent::Taken { control, id, served, receives, heaps, link, fd })?;
            }
            DialMessage::Refused { id, why } => {
                self.queue_event(id, ContextEvent::Refused { control, id, why })?
            }
            DialMessage::Standing { id, standing } => {
                self.queue_event(id, ContextEvent::Standing { control, id, standing })?
            }
            DialMessage::Spoil { proof, heap, offset, value } => {
                // SPOIL carries no rank, so the member is found by the process of the stream.
                let process = desk.streams.peer_process(control);
                let is_of = |card: &ProcessCard| Some(card.process) == process;
                let cards = self.me.get().map(|(_, cards)| cards.as_slice()).unwrap_or_default();
                let member = cards.iter().position(is_of).map(|member| member as MemberRank);
                let is_shown = member.is_some_and(|member| self.is_shown(desk, control, member, &proof));
                if !is_shown {
                    return Ok(MessageVerdict::Nothing);
                }
                if let Some(service) = self.service.lock().as_mut() {
                    service.set_error_word(heap, offset, value);
                }
                return Ok(MessageVerdict::Member(None));
            }
            DialMessage::Leave { .. } | DialMessage::Down { .. } | DialMessage::MakeUp { .. } => {
                if let Some(service) = self.service.lock().as_mut() {
                    match word {
                        DialMessage::Down { served } => service.on_down(SlotId::from_bits(served), control),
                        DialMessage::MakeUp { stream, lost } => service.make_up(control, stream, &lost),
                        DialMessage::Leave { stream } => service.close_stream(control, stream),
                        _ => {}
                    }
                }
            }
        }
        Ok(MessageVerdict::Nothing)
    }

    pub(super) fn member_processes(&self) -> Vec<ProcessId> {
        self.me.get().map(|(_, cards)| cards.iter().map(|card| card.process).collect()).unwrap_or_default()
    }

    /// Queues an event for a context, which the id of the dialled link names.
    fn queue_event(&self, id: u64, heard: ContextEvent) -> Result<(), BacklogFull> {
        let stream = LinkDialId::from_bits(id).map(|dialled| dialled.stream.index());
        match stream.and_then(|at| self.contexts.get(at)).and_then(OnceLock::get) {
            Some(place) if !place.push_event(heard) => Err(BacklogFull),
            _ => Ok(()),
        }
    }

    fn on_dial(
        &self,
        desk: &mut ControlMessages<H>,
        control: SlotId,
        request: DialRequest,
        fd: Option<PassedFd>,
    ) -> MessageVerdict {
        let DialRequest { id, proof, member, stream, path, link } = request;
        let is_shown = self.is_shown(desk, control, member, &proof);
        // Also for an invalid path, so that the refusal does not show which check failed.
        let Some(path) = PathId::new(path).filter(|_| is_shown) else {
            return MessageVerdict::Stranger(DialMessage::Refused { id, why: DialRefusal::Stranger });
        };
        let caller = LinkRequest { member, stream, path, control, id };
        let mut service = self.service.lock();
        let Some(service) = service.as_mut() else {
            return MessageVerdict::Member(Some((
                DialMessage::Refused { id, why: DialRefusal::NoResources },
                None,
            )));
        };
        match service.accept_link(caller, link, fd) {
            Ok((served, address, heaps)) => {
                let served = served.to_bits();
                let receives = service.receive_depth();
                let taken = DialMessage::Taken { id, served, receives, heaps, link: address.bytes };
                MessageVerdict::Member(Some((taken, address.fd)))
            }
            Err(error) => {
                let text = format!("cannot make a link for member {member}: {}", in_full(&error));
                // Any member can cause this line, so its rate is limited.
                desk.streams.warn_refusal(&self.host, &text);
                let why = match error {
                    AcceptLinkError::Twice => DialRefusal::Protocol,
                    AcceptLinkError::Link(_) | AcceptLinkError::Register(_) | AcceptLinkError::Full => {
                        DialRefusal::NoResources
                    }
                };
                MessageVerdict::Member(Some((DialMessage::Refused { id, why }, None)))
            }
        }
    }

    /// Returns the card of a member.
    pub(super) fn card_of(&self, member: MemberRank) -> Result<&ProcessCard, RmaError> {
        let (_, cards) = self.me.get().ok_or(UNMET)?;
        cards.get(member as usize).ok_or(RmaError::Argument("the member's rank is out of range"))
    }

    /// Returns the proof that shows a member that a message is from this one.
    ///
    /// # Errors
    /// [`RmaError::Argument`] if the member does not exist, or its card has an invalid public key.
    pub(super) fn proof_for(&self, member: MemberRank) -> Result<MemberProof, RmaError> {
        let (me, _) = self.me.get().ok_or(UNMET)?;
        let proof = self.key.make_proof(ProofPurpose::OneSided, &self.card_of(member)?.key, *me, member);
        proof.ok_or(RmaError::Argument("the public key on the member's card is invalid"))
    }

    /// Returns whether a message was sent by the member that it names: the stream is of the member's process, and the proof is
    /// one that only the member and this process can make.
    fn is_shown(
        &self,
        desk: &mut ControlMessages<H>,
        control: SlotId,
        member: MemberRank,
        proof: &MemberProof,
    ) -> bool {
        let Some((me, cards)) = self.me.get() else { return false };
        let Some(card) = cards.get(member as usize) else { return false };
        // The name in HELLO alone proves nothing; the proof below does.
        if desk.streams.peer_process(control) != Some(card.process) {
            return false;
        }
        // Computed once per member, because the key agreement is expensive.
        if let Some(expected) = desk.proofs.get(&member) {
            return expected == proof;
        }
        let Some(expected) = self.key.make_proof(ProofPurpose::OneSided, &card.key, member, *me) else {
            return false;
        };
        desk.proofs.insert(member, expected);
        expected == *proof
    }

    /// Dials the links from a context to a member, unless that was done. Returns whether any of them carries traffic.
    pub(super) fn ensure_links(
        &self,
        context: &mut RmaContext<F::Rail>,
        member: MemberRank,
    ) -> Result<bool, RmaError> {
        // Already dialled.
        if let Some(up) = context.member_readiness(member)? {
            return Ok(up);
        }
        let (me, _) = self.me.get().ok_or(UNMET)?;
        let card = self.card_of(member)?;
        let proof = self.proof_for(member)?;
        // Waits for the streams: the call cannot continue without them.
        let mut desk = self.desk.lock();
        let control = match desk.streams.stream_to(&self.host, card.process, &card.address) {
            Ok(Some(control)) => control,
            Ok(None) => return Ok(false),
            // The address on the card accepts no connection, so the process has ended.
            Err(_) => return Err(RmaError::Lost { member, lost: LossCause::Dead(card.process) }),
        };
        // The end with more rails determines the number of paths.
        let paths = self.nics.numbers().len().max(usize::from(card.rails));
        let words = context.dial_member(member, control, paths, proof, *me)?;
        for (word, fd) in words {
            desk.streams.send_message(control, &word, fd);
        }
        Ok(false)
    }
}
