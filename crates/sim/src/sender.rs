//! The sending end: fills a buffer, sends it, and reuses the buffer as soon as that is allowed.

use trunkline_engine::MrId;

use crate::checkers::PropertyViolation;
use crate::checkers::bounded::FailureCause;
use crate::checkers::order::SentMessage;
use crate::comm_end::{EndRole, ItemBuffer, PendingRequest, SimCommEnd, StepContext, StepResult};
use crate::pattern;
use crate::rng::mix_bits;
use crate::scenario::{CommPlan, PlannedMessage};

/// The messages of a comm, in the order of their receives.
pub(crate) struct SendSchedule {
    items: Vec<ScheduledMessage>,
    /// All messages before this one were sent.
    first: usize,
    /// Whether messages of later receives may be sent first.
    wide: bool,
}

struct ScheduledMessage {
    message: PlannedMessage,
    /// The receive of the message.
    group: usize,
    pattern: u64,
    sent: bool,
    place: Option<ItemBuffer>,
}

impl SendSchedule {
    pub(crate) fn new(plan: &CommPlan, comm: usize) -> Self {
        let groups = plan.groups.iter().enumerate();
        let items = groups.flat_map(|(group, messages)| messages.iter().map(move |message| (group, message)));
        let items = items.enumerate().map(|(i, (group, message))| ScheduledMessage {
            message: *message,
            group,
            pattern: mix_bits((comm as u64) << 32 | i as u64),
            sent: false,
            place: None,
        });
        // Sends ahead of a receive that the other end has no room to post would never end.
        let wide = plan.receiver.in_flight > plan.window;
        Self { items: items.collect(), first: 0, wide }
    }

    pub(crate) fn is_done(&self) -> bool {
        self.first == self.items.len()
    }

    /// Returns the buffers in use, with their lengths.
    pub(crate) fn used_buffers(&self) -> Vec<(ItemBuffer, u64)> {
        let used = self.items.iter().filter_map(|item| Some((item.place.clone()?, item.message.size)));
        used.collect()
    }

    /// Returns the buffer of a message.
    pub(crate) fn buffers_of(&self, at: usize) -> Vec<(ItemBuffer, u64)> {
        let item = &self.items[at];
        item.place.iter().map(|place| (place.clone(), item.message.size)).collect()
    }

    /// Returns the length of a message in bytes.
    pub(crate) fn size_of(&self, at: usize) -> u64 {
        self.items[at].message.size
    }

    /// Drops the buffer of a message, unless it is in one of these regions.
    pub(crate) fn drop_buffer(&mut self, at: usize, regions: &[MrId]) {
        self.items[at].place.take_if(|place| !regions.contains(&place.mr));
    }

    /// Returns a message that may be sent next: near the oldest unsent one, and the first unsent of its tag.
    fn choose_message(&self, window: usize, pick: impl FnOnce(u64) -> u64) -> Option<usize> {
        let mut tags = Vec::new();
        let mut choices = Vec::new();
        let group = self.items.get(self.first).map(|item| item.group);
        let near = |item: &&ScheduledMessage| self.wide || Some(item.group) == group;
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

impl SimCommEnd {
    fn send_schedule(&mut self) -> Option<&mut SendSchedule> {
        match &mut self.role {
            EndRole::Send(sending) => Some(sending),
            EndRole::Recv(_) => None,
        }
    }

    /// Tries to send one message.
    pub(crate) fn send_message(&mut self, around: &mut StepContext<'_>) -> StepResult {
        let window = around.plan.window;
        let dice = &mut *around.dice;
        let Some(sending) = self.send_schedule() else { return Ok(false) };
        let Some(at) = sending.choose_message(window, |n| dice.below(n)) else { return Ok(false) };
        let item = &sending.items[at];
        let message = item.message;
        let pattern = item.pattern;
        let place = item.place.clone();
        let place = match place {
            Some(place) => place,
            None => {
                let Some(place) = self.allocate_buffer(around, message.size)? else { return Ok(false) };
                pattern::fill(&place.memory, place.offset, message.size, pattern);
                if let Some(sending) = self.send_schedule() {
                    sending.items[at].place = Some(place.clone());
                }
                place
            }
        };
        let Some(id) = self.id else { return Ok(false) };
        let started = around.engine.isend(id, place.mr, place.offset, message.size, message.tag);
        if message.size > message.room && !matches!(started, Ok(None)) {
            self.fate.expect_failure(around.world.now(), FailureCause::TooLong);
            self.news = Some(FailureCause::TooLong);
        }
        match started {
            Ok(None) => self.not_yet(around, around.world.now()),
            Err(error) => self.fail_comm(around, &error),
            Ok(Some(request)) => {
                around.once.record_created(&self.display_name(), request.to_bits())?;
                around.order.record_send(message.tag, SentMessage { pattern, size: message.size });
                around.world.note_trace(format_args!(
                    "{} sends {at}: {} bytes, tag {:#x}",
                    self.display_name(),
                    message.size,
                    message.tag
                ));
                self.flights.push(PendingRequest { request, item: at, flush: None });
                if let Some(sending) = self.send_schedule() {
                    sending.items[at].sent = true;
                    while sending.items.get(sending.first).is_some_and(|item| item.sent) {
                        sending.first += 1;
                    }
                }
                Ok(true)
            }
        }
    }

    /// Completes a send: its buffer is free.
    pub(crate) fn finish_send(
        &mut self,
        around: &mut StepContext<'_>,
        at: usize,
    ) -> Result<(), PropertyViolation> {
        self.completed += 1;
        around.world.note_trace(format_args!("{} has sent {at}", self.display_name()));
        let Some(sending) = self.send_schedule() else { return Ok(()) };
        let place = sending.items[at].place.take();
        let len = sending.items[at].message.size;
        if let Some(place) = place {
            let what = format!("{} buffer of message {at}", self.display_name());
            self.reclaim_buffer(around, place, len, &what)?;
        }
        Ok(())
    }
}
