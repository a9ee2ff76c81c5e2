//! Registered memory, by the strictest model in use (libfabric's endpoint-bound registration): a region belongs
//! to a rail, keeps it alive, and is closed before it. The purpose of a region is part of its type.

use std::marker::PhantomData;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use trunkline_mem::MemoryRange;

use crate::{DeregisterError, RegionExtent, RegisterError};

/// Names a region on this side.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct LocalKey(pub u64);

/// Lets a peer reach a region; unguessable where the fabric can make it so.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct RemoteKey(pub u64);

/// Rights of a peer on a region. Local use needs no right.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct AccessRights {
    /// Remote writes.
    pub write: bool,
    /// Remote reads.
    pub read: bool,
    /// Remote atomics.
    pub atomic: bool,
}

impl AccessRights {
    /// Only this side uses it.
    pub const LOCAL: Self = Self { write: false, read: false, atomic: false };
    /// Peers may write.
    pub const WRITE: Self = Self { write: true, read: false, atomic: false };
    /// Peers may read and write.
    pub const READ_WRITE: Self = Self { write: true, read: true, atomic: false };
    /// Peers may do everything.
    pub const ALL: Self = Self { write: true, read: true, atomic: true };
}

/// When the CPU can see a remote write into a region.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum WriteVisibility {
    /// In order and at once: mailboxes and signals.
    Strict,
    /// Possibly only after a flush: data.
    Relaxed,
}

/// The purpose of a region. Networks that bind registrations to endpoints have one endpoint for data and one for records.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum RegionPurpose {
    /// Payload of users.
    Data,
    /// Buffers of this library that operations with payload use: eager messages arrive in them. Regions of this purpose without remote
    /// rights are only targets of receives.
    Bounce,
    /// Memory that all ends of a job have: peers use it within their rights, and this end writes from it and reads into it.
    Heap,
    /// Mailboxes and signals: peers write records there.
    Records,
}

impl RegionPurpose {
    /// Returns when remote writes into such a region become visible.
    #[must_use]
    pub const fn write_visibility(self) -> WriteVisibility {
        match self {
            Self::Data => WriteVisibility::Relaxed,
            Self::Bounce | Self::Heap | Self::Records => WriteVisibility::Strict,
        }
    }

    /// Whether operations of purpose `other` may use a region of this purpose.
    #[must_use]
    pub const fn is_compatible(self, other: Self) -> bool {
        matches!(self, Self::Records) == matches!(other, Self::Records)
    }
}

/// How a region is reached.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RegionKeys {
    /// For operations of this side.
    pub local: LocalKey,
    /// For operations of a peer.
    pub remote: RemoteKey,
    /// Address of the region's first byte in remote operations: its virtual address, or 0 for zero-based regions.
    pub remote_base: u64,
}

/// Memory of a device as its driver exported it. The descriptor is borrowed for the call: the caller closes it.
#[derive(Clone, Copy, Debug)]
pub struct ExportedDmaBuf<'a> {
    /// A dma-buf.
    pub fd: BorrowedFd<'a>,
    /// Offset of the memory's first byte in the dma-buf, in bytes; congruent to the memory's address modulo the page size.
    pub offset: u64,
}

/// Registers memory for one rail. Shared between threads.
pub trait MemoryRegistrar: Send + Sync + 'static {
    /// Registers a range; the registrar keeps its clone of `memory` until the region is deregistered. Memory of a device is
    /// identified by its address, with the help of a kernel module ([`DeviceReach`](crate::DeviceReach)).
    ///
    /// # Errors
    /// [`RegisterError`] names the limit or the system call.
    fn register(
        &self,
        memory: &MemoryRange,
        access: AccessRights,
        purpose: RegionPurpose,
    ) -> Result<RegionKeys, RegisterError>;

    /// Registers memory of a device by a dma-buf ([`DeviceReach::dmabuf`](crate::DeviceReach::dmabuf)). Operations name the
    /// bytes as they would those of [`MemoryRegistrar::register`].
    ///
    /// # Errors
    /// [`RegisterError`]; of a NIC that reaches no such memory [`RegisterError::Kind`].
    fn register_exported(
        &self,
        memory: &MemoryRange,
        exported: ExportedDmaBuf<'_>,
        access: AccessRights,
        purpose: RegionPurpose,
    ) -> Result<RegionKeys, RegisterError> {
        let _ = (exported, access, purpose);
        Err(RegisterError::Kind(memory.kind()))
    }

    /// Ends a registration. After success nothing touches the memory through it any more, so it may be unmapped.
    /// Waits for running copies, at most the rail's `peer_time`. If several owners registered the same bytes, the NIC may share one
    /// registration among them ([`cache`](crate::cache)): it and its key stay valid until the last owner deregisters. Operations
    /// posted under this registration, or their links, must have ended before the call.
    ///
    /// # Errors
    /// [`DeregisterError`]; the region is closed to new operations even so, and the call may be repeated.
    fn deregister(&self, key: LocalKey) -> Result<(), DeregisterError>;

    /// Ends a registration whose remote key peers may still use. Where [`Caps::retires`](crate::Caps::retires), later writes of
    /// peers through it complete at both ends as if they had been placed, but their bytes are dropped. Elsewhere
    /// they are refused as after [`MemoryRegistrar::deregister`]. A NIC keeps a bounded number of such keys and forgets the oldest. A
    /// rail without a usable link no longer shares such a registration.
    ///
    /// # Errors
    /// As [`MemoryRegistrar::deregister`].
    fn retire(&self, key: LocalKey) -> Result<(), DeregisterError> {
        self.deregister(key)
    }

    /// Ends a registration whose owner needs no result: at once, or as soon as possible. A NIC keeps up to
    /// [`ABANDONED_MAX`](crate::ABANDONED_MAX) registrations that it cannot end yet. It tries again in later calls and when one of
    /// its rails is closed.
    fn abandon(&self, key: LocalKey) {
        // A registrar that keeps no list has nothing to retry.
        let _ = self.deregister(key);
    }
}

/// The purpose of a region, as a type.
pub trait RegionRole: Send + Sync + 'static {
    /// The purpose that the type stands for.
    const PURPOSE: RegionPurpose;
}

/// User data, read or written by operations that carry payload.
#[derive(Debug)]
pub struct PayloadRole;

/// Buffers for eager messages.
#[derive(Debug)]
pub struct BounceRole;

/// Memory that all ends of a job have.
#[derive(Debug)]
pub struct HeapRole;

/// Mailboxes and signals.
#[derive(Debug)]
pub struct ControlRole;

impl RegionRole for PayloadRole {
    const PURPOSE: RegionPurpose = RegionPurpose::Data;
}

impl RegionRole for BounceRole {
    const PURPOSE: RegionPurpose = RegionPurpose::Bounce;
}

impl RegionRole for HeapRole {
    const PURPOSE: RegionPurpose = RegionPurpose::Heap;
}

impl RegionRole for ControlRole {
    const PURPOSE: RegionPurpose = RegionPurpose::Records;
}

/// A registered region of one role. Keeps its rail's registration domain alive; dropping it deregisters.
pub struct RegisteredRegion<R: RegionRole> {
    memory: MemoryRange,
    keys: RegionKeys,
    registrar: Option<Arc<dyn MemoryRegistrar>>,
    role: PhantomData<R>,
}

impl<R: RegionRole> RegisteredRegion<R> {
    /// Registers `memory` for the role.
    ///
    /// # Errors
    /// As [`MemoryRegistrar::register`].
    pub fn register(
        registrar: &Arc<dyn MemoryRegistrar>,
        memory: MemoryRange,
        access: AccessRights,
    ) -> Result<Self, RegisterError> {
        let keys = registrar.register(&memory, access, R::PURPOSE)?;
        Ok(Self { memory, keys, registrar: Some(Arc::clone(registrar)), role: PhantomData })
    }

    /// Registers `memory`, which was exported, for the role.
    ///
    /// # Errors
    /// As [`MemoryRegistrar::register_exported`].
    pub fn register_exported(
        registrar: &Arc<dyn MemoryRegistrar>,
        memory: MemoryRange,
        exported: ExportedDmaBuf<'_>,
        access: AccessRights,
    ) -> Result<Self, RegisterError> {
        let keys = registrar.register_exported(&memory, exported, access, R::PURPOSE)?;
        Ok(Self { memory, keys, registrar: Some(Arc::clone(registrar)), role: PhantomData })
    }

    /// Returns the bytes.
    #[must_use]
    pub fn memory(&self) -> &MemoryRange {
        &self.memory
    }

    /// Returns the keys by which it is reached.
    #[must_use]
    pub fn region_keys(&self) -> RegionKeys {
        self.keys
    }

    /// Returns `len` bytes at `offset`, for an operation.
    #[must_use]
    pub fn extent_at(&self, offset: u64, len: u64) -> RegionExtent {
        RegionExtent { key: self.keys.local, offset, len }
    }

    /// Deregisters.
    ///
    /// # Errors
    /// The region is returned with the reason, to be closed again later.
    pub fn close(self) -> Result<(), (Self, DeregisterError)> {
        self.end_registration(|registrar, key| registrar.deregister(key))
    }

    /// Deregisters although peers may still write ([`MemoryRegistrar::retire`]).
    ///
    /// # Errors
    /// As [`RegisteredRegion::close`].
    pub fn retire(self) -> Result<(), (Self, DeregisterError)> {
        self.end_registration(|registrar, key| registrar.retire(key))
    }

    fn end_registration(
        mut self,
        how: impl FnOnce(&dyn MemoryRegistrar, LocalKey) -> Result<(), DeregisterError>,
    ) -> Result<(), (Self, DeregisterError)> {
        let Some(registrar) = self.registrar.take() else { return Ok(()) };
        match how(&*registrar, self.keys.local) {
            Ok(()) => Ok(()),
            Err(error) => {
                self.registrar = Some(registrar);
                Err((self, error))
            }
        }
    }
}

impl<R: RegionRole> Drop for RegisteredRegion<R> {
    fn drop(&mut self) {
        if let Some(registrar) = self.registrar.take() {
            registrar.abandon(self.keys.local);
        }
    }
}

impl<R: RegionRole> std::fmt::Debug for RegisteredRegion<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Mr({:?} {:?})", self.memory, self.keys.local)
    }
}
