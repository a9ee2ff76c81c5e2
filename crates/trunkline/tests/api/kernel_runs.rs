//! Messages and windows of memory of GPUs while a kernel runs, over libraries that stand for their drivers: copies do not land, and a call that waits for one is counted.

use trunkline::World;
use trunkline::messages::{AnyMemory, Buffer, Messages, Place};

use crate::gpus::over_stub;
use crate::stand_in::StandIn;

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
