//! How copies go on after they were begun: on streams that wait for no other, each with an event behind its copies.

use std::ptr;

use trunkline_sys::cuda::{STREAM_NON_BLOCKING, Stream};
use trunkline_sys::cuda_run::{EVENT_DISABLE_TIMING, Event, NOT_READY};

use super::CudaDriver;
use crate::gpu::DriverCallError;
use crate::ipc::driver_memory::{CopyStreams, RawCopy};

impl CopyStreams for CudaDriver {
    type Stream = Stream;
    type Event = Event;

    fn make_stream(&self, device: u32) -> Result<*mut Stream, DriverCallError> {
        // Keeps the context that the stream is of.
        self.device_stream(device)?;
        let mut made = ptr::null_mut();
        self.call_driver(device, "cuStreamCreate", || {
            // SAFETY: writes a handle to a place of ours, in the device's context.
            unsafe { (self.calls.stream_create)(&raw mut made, STREAM_NON_BLOCKING) }
        })?;
        Ok(made)
    }

    fn end_stream(&self, device: u32, stream: *mut Stream) {
        let _ = self.call_driver(device, "cuStreamDestroy", || {
            // SAFETY: a stream of ours, once.
            unsafe { (self.calls.stream_destroy)(stream) }
        });
    }

    fn make_event(&self, device: u32) -> Result<*mut Event, DriverCallError> {
        let mut made = ptr::null_mut();
        self.call_driver(device, "cuEventCreate", || {
            // SAFETY: writes a handle to a place of ours, in the device's context.
            unsafe { (self.calls.event_create)(&raw mut made, EVENT_DISABLE_TIMING) }
        })?;
        Ok(made)
    }

    fn end_event(&self, device: u32, event: *mut Event) {
        let _ = self.call_driver(device, "cuEventDestroy", || {
            // SAFETY: an event of ours, once.
            unsafe { (self.calls.event_destroy)(event) }
        });
    }

    unsafe fn begin_copy(
        &self,
        device: u32,
        stream: *mut Stream,
        RawCopy { to, from, len }: RawCopy,
    ) -> Result<(), DriverCallError> {
        self.call_driver(device, "cuMemcpyAsync", || {
            // SAFETY: the caller's promise; the driver tells by the addresses which are of a device.
            unsafe { (self.calls.memcpy_async)(to as u64, from as u64, len, stream) }
        })
    }

    fn record_event(
        &self,
        device: u32,
        event: *mut Event,
        stream: *mut Stream,
    ) -> Result<(), DriverCallError> {
        self.call_driver(device, "cuEventRecord", || {
            // SAFETY: an event and a stream of ours.
            unsafe { (self.calls.event_record)(event, stream) }
        })
    }

    fn has_ended(&self, device: u32, event: *mut Event) -> Result<bool, DriverCallError> {
        let code = self.cuda.with_device_context(device, || {
            // SAFETY: an event of ours that was recorded.
            unsafe { (self.calls.event_query)(event) }
        })?;
        match code {
            NOT_READY => Ok(false),
            code => self.cuda.check_status("cuEventQuery", code).map(|()| true),
        }
    }

    fn synchronize_stream(&self, device: u32, stream: *mut Stream) -> Result<(), DriverCallError> {
        self.call_driver(device, "cuStreamSynchronize", || {
            // SAFETY: a stream of ours.
            unsafe { (self.calls.stream_synchronize)(stream) }
        })
    }
}
