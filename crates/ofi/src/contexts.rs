//! Contexts of operations. libfabric may write into a context while its operation is in flight (`FI_CONTEXT`,
//! `FI_CONTEXT2` in fi_getinfo(3)), and returns its address with the completion. A queue has a fixed number of
//! contexts, which keep their addresses until no operation can complete on the queue any more.

use std::cell::UnsafeCell;
use std::ffi::c_void;

use trunkline_proto::reserve::{OutOfMemory, try_filled_with};
use trunkline_sys::ofi::Context2;

/// Index of a context, from 0. The caller assigns contexts to operations: each belongs to one operation until that has completed or was
/// rejected.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct OpSlot(pub u32);

/// The contexts of a queue.
pub(crate) struct OpContexts {
    places: Box<[UnsafeCell<Context2>]>,
}

// SAFETY: only addresses of the contexts are handed out, and only libfabric writes to them.
unsafe impl Send for OpContexts {}
// SAFETY: as above.
unsafe impl Sync for OpContexts {}

impl OpContexts {
    /// Allocates `count` contexts.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub(crate) fn new(count: u32) -> Result<Self, OutOfMemory> {
        let empty = || UnsafeCell::new(Context2 { internal: [std::ptr::null_mut(); 8] });
        Ok(Self { places: try_filled_with(count as usize, empty)? })
    }

    /// Returns the address of a context, if the index is valid.
    #[inline]
    pub(crate) fn context_ptr(&self, slot: OpSlot) -> Option<*mut c_void> {
        self.places.get(slot.0 as usize).map(|place| place.get().cast())
    }

    /// Returns the index of the context at an address; `None` for operations without a context and for foreign addresses.
    #[inline]
    pub(crate) fn slot_at(&self, at: *mut c_void) -> Option<OpSlot> {
        // By arithmetic and not by a dereference, because a provider may return a pointer that is not from this table.
        let bytes = at.addr().checked_sub(self.places.as_ptr().addr())?;
        let index = bytes / size_of::<Context2>();
        let rest = bytes % size_of::<Context2>();
        // The cast cannot truncate, because the number of contexts is a `u32`.
        (rest == 0 && index < self.places.len()).then_some(OpSlot(index as u32))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_and_addresses_convert_both_ways() {
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
