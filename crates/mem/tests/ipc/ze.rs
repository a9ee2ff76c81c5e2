//! Properties of memory of Intel's devices beyond the acceptance suite, over a stub library for Level Zero.

use trunkline_mem::ipc::HandlePassing;

use crate::peer::{Pattern, Place, World};
use crate::stub::is_there;

const LEN: usize = 10 << 20;
const ONE: Pattern = Pattern(0x1111_0000_2222, 7);

#[test]
fn each_export_is_returned_once() {
    if !is_there("ze") {
        return;
    }
    let world = World::new("ze", 16 << 20);
    let [owner, importer] = [world.process(), world.process()];
    let addr = owner.alloc(LEN).unwrap();
    let found = owner.find(addr).unwrap();
    owner.fill(Place::Own(addr), LEN, ONE).unwrap();
    let first = owner.export(&found, HandlePassing::Descriptor).unwrap();
    let second = owner.export(&found, HandlePassing::Either).unwrap();
    assert_eq!(first.handle, second.handle, "the driver's descriptor is the same one");
    assert_eq!((owner.number("stub_gets", 0), owner.number("stub_puts", 0)), (2, 0));
    owner.unexport().unwrap();
    assert_eq!((owner.number("stub_gets", 0), owner.number("stub_puts", 0)), (2, 2));
    let open = importer.open(&second).unwrap();
    assert_eq!(importer.check(Place::Open(open, 0), LEN, ONE), Ok(0));
    assert!(owner.export(&found, HandlePassing::Bytes).unwrap_err().starts_with("Passing"));
}

#[test]
fn memory_is_free_after_unmapping_and_unexport() {
    if !is_there("ze") {
        return;
    }
    let world = World::new("ze", 16 << 20);
    let [owner, importer] = [world.process(), world.process()];
    for _ in 0..100 {
        let addr = owner.alloc(LEN).unwrap();
        let parcel = owner.export(&owner.find(addr).unwrap(), HandlePassing::Descriptor).unwrap();
        let open = importer.open(&parcel).unwrap();
        drop(parcel);
        owner.free(addr);
        assert_eq!(owner.number("stub_used", 0), LEN as u64);
        importer.close(open);
        assert_eq!(owner.number("stub_used", 0), LEN as u64, "the export holds it");
        assert!(owner.alloc(LEN).is_err());
        owner.unexport().unwrap();
        owner.has_all_back();
    }
}

#[test]
fn descriptor_of_other_memory_is_refused() {
    if !is_there("ze") {
        return;
    }
    let world = World::new("ze", 32 << 20);
    let [owner, importer] = [world.process(), world.process()];
    let mut parcels = [0, 1].map(|_| {
        let addr = owner.alloc(LEN).unwrap();
        owner.export(&owner.find(addr).unwrap(), HandlePassing::Descriptor).unwrap()
    });
    let [one, two] = &mut parcels;
    std::mem::swap(&mut one.descriptor, &mut two.descriptor);
    assert!(importer.open(one).unwrap_err().starts_with("Descriptor"));
}
