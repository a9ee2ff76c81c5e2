//! Contexts that report how each of their operations ended, by a number that their owner chose, for callers that have to answer
//! for each operation separately; a quiet covers all of them together. Used by the executor of device queues.

use trunkline_fabric::{Fabric, Host, OpStatus};
use trunkline_proto::reserve::{OutOfMemory, try_filled, try_vec};
use trunkline_proto::rma::atomic::TypedAtomic;
use trunkline_proto::slots::SlotId;
use trunkline_proto::wire::dial::DialMessage as Say;
use trunkline_proto::wire::rma::word::{SymmetricWord, WordWidth};

use crate::rma::context::{ContextId, HeapRange, PutSource};
use crate::rma::context_slot::live_context;
use crate::rma::error::RmaError;
use crate::rma::job::{MemberRank, RmaJob};
use crate::rma::operations::OPS;

/// How an operation ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct OpOutcome {
    /// The number that its owner gave it.
    pub cookie: u64,
    /// The old value of a fetching atomic; else 0. Or the network's status of the failure.
    pub how: Result<u64, OpStatus>,
}

/// The operations that may be begun on such a context.
#[derive(Clone, Copy, Debug)]
pub enum RmaRequest<'a> {
    /// The first of these bytes into a heap of a member.
    Put {
        /// Which heap.
        heap: u8,
        /// Where in it.
        offset: u64,
        /// The bytes. Those of a heap must not change before the outcome is reported.
        from: PutSource<'a>,
    },
    /// The first bytes of a heap of a member that have room.
    Get {
        /// Which heap.
        heap: u8,
        /// Where in it.
        offset: u64,
        /// Where to.
        into: HeapRange,
    },
    /// An atomic.
    Atomic {
        /// The word.
        word: SymmetricWord,
        /// The operation on the word.
        atomic: TypedAtomic,
    },
}

/// The unreported outcomes of a context.
#[derive(Debug)]
pub(super) struct OutcomeLog {
    /// The cookies of pending operations, by their ledger slot.
    by_slot: Box<[u64]>,
    /// The cookie of operations that begin now.
    begins: u64,
    ended: Vec<OpOutcome>,
}

impl OutcomeLog {
    /// Creates a log with room for all pending operations.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub(super) fn new() -> Result<Self, OutOfMemory> {
        let ended = try_vec(OPS as usize)?;
        Ok(Self { by_slot: try_filled(0, OPS as usize)?, begins: 0, ended })
    }

    /// Sets the number under which the next operations are recorded.
    #[inline]
    pub(super) fn set_cookie(&mut self, cookie: u64) {
        self.begins = cookie;
    }

    /// Moves the recorded ends into `into`. Whether there were any.
    pub(super) fn take_outcomes(&mut self, into: &mut Vec<OpOutcome>) -> bool {
        let has_ended = !self.ended.is_empty();
        into.append(&mut self.ended);
        has_ended
    }

    /// Records that an operation has begun.
    #[inline]
    pub(super) fn record_begun(&mut self, id: SlotId) {
        if let Some(number) = self.by_slot.get_mut(id.slot as usize) {
            *number = self.begins;
        }
    }

    /// Records how an operation has ended.
    #[inline]
    pub(super) fn record_outcome(&mut self, id: SlotId, how: Result<u64, OpStatus>) {
        if let Some(&cookie) = self.by_slot.get(id.slot as usize) {
            self.ended.push(OpOutcome { cookie, how });
        }
    }
}

impl<F: Fabric, H: Host> RmaJob<F, H> {
    /// Creates a context that reports how each operation ended. Only [`RmaJob::begin_op`] begins operations on it.
    ///
    /// # Errors
    /// As [`RmaJob::create_context`].
    pub fn create_reporting_context(&self) -> Result<ContextId, RmaError> {
        let telling = OutcomeLog::new()?;
        let id = self.create_context()?;
        if let Some(context) = self.context_slot(id)?.lock_context().as_mut() {
            context.operations.set_outcome_log(telling);
        }
        Ok(id)
    }

    /// Begins an operation towards a member, whose outcome is reported under `cookie`. Returns the number of bytes that it
    /// covers, 8 for an atomic; the caller begins the rest by further calls. `None`: not now; nothing has begun.
    ///
    /// # Errors
    /// As [`RmaJob::put`].
    pub fn begin_op(
        &self,
        id: ContextId,
        cookie: u64,
        member: MemberRank,
        what: RmaRequest<'_>,
    ) -> Result<Option<u64>, RmaError> {
        let Some(mut slot) = self.context_slot(id)?.try_lock_context() else { return Ok(None) };
        let context = live_context(&mut slot, id)?;
        if !self.ensure_links(context, member)? {
            drop(slot);
            // The answer to a dial arrives on a control stream.
            self.poll_control_streams();
            return Ok(None);
        }
        context.operations.set_cookie(cookie);
        match what {
            RmaRequest::Put { heap, offset, from } => context.put(member, heap, offset, from),
            RmaRequest::Get { heap, offset, into } => context.get(member, heap, offset, into),
            RmaRequest::Atomic { word, atomic } => {
                Ok(context.post_atomic(member, word, atomic)?.map(|_told| WordWidth::Eight.byte_len()))
            }
        }
    }

    /// Makes progress on everything, and collects outcomes. Returns whether anything moved.
    ///
    /// # Errors
    /// [`RmaError::Unknown`].
    pub fn collect_outcomes(&self, id: ContextId, into: &mut Vec<OpOutcome>) -> Result<bool, RmaError> {
        let mut moved = self.progress_service();
        let place = self.context_slot(id)?;
        let Some(mut slot) = place.try_lock_context() else { return Ok(moved) };
        let context = live_context(&mut slot, id)?;
        moved |= self.progress_context(place, context);
        // Owners of such contexts call no quiet, so no other call posts the proofs of arrival.
        if !context.operations.is_idle() {
            for peer in context.peers.iter_mut().filter(|peer| peer.lost.is_none()) {
                peer.post_proofs(&mut context.rails);
            }
        }
        moved |= context.operations.take_outcomes(into);
        Ok(moved)
    }

    /// Sends SPOIL to a member on the control stream: the operation that was to change a word of its heap has failed. The word at
    /// `offset` becomes `value` if it is 0. Used when no link to the member is left. Returns whether the message was sent; its
    /// arrival is not known.
    ///
    /// # Errors
    /// [`RmaError::Argument`]: no member has this rank. [`RmaError::Lost`]: the member has ended.
    pub fn send_error_word(
        &self,
        member: MemberRank,
        heap: u8,
        offset: u64,
        value: u64,
    ) -> Result<bool, RmaError> {
        let card = self.card_of(member)?;
        let mut desk = self.desk.lock();
        let dead = crate::rma::LossCause::Dead(card.process);
        let control = desk.streams.stream_to(&self.host, card.process, &card.address);
        let Some(control) = control.map_err(|_| RmaError::Lost { member, lost: dead })? else {
            return Ok(false);
        };
        let proof = self.proof_for(member)?;
        let word = Say::Spoil { proof, heap, offset, value };
        desk.streams.send_message(control, &word, None);
        Ok(true)
    }
}
