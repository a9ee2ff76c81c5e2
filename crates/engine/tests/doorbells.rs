//! Doorbells of a context, and their timing: one per operation, or one per batch. Registrations do not delay other
//! operations.

#![allow(clippy::unwrap_used, reason = "tests")]

mod watched;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use trunkline_engine::host::UnixHost;
use trunkline_engine::rma::{ContextId, HeapRange, PutSource, RmaJob};
use trunkline_engine::{CommNics, EngineParams};
use trunkline_mem::MemoryRange;
use trunkline_softnic::{SoftConfig, SoftFabric, WireMode};

use watched::{NicWatch, WatchedFabric};

/// Operations of a batch.
const BATCH: u64 = 32;
/// Bytes of each operation.
const LEN: u64 = 64;

/// Two members, of which the first puts to the second.
struct BatchPair {
    jobs: [RmaJob<WatchedFabric, UnixHost>; 2],
    contexts: [ContextId; 2],
    heaps: [MemoryRange; 2],
    watch: Arc<NicWatch>,
}

impl BatchPair {
    fn new(wire: WireMode) -> Self {
        let watches: [Arc<NicWatch>; 2] = [Arc::default(), Arc::default()];
        let jobs = watches.each_ref().map(|watch| {
            let fabric = SoftFabric::new(SoftConfig { wire, ..SoftConfig::default() }).unwrap();
            let fabric = WatchedFabric(fabric, Arc::clone(watch));
            let host = UnixHost::new(|_, _| {});
            RmaJob::new(fabric, host, EngineParams::default(), CommNics::new(&[0]).unwrap()).unwrap()
        });
        let cards: Vec<_> = jobs.iter().map(RmaJob::process_card).collect();
        let heaps = [MemoryRange::heap(1 << 16), MemoryRange::heap(1 << 16)];
        let contexts = [0, 1].map(|me| {
            jobs[me].set_members(me as u32, &cards).unwrap();
            assert_eq!(jobs[me].add_heap(heaps[me].clone()).unwrap(), 0);
            jobs[me].create_context().unwrap()
        });
        let [watch, _] = watches;
        let pair = Self { jobs, contexts, heaps, watch };
        // The link is made with the first operation.
        pair.until(|| pair.put(0));
        pair.quiet();
        pair
    }

    /// Puts bytes to the number-th place, and returns whether the put was accepted.
    fn put(&self, number: u64) -> bool {
        let from = HeapRange { heap: 0, offset: number * LEN, len: LEN };
        let put = self.jobs[0].put(self.contexts[0], 1, 0, number * LEN, PutSource::Heap(from)).unwrap();
        assert!(put.is_none_or(|taken| taken == LEN));
        put.is_some()
    }

    fn until(&self, mut is_done: impl FnMut() -> bool) {
        let started = Instant::now();
        while !is_done() {
            for (job, &context) in self.jobs.iter().zip(&self.contexts) {
                job.progress(context).unwrap();
            }
            assert!(started.elapsed().as_secs() < 30, "the operation did not complete within 30 s");
        }
    }

    fn quiet(&self) {
        self.until(|| self.jobs[0].quiet(self.contexts[0]).unwrap());
    }

    fn batch(&self, more: bool) {
        self.jobs[0].set_batching(self.contexts[0], more).unwrap();
    }

    /// Returns the doorbells since the last call.
    fn rung(&self) -> u64 {
        self.watch.rings.swap(0, Ordering::Relaxed)
    }

    /// Fills the source of a put, and returns whether its bytes have arrived.
    fn fill(&self, with: u8) -> impl Fn() -> bool {
        let bytes = vec![with; (BATCH * LEN) as usize];
        self.heaps[0].write(0, &bytes).unwrap();
        move || {
            let mut found = vec![0; bytes.len()];
            self.heaps[1].read(0, &mut found).unwrap();
            found == bytes
        }
    }
}

#[test]
fn batch_rings_one_doorbell() {
    for wire in [WireMode::Shm, WireMode::Tcp] {
        let pair = BatchPair::new(wire);
        let has_arrived = pair.fill(1);
        pair.rung();
        assert!((0..BATCH).all(|number| pair.put(number)));
        assert_eq!(pair.rung(), BATCH, "one doorbell per operation");
        pair.quiet();
        assert!(has_arrived());
        let has_arrived = pair.fill(2);
        pair.rung();
        pair.batch(true);
        assert!((0..BATCH - 1).all(|number| pair.put(number)));
        assert_eq!(pair.rung(), 0, "a batch rang before its end");
        pair.batch(false);
        assert_eq!(pair.rung(), 0, "ending a batch rang before its last operation");
        assert!(pair.put(BATCH - 1));
        assert_eq!(pair.rung(), 1);
        pair.quiet();
        assert!(has_arrived());
    }
}

#[test]
fn progress_rings_for_batches_that_never_end() {
    let pair = BatchPair::new(WireMode::Tcp);
    let has_arrived = pair.fill(3);
    pair.rung();
    pair.batch(true);
    assert!((0..BATCH).all(|number| pair.put(number)));
    assert_eq!(pair.rung(), 0);
    pair.jobs[0].progress(pair.contexts[0]).unwrap();
    assert_eq!(pair.rung(), 1);
    pair.until(&has_arrived);
}

#[test]
fn quiets_ring_for_batches_that_never_end() {
    let pair = BatchPair::new(WireMode::Shm);
    let has_arrived = pair.fill(4);
    pair.rung();
    pair.batch(true);
    assert!((0..BATCH).all(|number| pair.put(number)));
    let _ = pair.jobs[0].quiet(pair.contexts[0]).unwrap();
    assert!(pair.rung() > 0);
    pair.quiet();
    assert!(has_arrived());
}

#[test]
fn contexts_progress_while_memory_is_registered() {
    let pair = BatchPair::new(WireMode::Shm);
    let has_arrived = pair.fill(5);
    pair.watch.is_gated.store(true, Ordering::Release);
    std::thread::scope(|scope| {
        let adds = scope.spawn(|| pair.jobs[0].add_heap(MemoryRange::heap(4096)));
        // Two registrations, one by the serving end and one by the initiating end. Operations progress during both.
        for registration in 1..=2 {
            pair.until(|| pair.watch.came.load(Ordering::Acquire) == registration);
            pair.heaps[1].write(0, &[0; (BATCH * LEN) as usize]).unwrap();
            (0..BATCH).for_each(|number| pair.until(|| pair.put(number)));
            pair.quiet();
            assert!(has_arrived());
            pair.watch.passes.store(registration, Ordering::Release);
        }
        assert_eq!(adds.join().unwrap().unwrap(), 1);
    });
}

/// The first use of a peer's new memory imports its description, in the thread that makes progress.
#[test]
fn peer_heaps_are_added_while_memory_is_registered() {
    let pair = BatchPair::new(WireMode::Shm);
    // The link setup describes only the first sixteen.
    let added: Vec<u8> = (1..=16).map(|_| pair.jobs[1].add_heap(MemoryRange::heap(4096)).unwrap()).collect();
    let number = added[15];
    let told = pair.jobs[1].heap_descriptors(number).unwrap();
    pair.watch.is_gated.store(true, Ordering::Release);
    let is_back = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let adds = scope.spawn(|| pair.jobs[0].add_heap(MemoryRange::heap(4096)));
        pair.until(|| pair.watch.came.load(Ordering::Acquire) == 1);
        scope.spawn(|| {
            pair.jobs[0].set_member_heap(1, number, &told).unwrap();
            is_back.store(true, Ordering::Release);
        });
        let started = Instant::now();
        while !is_back.load(Ordering::Acquire) && started.elapsed().as_secs() < 10 {
            std::thread::yield_now();
        }
        let was_back = is_back.load(Ordering::Acquire);
        pair.watch.passes.store(u64::MAX, Ordering::Release);
        assert_eq!(adds.join().unwrap().unwrap(), 1);
        assert!(was_back, "set_member_heap waited for a registration");
    });
    // A context that is created later uses the same description.
    let late = pair.jobs[0].create_context().unwrap();
    for context in [pair.contexts[0], late] {
        let from = HeapRange { heap: 0, offset: 0, len: LEN };
        pair.until(|| {
            pair.jobs[0].progress(context).unwrap();
            pair.jobs[0].put(context, 1, number, 0, PutSource::Heap(from)).unwrap().is_some()
        });
        pair.until(|| pair.jobs[0].quiet(context).unwrap());
    }
}
