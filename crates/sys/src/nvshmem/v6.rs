//! Version 6 of the interface: NVSHMEM 3.7, in a file `nvshmem_transport_libfabric.so.6`. An atomic may be of a floating-point number.
//!
//! The number is of the version header that NVSHMEM's packages carry, the structures are of the public header with `is_float`, which ends as that of version 4
//! does. The released library has one function more at the end, for hints of batches, which may be NULL (then the host calls `rma` as ever).

use core::ffi::{c_int, c_uint};
use core::mem::{offset_of, size_of};

use super::{AddHandles, Amo, Enforce, Fence, Head, PutSignal, Quiet, Rma, SetUp};

/// 6.0.0, as the host says it.
pub const VERSION: c_int = 60_000;

/// `batch_hint`: transport, queue pair, flags. No flag means that the next operation is the last of its batch; with any, more follow.
pub type BatchHint<T> = unsafe extern "C" fn(*mut T, c_int, c_uint);

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
    /// The word is a floating-point number.
    pub is_float: c_int,
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
    /// Says whether operations follow the next one. It may be NULL.
    pub batch_hint: Option<BatchHint<Self>>,
}

const _: () = {
    assert!(size_of::<AmoVerb>() == 20);
    assert!(size_of::<Transport>() == 256);
    assert!(offset_of!(Transport, set_up) == 128 && offset_of!(Transport, rma) == 184);
    assert!(offset_of!(Transport, put_signal) == 216 && offset_of!(Transport, batch_hint) == 248);
};
