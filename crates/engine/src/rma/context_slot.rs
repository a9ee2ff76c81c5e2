//! The slot of a context in its job: the context itself, if there is one, and its events from control streams. The thread that
//! reads those streams does not hold the context's lock, so it queues the events here.

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

/// An event from a control stream that a context has not processed.
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

/// The slot.
pub(super) struct ContextSlot<R: Rail> {
    lane: OwnerLock<Option<RmaContext<R>>>,
    has_news: AtomicBool,
    news: Mutex<VecDeque<ContextEvent>>,
}

impl<R: Rail> ContextSlot<R> {
    /// Creates an empty slot.
    pub(super) fn new() -> Self {
        Self { lane: OwnerLock::new(None), has_news: AtomicBool::new(false), news: Mutex::default() }
    }

    /// Locks its context, unless another thread holds it.
    #[inline]
    pub(super) fn try_lock_context(&self) -> Option<Guard<'_, Option<RmaContext<R>>>> {
        self.lane.try_lock()
    }

    /// Locks its context; waits for a thread that holds it.
    pub(super) fn lock_context(&self) -> Guard<'_, Option<RmaContext<R>>> {
        self.lane.lock()
    }

    /// Queues an event for the context, unless [`RMA_EVENTS_MAX`] are queued already: `false` then. The loss of a
    /// stream is always queued, because it happens once per stream, and without it the context would wait forever.
    #[must_use]
    pub(super) fn push_event(&self, heard: ContextEvent) -> bool {
        let mut news = self.news.lock().unwrap_or_else(PoisonError::into_inner);
        let is_loss = matches!(heard, ContextEvent::Lost { .. });
        // Bounded, because the peer decides how many messages it sends; a loss is this process's own event.
        if news.len() >= RMA_EVENTS_MAX && !is_loss {
            return false;
        }
        news.push_back(heard);
        // Release, so that the context that sees the flag also finds the event.
        self.has_news.store(true, Ordering::Release);
        true
    }

    /// Delivers the queued events to the context. Events of an earlier context of the slot have no effect.
    pub(super) fn deliver_events(&self, context: &mut RmaContext<R>, processes: impl Fn() -> Vec<ProcessId>) {
        // One exchange in the common case of no event, without the mutex.
        if !self.has_news.swap(false, Ordering::Acquire) {
            return;
        }
        // Taken out at once, so that streams can queue further events meanwhile.
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

/// Returns the context of this id.
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
    fn event_queue_is_bounded_and_keeps_stream_losses() {
        let place = ContextSlot::<SoftRail>::new();
        let control = SlotId { slot: 1, generation: 1 };
        let word = || ContextEvent::Refused { control, id: 1, why: DialRefusal::Stranger };
        assert!((0..RMA_EVENTS_MAX).all(|_| place.push_event(word())));
        assert!(!place.push_event(word()));
        assert!(
            place.push_event(ContextEvent::Lost { control }),
            "the loss of a stream is queued beyond the limit"
        );
        assert_eq!(place.news.lock().unwrap().len(), RMA_EVENTS_MAX + 1);
    }
}
