//! Windows by the device header: C++ kernels as host threads, together with Rust kernels on the same windows.
//! `scripts/device-header` compiles the same kernels for GPUs.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash as _, Hasher as _};
use std::mem::offset_of;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use libloading::Library;
use trunkline::World;
use trunkline::device::{
    DeviceTables, DeviceView, Devices, ExecutorMode, Kernel, KernelError, LaneView, PeerView,
    PutNotification, VIEW_VERSION, Window, WindowConfig,
};
use trunkline_device_queue::header::FILES;

use crate::devices::FABRICS;
use crate::ranks::{DIES, is_rank, run_over, run_over_ends};

const LIMIT: Duration = Duration::from_secs(20);
/// Polls of a wait in C++; each yields the processor.
const LOOKS: u64 = 20_000_000;

/// `Kind` of the header.
const GOOD: u64 = 0;
const POISONED: u64 = 2;
const ABORTED: u64 = 3;

/// `Launch` of `window_kernels.cpp`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Launch {
    window: *const DeviceView,
    channel: u32,
    threads: u32,
    what: u32,
    reserved: u32,
    memory: *mut u64,
    count: u64,
    first: u64,
    steps: u64,
    looks: u64,
}

// SAFETY: the threads of a kernel share its memory as the header requires, and only read the window's view.
unsafe impl Send for Launch {}

const RING: u32 = 0;
const DISPATCH: u32 = 1;
const HALO: u32 = 2;
const ALL_OF_IT: u32 = 3;
const BARRIER: u32 = 4;
const ABORT: u32 = 5;
const WAIT: u32 = 6;
const PUT: u32 = 7;

fn symbol<T: Copy>(library: &Library, name: &str) -> T {
    // SAFETY: each caller passes a name and the type with which window_kernels.cpp defines that function.
    *unsafe { library.get::<T>(name.as_bytes()) }.unwrap()
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../device-queue/tests/header")
}

/// Returns the library of kernels; `None` without a compiler.
fn library(test: &str) -> Option<Library> {
    static MADE: OnceLock<Option<PathBuf>> = OnceLock::new();
    let Some(made) = MADE.get_or_init(make) else {
        skip(test);
        return None;
    };
    // SAFETY: the library was built from our own source; its constructors do nothing.
    Some(unsafe { Library::new(made) }.unwrap())
}

/// Builds the library, unless another process has built it.
fn make() -> Option<PathBuf> {
    let (source, kernels) = (folder().join("window_kernels.cpp"), folder().join("window_kernels.h"));
    let mut hash = DefaultHasher::new();
    FILES.iter().for_each(|file| file.text.hash(&mut hash));
    for path in [&source, &kernels] {
        std::fs::read(path).unwrap().hash(&mut hash);
    }
    let made = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("window-{:016x}.so", hash.finish()));
    if made.exists() {
        return Some(made);
    }
    let new = made.with_extension(std::process::id().to_string());
    let mut command = Command::new("c++");
    command.args(["-std=c++17", "-Wall", "-Wextra", "-Wshadow", "-Werror", "-fno-exceptions"]);
    command.args(["-fno-rtti", "-fPIC", "-O2", "-shared", "-I"]).arg(folder().join("../../../../include"));
    match command.arg("-o").arg(&new).arg(&source).output() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return None,
        Err(error) => panic!("c++: {error}"),
        Ok(output) => assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr)),
    }
    std::fs::rename(new, &made).unwrap();
    Some(made)
}

/// Reports a skipped test and the reason in the log that `./test` reads. Ranks of a test report nothing.
fn skip(test: &str) {
    use std::io::Write as _;
    let line = format!("{test}: no C++ compiler (Debian: g++)");
    println!("SKIPPED {line}");
    if let Some(path) = std::env::var_os("TRUNKLINE_SKIP_LOG").filter(|_| !is_rank()) {
        let file = std::fs::OpenOptions::new().append(true).create(true).open(path);
        let noted = file.and_then(|mut file| writeln!(file, "{line}"));
        assert!(noted.is_ok(), "cannot write to the log of skipped tests: {noted:?}");
    }
}

/// A window, with its tables for C++ kernels.
struct Given<'l> {
    library: &'l Library,
    window: Window,
    tables: DeviceTables,
}

impl<'l> Given<'l> {
    fn new(library: &'l Library, devices: &Devices, world: &World, config: WindowConfig) -> Self {
        let window = devices.window(world, config).unwrap();
        let tables = window.device_view().unwrap();
        Self { library, window, tables }
    }

    fn kernel(&self) -> Kernel<'_> {
        self.window.kernel(0).unwrap().limit(LIMIT)
    }

    /// Runs a C++ kernel. Returns the result, which is the same for all of its threads.
    fn launch(
        &self,
        what: u32,
        threads: u32,
        memory: &mut [u64],
        count: u64,
        [first, steps]: [u64; 2],
    ) -> u64 {
        type Run = unsafe extern "C" fn(*const Launch, u32) -> u64;
        let run = symbol::<Run>(self.library, "window_run");
        let (window, memory) = (&raw const self.tables.view, memory.as_mut_ptr());
        let launch = Launch {
            window,
            channel: 0,
            threads,
            what,
            reserved: 0,
            memory,
            count,
            first,
            steps,
            looks: LOOKS,
        };
        let results = self.window.attend(move || {
            std::thread::scope(|scope| {
                let thread = |rank| {
                    scope.spawn(move || {
                        let launch = { launch };
                        // SAFETY: all memory that it points to outlives the scope, and has the lengths that it
                        // contains.
                        unsafe { run(&raw const launch, rank) }
                    })
                };
                let threads: Vec<_> = (0..threads).map(thread).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
            })
        });
        assert!(
            results.iter().all(|result| *result == results[0]),
            "threads of a group have different results: {results:?}"
        );
        results[0]
    }

    fn free(self, world: &World) {
        self.window.free(world).unwrap();
    }
}

#[test]
fn layouts_match_the_device_header() {
    let Some(library) = library("layouts of windows in the device header") else { return };
    let mut found = [0; 64];
    let layout = symbol::<unsafe extern "C" fn(*mut u64) -> u32>(&library, "window_layout");
    // SAFETY: it writes fewer words than `found` has.
    let count = unsafe { layout(found.as_mut_ptr()) };
    let words = [1, 3, 64].map(DeviceTables::words_of_channel);
    let expected = [
        size_of::<DeviceView>(),
        size_of::<PeerView>(),
        size_of::<LaneView>(),
        VIEW_VERSION as usize,
        words[0],
        words[1],
        words[2],
        offset_of!(DeviceView, signals),
        offset_of!(DeviceView, chunks),
        offset_of!(DeviceView, chunk),
        offset_of!(DeviceView, base),
        offset_of!(DeviceView, signal_bases),
        offset_of!(DeviceView, counters_at),
        offset_of!(DeviceView, counter_bases),
        offset_of!(DeviceView, barriers_at),
        offset_of!(DeviceView, epochs),
        offset_of!(DeviceView, streams_at),
        offset_of!(DeviceView, stream_bytes),
        offset_of!(DeviceView, peers),
        offset_of!(DeviceView, queues),
        offset_of!(DeviceView, words),
        offset_of!(DeviceView, slots),
        offset_of!(LaneView, main),
        offset_of!(LaneView, count),
        offset_of!(PeerView, key),
        trunkline_proto::wire::device_queue::stream_at::SENT as usize,
        trunkline_proto::wire::device_queue::stream_at::RECEIVED as usize,
        trunkline_proto::wire::device_queue::stream_at::EXPECTED as usize,
        trunkline_proto::wire::device_queue::GRANULE as usize,
    ];
    let expected: Vec<u64> = expected.iter().map(|word| *word as u64).collect();
    assert_eq!(&found[..count as usize], expected);
}

#[test]
fn window_operations_work_in_cxx() {
    let Some(library) = library("a window by the device header") else { return };
    run_over(&FABRICS, "headers::window_operations_work_in_cxx", 2, |world| {
        for mode in [ExecutorMode::Thread, ExecutorMode::Inline] {
            let devices = world.devices(mode).unwrap();
            let config = WindowConfig {
                bytes: 4096,
                signals: 2,
                counters: 1,
                lanes: 3,
                // Two entries: a write that raises its counter, and a signal.
                depth: 2,
                ..WindowConfig::default()
            };
            let given = Given::new(&library, &devices, &world, config);
            for threads in [1, 1, 3, 2] {
                assert_eq!(
                    given.launch(ALL_OF_IT, threads, &mut [], 0, [0; 2]),
                    0,
                    "{mode:?}, {threads} threads"
                );
            }
            world.barrier().unwrap();
            assert_eq!(given.launch(ABORT, 2, &mut [], 0, [0; 2]), ABORTED);
            given.free(&world);
        }
        world.finish().unwrap();
    });
}

/// Returns entries of the first queue, from an index on, without their numbers.
fn entries(given: &Given<'_>, first: u64, count: u64) -> Vec<[u64; 8]> {
    let view = &given.tables.views[0];
    let place =
        |index: u64| std::ptr::with_exposed_provenance::<[u64; 8]>(view.ring as usize + index as usize * 64);
    let entry = |index| {
        // SAFETY: the ring lives as long as the window, is deeper than `index`, and no kernel posts now.
        let mut words = unsafe { place(index).read_volatile() };
        words[0] &= !u64::from(u32::MAX);
        words
    };
    (first..first + count).map(entry).collect()
}

#[test]
fn puts_write_equal_entries_in_both_languages() {
    let Some(library) = library("entries of windows by the device header") else { return };
    run_over(&["soft:shm"], "headers::puts_write_equal_entries_in_both_languages", 1, |world| {
        let devices = world.devices(ExecutorMode::Inline).unwrap();
        let config =
            WindowConfig { bytes: 4096, signals: 1, counters: 1, depth: 16, ..WindowConfig::default() };
        let given = Given::new(&library, &devices, &world, config);
        // A counter that fits into the entry of the write, and one that does not.
        for (first, by, count) in [(0, u64::from(u32::MAX), 2), (2 * 2, 1 << 32, 3)] {
            let with = PutNotification { signal: Some((0, 5)), counter: Some((0, by)) };
            given.kernel().put(0, 64, 0, 8, with).unwrap();
            assert_eq!(given.launch(PUT, 1, &mut [], 0, [by, 0]), GOOD);
            given.kernel().wait_signal(0, 0, 10).unwrap();
            let [rust, cxx] = [first, first + count].map(|at| entries(&given, at, count));
            assert_eq!(rust, cxx, "a counter by {by}");
            assert!(rust.iter().all(|words| words[0] != 0), "an entry is empty");
        }
        assert_eq!(given.kernel().wait_counter(0, 1), Ok(2 * (u64::from(u32::MAX) + (1 << 32))));
        given.free(&world);
        world.finish().unwrap();
    });
}

/// Each round is a new kernel; on each rank one in four is in Rust.
#[test]
fn cxx_barriers_continue_from_kernel_to_kernel() {
    let Some(library) = library("barriers by the device header") else { return };
    run_over(&FABRICS, "headers::cxx_barriers_continue_from_kernel_to_kernel", 3, |world| {
        let devices = world.devices(ExecutorMode::Thread).unwrap();
        let given =
            Given::new(&library, &devices, &world, WindowConfig { bytes: 4096, ..WindowConfig::default() });
        let (rank, size) = (world.rank(), world.size());
        let meet = |round: u64| {
            if (rank as u64 + round).is_multiple_of(4) {
                given.kernel().barrier(0).unwrap();
            } else {
                assert_eq!(given.launch(BARRIER, 1 + round as u32 % 2, &mut [], 0, [0; 2]), GOOD);
            }
        };
        for round in 0..12_u64 {
            if round as usize % size == rank {
                std::thread::sleep(Duration::from_millis(20));
            }
            given.window.write(0, &round.to_le_bytes()).unwrap();
            let kernel = given.kernel();
            for other in 0..size {
                kernel.put(other, 64 + 8 * rank as u64, 0, 8, PutNotification::NONE).unwrap();
            }
            kernel.flush().unwrap();
            meet(round);
            for other in 0..size {
                let mut there = [0; 8];
                given.window.read(64 + 8 * other as u64, &mut there).unwrap();
                assert_eq!(there, round.to_le_bytes(), "rank {other}, round {round}");
            }
            meet(round);
        }
        given.free(&world);
        world.finish().unwrap();
    });
}

fn add(mine: &mut [u8], theirs: &[u8]) {
    for (mine, theirs) in mine.chunks_exact_mut(8).zip(theirs.chunks_exact(8)) {
        let sum =
            bytemuck::pod_read_unaligned::<u64>(mine).wrapping_add(bytemuck::pod_read_unaligned(theirs));
        mine.copy_from_slice(bytemuck::bytes_of(&sum));
    }
}

/// As `tests::ring_sum`.
pub(crate) fn ring_sum(kernel: &Kernel<'_>, numbers: &mut [u64]) -> Result<(), KernelError> {
    let (rank, last) = (kernel.rank(), kernel.size() - 1);
    let (before, next) = ((rank + last) % kernel.size(), (rank + 1) % kernel.size());
    let bytes: &mut [u8] = bytemuck::cast_slice_mut(numbers);
    match rank {
        0 => kernel.send(next, bytes)?,
        _ if rank < last => kernel.reduce_forward(before, next, bytes, add)?,
        _ => kernel.reduce(before, bytes, add)?,
    }
    match rank {
        _ if rank == last => kernel.send(next, bytes)?,
        _ if rank + 1 == last => kernel.recv(before, bytes)?,
        _ => kernel.forward(before, next, bytes)?,
    }
    kernel.flush()
}

/// Returns whether this rank runs the C++ kernel in a round. Every rank does in some rounds, but never all or none.
fn is_in_cxx(world: &World, round: u64) -> bool {
    (world.rank() as u64 + round).is_multiple_of(2)
}

#[test]
fn ring_sums_are_exact_in_both_languages() {
    let Some(library) = library("rings by the device header") else { return };
    run_over(&FABRICS, "headers::ring_sums_are_exact_in_both_languages", 3, |world| {
        let devices = world.devices(ExecutorMode::Thread).unwrap();
        for (lanes, chunks, chunk) in [(1, 1, 16), (2, 4, 1024), (3, 2, 4096)] {
            let config = WindowConfig { lanes, chunks, chunk, ..WindowConfig::default() };
            let given = Given::new(&library, &devices, &world, config);
            let number = |rank: usize, at: usize, round: u64| (rank as u64 + 1) * (at as u64 + round + 1);
            for (round, count) in [1, 2, 130, 3001, 3000, 7].into_iter().enumerate() {
                let (round, count) = (round as u64, count.min(40 * chunk as usize / 8));
                let mut numbers: Vec<u64> = (0..count).map(|at| number(world.rank(), at, round)).collect();
                if is_in_cxx(&world, round) {
                    let threads = 1 + round as u32 % 3;
                    let how = given.launch(RING, threads, &mut numbers, count as u64, [0; 2]);
                    assert_eq!(how, GOOD, "round {round}");
                } else {
                    ring_sum(&given.kernel(), &mut numbers).unwrap();
                }
                let sum = |at| (0..world.size()).map(|rank| number(rank, at, round)).sum::<u64>();
                assert!(
                    numbers.iter().enumerate().all(|(at, one)| *one == sum(at)),
                    "{count} in round {round}"
                );
            }
            given.free(&world);
        }
        world.finish().unwrap();
    });
}

pub(crate) const WORDS: usize = 16;
pub(crate) const TOKENS: usize = 150;

/// As `tests::dispatch`.
pub(crate) fn dispatch(kernel: &Kernel<'_>, tokens: &mut [[u64; WORDS]]) -> Result<(), KernelError> {
    let (rank, size, bytes) = (kernel.rank(), kernel.size(), 8 * WORDS as u64);
    let row = |area: usize, of: usize| (area * size + of) as u64 * TOKENS as u64 * bytes;
    let expert_of = |token: &[u64; WORDS]| token[0] as usize % size;
    for expert in 0..size {
        let mine: Vec<_> = tokens.iter().filter(|token| expert_of(token) == expert).copied().collect();
        let (bytes, with) =
            (bytemuck::cast_slice(&mine), PutNotification::signal_by(0, mine.len() as u64 + 1));
        kernel.put_bytes(expert, row(1, rank), row(0, expert), bytes, with)?;
    }
    for by in 0..size {
        let mut theirs = vec![[0_u64; WORDS]; kernel.take_signal(by, 0, 1)? as usize - 1];
        kernel.read(row(1, by), bytemuck::cast_slice_mut(&mut theirs))?;
        theirs.iter_mut().for_each(|token| token[1..].iter_mut().for_each(|word| *word += rank as u64 + 1));
        kernel.put_bytes(
            by,
            row(2, rank),
            row(1, by),
            bytemuck::cast_slice(&theirs),
            PutNotification::NONE,
        )?;
    }
    kernel.barrier(0)?;
    for expert in 0..size {
        for (nth, token) in tokens.iter_mut().filter(|token| expert_of(token) == expert).enumerate() {
            kernel.read(row(2, expert) + nth as u64 * bytes, bytemuck::cast_slice_mut(token))?;
        }
    }
    kernel.barrier(0)
}

#[test]
fn dispatch_returns_all_tokens_in_both_languages() {
    let Some(library) = library("dispatch by the device header") else { return };
    run_over(&FABRICS, "headers::dispatch_returns_all_tokens_in_both_languages", 3, |world| {
        let devices = world.devices(ExecutorMode::Thread).unwrap();
        let bytes = (3 * world.size() * TOKENS * WORDS * 8) as u64;
        let config = WindowConfig { bytes, signals: 2, lanes: 2, ..WindowConfig::default() };
        let given = Given::new(&library, &devices, &world, config);
        for round in 0..6_u64 {
            let token = |at: usize| {
                let mut token = [(world.rank() * 7919 + at * 31) as u64 + round; WORDS];
                token[0] = (token[0] * token[0]) >> 3;
                token
            };
            let before: Vec<_> = (0..TOKENS).map(token).collect();
            let mut tokens = before.clone();
            if is_in_cxx(&world, round) {
                let words: &mut [u64] = bytemuck::cast_slice_mut(&mut tokens);
                assert_eq!(given.launch(DISPATCH, 1 + round as u32 % 3, words, TOKENS as u64, [0; 2]), GOOD);
            } else {
                dispatch(&given.kernel(), &mut tokens).unwrap();
            }
            for (before, after) in before.iter().zip(&tokens) {
                let expert = before[0] % world.size() as u64;
                assert_eq!(after[0], before[0]);
                assert!((1..WORDS).all(|word| after[word] == before[word] + expert + 1), "round {round}");
            }
        }
        given.free(&world);
        world.finish().unwrap();
    });
}

pub(crate) const CELLS: usize = 300;
pub(crate) const STEPS: u64 = 25;

pub(crate) fn spread(cells: &mut [f64], [mut before, right]: [f64; 2]) {
    for at in 0..cells.len() {
        let (cell, after) = (cells[at], cells.get(at + 1).copied().unwrap_or(right));
        cells[at] = cell + 0.25 * (before - 2.0 * cell + after);
        before = cell;
    }
}

/// As `tests::halo`.
pub(crate) fn halo(
    kernel: &Kernel<'_>,
    window: &Window,
    cells: &mut [f64],
    first: u64,
) -> Result<(), KernelError> {
    let (left, right) =
        (kernel.rank().checked_sub(1), Some(kernel.rank() + 1).filter(|next| *next < kernel.size()));
    for step in first..first + STEPS {
        let (turn, ends) = (2 + 2 * (step % 2), [cells[0], cells[cells.len() - 1]]);
        kernel.flush()?;
        window.write(0, bytemuck::bytes_of(&ends)).unwrap();
        for (to, halo, end) in [(left, 1, 0), (right, 0, 1)] {
            if let Some(to) = to {
                kernel.put(to, 8 * (turn + halo), 8 * end, 8, PutNotification::signal(0))?;
            }
        }
        let mut halos = ends;
        for (from, halo) in [(left, 0), (right, 1)] {
            if let Some(from) = from {
                kernel.wait_signal(from, 0, step + 1)?;
                window.read(8 * (turn + halo), bytemuck::bytes_of_mut(&mut halos[halo as usize])).unwrap();
            }
        }
        spread(cells, halos);
    }
    kernel.flush()
}

#[test]
fn halo_exchange_is_exact_in_both_languages() {
    let Some(library) = library("halos by the device header") else { return };
    run_over(&FABRICS, "headers::halo_exchange_is_exact_in_both_languages", 3, |world| {
        let devices = world.devices(ExecutorMode::Thread).unwrap();
        let config = WindowConfig { bytes: 64, signals: 1, ..WindowConfig::default() };
        let given = Given::new(&library, &devices, &world, config);
        let part = world.rank() * CELLS / world.size()..(world.rank() + 1) * CELLS / world.size();
        let mut rod: Vec<f64> = (0..CELLS).map(|cell| if cell < CELLS / 10 { 100.0 } else { 0.0 }).collect();
        let mut cells = rod[part.clone()].to_vec();
        for round in 0..6_u64 {
            if is_in_cxx(&world, round) {
                let (count, first) = (cells.len() as u64, round * STEPS);
                let words: &mut [u64] = bytemuck::cast_slice_mut(&mut cells);
                assert_eq!(given.launch(HALO, 1 + round as u32 % 2, words, count, [first, STEPS]), GOOD);
            } else {
                halo(&given.kernel(), &given.window, &mut cells, round * STEPS).unwrap();
            }
            for _ in 0..STEPS {
                let ends = [rod[0], rod[CELLS - 1]];
                spread(&mut rod, ends);
            }
            assert!(cells == rod[part.clone()], "round {round}");
        }
        given.free(&world);
        world.finish().unwrap();
    });
}

#[test]
fn rank_death_ends_a_wait_in_cxx() {
    let Some(library) = library("a death beside the device header") else { return };
    let ends = |status: Option<i32>| status == Some(0) || status == Some(DIES);
    run_over_ends(&FABRICS, "headers::rank_death_ends_a_wait_in_cxx", 2, &ends, |world| {
        let devices = world.devices(ExecutorMode::Thread).unwrap();
        let config = WindowConfig { bytes: 64, signals: 1, ..WindowConfig::default() };
        let given = Given::new(&library, &devices, &world, config);
        if world.rank() == 1 {
            given.kernel().put(0, 0, 0, 8, PutNotification::signal(0)).unwrap();
            given.kernel().flush().unwrap();
            given.kernel().wait_signal(0, 0, 1).unwrap();
            std::process::exit(DIES);
        }
        // The signal that rank 1 raised before its death counts.
        assert_eq!(given.launch(WAIT, 2, &mut [], 1, [1, 0]), GOOD);
        given.kernel().signal(1, 0, 1).unwrap();
        let began = Instant::now();
        assert_eq!(given.launch(WAIT, 2, &mut [], 1, [2, 0]), POISONED);
        assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
        assert!(
            given.tables.words.iter().any(|word| word.load(Relaxed) != 0),
            "the words of the channel are unused"
        );
    });
}
