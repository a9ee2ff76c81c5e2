//! The rules of the stand-in driver: each one holds, and can be switched off. And the code that uses a driver respects
//! them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use trunkline_device::{DeviceQueues, KernelJob, KernelLanes, LanePlan, LanesError};
use trunkline_mem::MemoryRange;
use trunkline_mem::gpu::{DeviceCopyQueue, MemoryLocation, PinnedMemory};
use trunkline_proto::wire::device_queue::{AbortWord, EntryStatus};

use crate::machine::{Alone, Machine, PLAN, Rank, until};
use crate::{Stub, stubbed};

/// A call that waits while a kernel runs.
type Call = Box<dyn FnOnce() + Send>;

/// Two streams, each with a copy to a word of the host.
struct TwoCopies {
    movers: [DeviceCopyQueue; 2],
    from: MemoryRange,
    to: [PinnedMemory; 2],
}

impl TwoCopies {
    fn new(machine: &Machine) -> Self {
        let device = &machine.device;
        let from = device.allocate(8).unwrap();
        device.copy_to_device(&from, 0, &[1; 8]).unwrap();
        let movers = [device.copy_queue().unwrap(), device.copy_queue().unwrap()];
        Self { movers, from, to: [device.allocate_pinned(8).unwrap(), device.allocate_pinned(8).unwrap()] }
    }

    fn begin(&self) {
        for (mover, to) in self.movers.iter().zip(&self.to) {
            to.memory().store(0, 0).unwrap();
            let from = MemoryLocation { memory: &self.from, offset: 0 };
            assert!(mover.begin_copy(0, from, MemoryLocation { memory: to.memory(), offset: 0 }, 8));
        }
    }

    fn has_landed(&self) -> [bool; 2] {
        self.to.each_ref().map(|to| to.memory().load(0).unwrap() != 0)
    }

    fn end(&self) {
        for mover in &self.movers {
            let mut ended = Vec::new();
            until("a copy ends", || {
                mover.take_ended(&mut ended);
                !ended.is_empty()
            });
            assert_eq!(ended, [(0, Ok(()))]);
        }
        assert_eq!(self.has_landed(), [true; 2], "a copy that has ended must have landed");
    }
}

#[test]
fn copies_of_two_streams_land_in_any_order() {
    let Some((stub, _turn)) = stubbed("orders of copies", 3) else { return };
    let copies = TwoCopies::new(&stub.machine);
    let (mut first, mut returned_early) = ([0; 2], 0);
    for seed in 1..=60 {
        stub.tell("stub_order", seed);
        copies.begin();
        returned_early += u32::from(copies.has_landed() == [false; 2]);
        until("one of two copies lands", || {
            // Any other driver call lets copies land.
            stub.machine.device.architecture().unwrap();
            copies.has_landed() != [false; 2]
        });
        match copies.has_landed() {
            [true, false] => first[0] += 1,
            [false, true] => first[1] += 1,
            _ => {}
        }
        copies.end();
    }
    assert!(first.iter().all(|first| *first > 0), "which landed first, how often: {first:?}");
    assert!(returned_early > 0, "copies must return before they land");
    stub.tell("stub_order", 0);
    copies.begin();
    (0..100).for_each(|_| _ = stub.machine.device.architecture().unwrap());
    assert_eq!(copies.has_landed(), [false; 2], "without the rule a copy must land when its end is polled");
    copies.end();
}

/// Runs a kernel that waits for an abort, and a call meanwhile. Returns whether the call waited for the kernel's end.
fn waits_for_a_kernel(stub: &Stub, call: impl FnOnce() + Send) -> bool {
    let machine = &stub.machine;
    let rank = Rank::new(machine, 0, PLAN);
    let job = KernelJob { number: u64::MAX, ticks: 0, ..rank.job(machine) };
    let queue = rank.queues.find_queue(rank.lanes.queue_numbers()[0][0]).unwrap();
    let running = rank.start(machine, "endure", (1, 1), job);
    let is_back = AtomicBool::new(false);
    let waited = std::thread::scope(|scope| {
        scope.spawn(|| {
            call();
            is_back.store(true, Ordering::SeqCst);
        });
        until("the call waits or has returned", || {
            is_back.load(Ordering::SeqCst) || stub.ask("stub_waiting") > 0
        });
        let waited = (stub.ask("stub_has_waits") > 0) && !is_back.load(Ordering::SeqCst);
        if !waited {
            until("the call has returned", || is_back.load(Ordering::SeqCst));
        }
        assert!(!running.is_over().unwrap(), "the kernel must still wait for an abort");
        queue.abort(AbortWord { status: EntryStatus::Aborted, reason: 1 });
        waited
    });
    let _ = rank.finish(machine, &running, (1, 1));
    waited
}

#[test]
fn calls_that_may_wait_for_a_kernel_wait() {
    let Some((stub, _turn)) = stubbed("calls that wait", 0) else { return };
    let device = &stub.machine.device;
    for waits in [true, false] {
        stub.tell("stub_waits", waits.into());
        let (freed, pinned) = (device.allocate(64).unwrap(), device.allocate_pinned(64).unwrap());
        let calls: [(&str, Call); 4] = [
            ("cuMemAlloc", Box::new(|| drop(device.allocate(64).unwrap()))),
            ("cuMemHostAlloc", Box::new(|| drop(device.allocate_pinned(64).unwrap()))),
            ("cuMemFree", Box::new(move || drop(freed))),
            ("cuMemFreeHost", Box::new(move || drop(pinned))),
        ];
        for (name, call) in calls {
            assert_eq!(waits_for_a_kernel(stub, call), waits, "{name}");
        }
    }
}

#[test]
fn nth_call_fails_once() {
    let Some((stub, _turn)) = stubbed("calls that fail", 0) else { return };
    let device = &stub.machine.device;
    let live = || {
        ["stub_device_bytes", "stub_pinned_bytes", "stub_streams", "stub_events"].map(|what| stub.ask(what))
    };
    let before = live();
    let (mut failed, mut nth) = (0, 0);
    loop {
        nth += 1;
        stub.tell("stub_fails", nth);
        let made = (device.allocate(64), device.allocate_pinned(64), device.copy_queue());
        let left = stub.ask("stub_fails_left");
        failed +=
            [made.0.is_err(), made.1.is_err(), made.2.is_err()].into_iter().filter(|failed| *failed).count();
        drop(made);
        stub.tell("stub_fails", 0);
        assert_eq!(live(), before, "call {nth}");
        if left > 0 {
            break;
        }
    }
    assert!(failed > 60 && (failed as u64) < nth, "{failed} failures in {nth} rounds");
}

/// A lane has two queues. If only one number is free, neither queue is kept.
#[test]
fn failed_lane_leaves_no_queue() {
    let Some((stub, _turn)) = stubbed("a lane too many", 0) else { return };
    let device = &stub.machine.device;
    let queues = DeviceQueues::for_device(Alone(0), 3, device.clone()).unwrap();
    let lanes =
        |count| KernelLanes::new(device, &queues, LanePlan { lanes: count, depth: 4, first: 0, blocks: 1 });
    let before = stub.ask("stub_pinned_bytes");
    for round in 0..3 {
        assert!(matches!(lanes(2), Err(LanesError::Queue(_))), "round {round}");
        assert_eq!(queues.with_executor(|executor| executor.queue_count()), 0, "round {round}");
        assert_eq!(stub.ask("stub_pinned_bytes"), before, "round {round}");
    }
    assert!(lanes(1).is_ok());
}

/// A copy whose event could not be recorded is still on its stream. Its memory is kept until a later event reports the
/// end.
#[test]
fn memory_of_lost_copies_is_held_to_the_end() {
    let Some((stub, _turn)) = stubbed("a lost copy", 40) else { return };
    let device = &stub.machine.device;
    let (mover, from) = (device.copy_queue().unwrap(), device.allocate(64).unwrap());
    let before = stub.ask("stub_pinned_bytes");
    let to = device.allocate_pinned(64).unwrap();
    stub.tell("stub_order", 0);
    let source = MemoryLocation { memory: &from, offset: 0 };
    assert!(mover.begin_copy(7, source, MemoryLocation { memory: to.memory(), offset: 0 }, 64));
    drop(to);
    stub.tell("stub_fail_event", 1);
    let mut ended = Vec::new();
    mover.take_ended(&mut ended);
    assert_eq!(ended, [(7, Err(2))], "the failure must be reported at once");
    assert!(stub.ask("stub_pinned_bytes") > before, "the memory must be kept while the copy writes it");
    until("the memory is freed", || {
        mover.take_ended(&mut ended);
        stub.ask("stub_pinned_bytes") == before
    });
    assert_eq!(ended.len(), 1);
}

/// The creation of a stream may wait for running kernels, so a kernel reuses the stream of one that has ended.
#[test]
fn consecutive_kernels_share_a_stream() {
    use trunkline_mem::gpu::KernelArg;
    let Some((stub, _turn)) = stubbed("kernels one after another", 0) else { return };
    let Machine { device, program, .. } = &stub.machine;
    let pinned = device.allocate_pinned(64).unwrap();
    let start =
        || program.launch_kernel("stray_store", 1, 1, vec![KernelArg::Pinned(pinned.clone())]).unwrap();
    drop(start());
    let before = stub.ask("stub_made_streams");
    for _ in 0..5 {
        assert_eq!(start().wait(Duration::from_secs(10)), Ok(true));
    }
    assert_eq!(stub.ask("stub_made_streams"), before, "no stream may be created while one is free");
    // Concurrent kernels have one stream each.
    let both = [start(), start()];
    assert!(both.iter().all(|one| one.wait(Duration::from_secs(10)) == Ok(true)));
    assert!(stub.ask("stub_made_streams") <= before + 1);
}

/// A child of a fork gets an error with a remedy, because a driver might block forever there.
#[test]
fn device_is_refused_in_a_forked_child() {
    let Some((stub, _turn)) = stubbed("a child of a fork", 0) else { return };
    let device = &stub.machine.device;
    let child = stub.ask("stub_fork");
    if child == 0 {
        let refused =
            [device.allocate(64).err(), device.allocate_pinned(64).err(), device.copy_queue().err()];
        let all =
            refused.iter().flatten().filter(|error| error.code == 3 && error.remedy.contains("fork")).count();
        stub.tell("stub_exit", all as u64);
    }
    assert_eq!(stub.ask_of("stub_child_code", child), 3, "each call must be refused, and the child must end");
}
