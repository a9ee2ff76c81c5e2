//! A forked child that continues as a copy of its parent. It has the parent's values, but no access to its objects.

use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;

use rustix::mm::{MapFlags, ProtFlags};
use trunkline_mem::ipc::{CopyPlace, HandlePassing, IpcAllocation, IpcHandle, OpenedHandle};

use crate::peer::{Pattern, Place, World};
use crate::subject::{Subject, make};

const MIB: usize = 1 << 20;
const LEN: usize = 4 * MIB;
const MINE: Pattern = Pattern(11, 3);
const YOURS: Pattern = Pattern(5, 7);

/// Lifetime of a child that is not killed, in seconds.
const SECONDS: u32 = 60;

/// The last line of a child's output. A child that dies earlier has accessed unmapped memory.
const ALL: &str = "and that is all";

/// The objects that a child tries to use: its parent's allocation, an open handle and a handle to open.
pub(crate) struct Childs {
    pub(crate) addr: usize,
    pub(crate) len: usize,
    /// Offset of bytes in the open handle.
    pub(crate) at: u64,
    pub(crate) handle: IpcHandle,
    pub(crate) descriptor: Option<OwnedFd>,
}

/// Forks. Returns the child's PID, its output, and the open handle.
pub(crate) fn fork(
    subject: &mut Box<dyn Subject>,
    mapped: OpenedHandle,
    wanted: Childs,
) -> (u64, String, OpenedHandle) {
    let found = subject.memory().allocation_of(wanted.addr).unwrap();
    let (mut said, mut says) = std::io::pipe().unwrap();
    // SAFETY: the child continues in this thread only, takes no lock of other threads, and never returns from here.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        // SAFETY: requests a signal that ends this process.
        unsafe { libc::alarm(SECONDS) };
        let went = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            goes_on(subject, mapped, wanted, &found)
        }));
        says.write_all(went.unwrap_or_else(|_| "panic".to_owned()).as_bytes()).unwrap();
        drop(says);
        loop {
            // SAFETY: waits for a signal.
            unsafe { libc::pause() };
        }
    }
    drop(says);
    let mut text = String::new();
    said.read_to_string(&mut text).unwrap();
    (child as u64, text, mapped)
}

/// Returns the calls that succeed in a child, or that change memory.
fn goes_on(
    subject: &mut Box<dyn Subject>,
    mapped: OpenedHandle,
    wanted: Childs,
    found: &IpcAllocation,
) -> String {
    let Childs { addr, len, at, handle, descriptor } = wanted;
    let memory = subject.memory();
    let open = mapped.local_address();
    let (mut bytes, mut went) = ([0; 64], Vec::new());
    let mut tries = |what: &'static str, well: bool| went.extend(well.then_some(what));
    tries("find", memory.allocation_of(addr).is_ok());
    tries("read", memory.read(CopyPlace::Own(addr), &mut bytes).is_ok());
    tries("write", memory.write(CopyPlace::Own(addr), &bytes).is_ok());
    tries("read the import", memory.read(CopyPlace::Open(&mapped, at), &mut bytes).is_ok());
    tries("write the import", memory.write(CopyPlace::Open(&mapped, at), &bytes).is_ok());
    for how in [HandlePassing::Bytes, HandlePassing::Descriptor] {
        tries("export", memory.export(found, how).is_ok());
    }
    tries("open", memory.open(&handle, descriptor).is_ok());
    tries("close", memory.close(mapped).is_ok());
    tries("free", subject.free(addr).is_ok());
    tries("alloc", subject.alloc(MIB).is_ok());
    // The addresses of the parent's memory must be free in the child, so that other memory can be mapped there.
    let others: Vec<usize> = [Some(addr), open].into_iter().flatten().map(|at| put(at, len)).collect();
    *subject = make("private", None);
    tries("others' memory", others.iter().any(|at| !is_as_put(*at, len)));
    went.push(ALL);
    went.join(", ")
}

/// Maps memory at exactly that address, and fills it with sevens.
fn put(at: usize, len: usize) -> usize {
    let flags = MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE;
    let at = std::ptr::with_exposed_provenance_mut(at);
    // SAFETY: MAP_FIXED_NOREPLACE replaces no mapping.
    let put = unsafe { rustix::mm::mmap_anonymous(at, len, ProtFlags::READ | ProtFlags::WRITE, flags) };
    let put = put.unwrap().cast::<u8>();
    // SAFETY: the range is mapped above, with that many bytes.
    unsafe { put.write_bytes(7, len) };
    put.expose_provenance()
}

fn is_as_put(at: usize, len: usize) -> bool {
    let at = std::ptr::with_exposed_provenance::<u8>(at);
    // SAFETY: `put` mapped the range; if it was unmapped since, this process dies, which the parent detects.
    (0..len).step_by(4096).all(|page| unsafe { at.wrapping_add(page).read_volatile() } == 7)
}

fn end(child: u64) {
    assert!(std::path::Path::new(&format!("/proc/{child}")).exists(), "the child must still live");
    let child = rustix::process::Pid::from_raw(child as i32).unwrap();
    rustix::process::kill_process(child, rustix::process::Signal::KILL).unwrap();
}

#[test]
fn forked_child_cannot_use_its_parents_memory() {
    let kinds = [
        ("device", HandlePassing::Bytes),
        ("host", HandlePassing::Descriptor),
        ("xpmem", HandlePassing::Bytes),
        ("cuda", HandlePassing::Bytes),
        ("hip", HandlePassing::Bytes),
        ("ze", HandlePassing::Descriptor),
    ];
    for (kind, how) in kinds {
        if !crate::stub::is_there(kind) {
            continue;
        }
        let world = World::new(kind, 64 << 20);
        let [owner, other] = [world.process(), world.process()];
        let mine = owner.alloc(LEN).unwrap();
        let [yours, later] = [other.alloc(LEN).unwrap(), other.alloc(LEN).unwrap()];
        owner.fill(Place::Own(mine), LEN, MINE).unwrap();
        other.fill(Place::Own(yours), LEN, YOURS).unwrap();
        let parcel = |of: &crate::peer::Process, addr| of.export(&of.find(addr).unwrap(), how).unwrap();
        let offset = |of: &crate::peer::Process, addr| (addr - of.find(addr).unwrap().base) as u64;
        let at_other = other.open(&parcel(&owner, mine)).unwrap();
        let at_owner = owner.open(&parcel(&other, yours)).unwrap();
        let (at_mine, at_yours) = (offset(&owner, mine), offset(&other, yours));
        assert_eq!(owner.check(Place::Open(at_owner, at_yours), LEN, YOURS), Ok(0), "{kind}");
        let later = parcel(&other, later);
        let (child, went) = owner.fork((mine, LEN), (at_owner, at_yours), &later);
        assert_eq!(went, ALL, "{kind}: calls must fail in the child");
        // The parent's objects are unchanged and usable.
        assert_eq!(owner.check(Place::Own(mine), LEN, MINE), Ok(0), "{kind}");
        assert_eq!(owner.check(Place::Open(at_owner, at_yours), LEN, YOURS), Ok(0), "{kind}");
        assert_eq!(other.check(Place::Open(at_other, at_mine), LEN, MINE), Ok(0), "{kind}");
        let once_more = owner.open(&later).unwrap();
        other.close(at_other);
        owner.close(at_owner);
        owner.close(once_more);
        owner.free(mine);
        if kind == "device" {
            // The child lives, but holds no memory.
            world.used(2 * LEN as u64);
            owner.alloc(MIB).unwrap();
            owner.kill();
            world.used(2 * LEN as u64);
            other.kill();
            world.used(0);
        }
        end(child);
    }
}
