//! The allocations of a process by address, and its imports of peers' memory. Shared by the kinds that map memory files. In a forked child it
//! is empty.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::address_window::AddressWindow;
use super::mapping::FileMapping;
use super::{
    CloseError, CopyError, CopyPlace, CopyTarget, FindAllocationError, IpcAllocation, IpcAllocationId,
    NotClosed, OpenedHandle,
};
use crate::{MemoryKind, MemoryRange};

/// An allocation of this process, and its kind's own data.
#[derive(Debug)]
pub(super) struct OwnAllocation<T> {
    pub(super) allocation: IpcAllocation,
    pub(super) more: T,
}

/// An import of a peer's memory.
#[derive(Debug)]
pub(super) struct MappedImport {
    /// Number of its owner.
    pub(super) owner: u64,
    /// The allocation's id in the owner.
    pub(super) id: IpcAllocationId,
    /// The allocation's address in the owner.
    pub(super) base: u64,
    pub(super) len: usize,
    mapping: Arc<FileMapping>,
}

/// All allocations and imports.
#[derive(Debug)]
pub(super) struct AllocationTable<T> {
    pub(super) window: AddressWindow,
    own: BTreeMap<usize, OwnAllocation<T>>,
    imports: BTreeMap<u64, MappedImport>,
    next: u64,
}

impl<T> AllocationTable<T> {
    pub(super) fn new(window: AddressWindow) -> Self {
        Self { window, own: BTreeMap::new(), imports: BTreeMap::new(), next: 1 }
    }

    /// Adds an allocation.
    pub(super) fn add_own(&mut self, allocation: IpcAllocation, more: T) {
        self.own.insert(allocation.base, OwnAllocation { allocation, more });
    }

    fn is_childs(&self) -> bool {
        self.window.fork_guard().is_child()
    }

    /// Returns the allocation that begins at an address.
    pub(super) fn find_own(&self, base: usize) -> Option<&OwnAllocation<T>> {
        self.own.get(&base).filter(|_| !self.is_childs())
    }

    /// Removes an allocation.
    pub(super) fn remove(&mut self, base: usize) -> Option<OwnAllocation<T>> {
        self.own.remove(&base)
    }

    /// Returns the allocation around an address.
    pub(super) fn find_around(&self, addr: usize) -> Result<&OwnAllocation<T>, FindAllocationError> {
        if self.is_childs() {
            return Err(FindAllocationError::Unknown { addr });
        }
        let below = self.own.range(..=addr).next_back();
        if let Some((_, own)) = below.filter(|(_, own)| own.allocation.offset_of(addr).is_some()) {
            return Ok(own);
        }
        let is_there = |one: &MappedImport| addr.wrapping_sub(one.mapping.addr()) < one.mapping.len();
        if self.imports.values().any(is_there) {
            return Err(FindAllocationError::Imported { addr });
        }
        Err(FindAllocationError::Unknown { addr })
    }

    /// Returns an import of `owner` that overlaps the owner's range `base..base + len`.
    pub(super) fn in_the_way(&self, owner: u64, base: u64, len: usize) -> Option<&MappedImport> {
        let end = base.saturating_add(len as u64);
        let meets = |one: &&MappedImport| {
            one.owner == owner && one.base < end && base < one.base.saturating_add(one.len as u64)
        };
        self.imports.values().find(meets)
    }

    /// Adds a mapped import.
    pub(super) fn add_import(
        &mut self,
        owner: u64,
        id: IpcAllocationId,
        base: u64,
        len: usize,
        mapping: FileMapping,
    ) -> OpenedHandle {
        let number = self.next;
        self.next += 1;
        let address = Some(mapping.addr());
        self.imports.insert(number, MappedImport { owner, id, base, len, mapping: Arc::new(mapping) });
        OpenedHandle { number, address, len }
    }

    fn is_open(&self, mapped: &OpenedHandle) -> Option<&MappedImport> {
        let found = self.imports.get(&mapped.number).filter(|_| !self.is_childs())?;
        (Some(found.mapping.addr()) == mapped.address && found.len == mapped.len).then_some(found)
    }

    /// Unmaps an import.
    pub(super) fn close_import(&mut self, mapped: OpenedHandle) -> Result<(), NotClosed> {
        if self.is_open(&mapped).is_none() {
            return Err(NotClosed { mapped, error: CloseError::Unknown });
        }
        self.imports.remove(&mapped.number);
        Ok(())
    }

    /// Returns the memory of a place, and the offset of its bytes; valid only while the table is borrowed.
    fn locate_bytes(&self, at: CopyPlace<'_>, len: usize) -> Result<(MemoryRange, u64), CopyError> {
        match at {
            CopyPlace::Own(addr) => {
                let outside = CopyError::Outside { at: addr as u64, len };
                let own = self.find_around(addr).map_err(|_| outside)?.allocation;
                // SAFETY: an allocation is mapped readable and writable while it is in the table, which is borrowed; no
                // reference to its bytes exists.
                let memory = unsafe { MemoryRange::from_raw(own.base, own.len, MemoryKind::Host) };
                Ok((memory, (addr - own.base) as u64))
            }
            CopyPlace::Open(mapped, offset) => {
                let import = self.is_open(mapped).ok_or(CopyError::Closed)?;
                let size = import.len as u64;
                if offset.checked_add(len as u64).is_none_or(|end| end > size) {
                    return Err(CopyError::Outside { at: offset, len });
                }
                Ok((import.mapping.memory(), offset))
            }
        }
    }

    /// Copies bytes from a place to a slice.
    pub(super) fn read(&self, from: CopyPlace<'_>, out: &mut [u8]) -> Result<(), CopyError> {
        let (memory, offset) = self.locate_bytes(from, out.len())?;
        let outside = CopyError::Outside { at: offset, len: out.len() };
        memory.read(offset, out).map_err(|_| outside)
    }

    /// Copies bytes from a slice to a place.
    pub(super) fn write(&self, to: CopyPlace<'_>, bytes: &[u8]) -> Result<(), CopyError> {
        let (memory, offset) = self.locate_bytes(to, bytes.len())?;
        memory.write(offset, bytes).map_err(|_| CopyError::Outside { at: offset, len: bytes.len() })
    }

    /// Copies bytes from one place to another.
    pub(super) fn copy(&self, from: CopyPlace<'_>, to: CopyTarget<'_>, len: usize) -> Result<(), CopyError> {
        let (source, from) = self.locate_bytes(from, len)?;
        match to {
            CopyTarget::Own(addr) => {
                let (memory, at) = self.locate_bytes(CopyPlace::Own(addr), len)?;
                copy_memory(&source, from, &memory, at, len)
            }
            CopyTarget::Open(mapped, at) => {
                let (memory, at) = self.locate_bytes(CopyPlace::Open(mapped, at), len)?;
                copy_memory(&source, from, &memory, at, len)
            }
            CopyTarget::Memory(memory, at) => copy_memory(&source, from, memory, at, len),
        }
    }

    /// Copies bytes from a memory range to a place.
    pub(super) fn fill_from(
        &self,
        to: CopyPlace<'_>,
        from: &MemoryRange,
        offset: u64,
        len: usize,
    ) -> Result<(), CopyError> {
        let (memory, at) = self.locate_bytes(to, len)?;
        copy_memory(from, offset, &memory, at, len)
    }
}

fn copy_memory(
    source: &MemoryRange,
    from: u64,
    memory: &MemoryRange,
    at: u64,
    len: usize,
) -> Result<(), CopyError> {
    memory.copy_from(at, source, from, len as u64).map_err(|_| CopyError::Outside { at, len })
}
