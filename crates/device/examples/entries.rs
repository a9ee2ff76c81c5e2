//! Posts entries of device queues and executes them, over and over, for `cargo xtask budget` to count instructions and system calls. Words: a file (not
//! used), what is posted, how many bytes or queues, and how often.
//!
//! - `device_write`, `_write_inline`, `_read`, `_add`, `_swap_if`, `_add_masked`, `_set`, `_max`, `_wait`, `_nop`: that entry, sixteen at a time, on memory of
//!   this process. What executes them is [`engines_part`], so that it can be counted alone.
//! - `device_put_shm`: a WRITE and a signal behind it, to another rank over shared memory, with what that rank does for it.
//! - `device_alone`: a WRITE that one thread posts, executes and waits for, by its ticket. `device_alone_counted`: by a counter that the WRITE
//!   raises. `device_alone_added`: by one that an ADD behind it raises. `device_alone_companion`: by one that the companion queue raises, which WAITs
//!   for the WRITE.
//! - `device_idle`: a pass over so many queues that nobody rang.
//! - `device_look_counter`, `device_look_tickets`: a look at what so many queues have done, by the one counter that all of them raise, or by a ticket of each.

use std::hint::black_box;
use std::process::ExitCode;
use std::sync::Arc;

use trunkline_device::{
    Carried, Ended, ErrorTable, Executor, Far, Mode, Network, Place, Queues, Region, Rma, Words,
};
use trunkline_device_queue::{Addition, Bytes, Condition, Lane, Looks, Queue, Slot, Ticket};
use trunkline_engine::host::UnixHost;
use trunkline_engine::rma::{Job, Local as Heap, Member, Source};
use trunkline_engine::{Mutant, Nics, Params};
use trunkline_mem::Memory;
use trunkline_proto::rma::atomic::Action;
use trunkline_proto::wire::device_queue::{Atomic, Entry, Inline, Local, Remote, Work};
use trunkline_softnic::{SoftConfig, SoftFabric, WireMode};

/// Entries that begin in one pass.
const TOGETHER: usize = 16;
/// Bytes of each rank; the upper half is for slots.
const BYTES: u64 = 1 << 20;
const SLOT: u64 = BYTES / 2;
/// Doorbells of a page.
const BELLS: u32 = 1024;
/// Passes for sixteen entries, at most.
const PASSES: u32 = 1_000_000;

/// Reaches nobody: both ranks are in this process.
#[derive(Debug)]
struct Nobody;

impl Network for Nobody {
    fn me(&self) -> Member {
        0
    }

    fn executes(&self) -> bool {
        true
    }

    fn put(&mut self, _: u64, _: Place, _: Source<'_>) -> Carried {
        Carried::Busy
    }

    fn get(&mut self, _: u64, _: Place, _: Heap) -> Carried {
        Carried::Busy
    }

    fn atomic(&mut self, _: u64, _: Place, _: Action, _: bool) -> Carried {
        Carried::Busy
    }

    fn go_on(&mut self, _: &mut Vec<Ended>) -> bool {
        false
    }

    fn spoil(&mut self, _: Place, _: u64) -> bool {
        false
    }

    fn is_gone(&mut self, _: Member) -> bool {
        false
    }
}

/// Executes what was posted. Of a row that says so nothing else is counted.
#[inline(never)]
fn engines_part<N: Network>(executor: &mut Executor<N>, mut others: impl FnMut()) -> Option<()> {
    for _ in 0..PASSES {
        if !executor.pass().busy {
            return Some(());
        }
        others();
    }
    None
}

fn region(memory: &Memory, heap: u8) -> Region {
    Region::of_host(memory.clone(), heap, ErrorTable::default())
}

/// An executor, memory of this rank and of the next one, and how entries name both.
fn near() -> Option<(Executor<Nobody>, [Memory; 2], Local, Remote)> {
    let mut executor = Executor::new(Nobody, BELLS, Mutant::NONE).ok()?;
    let memory = [0, 1].map(|_| Memory::heap(BYTES as usize));
    let key = executor.add_region(region(&memory[0], 0))?;
    let near = Some(memory[1].clone());
    executor.learn(1, Far::of_host(key, BYTES, ErrorTable::default(), near)).ok()?;
    let (here, there) = (Local { addr: 0, key: key.bits() }, Remote { peer: 1, addr: SLOT, key: key.bits() });
    Some((executor, memory, here, there))
}

/// The entry of an order. None that an earlier one has made pointless: each changes the word.
fn entry(order: &str, bytes: u64, here: Local, there: Remote) -> Option<Entry> {
    let change = |change| Work::Atomic { at: there, change, poisoned: true };
    Some(Entry::new(match order {
        "device_write" => Work::Write { from: here, to: there, len: bytes, imm: None },
        "device_write_inline" => {
            Work::WriteInline { bytes: Inline::new(&[7; 24][..bytes as usize])?, to: there }
        }
        "device_read" => Work::Read { into: here, from: there, len: bytes },
        "device_add" => change(Atomic::Add(1)),
        "device_swap_if" => change(Atomic::SwapIf { expect: 0, swap: 0 }),
        "device_add_masked" => change(Atomic::AddMasked { add: 1, boundaries: 1 << 31 }),
        "device_set" => change(Atomic::Set(3)),
        "device_max" => change(Atomic::Max(5)),
        "device_nop" => Work::Nop,
        _ => return None,
    }))
}

fn post(queue: &Queue<Words>, entries: &[Entry]) -> Option<Ticket> {
    queue.post(entries, &mut Looks(1)).ok()
}

/// Sixteen at a time.
fn operation(order: &str, bytes: u64, times: u64) -> Option<()> {
    let (mut executor, _memory, here, there) = near()?;
    let queue = executor.make_queue(64, 0).ok()?;
    let entries = [entry(order, bytes, here, there)?; TOGETHER];
    for _ in 0..times / TOGETHER as u64 {
        let last = post(&queue, &entries)?;
        engines_part(&mut executor, || {})?;
        queue.wait(last, &mut Looks(1)).ok()?;
    }
    Some(())
}

/// WAITs for what has completed before they are posted.
fn wait(times: u64) -> Option<()> {
    let (mut executor, ..) = near()?;
    let [main, companion] = [(); 2].map(|()| executor.make_queue(64, 0));
    let (main, companion) = (main.ok()?, companion.ok()?);
    for _ in 0..times / TOGETHER as u64 {
        let index = post(&main, &[Entry::new(Work::Nop)])?.index;
        while executor.pass().busy {}
        let wait = Entry::new(Work::Wait { queue: main.shape().number(), index });
        let last = post(&companion, &[wait; TOGETHER])?;
        engines_part(&mut executor, || {})?;
        companion.wait(last, &mut Looks(1)).ok()?;
    }
    Some(())
}

fn put_shm(bytes: u64, times: u64) -> Option<()> {
    let job = |_| {
        let fabric = SoftFabric::new(SoftConfig { wire: WireMode::Shm, ..SoftConfig::default() }).ok()?;
        Job::new(fabric, UnixHost::new(|_, _| {}), Params::default(), Nics::from(0)).ok()
    };
    let [Some(mine), Some(theirs)] = [0, 1].map(job) else { return None };
    let cards = [mine.card(), theirs.card()];
    let memory = [0, 1].map(|_| Memory::heap(BYTES as usize));
    let mut heaps = [0; 2];
    for (me, job) in [&mine, &theirs].into_iter().enumerate() {
        job.meet(me as u32, &cards).ok()?;
        heaps[me] = job.add_heap(memory[me].clone()).ok()?;
    }
    let mut executor = Executor::new(Rma::new(Arc::new(mine)).ok()?, BELLS, Mutant::NONE).ok()?;
    let mut other = Rma::new(Arc::new(theirs)).ok()?;
    let key = executor.add_region(region(&memory[0], heaps[0]))?;
    executor.learn(1, Far::of_host(key, BYTES, ErrorTable::default(), None)).ok()?;
    let (here, there) = (Local { addr: 0, key: key.bits() }, Remote { peer: 1, addr: 0, key: key.bits() });
    let signal = Remote { addr: SLOT, ..there };
    let write = entry("device_write", bytes, here, there)?;
    let add = entry("device_add", 8, here, signal)?;
    let queue = executor.make_queue(64, 0).ok()?;
    let mut ended = Vec::new();
    for _ in 0..times {
        let last = post(&queue, &[write, add])?;
        engines_part(&mut executor, || _ = other.go_on(&mut ended))?;
        queue.wait(last, &mut Looks(1)).ok()?;
    }
    (memory[1].word(SLOT).ok()?.load(std::sync::atomic::Ordering::Acquire) == times).then_some(())
}

fn alone(order: &str, bytes: u64, times: u64) -> Option<()> {
    let queues = Queues::start(Nobody, 8, Mode::Inline, Mutant::NONE).ok()?;
    let memory = Memory::heap(BYTES as usize);
    let key = queues.add_region(region(&memory, 0))?;
    let here = Local { addr: 0, key: key.bits() };
    let there = Remote { peer: 0, addr: SLOT, key: key.bits() };
    let write = entry("device_write", bytes, here, there)?;
    let (from, to) = (here, there);
    let (slot, words) = (Slot::poisoned(SLOT + 128), queues.words(&memory));
    let counter = Addition { at: Remote { addr: slot.value, ..there }, value: 1, poisoned: true };
    let bytes = Bytes { from, to, len: bytes };
    let queue = queues.queue(64).ok()?;
    let lane = Lane::new(queue.clone(), queues.finder());
    let companion = lane.companion(&mut Looks(16)).ok()?;
    let counted = counter.with(write)?;
    for round in 1..=times {
        match order {
            "device_alone" => {
                let ticket = post(&queue, &[write])?;
                queue.wait(ticket, &mut Looks(1)).ok()?;
                continue;
            }
            "device_alone_counted" => _ = post(&queue, &[counted])?,
            "device_alone_added" => _ = post(&queue, &[write, counter.entry()])?,
            _ => _ = lane.write_and_count(companion, &bytes, &counter, &mut Looks(1)).ok()?,
        }
        slot.wait(&words, Condition::AtLeast(round), &mut Looks(1), Mutant::NONE).ok()?;
    }
    Some(())
}

fn idle(queues: u64, times: u64) -> Option<()> {
    let (mut executor, ..) = near()?;
    let _queues: Vec<_> = (0..queues).map(|_| executor.make_queue(64, 0)).collect::<Result<_, _>>().ok()?;
    while executor.pass().busy {}
    (0..times).all(|_| !black_box(executor.pass()).moved).then_some(())
}

/// What a waiter does at least, once all has completed.
fn look(order: &str, count: u64, times: u64) -> Option<()> {
    let (mut executor, memory, here, _) = near()?;
    let queues: Vec<_> = (0..count).map(|_| executor.make_queue(16, 0)).collect::<Result<_, _>>().ok()?;
    let counter = Remote { peer: 0, addr: SLOT, key: here.key };
    let add = entry("device_add", 8, here, counter)?;
    let tickets: Vec<_> = queues.iter().map(|queue| post(queue, &[add])).collect::<Option<_>>()?;
    engines_part(&mut executor, || {})?;
    let (words, slot) = (Words::of(memory[0].clone()), Slot::poisoned(SLOT));
    for _ in 0..times {
        if order == "device_look_counter" {
            let until = Condition::AtLeast(black_box(count));
            slot.wait(black_box(&words), until, &mut Looks(1), Mutant::NONE).ok()?;
            continue;
        }
        for (queue, ticket) in black_box(&queues).iter().zip(&tickets) {
            queue.wait(*ticket, &mut Looks(1)).ok()?;
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
