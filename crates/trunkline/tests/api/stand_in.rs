//! The calls of a rank to a stand-in driver (`crates/device/tests/m2/stub.c`, `crates/mem/tests/ipc/stub`).

use std::mem::ManuallyDrop;

use libloading::os::unix::Library;

/// The stand-in driver that this process has open.
pub(crate) struct StandIn(ManuallyDrop<Library>);

/// Counts of the objects on a device that were not released.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct LiveCounts {
    pub(crate) streams: u64,
    pub(crate) events: u64,
    pub(crate) device_bytes: u64,
    pub(crate) pinned_bytes: u64,
}

impl StandIn {
    pub(crate) fn open() -> Self {
        Self::of("libcuda.so.1")
    }

    /// Opens the stand-in for a driver, by the name of the driver's library.
    pub(crate) fn of(library: &str) -> Self {
        // SAFETY: the stand-in is open already; its constructors do nothing.
        Self(ManuallyDrop::new(unsafe { Library::new(library) }.unwrap()))
    }

    pub(crate) fn tell(&self, what: &str, number: u64) {
        // SAFETY: these functions of stub.c take a number.
        let tell = unsafe { self.0.get::<unsafe extern "C" fn(u64)>(what.as_bytes()) };
        // SAFETY: as above.
        unsafe { tell.unwrap()(number) };
    }

    pub(crate) fn ask(&self, what: &str) -> u64 {
        // SAFETY: these functions of stub.c return a number.
        let ask = unsafe { self.0.get::<unsafe extern "C" fn() -> u64>(what.as_bytes()) };
        // SAFETY: as above.
        unsafe { ask.unwrap()() }
    }

    pub(crate) fn live(&self) -> LiveCounts {
        LiveCounts {
            streams: self.ask("stub_streams"),
            events: self.ask("stub_events"),
            device_bytes: self.ask("stub_device_bytes"),
            pinned_bytes: self.ask("stub_pinned_bytes"),
        }
    }
}
