//! Atomics on words of any rank, its own included. Each word has one executor, the rank that has it or its NIC, so they are atomic
//! among each other whoever asks, and with what that rank does by the methods here. A word is for atomics or for signals, not both.

use trunkline_engine::rma::Fetch;
use trunkline_proto::mutant::Mutant;
use trunkline_proto::rma::atomic::{Action, Atomic};
use trunkline_proto::wire::rma::word::{self, Width};

use crate::context::Context;
use crate::error::Error;
use crate::pending::Pending;
use crate::shared::HEAP;
use crate::symmetric::Place;
use crate::wait::until;
use crate::word::{Integer, Word};

/// What an atomic does to a word whose former value it brings back. See [`Context::fetch_nbi`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fetching<T> {
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

impl<T: Word> Fetching<T> {
    fn action(self) -> Action {
        match self {
            Self::Fetch => Action::Fetch,
            Self::Swap(value) => Action::Set(value.to_word()),
            Self::Add(value) => Action::Add(value.to_word()),
            Self::And(value) => Action::And(value.to_word()),
            Self::Or(value) => Action::Or(value.to_word()),
            Self::Xor(value) => Action::Xor(value.to_word()),
            Self::CompareSwap { expect, swap } => {
                Action::CompareSwap { expect: expect.to_word(), swap: swap.to_word() }
            }
        }
    }
}

/// The word at an offset of the heap, which is aligned as allocations and elements are.
pub(crate) fn word_at<T: Word>(heap: u8, offset: u64) -> Result<word::Word, Error> {
    word::Word::new(heap, offset, T::TYPE.width()).map_err(|_| Error::Argument("no word can be there"))
}

impl Context {
    /// Executes an atomic, or asks a rank to. What it was, if it is known at once.
    fn begin<T: Word>(
        &self,
        rank: usize,
        at: Place<'_, T>,
        action: Action,
        fetches: bool,
    ) -> Result<Result<Fetch, u64>, Error> {
        let member = self.member(rank)?;
        let offset = self.offset(at, 1)?;
        let atomic = Atomic::new(T::TYPE, action, fetches)
            .ok_or(Error::Argument("there is no such atomic on numbers with a point"))?;
        let executes = self.shared.executes || T::TYPE.width() == Width::Four;
        if rank == self.rank() && executes {
            let heap = &self.shared.heap;
            let old = match T::TYPE.width() {
                Width::Eight => heap.update(offset, |old| atomic.apply(old, Mutant::NONE)),
                Width::Four => heap
                    .update_half(offset, |old| atomic.apply(old.into(), Mutant::NONE).map(|new| new as u32))
                    .map(u64::from),
            };
            return self.local(old).map(Err);
        }
        let word = word_at::<T>(HEAP, offset)?;
        until(self, || {
            self.collect()?;
            Ok(self.shared.job.atomic(self.id, member, word, atomic)?)
        })
        .map(Ok)
    }

    fn fetching<T: Word>(&self, rank: usize, at: Place<'_, T>, action: Action) -> Result<T, Error> {
        let value = match self.begin(rank, at, action, true)? {
            Ok(fetch) => until(self, || Ok(self.shared.job.fetched(self.id, fetch)?)).inspect_err(|_| {
                // What went wrong is told by that.
                let _ = self.shared.job.give_up(self.id, fetch);
            })?,
            Err(value) => value,
        };
        Ok(T::from_word(value))
    }

    fn changing<T: Word>(&self, rank: usize, at: Place<'_, T>, action: Action) -> Result<(), Error> {
        // Its answer is for a quiet.
        self.begin(rank, at, action, false).map(drop)
    }

    /// Asks for an atomic, and lets its value come later: up to 64 of a context may be on their way.
    ///
    /// # Errors
    /// As [`put`](Self::put); [`Error::Argument`] if there are 64, or there is no such atomic on the type.
    pub fn fetch_nbi<'a, T: Word>(
        &self,
        rank: usize,
        at: impl Into<Place<'a, T>>,
        what: Fetching<T>,
    ) -> Result<Pending<'_, T>, Error> {
        self.has_room()?;
        let begun = self.begin(rank, at.into(), what.action(), true)?;
        Ok(self.keep(begun))
    }

    /// Reads a word, whole.
    ///
    /// # Errors
    /// As [`put`](Self::put), and so all of these.
    pub fn fetch<'a, T: Word>(&self, rank: usize, at: impl Into<Place<'a, T>>) -> Result<T, Error> {
        self.fetching(rank, at.into(), Action::Fetch)
    }

    /// Replaces a word; complete after a quiet.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    pub fn set<'a, T: Word>(&self, rank: usize, at: impl Into<Place<'a, T>>, value: T) -> Result<(), Error> {
        self.changing(rank, at.into(), Action::Set(value.to_word()))
    }

    /// Replaces a word; what it was.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    pub fn swap<'a, T: Word>(&self, rank: usize, at: impl Into<Place<'a, T>>, value: T) -> Result<T, Error> {
        self.fetching(rank, at.into(), Action::Set(value.to_word()))
    }

    /// Replaces a word by `swap` if it is `expect`; what it was.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    pub fn compare_swap<'a, T: Integer>(
        &self,
        rank: usize,
        at: impl Into<Place<'a, T>>,
        expect: T,
        swap: T,
    ) -> Result<T, Error> {
        let expect = expect.to_word();
        let swap = swap.to_word();
        self.fetching(rank, at.into(), Action::CompareSwap { expect, swap })
    }

    /// Adds 1 to a word, wrapping; complete after a quiet.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    pub fn inc<'a, T: Integer>(&self, rank: usize, at: impl Into<Place<'a, T>>) -> Result<(), Error> {
        self.changing(rank, at.into(), Action::Add(T::ONE.to_word()))
    }

    /// Adds 1 to a word, wrapping; what it was.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    pub fn fetch_inc<'a, T: Integer>(&self, rank: usize, at: impl Into<Place<'a, T>>) -> Result<T, Error> {
        self.fetching(rank, at.into(), Action::Add(T::ONE.to_word()))
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
                at: impl Into<Place<'a, T>>,
                value: T,
            ) -> Result<(), Error> {
                self.changing(rank, at.into(), Action::$action(value.to_word()))
            }

            #[doc = concat!($does, "; what it was.")]
            ///
            /// # Errors
            /// As [`put`](Self::put).
            pub fn $fetching<'a, T: Integer>(
                &self,
                rank: usize,
                at: impl Into<Place<'a, T>>,
                value: T,
            ) -> Result<T, Error> {
                self.fetching(rank, at.into(), Action::$action(value.to_word()))
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
