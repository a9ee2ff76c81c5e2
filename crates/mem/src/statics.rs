//! The writable static variables of this program, as memory that other processes of its host map: pages of data and bss are replaced in place
//! by a memory file with the same contents. Called once, early, by front ends in which static variables are symmetric. It does not include
//! pages that the dynamic linker made read-only, nor the variables of libraries.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::OnceLock;

use rustix::mm::{MapFlags, MremapFlags, ProtFlags};

use crate::ipc::CallFailure;
use crate::ipc::mapping::{cause_of, create_sized_file};
use crate::shared_copy::copy_shared;
use crate::shared_memory::SharedMemory;
use crate::{MemoryKind, MemoryRange};

/// Page size, in bytes.
const PAGE: usize = 4096;

/// The address range of the program's static variables.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct StaticVariables {
    addr: usize,
    len: usize,
}

/// The range that a forked child has to replace. The fork handlers take no argument, and a process has one program.
static MADE: OnceLock<StaticVariables> = OnceLock::new();

thread_local! {
    /// Address of the copy for the child that this thread forks; 0 without one. Per thread, because several threads may fork at once.
    static COPY: Cell<usize> = const { Cell::new(0) };
}

impl StaticVariables {
    /// Returns the range of this program: all pages of its last writable segment that stay writable.
    #[must_use]
    pub fn find() -> Option<Self> {
        let mut found = None;
        // SAFETY: `note` is called only before this returns, each time with a live description and the pointer to `found`.
        unsafe { libc::dl_iterate_phdr(Some(note), ptr::from_mut(&mut found).cast()) };
        found
    }

    /// Returns the address of the first byte.
    #[must_use]
    pub fn addr(&self) -> usize {
        self.addr
    }

    /// Returns the length, in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the range is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the bytes in place, not shared with any other process.
    ///
    /// # Safety
    /// No Rust reference to static variables of the program exists while methods of the result run.
    #[must_use]
    pub unsafe fn memory(&self) -> MemoryRange {
        // SAFETY: the program is never unmapped, and these pages are writable; the caller guarantees the rest.
        unsafe { MemoryRange::from_raw(self.addr, self.len, MemoryKind::Host) }
    }

    /// Replaces the variables in place by a memory file with the same contents. A forked child still gets a private copy. Call it at most once per
    /// process.
    ///
    /// # Safety
    /// No other thread changes static variables of the program during the call; and as [`StaticVariables::memory`].
    ///
    /// # Errors
    /// The system's error; the variables are then unchanged.
    pub unsafe fn share_as_file(self) -> Result<SharedMemory, CallFailure> {
        let file = create_sized_file("trunkline.statics", self.len as u64)?;
        // SAFETY: the pages are mapped for the lifetime of the program, and the caller guarantees that no thread changes them during the call.
        let bytes =
            unsafe { std::slice::from_raw_parts(ptr::with_exposed_provenance::<u8>(self.addr), self.len) };
        let mut done = 0;
        while done < bytes.len() {
            match rustix::io::pwrite(&file, &bytes[done..], done as u64) {
                Ok(0) => return Err(CallFailure::System { call: "pwrite", code: libc::EIO }),
                Ok(more) => done += more,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(cause_of("pwrite")(error)),
            }
        }
        let at = ptr::with_exposed_provenance_mut(self.addr);
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        // SAFETY: the call atomically replaces writable pages of the program by pages with the same contents and protection; the caller guarantees
        // that the contents did not change since they were copied.
        unsafe { rustix::mm::mmap(at, self.len, protection, flags, &file, 0) }.map_err(cause_of("mmap"))?;
        if MADE.set(self).is_ok() {
            // SAFETY: the three functions live until this library is unloaded, which must not happen while the program
            // runs.
            unsafe { libc::pthread_atfork(Some(before_fork), Some(after_fork), Some(in_child)) };
        }
        // SAFETY: the range stays mapped for the lifetime of the process; the caller guarantees that no references exist.
        let memory = unsafe { self.memory() };
        SharedMemory::from_file(file, memory)
    }
}

/// Stores the range of the first object, which is the program, and stops the iteration.
unsafe extern "C" fn note(info: *mut libc::dl_phdr_info, _size: usize, out: *mut c_void) -> c_int {
    // SAFETY: the linker passes a live description.
    let info = unsafe { &*info };
    // SAFETY: the description states the number of headers, which are mapped.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    // SAFETY: `StaticVariables::find` passes this pointer to a local variable, which no other code uses during the iteration.
    let found = unsafe { &mut *out.cast::<Option<StaticVariables>>() };
    *found = of_headers(headers, info.dlpi_addr as usize);
    1
}

/// Returns the last writable segment without the pages that become read-only.
fn of_headers(headers: &[libc::Elf64_Phdr], base: usize) -> Option<StaticVariables> {
    let writable =
        |header: &&libc::Elf64_Phdr| header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_W != 0;
    let range = |header: &libc::Elf64_Phdr| {
        let start = base.wrapping_add(header.p_vaddr as usize);
        (start, start.wrapping_add(header.p_memsz as usize))
    };
    let segment = headers.iter().filter(writable).max_by_key(|header| header.p_vaddr)?;
    let (mut start, end) = range(segment);
    start &= !(PAGE - 1);
    let end = end.checked_next_multiple_of(PAGE)?;
    for relro in headers.iter().filter(|header| header.p_type == libc::PT_GNU_RELRO) {
        let (from, to) = range(relro);
        if from < end && to > start {
            // The linker protects whole pages, up to the page in which the range ends.
            start = start.max(to & !(PAGE - 1));
        }
    }
    (start < end).then(|| StaticVariables { addr: start, len: end - start })
}

/// Copies the variables to a new private mapping; `None` if there is no memory.
fn copy_statics(statics: &StaticVariables) -> Option<*mut c_void> {
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::PRIVATE;
    // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
    let made = unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), statics.len, protection, flags) };
    let copy = made.ok()?;
    let from = ptr::with_exposed_provenance::<u8>(statics.addr);
    // SAFETY: both ranges are mapped and `statics.len` long, and the copy is new. Other threads of the program may change its variables during the
    // copy, which `copy_shared` allows.
    unsafe { copy_shared(from, copy.cast(), statics.len) };
    Some(copy)
}

/// Makes a copy for the child, which must not see later changes of the parent's variables.
unsafe extern "C" fn before_fork() {
    let Some(statics) = MADE.get() else { return };
    COPY.set(copy_statics(statics).map_or(0, <*mut c_void>::expose_provenance));
}

unsafe extern "C" fn after_fork() {
    let (Some(statics), copy) = (MADE.get(), COPY.replace(0)) else { return };
    if copy != 0 {
        // SAFETY: `before_fork` made this mapping, and no other code has its address.
        let _ = unsafe { rustix::mm::munmap(ptr::with_exposed_provenance_mut(copy), statics.len) };
    }
}

unsafe extern "C" fn in_child() {
    let (Some(statics), copy) = (MADE.get(), COPY.replace(0)) else { return };
    // The child may have memory although the parent had none.
    let from = if copy == 0 { copy_statics(statics) } else { Some(ptr::with_exposed_provenance_mut(copy)) };
    let to = ptr::with_exposed_provenance_mut(statics.addr);
    let moved = from.is_some_and(|from| {
        // SAFETY: moves the copy over the parent's pages, with the same contents and protection; the child has only this thread.
        unsafe { rustix::mm::mremap_fixed(from, statics.len, statics.len, MremapFlags::MAYMOVE, to) }.is_ok()
    });
    if !moved {
        // The child must not continue: its changes would affect the parent's variables.
        let line =
            b"trunkline: a child of a fork ends: no memory for static variables of its own (vm.overcommit_memory, ulimit -v)\n";
        // SAFETY: writes the bytes of a live slice.
        unsafe { libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), line.len()) };
        // SAFETY: ends the child, which has not yet run any code of the program.
        unsafe { libc::_exit(1) };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    fn header(kind: u32, flags: u32, at: u64, len: u64) -> libc::Elf64_Phdr {
        libc::Elf64_Phdr {
            p_type: kind,
            p_flags: flags,
            p_offset: 0,
            p_vaddr: at,
            p_paddr: at,
            p_filesz: len,
            p_memsz: len,
            p_align: 4096,
        }
    }

    #[test]
    fn read_only_pages_are_excluded() {
        let rx = libc::PF_R | libc::PF_X;
        let rw = libc::PF_R | libc::PF_W;
        let load = |flags, at, len| header(libc::PT_LOAD, flags, at, len);
        let text = load(rx, 0x1000, 0x500);
        let found = |headers: &[libc::Elf64_Phdr]| {
            of_headers(headers, 0x10_0000).map(|statics| (statics.addr - 0x10_0000, statics.len))
        };
        assert_eq!(found(&[text]), None);
        assert_eq!(found(&[text, load(rw, 0x3dc8, 0x1240)]), Some((0x3000, 0x3000)));
        let relro = header(libc::PT_GNU_RELRO, libc::PF_R, 0x3dc8, 0x238);
        assert_eq!(found(&[text, load(rw, 0x3dc8, 0x1240), relro]), Some((0x4000, 0x2000)));
        assert_eq!(found(&[text, load(rw, 0x3dc8, 0x238), relro]), None, "no writable page remains");
        // As another linker lays it out: two segments.
        let apart = [text, load(rw, 0x3dc8, 0x238), relro, load(rw, 0x5008, 0x10)];
        assert_eq!(found(&apart), Some((0x5000, 0x1000)));
    }

    #[test]
    fn static_variables_of_this_program_are_found() {
        static HERE: AtomicUsize = AtomicUsize::new(7);
        let statics = StaticVariables::find().unwrap();
        let at = ptr::from_ref(&HERE).expose_provenance();
        assert!((statics.addr()..statics.addr() + statics.len()).contains(&at), "{statics:?} and {at:#x}");
        // SAFETY: only an atomic is loaded.
        let memory = unsafe { statics.memory() };
        assert_eq!(memory.load((at - statics.addr()) as u64), Ok(7));
    }
}
