//! Signals, which come after all that was put before them, and waiting for words of this rank to change.

use bytemuck::Pod;
use trunkline_engine::WaitPolicy;
use trunkline_engine::rma::HeapRange;
use trunkline_proto::wire::rma::signal::SignalUpdate;
use trunkline_proto::wire::rma::word::SymmetricWord as Named;
use trunkline_runtime::{CopyFrom, watch_memory};

use crate::atomics::word_at;
use crate::context::Context;
use crate::error::Error;
use crate::shared_world::{HEAP, heap_address};
use crate::symmetric::ElementPlace;
use crate::word::{Word, load_word};

/// What a signal does to its word.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum SignalOp {
    /// Replaces it.
    Set,
    /// Adds to it, wrapping.
    Add,
    /// Replaces it if the value is greater.
    Max,
}

/// How a word is compared with a value.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Compare {
    /// `==`
    Equal,
    /// `!=`
    NotEqual,
    /// `<`
    Less,
    /// `<=`
    AtMost,
    /// `>`
    Greater,
    /// `>=`
    AtLeast,
}

/// Who is to change the word that a call waits for: when one of them is gone the wait is over. A number means that rank.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ExpectedRanks<'a> {
    /// This rank.
    Rank(usize),
    /// Each of these.
    Ranks(&'a [usize]),
}

impl From<usize> for ExpectedRanks<'_> {
    fn from(rank: usize) -> Self {
        Self::Rank(rank)
    }
}

impl<'a> From<&'a [usize]> for ExpectedRanks<'a> {
    fn from(ranks: &'a [usize]) -> Self {
        Self::Ranks(ranks)
    }
}

/// Consecutive elements of this rank's part of a symmetric object.
#[derive(Clone, Copy, Debug)]
pub struct ElementRange<'a, T> {
    /// The first element.
    pub first: ElementPlace<'a, T>,
    /// The number of elements.
    pub count: usize,
}

impl Compare {
    /// Whether `left` compares so with `right`.
    #[inline]
    #[must_use]
    pub fn holds<T: PartialOrd>(self, left: &T, right: &T) -> bool {
        match self {
            Self::Equal => left == right,
            Self::NotEqual => left != right,
            Self::Less => left < right,
            Self::AtMost => left <= right,
            Self::Greater => left > right,
            Self::AtLeast => left >= right,
        }
    }
}

impl SignalOp {
    const fn to_update_op(self) -> trunkline_proto::wire::rma::signal::UpdateOp {
        use trunkline_proto::wire::rma::signal::UpdateOp as Op;
        match self {
            Self::Set => Op::Set,
            Self::Add => Op::Add,
            Self::Max => Op::Max,
        }
    }
}

impl Context {
    /// Changes a word of a rank, after all that this context has put there before: whoever sees the word changed sees that, too.
    /// Signals of a context to a rank come in order. Complete after a quiet.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    pub fn signal<'a>(
        &self,
        rank: usize,
        at: impl Into<ElementPlace<'a, u64>>,
        op: SignalOp,
        value: u64,
    ) -> Result<(), Error> {
        let offset = self.heap_offset(at.into(), 1)?;
        self.signal_word(rank, word_at::<u64>(HEAP, offset)?, op, value)
    }

    /// The same of a word of any heap.
    pub(crate) fn signal_word(
        &self,
        rank: usize,
        word: Named,
        op: SignalOp,
        value: u64,
    ) -> Result<(), Error> {
        let member = self.member_id(rank)?;
        let update = SignalUpdate::new(op.to_update_op(), word, value)
            .ok_or(Error::Argument("the value is wider than the word"))?;
        if rank == self.rank() {
            let memory = if word.heap() == HEAP { &self.shared.heap } else { &self.shared.inner };
            return self
                .map_bounds_error(memory.fetch_update(word.offset(), |old| update.apply_to(old)))
                .map(drop);
        }
        Ok(self.fabric_calls().send_signal(member, update)?)
    }

    /// Writes elements to a rank, from `to` on, and changes the word `at` of that rank by `op` and `value` behind them.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    pub fn put_signal<'a, 'b, T: Pod>(
        &self,
        rank: usize,
        to: impl Into<ElementPlace<'a, T>>,
        from: &[T],
        at: impl Into<ElementPlace<'b, u64>>,
        op: SignalOp,
        value: u64,
    ) -> Result<(), Error> {
        let bytes: &[u8] = bytemuck::cast_slice(from);
        let to = self.heap_offset(to.into(), from.len())?;
        if rank == self.rank() {
            self.put_bytes(rank, to, bytes)?;
            return self.signal(rank, at, op, value);
        }
        let to = heap_address(self.member_id(rank)?, to);
        let update = self.signal_update(at, op, value)?;
        Ok(self.fabric_calls().put_signal_copied(to, CopyFrom::Slice(bytes), update)?)
    }

    /// What a signal to a word of the heap does.
    fn signal_update<'a>(
        &self,
        at: impl Into<ElementPlace<'a, u64>>,
        op: SignalOp,
        value: u64,
    ) -> Result<SignalUpdate, Error> {
        let offset = self.heap_offset(at.into(), 1)?;
        let word = word_at::<u64>(HEAP, offset)?;
        SignalUpdate::new(op.to_update_op(), word, value)
            .ok_or(Error::Argument("the value is wider than the word"))
    }

    /// The same from elements of this rank's part of a symmetric object, which are not copied: they must stay as they are until a
    /// quiet.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    pub fn put_signal_nbi<'a, 'b, T: Pod>(
        &self,
        rank: usize,
        to: impl Into<ElementPlace<'a, T>>,
        from: ElementRange<'_, T>,
        at: impl Into<ElementPlace<'b, u64>>,
        op: SignalOp,
        value: u64,
    ) -> Result<(), Error> {
        let ElementRange { first, count } = from;
        if rank == self.rank() || count == 0 {
            self.put_nbi(rank, to, first, count)?;
            return self.signal(rank, at, op, value);
        }
        let to = self.heap_offset(to.into(), count)?;
        let offset = self.heap_offset(first, count)?;
        let from = HeapRange { heap: HEAP, offset, len: (count * size_of::<T>()) as u64 };
        let to = heap_address(self.member_id(rank)?, to);
        let update = self.signal_update(at, op, value)?;
        Ok(self.fabric_calls().put_signal_registered(to, from, update)?)
    }

    /// Waits until a word of this rank compares so with `value`, which another rank is to bring about; what it is then. Goes on with what
    /// others want meanwhile. A wait for what other threads of this rank do names this rank.
    ///
    /// # Errors
    /// [`Error::Gone`]: who was to change it cannot any more. What it sent before counts.
    pub fn wait_until<'a, 'b, T: Word>(
        &self,
        at: impl Into<ElementPlace<'a, T>>,
        compare: Compare,
        value: T,
        from: impl Into<ExpectedRanks<'b>>,
    ) -> Result<T, Error> {
        let offset = self.heap_offset(at.into(), 1)?;
        let look = || T::from_word(load_word::<T>(&self.shared.heap, offset));
        self.wait_for(from.into(), || {
            let now = look();
            compare.holds(&now, &value).then_some(now)
        })
    }

    /// Whether a word of this rank compares so with `value` now; if not, goes on with what others want.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    pub fn test<'a, T: Word>(
        &self,
        at: impl Into<ElementPlace<'a, T>>,
        compare: Compare,
        value: T,
    ) -> Result<bool, Error> {
        let offset = self.heap_offset(at.into(), 1)?;
        let holds = || compare.holds(&T::from_word(load_word::<T>(&self.shared.heap, offset)), &value);
        if holds() {
            return Ok(true);
        }
        self.progress()?;
        Ok(holds())
    }

    /// Waits until `look` finds something, which these ranks are to bring about.
    pub(crate) fn wait_for<T>(
        &self,
        from: ExpectedRanks<'_>,
        mut look: impl FnMut() -> Option<T>,
    ) -> Result<T, Error> {
        let one;
        let ranks = match from {
            ExpectedRanks::Ranks(ranks) => ranks,
            ExpectedRanks::Rank(rank) => {
                one = [rank];
                &one
            }
        };
        for &rank in ranks {
            self.member_id(rank)?;
        }
        // What they sent before they went has come.
        let policy = WaitPolicy::CALL;
        watch_memory(Some(&self.fabric_calls()), policy, || Ok(look()), || self.check_ranks(ranks))
    }

    /// Checks that these ranks can still be reached.
    fn check_ranks(&self, ranks: &[usize]) -> Result<(), Error> {
        for &rank in ranks {
            if rank != self.rank() {
                self.fabric_calls().check_member(self.member_id(rank)?)?;
            }
        }
        Ok(())
    }

    /// A word of the inner heap of this rank.
    pub(crate) fn inner_word(&self, offset: u64) -> u64 {
        load_word::<u64>(&self.shared.inner, offset)
    }
}
