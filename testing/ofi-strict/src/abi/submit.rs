//! The common part of all posting functions of C.

use std::ffi::c_void;

use trunkline_sys::ofi::{Addr, FidEp, Iovec, caps};

use super::endpoint::EndpointHandle;
use super::{PANICKED, catch_panics, object_ref};
use crate::memory::{self, ProgramRange};
use crate::outgoing::{OperationBody, PeerAction};
use crate::post::{OperationDraft, RecvDraft};

/// More ranges than any operation may have; further entries are not read.
const LIST_MAX: usize = 64;

/// The buffers of an operation.
pub(super) struct OpBuffers {
    pub(super) ranges: Vec<ProgramRange>,
    pub(super) descs: Vec<usize>,
}

impl OpBuffers {
    /// One buffer.
    pub(super) fn from_buffer(buf: *const c_void, len: usize, desc: *mut c_void) -> Self {
        Self { ranges: vec![ProgramRange { base: buf as usize, len }], descs: vec![desc as usize] }
    }

    /// The buffers of a list.
    ///
    /// # Safety
    /// The lists have `count` entries; `desc` may be NULL.
    pub(super) unsafe fn from_list(iov: *const Iovec, desc: *const *mut c_void, count: usize) -> Self {
        let mut ranges = Vec::new();
        let mut descs = Vec::new();
        for at in 0..count.min(LIST_MAX) {
            // SAFETY: as this function's caller promises.
            let place = unsafe { iov.add(at) };
            // SAFETY: as above.
            let entry = unsafe { place.read() };
            ranges.push(ProgramRange { base: entry.iov_base as usize, len: entry.iov_len });
            if !desc.is_null() {
                // SAFETY: as above.
                let place = unsafe { desc.add(at) };
                // SAFETY: as above.
                descs.push(unsafe { place.read() } as usize);
            }
        }
        Self { ranges, descs }
    }
}

/// Peer, data, context and flags of an operation.
#[derive(Clone, Copy)]
pub(super) struct PostLabel {
    pub(super) peer: Addr,
    pub(super) data: Option<u64>,
    pub(super) context: *mut c_void,
    /// Flags of the call, for functions with flags.
    pub(super) flags: Option<u64>,
    pub(super) is_silent: bool,
}

impl PostLabel {
    /// For a function without flags or data.
    pub(super) fn for_plain(peer: Addr, context: *mut c_void) -> Self {
        Self { peer, data: None, context, flags: None, is_silent: false }
    }

    /// For an inject function, which copies the buffer.
    pub(super) fn for_inject(peer: Addr) -> Self {
        Self { peer, data: None, context: std::ptr::null_mut(), flags: None, is_silent: true }
    }

    /// For a function with flags.
    pub(super) fn with_flags(peer: Addr, context: *mut c_void, data: u64, flags: u64) -> Self {
        let data = (flags & caps::REMOTE_CQ_DATA != 0).then_some(data);
        Self { peer, data, context, flags: Some(flags), is_silent: false }
    }

    pub(super) fn with_data(self, data: u64) -> Self {
        Self { data: Some(data), ..self }
    }
}

/// Posts an operation.
///
/// # Safety
/// The object is open and has this table, see `abi`; the buffers meet the requirements of the interface for the call.
pub(super) unsafe fn post_operation(
    ep: *mut FidEp,
    what: PeerAction,
    buffers: OpBuffers,
    label: PostLabel,
) -> isize {
    catch_panics(PANICKED as isize, || {
        // SAFETY: the object is open and has this function's table, see `abi`.
        let this: &EndpointHandle = unsafe { object_ref(ep) };
        let OpBuffers { ranges, descs } = buffers;
        let copies = label.is_silent || label.flags.is_some_and(|flags| flags & caps::INJECT != 0);
        let most = this.domain.shared.config.inject;
        let fits = memory::total_len(&ranges).is_some_and(|len| len <= most)
            && !matches!(what, PeerAction::Read { .. });
        let body = if copies && fits {
            // SAFETY: the buffers of an injected operation are readable during the call, as the interface requires.
            OperationBody::Copied(unsafe { memory::copy_in(&ranges) })
        } else {
            OperationBody::Lent(ranges)
        };
        let PostLabel { peer, data, context, flags, is_silent } = label;
        let draft =
            OperationDraft { what, body, descs, peer, data, context: context as usize, flags, is_silent };
        this.checked_call(|state| state.post_operation(this.number, draft)) as isize
    })
}

/// Posts a receive.
///
/// # Safety
/// As [`post_operation`].
pub(super) unsafe fn post_receive(
    ep: *mut FidEp,
    buffers: OpBuffers,
    tag: Option<(u64, u64)>,
    label: PostLabel,
) -> isize {
    catch_panics(PANICKED as isize, || {
        // SAFETY: the object is open and has this function's table, see `abi`.
        let this: &EndpointHandle = unsafe { object_ref(ep) };
        let OpBuffers { ranges, descs } = buffers;
        let PostLabel { peer: src, context, flags, .. } = label;
        let draft = RecvDraft { ranges, descs, src, tag, context: context as usize, flags };
        this.checked_call(|state| state.post_receive(this.number, draft)) as isize
    })
}
