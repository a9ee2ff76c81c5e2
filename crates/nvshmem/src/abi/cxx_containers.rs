//! C++ containers that cross the interface, read in libstdc++'s layout: the elements of a vector, and a value of a
//! map.

use core::ffi::c_void;

use trunkline_sys::nvshmem::{StdUnorderedMap, StdVector};

use super::guard::{borrow, read_pointer};
use crate::error::{CallError, Result};

/// The largest number of elements of one call. NVSHMEM splits an operation where memory is registered in pieces.
const MOST: usize = 1 << 16;

/// The elements of a vector.
#[derive(Clone, Copy, Debug)]
pub(super) struct VectorElements<T> {
    first: *const T,
    pub(super) count: usize,
}

impl<T: Copy> VectorElements<T> {
    /// Returns the elements of a vector.
    ///
    /// # Safety
    /// If not null, `vector` points to a `std::vector<T>` that no thread changes while the result is used.
    pub(super) unsafe fn from_vector(vector: *const StdVector<T>) -> Result<Self> {
        // SAFETY: by the contract of this function.
        let vector = unsafe { read_pointer(vector, "null vector") }?;
        let bytes = (vector.end as usize).checked_sub(vector.begin as usize);
        let count = bytes.map(|bytes| bytes / size_of::<T>()).filter(|&count| count <= MOST);
        let count = count.ok_or(CallError::Argument(
            "invalid vector: negative length, or too many elements for one call",
        ))?;
        Ok(Self { first: vector.begin, count })
    }

    /// Returns one element.
    pub(super) fn element_at(&self, index: usize) -> Result<T> {
        if index >= self.count {
            return Err(CallError::Argument("index beyond the end of a vector"));
        }
        // SAFETY: `index` is less than `count`, so this is an element of the vector, which is unchanged by the
        // contract of `from_vector`.
        unsafe { read_pointer(self.first.wrapping_add(index), "null vector") }
    }
}

/// Returns the value of a key, if the map has it.
///
/// # Safety
/// If not null, `map` points to a `std::unordered_map<void *, void *>` that no thread changes during the call.
pub(super) unsafe fn find_value(
    map: *const StdUnorderedMap,
    key: *const c_void,
) -> Result<Option<*const c_void>> {
    if map.is_null() {
        return Ok(None);
    }
    // SAFETY: by the contract of this function.
    let map = unsafe { read_pointer(map, "null map") }?;
    let mut node = map.first;
    // libstdc++ links all nodes in one list of `count` nodes.
    for _ in 0..map.count {
        // SAFETY: `node` is null, or a node of the map, which no thread changes during the call.
        let Ok(at) = (unsafe { borrow(node, "null node") }) else { break };
        if at.key == key {
            return Ok(Some(at.value));
        }
        node = at.next;
    }
    Ok(None)
}
