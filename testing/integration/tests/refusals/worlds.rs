//! A world of one rank, which is this process: one-sided operations, messages with a window, and windows over device queues.

use std::time::Duration;

use trunkline::World;
use trunkline::device::{ExecutorMode, PutNotification, WindowConfig};
use trunkline::messages::{Buffer, HostMemory, Messages, WindowPlace};

use crate::trials::{Case, Outcome, told};

/// Longest wait of a kernel.
const LIMIT: Duration = Duration::from_secs(6);
const HEAP: u64 = 1 << 20;

pub(crate) const ALL: &[Case] = &[
    ("one-sided work", one_sided),
    ("many allocations", allocations),
    ("messages", messages),
    ("windows that a thread executes", || windows(ExecutorMode::Thread)),
    ("windows that their kernels execute", || windows(ExecutorMode::Inline)),
    ("windows of other processes", lent_windows),
];

fn start() -> Result<World, String> {
    World::builder().heap(HEAP).passive(false).log(|_, _| ()).start().map_err(told)
}

/// Puts, gets, strided work and collective calls.
fn one_sided() -> Outcome {
    let world = start()?;
    let words = world.alloc::<u64>(4000).map_err(told)?;
    let mine = trunkline_proto::reserve::try_filled(7_u64, 4000).map_err(told)?;
    world.put(0, &words, &mine).map_err(told)?;
    let strides = trunkline::Strides { local: 2, remote: 1 };
    world.put_strided(0, words.at(0), &mine, strides, 2000).map_err(told)?;
    world.quiet().map_err(told)?;
    let all = world.alloc::<u64>(1000).map_err(told)?;
    world.all_gather(&mine[..1000], &all).map_err(told)?;
    if all.try_to_vec().map_err(told)?.iter().any(|word| *word != 7) {
        return Err("other words were read than were put".to_owned());
    }
    world.free(all).map_err(told)?;
    world.free(words).map_err(told)?;
    world.finish().map_err(told)
}

/// Many allocations, so that the table of the gaps between them is large.
fn allocations() -> Outcome {
    let world = start()?;
    let mut all = trunkline_proto::reserve::try_vec(600).map_err(told)?;
    for _ in 0..600 {
        all.push(Some(world.alloc::<u8>(1).map_err(told)?));
    }
    for first in 0..2 {
        for one in all.iter_mut().skip(first).step_by(2) {
            one.take().map_or(Ok(()), |one| world.free(one)).map_err(told)?;
        }
    }
    world.finish().map_err(told)
}

/// A window of messages in which only this rank has a part.
fn messages() -> Outcome {
    let world = start()?;
    let mut messages = Messages::start(&world, HostMemory::new().map_err(told)?).map_err(told)?;
    let buffers = [Buffer::private(100_000).map_err(told)?, Buffer::private(100_000).map_err(told)?];
    buffers[0].write(0, &[5; 64]).map_err(told)?;
    let window = messages.window(&buffers[1]).map_err(told)?;
    messages.put(&window, WindowPlace::new(0, 0), &buffers[0]).map_err(told)?;
    messages.fence(&window).map_err(told)?;
    messages.free(window).map_err(told)?;
    messages.all_to_all(&buffers[0], &buffers[1]).map_err(told)?;
    messages.finish().map_err(told)?;
    world.finish().map_err(told)
}

fn config() -> WindowConfig {
    let (signals, counters, lanes, channels) = (600, 600, 2, 2);
    WindowConfig { bytes: 1 << 16, signals, counters, lanes, channels, ..WindowConfig::default() }
}

/// A window whose kernel puts to its own rank.
fn windows(mode: ExecutorMode) -> Outcome {
    let world = start()?;
    let devices = world.devices(mode).map_err(told)?;
    let window = devices.window(&world, config()).map_err(told)?;
    let kernel = window.kernel(0).map_err(told)?.limit(LIMIT);
    window.write(0, &[5; 64]).map_err(told)?;
    let put = kernel.put(0, 1000, 0, 64, PutNotification::signal(1)).map_err(told)?;
    kernel.wait(put).map_err(told)?;
    kernel.wait_signal(0, 1, 1).map_err(told)?;
    kernel.flush().map_err(told)?;
    window.device_view().map_err(told)?;
    let mut bytes = [0; 64];
    window.read(1000, &mut bytes).map_err(told)?;
    if bytes != [5; 64] {
        return Err("other bytes were read than were put".to_owned());
    }
    window.free(&world).map_err(told)?;
    world.finish().map_err(told)
}

/// A window whose queues are in a memory file; one of its channels is lent to this process itself.
fn lent_windows() -> Outcome {
    let world = start()?;
    let devices = world.devices_for_processes(16, 64).map_err(told)?;
    let window = devices.window(&world, WindowConfig { depth: 64, ..config() }).map_err(told)?;
    let card = window.lend(1, std::process::id()).map_err(told)?;
    let mut bytes = Vec::new();
    card.write_to(&mut bytes).map_err(told)?;
    trunkline::device::GuestCard::read_from(&mut bytes.as_slice()).map_err(told)?;
    window.free(&world).map_err(told)?;
    world.finish().map_err(told)
}
