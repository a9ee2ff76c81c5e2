//! The head of all objects, and the fabric, the first object that an application opens.

use core::ffi::{c_char, c_int, c_void};

use super::{EqAttr, FidDomain, FidEq, FidPep, FidWait, Info, WaitAttr};

/// `struct fid`: the head of all objects.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Fid {
    /// Kind of the object: [`class`].
    pub fclass: usize,
    /// Context of the application that opened the object.
    pub context: *mut c_void,
    /// Functions that all objects have.
    pub ops: *mut Ops,
}

/// `struct fi_ops`: functions that all objects have.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Ops {
    /// Bytes of the table, set by its creator; slots beyond this size do not exist.
    pub size: usize,
    /// Closes the object; [`EBUSY`](super::errno::EBUSY) while other objects use it.
    pub close: Option<Close>,
    /// Binds it to another object.
    pub bind: Option<Bind>,
    /// Executes a command of [`control`].
    pub control: Option<Control>,
    /// Returns a function table of the provider.
    pub ops_open: Option<OpsOpen>,
    /// Formats its description as text.
    pub tostr: Option<Tostr>,
    /// Passes a function table of the application to the provider.
    pub ops_set: Option<OpsSet>,
}

/// `close` of [`Ops`]: Closes the object; [`EBUSY`](super::errno::EBUSY) while other objects use it.
pub type Close = unsafe extern "C" fn(fid: *mut Fid) -> c_int;
/// `bind` of [`Ops`]: Binds it to another object.
pub type Bind = unsafe extern "C" fn(fid: *mut Fid, other: *mut Fid, flags: u64) -> c_int;
/// `control` of [`Ops`]: Executes a command of [`control`].
pub type Control = unsafe extern "C" fn(fid: *mut Fid, command: c_int, arg: *mut c_void) -> c_int;
/// `ops_open` of [`Ops`]: Returns a function table of the provider.
pub type OpsOpen = unsafe extern "C" fn(
    fid: *mut Fid,
    name: *const c_char,
    flags: u64,
    ops: *mut *mut c_void,
    context: *mut c_void,
) -> c_int;
/// `tostr` of [`Ops`]: Formats its description as text.
pub type Tostr = unsafe extern "C" fn(fid: *const Fid, buf: *mut c_char, len: usize) -> c_int;
/// `ops_set` of [`Ops`]: Passes a function table of the application to the provider.
pub type OpsSet = unsafe extern "C" fn(
    fid: *mut Fid,
    name: *const c_char,
    flags: u64,
    ops: *mut c_void,
    context: *mut c_void,
) -> c_int;

/// `struct fid_fabric`: an open fabric.
#[repr(C)]
pub struct FidFabric {
    /// The part that all objects share.
    pub fid: Fid,
    /// Its function table.
    pub ops: *mut OpsFabric,
    /// The version that the application requested; written by the library.
    pub api_version: u32,
}

/// `struct fi_ops_fabric`: functions of a fabric.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct OpsFabric {
    /// Bytes of the table, set by its creator; slots beyond this size do not exist.
    pub size: usize,
    /// Opens a domain.
    pub domain: Option<OpenDomain>,
    /// Opens a listening endpoint.
    pub passive_ep: Option<OpenPassiveEp>,
    /// Opens an event queue.
    pub eq_open: Option<OpenEq>,
    /// Opens a wait set; deprecated.
    pub wait_open: Option<OpenWait>,
    /// Whether waiting on the descriptors of queues is safe now; [`EAGAIN`](super::errno::EAGAIN) if a queue has
    /// entries.
    pub trywait: Option<Trywait>,
    /// Opens a domain, with flags.
    pub domain2: Option<OpenDomain2>,
}

/// `domain` of [`OpsFabric`]: Opens a domain.
pub type OpenDomain = unsafe extern "C" fn(
    fabric: *mut FidFabric,
    info: *mut Info,
    domain: *mut *mut FidDomain,
    context: *mut c_void,
) -> c_int;
/// `passive_ep` of [`OpsFabric`]: Opens a listening endpoint.
pub type OpenPassiveEp = unsafe extern "C" fn(
    fabric: *mut FidFabric,
    info: *mut Info,
    pep: *mut *mut FidPep,
    context: *mut c_void,
) -> c_int;
/// `eq_open` of [`OpsFabric`]: Opens an event queue.
pub type OpenEq = unsafe extern "C" fn(
    fabric: *mut FidFabric,
    attr: *mut EqAttr,
    eq: *mut *mut FidEq,
    context: *mut c_void,
) -> c_int;
/// `wait_open` of [`OpsFabric`]: Opens a wait set; deprecated.
pub type OpenWait =
    unsafe extern "C" fn(fabric: *mut FidFabric, attr: *mut WaitAttr, wait: *mut *mut FidWait) -> c_int;
/// `trywait` of [`OpsFabric`]: Whether waiting on the descriptors of queues is safe now;
/// [`EAGAIN`](super::errno::EAGAIN) if a queue has entries.
pub type Trywait = unsafe extern "C" fn(fabric: *mut FidFabric, fids: *mut *mut Fid, count: c_int) -> c_int;
/// `domain2` of [`OpsFabric`]: Opens a domain, with flags.
pub type OpenDomain2 = unsafe extern "C" fn(
    fabric: *mut FidFabric,
    info: *mut Info,
    domain: *mut *mut FidDomain,
    flags: u64,
    context: *mut c_void,
) -> c_int;

/// `struct fi_fid_var`: the argument of [`control::GET_VAL`] and [`control::SET_VAL`].
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct FidVar {
    /// Name of the value; the highest bit is set in names that the provider defines.
    pub name: c_int,
    /// Address of the value.
    pub val: *mut c_void,
}

/// Kinds of objects.
pub mod class {
    /// `FI_CLASS_UNSPEC`.
    pub const UNSPEC: usize = 0;
    /// `FI_CLASS_FABRIC`.
    pub const FABRIC: usize = 1;
    /// `FI_CLASS_DOMAIN`.
    pub const DOMAIN: usize = 2;
    /// `FI_CLASS_EP`.
    pub const EP: usize = 3;
    /// `FI_CLASS_PEP`.
    pub const PEP: usize = 9;
    /// `FI_CLASS_AV`.
    pub const AV: usize = 11;
    /// `FI_CLASS_MR`.
    pub const MR: usize = 12;
    /// `FI_CLASS_EQ`.
    pub const EQ: usize = 13;
    /// `FI_CLASS_CQ`.
    pub const CQ: usize = 14;
    /// `FI_CLASS_CNTR`.
    pub const CNTR: usize = 15;
    /// `FI_CLASS_NIC`.
    pub const NIC: usize = 20;
}

/// Commands of [`Ops::control`].
pub mod control {
    /// `FI_GETFIDFLAG`.
    pub const GETFIDFLAG: i32 = 0;
    /// `FI_SETFIDFLAG`.
    pub const SETFIDFLAG: i32 = 1;
    /// `FI_GETOPSFLAG`: returns the flags of operations that specify none.
    pub const GETOPSFLAG: i32 = 2;
    /// `FI_SETOPSFLAG`.
    pub const SETOPSFLAG: i32 = 3;
    /// `FI_ALIAS`.
    pub const ALIAS: i32 = 4;
    /// `FI_GETWAIT`: returns the wait object; a descriptor is written to an `int`.
    pub const GETWAIT: i32 = 5;
    /// `FI_ENABLE`: enables the object for use.
    pub const ENABLE: i32 = 6;
    /// `FI_BACKLOG`.
    pub const BACKLOG: i32 = 7;
    /// `FI_GET_RAW_MR`: returns a key of more than 64 bits.
    pub const GET_RAW_MR: i32 = 8;
    /// `FI_MAP_RAW_MR`.
    pub const MAP_RAW_MR: i32 = 9;
    /// `FI_UNMAP_KEY`.
    pub const UNMAP_KEY: i32 = 10;
    /// `FI_QUEUE_WORK`.
    pub const QUEUE_WORK: i32 = 11;
    /// `FI_CANCEL_WORK`.
    pub const CANCEL_WORK: i32 = 12;
    /// `FI_FLUSH_WORK`.
    pub const FLUSH_WORK: i32 = 13;
    /// `FI_REFRESH`: reports changed pages of a registration.
    pub const REFRESH: i32 = 14;
    /// `FI_DUP`.
    pub const DUP: i32 = 15;
    /// `FI_GETWAITOBJ`: returns the kind of the wait object.
    pub const GETWAITOBJ: i32 = 16;
    /// `FI_GET_VAL`.
    pub const GET_VAL: i32 = 17;
    /// `FI_SET_VAL`.
    pub const SET_VAL: i32 = 18;
    /// `FI_EXPORT_FID`.
    pub const EXPORT_FID: i32 = 19;
}
