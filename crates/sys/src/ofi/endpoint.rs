//! Endpoints, to which operations are posted.

use core::ffi::{c_int, c_void};

use super::{Fid, FidMc, OpsAtomic, OpsCollective, OpsMsg, OpsRma, OpsTagged, RxAttr, TxAttr};

/// `struct fid_ep`: an endpoint. The tables of operations that it does not support may be NULL.
#[repr(C)]
pub struct FidEp {
    /// The part that all objects share.
    pub fid: Fid,
    /// Its function table.
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

/// `struct fid_pep`: a listening endpoint.
#[repr(C)]
pub struct FidPep {
    /// The part that all objects share.
    pub fid: Fid,
    /// Its function table.
    pub ops: *mut OpsEp,
    /// Addresses and connections.
    pub cm: *mut OpsCm,
}

/// `struct fi_ops_ep`: functions of any endpoint.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct OpsEp {
    /// Bytes of the table, set by its creator; slots beyond this size do not exist.
    pub size: usize,
    /// Cancels an operation by its context.
    pub cancel: Option<Cancel>,
    /// Returns an option.
    pub getopt: Option<Getopt>,
    /// Sets an option.
    pub setopt: Option<Setopt>,
    /// Opens a transmit context of a scalable endpoint.
    pub tx_ctx: Option<OpenTx>,
    /// Opens a receive context of a scalable endpoint.
    pub rx_ctx: Option<OpenRx>,
    /// Returns the number of receives that can still be posted; deprecated.
    pub rx_size_left: Option<SizeLeft>,
    /// Returns the number of operations that can still be posted; deprecated.
    pub tx_size_left: Option<TxSizeLeft>,
}

/// `cancel` of [`OpsEp`]: Cancels an operation by its context.
pub type Cancel = unsafe extern "C" fn(fid: *mut Fid, context: *mut c_void) -> isize;
/// `getopt` of [`OpsEp`]: Returns an option.
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
/// `tx_ctx` of [`OpsEp`]: Opens a transmit context of a scalable endpoint.
pub type OpenTx = unsafe extern "C" fn(
    sep: *mut FidEp,
    index: c_int,
    attr: *mut TxAttr,
    ep: *mut *mut FidEp,
    context: *mut c_void,
) -> c_int;
/// `rx_ctx` of [`OpsEp`]: Opens a receive context of a scalable endpoint.
pub type OpenRx = unsafe extern "C" fn(
    sep: *mut FidEp,
    index: c_int,
    attr: *mut RxAttr,
    ep: *mut *mut FidEp,
    context: *mut c_void,
) -> c_int;
/// `rx_size_left` of [`OpsEp`]: Returns the number of receives that can still be posted; deprecated.
pub type SizeLeft = unsafe extern "C" fn(ep: *mut FidEp) -> isize;
/// `tx_size_left` of [`OpsEp`]: Returns the number of operations that can still be posted; deprecated.
pub type TxSizeLeft = unsafe extern "C" fn(ep: *mut FidEp) -> isize;

/// `struct fi_ops_cm`: addresses and connections.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct OpsCm {
    /// Bytes of the table, set by its creator; slots beyond this size do not exist.
    pub size: usize,
    /// Sets the own address.
    pub setname: Option<Setname>,
    /// Returns the own address; [`ETOOSMALL`](super::errno::ETOOSMALL) if the buffer is too small.
    pub getname: Option<Getname>,
    /// Returns the peer's address.
    pub getpeer: Option<Getpeer>,
    /// Requests a connection.
    pub connect: Option<Connect>,
    /// Listens for connection requests.
    pub listen: Option<Listen>,
    /// Accepts a connection request.
    pub accept: Option<Accept>,
    /// Rejects a connection request.
    pub reject: Option<Reject>,
    /// Ends a connection.
    pub shutdown: Option<Shutdown>,
    /// Joins a multicast group.
    pub join: Option<Join>,
}

/// `setname` of [`OpsCm`]: Sets the own address.
pub type Setname = unsafe extern "C" fn(fid: *mut Fid, addr: *mut c_void, addrlen: usize) -> c_int;
/// `getname` of [`OpsCm`]: Returns the own address; [`ETOOSMALL`](super::errno::ETOOSMALL) if the buffer is too small.
pub type Getname = unsafe extern "C" fn(fid: *mut Fid, addr: *mut c_void, addrlen: *mut usize) -> c_int;
/// `getpeer` of [`OpsCm`]: Returns the peer's address.
pub type Getpeer = unsafe extern "C" fn(ep: *mut FidEp, addr: *mut c_void, addrlen: *mut usize) -> c_int;
/// `connect` of [`OpsCm`]: Requests a connection.
pub type Connect =
    unsafe extern "C" fn(ep: *mut FidEp, addr: *const c_void, param: *const c_void, paramlen: usize) -> c_int;
/// `listen` of [`OpsCm`]: Listens for connection requests.
pub type Listen = unsafe extern "C" fn(pep: *mut FidPep) -> c_int;
/// `accept` of [`OpsCm`]: Accepts a connection request.
pub type Accept = unsafe extern "C" fn(ep: *mut FidEp, param: *const c_void, paramlen: usize) -> c_int;
/// `reject` of [`OpsCm`]: Rejects a connection request.
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
    /// `FI_OPT_MIN_MULTI_RECV`: a multi-receive buffer with fewer free bytes is returned to its owner; a `size_t`.
    pub const MIN_MULTI_RECV: i32 = 0;
    /// `FI_OPT_CM_DATA_SIZE`: bytes that a connection request may carry; a `size_t`.
    pub const CM_DATA_SIZE: i32 = 1;
    /// `FI_OPT_TX_SIZE`: a `size_t`.
    pub const TX_SIZE: i32 = 6;
    /// `FI_OPT_RX_SIZE`: a `size_t`.
    pub const RX_SIZE: i32 = 7;
    /// `FI_OPT_FI_HMEM_P2P`: one of [`hmem_p2p`](super::hmem_p2p), an `int`.
    pub const FI_HMEM_P2P: i32 = 8;
    /// Since 1.18, `FI_OPT_CUDA_API_PERMITTED`: whether the provider may call CUDA; a `bool`.
    pub const CUDA_API_PERMITTED: i32 = 10;
    /// Since 1.18, `FI_OPT_SHARED_MEMORY_PERMITTED`: whether the provider may use shared memory to peers on the same
    /// host; a `bool`.
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
