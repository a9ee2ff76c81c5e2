//! What a job says and hears on control streams: links are asked for, lost and given back there. Taken by calls that found something
//! missing or lost, and now and then.

use std::collections::HashMap;
use std::sync::OnceLock;

use trunkline_fabric::{Fabric, Host, PassedFd};
use trunkline_proto::id::ProcessId;
use trunkline_proto::rma::Path;
use trunkline_proto::slots::SlotId;
use trunkline_proto::wire::dial::{Card, Proof, Refusal, Word};
use trunkline_proto::wire::rma::Stream;

use crate::control::member_key::ProofPurpose;
use crate::in_full;
use crate::rma::context::{Context, Dialled};
use crate::rma::error::{Lost, RmaError};
use crate::rma::job::{Job, Member, UNMET};
use crate::rma::place::Heard;
use crate::rma::service::{Caller, Refused};
use crate::rma::streams::{Event, Streams};

/// What a word was.
enum Heed {
    /// It said nothing of who sent it, and needs no answer.
    Nothing,
    /// It showed the proof of a member; the answer, if there is one right now.
    Member(Option<(Word, Option<PassedFd>)>),
    /// It should have shown one; the answer.
    Stranger(Word),
}

/// A context has more words waiting than it may.
struct Unheard;

/// The streams: one lane.
pub(super) struct Desk<H: Host> {
    pub(super) streams: Streams<H>,
    pub(super) events: Vec<Event>,
    /// The proofs that members show this process, as far as they were needed.
    proofs: HashMap<Member, Proof>,
}

impl<H: Host> Desk<H> {
    /// Nothing was said yet.
    pub(super) fn new(streams: Streams<H>) -> Self {
        Self { streams, events: Vec::new(), proofs: HashMap::new() }
    }
}

impl<F: Fabric, H: Host> Job<F, H> {
    /// Says words, unless another thread has the streams: then they wait.
    #[inline]
    pub(super) fn say(&self, words: &mut Vec<(SlotId, Word)>) {
        if !words.is_empty()
            && let Some(mut desk) = self.desk.try_claim()
        {
            words.drain(..).for_each(|(control, word)| desk.streams.say(control, &word, None));
        }
    }

    /// Takes what came. Whether there was anything.
    pub(super) fn hear(&self, desk: &mut Desk<H>) -> bool {
        // Who calls early waits.
        if self.me.get().is_none() {
            return false;
        }
        let mut events = std::mem::take(&mut desk.events);
        desk.streams.progress(&self.host, &mut events);
        let moved = !events.is_empty();
        for event in events.drain(..) {
            match event {
                Event::Word(control, word, fd) => self.hear_word(desk, control, word, fd),
                Event::Lost(control) => self.hear_loss(control),
            }
        }
        desk.streams.expire(&self.host, &mut desk.events);
        // Streams that the words themselves have ended, or that have expired.
        for event in desk.events.drain(..) {
            if let Event::Lost(control) = event {
                self.hear_loss(control);
            }
        }
        desk.events = events;
        moved
    }

    fn hear_loss(&self, control: SlotId) {
        if let Some(service) = self.service.claim().as_mut() {
            service.lose(control);
        }
        for place in self.contexts.iter().filter_map(OnceLock::get) {
            // There is always room for it.
            let _ = place.tell(Heard::Lost { control });
        }
    }

    fn hear_word(&self, desk: &mut Desk<H>, control: SlotId, word: Word, fd: Option<PassedFd>) {
        let is_answer = matches!(word, Word::Taken { .. } | Word::Refused { .. } | Word::Standing { .. });
        // Answers come from members that were asked, on the streams on which they were.
        if is_answer
            && !desk.streams.is_opened(control)
            && !self.params.mutant.is("job-hears-answers-of-anybody")
        {
            let why = "it answers what it was not asked";
            return desk.streams.refuse(&self.host, control, why, &mut desk.events);
        }
        match self.on_word(desk, control, word, fd) {
            Ok(Heed::Nothing) => {}
            Ok(Heed::Member(answer)) => {
                desk.streams.prove(control);
                if let Some((answer, fd)) = answer {
                    desk.streams.say(control, &answer, fd);
                }
            }
            Ok(Heed::Stranger(answer)) => desk.streams.say(control, &answer, None),
            Err(Unheard) => {
                let why = "more of its words wait for a context than may";
                desk.streams.refuse(&self.host, control, why, &mut desk.events);
            }
        }
    }

    /// Passes a word on.
    fn on_word(
        &self,
        desk: &mut Desk<H>,
        control: SlotId,
        word: Word,
        fd: Option<PassedFd>,
    ) -> Result<Heed, Unheard> {
        match word {
            Word::Dial { id, proof, member, stream, path, link } => {
                return Ok(self.on_dial(desk, control, (id, proof, member), (stream, path), link, fd));
            }
            Word::Taken { id, served, receives, heaps, link } => {
                self.tell(id, Heard::Taken { control, id, served, receives, heaps, link, fd })?;
            }
            Word::Refused { id, why } => self.tell(id, Heard::Refused { control, id, why })?,
            Word::Standing { id, standing } => self.tell(id, Heard::Standing { control, id, standing })?,
            Word::Spoil { proof, heap, offset, value } => {
                let process = desk.streams.process(control);
                let is_of = |card: &Card| Some(card.process) == process;
                let cards = self.me.get().map(|(_, cards)| cards.as_slice()).unwrap_or_default();
                let member = cards.iter().position(is_of).map(|member| member as Member);
                let is_shown = member.is_some_and(|member| self.is_shown(desk, control, member, &proof));
                if !is_shown && !self.params.mutant.is("job-lets-strangers-spoil") {
                    return Ok(Heed::Nothing);
                }
                if let Some(service) = self.service.claim().as_mut() {
                    service.spoil(heap, offset, value);
                }
                return Ok(Heed::Member(None));
            }
            Word::Leave { .. } | Word::Down { .. } | Word::MakeUp { .. } => {
                if let Some(service) = self.service.claim().as_mut() {
                    match word {
                        Word::Down { served } => service.on_down(SlotId::from_bits(served), control),
                        Word::MakeUp { stream, lost } => service.make_up(control, stream, &lost),
                        Word::Leave { stream } => service.leave(control, stream),
                        _ => {}
                    }
                }
            }
        }
        Ok(Heed::Nothing)
    }

    pub(super) fn processes(&self) -> Vec<ProcessId> {
        self.me.get().map(|(_, cards)| cards.iter().map(|card| card.process).collect()).unwrap_or_default()
    }

    /// The id of a dialled link says which context it is of.
    fn tell(&self, id: u64, heard: Heard) -> Result<(), Unheard> {
        let stream = Dialled::from_bits(id).map(|dialled| dialled.stream.index());
        match stream.and_then(|at| self.contexts.get(at)).and_then(OnceLock::get) {
            Some(place) if !place.tell(heard) => Err(Unheard),
            _ => Ok(()),
        }
    }

    fn on_dial(
        &self,
        desk: &mut Desk<H>,
        control: SlotId,
        (id, proof, member): (u64, Proof, Member),
        (stream, path): (Stream, u8),
        link: Vec<u8>,
        fd: Option<PassedFd>,
    ) -> Heed {
        let lets_in = self.params.mutant.is("job-lets-strangers-in");
        let is_shown = self.is_shown(desk, control, member, &proof) || lets_in;
        let Some(path) = Path::new(path).filter(|_| is_shown) else {
            return Heed::Stranger(Word::Refused { id, why: Refusal::Stranger });
        };
        let caller = Caller { member, stream, path, control, id };
        let mut service = self.service.claim();
        let Some(service) = service.as_mut() else {
            return Heed::Member(Some((Word::Refused { id, why: Refusal::NoResources }, None)));
        };
        match service.take(caller, link, fd) {
            Ok((served, address, heaps)) => {
                let served = served.to_bits();
                let receives = service.receives();
                let taken = Word::Taken { id, served, receives, heaps, link: address.bytes };
                Heed::Member(Some((taken, address.fd)))
            }
            Err(error) => {
                let text = format!("no link for member {member}: {}", in_full(&error));
                desk.streams.warn_refusal(&self.host, &text);
                let why = match error {
                    Refused::Twice => Refusal::Protocol,
                    Refused::Link(_) | Refused::Register(_) | Refused::Full => Refusal::NoResources,
                };
                Heed::Member(Some((Word::Refused { id, why }, None)))
            }
        }
    }

    /// The card of a member.
    pub(super) fn card_of(&self, member: Member) -> Result<&Card, RmaError> {
        let (_, cards) = self.me.get().ok_or(UNMET)?;
        cards.get(member as usize).ok_or(RmaError::Argument("there is no such member"))
    }

    /// The proof that shows a member that a word is from this one.
    ///
    /// # Errors
    /// [`RmaError::Argument`] if there is no such member, or its card has a key that no member can have.
    pub(super) fn proof_for(&self, member: Member) -> Result<Proof, RmaError> {
        let (me, _) = self.me.get().ok_or(UNMET)?;
        let proof = self.key.prove(ProofPurpose::OneSided, &self.card_of(member)?.key, *me, member);
        proof.ok_or(RmaError::Argument("the public key on the member's card makes no secret"))
    }

    /// Whether a word on a stream shows that a member says it: the stream is of the member's process, and the proof is one that only the member
    /// and this process can make.
    fn is_shown(&self, desk: &mut Desk<H>, control: SlotId, member: Member, proof: &Proof) -> bool {
        let Some((me, cards)) = self.me.get() else { return false };
        let Some(card) = cards.get(member as usize) else { return false };
        if desk.streams.process(control) != Some(card.process) {
            return false;
        }
        if self.params.mutant.is("job-believes-hello") {
            return true;
        }
        if let Some(expected) = desk.proofs.get(&member) {
            return expected == proof;
        }
        let Some(expected) = self.key.prove(ProofPurpose::OneSided, &card.key, member, *me) else {
            return false;
        };
        desk.proofs.insert(member, expected);
        expected == *proof
    }

    /// Begins the links from a context to a member, unless they are begun. Whether any carries.
    pub(super) fn reach(&self, context: &mut Context<F::Rail>, member: Member) -> Result<bool, RmaError> {
        if let Some(up) = context.reaches(member)? {
            return Ok(up);
        }
        let (me, _) = self.me.get().ok_or(UNMET)?;
        let card = self.card_of(member)?;
        let proof = self.proof_for(member)?;
        let mut desk = self.desk.claim();
        let control = match desk.streams.to(&self.host, card.process, &card.address) {
            Ok(Some(control)) => control,
            Ok(None) => return Ok(false),
            Err(_) => return Err(RmaError::Lost { member, lost: Lost::Dead(card.process) }),
        };
        let paths = self.nics.numbers().len().max(usize::from(card.rails));
        let words = context.dial(member, control, paths, proof, *me)?;
        for (word, fd) in words {
            desk.streams.say(control, &word, fd);
        }
        Ok(false)
    }
}
