//! Waiting for words of this PE, and looking at them: one, or all, any and some of several, each with a value of its own or with the same.

use std::ffi::{c_int, c_void};
use std::sync::atomic::Ordering;

use trunkline_mem::Memory;

use crate::abi::table::waited;
use crate::abi::{bytes, export};
use crate::collect::memory;
use crate::error::{Error, Result};
use crate::pe::Pe;
use crate::rma::inside;
use crate::wait::Whom;
use crate::world::{self, with};

/// Comparisons, by their numbers in `shmem.h`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Compare {
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

impl Compare {
    /// That of a number.
    #[inline]
    fn of(number: c_int) -> Option<Self> {
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
    pub(super) fn named(number: c_int) -> Result<Self> {
        Self::of(number)
            .ok_or_else(|| Error::argument("cmp is one of SHMEM_CMP_EQ, _NE, _GT, _LE, _LT and _GE"))
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
pub(super) fn until<T>(world: &Pe, look: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    world.until(Whom::Anyone, look)
}

/// A word of a type.
pub(super) trait Word: PartialOrd + Copy {
    /// Reads it whole, and before anything that comes after.
    fn read(from: &Memory, at: u64) -> Result<Self>;
}

macro_rules! word {
    ($($of:ty, $read:ident);*) => {$(
        impl Word for $of {
            #[inline]
            fn read(from: &Memory, at: u64) -> Result<Self> {
                $read(from, at).map(|bits| bits as Self)
            }
        }
    )*};
}
word! { i16, two; u16, two; i32, four; u32, four; i64, eight; u64, eight }

#[inline]
fn two(from: &Memory, at: u64) -> Result<u16> {
    let mut bytes = [0; 2];
    inside(from.read(at, &mut bytes))?;
    std::sync::atomic::fence(Ordering::Acquire);
    Ok(u16::from_le_bytes(bytes))
}

#[inline]
fn four(from: &Memory, at: u64) -> Result<u32> {
    let word = from.half(at).map_err(|_| Error::Unaligned(from.addr() + at as usize))?;
    Ok(word.load(Ordering::Acquire))
}

#[inline]
fn eight(from: &Memory, at: u64) -> Result<u64> {
    from.load(at).map_err(|_| Error::Unaligned(from.addr() + at as usize))
}

/// Whether a word holds the comparison by now; `None` if it cannot be read, whose cause the long way reports. Inline: with a call of its own a wait takes 86 instructions, else 56.
#[inline(always)]
fn holds_now<T: Word>(word: *const c_void, cmp: c_int, value: &T) -> Option<bool> {
    world::quick()?;
    if word.is_null() {
        return None;
    }
    let word = memory(word.expose_provenance(), size_of::<T>());
    Some(Compare::of(cmp)?.holds(&T::read(&word, 0).ok()?, value))
}

/// Words of this PE, which of them count, and what they are compared with.
struct Words<T> {
    words: Memory,
    count: usize,
    skip: *const c_int,
    compare: Compare,
    /// One value, or one for each.
    values: Memory,
    each: bool,
    of: std::marker::PhantomData<T>,
}

impl<T: Word> Words<T> {
    fn new(
        (words, count): (*const c_void, usize),
        skip: *const c_int,
        cmp: c_int,
        (values, each): (*const T, bool),
    ) -> Result<Self> {
        let values_len = if each { count } else { 1 } * size_of::<T>();
        Ok(Self {
            words: bytes(words, count.saturating_mul(size_of::<T>()))?,
            count,
            skip,
            compare: Compare::named(cmp)?,
            values: bytes(values.cast(), values_len)?,
            each,
            of: std::marker::PhantomData,
        })
    }

    /// Which of them count.
    fn counted(&self) -> impl Iterator<Item = usize> {
        let none = self.skip.is_null() || self.each && crate::planted("shmem-vectors-count-all");
        let skip = memory(self.skip.expose_provenance(), if none { 0 } else { self.count * 4 });
        (0..self.count)
            .filter(move |&at| skip.is_empty() || four(&skip, at as u64 * 4).is_ok_and(|word| word == 0))
    }

    fn holds(&self, at: usize) -> Result<bool> {
        let word = T::read(&self.words, (at * size_of::<T>()) as u64)?;
        let value = T::read(&self.values, if self.each { (at * size_of::<T>()) as u64 } else { 0 })?;
        Ok(self.compare.holds(&word, &value))
    }

    fn all(&self) -> Result<bool> {
        for at in self.counted() {
            if !self.holds(at)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// One that holds: the first from `turn` on, so that each has its turn.
    fn any(&self, turn: usize) -> Result<Option<usize>> {
        let turn =
            if self.count > 0 && !crate::planted("shmem-looks-at-the-first") { turn % self.count } else { 0 };
        let mut before = None;
        for at in self.counted() {
            if (at >= turn || before.is_none()) && self.holds(at)? {
                if at >= turn {
                    return Ok(Some(at));
                }
                before = Some(at);
            }
        }
        Ok(before)
    }

    /// Writes the numbers of those that hold; how many.
    fn some(&self, indices: *mut usize) -> Result<usize> {
        let out = bytes(indices.cast(), self.count * 8)?;
        let mut found = 0;
        for at in self.counted() {
            if self.holds(at)? {
                inside(out.write(found * 8, &(at as u64).to_le_bytes()))?;
                found += 1;
            }
        }
        Ok(found as usize)
    }

    fn none(&self) -> bool {
        self.counted().next().is_none()
    }
}

/// What is said where no word counts.
const NOWHERE: usize = usize::MAX;

/// Looks once; what is found, if it is not `nothing`. Others' work here goes on meanwhile.
fn once<T: PartialEq>(world: &Pe, nothing: T, mut look: impl FnMut() -> Result<T>) -> Result<T> {
    let found = look()?;
    if let Some(far) = &world.far {
        far.progress()?;
    }
    if found == nothing
        && let Err(error) = world.in_vain()
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
            with(concat!("shmem_", $name, "_wait_until"), |world| {
                let (word, compare) = (bytes(word, size_of::<$of>())?, Compare::named(cmp)?);
                until(world, || Ok(compare.holds(&<$of>::read(&word, 0)?, &value).then_some(())))
            });
        });
        export!($name, "_test" => fn(word: *const c_void, cmp: c_int, value: $of) -> c_int {
            with(concat!("shmem_", $name, "_test"), |world| {
                let (word, compare) = (bytes(word, size_of::<$of>())?, Compare::named(cmp)?);
                once(world, 0, || Ok(compare.holds(&<$of>::read(&word, 0)?, &value).into()))
            })
        });
    };
}
waited!(one);

/// Several words, with one value or, as vectors, with several.
macro_rules! several {
    ($name:literal, $of:ty) => {
        several!(@ $name, $of, "", $of, |value: &$of| (&raw const *value, false));
        several!(@ $name, $of, "_vector", *const $of, |value: &*const $of| (*value, true));
    };
    (@ $name:literal, $of:ty, $vector:literal, $value:ty, $values:expr) => {
        export!($name, "_wait_until_all", $vector => fn(
            words: *const c_void,
            count: usize,
            skip: *const c_int,
            cmp: c_int,
            value: $value,
        ) {
            with(concat!("shmem_", $name, "_wait_until_all", $vector), |world| {
                let words = Words::<$of>::new((words, count), skip, cmp, ($values)(&value))?;
                until(world, || Ok(words.all()?.then_some(())))
            });
        });
        export!($name, "_wait_until_any", $vector => fn(
            words: *const c_void,
            count: usize,
            skip: *const c_int,
            cmp: c_int,
            value: $value,
        ) -> usize {
            with(concat!("shmem_", $name, "_wait_until_any", $vector), |world| {
                let words = Words::<$of>::new((words, count), skip, cmp, ($values)(&value))?;
                if words.none() {
                    return Ok(NOWHERE);
                }
                let turn = world.turn.fetch_add(1, Ordering::Relaxed);
                until(world, || words.any(turn))
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
            with(concat!("shmem_", $name, "_wait_until_some", $vector), |world| {
                let words = Words::<$of>::new((words, count), skip, cmp, ($values)(&value))?;
                if words.none() {
                    return Ok(0);
                }
                until(world, || Ok(Some(words.some(indices)?).filter(|found| *found > 0)))
            })
        });
        export!($name, "_test_all", $vector => fn(
            words: *const c_void,
            count: usize,
            skip: *const c_int,
            cmp: c_int,
            value: $value,
        ) -> c_int {
            with(concat!("shmem_", $name, "_test_all", $vector), |world| {
                let words = Words::<$of>::new((words, count), skip, cmp, ($values)(&value))?;
                once(world, 0, || Ok(words.all()?.into()))
            })
        });
        export!($name, "_test_any", $vector => fn(
            words: *const c_void,
            count: usize,
            skip: *const c_int,
            cmp: c_int,
            value: $value,
        ) -> usize {
            with(concat!("shmem_", $name, "_test_any", $vector), |world| {
                let words = Words::<$of>::new((words, count), skip, cmp, ($values)(&value))?;
                let turn = world.turn.fetch_add(1, Ordering::Relaxed);
                once(world, NOWHERE, || Ok(words.any(turn)?.unwrap_or(NOWHERE)))
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
            with(concat!("shmem_", $name, "_test_some", $vector), |world| {
                let words = Words::<$of>::new((words, count), skip, cmp, ($values)(&value))?;
                once(world, 0, || words.some(indices))
            })
        });
    };
}
waited!(several);
