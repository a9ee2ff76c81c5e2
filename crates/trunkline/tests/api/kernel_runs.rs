//! Messages and windows of GPU memory while a kernel runs, over stand-ins for the drivers. Copies do not complete
//! meanwhile, and the stand-ins count calls that wait for a copy.

use trunkline::World;
use trunkline::messages::{AnyMemory, Buffer, CopyMethod, Messages, MethodChoice, WindowPlace};

use crate::gpus::{over_stub, ranks_over_stub};
use crate::kept::make_buffer;
use crate::stand_in::StandIn;

/// The smallest number of rounds of host messages while a call waits.
const ROUNDS: usize = 200;

/// The length of a short message that needs more than one cell of a ring.
const LEN: usize = 1000;

fn stand_in(kind: &str) -> StandIn {
    StandIn::of(match kind {
        "cuda" => "libcuda.so.1",
        "hip" => "libamdhip64.so.7",
        _ => "libze_loader.so.1",
    })
}

fn pattern(rank: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 251 + rank * 31 + 1) as u8).collect()
}

/// Allocates a device buffer with the bytes of this rank.
fn own(messages: &Messages<AnyMemory>, rank: usize, len: usize) -> Buffer {
    let buffer = Buffer::from_address(messages.memory().alloc(len).unwrap(), len);
    messages.write(&buffer, 0, &pattern(rank, len)).unwrap();
    buffer
}

fn bytes(messages: &Messages<AnyMemory>, buffer: &Buffer) -> Vec<u8> {
    let mut bytes = vec![0; buffer.len()];
    messages.read(buffer, 0, &mut bytes).unwrap();
    bytes
}

/// Makes progress until a copy is in flight. It begins once another thread has pinned the inbox.
fn until_under_way(messages: &mut Messages<AnyMemory>, stub: &StandIn) {
    while stub.ask("stub_under_way") != 1 {
        messages.progress();
    }
}

/// Rank 0 sends a short message from device memory, which rank 1 receives into device memory. Meanwhile both exchange
/// other messages.
fn short_messages(kind: &str, world: World) {
    let mut messages = Messages::start(&world, AnyMemory::open(kind, 0).unwrap()).unwrap();
    let (rank, stub) = (world.rank(), stand_in(kind));
    let buffer = own(&messages, rank, LEN);
    messages.barrier().unwrap();
    let blocked = stub.ask("stub_blocked");
    let mut word = [0];
    if rank == 0 {
        let sent = messages.isend(1, 1, &buffer).unwrap();
        messages.recv(1, 2, &mut word).unwrap();
        until_under_way(&mut messages, &stub);
        assert_eq!(messages.test(sent).unwrap(), None, "the copy is still in flight");
        assert_eq!(stub.ask("stub_let_go"), 0);
        messages.wait(sent).unwrap();
        messages.send(1, 3, &[1]).unwrap();
    } else {
        let received = messages.irecv(0, 1, &buffer).unwrap();
        messages.send(0, 2, &[1]).unwrap();
        // This message arrives after the one in flight.
        messages.recv(0, 3, &mut word).unwrap();
        until_under_way(&mut messages, &stub);
        assert_eq!(messages.test(received).unwrap(), None, "the copy is still in flight");
        assert_eq!(stub.ask("stub_let_go"), 0);
        messages.wait(received).unwrap();
    }
    assert_eq!(stub.ask("stub_blocked"), blocked, "a call waited for a copy");
    assert!(bytes(&messages, &buffer) == pattern(0, LEN));
    messages.finish().unwrap();
    world.finish().unwrap();
}

fn short_messages_over(kind: &str, name: &str) {
    over_stub(kind, &[("STUB_HOLD", "1")], name, |world| short_messages(kind, world));
}

#[test]
fn short_messages_of_cuda_advance_during_a_kernel() {
    short_messages_over("cuda", "kernel_runs::short_messages_of_cuda_advance_during_a_kernel");
}

#[test]
fn short_messages_of_hip_advance_during_a_kernel() {
    short_messages_over("hip", "kernel_runs::short_messages_of_hip_advance_during_a_kernel");
}

#[test]
fn short_messages_of_level_zero_advance_during_a_kernel() {
    short_messages_over("ze", "kernel_runs::short_messages_of_level_zero_advance_during_a_kernel");
}

/// Puts and gets of mapped parts and of the own part return when their bytes have arrived, and no driver call waits.
fn windows(kind: &str, world: World) {
    const PART: usize = 3 << 20;
    let mut messages = Messages::start(&world, AnyMemory::open(kind, 0).unwrap()).unwrap();
    let (rank, other, stub) = (world.rank(), 1 - world.rank(), stand_in(kind));
    let (part, source) = (own(&messages, rank, PART), own(&messages, rank, PART));
    let window = messages.window(&part).unwrap();
    assert!(window.is_mapped(other));
    let blocked = stub.ask("stub_blocked");
    let (got, host) = (own(&messages, rank + 2, PART), Buffer::private(PART).unwrap());
    let before = stub.ask("stub_blocked");
    // Level Zero's list for synchronous copies executes each command at once, so its stub counts no wait.
    assert!(
        before > blocked || kind == "ze",
        "a synchronous write must count as a wait, else this test shows nothing"
    );
    messages.put(&window, WindowPlace::new(other, 0), &source).unwrap();
    messages.fence(&window).unwrap();
    messages.get(&window, WindowPlace::new(other, 0), &got).unwrap();
    messages.get(&window, WindowPlace::new(rank, 0), &host).unwrap();
    messages.put(&window, WindowPlace::new(rank, 0), &host.part(0, LEN).unwrap()).unwrap();
    assert_eq!(stub.ask("stub_blocked"), before, "a call waited for a copy");
    let mut found = vec![0; PART];
    host.read(0, &mut found).unwrap();
    assert!(found == pattern(other, PART), "put");
    assert!(bytes(&messages, &got) == pattern(rank, PART), "got");
    messages.fence(&window).unwrap();
    messages.free(window).unwrap();
    messages.finish().unwrap();
    world.finish().unwrap();
}

fn windows_over(kind: &str, name: &str) {
    over_stub(kind, &[("STUB_HOLD", "1"), ("STUB_LATE", "50")], name, |world| windows(kind, world));
}

#[test]
fn windows_of_cuda_wait_for_no_copy() {
    windows_over("cuda", "kernel_runs::windows_of_cuda_wait_for_no_copy");
}

#[test]
fn windows_of_hip_wait_for_no_copy() {
    windows_over("hip", "kernel_runs::windows_of_hip_wait_for_no_copy");
}

#[test]
fn windows_of_level_zero_wait_for_no_copy() {
    windows_over("ze", "kernel_runs::windows_of_level_zero_wait_for_no_copy");
}

/// Exchanges messages of host memory, at least [`ROUNDS`] rounds, until a driver call of rank 1 waits for the kernel
/// that runs there. Returns, at rank 1, the number of waiting calls and whether the kernel runs.
fn go_on_until_a_call_waits(messages: &mut Messages<AnyMemory>, stub: &StandIn) -> [u64; 2] {
    let mut word = [0];
    if messages.rank() == 0 {
        while word != [1] {
            messages.recv(1, 2, &mut word).unwrap();
            messages.send(1, 3, &word).unwrap();
        }
        return [0; 2];
    }
    let mut round = 0;
    loop {
        let seen = [stub.ask("stub_kernel_waiting"), stub.ask("stub_kernel_runs")];
        let is_over = round >= ROUNDS && seen != [0, 1];
        messages.send(0, 2, &[u8::from(is_over)]).unwrap();
        messages.recv(0, 3, &mut word).unwrap();
        if is_over {
            return seen;
        }
        round += 1;
    }
}

/// Rank 1 maps and unmaps memory of rank 0 while a kernel runs at rank 1. Host messages between the two advance, and
/// the message that needs the mapping waits.
fn mappings(kind: &str, sort: &str, world: World) {
    let mut messages = Messages::start(&world, AnyMemory::open(kind, 0).unwrap()).unwrap();
    messages.choose_method(MethodChoice::Fixed(CopyMethod::Pull));
    let (rank, stub) = (world.rank(), stand_in(kind));
    let buffer = make_buffer(messages.memory(), if rank == 0 { sort } else { "plain" });
    messages.write(&buffer, 0, &pattern(rank, buffer.len())).unwrap();
    messages.barrier().unwrap();
    let long = match rank {
        0 => messages.isend(1, 1, &buffer).unwrap(),
        _ => {
            stub.ask("stub_run_kernel");
            messages.irecv(0, 1, &buffer).unwrap()
        }
    };
    let seen = go_on_until_a_call_waits(&mut messages, &stub);
    if rank == 1 {
        assert_eq!(seen, [1, 1], "the thread that makes progress waited for the kernel");
        assert_eq!(messages.test(long).unwrap(), None, "the message's memory is not mapped yet");
        stub.ask("stub_end_kernel");
    }
    messages.wait(long).unwrap();
    assert!(bytes(&messages, &buffer) == pattern(0, buffer.len()));
    assert_eq!(messages.counts().fallbacks, 0, "the message used no fallback");
    let address = buffer.address().unwrap();
    messages.barrier().unwrap();
    if rank == 1 {
        stub.ask("stub_run_kernel");
    }
    messages.barrier().unwrap();
    if rank == 0 {
        assert!(messages.release_export(address));
    }
    let seen = go_on_until_a_call_waits(&mut messages, &stub);
    if rank == 0 {
        assert!(messages.is_exported(address, 1), "the other rank still has the memory mapped");
        messages.send(1, 4, &[0]).unwrap();
        while messages.is_exported(address, 1) {
            messages.progress();
        }
    } else {
        assert_eq!(seen, [1, 1], "the thread that makes progress waited for the kernel");
        messages.recv(0, 4, &mut [0]).unwrap();
        stub.ask("stub_end_kernel");
    }
    messages.finish().unwrap();
    world.finish().unwrap();
}

fn mappings_over(kind: &str, sort: &str, name: &str) {
    over_stub(kind, &[], name, |world| mappings(kind, sort, world));
}

#[test]
fn mappings_of_cuda_block_no_progress() {
    mappings_over("cuda", "plain", "kernel_runs::mappings_of_cuda_block_no_progress");
}

#[test]
fn mappings_of_segments_block_no_progress() {
    mappings_over("cuda", "either", "kernel_runs::mappings_of_segments_block_no_progress");
}

#[test]
fn mappings_of_hip_block_no_progress() {
    mappings_over("hip", "plain", "kernel_runs::mappings_of_hip_block_no_progress");
}

#[test]
fn mappings_of_level_zero_block_no_progress() {
    mappings_over("ze", "plain", "kernel_runs::mappings_of_level_zero_block_no_progress");
}

/// Rank 1 starts while a kernel runs there, so its inboxes are not pinned yet. Messages of host memory arrive, and a
/// message of device memory waits.
fn pins(kind: &str, world: World) {
    let memory = AnyMemory::open(kind, 0).unwrap();
    let (rank, stub, addr) = (world.rank(), stand_in(kind), memory.alloc(LEN).unwrap());
    if rank == 1 {
        stub.ask("stub_run_kernel");
    }
    let mut messages = Messages::start(&world, memory).unwrap();
    let seen = go_on_until_a_call_waits(&mut messages, &stub);
    let buffer = Buffer::from_address(addr, LEN);
    messages.write(&buffer, 0, &pattern(rank, LEN)).unwrap();
    if rank == 0 {
        let sent = messages.isend(1, 1, &buffer).unwrap();
        messages.wait(sent).unwrap();
        go_on_until_a_call_waits(&mut messages, &stub);
    } else {
        assert_eq!(seen, [1, 1], "the thread that makes progress waited for the kernel");
        let received = messages.irecv(0, 1, &buffer).unwrap();
        assert_eq!(go_on_until_a_call_waits(&mut messages, &stub), [1, 1]);
        assert_eq!(messages.test(received).unwrap(), None, "the inbox is not pinned yet");
        stub.ask("stub_end_kernel");
        messages.wait(received).unwrap();
    }
    assert!(bytes(&messages, &buffer) == pattern(0, LEN));
    while stub.ask("stub_pins") != 2 {
        messages.progress();
    }
    messages.finish().unwrap();
    assert_eq!(stub.ask("stub_pins"), 0);
    world.finish().unwrap();
}

fn pins_over(kind: &str, name: &str) {
    over_stub(kind, &[], name, |world| pins(kind, world));
}

#[test]
fn pins_of_cuda_block_no_progress() {
    pins_over("cuda", "kernel_runs::pins_of_cuda_block_no_progress");
}

#[test]
fn pins_of_hip_block_no_progress() {
    pins_over("hip", "kernel_runs::pins_of_hip_block_no_progress");
}

/// Rank 2 leaves while a kernel runs at rank 1, which unpins the inboxes that it shared with rank 2. Messages between
/// ranks 0 and 1 arrive.
fn ended_pins(kind: &str, world: World) {
    let mut messages = Messages::start(&world, AnyMemory::open(kind, 0).unwrap()).unwrap();
    let (rank, stub) = (world.rank(), stand_in(kind));
    while stub.ask("stub_pins") != 4 {
        messages.progress();
    }
    if rank == 1 {
        stub.ask("stub_run_kernel");
    }
    world.barrier().unwrap();
    if rank == 2 {
        drop(messages);
        assert_eq!(stub.ask("stub_pins"), 0);
        return world.finish().unwrap();
    }
    let seen = go_on_until_a_call_waits(&mut messages, &stub);
    if rank == 1 {
        assert_eq!(seen, [1, 1], "the thread that makes progress waited for the kernel");
        assert_eq!(stub.ask("stub_pins"), 4);
        stub.ask("stub_end_kernel");
    }
    // Rank 2 may leave meanwhile.
    while stub.ask("stub_pins") > 2 {
        messages.progress();
    }
    drop(messages);
    assert_eq!(stub.ask("stub_pins"), 0);
    world.finish().unwrap();
}

fn ended_pins_over(kind: &str, name: &str) {
    ranks_over_stub(kind, 3, &[], name, |world| ended_pins(kind, world));
}

#[test]
fn ended_pins_of_cuda_block_no_progress() {
    ended_pins_over("cuda", "kernel_runs::ended_pins_of_cuda_block_no_progress");
}

#[test]
fn ended_pins_of_hip_block_no_progress() {
    ended_pins_over("hip", "kernel_runs::ended_pins_of_hip_block_no_progress");
}

/// Rank 1 releases a handle while a kernel runs there. The memory was freed before, so the driver frees it at the
/// release, which may wait.
#[test]
fn handles_of_level_zero_block_no_progress_when_released() {
    let name = "kernel_runs::handles_of_level_zero_block_no_progress_when_released";
    over_stub("ze", &[], name, |world: World| {
        let mut messages = Messages::start(&world, AnyMemory::open("ze", 0).unwrap()).unwrap();
        messages.choose_method(MethodChoice::Fixed(CopyMethod::Pull));
        let (rank, stub) = (world.rank(), stand_in("ze"));
        let buffer = own(&messages, rank, 1 << 20);
        let address = buffer.address().unwrap();
        if rank == 1 {
            let sent = messages.isend(0, 1, &buffer).unwrap();
            messages.wait(sent).unwrap();
            messages.memory().free(address).unwrap();
            stub.ask("stub_run_kernel");
            assert!(messages.release_export(address), "the memory was exported");
        } else {
            let received = messages.irecv(1, 1, &buffer).unwrap();
            messages.wait(received).unwrap();
            assert!(bytes(&messages, &buffer) == pattern(1, buffer.len()));
        }
        let seen = go_on_until_a_call_waits(&mut messages, &stub);
        if rank == 1 {
            assert_eq!(seen, [1, 1], "the thread that makes progress waited for the kernel");
            assert!(messages.is_exported(address, 1), "the driver still holds the memory");
            stub.ask("stub_end_kernel");
            while messages.is_exported(address, 1) {
                messages.progress();
            }
            assert_eq!((stub.ask("stub_gets"), stub.ask("stub_puts")), (1, 1));
        }
        messages.finish().unwrap();
        world.finish().unwrap();
    });
}

/// Rank 1 puts a buffer in rows to its own part while a kernel runs there. The second row is on a device that has no
/// stream yet. A message that arrives meanwhile is received, and the kernel ends only then.
#[test]
fn rows_on_another_device_block_no_progress() {
    const HALF: usize = 256 << 10;
    let name = "kernel_runs::rows_on_another_device_block_no_progress";
    over_stub("cuda", &[("STUB_DEVICES", "2")], name, |world: World| {
        let mut messages = Messages::start(&world, AnyMemory::open("cuda", 0).unwrap()).unwrap();
        let (rank, stub) = (world.rank(), stand_in("cuda"));
        let (part, host) = (Buffer::private(2 * HALF).unwrap(), Buffer::private(100_000).unwrap());
        let both = make_buffer(messages.memory(), "two devices");
        let window = messages.window(&part).unwrap();
        if rank == 0 {
            host.write(0, &[7; 100_000]).unwrap();
            let sent = messages.isend(1, 1, &host).unwrap();
            messages.wait(sent).unwrap();
        } else {
            let rows = both.in_rows(LEN, HALF).unwrap();
            let received = messages.irecv(0, 1, &host).unwrap();
            stub.ask("stub_run_kernel");
            let kernel_ran = std::thread::scope(|scope| {
                let ends = scope.spawn(|| {
                    let (mut last, stub) = ([0], stand_in("cuda"));
                    while last != [7] && stub.ask("stub_kernel_runs") == 1 {
                        host.read(99_999, &mut last).unwrap();
                    }
                    let ran = stub.ask("stub_kernel_runs");
                    stub.ask("stub_end_kernel");
                    ran
                });
                messages.put(&window, WindowPlace::new(1, 0), &rows).unwrap();
                ends.join().unwrap()
            });
            assert_eq!(kernel_ran, 1, "the thread that makes progress waited for the kernel");
            messages.wait(received).unwrap();
        }
        messages.fence(&window).unwrap();
        messages.free(window).unwrap();
        messages.finish().unwrap();
        world.finish().unwrap();
    });
}

/// Messages that are dropped before the driver has pinned their inboxes leave no pin. Their end waits for the driver's
/// call.
#[test]
fn dropped_messages_leave_no_pin_behind() {
    let name = "kernel_runs::dropped_messages_leave_no_pin_behind";
    over_stub("cuda", &[], name, |world: World| {
        let memory = AnyMemory::open("cuda", 0).unwrap();
        let stub = stand_in("cuda");
        stub.ask("stub_run_kernel");
        let messages = Messages::start(&world, memory).unwrap();
        while stub.ask("stub_kernel_waiting") == 0 {
            assert_eq!(
                stub.ask("stub_kernel_runs"),
                1,
                "the thread that makes progress waited for the kernel"
            );
        }
        std::thread::scope(|scope| {
            scope.spawn(|| drop(messages));
            stub.ask("stub_end_kernel");
        });
        assert_eq!(stub.ask("stub_pins"), 0);
        world.finish().unwrap();
    });
}
