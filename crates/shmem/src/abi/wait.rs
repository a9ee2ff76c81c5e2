//! Waits and tests of words of this PE: one word, or all, any and some of several, with one value for all or one
//! each.

use std::ffi::{c_int, c_void};
use std::mem::ManuallyDrop;
use std::sync::atomic::Ordering;

use trunkline_mem::MemoryRange;

use crate::abi::table::waited;
use crate::abi::{caller_memory, export};
use crate::error::{Result, ShmemError};
use crate::memory::raw_memory;
use crate::memory::rma::map_bounds_error;
use crate::memory::wait::ExpectedPe;
use crate::pe::Pe;
use crate::process_pe::{self, with_pe};

/// Comparisons, by their numbers in `shmem.h`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum CompareOp {
    /// `SHMEM_CMP_EQ`
    Equal,
    /// `SHMEM_CMP_NE`
    Different,
    /// `SHMEM_CMP_GT`
    Greater,
    /// `SHMEM_CMP_LE`
    NotGreater,
    /// `SHMEM_CMP_LT`
    Less,
    /// `SHMEM_CMP_GE`
    NotLess,
}

impl CompareOp {
    /// Returns the comparison with a code.
    #[inline]
    fn from_code(number: c_int) -> Option<Self> {
        Some(match number {
            1 => Self::Equal,
            2 => Self::Different,
            3 => Self::Greater,
            4 => Self::NotGreater,
            5 => Self::Less,
            6 => Self::NotLess,
            _ => return None,
        })
    }

    /// Returns the comparison with a code, or an error.
    pub(super) fn check_code(number: c_int) -> Result<Self> {
        Self::from_code(number).ok_or_else(|| {
            ShmemError::invalid_argument("cmp must be SHMEM_CMP_EQ, _NE, _GT, _LE, _LT or _GE")
        })
    }

    /// Returns whether the comparison holds.
    #[inline]
    pub(super) fn holds<T: PartialOrd>(self, one: &T, other: &T) -> bool {
        match self {
            Self::Equal => one == other,
            Self::Different => one != other,
            Self::Greater => one > other,
            Self::NotGreater => one <= other,
            Self::Less => one < other,
            Self::NotLess => one >= other,
        }
    }
}

/// Waits for a write by any other PE.
pub(super) fn wait_until<T>(world: &Pe, look: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    world.symmetric_memory().wait_until(ExpectedPe::Anyone, look)
}

/// A type of words.
pub(super) trait WaitWord: PartialOrd + Copy {
    /// Reads a word whole, before all later accesses.
    fn read(from: &MemoryRange, at: u64) -> Result<Self>;
}

macro_rules! word {
    ($($of:ty, $read:ident);*) => {$(
        impl WaitWord for $of {
            #[inline]
            fn read(from: &MemoryRange, at: u64) -> Result<Self> {
                $read(from, at).map(|bits| bits as Self)
            }
        }
    )*};
}
word! { i16, read_u16; u16, read_u16; i32, read_u32; u32, read_u32; i64, read_u64; u64, read_u64 }

#[inline]
fn read_u16(from: &MemoryRange, at: u64) -> Result<u16> {
    let mut bytes = [0; 2];
    map_bounds_error(from.read(at, &mut bytes))?;
    std::sync::atomic::fence(Ordering::Acquire);
    Ok(u16::from_le_bytes(bytes))
}

#[inline]
fn read_u32(from: &MemoryRange, at: u64) -> Result<u32> {
    let word = from.atomic_half_word(at).map_err(|_| ShmemError::Unaligned(from.addr() + at as usize))?;
    Ok(word.load(Ordering::Acquire))
}

#[inline]
fn read_u64(from: &MemoryRange, at: u64) -> Result<u64> {
    from.load(at).map_err(|_| ShmemError::Unaligned(from.addr() + at as usize))
}

/// Returns whether a word satisfies the comparison now; `None` if it cannot be read, which the slow path reports.
/// Inlined: a wait takes 42 instructions, with a call some 30 more.
#[inline(always)]
fn holds_now<T: WaitWord>(word: *const c_void, cmp: c_int, value: &T) -> Option<bool> {
    process_pe::current_pe()?;
    if word.is_null() {
        return None;
    }
    // It owns nothing, so dropping it would only cost instructions.
    let word = ManuallyDrop::new(raw_memory(word.expose_provenance(), size_of::<T>()));
    Some(CompareOp::from_code(cmp)?.holds(&T::read(&word, 0).ok()?, value))
}

/// Waits until a word satisfies the comparison. Not inlined: a call whose word satisfies it already must not pay for
/// the registers of a wait.
#[inline(never)]
fn wait_for_word<T: WaitWord>(name: &'static str, word: *const c_void, cmp: c_int, value: T) {
    with_pe(name, |world| {
        let word = caller_memory(word, size_of::<T>())?;
        let compare = CompareOp::check_code(cmp)?;
        wait_until(world, || Ok(compare.holds(&T::read(&word, 0)?, &value).then_some(())))
    });
}

/// Words of this PE, the selection among them, and the values to compare with.
struct WaitWords<T> {
    words: MemoryRange,
    count: usize,
    skip: *const c_int,
    compare: CompareOp,
    /// One value, or one value per word.
    values: MemoryRange,
    each: bool,
    of: std::marker::PhantomData<T>,
}

impl<T: WaitWord> WaitWords<T> {
    fn new(
        words: *const c_void,
        count: usize,
        skip: *const c_int,
        cmp: c_int,
        values: *const T,
        each: bool,
    ) -> Result<Self> {
        let values_len = if each { count } else { 1 } * size_of::<T>();
        Ok(Self {
            words: caller_memory(words, count.saturating_mul(size_of::<T>()))?,
            count,
            skip,
            compare: CompareOp::check_code(cmp)?,
            values: caller_memory(values.cast(), values_len)?,
            each,
            of: std::marker::PhantomData,
        })
    }

    /// Returns the indices of the selected words.
    fn counted_indices(&self) -> impl Iterator<Item = usize> {
        let none = self.skip.is_null();
        let skip = raw_memory(self.skip.expose_provenance(), if none { 0 } else { self.count * 4 });
        (0..self.count)
            .filter(move |&at| skip.is_empty() || read_u32(&skip, at as u64 * 4).is_ok_and(|word| word == 0))
    }

    fn holds_at(&self, at: usize) -> Result<bool> {
        let word = T::read(&self.words, (at * size_of::<T>()) as u64)?;
        let value = T::read(&self.values, if self.each { (at * size_of::<T>()) as u64 } else { 0 })?;
        Ok(self.compare.holds(&word, &value))
    }

    fn test_all(&self) -> Result<bool> {
        for at in self.counted_indices() {
            if !self.holds_at(at)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns a word that satisfies the comparison: the first from `turn` on, so that no word starves.
    fn find_any(&self, turn: usize) -> Result<Option<usize>> {
        let turn = if self.count > 0 { turn % self.count } else { 0 };
        let mut before = None;
        for at in self.counted_indices() {
            if (at >= turn || before.is_none()) && self.holds_at(at)? {
                if at >= turn {
                    return Ok(Some(at));
                }
                before = Some(at);
            }
        }
        Ok(before)
    }

    /// Writes the indices of the words that satisfy the comparison, and returns their number.
    fn write_satisfied(&self, indices: *mut usize) -> Result<usize> {
        let out = caller_memory(indices.cast(), self.count * 8)?;
        let mut found = 0;
        for at in self.counted_indices() {
            if self.holds_at(at)? {
                map_bounds_error(out.write(found * 8, &(at as u64).to_le_bytes()))?;
                found += 1;
            }
        }
        Ok(found as usize)
    }

    fn is_all_skipped(&self) -> bool {
        self.counted_indices().next().is_none()
    }
}

/// The result if no word is selected.
const NOWHERE: usize = usize::MAX;

/// Tests once, drives the fabric, and returns the result of `look`. If it is `nothing`, other PEs are checked, at most
/// every 50 ms.
fn test_once<T: PartialEq>(world: &Pe, nothing: T, mut look: impl FnMut() -> Result<T>) -> Result<T> {
    let found = look()?;
    if let Some(far) = world.symmetric_memory().find_fabric() {
        far.progress()?;
    }
    if found == nothing
        && let Err(error) = world.symmetric_memory().count_failed_test()
    {
        // The last write of an ended PE may have arrived after the test.
        let found = look()?;
        return if found == nothing { Err(error) } else { Ok(found) };
    }
    Ok(found)
}

macro_rules! one {
    ($name:literal, $of:ty) => {
        export!($name, "_wait_until" => fn(word: *const c_void, cmp: c_int, value: $of) {
            if holds_now(word, cmp, &value) == Some(true) {
                return;
            }
            wait_for_word(concat!("shmem_", $name, "_wait_until"), word, cmp, value);
        });
        export!($name, "_test" => fn(word: *const c_void, cmp: c_int, value: $of) -> c_int {
            with_pe(concat!("shmem_", $name, "_test"), |world| {
                let (word, compare) = (caller_memory(word, size_of::<$of>())?, CompareOp::check_code(cmp)?);
                test_once(world, 0, || Ok(compare.holds(&<$of>::read(&word, 0)?, &value).into()))
            })
        });
    };
}
waited!(one);

/// Defines the functions for several words, with one value or a vector of values.
macro_rules! several {
    ($name:literal, $of:ty) => {
        several!(@ $name, $of, "", $of, |value: &$of| &raw const *value, false);
        several!(@ $name, $of, "_vector", *const $of, |value: &*const $of| *value, true);
    };
    (@ $name:literal, $of:ty, $vector:literal, $value:ty, $values:expr, $each:literal) => {
        export!($name, "_wait_until_all", $vector => fn(
            words: *const c_void,
            count: usize,
            skip: *const c_int,
            cmp: c_int,
            value: $value,
        ) {
            with_pe(concat!("shmem_", $name, "_wait_until_all", $vector), |world| {
                let words = WaitWords::<$of>::new(words, count, skip, cmp, ($values)(&value), $each)?;
                wait_until(world, || Ok(words.test_all()?.then_some(())))
            });
        });
        export!($name, "_wait_until_any", $vector => fn(
            words: *const c_void,
            count: usize,
            skip: *const c_int,
            cmp: c_int,
            value: $value,
        ) -> usize {
            with_pe(concat!("shmem_", $name, "_wait_until_any", $vector), |world| {
                let words = WaitWords::<$of>::new(words, count, skip, cmp, ($values)(&value), $each)?;
                if words.is_all_skipped() {
                    return Ok(NOWHERE);
                }
                let turn = world.turn.fetch_add(1, Ordering::Relaxed);
                wait_until(world, || words.find_any(turn))
            })
        });
        export!($name, "_wait_until_some", $vector => fn(
            words: *const c_void,
            count: usize,
            indices: *mut usize,
            skip: *const c_int,
            cmp: c_int,
            value: $value,
        ) -> usize {
            with_pe(concat!("shmem_", $name, "_wait_until_some", $vector), |world| {
                let words = WaitWords::<$of>::new(words, count, skip, cmp, ($values)(&value), $each)?;
                if words.is_all_skipped() {
                    return Ok(0);
                }
                wait_until(world, || Ok(Some(words.write_satisfied(indices)?).filter(|found| *found > 0)))
            })
        });
        export!($name, "_test_all", $vector => fn(
            words: *const c_void,
            count: usize,
            skip: *const c_int,
            cmp: c_int,
            value: $value,
        ) -> c_int {
            with_pe(concat!("shmem_", $name, "_test_all", $vector), |world| {
                let words = WaitWords::<$of>::new(words, count, skip, cmp, ($values)(&value), $each)?;
                test_once(world, 0, || Ok(words.test_all()?.into()))
            })
        });
        export!($name, "_test_any", $vector => fn(
            words: *const c_void,
            count: usize,
            skip: *const c_int,
            cmp: c_int,
            value: $value,
        ) -> usize {
            with_pe(concat!("shmem_", $name, "_test_any", $vector), |world| {
                let words = WaitWords::<$of>::new(words, count, skip, cmp, ($values)(&value), $each)?;
                let turn = world.turn.fetch_add(1, Ordering::Relaxed);
                test_once(world, NOWHERE, || Ok(words.find_any(turn)?.unwrap_or(NOWHERE)))
            })
        });
        export!($name, "_test_some", $vector => fn(
            words: *const c_void,
            count: usize,
            indices: *mut usize,
            skip: *const c_int,
            cmp: c_int,
            value: $value,
        ) -> usize {
            with_pe(concat!("shmem_", $name, "_test_some", $vector), |world| {
                let words = WaitWords::<$of>::new(words, count, skip, cmp, ($values)(&value), $each)?;
                test_once(world, 0, || words.write_satisfied(indices))
            })
        });
    };
}
waited!(several);
