//! Asynchronous copies of the HIP runtime: on streams that do not wait for others, each with an event behind its copies.

use std::ptr;

use trunkline_sys::hip_ipc::{
    EVENT_DISABLE_TIMING, HipEvent, HipStream, MEMCPY_DEFAULT, NOT_READY, STREAM_NON_BLOCKING,
};

use super::HipDriver;
use crate::gpu::DriverCallError;
use crate::ipc::driver_memory::{CopyStreams, RawCopy};

impl CopyStreams for HipDriver {
    type Stream = HipStream;
    type Event = HipEvent;

    fn make_stream(&self, device: u32) -> Result<*mut HipStream, DriverCallError> {
        let mut made = ptr::null_mut();
        self.call_driver(device, "hipStreamCreateWithFlags", || {
            // SAFETY: the call writes a handle to a local variable, with `device` as the thread's device.
            unsafe { (self.calls.stream_create_with_flags)(&raw mut made, STREAM_NON_BLOCKING) }
        })?;
        Ok(made)
    }

    fn end_stream(&self, device: u32, stream: *mut HipStream) {
        let _ = self.call_driver(device, "hipStreamDestroy", || {
            // SAFETY: the stream was created by this driver value and is destroyed once.
            unsafe { (self.calls.stream_destroy)(stream) }
        });
    }

    fn make_event(&self, device: u32) -> Result<*mut HipEvent, DriverCallError> {
        let mut made = ptr::null_mut();
        self.call_driver(device, "hipEventCreateWithFlags", || {
            // SAFETY: the call writes a handle to a local variable, with `device` as the thread's device.
            unsafe { (self.calls.event_create_with_flags)(&raw mut made, EVENT_DISABLE_TIMING) }
        })?;
        Ok(made)
    }

    fn end_event(&self, device: u32, event: *mut HipEvent) {
        let _ = self.call_driver(device, "hipEventDestroy", || {
            // SAFETY: the event was created by this driver value and is destroyed once.
            unsafe { (self.calls.event_destroy)(event) }
        });
    }

    unsafe fn begin_copy(
        &self,
        device: u32,
        stream: *mut HipStream,
        RawCopy { to, from, len }: RawCopy,
    ) -> Result<(), DriverCallError> {
        let into = ptr::with_exposed_provenance_mut(to);
        let out = ptr::with_exposed_provenance(from);
        self.call_driver(device, "hipMemcpyAsync", || {
            // SAFETY: the caller guarantees the memory; the runtime recognises by address which side belongs to a device.
            unsafe { (self.calls.memcpy_async)(into, out, len, MEMCPY_DEFAULT, stream) }
        })
    }

    fn record_event(
        &self,
        device: u32,
        event: *mut HipEvent,
        stream: *mut HipStream,
    ) -> Result<(), DriverCallError> {
        self.call_driver(device, "hipEventRecord", || {
            // SAFETY: the event and the stream were created by this driver value, for the same device.
            unsafe { (self.calls.event_record)(event, stream) }
        })
    }

    fn has_ended(&self, device: u32, event: *mut HipEvent) -> Result<bool, DriverCallError> {
        let code = self.with_device(device, || {
            // SAFETY: the event was created by this driver value and has been recorded.
            unsafe { (self.calls.event_query)(event) }
        })?;
        match code {
            NOT_READY => Ok(false),
            code => self.hip.check_status("hipEventQuery", code).map(|()| true),
        }
    }

    fn synchronize_stream(&self, device: u32, stream: *mut HipStream) -> Result<(), DriverCallError> {
        self.call_driver(device, "hipStreamSynchronize", || {
            // SAFETY: the stream was created by this driver value.
            unsafe { (self.calls.stream_synchronize)(stream) }
        })
    }
}
