//! Version 4 of the interface: NVSHMEM 3.5, which loads `nvshmem_transport_libfabric.so.4`.

use core::ffi::c_int;
use core::mem::{offset_of, size_of};

use super::{AddHandles, Amo, Enforce, Fence, Head, PutSignal, Quiet, Rma, SetUp};

/// 4.0.0, as encoded by the host.
pub const VERSION: c_int = 40_000;

/// `amo_verb_t`, by value.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct AmoVerb {
    /// An operation of [`amo`](super::amo).
    pub desc: c_int,
    /// Not used, like the two fields that follow.
    pub is_fetch: c_int,
    /// Not used.
    pub is_val: c_int,
    /// Not used.
    pub is_cmp: c_int,
}

/// `nvshmem_transport`.
#[derive(Debug)]
#[repr(C)]
pub struct Transport {
    /// The fields that are equal in all versions.
    pub head: Head,
    /// The first functions, whose types are equal in all versions.
    pub set_up: SetUp<Self>,
    /// Puts and gets.
    pub rma: Option<Rma<Self>>,
    /// Atomics.
    pub amo: Option<Amo<Self, AmoVerb>>,
    /// Orders operations before and after the call.
    pub fence: Option<Fence<Self>>,
    /// Waits for the completion of all operations.
    pub quiet: Option<Quiet<Self>>,
    /// Puts, then signals.
    pub put_signal: Option<PutSignal<Self, AmoVerb>>,
    /// Makes received data visible to a GPU.
    pub enforce_cst: Option<Enforce<Self>>,
    /// The same, called at the target.
    pub enforce_cst_at_target: Option<Enforce<Self>>,
    /// Passes handles to kernels that drive NICs themselves.
    pub add_device_remote_mem_handles: Option<AddHandles<Self>>,
}

const _: () = {
    assert!(size_of::<AmoVerb>() == 16);
    assert!(size_of::<Transport>() == 248);
    assert!(offset_of!(Transport, set_up) == 128 && offset_of!(Transport, rma) == 184);
    assert!(
        offset_of!(Transport, put_signal) == 216
            && offset_of!(Transport, add_device_remote_mem_handles) == 240
    );
};
