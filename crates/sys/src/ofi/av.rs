//! Address vectors, which map the addresses of peers to the numbers that operations use.

use core::ffi::{c_char, c_int, c_void};
use core::ptr;

use super::{AvSetAttr, AvType, Fid, FidAvSet};

/// `fi_addr_t`: number of a peer in its address vector.
pub type Addr = u64;

/// `FI_ADDR_UNSPEC`: any peer.
pub const ADDR_UNSPEC: Addr = u64::MAX;
/// `FI_ADDR_NOTAVAIL`: no peer.
pub const ADDR_NOTAVAIL: Addr = u64::MAX;
/// `FI_SYMMETRIC`: a flag of vectors whose numbers are equal in all processes.
pub const AV_SYMMETRIC: u64 = 1 << 59;
/// `FI_SYNC_ERR`: an insertion reports an error number for each address.
pub const AV_SYNC_ERR: u64 = 1 << 58;

/// `struct fi_av_attr`: attributes of an address vector.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct AvAttr {
    /// How peers are numbered: [`av_type`](super::av_type).
    pub r#type: AvType,
    /// Bits of a peer's number that select a receive context.
    pub rx_ctx_bits: c_int,
    /// Expected number of peers.
    pub count: usize,
    /// Expected number of endpoints per host.
    pub ep_per_node: usize,
    /// Name of a shared vector, or NULL.
    pub name: *const c_char,
    /// Address of a shared vector's map.
    pub map_addr: *mut c_void,
    /// Whether the vector is read-only, and whether insertions are reported as events.
    pub flags: u64,
}

impl AvAttr {
    /// All fields zero or null.
    pub const ZERO: Self = Self {
        r#type: 0,
        rx_ctx_bits: 0,
        count: 0,
        ep_per_node: 0,
        name: ptr::null(),
        map_addr: ptr::null_mut(),
        flags: 0,
    };
}

/// `struct fid_av`: an address vector.
#[repr(C)]
pub struct FidAv {
    /// The part that all objects share.
    pub fid: Fid,
    /// Its function table.
    pub ops: *mut OpsAv,
}

/// `struct fi_ops_av`: functions of an address vector.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct OpsAv {
    /// Bytes of the table, set by its creator; slots beyond this size do not exist.
    pub size: usize,
    /// Inserts an array of addresses; returns the number inserted.
    pub insert: Option<AvInsert>,
    /// Inserts an address by node and service name.
    pub insertsvc: Option<AvInsertsvc>,
    /// Inserts ranges of addresses by node and service name.
    pub insertsym: Option<AvInsertsym>,
    /// Removes peers.
    pub remove: Option<AvRemove>,
    /// Returns the address of a peer.
    pub lookup: Option<AvLookup>,
    /// Formats an address as text.
    pub straddr: Option<AvStraddr>,
    /// Opens a set of peers for collectives.
    pub av_set: Option<OpenAvSet>,
}

/// `insert` of [`OpsAv`]: Inserts an array of addresses; returns the number inserted.
pub type AvInsert = unsafe extern "C" fn(
    av: *mut FidAv,
    addr: *const c_void,
    count: usize,
    fi_addr: *mut Addr,
    flags: u64,
    context: *mut c_void,
) -> c_int;
/// `insertsvc` of [`OpsAv`]: Inserts an address by node and service name.
pub type AvInsertsvc = unsafe extern "C" fn(
    av: *mut FidAv,
    node: *const c_char,
    service: *const c_char,
    fi_addr: *mut Addr,
    flags: u64,
    context: *mut c_void,
) -> c_int;
/// `insertsym` of [`OpsAv`]: Inserts ranges of addresses by node and service name.
pub type AvInsertsym = unsafe extern "C" fn(
    av: *mut FidAv,
    node: *const c_char,
    nodecnt: usize,
    service: *const c_char,
    svccnt: usize,
    fi_addr: *mut Addr,
    flags: u64,
    context: *mut c_void,
) -> c_int;
/// `remove` of [`OpsAv`]: Removes peers.
pub type AvRemove =
    unsafe extern "C" fn(av: *mut FidAv, fi_addr: *mut Addr, count: usize, flags: u64) -> c_int;
/// `lookup` of [`OpsAv`]: Returns the address of a peer.
pub type AvLookup =
    unsafe extern "C" fn(av: *mut FidAv, fi_addr: Addr, addr: *mut c_void, addrlen: *mut usize) -> c_int;
/// `straddr` of [`OpsAv`]: Formats an address as text.
pub type AvStraddr = unsafe extern "C" fn(
    av: *mut FidAv,
    addr: *const c_void,
    buf: *mut c_char,
    len: *mut usize,
) -> *const c_char;
/// `av_set` of [`OpsAv`]: Opens a set of peers for collectives.
pub type OpenAvSet = unsafe extern "C" fn(
    av: *mut FidAv,
    attr: *mut AvSetAttr,
    set: *mut *mut FidAvSet,
    context: *mut c_void,
) -> c_int;
