//! What goes on after its link: operations on endpoints that others use, too, or that registrations are bound to, end when the
//! provider says so, and until then their memory stays registered. Of a rail that goes before them endpoints, queue and
//! registrations stay, until the queue has told of all; looked at when its NIC is opened again, registers or is closed. Called by
//! rails as their links end; never on a message's path.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use trunkline_fabric::LocalKey;

use crate::link::EndpointPair;
use crate::nic::OpenNic;
use crate::ops::NO_REGION;
use crate::queue::{OfiQueue, QueueRead};
use crate::region::MrEnabled;
use crate::role::{ControlTraffic, PayloadTraffic};

/// Rails that remain of one NIC. Of more than that the oldest is left to the process's end.
const RAILS_MAX: usize = 64;
/// Batches that one look at a rail takes.
const BATCHES: u32 = 64;
/// Looks of a NIC that goes.
const LAST_LOOKS: u32 = 10_000;

/// Operations of links that have ended, by slot, and the regions that they use.
#[derive(Default)]
pub(crate) struct LingeringOps(HashMap<u32, LocalKey>);

impl LingeringOps {
    /// The link of an operation has ended.
    pub(crate) fn insert(&mut self, nic: &OpenNic, slot: u32, region: LocalKey) {
        if region != NO_REGION {
            nic.table.hold_region(region);
        }
        self.0.insert(slot, region);
    }

    /// The operation has ended.
    pub(crate) fn end_op(&mut self, nic: &OpenNic, slot: u32) {
        if let Some(region) = self.0.remove(&slot) {
            nic.let_go(region);
        }
    }

    /// All have ended, with their endpoints.
    pub(crate) fn end_all(&mut self, nic: &OpenNic) {
        self.0.drain().for_each(|(_, region)| nic.let_go(region));
    }

    /// Whether all have ended.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// What remains of a rail.
pub(crate) struct LingeringRail {
    // In the order in which they are closed.
    pub(crate) _heads: (Arc<MrEnabled<PayloadTraffic>>, Arc<MrEnabled<ControlTraffic>>),
    pub(crate) pair: Box<EndpointPair>,
    pub(crate) queue: OfiQueue,
    pub(crate) dying: LingeringOps,
}

// SAFETY: queue and endpoint are of no use to anybody else any more, and whoever has this uses them mutably.
unsafe impl Send for LingeringRail {}

impl LingeringRail {
    /// Takes what the queue has to tell; whether that was all.
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
                // It tells nothing more, of whatever there is.
                QueueRead::Broken(_) => return false,
            }
        }
        self.dying.is_empty()
    }
}

/// The rails that remain of a NIC.
#[derive(Default)]
pub(crate) struct LingeringRails(Mutex<Vec<LingeringRail>>);

impl LingeringRails {
    fn take_rails(&self) -> Vec<LingeringRail> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn put_back(&self, mut rails: Vec<LingeringRail>) {
        let mut there = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        rails.append(&mut there);
        let many = rails.len().saturating_sub(RAILS_MAX);
        rails.drain(..many).for_each(std::mem::forget);
        *there = rails;
    }
}

impl OpenNic {
    /// Keeps what remains of a rail.
    pub(crate) fn keep_rail(&self, rail: LingeringRail) {
        self.remains.put_back(vec![rail]);
    }

    /// An operation has ended that used a region.
    fn let_go(&self, region: LocalKey) {
        if let Some(left) = self.table.let_go(region) {
            self.close_region(left);
        }
    }

    /// Looks whether operations of rails that are gone have ended; whether none is left.
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
        // A peer that lives and makes no progress keeps them. To close what is in use is worse than to leave it to the system.
        self.remains.take_rails().into_iter().for_each(std::mem::forget);
        if self.table.forget_held() {
            self.registrations.leak_all();
        }
    }
}
