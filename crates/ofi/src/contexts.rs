//! Places for the contexts of operations: libfabric may write into one as long as its operation lasts, and tells by its
//! address which operation ended. A queue has a fixed number of them, which stay where they are as long as anything that may
//! still complete on it.

use std::cell::UnsafeCell;
use std::ffi::c_void;

use trunkline_proto::reserve::{OutOfMemory, try_filled_with};
use trunkline_sys::ofi::Context2;

/// Number of a place, from 0. Which operation has which is for the caller to know: a place belongs to one operation until
/// that has completed, or was not taken.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct OpSlot(pub u32);

/// The places.
pub(crate) struct OpContexts {
    places: Box<[UnsafeCell<Context2>]>,
}

// SAFETY: only addresses of the places are given out, and only libfabric writes there.
unsafe impl Send for OpContexts {}
// SAFETY: as above.
unsafe impl Sync for OpContexts {}

impl OpContexts {
    /// So many.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub(crate) fn new(count: u32) -> Result<Self, OutOfMemory> {
        let empty = || UnsafeCell::new(Context2 { internal: [std::ptr::null_mut(); 8] });
        Ok(Self { places: try_filled_with(count as usize, empty)? })
    }

    /// The address of a place, if there is one of that number.
    #[inline]
    pub(crate) fn context_ptr(&self, slot: OpSlot) -> Option<*mut c_void> {
        self.places.get(slot.0 as usize).map(|place| place.get().cast())
    }

    /// The place at an address; none for what was posted without, and for what is none of these.
    #[inline]
    pub(crate) fn slot_at(&self, at: *mut c_void) -> Option<OpSlot> {
        let bytes = at.addr().checked_sub(self.places.as_ptr().addr())?;
        let index = bytes / size_of::<Context2>();
        let rest = bytes % size_of::<Context2>();
        // As many as were asked for by a number of 32 bits.
        (rest == 0 && index < self.places.len()).then_some(OpSlot(index as u32))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_and_numbers_belong_together() {
        let contexts = OpContexts::new(4).unwrap();
        for slot in (0..4).map(OpSlot) {
            assert_eq!(contexts.slot_at(contexts.context_ptr(slot).unwrap()), Some(slot));
        }
        assert_eq!(contexts.context_ptr(OpSlot(4)), None);
        assert_eq!(contexts.slot_at(std::ptr::null_mut()), None);
        let first = contexts.context_ptr(OpSlot(0)).unwrap().cast::<u8>();
        for strange in [1, 8, 63, 4 * 64] {
            assert_eq!(contexts.slot_at(first.wrapping_add(strange).cast()), None, "{strange}");
        }
        assert_eq!(contexts.slot_at(first.wrapping_sub(64).cast()), None);
    }
}
