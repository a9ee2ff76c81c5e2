//! The completion queue of a rail: read in batches, with failures separate from successes. One thread at a time reads it.

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

/// The maximum number of completions per read.
pub(crate) const BATCH: usize = 32;
/// Length of the longest entry, in words.
const WORDS: usize = size_of::<CqTaggedEntry>() / size_of::<u64>();
/// Flags of a peer's operations, whose CQ data is the peer's.
const INBOUND: u64 = caps::REMOTE_WRITE | caps::RECV;
/// Words that later versions may write behind an error entry.
const BEHIND: usize = 8;

/// The content of a completion in addition to context, flags and length.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum CompletionFormat {
    /// Remote CQ data.
    Data,
    /// Remote CQ data, and the tag of a tagged receive.
    Tagged,
}

/// Requirements of a queue.
#[derive(Clone, Copy, Debug)]
pub struct QueueWants {
    /// Minimum number of entries.
    pub entries: usize,
    /// The content of completions.
    pub format: CompletionFormat,
    /// Whether completions report the sender; for providers that grant [`ProviderGrant::source`](crate::typed::ProviderGrant::source).
    pub sources: bool,
    /// Whether the queue has a descriptor to wait on.
    pub wait: bool,
    /// Maximum number of operations in flight on all endpoints of the queue, each with an [`OpSlot`].
    pub slots: u32,
}

/// The result of a read.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum QueueRead {
    /// That many completions, available from [`OfiQueue::batch_entry`] until the next read.
    Entries(usize),
    /// None.
    Nothing,
    /// An operation failed: no other entry is available before [`OfiQueue::read_error`] has returned the failure.
    ErrorWaits,
    /// The queue is unusable.
    Broken(OfiErrno),
}

/// A successful operation, or an operation of a peer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct CompletionEntry {
    /// The operation's slot; `None` for operations of a peer.
    pub slot: Option<OpSlot>,
    /// The completed operation: bits of libfabric's `FI_SEND`, `FI_RECV`, `FI_REMOTE_WRITE` and others.
    pub flags: u64,
    /// Length of received data, in bytes.
    pub len: usize,
    /// Remote CQ data, if a peer sent some. Some providers also set the flag for local operations.
    pub data: Option<u64>,
    /// Tag of a tagged receive.
    pub tag: u64,
    /// The sender, by number of the [`EndpointPeer`](crate::typed::EndpointPeer), if it is reported and known.
    pub source: Option<u64>,
}

/// A failed operation.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct FailedOperation {
    /// The operation's slot; `None` for operations of a peer and injected ones.
    pub slot: Option<OpSlot>,
    /// The failed operation, as in [`CompletionEntry`].
    pub flags: u64,
    /// The error.
    pub errno: OfiErrno,
    /// The error in the provider's own numbering.
    pub provider: i32,
    /// Bytes received.
    pub len: usize,
    /// Bytes beyond the receive's length.
    pub beyond: usize,
    /// Tag of a tagged receive.
    pub tag: u64,
}

/// An open queue, as held by its users.
pub(crate) struct HeldQueue {
    // In the order of closing: contexts must outlive the queue, which writes to them.
    pub(crate) fid: OwnedFid<FidCq>,
    pub(crate) contexts: OpContexts,
    pub(crate) domain: Arc<OfiDomain>,
}

/// A completion queue. It is not `Send`: an owner of the queue and its endpoints that lets only one thread at a time use them may declare the
/// whole as `Send`.
pub struct OfiQueue {
    held: Arc<HeldQueue>,
    batch: Box<[u64; WORDS * BATCH]>,
    froms: Box<[Addr; BATCH]>,
    taken: usize,
    format: CompletionFormat,
    sources: bool,
    one_thread: PhantomData<*mut ()>,
}

/// An error entry with room for fields of later versions.
#[repr(C)]
struct PaddedErrEntry {
    entry: CqErrEntry,
    behind: [u64; BEHIND],
}

impl OfiQueue {
    /// Opens a queue.
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
            // FI_WAIT_NONE where nothing waits, so that the provider need not signal entries (fi_cq(3)).
            wait_obj: if wants.wait { wait::FD } else { wait::NONE },
            ..CqAttr::ZERO
        };
        let raw = domain.domain_fid().as_raw();
        // SAFETY: the domain is open.
        let ops = unsafe { (*raw).ops };
        // SAFETY: the table belongs to an open domain.
        let open =
            unsafe { (*ops).cq_open }.ok_or(OfiErrno::NO_SYS).map_err(OfiOpenStep::Queue.to_error())?;
        let fid = OwnedFid::open_with(domain.domain_fid().domain_shared(), |to| {
            // SAFETY: the domain is open, and the attributes are complete.
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

    /// Returns the same queue for another reader, which may outlive this one.
    pub(crate) fn handed_on(&self) -> Self {
        Self::from_held(Arc::clone(&self.held), self.format, self.sources)
    }

    pub(crate) fn held_queue(&self) -> &Arc<HeldQueue> {
        &self.held
    }

    /// Returns the queue's domain.
    #[must_use]
    pub fn domain(&self) -> &Arc<OfiDomain> {
        &self.held.domain
    }

    #[inline]
    fn cq_ops(&self) -> &OpsCq {
        // SAFETY: the queue is open.
        let ops = unsafe { (*self.held.fid.as_raw()).ops };
        // SAFETY: the table belongs to an open queue, and stays valid while the queue is open.
        unsafe { &*ops }
    }

    /// Reads the next batch and discards the one before.
    #[inline]
    pub fn read_batch(&mut self) -> QueueRead {
        let raw = self.held.fid.as_raw();
        let batch = self.batch.as_mut_ptr().cast::<c_void>();
        let froms = self.froms.as_mut_ptr();
        let ops = self.cq_ops();
        let count = {
            let _inside = self.held.fid.domain_shared().guard.lock_post();
            match (self.sources, ops.read, ops.readfrom) {
                // SAFETY: the queue is open; batch and sources have room for `BATCH` entries.
                (true, _, Some(read)) => unsafe { read(raw, batch, BATCH, froms) },
                // SAFETY: the queue is open; the batch has room for `BATCH` entries.
                (false, Some(read), _) => unsafe { read(raw, batch, BATCH) },
                _ => return QueueRead::Broken(OfiErrno::NO_SYS),
            }
        };
        // Reset before the result is examined, so that a failed read leaves no entries of the batch before.
        self.taken = 0;
        match OfiErrno::check_count(count) {
            Ok(0) | Err(OfiErrno::AGAIN) => QueueRead::Nothing,
            Ok(count) => {
                // A faulty count of a provider must not lead to reads beyond the batch.
                self.taken = count.min(BATCH);
                QueueRead::Entries(self.taken)
            }
            // An error entry at the head blocks later entries until fi_cq_readerr reads it (fi_cq(3)).
            Err(OfiErrno::AVAILABLE) => QueueRead::ErrorWaits,
            Err(errno) => QueueRead::Broken(errno),
        }
    }

    /// Returns a completion of the last batch.
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
        // SAFETY: `taken` entries of this size were written into the batch; the shorter format is a prefix of the longer one.
        let it = unsafe { &*start.cast::<CqDataEntry>() };
        let tag =
            if self.format == CompletionFormat::Tagged { self.batch[index * words + WORDS - 1] } else { 0 };
        let from = if self.sources { self.froms[index] } else { ADDR_NOTAVAIL };
        Some(CompletionEntry {
            slot: self.held.contexts.slot_at(it.op_context),
            flags: it.flags,
            len: it.len,
            // Only for inbound operations, because some providers report the flag for local operations as well.
            data: (it.flags & INBOUND != 0 && it.flags & caps::REMOTE_CQ_DATA != 0).then_some(it.data),
            tag,
            source: (from != ADDR_NOTAVAIL).then_some(from),
        })
    }

    /// Returns the failure announced by [`QueueRead::ErrorWaits`]; `None` if there is none.
    pub fn read_error(&mut self) -> Option<FailedOperation> {
        let read = self.cq_ops().readerr?;
        let mut place = PaddedErrEntry { entry: CqErrEntry::ZERO, behind: [0; BEHIND] };
        let count = {
            let _inside = self.held.fid.domain_shared().guard.lock_post();
            // SAFETY: the queue is open; the entry has room for the fields of this and later versions.
            unsafe { read(self.held.fid.as_raw(), (&raw mut place).cast(), 0) }
        };
        let it = place.entry;
        // Another count means that the provider has not filled the entry (fi_cq(3)).
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

    /// Returns the provider's text for its own error number.
    #[must_use]
    pub fn explain_failure(&self, failure: &FailedOperation) -> String {
        // Optional in the table of a provider, so the general text is the fallback.
        let Some(explain) = self.cq_ops().strerror else { return failure.errno.to_string() };
        let mut room = [0; 256];
        let raw = self.held.fid.as_raw();
        let none = std::ptr::null();
        // SAFETY: the queue is open, and `room` has the length passed.
        let text = unsafe { explain(raw, failure.provider, none, room.as_mut_ptr(), room.len()) };
        if text.is_null() {
            return failure.errno.to_string();
        }
        // SAFETY: the text ends with zero; it is in `room` or belongs to the provider.
        unsafe { std::ffi::CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }

    /// Returns the descriptor to wait on, for a queue that was opened with one.
    ///
    /// # Errors
    /// The provider's error.
    pub fn wait_descriptor(&self) -> Result<RawFd, OfiErrno> {
        let mut descriptor: RawFd = -1;
        // SAFETY: the command writes a descriptor to a local variable.
        unsafe { self.held.fid.control(control::GETWAIT, (&raw mut descriptor).cast()) }?;
        Ok(descriptor)
    }

    /// Returns whether a thread that blocks on the descriptor now is woken by the next entry; otherwise the queue must be read first (`fi_trywait`,
    /// fi_poll(3)).
    #[must_use]
    pub fn may_sleep(&self) -> bool {
        let fabric = self.held.domain.fabric_fid().as_raw();
        // SAFETY: the fabric is open.
        let ops = unsafe { (*fabric).ops };
        // SAFETY: the table belongs to an open fabric.
        let Some(trywait) = (unsafe { (*ops).trywait }) else { return false };
        let mut fid = self.held.fid.as_fid();
        let _inside = self.held.fid.domain_shared().guard.lock_post();
        // SAFETY: fabric and queue are open, and one object is passed.
        unsafe { trywait(fabric, &raw mut fid, 1) == 0 }
    }
}
