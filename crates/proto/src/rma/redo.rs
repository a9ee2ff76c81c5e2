//! The operations towards one peer that are posted again after their path is lost and both ends have left it. The engine calls it at that point, and
//! then until the queue is empty. It allocates only when a path is lost.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::rma::incoming::{MakeUp, PathDeliveryReport};
use crate::rma::ledger::OperationLedger;
use crate::rma::outgoing::OutgoingStream;
use crate::rma::{PathId, ProtocolFault};
use crate::slots::SlotId;
use crate::wire::rma::signal::{SignalAck, SignalMessage};

/// How an operation of the ledger is handled when its path is lost.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum RedoKind {
    /// A write that was counted in the epoch with that number.
    Counted(u64),
    /// A counted write that was posted again, without its immediate.
    Rewritten,
    /// Any other operation, which may be executed twice or is identified by a slot.
    Other,
}

/// An entry to post again.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum RedoWork {
    /// An operation of the ledger: a write without an immediate, a read, or the request of its slot.
    Op(SlotId),
    /// The signal of that number.
    Signal(u64, SignalMessage),
}

/// The work of lost paths.
#[derive(Debug)]
pub struct RedoQueue {
    due: VecDeque<RedoWork>,
    /// Counted writes that were lost, and are not complete without their immediates.
    rewriting: u32,
    make_up: Vec<MakeUp>,
}

impl Default for RedoQueue {
    fn default() -> Self {
        Self::new()
    }
}

impl RedoQueue {
    /// Creates an empty queue.
    #[must_use]
    pub const fn new() -> Self {
        Self { due: VecDeque::new(), rewriting: 0, make_up: Vec::new() }
    }

    /// Queues the work of a path that both ends have left. Completes operations that have arrived and queues the others; `kind` classifies each by
    /// its note.
    ///
    /// # Errors
    /// [`ProtocolFault`] if the target's report is invalid.
    pub fn queue_lost_work<T: Copy>(
        &mut self,
        peer: u32,
        path: PathId,
        standing: &PathDeliveryReport,
        outgoing: &mut OutgoingStream,
        ledger: &mut OperationLedger<T>,
        kind: impl Fn(&T) -> RedoKind,
    ) -> Result<(), ProtocolFault> {
        let signals = outgoing.on_ack(SignalAck { stream: outgoing.stream(), number: standing.applied })?;
        ledger
            .complete_signals(peer, signals as u32)
            .map_err(|_| ProtocolFault::Acknowledged(standing.applied))?;
        let signals = outgoing.lost_signals(path, standing);
        let lost = outgoing.lose_path(path, standing)?;
        let ops = ledger.pending_ops().filter(|(_, op)| op.peer == peer && op.path == path);
        let ops: Vec<_> = ops.map(|(id, op)| (id, kind(&op.note))).collect();
        for (id, kind) in ops {
            match kind {
                RedoKind::Counted(number) if !outgoing.is_missing(number, &lost) => {
                    // The operation is pending, as it was found in the ledger.
                    let _ = ledger.complete_operation(id);
                    continue;
                }
                RedoKind::Counted(_) => self.rewriting += 1,
                RedoKind::Rewritten | RedoKind::Other => {}
            }
            self.due.push_back(RedoWork::Op(id));
        }
        self.due.extend(signals.into_iter().map(|(number, signal)| RedoWork::Signal(number, signal)));
        self.make_up.extend(lost);
        Ok(())
    }

    /// Returns the next entry, if any. The caller removes it with [`RedoQueue::pop_posted`] once it is posted.
    #[inline]
    #[must_use]
    pub fn next(&self) -> Option<RedoWork> {
        self.due.front().copied()
    }

    /// Removes the entry that was posted. The path that it was posted on is accounted for as with any other operation.
    pub fn pop_posted(&mut self) {
        self.due.pop_front();
    }

    /// Records that a write of the kind [`RedoKind::Rewritten`] is complete.
    pub fn on_rewritten(&mut self) {
        self.rewriting = self.rewriting.saturating_sub(1);
    }

    /// Returns counts that the target has to add without an arrival: at most `most`, once all rewritten writes are complete. The caller repeats the
    /// call until it returns `None`.
    pub fn make_up(&mut self, most: usize) -> Option<Vec<MakeUp>> {
        if self.make_up.is_empty() || self.rewriting > 0 {
            return None;
        }
        let most = most.min(self.make_up.len());
        Some(self.make_up.drain(..most).collect())
    }

    /// Returns whether no work is left.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.due.is_empty() && self.make_up.is_empty()
    }
}
