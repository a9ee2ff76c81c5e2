//! The sending end: fills a buffer, sends it, and uses the buffer for something else as soon as it may.

use trunkline_engine::MrId;

use crate::checkers::Violation;
use crate::checkers::bounded::Cause;
use crate::checkers::order::Sent;
use crate::dice::mix;
use crate::pattern;
use crate::scenario::{CommPlan, Message};
use crate::side::{Around, Flight, Place, Role, Side, Step};

/// The messages of a comm, in the order of their receives.
pub(crate) struct Sending {
    items: Vec<Item>,
    /// Everything before it was sent.
    first: usize,
    /// Messages of later receives may overtake.
    wide: bool,
}

struct Item {
    message: Message,
    /// The receive it is for.
    group: usize,
    pattern: u64,
    sent: bool,
    place: Option<Place>,
}

impl Sending {
    pub(crate) fn new(plan: &CommPlan, comm: usize) -> Self {
        let groups = plan.groups.iter().enumerate();
        let items = groups.flat_map(|(group, messages)| messages.iter().map(move |message| (group, message)));
        let items = items.enumerate().map(|(i, (group, message))| Item {
            message: *message,
            group,
            pattern: mix((comm as u64) << 32 | i as u64),
            sent: false,
            place: None,
        });
        // Sends that run ahead of a receive the other end has no room to post would wait for ever.
        let wide = plan.receiver.in_flight > plan.window;
        Self { items: items.collect(), first: 0, wide }
    }

    pub(crate) fn is_done(&self) -> bool {
        self.first == self.items.len()
    }

    /// Buffers in use, with their lengths.
    pub(crate) fn places(&self) -> Vec<(Place, u64)> {
        let used = self.items.iter().filter_map(|item| Some((item.place.clone()?, item.message.size)));
        used.collect()
    }

    /// The buffer of a message.
    pub(crate) fn places_of(&self, at: usize) -> Vec<(Place, u64)> {
        let item = &self.items[at];
        item.place.iter().map(|place| (place.clone(), item.message.size)).collect()
    }

    /// Bytes of a message.
    pub(crate) fn size_of(&self, at: usize) -> u64 {
        self.items[at].message.size
    }

    /// A message has no buffer any more, unless it lies in one of these regions.
    pub(crate) fn forget(&mut self, at: usize, regions: &[MrId]) {
        self.items[at].place.take_if(|place| !regions.contains(&place.mr));
    }

    /// A message that may go next: near the oldest unsent one, and the first unsent of its tag.
    fn choose(&self, window: usize, pick: impl FnOnce(u64) -> u64) -> Option<usize> {
        let mut tags = Vec::new();
        let mut choices = Vec::new();
        let group = self.items.get(self.first).map(|item| item.group);
        let near = |item: &&Item| self.wide || Some(item.group) == group;
        for (i, item) in self.items.iter().enumerate().skip(self.first).take(window) {
            if !near(&item) {
                break;
            }
            if !item.sent && !tags.contains(&item.message.tag) {
                tags.push(item.message.tag);
                choices.push(i);
            }
        }
        choices.get(pick(choices.len() as u64) as usize).copied()
    }
}

impl Side {
    fn sending(&mut self) -> Option<&mut Sending> {
        match &mut self.role {
            Role::Send(sending) => Some(sending),
            Role::Recv(_) => None,
        }
    }

    /// Tries to send one message.
    pub(crate) fn send(&mut self, around: &mut Around<'_>) -> Step {
        let window = around.plan.window;
        let dice = &mut *around.dice;
        let Some(sending) = self.sending() else { return Ok(false) };
        let Some(at) = sending.choose(window, |n| dice.below(n)) else { return Ok(false) };
        let item = &sending.items[at];
        let message = item.message;
        let pattern = item.pattern;
        let place = item.place.clone();
        let place = match place {
            Some(place) => place,
            None => {
                let Some(place) = self.place(around, message.size)? else { return Ok(false) };
                pattern::fill(&place.memory, place.offset, message.size, pattern);
                if let Some(sending) = self.sending() {
                    sending.items[at].place = Some(place.clone());
                }
                place
            }
        };
        let Some(id) = self.id else { return Ok(false) };
        let started = around.engine.isend(id, place.mr, place.offset, message.size, message.tag);
        if message.size > message.room && !matches!(started, Ok(None)) {
            self.fate.doom(around.world.now(), Cause::TooLong);
            self.news = Some(Cause::TooLong);
        }
        match started {
            Ok(None) => self.not_yet(around, around.world.now()),
            Err(error) => self.failed(around, &error),
            Ok(Some(request)) => {
                around.once.made(&self.name(), request.to_bits())?;
                around.order.sent(message.tag, Sent { pattern, size: message.size });
                around.world.note(format_args!(
                    "{} sends {at}: {} bytes, tag {:#x}",
                    self.name(),
                    message.size,
                    message.tag
                ));
                self.flights.push(Flight { request, item: at, flush: None });
                if let Some(sending) = self.sending() {
                    sending.items[at].sent = true;
                    while sending.items.get(sending.first).is_some_and(|item| item.sent) {
                        sending.first += 1;
                    }
                }
                Ok(true)
            }
        }
    }

    /// A send is done: its buffer is free.
    pub(crate) fn sent(&mut self, around: &mut Around<'_>, at: usize) -> Result<(), Violation> {
        self.completed += 1;
        around.world.note(format_args!("{} has sent {at}", self.name()));
        let Some(sending) = self.sending() else { return Ok(()) };
        let place = sending.items[at].place.take();
        let len = sending.items[at].message.size;
        if let Some(place) = place {
            let what = format!("{} buffer of message {at}", self.name());
            self.bury(around, place, len, &what)?;
        }
        Ok(())
    }
}
