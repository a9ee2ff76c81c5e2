//! The asynchronous events of a device (ibv_get_async_event(3)), turned into faults of the links they are about. Polled by
//! [`LinkControl::check_link`](trunkline_fabric::LinkControl::check_link), periodically; no thread waits for them, and no message pays for them.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use rustix::fd::BorrowedFd;
use rustix::fs::OFlags;
use trunkline_proto::reserve::{OutOfMemory, try_filled};
use trunkline_sys::verbs::{AckAsyncEvent, AsyncEvent, Context, GetAsyncEvent, event};

/// Most events taken in one call, which bounds its duration.
const TAKEN_MAX: u32 = 64;
/// Ports whose state is kept; a port's number is a byte.
const PORTS: usize = 256;

/// The meaning of an event.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum VerbsEvent {
    /// A queue pair or a completion queue has failed.
    Object(&'static str),
    /// The whole device has failed.
    Device,
    /// A port is down.
    PortDown,
    /// It is up again.
    PortUp,
    /// An event that ends no link.
    Other,
}

/// Returns the meaning of an event's number.
pub(crate) fn event_meaning(event_type: u32) -> VerbsEvent {
    match event_type {
        event::CQ_ERR => VerbsEvent::Object("its completion queue is lost"),
        event::QP_FATAL => VerbsEvent::Object("the device failed its queue pair"),
        event::QP_REQ_ERR => VerbsEvent::Object("the peer sent an invalid request"),
        event::QP_ACCESS_ERR => VerbsEvent::Object("the peer accessed memory without the right to do so"),
        event::PATH_MIG_ERR => VerbsEvent::Object("its migration to another path failed"),
        event::DEVICE_FATAL => VerbsEvent::Device,
        event::PORT_ERR => VerbsEvent::PortDown,
        event::PORT_ACTIVE => VerbsEvent::PortUp,
        _ => VerbsEvent::Other,
    }
}

/// The fault of an object, shared with its owner: 0, or 1 plus the number of the event.
#[derive(Debug, Default)]
pub(crate) struct ObjectFault(AtomicU32);

impl ObjectFault {
    /// Returns why the object has failed, if it has.
    pub(crate) fn fault_reason(&self) -> Option<&'static str> {
        let code = self.0.load(Ordering::Relaxed).checked_sub(1)?;
        match event_meaning(code) {
            VerbsEvent::Object(why) => Some(why),
            _ => None,
        }
    }
}

/// The events of one device.
pub(crate) struct DeviceFaults {
    /// Whether the descriptor is non-blocking, so that it may be polled.
    asks: bool,
    state: Mutex<FaultTable>,
    dead: AtomicBool,
}

struct FaultTable {
    /// By the address of the object.
    objects: HashMap<usize, Arc<ObjectFault>>,
    /// Times since when ports are down.
    down: Box<[Option<Instant>]>,
}

impl DeviceFaults {
    /// Creates the table for a device that is not open yet.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub(crate) fn new() -> Result<Self, OutOfMemory> {
        let state = FaultTable { objects: HashMap::new(), down: try_filled(None, PORTS)? };
        Ok(Self { asks: false, state: Mutex::new(state), dead: AtomicBool::new(false) })
    }

    /// Polls a descriptor of the device for the events.
    pub(crate) fn with_descriptor(self, events: i32) -> Self {
        Self { asks: set_nonblocking(events), ..self }
    }

    fn lock_table(&self) -> std::sync::MutexGuard<'_, FaultTable> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns where events about an object are stored from now on.
    pub(crate) fn watch_object<T>(&self, object: *mut T) -> Arc<ObjectFault> {
        let fault = Arc::new(ObjectFault::default());
        self.lock_table().objects.insert(object.addr(), Arc::clone(&fault));
        fault
    }

    /// Removes an object that is about to be destroyed.
    pub(crate) fn remove<T>(&self, object: *mut T) {
        self.lock_table().objects.remove(&object.addr());
    }

    /// Whether the device is lost.
    pub(crate) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Relaxed)
    }

    /// Returns the time since which a port is down, if it is.
    pub(crate) fn down_since(&self, port: u8) -> Option<Instant> {
        self.lock_table().down[usize::from(port)]
    }

    /// Takes the pending events.
    pub(crate) fn take_events(&self, context: *mut Context, get: GetAsyncEvent, ack: AckAsyncEvent) {
        if !self.asks {
            return;
        }
        // Locked across both calls, so that no object is destroyed between its event and the acknowledgement: ibv_destroy_qp(3) waits for
        // unacknowledged events.
        let mut state = self.lock_table();
        for _ in 0..TAKEN_MAX {
            let mut event = AsyncEvent { element: std::ptr::null_mut(), event_type: 0 };
            // SAFETY: the context is open, and `event` is valid for writes. The descriptor is non-blocking, so the call returns.
            if unsafe { get(context, &raw mut event) } != 0 {
                return;
            }
            self.note_event(&mut state, &event);
            // SAFETY: exactly this event was taken, and it is acknowledged once.
            unsafe { ack(&raw mut event) };
        }
    }

    fn note_event(&self, state: &mut FaultTable, event: &AsyncEvent) {
        // The union may instead hold a port's number in its low byte.
        let port = usize::from(event.element.addr() as u8);
        match event_meaning(event.event_type) {
            VerbsEvent::Object(_) => {
                if let Some(fault) = state.objects.get(&event.element.addr()) {
                    fault.0.store(event.event_type + 1, Ordering::Relaxed);
                }
            }
            VerbsEvent::Device => self.dead.store(true, Ordering::Relaxed),
            VerbsEvent::PortDown => state.down[port] = Some(Instant::now()),
            VerbsEvent::PortUp => state.down[port] = None,
            VerbsEvent::Other => {}
        }
    }
}

/// Makes a descriptor non-blocking; returns whether that succeeded.
fn set_nonblocking(fd: i32) -> bool {
    if fd < 0 {
        return false;
    }
    // SAFETY: the descriptor is of a device that is open, and is only borrowed here.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    let flags = rustix::fs::fcntl_getfl(fd);
    flags.is_ok_and(|flags| rustix::fs::fcntl_setfl(fd, flags | OFlags::NONBLOCK).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(element: usize, event_type: u32) -> AsyncEvent {
        AsyncEvent { element: std::ptr::without_provenance_mut(element), event_type }
    }

    #[test]
    fn events_reach_the_link_they_are_about() {
        let faults = DeviceFaults::new().unwrap();
        let one = faults.watch_object(0x1000 as *mut u8);
        let two = faults.watch_object(0x2000 as *mut u8);
        let mut state = faults.lock_table();
        faults.note_event(&mut state, &event(0x2000, event::COMM_EST));
        assert_eq!((one.fault_reason(), two.fault_reason()), (None, None));
        faults.note_event(&mut state, &event(0x2000, event::QP_ACCESS_ERR));
        assert_eq!(one.fault_reason(), None);
        assert_eq!(two.fault_reason(), Some("the peer accessed memory without the right to do so"));
        state.objects.remove(&0x1000);
        faults.note_event(&mut state, &event(0x1000, event::QP_FATAL));
        assert_eq!(one.fault_reason(), None, "it was removed");
        assert!(!faults.is_dead());
        faults.note_event(&mut state, &event(0, event::DEVICE_FATAL));
        assert!(faults.is_dead());
    }

    #[test]
    fn a_port_is_down_until_it_is_up() {
        let faults = DeviceFaults::new().unwrap();
        faults.note_event(&mut faults.lock_table(), &event(2, event::PORT_ERR));
        assert!(faults.down_since(1).is_none() && faults.down_since(2).is_some());
        faults.note_event(&mut faults.lock_table(), &event(2, event::PORT_ACTIVE));
        assert!(faults.down_since(2).is_none());
    }
}
