//! The completion queue of a rail: polled in batches, and armed for a wake-up when the owner wants to wait. It interprets no completion.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use trunkline_sys::verbs::{CompChannel, Cq, PollCq, ReqNotifyCq, Wc};

use crate::device::{VerbsDevice, last_error};
use crate::events::ObjectFault;

/// Most completions that one call takes.
const BATCH: usize = 32;

/// A completion queue, and the completions that were polled but not yet returned.
pub(crate) struct CompletionQueue {
    device: Arc<VerbsDevice>,
    raw: *mut Cq,
    channel: *mut CompChannel,
    /// A duplicate of the channel's descriptor, because a waiter may use it longer than the channel lives.
    descriptor: Arc<OwnedFd>,
    poll: PollCq,
    notify: ReqNotifyCq,
    capacity: u32,
    fault: Arc<ObjectFault>,
    /// The last batch, and how many of its completions were returned.
    batch: Box<[Wc; BATCH]>,
    told: usize,
    taken: usize,
    /// Completions that were polled when a link was destroyed; older than all others.
    kept: VecDeque<Wc>,
}

// SAFETY: a completion queue has one owner at a time, and libibverbs functions may be called from any thread.
unsafe impl Send for CompletionQueue {}

impl CompletionQueue {
    /// Creates a completion queue with room for `capacity` completions.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn new(device: &Arc<VerbsDevice>, capacity: u32) -> io::Result<Self> {
        let ops = device.context_ops();
        let (Some(poll), Some(notify)) = (ops.poll_cq, ops.req_notify_cq) else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        let calls = device.calls();
        // SAFETY: the device is open.
        let channel = unsafe { (calls.create_comp_channel)(device.context()) };
        if channel.is_null() {
            return Err(last_error());
        }
        // SAFETY: the channel was just created.
        let raw_descriptor = unsafe { (*channel).fd };
        // SAFETY: the descriptor belongs to the channel, which is open until the end of this function or longer.
        let descriptor = match unsafe { duplicate_descriptor(raw_descriptor) } {
            Ok(descriptor) => Arc::new(descriptor),
            Err(error) => {
                // SAFETY: the channel was just created, and no completion queue uses it.
                unsafe { (calls.destroy_comp_channel)(channel) };
                return Err(error);
            }
        };
        let size = c_int::try_from(capacity).unwrap_or(c_int::MAX);
        // SAFETY: device and channel are open.
        let raw = unsafe { (calls.create_cq)(device.context(), size, std::ptr::null_mut(), channel, 0) };
        if raw.is_null() {
            let error = last_error();
            // SAFETY: the channel was just created, and no completion queue uses it.
            unsafe { (calls.destroy_comp_channel)(channel) };
            return Err(error);
        }
        device.queues.fetch_add(1, Ordering::Relaxed);
        Ok(Self {
            device: Arc::clone(device),
            raw,
            channel,
            descriptor,
            poll,
            notify,
            capacity,
            fault: device.faults.watch_object(raw),
            batch: Box::new([Wc::ZERO; BATCH]),
            told: 0,
            taken: 0,
            kept: VecDeque::new(),
        })
    }

    /// Returns the library's object.
    pub(crate) fn as_raw(&self) -> *mut Cq {
        self.raw
    }

    /// Returns why the device has failed it, if it has.
    pub(crate) fn fault_reason(&self) -> Option<&'static str> {
        self.fault.fault_reason()
    }

    /// Returns the oldest completion that was not removed.
    #[inline]
    pub(crate) fn oldest_completion(&self) -> Option<Wc> {
        match self.kept.front() {
            Some(kept) => Some(*kept),
            None => (self.told < self.taken).then(|| self.batch[self.told]),
        }
    }

    /// Removes the oldest completion.
    #[inline]
    pub(crate) fn pop_oldest(&mut self) {
        if self.kept.pop_front().is_none() {
            self.told += 1;
        }
    }

    /// Polls the next batch; all earlier completions must have been removed. Returns whether there may be more.
    #[inline]
    pub(crate) fn poll_batch(&mut self) -> bool {
        let room = c_int::try_from(BATCH).unwrap_or(c_int::MAX);
        // SAFETY: the queue is open while `self` lives, and the batch has room for `BATCH` completions.
        let count = unsafe { (self.poll)(self.raw, room, self.batch.as_mut_ptr()) };
        self.told = 0;
        self.taken = usize::try_from(count).unwrap_or(0).min(BATCH);
        self.taken == BATCH
    }

    /// Polls all completions and keeps those that `wanted` accepts. Called when a link is destroyed, because a provider may leave its
    /// completions in the queue. Returns false if memory is exhausted before the completions are: the rest stays with the device.
    pub(crate) fn retain_completions(&mut self, wanted: impl Fn(&Wc) -> bool) -> bool {
        self.kept.retain(|wc| wanted(wc));
        // The bound suffices: no operation is posted meanwhile, so the queue holds at most its capacity. The first round handles the batch that
        // was polled before.
        for _ in 0..=1 + self.capacity as usize / BATCH {
            if self.kept.try_reserve(BATCH).is_err() {
                return false;
            }
            self.kept.extend(self.batch[self.told..self.taken].iter().filter(|wc| wanted(wc)));
            self.poll_batch();
            if self.taken == 0 {
                break;
            }
        }
        true
    }

    /// Returns the descriptor that [`CompletionQueue::request_notify`] arms.
    pub(crate) fn wait_descriptor(&self) -> &Arc<OwnedFd> {
        &self.descriptor
    }

    /// Arms the descriptor to become readable with the next completion. Completions that have arrived already do not make it readable
    /// (ibv_req_notify_cq(3)), so the caller polls once more.
    pub(crate) fn request_notify(&mut self) {
        while is_readable(&self.descriptor) {
            let mut cq = std::ptr::null_mut();
            let mut user = std::ptr::null_mut();
            // SAFETY: the channel is open, and both places are valid for writes. The call does not block, because the descriptor is readable.
            let taken =
                unsafe { (self.device.calls().get_cq_event)(self.channel, &raw mut cq, &raw mut user) };
            if taken != 0 {
                break;
            }
            // SAFETY: exactly one event of this queue was taken. Unacknowledged events would block `ibv_destroy_cq` (ibv_get_cq_event(3)).
            unsafe { (self.device.calls().ack_cq_events)(cq, 1) };
        }
        // SAFETY: the queue is open while `self` lives.
        unsafe { (self.notify)(self.raw, 0) };
    }
}

/// Duplicates a descriptor of the library's. A negative one is an error, so that a faulty library cannot cause undefined behaviour.
///
/// # Safety
/// It is open, or negative.
unsafe fn duplicate_descriptor(descriptor: i32) -> io::Result<OwnedFd> {
    if descriptor < 0 {
        return Err(io::Error::from(io::ErrorKind::InvalidData));
    }
    // SAFETY: the caller promises that it is open; it is not negative.
    let borrowed = unsafe { BorrowedFd::borrow_raw(descriptor) };
    borrowed.try_clone_to_owned()
}

/// Whether a descriptor is readable.
fn is_readable(descriptor: &OwnedFd) -> bool {
    let mut polled = [rustix::event::PollFd::new(descriptor, rustix::event::PollFlags::IN)];
    rustix::event::poll(&mut polled, Some(&rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 }))
        .is_ok_and(|ready| ready > 0)
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        self.device.faults.remove(self.raw);
        // SAFETY: the queue pairs that used it have been destroyed: their owners drop them before the queue.
        unsafe { (self.device.calls().destroy_cq)(self.raw) };
        // SAFETY: the only completion queue on it was destroyed.
        unsafe { (self.device.calls().destroy_comp_channel)(self.channel) };
        self.device.queues.fetch_sub(1, Ordering::Relaxed);
    }
}
