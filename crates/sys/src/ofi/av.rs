//! Address vectors: the peers that endpoints can name.

use core::ffi::{c_char, c_int, c_void};
use core::ptr;

use super::{AvSetAttr, AvType, Fid, FidAvSet};

/// `fi_addr_t`: a peer, as its vector tells it.
pub type Addr = u64;

/// `FI_ADDR_UNSPEC`: any peer.
pub const ADDR_UNSPEC: Addr = u64::MAX;
/// `FI_ADDR_NOTAVAIL`: no peer.
pub const ADDR_NOTAVAIL: Addr = u64::MAX;
/// `FI_SYMMETRIC`: a flag of vectors that are the same in all processes.
pub const AV_SYMMETRIC: u64 = 1 << 59;
/// `FI_SYNC_ERR`: an insertion says of each address whether it failed.
pub const AV_SYNC_ERR: u64 = 1 << 58;

/// `struct fi_av_attr`: what kind of vector.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct AvAttr {
    /// How peers are told: [`av_type`](super::av_type).
    pub r#type: AvType,
    /// Bits of an address that name a receiving context.
    pub rx_ctx_bits: c_int,
    /// Peers to expect.
    pub count: usize,
    /// Endpoints on a host.
    pub ep_per_node: usize,
    /// Of a shared one, or NULL.
    pub name: *const c_char,
    /// Of a shared one.
    pub map_addr: *mut c_void,
    /// Whether it is to be read only, or its insertions to be events.
    pub flags: u64,
}

impl AvAttr {
    /// Nothing.
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
    /// As any object.
    pub fid: Fid,
    /// Its own calls.
    pub ops: *mut OpsAv,
}

/// `struct fi_ops_av`: what can be done with an address vector.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct OpsAv {
    /// Size of the table its maker knows; a slot beyond it is not there.
    pub size: usize,
    /// Adds addresses, which stand one behind another; says how many it took.
    pub insert: Option<AvInsert>,
    /// Adds one by its names.
    pub insertsvc: Option<AvInsertsvc>,
    /// Adds ranges of them by their names.
    pub insertsym: Option<AvInsertsym>,
    /// Takes peers out.
    pub remove: Option<AvRemove>,
    /// The address of a peer.
    pub lookup: Option<AvLookup>,
    /// An address as text.
    pub straddr: Option<AvStraddr>,
    /// Opens a set of peers for collectives.
    pub av_set: Option<OpenAvSet>,
}

/// `insert` of [`OpsAv`]: Adds addresses, which stand one behind another; says how many it took.
pub type AvInsert = unsafe extern "C" fn(
    av: *mut FidAv,
    addr: *const c_void,
    count: usize,
    fi_addr: *mut Addr,
    flags: u64,
    context: *mut c_void,
) -> c_int;
/// `insertsvc` of [`OpsAv`]: Adds one by its names.
pub type AvInsertsvc = unsafe extern "C" fn(
    av: *mut FidAv,
    node: *const c_char,
    service: *const c_char,
    fi_addr: *mut Addr,
    flags: u64,
    context: *mut c_void,
) -> c_int;
/// `insertsym` of [`OpsAv`]: Adds ranges of them by their names.
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
/// `remove` of [`OpsAv`]: Takes peers out.
pub type AvRemove =
    unsafe extern "C" fn(av: *mut FidAv, fi_addr: *mut Addr, count: usize, flags: u64) -> c_int;
/// `lookup` of [`OpsAv`]: The address of a peer.
pub type AvLookup =
    unsafe extern "C" fn(av: *mut FidAv, fi_addr: Addr, addr: *mut c_void, addrlen: *mut usize) -> c_int;
/// `straddr` of [`OpsAv`]: An address as text.
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
