//! M2 on a GPU: the cases of `m2/main.rs` with NVIDIA's driver, and kernels that NVRTC compiles for the device. SKIPPED without a GPU.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed setup step ends the test")]

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
    // Kernels of several ranks wait for each other, and for copies, so their streams must not share a queue of the
    // device.
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
fn every_operation_has_its_effect() {
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
fn bytes_arrive_before_their_signal() {
    run("exchanges", cases::exchanges);
}

#[test]
fn two_ranks_of_a_device_exchange_bytes() {
    run("two ranks", cases::two_ranks);
}

#[test]
fn failure_reaches_every_waiter() {
    run("failures", cases::failures);
}

#[test]
fn host_abort_ends_a_kernel() {
    run("aborts", cases::aborts);
}

/// The end of a kernel by a trap is not tested here, because it would end all of the process's work on the GPU.
#[test]
fn expired_wait_ends_with_a_reason() {
    run("expired waits", cases::expires);
}

#[test]
fn abort_by_a_kernel_reaches_the_host() {
    run("stops", cases::stops);
}

#[test]
fn the_examples_run_as_kernels() {
    run("examples", cases::examples);
}

#[test]
fn device_bytes_are_sent_over_a_network() {
    run("network", network::network);
}

#[test]
fn device_owners_serve_requests_over_a_network() {
    run("post boxes", posted::posted);
}

#[test]
fn requests_to_a_dead_owner_fail() {
    run("post boxes and deaths", posted::bereaved);
}

#[test]
fn failure_poisons_signals_of_another_device() {
    run("post boxes and failures", posted::poisoned);
}

#[test]
fn requests_beyond_a_part_are_refused() {
    run("post boxes and strangers", posted::hostile);
}

#[test]
fn device_times_a_put() {
    run("pings", cases::pings);
}
