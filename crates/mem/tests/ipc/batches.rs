//! Asynchronous batches of copies, over stub libraries for the drivers of NVIDIA, AMD and Intel that delay copies.

use trunkline_mem::ipc::HandlePassing;

use crate::peer::{Parcel, Pattern, Place, Process, World};
use crate::stub::is_there;

const SEGMENT: usize = 64 << 10;
const ONE: Pattern = Pattern(0x1111_0000_2222, 7);
const TWO: Pattern = Pattern(0x9999_8888_7777, 13);

fn exported(owner: &Process, addr: usize) -> Parcel {
    owner.export(&owner.find(addr).unwrap(), HandlePassing::Either).unwrap()
}

/// Creates two processes over a stub that holds back copies of a segment or more.
fn holding(kind: &'static str) -> Option<(World, [Process; 2])> {
    let world = is_there(kind).then(|| World::new(kind, 64 << 20))?;
    world.set("STUB_HOLD", SEGMENT);
    let both = [world.process(), world.process()];
    Some((world, both))
}

#[test]
fn long_copy_delays_no_other() {
    for kind in ["cuda", "cuda_segment", "hip", "ze"] {
        let Some((_world, [owner, importer])) = holding(kind) else { continue };
        let half = SEGMENT / 2;
        let opened = |pattern| {
            let addr = owner.alloc(SEGMENT).unwrap();
            owner.fill(Place::Own(addr), SEGMENT, pattern).unwrap();
            (importer.open(&exported(&owner, addr)).unwrap(), importer.alloc(SEGMENT).unwrap())
        };
        let ((long, into), (short, beside)) = (opened(ONE), opened(TWO));
        let waited = importer.number("stub_blocked", 0);
        let long = importer.begin((long, 0), into, SEGMENT).unwrap();
        let short = importer.begin((short, 0), beside, half).unwrap();
        assert_eq!([importer.has_ended(short), importer.has_ended(long)], [Ok(true), Ok(false)], "{kind}");
        assert_eq!(importer.check(Place::Own(beside), half, TWO), Ok(0));
        assert_ne!(
            importer.check(Place::Own(into), half, ONE),
            Ok(0),
            "the long copy must still be in progress"
        );
        assert_eq!(importer.number("stub_let_go", 0), 0);
        assert_eq!(importer.has_ended(long), Ok(true));
        assert_eq!(importer.check(Place::Own(into), half, ONE), Ok(0));
        assert_eq!(importer.number("stub_blocked", 0), waited, "{kind}: no call may wait for a stream");
    }
}

#[test]
fn batches_are_limited_until_polled() {
    for kind in ["cuda", "hip", "ze"] {
        let Some((_world, [owner, importer])) = holding(kind) else { continue };
        let addr = owner.alloc(SEGMENT).unwrap();
        let (open, into) =
            (importer.open(&exported(&owner, addr)).unwrap(), importer.alloc(SEGMENT).unwrap());
        let mut under_way: Vec<u64> = Vec::new();
        let busy = loop {
            match importer.begin((open, 0), into, SEGMENT) {
                Ok(batch) => under_way.push(batch),
                Err(error) => break error,
            }
        };
        assert!(busy.starts_with("Busy") && under_way.len() == 8, "{busy}");
        assert_eq!(importer.number("stub_let_go", 0), 0);
        assert!(
            importer.begin((open, 0), into, SEGMENT).is_err(),
            "a slot is free only once its batch was polled"
        );
        assert!(under_way.iter().all(|batch| importer.has_ended(*batch) == Ok(true)));
        importer.begin((open, 0), into, SEGMENT).unwrap();
        assert_eq!(importer.number("stub_events", 0), 8, "{kind}: one event per slot must be made");
    }
}

#[test]
fn closing_imported_memory_waits_for_its_copies() {
    for kind in ["cuda", "hip", "ze"] {
        let Some((_world, [owner, importer])) = holding(kind) else { continue };
        let [used, other] = [(); 2].map(|()| owner.alloc(SEGMENT).unwrap());
        owner.fill(Place::Own(used), SEGMENT, ONE).unwrap();
        let [open, beside] = [used, other].map(|addr| importer.open(&exported(&owner, addr)).unwrap());
        let into = importer.alloc(SEGMENT).unwrap();
        let waited = importer.number("stub_blocked", 0);
        let batch = importer.begin((open, 0), into, SEGMENT).unwrap();
        importer.close(beside);
        assert_eq!(
            importer.number("stub_blocked", 0),
            waited,
            "closing must not wait for copies of other memory"
        );
        assert_eq!(importer.has_ended(batch), Ok(false));
        importer.close(open);
        assert_eq!(importer.number("stub_blocked", 0), waited + 1);
        assert_eq!(importer.has_ended(batch), Ok(true));
        assert_eq!(importer.check(Place::Own(into), SEGMENT / 2, ONE), Ok(0));
    }
}

#[test]
fn host_memory_stays_pinned_until_released() {
    for kind in ["cuda", "hip"] {
        let Some(world) = is_there(kind).then(|| World::new(kind, 16 << 20)) else { continue };
        assert_eq!(world.process().pin(SEGMENT), [1, 1, 0], "{kind}");
        // If the driver cannot pin memory, copies work without pins.
        world.set("STUB_PIN", "refuse");
        assert_eq!(world.process().pin(SEGMENT), [0, 0, 0], "{kind}");
    }
}

/// The creation of a stream may wait for a running kernel, so streams must exist before the first copy.
#[test]
fn copies_create_no_streams() {
    for kind in ["cuda", "hip", "ze"] {
        let Some((_world, [owner, importer])) = holding(kind) else { continue };
        let addr = owner.alloc(SEGMENT).unwrap();
        let (open, into) =
            (importer.open(&exported(&owner, addr)).unwrap(), importer.alloc(SEGMENT).unwrap());
        let made = importer.number("stub_made_streams", 0);
        let batches: Vec<u64> = (0..8).map(|_| importer.begin((open, 0), into, SEGMENT).unwrap()).collect();
        assert_eq!(importer.number("stub_let_go", 0), 0);
        assert!(batches.iter().all(|batch| importer.has_ended(*batch) == Ok(true)));
        assert_eq!(importer.number("stub_made_streams", 0), made, "{kind}");
    }
}

/// Further copies of a batch are begun while its earlier ones are in progress.
#[test]
fn batch_that_grows_ends_with_its_last_copy() {
    for kind in ["cuda", "hip", "ze"] {
        let Some((_world, [owner, importer])) = holding(kind) else { continue };
        let addr = owner.alloc(2 * SEGMENT).unwrap();
        owner.fill(Place::Own(addr), 2 * SEGMENT, ONE).unwrap();
        let open = importer.open(&exported(&owner, addr)).unwrap();
        let into = importer.alloc(2 * SEGMENT).unwrap();
        let batch = importer.begin((open, 0), into, SEGMENT).unwrap();
        assert_eq!(importer.has_ended(batch), Ok(false));
        assert_eq!(importer.go_on(batch, (open, 0), into, 2 * SEGMENT), Ok(batch), "{kind}");
        assert_eq!(importer.has_ended(batch), Ok(false), "{kind}");
        assert_eq!(importer.number("stub_let_go", 0), 0);
        assert_eq!(importer.has_ended(batch), Ok(true), "{kind}");
        assert_eq!(importer.check(Place::Own(into), 2 * SEGMENT, ONE), Ok(0), "{kind}");
    }
}

/// Copies to adjacent own bytes, whose halves are on two devices.
#[test]
fn batch_of_two_devices_ends_with_both() {
    let Some((world, _)) = holding("cuda") else { return };
    world.set("STUB_DEVICES", 2);
    let process = world.process();
    let addr = process.vendor("make two devices", &[2 * SEGMENT as u64]).unwrap() as usize;
    let waited = process.number("stub_blocked", 0);
    let batch = process.begin_fill(addr, 2 * SEGMENT, ONE);
    assert_eq!(process.has_ended(batch), Ok(false));
    assert_eq!(process.number("stub_blocked", 0), waited, "no call may wait for a copy");
    assert_eq!(process.number("stub_let_go_one", 0), 0);
    assert_eq!(process.has_ended(batch), Ok(false), "only one device has copied");
    assert_eq!(process.number("stub_let_go", 0), 0);
    assert_eq!(process.has_ended(batch), Ok(true));
    assert_eq!(process.check(Place::Own(addr), 2 * SEGMENT, ONE), Ok(0));
}

/// Another thread creates the stream of the device, and waits for the kernel.
#[test]
fn first_copy_of_a_further_device_waits_for_no_kernel() {
    for kind in ["cuda", "hip", "ze"] {
        let Some(world) = is_there(kind).then(|| World::new(kind, 64 << 20)) else { continue };
        world.set("STUB_DEVICES", 2);
        let process = world.process();
        let own = process.vendor("on_device", &[SEGMENT as u64, 1]).unwrap() as usize;
        process.number("stub_run_kernel", 0);
        for waiting in [0, 1] {
            while process.number("stub_kernel_waiting", 0) < waiting {
                assert_eq!(process.number("stub_kernel_runs", 0), 1, "{kind}");
            }
            let busy =
                process.try_begin_fill(own, SEGMENT, ONE).expect_err("the device must have no stream yet");
            assert!(busy.starts_with("Busy"), "{kind}: {busy}");
        }
        assert_eq!(process.number("stub_kernel_runs", 0), 1, "{kind}: no call may wait for the kernel");
        process.number("stub_end_kernel", 0);
        let batch = process.begin_fill(own, SEGMENT, ONE);
        while !process.has_ended(batch).unwrap() {}
        assert_eq!(process.check(Place::Own(own), SEGMENT, ONE), Ok(0), "{kind}");
    }
}

/// The second half of the bytes is on a device whose stream another thread creates, which waits for the kernel. The
/// first half is copied by a separate request before, as rows are.
#[test]
fn further_copy_of_a_batch_waits_for_no_kernel() {
    let Some((world, _)) = holding("cuda") else { return };
    world.set("STUB_DEVICES", 2);
    let process = world.process();
    let addr = process.vendor("make two devices", &[2 * SEGMENT as u64]).unwrap() as usize;
    let batch = process.begin_fill(addr, SEGMENT, ONE);
    process.number("stub_run_kernel", 0);
    let busy = process
        .fill_further(batch, addr + SEGMENT, SEGMENT, TWO)
        .expect_err("the device must have no stream yet");
    assert!(busy.starts_with("Busy"), "{busy}");
    assert_eq!(process.number("stub_kernel_runs", 0), 1, "no call of this thread may wait for the kernel");
    process.number("stub_end_kernel", 0);
    assert_eq!(process.number("stub_let_go", 0), 0);
    assert_eq!(process.has_ended(batch), Ok(true), "the copies that were begun must have ended");
}

#[test]
fn closing_thread_alone_waits_for_copies() {
    for kind in ["cuda", "cuda_segment", "hip", "ze"] {
        let Some((_world, [owner, importer])) = holding(kind) else { continue };
        let [used, other] = [(); 2].map(|()| owner.alloc(SEGMENT).unwrap());
        owner.fill(Place::Own(used), SEGMENT, ONE).unwrap();
        let [open, beside] = [used, other].map(|addr| importer.open(&exported(&owner, addr)).unwrap());
        let into = [(); 2].map(|()| importer.alloc(SEGMENT).unwrap());
        let waited = importer.number("stub_blocked", 0);
        let batch = importer.begin((open, 0), into[0], SEGMENT).unwrap();
        importer.close_beside(open);
        // Other batches are begun and end meanwhile.
        for _ in 0..100 {
            let short = importer.begin((beside, 0), into[1], SEGMENT / 2).unwrap();
            assert_eq!(importer.has_ended(short), Ok(true), "{kind}");
            assert!(!importer.is_closed(), "{kind}: the mapping must stay open while a copy uses it");
        }
        assert_eq!(importer.has_ended(batch), Ok(false), "{kind}");
        assert_eq!(importer.number("stub_let_go", 0), 0);
        while !importer.is_closed() {}
        assert_eq!(
            importer.has_ended(batch),
            Ok(true),
            "{kind}: the thread that began the batch must see its end, too"
        );
        assert_eq!(importer.number("stub_blocked", 0), waited, "{kind}: no call may wait for a stream");
        assert_eq!(importer.check(Place::Own(into[0]), SEGMENT, ONE), Ok(0), "{kind}");
    }
}
