//! Exported memory between ranks of a host: the holders that its owner sees, and the ways in which it is released.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use libloading::os::unix::Library;
use trunkline::World;
use trunkline::messages::{
    Buffer, ExportAmount, ExportHolder, ExportState, FallbackReason, MemfdDevice, Messages, shared_device,
};

use crate::ranks::{run_over, run_within};

const SHM: [&str; 1] = ["soft:shm"];
const LEN: usize = 1 << 20;

fn start(world: &World) -> Messages<MemfdDevice> {
    Messages::start(world, shared_device(world, 64 << 20).unwrap()).unwrap()
}

/// Makes progress until the condition holds.
#[track_caller]
fn until(messages: &mut Messages<MemfdDevice>, what: &str, is: impl Fn(&Messages<MemfdDevice>) -> bool) {
    let since = Instant::now();
    while !is(messages) {
        messages.progress();
        std::thread::yield_now();
        assert!(since.elapsed() < Duration::from_secs(10), "{what}: {:?}", messages.sharing_report());
    }
}

fn in_use(messages: &Messages<MemfdDevice>) -> usize {
    messages.memory().usage().unwrap().allocations
}

/// Sends device memory from rank 0 to rank 1, which maps it. Returns its address at rank 0.
fn exchange(messages: &mut Messages<MemfdDevice>) -> usize {
    if messages.rank() == 0 {
        let addr = messages.memory().alloc(LEN).unwrap();
        let sent = messages.isend(1, 1, &Buffer::from_address(addr, LEN)).unwrap();
        // Rank 1 posts its receive only after the message with tag 2.
        assert_eq!(messages.who_holds(addr + LEN / 2), [ExportHolder { rank: 1, pins: 1 }]);
        messages.send(1, 2, &[]).unwrap();
        messages.wait(sent).unwrap();
        assert_eq!(messages.who_holds(addr), [ExportHolder { rank: 1, pins: 0 }]);
        assert_eq!(messages.who_holds(addr + LEN), []);
        addr
    } else {
        messages.recv(0, 2, &mut []).unwrap();
        let received = messages.irecv(0, 1, &Buffer::private(LEN).unwrap()).unwrap();
        messages.wait(received).unwrap();
        let of = messages.imports();
        assert_eq!((of.len(), of[0].rank, of[0].mappings), (1, 0, 1));
        assert!(of[0].bytes >= LEN as u64, "{of:?}");
        0
    }
}

/// Rank 0 allocates, sends and frees memory, and sends nothing more. Rank 1 keeps it mapped until rank 0 recalls it,
/// which each of these ways does.
#[test]
fn freed_memory_is_released_in_each_way() {
    run_over(&SHM, "back::freed_memory_is_released_in_each_way", 2, |world| {
        let mut messages = start(&world);
        let limit = Duration::from_millis(60);
        for way in ["idle", "trim", "drain", "release", "hook"] {
            messages.idle_limit(if way == "idle" { Some(limit) } else { None });
            let (before, addr) = (messages.sharing_report(), exchange(&mut messages));
            if world.rank() == 0 {
                let since = Instant::now();
                messages.memory().free(addr).unwrap();
                // Except with "idle", this is longer than the limit, so nothing is released by time alone.
                let held = if way == "idle" { limit / 3 } else { limit * 2 };
                while since.elapsed() < held {
                    messages.progress();
                }
                assert_eq!(in_use(&messages), 1, "{way}: it is still mapped");
                assert_eq!(messages.who_holds(addr), [ExportHolder { rank: 1, pins: 0 }], "{way}");
                match way {
                    "trim" => messages.trim_exports(0),
                    "drain" => messages.drain(1).unwrap(),
                    "release" => assert!(messages.release_export(addr)),
                    "hook" => {
                        let hook = messages.free_hook();
                        std::thread::spawn(move || hook.report_free()).join().unwrap();
                    }
                    _ => {}
                }
                until(&mut messages, way, |messages| in_use(messages) == 0);
                // The reply that the export was released arrives a little later.
                until(&mut messages, way, |messages| messages.who_holds(addr).is_empty());
                // The engine reads its clock only from time to time, so the measured limit is loose.
                assert!(
                    way != "idle" || since.elapsed() >= limit / 2,
                    "released before the idle limit: {:?}",
                    since.elapsed()
                );
                let counts = messages.sharing_report().counts;
                let more = |after: u64, before: u64| after - before;
                let seen = [
                    more(counts.expired, before.counts.expired),
                    more(counts.evicted, before.counts.evicted),
                    more(counts.stale, before.counts.stale),
                ];
                let wanted = match way {
                    "idle" => [1, 0, 0],
                    "trim" => [0, 1, 0],
                    "hook" => [0, 0, 1],
                    _ => [0, 0, 0],
                };
                assert_eq!(seen, wanted, "{way}: expired, evicted, stale");
                // A drain recalls the export from one rank, and does not retire it here.
                assert_eq!(messages.release_export(addr), way == "drain", "{way}");
                until(&mut messages, way, |messages| !messages.is_exported(addr, LEN));
            } else {
                until(&mut messages, way, |messages| in_use(messages) == 0);
                assert_eq!(messages.imports()[0].bytes, 0, "{way}");
            }
            messages.barrier().unwrap();
        }
        messages.finish().unwrap();
        world.finish().unwrap();
    });
}

/// Returns the path of the library to preload, which cargo builds beside the tests.
fn free_hook() -> PathBuf {
    std::env::current_exe().unwrap().with_file_name("libtrunkline_freehook.so")
}

/// The test's device frees without CUDA, and no CUDA runtime is loaded: the preloaded `cudaFree` still counts the call.
#[test]
fn freed_memory_is_released_by_preloaded_free_hook() {
    let name = "back::freed_memory_is_released_by_preloaded_free_hook";
    run_within(&[("LD_PRELOAD", free_hook().as_os_str())], name, 2, |world| {
        let mut messages = start(&world);
        messages.idle_limit(None);
        let addr = exchange(&mut messages);
        if world.rank() == 0 {
            let before = messages.sharing_report().counts.stale;
            messages.memory().free(addr).unwrap();
            assert_eq!(count_a_free(), NO_RUNTIME);
            until(&mut messages, "a counted free", |messages| in_use(messages) == 0);
            assert_eq!(messages.sharing_report().counts.stale, before + 1);
            until(&mut messages, "a counted free", |messages| !messages.is_exported(addr, LEN));
        } else {
            until(&mut messages, "a counted free", |messages| in_use(messages) == 0);
        }
        messages.barrier().unwrap();
        messages.finish().unwrap();
        world.finish().unwrap();
    });
}

/// `cudaErrorInitializationError`.
const NO_RUNTIME: i32 = 3;

/// Calls `cudaFree` as a program does that is linked with CUDA's runtime.
fn count_a_free() -> i32 {
    let program = Library::this();
    // SAFETY: the preloaded library defines `cudaFree` with this type.
    let free = unsafe { program.get::<unsafe extern "C" fn(usize) -> i32>(b"cudaFree\0") }.unwrap();
    // SAFETY: without a CUDA runtime, the call only counts; address 0 would be valid for the runtime, too.
    unsafe { free(0) }
}

#[test]
fn exports_follow_a_changed_budget() {
    run_over(&SHM, "back::exports_follow_a_changed_budget", 2, |world| {
        let mut messages = start(&world);
        let (rank, rounds) = (world.rank(), 6);
        let buffers: Vec<Buffer> =
            (0..2).map(|_| Buffer::from_address(messages.memory().alloc(LEN).unwrap(), LEN)).collect();
        let pass = |messages: &mut Messages<MemfdDevice>, buffer: &Buffer| {
            let request = if rank == 0 {
                messages.isend(1, 1, buffer).unwrap()
            } else {
                messages.irecv(0, 1, &Buffer::private(LEN).unwrap()).unwrap()
            };
            messages.wait(request).unwrap();
        };
        let all = ExportAmount { entries: 256, bytes: 1 << 40 };
        assert_eq!(
            (messages.sharing_report().budget, messages.sharing_report().idle),
            (all, Some(Duration::from_secs(30)))
        );
        for round in 0..rounds {
            pass(&mut messages, &buffers[round % 2]);
        }
        if rank == 0 {
            let shares = messages.sharing_report();
            assert_eq!((shares.counts.misses, shares.counts.hits), (2, rounds as u64 - 2));
            assert_eq!((shares.usage.live.entries, shares.usage.idle), (2, 2));
            assert!(shares.peak_bytes >= 2 * LEN as u64 && shares.driver.exports == 2, "{shares:?}");
            let listing = messages.list_exports();
            assert_eq!(listing.len(), 2);
            for export in &listing {
                assert!(
                    export.state == ExportState::Live && !export.passing && export.pins == 0,
                    "{export:?}"
                );
                assert_eq!(export.held_by, [ExportHolder { rank: 1, pins: 0 }]);
                assert!(export.unused < Duration::from_secs(20) && export.len >= LEN as u64, "{export:?}");
            }
            assert_ne!(listing[0].allocation, listing[1].allocation);
            // The least recently used export is retired at once.
            messages.shrink(1, u64::MAX);
            until(&mut messages, "one is left", |messages| messages.list_exports().len() == 1);
            let shares = messages.sharing_report();
            assert_eq!((shares.counts.evicted, shares.usage.zombies.entries), (1, 0));
            assert_eq!(messages.who_holds(buffers[0].address().unwrap()), []);
        }
        messages.barrier().unwrap();
        messages.shrink(0, 0);
        let staged = messages.counts().staged;
        pass(&mut messages, &buffers[0]);
        if rank == 0 {
            assert_eq!(messages.sharing_report().counts.fallback_count(FallbackReason::Off), 1);
            assert_eq!((messages.counts().staged, messages.counts().fallbacks), (staged + 1, 1));
            until(&mut messages, "nothing is exported", |messages| messages.list_exports().is_empty());
        }
        messages.barrier().unwrap();
        messages.grow(2, 4 * LEN as u64);
        assert_eq!(messages.sharing_report().budget, ExportAmount { entries: 2, bytes: 4 * LEN as u64 });
        pass(&mut messages, &buffers[0]);
        if rank == 0 {
            assert_eq!((messages.list_exports().len(), messages.counts().fallbacks), (1, 1));
        }
        messages.finish().unwrap();
        world.finish().unwrap();
    });
}
