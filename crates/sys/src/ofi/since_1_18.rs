//! What came after 1.17 and is of use without the rest: dma-bufs, and the structures that go with the versions that know them.

use core::ffi::{c_int, c_void};
use core::ptr;

use super::{ADDR_NOTAVAIL, Addr, CqErrEntry, FidMr, MrAttr};

/// `FI_MR_DMABUF`, a flag of registration since 1.20.
pub const MR_DMABUF: u64 = 1 << 40;

/// `struct fi_mr_dmabuf`: part of a dma-buf, since 1.20.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct MrDmabuf {
    /// The descriptor.
    pub fd: c_int,
    /// Where the part begins.
    pub offset: u64,
    /// Its bytes.
    pub len: usize,
    /// Address of the whole.
    pub base_addr: *mut c_void,
}

/// `struct fi_mr_attr` of 2.x. `hmem_data` is read for applications that asked for 1.19, `page_size` for those of 1.22, and the
/// rest for those of 2.0.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct MrAttrLater {
    /// What 1.17 has.
    pub attr: MrAttr,
    /// More about memory of a device, or NULL.
    pub hmem_data: *mut c_void,
    /// Bytes of a page, or 0.
    pub page_size: usize,
    /// The registration that this is a part of, or NULL.
    pub base_mr: *const FidMr,
    /// Parts that this will have.
    pub sub_mr_cnt: usize,
}

impl MrAttrLater {
    /// Nothing.
    pub const ZERO: Self = Self {
        attr: MrAttr::ZERO,
        hmem_data: ptr::null_mut(),
        page_size: 0,
        base_mr: ptr::null(),
        sub_mr_cnt: 0,
    };
}

/// `struct fi_cq_err_entry` of 2.x; `src_addr` is written for applications that asked for 1.20.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CqErrEntryLater {
    /// What 1.17 has.
    pub entry: CqErrEntry,
    /// Who it is from, if that is known.
    pub src_addr: Addr,
}

impl CqErrEntryLater {
    /// Nothing.
    pub const ZERO: Self = Self { entry: CqErrEntry::ZERO, src_addr: ADDR_NOTAVAIL };
}
