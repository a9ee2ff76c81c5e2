//! NVSHMEM's interface for remote transports, from its public headers: `internal/host_transport/transport.h`,
//! `nvshmemi_transport_defines.h`, `nvshmem_common_transport.h`, `nvshmemi_bootstrap_defines.h` and `cudawrap.h`.
//! This module contains the types that are equal in all versions; [`v4`] (NVSHMEM 3.5) and [`v6`] (3.7) contain the
//! types that differ.
//!
//! Read by the plugin; calls no function.

use core::ffi::{c_char, c_int, c_void};
use core::mem::{offset_of, size_of};

pub mod v4;
pub mod v6;

/// A status that the transport returns to NVSHMEM (`nvshmemx_error.h`).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(transparent)]
pub struct StatusCode(pub c_int);

impl StatusCode {
    /// Success.
    pub const SUCCESS: Self = Self(0);
    /// An argument, or the version of the interface, is invalid.
    pub const INVALID_VALUE: Self = Self(1);
    /// Out of memory or of table entries.
    pub const OUT_OF_MEMORY: Self = Self(2);
    /// The operation is not supported.
    pub const NOT_SUPPORTED: Self = Self(3);
    /// Any other error.
    pub const INTERNAL: Self = Self(7);
}

/// `NVSHMEMX_QP_HOST`: calls that the program's own threads make. All other queue pairs belong to the proxy.
pub const QP_HOST: c_int = 0;
/// `NVSHMEMX_QP_DEFAULT`: the proxy's queue pair if a kernel selects no other.
pub const QP_DEFAULT: c_int = 1;

/// Kinds of operations (`nvshmemi_op_t`).
pub mod op {
    use core::ffi::c_int;

    /// Writes bytes of this process to another.
    pub const PUT: c_int = 1;
    /// Writes a value of up to 8 bytes, which is on the caller's stack.
    pub const P: c_int = 2;
    /// Writes bytes, then a signal.
    pub const PUT_SIGNAL: c_int = 3;
    /// Reads bytes of another process.
    pub const GET: c_int = 4;
    /// Reads a value of up to 8 bytes.
    pub const G: c_int = 5;
    /// Added to the operation if a kernel selected its queue pair.
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
    /// Bitwise AND.
    pub const AND: c_int = 5;
    /// Bitwise OR.
    pub const OR: c_int = 6;
    /// Bitwise XOR.
    pub const XOR: c_int = 7;
    /// Stores a signal.
    pub const SIGNAL: c_int = 8;
    /// Stores a signal, as [`SIGNAL`].
    pub const SIGNAL_SET: c_int = 9;
    /// Adds to a signal.
    pub const SIGNAL_ADD: c_int = 10;
    /// Every operation above this number fetches the old value.
    pub const END_OF_NONFETCH: c_int = 11;
    /// Fetches without a change.
    pub const FETCH: c_int = 12;
    /// Fetches, then adds 1.
    pub const FETCH_INC: c_int = 13;
    /// Fetches, then adds.
    pub const FETCH_ADD: c_int = 14;
    /// Fetches; bitwise AND.
    pub const FETCH_AND: c_int = 15;
    /// Fetches; bitwise OR.
    pub const FETCH_OR: c_int = 16;
    /// Fetches; bitwise XOR.
    pub const FETCH_XOR: c_int = 17;
    /// Fetches, then stores.
    pub const SWAP: c_int = 18;
    /// Fetches, then stores if the old value equals the expected one.
    pub const COMPARE_SWAP: c_int = 19;
}

/// Bits of the access that a process has to the memory of another.
pub mod cap {
    use core::ffi::c_int;

    /// Calls of this process can write it.
    pub const CPU_WRITE: c_int = 1 << 4;
    /// Calls of this process can read it.
    pub const CPU_READ: c_int = 1 << 5;
    /// Calls of this process can execute atomics on it.
    pub const CPU_ATOMICS: c_int = 1 << 6;
}

/// `NVSHMEM_TRANSPORT_ATTR_CONNECTED`.
pub const ATTR_CONNECTED: c_int = 1 << 1;

/// `nvshmem_mem_handle_t`: the transport's description of registered memory.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct MemHandle {
    /// Bytes whose format the transport defines.
    pub reserved: [u8; 512],
}

/// `pcie_id_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct PcieId {
    /// PCI device number.
    pub dev_id: c_int,
    /// PCI bus number.
    pub bus_id: c_int,
    /// PCI domain number.
    pub domain_id: c_int,
}

/// `nvshmem_transport_pe_info_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct PeInfo {
    /// PCI address of its GPU.
    pub pcie_id: PcieId,
    /// Number of the PE.
    pub pe: c_int,
    /// Hash that identifies its host.
    pub host_hash: u64,
    /// UUID of its GPU.
    pub gpu_uuid: [u8; 16],
}

/// `rma_verb_t`, by value.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct RmaVerb {
    /// An operation of [`op`].
    pub desc: c_int,
    /// Whether the call is non-blocking.
    pub is_nbi: c_int,
    /// Whether the operation belongs to a CUDA stream.
    pub is_stream: c_int,
    /// That stream.
    pub cstrm: *mut c_void,
}

/// `rma_memdesc_t`: an address range, and the handle of the memory that contains it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct RmaMemdesc {
    /// Address of the range, in the process that owns it.
    pub ptr: *mut c_void,
    /// Offset from the start of the heap.
    pub offset: u64,
    /// Handle of the memory; NULL for a value on the stack.
    pub handle: *mut MemHandle,
}

/// `rma_bytesdesc_t`, by value.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct RmaBytesdesc {
    /// Number of elements.
    pub nelems: usize,
    /// Bytes of an element.
    pub elembytes: c_int,
    /// Distance between elements of the source, in elements; always 1 for remote transports.
    pub srcstride: isize,
    /// Distance between elements of the destination, likewise.
    pub deststride: isize,
}

/// `amo_memdesc_t`: a word and the operands of an atomic.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct AmoMemdesc {
    /// The word.
    pub remote_memdesc: RmaMemdesc,
    /// The flag that is written after the fetched value.
    pub retflag: u64,
    /// Destination of the fetched value: [`Fetched`].
    pub retptr: *mut c_void,
    /// Not used.
    pub valptr: *mut c_void,
    /// Not used.
    pub cmpptr: *mut c_void,
    /// The operand.
    pub val: u64,
    /// The value that a compare-and-swap expects.
    pub cmp: u64,
    /// Handle of the memory at `retptr`.
    pub ret_handle: *mut MemHandle,
}

/// `g_elem_t`: a fetched value with a flag, on which kernels wait.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Fetched {
    /// The fetched value.
    pub data: u64,
    /// The flag, which is written after the value.
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

/// A `std::vector<T>` of libstdc++. Only its elements are read.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct StdVector<T> {
    /// First element.
    pub begin: *const T,
    /// End of the elements.
    pub end: *const T,
    /// End of the allocated memory.
    pub end_of_storage: *const T,
}

/// A `std::unordered_map<void *, void *>` of libstdc++. It is only read.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct StdUnorderedMap {
    /// The array of buckets.
    pub buckets: *const *const c_void,
    /// Number of buckets.
    pub bucket_count: usize,
    /// The first node of the list of all nodes.
    pub first: *const StdMapNode,
    /// Number of nodes.
    pub count: usize,
    /// Rehash policy: two private members.
    pub rehash_policy: [usize; 2],
    /// The bucket array of a map with one bucket.
    pub single_bucket: *const c_void,
}

/// A node of a [`StdUnorderedMap`].
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct StdMapNode {
    /// The next node.
    pub next: *const Self,
    /// The key.
    pub key: *const c_void,
    /// The value.
    pub value: *const c_void,
}

/// `bootstrap_handle_t`: communication between the processes before the transports are connected.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct BootstrapHandle {
    /// Version of this structure.
    pub version: c_int,
    /// Number of this process.
    pub pg_rank: c_int,
    /// Number of processes.
    pub pg_size: c_int,
    /// Number of this process on its host.
    pub mype_node: c_int,
    /// Number of processes on its host.
    pub npes_node: c_int,
    /// Collects the same number of bytes from each process, at all processes.
    pub allgather: Option<unsafe extern "C" fn(*const c_void, *mut c_void, c_int, *mut Self) -> c_int>,
    /// Exchanges bytes between each pair of processes.
    pub alltoall: Option<unsafe extern "C" fn(*const c_void, *mut c_void, c_int, *mut Self) -> c_int>,
    /// Returns once all processes have called it.
    pub barrier: Option<unsafe extern "C" fn(*mut Self) -> c_int>,
    /// Ends all processes.
    pub global_exit: Option<unsafe extern "C" fn(c_int)>,
    /// Frees the bootstrap.
    pub finalize: Option<unsafe extern "C" fn(*mut Self) -> c_int>,
    /// Prints the state.
    pub show_info: Option<unsafe extern "C" fn(*mut Self, c_int) -> c_int>,
    /// Private to the bootstrap.
    pub pre_init_ops: *mut c_void,
    /// Private to the bootstrap.
    pub comm_state: *mut c_void,
}

/// `nvshmemi_cuda_fn_table`: the functions of the CUDA driver that NVSHMEM has resolved. Contains the first sixteen,
/// which are equal in all supported versions; any may be NULL.
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
    /// Not used: `cuGetErrorName`, `cuCtxSetCurrent`, `cuDevicePrimaryCtxRetain`, `cuCtxGetCurrent`, `cuCtxGetFlags`,
    /// `cuCtxSetFlags`, `cuFlushGPUDirectRDMAWrites`.
    pub unused_3: [*const c_void; 7],
    /// `cuMemGetHandleForAddressRange`: exports a dma-buf.
    pub mem_get_handle_for_address_range:
        Option<unsafe extern "C" fn(*mut c_void, u64, usize, c_int, u64) -> c_int>,
}

/// The first functions of a transport's table, whose types are equal in all versions. `T` is the transport.
#[derive(Debug)]
#[repr(C)]
pub struct SetUp<T> {
    /// Returns the access that this process has to the memory of a PE: bits of [`cap`].
    pub can_reach_peer: Option<unsafe extern "C" fn(*mut c_int, *mut PeInfo, *mut T) -> c_int>,
    /// Opens the given devices and exchanges addresses with the other PEs. Later calls create queue pairs.
    pub connect_endpoints:
        Option<unsafe extern "C" fn(*mut T, *mut c_int, c_int, *mut c_int, c_int) -> c_int>,
    /// Registers memory.
    pub get_mem_handle:
        Option<unsafe extern "C" fn(*mut MemHandle, *mut c_void, usize, *mut T, bool) -> c_int>,
    /// Ends a registration.
    pub release_mem_handle: Option<unsafe extern "C" fn(*mut MemHandle, *mut T) -> c_int>,
    /// Closes the transport and frees all its memory, including the transport itself.
    pub finalize: Option<unsafe extern "C" fn(*mut T) -> c_int>,
    /// Prints the state.
    pub show_info: Option<unsafe extern "C" fn(*mut T, c_int) -> c_int>,
    /// Makes progress on all operations.
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

/// `amo`, with the verb type of a version.
pub type Amo<T, V> =
    unsafe extern "C" fn(*mut T, c_int, *mut c_void, V, *mut AmoMemdesc, AmoBytesdesc, c_int) -> c_int;

/// `fence`.
pub type Fence<T> = unsafe extern "C" fn(*mut T, c_int, c_int, c_int) -> c_int;

/// `quiet`.
pub type Quiet<T> = unsafe extern "C" fn(*mut T, c_int, c_int) -> c_int;

/// `put_signal`, with the verb type of a version.
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

/// The part of `nvshmem_transport` before its functions, which is equal in all versions.
#[derive(Debug)]
#[repr(C)]
pub struct Head {
    /// Version of the interface that host and transport use.
    pub api_version: c_int,
    /// Transport number that kernels use; 0 for none.
    pub lib_code: c_int,
    /// Access to each PE's memory: bits of [`cap`]. Owned by the host.
    pub cap: *mut c_int,
    /// The bootstrap. Owned by the host.
    pub boot_handle: *mut BootstrapHandle,
    /// Private to the transport.
    pub state: *mut c_void,
    /// Not used.
    pub type_specific_shared_state: *mut c_void,
    /// Private to the host.
    pub cache_handle: *mut c_void,
    /// Paths in sysfs, one per device.
    pub device_pci_paths: *mut *mut c_char,
    /// Bits: [`ATTR_CONNECTED`].
    pub attr: c_int,
    /// Number of devices.
    pub n_devices: c_int,
    /// Whether fetched values are complete after a quiet. Otherwise each is complete once its flag is set.
    pub atomics_complete_on_quiet: bool,
    /// Whether the transport can be used.
    pub is_successfully_initialized: bool,
    /// Whether the host needs no proxy for this transport.
    pub no_proxy: bool,
    /// First byte of the heap.
    pub heap_base: *mut c_void,
    /// Binary logarithm of the size of the chunks by which the heap grows.
    pub log2_cumem_granularity: usize,
    /// Most bytes per operation; 0 for no limit.
    pub max_op_len: u64,
    /// Smallest atomic whose value is in the host's byte order; 0 if all are.
    pub atomic_host_endian_min_size: u32,
    /// The host's number for the transport.
    pub index: c_int,
    /// Number of this PE.
    pub my_pe: c_int,
    /// Number of PEs.
    pub n_pes: c_int,
    /// Maps an address in the heap to the real address of memory that the program mapped there.
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
