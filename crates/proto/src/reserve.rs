//! Fallible allocations: those of 4 KiB and more, and those whose size a peer, a caller or a setting chooses. Every crate with such tables
//! calls these functions. A failed allocation is an [`OutOfMemory`] error and never ends the process.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// The system has no memory for an allocation.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error(
    "no memory for {bytes} bytes; use a smaller setting, end other programs, or raise the limit of the process (ulimit -v) or of its \
     container (memory.max)"
)]
pub struct OutOfMemory {
    /// Requested bytes.
    pub bytes: usize,
}

/// Makes an empty vector with room for `room` entries.
///
/// # Errors
/// [`OutOfMemory`] if the system has no memory for it.
pub fn try_vec<T>(room: usize) -> Result<Vec<T>, OutOfMemory> {
    let mut made = Vec::new();
    match made.try_reserve_exact(room) {
        Ok(()) => Ok(made),
        Err(_) => Err(out_of::<T>(room)),
    }
}

/// Makes a queue with room for `room` entries.
///
/// # Errors
/// [`OutOfMemory`] if the system has no memory for it.
pub fn try_deque<T>(room: usize) -> Result<VecDeque<T>, OutOfMemory> {
    let mut made = VecDeque::new();
    match made.try_reserve_exact(room) {
        Ok(()) => Ok(made),
        Err(_) => Err(out_of::<T>(room)),
    }
}

/// Makes a slice of `len` copies of a value.
///
/// # Errors
/// [`OutOfMemory`] if the system has no memory for it.
pub fn try_filled<T: Clone>(value: T, len: usize) -> Result<Box<[T]>, OutOfMemory> {
    let mut made = try_vec(len)?;
    made.resize(len, value);
    Ok(made.into_boxed_slice())
}

/// Makes a slice of `len` values, each by a call of `make`.
///
/// # Errors
/// [`OutOfMemory`] if the system has no memory for it.
pub fn try_filled_with<T>(len: usize, make: impl FnMut() -> T) -> Result<Box<[T]>, OutOfMemory> {
    let mut made = try_vec(len)?;
    made.resize_with(len, make);
    Ok(made.into_boxed_slice())
}

/// Collects items whose number is known into a vector.
///
/// # Errors
/// [`OutOfMemory`] if the system has no memory for it.
pub fn try_collect<T>(items: impl ExactSizeIterator<Item = T>) -> Result<Vec<T>, OutOfMemory> {
    let mut made = try_vec(items.len())?;
    made.extend(items);
    Ok(made)
}

/// Makes room for `more` entries after those in a vector.
///
/// # Errors
/// [`OutOfMemory`] if the system has no memory for it; the vector is unchanged.
pub fn try_grow<T>(entries: &mut Vec<T>, more: usize) -> Result<(), OutOfMemory> {
    entries.try_reserve(more).map_err(|_| out_of::<T>(entries.len().saturating_add(more)))
}

fn out_of<T>(entries: usize) -> OutOfMemory {
    OutOfMemory { bytes: entries.saturating_mul(size_of::<T>()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_beyond_an_address_space_is_refused() {
        let refused = OutOfMemory { bytes: usize::MAX };
        assert_eq!(try_vec::<u64>(usize::MAX).unwrap_err(), refused);
        assert_eq!(try_deque::<u64>(usize::MAX).unwrap_err(), refused);
        assert_eq!(try_filled(7_u64, usize::MAX).unwrap_err(), refused);
        assert_eq!(try_filled_with(usize::MAX, || 7_u64).unwrap_err(), refused);
        let mut kept = try_vec(2).unwrap();
        kept.push(1_u64);
        assert_eq!(try_grow(&mut kept, usize::MAX).unwrap_err(), refused);
        assert_eq!(kept, [1]);
    }

    #[test]
    fn tables_have_the_requested_length() {
        assert_eq!(*try_filled(7, 3).unwrap(), [7; 3]);
        let mut next = 0;
        let count = || {
            next += 1;
            next
        };
        assert_eq!(*try_filled_with(3, count).unwrap(), [1, 2, 3]);
        assert!(try_vec::<u8>(9).unwrap().capacity() >= 9);
        assert!(try_deque::<u8>(9).unwrap().capacity() >= 9);
    }
}
