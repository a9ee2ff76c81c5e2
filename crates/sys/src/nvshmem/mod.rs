//! NVSHMEM's interface for remote transports, from its public headers: `internal/host_transport/transport.h`, `nvshmemi_transport_defines.h`,
//! `nvshmem_common_transport.h`, `nvshmemi_bootstrap_defines.h` and `cudawrap.h`. What is the same in all versions is here, and what differs in
//! a module each: [`v4`] for NVSHMEM 3.5, [`v6`] for 3.7.
//!
//! Read by the plugin; calls nothing.

use core::ffi::{c_char, c_int, c_void};
use core::mem::{offset_of, size_of};

pub mod v4;
pub mod v6;

/// What NVSHMEM gets back (`nvshmemx_error.h`).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(transparent)]
pub struct StatusCode(pub c_int);

impl StatusCode {
    /// Done.
    pub const SUCCESS: Self = Self(0);
    /// An argument, or the version of the interface, cannot be.
    pub const INVALID_VALUE: Self = Self(1);
    /// No memory, or no place.
    pub const OUT_OF_MEMORY: Self = Self(2);
    /// There is no such thing here.
    pub const NOT_SUPPORTED: Self = Self(3);
    /// Anything else.
    pub const INTERNAL: Self = Self(7);
}

/// `NVSHMEMX_QP_HOST`: calls of the program, by its own threads. All others are of the proxy.
pub const QP_HOST: c_int = 0;
/// `NVSHMEMX_QP_DEFAULT`: what the proxy uses if a kernel names no other.
pub const QP_DEFAULT: c_int = 1;

/// Kinds of operations (`nvshmemi_op_t`).
pub mod op {
    use core::ffi::c_int;

    /// Bytes of this process go to another.
    pub const PUT: c_int = 1;
    /// A value of up to 8 bytes does, which is on the caller's stack.
    pub const P: c_int = 2;
    /// Bytes, and a signal behind them.
    pub const PUT_SIGNAL: c_int = 3;
    /// Bytes of another come here.
    pub const GET: c_int = 4;
    /// A value does.
    pub const G: c_int = 5;
    /// What is added for an operation on a queue pair that a kernel named.
    pub const QP_OFFSET: c_int = 100;
}

/// Kinds of atomics (`nvshmemi_amo_t`).
pub mod amo {
    use core::ffi::c_int;

    /// Adds 1.
    pub const INC: c_int = 2;
    /// Stores.
    pub const SET: c_int = 3;
    /// Adds.
    pub const ADD: c_int = 4;
    /// Keeps bits.
    pub const AND: c_int = 5;
    /// Sets bits.
    pub const OR: c_int = 6;
    /// Turns bits.
    pub const XOR: c_int = 7;
    /// Stores a signal.
    pub const SIGNAL: c_int = 8;
    /// The same.
    pub const SIGNAL_SET: c_int = 9;
    /// Adds to a signal.
    pub const SIGNAL_ADD: c_int = 10;
    /// All above this fetch.
    pub const END_OF_NONFETCH: c_int = 11;
    /// Reads.
    pub const FETCH: c_int = 12;
    /// Adds 1.
    pub const FETCH_INC: c_int = 13;
    /// Adds.
    pub const FETCH_ADD: c_int = 14;
    /// Keeps bits.
    pub const FETCH_AND: c_int = 15;
    /// Sets bits.
    pub const FETCH_OR: c_int = 16;
    /// Turns bits.
    pub const FETCH_XOR: c_int = 17;
    /// Stores.
    pub const SWAP: c_int = 18;
    /// Stores if it was as expected.
    pub const COMPARE_SWAP: c_int = 19;
}

/// Bits of what a process can do with the memory of another.
pub mod cap {
    use core::ffi::c_int;

    /// Calls of this process write it.
    pub const CPU_WRITE: c_int = 1 << 4;
    /// And read it.
    pub const CPU_READ: c_int = 1 << 5;
    /// And change it.
    pub const CPU_ATOMICS: c_int = 1 << 6;
}

/// `NVSHMEM_TRANSPORT_ATTR_CONNECTED`.
pub const ATTR_CONNECTED: c_int = 1 << 1;

/// `nvshmem_mem_handle_t`: what the transport says of memory, in its own words.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct MemHandle {
    /// The words.
    pub reserved: [u8; 512],
}

/// `pcie_id_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct PcieId {
    /// Device.
    pub dev_id: c_int,
    /// Bus.
    pub bus_id: c_int,
    /// Domain.
    pub domain_id: c_int,
}

/// `nvshmem_transport_pe_info_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct PeInfo {
    /// Its GPU.
    pub pcie_id: PcieId,
    /// Its number.
    pub pe: c_int,
    /// Its host.
    pub host_hash: u64,
    /// Its GPU's name.
    pub gpu_uuid: [u8; 16],
}

/// `rma_verb_t`, by value.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct RmaVerb {
    /// Of [`op`].
    pub desc: c_int,
    /// The caller does not wait.
    pub is_nbi: c_int,
    /// It is on a stream.
    pub is_stream: c_int,
    /// Which.
    pub cstrm: *mut c_void,
}

/// `rma_memdesc_t`: bytes, and the handle of the memory that they are in.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct RmaMemdesc {
    /// Their address, in the process that they are of.
    pub ptr: *mut c_void,
    /// From the start of the heap.
    pub offset: u64,
    /// NULL for a value on the stack.
    pub handle: *mut MemHandle,
}

/// `rma_bytesdesc_t`, by value.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct RmaBytesdesc {
    /// Elements.
    pub nelems: usize,
    /// Bytes of each.
    pub elembytes: c_int,
    /// Elements from one to the next; always 1 for remote transports.
    pub srcstride: isize,
    /// Likewise.
    pub deststride: isize,
}

/// `amo_memdesc_t`: a word and operands.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct AmoMemdesc {
    /// The word.
    pub remote_memdesc: RmaMemdesc,
    /// What is written behind the value that was fetched.
    pub retflag: u64,
    /// Where it goes: [`Fetched`].
    pub retptr: *mut c_void,
    /// Not used.
    pub valptr: *mut c_void,
    /// Not used.
    pub cmpptr: *mut c_void,
    /// The operand.
    pub val: u64,
    /// What a compare-and-swap expects.
    pub cmp: u64,
    /// Of the memory at `retptr`.
    pub ret_handle: *mut MemHandle,
}

/// `g_elem_t`: a value that was fetched, as kernels wait for it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Fetched {
    /// The value.
    pub data: u64,
    /// The flag, written after it.
    pub flag: u64,
}

/// `amo_bytesdesc_t`, by value.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct AmoBytesdesc {
    /// Not used.
    pub name_type: c_int,
    /// Bytes of the word.
    pub elembytes: c_int,
}

/// A `std::vector<T>` of libstdc++, of which only the elements are read.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct StdVector<T> {
    /// The first one.
    pub begin: *const T,
    /// Behind the last one.
    pub end: *const T,
    /// Behind the room for more.
    pub end_of_storage: *const T,
}

/// A `std::unordered_map<void *, void *>` of libstdc++, which is only read.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct StdUnorderedMap {
    /// Its table.
    pub buckets: *const *const c_void,
    /// Places in that.
    pub bucket_count: usize,
    /// The first node: all of them are one list.
    pub first: *const StdMapNode,
    /// How many there are.
    pub count: usize,
    /// How it grows: two members of the library's own.
    pub rehash_policy: [usize; 2],
    /// The table of a map that needs no other.
    pub single_bucket: *const c_void,
}

/// A node of it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct StdMapNode {
    /// The next one.
    pub next: *const Self,
    /// The key.
    pub key: *const c_void,
    /// The value.
    pub value: *const c_void,
}

/// `bootstrap_handle_t`: how the processes talk to each other before they have a network.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct BootstrapHandle {
    /// Of this structure.
    pub version: c_int,
    /// The number of this process.
    pub pg_rank: c_int,
    /// How many there are.
    pub pg_size: c_int,
    /// Its number on this host.
    pub mype_node: c_int,
    /// How many are on this host.
    pub npes_node: c_int,
    /// Each gives bytes and gets those of all.
    pub allgather: Option<unsafe extern "C" fn(*const c_void, *mut c_void, c_int, *mut Self) -> c_int>,
    /// Each gives bytes for each.
    pub alltoall: Option<unsafe extern "C" fn(*const c_void, *mut c_void, c_int, *mut Self) -> c_int>,
    /// Comes back when all have called it.
    pub barrier: Option<unsafe extern "C" fn(*mut Self) -> c_int>,
    /// Ends all of them.
    pub global_exit: Option<unsafe extern "C" fn(c_int)>,
    /// The end.
    pub finalize: Option<unsafe extern "C" fn(*mut Self) -> c_int>,
    /// Prints.
    pub show_info: Option<unsafe extern "C" fn(*mut Self, c_int) -> c_int>,
    /// Its own.
    pub pre_init_ops: *mut c_void,
    /// Its own.
    pub comm_state: *mut c_void,
}

/// `nvshmemi_cuda_fn_table`: the CUDA driver's functions that NVSHMEM has looked up. The first sixteen, which are the same in the versions that
/// this knows; any may be NULL.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CudaTable {
    /// `cuCtxGetDevice`.
    pub ctx_get_device: Option<unsafe extern "C" fn(*mut c_int) -> c_int>,
    /// Not used: `cuCtxSynchronize`, `cuDeviceGet`, `cuDeviceGetAttribute`.
    pub unused_1: [*const c_void; 3],
    /// `cuPointerGetAttribute`.
    pub pointer_get_attribute: Option<unsafe extern "C" fn(*mut c_void, c_int, u64) -> c_int>,
    /// `cuPointerSetAttribute`.
    pub pointer_set_attribute: Option<unsafe extern "C" fn(*const c_void, c_int, u64) -> c_int>,
    /// Not used: `cuModuleGetGlobal`.
    pub unused_2: *const c_void,
    /// `cuGetErrorString`.
    pub get_error_string: Option<unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int>,
    /// Not used: `cuGetErrorName`, `cuCtxSetCurrent`, `cuDevicePrimaryCtxRetain`, `cuCtxGetCurrent`, `cuCtxGetFlags`, `cuCtxSetFlags`,
    /// `cuFlushGPUDirectRDMAWrites`.
    pub unused_3: [*const c_void; 7],
    /// `cuMemGetHandleForAddressRange`: a dma-buf.
    pub mem_get_handle_for_address_range:
        Option<unsafe extern "C" fn(*mut c_void, u64, usize, c_int, u64) -> c_int>,
}

/// Functions of a transport whose types are the same in all versions, in the order of the table's beginning. `T` is the transport.
#[derive(Debug)]
#[repr(C)]
pub struct SetUp<T> {
    /// What this process can do with the memory of a PE: bits of [`cap`].
    pub can_reach_peer: Option<unsafe extern "C" fn(*mut c_int, *mut PeInfo, *mut T) -> c_int>,
    /// Uses these devices and meets the others; later makes queue pairs.
    pub connect_endpoints:
        Option<unsafe extern "C" fn(*mut T, *mut c_int, c_int, *mut c_int, c_int) -> c_int>,
    /// Registers memory.
    pub get_mem_handle:
        Option<unsafe extern "C" fn(*mut MemHandle, *mut c_void, usize, *mut T, bool) -> c_int>,
    /// And no more.
    pub release_mem_handle: Option<unsafe extern "C" fn(*mut MemHandle, *mut T) -> c_int>,
    /// The end: gives back everything, the transport too.
    pub finalize: Option<unsafe extern "C" fn(*mut T) -> c_int>,
    /// Prints.
    pub show_info: Option<unsafe extern "C" fn(*mut T, c_int) -> c_int>,
    /// Goes on with everything.
    pub progress: Option<unsafe extern "C" fn(*mut T) -> c_int>,
}

/// `rma`.
pub type Rma<T> = unsafe extern "C" fn(
    *mut T,
    c_int,
    RmaVerb,
    *mut RmaMemdesc,
    *mut RmaMemdesc,
    RmaBytesdesc,
    c_int,
) -> c_int;

/// `amo`, with the verb of a version.
pub type Amo<T, V> =
    unsafe extern "C" fn(*mut T, c_int, *mut c_void, V, *mut AmoMemdesc, AmoBytesdesc, c_int) -> c_int;

/// `fence`.
pub type Fence<T> = unsafe extern "C" fn(*mut T, c_int, c_int, c_int) -> c_int;

/// `quiet`.
pub type Quiet<T> = unsafe extern "C" fn(*mut T, c_int, c_int) -> c_int;

/// `put_signal`, with the verb of a version.
pub type PutSignal<T, V> = unsafe extern "C" fn(
    *mut T,
    c_int,
    RmaVerb,
    *mut StdVector<RmaMemdesc>,
    *mut StdVector<RmaMemdesc>,
    *mut StdVector<RmaBytesdesc>,
    V,
    *mut AmoMemdesc,
    AmoBytesdesc,
    c_int,
) -> c_int;

/// `enforce_cst` and `enforce_cst_at_target`.
pub type Enforce<T> = unsafe extern "C" fn(*mut T) -> c_int;

/// `add_device_remote_mem_handles`.
pub type AddHandles<T> = unsafe extern "C" fn(*mut T, c_int, *mut MemHandle, u64, usize) -> c_int;

/// `nvshmem_transport` before its functions: the same in all versions.
#[derive(Debug)]
#[repr(C)]
pub struct Head {
    /// Of the interface, as both sides speak it.
    pub api_version: c_int,
    /// 0: not one that kernels know.
    pub lib_code: c_int,
    /// By PE; the host's.
    pub cap: *mut c_int,
    /// The host's.
    pub boot_handle: *mut BootstrapHandle,
    /// The transport's own.
    pub state: *mut c_void,
    /// Not used.
    pub type_specific_shared_state: *mut c_void,
    /// The host's.
    pub cache_handle: *mut c_void,
    /// Folders in sysfs, one for each device.
    pub device_pci_paths: *mut *mut c_char,
    /// Bits: [`ATTR_CONNECTED`].
    pub attr: c_int,
    /// Devices.
    pub n_devices: c_int,
    /// A quiet tells that fetched values are there; else their flags do.
    pub atomics_complete_on_quiet: bool,
    /// The transport can be used.
    pub is_successfully_initialized: bool,
    /// The host needs no proxy for it.
    pub no_proxy: bool,
    /// The heap's first byte.
    pub heap_base: *mut c_void,
    /// Of the chunks that the heap grows by.
    pub log2_cumem_granularity: usize,
    /// Most bytes of an operation; 0 for any number.
    pub max_op_len: u64,
    /// Smallest atomic whose value is in the host's order; 0 if all are.
    pub atomic_host_endian_min_size: u32,
    /// The host's number for the transport.
    pub index: c_int,
    /// This PE.
    pub my_pe: c_int,
    /// How many there are.
    pub n_pes: c_int,
    /// Where memory that the program mapped into the heap really is, by its address in the heap.
    pub alias_va_map: *const StdUnorderedMap,
    /// Not used.
    pub egm_map: *const c_void,
}

const _: () = {
    assert!(
        size_of::<PeInfo>() == 40
            && offset_of!(PeInfo, host_hash) == 16
            && offset_of!(PeInfo, gpu_uuid) == 24
    );
    assert!(size_of::<RmaVerb>() == 24 && offset_of!(RmaVerb, cstrm) == 16);
    assert!(size_of::<RmaMemdesc>() == 24 && offset_of!(RmaMemdesc, handle) == 16);
    assert!(size_of::<RmaBytesdesc>() == 32 && offset_of!(RmaBytesdesc, srcstride) == 16);
    assert!(size_of::<AmoMemdesc>() == 80 && offset_of!(AmoMemdesc, retflag) == 24);
    assert!(offset_of!(AmoMemdesc, val) == 56 && offset_of!(AmoMemdesc, ret_handle) == 72);
    assert!(size_of::<AmoBytesdesc>() == 8 && size_of::<MemHandle>() == 512);
    assert!(size_of::<BootstrapHandle>() == 88 && offset_of!(BootstrapHandle, allgather) == 24);
    assert!(offset_of!(BootstrapHandle, comm_state) == 80);
    assert!(size_of::<CudaTable>() == 16 * 8);
    assert!(offset_of!(CudaTable, mem_get_handle_for_address_range) == 15 * 8);
    assert!(size_of::<StdVector<u8>>() == 24 && size_of::<StdUnorderedMap>() == 56);
    assert!(size_of::<Head>() == 128);
    assert!(
        offset_of!(Head, cap) == 8
            && offset_of!(Head, state) == 24
            && offset_of!(Head, device_pci_paths) == 48
    );
    assert!(offset_of!(Head, attr) == 56 && offset_of!(Head, n_devices) == 60);
    assert!(offset_of!(Head, atomics_complete_on_quiet) == 64 && offset_of!(Head, no_proxy) == 66);
    assert!(offset_of!(Head, heap_base) == 72 && offset_of!(Head, max_op_len) == 88);
    assert!(offset_of!(Head, atomic_host_endian_min_size) == 96 && offset_of!(Head, my_pe) == 104);
    assert!(offset_of!(Head, alias_va_map) == 112 && offset_of!(Head, egm_map) == 120);
    assert!(size_of::<SetUp<()>>() == 56);
};
