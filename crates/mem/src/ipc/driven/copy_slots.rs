//! Slots of copies that go on after they were begun: of each device a stream and an event, made when they are first wanted. No slot waits for another.
//!
//! Drivers that have streams own one [`CopySlots`] and say how they call theirs ([`CopyStreams`]). Nothing here waits but [`CopySlots::wait_for`].

use std::fmt;

use super::Each;
use crate::gpu::CallError;

/// How many there are: batches of a process that may be under way.
pub(in crate::ipc) const COPY_SLOTS: usize = 8;

/// What a driver does with streams and events that it has made, each in the context of its device.
pub(in crate::ipc) trait CopyStreams {
    type Stream;
    type Event;

    fn make_stream(&self, device: u32) -> Result<*mut Self::Stream, CallError>;

    /// What cannot be given back is the driver's until the process ends.
    fn end_stream(&self, device: u32, stream: *mut Self::Stream);

    fn make_event(&self, device: u32) -> Result<*mut Self::Event, CallError>;

    /// As [`CopyStreams::end_stream`].
    fn end_event(&self, device: u32, event: *mut Self::Event);

    /// Begins a copy.
    ///
    /// # Safety
    /// As [`Driver::begin_transfer`](super::Driver::begin_transfer).
    unsafe fn begin_copy(
        &self,
        device: u32,
        stream: *mut Self::Stream,
        copy: (usize, usize, usize),
    ) -> Result<(), CallError>;

    /// Puts an event behind all that a stream has begun.
    fn record(
        &self,
        device: u32,
        event: *mut Self::Event,
        stream: *mut Self::Stream,
    ) -> Result<(), CallError>;

    /// Whether what was before an event has ended.
    fn has_ended(&self, device: u32, event: *mut Self::Event) -> Result<bool, CallError>;

    /// Waits for a stream.
    fn wait(&self, device: u32, stream: *mut Self::Stream) -> Result<(), CallError>;
}

/// One slot.
struct CopySlot<S: CopyStreams> {
    streams: Each<S::Stream>,
    events: Each<S::Event>,
}

/// All slots of a driver.
pub(in crate::ipc) struct CopySlots<S: CopyStreams>([CopySlot<S>; COPY_SLOTS]);

impl<S: CopyStreams> CopySlots<S> {
    /// For so many devices.
    pub(in crate::ipc) fn of(devices: u32) -> Self {
        Self(std::array::from_fn(|_| CopySlot { streams: Each::of(devices), events: Each::of(devices) }))
    }

    fn stream(&self, driver: &S, slot: usize, device: u32) -> Result<*mut S::Stream, CallError> {
        self.0[slot].streams.get(device, || driver.make_stream(device))
    }

    fn event(&self, driver: &S, slot: usize, device: u32) -> Result<*mut S::Event, CallError> {
        self.0[slot].events.get(device, || driver.make_event(device))
    }

    /// Begins a copy, behind all others of its slot: to where, from where and how long.
    ///
    /// # Errors
    /// What the driver says.
    ///
    /// # Safety
    /// As [`Driver::begin_transfer`](super::Driver::begin_transfer).
    pub(in crate::ipc) unsafe fn begin(
        &self,
        driver: &S,
        slot: usize,
        copy: (usize, usize, usize),
        device: u32,
    ) -> Result<(), CallError> {
        let stream = self.stream(driver, slot, device)?;
        // SAFETY: the caller's promise.
        unsafe { driver.begin_copy(device, stream, copy) }
    }

    /// Puts a mark behind all copies of a slot.
    ///
    /// # Errors
    /// What the driver says.
    pub(in crate::ipc) fn mark(&self, driver: &S, slot: usize, device: u32) -> Result<(), CallError> {
        let (event, stream) = (self.event(driver, slot, device)?, self.stream(driver, slot, device)?);
        driver.record(device, event, stream)
    }

    /// Whether all before the mark has ended.
    ///
    /// # Errors
    /// What the driver says.
    pub(in crate::ipc) fn is_over(&self, driver: &S, slot: usize, device: u32) -> Result<bool, CallError> {
        driver.has_ended(device, self.event(driver, slot, device)?)
    }

    /// Waits until all of a slot has ended.
    ///
    /// # Errors
    /// What the driver says.
    pub(in crate::ipc) fn wait_for(&self, driver: &S, slot: usize, device: u32) -> Result<(), CallError> {
        driver.wait(device, self.stream(driver, slot, device)?)
    }

    /// Gives back what slots have, on which nothing is under way.
    pub(in crate::ipc) fn end(mut self, driver: &S) {
        for CopySlot { streams, events } in &mut self.0 {
            events.take().for_each(|(device, event)| driver.end_event(device, event));
            streams.take().for_each(|(device, stream)| driver.end_stream(device, stream));
        }
    }
}

impl<S: CopyStreams> fmt::Debug for CopySlots<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{COPY_SLOTS} slots of copies")
    }
}
