//! The fuzz target of this crate: handles of each kind, with and without a descriptor, opened by each kind of memory that needs no GPU. No
//! handle may open memory of this process that was not exported, and no open may write.

use std::os::fd::OwnedFd;

use super::driver_memory::SealedHandle;
use super::{HostMemory, IpcAllocation, IpcAllocationId, IpcHandle, IpcMemory, MemfdDevice, PrivateMemory};
use crate::create_memory_file;

/// A target: its name, its check and its seeds. Like `trunkline_proto::fuzzing::Target`, which this crate cannot use.
pub type MemoryFuzzTarget = (&'static str, fn(&[u8]), fn() -> Vec<Vec<u8>>);

/// The targets of this crate.
pub const TARGETS: &[MemoryFuzzTarget] = &[("memory_kinds", fuzz_handles, kinds_seeds)];

/// Every kind whose handle carries a driver's bytes.
const SEALED: &[u8] = &[IpcHandle::CUDA, IpcHandle::CUDA_SEGMENT, IpcHandle::HIP, IpcHandle::LEVEL_ZERO];

/// Runs the target of that name.
///
/// # Panics
/// If the target is unknown, or when the code under test is wrong.
pub fn run(name: &str, bytes: &[u8]) {
    let target = TARGETS.iter().find(|target| target.0 == name);
    assert!(target.is_some(), "unknown fuzz target {name}");
    target.into_iter().for_each(|target| target.1(bytes));
}

/// The first byte is the kind; the lowest bit of the second selects whether a descriptor of unrelated memory is passed with the handle.
fn fuzz_handles(bytes: &[u8]) {
    let [kind, with, bytes @ ..] = bytes else { return };
    let Some(handle) = IpcHandle::new(*kind, bytes) else {
        assert!(bytes.len() > IpcHandle::BYTES_MAX);
        return;
    };
    assert_eq!((handle.kind(), handle.bytes()), (*kind, bytes));
    if let Ok(sealed) = SealedHandle::parse(&handle, SEALED) {
        assert_eq!(SealedHandle::parse(&sealed.to_handle(), SEALED), Ok(sealed));
    }
    let descriptor = || -> Option<OwnedFd> { create_memory_file("fuzz").ok().filter(|_| with % 2 == 1) };
    let (Ok(host), Ok(private), Ok(device)) =
        (HostMemory::new(), PrivateMemory::new(), MemfdDevice::create(7, 1 << 20))
    else {
        return;
    };
    assert_refused(&host, &handle, descriptor());
    // Replaces the process number, so that no other process of the machine is accessed.
    assert_refused(&private, &handle.of_process(std::process::id()), descriptor());
    assert_refused(&device, &handle, descriptor());
}

/// Checks that no memory opens a handle that was not exported.
fn assert_refused(memory: &impl IpcMemory, handle: &IpcHandle, descriptor: Option<OwnedFd>) {
    if let Ok(mapped) = memory.open(handle, descriptor) {
        panic!("{handle:?} was opened as {mapped:?}");
    }
}

fn kinds_seeds() -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    let words = |kind, with, words: &[u64]| {
        let mut bytes = vec![kind, with, 1, 0, 0, 0, 0, 0, 0, 0];
        words.iter().for_each(|word| bytes.extend(word.to_le_bytes()));
        bytes
    };
    for with in [0, 1] {
        all.push(words(IpcHandle::HOST, with, &[7, 1, 0x7f00_0000_0000, 4096, 5]));
        all.push(words(IpcHandle::DEVICE, with, &[7, 1, 0x7f00_0000_0000, 4096, 5]));
        all.push(words(IpcHandle::PRIVATE, with, &[1, 0x7fff_0000_1000, 0x5555_aaaa]));
        all.push(words(IpcHandle::XPMEM, with, &[1, 0x7fff_0000_1000, 0x5555_aaaa, 9]));
    }
    for kind in SEALED {
        let allocation = IpcAllocation { base: 0x7000, len: 77, id: IpcAllocationId(5), device: 3 };
        let sealed = SealedHandle::for_allocation(&allocation, 9, *kind);
        let mut bytes = vec![*kind, 1];
        bytes.extend(sealed.to_handle().bytes());
        all.push(bytes.clone());
        if let Some(last) = bytes.last_mut() {
            *last ^= 1;
        }
        all.push(bytes);
    }
    all.push(vec![IpcHandle::HOST, 0]);
    all.push([IpcHandle::HOST, 0].into_iter().chain([0; IpcHandle::BYTES_MAX + 1]).collect());
    all
}
