//! Messages of memory of GPUs while a kernel runs, over libraries that stand for their drivers: copies do not land, and a call that waits for one is counted.

use trunkline::World;
use trunkline::messages::{AnyMemory, Buffer, Messages};

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
