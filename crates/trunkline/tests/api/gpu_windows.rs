//! Windows whose kernels run on a GPU (mode M2), between processes: in pinned memory, in GPU memory, and together with
//! ranks whose kernels are Rust threads. The tests run over a stand-in for NVIDIA's driver
//! (`crates/device/tests/m2/stub.c`), whose device is a process. The same tests run on a GPU, and are SKIPPED without
//! one.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use trunkline::World;
use trunkline::device::gpu::{GpuDevice, GpuVendor, KernelArg, KernelModule, VendorDriver};
use trunkline::device::{
    DeviceError, Devices, ExecutorMode, GpuPlacement, GpuView, Kernel, Residence, Window, WindowConfig,
};
use trunkline_mem::MemoryRange;

use crate::devices::FABRICS;
use crate::headers::{CELLS, STEPS, TOKENS, WORDS, dispatch, halo, ring_sum, spread};
use crate::ranks::{DIES, is_rank, run_within_over};

const LIMIT: Duration = Duration::from_secs(20);
/// The variable that is set where a rank's device is a stand-in.
const PLAYED: &str = "TEST_GPU_IS_PLAYED";
/// Limits of waits: in ticks of the stand-in, whose clock is the processor's, and in nanoseconds of a GPU.
const TICKS: [u64; 2] = [60_000_000_000, 20_000_000_000];
const THREADS_MAX: usize = 32;

/// `Kind` of the header.
pub(crate) const GOOD: u64 = 0;
const FAILED: u64 = 1;
const POISONED: u64 = 2;

/// Compiles the stand-in driver and the kernels of its device, once for all tests of this process.
fn stub() -> Option<&'static tempfile::TempDir> {
    static BUILT: OnceLock<Option<tempfile::TempDir>> = OnceLock::new();
    BUILT.get_or_init(build_stub).as_ref()
}

fn build_stub() -> Option<tempfile::TempDir> {
    let folder = tempfile::tempdir().unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let compile = |compiler: &str, source: &str, to: &str, more: &[&str]| {
        let mut command = Command::new(compiler);
        command.args(["-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-pthread"]).args(more);
        command
            .arg("-I")
            .arg(root.join("include"))
            .arg("-I")
            .arg(root.join("crates/device-queue/tests/header"));
        command.arg("-o").arg(folder.path().join(to)).arg(root.join("crates").join(source));
        let output = command.output().ok()?;
        assert!(output.status.success(), "{source}: {}", String::from_utf8_lossy(&output.stderr));
        Some(())
    };
    compile("cc", "device/tests/m2/stub.c", "libcuda.so.1", &["-Wl,-soname,libcuda.so.1"])?;
    let cxx = ["-std=c++17", "-Wno-unused-function"];
    compile("c++", "trunkline/tests/api/gpu_kernels.cpp", "kernels.so", &cxx)?;
    Some(folder)
}

/// Returns the source of the kernels, for NVRTC.
fn text() -> String {
    let kernels = include_str!("../../../device-queue/tests/header/window_kernels.h");
    let entries = include_str!("../../../device-queue/tests/header/window_entries.h");
    format!("{kernels}\n{entries}")
}

/// The GPU of this process, and the kernels.
pub(crate) struct Machine {
    pub(crate) device: GpuDevice,
    program: KernelModule,
    ticks: u64,
}

fn open() -> Result<Machine, String> {
    let is_played = std::env::var_os(PLAYED).is_some();
    let gpu = VendorDriver::open(GpuVendor::Nvidia).map_err(|error| error.to_string())?;
    let device = gpu.open_device(0).map_err(|error| error.to_string())?;
    let image = if is_played {
        b"stub".to_vec()
    } else {
        let architecture = device.architecture().map_err(|error| error.to_string())?;
        let image = trunkline_device_queue::nvrtc::compile_text(&text(), "windows.cu", architecture, &[]);
        image.map_err(|error| error.to_string())?.bytes
    };
    // SAFETY: the kernels change only memory that their window and job name, which is kept while they run.
    let program = unsafe { device.load_module(&image) }.map_err(|error| error.to_string())?;
    let [played, real] = TICKS;
    Ok(Machine { device, program, ticks: if is_played { played } else { real } })
}

/// Runs ranks over a stand-in device or on a GPU; over libfabric only with `--full`.
pub(crate) fn run(
    name: &str,
    size: usize,
    ends: &dyn Fn(Option<i32>) -> bool,
    rank: impl FnOnce(&World, &Machine),
) {
    let is_short = std::env::var_os("TRUNKLINE_FULL").is_none();
    let fabrics = FABRICS.into_iter().filter(|fabric| !(is_short && fabric.starts_with("ofi:")));
    run_over(&fabrics.collect::<Vec<_>>(), name, size, ends, rank);
}

/// As [`run`], over some fabrics only.
pub(crate) fn run_over(
    fabrics: &[&str],
    name: &str,
    size: usize,
    ends: &dyn Fn(Option<i32>) -> bool,
    rank: impl FnOnce(&World, &Machine),
) {
    let start = |environment: &[(&str, &OsStr)], rank: &mut dyn FnMut(World)| {
        run_within_over(environment, fabrics, name, size, ends, rank);
    };
    let mut rank = Some(rank);
    let mut ranked = |world: World| {
        let machine = open().unwrap();
        if let Some(rank) = rank.take() {
            rank(&world, &machine);
        }
        world.finish().unwrap();
    };
    if is_rank() {
        return start(&[], &mut ranked);
    }
    if name.ends_with("_on_a_gpu") {
        return match open() {
            Ok(_) => start(&[], &mut ranked),
            Err(reason) => skip(name, "cuda", &reason),
        };
    }
    let Some(folder) = stub() else { return skip(name, "cc", "no C or C++ compiler") };
    let kernels = folder.path().join("kernels.so");
    let mut environment: Vec<(&str, &OsStr)> = vec![
        ("LD_LIBRARY_PATH", folder.path().as_os_str()),
        ("STUB_KERNELS", kernels.as_os_str()),
        (PLAYED, "1".as_ref()),
    ];
    if name.starts_with("gpu_reached::") {
        environment.extend([("STUB_EXPORTS", "1".as_ref()), ("TRUNKLINE_SOFT_DMABUF", "1".as_ref())]);
    }
    // Software NICs then delay writes to the GPU until a read of that memory.
    if name.contains("flushed") {
        environment.push(("TRUNKLINE_SOFT_DELAYED", "1".as_ref()));
    }
    start(&environment, &mut ranked);
}

/// Reports a skipped test and the reason in the log that `./test` reads. Fails if `TRUNKLINE_REQUIRE` names it.
pub(crate) fn skip(name: &str, what: &str, reason: &str) {
    use std::io::Write as _;
    let required = std::env::var("TRUNKLINE_REQUIRE").unwrap_or_default();
    assert!(!required.split(',').any(|word| word.trim() == what), "{name} must run: {reason}");
    println!("SKIPPED {name}: {reason}");
    if let Some(path) = std::env::var_os("TRUNKLINE_SKIP_LOG") {
        let file = std::fs::OpenOptions::new().append(true).create(true).open(path);
        let noted = file.and_then(|mut file| file.write_all(format!("{name}: {reason}\n").as_bytes()));
        assert!(noted.is_ok(), "cannot write to the log of skipped tests: {noted:?}");
    }
}

/// A window of a rank, with kernels on its device or on the host.
pub(crate) struct Given<'m> {
    machine: &'m Machine,
    pub(crate) window: Window,
    /// `None` if the kernels are Rust threads.
    pub(crate) view: Option<GpuView>,
    memory: MemoryRange,
    results: MemoryRange,
}

impl<'m> Given<'m> {
    pub(crate) fn new(machine: &'m Machine, world: &World, devices: &Devices, config: WindowConfig) -> Self {
        let window = devices.window(world, config).unwrap();
        let view = window.gpu_view().ok();
        assert_eq!(matches!(window.kernel(0), Err(DeviceError::OnGpu)), view.is_some());
        let memory = machine.device.allocate(1 << 16).unwrap();
        let results = machine.device.allocate(8 * THREADS_MAX).unwrap();
        Self { machine, window, view, memory, results }
    }

    fn kernel(&self) -> Kernel<'_> {
        self.window.kernel(0).unwrap().limit(LIMIT)
    }

    /// Runs a kernel on the GPU, which changes these words. Returns the result, which is the same for all of its
    /// threads.
    pub(crate) fn launch(
        &self,
        name: &str,
        threads: u32,
        words: &mut [u64],
        [count, first, steps]: [u64; 3],
    ) -> u64 {
        let (device, view) = (&self.machine.device, self.view.as_ref().unwrap());
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(words);
        device.copy_to_device(&self.memory, 0, bytes).unwrap();
        let mut job = view.to_words();
        let (memory, results) = (self.memory.addr() as u64, self.results.addr() as u64);
        job.extend([memory, count, first, steps, self.machine.ticks, results]);
        let mut args = vec![KernelArg::Words(job)];
        args.extend(view.held_args());
        args.extend([self.memory.clone(), self.results.clone()].map(KernelArg::Memory));
        let running = self.machine.program.launch_kernel(name, 1, threads, args).unwrap();
        assert!(running.wait(Duration::from_secs(100)).unwrap(), "{name} has not ended");
        device.copy_from_device(&self.memory, 0, bytes).unwrap();
        let mut results = [0_u64; THREADS_MAX];
        device.copy_from_device(&self.results, 0, bytemuck::cast_slice_mut(&mut results)).unwrap();
        let results = &results[..threads as usize];
        assert!(
            results.iter().all(|result| *result == results[0]),
            "threads of a group have different results: {results:?}"
        );
        results[0]
    }

    pub(crate) fn free(self, world: &World) {
        self.window.free(world).unwrap();
    }
}

/// Creates an executor for kernels on the GPU or, without a residence, for kernels in Rust.
pub(crate) fn devices(machine: &Machine, world: &World, residence: Option<Residence>) -> Devices {
    match residence {
        None => world.devices(ExecutorMode::Thread).unwrap(),
        Some(residence) => {
            world.devices_of_gpu(GpuPlacement { device: machine.device.clone(), residence }).unwrap()
        }
    }
}

/// Returns the locations of this rank's part in three runs: the same at all ranks twice, then different ones.
fn places(rank: usize) -> [Option<Residence>; 3] {
    let all = [Some(Residence::Device), Some(Residence::Pinned), None];
    [Some(Residence::Device), Some(Residence::Pinned), all[rank % 3]]
}

pub(crate) fn alone(world: &World, machine: &Machine) {
    for residence in [Residence::Device, Residence::Pinned] {
        let config = WindowConfig {
            bytes: 4096,
            signals: 2,
            counters: 1,
            lanes: 3,
            depth: 4,
            ..WindowConfig::default()
        };
        let given = Given::new(machine, world, &devices(machine, world, Some(residence)), config);
        for threads in [1, 1, 3, 2] {
            assert_eq!(
                given.launch("window_use", threads, &mut [], [0; 3]),
                0,
                "{residence:?}, {threads} threads"
            );
        }
        world.barrier().unwrap();
        given.free(world);
    }
}

pub(crate) fn whole(status: Option<i32>) -> bool {
    status == Some(0)
}

#[test]
fn window_operations_work_on_stand_in() {
    run("gpu_windows::window_operations_work_on_stand_in", 2, &whole, alone);
}

#[test]
fn window_operations_work_on_a_gpu() {
    run("gpu_windows::window_operations_work_on_a_gpu", 2, &whole, alone);
}

pub(crate) fn rings(world: &World, machine: &Machine) {
    for place in places(world.rank()) {
        let devices = devices(machine, world, place);
        for (lanes, chunks, chunk) in [(1, 1, 16), (2, 4, 1024), (3, 2, 4096)] {
            let config = WindowConfig { lanes, chunks, chunk, ..WindowConfig::default() };
            let given = Given::new(machine, world, &devices, config);
            let number = |rank: usize, at: usize, round: u64| (rank as u64 + 1) * (at as u64 + round + 1);
            for (round, count) in [1, 130, 3001, 7].into_iter().enumerate() {
                let (round, count) = (round as u64, count.min(20 * chunk as usize / 8));
                let mut numbers: Vec<u64> = (0..count).map(|at| number(world.rank(), at, round)).collect();
                if place.is_some() {
                    let threads = 1 + round as u32 % 3;
                    let how = given.launch("window_ring", threads, &mut numbers, [count as u64, 0, 0]);
                    assert_eq!(how, GOOD, "{place:?}, round {round}");
                } else {
                    ring_sum(&given.kernel(), &mut numbers).unwrap();
                }
                let sum = |at| (0..world.size()).map(|rank| number(rank, at, round)).sum::<u64>();
                let mut all = numbers.iter().enumerate();
                assert!(all.all(|(at, one)| *one == sum(at)), "{count} in round {round}, {place:?}");
            }
            given.free(world);
        }
    }
}

#[test]
fn ring_sums_are_exact_on_stand_in() {
    run("gpu_windows::ring_sums_are_exact_on_stand_in", 3, &whole, rings);
}

#[test]
fn ring_sums_are_exact_on_a_gpu() {
    run("gpu_windows::ring_sums_are_exact_on_a_gpu", 3, &whole, rings);
}

pub(crate) fn tokens(world: &World, machine: &Machine) {
    let (rank, size) = (world.rank(), world.size());
    for place in places(rank) {
        let bytes = 3 * size as u64 * TOKENS as u64 * 8 * WORDS as u64;
        let config = WindowConfig { bytes, signals: 2, lanes: 2, ..WindowConfig::default() };
        let given = Given::new(machine, world, &devices(machine, world, place), config);
        for round in 0..3_u64 {
            let word = |at: usize, word: usize| match word {
                0 => (at as u64).wrapping_mul(2_654_435_761) >> 7,
                _ => (rank as u64) << 40 | (at as u64) << 16 | (word as u64 + round),
            };
            let before: Vec<[u64; WORDS]> =
                (0..TOKENS).map(|at| std::array::from_fn(|nth| word(at, nth))).collect();
            let mut after = before.clone();
            if place.is_some() {
                let words: &mut [u64] = bytemuck::cast_slice_mut(&mut after);
                let how = given.launch("window_dispatch", 1 + round as u32, words, [TOKENS as u64, 0, 0]);
                assert_eq!(how, GOOD, "{place:?}, round {round}");
            } else {
                dispatch(&given.kernel(), &mut after).unwrap();
            }
            for (before, after) in before.iter().zip(&after) {
                let expert = before[0] % size as u64;
                assert!(
                    (1..WORDS).all(|word| after[word] == before[word] + expert + 1),
                    "{place:?}, {round}"
                );
            }
            // The signal of returned tokens keeps counting across rounds.
            world.barrier().unwrap();
        }
        given.free(world);
    }
}

#[test]
fn dispatch_returns_all_tokens_on_stand_in() {
    run("gpu_windows::dispatch_returns_all_tokens_on_stand_in", 3, &whole, tokens);
}

#[test]
fn dispatch_returns_all_tokens_on_a_gpu() {
    run("gpu_windows::dispatch_returns_all_tokens_on_a_gpu", 3, &whole, tokens);
}

pub(crate) fn rods(world: &World, machine: &Machine) {
    for place in places(world.rank()) {
        let config = WindowConfig { bytes: 64, signals: 1, ..WindowConfig::default() };
        let given = Given::new(machine, world, &devices(machine, world, place), config);
        let part = world.rank() * CELLS / world.size()..(world.rank() + 1) * CELLS / world.size();
        let mut rod: Vec<f64> = (0..CELLS).map(|cell| if cell < CELLS / 10 { 100.0 } else { 0.0 }).collect();
        let mut cells = rod[part.clone()].to_vec();
        for round in 0..3_u64 {
            if place.is_some() {
                let count = cells.len() as u64;
                let words: &mut [u64] = bytemuck::cast_slice_mut(&mut cells);
                let how = given.launch("window_halo", 1 + round as u32, words, [count, round * STEPS, STEPS]);
                assert_eq!(how, GOOD, "{place:?}, round {round}");
            } else {
                halo(&given.kernel(), &given.window, &mut cells, round * STEPS).unwrap();
            }
            for _ in 0..STEPS {
                let ends = [rod[0], rod[CELLS - 1]];
                spread(&mut rod, ends);
            }
            let same =
                cells.iter().zip(&rod[part.clone()]).all(|(a, b)| (a - b).abs() <= 1e-9 * b.abs().max(1.0));
            assert!(same, "{place:?}, round {round}");
        }
        given.free(world);
    }
}

#[test]
fn halo_exchange_is_exact_on_stand_in() {
    run("gpu_windows::halo_exchange_is_exact_on_stand_in", 3, &whole, rods);
}

#[test]
fn halo_exchange_is_exact_on_a_gpu() {
    run("gpu_windows::halo_exchange_is_exact_on_a_gpu", 3, &whole, rods);
}

/// A kernel gets the current bytes of another GPU's memory, not an older copy in host memory. Barriers continue from
/// kernel to kernel, and the host reads and writes the part.
pub(crate) fn gets(world: &World, machine: &Machine) {
    let other = 1 - world.rank();
    for place in [Residence::Device, Residence::Pinned] {
        let config = WindowConfig { bytes: 64 << 10, ..WindowConfig::default() };
        let given = Given::new(machine, world, &devices(machine, world, Some(place)), config);
        for round in 1..=4_u64 {
            let mine: Vec<u64> = (0..4096).map(|at| at * (round + world.rank() as u64)).collect();
            given.window.write(0, bytemuck::cast_slice(&mine)).unwrap();
            assert_eq!(given.launch("window_barrier", 2, &mut [], [0; 3]), GOOD);
            let by = round + other as u64;
            assert_eq!(
                given.launch("window_get", 1, &mut [], [other as u64, by, 0]),
                0,
                "{place:?}, round {round}"
            );
            assert_eq!(given.launch("window_barrier", 1, &mut [], [0; 3]), GOOD);
            let mut got = vec![0_u64; 4096];
            given.window.read(32 << 10, bytemuck::cast_slice_mut(&mut got)).unwrap();
            assert!((0..4096).all(|at| got[at as usize] == at * by), "{place:?}, round {round}");
        }
        let end = given.window.config().bytes;
        assert!(matches!(given.window.write(end, &[0]), Err(DeviceError::Range { .. })));
        given.free(world);
    }
}

#[test]
fn get_returns_current_bytes_on_stand_in() {
    run("gpu_windows::get_returns_current_bytes_on_stand_in", 2, &whole, gets);
}

#[test]
fn get_returns_current_bytes_on_a_gpu() {
    run("gpu_windows::get_returns_current_bytes_on_a_gpu", 2, &whole, gets);
}

/// A rank dies: kernels that wait for its signal, and kernels that put to it, fail.
pub(crate) fn deaths(world: &World, machine: &Machine) {
    let config = WindowConfig { bytes: 64, signals: 1, ..WindowConfig::default() };
    let given = Given::new(machine, world, &devices(machine, world, Some(Residence::Device)), config);
    if world.rank() == 1 {
        // Both ranks have raised its signal. It dies while one of them waits for it, and the other one puts to it.
        for other in [0, 2] {
            assert_eq!(given.launch("window_wait", 1, &mut [], [other, 1, 0]), GOOD);
        }
        // Leaves time for the acknowledgement of the first signal.
        std::thread::sleep(Duration::from_millis(200));
        std::process::exit(DIES);
    }
    let began = Instant::now();
    let waits = world.rank() == 0;
    if waits {
        // Rank 1 waits for this signal.
        assert_eq!(given.launch("window_signal", 1, &mut [], [1, 0, 0]), GOOD);
        assert_eq!(given.launch("window_wait", 2, &mut [], [1, 1, 0]), POISONED);
    } else {
        assert_eq!(given.launch("window_put", 1, &mut [], [1, 0, 0]), FAILED);
    }
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    std::process::exit(0);
}

pub(crate) fn dies(status: Option<i32>) -> bool {
    status == Some(0) || status == Some(DIES)
}

#[test]
fn rank_death_ends_kernels_on_stand_in() {
    run("gpu_windows::rank_death_ends_kernels_on_stand_in", 3, &dies, deaths);
}

#[test]
fn rank_death_ends_kernels_on_a_gpu() {
    run("gpu_windows::rank_death_ends_kernels_on_a_gpu", 3, &dies, deaths);
}
