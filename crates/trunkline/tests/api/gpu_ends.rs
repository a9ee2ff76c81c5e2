//! The end of windows on a GPU: submitted entries are executed, and no object remains on the device, in the executor or
//! at other ranks, also if the window's creation failed. The tests run over the stand-in for NVIDIA's driver and
//! compare its counts; tests without counts run on a GPU, too.

use std::time::{Duration, Instant};

use trunkline::World;
use trunkline::device::gpu::KernelArg;
use trunkline::device::{DeviceError, Devices, Residence, WindowConfig};
use trunkline_mem::{MemoryKind, MemoryRange};

use crate::gpu_windows::{Given, Machine, devices, run, run_over, whole};
use crate::stand_in::{LiveCounts, StandIn};

/// Puts that a kernel leaves in flight, more than an executor has in flight at a time, and the bytes of each.
const PUTS: u64 = 200;
const PUT_BYTES: u64 = 16 << 10;

fn large() -> WindowConfig {
    WindowConfig { bytes: 2 * PUTS * PUT_BYTES, signals: 1, depth: 1024, ..WindowConfig::default() }
}

/// Returns the GPU memory of a window, and so keeps it beyond the window's end.
fn held(given: &Given<'_>) -> MemoryRange {
    let is_window = |memory: &MemoryRange| {
        memory.len() as u64 >= 2 * PUTS * PUT_BYTES && memory.kind() != MemoryKind::Host
    };
    let held = given.view.as_ref().unwrap().held_args();
    let mut memories = held.into_iter().filter_map(|arg| match arg {
        KernelArg::Memory(memory) if is_window(&memory) => Some(memory),
        _ => None,
    });
    memories.next().unwrap()
}

/// Kernels submit puts with signals and end without a flush. The window is freed at once at all ranks, and all bytes
/// have arrived at their targets then.
pub(crate) fn leave(world: &World, machine: &Machine) {
    let other = 1 - world.rank();
    for round in 0..3_u64 {
        let given = Given::new(machine, world, &devices(machine, world, Some(Residence::Device)), large());
        let half = (PUTS * PUT_BYTES) as usize;
        let words = |rank: usize| (0..half as u64 / 8).map(move |at| at * 7 + rank as u64 + round);
        let mine: Vec<u64> = words(world.rank()).collect();
        given.window.write(0, bytemuck::cast_slice(&mine)).unwrap();
        let memory = held(&given);
        assert_eq!(given.launch("window_leave", 1, &mut [], [other as u64, PUTS, PUT_BYTES]), 0);
        given.free(world);
        let mut found = vec![0_u64; half / 8];
        machine.device.copy_from_device(&memory, half as u64, bytemuck::cast_slice_mut(&mut found)).unwrap();
        let wrong = found.iter().zip(words(other)).position(|(found, put)| *found != put);
        assert_eq!(wrong, None, "index of the first wrong word, round {round}");
    }
}

#[test]
fn freed_window_keeps_all_puts_on_stand_in() {
    run("gpu_ends::freed_window_keeps_all_puts_on_stand_in", 2, &whole, leave);
}

#[test]
fn freed_window_keeps_all_puts_on_a_gpu() {
    run("gpu_ends::freed_window_keeps_all_puts_on_a_gpu", 2, &whole, leave);
}

fn small() -> WindowConfig {
    WindowConfig { bytes: 4096, signals: 1, counters: 1, depth: 4, ..WindowConfig::default() }
}

/// Counts the live objects of a rank.
fn counts(stand_in: &StandIn, devices: &Devices) -> (LiveCounts, usize) {
    (stand_in.live(), devices.queue_count())
}

/// Creates, uses and frees windows: no stream, event, byte or queue of them remains.
pub(crate) fn come_and_go(world: &World, machine: &Machine) {
    let (stand_in, other) = (StandIn::open(), 1 - world.rank() as u64);
    for place in [Residence::Device, Residence::Pinned] {
        let devices = devices(machine, world, Some(place));
        let come = || {
            let given = Given::new(machine, world, &devices, small());
            assert_eq!(given.launch("window_leave", 1, &mut [], [other, 4, 256]), 0);
            assert_eq!(given.launch("window_wait", 1, &mut [], [other, 4, 0]), 0);
            given.free(world);
        };
        // The first window's streams are kept for later kernels, so counts are compared from here on.
        come();
        let before = counts(&stand_in, &devices);
        for round in 0..5 {
            come();
            assert_eq!(counts(&stand_in, &devices), before, "{place:?}, round {round}");
        }
    }
}

#[test]
fn windows_leave_no_objects_on_stand_in() {
    run("gpu_ends::windows_leave_no_objects_on_stand_in", 2, &whole, come_and_go);
}

/// Lets each call of rank 1's driver fail once while a window is created. The creation fails at all ranks with rank 1's
/// cause, or succeeds at all. The counts of objects are then as before.
pub(crate) fn fail_in_turn(world: &World, machine: &Machine) {
    let stand_in = StandIn::open();
    let fails_here = world.rank() == 1;
    let all = world.alloc::<u64>(world.size()).unwrap();
    for place in [Residence::Device, Residence::Pinned] {
        let devices = devices(machine, world, Some(place));
        let before = counts(&stand_in, &devices);
        let (mut failed, mut nth) = (0, 0);
        let is_over = |nth: u64| {
            world.all_gather(&[nth], &all).unwrap();
            all.to_vec().iter().all(|left| *left != 0)
        };
        loop {
            nth += 1;
            stand_in.tell("stub_fails", if fails_here { nth } else { 0 });
            let made = devices.window(world, small());
            let left = if fails_here { stand_in.ask("stub_fails_left") } else { 1 };
            stand_in.tell("stub_fails", 0);
            match made {
                Ok(window) => window.free(world).unwrap(),
                Err(error) if fails_here => {
                    failed += 1;
                    assert!(!matches!(error, DeviceError::Elsewhere { .. }), "call {nth}: {error}");
                }
                Err(DeviceError::Elsewhere { rank: 1, cause }) if cause.contains("STUB_ERROR") => failed += 1,
                Err(error) => {
                    panic!("call {nth} of rank 1's driver failed; this rank returned another error: {error}")
                }
            }
            assert_eq!(counts(&stand_in, &devices), before, "{place:?}, call {nth}");
            if is_over(left) {
                break;
            }
        }
        assert!(
            failed > 20 && nth > failed,
            "{place:?}: {failed} of {nth} failed calls made the window fail"
        );
    }
    world.free(all).unwrap();
}

#[test]
fn window_fails_at_all_ranks_when_one_fails() {
    run("gpu_ends::window_fails_at_all_ranks_when_one_fails", 2, &whole, fail_in_turn);
}

/// The copies of rank 1's device do not complete while its window is freed, so both ranks give the window up. Its
/// queues end later, in the executor's thread, which frees no memory: the stand-in driver ends a process that does.
pub(crate) fn give_up(world: &World, machine: &Machine) {
    let (stand_in, other) = (StandIn::open(), 1 - world.rank() as u64);
    let devices = devices(machine, world, Some(Residence::Device));
    // So deep that the kernel does not wait for room in its queue.
    let given = Given::new(machine, world, &devices, WindowConfig { depth: 64, ..small() });
    stand_in.tell("stub_stuck", u64::from(world.rank() == 1));
    assert_eq!(given.launch("window_leave", 1, &mut [], [other, 4, 256]), 0);
    let began = Instant::now();
    let freed = given.window.free(world);
    assert!(matches!(freed, Err(DeviceError::Unsettled { .. })), "{freed:?}");
    let took = began.elapsed();
    assert!(took >= Duration::from_secs(9), "the free waits for the operations: {took:?}");
    stand_in.tell("stub_stuck", 0);
    while devices.queue_count() > 0 {
        assert!(began.elapsed() < took + Duration::from_secs(20), "the queues have not ended");
        std::thread::sleep(Duration::from_millis(1));
    }
    world.barrier().unwrap();
}

#[test]
fn free_gives_up_a_window_that_cannot_settle() {
    let name = "gpu_ends::free_gives_up_a_window_that_cannot_settle";
    run_over(&["soft:shm"], name, 2, &whole, give_up);
}
