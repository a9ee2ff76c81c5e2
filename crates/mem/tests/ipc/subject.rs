//! The kinds that the acceptance suite covers. A further kind needs a row in [`make`] and in `acceptance::all`.

use std::os::fd::OwnedFd;

use trunkline_mem::ipc::{
    AnyMemory, CudaMemory, HipMemory, HostMemory, IpcCaps, IpcMemory, LevelZero, MemfdDevice, PrivateMemory,
};

use crate::vendor::{Amd, Intel, Legacy, Segments};
use crate::xpmem::Attached;

/// A kind, and the additional functions that its tests use.
pub(crate) trait Subject {
    fn memory(&self) -> &dyn IpcMemory;

    /// Returns the capabilities for the sort of memory that it allocates.
    fn caps(&self) -> IpcCaps {
        self.memory().caps()
    }

    /// Whether a handle becomes unusable once its export has ended.
    fn keeps_exports(&self) -> bool {
        false
    }

    /// Returns a number by its name.
    fn tells(&self, name: &str) -> u64 {
        panic!("the kind has no number {name}")
    }

    fn alloc(&self, len: usize) -> Result<usize, String>;
    fn free(&self, addr: usize) -> Result<(), String>;
}

/// Creates the kind of that name for this process; shared state is passed by descriptor.
pub(crate) fn make(kind: &str, common: Option<OwnedFd>) -> Box<dyn Subject> {
    match kind.strip_prefix("native_").unwrap_or(kind) {
        "host" => Box::new(HostMemory::new().unwrap()),
        "device" => Box::new(MemfdDevice::join(3, &common.unwrap()).unwrap()),
        "private" => Box::new(PrivateMemory::new().unwrap()),
        "xpmem" => Box::new(Attached::new()),
        "picked" => Box::new(AnyMemory::open("private", 0).unwrap()),
        "cuda" => Box::new(Legacy { memory: CudaMemory::open_device(0).unwrap() }),
        "hip" => Box::new(Amd { memory: HipMemory::open_device(0).unwrap() }),
        "ze" => Box::new(Intel { memory: LevelZero::open_device(0).unwrap() }),
        "cuda_segment" => Box::new(Segments::new()),
        other => panic!("unknown kind {other}"),
    }
}

impl Subject for HostMemory {
    fn memory(&self) -> &dyn IpcMemory {
        self
    }

    fn alloc(&self, len: usize) -> Result<usize, String> {
        Self::alloc(self, len).map_err(|error| format!("{error:?} {error}"))
    }

    fn free(&self, addr: usize) -> Result<(), String> {
        Self::free(self, addr).map_err(|error| format!("{error:?} {error}"))
    }
}

impl Subject for MemfdDevice {
    fn memory(&self) -> &dyn IpcMemory {
        self
    }

    fn alloc(&self, len: usize) -> Result<usize, String> {
        Self::alloc(self, len).map_err(|error| format!("{error:?} {error}"))
    }

    fn free(&self, addr: usize) -> Result<(), String> {
        Self::free(self, addr).map_err(|error| format!("{error:?} {error}"))
    }
}

impl Subject for AnyMemory {
    fn memory(&self) -> &dyn IpcMemory {
        self
    }

    fn alloc(&self, len: usize) -> Result<usize, String> {
        Self::alloc(self, len).map_err(|error| format!("{error:?} {error}"))
    }

    fn free(&self, addr: usize) -> Result<(), String> {
        Self::free(self, addr).map_err(|error| format!("{error:?} {error}"))
    }
}

impl Subject for PrivateMemory {
    fn memory(&self) -> &dyn IpcMemory {
        self
    }

    fn alloc(&self, len: usize) -> Result<usize, String> {
        Self::alloc(self, len).map_err(|error| format!("{error:?} {error}"))
    }

    fn free(&self, addr: usize) -> Result<(), String> {
        Self::free(self, addr).map_err(|error| format!("{error:?} {error}"))
    }
}
