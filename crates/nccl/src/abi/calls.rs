//! The calls that several ABI versions share. Each is a guarded layer that converts C arguments to safe ones.

use core::ffi::{c_int, c_void};
use core::ptr;
use std::os::fd::BorrowedFd;

use trunkline_mem::{MemoryKind, MemoryRange};
use trunkline_sys::nccl_net::{
    CommConfig, DEVS_PER_NIC_V12, DeviceHandle, HANDLE_BYTES, Logger, NET_RECVS_MAX, ProfilerCallback,
    ResultCode,
};

use super::log::NcclLog;
use crate::devices::KnownDevices;
use crate::guard::{ResultPlace, guard_call, read_at};
use crate::memory::{self, NcclExtent};
use crate::plugin::{self, DeviceProperties, NcclBuffer};
use crate::status::NetCallError;
use crate::world;

/// The network's name, for logs and `NCCL_NET`.
pub(super) const NAME: &core::ffi::CStr = c"Trunkline";

/// Converts a number of ours to the pointer that NCCL keeps.
#[inline]
pub(super) fn to_pointer(bits: u64) -> *mut c_void {
    ptr::without_provenance_mut(bits as usize)
}

#[inline]
pub(super) fn pointer_bits(pointer: *mut c_void) -> u64 {
    pointer.addr() as u64
}

/// Sets the caller's request; NULL if none was started.
#[inline]
fn set_request(
    request: &ResultPlace<*mut c_void>,
    started: Result<u64, NetCallError>,
) -> Result<(), NetCallError> {
    match started {
        Ok(bits) => {
            request.set(to_pointer(bits));
            Ok(())
        }
        Err(error) => {
            request.set(ptr::null_mut());
            Err(error)
        }
    }
}

/// `init` of versions 6 to 9.
pub(super) unsafe extern "C" fn init_v6(log: Option<Logger>) -> ResultCode {
    guard_call("init", || {
        world::start_world(NcclLog::new(log))?.enter_communicator();
        Ok(())
    })
}

/// `init` of version 10.
pub(super) unsafe extern "C" fn init_v10(log: Option<Logger>, _: Option<ProfilerCallback>) -> ResultCode {
    guard_call("init", || {
        world::start_world(NcclLog::new(log))?.enter_communicator();
        Ok(())
    })
}

/// `devices`, limited to the devices that a version knows.
///
/// # Safety
/// If not null, `count` can be written.
unsafe fn devices(count: *mut c_int, known: KnownDevices) -> ResultCode {
    guard_call("devices", || {
        // SAFETY: `count` is null or writable, by the contract of this function.
        let count = unsafe { ResultPlace::new(count) }?;
        count.set(plugin::devices(known)?);
        Ok(())
    })
}

/// `devices` of versions 6 to 8.
pub(super) unsafe extern "C" fn devices_v6(count: *mut c_int) -> ResultCode {
    // SAFETY: NCCL passes a place for the number.
    unsafe { devices(count, KnownDevices::Physical) }
}

/// `devices` of versions 9 to 12.
pub(super) unsafe extern "C" fn devices_v9(count: *mut c_int) -> ResultCode {
    // SAFETY: NCCL passes a place for the number.
    unsafe { devices(count, KnownDevices::All) }
}

/// `getProperties`, with the layout of a version and the devices that it knows.
pub(super) unsafe fn properties<P>(
    dev: c_int,
    out: *mut P,
    layout: fn(DeviceProperties) -> P,
    known: KnownDevices,
) -> ResultCode {
    guard_call("getProperties", || {
        // SAFETY: the caller passes a place for its version's properties.
        let out = unsafe { ResultPlace::new(out) }?;
        out.set(layout(plugin::properties(dev, known)?));
        Ok(())
    })
}

/// `listen` on a device that a version knows.
///
/// # Safety
/// If not null, `handle` has room for 128 bytes, and `comm` can be written.
unsafe fn listen(dev: c_int, known: KnownDevices, handle: *mut c_void, comm: *mut *mut c_void) -> ResultCode {
    guard_call("listen", || {
        // SAFETY: `handle` is null or has room for 128 bytes, by the contract of this function.
        let handle = unsafe { ResultPlace::new(handle.cast::<[u8; HANDLE_BYTES]>()) }?;
        // SAFETY: `comm` is null or writable, by the contract of this function.
        let comm = unsafe { ResultPlace::new(comm) }?;
        let (listen, bytes) = plugin::listen(dev, known)?;
        handle.set(bytes);
        comm.set(to_pointer(listen));
        Ok(())
    })
}

/// `listen` of versions 6 to 8.
pub(super) unsafe extern "C" fn listen_v6(
    dev: c_int,
    handle: *mut c_void,
    comm: *mut *mut c_void,
) -> ResultCode {
    // SAFETY: NCCL's contract.
    unsafe { listen(dev, KnownDevices::Physical, handle, comm) }
}

/// `listen` of versions 9 and 10.
pub(super) unsafe extern "C" fn listen_v9(
    dev: c_int,
    handle: *mut c_void,
    comm: *mut *mut c_void,
) -> ResultCode {
    // SAFETY: NCCL's contract.
    unsafe { listen(dev, KnownDevices::All, handle, comm) }
}

/// `listen` of versions 11 and 12.
pub(super) unsafe extern "C" fn listen_v11(
    _: *mut c_void,
    dev: c_int,
    handle: *mut c_void,
    comm: *mut *mut c_void,
) -> ResultCode {
    // SAFETY: NCCL's contract, but for the context.
    unsafe { listen(dev, KnownDevices::All, handle, comm) }
}

/// `connect` from a device that a version knows, with a traffic class.
///
/// # Safety
/// If not null, `handle` points to the connection's private 128 bytes, and `comm` can be written.
unsafe fn connect(
    ctx: *mut c_void,
    dev: c_int,
    known: KnownDevices,
    class: Option<u8>,
    handle: *mut c_void,
    comm: *mut *mut c_void,
) -> ResultCode {
    guard_call("connect", || {
        // SAFETY: `comm` is null or writable, by the contract of this function.
        let comm = unsafe { ResultPlace::new(comm) }?;
        let place = handle.cast::<[u8; HANDLE_BYTES]>();
        // SAFETY: `handle` is null or points to 128 readable bytes, by the contract of this function; NCCL passes its
        // private, stable copy.
        let mut bytes = unsafe { read_at(place, 0) }?;
        // SAFETY: `handle` is null or points to 128 writable bytes, by the contract of this function.
        let back = unsafe { ResultPlace::new(place) }?;
        let connected = plugin::connect(pointer_bits(ctx), dev, known, class, &mut bytes);
        back.set(bytes);
        comm.set(to_pointer(connected?));
        Ok(())
    })
}

/// Returns the traffic class of a communicator, if it requests a valid one.
///
/// # Safety
/// `config` is null or points to a configuration.
pub(super) unsafe fn class_of(config: *mut CommConfig) -> Option<u8> {
    // SAFETY: by the contract of this function.
    let config = unsafe { config.as_ref() };
    config.and_then(|config| u8::try_from(config.traffic_class).ok())
}

/// `connect` of version 6.
pub(super) unsafe extern "C" fn connect_v6(
    dev: c_int,
    handle: *mut c_void,
    comm: *mut *mut c_void,
) -> ResultCode {
    // SAFETY: NCCL's contract.
    unsafe { connect(ptr::null_mut(), dev, KnownDevices::Physical, None, handle, comm) }
}

/// `connect` of versions 7 and 8.
pub(super) unsafe extern "C" fn connect_v7(
    dev: c_int,
    handle: *mut c_void,
    comm: *mut *mut c_void,
    _: *mut *mut DeviceHandle,
) -> ResultCode {
    // SAFETY: NCCL's contract. The device handle stays as it was: the host drives the network.
    unsafe { connect(ptr::null_mut(), dev, KnownDevices::Physical, None, handle, comm) }
}

/// `connect` of version 9.
pub(super) unsafe extern "C" fn connect_v9(
    dev: c_int,
    handle: *mut c_void,
    comm: *mut *mut c_void,
    _: *mut *mut DeviceHandle,
) -> ResultCode {
    // SAFETY: as `connect_v7`.
    unsafe { connect(ptr::null_mut(), dev, KnownDevices::All, None, handle, comm) }
}

/// `connect` of version 10.
pub(super) unsafe extern "C" fn connect_v10(
    dev: c_int,
    config: *mut CommConfig,
    handle: *mut c_void,
    comm: *mut *mut c_void,
    _: *mut *mut DeviceHandle,
) -> ResultCode {
    // SAFETY: NCCL passes the communicator's configuration, or none.
    let class = unsafe { class_of(config) };
    // SAFETY: as `connect_v7`.
    unsafe { connect(ptr::null_mut(), dev, KnownDevices::All, class, handle, comm) }
}

/// `connect` of versions 11 and 12.
pub(super) unsafe extern "C" fn connect_v11(
    ctx: *mut c_void,
    dev: c_int,
    handle: *mut c_void,
    comm: *mut *mut c_void,
    _: *mut *mut DeviceHandle,
) -> ResultCode {
    // SAFETY: as `connect_v7`.
    unsafe { connect(ctx, dev, KnownDevices::All, None, handle, comm) }
}

/// `accept` of version 6.
pub(super) unsafe extern "C" fn accept_v6(listen: *mut c_void, comm: *mut *mut c_void) -> ResultCode {
    guard_call("accept", || {
        // SAFETY: NCCL passes a place for the comm.
        let comm = unsafe { ResultPlace::new(comm) }?;
        comm.set(to_pointer(plugin::accept(pointer_bits(listen))?));
        Ok(())
    })
}

/// `accept` of versions 7 to 12.
pub(super) unsafe extern "C" fn accept_v7(
    listen: *mut c_void,
    comm: *mut *mut c_void,
    _: *mut *mut DeviceHandle,
) -> ResultCode {
    // SAFETY: as `connect_v7`.
    unsafe { accept_v6(listen, comm) }
}

/// Makes a memory range of NCCL's memory, with the kind that was found.
fn to_memory(range: NcclExtent, kind: MemoryKind) -> MemoryRange {
    // SAFETY: NCCL keeps the memory mapped until deregMr has returned, and accesses it only as C does.
    unsafe { MemoryRange::from_raw(range.addr, range.len, kind) }
}

/// `regMr` of versions 6 and 7.
pub(super) unsafe extern "C" fn reg_mr_v6(
    comm: *mut c_void,
    data: *mut c_void,
    size: c_int,
    kind: c_int,
    mhandle: *mut *mut c_void,
) -> ResultCode {
    // A negative size becomes one that no memory can have.
    let size = usize::try_from(size).unwrap_or(usize::MAX);
    // SAFETY: the same contract with another type of size.
    unsafe { reg_mr_v8(comm, data, size, kind, mhandle) }
}

/// `regMr` of versions 8 to 12.
pub(super) unsafe extern "C" fn reg_mr_v8(
    comm: *mut c_void,
    data: *mut c_void,
    size: usize,
    kind: c_int,
    mhandle: *mut *mut c_void,
) -> ResultCode {
    guard_call("regMr", || {
        // SAFETY: NCCL passes a place for the handle.
        let mhandle = unsafe { ResultPlace::new(mhandle) }?;
        let range = NcclExtent { addr: data.expose_provenance(), len: size, kind };
        mhandle.set(to_pointer(memory::register_memory(pointer_bits(comm), range, |kind| {
            to_memory(range, kind)
        })?));
        Ok(())
    })
}

/// `regMrDmaBuf`. The descriptor stays NCCL's.
pub(super) unsafe extern "C" fn reg_mr_dma_buf(
    comm: *mut c_void,
    data: *mut c_void,
    size: usize,
    kind: c_int,
    offset: u64,
    fd: c_int,
    mhandle: *mut *mut c_void,
) -> ResultCode {
    guard_call("regMrDmaBuf", || {
        // SAFETY: NCCL passes a place for the handle.
        let mhandle = unsafe { ResultPlace::new(mhandle) }?;
        if fd < 0 {
            return Err(NetCallError::Argument("no dma-buf"));
        }
        // SAFETY: not negative, and NCCL closes the descriptor only after the call has returned.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        let range = NcclExtent { addr: data.expose_provenance(), len: size, kind };
        let name = |kind| to_memory(range, kind);
        mhandle.set(to_pointer(memory::register_dmabuf(pointer_bits(comm), range, fd, offset, name)?));
        Ok(())
    })
}

/// `deregMr`.
pub(super) unsafe extern "C" fn dereg_mr(comm: *mut c_void, mhandle: *mut c_void) -> ResultCode {
    guard_call("deregMr", || plugin::deregister(pointer_bits(comm), pointer_bits(mhandle)))
}

/// `isend` of versions 6 to 8.
pub(super) unsafe extern "C" fn isend_v6(
    comm: *mut c_void,
    data: *mut c_void,
    size: c_int,
    tag: c_int,
    mhandle: *mut c_void,
    request: *mut *mut c_void,
) -> ResultCode {
    let size = usize::try_from(size).unwrap_or(usize::MAX);
    // SAFETY: the same contract with another type of size.
    unsafe { isend_v9(comm, data, size, tag, mhandle, request) }
}

/// `isend` of version 9.
#[inline]
pub(super) unsafe extern "C" fn isend_v9(
    comm: *mut c_void,
    data: *mut c_void,
    size: usize,
    tag: c_int,
    mhandle: *mut c_void,
    request: *mut *mut c_void,
) -> ResultCode {
    guard_call("isend", || {
        // SAFETY: NCCL passes a place for the request; its old value is stale and not read.
        let request = unsafe { ResultPlace::new(request) }?;
        let buffer = NcclBuffer { mr: pointer_bits(mhandle), addr: data.addr(), len: size, tag };
        let started = plugin::isend(pointer_bits(comm), buffer);
        set_request(&request, started)
    })
}

/// `isend` of versions 10 to 12.
pub(super) unsafe extern "C" fn isend_v10(
    comm: *mut c_void,
    data: *mut c_void,
    size: usize,
    tag: c_int,
    mhandle: *mut c_void,
    _: *mut c_void,
    request: *mut *mut c_void,
) -> ResultCode {
    // SAFETY: the same contract, but for the profiler's handle.
    unsafe { isend_v9(comm, data, size, tag, mhandle, request) }
}

/// Reads the buffers of a grouped call, with sizes of type `S`.
///
/// # Safety
/// The arrays that are not null have `n` elements.
#[inline]
unsafe fn read_buffers<S: Copy + TryInto<usize>>(
    n: c_int,
    data: *mut *mut c_void,
    sizes: *mut S,
    tags: *mut c_int,
    mhandles: *mut *mut c_void,
) -> Result<([NcclBuffer; NET_RECVS_MAX], usize), NetCallError> {
    let count = usize::try_from(n).unwrap_or(0);
    if count == 0 || count > NET_RECVS_MAX {
        return Err(NetCallError::Argument("a receive must have 1 to 8 buffers"));
    }
    let mut out = [NcclBuffer { mr: 0, addr: 0, len: 0, tag: 0 }; NET_RECVS_MAX];
    for (at, to) in out.iter_mut().enumerate().take(count) {
        // SAFETY: `at` is below `n`.
        *to = unsafe { read_buffer(at, data, sizes, tags, mhandles) }?;
    }
    Ok((out, count))
}

/// Reads buffer `at` of a grouped call.
///
/// # Safety
/// The arrays that are not null have more than `at` elements.
#[inline]
unsafe fn read_buffer<S: Copy + TryInto<usize>>(
    at: usize,
    data: *mut *mut c_void,
    sizes: *mut S,
    tags: *mut c_int,
    mhandles: *mut *mut c_void,
) -> Result<NcclBuffer, NetCallError> {
    // SAFETY: `at` is inside the array, by the contract of this function.
    let addr = unsafe { read_at(data, at) }?.addr();
    // SAFETY: `at` is inside the array, by the contract of this function.
    let len = unsafe { read_at(sizes, at) }?;
    // SAFETY: `at` is inside the array, by the contract of this function.
    let mr = pointer_bits(unsafe { read_at(mhandles, at) }?);
    // SAFETY: not null, and `at` is inside the array, by the contract of this function.
    let tag = if tags.is_null() { 0 } else { unsafe { read_at(tags, at) }? };
    Ok(NcclBuffer { mr, addr, len: len.try_into().unwrap_or(usize::MAX), tag })
}

/// `irecv`, generic over the type of sizes.
///
/// # Safety
/// NCCL's contract: the arrays have `n` elements, and `request` can be written.
#[inline]
unsafe fn irecv<S: Copy + TryInto<usize>>(
    comm: *mut c_void,
    n: c_int,
    data: *mut *mut c_void,
    sizes: *mut S,
    tags: *mut c_int,
    mhandles: *mut *mut c_void,
    request: *mut *mut c_void,
) -> ResultCode {
    guard_call("irecv", || {
        // The place may contain NCCL's hint that completion is optional. The hint is not used: our own polls may
        // place the bytes, so a request that completes before they have arrived would leave no caller to poll for
        // them.
        // SAFETY: `request` is null or writable, by the contract of this function.
        let request = unsafe { ResultPlace::new(request) }?;
        let started = if n == 1 {
            // SAFETY: the arrays have `n` elements, which is one.
            plugin::irecv(pointer_bits(comm), &[unsafe { read_buffer(0, data, sizes, tags, mhandles) }?])
        } else {
            // SAFETY: the arrays have `n` elements, by the contract of this function.
            let (buffers, count) = unsafe { read_buffers(n, data, sizes, tags, mhandles) }?;
            plugin::irecv(pointer_bits(comm), &buffers[..count])
        };
        set_request(&request, started)
    })
}

/// `irecv` of versions 6 to 8.
pub(super) unsafe extern "C" fn irecv_v6(
    comm: *mut c_void,
    n: c_int,
    data: *mut *mut c_void,
    sizes: *mut c_int,
    tags: *mut c_int,
    mhandles: *mut *mut c_void,
    request: *mut *mut c_void,
) -> ResultCode {
    // SAFETY: NCCL's contract.
    unsafe { irecv(comm, n, data, sizes, tags, mhandles, request) }
}

/// `irecv` of version 9.
pub(super) unsafe extern "C" fn irecv_v9(
    comm: *mut c_void,
    n: c_int,
    data: *mut *mut c_void,
    sizes: *mut usize,
    tags: *mut c_int,
    mhandles: *mut *mut c_void,
    request: *mut *mut c_void,
) -> ResultCode {
    // SAFETY: NCCL's contract.
    unsafe { irecv(comm, n, data, sizes, tags, mhandles, request) }
}

/// `irecv` of versions 10 to 12.
pub(super) unsafe extern "C" fn irecv_v10(
    comm: *mut c_void,
    n: c_int,
    data: *mut *mut c_void,
    sizes: *mut usize,
    tags: *mut c_int,
    mhandles: *mut *mut c_void,
    _: *mut *mut c_void,
    request: *mut *mut c_void,
) -> ResultCode {
    // SAFETY: NCCL's contract, but for the profiler's handles.
    unsafe { irecv(comm, n, data, sizes, tags, mhandles, request) }
}

/// `iflush`. A NULL request means that there is nothing to wait for.
pub(super) unsafe extern "C" fn iflush(
    comm: *mut c_void,
    n: c_int,
    data: *mut *mut c_void,
    sizes: *mut c_int,
    mhandles: *mut *mut c_void,
    request: *mut *mut c_void,
) -> ResultCode {
    guard_call("iflush", || {
        // SAFETY: NCCL passes a place for the request.
        let request = unsafe { ResultPlace::new(request) }?;
        // SAFETY: NCCL passes arrays of `n` elements.
        let (buffers, count) = unsafe { read_buffers(n, data, sizes, ptr::null_mut(), mhandles) }?;
        let started = plugin::iflush(pointer_bits(comm), &buffers[..count]);
        set_request(&request, started)
    })
}

/// `test`.
pub(super) unsafe extern "C" fn test(
    request: *mut c_void,
    done: *mut c_int,
    sizes: *mut c_int,
) -> ResultCode {
    guard_call("test", || {
        // SAFETY: NCCL passes a place for the result.
        let done = unsafe { ResultPlace::new(done) }?;
        let mut lens = [0; NET_RECVS_MAX];
        let count = plugin::test(pointer_bits(request), &mut lens)?;
        if let Some(count) = count
            && !sizes.is_null()
        {
            for (at, &len) in lens.iter().enumerate().take(count) {
                // SAFETY: NCCL passes room for one size per buffer of the request.
                let place = unsafe { sizes.add(at) };
                // SAFETY: not null, and inside that room. Sizes beyond the range of the type are reported as its
                // maximum.
                unsafe { ResultPlace::new(place) }?.set(c_int::try_from(len).unwrap_or(c_int::MAX));
            }
        }
        done.set(c_int::from(count.is_some()));
        Ok(())
    })
}

/// `closeSend` and `closeRecv`.
pub(super) unsafe extern "C" fn close(comm: *mut c_void) -> ResultCode {
    guard_call("close", || plugin::close(pointer_bits(comm)))
}

/// `closeListen`.
pub(super) unsafe extern "C" fn close_listen(comm: *mut c_void) -> ResultCode {
    guard_call("closeListen", || plugin::close_listen(pointer_bits(comm)))
}

/// `makeVDevice`, for the fused-NIC properties of any version: a count, then device numbers.
///
/// # Safety
/// `count` points to a number; at least that many device numbers, up to `room`, are readable from `devs`. `dev` can
/// be written.
pub(super) unsafe fn make_v_device(
    dev: *mut c_int,
    count: *const c_int,
    devs: *const c_int,
    room: usize,
) -> ResultCode {
    guard_call("makeVDevice", || {
        // SAFETY: `dev` is null or writable, by the contract of this function.
        let dev = unsafe { ResultPlace::new(dev) }?;
        // SAFETY: `count` is null or points to a number, by the contract of this function.
        let count = usize::try_from(unsafe { read_at(count, 0) }?).unwrap_or(0);
        let mut members = [0; DEVS_PER_NIC_V12];
        if count > room.min(members.len()) {
            return Err(NetCallError::Argument(
                "more members were passed than this version's structure has places for",
            ));
        }
        for (at, member) in members.iter_mut().enumerate().take(count) {
            // SAFETY: `at` is below `count` and `room`, so `devs` has that element, by the contract of this function.
            *member = unsafe { read_at(devs, at) }?;
        }
        dev.set(plugin::make_virtual(&members[..count])?);
        Ok(())
    })
}
