//! Heat that spreads along a rod. Each rank has a part of the rod, and puts the cells at its ends into the halos of the
//! ranks beside it, followed by a signal. No rank makes a receive call.
//!
//! `cargo run --release --example halo_exchange [-- RANKS]`, or under a launcher: `trunkline run -n 4
//! target/release/examples/halo_exchange`

use std::process::ExitCode;
use std::time::Instant;

use trunkline::{Compare, Error, SignalOp, World};

const CELLS: usize = 1000;
const STEPS: usize = 2000;

fn main() -> ExitCode {
    let ranks = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(4);
    trunkline::launch(ranks, simulate)
}

/// Returns a cell's value after one step, between two others.
fn spread(left: f64, cell: f64, right: f64) -> f64 {
    cell + 0.25 * (left - 2.0 * cell + right)
}

fn start(cell: usize) -> f64 {
    if cell < CELLS / 10 { 100.0 } else { 0.0 }
}

fn simulate(world: &World) -> Result<(), Error> {
    let (rank, size) = (world.rank(), world.size());
    let (first, end) = (rank * CELLS / size, (rank + 1) * CELLS / size);
    // Two halos per side alternate, because the rank beside this one may be a step ahead. `steps` counts the steps that
    // each of the two ranks has written.
    let halos = world.alloc::<f64>(4)?;
    let steps = world.alloc::<u64>(2)?;
    let rod = world.alloc::<f64>(CELLS)?;
    let mut cells: Vec<f64> = (first..end).map(start).collect();
    let began = Instant::now();
    for step in 0..STEPS {
        let turn = 2 * (step % 2);
        let (mut left, mut right) = (cells[0], cells[cells.len() - 1]);
        // The first cell of this rank is the right halo of the rank on its left, and the reverse.
        if rank > 0 {
            world.put_signal(rank - 1, halos.at(turn + 1), &[left], steps.at(1), SignalOp::Add, 1)?;
        }
        if rank + 1 < size {
            world.put_signal(rank + 1, halos.at(turn), &[right], steps.at(0), SignalOp::Add, 1)?;
        }
        if rank > 0 {
            world.wait_until(steps.at(0), Compare::Greater, step as u64, rank - 1)?;
            left = halos.load(turn);
        }
        if rank + 1 < size {
            world.wait_until(steps.at(1), Compare::Greater, step as u64, rank + 1)?;
            right = halos.load(turn + 1);
        }
        let old = cells.clone();
        for (at, cell) in cells.iter_mut().enumerate() {
            let before = if at > 0 { old[at - 1] } else { left };
            *cell = spread(before, old[at], old.get(at + 1).copied().unwrap_or(right));
        }
    }
    let took = began.elapsed();
    world.put(0, rod.at(first), &cells)?;
    world.barrier()?;
    if rank == 0 {
        report(&rod.to_vec(), size, took.as_secs_f64());
    }
    Ok(())
}

/// Compares the rod with that of one process, and prints it.
fn report(rod: &[f64], size: usize, seconds: f64) {
    let mut alone: Vec<f64> = (0..CELLS).map(start).collect();
    for _ in 0..STEPS {
        let old = alone.clone();
        for at in 0..CELLS {
            let right = old[(at + 1).min(CELLS - 1)];
            alone[at] = spread(old[at.saturating_sub(1)], old[at], right);
        }
    }
    assert!(rod == alone, "the rod differs from that of one process");
    println!("{CELLS} cells, {STEPS} steps, {size} ranks: {:.1} us per step", 1e6 * seconds / STEPS as f64);
    for part in rod.chunks(CELLS / 10) {
        let heat = part.iter().sum::<f64>() / part.len() as f64;
        println!("{heat:6.2} {}", "#".repeat((heat / 2.0).round() as usize));
    }
    println!("every cell equals that of one process: OK");
}
