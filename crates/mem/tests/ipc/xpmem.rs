//! Properties of memory attached by XPMEM beyond the acceptance suite, over a stub library. Only memory of `stub_alloc`
//! is attached itself, and not as a copy.

use std::mem::ManuallyDrop;

use libloading::os::unix::Library;
use trunkline_mem::ipc::{HandlePassing, IpcMemory, XpmemMemory};
use trunkline_mem::{MemoryKind, MemoryRange};

use crate::peer::{Copying, Parcel, Pattern, Place, Process, World};
use crate::stub::{self, is_there};
use crate::subject::Subject;

const LEN: usize = 1 << 20;
/// Length of a piece; the kind attaches whole pieces.
const PIECE: usize = 8 << 20;
const ONE: Pattern = Pattern(0x1111_0000_2222, 7);
const TWO: Pattern = Pattern(0x9999_8888_7777, 13);

/// Limits the number of pieces that a process attaches.
const PIECES: &str = "MEM_TEST_PIECES";
/// Replaces the kind's signal handlers by other ones.
const HANDLERS: &str = "MEM_TEST_HANDLERS";

/// Memory of a process that can be attached.
pub(crate) struct Attached {
    memory: XpmemMemory,
    /// `None` over XPMEM itself, where all memory can be attached.
    library: Option<ManuallyDrop<Library>>,
}

impl Attached {
    pub(crate) fn new() -> Self {
        let memory = match std::env::var(PIECES) {
            Ok(most) => XpmemMemory::with_pieces(most.parse().unwrap()),
            Err(_) => XpmemMemory::open(),
        };
        let memory = memory.unwrap();
        if std::env::var(HANDLERS).is_ok() {
            // SAFETY: this process never accesses unmapped memory.
            unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
        }
        let library = std::env::var("STUB_XPMEM").is_ok().then(|| ManuallyDrop::new(stub::open(LIBRARY)));
        Self { memory, library }
    }
}

const LIBRARY: &str = "libxpmem.so.0";

impl Subject for Attached {
    fn memory(&self) -> &dyn IpcMemory {
        &self.memory
    }

    fn tells(&self, name: &str) -> u64 {
        let counts = self.memory.attach_counts();
        match name {
            "attached" => counts.attached,
            "by_calls" => counts.by_calls,
            "refused" => counts.refused,
            other => panic!("unknown number {other}"),
        }
    }

    fn alloc(&self, len: usize) -> Result<usize, String> {
        let text = |error: &dyn std::fmt::Display| error.to_string();
        self.memory.allocation_of(8).map_err(|error| text(&error))?;
        match &self.library {
            None => self.memory.alloc(len).map_err(|error| text(&error)),
            Some(_) => match stub::number(LIBRARY, "stub_alloc", len as u64) {
                0 => Err("the stub has no free addresses".to_owned()),
                // SAFETY: the library owns the memory until `free` returns it to the library, after the kind has
                // released it.
                addr => Ok(self
                    .memory
                    .admit_memory(unsafe { MemoryRange::from_raw(addr as usize, len, MemoryKind::Host) })),
            },
        }
    }

    fn free(&self, addr: usize) -> Result<(), String> {
        let text = |error: &dyn std::fmt::Display| error.to_string();
        self.memory.allocation_of(8).map_err(|error| text(&error))?;
        match &self.library {
            Some(_) if self.memory.free(addr).is_err() => Err("Unknown".to_owned()),
            None => self.memory.free(addr).map_err(|error| text(&error)),
            Some(_) if stub::number(LIBRARY, "stub_free", addr as u64) == 0 => Ok(()),
            Some(_) => Err("Unknown".to_owned()),
        }
    }
}

fn parcel(of: &Process) -> Parcel {
    of.export(&of.find(8).unwrap(), HandlePassing::Bytes).unwrap()
}

/// Returns the pieces attached, the copies by system calls, and the processes that could not be attached.
fn counts(of: &Process) -> [u64; 3] {
    ["attached", "by_calls", "refused"].map(|name| of.vendor(name, &[]).unwrap())
}

#[test]
fn attached_memory_follows_its_owner() {
    if !is_there("xpmem") {
        return;
    }
    let world = World::new("xpmem", 0);
    let [owner, importer] = [world.process(), world.process()];
    let addr = owner.alloc(LEN).unwrap();
    let open = importer.open(&parcel(&owner)).unwrap();
    let there = Place::Open(open, addr as u64);
    for pattern in [ONE, TWO, ONE] {
        owner.fill(Place::Own(addr), LEN, pattern).unwrap();
        assert_eq!(importer.check(there, LEN, pattern), Ok(0));
    }
    importer.fill(there, LEN, TWO).unwrap();
    assert_eq!(owner.check(Place::Own(addr), LEN, TWO), Ok(0));
    assert_eq!(counts(&importer), [1, 0, 0]);
    // After the free, the addresses are unmapped; after the next allocation, they contain the new memory.
    owner.free(addr);
    for _ in 0..2 {
        assert!(importer.check(there, LEN, TWO).unwrap_err().starts_with("Outside"));
        assert!(importer.fill(there, 8, TWO).unwrap_err().starts_with("Outside"));
    }
    let by_calls = counts(&importer)[1];
    assert_ne!(by_calls, 0);
    let again = owner.alloc(LEN / 2).unwrap();
    assert_eq!(again, addr);
    assert_eq!(importer.check(there, LEN / 2, Pattern(0, 0)), Ok(0));
    owner.fill(Place::Own(addr), LEN / 2, ONE).unwrap();
    assert_eq!(importer.check(there, LEN / 2, ONE), Ok(0));
    assert_eq!(counts(&importer), [1, by_calls, 0], "nothing may be attached again");
    // Memory that is removed during a copy ends the copy.
    assert!(importer.check(there, LEN, ONE).unwrap_err().starts_with("Outside"));
    importer.close(open);
    assert_eq!(["stub_attachments", "stub_permits"].map(|name| importer.number(name, 0)), [0, 0]);
}

#[test]
fn copies_cross_attached_pieces() {
    if !is_there("xpmem") {
        return;
    }
    let world = World::new("xpmem", 0);
    let [owner, importer] = [world.process(), world.process()];
    let addr = owner.alloc(2 * PIECE + LEN).unwrap();
    let open = importer.open(&parcel(&owner)).unwrap();
    for at in [PIECE - 64, 2 * PIECE - LEN / 2, 0] {
        owner.fill(Place::Own(addr + at), LEN, ONE).unwrap();
        assert_eq!(importer.check(Place::Open(open, (addr + at) as u64), LEN, ONE), Ok(0), "{at:#x}");
    }
    assert_eq!(counts(&importer), [3, 0, 0]);
}

#[test]
fn least_recently_used_piece_is_detached() {
    if !is_there("xpmem") {
        return;
    }
    let world = World::new("xpmem", 0);
    let owner = world.process();
    world.set(PIECES, 2);
    let importer = world.process();
    let addr = owner.alloc(3 * PIECE).unwrap();
    owner.fill(Place::Own(addr), LEN, ONE).unwrap();
    let open = importer.open(&parcel(&owner)).unwrap();
    let look = |number: usize| {
        let at = Place::Open(open, (addr + number * PIECE) as u64);
        let pattern = if number == 0 { ONE } else { Pattern(0, 0) };
        assert_eq!(importer.check(at, LEN, pattern), Ok(0), "{number}");
        counts(&importer)[0]
    };
    assert_eq!([0, 1, 0, 2, 0, 1].map(look), [1, 2, 2, 3, 3, 4]);
    // Two pieces, and the page with the owner's proof.
    assert_eq!(importer.number("stub_attachments", 0), 3);
}

#[test]
fn unattachable_memory_is_copied_by_calls() {
    if !is_there("xpmem") {
        return;
    }
    for (name, value) in [("STUB_ATTACHMENTS", 0), (HANDLERS, 1)] {
        let world = World::new("xpmem", 0);
        let owner = world.process();
        world.set(name, value);
        let importer = world.process();
        let addr = owner.alloc(LEN).unwrap();
        owner.fill(Place::Own(addr), LEN, ONE).unwrap();
        let open = importer.open(&parcel(&owner)).unwrap();
        assert_eq!(importer.check(Place::Open(open, addr as u64), LEN, ONE), Ok(0), "{name}");
        let [attached, by_calls, refused] = counts(&importer);
        assert!(attached == 0 && by_calls > 0 && refused == 0, "{name}");
        owner.kill();
        assert!(importer.check(Place::Open(open, addr as u64), LEN, ONE).unwrap_err().starts_with("Gone"));
    }
}

/// A copy by system calls is one call without an intermediate buffer, in each direction.
#[test]
fn unattached_memory_is_copied_in_one_call() {
    if !is_there("xpmem") {
        return;
    }
    let world = World::new("xpmem", 0);
    let owner = world.process();
    world.set("STUB_ATTACHMENTS", 0);
    let importer = world.process();
    let [addr, own] = [owner.alloc(LEN).unwrap(), importer.alloc(LEN).unwrap()];
    let open = importer.open(&parcel(&owner)).unwrap();
    let there = (open, addr as u64);
    owner.fill(Place::Own(addr), LEN, ONE).unwrap();
    importer.copy(Copying::Out, own, there, LEN);
    assert_eq!(importer.check(Place::Own(own), LEN, ONE), Ok(0));
    assert_eq!(counts(&importer), [0, 1, 0], "one copy must be one call");
    for (how, pattern) in [(Copying::Into, TWO), (Copying::Fill, ONE)] {
        importer.fill(Place::Own(own), LEN, pattern).unwrap();
        importer.copy(how, own, there, LEN);
        assert_eq!(owner.check(Place::Own(addr), LEN, pattern), Ok(0), "{how:?}");
    }
    owner.kill();
}

#[test]
fn processes_with_and_without_xpmem_open_each_other() {
    if !is_there("xpmem") {
        return;
    }
    let world = World::new("xpmem", 0);
    let (with, without) = (world.process(), world.process_of("private"));
    let [there, here] = [with.alloc(LEN).unwrap(), without.alloc(LEN).unwrap()];
    with.fill(Place::Own(there), LEN, ONE).unwrap();
    without.fill(Place::Own(here), LEN, TWO).unwrap();
    let open = without.open(&parcel(&with)).unwrap();
    assert_eq!(without.check(Place::Open(open, there as u64), LEN, ONE), Ok(0));
    let open = with.open(&parcel(&without)).unwrap();
    assert_eq!(with.check(Place::Open(open, here as u64), LEN, TWO), Ok(0));
    let [attached, by_calls, refused] = counts(&with);
    assert!(attached == 0 && by_calls > 0 && refused == 1);
}

#[test]
fn segment_of_another_process_is_not_attached() {
    if !is_there("xpmem") {
        return;
    }
    let world = World::new("xpmem", 0);
    let [owner, other, importer] = [world.process(), world.process(), world.process()];
    let [addr, same] = [owner.alloc(LEN).unwrap(), other.alloc(LEN).unwrap()];
    owner.fill(Place::Own(addr), LEN, ONE).unwrap();
    other.fill(Place::Own(same), LEN, TWO).unwrap();
    let (theirs, others) = (parcel(&owner), parcel(&other));
    let mixed = theirs.with(|bytes| bytes[32..40].copy_from_slice(&others.handle.bytes()[32..40]));
    let open = importer.open(&mixed).unwrap();
    assert_eq!(importer.check(Place::Open(open, addr as u64), LEN, ONE), Ok(0));
    assert_eq!(counts(&importer)[2], 1);
    importer.close(open);
    // With the owner's own proof the memory is attached, whichever PID the handle contains.
    let renamed = theirs.with(|bytes| bytes[8..16].copy_from_slice(&others.handle.bytes()[8..16]));
    let open = importer.open(&renamed).unwrap();
    assert_eq!(importer.check(Place::Open(open, addr as u64), LEN, ONE), Ok(0));
    assert!(importer.fill(Place::Open(open, addr as u64), 8, TWO).unwrap_err().starts_with("Refused"));
    owner.kill();
    for error in [
        importer.check(Place::Open(open, addr as u64), 8, ONE).map(drop),
        importer.fill(Place::Open(open, addr as u64), 8, ONE),
    ] {
        assert!(error.unwrap_err().starts_with("Gone"));
    }
    assert!(importer.open(&renamed).unwrap_err().starts_with("Gone"));
}

#[test]
fn read_only_memory_is_never_written() {
    if !is_there("xpmem") {
        return;
    }
    let world = World::new("xpmem", 0);
    let [owner, importer] = [world.process(), world.process()];
    let addr = owner.alloc(LEN).unwrap();
    owner.fill(Place::Own(addr), LEN, ONE).unwrap();
    let open = importer.open(&parcel(&owner)).unwrap();
    let there = Place::Open(open, addr as u64);
    assert_eq!(importer.check(there, LEN, ONE), Ok(0));
    assert_eq!(owner.number("stub_keep", addr as u64), 0);
    assert!(importer.fill(there, 64, TWO).unwrap_err().starts_with("Outside"));
    assert_eq!(owner.check(Place::Own(addr), LEN, ONE), Ok(0));
    assert_eq!(importer.check(there, LEN, ONE), Ok(0));
}

#[test]
fn other_users_are_refused() {
    if !is_there("xpmem") {
        return;
    }
    if !rustix::process::geteuid().is_root() {
        return stub::skip("xpmem: another user gets nothing", "root", "only root can become another user");
    }
    let world = World::new("xpmem", 0);
    let owner = world.process();
    let addr = owner.alloc(LEN).unwrap();
    let theirs = parcel(&owner);
    world.run_as(65534);
    let [one, other] = [world.process(), world.process()];
    let error = one.open(&theirs).unwrap_err();
    assert!(error.starts_with("Refused") && error.contains("process_vm_readv"), "{error}");
    // A process of the same user gets access, even after system calls are refused; then its writes are refused.
    let addr_of_one = one.alloc(LEN).unwrap();
    one.fill(Place::Own(addr_of_one), LEN, TWO).unwrap();
    let open = other.open(&parcel(&one)).unwrap();
    one.hide();
    let there = Place::Open(open, addr_of_one as u64);
    assert_eq!(other.check(there, LEN, TWO), Ok(0));
    assert!(other.fill(there, 8, ONE).unwrap_err().starts_with("Refused"));
    assert_ne!(addr, 0);
}

#[test]
fn private_memory_is_attached_if_possible() {
    if !is_there("xpmem") {
        return;
    }
    let world = World::new("xpmem", 0);
    let [owner, importer] = [world.process_of("picked"), world.process_of("picked")];
    let addr = owner.alloc(LEN).unwrap();
    owner.fill(Place::Own(addr), LEN, ONE).unwrap();
    let theirs = parcel(&owner);
    assert_eq!(theirs.handle.kind(), trunkline_mem::ipc::IpcHandle::XPMEM);
    let open = importer.open(&theirs).unwrap();
    assert_eq!(importer.check(Place::Open(open, addr as u64), LEN, ONE), Ok(0));
    // Without the module, private memory is used.
    let other = World::new("picked", 0);
    let private = other.process();
    assert_eq!(parcel(&private).handle.kind(), trunkline_mem::ipc::IpcHandle::PRIVATE);
}
