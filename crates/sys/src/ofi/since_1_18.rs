//! Additions after 1.17: dma-bufs, which are used separately, and the longer structures of the versions that support
//! them.

use core::ffi::{c_int, c_void};
use core::ptr;

use super::{ADDR_NOTAVAIL, Addr, CqErrEntry, FidMr, MrAttr};

/// `FI_MR_DMABUF`, a flag of registration since 1.20.
pub const MR_DMABUF: u64 = 1 << 40;

/// `struct fi_mr_dmabuf`: a part of a dma-buf, since 1.20.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct MrDmabuf {
    /// The descriptor.
    pub fd: c_int,
    /// Offset of the part.
    pub offset: u64,
    /// Bytes of the part.
    pub len: usize,
    /// Address of the whole buffer.
    pub base_addr: *mut c_void,
}

/// `struct fi_mr_attr` of 2.x. Providers read `hmem_data` if the application requested 1.19 or later, `page_size`
/// from 1.22, and the other fields from 2.0.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct MrAttrLater {
    /// The fields of 1.17.
    pub attr: MrAttr,
    /// Further information about device memory, or NULL.
    pub hmem_data: *mut c_void,
    /// Bytes of a page, or 0.
    pub page_size: usize,
    /// The registration that contains this one, or NULL.
    pub base_mr: *const FidMr,
    /// Number of registrations that this one will contain.
    pub sub_mr_cnt: usize,
}

impl MrAttrLater {
    /// All fields zero or null.
    pub const ZERO: Self = Self {
        attr: MrAttr::ZERO,
        hmem_data: ptr::null_mut(),
        page_size: 0,
        base_mr: ptr::null(),
        sub_mr_cnt: 0,
    };
}

/// `struct fi_cq_err_entry` of 2.x; providers write `src_addr` if the application requested 1.20 or later.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CqErrEntryLater {
    /// The fields of 1.17.
    pub entry: CqErrEntry,
    /// Source of the message, if known.
    pub src_addr: Addr,
}

impl CqErrEntryLater {
    /// All fields zero or null, and an unknown source.
    pub const ZERO: Self = Self { entry: CqErrEntry::ZERO, src_addr: ADDR_NOTAVAIL };
}
