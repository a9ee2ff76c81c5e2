//! Queues whose producers are other processes of the host: page and queues lie in one memory file (docs/wire.md, "Queues in a memory file"), which a producer maps and
//! uses as a [`GuestQueues`]. Either side hears of the other's death.

use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use trunkline_device_queue::{BellPage, DeviceQueue, QueueView, WaitBudget};
use trunkline_mem::{MemoryRange, OutOfBounds, SharedMemory};
use trunkline_proto::wire::device_queue::{
    AbortWord, DoorbellLayout, EntryStatus, FrontierWord, LINE_BYTES, QueueShape, ShapeError, at, is_before,
};

use crate::host_deadline::HostDeadline;
use crate::queue_error::QueueError;
use crate::words::QueueWords;

/// Queues begin at multiples of this.
const ALIGN: u64 = 4096;
/// How long entries that a dead process has submitted are executed before its queue ends all the same: some may wait for what it would have done.
const GRACE: Duration = Duration::from_millis(20);
/// Looks of a wait before it asks whether the other process lives, and how often it does then.
const SPINS: u32 = 64;
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// There is no such queue for a producer.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum GuestError {
    /// The file has no page of doorbells, or there is no queue where it says that one is.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// The queue lies beyond the file.
    #[error(transparent)]
    Range(#[from] OutOfBounds),
    /// None of that number was made.
    #[error("there is no queue {0} in the file")]
    NoQueue(u32),
}

/// Where the offset of a queue stands.
fn entry_of(bells: DoorbellLayout, number: u32) -> u64 {
    bells.page_bytes().next_multiple_of(LINE_BYTES) + u64::from(number) * 8
}

/// The file, as the executor fills it.
#[derive(Debug)]
pub(super) struct QueueFile {
    shared: SharedMemory,
    words: QueueWords,
    bells: DoorbellLayout,
    deepest: u32,
    /// Where the first queue lies, and how far they lie apart.
    first: u64,
    each: u64,
}

impl QueueFile {
    /// Room for so many queues, none of them deeper.
    pub(super) fn new(queues: u32, deepest: u32) -> Result<Self, QueueError> {
        let bells = DoorbellLayout::new(queues)?;
        let each = QueueShape::new(deepest, 0, 0, 0)?.queue_bytes().next_multiple_of(ALIGN);
        let first = entry_of(bells, queues).next_multiple_of(ALIGN);
        let bytes = usize::try_from(first + u64::from(queues) * each).unwrap_or(usize::MAX);
        let shared = SharedMemory::new("trunkline-devq", bytes).map_err(QueueError::from_file_error)?;
        let words = QueueWords::from_memory(shared.memory().clone());
        Ok(Self { shared, words, bells, deepest, first, each })
    }

    pub(super) const fn file_words(&self) -> &QueueWords {
        &self.words
    }

    pub(super) const fn shared_memory(&self) -> &SharedMemory {
        &self.shared
    }

    /// Memory of a queue, and where that is.
    pub(super) fn queue_words(&self, shape: &QueueShape) -> Result<(u64, QueueWords), QueueError> {
        let at = self.first + u64::from(shape.number()) * self.each;
        // What is deeper would take the room of others.
        if shape.depth() > self.deepest {
            return Err(ShapeError::Depth(shape.depth()).into());
        }
        let part = self.shared.memory().sub_range(at, shape.queue_bytes());
        let part = part.map_err(|_| ShapeError::Depth(shape.depth()))?;
        Ok((at, QueueWords::from_memory(part)))
    }

    /// Lets producers find a queue that is made; at 0 there is none.
    pub(super) fn publish_offset(&self, number: u32, at: u64) {
        trunkline_device_queue::WordMemory::store(&self.words, entry_of(self.bells, number), at, Release);
    }
}

/// Whether a process has ended.
fn has_ended(process: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(process, PollFlags::IN)];
    rustix::event::poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
}

const DEAD: AbortWord = AbortWord { status: EntryStatus::PeerDead, reason: 0 };

/// A queue and the process that posts to it.
#[derive(Debug)]
pub(super) struct OwnedQueue {
    pub(super) number: u32,
    process: OwnedFd,
    /// When its end was seen.
    ended: Option<Instant>,
}

impl OwnedQueue {
    pub(super) const fn new(number: u32, process: OwnedFd) -> Self {
        Self { number, process, ended: None }
    }

    /// Ends the queue once its process has ended and what that had submitted is executed. Whether there is no more to look for.
    pub(super) fn check_owner(
        &mut self,
        queue: &DeviceQueue<QueueWords>,
        page: &BellPage<QueueWords>,
    ) -> bool {
        if self.ended.is_none() && !has_ended(&self.process) {
            return false;
        }
        let bell = page.read_bell(queue.queue_shape().bell());
        if self.ended.is_none() {
            let submitted =
                trunkline_device_queue::WordMemory::load(queue.as_memory(), at::SUBMITTED, Acquire);
            if is_before(bell, submitted) {
                queue.ring_for_dead_producer();
                self.ended = Some(Instant::now());
                return false;
            }
        }
        let since = *self.ended.get_or_insert_with(Instant::now);
        let frontier =
            FrontierWord(trunkline_device_queue::WordMemory::load(queue.as_memory(), at::FRONTIER, Acquire));
        if frontier.index_near(bell) != bell && since.elapsed() < GRACE {
            return false;
        }
        queue.abort(DEAD);
        true
    }
}

/// What a process of the host uses of another one's executor: queues in a memory file of it, which it has mapped.
#[derive(Debug)]
pub struct GuestQueues {
    memory: MemoryRange,
    page: BellPage<QueueWords>,
    /// The process that executes, if its death is to be heard of.
    host: Option<OwnedFd>,
}

impl GuestQueues {
    /// By the mapped file ([`SharedMemory::map`](trunkline_mem::SharedMemory), `SharedExecutor`), and a descriptor of the process that executes (`pidfd_open`): without one its death is
    /// not heard of.
    ///
    /// # Errors
    /// [`GuestError::Shape`].
    pub fn open(memory: &MemoryRange, host: Option<OwnedFd>) -> Result<Self, GuestError> {
        let page = BellPage::open(QueueWords::from_memory(memory.clone()))?;
        Ok(Self { memory: memory.clone(), page, host })
    }

    fn queue_offset(&self, number: u32) -> Result<u64, GuestError> {
        let bells = self.page.doorbell_layout();
        if number >= bells.bell_count() {
            return Err(GuestError::NoQueue(number));
        }
        let word = self.memory.atomic_word(entry_of(bells, number))?.load(Acquire);
        // Queues begin where the executor puts them; anything else that stands there is not by it.
        let is_one = word != 0 && word.is_multiple_of(ALIGN);
        if is_one { Ok(word) } else { Err(GuestError::NoQueue(number)) }
    }

    /// The queue of a number, such as a companion.
    ///
    /// # Errors
    /// [`GuestError`].
    pub fn open_queue(&self, number: u32) -> Result<DeviceQueue<QueueWords>, GuestError> {
        let at = self.queue_offset(number)?;
        let rest = (self.memory.len() as u64).saturating_sub(at);
        let queue = DeviceQueue::open(QueueWords::from_memory(self.memory.sub_range(at, rest)?), &self.page)?;
        if queue.queue_shape().number() == number { Ok(queue) } else { Err(GuestError::NoQueue(number)) }
    }

    /// What kernels by the device header are given of it, as threads of this process.
    ///
    /// # Errors
    /// [`GuestError`].
    pub fn queue_view(&self, number: u32) -> Result<QueueView, GuestError> {
        let queue = self.open_queue(number)?;
        // Where the file says that it is may have changed since.
        let at = queue.as_memory().as_memory().addr() as u64;
        let page = self.memory.addr() as u64;
        QueueView::new(queue.queue_shape(), at, self.page.doorbell_layout(), page, None)
            .ok_or(GuestError::NoQueue(number))
    }

    /// How long a wait may take. When the process that executes dies all queues end with [`EntryStatus::PeerDead`], and so do waits for their entries; those for signals, if they are
    /// [`wait_unless_aborted`](trunkline_device_queue::SignalSlot::wait_unless_aborted).
    #[must_use]
    pub fn wait_budget(&self, time: Duration) -> GuestBudget<'_> {
        self.with_deadline(HostDeadline::from_duration(time))
    }

    /// The same by a patience that there is.
    #[must_use]
    pub const fn with_deadline(&self, patience: HostDeadline) -> GuestBudget<'_> {
        GuestBudget { guest: self, patience, looks: 0, looked: None }
    }

    /// Ends all queues if the process that executes has ended; whether it has.
    pub fn check_host(&self) -> bool {
        let is_left = self.host.as_ref().is_some_and(has_ended);
        if is_left {
            for queue in (0..self.page.bell_count()).filter_map(|number| self.open_queue(number).ok()) {
                queue.abort(DEAD);
            }
        }
        is_left
    }
}

/// [`GuestQueues::wait_budget`].
#[derive(Debug)]
pub struct GuestBudget<'g> {
    guest: &'g GuestQueues,
    patience: HostDeadline,
    looks: u32,
    /// When it was last asked whether the other process lives.
    looked: Option<Instant>,
}

impl WaitBudget for GuestBudget<'_> {
    fn spend_poll(&mut self) -> bool {
        self.looks = self.looks.saturating_add(1);
        if self.looks > SPINS && self.looked.is_none_or(|looked| looked.elapsed() >= LOOK_EVERY) {
            self.guest.check_host();
            self.looked = Some(Instant::now());
        }
        self.patience.spend_poll()
    }
}

/// A descriptor of a process by its number.
///
/// # Errors
/// What the system says.
pub fn open_pidfd(number: u32) -> rustix::io::Result<OwnedFd> {
    let pid = i32::try_from(number).ok().and_then(rustix::process::Pid::from_raw);
    let pid = pid.ok_or(rustix::io::Errno::SRCH)?;
    rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty())
}
