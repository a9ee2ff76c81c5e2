//! Queues under the worst executor that the protocol allows, and producers that stop anywhere, with every invariant checked after every
//! step. A seed determines a world. A failing world prints its seed, and `TRUNKLINE_SEED` runs it alone.
//!
//! `TRUNKLINE_SEEDS` sets the number of worlds: 8,000 by default, 100,000 with `TRUNKLINE_FULL`.

#![allow(clippy::unwrap_used, reason = "a failed setup step ends the test")]

mod common;
#[path = "common/world.rs"]
mod world;

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::{Acquire, Release};

use trunkline_device_queue::channel::TicketRecord;
use trunkline_device_queue::{
    BellPage, DeviceQueue, EntryTicket, ExecutorRules, HeapWords, PollLimit, QueueDrain, QueueReservation,
    ReserveError, SignalSlot, SlotCondition, SlotLayout, TicketPoll, WaitError, WordAddition, WordMemory,
    allocate_words,
};
use trunkline_proto::wire::device_queue::{
    AbortWord, AtomicChange, CompanionWord, DoorbellLayout, EntryFence, EntryStatus, EntryWork, FrontierWord,
    LocalAddress, PeerAddress, QueueEntry, QueueShape, at, is_before,
};

use common::is_full;
use world::{Dice, Executor, key};

/// Queues that producers post puts to; the companion of each follows them in number.
const MAINS: u32 = 2;

/// Values near which all indices are tested: 16, 32, 63 and 64 bits, and the start.
fn first_index(dice: &mut Dice, depth: u64) -> u64 {
    let firsts = [0, (1 << 16) - 3, (1 << 32) - 3, (1 << 63) - 3, u64::MAX - 2 * depth + 1, u64::MAX - 2];
    firsts[dice.below(firsts.len() as u64) as usize]
}

/// The actions of one put: a write, and behind it an addition to the signal of its queue.
#[derive(Clone, Copy, Debug)]
struct Put {
    queue: u32,
    write: u64,
    signal: u64,
    /// The words that the put writes.
    addr: u64,
    words: u64,
    /// Its tickets.
    tickets: [EntryTicket; 2],
    /// Whether the put has a counter, and which entry raises it.
    counts: Counting,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Counting {
    Nothing,
    /// The companion's entries.
    Companion,
    /// The write itself.
    Entry,
}

struct Open<'q> {
    reservation: QueueReservation<'q, HeapWords>,
    put: Option<Put>,
    companion: bool,
}

struct World<'q> {
    dice: Dice,
    page: BellPage<HeapWords>,
    queues: &'q [DeviceQueue<HeapWords>],
    drain: QueueDrain<HeapWords>,
    executor: Executor,
    channel: TicketRecord<HeapWords>,
    open: Vec<Open<'q>>,
    /// Published and not submitted.
    unsubmitted: Vec<EntryTicket>,
    puts: Vec<Put>,
    /// The tickets of all published entries, without NOPs.
    tickets: Vec<EntryTicket>,
    /// The sum of each counter's additions, if nothing fails.
    counted: BTreeMap<u32, u64>,
    last: BTreeMap<(u32, u64), u64>,
    begun_at_abort: Option<(u32, usize)>,
    next_addr: u64,
}

fn rules(dice: &mut Dice, is_ordered: bool) -> ExecutorRules {
    ExecutorRules { is_ordered, me: 0, window: 1 + dice.below(5) as u32 }
}

fn run(seed: u64) {
    let mut dice = Dice::new(seed);
    let page =
        BellPage::create(allocate_words(DoorbellLayout::new(2 * MAINS).unwrap().page_bytes()), 2 * MAINS)
            .unwrap();
    let make = |number: u32, dice: &mut Dice| {
        let depth = 2 << dice.below(3);
        let shape = QueueShape::new(depth, number, seed as u32, number).unwrap();
        let shape = if dice.one_in(2) { shape.with_check() } else { shape };
        let first = first_index(dice, depth.into());
        DeviceQueue::create(allocate_words(shape.queue_bytes()), shape, first, &page).unwrap()
    };
    let queues: Vec<_> = (0..2 * MAINS).map(|number| make(number, &mut dice)).collect();
    let is_ordered = dice.one_in(3);
    let slots = |dice: &mut Dice| match dice.below(2) {
        0 => SlotLayout::Bare { values: 0, errors: 1024, count: 8 },
        _ => SlotLayout::Poisoned { slots: 64, count: 8 },
    };
    let mut executor = Executor::new(is_ordered, slots(&mut dice), slots(&mut dice));
    let mut drain = QueueDrain::new(page.clone()).unwrap();
    for queue in &queues[..MAINS as usize] {
        assert!(drain.add_queue(queue.clone(), rules(&mut dice, is_ordered)).unwrap());
    }
    for _ in 0..dice.below(3).saturating_sub(1) {
        let queue = dice.below(u64::from(MAINS) * 2) as u32;
        let first = frontier(&queues[queue as usize]);
        let status =
            [EntryStatus::Network, EntryStatus::Access, EntryStatus::Other(300)][dice.below(3) as usize];
        executor.fails.insert((queue, first.wrapping_add(dice.below(12))), status);
    }
    let firsts: Vec<_> = queues[..MAINS as usize].iter().map(frontier).collect();
    let channel = TicketRecord::create(allocate_words(64), 0, &firsts).unwrap();
    let mut world = World {
        dice,
        page,
        queues: &queues,
        drain,
        executor,
        channel,
        open: Vec::new(),
        unsubmitted: Vec::new(),
        puts: Vec::new(),
        tickets: Vec::new(),
        counted: BTreeMap::new(),
        last: BTreeMap::new(),
        begun_at_abort: None,
        next_addr: 0,
    };
    for _ in 0..world.dice.below(250) {
        world.step();
        world.look();
    }
    world.finish();
}

fn frontier(queue: &DeviceQueue<HeapWords>) -> u64 {
    let near = queue.as_memory().load(at::RESERVED, Acquire);
    FrontierWord(queue.as_memory().load(at::FRONTIER, Acquire)).index_near(near)
}

impl<'q> World<'q> {
    fn step(&mut self) {
        match self.dice.below(16) {
            0..=2 => self.reserve(),
            3..=5 => self.publish(),
            6 | 7 => self.submit(),
            8..=10 => self.pass(),
            11..=13 => self.execute(),
            14 => self.trouble(),
            _ => self.flush(),
        }
    }

    fn reserve(&mut self) {
        if self.open.len() >= 4 {
            return;
        }
        let number = self.dice.below(MAINS.into()) as u32;
        let queue = &self.queues[number as usize];
        match queue.reserve_entries(2) {
            Ok(reservation) => self.fill(number, reservation),
            Err(ReserveError::Busy) => {}
            Err(ReserveError::Over(WaitError::Failed(_) | WaitError::Aborted(_))) => {}
            Err(other) => panic!("{other}"),
        }
    }

    fn fill(&mut self, number: u32, mut reservation: QueueReservation<'q, HeapWords>) {
        if self.dice.one_in(8) {
            // The reservation will be dropped: all NOPs, or one of its two entries.
            let _ = self.dice.one_in(2).then(|| reservation.write_entry(&QueueEntry::new(EntryWork::Show)));
            self.open.push(Open { reservation, put: None, companion: false });
            return;
        }
        let (addr, words) = (self.next_addr, self.dice.below(4));
        self.next_addr = (addr + words * 8) % (world::DATA_WORDS * 8 - 64);
        let slot = self.executor.signal_slots.slot_at(number).unwrap();
        let is_poisoned = matches!(self.executor.signal_slots, SlotLayout::Poisoned { .. });
        let (from, to) = (LocalAddress { addr, key: 9 }, PeerAddress { peer: 1, addr, key: key::DATA });
        let signal = PeerAddress { peer: 1, addr: slot.value, key: key::SIGNALS };
        let fence =
            [EntryFence::None, EntryFence::ReadsAndAtomics, EntryFence::All][self.dice.below(3) as usize];
        let counts = match self.dice.below(4) {
            0 | 1 => Counting::Companion,
            2 => Counting::Entry,
            _ => Counting::Nothing,
        };
        let write = QueueEntry::new(EntryWork::Write { from, to, len: words * 8, imm: None });
        let raised = self.addition(number).attach_to(write).filter(|_| counts == Counting::Entry);
        let write = reservation.write_entry(&raised.unwrap_or(write)).unwrap();
        let change = EntryWork::Atomic { at: signal, change: AtomicChange::Add(1), poisoned: is_poisoned };
        let raise = reservation.write_entry(&QueueEntry::new(change).with_fence(fence)).unwrap();
        assert!(reservation.write_entry(&QueueEntry::new(EntryWork::Nop)).is_none());
        let put = Put {
            queue: number,
            write: write.index,
            signal: raise.index,
            addr,
            words,
            tickets: [write, raise],
            counts,
        };
        self.open.push(Open { reservation, put: Some(put), companion: false });
    }

    /// The increment of a queue's counter for a put.
    fn addition(&self, queue: u32) -> WordAddition {
        let slot = self.executor.counter_slots.slot_at(queue).unwrap();
        let at = PeerAddress { peer: 0, addr: slot.value, key: key::COUNTERS };
        WordAddition {
            at,
            value: 3,
            poisoned: matches!(self.executor.counter_slots, SlotLayout::Poisoned { .. }),
        }
    }

    /// Records that a put's own entry will raise the counter.
    fn note(&mut self, put: &Put) {
        if put.counts == Counting::Entry {
            *self.counted.entry(put.queue).or_default() += 3;
        }
    }

    /// Makes the companion count the put: it waits for the write, as the successor's companion does.
    fn count(&mut self, put: &Put) {
        let number = put.queue + MAINS;
        match self.queues[put.queue as usize].request_companion() {
            CompanionWord::Queue(companion) => assert_eq!(companion, number),
            _ => return,
        }
        let Ok(mut reservation) = self.queues[number as usize].reserve_entries(2) else { return };
        let _ = reservation.write_entry(&common::wait(put.queue, put.write)).unwrap();
        let _ = reservation.write_entry(&self.addition(put.queue).to_entry()).unwrap();
        *self.counted.entry(put.queue).or_default() += 3;
        self.open.push(Open { reservation, put: None, companion: true });
    }

    fn publish(&mut self) {
        if self.open.is_empty() {
            return;
        }
        let at = self.dice.below(self.open.len() as u64) as usize;
        let Open { reservation, put, companion } = self.open.swap_remove(at);
        if put.is_none()
            && !companion
            && reservation.place_count() > 0
            && self.is_next(&reservation)
            && self.dice.one_in(2)
        {
            return reservation.cancel();
        }
        match reservation.publish() {
            Ok(ticket) => {
                self.unsubmitted.push(ticket);
                self.tickets.push(ticket);
                if let Some(put) = put {
                    self.puts.push(put);
                    self.tickets.push(put.tickets[0]);
                    if self.dice.one_in(2) {
                        assert!(self.channel.record_ticket(put.queue, put.tickets[1]));
                    }
                    self.note(&put);
                    if put.counts == Counting::Companion {
                        self.count(&put);
                    }
                }
            }
            Err(reservation) => self.open.push(Open { reservation, put, companion }),
        }
    }

    /// Whether all earlier reservations are published.
    fn is_next(&self, reservation: &QueueReservation<'_, HeapWords>) -> bool {
        let queue = &self.queues[reservation.queue_number() as usize];
        queue.as_memory().load(at::READY, Acquire) == reservation.first_index()
    }

    fn submit(&mut self) {
        if self.unsubmitted.is_empty() {
            return;
        }
        let at = self.dice.below(self.unsubmitted.len() as u64) as usize;
        let ticket = self.unsubmitted.swap_remove(at);
        let queue = &self.queues[ticket.queue as usize];
        queue.submit(ticket.index.wrapping_add(1));
        let submitted = queue.as_memory().load(at::SUBMITTED, Acquire);
        assert_eq!(
            self.page.read_bell(queue.queue_shape().bell()),
            submitted,
            "I5: the doorbell must cover all submitted entries"
        );
    }

    fn pass(&mut self) {
        if self.dice.one_in(4) {
            self.late_bell();
        }
        self.drain.run_pass(&mut self.executor);
        if let Some(asked) = self.drain.asked_companion() {
            let companion = self.queues[(asked + MAINS) as usize].clone();
            let rules = rules(&mut self.dice, self.executor.is_ordered);
            assert!(self.drain.add_queue(companion, rules).unwrap());
            self.drain.answer_companion(asked, CompanionWord::Queue(asked + MAINS));
        }
    }

    /// A late or repeated doorbell: the engine reads an older value first, and then the current one.
    fn late_bell(&mut self) {
        let queue = &self.queues[self.dice.below(self.queues.len() as u64) as usize];
        let bell = queue.queue_shape().bell();
        let now = self.page.read_bell(bell);
        let late = now.wrapping_sub(self.dice.below(5));
        let (offset, bits) = bell_word(&self.page, bell);
        self.page.as_memory().store(offset, late, Release);
        self.page.as_memory().fetch_or(bits.0, bits.1, Release);
        self.drain.run_pass(&mut self.executor);
        self.page.as_memory().store(offset, now, Release);
        self.page.as_memory().fetch_or(bits.0, bits.1, Release);
    }

    fn execute(&mut self) {
        if let Some((queue, index, outcome)) = self.executor.step(&mut self.dice) {
            assert!(self.drain.end_job(queue, index, outcome));
            assert!(!self.drain.end_job(queue, index, outcome), "a job must end only once");
        }
    }

    fn trouble(&mut self) {
        if self.dice.one_in(40) {
            self.executor.is_dead = true;
        }
        if self.dice.one_in(40) && self.begun_at_abort.is_none() {
            let number = self.dice.below(MAINS.into()) as u32;
            assert!(
                self.queues[number as usize].abort(AbortWord { status: EntryStatus::Aborted, reason: 5 })
            );
            // The engine sees the abort with its next poll, and nothing begins after that.
            self.drain.run_pass(&mut self.executor);
            self.begun_at_abort = Some((number, self.executor.begun_of(number)));
        }
    }

    /// Invariant I10.
    fn flush(&mut self) {
        let recorded: Vec<_> = self.puts.iter().map(|put| put.tickets[1]).collect();
        let before = self.channel.pending_lanes();
        match self.channel.flush(&self.queues[..MAINS as usize], &mut PollLimit(1)) {
            Ok(()) => assert_eq!(self.channel.pending_lanes(), 0),
            Err(WaitError::Timeout) => assert_ne!(before, 0),
            Err(WaitError::Failed(_) | WaitError::Aborted(_)) => {}
            Err(other) => panic!("{other}, of {recorded:?}"),
        }
    }

    /// The invariants that hold at any time.
    fn look(&mut self) {
        for number in 0..self.queues.len() {
            self.look_at_queue(number as u32);
        }
        self.look_at_tickets();
        self.look_at_signals();
        self.look_at_counters();
        if let Some((queue, begun)) = self.begun_at_abort {
            assert_eq!(self.executor.begun_of(queue), begun, "I14: nothing may begin after an abort");
        }
    }

    /// Invariants I1 and I2.
    fn look_at_queue(&mut self, number: u32) {
        let queue = &self.queues[number as usize];
        let word = |word| queue.as_memory().load(word, Acquire);
        let (reserved, ready, submitted, shadow) =
            (word(at::RESERVED), word(at::READY), word(at::SUBMITTED), word(at::SHADOW));
        let frontier = frontier(queue);
        for (less, more) in [(ready, reserved), (submitted, ready), (frontier, submitted), (shadow, frontier)]
        {
            assert!(!is_before(more, less), "I1: {less} > {more} in queue {number}");
        }
        for (word, now) in [(at::RESERVED, reserved), (at::READY, ready), (at::SUBMITTED, submitted)]
            .into_iter()
            .chain([(at::SHADOW, shadow), (at::FRONTIER, frontier)])
        {
            let before = self.last.insert((number, word), now).unwrap_or(now);
            assert!(!is_before(now, before), "I1: {word} of queue {number} decreased from {before} to {now}");
        }
        assert!(reserved.wrapping_sub(frontier) <= queue.queue_shape().depth().into(), "I2");
        let fault = queue.queue_fault();
        assert!(
            fault.is_none_or(|fault| fault.status != EntryStatus::BadEntry),
            "I3: queue {number}: {fault:?}"
        );
    }

    /// Invariants I6, I8 and I11, as far as they can be checked now.
    fn look_at_tickets(&self) {
        for ticket in &self.tickets {
            let queue = &self.queues[ticket.queue as usize];
            let completion = queue.read_completion(*ticket);
            match queue.poll(*ticket) {
                Ok(TicketPoll::Busy) | Err(WaitError::Aborted(_)) => continue,
                Ok(TicketPoll::Done) => {
                    let failed = self.executor.failed.contains(&(ticket.queue, ticket.index));
                    assert!(!failed, "I11: {ticket:?} is done, but its entry has failed");
                    assert!(
                        completion.is_err() || completion.is_ok_and(|c| c.status == EntryStatus::Done),
                        "{completion:?}"
                    );
                }
                Err(WaitError::Failed(fault)) => {
                    assert!(!is_before(ticket.index, fault.first_bad));
                    assert!(
                        completion.is_err() || completion.is_ok_and(|c| c.status != EntryStatus::Done),
                        "{completion:?}"
                    );
                }
                Err(other) => panic!("{other}"),
            }
            let gone =
                is_before(ticket.index.wrapping_add(queue.queue_shape().depth().into()), frontier(queue));
            assert!(
                completion.is_ok() || gone || completion_may_be_gone(queue, *ticket),
                "I6: {ticket:?} {completion:?}"
            );
            assert!(!self.executor.reads_up_to(ticket.queue, ticket.index), "I8: {ticket:?}");
        }
    }

    /// Invariant I9: a signal's value never exceeds the number of placed puts of its queue.
    fn look_at_signals(&self) {
        for queue in 0..MAINS {
            let slot = self.executor.signal_slots.slot_at(queue).unwrap();
            let raised = slot.read_value(&self.executor.signals);
            let puts: Vec<_> = self.in_order(queue);
            assert!(raised as usize <= puts.len());
            for put in puts.iter().take(raised as usize) {
                for word in 0..put.words {
                    let there = self.executor.data.load(put.addr + word * 8, Acquire);
                    let expected = put.write | 1 << 40;
                    // A later put may have overwritten the same place after addresses have wrapped.
                    assert!(there == expected || self.puts.len() > 200, "I9: {put:?} {there:#x}");
                }
            }
        }
    }

    fn in_order(&self, queue: u32) -> Vec<Put> {
        let mut puts: Vec<_> = self.puts.iter().filter(|put| put.queue == queue).copied().collect();
        puts.sort_by(|a, b| 0.cmp(&(b.signal.wrapping_sub(a.signal) as i64)));
        puts
    }

    /// Invariant I7: no counter exceeds the sum of its completed entries.
    fn look_at_counters(&self) {
        for queue in 0..MAINS {
            let slot = self.executor.counter_slots.slot_at(queue).unwrap();
            let counted = slot.read_value(&self.executor.counters);
            let done = |put: &&Put| self.queues[queue as usize].poll(put.tickets[0]) == Ok(TicketPoll::Done);
            let puts = self.puts.iter().filter(|put| put.queue == queue && put.counts != Counting::Nothing);
            let most = puts.filter(done).count() as u64 * 3;
            assert!(counted <= most, "I7: counter {queue} is {counted}, but only {most} have completed");
            assert!(counted <= self.counted.get(&queue).copied().unwrap_or(0));
        }
    }

    /// All producers and the engine run until no work is left; then every entry has completed.
    fn finish(&mut self) {
        while let Some(next) = self.open.iter().position(|open| {
            let queue = open.queue();
            self.queues[queue as usize].as_memory().load(at::READY, Acquire) == open.reservation.first_index()
        }) {
            self.open.swap(0, next);
            let Open { reservation, put, companion } = self.open.swap_remove(0);
            match put {
                None if !companion && self.dice.one_in(2) => reservation.cancel(),
                put => {
                    let ticket = reservation.publish().ok().unwrap();
                    self.unsubmitted.push(ticket);
                    self.tickets.push(ticket);
                    put.iter().for_each(|put| self.note(put));
                    self.puts.extend(put);
                }
            }
        }
        assert!(self.open.is_empty(), "I4: all reserved entries must be published");
        while !self.unsubmitted.is_empty() {
            self.submit();
        }
        for _ in 0..10_000 {
            self.pass();
            self.execute();
            self.look();
            if self.executor.is_idle() && self.queues.iter().all(|queue| self.is_over(queue)) {
                break;
            }
        }
        // The last completion may leave a counter to be raised.
        self.pass();
        self.look();
        self.look_at_the_end();
    }

    fn is_over(&self, queue: &DeviceQueue<HeapWords>) -> bool {
        let submitted = queue.as_memory().load(at::SUBMITTED, Acquire);
        frontier(queue) == submitted
    }

    /// Invariants I4, I7 and I11.
    fn look_at_the_end(&self) {
        for queue in self.queues {
            assert!(self.is_over(queue), "liveness: {} of {:?}", frontier(queue), queue.queue_shape());
        }
        for ticket in &self.tickets {
            let poll = self.queues[ticket.queue as usize].poll(*ticket);
            assert_ne!(poll, Ok(TicketPoll::Busy), "I11: {ticket:?} has neither completed nor failed");
        }
        for queue in 0..MAINS {
            let puts = self.in_order(queue).len() as u64;
            let slot = self.executor.signal_slots.slot_at(queue).unwrap();
            self.ends(queue, slot, &self.executor.signals, puts, self.executor.is_dead);
            let counted = self.counted.get(&queue).copied().unwrap_or(0);
            let slot = self.executor.counter_slots.slot_at(queue).unwrap();
            self.ends(queue, slot, &self.executor.counters, counted, false);
        }
    }

    /// A waiter of a signal or counter gets its value, or an error, unless the sender of the error has died.
    fn ends(&self, queue: u32, slot: SignalSlot, memory: &HeapWords, expected: u64, is_gone: bool) {
        let result = slot.wait(memory, SlotCondition::AtLeast(expected), &mut PollLimit(1));
        match result {
            Ok(value) => assert_eq!(value, expected),
            Err(WaitError::Poisoned(poison)) => {
                assert_eq!(poison.queue % MAINS, queue);
                assert_ne!(poison.status, EntryStatus::Done);
            }
            Err(WaitError::Timeout) if is_gone => {}
            Err(other) => panic!("I11: a waiter of queue {queue}, {slot:?}, for {expected}: {other}"),
        }
    }
}

impl Open<'_> {
    fn queue(&self) -> u32 {
        self.reservation.queue_number()
    }
}

/// Returns whether an unpublished completion may have overwritten this one: never here, as engine and reader take turns.
fn completion_may_be_gone(queue: &DeviceQueue<HeapWords>, ticket: EntryTicket) -> bool {
    let age = frontier(queue).wrapping_sub(ticket.index);
    age > u64::from(queue.queue_shape().depth())
}

fn bell_word(page: &BellPage<HeapWords>, bell: u32) -> (u64, (u64, u64)) {
    let bells = DoorbellLayout::new(page.bell_count()).unwrap();
    (bells.bell_offset(bell), bells.bit_place(bell))
}

#[test]
fn invariants_hold_for_every_seed() {
    let number = |name: &str| std::env::var(name).ok().and_then(|value| value.parse().ok());
    if let Some(seed) = number("TRUNKLINE_SEED") {
        return run(seed);
    }
    let seeds = number("TRUNKLINE_SEEDS").unwrap_or(if is_full() { 100_000 } else { 8_000 });
    for seed in 0..seeds {
        let result = std::panic::catch_unwind(|| run(seed));
        if let Err(panic) = result {
            println!("TRUNKLINE_SEED={seed}");
            std::panic::resume_unwind(panic);
        }
    }
    println!("{seeds} worlds");
}
