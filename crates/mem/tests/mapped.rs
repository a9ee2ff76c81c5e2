//! Mapped write-combined memory over a model that holds stores back and reorders them until a fence.

#![allow(clippy::unwrap_used, reason = "a failed setup step ends the test")]

mod held;

use std::sync::Arc;

use held::HeldStores;
use trunkline_mem::{MappedMemory, MemoryKind, MemoryRange};

const LEN: usize = 64 << 10;
/// The offset of a flag, far from the data.
const FLAG: u64 = 1024;

/// Returns a mapping of a model whose images are watched.
fn watched(watch: impl Fn(&[u8]) + Send + Sync + 'static) -> (Arc<HeldStores>, MappedMemory) {
    named(HeldStores::new(LEN, 7, watch))
}

fn mapping() -> (Arc<HeldStores>, MappedMemory) {
    named(HeldStores::unwatched(LEN, 7))
}

/// The address of a model; no code accesses it.
fn named(held: HeldStores) -> (Arc<HeldStores>, MappedMemory) {
    let held = Arc::new(held);
    // SAFETY: no NIC receives the address.
    let mapped = unsafe { MappedMemory::new(1 << 40, LEN, Arc::clone(&held) as Arc<_>) };
    (held, mapped)
}

fn word(image: &[u8], at: u64) -> u64 {
    u64::from_le_bytes(image[at as usize..at as usize + 8].try_into().unwrap())
}

#[test]
fn update_publishes_its_word_after_the_data() {
    let (held, mapped) = watched(|image| {
        if word(image, FLAG) != 0 {
            assert_eq!(
                [0, 8, 16].map(|at| word(image, at)),
                [5, 6, 7],
                "the flag became visible before the data"
            );
        }
    });
    for (at, value) in [(16, 7), (0, 5), (8, 6)] {
        mapped.store(at, value).unwrap();
    }
    assert_eq!(held.held_back(), 3, "a store alone must publish nothing");
    assert_eq!(mapped.fetch_update(FLAG, |old| (old == 0).then_some(1)), Ok(0));
    assert_eq!(held.held_back(), 0, "an update must be published");
    assert_eq!(mapped.fetch_update(FLAG, |old| (old == 0).then_some(2)), Ok(1));
    assert_eq!(mapped.update_half(FLAG, |old| Some(old + 2)), Ok(1));
    assert_eq!((held.held_back(), word(&held.image(), FLAG)), (0, 3));
}

#[test]
fn copies_are_published_whole() {
    for len in [1, 4, 7, 8, 24, 64, 72, 1000] {
        let (held, mapped) = mapping();
        let bytes: Vec<u8> = (0..len).map(|at| (at % 255) as u8 + 1).collect();
        mapped.copy_to(16, &bytes).unwrap();
        assert_eq!((held.held_back(), &held.image()[16..16 + len]), (0, &*bytes), "{len} bytes");
    }
}

#[test]
fn short_copies_never_tear_words() {
    let (_held, mapped) = watched(|image| {
        assert!([0, u64::MAX].contains(&word(image, 8)), "a word was torn");
        assert!([0, u64::from(u32::MAX)].contains(&word(image, 32)), "a half word was torn");
    });
    mapped.copy_to(0, &[0xff; 24]).unwrap();
    mapped.copy_to(32, &[0xff; 4]).unwrap();
}

#[test]
fn copies_from_mapped_memory_follow_own_stores() {
    let (held, mapped) = mapping();
    mapped.store(8, 0x0807_0605_0403_0201).unwrap();
    let mut out = [0; 10];
    mapped.copy_from(7, &mut out).unwrap();
    assert_eq!(out, [0, 1, 2, 3, 4, 5, 6, 7, 8, 0]);
    held.set_image(8, &[9]);
    assert_eq!(mapped.load(8), Ok(0x0807_0605_0403_0209));
    assert_eq!(mapped.load_half(8), Ok(0x0403_0209));
}

#[test]
fn updates_of_several_threads_are_all_counted() {
    let (held, mapped) = mapping();
    let part = mapped.sub_range(8, 64).unwrap();
    std::thread::scope(|scope| {
        for mapped in [&mapped, &part] {
            let at = if mapped.addr() == part.addr() { 0 } else { 8 };
            scope.spawn(move || {
                (0..500).for_each(|_| assert!(mapped.fetch_update(at, |old| Some(old + 1)).is_ok()))
            });
        }
    });
    assert_eq!(word(&held.image(), 8), 1000);
}

#[test]
fn accesses_beyond_the_end_are_refused() {
    let (held, mapped) = mapping();
    let part = mapped.sub_range(8, 12).unwrap();
    assert!(part.load(8).is_err() && part.load(4).is_err() && part.load_half(2).is_err());
    assert!(part.store(u64::MAX - 3, 1).is_err() && part.fetch_update(8, |_| Some(1)).is_err());
    assert!(part.copy_to(5, &[1; 8]).is_err() && part.copy_from(12, &mut [0]).is_err());
    assert!(part.store_half(8, 1).is_ok() && part.sub_range(1, 12).is_err());
    assert_eq!(part.len(), 12);
    part.fence();
    assert_eq!(held.image()[16], 1);
}

/// Operations that need an atomic or a reference of ordinary memory are refused.
#[test]
fn mapped_memory_has_no_words() {
    let (held, mapped) = mapping();
    let memory = mapped.sub_range(8, 4096).unwrap().to_memory();
    assert_eq!((memory.kind(), memory.len(), memory.addr()), (MemoryKind::Mapped, 4096, (1 << 40) + 8));
    assert!(
        memory.atomic_word(0).is_err()
            && memory.atomic_words::<1>(0).is_err()
            && memory.atomic_half_word(0).is_err()
    );
    assert!(memory.load(0).is_err() && memory.store(0, 1).is_err() && memory.load_row::<1>(0).is_err());
    assert!(memory.fetch_add(0, 1).is_err() && memory.fetch_update(0, |_| Some(1)).is_err());
    assert!(memory.update_half(0, |_| Some(1)).is_err());
    let host = MemoryRange::try_heap(LEN).unwrap();
    assert!(host.as_mapped().is_none());
    host.write(0, b"bytes of the host").unwrap();
    memory.copy_from(100, &host, 0, 17).unwrap();
    memory.write(4090, b"end").unwrap();
    let mut out = [0; 5];
    memory.read(100, &mut out).unwrap();
    assert_eq!((&out, &held.image()[108..113], held.held_back()), (b"bytes", &b"bytes"[..], 0));
    let part = memory.sub_range(100, 17).unwrap();
    part.as_mapped().unwrap().store(4, 1).unwrap();
    host.copy_from(50, &part, 12, 5).unwrap();
    host.read(50, &mut out).unwrap();
    assert_eq!(&out, b" host");
    assert!(memory.write(4095, b"xx").is_err() && memory.copy_from(4095, &host, 0, 2).is_err());
    assert!(host.copy_from(0, &part, 10, 8).is_err());
}

#[test]
fn overlapping_copies_move_whole_ranges() {
    for (from, to) in [(0, 100), (100, 0)] {
        let (held, mapped) = mapping();
        let (memory, bytes) =
            (mapped.to_memory(), (0..20_000).map(|at| (at % 251) as u8).collect::<Vec<_>>());
        memory.write(from, &bytes).unwrap();
        memory.copy_from(to, &memory, from, 20_000).unwrap();
        assert!(held.image()[to as usize..][..20_000] == bytes, "{from} to {to}");
    }
}
