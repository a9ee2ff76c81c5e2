//! Places for the contexts of operations: libfabric may write into one as long as its operation lasts, and tells by its
//! address which operation ended. A queue has a fixed number of them, which stay where they are as long as anything that may
//! still complete on it.

use std::cell::UnsafeCell;
use std::ffi::c_void;

use trunkline_proto::reserve::{OutOfMemory, try_filled_with};
use trunkline_sys::ofi::Context2;

use crate::mutant::Planted;

/// Number of a place, from 0. Which operation has which is for the caller to know: a place belongs to one operation until
/// that has completed, or was not taken.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Slot(pub u32);

/// The places.
pub(crate) struct Contexts {
    places: Box<[UnsafeCell<Context2>]>,
    mixes: Planted,
}

// SAFETY: only addresses of the places are given out, and only libfabric writes there.
unsafe impl Send for Contexts {}
// SAFETY: as above.
unsafe impl Sync for Contexts {}

impl Contexts {
    /// So many.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub(crate) fn new(count: u32) -> Result<Self, OutOfMemory> {
        let empty = || UnsafeCell::new(Context2 { internal: [std::ptr::null_mut(); 8] });
        let places = if Planted::named("ofi-aborts-without-memory").is_on() {
            std::iter::repeat_with(empty).take(count as usize).collect()
        } else {
            try_filled_with(count as usize, empty)?
        };
        Ok(Self { places, mixes: Planted::named("ofi-mixes-contexts") })
    }

    /// The address of a place, if there is one of that number.
    #[inline]
    pub(crate) fn at(&self, slot: Slot) -> Option<*mut c_void> {
        self.places.get(slot.0 as usize).map(|place| place.get().cast())
    }

    /// The place at an address; none for what was posted without, and for what is none of these.
    #[inline]
    pub(crate) fn slot(&self, at: *mut c_void) -> Option<Slot> {
        let bytes = at.addr().checked_sub(self.places.as_ptr().addr())?;
        let index = bytes / size_of::<Context2>();
        let rest = bytes % size_of::<Context2>();
        let index = if self.mixes.is_on() { index ^ 1 } else { index };
        // As many as were asked for by a number of 32 bits.
        (rest == 0 && index < self.places.len()).then_some(Slot(index as u32))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_and_numbers_belong_together() {
        let contexts = Contexts::new(4).unwrap();
        for slot in (0..4).map(Slot) {
            assert_eq!(contexts.slot(contexts.at(slot).unwrap()), Some(slot));
        }
        assert_eq!(contexts.at(Slot(4)), None);
        assert_eq!(contexts.slot(std::ptr::null_mut()), None);
        let first = contexts.at(Slot(0)).unwrap().cast::<u8>();
        for strange in [1, 8, 63, 4 * 64] {
            assert_eq!(contexts.slot(first.wrapping_add(strange).cast()), None, "{strange}");
        }
        assert_eq!(contexts.slot(first.wrapping_sub(64).cast()), None);
    }
}
