//! The rules for posting: checks operations and receives before an endpoint accepts them.

use trunkline_sys::ofi::{ADDR_UNSPEC, Addr, caps, errno};

use crate::matching::WaitingReceive;
use crate::memory::{self, ProgramRange};
use crate::outgoing::{OperationBody, PeerAction, PendingOperation};
use crate::registry::{BrokenRule, BufferUse, StrictMrId};
use crate::state::{DomainContents, EndpointTerms, QueueBinding};
use crate::wire::MESSAGE_MAX;

/// Most ranges per operation.
pub(crate) const RANGES_MAX: usize = 4;
/// Supported flags of an operation.
const FLAGS: u64 = caps::COMPLETION
    | caps::INJECT
    | caps::INJECT_COMPLETE
    | caps::TRANSMIT_COMPLETE
    | caps::DELIVERY_COMPLETE
    | caps::REMOTE_CQ_DATA
    | caps::MORE
    | caps::FENCE;

/// An operation, as requested by a call.
#[derive(Debug)]
pub(crate) struct OperationDraft {
    pub(crate) what: PeerAction,
    pub(crate) body: OperationBody,
    /// Descriptors of the ranges, or 0 for none.
    pub(crate) descs: Vec<usize>,
    pub(crate) peer: Addr,
    pub(crate) data: Option<u64>,
    pub(crate) context: usize,
    /// Flags of the call; `None` for the default flags of the endpoint.
    pub(crate) flags: Option<u64>,
    /// Whether success never generates a completion.
    pub(crate) is_silent: bool,
}

/// A receive, as requested by a call.
#[derive(Debug)]
pub(crate) struct RecvDraft {
    pub(crate) ranges: Vec<ProgramRange>,
    pub(crate) descs: Vec<usize>,
    pub(crate) src: Addr,
    /// The tag, and its bits that are ignored.
    pub(crate) tag: Option<(u64, u64)>,
    pub(crate) context: usize,
    pub(crate) flags: Option<u64>,
}

impl OperationDraft {
    fn call_name(&self) -> &'static str {
        match (self.what, self.is_silent, self.data) {
            (PeerAction::Send { tag: None }, false, None) => "send",
            (PeerAction::Send { tag: None }, false, Some(_)) => "senddata",
            (PeerAction::Send { tag: None }, true, _) => "inject",
            (PeerAction::Send { tag: Some(_) }, false, None) => "tsend",
            (PeerAction::Send { tag: Some(_) }, false, Some(_)) => "tsenddata",
            (PeerAction::Send { tag: Some(_) }, true, _) => "tinject",
            (PeerAction::Write { .. }, false, None) => "write",
            (PeerAction::Write { .. }, false, Some(_)) => "writedata",
            (PeerAction::Write { .. }, true, None) => "inject_write",
            (PeerAction::Write { .. }, true, Some(_)) => "inject_writedata",
            (PeerAction::Read { .. }, ..) => "read",
        }
    }

    /// Returns the capabilities that it needs, which are also the flags of its completion.
    fn needed_caps(&self) -> u64 {
        match self.what {
            PeerAction::Send { tag: None } => caps::MSG | caps::SEND,
            PeerAction::Send { tag: Some(_) } => caps::TAGGED | caps::SEND,
            PeerAction::Write { .. } => caps::RMA | caps::WRITE,
            PeerAction::Read { .. } => caps::RMA | caps::READ,
        }
    }

    fn buffer_use(&self) -> BufferUse {
        match self.what {
            PeerAction::Send { .. } => BufferUse::Send,
            PeerAction::Write { .. } => BufferUse::WriteFrom,
            PeerAction::Read { .. } => BufferUse::ReadInto,
        }
    }
}

fn rule_error<T>(error: i32, line: impl Into<String>) -> Result<T, BrokenRule> {
    Err(BrokenRule::with_rule(error, line))
}

/// Whether success generates a completion.
fn reports_success(binding: Option<QueueBinding>, flags: u64) -> bool {
    binding.is_some_and(|binding| !binding.is_selective || flags & caps::COMPLETION != 0)
}

impl DomainContents {
    /// Posts an operation.
    ///
    /// # Errors
    /// The rule that it breaks, or [`errno::EAGAIN`] if it cannot be accepted now.
    pub(crate) fn post_operation(&mut self, number: u32, draft: OperationDraft) -> Result<(), BrokenRule> {
        if self.says_again() {
            return Err(BrokenRule::without_rule(errno::EAGAIN));
        }
        let terms = self.enabled_terms(number)?;
        let flags = draft.flags.unwrap_or(terms.tx_flags);
        let len = self.check_operation(&terms, &draft, flags)?;
        let kind = draft.call_name();
        let needs = draft.needed_caps();
        let purpose = draft.buffer_use();
        let mut body = draft.body;
        let uses = match &mut body {
            OperationBody::Lent(ranges) => self.check_buffers(&terms, ranges, &draft.descs, purpose)?,
            OperationBody::Copied(_) => Vec::new(),
        };
        let Some((endpoint, mut world)) = self.endpoint_parts(number) else {
            return Err(BrokenRule::without_rule(errno::EINVAL));
        };
        let peer = world.peer_address(draft.peer)?;
        if endpoint.outstanding_ops() >= terms.tx_depth {
            return Err(BrokenRule::without_rule(errno::EAGAIN));
        }
        let operation = PendingOperation {
            flags: needs,
            what: draft.what,
            data: draft.data,
            body,
            len,
            uses,
            context: draft.context,
            tells: !draft.is_silent && reports_success(terms.tx, flags),
            delivery: flags & caps::DELIVERY_COMPLETE != 0,
            fence: flags & caps::FENCE != 0,
        };
        endpoint.post_operation(peer, operation, &mut world);
        *self.counts.operations.entry(kind).or_default() += 1;
        Ok(())
    }

    fn enabled_terms(&self, number: u32) -> Result<EndpointTerms, BrokenRule> {
        let endpoint = self.endpoints.get(&number).filter(|endpoint| endpoint.is_enabled());
        let not =
            || BrokenRule::with_rule(errno::EOPBADSTATE, "an operation on an endpoint that is not enabled");
        endpoint.map(|endpoint| endpoint.terms).ok_or_else(not)
    }

    /// Checks that the endpoint supports the operation; returns its number of bytes.
    fn check_operation(
        &self,
        terms: &EndpointTerms,
        draft: &OperationDraft,
        flags: u64,
    ) -> Result<usize, BrokenRule> {
        let kind = draft.call_name();
        if draft.needed_caps() & !terms.caps != 0 {
            return rule_error(errno::EOPNOTSUPP, format!("{kind} on an endpoint without that capability"));
        }
        if flags & !FLAGS != 0 {
            return rule_error(
                errno::EBADFLAGS,
                format!("{kind} with unsupported flags {:#x}", flags & !FLAGS),
            );
        }
        if matches!(draft.what, PeerAction::Write { .. }) && draft.data.is_some() && !self.config.writedata {
            return Err(BrokenRule::without_rule(errno::ENOSYS));
        }
        if let Some(data) = draft.data.filter(|data| self.config.cq_data == 4 && data >> 32 != 0) {
            let line = format!("{kind} with data {data:#x}, but completions carry only 4 bytes");
            return rule_error(errno::EINVAL, line);
        }
        let is_inject = draft.is_silent || flags & caps::INJECT != 0;
        match draft.body.len() {
            Some(len) if is_inject && len > self.config.inject => rule_error(
                errno::EMSGSIZE,
                format!("{kind} with {len} injected bytes, more than the inject_size"),
            ),
            Some(len) if len as u64 <= MESSAGE_MAX => Ok(len),
            _ => rule_error(errno::EMSGSIZE, format!("{kind} of more than {MESSAGE_MAX} bytes")),
        }
    }

    /// Checks that buffers may be used in this way; returns the registrations in use. Ranges of device memory are
    /// replaced by the addresses of their bytes.
    fn check_buffers(
        &self,
        terms: &EndpointTerms,
        ranges: &mut [ProgramRange],
        descs: &[usize],
        purpose: BufferUse,
    ) -> Result<Vec<StrictMrId>, BrokenRule> {
        if ranges.len() > RANGES_MAX {
            return rule_error(
                errno::EINVAL,
                format!("an operation with {} ranges, more than {RANGES_MAX}", ranges.len()),
            );
        }
        let mut uses = Vec::with_capacity(ranges.len());
        for (at, range) in ranges.iter_mut().enumerate() {
            let desc = descs.get(at).copied().unwrap_or(0);
            let used = self.memory.check_local(terms.number, *range, desc, purpose)?;
            *range = used.map_or(*range, |id| self.memory.memory_range(id, *range));
            uses.extend(used);
        }
        Ok(uses)
    }

    /// Posts a receive.
    ///
    /// # Errors
    /// The rule that it breaks, or [`errno::EAGAIN`] if it cannot be accepted now.
    pub(crate) fn post_receive(&mut self, number: u32, mut draft: RecvDraft) -> Result<(), BrokenRule> {
        if self.says_again() {
            return Err(BrokenRule::without_rule(errno::EAGAIN));
        }
        let terms = self.enabled_terms(number)?;
        let is_tagged = draft.tag.is_some();
        let needs = caps::RECV | if is_tagged { caps::TAGGED } else { caps::MSG };
        if needs & !terms.caps != 0 {
            return rule_error(errno::EOPNOTSUPP, "a receive on an endpoint without that capability");
        }
        let flags = draft.flags.unwrap_or(terms.rx_flags);
        if flags & !(caps::COMPLETION | caps::MORE) != 0 {
            return rule_error(errno::EBADFLAGS, format!("a receive with unsupported flags {flags:#x}"));
        }
        if memory::total_len(&draft.ranges).is_none() {
            return rule_error(errno::EINVAL, "a receive whose total length overflows");
        }
        let uses = self.check_buffers(&terms, &mut draft.ranges, &draft.descs, BufferUse::Recv)?;
        let Some((endpoint, mut world)) = self.endpoint_parts(number) else {
            return Err(BrokenRule::without_rule(errno::EINVAL));
        };
        let src = match draft.src {
            ADDR_UNSPEC => None,
            _ if terms.caps & caps::DIRECTED_RECV == 0 => None,
            src => Some(world.peer_address(src)?),
        };
        if endpoint.posted_receives(is_tagged) >= terms.rx_depth {
            return Err(BrokenRule::without_rule(errno::EAGAIN));
        }
        let (tag, ignore) = draft.tag.unwrap_or((0, 0));
        let tells = reports_success(terms.rx, flags);
        let context = draft.context;
        let receive = WaitingReceive { context, ranges: draft.ranges, tag, ignore, src, uses, tells };
        endpoint.post_receive(receive, is_tagged, &mut world);
        let kind = if is_tagged { "trecv" } else { "recv" };
        *self.counts.operations.entry(kind).or_default() += 1;
        Ok(())
    }
}
