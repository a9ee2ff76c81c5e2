//! Heat that spreads along a rod, by kernels: each sends the cells at its ends to the ranks beside it, as their halos,
//! and waits for theirs. It waits for no other rank.
//!
//! `cargo run --release --example device_halo [-- RANKS]`, or under a launcher: `trunkline run -n 4
//! target/release/examples/device_halo`

use std::process::ExitCode;
use std::time::Instant;

use trunkline::World;
use trunkline::device::{ExecutorMode, Kernel, KernelError, WindowConfig};

const CELLS: usize = 1000;
const STEPS: usize = 500;

/// The kernel, which one thread of each rank runs.
fn simulate(kernel: &Kernel<'_>, cells: &mut [f64]) -> Result<(), KernelError> {
    let (rank, last) = (kernel.rank(), kernel.size() - 1);
    for _ in 0..STEPS {
        let [first, end] = [cells[0], cells[cells.len() - 1]];
        let [mut left, mut right] = [first, end];
        if rank > 0 {
            kernel.send(rank - 1, bytemuck::bytes_of(&first))?;
        }
        if rank < last {
            kernel.send(rank + 1, bytemuck::bytes_of(&end))?;
            kernel.recv(rank + 1, bytemuck::bytes_of_mut(&mut right))?;
        }
        if rank > 0 {
            kernel.recv(rank - 1, bytemuck::bytes_of_mut(&mut left))?;
        }
        spread(cells, [left, right]);
    }
    kernel.flush()
}

/// Advances all cells by one step, between the cells `before` and `right`.
fn spread(cells: &mut [f64], [mut before, right]: [f64; 2]) {
    for at in 0..cells.len() {
        let (cell, after) = (cells[at], cells.get(at + 1).copied().unwrap_or(right));
        cells[at] = cell + 0.25 * (before - 2.0 * cell + after);
        before = cell;
    }
}

fn start(cell: usize) -> f64 {
    if cell < CELLS / 10 { 100.0 } else { 0.0 }
}

fn main() -> ExitCode {
    let ranks = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(4);
    trunkline::launch(ranks, run)
}

fn run(world: &World) -> Result<(), Box<dyn std::error::Error>> {
    let (rank, size) = (world.rank(), world.size());
    let (first, end) = (rank * CELLS / size, (rank + 1) * CELLS / size);
    let devices = world.devices(ExecutorMode::Thread)?;
    let window = devices.window(world, WindowConfig { chunks: 4, chunk: 16, ..WindowConfig::default() })?;
    let rod = world.alloc::<f64>(CELLS)?;
    let mut cells: Vec<f64> = (first..end).map(start).collect();
    let kernel = window.kernel(0)?;
    let began = Instant::now();
    let ran = std::thread::scope(|scope| scope.spawn(|| simulate(&{ kernel }, &mut cells)).join());
    ran.map_err(|_| "the kernel has panicked")??;
    let took = began.elapsed();
    world.put(0, rod.at(first), &cells)?;
    world.barrier()?;
    if rank == 0 {
        let mut alone: Vec<f64> = (0..CELLS).map(start).collect();
        for _ in 0..STEPS {
            let ends = [alone[0], alone[CELLS - 1]];
            spread(&mut alone, ends);
        }
        assert!(rod.to_vec() == alone, "the rod differs from that of one process");
        let each = took.as_secs_f64() * 1e6 / STEPS as f64;
        println!("{CELLS} cells, {STEPS} steps, {size} ranks: {each:.1} us per step");
        println!("every cell equals that of one process: OK");
    }
    window.free(world)?;
    Ok(())
}
