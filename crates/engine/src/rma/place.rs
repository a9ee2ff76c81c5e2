//! The place of a context in its job: the context itself, while there is one, and what control streams have said for it. Who reads
//! those does not own its lane.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use trunkline_fabric::{PassedFd, Rail};
use trunkline_proto::id::ProcessId;
use trunkline_proto::limits::RMA_EVENTS_MAX;
use trunkline_proto::mutant::Mutant;
use trunkline_proto::rma::incoming::Standing;
use trunkline_proto::slots::SlotId;
use trunkline_proto::wire::dial::{Heap as Told, Refusal};

use crate::lane::Lane;
use crate::rma::context::{Context, ContextId};
use crate::rma::error::RmaError;
use crate::sync::Guard;

/// What a context has yet to hear from control streams.
pub(super) enum Heard {
    Taken {
        control: SlotId,
        id: u64,
        served: u64,
        receives: u32,
        heaps: Vec<Told>,
        link: Vec<u8>,
        fd: Option<PassedFd>,
    },
    Refused {
        control: SlotId,
        id: u64,
        why: Refusal,
    },
    Standing {
        control: SlotId,
        id: u64,
        standing: Standing,
    },
    Lost {
        control: SlotId,
    },
}

/// The place.
pub(super) struct Place<R: Rail> {
    lane: Lane<Option<Context<R>>>,
    has_news: AtomicBool,
    news: Mutex<VecDeque<Heard>>,
    mutant: Mutant,
}

impl<R: Rail> Place<R> {
    /// One with nothing in it.
    pub(super) fn new(mutant: Mutant) -> Self {
        Self {
            lane: Lane::new(None, mutant),
            has_news: AtomicBool::new(false),
            news: Mutex::default(),
            mutant,
        }
    }

    /// What is in it, unless somebody has it.
    #[inline]
    pub(super) fn try_claim(&self) -> Option<Guard<'_, Option<Context<R>>>> {
        self.lane.try_claim()
    }

    /// What is in it, when nobody has it any more.
    pub(super) fn claim(&self) -> Guard<'_, Option<Context<R>>> {
        self.lane.claim()
    }

    /// Leaves word for the context, unless [`RMA_EVENTS_MAX`] wait already: `false` then. The loss of a stream is always left, once per stream.
    #[must_use]
    pub(super) fn tell(&self, heard: Heard) -> bool {
        let mut news = self.news.lock().unwrap_or_else(PoisonError::into_inner);
        let is_loss = matches!(heard, Heard::Lost { .. });
        if news.len() >= RMA_EVENTS_MAX && !is_loss && !self.mutant.is("job-queues-without-end") {
            return false;
        }
        news.push_back(heard);
        self.has_news.store(true, Ordering::Release);
        true
    }

    /// Lets the context hear what came. What is about another that had the place before it does not concern it.
    pub(super) fn hear(&self, context: &mut Context<R>, processes: impl Fn() -> Vec<ProcessId>) {
        if !self.has_news.swap(false, Ordering::Acquire) {
            return;
        }
        let news = std::mem::take(&mut *self.news.lock().unwrap_or_else(PoisonError::into_inner));
        for heard in news {
            match heard {
                Heard::Taken { control, id, served, receives, heaps, link, fd } => {
                    context.on_taken(control, id, (served, receives, heaps), link, fd);
                }
                Heard::Refused { control, id, why } => context.on_refused(control, id, why),
                Heard::Standing { control, id, standing } => context.on_standing(control, id, standing),
                Heard::Lost { control } => context.on_lost(control, &processes()),
            }
        }
    }
}

/// The context of that name.
///
/// # Errors
/// [`RmaError::Unknown`] if it was closed.
#[inline]
pub(super) fn named<R: Rail>(
    context: &mut Option<Context<R>>,
    id: ContextId,
) -> Result<&mut Context<R>, RmaError> {
    context.as_mut().filter(|context| context.generation == id.generation).ok_or_else(RmaError::unknown)
}

#[cfg(test)]
mod tests {
    use trunkline_softnic::SoftRail;

    use super::*;
    use crate::planted::planted;

    #[test]
    fn a_flood_of_words_is_bounded_and_losses_are_kept() {
        let place = Place::<SoftRail>::new(planted());
        let control = SlotId { slot: 1, generation: 1 };
        let word = || Heard::Refused { control, id: 1, why: Refusal::Stranger };
        assert!((0..RMA_EVENTS_MAX).all(|_| place.tell(word())));
        assert!(!place.tell(word()));
        assert!(place.tell(Heard::Lost { control }), "the loss of a stream is always heard");
        assert_eq!(place.news.lock().unwrap().len(), RMA_EVENTS_MAX + 1);
    }
}
