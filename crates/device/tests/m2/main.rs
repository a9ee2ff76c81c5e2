//! M2: kernels of a device post entries, and the executor of the host executes them. The stand-in driver is a library
//! (`stub.c`). Its device is a process that runs the threads of the kernels, with the same addresses as this process.
//! The device accesses only its own memory and memory mapped for it, changes no host word by an atomic, and copies
//! late. The same cases run on a GPU in `m2_gpu.rs`.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed setup step ends the test")]

mod cases;
mod machine;
mod network;
mod posted;
mod rules;
mod skip;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use libloading::os::unix::Library;
use trunkline_mem::gpu::{GpuVendor, VendorDriver};

use machine::{Machine, Place};

/// The stand-in driver.
struct Stub {
    library: Library,
    machine: Machine,
    /// Settings of the library apply to all tests, so one test runs at a time.
    turn: Mutex<()>,
    _folder: tempfile::TempDir,
}

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/m2").join(name)
}

fn compile(compiler: &str, source_name: &str, to: &Path, more: &[&str]) -> Result<(), String> {
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../include");
    let mut command = Command::new(compiler);
    command.args(["-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-pthread"]).args(more);
    command.arg("-I").arg(include).arg("-o").arg(to).arg(source(source_name));
    let output = command.output().map_err(|error| format!("cannot run {compiler}: {error}"))?;
    assert!(output.status.success(), "{source_name}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

fn build() -> Result<Stub, String> {
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let (driver, kernels) = (folder.path().join("libcuda.so.1"), folder.path().join("kernels.so"));
    compile("cc", "stub.c", &driver, &["-Wl,-soname,libcuda.so.1"])?;
    compile("c++", "kernels.cpp", &kernels, &["-std=c++17", "-Wno-unused-function"])?;
    // SAFETY: our own library; its constructors do nothing. A later open by its name finds this one.
    let library = unsafe { Library::new(&driver) }.map_err(|error| error.to_string())?;
    // SAFETY: the function has this type in stub.c.
    let tell = unsafe { library.get::<unsafe extern "C" fn(*const std::ffi::c_char)>(b"stub_library") };
    let path = std::ffi::CString::new(kernels.to_str().unwrap()).unwrap();
    // SAFETY: the function copies the string before it returns.
    unsafe { tell.unwrap()(path.as_ptr()) };
    let device = VendorDriver::open(GpuVendor::Nvidia).unwrap().open_device(0).unwrap();
    assert_eq!(device.architecture().unwrap(), 90);
    // SAFETY: the kernels access only the memory that their jobs name.
    let program = unsafe { device.load_module(b"stub") }.unwrap();
    let is_full = std::env::var_os("TRUNKLINE_FULL").is_some();
    let machine =
        Machine { device, program, ticks: 200_000_000_000, groups: &[1, 3], is_full, is_real: false };
    Ok(Stub { library, machine, turn: Mutex::new(()), _folder: folder })
}

fn stub() -> &'static Result<Stub, String> {
    static STUB: OnceLock<Result<Stub, String>> = OnceLock::new();
    STUB.get_or_init(build)
}

impl Stub {
    /// Sets a number of the library.
    fn tell(&self, what: &str, number: u64) {
        // SAFETY: these functions of stub.c take a number.
        let tell = unsafe { self.library.get::<unsafe extern "C" fn(u64)>(what.as_bytes()) };
        // SAFETY: the function has this type, as above.
        unsafe { tell.unwrap()(number) };
    }

    /// Queries the library with a number.
    fn ask_of(&self, what: &str, number: u64) -> u64 {
        // SAFETY: these functions of stub.c take a number and return one.
        let ask = unsafe { self.library.get::<unsafe extern "C" fn(u64) -> u64>(what.as_bytes()) };
        // SAFETY: the function has this type, as above.
        unsafe { ask.unwrap()(number) }
    }

    fn ask(&self, what: &str) -> u64 {
        // SAFETY: these functions of stub.c return a number.
        let ask = unsafe { self.library.get::<unsafe extern "C" fn() -> u64>(what.as_bytes()) };
        // SAFETY: the function has this type, as above.
        unsafe { ask.unwrap()() }
    }
}

/// Locks the device for one test. Copies land after at most this many polls.
fn stubbed(test: &str, late: u64) -> Option<(&'static Stub, MutexGuard<'static, ()>)> {
    match stub() {
        Ok(stub) => {
            let turn = stub.turn.lock().unwrap_or_else(PoisonError::into_inner);
            stub.tell("stub_late", late);
            stub.tell("stub_fail_copy", 0);
            stub.tell("stub_fail_event", 0);
            stub.tell("stub_order", 1);
            stub.tell("stub_waits", 1);
            stub.tell("stub_fails", 0);
            Some((stub, turn))
        }
        Err(reason) => {
            skip::skip(&format!("{test}, over a stub of NVIDIA's driver"), "cc", reason);
            None
        }
    }
}

fn run(test: &str, late: u64, case: fn(&Machine)) {
    let Some((stub, _turn)) = stubbed(test, late) else { return };
    let before = [stub.ask("stub_launched"), stub.ask("stub_copied")];
    case(&stub.machine);
    let after = [stub.ask("stub_launched"), stub.ask("stub_copied")];
    assert!(after[0] > before[0] && after[1] > before[1], "{test}: no kernel or no copy ran");
    assert_eq!(stub.ask("stub_depth"), 0, "the thread must have no context left");
}

#[test]
fn every_operation_has_its_effect() {
    run("operations", 3, cases::operations);
}

#[test]
fn many_producers_lose_nothing() {
    run("floods", 2, |machine| {
        cases::floods(machine, Place::Pinned);
        cases::floods(machine, Place::Device);
    });
}

#[test]
fn bytes_arrive_before_their_signal() {
    run("exchanges", 40, cases::exchanges);
}

#[test]
fn two_ranks_of_a_device_exchange_bytes() {
    run("two ranks", 3, cases::two_ranks);
}

#[test]
fn failure_reaches_every_waiter() {
    run("failures", 3, cases::failures);
}

#[test]
fn host_abort_ends_a_kernel() {
    run("aborts", 3, cases::aborts);
}

/// A timeout ends the kernel only if the budget requests it; then the driver reports it.
#[test]
fn spent_budget_ends_the_kernel_on_request() {
    let Some((stub, _turn)) = stubbed("a kernel's last wait", 0) else { return };
    cases::expires(&stub.machine);
    let rank = machine::Rank::new(&stub.machine, 0, machine::PLAN);
    let job = trunkline_device::KernelJob { number: 1, ..rank.job(&stub.machine) };
    let running = rank.start(&stub.machine, "expires", (1, 1), job);
    assert!(running.wait(std::time::Duration::from_secs(10)).is_err());
}

#[test]
fn abort_by_a_kernel_reaches_the_host() {
    run("stops", 3, cases::stops);
}

#[test]
fn the_examples_run_as_kernels() {
    run("examples", 3, cases::examples);
}

#[test]
fn device_bytes_are_sent_over_a_network() {
    run("network", 5, network::network);
}

#[test]
fn device_owners_serve_requests_over_a_network() {
    run("post boxes", 5, posted::posted);
}

#[test]
fn requests_to_a_dead_owner_fail() {
    run("post boxes and deaths", 0, posted::bereaved);
}

#[test]
fn failure_poisons_signals_of_another_device() {
    run("post boxes and failures", 5, posted::poisoned);
}

/// This case needs no kernel.
#[test]
fn requests_beyond_a_part_are_refused() {
    let Some((stub, _turn)) = stubbed("post boxes and strangers", 5) else { return };
    posted::hostile(&stub.machine);
}

#[test]
fn device_times_a_put() {
    run("pings", 0, cases::pings);
}

/// A copy that the driver refuses fails its entry, and its waiters.
#[test]
fn failed_copy_fails_its_waiters() {
    // The executor's first copy is the put's. The copy fails itself, or its event cannot be recorded.
    for (what, reason) in [("stub_fail_copy", 1), ("stub_fail_event", 2)] {
        let Some((stub, _turn)) = stubbed("a failing copy", 3) else { return };
        let rank = machine::Rank::new(&stub.machine, 0, machine::PLAN);
        stub.tell(what, 1);
        let job = trunkline_device::KernelJob { number: u64::MAX, ..rank.job(&stub.machine) };
        let results = rank.run(&stub.machine, "endure", (1, 1), job);
        assert_eq!(results[0] & 0xff_ffff, 0x01_0201, "{what}: {results:x?}");
        let queue = rank.queues.find_queue(rank.lanes.queue_numbers()[0][0]).unwrap();
        let fault = queue.queue_fault().unwrap();
        assert_eq!(
            (fault.first_bad, fault.reason),
            (0, reason),
            "{what}: the reason must be the driver's code"
        );
    }
}

/// The stand-in enforces the assumptions of the cases. An atomic on host memory, and a store to the host's address of
/// pinned memory, end a kernel; a store to the device's address of it does not. The CPU cannot access device memory.
#[test]
fn stray_device_accesses_are_detected() {
    use trunkline_mem::gpu::KernelArg;
    let Some((stub, _turn)) = stubbed("forbidden accesses of a device", 0) else { return };
    let machine = &stub.machine;
    let pinned = machine.device.allocate_pinned(64).unwrap();
    let run = |name: &str, arg| {
        let running = machine.program.launch_kernel(name, 1, 1, vec![arg]).unwrap();
        running.wait(std::time::Duration::from_secs(10))
    };
    assert_eq!(run("stray_store", KernelArg::Pinned(pinned.clone())), Ok(true));
    assert_eq!(pinned.memory().load(0), Ok(1));
    assert!(run("stray_atomic", KernelArg::Pinned(pinned.clone())).is_err());
    assert!(run("stray_store", KernelArg::Words(vec![pinned.memory().addr() as u64])).is_err());
    assert_eq!(pinned.memory().load(0), Ok(1));
    let own = machine.device.allocate(64).unwrap();
    assert_eq!(run("stray_atomic", KernelArg::Memory(own.clone())), Ok(true));
    assert!(own.load(0).is_err() && own.write(0, &[1]).is_err());
    let mut word = [0; 8];
    machine.device.copy_from_device(&own, 0, &mut word).unwrap();
    assert_eq!(word, [1, 0, 0, 0, 0, 0, 0, 0]);
    assert!(
        machine.device.copy_from_device(&own, 60, &mut word).is_err()
            && machine.device.copy_to_device(pinned.memory(), 0, &word).is_err()
    );
    assert!(machine.program.launch_kernel("no such kernel", 1, 1, Vec::new()).is_err());
}
