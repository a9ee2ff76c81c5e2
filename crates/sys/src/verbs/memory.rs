//! Protection domains and registered memory.

use core::ffi::{c_int, c_void};
use core::mem::{offset_of, size_of};

use super::Context;

/// `IBV_ACCESS_LOCAL_WRITE`.
pub const ACCESS_LOCAL_WRITE: c_int = 1;
/// `IBV_ACCESS_REMOTE_WRITE`.
pub const ACCESS_REMOTE_WRITE: c_int = 1 << 1;
/// `IBV_ACCESS_REMOTE_READ`.
pub const ACCESS_REMOTE_READ: c_int = 1 << 2;
/// `IBV_ACCESS_REMOTE_ATOMIC`.
pub const ACCESS_REMOTE_ATOMIC: c_int = 1 << 3;
/// `IBV_ACCESS_RELAXED_ORDERING`; ignored by devices that do not support it.
pub const ACCESS_RELAXED_ORDERING: c_int = 1 << 20;

/// `struct ibv_pd`.
#[repr(C)]
pub struct Pd {
    /// Context of its device.
    pub context: *mut Context,
    /// Handle in the kernel.
    pub handle: u32,
}

/// `struct ibv_mr`.
#[repr(C)]
pub struct Mr {
    /// Context of its device.
    pub context: *mut Context,
    /// Its domain.
    pub pd: *mut Pd,
    /// First byte.
    pub addr: *mut c_void,
    /// Bytes.
    pub length: usize,
    /// Handle in the kernel.
    pub handle: u32,
    /// Key for local work requests.
    pub lkey: u32,
    /// Key for work requests of peers.
    pub rkey: u32,
}

const _: () = {
    assert!(size_of::<Pd>() == 16);
    assert!(size_of::<Mr>() == 48);
    assert!(offset_of!(Mr, rkey) == 40);
};
