//! The place of a context in its job: the context itself, while there is one, and what control streams have said for it. Who reads
//! those does not own its lane.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use trunkline_fabric::{LinkAddress, PassedFd, Rail};
use trunkline_proto::id::ProcessId;
use trunkline_proto::limits::RMA_EVENTS_MAX;
use trunkline_proto::rma::incoming::PathDeliveryReport;
use trunkline_proto::slots::SlotId;
use trunkline_proto::wire::dial::{DialRefusal, RemoteHeap as Told};

use crate::lane::OwnerLock;
use crate::rma::context::{ContextId, RmaContext};
use crate::rma::error::RmaError;
use crate::sync::Guard;

/// What a context has yet to hear from control streams.
pub(super) enum ContextEvent {
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
        why: DialRefusal,
    },
    Standing {
        control: SlotId,
        id: u64,
        standing: PathDeliveryReport,
    },
    Lost {
        control: SlotId,
    },
}

/// The place.
pub(super) struct ContextSlot<R: Rail> {
    lane: OwnerLock<Option<RmaContext<R>>>,
    has_news: AtomicBool,
    news: Mutex<VecDeque<ContextEvent>>,
}

impl<R: Rail> ContextSlot<R> {
    /// One with nothing in it.
    pub(super) fn new() -> Self {
        Self { lane: OwnerLock::new(None), has_news: AtomicBool::new(false), news: Mutex::default() }
    }

    /// What is in it, unless somebody has it.
    #[inline]
    pub(super) fn try_lock_context(&self) -> Option<Guard<'_, Option<RmaContext<R>>>> {
        self.lane.try_lock()
    }

    /// What is in it, when nobody has it any more.
    pub(super) fn lock_context(&self) -> Guard<'_, Option<RmaContext<R>>> {
        self.lane.lock()
    }

    /// Leaves word for the context, unless [`RMA_EVENTS_MAX`] wait already: `false` then. The loss of a stream is always left, once per stream.
    #[must_use]
    pub(super) fn push_event(&self, heard: ContextEvent) -> bool {
        let mut news = self.news.lock().unwrap_or_else(PoisonError::into_inner);
        let is_loss = matches!(heard, ContextEvent::Lost { .. });
        if news.len() >= RMA_EVENTS_MAX && !is_loss {
            return false;
        }
        news.push_back(heard);
        self.has_news.store(true, Ordering::Release);
        true
    }

    /// Lets the context hear what came. What is about another that had the place before it does not concern it.
    pub(super) fn deliver_events(&self, context: &mut RmaContext<R>, processes: impl Fn() -> Vec<ProcessId>) {
        if !self.has_news.swap(false, Ordering::Acquire) {
            return;
        }
        let news = std::mem::take(&mut *self.news.lock().unwrap_or_else(PoisonError::into_inner));
        for heard in news {
            match heard {
                ContextEvent::Taken { control, id, served, receives, heaps, link, fd } => {
                    let address = LinkAddress { bytes: link, fd };
                    context.on_taken(control, id, served, receives, heaps, address);
                }
                ContextEvent::Refused { control, id, why } => context.on_refused(control, id, why),
                ContextEvent::Standing { control, id, standing } => {
                    context.on_delivery_report(control, id, standing)
                }
                ContextEvent::Lost { control } => context.on_lost(control, &processes()),
            }
        }
    }
}

/// The context of that name.
///
/// # Errors
/// [`RmaError::Unknown`] if it was closed.
#[inline]
pub(super) fn live_context<R: Rail>(
    context: &mut Option<RmaContext<R>>,
    id: ContextId,
) -> Result<&mut RmaContext<R>, RmaError> {
    context
        .as_mut()
        .filter(|context| context.generation == id.generation)
        .ok_or_else(RmaError::unknown_request)
}

#[cfg(test)]
mod tests {
    use trunkline_softnic::SoftRail;

    use super::*;

    #[test]
    fn a_flood_of_words_is_bounded_and_losses_are_kept() {
        let place = ContextSlot::<SoftRail>::new();
        let control = SlotId { slot: 1, generation: 1 };
        let word = || ContextEvent::Refused { control, id: 1, why: DialRefusal::Stranger };
        assert!((0..RMA_EVENTS_MAX).all(|_| place.push_event(word())));
        assert!(!place.push_event(word()));
        assert!(place.push_event(ContextEvent::Lost { control }), "the loss of a stream is always heard");
        assert_eq!(place.news.lock().unwrap().len(), RMA_EVENTS_MAX + 1);
    }
}
