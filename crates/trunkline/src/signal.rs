//! Signals, which arrive after all earlier puts of their context, and waits for changes of words of this rank.

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

/// The change that a signal makes to its word.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum SignalOp {
    /// Replaces the value.
    Set,
    /// Adds to the value; wraps on overflow.
    Add,
    /// Replaces the value if the signal's value is greater.
    Max,
}

/// A comparison of a word with a value, as OpenSHMEM's `SHMEM_CMP_*`.
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

/// The ranks that are expected to change the word that a call waits for. The wait fails once one of them has ended. A
/// plain number converts to that rank.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ExpectedRanks<'a> {
    /// One rank. This rank itself never ends a wait: name it to wait for changes by other threads of this process.
    Rank(usize),
    /// Several ranks.
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

/// Consecutive elements of this rank's part of a symmetric object: the source of a put without a copy.
#[derive(Clone, Copy, Debug)]
pub struct ElementRange<'a, T> {
    /// The first element.
    pub first: ElementPlace<'a, T>,
    /// The number of elements.
    pub count: usize,
}

impl Compare {
    /// Returns whether the comparison of `left` with `right` holds.
    ///
    /// # Examples
    /// ```
    /// use trunkline::Compare;
    ///
    /// assert!(Compare::AtLeast.holds(&3, &3));
    /// assert!(!Compare::Less.holds(&1.0, &f64::NAN)); // as with `<`
    /// ```
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
    /// Changes a word of a rank, after all earlier puts of this context to that rank: once the target reads the
    /// changed word, it reads their data, too. Signals of a context to the same rank arrive in order. The signal is
    /// complete after a [`quiet`](Self::quiet).
    ///
    /// NVSHMEM's counterpart is `nvshmemx_signal_op`, which does not order earlier puts.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    ///
    /// # Examples
    /// ```no_run
    /// # use trunkline::{Compare, SignalOp};
    /// # let world = trunkline::World::start()?;
    /// # let next = (world.rank() + 1) % world.size();
    /// # let before = (world.rank() + world.size() - 1) % world.size();
    /// let (left, right) = (world.alloc::<f64>(100)?, world.alloc::<f64>(100)?);
    /// let ready = world.alloc_one::<u64>()?;
    /// world.put(next, &left, &[1.5; 100])?;
    /// world.put(next, &right, &[2.5; 100])?;
    /// world.signal(next, &ready, SignalOp::Add, 1)?; // arrives after both puts
    /// world.wait_until(&ready, Compare::AtLeast, 1, before)?;
    /// println!("{} and {}", left.load(99), right.load(99)); // 1.5 and 2.5
    /// # Ok::<(), trunkline::Error>(())
    /// ```
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

    /// Changes a word of any heap; see [`signal`](Self::signal).
    pub(crate) fn signal_word(
        &self,
        rank: usize,
        word: Named,
        op: SignalOp,
        value: u64,
    ) -> Result<(), Error> {
        let member = self.member_id(rank)?;
        let update = SignalUpdate::new(op.to_update_op(), word, value)
            .ok_or(Error::Argument("the value is wider than the word, which has 4 bytes"))?;
        if rank == self.rank() {
            let memory = if word.heap() == HEAP { &self.shared.heap } else { &self.shared.inner };
            return self
                .map_bounds_error(memory.fetch_update(word.offset(), |old| update.apply_to(old)))
                .map(drop);
        }
        Ok(self.fabric_calls().send_signal(member, update)?)
    }

    /// Writes elements to a rank, from `to` on, and then changes the word `at` of that rank by `op` and `value`.
    /// Returns when `from` may be changed. As with [`signal`](Self::signal), the change arrives after all earlier
    /// puts of this context to that rank. OpenSHMEM's counterpart is `shmem_put_signal`.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    ///
    /// # Examples
    /// ```no_run
    /// # use trunkline::{Compare, SignalOp};
    /// # let world = trunkline::World::start()?;
    /// # let next = (world.rank() + 1) % world.size();
    /// # let before = (world.rank() + world.size() - 1) % world.size();
    /// let halo = world.alloc::<f64>(100)?;
    /// let rows = world.alloc_one::<u64>()?; // counts the rows that have arrived
    /// let mut row = [1.5_f64; 100];
    /// world.put_signal(next, &halo, &row, &rows, SignalOp::Add, 1)?;
    /// world.wait_until(&rows, Compare::AtLeast, 1, before)?;
    /// halo.read(0, &mut row); // the row of the rank before
    /// # Ok::<(), trunkline::Error>(())
    /// ```
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

    /// Returns the change that a signal makes to a word of the symmetric heap.
    fn signal_update<'a>(
        &self,
        at: impl Into<ElementPlace<'a, u64>>,
        op: SignalOp,
        value: u64,
    ) -> Result<SignalUpdate, Error> {
        let offset = self.heap_offset(at.into(), 1)?;
        let word = word_at::<u64>(HEAP, offset)?;
        SignalUpdate::new(op.to_update_op(), word, value)
            .ok_or(Error::Argument("the value is wider than the word, which has 4 bytes"))
    }

    /// Writes elements of this rank's part of a symmetric object to a rank, and then changes a word of that rank, as
    /// [`put_signal`](Self::put_signal) does, but without a copy. Returns when it is posted; `from` must not change
    /// until a [`quiet`](Self::quiet). OpenSHMEM's counterpart is `shmem_put_signal_nbi`.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    ///
    /// # Examples
    /// ```no_run
    /// # use trunkline::{ElementRange, SignalOp};
    /// # let world = trunkline::World::start()?;
    /// # let next = (world.rank() + 1) % world.size();
    /// let grid = world.alloc::<f64>(1000)?;
    /// let halo = world.alloc::<f64>(100)?;
    /// let rows = world.alloc_one::<u64>()?;
    /// let last_row = ElementRange { first: grid.at(900), count: 100 };
    /// world.put_signal_nbi(next, &halo, last_row, &rows, SignalOp::Add, 1)?;
    /// world.quiet()?; // until here, the NIC may read the row
    /// grid.write(900, &[2.5; 100]);
    /// # Ok::<(), trunkline::Error>(())
    /// ```
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

    /// Waits until a word of this rank satisfies the comparison with `value`, and returns the word's value. Data that
    /// was put before a signal to this word can be read then. The call serves requests of other ranks meanwhile.
    /// OpenSHMEM's counterpart is `shmem_wait_until`.
    ///
    /// `from` names the ranks that are expected to change the word. A wait for changes by other threads of this
    /// process names this rank.
    ///
    /// # Errors
    /// - [`Error::Gone`]: an expected rank has ended. Its earlier signals still count: the word is read once more
    ///   before the call fails.
    /// - [`Error::Range`], [`Error::NoRank`], [`Error::Argument`]: as [`put`](Self::put).
    ///
    /// # Examples
    /// ```no_run
    /// # use trunkline::{Compare, Error, SignalOp};
    /// # let world = trunkline::World::start()?;
    /// # let next = (world.rank() + 1) % world.size();
    /// # let before = (world.rank() + world.size() - 1) % world.size();
    /// let ready = world.alloc_one::<u64>()?;
    /// world.signal(next, &ready, SignalOp::Add, 1)?;
    /// match world.wait_until(&ready, Compare::AtLeast, 1, before) {
    ///     Ok(count) => println!("{count} signals have arrived"),
    ///     Err(Error::Gone { rank, .. }) => eprintln!("rank {rank} ended before its signal"),
    ///     Err(error) => return Err(error),
    /// }
    /// # Ok::<(), Error>(())
    /// ```
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

    /// Returns whether a word of this rank satisfies the comparison with `value`. If it does not, the call serves
    /// requests of other ranks once, and compares again. OpenSHMEM's counterpart is `shmem_test`.
    ///
    /// # Errors
    /// [`Error::Range`]; [`Error::Argument`] if the object belongs to another world.
    ///
    /// # Examples
    /// ```no_run
    /// # use trunkline::{Compare, SignalOp};
    /// # let world = trunkline::World::start()?;
    /// # let next = (world.rank() + 1) % world.size();
    /// # fn relax_row(_row: usize) {}
    /// # let mut row = 0;
    /// let ready = world.alloc_one::<u64>()?;
    /// world.signal(next, &ready, SignalOp::Add, 1)?;
    /// while !world.test(&ready, Compare::AtLeast, 1)? {
    ///     relax_row(row); // computes while the signal of the rank before is on its way
    ///     row += 1;
    /// }
    /// # Ok::<(), trunkline::Error>(())
    /// ```
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

    /// Polls `look` until it returns a value. Fails once one of the expected ranks has ended.
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
        // A last poll after an expected rank has ended still finds the signals that it sent before.
        let policy = WaitPolicy::CALL;
        watch_memory(Some(&self.fabric_calls()), policy, || Ok(look()), || self.check_ranks(ranks))
    }

    /// Checks that the ranks can still be reached.
    fn check_ranks(&self, ranks: &[usize]) -> Result<(), Error> {
        for &rank in ranks {
            if rank != self.rank() {
                self.fabric_calls().check_member(self.member_id(rank)?)?;
            }
        }
        Ok(())
    }

    /// Reads a word of this rank's inner heap.
    pub(crate) fn inner_word(&self, offset: u64) -> u64 {
        load_word::<u64>(&self.shared.inner, offset)
    }
}
