//! Asynchronous copies of Level Zero: in immediate command lists, each with an event behind its copies. A list does not execute in order, so
//! the event is signalled by a barrier.

use std::ptr;
use std::sync::PoisonError;

use trunkline_sys::ze::{self, ZeCommandList, ZeEvent, status};

use super::calls::check_status;
use super::{EventPool, ZeDrivers};
use crate::gpu::DriverCallError;
use crate::ipc::driver_memory::{CopyStreams, RawCopy};

impl ZeDrivers {
    fn end_pool(&self, pool: &EventPool) {
        // SAFETY: the pool was created by this value, contains no event, and is destroyed once. The caller could not act on an error.
        let _ = unsafe { (self.calls.event_pool_destroy)(pool.0) };
    }
}

impl CopyStreams for ZeDrivers {
    type Stream = ZeCommandList;
    type Event = ZeEvent;

    fn make_stream(&self, device: u32) -> Result<*mut ZeCommandList, DriverCallError> {
        self.make_list(self.device_handle(device), ze::COMMAND_QUEUE_MODE_ASYNCHRONOUS)
    }

    fn end_stream(&self, _device: u32, list: *mut ZeCommandList) {
        // SAFETY: the list was created by this value, has no command in flight, and is destroyed once. The caller could not act on an error.
        let _ = unsafe { (self.calls.command_list_destroy)(list) };
    }

    fn make_event(&self, device: u32) -> Result<*mut ZeEvent, DriverCallError> {
        let desc = ze::ZeEventPoolDesc {
            stype: ze::STRUCTURE_TYPE_EVENT_POOL_DESC,
            next: ptr::null(),
            flags: ze::EVENT_POOL_FLAG_HOST_VISIBLE,
            count: 1,
        };
        let mut on = self.device_handle(device);
        let mut pool = ptr::null_mut();
        // SAFETY: the arguments are a description, a device of the driver and local variables.
        let code = unsafe {
            (self.calls.event_pool_create)(self.context, &raw const desc, 1, &raw mut on, &raw mut pool)
        };
        check_status("zeEventPoolCreate", code)?;
        let desc = ze::ZeEventDesc {
            stype: ze::STRUCTURE_TYPE_EVENT_DESC,
            next: ptr::null(),
            index: 0,
            signal: ze::EVENT_SCOPE_FLAG_HOST,
            wait: ze::EVENT_SCOPE_FLAG_HOST,
        };
        let pool = EventPool(pool);
        let mut made = ptr::null_mut();
        // SAFETY: the index is the only one of the pool; the other arguments are a description and a local variable.
        let code = unsafe { (self.calls.event_create)(pool.0, &raw const desc, &raw mut made) };
        check_status("zeEventCreate", code).inspect_err(|_| self.end_pool(&pool))?;
        self.pools.lock().unwrap_or_else(PoisonError::into_inner).insert(made.addr(), pool);
        Ok(made)
    }

    fn end_event(&self, _device: u32, event: *mut ZeEvent) {
        // SAFETY: the event was created by this value and is destroyed once. The caller could not act on an error.
        let _ = unsafe { (self.calls.event_destroy)(event) };
        let pool = self.pools.lock().unwrap_or_else(PoisonError::into_inner).remove(&event.addr());
        pool.iter().for_each(|pool| self.end_pool(pool));
    }

    unsafe fn begin_copy(
        &self,
        _device: u32,
        list: *mut ZeCommandList,
        copy: RawCopy,
    ) -> Result<(), DriverCallError> {
        // SAFETY: the caller guarantees the memory, and only one thread at a time uses slots.
        unsafe { self.append_copy(list, copy) }
    }

    fn record_event(
        &self,
        _device: u32,
        event: *mut ZeEvent,
        list: *mut ZeCommandList,
    ) -> Result<(), DriverCallError> {
        // SAFETY: the event was created by this value, and no command in flight signals it.
        check_status("zeEventHostReset", unsafe { (self.calls.event_host_reset)(event) })?;
        // SAFETY: the list and the event were created by this value; the barrier waits for no events.
        let code = unsafe { (self.calls.command_list_append_barrier)(list, event, 0, ptr::null_mut()) };
        check_status("zeCommandListAppendBarrier", code)
    }

    fn has_ended(&self, _device: u32, event: *mut ZeEvent) -> Result<bool, DriverCallError> {
        // SAFETY: the event was created by this value.
        match unsafe { (self.calls.event_query_status)(event) } {
            status::NOT_READY => Ok(false),
            code => check_status("zeEventQueryStatus", code).map(|()| true),
        }
    }

    fn synchronize_stream(&self, device: u32, list: *mut ZeCommandList) -> Result<(), DriverCallError> {
        // Uses its own event, because the slot's event may cover only its first copies.
        let event = self.make_event(device)?;
        let ended = self.record_event(device, event, list).and_then(|()| {
            // SAFETY: the event was created above.
            let code = unsafe { (self.calls.event_host_synchronize)(event, u64::MAX) };
            check_status("zeEventHostSynchronize", code)
        });
        self.end_event(device, event);
        ended
    }
}
