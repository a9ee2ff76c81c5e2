//! Contexts (open devices), with the tables through which the inline functions of `verbs.h` call.

use core::ffi::{c_int, c_void};
use core::mem::{offset_of, size_of};

use super::{CreateQpEx, Device, PollCq, PostRecv, PostSend, PthreadMutex, QueryPortEx, ReqNotifyCq};

/// `struct ibv_context_ops`. Slots of type `*mut c_void` exist for old programs or are not used by Trunkline.
#[repr(C)]
pub struct ContextOps {
    /// Kept for compatibility with old programs.
    pub _compat_query_device: *mut c_void,
    /// Kept for compatibility with old programs.
    pub _compat_query_port: *mut c_void,
    /// Kept for compatibility with old programs.
    pub _compat_alloc_pd: *mut c_void,
    /// Kept for compatibility with old programs.
    pub _compat_dealloc_pd: *mut c_void,
    /// Kept for compatibility with old programs.
    pub _compat_reg_mr: *mut c_void,
    /// Kept for compatibility with old programs.
    pub _compat_rereg_mr: *mut c_void,
    /// Kept for compatibility with old programs.
    pub _compat_dereg_mr: *mut c_void,
    /// For memory windows.
    pub alloc_mw: *mut c_void,
    /// For memory windows.
    pub bind_mw: *mut c_void,
    /// For memory windows.
    pub dealloc_mw: *mut c_void,
    /// Kept for compatibility with old programs.
    pub _compat_create_cq: *mut c_void,
    /// Polls completions from a queue.
    pub poll_cq: Option<PollCq>,
    /// Requests an event for the next completion.
    pub req_notify_cq: Option<ReqNotifyCq>,
    /// Kept for compatibility with old programs.
    pub _compat_cq_event: *mut c_void,
    /// Kept for compatibility with old programs.
    pub _compat_resize_cq: *mut c_void,
    /// Kept for compatibility with old programs.
    pub _compat_destroy_cq: *mut c_void,
    /// Kept for compatibility with old programs.
    pub _compat_create_srq: *mut c_void,
    /// Kept for compatibility with old programs.
    pub _compat_modify_srq: *mut c_void,
    /// Kept for compatibility with old programs.
    pub _compat_query_srq: *mut c_void,
    /// Kept for compatibility with old programs.
    pub _compat_destroy_srq: *mut c_void,
    /// For shared receive queues.
    pub post_srq_recv: *mut c_void,
    /// Kept for compatibility with old programs.
    pub _compat_create_qp: *mut c_void,
    /// Kept for compatibility with old programs.
    pub _compat_query_qp: *mut c_void,
    /// Kept for compatibility with old programs.
    pub _compat_modify_qp: *mut c_void,
    /// Kept for compatibility with old programs.
    pub _compat_destroy_qp: *mut c_void,
    /// Posts a list of work requests.
    pub post_send: Option<PostSend>,
    /// Posts a list of receives.
    pub post_recv: Option<PostRecv>,
    /// Kept for compatibility with old programs.
    pub _compat_create_ah: *mut c_void,
    /// Kept for compatibility with old programs.
    pub _compat_destroy_ah: *mut c_void,
    /// Kept for compatibility with old programs.
    pub _compat_attach_mcast: *mut c_void,
    /// Kept for compatibility with old programs.
    pub _compat_detach_mcast: *mut c_void,
    /// Kept for compatibility with old programs.
    pub _compat_async_event: *mut c_void,
}

/// `struct ibv_context`.
#[repr(C)]
pub struct Context {
    /// The device that is open.
    pub device: *mut Device,
    /// The functions of the fast path.
    pub ops: ContextOps,
    /// File descriptor of the kernel's device.
    pub cmd_fd: c_int,
    /// Readable when an asynchronous event is available.
    pub async_fd: c_int,
    /// Number of completion vectors.
    pub num_comp_vectors: c_int,
    /// Private to the library.
    pub mutex: PthreadMutex,
    /// [`ABI_IS_EXTENDED`] if the context is the last member of a [`VerbsContext`].
    pub abi_compat: *mut c_void,
}

/// `__VERBS_ABI_IS_EXTENDED`: the value of [`Context::abi_compat`] in an extended context.
pub const ABI_IS_EXTENDED: usize = usize::MAX;

/// `struct verbs_context`, which newer versions extend at its beginning. A slot is valid if [`VerbsContext::sz`],
/// counted from the end of the structure, includes it, and if it is not NULL.
#[repr(C)]
pub struct VerbsContext {
    /// Returns the attributes of a port.
    pub query_port: Option<QueryPortEx>,
    /// The twenty-five slots from `advise_mr` to `create_cq_ex`, not used by Trunkline.
    pub advise_mr: [*mut c_void; 25],
    /// Private to the library.
    pub r#priv: *mut c_void,
    /// Not used by Trunkline.
    pub query_device_ex: *mut c_void,
    /// The four slots for flow steering, from `ibv_destroy_flow` on.
    pub ibv_destroy_flow: [*mut c_void; 4],
    /// For XRC (shared connections).
    pub open_qp: *mut c_void,
    /// Creates a queue pair with more attributes than [`QpInitAttr`](super::QpInitAttr) contains.
    pub create_qp_ex: Option<CreateQpEx>,
    /// For shared receive queues.
    pub get_srq_num: *mut c_void,
    /// For shared receive queues.
    pub create_srq_ex: *mut c_void,
    /// For XRC (shared connections).
    pub open_xrcd: *mut c_void,
    /// For XRC (shared connections).
    pub close_xrcd: *mut c_void,
    /// Placeholder of older versions.
    pub _abi_placeholder3: u64,
    /// Bytes of this structure in the library.
    pub sz: usize,
    /// The part to which programs have a pointer.
    pub context: Context,
}

const _: () = {
    assert!(size_of::<ContextOps>() == 256);
    assert!(offset_of!(ContextOps, post_send) == 200);
};
#[cfg(not(target_arch = "aarch64"))]
const _: () = {
    assert!(size_of::<Context>() == 328);
    assert!(size_of::<VerbsContext>() == 648);
};
