//! A sum of all ranks' vectors by a pipeline around the ring: each kernel adds its numbers to each chunk that arrives,
//! and forwards the chunk while later ones are still in flight.
//!
//! `cargo run --release --example device_ring [-- RANKS]`, or under a launcher: `trunkline run -n 4
//! target/release/examples/device_ring`

use std::process::ExitCode;
use std::time::Instant;

use trunkline::World;
use trunkline::device::{ExecutorMode, Kernel, KernelError, WindowConfig};

const NUMBERS: usize = 100_000;
const ROUNDS: u64 = 10;

/// The kernel, which one thread of each rank runs.
fn ring_sum(kernel: &Kernel<'_>, numbers: &mut [u64]) -> Result<(), KernelError> {
    let (rank, last) = (kernel.rank(), kernel.size() - 1);
    let (before, next) = ((rank + last) % kernel.size(), (rank + 1) % kernel.size());
    let bytes: &mut [u8] = bytemuck::cast_slice_mut(numbers);
    // Partial sums, each with one rank more, are sent from the first rank to the last one ...
    match rank {
        0 => kernel.send(next, bytes)?,
        _ if rank < last => kernel.reduce_forward(before, next, bytes, add)?,
        _ => kernel.reduce(before, bytes, add)?,
    }
    // ... which sends the total around the ring.
    match rank {
        _ if rank == last => kernel.send(next, bytes)?,
        _ if rank + 1 == last => kernel.recv(before, bytes)?,
        _ => kernel.forward(before, next, bytes)?,
    }
    kernel.flush()
}

fn add(mine: &mut [u8], theirs: &[u8]) {
    for (mine, theirs) in mine.chunks_exact_mut(8).zip(theirs.chunks_exact(8)) {
        let sum =
            bytemuck::pod_read_unaligned::<u64>(mine).wrapping_add(bytemuck::pod_read_unaligned(theirs));
        mine.copy_from_slice(bytemuck::bytes_of(&sum));
    }
}

fn main() -> ExitCode {
    let ranks = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(4);
    trunkline::launch(ranks, run)
}

fn run(world: &World) -> Result<(), Box<dyn std::error::Error>> {
    let devices = world.devices(ExecutorMode::Thread)?;
    let streams = WindowConfig { lanes: 2, chunks: 8, chunk: 16 << 10, ..WindowConfig::default() };
    let window = devices.window(world, streams)?;
    let number = |rank: usize, at: usize, round: u64| (rank as u64 + 1) * (at as u64 + round);
    let began = Instant::now();
    for round in 0..ROUNDS {
        let mut numbers: Vec<u64> = (0..NUMBERS).map(|at| number(world.rank(), at, round)).collect();
        let kernel = window.kernel(0)?;
        let run = || ring_sum(&{ kernel }, &mut numbers);
        std::thread::scope(|scope| scope.spawn(run).join()).map_err(|_| "the kernel has panicked")??;
        for (at, sum) in numbers.iter().enumerate() {
            let expected: u64 = (0..world.size()).map(|rank| number(rank, at, round)).sum();
            assert_eq!(*sum, expected, "number {at} of rank {} in round {round}", world.rank());
        }
    }
    if world.rank() == 0 {
        let each = began.elapsed().as_secs_f64() * 1e3 / ROUNDS as f64;
        println!("{NUMBERS} numbers, {} ranks, {ROUNDS} rounds: {each:.2} ms each", world.size());
        println!("every sum equals that of one process: OK");
    }
    window.free(world)?;
    Ok(())
}
