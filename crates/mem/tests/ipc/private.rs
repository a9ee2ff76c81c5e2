//! Properties of memory copied by system calls beyond the acceptance suite.

use trunkline_mem::ipc::HandlePassing;

use crate::peer::World;

#[test]
fn kernel_refusal_reports_the_remedy() {
    let world = World::new("private", 0);
    let owner = world.process();
    let addr = owner.alloc(64).unwrap();
    let parcel = owner.export(&owner.find(addr).unwrap(), HandlePassing::Bytes).unwrap();
    world.process().open(&parcel).unwrap();
    owner.hide();
    if rustix::process::geteuid().is_root() {
        // Root may access any process, so use another user.
        world.run_as(65534);
    }
    let error = world.process().open(&parcel).unwrap_err();
    assert!(error.starts_with("Refused"), "{error}");
    for part in ["process_vm_readv failed: Operation not permitted", "kernel.yama.ptrace_scope", "SYS_PTRACE"]
    {
        assert!(error.contains(part), "{part}: {error}");
    }
}

#[test]
fn pid_alone_does_not_prove_a_process() {
    let world = World::new("private", 0);
    let [owner, other, importer] = [world.process(), world.process(), world.process()];
    let of = |process: &crate::peer::Process| {
        let addr = process.alloc(64).unwrap();
        process.export(&process.find(addr).unwrap(), HandlePassing::Bytes).unwrap()
    };
    let (theirs, number) = (of(&owner), of(&other).handle.bytes()[8..16].to_vec());
    let wrong = theirs.with(|bytes| bytes[8..16].copy_from_slice(&number));
    assert!(importer.open(&wrong).unwrap_err().starts_with("Gone"));
    // As if another process had had this PID, and memory at the same addresses, when the handle was made.
    let late = theirs.with(|bytes| bytes[24] ^= 1);
    assert!(importer.open(&late).unwrap_err().starts_with("Gone"));
    importer.open(&theirs).unwrap();
}
