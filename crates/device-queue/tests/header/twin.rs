//! Two worlds with the same queues: in one the producer is the Rust core, in the other the header. The core is the
//! engine of both. The arguments of an act are defined once for both sides, here and in `fixture.cpp`.

use std::cell::RefCell;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use trunkline_device_queue::channel::TicketRecord as Recorded;
use trunkline_device_queue::lane::{OpError, PutBytes, QueueLane, WordAddition};
use trunkline_device_queue::original::{FenceError, OriginalPeer, WordArray, wait_signal};
use trunkline_device_queue::queue::CompletionError;
use trunkline_device_queue::successor::{LaneChannel, PostedPut, PutActions, SlotArray};
use trunkline_device_queue::verdict::GroupVerdict;
use trunkline_device_queue::view::{CLAIMS_BYTES, DeviceWords, GROUP_BYTES, WORDS_BYTES};
use trunkline_device_queue::{
    BellPage, CompanionDirectory, DeviceQueue, EntryTicket, ExecutorRules, HeapWords, JobExecutor,
    JobOutcome, PollLimit, QueueDrain, QueueFault, QueueJob, QueueReservation, QueueView, ReserveError,
    RingOutcome, SignalSlot, SlotCondition, TicketPoll, WaitError, WordMemory, allocate_words,
};
use trunkline_proto::wire::device_queue::{
    AbortWord, AtomicChange, CompanionWord, DoorbellLayout, EntryFence, EntryStatus, EntryWork, LENGTH_MAX,
    LocalAddress, PeerAddress, PoisonWord, QueueEntry, QueueShape, at,
};

use super::fixture::{Fixture, Out, Twin};

/// How producers notify the engine.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Mode {
    /// As the core: bits, and all words in the queue.
    Bits,
    /// One byte per doorbell.
    Bytes,
    /// As a device: bytes, and its own words in its own memory.
    Device,
}

/// The parameters of a pair of worlds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) mode: Mode,
    pub(crate) lanes: u32,
    pub(crate) depth: u32,
    pub(crate) first: u64,
    pub(crate) checked: bool,
}

/// Executes jobs on words of signals and counters at once. Other jobs only report success.
struct Executor {
    slots: HeapWords,
    fails: Option<(u32, u64)>,
}

impl JobExecutor for Executor {
    fn begin_job(&mut self, queue: u32, index: u64, job: &QueueJob) -> Option<JobOutcome> {
        Some(match *job {
            QueueJob::Poison { at, poisoned, poison } => {
                let error = at.addr + if poisoned { 8 } else { 64 };
                if error / 8 < 48 {
                    self.slots.store(error & !7, poison.to_word(), Release);
                }
                JobOutcome::Done(0)
            }
            QueueJob::Count { at, value, .. } => {
                if at.addr / 8 < 48 {
                    self.slots.fetch_add(at.addr, value.into(), Release);
                }
                JobOutcome::Done(0)
            }
            QueueJob::Execute(_) if self.fails == Some((queue, index)) => {
                JobOutcome::Failed { status: EntryStatus::Other(77), reason: 5 }
            }
            QueueJob::Execute(QueueEntry { work: EntryWork::Atomic { at, change, .. }, .. })
                if at.addr / 8 < 48 =>
            {
                let old = self.slots.load(at.addr, Acquire);
                self.slots.store(at.addr, change.apply_to(old), Release);
                JobOutcome::Done(if change.is_fetching() { old } else { 0 })
            }
            QueueJob::Execute(QueueEntry { work: EntryWork::Notify { imm, .. }, .. }) => {
                JobOutcome::Done(imm.into())
            }
            QueueJob::Execute(QueueEntry { work: EntryWork::WriteInline { bytes, to }, .. })
                if bytes.as_bytes().len() == 8 && to.addr.is_multiple_of(8) && to.addr / 8 < 48 =>
            {
                self.slots.store(to.addr, u64::from_le_bytes(bytes.as_bytes().try_into().unwrap()), Release);
                JobOutcome::Done(0)
            }
            QueueJob::Execute(_) => JobOutcome::Done(0),
        })
    }
}

/// Finds companions among a world's queues.
#[derive(Clone)]
pub(crate) struct Table(Vec<DeviceQueue<HeapWords>>);

impl CompanionDirectory<HeapWords> for Table {
    fn find_queue(&self, number: u32) -> Option<DeviceQueue<HeapWords>> {
        let companions = &self.0[self.0.len() / 2..];
        companions.iter().find(|queue| queue.queue_shape().number() == number).cloned()
    }
}

/// One of the two worlds: queues, the engine and its memory.
pub(crate) struct World {
    pub(crate) page: BellPage<HeapWords>,
    pub(crate) queues: Vec<DeviceQueue<HeapWords>>,
    pub(crate) slots: HeapWords,
    pub(crate) channel: HeapWords,
    pub(crate) group: HeapWords,
    drain: RefCell<QueueDrain<HeapWords>>,
    executor: RefCell<Executor>,
}

impl World {
    pub(crate) fn new(plan: &Plan, is_device: bool) -> Self {
        let count = plan.lanes * 2;
        let bells = DoorbellLayout::new(count).unwrap();
        let page = if plan.mode == Mode::Bits {
            BellPage::create(allocate_words(bells.page_bytes()), count).unwrap()
        } else {
            BellPage::create_for_devices(allocate_words(bells.by_bytes().page_bytes()), count).unwrap()
        };
        let mut drain = QueueDrain::new(page.clone()).unwrap();
        let make = |number| {
            let mut shape = QueueShape::new(plan.depth, number, 5, number).unwrap();
            shape = if plan.checked { shape.with_check() } else { shape };
            shape = if is_device { shape.for_device() } else { shape };
            let queue =
                DeviceQueue::create(allocate_words(shape.queue_bytes()), shape, plan.first, &page).unwrap();
            assert!(
                drain
                    .add_queue(queue.clone(), ExecutorRules { is_ordered: false, me: 0, window: 4 })
                    .unwrap()
            );
            queue
        };
        let queues = (0..count).map(make).collect();
        let (slots, channel, group) =
            (allocate_words(64 * 8), allocate_words(8 * 8), allocate_words(GROUP_BYTES));
        for lane in 0..u64::from(plan.lanes) * 2 {
            channel.store(lane * 8, plan.first, Relaxed);
        }
        let executor = RefCell::new(Executor { slots: slots.clone(), fails: None });
        Self { page, queues, slots, channel, group, drain: RefCell::new(drain), executor }
    }

    /// Runs the engine once. Returns the number of jobs that began.
    pub(crate) fn pass(&self) -> u32 {
        self.drain.borrow_mut().run_pass(&mut *self.executor.borrow_mut()).begun
    }

    /// Returns the number of completed entries of a queue.
    pub(crate) fn completed(&self, queue: u32) -> u64 {
        self.drain.borrow().queue_progress(queue).unwrap().completed
    }

    /// Fails an entry of this queue.
    pub(crate) fn fail(&self, queue: u32, index: u64) {
        self.executor.borrow_mut().fails = Some((queue, index));
    }

    /// The host creates companions, or refuses them.
    pub(crate) fn answer(&self, is_refused: bool) -> Option<u32> {
        let mut drain = self.drain.borrow_mut();
        let asked = drain.asked_companion()?;
        let companion = if is_refused {
            CompanionWord::Refused
        } else {
            CompanionWord::Queue(asked + self.queues.len() as u32 / 2)
        };
        drain.answer_companion(asked, companion);
        Some(asked)
    }
}

/// Both worlds.
pub(crate) struct Pair<'f> {
    pub(crate) plan: Plan,
    pub(crate) rust: World,
    pub(crate) header: World,
    pub(crate) twin: Twin<'f>,
    /// The words per queue that a device has in its own memory.
    own: Vec<(HeapWords, HeapWords)>,
}

fn address(words: &HeapWords) -> u64 {
    words.as_ptr() as u64
}

/// Returns the words, as the header changes them.
pub(crate) fn pointer(words: &HeapWords) -> *mut u64 {
    words.as_ptr().cast::<u64>().cast_mut()
}

/// Views of a world's queues.
pub(crate) fn views(world: &World, own: &[(HeapWords, HeapWords)]) -> Vec<QueueView> {
    let page = address(world.page.as_memory());
    let view = |(queue, own): (&DeviceQueue<HeapWords>, Option<DeviceWords>)| {
        QueueView::new(
            queue.queue_shape(),
            address(queue.as_memory()),
            world.page.doorbell_layout(),
            page,
            own,
        )
        .unwrap()
    };
    let own =
        own.iter().map(|(words, claims)| DeviceWords { words: address(words), claims: address(claims) });
    world.queues.iter().zip(own.map(Some).chain(std::iter::repeat(None))).map(view).collect()
}

/// The words that a device has in its own memory for a queue.
pub(crate) fn own(first: u64) -> (HeapWords, HeapWords) {
    let words = allocate_words(WORDS_BYTES);
    for (at, word) in DeviceWords::initial_words(first).iter().enumerate() {
        words.store(at as u64 * 8, *word, Relaxed);
    }
    (words, allocate_words(CLAIMS_BYTES))
}

impl<'f> Pair<'f> {
    pub(crate) fn new(fixture: &'f Fixture, plan: Plan) -> Self {
        let (rust, header) = (World::new(&plan, false), World::new(&plan, plan.mode == Mode::Device));
        let own: Vec<_> = match plan.mode {
            Mode::Device => header.queues.iter().map(|_| own(plan.first)).collect(),
            _ => Vec::new(),
        };
        let views = views(&header, &own);
        assert!(views.iter().all(|view| fixture.is_usable(view)));
        // Memory that a device shares with the host, or that the host's engine changes.
        let queues =
            header.queues.iter().map(|queue| (address(queue.as_memory()), queue.as_memory().byte_len()));
        let shared = [
            (address(header.page.as_memory()), header.page.as_memory().byte_len()),
            (address(&header.slots), 48 * 8),
        ];
        let guarded: Vec<_> = queues.chain(shared).map(|(from, bytes)| [from, from + bytes]).collect();
        fixture.guard(if plan.mode == Mode::Device { &guarded } else { &[] });
        let twin =
            fixture.twin(&views, pointer(&header.channel), pointer(&header.slots), pointer(&header.group));
        Self { plan, rust, header, twin, own }
    }

    /// A producers' word of the header's side.
    pub(crate) fn word(&self, queue: usize, at: u64) -> u64 {
        match self.own.get(queue) {
            Some((words, _)) if (at::RESERVED..=at::SHADOW).contains(&at) => {
                words.load(at - at::RESERVED, Acquire)
            }
            _ => self.header.queues[queue].as_memory().load(at, Acquire),
        }
    }

    /// Fails unless all words of both worlds are equal, except for those that a device has elsewhere.
    pub(crate) fn compare(&self) {
        for number in 0..self.header.queues.len() {
            let (ours, theirs) = (&self.rust.queues[number], &self.header.queues[number]);
            let shape = theirs.queue_shape();
            for at in (at::RESERVED..shape.queue_bytes()).step_by(8) {
                let (rust, mut header) = (ours.as_memory().get(at), self.word(number, at));
                if shape.is_for_device() && (at == at::ABORT_ASKED || at == at::COMPANION_ASKED) {
                    continue;
                }
                let asked = match at {
                    at::ABORT => at::ABORT_ASKED,
                    at::COMPANION => at::COMPANION_ASKED,
                    _ => 0,
                };
                if asked != 0 && header == 0 && shape.is_for_device() {
                    header = theirs.as_memory().get(asked);
                }
                assert_eq!(header, rust, "word at {at} of queue {number}");
            }
        }
        same("bells", self.rust.page.as_memory(), self.header.page.as_memory());
        same("slots", &self.rust.slots, &self.header.slots);
        same("channel", &self.rust.channel, &self.header.channel);
        same("verdict", &self.rust.group, &self.header.group);
    }
}

fn same(what: &str, rust: &HeapWords, header: &HeapWords) {
    for at in (0..rust.byte_len()).step_by(8) {
        assert_eq!(header.get(at), rust.get(at), "word at {at} of the {what}");
    }
}

/// The core's side of acts.
pub(crate) struct Rust<'w> {
    world: &'w World,
    lanes: &'w [QueueLane<HeapWords, Table>],
    channel: LaneChannel<'w, HeapWords, Table>,
    held: Vec<Option<QueueReservation<'w, HeapWords>>>,
}

pub(crate) fn lanes(world: &World) -> Vec<QueueLane<HeapWords, Table>> {
    let directory = Table(world.queues.clone());
    let mains = &world.queues[..world.queues.len() / 2];
    mains.iter().map(|main| QueueLane::new(main.clone(), directory.clone())).collect()
}

fn wait_words(out: &mut Out, result: Result<(), WaitError>) {
    let [kind, status, detail, more] = match result {
        Ok(()) => [0; 4],
        Err(WaitError::Failed(QueueFault { first_bad, status, reason })) => {
            [1, status.to_bits().into(), reason.into(), first_bad]
        }
        Err(WaitError::Poisoned(PoisonWord { status, queue })) => {
            [2, status.to_bits().into(), queue.into(), 0]
        }
        Err(WaitError::Aborted(AbortWord { status, reason })) => {
            [3, status.to_bits().into(), reason.into(), 0]
        }
        Err(WaitError::Timeout) => [4, 0, 0, 0],
        Err(WaitError::Stale) => [5, 0, 0, 0],
        Err(WaitError::Refused) => [6, 0, 0, 0],
    };
    (out[1], out[2], out[3], out[4]) = (kind, status, detail, more);
}

fn refused(out: &mut Out, refusal: ReserveError) {
    out[0] = match refusal {
        ReserveError::Busy => 1,
        ReserveError::TooMany { .. } => 2,
        ReserveError::Over(why) => {
            wait_words(out, Err(why));
            3
        }
    };
}

fn posted<T>(out: &mut Out, result: Result<T, OpError>, good: impl FnOnce(&mut Out, T)) {
    out[0] = match result {
        Ok(value) => {
            good(out, value);
            return;
        }
        Err(OpError::Refused(refusal)) => {
            refused(out, refusal);
            return;
        }
        Err(OpError::Companion(why)) => {
            wait_words(out, Err(why));
            4
        }
        Err(OpError::Empty) => 5,
        Err(OpError::Range { .. }) => 6,
        Err(OpError::Group(_)) => 7,
    };
}

fn ticket(out: &mut Out, ticket: EntryTicket) {
    (out[5], out[6]) = (ticket.queue.into(), ticket.index);
}

fn put(out: &mut Out, put: PostedPut) {
    (out[5], out[6], out[7]) = (put.lane.into(), put.write.index, put.last.index);
}

fn fenced(out: &mut Out, result: Result<(), FenceError>) {
    match result {
        Ok(()) => {}
        Err(FenceError::Post(error)) => posted(out, Err::<(), _>(error), |_, ()| {}),
        Err(FenceError::Wait(why)) => {
            wait_words(out, Err(why));
            out[0] = 8;
        }
    }
}

const WORDS: WordArray = WordArray { at: PeerAddress { addr: 0, key: 1, peer: 1 } };
const SLOTS: SlotArray = SlotArray { at: PeerAddress { addr: 128, key: 3, peer: 1 } };

/// Returns the entry of act 24.
fn entry_by(args: &[u64; 10]) -> QueueEntry {
    let [_, _, kind, addr, key, peer, operand, more, ..] = *args;
    let remote = PeerAddress { addr, key: key as u32, peer: peer as u32 };
    let local = LocalAddress { addr, key: 7 };
    let work = match kind {
        0 => EntryWork::Notify { peer: peer as u32, imm: operand as u32 },
        1 => EntryWork::Barrier,
        2 => EntryWork::Show,
        3 => {
            EntryWork::Write { from: local, to: remote, len: operand % LENGTH_MAX, imm: Some(operand as u32) }
        }
        4 => EntryWork::Wait { queue: key as u32, index: operand },
        5 => EntryWork::Atomic {
            at: PeerAddress { addr: addr & !7, ..remote },
            change: AtomicChange::AddMasked { add: operand, boundaries: more },
            poisoned: true,
        },
        6 => EntryWork::Read { into: local, from: remote, len: operand % LENGTH_MAX },
        _ => EntryWork::Nop,
    };
    let fence = [EntryFence::None, EntryFence::ReadsAndAtomics, EntryFence::All][(more % 3) as usize];
    QueueEntry { tag: more as u16, ..QueueEntry::new(work).with_fence(fence) }
}

/// Returns the change of act 15.
fn change_by(op: u64, operand: u64, comparand: u64) -> AtomicChange {
    match op {
        3 => AtomicChange::Add(operand),
        4 => AtomicChange::SwapIf { expect: comparand, swap: operand },
        5 => AtomicChange::AddMasked { add: operand, boundaries: comparand },
        6 => AtomicChange::Set(operand),
        _ => AtomicChange::Max(operand),
    }
}

impl<'w> Rust<'w> {
    pub(crate) fn new(world: &'w World, lanes: &'w [QueueLane<HeapWords, Table>], plan: &Plan) -> Self {
        let firsts = vec![plan.first; lanes.len()];
        let recorded = Recorded::create(world.channel.clone(), 0, &firsts).unwrap();
        let cursor_at = lanes.len() as u64 * 16;
        let channel = LaneChannel::new(lanes, recorded, world.channel.clone(), cursor_at).unwrap();
        Self { world, lanes, channel, held: world.queues.iter().map(|_| None).collect() }
    }

    /// Whether a reservation of a queue is held.
    pub(crate) fn holds(&self, queue: u64) -> bool {
        self.held[queue as usize].is_some()
    }

    pub(crate) fn act(&mut self, act: u64, args: &[u64; 10]) -> Out {
        let mut out = [0; 8];
        let budget = &mut PollLimit(args[0]);
        match act {
            0..10 => self.original(act, args, &mut out, budget),
            10..20 => self.successor(act, args, &mut out, budget),
            20..40 => self.queue(act, args, &mut out, budget),
            _ => self.slot(act, args, &mut out, budget),
        }
        out
    }

    fn original(&self, act: u64, args: &[u64; 10], out: &mut Out, budget: &mut PollLimit) {
        let [_, lane, from, to, len, id, value, counter, more, _] = *args;
        let peer = OriginalPeer(self.lanes[lane as usize % self.lanes.len()].clone());
        let bytes = PutBytes {
            from: LocalAddress { addr: from, key: 7 },
            to: PeerAddress { addr: to, key: 2, peer: 1 },
            len,
        };
        let signal = WORDS.add_to_word(id as u32, value);
        let counter = WORDS.add_to_word(counter as u32, more);
        match act {
            0 => posted(out, peer.put(&bytes, budget), ticket),
            1 => posted(out, peer.put_group(&bytes, id as u32, budget), ticket),
            2 => posted(out, peer.signal_remote(&signal, budget), ticket),
            3 => posted(out, peer.signal_remote_with_fence(&signal, budget), ticket),
            4 => posted(out, peer.put_signal(&bytes, &signal, budget), ticket),
            5 => posted(out, peer.put_signal_counter_remote(&bytes, &signal, &counter, budget), |_, ()| {}),
            6 => posted(out, peer.signal_counter_remote(&signal, &counter, budget), |_, ()| {}),
            7 => fenced(out, peer.fence(budget)),
            8 => fenced(out, peer.reset_signal(&WORDS, id as u32, budget)),
            _ => {}
        }
    }

    fn successor(&self, act: u64, args: &[u64; 10], out: &mut Out, budget: &mut PollLimit) {
        let [_, from, to, len, has, id, value, counter, more, threads] = *args;
        let (local, remote) =
            (LocalAddress { addr: from, key: 7 }, PeerAddress { addr: to, key: 2, peer: 1 });
        let bytes = PutBytes { from: local, to: remote, len };
        let signal = SLOTS.add_to_slot(id as u32, value);
        let counting = SLOTS.add_to_slot(counter as u32, more);
        let with = PutActions {
            signal: (has & 1 != 0).then_some(signal),
            counter: (has & 2 != 0).then_some(counting),
            signal_per_lane: has & 4 != 0,
            counter_after_signal: has & 8 != 0,
            counter_in_entry: has & 16 != 0,
        };
        let channel = &self.channel;
        match act {
            10 => posted(out, channel.put(&bytes, &with, budget), put),
            11 => posted(out, channel.put_cooperative(&bytes, threads as u32, &with, budget), put),
            12 => {
                let own: Vec<u8> =
                    [id, value, counter, more].iter().flat_map(|word| word.to_le_bytes()).collect();
                let result = own.get(..threads as usize).ok_or(OpError::Range { addr: to, len: threads });
                let result = result.and_then(|own| channel.put_inline(own, remote, budget));
                posted(out, result, put);
            }
            13 => posted(out, channel.get(local, remote, len, budget), put),
            14 => posted(out, channel.signal(&signal, budget), ticket),
            15 => {
                let change = change_by(threads, value, more);
                posted(out, channel.change_word(signal.at, change, true, has & 1 != 0, budget), ticket);
            }
            16 => posted(out, channel.signal_counter(&signal, &counting, budget), ticket),
            17 => wait_words(out, channel.flush(budget)),
            18 => out[5] = channel.pending_lanes(),
            19 => {
                let number = from as usize % self.lanes.len();
                let shape = self.lanes[number].main.queue_shape();
                let write = EntryTicket { queue: shape.number(), epoch: shape.epoch(), index: to };
                let done = PostedPut { lane: from as u32, write, last: write };
                wait_words(out, channel.wait_local(&done, budget));
            }
            _ => {}
        }
    }

    fn queue(&mut self, act: u64, args: &[u64; 10], out: &mut Out, budget: &mut PollLimit) {
        let (number, world) = (args[1] as usize, self.world);
        let queue = &world.queues[number];
        let of = EntryTicket { queue: args[2] as u32, epoch: args[3] as u32, index: args[4] };
        match act {
            20 => {
                let result = queue.poll(of);
                out[5] = u64::from(result != Ok(TicketPoll::Busy));
                wait_words(out, result.map(|_| ()));
            }
            21 => wait_words(out, queue.wait(of, budget)),
            22 => match queue.read_completion(of) {
                Ok(found) => {
                    (out[1], out[2], out[3]) = (found.status.to_bits().into(), found.op.into(), found.value);
                }
                Err(CompletionError::NotYet) => out[0] = 1,
                Err(CompletionError::Gone) => out[0] = 2,
                Err(CompletionError::Stale) => out[0] = 3,
            },
            23 => match queue.reserve_within(args[2] as u32, budget) {
                Ok(reservation) => {
                    out[5] = reservation.first_index();
                    self.held[number] = Some(reservation);
                }
                Err(refusal) => refused(out, refusal),
            },
            24 => {
                let held = self.held[number].as_mut().unwrap();
                out[5] = u64::from(held.write_entry(&entry_by(args)).is_some());
            }
            25 => match self.held[number].take().unwrap().publish() {
                Ok(_) => out[5] = 1,
                Err(again) => self.held[number] = Some(again),
            },
            26 => out[5] = u64::from(queue.submit(args[2]) == RingOutcome::Yes),
            27 => self.held[number].take().unwrap().cancel(),
            28 => {
                let why =
                    AbortWord { status: EntryStatus::from_bits(args[2] as u16), reason: args[3] as u32 };
                out[5] = u64::from(queue.abort(why));
            }
            29 => out[5] = queue.request_companion().to_word(),
            30 => {
                let result = queue.companion_within(budget);
                let result = result.map(|number| out[5] = number.into());
                wait_words(out, result);
            }
            _ => {}
        }
    }

    fn slot(&self, act: u64, args: &[u64; 10], out: &mut Out, budget: &mut PollLimit) {
        let memory = &self.world.slots;
        let mut slot = SignalSlot::with_poison_word(128 + args[1] * 16);
        if args[4] != 0 {
            slot = slot.with_base(384 + args[1] * 8);
        }
        let until = match args[2] {
            0 => SlotCondition::Equal(args[3]),
            1 => SlotCondition::NotEqual(args[3]),
            2 => SlotCondition::AtLeast(args[3]),
            3 => SlotCondition::MoreThan(args[3]),
            4 => SlotCondition::AtMost(args[3]),
            _ => SlotCondition::LessThan(args[3]),
        };
        let verdict = GroupVerdict::new(&self.world.group, 0);
        match act {
            40 => out[5] = slot.read_value(memory),
            41 => out[6] = slot.reset_base(memory).inspect(|_| out[5] = 1).unwrap_or(0),
            42 => {
                let result = slot.wait(memory, until, budget);
                let result = result.map(|value| out[5] = value);
                wait_words(out, result);
            }
            46 => {
                let queue = &self.world.queues[args[5] as usize];
                let result = slot.wait_unless_aborted(memory, until, queue, budget);
                let result = result.map(|value| out[5] = value);
                wait_words(out, result);
            }
            43 => verdict.publish_result(args[1] as u32, told(args)),
            44 => wait_words(out, verdict.await_result(args[1] as u32, budget)),
            45 => {
                let bare = SignalSlot { value: args[1] * 8, error: 64 + args[1] * 8, base: None };
                let result = wait_signal(memory, &bare, args[3], budget);
                let result = result.map(|value| out[5] = value);
                wait_words(out, result);
            }
            _ => {}
        }
    }
}

/// Returns the end of a wait of act 43, from words in a wait's layout.
fn told(args: &[u64; 10]) -> Result<(), WaitError> {
    let (status, detail, first_bad) = (EntryStatus::from_bits(args[3] as u16), args[4] as u32, args[5]);
    Err(match args[2] {
        0 => return Ok(()),
        1 => WaitError::Failed(QueueFault { first_bad, status, reason: detail }),
        2 => WaitError::Poisoned(PoisonWord { status, queue: detail }),
        3 => WaitError::Aborted(AbortWord { status, reason: detail }),
        4 => WaitError::Timeout,
        5 => WaitError::Stale,
        _ => WaitError::Refused,
    })
}

/// An addition, for tests of single acts.
pub(crate) fn signal(id: u32, value: u64) -> WordAddition {
    SLOTS.add_to_slot(id, value)
}
