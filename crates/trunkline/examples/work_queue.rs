//! Work that is unevenly distributed at first: rank 0 has all tasks. An idle rank steals half of another rank's
//! remaining tasks with one compare-and-swap. Each result is stored at a ticket, a number that a fetch-and-add returns.
//!
//! `cargo run --release --example work_queue [-- RANKS]`, or under a launcher: `trunkline run -n 4
//! target/release/examples/work_queue`

use std::process::ExitCode;
use std::time::Instant;

use trunkline::{Error, Symmetric, SymmetricSlice, World};

const TASKS: u64 = 400;

fn main() -> ExitCode {
    let ranks = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(4);
    trunkline::launch(ranks, work)
}

/// Packs the remaining tasks of a rank into one word: the first one, and the one after the last.
fn packed(first: u64, end: u64) -> u64 {
    first << 32 | end
}

fn unpacked(word: u64) -> (u64, u64) {
    (word >> 32, word & 0xffff_ffff)
}

/// Counts steps of Collatz sequences: some tasks take much longer than others.
fn task(number: u64) -> u64 {
    let steps = |mut n: u64| {
        let mut steps = 0;
        while n > 1 {
            n = if n.is_multiple_of(2) { n / 2 } else { 3 * n + 1 };
            steps += 1;
        }
        steps
    };
    (1..=2000).map(|at| steps(1_000_003 * number + at)).sum()
}

/// Takes one task of this rank. Other ranks may steal from it at the same time.
fn take(world: &World, left: &Symmetric<u64>) -> Result<Option<u64>, Error> {
    loop {
        let seen = left.load();
        let (first, end) = unpacked(seen);
        if first == end {
            return Ok(None);
        }
        if world.compare_swap(world.rank(), left, seen, packed(first + 1, end))? == seen {
            return Ok(Some(first));
        }
    }
}

/// Moves the second half of a rank's remaining tasks to the queue of this rank, which is empty.
fn steal(world: &World, from: usize, left: &Symmetric<u64>) -> Result<bool, Error> {
    let seen = world.fetch(from, left)?;
    let (first, end) = unpacked(seen);
    let middle = end - (end - first).div_ceil(2);
    if first == end || world.compare_swap(from, left, seen, packed(first, middle))? != seen {
        return Ok(false);
    }
    left.store(packed(middle, end));
    Ok(true)
}

fn work(world: &World) -> Result<(), Error> {
    let (rank, size) = (world.rank(), world.size());
    let left = world.alloc_one::<u64>()?;
    let tickets = world.alloc_one::<u64>()?;
    // On rank 0, by ticket: the task, its result, and the rank that executed it.
    let results = world.alloc::<[u64; 3]>(TASKS as usize)?;
    if rank == 0 {
        left.store(packed(0, TASKS));
    }
    world.barrier()?;
    let began = Instant::now();
    let mut steals = 0_u64;
    while world.fetch(0, &tickets)? < TASKS {
        while let Some(number) = take(world, &left)? {
            let result = [number, task(number), rank as u64];
            let ticket = world.fetch_inc(0, &tickets)?;
            world.put(0, results.at(ticket as usize), &[result])?;
        }
        for step in 1..size {
            if steal(world, (rank + step) % size, &left)? {
                steals += 1;
                break;
            }
        }
    }
    let all = world.alloc::<u64>(size)?;
    world.all_gather(&[steals], &all)?;
    if rank == 0 {
        report(&results, &all.to_vec(), began.elapsed().as_secs_f64());
    }
    Ok(())
}

fn report(results: &SymmetricSlice<[u64; 3]>, steals: &[u64], seconds: f64) {
    let mut results = results.to_vec();
    results.sort_unstable();
    for (number, &[of, result, _]) in (0..TASKS).zip(&results) {
        assert!(of == number && result == task(number), "task {number} was lost or done twice");
    }
    println!("{TASKS} tasks, {} ranks: {:.0} ms", steals.len(), 1e3 * seconds);
    for (rank, steals) in steals.iter().enumerate() {
        let done = results.iter().filter(|result| result[2] == rank as u64).count();
        println!("rank {rank}: {done:4} tasks, {steals} steals  {}", "#".repeat(done / 8));
    }
    println!("every task was executed once, with the right result: OK");
}
