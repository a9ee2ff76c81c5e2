//! The completion queue of a rail: read in batches, with what failed apart from what went well. One thread at a time reads it.

use std::ffi::c_void;
use std::marker::PhantomData;
use std::os::fd::RawFd;
use std::sync::Arc;

use trunkline_sys::ofi::{
    ADDR_NOTAVAIL, Addr, CqAttr, CqDataEntry, CqErrEntry, CqTaggedEntry, FidCq, OpsCq, caps, control,
    cq_format, wait,
};

use crate::contexts::{OpContexts, OpSlot};
use crate::domain::OfiDomain;
use crate::endpoint::{OfiOpenError, OfiOpenStep};
use crate::errno::OfiErrno;
use crate::fid::OwnedFid;

/// Completions that one read takes at most.
pub(crate) const BATCH: usize = 32;
/// Words of the longest entry.
const WORDS: usize = size_of::<CqTaggedEntry>() / size_of::<u64>();
/// Flags of what a peer did, whose data is the peer's.
const INBOUND: u64 = caps::REMOTE_WRITE | caps::RECV;
/// Words that later versions may write behind an error entry.
const BEHIND: usize = 8;

/// What a completion tells beside its place, flags and bytes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum CompletionFormat {
    /// Remote CQ data.
    Data,
    /// Remote CQ data, and the tag of a tagged receive.
    Tagged,
}

/// What kind of queue is wanted.
#[derive(Clone, Copy, Debug)]
pub struct QueueWants {
    /// Room for so many completions.
    pub entries: usize,
    /// What they tell.
    pub format: CompletionFormat,
    /// Whether they tell who sent; for providers that grant [`ProviderGrant::source`](crate::typed::ProviderGrant::source).
    pub sources: bool,
    /// Whether there is to be a descriptor to wait on.
    pub wait: bool,
    /// Operations that are out at once on all endpoints of the queue, each with a [`OpSlot`].
    pub slots: u32,
}

/// What a read brought.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum QueueRead {
    /// So many completions, to be had from [`OfiQueue::batch_entry`] until the next read.
    Entries(usize),
    /// None.
    Nothing,
    /// An operation failed: nothing else comes before [`OfiQueue::read_error`] has told which.
    ErrorWaits,
    /// The queue itself is of no use any more.
    Broken(OfiErrno),
}

/// An operation that went well, or what a peer did.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct CompletionEntry {
    /// The operation's; none of what a peer did.
    pub slot: Option<OpSlot>,
    /// What completed: bits of libfabric's `FI_SEND`, `FI_RECV`, `FI_REMOTE_WRITE` and their like.
    pub flags: u64,
    /// Bytes, of what came in.
    pub len: usize,
    /// Remote CQ data, if it is a peer's that gave any. Some providers say that there was some of an operation of our own.
    pub data: Option<u64>,
    /// Of a tagged receive.
    pub tag: u64,
    /// Who sent, as the endpoint's [`Peer`](crate::typed::EndpointPeer) is numbered, where that is told and the sender is known.
    pub source: Option<u64>,
}

/// An operation that failed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct FailedOperation {
    /// The operation's; none of what a peer did, or of what was injected.
    pub slot: Option<OpSlot>,
    /// What failed, as in [`CompletionEntry`].
    pub flags: u64,
    /// Why.
    pub errno: OfiErrno,
    /// The same in the provider's own numbers.
    pub provider: i32,
    /// Bytes that came in.
    pub len: usize,
    /// Bytes that found no room.
    pub beyond: usize,
    /// Of a tagged receive.
    pub tag: u64,
}

/// An open queue, as what uses it holds it.
pub(crate) struct HeldQueue {
    // The order of fields is the order in which they end.
    pub(crate) fid: OwnedFid<FidCq>,
    pub(crate) contexts: OpContexts,
    pub(crate) domain: Arc<OfiDomain>,
}

/// A completion queue. It is not `Send`: whoever owns it with its endpoints, and lets one thread at a time use them all, may
/// say that the whole is.
pub struct OfiQueue {
    held: Arc<HeldQueue>,
    batch: Box<[u64; WORDS * BATCH]>,
    froms: Box<[Addr; BATCH]>,
    taken: usize,
    format: CompletionFormat,
    sources: bool,
    one_thread: PhantomData<*mut ()>,
}

/// An error entry with room for what later versions put behind it.
#[repr(C)]
struct PaddedErrEntry {
    entry: CqErrEntry,
    behind: [u64; BEHIND],
}

impl OfiQueue {
    /// Opens one.
    ///
    /// # Errors
    /// [`OfiOpenStep::Tables`] without memory; [`OfiOpenStep::Queue`], with the provider's error.
    pub fn open(domain: &Arc<OfiDomain>, wants: &QueueWants) -> Result<Self, OfiOpenError> {
        let contexts =
            OpContexts::new(wants.slots).map_err(|_| OfiOpenStep::Tables.to_error()(OfiErrno::NO_MEMORY))?;
        let mut attr = CqAttr {
            size: wants.entries,
            format: if wants.format == CompletionFormat::Tagged {
                cq_format::TAGGED
            } else {
                cq_format::DATA
            },
            wait_obj: if wants.wait { wait::FD } else { wait::NONE },
            ..CqAttr::ZERO
        };
        let raw = domain.domain_fid().as_raw();
        // SAFETY: the domain is open.
        let ops = unsafe { (*raw).ops };
        // SAFETY: the table of an open domain.
        let open =
            unsafe { (*ops).cq_open }.ok_or(OfiErrno::NO_SYS).map_err(OfiOpenStep::Queue.to_error())?;
        let fid = OwnedFid::open_with(domain.domain_fid().domain_shared(), |to| {
            // SAFETY: the domain is open, and the attributes are whole.
            unsafe { open(raw, &raw mut attr, to, std::ptr::null_mut()) }
        });
        let fid = fid.map_err(OfiOpenStep::Queue.to_error())?;
        let held = Arc::new(HeldQueue { fid, contexts, domain: Arc::clone(domain) });
        Ok(Self::from_held(held, wants.format, wants.sources))
    }

    fn from_held(held: Arc<HeldQueue>, format: CompletionFormat, sources: bool) -> Self {
        Self {
            held,
            batch: Box::new([0; WORDS * BATCH]),
            froms: Box::new([ADDR_NOTAVAIL; BATCH]),
            taken: 0,
            format,
            sources,
            one_thread: PhantomData,
        }
    }

    /// The same queue for another reader, which goes on when this one ends.
    pub(crate) fn handed_on(&self) -> Self {
        Self::from_held(Arc::clone(&self.held), self.format, self.sources)
    }

    pub(crate) fn held_queue(&self) -> &Arc<HeldQueue> {
        &self.held
    }

    /// The domain it is on.
    #[must_use]
    pub fn domain(&self) -> &Arc<OfiDomain> {
        &self.held.domain
    }

    #[inline]
    fn cq_ops(&self) -> &OpsCq {
        // SAFETY: the queue is open.
        let ops = unsafe { (*self.held.fid.as_raw()).ops };
        // SAFETY: the table of an open queue, which stays as long as it does.
        unsafe { &*ops }
    }

    /// Takes the next batch. What the one before brought is forgotten.
    #[inline]
    pub fn read_batch(&mut self) -> QueueRead {
        let raw = self.held.fid.as_raw();
        let batch = self.batch.as_mut_ptr().cast::<c_void>();
        let froms = self.froms.as_mut_ptr();
        let ops = self.cq_ops();
        let count = {
            let _inside = self.held.fid.domain_shared().guard.lock_post();
            match (self.sources, ops.read, ops.readfrom) {
                // SAFETY: the queue is open; the batch and the sources have room for so many.
                (true, _, Some(read)) => unsafe { read(raw, batch, BATCH, froms) },
                // SAFETY: as above.
                (false, Some(read), _) => unsafe { read(raw, batch, BATCH) },
                _ => return QueueRead::Broken(OfiErrno::NO_SYS),
            }
        };
        self.taken = 0;
        match OfiErrno::check_count(count) {
            Ok(0) | Err(OfiErrno::AGAIN) => QueueRead::Nothing,
            Ok(count) => {
                self.taken = count.min(BATCH);
                QueueRead::Entries(self.taken)
            }
            Err(OfiErrno::AVAILABLE) => QueueRead::ErrorWaits,
            Err(errno) => QueueRead::Broken(errno),
        }
    }

    /// A completion of the last batch.
    #[inline]
    #[must_use]
    pub fn batch_entry(&self, index: usize) -> Option<CompletionEntry> {
        if index >= self.taken {
            return None;
        }
        let words = match self.format {
            CompletionFormat::Data => size_of::<CqDataEntry>() / size_of::<u64>(),
            CompletionFormat::Tagged => WORDS,
        };
        let start = self.batch.as_ptr().wrapping_add(index * words);
        // SAFETY: so many entries of this size were written into the batch; the shorter one is the longer one's beginning.
        let it = unsafe { &*start.cast::<CqDataEntry>() };
        let tag =
            if self.format == CompletionFormat::Tagged { self.batch[index * words + WORDS - 1] } else { 0 };
        let from = if self.sources { self.froms[index] } else { ADDR_NOTAVAIL };
        Some(CompletionEntry {
            slot: self.held.contexts.slot_at(it.op_context),
            flags: it.flags,
            len: it.len,
            data: (it.flags & INBOUND != 0 && it.flags & caps::REMOTE_CQ_DATA != 0).then_some(it.data),
            tag,
            source: (from != ADDR_NOTAVAIL).then_some(from),
        })
    }

    /// The failure that [`QueueRead::ErrorWaits`] is about; none if there is none after all.
    pub fn read_error(&mut self) -> Option<FailedOperation> {
        let read = self.cq_ops().readerr?;
        let mut place = PaddedErrEntry { entry: CqErrEntry::ZERO, behind: [0; BEHIND] };
        let count = {
            let _inside = self.held.fid.domain_shared().guard.lock_post();
            // SAFETY: the queue is open; the entry has room for what this and later versions write.
            unsafe { read(self.held.fid.as_raw(), (&raw mut place).cast(), 0) }
        };
        let it = place.entry;
        (count == 1).then(|| FailedOperation {
            slot: self.held.contexts.slot_at(it.op_context),
            flags: it.flags,
            errno: OfiErrno::new(it.err),
            provider: it.prov_errno,
            len: it.len,
            beyond: it.olen,
            tag: it.tag,
        })
    }

    /// What the provider says of its own number of an error.
    #[must_use]
    pub fn explain_failure(&self, failure: &FailedOperation) -> String {
        let Some(explain) = self.cq_ops().strerror else { return failure.errno.to_string() };
        let mut room = [0; 256];
        let raw = self.held.fid.as_raw();
        let none = std::ptr::null();
        // SAFETY: the queue is open, and the room has as many bytes as is said.
        let text = unsafe { explain(raw, failure.provider, none, room.as_mut_ptr(), room.len()) };
        if text.is_null() {
            return failure.errno.to_string();
        }
        // SAFETY: a text that ends with zero, in the room or of the provider's.
        unsafe { std::ffi::CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }

    /// The descriptor to wait on, of a queue that was opened with one.
    ///
    /// # Errors
    /// What the provider said.
    pub fn wait_descriptor(&self) -> Result<RawFd, OfiErrno> {
        let mut descriptor: RawFd = -1;
        // SAFETY: the command stores a descriptor.
        unsafe { self.held.fid.control(control::GETWAIT, (&raw mut descriptor).cast()) }?;
        Ok(descriptor)
    }

    /// Whether who waits for the descriptor now is woken by what comes; otherwise the queue is to be read first.
    #[must_use]
    pub fn may_sleep(&self) -> bool {
        let fabric = self.held.domain.fabric_fid().as_raw();
        // SAFETY: the fabric is open.
        let ops = unsafe { (*fabric).ops };
        // SAFETY: the table of an open fabric.
        let Some(trywait) = (unsafe { (*ops).trywait }) else { return false };
        let mut fid = self.held.fid.as_fid();
        let _inside = self.held.fid.domain_shared().guard.lock_post();
        // SAFETY: fabric and queue are open, and there is one of them.
        unsafe { trywait(fabric, &raw mut fid, 1) == 0 }
    }
}
