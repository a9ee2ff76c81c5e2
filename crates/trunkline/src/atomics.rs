//! Atomics on words of any rank, its own included. Each word has one executor: the rank that holds it, or that rank's
//! NIC. So atomics of all ranks are atomic among each other. A word is for atomics or for signals, not for both.

use trunkline_engine::rma::FetchHandle;
use trunkline_proto::rma::atomic::{AtomicAction, TypedAtomic};
use trunkline_proto::wire::rma::word::{self, WordWidth};

use crate::context::Context;
use crate::error::Error;
use crate::pending::PendingFetch;
use crate::shared_world::HEAP;
use crate::symmetric::ElementPlace;
use crate::word::{Integer, Word};

/// An atomic that returns the former value of its word; see [`Context::fetch_nbi`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FetchOp<T> {
    /// Reads the word.
    Fetch,
    /// Replaces the word.
    Swap(T),
    /// Adds to the word; integers wrap.
    Add(T),
    /// Bitwise AND with the word. Integers only, as are the following ones.
    And(T),
    /// Bitwise OR with the word.
    Or(T),
    /// Bitwise XOR with the word.
    Xor(T),
    /// Replaces the word by `swap` if it equals `expect`.
    CompareSwap {
        /// The expected value.
        expect: T,
        /// The new value.
        swap: T,
    },
}

impl<T: Word> FetchOp<T> {
    fn to_action(self) -> AtomicAction {
        match self {
            Self::Fetch => AtomicAction::Fetch,
            Self::Swap(value) => AtomicAction::Set(value.to_word()),
            Self::Add(value) => AtomicAction::Add(value.to_word()),
            Self::And(value) => AtomicAction::And(value.to_word()),
            Self::Or(value) => AtomicAction::Or(value.to_word()),
            Self::Xor(value) => AtomicAction::Xor(value.to_word()),
            Self::CompareSwap { expect, swap } => {
                AtomicAction::CompareSwap { expect: expect.to_word(), swap: swap.to_word() }
            }
        }
    }
}

/// Returns the word at an offset of a heap. Allocations and elements are aligned, so their words are, too.
pub(crate) fn word_at<T: Word>(heap: u8, offset: u64) -> Result<word::SymmetricWord, Error> {
    word::SymmetricWord::new(heap, offset, T::TYPE.word_width())
        .map_err(|_| Error::Argument("the element is not aligned as a word of its size must be"))
}

impl Context {
    /// Executes an atomic here, or posts it. Returns the former value if it is executed here, else a handle for it.
    fn begin_atomic<T: Word>(
        &self,
        rank: usize,
        at: ElementPlace<'_, T>,
        action: AtomicAction,
        fetches: bool,
    ) -> Result<Result<FetchHandle, u64>, Error> {
        let member = self.member_id(rank)?;
        let offset = self.heap_offset(at, 1)?;
        let atomic = TypedAtomic::new(T::TYPE, action, fetches).ok_or(Error::Argument(
            "words with floating-point numbers support only fetch, set, swap and add",
        ))?;
        let executes = self.shared.executes || T::TYPE.word_width() == WordWidth::Four;
        if rank == self.rank() && executes {
            let heap = &self.shared.heap;
            let old = match T::TYPE.word_width() {
                WordWidth::Eight => heap.fetch_update(offset, |old| atomic.apply_to(old)),
                WordWidth::Four => heap
                    .update_half(offset, |old| atomic.apply_to(old.into()).map(|new| new as u32))
                    .map(u64::from),
            };
            return self.map_bounds_error(old).map(Err);
        }
        let word = word_at::<T>(HEAP, offset)?;
        Ok(Ok(self.fabric_calls().post_atomic(member, word, atomic)?))
    }

    fn fetch_atomic<T: Word>(
        &self,
        rank: usize,
        at: ElementPlace<'_, T>,
        action: AtomicAction,
    ) -> Result<T, Error> {
        let value = match self.begin_atomic(rank, at, action, true)? {
            Ok(fetch) => self.fabric_calls().wait_fetch(fetch)?,
            Err(value) => value,
        };
        Ok(T::from_word(value))
    }

    fn post_atomic<T: Word>(
        &self,
        rank: usize,
        at: ElementPlace<'_, T>,
        action: AtomicAction,
    ) -> Result<(), Error> {
        // The handle is not needed: a quiet completes the atomic.
        self.begin_atomic(rank, at, action, false).map(drop)
    }

    /// Posts an atomic, and returns without its value. Up to 64 values of a context may be outstanding.
    /// [`PendingFetch::wait`] and [`PendingFetch::poll`] return the value; a quiet does not return it. OpenSHMEM's
    /// counterparts are the `shmem_atomic_fetch_*_nbi` calls.
    ///
    /// # Errors
    /// As [`put`](Self::put); [`Error::Argument`] if 64 values are outstanding, or the type does not support the
    /// operation.
    ///
    /// # Examples
    /// ```no_run
    /// # use trunkline::FetchOp;
    /// # let world = trunkline::World::start()?;
    /// # fn relax_row(_row: usize) {}
    /// let tickets = world.alloc_one::<u64>()?;
    /// let pending = world.fetch_nbi(0, &tickets, FetchOp::Add(1))?;
    /// relax_row(0); // the ticket may arrive while this rank computes
    /// let ticket: u64 = pending.wait()?;
    /// # Ok::<(), trunkline::Error>(())
    /// ```
    pub fn fetch_nbi<'a, T: Word>(
        &self,
        rank: usize,
        at: impl Into<ElementPlace<'a, T>>,
        what: FetchOp<T>,
    ) -> Result<PendingFetch<'_, T>, Error> {
        self.fetches.check_room()?;
        let begun = self.begin_atomic(rank, at.into(), what.to_action(), true)?;
        Ok(PendingFetch::new(self, begun))
    }

    /// Reads a word of a rank, whole. Returns when the value has arrived. OpenSHMEM's counterpart is
    /// `shmem_atomic_fetch`.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    ///
    /// # Examples
    /// ```no_run
    /// # let world = trunkline::World::start()?;
    /// let done = world.alloc_one::<u64>()?;
    /// world.inc(0, &done)?;
    /// let count: u64 = world.fetch(0, &done)?; // other ranks may add to it at the same time
    /// println!("{count} of {} ranks are done", world.size());
    /// # Ok::<(), trunkline::Error>(())
    /// ```
    pub fn fetch<'a, T: Word>(&self, rank: usize, at: impl Into<ElementPlace<'a, T>>) -> Result<T, Error> {
        self.fetch_atomic(rank, at.into(), AtomicAction::Fetch)
    }

    /// Replaces a word of a rank. Returns when it is posted; complete after a [`quiet`](Self::quiet). OpenSHMEM's
    /// counterpart is `shmem_atomic_set`.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    ///
    /// # Examples
    /// ```no_run
    /// # let world = trunkline::World::start()?;
    /// # let next = (world.rank() + 1) % world.size();
    /// let state = world.alloc_one::<u64>()?;
    /// world.set(next, &state, 2)?;
    /// world.quiet()?; // the word of the next rank is 2
    /// # Ok::<(), trunkline::Error>(())
    /// ```
    pub fn set<'a, T: Word>(
        &self,
        rank: usize,
        at: impl Into<ElementPlace<'a, T>>,
        value: T,
    ) -> Result<(), Error> {
        self.post_atomic(rank, at.into(), AtomicAction::Set(value.to_word()))
    }

    /// Replaces a word of a rank, and returns its former value. OpenSHMEM's counterpart is `shmem_atomic_swap`.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    ///
    /// # Examples
    /// ```no_run
    /// # let world = trunkline::World::start()?;
    /// let last = world.alloc_one::<u64>()?; // the rank of the last swap, plus 1; 0 before the first
    /// let before: u64 = world.swap(0, &last, world.rank() as u64 + 1)?;
    /// if before == 0 {
    ///     println!("rank {} is the first", world.rank());
    /// }
    /// # Ok::<(), trunkline::Error>(())
    /// ```
    pub fn swap<'a, T: Word>(
        &self,
        rank: usize,
        at: impl Into<ElementPlace<'a, T>>,
        value: T,
    ) -> Result<T, Error> {
        self.fetch_atomic(rank, at.into(), AtomicAction::Set(value.to_word()))
    }

    /// Replaces a word of a rank by `swap` if it equals `expect`, and returns its former value. OpenSHMEM's
    /// counterpart is `shmem_atomic_compare_swap`.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    ///
    /// # Examples
    /// ```no_run
    /// # let world = trunkline::World::start()?;
    /// let lock = world.alloc_one::<u64>()?; // 0 while no rank has the lock
    /// let own = world.rank() as u64 + 1;
    /// while world.compare_swap(0, &lock, 0, own)? != 0 {
    ///     std::hint::spin_loop();
    /// }
    /// // This rank has the lock until it sets the word to 0.
    /// world.quiet()?; // operations under the lock are complete before its release
    /// world.set(0, &lock, 0)?;
    /// world.quiet()?; // sends the release now, not with a later call
    /// # Ok::<(), trunkline::Error>(())
    /// ```
    pub fn compare_swap<'a, T: Integer>(
        &self,
        rank: usize,
        at: impl Into<ElementPlace<'a, T>>,
        expect: T,
        swap: T,
    ) -> Result<T, Error> {
        let expect = expect.to_word();
        let swap = swap.to_word();
        self.fetch_atomic(rank, at.into(), AtomicAction::CompareSwap { expect, swap })
    }

    /// Adds 1 to a word of a rank, wrapping. Returns when it is posted; complete after a [`quiet`](Self::quiet).
    /// OpenSHMEM's counterpart is `shmem_atomic_inc`.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    ///
    /// # Examples
    /// ```no_run
    /// # let world = trunkline::World::start()?;
    /// let bins = world.alloc::<u32>(8)?; // bin b is on rank b % size, at place b / size
    /// for value in [3_usize, 1, 4, 1, 5] {
    ///     world.inc(value % world.size(), bins.at(value / world.size()))?;
    /// }
    /// world.barrier()?; // the bins contain the values of all ranks
    /// # Ok::<(), trunkline::Error>(())
    /// ```
    pub fn inc<'a, T: Integer>(&self, rank: usize, at: impl Into<ElementPlace<'a, T>>) -> Result<(), Error> {
        self.post_atomic(rank, at.into(), AtomicAction::Add(T::ONE.to_word()))
    }

    /// Adds 1 to a word of a rank, wrapping, and returns its former value. OpenSHMEM's counterpart is
    /// `shmem_atomic_fetch_inc`.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    ///
    /// # Examples
    /// ```no_run
    /// # let world = trunkline::World::start()?;
    /// # fn run_task(_task: u64) {}
    /// let tickets = world.alloc_one::<u64>()?;
    /// loop {
    ///     let task: u64 = world.fetch_inc(0, &tickets)?; // no other rank gets this number
    ///     if task >= 400 {
    ///         break;
    ///     }
    ///     run_task(task);
    /// }
    /// # Ok::<(), trunkline::Error>(())
    /// ```
    pub fn fetch_inc<'a, T: Integer>(
        &self,
        rank: usize,
        at: impl Into<ElementPlace<'a, T>>,
    ) -> Result<T, Error> {
        self.fetch_atomic(rank, at.into(), AtomicAction::Add(T::ONE.to_word()))
    }
}

/// Defines the operations that exist with and without the former value, each with its example.
macro_rules! both {
    ($(
        $plain:ident, $fetching:ident, $action:ident, $does:literal,
        $plain_example:literal, $fetching_example:literal;
    )*) => {
        impl Context {$(
            #[doc = concat!($does, "; complete after a quiet.")]
            ///
            /// Returns when it is posted. OpenSHMEM's counterparts are the `shmem_atomic_*` calls without `fetch`.
            ///
            /// # Errors
            /// As [`put`](Self::put).
            ///
            /// # Examples
            /// ```no_run
            /// # let world = trunkline::World::start()?;
            #[doc = $plain_example]
            /// # Ok::<(), trunkline::Error>(())
            /// ```
            pub fn $plain<'a, T: Integer>(
                &self,
                rank: usize,
                at: impl Into<ElementPlace<'a, T>>,
                value: T,
            ) -> Result<(), Error> {
                self.post_atomic(rank, at.into(), AtomicAction::$action(value.to_word()))
            }

            #[doc = concat!($does, ", and returns its former value.")]
            ///
            /// Returns when the former value of the word has arrived. OpenSHMEM's counterparts are the
            /// `shmem_atomic_fetch_*` calls.
            ///
            /// # Errors
            /// As [`put`](Self::put).
            ///
            /// # Examples
            /// ```no_run
            /// # let world = trunkline::World::start()?;
            #[doc = $fetching_example]
            /// # Ok::<(), trunkline::Error>(())
            /// ```
            pub fn $fetching<'a, T: Integer>(
                &self,
                rank: usize,
                at: impl Into<ElementPlace<'a, T>>,
                value: T,
            ) -> Result<T, Error> {
                self.fetch_atomic(rank, at.into(), AtomicAction::$action(value.to_word()))
            }
        )*}
    };
}

both! {
    add, fetch_add, Add, "Adds to a word, wrapping",
        "let total = world.alloc_one::<u64>()?;\n\
         world.add(0, &total, 10)?; // the part of this rank\n\
         world.barrier()?; // rank 0 has the sum of all ranks",
        "let rows = world.alloc_one::<u64>()?;\n\
         let first: u64 = world.fetch_add(0, &rows, 16)?;\n\
         let mine = first..first + 16; // no other rank gets these 16 rows";
    and, fetch_and, And, "Keeps the bits of a word that `value` has",
        "let busy = world.alloc_one::<u64>()?; // one bit per rank, for up to 64 ranks\n\
         busy.store(u64::MAX);\n\
         world.sync()?;\n\
         let mine = 1_u64 << world.rank();\n\
         world.and(0, &busy, !mine)?; // clears the bit of this rank alone\n\
         world.quiet()?;",
        "let tasks = world.alloc_one::<u64>()?; // one bit per open task\n\
         tasks.store(u64::MAX);\n\
         world.sync()?;\n\
         let task = 1_u64 << 5;\n\
         let before: u64 = world.fetch_and(0, &tasks, !task)?;\n\
         let is_mine = before & task != 0; // no other rank has cleared the bit before";
    or, fetch_or, Or, "Sets the bits of a word that `value` has",
        "let busy = world.alloc_one::<u64>()?; // one bit per rank, for up to 64 ranks\n\
         let mine = 1_u64 << world.rank();\n\
         world.or(0, &busy, mine)?; // sets the bit of this rank alone\n\
         world.quiet()?;",
        "let taken = world.alloc_one::<u64>()?; // one bit per task\n\
         let task = 1_u64 << 5;\n\
         let before: u64 = world.fetch_or(0, &taken, task)?;\n\
         let is_mine = before & task == 0; // no other rank has set the bit before";
    xor, fetch_xor, Xor, "Inverts the bits of a word that `value` has",
        "let parity = world.alloc_one::<u64>()?;\n\
         world.xor(0, &parity, 1)?; // each rank inverts the lowest bit once\n\
         world.barrier()?; // it is 1 on rank 0 if the number of ranks is odd",
        "let side = world.alloc_one::<u64>()?;\n\
         let before: u64 = world.fetch_xor(0, &side, 1)?;\n\
         let buffer = before & 1; // callers get the two buffers 0 and 1 in turn";
}
