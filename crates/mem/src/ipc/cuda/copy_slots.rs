//! Slots of copies that go on after they were begun: of each device a stream and an event, made when they are first wanted. No slot waits for another.

use std::ptr;

use trunkline_sys::cuda::{STREAM_NON_BLOCKING, Stream};
use trunkline_sys::cuda_run::{EVENT_DISABLE_TIMING, Event, NOT_READY};

use super::{CudaDriver, planted};
use crate::gpu::CallError;
use crate::ipc::driven::Each;

/// How many there are: batches of a process that may be under way.
pub(super) const COPY_SLOTS: usize = 8;

/// One.
pub(super) struct CopySlot {
    pub(super) streams: Each<Stream>,
    pub(super) events: Each<Event>,
}

impl CopySlot {
    pub(super) fn all(devices: u32) -> [Self; COPY_SLOTS] {
        std::array::from_fn(|_| Self { streams: Each::of(devices), events: Each::of(devices) })
    }
}

impl CudaDriver {
    fn slot_stream(&self, slot: usize, device: u32) -> Result<*mut Stream, CallError> {
        // Keeps the context that the stream is of.
        self.stream(device)?;
        self.slots[slot].streams.get(device, || {
            let mut made = ptr::null_mut();
            self.call(device, "cuStreamCreate", || {
                // SAFETY: writes a handle to a place of ours, in the device's context.
                unsafe { (self.calls.stream_create)(&raw mut made, STREAM_NON_BLOCKING) }
            })?;
            Ok(made)
        })
    }

    fn slot_event(&self, slot: usize, device: u32) -> Result<*mut Event, CallError> {
        self.slots[slot].events.get(device, || {
            let mut made = ptr::null_mut();
            self.call(device, "cuEventCreate", || {
                // SAFETY: as above.
                unsafe { (self.calls.event_create)(&raw mut made, EVENT_DISABLE_TIMING) }
            })?;
            Ok(made)
        })
    }

    /// Begins a copy.
    ///
    /// # Safety
    /// As [`Driver::begin_transfer`](crate::ipc::driven::Driver::begin_transfer).
    pub(super) unsafe fn begin_on(
        &self,
        slot: usize,
        (to, from, len): (usize, usize, usize),
        device: u32,
    ) -> Result<(), CallError> {
        let stream = self.slot_stream(slot, device)?;
        self.call(device, "cuMemcpyAsync", || {
            // SAFETY: the caller's promise; the driver tells by the addresses which are of a device.
            unsafe { (self.calls.memcpy_async)(to as u64, from as u64, len, stream) }
        })
    }

    pub(super) fn mark_slot(&self, slot: usize, device: u32) -> Result<(), CallError> {
        let (event, stream) = (self.slot_event(slot, device)?, self.slot_stream(slot, device)?);
        self.call(device, "cuEventRecord", || {
            // SAFETY: an event and a stream of ours.
            unsafe { (self.calls.event_record)(event, stream) }
        })
    }

    pub(super) fn is_slot_over(&self, slot: usize, device: u32) -> Result<bool, CallError> {
        let event = self.slot_event(slot, device)?;
        let code = self.cuda.within(device, || {
            // SAFETY: an event of ours that was recorded.
            unsafe { (self.calls.event_query)(event) }
        })?;
        match code {
            NOT_READY if !planted("mem-cuda-ends-before-the-event") => Ok(false),
            NOT_READY => Ok(true),
            code => self.cuda.check("cuEventQuery", code).map(|()| true),
        }
    }

    pub(super) fn wait_for_slot(&self, slot: usize, device: u32) -> Result<(), CallError> {
        let stream = self.slot_stream(slot, device)?;
        self.call(device, "cuStreamSynchronize", || {
            // SAFETY: a stream of ours.
            unsafe { (self.calls.stream_synchronize)(stream) }
        })
    }

    /// Gives back what slots have, on which nothing is under way.
    pub(super) fn end_slots(&mut self) {
        let mut slots = std::mem::replace(&mut self.slots, CopySlot::all(0));
        for CopySlot { streams, events } in &mut slots {
            // What cannot be given back is the driver's until the process ends.
            for (device, event) in events.take() {
                let _ = self.call(device, "cuEventDestroy", || {
                    // SAFETY: an event of ours, once.
                    unsafe { (self.calls.event_destroy)(event) }
                });
            }
            for (device, stream) in streams.take() {
                let _ = self.call(device, "cuStreamDestroy", || {
                    // SAFETY: a stream of ours, once.
                    unsafe { (self.calls.stream_destroy)(stream) }
                });
            }
        }
    }
}
