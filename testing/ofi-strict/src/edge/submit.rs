//! What C's ways to post an operation have in common.

use std::ffi::c_void;

use trunkline_sys::ofi::{Addr, FidEp, Iovec, caps};

use super::endpoint::EpObject;
use super::{PANICKED, guarded, object};
use crate::memory::{self, Range};
use crate::outgoing::{Body, What};
use crate::post::{Draft, RecvDraft};

/// More ranges than any operation takes; beyond these none are read.
const LIST_MAX: usize = 64;

/// Buffers of an operation.
pub(super) struct Buffers {
    pub(super) ranges: Vec<Range>,
    pub(super) descs: Vec<usize>,
}

impl Buffers {
    /// One.
    pub(super) fn one(buf: *const c_void, len: usize, desc: *mut c_void) -> Self {
        Self { ranges: vec![Range { base: buf as usize, len }], descs: vec![desc as usize] }
    }

    /// As many as a list has.
    ///
    /// # Safety
    /// The lists have so many entries; `desc` may be NULL.
    pub(super) unsafe fn list(iov: *const Iovec, desc: *const *mut c_void, count: usize) -> Self {
        let mut ranges = Vec::new();
        let mut descs = Vec::new();
        for at in 0..count.min(LIST_MAX) {
            // SAFETY: as this function's caller promises.
            let place = unsafe { iov.add(at) };
            // SAFETY: as above.
            let entry = unsafe { place.read() };
            ranges.push(Range { base: entry.iov_base as usize, len: entry.iov_len });
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

/// Where an operation goes, and how it is told of.
#[derive(Clone, Copy)]
pub(super) struct Label {
    pub(super) peer: Addr,
    pub(super) data: Option<u64>,
    pub(super) context: *mut c_void,
    /// Flags of the call, if it has any.
    pub(super) flags: Option<u64>,
    pub(super) is_silent: bool,
}

impl Label {
    /// Of a plain call.
    pub(super) fn plain(peer: Addr, context: *mut c_void) -> Self {
        Self { peer, data: None, context, flags: None, is_silent: false }
    }

    /// Of one that copies.
    pub(super) fn inject(peer: Addr) -> Self {
        Self { peer, data: None, context: std::ptr::null_mut(), flags: None, is_silent: true }
    }

    /// Of one with flags.
    pub(super) fn flagged(peer: Addr, context: *mut c_void, data: u64, flags: u64) -> Self {
        let data = (flags & caps::REMOTE_CQ_DATA != 0).then_some(data);
        Self { peer, data, context, flags: Some(flags), is_silent: false }
    }

    pub(super) fn with(self, data: u64) -> Self {
        Self { data: Some(data), ..self }
    }
}

/// Posts an operation.
///
/// # Safety
/// See `edge`; the buffers are as the interface says of the call.
pub(super) unsafe fn post(ep: *mut FidEp, what: What, buffers: Buffers, label: Label) -> isize {
    guarded(PANICKED as isize, || {
        // SAFETY: see `edge`.
        let this: &EpObject = unsafe { object(ep) };
        let Buffers { ranges, descs } = buffers;
        let copies = label.is_silent || label.flags.is_some_and(|flags| flags & caps::INJECT != 0);
        let most = this.domain.shared.config.inject;
        let fits =
            memory::total(&ranges).is_some_and(|len| len <= most) && !matches!(what, What::Read { .. });
        let body = if copies && fits {
            // SAFETY: as the interface says of an injected operation's buffers.
            Body::Copied(unsafe { memory::copy_in(&ranges) })
        } else {
            Body::Lent(ranges)
        };
        let Label { peer, data, context, flags, is_silent } = label;
        let draft = Draft { what, body, descs, peer, data, context: context as usize, flags, is_silent };
        this.ruled(|state| state.post(this.number, draft)) as isize
    })
}

/// Posts a receive.
///
/// # Safety
/// As [`post`].
pub(super) unsafe fn receive(
    ep: *mut FidEp,
    buffers: Buffers,
    tag: Option<(u64, u64)>,
    label: Label,
) -> isize {
    guarded(PANICKED as isize, || {
        // SAFETY: see `edge`.
        let this: &EpObject = unsafe { object(ep) };
        let Buffers { ranges, descs } = buffers;
        let Label { peer: src, context, flags, .. } = label;
        let draft = RecvDraft { ranges, descs, src, tag, context: context as usize, flags };
        this.ruled(|state| state.receive(this.number, draft)) as isize
    })
}
