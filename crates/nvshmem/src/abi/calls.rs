//! The functions behind the tables, the same for all versions: what C hands over becomes checked Rust, and nothing else happens here.

use core::ffi::{c_int, c_uint, c_void};

use trunkline_engine::rma::Local;
use trunkline_mem::{Kind, Memory};
use trunkline_proto::reserve::{try_filled, try_vec};
use trunkline_proto::rma::atomic::{Action, Type};
use trunkline_proto::wire::memory_handle::MemoryHandle;
use trunkline_proto::wire::rma::signal::SignalOp;
use trunkline_sys::nvshmem::{
    AmoBytesdesc, AmoMemdesc, MemHandle, PeInfo, RmaBytesdesc, RmaMemdesc, RmaVerb, StdVector, amo, cap, op,
};

use super::boot::Bootstrap;
use super::guard::{Out, borrow, guard, read};
use super::map::{Elements, value_of};
use super::table::{self, Version, plugin};
use crate::error::{CallError, Result};
use crate::lane::{Change, Lane, Near, word};
use crate::mesh::{Handle, Mesh, inside};
use crate::own_stack;

/// All PEs can be reached: this process writes and reads their memory, and changes it.
pub(super) unsafe extern "C" fn can_reach_peer<T: Version>(
    access: *mut c_int,
    _pe: *mut PeInfo,
    _transport: *mut T,
) -> c_int {
    guard("can_reach_peer", || {
        // SAFETY: NVSHMEM passes a place for the bits.
        unsafe { Out::new(access) }?.set(cap::CPU_WRITE | cap::CPU_READ | cap::CPU_ATOMICS);
        Ok(())
    })
    .0
}

/// Meets the others over these devices; or, where a place for them is given, makes queue pairs.
pub(super) unsafe extern "C" fn connect_endpoints<T: Version>(
    transport: *mut T,
    devices: *mut c_int,
    count: c_int,
    out: *mut c_int,
    queue_pairs: c_int,
) -> c_int {
    guard("connect_endpoints", || {
        // SAFETY: NVSHMEM passes a transport of ours.
        let plugin = unsafe { plugin(transport) }?;
        if !out.is_null() && queue_pairs > 0 {
            let mut made = try_filled(0, queue_pairs as usize)?;
            plugin.queue_pairs(&mut made)?;
            for (at, &pair) in made.iter().enumerate() {
                // SAFETY: NVSHMEM passes room for so many.
                unsafe { Out::new(out.wrapping_add(at)) }?.set(pair);
            }
            return Ok(());
        }
        // SAFETY: NVSHMEM passes so many numbers.
        let device = |at| unsafe { read(devices.wrapping_add(at), "no devices") };
        let count = count.max(0) as usize;
        let mut named = try_vec(count)?;
        for at in 0..count {
            named.push(device(at)?);
        }
        // SAFETY: as above.
        let head = unsafe { borrow(T::head(transport), "null transport") }?;
        // SAFETY: NVSHMEM has filled it in, and it lives as long as the transport.
        plugin.connect(&named, &unsafe { Bootstrap::new(head.boot_handle) }?)
    })
    .0
}

/// Registers memory. For this process alone or for all is the same here: keys are no secret among PEs.
pub(super) unsafe extern "C" fn get_mem_handle<T: Version>(
    out: *mut MemHandle,
    base: *mut c_void,
    len: usize,
    transport: *mut T,
    _local_only: bool,
) -> c_int {
    guard("get_mem_handle", || {
        // SAFETY: NVSHMEM passes a transport of ours.
        let mesh = unsafe { plugin(transport) }?.mesh()?;
        // SAFETY: and a place for a handle.
        let out = unsafe { Out::new(out) }?;
        // SAFETY: as the first.
        let head = unsafe { borrow(T::head(transport), "null transport") }?;
        // SAFETY: a map of NVSHMEM's, which changes it in calls of this thread only.
        let alias = unsafe { value_of(head.alias_va_map, base) }?;
        let alias = alias.filter(|_| !crate::planted("nvshmem-ignores-aliases"));
        let addr = alias.unwrap_or(base).expose_provenance();
        // SAFETY: NVSHMEM keeps it mapped until it releases the handle.
        let name = |kind: Kind| unsafe { Memory::from_raw(addr, len, kind) };
        let handle = mesh.memories.register(&mesh.job, (base.expose_provenance(), addr, len), name)?;
        out.set(MemHandle { reserved: handle.to_bytes() });
        Ok(())
    })
    .0
}

/// Ends a registration.
pub(super) unsafe extern "C" fn release_mem_handle<T: Version>(
    handle: *mut MemHandle,
    transport: *mut T,
) -> c_int {
    guard("release_mem_handle", || {
        // SAFETY: NVSHMEM passes a transport of ours.
        let mesh = unsafe { plugin(transport) }?.mesh()?;
        // SAFETY: and a handle.
        let handle = &unsafe { borrow(handle, "null handle") }?.reserved;
        let own = MemoryHandle::memory_of(handle);
        let memory = own.map_err(|source| CallError::Handle { pe: u32::MAX, source })?;
        mesh.memories.release(&mesh.job, &memory)
    })
    .0
}

/// Gives everything back.
pub(super) unsafe extern "C" fn finalize<T: Version>(transport: *mut T) -> c_int {
    // SAFETY: NVSHMEM passes a transport of ours, and never again.
    guard("finalize", || unsafe { table::finalize(transport) }).0
}

/// Says what is registered.
pub(super) unsafe extern "C" fn show_info<T: Version>(transport: *mut T, _style: c_int) -> c_int {
    guard("show_info", || {
        // SAFETY: NVSHMEM passes a transport of ours.
        let plugin = unsafe { plugin(transport) }?;
        let names: Vec<&str> = plugin.nics.iter().map(|nic| nic.name.as_str()).collect();
        let count = plugin.mesh().map_or(0, |mesh| mesh.memories.count());
        println!("Trunkline: NICs {}, {count} memory handles", names.join(", "));
        Ok(())
    })
    .0
}

/// Goes on with everything: for the proxy, and for a host that computes.
pub(super) unsafe extern "C" fn progress<T: Version>(transport: *mut T) -> c_int {
    guard("progress", || {
        // SAFETY: NVSHMEM passes a transport of ours.
        let mesh = unsafe { plugin(transport) }?.mesh()?;
        mesh.proxy.progress(&mesh.job)?;
        mesh.host.progress(&mesh.job)
    })
    .0
}

/// Where bytes of a PE are, by what NVSHMEM says of them.
///
/// # Safety
/// The descriptor's handle is null or readable.
unsafe fn there(mesh: &Mesh, pe: u32, remote: &RmaMemdesc, len: u64) -> Result<(u8, u64)> {
    // SAFETY: by the contract of this function.
    let handle: &Handle = &unsafe { borrow(remote.handle, "no handle of the other PE's memory") }?.reserved;
    mesh.there(pe, handle, remote.ptr.expose_provenance() as u64, len)
}

/// Bytes of this PE.
///
/// # Safety
/// The descriptor's handle is null or readable; without one, its bytes are memory of the host that stays for the call.
unsafe fn here(mesh: &Mesh, local: &RmaMemdesc, len: u64) -> Result<Near> {
    let addr = local.ptr.expose_provenance();
    if local.handle.is_null() {
        if addr == 0 {
            return Err(CallError::Argument("no bytes of this PE"));
        }
        let is_on_stack =
            own_stack::holds(addr, len as usize) && !crate::planted("nvshmem-asks-for-each-value");
        // A fault would say nothing.
        if !is_on_stack
            && mesh.memories.is_of_gpu(addr)?
            && !crate::planted("nvshmem-takes-all-for-the-hosts")
        {
            return Err(CallError::Argument(
                "bytes of a GPU that come without a handle are not moved: get_mem_handle makes one",
            ));
        }
        // SAFETY: by the contract of this function.
        return Ok(Near::Elsewhere(unsafe { Memory::from_raw(addr, len as usize, Kind::Host) }));
    }
    // SAFETY: by the contract of this function.
    let handle = &unsafe { borrow(local.handle, "null handle") }?.reserved;
    let own = MemoryHandle::memory_of(handle);
    let memory = own.map_err(|source| CallError::Handle { pe: u32::MAX, source })?;
    mesh.memories.own(&memory)?;
    let offset = inside(&memory, addr as u64, len)?;
    Ok(Near::Registered(Local { heap: memory.heap, offset, len }))
}

fn length(bytes: &RmaBytesdesc) -> Result<u64> {
    let each = usize::try_from(bytes.elembytes).ok();
    let len = each.and_then(|each| bytes.nelems.checked_mul(each));
    len.map(|len| len as u64).ok_or(CallError::Argument("a number of bytes that cannot be"))
}

/// Whether bytes lie one behind the other at both ends, as NVSHMEM's host and proxy always say (it splits rows itself). Of one element, and of none, a
/// stride says nothing; and 0 is none.
fn in_one_piece(bytes: &RmaBytesdesc) -> Result<()> {
    let strided = |stride| !matches!(stride, 0 | 1) && !crate::planted("nvshmem-ignores-strides");
    if bytes.nelems > 1 && (strided(bytes.srcstride) || strided(bytes.deststride)) {
        return Err(CallError::Unsupported("elements with strides between them are not moved by one call"));
    }
    Ok(())
}

/// Who waits may use its bytes at once, and asks for no quiet.
fn wait(mesh: &Mesh, lane: &Lane, pe: u32, verb: &RmaVerb) -> Result<()> {
    if verb.is_nbi != 0 || crate::planted("nvshmem-waits-for-nobody") {
        return Ok(());
    }
    lane.quiet(&mesh.job, pe)?;
    mesh.memories.publish_gets();
    Ok(())
}

/// Puts or gets bytes.
#[inline]
pub(super) unsafe extern "C" fn rma<T: Version>(
    transport: *mut T,
    pe: c_int,
    verb: RmaVerb,
    remote: *mut RmaMemdesc,
    local: *mut RmaMemdesc,
    bytes: RmaBytesdesc,
    queue_pair: c_int,
) -> c_int {
    guard("rma", || {
        // SAFETY: NVSHMEM passes a transport of ours.
        let mesh = unsafe { plugin(transport) }?.mesh()?;
        let pe = mesh.pe(pe)?;
        let len = length(&bytes)?;
        let lane = mesh.lane(queue_pair);
        in_one_piece(&bytes)?;
        // SAFETY: and descriptors.
        let remote = unsafe { read(remote, "no remote descriptor") }?;
        // SAFETY: as above.
        let local = unsafe { read(local, "no local descriptor") }?;
        if len == 0 {
            return Ok(());
        }
        // SAFETY: with handles of its own.
        let there = unsafe { there(mesh, pe, &remote, len) }?;
        // SAFETY: as above; what has no handle is on the caller's stack, or memory of the host.
        let here = unsafe { here(mesh, &local, len) }?;
        let kind = verb.desc % op::QP_OFFSET;
        match kind {
            op::PUT | op::P => lane.put(&mesh.job, pe, there, &here)?,
            op::GET | op::G => lane.get(&mesh.job, pe, there, &here)?,
            _ => return Err(CallError::Argument("an operation that is neither a put nor a get")),
        }
        // A value on the stack has been copied.
        if kind == op::P { Ok(()) } else { wait(mesh, lane, pe, &verb) }
    })
    .0
}

/// What an atomic is to do, by NVSHMEM's number for it.
fn change(kind: c_int, bytes: c_int, float: bool, value: u64, expect: u64) -> Result<Change> {
    let refused = || CallError::Atomic { kind, bytes, float };
    let (plain, real, mask) = match bytes {
        4 => (Type::U32, Type::F32, u64::from(u32::MAX)),
        8 => (Type::U64, Type::F64, u64::MAX),
        _ => return Err(refused()),
    };
    let value = value & mask;
    let expect = expect & mask;
    let fetches = kind > amo::END_OF_NONFETCH;
    let action = match kind {
        amo::SIGNAL | amo::SIGNAL_SET => return Ok(Change::Signal(SignalOp::Set, value)),
        amo::SIGNAL_ADD => return Ok(Change::Signal(SignalOp::Add, value)),
        amo::INC | amo::FETCH_INC if !float => Action::Add(1),
        amo::SET | amo::SWAP => Action::Set(value),
        amo::ADD | amo::FETCH_ADD => Action::Add(value),
        amo::AND | amo::FETCH_AND => Action::And(value),
        amo::OR | amo::FETCH_OR => Action::Or(value),
        amo::XOR | amo::FETCH_XOR => Action::Xor(value),
        amo::FETCH => Action::Fetch,
        amo::COMPARE_SWAP => Action::CompareSwap { expect, swap: value },
        _ => return Err(refused()),
    };
    // All but a sum is the same for the bits of a floating-point number.
    let adds = matches!(action, Action::Add(_));
    Ok(Change::Atomic(if float && adds { real } else { plain }, action, fetches))
}

/// Which of NVSHMEM's atomics, as the versions' verbs say it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Verb {
    pub(super) kind: c_int,
    pub(super) float: bool,
}

/// The verb of a version, of which each has one.
pub(super) trait VerbOf: Copy {
    /// What it asks for.
    fn verb(&self) -> Verb;
}

/// An atomic on a word of a PE.
#[inline]
pub(super) unsafe extern "C" fn amo<T: Version, V: VerbOf>(
    transport: *mut T,
    pe: c_int,
    _curet: *mut c_void,
    verb: V,
    target: *mut AmoMemdesc,
    bytes: AmoBytesdesc,
    queue_pair: c_int,
) -> c_int {
    guard("amo", || {
        let verb = verb.verb();
        // SAFETY: NVSHMEM passes a transport of ours.
        let mesh = unsafe { plugin(transport) }?.mesh()?;
        let pe = mesh.pe(pe)?;
        let lane = mesh.lane(queue_pair);
        // SAFETY: and a descriptor.
        let target = unsafe { read(target, "no word") }?;
        let len = u64::try_from(bytes.elembytes).unwrap_or(0);
        let change = change(verb.kind, bytes.elembytes, verb.float, target.val, target.cmp)?;
        // SAFETY: with a handle.
        let there = unsafe { there(mesh, pe, &target.remote_memdesc, len) }?;
        let word = word(there, bytes.elembytes)?;
        let result = match change {
            Change::Atomic(_, _, true) => {
                // SAFETY: and another, where something is fetched.
                let handle = &unsafe { borrow(target.ret_handle, "no handle for the value") }?.reserved;
                let own = MemoryHandle::memory_of(handle);
                let memory = own.map_err(|source| CallError::Handle { pe: u32::MAX, source })?;
                let offset = inside(&memory, target.retptr.expose_provenance() as u64, 16)?;
                Some((mesh.memories.place(&memory, offset)?, target.retflag))
            }
            _ => None,
        };
        lane.change(&mesh.job, pe, word, change, result)
    })
    .0
}

/// Orders what comes after behind what came before.
pub(super) unsafe extern "C" fn fence<T: Version>(
    transport: *mut T,
    _pe: c_int,
    queue_pair: c_int,
    _is_multi: c_int,
) -> c_int {
    guard("fence", || {
        // SAFETY: NVSHMEM passes a transport of ours.
        let mesh = unsafe { plugin(transport) }?.mesh()?;
        mesh.lane(queue_pair).fence(&mesh.job)
    })
    .0
}

/// Says whether more operations of a queue pair follow the next one at once. A hint that cannot be followed is dropped: a hint has no answer.
pub(super) unsafe extern "C" fn batch_hint<T: Version>(transport: *mut T, queue_pair: c_int, flags: c_uint) {
    guard("batch_hint", || {
        // SAFETY: NVSHMEM passes a transport of ours.
        let mesh = unsafe { plugin(transport) }?.mesh()?;
        mesh.lane(queue_pair).batch(&mesh.job, flags != 0)
    });
}

/// Waits for all that was begun towards a PE.
#[inline]
pub(super) unsafe extern "C" fn quiet<T: Version>(transport: *mut T, pe: c_int, queue_pair: c_int) -> c_int {
    guard("quiet", || {
        // SAFETY: NVSHMEM passes a transport of ours.
        let mesh = unsafe { plugin(transport) }?.mesh()?;
        mesh.lane(queue_pair).quiet(&mesh.job, mesh.pe(pe)?)?;
        mesh.memories.publish_gets();
        Ok(())
    })
    .0
}

/// Puts what the vectors say, then changes the word of a signal.
pub(super) unsafe extern "C" fn put_signal<T: Version, V: VerbOf>(
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
    guard("put_signal", || {
        let verb = verb.verb();
        // SAFETY: NVSHMEM passes a transport of ours.
        let mesh = unsafe { plugin(transport) }?.mesh()?;
        let pe = mesh.pe(pe)?;
        let lane = mesh.lane(queue_pair);
        // SAFETY: and vectors, which its caller has.
        let remote = unsafe { Elements::of(remote) }?;
        // SAFETY: as above.
        let local = unsafe { Elements::of(local) }?;
        // SAFETY: as above.
        let lens = unsafe { Elements::of(lens) }?;
        if remote.count != local.count || remote.count != lens.count {
            return Err(CallError::Argument("the vectors of a put with signal are not equally long"));
        }
        let put = |at| {
            let remote = remote.at(at)?;
            let local = local.at(at)?;
            let len = length(&lens.at(at)?)?;
            if len == 0 {
                return Ok(((0, 0), Near::Registered(Local { heap: 0, offset: 0, len })));
            }
            // SAFETY: descriptors with handles.
            let there = unsafe { there(mesh, pe, &remote, len) }?;
            // SAFETY: as above.
            Ok((there, unsafe { here(mesh, &local, len) }?))
        };
        // SAFETY: and a descriptor of the signal's word.
        let target = unsafe { read(target, "no word for the signal") }?;
        let change = change(verb.kind, bytes.elembytes, verb.float, target.val, target.cmp)?;
        let Change::Signal(op, value) = change else {
            return Err(CallError::Argument("a signal sets a word or adds to it"));
        };
        let len = u64::try_from(bytes.elembytes).unwrap_or(0);
        // SAFETY: with a handle.
        let there = unsafe { there(mesh, pe, &target.remote_memdesc, len) }?;
        lane.put_signal(&mesh.job, pe, (remote.count, put), (word(there, bytes.elembytes)?, op, value))?;
        wait(mesh, lane, pe, &write)
    })
    .0
}
