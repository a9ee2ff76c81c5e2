//! Symmetric objects: memory that every rank has at the same offset of its heap, allocated by
//! [`World::alloc`](crate::World::alloc). This file reads and writes a rank's own part, and names places for calls
//! that access the parts of other ranks. It does not communicate.

use std::fmt;
use std::marker::PhantomData;

use bytemuck::Pod;
use trunkline_mem::MemoryRange;
use trunkline_proto::reserve::try_filled;

use crate::error::Error;
use crate::word::Word;

/// A symmetric object: `len` elements on each rank, in the symmetric heap. Other ranks access them by puts, gets,
/// atomics and signals.
///
/// A rank reads and writes its own elements by the methods here. They copy, because other ranks may write at any
/// moment, which no `&[T]` allows. A [`Word`] (32 or 64 bits) is read and written whole. A longer element may be
/// partly old and partly new while another rank writes it: wait for a signal that follows the put.
///
/// Dropping it frees nothing, because ranks might drop objects in different orders.
/// [`World::free`](crate::World::free) frees it, or the end of the world.
pub struct SymmetricSlice<T> {
    heap: MemoryRange,
    offset: u64,
    len: usize,
    element: PhantomData<fn() -> T>,
}

/// An element of a symmetric object, and the elements after it: the begin of a put or get, or the word of an atomic
/// or signal.
#[derive(Debug)]
pub struct ElementPlace<'a, T> {
    slice: &'a SymmetricSlice<T>,
    index: usize,
}

impl<T> Clone for ElementPlace<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for ElementPlace<'_, T> {}

impl<T: Pod> SymmetricSlice<T> {
    /// Wraps the bytes at `offset` of the heap, which the caller has allocated.
    pub(crate) fn new(heap: MemoryRange, offset: u64, len: usize) -> Self {
        Self { heap, offset, len, element: PhantomData }
    }

    /// Returns the number of elements on each rank.
    ///
    /// # Examples
    /// ```no_run
    /// # let world = trunkline::World::start()?;
    /// let slots = world.alloc::<u64>(world.size())?;
    /// assert_eq!(slots.len(), world.size()); // equal on all ranks
    /// assert!(!slots.is_empty());
    /// # Ok::<(), trunkline::Error>(())
    /// ```
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the object has no elements.
    ///
    /// See [`len`](Self::len) for an example.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the place of the element with that index, on the rank that a call names. Calls with an index out of
    /// range return [`Error::Range`].
    ///
    /// # Examples
    /// ```no_run
    /// # use trunkline::Error;
    /// # let world = trunkline::World::start()?;
    /// let slots = world.alloc::<u64>(world.size())?;
    /// world.put(0, slots.at(world.rank()), &[7])?; // this rank's slot in the part of rank 0
    /// let outside = world.put(0, slots.at(slots.len()), &[7]); // the put checks the index
    /// assert!(matches!(outside, Err(Error::Range { .. })));
    /// # Ok::<(), Error>(())
    /// ```
    #[inline]
    #[must_use]
    pub fn at(&self, index: usize) -> ElementPlace<'_, T> {
        ElementPlace { slice: self, index }
    }

    pub(crate) fn heap_offset(&self) -> u64 {
        self.offset
    }

    pub(crate) fn is_in(&self, heap: &MemoryRange) -> bool {
        self.heap.addr() == heap.addr()
    }

    fn own_offset(&self, index: usize, count: usize) -> u64 {
        assert!(
            index.checked_add(count).is_some_and(|end| end <= self.len),
            "{count} elements from index {index} on exceed a symmetric object of {}",
            self.len
        );
        self.offset + (index * size_of::<T>()) as u64
    }

    /// Copies elements of this rank into `into`, from `index` on.
    ///
    /// # Panics
    /// If the object does not have the elements, as slices do.
    ///
    /// # Examples
    /// ```no_run
    /// # let world = trunkline::World::start()?;
    /// let cells = world.alloc::<f64>(100)?;
    /// let mut edge = [0.0_f64; 10];
    /// cells.read(90, &mut edge); // the last ten elements of this rank
    /// # Ok::<(), trunkline::Error>(())
    /// ```
    #[inline]
    pub fn read(&self, index: usize, into: &mut [T]) {
        let offset = self.own_offset(index, into.len());
        let read = self.heap.read(offset, bytemuck::cast_slice_mut(into));
        debug_assert!(read.is_ok());
    }

    /// Writes elements of this rank, from `index` on.
    ///
    /// # Panics
    /// As [`read`](Self::read).
    ///
    /// # Examples
    /// ```no_run
    /// # let world = trunkline::World::start()?;
    /// # let next = (world.rank() + 1) % world.size();
    /// let cells = world.alloc::<f64>(100)?;
    /// cells.write(0, &[100.0, 50.0]); // the first two elements of this rank
    /// world.sync()?; // all ranks have written theirs
    /// let heat: f64 = world.get_one(next, cells.at(1))?;
    /// # Ok::<(), trunkline::Error>(())
    /// ```
    #[inline]
    pub fn write(&self, index: usize, from: &[T]) {
        let offset = self.own_offset(index, from.len());
        let written = self.heap.write(offset, bytemuck::cast_slice(from));
        debug_assert!(written.is_ok());
    }

    /// Copies all elements of this rank. Without memory for them the process aborts, as with any `Vec`; see
    /// [`try_to_vec`](Self::try_to_vec).
    ///
    /// # Examples
    /// ```no_run
    /// # let world = trunkline::World::start()?;
    /// let slots = world.alloc::<u64>(world.size())?;
    /// world.put(0, slots.at(world.rank()), &[7])?;
    /// world.barrier()?;
    /// let sum: u64 = slots.to_vec().iter().sum(); // 7 per rank on rank 0, else 0
    /// # Ok::<(), trunkline::Error>(())
    /// ```
    #[must_use]
    pub fn to_vec(&self) -> Vec<T> {
        let mut all = vec![T::zeroed(); self.len];
        self.read(0, &mut all);
        all
    }

    /// Copies all elements of this rank, and returns an error where memory is exhausted.
    ///
    /// # Errors
    /// [`Error::Allocate`].
    ///
    /// # Examples
    /// ```no_run
    /// # let world = trunkline::World::start()?;
    /// let cells = world.alloc::<f64>(4_000_000)?;
    /// // Where 32 MB are not available, the call returns an error; the process does not abort.
    /// let copy: Vec<f64> = cells.try_to_vec()?;
    /// # Ok::<(), trunkline::Error>(())
    /// ```
    pub fn try_to_vec(&self) -> Result<Vec<T>, Error> {
        let mut all = try_filled(T::zeroed(), self.len).map_err(Error::Allocate)?.into_vec();
        self.read(0, &mut all);
        Ok(all)
    }

    /// Sets all elements of this rank to `value`.
    ///
    /// # Examples
    /// ```no_run
    /// # let world = trunkline::World::start()?;
    /// # let next = (world.rank() + 1) % world.size();
    /// let cells = world.alloc::<f64>(100)?;
    /// cells.fill(-1.0); // marks elements that no rank has written
    /// world.sync()?; // a put of another rank must not be overwritten by the fill
    /// world.put(next, cells.at(5), &[20.0])?;
    /// # Ok::<(), trunkline::Error>(())
    /// ```
    pub fn fill(&self, value: T) {
        self.set_first(self.len, value);
    }

    /// Sets the first elements of this rank to zero.
    pub(crate) fn clear(&self, count: usize) {
        self.set_first(count, T::zeroed());
    }

    fn set_first(&self, count: usize, value: T) {
        let some = [value; 64];
        for index in (0..count).step_by(some.len()) {
            self.write(index, &some[..some.len().min(count - index)]);
        }
    }
}

impl<T: Word> SymmetricSlice<T> {
    /// Reads one element of this rank, whole, and returns it. Once it is the value of a signal, data that was put
    /// before that signal can be read.
    ///
    /// # Panics
    /// As [`read`](Self::read).
    ///
    /// # Examples
    /// ```no_run
    /// # let world = trunkline::World::start()?;
    /// # let next = (world.rank() + 1) % world.size();
    /// let slots = world.alloc::<u64>(4)?;
    /// world.put(next, slots.at(2), &[7])?;
    /// world.barrier()?;
    /// assert_eq!(slots.load(2), 7);
    /// # Ok::<(), trunkline::Error>(())
    /// ```
    #[inline]
    #[must_use]
    pub fn load(&self, index: usize) -> T {
        let offset = self.own_offset(index, 1);
        T::from_word(crate::word::load_word::<T>(&self.heap, offset))
    }

    /// Writes one element of this rank, whole. A rank that reads it also reads earlier writes of this rank.
    ///
    /// # Panics
    /// As [`read`](Self::read).
    ///
    /// # Examples
    /// ```no_run
    /// # let world = trunkline::World::start()?;
    /// let data = world.alloc::<f64>(100)?;
    /// let states = world.alloc::<u64>(4)?;
    /// data.write(0, &[1.5; 100]);
    /// states.store(2, 1); // a rank that reads this 1 from here also reads the data
    /// # Ok::<(), trunkline::Error>(())
    /// ```
    #[inline]
    pub fn store(&self, index: usize, value: T) {
        let offset = self.own_offset(index, 1);
        crate::word::store_word::<T>(&self.heap, offset, value.to_word());
    }
}

impl<T> fmt::Debug for SymmetricSlice<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SymmetricSlice({} elements at {:#x} of the heap)", self.len, self.offset)
    }
}

impl<'a, T: Pod> ElementPlace<'a, T> {
    /// Returns the offset in the heap where `count` elements from here on begin.
    #[inline]
    pub(crate) fn checked_offset(self, count: usize) -> Result<u64, Error> {
        let index = self.index;
        let len = self.slice.len;
        match index.checked_add(count) {
            Some(end) if end <= len => Ok(self.slice.offset + (index * size_of::<T>()) as u64),
            _ => Err(Error::Range { index, count, len }),
        }
    }

    /// Returns the place `by` elements further on.
    #[inline]
    pub(crate) fn offset_by(self, by: usize) -> Self {
        Self { index: self.index.saturating_add(by), ..self }
    }

    pub(crate) fn symmetric_slice(self) -> &'a SymmetricSlice<T> {
        self.slice
    }
}

impl<'a, T: Pod> From<&'a SymmetricSlice<T>> for ElementPlace<'a, T> {
    /// The first element.
    #[inline]
    fn from(slice: &'a SymmetricSlice<T>) -> Self {
        slice.at(0)
    }
}

/// A symmetric object of one value on each rank.
#[derive(Debug)]
pub struct Symmetric<T>(SymmetricSlice<T>);

impl<T: Pod> Symmetric<T> {
    pub(crate) fn new(slice: SymmetricSlice<T>) -> Self {
        Self(slice)
    }

    pub(crate) fn into_slice(self) -> SymmetricSlice<T> {
        self.0
    }
}

impl<T: Word> Symmetric<T> {
    /// Reads this rank's value, as [`SymmetricSlice::load`] does.
    ///
    /// # Examples
    /// ```no_run
    /// # let world = trunkline::World::start()?;
    /// let counter = world.alloc_one::<u64>()?;
    /// world.inc(0, &counter)?; // each rank counts itself at rank 0
    /// world.barrier()?;
    /// if world.rank() == 0 {
    ///     assert_eq!(counter.load(), world.size() as u64);
    /// }
    /// # Ok::<(), trunkline::Error>(())
    /// ```
    #[inline]
    #[must_use]
    pub fn load(&self) -> T {
        self.0.load(0)
    }

    /// Writes this rank's value, as [`SymmetricSlice::store`] does.
    ///
    /// # Examples
    /// ```no_run
    /// # let world = trunkline::World::start()?;
    /// # let next = (world.rank() + 1) % world.size();
    /// let tickets = world.alloc_one::<u64>()?;
    /// tickets.store(1000); // the first ticket of this rank
    /// world.sync()?; // no rank takes a ticket before all ranks have stored their first ones
    /// let ticket: u64 = world.fetch_inc(next, &tickets)?;
    /// # Ok::<(), trunkline::Error>(())
    /// ```
    #[inline]
    pub fn store(&self, value: T) {
        self.0.store(0, value);
    }
}

impl<'a, T: Pod> From<&'a Symmetric<T>> for ElementPlace<'a, T> {
    #[inline]
    fn from(value: &'a Symmetric<T>) -> Self {
        value.0.at(0)
    }
}
