//! Processes with several devices, each with its own mapping of the memory that it copies; cards whose tiles are
//! devices; and drivers whose devices share a mapping.

use trunkline_mem::ipc::HandlePassing;

use crate::peer::{Parcel, Pattern, Place, Process, World};
use crate::stub::is_there;

const LEN: usize = 64 << 10;
const ONE: Pattern = Pattern(0x1111_0000_2222, 7);
const TWO: Pattern = Pattern(0x9999_8888_7777, 13);

fn exported(owner: &Process, addr: usize) -> Parcel {
    owner.export(&owner.find(addr).unwrap(), HandlePassing::Either).unwrap()
}

/// Opens the same memory for two devices of a process, and checks both mappings; returns the process.
pub(crate) fn each_has_its_own_mapping(
    kind: &'static str,
    settings: &[(&'static str, u64)],
    devices: [u64; 2],
) -> Option<Process> {
    if !is_there(kind) {
        return None;
    }
    let world = World::new(kind, 64 << 20);
    let owner = world.process();
    settings.iter().for_each(|(name, value)| world.set(name, value));
    let importer = world.process();
    let caps = importer.caps();
    let addr = owner.alloc(LEN).unwrap();
    owner.fill(Place::Own(addr), LEN, ONE).unwrap();
    let parcel = exported(&owner, addr);
    let opens = devices.map(|device| importer.open_for(&parcel, device).unwrap());
    assert_eq!(importer.number("stub_opens", 0), 2);
    let places = opens.map(|open| importer.address(open));
    assert_ne!(places[0], places[1]);
    for (device, open) in devices.into_iter().zip(opens) {
        if caps.opens_once {
            assert!(importer.open_for(&parcel, device).unwrap_err().starts_with("AlreadyMapped"));
        }
        // Each mapping is used by its own device only.
        assert_eq!(importer.check(Place::Open(open, 0), LEN, ONE), Ok(0), "{device}");
    }
    // A mapping of freed memory conflicts with the new memory at its address, for either device.
    importer.close(opens[0]);
    owner.free(addr);
    assert_eq!(owner.alloc(2 * LEN), Ok(addr));
    owner.fill(Place::Own(addr), 2 * LEN, TWO).unwrap();
    let parcel = exported(&owner, addr);
    if caps.refuses_overlap {
        assert!(importer.open_for(&parcel, devices[0]).unwrap_err().starts_with("Overlap"));
    }
    importer.close(opens[1]);
    let open = importer.open_for(&parcel, devices[0]).unwrap();
    assert_eq!(importer.check(Place::Open(open, 0), 2 * LEN, TWO), Ok(0));
    importer.close(open);
    assert_eq!((importer.number("stub_opens", 0), importer.number("stub_closes", 0)), (3, 3));
    // Memory of either device belongs to this process, and its device is found.
    for device in devices {
        let own = importer.vendor("on_device", &[LEN as u64, device]).unwrap() as usize;
        assert_eq!(u64::from(importer.find(own).unwrap().device), device);
        importer.fill(Place::Own(own), LEN, TWO).unwrap();
        assert_eq!(importer.check(Place::Own(own), LEN, TWO), Ok(0));
    }
    Some(importer)
}

#[test]
fn hip_maps_for_each_device() {
    each_has_its_own_mapping("hip", &[("STUB_DEVICES", 2)], [0, 1]);
}

#[test]
fn ze_maps_for_each_card() {
    each_has_its_own_mapping("ze", &[("STUB_DEVICES", 2)], [0, 1]);
}

/// One card has the numbers 0, 1 and 2, of which 1 and 2 are its tiles. With two cards, the tiles follow both.
#[test]
fn ze_maps_for_each_tile() {
    each_has_its_own_mapping("ze", &[("STUB_TILES", 2)], [1, 2]);
    each_has_its_own_mapping("ze", &[("STUB_TILES", 2), ("STUB_DEVICES", 2)], [0, 5]);
}

#[test]
fn shared_mapping_lives_until_its_last_close() {
    let ways: [(_, &[(&str, &str)], _); 2] = [
        ("hip", &[("STUB_DEVICES", "2"), ("STUB_REOPEN", "share")], [0, 1]),
        ("ze", &[("STUB_TILES", "2"), ("STUB_REOPEN", "same")], [1, 2]),
    ];
    for (kind, settings, devices) in ways {
        if !is_there(kind) {
            return;
        }
        let world = World::new(kind, 16 << 20);
        world.set("STUB_HIP_PINS", 0);
        let owner = world.process();
        settings.iter().for_each(|(name, value)| world.set(name, value));
        let importer = world.process();
        for [first, second] in [[0, 1], [1, 0]] {
            let addr = owner.alloc(LEN).unwrap();
            owner.fill(Place::Own(addr), LEN, ONE).unwrap();
            let parcel = exported(&owner, addr);
            let opens = devices.map(|device| importer.open_for(&parcel, device).unwrap());
            assert_eq!(
                importer.address(opens[0]),
                importer.address(opens[1]),
                "{kind}: the devices must share a mapping, else the test proves nothing"
            );
            importer.close(opens[first]);
            let left = Place::Open(opens[second], 0);
            assert_eq!(
                importer.check(left, LEN, ONE),
                Ok(0),
                "{kind}: the mapping must stay open for the other device"
            );
            importer.close(opens[second]);
            drop(parcel);
            owner.unexport().unwrap();
            owner.free(addr);
            owner.has_all_back();
        }
    }
}

/// Memory that is split between the tiles of a card has one descriptor per part. The interface returns the first, which
/// must not be taken for all of the memory.
#[test]
fn split_memory_is_not_opened_as_one_tile() {
    if !is_there("ze") {
        return;
    }
    let world = World::new("ze", 16 << 20);
    world.set("STUB_TILES", 2);
    world.set("STUB_SPLIT", 1);
    let [owner, importer] = [world.process(), world.process()];
    let addr = owner.alloc(2 * LEN).unwrap();
    let error = importer.open(&exported(&owner, addr)).unwrap_err();
    assert!(error.starts_with("Handle(Value(\"length\"))"), "{error}");
    assert_eq!(
        (importer.number("stub_opens", 0), importer.number("stub_closes", 0)),
        (1, 1),
        "the refused mapping must be closed"
    );
    // Memory of one tile is mapped completely.
    let addr = owner.vendor("on_device", &[2 * LEN as u64, 2]).unwrap() as usize;
    let found = owner.find(addr).unwrap();
    assert_eq!((found.len, found.device), (2 * LEN, 2));
    owner.fill(Place::Own(addr), 2 * LEN, TWO).unwrap();
    let open = importer.open(&exported(&owner, addr)).unwrap();
    assert_eq!(importer.check(Place::Open(open, 0), 2 * LEN, TWO), Ok(0));
}
