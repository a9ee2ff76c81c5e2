//! What goes on after its link: operations on endpoints that others use, too, or that registrations are bound to, end when the
//! provider says so, and until then their memory stays registered. Of a rail that goes before them endpoints, queue and
//! registrations stay, until the queue has told of all; looked at when its NIC is opened again, registers or is closed. Called by
//! rails as their links end; never on a message's path.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use trunkline_fabric::LocalKey;

use crate::link::Pair;
use crate::nic::Opened;
use crate::ops::NO_REGION;
use crate::queue::{Queue, Read};
use crate::region::Mr;
use crate::role::{Ctrl, Data};

/// Rails that remain of one NIC. Of more than that the oldest is left to the process's end.
const RAILS_MAX: usize = 64;
/// Batches that one look at a rail takes.
const BATCHES: u32 = 64;
/// Looks of a NIC that goes.
const LAST_LOOKS: u32 = 10_000;

/// Operations of links that have ended, by slot, and the regions that they use.
#[derive(Default)]
pub(crate) struct Dying(HashMap<u32, LocalKey>);

impl Dying {
    /// The link of an operation has ended.
    pub(crate) fn insert(&mut self, nic: &Opened, slot: u32, region: LocalKey) {
        if region != NO_REGION {
            nic.table.hold(region);
        }
        self.0.insert(slot, region);
    }

    /// The operation has ended.
    pub(crate) fn end(&mut self, nic: &Opened, slot: u32) {
        if let Some(region) = self.0.remove(&slot) {
            nic.let_go(region);
        }
    }

    /// All have ended, with their endpoints.
    pub(crate) fn end_all(&mut self, nic: &Opened) {
        self.0.drain().for_each(|(_, region)| nic.let_go(region));
    }

    /// Whether all have ended.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// What remains of a rail.
pub(crate) struct Rail {
    // In the order in which they are closed.
    pub(crate) _heads: (Arc<Mr<Data>>, Arc<Mr<Ctrl>>),
    pub(crate) pair: Box<Pair>,
    pub(crate) queue: Queue,
    pub(crate) dying: Dying,
}

// SAFETY: queue and endpoint are of no use to anybody else any more, and whoever has this uses them mutably.
unsafe impl Send for Rail {}

impl Rail {
    /// Takes what the queue has to tell; whether that was all.
    fn look(&mut self, nic: &Opened) -> bool {
        for _ in 0..BATCHES {
            match self.queue.read() {
                Read::Entries(count) => {
                    for index in 0..count {
                        if let Some(slot) = self.queue.entry(index).and_then(|entry| entry.slot) {
                            self.dying.end(nic, slot.0);
                        }
                    }
                }
                Read::ErrorWaits => {
                    if let Some(slot) = self.queue.error().and_then(|failure| failure.slot) {
                        self.dying.end(nic, slot.0);
                    }
                }
                Read::Nothing => break,
                // It tells nothing more, of whatever there is.
                Read::Broken(_) => return false,
            }
        }
        self.dying.is_empty()
    }
}

/// The rails that remain of a NIC.
#[derive(Default)]
pub(crate) struct Remains(Mutex<Vec<Rail>>);

impl Remains {
    fn take(&self) -> Vec<Rail> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn put_back(&self, mut rails: Vec<Rail>) {
        let mut there = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        rails.append(&mut there);
        let many = rails.len().saturating_sub(RAILS_MAX);
        rails.drain(..many).for_each(std::mem::forget);
        *there = rails;
    }
}

impl Opened {
    /// Keeps what remains of a rail.
    pub(crate) fn keep(&self, rail: Rail) {
        self.remains.put_back(vec![rail]);
    }

    /// An operation has ended that used a region.
    fn let_go(&self, region: LocalKey) {
        if let Some(left) = self.table.let_go(region) {
            self.close(left);
        }
    }

    /// Looks whether operations of rails that are gone have ended; whether none is left.
    pub(crate) fn look_at_remains(&self) -> bool {
        let mut rails = self.remains.take();
        rails.retain_mut(|rail| {
            let ended = rail.look(self);
            if ended {
                self.closed_endpoints(rail.pair.count());
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

impl Drop for Opened {
    fn drop(&mut self) {
        for _ in 0..LAST_LOOKS {
            if self.look_at_remains() {
                return;
            }
            std::thread::yield_now();
        }
        // A peer that lives and makes no progress keeps them. To close what is in use is worse than to leave it to the system.
        self.remains.take().into_iter().for_each(std::mem::forget);
        if self.table.forget_held() {
            self.registrations.forget();
        }
    }
}
