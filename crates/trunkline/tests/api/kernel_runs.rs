//! Messages and windows of memory of GPUs while a kernel runs, over libraries that stand for their drivers: copies do not land, and a call that waits for one is counted.

use trunkline::World;
use trunkline::messages::{AnyMemory, Buffer, Choice, Messages, Method, Place};

use crate::gpus::over_stub;
use crate::kept::make_buffer;
use crate::stand_in::StandIn;

/// Rounds of messages of the host while a call waits, at least.
const ROUNDS: usize = 200;

/// Short, and more than a cell of a ring.
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

/// A buffer of the device, with bytes of this rank.
fn own(messages: &Messages<AnyMemory>, rank: usize, len: usize) -> Buffer {
    let buffer = Buffer::own(messages.memory().alloc(len).unwrap(), len);
    messages.write(&buffer, 0, &pattern(rank, len)).unwrap();
    buffer
}

fn bytes(messages: &Messages<AnyMemory>, buffer: &Buffer) -> Vec<u8> {
    let mut bytes = vec![0; buffer.len()];
    messages.read(buffer, 0, &mut bytes).unwrap();
    bytes
}

/// Rank 0 sends a short message of the device, and rank 1 receives it into its device; each exchanges others with the other one meanwhile.
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
        assert_eq!(messages.test(sent).unwrap(), None, "its copy has not landed");
        assert_eq!(stub.ask("stub_let_go"), 0);
        messages.wait(sent).unwrap();
        messages.send(1, 3, &[1]).unwrap();
    } else {
        let received = messages.irecv(0, 1, &buffer).unwrap();
        messages.send(0, 2, &[1]).unwrap();
        // It is behind the other message.
        messages.recv(0, 3, &mut word).unwrap();
        assert_eq!(messages.test(received).unwrap(), None, "its copy has not landed");
        assert_eq!(stub.ask("stub_under_way"), 1);
        assert_eq!(stub.ask("stub_let_go"), 0);
        messages.wait(received).unwrap();
    }
    assert_eq!(stub.ask("stub_blocked"), blocked, "a copy was waited for");
    assert!(bytes(&messages, &buffer) == pattern(0, LEN));
    messages.finish().unwrap();
    world.finish().unwrap();
}

fn short_messages_over(kind: &str, name: &str) {
    over_stub(kind, &[("STUB_HOLD", "1")], name, |world| short_messages(kind, world));
}

#[test]
fn short_messages_of_cuda_go_on_while_a_kernel_runs() {
    short_messages_over("cuda", "kernel_runs::short_messages_of_cuda_go_on_while_a_kernel_runs");
}

#[test]
fn short_messages_of_hip_go_on_while_a_kernel_runs() {
    short_messages_over("hip", "kernel_runs::short_messages_of_hip_go_on_while_a_kernel_runs");
}

#[test]
fn short_messages_of_level_zero_go_on_while_a_kernel_runs() {
    short_messages_over("ze", "kernel_runs::short_messages_of_level_zero_go_on_while_a_kernel_runs");
}

/// Puts and gets of parts that are mapped, and of the own part, come back when their bytes are there, and wait for no copy.
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
    // The list of Level Zero's that is waited for is one that does each command at once.
    assert!(before > blocked || kind == "ze", "what is written is waited for, or this shows nothing");
    messages.put(&window, Place::new(other, 0), &source).unwrap();
    messages.fence(&window).unwrap();
    messages.get(&window, Place::new(other, 0), &got).unwrap();
    messages.get(&window, Place::new(rank, 0), &host).unwrap();
    messages.put(&window, Place::new(rank, 0), &host.part(0, LEN).unwrap()).unwrap();
    assert_eq!(stub.ask("stub_blocked"), before, "a copy was waited for");
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

/// Exchanges messages of the host until a call of rank 1's driver waits for the kernel that runs there, at least [`ROUNDS`] times. Returns, of rank 1, the calls that wait then
/// and whether the kernel runs.
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

/// Rank 1 maps memory of rank 0, and unmaps it, while a kernel runs there: messages of the host between the two go on, and the message that needs the mapping waits.
fn mappings(kind: &str, sort: &str, world: World) {
    let mut messages = Messages::start(&world, AnyMemory::open(kind, 0).unwrap()).unwrap();
    messages.choose(Choice::Fixed(Method::Pull));
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
        assert_eq!(messages.test(long).unwrap(), None, "its memory is not mapped yet");
        stub.ask("stub_end_kernel");
    }
    messages.wait(long).unwrap();
    assert!(bytes(&messages, &buffer) == pattern(0, buffer.len()));
    assert_eq!(messages.counts().fallbacks, 0, "it was mapped");
    let address = buffer.address().unwrap();
    messages.barrier().unwrap();
    if rank == 1 {
        stub.ask("stub_run_kernel");
    }
    messages.barrier().unwrap();
    if rank == 0 {
        assert!(messages.release(address));
    }
    let seen = go_on_until_a_call_waits(&mut messages, &stub);
    if rank == 0 {
        assert!(messages.is_exported(address, 1), "the other rank has it mapped");
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
fn mappings_of_cuda_hold_up_nothing_while_a_kernel_runs() {
    mappings_over("cuda", "plain", "kernel_runs::mappings_of_cuda_hold_up_nothing_while_a_kernel_runs");
}

#[test]
fn mappings_of_segments_hold_up_nothing_while_a_kernel_runs() {
    mappings_over("cuda", "either", "kernel_runs::mappings_of_segments_hold_up_nothing_while_a_kernel_runs");
}

#[test]
fn mappings_of_hip_hold_up_nothing_while_a_kernel_runs() {
    mappings_over("hip", "plain", "kernel_runs::mappings_of_hip_hold_up_nothing_while_a_kernel_runs");
}

#[test]
fn mappings_of_level_zero_hold_up_nothing_while_a_kernel_runs() {
    mappings_over("ze", "plain", "kernel_runs::mappings_of_level_zero_hold_up_nothing_while_a_kernel_runs");
}
