//! Properties of memory of NVIDIA's devices beyond the acceptance suite, over a stub library for the driver.

use trunkline_mem::ipc::HandlePassing;

use crate::devices;
use crate::peer::{Pattern, Place, Process, World};
use crate::stub::is_there;

const SEGMENT: usize = 64 << 10;
const ONE: Pattern = Pattern(0x1111_0000_2222, 7);
const TWO: Pattern = Pattern(0x9999_8888_7777, 13);

fn world(kind: &'static str, mib: u64) -> Option<World> {
    is_there(kind).then(|| World::new(kind, mib << 20))
}

fn exported(owner: &Process, addr: usize) -> crate::peer::Parcel {
    owner.export(&owner.find(addr).unwrap(), HandlePassing::Either).unwrap()
}

#[test]
fn who_has_it_open_besides_is_in_the_way_or_shares_it() {
    for reopens in ["refuse", "count"] {
        let Some(world) = world("cuda", 16) else { return };
        world.set("STUB_REOPEN", reopens);
        let [owner, importer] = [world.process(), world.process()];
        let addr = owner.alloc(SEGMENT).unwrap();
        owner.fill(Place::Own(addr), SEGMENT, ONE).unwrap();
        let parcel = exported(&owner, addr);
        importer.open(&parcel).unwrap();
        // Memory that the process had open stays mapped, as if another library had opened it.
        importer.anew();
        let again = importer.open(&parcel);
        if reopens == "refuse" {
            assert!(again.unwrap_err().starts_with("AlreadyMapped"), "and the message goes another way");
            continue;
        }
        let again = again.unwrap();
        importer.close(again);
        let again = importer.open(&parcel).unwrap();
        assert_eq!(importer.check(Place::Open(again, 0), SEGMENT, ONE), Ok(0));
    }
}

#[test]
fn the_thread_has_its_own_context_back_after_each_call() {
    let Some(world) = world("cuda", 16) else { return };
    let [owner, importer] = [world.process(), world.process()];
    let addr = owner.alloc(SEGMENT).unwrap();
    let open = importer.open(&exported(&owner, addr)).unwrap();
    importer.fill(Place::Open(open, 0), SEGMENT, ONE).unwrap();
    importer.close(open);
    owner.free(addr);
    for process in [&owner, &importer] {
        assert_eq!(process.number("stub_depth", 0), 0, "contexts on the stack");
        assert_eq!(process.number("stub_contexts", 0), 1, "the device's is kept for the value, and once");
    }
}

#[test]
fn freed_memory_counts_until_the_last_one_closes_it() {
    for kind in ["cuda", "cuda_segment"] {
        let Some(world) = world(kind, 16) else { return };
        let [owner, importer] = [world.process(), world.process()];
        let addr = owner.alloc(10 << 20).unwrap();
        let open = importer.open(&exported(&owner, addr)).unwrap();
        owner.free(addr);
        assert_eq!(owner.number("stub_used", 0), 10 << 20);
        assert!(owner.alloc(8 << 20).is_err(), "{kind}");
        importer.close(open);
        owner.has_all_back();
        for _ in 0..100 {
            let addr = owner.alloc(10 << 20).unwrap();
            let open = importer.open(&exported(&owner, addr)).unwrap();
            owner.free(addr);
            importer.close(open);
            owner.has_all_back();
        }
    }
}

#[test]
fn segments_behind_each_other_are_exported_one_by_one_or_not() {
    let Some(world) = world("cuda_segment", 16) else { return };
    let [owner, importer] = [world.process(), world.process()];
    let first = owner.vendor("segments", &[SEGMENT as u64, 2 * SEGMENT as u64]).unwrap() as usize;
    let second = first + SEGMENT;
    let found = [owner.find(first + 5).unwrap(), owner.find(second + 5).unwrap()];
    assert_eq!(found.map(|one| (one.base, one.len)), [(first, SEGMENT), (second, 2 * SEGMENT)]);
    assert_ne!(found[0].id, found[1].id);
    owner.fill(Place::Own(first), 3 * SEGMENT, ONE).unwrap();
    assert_eq!(owner.check(Place::Own(first), 3 * SEGMENT, ONE), Ok(0), "copies go on over the seam");
    owner.fill(Place::Own(second), 2 * SEGMENT, TWO).unwrap();
    let open = importer.open(&exported(&owner, second + 8)).unwrap();
    assert_eq!(importer.check(Place::Open(open, 0), 2 * SEGMENT, TWO), Ok(0), "the second one, all of it");
    assert!(importer.check(Place::Open(open, 8), 2 * SEGMENT, TWO).unwrap_err().starts_with("Outside"));
    // No single handle covers bytes of both: the sender finds the range valid, and stages it.
    for (len, holds) in [(SEGMENT, 1), (SEGMENT + 1, 1), (3 * SEGMENT, 1), (3 * SEGMENT + 1, 0)] {
        assert_eq!(owner.vendor("holds", &[first as u64, len as u64]), Ok(holds), "{len}");
    }
    assert!(owner.check(Place::Own(first), 3 * SEGMENT + 8, ONE).unwrap_err().starts_with("Outside"));
}

#[test]
fn what_cannot_be_shared_says_why_and_is_copied() {
    let Some(world) = world("cuda", 16) else { return };
    let owner = world.process();
    for (name, why) in [("pooled", "cudaMallocAsync"), ("unshareable", "cuMemCreate")] {
        let addr = owner.vendor(name, &[SEGMENT as u64]).unwrap() as usize;
        let found = owner.find(addr + 9).unwrap();
        assert_eq!((found.base, found.len), (addr, SEGMENT), "{name}");
        for how in [HandlePassing::Bytes, HandlePassing::Descriptor, HandlePassing::Either] {
            let error = owner.export(&found, how).unwrap_err();
            assert!(error.starts_with("Unshareable") && error.contains(why), "{error}");
        }
        owner.fill(Place::Own(addr), SEGMENT, ONE).unwrap();
        assert_eq!(owner.check(Place::Own(addr), SEGMENT, ONE), Ok(0));
    }
}

#[test]
fn both_sorts_of_memory_live_side_by_side() {
    let Some(world) = world("cuda", 16) else { return };
    let [owner, importer] = [world.process(), world.process()];
    let legacy = owner.alloc(SEGMENT).unwrap();
    let segment = owner.vendor("segments", &[SEGMENT as u64, SEGMENT as u64]).unwrap() as usize;
    for (addr, has_descriptor) in [(legacy, false), (segment, true)] {
        owner.fill(Place::Own(addr), SEGMENT, ONE).unwrap();
        let parcel = exported(&owner, addr);
        assert_eq!(parcel.descriptor.is_some(), has_descriptor);
        let open = importer.open(&parcel).unwrap();
        assert_eq!(importer.check(Place::Open(open, 0), SEGMENT, ONE), Ok(0));
    }
}

#[test]
fn each_device_of_an_importer_has_its_own_mapping() {
    let importer = devices::each_has_its_own_mapping("cuda", &[("STUB_DEVICES", 2)], [0, 1]);
    // The contexts of both are kept, once for the value that has mapped and once for each that has allocated, and nothing else.
    let contexts = importer.map(|importer| importer.number("stub_contexts", 0));
    assert!(contexts.is_none_or(|contexts| contexts == 4), "{contexts:?}");
}

#[test]
fn a_segment_is_mapped_for_the_device_that_copies_it() {
    let Some(world) = world("cuda_segment", 64) else { return };
    let owner = world.process();
    world.set("STUB_DEVICES", 2);
    let importer = world.process();
    let addr = owner.alloc(SEGMENT).unwrap();
    owner.fill(Place::Own(addr), SEGMENT, ONE).unwrap();
    for device in [1, 0, 1] {
        let open = importer.open_for(&exported(&owner, addr), device).unwrap();
        assert_eq!(importer.check(Place::Open(open, 0), SEGMENT, ONE), Ok(0), "{device}");
    }
}

/// Words of sevens, as `stub_set` leaves them.
const SET: Pattern = Pattern(0x0707_0707_0707_0707, 0);

#[test]
fn memory_that_is_set_and_sent_arrives_as_set() {
    for kind in ["cuda", "cuda_segment"] {
        let Some(world) = world(kind, 16) else { return };
        let [owner, importer] = [world.process(), world.process()];
        let addr = owner.alloc(SEGMENT).unwrap();
        owner.fill(Place::Own(addr), SEGMENT, ONE).unwrap();
        let open = importer.open(&exported(&owner, addr)).unwrap();
        assert_eq!(importer.check(Place::Open(open, 0), SEGMENT, ONE), Ok(0), "{kind}");
        assert_eq!(owner.number("stub_set", addr as u64), 0);
        assert_eq!(importer.check(Place::Open(open, 0), SEGMENT, SET), Ok(0), "{kind}: old bytes arrive");
        assert_eq!(
            owner.number("stub_syncs", 0),
            u64::from(kind == "cuda"),
            "{kind}: once, when it is exported"
        );
        assert_eq!(owner.number("stub_depth", 0), 0);
    }
}

/// The attribute waits for copies that were begun before.
#[test]
fn memory_that_was_set_before_its_first_export_arrives_as_set() {
    let Some(world) = world("cuda", 16) else { return };
    let [owner, importer] = [world.process(), world.process()];
    let addr = owner.alloc(SEGMENT).unwrap();
    assert_eq!(owner.number("stub_set", addr as u64), 0);
    let open = importer.open(&exported(&owner, addr)).unwrap();
    assert_eq!(importer.check(Place::Open(open, 0), SEGMENT, SET), Ok(0));
}

/// If neither setting is accepted, users must wait for their copies, as the warning states; the memory is exported anyway.
#[test]
fn memory_that_cannot_be_synchronous_is_exported_all_the_same() {
    for (rule, value, early) in [("STUB_CTX_FLAGS", "refuse", true), ("STUB_EARLY", "off", false)] {
        let Some(world) = world("cuda_segment", 16) else { return };
        ["STUB_CTX_FLAGS", rule].iter().for_each(|rule| world.set(rule, "refuse"));
        world.set(rule, value);
        let [owner, importer] = [world.process(), world.process()];
        let addr = owner.alloc(SEGMENT).unwrap();
        owner.fill(Place::Own(addr), SEGMENT, ONE).unwrap();
        let open = importer.open(&exported(&owner, addr)).unwrap();
        assert_eq!(owner.number("stub_set", addr as u64), 0);
        let old = if early { ONE } else { SET };
        assert_eq!(importer.check(Place::Open(open, 0), SEGMENT, old), Ok(0), "{rule}");
        assert_eq!(owner.number("stub_wait", 0), 0);
        assert_eq!(importer.check(Place::Open(open, 0), SEGMENT, SET), Ok(0), "{rule}");
    }
}
