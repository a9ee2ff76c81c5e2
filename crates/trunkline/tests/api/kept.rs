//! GPU memory that has no handle, or no single handle for all of it: memory of pools, of several segments, of fabric
//! handles, of several tiles. It is sent and received like other memory, through the stage where neither end can be
//! mapped, and such messages are counted.

use std::ffi::{CString, c_char};
use std::mem::ManuallyDrop;

use libloading::os::unix::Library;
use trunkline::World;
use trunkline::messages::{AnyMemory, Buffer, CopyMethod, Messages, MethodChoice, TaggedCounts, WindowPlace};

use crate::gpus::{over_driver, over_stub};
use crate::nvidia::Nvidia;

const LEN: usize = 512 << 10;

/// The ways in which other ranks can access a buffer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Reach {
    /// It is in host memory.
    Host,
    /// Other ranks can map it.
    Mapped,
    /// It is in device memory that other ranks cannot map.
    Kept,
}

/// Returns the sorts of memory of a kind, by the names in its stub.
fn sorts(kind: &str) -> Vec<(&'static str, Reach)> {
    let kinds: &[_] = match kind {
        "cuda" => &[
            ("either", Reach::Mapped),
            ("segments", Reach::Kept),
            ("pooled", Reach::Kept),
            ("unshareable", Reach::Kept),
            ("fabric", Reach::Kept),
        ],
        "hip" => &[("segments", Reach::Kept), ("pooled", Reach::Kept), ("virtual", Reach::Kept)],
        _ => &[("segments", Reach::Kept), ("virtual", Reach::Kept)],
    };
    [("host", Reach::Host), ("plain", Reach::Mapped)].into_iter().chain(kinds.iter().copied()).collect()
}

/// The sorts of memory of an NVIDIA GPU, over its own driver.
const OF_GPU: [(&str, Reach); 3] = [("host", Reach::Host), ("plain", Reach::Mapped), ("pool", Reach::Kept)];

fn library(kind: &str) -> &'static str {
    match kind {
        "cuda" => "libcuda.so.1",
        "hip" => "libamdhip64.so.7",
        _ => "libze_loader.so.1",
    }
}

/// Allocates a buffer of a sort, of `LEN` bytes; a sort with two allocations has half of the bytes in each.
pub(crate) fn make_buffer(memory: &AnyMemory, sort: &str) -> Buffer {
    match sort {
        "host" => Buffer::private(LEN).unwrap(),
        "plain" => Buffer::from_address(memory.alloc(LEN).unwrap(), LEN),
        "pool" => Buffer::from_address(Nvidia::open().pooled(LEN), LEN),
        sort => {
            // SAFETY: the kind has the library open already.
            let library = ManuallyDrop::new(unsafe { Library::new(library(memory.kind_name())) }.unwrap());
            let name = CString::new(sort).unwrap();
            // SAFETY: this function of a stub takes a string and a number, and returns a number.
            let make =
                unsafe { library.get::<unsafe extern "C" fn(*const c_char, u64) -> u64>(b"stub_make\0") };
            let make = make.unwrap();
            // SAFETY: the string ends with zero.
            let at = unsafe { make(name.as_ptr(), LEN as u64) };
            assert_ne!(at, 0, "{sort}");
            Buffer::from_address(at as usize, LEN)
        }
    }
}

fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 251 + seed * 31) as u8).collect()
}

/// Returns the counts since `then`: eager, mapped, staged, fallbacks.
fn since(now: TaggedCounts, then: TaggedCounts) -> [u64; 4] {
    [
        now.eager - then.eager,
        now.mapped - then.mapped,
        now.staged - then.staged,
        now.fallbacks - then.fallbacks,
    ]
}

/// Returns the counts of a long message at sender and receiver: eager, mapped, staged, fallbacks.
fn counted(from: Reach, into: Reach) -> [[u64; 4]; 2] {
    let none = [0; 4];
    match (from, into) {
        // The receiver copies.
        (Reach::Mapped, _) => [none, [0, 1, 0, 0]],
        // The sender copies.
        (_, Reach::Mapped) => [[0, 1, 0, 0], none],
        // The sender of pieces counts the fallback, also if the receiver's memory could not be mapped.
        _ => [[0, 0, 1, u64::from([from, into].contains(&Reach::Kept))], none],
    }
}

/// Sends every sort to every sort: short, long, and across the boundary of two allocations. Each message arrives whole,
/// by the expected method, and is counted.
fn every_sort(kind: &str, sorts: &[(&str, Reach)], world: World) {
    let mut messages = Messages::start(&world, AnyMemory::open(kind, 0).unwrap()).unwrap();
    messages.choose_method(MethodChoice::Fixed(CopyMethod::Pull));
    let buffers: Vec<Buffer> = sorts.iter().map(|(sort, _)| make_buffer(messages.memory(), sort)).collect();
    let mut seed = 0;
    for (from, source) in sorts.iter().zip(&buffers) {
        for (into, target) in sorts.iter().zip(&buffers) {
            for (at, len) in [(LEN / 2 - 2000, 4000), (8, LEN - 16), (LEN / 2 - 20_000, 40_000)] {
                seed += 1;
                let what = format!("{len} bytes of {} to {}", from.0, into.0);
                let (bytes, before) = (pattern(seed, len), messages.counts());
                if world.rank() == 0 {
                    messages.write(source, at, &bytes).unwrap();
                    let source = part(source, at, len);
                    let sending = messages.isend(1, 1, &source).unwrap();
                    messages.wait(sending).unwrap();
                } else {
                    messages.write(target, 0, &vec![0xa5; LEN]).unwrap();
                    let receiving = messages.irecv(0, 1, &part(target, at, len)).unwrap();
                    assert_eq!(messages.wait(receiving).unwrap().len, len as u64, "{what}");
                    let mut all = vec![0; LEN];
                    messages.read(target, 0, &mut all).unwrap();
                    assert!(all[at..at + len] == bytes, "{what}: other bytes");
                    let around = all[..at].iter().chain(&all[at + len..]);
                    assert!(around.copied().all(|byte| byte == 0xa5), "{what}: bytes around");
                }
                let expected = match (len, world.rank()) {
                    (4000, 0) => [1, 0, 0, 0],
                    (4000, _) => [0; 4],
                    (_, rank) => counted(from.1, into.1)[rank],
                };
                assert_eq!(since(messages.counts(), before), expected, "rank {}, {what}", world.rank());
            }
        }
    }
    messages.finish().unwrap();
    world.finish().unwrap();
}

/// Returns a part of a buffer.
fn part(of: &Buffer, at: usize, len: usize) -> Buffer {
    of.part(at, len).unwrap()
}

#[test]
fn cuda_memory_without_handle_is_staged_and_counted() {
    over_stub("cuda", &[], "kept::cuda_memory_without_handle_is_staged_and_counted", |world| {
        every_sort("cuda", &sorts("cuda"), world)
    });
}

#[test]
fn hip_memory_without_handle_is_staged_and_counted() {
    over_stub("hip", &[], "kept::hip_memory_without_handle_is_staged_and_counted", |world| {
        every_sort("hip", &sorts("hip"), world)
    });
}

#[test]
fn level_zero_memory_without_handle_is_staged_and_counted() {
    over_stub("ze", &[], "kept::level_zero_memory_without_handle_is_staged_and_counted", |world| {
        every_sort("ze", &sorts("ze"), world)
    });
}

#[test]
fn gpu_memory_without_handle_is_staged_and_counted() {
    let name = "kept::gpu_memory_without_handle_is_staged_and_counted";
    over_driver("cuda", name, |world| every_sort("cuda", &OF_GPU, world));
}

/// Sends bytes across the boundary of two segments repeatedly, and reports the rate, for `scripts/on-gpu`.
fn measure_stage(world: World) {
    const MIB: usize = 1 << 20;
    let number = |name, or| std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(or);
    let (len, rounds) = (number("TEST_STAGE_MIB", 64) * MIB, number("TEST_STAGE_ROUNDS", 20));
    let mut messages = Messages::start(&world, AnyMemory::open("cuda", 0).unwrap()).unwrap();
    let (buffer, last) = (Buffer::from_address(Nvidia::open().segments(len), len), pattern(rounds, 4096));
    let (before, began) = (messages.counts(), std::time::Instant::now());
    for round in 0..rounds {
        if world.rank() == 0 {
            messages.write(&buffer, len - 4096, &pattern(round + 1, 4096)).unwrap();
            let sending = messages.isend(1, 1, &buffer).unwrap();
            messages.wait(sending).unwrap();
        } else {
            let receiving = messages.irecv(0, 1, &buffer).unwrap();
            messages.wait(receiving).unwrap();
        }
    }
    messages.barrier().unwrap();
    let seconds = began.elapsed().as_secs_f64();
    if world.rank() == 1 {
        let mut found = vec![0; 4096];
        messages.read(&buffer, len - 4096, &mut found).unwrap();
        assert!(found == last, "the last bytes of the last message");
        let gib = (len * rounds) as f64 / seconds / 1024.0_f64.powi(3);
        let row = format!(
            "\n{{\"memory\": \"cuda segments\", \"way\": \"stage\", \"bytes\": {len}, \"rounds\": {rounds}, \"gib_per_s\": {gib:.3}}}\n"
        );
        std::io::Write::write_all(&mut std::io::stderr(), row.as_bytes()).unwrap();
    } else {
        let [_, mapped, staged, _] = since(messages.counts(), before);
        assert_eq!((mapped, staged), (0, rounds as u64), "all messages are staged");
    }
    messages.finish().unwrap();
    world.finish().unwrap();
}

#[test]
fn the_rate_of_staged_segments_is_measured() {
    let small = [("TEST_STAGE_MIB", "4"), ("TEST_STAGE_ROUNDS", "3")];
    over_stub("cuda", &small, "kept::the_rate_of_staged_segments_is_measured", measure_stage);
}

#[test]
fn the_rate_of_staged_segments_of_a_gpu_is_measured() {
    over_driver("cuda", "kept::the_rate_of_staged_segments_of_a_gpu_is_measured", measure_stage);
}

/// No rank can map a window of such memory, so puts and gets use messages.
fn windows(kind: &str, sorts: &[(&str, Reach)], world: World) {
    let mut messages = Messages::start(&world, AnyMemory::open(kind, 0).unwrap()).unwrap();
    let other = 1 - world.rank();
    for &(sort, reach) in sorts.iter().filter(|(_, reach)| *reach != Reach::Host) {
        let mine = make_buffer(messages.memory(), sort);
        let window = messages.window(&mine).unwrap();
        assert_eq!(window.is_mapped(other), reach == Reach::Mapped, "{sort}");
        let bytes = |rank: usize| pattern(3 + rank, LEN - 16);
        let source = Buffer::private(LEN - 16).unwrap();
        source.write(0, &bytes(world.rank())).unwrap();
        messages.put(&window, WindowPlace::new(other, 8), &source).unwrap();
        messages.fence(&window).unwrap();
        let mut found = vec![0; LEN - 16];
        messages.read(&mine, 8, &mut found).unwrap();
        assert!(found == bytes(other), "{sort}: put");
        let into = Buffer::private(LEN - 16).unwrap();
        messages.get(&window, WindowPlace::new(other, 8), &into).unwrap();
        messages.flush_all(&window).unwrap();
        into.read(0, &mut found).unwrap();
        assert!(found == bytes(world.rank()), "{sort}: got");
        messages.fence(&window).unwrap();
        messages.free(window).unwrap();
    }
    messages.finish().unwrap();
    world.finish().unwrap();
}

#[test]
fn cuda_windows_without_handle_use_messages() {
    over_stub("cuda", &[], "kept::cuda_windows_without_handle_use_messages", |world| {
        windows("cuda", &sorts("cuda"), world)
    });
}

#[test]
fn hip_windows_without_handle_use_messages() {
    over_stub("hip", &[], "kept::hip_windows_without_handle_use_messages", |world| {
        windows("hip", &sorts("hip"), world)
    });
}

#[test]
fn level_zero_windows_without_handle_use_messages() {
    over_stub("ze", &[], "kept::level_zero_windows_without_handle_use_messages", |world| {
        windows("ze", &sorts("ze"), world)
    });
}

#[test]
fn gpu_windows_without_handle_use_messages() {
    let name = "kept::gpu_windows_without_handle_use_messages";
    over_driver("cuda", name, |world| windows("cuda", &OF_GPU, world));
}

/// Memory that is distributed over the tiles of a card is exported, but the mapping is found to be too short. Each
/// message uses the stage, and after some failures the memory is not tried again for each message.
#[test]
fn memory_of_several_tiles_is_staged_and_counted() {
    let name = "kept::memory_of_several_tiles_is_staged_and_counted";
    over_stub("ze", &[("STUB_TILES", "2"), ("STUB_SPLIT", "1")], name, |world: World| {
        const ROUNDS: usize = 40;
        let mut messages = Messages::start(&world, AnyMemory::open("ze", 0).unwrap()).unwrap();
        let card = make_buffer(messages.memory(), "plain");
        let host = make_buffer(messages.memory(), "host");
        let is_sender = world.rank() == 0;
        for (source, target) in [(&card, &host), (&host, &card), (&card, &card)] {
            let before = messages.counts();
            for round in 0..ROUNDS {
                let bytes = pattern(round, LEN);
                if is_sender {
                    messages.write(source, 0, &bytes).unwrap();
                    let sending = messages.isend(1, 1, source).unwrap();
                    messages.wait(sending).unwrap();
                } else {
                    let receiving = messages.irecv(0, 1, target).unwrap();
                    messages.wait(receiving).unwrap();
                    let mut found = vec![0; LEN];
                    messages.read(target, 0, &mut found).unwrap();
                    assert!(found == bytes, "round {round}");
                }
            }
            let [eager, mapped, staged, fallbacks] = since(messages.counts(), before);
            assert_eq!((eager, mapped), (0, 0));
            assert_eq!(staged, if is_sender { ROUNDS as u64 } else { 0 });
            assert_eq!(fallbacks >= 1, is_sender, "{fallbacks}");
        }
        let driver = messages.sharing_report().driver;
        assert_eq!((driver.maps, driver.leaks), (0, 0));
        assert!((1..2 * ROUNDS as u64).contains(&driver.map_failures), "{driver:?}");
        messages.finish().unwrap();
        world.finish().unwrap();
    });
}
