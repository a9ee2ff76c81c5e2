//! Copies that the device makes while its kernels run: enqueued in order, and polled until they complete. No function
//! here waits. One event is recorded behind all copies that were enqueued between two polls, because an event costs a
//! driver as much time as a copy.

use std::collections::VecDeque;
use std::fmt;
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use trunkline_sys::cuda::Stream;
use trunkline_sys::cuda_run::{EVENT_DISABLE_TIMING, Event};

use super::{DeviceContext, GpuDevice};
use crate::gpu::DriverCallError;
use crate::{MemoryKind, MemoryRange};

/// The maximum number of copies in flight.
pub const MOVES_MAX: usize = 64;

/// A place in a memory range, at which a copy begins to read or to write.
#[derive(Clone, Copy, Debug)]
pub struct MemoryLocation<'a> {
    /// The memory.
    pub memory: &'a MemoryRange,
    /// Offset of the first byte, in bytes.
    pub offset: u64,
}

/// One user's view of a shared stream of copies: it receives the completions of its own copies only. Any thread may use it.
pub struct DeviceCopyQueue {
    shared: Arc<SharedCopyQueue>,
    user: usize,
}

struct SharedCopyQueue {
    device: Arc<DeviceContext>,
    state: Mutex<PendingCopies>,
}

struct PendingCopies {
    stream: *mut Stream,
    free: Vec<*mut Event>,
    /// Copies in flight, in the order in which they were enqueued.
    under_way: VecDeque<PendingCopy>,
    /// Recorded events, oldest first; each follows the copies that it covers.
    marks: VecDeque<CopyEvent>,
    /// Number of the newest copies that no event covers yet.
    unmarked: usize,
    /// Source and destination of copies whose completion is unknown: they are held until a later event completes.
    lost: Vec<[MemoryRange; 2]>,
    /// Completions and failures not yet returned by [`DeviceCopyQueue::take_ended`], by user.
    ended: Vec<Vec<(u64, Result<(), u32>)>>,
}

struct PendingCopy {
    user: usize,
    cookie: u64,
    /// Held so that the memory stays allocated until the copy has completed.
    ends: [MemoryRange; 2],
}

/// An event, the number of copies between it and the event before, and the memory of copies whose completion it must prove.
struct CopyEvent {
    event: *mut Event,
    copies: usize,
    lost: Vec<[MemoryRange; 2]>,
}

// SAFETY: any thread may call the driver; the handles are used under the lock only.
unsafe impl Send for PendingCopies {}

impl GpuDevice {
    /// Creates a queue for copies that run beside kernels.
    ///
    /// # Errors
    /// [`DriverCallError`].
    pub fn copy_queue(&self) -> Result<DeviceCopyQueue, DriverCallError> {
        let device = Arc::clone(&self.inner);
        let state = PendingCopies {
            stream: device.new_stream()?,
            free: Vec::with_capacity(MOVES_MAX),
            under_way: VecDeque::with_capacity(MOVES_MAX),
            marks: VecDeque::with_capacity(MOVES_MAX),
            unmarked: 0,
            lost: Vec::new(),
            ended: vec![Vec::with_capacity(MOVES_MAX)],
        };
        let shared = SharedCopyQueue { device, state: Mutex::new(state) };
        for _ in 0..MOVES_MAX {
            let device = &shared.device;
            let mut event = ptr::null_mut();
            device.call_driver("cuEventCreate", || {
                // SAFETY: the call writes a handle to a local variable.
                unsafe { (device.calls.event_create)(&raw mut event, EVENT_DISABLE_TIMING) }
            })?;
            shared.lock_copies().free.push(event);
        }
        Ok(DeviceCopyQueue { shared: Arc::new(shared), user: 0 })
    }
}

impl SharedCopyQueue {
    fn lock_copies(&self) -> MutexGuard<'_, PendingCopies> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl DeviceCopyQueue {
    /// Returns a handle of another user on the same stream. Users that change the same words through the host must share a stream: on two streams,
    /// an older value could be written last.
    #[must_use]
    pub fn clone_for_user(&self) -> Self {
        let mut state = self.shared.lock_copies();
        state.ended.push(Vec::with_capacity(MOVES_MAX));
        Self { shared: Arc::clone(&self.shared), user: state.ended.len() - 1 }
    }

    /// Enqueues a copy of `len` bytes behind all earlier ones; each end is memory of this device or of the host. Returns `false` if the queue is
    /// full. A copy that the driver rejects is reported by [`DeviceCopyQueue::take_ended`].
    pub fn begin_copy(
        &self,
        cookie: u64,
        from: MemoryLocation<'_>,
        to: MemoryLocation<'_>,
        len: u64,
    ) -> bool {
        let mut state = self.shared.lock_copies();
        let user = self.user;
        if state.ended[user].len() >= MOVES_MAX || state.under_way.len() + state.lost.len() >= MOVES_MAX {
            return false;
        }
        match self.enqueue_copy(&state, from, to, len) {
            Ok(()) => {
                let ends = [from.memory.clone(), to.memory.clone()];
                state.under_way.push_back(PendingCopy { user, cookie, ends });
                state.unmarked += 1;
            }
            Err(code) => state.ended[user].push((cookie, Err(code))),
        }
        true
    }

    fn enqueue_copy(
        &self,
        state: &PendingCopies,
        from: MemoryLocation<'_>,
        to: MemoryLocation<'_>,
        len: u64,
    ) -> Result<(), u32> {
        let from = self.resolve_address(from.memory, from.offset, len)?;
        let to = self.resolve_address(to.memory, to.offset, len)?;
        // SAFETY: both addresses lie inside memory ranges that are held until the copy has completed.
        let begun = unsafe { self.shared.device.enqueue_copy(to, from, len as usize, state.stream) };
        begun.map_err(|error: DriverCallError| error.code)
    }

    /// Returns the address of bytes of this device or of the host.
    fn resolve_address(&self, memory: &MemoryRange, at: u64, len: u64) -> Result<usize, u32> {
        let own = MemoryKind::Device(self.shared.device.ordinal);
        let is_reached = memory.kind() == MemoryKind::Host || memory.kind() == own;
        let invalid = trunkline_sys::cuda::status::INVALID_VALUE;
        if is_reached { memory.checked_address(at, len).map_err(|_| invalid) } else { Err(invalid) }
    }

    /// Appends this user's completions since the last call: `Ok` once the bytes are written, or the driver's error code.
    pub fn take_ended(&self, into: &mut Vec<(u64, Result<(), u32>)>) {
        let mut state = self.shared.lock_copies();
        self.shared.poll_events(&mut state);
        into.append(&mut state.ended[self.user]);
    }
}

impl SharedCopyQueue {
    /// Records an event behind all copies that no event covers.
    fn record_event(&self, state: &mut PendingCopies) {
        if state.unmarked == 0 && state.lost.is_empty() {
            return;
        }
        // Never fails: the pool has one event per possible copy.
        let Some(event) = state.free.pop() else { return };
        let copies = std::mem::take(&mut state.unmarked);
        let recorded = self.device.call_driver("cuEventRecord", || {
            // SAFETY: the event and the stream were created by this queue.
            unsafe { (self.device.calls.event_record)(event, state.stream) }
        });
        match recorded {
            Ok(()) => {
                let lost = std::mem::take(&mut state.lost);
                state.marks.push_back(CopyEvent { event, copies, lost });
            }
            Err(error) => {
                state.free.push(event);
                let first = state.under_way.len().saturating_sub(copies);
                for PendingCopy { user, cookie, ends } in state.under_way.drain(first..) {
                    state.ended[user].push((cookie, Err(error.code)));
                    // The copies are on the stream although no event covers them, so their memory stays held.
                    state.lost.push(ends);
                }
            }
        }
    }

    /// Polls the recorded events, oldest first, until one has not completed.
    fn poll_events(&self, state: &mut PendingCopies) {
        self.record_event(state);
        while let Some(event) = state.marks.front().map(|mark| mark.event) {
            let asked = self.device.poll_driver("cuEventQuery", || {
                // SAFETY: the event was created by this queue and has been recorded.
                unsafe { (self.device.calls.event_query)(event) }
            });
            let how = match asked {
                Ok(false) => return,
                Ok(_) => Ok(()),
                Err(error) => Err(error.code),
            };
            let Some(CopyEvent { copies, lost, .. }) = state.marks.pop_front() else { return };
            state.free.push(event);
            for _ in 0..copies {
                let Some(PendingCopy { user, cookie, ends }) = state.under_way.pop_front() else { return };
                state.ended[user].push((cookie, how));
                if how.is_err() {
                    state.lost.push(ends);
                }
            }
            if how.is_err() {
                state.lost.extend(lost);
            }
        }
    }
}

impl Drop for SharedCopyQueue {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        // Waits for the stream first: the memory held for copies may be freed only after they have completed.
        self.device.end_stream(state.stream);
        let marks = state.marks.drain(..).map(|mark| mark.event);
        for event in state.free.drain(..).chain(marks) {
            let _ = self.device.give_back("cuEventDestroy", || {
                // SAFETY: the event was created by this queue and is destroyed once.
                unsafe { (self.device.calls.event_destroy)(event) }
            });
        }
    }
}

impl fmt::Debug for DeviceCopyQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mover(device {}, user {})", self.shared.device.ordinal, self.user)
    }
}
