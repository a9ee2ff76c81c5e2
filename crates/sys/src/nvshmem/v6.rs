//! Version 6 of the interface: NVSHMEM 3.7, which loads `nvshmem_transport_libfabric.so.6`. Atomics may operate on
//! floating-point numbers.
//!
//! The version number is that of NVSHMEM's packaged version header. The structures are those of the public header
//! with `is_float`, whose table ends as that of version 4 does. The released library has one more function at the
//! end, for batch hints. It may be NULL; then the host calls `rma` as usual.

use core::ffi::{c_int, c_uint};
use core::mem::{offset_of, size_of};

use super::{AddHandles, Amo, Enforce, Fence, Head, PutSignal, Quiet, Rma, SetUp};

/// 6.0.0, as encoded by the host.
pub const VERSION: c_int = 60_000;

/// `batch_hint`: transport, queue pair, flags. Zero flags mean that the next operation is the last of its batch;
/// otherwise more operations follow.
pub type BatchHint<T> = unsafe extern "C" fn(*mut T, c_int, c_uint);

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
    /// Whether the word is a floating-point number.
    pub is_float: c_int,
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
    /// Announces whether more operations follow the next one. May be NULL.
    pub batch_hint: Option<BatchHint<Self>>,
}

const _: () = {
    assert!(size_of::<AmoVerb>() == 20);
    assert!(size_of::<Transport>() == 256);
    assert!(offset_of!(Transport, set_up) == 128 && offset_of!(Transport, rma) == 184);
    assert!(offset_of!(Transport, put_signal) == 216 && offset_of!(Transport, batch_hint) == 248);
};
