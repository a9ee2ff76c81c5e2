//! What may be posted: the rules of operations and receives, before an endpoint takes them.

use trunkline_sys::ofi::{ADDR_UNSPEC, Addr, caps, errno};

use crate::matching::Receive;
use crate::memory::{self, Range};
use crate::outgoing::{Body, Operation, What};
use crate::registry::{Broken, MrId, Use};
use crate::state::{Binding, State, Terms};
use crate::wire::MESSAGE_MAX;

/// Ranges of an operation.
pub(crate) const RANGES_MAX: usize = 4;
/// Flags that an operation may have.
const FLAGS: u64 = caps::COMPLETION
    | caps::INJECT
    | caps::INJECT_COMPLETE
    | caps::TRANSMIT_COMPLETE
    | caps::DELIVERY_COMPLETE
    | caps::REMOTE_CQ_DATA
    | caps::MORE
    | caps::FENCE;

/// An operation as a call asks for it.
#[derive(Debug)]
pub(crate) struct Draft {
    pub(crate) what: What,
    pub(crate) body: Body,
    /// A descriptor of each range, or 0.
    pub(crate) descs: Vec<usize>,
    pub(crate) peer: Addr,
    pub(crate) data: Option<u64>,
    pub(crate) context: usize,
    /// Flags of the call; `None` for those of the endpoint.
    pub(crate) flags: Option<u64>,
    /// Whether success is never told.
    pub(crate) is_silent: bool,
}

/// A receive as a call asks for it.
#[derive(Debug)]
pub(crate) struct RecvDraft {
    pub(crate) ranges: Vec<Range>,
    pub(crate) descs: Vec<usize>,
    pub(crate) src: Addr,
    /// Tag and the bits of it that do not count.
    pub(crate) tag: Option<(u64, u64)>,
    pub(crate) context: usize,
    pub(crate) flags: Option<u64>,
}

impl Draft {
    fn kind(&self) -> &'static str {
        match (self.what, self.is_silent, self.data) {
            (What::Send { tag: None }, false, None) => "send",
            (What::Send { tag: None }, false, Some(_)) => "senddata",
            (What::Send { tag: None }, true, _) => "inject",
            (What::Send { tag: Some(_) }, false, None) => "tsend",
            (What::Send { tag: Some(_) }, false, Some(_)) => "tsenddata",
            (What::Send { tag: Some(_) }, true, _) => "tinject",
            (What::Write { .. }, false, None) => "write",
            (What::Write { .. }, false, Some(_)) => "writedata",
            (What::Write { .. }, true, None) => "inject_write",
            (What::Write { .. }, true, Some(_)) => "inject_writedata",
            (What::Read { .. }, ..) => "read",
        }
    }

    /// Capabilities that it needs, and the flags of its completion.
    fn needs(&self) -> u64 {
        match self.what {
            What::Send { tag: None } => caps::MSG | caps::SEND,
            What::Send { tag: Some(_) } => caps::TAGGED | caps::SEND,
            What::Write { .. } => caps::RMA | caps::WRITE,
            What::Read { .. } => caps::RMA | caps::READ,
        }
    }

    fn purpose(&self) -> Use {
        match self.what {
            What::Send { .. } => Use::Send,
            What::Write { .. } => Use::WriteFrom,
            What::Read { .. } => Use::ReadInto,
        }
    }
}

fn wrong<T>(error: i32, line: impl Into<String>) -> Result<T, Broken> {
    Err(Broken::rule(error, line))
}

/// Whether success is told.
fn tells(binding: Option<Binding>, flags: u64) -> bool {
    binding.is_some_and(|binding| !binding.is_selective || flags & caps::COMPLETION != 0)
}

impl State {
    /// Posts an operation.
    ///
    /// # Errors
    /// The rule that it breaks, or [`errno::EAGAIN`].
    pub(crate) fn post(&mut self, number: u32, draft: Draft) -> Result<(), Broken> {
        if self.says_again() {
            return Err(Broken::plain(errno::EAGAIN));
        }
        let terms = self.enabled(number)?;
        let flags = draft.flags.unwrap_or(terms.tx_flags);
        let len = self.shape(&terms, &draft, flags)?;
        let kind = draft.kind();
        let needs = draft.needs();
        let purpose = draft.purpose();
        let mut body = draft.body;
        let uses = match &mut body {
            Body::Lent(ranges) => self.buffers(&terms, ranges, &draft.descs, purpose)?,
            Body::Copied(_) => Vec::new(),
        };
        let Some((endpoint, mut world)) = self.parts(number) else {
            return Err(Broken::plain(errno::EINVAL));
        };
        let peer = world.address(draft.peer)?;
        if endpoint.outstanding() >= terms.tx_depth {
            return Err(Broken::plain(errno::EAGAIN));
        }
        let operation = Operation {
            flags: needs,
            what: draft.what,
            data: draft.data,
            body,
            len,
            uses,
            context: draft.context,
            tells: !draft.is_silent && tells(terms.tx, flags),
            delivery: flags & caps::DELIVERY_COMPLETE != 0,
            fence: flags & caps::FENCE != 0,
        };
        endpoint.post(peer, operation, &mut world);
        *self.counts.operations.entry(kind).or_default() += 1;
        Ok(())
    }

    fn enabled(&self, number: u32) -> Result<Terms, Broken> {
        let endpoint = self.endpoints.get(&number).filter(|endpoint| endpoint.is_enabled());
        let not = || Broken::rule(errno::EOPBADSTATE, "an operation on an endpoint that is not enabled");
        endpoint.map(|endpoint| endpoint.terms).ok_or_else(not)
    }

    /// Whether the endpoint has such operations; the bytes of this one.
    fn shape(&self, terms: &Terms, draft: &Draft, flags: u64) -> Result<usize, Broken> {
        let kind = draft.kind();
        if draft.needs() & !terms.caps != 0 {
            return wrong(errno::EOPNOTSUPP, format!("{kind} on an endpoint without that capability"));
        }
        if flags & !FLAGS != 0 {
            return wrong(errno::EBADFLAGS, format!("{kind} with flags {:#x}", flags & !FLAGS));
        }
        if matches!(draft.what, What::Write { .. }) && draft.data.is_some() && !self.config.writedata {
            return Err(Broken::plain(errno::ENOSYS));
        }
        if let Some(data) = draft.data.filter(|data| self.config.cq_data == 4 && data >> 32 != 0) {
            let line = format!("{kind} with data {data:#x}, of which a completion has 4 bytes");
            return wrong(errno::EINVAL, line);
        }
        let is_inject = draft.is_silent || flags & caps::INJECT != 0;
        match draft.body.len() {
            Some(len) if is_inject && len > self.config.inject => {
                wrong(errno::EMSGSIZE, format!("{kind} of {len} bytes, injected"))
            }
            Some(len) if len as u64 <= MESSAGE_MAX => Ok(len),
            _ => wrong(errno::EMSGSIZE, format!("{kind} of too many bytes")),
        }
    }

    /// Whether buffers may be used so; the registrations that are. Ranges are then where the bytes are.
    fn buffers(
        &self,
        terms: &Terms,
        ranges: &mut [Range],
        descs: &[usize],
        purpose: Use,
    ) -> Result<Vec<MrId>, Broken> {
        if ranges.len() > RANGES_MAX {
            return wrong(errno::EINVAL, format!("an operation of {} ranges", ranges.len()));
        }
        let mut uses = Vec::with_capacity(ranges.len());
        for (at, range) in ranges.iter_mut().enumerate() {
            let desc = descs.get(at).copied().unwrap_or(0);
            let used = self.memory.local(terms.number, *range, desc, purpose)?;
            *range = used.map_or(*range, |id| self.memory.place(id, *range));
            uses.extend(used);
        }
        Ok(uses)
    }

    /// Posts a receive.
    ///
    /// # Errors
    /// The rule that it breaks, or [`errno::EAGAIN`].
    pub(crate) fn receive(&mut self, number: u32, mut draft: RecvDraft) -> Result<(), Broken> {
        if self.says_again() {
            return Err(Broken::plain(errno::EAGAIN));
        }
        let terms = self.enabled(number)?;
        let is_tagged = draft.tag.is_some();
        let needs = caps::RECV | if is_tagged { caps::TAGGED } else { caps::MSG };
        if needs & !terms.caps != 0 {
            return wrong(errno::EOPNOTSUPP, "a receive on an endpoint without that capability");
        }
        let flags = draft.flags.unwrap_or(terms.rx_flags);
        if flags & !(caps::COMPLETION | caps::MORE) != 0 {
            return wrong(errno::EBADFLAGS, format!("a receive with flags {flags:#x}"));
        }
        if memory::total(&draft.ranges).is_none() {
            return wrong(errno::EINVAL, "a receive of too many bytes");
        }
        let uses = self.buffers(&terms, &mut draft.ranges, &draft.descs, Use::Recv)?;
        let Some((endpoint, mut world)) = self.parts(number) else {
            return Err(Broken::plain(errno::EINVAL));
        };
        let src = match draft.src {
            ADDR_UNSPEC => None,
            _ if terms.caps & caps::DIRECTED_RECV == 0 => None,
            src => Some(world.address(src)?),
        };
        if endpoint.posted(is_tagged) >= terms.rx_depth {
            return Err(Broken::plain(errno::EAGAIN));
        }
        let (tag, ignore) = draft.tag.unwrap_or((0, 0));
        let tells = tells(terms.rx, flags);
        let context = draft.context;
        let receive = Receive { context, ranges: draft.ranges, tag, ignore, src, uses, tells };
        endpoint.receive(receive, is_tagged, &mut world);
        let kind = if is_tagged { "trecv" } else { "recv" };
        *self.counts.operations.entry(kind).or_default() += 1;
        Ok(())
    }
}
