//! What is to be done again towards one peer, as the path that it went over is lost and both ends have left it. Called when that is
//! so, and then until there is nothing left to do. Takes memory only when a path is lost.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::rma::incoming::{MakeUp, PathDeliveryReport};
use crate::rma::ledger::OperationLedger;
use crate::rma::outgoing::OutgoingStream;
use crate::rma::{PathId, ProtocolFault};
use crate::slots::SlotId;
use crate::wire::rma::signal::{SignalAck, SignalMessage};

/// What an operation in the ledger is, when its path is lost.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum RedoKind {
    /// A write that was counted in the epoch of that number.
    Counted(u64),
    /// A counted write that was written again, without its immediate.
    Rewritten,
    /// Another one that may be done twice, or is known by a slot.
    Other,
}

/// What is to be posted again.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum RedoWork {
    /// An operation of the ledger: a write without an immediate, a read, or a request in its slot.
    Op(SlotId),
    /// The signal of that number.
    Signal(u64, SignalMessage),
}

/// Work of lost paths.
#[derive(Debug)]
pub struct RedoQueue {
    due: VecDeque<RedoWork>,
    /// Counted writes that are not complete without their immediates.
    rewriting: u32,
    make_up: Vec<MakeUp>,
}

impl Default for RedoQueue {
    fn default() -> Self {
        Self::new()
    }
}

impl RedoQueue {
    /// Nothing is lost so far.
    #[must_use]
    pub const fn new() -> Self {
        Self { due: VecDeque::new(), rewriting: 0, make_up: Vec::new() }
    }

    /// Both ends have left a path to a peer. Operations that have come are ended, the others are due; which is said by `kind`.
    ///
    /// # Errors
    /// [`ProtocolFault`] if what the target says cannot be.
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
                    // It is under way: it was found there.
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

    /// What is next, if there is anything. To be taken when it was posted.
    #[inline]
    #[must_use]
    pub fn next(&self) -> Option<RedoWork> {
        self.due.front().copied()
    }

    /// The next was posted, over a path whose loss will be told as any other's.
    pub fn pop_posted(&mut self) {
        self.due.pop_front();
    }

    /// A write of the kind [`RedoKind::Rewritten`] is complete.
    pub fn on_rewritten(&mut self) {
        self.rewriting = self.rewriting.saturating_sub(1);
    }

    /// What the target is to take for counted: at most `most` at once, and all that are due if it is called until there are none.
    pub fn make_up(&mut self, most: usize) -> Option<Vec<MakeUp>> {
        if self.make_up.is_empty() || self.rewriting > 0 {
            return None;
        }
        let most = most.min(self.make_up.len());
        Some(self.make_up.drain(..most).collect())
    }

    /// Whether there is nothing to be done any more.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.due.is_empty() && self.make_up.is_empty()
    }
}
