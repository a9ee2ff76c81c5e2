//! What is to be done again towards one peer, as the path that it went over is lost and both ends have left it. Called when that is
//! so, and then until there is nothing left to do. Takes memory only when a path is lost.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::mutant::Mutant;
use crate::rma::incoming::{MakeUp, Standing};
use crate::rma::ledger::Ledger;
use crate::rma::outgoing::Outgoing;
use crate::rma::{Fault, Path};
use crate::slots::SlotId;
use crate::wire::rma::signal::{Ack, Signal};

/// What an operation in the ledger is, when its path is lost.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Kind {
    /// A write that was counted in the epoch of that number.
    Counted(u64),
    /// A counted write that was written again, without its immediate.
    Rewritten,
    /// Another one that may be done twice, or is known by a slot.
    Other,
}

/// What is to be posted again.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Again {
    /// An operation of the ledger: a write without an immediate, a read, or a request in its slot.
    Op(SlotId),
    /// The signal of that number.
    Signal(u64, Signal),
}

/// Work of lost paths.
#[derive(Debug)]
pub struct Redo {
    due: VecDeque<Again>,
    /// Counted writes that are not complete without their immediates.
    rewriting: u32,
    make_up: Vec<MakeUp>,
    mutant: Mutant,
}

impl Redo {
    /// Nothing is lost so far.
    #[must_use]
    pub const fn new(mutant: Mutant) -> Self {
        Self { due: VecDeque::new(), rewriting: 0, make_up: Vec::new(), mutant }
    }

    /// Both ends have left a path. Operations that have come are ended, the others are due; which is said by `kind`.
    ///
    /// # Errors
    /// [`Fault`] if what the target says cannot be.
    pub fn settle<T: Copy>(
        &mut self,
        (peer, path): (u32, Path),
        standing: &Standing,
        outgoing: &mut Outgoing,
        ledger: &mut Ledger<T>,
        kind: impl Fn(&T) -> Kind,
    ) -> Result<(), Fault> {
        let signals = outgoing.on_ack(Ack { stream: outgoing.stream(), number: standing.applied })?;
        ledger.acknowledged(peer, signals as u32).map_err(|_| Fault::Acknowledged(standing.applied))?;
        let signals = outgoing.lost_signals(path, standing);
        let lost = outgoing.lose(path, standing)?;
        let ops = ledger.ops().filter(|(_, op)| op.peer == peer && op.path == path);
        let ops: Vec<_> = ops.map(|(id, op)| (id, kind(&op.note))).collect();
        for (id, kind) in ops {
            match kind {
                Kind::Counted(number)
                    if !outgoing.is_missing(number, &lost) && !self.mutant.is("rma-redoes-what-came") =>
                {
                    // It is under way: it was found there.
                    let _ = ledger.done(id);
                    continue;
                }
                Kind::Counted(_) => self.rewriting += 1,
                Kind::Rewritten | Kind::Other => {}
            }
            self.due.push_back(Again::Op(id));
        }
        self.due.extend(signals.into_iter().map(|(number, signal)| Again::Signal(number, signal)));
        self.make_up.extend(lost);
        Ok(())
    }

    /// What is next, if there is anything. To be taken when it was posted.
    #[inline]
    #[must_use]
    pub fn next(&self) -> Option<Again> {
        self.due.front().copied()
    }

    /// The next was posted, over a path whose loss will be told as any other's.
    pub fn took(&mut self) {
        self.due.pop_front();
    }

    /// A write of the kind [`Kind::Rewritten`] is complete.
    pub fn on_rewritten(&mut self) {
        self.rewriting = self.rewriting.saturating_sub(1);
    }

    /// What the target is to take for counted: at most `most` at once, and all that are due if it is called until there are none.
    pub fn make_up(&mut self, most: usize) -> Option<Vec<MakeUp>> {
        let waits = self.rewriting > 0 && !self.mutant.is("rma-makes-up-early");
        if self.make_up.is_empty() || waits {
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
