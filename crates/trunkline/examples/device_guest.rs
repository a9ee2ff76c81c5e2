//! Kernels in processes of their own: each rank lends a channel of its window to another process. The kernels of these
//! processes send numbers around the ring of all ranks; the rank itself only executes their entries.
//!
//! `cargo run --release --example device_guest [-- RANKS]`, or under a launcher: `trunkline run -n 4
//! target/release/examples/device_guest`

use std::process::{Command, ExitCode, Stdio};

use trunkline::World;
use trunkline::device::{GuestCard, GuestWindow, Kernel, KernelError, PutNotification, WindowConfig};

const ROUNDS: u64 = 100;

/// The kernel of the other process: sums the numbers of all ranks, each of which is sent once around the ring.
fn sum_around(kernel: &Kernel<'_>) -> Result<u64, KernelError> {
    let (rank, size) = (kernel.rank(), kernel.size());
    let (before, next) = ((rank + size - 1) % size, (rank + 1) % size);
    let (mut number, mut sum) = (rank as u64 + 1, 0);
    for _ in 0..size {
        kernel.put_bytes(next, 8, 0, &number.to_le_bytes(), PutNotification::signal(0))?;
        kernel.take_signal(before, 0, 1)?;
        let mut came = [0; 8];
        kernel.read(8, &mut came)?;
        number = u64::from_le_bytes(came);
        sum += number;
        kernel.barrier(0)?; // all ranks have read their numbers
    }
    Ok(sum)
}

fn guest() -> Result<(), Box<dyn std::error::Error>> {
    let window = GuestWindow::open(&GuestCard::read_from(&mut std::io::stdin())?)?;
    let kernel = window.kernel();
    let size = kernel.size() as u64;
    for _ in 0..ROUNDS {
        let sum = sum_around(&kernel)?;
        if sum != size * (size + 1) / 2 {
            return Err(format!("rank {}: {sum}", kernel.rank()).into());
        }
    }
    Ok(())
}

fn main() -> ExitCode {
    let word = std::env::args().nth(1);
    if word.as_deref() == Some("guest") {
        return match guest() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("device_guest: a guest: {error}");
                ExitCode::FAILURE
            }
        };
    }
    trunkline::launch(word.and_then(|text| text.parse().ok()).unwrap_or(4), run)
}

fn run(world: &World) -> Result<(), Box<dyn std::error::Error>> {
    let devices = world.devices_for_processes(8, 64)?;
    let window = devices
        .window(world, WindowConfig { bytes: 64, signals: 1, depth: 64, ..WindowConfig::default() })?;
    let mut command = Command::new(std::env::current_exe()?);
    let mut child = command.arg("guest").stdin(Stdio::piped()).spawn()?;
    let card = window.lend(0, child.id())?;
    if let Some(mut stdin) = child.stdin.take() {
        card.write_to(&mut stdin)?;
    }
    let status = child.wait()?;
    if !status.success() {
        return Err(format!("the guest of rank {} ended with {status}", world.rank()).into());
    }
    world.barrier()?;
    window.free(world)?;
    if world.rank() == 0 {
        println!("{} ranks, {ROUNDS} sums by kernels of other processes: OK", world.size());
    }
    Ok(())
}
