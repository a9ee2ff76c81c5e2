//! The writable static variables of this program, as memory that others of its host map: pages of data and bss that are replaced in
//! place by a memory file with the same contents. Called once, early, by front ends in which static variables are symmetric. Leaves alone
//! what the dynamic linker made read-only, and the variables of libraries.

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

/// Bytes of a page.
const PAGE: usize = 4096;

/// Where the static variables of the program lie.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct StaticVariables {
    addr: usize,
    len: usize,
}

/// What a child of a fork has to put right. There is one program in a process, and the system calls without an argument.
static MADE: OnceLock<StaticVariables> = OnceLock::new();

thread_local! {
    /// Where a copy for the child lies that this thread forks; 0 without one. Several threads may fork at once.
    static COPY: Cell<usize> = const { Cell::new(0) };
}

impl StaticVariables {
    /// Those of this program: all writable pages of its last writable segment that stay writable.
    #[must_use]
    pub fn find() -> Option<Self> {
        let mut found = None;
        // SAFETY: `note` is called before this returns, with a live description each time, and the pointer to `found`.
        unsafe { libc::dl_iterate_phdr(Some(note), ptr::from_mut(&mut found).cast()) };
        found
    }

    /// Address of the first byte.
    #[must_use]
    pub fn addr(&self) -> usize {
        self.addr
    }

    /// Bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes as they are: nobody else maps them.
    ///
    /// # Safety
    /// Nobody holds a Rust reference to static variables of the program while methods of what comes back run.
    #[must_use]
    pub unsafe fn memory(&self) -> MemoryRange {
        // SAFETY: the program is never unmapped, and its pages here are writable; the rest is the caller's promise.
        unsafe { MemoryRange::from_raw(self.addr, self.len, MemoryKind::Host) }
    }

    /// Replaces them by a memory file in the same place, with the same contents. A child of a fork has a copy of its own, as ever. To be
    /// called once in a process.
    ///
    /// # Safety
    /// No other thread changes static variables of the program in the meantime; and as [`StaticVariables::memory`].
    ///
    /// # Errors
    /// What the system says; everything is then as before.
    pub unsafe fn share_as_file(self) -> Result<SharedMemory, CallFailure> {
        let file = create_sized_file("trunkline.statics", self.len as u64)?;
        // SAFETY: as in `memory`; read before anybody can change them.
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
        // SAFETY: replaces, at once, writable pages of the program by others with the same contents and rights, which the caller's promise
        // keeps the same.
        unsafe { rustix::mm::mmap(at, self.len, protection, flags, &file, 0) }.map_err(cause_of("mmap"))?;
        if MADE.set(self).is_ok() {
            // SAFETY: three functions that live as long as this library, which has not to be unloaded while the program runs.
            unsafe { libc::pthread_atfork(Some(before_fork), Some(after_fork), Some(in_child)) };
        }
        // SAFETY: mapped for ever.
        let memory = unsafe { self.memory() };
        SharedMemory::from_file(file, memory)
    }
}

/// Takes what it needs of the first object, which is the program, and ends.
unsafe extern "C" fn note(info: *mut libc::dl_phdr_info, _size: usize, out: *mut c_void) -> c_int {
    // SAFETY: the linker gives a live description.
    let info = unsafe { &*info };
    // SAFETY: as many headers as it says, which are mapped.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    // SAFETY: `StaticVariables::find` gives this pointer, and nobody else has it now.
    let found = unsafe { &mut *out.cast::<Option<StaticVariables>>() };
    *found = of_headers(headers, info.dlpi_addr as usize);
    1
}

/// The last writable segment without what becomes read-only.
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
            // The linker protects whole pages up to the one in which it ends.
            start = start.max(to & !(PAGE - 1));
        }
    }
    (start < end).then(|| StaticVariables { addr: start, len: end - start })
}

/// A copy of them in memory of its own, if there is room.
fn copy_statics(statics: &StaticVariables) -> Option<*mut c_void> {
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::PRIVATE;
    // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
    let made = unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), statics.len, protection, flags) };
    let copy = made.ok()?;
    let from = ptr::with_exposed_provenance::<u8>(statics.addr);
    // SAFETY: both are mapped and that long, and the copy is new. Other threads of the program may change its variables meanwhile.
    unsafe { copy_shared(from, copy.cast(), statics.len) };
    Some(copy)
}

/// Keeps a copy for the child, which shall not see what the parent's variables become.
unsafe extern "C" fn before_fork() {
    let Some(statics) = MADE.get() else { return };
    COPY.set(copy_statics(statics).map_or(0, <*mut c_void>::expose_provenance));
}

unsafe extern "C" fn after_fork() {
    let (Some(statics), copy) = (MADE.get(), COPY.replace(0)) else { return };
    if copy != 0 {
        // SAFETY: a mapping that `before_fork` made, and nobody else knows.
        let _ = unsafe { rustix::mm::munmap(ptr::with_exposed_provenance_mut(copy), statics.len) };
    }
}

unsafe extern "C" fn in_child() {
    let (Some(statics), copy) = (MADE.get(), COPY.replace(0)) else { return };
    // There may be room in the child.
    let from = if copy == 0 { copy_statics(statics) } else { Some(ptr::with_exposed_provenance_mut(copy)) };
    let to = ptr::with_exposed_provenance_mut(statics.addr);
    let moved = from.is_some_and(|from| {
        // SAFETY: moves the copy over the pages of the parent, with the same contents and rights; the child has one thread.
        unsafe { rustix::mm::mremap_fixed(from, statics.len, statics.len, MremapFlags::MAYMOVE, to) }.is_ok()
    });
    if !moved {
        // What it changed would be its parent's.
        let line =
            b"trunkline: a child of a fork ends: no memory for static variables of its own (vm.overcommit_memory, ulimit -v)\n";
        // SAFETY: writes bytes that are there.
        unsafe { libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), line.len()) };
        // SAFETY: ends the child, which has run nothing of the program's yet.
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
    fn pages_that_become_read_only_are_left_alone() {
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
        assert_eq!(found(&[text, load(rw, 0x3dc8, 0x238), relro]), None, "nothing else is there");
        // As another linker lays it out: two segments.
        let apart = [text, load(rw, 0x3dc8, 0x238), relro, load(rw, 0x5008, 0x10)];
        assert_eq!(found(&apart), Some((0x5000, 0x1000)));
    }

    #[test]
    fn this_program_has_some() {
        static HERE: AtomicUsize = AtomicUsize::new(7);
        let statics = StaticVariables::find().unwrap();
        let at = ptr::from_ref(&HERE).expose_provenance();
        assert!((statics.addr()..statics.addr() + statics.len()).contains(&at), "{statics:?} and {at:#x}");
        // SAFETY: only an atomic is looked at.
        let memory = unsafe { statics.memory() };
        assert_eq!(memory.load((at - statics.addr()) as u64), Ok(7));
    }
}
