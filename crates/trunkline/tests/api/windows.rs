//! Windows of the ranks of a host: mapped parts where all drivers agree, and messages otherwise.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use trunkline::World;
use trunkline::messages::{
    Buffer, HostWindow, IpcMemory, MAPPED_MAX, MemfdDevice, MessageError, Messages, PrivateMemory,
    WindowPlace, shared_device,
};
use trunkline_mem::ipc::{
    CopyError, CopyPlace, CopyTarget, ExportError, ExportedHandle, FindAllocationError, HandleOpenError,
    HandlePassing, IpcAllocation, IpcCaps, IpcHandle, NotClosed, OpenedHandle,
};

use crate::ranks::{DIES, run_over, run_over_ends};

const SHM: [&str; 1] = ["soft:shm"];
const CAPACITY: u64 = 256 << 20;

/// A device whose driver rejects exports or mappings, or is slow.
#[derive(Debug)]
struct Balky {
    device: MemfdDevice,
    exports: bool,
    opens: bool,
    /// The delay before each write.
    slowness: Duration,
    /// The time of the last write.
    wrote: AtomicU64,
}

impl IpcMemory for Balky {
    fn caps(&self) -> IpcCaps {
        self.device.caps()
    }

    fn allocation_of(&self, addr: usize) -> Result<IpcAllocation, FindAllocationError> {
        self.device.allocation_of(addr)
    }

    fn export(&self, of: &IpcAllocation, how: HandlePassing) -> Result<ExportedHandle, ExportError> {
        if self.exports { self.device.export(of, how) } else { Err(ExportError::Passing("balks")) }
    }

    fn open(
        &self,
        handle: &IpcHandle,
        descriptor: Option<std::os::fd::OwnedFd>,
    ) -> Result<OpenedHandle, HandleOpenError> {
        if self.opens {
            self.device.open(handle, descriptor)
        } else {
            Err(HandleOpenError::Descriptor("balks"))
        }
    }

    fn close(&self, mapped: OpenedHandle) -> Result<(), NotClosed> {
        self.device.close(mapped)
    }

    fn read(&self, from: CopyPlace<'_>, out: &mut [u8]) -> Result<(), CopyError> {
        self.device.read(from, out)
    }

    fn write(&self, to: CopyPlace<'_>, bytes: &[u8]) -> Result<(), CopyError> {
        if !self.slowness.is_zero() {
            std::thread::sleep(self.slowness);
        }
        let written = self.device.write(to, bytes);
        self.wrote.store(now(), Ordering::Relaxed);
        written
    }

    fn copy(&self, from: CopyPlace<'_>, to: CopyTarget<'_>, len: usize) -> Result<(), CopyError> {
        self.device.copy(from, to, len)
    }
}

/// Returns the nanoseconds of a clock that all processes of a host share.
fn now() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Starts messages over the job's device, with a driver that exports and opens only if the flags are set.
fn balky(world: &World, exports: bool, opens: bool) -> Messages<Balky> {
    slow(world, exports, opens, Duration::ZERO)
}

fn slow(world: &World, exports: bool, opens: bool, slowness: Duration) -> Messages<Balky> {
    let (device, wrote) = (shared_device(world, CAPACITY).unwrap(), AtomicU64::new(0));
    Messages::start(world, Balky { device, exports, opens, slowness, wrote }).unwrap()
}

fn start(world: &World) -> Messages<Balky> {
    balky(world, true, true)
}

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| (at ^ at >> 8).wrapping_mul(31).wrapping_add(seed * 101) as u8).collect()
}

fn own(messages: &Messages<Balky>, len: usize) -> Buffer {
    Buffer::from_address(messages.memory().device.alloc(len).unwrap(), len)
}

fn bytes_of<M: IpcMemory>(messages: &Messages<M>, buffer: &Buffer) -> Vec<u8> {
    let mut bytes = vec![0; buffer.len()];
    messages.read(buffer, 0, &mut bytes).unwrap();
    bytes
}

/// Each rank fills its place in every rank's part, and then reads all places of all parts.
fn exchange<M: IpcMemory>(messages: &mut Messages<M>, window: &HostWindow, part: &Buffer, seed: usize) {
    let (rank, size) = (messages.rank(), messages.size());
    let len = part.len() / size;
    let number = |from: usize, to: usize| seed + from * size + to;
    let sources: Vec<Buffer> = (0..size)
        .map(|to| {
            let source = Buffer::private(len).unwrap();
            source.write(0, &pattern(len, number(rank, to))).unwrap();
            messages.put(window, WindowPlace::new(to, rank * len), &source).unwrap();
            source
        })
        .collect();
    messages.fence(window).unwrap();
    drop(sources);
    let mine = bytes_of(messages, part);
    for from in 0..size {
        assert!(mine[from * len..][..len] == pattern(len, number(from, rank)), "{len} bytes of rank {from}");
    }
    let into: Vec<Buffer> = (0..size * size)
        .map(|at| {
            let into = Buffer::private(len).unwrap();
            messages.get(window, WindowPlace::new(at / size, at % size * len), &into).unwrap();
            into
        })
        .collect();
    messages.flush_all(window).unwrap();
    for (at, into) in into.iter().enumerate() {
        let expected = pattern(len, number(at % size, at / size));
        assert!(bytes_of(messages, into) == expected, "{len} bytes of rank {}", at / size);
    }
    // No rank writes again before all ranks have read.
    messages.fence(window).unwrap();
}

#[test]
fn every_rank_accesses_every_part() {
    run_over(&["soft:shm", "soft:tcp"], "windows::every_rank_accesses_every_part", 4, |world| {
        let mut messages = start(&world);
        let (rank, size) = (world.rank(), world.size());
        for (round, len) in [8, 8000, 40_000, 2_500_000].into_iter().enumerate() {
            for kinds in 0..3 {
                // All parts can be mapped, none, or some.
                let is_own = |rank: usize| [true, false, (rank + round).is_multiple_of(2)][kinds];
                let part = if is_own(rank) {
                    own(&messages, len * size)
                } else {
                    Buffer::private(len * size).unwrap()
                };
                let window = messages.window(&part).unwrap();
                for other in 0..size {
                    assert_eq!(window.len(other), Some(len * size));
                    assert_eq!(window.is_mapped(other), other == rank || is_own(other), "part of {other}");
                }
                exchange(&mut messages, &window, &part, 1000 * round);
                messages.free(window).unwrap();
                if let Some(addr) = part.address() {
                    messages.memory().device.free(addr).unwrap();
                }
                messages.barrier().unwrap();
                // No rank has memory mapped, so all of it is free again.
                assert_eq!(messages.memory().device.usage().unwrap().used, 0, "{len} bytes, kinds {kinds}");
                messages.barrier().unwrap();
            }
        }
        let (counts, of_messages) = (messages.window_counts(), messages.counts());
        assert_eq!((counts.made, counts.freed, of_messages.fallbacks), (12, 12, 0), "{counts:?}");
        assert_eq!(counts.mapped + counts.asked, 12 * 3, "{counts:?}");
        assert!(counts.copies > 0 && counts.messages > 0 && counts.served > 0, "{counts:?}");
        messages.finish().unwrap();
        world.finish().unwrap();
    });
}

/// A put copies a column of each rank's matrix to the next rank's matrix, and a get copies columns back.
#[test]
fn rows_are_put_and_got_at_both_ends() {
    run_over(&SHM, "windows::rows_are_put_and_got_at_both_ends", 3, |world| {
        let mut messages = start(&world);
        let (rank, size, side) = (world.rank(), world.size(), 150);
        let cell = |rank: usize, row: usize, column: usize| (rank << 32 | row << 16 | column) as u64;
        for private in [false, true] {
            let len = 8 * side * side;
            let part = if private { Buffer::private(len).unwrap() } else { own(&messages, len) };
            let cells: Vec<u8> =
                (0..side * side).flat_map(|at| cell(rank, at / side, at % side).to_le_bytes()).collect();
            messages.write(&part, 0, &cells).unwrap();
            let window = messages.window(&part).unwrap();
            let (next, before) = ((rank + 1) % size, (rank + size - 1) % size);
            // Column 5 of this rank to column 7 of the next rank, and back as a row.
            let column = part.part(8 * 5, len - 8 * 5).unwrap().in_rows(8, 8 * side).unwrap();
            let there = WindowPlace::new(next, 8 * 7).in_rows(8, 8 * side).unwrap();
            messages.put(&window, there, &column).unwrap();
            messages.fence(&window).unwrap();
            // A get of two columns at a time.
            let got = Buffer::private(2 * 8 * side).unwrap();
            let there = WindowPlace::new(next, 8 * 6).in_rows(16, 8 * side).unwrap();
            messages.get(&window, there, &got).unwrap();
            messages.flush(&window, next).unwrap();
            let expected: Vec<u8> = (0..side)
                .flat_map(|row| [cell(next, row, 6), cell(rank, row, 5)].map(u64::to_le_bytes).concat())
                .collect();
            assert!(bytes_of(&messages, &got) == expected, "private: {private}");
            let mut mine = cells.clone();
            (0..side).for_each(|row| {
                mine[8 * (row * side + 7)..][..8].copy_from_slice(&cell(before, row, 5).to_le_bytes());
            });
            assert!(bytes_of(&messages, &part) == mine, "bytes between rows have changed");
            // Rows beyond the end, and an incomplete row.
            let last = WindowPlace::new(next, len - 8 * side + 8).in_rows(8, 8 * side).unwrap();
            let (one, odd) = (Buffer::private(16).unwrap(), Buffer::private(12).unwrap());
            let error = messages.put(&window, last, &one).unwrap_err();
            assert!(matches!(error, MessageError::Range { .. }), "{error}");
            let error = messages.put(&window, there, &odd).unwrap_err();
            assert!(matches!(error, MessageError::Cut { len: 12, block: 16 }), "{error}");
            messages.free(window).unwrap();
        }
        messages.finish().unwrap();
        world.finish().unwrap();
    });
}

/// One rank's driver does not export, and another rank's driver does not map. All ranks agree on which parts are
/// mapped, and no rank hangs.
#[test]
fn ranks_agree_on_parts_that_a_driver_refuses() {
    run_over(&SHM, "windows::ranks_agree_on_parts_that_a_driver_refuses", 4, |world| {
        let rank = world.rank();
        let mut messages = balky(&world, rank != 1, rank != 2);
        let part = own(&messages, 40_000);
        for _ in 0..3 {
            let window = messages.window(&part).unwrap();
            // Rank 1 exports nothing. Rank 2 maps nothing, so that only its own part is mapped, by all others.
            for other in (0..4).filter(|other| *other != rank) {
                assert_eq!(window.is_mapped(other), other == 2, "part of rank {other}");
            }
            exchange(&mut messages, &window, &part, 7);
            messages.free(window).unwrap();
        }
        let counts = messages.window_counts();
        assert_eq!(counts.asked, if rank == 2 { 9 } else { 6 }, "{counts:?}");
        let used = messages.memory().device.usage().unwrap();
        assert_eq!((used.freed, used.allocations), (0, 4), "{used:?}");
        messages.finish().unwrap();
        world.finish().unwrap();
    });
}

/// The export of a window is not counted by the budget and not retired for it. It ends when all ranks free the window,
/// after any messages of the same memory.
#[test]
fn live_window_is_never_recalled() {
    run_over(&SHM, "windows::live_window_is_never_recalled", 3, |world| {
        let mut messages = start(&world);
        let (rank, size) = (world.rank(), world.size());
        let part = own(&messages, 1 << 20);
        let addr = part.address().unwrap();
        messages.set_export_budget(0, 0);
        let window = messages.window(&part).unwrap();
        let maps = |messages: &Messages<Balky>| messages.counts().mapped;
        let before = maps(&messages);
        assert!((0..size).all(|other| window.is_mapped(other)));
        for round in 0..4 {
            match round {
                0 => messages.trim_exports(0),
                1 => messages.set_export_budget(16, 1 << 30),
                2 => _ = messages.release_export(addr),
                _ => messages.set_export_budget(0, 0),
            }
            // Messages of the same memory, whose export would be kept if the budget allows it.
            let into = Buffer::private(part.len()).unwrap();
            let next = (rank + 1) % size;
            let received = messages.irecv((rank + size - 1) % size, round, &into).unwrap();
            let sent = messages.isend(next, round, &part).unwrap();
            messages.wait(received).unwrap();
            messages.wait(sent).unwrap();
            exchange(&mut messages, &window, &part.part(0, size * 1000).unwrap(), round as usize);
            let counts = messages.window_counts();
            assert_eq!((counts.mapped, counts.messages), (size as u64 - 1, 0), "{counts:?}");
        }
        assert!(maps(&messages) > before);
        messages.free(window).unwrap();
        assert!(!messages.is_exported(addr, part.len()), "the memory is still exported");
        messages.memory().device.free(addr).unwrap();
        messages.barrier().unwrap();
        assert_eq!(messages.memory().device.usage().unwrap().used, 0);
        messages.finish().unwrap();
        world.finish().unwrap();
    });
}

fn descriptors_and_mappings() -> [usize; 2] {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let mapped = maps.lines().filter(|line| line.contains("/memfd:trunkline.device")).count();
    [std::fs::read_dir("/proc/self/fd").unwrap().count(), mapped]
}

/// Creates many windows at a time, of which the largest allowed number is mapped, and many one after another, which
/// leave no descriptor and no mapping.
#[test]
fn many_windows_are_created_and_freed() {
    run_over(&SHM, "windows::many_windows_are_created_and_freed", 2, |world| {
        let mut messages = start(&world);
        let (rank, other, size) = (world.rank(), 1 - world.rank(), 2);
        let parts: Vec<Buffer> = (0..MAPPED_MAX + 6).map(|_| own(&messages, 64 * size)).collect();
        let once = own(&messages, 5000 * size);
        let mut before = None;
        let rounds = if std::env::var_os("TRUNKLINE_FULL").is_some() { 500 } else { 40 };
        for round in 0..rounds {
            if round == 2 {
                before = Some(descriptors_and_mappings());
            }
            let window = messages.window(&once).unwrap();
            exchange(&mut messages, &window, &once, round);
            messages.free(window).unwrap();
            if round == 1 || round == rounds - 1 {
                let windows: Vec<_> = parts.iter().map(|part| messages.window(part).unwrap()).collect();
                let mapped = windows.iter().filter(|window| window.is_mapped(other)).count();
                assert_eq!(mapped, MAPPED_MAX);
                // Messages still work.
                if rank == 0 {
                    messages.send(1, 1, &pattern(30_000, round)).unwrap();
                } else {
                    let mut got = vec![0; 30_000];
                    messages.recv(0, 1, &mut got).unwrap();
                    assert!(got == pattern(30_000, round));
                }
                for (at, (window, part)) in windows.iter().zip(&parts).enumerate() {
                    exchange(&mut messages, window, part, at);
                }
                for window in windows {
                    messages.free(window).unwrap();
                }
            }
        }
        assert_eq!(Some(descriptors_and_mappings()), before);
        messages.finish().unwrap();
        world.finish().unwrap();
    });
}

#[test]
fn window_free_waits_for_puts_in_progress() {
    run_over(&SHM, "windows::window_free_waits_for_puts_in_progress", 3, |world| {
        let mut messages = start(&world);
        let (rank, size, len) = (world.rank(), world.size(), 6 << 20);
        for private in [true, false] {
            let part =
                if private { Buffer::private(len * size).unwrap() } else { own(&messages, len * size) };
            let window = messages.window(&part).unwrap();
            let sources: Vec<Buffer> = (0..size).map(|_| Buffer::private(len).unwrap()).collect();
            for to in (0..size).filter(|to| *to != rank) {
                sources[to].write(0, &pattern(len, rank * size + to)).unwrap();
                messages.put(&window, WindowPlace::new(to, rank * len), &sources[to]).unwrap();
            }
            messages.free(window).unwrap();
            let mine = bytes_of(&messages, &part);
            for from in (0..size).filter(|from| *from != rank) {
                assert!(mine[from * len..][..len] == pattern(len, from * size + rank), "rank {from}");
            }
        }
        messages.finish().unwrap();
        world.finish().unwrap();
    });
}

/// The owner's driver does not export and is slow. The bytes of a put by messages wait in the stage, where the sender's
/// part of the message has ended before they are placed. The put ends only after they are placed.
#[test]
fn message_put_ends_after_its_bytes_are_placed() {
    run_over(&SHM, "windows::message_put_ends_after_its_bytes_are_placed", 2, |world| {
        let (rank, most) = (world.rank(), 200_000);
        let slowness = Duration::from_millis(if rank == 1 { 3 } else { 0 });
        let mut messages = slow(&world, rank != 1, true, slowness);
        let part = own(&messages, most);
        let window = messages.window(&part).unwrap();
        assert!(rank == 1 || !window.is_mapped(1));
        for (round, len) in (0..8).zip([64, 3000, 60_000, most].into_iter().cycle()) {
            if rank == 0 {
                let source = Buffer::private(len).unwrap();
                source.write(0, &pattern(len, round)).unwrap();
                messages.put(&window, WindowPlace::new(1, 0), &source).unwrap();
                messages.flush(&window, 1).unwrap();
                messages.send(1, 1, &now().to_le_bytes()).unwrap();
                messages.recv(1, 2, &mut []).unwrap();
            } else {
                let mut ended = [0; 8];
                messages.recv(0, 1, &mut ended).unwrap();
                let ended = u64::from_le_bytes(ended);
                let wrote = messages.memory().wrote.load(Ordering::Relaxed);
                assert!(wrote < ended, "{len} bytes are placed {} ns after the put has ended", wrote - ended);
                assert!(bytes_of(&messages, &part)[..len] == pattern(len, round));
                messages.send(0, 2, &[]).unwrap();
            }
        }
        messages.free(window).unwrap();
        messages.finish().unwrap();
        world.finish().unwrap();
    });
}

fn kill_oneself() {
    let me = Pid::from_raw(std::process::id().cast_signed()).unwrap();
    rustix::process::kill_process(me, Signal::KILL).unwrap();
}

/// One of three ranks is killed with puts in flight to it and from it. The waits of the others end within a second, and
/// their memory that it had mapped is released.
#[test]
fn rank_death_ends_waits_of_other_ranks() {
    let name = "windows::rank_death_ends_waits_of_other_ranks";
    let ends = |status: Option<i32>| status == Some(DIES) || status.is_none();
    run_over_ends(&SHM, name, 3, &ends, |world| {
        let mut messages = start(&world);
        let (rank, len) = (world.rank(), 4 << 20);
        let parts = [own(&messages, len), Buffer::private(len).unwrap()];
        let windows = parts.each_ref().map(|part| messages.window(part).unwrap());
        let source = Buffer::private(len).unwrap();
        for (window, to) in windows.iter().zip([(rank + 1) % 3, (rank + 2) % 3]) {
            messages.put(window, WindowPlace::new(to, 0), &source).unwrap();
        }
        if rank == 2 {
            // An earlier death would fail the creation of the others' windows.
            (0..2).for_each(|from| _ = messages.recv(from, 1, &mut []).unwrap());
            kill_oneself();
        }
        messages.send(2, 1, &[]).unwrap();
        let since = Instant::now();
        let [mapped, asked] = windows;
        let end = if rank == 0 { messages.fence(&asked) } else { messages.flush_all(&asked) };
        let gone = |end: &Result<(), MessageError>| matches!(end, Err(MessageError::Gone { rank: Some(2) }));
        assert!(rank == 1 || gone(&end), "{end:?}");
        for window in [mapped, asked] {
            let end = messages.free(window);
            assert!(gone(&end), "{end:?}");
        }
        assert!(gone(&messages.window(&parts[0]).map(drop)));
        assert!(since.elapsed() < Duration::from_secs(1), "{:?}", since.elapsed());
        messages.memory().device.free(parts[0].address().unwrap()).unwrap();
        while messages.memory().device.usage().unwrap().used > 0 {
            messages.progress();
            assert!(since.elapsed() < Duration::from_secs(3), "memory is still in use");
        }
        std::process::exit(DIES);
    });
}

/// A rank that has detected a death leaves a barrier at once. Another rank, which waits for it in that barrier, must
/// not hang.
#[test]
fn a_death_ends_a_barrier_at_all_ranks() {
    let name = "windows::a_death_ends_a_barrier_at_all_ranks";
    let ends = |status: Option<i32>| status == Some(DIES) || status.is_none();
    run_over_ends(&SHM, name, 3, &ends, |world| {
        let mut messages = start(&world);
        match world.rank() {
            1 => {
                // Rank 2 is in the barrier, and rank 0 has not entered it.
                messages.recv(2, 1, &mut []).unwrap();
                std::thread::sleep(Duration::from_millis(100));
                kill_oneself();
            }
            0 => {
                while messages.send(1, 2, &[]).is_ok() {
                    std::thread::sleep(Duration::from_millis(1));
                    messages.progress();
                }
                assert!(messages.barrier().is_err());
            }
            _ => {
                messages.send(1, 1, &[]).unwrap();
                let end = messages.barrier();
                assert!(matches!(end, Err(MessageError::Gone { rank: Some(1) })), "{end:?}");
                std::process::exit(DIES);
            }
        }
        // Rank 0 stays alive and sends nothing more, not even that it closes.
        let since = Instant::now();
        while since.elapsed() < Duration::from_secs(3) {
            messages.progress();
        }
        std::process::exit(DIES);
    });
}

#[test]
fn all_ranks_name_the_rank_without_a_part() {
    run_over(&SHM, "windows::all_ranks_name_the_rank_without_a_part", 3, |world| {
        let mut messages = start(&world);
        let rank = world.rank();
        let good = own(&messages, 4096);
        let addr = messages.memory().device.alloc(4096).unwrap();
        messages.memory().device.free(addr).unwrap();
        let bad = [Buffer::private(100).unwrap().in_rows(10, 20).unwrap(), Buffer::from_address(addr, 4096)];
        for (at, bad) in bad.iter().enumerate() {
            let end = messages.window(if rank == at { bad } else { &good });
            assert!(matches!(end, Err(MessageError::NoWindow { rank: named }) if named == at), "{end:?}");
        }
        // A failed creation leaves nothing, an empty part is valid, and later windows work.
        let mine = if rank == 1 { Buffer::private(0).unwrap() } else { good.clone() };
        let window = messages.window(&mine).unwrap();
        assert_eq!(window.len(1), Some(0));
        let byte = Buffer::private(1).unwrap();
        assert!(matches!(
            messages.put(&window, WindowPlace::new(1, 0), &byte),
            Err(MessageError::Range { .. })
        ));
        assert!(matches!(
            messages.put(&window, WindowPlace::new(3, 0), &byte),
            Err(MessageError::NoRank { .. })
        ));
        messages.put(&window, WindowPlace::new(1, 0), &Buffer::private(0).unwrap()).unwrap();
        messages.free(window).unwrap();
        messages.memory().device.free(good.address().unwrap()).unwrap();
        messages.barrier().unwrap();
        assert_eq!(messages.memory().device.usage().unwrap().used, 0);
        messages.finish().unwrap();
        world.finish().unwrap();
    });
}

/// Private memory is accessed by system calls, if the kernel permits that.
#[test]
fn all_memory_of_processes_can_be_a_window() {
    run_over(&SHM, "windows::all_memory_of_processes_can_be_a_window", 3, |world| {
        let mut messages = Messages::start(&world, PrivateMemory::new().unwrap()).unwrap();
        let part = Buffer::private(3 * 50_000).unwrap();
        for round in 0..3 {
            let window = messages.window(&part).unwrap();
            let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
            if matches!(scope.trim(), "" | "0") || rustix::process::geteuid().is_root() {
                assert!((0..3).all(|other| window.is_mapped(other)), "a part is accessed by messages");
            }
            exchange(&mut messages, &window, &part, round);
            messages.free(window).unwrap();
        }
        messages.finish().unwrap();
        world.finish().unwrap();
    });
}

/// M13: messages and windows are started, used and finished repeatedly in the same processes, which keep no resources.
#[test]
fn messages_and_windows_finish_and_start_again() {
    run_over(&SHM, "windows::messages_and_windows_finish_and_start_again", 3, |world| {
        let mut before = None;
        for round in 0..5 {
            let mut messages = start(&world);
            let (rank, size) = (world.rank(), world.size());
            let part = own(&messages, 20_000 * size);
            let window = messages.window(&part).unwrap();
            exchange(&mut messages, &window, &part, round);
            let into = Buffer::private(part.len()).unwrap();
            let received = messages.irecv((rank + 1) % size, 4, &into).unwrap();
            let sent = messages.isend((rank + size - 1) % size, 4, &part).unwrap();
            messages.wait(received).unwrap();
            messages.wait(sent).unwrap();
            // Every other round, the window is not freed, and ends with the messages.
            if round % 2 == 0 {
                messages.free(window).unwrap();
            }
            assert!(messages.window_counts().mapped == 2 && messages.counts().mapped > 0);
            messages.finish().unwrap();
            world.barrier().unwrap();
            let now = descriptors_and_mappings();
            assert!(round == 0 || before == Some(now), "round {round}: {before:?} {now:?}");
            before = Some(now);
        }
        world.finish().unwrap();
    });
}

/// M23, M20: ranks with buffers of different kinds and rows take part in one broadcast and one all-to-all.
#[test]
fn ranks_with_different_rows_share_one_collective() {
    run_over(&SHM, "windows::ranks_with_different_rows_share_one_collective", 4, |world| {
        let mut messages = start(&world);
        let (rank, size) = (world.rank(), world.size());
        for (round, rows) in [2, 60, 3000].into_iter().enumerate() {
            for root in 0..size {
                // One row, and rows that differ at each rank, of device and of private memory; short enough to be sent
                // eagerly, or
                // longer.
                let len = 24 * rows;
                let block = [len, 8, 24, 12][(rank + round) % size];
                let stride = if block == len { len } else { block + 8 * rank };
                let room = (len / block - 1) * stride + block;
                let all = if rank.is_multiple_of(2) {
                    own(&messages, room)
                } else {
                    Buffer::private(room).unwrap()
                };
                let buffer = if block == len { all.clone() } else { all.in_rows(block, stride).unwrap() };
                assert_eq!(buffer.len(), len);
                if rank == root {
                    messages.write(&buffer, 0, &pattern(len, root)).unwrap();
                }
                messages.broadcast(root, &buffer).unwrap();
                let got = bytes_of(&messages, &buffer);
                messages.write(&buffer, 0, &vec![0xee; len]).unwrap();
                assert!(got == pattern(len, root), "{len} bytes in rows of {block}, of rank {root}");
                messages.barrier().unwrap();
                let _ = all.address().map(|addr| messages.memory().device.free(addr).unwrap());
            }
        }
        assert_eq!(messages.counts().fallbacks, 0);
        messages.finish().unwrap();
        world.finish().unwrap();
    });
}

/// More accesses than a rank may have pending, and more than owners serve at a time, alternately on two windows.
#[test]
fn flood_of_message_puts_and_gets_arrives_whole() {
    run_over(&SHM, "windows::flood_of_message_puts_and_gets_arrives_whole", 4, |world| {
        let mut messages = start(&world);
        let (rank, size, count) = (world.rank(), world.size(), 300);
        let parts = [Buffer::private(size * count * 8).unwrap(), Buffer::private(size * count * 8).unwrap()];
        let windows = parts.each_ref().map(|part| messages.window(part).unwrap());
        let word = |from: usize, to: usize, at: usize| (from << 40 | to << 20 | at) as u64 + 1;
        let place = |to: usize, of: usize, at: usize| WindowPlace::new(to, (of * count + at) * 8);
        let mut sources = Vec::new();
        for at in 0..count {
            for to in (0..size).filter(|to| *to != rank) {
                let source = Buffer::private(8).unwrap();
                source.write(0, &word(rank, to, at).to_le_bytes()).unwrap();
                messages.put(&windows[at % 2], place(to, rank, at), &source).unwrap();
                sources.push(source);
            }
        }
        windows.each_ref().iter().for_each(|window| messages.fence(window).unwrap());
        let mut got = Vec::new();
        for at in 0..count {
            for to in (0..size).filter(|to| *to != rank) {
                let into = Buffer::private(8).unwrap();
                messages.get(&windows[at % 2], place(to, (to + 1) % size, at), &into).unwrap();
                got.push((into, word((to + 1) % size, to, at)));
            }
        }
        for other in 0..size {
            windows.iter().for_each(|window| messages.flush(window, other).unwrap());
        }
        for (into, expected) in got {
            let mut bytes = [0; 8];
            into.read(0, &mut bytes).unwrap();
            assert_eq!(u64::from_le_bytes(bytes), expected);
        }
        for window in windows {
            messages.free(window).unwrap();
        }
        let counts = messages.window_counts();
        assert_eq!((counts.messages, counts.served), (6 * count as u64, 6 * count as u64), "{counts:?}");
        messages.finish().unwrap();
        world.finish().unwrap();
    });
}

/// The owner of a part that is accessed by messages frees its memory too early. Puts and gets of other ranks fail, and
/// later accesses to other memory work.
#[test]
fn memory_that_is_freed_too_early_is_denied() {
    run_over(&SHM, "windows::memory_that_is_freed_too_early_is_denied", 2, |world| {
        let rank = world.rank();
        let mut messages = balky(&world, false, true);
        for len in [100, 100_000] {
            let part = own(&messages, len);
            let window = messages.window(&part).unwrap();
            if rank == 1 {
                messages.memory().device.free(part.address().unwrap()).unwrap();
            }
            messages.barrier().unwrap();
            if rank == 0 {
                let buffer = Buffer::private(len).unwrap();
                for _ in 0..3 {
                    messages.put(&window, WindowPlace::new(1, 0), &buffer).unwrap();
                    let end = messages.flush(&window, 1);
                    assert!(matches!(end, Err(MessageError::Denied { rank: 1 })), "{end:?}");
                    messages.get(&window, WindowPlace::new(1, 0), &buffer).unwrap();
                    let end = messages.flush_all(&window);
                    assert!(matches!(end, Err(MessageError::Denied { rank: 1 })), "{end:?}");
                }
            } else {
                let buffer = Buffer::private(len).unwrap();
                buffer.write(0, &pattern(len, 3)).unwrap();
                messages.put(&window, WindowPlace::new(0, 0), &buffer).unwrap();
                messages.flush(&window, 0).unwrap();
            }
            messages.free(window).unwrap();
            assert!(rank == 1 || bytes_of(&messages, &part) == pattern(len, 3));
        }
        messages.finish().unwrap();
        world.finish().unwrap();
    });
}
