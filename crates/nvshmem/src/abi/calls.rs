//! The functions in the tables, for all versions. They convert C's arguments to checked Rust values, and call
//! `plugin` and `mesh`.

use core::ffi::{c_int, c_uint, c_void};

use trunkline_engine::rma::{HeapAddress, HeapRange};
use trunkline_mem::{MemoryKind, MemoryRange};
use trunkline_proto::reserve::{try_filled, try_vec};
use trunkline_proto::rma::atomic::{AtomicAction, AtomicType};
use trunkline_proto::wire::memory_handle::MemoryHandle;
use trunkline_proto::wire::rma::signal::UpdateOp;
use trunkline_sys::nvshmem::{
    AmoBytesdesc, AmoMemdesc, MemHandle, PeInfo, RmaBytesdesc, RmaMemdesc, RmaVerb, StdVector, amo, cap, op,
};

use super::boot::NvshmemBootstrap;
use super::cxx_containers::{VectorElements, find_value};
use super::guard::{OutPointer, borrow, guard_call, read_pointer};
use super::table::{self, TransportVersion, transport_plugin};
use crate::error::{CallError, Result};
use crate::mesh::{HandleBytes, PeMesh, memory_offset};
use crate::own_stack;
use crate::role_context::{LocalBytes, RoleContext, WordChange, signal_update, word_at};

/// Reports that this process can access the memory of every PE: by writes, reads and atomics.
pub(super) unsafe extern "C" fn can_reach_peer<T: TransportVersion>(
    access: *mut c_int,
    _pe: *mut PeInfo,
    _transport: *mut T,
) -> c_int {
    guard_call("can_reach_peer", || {
        // SAFETY: NVSHMEM passes null or a writable place for the bits.
        unsafe { OutPointer::new(access) }?.write_value(cap::CPU_WRITE | cap::CPU_READ | cap::CPU_ATOMICS);
        Ok(())
    })
    .0
}

/// Connects to the other PEs over these devices; or creates queue pairs, if a place for them is passed.
pub(super) unsafe extern "C" fn connect_endpoints<T: TransportVersion>(
    transport: *mut T,
    devices: *mut c_int,
    count: c_int,
    out: *mut c_int,
    queue_pairs: c_int,
) -> c_int {
    guard_call("connect_endpoints", || {
        // SAFETY: NVSHMEM passes a transport of ours.
        let plugin = unsafe { transport_plugin(transport) }?;
        if !out.is_null() && queue_pairs > 0 {
            let mut made = try_filled(0, queue_pairs as usize)?;
            plugin.queue_pairs(&mut made)?;
            for (at, &pair) in made.iter().enumerate() {
                // SAFETY: NVSHMEM passes room for `queue_pairs` numbers.
                unsafe { OutPointer::new(out.wrapping_add(at)) }?.write_value(pair);
            }
            return Ok(());
        }
        // SAFETY: NVSHMEM passes null or `count` numbers.
        let device = |at| unsafe { read_pointer(devices.wrapping_add(at), "null list of devices") };
        let count = count.max(0) as usize;
        let mut named = try_vec(count)?;
        for at in 0..count {
            named.push(device(at)?);
        }
        // SAFETY: as above.
        let head = unsafe { borrow(T::head_pointer(transport), "null transport") }?;
        // SAFETY: NVSHMEM has set the handle, which is valid as long as the transport.
        plugin.connect_pes(&named, &unsafe { NvshmemBootstrap::new(head.boot_handle) }?)
    })
    .0
}

/// Registers memory. A registration for this process alone is the same as one for all PEs: keys are no secret among
/// them.
pub(super) unsafe extern "C" fn get_mem_handle<T: TransportVersion>(
    out: *mut MemHandle,
    base: *mut c_void,
    len: usize,
    transport: *mut T,
    _local_only: bool,
) -> c_int {
    guard_call("get_mem_handle", || {
        // SAFETY: NVSHMEM passes a transport of ours.
        let mesh = unsafe { transport_plugin(transport) }?.connected_mesh()?;
        // SAFETY: NVSHMEM passes null or a writable place for a handle.
        let out = unsafe { OutPointer::new(out) }?;
        // SAFETY: NVSHMEM passes a transport of ours.
        let head = unsafe { borrow(T::head_pointer(transport), "null transport") }?;
        // SAFETY: NVSHMEM passes null or its own map, which it changes only in calls of this thread.
        let alias = unsafe { find_value(head.alias_va_map, base) }?;
        let addr = alias.unwrap_or(base).expose_provenance();
        // SAFETY: NVSHMEM keeps the memory mapped until it releases the handle.
        let name = |kind: MemoryKind| unsafe { MemoryRange::from_raw(addr, len, kind) };
        let handle = mesh.memories.register(&mesh.network, base.expose_provenance(), addr, len, name)?;
        out.write_value(MemHandle { reserved: handle.to_bytes() });
        Ok(())
    })
    .0
}

/// Ends a registration.
pub(super) unsafe extern "C" fn release_mem_handle<T: TransportVersion>(
    handle: *mut MemHandle,
    transport: *mut T,
) -> c_int {
    guard_call("release_mem_handle", || {
        // SAFETY: NVSHMEM passes a transport of ours.
        let mesh = unsafe { transport_plugin(transport) }?.connected_mesh()?;
        // SAFETY: NVSHMEM passes null or a readable handle.
        let handle = &unsafe { borrow(handle, "null handle") }?.reserved;
        let own = MemoryHandle::memory_of(handle);
        let memory = own.map_err(|source| CallError::Handle { pe: u32::MAX, source })?;
        mesh.memories.release(&mesh.network, &memory)
    })
    .0
}

/// Destroys the transport.
pub(super) unsafe extern "C" fn finalize<T: TransportVersion>(transport: *mut T) -> c_int {
    // SAFETY: NVSHMEM passes a transport of ours, and does not use it afterwards.
    guard_call("finalize", || unsafe { table::finalize_transport(transport) }).0
}

/// Prints the NICs and the number of registrations.
pub(super) unsafe extern "C" fn show_info<T: TransportVersion>(transport: *mut T, _style: c_int) -> c_int {
    guard_call("show_info", || {
        // SAFETY: NVSHMEM passes a transport of ours.
        let plugin = unsafe { transport_plugin(transport) }?;
        let names: Vec<&str> = plugin.nics.iter().map(|nic| nic.name.as_str()).collect();
        let count = plugin.connected_mesh().map_or(0, |mesh| mesh.memories.registration_count());
        println!("Trunkline: NICs {}, {count} memory handles", names.join(", "));
        Ok(())
    })
    .0
}

/// Drives the operations of both roles. The proxy calls it, and hosts that compute.
pub(super) unsafe extern "C" fn progress<T: TransportVersion>(transport: *mut T) -> c_int {
    guard_call("progress", || {
        // SAFETY: NVSHMEM passes a transport of ours.
        let mesh = unsafe { transport_plugin(transport) }?.connected_mesh()?;
        mesh.proxy.progress(&mesh.network)?;
        mesh.host.progress(&mesh.network)
    })
    .0
}

/// Returns the address of remote bytes, from NVSHMEM's description of them.
///
/// # Safety
/// The descriptor's handle is null or readable.
unsafe fn remote_place(mesh: &PeMesh, pe: u32, remote: &RmaMemdesc, len: u64) -> Result<HeapAddress> {
    // SAFETY: by the contract of this function.
    let handle: &HandleBytes =
        &unsafe { borrow(remote.handle, "null handle of the other PE's memory") }?.reserved;
    mesh.remote_place(pe, handle, remote.ptr.expose_provenance() as u64, len)
}

/// Returns the local bytes of an operation, from NVSHMEM's description of them.
///
/// # Safety
/// The descriptor's handle is null or readable. Without a handle, its bytes are host memory that is valid during the
/// call.
unsafe fn local_bytes(mesh: &PeMesh, local: &RmaMemdesc, len: u64) -> Result<LocalBytes> {
    let addr = local.ptr.expose_provenance();
    if local.handle.is_null() {
        if addr == 0 {
            return Err(CallError::Argument("null pointer to the bytes of this PE"));
        }
        let is_on_stack = own_stack::is_own_stack(addr, len as usize);
        // An access by the CPU would be a fault without a message.
        if !is_on_stack && mesh.memories.is_of_gpu(addr)? {
            return Err(CallError::Argument(
                "bytes of a GPU without a handle cannot be moved; create a handle with get_mem_handle",
            ));
        }
        // SAFETY: by the contract of this function.
        return Ok(LocalBytes::Elsewhere(unsafe {
            MemoryRange::from_raw(addr, len as usize, MemoryKind::Host)
        }));
    }
    // SAFETY: by the contract of this function.
    let handle = &unsafe { borrow(local.handle, "null handle") }?.reserved;
    let own = MemoryHandle::memory_of(handle);
    let memory = own.map_err(|source| CallError::Handle { pe: u32::MAX, source })?;
    mesh.memories.own_entry(&memory)?;
    let offset = memory_offset(&memory, addr as u64, len)?;
    Ok(LocalBytes::Registered(HeapRange { heap: memory.heap, offset, len }))
}

fn byte_len(bytes: &RmaBytesdesc) -> Result<u64> {
    let each = usize::try_from(bytes.elembytes).ok();
    let len = each.and_then(|each| bytes.nelems.checked_mul(each));
    len.map(|len| len as u64)
        .ok_or(CallError::Argument("the number of bytes is negative, or exceeds the address space"))
}

/// Checks that bytes are contiguous at both ends, as NVSHMEM's host and proxy always pass them: it splits rows
/// itself. Strides have no meaning for less than two elements, and a stride of 0 means contiguous.
fn in_one_piece(bytes: &RmaBytesdesc) -> Result<()> {
    let strided = |stride| !matches!(stride, 0 | 1);
    if bytes.nelems > 1 && (strided(bytes.srcstride) || strided(bytes.deststride)) {
        return Err(CallError::Unsupported("strided elements cannot be moved by one call"));
    }
    Ok(())
}

/// Completes a blocking operation: its caller may use the bytes at once, and calls no quiet.
fn wait_unless_nbi(mesh: &PeMesh, lane: &RoleContext, pe: u32, verb: &RmaVerb) -> Result<()> {
    if verb.is_nbi != 0 {
        return Ok(());
    }
    lane.quiet(&mesh.network, pe)?;
    mesh.memories.publish_gets();
    Ok(())
}

/// Puts or gets bytes.
#[inline]
pub(super) unsafe extern "C" fn rma<T: TransportVersion>(
    transport: *mut T,
    pe: c_int,
    verb: RmaVerb,
    remote: *mut RmaMemdesc,
    local: *mut RmaMemdesc,
    bytes: RmaBytesdesc,
    queue_pair: c_int,
) -> c_int {
    guard_call("rma", || {
        // SAFETY: NVSHMEM passes a transport of ours.
        let mesh = unsafe { transport_plugin(transport) }?.connected_mesh()?;
        let pe = mesh.check_pe(pe)?;
        let len = byte_len(&bytes)?;
        let lane = mesh.role_context(queue_pair);
        in_one_piece(&bytes)?;
        // SAFETY: NVSHMEM passes null or a readable descriptor.
        let remote = unsafe { read_pointer(remote, "null remote descriptor") }?;
        // SAFETY: as above.
        let local = unsafe { read_pointer(local, "null local descriptor") }?;
        if len == 0 {
            return Ok(());
        }
        // SAFETY: the descriptor's handle is null or readable.
        let there = unsafe { remote_place(mesh, pe, &remote, len) }?;
        // SAFETY: the descriptor's handle is null or readable; bytes without a handle are on the caller's stack, or
        // other host memory.
        let here = unsafe { local_bytes(mesh, &local, len) }?;
        let kind = verb.desc % op::QP_OFFSET;
        match kind {
            op::PUT | op::P => lane.put(&mesh.network, there, &here)?,
            op::GET | op::G => lane.get(&mesh.network, there, &here)?,
            _ => return Err(CallError::Argument("unknown operation; only puts and gets are supported")),
        }
        // The value of a `p` has been copied already.
        if kind == op::P { Ok(()) } else { wait_unless_nbi(mesh, lane, pe, &verb) }
    })
    .0
}

/// Converts NVSHMEM's number of an atomic to the change of a word.
fn to_word_change(kind: c_int, bytes: c_int, float: bool, value: u64, expect: u64) -> Result<WordChange> {
    let refused = || CallError::Atomic { kind, bytes, float };
    let (plain, real, mask) = match bytes {
        4 => (AtomicType::U32, AtomicType::F32, u64::from(u32::MAX)),
        8 => (AtomicType::U64, AtomicType::F64, u64::MAX),
        _ => return Err(refused()),
    };
    let value = value & mask;
    let expect = expect & mask;
    let fetches = kind > amo::END_OF_NONFETCH;
    let action = match kind {
        amo::SIGNAL | amo::SIGNAL_SET => return Ok(WordChange::Signal(UpdateOp::Set, value)),
        amo::SIGNAL_ADD => return Ok(WordChange::Signal(UpdateOp::Add, value)),
        amo::INC | amo::FETCH_INC if !float => AtomicAction::Add(1),
        amo::SET | amo::SWAP => AtomicAction::Set(value),
        amo::ADD | amo::FETCH_ADD => AtomicAction::Add(value),
        amo::AND | amo::FETCH_AND => AtomicAction::And(value),
        amo::OR | amo::FETCH_OR => AtomicAction::Or(value),
        amo::XOR | amo::FETCH_XOR => AtomicAction::Xor(value),
        amo::FETCH => AtomicAction::Fetch,
        amo::COMPARE_SWAP => AtomicAction::CompareSwap { expect, swap: value },
        _ => return Err(refused()),
    };
    // Every operation but an addition treats a floating-point number as bits.
    let adds = matches!(action, AtomicAction::Add(_));
    Ok(WordChange::Atomic(if float && adds { real } else { plain }, action, fetches))
}

/// The kind and type of an atomic, which the versions encode differently.
#[derive(Clone, Copy, Debug)]
pub(super) struct AtomicVerb {
    pub(super) kind: c_int,
    pub(super) float: bool,
}

/// The verb of a version.
pub(super) trait VerbOf: Copy {
    /// Returns the kind and type of the atomic.
    fn atomic_verb(&self) -> AtomicVerb;
}

/// Executes an atomic on a word of a PE.
#[inline]
pub(super) unsafe extern "C" fn amo<T: TransportVersion, V: VerbOf>(
    transport: *mut T,
    pe: c_int,
    _curet: *mut c_void,
    verb: V,
    target: *mut AmoMemdesc,
    bytes: AmoBytesdesc,
    queue_pair: c_int,
) -> c_int {
    guard_call("amo", || {
        let verb = verb.atomic_verb();
        // SAFETY: NVSHMEM passes a transport of ours.
        let mesh = unsafe { transport_plugin(transport) }?.connected_mesh()?;
        let pe = mesh.check_pe(pe)?;
        let lane = mesh.role_context(queue_pair);
        // SAFETY: NVSHMEM passes null or a readable descriptor.
        let target = unsafe { read_pointer(target, "null descriptor of the word") }?;
        let len = u64::try_from(bytes.elembytes).unwrap_or(0);
        let change = to_word_change(verb.kind, bytes.elembytes, verb.float, target.val, target.cmp)?;
        // SAFETY: the descriptor's handle is null or readable.
        let there = unsafe { remote_place(mesh, pe, &target.remote_memdesc, len) }?;
        let word = word_at(there, bytes.elembytes)?;
        let result = match change {
            WordChange::Atomic(_, _, true) => {
                // SAFETY: for a fetching atomic NVSHMEM passes null or a readable handle.
                let handle =
                    &unsafe { borrow(target.ret_handle, "null handle for the fetched value") }?.reserved;
                let own = MemoryHandle::memory_of(handle);
                let memory = own.map_err(|source| CallError::Handle { pe: u32::MAX, source })?;
                let offset = memory_offset(&memory, target.retptr.expose_provenance() as u64, 16)?;
                Some((mesh.memories.find_place(&memory, offset)?, target.retflag))
            }
            _ => None,
        };
        lane.change_word(&mesh.network, pe, word, change, result)
    })
    .0
}

/// Orders later operations after earlier ones.
pub(super) unsafe extern "C" fn fence<T: TransportVersion>(
    transport: *mut T,
    _pe: c_int,
    queue_pair: c_int,
    _is_multi: c_int,
) -> c_int {
    guard_call("fence", || {
        // SAFETY: NVSHMEM passes a transport of ours.
        let mesh = unsafe { transport_plugin(transport) }?.connected_mesh()?;
        mesh.role_context(queue_pair).fence(&mesh.network)
    })
    .0
}

/// Sets whether more operations of a queue pair follow at once. The function has no result, so errors of a hint are
/// dropped.
pub(super) unsafe extern "C" fn batch_hint<T: TransportVersion>(
    transport: *mut T,
    queue_pair: c_int,
    flags: c_uint,
) {
    guard_call("batch_hint", || {
        // SAFETY: NVSHMEM passes a transport of ours.
        let mesh = unsafe { transport_plugin(transport) }?.connected_mesh()?;
        mesh.role_context(queue_pair).set_batching(&mesh.network, flags != 0)
    });
}

/// Waits for all operations towards a PE.
#[inline]
pub(super) unsafe extern "C" fn quiet<T: TransportVersion>(
    transport: *mut T,
    pe: c_int,
    queue_pair: c_int,
) -> c_int {
    guard_call("quiet", || {
        // SAFETY: NVSHMEM passes a transport of ours.
        let mesh = unsafe { transport_plugin(transport) }?.connected_mesh()?;
        mesh.role_context(queue_pair).quiet(&mesh.network, mesh.check_pe(pe)?)?;
        mesh.memories.publish_gets();
        Ok(())
    })
    .0
}

/// Puts the bytes that the vectors describe, then changes the word of a signal.
pub(super) unsafe extern "C" fn put_signal<T: TransportVersion, V: VerbOf>(
    transport: *mut T,
    pe: c_int,
    write: RmaVerb,
    remote: *mut StdVector<RmaMemdesc>,
    local: *mut StdVector<RmaMemdesc>,
    lens: *mut StdVector<RmaBytesdesc>,
    verb: V,
    target: *mut AmoMemdesc,
    bytes: AmoBytesdesc,
    queue_pair: c_int,
) -> c_int {
    guard_call("put_signal", || {
        let verb = verb.atomic_verb();
        // SAFETY: NVSHMEM passes a transport of ours.
        let mesh = unsafe { transport_plugin(transport) }?.connected_mesh()?;
        let pe = mesh.check_pe(pe)?;
        let lane = mesh.role_context(queue_pair);
        // SAFETY: NVSHMEM passes null or a vector that its caller owns and does not change during the call.
        let remote = unsafe { VectorElements::from_vector(remote) }?;
        // SAFETY: as above.
        let local = unsafe { VectorElements::from_vector(local) }?;
        // SAFETY: as above.
        let lens = unsafe { VectorElements::from_vector(lens) }?;
        if remote.count != local.count || remote.count != lens.count {
            return Err(CallError::Argument("the vectors of a put with signal have different lengths"));
        }
        let put = |at| {
            let remote = remote.element_at(at)?;
            let local = local.element_at(at)?;
            let len = byte_len(&lens.element_at(at)?)?;
            if len == 0 {
                let none = LocalBytes::Registered(HeapRange { heap: 0, offset: 0, len });
                return Ok((HeapAddress { member: pe, heap: 0, offset: 0 }, none));
            }
            // SAFETY: the descriptors' handles are null or readable.
            let there = unsafe { remote_place(mesh, pe, &remote, len) }?;
            // SAFETY: as above.
            Ok((there, unsafe { local_bytes(mesh, &local, len) }?))
        };
        // SAFETY: NVSHMEM passes null or a readable descriptor of the signal's word.
        let target = unsafe { read_pointer(target, "null descriptor of the signal's word") }?;
        let change = to_word_change(verb.kind, bytes.elembytes, verb.float, target.val, target.cmp)?;
        let WordChange::Signal(op, value) = change else {
            return Err(CallError::Argument("unknown operation of a signal; only set and add are supported"));
        };
        let len = u64::try_from(bytes.elembytes).unwrap_or(0);
        // SAFETY: the descriptor's handle is null or readable.
        let there = unsafe { remote_place(mesh, pe, &target.remote_memdesc, len) }?;
        let update = signal_update(op, word_at(there, bytes.elembytes)?, value)?;
        lane.put_signal(&mesh.network, pe, remote.count, put, update)?;
        wait_unless_nbi(mesh, lane, pe, &write)
    })
    .0
}
