//! An open device, with the tables that the inline functions of `verbs.h` call through.

use core::ffi::{c_int, c_void};
use core::mem::{offset_of, size_of};

use super::{CreateQpEx, Device, PollCq, PostRecv, PostSend, PthreadMutex, QueryPortEx, ReqNotifyCq};

/// `struct ibv_context_ops`. What is a bare pointer is kept for old programs, or not used here.
#[repr(C)]
pub struct ContextOps {
    /// Kept for old programs.
    pub _compat_query_device: *mut c_void,
    /// Kept for old programs.
    pub _compat_query_port: *mut c_void,
    /// Kept for old programs.
    pub _compat_alloc_pd: *mut c_void,
    /// Kept for old programs.
    pub _compat_dealloc_pd: *mut c_void,
    /// Kept for old programs.
    pub _compat_reg_mr: *mut c_void,
    /// Kept for old programs.
    pub _compat_rereg_mr: *mut c_void,
    /// Kept for old programs.
    pub _compat_dereg_mr: *mut c_void,
    /// Of memory windows.
    pub alloc_mw: *mut c_void,
    /// Of memory windows.
    pub bind_mw: *mut c_void,
    /// Of memory windows.
    pub dealloc_mw: *mut c_void,
    /// Kept for old programs.
    pub _compat_create_cq: *mut c_void,
    /// Takes completions out of a queue.
    pub poll_cq: Option<PollCq>,
    /// Asks for an event with the next completion.
    pub req_notify_cq: Option<ReqNotifyCq>,
    /// Kept for old programs.
    pub _compat_cq_event: *mut c_void,
    /// Kept for old programs.
    pub _compat_resize_cq: *mut c_void,
    /// Kept for old programs.
    pub _compat_destroy_cq: *mut c_void,
    /// Kept for old programs.
    pub _compat_create_srq: *mut c_void,
    /// Kept for old programs.
    pub _compat_modify_srq: *mut c_void,
    /// Kept for old programs.
    pub _compat_query_srq: *mut c_void,
    /// Kept for old programs.
    pub _compat_destroy_srq: *mut c_void,
    /// Of shared receive queues.
    pub post_srq_recv: *mut c_void,
    /// Kept for old programs.
    pub _compat_create_qp: *mut c_void,
    /// Kept for old programs.
    pub _compat_query_qp: *mut c_void,
    /// Kept for old programs.
    pub _compat_modify_qp: *mut c_void,
    /// Kept for old programs.
    pub _compat_destroy_qp: *mut c_void,
    /// Gives a list of requests to the device.
    pub post_send: Option<PostSend>,
    /// Gives a list of receives to the device.
    pub post_recv: Option<PostRecv>,
    /// Kept for old programs.
    pub _compat_create_ah: *mut c_void,
    /// Kept for old programs.
    pub _compat_destroy_ah: *mut c_void,
    /// Kept for old programs.
    pub _compat_attach_mcast: *mut c_void,
    /// Kept for old programs.
    pub _compat_detach_mcast: *mut c_void,
    /// Kept for old programs.
    pub _compat_async_event: *mut c_void,
}

/// `struct ibv_context`.
#[repr(C)]
pub struct Context {
    /// The device.
    pub device: *mut Device,
    /// What is called for each message.
    pub ops: ContextOps,
    /// Descriptor of the kernel's device.
    pub cmd_fd: c_int,
    /// Readable when there is an asynchronous event.
    pub async_fd: c_int,
    /// Vectors for completion events.
    pub num_comp_vectors: c_int,
    /// The library's.
    pub mutex: PthreadMutex,
    /// [`ABI_IS_EXTENDED`] if the context is the end of a [`VerbsContext`].
    pub abi_compat: *mut c_void,
}

/// `__VERBS_ABI_IS_EXTENDED`: what [`Context::abi_compat`] is as a number then.
pub const ABI_IS_EXTENDED: usize = usize::MAX;

/// `struct verbs_context`: grows at its beginning. A slot is there if [`VerbsContext::sz`], counted from the end, reaches
/// it, and it is not NULL.
#[repr(C)]
pub struct VerbsContext {
    /// Asks for the attributes of a port.
    pub query_port: Option<QueryPortEx>,
    /// Twenty-five slots from `advise_mr` to `create_cq_ex`, not used here.
    pub advise_mr: [*mut c_void; 25],
    /// The library's.
    pub r#priv: *mut c_void,
    /// Not used here.
    pub query_device_ex: *mut c_void,
    /// Four slots that flows use, from `ibv_destroy_flow` on.
    pub ibv_destroy_flow: [*mut c_void; 4],
    /// Of shared connections.
    pub open_qp: *mut c_void,
    /// Makes a queue pair with more than [`QpInitAttr`](super::QpInitAttr) says.
    pub create_qp_ex: Option<CreateQpEx>,
    /// Of shared receive queues.
    pub get_srq_num: *mut c_void,
    /// Of shared receive queues.
    pub create_srq_ex: *mut c_void,
    /// Of shared connections.
    pub open_xrcd: *mut c_void,
    /// Of shared connections.
    pub close_xrcd: *mut c_void,
    /// Of older versions.
    pub _abi_placeholder3: u64,
    /// Bytes of this struct as the library has it.
    pub sz: usize,
    /// What programs hold a pointer to.
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
