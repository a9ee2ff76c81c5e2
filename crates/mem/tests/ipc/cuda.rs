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
fn second_user_is_refused_or_shares_the_mapping() {
    for reopens in ["refuse", "count"] {
        let Some(world) = world("cuda", 16) else { return };
        world.set("STUB_REOPEN", reopens);
        let [owner, importer] = [world.process(), world.process()];
        let addr = owner.alloc(SEGMENT).unwrap();
        owner.fill(Place::Own(addr), SEGMENT, ONE).unwrap();
        let parcel = exported(&owner, addr);
        importer.open(&parcel).unwrap();
        // The opened memory stays mapped, as if another library of the process had opened it.
        importer.anew();
        let again = importer.open(&parcel);
        if reopens == "refuse" {
            assert!(again.unwrap_err().starts_with("AlreadyMapped"), "a second opening must be refused");
            continue;
        }
        let again = again.unwrap();
        importer.close(again);
        let again = importer.open(&parcel).unwrap();
        assert_eq!(importer.check(Place::Open(again, 0), SEGMENT, ONE), Ok(0));
    }
}

#[test]
fn each_call_restores_the_context_of_its_thread() {
    let Some(world) = world("cuda", 16) else { return };
    let [owner, importer] = [world.process(), world.process()];
    let addr = owner.alloc(SEGMENT).unwrap();
    let open = importer.open(&exported(&owner, addr)).unwrap();
    importer.fill(Place::Open(open, 0), SEGMENT, ONE).unwrap();
    importer.close(open);
    owner.free(addr);
    for process in [&owner, &importer] {
        assert_eq!(process.number("stub_depth", 0), 0, "no context may stay on the stack");
        assert_eq!(
            process.number("stub_contexts", 0),
            1,
            "the device's context must be retained once, by the value"
        );
    }
}

#[test]
fn freed_memory_counts_until_its_last_close() {
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
fn adjacent_segments_are_exported_separately() {
    let Some(world) = world("cuda_segment", 16) else { return };
    let [owner, importer] = [world.process(), world.process()];
    let first = owner.vendor("segments", &[SEGMENT as u64, 2 * SEGMENT as u64]).unwrap() as usize;
    let second = first + SEGMENT;
    let found = [owner.find(first + 5).unwrap(), owner.find(second + 5).unwrap()];
    assert_eq!(found.map(|one| (one.base, one.len)), [(first, SEGMENT), (second, 2 * SEGMENT)]);
    assert_ne!(found[0].id, found[1].id);
    owner.fill(Place::Own(first), 3 * SEGMENT, ONE).unwrap();
    assert_eq!(
        owner.check(Place::Own(first), 3 * SEGMENT, ONE),
        Ok(0),
        "copies must cross the boundary of the segments"
    );
    owner.fill(Place::Own(second), 2 * SEGMENT, TWO).unwrap();
    let open = importer.open(&exported(&owner, second + 8)).unwrap();
    assert_eq!(
        importer.check(Place::Open(open, 0), 2 * SEGMENT, TWO),
        Ok(0),
        "the mapping must be all of the second segment"
    );
    assert!(importer.check(Place::Open(open, 8), 2 * SEGMENT, TWO).unwrap_err().starts_with("Outside"));
    // No single handle covers bytes of both segments. The sender finds the range valid, and stages it.
    for (len, holds) in [(SEGMENT, 1), (SEGMENT + 1, 1), (3 * SEGMENT, 1), (3 * SEGMENT + 1, 0)] {
        assert_eq!(owner.vendor("holds", &[first as u64, len as u64]), Ok(holds), "{len}");
    }
    assert!(owner.check(Place::Own(first), 3 * SEGMENT + 8, ONE).unwrap_err().starts_with("Outside"));
}

#[test]
fn unshareable_memory_is_refused_and_copyable() {
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
fn legacy_memory_and_segments_coexist() {
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
    // One context per device is retained by the value that mapped, and one by each value that allocated; no others.
    let contexts = importer.map(|importer| importer.number("stub_contexts", 0));
    assert!(contexts.is_none_or(|contexts| contexts == 4), "{contexts:?}");
}

#[test]
fn segment_is_mapped_for_its_copying_device() {
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

/// The words of memory that `stub_set` has filled with sevens.
const SET: Pattern = Pattern(0x0707_0707_0707_0707, 0);

#[test]
fn memset_after_an_export_is_visible_to_importers() {
    for kind in ["cuda", "cuda_segment"] {
        let Some(world) = world(kind, 16) else { return };
        let [owner, importer] = [world.process(), world.process()];
        let addr = owner.alloc(SEGMENT).unwrap();
        owner.fill(Place::Own(addr), SEGMENT, ONE).unwrap();
        let open = importer.open(&exported(&owner, addr)).unwrap();
        assert_eq!(importer.check(Place::Open(open, 0), SEGMENT, ONE), Ok(0), "{kind}");
        assert_eq!(owner.number("stub_set", addr as u64), 0);
        assert_eq!(
            importer.check(Place::Open(open, 0), SEGMENT, SET),
            Ok(0),
            "{kind}: the importer must not see old bytes"
        );
        assert_eq!(
            owner.number("stub_syncs", 0),
            u64::from(kind == "cuda"),
            "{kind}: the context must be synchronized once, at the export"
        );
        assert_eq!(owner.number("stub_depth", 0), 0);
    }
}

/// Setting the attribute waits for copies that were begun before.
#[test]
fn memset_before_the_export_is_visible_to_importers() {
    let Some(world) = world("cuda", 16) else { return };
    let [owner, importer] = [world.process(), world.process()];
    let addr = owner.alloc(SEGMENT).unwrap();
    assert_eq!(owner.number("stub_set", addr as u64), 0);
    let open = importer.open(&exported(&owner, addr)).unwrap();
    assert_eq!(importer.check(Place::Open(open, 0), SEGMENT, SET), Ok(0));
}

/// If the driver accepts neither setting, users must wait for their own copies, which a warning states. The memory is
/// exported anyway.
#[test]
fn memory_without_synchronous_copies_is_exported() {
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
