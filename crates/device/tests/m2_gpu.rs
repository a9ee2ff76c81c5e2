//! M2 on a GPU: the cases of `m2/main.rs` with NVIDIA's driver, and kernels that NVRTC compiles for the device. SKIPPED without a GPU.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on stops")]

#[path = "m2/cases.rs"]
mod cases;
#[path = "m2/machine.rs"]
mod machine;
#[path = "m2/network.rs"]
mod network;
#[path = "m2/posted.rs"]
mod posted;
#[path = "m2/skip.rs"]
mod skip;

use std::sync::{Mutex, OnceLock, PoisonError};

use trunkline_device_queue::kernels;
use trunkline_mem::gpu::{GpuVendor, VendorDriver};

use machine::{Machine, Place};

fn open() -> Result<Machine, String> {
    // Kernels of several ranks wait for each other, and for copies, so none of their streams may share a queue of the device.
    // SAFETY: other threads of this process wait for this one, or are the test harness's, which reads no environment now.
    unsafe { std::env::set_var("CUDA_DEVICE_MAX_CONNECTIONS", "32") };
    let gpu = VendorDriver::open(GpuVendor::Nvidia).map_err(|error| error.to_string())?;
    let device = gpu.open_device(0).map_err(|error| error.to_string())?;
    let program = kernels::load_kernels(&device).map_err(|error| error.to_string())?;
    // One limit for all cases, also for ten million operations. The device's ticks are nanoseconds.
    Ok(Machine {
        device,
        program,
        ticks: 60_000_000_000,
        groups: &[1, 32, 128],
        is_full: true,
        is_real: true,
    })
}

/// Runs a case, alone on the device.
fn run(test: &str, case: fn(&Machine)) {
    static MACHINE: OnceLock<Result<Machine, String>> = OnceLock::new();
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    match MACHINE.get_or_init(open) {
        Ok(machine) => case(machine),
        Err(reason) => skip::skip(&format!("device queues of a GPU: {test}"), "cuda", reason),
    }
}

#[test]
fn every_operation_does_what_it_says() {
    run("operations", cases::operations);
}

#[test]
fn many_producers_lose_nothing() {
    run("floods of 10,000,000 operations", |machine| cases::floods(machine, Place::Pinned));
}

#[test]
fn many_producers_lose_nothing_in_memory_of_the_device() {
    run("floods of 1,000,000 operations in its memory", |machine| {
        cases::floods(machine, Place::Device);
    });
}

#[test]
fn bytes_come_before_their_signal() {
    run("exchanges", cases::exchanges);
}

#[test]
fn two_ranks_of_a_device_reach_each_other() {
    run("two ranks", cases::two_ranks);
}

#[test]
fn a_failure_reaches_every_waiter() {
    run("failures", cases::failures);
}

#[test]
fn an_abort_of_the_host_ends_a_kernel() {
    run("aborts", cases::aborts);
}

/// That a trap ends a kernel is not tested here: it would end all of the process's work on the GPU.
#[test]
fn a_wait_that_takes_too_long_ends_with_a_reason() {
    run("expired waits", cases::expires);
}

#[test]
fn a_kernel_that_stops_all_is_heard() {
    run("stops", cases::stops);
}

#[test]
fn the_examples_run_as_kernels() {
    run("examples", cases::examples);
}

#[test]
fn bytes_of_a_device_go_over_a_network() {
    run("network", network::network);
}

#[test]
fn owners_of_devices_are_asked_over_a_network() {
    run("post boxes", posted::posted);
}

#[test]
fn requests_to_a_dead_owner_fail() {
    run("post boxes and deaths", posted::bereaved);
}

#[test]
fn a_failure_reaches_signals_of_another_device() {
    run("post boxes and failures", posted::poisoned);
}

#[test]
fn what_is_asked_beyond_a_part_is_refused() {
    run("post boxes and strangers", posted::hostile);
}

#[test]
fn a_put_is_timed_by_the_device() {
    run("pings", cases::pings);
}
