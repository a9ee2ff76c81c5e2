//! Asynchronous copies of the CUDA driver: on streams that do not wait for others, each with an event behind its copies.

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
        // Retains the context to which the stream belongs.
        self.device_stream(device)?;
        let mut made = ptr::null_mut();
        self.call_driver(device, "cuStreamCreate", || {
            // SAFETY: the call writes a handle to a local variable, in the device's context.
            unsafe { (self.calls.stream_create)(&raw mut made, STREAM_NON_BLOCKING) }
        })?;
        Ok(made)
    }

    fn end_stream(&self, device: u32, stream: *mut Stream) {
        let _ = self.call_driver(device, "cuStreamDestroy", || {
            // SAFETY: the stream was created by this driver value and is destroyed once.
            unsafe { (self.calls.stream_destroy)(stream) }
        });
    }

    fn make_event(&self, device: u32) -> Result<*mut Event, DriverCallError> {
        let mut made = ptr::null_mut();
        self.call_driver(device, "cuEventCreate", || {
            // SAFETY: the call writes a handle to a local variable, in the device's context.
            unsafe { (self.calls.event_create)(&raw mut made, EVENT_DISABLE_TIMING) }
        })?;
        Ok(made)
    }

    fn end_event(&self, device: u32, event: *mut Event) {
        let _ = self.call_driver(device, "cuEventDestroy", || {
            // SAFETY: the event was created by this driver value and is destroyed once.
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
            // SAFETY: the caller guarantees the memory; the driver recognises by address which side belongs to a device.
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
            // SAFETY: the event and the stream were created by this driver value.
            unsafe { (self.calls.event_record)(event, stream) }
        })
    }

    fn has_ended(&self, device: u32, event: *mut Event) -> Result<bool, DriverCallError> {
        let code = self.cuda.with_device_context(device, || {
            // SAFETY: the event was created by this driver value and has been recorded.
            unsafe { (self.calls.event_query)(event) }
        })?;
        match code {
            NOT_READY => Ok(false),
            code => self.cuda.check_status("cuEventQuery", code).map(|()| true),
        }
    }

    fn synchronize_stream(&self, device: u32, stream: *mut Stream) -> Result<(), DriverCallError> {
        self.call_driver(device, "cuStreamSynchronize", || {
            // SAFETY: the stream was created by this driver value.
            unsafe { (self.calls.stream_synchronize)(stream) }
        })
    }
}
