//! Tagged messages of GPU memory over stand-ins for the drivers; everything above the driver is the product. Memory for
//! which a driver exports no handle is tested in `kept.rs`.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use trunkline::World;
use trunkline::messages::{AnyMemory, Buffer, IpcMemory as _, Messages};
use trunkline_mem::ipc::CopyPlace;

use crate::gpu_windows::skip;
use crate::nvidia::Nvidia;
use crate::ranks::run_within;

const MIB: usize = 1 << 20;

/// A stand-in driver and its device.
struct Stub {
    folder: &'static tempfile::TempDir,
    device: tempfile::NamedTempFile,
}

/// Runs a test as two ranks over the stand-in for a kind's driver, with those settings of it. Called first in the test
/// of that name.
pub(crate) fn over_stub(kind: &str, settings: &[(&str, &str)], name: &str, rank: impl FnOnce(World)) {
    ranks_over_stub(kind, 2, settings, name, rank);
}

/// As [`over_stub`], with `size` ranks.
pub(crate) fn ranks_over_stub(
    kind: &str,
    size: usize,
    settings: &[(&str, &str)],
    name: &str,
    rank: impl FnOnce(World),
) {
    let library = match kind {
        "cuda" => "libcuda.so.1",
        "hip" => "libamdhip64.so.7",
        _ => "libze_loader.so.1",
    };
    if crate::ranks::is_rank() {
        return run_within(&[], name, size, rank);
    }
    let Some(stub) = stub(kind, library) else { return };
    let mut environment = vec![
        ("LD_LIBRARY_PATH", stub.folder.path().as_os_str()),
        ("STUB_DEVICE", stub.device.path().as_os_str()),
        ("STUB_HIP_PINS", "0".as_ref()),
    ];
    environment.extend(settings.iter().map(|(name, value)| (*name, value.as_ref())));
    run_within(&environment, name, size, rank);
}

/// Runs a test as two ranks over the driver of this machine, or skips it. Called first in the test of that name.
pub(crate) fn over_driver(kind: &str, name: &str, rank: impl FnOnce(World)) {
    if !crate::ranks::is_rank()
        && let Err(missing) = AnyMemory::open(kind, 0)
    {
        return skip(name, kind, &missing.to_string());
    }
    run_within(&[], name, 2, rank);
}

/// Returns the stand-in of a kind's driver. Prints a line and returns `None` without a compiler.
fn stub(kind: &str, library: &str) -> Option<Stub> {
    static BUILT: Mutex<BTreeMap<String, Option<&'static tempfile::TempDir>>> = Mutex::new(BTreeMap::new());
    let mut built = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = *built.entry(library.to_owned()).or_insert_with(|| build_library(kind, library));
    drop(built);
    let folder = folder?;
    let mut device = tempfile::NamedTempFile::new_in("/dev/shm").unwrap();
    device.as_file().set_len(1 << 46).unwrap();
    for word in [64 << 20, 1, 65536, 1_u64] {
        device.write_all(&word.to_le_bytes()).unwrap();
    }
    Some(Stub { folder, device })
}

/// Builds the stand-in for a kind's driver. Its folder is not removed.
fn build_library(kind: &str, library: &str) -> Option<&'static tempfile::TempDir> {
    let folder = tempfile::tempdir().unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../mem/tests/ipc/stub/{kind}.c"));
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-shared", "-fPIC", "-pthread", "-o"]).arg(folder.path().join(library)).arg(source);
    let Ok(status) = cc.status() else {
        println!("SKIPPED messages of memory of {kind}: no cc");
        return None;
    };
    assert!(status.success(), "cannot compile the stub of {kind}");
    Some(Box::leak(Box::new(folder)))
}

/// Allocates, exchanges both ways and frees, in little memory, so that addresses repeat and overlap stale mappings.
fn exchange(kind: &str, world: &World) -> Messages<AnyMemory> {
    let mut messages = Messages::start(world, AnyMemory::open(kind, 0).unwrap()).unwrap();
    assert_eq!(messages.memory().kind_name(), kind);
    let other = 1 - world.rank();
    let into = Buffer::private(10 * MIB).unwrap();
    for round in 0..100 {
        let len = if round % 2 == 0 { 10 * MIB } else { 7 * MIB };
        let address = loop {
            if let Ok(address) = messages.memory().alloc(len) {
                break address;
            }
            messages.trim_exports(0);
            messages.progress();
        };
        let bytes = |rank: usize| [(3 * round + rank) as u8; 64];
        messages.memory().write(CopyPlace::Own(address), &bytes(world.rank())).unwrap();
        messages.memory().write(CopyPlace::Own(address + len - 64), &bytes(world.rank())).unwrap();
        let received = messages.irecv(other, 1, &into.part(0, len).unwrap()).unwrap();
        let sent = messages.isend(other, 1, &Buffer::from_address(address, len)).unwrap();
        messages.wait(received).unwrap();
        messages.wait(sent).unwrap();
        let mut found = [0; 64];
        for at in [0, len - 64] {
            into.read(at, &mut found).unwrap();
            assert_eq!(found, bytes(other), "round {round}");
        }
        messages.memory().free(address).unwrap();
    }
    assert_eq!(messages.counts().fallbacks, 0);
    messages
}

fn exchange_played(kind: &str, name: &str) {
    over_stub(kind, &[], name, |world: World| {
        exchange(kind, &world).finish().unwrap();
        world.finish().unwrap();
    });
}

#[test]
fn memory_of_cuda_is_exchanged_in_little_memory() {
    exchange_played("cuda", "gpus::memory_of_cuda_is_exchanged_in_little_memory");
}

#[test]
fn memory_of_hip_is_exchanged_in_little_memory() {
    exchange_played("hip", "gpus::memory_of_hip_is_exchanged_in_little_memory");
}

#[test]
fn memory_of_level_zero_is_exchanged_in_little_memory() {
    exchange_played("ze", "gpus::memory_of_level_zero_is_exchanged_in_little_memory");
}

/// The same on a GPU, whose memory is all free again once both ranks have released their holds.
#[test]
fn gpu_memory_is_exchanged_and_released() {
    over_driver("cuda", "gpus::gpu_memory_is_exchanged_and_released", |world: World| {
        const OF_OTHERS: usize = 64 * MIB;
        let nvidia = Nvidia::open();
        world.barrier().unwrap();
        let before = nvidia.free_bytes();
        world.barrier().unwrap();
        let mut messages = exchange("cuda", &world);
        let until = Instant::now() + Duration::from_secs(10);
        while nvidia.free_bytes() + OF_OTHERS < before {
            assert!(Instant::now() < until, "{before} bytes were free, and {} are", nvidia.free_bytes());
            messages.trim_exports(0);
            messages.progress();
        }
        messages.finish().unwrap();
        world.finish().unwrap();
    });
}

/// M8: one buffer is received alternately into memory of either device of a rank and into host memory, and arrives
/// whole. It is mapped once per device; for host memory, with the device that the messages were started with.
fn mapped_for_each(kind: &str, settings: &[(&str, &str)], devices: [u32; 2], name: &str) {
    over_stub(kind, settings, name, |world: World| {
        let [one, another] = devices;
        for [near, far] in [[one, another], [another, one]] {
            let memory = AnyMemory::open(kind, near).unwrap();
            let other_device = AnyMemory::open(kind, far).unwrap();
            let [near, far] = [memory.alloc(MIB).unwrap(), other_device.alloc(MIB).unwrap()];
            let mut messages = Messages::start(&world, memory).unwrap();
            let other = 1 - world.rank();
            let sent = messages.memory().alloc(MIB).unwrap();
            let host = Buffer::private(MIB).unwrap();
            let maps = |messages: &Messages<AnyMemory>| messages.sharing_report().driver.maps;
            for round in 0..12_u8 {
                let bytes = |rank: usize| [3 * round + rank as u8; 64];
                messages.memory().write(CopyPlace::Own(sent + MIB - 64), &bytes(world.rank())).unwrap();
                let into = match round % 3 {
                    0 => host.clone(),
                    1 => Buffer::from_address(near, MIB),
                    _ => Buffer::from_address(far, MIB),
                };
                let received = messages.irecv(other, 1, &into).unwrap();
                let sending = messages.isend(other, 1, &Buffer::from_address(sent, MIB)).unwrap();
                messages.wait(received).unwrap();
                messages.wait(sending).unwrap();
                let mut found = [0; 64];
                messages.read(&into, MIB - 64, &mut found).unwrap();
                assert_eq!(found, bytes(other), "round {round}");
                assert_eq!(maps(&messages), if round < 2 { 1 } else { 2 }, "round {round}");
            }
            assert_eq!(messages.counts().fallbacks, 0);
            messages.finish().unwrap();
        }
        world.finish().unwrap();
    });
}

#[test]
fn cuda_memory_is_mapped_once_per_copying_device() {
    let name = "gpus::cuda_memory_is_mapped_once_per_copying_device";
    mapped_for_each("cuda", &[("STUB_DEVICES", "2")], [0, 1], name);
}

#[test]
fn hip_memory_is_mapped_once_per_copying_device() {
    let name = "gpus::hip_memory_is_mapped_once_per_copying_device";
    mapped_for_each("hip", &[("STUB_DEVICES", "2")], [0, 1], name);
}

#[test]
fn level_zero_memory_is_mapped_once_per_card() {
    let name = "gpus::level_zero_memory_is_mapped_once_per_card";
    mapped_for_each("ze", &[("STUB_DEVICES", "2")], [0, 1], name);
}

/// The tiles of the card are listed after the card itself.
#[test]
fn level_zero_memory_is_mapped_once_per_tile() {
    let name = "gpus::level_zero_memory_is_mapped_once_per_tile";
    mapped_for_each("ze", &[("STUB_TILES", "2")], [1, 2], name);
}
