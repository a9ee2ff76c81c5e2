//! Slots of copies that go on after they were begun: of each device a stream and an event. No slot waits for another. Those of the device that a driver was opened
//! for are made when it is opened, as to make a stream may wait for a kernel that runs; those of other devices by the thread that maps, when they are first wanted.
//!
//! A driver owns one [`CopySlots`] and says how it calls its streams ([`CopyStreams`]). Nothing here waits but [`CopySlots::wait_for`].

use std::fmt;

use super::{PerDevice, RawCopy};
use crate::gpu::DriverCallError;

/// How many there are: batches of a process that may be under way.
pub(in crate::ipc) const COPY_SLOTS: usize = 8;

/// The driver's calls on streams and events that it has made, each in the context of its device.
pub trait CopyStreams {
    /// A stream.
    type Stream;
    /// An event.
    type Event;

    /// A stream that waits for no other.
    ///
    /// # Errors
    /// What the driver says.
    fn make_stream(&self, device: u32) -> Result<*mut Self::Stream, DriverCallError>;

    /// Destroys a stream. One that cannot be destroyed is the driver's until the process ends.
    fn end_stream(&self, device: u32, stream: *mut Self::Stream);

    /// An event that tells whether the copies before it have ended.
    ///
    /// # Errors
    /// What the driver says.
    fn make_event(&self, device: u32) -> Result<*mut Self::Event, DriverCallError>;

    /// As [`CopyStreams::end_stream`].
    fn end_event(&self, device: u32, event: *mut Self::Event);

    /// Begins a copy on a stream.
    ///
    /// # Errors
    /// What the driver says.
    ///
    /// # Safety
    /// As [`Driver::begin_transfer`](super::IpcDriver::begin_transfer).
    unsafe fn begin_copy(
        &self,
        device: u32,
        stream: *mut Self::Stream,
        copy: RawCopy,
    ) -> Result<(), DriverCallError>;

    /// Puts an event behind all that a stream has begun. The copies that it was behind before have ended.
    ///
    /// # Errors
    /// What the driver says.
    fn record_event(
        &self,
        device: u32,
        event: *mut Self::Event,
        stream: *mut Self::Stream,
    ) -> Result<(), DriverCallError>;

    /// Whether the copies before an event have ended.
    ///
    /// # Errors
    /// What the driver says.
    fn has_ended(&self, device: u32, event: *mut Self::Event) -> Result<bool, DriverCallError>;

    /// Waits for a stream.
    ///
    /// # Errors
    /// What the driver says.
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
    /// For so many devices, of which one copies where none is named.
    pub(in crate::ipc) fn for_devices(devices: u32, by_default: u32) -> Self {
        let slot = |_| CopySlot {
            streams: PerDevice::for_devices(devices),
            events: PerDevice::for_devices(devices),
        };
        Self { slots: std::array::from_fn(slot), by_default }
    }

    /// Makes the streams and events of the device that a driver was opened for.
    ///
    /// # Errors
    /// The driver's error; the objects made until then stay.
    pub(in crate::ipc) fn prepare_default(&self, driver: &S) -> Result<(), DriverCallError> {
        self.prepare_for(driver, self.by_default)
    }

    /// Makes the streams and events of a device.
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

    /// Begins a copy, behind all others of its slot.
    ///
    /// # Errors
    /// What the driver says.
    ///
    /// # Safety
    /// As [`Driver::begin_transfer`](super::IpcDriver::begin_transfer).
    pub(in crate::ipc) unsafe fn begin_copy(
        &self,
        driver: &S,
        slot: usize,
        copy: RawCopy,
        device: Option<u32>,
    ) -> Result<(), DriverCallError> {
        let device = device.unwrap_or(self.by_default);
        let stream = self.slot_stream(driver, slot, device)?;
        // SAFETY: the caller's promise.
        unsafe { driver.begin_copy(device, stream, copy) }
    }

    /// Puts a mark behind all copies of a slot.
    ///
    /// # Errors
    /// What the driver says.
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

    /// Whether all before the mark has ended.
    ///
    /// # Errors
    /// What the driver says.
    pub(in crate::ipc) fn is_over(
        &self,
        driver: &S,
        slot: usize,
        device: Option<u32>,
    ) -> Result<bool, DriverCallError> {
        let device = device.unwrap_or(self.by_default);
        driver.has_ended(device, self.slot_event(driver, slot, device)?)
    }

    /// Waits until all of a slot has ended.
    ///
    /// # Errors
    /// What the driver says.
    pub(in crate::ipc) fn wait_for(
        &self,
        driver: &S,
        slot: usize,
        device: Option<u32>,
    ) -> Result<(), DriverCallError> {
        let device = device.unwrap_or(self.by_default);
        driver.synchronize_stream(device, self.slot_stream(driver, slot, device)?)
    }

    /// Gives back the streams and events of slots on which nothing is under way.
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
