//! GPU memory without a handle, or without a single handle for all of it. Its export fails with the reason, and its
//! bytes can be copied.

use trunkline_mem::ipc::HandlePassing;

use crate::peer::{Pattern, Place, World};
use crate::stub::is_there;

const HALF: usize = 64 << 10;
const LEN: usize = 2 * HALF;
const ONE: Pattern = Pattern(0x1111_0000_2222, 7);
const TWO: Pattern = Pattern(0x9999_8888_7777, 13);

const KINDS: [&str; 3] = ["cuda", "hip", "ze"];

/// The sorts of memory of a kind for which a driver has no handle, and the expected errors.
fn sorts(kind: &str) -> &'static [(&'static str, &'static str)] {
    match kind {
        "cuda" => &[
            ("pooled", "Unshareable(\"memory of a pool (cudaMallocAsync)"),
            ("unshareable", "Unshareable(\"the memory was made (cuMemCreate) without"),
            ("fabric", "Unshareable(\"the memory was made (cuMemCreate) without"),
        ],
        "hip" => &[("pooled", "Other("), ("virtual", "Other(")],
        _ => &[("virtual", "Other(")],
    }
}

#[test]
fn memory_without_handle_is_copied_not_exported() {
    for kind in KINDS {
        if !is_there(kind) {
            return;
        }
        let world = World::new(kind, 16 << 20);
        let owner = world.process();
        for (sort, why) in sorts(kind) {
            let addr = owner.vendor(&format!("make {sort}"), &[LEN as u64]).unwrap() as usize;
            let found = owner.find(addr + 9).unwrap();
            assert_eq!((found.base, found.len), (addr, LEN), "{kind}, {sort}");
            let error = owner.export(&found, HandlePassing::Either).unwrap_err();
            assert!(error.starts_with(why), "{kind}, {sort}: {error}");
            assert_eq!(owner.vendor("holds", &[addr as u64, LEN as u64]), Ok(1));
            owner.fill(Place::Own(addr), LEN, ONE).unwrap();
            assert_eq!(owner.check(Place::Own(addr), LEN, ONE), Ok(0), "{kind}, {sort}");
        }
        assert_eq!(owner.number("stub_gets", 0), 0, "{kind}: no handle may be made");
    }
}

/// Bytes of two adjacent allocations are copied as one range, but no handle covers both.
#[test]
fn copies_cross_adjacent_allocations() {
    for kind in KINDS {
        if !is_there(kind) {
            return;
        }
        let world = World::new(kind, 16 << 20);
        let [owner, importer] = [world.process(), world.process()];
        let first = owner.vendor("make segments", &[LEN as u64]).unwrap() as usize;
        let second = first + HALF;
        let found = [owner.find(first).unwrap(), owner.find(second).unwrap()];
        assert_eq!(found.map(|one| (one.base, one.len)), [(first, HALF), (second, HALF)], "{kind}");
        assert_ne!(found[0].id, found[1].id);
        for (addr, len, holds) in [(first, LEN, 1), (second - 8, 16, 1), (first, LEN + 1, 0)] {
            assert_eq!(owner.vendor("holds", &[addr as u64, len as u64]), Ok(holds), "{kind}: {len}");
        }
        owner.fill(Place::Own(first), LEN, ONE).unwrap();
        assert_eq!(owner.check(Place::Own(first), LEN, ONE), Ok(0), "{kind}: copies must cross the boundary");
        let outside = owner.fill(Place::Own(first), LEN + 8, TWO).unwrap_err();
        assert!(outside.starts_with("Outside"), "{kind}: {outside}");
        assert_eq!(
            owner.check(Place::Own(first), LEN, ONE),
            Ok(0),
            "{kind}: the refused copy must write nothing"
        );
        // Each allocation alone has a handle.
        owner.fill(Place::Own(second), HALF, TWO).unwrap();
        let parcel = owner.export(&found[1], HandlePassing::Either).unwrap();
        let open = importer.open(&parcel).unwrap();
        assert_eq!(importer.check(Place::Open(open, 0), HALF, TWO), Ok(0), "{kind}");
        assert!(importer.check(Place::Open(open, 8), HALF, TWO).unwrap_err().starts_with("Outside"));
    }
}

/// Memory that may be exported as a fabric handle or as a descriptor is passed by the descriptor.
#[test]
fn fabric_exportable_memory_is_passed_by_descriptor() {
    if !is_there("cuda") {
        return;
    }
    let world = World::new("cuda", 16 << 20);
    let [owner, importer] = [world.process(), world.process()];
    let addr = owner.vendor("make either", &[LEN as u64]).unwrap() as usize;
    owner.fill(Place::Own(addr), LEN, ONE).unwrap();
    let parcel = owner.export(&owner.find(addr).unwrap(), HandlePassing::Either).unwrap();
    assert!(parcel.descriptor.is_some());
    let open = importer.open(&parcel).unwrap();
    assert_eq!(importer.check(Place::Open(open, 0), LEN, ONE), Ok(0));
}
