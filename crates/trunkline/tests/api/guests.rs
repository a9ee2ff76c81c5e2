//! Channels of windows that other processes of the host use, and the death of either side.

use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use trunkline::World;
use trunkline::device::{
    DeviceError, ExecutorMode, GuestCard, GuestWindow, Kernel, KernelError, PutNotification, WaitError,
    Window, WindowConfig,
};
use trunkline_bootstrap::trunkline_run;

use crate::devices::FABRICS;
use crate::ranks::run_over;

const LIMIT: Duration = Duration::from_secs(20);
const BOUND: Duration = Duration::from_millis(100);
/// The variable with the task of the other process.
const PART: &str = "TRUNKLINE_TEST_GUEST";
/// The variable with the process to lend a channel to, and the file for the card.
const CARD: &str = "TRUNKLINE_TEST_CARD";
const ROUNDS: u64 = 50;

const CONFIG: WindowConfig = WindowConfig {
    bytes: 1 << 16,
    signals: 2,
    counters: 1,
    barriers: 2,
    channels: 2,
    lanes: 2,
    depth: 16,
    chunks: 4,
    chunk: 1024,
};

fn pattern(len: usize, seed: u64) -> Vec<u8> {
    (0..len as u64).map(|at| (at.wrapping_mul(31) ^ (at >> 8) ^ seed.wrapping_mul(17)) as u8).collect()
}

/// A process to which a channel is lent.
struct Guest {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Guest {
    fn start(window: &Window, channel: u32, part: &str) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "guests::run_as_guest_process", "--nocapture", "--test-threads", "1"]);
        command.env(PART, part).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let card = window.lend(channel, child.id()).unwrap();
        card.write_to(&mut child.stdin.take().unwrap()).unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self { child, lines }
    }

    fn line(&mut self, begin: &str) {
        let mut line = String::new();
        while !line.contains(begin) {
            line.clear();
            assert!(
                self.lines.read_line(&mut line).unwrap() > 0,
                "the other process ended before it printed {begin:?}"
            );
        }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn dies_with_its_parent() {
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).unwrap();
}

/// The guest process: does nothing unless a test starts it as one.
#[test]
fn run_as_guest_process() {
    let Ok(part) = std::env::var(PART) else { return };
    dies_with_its_parent();
    let card = GuestCard::read_from(&mut std::io::stdin()).unwrap();
    assert_eq!((card.rank(), card.channel() < CONFIG.channels), (0, true));
    let window = GuestWindow::open(&card).unwrap();
    let kernel = window.kernel().limit(LIMIT);
    match part.as_str() {
        "works" => works(&kernel),
        "dies" => {
            kernel.put_bytes(0, 4096, 0, &pattern(3000, 1), PutNotification::signal(0)).unwrap();
            println!("ready");
            std::thread::sleep(LIMIT);
        }
        other => panic!("{other}"),
    }
}

/// The kernel of the first of two ranks, on the second channel.
fn works(kernel: &Kernel<'_>) {
    assert_eq!((kernel.rank(), kernel.size()), (0, 2));
    let mut came = vec![0; 5000];
    for round in 1..=ROUNDS {
        kernel
            .put_bytes(1, 8192, 0, &pattern(5000, round), PutNotification::signal(1).and_counter(0))
            .unwrap();
        assert_eq!(kernel.wait_counter(0, round), Ok(round));
        assert_eq!(kernel.wait_signal(1, 1, round), Ok(round));
        kernel.read(16_384, &mut came).unwrap();
        assert!(came == pattern(5000, round + 1000), "round {round}");
        kernel.send(1, &pattern(3000, round + 7)).unwrap();
        kernel.recv(1, &mut came[..3000]).unwrap();
        assert!(came[..3000] == pattern(3000, round + 8), "round {round}");
        kernel.barrier(1).unwrap();
    }
    let got = kernel.get(1, 0, 0, 5000).unwrap();
    kernel.wait(got).unwrap();
    kernel.read(0, &mut came).unwrap();
    assert!(came == pattern(5000, ROUNDS + 1000));
    assert!(matches!(kernel.put(2, 0, 0, 8, PutNotification::NONE), Err(KernelError::NoRank(2))));
    assert!(matches!(kernel.put(1, 1 << 16, 0, 8, PutNotification::NONE), Err(KernelError::Range { .. })));
    kernel.flush().unwrap();
}

/// The kernel of the second rank, in that rank's own process.
fn answers(kernel: &Kernel<'_>, window: &Window) {
    let mut came = vec![0; 5000];
    for round in 1..=ROUNDS {
        assert_eq!(kernel.wait_signal(0, 1, round), Ok(round));
        window.read(8192, &mut came).unwrap();
        assert!(came == pattern(5000, round), "round {round}");
        kernel.put_bytes(0, 16_384, 0, &pattern(5000, round + 1000), PutNotification::signal(1)).unwrap();
        kernel.recv(0, &mut came[..3000]).unwrap();
        assert!(came[..3000] == pattern(3000, round + 7), "round {round}");
        kernel.send(0, &pattern(3000, round + 8)).unwrap();
        kernel.barrier(1).unwrap();
    }
    kernel.flush().unwrap();
}

fn refuses(world: &World, window: &Window, guest: u32) {
    assert!(matches!(window.kernel(1), Err(DeviceError::Lent { channel: 1 })));
    assert!(matches!(window.lend(1, guest), Err(DeviceError::Lent { channel: 1 })));
    assert!(matches!(window.lend(2, guest), Err(DeviceError::NoChannel { channel: 2, channels: 2 })));
    assert!(matches!(window.lend(0, i32::MAX as u32), Err(DeviceError::Process { .. })));
    assert!(!window.guest_has_ended(0) && window.kernel(0).is_ok(), "channel 0 is not lent");
    // A modified card names no file.
    let own = window.lend(0, std::process::id()).unwrap();
    let mut bytes = own.to_bytes();
    assert_eq!(GuestCard::from_bytes(&bytes).unwrap(), own);
    bytes[3 * 8] ^= 1;
    let other = GuestCard::from_bytes(&bytes).unwrap();
    assert!(matches!(GuestWindow::open(&other), Err(DeviceError::Map(_))));
    assert!(matches!(GuestCard::from_bytes(&bytes[..40]), Err(DeviceError::Card(_))));
    assert!(GuestCard::read_from(&mut &bytes[..40]).is_err());
    let window = GuestWindow::open(&own).unwrap();
    let kernel = window.kernel().limit(LIMIT);
    // Bytes of the part that the other guest does not use.
    kernel.put_bytes(world.rank(), 41_000, 40_000, b"by itself", PutNotification::signal(0)).unwrap();
    assert_eq!(kernel.wait_signal(world.rank(), 0, 1), Ok(1));
    assert!(!window.host_has_ended());
}

#[test]
fn a_guest_uses_a_channel_as_its_own() {
    run_over(&FABRICS, "guests::a_guest_uses_a_channel_as_its_own", 2, |world| {
        let devices = world.devices_for_processes(16, 64).unwrap();
        let window = devices.window(&world, CONFIG).unwrap();
        if world.rank() == 0 {
            let mut guest = Guest::start(&window, 1, "works");
            refuses(&world, &window, guest.child.id());
            assert!(guest.child.wait().unwrap().success());
            let began = Instant::now();
            while !window.guest_has_ended(1) {
                assert!(began.elapsed() < LIMIT, "the end of the guest was not detected");
                std::thread::sleep(Duration::from_millis(1));
            }
        } else {
            answers(&window.kernel(1).unwrap().limit(LIMIT), &window);
        }
        world.barrier().unwrap();
        window.free(&world).unwrap();
        drop(devices);
        let devices = world.devices(ExecutorMode::Thread).unwrap();
        let window = devices.window(&world, CONFIG).unwrap();
        assert!(matches!(window.lend(0, std::process::id()), Err(DeviceError::NotForProcesses)));
        window.free(&world).unwrap();
        world.finish().unwrap();
    });
}

#[test]
fn guest_death_ends_its_channel() {
    run_over(&["soft:shm"], "guests::guest_death_ends_its_channel", 1, |world| {
        let devices = world.devices_for_processes(16, 64).unwrap();
        let window = devices.window(&world, CONFIG).unwrap();
        let mut guest = Guest::start(&window, 1, "dies");
        guest.line("ready");
        let kernel = window.kernel(0).unwrap().limit(LIMIT);
        assert_eq!(kernel.wait_signal(0, 0, 1), Ok(1));
        assert!(!window.guest_has_ended(1));
        guest.child.kill().unwrap();
        let died = Instant::now();
        while !window.guest_has_ended(1) {
            assert!(died.elapsed() < BOUND, "the channel has not ended after {:?}", died.elapsed());
            std::thread::sleep(Duration::from_micros(200));
        }
        // The bytes that the guest put have arrived, and other channels still work.
        let mut there = vec![0; 3000];
        window.read(4096, &mut there).unwrap();
        assert!(there == pattern(3000, 1));
        kernel.put_bytes(0, 0, 0, b"on", PutNotification::signal(0)).unwrap();
        assert_eq!(kernel.wait_signal(0, 0, 2), Ok(2));
        drop(kernel);
        window.free(&world).unwrap();
        world.finish().unwrap();
    });
}

/// The lending process, a world of one rank: lends a channel to the process that started it. Does nothing unless a test
/// starts it as such.
#[test]
fn run_as_host_process() {
    if !std::env::var(PART).is_ok_and(|part| part == "lends") {
        return;
    }
    dies_with_its_parent();
    let card = std::env::var(CARD).unwrap();
    let (process, path) = card.split_once(' ').unwrap();
    let world = World::start().unwrap();
    let devices = world.devices_for_processes(16, 64).unwrap();
    let window = devices.window(&world, CONFIG).unwrap();
    let card = window.lend(0, process.parse().unwrap()).unwrap();
    let unfinished = format!("{path}.new");
    card.write_to(&mut std::fs::File::create(&unfinished).unwrap()).unwrap();
    std::fs::rename(unfinished, path).unwrap();
    std::thread::sleep(LIMIT);
}

#[test]
fn host_death_ends_waits_of_its_guest() {
    run_over(&["soft:shm"], "guests::host_death_ends_waits_of_its_guest", 1, |world| {
        let folder = tempfile::tempdir().unwrap();
        let path: PathBuf = folder.path().join("card");
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "guests::run_as_host_process", "--nocapture", "--test-threads", "1"]);
        for name in [
            trunkline_run::RANK,
            trunkline_run::SIZE,
            trunkline_run::LOCAL_RANK,
            trunkline_run::LOCAL_SIZE,
            trunkline_run::STORE,
            trunkline_run::SECRET,
        ] {
            command.env_remove(name);
        }
        command.env(PART, "lends").env(CARD, format!("{} {}", std::process::id(), path.display()));
        let mut host = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
        let began = Instant::now();
        while !path.exists() {
            assert!(
                began.elapsed() < LIMIT && host.try_wait().unwrap().is_none(),
                "the lending process has ended, or wrote no card"
            );
            std::thread::sleep(Duration::from_millis(2));
        }
        let card = GuestCard::read_from(&mut std::fs::File::open(&path).unwrap()).unwrap();
        let window = GuestWindow::open(&card).unwrap();
        let kernel = window.kernel();
        kernel.put_bytes(0, 64, 0, b"alive", PutNotification::signal(0).and_counter(0)).unwrap();
        assert_eq!((kernel.wait_signal(0, 0, 1), kernel.wait_counter(0, 1)), (Ok(1), Ok(1)));
        kernel.flush().unwrap();
        let killer = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(30));
            host.kill().unwrap();
            let died = Instant::now();
            host.wait().unwrap();
            died
        });
        // Without a limit, only the death of the host ends the wait.
        let ended = kernel.wait_signal(0, 0, 2);
        let told = Instant::now();
        assert!(told.saturating_duration_since(killer.join().unwrap()) < BOUND);
        assert!(matches!(ended, Err(KernelError::Wait(WaitError::Aborted(_)))), "{ended:?}");
        assert!(window.host_has_ended());
        let late = kernel.put(0, 0, 0, 8, PutNotification::NONE).and_then(|put| kernel.wait(put));
        assert!(late.is_err(), "{late:?}");
        world.finish().unwrap();
    });
}
