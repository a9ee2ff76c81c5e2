//! Endpoints: what operations are posted on.

use core::ffi::{c_int, c_void};

use super::{Fid, FidMc, OpsAtomic, OpsCollective, OpsMsg, OpsRma, OpsTagged, RxAttr, TxAttr};

/// `struct fid_ep`: an endpoint. A table of what it cannot do may be NULL.
#[repr(C)]
pub struct FidEp {
    /// As any object.
    pub fid: Fid,
    /// Its own calls.
    pub ops: *mut OpsEp,
    /// Addresses and connections.
    pub cm: *mut OpsCm,
    /// Two-sided messages.
    pub msg: *mut OpsMsg,
    /// Reads and writes.
    pub rma: *mut OpsRma,
    /// Tagged messages.
    pub tagged: *mut OpsTagged,
    /// Atomic operations.
    pub atomic: *mut OpsAtomic,
    /// Collectives.
    pub collective: *mut OpsCollective,
}

/// `struct fid_pep`: an endpoint that listens.
#[repr(C)]
pub struct FidPep {
    /// As any object.
    pub fid: Fid,
    /// Its own calls.
    pub ops: *mut OpsEp,
    /// Addresses and connections.
    pub cm: *mut OpsCm,
}

/// `struct fi_ops_ep`: what can be done with any endpoint.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct OpsEp {
    /// Size of the table its maker knows; a slot beyond it is not there.
    pub size: usize,
    /// Gives up an operation, by its context.
    pub cancel: Option<Cancel>,
    /// Asks for an option.
    pub getopt: Option<Getopt>,
    /// Sets an option.
    pub setopt: Option<Setopt>,
    /// A sending context of an endpoint that has several.
    pub tx_ctx: Option<OpenTx>,
    /// A receiving context of an endpoint that has several.
    pub rx_ctx: Option<OpenRx>,
    /// Receives that can still be posted; deprecated.
    pub rx_size_left: Option<SizeLeft>,
    /// Operations that can still be posted; deprecated.
    pub tx_size_left: Option<TxSizeLeft>,
}

/// `cancel` of [`OpsEp`]: Gives up an operation, by its context.
pub type Cancel = unsafe extern "C" fn(fid: *mut Fid, context: *mut c_void) -> isize;
/// `getopt` of [`OpsEp`]: Asks for an option.
pub type Getopt = unsafe extern "C" fn(
    fid: *mut Fid,
    level: c_int,
    optname: c_int,
    optval: *mut c_void,
    optlen: *mut usize,
) -> c_int;
/// `setopt` of [`OpsEp`]: Sets an option.
pub type Setopt = unsafe extern "C" fn(
    fid: *mut Fid,
    level: c_int,
    optname: c_int,
    optval: *const c_void,
    optlen: usize,
) -> c_int;
/// `tx_ctx` of [`OpsEp`]: A sending context of an endpoint that has several.
pub type OpenTx = unsafe extern "C" fn(
    sep: *mut FidEp,
    index: c_int,
    attr: *mut TxAttr,
    ep: *mut *mut FidEp,
    context: *mut c_void,
) -> c_int;
/// `rx_ctx` of [`OpsEp`]: A receiving context of an endpoint that has several.
pub type OpenRx = unsafe extern "C" fn(
    sep: *mut FidEp,
    index: c_int,
    attr: *mut RxAttr,
    ep: *mut *mut FidEp,
    context: *mut c_void,
) -> c_int;
/// `rx_size_left` of [`OpsEp`]: Receives that can still be posted; deprecated.
pub type SizeLeft = unsafe extern "C" fn(ep: *mut FidEp) -> isize;
/// `tx_size_left` of [`OpsEp`]: Operations that can still be posted; deprecated.
pub type TxSizeLeft = unsafe extern "C" fn(ep: *mut FidEp) -> isize;

/// `struct fi_ops_cm`: addresses and connections.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct OpsCm {
    /// Size of the table its maker knows; a slot beyond it is not there.
    pub size: usize,
    /// Sets the own address.
    pub setname: Option<Setname>,
    /// The own address; [`ETOOSMALL`](super::errno::ETOOSMALL) if there is no room for it.
    pub getname: Option<Getname>,
    /// The peer's.
    pub getpeer: Option<Getpeer>,
    /// Asks for a connection.
    pub connect: Option<Connect>,
    /// Waits for connections.
    pub listen: Option<Listen>,
    /// Takes a connection.
    pub accept: Option<Accept>,
    /// Takes it not.
    pub reject: Option<Reject>,
    /// Ends a connection.
    pub shutdown: Option<Shutdown>,
    /// Joins a multicast group.
    pub join: Option<Join>,
}

/// `setname` of [`OpsCm`]: Sets the own address.
pub type Setname = unsafe extern "C" fn(fid: *mut Fid, addr: *mut c_void, addrlen: usize) -> c_int;
/// `getname` of [`OpsCm`]: The own address; [`ETOOSMALL`](super::errno::ETOOSMALL) if there is no room for it.
pub type Getname = unsafe extern "C" fn(fid: *mut Fid, addr: *mut c_void, addrlen: *mut usize) -> c_int;
/// `getpeer` of [`OpsCm`]: The peer's.
pub type Getpeer = unsafe extern "C" fn(ep: *mut FidEp, addr: *mut c_void, addrlen: *mut usize) -> c_int;
/// `connect` of [`OpsCm`]: Asks for a connection.
pub type Connect =
    unsafe extern "C" fn(ep: *mut FidEp, addr: *const c_void, param: *const c_void, paramlen: usize) -> c_int;
/// `listen` of [`OpsCm`]: Waits for connections.
pub type Listen = unsafe extern "C" fn(pep: *mut FidPep) -> c_int;
/// `accept` of [`OpsCm`]: Takes a connection.
pub type Accept = unsafe extern "C" fn(ep: *mut FidEp, param: *const c_void, paramlen: usize) -> c_int;
/// `reject` of [`OpsCm`]: Takes it not.
pub type Reject =
    unsafe extern "C" fn(pep: *mut FidPep, handle: *mut Fid, param: *const c_void, paramlen: usize) -> c_int;
/// `shutdown` of [`OpsCm`]: Ends a connection.
pub type Shutdown = unsafe extern "C" fn(ep: *mut FidEp, flags: u64) -> c_int;
/// `join` of [`OpsCm`]: Joins a multicast group.
pub type Join = unsafe extern "C" fn(
    ep: *mut FidEp,
    addr: *const c_void,
    flags: u64,
    mc: *mut *mut FidMc,
    context: *mut c_void,
) -> c_int;

/// `FI_OPT_ENDPOINT`, the level of all options.
pub const OPT_ENDPOINT: c_int = 0;

/// Options of endpoints.
pub mod opt {
    /// `FI_OPT_MIN_MULTI_RECV`: bytes left in a buffer of many messages before it is given back; a `size_t`.
    pub const MIN_MULTI_RECV: i32 = 0;
    /// `FI_OPT_CM_DATA_SIZE`: bytes that a connection request may bring; a `size_t`.
    pub const CM_DATA_SIZE: i32 = 1;
    /// `FI_OPT_TX_SIZE`: a `size_t`.
    pub const TX_SIZE: i32 = 6;
    /// `FI_OPT_RX_SIZE`: a `size_t`.
    pub const RX_SIZE: i32 = 7;
    /// `FI_OPT_FI_HMEM_P2P`: one of [`hmem_p2p`](super::hmem_p2p), an `int`.
    pub const FI_HMEM_P2P: i32 = 8;
    /// Since 1.18, `FI_OPT_CUDA_API_PERMITTED`: whether the provider may call CUDA; a `bool`.
    pub const CUDA_API_PERMITTED: i32 = 10;
    /// Since 1.18, `FI_OPT_SHARED_MEMORY_PERMITTED`: whether the provider may go through memory of the host to peers there; a `bool`.
    pub const SHARED_MEMORY_PERMITTED: i32 = 11;
}

/// Values of [`opt::FI_HMEM_P2P`].
pub mod hmem_p2p {
    /// `FI_HMEM_P2P_ENABLED`: the provider decides.
    pub const ENABLED: i32 = 0;
    /// `FI_HMEM_P2P_REQUIRED`.
    pub const REQUIRED: i32 = 1;
    /// `FI_HMEM_P2P_PREFERRED`.
    pub const PREFERRED: i32 = 2;
    /// `FI_HMEM_P2P_DISABLED`.
    pub const DISABLED: i32 = 3;
}
