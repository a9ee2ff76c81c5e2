//! Posts entries of device queues and executes them repeatedly, for `cargo xtask budget`, which counts instructions and
//! system calls. Arguments: a file (not used), the kind of entry, the number of bytes or queues, and the repetitions.
//!
//! - `device_write`, `_write_inline`, `_read`, `_add`, `_swap_if`, `_add_masked`, `_set`, `_max`, `_wait`, `_nop`: that
//!   entry, sixteen at a time, on memory of this process. [`engines_part`] executes them, so that it can be counted
//!   alone.
//! - `device_put_shm`: a WRITE and then a signal, to another rank over shared memory, including the work of that rank.
//! - `device_alone`: one thread posts a WRITE, executes it, and waits by its ticket.
//! - `device_alone_counted`: as `device_alone`, but the thread waits for a counter that the WRITE raises.
//! - `device_alone_added`: as `device_alone`, but the thread waits for a counter that an ADD after the WRITE raises.
//! - `device_alone_companion`: as `device_alone`, but the thread waits for a counter that the companion queue raises
//!   after its WAIT for the WRITE.
//! - `device_idle`: a pass over queues whose doorbells were not rung.
//! - `device_look_counter`, `device_look_tickets`: a poll of the progress of many queues, by one counter that all of
//!   them raise, or by one ticket per queue.

use std::hint::black_box;
use std::process::ExitCode;
use std::sync::Arc;

use trunkline_device::{
    BeginOutcome, DeviceQueues, EntryRegion, ErrorTable, ExecutorMode, MemberNetwork, NetworkCompletion,
    PeerRegion, QueueExecutor, QueueWords, RmaNetwork,
};
use trunkline_device_queue::{
    DeviceQueue, EntryTicket, PollLimit, PutBytes, QueueLane, SignalSlot, SlotCondition, WordAddition,
};
use trunkline_engine::host::UnixHost;
use trunkline_engine::rma::HeapAddress;
use trunkline_engine::rma::{HeapRange as Heap, MemberRank, PutSource, RmaJob};
use trunkline_engine::{CommNics, EngineParams};
use trunkline_mem::MemoryRange;
use trunkline_proto::rma::atomic::AtomicAction;
use trunkline_proto::wire::device_queue::{
    AtomicChange, EntryWork, InlineBytes, LocalAddress, PeerAddress, QueueEntry,
};
use trunkline_softnic::{SoftConfig, SoftFabric, WireMode};

/// Entries that begin in one pass.
const TOGETHER: usize = 16;
/// Bytes of each rank; the upper half is for slots.
const BYTES: u64 = 1 << 20;
const SLOT: u64 = BYTES / 2;
/// Doorbells of a page.
const BELLS: u32 = 1024;
/// The most passes for sixteen entries.
const PASSES: u32 = 1_000_000;

/// A network without other members: both ranks are in this process.
#[derive(Debug)]
struct Nobody;

impl MemberNetwork for Nobody {
    fn own_rank(&self) -> MemberRank {
        0
    }

    fn can_execute_locally(&self) -> bool {
        true
    }

    fn put(&mut self, _: u64, _: HeapAddress, _: PutSource<'_>) -> BeginOutcome {
        BeginOutcome::Busy
    }

    fn get(&mut self, _: u64, _: HeapAddress, _: Heap) -> BeginOutcome {
        BeginOutcome::Busy
    }

    fn post_atomic(&mut self, _: u64, _: HeapAddress, _: AtomicAction, _: bool) -> BeginOutcome {
        BeginOutcome::Busy
    }

    fn make_progress(&mut self, _: &mut Vec<NetworkCompletion>) -> bool {
        false
    }

    fn send_error_word(&mut self, _: HeapAddress, _: u64) -> bool {
        false
    }

    fn is_gone(&mut self, _: MemberRank) -> bool {
        false
    }
}

/// Executes the posted entries. For some orders only this function is counted.
#[inline(never)]
fn engines_part<N: MemberNetwork>(executor: &mut QueueExecutor<N>, mut others: impl FnMut()) -> Option<()> {
    for _ in 0..PASSES {
        if !executor.run_pass().busy {
            return Some(());
        }
        others();
    }
    None
}

fn region(memory: &MemoryRange, heap: u8) -> EntryRegion {
    EntryRegion::of_host(memory.clone(), heap, ErrorTable::default())
}

/// An executor, memory of this rank and of the next one, and how entries name both.
fn near() -> Option<(QueueExecutor<Nobody>, [MemoryRange; 2], LocalAddress, PeerAddress)> {
    let mut executor = QueueExecutor::new(Nobody, BELLS).ok()?;
    let memory = [0, 1].map(|_| MemoryRange::heap(BYTES as usize));
    let key = executor.add_region(region(&memory[0], 0))?;
    let near = Some(memory[1].clone());
    executor.add_remote_region(1, PeerRegion::of_host(key, BYTES, ErrorTable::default(), near)).ok()?;
    let (here, there) = (
        LocalAddress { addr: 0, key: key.to_bits() },
        PeerAddress { peer: 1, addr: SLOT, key: key.to_bits() },
    );
    Some((executor, memory, here, there))
}

/// Returns the entry for an argument. Each entry changes the word, so that none becomes a no-op after an earlier one.
fn entry(order: &str, bytes: u64, here: LocalAddress, there: PeerAddress) -> Option<QueueEntry> {
    let change = |change| EntryWork::Atomic { at: there, change, poisoned: true };
    Some(QueueEntry::new(match order {
        "device_write" => EntryWork::Write { from: here, to: there, len: bytes, imm: None },
        "device_write_inline" => {
            EntryWork::WriteInline { bytes: InlineBytes::new(&[7; 24][..bytes as usize])?, to: there }
        }
        "device_read" => EntryWork::Read { into: here, from: there, len: bytes },
        "device_add" => change(AtomicChange::Add(1)),
        "device_swap_if" => change(AtomicChange::SwapIf { expect: 0, swap: 0 }),
        "device_add_masked" => change(AtomicChange::AddMasked { add: 1, boundaries: 1 << 31 }),
        "device_set" => change(AtomicChange::Set(3)),
        "device_max" => change(AtomicChange::Max(5)),
        "device_nop" => EntryWork::Nop,
        _ => return None,
    }))
}

fn post(queue: &DeviceQueue<QueueWords>, entries: &[QueueEntry]) -> Option<EntryTicket> {
    queue.post(entries, &mut PollLimit(1)).ok()
}

/// Posts and executes sixteen entries at a time.
fn operation(order: &str, bytes: u64, times: u64) -> Option<()> {
    let (mut executor, _memory, here, there) = near()?;
    let queue = executor.make_queue(64, 0).ok()?;
    let entries = [entry(order, bytes, here, there)?; TOGETHER];
    for _ in 0..times / TOGETHER as u64 {
        let last = post(&queue, &entries)?;
        engines_part(&mut executor, || {})?;
        queue.wait(last, &mut PollLimit(1)).ok()?;
    }
    Some(())
}

/// WAITs for entries that have completed before the WAITs are posted.
fn wait(times: u64) -> Option<()> {
    let (mut executor, ..) = near()?;
    let [main, companion] = [(); 2].map(|()| executor.make_queue(64, 0));
    let (main, companion) = (main.ok()?, companion.ok()?);
    for _ in 0..times / TOGETHER as u64 {
        let index = post(&main, &[QueueEntry::new(EntryWork::Nop)])?.index;
        while executor.run_pass().busy {}
        let wait = QueueEntry::new(EntryWork::Wait { queue: main.queue_shape().number(), index });
        let last = post(&companion, &[wait; TOGETHER])?;
        engines_part(&mut executor, || {})?;
        companion.wait(last, &mut PollLimit(1)).ok()?;
    }
    Some(())
}

fn put_shm(bytes: u64, times: u64) -> Option<()> {
    let job = |_| {
        let fabric = SoftFabric::new(SoftConfig { wire: WireMode::Shm, ..SoftConfig::default() }).ok()?;
        RmaJob::new(fabric, UnixHost::new(|_, _| {}), EngineParams::default(), CommNics::from(0)).ok()
    };
    let [Some(mine), Some(theirs)] = [0, 1].map(job) else { return None };
    let cards = [mine.process_card(), theirs.process_card()];
    let memory = [0, 1].map(|_| MemoryRange::heap(BYTES as usize));
    let mut heaps = [0; 2];
    for (me, job) in [&mine, &theirs].into_iter().enumerate() {
        job.set_members(me as u32, &cards).ok()?;
        heaps[me] = job.add_heap(memory[me].clone()).ok()?;
    }
    let mut executor = QueueExecutor::new(RmaNetwork::new(Arc::new(mine)).ok()?, BELLS).ok()?;
    let mut other = RmaNetwork::new(Arc::new(theirs)).ok()?;
    let key = executor.add_region(region(&memory[0], heaps[0]))?;
    executor.add_remote_region(1, PeerRegion::of_host(key, BYTES, ErrorTable::default(), None)).ok()?;
    let (here, there) =
        (LocalAddress { addr: 0, key: key.to_bits() }, PeerAddress { peer: 1, addr: 0, key: key.to_bits() });
    let signal = PeerAddress { addr: SLOT, ..there };
    let write = entry("device_write", bytes, here, there)?;
    let add = entry("device_add", 8, here, signal)?;
    let queue = executor.make_queue(64, 0).ok()?;
    let mut ended = Vec::new();
    for _ in 0..times {
        let last = post(&queue, &[write, add])?;
        engines_part(&mut executor, || _ = other.make_progress(&mut ended))?;
        queue.wait(last, &mut PollLimit(1)).ok()?;
    }
    (memory[1].atomic_word(SLOT).ok()?.load(std::sync::atomic::Ordering::Acquire) == times).then_some(())
}

fn alone(order: &str, bytes: u64, times: u64) -> Option<()> {
    let queues = DeviceQueues::start(Nobody, 8, ExecutorMode::Inline).ok()?;
    let memory = MemoryRange::heap(BYTES as usize);
    let key = queues.add_region(region(&memory, 0))?;
    let here = LocalAddress { addr: 0, key: key.to_bits() };
    let there = PeerAddress { peer: 0, addr: SLOT, key: key.to_bits() };
    let write = entry("device_write", bytes, here, there)?;
    let (from, to) = (here, there);
    let (slot, words) = (SignalSlot::with_poison_word(SLOT + 128), queues.observed_words(&memory));
    let counter = WordAddition { at: PeerAddress { addr: slot.value, ..there }, value: 1, poisoned: true };
    let bytes = PutBytes { from, to, len: bytes };
    let queue = queues.make_queue(64).ok()?;
    let lane = QueueLane::new(queue.clone(), queues.queue_finder());
    let companion = lane.companion_queue(&mut PollLimit(16)).ok()?;
    let counted = counter.attach_to(write)?;
    for round in 1..=times {
        match order {
            "device_alone" => {
                let ticket = post(&queue, &[write])?;
                queue.wait(ticket, &mut PollLimit(1)).ok()?;
                continue;
            }
            "device_alone_counted" => _ = post(&queue, &[counted])?,
            "device_alone_added" => _ = post(&queue, &[write, counter.to_entry()])?,
            _ => _ = lane.write_and_count(companion, &bytes, &counter, &mut PollLimit(1)).ok()?,
        }
        slot.wait(&words, SlotCondition::AtLeast(round), &mut PollLimit(1)).ok()?;
    }
    Some(())
}

fn idle(queues: u64, times: u64) -> Option<()> {
    let (mut executor, ..) = near()?;
    let _queues: Vec<_> = (0..queues).map(|_| executor.make_queue(64, 0)).collect::<Result<_, _>>().ok()?;
    while executor.run_pass().busy {}
    (0..times).all(|_| !black_box(executor.run_pass()).moved).then_some(())
}

/// Polls once all entries have completed, which is the least work of a waiter.
fn look(order: &str, count: u64, times: u64) -> Option<()> {
    let (mut executor, memory, here, _) = near()?;
    let queues: Vec<_> = (0..count).map(|_| executor.make_queue(16, 0)).collect::<Result<_, _>>().ok()?;
    let counter = PeerAddress { peer: 0, addr: SLOT, key: here.key };
    let add = entry("device_add", 8, here, counter)?;
    let tickets: Vec<_> = queues.iter().map(|queue| post(queue, &[add])).collect::<Option<_>>()?;
    engines_part(&mut executor, || {})?;
    let (words, slot) = (QueueWords::from_memory(memory[0].clone()), SignalSlot::with_poison_word(SLOT));
    for _ in 0..times {
        if order == "device_look_counter" {
            let until = SlotCondition::AtLeast(black_box(count));
            slot.wait(black_box(&words), until, &mut PollLimit(1)).ok()?;
            continue;
        }
        for (queue, ticket) in black_box(&queues).iter().zip(&tickets) {
            queue.wait(*ticket, &mut PollLimit(1)).ok()?;
        }
    }
    Some(())
}

fn run(order: &str, amount: u64, times: u64) -> Option<()> {
    match order {
        "device_wait" => wait(times),
        "device_put_shm" => put_shm(amount, times),
        alone_order if alone_order.starts_with("device_alone") => alone(order, amount, times),
        "device_idle" => idle(amount, times),
        "device_look_counter" | "device_look_tickets" => look(order, amount, times),
        _ => operation(order, amount, times),
    }
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(2).collect();
    let [order, amount, times] = words.as_slice() else { return ExitCode::from(2) };
    let (Ok(amount), Ok(times)) = (amount.parse(), times.parse()) else { return ExitCode::from(2) };
    if run(order, amount, times).is_some() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
