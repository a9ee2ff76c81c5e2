//! Dispatch as in a mixture of experts: each rank is an expert, each token goes to the expert that it was routed to, and comes back changed. Who
//! gets how many nobody knows before: the number comes as the value of the signal behind the tokens.
//!
//! `cargo run --release --example device_dispatch [-- RANKS]`, or under a launcher: `trunkline run -n 4 target/release/examples/device_dispatch`

use std::process::ExitCode;
use std::time::Instant;

use trunkline::World;
use trunkline::device::{DeviceError, Kernel, KernelError, Mode, Window, WindowConfig, With};

/// Tokens of a rank, and words of each.
const TOKENS: usize = 500;
const WORDS: usize = 16;
const ROUNDS: u64 = 20;
/// Bytes of a token, and of a row: what one rank may give another.
const TOKEN: u64 = 8 * WORDS as u64;
const ROW: u64 = TOKENS as u64 * TOKEN;
const SENT: u32 = 0;
const BACK: u32 = 1;

type Token = [u64; WORDS];

/// What one thread of each rank runs. The window has rows for each rank: to send from, to receive into, and for what comes back. `heard` is what each
/// rank has raised its signal to so far.
fn dispatch(
    kernel: &Kernel<'_>,
    window: &Window,
    tokens: &mut [Token],
    heard: &mut [u64],
) -> Result<(), Failed> {
    let (rank, size) = (kernel.rank(), kernel.size());
    let row = |area: usize, rank: usize| ((area * size + rank) as u64) * ROW;
    for expert in (0..size).map(|step| (rank + step) % size) {
        let mine: Vec<Token> =
            tokens.iter().filter(|token| expert_of(token, size) == expert).copied().collect();
        window.write(row(0, expert), bytemuck::cast_slice(&mine))?;
        let with = With { signal: Some((SENT, mine.len() as u64 + 1)), counter: None };
        kernel.put(expert, row(1, rank), row(0, expert), mine.len() as u64 * TOKEN, with)?;
    }
    for (by, heard) in heard.iter_mut().enumerate() {
        let before = std::mem::replace(heard, kernel.wait_signal(by, SENT, *heard + 1)?);
        let count = *heard - before - 1;
        change(window, row(1, by), count, rank)?;
        kernel.put(by, row(2, rank), row(1, by), count * TOKEN, With::signal(BACK))?;
    }
    kernel.barrier(0)?; // all have done so: what is for this rank is there
    for expert in 0..size {
        let own = tokens.iter_mut().filter(|token| expert_of(token, size) == expert);
        for (nth, token) in own.enumerate() {
            window.read(row(2, expert) + nth as u64 * TOKEN, bytemuck::cast_slice_mut(token))?;
        }
    }
    Ok(kernel.barrier(0)?) // and has read it
}

fn expert_of(token: &Token, size: usize) -> usize {
    token[0] as usize % size
}

/// What an expert does with tokens.
fn change(window: &Window, at: u64, count: u64, expert: usize) -> Result<(), Failed> {
    let mut tokens: Vec<Token> = vec![[0; WORDS]; count as usize];
    window.read(at, bytemuck::cast_slice_mut(&mut tokens))?;
    tokens.iter_mut().for_each(|token| token[1..].iter_mut().for_each(|word| *word += expert as u64 + 1));
    Ok(window.write(at, bytemuck::cast_slice(&tokens))?)
}

#[derive(Debug, thiserror::Error)]
enum Failed {
    #[error(transparent)]
    Kernel(#[from] KernelError),
    #[error(transparent)]
    Window(#[from] DeviceError),
}

fn main() -> ExitCode {
    let ranks = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(4);
    trunkline::launch(ranks, run)
}

fn token(rank: usize, at: usize, round: u64) -> Token {
    let mut token = [(rank * 7919 + at * 31) as u64 + round; WORDS];
    // Routes are uneven: the lower the number, the more.
    token[0] = (token[0] * token[0]) >> 3;
    token
}

fn run(world: &World) -> Result<(), Box<dyn std::error::Error>> {
    let devices = world.devices(Mode::Thread)?;
    let bytes = 3 * world.size() as u64 * ROW;
    let window = devices.window(world, WindowConfig { bytes, signals: 2, ..WindowConfig::default() })?;
    let mut heard = vec![0; world.size()];
    let began = Instant::now();
    for round in 0..ROUNDS {
        let before: Vec<Token> = (0..TOKENS).map(|at| token(world.rank(), at, round)).collect();
        let mut tokens = before.clone();
        let kernel = window.kernel(0)?;
        let run = || dispatch(&{ kernel }, &window, &mut tokens, &mut heard);
        std::thread::scope(|scope| scope.spawn(run).join()).map_err(|_| "the kernel has panicked")??;
        for (before, after) in before.iter().zip(&tokens) {
            let expert = before[0] % world.size() as u64;
            assert_eq!(after[0], before[0]);
            assert!((1..WORDS).all(|word| after[word] == before[word] + expert + 1), "{before:?} {after:?}");
        }
    }
    if world.rank() == 0 {
        let each = began.elapsed().as_secs_f64() * 1e6 / ROUNDS as f64;
        println!("{TOKENS} tokens a rank, {} ranks, {ROUNDS} rounds: {each:.0} us each", world.size());
        println!("every token was at its expert and came back: OK");
    }
    window.free(world)?;
    Ok(())
}
