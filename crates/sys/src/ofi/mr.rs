//! Registrations of memory.

use core::ffi::{c_int, c_uint, c_void};
use core::mem::{offset_of, size_of};
use core::ptr;

use super::{Fid, Iovec};

/// `enum fi_hmem_iface`: the interface of the device that owns the memory.
pub type HmemIface = c_uint;

/// `struct fid_mr`: a registration.
#[repr(C)]
pub struct FidMr {
    /// The part that all objects share.
    pub fid: Fid,
    /// Descriptor, which local operations pass.
    pub mem_desc: *mut c_void,
    /// Key, which remote operations pass. It is [`KEY_NOTAVAIL`] until the registration is enabled, if the provider
    /// chooses keys.
    pub key: u64,
}

/// `struct fi_ops_mr`: functions of a domain for registration.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct OpsMr {
    /// Bytes of the table, set by its creator; slots beyond this size do not exist.
    pub size: usize,
    /// Registers a range.
    pub reg: Option<Reg>,
    /// Registers ranges.
    pub regv: Option<Regv>,
    /// Registers memory by its attributes.
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
/// `regattr` of [`OpsMr`]: Registers memory by its attributes.
pub type Regattr =
    unsafe extern "C" fn(fid: *mut Fid, attr: *const MrAttr, flags: u64, mr: *mut *mut FidMr) -> c_int;

/// `struct fi_mr_attr`: attributes of a registration. Later versions append fields, which providers read only if the
/// application requested such a version.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct MrAttr {
    /// The ranges; with [`MR_DMABUF`](super::MR_DMABUF), [`MrDmabuf`](super::MrDmabuf) entries instead.
    pub mr_iov: *const Iovec,
    /// Number of entries.
    pub iov_count: usize,
    /// Permitted accesses: bits of [`caps`](super::caps).
    pub access: u64,
    /// First remote address; usually 0.
    pub offset: u64,
    /// The key, if the caller chooses keys.
    pub requested_key: u64,
    /// Context of the application.
    pub context: *mut c_void,
    /// Bytes of the job's authorization key.
    pub auth_key_size: usize,
    /// The job's authorization key, or NULL.
    pub auth_key: *mut u8,
    /// Interface of the device: [`hmem`].
    pub iface: HmemIface,
    /// Number of the device. A union; its other members are an `int` in the low half.
    pub device: u64,
}

impl MrAttr {
    /// All fields zero or null.
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

/// `struct fi_mr_modify`: the argument of [`control::REFRESH`](super::control::REFRESH).
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct MrModify {
    /// Always 0.
    pub flags: u64,
    /// The ranges whose pages changed.
    pub attr: MrAttr,
}

/// `FI_KEY_NOTAVAIL`.
pub const KEY_NOTAVAIL: u64 = u64::MAX;

/// Requirements of providers for registrations.
pub mod mr_mode {
    /// `FI_MR_UNSPEC`.
    pub const UNSPEC: i32 = 0;
    /// `FI_MR_BASIC`: the requirements of providers before these bits existed. Deprecated.
    pub const BASIC: i32 = 1 << 0;
    /// `FI_MR_SCALABLE`: no requirements. Deprecated.
    pub const SCALABLE: i32 = 1 << 1;
    /// `FI_MR_LOCAL`: buffers of local operations must be registered, and their descriptors passed.
    pub const LOCAL: i32 = 1 << 2;
    /// `FI_MR_RAW`: keys are longer than 64 bits.
    pub const RAW: i32 = 1 << 3;
    /// `FI_MR_VIRT_ADDR`: remote addresses are the peer's virtual addresses; otherwise they are offsets.
    pub const VIRT_ADDR: i32 = 1 << 4;
    /// `FI_MR_ALLOCATED`: pages must be allocated before the registration and remain until it ends.
    pub const ALLOCATED: i32 = 1 << 5;
    /// `FI_MR_PROV_KEY`: the provider chooses keys.
    pub const PROV_KEY: i32 = 1 << 6;
    /// `FI_MR_MMU_NOTIFY`: the application must report changed pages.
    pub const MMU_NOTIFY: i32 = 1 << 7;
    /// `FI_MR_RMA_EVENT`: a counter of peers' accesses must be bound before the registration is enabled.
    pub const RMA_EVENT: i32 = 1 << 8;
    /// `FI_MR_ENDPOINT`: a registration is bound to an endpoint and enabled, and is valid for that endpoint only.
    pub const ENDPOINT: i32 = 1 << 9;
    /// `FI_MR_HMEM`: buffers in device memory must be registered, and their descriptors passed.
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
