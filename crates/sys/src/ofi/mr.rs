//! Registrations of memory.

use core::ffi::{c_int, c_uint, c_void};
use core::mem::{offset_of, size_of};
use core::ptr;

use super::{Fid, Iovec};

/// `enum fi_hmem_iface`: who drives the device whose memory it is.
pub type HmemIface = c_uint;

/// `struct fid_mr`: a registration.
#[repr(C)]
pub struct FidMr {
    /// As any object.
    pub fid: Fid,
    /// What local operations are given.
    pub mem_desc: *mut c_void,
    /// What remote ones are given; [`KEY_NOTAVAIL`] before it is enabled, where the provider chooses it.
    pub key: u64,
}

/// `struct fi_ops_mr`: how a domain registers.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct OpsMr {
    /// Size of the table its maker knows; a slot beyond it is not there.
    pub size: usize,
    /// Registers a range.
    pub reg: Option<Reg>,
    /// Registers ranges.
    pub regv: Option<Regv>,
    /// Registers what the attributes say.
    pub regattr: Option<Regattr>,
}

/// `reg` of [`OpsMr`]: Registers a range.
pub type Reg = unsafe extern "C" fn(
    fid: *mut Fid,
    buf: *const c_void,
    len: usize,
    access: u64,
    offset: u64,
    requested_key: u64,
    flags: u64,
    mr: *mut *mut FidMr,
    context: *mut c_void,
) -> c_int;
/// `regv` of [`OpsMr`]: Registers ranges.
pub type Regv = unsafe extern "C" fn(
    fid: *mut Fid,
    iov: *const Iovec,
    count: usize,
    access: u64,
    offset: u64,
    requested_key: u64,
    flags: u64,
    mr: *mut *mut FidMr,
    context: *mut c_void,
) -> c_int;
/// `regattr` of [`OpsMr`]: Registers what the attributes say.
pub type Regattr =
    unsafe extern "C" fn(fid: *mut Fid, attr: *const MrAttr, flags: u64, mr: *mut *mut FidMr) -> c_int;

/// `struct fi_mr_attr`: what is registered. Later versions have more behind it, and read it if they are asked for
/// by a later version of the interface.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct MrAttr {
    /// The ranges; with [`MR_DMABUF`](super::MR_DMABUF) a [`MrDmabuf`](super::MrDmabuf).
    pub mr_iov: *const Iovec,
    /// How many.
    pub iov_count: usize,
    /// What may be done: bits of [`caps`](super::caps).
    pub access: u64,
    /// Where remote addresses begin; as a rule 0.
    pub offset: u64,
    /// The key, where the caller chooses it.
    pub requested_key: u64,
    /// Of the maker.
    pub context: *mut c_void,
    /// Bytes of the key of a job.
    pub auth_key_size: usize,
    /// The key of a job, or NULL.
    pub auth_key: *mut u8,
    /// Whose memory: [`hmem`].
    pub iface: HmemIface,
    /// Which device; a union, whose other members are an `int` in the low half.
    pub device: u64,
}

impl MrAttr {
    /// Nothing.
    pub const ZERO: Self = Self {
        mr_iov: ptr::null(),
        iov_count: 0,
        access: 0,
        offset: 0,
        requested_key: 0,
        context: ptr::null_mut(),
        auth_key_size: 0,
        auth_key: ptr::null_mut(),
        iface: 0,
        device: 0,
    };
}

/// `struct fi_mr_modify`: what [`control::REFRESH`](super::control::REFRESH) is given.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct MrModify {
    /// None.
    pub flags: u64,
    /// The ranges whose pages changed.
    pub attr: MrAttr,
}

/// `FI_KEY_NOTAVAIL`.
pub const KEY_NOTAVAIL: u64 = u64::MAX;

/// What registrations ask of their caller.
pub mod mr_mode {
    /// `FI_MR_UNSPEC`.
    pub const UNSPEC: i32 = 0;
    /// `FI_MR_BASIC`: what providers asked for before there were bits. Deprecated.
    pub const BASIC: i32 = 1 << 0;
    /// `FI_MR_SCALABLE`: nothing is asked for. Deprecated.
    pub const SCALABLE: i32 = 1 << 1;
    /// `FI_MR_LOCAL`: buffers of local operations are registered, and their descriptors passed.
    pub const LOCAL: i32 = 1 << 2;
    /// `FI_MR_RAW`: keys are longer than 64 bits.
    pub const RAW: i32 = 1 << 3;
    /// `FI_MR_VIRT_ADDR`: a remote address is the peer's virtual one, else an offset.
    pub const VIRT_ADDR: i32 = 1 << 4;
    /// `FI_MR_ALLOCATED`: pages are there before the registration and stay.
    pub const ALLOCATED: i32 = 1 << 5;
    /// `FI_MR_PROV_KEY`: the provider chooses keys.
    pub const PROV_KEY: i32 = 1 << 6;
    /// `FI_MR_MMU_NOTIFY`: changed pages are told.
    pub const MMU_NOTIFY: i32 = 1 << 7;
    /// `FI_MR_RMA_EVENT`: what counts peers' accesses is bound before it is enabled.
    pub const RMA_EVENT: i32 = 1 << 8;
    /// `FI_MR_ENDPOINT`: a registration is bound to an endpoint and enabled, and is of use to that endpoint alone.
    pub const ENDPOINT: i32 = 1 << 9;
    /// `FI_MR_HMEM`: buffers of devices are registered, and their descriptors passed.
    pub const HMEM: i32 = 1 << 10;
    /// `FI_MR_COLLECTIVE`.
    pub const COLLECTIVE: i32 = 1 << 11;
}

/// `enum fi_hmem_iface`.
pub mod hmem {
    /// `FI_HMEM_SYSTEM`: memory of the host.
    pub const SYSTEM: u32 = 0;
    /// `FI_HMEM_CUDA`.
    pub const CUDA: u32 = 1;
    /// `FI_HMEM_ROCR`.
    pub const ROCR: u32 = 2;
    /// `FI_HMEM_ZE`.
    pub const ZE: u32 = 3;
    /// `FI_HMEM_NEURON`.
    pub const NEURON: u32 = 4;
    /// `FI_HMEM_SYNAPSEAI`.
    pub const SYNAPSEAI: u32 = 5;
}

const _: () = {
    assert!(size_of::<MrAttr>() == 80);
    assert!(offset_of!(MrAttr, device) == 72);
    assert!(size_of::<FidMr>() == 40);
};
