//! Slots for asynchronous copies: one stream and one event per device and slot. No slot waits for another. The slots of the device for which a
//! driver was opened are made when it is opened, because creating a stream may wait for a running kernel. Those of other devices are made by
//! the mapping thread, when they are first requested.
//!
//! A driver owns one [`CopySlots`] and implements its calls on streams ([`CopyStreams`]). No function here waits except
//! [`CopySlots::wait_for`].

use std::fmt;

use super::{PerDevice, RawCopy};
use crate::gpu::DriverCallError;

/// Number of slots: the maximum number of batches in flight per process.
pub(in crate::ipc) const COPY_SLOTS: usize = 8;

/// The driver's calls on streams and events, each in the context of its device.
pub trait CopyStreams {
    /// A stream.
    type Stream;
    /// An event.
    type Event;

    /// Creates a stream that does not wait for others.
    ///
    /// # Errors
    /// The driver's error.
    fn make_stream(&self, device: u32) -> Result<*mut Self::Stream, DriverCallError>;

    /// Destroys a stream. One that cannot be destroyed stays with the driver until the process ends.
    fn end_stream(&self, device: u32, stream: *mut Self::Stream);

    /// Creates an event that reports whether the copies before it have completed.
    ///
    /// # Errors
    /// The driver's error.
    fn make_event(&self, device: u32) -> Result<*mut Self::Event, DriverCallError>;

    /// As [`CopyStreams::end_stream`].
    fn end_event(&self, device: u32, event: *mut Self::Event);

    /// Enqueues a copy on a stream.
    ///
    /// # Errors
    /// The driver's error.
    ///
    /// # Safety
    /// As [`IpcDriver::begin_transfer`](super::IpcDriver::begin_transfer).
    unsafe fn begin_copy(
        &self,
        device: u32,
        stream: *mut Self::Stream,
        copy: RawCopy,
    ) -> Result<(), DriverCallError>;

    /// Records an event behind all copies enqueued on a stream. The copies behind which it was recorded before have completed.
    ///
    /// # Errors
    /// The driver's error.
    fn record_event(
        &self,
        device: u32,
        event: *mut Self::Event,
        stream: *mut Self::Stream,
    ) -> Result<(), DriverCallError>;

    /// Returns whether the copies before an event have completed.
    ///
    /// # Errors
    /// The driver's error.
    fn has_ended(&self, device: u32, event: *mut Self::Event) -> Result<bool, DriverCallError>;

    /// Waits until a stream is idle.
    ///
    /// # Errors
    /// The driver's error.
    fn synchronize_stream(&self, device: u32, stream: *mut Self::Stream) -> Result<(), DriverCallError>;
}

/// One slot.
struct CopySlot<S: CopyStreams> {
    streams: PerDevice<S::Stream>,
    events: PerDevice<S::Event>,
}

/// All slots of a driver.
pub struct CopySlots<S: CopyStreams> {
    slots: [CopySlot<S>; COPY_SLOTS],
    by_default: u32,
}

impl<S: CopyStreams> CopySlots<S> {
    /// Prepares slots for that many devices; `by_default` is the device that copies if the caller names none.
    pub(in crate::ipc) fn for_devices(devices: u32, by_default: u32) -> Self {
        let slot = |_| CopySlot {
            streams: PerDevice::for_devices(devices),
            events: PerDevice::for_devices(devices),
        };
        Self { slots: std::array::from_fn(slot), by_default }
    }

    /// Creates the streams and events of the device for which a driver was opened.
    ///
    /// # Errors
    /// The driver's error; the objects created before it stay.
    pub(in crate::ipc) fn prepare_default(&self, driver: &S) -> Result<(), DriverCallError> {
        self.prepare_for(driver, self.by_default)
    }

    /// Creates the streams and events of a device.
    ///
    /// # Errors
    /// As [`CopySlots::prepare_default`].
    pub(in crate::ipc) fn prepare_for(&self, driver: &S, device: u32) -> Result<(), DriverCallError> {
        (0..COPY_SLOTS).try_for_each(|slot| {
            self.slot_stream(driver, slot, device)?;
            self.slot_event(driver, slot, device).map(drop)
        })
    }

    fn slot_stream(&self, driver: &S, slot: usize, device: u32) -> Result<*mut S::Stream, DriverCallError> {
        self.slots[slot].streams.get(device, || driver.make_stream(device))
    }

    fn slot_event(&self, driver: &S, slot: usize, device: u32) -> Result<*mut S::Event, DriverCallError> {
        self.slots[slot].events.get(device, || driver.make_event(device))
    }

    /// Enqueues a copy, behind all others of its slot.
    ///
    /// # Errors
    /// The driver's error.
    ///
    /// # Safety
    /// As [`IpcDriver::begin_transfer`](super::IpcDriver::begin_transfer).
    pub(in crate::ipc) unsafe fn begin_copy(
        &self,
        driver: &S,
        slot: usize,
        copy: RawCopy,
        device: Option<u32>,
    ) -> Result<(), DriverCallError> {
        let device = device.unwrap_or(self.by_default);
        let stream = self.slot_stream(driver, slot, device)?;
        // SAFETY: the caller guarantees the conditions of `begin_transfer`.
        unsafe { driver.begin_copy(device, stream, copy) }
    }

    /// Records a slot's event (mark) behind all its copies.
    ///
    /// # Errors
    /// The driver's error.
    pub(in crate::ipc) fn mark_slot(
        &self,
        driver: &S,
        slot: usize,
        device: Option<u32>,
    ) -> Result<(), DriverCallError> {
        let device = device.unwrap_or(self.by_default);
        let event = self.slot_event(driver, slot, device)?;
        let stream = self.slot_stream(driver, slot, device)?;
        driver.record_event(device, event, stream)
    }

    /// Returns whether all copies before the mark have completed.
    ///
    /// # Errors
    /// The driver's error.
    pub(in crate::ipc) fn is_over(
        &self,
        driver: &S,
        slot: usize,
        device: Option<u32>,
    ) -> Result<bool, DriverCallError> {
        let device = device.unwrap_or(self.by_default);
        driver.has_ended(device, self.slot_event(driver, slot, device)?)
    }

    /// Waits until all copies of a slot have completed.
    ///
    /// # Errors
    /// The driver's error.
    pub(in crate::ipc) fn wait_for(
        &self,
        driver: &S,
        slot: usize,
        device: Option<u32>,
    ) -> Result<(), DriverCallError> {
        let device = device.unwrap_or(self.by_default);
        driver.synchronize_stream(device, self.slot_stream(driver, slot, device)?)
    }

    /// Destroys the streams and events of slots that have no copy in flight.
    pub(in crate::ipc) fn end_slots(mut self, driver: &S) {
        for CopySlot { streams, events } in &mut self.slots {
            events.take_all().for_each(|(device, event)| driver.end_event(device, event));
            streams.take_all().for_each(|(device, stream)| driver.end_stream(device, stream));
        }
    }
}

impl<S: CopyStreams> fmt::Debug for CopySlots<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{COPY_SLOTS} slots of copies")
    }
}
