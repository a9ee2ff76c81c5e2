//! Once queues exist and links are connected, posting, executing and waiting allocate nothing, except for a few
//! allocations of control streams. The file has one test, so that no other test allocates meanwhile.

#![allow(clippy::unwrap_used, reason = "a failed setup step ends the test")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use trunkline_device::{
    DeviceQueues, EntryRegion, ErrorTable, ExecutorMode, HostDeadline, PeerRegion, RmaNetwork,
};
use trunkline_engine::host::UnixHost;
use trunkline_engine::rma::RmaJob;
use trunkline_engine::{CommNics, EngineParams};
use trunkline_mem::MemoryRange;
use trunkline_proto::wire::device_queue::{
    AtomicChange, EntryWork, InlineBytes, LocalAddress, PeerAddress, QueueEntry,
};
use trunkline_softnic::{SoftConfig, SoftFabric, WireMode};

/// The system's allocator, counted.
struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: passes every call unchanged to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller upholds the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller upholds the contract of `dealloc`.
        unsafe { System.dealloc(at, layout) }
    }
}

type Over = Arc<RmaJob<SoftFabric, UnixHost>>;

/// Queues of two ranks, and an entry of each kind except WAIT, which needs an entry of another queue.
fn rank(
    wire: WireMode,
    mode: ExecutorMode,
    near: bool,
) -> (Vec<DeviceQueues<RmaNetwork<Over>>>, [QueueEntry; 10]) {
    let job = |_| {
        let fabric = SoftFabric::new(SoftConfig { wire, ..SoftConfig::default() }).unwrap();
        let params = EngineParams::default();
        RmaJob::new(fabric, UnixHost::new(|_, _| {}), params, CommNics::from(0)).unwrap()
    };
    let jobs = [0, 1].map(job);
    let cards = [jobs[0].process_card(), jobs[1].process_card()];
    let memory = [0, 1].map(|_| MemoryRange::heap(1 << 16));
    let mut keys = Vec::new();
    let mut queues = Vec::new();
    for (me, job) in jobs.into_iter().enumerate() {
        job.set_members(me as u32, &cards).unwrap();
        let heap = job.add_heap(memory[me].clone()).unwrap();
        let started = DeviceQueues::start(RmaNetwork::new(Arc::new(job)).unwrap(), 8, mode).unwrap();
        let region = EntryRegion {
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
        .add_remote_region(
            1,
            PeerRegion {
                key: keys[1],
                len: 1 << 16,
                table: ErrorTable::default(),
                near,
                copies: None,
                words: None,
            },
        )
        .unwrap();
    let from = LocalAddress { addr: 0, key: keys[0].to_bits() };
    let to = |peer: u32, addr| PeerAddress { peer, addr, key: keys[peer as usize].to_bits() };
    let change = |at, change| QueueEntry::new(EntryWork::Atomic { at, change, poisoned: true });
    let entries = [
        QueueEntry::new(EntryWork::Write { from, to: to(1, 0), len: 4000, imm: None }),
        change(to(0, 8192), AtomicChange::Add(1)),
        change(to(1, 8192), AtomicChange::Add(1)),
        QueueEntry::new(EntryWork::WriteInline {
            bytes: InlineBytes::new(&[7; 8]).unwrap(),
            to: to(1, 4096),
        }),
        QueueEntry::new(EntryWork::Read { into: from, from: to(1, 0), len: 4000 }),
        change(to(1, 8208), AtomicChange::SwapIf { expect: 0, swap: 1 }),
        change(to(1, 8208), AtomicChange::AddMasked { add: 1, boundaries: 1 << 31 }),
        change(to(1, 8224), AtomicChange::Set(3)),
        change(to(1, 8224), AtomicChange::Max(5)),
        QueueEntry::new(EntryWork::Nop),
    ];
    (queues, entries)
}

#[test]
fn entries_allocate_nothing() {
    let ways = [
        (WireMode::Auto, ExecutorMode::Inline, true),
        (WireMode::Auto, ExecutorMode::Thread, true),
        (WireMode::Shm, ExecutorMode::Thread, false),
        (WireMode::Tcp, ExecutorMode::Thread, false),
    ];
    for (wire, mode, near) in ways {
        let (queues, entries) = rank(wire, mode, near);
        let [queue, companion] = [64, 64].map(|depth| queues[0].make_queue(depth).unwrap());
        let post = |rounds: u32| {
            for _ in 0..rounds {
                let mut patience = HostDeadline::from_duration(Duration::from_secs(20));
                let ticket = queue.post(&entries, &mut patience).unwrap();
                let wait = QueueEntry::new(EntryWork::Wait {
                    queue: queue.queue_shape().number(),
                    index: ticket.index,
                });
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
        // A control stream is polled periodically; the number of allocations must not grow with the entries.
        assert!(allocated <= if near { 0 } else { 40 }, "{wire:?} {mode:?}: {allocated} allocations");
    }
}
