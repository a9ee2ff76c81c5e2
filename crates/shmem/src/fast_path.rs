//! The fast path of calls with the default context, for memory of a PE that is mapped here: a few comparisons, then
//! the load, the store or the atomic. It reports no errors: in all other cases it returns `None`, and the call takes
//! the slow path, which handles all contexts and memory, and reports errors.

use std::ffi::{c_int, c_void};

use trunkline_mem::MemoryRange;
use trunkline_proto::rma::atomic::AtomicAction;
use trunkline_proto::wire::rma::word::WordWidth;

use crate::memory::atomics::execute_atomic;
use crate::memory::raw_memory;
use crate::process_pe;

/// Returns the mapped memory of a PE and the offset of the bytes. Indices of the default context are PE numbers.
#[inline(always)]
pub(crate) fn find_mapped(at: *const c_void, len: usize, pe: c_int) -> Option<(&'static MemoryRange, u64)> {
    process_pe::current_pe()?.symmetric_memory().find_mapped(at.addr(), len, usize::try_from(pe).ok()?)
}

/// Executes an atomic, and returns the former value of the word.
#[inline(always)]
pub(crate) fn fetch_one(at: *const c_void, width: WordWidth, action: AtomicAction, pe: c_int) -> Option<u64> {
    let (memory, offset) = find_mapped(at, width.byte_len() as usize, pe)?;
    execute_atomic(memory, offset, width, action).ok()
}

/// Puts bytes of this PE.
#[inline]
pub(crate) fn put(dest: *const c_void, source: *const c_void, len: usize, pe: c_int) -> Option<()> {
    let (memory, offset) = find_mapped(dest, len, pe)?;
    memory.copy_from(offset, &local_memory(source, len)?, 0, len as u64).ok()
}

/// Gets bytes into memory of this PE.
#[inline]
pub(crate) fn get(dest: *const c_void, source: *const c_void, len: usize, pe: c_int) -> Option<()> {
    let (memory, offset) = find_mapped(source, len, pe)?;
    local_memory(dest, len)?.copy_from(0, memory, offset, len as u64).ok()
}

/// Returns bytes of this PE at a C pointer.
#[inline(always)]
fn local_memory(at: *const c_void, len: usize) -> Option<MemoryRange> {
    (!at.is_null()).then(|| raw_memory(at.expose_provenance(), len))
}

/// Puts one element.
#[inline(always)]
pub(crate) fn put_one<T: bytemuck::NoUninit>(at: *const c_void, value: &T, pe: c_int) -> Option<()> {
    let (memory, offset) = find_mapped(at, size_of::<T>(), pe)?;
    memory.write(offset, bytemuck::bytes_of(value)).ok()
}

/// Gets one element.
#[inline(always)]
pub(crate) fn get_one<T: bytemuck::Pod>(at: *const c_void, pe: c_int) -> Option<T> {
    let (memory, offset) = find_mapped(at, size_of::<T>(), pe)?;
    let mut value = T::zeroed();
    memory.read(offset, bytemuck::bytes_of_mut(&mut value)).ok()?;
    Some(value)
}
