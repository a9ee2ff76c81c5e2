//! Transfers of elements that are not consecutive. Called by programs through [`Context`]; they are made of puts and
//! gets, and a NIC needs no support for strides.

use bytemuck::Pod;
use trunkline_proto::reserve::try_filled;

use crate::context::Context;
use crate::error::Error;
use crate::shared_world::heap_address;
use crate::symmetric::ElementPlace;

/// The distances, in elements, from one element of a strided transfer to the next. A distance of 1 means consecutive
/// elements.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Strides {
    /// The distance at the rank that is written to or read from.
    pub remote: usize,
    /// The distance in the memory of the caller.
    pub local: usize,
}

/// The largest number of elements that a strided transfer packs at a time.
const PACKED: usize = 512;

/// Returns the number of elements from the first to the last of `count` strided ones.
fn strided_extent(count: usize, stride: usize) -> Result<usize, Error> {
    let far = count.saturating_sub(1).checked_mul(stride).and_then(|last| last.checked_add(count.min(1)));
    far.filter(|_| stride > 0)
        .ok_or(Error::Argument("the stride is 0, or the strided elements exceed the address space"))
}

impl Context {
    /// Writes `count` elements to a rank: every `strides.local`th element of `from` to every `strides.remote`th place
    /// from `to` on. Returns when `from` may be changed; the elements are visible at the target after a
    /// [`quiet`](Self::quiet). OpenSHMEM's counterpart is `shmem_iput`.
    ///
    /// # Errors
    /// As [`put`](Self::put); [`Error::Argument`] if a stride is 0 or `from` is too short; [`Error::Allocate`].
    ///
    /// # Examples
    /// ```no_run
    /// # use trunkline::Strides;
    /// # let world = trunkline::World::start()?;
    /// # let next = (world.rank() + 1) % world.size();
    /// let row = world.alloc::<f64>(10)?;
    /// let grid = [0.5_f64; 100]; // ten rows of ten elements
    /// // Column 3 has every tenth element from 3 on; they become consecutive at the next rank.
    /// world.put_strided(next, &row, &grid[3..], Strides { remote: 1, local: 10 }, 10)?;
    /// # Ok::<(), trunkline::Error>(())
    /// ```
    pub fn put_strided<'a, T: Pod>(
        &self,
        rank: usize,
        to: impl Into<ElementPlace<'a, T>>,
        from: &[T],
        strides: Strides,
        count: usize,
    ) -> Result<(), Error> {
        let to = to.into();
        if from.len() < strided_extent(count, strides.local)? {
            return Err(Error::Argument(
                "the slice has fewer elements than `count` elements at this stride span",
            ));
        }
        self.heap_offset(to, strided_extent(count, strides.remote)?)?;
        if strides.remote > 1 {
            // One put per element: other ranks may write the elements between them.
            return (0..count).try_for_each(|at| {
                let one = std::slice::from_ref(&from[at * strides.local]);
                self.put(rank, to.offset_by(at * strides.remote), one)
            });
        }
        if strides.local == 1 {
            return self.put(rank, to, &from[..count]);
        }
        let mut packed = try_filled(T::zeroed(), PACKED.min(count)).map_err(Error::Allocate)?;
        for first in (0..count).step_by(PACKED) {
            let some = PACKED.min(count - first);
            for (at, place) in packed[..some].iter_mut().enumerate() {
                *place = from[(first + at) * strides.local];
            }
            self.put(rank, to.offset_by(first), &packed[..some])?;
        }
        Ok(())
    }

    /// Reads `count` elements of a rank: every `strides.remote`th element from `from` on, to every `strides.local`th
    /// place of `into`. Returns when they have arrived. OpenSHMEM's counterpart is `shmem_iget`.
    ///
    /// # Errors
    /// As [`put_strided`](Self::put_strided), for `into`.
    ///
    /// # Examples
    /// ```no_run
    /// # use trunkline::Strides;
    /// # let world = trunkline::World::start()?;
    /// # let next = (world.rank() + 1) % world.size();
    /// let grid = world.alloc::<f64>(100)?; // ten rows of ten elements
    /// let mut column = [0.0_f64; 10];
    /// let strides = Strides { remote: 10, local: 1 };
    /// world.get_strided(next, grid.at(3), &mut column, strides, 10)?; // column 3 of the next rank
    /// # Ok::<(), trunkline::Error>(())
    /// ```
    pub fn get_strided<'a, T: Pod>(
        &self,
        rank: usize,
        from: impl Into<ElementPlace<'a, T>>,
        into: &mut [T],
        strides: Strides,
        count: usize,
    ) -> Result<(), Error> {
        let from = from.into();
        if into.len() < strided_extent(count, strides.local)? {
            return Err(Error::Argument(
                "the slice has fewer elements than `count` elements at this stride span",
            ));
        }
        self.heap_offset(from, strided_extent(count, strides.remote)?)?;
        let mut packed = try_filled(T::zeroed(), PACKED.min(count)).map_err(Error::Allocate)?;
        for first in (0..count).step_by(PACKED) {
            let some = PACKED.min(count - first);
            self.get_every(
                rank,
                from.offset_by(first * strides.remote),
                strides.remote,
                &mut packed[..some],
            )?;
            for (at, value) in packed[..some].iter().enumerate() {
                into[(first + at) * strides.local] = *value;
            }
        }
        Ok(())
    }

    /// Reads every `stride`th element; all gets are under way at the same time.
    fn get_every<T: Pod>(
        &self,
        rank: usize,
        from: ElementPlace<'_, T>,
        stride: usize,
        into: &mut [T],
    ) -> Result<(), Error> {
        if stride == 1 || rank == self.rank() {
            let span = if stride == 1 { into.len() } else { 1 };
            return into
                .chunks_mut(span)
                .enumerate()
                .try_for_each(|(at, some)| self.get(rank, from.offset_by(at * stride), some));
        }
        let member = self.member_id(rank)?;
        let begin = self.heap_offset(from, 1)?;
        let apart = (stride * size_of::<T>()) as u64;
        let address_of = |number| heap_address(member, begin + number as u64 * apart);
        Ok(self.fabric_calls().get_elements(size_of::<T>(), bytemuck::cast_slice_mut(into), address_of)?)
    }
}
