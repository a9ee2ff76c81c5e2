//! Windows in GPU memory that NICs reach, over the stand-in for NVIDIA's driver, whose dma-bufs software NICs map.
//! Windows behave as elsewhere, and have no copy of their data in host memory.

use trunkline::World;
use trunkline::device::{Residence, WindowConfig};

use crate::gpu_ends::{come_and_go, fail_in_turn, leave};
use crate::gpu_windows::{
    GOOD, Given, Machine, alone, deaths, devices, dies, gets, rings, rods, run, tokens, whole,
};
use crate::stand_in::StandIn;

/// Returns whether the NICs of this fabric map dma-bufs.
fn is_reached() -> bool {
    let fabric = std::env::var("TRUNKLINE_FABRIC").unwrap_or_default();
    fabric.is_empty() || fabric.starts_with("soft") || fabric == "auto"
}

fn config(bytes: u64) -> WindowConfig {
    WindowConfig { bytes, signals: 1, counters: 1, depth: 4, ..WindowConfig::default() }
}

/// Counts the pinned bytes and the dma-bufs that a window of that size uses.
fn count_bytes(world: &World, machine: &Machine, stand_in: &StandIn, bytes: u64) -> (u64, u64) {
    let devices = devices(machine, world, Some(Residence::Device));
    let count = || (stand_in.ask("stub_pinned_bytes"), stand_in.ask("stub_exported"));
    let before = count();
    let window = devices.window(world, config(bytes)).unwrap();
    let after = count();
    window.free(world).unwrap();
    assert_eq!(count().0, before.0, "pinned bytes after the end of a window of {bytes} bytes");
    (after.0 - before.0, after.1 - before.1)
}

/// A small and a large window use the same amount of host memory, unless no NIC reaches the GPU.
fn no_shadow(world: &World, machine: &Machine) {
    let stand_in = StandIn::open();
    let count = |bytes| count_bytes(world, machine, &stand_in, bytes);
    let (small, large) = (count(4096), count(16 << 20));
    if is_reached() {
        assert_eq!((small.1, large.1), (1, 1), "each window is exported once");
        assert_eq!(small.0, large.0, "pinned bytes");
    }
    // From here on the driver of rank 1 exports nothing: only that rank falls back to host memory.
    stand_in.tell("stub_exports", u64::from(world.rank() != 1));
    let (small, large) = (count(4096), count(16 << 20));
    if is_reached() && world.rank() != 1 {
        assert_eq!((small, large.1), ((large.0, 1), 1), "another rank's driver does not export");
    } else {
        assert!(
            large.0 > small.0 + (16 << 20),
            "host memory of the same size as the window: {small:?}, {large:?}"
        );
    }
}

#[test]
fn reached_gpu_needs_no_host_memory_for_data() {
    run("gpu_reached::reached_gpu_needs_no_host_memory_for_data", 3, &whole, no_shadow);
}

#[test]
fn window_operations_work_on_a_reached_gpu() {
    run("gpu_reached::window_operations_work_on_a_reached_gpu", 2, &whole, alone);
}

#[test]
fn ring_sums_are_exact_on_reached_gpus() {
    run("gpu_reached::ring_sums_are_exact_on_reached_gpus", 3, &whole, rings);
}

#[test]
fn dispatch_returns_all_tokens_on_reached_gpus() {
    run("gpu_reached::dispatch_returns_all_tokens_on_reached_gpus", 3, &whole, tokens);
}

#[test]
fn halo_exchange_is_exact_on_reached_gpus() {
    run("gpu_reached::halo_exchange_is_exact_on_reached_gpus", 3, &whole, rods);
}

#[test]
fn get_returns_current_bytes_of_a_reached_gpu() {
    run("gpu_reached::get_returns_current_bytes_of_a_reached_gpu", 2, &whole, gets);
}

#[test]
fn rank_death_ends_kernels_on_reached_gpus() {
    run("gpu_reached::rank_death_ends_kernels_on_reached_gpus", 3, &dies, deaths);
}

#[test]
fn freed_window_keeps_all_puts_on_reached_gpu() {
    run("gpu_reached::freed_window_keeps_all_puts_on_reached_gpu", 2, &whole, leave);
}

#[test]
fn windows_leave_no_objects_on_reached_gpus() {
    run("gpu_reached::windows_leave_no_objects_on_reached_gpus", 2, &whole, come_and_go);
}

#[test]
fn reached_window_fails_at_all_ranks_when_one_fails() {
    run("gpu_reached::reached_window_fails_at_all_ranks_when_one_fails", 2, &whole, fail_in_turn);
}

/// All ranks, the owner included, change words of each part by atomics. A kernel also puts bytes by value to its own
/// part, and gets them from there.
fn change(world: &World, machine: &Machine) {
    const TIMES: u64 = 20;
    let devices = devices(machine, world, Some(Residence::Device));
    let given = Given::new(machine, world, &devices, config(4096));
    for to in 0..world.size() as u64 {
        assert_eq!(given.launch("window_change", 1, &mut [], [to, TIMES, 0]), GOOD, "words of rank {to}");
    }
    world.barrier().unwrap();
    let mut words = [0_u64; 9];
    given.window.read(0, bytemuck::cast_slice_mut(&mut words)).unwrap();
    assert_eq!(
        (words[1], words[8]),
        (TIMES * world.size() as u64, TIMES),
        "the sum of all additions, and the last put"
    );
    world.barrier().unwrap();
    given.free(world);
}

#[test]
fn atomics_of_all_ranks_change_reached_gpu_words() {
    run("gpu_reached::atomics_of_all_ranks_change_reached_gpu_words", 2, &whole, change);
}

/// Exchanges signals, and the bytes that precede them, while NICs delay writes to the GPU until a flush.
fn flushes(world: &World, machine: &Machine) {
    for exchange in [tokens, leave] {
        exchange(world, machine);
    }
}

#[test]
fn signals_follow_flushed_bytes_on_reached_gpus() {
    run("gpu_reached::signals_follow_flushed_bytes_on_reached_gpus", 2, &whole, flushes);
}

/// Exchanges data between ranks whose GPU memory NICs reach and ranks whose memory they do not reach. Kernels are the
/// same.
fn mixed(world: &World, machine: &Machine) {
    StandIn::open().tell("stub_exports", u64::from(world.rank() != 1));
    for exchange in [rings, tokens, rods] {
        exchange(world, machine);
    }
}

#[test]
fn reached_and_unreached_gpus_exchange_data() {
    run("gpu_reached::reached_and_unreached_gpus_exchange_data", 3, &whole, mixed);
}
