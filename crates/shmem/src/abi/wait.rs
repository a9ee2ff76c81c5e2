//! Waiting for words of this PE, and looking at them: one, or all, any and some of several, each with a value of its own or with the same.

use std::ffi::{c_int, c_void};
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
    /// That of a number.
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

    /// The same, or what is wrong.
    pub(super) fn check_code(number: c_int) -> Result<Self> {
        Self::from_code(number).ok_or_else(|| {
            ShmemError::invalid_argument("cmp is one of SHMEM_CMP_EQ, _NE, _GT, _LE, _LT and _GE")
        })
    }

    /// Whether it holds.
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

/// Waits for what others write here.
pub(super) fn wait_until<T>(world: &Pe, look: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    world.symmetric_memory().wait_until(ExpectedPe::Anyone, look)
}

/// A word of a type.
pub(super) trait WaitWord: PartialOrd + Copy {
    /// Reads it whole, and before anything that comes after.
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

/// Whether a word holds the comparison by now; `None` if it cannot be read, whose cause the long way reports. Inline: with a call of its own a wait takes 86 instructions, else 56.
#[inline(always)]
fn holds_now<T: WaitWord>(word: *const c_void, cmp: c_int, value: &T) -> Option<bool> {
    process_pe::current_pe()?;
    if word.is_null() {
        return None;
    }
    let word = raw_memory(word.expose_provenance(), size_of::<T>());
    Some(CompareOp::from_code(cmp)?.holds(&T::read(&word, 0).ok()?, value))
}

/// Words of this PE, which of them count, and what they are compared with.
struct WaitWords<T> {
    words: MemoryRange,
    count: usize,
    skip: *const c_int,
    compare: CompareOp,
    /// One value, or one for each.
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

    /// Which of them count.
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

    /// One that holds: the first from `turn` on, so that each has its turn.
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

    /// Writes the numbers of those that hold; how many.
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

/// What is said where no word counts.
const NOWHERE: usize = usize::MAX;

/// Looks once; what is found, if it is not `nothing`. Others' work here goes on meanwhile.
fn test_once<T: PartialEq>(world: &Pe, nothing: T, mut look: impl FnMut() -> Result<T>) -> Result<T> {
    let found = look()?;
    if let Some(far) = world.symmetric_memory().find_fabric() {
        far.progress()?;
    }
    if found == nothing
        && let Err(error) = world.symmetric_memory().count_failed_test()
    {
        // What who has ended did last may have come in the meantime.
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
            with_pe(concat!("shmem_", $name, "_wait_until"), |world| {
                let (word, compare) = (caller_memory(word, size_of::<$of>())?, CompareOp::check_code(cmp)?);
                wait_until(world, || Ok(compare.holds(&<$of>::read(&word, 0)?, &value).then_some(())))
            });
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

/// Several words, with one value or, as vectors, with several.
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
