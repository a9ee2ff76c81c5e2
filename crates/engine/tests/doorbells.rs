//! How often a context rings the doorbells of its NICs: once for each operation, and once for a batch of them.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use trunkline_engine::host::UnixHost;
use trunkline_engine::rma::{ContextId, Job, Local, Source};
use trunkline_engine::{Nics, Params};
use trunkline_fabric::{
    Caps, Completion, Fabric, LinkAddress, LinkError, LinkId, Links, Nic, Op, OpenError, PostError, Rail,
    RailConfig, Registrar, Wake,
};
use trunkline_mem::Memory;
use trunkline_proto::wire::status::Usage;
use trunkline_softnic::{SoftConfig, SoftFabric, SoftRail, WireMode};

/// Operations of a batch.
const BATCH: u64 = 32;
/// Bytes of each.
const LEN: u64 = 64;

/// The software NIC, which counts the doorbells of what a process begins.
struct CountingFabric(SoftFabric, Arc<AtomicU64>);

struct CountingRail {
    rail: SoftRail,
    /// Nothing on rails that serve others.
    rings: Option<Arc<AtomicU64>>,
}

impl Fabric for CountingFabric {
    type Rail = CountingRail;

    fn name(&self) -> &'static str {
        "counting"
    }

    fn nics(&self) -> &[Nic] {
        self.0.nics()
    }

    fn usage(&self, nic: usize) -> Usage {
        self.0.usage(nic)
    }

    fn open(&self, nic: usize, config: &RailConfig) -> Result<CountingRail, OpenError> {
        let rings = (!config.receives).then(|| Arc::clone(&self.1));
        Ok(CountingRail { rail: self.0.open(nic, config)?, rings })
    }
}

impl Links for CountingRail {
    fn create_on(&mut self, pipeline: Option<u32>) -> Result<LinkId, LinkError> {
        self.rail.create_on(pipeline)
    }

    fn pipeline(&self, link: LinkId) -> Option<u32> {
        self.rail.pipeline(link)
    }

    fn address(&self, link: LinkId) -> Result<LinkAddress, LinkError> {
        self.rail.address(link)
    }

    fn connect(&mut self, link: LinkId, peer: LinkAddress) -> Result<(), LinkError> {
        self.rail.connect(link, peer)
    }

    fn is_up(&mut self, link: LinkId) -> Result<bool, LinkError> {
        self.rail.is_up(link)
    }

    fn look(&mut self, link: LinkId) -> Result<(), LinkError> {
        self.rail.look(link)
    }

    fn fail(&mut self, link: LinkId) {
        self.rail.fail(link);
    }

    fn is_quiet(&mut self, link: LinkId) -> bool {
        self.rail.is_quiet(link)
    }

    fn destroy(&mut self, link: LinkId) {
        self.rail.destroy(link);
    }
}

impl Rail for CountingRail {
    fn caps(&self) -> &Caps {
        self.rail.caps()
    }

    fn registrar(&self) -> Arc<dyn Registrar> {
        self.rail.registrar()
    }

    fn credits(&self, link: LinkId) -> u32 {
        self.rail.credits(link)
    }

    fn post(&mut self, link: LinkId, wr_id: u64, op: Op<'_>, signalled: bool) -> Result<(), PostError> {
        self.rail.post(link, wr_id, op, signalled)
    }

    fn flush(&mut self) {
        if let Some(rings) = &self.rings {
            rings.fetch_add(1, Ordering::Relaxed);
        }
        self.rail.flush();
    }

    fn poll(&mut self, out: &mut [Completion]) -> usize {
        self.rail.poll(out)
    }

    fn arm(&mut self) -> Wake {
        self.rail.arm()
    }
}

/// Two members, of which the first puts to the second.
struct BatchPair {
    jobs: [Job<CountingFabric, UnixHost>; 2],
    contexts: [ContextId; 2],
    heaps: [Memory; 2],
    rings: Arc<AtomicU64>,
}

impl BatchPair {
    fn new(wire: WireMode) -> Self {
        #[cfg_attr(not(feature = "mutants"), expect(unused_mut, reason = "changed only to plant a bug"))]
        let mut params = Params::default();
        #[cfg(feature = "mutants")]
        if let Ok(name) = std::env::var("TRUNKLINE_MUTANT") {
            params.mutant = trunkline_engine::Mutant::named(name.leak());
        }
        let rings = [Arc::default(), Arc::default()];
        let jobs = rings.each_ref().map(|rings: &Arc<AtomicU64>| {
            let fabric = SoftFabric::new(SoftConfig { wire, ..SoftConfig::default() }).unwrap();
            let fabric = CountingFabric(fabric, Arc::clone(rings));
            Job::new(fabric, UnixHost::new(|_, _| {}), params.clone(), Nics::new(&[0]).unwrap()).unwrap()
        });
        let cards: Vec<_> = jobs.iter().map(Job::card).collect();
        let heaps = [Memory::heap(1 << 16), Memory::heap(1 << 16)];
        let contexts = [0, 1].map(|me| {
            jobs[me].meet(me as u32, &cards).unwrap();
            assert_eq!(jobs[me].add_heap(heaps[me].clone()).unwrap(), 0);
            jobs[me].context().unwrap()
        });
        let [rings, _] = rings;
        let pair = Self { jobs, contexts, heaps, rings };
        // The link is made with the first operation.
        pair.until(|| pair.put(0));
        pair.quiet();
        pair
    }

    /// Puts bytes to the number-th place; whether they were taken.
    fn put(&self, number: u64) -> bool {
        let from = Local { heap: 0, offset: number * LEN, len: LEN };
        let put = self.jobs[0].put(self.contexts[0], 1, 0, number * LEN, Source::Heap(from)).unwrap();
        assert!(put.is_none_or(|taken| taken == LEN));
        put.is_some()
    }

    fn until(&self, mut is_done: impl FnMut() -> bool) {
        let started = Instant::now();
        while !is_done() {
            for (job, &context) in self.jobs.iter().zip(&self.contexts) {
                job.progress(context).unwrap();
            }
            assert!(started.elapsed().as_secs() < 30, "it does not end");
        }
    }

    fn quiet(&self) {
        self.until(|| self.jobs[0].quiet(self.contexts[0]).unwrap());
    }

    fn batch(&self, more: bool) {
        self.jobs[0].batch(self.contexts[0], more).unwrap();
    }

    /// Doorbells since it was last asked.
    fn rung(&self) -> u64 {
        self.rings.swap(0, Ordering::Relaxed)
    }

    /// Fills what is put, and returns whether it has arrived.
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
fn batches_ring_once() {
    for wire in [WireMode::Shm, WireMode::Tcp] {
        let pair = BatchPair::new(wire);
        let has_arrived = pair.fill(1);
        pair.rung();
        assert!((0..BATCH).all(|number| pair.put(number)));
        assert_eq!(pair.rung(), BATCH, "each operation by itself");
        pair.quiet();
        assert!(has_arrived());
        let has_arrived = pair.fill(2);
        pair.rung();
        pair.batch(true);
        assert!((0..BATCH - 1).all(|number| pair.put(number)));
        assert_eq!(pair.rung(), 0, "more follow");
        pair.batch(false);
        assert_eq!(pair.rung(), 0, "the last one rings");
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
