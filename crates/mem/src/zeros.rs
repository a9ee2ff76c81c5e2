//! Zeroed buffers private to this process, from an allocator that may fail. Used by fabrics and hosts for the buffers of sockets and copies. It
//! never writes zeros to pages that the system has zeroed already, so that an unused buffer uses no memory.

use std::alloc::{Layout, alloc_zeroed};

use trunkline_proto::reserve::OutOfMemory;

/// Allocates `len` zeroed bytes.
///
/// # Errors
/// [`OutOfMemory`].
pub fn try_zeros(len: usize) -> Result<Box<[u8]>, OutOfMemory> {
    let no_memory = OutOfMemory { bytes: len };
    if len == 0 {
        return Ok(Box::default());
    }
    let layout = Layout::array::<u8>(len).map_err(|_| no_memory)?;
    // SAFETY: the layout has at least one byte.
    let start = unsafe { alloc_zeroed(layout) };
    if start.is_null() {
        return Err(no_memory);
    }
    let bytes = std::ptr::slice_from_raw_parts_mut(start, len);
    // SAFETY: the global allocator returned these bytes for the layout of a slice of bytes, all are initialized, and the pointer has no other
    // user.
    Ok(unsafe { Box::from_raw(bytes) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeros_have_the_requested_length() {
        for len in [0, 1, 4096, 100_001] {
            let zeros = try_zeros(len).unwrap();
            assert!(zeros.len() == len && zeros.iter().all(|byte| *byte == 0));
        }
    }

    #[test]
    fn zeros_beyond_an_address_space_are_refused() {
        for len in [usize::MAX, isize::MAX as usize, 1 << 62] {
            assert_eq!(try_zeros(len).unwrap_err(), OutOfMemory { bytes: len });
        }
    }

    /// Bytes of this process that take memory.
    fn resident() -> usize {
        let text = std::fs::read_to_string("/proc/self/statm").unwrap();
        text.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 4096
    }

    #[test]
    fn unused_zeros_use_no_memory() {
        const LEN: usize = 64 << 20;
        let before = resident();
        let zeros = try_zeros(LEN).unwrap();
        let after = resident();
        assert!(after.saturating_sub(before) < LEN / 2, "{} bytes", after - before);
        drop(zeros);
    }
}
