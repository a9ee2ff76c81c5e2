//! The operations of one context, from their post to their end. The context begins each operation here before it posts it, and ends it
//! here when a completion or a reply arrives, or when its member is lost. Nothing here posts or sends anything.

use trunkline_fabric::OpStatus;
use trunkline_proto::reserve::OutOfMemory;
use trunkline_proto::rma::incoming::PathDeliveryReport;
use trunkline_proto::rma::ledger::{
    LedgerFull, LedgerOp, OperationLedger, QuietFailure, QuietProgress, UnknownCompletion,
};
use trunkline_proto::rma::outgoing::OutgoingStream;
use trunkline_proto::rma::redo::{RedoKind, RedoQueue};
use trunkline_proto::rma::{PathId, ProtocolFault};
use trunkline_proto::slots::SlotId;
use trunkline_proto::wire::rma::atomic::{AtomicOutcome, ReplySlot};

use crate::rma::outcome_log::{OpOutcome, OutcomeLog};

/// The maximum number of pending operations of a context.
pub(super) const OPS: u32 = 4096;

/// The local buffer of an operation.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum LocalBuffer {
    /// In the heap of this number, from this offset on.
    Heap(u8, u64),
    /// Passed by value: in the copy slot of the operation, if the context keeps copies because a write may have to be repeated.
    Copied,
}

/// The extent of a transfer, kept so that it can be posted again.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct TransferExtent {
    pub(super) near: LocalBuffer,
    /// The member's heap.
    pub(super) heap: u8,
    /// The offset in that heap.
    pub(super) offset: u64,
    pub(super) len: u32,
}

/// How the target of a write is notified.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum WriteNotice {
    /// Not at all; the stream only needs its completion.
    Plain,
    /// By the immediate, in the epoch of this number.
    Counted(u64),
    /// By a MAKE_UP message, because the write was counted on a path that is lost.
    Rewritten,
}

/// The record of an operation in the ledger.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum OpRecord {
    /// A write.
    Put(TransferExtent, WriteNotice),
    /// A read.
    Get(TransferExtent),
    /// An atomic, until its reply.
    Call(ReplySlot),
    /// An atomic that the member's NIC executes, and the old value of its last step if it takes several steps.
    Native(ReplySlot, Option<u64>),
}

impl OpRecord {
    pub(super) const fn byte_len(self) -> u64 {
        match self {
            Self::Put(transfer, _) | Self::Get(transfer) => transfer.len as u64,
            Self::Call(_) | Self::Native(..) => 0,
        }
    }

    /// Returns how it is repeated when its path is lost.
    const fn redo_kind(&self) -> RedoKind {
        match self {
            Self::Put(_, WriteNotice::Counted(number)) => RedoKind::Counted(*number),
            Self::Put(_, WriteNotice::Rewritten) => RedoKind::Rewritten,
            Self::Put(_, WriteNotice::Plain) | Self::Get(_) | Self::Call(_) | Self::Native(..) => {
                RedoKind::Other
            }
        }
    }
}

/// The operations and signals of one context that are under way, the log of their ends, and the status of the last failure. Its context
/// owns it and is its only caller. It never posts, sends or waits.
///
/// Invariants: with an outcome log, each operation that ends is recorded in the log exactly once, with the number under which it
/// began; signals are never recorded. After [`PendingOperations::lose_peer`] nothing towards that peer is under way.
pub(super) struct PendingOperations {
    /// The pending operations, by slot and towards each peer.
    ledger: OperationLedger<OpRecord>,
    /// Where the ends of operations are recorded; `None` unless the owner of the context collects them.
    outcomes: Option<OutcomeLog>,
    /// The status of the last failure; [`OpStatus::Ok`] before the first one.
    last_failure: OpStatus,
}

impl PendingOperations {
    /// Creates the operations of a new context: none, with room for [`OPS`] of them, and no outcome log.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub(super) fn new() -> Result<Self, OutOfMemory> {
        let mut ledger = OperationLedger::new();
        ledger.grow_capacity(0, OPS)?;
        Ok(Self { ledger, outcomes: None, last_failure: OpStatus::Ok })
    }

    /// Makes room for peers below `peers`.
    ///
    /// # Errors
    /// [`OutOfMemory`]; then nothing has changed.
    pub(super) fn grow_peers(&mut self, peers: u32) -> Result<(), OutOfMemory> {
        self.ledger.grow_capacity(peers, 0)
    }

    /// Records the ends of all later operations in this log. Called once, before the first operation begins.
    pub(super) fn set_outcome_log(&mut self, outcomes: OutcomeLog) {
        self.outcomes = Some(outcomes);
    }

    /// Whether the ends of operations are recorded.
    #[inline]
    pub(super) const fn has_outcome_log(&self) -> bool {
        self.outcomes.is_some()
    }

    /// Sets the number under which the next operations are recorded.
    #[inline]
    pub(super) fn set_cookie(&mut self, cookie: u64) {
        if let Some(outcomes) = &mut self.outcomes {
            outcomes.set_cookie(cookie);
        }
    }

    /// Moves the recorded ends into `into`. Whether there were any.
    pub(super) fn take_outcomes(&mut self, into: &mut Vec<OpOutcome>) -> bool {
        self.outcomes.as_mut().is_some_and(|outcomes| outcomes.take_outcomes(into))
    }

    /// Begins an operation that is about to be posted. Its completion carries the returned id.
    ///
    /// # Errors
    /// [`LedgerFull`] if there is no room, or no such peer.
    #[inline]
    pub(super) fn begin_operation(
        &mut self,
        peer: u32,
        path: PathId,
        note: OpRecord,
    ) -> Result<SlotId, LedgerFull> {
        let id = self.ledger.begin_operation(peer, path, note)?;
        if let Some(outcomes) = &mut self.outcomes {
            outcomes.record_begun(id);
        }
        Ok(id)
    }

    /// Ends an operation that is complete at its target, and returns its record.
    ///
    /// # Errors
    /// [`UnknownCompletion`] if it is not under way; the ledger counts that.
    #[inline]
    pub(super) fn complete_operation(&mut self, id: SlotId) -> Result<LedgerOp<OpRecord>, UnknownCompletion> {
        let op = self.ledger.complete_operation(id)?;
        self.record_outcome(id, Ok(0));
        Ok(op)
    }

    /// Ends an atomic with its outcome. Whether it was under way.
    #[inline]
    pub(super) fn complete_atomic(&mut self, id: SlotId, outcome: AtomicOutcome) -> bool {
        let (ended, how) = match outcome {
            AtomicOutcome::Done(value) => (self.ledger.complete_operation(id).is_ok(), Ok(value)),
            AtomicOutcome::Refused => {
                self.last_failure = OpStatus::RemoteAccess;
                (self.ledger.fail_operation(id).is_ok(), Err(OpStatus::RemoteAccess))
            }
        };
        if ended {
            self.record_outcome(id, how);
        }
        ended
    }

    /// Ends everything that is under way towards a peer that is lost, as failed with this status.
    pub(super) fn lose_peer(&mut self, peer: u32, path: PathId, status: OpStatus) {
        self.last_failure = status;
        if let Some(outcomes) = &mut self.outcomes {
            for (id, _) in self.ledger.pending_ops().filter(|(_, op)| op.peer == peer) {
                outcomes.record_outcome(id, Err(status));
            }
        }
        self.ledger.lose_peer(peer, path, |_| ());
    }

    #[inline]
    fn record_outcome(&mut self, id: SlotId, how: Result<u64, OpStatus>) {
        if let Some(outcomes) = &mut self.outcomes {
            outcomes.record_outcome(id, how);
        }
    }

    /// Begins a signal: it is under way until it is acknowledged.
    ///
    /// # Errors
    /// [`LedgerFull`] if there is no such peer.
    #[inline]
    pub(super) fn begin_signal(&mut self, peer: u32) -> Result<(), LedgerFull> {
        self.ledger.begin_signal(peer)
    }

    /// Ends `signals` signals that were acknowledged.
    ///
    /// # Errors
    /// [`UnknownCompletion`] if fewer are under way.
    #[inline]
    pub(super) fn complete_signals(&mut self, peer: u32, signals: u32) -> Result<(), UnknownCompletion> {
        self.ledger.complete_signals(peer, signals)
    }

    /// Queues in `redo` the operations and signals whose path both ends have left and which the target has not received.
    ///
    /// # Errors
    /// [`ProtocolFault`] if the report of the target contradicts the sent operations.
    pub(super) fn queue_lost_work(
        &mut self,
        peer: u32,
        path: PathId,
        standing: &PathDeliveryReport,
        outgoing: &mut OutgoingStream,
        redo: &mut RedoQueue,
    ) -> Result<(), ProtocolFault> {
        redo.queue_lost_work(peer, path, standing, outgoing, &mut self.ledger, OpRecord::redo_kind)
    }

    /// Moves an operation to the path over which it is posted again.
    ///
    /// # Errors
    /// [`UnknownCompletion`] if it is not under way.
    pub(super) fn move_operation(&mut self, id: SlotId, path: PathId) -> Result<(), UnknownCompletion> {
        self.ledger.move_operation(id, path)
    }

    /// The record of an operation under way, which its context changes before it posts the operation again.
    #[inline]
    pub(super) fn note_mut(&mut self, id: SlotId) -> Option<&mut OpRecord> {
        self.ledger.note_mut(id)
    }

    /// Whether an operation can begin.
    #[inline]
    pub(super) const fn has_room(&self) -> bool {
        self.ledger.has_room()
    }

    /// Whether nothing is under way. One load.
    #[inline]
    pub(super) const fn is_idle(&self) -> bool {
        self.ledger.is_idle()
    }

    /// Returns whether all operations and signals that have begun have ended.
    #[inline]
    pub(super) const fn has_ended_all(&self) -> bool {
        let (began, ended) = self.ledger.operation_counts();
        began == ended
    }

    /// How many operations and signals towards a peer are under way.
    #[inline]
    pub(super) fn pending_towards(&self, peer: u32) -> u32 {
        self.ledger.pending_towards(peer)
    }

    /// How a quiet of the context stands. One load while nothing is under way and nothing has failed.
    ///
    /// # Errors
    /// [`QuietFailure`] as of [`OperationLedger::quiet`].
    #[inline]
    pub(super) fn quiet_peers(&mut self) -> Result<QuietProgress, QuietFailure> {
        self.ledger.quiet()
    }

    /// How a quiet of one peer stands.
    ///
    /// # Errors
    /// [`QuietFailure`] as of [`OperationLedger::quiet_peer`].
    #[inline]
    pub(super) fn quiet_peer(&mut self, peer: u32) -> Result<QuietProgress, QuietFailure> {
        self.ledger.quiet_peer(peer)
    }

    /// The status of the last failure.
    pub(super) const fn last_failure(&self) -> OpStatus {
        self.last_failure
    }
}
