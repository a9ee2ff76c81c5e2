//! A histogram into which all ranks count at the same time. Its bins are distributed over the ranks, and each value
//! costs one atomic on the rank that has its bin.
//!
//! `cargo run --release --example histogram [-- RANKS]`, or under a launcher: `trunkline run -n 4
//! target/release/examples/histogram`

use std::process::ExitCode;
use std::time::Instant;

use trunkline::{Error, World};

const BINS: usize = 32;
const VALUES: u64 = 20_000;

fn main() -> ExitCode {
    let ranks = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(4);
    trunkline::launch(ranks, count)
}

/// Returns the values of a rank: sums of four numbers of 0 to 7 and one of 0 to 3, so that values in the middle are
/// likely.
fn values(rank: usize) -> impl Iterator<Item = usize> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(rank as u64 + 1);
    (0..VALUES).map(move |_| {
        // xorshift64
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (0..4).map(|die| (state >> (16 * die) & 7) as usize).sum::<usize>() + (state >> 60 & 3) as usize
    })
}

fn count(world: &World) -> Result<(), Error> {
    let (rank, size) = (world.rank(), world.size());
    // Bin b is on rank b % size, at place b / size.
    let bins = world.alloc::<u32>(BINS.div_ceil(size))?;
    world.barrier()?;
    let began = Instant::now();
    for value in values(rank) {
        world.inc(value % size, bins.at(value / size))?;
    }
    // The barrier begins with a quiet on each rank, so the counts of all ranks are in their bins afterwards.
    world.barrier()?;
    let took = began.elapsed();
    if rank == 0 {
        let mut counted = Vec::new();
        for bin in 0..BINS {
            counted.push(world.get_one(bin % size, bins.at(bin / size))?);
        }
        report(&counted, size, took.as_secs_f64());
    }
    Ok(())
}

/// Compares the bins with those of one process, and prints them.
fn report(counted: &[u32], size: usize, seconds: f64) {
    let mut alone = vec![0_u32; BINS];
    (0..size).flat_map(values).for_each(|value| alone[value] += 1);
    assert!(counted == alone, "a count is wrong: {counted:?} instead of {alone:?}");
    let all = VALUES * size as u64;
    println!(
        "{all} values, {BINS} bins, {size} ranks: {:.2} million atomics per second",
        all as f64 / seconds / 1e6
    );
    let most = counted.iter().copied().max().unwrap_or(1).max(1);
    for (bin, count) in counted.iter().enumerate() {
        println!("{bin:3} {count:7} {}", "#".repeat((50 * count / most) as usize));
    }
    println!("every bin equals that of one process: OK");
}
