//! Windows of the ranks of a host: mapped where all drivers agree, by messages where not.

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

/// A device whose driver does not export, or not open, or is slow.
#[derive(Debug)]
struct Balky {
    device: MemfdDevice,
    exports: bool,
    opens: bool,
    /// For how long it waits before it writes.
    slowness: Duration,
    /// When it last wrote.
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

/// Nanoseconds of the clock that all processes of a host have.
fn now() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The memory of the job, for a rank whose driver does as it is told.
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

/// Each rank's part has a place for each other rank, which it fills; then it reads all that others were given.
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
    // Nobody writes before all have read.
    messages.fence(window).unwrap();
}

#[test]
fn every_rank_puts_to_and_gets_from_every_part() {
    run_over(&["soft:shm", "soft:tcp"], "windows::every_rank_puts_to_and_gets_from_every_part", 4, |world| {
        let mut messages = start(&world);
        let (rank, size) = (world.rank(), world.size());
        for (round, len) in [8, 8000, 40_000, 2_500_000].into_iter().enumerate() {
            for kinds in 0..3 {
                // All can be mapped, none, or some.
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
                // Nobody has it mapped: all of it is the device's again.
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

/// A column of each rank's matrix becomes a row of the next one's, by a put; and back, by a get.
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
            // Its column 5 into the next one's column 7, as a whole row here.
            let column = part.part(8 * 5, len - 8 * 5).unwrap().in_rows(8, 8 * side).unwrap();
            let there = WindowPlace::new(next, 8 * 7).in_rows(8, 8 * side).unwrap();
            messages.put(&window, there, &column).unwrap();
            messages.fence(&window).unwrap();
            // Two columns at a time, from there.
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
            assert!(bytes_of(&messages, &part) == mine, "what is between rows is as it was");
            // Beyond the end, and rows that are cut.
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

/// One rank's driver does not export, and another one's does not map: all ranks agree on what of each part is left, and nobody waits for ever.
#[test]
fn what_one_driver_refuses_all_ranks_agree_on() {
    run_over(&SHM, "windows::what_one_driver_refuses_all_ranks_agree_on", 4, |world| {
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

/// What a window has is neither counted by a budget nor given back for one; and it goes when all free it, whatever messages did meanwhile.
#[test]
fn nothing_asks_a_window_back_while_it_lives() {
    run_over(&SHM, "windows::nothing_asks_a_window_back_while_it_lives", 3, |world| {
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
            // Messages of the same memory, so that an export would be kept if it may.
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
        assert!(!messages.is_exported(addr, part.len()), "somebody still has it");
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

/// At once, of which so many are mapped as may be; and one after another, which leave nothing.
#[test]
fn many_windows_come_and_go() {
    run_over(&SHM, "windows::many_windows_come_and_go", 2, |world| {
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
                // And messages still go between.
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
fn a_window_that_is_freed_under_a_put_has_all_of_it_first() {
    run_over(&SHM, "windows::a_window_that_is_freed_under_a_put_has_all_of_it_first", 3, |world| {
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

/// The owner's driver neither exports nor is quick: what is put by messages waits in the stage, and its sender is done with it, before it is placed. Who has
/// put it is told when it is there, and not before.
#[test]
fn a_put_by_messages_has_ended_when_its_bytes_are_placed() {
    run_over(&SHM, "windows::a_put_by_messages_has_ended_when_its_bytes_are_placed", 2, |world| {
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

/// Of three ranks one is killed with puts under way to it and from it; what the others then wait for ends within a second, and what it had of them is
/// free.
#[test]
fn who_is_killed_ends_what_others_wait_for() {
    let name = "windows::who_is_killed_ends_what_others_wait_for";
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
            // Who dies sooner ends what makes the others' windows.
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
            assert!(since.elapsed() < Duration::from_secs(3), "somebody still has something");
        }
        std::process::exit(DIES);
    });
}

/// A rank that has heard of a death leaves a barrier at once; another one, which waits for it there, must not wait for ever.
#[test]
fn a_death_ends_a_barrier_at_all_ranks() {
    let name = "windows::a_death_ends_a_barrier_at_all_ranks";
    let ends = |status: Option<i32>| status == Some(DIES) || status.is_none();
    run_over_ends(&SHM, name, 3, &ends, |world| {
        let mut messages = start(&world);
        match world.rank() {
            1 => {
                // Rank 2 is in the barrier, which has not come to rank 0.
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
        // It lives on, and says nothing more: not even that it has ended.
        let since = Instant::now();
        while since.elapsed() < Duration::from_secs(3) {
            messages.progress();
        }
        std::process::exit(DIES);
    });
}

#[test]
fn a_rank_that_gives_no_window_is_named_at_all() {
    run_over(&SHM, "windows::a_rank_that_gives_no_window_is_named_at_all", 3, |world| {
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
        // None of it is left, a rank that gives nothing is in order, and all is as before.
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

/// Private memory is reached by system calls, where the kernel lets a process do that.
#[test]
fn all_memory_of_processes_can_be_a_window() {
    run_over(&SHM, "windows::all_memory_of_processes_can_be_a_window", 3, |world| {
        let mut messages = Messages::start(&world, PrivateMemory::new().unwrap()).unwrap();
        let part = Buffer::private(3 * 50_000).unwrap();
        for round in 0..3 {
            let window = messages.window(&part).unwrap();
            let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
            if matches!(scope.trim(), "" | "0") || rustix::process::geteuid().is_root() {
                assert!((0..3).all(|other| window.is_mapped(other)), "by messages");
            }
            exchange(&mut messages, &window, &part, round);
            messages.free(window).unwrap();
        }
        messages.finish().unwrap();
        world.finish().unwrap();
    });
}

/// M13. Everything is started, used and finished again and again in the same processes, which keep nothing of it.
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
            // Once in two rounds the window is not freed, and goes with all the rest.
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

/// M23, M20. Ranks whose buffers differ in kind and in how bytes stand take part in one broadcast and one all-to-all.
#[test]
fn ranks_whose_bytes_stand_otherwise_meet_in_one_call() {
    run_over(&SHM, "windows::ranks_whose_bytes_stand_otherwise_meet_in_one_call", 4, |world| {
        let mut messages = start(&world);
        let (rank, size) = (world.rank(), world.size());
        for (round, rows) in [2, 60, 3000].into_iter().enumerate() {
            for root in 0..size {
                // In one row, and in rows of which no two ranks have the same, of own and of private memory: so short that they go with the message, or not.
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

/// More than a rank has under way at once, and more than its owners serve at once, of two windows by turns.
#[test]
fn a_flood_of_puts_and_gets_by_messages_comes_whole() {
    run_over(&SHM, "windows::a_flood_of_puts_and_gets_by_messages_comes_whole", 4, |world| {
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

/// A part that is reached by messages, whose owner frees its memory too early: who puts to it and gets from it is told, and all goes on.
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
