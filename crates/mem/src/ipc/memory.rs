//! The interface of a kind of memory that processes of a node can share. Implemented by the kinds of this folder, and tested for each of them
//! by `tests/ipc/acceptance.rs`.

use std::fmt;
use std::os::fd::OwnedFd;

use trunkline_proto::reserve::try_filled;

use super::{
    CloseError, CopyBatch, CopyError, CopyPlace, CopyTarget, ExportError, ExportedHandle,
    FindAllocationError, HandleOpenError, HandlePassing, IpcHandle, MappingQueue, NotClosed, OpenedHandle,
    StagePin,
};
use crate::MemoryRange;

/// Bytes per step for kinds that cannot copy between two of their own places.
const STEP: usize = 64 << 10;

/// A driver's id of an allocation: never reused in the same process, even at the same address. It distinguishes memory that was freed and
/// allocated again from the older memory; the address does not.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct IpcAllocationId(pub u64);

/// An allocation of this process.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct IpcAllocation {
    /// Address of the first byte. An export always covers the whole allocation, whichever part was requested.
    pub base: usize,
    /// Length, in bytes.
    pub len: usize,
    /// Its id.
    pub id: IpcAllocationId,
    /// Number of its device; 0 for the host.
    pub device: u32,
}

impl IpcAllocation {
    /// Returns the offset of an address in the allocation, if it is inside.
    #[must_use]
    pub fn offset_of(&self, addr: usize) -> Option<usize> {
        addr.checked_sub(self.base).filter(|offset| *offset < self.len)
    }
}

/// Capabilities of a kind; they do not change.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct IpcCaps {
    /// An open handle has a local address. Otherwise its bytes are only copied, by [`IpcMemory::read`] and [`IpcMemory::write`].
    pub maps: bool,
    /// A handle can be opened by its bytes alone.
    pub by_bytes: bool,
    /// A handle can be opened with a descriptor passed along, which holds the memory while it is in flight.
    pub by_descriptor: bool,
    /// A process can open an allocation only once at a time; a second open fails.
    pub opens_once: bool,
    /// An allocation is not opened while an import of the same owner overlaps its addresses.
    pub refuses_overlap: bool,
    /// Freed memory that another process has open keeps its content and address until it is closed.
    pub outlives_free: bool,
    /// The kind detects a descriptor that belongs to another handle. Drivers map the memory of a descriptor whatever the handle contains; for them
    /// the control stream keeps handle and descriptor together.
    pub tells_descriptors: bool,
}

/// The engine that copies between an import and memory of this process. For kinds that distinguish them, a mapping for one user is unusable by
/// others.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum MappingUser {
    /// Copy engines of a device, by its number in this process.
    Device(u32),
    /// The CPU.
    Host,
}

/// A kind of memory that other processes of the node may map. One value per process and device; any thread may call it.
///
/// A call may take a millisecond in a driver: none of them belongs on the path of a message whose memory is already open.
pub trait IpcMemory: fmt::Debug + Send + Sync {
    /// Returns the kind's capabilities.
    fn caps(&self) -> IpcCaps;

    /// Returns whether all memory of the process that the CPU can access is of this kind, whichever code allocated it.
    fn is_everything(&self) -> bool {
        false
    }

    /// Returns the allocation around an address of this process.
    ///
    /// # Errors
    /// [`FindAllocationError`]. Freed memory is never found.
    fn allocation_of(&self, addr: usize) -> Result<IpcAllocation, FindAllocationError>;

    /// Returns whether a range is memory of this process that can be read and written as one, possibly over several adjacent allocations. No single
    /// handle covers a range of several allocations, so it is not shared.
    fn holds_range(&self, addr: usize, len: usize) -> bool {
        let found = self.allocation_of(addr).ok();
        let room = found.and_then(|found| Some(found.len - found.offset_of(addr)?));
        room.is_some_and(|room| len <= room)
    }

    /// Creates a handle of an allocation, for any number of peers. End it by [`IpcMemory::unexport`].
    ///
    /// # Errors
    /// [`ExportError`]; [`ExportError::Gone`] if no allocation has that id any more.
    fn export(&self, of: &IpcAllocation, how: HandlePassing) -> Result<ExportedHandle, ExportError>;

    /// Ends an export. Peers that have the memory open keep it.
    ///
    /// # Errors
    /// [`CloseError`].
    fn unexport(&self, export: ExportedHandle) -> Result<(), CloseError> {
        drop(export);
        Ok(())
    }

    /// Returns the queue of the thread that releases handles, for kinds whose driver may wait for a running kernel there. `None`:
    /// [`IpcMemory::unexport`] does not wait for kernels.
    fn unexport_queue(&self) -> Option<&MappingQueue> {
        None
    }

    /// Opens a handle of a peer, completely or not at all. A descriptor received with the handle is closed before this returns.
    ///
    /// # Errors
    /// [`HandleOpenError`].
    fn open(&self, handle: &IpcHandle, descriptor: Option<OwnedFd>) -> Result<OpenedHandle, HandleOpenError>;

    /// Returns the user that copies to or from address `own` of this kind's memory. Without an address, the user for other memory of this process.
    /// A kind for which one mapping serves all users returns `None`.
    fn mapping_user(&self, _own: Option<usize>) -> Option<MappingUser> {
        None
    }

    /// Opens a handle as [`IpcMemory::open`] does, for a user returned by [`IpcMemory::mapping_user`]. Memory that is open for another user is
    /// opened again.
    ///
    /// # Errors
    /// [`HandleOpenError`].
    fn open_for(
        &self,
        handle: &IpcHandle,
        descriptor: Option<OwnedFd>,
        _user: MappingUser,
    ) -> Result<OpenedHandle, HandleOpenError> {
        self.open(handle, descriptor)
    }

    /// Closes a mapping. Waits for copies in flight that were started by this value, and for no other use of the address.
    ///
    /// # Errors
    /// [`NotClosed`], which contains the mapping.
    fn close(&self, mapped: OpenedHandle) -> Result<(), NotClosed>;

    /// Returns the queue of the thread that opens and closes handles for callers that must not wait. Only kinds whose driver may wait for a running
    /// kernel there have one. With `None`, [`IpcMemory::open_for`] and [`IpcMemory::close`] do not wait for kernels.
    fn mapping_queue(&self) -> Option<&MappingQueue> {
        None
    }

    /// Copies bytes from this kind's memory to a slice.
    ///
    /// # Errors
    /// [`CopyError`]. The content of `out` is then undefined.
    fn read(&self, from: CopyPlace<'_>, out: &mut [u8]) -> Result<(), CopyError>;

    /// Copies bytes from a slice to this kind's memory.
    ///
    /// # Errors
    /// [`CopyError`]. If the kind knows its allocations, no byte was written.
    fn write(&self, to: CopyPlace<'_>, bytes: &[u8]) -> Result<(), CopyError>;

    /// Copies bytes from one place to another: in one step if the kind can access both, else through a small buffer of this process.
    ///
    /// # Errors
    /// [`CopyError`]. The content of `to` is then undefined.
    fn copy(&self, from: CopyPlace<'_>, to: CopyTarget<'_>, len: usize) -> Result<(), CopyError> {
        copy_in_steps(self, from, to, len)
    }

    /// Copies bytes from a memory range, from `offset` on, to this kind's memory.
    ///
    /// # Errors
    /// As [`IpcMemory::write`].
    fn fill_from(
        &self,
        to: CopyPlace<'_>,
        from: &MemoryRange,
        offset: u64,
        len: usize,
    ) -> Result<(), CopyError> {
        let mut bytes = try_filled(0, len.min(STEP))?;
        let mut done = 0;
        while done < len {
            let part_len = (len - done).min(STEP);
            let part = bytes.get_mut(..part_len).unwrap_or_default();
            let at = offset.saturating_add(done as u64);
            from.read(at, part).map_err(|_| CopyError::Outside { at, len: part_len })?;
            self.write(to.offset_by(done), part)?;
            done += part_len;
        }
        Ok(())
    }

    /// Pins memory that copies are staged through, so that they run at the speed of the device's link. Returns `None` if the memory is not pinned:
    /// this kind does not need it, or the driver failed, which prints a warning once per process. May wait for a running kernel if
    /// [`IpcMemory::pin_queue`] returns a queue.
    fn pin_stage(&self, _memory: &MemoryRange) -> Option<StagePin> {
        None
    }

    /// Returns the queue of the thread that pins memory of the host, for kinds whose driver may wait for a running kernel there. `None`:
    /// [`IpcMemory::pin_stage`] does not wait for kernels. That thread also unpins the memory, so that dropping a pin does not wait.
    fn pin_queue(&self) -> Option<&MappingQueue> {
        None
    }

    /// Returns the maximum length of a batch in bytes, for kinds with asynchronous copies. `None`: copies complete before the call returns.
    fn batch_bytes(&self) -> Option<u64> {
        None
    }

    /// Starts a copy, behind all others of the batch, which the first copy creates. A synchronous kind copies at once and creates no batch. The
    /// copy is complete, and both ends may be used by any code, when [`IpcMemory::has_ended`] returns `true` for the batch, even if this call
    /// failed.
    ///
    /// # Errors
    /// [`CopyError`]. After [`CopyError::Busy`] the same copies may be started again: at once if there is no batch, else after the batch has ended;
    /// some of its bytes may have been copied by then.
    fn begin_copy(
        &self,
        _batch: &mut Option<CopyBatch>,
        from: CopyPlace<'_>,
        to: CopyTarget<'_>,
        len: usize,
    ) -> Result<(), CopyError> {
        self.copy(from, to, len)
    }

    /// Starts a copy from a memory range, as [`IpcMemory::fill_from`] makes it and with the rules of [`IpcMemory::begin_copy`].
    ///
    /// # Errors
    /// As [`IpcMemory::begin_copy`].
    fn begin_fill(
        &self,
        _batch: &mut Option<CopyBatch>,
        to: CopyPlace<'_>,
        from: &MemoryRange,
        offset: u64,
        len: usize,
    ) -> Result<(), CopyError> {
        self.fill_from(to, from, offset, len)
    }

    /// Returns whether all copies of a batch have completed. The batch ends with `true`, and with an error. Never waits.
    ///
    /// # Errors
    /// [`CopyError`]: the content of the targets is undefined.
    fn has_ended(&self, _batch: &CopyBatch) -> Result<bool, CopyError> {
        Ok(true)
    }
}

/// Copies bytes through a small buffer of this process.
///
/// # Errors
/// As [`IpcMemory::copy`].
pub(super) fn copy_in_steps<M: IpcMemory + ?Sized>(
    of: &M,
    from: CopyPlace<'_>,
    to: CopyTarget<'_>,
    len: usize,
) -> Result<(), CopyError> {
    let mut bytes = try_filled(0, len.min(STEP))?;
    let mut done = 0;
    while done < len {
        let part_len = (len - done).min(STEP);
        let part = bytes.get_mut(..part_len).unwrap_or_default();
        of.read(from.offset_by(done), part)?;
        match to {
            CopyTarget::Own(addr) => of.write(CopyPlace::Own(addr.saturating_add(done)), part)?,
            CopyTarget::Memory(memory, at) => {
                let at = at.saturating_add(done as u64);
                memory.write(at, part).map_err(|_| CopyError::Outside { at, len: part_len })?;
            }
            CopyTarget::Open(mapped, at) => of.write(CopyPlace::Open(mapped, at).offset_by(done), part)?,
        }
        done += part_len;
    }
    Ok(())
}
