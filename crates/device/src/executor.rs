//! One executor: all queues of a page of doorbells, drained onto one network. Its owner makes the passes.

mod watched;

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use trunkline_device_queue::drain::BATCH;
use trunkline_device_queue::view::DeviceWords;
use trunkline_device_queue::{BellPage, DeviceQueue, ExecutorRules, QueueDrain, QueueView, WordMemory as _};
use trunkline_mem::gpu::{GpuDevice, PinnedMemory};
use trunkline_mem::{OutOfMemory, SharedMemory};
use trunkline_proto::limits::DEVICE_PIECES_MAX;
use trunkline_proto::table_capacity::try_hold;
use trunkline_proto::wire::device_queue::{
    AbortWord, CompanionWord, DoorbellLayout, EntryStatus, FrontierWord, POST_PLACES, PostRooms, QueueShape,
    ShapeError, at as words_at, is_before,
};

use crate::entry_ops::{BegunOp, EntryOps};
use crate::guest_queues::{OwnedQueue, QueueFile};
use crate::network::MemberNetwork;
use crate::numbers::{QueueNumber, QueueNumberPool};
use crate::queue_error::QueueError;
use crate::region::{EntryKey, EntryRegion, EntryRegions, PeerRegion};
use crate::words::QueueWords;
use trunkline_engine::rma::MemberRank;
use watched::WatchedSignals;

/// Entries of a queue that are under way together.
pub const WINDOW: u32 = 64;

/// How often what comes beside links is heard: which words are spoiled, and whether members live whose signals somebody may be waiting for.
const WATCH_EVERY: Duration = Duration::from_millis(5);

/// Queues that producers find by their numbers.
pub type QueueDirectory = Arc<Mutex<BTreeMap<u32, DeviceQueue<QueueWords>>>>;

/// What a pass did.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct ExecutorPass {
    /// Something moved: more is likely to.
    pub moved: bool,
    /// Something is under way, or waits for another queue.
    pub busy: bool,
}

/// The executor.
#[derive(Debug)]
pub struct QueueExecutor<N> {
    page: BellPage<QueueWords>,
    drain: QueueDrain<QueueWords>,
    jobs: EntryOps<N>,
    directory: QueueDirectory,
    /// Those of queues, which are their doorbells', too.
    numbers: QueueNumberPool,
    /// Queues that have been given back, and are not gone yet.
    ending: Vec<u32>,
    /// Those that are gone, whose memory the caller frees: a driver may wait for a kernel first, which may wait for this executor.
    retired: Vec<DeviceQueue<QueueWords>>,
    /// Where queues lie whose producers are no threads of this process.
    room: Option<QueueStorage>,
    watched: Vec<WatchedSignals>,
    /// Queues of other processes.
    owned: Vec<OwnedQueue>,
    looked: Instant,
    /// Companions, by the queue that they are of.
    companions: BTreeMap<u32, u32>,
    /// It has ended: nothing is made any more.
    leaves: bool,
}

/// Where queues lie for others.
#[derive(Debug)]
enum QueueStorage {
    /// Pinned memory of the host, which a device sees. Where it finds the page of doorbells, and each queue, by number.
    Device { page: u64, queues: Vec<u64> },
    /// A memory file, which other processes map.
    File(QueueFile),
}

impl<N: MemberNetwork> QueueExecutor<N> {
    /// One for at most `queues` queues, companions included; 1 to 65,536, else the nearest of these.
    ///
    /// # Errors
    /// [`QueueError::Shape`].
    pub fn new(network: N, queues: u32) -> Result<Self, QueueError> {
        let queues = queues.clamp(1, trunkline_proto::wire::device_queue::BELLS_MAX);
        let page =
            BellPage::create(QueueWords::try_heap(DoorbellLayout::new(queues)?.page_bytes())?, queues)?;
        Self::with_page(network, page, None)
    }

    /// The same, for queues whose producers are threads of a device: they lie in pinned memory, with a byte for each doorbell.
    ///
    /// # Errors
    /// [`QueueError`].
    pub fn for_device(network: N, queues: u32, device: &GpuDevice) -> Result<Self, QueueError> {
        let queues = queues.clamp(1, trunkline_proto::wire::device_queue::BELLS_MAX);
        let pinned = device.allocate_pinned(DoorbellLayout::new(queues)?.by_bytes().page_bytes() as usize)?;
        let page = BellPage::create_for_devices(QueueWords::from_memory(pinned.memory().clone()), queues)?;
        let room = QueueStorage::Device { page: pinned.device_address(), queues: Vec::new() };
        Self::with_page(network, page, Some(room))
    }

    /// The same, for queues whose producers are threads of other processes of the host: they lie in a memory file, and none is deeper than `deepest`.
    ///
    /// # Errors
    /// [`QueueError`].
    pub fn for_processes(network: N, queues: u32, deepest: u32) -> Result<Self, QueueError> {
        let queues = queues.clamp(1, trunkline_proto::wire::device_queue::BELLS_MAX);
        let file = QueueFile::new(queues, deepest)?;
        let page = BellPage::create(file.file_words().clone(), queues)?;
        Self::with_page(network, page, Some(QueueStorage::File(file)))
    }

    /// The memory file of [`for_processes`](Self::for_processes), for producers to map, who use it by [`Guest`](super::GuestQueues).
    #[must_use]
    pub const fn memory_file(&self) -> Option<&SharedMemory> {
        match &self.room {
            Some(QueueStorage::File(file)) => Some(file.shared_memory()),
            _ => None,
        }
    }

    /// A queue is that process's (`pidfd_open`): once it has ended and what it had submitted is executed, the queue ends with [`EntryStatus::PeerDead`], and with it the companion.
    /// What it had reserved and not published nobody waits for.
    pub fn set_queue_owner(&mut self, number: u32, process: OwnedFd) {
        self.owned.push(OwnedQueue::new(number, process));
    }

    fn with_page(
        network: N,
        page: BellPage<QueueWords>,
        room: Option<QueueStorage>,
    ) -> Result<Self, QueueError> {
        let drain = QueueDrain::new(page.clone())?;
        let jobs = EntryOps::new(network);
        let directory = QueueDirectory::default();
        let looked = Instant::now();
        let watched = Vec::new();
        let owned = Vec::new();
        let companions = BTreeMap::new();
        Ok(Self {
            page,
            drain,
            jobs,
            directory,
            numbers: QueueNumberPool::default(),
            ending: Vec::new(),
            retired: Vec::new(),
            room,
            watched,
            owned,
            looked,
            companions,
            leaves: false,
        })
    }

    /// Makes a queue, whose first index is `first`.
    ///
    /// # Errors
    /// [`QueueError`].
    pub fn make_queue(&mut self, depth: u32, first: u64) -> Result<DeviceQueue<QueueWords>, QueueError> {
        if matches!(self.room, Some(QueueStorage::Device { .. })) {
            return Err(QueueError::Device);
        }
        self.add_queue(depth, first, None)
    }

    /// Bytes of a queue for threads of a device.
    ///
    /// # Errors
    /// [`QueueError::Shape`].
    pub fn lane_bytes(depth: u32) -> Result<usize, ShapeError> {
        Ok(QueueShape::new(depth, 0, 0, 0)?.for_device().queue_bytes() as usize)
    }

    /// Makes a queue for threads of a device, and its companion, which it has from the beginning: a kernel that is under way keeps new memory from
    /// being pinned. Each lies in pinned memory of [`lane_bytes`](Self::lane_bytes) that the caller has allocated. Their numbers.
    ///
    /// # Errors
    /// [`QueueError`]; then neither is left.
    pub fn make_lane(
        &mut self,
        depth: u32,
        first: u64,
        pinned: &[PinnedMemory; 2],
    ) -> Result<[u32; 2], QueueError> {
        let bytes = Self::lane_bytes(depth)?;
        let is_large = pinned.iter().all(|pinned| pinned.memory().len() >= bytes);
        if !matches!(self.room, Some(QueueStorage::Device { .. })) || !is_large {
            return Err(QueueError::Device);
        }
        let [own, beside] = pinned;
        let queue = self.add_queue(depth, first, Some(own))?;
        let number = queue.queue_shape().number();
        let companion = match self.add_queue(depth, first, Some(beside)) {
            Ok(companion) => companion,
            Err(error) => {
                self.end_queue(number);
                return Err(error);
            }
        };
        let of = companion.queue_shape().number();
        queue.answer_companion(CompanionWord::Queue(of));
        self.companions.insert(number, of);
        Ok([number, of])
    }

    /// Queues that there are, companions included.
    #[must_use]
    pub fn queue_count(&self) -> usize {
        self.directory.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// What a kernel is given of such a queue; `own` is where the words lie that its device's threads change. `None`: there is no such queue.
    #[must_use]
    pub fn queue_view(&self, number: u32, own: DeviceWords) -> Option<QueueView> {
        let Some(QueueStorage::Device { queues, page, .. }) = &self.room else { return None };
        let at = *queues.get(number as usize)?;
        let directory = self.directory.lock().unwrap_or_else(PoisonError::into_inner);
        let shape = *directory.get(&number)?.queue_shape();
        drop(directory);
        QueueView::new(&shape, at, self.page.doorbell_layout(), *page, Some(own))
    }

    fn add_queue(
        &mut self,
        depth: u32,
        first: u64,
        pinned: Option<&PinnedMemory>,
    ) -> Result<DeviceQueue<QueueWords>, QueueError> {
        let taken = self
            .numbers
            .take_number(self.page.bell_count())
            .ok_or(QueueError::Full(self.page.bell_count()))?;
        let QueueNumber { number, epoch, window } = taken;
        let made = self.create_queue(depth, number, epoch, first, pinned);
        let made = made.and_then(|queue| {
            self.take_on(&queue, WINDOW.min(depth).saturating_sub(window))?;
            Ok(queue)
        });
        let queue = made.inspect_err(|_| {
            if let Some(QueueStorage::File(file)) = &self.room {
                file.publish_offset(number, 0);
            }
            self.numbers.return_unused(taken);
        })?;
        let mut directory = self.directory.lock().unwrap_or_else(PoisonError::into_inner);
        directory.insert(number, queue.clone());
        Ok(queue)
    }

    /// Takes a queue on, with room for `more` entries under way, and for its end.
    fn take_on(&mut self, queue: &DeviceQueue<QueueWords>, more: u32) -> Result<(), OutOfMemory> {
        let count = self.queue_count() + 1;
        self.numbers.reserve_room(count)?;
        try_hold(&mut self.ending, count)?;
        if matches!(self.room, Some(QueueStorage::Device { .. })) {
            try_hold(&mut self.retired, count)?;
        }
        self.jobs.grow_capacity(more)?;
        // An atomic is held until the writes before it are placed, whatever the network promises.
        let rules = ExecutorRules { is_ordered: false, me: self.jobs.own_rank(), window: WINDOW };
        let taken = self.drain.add_queue(queue.clone(), rules)?;
        debug_assert!(taken, "its number and its doorbell are nobody else's");
        Ok(())
    }

    /// The words of a queue, where producers find them.
    fn create_queue(
        &mut self,
        depth: u32,
        number: u32,
        epoch: u32,
        first: u64,
        pinned: Option<&PinnedMemory>,
    ) -> Result<DeviceQueue<QueueWords>, QueueError> {
        let shape = QueueShape::new(depth, number, epoch, number)?;
        let (shape, words, in_file) = match &mut self.room {
            None => (shape, QueueWords::try_heap(shape.queue_bytes())?, None),
            Some(QueueStorage::Device { queues, .. }) => {
                let pinned = pinned.ok_or(QueueError::Device)?;
                let at = number as usize;
                try_hold(queues, at + 1)?;
                queues.resize(queues.len().max(at + 1), 0);
                queues[at] = pinned.device_address();
                (shape.for_device(), QueueWords::from_memory(pinned.memory().clone()), None)
            }
            Some(QueueStorage::File(file)) => {
                let (at, words) = file.queue_words(&shape)?;
                (shape, words, Some(at))
            }
        };
        let queue = DeviceQueue::create(words, shape, first, &self.page)?;
        if let (Some(at), Some(QueueStorage::File(file))) = (in_file, &self.room) {
            file.publish_offset(number, at);
        }
        Ok(queue)
    }

    /// Whether all that producers have submitted to a queue and its companion has completed, or will not be executed. A device has its producers' words in its
    /// own memory: how much it has submitted its doorbell says.
    #[must_use]
    pub fn is_through(&self, number: u32) -> bool {
        let directory = self.directory.lock().unwrap_or_else(PoisonError::into_inner);
        let both = [Some(number), self.companions.get(&number).copied()];
        both.into_iter().flatten().filter_map(|number| directory.get(&number)).all(|queue| {
            if queue.abort_word().is_some() || queue.queue_fault().is_some() {
                return true;
            }
            let word = |at| queue.as_memory().load(at, std::sync::atomic::Ordering::Acquire);
            let submitted = if queue.queue_shape().is_for_device() {
                self.page.read_bell(queue.queue_shape().bell())
            } else {
                word(words_at::SUBMITTED)
            };
            !is_before(FrontierWord(word(words_at::FRONTIER)).index_near(submitted), submitted)
        })
    }

    /// Whether a queue that is ended has something under way, or its companion.
    #[must_use]
    pub fn is_ending(&self, number: u32) -> bool {
        let companion = self.companions.get(&number);
        self.ending.contains(&number) || companion.is_some_and(|companion| self.ending.contains(companion))
    }

    /// All that has begun and not ended, of whichever queue and of none.
    #[must_use]
    pub fn begun_ops(&self) -> Vec<BegunOp> {
        self.jobs.begun_ops()
    }

    /// Whether any of it has not ended.
    #[must_use]
    pub fn is_any_begun(&self, begun: &[BegunOp]) -> bool {
        begun.iter().any(|begun| self.jobs.is_begun(*begun))
    }

    /// Queues that are gone, for the caller to drop once the executor is another's again.
    #[must_use]
    pub fn take_retired(&mut self) -> Vec<DeviceQueue<QueueWords>> {
        std::mem::take(&mut self.retired)
    }

    /// Ends a queue and its companion, as an abort does, with the status of a reservation that was abandoned: whoever still waits there hears of it. Once nothing of it is under way
    /// its number and its doorbell are given to another queue, with the next epoch, so nobody is to post to it from here on.
    pub fn end_queue(&mut self, number: u32) {
        let companion = self.companions.get(&number).copied();
        let mut deepest = 0;
        for number in [Some(number), companion].into_iter().flatten() {
            let directory = self.directory.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(queue) = directory.get(&number).filter(|_| !self.ending.contains(&number)) else {
                continue;
            };
            queue.abort(AbortWord { status: EntryStatus::Abandoned, reason: 0 });
            deepest = deepest.max(queue.queue_shape().depth());
            drop(directory);
            self.ending.push(number);
        }
        for _ in 0..deepest / BATCH + 2 {
            if self.ending.is_empty() {
                break;
            }
            self.run_pass();
        }
    }

    /// The companion of a queue, if one was made.
    #[must_use]
    pub fn companion_of(&self, number: u32) -> Option<u32> {
        self.companions.get(&number).copied()
    }

    /// Forgets queues of which nothing is under way any more.
    #[cold]
    fn retire_queues(&mut self) {
        let Self { ending, retired, drain, directory, companions, owned, numbers, room, .. } = self;
        ending.retain(|&number| {
            if !drain.remove(number) {
                return true;
            }
            let mut directory = directory.lock().unwrap_or_else(PoisonError::into_inner);
            let queue = directory.remove(&number);
            companions.retain(|&of, _| of != number);
            owned.retain(|owned| owned.number != number);
            if let Some(QueueStorage::File(file)) = room {
                file.publish_offset(number, 0);
            }
            let shape = queue.as_ref().map(|queue| *queue.queue_shape());
            if let Some(QueueStorage::Device { .. }) = room {
                retired.extend(queue);
            }
            if let Some(shape) = shape {
                let epoch = shape.epoch().wrapping_add(1);
                let window = WINDOW.min(shape.depth());
                numbers.give_back(QueueNumber { number, epoch, window });
            }
            false
        });
    }

    /// Queues by their numbers.
    pub fn queue_directory(&self) -> QueueDirectory {
        Arc::clone(&self.directory)
    }

    /// The page of doorbells.
    pub const fn bell_page(&self) -> &BellPage<QueueWords> {
        &self.page
    }

    /// Takes a region of this process on.
    pub fn add_region(&mut self, region: EntryRegion) -> Option<EntryKey> {
        self.jobs.regions.add_region(region)
    }

    /// Says where a region's bytes lie on their way out ([`EntryRegions::add_rooms`](super::region::EntryRegions::add_rooms)), and makes room for the operations that they begin.
    ///
    /// `None`: there is none of that key, or no memory.
    pub fn add_rooms(&mut self, key: EntryKey, rooms: PostRooms) -> Option<()> {
        self.jobs.grow_capacity(POST_PLACES as u32 + DEVICE_PIECES_MAX).ok()?;
        self.jobs.regions.add_rooms(key, rooms)
    }

    /// Memory that entries name: where words lie apart from a region's bytes is said there.
    pub const fn regions_mut(&mut self) -> &mut EntryRegions {
        &mut self.jobs.regions
    }

    /// Ends a region: entries that name it fail. What has begun on it is to be complete.
    pub fn remove_region(&mut self, key: EntryKey) -> Option<EntryRegion> {
        self.jobs.regions.remove(key)
    }

    /// A member has told of a region.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn add_remote_region(&mut self, member: MemberRank, far: PeerRegion) -> Result<(), OutOfMemory> {
        self.jobs.regions.add_remote_region(member, far, None)
    }

    /// Goes on with everything: what is under way, what was rung, and what nobody will do any more.
    pub fn run_pass(&mut self) -> ExecutorPass {
        let is_idle = self.jobs.is_idle();
        let mut moved = !is_idle && self.jobs.make_progress();
        self.report_outcomes();
        let pass = self.drain.run_pass(&mut self.jobs);
        self.report_outcomes();
        while let Some(of) = self.drain.asked_companion() {
            let companion = self.make_companion(of);
            self.drain.answer_companion(of, companion);
        }
        if !self.ending.is_empty() {
            self.retire_queues();
        }
        moved |= pass.begun > 0;
        ExecutorPass { moved, busy: pass.busy > 0 || !self.jobs.is_idle() }
    }

    /// Ends all queues, as aborts do: whoever posts or waits there hears of it. What the network lends is given back, and what was under way may still be done, or not.
    pub fn shut_down(&mut self) {
        let why = AbortWord { status: EntryStatus::Abandoned, reason: 0 };
        let directory = self.directory.lock().unwrap_or_else(PoisonError::into_inner);
        for queue in directory.values() {
            queue.abort(why);
        }
        let deepest = directory.values().map(|queue| queue.queue_shape().depth()).max();
        drop(directory);
        self.leaves = true;
        // Signals that entries were to raise are poisoned, of those under way and of those that were not begun: so many passes end them all.
        let passes = deepest.unwrap_or(0) / BATCH + 2;
        for _ in 0..passes {
            self.jobs.abandon_all();
            if !self.run_pass().busy {
                break;
            }
        }
        self.jobs.detach_job();
    }

    /// Goes on with the work of this process for others, which concerns no queue of its own, and poisons signals of dead members. Whether anything moved.
    pub fn serve_members(&mut self) -> bool {
        let moved = self.jobs.make_progress();
        self.report_outcomes();
        if self.looked.elapsed() >= WATCH_EVERY {
            self.looked = Instant::now();
            self.jobs.network_mut().poll_control_streams();
            self.poison_signals_of_dead_members();
            if !self.owned.is_empty() {
                self.check_owners();
            }
        }
        moved
    }

    /// Whether a doorbell was rung that no pass has seen. Looked at before its owner falls asleep.
    #[must_use]
    pub fn is_rung(&self) -> bool {
        let bells = self.page.as_memory();
        let bit = |group: u32| 64 + u64::from(group) * 8;
        (0..self.page.group_count())
            .any(|group| bells.load(bit(group), std::sync::atomic::Ordering::SeqCst) != 0)
    }

    /// The network.
    pub const fn network_mut(&mut self) -> &mut N {
        self.jobs.network_mut()
    }

    fn report_outcomes(&mut self) {
        while let Some((queue, index, outcome)) = self.jobs.take_ended() {
            let ended = self.drain.end_job(queue, index, outcome);
            debug_assert!(ended, "it had begun, and ends once");
        }
    }

    /// A companion is as deep as its queue: a WAIT and what it holds, for half as many entries. Each queue has one, and a companion none: whoever asks again is told
    /// the same.
    fn make_companion(&mut self, of: u32) -> CompanionWord {
        if let Some(&made) = self.companions.get(&of) {
            return CompanionWord::Queue(made);
        }
        if self.companions.values().any(|&companion| companion == of) {
            return CompanionWord::Refused;
        }
        if self.leaves || self.ending.contains(&of) {
            return CompanionWord::Refused;
        }
        let directory = self.directory.lock().unwrap_or_else(PoisonError::into_inner);
        let depth = directory.get(&of).map(|queue| queue.queue_shape().depth());
        drop(directory);
        let made = depth.map(|depth| self.make_queue(depth, 0));
        match made {
            Some(Ok(queue)) => {
                let number = queue.queue_shape().number();
                self.companions.insert(of, number);
                CompanionWord::Queue(number)
            }
            Some(Err(_)) | None => CompanionWord::Refused,
        }
    }

    /// Ends the queues of processes that have ended.
    fn check_owners(&mut self) {
        let Self { owned, directory, page, companions, .. } = self;
        let directory = directory.lock().unwrap_or_else(PoisonError::into_inner);
        let mut more = Vec::new();
        owned.retain_mut(|owned| {
            let Some(queue) = directory.get(&owned.number) else { return false };
            let is_over = owned.check_owner(queue, page);
            // The word by which producers hear of it is also theirs to write.
            let companion = companions.get(&owned.number).copied();
            more.extend(companion.filter(|_| is_over));
            !is_over
        });
        // Entries of a companion wait for those of its queue, which have all ended.
        for queue in more.iter().filter_map(|number| directory.get(number)) {
            queue.abort(AbortWord { status: EntryStatus::PeerDead, reason: 0 });
        }
    }
}
