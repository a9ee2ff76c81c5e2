//! Which memory of this process peers may be copying from or to right now. A link notes a pin for every record that
//! names memory directly; deregistering and ending a link close the pins and wait for the copies under way. Used by the
//! two sides of a direct copy and by the registrar; copies nothing itself.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use trunkline_proto::reserve::{OutOfMemory, try_deque};

use crate::error::Planted;
use crate::peer_memory::PeerMemory;
use crate::process::Process;
use crate::segment::Segment;

/// How long a waiting thread sleeps between looks.
const LOOK: Duration = Duration::from_micros(50);

/// One record that names memory of this process.
#[derive(Clone, Copy)]
struct Pin {
    key: u64,
    position: u64,
}

/// Who may be inside a copy.
#[derive(Clone, Copy)]
enum Copier {
    /// The peer reads what this side sends.
    Target,
    /// The peer writes what this side receives.
    Initiator,
}

/// The pins of one direction of a link, oldest first.
struct Side {
    copier: Copier,
    segment: Arc<Segment>,
    pins: Mutex<VecDeque<Pin>>,
}

impl Side {
    fn new(copier: Copier, segment: Arc<Segment>) -> Result<Self, OutOfMemory> {
        // As many as there can be records, so that noting one never allocates.
        let pins = Mutex::new(try_deque(segment.geometry().slots() as usize)?);
        Ok(Self { copier, segment, pins })
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Pin>> {
        self.pins.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets the pins before a position: those records are done with.
    fn strike(&self, before: u64) {
        let mut pins = self.lock();
        while pins.front().is_some_and(|pin| before.wrapping_sub(pin.position).cast_signed() > 0) {
            pins.pop_front();
        }
    }

    /// Closes the pins that are asked for and forgets those nobody copies from or to; whether one is left.
    fn close(&self, which: impl Fn(Pin) -> bool, peer: &Process) -> bool {
        let mut busy = false;
        self.lock().retain(|&pin| {
            if !which(pin) {
                return true;
            }
            let claim = self.segment.claim(pin.position);
            claim.close();
            let idle = match self.copier {
                Copier::Target => claim.no_pull(),
                Copier::Initiator => claim.no_push(),
            };
            let keep = !idle && !peer.is_dead();
            busy |= keep;
            keep
        });
        busy
    }
}

/// The pins of one link.
pub(crate) struct Pins {
    peer: PeerMemory,
    offers: Side,
    grants: Side,
    /// The link is gone.
    ended: AtomicBool,
}

impl Pins {
    /// None yet. `out` is the segment this side writes records to, `own` the one it reads them from.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub(crate) fn new(peer: PeerMemory, out: Arc<Segment>, own: Arc<Segment>) -> Result<Self, OutOfMemory> {
        let offers = Side::new(Copier::Target, out)?;
        let grants = Side::new(Copier::Initiator, own)?;
        Ok(Self { peer, offers, grants, ended: AtomicBool::new(false) })
    }

    /// The process at the other end.
    pub(crate) fn peer(&self) -> &Process {
        self.peer.process()
    }

    /// Its memory.
    pub(crate) fn memory(&self) -> &PeerMemory {
        &self.peer
    }

    /// The record at a position, not yet published, names memory of region `key` to be read.
    pub(crate) fn offer(&self, key: u64, position: u64) {
        self.offers.segment.claim(position).reset();
        self.offers.lock().push_back(Pin { key, position });
    }

    /// The peer is done with all offers before a position.
    pub(crate) fn strike_offers(&self, before: u64) {
        self.offers.strike(before);
    }

    /// Lets the peer write to address `at`, in the region with local key `key`, for the record at a position. Call inside a guard in which
    /// the key was found.
    pub(crate) fn grant(&self, key: u64, position: u64, at: u64) {
        self.grants.lock().push_back(Pin { key, position });
        self.grants.segment.claim(position).open(at);
    }

    /// This side is done with all records before a position.
    pub(crate) fn strike_grants(&self, before: u64) {
        self.grants.strike(before);
    }

    /// Closes everything; whether the peer still writes to memory of this side.
    pub(crate) fn still_written(&self) -> bool {
        self.grants.close(|_| true, self.peer())
    }

    /// Closes everything; whether the peer is still inside a copy.
    pub(crate) fn busy(&self) -> bool {
        let read = self.offers.close(|_| true, self.peer());
        self.still_written() || read
    }

    fn busy_with(&self, key: u64) -> bool {
        let read = self.offers.close(|pin| pin.key == key, self.peer());
        self.grants.close(|pin| pin.key == key, self.peer()) || read
    }
}

/// All pins of one NIC.
pub(crate) struct Book {
    links: Mutex<Vec<Arc<Pins>>>,
    no_wait: Planted,
}

impl Book {
    /// Without any.
    pub(crate) fn new() -> Self {
        Self { links: Mutex::default(), no_wait: Planted::named("soft-pins-no-wait") }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Pins>>> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a link.
    pub(crate) fn add(&self, pins: &Arc<Pins>) {
        self.lock().push(Arc::clone(pins));
    }

    /// A link ends: nobody begins a copy any more. Waits for a peer that is writing, because this side's owner may use
    /// the memory for something else next; at most `limit`. What is still being copied then stays in the book, until another
    /// link ends after it has been.
    pub(crate) fn end_link(&self, ended: &Arc<Pins>, limit: Duration) {
        if ended.busy() && ended.still_written() {
            let _ = wait(limit, || ended.still_written().then(|| ended.peer().pid()));
        }
        ended.ended.store(true, Ordering::Relaxed);
        self.lock().retain(|pins| !pins.ended.load(Ordering::Relaxed) || pins.busy());
    }

    /// Closes the pins of a region and waits for the copies under way; the process that is still inside one when the
    /// time is up is the error.
    pub(crate) fn end_region(&self, key: u64, limit: Duration) -> Result<(), u32> {
        wait(limit, || {
            let mut inside = None;
            for pins in self.lock().iter() {
                if pins.busy_with(key) {
                    inside = Some(pins.peer().pid());
                }
            }
            inside.filter(|_| !self.no_wait.is_on())
        })
    }
}

/// Asks until nobody is named; the last one named is the error.
fn wait(limit: Duration, who: impl Fn() -> Option<u32>) -> Result<(), u32> {
    let mut started = None;
    while let Some(pid) = who() {
        if started.get_or_insert_with(Instant::now).elapsed() > limit {
            return Err(pid);
        }
        std::thread::sleep(LOOK);
    }
    Ok(())
}
