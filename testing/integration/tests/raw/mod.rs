//! The C tables of every ABI version behind one trait in the shape of the newest. This module checks and keeps nothing:
//! a test's arguments reach the plugin unchanged.

#[macro_use]
mod shapes;
mod tables;

use std::ffi::{c_char, c_int, c_void};

use libloading::os::unix::Library;
use trunkline_sys::nccl_net::{DeviceHandle, Logger, NetAttr, ResultCode};

pub(crate) use tables::find;

/// An opaque pointer of the interface.
pub(crate) type Opaque = *mut c_void;

/// Properties of a device; `None` where a version has no such field.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Props {
    pub(crate) name: *mut c_char,
    pub(crate) pci_path: *mut c_char,
    pub(crate) guid: u64,
    pub(crate) ptr_support: c_int,
    pub(crate) speed: c_int,
    pub(crate) port: c_int,
    pub(crate) latency: f32,
    pub(crate) max_comms: c_int,
    pub(crate) max_recvs: c_int,
    pub(crate) device_type: Option<c_int>,
    pub(crate) reg_is_global: Option<c_int>,
    pub(crate) force_flush: Option<c_int>,
    /// The number of members, and their devices; unused entries are zero.
    pub(crate) members: Option<(c_int, [c_int; 8])>,
    pub(crate) max_bytes: Option<(usize, usize)>,
    pub(crate) max_multi: Option<c_int>,
}

/// Grouped arguments of `irecv`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Group {
    pub(crate) n: c_int,
    pub(crate) data: *mut Opaque,
    pub(crate) sizes: *mut usize,
    pub(crate) tags: *mut c_int,
    pub(crate) mhandles: *mut Opaque,
}

/// One version's table.
///
/// # Safety
/// The contract of NCCL's net plugin interface, except where a test breaks it and the plugin promises to detect it:
/// null pointers, and invalid comms, requests and registrations.
pub(crate) trait Raw: Send + Sync {
    fn version(&self) -> u8;
    fn name(&self) -> *const c_char;
    unsafe fn init(&self, ctx: *mut Opaque, log: Option<Logger>) -> ResultCode;
    unsafe fn devices(&self, count: *mut c_int) -> ResultCode;
    /// `null` passes a null pointer for the properties.
    unsafe fn properties(&self, dev: c_int, null: bool) -> Result<Props, ResultCode>;
    unsafe fn listen(&self, ctx: Opaque, dev: c_int, handle: Opaque, comm: *mut Opaque) -> ResultCode;
    unsafe fn connect(
        &self,
        ctx: Opaque,
        dev: c_int,
        handle: Opaque,
        comm: *mut Opaque,
        device: *mut *mut DeviceHandle,
    ) -> ResultCode;
    unsafe fn accept(&self, listen: Opaque, comm: *mut Opaque, device: *mut *mut DeviceHandle) -> ResultCode;
    unsafe fn reg_mr(
        &self,
        comm: Opaque,
        data: Opaque,
        size: usize,
        kind: c_int,
        out: *mut Opaque,
    ) -> ResultCode;
    /// `size` and kind; offset and descriptor.
    unsafe fn reg_dma_buf(
        &self,
        comm: Opaque,
        data: Opaque,
        range: (usize, c_int),
        dmabuf: (u64, c_int),
        out: *mut Opaque,
    ) -> ResultCode;
    unsafe fn dereg_mr(&self, comm: Opaque, mr: Opaque) -> ResultCode;
    unsafe fn isend(
        &self,
        comm: Opaque,
        data: (Opaque, usize),
        tag: c_int,
        mr: Opaque,
        request: *mut Opaque,
    ) -> ResultCode;
    unsafe fn irecv(&self, comm: Opaque, group: Group, request: *mut Opaque) -> ResultCode;
    unsafe fn iflush(
        &self,
        comm: Opaque,
        n: c_int,
        data: *mut Opaque,
        sizes: *mut c_int,
        mhandles: *mut Opaque,
        request: *mut Opaque,
    ) -> ResultCode;
    unsafe fn test(&self, request: Opaque, done: *mut c_int, sizes: *mut c_int) -> ResultCode;
    unsafe fn close_send(&self, comm: Opaque) -> ResultCode;
    unsafe fn close_recv(&self, comm: Opaque) -> ResultCode;
    unsafe fn close_listen(&self, comm: Opaque) -> ResultCode;
    /// Makes a fused NIC of these members; `None` if the version has no such call.
    unsafe fn make_v_device(&self, dev: *mut c_int, members: Option<&[c_int]>) -> Option<ResultCode>;
    unsafe fn finalize(&self, ctx: Opaque) -> Option<ResultCode>;
    unsafe fn set_net_attr(&self, ctx: Opaque, attr: *mut NetAttr) -> Option<ResultCode>;
}

/// The entries for members, extended to the number of the newest version.
fn places<const N: usize>(devs: [c_int; N]) -> [c_int; 8] {
    std::array::from_fn(|at| devs.get(at).copied().unwrap_or(0))
}

/// Copies a table out of a library.
///
/// # Safety
/// `T` is the type of the table that `symbol` names.
pub(crate) unsafe fn table<T: Copy>(library: &Library, symbol: &std::ffi::CStr) -> Option<T> {
    // SAFETY: a data symbol; its type is the caller's promise.
    let found = unsafe { library.get::<*const T>(symbol.to_bytes_with_nul()) }.ok()?;
    let address: *const T = *found;
    // SAFETY: the table is a constant of a loaded library.
    unsafe { address.as_ref() }.copied()
}
