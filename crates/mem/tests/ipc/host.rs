//! Properties of memory of the host beyond the acceptance suite.

use std::os::fd::OwnedFd;

use trunkline_mem::ipc::{HandleOpenError, HandlePassing, HostMemory, IpcMemory as _};

#[test]
fn shrinkable_file_is_not_mapped() {
    let [owner, other] = [HostMemory::new().unwrap(), HostMemory::new().unwrap()];
    let addr = owner.alloc(4096).unwrap();
    let export = owner.export(&owner.allocation_of(addr).unwrap(), HandlePassing::Descriptor).unwrap();
    let file: OwnedFd =
        rustix::fs::memfd_create("trunkline.test", rustix::fs::MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&file, 65536).unwrap();
    let mut bytes = export.handle.bytes().to_vec();
    let inode = rustix::fs::fstat(&file).unwrap().st_ino;
    bytes[40..48].copy_from_slice(&inode.to_le_bytes());
    let handle = trunkline_mem::ipc::IpcHandle::new(export.handle.kind(), &bytes).unwrap();
    assert!(matches!(other.open(&handle, Some(file)), Err(HandleOpenError::Descriptor(_))));
    let open = other.open(&export.handle, export.descriptor).unwrap();
    other.close(open).unwrap();
}

#[test]
fn unopened_handle_is_not_closed() {
    let [owner, one, two] =
        [HostMemory::new().unwrap(), HostMemory::new().unwrap(), HostMemory::new().unwrap()];
    let addr = owner.alloc(4096).unwrap();
    let export = owner.export(&owner.allocation_of(addr).unwrap(), HandlePassing::Descriptor).unwrap();
    let open = one.open(&export.handle, export.descriptor).unwrap();
    let back = two.close(open).unwrap_err();
    one.close(back.mapped).unwrap();
}
