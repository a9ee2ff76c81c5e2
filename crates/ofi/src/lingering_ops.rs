//! Operations that outlive their link. Operations on endpoints that are shared, or to which registrations are bound, complete when the provider
//! reports it, and their memory stays registered until then. Of a dropped rail, endpoints, queue and registrations stay until the queue has
//! reported all of them. They are polled when the NIC is opened again, registers memory or is closed. Called by rails as their links end; never
//! on a message's path.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use trunkline_fabric::LocalKey;

use crate::link::EndpointPair;
use crate::nic::OpenNic;
use crate::ops::NO_REGION;
use crate::queue::{OfiQueue, QueueRead};
use crate::region::MrEnabled;
use crate::role::{ControlTraffic, PayloadTraffic};

/// The maximum number of lingering rails per NIC. The oldest beyond that are leaked.
const RAILS_MAX: usize = 64;
/// The maximum number of batches per poll of a rail.
const BATCHES: u32 = 64;
/// Polls of a NIC that is dropped.
const LAST_LOOKS: u32 = 10_000;

/// Operations of ended links, by slot, and the regions that they use.
#[derive(Default)]
pub(crate) struct LingeringOps(HashMap<u32, LocalKey>);

impl LingeringOps {
    /// Adds an operation whose link has ended.
    pub(crate) fn insert(&mut self, nic: &OpenNic, slot: u32, region: LocalKey) {
        // Held, so that deregistering the region waits for this operation.
        if region != NO_REGION {
            nic.table.hold_region(region);
        }
        self.0.insert(slot, region);
    }

    /// Removes an operation that has completed.
    pub(crate) fn end_op(&mut self, nic: &OpenNic, slot: u32) {
        if let Some(region) = self.0.remove(&slot) {
            nic.let_go(region);
        }
    }

    /// Removes all operations, after their endpoints have been closed.
    pub(crate) fn end_all(&mut self, nic: &OpenNic) {
        self.0.drain().for_each(|(_, region)| nic.let_go(region));
    }

    /// Returns whether no operation is left.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The objects that outlive a rail.
pub(crate) struct LingeringRail {
    // In the order of closing.
    pub(crate) _heads: (Arc<MrEnabled<PayloadTraffic>>, Arc<MrEnabled<ControlTraffic>>),
    pub(crate) pair: Box<EndpointPair>,
    pub(crate) queue: OfiQueue,
    pub(crate) dying: LingeringOps,
}

// SAFETY: no other code uses the queue and the endpoints any more, and the owner of this value uses them mutably.
unsafe impl Send for LingeringRail {}

impl LingeringRail {
    /// Takes the queue's completions; returns whether all operations have completed.
    fn poll_queue(&mut self, nic: &OpenNic) -> bool {
        for _ in 0..BATCHES {
            match self.queue.read_batch() {
                QueueRead::Entries(count) => {
                    for index in 0..count {
                        if let Some(slot) = self.queue.batch_entry(index).and_then(|entry| entry.slot) {
                            self.dying.end_op(nic, slot.0);
                        }
                    }
                }
                QueueRead::ErrorWaits => {
                    if let Some(slot) = self.queue.read_error().and_then(|failure| failure.slot) {
                        self.dying.end_op(nic, slot.0);
                    }
                }
                QueueRead::Nothing => break,
                // A broken queue reports no further completions, so the objects must stay.
                QueueRead::Broken(_) => return false,
            }
        }
        self.dying.is_empty()
    }
}

/// The lingering rails of a NIC.
#[derive(Default)]
pub(crate) struct LingeringRails(Mutex<Vec<LingeringRail>>);

impl LingeringRails {
    fn take_rails(&self) -> Vec<LingeringRail> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn put_back(&self, mut rails: Vec<LingeringRail>) {
        let mut there = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Merged and not assigned, because another thread may have added a rail during the poll.
        rails.append(&mut there);
        // Leaked and not closed, because the provider may still access their memory.
        let many = rails.len().saturating_sub(RAILS_MAX);
        rails.drain(..many).for_each(std::mem::forget);
        *there = rails;
    }
}

impl OpenNic {
    /// Keeps the objects that outlive a rail.
    pub(crate) fn keep_rail(&self, rail: LingeringRail) {
        self.remains.put_back(vec![rail]);
    }

    /// Releases a region after an operation that used it has completed.
    fn let_go(&self, region: LocalKey) {
        if let Some(left) = self.table.let_go(region) {
            self.close_region(left);
        }
    }

    /// Polls for the end of operations of dropped rails; returns whether none is left.
    pub(crate) fn look_at_remains(&self) -> bool {
        let mut rails = self.remains.take_rails();
        rails.retain_mut(|rail| {
            let ended = rail.poll_queue(self);
            if ended {
                self.closed_endpoints(rail.pair.endpoint_count());
            }
            !ended
        });
        let none = rails.is_empty();
        if !none {
            self.remains.put_back(rails);
        }
        none
    }
}

impl Drop for OpenNic {
    fn drop(&mut self) {
        for _ in 0..LAST_LOOKS {
            if self.look_at_remains() {
                return;
            }
            std::thread::yield_now();
        }
        // A live peer that makes no progress holds the operations back. Closing objects in use is worse than leaving them to the system.
        self.remains.take_rails().into_iter().for_each(std::mem::forget);
        // Registrations of regions in use must stay open as well.
        if self.table.forget_held() {
            self.registrations.leak_all();
        }
    }
}
