//! Operations posted on an endpoint. Nothing here allocates or waits, and locks are acquired only where the provider's threading model requires
//! it.
//!
//! An operation uses its memory and its [`OpSlot`] until it has completed: the caller keeps the registration until then.

use std::ffi::c_void;

use trunkline_sys::ofi::{ADDR_UNSPEC, Iovec, Msg, MsgRma, MsgTagged, RmaIov, caps};

use crate::contexts::OpSlot;
use crate::endpoint::{EndpointPeer, OfiEndpoint};
use crate::errno::OfiErrno;
use crate::region::{LocalSlice, RemotePlace};
use crate::role::EndpointRole;

/// The result of posting an operation.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[must_use]
pub enum SubmitOutcome {
    /// The provider accepted it.
    Taken,
    /// The provider has no room now; nothing was posted.
    Again,
    /// The provider rejected it; nothing was posted.
    Refused(OfiErrno),
}

impl SubmitOutcome {
    #[inline]
    fn from_code(code: isize) -> Self {
        match OfiErrno::check_count(code) {
            Ok(_) => Self::Taken,
            Err(OfiErrno::AGAIN) => Self::Again,
            Err(errno) => Self::Refused(errno),
        }
    }
}

/// Options of an operation.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct PostOptions {
    /// Requests a completion for success. A failure always produces one, and some providers always produce completions (`net` of 1.17). The end of
    /// an operation without a completion is known only from the order of completions, where the provider grants one.
    pub tell: bool,
    /// More operations follow at once, so that the provider may delay this one (`FI_MORE`).
    pub more: bool,
    /// Completes only after the bytes have arrived at the target, or at the strongest level that the provider grants
    /// ([`ProviderGrant::reach`](crate::typed::ProviderGrant::reach)).
    pub placed: bool,
}

impl PostOptions {
    /// With a completion, without options.
    pub const TOLD: Self = Self { tell: true, more: false, placed: false };
    /// Without a completion.
    pub const QUIET: Self = Self { tell: false, more: false, placed: false };
}

/// The source of an operation's bytes.
#[derive(Clone, Copy, Debug)]
pub enum PayloadSource<'a, R: EndpointRole> {
    /// Copied before the call returns; at most [`SizeLimits::inject`](crate::typed::SizeLimits::inject) bytes.
    Inline(&'a [u8]),
    /// Registered memory.
    One(LocalSlice<'a, R>),
    /// The bytes of both, in order; for providers whose [`SizeLimits::transmit_ranges`](crate::typed::SizeLimits::transmit_ranges) are at least
    /// two.
    Two(LocalSlice<'a, R>, LocalSlice<'a, R>),
}

/// Ranges in libfabric's form.
struct IovRanges {
    iov: [Iovec; 2],
    desc: [*mut c_void; 2],
    count: usize,
    len: usize,
    flags: u64,
}

impl IovRanges {
    #[inline]
    fn from_locals<R: EndpointRole>(locals: [Option<LocalSlice<'_, R>>; 2]) -> Self {
        let [first, second] = locals;
        let none = (Iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }, std::ptr::null_mut());
        let parts = |local: Option<LocalSlice<'_, R>>| local.map_or(none, |local| local.iovec_parts());
        let ((one, one_desc), (two, two_desc)) = (parts(first), parts(second));
        Self {
            iov: [one, two],
            desc: [one_desc, two_desc],
            count: 1 + usize::from(second.is_some()),
            len: one.iov_len + two.iov_len,
            flags: 0,
        }
    }
}

/// Calls a function of one of an endpoint's tables.
macro_rules! post {
    ($endpoint:expr, $table:ident.$slot:ident($($arg:expr),*)) => {{
        let fid = &$endpoint.held_endpoint().fid;
        // SAFETY: the endpoint is open.
        let ops = unsafe { (*fid.as_raw()).$table };
        // SAFETY: the pointer is null, or the table of an open endpoint.
        match unsafe { ops.as_ref() }.and_then(|ops| ops.$slot) {
            None => SubmitOutcome::Refused(OfiErrno::NO_SYS),
            Some(call) => {
                let _inside = fid.domain_shared().guard.lock_post();
                // SAFETY: the endpoint is open. The arguments are valid during the call; memory and context of the operation stay until it has completed,
                // which this module requires of its callers.
                SubmitOutcome::from_code(unsafe { call(fid.as_raw(), $($arg),*) })
            }
        }
    }};
}

impl<R: EndpointRole> OfiEndpoint<R> {
    /// Writes to the peer's memory. `data` is reported by the peer's queue once all bytes have arrived.
    #[inline]
    pub fn write(
        &mut self,
        peer: EndpointPeer<R>,
        from: PayloadSource<'_, R>,
        to: RemotePlace<R>,
        data: Option<u64>,
        slot: OpSlot,
        how: PostOptions,
    ) -> SubmitOutcome {
        let mut ranges = match self.make_ranges(from) {
            Ok(ranges) if self.has_bits_for(data, 0) => ranges,
            Ok(_) => return SubmitOutcome::Refused(OfiErrno::INVALID),
            Err(errno) => return SubmitOutcome::Refused(errno),
        };
        let Some(context) = self.context_ptr(slot) else { return SubmitOutcome::Refused(OfiErrno::INVALID) };
        let remote = RmaIov { addr: to.addr(), len: ranges.len, key: to.key().number() };
        let message = MsgRma {
            msg_iov: ranges.iov.as_ptr(),
            desc: ranges.desc.as_mut_ptr(),
            iov_count: ranges.count,
            addr: peer.raw_addr(),
            rma_iov: &raw const remote,
            rma_iov_count: 1,
            context,
            data: data.unwrap_or(0),
        };
        let flags = ranges.flags | self.op_flags(how) | data_flag(data);
        post!(self, rma.writemsg(&raw const message, flags))
    }

    /// Writes a copy of a few bytes; only a failure is reported.
    #[inline]
    pub fn inject_write(
        &mut self,
        peer: EndpointPeer<R>,
        bytes: &[u8],
        to: RemotePlace<R>,
        data: Option<u64>,
    ) -> SubmitOutcome {
        if self.too_long(bytes) {
            return SubmitOutcome::Refused(OfiErrno::TOO_LONG);
        }
        if !self.has_bits_for(data, 0) {
            return SubmitOutcome::Refused(OfiErrno::INVALID);
        }
        let at = bytes.as_ptr().cast();
        let len = bytes.len();
        let dest = peer.raw_addr();
        let addr = to.addr();
        let key = to.key().number();
        match data {
            Some(data) => post!(self, rma.injectdata(at, len, data, dest, addr, key)),
            None => post!(self, rma.inject(at, len, dest, addr, key)),
        }
    }

    /// Reads the peer's memory.
    #[inline]
    pub fn read(
        &mut self,
        peer: EndpointPeer<R>,
        into: LocalSlice<'_, R>,
        from: RemotePlace<R>,
        slot: OpSlot,
        how: PostOptions,
    ) -> SubmitOutcome {
        let Some(context) = self.context_ptr(slot) else { return SubmitOutcome::Refused(OfiErrno::INVALID) };
        let mut ranges = IovRanges::from_locals([Some(into), None]);
        let remote = RmaIov { addr: from.addr(), len: ranges.len, key: from.key().number() };
        let message = MsgRma {
            msg_iov: ranges.iov.as_ptr(),
            desc: ranges.desc.as_mut_ptr(),
            iov_count: ranges.count,
            addr: peer.raw_addr(),
            rma_iov: &raw const remote,
            rma_iov_count: 1,
            context,
            data: 0,
        };
        // Completed reads have already placed their bytes, so a completion level does not apply.
        let flags = self.op_flags(PostOptions { placed: false, ..how });
        post!(self, rma.readmsg(&raw const message, flags))
    }

    /// Sends to a receive of the peer with that tag.
    #[inline]
    pub fn send_tagged(
        &mut self,
        peer: EndpointPeer<R>,
        from: PayloadSource<'_, R>,
        tag: u64,
        data: Option<u64>,
        slot: OpSlot,
        how: PostOptions,
    ) -> SubmitOutcome {
        let mut ranges = match self.make_ranges(from) {
            Ok(ranges) if self.has_bits_for(data, tag) => ranges,
            Ok(_) => return SubmitOutcome::Refused(OfiErrno::INVALID),
            Err(errno) => return SubmitOutcome::Refused(errno),
        };
        let Some(context) = self.context_ptr(slot) else { return SubmitOutcome::Refused(OfiErrno::INVALID) };
        let message = MsgTagged {
            msg_iov: ranges.iov.as_ptr(),
            desc: ranges.desc.as_mut_ptr(),
            iov_count: ranges.count,
            addr: peer.raw_addr(),
            tag,
            ignore: 0,
            context,
            data: data.unwrap_or(0),
        };
        let flags = ranges.flags | self.op_flags(how) | data_flag(data);
        post!(self, tagged.sendmsg(&raw const message, flags))
    }

    /// Sends a copy of a few bytes to a receive with that tag; only a failure is reported.
    #[inline]
    pub fn inject_tagged(
        &mut self,
        peer: EndpointPeer<R>,
        bytes: &[u8],
        tag: u64,
        data: Option<u64>,
    ) -> SubmitOutcome {
        if self.too_long(bytes) {
            return SubmitOutcome::Refused(OfiErrno::TOO_LONG);
        }
        if !self.has_bits_for(data, tag) {
            return SubmitOutcome::Refused(OfiErrno::INVALID);
        }
        let at = bytes.as_ptr().cast();
        let len = bytes.len();
        let dest = peer.raw_addr();
        match data {
            Some(data) => post!(self, tagged.injectdata(at, len, data, dest, tag)),
            None => post!(self, tagged.inject(at, len, dest, tag)),
        }
    }

    /// Receives messages with a tag: from one peer, where the provider grants [`ProviderGrant::directed`](crate::typed::ProviderGrant::directed),
    /// or from any. Bits of `ignore` are not compared. Always produces a completion.
    #[inline]
    pub fn receive_tagged(
        &mut self,
        from: Option<EndpointPeer<R>>,
        into: LocalSlice<'_, R>,
        tag: u64,
        ignore: u64,
        slot: OpSlot,
        more: bool,
    ) -> SubmitOutcome {
        let context = self.context_ptr(slot).filter(|_| self.has_bits_for(None, tag));
        let Some(context) = context else { return SubmitOutcome::Refused(OfiErrno::INVALID) };
        let mut ranges = IovRanges::from_locals([Some(into), None]);
        let message = MsgTagged {
            msg_iov: ranges.iov.as_ptr(),
            desc: ranges.desc.as_mut_ptr(),
            iov_count: ranges.count,
            addr: from.map_or(ADDR_UNSPEC, EndpointPeer::raw_addr),
            tag,
            ignore,
            context,
            data: 0,
        };
        let flags = self.op_flags(PostOptions { tell: true, more, placed: false });
        post!(self, tagged.recvmsg(&raw const message, flags))
    }

    /// Sends to the peer's next receive.
    #[inline]
    pub fn send(
        &mut self,
        peer: EndpointPeer<R>,
        from: PayloadSource<'_, R>,
        data: Option<u64>,
        slot: OpSlot,
        how: PostOptions,
    ) -> SubmitOutcome {
        let mut ranges = match self.make_ranges(from) {
            Ok(ranges) if self.has_bits_for(data, 0) => ranges,
            Ok(_) => return SubmitOutcome::Refused(OfiErrno::INVALID),
            Err(errno) => return SubmitOutcome::Refused(errno),
        };
        let Some(context) = self.context_ptr(slot) else { return SubmitOutcome::Refused(OfiErrno::INVALID) };
        let message = Msg {
            msg_iov: ranges.iov.as_ptr(),
            desc: ranges.desc.as_mut_ptr(),
            iov_count: ranges.count,
            addr: peer.raw_addr(),
            context,
            data: data.unwrap_or(0),
        };
        let flags = ranges.flags | self.op_flags(how) | data_flag(data);
        post!(self, msg.sendmsg(&raw const message, flags))
    }

    /// Receives messages without a tag, as [`OfiEndpoint::receive_tagged`] does.
    #[inline]
    pub fn receive(
        &mut self,
        from: Option<EndpointPeer<R>>,
        into: LocalSlice<'_, R>,
        slot: OpSlot,
        more: bool,
    ) -> SubmitOutcome {
        let Some(context) = self.context_ptr(slot) else { return SubmitOutcome::Refused(OfiErrno::INVALID) };
        let mut ranges = IovRanges::from_locals([Some(into), None]);
        let message = Msg {
            msg_iov: ranges.iov.as_ptr(),
            desc: ranges.desc.as_mut_ptr(),
            iov_count: ranges.count,
            addr: from.map_or(ADDR_UNSPEC, EndpointPeer::raw_addr),
            context,
            data: 0,
        };
        let flags = self.op_flags(PostOptions { tell: true, more, placed: false });
        post!(self, msg.recvmsg(&raw const message, flags))
    }

    #[inline]
    fn context_ptr(&self, slot: OpSlot) -> Option<*mut c_void> {
        self.held_endpoint().queue.contexts.context_ptr(slot)
    }

    /// Returns whether data and tag fit into the bits that the provider transfers: it would truncate them silently.
    #[inline]
    fn has_bits_for(&self, data: Option<u64>, tag: u64) -> bool {
        let data_fits = data.is_none_or(|data| self.data_bits != 0 && data & !self.data_bits == 0);
        data_fits && tag & !self.tag_bits == 0
    }

    #[inline]
    fn too_long(&self, bytes: &[u8]) -> bool {
        bytes.len() > self.inject
    }

    #[inline]
    fn make_ranges(&self, from: PayloadSource<'_, R>) -> Result<IovRanges, OfiErrno> {
        match from {
            PayloadSource::Inline(bytes) if self.too_long(bytes) => Err(OfiErrno::TOO_LONG),
            PayloadSource::Inline(bytes) => {
                // No descriptor: the provider copies injected bytes, so they need no registration.
                let mut ranges = IovRanges::from_locals::<R>([None, None]);
                ranges.iov[0] = Iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
                // FI_INJECT, so that the bytes of the caller may be reused when the call returns (fi_msg(3)).
                (ranges.len, ranges.flags) = (bytes.len(), caps::INJECT);
                Ok(ranges)
            }
            PayloadSource::One(local) => Ok(IovRanges::from_locals([Some(local), None])),
            PayloadSource::Two(first, second) => Ok(IovRanges::from_locals([Some(first), Some(second)])),
        }
    }

    #[inline]
    fn op_flags(&self, how: PostOptions) -> u64 {
        let bit = |on: bool, bit: u64| if on { bit } else { 0 };
        // FI_COMPLETION is set per operation, because endpoints are bound with FI_SELECTIVE_COMPLETION.
        bit(how.tell, caps::COMPLETION) | bit(how.more, caps::MORE) | bit(how.placed, self.reach)
    }
}

#[inline]
fn data_flag(data: Option<u64>) -> u64 {
    if data.is_some() { caps::REMOTE_CQ_DATA } else { 0 }
}
