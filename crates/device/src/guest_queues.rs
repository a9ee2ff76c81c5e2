//! Queues whose producers are other processes of the host. Page and queues lie in one memory file (docs/wire.md, "Queues in a memory
//! file"), which a producer maps and uses through [`GuestQueues`]. Each side detects the death of the other.

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
/// Time to execute the submitted entries of a dead process before its queue is ended: some entries may wait for work of that process that
/// will never be done.
const GRACE: Duration = Duration::from_millis(20);
/// Polls of a wait before it checks whether the other process lives, and the interval of these checks. Each check is a system call.
const SPINS: u32 = 64;
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// A producer cannot use the queue.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum GuestError {
    /// The file has no page of doorbells, or no valid queue at the published offset.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// The queue exceeds the file.
    #[error(transparent)]
    Range(#[from] OutOfBounds),
    /// No queue with this number exists.
    #[error("the file has no queue {0}")]
    NoQueue(u32),
}

/// Returns the offset of the word that contains the offset of a queue.
fn entry_of(bells: DoorbellLayout, number: u32) -> u64 {
    bells.page_bytes().next_multiple_of(LINE_BYTES) + u64::from(number) * 8
}

/// The memory file, as its executor uses it.
#[derive(Debug)]
pub(super) struct QueueFile {
    shared: SharedMemory,
    words: QueueWords,
    bells: DoorbellLayout,
    deepest: u32,
    /// Offset of the first queue, and the distance between queues.
    first: u64,
    each: u64,
}

impl QueueFile {
    /// Creates a file with room for `queues` queues, none deeper than `deepest`.
    pub(super) fn new(queues: u32, deepest: u32) -> Result<Self, QueueError> {
        let bells = DoorbellLayout::new(queues)?;
        let each = QueueShape::new(deepest, 0, 0, 0)?.queue_bytes().next_multiple_of(ALIGN);
        let first = entry_of(bells, queues).next_multiple_of(ALIGN);
        // A size that does not fit fails in the allocation below.
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

    /// Returns the offset and the memory of a queue.
    pub(super) fn queue_words(&self, shape: &QueueShape) -> Result<(u64, QueueWords), QueueError> {
        let at = self.first + u64::from(shape.number()) * self.each;
        // A deeper queue would overlap the next one.
        if shape.depth() > self.deepest {
            return Err(ShapeError::Depth(shape.depth()).into());
        }
        let part = self.shared.memory().sub_range(at, shape.queue_bytes());
        let part = part.map_err(|_| ShapeError::Depth(shape.depth()))?;
        Ok((at, QueueWords::from_memory(part)))
    }

    /// Publishes the offset of a created queue for producers; 0 means that it does not exist.
    pub(super) fn publish_offset(&self, number: u32, at: u64) {
        trunkline_device_queue::WordMemory::store(&self.words, entry_of(self.bells, number), at, Release);
    }
}

/// Returns whether a process has ended.
fn has_ended(process: &OwnedFd) -> bool {
    // A pidfd is readable once its process has ended, and unlike a process id it is never reused.
    let mut fds = [PollFd::new(process, PollFlags::IN)];
    rustix::event::poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
}

const DEAD: AbortWord = AbortWord { status: EntryStatus::PeerDead, reason: 0 };

/// A queue and the process that posts to it.
#[derive(Debug)]
pub(super) struct OwnedQueue {
    pub(super) number: u32,
    process: OwnedFd,
    /// When its end was first seen.
    ended: Option<Instant>,
}

impl OwnedQueue {
    pub(super) const fn new(number: u32, process: OwnedFd) -> Self {
        Self { number, process, ended: None }
    }

    /// Ends the queue once its process has ended and its submitted entries are executed. Returns whether the queue was ended.
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
            // The process may have died between raising the counter and ringing. So the executor rings for it, once.
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

/// Queues of another process's executor, in its mapped memory file.
#[derive(Debug)]
pub struct GuestQueues {
    memory: MemoryRange,
    page: BellPage<QueueWords>,
    /// The process of the executor, if its death must be detected.
    host: Option<OwnedFd>,
}

impl GuestQueues {
    /// Opens the mapped file ([`SharedMemory::map`](trunkline_mem::SharedMemory)). `host` is a `pidfd_open` descriptor of the executor's
    /// process; without it the death of that process is not detected.
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
        // Acquire pairs with the release in `publish_offset`, so the header of the queue is complete.
        let word = self.memory.atomic_word(entry_of(bells, number))?.load(Acquire);
        // Offsets that the executor publishes are multiples of `ALIGN`. Any other value was written by another process that maps the file.
        let is_one = word != 0 && word.is_multiple_of(ALIGN);
        if is_one { Ok(word) } else { Err(GuestError::NoQueue(number)) }
    }

    /// Opens the queue with this number, such as a companion.
    ///
    /// # Errors
    /// [`GuestError`].
    pub fn open_queue(&self, number: u32) -> Result<DeviceQueue<QueueWords>, GuestError> {
        let at = self.queue_offset(number)?;
        let rest = (self.memory.len() as u64).saturating_sub(at);
        let queue = DeviceQueue::open(QueueWords::from_memory(self.memory.sub_range(at, rest)?), &self.page)?;
        // The header of the queue lies in memory that others may write, so its number is checked.
        if queue.queue_shape().number() == number { Ok(queue) } else { Err(GuestError::NoQueue(number)) }
    }

    /// Returns the view with which kernels in threads of this process use the queue through the device header.
    ///
    /// # Errors
    /// [`GuestError`].
    pub fn queue_view(&self, number: u32) -> Result<QueueView, GuestError> {
        let queue = self.open_queue(number)?;
        // The address is that of the checked queue. The offset in the file may have changed since, so it is not read again.
        let at = queue.as_memory().as_memory().addr() as u64;
        let page = self.memory.addr() as u64;
        QueueView::new(queue.queue_shape(), at, self.page.doorbell_layout(), page, None)
            .ok_or(GuestError::NoQueue(number))
    }

    /// Returns a budget of `time` for a wait. When the executor's process dies, all queues end with [`EntryStatus::PeerDead`], which ends
    /// waits for their entries. Waits for signals end then only if they are
    /// [`wait_unless_aborted`](trunkline_device_queue::SignalSlot::wait_unless_aborted).
    #[must_use]
    pub fn wait_budget(&self, time: Duration) -> GuestBudget<'_> {
        self.with_deadline(HostDeadline::from_duration(time))
    }

    /// As [`wait_budget`](Self::wait_budget), with an existing deadline.
    #[must_use]
    pub const fn with_deadline(&self, patience: HostDeadline) -> GuestBudget<'_> {
        GuestBudget { guest: self, patience, looks: 0, looked: None }
    }

    /// Ends all queues if the executor's process has ended. Returns whether it has.
    pub fn check_host(&self) -> bool {
        let is_left = self.host.as_ref().is_some_and(has_ended);
        if is_left {
            for queue in (0..self.page.bell_count()).filter_map(|number| self.open_queue(number).ok()) {
                // The executor is dead, so the guest itself sets the word that ends its waits.
                queue.abort(DEAD);
            }
        }
        is_left
    }
}

/// A budget that also checks the executor's process, from [`GuestQueues::wait_budget`].
#[derive(Debug)]
pub struct GuestBudget<'g> {
    guest: &'g GuestQueues,
    patience: HostDeadline,
    looks: u32,
    /// When the liveness of the other process was last checked.
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

/// Opens a descriptor of a process by its number.
///
/// # Errors
/// The error of the system call.
pub fn open_pidfd(number: u32) -> rustix::io::Result<OwnedFd> {
    let pid = i32::try_from(number).ok().and_then(rustix::process::Pid::from_raw);
    let pid = pid.ok_or(rustix::io::Errno::SRCH)?;
    rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty())
}
