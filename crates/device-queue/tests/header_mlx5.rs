//! The device header's part for NVIDIA's NICs, beside such a NIC in software. That NIC reads the ring by the decoder of
//! `proto`, holds a companion queue pair at a WAIT, and writes completions. It executes writes and atomics on
//! registered memory, which includes a sink whose addresses begin at 0.

#![allow(clippy::unwrap_used, reason = "a failed setup step ends the test")]

mod common;
#[allow(dead_code, reason = "the library for acts is not used here")]
#[path = "header/fixture.rs"]
mod fixture;

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use libloading::Library;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use trunkline_device_queue::view::{CLAIMS_BYTES, DeviceWords, QUEUE_PAIR_WORDS_BYTES, QueuePair};
use trunkline_device_queue::{HeapWords, WordMemory, allocate_words};
use trunkline_proto::wire::mlx5::{
    CqeSyndrome, INLINE_MAX, InlineSegment, LEN_MAX, LocalSegment, Mlx5Completion, Mlx5Entry, Mlx5Fence,
    Mlx5Work, RemoteSegment, doorbell_record, full_index, lap_bit, wait_is_over,
};

use common::is_full;
use fixture::{library, skip, symbol, with_steps};

/// Memory registered with the NIC under a key.
struct Region {
    key: u32,
    /// The address of its first byte; 0 for a zero-based region, wherever its memory is.
    base: u64,
    words: HeapWords,
    /// Whether the other end may access it.
    is_remote: bool,
}

/// Bytes of a region.
struct Place<'r>(&'r HeapWords, u64);

impl Place<'_> {
    fn read(&self, at: u64) -> u8 {
        let at = self.1 + at;
        (self.0.load(at & !7, Acquire) >> (8 * (at % 8))) as u8
    }

    fn write(&self, at: u64, byte: u8) {
        let at = self.1 + at;
        let kept = self.0.load(at & !7, Relaxed) & !(0xff << (8 * (at % 8)));
        self.0.store(at & !7, kept | u64::from(byte) << (8 * (at % 8)), Release);
    }
}

/// A queue pair's memory, and the NIC's state of it.
struct Pair {
    view: QueuePair,
    words: HeapWords,
    ring: HeapWords,
    cqes: HeapWords,
    record: HeapWords,
    register: HeapWords,
    _device: [HeapWords; 2],
    fetched: u64,
    produced: u64,
    is_broken: bool,
}

fn address(words: &HeapWords) -> u64 {
    words.as_ptr() as u64
}

impl Pair {
    fn new(number: u32, depth: u32, first: u64) -> Self {
        let words = allocate_words(QUEUE_PAIR_WORDS_BYTES);
        for (at, word) in DeviceWords::initial_words(first).iter().enumerate() {
            words.store(at as u64 * 8, *word, Relaxed);
        }
        let (ring, cqes) = (allocate_words(u64::from(depth) * 64), allocate_words(u64::from(depth) * 64));
        for at in 0..u64::from(depth) * 8 {
            cqes.store(at * 8, u64::MAX, Relaxed);
        }
        // Before the first lap the places must contain the opposite owner bit.
        if lap_bit(first, depth) || first & (u64::from(depth) - 1) != 0 {
            for index in first.wrapping_sub(depth.into())..first {
                let none =
                    Mlx5Completion { qp: number, index: index as u16, bytes: 0, time: 0, failed: None };
                write_cqe(&cqes, depth, index, &none);
            }
        }
        let [record, register, abort] = [8, 8, 8].map(allocate_words);
        let claims = allocate_words(CLAIMS_BYTES);
        record.store(0, u32::from_le_bytes(doorbell_record(first)).into(), Relaxed);
        let view = QueuePair {
            words: address(&words),
            ring: address(&ring),
            cqes: address(&cqes),
            record: address(&record),
            doorbell: address(&register),
            abort: address(&abort),
            claims: address(&claims),
            depth,
            shift: depth.trailing_zeros(),
            number,
            epoch: 3,
            cq: number + 100,
            sink: SINK,
            reserved: [0; 6],
        };
        let (fetched, produced) = (first, first);
        Self {
            view,
            words,
            ring,
            cqes,
            record,
            register,
            _device: [abort, claims],
            fetched,
            produced,
            is_broken: false,
        }
    }

    fn bytes(&self, index: u64) -> [u8; 64] {
        let place = (index & (u64::from(self.view.depth) - 1)) * 64;
        let mut bytes = [0; 64];
        for (at, chunk) in bytes.chunks_exact_mut(8).enumerate() {
            chunk.copy_from_slice(&self.ring.load(place + at as u64 * 8, Relaxed).to_le_bytes());
        }
        bytes
    }

    /// Returns the index after the last entry that the doorbell record covers.
    fn posted(&self) -> u64 {
        let record = self.record.load(0, Acquire) as u32;
        let posted = full_index(u32::from_be(record) as u16, self.fetched);
        assert_eq!(record.to_le_bytes(), doorbell_record(posted), "16 bits, big-endian");
        assert!(posted.wrapping_sub(self.fetched) <= self.view.depth.into(), "the record decreased");
        posted
    }
}

fn write_cqe(cqes: &HeapWords, depth: u32, index: u64, completion: &Mlx5Completion) {
    let place = (index & (u64::from(depth) - 1)) * 64;
    let bytes = completion.to_bytes(lap_bit(index, depth));
    for (at, chunk) in bytes.chunks_exact(8).enumerate() {
        cqes.store(place + at as u64 * 8, u64::from_le_bytes(chunk.try_into().unwrap()), Release);
    }
}

/// The NIC: a queue pair, its companion, and memory. The companion is connected back to this NIC, so the other end is here.
struct Nic {
    pairs: [Pair; 2],
    regions: Vec<Region>,
}

const SINK: u32 = 0x51;
const HERE: u32 = 0x11;
const THERE: u32 = 0x22;
const COUNTERS: u32 = 0x33;

impl Nic {
    fn new(depth: u32, first: u64, companion_first: u64) -> Self {
        let region =
            |key, base, bytes, is_remote| Region { key, base, words: allocate_words(bytes), is_remote };
        Self {
            pairs: [Pair::new(7, depth, first), Pair::new(8, depth, companion_first)],
            regions: vec![
                region(SINK, 0, 8, false),
                region(HERE, 0x10_0000, 4096, false),
                region(THERE, 0x20_0000, 4096, true),
                region(COUNTERS, 0x30_0000, 64, true),
            ],
        }
    }

    fn region(&self, key: u32, addr: u64, len: u64, from_outside: bool) -> Option<Place<'_>> {
        let region =
            self.regions.iter().find(|region| region.key == key && (region.is_remote || !from_outside))?;
        let at = addr.checked_sub(region.base)?;
        (at.checked_add(len)? <= region.words.byte_len()).then_some(Place(&region.words, at))
    }

    fn here(&self, local: &LocalSegment) -> Result<Place<'_>, CqeSyndrome> {
        self.region(local.key(), local.addr(), local.len().into(), false).ok_or(CqeSyndrome::LocalProtection)
    }

    fn there(&self, remote: &RemoteSegment, len: u64) -> Result<Place<'_>, CqeSyndrome> {
        self.region(remote.key, remote.addr, len, true).ok_or(CqeSyndrome::RemoteAccess)
    }

    fn word(&self, key: u32, at: u64) -> u64 {
        let region = self.regions.iter().find(|region| region.key == key).unwrap();
        region.words.load(at, Acquire)
    }

    fn atomic(
        &self,
        word: &RemoteSegment,
        old: &LocalSegment,
        change: impl Fn(u64) -> u64,
    ) -> Result<(), CqeSyndrome> {
        let (place, into) = (self.there(word, 8)?, self.here(old)?);
        assert_eq!(place.1 % 8, 0);
        let before = place.0.load(place.1, Acquire);
        for (at, byte) in (0..).zip(before.to_le_bytes()) {
            into.write(at, byte);
        }
        place.0.store(place.1, change(before), Release);
        Ok(())
    }

    /// Executes an entry; `None` if it must wait.
    fn execute(&self, work: &Mlx5Work) -> Option<Result<(), CqeSyndrome>> {
        let copy =
            |from: Place<'_>, to: Place<'_>, len: u64| (0..len).for_each(|at| to.write(at, from.read(at)));
        Some((|| {
            match work {
                Mlx5Work::Wait { .. } | Mlx5Work::Nop | Mlx5Work::Write(_, None) => {}
                Mlx5Work::Write(to, Some(from)) => {
                    copy(self.here(from)?, self.there(to, from.len().into())?, from.len().into());
                }
                Mlx5Work::WriteInline(to, inline) => {
                    let to = self.there(to, inline.as_bytes().len() as u64)?;
                    (0..).zip(inline.as_bytes()).for_each(|(at, byte)| to.write(at, *byte));
                }
                Mlx5Work::Read(from, into) => {
                    copy(self.there(from, into.len().into())?, self.here(into)?, into.len().into());
                }
                Mlx5Work::FetchAdd { word, add, old } => {
                    self.atomic(word, old, |value| value.wrapping_add(*add))?
                }
                Mlx5Work::CompareSwap { word, compare, swap, old } => {
                    self.atomic(word, old, |value| if value == *compare { *swap } else { value })?;
                }
                Mlx5Work::Dump(from) => {
                    self.here(from)?;
                }
            }
            Ok(())
        })())
        .filter(|_| match work {
            Mlx5Work::Wait { cq, index } => {
                let awaited = self.pairs.iter().find(|pair| pair.view.cq == *cq).unwrap();
                wait_is_over(awaited.produced as u32, *index)
            }
            _ => true,
        })
    }

    /// Executes the next entry of a queue pair, if one is ready.
    fn step(&mut self, at: usize) -> bool {
        let pair = &self.pairs[at];
        let (index, number, depth) = (pair.fetched, pair.view.number, pair.view.depth);
        if pair.posted() == index {
            return false;
        }
        let entry = Mlx5Entry::from_bytes(&pair.bytes(index)).unwrap();
        assert_eq!((entry.index, entry.qp, entry.signalled), (index as u16, number, true));
        let result = if pair.is_broken {
            Err(CqeSyndrome::Flushed)
        } else {
            match self.execute(&entry.work) {
                Some(result) => result,
                None => return false,
            }
        };
        let pair = &mut self.pairs[at];
        let failed = result.err().map(|syndrome| (syndrome, 0x89));
        pair.is_broken |= failed.is_some();
        let completion = Mlx5Completion { qp: number, index: index as u16, bytes: 0, time: 0, failed };
        write_cqe(&pair.cqes, depth, index, &completion);
        pair.fetched = index.wrapping_add(1);
        pair.produced = pair.produced.wrapping_add(1);
        true
    }

    /// Runs the companion first, so that it must wait by itself.
    fn run(&mut self) {
        while self.step(1) || self.step(0) {}
    }
}

type Do = unsafe extern "C" fn(*const QueuePair, *const QueuePair, u64, *const u64, *mut u64);

/// The library, one test at a time.
struct Header {
    library: Library,
    _turn: MutexGuard<'static, ()>,
}

impl Header {
    fn new(test: &str) -> Option<Self> {
        static TURN: Mutex<()> = Mutex::new(());
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(library) = library("mlx5.cpp", "-O1") else {
            skip(test, "no C++ compiler (Debian: g++)");
            return None;
        };
        Some(Self { library, _turn: turn })
    }

    fn act(&self, nic: &Nic, act: u64, args: [u64; 12]) -> [u64; 8] {
        let run = symbol::<Do>(&self.library, "nic_do");
        let mut out = [0; 8];
        // SAFETY: the views' words live in the NIC, and both arrays have the words that every act reads and writes.
        unsafe {
            run(
                &raw const nic.pairs[0].view,
                &raw const nic.pairs[1].view,
                act,
                args.as_ptr(),
                out.as_mut_ptr(),
            )
        };
        out
    }

    /// A put of `len` bytes with its signal and counter; 0 selects the default place.
    fn put(&self, nic: &Nic, len: u64, there: u32, with: u64) -> [u64; 8] {
        let (here, to) = (u64::from(HERE), 0x20_0000);
        let args =
            [1, 0x10_0000, here, to, there.into(), len, to + 2048, 3, 0x30_0000, COUNTERS.into(), 5, with];
        self.act(nic, 0, args)
    }

    fn wait(&self, nic: &Nic, index: u64) -> [u64; 8] {
        self.act(nic, 5, [1, index, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0])
    }
}

/// Values near the limits of all parts of an index that a NIC stores.
const FIRSTS: [u64; 6] = [0, 3, 0xfffe, 0xffff_fffd, (1 << 48) - 1, u64::MAX - 5];

/// Golden bytes: entries equal those of `proto`'s encoder, at all indices.
#[test]
fn entries_equal_those_of_the_encoder() {
    let Some(header) = Header::new("entries of the device header for NICs") else { return };
    let mut runner = TestRunner::new(Config {
        failure_persistence: None,
        ..Config::with_cases(if is_full() { 100_000 } else { 4_000 })
    });
    let strategy = (any::<u64>(), 0..8u64, any::<[u64; 4]>(), any::<[u32; 2]>(), 0..5u64, 1..=LEN_MAX);
    let result =
        runner.run(&strategy, |(first, kind, [there, here, value, other], [key, own], fence, len)| {
            let nic = Nic::new(8, first, 0);
            let inline = (len as usize % INLINE_MAX) + 1;
            let (remote, old) = (RemoteSegment { addr: there, key }, LocalSegment::of_word(here, own));
            let local = LocalSegment::new(here, own, len).unwrap();
            let bytes: Vec<u8> =
                [value, other, fence, 0].iter().flat_map(|word| word.to_le_bytes()).collect();
            let work = match kind {
                0 => Mlx5Work::Nop,
                1 => Mlx5Work::Write(remote, Some(local)),
                2 => Mlx5Work::WriteInline(remote, InlineSegment::new(&bytes[..inline]).unwrap()),
                3 => Mlx5Work::Read(remote, local),
                4 => Mlx5Work::FetchAdd { word: remote, add: value, old },
                5 => Mlx5Work::CompareSwap { word: remote, compare: other, swap: value, old },
                6 => Mlx5Work::Wait { cq: key & 0xff_ffff, index: value as u32 },
                _ => Mlx5Work::Dump(local),
            };
            let fences = [
                Mlx5Fence::None,
                Mlx5Fence::Small,
                Mlx5Fence::ReadsAndAtomics,
                Mlx5Fence::Strong,
                Mlx5Fence::Verbs,
            ];
            let of_kind = match kind {
                1 | 3 | 7 => len.into(),
                _ => value,
            };
            let key = if kind == 6 { key & 0xff_ffff } else { key };
            let args =
                [1, inline as u64, kind, there, key.into(), here, own.into(), of_kind, other, fence, 0, 0];
            prop_assert_eq!(header.act(&nic, 8, args)[0], 0);
            let expected = Mlx5Entry {
                index: first as u16,
                qp: 7,
                fence: fences[fence as usize],
                signalled: true,
                work,
            };
            prop_assert_eq!(nic.pairs[0].bytes(first), expected.to_bytes());
            prop_assert_eq!(
                nic.pairs[0].record.get(0) as u32,
                u32::from_le_bytes(doorbell_record(first.wrapping_add(1)))
            );
            let register = nic.pairs[0].register.get(0).to_le_bytes();
            prop_assert_eq!(
                register,
                [0, first.wrapping_add(1).to_le_bytes()[1], first.wrapping_add(1) as u8, 0, 0, 0, 7, 0]
            );
            Ok(())
        });
    if let Err(error) = result {
        panic!("{error}");
    }
}

/// Traces A4, A5 and A13: a put, its signal, and its counter by the companion, over all laps and limits of numbers.
#[test]
fn counters_count_through_the_companion() {
    let Some(header) = Header::new("the companion queue pair of the device header") else { return };
    for depth in [2, 4, 16] {
        for first in FIRSTS {
            let mut nic = Nic::new(depth, first, first.wrapping_mul(3));
            nic.regions[1].words.store(0, 0x0123_4567_89ab_cdef, Relaxed);
            for nth in 1..=3 * u64::from(depth) {
                let with = if nth % 3 == 0 { 7 } else { 3 };
                let out = header.put(&nic, 8, THERE, with);
                assert_eq!(out[0], 0, "depth {depth}, put {nth} from {first:#x}");
                assert_eq!(out[6].wrapping_sub(out[7]), 1);
                assert_eq!(header.wait(&nic, out[6])[1], 4, "the NIC has not executed it");
                while nic.step(1) {}
                assert_eq!(nic.word(COUNTERS, 0), 5 * (nth - 1), "the companion must wait");
                assert!(nic.step(0));
                while nic.step(1) {}
                let counted = if with & 4 == 0 { nth } else { nth - 1 };
                assert_eq!(
                    nic.word(COUNTERS, 0),
                    5 * counted,
                    "the counter waits for the last WRITE, or on request for the signal"
                );
                nic.run();
                assert_eq!(header.wait(&nic, out[6])[1..5], [0; 4]);
                assert_eq!((nic.word(COUNTERS, 0), nic.word(THERE, 2048)), (5 * nth, 3 * nth));
            }
            assert_eq!(nic.word(THERE, 0), 0x0123_4567_89ab_cdef);
            assert_eq!(
                nic.word(SINK, 0),
                5 * (3 * u64::from(depth) - 1),
                "the sink must contain the last atomic's result"
            );
        }
    }
}

/// The ring is full, and is freed entry by entry. Also the other operations, and a put that is longer than an entry.
#[test]
fn full_ring_is_freed_entry_by_entry() {
    let Some(header) = Header::new("operations of the device header for NICs") else { return };
    for first in FIRSTS {
        let mut nic = Nic::new(4, first, 0);
        let there = [THERE.into(), 0x20_0000];
        let at = |index: u64| first.wrapping_add(index);
        let signal = [1, 0, 0, 0, there[0], 0, 0x20_0800, 1, 0, 0, 0, 0];
        for _ in 0..4 {
            assert_eq!(header.act(&nic, 3, signal)[0], 0);
        }
        assert_eq!(header.act(&nic, 3, signal)[0], 1, "the ring must have no room");
        assert!(nic.step(0));
        assert_eq!(header.act(&nic, 3, signal)[0], 0);
        assert_eq!(header.act(&nic, 3, signal)[0], 1, "the ring must have no room again");
        nic.run();
        assert_eq!(nic.word(THERE, 0x800), 5);
        for index in 0..5 {
            assert_eq!(header.wait(&nic, at(index))[1], 0, "entry {index}");
        }
        assert_eq!(header.wait(&nic, at(5))[1], 4, "the entry is not posted");
        let inline = [1, 0, 0, there[1] + 64, there[0], 11, 0, 0x1122_3344_5566_7788, 0x99_aabb, 0, 0, 0];
        assert_eq!(header.act(&nic, 1, inline)[0], 0);
        let get = [1, 0x10_0100, HERE.into(), there[1] + 64, there[0], 16, 0, 0, 0, 0, 0, 0];
        assert_eq!(header.act(&nic, 2, get)[0], 0);
        nic.run();
        assert_eq!((nic.word(HERE, 0x100), nic.word(HERE, 0x108)), (0x1122_3344_5566_7788, 0x99_aabb));
        let swap = [1, 0x10_0200, HERE.into(), there[1] + 72, there[0], 0, 77, 0x99_aabb, 0, 0, 0, 0];
        assert_eq!(header.act(&nic, 4, swap)[0], 0);
        nic.run();
        assert_eq!((nic.word(THERE, 72), nic.word(HERE, 0x200)), (77, 0x99_aabb));
        let long = header.put(&nic, 5 << 29, THERE, 1);
        assert_eq!((long[0], long[7].wrapping_sub(at(9))), (0, 2), "three pieces, and the signal");
        assert_eq!([header.put(&nic, 0, THERE, 1)[0], header.put(&nic, u64::MAX, THERE, 1)[0]], [5, 6]);
    }
}

/// Trace A12: a failed entry and all later ones fail for their waiters, and for producers that wait for room. A WAIT
/// counts completions, with or without errors.
/// bad.
#[test]
fn failures_reach_waiters() {
    let Some(header) = Header::new("failures of the device header for NICs") else { return };
    for first in FIRSTS {
        let at = |index: u64| first.wrapping_add(index);
        let mut nic = Nic::new(8, first, 0);
        for there in [THERE, THERE, 0xbad, THERE] {
            assert_eq!(header.put(&nic, 8, there, 2)[0], 0);
        }
        nic.run();
        let failed = [1, 3, 0x13 | 0x89 << 8, at(2)];
        for (index, expected) in [(1, [0; 4]), (0, [0; 4]), (3, failed), (2, failed)] {
            assert_eq!(header.wait(&nic, at(index))[1..5], expected, "entry {index} from {first:#x}");
        }
        assert_eq!(nic.word(COUNTERS, 0), 20, "a counter counts ended entries, also failed ones");
        let over = header.act(&nic, 7, [0; 12]);
        assert_eq!(over[1..6], [failed[0], failed[1], failed[2], failed[3], 1]);
        let mut posted = 0;
        let refused = loop {
            let out = header.put(&nic, 8, THERE, 0);
            if out[0] != 0 {
                break out;
            }
            posted += 1;
        };
        assert_eq!(
            (posted, refused[0], &refused[1..5]),
            (6, 3, &failed[..]),
            "the room ends one lap after the last successful entry"
        );
    }
}

/// An abort, by this device and by the host.
#[test]
fn aborts_end_waits() {
    let Some(header) = Header::new("aborts of the device header for NICs") else { return };
    let nic = Nic::new(8, 0, 0);
    assert_eq!(header.put(&nic, 8, THERE, 0)[0], 0);
    assert_eq!(header.act(&nic, 6, [0, 6, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0])[5], 1);
    assert_eq!(header.act(&nic, 6, [0, 6, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0])[5], 0, "the first abort must stay");
    assert_eq!(header.wait(&nic, 0)[1..5], [3, 6, 9, 0]);
    nic.pairs[0]._device[0].store(0, 6 | 4 << 32, Release);
    assert_eq!(
        header.wait(&nic, 0)[1..5],
        [3, 6, 4, 0],
        "the host's abort must take precedence over the device's"
    );
}

/// The record covers the register's value whenever the NIC reads both.
#[test]
fn record_precedes_the_register() {
    let Some(header) = Header::new("doorbells of the device header for NICs") else { return };
    let nic = Nic::new(8, 0xfffd, 0);
    let late = Cell::new(0);
    let check = |name: &str| {
        let told = u32::from_be(nic.pairs[0].register.get(0) as u32) >> 8;
        if name == "register" && told as u16 != u32::from_be(nic.pairs[0].record.get(0) as u32) as u16 {
            late.set(late.get() + 1);
        }
    };
    with_steps(&header.library, "nic_steps", check, || {
        for _ in 0..5 {
            assert_eq!(header.put(&nic, 8, THERE, 0)[0], 0);
        }
    });
    assert_eq!(late.get(), 0, "registers without their record");
    assert_eq!(nic.pairs[0].words.get(640 - 128), 0, "the lock must be free");
}

/// `tests::NicJob` of `header/mlx5_kernels.h`.
#[repr(C)]
struct Job {
    main: *const QueuePair,
    companion: *const QueuePair,
    here: (u64, u32, u32),
    there: [(u64, u32, u32); 3],
    looks: u64,
    rounds: u64,
    failed: *const u64,
}

// SAFETY: the threads share the job by reference, and all words that it points to are atomics or never written.
unsafe impl Sync for Job {}

/// T11: many threads on one queue pair and its companion, and the NIC.
#[test]
fn threads_share_a_queue_pair() {
    let Some(header) = Header::new("threads of the device header for NICs") else { return };
    let (rounds, failed) = (if is_full() { 5_000 } else { 100 }, allocate_words(8));
    for (threads, depth) in [(1, 2), (3, 4), (4, 64)] {
        let mut nic = Nic::new(depth, 0xffff_fff0, 0xfff0);
        let job = Job {
            main: &raw const nic.pairs[0].view,
            companion: &raw const nic.pairs[1].view,
            here: (0x10_0000, HERE, 0),
            there: [(0x20_0000, THERE, 0), (0x20_0800, THERE, 0), (0x30_0000, COUNTERS, 0)],
            looks: 50_000_000,
            rounds,
            failed: failed.as_ptr().cast(),
        };
        let exercise = symbol::<unsafe extern "C" fn(*const Job)>(&header.library, "nic_exercise");
        // The NIC has its own copies of the views; these are only read, too.
        let views = [nic.pairs[0].view, nic.pairs[1].view];
        let job = Job { main: &raw const views[0], companion: &raw const views[1], ..job };
        let left = AtomicU32::new(threads);
        thread::scope(|scope| {
            for _ in 0..threads {
                let (job, left) = (&job, &left);
                scope.spawn(move || {
                    // SAFETY: the job's words outlive the scope.
                    unsafe { exercise(job) };
                    left.fetch_sub(1, Relaxed);
                });
            }
            while left.load(Relaxed) > 0 {
                if !nic.step(1) && !nic.step(0) {
                    thread::yield_now();
                }
            }
        });
        nic.run();
        assert_eq!(failed.get(0), 0, "failed operations");
        let all = u64::from(threads) * rounds;
        assert_eq!((nic.word(THERE, 0x800), nic.word(COUNTERS, 0)), (2 * all, all));
    }
}
