//! Deregistration against remote accesses, with the memory unmapped at once afterwards: an access that is too late is
//! a crash.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot continue fails")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use common::{Random, connect, poll, rail};
use trunkline_fabric::{
    AccessRights, Fabric, LinkControl, LocalKey, MemoryRegistrar, Op, OpSource, OpStatus, Rail, RegionExtent,
    RegionPurpose, RemoteKey, RemoteLocation,
};
use trunkline_mem::{MemoryKind, MemoryRange};
use trunkline_softnic::{CopyMode, SoftConfig, SoftFabric, SoftRail, WireMode};

const SIZE: usize = 128 << 10;
/// The bytes that the owner writes to its memory after the deregistration.
const MARK: [u8; 8] = [0xa5; 8];

fn races() -> u64 {
    if std::env::var_os("TRUNKLINE_FULL").is_some() { 100_000 } else { 10_000 }
}

fn map() -> usize {
    use rustix::mm::{MapFlags, ProtFlags};
    // SAFETY: a new mapping replaces nothing.
    let at = unsafe {
        rustix::mm::mmap_anonymous(
            std::ptr::null_mut(),
            SIZE,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE,
        )
    };
    at.unwrap().expose_provenance()
}

fn unmap(at: usize) {
    // SAFETY: mapped by `map`. The test checks that the NIC no longer uses the memory.
    unsafe { rustix::mm::munmap(std::ptr::with_exposed_provenance_mut(at), SIZE) }.unwrap();
}

/// Keys of the current region, for the thread that uses it.
#[derive(Default)]
struct Now {
    key: AtomicU64,
    stop: AtomicBool,
    hits: AtomicU64,
}

/// Uses the current region as target or source, and creates a new link after each refusal.
fn user(
    mut a: SoftRail,
    mut b: SoftRail,
    now: &Now,
    as_source: bool,
    other: RegionExtent,
    to: RemoteLocation,
) {
    let (mut at_a, mut at_b) = connect(&mut a, &mut b);
    let mut flying = 0;
    while !now.stop.load(Ordering::Relaxed) {
        let key = now.key.load(Ordering::Acquire);
        if key != 0 && flying < 4 {
            let op = if as_source {
                let from = OpSource::Region(RegionExtent { key: LocalKey(key), offset: 0, len: SIZE as u64 });
                Op::Write { from, to, imm: None }
            } else {
                let to = RemoteLocation { key: RemoteKey(key), addr: 0, purpose: RegionPurpose::Data };
                Op::Write { from: OpSource::Region(other), to, imm: None }
            };
            flying += u32::from(a.post(at_a, 1, op, true).is_ok());
        }
        let mut failed = false;
        for one in poll(&mut a) {
            flying = flying.saturating_sub(1);
            if one.status == OpStatus::Ok {
                now.hits.fetch_add(1, Ordering::Relaxed);
            }
            failed |= one.status != OpStatus::Ok;
        }
        poll(&mut b);
        if failed {
            a.destroy_link(at_a);
            b.destroy_link(at_b);
            (at_a, at_b) = connect(&mut a, &mut b);
            flying = 0;
        }
    }
}

/// A configuration for direct copies. Both ends must be of one fabric, because links between two fabrics of one
/// process never copy directly.
fn direct(copy: CopyMode) -> SoftConfig {
    SoftConfig { copy, wire: WireMode::Shm, ..SoftConfig::default() }
}

fn race(config: SoftConfig, fabrics: usize, as_source: bool, count: u64) {
    let first = SoftFabric::new(config.clone()).unwrap();
    let second = SoftFabric::new(config).unwrap();
    let a = first.open_rail(0, &common::rail_config()).unwrap();
    let b = if fabrics == 1 { &first } else { &second }.open_rail(0, &common::rail_config()).unwrap();
    let (near, far) = (a.registrar(), b.registrar());
    let here = MemoryRange::heap(SIZE);
    let keys = near.register(&here, AccessRights::ALL, RegionPurpose::Bounce).unwrap();
    let there = MemoryRange::heap(SIZE);
    let there_keys = far.register(&there, AccessRights::ALL, RegionPurpose::Bounce).unwrap();
    let other = RegionExtent { key: keys.local, offset: 0, len: SIZE as u64 };
    let to = RemoteLocation { key: there_keys.remote, addr: 0, purpose: RegionPurpose::Data };
    let registrar: Arc<dyn MemoryRegistrar> = if as_source { near } else { far };
    let now = Arc::new(Now::default());
    let seen = Arc::clone(&now);
    let thread = std::thread::spawn(move || user(a, b, &seen, as_source, other, to));
    let mut random = Random(0x1234_5678_9abc_def1);
    let pages = (SIZE / 4096) as u64;
    for round in 0..count {
        let at = map();
        // SAFETY: mapped until it is deregistered.
        let memory = unsafe { MemoryRange::from_raw(at, SIZE, MemoryKind::Host) };
        let keys = registrar.register(&memory, AccessRights::WRITE, RegionPurpose::Bounce).unwrap();
        now.key.store(if as_source { keys.local.0 } else { keys.remote.0 }, Ordering::Release);
        if round % 64 == 0 {
            // On a busy host, the other thread needs this time to run.
            std::thread::sleep(std::time::Duration::from_micros(300));
        }
        for _ in 0..random.next() % 20_000 {
            std::hint::spin_loop();
        }
        registrar.deregister(keys.local).unwrap();
        // A copy by the kernel into unmapped memory is not a crash, so the bytes are checked for a while first.
        for page in 0..pages {
            memory.write(page * 4096, &MARK).unwrap();
        }
        for _ in 0..500 {
            std::hint::spin_loop();
        }
        for page in 0..pages {
            assert_eq!(
                memory.load(page * 4096).unwrap(),
                u64::from_ne_bytes(MARK),
                "touched after deregistering"
            );
        }
        unmap(at);
    }
    now.stop.store(true, Ordering::Relaxed);
    thread.join().unwrap();
    let hits = now.hits.load(Ordering::Relaxed);
    assert!(hits > 0, "no operation ever accessed a region");
}

#[test]
fn deregistered_targets_inside_one_fabric_are_untouched() {
    race(SoftConfig::default(), 1, false, races() / 4);
}

#[test]
fn deregistered_targets_over_shared_memory_are_untouched() {
    race(SoftConfig { copy: CopyMode::Staging, ..SoftConfig::default() }, 2, false, races() / 8);
    race(direct(CopyMode::Share), 1, false, races() / 8);
}

#[test]
fn deregistered_sources_inside_one_fabric_are_unused() {
    race(SoftConfig::default(), 1, true, races() / 4);
}

#[test]
fn deregistered_sources_over_shared_memory_are_unused() {
    race(SoftConfig { copy: CopyMode::Staging, ..SoftConfig::default() }, 2, true, races() / 8);
    race(direct(CopyMode::Pull), 1, true, races() / 8);
    race(direct(CopyMode::Share), 1, true, races() / 8);
}

#[test]
fn key_is_not_found_by_adjacent_keys() {
    let mut a = rail(SoftConfig::default());
    let mut b = rail(SoftConfig::default());
    let memory = MemoryRange::heap(64);
    let registrar = b.registrar();
    let keys: Vec<u64> = (0..100)
        .map(|_| registrar.register(&memory, AccessRights::ALL, RegionPurpose::Bounce).unwrap().remote.0)
        .collect();
    let bits: u32 = keys.iter().zip(&keys[1..]).map(|(one, next)| (one ^ next).count_ones()).sum();
    assert!((99 * 24..99 * 40).contains(&bits), "consecutive keys do not differ in half their bits");
    for bit in 0..64 {
        let (at_a, at_b) = connect(&mut a, &mut b);
        let to =
            RemoteLocation { key: RemoteKey(keys[0] ^ (1 << bit)), addr: 0, purpose: RegionPurpose::Data };
        a.post(at_a, 1, Op::Write { from: OpSource::Inline(&[1]), to, imm: None }, false).unwrap();
        let status = common::poll_until("the refusal", || {
            poll(&mut b);
            poll(&mut a).first().map(|one| one.status)
        });
        assert_eq!(status, OpStatus::RemoteAccess);
        a.destroy_link(at_a);
        b.destroy_link(at_b);
    }
    assert_eq!(memory.load(0), Ok(0));
}
