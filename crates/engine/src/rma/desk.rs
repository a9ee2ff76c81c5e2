//! What a job says and hears on control streams: links are asked for, lost and given back there. Taken by calls that found something
//! missing or lost, and now and then.

use std::sync::OnceLock;

use trunkline_fabric::{Fabric, Host, Level, PassedFd};
use trunkline_proto::id::ProcessId;
use trunkline_proto::rma::Path;
use trunkline_proto::slots::SlotId;
use trunkline_proto::wire::dial::{Refusal, Word};
use trunkline_proto::wire::rma::Stream;

use crate::in_full;
use crate::rma::context::{Context, Dialled};
use crate::rma::error::{Lost, RmaError};
use crate::rma::job::{Job, Member, UNMET};
use crate::rma::place::Heard;
use crate::rma::service::{Caller, Refused};
use crate::rma::streams::{Event, Streams};

/// The streams: one lane.
pub(super) struct Desk<H: Host> {
    pub(super) streams: Streams<H>,
    pub(super) events: Vec<Event>,
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
                Event::Word(control, word, fd) => {
                    if let Some((answer, fd)) = self.on_word(control, word, fd) {
                        desk.streams.say(control, &answer, fd);
                    }
                }
                Event::Lost(control) => {
                    if let Some(service) = self.service.claim().as_mut() {
                        service.lose(control);
                    }
                    let places = self.contexts.iter().filter_map(OnceLock::get);
                    places.for_each(|place| place.tell(Heard::Lost { control }));
                }
            }
        }
        desk.events = events;
        moved
    }

    /// Passes a word on. The answer, if there is one right now.
    fn on_word(&self, control: SlotId, word: Word, fd: Option<PassedFd>) -> Option<(Word, Option<PassedFd>)> {
        match word {
            Word::Dial { id, nonce, member, stream, path, link } => {
                return Some(self.on_dial(control, (id, nonce, member), (stream, path), link, fd));
            }
            Word::Taken { id, served, receives, heaps, link } => {
                self.tell(id, Heard::Taken { control, id, served, receives, heaps, link, fd });
            }
            Word::Refused { id, why } => self.tell(id, Heard::Refused { control, id, why }),
            Word::Standing { id, standing } => self.tell(id, Heard::Standing { control, id, standing }),
            Word::Spoil { nonce, heap, offset, value } => {
                let was_told = nonce == self.nonce || self.params.mutant.is("job-lets-strangers-spoil");
                if let Some(service) = self.service.claim().as_mut().filter(|_| was_told) {
                    service.spoil(heap, offset, value);
                }
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
        None
    }

    pub(super) fn processes(&self) -> Vec<ProcessId> {
        self.me.get().map(|(_, cards)| cards.iter().map(|card| card.process).collect()).unwrap_or_default()
    }

    /// The id of a dialled link says which context it is of.
    fn tell(&self, id: u64, heard: Heard) {
        let stream = Dialled::from_bits(id).map(|dialled| dialled.stream.index());
        if let Some(place) = stream.and_then(|at| self.contexts.get(at)).and_then(OnceLock::get) {
            place.tell(heard);
        }
    }

    fn on_dial(
        &self,
        control: SlotId,
        (id, nonce, member): (u64, [u8; 16], Member),
        (stream, path): (Stream, u8),
        link: Vec<u8>,
        fd: Option<PassedFd>,
    ) -> (Word, Option<PassedFd>) {
        let is_member = self.me.get().is_some_and(|(_, cards)| (member as usize) < cards.len());
        let mutant = self.params.mutant;
        let is_member = is_member || mutant.is("job-takes-any-member");
        let was_told = nonce == self.nonce || mutant.is("job-lets-strangers-in");
        let Some(path) = Path::new(path).filter(|_| is_member && was_told) else {
            return (Word::Refused { id, why: Refusal::Stranger }, None);
        };
        let caller = Caller { member, stream, path, control, id };
        let mut service = self.service.claim();
        let Some(service) = service.as_mut() else {
            return (Word::Refused { id, why: Refusal::NoResources }, None);
        };
        match service.take(caller, link, fd) {
            Ok((served, address, heaps)) => {
                let served = served.to_bits();
                let receives = service.receives();
                (Word::Taken { id, served, receives, heaps, link: address.bytes }, address.fd)
            }
            Err(error) => {
                let text = format!("no link for member {member}: {}", in_full(&error));
                self.host.log(Level::Warn, &text);
                let why = match error {
                    Refused::Twice => Refusal::Protocol,
                    Refused::Link(_) | Refused::Register(_) | Refused::Full => Refusal::NoResources,
                };
                (Word::Refused { id, why }, None)
            }
        }
    }

    /// Begins the links from a context to a member, unless they are begun. Whether any carries.
    pub(super) fn reach(&self, context: &mut Context<F::Rail>, member: Member) -> Result<bool, RmaError> {
        if let Some(up) = context.reaches(member)? {
            return Ok(up);
        }
        let (me, cards) = self.me.get().ok_or(UNMET)?;
        let card = cards.get(member as usize).ok_or(RmaError::Argument("there is no such member"))?;
        let mut desk = self.desk.claim();
        let control = match desk.streams.to(&self.host, card.process, &card.address) {
            Ok(Some(control)) => control,
            Ok(None) => return Ok(false),
            Err(_) => return Err(RmaError::Lost { member, lost: Lost::Dead(card.process) }),
        };
        let paths = self.nics.numbers().len().max(usize::from(card.rails));
        let words = context.dial(member, control, paths, card.nonce, *me)?;
        for (word, fd) in words {
            desk.streams.say(control, &word, fd);
        }
        Ok(false)
    }
}
