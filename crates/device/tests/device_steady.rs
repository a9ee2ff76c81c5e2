//! Once queues are there and links are up, posting, executing and waiting allocate nothing, a few allocations for control streams aside.
//! One test, so that nothing else allocates meanwhile.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on stops")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use trunkline_device::{ErrorTable, Far, Mode, Patience, Queues, Region, Rma};
use trunkline_engine::host::UnixHost;
use trunkline_engine::rma::Job;
use trunkline_engine::{Mutant, Nics, Params};
use trunkline_mem::Memory;
use trunkline_proto::wire::device_queue::{Atomic, Entry, Inline, Local, Remote, Work};
use trunkline_softnic::{SoftConfig, SoftFabric, WireMode};

/// The system's allocator, counted.
struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: hands every call to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as the caller vouches.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as the caller vouches.
        unsafe { System.dealloc(at, layout) }
    }
}

fn planted() -> Mutant {
    #[cfg(feature = "mutants")]
    if let Ok(name) = std::env::var("TRUNKLINE_MUTANT") {
        return Mutant::named(name.leak());
    }
    Mutant::NONE
}

type Over = Arc<Job<SoftFabric, UnixHost>>;

/// Queues of two ranks, and an entry of each kind but WAIT, which needs another queue's.
fn rank(wire: WireMode, mode: Mode, near: bool) -> (Vec<Queues<Rma<Over>>>, [Entry; 10]) {
    let job = |_| {
        let fabric = SoftFabric::new(SoftConfig { wire, ..SoftConfig::default() }).unwrap();
        let params = Params { mutant: planted(), ..Params::default() };
        Job::new(fabric, UnixHost::new(|_, _| {}), params, Nics::from(0)).unwrap()
    };
    let jobs = [0, 1].map(job);
    let cards = [jobs[0].card(), jobs[1].card()];
    let memory = [0, 1].map(|_| Memory::heap(1 << 16));
    let mut keys = Vec::new();
    let mut queues = Vec::new();
    for (me, job) in jobs.into_iter().enumerate() {
        job.meet(me as u32, &cards).unwrap();
        let heap = job.add_heap(memory[me].clone()).unwrap();
        let started = Queues::start(Rma::new(Arc::new(job)).unwrap(), 8, mode, planted()).unwrap();
        let region = Region {
            memory: memory[me].clone(),
            heap,
            table: ErrorTable::default(),
            copies: None,
            words: None,
        };
        keys.push(started.add_region(region).unwrap());
        queues.push(started);
    }
    let near = near.then(|| memory[1].clone());
    queues[0]
        .learn(
            1,
            Far { key: keys[1], len: 1 << 16, table: ErrorTable::default(), near, copies: None, words: None },
        )
        .unwrap();
    let from = Local { addr: 0, key: keys[0].bits() };
    let to = |peer: u32, addr| Remote { peer, addr, key: keys[peer as usize].bits() };
    let change = |at, change| Entry::new(Work::Atomic { at, change, poisoned: true });
    let entries = [
        Entry::new(Work::Write { from, to: to(1, 0), len: 4000, imm: None }),
        change(to(0, 8192), Atomic::Add(1)),
        change(to(1, 8192), Atomic::Add(1)),
        Entry::new(Work::WriteInline { bytes: Inline::new(&[7; 8]).unwrap(), to: to(1, 4096) }),
        Entry::new(Work::Read { into: from, from: to(1, 0), len: 4000 }),
        change(to(1, 8208), Atomic::SwapIf { expect: 0, swap: 1 }),
        change(to(1, 8208), Atomic::AddMasked { add: 1, boundaries: 1 << 31 }),
        change(to(1, 8224), Atomic::Set(3)),
        change(to(1, 8224), Atomic::Max(5)),
        Entry::new(Work::Nop),
    ];
    (queues, entries)
}

#[test]
fn nothing_is_allocated_for_an_entry() {
    let ways = [
        (WireMode::Auto, Mode::Inline, true),
        (WireMode::Auto, Mode::Thread, true),
        (WireMode::Shm, Mode::Thread, false),
        (WireMode::Tcp, Mode::Thread, false),
    ];
    for (wire, mode, near) in ways {
        let (queues, entries) = rank(wire, mode, near);
        let [queue, companion] = [64, 64].map(|depth| queues[0].queue(depth).unwrap());
        let post = |rounds: u32| {
            for _ in 0..rounds {
                let mut patience = Patience::of(Duration::from_secs(20));
                let ticket = queue.post(&entries, &mut patience).unwrap();
                let wait = Entry::new(Work::Wait { queue: queue.shape().number(), index: ticket.index });
                let waited = companion.post(&[wait], &mut patience).unwrap();
                assert_eq!(companion.wait(waited, &mut patience), Ok(()), "{wire:?} {mode:?}");
                assert_eq!(queue.wait(ticket, &mut patience), Ok(()), "{wire:?} {mode:?}");
            }
        };
        post(300);
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        post(1000);
        let allocated = ALLOCATIONS.load(Ordering::Relaxed) - before;
        println!("{wire:?} {mode:?}, near {near}: {allocated} allocations for 11000 entries");
        // A control stream is heard now and then; nothing grows with entries.
        assert!(allocated <= if near { 0 } else { 40 }, "{wire:?} {mode:?}: {allocated} allocations");
    }
}
