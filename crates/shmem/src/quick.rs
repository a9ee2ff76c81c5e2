//! The short way of a call that names bytes of a PE by the default context, where that PE's memory is mapped here: a few compares, then the
//! load, the store or the atomic. It makes no errors: for whatever it does not find it gives nothing, and the call goes the long way, which
//! does the same for all contexts and memory, and says what is wrong.

use std::ffi::{c_int, c_void};

use trunkline_mem::Memory;
use trunkline_proto::rma::atomic::Action;
use trunkline_proto::wire::rma::word::Width;

use crate::atomics::execute;
use crate::collect::memory;
use crate::world;

/// Where bytes of a PE are mapped, and how far in they begin. The default context's indices are PEs.
#[inline(always)]
pub(crate) fn find(at: *const c_void, len: usize, pe: c_int) -> Option<(&'static Memory, u64)> {
    let world = world::quick()?;
    let near = world.near.get(usize::try_from(pe).ok()?)?;
    let place = world.segments.find(at.addr(), len)?;
    Some((near.segment(place.segment)?, place.offset))
}

/// Executes an atomic; what the word was.
#[inline(always)]
pub(crate) fn fetch(at: *const c_void, width: Width, action: Action, pe: c_int) -> Option<u64> {
    let (memory, offset) = find(at, width.bytes() as usize, pe)?;
    execute(memory, offset, width, action).ok()
}

/// Puts bytes of this PE.
#[inline]
pub(crate) fn put(dest: *const c_void, source: *const c_void, len: usize, pe: c_int) -> Option<()> {
    let (memory, offset) = find(dest, len, pe)?;
    memory.copy_from(offset, &own(source, len)?, 0, len as u64).ok()
}

/// Gets bytes into this PE.
#[inline]
pub(crate) fn get(dest: *const c_void, source: *const c_void, len: usize, pe: c_int) -> Option<()> {
    let (memory, offset) = find(source, len, pe)?;
    own(dest, len)?.copy_from(0, memory, offset, len as u64).ok()
}

/// Bytes of this PE that C names.
#[inline(always)]
fn own(at: *const c_void, len: usize) -> Option<Memory> {
    (!at.is_null()).then(|| memory(at.expose_provenance(), len))
}

/// Puts one element.
#[inline(always)]
pub(crate) fn put_one<T: bytemuck::NoUninit>(at: *const c_void, value: &T, pe: c_int) -> Option<()> {
    let (memory, offset) = find(at, size_of::<T>(), pe)?;
    memory.write(offset, bytemuck::bytes_of(value)).ok()
}

/// Gets one element.
#[inline(always)]
pub(crate) fn get_one<T: bytemuck::Pod>(at: *const c_void, pe: c_int) -> Option<T> {
    let (memory, offset) = find(at, size_of::<T>(), pe)?;
    let mut value = T::zeroed();
    memory.read(offset, bytemuck::bytes_of_mut(&mut value)).ok()?;
    Some(value)
}
