//! What the rails of one fabric share: the NICs with their tables and counts. Called when things are made or looked up;
//! holds nothing of a single link.

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use crate::SoftConfig;
use crate::book::Book;
use crate::error::Planted;
use crate::guard::Guards;
use crate::process::Process;
use crate::register::{Table, random};

/// One NIC.
pub(crate) struct NicState {
    /// Its regions.
    pub(crate) table: Table,
    /// Memory that peers may be copying from or to.
    pub(crate) book: Book,
    queue_pairs: AtomicU32,
    numbers: AtomicU32,
}

impl NicState {
    /// Takes one of `max` queue pairs and numbers it.
    pub(crate) fn take_queue_pair(&self, max: u32) -> Option<u32> {
        let taken = self
            .queue_pairs
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| (used < max).then_some(used + 1));
        taken.ok()?;
        Some(self.numbers.fetch_add(1, Ordering::Relaxed))
    }

    /// Gives one back.
    pub(crate) fn give_queue_pair(&self) {
        self.queue_pairs.fetch_sub(1, Ordering::Relaxed);
    }
}

/// All NICs of a fabric.
pub(crate) struct Shared {
    /// As given.
    pub(crate) config: SoftConfig,
    /// Names this fabric; tells links whether their two ends can share tables.
    pub(crate) id: [u8; 16],
    /// By number.
    pub(crate) nics: Box<[NicState]>,
    /// One for each open rail.
    pub(crate) guards: Guards,
    /// A word that proves to a peer that it can read this process.
    pub(crate) probe: Box<u64>,
    /// When it was made.
    pub(crate) started: Instant,
    /// This process, as others see it.
    pub(crate) itself: Process,
    /// A planted bug: deregistration does not wait.
    pub(crate) no_wait: Planted,
    /// A planted bug: all memory is taken for reachable by others.
    pub(crate) any_reachable: Planted,
}

impl Shared {
    /// Makes the NICs.
    pub(crate) fn new(config: SoftConfig) -> io::Result<Self> {
        let nic = || NicState {
            table: Table::new(config.max_mr, config.virtual_addresses),
            book: Book::new(),
            queue_pairs: AtomicU32::new(0),
            numbers: AtomicU32::new(1),
        };
        Ok(Self {
            id: random()?,
            nics: std::iter::repeat_with(nic).take(config.nics).collect(),
            guards: Guards::new(),
            probe: Box::new(u128::from_le_bytes(random()?) as u64 | 1),
            started: Instant::now(),
            itself: Process::own(),
            no_wait: Planted::named("soft-dereg-no-wait"),
            any_reachable: Planted::named("soft-any-memory-reachable"),
            config,
        })
    }

    /// Nanoseconds since it was made.
    pub(crate) fn nanos(&self) -> u64 {
        // 584 years fit.
        self.started.elapsed().as_nanos() as u64
    }
}
