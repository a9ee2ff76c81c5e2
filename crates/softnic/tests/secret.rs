//! Memory that the processor reads and writes but that no other process can access: memory that a driver has mapped,
//! or `memfd_secret`. Its bytes are sent through the ring, whichever copy method is configured.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot continue fails")]

mod common;

use common::{connect, poll, poll_until, rail_config};
use rustix::mm::{MapFlags, ProtFlags};
use trunkline_fabric::{
    AccessRights, CompletionKind, Fabric as _, Op, OpSource, OpStatus, Rail, RegionExtent, RegionPurpose,
    RemoteLocation,
};
use trunkline_mem::{MemoryKind, MemoryRange};
use trunkline_softnic::{CopyMode, SoftConfig, SoftFabric, WireMode};

const SIZE: usize = 1 << 20;

/// Memory that system calls cannot reach from outside; `None` where the kernel has none.
fn secret() -> Option<MemoryRange> {
    // SAFETY: a system call without pointers.
    let fd = unsafe { libc::syscall(libc::SYS_memfd_secret, libc::O_CLOEXEC) };
    let fd = i32::try_from(fd).ok().filter(|fd| *fd >= 0)?;
    // SAFETY: the descriptor was just created, and no other code owns it.
    let fd: std::os::fd::OwnedFd = unsafe { std::os::fd::FromRawFd::from_raw_fd(fd) };
    rustix::fs::ftruncate(&fd, SIZE as u64).ok()?;
    // SAFETY: a new mapping replaces nothing.
    let at = unsafe {
        rustix::mm::mmap(
            std::ptr::null_mut(),
            SIZE,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::SHARED,
            &fd,
            0,
        )
    };
    // SAFETY: mapped until the process ends.
    Some(unsafe { MemoryRange::from_raw(at.ok()?.expose_provenance(), SIZE, MemoryKind::Host) })
}

fn byte(at: usize) -> u8 {
    (at ^ (at >> 8) ^ (at >> 16)) as u8
}

/// Writes all of one memory to another, three times in a row; returns the bytes that arrived.
fn copy(mode: CopyMode, from: &MemoryRange, into: &MemoryRange) -> Vec<u8> {
    // Both ends belong to one fabric: links between two fabrics of one process stage all bytes, so nothing would depend on the memory.
    let config = SoftConfig { copy: mode, wire: WireMode::Shm, ..SoftConfig::default() };
    let fabric = SoftFabric::new(config).unwrap();
    let mut a = fabric.open_rail(0, &rail_config()).unwrap();
    let mut b = fabric.open_rail(0, &rail_config()).unwrap();
    let (at_a, _) = connect(&mut a, &mut b);
    let key = a.registrar().register(from, AccessRights::LOCAL, RegionPurpose::Bounce).unwrap().local;
    let target = b.registrar().register(into, AccessRights::WRITE, RegionPurpose::Bounce).unwrap();
    let to = RemoteLocation { key: target.remote, addr: target.remote_base, purpose: RegionPurpose::Data };
    for _ in 0..3 {
        let from = OpSource::Region(RegionExtent { key, offset: 0, len: SIZE as u64 });
        a.post(at_a, 1, Op::Write { from, to, imm: Some(7) }, true).unwrap();
    }
    let (mut posted, mut written) = (0, 0);
    poll_until("the writes", || {
        for one in poll(&mut a).into_iter().chain(poll(&mut b)) {
            assert_eq!(one.status, OpStatus::Ok, "{mode:?}");
            if one.done == CompletionKind::Written { written += 1 } else { posted += 1 }
        }
        (posted == 3 && written == 3).then_some(())
    });
    let mut bytes = vec![0; SIZE];
    into.read(0, &mut bytes).unwrap();
    bytes
}

#[test]
fn memory_that_others_cannot_reach_is_staged() {
    let (Some(one), Some(other)) = (secret(), secret()) else {
        println!("SKIPPED memory_that_others_cannot_reach_is_staged: this kernel has no memfd_secret");
        if let Some(path) = std::env::var_os("TRUNKLINE_SKIP_LOG") {
            use std::io::Write;
            let mut file = std::fs::OpenOptions::new().append(true).create(true).open(path).unwrap();
            writeln!(file, "memory_that_others_cannot_reach_is_staged: this kernel has no memfd_secret")
                .unwrap();
        }
        return;
    };
    let wanted: Vec<u8> = (0..SIZE).map(byte).collect();
    for mode in [CopyMode::Pull, CopyMode::Share, CopyMode::Auto] {
        let usual = MemoryRange::heap(SIZE);
        one.write(0, &wanted).unwrap();
        assert!(copy(mode, &one, &usual) == wanted, "from secret memory, {mode:?}");
        other.write(0, &vec![0; SIZE]).unwrap();
        assert!(copy(mode, &usual, &other) == wanted, "into secret memory, {mode:?}");
        other.write(0, &vec![0; SIZE]).unwrap();
        assert!(copy(mode, &one, &other) == wanted, "between secret memories, {mode:?}");
    }
}
