//! The memory of this process that peers may be copying from or to at the moment. A link records a pin for every record that
//! names memory directly; deregistering and ending a link close the pins and wait for running copies. Used by the
//! two sides of a direct copy and by the registrar; copies nothing itself.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use trunkline_proto::reserve::{OutOfMemory, try_deque};

use crate::peer_memory::PeerMemory;
use crate::process::HostProcess;
use crate::segment::RingSegment;

/// Time that a waiting thread sleeps between two checks.
const LOOK: Duration = Duration::from_micros(50);

/// One record that names memory of this process.
#[derive(Clone, Copy)]
struct RegionPin {
    key: u64,
    position: u64,
}

/// The end of a link that may be inside a copy.
#[derive(Clone, Copy)]
enum CopyingPeer {
    /// The peer reads bytes that this side sends.
    Target,
    /// The peer writes bytes that this side receives.
    Initiator,
}

/// The pins of one direction of a link, oldest first.
struct DirectionPins {
    copier: CopyingPeer,
    segment: Arc<RingSegment>,
    pins: Mutex<VecDeque<RegionPin>>,
}

impl DirectionPins {
    fn new(copier: CopyingPeer, segment: Arc<RingSegment>) -> Result<Self, OutOfMemory> {
        // The ring holds at most this many records, so adding a pin never allocates.
        let pins = Mutex::new(try_deque(segment.geometry().slot_count() as usize)?);
        Ok(Self { copier, segment, pins })
    }

    fn lock_pins(&self) -> MutexGuard<'_, VecDeque<RegionPin>> {
        self.pins.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes the pins before a position: those records are executed.
    fn release_before(&self, before: u64) {
        let mut pins = self.lock_pins();
        while pins.front().is_some_and(|pin| before.wrapping_sub(pin.position).cast_signed() > 0) {
            pins.pop_front();
        }
    }

    /// Closes the pins that `which` selects and removes those without a running copy; returns whether one is left.
    fn close_pins(&self, which: impl Fn(RegionPin) -> bool, peer: &HostProcess) -> bool {
        let mut busy = false;
        self.lock_pins().retain(|&pin| {
            if !which(pin) {
                return true;
            }
            let claim = self.segment.claim_at(pin.position);
            // Closed before it is checked, so that no copy begins in between.
            claim.close();
            let idle = match self.copier {
                CopyingPeer::Target => claim.no_pull(),
                CopyingPeer::Initiator => claim.no_push(),
            };
            // A dead process copies nothing, whatever its last counts are.
            let keep = !idle && !peer.is_dead();
            busy |= keep;
            keep
        });
        busy
    }
}

/// The pins of one link.
pub(crate) struct LinkPins {
    peer: PeerMemory,
    offers: DirectionPins,
    grants: DirectionPins,
    /// Whether the link has ended.
    ended: AtomicBool,
}

impl LinkPins {
    /// Creates a registry without pins. `out` is the segment this side writes records to, `own` the one it reads them from.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub(crate) fn new(
        peer: PeerMemory,
        out: Arc<RingSegment>,
        own: Arc<RingSegment>,
    ) -> Result<Self, OutOfMemory> {
        let offers = DirectionPins::new(CopyingPeer::Target, out)?;
        let grants = DirectionPins::new(CopyingPeer::Initiator, own)?;
        Ok(Self { peer, offers, grants, ended: AtomicBool::new(false) })
    }

    /// Returns the process at the other end.
    pub(crate) fn peer_process(&self) -> &HostProcess {
        self.peer.peer_process()
    }

    /// Returns its memory.
    pub(crate) fn peer_memory(&self) -> &PeerMemory {
        &self.peer
    }

    /// Adds a pin for the record at a position, not yet published, which names memory of region `key` to be read.
    pub(crate) fn add_offer(&self, key: u64, position: u64) {
        self.offers.segment.claim_at(position).reset_words();
        self.offers.lock_pins().push_back(RegionPin { key, position });
    }

    /// Removes all offers before a position, which the peer has executed.
    pub(crate) fn strike_offers(&self, before: u64) {
        self.offers.release_before(before);
    }

    /// Lets the peer write to address `at`, in the region with local key `key`, for the record at a position. Call inside a guard in which
    /// the key was found.
    pub(crate) fn grant_write(&self, key: u64, position: u64, at: u64) {
        self.grants.lock_pins().push_back(RegionPin { key, position });
        self.grants.segment.claim_at(position).open_push(at);
    }

    /// Removes all grants before a position, which this side has executed.
    pub(crate) fn strike_grants(&self, before: u64) {
        self.grants.release_before(before);
    }

    /// Closes all grants; returns whether the peer is still writing to memory of this side.
    pub(crate) fn still_written(&self) -> bool {
        self.grants.close_pins(|_| true, self.peer_process())
    }

    /// Closes everything; returns whether the peer is still inside a copy.
    pub(crate) fn close_all(&self) -> bool {
        let read = self.offers.close_pins(|_| true, self.peer_process());
        self.still_written() || read
    }

    fn busy_with(&self, key: u64) -> bool {
        let read = self.offers.close_pins(|pin| pin.key == key, self.peer_process());
        self.grants.close_pins(|pin| pin.key == key, self.peer_process()) || read
    }
}

/// All pins of one NIC.
pub(crate) struct PinRegistry {
    links: Mutex<Vec<Arc<LinkPins>>>,
}

impl PinRegistry {
    /// Creates an empty registry.
    pub(crate) fn new() -> Self {
        Self { links: Mutex::default() }
    }

    fn lock_links(&self) -> MutexGuard<'_, Vec<Arc<LinkPins>>> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a link.
    pub(crate) fn add_link(&self, pins: &Arc<LinkPins>) {
        self.lock_links().push(Arc::clone(pins));
    }

    /// Ends a link: no further copy begins. Waits at most `limit` for a peer that is writing, because this side's owner may use
    /// the memory for something else next. A copy that is still running then stays in the registry, until another
    /// link ends after it has finished.
    pub(crate) fn end_link(&self, ended: &Arc<LinkPins>, limit: Duration) {
        // A peer that only reads does not change memory that is reused, so it is not waited for.
        if ended.close_all() && ended.still_written() {
            let _ = wait_until_unpinned(limit, || ended.still_written().then(|| ended.peer_process().pid()));
        }
        ended.ended.store(true, Ordering::Relaxed);
        // Links with running copies stay listed, so that `end_region` waits for them.
        self.lock_links().retain(|pins| !pins.ended.load(Ordering::Relaxed) || pins.close_all());
    }

    /// Closes the pins of a region and waits for the running copies.
    ///
    /// # Errors
    /// The number of the process that is still inside one when the time is up.
    pub(crate) fn end_region(&self, key: u64, limit: Duration) -> Result<(), u32> {
        wait_until_unpinned(limit, || {
            let mut inside = None;
            for pins in self.lock_links().iter() {
                if pins.busy_with(key) {
                    inside = Some(pins.peer_process().pid());
                }
            }
            inside
        })
    }
}

/// Waits until `who` returns no process; the error is the last process it returned.
fn wait_until_unpinned(limit: Duration, who: impl Fn() -> Option<u32>) -> Result<(), u32> {
    let mut started = None;
    while let Some(pid) = who() {
        if started.get_or_insert_with(Instant::now).elapsed() > limit {
            return Err(pid);
        }
        std::thread::sleep(LOOK);
    }
    Ok(())
}
