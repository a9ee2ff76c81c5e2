//! What a process has of a kind: its own allocations by their addresses, and what it has open of peers. Common to the kinds that map. A child of a fork
//! has nothing of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::mapping::Mapping;
use super::window::Window;
use super::{Allocation, AllocationId, At, CloseError, CopyError, FindError, Mapped, NotClosed, To};
use crate::{Kind, Memory};

/// An own allocation, and what its kind knows of it.
#[derive(Debug)]
pub(super) struct Own<T> {
    pub(super) allocation: Allocation,
    pub(super) more: T,
}

/// What is open of a peer.
#[derive(Debug)]
pub(super) struct Import {
    /// Whose it is.
    pub(super) owner: u64,
    /// What it is called there.
    pub(super) id: AllocationId,
    /// Where it is there.
    pub(super) base: u64,
    pub(super) len: usize,
    mapping: Arc<Mapping>,
}

/// All of them.
#[derive(Debug)]
pub(super) struct Table<T> {
    pub(super) window: Window,
    own: BTreeMap<usize, Own<T>>,
    imports: BTreeMap<u64, Import>,
    next: u64,
}

impl<T> Table<T> {
    pub(super) fn new(window: Window) -> Self {
        Self { window, own: BTreeMap::new(), imports: BTreeMap::new(), next: 1 }
    }

    /// An allocation is there.
    pub(super) fn add(&mut self, allocation: Allocation, more: T) {
        self.own.insert(allocation.base, Own { allocation, more });
    }

    fn is_childs(&self) -> bool {
        self.window.here().is_child()
    }

    /// The allocation that begins at an address.
    pub(super) fn own(&self, base: usize) -> Option<&Own<T>> {
        self.own.get(&base).filter(|_| !self.is_childs())
    }

    /// It is gone.
    pub(super) fn remove(&mut self, base: usize) -> Option<Own<T>> {
        self.own.remove(&base)
    }

    /// The allocation around an address.
    pub(super) fn find(&self, addr: usize) -> Result<&Own<T>, FindError> {
        if self.is_childs() {
            return Err(FindError::Unknown { addr });
        }
        let below = self.own.range(..=addr).next_back();
        if let Some((_, own)) = below.filter(|(_, own)| own.allocation.offset_of(addr).is_some()) {
            return Ok(own);
        }
        let is_there = |one: &Import| addr.wrapping_sub(one.mapping.addr()) < one.mapping.len();
        if self.imports.values().any(is_there) {
            return Err(FindError::Imported { addr });
        }
        Err(FindError::Unknown { addr })
    }

    /// What is open of an owner and has addresses there in common with those.
    pub(super) fn in_the_way(&self, owner: u64, base: u64, len: usize) -> Option<&Import> {
        let end = base.saturating_add(len as u64);
        let meets = |one: &&Import| {
            one.owner == owner && one.base < end && base < one.base.saturating_add(one.len as u64)
        };
        self.imports.values().find(meets)
    }

    /// Something of a peer is mapped.
    pub(super) fn import(
        &mut self,
        owner: u64,
        id: AllocationId,
        base: u64,
        len: usize,
        mapping: Mapping,
    ) -> Mapped {
        let number = self.next;
        self.next += 1;
        let address = Some(mapping.addr());
        self.imports.insert(number, Import { owner, id, base, len, mapping: Arc::new(mapping) });
        Mapped { number, address, len }
    }

    fn is_open(&self, mapped: &Mapped) -> Option<&Import> {
        let found = self.imports.get(&mapped.number).filter(|_| !self.is_childs())?;
        (Some(found.mapping.addr()) == mapped.address && found.len == mapped.len).then_some(found)
    }

    /// Unmaps it.
    pub(super) fn close(&mut self, mapped: Mapped) -> Result<(), NotClosed> {
        if self.is_open(&mapped).is_none() {
            return Err(NotClosed { mapped, error: CloseError::Unknown });
        }
        self.imports.remove(&mapped.number);
        Ok(())
    }

    /// The bytes of a place, and where they begin in them; used while the table is borrowed and not longer.
    fn bytes(&self, at: At<'_>, len: usize) -> Result<(Memory, u64), CopyError> {
        match at {
            At::Own(addr) => {
                let outside = CopyError::Outside { at: addr as u64, len };
                let own = self.find(addr).map_err(|_| outside)?.allocation;
                // SAFETY: an own allocation is mapped readable and writable as long as it is in the table, which is
                // borrowed; nobody refers to the bytes.
                let memory = unsafe { Memory::from_raw(own.base, own.len, Kind::Host) };
                Ok((memory, (addr - own.base) as u64))
            }
            At::Open(mapped, offset) => {
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
    pub(super) fn read(&self, from: At<'_>, out: &mut [u8]) -> Result<(), CopyError> {
        let (memory, offset) = self.bytes(from, out.len())?;
        let outside = CopyError::Outside { at: offset, len: out.len() };
        memory.read(offset, out).map_err(|_| outside)
    }

    /// Copies bytes in.
    pub(super) fn write(&self, to: At<'_>, bytes: &[u8]) -> Result<(), CopyError> {
        let (memory, offset) = self.bytes(to, bytes.len())?;
        memory.write(offset, bytes).map_err(|_| CopyError::Outside { at: offset, len: bytes.len() })
    }

    /// Copies bytes from one place to another.
    pub(super) fn copy(&self, from: At<'_>, to: To<'_>, len: usize) -> Result<(), CopyError> {
        let (source, from) = self.bytes(from, len)?;
        match to {
            To::Own(addr) => {
                let (memory, at) = self.bytes(At::Own(addr), len)?;
                copy(&source, from, &memory, at, len)
            }
            To::Open(mapped, at) => {
                let (memory, at) = self.bytes(At::Open(mapped, at), len)?;
                copy(&source, from, &memory, at, len)
            }
            To::Memory(memory, at) => copy(&source, from, memory, at, len),
        }
    }

    /// Copies bytes in, from any other memory.
    pub(super) fn fill(&self, to: At<'_>, from: &Memory, offset: u64, len: usize) -> Result<(), CopyError> {
        let (memory, at) = self.bytes(to, len)?;
        copy(from, offset, &memory, at, len)
    }
}

fn copy(source: &Memory, from: u64, memory: &Memory, at: u64, len: usize) -> Result<(), CopyError> {
    memory.copy_from(at, source, from, len as u64).map_err(|_| CopyError::Outside { at, len })
}
