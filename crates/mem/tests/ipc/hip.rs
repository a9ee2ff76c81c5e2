//! Properties of memory of AMD's devices beyond the acceptance suite, over a stub library for the runtime.

use trunkline_mem::ipc::HandlePassing;

use crate::peer::{Pattern, Place, World};
use crate::stub::is_there;

const LEN: usize = 64 << 10;
const ONE: Pattern = Pattern(0x1111_0000_2222, 7);

#[test]
fn repeated_driver_ids_get_new_names() {
    if !is_there("hip") {
        return;
    }
    let world = World::beginning("hip", 16 << 20, 7);
    let owner = world.process();
    let addr = owner.alloc(LEN).unwrap();
    let before = owner.find(addr).unwrap();
    owner.free(addr);
    // Simulates allocations of other code, some of which are queried.
    for _ in 0..4 {
        owner.number("stub_skip_ids", (1 << 30) - 2);
        let other = owner.alloc(LEN).unwrap();
        owner.find(other).unwrap();
        owner.free(other);
    }
    owner.number("stub_skip_ids", 3);
    let again = owner.alloc(LEN).unwrap();
    let after = owner.find(again).unwrap();
    assert_eq!(again, addr);
    assert_eq!(
        after.id.0 as u32, before.id.0 as u32,
        "the 32 bits must repeat, else the test proves nothing"
    );
    assert_ne!(after.id, before.id);
    assert!(owner.export(&before, HandlePassing::Bytes).unwrap_err().starts_with("Gone"));
}

#[test]
fn ids_wrap_between_live_allocations() {
    if !is_there("hip") {
        return;
    }
    let world = World::beginning("hip", 16 << 20, u64::from(u32::MAX) - 1);
    let [owner, importer] = [world.process(), world.process()];
    let addresses: Vec<usize> = (0..4).map(|_| owner.alloc(LEN).unwrap()).collect();
    let ids: Vec<u64> = addresses.iter().map(|addr| owner.find(*addr).unwrap().id.0).collect();
    assert!(ids.is_sorted() && ids[0] < ids[3], "{ids:x?}");
    for (addr, id) in addresses.iter().zip(&ids).rev() {
        let found = owner.find(*addr).unwrap();
        assert_eq!(found.id.0, *id, "a live allocation must keep its id");
        owner.fill(Place::Own(*addr), LEN, Pattern(*id, 3)).unwrap();
        let open = importer.open(&owner.export(&found, HandlePassing::Bytes).unwrap()).unwrap();
        assert_eq!(importer.check(Place::Open(open, 0), LEN, Pattern(*id, 3)), Ok(0));
    }
}

#[test]
fn allocation_is_exported_once_on_request() {
    if !is_there("hip") {
        return;
    }
    let world = World::new("hip", 16 << 20);
    let owner = world.process();
    let addr = owner.alloc(LEN).unwrap();
    let found = owner.find(addr).unwrap();
    assert_eq!(owner.number("stub_gets", 0), 0, "a query must not export");
    let first = owner.export(&found, HandlePassing::Bytes).unwrap();
    for _ in 0..100 {
        assert_eq!(owner.export(&found, HandlePassing::Either).unwrap().handle, first.handle);
    }
    assert_eq!(owner.number("stub_gets", 0), 1, "each export holds the memory until the process ends");
    owner.free(addr);
    assert_eq!(owner.number("stub_used", 0), LEN as u64, "the export must hold the memory");
    let again = owner.alloc(LEN).unwrap();
    let next = owner.export(&owner.find(again).unwrap(), HandlePassing::Bytes).unwrap();
    assert_ne!(next.handle, first.handle);
    assert_eq!(owner.number("stub_gets", 0), 2);
    owner.kill();
    world.process().has_all_back();
}

#[test]
fn unpinned_freed_memory_counts_until_last_close() {
    if !is_there("hip") {
        return;
    }
    let world = World::new("hip", 16 << 20);
    world.set("STUB_HIP_PINS", 0);
    let [owner, importer] = [world.process(), world.process()];
    for _ in 0..100 {
        let addr = owner.alloc(10 << 20).unwrap();
        let open =
            importer.open(&owner.export(&owner.find(addr).unwrap(), HandlePassing::Bytes).unwrap()).unwrap();
        owner.free(addr);
        assert_eq!(owner.number("stub_used", 0), 10 << 20);
        importer.close(open);
        owner.has_all_back();
    }
}

#[test]
fn each_call_restores_the_device_of_its_thread() {
    if !is_there("hip") {
        return;
    }
    let world = World::new("hip", 16 << 20);
    let [owner, importer] = [world.process(), world.process()];
    let addr = owner.alloc(LEN).unwrap();
    let open =
        importer.open(&owner.export(&owner.find(addr).unwrap(), HandlePassing::Bytes).unwrap()).unwrap();
    importer.fill(Place::Open(open, 0), LEN, ONE).unwrap();
    importer.close(open);
    for process in [&owner, &importer] {
        assert_eq!(process.number("stub_current", 0), 1, "the thread must have its first device again");
    }
}
