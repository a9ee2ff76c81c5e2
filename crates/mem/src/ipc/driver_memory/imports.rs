//! The open imports of peers' memory, with a driver's addresses. Borrowed during a copy, so that no import is unmapped under it.

use std::collections::BTreeMap;

use super::SealedHandle;
use crate::ipc::{CloseError, CopyError, IpcAllocationId, NotClosed, OpenedHandle};

/// One import.
#[derive(Debug)]
pub(super) struct DriverImport<T> {
    owner: u64,
    id: IpcAllocationId,
    base: u64,
    len: usize,
    /// The device for which it is mapped.
    device: Option<u32>,
    pub(super) addr: usize,
    pub(super) opened: T,
}

/// All open imports.
#[derive(Debug)]
pub(super) struct DriverImports<T> {
    open: BTreeMap<u64, DriverImport<T>>,
    next: u64,
}

impl<T> DriverImports<T> {
    pub(super) fn new() -> Self {
        Self { open: BTreeMap::new(), next: 1 }
    }

    /// Returns the open import of the same owner that overlaps `of`, except a mapping of the same memory for another device.
    pub(super) fn in_the_way(&self, of: &SealedHandle, device: Option<u32>) -> Option<IpcAllocationId> {
        let end = of.base.saturating_add(of.len as u64);
        let meets = |one: &&DriverImport<T>| {
            let is_there = one.base < end && of.base < one.base.saturating_add(one.len as u64);
            one.owner == of.process && is_there && (one.id != of.id || one.device == device)
        };
        self.open.values().find(meets).map(|one| one.id)
    }

    /// Adds a mapped import.
    pub(super) fn add_import(
        &mut self,
        of: &SealedHandle,
        device: Option<u32>,
        addr: usize,
        opened: T,
    ) -> OpenedHandle {
        let number = self.next;
        self.next += 1;
        let SealedHandle { process: owner, id, base, len, .. } = *of;
        self.open.insert(number, DriverImport { owner, id, base, len, device, addr, opened });
        OpenedHandle { number, address: Some(addr), len }
    }

    /// Puts an import back that was taken out and could not be unmapped.
    pub(super) fn put_back(&mut self, mapped: &OpenedHandle, import: DriverImport<T>) {
        self.open.insert(mapped.number, import);
    }

    fn get(&self, mapped: &OpenedHandle) -> Option<&DriverImport<T>> {
        let found = self.open.get(&mapped.number)?;
        (Some(found.addr) == mapped.address && found.len == mapped.len).then_some(found)
    }

    /// Takes an import out, to unmap it.
    pub(super) fn take_import(
        &mut self,
        mapped: OpenedHandle,
    ) -> Result<(OpenedHandle, DriverImport<T>), NotClosed> {
        if self.get(&mapped).is_none() {
            return Err(NotClosed { mapped, error: CloseError::Unknown });
        }
        match self.open.remove(&mapped.number) {
            Some(import) => Ok((mapped, import)),
            None => Err(NotClosed { mapped, error: CloseError::Unknown }),
        }
    }

    /// Returns whether an address lies in an open import.
    pub(super) fn contains_address(&self, addr: usize) -> bool {
        self.open.values().any(|one| addr.wrapping_sub(one.addr) < one.len)
    }

    /// Returns the address of bytes of an import, and the device for which it is mapped.
    pub(super) fn import_address(
        &self,
        mapped: &OpenedHandle,
        offset: u64,
        len: usize,
    ) -> Result<(usize, Option<u32>), CopyError> {
        let import = self.get(mapped).ok_or(CopyError::Closed)?;
        let end = offset.checked_add(len as u64).filter(|end| *end <= import.len as u64);
        end.map(|_| (import.addr + offset as usize, import.device))
            .ok_or(CopyError::Outside { at: offset, len })
    }

    /// Takes all imports out.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = DriverImport<T>> {
        std::mem::take(&mut self.open).into_values()
    }
}
