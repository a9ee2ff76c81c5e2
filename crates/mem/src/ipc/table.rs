//! What a process has of a kind: its own allocations by their addresses, and what it has open of peers. Common to the kinds that map. A child of a fork
//! has nothing of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::address_window::AddressWindow;
use super::mapping::FileMapping;
use super::{
    CloseError, CopyError, CopyPlace, CopyTarget, FindAllocationError, IpcAllocation, IpcAllocationId,
    NotClosed, OpenedHandle,
};
use crate::{MemoryKind, MemoryRange};

/// An own allocation, and what its kind knows of it.
#[derive(Debug)]
pub(super) struct OwnAllocation<T> {
    pub(super) allocation: IpcAllocation,
    pub(super) more: T,
}

/// What is open of a peer.
#[derive(Debug)]
pub(super) struct MappedImport {
    /// Whose it is.
    pub(super) owner: u64,
    /// What it is called there.
    pub(super) id: IpcAllocationId,
    /// Where it is there.
    pub(super) base: u64,
    pub(super) len: usize,
    mapping: Arc<FileMapping>,
}

/// All of them.
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

    /// An allocation is there.
    pub(super) fn add_own(&mut self, allocation: IpcAllocation, more: T) {
        self.own.insert(allocation.base, OwnAllocation { allocation, more });
    }

    fn is_childs(&self) -> bool {
        self.window.fork_guard().is_child()
    }

    /// The allocation that begins at an address.
    pub(super) fn find_own(&self, base: usize) -> Option<&OwnAllocation<T>> {
        self.own.get(&base).filter(|_| !self.is_childs())
    }

    /// It is gone.
    pub(super) fn remove(&mut self, base: usize) -> Option<OwnAllocation<T>> {
        self.own.remove(&base)
    }

    /// The allocation around an address.
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

    /// What is open of an owner and has addresses there in common with those.
    pub(super) fn in_the_way(&self, owner: u64, base: u64, len: usize) -> Option<&MappedImport> {
        let end = base.saturating_add(len as u64);
        let meets = |one: &&MappedImport| {
            one.owner == owner && one.base < end && base < one.base.saturating_add(one.len as u64)
        };
        self.imports.values().find(meets)
    }

    /// Something of a peer is mapped.
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

    /// Unmaps it.
    pub(super) fn close_import(&mut self, mapped: OpenedHandle) -> Result<(), NotClosed> {
        if self.is_open(&mapped).is_none() {
            return Err(NotClosed { mapped, error: CloseError::Unknown });
        }
        self.imports.remove(&mapped.number);
        Ok(())
    }

    /// The bytes of a place, and where they begin in them; used while the table is borrowed and not longer.
    fn locate_bytes(&self, at: CopyPlace<'_>, len: usize) -> Result<(MemoryRange, u64), CopyError> {
        match at {
            CopyPlace::Own(addr) => {
                let outside = CopyError::Outside { at: addr as u64, len };
                let own = self.find_around(addr).map_err(|_| outside)?.allocation;
                // SAFETY: an own allocation is mapped readable and writable as long as it is in the table, which is
                // borrowed; nobody refers to the bytes.
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

    /// Copies bytes out.
    pub(super) fn read(&self, from: CopyPlace<'_>, out: &mut [u8]) -> Result<(), CopyError> {
        let (memory, offset) = self.locate_bytes(from, out.len())?;
        let outside = CopyError::Outside { at: offset, len: out.len() };
        memory.read(offset, out).map_err(|_| outside)
    }

    /// Copies bytes in.
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

    /// Copies bytes in, from any other memory.
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
