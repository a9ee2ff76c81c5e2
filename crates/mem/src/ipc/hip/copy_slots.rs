//! How copies go on after they were begun: on streams that wait for no other, each with an event behind its copies.

use std::ptr;

use trunkline_sys::hip_ipc::{
    EVENT_DISABLE_TIMING, HipEvent, HipStream, MEMCPY_DEFAULT, NOT_READY, STREAM_NON_BLOCKING,
};

use super::{HipDriver, planted};
use crate::gpu::CallError;
use crate::ipc::driven::CopyStreams;

impl CopyStreams for HipDriver {
    type Stream = HipStream;
    type Event = HipEvent;

    fn make_stream(&self, device: u32) -> Result<*mut HipStream, CallError> {
        let mut made = ptr::null_mut();
        self.call(device, "hipStreamCreateWithFlags", || {
            // SAFETY: writes a handle to a place of ours, with the device as the thread's.
            unsafe { (self.calls.stream_create_with_flags)(&raw mut made, STREAM_NON_BLOCKING) }
        })?;
        Ok(made)
    }

    fn end_stream(&self, device: u32, stream: *mut HipStream) {
        let _ = self.call(device, "hipStreamDestroy", || {
            // SAFETY: a stream of ours, once.
            unsafe { (self.calls.stream_destroy)(stream) }
        });
    }

    fn make_event(&self, device: u32) -> Result<*mut HipEvent, CallError> {
        let mut made = ptr::null_mut();
        self.call(device, "hipEventCreateWithFlags", || {
            // SAFETY: writes a handle to a place of ours, with the device as the thread's.
            unsafe { (self.calls.event_create_with_flags)(&raw mut made, EVENT_DISABLE_TIMING) }
        })?;
        Ok(made)
    }

    fn end_event(&self, device: u32, event: *mut HipEvent) {
        let _ = self.call(device, "hipEventDestroy", || {
            // SAFETY: an event of ours, once.
            unsafe { (self.calls.event_destroy)(event) }
        });
    }

    unsafe fn begin_copy(
        &self,
        device: u32,
        stream: *mut HipStream,
        (to, from, len): (usize, usize, usize),
    ) -> Result<(), CallError> {
        let into = ptr::with_exposed_provenance_mut(to);
        let out = ptr::with_exposed_provenance(from);
        self.call(device, "hipMemcpyAsync", || {
            // SAFETY: the caller's promise; the runtime tells by the addresses which are of a device.
            unsafe { (self.calls.memcpy_async)(into, out, len, MEMCPY_DEFAULT, stream) }
        })
    }

    fn record(&self, device: u32, event: *mut HipEvent, stream: *mut HipStream) -> Result<(), CallError> {
        self.call(device, "hipEventRecord", || {
            // SAFETY: an event and a stream of ours, of one device.
            unsafe { (self.calls.event_record)(event, stream) }
        })
    }

    fn has_ended(&self, device: u32, event: *mut HipEvent) -> Result<bool, CallError> {
        let code = self.within(device, || {
            // SAFETY: an event of ours that was recorded.
            unsafe { (self.calls.event_query)(event) }
        })?;
        match code {
            NOT_READY if !planted("mem-hip-ends-before-the-event") => Ok(false),
            NOT_READY => Ok(true),
            code => self.hip.check("hipEventQuery", code).map(|()| true),
        }
    }

    fn wait(&self, device: u32, stream: *mut HipStream) -> Result<(), CallError> {
        self.call(device, "hipStreamSynchronize", || {
            // SAFETY: a stream of ours.
            unsafe { (self.calls.stream_synchronize)(stream) }
        })
    }
}
