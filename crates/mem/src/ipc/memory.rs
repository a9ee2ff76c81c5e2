//! What a kind of memory must do so that processes of a node can share it. Implemented by the kinds beside this file, later by the
//! drivers of GPUs; `tests/ipc/acceptance.rs` holds each of them to it.

use std::fmt;
use std::os::fd::OwnedFd;

use trunkline_proto::reserve::try_filled;

use super::{
    CloseError, CopyBatch, CopyError, CopyPlace, CopyTarget, ExportError, ExportedHandle,
    FindAllocationError, HandleOpenError, HandlePassing, IpcHandle, MappingQueue, NotClosed, OpenedHandle,
    StagePin,
};
use crate::MemoryRange;

/// Bytes that a kind copies at a time which cannot copy from one of its places to another.
const STEP: usize = 64 << 10;

/// What a driver calls an allocation: never given to another one of the same process, also at the same address. It tells memory that
/// was freed and allocated again from what was there before; the address never does.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct IpcAllocationId(pub u64);

/// An allocation, as its owner sees it.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct IpcAllocation {
    /// Address of the first byte. What is exported is all of the allocation, whatever part was asked for.
    pub base: usize,
    /// Bytes.
    pub len: usize,
    /// Its name.
    pub id: IpcAllocationId,
    /// The number of its device, 0 for the host.
    pub device: u32,
}

impl IpcAllocation {
    /// How far into it an address is, if it is inside.
    #[must_use]
    pub fn offset_of(&self, addr: usize) -> Option<usize> {
        addr.checked_sub(self.base).filter(|offset| *offset < self.len)
    }
}

/// What a kind does and does not, asked once.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct IpcCaps {
    /// An open handle has an address here. Otherwise its bytes are only copied, by [`IpcMemory::read`] and [`IpcMemory::write`].
    pub maps: bool,
    /// A handle's bytes are enough to open it.
    pub by_bytes: bool,
    /// A handle may be opened with a descriptor that came along, which holds the memory while it is under way.
    pub by_descriptor: bool,
    /// A process opens an allocation once at a time, and is refused the second time.
    pub opens_once: bool,
    /// What has, at its owner, addresses in common with something of the same owner that is still open is not opened.
    pub refuses_overlap: bool,
    /// Freed memory that is still open elsewhere stays what it is and where it is, until it is closed.
    pub outlives_free: bool,
    /// A descriptor that came with the handle of other memory is told from the right one. Drivers map what a descriptor is of, whatever
    /// the handle says; there it is the stream that keeps the two together.
    pub tells_descriptors: bool,
}

/// Who moves bytes between what is open and memory of this process. Where a kind tells them apart, what is open for one is of no use to another.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum MappingUser {
    /// Copy engines of a device, which has that number in this process.
    Device(u32),
    /// The processor.
    Host,
}

/// A kind of memory that other processes of the node may map. One value a process and device; any thread may call.
///
/// A call may take a driver a millisecond: none of them belongs on the path of a message whose memory is open already.
pub trait IpcMemory: fmt::Debug + Send + Sync {
    /// What it does and does not.
    fn caps(&self) -> IpcCaps;

    /// Whether all memory of the process that the processor reaches is of this kind, whoever allocated it.
    fn is_everything(&self) -> bool {
        false
    }

    /// The allocation around an address of this process.
    ///
    /// # Errors
    /// [`FindAllocationError`]. What was freed is not found; nothing is guessed.
    fn allocation_of(&self, addr: usize) -> Result<IpcAllocation, FindAllocationError>;

    /// Whether bytes are all own memory that is read and written as one, be it of several allocations that lie one behind the other. No one
    /// handle is of all of them then, and they go another way.
    fn holds_range(&self, addr: usize, len: usize) -> bool {
        let found = self.allocation_of(addr).ok();
        let room = found.and_then(|found| Some(found.len - found.offset_of(addr)?));
        room.is_some_and(|room| len <= room)
    }

    /// A handle of an allocation, for any number of peers. It goes with [`IpcMemory::unexport`].
    ///
    /// # Errors
    /// [`ExportError`], [`ExportError::Gone`] when the allocation is not there under that id any more.
    fn export(&self, of: &IpcAllocation, how: HandlePassing) -> Result<ExportedHandle, ExportError>;

    /// The handle is over. Who has it open keeps it.
    ///
    /// # Errors
    /// [`CloseError`].
    fn unexport(&self, export: ExportedHandle) -> Result<(), CloseError> {
        drop(export);
        Ok(())
    }

    /// The requests of the thread that gives handles back, of a kind whose driver may wait there for a kernel that runs. `None`: [`IpcMemory::unexport`] waits for none.
    fn unexport_queue(&self) -> Option<&MappingQueue> {
        None
    }

    /// Opens a handle of a peer, all or nothing. The descriptor, if the handle came with one, is closed before this returns.
    ///
    /// # Errors
    /// [`HandleOpenError`].
    fn open(&self, handle: &IpcHandle, descriptor: Option<OwnedFd>) -> Result<OpenedHandle, HandleOpenError>;

    /// Who moves bytes to or from an address of own memory, or any other memory of this process. A kind that does not say has one mapping for all of
    /// them.
    fn mapping_user(&self, _own: Option<usize>) -> Option<MappingUser> {
        None
    }

    /// As [`IpcMemory::open`], for one that [`IpcMemory::mapping_user`] says; what is open for another one is opened once more.
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

    /// It is not used any more. Waits for copies of this value that are under way, and for nothing else that uses the address.
    ///
    /// # Errors
    /// [`NotClosed`], which gives the mapping back.
    fn close(&self, mapped: OpenedHandle) -> Result<(), NotClosed>;

    /// The requests of the thread that opens and closes for callers that must not wait, of a kind whose driver may wait there for a kernel that runs. `None`: this
    /// kind has no such driver and no thread, and [`IpcMemory::open_for`] and [`IpcMemory::close`] wait for no kernel.
    fn mapping_queue(&self) -> Option<&MappingQueue> {
        None
    }

    /// Copies bytes out.
    ///
    /// # Errors
    /// [`CopyError`]. What is in `out` then has no meaning.
    fn read(&self, from: CopyPlace<'_>, out: &mut [u8]) -> Result<(), CopyError>;

    /// Copies bytes in.
    ///
    /// # Errors
    /// [`CopyError`]. Where the kind knows what is allocated, nothing was written then.
    fn write(&self, to: CopyPlace<'_>, bytes: &[u8]) -> Result<(), CopyError>;

    /// Copies bytes from one place to another. Kinds that reach both do it in one go, others by way of a little memory of this process.
    ///
    /// # Errors
    /// [`CopyError`]. What is at `to` then has no meaning.
    fn copy(&self, from: CopyPlace<'_>, to: CopyTarget<'_>, len: usize) -> Result<(), CopyError> {
        copy_in_steps(self, from, to, len)
    }

    /// Copies bytes in from any other memory, from an offset on.
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

    /// Pins memory that copies go through, so that they are as fast as the device's link. `None`: it is not pinned, as this kind has no use for it or the driver
    /// refuses, of which the user is warned once per process. May wait for a kernel that runs where there is an [`IpcMemory::pin_queue`].
    fn pin_stage(&self, _memory: &MemoryRange) -> Option<StagePin> {
        None
    }

    /// The requests of the thread that pins memory of the host, of a kind whose driver may wait there for a kernel that runs. `None`: [`IpcMemory::pin_stage`] waits for none.
    /// Where there is one, that thread unpins the memory, too, and the thread that drops the pin does not wait.
    fn pin_queue(&self) -> Option<&MappingQueue> {
        None
    }

    /// How many bytes a batch should have at most, of a kind whose copies go on after they were begun. `None`: they are done where they are begun.
    fn batch_bytes(&self) -> Option<u64> {
        None
    }

    /// Begins to copy bytes, behind all others of the batch, which its first copy makes. A kind that copies at once does so, and makes no batch. The bytes
    /// are there, and both ends may be used by any code, when [`IpcMemory::has_ended`] says so of the batch, also where this failed.
    ///
    /// # Errors
    /// [`CopyError`]. After [`CopyError::Busy`] the same copies may be begun again: at once without a batch, and with one behind its end, where some of the bytes may have
    /// been copied.
    fn begin_copy(
        &self,
        _batch: &mut Option<CopyBatch>,
        from: CopyPlace<'_>,
        to: CopyTarget<'_>,
        len: usize,
    ) -> Result<(), CopyError> {
        self.copy(from, to, len)
    }

    /// The same of bytes that any other memory has, as [`IpcMemory::fill_from`] copies them.
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

    /// Whether all copies of a batch have ended. It is over then, and after an error. Never waits.
    ///
    /// # Errors
    /// [`CopyError`]: the target bytes have no meaning.
    fn has_ended(&self, _batch: &CopyBatch) -> Result<bool, CopyError> {
        Ok(true)
    }
}

/// Copies bytes by way of a little memory of this process.
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
