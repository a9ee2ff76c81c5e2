//! Pages of host memory, which some providers require to exist before memory is registered.

use trunkline_mem::{MemoryKind, MemoryRange};

/// Makes the system allocate pages for memory that was never written (`FI_MR_ALLOCATED` in fi_mr(3)). The content does not change. If the
/// system cannot (before Linux 5.14, or for memory that is not writable) the call has no effect, and the provider may reject the registration.
pub(crate) fn populate_pages(memory: &MemoryRange) {
    if memory.kind() != MemoryKind::Host || memory.is_empty() {
        return;
    }
    // Whole pages, because madvise(2) rejects other addresses.
    let page = rustix::param::page_size();
    let start = memory.addr() / page * page;
    let len = (memory.addr() + memory.len()).next_multiple_of(page) - start;
    let at = std::ptr::with_exposed_provenance_mut(start);
    // SAFETY: the pages contain memory that is mapped; the advice allocates pages and changes no byte.
    let _ = unsafe { rustix::mm::madvise(at, len, rustix::mm::Advice::LinuxPopulateWrite) };
}
