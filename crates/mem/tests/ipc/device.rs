//! Properties of the simulated device beyond the acceptance suite: poison, and correct usage after processes end in any
//! way.

use trunkline_mem::ipc::{HandlePassing, MemfdDevice, MemfdError, poison_word};

use crate::peer::{Pattern, Place, World};

const MIB: usize = 1 << 20;
const ONE: Pattern = Pattern(5, 3);

fn world(mib: u64) -> World {
    World::new("device", mib << 20)
}

#[test]
fn freed_memory_counts_until_its_last_close() {
    let world = world(16);
    let [owner, first, second] = [world.process(), world.process(), world.process()];
    let addr = owner.alloc(10 * MIB).unwrap();
    let parcel = owner.export(&owner.find(addr).unwrap(), HandlePassing::Bytes).unwrap();
    let opens = [first.open(&parcel).unwrap(), second.open(&parcel).unwrap()];
    assert_eq!(world.used(10 << 20).freed, 0);
    owner.free(addr);
    let usage = world.used(10 << 20);
    assert_eq!((usage.freed, usage.allocations), (10 << 20, 1));
    assert!(owner.alloc(8 * MIB).is_err());
    first.close(opens[0]);
    assert_eq!(world.used(10 << 20).freed, 10 << 20);
    assert!(owner.alloc(8 * MIB).is_err());
    second.close(opens[1]);
    assert_eq!(world.used(0).allocations, 0);
    owner.alloc(16 * MIB).unwrap();
}

#[test]
fn exhausted_device_reports_its_usage() {
    let world = world(16);
    let [owner, importer] = [world.process(), world.process()];
    let addr = owner.alloc(4 * MIB).unwrap();
    importer.open(&owner.export(&owner.find(addr).unwrap(), HandlePassing::Bytes).unwrap()).unwrap();
    owner.free(addr);
    owner.alloc(6 * MIB + 1).unwrap();
    let error = owner.alloc(8 * MIB).unwrap_err();
    assert!(error.starts_with("Exhausted"), "{error}");
    for part in ["8388608 bytes do not fit", "16777216 bytes", "10551296 are in use", "4194304 of them freed"]
    {
        assert!(error.contains(part), "{part}: {error}");
    }
    for len in [0, usize::MAX] {
        assert!(owner.alloc(len).unwrap_err().starts_with("Size"));
    }
}

#[test]
fn reads_of_freed_memory_return_poison() {
    let world = world(16);
    let [owner, importer] = [world.process(), world.process()];
    for len in [64, MIB, MIB + 24] {
        let addr = owner.alloc(len).unwrap();
        let allocation = owner.find(addr).unwrap();
        owner.fill(Place::Own(addr), len, ONE).unwrap();
        let open = importer.open(&owner.export(&allocation, HandlePassing::Bytes).unwrap()).unwrap();
        assert_eq!(importer.check(Place::Open(open, 0), len, ONE), Ok(0));
        owner.free(addr);
        assert_eq!(importer.check(Place::Open(open, 0), len, Pattern(poison_word(allocation.id), 0)), Ok(0));
        importer.close(open);
    }
}

#[test]
fn descriptor_in_transit_holds_the_memory() {
    let world = world(16);
    let [owner, importer] = [world.process(), world.process()];
    let addr = owner.alloc(8 * MIB).unwrap();
    let parcel = owner.export(&owner.find(addr).unwrap(), HandlePassing::Descriptor).unwrap();
    owner.kill();
    assert_eq!(world.used(8 << 20).freed, 8 << 20);
    let open = importer.open(&parcel).unwrap();
    drop(parcel);
    assert_eq!(world.used(8 << 20).freed, 8 << 20);
    importer.close(open);
    world.used(0);
}

#[test]
fn dead_processes_hold_no_memory() {
    let world = world(16);
    let [owner, importer] = [world.process(), world.process()];
    let addr = owner.alloc(8 * MIB).unwrap();
    let parcel = owner.export(&owner.find(addr).unwrap(), HandlePassing::Bytes).unwrap();
    importer.open(&parcel).unwrap();
    owner.free(addr);
    world.used(8 << 20);
    importer.kill();
    world.used(0);

    let importer = world.process();
    let addr = owner.alloc(8 * MIB).unwrap();
    owner.alloc(MIB).unwrap();
    let parcel = owner.export(&owner.find(addr).unwrap(), HandlePassing::Bytes).unwrap();
    let open = importer.open(&parcel).unwrap();
    owner.kill();
    assert_eq!(world.used(8 << 20).freed, 8 << 20, "the importer must hold the memory");
    importer.close(open);
    world.used(0);
    importer.alloc(16 * MIB).unwrap();
}

#[test]
fn randomly_killed_processes_leave_nothing() {
    let world = world(8);
    for round in 0..8 {
        let processes = [world.process(), world.process()];
        for (number, process) in processes.iter().enumerate() {
            process.churn(100 * round + number as u64);
        }
        std::thread::sleep(std::time::Duration::from_millis(20 + 7 * round));
        processes[0].kill();
        std::thread::sleep(std::time::Duration::from_millis(20));
        processes[1].kill();
        world.used(0);
    }
    world.process().alloc(8 * MIB).unwrap();
}

#[test]
fn allocations_are_limited_by_the_table() {
    let world = world(1 << 10);
    let owner = world.process();
    let all: Vec<usize> = (0..512).map(|_| owner.alloc(1).unwrap()).collect();
    assert!(owner.alloc(1).unwrap_err().starts_with("Slots(512)"));
    assert_eq!(world.used(512 * (64 << 10)).allocations, 512);
    owner.free(all[77]);
    assert_eq!(owner.alloc(1), Ok(all[77]));
}

#[test]
fn handles_of_other_devices_are_refused() {
    let [one, two] = [world(16), world(16)];
    let [owner, stranger] = [one.process(), two.process()];
    let addr = owner.alloc(MIB).unwrap();
    for way in [HandlePassing::Bytes, HandlePassing::Descriptor] {
        let parcel = owner.export(&owner.find(addr).unwrap(), way).unwrap();
        let error = stranger.open(&parcel).unwrap_err();
        assert!(error.starts_with("Handle(Foreign"), "{error}");
    }
    let file = std::fs::File::open("/dev/zero").unwrap();
    assert_eq!(MemfdDevice::join(0, &file).unwrap_err(), MemfdError::Foreign);
}
