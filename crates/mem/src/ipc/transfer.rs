//! What calls of a kind of memory give and take: exports, open handles, and places to copy from and to.

use std::os::fd::OwnedFd;

use super::IpcHandle;
use crate::MemoryRange;

/// How a handle gets to a peer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum HandlePassing {
    /// Its bytes are enough.
    Bytes,
    /// A descriptor goes along.
    Descriptor,
    /// As the allocation wants: a descriptor goes along where it must.
    Either,
}

/// An allocation that peers may open.
#[derive(Debug)]
#[must_use = "it goes back by unexport"]
pub struct ExportedHandle {
    /// What peers open it by.
    pub handle: IpcHandle,
    /// What goes along; peers get copies of it.
    pub descriptor: Option<OwnedFd>,
}

/// A handle of a peer that is open here. Goes back by [`IpcMemory::close`](super::IpcMemory::close); one that is dropped stays open as
/// long as its kind.
#[derive(Debug, Eq, PartialEq)]
#[must_use = "it stays open until it is closed"]
pub struct OpenedHandle {
    /// Which one, in the table of its kind.
    pub(super) number: u64,
    pub(super) address: Option<usize>,
    pub(super) len: usize,
}

impl OpenedHandle {
    /// Where its first byte is in this process; of kinds that do not map `None`.
    #[must_use]
    pub fn local_address(&self) -> Option<usize> {
        self.address
    }

    /// Bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes; it never is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// Copies that were begun together and are under way. It is over when [`IpcMemory::has_ended`](super::IpcMemory::has_ended) says so, or that it failed; until
/// then both ends of its copies are the kind's.
#[derive(Debug, Eq, PartialEq)]
#[must_use = "it keeps its place among those under way until its end was asked for"]
pub struct CopyBatch(pub u64);

/// Memory of the host that is pinned for the copies of a device, until this is dropped.
pub struct StagePin(Box<dyn std::any::Any + Send + Sync>);

impl StagePin {
    /// One that ends when that is dropped.
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
    /// An address inside an own allocation; each kind refuses any other.
    Own(usize),
    /// An offset in what is open here.
    Open(&'a OpenedHandle, u64),
}

impl CopyPlace<'_> {
    /// The address, of an own one.
    pub(super) const fn own_address(self) -> Option<usize> {
        match self {
            Self::Own(addr) => Some(addr),
            Self::Open(..) => None,
        }
    }

    /// So many bytes further on.
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
    /// An address inside an own allocation.
    Own(usize),
    /// Any other memory, from an offset on.
    Memory(&'a MemoryRange, u64),
    /// An offset in what is open here.
    Open(&'a OpenedHandle, u64),
}

impl CopyTarget<'_> {
    /// The address, of an own one.
    pub(super) const fn own_address(self) -> Option<usize> {
        match self {
            Self::Own(addr) => Some(addr),
            Self::Memory(..) | Self::Open(..) => None,
        }
    }
}
