//! The symmetric heap: `shmem_malloc` and its variants. They return a null pointer if the heap has no room, as C's
//! functions do.

use std::ffi::{c_long, c_void};

use crate::abi::export;
use crate::alloc::{HeapAllocation, is_valid_alignment};
use crate::error::Result;
use crate::pe::{ALIGN_MAX, Pe};
use crate::process_pe::{with_pe, with_pe_unless_ending};

/// The default alignment of allocations.
const ALIGN: usize = 64;

fn to_pointer(at: usize) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(at)
}

/// Returns the pointer. Prints a line if it is null because the heap is full: the resulting fault rarely shows its
/// cause.
pub(super) fn allocation_pointer(world: &Pe, call: &str, made: HeapAllocation, bytes: usize) -> *mut c_void {
    let me = world.symmetric_memory().own_pe();
    match made {
        HeapAllocation::At(at) => to_pointer(at),
        HeapAllocation::Nothing => std::ptr::null_mut(),
        HeapAllocation::Full => {
            if !world.told.swap(true, std::sync::atomic::Ordering::Relaxed) {
                let size = world.symmetric_memory().own_segments().0[crate::symmetric_segments::HEAP].len();
                eprintln!(
                    "trunkline: PE {me}: {call}: no room for {bytes} bytes in a symmetric heap of {size}; raise \
                     SHMEM_SYMMETRIC_SIZE"
                );
            }
            std::ptr::null_mut()
        }
        HeapAllocation::NoTables(pe) => {
            eprintln!(
                "trunkline: PE {me}: {call}: PE {pe} has no memory for the tables of its symmetric heap. End other \
                 programs, or raise the limit of the process (ulimit -v) or of its container (memory.max)"
            );
            std::ptr::null_mut()
        }
    }
}

export!("malloc" => fn(bytes: usize) -> *mut c_void {
    with_pe("shmem_malloc", |world| Ok(allocation_pointer(world, "shmem_malloc", world.malloc(bytes, ALIGN)?, bytes)))
});

export!("malloc_with_hints" => fn(bytes: usize, _hints: c_long) -> *mut c_void {
    let call = "shmem_malloc_with_hints";
    with_pe(call, |world| Ok(allocation_pointer(world, call, world.malloc(bytes, ALIGN)?, bytes)))
});

export!("calloc" => fn(count: usize, element: usize) -> *mut c_void {
    with_pe("shmem_calloc", |world| {
        let bytes = count.saturating_mul(element);
        Ok(allocation_pointer(world, "shmem_calloc", world.calloc(bytes)?, bytes))
    })
});

export!("align" => fn(alignment: usize, bytes: usize) -> *mut c_void {
    with_pe("shmem_align", |world| allocate_aligned(world, "shmem_align", alignment, bytes))
});

/// Allocates aligned bytes. Returns a null pointer, and prints a line, if the alignment is invalid.
pub(super) fn allocate_aligned(
    world: &Pe,
    call: &str,
    alignment: usize,
    bytes: usize,
) -> Result<*mut c_void> {
    if !is_valid_alignment(alignment) {
        eprintln!(
            "trunkline: PE {}: {call}: invalid alignment {alignment}; use a power of 2 up to {ALIGN_MAX}",
            world.symmetric_memory().own_pe()
        );
        return Ok(std::ptr::null_mut());
    }
    Ok(allocation_pointer(world, call, world.malloc(bytes, alignment)?, bytes))
}

export!("realloc" => fn(at: *mut c_void, bytes: usize) -> *mut c_void {
    with_pe("shmem_realloc", |world| Ok(allocation_pointer(world, "shmem_realloc", world.realloc(at.addr(), bytes)?, bytes)))
});

export!("free" => fn(at: *mut c_void) {
    with_pe_unless_ending("shmem_free", |world| world.free(at.addr()));
});
