//! Dispatch as in a mixture of experts: each rank is an expert. Each token is sent to the expert that it was routed to,
//! which changes it and sends it back. No rank knows in advance how many tokens it receives: the number arrives as the
//! value of the signal that follows the tokens.
//!
//! `cargo run --release --example device_dispatch [-- RANKS]`, or under a launcher: `trunkline run -n 4
//! target/release/examples/device_dispatch`

use std::process::ExitCode;
use std::time::Instant;

use trunkline::World;
use trunkline::device::{ExecutorMode, Kernel, KernelError, PutNotification, WindowConfig};

/// Tokens of a rank, and words of each.
const TOKENS: usize = 500;
const WORDS: usize = 16;
const ROUNDS: u64 = 20;
/// Bytes of a row: the most that one rank sends to another.
const ROW: u64 = 8 * (TOKENS * WORDS) as u64;
const SENT: u32 = 0;

type Token = [u64; WORDS];

/// The kernel, which one thread of each rank runs with its tokens for each expert. The window has three rows for each
/// rank: to send from, to receive into, and for the returned tokens.
fn dispatch(kernel: &Kernel<'_>, routed: &mut [Vec<Token>]) -> Result<(), KernelError> {
    let (rank, size) = (kernel.rank(), kernel.size());
    let row = |area: usize, rank: usize| ((area * size + rank) as u64) * ROW;
    for (expert, tokens) in routed.iter().enumerate() {
        let (bytes, with) =
            (bytemuck::cast_slice(tokens), PutNotification::signal_by(SENT, tokens.len() as u64 + 1));
        kernel.put_bytes(expert, row(1, rank), row(0, expert), bytes, with)?;
    }
    for by in 0..size {
        let mut came = vec![[0; WORDS]; kernel.take_signal(by, SENT, 1)? as usize - 1];
        kernel.read(row(1, by), bytemuck::cast_slice_mut(&mut came))?;
        came.iter_mut().for_each(|token| change(token, rank));
        kernel.put_bytes(by, row(2, rank), row(1, by), bytemuck::cast_slice(&came), PutNotification::NONE)?;
    }
    kernel.barrier(0)?; // all ranks have sent their tokens back, so those of this rank have arrived
    for (expert, tokens) in routed.iter_mut().enumerate() {
        kernel.read(row(2, expert), bytemuck::cast_slice_mut(tokens))?;
    }
    kernel.barrier(0) // all ranks have read their tokens
}

/// Changes a token, as its expert does.
fn change(token: &mut Token, expert: usize) {
    token[1..].iter_mut().for_each(|word| *word += expert as u64 + 1);
}

fn main() -> ExitCode {
    let ranks = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(4);
    trunkline::launch(ranks, run)
}

fn token(rank: usize, at: usize, round: u64) -> Token {
    let mut token = [(rank * 7919 + at * 31) as u64 + round; WORDS];
    // Routes are uneven: experts with low numbers get more tokens.
    token[0] = (token[0] * token[0]) >> 3;
    token
}

fn run(world: &World) -> Result<(), Box<dyn std::error::Error>> {
    let devices = world.devices(ExecutorMode::Thread)?;
    let bytes = 3 * world.size() as u64 * ROW;
    let window = devices.window(world, WindowConfig { bytes, signals: 1, ..WindowConfig::default() })?;
    let began = Instant::now();
    for round in 0..ROUNDS {
        let mut routed = vec![Vec::new(); world.size()];
        (0..TOKENS).map(|at| token(world.rank(), at, round)).for_each(|token| {
            routed[token[0] as usize % world.size()].push(token);
        });
        let mut tokens = routed.clone();
        let kernel = window.kernel(0)?;
        let run = || dispatch(&{ kernel }, &mut tokens);
        std::thread::scope(|scope| scope.spawn(run).join()).map_err(|_| "the kernel has panicked")??;
        for (expert, (before, after)) in routed.iter_mut().zip(&tokens).enumerate() {
            before.iter_mut().for_each(|token| change(token, expert));
            assert!(before == after, "tokens returned by expert {expert} in round {round}");
        }
    }
    if world.rank() == 0 {
        let each = began.elapsed().as_secs_f64() * 1e6 / ROUNDS as f64;
        println!("{TOKENS} tokens per rank, {} ranks, {ROUNDS} rounds: {each:.0} us each", world.size());
        println!("every token returned changed by its expert: OK");
    }
    window.free(world)?;
    Ok(())
}
