//! A real dma-buf, which the kernel made of a memory file, and real devices. Soft-RoCE registers none, which must be
//! detected before the capability is reported; `scripts/rxe-vm` runs it. On devices that do register them, the test
//! checks that the right bytes are accessed.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot continue fails")]

mod common;

use std::ffi::c_int;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, FromRawFd as _, OwnedFd};

use common::rails::rail_config;
use common::{Manner, found, skip};
use trunkline_fabric::{
    AccessRights, ControlRole, ExportedDmaBuf, Fabric, Rail as _, RegionPurpose, RegisterError,
    RegisteredRegion,
};
use trunkline_mem::{MemoryKind, MemoryRange};

const LEN: usize = 1 << 16;

/// `struct udmabuf_create` of the kernel.
#[repr(C)]
struct Create {
    memfd: u32,
    flags: u32,
    offset: u64,
    size: u64,
}

/// `UDMABUF_CREATE`, `_IOW('u', 0x42, struct udmabuf_create)`.
const CREATE: u64 = 1 << 30 | (size_of::<Create>() as u64) << 16 | (b'u' as u64) << 8 | 0x42;

/// A dma-buf of a memory file, and the file.
fn udmabuf() -> io::Result<(OwnedFd, OwnedFd)> {
    use rustix::fs::{MemfdFlags, SealFlags};
    let file = rustix::fs::memfd_create("trunkline.udmabuf", MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::ftruncate(&file, LEN as u64)?;
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK)?;
    let maker = std::fs::File::options().read(true).write(true).open("/dev/udmabuf")?;
    let memfd = file.as_raw_fd().unsigned_abs();
    let create = Create { memfd, flags: 1, offset: 0, size: LEN as u64 };
    // SAFETY: the `ioctl` of that device, with its structure.
    let made: c_int = unsafe { libc::ioctl(maker.as_raw_fd(), CREATE, &raw const create) };
    if made < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just created, and no other code owns it.
    Ok((unsafe { OwnedFd::from_raw_fd(made) }, file))
}

/// Memory that this process does not map.
fn of_device() -> MemoryRange {
    // SAFETY: device memory is never accessed through this range.
    unsafe { MemoryRange::from_raw(1 << 40, LEN, MemoryKind::Device(0)) }
}

#[test]
fn reported_dmabuf_reach_matches_registration() {
    let Some(fabric) = found(Manner::Built) else { return };
    let (dmabuf, _file) = match udmabuf() {
        Ok(made) => made,
        Err(error) => return skip("a dma-buf with real devices", &format!("/dev/udmabuf: {error}")),
    };
    for (at, nic) in fabric.nics().iter().enumerate() {
        let registrar = fabric.open_rail(at, &rail_config(16, 1)).unwrap().registrar();
        let exported = ExportedDmaBuf { fd: dmabuf.as_fd(), offset: 0 };
        let registered = registrar.register_exported(
            &of_device(),
            exported,
            AccessRights::READ_WRITE,
            RegionPurpose::Data,
        );
        println!("{}: {:?}, {registered:?}", nic.name, nic.caps.devices);
        match registered {
            Ok(keys) => {
                assert!(nic.caps.devices.dmabuf, "{} registers dma-bufs although its caps deny it", nic.name);
                registrar.deregister(keys.local).unwrap();
            }
            Err(error) => {
                assert!(!nic.caps.devices.dmabuf, "{} reports dma-bufs in its caps: {error}", nic.name);
                assert!(matches!(error, RegisterError::Device { how: "as a dma-buf", .. }), "{error:?}");
                assert!(error.to_string().contains("modprobe nvidia-peermem"), "{error}");
            }
        }
        // The caller still owns the descriptor.
        assert!(rustix::io::fcntl_getfd(&dmabuf).is_ok());
    }
}

#[test]
fn soft_devices_reach_no_memory_of_gpus() {
    let Some(fabric) = found(Manner::Built) else { return };
    for (at, nic) in fabric.nics().iter().enumerate().filter(|(_, nic)| nic.name.starts_with("rxe")) {
        assert!(!nic.caps.devices.reaches_any(), "{:?}", nic.caps.devices);
        let registrar = fabric.open_rail(at, &rail_config(16, 1)).unwrap().registrar();
        let by_address = registrar.register(&of_device(), AccessRights::WRITE, RegionPurpose::Data);
        let error = by_address.unwrap_err();
        assert!(matches!(error, RegisterError::Device { how: "by its address", .. }), "{error:?}");
        assert!(error.to_string().contains("modprobe nvidia-peermem"), "{error}");
        // A refused registration leaves no resource behind.
        let host =
            RegisteredRegion::<ControlRole>::register(&registrar, MemoryRange::heap(64), AccessRights::LOCAL);
        assert!(host.is_ok(), "{host:?}");
    }
}
