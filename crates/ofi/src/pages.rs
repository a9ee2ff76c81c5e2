//! Pages of host memory, which some providers want to be there before memory is registered.

use trunkline_mem::{MemoryKind, MemoryRange};

/// Has the system give pages to memory that was never written. Nothing changes in it. Where the system cannot (before Linux
/// 5.14, or the memory is not for writing) the pages are as they are, and the provider says what it thinks of it.
pub(crate) fn populate_pages(memory: &MemoryRange) {
    if memory.kind() != MemoryKind::Host || memory.is_empty() {
        return;
    }
    let page = rustix::param::page_size();
    let start = memory.addr() / page * page;
    let len = (memory.addr() + memory.len()).next_multiple_of(page) - start;
    let at = std::ptr::with_exposed_provenance_mut(start);
    // SAFETY: the pages are those of memory that is mapped; this gives them what backs them and changes no byte.
    let _ = unsafe { rustix::mm::madvise(at, len, rustix::mm::Advice::LinuxPopulateWrite) };
}
