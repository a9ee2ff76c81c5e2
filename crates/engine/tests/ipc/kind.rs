//! The device in a memory file, whose driver can be told to fail.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use trunkline_mem::ipc::{
    Allocation, At, Caps, CloseError, CopyError, Device, Export, ExportError, FindError, Handle, IpcMemory,
    Mapped, NotClosed, OpenError, Passing, To,
};

/// Its calls that can fail.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Call {
    Export,
    Open,
    Close,
    Copy,
    /// Not one that fails: while it is set, what lies behind an allocation goes on as one with it, as segments of virtual memory do.
    GoesOn,
}

/// A device, and how often each call is still to fail.
#[derive(Debug)]
pub(crate) struct Kind {
    pub(crate) device: Device,
    failures: [AtomicU64; 5],
    /// Of each handle how often it was given, and taken back.
    handles: Mutex<BTreeMap<Vec<u8>, [u64; 2]>>,
}

impl Kind {
    pub(crate) fn new(device: Device) -> Self {
        Self { device, failures: Default::default(), handles: Mutex::default() }
    }

    pub(crate) fn fail(&self, call: u64, times: u64) {
        self.failures[call as usize].store(times, Ordering::Relaxed);
    }

    /// Handles that were given, and taken back; none is taken back that was not given.
    #[allow(dead_code, reason = "not all who share this file ask")]
    pub(crate) fn handles(&self) -> [u64; 2] {
        let handles = self.handles.lock().unwrap();
        let sum = |at: usize| handles.values().map(|counts| counts[at]).sum();
        [sum(0), sum(1)]
    }

    fn fails(&self, call: Call) -> bool {
        let left = &self.failures[call as usize];
        left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
    }
}

impl IpcMemory for Kind {
    fn caps(&self) -> Caps {
        self.device.caps()
    }

    fn allocation_of(&self, addr: usize) -> Result<Allocation, FindError> {
        self.device.allocation_of(addr)
    }

    fn holds(&self, addr: usize, len: usize) -> bool {
        let goes_on = self.failures[Call::GoesOn as usize].load(Ordering::Relaxed) != 0;
        let mut at = addr;
        while let Ok(found) = self.device.allocation_of(at) {
            at = found.base + found.len;
            if at >= addr + len || !goes_on {
                break;
            }
        }
        at >= addr + len
    }

    fn export(&self, of: &Allocation, how: Passing) -> Result<Export, ExportError> {
        if self.fails(Call::Export) {
            return Err(ExportError::Passing("told to fail"));
        }
        let export = self.device.export(of, how)?;
        self.handles.lock().unwrap().entry(export.handle.bytes().to_vec()).or_default()[0] += 1;
        Ok(export)
    }

    fn unexport(&self, export: Export) -> Result<(), CloseError> {
        let mut handles = self.handles.lock().unwrap();
        let [given, taken] = handles.get_mut(export.handle.bytes()).expect("a handle that was given");
        *taken += 1;
        assert!(*taken <= *given, "a handle is taken back twice");
        self.device.unexport(export)
    }

    fn open(&self, handle: &Handle, descriptor: Option<OwnedFd>) -> Result<Mapped, OpenError> {
        if self.fails(Call::Open) {
            return Err(OpenError::Descriptor("told to fail"));
        }
        self.device.open(handle, descriptor)
    }

    fn close(&self, mapped: Mapped) -> Result<(), NotClosed> {
        if self.fails(Call::Close) {
            return Err(NotClosed { mapped, error: CloseError::Unknown });
        }
        self.device.close(mapped)
    }

    fn read(&self, from: At<'_>, out: &mut [u8]) -> Result<(), CopyError> {
        self.device.read(from, out)
    }

    fn write(&self, to: At<'_>, bytes: &[u8]) -> Result<(), CopyError> {
        self.device.write(to, bytes)
    }

    fn copy(&self, from: At<'_>, to: To<'_>, len: usize) -> Result<(), CopyError> {
        if self.fails(Call::Copy) {
            return Err(CopyError::Gone);
        }
        self.device.copy(from, to, len)
    }
}
