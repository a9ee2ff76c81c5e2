//! Heat that spreads along a rod, by kernels: each writes the cells at its ends into its neighbours' halos, a signal goes with them, and nobody else is
//! waited for.
//!
//! `cargo run --release --example device_halo [-- RANKS]`, or under a launcher: `trunkline run -n 4 target/release/examples/device_halo`

use std::process::ExitCode;
use std::time::Instant;

use trunkline::World;
use trunkline::device::{DeviceError, Kernel, KernelError, Mode, Window, WindowConfig, With};

const CELLS: usize = 1000;
const STEPS: usize = 500;

/// What one thread of each rank runs. Words 0 and 1 of the window are its ends, to be put; from word 2 on halos: for each of two steps the left and the right one.
fn simulate(kernel: &Kernel<'_>, window: &Window, cells: &mut [f64]) -> Result<(), Failed> {
    let (left, right) =
        (kernel.rank().checked_sub(1), Some(kernel.rank() + 1).filter(|next| *next < kernel.size()));
    for step in 0..STEPS {
        let (turn, ends) = (2 + 2 * (step as u64 % 2), [cells[0], cells[cells.len() - 1]]);
        kernel.flush()?; // the ends of the last step are on their way
        window.write(0, bytemuck::bytes_of(&ends))?;
        // My first cell is the right halo of the rank on the left, and so on.
        for (to, halo, end) in [(left, 1, 0), (right, 0, 1)] {
            if let Some(to) = to {
                kernel.put(to, 8 * (turn + halo), 8 * end, 8, With::signal(0))?;
            }
        }
        let mut halos = ends;
        for (from, halo) in [(left, 0), (right, 1)] {
            if let Some(from) = from {
                kernel.wait_signal(from, 0, step as u64 + 1)?;
                window.read(8 * (turn + halo), bytemuck::bytes_of_mut(&mut halos[halo as usize]))?;
            }
        }
        spread(cells, halos);
    }
    Ok(kernel.flush()?)
}

/// One step of all cells between two others.
fn spread(cells: &mut [f64], [mut before, right]: [f64; 2]) {
    for at in 0..cells.len() {
        let (cell, after) = (cells[at], cells.get(at + 1).copied().unwrap_or(right));
        cells[at] = cell + 0.25 * (before - 2.0 * cell + after);
        before = cell;
    }
}

#[derive(Debug, thiserror::Error)]
enum Failed {
    #[error(transparent)]
    Kernel(#[from] KernelError),
    #[error(transparent)]
    Window(#[from] DeviceError),
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
    let devices = world.devices(Mode::Thread)?;
    let window = devices.window(world, WindowConfig { bytes: 64, signals: 1, ..WindowConfig::default() })?;
    let rod = world.alloc::<f64>(CELLS)?;
    let mut cells: Vec<f64> = (first..end).map(start).collect();
    let kernel = window.kernel(0)?;
    let began = Instant::now();
    let ran = std::thread::scope(|scope| scope.spawn(|| simulate(&{ kernel }, &window, &mut cells)).join());
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
        assert!(rod.to_vec() == alone, "the rod is not what one process makes of it");
        let each = took.as_secs_f64() * 1e6 / STEPS as f64;
        println!("{CELLS} cells, {STEPS} steps, {size} ranks: {each:.1} us a step");
        println!("every cell is what one process computes: OK");
    }
    window.free(world)?;
    Ok(())
}
