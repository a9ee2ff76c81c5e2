//! Version 4 of the interface: NVSHMEM 3.5, in a file `nvshmem_transport_libfabric.so.4`.

use core::ffi::c_int;
use core::mem::{offset_of, size_of};

use super::{AddHandles, Amo, Enforce, Fence, Head, PutSignal, Quiet, Rma, SetUp};

/// 4.0.0, as the host says it.
pub const VERSION: c_int = 40_000;

/// `amo_verb_t`, by value.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct AmoVerb {
    /// Of [`amo`](super::amo).
    pub desc: c_int,
    /// Not used, as the two that follow.
    pub is_fetch: c_int,
    /// Likewise.
    pub is_val: c_int,
    /// Likewise.
    pub is_cmp: c_int,
}

/// `nvshmem_transport`.
#[derive(Debug)]
#[repr(C)]
pub struct Transport {
    /// What is the same in all versions.
    pub head: Head,
    /// And here.
    pub set_up: SetUp<Self>,
    /// Puts and gets.
    pub rma: Option<Rma<Self>>,
    /// Atomics.
    pub amo: Option<Amo<Self, AmoVerb>>,
    /// Orders.
    pub fence: Option<Fence<Self>>,
    /// Waits.
    pub quiet: Option<Quiet<Self>>,
    /// Puts, then signals.
    pub put_signal: Option<PutSignal<Self, AmoVerb>>,
    /// Makes a GPU see what has come.
    pub enforce_cst: Option<Enforce<Self>>,
    /// The same at the other end.
    pub enforce_cst_at_target: Option<Enforce<Self>>,
    /// For kernels that talk to NICs.
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
