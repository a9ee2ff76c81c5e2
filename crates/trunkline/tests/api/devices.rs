//! Windows over device queues, between ranks that are processes.

use std::time::{Duration, Instant};

use trunkline::World;
use trunkline::device::{
    DeviceError, DeviceTables, Devices, ExecutorMode, KernelError, PutNotification, WaitError, Window,
    WindowConfig,
};

use crate::ranks::{DIES, run_over, run_over_ends};

pub(crate) const FABRICS: [&str; 4] = ["soft:shm", "soft:tcp", "ofi:tcp", "verbs"];
const LIMIT: Duration = Duration::from_secs(20);

fn pattern(rank: usize, len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| (at.wrapping_mul(31) + at / 256 + 7 * rank + seed) as u8).collect()
}

fn read(window: &Window, at: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    window.read(at, &mut bytes).unwrap();
    bytes
}

#[test]
fn windows_are_made_used_and_freed() {
    run_over(&FABRICS, "devices::windows_are_made_used_and_freed", 3, |world| {
        for mode in [ExecutorMode::Thread, ExecutorMode::Inline] {
            let devices = world.devices(mode).unwrap();
            let early = devices.source(100_000).unwrap();
            let config =
                WindowConfig { bytes: 1 << 20, signals: 3, counters: 2, lanes: 2, ..WindowConfig::default() };
            let windows = [devices.window(&world, config).unwrap(), devices.window(&world, config).unwrap()];
            let late = devices.source(64).unwrap();
            let others = || (0..world.size()).filter(|&other| other != world.rank());
            for (nth, window) in windows.iter().enumerate() {
                let kernel = window.kernel(0).unwrap().limit(LIMIT);
                let mine = pattern(world.rank(), 60_000, nth);
                window.write(0, &mine).unwrap();
                for round in 1..=3_u64 {
                    for other in others() {
                        let at = 100_000 * (1 + world.rank() as u64);
                        let with = PutNotification::signal(1).and_counter(0);
                        let put = kernel.put(other, at, 0, 60_000, with).unwrap();
                        kernel.wait(put).unwrap();
                        kernel.put_source(other, at + 60_000, &late, 8, 16, PutNotification::NONE).unwrap();
                    }
                    for other in others() {
                        assert_eq!(kernel.wait_signal(other, 1, round), Ok(round));
                        let there = read(window, 100_000 * (1 + other as u64), 60_000);
                        assert!(there == pattern(other, 60_000, nth), "from {other}");
                    }
                    assert_eq!(kernel.wait_counter(0, 2 * round), Ok(2 * round));
                    assert_eq!(kernel.wait_signals(1, 2 * round), Ok(2 * round));
                    kernel.barrier(0).unwrap();
                }
                for other in others() {
                    let got = kernel.get(other, 0, 900_000, 60_000).unwrap();
                    kernel.wait(got).unwrap();
                    assert!(read(window, 900_000, 60_000) == pattern(other, 60_000, nth));
                    // The signal restarts at 0, and later additions count.
                    assert_eq!(kernel.reset_signal(other, 1), Ok(3));
                    assert_eq!(kernel.read_signal(other, 1), Ok(0));
                }
                kernel.barrier(0).unwrap();
                others().for_each(|other| assert!(kernel.signal(other, 1, 5).is_ok()));
                others().for_each(|other| assert_eq!(kernel.wait_signal(other, 1, 5), Ok(5)));
                refuses(&world, window);
                kernel.flush().unwrap();
            }
            looks_right(&windows[0], &world);
            for window in windows {
                window.free(&world).unwrap();
            }
            devices.unregister(early).unwrap();
            devices.unregister(late).unwrap();
        }
        world.finish().unwrap();
    });
}

fn refuses(world: &World, window: &Window) {
    let kernel = window.kernel(0).unwrap();
    let end = window.config().bytes;
    let range = |result: Result<_, KernelError>| matches!(result, Err(KernelError::Range { .. }));
    assert!(range(kernel.put(0, end - 7, 0, 8, PutNotification::NONE)));
    assert!(range(kernel.put(0, 0, u64::MAX, 8, PutNotification::NONE)));
    assert!(range(kernel.get(0, end, 0, 1)));
    assert_eq!(
        kernel.put(world.size(), 0, 0, 8, PutNotification::NONE),
        Err(KernelError::NoRank(world.size()))
    );
    let none = |what, id| Err(KernelError::None { what, id });
    assert_eq!(kernel.put(0, 0, 0, 8, PutNotification::signal(3)).map(drop), none("signal", 3));
    assert_eq!(kernel.put(0, 0, 0, 8, PutNotification::counter(2)).map(drop), none("counter", 2));
    assert_eq!(kernel.barrier(1), none("barrier", 1));
    assert!(matches!(window.kernel(1), Err(DeviceError::NoChannel { channel: 1, channels: 1 })));
    assert!(matches!(window.write(end, &[0]), Err(DeviceError::Range { .. })));
    let soon = window.kernel(0).unwrap().limit(Duration::from_millis(5));
    let other = (world.rank() + 1) % world.size();
    assert_eq!(soon.wait_signal(other, 2, 1), Err(KernelError::Wait(WaitError::Timeout)));
}

fn looks_right(window: &Window, world: &World) {
    let tables = window.device_view().unwrap();
    let view = tables.view;
    assert_eq!((view.version, view.rank as usize, view.ranks as usize), (3, world.rank(), world.size()));
    assert_eq!((view.signals, view.counters, view.barriers, view.lanes, view.channels), (3, 2, 1, 2, 1));
    assert_eq!((tables.peers.len(), tables.queues.len(), tables.views.len()), (3, 2, 2));
    assert_eq!(tables.words.len(), DeviceTables::words_of_channel(2));
    assert!(tables.peers.iter().all(|peer| peer.key != 0));
    assert_eq!(view.peers, tables.peers.as_ptr().addr() as u64);
    assert!(view.base > 0 && view.signals_at >= view.bytes);
    assert!(
        tables
            .queues
            .iter()
            .zip(tables.views.iter())
            .all(|(lane, view)| lane.main == (&raw const *view).addr() as u64)
    );
}

#[test]
fn write_raises_its_attached_counter() {
    run_over(&FABRICS, "devices::write_raises_its_attached_counter", 2, |world| {
        for mode in [ExecutorMode::Thread, ExecutorMode::Inline] {
            let devices = world.devices(mode).unwrap();
            // The queue has room for two entries: the write and the signal.
            let config =
                WindowConfig { bytes: 4096, signals: 1, counters: 2, depth: 2, ..WindowConfig::default() };
            let window = devices.window(&world, config).unwrap();
            let (kernel, other) = (window.kernel(0).unwrap().limit(LIMIT), 1 - world.rank());
            for round in 1..=20_u64 {
                kernel.put(other, 64, 0, 8, PutNotification::signal(0).and_counter(0)).unwrap();
                assert_eq!(kernel.wait_counter(0, round), Ok(round));
            }
            assert_eq!(kernel.wait_signal(other, 0, 20), Ok(20));
            // A number that does not fit into the write's entry is added by an entry of its own.
            let much = (1 << 32) + 5;
            kernel.put(other, 64, 0, 8, PutNotification { counter: Some((1, much)), signal: None }).unwrap();
            assert_eq!(kernel.wait_counter(1, 1), Ok(much));
            kernel.flush().unwrap();
            drop(kernel);
            window.free(&world).unwrap();
        }
        world.finish().unwrap();
    });
}

#[test]
fn window_creation_fails_when_shapes_differ() {
    run_over(&["soft:shm"], "devices::window_creation_fails_when_shapes_differ", 2, |world| {
        let devices = world.devices(ExecutorMode::Thread).unwrap();
        let config = WindowConfig { bytes: 100, signals: 1 + world.rank() as u32, ..WindowConfig::default() };
        let other = 1 - world.rank();
        let made = devices.window(&world, config);
        assert!(matches!(made, Err(DeviceError::Differ { rank }) if rank == other));
        world.finish().unwrap();
    });
}

/// Each kernel is a new thread, as each launch is on a GPU.
#[test]
fn barriers_continue_from_kernel_to_kernel() {
    run_over(&FABRICS, "devices::barriers_continue_from_kernel_to_kernel", 4, |world| {
        let devices = world.devices(ExecutorMode::Thread).unwrap();
        let config = WindowConfig { bytes: 4096, barriers: 2, ..WindowConfig::default() };
        let window = devices.window(&world, config).unwrap();
        let (rank, size) = (world.rank(), world.size());
        for round in 0..12_u64 {
            let kernel = window.kernel(0).unwrap().limit(LIMIT);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let kernel = { kernel };
                    // In each round another rank is late.
                    if round as usize % size == rank {
                        std::thread::sleep(Duration::from_millis(20));
                    }
                    window.write(0, &round.to_le_bytes()).unwrap();
                    for other in 0..size {
                        kernel.put(other, 64 + 8 * rank as u64, 0, 8, PutNotification::NONE).unwrap();
                    }
                    kernel.barrier(1).unwrap();
                    for other in 0..size {
                        let there = read(&window, 64 + 8 * other as u64, 8);
                        assert_eq!(there, round.to_le_bytes(), "rank {other}, round {round}");
                    }
                    kernel.barrier(1).unwrap();
                });
            });
        }
        window.free(&world).unwrap();
        world.finish().unwrap();
    });
}

fn streams(world: &World, devices: &Devices, lanes: u32, chunks: u32, chunk: u64) {
    let config = WindowConfig { channels: 2, lanes, chunks, chunk, ..WindowConfig::default() };
    let window = devices.window(world, config).unwrap();
    let (rank, size) = (world.rank(), world.size());
    let (before, next) = ((rank + size - 1) % size, (rank + 1) % size);
    for (round, len) in [1, 16, 1000, 40_000, 16 * 1024 + 1, 3].into_iter().enumerate() {
        // A few laps of the stream's chunks are enough.
        let len = len.min(40 * chunk as usize + 3);
        // Two channels at the same time, each in a thread: around the ring, and along the line from first to last rank.
        let (ring, line) = (window.kernel(0).unwrap().limit(LIMIT), window.kernel(1).unwrap().limit(LIMIT));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let kernel = { ring };
                let mine = pattern(rank, len, round);
                let mut theirs = vec![0; len];
                // All ranks send before they receive, and a stream has no room for the whole message, so each rank
                // alternates by chunks.
                for (mine, theirs) in mine.chunks(chunk as usize).zip(theirs.chunks_mut(chunk as usize)) {
                    kernel.send(next, mine).unwrap();
                    kernel.recv(before, theirs).unwrap();
                }
                assert!(theirs == pattern(before, len, round), "{len} bytes around the ring");
            });
            scope.spawn(|| {
                let kernel = { line };
                let mut bytes = pattern(0, len, round + 100);
                match rank {
                    0 => kernel.send(1, &bytes).unwrap(),
                    _ => {
                        bytes.fill(0);
                        if rank + 1 < size {
                            kernel.forward(before, next, &mut bytes).unwrap();
                        } else {
                            // Forwarding ranks wait for this slow receiver.
                            std::thread::sleep(Duration::from_millis(5));
                            kernel.recv(before, &mut bytes).unwrap();
                        }
                        assert!(bytes == pattern(0, len, round + 100), "{len} bytes along the line");
                    }
                }
            });
        });
    }
    window.free(world).unwrap();
}

#[test]
fn streams_deliver_all_bytes_in_order() {
    run_over(&FABRICS, "devices::streams_deliver_all_bytes_in_order", 3, |world| {
        let devices = world.devices(ExecutorMode::Thread).unwrap();
        for (lanes, chunks, chunk) in [(1, 1, 16), (1, 2, 256), (3, 4, 1024), (2, 8, 4096)] {
            streams(&world, &devices, lanes, chunks, chunk);
        }
        world.finish().unwrap();
    });
}

/// Each executor uses resources of the job that the next one needs.
#[test]
fn successive_executors_reuse_all_resources() {
    run_over(&FABRICS, "devices::successive_executors_reuse_all_resources", 2, |world| {
        for round in 0..20_usize {
            let devices = world
                .devices(if round % 4 == 3 { ExecutorMode::Inline } else { ExecutorMode::Thread })
                .unwrap();
            let config = WindowConfig { bytes: 1 << 16, signals: 1, ..WindowConfig::default() };
            let window = devices.window(&world, config).unwrap();
            let (kernel, other) = (window.kernel(0).unwrap().limit(LIMIT), 1 - world.rank());
            window.write(0, &pattern(world.rank(), 5000, round)).unwrap();
            kernel.put(other, 10_000, 0, 5000, PutNotification::signal(0)).unwrap();
            assert_eq!(kernel.wait_signal(other, 0, 1), Ok(1), "round {round}");
            assert!(read(&window, 10_000, 5000) == pattern(other, 5000, round), "round {round}");
            kernel.barrier(0).unwrap();
            drop(kernel);
            window.free(&world).unwrap();
        }
        world.finish().unwrap();
    });
}

/// Each window uses resources of the executor that the next one needs. Kernels end with puts in flight, which the end
/// of the window completes.
#[test]
fn successive_windows_reuse_all_resources() {
    run_over(&FABRICS[..1], "devices::successive_windows_reuse_all_resources", 2, |world| {
        for mode in [ExecutorMode::Thread, ExecutorMode::Inline] {
            let devices = world.devices(mode).unwrap();
            let config = WindowConfig {
                bytes: 1 << 16,
                signals: 1,
                counters: 1,
                channels: 8,
                lanes: 8,
                depth: 4,
                ..WindowConfig::default()
            };
            let other = 1 - world.rank();
            for round in 0..40_usize {
                let window = devices.window(&world, config).unwrap();
                window.write(0, &pattern(world.rank(), 5000, round)).unwrap();
                let kernel = window.kernel(round as u32 % 8).unwrap().limit(LIMIT);
                kernel.put(other, 10_000, 0, 5000, PutNotification::signal(0).and_counter(0)).unwrap();
                assert_eq!(kernel.wait_signal(other, 0, 1), Ok(1), "round {round}");
                assert!(read(&window, 10_000, 5000) == pattern(other, 5000, round), "round {round}");
                kernel.barrier(0).unwrap();
                kernel.put(other, 20_000, 0, 5000, PutNotification::NONE).unwrap();
                drop(kernel);
                window.free(&world).unwrap();
            }
        }
        world.finish().unwrap();
    });
}

/// An exceeded limit ends the wait. It ends the process only after `or_die`.
#[test]
fn exceeded_limit_ends_the_process_only_on_request() {
    let ends = |status: Option<i32>| status == Some(0) || status.is_none();
    let name = "devices::exceeded_limit_ends_the_process_only_on_request";
    run_over_ends(&["soft:shm"], name, 2, &ends, |world| {
        let devices = world.devices(ExecutorMode::Thread).unwrap();
        let window = devices.window(&world, WindowConfig { signals: 2, ..WindowConfig::default() }).unwrap();
        let kernel = window.kernel(0).unwrap();
        if world.rank() == 1 {
            let kernel = kernel.limit(Duration::from_millis(10));
            assert_eq!(kernel.wait_signal(0, 0, 1), Err(KernelError::Wait(WaitError::Timeout)));
            kernel.signal(0, 0, 1).unwrap();
            kernel.flush().unwrap();
            let _ = kernel.or_die().wait_signal(0, 0, 1);
            std::process::exit(3);
        }
        let kernel = kernel.limit(LIMIT);
        assert_eq!(kernel.wait_signal(1, 0, 1), Ok(1), "rank 1 survives the first exceeded limit");
        let gone = kernel.wait_signal(1, 1, 1);
        assert!(matches!(gone, Err(KernelError::Wait(WaitError::Poisoned(_)))), "{gone:?}");
    });
}

#[test]
fn rank_death_ends_every_wait_of_a_kernel() {
    let ends = |status: Option<i32>| status == Some(0) || status == Some(DIES);
    let name = "devices::rank_death_ends_every_wait_of_a_kernel";
    run_over_ends(&FABRICS, name, 2, &ends, |world| {
        let devices = world.devices(ExecutorMode::Thread).unwrap();
        let config = WindowConfig { bytes: 4096, signals: 2, chunks: 2, ..WindowConfig::default() };
        let window = devices.window(&world, config).unwrap();
        let kernel = window.kernel(0).unwrap().limit(LIMIT);
        if world.rank() == 1 {
            kernel.put(0, 0, 0, 8, PutNotification::signal(0)).unwrap();
            kernel.flush().unwrap();
            kernel.wait_signal(0, 0, 1).unwrap();
            std::process::exit(DIES);
        }
        // The signal that rank 1 raised before its death counts.
        assert_eq!(kernel.wait_signal(1, 0, 1), Ok(1));
        kernel.signal(1, 0, 1).unwrap();
        let began = Instant::now();
        let is_told = |result: Result<(), KernelError>| {
            matches!(
                result,
                Err(KernelError::Wait(WaitError::Poisoned(_) | WaitError::Failed(_)) | KernelError::Post(_))
            )
        };
        assert!(is_told(kernel.wait_signal(1, 1, 1).map(drop)));
        let told = began.elapsed();
        assert!(is_told(kernel.recv(1, &mut [0; 100])));
        assert!(is_told(kernel.put(1, 0, 0, 8, PutNotification::NONE).and_then(|put| kernel.wait(put))));
        assert!(is_told(kernel.barrier(0)));
        println!("the wait failed after {told:?}");
        assert!(told < Duration::from_secs(2), "{told:?}");
    });
}
