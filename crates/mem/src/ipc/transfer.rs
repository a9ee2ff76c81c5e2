//! Arguments and results of a kind's calls: exports, open handles, and places to copy from and to.

use std::os::fd::OwnedFd;

use super::IpcHandle;
use crate::MemoryRange;

/// How a handle is passed to a peer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum HandlePassing {
    /// By its bytes alone.
    Bytes,
    /// With a descriptor.
    Descriptor,
    /// As the allocation requires: with a descriptor only if it needs one.
    Either,
}

/// An exported allocation, which peers may open.
#[derive(Debug)]
#[must_use = "an export must be ended by unexport"]
pub struct ExportedHandle {
    /// The handle by which peers open it.
    pub handle: IpcHandle,
    /// The descriptor to pass along; peers receive duplicates.
    pub descriptor: Option<OwnedFd>,
}

/// A peer's handle that is open in this process. Close it by [`IpcMemory::close`](super::IpcMemory::close); if it is
/// dropped, the mapping stays open until its kind is dropped.
#[derive(Debug, Eq, PartialEq)]
#[must_use = "the mapping stays open until it is closed"]
pub struct OpenedHandle {
    /// Its number in the table of its kind.
    pub(super) number: u64,
    pub(super) address: Option<usize>,
    pub(super) len: usize,
}

impl OpenedHandle {
    /// Returns the local address of its first byte; `None` for kinds that do not map memory.
    #[must_use]
    pub fn local_address(&self) -> Option<usize> {
        self.address
    }

    /// Returns its length, in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether it has no bytes, which never happens.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// Copies that were started together and are in flight. The batch ends when [`IpcMemory::has_ended`](super::IpcMemory::has_ended) returns
/// `true` or an error; until then the kind owns both ends of its copies.
#[derive(Debug, Eq, PartialEq)]
#[must_use = "a batch keeps its slot until its end was polled"]
pub struct CopyBatch(pub u64);

/// Memory of the host that is pinned for a device's copies until this is dropped.
pub struct StagePin(Box<dyn std::any::Any + Send + Sync>);

impl StagePin {
    /// Creates a pin that ends when `guard` is dropped.
    pub fn from_guard(guard: impl std::any::Any + Send + Sync) -> Self {
        Self(Box::new(guard))
    }
}

impl std::fmt::Debug for StagePin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "StagePin({:p})", &raw const *self.0)
    }
}

/// A place to copy from or to.
#[derive(Clone, Copy, Debug)]
pub enum CopyPlace<'a> {
    /// An address inside an allocation of this process; each kind rejects any other.
    Own(usize),
    /// An offset in an open handle.
    Open(&'a OpenedHandle, u64),
}

impl CopyPlace<'_> {
    /// Returns the address of a local place.
    pub(super) const fn own_address(self) -> Option<usize> {
        match self {
            Self::Own(addr) => Some(addr),
            Self::Open(..) => None,
        }
    }

    /// Returns the place `bytes` further on.
    #[must_use]
    pub fn offset_by(self, bytes: usize) -> Self {
        match self {
            Self::Own(addr) => Self::Own(addr.saturating_add(bytes)),
            Self::Open(mapped, offset) => Self::Open(mapped, offset.saturating_add(bytes as u64)),
        }
    }
}

/// A place to copy to.
#[derive(Clone, Copy, Debug)]
pub enum CopyTarget<'a> {
    /// An address inside an allocation of this process.
    Own(usize),
    /// Any other memory range, from an offset on.
    Memory(&'a MemoryRange, u64),
    /// An offset in an open handle.
    Open(&'a OpenedHandle, u64),
}

impl CopyTarget<'_> {
    /// Returns the address of a local place.
    pub(super) const fn own_address(self) -> Option<usize> {
        match self {
            Self::Own(addr) => Some(addr),
            Self::Memory(..) | Self::Open(..) => None,
        }
    }
}
