//! The executor: drains all queues of one page of doorbells onto one network. Called by `driver`, which makes the passes; it starts no
//! thread and never sleeps.

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

/// Most entries of a queue in progress at a time.
pub const WINDOW: u32 = 64;

/// Interval of the polls outside the links: control streams for error words, the liveness of members whose signals are awaited here, and
/// the liveness of queue owners. They need system calls, so not every pass makes them.
const WATCH_EVERY: Duration = Duration::from_millis(5);

/// Queues by number, for producers.
pub type QueueDirectory = Arc<Mutex<BTreeMap<u32, DeviceQueue<QueueWords>>>>;

/// The result of a pass.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct ExecutorPass {
    /// Something advanced, so another pass is likely to find work.
    pub moved: bool,
    /// Operations are in progress, or an entry waits for another queue.
    pub busy: bool,
}

/// The executor of one page of doorbells.
#[derive(Debug)]
pub struct QueueExecutor<N> {
    page: BellPage<QueueWords>,
    drain: QueueDrain<QueueWords>,
    jobs: EntryOps<N>,
    directory: QueueDirectory,
    /// Free numbers of queues, which are also those of their doorbells.
    numbers: QueueNumberPool,
    /// Queues that were ended, and still have operations in progress.
    ending: Vec<u32>,
    /// Removed queues, whose memory the caller frees: a driver may first wait for a kernel, which may wait for this executor.
    retired: Vec<DeviceQueue<QueueWords>>,
    /// The memory of queues whose producers are not threads of this process.
    room: Option<QueueStorage>,
    watched: Vec<WatchedSignals>,
    /// Queues whose producer is another process.
    owned: Vec<OwnedQueue>,
    looked: Instant,
    /// Companions, by the number of their main queue.
    companions: BTreeMap<u32, u32>,
    /// Set at shutdown: no queue is created any more.
    leaves: bool,
}

/// Memory of queues that other processors or processes use.
#[derive(Debug)]
enum QueueStorage {
    /// Pinned memory of the host, which a device maps. Contains the device's addresses of the page of doorbells, and of each queue by
    /// number.
    Device { page: u64, queues: Vec<u64> },
    /// A memory file, which other processes map.
    File(QueueFile),
}

impl<N: MemberNetwork> QueueExecutor<N> {
    /// Creates an executor for at most `queues` queues, companions included, clamped to 1 to 65,536.
    ///
    /// # Errors
    /// [`QueueError::Shape`].
    pub fn new(network: N, queues: u32) -> Result<Self, QueueError> {
        let queues = queues.clamp(1, trunkline_proto::wire::device_queue::BELLS_MAX);
        let page =
            BellPage::create(QueueWords::try_heap(DoorbellLayout::new(queues)?.page_bytes())?, queues)?;
        Self::with_page(network, page, None)
    }

    /// As [`new`](Self::new), for queues whose producers are threads of a device. They lie in pinned memory, with a byte per doorbell.
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

    /// As [`new`](Self::new), for queues whose producers are threads of other processes of the host. They lie in a memory file, and none is
    /// deeper than `deepest`.
    ///
    /// # Errors
    /// [`QueueError`].
    pub fn for_processes(network: N, queues: u32, deepest: u32) -> Result<Self, QueueError> {
        let queues = queues.clamp(1, trunkline_proto::wire::device_queue::BELLS_MAX);
        let file = QueueFile::new(queues, deepest)?;
        let page = BellPage::create(file.file_words().clone(), queues)?;
        Self::with_page(network, page, Some(QueueStorage::File(file)))
    }

    /// Returns the memory file of [`for_processes`](Self::for_processes), for producers to map and use by [`GuestQueues`](super::GuestQueues).
    #[must_use]
    pub const fn memory_file(&self) -> Option<&SharedMemory> {
        match &self.room {
            Some(QueueStorage::File(file)) => Some(file.shared_memory()),
            _ => None,
        }
    }

    /// Sets the process, given by its `pidfd_open` descriptor, that posts to a queue. Once the process has ended and its submitted entries
    /// are executed, the queue and its companion end with [`EntryStatus::PeerDead`]. The engine does not wait for entries that it had only reserved.
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

    /// Creates a queue with the first index `first`.
    ///
    /// # Errors
    /// [`QueueError`].
    pub fn make_queue(&mut self, depth: u32, first: u64) -> Result<DeviceQueue<QueueWords>, QueueError> {
        if matches!(self.room, Some(QueueStorage::Device { .. })) {
            return Err(QueueError::Device);
        }
        self.add_queue(depth, first, None)
    }

    /// Returns the size of a queue for threads of a device.
    ///
    /// # Errors
    /// [`QueueError::Shape`].
    pub fn lane_bytes(depth: u32) -> Result<usize, ShapeError> {
        Ok(QueueShape::new(depth, 0, 0, 0)?.for_device().queue_bytes() as usize)
    }

    /// Creates a queue for threads of a device together with its companion, and returns their numbers. The companion exists from the
    /// beginning, because memory cannot be pinned while a kernel runs. Each queue lies in pinned memory of [`lane_bytes`](Self::lane_bytes)
    /// that the caller has allocated.
    ///
    /// # Errors
    /// [`QueueError`]; then neither queue remains.
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

    /// Returns the number of queues, companions included.
    #[must_use]
    pub fn queue_count(&self) -> usize {
        self.directory.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Returns the view with which a kernel uses such a queue. `own` is the memory for the words that the device's threads change. Returns
    /// `None` for an unknown number.
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
            // No producer has seen the number, so it can be reused at once.
            self.numbers.return_unused(taken);
        })?;
        let mut directory = self.directory.lock().unwrap_or_else(PoisonError::into_inner);
        directory.insert(number, queue.clone());
        Ok(queue)
    }

    /// Adds a queue to the drain, and reserves memory for `more` entries in progress and for its removal.
    fn take_on(&mut self, queue: &DeviceQueue<QueueWords>, more: u32) -> Result<(), OutOfMemory> {
        let count = self.queue_count() + 1;
        // All memory is reserved before the drain knows the queue: later passes and `end_queue` cannot fail for lack of it.
        self.numbers.reserve_room(count)?;
        try_hold(&mut self.ending, count)?;
        // Only pinned memory is retired: all other memory is freed without a call of the driver.
        if matches!(self.room, Some(QueueStorage::Device { .. })) {
            try_hold(&mut self.retired, count)?;
        }
        self.jobs.grow_capacity(more)?;
        // An atomic is held until the writes before it are placed, whatever order the network guarantees.
        let rules = ExecutorRules { is_ordered: false, me: self.jobs.own_rank(), window: WINDOW };
        let taken = self.drain.add_queue(queue.clone(), rules)?;
        debug_assert!(taken, "no other queue may have its number and its doorbell");
        Ok(())
    }

    /// Creates the words of a queue where its producers find them.
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
        // The offset is published last, so a guest finds only complete queues.
        if let (Some(at), Some(QueueStorage::File(file))) = (in_file, &self.room) {
            file.publish_offset(number, at);
        }
        Ok(queue)
    }

    /// Returns whether all submitted entries of a queue and its companion have completed, or will not be executed. A device keeps its
    /// producers' words in its own memory, so for a device the doorbell gives the number of submitted entries.
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

    /// Returns whether an ended queue or its companion still has operations in progress.
    #[must_use]
    pub fn is_ending(&self, number: u32) -> bool {
        let companion = self.companions.get(&number);
        self.ending.contains(&number) || companion.is_some_and(|companion| self.ending.contains(companion))
    }

    /// Returns all operations in progress, of all queues and of none.
    #[must_use]
    pub fn begun_ops(&self) -> Vec<BegunOp> {
        self.jobs.begun_ops()
    }

    /// Returns whether any of `begun` is still in progress.
    #[must_use]
    pub fn is_any_begun(&self, begun: &[BegunOp]) -> bool {
        begun.iter().any(|begun| self.jobs.is_begun(*begun))
    }

    /// Returns removed queues, for the caller to drop after it has released the executor.
    #[must_use]
    pub fn take_retired(&mut self) -> Vec<DeviceQueue<QueueWords>> {
        std::mem::take(&mut self.retired)
    }

    /// Aborts a queue and its companion with the status of an abandoned reservation, so waits there fail. Once none of its operations is in
    /// progress, its number and doorbell are reused with the next epoch. So no thread may post to the queue from here on.
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
        // Each pass begins at most `BATCH` entries per queue. This many passes flush a full queue, so a queue without operations in
        // progress is removed before the call returns.
        for _ in 0..deepest / BATCH + 2 {
            if self.ending.is_empty() {
                break;
            }
            self.run_pass();
        }
    }

    /// Returns the companion of a queue, if it was created.
    #[must_use]
    pub fn companion_of(&self, number: u32) -> Option<u32> {
        self.companions.get(&number).copied()
    }

    /// Removes ended queues that have no operations in progress.
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
                // The epoch makes tickets of the removed queue stale.
                let epoch = shape.epoch().wrapping_add(1);
                let window = WINDOW.min(shape.depth());
                numbers.give_back(QueueNumber { number, epoch, window });
            }
            false
        });
    }

    /// Returns the table of queues by number.
    pub fn queue_directory(&self) -> QueueDirectory {
        Arc::clone(&self.directory)
    }

    /// Returns the page of doorbells.
    pub const fn bell_page(&self) -> &BellPage<QueueWords> {
        &self.page
    }

    /// Adds a region of this process.
    pub fn add_region(&mut self, region: EntryRegion) -> Option<EntryKey> {
        self.jobs.regions.add_region(region)
    }

    /// Sets where a region's bytes are staged on their way out ([`EntryRegions::add_rooms`](super::region::EntryRegions::add_rooms)), and
    /// reserves memory for the operations that use these rooms.
    ///
    /// Returns `None` for an unknown key, or without memory.
    pub fn add_rooms(&mut self, key: EntryKey, rooms: PostRooms) -> Option<()> {
        self.jobs.grow_capacity(POST_PLACES as u32 + DEVICE_PIECES_MAX).ok()?;
        self.jobs.regions.add_rooms(key, rooms)
    }

    /// Returns the regions that entries may name, for example to set the memory of separate words.
    pub const fn regions_mut(&mut self) -> &mut EntryRegions {
        &mut self.jobs.regions
    }

    /// Removes a region: entries that name it fail. No operation on it may be in progress.
    pub fn remove_region(&mut self, key: EntryKey) -> Option<EntryRegion> {
        self.jobs.regions.remove(key)
    }

    /// Adds a region that another member has published.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn add_remote_region(&mut self, member: MemberRank, far: PeerRegion) -> Result<(), OutOfMemory> {
        self.jobs.regions.add_remote_region(member, far, None)
    }

    /// Makes one pass: completes operations, begins entries of rung queues, creates requested companions, and removes ended queues.
    pub fn run_pass(&mut self) -> ExecutorPass {
        let is_idle = self.jobs.is_idle();
        let mut moved = !is_idle && self.jobs.make_progress();
        // Outcomes are reported before the drain, so that entries behind a fence can begin in this pass.
        self.report_outcomes();
        let pass = self.drain.run_pass(&mut self.jobs);
        // Entries that have ended while they began complete in this pass.
        self.report_outcomes();
        // A producer waits for the reply, so it is given in the same pass.
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

    /// Shuts the executor down: aborts all queues, so posts and waits there fail, and releases the resources of the network. Operations in
    /// progress may or may not take effect.
    pub fn shut_down(&mut self) {
        let why = AbortWord { status: EntryStatus::Abandoned, reason: 0 };
        let directory = self.directory.lock().unwrap_or_else(PoisonError::into_inner);
        for queue in directory.values() {
            queue.abort(why);
        }
        let deepest = directory.values().map(|queue| queue.queue_shape().depth()).max();
        drop(directory);
        // From here on requests for companions are refused: a queue that is created now would not be aborted.
        self.leaves = true;
        // Signals that entries were to raise are poisoned, for entries in progress and for those that have not begun. This many passes
        // flush the deepest queue.
        let passes = deepest.unwrap_or(0) / BATCH + 2;
        for _ in 0..passes {
            self.jobs.abandon_all();
            if !self.run_pass().busy {
                break;
            }
        }
        self.jobs.detach_job();
    }

    /// Progresses the requests of other members, which concern no queue here, and poisons signals of dead members. Returns whether anything
    /// advanced.
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

    /// Returns whether a doorbell was rung since the last pass. The driver checks it before it sleeps.
    #[must_use]
    pub fn is_rung(&self) -> bool {
        // Group words begin behind the page's header of 64 bytes. They are read with `SeqCst`, as one side of the handshake with the
        // sleeping thread (`driver.rs`).
        let bells = self.page.as_memory();
        let bit = |group: u32| 64 + u64::from(group) * 8;
        (0..self.page.group_count())
            .any(|group| bells.load(bit(group), std::sync::atomic::Ordering::SeqCst) != 0)
    }

    /// Returns the network.
    pub const fn network_mut(&mut self) -> &mut N {
        self.jobs.network_mut()
    }

    fn report_outcomes(&mut self) {
        while let Some((queue, index, outcome)) = self.jobs.take_ended() {
            let ended = self.drain.end_job(queue, index, outcome);
            debug_assert!(ended, "it had begun, and ends once");
        }
    }

    /// Creates the companion of a queue, with the same depth: each counter takes two entries there, a WAIT and an ADD. A queue has one
    /// companion, and a companion none. A repeated request gets the same answer.
    fn make_companion(&mut self, of: u32) -> CompanionWord {
        if let Some(&made) = self.companions.get(&of) {
            return CompanionWord::Queue(made);
        }
        if self.companions.values().any(|&companion| companion == of) {
            return CompanionWord::Refused;
        }
        // The end in progress would not abort a queue that is created now.
        if self.leaves || self.ending.contains(&of) {
            return CompanionWord::Refused;
        }
        let directory = self.directory.lock().unwrap_or_else(PoisonError::into_inner);
        let depth = directory.get(&of).map(|queue| queue.queue_shape().depth());
        // `make_queue` locks the table again.
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

    /// Ends the queues of dead processes.
    fn check_owners(&mut self) {
        let Self { owned, directory, page, companions, .. } = self;
        let directory = directory.lock().unwrap_or_else(PoisonError::into_inner);
        let mut more = Vec::new();
        owned.retain_mut(|owned| {
            let Some(queue) = directory.get(&owned.number) else { return false };
            let is_over = owned.check_owner(queue, page);
            // The abort word cannot show that the queue is done: a guest may write it too. So `check_owner` decides.
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
