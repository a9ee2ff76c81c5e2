//! Atomics on words of any rank, its own included. Each word has one executor, the rank that has it or its NIC, so they are atomic
//! among each other whoever asks, and with what that rank does by the methods here. A word is for atomics or for signals, not both.

use trunkline_engine::rma::FetchHandle;
use trunkline_proto::rma::atomic::{AtomicAction, TypedAtomic};
use trunkline_proto::wire::rma::word::{self, WordWidth};

use crate::context::Context;
use crate::error::Error;
use crate::pending::PendingFetch;
use crate::shared_world::HEAP;
use crate::symmetric::ElementPlace;
use crate::word::{Integer, Word};

/// What an atomic does to a word whose former value it brings back. See [`Context::fetch_nbi`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FetchOp<T> {
    /// Reads it.
    Fetch,
    /// Replaces it.
    Swap(T),
    /// Adds to it; whole numbers wrap.
    Add(T),
    /// Keeps the bits that this has. Whole numbers only, like all that follow.
    And(T),
    /// Sets the bits that this has.
    Or(T),
    /// Turns the bits that this has.
    Xor(T),
    /// Replaces it by `swap` if it is `expect`.
    CompareSwap {
        /// What it must be.
        expect: T,
        /// What it becomes.
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

/// The word at an offset of the heap, which is aligned as allocations and elements are.
pub(crate) fn word_at<T: Word>(heap: u8, offset: u64) -> Result<word::SymmetricWord, Error> {
    word::SymmetricWord::new(heap, offset, T::TYPE.word_width())
        .map_err(|_| Error::Argument("no word can be there"))
}

impl Context {
    /// Executes an atomic, or asks a rank to. What it was, if it is known at once.
    fn begin_atomic<T: Word>(
        &self,
        rank: usize,
        at: ElementPlace<'_, T>,
        action: AtomicAction,
        fetches: bool,
    ) -> Result<Result<FetchHandle, u64>, Error> {
        let member = self.member_id(rank)?;
        let offset = self.heap_offset(at, 1)?;
        let atomic = TypedAtomic::new(T::TYPE, action, fetches)
            .ok_or(Error::Argument("there is no such atomic on numbers with a point"))?;
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
        // Its answer is for a quiet.
        self.begin_atomic(rank, at, action, false).map(drop)
    }

    /// Asks for an atomic, and lets its value come later: up to 64 of a context may be on their way.
    ///
    /// # Errors
    /// As [`put`](Self::put); [`Error::Argument`] if there are 64, or there is no such atomic on the type.
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

    /// Reads a word, whole.
    ///
    /// # Errors
    /// As [`put`](Self::put), and so all of these.
    pub fn fetch<'a, T: Word>(&self, rank: usize, at: impl Into<ElementPlace<'a, T>>) -> Result<T, Error> {
        self.fetch_atomic(rank, at.into(), AtomicAction::Fetch)
    }

    /// Replaces a word; complete after a quiet.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    pub fn set<'a, T: Word>(
        &self,
        rank: usize,
        at: impl Into<ElementPlace<'a, T>>,
        value: T,
    ) -> Result<(), Error> {
        self.post_atomic(rank, at.into(), AtomicAction::Set(value.to_word()))
    }

    /// Replaces a word; what it was.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    pub fn swap<'a, T: Word>(
        &self,
        rank: usize,
        at: impl Into<ElementPlace<'a, T>>,
        value: T,
    ) -> Result<T, Error> {
        self.fetch_atomic(rank, at.into(), AtomicAction::Set(value.to_word()))
    }

    /// Replaces a word by `swap` if it is `expect`; what it was.
    ///
    /// # Errors
    /// As [`put`](Self::put).
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

    /// Adds 1 to a word, wrapping; complete after a quiet.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    pub fn inc<'a, T: Integer>(&self, rank: usize, at: impl Into<ElementPlace<'a, T>>) -> Result<(), Error> {
        self.post_atomic(rank, at.into(), AtomicAction::Add(T::ONE.to_word()))
    }

    /// Adds 1 to a word, wrapping; what it was.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    pub fn fetch_inc<'a, T: Integer>(
        &self,
        rank: usize,
        at: impl Into<ElementPlace<'a, T>>,
    ) -> Result<T, Error> {
        self.fetch_atomic(rank, at.into(), AtomicAction::Add(T::ONE.to_word()))
    }
}

/// Those that exist with and without the value that was there.
macro_rules! both {
    ($($plain:ident, $fetching:ident, $action:ident, $does:literal;)*) => {
        impl Context {$(
            #[doc = concat!($does, "; complete after a quiet.")]
            ///
            /// # Errors
            /// As [`put`](Self::put).
            pub fn $plain<'a, T: Integer>(
                &self,
                rank: usize,
                at: impl Into<ElementPlace<'a, T>>,
                value: T,
            ) -> Result<(), Error> {
                self.post_atomic(rank, at.into(), AtomicAction::$action(value.to_word()))
            }

            #[doc = concat!($does, "; what it was.")]
            ///
            /// # Errors
            /// As [`put`](Self::put).
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
    add, fetch_add, Add, "Adds to a word, wrapping";
    and, fetch_and, And, "Keeps the bits of a word that `value` has";
    or, fetch_or, Or, "Sets the bits of a word that `value` has";
    xor, fetch_xor, Xor, "Turns the bits of a word that `value` has";
}
