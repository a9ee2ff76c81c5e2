//! Windows in memory of a GPU that NICs reach: over the library that stands for NVIDIA's driver, whose dma-bufs software NICs map. Windows act as elsewhere, and nothing of their
//! data lies beside in memory of the host.

use trunkline::World;
use trunkline::device::{Residence, WindowConfig};

use crate::gpu_ends::{come_and_go, fail_in_turn, leave};
use crate::gpu_windows::{
    GOOD, Given, Machine, alone, deaths, devices, dies, gets, rings, rods, run, tokens, whole,
};
use crate::stand_in::StandIn;

/// Whether the NICs of this fabric map dma-bufs.
fn is_reached() -> bool {
    let fabric = std::env::var("TRUNKLINE_FABRIC").unwrap_or_default();
    fabric.is_empty() || fabric.starts_with("soft") || fabric == "auto"
}

fn config(bytes: u64) -> WindowConfig {
    WindowConfig { bytes, signals: 1, counters: 1, depth: 4, ..WindowConfig::default() }
}

/// Pinned bytes and dma-bufs that a window of that size takes.
fn count_bytes(world: &World, machine: &Machine, stand_in: &StandIn, bytes: u64) -> (u64, u64) {
    let devices = devices(machine, world, Some(Residence::Device));
    let count = || (stand_in.ask("stub_pinned_bytes"), stand_in.ask("stub_exported"));
    let before = count();
    let window = devices.window(world, config(bytes)).unwrap();
    let after = count();
    window.free(world).unwrap();
    assert_eq!(count().0, before.0, "pinned bytes behind a window of {bytes}");
    (after.0 - before.0, after.1 - before.1)
}

/// Memory of the host is the same beside a small window and a large one, but where nothing reaches the GPU.
fn no_shadow(world: &World, machine: &Machine) {
    let stand_in = StandIn::open();
    let count = |bytes| count_bytes(world, machine, &stand_in, bytes);
    let (small, large) = (count(4096), count(16 << 20));
    if is_reached() {
        assert_eq!((small.1, large.1), (1, 1), "each is exported once");
        assert_eq!(small.0, large.0, "pinned bytes");
    }
    // The driver of rank 1 exports nothing any more: that rank falls back, and the others do not.
    stand_in.tell("stub_exports", u64::from(world.rank() != 1));
    let (small, large) = (count(4096), count(16 << 20));
    if is_reached() && world.rank() != 1 {
        assert_eq!((small, large.1), ((large.0, 1), 1), "another rank's driver does not export");
    } else {
        assert!(large.0 > small.0 + (16 << 20), "memory beside the window: {small:?}, {large:?}");
    }
}

#[test]
fn no_shadow_lies_beside_a_reached_gpu() {
    run("gpu_reached::no_shadow_lies_beside_a_reached_gpu", 3, &whole, no_shadow);
}

#[test]
fn a_window_on_a_reached_gpu_keeps_its_contract() {
    run("gpu_reached::a_window_on_a_reached_gpu_keeps_its_contract", 2, &whole, alone);
}

#[test]
fn rings_of_reached_gpus_add_up() {
    run("gpu_reached::rings_of_reached_gpus_add_up", 3, &whole, rings);
}

#[test]
fn tokens_find_experts_on_reached_gpus() {
    run("gpu_reached::tokens_find_experts_on_reached_gpus", 3, &whole, tokens);
}

#[test]
fn a_rod_of_reached_gpus_is_one_rod() {
    run("gpu_reached::a_rod_of_reached_gpus_is_one_rod", 3, &whole, rods);
}

#[test]
fn a_reached_gpu_gets_the_bytes_of_another() {
    run("gpu_reached::a_reached_gpu_gets_the_bytes_of_another", 2, &whole, gets);
}

#[test]
fn a_death_ends_kernels_of_reached_gpus() {
    run("gpu_reached::a_death_ends_kernels_of_reached_gpus", 3, &dies, deaths);
}

#[test]
fn a_freed_window_of_a_reached_gpu_lost_nothing() {
    run("gpu_reached::a_freed_window_of_a_reached_gpu_lost_nothing", 2, &whole, leave);
}

#[test]
fn windows_of_reached_gpus_leave_nothing_behind() {
    run("gpu_reached::windows_of_reached_gpus_leave_nothing_behind", 2, &whole, come_and_go);
}

#[test]
fn a_reached_window_that_one_rank_cannot_make_is_made_by_none() {
    run("gpu_reached::a_reached_window_that_one_rank_cannot_make_is_made_by_none", 2, &whole, fail_in_turn);
}

/// Words of data that all ranks change, this rank's too, and bytes that a kernel puts to its own part by value and gets from there.
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
        "no addition is lost, and the last put stays"
    );
    world.barrier().unwrap();
    given.free(world);
}

#[test]
fn words_of_a_reached_gpu_are_changed_by_all() {
    run("gpu_reached::words_of_a_reached_gpu_are_changed_by_all", 2, &whole, change);
}

/// Signals, and the bytes that they announce, where NICs hold back writes to the GPU until a flush.
fn flushes(world: &World, machine: &Machine) {
    for exchange in [tokens, leave] {
        exchange(world, machine);
    }
}

#[test]
fn signals_come_behind_flushed_bytes() {
    run("gpu_reached::signals_come_behind_flushed_bytes", 2, &whole, flushes);
}

/// Ranks whose memory is reached, and ranks whose memory is not: kernels of all exchange, and none learns of it.
fn mixed(world: &World, machine: &Machine) {
    StandIn::open().tell("stub_exports", u64::from(world.rank() != 1));
    for exchange in [rings, tokens, rods] {
        exchange(world, machine);
    }
}

#[test]
fn reached_gpus_and_others_work_together() {
    run("gpu_reached::reached_gpus_and_others_work_together", 3, &whole, mixed);
}
